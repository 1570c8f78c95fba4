/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc */
/* test_pattern_memory.c - each of our allocations fails once, while a pattern is parsed and followed: a sentence
 * and -ENOMEM, or the right result.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "adapters/text/grammar/grammar.h"
#include "adapters/text/grammar/pattern.h"
#include "tests/rig/nth_alloc.h"

/* 1: it matches; 0: it does not; -ENOMEM. */
static int try(const char *pattern, unsigned flags, const char *text)
{
	struct grammar_error e = { 0 };
	struct regexes *r = regexes_create(100000);
	uint32_t x;
	int rc;

	if (!r)
		return -ENOMEM;
	x = pattern_parse(r, pattern, strlen(pattern), flags, &e);
	if (x == REGEX_FAILED && (e.code != -ENOMEM || !e.message[0])) {
		fails = 0;
		fail_msg("/%s/: %d %s", pattern, e.code, e.message);
	}
	for (const char *s = text; *s && x != REGEX_FAILED; s++)
		x = regex_derive(r, x, (uint8_t)*s);
	rc = x == REGEX_FAILED ? -ENOMEM : regex_live(r, x) == -ENOMEM ? -ENOMEM : regex_nullable(r, x);
	regexes_free(r);
	return rc;
}

static void every_allocation(void **state)
{
	static const struct { const char *pattern; unsigned flags; const char *text; } row[] = {
		{ "(?i)\\p{Lu}+[^b-y\\d]|abc{2,9}", 0, "abccc" },
		{ "^(?=.*b)(?!.*\\bx)[a-z -]{2,}$", PATTERN_SEARCH, "a b-c" },
		{ "\\p{Script=Greek}|[\\w\\u00e9]+\\n", PATTERN_JSON, "aaa\\n" },
		{ "(a|b|ab|ba|abc|cab)*(^|x)(a\\b)?y", PATTERN_SEARCH | PATTERN_JSON, "abcabxy" },
	};
	int failed = 0;

	(void)state;
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
		for (int n = 1, rc; ; n++) {
			fails = n;
			calls = 0;
			rc = try(row[i].pattern, row[i].flags, row[i].text);
			fails = 0;
			if (rc != 1 && rc != -ENOMEM)
				fail_msg("/%s/, allocation %d: %d", row[i].pattern, n, rc);
			failed += rc == -ENOMEM;
			if (calls < n) {
				assert_int_equal(rc, 1);
				break;
			}
		}
	assert_true(failed > 100);
}

int main(void)
{
	static const struct CMUnitTest tests[] = { cmocka_unit_test(every_allocation) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
