/* template/parse.c - lexemes to nodes: statements, by recursive descent along Jinja2's grammar. */
#include <errno.h>

#include "parse.h"

#define DEPTH_MAX 100            /* nesting of expressions and blocks */

static struct node *parse_body(struct parser *p, const char *const *ends);

void parse_unexpected(struct parser *p, const char *wanted)
{
	const struct lexeme *t = p->t;
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

void parse_deeper(struct parser *p)
{
	if (++p->depth > DEPTH_MAX)
		template_fail(p->j, -E2BIG, p->t->line, "the template is nested deeper than %d levels", DEPTH_MAX);
}

static void close_tag(struct parser *p)
{
	if (p->t->kind != T_CLOSE_BLOCK)
		parse_unexpected(p, "%}");
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

static struct node *parse_if(struct parser *p)
{
	static const char *const ends[] = { "elif", "else", "endif", NULL }, *const end[] = { "endif", NULL };
	struct node *first = NULL, **at = &first, *n;

	do {
		n = node(p, N_IF);
		n->a = parse_expression(p);
		close_tag(p);
		n->b = parse_body(p, ends);
		*at = n;
		at = &n->d;
	} while (next_tag(p, "elif") && (p->t += 2));
	if (next_tag(p, "else")) {
		end_tag(p);
		n->c = parse_body(p, end);
	}
	end_tag(p);
	return first;
}

/* Names to set: "a", "a, b" or "(a, b)"; also ns.a if attrs is true. */
static void parse_targets(struct parser *p, struct node *n, bool attrs)
{
	struct node_list l = { 0 };
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

static struct node *parse_for(struct parser *p)
{
	static const char *const ends[] = { "else", "endfor", NULL }, *const end[] = { "endfor", NULL };
	struct node *n = node(p, N_FOR);

	parse_targets(p, n, false);
	if (!take_name(p, "in"))
		parse_unexpected(p, "'in'");
	n->a = parse_tuple(p, parse_either, false);
	if (take_name(p, "if"))
		n->d = parse_expression(p);
	if (is_name(p, "recursive"))
		template_fail(p->j, -EINVAL, n->line, "recursive loops are not supported");
	close_tag(p);
	p->loops++;
	n->b = parse_body(p, ends);
	p->loops--;
	if (next_tag(p, "else")) {
		end_tag(p);
		n->c = parse_body(p, end);
	}
	end_tag(p);
	return n;
}

static struct node *parse_set(struct parser *p)
{
	static const char *const ends[] = { "endset", NULL };
	struct node *n = node(p, N_SET);

	parse_targets(p, n, true);
	if (take_op(p, '=')) {
		n->a = parse_tuple(p, parse_expression, false);
		close_tag(p);
		return n;
	}
	if (n->n_list != 1)
		parse_unexpected(p, "'='");
	n->kind = N_SET_BLOCK;
	while (take_op(p, '|'))
		n->a = parse_filter(p, n->a);
	close_tag(p);
	n->b = parse_body(p, ends);
	end_tag(p);
	return n;
}

/* The parameters of a macro, after the opening parenthesis. */
static void parse_parameters(struct parser *p, struct node *n)
{
	struct node_list l = { 0 };
	struct node *param;

	while (!take_op(p, ')')) {
		if (l.n)
			want_op(p, ',');
		param = node(p, N_NAME);
		param->s = want_name(p, "the name of a parameter");
		if (take_op(p, '='))
			param->a = parse_expression(p);
		append(&l, param);
	}
	n->list = l.first;
	n->n_list = l.n;
}

/* The body of a macro, in which break and continue do not see a loop around the macro. */
static struct node *parse_macro_body(struct parser *p, struct node *n, const char *const *ends)
{
	int loops = p->loops;

	close_tag(p);
	p->loops = 0;
	n->b = parse_body(p, ends);
	p->loops = loops;
	end_tag(p);
	return n;
}

static struct node *parse_macro(struct parser *p)
{
	static const char *const ends[] = { "endmacro", NULL };
	struct node *n = node(p, N_MACRO);

	n->s = want_name(p, "the name of a macro");
	want_op(p, '(');
	parse_parameters(p, n);
	return parse_macro_body(p, n, ends);
}

static struct node *parse_call_block(struct parser *p)
{
	static const char *const ends[] = { "endcall", NULL };
	struct node *n = node(p, N_CALL_BLOCK);

	n->s = STR("caller");
	if (take_op(p, '('))
		parse_parameters(p, n);
	n->a = parse_postfix(p);
	if (n->a->kind != N_CALL)
		parse_unexpected(p, "the call of a macro before this,");
	return parse_macro_body(p, n, ends);
}

static struct node *parse_filter_block(struct parser *p)
{
	static const char *const ends[] = { "endfilter", NULL };
	struct node *n = node(p, N_FILTER_BLOCK);

	do
		n->a = parse_filter(p, n->a);
	while (take_op(p, '|'));
	close_tag(p);
	n->b = parse_body(p, ends);
	end_tag(p);
	return n;
}

static struct node *parse_with(struct parser *p)
{
	static const char *const ends[] = { "endwith", NULL };
	struct node *n = node(p, N_WITH), *v;
	struct node_list l = { 0 };

	while (p->t->kind != T_CLOSE_BLOCK) {
		if (l.n)
			want_op(p, ',');
		v = node(p, N_KEYWORD);
		v->s = want_name(p, "a name to set");
		want_op(p, '=');
		v->a = parse_expression(p);
		append(&l, v);
	}
	n->list = l.first;
	n->n_list = l.n;
	close_tag(p);
	n->b = parse_body(p, ends);
	end_tag(p);
	return n;
}

static struct node *parse_generation(struct parser *p)
{
	static const char *const ends[] = { "endgeneration", NULL };
	struct node *n = node(p, N_SCOPE);

	close_tag(p);
	n->b = parse_body(p, ends);
	end_tag(p);
	return n;
}

static struct node *parse_jump(struct parser *p, enum node_kind kind)
{
	struct node *n = node(p, kind);

	if (!p->loops)
		template_fail(p->j, -EINVAL, n->line, "break or continue outside of a loop");
	close_tag(p);
	return n;
}

static struct node *parse_statement(struct parser *p)
{
	struct node *n;
	struct str s;

	p->t++;                              /* {% */
	s = want_name(p, "the name of a block");
	parse_deeper(p);
	if (str_is(s, "if"))
		n = parse_if(p);
	else if (str_is(s, "for"))
		n = parse_for(p);
	else if (str_is(s, "set"))
		n = parse_set(p);
	else if (str_is(s, "macro"))
		n = parse_macro(p);
	else if (str_is(s, "call"))
		n = parse_call_block(p);
	else if (str_is(s, "filter"))
		n = parse_filter_block(p);
	else if (str_is(s, "with"))
		n = parse_with(p);
	else if (str_is(s, "generation"))
		n = parse_generation(p);
	else if (str_is(s, "break"))
		n = parse_jump(p, N_BREAK);
	else if (str_is(s, "continue"))
		n = parse_jump(p, N_CONTINUE);
	else
		template_fail(p->j, -EINVAL, p->t->line, "the tag '%.*s' does not exist, or does not belong here",
		              s.n > 60 ? 60 : (int)s.n, s.s);
	p->depth--;
	return n;
}

/* Statements up to a tag named in ends (NULL: up to the end of the template); does not consume that tag. */
static struct node *parse_body(struct parser *p, const char *const *ends)
{
	struct node_list l = { 0 };
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
			n->a = parse_tuple(p, parse_expression, false);
			if (p->t->kind != T_CLOSE_OUT)
				parse_unexpected(p, "}}");
			p->t++;
		} else {
			n = parse_statement(p);
		}
		append(&l, n);
	}
}

struct node *template_parse(struct arena *j, const struct lexeme *t)
{
	struct parser p = { .j = j, .t = t };

	return parse_body(&p, NULL);
}
