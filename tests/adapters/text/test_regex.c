/* LINK: @regex */
/* test_regex.c - expressions over bytes: against the sets of strings that they stand for, their
 * simplifications, characters in UTF-8 and in JSON strings, liveness, clamped counts, budgets and failing
 * allocations.
 *
 * build/tests/test_regex COUNT tries COUNT random expressions instead of 20000.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "adapters/text/grammar/pattern.h"
#include "tests/rig/cpu_time.h"

static unsigned long trials = 20000;

/* ---- random expressions, as sets ---- */

/* The strings over {a, b} of at most 5 letters are 63: a set of them is a word.  The string of n letters with
 * the bits v is number (1 << n) - 1 + v. */
#define STRINGS 63
#define LETTERS_MOST 5

static uint64_t rng = 88172645463325252u;

static unsigned pick(unsigned n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (unsigned)(rng >> 33) % n;
}

static unsigned length_of(unsigned i)
{
	unsigned n = 0;

	while ((2u << n) - 1 <= i)
		n++;
	return n;
}

static unsigned text_of(unsigned i, char *s)
{
	unsigned n = length_of(i), v = i - ((1u << n) - 1);

	for (unsigned k = 0; k < n; k++)
		s[k] = v >> (n - 1 - k) & 1 ? 'b' : 'a';
	return n;
}

static unsigned number_of(const char *s, unsigned n)
{
	unsigned v = 0;

	for (unsigned k = 0; k < n; k++)
		v = v << 1 | (s[k] == 'b');
	return (1u << n) - 1 + v;
}

static uint64_t both(uint64_t x, uint64_t y)
{
	uint64_t out = 0;
	char s[16];

	for (unsigned i = 0; i < STRINGS; i++)
		for (unsigned j = 0; x >> i & 1 && j < STRINGS; j++)
			if (y >> j & 1 && length_of(i) + length_of(j) <= LETTERS_MOST) {
				unsigned n = text_of(i, s);

				n += text_of(j, s + n);
				out |= 1ull << number_of(s, n);
			}
	return out;
}

static uint64_t times(uint64_t x, uint32_t min, uint32_t max)
{
	uint64_t power = 1, out = 0;

	for (uint32_t k = 0; k <= max && k <= min + LETTERS_MOST + 1; k++) {
		if (k >= min)
			out |= power;
		power = both(power, x);
	}
	return out;
}

/* An expression and the set that it stands for. */
static uint32_t any_tree(struct regexes *r, int depth, bool simple, uint64_t *set)
{
	static const uint64_t ab[4] = { 0, 3ull << ('a' - 64) };
	uint64_t x, y;
	uint32_t a, b, min, max;

	switch (pick(depth > 0 ? (simple ? 9 : 12) : 4)) {
	case 0:
		*set = 1 << 1;
		return regex_bytes(r, "a", 1);
	case 1:
		*set = 1 << 2;
		return regex_bytes(r, "b", 1);
	case 2:
		*set = 6;
		return regex_set(r, ab);
	case 3:
		*set = 1ull << number_of("aba", 3);
		return regex_bytes(r, "aba", 3);
	case 4: case 5:
		a = any_tree(r, depth - 1, simple, &x);
		b = any_tree(r, depth - 1, simple, &y);
		*set = both(x, y);
		return regex_concat(r, a, b);
	case 6:
		a = any_tree(r, depth - 1, simple, &x);
		b = any_tree(r, depth - 1, simple, &y);
		*set = x | y;
		return regex_or(r, a, b);
	case 7: case 8:
		min = pick(4);
		max = pick(3) ? min + pick(4) : REGEX_MANY;
		a = any_tree(r, depth - 1, simple, &x);
		*set = times(x, min, max);
		return regex_repeat(r, a, min, max);
	case 9: case 10:
		a = any_tree(r, depth - 1, simple, &x);
		b = any_tree(r, depth - 1, simple, &y);
		*set = x & y;
		return regex_and(r, a, b);
	default:
		a = any_tree(r, depth - 1, simple, &x);
		*set = ~x & ((1ull << STRINGS) - 1);
		return regex_not(r, a);
	}
}

static uint32_t after(struct regexes *r, uint32_t e, const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		e = regex_derive(r, e, (uint8_t)s[i]);
	return e;
}

static bool matches(struct regexes *r, uint32_t e, const char *s, size_t n)
{
	return regex_nullable(r, after(r, e, s, n));
}

/* The language over {a, b} up to 5 letters. */
static uint64_t language(struct regexes *r, uint32_t e, unsigned longest)
{
	uint64_t set = 0;
	char s[16];

	for (unsigned i = 0; i < STRINGS; i++) {
		unsigned n = text_of(i, s);

		if (n <= longest && matches(r, e, s, n))
			set |= 1ull << i;
	}
	return set;
}

