/* template/filters.c - filters (after "|") and tests (after "is").
 *
 * Each is a row of a table.  A filter treats missing and undefined values as in Jinja2, and keeps those of
 * its error messages that users know.
 */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "impl.h"

struct filter { const char *name; struct value (*call)(struct render *r, struct value v, struct args *a); };
struct test { const char *name; bool (*call)(struct render *r, struct value v, struct args *a); };

static struct value must(struct render *r, struct args *a, size_t i, const char *name)
{
	struct value *v = arg(a, i, name);

	if (!v)
		fail(r, "missing argument '%s'", name);
	return *v;
}

static int64_t integer(struct render *r, const struct value *v, int64_t otherwise)
{
	if (!v || v->t == V_NONE)
		return otherwise;
	if (v->t != V_INT && v->t != V_BOOL)
		fail(r, "an integer is required, got '%s'", type_name(*v));
	return v->t == V_INT ? v->u.i : v->u.b;
}

/* Follow "a.b" or "0" or an integer, part by part.  If a part is missing, the result is undefined. */
static struct value dotted(struct render *r, struct value v, struct value path)
{
	struct value_list *parts;
	struct str dot = STR("."), s;
	struct value key;

	if (path.t != V_STR)
		return get_item(r, v, path);
	parts = str_split(r, path.u.s, &dot, -1, false);
	for (size_t i = 0; i < parts->n && v.t != V_UNDEFINED; i++) {
		s = parts->v[i].u.s;
		key = parts->v[i];
		if (s.n && s.n < 10 && strspn(s.s, "0123456789") >= s.n)
			key = v_int(atoi(s.s));
		v = get_item(r, v, key);
	}
	return v;
}

/* ---- text ------------------------------------------------------------------------------------ */

static struct value f_trim(struct render *r, struct value v, struct args *a)
{
	struct value *chars = arg(a, 0, "chars");

	if (chars && chars->t == V_STR)
		return v_like(v, str_strip(r, to_str(r, v), chars->u.s, false, 3));
	return v_like(v, str_strip(r, to_str(r, v), STR(""), true, 3));
}

static struct value f_upper(struct render *r, struct value v, struct args *a)
{
	(void)a;
	return v_like(v, str_case(r, to_str(r, v), 'u'));
}

static struct value f_lower(struct render *r, struct value v, struct args *a)
{
	(void)a;
	return v_like(v, str_case(r, to_str(r, v), 'l'));
}

static struct value f_capitalize(struct render *r, struct value v, struct args *a)
{
	(void)a;
	return v_like(v, str_case(r, to_str(r, v), 'c'));
}

static struct value f_title(struct render *r, struct value v, struct args *a)
{
	(void)a;
	return v_str(str_case(r, to_str(r, v), 'w'));
}

static struct value f_string(struct render *r, struct value v, struct args *a)
{
	(void)a;
	return v_like(v, to_str(r, v));
}

static struct value f_replace(struct render *r, struct value v, struct args *a)
{
	struct str from = to_str(r, must(r, a, 0, "old")), to = to_str(r, must(r, a, 1, "new"));

	return v_str(str_replace(r, to_str(r, v), from, to, integer(r, arg(a, 2, "count"), -1)));
}

static struct value f_tojson(struct render *r, struct value v, struct args *a)
{
	return v_str(to_json(r, v, a));
}

static struct value markup(struct str s)
{
	return (struct value){ .t = V_STR, .markup = true, .u.s = s };
}

static struct value f_escape(struct render *r, struct value v, struct args *a)
{
	(void)a;
	return markup(str_escape(r, v));
}

static struct value f_forceescape(struct render *r, struct value v, struct args *a)
{
	(void)a;
	return markup(str_escape(r, v_str(to_str(r, v))));
}

static struct value f_safe(struct render *r, struct value v, struct args *a)
{
	(void)a;
	return markup(to_str(r, v));
}

/* "%s and %s" | format(a, b), or by name: "%(x)s" | format(x=a). */
static struct value f_format(struct render *r, struct value v, struct args *a)
{
	struct value_list all = { a->n, a->v };
	struct value args = { .t = V_TUPLE, .u.list = &all };

	if (a->n && a->n_named)
		fail(r, "format takes arguments by position or by name, not both");
	if (a->n_named) {
		args = v_dict(r);
		for (size_t i = 0; i < a->n_named; i++)
			dict_set(r, args.u.dict, v_str(a->named[i].name), a->named[i].v);
	}
	return str_percent(r, v_like(v, to_str(r, v)), args);
}

