/* object.c - shapes of objects: properties in their order, sets of other keys, counts, members that must
 * be there.
 */
#include <stdlib.h>

#include "impl.h"

struct object_form *object_any(struct schema *s)
{
	struct object_form *o = schema_take(s, 1, sizeof(*o));
	struct keys *keys = schema_take(s, 1, sizeof(*keys));

	keys[0] = (struct keys){ s->all_strings, TERM_ANY, true };
	o->keys = keys;
	o->n_keys = 1;
	o->max = MANY;
	return o;
}

/* ---- which term is a name's ---- */

/* Any order will do.  Names that come from one place have one address. */
static int compare(const struct word *a, const struct word *b)
{
	if (a->n != b->n)
		return a->n < b->n ? -1 : 1;
	return a->s == b->s ? 0 : memcmp(a->s, b->s, a->n);
}

static int by_name(const void *a, const void *b, void *o)
{
	const struct property *p = ((struct object_form *)o)->property;

	return compare(&p[*(const uint32_t *)a].name, &p[*(const uint32_t *)b].name);
}

const struct property *object_find(struct schema *s, struct object_form *o, const struct word *name)
{
	uint32_t low = 0, high = o->n, *index;

	if (o->n <= 8) {
		for (uint32_t i = 0; i < o->n; i++)
			if (!compare(&o->property[i].name, name))
				return &o->property[i];
		return NULL;
	}
	if (!o->by_name) {
		o->by_name = index = schema_take(s, o->n, sizeof(*index));
		for (uint32_t i = 0; i < o->n; i++)
			index[i] = i;
		qsort_r(index, o->n, sizeof(*index), by_name, o);
	}
	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		int c = compare(name, &o->property[o->by_name[mid]].name);

		if (!c)
			return &o->property[o->by_name[mid]];
		if (c < 0)
			high = mid;
		else
			low = mid + 1;
	}
	return NULL;
}

static const struct keys *keys_of(struct schema *s, const struct object_form *o, const struct word *name)
{
	for (uint32_t i = 0; i < o->n_keys; i++)
		if (o->n_keys == 1 || word_in(s, name, o->keys[i].expr, false))
			return &o->keys[i];
	return NULL;
}

uint32_t object_value(struct schema *s, struct object_form *o, const struct word *name)
{
	const struct property *p = object_find(s, o, name);
	const struct keys *k = p ? NULL : keys_of(s, o, name);

	return p ? p->term : k ? k->term : TERM_NONE;
}

uint32_t object_names(struct schema *s, const struct object_form *o)
{
	uint32_t *list = schema_take(s, (size_t)o->n + 1, sizeof(*list));

	for (uint32_t i = 0; i < o->n; i++)
		list[i] = word_string(s, &o->property[i].name);
	return schema_expr(s, regex_or_all(s->r, list, o->n));
}

/* ---- members that must be there ---- */

/* o, in which property i is required and of this term too, without one of its `some`. */
struct object_form *object_demand(struct schema *s, const struct object_form *o, uint32_t i, uint32_t term,
                                  uint32_t without_some)
{
	struct object_form *c = schema_take(s, 1, sizeof(*c));
	struct property *p = schema_take(s, o->n, sizeof(*p));
	struct some *some = schema_take(s, (size_t)o->n_some + 1, sizeof(*some));

	*c = *o;
	c->bits = 0;
	memcpy(p, o->property, o->n * sizeof(*p));
	p[i].term = term_and(s, p[i].term, term);
	p[i].required = true;
	c->property = p;
	c->n_some = 0;
	for (uint32_t k = 0; k < o->n_some; k++)
		if (k != without_some)
			some[c->n_some++] = o->some[k];
	c->some = some;
	return c;
}

/* Which members can be the one: none, property *one alone, or more. */
static uint32_t candidates(struct schema *s, const struct object_form *o, const struct some *want,
                           uint32_t *one)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < o->n && n < 2; i++) {
		const struct property *p = &o->property[i];

		if (p->term == TERM_NONE || !word_in(s, &p->name, want->expr, false) ||
		    term_empty(s, term_and(s, p->term, want->term), 2))
			continue;
		*one = i;
		n++;
	}
	for (uint32_t i = 0; i < o->n_keys && n < 2; i++)
		if (o->keys[i].term != TERM_NONE &&
		    !expr_empty(s, schema_expr(s, regex_and(s->r, o->keys[i].expr, want->expr))) &&
		    !term_empty(s, term_and(s, o->keys[i].term, want->term), 2))
			n += 2;
	return n;
}

/* Decide each `some` that has one candidate, or none; NULL if no object is left. */
static struct object_form *tidy(struct schema *s, struct object_form *o)
{
	uint32_t one = 0, n, required = 0;

