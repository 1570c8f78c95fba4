/* rules.c - the nodes of a grammar's rules, and how an error names its place; see rules.h. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "impl.h"

void rules_init(struct rules *r, struct grammar *g, const char *text, size_t n, struct grammar_error *e)
{
	*r = (struct rules){ .g = g, .text = text, .n_text = n, .error = e, .before = "" };
	if (n > RULES_TEXT)
		rules_fail(r, -E2BIG, 0, "A grammar has at most %u bytes, not %zu", RULES_TEXT, n);
}

void rules_free(struct rules *r)
{
	free(r->node);
	free(r->child);
	free(r->waiting);
	free(r->rule);
}

int rules_fail(struct rules *r, int code, size_t at, const char *format, ...)
{
	unsigned line = 1, column = 1;
	char what[400];
	va_list args;

	if (r->failed)
		return -1;
	r->failed = code;
	at = at < r->n_text ? at : r->n_text;
	for (size_t i = 0; i < at; i++) {
		if (r->text[i] == '\n')
			line++, column = 1;
		else if (((uint8_t)r->text[i] & 0xc0) != 0x80)
			column++;
	}
	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	r->error->code = code;
	snprintf(r->error->place, sizeof(r->error->place), "%u:%u", line, column);
	snprintf(r->error->message, sizeof(r->error->message), "%s%s.", r->before, what);
	return -1;
}

/* Make room for one more of *n in a list.  0 or -1. */
static int room(struct rules *r, void **list, uint32_t n, uint32_t *cap, size_t size)
{
	uint32_t more = *cap ? *cap * 2 : 64;
	void *p;

	if (r->failed)
		return -1;
	if (n < *cap)
		return 0;
	p = realloc(*list, more * size);
	if (!p)
		return rules_fail(r, -ENOMEM, 0, "There is not enough memory for the grammar");
	*list = p;
	*cap = more;
	return 0;
}

static uint32_t add_node(struct rules *r, struct rules_node n)
{
	if (room(r, (void **)&r->node, r->n_nodes, &r->cap_nodes, sizeof(*r->node)))
		return 0;
	if (r->n_nodes >= RULES_NODES) {
		rules_fail(r, -E2BIG, n.at, "The grammar has more than %u parts", RULES_NODES);
		return 0;
	}
	r->node[r->n_nodes] = n;
	return r->n_nodes++;
}

uint32_t rules_expr(struct rules *r, uint32_t expr, uint32_t weight)
{
	if (expr == REGEX_FAILED)
		rules_fail(r, regexes_error(grammar_regexes(r->g)), 0, "The grammar is too complex");
	return add_node(r, (struct rules_node){ .kind = RULES_EXPR, .a = expr, .b = weight });
}

uint32_t rules_symbol(struct rules *r, int32_t symbol)
{
	if (symbol < 0)
		rules_fail(r, -ENOMEM, 0, "There is not enough memory for the grammar");
	return add_node(r, (struct rules_node){ .kind = RULES_SYMBOL, .a = (uint32_t)symbol });
}

uint32_t rules_name(struct rules *r, struct rules_span name)
{
	return add_node(r,
	                (struct rules_node){ .kind = RULES_NAME, .at = name.at, .a = RULES_NONE, .b = name.n });
}

uint32_t rules_call(struct rules *r, uint32_t rule)
{
	return add_node(r, (struct rules_node){ .kind = RULES_NAME, .a = rule });
}

void rules_put(struct rules *r, uint32_t node)
{
	if (!room(r, (void **)&r->waiting, r->n_waiting, &r->cap_waiting, sizeof(*r->waiting)))
		r->waiting[r->n_waiting++] = node;
}

uint32_t rules_collect(struct rules *r, enum rules_kind kind, uint32_t since, size_t at)
{
	uint32_t first = r->n_children, n = r->n_waiting - since;

	r->n_waiting = since;
	if (r->failed)
		return 0;
	if (!n)
		return rules_expr(r, REGEX_EMPTY, 0);
	if (n == 1)
		return r->waiting[since];
	for (uint32_t i = 0; i < n; i++) {
		if (room(r, (void **)&r->child, r->n_children, &r->cap_children, sizeof(*r->child)))
			return 0;
		r->child[r->n_children++] = r->waiting[since + i];
	}
	return add_node(r, (struct rules_node){ .kind = (uint8_t)kind, .at = (uint32_t)at, .a = first, .b = n });
}

uint32_t rules_not(struct rules *r, uint32_t node, size_t at)
{
	return add_node(r, (struct rules_node){ .kind = RULES_NOT, .at = (uint32_t)at, .a = node });
}

uint32_t rules_repeat(struct rules *r, uint32_t node, uint32_t min, uint32_t max)
{
	if (min == 1 && max == 1)
		return node;
	return add_node(r, (struct rules_node){ .kind = RULES_REPEAT, .a = node, .min = min, .max = max });
}

uint32_t rules_reserve(struct rules *r, struct rules_span name, bool terminal)
{
	if (room(r, (void **)&r->rule, r->n_rules, &r->cap_rules, sizeof(*r->rule)))
		return 0;
	r->rule[r->n_rules] = (struct rules_rule){ .name = name, .terminal = terminal, .symbol = -1 };
	return r->n_rules++;
}

void rules_begin(struct rules *r)
{
	r->begin = r->n_nodes;
}

void rules_define(struct rules *r, uint32_t rule, uint32_t node)
{
	struct rules_rule *q;

	if (r->failed)
		return;
	q = &r->rule[rule];
	q->first = r->begin;
	q->end = r->n_nodes;
	q->node = node;
	q->defined = true;
}