static struct value f_indent(struct render *r, struct value v, struct args *a)
{
	struct value *width = arg(a, 0, "width"), *first = arg(a, 1, "first"), *blank = arg(a, 2, "blank");
	struct str s = to_str(r, v), pad = STR("    ");
	struct string_builder t = { .r = r }, spaces = { .r = r };
	struct value_list *lines = str_lines(r, s);
	bool ends = s.n && s.s[s.n - 1] == '\n';

	if (width && width->t == V_STR) {
		pad = width->u.s;
	} else if (width) {
		int64_t n = integer(r, width, 4);

		spend(r, n > 0 ? (uint64_t)n : 0);
		builder_put(&spaces, STR(""));
		while (n-- > 0)
			builder_char(&spaces, ' ');
		pad = (struct str){ spaces.s, spaces.n };
	}
	builder_put(&t, STR(""));
	for (size_t i = 0; i < lines->n; i++) {
		bool padded = i ? lines->v[i].u.s.n || (blank && truth(*blank)) : first && truth(*first);

		if (i)
			builder_char(&t, '\n');
		if (padded)
			builder_put(&t, pad);
		builder_put(&t, lines->v[i].u.s);
	}
	if (ends) {
		builder_char(&t, '\n');
		if (blank && truth(*blank))
			builder_put(&t, pad);
	}
	return v_like(v, (struct str){ t.s, t.n });
}

static struct value f_wordcount(struct render *r, struct value v, struct args *a)
{
	(void)a;
	return v_int((int64_t)str_split(r, to_str(r, v), NULL, -1, false)->n);
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* A string that is a number and nothing else. */
static bool parse_number(struct render *r, struct value v, double *out)
{
	struct str s;
	char buf[64], *end;

	if (as_number(v, out))
		return true;
	if (v.t != V_STR)
		return false;
	s = str_strip(r, v.u.s, STR(""), true, 3);
	if (!s.n || s.n >= sizeof(buf))
		return false;
	spend(r, 1);
	memcpy(buf, s.s, s.n);
	buf[s.n] = 0;
	*out = strtod(buf, &end);
	return !*end && !strpbrk(buf, "xXpP");
}

static struct value f_int(struct render *r, struct value v, struct args *a)
{
	struct value *otherwise = arg(a, 0, "default");
	double d;

	if (v.t == V_INT)
		return v;
	if (!parse_number(r, v, &d) || isnan(d) || fabs(d) > 9e18)
		return otherwise ? *otherwise : v_int(0);
	return v_int((int64_t)d);
}

static struct value f_float(struct render *r, struct value v, struct args *a)
{
	struct value *otherwise = arg(a, 0, "default"), f = { .t = V_FLOAT };

	if (!parse_number(r, v, &f.u.f))
		return otherwise ? *otherwise : f;
	return f;
}

static struct value f_abs(struct render *r, struct value v, struct args *a)
{
	double d;

	(void)a;
	if (!as_number(v, &d))
		fail(r, "bad operand type for abs(): '%s'", type_name(v));
	if (v.t == V_FLOAT)
		v.u.f = fabs(d);
	else if (v.t == V_INT && v.u.i < 0 && v.u.i != INT64_MIN)
		v.u.i = -v.u.i;
	return v;
}

static struct value f_round(struct render *r, struct value v, struct args *a)
{
	int64_t digits = integer(r, arg(a, 0, "precision"), 0);
	struct value *method = arg(a, 1, "method"), out = { .t = V_FLOAT };
	char buf[400];
	double d, scale;

	if (!as_number(v, &d))
		fail(r, "a number is required, got '%s'", type_name(v));
	if (digits < 0 || digits > 30)
		fail(r, "round to %lld digits is not supported", (long long)digits);
	scale = pow(10, (double)digits);
	if (method && method->t == V_STR && str_is(method->u.s, "ceil"))
		out.u.f = ceil(d * scale) / scale;
	else if (method && method->t == V_STR && str_is(method->u.s, "floor"))
		out.u.f = floor(d * scale) / scale;
	else {
		snprintf(buf, sizeof(buf), "%.*f", (int)digits, d);
		out.u.f = strtod(buf, NULL);
	}
	return out;
}

/* ---- lists ----------------------------------------------------------------------------------- */

static struct value f_length(struct render *r, struct value v, struct args *a)
{
	(void)a;
	switch (v.t) {
	case V_STR:
		spend(r, v.u.s.n / 64);
		return v_int((int64_t)str_length(v.u.s));
	case V_LIST:
	case V_TUPLE:
		return v_int((int64_t)v.u.list->n);
	case V_DICT:
		return v_int((int64_t)v.u.dict->n);
	case V_UNDEFINED:
		return v_int(0);
	default:
		fail(r, "object of type '%s' has no len()", type_name(v));
	}
}

static struct value as_list(struct value_list *l)
{
	return (struct value){ .t = V_LIST, .u.list = l };
}

static struct value f_list(struct render *r, struct value v, struct args *a)
{
	(void)a;
	return as_list(to_list(r, v));
}

static struct value f_first(struct render *r, struct value v, struct args *a)
{
	struct value_list *l = v.t == V_ITER ? v.u.list : to_list(r, v);

