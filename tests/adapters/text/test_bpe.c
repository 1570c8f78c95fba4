/* LINK: adapters/text/vocab.c adapters/text/unicode/utf8.c -Wl,--wrap=malloc */
/* test_bpe.c - merges on long pieces, in windows of bounded size, give the ids of merging the piece as a
 * whole.  Work is counted, not timed: bytes allocated, and bytes of the piece read.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "adapters/text/bpe.c"
#include "adapters/text/unicode/utf8.h"

static size_t mallocs, most;          /* calls, and the largest */

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_malloc(size_t n)
{
	mallocs++;
	most = n > most ? n : most;
	return __real_malloc(n);
}

static uint32_t seed = 1;

static uint32_t dice(uint32_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 17;
	seed ^= seed << 5;
	return seed % n;
}

/* ---- vocabularies ---------------------------------------------------------------------------- */

#define LETTERS 6                     /* a .. f; other bytes have tokens, but no merges */
#define MERGES  120

struct table { struct vocab v; struct bpe b; };

static void make_bytes(struct vocab *v)
{
	char s[8];

	vocab_init(v);
	for (int i = 0, more = 256; i < 256; i++) {
		bool itself = (i >= '!' && i <= '~') || (i >= 0xa1 && i <= 0xac) || i >= 0xae;

		assert_int_equal(vocab_set(v, i, s, utf8_put((uint32_t)(itself ? i : more++), s), 0), 0);
	}
}

/* Random merges of two existing tokens: each after the merges of its sides, or, shuffled, in any
 * order. */
static void make(struct table *t, bool shuffled)
{
	char token[LETTERS + MERGES][64];
	int pair[MERGES][2], n = 0;

	make_bytes(&t->v);
	for (int i = 0; i < LETTERS; i++)
		snprintf(token[i], sizeof(token[i]), "%c", 'a' + i);
	while (n < MERGES) {
		int l = (int)dice((uint32_t)(LETTERS + n)), r = (int)dice((uint32_t)(LETTERS + n));
		char joined[128];
		bool there = false;

		snprintf(joined, sizeof(joined), "%s%s", token[l], token[r]);
		for (int i = 0; i < LETTERS + n; i++)
			there |= !strcmp(token[i], joined);
		if (there || strlen(joined) > 40)
			continue;
		strcpy(token[LETTERS + n], joined);
		pair[n][0] = l;
		pair[n][1] = r;
		assert_int_equal(vocab_set(&t->v, 256 + n, joined, strlen(joined), 0), 0);
		n++;
	}
	assert_int_equal(vocab_seal(&t->v), 0);
	assert_int_equal(bpe_create(&t->b, &t->v, MERGES), 0);
	for (int i = 0; i < MERGES; i++) {
		int k = shuffled ? (i * 49 + 7) % MERGES : i;
		const char *l = token[pair[k][0]], *r = token[pair[k][1]];

		assert_int_equal(bpe_add(&t->b, l, strlen(l), r, strlen(r)), 0);
	}
	assert_int_equal(t->b.unordered, shuffled);
}

static void drop(struct table *t)
{
	bpe_free(&t->b);
	vocab_free(&t->v);
}

/* ---- texts ----------------------------------------------------------------------------------- */

static void text_random(char *s, size_t n) { for (size_t i = 0; i < n; i++) s[i] = (char)('a' + dice(LETTERS)); }
static void text_one(char *s, size_t n) { memset(s, 'a' + (int)dice(LETTERS), n); }
static void text_period(char *s, size_t n)
{
	size_t p = 2 + dice(40);

	text_random(s, n);
	for (size_t i = p; i < n; i++)
		s[i] = s[i - p];
}
static void text_runs(char *s, size_t n)
{
	for (size_t i = 0, k; i < n; i += k) {
		k = 1 + dice(300);
		k = k < n - i ? k : n - i;
		memset(s + i, 'a' + (int)dice(LETTERS), k);
	}
}
static void text_sparse(char *s, size_t n)    /* bytes without merges between: cuts are easy */
{
	text_random(s, n);
	for (size_t i = 0; i < n; i += 1 + dice(50))
		s[i] = '!';
}

static void (*const texts[])(char *s, size_t n) = { text_random, text_one, text_period, text_runs, text_sparse };
#define N_TEXTS (sizeof(texts) / sizeof(texts[0]))

/* ---- tests ----------------------------------------------------------------------------------- */

/* In one window as large as the piece. */
static size_t whole(const struct bpe *b, const char *s, size_t n, int32_t *id)
{
	struct bpe_out o = { id, n, 0, 0 };
	struct merge_work *w = merge_work_create(n);

	assert_int_equal(encode_windows(b, s, n, &o, w), 0);
	free(w);
	return (size_t)o.n;
}

/* By definition: the lowest rank, the leftmost first. */
static size_t slowly(const struct bpe *b, const char *s, size_t n, int32_t *id)
{
	size_t k = symbols_of(b, s, n, id);

	for (;;) {
		int32_t best = NO_RANK, rank;
		size_t at = 0;

		for (size_t i = 0; i + 1 < k; i++)
			if ((rank = rank_of(b, id[i], id[i + 1])) < best) {
				best = rank;
				at = i;
			}
		if (best == NO_RANK)
			return k;
		id[at] = find_pair(b, id[at], id[at + 1])->id;
		memmove(id + at + 1, id + at + 2, (k - at - 2) * sizeof(*id));
		k--;
	}
}

