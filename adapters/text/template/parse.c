/* template/parse.c - tokens to nodes, by recursive descent along Jinja2's grammar.
 *
 *	N_IF        a condition, b then, c else, d the N_IF of an elif
 *	N_FOR       list targets (op: more than one, to be unpacked), a what, d filter, b body, c else
 *	N_SET       list targets (N_NAME, or N_ATTR of a namespace), a value
 *	N_SET_BLOCK list one target, b body, a: the last N_FILTER to apply, or NULL
 *	N_FILTER_BLOCK  b body, a: the last N_FILTER to apply
 *	N_MACRO     s name, list parameters (N_NAME, a default), b body
 *	N_CALL_BLOCK    a the N_CALL to make with a macro named caller: list parameters, b body
 *	N_WITH      list of names to set (N_KEYWORD), b body
 *	N_CALL      a what, list arguments (N_KEYWORD: s name, a value); N_FILTER, N_TEST alike
 *	N_ITEM      a what, b key or N_SLICE (a from, b to, c step, each may be NULL)
 *	N_IF_ELSE   a condition, b value, c otherwise (may be NULL)
 */
#include <errno.h>
#include <string.h>

#include "impl.h"

#define DEPTH_MAX 100            /* nesting of expressions and blocks */

struct parser {
	struct job *j;
	const struct token *t;       /* the next token */
	int depth;
	int loops;                   /* loops around this place, for break and continue */
};

struct list_end { struct node *first, **last; size_t n; };

static struct node *expression(struct parser *p);
static struct node *primary(struct parser *p);
static struct node *postfix(struct parser *p, struct node *n);
static struct node *unary(struct parser *p, bool with_filters);
static struct node *either(struct parser *p);
static struct node *body(struct parser *p, const char *const *ends);

static struct node *node(struct parser *p, enum node_kind kind)
{
	struct node *n = job_alloc(p->j, sizeof(*n));

	n->kind = kind;
	n->line = p->t->line;
	return n;
}

static void append(struct list_end *l, struct node *n)
{
	if (!l->last)
		l->last = &l->first;
	*l->last = n;
	l->last = &n->next;
	l->n++;
}

static void deeper(struct parser *p)
{
	if (++p->depth > DEPTH_MAX)
		template_fail(p->j, -E2BIG, p->t->line, "nested deeper than %d", DEPTH_MAX);
}

static bool is_op(const struct parser *p, int op)
{
	return p->t->kind == T_OP && p->t->op == op;
}

static bool is_name(const struct parser *p, const char *name)
{
	return p->t->kind == T_NAME && str_is(p->t->s, name);
}

static bool take_op(struct parser *p, int op)
{
	if (!is_op(p, op))
		return false;
	p->t++;
	return true;
}

static bool take_name(struct parser *p, const char *name)
{
	if (!is_name(p, name))
		return false;
	p->t++;
	return true;
}

_Noreturn static void unexpected(struct parser *p, const char *wanted)
{
	const struct token *t = p->t;
	static const char *const what[] = {
		[T_DATA] = "text", [T_OPEN_OUT] = "{{", [T_CLOSE_OUT] = "}}", [T_OPEN_BLOCK] = "{%",
		[T_CLOSE_BLOCK] = "%}", [T_STRING] = "a string", [T_INT] = "a number",
		[T_FLOAT] = "a number", [T_END] = "the end of the template",
	};

	if (t->kind == T_NAME)
		template_fail(p->j, -EINVAL, t->line, "expected %s, got '%.*s'", wanted,
		              t->s.n > 60 ? 60 : (int)t->s.n, t->s.s);
	if (t->kind == T_OP)
		template_fail(p->j, -EINVAL, t->line, "expected %s, got '%s%c'", wanted,
		              t->op > 255 ? (char[]){ (char)(t->op >> 8), 0 } : "", t->op & 255);
	template_fail(p->j, -EINVAL, t->line, "expected %s, got %s", wanted, what[t->kind]);
}

