/* LINK: core/ngram.c */
/* test_ngram.c - guesses from a text's own words, case by case and beside the slowest way to find them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/ngram.h"

static void test_cases(void **state)
{
	static const struct { const char *what, *text; int32_t least, at, length; const char *next; } cases[] = {
		{ "empty", "", 1, -1, 0, "" },
		{ "one id", "a", 1, -1, 0, "" },
		{ "nothing twice", "abcdef", 1, -1, 0, "" },
		{ "one id again", "abca", 1, 1, 1, "bcab" },
		{ "one is too few", "abca", 2, -1, 0, "" },
		{ "two again", "xabyab", 2, 3, 2, "yaby" },
		{ "the latest of equal ones", "abcabdab", 2, 5, 2, "dabd" },
		{ "the longest before the latest", "xyabc..abd..xyab", 2, 4, 4, "c..a" },
		{ "at the very beginning", "abcdab", 2, 2, 2, "cdab" },
		{ "the whole before it", "abab", 2, 2, 2, "abab" },
		{ "a run", "aaaa", 1, 3, 3, "aaaa" },
		{ "no longer than the longest", "01234567890123456789Z01234567890123456789", 3, 20, 16, "Z012" },
		{ "as good as longer", "..abcdX.abcdY.xabcd", 2, 12, 4, "Y.xa" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		int32_t ids[64], out[4], n = (int32_t)strlen(cases[i].text), length = -1, at;

		for (int32_t j = 0; j < n; j++)
			ids[j] = cases[i].text[j];
		print_message("  %s\n", cases[i].what);
		at = ngram_find(ids, n, cases[i].least, cases[i].length == 4 ? 4 : 16, &length);
		assert_int_equal(at, cases[i].at);
		assert_int_equal(length, cases[i].length);
		if (at < 0)
			continue;
		ngram_copy(ids, n, at, 4, out);
		for (int32_t j = 0; j < 4; j++)
			assert_int_equal(out[j], cases[i].next[j]);
	}
}

/* Every text of up to 9 ids over three letters. */
static void test_all(void **state)
{
	(void)state;
	for (int32_t n = 0, texts = 1; n <= 9; n++, texts *= 3)
		for (int32_t t = 0; t < texts; t++)
			for (int32_t least = 1; least <= 3; least++) {
				int32_t ids[9], length, at, want = -1, most = least - 1;

				for (int32_t j = 0, x = t; j < n; j++, x /= 3)
					ids[j] = x % 3;
				for (int32_t p = 1; p < n; p++)
					for (int32_t m = 1; m <= p; m++)
						if (!memcmp(ids + p - m, ids + n - m, (size_t)m * sizeof(*ids)) && m >= most && m >= least) {
							want = p;
							most = m;
						}
				at = ngram_find(ids, n, least, 9, &length);
				assert_int_equal(at, want);
				assert_int_equal(length, want < 0 ? 0 : most);
			}
}

/* A text made to be slow: 31 equal ids and another one, over and over.  Where all 32 agree is its beginning, which
 * would take 15 comparisons an id to reach. */
static void test_bounded(void **state)
{
	enum { LONG = 1 << 14 };
	static int32_t ids[LONG];
	int32_t length;

	(void)state;
	for (int32_t i = 0; i < LONG; i++)
		ids[i] = i % 32 ? 1 : 2 + i;
	ids[0] = ids[LONG - 32];
	assert_int_equal(ngram_find(ids, LONG, 2, 32, &length), LONG - 32);
	assert_int_equal(length, 31);
	for (int32_t i = 64; i < LONG - 32; i++)
		ids[i] = 2 + i;                    /* now nothing is slow */
	assert_int_equal(ngram_find(ids, LONG, 2, 32, &length), 32);
	assert_int_equal(length, 32);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_cases), cmocka_unit_test(test_all),
					    cmocka_unit_test(test_bounded) };

	return cmocka_run_group_tests_name("ngram", tests, NULL, NULL);
}
