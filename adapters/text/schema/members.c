/* members.c - productions of arrays and objects. */
#include <stdlib.h>

#include "emit.h"

static uint32_t count(uint64_t n)
{
	return n >= GRAMMAR_MANY ? GRAMMAR_MANY : (uint32_t)n;
}

static uint64_t less(uint64_t a, uint64_t b)
{
	return a == MANY ? MANY : a > b ? a - b : 0;
}

static int32_t repeat(struct schema *s, int32_t symbol, uint64_t min, uint64_t max, int32_t separator)
{
	return emit_check(s, grammar_repeat(s->g, symbol, count(min), count(max), separator));
}

static int32_t rule(struct schema *s)
{
	return emit_check(s, grammar_rule(s->g));
}

/* ---- arrays ---- */

static uint32_t item(const struct array_form *a, uint64_t i)
{
	return i < a->n ? a->prefix[i] : a->rest;
}

static void tuple(struct schema *s, int32_t top, const struct array_form *a)
{
	int32_t *after = schema_take(s, (size_t)a->n + 1, sizeof(*after)), more;

	if (!a->n) {
		EMIT(s, top, s->open_array, repeat(s, emit_term(s, a->rest), a->min ? a->min : 1, a->max, s->comma),
		     s->close_array);
		return;
	}
	for (uint32_t i = 1; i <= a->n; i++)
		after[i] = rule(s);
	EMIT(s, top, s->open_array, emit_term(s, a->prefix[0]), after[1]);
	for (uint32_t i = 1; i <= a->n; i++) {
		if (i >= a->min)
			EMIT(s, after[i], s->close_array);
		if (i < a->n)
			EMIT(s, after[i], s->comma, emit_term(s, a->prefix[i]), after[i + 1]);
	}
	if (a->max == a->n)
		return;
	more = rule(s);
	EMIT(s, more, s->comma, emit_term(s, a->rest));
	EMIT(s, after[a->n], repeat(s, more, a->min > a->n ? a->min - a->n : 1, less(a->max, a->n), -1),
	     s->close_array);
}

/* Arrays with `contains`: a rule for each state.  It is the position, up to where that says nothing more, and
 * how many items of each kind have come. */
struct counting {
	const struct array_form *a;
	uint64_t last;                  /* position */
	uint32_t cap[4], n_states;
	int32_t *rule;
};

static uint32_t count_of(const struct counting *c, uint32_t state, uint32_t which)
{
	for (uint32_t i = 0; i < which; i++)
		state /= c->cap[i] + 1;
	return state % (c->cap[which] + 1);
}

/* From a state at position i, with an item of the kinds in `kinds`. */
static void counted(struct schema *s, struct counting *c, uint64_t i, uint32_t state, uint32_t kinds)
{
	const struct array_form *a = c->a;
	uint32_t term = item(a, i), next = state, unit = 1;
	uint64_t to = i < c->last ? i + 1 : i;

	for (uint32_t j = 0; j < a->n_contains; j++, unit *= c->cap[j - 1] + 1) {
		const struct contains *k = &a->contains[j];
		bool is = kinds >> j & 1, full = count_of(c, state, j) == c->cap[j];

		if (i < k->from ? is : is && full)
			return;         /* not counted here; or one too many; or as many as are asked for */
		if (is)
			next += unit;
		if (i >= k->from && (is || k->max != MANY))
			term = term_and(s, term, is ? k->term : term_not(s, k->term));
	}
	if (term == TERM_NONE)
		return;
	if (i)
		EMIT(s, c->rule[i * c->n_states + state], s->comma, emit_term(s, term),
		     c->rule[to * c->n_states + next]);
	else
		EMIT(s, c->rule[state], emit_term(s, term), c->rule[to * c->n_states + next]);
}