static void want_op(struct parser *p, int op)
{
	char name[4] = { '\'', (char)op, '\'', 0 };

	if (!take_op(p, op))
		unexpected(p, name);
}

static struct str want_name(struct parser *p, const char *what)
{
	if (p->t->kind != T_NAME)
		unexpected(p, what);
	return p->t++->s;
}

/* ---- expressions ----------------------------------------------------------------------------- */

/* Arguments, after the opening parenthesis. */
static void arguments(struct parser *p, struct node *call)
{
	struct list_end l = { NULL, NULL, 0 };
	struct node *n;

	while (!take_op(p, ')')) {
		if (l.n) {
			want_op(p, ',');
			if (take_op(p, ')'))
				break;
		}
		if (is_op(p, '*') || is_op(p, OP2('*', '*')))
			template_fail(p->j, -EINVAL, p->t->line, "arguments with * are not supported");
		if (p->t->kind == T_NAME && p->t[1].kind == T_OP && p->t[1].op == '=') {
			n = node(p, N_KEYWORD);
			n->s = p->t->s;
			p->t += 2;
			n->a = expression(p);
		} else {
			n = expression(p);
		}
		append(&l, n);
	}
	call->list = l.first;
	call->n_list = l.n;
}

static struct node *string(struct parser *p)
{
	struct node *n = node(p, N_CONST);
	size_t total = 0, k = 0;
	const struct token *t;
	char *s;

	for (t = p->t; t->kind == T_STRING; t++)
		total += t->s.n;
	s = job_alloc(p->j, total + 1);
	for (; p->t->kind == T_STRING; p->t++) {
		memcpy(s + k, p->t->s.s, p->t->s.n);
		k += p->t->s.n;
	}
	n->v = (struct value){ .t = V_STR, .u.s = { s, total } };
	return n;
}

static struct node *items_until(struct parser *p, enum node_kind kind, int close)
{
	struct node *n = node(p, kind);
	struct list_end l = { NULL, NULL, 0 };

	while (!take_op(p, close)) {
		if (l.n) {
			want_op(p, ',');
			if (take_op(p, close))
				break;
		}
		append(&l, expression(p));
		if (kind == N_DICT) {
			want_op(p, ':');
			append(&l, expression(p));
			l.n--;
		}
	}
	n->list = l.first;
	n->n_list = l.n;
	return n;
}

/* "a" or "a, b"; after "(" it may be empty.  item() parses one item. */
static struct node *tuple(struct parser *p, struct node *(*item)(struct parser *p), bool may_be_empty)
{
	struct node *n = node(p, N_TUPLE);
	struct list_end l = { NULL, NULL, 0 };
	bool comma = false;

	while (p->t->kind != T_CLOSE_OUT && p->t->kind != T_CLOSE_BLOCK && !is_op(p, ')') && !is_name(p, "if")) {
		if (l.n && !comma)
			break;
		append(&l, item(p));
		comma = take_op(p, ',');
		if (!comma && l.n == 1)
			return l.first;
	}
	if (!l.n && !may_be_empty)
		unexpected(p, "an expression");
	n->list = l.first;
	n->n_list = l.n;
	return n;
}

static struct node *name(struct parser *p)
{
	static const struct { const char *name; struct value v; } constants[] = {
		{ "true", { .t = V_BOOL, .u.b = true } }, { "True", { .t = V_BOOL, .u.b = true } },
		{ "false", { .t = V_BOOL } }, { "False", { .t = V_BOOL } },
		{ "none", { .t = V_NONE } }, { "None", { .t = V_NONE } },
	};
	struct node *n = node(p, N_NAME);

	n->s = p->t->s;
	for (size_t i = 0; i < sizeof(constants) / sizeof(*constants); i++)
		if (str_is(n->s, constants[i].name)) {
			n->kind = N_CONST;
			n->v = constants[i].v;
		}
	p->t++;
	return n;
}

