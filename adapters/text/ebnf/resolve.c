/* resolve.c - names to rules, which rules are recursive, and what needs no recursion as one expression.
 *
 * Rules are folded in the order of their strongly connected components (Tarjan), the used before their users.
 * A rule whose only recursion is at one end (a ::= x a | y) is x* y, by Arden's rule.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "impl.h"

#define WIDE      64 /* bytes that may begin a part: more is free text .. */
#define LONG      32 /* .. if it may be repeated so often */
#define STEPS_MAX 50000000u

/* ---- names -------------------------------------------------------------------------------- */

static int compare(const char *a, size_t n, const char *b, size_t m)
{
	int c = memcmp(a, b, n < m ? n : m);

	return c ? c : n < m ? -1 : n > m;
}

static int by_name(const void *a, const void *b, void *arg)
{
	const struct rules *r = arg;
	const struct rules_rule *p = &r->rule[*(const uint32_t *)a], *q = &r->rule[*(const uint32_t *)b];
	int c = compare(r->text + p->name.at, p->name.n, r->text + q->name.at, q->name.n);

	return c ? c : p->name.at < q->name.at ? -1 : p->name.at > q->name.at;
}

/* The numbers of all rules in the order of their names; NULL: no memory. */
static uint32_t *sorted_names(struct rules *r)
{
	uint32_t *order = malloc((r->n_rules + 1) * sizeof(*order));

	if (!order) {
		rules_fail(r, -ENOMEM, 0, "There is not enough memory for the grammar");
		return NULL;
	}
	for (uint32_t i = 0; i < r->n_rules; i++)
		order[i] = i;
	qsort_r(order, r->n_rules, sizeof(*order), by_name, r);
	return order;
}

