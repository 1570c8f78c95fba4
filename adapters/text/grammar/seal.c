/* seal.c - the end of a grammar's construction: what derives something, what derives nothing, and the dots.
 *
 * A symbol is productive if it derives any string, nullable if it derives the empty one.  Both are least
 * fixed points, computed in linear time: each production counts its symbols that are not there yet. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sealed.h"

/* Who uses a symbol: user[at[s] .. at[s+1]-1] are productions, or (from n_productions on) symbols. */
struct users { uint32_t *at, *user; };

struct fixpoint {
	struct grammar *g;
	struct users users;
	uint32_t *missing;           /* [n_productions] symbols that are not productive (or nullable) yet */
	uint32_t *work, n_work;      /* [n_symbols] symbols that became so */
	bool nullable;               /* which of the two */
};

static uint32_t parts_of(const struct grammar *g, const struct symbol *s, int32_t part[GRAMMAR_MEMBERS + 2])
{
	uint32_t n = 0;

	if (s->kind == SYMBOL_REPEAT) {
		part[n++] = s->item;
		if (s->separator >= 0)
			part[n++] = s->separator;
	} else if (s->kind == SYMBOL_MEMBERS) {
		const struct grammar_members *m = &g->members[s->at];
		for (; n < m->n; n++)
			part[n] = m->symbol[n];
		if (m->rest >= 0)
			part[n++] = m->rest;
		if (m->separator >= 0)
			part[n++] = m->separator;
	}
	return n;
}

/* Twice over all uses: count them, then place them. */
static int find_users(struct grammar *g, struct users *u)
{
	int32_t part[GRAMMAR_MEMBERS + 2];
	uint32_t total = 0, n;

	u->at = calloc(g->n_symbols + 2, sizeof(*u->at));
	if (!u->at)
		return -ENOMEM;
	for (uint32_t i = 0; i < g->n_body; i++)
		u->at[g->body[i] + 2]++;
	for (uint32_t s = 0; s < g->n_symbols; s++)
		for (n = parts_of(g, &g->symbol[s], part); n; n--)
			u->at[part[n - 1] + 2]++;
	for (uint32_t s = 0; s < g->n_symbols; s++) {
		total += u->at[s + 2];
		u->at[s + 2] = total;
	}
	u->user = malloc((total ? total : 1) * sizeof(*u->user));
	if (!u->user)
		return -ENOMEM;
	for (uint32_t p = 0; p < g->n_productions; p++)
		for (uint32_t i = 0; i < g->production[p].n; i++)
			u->user[u->at[g->body[g->production[p].at + i] + 1]++] = p;
	for (uint32_t s = 0; s < g->n_symbols; s++)
		for (n = parts_of(g, &g->symbol[s], part); n; n--)
			u->user[u->at[part[n - 1] + 1]++] = g->n_productions + s;
	return 0;
}

static bool has(const struct fixpoint *f, int32_t symbol)
{
	const struct symbol *s = &f->g->symbol[symbol];

	return f->nullable ? s->nullable : s->productive;
}

static bool repeat_has(const struct fixpoint *f, const struct symbol *s)
{
	if (!s->min)
		return true;
	return has(f, s->item) && (s->min == 1 || s->separator < 0 || has(f, s->separator));
}

static bool members_has(const struct fixpoint *f, const struct grammar_members *m)
{
	uint64_t there = 0;
	uint32_t n;

	if (f->nullable)
		return !m->required && !m->n_groups && !m->min;
	for (uint32_t i = 0; i < m->n; i++)
		if (has(f, m->symbol[i]))
			there |= 1ull << i;
	for (uint32_t i = 0; i < m->n_groups; i++)
		if (!(m->group[i] & there))
			return false;
	n = (uint32_t)__builtin_popcountll(there);
	if (m->separator >= 0 && !has(f, m->separator) && n)
		n = 1;
	else if (m->rest >= 0 && has(f, m->rest))
		n = UINT32_MAX;
	return !(m->required & ~there) && m->min <= n && (uint32_t)__builtin_popcountll(m->required) <= m->max;
}

static bool symbol_has(const struct fixpoint *f, const struct symbol *s)
{
	if (s->kind == SYMBOL_REPEAT)
		return repeat_has(f, s);
	if (s->kind == SYMBOL_MEMBERS)
		return members_has(f, &f->g->members[s->at]);
	return false;
}