static struct node *primary(struct parser *p)
{
	struct node *n;

	switch (p->t->kind) {
	case T_NAME:
		return name(p);
	case T_STRING:
		return string(p);
	case T_INT:
		n = node(p, N_CONST);
		n->v = (struct value){ .t = V_INT, .u.i = p->t++->i };
		return n;
	case T_FLOAT:
		n = node(p, N_CONST);
		n->v = (struct value){ .t = V_FLOAT, .u.f = p->t++->f };
		return n;
	default:
		break;
	}
	if (take_op(p, '(')) {
		n = tuple(p, expression, true);
		want_op(p, ')');
		return n;
	}
	if (take_op(p, '['))
		return items_until(p, N_LIST, ']');
	if (take_op(p, '{'))
		return items_until(p, N_DICT, '}');
	unexpected(p, "an expression");
}

/* What is between "[" and "]". */
static struct node *subscript(struct parser *p)
{
	struct node *slice = node(p, N_SLICE), **part[] = { &slice->a, &slice->b, &slice->c };
	int colons = 0;

	while (!is_op(p, ']')) {
		if (take_op(p, ':')) {
			if (++colons > 2)
				unexpected(p, "']'");
		} else if (*part[colons]) {
			unexpected(p, "']'");
		} else {
			*part[colons] = expression(p);
		}
	}
	if (!colons && !slice->a)
		unexpected(p, "an expression");
	p->t++;
	return colons ? slice : slice->a;
}

static struct node *call(struct parser *p, struct node *what)
{
	struct node *n = node(p, N_CALL);

	p->t++;
	n->a = what;
	arguments(p, n);
	return n;
}

static struct node *postfix(struct parser *p, struct node *a)
{
	struct node *n;

	for (;; a = n) {
		if (is_op(p, '(')) {
			n = call(p, a);
			continue;
		}
		if (is_op(p, '[')) {
			n = node(p, N_ITEM);
			p->t++;
			n->a = a;
			n->b = subscript(p);
			continue;
		}
		if (!is_op(p, '.'))
			return a;
		n = node(p, N_ATTR);
		p->t++;
		n->a = a;
		if (p->t->kind == T_INT) {
			n->kind = N_ITEM;
			n->b = primary(p);
		} else {
			n->s = want_name(p, "a name after '.'");
		}
	}
}

static struct node *filter(struct parser *p, struct node *a)
{
	struct node *n = node(p, N_FILTER);

	n->a = a;
	n->s = want_name(p, "the name of a filter");
	n->filter = filter_find(n->s);
	if (take_op(p, '('))
		arguments(p, n);
	return n;
}

static struct node *test(struct parser *p, struct node *a)
{
	struct node *n = node(p, N_TEST);
	const struct token *t;

	n->a = a;
	n->op = take_name(p, "not");
	n->s = want_name(p, "the name of a test");
	n->test = test_find(n->s);
	t = p->t;
	if (take_op(p, '(')) {
		arguments(p, n);
	} else if (t->kind == T_STRING || t->kind == T_INT || t->kind == T_FLOAT ||
	           is_op(p, '[') || is_op(p, '{') ||
	           (t->kind == T_NAME && !is_name(p, "else") && !is_name(p, "or") && !is_name(p, "and") &&
	            !is_name(p, "is") && !is_name(p, "if") && !is_name(p, "in") && !is_name(p, "not"))) {
		n->list = postfix(p, primary(p));
		n->n_list = 1;
	}
	return n;
}

static struct node *unary(struct parser *p, bool with_filters)
{
	struct node *n;

	deeper(p);
	if (is_op(p, '-') || is_op(p, '+')) {
		n = node(p, is_op(p, '-') ? N_NEG : N_POS);
		p->t++;
		n->a = unary(p, false);
	} else {
		n = primary(p);
	}
	n = postfix(p, n);
	while (with_filters) {
		if (take_op(p, '|'))
			n = filter(p, n);
		else if (take_name(p, "is"))
			n = test(p, n);
		else if (is_op(p, '('))
			n = call(p, n);
		else
			break;
	}
	p->depth--;
	return n;
}

