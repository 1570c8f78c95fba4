/* template/print.c - values as text: str() and repr() as Python prints them, and the tojson filter.
 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "impl.h"
#include "adapters/text/unicode/utf8.h"

/* ---- str and repr -------------------------------------------------------------------------- */

void builder_put(struct string_builder *t, struct str s)
{
	size_t cap = t->cap ? t->cap : 64;
	char *p;

	while (cap < t->n + s.n + 1)
		cap *= 2;
	if (cap != t->cap) {
		p = arena_alloc(&t->r->mem, cap);
		if (t->n)
			memcpy(p, t->s, t->n);
		t->s = p;
		t->cap = cap;
	}
	if (s.n)
		memcpy(t->s + t->n, s.s, s.n);
	t->n += s.n;
	spend(t->r, s.n / 64);
}

void builder_char(struct string_builder *t, uint32_t cp)
{
	char c[4];

	builder_put(t, (struct str){ c, utf8_put(cp, c) });
}

void builder_pad(struct string_builder *t, uint32_t cp, int64_t times)
{
	spend(t->r, times > 0 ? (uint64_t)times / 8 : 0);
	while (times-- > 0)
		builder_char(t, cp);
}

static void text_fmt(struct string_builder *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void text_fmt(struct string_builder *t, const char *fmt, ...)
{
	char buf[64];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(buf, sizeof(buf), fmt, ap);
	va_end(ap);
	builder_put(t, (struct str){ buf, strlen(buf) });
}

/* The shortest digits that parse to the same number, written as Python writes them. */
static void put_float(struct string_builder *t, double f, bool json)
{
	char buf[40], *e;
	int digits, exp;

	if (isnan(f) || isinf(f)) {
		text_fmt(t, "%s", isnan(f) ? json ? "NaN" : "nan" : f < 0 ? json ? "-Infinity" : "-inf" :
		         json ? "Infinity" : "inf");
		return;
	}
	for (digits = 1; digits < 17; digits++) {
		snprintf(buf, sizeof(buf), "%.*e", digits - 1, f);
		if (strtod(buf, NULL) == f)
			break;
	}
	snprintf(buf, sizeof(buf), "%.*e", digits - 1, f);
	e = strchr(buf, 'e');
	exp = atoi(e + 1);
	if (exp < -4 || exp >= 16) {
		*e = 0;
		text_fmt(t, "%se%c%02d", buf, exp < 0 ? '-' : '+', abs(exp));
	} else if (digits - 1 <= exp) {
		text_fmt(t, "%.1f", f);
	} else {
		text_fmt(t, "%.*f", digits - 1 - exp, f);
	}
}

static bool printable(uint32_t cp)
{
	if (cp == ' ')
		return true;
	switch (utf8proc_category((utf8proc_int32_t)cp)) {
	case UTF8PROC_CATEGORY_CN:
	case UTF8PROC_CATEGORY_CC:
	case UTF8PROC_CATEGORY_CF:
	case UTF8PROC_CATEGORY_CS:
	case UTF8PROC_CATEGORY_CO:
	case UTF8PROC_CATEGORY_ZL:
	case UTF8PROC_CATEGORY_ZP:
	case UTF8PROC_CATEGORY_ZS:
		return false;
	default:
		return true;
	}
}

/* A string in quotes, as Python's repr() writes it. */
static void put_repr(struct string_builder *t, struct str s)
{
	char quote = s.n && memchr(s.s, '\'', s.n) && !memchr(s.s, '"', s.n) ? '"' : '\'';
	uint32_t cp;

	builder_char(t, (uint8_t)quote);
	for (size_t i = 0; i < s.n;) {
		i += utf8_next(s.s + i, s.n - i, &cp);
		if (cp == '\\' || cp == (uint32_t)quote)
			text_fmt(t, "\\%c", (char)cp);
		else if (cp == '\n' || cp == '\r' || cp == '\t')
			text_fmt(t, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
		else if (printable(cp))
			builder_char(t, cp);
		else
			text_fmt(t, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
	}
	builder_char(t, (uint8_t)quote);
}

static void put_json_string(struct string_builder *t, struct str s, bool ascii)
{
	static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
	const char *p;
	uint32_t cp;

	builder_char(t, '"');
	for (size_t i = 0; i < s.n;) {
		i += utf8_next(s.s + i, s.n - i, &cp);
		p = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
		if (p)
			text_fmt(t, "\\%c", to[p - from]);
		else if (cp < 0x20 || (ascii && cp >= 0x80 && cp < 0x10000))
			text_fmt(t, "\\u%04x", cp);
		else if (ascii && cp >= 0x10000)
			text_fmt(t, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10), 0xdc00 + (cp & 0x3ff));
		else
			builder_char(t, cp);
	}
	builder_char(t, '"');
}

static void put_str(struct string_builder *t, struct value v, bool quoted);

static void put_items(struct string_builder *t, struct value v)
{
	const struct value_list *l = v.u.list;

	builder_char(t, v.t == V_LIST ? '[' : '(');
	for (size_t i = 0; i < l->n; i++) {
		if (i)
			builder_put(t, STR(", "));
		put_str(t, l->v[i], true);
	}
	if (v.t == V_TUPLE && l->n == 1)
		builder_char(t, ',');
	builder_char(t, v.t == V_LIST ? ']' : ')');
}

static void put_pairs(struct string_builder *t, const struct dict *d)
{
	builder_char(t, '{');
	for (size_t i = 0; i < d->n; i++) {
		if (i)
			builder_put(t, STR(", "));
		put_str(t, d->p[i].k, true);
		builder_put(t, STR(": "));
		put_str(t, d->p[i].v, true);
	}
	builder_char(t, '}');
}

static void put_str(struct string_builder *t, struct value v, bool quoted)
{
	enter(t->r);
	switch (v.t) {
	case V_UNDEFINED:
		if (quoted)
			builder_put(t, STR("Undefined"));
		break;
	case V_NONE:
		builder_put(t, STR("None"));
		break;
	case V_BOOL:
		builder_put(t, v.u.b ? STR("True") : STR("False"));
		break;
	case V_INT:
		text_fmt(t, "%" PRId64, v.u.i);
		break;
	case V_FLOAT:
		put_float(t, v.u.f, false);
		break;
	case V_STR:
		if (quoted && v.markup)
			builder_put(t, STR("Markup("));
		if (quoted)
			put_repr(t, v.u.s);
		if (quoted && v.markup)
			builder_char(t, ')');
		if (!quoted)
			builder_put(t, v.u.s);
		break;
	case V_LIST:
	case V_TUPLE:
		put_items(t, v);
		break;
	case V_DICT:
		put_pairs(t, v.u.dict);
		break;
	default:
		text_fmt(t, "<%s>", type_name(v));
	}
	leave(t->r);
}

struct str to_repr(struct render *r, struct value v)
{
	struct string_builder t = { .r = r };

	put_str(&t, v, true);
	return (struct str){ t.s, t.n };
}

struct str float_repr(struct render *r, double f)
{
	struct string_builder t = { .r = r };

	put_float(&t, f, false);
	return (struct str){ t.s, t.n };
}

struct str to_str(struct render *r, struct value v)
{
	struct string_builder t = { .r = r };

	if (v.t == V_STR)
		return v.u.s;
	builder_put(&t, STR(""));
	put_str(&t, v, false);
	return (struct str){ t.s, t.n };
}

/* ---- JSON ------------------------------------------------------------------------------------ */

struct json_style { bool ascii, sorted, lines; int64_t indent; struct str comma, colon; };

static void json_line(struct string_builder *t, const struct json_style *s, int level)
{
	if (!s->lines)
		return;
	builder_char(t, '\n');
	for (int64_t i = 0; i < s->indent * level; i++)
		builder_char(t, ' ');
}

static const struct dict *by_key(struct render *r, const struct dict *d)
{
	struct dict *out = arena_alloc(&r->mem, sizeof(*out));

	out->p = arena_alloc(&r->mem, d->n * sizeof(*out->p));
	for (; out->n < d->n; out->n++) {        /* insertion sort: there are few keys */
		size_t i = out->n;

		for (; i && order(r, out->p[i - 1].k, d->p[out->n].k) > 0; i--) {
			spend(r, 1);
			out->p[i] = out->p[i - 1];
		}
		out->p[i] = d->p[out->n];
	}
	return out;
}

static void put_json(struct string_builder *t, struct value v, const struct json_style *s, int level)
{
	const struct dict *d;

	enter(t->r);
	switch (v.t) {
	case V_NONE:
		builder_put(t, STR("null"));
		break;
	case V_BOOL:
		builder_put(t, v.u.b ? STR("true") : STR("false"));
		break;
	case V_INT:
		text_fmt(t, "%" PRId64, v.u.i);
		break;
	case V_FLOAT:
		put_float(t, v.u.f, true);
		break;
	case V_STR:
		put_json_string(t, v.u.s, s->ascii);
		break;
	case V_LIST:
	case V_TUPLE:
		builder_char(t, '[');
		for (size_t i = 0; i < v.u.list->n; i++) {
			if (i)
				builder_put(t, s->comma);
			json_line(t, s, level + 1);
			put_json(t, v.u.list->v[i], s, level + 1);
		}
		if (v.u.list->n)
			json_line(t, s, level);
		builder_char(t, ']');
		break;
	case V_DICT:
		d = s->sorted ? by_key(t->r, v.u.dict) : v.u.dict;
		builder_char(t, '{');
		for (size_t i = 0; i < d->n; i++) {
			if (i)
				builder_put(t, s->comma);
			json_line(t, s, level + 1);
			if (d->p[i].k.t == V_STR)
				put_json_string(t, d->p[i].k.u.s, s->ascii);
			else {
				builder_char(t, '"');
				put_json(t, d->p[i].k, s, level);
				builder_char(t, '"');
			}
			builder_put(t, s->colon);
			put_json(t, d->p[i].v, s, level + 1);
		}
		if (d->n)
			json_line(t, s, level);
		builder_char(t, '}');
		break;
	default:
		fail(t->r, "Object of type %s is not JSON serializable", type_name(v));
	}
	leave(t->r);
}

struct str to_json(struct render *r, struct value v, struct args *a)
{
	struct value *ascii = arg(a, 0, "ensure_ascii"), *indent = arg(a, 1, "indent");
	struct value *separators = arg(a, 2, "separators"), *sorted = arg(a, 3, "sort_keys");
	struct json_style s = { .ascii = ascii && truth(*ascii), .sorted = sorted && truth(*sorted),
	                        .comma = STR(", "), .colon = STR(": ") };
	struct string_builder t = { .r = r };

	if (indent && indent->t == V_INT) {
		s.lines = true;
		s.indent = indent->u.i < 0 ? 0 : indent->u.i > 64 ? 64 : indent->u.i;
		s.comma = STR(",");
	}
	if (separators && (separators->t == V_LIST || separators->t == V_TUPLE) && separators->u.list->n == 2) {
		s.comma = to_str(r, separators->u.list->v[0]);
		s.colon = to_str(r, separators->u.list->v[1]);
	}
	put_json(&t, v, &s, 0);
	return (struct str){ t.s, t.n };
}