static void found(struct fixpoint *f, uint32_t symbol)
{
	struct symbol *s = &f->g->symbol[symbol];
	bool *flag = f->nullable ? &s->nullable : &s->productive;

	if (!*flag) {
		*flag = true;
		f->work[f->n_work++] = symbol;
	}
}

/* The least fixed point, from what terminals are. */
static void solve(struct fixpoint *f)
{
	struct grammar *g = f->g;

	f->n_work = 0;
	for (uint32_t s = 0; s < g->n_symbols; s++)
		if (has(f, (int32_t)s))
			f->work[f->n_work++] = s;
	for (uint32_t p = 0; p < g->n_productions; p++) {
		f->missing[p] = g->production[p].n;
		if (!f->missing[p])
			found(f, (uint32_t)g->production[p].rule);
	}
	for (uint32_t s = 0; s < g->n_symbols; s++)
		if (symbol_has(f, &g->symbol[s]))
			found(f, s);
	while (f->n_work) {
		uint32_t s = f->work[--f->n_work];
		for (uint32_t i = f->users.at[s]; i < f->users.at[s + 1]; i++) {
			uint32_t user = f->users.user[i];
			if (user >= g->n_productions) {
				if (symbol_has(f, &g->symbol[user - g->n_productions]))
					found(f, user - g->n_productions);
			} else if (!--f->missing[user]) {
				found(f, (uint32_t)g->production[user].rule);
			}
		}
	}
}

/* The terminals' part; a symbol's flags are kept from an earlier solution, which stays true. */
static int judge_lexemes(struct grammar *g)
{
	for (uint32_t s = 0; s < g->n_symbols; s++) {
		struct symbol *l = &g->symbol[s];
		int live;
		if (l->kind != SYMBOL_LEXEME || l->productive)
			continue;
		live = regex_live(g->r, l->expr);
		if (live < 0)
			return live;
		l->productive = live;
	}
	return 0;
}

static int find_what_derives(struct grammar *g)
{
	struct fixpoint f = { .g = g };
	int rc = judge_lexemes(g);

	f.missing = malloc((g->n_productions + 1) * sizeof(*f.missing));
	f.work = malloc((g->n_symbols + 1) * sizeof(*f.work));
	if (!rc)
		rc = f.missing && f.work ? find_users(g, &f.users) : -ENOMEM;
	if (!rc) {
		solve(&f);
		f.nullable = true;
		solve(&f);
	}
	free(f.missing);
	free(f.work);
	free(f.users.at);
	free(f.users.user);
	return rc;
}

int grammar_productive(struct grammar *g, int32_t symbol)
{
	int rc = g->failed;

	if (rc || symbol < 0 || (uint32_t)symbol >= g->n_symbols)
		return rc;
	rc = g->symbol[symbol].productive ? 0 : find_what_derives(g);
	if (rc)
		g->failed = rc;
	return rc ? rc : g->symbol[symbol].productive;
}

/* What cannot come is taken out; what counts for nothing is not counted. */
static int simplify(struct grammar *g)
{
	g->usable = calloc(g->n_members + 1, sizeof(*g->usable));
	if (!g->usable)
		return -ENOMEM;
	for (uint32_t i = 0; i < g->n_symbols; i++) {
		struct symbol *s = &g->symbol[i];
		const struct symbol *item, *sep;
		if (s->kind == SYMBOL_MEMBERS) {
			struct grammar_members *m = &g->members[s->at];
			for (uint32_t k = 0; k < m->n; k++)
				if (g->symbol[m->symbol[k]].nullable)
					return -EINVAL;
			if (m->rest >= 0 && g->symbol[m->rest].nullable)
				return -EINVAL;
			if (m->rest >= 0 && !g->symbol[m->rest].productive)
				m->rest = SYMBOL_NONE;
			if (m->separator >= 0 && !g->symbol[m->separator].productive && m->max > 1)
				m->max = 1;
			for (uint32_t k = 0; k < m->n; k++)
				if (g->symbol[m->symbol[k]].productive)
					g->usable[s->at] |= 1ull << k;
		}
		if (s->kind != SYMBOL_REPEAT)
			continue;
		item = &g->symbol[s->item];
		sep = s->separator >= 0 ? &g->symbol[s->separator] : NULL;
		if (!item->productive)
			s->max = 0;
		else if (sep && !sep->productive && s->max > 1)
			s->max = 1;
		if (item->nullable && (!sep || sep->nullable))
			s->min = 0;
	}
	return 0;
}