	if (v.t == V_ITER && l->n) {             /* consumes one item */
		l->n--;
		return *l->v++;
	}

	(void)a;
	return l->n ? l->v[0] : v_undefined(r, "No first item, sequence was empty.");
}

static struct value f_last(struct render *r, struct value v, struct args *a)
{
	struct value_list *l = v.t == V_ITER ? NULL : to_list(r, v);

	(void)a;
	if (!l)
		fail(r, "'%s' object is not reversible", type_name(v));
	return l->n ? l->v[l->n - 1] : v_undefined(r, "No last item, sequence was empty.");
}

static struct value f_join(struct render *r, struct value v, struct args *a)
{
	struct value *sep = arg(a, 0, "d"), *attribute = arg(a, 1, "attribute");
	struct str between = sep ? to_str(r, *sep) : STR("");
	struct value_list *l = to_list(r, v);
	struct string_builder t = { .r = r };

	builder_put(&t, STR(""));
	for (size_t i = 0; i < l->n; i++) {
		if (i)
			builder_put(&t, between);
		builder_put(&t, to_str(r, attribute ? dotted(r, l->v[i], *attribute) : l->v[i]));
	}
	return v_str((struct str){ t.s, t.n });
}

static struct value f_items(struct render *r, struct value v, struct args *a)
{
	struct value out, pair;

	(void)a;
	if (v.t == V_UNDEFINED)
		return v_iter(v_list(r, 0).u.list);
	if (v.t != V_DICT)
		fail(r, "Can only get item pairs from a mapping.");
	out = v_list(r, v.u.dict->n);
	for (size_t i = 0; i < v.u.dict->n; i++) {
		pair = v_list(r, 2);
		pair.t = V_TUPLE;
		pair.u.list->v[0] = v.u.dict->p[i].k;
		pair.u.list->v[1] = v.u.dict->p[i].v;
		out.u.list->v[i] = pair;
	}
	return v_iter(out.u.list);
}

static struct value f_reverse(struct render *r, struct value v, struct args *a)
{
	struct value out;

	if (v.t == V_STR)
		return get_slice(r, v, v_none(), v_none(), v_int(-1));
	(void)a;
	out = get_slice(r, as_list(to_list(r, v)), v_none(), v_none(), v_int(-1));
	return v.t == V_ITER ? out : v_iter(out.u.list);
}

static struct value sort_key(struct render *r, struct value v, struct value *attribute, bool cased)
{
	if (attribute && attribute->t != V_NONE)
		v = dotted(r, v, *attribute);
	return !cased && v.t == V_STR ? v_str(str_case(r, v.u.s, 'l')) : v;
}

struct keyed { struct value key, v; };

/* A stable merge sort of v; tmp has the same length. */
static void merge_sort(struct render *r, struct keyed *v, struct keyed *tmp, size_t n, bool down)
{
	size_t half = n / 2, i = 0, j = half, k = 0;

	if (n < 2)
		return;
	merge_sort(r, v, tmp, half, down);
	merge_sort(r, v + half, tmp, n - half, down);
	spend(r, n);
	while (i < half && j < n) {
		int d = order(r, v[j].key, v[i].key);

		tmp[k++] = (down ? d > 0 : d < 0) ? v[j++] : v[i++];
	}
	while (i < half)
		tmp[k++] = v[i++];
	memcpy(v, tmp, k * sizeof(*v));
}

static struct value sorted(struct render *r, struct value_list *l, struct value *attribute, bool cased,
                           bool down)
{
	struct keyed *v = arena_alloc(&r->mem, 2 * l->n * sizeof(*v));
	struct value out = v_list(r, l->n);

	for (size_t i = 0; i < l->n; i++)
		v[i] = (struct keyed){ sort_key(r, l->v[i], attribute, cased), l->v[i] };
	merge_sort(r, v, v + l->n, l->n, down);
	for (size_t i = 0; i < l->n; i++)
		out.u.list->v[i] = v[i].v;
	return out;
}

static struct value f_sort(struct render *r, struct value v, struct args *a)
{
	struct value *down = arg(a, 0, "reverse"), *cased = arg(a, 1, "case_sensitive");

