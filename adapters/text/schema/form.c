/* form.c - forms: sets of JSON values, by type.  Intersection, union, complement, emptiness.
 *
 * Null, booleans, numbers and strings are exact under all three.  Arrays and objects are lists of shapes: an
 * intersection is made pair by pair; a complement is the intersection of the shapes' complements.  A pair
 * that allows nothing is dropped, which keeps the lists short and is how alternatives are proven disjoint.
 */
#include <stdlib.h>

#include "impl.h"

struct form *form_none(struct schema *s)
{
	return schema_take(s, 1, sizeof(struct form));
}

const struct form *form_any(struct schema *s)
{
	struct form *f = schema_take(s, 1, sizeof(*f));
	struct array_form **array = schema_take(s, 1, sizeof(*array));
	struct object_form **object = schema_take(s, 1, sizeof(*object));

	array[0] = array_any(s);
	object[0] = object_any(s);
	f->null = f->yes = f->no = f->exponent = true;
	f->number.expr = s->all_numbers;
	f->string.expr = s->all_strings;
	f->array = (const struct array_form *const *)array;
	f->object = object;
	f->n_arrays = f->n_objects = 1;
	return f;
}

struct form *form_copy(struct schema *s, const struct form *f)
{
	struct form *copy = schema_take(s, 1, sizeof(*copy));

	*copy = *f;
	return copy;
}

const struct form *form_objects(struct schema *s, struct object_form **o, uint32_t n, bool others)
{
	struct form *f = others ? form_copy(s, form_any(s)) : form_none(s);

	f->n_objects = n;
	f->object = o;
	return f;
}

const struct form *form_arrays(struct schema *s, struct array_form **a, uint32_t n, bool others)
{
	struct form *f = others ? form_copy(s, form_any(s)) : form_none(s);

	f->n_arrays = n;
	f->array = (const struct array_form *const *)a;
	return f;
}

/* ---- numbers and strings ---- */

static int by_text(const void *a, const void *b)
{
	const struct word *x = a, *y = b;
	int c = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);

	return c ? c : (x->n > y->n) - (x->n < y->n);
}

static const struct word *sorted(struct schema *s, const struct words *w)
{
	struct word *copy = schema_take(s, w->n, sizeof(*copy));

	if (w->n)
		memcpy(copy, w->word, w->n * sizeof(*copy));
	qsort(copy, w->n, sizeof(*copy), by_text);
	return copy;
}

/* The words of a that b allows, to `to`; returns how many. */
static uint32_t pick(struct schema *s, const struct words *a, const struct words *b, bool number,
                     struct word *to, bool listed)
{
	const struct word *in = a->n && b->n ? sorted(s, b) : NULL;
	uint32_t n = 0;

	for (uint32_t i = 0; i < a->n; i++)
		if ((listed && in && bsearch(&a->word[i], in, b->n, sizeof(*in), by_text)) ||
		    word_in(s, &a->word[i], b->expr, number))
			to[n++] = a->word[i];
	return n;
}

static struct words words_and(struct schema *s, const struct words *a, const struct words *b, bool number)
{
	struct word *w = schema_take(s, (size_t)a->n + b->n + 1, sizeof(*w));
	struct words all = { schema_expr(s, regex_and(s->r, a->expr, b->expr)), 0, w };

	all.n = pick(s, a, b, number, w, true);
	all.n += pick(s, b, a, number, w + all.n, false);
	return all;
}

/* a and b, of which some words may be the same. */
static struct words words_or(struct schema *s, const struct words *a, const struct words *b)
{
	struct words all = { schema_expr(s, regex_or(s->r, a->expr, b->expr)), a->n + b->n,
		                 a->n ? a->word : b->word };
	struct word *w;

	if (!a->n || !b->n)
		return all;
	all.word = w = schema_take(s, all.n, sizeof(*w));
	memcpy(w, a->word, a->n * sizeof(*w));
	memcpy(w + a->n, b->word, b->n * sizeof(*w));
	return all;
}

static uint32_t or_all(struct schema *s, const struct words *w, bool number)
{
	uint32_t *list = schema_take(s, (size_t)w->n + 1, sizeof(*list));

	for (uint32_t i = 0; i < w->n; i++)
		list[i] = number ? word_number(s, &w->word[i]) : word_string(s, &w->word[i]);
	return schema_expr(s, regex_or_all(s->r, list, w->n));
}

static struct words words_not(struct schema *s, const struct words *a, bool number)
{
	uint32_t all = number ? s->all_numbers : s->all_strings, not;

	if (a->expr == all)
		return (struct words){ REGEX_NONE, 0, NULL };
	not = schema_expr(s, regex_or(s->r, a->expr, or_all(s, a, number)));
	if (not == REGEX_NONE)
		return (struct words){ all, 0, NULL };
	not = schema_expr(s, regex_not(s->r, not));
	return (struct words){ schema_expr(s, regex_and(s->r, not, all)), 0, NULL };
}