/* The levels of binary operators, loosest first. */
static const int levels[][5] = {
	{ '+', '-' }, { '~' }, { '*', '/', OP2('/', '/'), '%' }, { OP2('*', '*') },
};

static struct node *binary(struct parser *p, size_t level)
{
	struct node *a, *n;
	const int *op;

	if (level == sizeof(levels) / sizeof(*levels))
		return unary(p, true);
	a = binary(p, level + 1);
	for (;;) {
		for (op = levels[level]; *op && !is_op(p, *op); op++)
			;
		if (!*op)
			return a;
		n = node(p, N_BINARY);
		n->op = *op;
		p->t++;
		n->a = a;
		n->b = binary(p, level + 1);
		a = n;
	}
}

static int comparison(struct parser *p)
{
	static const int ops[] = { OP2('=', '='), OP2('!', '='), OP2('>', '='), OP2('<', '='), '<', '>' };

	for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++)
		if (take_op(p, ops[i]))
			return ops[i];
	if (take_name(p, "in"))
		return 'i';
	if (is_name(p, "not") && p->t[1].kind == T_NAME && str_is(p->t[1].s, "in")) {
		p->t += 2;
		return 'n';
	}
	return 0;
}

/* a < b < c: list holds the operands after the first, each with its operator. */
static struct node *compare(struct parser *p)
{
	struct node *a = binary(p, 0), *n;
	struct list_end l = { NULL, NULL, 0 };
	int op;

	while ((op = comparison(p))) {
		n = node(p, N_KEYWORD);
		n->op = op;
		n->a = binary(p, 0);
		append(&l, n);
	}
	if (!l.n)
		return a;
	n = node(p, N_COMPARE);
	n->a = a;
	n->list = l.first;
	return n;
}

static struct node *negation(struct parser *p)
{
	struct node *n;

	if (!is_name(p, "not"))
		return compare(p);
	deeper(p);
	n = node(p, N_NOT);
	p->t++;
	n->a = negation(p);
	p->depth--;
	return n;
}

static struct node *both(struct parser *p)
{
	struct node *a = negation(p), *n;

	while (is_name(p, "and")) {
		n = node(p, N_AND);
		p->t++;
		n->a = a;
		n->b = negation(p);
		a = n;
	}
	return a;
}

static struct node *either(struct parser *p)
{
	struct node *a = both(p), *n;

	while (is_name(p, "or")) {
		n = node(p, N_OR);
		p->t++;
		n->a = a;
		n->b = both(p);
		a = n;
	}
	return a;
}

static struct node *expression(struct parser *p)
{
	struct node *a, *n;

	deeper(p);
	a = either(p);
	while (is_name(p, "if")) {
		n = node(p, N_IF_ELSE);
		p->t++;
		n->b = a;
		n->a = either(p);
		if (take_name(p, "else"))
			n->c = expression(p);
		a = n;
	}
	p->depth--;
	return a;
}

/* ---- statements ------------------------------------------------------------------------------ */

static void close_tag(struct parser *p)
{
	if (p->t->kind != T_CLOSE_BLOCK)
		unexpected(p, "%}");
	p->t++;
}

/* "{% endx %}": body() has already checked the opening bracket and the name. */
static void end_tag(struct parser *p)
{
	p->t += 2;
	close_tag(p);
}

static bool next_tag(const struct parser *p, const char *name)
{
	return p->t->kind == T_OPEN_BLOCK && p->t[1].kind == T_NAME && str_is(p->t[1].s, name);
}

static struct node *conditional(struct parser *p)
{
	static const char *const ends[] = { "elif", "else", "endif", NULL }, *const end[] = { "endif", NULL };
	struct node *first = NULL, **at = &first, *n;

