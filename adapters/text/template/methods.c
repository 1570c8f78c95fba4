/* template/methods.c - what a template can call: methods of strings, lists, dictionaries and loops,
 * and the functions that transformers adds to Jinja2's.  Methods that would change a value have only a
 * name here and are refused, as in Jinja2's immutable sandbox.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "impl.h"
#include "adapters/text/unicode/utf8.h"

struct method {
	enum type on;
	const char *name;
	struct value (*call)(struct render *r, struct value self, struct args *a);  /* NULL: not allowed */
};

struct global { const char *name; struct value (*call)(struct render *r, struct args *a); };

static struct str string_arg(struct render *r, struct args *a, size_t i, const char *name)
{
	struct value *v = arg(a, i, name);

	if (!v || v->t != V_STR)
		fail(r, "argument %zu must be str, not %s", i + 1, v ? type_name(*v) : "missing");
	return v->u.s;
}

static int64_t int_arg(struct render *r, struct args *a, size_t i, const char *name, int64_t otherwise)
{
	struct value *v = arg(a, i, name);

	if (!v || v->t == V_NONE)
		return otherwise;
	if (v->t != V_INT)
		fail(r, "'%s' object cannot be interpreted as an integer", type_name(*v));
	return v->u.i;
}

static struct value list_value(struct value_list *l)
{
	return (struct value){ .t = V_LIST, .u.list = l };
}

/* ---- strings --------------------------------------------------------------------------------- */

static struct value strip(struct render *r, struct value self, struct args *a, int sides)
{
	struct value *chars = arg(a, 0, "chars");

	if (!chars || chars->t == V_NONE)
		return v_str(str_strip(r, self.u.s, STR(""), true, sides));
	return v_str(str_strip(r, self.u.s, string_arg(r, a, 0, "chars"), false, sides));
}

static struct value s_strip(struct render *r, struct value self, struct args *a)
{
	return strip(r, self, a, 3);
}

static struct value s_lstrip(struct render *r, struct value self, struct args *a)
{
	return strip(r, self, a, 1);
}

static struct value s_rstrip(struct render *r, struct value self, struct args *a)
{
	return strip(r, self, a, 2);
}

static struct value split(struct render *r, struct value self, struct args *a, bool right)
{
	struct value *sep = arg(a, 0, "sep");
	int64_t most = int_arg(r, a, 1, "maxsplit", -1);
	struct str s;

	if (!sep || sep->t == V_NONE)
		return list_value(str_split(r, self.u.s, NULL, most, right));
	s = string_arg(r, a, 0, "sep");
	return list_value(str_split(r, self.u.s, &s, most, right));
}

static struct value s_split(struct render *r, struct value self, struct args *a)
{
	return split(r, self, a, false);
}

static struct value s_rsplit(struct render *r, struct value self, struct args *a)
{
	return split(r, self, a, true);
}

static struct value s_splitlines(struct render *r, struct value self, struct args *a)
{
	(void)a;
	return list_value(str_lines(r, self.u.s));
}

static bool begins(struct str s, struct str with, bool at_end)
{
	return s.n >= with.n && !memcmp(at_end ? s.s + s.n - with.n : s.s, with.s, with.n);
}

static struct value affix(struct render *r, struct value self, struct args *a, bool at_end)
{
	struct value *with = arg(a, 0, "prefix");

	if (with && with->t == V_TUPLE) {
		for (size_t i = 0; i < with->u.list->n; i++)
			if (with->u.list->v[i].t == V_STR && begins(self.u.s, with->u.list->v[i].u.s, at_end))
				return v_bool(true);
		return v_bool(false);
	}
	return v_bool(begins(self.u.s, string_arg(r, a, 0, "prefix"), at_end));
}

static struct value s_startswith(struct render *r, struct value self, struct args *a)
{
	return affix(r, self, a, false);
}

static struct value s_endswith(struct render *r, struct value self, struct args *a)
{
	return affix(r, self, a, true);
}

static struct value s_removeprefix(struct render *r, struct value self, struct args *a)
{
	struct str p = string_arg(r, a, 0, "prefix");

	if (begins(self.u.s, p, false)) {
		self.u.s.s += p.n;
		self.u.s.n -= p.n;
	}
	return self;
}

static struct value s_removesuffix(struct render *r, struct value self, struct args *a)
{
	struct str p = string_arg(r, a, 0, "suffix");

