/* template/format.c - Python's two ways to format: "%5.2f" % x, and "{0:>5}".format(x).
 *
 * Widths and precisions are bounded, and padding costs steps.  Names inside "{a.b[c]}" are looked up as in
 * the expression "a.b[c]", so they reach nothing that an expression cannot reach.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "impl.h"
#include "adapters/text/unicode/utf8.h"

#define WIDE 10000               /* the most characters of a width, or digits of a precision */

struct format_spec {
	uint32_t fill;
	char align, sign, group, type;       /* 0: not given; align < > ^ = */
	bool alternate, zero;
	int64_t width, precision;            /* precision -1: none */
};

struct format_cursor { struct render *r; const char *s; size_t n, at; };

static char peek(const struct format_cursor *c)
{
	return c->at < c->n ? c->s[c->at] : 0;
}

static bool take_char(struct format_cursor *c, char what)
{
	if (c->at >= c->n || c->s[c->at] != what)
		return false;
	c->at++;
	return true;
}

static bool take_number(struct format_cursor *c, int64_t *out)
{
	size_t from = c->at;

	for (*out = 0; peek(c) >= '0' && peek(c) <= '9'; c->at++) {
		*out = *out * 10 + (c->s[c->at] - '0');
		if (*out > WIDE)
			fail(c->r, "a format's width or precision is above %d", WIDE);
	}
	return c->at > from;
}

/* ---- one value ------------------------------------------------------------------------------- */

static struct str digits_in_base(struct render *r, uint64_t v, unsigned base, bool upper)
{
	char *s = arena_alloc(&r->mem, 72);
	size_t i = 71;

	do
		s[--i] = (upper ? "0123456789ABCDEF" : "0123456789abcdef")[v % base];
	while (v /= base);
	return (struct str){ s + i, 71 - i };
}

/* The length of n digits with their group separators. */
static int64_t grouped(const struct format_spec *s, int64_t n, int64_t every)
{
	return n + (s->group && n ? (n - 1) / every : 0);
}

/* Put sign, prefix and digits, padded to the width; the first n digits are in groups. */
static void put_number(struct string_builder *t, const struct format_spec *s, bool negative,
                       struct str prefix, struct str digits, int64_t n)
{
	struct str sign = negative ? STR("-") : s->sign == '+' ? STR("+") : s->sign == ' ' ? STR(" ") : STR("");
	int64_t every = s->type && strchr("bxXo", s->type) ? 4 : 3, zeros = 0, pad, left;
	int64_t fixed = (int64_t)(sign.n + prefix.n + digits.n) - n;

	if (s->align == '=' && s->fill == '0')
		while (fixed + grouped(s, n + zeros, every) < s->width)
			zeros++;
	n += zeros;
	pad = s->width - fixed - grouped(s, n, every);
	pad = pad < 0 ? 0 : pad;
	left = s->align == '<' || s->align == '=' ? 0 : s->align == '^' ? pad / 2 : pad;
	builder_pad(t, s->fill, left);
	builder_put(t, sign);
	builder_put(t, prefix);
	builder_pad(t, s->fill, s->align == '=' ? pad : 0);
	for (int64_t i = 0; i < n; i++) {
		if (s->group && i && (n - i) % every == 0)
			builder_char(t, (uint8_t)s->group);
		builder_char(t, i < zeros ? '0' : (uint8_t)digits.s[i - zeros]);
	}
	builder_put(t, (struct str){ digits.s + (n - zeros), digits.n - (size_t)(n - zeros) });
	builder_pad(t, s->fill, s->align == '=' ? 0 : pad - left);
}

static size_t decimals(struct str s)
{
	size_t n = 0;

	while (n < s.n && s.s[n] >= '0' && s.s[n] <= '9')
		n++;
	return n;
}

/* Format as C's printf does; Python gives the same. */
static size_t put_c(char *buf, size_t room, const struct format_spec *s, int precision, double d)
{
	char type = s->type == '%' ? 'f' : s->type;
	char f[] = { '%', s->alternate ? '#' : '.', s->alternate ? '.' : '*', s->alternate ? '*' : type,
	             s->alternate ? type : 0, 0 };

	return (size_t)snprintf(buf, room, f, precision, d);
}