static void random_trees(void **state)
{
	(void)state;
	for (unsigned long t = 0; t < trials; t++) {
		struct regexes *r = regexes_create(100000);
		uint64_t set, first[4];
		uint32_t e = any_tree(r, 2 + (int)pick(4), t % 3 == 0, &set), d;
		char s[16];

		assert_non_null(r);
		if (e == REGEX_FAILED || language(r, e, LETTERS_MOST) != set)
			fail_msg("tree %lu: error %d, language %llx, not %llx", t, regexes_error(r),
			         (unsigned long long)language(r, e, LETTERS_MOST), (unsigned long long)set);
		if (set)
			assert_int_equal(regex_live(r, e), 1);
		for (unsigned i = 0; i < STRINGS; i++) {         /* what begins a string of the language is live */
			if (!(set >> i & 1))
				continue;
			for (unsigned k = 0, n = text_of(i, s); k < n; k++) {
				d = after(r, e, s, k);
				assert_int_equal(regex_first(r, d, first), 0);
				assert_true(first[1] >> (s[k] - 64) & 1);
				assert_int_equal(regex_live(r, d), 1);
			}
		}
		regexes_free(r);
	}
}

/* x{..} with counts clamped has the same short strings, and the same beginnings of strings. */
static void clamped_trees(void **state)
{
	(void)state;
	for (unsigned long t = 0; t < trials / 4; t++) {
		struct regexes *r = regexes_create(100000);
		unsigned most = pick(5);
		uint64_t set;
		uint32_t e = any_tree(r, 2 + (int)pick(3), true, &set), c = regex_clamp(r, e, most);
		char s[16];

		assert_int_equal(language(r, c, most), language(r, e, most));
		for (unsigned i = 0; i < STRINGS; i++) {
			unsigned n = text_of(i, s);

			if (n <= most)
				assert_int_equal(after(r, e, s, n) == REGEX_NONE, after(r, c, s, n) == REGEX_NONE);
		}
		regexes_free(r);
	}
}

/* ---- equal languages that are equal numbers ---- */

static void simplifications(void **state)
{
	struct regexes *r = regexes_create(10000);
	uint64_t low[4] = { 0, 0xffffffffull }, high[4] = { 0, ~0xffffffffull }, lh[4] = { 0, ~0ull }, all[4];
	uint32_t a = regex_bytes(r, "a", 1), ab = regex_bytes(r, "ab", 2), xy = regex_bytes(r, "xy", 2);
	uint32_t many, three, far;

	(void)state;
	memset(all, 0xff, sizeof(all));
	many = regex_repeat(r, ab, 0, REGEX_MANY);
	three = regex_repeat(r, ab, 3, 3);
	assert_int_equal(regex_or(r, ab, xy), regex_or(r, xy, ab));
	assert_int_equal(regex_or(r, ab, regex_or(r, xy, ab)), regex_or(r, xy, ab));
	assert_int_equal(regex_or(r, regex_set(r, low), regex_set(r, high)), regex_set(r, lh));
	assert_int_equal(regex_and(r, regex_set(r, low), regex_set(r, lh)), regex_set(r, low));
	assert_int_equal(regex_not(r, regex_not(r, ab)), ab);
	assert_int_equal(regex_or(r, ab, regex_not(r, ab)), REGEX_ANY);
	assert_int_equal(regex_and(r, ab, regex_not(r, ab)), REGEX_NONE);
	assert_int_equal(regex_and(r, regex_not(r, ab), regex_not(r, xy)), regex_not(r, regex_or(r, ab, xy)));
	assert_int_equal(regex_concat(r, ab, REGEX_NONE), REGEX_NONE);
	assert_int_equal(regex_concat(r, REGEX_EMPTY, ab), ab);
	assert_int_equal(regex_concat(r, regex_concat(r, ab, xy), a),
	                 regex_concat(r, ab, regex_concat(r, xy, a)));
	assert_int_equal(regex_concat(r, three, many), regex_repeat(r, ab, 3, REGEX_MANY));
	assert_int_equal(regex_concat(r, three, ab), regex_repeat(r, ab, 4, 4));
	assert_int_equal(regex_or(r, three, regex_repeat(r, ab, 4, 9)), regex_repeat(r, ab, 3, 9));
	assert_int_not_equal(regex_or(r, three, regex_repeat(r, ab, 5, 9)), regex_repeat(r, ab, 3, 9));
	far = regex_repeat(r, xy, 15, 19);
	assert_int_not_equal(regex_or(r, far, regex_repeat(r, xy, 11, 13)), regex_repeat(r, xy, 11, 19));
	assert_int_equal(regex_repeat(r, three, 1000, 1000), regex_repeat(r, ab, 3000, 3000));
	assert_int_equal(regex_repeat(r, many, 2, 5), many);
	assert_int_equal(regex_repeat(r, regex_set(r, all), 0, REGEX_MANY), REGEX_ANY);
	assert_int_equal(regex_derive(r, many, 'a'), regex_concat(r, regex_bytes(r, "b", 1), many));
	assert_int_equal(after(r, regex_bytes(r, "abcde", 5), "ab", 2), regex_bytes(r, "cde", 3));
	regexes_free(r);
}