	if (begins(self.u.s, p, true))
		self.u.s.n -= p.n;
	return self;
}

static struct value s_upper(struct render *r, struct value self, struct args *a)
{
	(void)a;
	return v_str(str_case(r, self.u.s, 'u'));
}

static struct value s_lower(struct render *r, struct value self, struct args *a)
{
	(void)a;
	return v_str(str_case(r, self.u.s, 'l'));
}

static struct value s_title(struct render *r, struct value self, struct args *a)
{
	(void)a;
	return v_str(str_case(r, self.u.s, 't'));
}

static struct value s_capitalize(struct render *r, struct value self, struct args *a)
{
	(void)a;
	return v_str(str_case(r, self.u.s, 'c'));
}

static struct value s_replace(struct render *r, struct value self, struct args *a)
{
	struct str from = string_arg(r, a, 0, "old"), to = string_arg(r, a, 1, "new");

	if (self.markup)
		to = str_escape(r, *arg(a, 1, "new"));
	return v_str(str_replace(r, self.u.s, from, to, int_arg(r, a, 2, "count", -1)));
}

static int64_t find_in(struct render *r, struct value self, struct args *a, bool last)
{
	struct str s = self.u.s, what = string_arg(r, a, 0, "sub");
	const char *p = NULL, *next;

	spend(r, s.n / 16);
	if (!last || !what.n) {
		p = what.n ? memmem(s.s, s.n, what.s, what.n) : last ? s.s + s.n : s.s;
	} else {
		for (next = s.s; (next = memmem(next, s.n - (size_t)(next - s.s), what.s, what.n)); next++)
			p = next;
	}
	return p ? (int64_t)str_length((struct str){ s.s, (size_t)(p - s.s) }) : -1;
}

static struct value s_find(struct render *r, struct value self, struct args *a)
{
	return v_int(find_in(r, self, a, false));
}

static struct value s_rfind(struct render *r, struct value self, struct args *a)
{
	return v_int(find_in(r, self, a, true));
}

static struct value s_index(struct render *r, struct value self, struct args *a)
{
	int64_t i = find_in(r, self, a, false);

	if (i < 0)
		fail(r, "substring not found");
	return v_int(i);
}

static struct value s_count(struct render *r, struct value self, struct args *a)
{
	struct str s = self.u.s, what = string_arg(r, a, 0, "sub");
	const char *p;
	int64_t n = 0;

	if (!what.n)
		return v_int((int64_t)str_length(s) + 1);
	spend(r, s.n / 16);
	for (; (p = memmem(s.s, s.n, what.s, what.n)); n++) {
		s.n -= (size_t)(p - s.s) + what.n;
		s.s = p + what.n;
	}
	return v_int(n);
}

static struct value s_join(struct render *r, struct value self, struct args *a)
{
	struct value *items = arg(a, 0, "iterable");
	struct string_builder t = { .r = r };
	struct value_list *l;

	if (!items)
		fail(r, "join() takes exactly one argument");
	l = to_list(r, *items);
	builder_put(&t, STR(""));
	for (size_t i = 0; i < l->n; i++) {
		if (l->v[i].t != V_STR)
			fail(r, "sequence item %zu: expected str instance, %s found", i, type_name(l->v[i]));
		if (i)
			builder_put(&t, self.u.s);
		builder_put(&t, self.markup ? str_escape(r, l->v[i]) : l->v[i].u.s);
	}
	return v_str((struct str){ t.s, t.n });
}

/* isdigit, isspace and similar: the string is not empty, and is() holds for each character. */
static bool every(struct render *r, struct str s, bool (*is)(uint32_t cp))
{
	uint32_t cp;

	spend(r, s.n / 16);
	for (size_t i = 0; i < s.n;) {
		i += utf8_next(s.s + i, s.n - i, &cp);
		if (!is(cp))
			return false;
	}
	return s.n != 0;
}

static bool ascii_digit(uint32_t cp)
{
	return cp >= '0' && cp <= '9';
}

static struct value s_isdigit(struct render *r, struct value self, struct args *a)
{
	(void)a;
	return v_bool(every(r, self.u.s, ascii_digit));
}

static struct value s_isspace(struct render *r, struct value self, struct args *a)
{
	(void)a;
	return v_bool(every(r, self.u.s, py_space));
}

