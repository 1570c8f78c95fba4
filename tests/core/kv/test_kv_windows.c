/* LINK: @kv -lxxhash */
/* test_kv_windows.c - groups of layers with windows: what a table holds, what stays cached, what matches.
 *
 * Most cases have two groups, of all tokens and of the last 64: the token behind a block reads 4 full blocks of
 * the window, and 5 are kept.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/kv/kv.h"

#define B      16
#define WINDOW 64
#define CAP    128
#define CHUNKS (CAP * B / KV_CHUNK + 1)

/* A sequence: ids by a formula, so that texts differ from their first id on. */
struct text {
	struct kv_chunk chunk[CHUNKS];
	int32_t block[KV_TABLE_INTS(3, CAP)];
	struct kv_table t;
};

static void text_make(struct text *x, int32_t text)
{
	memset(x, 0, sizeof(*x));
	for (int i = 0; i < CHUNKS; i++) {
		x->chunk[i].next = i + 1 < CHUNKS ? &x->chunk[i + 1] : NULL;
		for (int j = 0; j < KV_CHUNK; j++)
			x->chunk[i].id[j] = text * 10000 + i * KV_CHUNK + j;
	}
	x->t = (struct kv_table){ .block = x->block, .cap = CAP, .at = x->chunk };
}

/* From token n on it differs from the text of the same number. */
static void text_part(struct text *x, int32_t n, int32_t by)
{
	for (int32_t i = n; i < CHUNKS * KV_CHUNK; i++)
		x->chunk[i / KV_CHUNK].id[i % KV_CHUNK] += by;
}

static struct kv *make_groups(int32_t n_blocks, int32_t n_groups, int32_t w0, int32_t w1, int32_t w2)
{
	struct kv *kv;

	assert_int_equal(kv_create(&kv, &(struct kv_config){ .n_blocks = n_blocks, .block_tokens = B, .key = { 7, 9 },
		.n_owners = 3, .n_groups = n_groups, .group = { { w0 }, { w1 }, { w2 } } }), 0);
	return kv;
}

static struct kv *make(int32_t n_blocks)
{
	return make_groups(n_blocks, 2, 0, WINDOW, 0);
}

static int32_t held(const struct kv *kv)
{
	struct kv_stats s;

	kv_stats(kv, &s);
	kv_check(kv);
	return s.n_held;
}

static int32_t cached(const struct kv *kv)
{
	struct kv_stats s;

	kv_stats(kv, &s);
	kv_check(kv);
	return s.n_cached;
}

/* Compute tokens from..to, `step` at a time, as the scheduler does. */
static void compute(struct kv *kv, struct text *x, int32_t from, int32_t to, int32_t step)
{
	for (int32_t n = from; n < to; n = n + step < to ? n + step : to) {
		int32_t next = n + step < to ? n + step : to;

		kv_begin(kv, 0);
		kv_slide(kv, &x->t, n);
		assert_int_equal(kv_grow(kv, &x->t, next), 0);
		kv_launched(kv);
		kv_publish(kv, &x->t, next);
		kv_check(kv);
	}
}

/* Serve a text: what is found, then a prompt, then an answer token by token.  Returns the tokens found. */
static int32_t serve(struct kv *kv, struct text *x, int32_t n_prompt, int32_t n)
{
	int32_t found;

	x->t.end = n_prompt / B;
	x->t.at = x->chunk;
	found = kv_match(kv, &x->t, n_prompt);
	compute(kv, x, found, n_prompt, 128);
	compute(kv, x, n_prompt, n, 1);
	kv_release(kv, &x->t);
	kv_check(kv);
	return found;
}

static int32_t found(struct kv *kv, struct text *x, int32_t n)
{
	int32_t tokens;

	x->t.at = x->chunk;
	tokens = kv_match(kv, &x->t, n);
	kv_release(kv, &x->t);
	kv_check(kv);
	return tokens;
}