	return sorted(r, to_list(r, v), arg(a, 2, "attribute"), cased && truth(*cased), down && truth(*down));
}

static struct value f_dictsort(struct render *r, struct value v, struct args *a)
{
	struct value *cased = arg(a, 0, "case_sensitive"), *by = arg(a, 1, "by"), *down = arg(a, 2, "reverse");
	struct value at = v_int(by && by->t == V_STR && str_is(by->u.s, "value"));

	return sorted(r, f_items(r, v, a).u.list, &at, cased && truth(*cased), down && truth(*down));
}

static struct value f_unique(struct render *r, struct value v, struct args *a)
{
	struct value *cased = arg(a, 0, "case_sensitive"), *attribute = arg(a, 1, "attribute");
	struct value seen = v_dict(r), out, key;
	struct value_list *l = to_list(r, v);
	size_t k = 0;

	out = v_list(r, l->n);
	for (size_t i = 0; i < l->n; i++) {
		key = sort_key(r, l->v[i], attribute, cased && truth(*cased));
		if (dict_get(r, seen.u.dict, key))
			continue;
		dict_set(r, seen.u.dict, key, v_bool(true));
		out.u.list->v[k++] = l->v[i];
	}
	out.u.list->n = k;
	return v_iter(out.u.list);
}

static struct value extreme(struct render *r, struct value v, struct args *a, int sign)
{
	struct value *cased = arg(a, 0, "case_sensitive"), *attribute = arg(a, 1, "attribute");
	struct value_list *l = to_list(r, v);
	bool c = cased && truth(*cased);
	size_t best = 0;

	if (!l->n)
		return v_undefined(r, "No aggregated item, sequence was empty.");
	for (size_t i = 1; i < l->n; i++)
		if (sign * order(r, sort_key(r, l->v[i], attribute, c), sort_key(r, l->v[best], attribute, c)) > 0)
			best = i;
	return l->v[best];
}

static struct value f_min(struct render *r, struct value v, struct args *a)
{
	return extreme(r, v, a, -1);
}

static struct value f_max(struct render *r, struct value v, struct args *a)
{
	return extreme(r, v, a, 1);
}

static struct value f_sum(struct render *r, struct value v, struct args *a)
{
	struct value *attribute = arg(a, 0, "attribute"), *start = arg(a, 1, "start"), item;
	struct value total = start ? *start : v_int(0);
	struct value_list *l = to_list(r, v);
	double x, y;

	for (size_t i = 0; i < l->n; i++) {
		item = attribute && attribute->t != V_NONE ? dotted(r, l->v[i], *attribute) : l->v[i];
		if (!as_number(total, &x) || !as_number(item, &y))
			fail(r, "'%s' and '%s' cannot be added", type_name(total), type_name(item));
		if (total.t == V_FLOAT || item.t == V_FLOAT)
			total = (struct value){ .t = V_FLOAT, .u.f = x + y };
		else if (__builtin_add_overflow(total.t == V_INT ? total.u.i : total.u.b,
		                                item.t == V_INT ? item.u.i : item.u.b, &total.u.i))
			fail(r, "the sum does not fit in 64 bits");
		else
			total.t = V_INT;
	}
	return total;
}

static struct value f_default(struct render *r, struct value v, struct args *a)
{
	struct value *otherwise = arg(a, 0, "default_value"), *boolean = arg(a, 1, "boolean");

	(void)r;
	if (v.t != V_UNDEFINED && !(boolean && truth(*boolean) && !truth(v)))
		return v;
	return otherwise ? *otherwise : v_str(STR(""));
}

static struct value f_attr(struct render *r, struct value v, struct args *a)
{
	return get_attr(r, v, to_str(r, must(r, a, 0, "name")));
}

/* The items for map, select and similar filters; none if v is false, also for none. */
static struct value_list *if_any(struct render *r, struct value v)
{
	return truth(v) ? to_list(r, v) : v_list(r, 0).u.list;
}

/* map(attribute='x', default=y) or map('filter', arguments..) */
static struct value f_map(struct render *r, struct value v, struct args *a)
{
	struct value_list *l = if_any(r, v);
	struct value out = v_list(r, l->n), name, item;
	struct value *attribute = a->n ? NULL : arg(a, 0, "attribute"), *otherwise = arg(a, 1, "default");
	struct args rest = *a;
	const struct filter *f = NULL;