static uint32_t search(const struct rules *r, const uint32_t *order, const char *name, size_t n)
{
	uint32_t low = 0, high = r->n_rules, mid;
	const struct rules_rule *q;
	int c;

	while (low < high) {
		mid = (low + high) / 2;
		q = &r->rule[order[mid]];
		c = compare(r->text + q->name.at, q->name.n, name, n);
		if (!c)
			return order[mid];
		if (c < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return RULES_NONE;
}

void rules_begin_with(struct rules *r, const char *name)
{
	size_t n = strlen(name);

	for (uint32_t i = 0; i < r->n_rules && !r->failed; i++) {
		r->start = i;
		if (!compare(r->text + r->rule[i].name.at, r->rule[i].name.n, name, n))
			return;
	}
	rules_fail(r, -EINVAL, 0, "Rule '%s' not found: the grammar begins with it", name);
}

static void resolve_names(struct rules *r, const uint32_t *order)
{
	const struct rules_rule *p, *q;
	struct rules_node *n;

	for (uint32_t i = 0; i + 1 < r->n_rules; i++) {
		p = &r->rule[order[i]];
		q = &r->rule[order[i + 1]];
		if (q->name.n && !compare(r->text + p->name.at, p->name.n, r->text + q->name.at, q->name.n))
			rules_fail(r, -EINVAL, q->name.at, "Rule '%.*s' is defined twice", (int)q->name.n,
			           r->text + q->name.at);
	}
	for (uint32_t i = 0; i < r->n_nodes && !r->failed; i++) {
		n = &r->node[i];
		if (n->kind != RULES_NAME || n->a != RULES_NONE)
			continue;
		n->a = search(r, order, r->text + n->at, n->b);
		if (n->a == RULES_NONE || !r->rule[n->a].defined)
			rules_fail(r, -EINVAL, n->at, "Rule '%.*s' not found", (int)n->b, r->text + n->at);
	}
}

/* ---- expressions -------------------------------------------------------------------------- */

static bool is_wide(struct regexes *x, uint32_t expr, uint32_t max)
{
	uint64_t set[4];
	int n = 0;

	if (max < LONG)
		return false;
	regex_first(x, expr, set);
	for (int i = 0; i < 4; i++)
		n += __builtin_popcountll(set[i]);
	return n >= WIDE;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* A list whose children are all regular. */
static void fold_list(struct rules *r, struct rules_node *n)
{
	struct regexes *x = grammar_regexes(r->g);
	const uint32_t *child = r->child + n->a;
	uint32_t *expr;

	n->regular = true;
	for (uint32_t i = 0; i < n->b; i++)
		n->regular = n->regular && r->node[child[i]].regular;
	if (!n->regular)
		return;
	n->expr = n->kind == RULES_AND ? REGEX_ANY : REGEX_EMPTY;
	if (n->kind == RULES_OR) {
		expr = malloc((n->b + 1) * sizeof(*expr));
		if (!expr) {
			rules_fail(r, -ENOMEM, 0, "There is not enough memory for the grammar");
			return;
		}
		for (uint32_t i = 0; i < n->b; i++)
			expr[i] = r->node[child[i]].expr;
		n->expr = regex_or_all(x, expr, n->b);
		free(expr);
	}
	for (uint32_t i = n->b; i-- > 0;) {
		const struct rules_node *c = &r->node[child[i]];

		if (n->kind == RULES_CONCAT)
			n->expr = regex_concat(x, c->expr, n->expr);
		else if (n->kind == RULES_AND)
			n->expr = regex_and(x, n->expr, c->expr);
		n->weight = n->kind == RULES_CONCAT ? n->weight + c->weight : larger(n->weight, c->weight);
		if (n->weight > 2)
			n->weight = 2;
	}
}

/* & and ~ may leave nothing; all other parts have a string if their parts have one. */
static void check_live(struct rules *r, const struct rules_node *n)
{
	int live = regex_live(grammar_regexes(r->g), n->expr);

	if (live < 0)
		rules_fail(r, -E2BIG, n->at, "It takes too long to find out if this '%c' matches anything",
		           n->kind == RULES_NOT ? '~' : '&');
	else if (!live)
		rules_fail(r, -EINVAL, n->at, "No text satisfies this '%c'", n->kind == RULES_NOT ? '~' : '&');
}

/* The children of node i are folded. */
static void fold_node(struct rules *r, uint32_t i)
{
	struct regexes *x = grammar_regexes(r->g);
	struct rules_node *n = &r->node[i];
	const struct rules_node *c;

	switch (n->kind) {
	case RULES_EXPR:
		n->regular = true;
		n->expr = n->a;
		n->weight = n->b;
		break;
	case RULES_NAME:
		n->regular = r->rule[n->a].regular;
		n->expr = r->rule[n->a].expr;
		n->weight = r->rule[n->a].weight;
		break;
	case RULES_CONCAT:
	case RULES_OR:
	case RULES_AND:
		fold_list(r, n);
		break;
	case RULES_NOT:
		c = &r->node[n->a];
		n->regular = c->regular;
		if (c->regular)
			n->expr = regex_not(x, c->expr);
		n->weight = 1;
		break;
	case RULES_REPEAT:
		c = &r->node[n->a];
		n->regular = c->regular;
		if (c->regular) {
			n->expr = regex_repeat(x, c->expr, n->min, n->max == RULES_MANY ? REGEX_MANY : n->max);
			n->weight = larger(c->weight, is_wide(x, c->expr, n->max));
		}
		break;
	}
	if ((n->kind == RULES_AND || n->kind == RULES_NOT) && !n->regular)
		rules_fail(r, -EINVAL, n->at,
		           "'%c' combines terminals: here it has a rule that refers to itself or a token",
		           n->kind == RULES_NOT ? '~' : '&');
	if (n->regular && n->expr == REGEX_FAILED)
		rules_fail(r, regexes_error(x), n->at, "The grammar is too complex: over the limit of expressions");
	if (!r->failed && (n->kind == RULES_AND || n->kind == RULES_NOT))
		check_live(r, n);
}

/* ---- recursion at one end ----------------------------------------------------------------- */

/* A part of rule R as  a R | b  (or  R a | b). */
struct linear {
	uint32_t a, b;
	bool ok;
};

static struct linear linear_concat(struct regexes *x, const struct linear *of, const uint32_t *child,
                                   uint32_t n, uint32_t first, bool left)
{
	struct linear s = { REGEX_NONE, REGEX_EMPTY, true };
	const struct linear *c;

	for (uint32_t k = 0; k < n && s.ok; k++) {
		c = &of[child[left ? k : n - 1 - k] - first];
		s.ok = c->ok;
		if (c->a != REGEX_NONE) {
			s.ok = s.ok && s.a == REGEX_NONE && s.b == REGEX_EMPTY;
			s.a = c->a;
			s.b = c->b;
		} else {
			s.a = s.a == REGEX_NONE ? REGEX_NONE
			      : left            ? regex_concat(x, s.a, c->b)
			                        : regex_concat(x, c->b, s.a);
			s.b = s.b == REGEX_NONE ? REGEX_NONE
			      : left            ? regex_concat(x, s.b, c->b)
			                        : regex_concat(x, c->b, s.b);
		}
	}
	return s;
}

static struct linear linear_or(struct regexes *x, const struct linear *of, const uint32_t *child, uint32_t n,
                               uint32_t first)
{
	struct linear s = { REGEX_NONE, REGEX_NONE, true };

	for (uint32_t k = 0; k < n && s.ok; k++) {
		const struct linear *c = &of[child[k] - first];

		s = (struct linear){ regex_or(x, s.a, c->a), regex_or(x, s.b, c->b), c->ok };
	}
	return s;
}

static struct linear linear_node(struct rules *r, uint32_t rule, uint32_t i, const struct linear *of,
                                 bool left)
{
	struct regexes *x = grammar_regexes(r->g);
	const struct rules_node *n = &r->node[i];
	uint32_t first = r->rule[rule].first;
	struct linear c;

	if (n->regular)
		return (struct linear){ REGEX_NONE, n->expr, true };
	switch (n->kind) {
	case RULES_NAME:
		return (struct linear){ REGEX_EMPTY, REGEX_NONE, n->a == rule };
	case RULES_CONCAT:
		return linear_concat(x, of, r->child + n->a, n->b, first, left);
	case RULES_OR:
		return linear_or(x, of, r->child + n->a, n->b, first);
	case RULES_REPEAT:
		c = of[n->a - first];
		c.ok = c.ok && !n->min && n->max == 1;
		c.b = regex_or(x, c.b, REGEX_EMPTY);
		return c;
	default:
		return (struct linear){ .ok = false };
	}
}

/* Rule refers to itself and to no other rule that is recursive. */
static void fold_linear(struct rules *r, uint32_t rule)
{
	struct regexes *x = grammar_regexes(r->g);
	struct rules_rule *q = &r->rule[rule];
	struct linear *of = calloc(q->end - q->first, sizeof(*of)), s;
	uint32_t loop;

	if (!of) {
		rules_fail(r, -ENOMEM, 0, "There is not enough memory for the grammar");
		return;
	}
	for (int left = 0; left < 2 && !q->regular; left++) {
		for (uint32_t i = q->first; i < q->end; i++)
			of[i - q->first] = linear_node(r, rule, i, of, left);
		s = of[q->node - q->first];
		if (!s.ok || s.a == REGEX_FAILED || s.b == REGEX_FAILED || s.b == REGEX_NONE)
			continue;
		loop = regex_repeat(x, s.a, 0, REGEX_MANY);
		q->expr = left ? regex_concat(x, s.b, loop) : regex_concat(x, loop, s.b);
		q->regular = q->expr != REGEX_FAILED;
		q->weight = is_wide(x, s.a, RULES_MANY);
	}
	for (uint32_t i = q->first; i < q->end; i++)
		q->weight = larger(q->weight, r->node[i].regular ? r->node[i].weight : 0);
	free(of);
}

/* ---- the order ---------------------------------------------------------------------------- */

struct visit {
	uint32_t rule, node;
}; /* where the walk of a rule's references is */

struct order {
	uint32_t *index, *low; /* 0 = not seen */
	uint32_t *stack;       /* rules whose component is not known yet */
	bool *on;
	struct visit *path;
	uint32_t n, depth, seen;
};

static void fold_rule(struct rules *r, uint32_t rule, bool alone)
{
	struct rules_rule *q = &r->rule[rule];
	bool self = false;

	for (uint32_t i = q->first; i < q->end && !r->failed; i++) {
		const struct rules_node *n = &r->node[i];

		self = self || (n->kind == RULES_NAME && n->a == rule);
		if (q->terminal && n->kind == RULES_NAME && !r->rule[n->a].terminal)
			rules_fail(r, -EINVAL, n->at, "Terminal '%.*s' refers to the rule '%.*s'", (int)q->name.n,
			           r->text + q->name.at, (int)n->b, r->text + n->at);
		if (!r->failed)
			fold_node(r, i);
	}
	q->recursive = self || !alone;
	if (r->failed)
		return;
	if (q->recursive && q->terminal) {
		rules_fail(r, -EINVAL, q->name.at, "Terminal '%.*s' refers to itself", (int)q->name.n,
		           r->text + q->name.at);
	} else if (self && alone) {
		fold_linear(r, rule);
	} else if (alone) {
		q->regular = r->node[q->node].regular;
		q->expr = r->node[q->node].expr;
		q->weight = q->terminal && r->node[q->node].weight > 1 ? 1 : r->node[q->node].weight;
	}
}

/* The component whose first rule is done: all above it on the stack. */
static void fold_component(struct rules *r, struct order *o, uint32_t rule)
{
	uint32_t first = o->n;

	do {
		first--;
		o->on[o->stack[first]] = false;
	} while (o->stack[first] != rule);
	for (uint32_t i = first; i < o->n && !r->failed; i++)
		fold_rule(r, o->stack[i], o->n - first == 1);
	o->n = first;
}

static void enter(struct rules *r, struct order *o, uint32_t rule)
{
	o->index[rule] = o->low[rule] = ++o->seen;
	o->stack[o->n++] = rule;
	o->on[rule] = true;
	o->path[o->depth++] = (struct visit){ rule, r->rule[rule].first };
}

static void visit_from(struct rules *r, struct order *o, uint32_t rule)
{
	struct visit *v;
	uint32_t to;

	enter(r, o, rule);
	while (o->depth && !r->failed) {
		v = &o->path[o->depth - 1];
		rule = v->rule;
		if (v->node == r->rule[rule].end) {
			if (o->low[rule] == o->index[rule])
				fold_component(r, o, rule);
			if (--o->depth && o->low[rule] < o->low[v[-1].rule])
				o->low[v[-1].rule] = o->low[rule];
			continue;
		}
		if (r->node[v->node++].kind != RULES_NAME)
			continue;
		to = r->node[v->node - 1].a;
		if (!o->index[to])
			enter(r, o, to);
		else if (o->on[to] && o->index[to] < o->low[rule])
			o->low[rule] = o->index[to];
	}
}

static void fold_all(struct rules *r)
{
	size_t n = r->n_rules + 1;
	struct order o = { .index = calloc(n, sizeof(*o.index)),
		               .low = calloc(n, sizeof(*o.low)),
		               .stack = calloc(n, sizeof(*o.stack)),
		               .on = calloc(n, sizeof(*o.on)),
		               .path = calloc(n, sizeof(*o.path)) };

	if (!o.index || !o.low || !o.stack || !o.on || !o.path)
		rules_fail(r, -ENOMEM, 0, "There is not enough memory for the grammar");
	for (uint32_t i = 0; i < r->n_rules && !r->failed; i++)
		if (!o.index[i])
			visit_from(r, &o, i);
	free(o.index);
	free(o.low);
	free(o.stack);
	free(o.on);
	free(o.path);
}

/* ---- rules that never end ----------------------------------------------------------------- */

static bool node_ends(const struct rules *r, const struct rules_node *n)
{
	uint32_t ends = 0;

	switch (n->kind) {
	case RULES_NAME:
		return r->rule[n->a].ends;
	case RULES_CONCAT:
	case RULES_OR:
		for (uint32_t i = 0; i < n->b; i++)
			ends += r->node[r->child[n->a + i]].ends;
		return n->kind == RULES_OR ? ends > 0 : ends == n->b;
	case RULES_REPEAT:
		return !n->min || r->node[n->a].ends;
	default:
		return true;
	}
}

static bool rule_ends(struct rules *r, struct rules_rule *q)
{
	if (q->ends || q->regular)
		return true;
	for (uint32_t i = q->first; i < q->end; i++)
		r->node[i].ends = node_ends(r, &r->node[i]);
	r->steps += q->end - q->first;
	return r->node[q->node].ends;
}

static void find_ends(struct rules *r)
{
	bool more = true, ends;

	while (more && !r->failed) {
		more = false;
		for (uint32_t i = 0; i < r->n_rules; i++) {
			ends = rule_ends(r, &r->rule[i]);
			more = more || ends != r->rule[i].ends;
			r->rule[i].ends = ends;
		}
		if (r->steps > STEPS_MAX)
			rules_fail(r, -E2BIG, 0, "The rules of the grammar refer to each other too often");
	}
}

int rules_resolve(struct rules *r)
{
	uint32_t *order = r->failed ? NULL : sorted_names(r);

	if (order)
		resolve_names(r, order);
	free(order);
	if (!r->failed)
		fold_all(r);
	if (!r->failed)
		find_ends(r);
	return r->failed ? -1 : 0;
}