static void test_holds(void **state)
{
	static const struct { int32_t n, full, window; } cases[] = {
		{ 16, 1, 1 }, { 17, 2, 2 }, { 64, 4, 4 }, { 80, 5, 5 }, { 96, 6, 6 }, { 97, 7, 6 }, { 1000, 63, 6 },
	};
	struct kv *kv = make(200);
	struct text x;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		text_make(&x, 1);
		compute(kv, &x, 0, cases[i].n, 1);
		assert_int_equal(x.t.n, cases[i].full);
		assert_int_equal(x.t.n - kv_first(kv, &x.t, 1), cases[i].window);
		assert_int_equal(held(kv), cases[i].full + cases[i].window);
		assert_int_equal(kv_first(kv, &x.t, 0), 0);
		kv_release(kv, &x.t);
		assert_int_equal(held(kv), 0);
	}
	kv_destroy(kv);
}

/* Held blocks beside what the layers read: every window that counts, at 20 lengths and steps of 1 token. */
static void test_bound(void **state)
{
	static const int32_t window[] = { 128, 512, 1024 };

	(void)state;
	for (int w = 0; w < 3; w++) {
		struct kv *kv = make_groups(400, 2, 0, window[w], 0);
		int64_t needed = 0, has = 0;
		struct text x;

		text_make(&x, 1);
		for (int32_t n = 0; n < CAP * B; n++) {
			kv_slide(kv, &x.t, n);
			assert_int_equal(kv_grow(kv, &x.t, n + 1), 0);
			kv_publish(kv, &x.t, n + 1);
			needed += n / B + 1 + (n - (n >= window[w] ? n - window[w] + 1 : 0)) / B + 1;
			has += x.t.n + x.t.n - kv_first(kv, &x.t, 1);
		}
		assert_int_equal(held(kv), 2 * x.t.n - kv_first(kv, &x.t, 1));
		print_message("window %d: %.3f times what its layers read\n", window[w], (double)has / (double)needed);
		assert_true(has * 100 <= needed * 105);
		kv_release(kv, &x.t);
		kv_destroy(kv);
	}
}

/* What a prompt and an answer leave: all full blocks, and a unit at each end. */
static void test_units(void **state)
{
	struct kv *kv = make(200);
	struct text x, y;

	(void)state;
	text_make(&x, 1);
	assert_int_equal(serve(kv, &x, 160, 480), 0);
	assert_int_equal(cached(kv), 30 + 5 + 5);
	assert_int_equal(found(kv, &x, 500), 480);   /* at the end of the answer */
	assert_int_equal(found(kv, &x, 480), 464);   /* and in its last block, by the block more */
	assert_int_equal(found(kv, &x, 464), 160);   /* else at the end of the prompt */
	assert_int_equal(found(kv, &x, 160), 144);
	assert_int_equal(found(kv, &x, 144), 0);
	text_make(&y, 1);
	text_part(&y, 170, 1);                       /* another answer */
	assert_int_equal(found(kv, &y, 500), 160);
	kv_destroy(kv);
}

/* The third prompt that begins alike finds it: the second learned where prompts part. */
static void test_fork(void **state)
{
	struct kv *kv = make(200);
	struct kv_stats st;
	struct text x;

	(void)state;
	for (int i = 0; i < 4; i++) {
		text_make(&x, 1);
		text_part(&x, 320, i);
		assert_int_equal(serve(kv, &x, 800, 810), i < 2 ? 0 : 320);
		assert_int_equal(held(kv), 0);
	}
	kv_stats(kv, &st);
	assert_int_equal(st.missed, 320 / B);        /* by the second */
	kv_destroy(kv);
}