	for (uint32_t i = 0; i < o->n_some;) {
		n = candidates(s, o, &o->some[i], &one);
		if (!n)
			return NULL;
		if (n > 1) {
			i++;
			continue;
		}
		o = object_demand(s, o, one, o->some[i].term, i);
		i = 0;
	}
	for (uint32_t i = 0; i < o->n; i++) {
		required += o->property[i].required;
		if (o->property[i].required && term_empty(s, o->property[i].term, 2))
			return NULL;
	}
	if (o->min < required)
		o->min = required;
	return o->min > o->max ? NULL : o;
}

/* ---- intersection ---- */

static void add_keys(struct schema *s, struct object_form *o, struct keys *to, struct keys k)
{
	if (k.expr == REGEX_NONE || (o->n_keys && expr_empty(s, k.expr)))
		return;
	for (uint32_t i = 0; i < o->n_keys; i++) {
		if (to[i].term != k.term || to[i].loose != k.loose)
			continue;
		to[i].expr = schema_expr(s, regex_or(s->r, to[i].expr, k.expr));
		return;
	}
	to[o->n_keys++] = k;
}

static void and_keys(struct schema *s, struct object_form *c, const struct object_form *a,
                     const struct object_form *b)
{
	struct keys *keys;

	if ((size_t)a->n_keys * b->n_keys > 1024)
		schema_too_complex(s);
	keys = schema_take(s, (size_t)a->n_keys * b->n_keys + 1, sizeof(*keys));
	for (uint32_t i = 0; i < a->n_keys; i++)
		for (uint32_t j = 0; j < b->n_keys; j++)
			add_keys(s, c, keys, (struct keys){
				schema_expr(s, regex_and(s->r, a->keys[i].expr, b->keys[j].expr)),
				term_and(s, a->keys[i].term, b->keys[j].term), a->keys[i].loose && b->keys[j].loose });
	c->keys = keys;
}

/* The property that both declare, or one of them; its term is what both say of that name. */
static struct property both(struct schema *s, struct object_form *a, const struct property *p,
                            struct object_form *b, const struct property *q)
{
	struct property c = p ? *p : *q;

	c.term =
		term_and(s, p ? p->term : object_value(s, a, &c.name), q ? q->term : object_value(s, b, &c.name));
	c.required = (p && p->required) || (q && q->required);
	c.bare = (!p || p->bare) && (!q || q->bare);
	return c;
}

/* What `properties` of a names, then of b, then what only `required` names. */
static bool and_properties(struct schema *s, struct object_form *c, struct object_form *a,
                           struct object_form *b)
{
	struct property *to = schema_take(s, (size_t)a->n + b->n + 1, sizeof(*to));
	const struct property *p, *q;

	for (int bare = 0; bare < 2; bare++) {
		for (uint32_t i = 0; i < a->n; i++) {
			p = &a->property[i];
			q = object_find(s, b, &p->name);
			if (p->bare == bare && (!bare || !q || q->bare))
				to[c->n++] = both(s, a, p, b, q);
		}
		for (uint32_t i = 0; i < b->n; i++) {
			q = &b->property[i];
			p = object_find(s, a, &q->name);
			if (q->bare == bare && (!p || (!bare && p->bare)))
				to[c->n++] = both(s, a, p, b, q);
		}
	}
	c->property = to;
	for (uint32_t i = 0; i < c->n; i++)
		if (to[i].required && to[i].term == TERM_NONE)
			return false;
	return true;
}

static bool open_keys(const struct object_form *o)
{
	for (uint32_t i = 0; i < o->n_keys; i++)
		if (o->keys[i].loose)
			return false;
	return true;
}

struct object_form *object_and(struct schema *s, struct object_form *a, struct object_form *b)
{
	struct object_form *c = schema_take(s, 1, sizeof(*c));
	struct some *some = schema_take(s, (size_t)a->n_some + b->n_some + 1, sizeof(*some));

	for (uint32_t done = 0; done <= a->n + b->n; done += 8)
		schema_step(s);
	if (!and_properties(s, c, a, b))
		return NULL;
	and_keys(s, c, a, b);
	if (a->n_some)
		memcpy(some, a->some, a->n_some * sizeof(*some));
	if (b->n_some)
		memcpy(some + a->n_some, b->some, b->n_some * sizeof(*some));
	c->some = some;
	c->n_some = a->n_some + b->n_some;
	c->min = a->min > b->min ? a->min : b->min;
	c->max = a->max < b->max ? a->max : b->max;
	c->soft = (a->soft || b->soft) && !open_keys(c);
	return tidy(s, c);
}