	if (!attribute) {
		name = must(r, a, 0, "attribute");
		f = name.t == V_STR ? filter_find(name.u.s) : NULL;
		if (!f)
			fail(r, "map: there is no filter named '%.60s'", to_str(r, name).s);
		rest.n--;
		rest.v++;
	}
	for (size_t i = 0; i < l->n; i++) {
		item = l->v[i];
		if (f) {
			item = filter_call(r, f, item, &rest);
		} else {
			item = dotted(r, item, *attribute);
			if (item.t == V_UNDEFINED && otherwise)
				item = *otherwise;
		}
		out.u.list->v[i] = item;
	}
	return v_iter(out.u.list);
}

/* select, reject: [test, arguments..]; selectattr, rejectattr: attribute, [test, arguments..] */
static struct value chosen(struct render *r, struct value v, struct args *a, bool attr, bool keep)
{
	struct value_list *l = if_any(r, v);
	struct value out = v_list(r, l->n), item;
	struct args rest = *a;
	const struct test *t = NULL;
	size_t k = 0, skip = attr;
	bool yes;

	if (attr)
		must(r, a, 0, "attribute");
	if (a->n > skip) {
		item = a->v[skip];
		t = item.t == V_STR ? test_find(item.u.s) : NULL;
		if (!t)
			fail(r, "there is no test named '%.60s'", to_str(r, item).s);
		skip++;
	}
	rest.n = a->n > skip ? a->n - skip : 0;
	if (rest.n)
		rest.v += skip;
	for (size_t i = 0; i < l->n; i++) {
		spend(r, 1);
		item = attr ? dotted(r, l->v[i], *arg(a, 0, "attribute")) : l->v[i];
		yes = t ? test_call(r, t, item, &rest) : truth(item);
		if (yes == keep)
			out.u.list->v[k++] = l->v[i];
	}
	out.u.list->n = k;
	return v_iter(out.u.list);
}

static struct value f_select(struct render *r, struct value v, struct args *a)
{
	return chosen(r, v, a, false, true);
}

static struct value f_reject(struct render *r, struct value v, struct args *a)
{
	return chosen(r, v, a, false, false);
}

static struct value f_selectattr(struct render *r, struct value v, struct args *a)
{
	return chosen(r, v, a, true, true);
}

static struct value f_rejectattr(struct render *r, struct value v, struct args *a)
{
	return chosen(r, v, a, true, false);
}

static const struct filter filters[] = {
	{ "abs", f_abs }, { "attr", f_attr }, { "capitalize", f_capitalize }, { "count", f_length },
	{ "d", f_default }, { "default", f_default }, { "dictsort", f_dictsort }, { "e", f_escape },
	{ "escape", f_escape }, { "first", f_first }, { "float", f_float },
	{ "forceescape", f_forceescape }, { "format", f_format }, { "indent", f_indent },
	{ "int", f_int }, { "items", f_items }, { "join", f_join }, { "last", f_last },
	{ "length", f_length }, { "list", f_list }, { "lower", f_lower }, { "map", f_map },
	{ "max", f_max }, { "min", f_min }, { "reject", f_reject }, { "rejectattr", f_rejectattr },
	{ "replace", f_replace }, { "reverse", f_reverse }, { "round", f_round }, { "safe", f_safe },
	{ "select", f_select }, { "selectattr", f_selectattr }, { "sort", f_sort }, { "string", f_string },
	{ "sum", f_sum }, { "title", f_title }, { "tojson", f_tojson }, { "trim", f_trim },
	{ "unique", f_unique }, { "upper", f_upper }, { "wordcount", f_wordcount },
};

const struct filter *filter_find(struct str name)
{
	for (size_t i = 0; i < sizeof(filters) / sizeof(*filters); i++)
		if (str_is(name, filters[i].name))
			return &filters[i];
	return NULL;
}

struct value filter_call(struct render *r, const struct filter *f, struct value v, struct args *a)
{
	spend(r, 1);
	return f->call(r, v, a);
}

/* ---- tests ----------------------------------------------------------------------------------- */

#define TEST(name, expr) \
	static bool t_##name(struct render *r, struct value v, struct args *a) \
	{ \
		(void)r; (void)v; (void)a; \
		return expr; \
	}

static int64_t whole_of(struct render *r, struct value v)
{
	return integer(r, &v, 0);
}

static bool divisible(struct render *r, struct value v, struct args *a)
{
	int64_t by = whole_of(r, must(r, a, 0, "num"));

	if (!by)
		fail(r, "division by zero");
	return by == -1 || whole_of(r, v) % by == 0;
}

static bool same_case(struct render *r, struct value v, char how, char other)
{
	struct str s = to_str(r, v);

	return str_eq(str_case(r, s, how), s) && !str_eq(str_case(r, s, other), s);
}

TEST(defined, v.t != V_UNDEFINED)
TEST(undefined, v.t == V_UNDEFINED)
TEST(none, v.t == V_NONE)
TEST(boolean, v.t == V_BOOL)
TEST(true, v.t == V_BOOL && v.u.b)
TEST(false, v.t == V_BOOL && !v.u.b)
TEST(string, v.t == V_STR)
TEST(mapping, v.t == V_DICT)
TEST(number, v.t == V_INT || v.t == V_FLOAT || v.t == V_BOOL)
TEST(integer, v.t == V_INT)
TEST(float, v.t == V_FLOAT)
TEST(sequence, v.t == V_STR || v.t == V_LIST || v.t == V_TUPLE || v.t == V_DICT || v.t == V_UNDEFINED)
TEST(iterable, v.t == V_STR || v.t == V_LIST || v.t == V_TUPLE || v.t == V_DICT || v.t == V_UNDEFINED ||
     v.t == V_ITER)
TEST(callable, v.t == V_MACRO || v.t == V_METHOD || v.t == V_GLOBAL)
TEST(odd, whole_of(r, v) % 2 != 0)
TEST(even, whole_of(r, v) % 2 == 0)
TEST(divisibleby, divisible(r, v, a))
TEST(eq, equal(r, v, must(r, a, 0, "other")))
TEST(ne, !equal(r, v, must(r, a, 0, "other")))
TEST(lt, order(r, v, must(r, a, 0, "other")) < 0)
TEST(le, order(r, v, must(r, a, 0, "other")) <= 0)
TEST(gt, order(r, v, must(r, a, 0, "other")) > 0)
TEST(ge, order(r, v, must(r, a, 0, "other")) >= 0)
TEST(in, contains(r, must(r, a, 0, "seq"), v))
TEST(filter, v.t == V_STR && filter_find(v.u.s))
TEST(test, v.t == V_STR && test_find(v.u.s))
TEST(upper, same_case(r, v, 'u', 'l'))
TEST(lower, same_case(r, v, 'l', 'u'))

static bool t_sameas(struct render *r, struct value v, struct args *a)
{
	struct value other = must(r, a, 0, "other");

	return v.t == other.t && equal(r, v, other);
}

static const struct test tests[] = {
	{ "boolean", t_boolean }, { "callable", t_callable }, { "defined", t_defined },
	{ "divisibleby", t_divisibleby }, { "eq", t_eq }, { "equalto", t_eq }, { "even", t_even },
	{ "false", t_false }, { "filter", t_filter },
	{ "float", t_float }, { "ge", t_ge }, { "greaterthan", t_gt }, { "gt", t_gt },
	{ "in", t_in }, { "integer", t_integer }, { "iterable", t_iterable }, { "le", t_le },
	{ "lessthan", t_lt }, { "lower", t_lower }, { "lt", t_lt }, { "mapping", t_mapping }, { "ne", t_ne },
	{ "none", t_none }, { "number", t_number }, { "odd", t_odd }, { "sameas", t_sameas },
	{ "sequence", t_sequence }, { "string", t_string },
	{ "test", t_test }, { "true", t_true }, { "undefined", t_undefined },
	{ "upper", t_upper },
	{ "==", t_eq }, { "!=", t_ne }, { "<", t_lt }, { "<=", t_le }, { ">", t_gt }, { ">=", t_ge },
};

const struct test *test_find(struct str name)
{
	for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++)
		if (str_is(name, tests[i].name))
			return &tests[i];
	return NULL;
}

bool test_call(struct render *r, const struct test *t, struct value v, struct args *a)
{
	spend(r, 1);
	return t->call(r, v, a);
}