/* ---- lists, dictionaries, loops -------------------------------------------------------------- */

static struct value l_index(struct render *r, struct value self, struct args *a)
{
	struct value *what = arg(a, 0, "value");

	for (size_t i = 0; what && i < self.u.list->n; i++)
		if (equal(r, self.u.list->v[i], *what))
			return v_int((int64_t)i);
	fail(r, "the value is not in the list");
}

static struct value l_count(struct render *r, struct value self, struct args *a)
{
	struct value *what = arg(a, 0, "value");
	int64_t n = 0;

	for (size_t i = 0; what && i < self.u.list->n; i++)
		n += equal(r, self.u.list->v[i], *what);
	return v_int(n);
}

static struct value same(struct render *r, struct value self, struct args *a)
{
	(void)r;
	(void)a;
	return self;
}

static struct value d_get(struct render *r, struct value self, struct args *a)
{
	struct value *key = arg(a, 0, "key"), *otherwise = arg(a, 1, "default"), *v;

	if (!key)
		fail(r, "get expected at least 1 argument, got 0");
	v = dict_get(r, self.u.dict, *key);
	return v ? *v : otherwise ? *otherwise : v_none();
}

static struct value d_items(struct render *r, struct value self, struct args *a)
{
	return list_value(to_list(r, filter_call(r, filter_find(STR("items")), self, a)));
}

static struct value d_keys(struct render *r, struct value self, struct args *a)
{
	(void)a;
	return list_value(to_list(r, self));
}

static struct value d_values(struct render *r, struct value self, struct args *a)
{
	struct value out = v_list(r, self.u.dict->n);

	(void)a;
	for (size_t i = 0; i < self.u.dict->n; i++)
		out.u.list->v[i] = self.u.dict->p[i].v;
	return out;
}

static struct value loop_cycle(struct render *r, struct value self, struct args *a)
{
	if (!a->n)
		fail(r, "no items for cycling given");
	return a->v[self.u.loop->i % a->n];
}

static struct value loop_changed(struct render *r, struct value self, struct args *a)
{
	struct for_loop *l = self.u.loop;
	struct value now = v_list(r, a->n);
	bool changed;

	for (size_t i = 0; i < a->n; i++)
		now.u.list->v[i] = a->v[i];
	changed = !l->seen || !equal(r, l->last, now);
	l->seen = true;
	l->last = now;
	return v_bool(changed);
}

static const struct method methods[] = {
	{ V_STR, "strip", s_strip }, { V_STR, "lstrip", s_lstrip }, { V_STR, "rstrip", s_rstrip },
	{ V_STR, "split", s_split }, { V_STR, "rsplit", s_rsplit }, { V_STR, "splitlines", s_splitlines },
	{ V_STR, "startswith", s_startswith }, { V_STR, "endswith", s_endswith },
	{ V_STR, "removeprefix", s_removeprefix }, { V_STR, "removesuffix", s_removesuffix },
	{ V_STR, "upper", s_upper }, { V_STR, "lower", s_lower }, { V_STR, "title", s_title },
	{ V_STR, "capitalize", s_capitalize }, { V_STR, "replace", s_replace }, { V_STR, "find", s_find },
	{ V_STR, "rfind", s_rfind }, { V_STR, "index", s_index }, { V_STR, "count", s_count },
	{ V_STR, "join", s_join }, { V_STR, "isdigit", s_isdigit }, { V_STR, "isspace", s_isspace },
	{ V_STR, "format", str_format }, { V_STR, "encode", NULL },
	{ V_LIST, "index", l_index }, { V_LIST, "count", l_count }, { V_LIST, "copy", same },
	{ V_LIST, "append", NULL }, { V_LIST, "extend", NULL }, { V_LIST, "insert", NULL },
	{ V_LIST, "pop", NULL }, { V_LIST, "remove", NULL }, { V_LIST, "reverse", NULL },
	{ V_LIST, "sort", NULL }, { V_LIST, "clear", NULL },
	{ V_TUPLE, "index", l_index }, { V_TUPLE, "count", l_count },
	{ V_DICT, "get", d_get }, { V_DICT, "items", d_items }, { V_DICT, "keys", d_keys },
	{ V_DICT, "values", d_values }, { V_DICT, "copy", same }, { V_DICT, "pop", NULL },
	{ V_DICT, "popitem", NULL }, { V_DICT, "update", NULL }, { V_DICT, "setdefault", NULL },
	{ V_DICT, "clear", NULL }, { V_DICT, "fromkeys", NULL },
	{ V_LOOP, "cycle", loop_cycle }, { V_LOOP, "changed", loop_changed },
};