static void format_float(struct string_builder *t, const struct format_spec *s, double d)
{
	size_t room = 400 + WIDE;
	int precision = (int)(s->precision < 0 ? 6 : s->precision);
	bool negative = signbit(d) && !isnan(d);
	struct str out;
	char *buf;

	d = fabs(d);
	if (!s->type && s->precision >= 0)
		fail(t->r, "a precision needs a type: e, f, g or %%");
	if (!s->type) {
		out = float_repr(t->r, d);
	} else {
		buf = arena_alloc(&t->r->mem, room);
		out = (struct str){ buf, put_c(buf, room, s, precision, s->type == '%' ? d * 100 : d) };
		if (s->type == '%')
			buf[out.n++] = '%';
	}
	put_number(t, s, negative, STR(""), out, (int64_t)decimals(out));
}

static void put_int(struct string_builder *t, const struct format_spec *s, int64_t i)
{
	unsigned base = s->type == 'x' || s->type == 'X' ? 16 : s->type == 'o' ? 8 : s->type == 'b' ? 2 : 10;
	struct str prefix = STR(""), digits;

	if (s->alternate && base != 10) {
		char *c = arena_alloc(&t->r->mem, 3);

		c[0] = '0';
		c[1] = s->type;
		prefix = (struct str){ c, 2 };
	}
	digits = digits_in_base(t->r, i < 0 ? 0 - (uint64_t)i : (uint64_t)i, base, s->type == 'X');
	put_number(t, s, i < 0, prefix, digits, (int64_t)digits.n);
}

/* Put a string padded to the width; precision is the most characters of it. */
static void format_text(struct string_builder *t, const struct format_spec *s, struct str v)
{
	int64_t n = 0, pad, left;
	size_t i = 0;
	uint32_t cp;

	for (; i < v.n && (s->precision < 0 || n < s->precision); n++)
		i += utf8_next(v.s + i, v.n - i, &cp);
	pad = s->width > n ? s->width - n : 0;
	left = s->align == '>' ? pad : s->align == '^' ? pad / 2 : 0;
	builder_pad(t, s->fill, left);
	builder_put(t, (struct str){ v.s, i });
	builder_pad(t, s->fill, pad - left);
}

/* ---- % --------------------------------------------------------------------------------------- */

struct percent { struct format_cursor c; struct value format, args; size_t used; bool named; };

static struct value next_arg(struct percent *p)
{
	bool tuple = p->args.t == V_TUPLE;

	if (p->used >= (tuple ? p->args.u.list->n : 1))
		fail(p->c.r, "not enough arguments for format string");
	return tuple ? p->args.u.list->v[p->used++] : (p->used++, p->args);
}

/* Read "(name)" and return the argument that it names. */
static struct value named_arg(struct percent *p)
{
	size_t from = ++p->c.at;
	int depth = 1;
	struct value *v;

	for (; p->c.at < p->c.n && depth; p->c.at++)
		depth += (p->c.s[p->c.at] == '(') - (p->c.s[p->c.at] == ')');
	if (depth)
		fail(p->c.r, "incomplete format key");
	if (p->args.t != V_DICT)
		fail(p->c.r, "format requires a mapping");
	p->named = true;
	v = dict_get(p->c.r, p->args.u.dict, v_str((struct str){ p->c.s + from, p->c.at - 1 - from }));
	if (!v)
		fail(p->c.r, "the format's '%.*s' is not among its arguments",
		     (int)(p->c.at - 1 - from > 60 ? 60 : p->c.at - 1 - from), p->c.s + from);
	return *v;
}

static int64_t star(struct percent *p)
{
	struct value v;
	int64_t n;

	if (!take_char(&p->c, '*')) {
		take_number(&p->c, &n);
		return n;
	}
	v = next_arg(p);
	if (v.t != V_INT)
		fail(p->c.r, "* wants int");
	if (v.u.i > WIDE || v.u.i < -WIDE)
		fail(p->c.r, "a format's width or precision is above %d", WIDE);
	return v.u.i;
}

