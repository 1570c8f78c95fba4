/* template/value.c - the values of a rendering: equality, order, contents.  (template/print.c prints them.)
 * They act as in Python, as far as a chat template can see a difference.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "impl.h"
#include "adapters/text/unicode/utf8.h"

struct value v_str(struct str s)
{
	return (struct value){ .t = V_STR, .u.s = s };
}

struct value v_like(struct value v, struct str s)
{
	return (struct value){ .t = V_STR, .markup = v.t == V_STR && v.markup, .u.s = s };
}

struct value v_iter(struct value_list *l)
{
	return (struct value){ .t = V_ITER, .u.list = l };
}

struct value v_int(int64_t i)
{
	return (struct value){ .t = V_INT, .u.i = i };
}

struct value v_bool(bool b)
{
	return (struct value){ .t = V_BOOL, .u.b = b };
}

struct value v_none(void)
{
	return (struct value){ .t = V_NONE };
}

struct value v_undefined(struct render *r, const char *fmt, ...)
{
	struct value v = { .t = V_UNDEFINED };
	char *s = arena_alloc(&r->mem, 160);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(s, 160, fmt, ap);
	va_end(ap);
	v.u.s = (struct str){ s, strlen(s) };
	return v;
}

struct value v_list(struct render *r, size_t n)
{
	struct value v = { .t = V_LIST };

	spend(r, n / 16);
	if (n > SIZE_MAX / sizeof(struct value) / 2)
		fail(r, "a list cannot have %zu items", n);
	v.u.list = arena_alloc(&r->mem, sizeof(*v.u.list));
	v.u.list->n = n;
	v.u.list->v = arena_alloc(&r->mem, n * sizeof(struct value));
	return v;
}

/* ---- dictionaries ---------------------------------------------------------------------------- */

#define FEW 8                    /* up to 8 pairs are searched one by one */

bool as_number(struct value v, double *out)
{
	switch (v.t) {
	case V_BOOL:  *out = v.u.b; return true;
	case V_INT:   *out = (double)v.u.i; return true;
	case V_FLOAT: *out = v.u.f; return true;
	default:      return false;
	}
}

static uint32_t value_hash(struct value v)
{
	uint64_t h = 0xcbf29ce484222325u;
	double d;

	if (as_number(v, &d)) {
		d += 0.0;                        /* -0 is 0 */
		memcpy(&h, &d, 8);
	} else if (v.t == V_STR) {
		for (size_t i = 0; i < v.u.s.n; i++)
			h = (h ^ (uint8_t)v.u.s.s[i]) * 0x100000001b3u;
	}
	h *= 0x9e3779b97f4a7c15u;
	return (uint32_t)(h >> 32);
}

static void index_put(struct dict *d, size_t at)
{
	uint32_t i = value_hash(d->p[at].k) & d->mask;

	while (d->index[i])
		i = (i + 1) & d->mask;
	d->index[i] = (uint32_t)at + 1;
}

static void index_all(struct render *r, struct dict *d)
{
	uint32_t size = 4 * FEW;

	while (size < d->cap * 2)
		size *= 2;
	d->index = arena_alloc(&r->mem, size * sizeof(*d->index));
	d->mask = size - 1;
	for (size_t i = 0; i < d->n; i++)
		index_put(d, i);
}

struct value *dict_get(struct render *r, const struct dict *d, struct value key)
{
	if (!d->index) {
		for (size_t i = 0; i < d->n; i++)
			if (equal(r, d->p[i].k, key))
				return &d->p[i].v;
		return NULL;
	}
	for (uint32_t i = value_hash(key) & d->mask; d->index[i]; i = (i + 1) & d->mask) {
		struct pair *p = &d->p[d->index[i] - 1];

		spend(r, 1);
		if (equal(r, p->k, key))
			return &p->v;
	}
	return NULL;
}