	do {
		n = node(p, N_IF);
		n->a = expression(p);
		close_tag(p);
		n->b = body(p, ends);
		*at = n;
		at = &n->d;
	} while (next_tag(p, "elif") && (p->t += 2));
	if (next_tag(p, "else")) {
		end_tag(p);
		n->c = body(p, end);
	}
	end_tag(p);
	return first;
}

/* Names to set: "a", "a, b" or "(a, b)"; also ns.a if attrs is true. */
static void targets(struct parser *p, struct node *n, bool attrs)
{
	struct list_end l = { NULL, NULL, 0 };
	bool parens = take_op(p, '(');
	struct node *t, *ns;

	do {
		t = node(p, N_NAME);
		t->s = want_name(p, "a name to set");
		if (attrs && take_op(p, '.')) {
			ns = t;
			t = node(p, N_ATTR);
			t->a = ns;
			t->s = want_name(p, "a name after '.'");
		}
		append(&l, t);
		n->op = l.n > 1;
	} while (take_op(p, ',') && (n->op = 1) && p->t->kind == T_NAME);
	if (parens)
		want_op(p, ')');
	n->list = l.first;
	n->n_list = l.n;
}

static struct node *loop(struct parser *p)
{
	static const char *const ends[] = { "else", "endfor", NULL }, *const end[] = { "endfor", NULL };
	struct node *n = node(p, N_FOR);

	targets(p, n, false);
	if (!take_name(p, "in"))
		unexpected(p, "'in'");
	n->a = tuple(p, either, false);
	if (take_name(p, "if"))
		n->d = expression(p);
	if (is_name(p, "recursive"))
		template_fail(p->j, -EINVAL, n->line, "recursive loops are not supported");
	close_tag(p);
	p->loops++;
	n->b = body(p, ends);
	p->loops--;
	if (next_tag(p, "else")) {
		end_tag(p);
		n->c = body(p, end);
	}
	end_tag(p);
	return n;
}

static struct node *set(struct parser *p)
{
	static const char *const ends[] = { "endset", NULL };
	struct node *n = node(p, N_SET);

	targets(p, n, true);
	if (take_op(p, '=')) {
		n->a = tuple(p, expression, false);
		close_tag(p);
		return n;
	}
	if (n->n_list != 1)
		unexpected(p, "'='");
	n->kind = N_SET_BLOCK;
	while (take_op(p, '|'))
		n->a = filter(p, n->a);
	close_tag(p);
	n->b = body(p, ends);
	end_tag(p);
	return n;
}

/* The parameters of a macro, after the opening parenthesis. */
static void parameters(struct parser *p, struct node *n)
{
	struct list_end l = { NULL, NULL, 0 };
	struct node *param;

	while (!take_op(p, ')')) {
		if (l.n)
			want_op(p, ',');
		param = node(p, N_NAME);
		param->s = want_name(p, "the name of a parameter");
		if (take_op(p, '='))
			param->a = expression(p);
		append(&l, param);
	}
	n->list = l.first;
	n->n_list = l.n;
}

/* The body of a macro, in which break and continue do not see a loop around the macro. */
static struct node *macro_body(struct parser *p, struct node *n, const char *const *ends)
{
	int loops = p->loops;

	close_tag(p);
	p->loops = 0;
	n->b = body(p, ends);
	p->loops = loops;
	end_tag(p);
	return n;
}

static struct node *macro(struct parser *p)
{
	static const char *const ends[] = { "endmacro", NULL };
	struct node *n = node(p, N_MACRO);

	n->s = want_name(p, "the name of a macro");
	want_op(p, '(');
	parameters(p, n);
	return macro_body(p, n, ends);
}

static struct node *call_block(struct parser *p)
{
	static const char *const ends[] = { "endcall", NULL };
	struct node *n = node(p, N_CALL_BLOCK);

	n->s = STR("caller");
	if (take_op(p, '('))
		parameters(p, n);
	n->a = postfix(p, primary(p));
	if (n->a->kind != N_CALL)
		unexpected(p, "the call of a macro before this,");
	return macro_body(p, n, ends);
}