static void put_percent(struct percent *p, struct string_builder *t, struct format_spec *s, struct value v)
{
	struct render *r = p->c.r;
	double d;

	if (s->type == 's' || s->type == 'r') {
		struct str out = s->type == 's' ? to_str(r, v) : to_repr(r, v);

		if (p->format.markup)
			out = str_escape(r, s->type == 's' ? v : v_str(out));
		format_text(t, s, out);
		return;
	}
	if (s->align != '<') {
		s->align = s->zero ? '=' : '>';
		s->fill = s->zero ? '0' : ' ';
	}
	if (s->type == 'c') {
		char c[4];

		if (v.t == V_STR && str_length(v.u.s) == 1)
			format_text(t, s, v.u.s);
		else if (v.t == V_INT && v.u.i >= 0 && v.u.i <= 0x10ffff && (v.u.i < 0xd800 || v.u.i > 0xdfff))
			format_text(t, s, (struct str){ c, utf8_put((uint32_t)v.u.i, c) });
		else
			fail(r, "%%c requires int or char");
		return;
	}
	if (!as_number(v, &d) || (v.t == V_FLOAT && strchr("xXo", s->type)) ||
	    (v.t == V_FLOAT && strchr("diu", s->type) && !(fabs(d) < 9e18)))
		fail(r, "%%%c format: a number is required, not %s", s->type, type_name(v));
	if (strchr("eEfFgG", s->type)) {
		format_float(t, s, d);
		return;
	}
	if (s->precision > 0)
		fail(r, "a precision of integers is not supported");
	put_int(t, s, v.t == V_FLOAT ? (int64_t)d : v.t == V_INT ? v.u.i : v.u.b);
}

static void conversion(struct percent *p, struct string_builder *t)
{
	struct format_spec s = { .fill = ' ', .align = '>', .precision = -1 };
	bool named = peek(&p->c) == '(';
	struct value v = v_none();

	if (named)
		v = named_arg(p);
	for (char f; (f = peek(&p->c)) && strchr("-+ #0", f); p->c.at++) {
		s.align = f == '-' ? '<' : s.align;
		s.sign = f == '+' || (f == ' ' && !s.sign) ? f : s.sign;
		s.alternate |= f == '#';
		s.zero |= f == '0';
	}
	s.width = star(p);
	if (s.width < 0) {
		s.align = '<';
		s.width = -s.width;
	}
	if (take_char(&p->c, '.'))
		s.precision = star(p);
	while (peek(&p->c) && strchr("hlL", peek(&p->c)))
		p->c.at++;
	s.type = peek(&p->c);
	if (!s.type)
		fail(p->c.r, "incomplete format");
	p->c.at++;
	if (s.type == '%') {
		builder_char(t, '%');
		return;
	}
	if (!strchr("diuoxXeEfFgGcrs", s.type))
		fail(p->c.r, "unsupported format character '%c' at %zu", s.type, p->c.at - 1);
	put_percent(p, t, &s, named ? v : next_arg(p));
}

struct value str_percent(struct render *r, struct value format, struct value args)
{
	struct percent p = { .c = { r, format.u.s.s, format.u.s.n, 0 }, .format = format, .args = args };
	struct string_builder t = { .r = r };
	const char *next;
	size_t n;

	builder_put(&t, STR(""));
	while (p.c.at < p.c.n) {
		next = memchr(p.c.s + p.c.at, '%', p.c.n - p.c.at);
		n = next ? (size_t)(next - p.c.s) - p.c.at : p.c.n - p.c.at;
		builder_put(&t, (struct str){ p.c.s + p.c.at, n });
		p.c.at += n;
		if (next) {
			p.c.at++;
			spend(r, 1);
			conversion(&p, &t);
		}
	}
	if (args.t == V_TUPLE ? !p.named && p.used < args.u.list->n :
	    !p.named && !p.used && args.t != V_DICT && args.t != V_LIST)
		fail(r, "not all arguments converted during string formatting");
	return v_like(format, (struct str){ t.s, t.n });
}