void dict_set(struct render *r, struct dict *d, struct value key, struct value v)
{
	struct value *old = dict_get(r, d, key);

	if (old) {
		*old = v;
		return;
	}
	if (key.t > V_STR)
		fail(r, "unhashable type: '%s'", type_name(key));
	if (d->n == d->cap) {
		size_t cap = d->cap ? 2 * d->cap : FEW;
		struct pair *p = arena_alloc(&r->mem, cap * sizeof(*p));

		if (d->n)
			memcpy(p, d->p, d->n * sizeof(*p));
		d->p = p;
		d->cap = cap;
		d->p[d->n++] = (struct pair){ key, v };
		if (cap > FEW)
			index_all(r, d);
		return;
	}
	d->p[d->n++] = (struct pair){ key, v };
	if (d->index)
		index_put(d, d->n - 1);
}

struct value v_dict(struct render *r)
{
	struct value v = { .t = V_DICT };

	v.u.dict = arena_alloc(&r->mem, sizeof(*v.u.dict));
	return v;
}

struct value v_from_json(struct render *r, const json_t *j)
{
	struct value v = { .t = V_NONE };
	const char *key;
	json_t *item;
	size_t i, n;

	enter(r);
	switch (json_typeof(j)) {
	case JSON_OBJECT:
		v = v_dict(r);
		/* jansson's macro needs a non-const table, but does not write to it */
		json_object_keylen_foreach((json_t *)(uintptr_t)j, key, n, item)
			dict_set(r, v.u.dict, v_str((struct str){ key, n }), v_from_json(r, item));
		break;
	case JSON_ARRAY:
		v = v_list(r, json_array_size(j));
		json_array_foreach(j, i, item)
			v.u.list->v[i] = v_from_json(r, item);
		break;
	case JSON_STRING:
		v = v_str((struct str){ json_string_value(j), json_string_length(j) });
		break;
	case JSON_INTEGER:
		v = v_int(json_integer_value(j));
		break;
	case JSON_REAL:
		v = (struct value){ .t = V_FLOAT, .u.f = json_real_value(j) };
		break;
	case JSON_TRUE:
	case JSON_FALSE:
		v = v_bool(json_is_true(j));
		break;
	case JSON_NULL:
		break;
	}
	leave(r);
	return v;
}

/* ---- questions ------------------------------------------------------------------------------- */

const char *type_name(struct value v)
{
	static const char *const names[] = {
		[V_UNDEFINED] = "Undefined", [V_NONE] = "NoneType", [V_BOOL] = "bool", [V_INT] = "int",
		[V_FLOAT] = "float", [V_STR] = "str", [V_LIST] = "list", [V_TUPLE] = "tuple", [V_DICT] = "dict",
		[V_NAMESPACE] = "Namespace", [V_MACRO] = "Macro", [V_METHOD] = "method",
		[V_GLOBAL] = "function", [V_LOOP] = "LoopContext", [V_ITER] = "generator",
	};

	return v.t == V_STR && v.markup ? "Markup" : names[v.t];
}

bool truth(struct value v)
{
	switch (v.t) {
	case V_UNDEFINED:
	case V_NONE:  return false;
	case V_BOOL:  return v.u.b;
	case V_INT:   return v.u.i != 0;
	case V_FLOAT: return v.u.f != 0;
	case V_STR:   return v.u.s.n != 0;
	case V_LIST:
	case V_TUPLE: return v.u.list->n != 0;
	case V_DICT:  return v.u.dict->n != 0;
	default:      return true;
	}
}

static bool equal_inside(struct render *r, struct value a, struct value b)
{
	const struct dict *d = a.u.dict;
	struct value *other;

	if (a.t != V_DICT) {
		if (a.u.list->n != b.u.list->n)
			return false;
		for (size_t i = 0; i < a.u.list->n; i++) {
			spend(r, 1);
			if (!equal(r, a.u.list->v[i], b.u.list->v[i]))
				return false;
		}
		return true;
	}
	if (d->n != b.u.dict->n)
		return false;
	for (size_t i = 0; i < d->n; i++) {
		spend(r, 1);
		other = dict_get(r, b.u.dict, d->p[i].k);
		if (!other || !equal(r, d->p[i].v, *other))
			return false;
	}
	return true;
}