/* ---- lists of shapes ---- */

#define COMPARED 32

struct shapes { void **of; uint32_t n, cap; };

static void add_shape(struct schema *s, struct shapes *all, void *shape)
{
	schema_step(s);
	if (!shape)
		return;
	if (all->n == SCHEMA_SHAPES)
		schema_fail(s, -E2BIG, NULL, "The JSON schema is too complex (over %u alternatives of one value).",
		            SCHEMA_SHAPES);
	if (all->n == all->cap)
		all->of = schema_grow(s, all->of, &all->cap, sizeof(*all->of));
	all->of[all->n++] = shape;
}

/* An object that another one covers says nothing new.  Only the last ones are compared. */
static void add_object(struct schema *s, struct shapes *all, struct object_form *o)
{
	uint32_t first = all->n > COMPARED ? all->n - COMPARED : 0;

	for (uint32_t i = first; o && i < all->n; i++) {
		if (object_covers(s, all->of[i], o))
			return;
		if (object_covers(s, o, all->of[i])) {
			memmove(&all->of[i], &all->of[i + 1], (all->n - i - 1) * sizeof(*all->of));
			all->n--;
			i--;
		}
	}
	add_shape(s, all, o);
}

static void set_arrays(struct form *f, const struct shapes *all)
{
	f->array = (const struct array_form *const *)all->of;
	f->n_arrays = all->n;
}

static void set_objects(struct form *f, const struct shapes *all)
{
	f->object = (struct object_form *const *)all->of;
	f->n_objects = all->n;
}

/* ---- forms ---- */

const struct form *form_and(struct schema *s, const struct form *a, const struct form *b)
{
	struct form *f = schema_take(s, 1, sizeof(*f));
	struct shapes arrays = { 0 }, objects = { 0 };

	f->null = a->null && b->null;
	f->yes = a->yes && b->yes;
	f->no = a->no && b->no;
	f->exponent = a->exponent && b->exponent;
	f->whole = a->whole || b->whole;
	f->number = words_and(s, &a->number, &b->number, true);
	f->string = words_and(s, &a->string, &b->string, false);
	for (uint32_t i = 0; i < a->n_arrays; i++)
		for (uint32_t j = 0; j < b->n_arrays; j++)
			add_shape(s, &arrays, array_and(s, a->array[i], b->array[j]));
	for (uint32_t i = 0; i < a->n_objects; i++)
		for (uint32_t j = 0; j < b->n_objects; j++)
			add_object(s, &objects, object_and(s, a->object[i], b->object[j]));
	set_arrays(f, &arrays);
	set_objects(f, &objects);
	return f;
}

void form_add(struct schema *s, struct form *to, const struct form *b)
{
	struct shapes arrays = { (void **)(uintptr_t)to->array, to->n_arrays, to->arrays_cap };
	struct shapes objects = { (void **)(uintptr_t)to->object, to->n_objects, to->objects_cap };

	to->whole = (to->whole || to->number.expr == REGEX_NONE) && (b->whole || b->number.expr == REGEX_NONE);
	to->null |= b->null;
	to->yes |= b->yes;
	to->no |= b->no;
	to->exponent |= b->exponent;
	to->number = words_or(s, &to->number, &b->number);
	to->string = words_or(s, &to->string, &b->string);
	for (uint32_t i = 0; i < b->n_arrays; i++)
		add_shape(s, &arrays, (void *)(uintptr_t)b->array[i]);
	for (uint32_t i = 0; i < b->n_objects; i++)
		add_object(s, &objects, b->object[i]);
	set_arrays(to, &arrays);
	set_objects(to, &objects);
	to->arrays_cap = arrays.cap;
	to->objects_cap = objects.cap;
}

/* ---- difference ---- */

static bool array_empty(struct schema *s, const struct array_form *a, unsigned depth);
static bool object_empty(struct schema *s, const struct object_form *o, unsigned depth);

/* What of each shape is not b: itself if nothing of it is b, else its parts that break one of b's rules. */
static void arrays_minus(struct schema *s, struct shapes *all, const struct array_form *b)
{
	struct shapes left = { 0 };
	struct array_form **not = NULL, *c;
	uint32_t n = 0;

	for (uint32_t i = 0; i < all->n; i++) {
		c = array_and(s, all->of[i], b);
		if (!c || array_empty(s, c, 3)) {
			add_shape(s, &left, all->of[i]);
			continue;
		}
		if (!not)
			n = array_not(s, b, &not);
		for (uint32_t k = 0; k < n; k++)
			add_shape(s, &left, array_and(s, all->of[i], not[k]));
	}
	*all = left;
}