/* ---- format() -------------------------------------------------------------------------------- */

struct braces { struct format_cursor c; struct args *args; int64_t next; bool counted, numbered; };

static void put_braces(struct braces *b, struct string_builder *t, bool markup, int nested);

/* The argument for "0", "name" or nothing. */
static struct value field_arg(struct braces *b, struct str name)
{
	struct render *r = b->c.r;
	int64_t i = b->next;

	if (decimals(name) < name.n) {
		for (size_t k = 0; k < b->args->n_named; k++)
			if (str_eq(b->args->named[k].name, name))
				return b->args->named[k].v;
		fail(r, "format: no argument is named '%.*s'", name.n > 60 ? 60 : (int)name.n, name.s);
	}
	if (name.n) {
		struct format_cursor c = { r, name.s, name.n, 0 };

		take_number(&c, &i);
		b->numbered = true;
	} else {
		b->counted = true;
		b->next++;
	}
	if (b->numbered && b->counted)
		fail(r, "format: either all fields have a number, or none has");
	if ((uint64_t)i >= b->args->n)
		fail(r, "format: there is no argument %" PRId64, i);
	return b->args->v[i];
}

/* The value of "a.b[c]", which ends at "!", ":" or "}". */
static struct value field(struct braces *b)
{
	struct format_cursor *c = &b->c;
	size_t from = c->at;
	struct value v;
	struct str s;
	int64_t i;

	while (peek(c) && !strchr(".[!:}{", peek(c)))
		c->at++;
	v = field_arg(b, (struct str){ c->s + from, c->at - from });
	while (peek(c) == '.' || peek(c) == '[') {
		bool item = c->s[c->at++] == '[';

		from = c->at;
		while (c->at < c->n && !strchr(item ? "]" : ".[!:}{", c->s[c->at]))
			c->at++;
		s = (struct str){ c->s + from, c->at - from };
		if (!s.n || (item && !take_char(c, ']')))
			fail(c->r, "format: an attribute or item has no name");
		spend(c->r, 1);
		if (item && decimals(s) == s.n) {
			struct format_cursor digits = { c->r, s.s, s.n, 0 };

			take_number(&digits, &i);
			v = get_item(c->r, v, v_int(i));
		} else {
			v = item ? get_item(c->r, v, v_str(s)) : get_attr(c->r, v, s);
		}
	}
	return v;
}

static struct format_spec parse_spec(struct render *r, struct str text)
{
	struct format_spec s = { .fill = ' ', .precision = -1 };
	struct format_cursor c = { r, text.s, text.n, 0 };
	uint32_t cp;
	size_t k = c.n ? utf8_next(c.s, c.n, &cp) : 0;

	if (k && k < c.n && c.s[k] && strchr("<>=^", c.s[k])) {
		s.fill = cp;
		c.at = k;
	}
	if (peek(&c) && strchr("<>=^", peek(&c)))
		s.align = c.s[c.at++];
	if (peek(&c) && strchr("+- ", peek(&c)))
		s.sign = c.s[c.at++];
	s.alternate = take_char(&c, '#');
	s.zero = take_char(&c, '0');
	if (s.zero && !s.align) {
		s.fill = '0';
		s.align = '0';                   /* "=" for numbers, "<" for texts */
	}
	take_number(&c, &s.width);
	if (peek(&c) == ',' || peek(&c) == '_')
		s.group = c.s[c.at++];
	if (take_char(&c, '.') && !take_number(&c, &s.precision))
		fail(r, "Format specifier missing precision");
	if (c.at < c.n)
		s.type = c.s[c.at++];
	if (c.at < c.n || (s.type && !strchr("bcdeEfFgGnosxX%", s.type)) || s.type == 'n')
		fail(r, "Invalid format specifier '%.*s'", text.n > 60 ? 60 : (int)text.n, text.s);
	return s;
}