bool equal(struct render *r, struct value a, struct value b)
{
	bool same;
	double x, y;

	if (a.t == V_INT && b.t == V_INT)
		return a.u.i == b.u.i;
	if (as_number(a, &x) && as_number(b, &y))
		return x == y;
	if (a.t != b.t)
		return false;
	switch (a.t) {
	case V_STR:
		spend(r, a.u.s.n / 64);
		return str_eq(a.u.s, b.u.s);
	case V_LIST:
	case V_TUPLE:
	case V_DICT:
		enter(r);
		same = equal_inside(r, a, b);
		leave(r);
		return same;
	case V_UNDEFINED:
	case V_NONE:
		return true;
	default:
		return a.u.dict == b.u.dict;     /* equal only to itself */
	}
}

int order(struct render *r, struct value a, struct value b)
{
	double x, y;
	size_t n;
	int d;

	if (a.t == V_UNDEFINED || b.t == V_UNDEFINED)
		fail(r, "%s", a.t == V_UNDEFINED ? a.u.s.s : b.u.s.s);
	if (a.t == V_INT && b.t == V_INT)
		return (a.u.i > b.u.i) - (a.u.i < b.u.i);
	if (as_number(a, &x) && as_number(b, &y))
		return (x > y) - (x < y);
	if (a.t == V_STR && b.t == V_STR) {
		n = a.u.s.n < b.u.s.n ? a.u.s.n : b.u.s.n;
		spend(r, n / 64);
		d = n ? memcmp(a.u.s.s, b.u.s.s, n) : 0;   /* UTF-8 sorts like its code points */
		return d ? d : (a.u.s.n > b.u.s.n) - (a.u.s.n < b.u.s.n);
	}
	if (a.t != b.t || (a.t != V_LIST && a.t != V_TUPLE))
		fail(r, "'%s' and '%s' cannot be ordered", type_name(a), type_name(b));
	enter(r);
	for (size_t i = 0;; i++) {
		if (i == a.u.list->n || i == b.u.list->n) {
			d = (a.u.list->n > i) - (b.u.list->n > i);
			break;
		}
		if (!equal(r, a.u.list->v[i], b.u.list->v[i])) {
			d = order(r, a.u.list->v[i], b.u.list->v[i]);
			break;
		}
	}
	leave(r);
	return d;
}

bool contains(struct render *r, struct value in, struct value item)
{
	switch (in.t) {
	case V_STR:
		if (item.t != V_STR)
			fail(r, "'in <string>' requires string as left operand, not %s", type_name(item));
		spend(r, in.u.s.n / 16);
		return !item.u.s.n || memmem(in.u.s.s, in.u.s.n, item.u.s.s, item.u.s.n);
	case V_DICT:
		return dict_get(r, in.u.dict, item);
	case V_LIST:
	case V_TUPLE:
		for (size_t i = 0; i < in.u.list->n; i++) {
			spend(r, 1);
			if (equal(r, in.u.list->v[i], item))
				return true;
		}
		return false;
	case V_ITER:                             /* consumed up to the item that is equal */
		while (in.u.list->n) {
			in.u.list->n--;
			if (equal(r, *in.u.list->v++, item))
				return true;
		}
		return false;
	case V_UNDEFINED:
		return false;
	default:
		fail(r, "argument of type '%s' is not iterable", type_name(in));
	}
}

/* ---- what lies inside ------------------------------------------------------------------------ */

size_t str_length(struct str s)
{
	size_t n = 0;

	for (size_t i = 0; i < s.n; i++)
		n += ((uint8_t)s.s[i] & 0xc0) != 0x80;
	return n;
}

/* Byte offset of a character. */
static size_t offset(struct str s, size_t at)
{
	size_t i = 0;

	for (; i < s.n && at; at--)
		for (i++; i < s.n && ((uint8_t)s.s[i] & 0xc0) == 0x80; i++)
			;
	return i;
}

struct value_list *to_list(struct render *r, struct value v)
{
	struct value out;

	switch (v.t) {
	case V_LIST:
	case V_TUPLE:
		return v.u.list;
	case V_ITER:                             /* consumed: it gives no more items */
		out = v_list(r, 0);
		*out.u.list = *v.u.list;
		v.u.list->n = 0;
		return out.u.list;
	case V_DICT:
		out = v_list(r, v.u.dict->n);
		for (size_t i = 0; i < v.u.dict->n; i++)
			out.u.list->v[i] = v.u.dict->p[i].k;
		return out.u.list;
	case V_STR:
		return str_chars(r, v.u.s);
	case V_UNDEFINED:
		return v_list(r, 0).u.list;
	default:
		fail(r, "'%s' object is not iterable", type_name(v));
	}
}

