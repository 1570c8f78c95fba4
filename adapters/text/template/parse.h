/* template/parse.h - what the two halves of the parser share: expression.c parses expressions, parse.c
 * statements.  The operands of each node that needs words:
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
#ifndef TEMPLATE_PARSE_H
#define TEMPLATE_PARSE_H

#include "impl.h"

struct parser {
	struct arena *j;
	const struct lexeme *t;       /* the next lexeme */
	int depth;
	int loops;                   /* loops around this place, for break and continue */
};

struct node_list { struct node *first, **last; size_t n; };   /* {0} is empty */

/* Fails: "expected <wanted>, got ..." */
_Noreturn void parse_unexpected(struct parser *p, const char *wanted);
/* One level deeper: fails when there are too many.  The caller reduces p->depth again. */
void parse_deeper(struct parser *p);

/* expression.c */
struct node *parse_expression(struct parser *p);
struct node *parse_either(struct parser *p);         /* an expression without "a if b else c" */
struct node *parse_postfix(struct parser *p);        /* a name or value with calls, items, attributes */
struct node *parse_filter(struct parser *p, struct node *a);
/* "a" or "a, b"; after "(" it may be empty.  item() parses one item. */
struct node *parse_tuple(struct parser *p, struct node *(*item)(struct parser *p), bool may_be_empty);

/* ---- the next lexeme ---- */

static inline struct node *node(struct parser *p, enum node_kind kind)
{
	struct node *n = arena_alloc(p->j, sizeof(*n));

	n->kind = kind;
	n->line = p->t->line;
	return n;
}

static inline void append(struct node_list *l, struct node *n)
{
	if (!l->last)
		l->last = &l->first;
	*l->last = n;
	l->last = &n->next;
	l->n++;
}

static inline bool is_op(const struct parser *p, int op)
{
	return p->t->kind == T_OP && p->t->op == op;
}

static inline bool is_name(const struct parser *p, const char *name)
{
	return p->t->kind == T_NAME && str_is(p->t->s, name);
}

static inline bool take_op(struct parser *p, int op)
{
	if (!is_op(p, op))
		return false;
	p->t++;
	return true;
}

static inline bool take_name(struct parser *p, const char *name)
{
	if (!is_name(p, name))
		return false;
	p->t++;
	return true;
}

static inline void want_op(struct parser *p, int op)
{
	char name[4] = { '\'', (char)op, '\'', 0 };

	if (!take_op(p, op))
		parse_unexpected(p, name);
}

static inline struct str want_name(struct parser *p, const char *what)
{
	if (p->t->kind != T_NAME)
		parse_unexpected(p, what);
	return p->t++->s;
}

#endif