const struct method *method_find(struct value self, struct str name)
{
	for (size_t i = 0; i < sizeof(methods) / sizeof(*methods); i++)
		if (methods[i].on == self.t && str_is(name, methods[i].name))
			return &methods[i];
	return NULL;
}

struct value method_call(struct render *r, const struct method *m, struct value self, struct args *a)
{
	struct value v;

	if (!m->call)
		fail(r, "%s.%s() is not allowed in a chat template", type_name(self), m->name);
	v = m->call(r, self, a);
	if (self.t == V_STR && self.markup && v.t == V_LIST)
		for (size_t i = 0; i < v.u.list->n; i++)
			v.u.list->v[i].markup = true;
	v.markup = self.t == V_STR && self.markup && v.t == V_STR;
	return v;
}

/* ---- functions ------------------------------------------------------------------------------- */

static struct value g_range(struct render *r, struct args *a)
{
	int64_t from = a->n > 1 ? int_arg(r, a, 0, "start", 0) : 0;
	int64_t to = int_arg(r, a, a->n > 1, "stop", 0), step = int_arg(r, a, 2, "step", 1), n = 0;
	struct value out;

	if (!a->n || !step)
		fail(r, !a->n ? "range expected at least 1 argument, got 0" : "range() arg 3 must not be zero");
	if (from > INT32_MAX || from < INT32_MIN || to > INT32_MAX || to < INT32_MIN ||
	    step > INT32_MAX || step < INT32_MIN)
		fail(r, "range() takes no numbers of more than 32 bits");
	if (step > 0 ? to > from : to < from)
		n = step > 0 ? (to - from + step - 1) / step : (from - to - step - 1) / -step;
	if (n > 100000)
		fail(r, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
	out = v_list(r, (size_t)n);
	for (int64_t i = 0; i < n; i++)
		out.u.list->v[i] = v_int(from + i * step);
	return out;
}

static struct value g_dict(struct render *r, struct args *a)
{
	struct value v = v_dict(r);

	if (a->n && a->v[0].t == V_DICT)
		for (size_t i = 0; i < a->v[0].u.dict->n; i++)
			dict_set(r, v.u.dict, a->v[0].u.dict->p[i].k, a->v[0].u.dict->p[i].v);
	for (size_t i = 0; i < a->n_named; i++)
		dict_set(r, v.u.dict, v_str(a->named[i].name), a->named[i].v);
	return v;
}

static struct value g_namespace(struct render *r, struct args *a)
{
	struct value v = g_dict(r, a);

	v.t = V_NAMESPACE;
	return v;
}

/* The template's own error is meant for the client that sent the messages: unchanged, without a line. */
static struct value g_raise(struct render *r, struct args *a)
{
	struct value *v = arg(a, 0, "message");
	struct str s = v ? to_str(r, *v) : STR("the chat template refused");

	template_fail(&r->mem, -EINVAL, 0, "%.*s", s.n > 1000 ? 1000 : (int)s.n, s.s);
}

static struct value g_strftime_now(struct render *r, struct args *a)
{
	struct str format = string_arg(r, a, 0, "format");
	time_t now = time(NULL);
	char f[256], *out = arena_alloc(&r->mem, 1024);
	struct tm tm;

	if (format.n >= sizeof(f))
		fail(r, "the format of strftime_now is longer than %zu bytes", sizeof(f) - 1);
	memcpy(f, format.s, format.n);
	f[format.n] = 0;
	localtime_r(&now, &tm);
	return v_str((struct str){ out, strftime(out, 1024, f, &tm) });
}

static const struct global globals[] = {
	{ "range", g_range }, { "dict", g_dict }, { "namespace", g_namespace },
	{ "raise_exception", g_raise }, { "strftime_now", g_strftime_now },
};

const struct global *global_find(struct str name)
{
	for (size_t i = 0; i < sizeof(globals) / sizeof(*globals); i++)
		if (str_is(name, globals[i].name))
			return &globals[i];
	return NULL;
}

struct value global_call(struct render *r, const struct global *g, struct args *a)
{
	return g->call(r, a);
}
