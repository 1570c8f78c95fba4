/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* fuzz_pattern.c - any bytes as a pattern, and texts of it: the first byte is the flags, and what follows a
 * NUL is taken byte by byte.  What is taken so long as something may follow is live.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/grammar/grammar.h"
#include "adapters/text/grammar/pattern.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void walk(struct regexes *r, uint32_t e, const uint8_t *s, size_t n)
{
	for (size_t i = 0; i < n && i < 200 && regexes_work(r) < 200000; i++) {
		uint64_t first[4];
		uint32_t next = regex_derive(r, e, s[i]), clamped = regex_clamp(r, e, 8);

		if (regex_first(r, e, first) || next == REGEX_FAILED || clamped == REGEX_FAILED)
			return;
		if ((first[s[i] / 64] >> s[i] % 64 & 1) != (next != REGEX_NONE))
			abort();
		if (regex_simple(r, e) && (regex_derive(r, clamped, s[i]) != REGEX_NONE) != (next != REGEX_NONE))
			abort();
		if (regex_nullable(r, e) && regex_live(r, e) != 1)
			abort();
		if (next == REGEX_NONE)
			return;
		e = next;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct grammar_error e = { 0 };
	const uint8_t *end;
	struct regexes *r;
	uint32_t x;

	if (n < 2)
		return 0;
	end = memchr(data + 1, 0, n - 1);
	if (!end)
		end = data + n;
	r = regexes_create(20000);
	if (!r)
		return 0;
	x = pattern_parse(r, (const char *)data + 1, (size_t)(end - data) - 1, data[0] & 3, &e);
	if ((x == REGEX_FAILED) != (e.code != 0) || (e.code && !e.message[0]))
		abort();
	if (x != REGEX_FAILED && end < data + n)
		walk(r, x, end + 1, (size_t)(data + n - end) - 1);
	regexes_free(r);
	return 0;
}
