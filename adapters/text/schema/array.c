/* array.c - shapes of arrays: a prefix, items after it, counts, items that must be there. */
#include "impl.h"

struct array_form *array_any(struct schema *s)
{
	struct array_form *a = schema_take(s, 1, sizeof(*a));

	a->rest = TERM_ANY;
	a->max = MANY;
	return a;
}

static uint32_t item(const struct array_form *a, uint64_t i)
{
	return i < a->n ? a->prefix[i] : a->rest;
}

/* At most none of the items from `from` on may be of the term: a restriction of each of them. */
static void forbid(struct schema *s, struct array_form *a, const struct contains *c)
{
	uint32_t n = a->n > c->from ? a->n : c->from, *prefix = schema_take(s, (size_t)n + 1, sizeof(*prefix));
	uint32_t not;

	not = term_not(s, c->term);
	for (uint32_t i = 0; i < n; i++)
		prefix[i] = i < c->from ? item(a, i) : term_and(s, item(a, i), not);
	a->n = n;
	a->prefix = prefix;
	a->rest = term_and(s, a->rest, not);
}

/* Drop what says nothing; NULL if no array is left. */
struct array_form *array_tidy(struct schema *s, struct array_form *a)
{
	struct contains *left = schema_take(s, (size_t)a->n_contains + 1, sizeof(*left));
	uint32_t n = 0;

	for (uint32_t i = 0; i < a->n_contains; i++)
		if (a->contains[i].max == 0)
			forbid(s, a, &a->contains[i]);
	for (uint32_t i = 0; i < a->n_contains; i++) {
		const struct contains *c = &a->contains[i];

		if (c->min > c->max || (c->min && c->term == TERM_NONE))
			return NULL;
		if (c->max && (c->min || c->max != MANY))
			left[n++] = *c;
	}
	a->contains = left;
	a->n_contains = n;
	for (uint32_t i = 0; i < a->n && i < a->max; i++)
		if (term_empty(s, a->prefix[i], 2))
			a->max = i;
	if (a->max > a->n && term_empty(s, a->rest, 1)) {
		a->max = a->n;
		a->rest = TERM_ANY;
	}
	if (a->max < a->n)
		a->n = (uint32_t)a->max;
	if (a->max <= 1)
		a->unique = false;
	return a->min > a->max ? NULL : a;
}

struct array_form *array_and(struct schema *s, const struct array_form *a, const struct array_form *b)
{
	struct array_form *c = array_any(s);
	uint32_t n = a->n > b->n ? a->n : b->n, *prefix = schema_take(s, (size_t)n + 1, sizeof(*prefix));
	struct contains *contains = schema_take(s, (size_t)a->n_contains + b->n_contains + 1, sizeof(*contains));

	for (uint32_t i = 0; i < n; i++)
		prefix[i] = term_and(s, item(a, i), item(b, i));
	c->n = n;
	c->prefix = prefix;
	c->rest = term_and(s, a->rest, b->rest);
	c->min = a->min > b->min ? a->min : b->min;
	c->max = a->max < b->max ? a->max : b->max;
	c->unique = a->unique || b->unique;
	c->unique_of = a->unique ? a->unique_of : b->unique_of;
	if (a->n_contains)
		memcpy(contains, a->contains, a->n_contains * sizeof(*contains));
	if (b->n_contains)
		memcpy(contains + a->n_contains, b->contains, b->n_contains * sizeof(*contains));
	c->contains = contains;
	c->n_contains = a->n_contains + b->n_contains;
	return array_tidy(s, c);
}

/* ---- complement ---- */

struct array_list { struct array_form **of; uint32_t n; };

static struct array_form *alternative(struct schema *s, struct array_list *l, uint64_t min, uint64_t max)
{
	struct array_form *a = array_any(s);

	a->min = min;
	a->max = max;
	return l->of[l->n++] = a;
}

static void with_contains(struct schema *s, struct array_list *l, uint32_t term, uint32_t from, uint64_t min,
                          uint64_t max)
{
	struct contains *c = schema_take(s, 1, sizeof(*c));
	struct array_form *a = alternative(s, l, 0, MANY);

	*c = (struct contains){ term, from, min, max };
	a->contains = c;
	a->n_contains = 1;
	l->of[l->n - 1] = array_tidy(s, a);
	if (!l->of[l->n - 1])
		l->n--;
}

uint32_t array_not(struct schema *s, const struct array_form *a, struct array_form ***out)
{
	struct array_list l = { schema_take(s, (size_t)a->n + 2 * (size_t)a->n_contains + 4, sizeof(*l.of)), 0 };

	if (a->unique) {
		schema_ignore(s, s->blame.schema, s->blame.keyword);
		alternative(s, &l, 0, MANY);
	}
	if (a->min)
		alternative(s, &l, 0, a->min - 1);
	if (a->max != MANY)
		alternative(s, &l, a->max + 1, MANY);
	for (uint32_t i = 0; i < a->n; i++) {
		uint32_t not = term_not(s, a->prefix[i]), *prefix;
		struct array_form *b;

		if (not == TERM_NONE)
			continue;
		b = alternative(s, &l, (uint64_t)i + 1, MANY);
		prefix = schema_take(s, (size_t)i + 1, sizeof(*prefix));
		for (uint32_t k = 0; k < i; k++)
			prefix[k] = TERM_ANY;
		prefix[i] = not;
		b->n = i + 1;
		b->prefix = prefix;
	}
	if (a->rest != TERM_ANY)
		with_contains(s, &l, term_not(s, a->rest), a->n, 1, MANY);
	for (uint32_t i = 0; i < a->n_contains; i++) {
		const struct contains *c = &a->contains[i];

		if (c->min)
			with_contains(s, &l, c->term, c->from, 0, c->min - 1);
		if (c->max != MANY)
			with_contains(s, &l, c->term, c->from, c->max + 1, MANY);
	}
	*out = l.of;
	return l.n;
}
