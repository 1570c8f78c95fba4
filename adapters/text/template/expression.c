/* template/expression.c - expressions to nodes, by recursive descent along Jinja2's grammar. */
#include <errno.h>
#include <string.h>

#include "parse.h"

static struct node *parse_postfix_of(struct parser *p, struct node *a);

/* Arguments, after the opening parenthesis. */
static void parse_arguments(struct parser *p, struct node *call)
{
	struct node_list l = { 0 };
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
			n->a = parse_expression(p);
		} else {
			n = parse_expression(p);
		}
		append(&l, n);
	}
	call->list = l.first;
	call->n_list = l.n;
}

static struct node *parse_string(struct parser *p)
{
	struct node *n = node(p, N_CONST);
	size_t total = 0, k = 0;
	const struct lexeme *t;
	char *s;

	for (t = p->t; t->kind == T_STRING; t++)
		total += t->s.n;
	s = arena_alloc(p->j, total + 1);
	for (; p->t->kind == T_STRING; p->t++) {
		memcpy(s + k, p->t->s.s, p->t->s.n);
		k += p->t->s.n;
	}
	n->v = (struct value){ .t = V_STR, .u.s = { s, total } };
	return n;
}

static struct node *parse_items(struct parser *p, enum node_kind kind, int close)
{
	struct node *n = node(p, kind);
	struct node_list l = { 0 };

	while (!take_op(p, close)) {
		if (l.n) {
			want_op(p, ',');
			if (take_op(p, close))
				break;
		}
		append(&l, parse_expression(p));
		if (kind == N_DICT) {
			want_op(p, ':');
			append(&l, parse_expression(p));
			l.n--;
		}
	}
	n->list = l.first;
	n->n_list = l.n;
	return n;
}

struct node *parse_tuple(struct parser *p, struct node *(*item)(struct parser *p), bool may_be_empty)
{
	struct node *n = node(p, N_TUPLE);
	struct node_list l = { 0 };
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
		parse_unexpected(p, "an expression");
	n->list = l.first;
	n->n_list = l.n;
	return n;
}

static struct node *parse_name(struct parser *p)
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

static struct node *parse_primary(struct parser *p)
{
	struct node *n;

	switch (p->t->kind) {
	case T_NAME:
		return parse_name(p);
	case T_STRING:
		return parse_string(p);
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
		n = parse_tuple(p, parse_expression, true);
		want_op(p, ')');
		return n;
	}
	if (take_op(p, '['))
		return parse_items(p, N_LIST, ']');
	if (take_op(p, '{'))
		return parse_items(p, N_DICT, '}');
	parse_unexpected(p, "an expression");
}

/* What is between "[" and "]". */
static struct node *parse_subscript(struct parser *p)
{
	struct node *slice = node(p, N_SLICE), **part[] = { &slice->a, &slice->b, &slice->c };
	int colons = 0;

	while (!is_op(p, ']')) {
		if (take_op(p, ':')) {
			if (++colons > 2)
				parse_unexpected(p, "']'");
		} else if (*part[colons]) {
			parse_unexpected(p, "']'");
		} else {
			*part[colons] = parse_expression(p);
		}
	}
	if (!colons && !slice->a)
		parse_unexpected(p, "an expression");
	p->t++;
	return colons ? slice : slice->a;
}

static struct node *parse_call(struct parser *p, struct node *what)
{
	struct node *n = node(p, N_CALL);

	p->t++;
	n->a = what;
	parse_arguments(p, n);
	return n;
}

static struct node *parse_postfix_of(struct parser *p, struct node *a)
{
	struct node *n;

	for (;; a = n) {
		if (is_op(p, '(')) {
			n = parse_call(p, a);
			continue;
		}
		if (is_op(p, '[')) {
			n = node(p, N_ITEM);
			p->t++;
			n->a = a;
			n->b = parse_subscript(p);
			continue;
		}
		if (!is_op(p, '.'))
			return a;
		n = node(p, N_ATTR);
		p->t++;
		n->a = a;
		if (p->t->kind == T_INT) {
			n->kind = N_ITEM;
			n->b = parse_primary(p);
		} else {
			n->s = want_name(p, "a name after '.'");
		}
	}
}

