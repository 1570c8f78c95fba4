/* world_rig.h - random grammars over a, b and c, and a small vocabulary for them. */
#ifndef WORLD_RIG_H
#define WORLD_RIG_H

#include <errno.h>

#include "tests/rig/guide_rig.h"

static const char *const words[] = { "a", "b", "c", "ab", "bc", "abc", "ca", "aa", "cab", "bb", "aab", "<t>", "<end>" };

#define N_WORDS  ((int)(sizeof(words) / sizeof(*words)))
#define SPECIAL  (N_WORDS - 2)
#define END      (N_WORDS - 1)

#define TEXT_MAX 6
#define SYMBOLS  24

struct rule { int n, body[3]; };

struct toy {
	int kind;                            /* enum symbol_kind */
	int terminal;                        /* LEXEME */
	struct rule rule[3];                 /* RULE */
	int n;
	int item, separator, min, max;       /* REPEAT */
	struct grammar_members members;
	uint64_t group[2];
};

struct world {
	struct toy toy[SYMBOLS];
	int n;
	bool derives[SYMBOLS][TEXT_MAX + 1][TEXT_MAX + 1];   /* text[i .. j) */
};

static unsigned seed;
static const uint8_t *fuzz;            /* NULL: by seed; else [n_fuzz] bytes that decide */
static size_t n_fuzz;

static int below(int n)
{
	if (fuzz)
		return n_fuzz ? n_fuzz--, *fuzz++ % n : 0;
	seed = seed * 1103515245u + 12345u;
	return (int)(seed >> 16 & 0x7fff) % n;
}

static uint32_t set_of(struct regexes *r, const char *s)
{
	uint64_t set[4] = { 0 };

	for (; *s; s++)
		set[*s / 64] |= 1ull << *s % 64;
	return regex_set(r, set);
}

static uint32_t terminal_expr(struct regexes *r, int k)
{
	static const char *const literal[] = { "a", "b", "c", "ab", "ca" };
	uint32_t bb, any;

	if (k < 5)
		return regex_bytes(r, literal[k], strlen(literal[k]));
	if (k == 5)
		return regex_repeat(r, set_of(r, "ab"), 0, REGEX_MANY);
	if (k == 6)
		return regex_repeat(r, set_of(r, "a"), 1, 3);
	if (k == 8)
		return regex_repeat(r, set_of(r, "bc"), 2, 2);
	any = regex_repeat(r, set_of(r, "abc"), 0, REGEX_MANY);
	bb = regex_concat(r, REGEX_ANY, regex_concat(r, regex_bytes(r, "bb", 2), REGEX_ANY));
	return regex_and(r, any, regex_not(r, bb));
}

/* ---- random grammars ---- */

#define TERMINALS 9
#define RULES     4

static void random_members(struct toy *y)
{
	struct grammar_members *m = &y->members;

	*m = (struct grammar_members){ .n = (uint32_t)below(3) + 1, .ordered = below(2), .rest = -1, .separator = -1,
		.max = GRAMMAR_MANY };
	for (uint32_t i = 0; i < m->n; i++)
		m->symbol[i] = below(5);
	m->required = (uint64_t)below(1 << m->n);
	if (below(3) == 0)
		m->rest = below(5);
	if (below(2))
		m->separator = below(TERMINALS);
	if (below(3) == 0) {
		y->group[0] = (uint64_t)below((1 << m->n) - 1) + 1;
		m->group = y->group;
		m->n_groups = 1;
	} else if (below(2)) {
		m->max = (uint32_t)below(3);
		m->min = (uint32_t)below((int)m->max + 1);
	} else {
		m->min = (uint32_t)below(4);
	}
}