static struct node *filter_block(struct parser *p)
{
	static const char *const ends[] = { "endfilter", NULL };
	struct node *n = node(p, N_FILTER_BLOCK);

	do
		n->a = filter(p, n->a);
	while (take_op(p, '|'));
	close_tag(p);
	n->b = body(p, ends);
	end_tag(p);
	return n;
}

static struct node *with(struct parser *p)
{
	static const char *const ends[] = { "endwith", NULL };
	struct node *n = node(p, N_WITH), *v;
	struct list_end l = { NULL, NULL, 0 };

	while (p->t->kind != T_CLOSE_BLOCK) {
		if (l.n)
			want_op(p, ',');
		v = node(p, N_KEYWORD);
		v->s = want_name(p, "a name to set");
		want_op(p, '=');
		v->a = expression(p);
		append(&l, v);
	}
	n->list = l.first;
	n->n_list = l.n;
	close_tag(p);
	n->b = body(p, ends);
	end_tag(p);
	return n;
}

static struct node *scope(struct parser *p)
{
	static const char *const ends[] = { "endgeneration", NULL };
	struct node *n = node(p, N_SCOPE);

	close_tag(p);
	n->b = body(p, ends);
	end_tag(p);
	return n;
}

static struct node *jump(struct parser *p, enum node_kind kind)
{
	struct node *n = node(p, kind);

	if (!p->loops)
		template_fail(p->j, -EINVAL, n->line, "break or continue outside of a loop");
	close_tag(p);
	return n;
}

static struct node *statement(struct parser *p)
{
	struct node *n;
	struct str s;

	p->t++;                              /* {% */
	s = want_name(p, "the name of a block");
	deeper(p);
	if (str_is(s, "if"))
		n = conditional(p);
	else if (str_is(s, "for"))
		n = loop(p);
	else if (str_is(s, "set"))
		n = set(p);
	else if (str_is(s, "macro"))
		n = macro(p);
	else if (str_is(s, "call"))
		n = call_block(p);
	else if (str_is(s, "filter"))
		n = filter_block(p);
	else if (str_is(s, "with"))
		n = with(p);
	else if (str_is(s, "generation"))
		n = scope(p);
	else if (str_is(s, "break"))
		n = jump(p, N_BREAK);
	else if (str_is(s, "continue"))
		n = jump(p, N_CONTINUE);
	else
		template_fail(p->j, -EINVAL, p->t->line, "the tag '%.*s' is not known here",
		              s.n > 60 ? 60 : (int)s.n, s.s);
	p->depth--;
	return n;
}

/* Statements up to a tag named in ends (NULL: up to the end of the template); does not consume that tag. */
static struct node *body(struct parser *p, const char *const *ends)
{
	struct list_end l = { NULL, NULL, 0 };
	uint32_t line = p->t->line;
	struct node *n;

	for (;;) {
		if (p->t->kind == T_END) {
			if (ends)
				template_fail(p->j, -EINVAL, line, "the block that begins here has no '%s'",
				              ends[1] && ends[2] ? ends[2] : ends[1] ? ends[1] : ends[0]);
			return l.first;
		}
		for (const char *const *e = ends; e && *e; e++)
			if (next_tag(p, *e))
				return l.first;
		if (p->t->kind == T_DATA) {
			n = node(p, N_DATA);
			n->s = p->t++->s;
		} else if (p->t->kind == T_OPEN_OUT) {
			n = node(p, N_OUT);
			p->t++;
			n->a = tuple(p, expression, false);
			if (p->t->kind != T_CLOSE_OUT)
				unexpected(p, "}}");
			p->t++;
		} else {
			n = statement(p);
		}
		append(&l, n);
	}
}

struct node *template_parse(struct job *j, const struct token *t)
{
	struct parser p = { .j = j, .t = t };

	return body(&p, NULL);
}
