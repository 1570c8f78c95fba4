/* LINK: adapters/http/json/out.c adapters/http/json/number.c -Wl,--wrap=realloc */
/* test_out.c - growing buffers, strings and numbers as JSON, and which bytes are UTF-8. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "adapters/http/json/out.h"

static bool no_memory;

void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n)
{
	return no_memory ? NULL : __real_realloc(p, n);
}

static void is(struct out *o, const char *want)
{
	assert_false(o->failed);
	assert_int_equal(o->n, strlen(want));
	assert_memory_equal(o->p, want, o->n);
	out_free(o);
}

/* The lengths by their definition: every first byte, with every second, third and fourth one. */
static size_t by_definition(const unsigned char *u, size_t n)
{
	uint32_t c;

	if (!n || u[0] < 0x80)
		return n > 0;
	for (size_t len = 2; len <= 4 && len <= n; len++) {
		size_t i = 1;

		if ((size_t)(u[0] >> (7 - len)) != ((size_t)1 << (len + 1)) - 2)  /* 110, 1110, 11110 */
			continue;
		c = u[0] & (0x7fu >> len);
		for (; i < len && u[i] >> 6 == 2; i++)
			c = c << 6 | (u[i] & 0x3f);
		if (i == len && c >= (len == 2 ? 0x80u : len == 3 ? 0x800u : 0x10000u) && c <= 0x10ffff &&
		    (c < 0xd800 || c > 0xdfff))
			return len;
	}
	return 0;
}

static void utf8(void **state)
{
	static const unsigned char last[] = { 0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xf4, 0xff };
	unsigned char u[4];

	(void)state;
	assert_int_equal(utf8_length("", 0), 0);
	for (int a = 0; a < 256; a++)
		for (int b = 0; b < 256; b++)
			for (size_t i = 0; i < sizeof(last) * sizeof(last); i++) {
				u[0] = (unsigned char)a, u[1] = (unsigned char)b;
				u[2] = last[i / sizeof(last)], u[3] = last[i % sizeof(last)];
				for (size_t n = 1; n <= 4; n++)
					if (utf8_length((const char *)u, n) != by_definition(u, n))
						fail_msg("%02x %02x %02x %02x, %zu of them", a, b, u[2], u[3], n);
			}
	assert_int_equal(utf8_count("a\xc3\xa9\xf0\x9f\x98\x80", 7), 3);
	assert_int_equal(utf8_count("\xff\xf0\x9f\x98", 4), 4);       /* each bad byte is one */
	assert_int_equal(utf8_count("", 0), 0);
}

static void strings(void **state)
{
	static const struct { const char *s, *want; } cases[] = {
		{ "", "\"\"" }, { "plain", "\"plain\"" }, { "\"\\/", "\"\\\"\\\\/\"" },
		{ "\b\t\n\f\r", "\"\\b\\t\\n\\f\\r\"" }, { "\x01\x1f\x7f", "\"\\u0001\\u001f\x7f\"" },
		{ "\xc3\xa9", "\"\xc3\xa9\"" }, { "a\xff" "b", "\"a\xef\xbf\xbd" "b\"" },
		{ "\xf0\x9f\x98", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"" }, { NULL, "null" },
	};
	struct out o = { 0 };

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		out_json_str(&o, cases[i].s);
		is(&o, cases[i].want);
	}
	out_json(&o, "a\0b", 3);
	is(&o, "\"a\\u0000b\"");
	out_escaped(&o, "a\"b", 3);
	is(&o, "a\\\"b");
}

static void numbers(void **state)
{
	static const int32_t ids[] = { 0, -1, INT32_MAX };
	struct out o = { 0 };

	(void)state;
	for (int i = 0; i < 3; i++) {
		out_int(&o, (const int64_t[]){ 0, INT64_MIN, INT64_MAX }[i]);
		is(&o, (const char *[]){ "0", "-9223372036854775808", "9223372036854775807" }[i]);
	}
	for (int i = 0; i < 4; i++) {
		out_double(&o, (const double[]){ 1, __builtin_nan(""), __builtin_inf(), -__builtin_inf() }[i]);
		is(&o, (const char *[]){ "1.0", "null", "9999.0", "-9999.0" }[i]);
	}
	out_ids(&o, ids, 3);
	is(&o, "[0,-1,2147483647]");
	out_ids(&o, ids, 0);
	is(&o, "[]");
	out_fmt(&o, "%d and %s", 7, "x");
	is(&o, "7 and x");
}

/* It grows in steps, keeps its bytes, and after a failure adds nothing until it is emptied. */
static void memory(void **state)
{
	char expect[5000];
	struct out o = { 0 };

	(void)state;
	for (size_t n = 0; n < sizeof(expect); n++) {
		expect[n] = (char)('a' + n % 26);
		out_bytes(&o, expect + n, 1);
		assert_true(o.n == n + 1 && o.cap >= o.n);
	}
	assert_memory_equal(o.p, expect, sizeof(expect));
	assert_int_equal(o.cap, 8192);
	assert_true(out_room(&o, o.cap - o.n));        /* exactly the room left: no growth */
	assert_int_equal(o.cap, 8192);
	assert_false(out_room(&o, SIZE_MAX));          /* the sum overflows */
	assert_true(o.failed);
	out_reset(&o);
	assert_true(!o.failed && !o.n && o.cap == 8192);
	assert_false(out_room(&o, SIZE_MAX / 2 + 1));  /* doubling it overflows */
	out_reset(&o);
	no_memory = true;
	assert_false(out_room(&o, o.cap + 1));
	no_memory = false;
	out_str(&o, "more");
	out_int(&o, 1);
	out_double(&o, 1);
	out_fmt(&o, "more");
	assert_true(o.failed && !o.n);
	out_free(&o);
	assert_true(!o.failed && !o.p && !o.cap);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(utf8), cmocka_unit_test(strings), cmocka_unit_test(numbers), cmocka_unit_test(memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