static void random_world(struct world *w)
{
	int counted = below(4);

	memset(w, 0, sizeof(*w));
	for (int k = 0; k < TERMINALS; k++)
		w->toy[w->n++] = (struct toy){ .kind = SYMBOL_LEXEME, .terminal = k };
	for (int k = 0; k < counted; k++, w->n++) {          /* they count terminals, and rules that come later */
		struct toy *y = &w->toy[w->n];
		y->kind = below(2) ? SYMBOL_REPEAT : SYMBOL_MEMBERS;
		random_members(y);
		y->item = below(2) ? below(TERMINALS) : TERMINALS + counted + below(RULES);
		y->separator = below(2) ? below(TERMINALS) : -1;
		y->min = below(3);
		y->max = below(2) ? 1000 : y->min + below(3);
	}
	for (int k = 0; k < RULES; k++, w->n++) {
		struct toy *y = &w->toy[w->n];
		y->kind = SYMBOL_RULE;
		y->n = 1 + below(3);
		for (int p = 0; p < y->n; p++) {
			y->rule[p].n = below(4);
			for (int i = 0; i < y->rule[p].n; i++)
				y->rule[p].body[i] = below(2) ? below(TERMINALS) : below(TERMINALS + counted + RULES);
		}
	}
}

/* Symbols get the same numbers as in the world: rules first become symbols, so they are made in order. */
static struct sr_grammar *open_world(const struct world *w, const struct sr_text *t)
{
	struct sr_grammar *g = rig_grammar(t);
	int32_t number[SYMBOLS];
	int rc;

	for (int k = 0; k < w->n; k++)
		number[k] = w->toy[k].kind == SYMBOL_RULE ? grammar_rule(g->g) :
		            w->toy[k].kind == SYMBOL_LEXEME ?
		            grammar_lexeme(g->g, terminal_expr(grammar_regexes(g->g), w->toy[k].terminal)) : -1;
	for (int k = 0; k < w->n; k++) {
		const struct toy *y = &w->toy[k];
		if (y->kind == SYMBOL_REPEAT)
			number[k] = grammar_repeat(g->g, number[y->item], (uint32_t)y->min,
			                           y->max == 1000 ? GRAMMAR_MANY : (uint32_t)y->max,
			                           y->separator < 0 ? -1 : number[y->separator]);
		if (y->kind == SYMBOL_MEMBERS) {
			struct grammar_members m = y->members;
			for (uint32_t i = 0; i < m.n; i++)
				m.symbol[i] = number[m.symbol[i]];
			m.rest = m.rest < 0 ? -1 : number[m.rest];
			m.separator = m.separator < 0 ? -1 : number[m.separator];
			number[k] = grammar_members(g->g, &m);
		}
		assert(number[k] >= 0);
	}
	for (int k = 0; k < w->n; k++)
		for (int p = 0; p < w->toy[k].n; p++) {
			int32_t body[3];
			for (int i = 0; i < w->toy[k].rule[p].n; i++)
				body[i] = number[w->toy[k].rule[p].body[i]];
			grammar_produce(g->g, number[k], body, (uint32_t)w->toy[k].rule[p].n);
		}
	if (below(8) == 0)                                   /* no caches are small enough: each step has new ones */
		g->most_bytes = 0;
	rc = rig_seal(g, number[w->n - 1]);
	assert(!rc || rc == -EINVAL);
	return rc ? NULL : g;
}

/* One answer, drawn among what is allowed: there is always something, and all of it is taken, but for answers that
 * go over a budget (ambiguous grammars).  Returns the number of tokens. */
static inline int world_walk(struct sr_grammar *g, const struct sr_text *t, int most, long *over)
{
	struct sr_guide *u;
	uint32_t bits[1];
	int steps = 0, rc = sr_guide_open(&u, g);

	assert(!rc);
	while (!rc && steps < most && !u->ended) {
		struct sr_next next;
		int32_t id = below(N_WORDS);
		if (sr_guide_next(u, &next, bits))
			break;
		rig_bits(u, t, bits);
		assert(bits[0]);
		if (next.kind == SR_GUIDE_IS && below(2)) {
			for (uint32_t i = 0; !rc && i < next.n; i++, steps++)
				rc = sr_guide_take(u, next.id[i]);
			assert(!rc || rc == -E2BIG);
			continue;
		}
		rc = sr_guide_take(u, id);
		assert(rc == -E2BIG || rc == (rig_allows(bits, id) ? 0 : -EINVAL));
		for (; rc == -EINVAL || rc == 1; id = (id + 1) % N_WORDS)
			rc = rig_allows(bits, id) ? sr_guide_take(u, id) : 1;
		steps++;
	}
	*over += u->broken;
	sr_guide_close(u);
	return steps;
}

#endif