static void place_production(struct grammar *g, const struct production *p, uint32_t first)
{
	for (uint32_t i = 0; i < p->n; i++)
		g->dot[first + i] = (struct dot){ g->body[p->at + i], p->rule, i + 1 == p->n };
	g->dot[first + p->n] = (struct dot){ SYMBOL_NONE, p->rule, false };
}

static bool can_be(const struct grammar *g, const struct production *p)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (!g->symbol[g->body[p->at + i]].productive)
			return false;
	return true;
}

/* Dots of what is counted: see struct dot. */
static uint32_t place_counted(struct grammar *g, int32_t owner, uint32_t at)
{
	struct symbol *s = &g->symbol[owner];

	s->dot = at;
	if (s->kind == SYMBOL_REPEAT) {
		g->dot[at++] = (struct dot){ s->item, owner, false };
		g->dot[at++] = (struct dot){ s->separator, owner, false };
	} else {
		const struct grammar_members *m = &g->members[s->at];
		for (uint32_t i = 0; i < m->n; i++)
			g->dot[at++] = (struct dot){ m->symbol[i], owner, false };
		g->dot[at++] = (struct dot){ m->rest, owner, false };
		g->dot[at++] = (struct dot){ m->separator, owner, false };
	}
	return at;
}

static int place_dots(struct grammar *g)
{
	uint32_t n = g->n_body + g->n_productions + 2, at = 2, starts = 0;

	for (uint32_t i = 0; i < g->n_symbols; i++)
		n += g->symbol[i].kind == SYMBOL_REPEAT ? 2 :
		     g->symbol[i].kind == SYMBOL_MEMBERS ? g->members[g->symbol[i].at].n + 2 : 0;
	g->dot = malloc((n + 1) * sizeof(*g->dot));
	g->start = malloc((g->n_productions + 1) * sizeof(*g->start));
	if (!g->dot || !g->start)
		return -ENOMEM;
	g->dot[0] = (struct dot){ g->begin, SYMBOL_START, true };
	g->dot[1] = (struct dot){ SYMBOL_NONE, SYMBOL_START, false };
	for (uint32_t i = 0; i < g->n_productions; i++)
		if (can_be(g, &g->production[i]))
			g->symbol[g->production[i].rule].n++;
	for (uint32_t i = 0; i < g->n_symbols; i++) {
		struct symbol *s = &g->symbol[i];
		if (s->kind == SYMBOL_REPEAT || s->kind == SYMBOL_MEMBERS)
			at = place_counted(g, (int32_t)i, at);
		if (s->kind != SYMBOL_RULE)
			continue;
		s->at = starts;
		starts += s->n;
		s->n = 0;
	}
	for (uint32_t i = 0; i < g->n_productions; i++) {
		const struct production *p = &g->production[i];
		if (!can_be(g, p))
			continue;
		place_production(g, p, at);
		g->start[g->symbol[p->rule].at + g->symbol[p->rule].n++] = at;
		at += p->n + 1;
	}
	g->n_dots = at;
	return 0;
}

int grammar_seal(struct grammar *g, int32_t start, struct grammar_error *e)
{
	int rc = g->failed;

	if (!rc)
		rc = regexes_error(g->r);
	if (!rc && (start < 0 || (uint32_t)start >= g->n_symbols))
		rc = -EINVAL;
	if (!rc)
		rc = find_what_derives(g);
	if (!rc && !g->symbol[start].productive)
		return grammar_refuse(e, -EINVAL, NULL, "The grammar allows no text at all.");
	g->begin = start;
	if (!rc)
		rc = simplify(g);
	if (!rc)
		rc = place_dots(g);
	free(g->production);
	free(g->body);
	g->production = NULL;
	g->body = NULL;
	if (rc == -ENOMEM)
		return grammar_refuse(e, rc, NULL, "There is no memory for the grammar.");
	if (rc == -E2BIG && !g->failed && !regexes_error(g->r))
		return grammar_refuse(e, rc, NULL, "It takes too long to find out if any text matches a "
		                      "pattern of the grammar.");
	if (rc == -E2BIG)
		return grammar_refuse(e, rc, NULL, "The grammar is too complex: over 1000000 expressions, 500000 "
		                      "symbols, or 2000000 symbols in productions.");
	if (rc)
		return grammar_refuse(e, rc, NULL, "The grammar is not well made: a symbol is missing, or a member "
		                      "of a set may be empty.");
	return 0;
}
