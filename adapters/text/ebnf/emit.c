/* emit.c - resolved rules to terminals and productions of grammar.h.
 *
 * A part becomes one terminal if it needs no recursion and has at most one stretch of free text (its weight).
 * A second stretch begins a terminal of its own, so that rules which use the same text share its states.
 */
#include <errno.h>
#include <stdlib.h>

#include "impl.h"

struct emit {
	struct rules *r;
	struct grammar *g;
	struct regexes *x;
	uint32_t *queue; /* rules whose productions are to be made */
	uint32_t n, done;
};

static int32_t emit_node(struct emit *m, uint32_t i);

static bool is_terminal(bool regular, uint32_t weight)
{
	return regular && weight <= 1;
}

static int32_t emit_rule(struct emit *m, uint32_t rule)
{
	struct rules_rule *q = &m->r->rule[rule];

	if (q->symbol >= 0)
		return q->symbol;
	if (!q->ends)
		return rules_fail(m->r, -EINVAL, q->name.at,
		                  "Rule '%.*s' never ends: each of its alternatives needs itself", (int)q->name.n,
		                  m->r->text + q->name.at);
	if (is_terminal(q->regular, q->weight))
		return q->symbol = grammar_lexeme(m->g, q->expr);
	q->symbol = grammar_rule(m->g);
	if (!q->queued)
		m->queue[m->n++] = rule;
	q->queued = true;
	return q->symbol;
}

/* One production of the parts of a sequence: light parts that touch are one terminal. */
static void produce_concat(struct emit *m, int32_t to, const uint32_t *child, uint32_t n)
{
	int32_t *symbol = malloc((n + 1) * sizeof(*symbol));
	uint32_t k = 0, expr = REGEX_EMPTY;

	if (!symbol) {
		rules_fail(m->r, -ENOMEM, 0, "There is not enough memory for the grammar");
		return;
	}
	for (uint32_t i = 0; i < n && !m->r->failed; i++) {
		const struct rules_node *c = &m->r->node[child[i]];

		if (c->regular && !c->weight) {
			expr = regex_concat(m->x, expr, c->expr);
			continue;
		}
		if (expr != REGEX_EMPTY)
			symbol[k++] = grammar_lexeme(m->g, expr);
		expr = REGEX_EMPTY;
		symbol[k++] = emit_node(m, child[i]);
		if (k == n)
			break;
	}
	if (expr != REGEX_EMPTY)
		symbol[k++] = grammar_lexeme(m->g, expr);
	if (!m->r->failed)
		grammar_produce(m->g, to, symbol, k);
	free(symbol);
}

static void produce(struct emit *m, int32_t to, uint32_t i);

/* Alternatives: the light ones are one terminal. */
static void produce_or(struct emit *m, int32_t to, const uint32_t *child, uint32_t n)
{
	uint32_t *expr = malloc((n + 1) * sizeof(*expr)), k = 0;
	int32_t symbol;

	if (!expr) {
		rules_fail(m->r, -ENOMEM, 0, "There is not enough memory for the grammar");
		return;
	}
	for (uint32_t i = 0; i < n && !m->r->failed; i++) {
		const struct rules_node *c = &m->r->node[child[i]];

		if (c->regular && !c->weight)
			expr[k++] = c->expr;
		else
			produce(m, to, child[i]);
	}
	if (k && !m->r->failed) {
		symbol = grammar_lexeme(m->g, regex_or_all(m->x, expr, k));
		grammar_produce(m->g, to, &symbol, 1);
	}
	free(expr);
}

/* The productions of a rule whose body is node i. */
static void produce(struct emit *m, int32_t to, uint32_t i)
{
	const struct rules_node *n = &m->r->node[i];
	int32_t symbol;

	if (!is_terminal(n->regular, n->weight) && n->kind == RULES_CONCAT) {
		produce_concat(m, to, m->r->child + n->a, n->b);
	} else if (!is_terminal(n->regular, n->weight) && n->kind == RULES_OR) {
		produce_or(m, to, m->r->child + n->a, n->b);
	} else {
		symbol = emit_node(m, i);
		if (symbol >= 0)
			grammar_produce(m->g, to, &symbol, 1);
	}
}

static int32_t emit_node(struct emit *m, uint32_t i)
{
	const struct rules_node *n = &m->r->node[i];
	int32_t symbol;

	if (n->kind == RULES_NAME)
		return emit_rule(m, n->a);
	if (is_terminal(n->regular, n->weight))
		return grammar_lexeme(m->g, n->expr);
	if (n->kind == RULES_SYMBOL)
		return (int32_t)n->a;
	if (n->kind == RULES_REPEAT) {
		symbol = emit_node(m, n->a);
		if (m->r->failed)
			return -1;
		return grammar_repeat(m->g, symbol, n->min, n->max == RULES_MANY ? REGEX_MANY : n->max, -1);
	}
	if (n->regular && n->kind != RULES_CONCAT && n->kind != RULES_OR)
		return grammar_lexeme(m->g, n->expr);
	symbol = grammar_rule(m->g);
	if (symbol >= 0)
		produce(m, symbol, i);
	return symbol;
}

int32_t rules_emit(struct rules *r)
{
	struct emit m = { .r = r, .g = r->g };
	int32_t symbol;

	if (rules_resolve(r))
		return -1;
	m.x = grammar_regexes(r->g);
	m.queue = malloc((r->n_rules + 1) * sizeof(*m.queue));
	if (!m.queue)
		return rules_fail(r, -ENOMEM, 0, "There is not enough memory for the grammar");
	symbol = emit_rule(&m, r->start);
	for (; m.done < m.n && !r->failed; m.done++)
		produce(&m, r->rule[m.queue[m.done]].symbol, r->rule[m.queue[m.done]].node);
	free(m.queue);
	if (!r->failed && regexes_error(m.x))
		rules_fail(r, regexes_error(m.x), 0, "The grammar is too complex: over the limit of expressions");
	return r->failed ? -1 : symbol;
}
