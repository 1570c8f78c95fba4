/* LINK: adapters/http/json/number.c */
/* test_number.c - doubles as text: the shortest that reads back as the same bits, in Python's form. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/http/json/number.h"

static double of_bits(uint64_t u)
{
	double v;

	memcpy(&v, &u, sizeof(v));
	return v;
}

static uint64_t bits_of(double v)
{
	uint64_t u;

	memcpy(&u, &v, sizeof(u));
	return u;
}

static uint64_t next(uint64_t *s)          /* xorshift64* */
{
	*s ^= *s >> 12;
	*s ^= *s << 25;
	*s ^= *s >> 27;
	return *s * 0x2545f4914f6cdd1dull;
}

/* The digits of a number's text without sign, point, exponent and zeros at either end. */
static int digits(const char *s, char *out)
{
	int n = 0;

	for (; *s && *s != 'e'; s++)
		if (*s >= '0' && *s <= '9' && (n || *s != '0'))
			out[n++] = *s;
	while (n && out[n - 1] == '0')
		n--;
	out[n] = 0;
	return n;
}

/* The same by trying printf and strtod: the fewest digits whose nearest decimal reads back as v. */
static int by_trying(double v, char *out)
{
	char s[40];

	for (int n = 1; n < 18; n++) {
		snprintf(s, sizeof(s), "%.*e", n - 1, v);
		if (strtod(s, NULL) == v)
			break;
	}
	return digits(s, out);
}

static void look_at(double v, bool thorough)
{
	char s[NUMBER_MAX + 1], mine[32] = "", tried[32] = "";
	size_t n = number_write(s, v);

	assert_true(n <= NUMBER_MAX);
	s[n] = 0;
	if (bits_of(strtod(s, NULL)) != bits_of(v))
		fail_msg("%s is not %.17g", s, v);
	if (thorough && digits(s, mine) > by_trying(v, tried))
		fail_msg("%s for %s", s, tried);
	/* The lower half of the gap at a power of two is narrower: there the nearest may not read back. */
	if (thorough && bits_of(v) << 12 && strcmp(mine, tried))
		fail_msg("%s for %s", s, tried);
}

static void form(void **state)
{
	static const struct { double v; const char *text; } cases[] = {  /* as Python 3 writes them */
		{ 0.0, "0.0" }, { -0.0, "-0.0" }, { 1, "1.0" }, { -1.5, "-1.5" }, { 10, "10.0" }, { 0.1, "0.1" },
		{ 100, "100.0" }, { 1234.5, "1234.5" }, { 0.001, "0.001" }, { 0.0001, "0.0001" }, { 1e-5, "1e-05" },
		{ 0.00012345, "0.00012345" }, { 1.25e-7, "1.25e-07" }, { 1e15, "1000000000000000.0" },
		{ 9007199254740993.0, "9007199254740992.0" }, { 1e16, "1e+16" }, { 1e22, "1e+22" }, { 1e23, "1e+23" },
		{ 12345678901234567.0, "1.2345678901234568e+16" }, { 1e100, "1e+100" }, { 1e300, "1e+300" },
		{ (double)0.1f, "0.10000000149011612" }, { (double)-0.26282957196235657f, "-0.26282957196235657" },
		{ (double)-11.586777687072754f, "-11.586777687072754" }, { -9999, "-9999.0" },
		{ 5e-324, "5e-324" }, { 2.2250738585072014e-308, "2.2250738585072014e-308" },
		{ 2.225073858507201e-308, "2.225073858507201e-308" }, { DBL_MAX, "1.7976931348623157e+308" },
		{ 5.684341886080802e-14, "5.684341886080802e-14" }, { 9.5367431640625e-07, "9.5367431640625e-07" },
		{ 2.0 / 3, "0.6666666666666666" }, { 4.35, "4.35" }, { 0.3, "0.3" }, { 0.1 + 0.2, "0.30000000000000004" },
	};
	char s[NUMBER_MAX + 1];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		s[number_write(s, cases[i].v)] = 0;
		assert_string_equal(s, cases[i].text);
	}
}

/* v, and the three numbers to either side of it. */
static void look_around(double v)
{
	for (int64_t d = -3; d <= 3; d++)
		if (isfinite(of_bits(bits_of(v) + (uint64_t)d)))
			look_at(of_bits(bits_of(v) + (uint64_t)d), true);
}

/* Each power of two and of ten, and what lies beside them; the smallest and the largest. */
static void edges(void **state)
{
	char s[16];

	(void)state;
	for (int e = -1074; e < 1024; e++)
		look_around(ldexp(1, e));
	for (int e = -323; e < 309; e++) {
		snprintf(s, sizeof(s), "1e%d", e);
		look_around(strtod(s, NULL));
	}
	for (uint64_t u = 1; u < 3000; u++) {
		look_at(of_bits(u), true);
		look_at(of_bits(0x7ff0000000000000ull - u), true);
		look_at(of_bits(0x0010000000000000ull - 1500 + u), true);
	}
}

static void random_ones(void **state)
{
	const int n = getenv("NUMBERS") ? atoi(getenv("NUMBERS")) : 200000;
	uint64_t seed = 42;

	(void)state;
	for (int i = 0; i < n; i++) {
		uint64_t u = next(&seed);
		uint32_t low = (uint32_t)u;
		float f;

		if (isfinite(of_bits(u)))
			look_at(of_bits(u), i % 8 == 0);
		memcpy(&f, &low, sizeof(f));
		if (isfinite(f))                              /* any float, most of them far from 1 */
			look_at((double)f, i % 8 == 1);
		look_at((double)(-(float)(u >> 40) / 524288.0f), i % 8 == 2);  /* a log-probability: 0 to -32 */
		look_at(of_bits(u >> 12), i % 8 == 3);        /* below the normal ones */
		look_at((double)(u % 1000000) / 1000, i % 8 == 4);
		look_at((double)(u >> (u & 63)), i % 8 == 5); /* whole numbers */
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(form), cmocka_unit_test(edges), cmocka_unit_test(random_ones),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