/* ---- characters ---- */

static size_t utf8(uint32_t cp, char *s)
{
	if (cp < 0x80)
		return s[0] = (char)cp, 1;
	if (cp < 0x800)
		return s[0] = (char)(0xc0 | cp >> 6), s[1] = (char)(0x80 | (cp & 63)), 2;
	if (cp < 0x10000)
		return s[0] = (char)(0xe0 | cp >> 12), s[1] = (char)(0x80 | (cp >> 6 & 63)),
		       s[2] = (char)(0x80 | (cp & 63)), 3;
	return s[0] = (char)(0xf0 | cp >> 18), s[1] = (char)(0x80 | (cp >> 12 & 63)),
	       s[2] = (char)(0x80 | (cp >> 6 & 63)), s[3] = (char)(0x80 | (cp & 63)), 4;
}

/* Every code point, surrogates too, against the ranges it was made of. */
static void characters(void **state)
{
	static const struct regex_range some[] = { { 0, 9 }, { 'A', 'z' }, { 0x7f, 0x80 }, { 0x7fe, 0x900 },
		{ 0xd000, 0xe001 }, { 0xfffe, 0x10001 }, { 0x3ffff, 0x80000 }, { 0x10fffe, 0x10ffff } };
	struct regexes *r = regexes_create(10000);
	uint32_t e = regex_points(r, some, 8), j = json_points(r, some, 8), k;
	char s[32];

	(void)state;
	for (uint32_t cp = 0; cp <= 0x110000; cp++) {
		bool in = false, surrogate = cp >= 0xd800 && cp <= 0xdfff;
		uint32_t v = cp - 0x10000;

		for (k = 0; k < 8; k++)
			in |= cp >= some[k].first && cp <= some[k].last;
		in &= !surrogate;
		if (matches(r, e, s, utf8(cp, s)) != in)
			fail_msg("U+%04X in UTF-8: not %d", cp, in);
		if (matches(r, j, s, utf8(cp, s)) != (in && cp >= 0x20 && cp != '"' && cp != '\\'))
			fail_msg("U+%04X raw in a JSON string", cp);
		if (cp < 0x10000)
			snprintf(s, sizeof(s), cp & 1 ? "\\u%04x" : "\\u%04X", cp);
		else
			snprintf(s, sizeof(s), "\\u%04x\\u%04X", 0xd800 + (v >> 10), 0xdc00 + (v & 0x3ff));
		if (cp <= 0x10ffff && matches(r, j, s, strlen(s)) != in)
			fail_msg("U+%04X as %s: not %d", cp, s, in);
	}
	assert_false(matches(r, e, "\xc1\xbf", 2));          /* overlong */
	assert_false(matches(r, e, "\xe0\x80\x81", 3));
	assert_true(regexes_count(r) < 500);
	regexes_free(r);
}

static void json_strings(void **state)
{
	static const struct { const char *text, *body; bool is;
	} row[] = {
		{ "a", "a", true },
		{ "a", "\\u0061", true },
		{ "a", "\\u0062", false },
		{ "a", "\\a", false },
		{ "\n", "\\n", true },
		{ "\n", "\\u000A", true },
		{ "\n", "\n", false },
		{ "\"", "\\\"", true },
		{ "\"", "\"", false },
		{ "/", "/", true },
		{ "/", "\\/", true },
		{ "\xc3\xa9", "\xc3\xa9", true },
		{ "\xc3\xa9", "\\u00E9", true },
		{ "\xf0\x9f\x98\x80", "\\ud83d\\uDE00", true },
		{ "\xf0\x9f\x98\x80", "\\ud83d", false },
		{ "ab", "\\u0061b", true },
		{ "ab", "a", false },
		{ "", "", true },
	};
	struct regexes *r = regexes_create(10000);
	uint32_t any;

	(void)state;
	any = regex_repeat(r, json_char(r), 0, REGEX_MANY);
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		uint32_t e = json_text(r, row[i].text, strlen(row[i].text));

		if (matches(r, e, row[i].body, strlen(row[i].body)) != row[i].is)
			fail_msg("\"%s\" of the text %s", row[i].body, row[i].text);
		/* In JSON strings: all of the language is a part of any*, so these are equal. */
		assert_int_equal(regex_or(r, any, e), any);
		assert_int_equal(regex_and(r, any, e), e);
	}
	assert_false(matches(r, any, "\\udc00", 6));         /* half a pair */
	assert_false(matches(r, any, "\t", 1));
	assert_int_equal(
		regex_and(r, regex_repeat(r, json_char(r), 2, REGEX_MANY), regex_repeat(r, json_char(r), 0, 7)),
		regex_repeat(r, json_char(r), 2, 7));
	regexes_free(r);
}

