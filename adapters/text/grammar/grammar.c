/* grammar.c - a grammar under construction. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sealed.h"

#define MOST_SYMBOLS  500000u
#define MOST_BODY     2000000u       /* symbols in all productions */
#define MOST_IDS      1000000u
#define MOST_EXPRS    1000000u

int grammar_refuse(struct grammar_error *e, int code, const char *place, const char *fmt, ...)
{
	va_list ap;

	e->code = code;
	snprintf(e->place, sizeof(e->place), "%s", place ? place : "");
	va_start(ap, fmt);
	vsnprintf(e->message, sizeof(e->message), fmt, ap);
	va_end(ap);
	return code;
}

bool grow(void *at, uint32_t *cap, uint32_t n, size_t size)
{
	uint32_t more = *cap ? *cap : 16;
	void *bigger, **p = at;

	if (n < *cap)
		return true;
	while (more <= n) {
		if (more > UINT32_MAX / 2)
			return false;
		more *= 2;
	}
	bigger = reallocarray(*p, more, size);
	if (!bigger)
		return false;
	*p = bigger;
	*cap = more;
	return true;
}

struct grammar *grammar_create(const struct sr_text *t, const struct sr_grammar_options *o)
{
	struct grammar *g = calloc(1, sizeof(*g));

	if (!g)
		return NULL;
	g->t = t;
	if (o)
		g->o = *o;
	g->r = regexes_create(MOST_EXPRS);
	if (!g->r) {
		free(g);
		return NULL;
	}
	return g;
}

void grammar_free(struct grammar *g)
{
	if (!g)
		return;
	regexes_free(g->r);
	for (uint32_t i = 0; i < g->n_members; i++)
		free((void *)g->members[i].group);
	free(g->members);
	free(g->symbol);
	free(g->production);
	free(g->body);
	free(g->ids);
	free(g->lexeme);
	free(g->usable);
	free(g->dot);
	free(g->start);
	free(g);
}

struct regexes *grammar_regexes(struct grammar *g)
{
	return g->r;
}

const struct sr_text *grammar_text(const struct grammar *g)
{
	return g->t;
}

const struct sr_grammar_options *grammar_options(const struct grammar *g)
{
	return &g->o;
}

static int32_t fail(struct grammar *g, int rc)
{
	if (!g->failed)
		g->failed = rc;
	return SYMBOL_NONE;
}

static int32_t add(struct grammar *g, const struct symbol *s)
{
	if (g->failed)
		return SYMBOL_NONE;
	if (g->n_symbols == MOST_SYMBOLS)
		return fail(g, -E2BIG);
	if (!grow(&g->symbol, &g->symbols_cap, g->n_symbols, sizeof(*g->symbol)))
		return fail(g, -ENOMEM);
	g->symbol[g->n_symbols] = *s;
	return (int32_t)g->n_symbols++;
}

static bool there(const struct grammar *g, int32_t symbol)
{
	return symbol >= 0 && (uint32_t)symbol < g->n_symbols;
}

/* Equal expressions are one lexeme: the table of them, at most half full. */
static bool widen_lexemes(struct grammar *g)
{
	uint32_t mask = g->lexeme ? g->lexeme_mask * 2 + 1 : 63;
	int32_t *table;

	if (g->lexeme && g->n_lexemes * 2 <= g->lexeme_mask)
		return true;
	table = malloc((mask + 1) * sizeof(*table));
	if (!table)
		return false;
	memset(table, 0xff, (mask + 1) * sizeof(*table));
	for (uint32_t s = 0; s < g->n_symbols; s++) {
		if (g->symbol[s].kind != SYMBOL_LEXEME)
			continue;
		uint32_t i = g->symbol[s].expr * 2654435761u & mask;
		while (table[i] >= 0)
			i = (i + 1) & mask;
		table[i] = (int32_t)s;
	}
	free(g->lexeme);
	g->lexeme = table;
	g->lexeme_mask = mask;
	return true;
}