/* False: it has too many states. */
static bool count_states(struct counting *c)
{
	const struct array_form *a = c->a;

	c->last = a->max != MANY ? a->max : a->n > a->min ? a->n : a->min;
	c->n_states = 1;
	if (a->n_contains > 4)
		return false;
	for (uint32_t j = 0; j < a->n_contains; j++) {
		const struct contains *k = &a->contains[j];
		uint64_t cap = k->max == MANY ? k->min : k->max;

		if (a->max == MANY && k->from > c->last)
			c->last = k->from;
		if (cap > SCHEMA_STATES || (cap + 1) * c->n_states > SCHEMA_STATES)
			return false;
		c->cap[j] = (uint32_t)cap;
		c->n_states *= c->cap[j] + 1;
	}
	if (!c->last)
		c->last = 1;            /* the first position has no comma before it */
	return !a->unique && c->last < SCHEMA_STATES / c->n_states;
}

static void contains(struct schema *s, int32_t top, const struct array_form *a)
{
	struct counting c = { .a = a };

	if (!count_states(&c)) {
		schema_ignore(s, NULL, "contains");
		tuple(s, top, a);
		return;
	}
	c.rule = schema_take(s, (c.last + 1) * c.n_states, sizeof(*c.rule));
	for (uint64_t i = 0; i < (c.last + 1) * c.n_states; i++)
		c.rule[i] = rule(s);
	EMIT(s, top, s->open_array, c.rule[0]);
	for (uint64_t i = 0; i <= c.last; i++) {
		for (uint32_t state = 0; state < c.n_states; state++) {
			bool enough = i >= a->min;

			for (uint32_t j = 0; j < a->n_contains; j++)
				enough &= count_of(&c, state, j) >= a->contains[j].min;
			if (enough && i)
				EMIT(s, c.rule[i * c.n_states + state], s->close_array);
			for (uint32_t kinds = 0; i < a->max && kinds < 1u << a->n_contains; kinds++)
				counted(s, &c, i, state, kinds);
		}
	}
}

static void add_lexeme(struct schema *s, uint32_t expr, int32_t *symbol, uint32_t *n)
{
	int32_t one = emit_lexeme(s, expr);

	for (uint32_t i = 0; i < *n; i++)
		if (symbol[i] == one)
			return;
	symbol[(*n)++] = one;
}

/* The scalars of a term, a lexeme each, to symbol[n]; false: they are no list, or over GRAMMAR_MEMBERS. */
static bool listed(struct schema *s, uint32_t term, int32_t *symbol, uint32_t *n)
{
	const struct form *f = term_form(s, term);
	const struct form literal[3] = { { .null = f->null }, { .yes = f->yes }, { .no = f->no } };

	*n = 0;
	if (f->n_arrays || f->n_objects || f->exponent || !expr_empty(s, f->number.expr) ||
	    !expr_empty(s, f->string.expr) || f->number.n + f->string.n + 3 > GRAMMAR_MEMBERS)
		return false;
	for (uint32_t i = 0; i < 3; i++)
		if (literal[i].null || literal[i].yes || literal[i].no)
			add_lexeme(s, emit_scalars(s, &literal[i]), symbol, n);
	for (uint32_t i = 0; i < f->number.n; i++) {
		struct word w = { f->number.word[i].s, f->number.word[i].n, false };
		struct form one = { .number = { REGEX_NONE, 1, &w } };

		add_lexeme(s, emit_scalars(s, &one), symbol, n);
	}
	for (uint32_t i = 0; i < f->string.n; i++) {
		uint32_t body = word_written(s, &f->string.word[i]);

		add_lexeme(s, emit_join(s, s->quote, emit_join(s, body, s->quote)), symbol, n);
	}
	return true;
}

static void unique(struct schema *s, int32_t top, const struct array_form *a)
{
	struct grammar_members m = {
		.rest = -1, .separator = s->comma, .min = count(a->min ? a->min : 1), .max = count(a->max)
	};

	if (a->n || a->n_contains || !listed(s, a->rest, m.symbol, &m.n)) {
		schema_ignore(s, a->unique_of, "uniqueItems");
		tuple(s, top, a);
		return;
	}
	if (m.n < m.min)
		return;
	if (m.max > m.n)
		m.max = m.n;
	EMIT(s, top, s->open_array, emit_check(s, grammar_members(s->g, &m)), s->close_array);
}