static void same_ids_as_by_definition(void **state)
{
	static char s[1200];
	static int32_t want[1200], got[1200];

	(void)state;
	for (int round = 0; round < 60; round++) {
		struct table t;
		size_t n = 65 + dice(sizeof(s) - 65), k;
		struct bpe_out o = { got, n, 0, 0 };

		make(&t, round % 3 == 2);
		texts[round % N_TEXTS](s, n);
		k = slowly(&t.b, s, n, want);
		assert_int_equal(bpe_encode(&t.b, s, n, &o), 0);
		assert_int_equal(o.n, k);
		assert_memory_equal(got, want, k * sizeof(*want));
		drop(&t);
	}
}

static void same_ids_in_windows(void **state)
{
	static char s[20000];
	static int32_t want[20000], got[20000];
	size_t cuts = 0, wider = 0;

	(void)state;
	for (int round = 0; round < 300; round++) {
		size_t n = 2000 + dice(18000), k;
		struct bpe_out o = { got, n, 0, 0 };
		struct table t;

		make(&t, round % 10 == 9);
		texts[round % N_TEXTS](s, n);
		k = whole(&t.b, s, n, want);
		mallocs = 0;
		assert_int_equal(bpe_encode(&t.b, s, n, &o), 0);
		assert_int_equal(o.n, k);
		assert_memory_equal(got, want, k * sizeof(*want));
		wider += mallocs - 1;
		cuts += n / WINDOW;
		/* Windows too small for some pieces: they report it, or are right. */
		for (size_t window = 48; window < 200 && !t.b.unordered; window *= 2) {
			struct merge_work *w = merge_work_create(window);

			o.n = 0;
			if (encode_windows(&t.b, s, n, &o, w) == 0) {
				assert_int_equal(o.n, k);
				assert_memory_equal(got, want, k * sizeof(*want));
			}
			free(w);
		}
		drop(&t);
	}
	print_message("%zu windows, %zu times a larger one was needed\n", cuts, wider);
	assert_true(wider * 100 <= cuts);
}

/* Megabytes in one word: one window of bounded size, never a larger one. */
static void a_word_of_megabytes_costs_a_window(void **state)
{
	size_t n = 8u << 20;
	char *s = malloc(n);
	struct table t;

	(void)state;
	make(&t, false);
	for (size_t i = 0; i < N_TEXTS; i++) {
		struct bpe_out o = { NULL, 0, 0, 0 };

		texts[i](s, n);
		mallocs = most = 0;
		assert_int_equal(bpe_encode(&t.b, s, n, &o), 0);
		assert_true(o.n > 0 && o.n <= (int64_t)n);
		assert_int_equal(mallocs, 1);
		assert_true(most < 128 * WINDOW);
	}
	drop(&t);
	free(s);
}

/* With a limit on ids, text behind them is not looked at. */
static void no_further_than_the_limit(void **state)
{
	size_t n = 1u << 30, there = 64u << 10;
	char *s = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct bpe_out o = { NULL, 0, 0, 1000 };
	struct table t;

	(void)state;
	assert_true(s != MAP_FAILED);
	assert_int_equal(mprotect(s, there, PROT_READ | PROT_WRITE), 0);
	make(&t, false);
	text_random(s, there);
	assert_int_equal(bpe_encode(&t.b, s, n / 2, &o), 0);
	assert_true(o.n > 1000 && bpe_over(&o));
	drop(&t);
	munmap(s, n);
}

/* b and sixteen a are one token, but in twelve letters b and eight a are two: more than the limit, until the seam
 * to what comes next is looked at. */
static void a_limit_counts_only_what_is_sure(void **state)
{
	static const char *const pair[][2] = { { "a", "a" }, { "aa", "aa" }, { "aaaa", "aaaa" },
		{ "aaaaaaaa", "aaaaaaaa" }, { "b", "aaaaaaaaaaaaaaaa" } };
	struct bpe_out o = { NULL, 0, 0, 1 };
	struct merge_work *w = merge_work_create(12);
	struct table t;

	(void)state;
	make_bytes(&t.v);
	for (int i = 0; i < 5; i++) {
		char joined[40];

		snprintf(joined, sizeof(joined), "%s%s", pair[i][0], pair[i][1]);
		assert_int_equal(vocab_set(&t.v, 256 + i, joined, strlen(joined), 0), 0);
	}
	assert_int_equal(vocab_seal(&t.v), 0);
	assert_int_equal(bpe_create(&t.b, &t.v, 5), 0);
	for (int i = 0; i < 5; i++)
		assert_int_equal(bpe_add(&t.b, pair[i][0], strlen(pair[i][0]), pair[i][1], strlen(pair[i][1])), 0);
	assert_int_equal(encode_windows(&t.b, "baaaaaaaaaaaaaaaa", 17, &o, w), 1);
	free(w);
	drop(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_ids_as_by_definition),
		cmocka_unit_test(same_ids_in_windows),
		cmocka_unit_test(a_word_of_megabytes_costs_a_window),
		cmocka_unit_test(no_further_than_the_limit),
		cmocka_unit_test(a_limit_counts_only_what_is_sure),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