struct node *parse_filter(struct parser *p, struct node *a)
{
	struct node *n = node(p, N_FILTER);

	n->a = a;
	n->s = want_name(p, "the name of a filter");
	n->filter = filter_find(n->s);
	if (take_op(p, '('))
		parse_arguments(p, n);
	return n;
}

static struct node *parse_test(struct parser *p, struct node *a)
{
	struct node *n = node(p, N_TEST);
	const struct lexeme *t;

	n->a = a;
	n->op = take_name(p, "not");
	n->s = want_name(p, "the name of a test");
	n->test = test_find(n->s);
	t = p->t;
	if (take_op(p, '(')) {
		parse_arguments(p, n);
	} else if (t->kind == T_STRING || t->kind == T_INT || t->kind == T_FLOAT ||
	           is_op(p, '[') || is_op(p, '{') ||
	           (t->kind == T_NAME && !is_name(p, "else") && !is_name(p, "or") && !is_name(p, "and") &&
	            !is_name(p, "is") && !is_name(p, "if") && !is_name(p, "in") && !is_name(p, "not"))) {
		n->list = parse_postfix_of(p, parse_primary(p));
		n->n_list = 1;
	}
	return n;
}

static struct node *parse_unary(struct parser *p, bool with_filters)
{
	struct node *n;

	parse_deeper(p);
	if (is_op(p, '-') || is_op(p, '+')) {
		n = node(p, is_op(p, '-') ? N_NEG : N_POS);
		p->t++;
		n->a = parse_unary(p, false);
	} else {
		n = parse_primary(p);
	}
	n = parse_postfix_of(p, n);
	while (with_filters) {
		if (take_op(p, '|'))
			n = parse_filter(p, n);
		else if (take_name(p, "is"))
			n = parse_test(p, n);
		else if (is_op(p, '('))
			n = parse_call(p, n);
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

static struct node *parse_binary(struct parser *p, size_t level)
{
	struct node *a, *n;
	const int *op;

	if (level == sizeof(levels) / sizeof(*levels))
		return parse_unary(p, true);
	a = parse_binary(p, level + 1);
	for (;;) {
		for (op = levels[level]; *op && !is_op(p, *op); op++)
			;
		if (!*op)
			return a;
		n = node(p, N_BINARY);
		n->op = *op;
		p->t++;
		n->a = a;
		n->b = parse_binary(p, level + 1);
		a = n;
	}
}

static int comparison_op(struct parser *p)
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
static struct node *parse_comparison(struct parser *p)
{
	struct node *a = parse_binary(p, 0), *n;
	struct node_list l = { 0 };
	int op;

	while ((op = comparison_op(p))) {
		n = node(p, N_KEYWORD);
		n->op = op;
		n->a = parse_binary(p, 0);
		append(&l, n);
	}
	if (!l.n)
		return a;
	n = node(p, N_COMPARE);
	n->a = a;
	n->list = l.first;
	return n;
}

static struct node *parse_not(struct parser *p)
{
	struct node *n;

	if (!is_name(p, "not"))
		return parse_comparison(p);
	parse_deeper(p);
	n = node(p, N_NOT);
	p->t++;
	n->a = parse_not(p);
	p->depth--;
	return n;
}

static struct node *parse_and(struct parser *p)
{
	struct node *a = parse_not(p), *n;

	while (is_name(p, "and")) {
		n = node(p, N_AND);
		p->t++;
		n->a = a;
		n->b = parse_not(p);
		a = n;
	}
	return a;
}

struct node *parse_either(struct parser *p)
{
	struct node *a = parse_and(p), *n;

	while (is_name(p, "or")) {
		n = node(p, N_OR);
		p->t++;
		n->a = a;
		n->b = parse_and(p);
		a = n;
	}
	return a;
}

struct node *parse_expression(struct parser *p)
{
	struct node *a, *n;

	parse_deeper(p);
	a = parse_either(p);
	while (is_name(p, "if")) {
		n = node(p, N_IF_ELSE);
		p->t++;
		n->b = a;
		n->a = parse_either(p);
		if (take_name(p, "else"))
			n->c = parse_expression(p);
		a = n;
	}
	p->depth--;
	return a;
}

struct node *parse_postfix(struct parser *p)
{
	return parse_postfix_of(p, parse_primary(p));
}
