/* LINK: adapters/text/vocab.c adapters/text/unicode/utf8.c */
/* test_detok.c - ids to text one at a time: never half a character, and in the end the same as
 * decoding all at once.  The vocabulary is the 256 bytes, so every split occurs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <cmocka.h>

#include "adapters/text/detokenize.c"

/* 256 tokens of one byte, a special one (256), a whole word (257), one with two bytes that are no characters
 * (258), and one row more than there are tokens (259). */
static struct sr_text *bytes(void)
{
	struct sr_text *t = calloc(1, sizeof(*t));
	char s[4];

	vocab_init(&t->vocab);
	for (int b = 0, more = 256; b < 256; b++) {
		int itself = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae);
		unsigned n = utf8_put((uint32_t)(itself ? b : more++), s);

		assert_int_equal(vocab_set(&t->vocab, b, s, n, 0), 0);
	}
	assert_int_equal(vocab_set(&t->vocab, 256, "<|end|>", 7, VOCAB_ADDED | VOCAB_SPECIAL), 0);
	assert_int_equal(vocab_set(&t->vocab, 257, "\xc4\xa0world", 7, 0), 0);
	assert_int_equal(vocab_set(&t->vocab, 258, "a\xc3\xbf" "b\xc3\xbf" "c", 7, 0), 0);
	assert_int_equal(vocab_seal(&t->vocab), 0);
	t->info.vocab = t->vocab.n + 1;
	return t;
}

static void drop(struct sr_text *t)
{
	vocab_free(&t->vocab);
	free(t);
}

#define BAD "\xef\xbf\xbd"

/* Bytes as ids, what each push gives (parted by '|'), and what the flush gives. */
static void characters(void **state)
{
	static const struct { const char *in, *want; } cases[] = {
		{ "ab", "a|b||" },
		{ "\xc3\xa9", "|\xc3\xa9||" },
		{ "\xf0\x9f\x98\x80!", "|||\xf0\x9f\x98\x80|!||" },
		{ "\xe4\xbd", "|||" BAD },                         /* unfinished at the end */
		{ "\xe4\xbd" "a", "||" BAD "a||" },                /* one mark for the whole beginning */
		{ "\xe4\xe4\xbd\xa0", "|" BAD "||\xe4\xbd\xa0||" },
		{ "\x80\xff", BAD "|" BAD "||" },
		{ "\xed\xa0\x80", "|" BAD BAD "|" BAD "||" },      /* a surrogate: three marks */
		{ "\xc0\xaf", BAD "|" BAD "||" },
		{ "\xf4\x90\x80", "|" BAD BAD "|" BAD "||" },
	};
	struct sr_text *t = bytes();
	char out[256], all[1024];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct sr_detok d;
		size_t k = 0;
		int n;

		sr_detok_init(&d, true);
		for (const char *p = cases[i].in; *p; p++) {
			n = sr_detok_push(&d, t, (uint8_t)*p, out, sizeof(out));
			assert_true(n >= 0);
			assert_true(utf8_valid(out, (size_t)n));
			memcpy(all + k, out, (size_t)n);
			k += (size_t)n;
			all[k++] = '|';
		}
		all[k++] = '|';
		n = sr_detok_flush(&d, out, sizeof(out));
		memcpy(all + k, out, (size_t)n);
		all[k + (size_t)n] = 0;
		assert_string_equal(all, cases[i].want);
	}
	drop(t);
}

static void special_and_errors(void **state)
{
	struct sr_text *t = bytes();
	const int32_t ids[] = { 'h', 'i', 257, 256 };
	struct sr_detok d;
	char out[64];

	(void)state;
	assert_int_equal(sr_text_decode(t, ids, 4, true, out, sizeof(out)), 8);
	assert_memory_equal(out, "hi world", 8);
	assert_int_equal(sr_text_decode(t, ids, 4, false, out, sizeof(out)), 15);
	memset(out, 'z', sizeof(out));
	assert_int_equal(sr_text_decode(t, ids, 4, false, out, 3), 15);    /* returns the full length, writes what fits */
	assert_memory_equal(out, "hi z", 4);
	assert_int_equal(sr_text_decode(t, (int32_t[]){ 260 }, 1, false, out, 3), -EINVAL);
	assert_int_equal(sr_text_decode(t, (int32_t[]){ 258, 259, 'z' }, 3, false, out, sizeof(out)), 10);
	assert_memory_equal(out, "a" BAD "b" BAD "cz", 10);
	sr_detok_init(&d, true);
	assert_int_equal(sr_detok_push(&d, t, 256, out, sizeof(out)), 0);
	assert_int_equal(sr_detok_push(&d, t, 259, out, sizeof(out)), 0);
	assert_int_equal(sr_detok_push(&d, t, 258, out, sizeof(out)), 9);
	assert_memory_equal(out, "a" BAD "b" BAD "c", 9);
	sr_detok_init(&d, false);
	assert_int_equal(sr_detok_push(&d, t, 256, out, sizeof(out)), 7);
	assert_int_equal(sr_detok_push(&d, t, -1, out, sizeof(out)), -EINVAL);
	assert_int_equal(sr_detok_push(&d, t, 'a', out, 4), -ENOSPC);
	drop(t);
}

/* Random bytes, biased towards beginnings of characters: pushed one by one = decoded whole. */
static void streamed_is_whole(void **state)
{
	static const uint8_t some[] = { 0xe4, 0xbd, 0xa0, 0xf0, 0x9f, 0x98, 0x80, 0xc3, 0xed, 0xf4, 'a' };
	struct sr_text *t = bytes();
	uint32_t x = 1;

	(void)state;
	for (int round = 0; round < 5000; round++) {
		char whole[256], part[256];
		struct sr_detok d;
		int32_t ids[24];
		int64_t n, k = 0;

		for (int i = 0; i < 24; i++) {
			x = x * 1664525 + 1013904223;
			ids[i] = x >> 31 ? some[(x >> 16) % sizeof(some)] : (int32_t)(x >> 20 & 255);
		}
		n = sr_text_decode(t, ids, 24, true, whole, sizeof(whole));
		assert_true(utf8_valid(whole, (size_t)n));
		sr_detok_init(&d, true);
		for (int i = 0; i < 24; i++)
			k += sr_detok_push(&d, t, ids[i], part + k, sizeof(part) - (size_t)k);
		k += sr_detok_flush(&d, part + k, sizeof(part) - (size_t)k);
		assert_int_equal(k, n);
		assert_memory_equal(part, whole, (size_t)n);
	}
	drop(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(characters),
		cmocka_unit_test(special_and_errors),
		cmocka_unit_test(streamed_is_whole),
	};

	return cmocka_run_group_tests_name("detokenize", tests, NULL, NULL);
}