void emit_array(struct schema *s, int32_t top, const struct array_form *a)
{
	uint64_t wanted = a->min;

	for (uint32_t i = 0; i < a->n_contains; i++)
		wanted |= a->contains[i].min;
	if (!wanted)
		EMIT(s, top, s->empty_array);
	if (!a->max)
		return;
	if (a->unique)
		unique(s, top, a);
	else if (a->n_contains)
		contains(s, top, a);
	else
		tuple(s, top, a);
}

/* ---- objects ---- */

struct members {
	struct object_form *o;
	int32_t *member;                /* [n] a rule for each property that may come */
	bool *required;
	uint32_t n, n_required;
	int32_t rest;                   /* one member of another key, or -1 */
	uint64_t min, max;
};

/* One member whose key is none of o's names and, if `some`, in that set. */
static int32_t other_member(struct schema *s, const struct object_form *o, const struct some *some)
{
	uint32_t names = REGEX_FAILED, e, n = 0;
	int32_t one = rule(s);

	for (uint32_t i = 0; i < o->n_keys; i++) {
		const struct keys *k = &o->keys[i];
		uint32_t term = some ? term_and(s, k->term, some->term) : k->term;

		if (term == TERM_NONE || (k->loose && o->soft))
			continue;
		if (names == REGEX_FAILED && o->n)
			names = schema_expr(s, regex_not(s->r, object_names(s, o)));
		e = o->n ? schema_expr(s, regex_and(s->r, k->expr, names)) : k->expr;
		if (some)
			e = schema_expr(s, regex_and(s->r, e, some->expr));
		if (expr_empty(s, e))
			continue;
		EMIT(s, one, emit_lexeme(s, emit_key(s, e)), emit_term(s, term));
		n++;
	}
	return n ? one : -1;
}

/* More than GRAMMAR_MEMBERS properties: a rule for each property and count of members before it. */
static void chain(struct schema *s, int32_t top, const struct members *m)
{
	const uint64_t cap = m->max != MANY ? m->max : m->min ? m->min : 1;
	int32_t *state, open = s->open_object, more = -1;

	if (cap > SCHEMA_STATES || (cap + 1) * (m->n + 1) > 50 * SCHEMA_STATES)
		schema_fail(s, -E2BIG, NULL, "The JSON schema is too complex (%u properties and a count of them).",
		            m->n);
	state = schema_take(s, (cap + 1) * (m->n + 1), sizeof(*state));
	state[0] = rule(s) + 1;
	EMIT(s, top, open, state[0] - 1);
	if (m->rest >= 0) {
		more = rule(s);
		EMIT(s, more, s->comma, m->rest);
	}
	for (uint32_t i = 0; i < m->n; i++) {
		for (uint64_t c = 0; c <= cap; c++) {
			int32_t me = state[i * (cap + 1) + c] - 1, *skip = &state[(i + 1) * (cap + 1) + c];
			int32_t *took = c < cap ? skip + 1 : m->max == MANY ? skip : NULL;

			if (me < 0)
				continue;
			if (took && !*took)
				*took = rule(s) + 1;
			if (took && c)
				EMIT(s, me, s->comma, m->member[i], *took - 1);
			else if (took)
				EMIT(s, me, m->member[i], *took - 1);
			if (m->required[i])
				continue;
			if (!*skip)
				*skip = rule(s) + 1;
			EMIT(s, me, *skip - 1);
		}
	}
	for (uint64_t c = 0; c <= cap; c++) {
		int32_t me = state[m->n * (cap + 1) + c] - 1;
		uint64_t min = less(m->min, c), max = less(m->max, c);

		if (me < 0)
			continue;
		if (!min && c)
			EMIT(s, me, s->close);
		if (m->rest >= 0 && max && c)
			EMIT(s, me, repeat(s, more, min ? min : 1, max, -1), s->close);
		else if (m->rest >= 0 && max)
			EMIT(s, me, repeat(s, m->rest, min ? min : 1, max, s->comma), s->close);
	}
}