static struct value item_at(struct render *r, struct value v, int64_t i)
{
	size_t n, from;

	if (v.t == V_STR) {
		spend(r, v.u.s.n / 64);
		n = str_length(v.u.s);
	} else {
		n = v.u.list->n;
	}
	if (i < 0)
		i += (int64_t)n;
	if (i < 0 || i >= (int64_t)n)
		return v_undefined(r, "%s object has no element %" PRId64, type_name(v), i);
	if (v.t != V_STR)
		return v.u.list->v[i];
	from = offset(v.u.s, (size_t)i);
	v.u.s.s += from;
	v.u.s.n -= from;
	v.u.s.n = offset(v.u.s, 1);
	return v;
}

struct value get_item(struct render *r, struct value v, struct value key)
{
	struct value *found;

	if (v.t == V_UNDEFINED)
		fail(r, "%s", v.u.s.s);
	if (v.t == V_DICT) {
		found = dict_get(r, v.u.dict, key);
		if (found)
			return *found;
	}
	if ((v.t == V_LIST || v.t == V_TUPLE || v.t == V_STR) && (key.t == V_INT || key.t == V_BOOL))
		return item_at(r, v, key.t == V_INT ? key.u.i : key.u.b);
	if (key.t == V_STR && v.t == V_DICT)
		return v_undefined(r, "'dict object' has no attribute '%.*s'",
		                   key.u.s.n > 60 ? 60 : (int)key.u.s.n, key.u.s.s);
	if (key.t == V_STR)
		return get_attr(r, v, key.u.s);
	return v_undefined(r, "'%s' object has no element '%.60s'", type_name(v), to_str(r, key).s);
}

struct value get_slice(struct render *r, struct value v, struct value from, struct value to,
                       struct value step)
{
	int64_t n, a, b, d = step.t == V_INT ? step.u.i : 1;
	struct value out;
	struct value_list *l;
	struct string_builder t = { .r = r };
	size_t k = 0;

	if (v.t == V_UNDEFINED)
		fail(r, "%s", v.u.s.s);
	if (v.t != V_STR && v.t != V_LIST && v.t != V_TUPLE)
		fail(r, "'%s' object cannot be sliced", type_name(v));
	if (!d || d > INT32_MAX || d < INT32_MIN)
		fail(r, "a slice's step is %" PRId64, d);
	n = (int64_t)(v.t == V_STR ? str_length(v.u.s) : v.u.list->n);
	a = from.t == V_INT ? from.u.i : d > 0 ? 0 : n - 1;
	b = to.t == V_INT ? to.u.i : d > 0 ? n : -n - 1;
	a = a < 0 ? a + n : a;
	b = b < 0 ? b + n : b;
	if (d > 0) {
		a = a < 0 ? 0 : a;
		b = b > n ? n : b;
	} else {
		a = a >= n ? n - 1 : a;
		b = b < -1 ? -1 : b;
	}
	if (v.t == V_STR && d == 1) {            /* without a list of its characters */
		size_t i = offset(v.u.s, (size_t)(a < n ? a : n)), j = b > a ? offset(v.u.s, (size_t)b) : i;

		spend(r, v.u.s.n / 64);
		return v_like(v, (struct str){ v.u.s.s + i, j - i });
	}
	l = v.t == V_STR ? str_chars(r, v.u.s) : v.u.list;
	n = d > 0 ? b > a ? (b - a + d - 1) / d : 0 : a > b ? (a - b - d - 1) / -d : 0;
	out = v_list(r, (size_t)n);
	for (; (int64_t)k < n; k++, a += d)
		out.u.list->v[k] = l->v[a];
	if (v.t != V_STR) {
		out.t = v.t;
		return out;
	}
	builder_put(&t, STR(""));
	for (size_t i = 0; i < k; i++)
		builder_put(&t, out.u.list->v[i].u.s);
	return v_like(v, (struct str){ t.s, t.n });
}