/* ---- counts, liveness, budgets ---- */

static void counts(void **state)
{
	struct regexes *r = regexes_create(10000);
	uint32_t a = regex_bytes(r, "a", 1), big = regex_repeat(r, a, 1000000000, 1000000000), e;
	uint32_t nest =
		regex_repeat(r, regex_or(r, regex_repeat(r, a, 1, 1000), regex_bytes(r, "bc", 2)), 1, 1000);

	(void)state;
	e = big;
	for (int i = 0; i < 1000; i++)
		e = regex_derive(r, e, 'a');
	assert_int_equal(e, regex_repeat(r, a, 999999000, 999999000));
	assert_int_equal(regex_clamp(r, e, 32), regex_clamp(r, big, 32));
	for (int i = 0; i < 1000; i++)
		nest = regex_derive(r, nest, 'a');
	assert_true(regex_nullable(r, nest));
	assert_true(regexes_count(r) < 8000);
	regexes_free(r);
}

static void liveness(void **state)
{
	struct regexes *r = regexes_create(1000000);
	uint32_t a = regex_bytes(r, "a", 1), even = regex_repeat(r, regex_bytes(r, "aa", 2), 0, REGEX_MANY);
	uint32_t odd = regex_concat(r, a, even), ab = regex_or(r, a, regex_bytes(r, "b", 1));
	uint32_t has_c = regex_concat(r, REGEX_ANY, regex_concat(r, regex_bytes(r, "c", 1), REGEX_ANY));

	(void)state;
	assert_int_equal(regex_live(r, regex_and(r, even, odd)), 0);
	assert_int_equal(regex_live(r, regex_and(r, even, regex_not(r, odd))), 1);
	assert_int_equal(regex_live(r, regex_and(r, regex_repeat(r, ab, 0, 2000), has_c)), 0);
	assert_int_equal(regex_live(r, regex_and(r, regex_repeat(r, ab, 200000, REGEX_MANY), has_c)), -E2BIG);
	assert_int_equal(regexes_error(r), 0);
	assert_int_equal(regex_live(r, regex_repeat(r, ab, 200000, REGEX_MANY)), 1);
	assert_int_equal(regex_live(r, REGEX_NONE), 0);
	regexes_free(r);
}

static void budgets(void **state)
{
	struct regexes *r = regexes_create(1000);
	uint32_t e = REGEX_EMPTY, deep;
	char s[16];

	(void)state;
	for (int i = 0; i < 2000; i++)
		e = regex_concat(r, regex_bytes(r, s, (size_t)snprintf(s, sizeof(s), "%d", i)), e);
	assert_int_equal(e, REGEX_FAILED);
	assert_int_equal(regexes_error(r), -E2BIG);
	assert_int_equal(regex_bytes(r, "a", 1), REGEX_FAILED);     /* sticky */
	assert_int_equal(regex_or(r, REGEX_FAILED, REGEX_ANY), REGEX_FAILED);
	regexes_free(r);

	r = regexes_create(100000);
	deep = regex_bytes(r, "a", 1);
	for (int i = 0; i < 2000; i++)
		deep = regex_not(r, regex_concat(r, deep, regex_bytes(r, "ab", 2)));
	assert_int_equal(deep, REGEX_FAILED);
	assert_int_equal(regexes_error(r), -E2BIG);
	regexes_free(r);

	r = regexes_create(100000);                                 /* a long one is not a deep one */
	e = REGEX_EMPTY;
	for (int i = 0; i < 20000; i++)
		e = regex_concat(r, regex_bytes(r, s, (size_t)snprintf(s, sizeof(s), "%d", i)), e);
	assert_int_equal(regexes_error(r), 0);
	assert_int_not_equal(regex_derive(r, e, '1'), REGEX_FAILED);
	assert_int_not_equal(regex_concat(r, regex_derive(r, e, '1'), e), REGEX_FAILED);
	regexes_free(r);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_trees), cmocka_unit_test(clamped_trees), cmocka_unit_test(simplifications),
		cmocka_unit_test(characters), cmocka_unit_test(json_strings), cmocka_unit_test(counts),
		cmocka_unit_test(liveness), cmocka_unit_test(budgets),
	};

	if (argc > 1)
		trials = strtoul(argv[1], NULL, 10);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