/* One block of a unit goes, all go; full blocks stay. */
static void test_evicted_together(void **state)
{
	struct kv *kv = make(40);
	struct kv_stats s;
	struct text x, y;

	(void)state;
	text_make(&x, 1);
	text_make(&y, 2);
	serve(kv, &x, 320, 321);
	assert_int_equal(cached(kv), 20 + 5);
	kv_begin(kv, 0);
	assert_int_equal(kv_grow(kv, &y.t, 7 * B), 0);      /* 14 blocks of 15 that are free */
	assert_int_equal(cached(kv), 25);
	assert_int_equal(kv_grow(kv, &y.t, 8 * B), 0);      /* one block too many */
	kv_launched(kv);
	kv_stats(kv, &s);
	kv_check(kv);
	assert_int_equal(s.n_cached, 20);                   /* the whole unit is gone */
	assert_int_equal(s.n_free, 40 - 20 - 16);
	assert_int_equal(found(kv, &x, 321), 0);
	kv_release(kv, &y.t);
	kv_destroy(kv);
}

/* A unit of which a running sequence holds a part is evicted, too; what is held stays held. */
static void test_evicted_held(void **state)
{
	struct kv *kv = make(33);
	struct text x, y;

	(void)state;
	text_make(&x, 1);
	text_make(&y, 2);
	x.t.end = 10;
	compute(kv, &x, 0, 160, 160);
	compute(kv, &x, 160, 195, 1);                       /* 2 blocks of the unit have left the window */
	assert_int_equal(cached(kv), 2);
	assert_int_equal(held(kv), 13 + 6);
	assert_int_equal(kv_grow(kv, &y.t, 6 * B), 0);      /* all that is free: 12 blocks */
	assert_int_equal(cached(kv), 2);
	assert_int_equal(kv_grow(kv, &y.t, 7 * B), 0);
	assert_int_equal(cached(kv), 0);
	assert_int_equal(held(kv), 33);
	kv_release(kv, &y.t);
	compute(kv, &x, 195, 300, 1);
	assert_int_equal(cached(kv), 0);                    /* nothing that was a unit's is cached later */
	kv_release(kv, &x.t);
	assert_int_equal(found(kv, &x, 1000), 288);        /* its last window is a unit of its own */
	kv_destroy(kv);
}

/* A window's block that left it is the next that is taken. */
static void test_taken_first(void **state)
{
	struct kv *kv = make(200);
	struct kv_stats s;
	struct text x;
	int32_t left;

	(void)state;
	text_make(&x, 1);
	compute(kv, &x, 0, 96, 1);
	left = x.block[CAP];
	kv_slide(kv, &x.t, 96);
	assert_int_equal(kv_grow(kv, &x.t, 97), 0);
	assert_true(x.block[6] == left || x.block[CAP + 6] == left);
	kv_stats(kv, &s);
	assert_int_equal(s.slid, 1);
	kv_release(kv, &x.t);
	kv_destroy(kv);
}

/* 8 conversations in turn, with 90 % of the pool in use: each turn finds all that went before. */
static void test_conversations(void **state)
{
	enum { TALKS = 8, TURNS = 5, QUESTION = 100, ANSWER = 120 };
	/* at the end each has 5 * 220 / 16 = 68 full blocks, a unit at the end of its last answer, and what older
	 * units left */
	struct kv *kv = make(TALKS * (68 + 5 * 2 * TURNS) * 10 / 9);
	static struct text x[TALKS];

	(void)state;
	for (int i = 0; i < TALKS; i++)
		text_make(&x[i], i + 1);
	for (int turn = 0; turn < TURNS; turn++)
		for (int i = 0; i < TALKS; i++) {
			int32_t before = turn * (QUESTION + ANSWER);

			assert_int_equal(serve(kv, &x[i], before + QUESTION, before + QUESTION + ANSWER), before / B * B);
		}
	kv_destroy(kv);
}

/* While one sequence computes a prompt, another may take what is in its window. */
static void test_follow(void **state)
{
	struct kv *kv = make(200);
	struct text x, y;

	(void)state;
	text_make(&x, 1);
	text_make(&y, 1);
	compute(kv, &x, 0, 320, 64);
	assert_int_equal(kv_match(kv, &y.t, 1000), 320);
	assert_int_equal(held(kv), 20 + 9);            /* of the window: the last 4 are shared, x holds 5 more */
	compute(kv, &x, 320, 480, 16);                 /* x leaves the shared ones, y does not */
	compute(kv, &y, 320, 352, 16);
	assert_int_equal(y.t.n - kv_first(kv, &y.t, 1), 6);
	kv_release(kv, &x.t);
	kv_release(kv, &y.t);
	assert_int_equal(held(kv), 0);
	kv_destroy(kv);
}