static bool keys_cover(struct schema *s, const struct object_form *a, const struct object_form *b)
{
	if (a->n_keys == 1 && a->keys[0].expr == s->all_strings && a->keys[0].term == TERM_ANY)
		return true;
	if (a->n_keys != b->n_keys)
		return false;
	for (uint32_t i = 0; i < a->n_keys; i++)
		if (a->keys[i].expr != b->keys[i].expr || !term_covers(s, a->keys[i].term, b->keys[i].term))
			return false;
	return true;
}

/* A bit for each required name, by its hash: if a has one that b has not, b lacks a name that a requires. */
static uint64_t required_bits(struct object_form *o)
{
	if (o->bits)
		return o->bits;
	o->bits = 1;                    /* so that they are made once */
	for (uint32_t i = 0; i < o->n; i++) {
		const struct word *w = &o->property[i].name;
		uint64_t h = w->n;

		if (!o->property[i].required)
			continue;
		for (size_t k = 0; k < w->n; k++)
			h = (h ^ (unsigned char)w->s[k]) * 0x9e3779b97f4a7c15ull;
		o->bits |= 1ull << (h >> 58);
	}
	return o->bits;
}

bool object_covers(struct schema *s, struct object_form *a, struct object_form *b)
{
	if (a->soft != b->soft || a->n_some || a->min > b->min || a->max < b->max ||
	    required_bits(a) & ~required_bits(b) || !keys_cover(s, a, b))
		return false;
	for (uint32_t i = 0; i < a->n; i++) {
		const struct property *p = &a->property[i], *q = object_find(s, b, &p->name);

		if ((p->required && !(q && q->required)) ||
		    !term_covers(s, p->term, q ? q->term : object_value(s, b, &p->name)))
			return false;
	}
	for (uint32_t i = 0; i < b->n; i++)
		if (!object_find(s, a, &b->property[i].name) &&
		    !term_covers(s, object_value(s, a, &b->property[i].name), b->property[i].term))
			return false;
	return a->keys[0].loose == b->keys[0].loose || !a->soft;
}

/* ---- complement ---- */

struct object_list { struct object_form **of; uint32_t n; };

static struct object_form *alternative(struct schema *s, struct object_list *l)
{
	return l->of[l->n++] = object_any(s);
}

static void with_property(struct schema *s, struct object_list *l, const struct word *name, uint32_t term,
                          bool required)
{
	struct property *p = schema_take(s, 1, sizeof(*p));
	struct object_form *o;

	if (required && term == TERM_NONE)
		return;
	o = alternative(s, l);
	*p = (struct property){ *name, term, required, true };
	o->property = p;
	o->n = 1;
}

static void with_some(struct schema *s, struct object_list *l, uint32_t expr, uint32_t term)
{
	struct some *some = schema_take(s, 1, sizeof(*some));
	struct object_form *o;

	if (term == TERM_NONE || expr_empty(s, expr))
		return;
	o = alternative(s, l);
	*some = (struct some){ expr, term };
	o->some = some;
	o->n_some = 1;
	o->min = 1;
}

static void without_some(struct schema *s, struct object_list *l, const struct some *some)
{
	struct object_form *o = alternative(s, l);
	struct keys *keys = schema_take(s, 2, sizeof(*keys));
	uint32_t other =
		schema_expr(s, regex_and(s->r, s->all_strings, schema_expr(s, regex_not(s->r, some->expr))));

	keys[0] = (struct keys){ some->expr, term_not(s, some->term), false };
	keys[1] = (struct keys){ other, TERM_ANY, true };
	o->keys = keys;
	o->n_keys = expr_empty(s, other) ? 1 : 2;
}

uint32_t object_not(struct schema *s, struct object_form *a, struct object_form ***out)
{
	struct object_list l = { schema_take(s, 2 * (size_t)a->n + a->n_keys + a->n_some + 2, sizeof(*l.of)), 0 };
	uint32_t others = REGEX_FAILED, required = 0;

	for (uint32_t i = 0; i < a->n; i++) {
		const struct property *p = &a->property[i];

		required += p->required;
		if (p->required)
			with_property(s, &l, &p->name, TERM_NONE, false);
		with_property(s, &l, &p->name, term_not(s, p->term), true);
	}
	for (uint32_t i = 0; i < a->n_keys; i++) {
		if (a->keys[i].term == TERM_ANY)
			continue;
		if (others == REGEX_FAILED)
			others = schema_expr(s, regex_not(s->r, object_names(s, a)));
		with_some(s, &l, schema_expr(s, regex_and(s->r, a->keys[i].expr, others)),
		          term_not(s, a->keys[i].term));
	}
	for (uint32_t i = 0; i < a->n_some; i++)
		without_some(s, &l, &a->some[i]);
	if (a->min > required)
		alternative(s, &l)->max = a->min - 1;
	if (a->max != MANY)
		alternative(s, &l)->min = a->max + 1;
	*out = l.of;
	return l.n;
}