int32_t grammar_lexeme(struct grammar *g, uint32_t expr)
{
	uint32_t i;
	int32_t s;

	if (expr == REGEX_FAILED)
		return fail(g, regexes_error(g->r) ? regexes_error(g->r) : -E2BIG);
	if (!widen_lexemes(g))
		return fail(g, -ENOMEM);
	for (i = expr * 2654435761u & g->lexeme_mask; g->lexeme[i] >= 0; i = (i + 1) & g->lexeme_mask)
		if (g->symbol[g->lexeme[i]].expr == expr)
			return g->lexeme[i];
	s = add(g, &(struct symbol){ .kind = SYMBOL_LEXEME, .expr = expr,
		.nullable = regex_nullable(g->r, expr) });
	if (s >= 0) {
		g->lexeme[i] = s;
		g->n_lexemes++;
	}
	return s;
}

static int32_t add_ids(struct grammar *g, enum symbol_kind kind, const int32_t *ids, uint32_t n)
{
	struct symbol s = { .kind = kind, .at = g->n_ids, .n = n, .productive = n > 0 };

	if (n > MOST_IDS || g->n_ids > MOST_IDS - n)
		return fail(g, -E2BIG);
	if (n && !grow(&g->ids, &g->ids_cap, g->n_ids + n - 1, sizeof(*g->ids)))
		return fail(g, -ENOMEM);
	if (n)
		memcpy(g->ids + g->n_ids, ids, n * sizeof(*ids));
	g->n_ids += n;
	return add(g, &s);
}

int32_t grammar_token(struct grammar *g, const int32_t *ids, uint32_t n)
{
	return add_ids(g, SYMBOL_TOKEN, ids, n);
}

int32_t grammar_until(struct grammar *g, const int32_t *ids, uint32_t n)
{
	return add_ids(g, SYMBOL_UNTIL, ids, n);
}

int32_t grammar_rule(struct grammar *g)
{
	return add(g, &(struct symbol){ .kind = SYMBOL_RULE });
}

void grammar_produce(struct grammar *g, int32_t rule, const int32_t *symbol, uint32_t n)
{
	if (g->failed || !there(g, rule))
		return;
	for (uint32_t i = 0; i < n; i++)
		if (!there(g, symbol[i]))
			return;
	if (n > MOST_BODY || g->n_body > MOST_BODY - n || g->n_productions == MOST_BODY) {
		fail(g, -E2BIG);
		return;
	}
	if ((n && !grow(&g->body, &g->body_cap, g->n_body + n - 1, sizeof(*g->body))) ||
	    !grow(&g->production, &g->productions_cap, g->n_productions, sizeof(*g->production))) {
		fail(g, -ENOMEM);
		return;
	}
	if (n)
		memcpy(g->body + g->n_body, symbol, n * sizeof(*symbol));
	g->production[g->n_productions++] = (struct production){ rule, g->n_body, n };
	g->n_body += n;
}

int32_t grammar_repeat(struct grammar *g, int32_t symbol, uint32_t min, uint32_t max, int32_t separator)
{
	if (g->failed || !there(g, symbol) || min > max || (separator != SYMBOL_NONE && !there(g, separator)))
		return SYMBOL_NONE;
	return add(g, &(struct symbol){ .kind = SYMBOL_REPEAT, .item = symbol, .separator = separator,
		.min = min, .max = max });
}

int32_t grammar_members(struct grammar *g, const struct grammar_members *m)
{
	uint64_t *group = NULL;

	if (g->failed)
		return SYMBOL_NONE;
	for (uint32_t i = 0; i < m->n && i < GRAMMAR_MEMBERS; i++)
		if (!there(g, m->symbol[i]))
			return SYMBOL_NONE;
	if (m->n > GRAMMAR_MEMBERS || m->n_groups > 16 || 
	    (m->n_groups && (m->rest >= 0 ? m->max < GRAMMAR_MANY : m->max < m->n)) || m->min > m->max)
		return fail(g, -E2BIG);
	if (m->n_groups) {
		group = malloc(m->n_groups * sizeof(*group));
		if (!group)
			return fail(g, -ENOMEM);
		memcpy(group, m->group, m->n_groups * sizeof(*group));
	}
	if (!grow(&g->members, &g->members_cap, g->n_members, sizeof(*g->members))) {
		free(group);
		return fail(g, -ENOMEM);
	}
	g->members[g->n_members] = *m;
	g->members[g->n_members].group = group;
	return add(g, &(struct symbol){ .kind = SYMBOL_MEMBERS, .at = g->n_members++ });
}