static void members(struct schema *s, int32_t top, const struct members *m)
{
	struct grammar_members g = { .n = m->n, .ordered = true, .rest = m->rest, .separator = s->comma,
	                             .min = count(m->min ? m->min : 1), .max = count(m->max) };

	if (!m->min && !m->n_required)
		EMIT(s, top, s->empty_object);
	if (!m->max || (!m->n && m->rest < 0))
		return;
	if (!m->n) {
		EMIT(s, top, s->open_object, repeat(s, m->rest, m->min ? m->min : 1, m->max, s->comma), s->close);
		return;
	}
	if (m->n > GRAMMAR_MEMBERS) {
		chain(s, top, m);
		return;
	}
	for (uint32_t i = 0; i < m->n; i++) {
		g.symbol[i] = m->member[i];
		g.required |= (uint64_t)m->required[i] << i;
	}
	EMIT(s, top, s->open_object, emit_check(s, grammar_members(s->g, &g)), s->close);
}

/* One of the members after the properties must be `one`. */
static void members_with(struct schema *s, int32_t top, struct members *m, int32_t one)
{
	int32_t tail = rule(s);

	if (m->min > m->n_required + 1 || m->max != MANY) {
		schema_ignore(s, NULL, "additionalProperties");
		members(s, top, m);
		return;
	}
	EMIT(s, tail, one);
	EMIT(s, tail, one, s->comma, repeat(s, m->rest, 1, MANY, s->comma));
	EMIT(s, tail, m->rest, s->comma, tail);
	/* The tail stands for one more property that must come. */
	m->member[m->n] = tail;
	m->required[m->n++] = true;
	m->n_required++;
	m->rest = -1;
	m->min = 0;
	members(s, top, m);
}

static bool find_members(struct schema *s, struct members *m, struct object_form *o)
{
	m->o = o;
	m->member = schema_take(s, (size_t)o->n + 1, sizeof(*m->member));       /* and one for members_with() */
	m->required = schema_take(s, (size_t)o->n + 1, sizeof(*m->required));
	for (uint32_t i = 0; i < o->n; i++) {
		const struct property *p = &o->property[i];

		if (p->term == TERM_NONE && p->required)
			return false;
		if (p->term == TERM_NONE)
			continue;
		m->member[m->n] = rule(s);
		EMIT(s, m->member[m->n], emit_lexeme(s, emit_key(s, word_written(s, &p->name))),
		     emit_term(s, p->term));
		m->required[m->n++] = p->required;
		m->n_required += p->required;
	}
	m->rest = other_member(s, o, NULL);
	m->min = o->min > m->n_required ? o->min : 0;
	m->max = m->rest < 0 && o->max >= m->n ? MANY : o->max;
	return m->max >= m->n_required && (m->rest >= 0 || o->min <= m->n);
}

void emit_object(struct schema *s, int32_t top, struct object_form *o)
{
	struct members m = { 0 };
	int32_t one;

	schema_step(s);
	if (o->n_some) {
		for (uint32_t i = 0; i < o->n; i++)
			if (o->property[i].term != TERM_NONE && word_in(s, &o->property[i].name, o->some[0].expr, false))
				emit_object(s, top, object_demand(s, o, i, o->some[0].term, 0));
		one = other_member(s, o, &o->some[0]);
		if (one >= 0 && o->n_some > 1)
			schema_cannot(s, NULL, "additionalProperties");
		if (one >= 0 && find_members(s, &m, o))
			members_with(s, top, &m, one);
		return;
	}
	if (find_members(s, &m, o))
		members(s, top, &m);
}