_Noreturn static void unknown_code(struct render *r, struct str text, const char *type)
{
	fail(r, "Unknown format code '%.*s' for object of type '%s'", text.n > 60 ? 60 : (int)text.n, text.s,
	     type);
}

static void put_spec(struct string_builder *t, struct value v, struct str text)
{
	struct render *r = t->r;
	struct format_spec s;
	double d;

	if (!text.n) {
		builder_put(t, to_str(r, v));
		return;
	}
	if (v.t != V_STR && !as_number(v, &d))
		fail(r, "unsupported format string passed to %s.__format__", type_name(v));
	s = parse_spec(r, text);
	if (v.t == V_STR) {
		if ((s.type && s.type != 's') || s.align == '=' || s.sign || s.alternate || s.group)
			unknown_code(r, text, "str");
		s.align = s.align == '0' || !s.align ? '<' : s.align;
		format_text(t, &s, v.u.s);
		return;
	}
	s.align = s.align == '0' ? '=' : s.align ? s.align : '>';
	if (v.t == V_FLOAT || (s.type && strchr("eEfFgG%", s.type))) {
		if (s.type && !strchr("eEfFgG%", s.type))
			unknown_code(r, text, "float");
		format_float(t, &s, d);
		return;
	}
	if (s.precision >= 0 || s.type == 's' || s.type == 'c' || (s.group == ',' && s.type && s.type != 'd'))
		unknown_code(r, text, "int");
	put_int(t, &s, v.t == V_INT ? v.u.i : v.u.b);
}

/* One replacement field, from after "{" to after "}". */
static void replacement(struct braces *b, struct string_builder *t, bool markup, int nested)
{
	struct format_cursor *c = &b->c;
	struct render *r = c->r;
	struct value v = field(b);
	struct string_builder spec = { .r = r }, one = { .r = r };
	char how = 0;

	if (take_char(c, '!')) {
		how = peek(c);
		if (how != 's' && how != 'r')
			fail(r, "format: a conversion must be !s or !r");
		c->at++;
		v = how == 's' ? v_like(v, to_str(r, v)) : v_str(to_repr(r, v));
	}
	builder_put(&spec, STR(""));
	if (nested > 1)
		fail(r, "Max string recursion exceeded");
	if (take_char(c, ':')) {
		put_braces(b, &spec, false, nested + 1);
	}
	if (!take_char(c, '}'))
		fail(r, "expected '}' before end of string");
	builder_put(&one, STR(""));
	put_spec(&one, v, (struct str){ spec.s, spec.n });
	if (markup && !(v.t == V_STR && v.markup))
		builder_put(t, str_escape(r, v_str((struct str){ one.s, one.n })));
	else
		builder_put(t, (struct str){ one.s, one.n });
}

/* The whole string, or (nested) a field's specification up to its "}". */
static void put_braces(struct braces *b, struct string_builder *t, bool markup, int nested)
{
	struct format_cursor *c = &b->c;
	size_t from;

	for (;;) {
		for (from = c->at; c->at < c->n && c->s[c->at] != '{' && c->s[c->at] != '}'; c->at++)
			;
		builder_put(t, (struct str){ c->s + from, c->at - from });
		spend(c->r, 1);
		if (c->at >= c->n || (nested && c->s[c->at] == '}'))
			return;
		if (!nested && c->at + 1 < c->n && c->s[c->at + 1] == c->s[c->at]) {
			builder_char(t, (uint8_t)c->s[c->at]);
			c->at += 2;
			continue;
		}
		if (c->s[c->at] == '}' || c->at + 1 >= c->n)
			fail(c->r, "Single '%c' encountered in format string", c->s[c->at]);
		c->at++;
		replacement(b, t, markup, nested);
	}
}

struct value str_format(struct render *r, struct value format, struct args *a)
{
	struct braces b = { .c = { r, format.u.s.s, format.u.s.n, 0 }, .args = a };
	struct string_builder t = { .r = r };

	builder_put(&t, STR(""));
	put_braces(&b, &t, format.markup, 0);
	return v_str((struct str){ t.s, t.n });
}
