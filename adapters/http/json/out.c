/* out.c - see out.h. */
#include "out.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "number.h"

void out_free(struct out *o)
{
	free(o->p);
	*o = (struct out){ 0 };
}

void out_reset(struct out *o)
{
	o->n = 0;
	o->failed = false;
}

bool out_grow(struct out *o, size_t n)
{
	size_t need, cap;
	char *p;

	if (__builtin_add_overflow(o->n, n, &need) || need > SIZE_MAX / 2) {
		o->failed = true;
		return false;
	}
	cap = o->cap ? o->cap : 256;
	while (cap < need)
		cap *= 2;
	p = realloc(o->p, cap);
	if (!p) {
		o->failed = true;
		return false;
	}
	o->p = p;
	o->cap = cap;
	return true;
}

void out_str(struct out *o, const char *s) { out_bytes(o, s, strlen(s)); }

void out_fmt(struct out *o, const char *fmt, ...)
{
	va_list ap, again;
	int n;

	va_start(ap, fmt);
	va_copy(again, ap);
	n = vsnprintf(NULL, 0, fmt, ap);
	if (n >= 0 && out_room(o, (size_t)n + 1)) {
		vsnprintf(o->p + o->n, (size_t)n + 1, fmt, again);
		o->n += (size_t)n;
	}
	va_end(again);
	va_end(ap);
}

void out_int(struct out *o, int64_t v)
{
	char digits[24], *d = digits + sizeof(digits);
	uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;

	do {
		*--d = (char)('0' + u % 10);
		u /= 10;
	} while (u);
	if (v < 0)
		*--d = '-';
	out_bytes(o, d, (size_t)(digits + sizeof(digits) - d));
}

/* By table 3-7 of the Unicode standard: no overlong forms, no surrogates, nothing past U+10FFFF. */
size_t utf8_length(const char *s, size_t n)
{
	const unsigned char *u = (const unsigned char *)s;
	unsigned char low = 0x80, high = 0xbf;
	size_t len;

	if (!n)
		return 0;
	if (u[0] < 0x80)
		return 1;
	if (u[0] < 0xc2 || u[0] > 0xf4)
		return 0;
	len = u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : 4;
	if (u[0] == 0xe0)
		low = 0xa0;
	else if (u[0] == 0xed)
		high = 0x9f;
	else if (u[0] == 0xf0)
		low = 0x90;
	else if (u[0] == 0xf4)
		high = 0x8f;
	if (n < len)
		return 0;
	for (size_t i = 1; i < len; i++, low = 0x80, high = 0xbf)
		if (u[i] < low || u[i] > high)
			return 0;
	return len;
}

size_t utf8_count(const char *s, size_t n)
{
	size_t count = 0, len;

	for (; n; count++) {
		len = utf8_length(s, n);
		len += !len;
		s += len;
		n -= len;
	}
	return count;
}

/* 0: written unchanged; else the letter after the backslash, or 'u'. */
static char short_escape(unsigned char c)
{
	switch (c) {
	case '"': case '\\': return (char)c;
	case '\b': return 'b';
	case '\t': return 't';
	case '\n': return 'n';
	case '\f': return 'f';
	case '\r': return 'r';
	default: return c < 0x20 ? 'u' : 0;
	}
}

void out_escaped(struct out *o, const char *s, size_t n)
{
	static const char hex[] = "0123456789abcdef";
	size_t i = 0, from = 0, len;
	char e;

	while (i < n) {
		e = short_escape((unsigned char)s[i]);
		len = e ? 1 : utf8_length(s + i, n - i);
		if (!e && len) {
			i += len;
			continue;
		}
		out_bytes(o, s + from, i - from);
		if (!e)
			out_str(o, "\xef\xbf\xbd");
		else if (e == 'u')
			out_bytes(o, (char[]){ '\\', 'u', '0', '0', hex[s[i] >> 4], hex[s[i] & 15] }, 6);
		else
			out_bytes(o, (char[]){ '\\', e }, 2);
		from = ++i;
	}
	out_bytes(o, s + from, n - from);
}

void out_json(struct out *o, const char *s, size_t n)
{
	out_bytes(o, "\"", 1);
	out_escaped(o, s, n);
	out_bytes(o, "\"", 1);
}

void out_json_str(struct out *o, const char *s)
{
	if (s)
		out_json(o, s, strlen(s));
	else
		out_str(o, "null");
}

void out_double(struct out *o, double v)
{
	if (!isfinite(v))                 /* JSON has no such number; vLLM writes the same */
		out_str(o, isnan(v) ? "null" : v < 0 ? "-9999.0" : "9999.0");
	else if (out_room(o, NUMBER_MAX))
		o->n += number_write(o->p + o->n, v);
}

void out_ids(struct out *o, const int32_t *id, size_t n)
{
	out_bytes(o, "[", 1);
	for (size_t i = 0; i < n; i++) {
		if (i)
			out_bytes(o, ",", 1);
		out_int(o, id[i]);
	}
	out_bytes(o, "]", 1);
}