static void objects_minus(struct schema *s, struct shapes *all, struct object_form *b)
{
	struct shapes left = { 0 };
	struct object_form **not = NULL, *c;
	uint32_t n = 0;

	for (uint32_t i = 0; i < all->n; i++) {
		c = object_and(s, all->of[i], b);
		if (!c || object_empty(s, c, 3)) {
			add_object(s, &left, all->of[i]);
			continue;
		}
		if (!not)
			n = object_not(s, b, &not);
		for (uint32_t k = 0; k < n; k++)
			add_object(s, &left, object_and(s, all->of[i], not[k]));
	}
	*all = left;
}

const struct form *form_minus(struct schema *s, const struct form *a, const struct form *b)
{
	struct form *f = form_copy(s, a);
	struct shapes arrays = { 0 }, objects = { 0 };
	struct words not;

	f->null = a->null && !b->null;
	f->yes = a->yes && !b->yes;
	f->no = a->no && !b->no;
	f->exponent = a->exponent && b->number.expr == REGEX_NONE && !b->number.n;
	not = words_not(s, &b->number, true);
	f->number = words_and(s, &a->number, &not, true);
	not = words_not(s, &b->string, false);
	f->string = words_and(s, &a->string, &not, false);
	for (uint32_t i = 0; i < a->n_arrays; i++)
		add_shape(s, &arrays, (void *)(uintptr_t)a->array[i]);
	for (uint32_t i = 0; i < a->n_objects; i++)
		add_shape(s, &objects, a->object[i]);
	for (uint32_t i = 0; i < b->n_arrays; i++)
		arrays_minus(s, &arrays, b->array[i]);
	for (uint32_t i = 0; i < b->n_objects; i++)
		objects_minus(s, &objects, b->object[i]);
	set_arrays(f, &arrays);
	set_objects(f, &objects);
	return f;
}

/* ---- emptiness ---- */

static bool array_empty(struct schema *s, const struct array_form *a, unsigned depth)
{
	if (a->min > a->max)
		return true;
	for (uint32_t i = 0; i < a->n && i < a->min; i++)
		if (term_empty(s, a->prefix[i], depth))
			return true;
	return a->min > a->n && term_empty(s, a->rest, depth);
}

static bool object_empty(struct schema *s, const struct object_form *o, unsigned depth)
{
	if (o->min > o->max)
		return true;
	for (uint32_t i = 0; i < o->n; i++)
		if (o->property[i].required && term_empty(s, o->property[i].term, depth))
			return true;
	return false;
}

bool form_empty(struct schema *s, const struct form *f, unsigned depth)
{
	if (f->null || f->yes || f->no || f->number.n || f->string.n || !expr_empty(s, f->number.expr) ||
	    !expr_empty(s, f->string.expr))
		return false;
	for (uint32_t i = 0; i < f->n_arrays; i++)
		if (!array_empty(s, f->array[i], depth))
			return false;
	for (uint32_t i = 0; i < f->n_objects; i++)
		if (!object_empty(s, f->object[i], depth))
			return false;
	return true;
}

/* ---- a constant ---- */

static const struct form *array_value(struct schema *s, json_t *json)
{
	struct array_form **list = schema_take(s, 1, sizeof(*list)), *a = array_any(s);
	uint32_t *prefix = schema_take(s, json_array_size(json) + 1, sizeof(*prefix));
	json_t *v;
	size_t i;

	json_array_foreach(json, i, v)
		prefix[i] = term_value(s, v);
	a->n = (uint32_t)json_array_size(json);
	a->prefix = prefix;
	a->min = a->max = a->n;
	list[0] = a;
	return form_arrays(s, list, 1, false);
}

static const struct form *object_of_value(struct schema *s, json_t *json)
{
	struct object_form **list = schema_take(s, 1, sizeof(*list)), *o = object_any(s);
	struct property *p = schema_take(s, json_object_size(json) + 1, sizeof(*p));
	struct keys *keys = schema_take(s, 1, sizeof(*keys));
	const char *key;
	json_t *v;

	json_object_foreach(json, key, v)
		p[o->n++] = (struct property){ { key, strlen(key), false }, term_value(s, v), true, false };
	keys[0] = (struct keys){ s->all_strings, TERM_NONE, false };
	o->property = p;
	o->keys = keys;
	list[0] = o;
	return form_objects(s, list, 1, false);
}

const struct form *form_value(struct schema *s, json_t *json)
{
	struct form *f;
	struct word *w;

	if (json_is_array(json))
		return array_value(s, json);
	if (json_is_object(json))
		return object_of_value(s, json);
	f = form_none(s);
	f->null = json_is_null(json);
	f->yes = json_is_true(json);
	f->no = json_is_false(json);
	if (json_is_string(json) || json_is_number(json)) {
		w = schema_take(s, 1, sizeof(*w));
		*w = word_of(s, json);
		*(json_is_string(json) ? &f->string : &f->number) = (struct words){ REGEX_NONE, 1, w };
	}
	return f;
}