/* Three groups; no full group; windows of one token and of more than a sequence has. */
static void test_kinds(void **state)
{
	static const struct { int32_t n, w[3], held, match; } cases[] = {
		{ 3, { 0, 64, 64 }, 63 + 6 + 6, 992 },
		{ 3, { 0, 16, 128 }, 63 + 3 + 10, 992 },
		{ 1, { 64 }, 6, 992 },
		{ 2, { 64, 1024 }, 6 + 63, 992 },
		{ 2, { 0, 1 }, 63 + 2, 992 },
		{ 2, { 0, 100000 }, 63 + 63, 992 },
		{ 2, { 0, 0 }, 63 + 63, 992 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct kv *kv = make_groups(300, cases[i].n, cases[i].w[0], cases[i].w[1], cases[i].w[2]);
		struct text x;

		text_make(&x, 1);
		compute(kv, &x, 0, 1000, 1);
		assert_int_equal(held(kv), cases[i].held);
		kv_release(kv, &x.t);
		assert_int_equal(found(kv, &x, 1001), cases[i].match);
		kv_destroy(kv);
	}
}

static void test_lacks(void **state)
{
	const struct kv_config c = { .block_tokens = B, .n_groups = 2, .group = { { 0 }, { WINDOW } } };
	struct kv *kv = make(200);
	struct text x;

	(void)state;
	text_make(&x, 1);
	assert_int_equal(kv_lacks(kv, &x.t, 16, 128), 2);
	assert_int_equal(kv_lacks(kv, &x.t, 1600, 128), 100 + 4 + 2 + 8);
	assert_int_equal(kv_most(&c, 1600, 128), 100 + 4 + 2 + 8);
	assert_int_equal(kv_most(&c, 40, 128), 3 + 3);
	compute(kv, &x, 0, 800, 128);
	assert_int_equal(kv_lacks(kv, &x.t, 1600, 128), 50 + 14 - (50 - kv_first(kv, &x.t, 1)));
	for (int32_t n = 800; n < 1600; n += 128) {
		kv_slide(kv, &x.t, n);
		assert_int_equal(kv_grow(kv, &x.t, n + 128 < 1600 ? n + 128 : 1600), 0);
		assert_true(held(kv) <= 100 + 14);
	}
	kv_release(kv, &x.t);
	kv_destroy(kv);
}

/* The other tier.  Two groups, 4 blocks of a window that a match needs. */
static struct kv *make_tiers(int32_t n_blocks, int32_t n_host, int32_t copies)
{
	struct kv *kv;

	assert_int_equal(kv_create(&kv, &(struct kv_config){ .n_blocks = n_blocks, .n_host = n_host, .copies = copies,
		.block_tokens = B, .key = { 7, 9 }, .n_owners = 3, .n_groups = 2, .group = { { 0 }, { WINDOW } } }), 0);
	return kv;
}

/* Copy out what is cached, `copies` at most in a batch. */
static void demote(struct kv *kv, int32_t copies, int batches)
{
	for (int i = 0; i < batches; i++) {
		kv_begin(kv, copies);
		kv_demote(kv, 100);
		kv_check(kv);
		kv_launched(kv);
		kv_check(kv);
	}
}

/* Evict everything from the device, without a copy. */
static void forget(struct kv *kv, int32_t n_blocks)
{
	struct text y;

	text_make(&y, 9);
	kv_begin(kv, 0);
	assert_int_equal(kv_grow(kv, &y.t, n_blocks / 2 * B), 0);
	kv_launched(kv);
	kv_release(kv, &y.t);
	assert_int_equal(cached(kv), 0);
}

/* A prompt of 20 full blocks and a unit of 5 goes to the host and comes back, in one batch or in several. */
static void test_tiers(void **state)
{
	static const struct { int32_t copies, batches, found; } cases[] = {
		{ 100, 1, 320 }, { 24, 1, 320 }, { 23, 2, 320 }, { 10, 3, 320 }, { 4, 6, 320 }, { 3, 1, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct kv *kv = make_tiers(60, 100, 100);
		const struct kv_copy *copy;
		struct kv_stats s;
		struct text x;
		int batches = 0;

		text_make(&x, 1);
		serve(kv, &x, 320, 321);
		demote(kv, 100, 1);
		kv_stats(kv, &s);
		assert_int_equal(s.n_host_cached, 25);
		forget(kv, 60);
		text_make(&x, 1);
		do {
			kv_begin(kv, cases[i].copies);
			kv_match(kv, &x.t, 321);
			kv_check(kv);
			assert_true(kv_copies(kv, &copy) <= cases[i].copies);
			assert_true(x.t.n == 0 || !x.t.more);       /* all or nothing */
			kv_launched(kv);
			kv_check(kv);
			batches++;
		} while (x.t.more && batches < 20);
		if (x.t.n * B != cases[i].found || batches != cases[i].batches)
			fail_msg("%d copies: %d tokens in %d batches", cases[i].copies, x.t.n * B, batches);
		if (cases[i].found)
			assert_int_equal(held(kv), 24);
		kv_release(kv, &x.t);
		kv_destroy(kv);
	}
}

/* A unit is copied out whole, or not at all. */
static void test_unit_copied(void **state)
{
	struct kv *kv = make_tiers(60, 100, 100);
	struct kv_stats s;
	struct text x;

	(void)state;
	text_make(&x, 1);
	serve(kv, &x, 320, 321);
	demote(kv, 4, 8);                     /* the unit needs 5 */
	kv_stats(kv, &s);
	assert_int_equal(s.n_host_cached, 20);
	demote(kv, 5, 1);
	kv_stats(kv, &s);
	assert_int_equal(s.n_host_cached, 25);
	kv_destroy(kv);
	kv = make_tiers(60, 4, 100);          /* no room for 5 */
	serve(kv, (text_make(&x, 1), &x), 80, 81);
	demote(kv, 100, 1);
	kv_stats(kv, &s);
	assert_int_equal(s.copies_out, 4);    /* of 5 full blocks */
	kv_destroy(kv);
}

/* The host's units are evicted whole, too. */
static void test_host_unit_evicted(void **state)
{
	struct kv *kv = make_tiers(60, 12, 100);
	struct kv_stats s;
	struct text x, y;

	(void)state;
	serve(kv, (text_make(&x, 1), &x), 96, 97);
	demote(kv, 100, 1);
	kv_stats(kv, &s);
	assert_int_equal(s.n_host_cached, 6 + 5);
	forget(kv, 60);
	serve(kv, (text_make(&y, 2), &y), 32, 33); /* 2 full blocks, 2 of a window: the unit goes, which is the oldest */
	demote(kv, 100, 1);
	kv_stats(kv, &s);
	kv_check(kv);
	assert_int_equal(s.n_host_cached, 6 + 4);
	kv_destroy(kv);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_holds),
		cmocka_unit_test(test_bound),
		cmocka_unit_test(test_units),
		cmocka_unit_test(test_fork),
		cmocka_unit_test(test_evicted_together),
		cmocka_unit_test(test_evicted_held),
		cmocka_unit_test(test_taken_first),
		cmocka_unit_test(test_conversations),
		cmocka_unit_test(test_follow),
		cmocka_unit_test(test_kinds),
		cmocka_unit_test(test_lacks),
		cmocka_unit_test(test_tiers),
		cmocka_unit_test(test_unit_copied),
		cmocka_unit_test(test_host_unit_evicted),
	};

	return cmocka_run_group_tests_name("kv_windows", tests, NULL, NULL);
}
