/* LINK: @kv -lxxhash -Wl,--wrap=aligned_alloc */
/* test_kv.c - the block manager alone: which sequence owns which block after each call. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/kv/kv.h"

#define B 16

static bool no_memory;

void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n)
{
	return no_memory ? NULL : __real_aligned_alloc(align, n);
}

/* A sequence with its own chunks and table, and ids by a formula: text 0, 1, .. differ. */
struct text {
	struct kv_chunk chunk[8];
	int32_t block[33];
	struct kv_table t;
};

static void text_make(struct text *x, int32_t text, uint64_t salt)
{
	memset(x, 0, sizeof(*x));
	for (int i = 0; i < 8; i++) {
		x->chunk[i].next = i < 7 ? &x->chunk[i + 1] : NULL;
		for (int j = 0; j < KV_CHUNK; j++)
			x->chunk[i].id[j] = text * 1000 + i * KV_CHUNK + j;
	}
	x->t = (struct kv_table){ .block = x->block, .cap = 32, .salt = salt, .at = x->chunk };
}

static struct kv *make(int32_t n_blocks, int32_t n_host, int32_t copies)
{
	struct kv *kv;

	assert_int_equal(kv_create(&kv, &(struct kv_config){ .n_blocks = n_blocks, .n_host = n_host,
	                     .block_tokens = B, .copies = copies, .key = { 7, 9 }, .n_owners = 3 }), 0);
	return kv;
}

static void launched(struct kv *kv)
{
	kv_check(kv);
	kv_launched(kv);
	kv_check(kv);
}

/* Compute and publish the first n tokens of text `text` and let go of them. */
static void leave_cached(struct kv *kv, int32_t text, int32_t n)
{
	struct text x;

	text_make(&x, text, 0);
	kv_begin(kv, 100);
	assert_int_equal(kv_grow(kv, &x.t, n), 0);
	launched(kv);
	kv_publish(kv, &x.t, n);
	kv_release(kv, &x.t);
	kv_check(kv);
}

static int32_t found(struct kv *kv, int32_t text, uint64_t salt, int32_t n)
{
	struct text x;
	int32_t tokens;

	text_make(&x, text, salt);
	tokens = kv_match(kv, &x.t, n);
	kv_release(kv, &x.t);
	kv_check(kv);
	return tokens;
}

static void test_create(void **state)
{
	static const struct { struct kv_config c; int want; } cases[] = {
		{ { 1, 0, 16, 0, { 0 }, 0, 0, { { 0 } }, 0, NULL, NULL }, 0 },
		{ { 4, 2, 64, 1, { 0 }, 0, 0, { { 0 } }, 0, NULL, NULL }, 0 },
		{ { 0, 0, 16, 0, { 0 }, 0, 0, { { 0 } }, 0, NULL, NULL }, -EINVAL },
		{ { 4, -1, 16, 0, { 0 }, 0, 0, { { 0 } }, 0, NULL, NULL }, -EINVAL },
		{ { 4, 0, 0, 0, { 0 }, 0, 0, { { 0 } }, 0, NULL, NULL }, -EINVAL },
		{ { 4, 0, 24, 0, { 0 }, 0, 0, { { 0 } }, 0, NULL, NULL }, -EINVAL },      /* no divisor of a chunk */
		{ { 4, 0, 128, 0, { 0 }, 0, 0, { { 0 } }, 0, NULL, NULL }, -EINVAL },
		{ { INT32_MAX, INT32_MAX, 16, 0, { 0 }, 0, 0, { { 0 } }, 0, NULL, NULL }, -EINVAL },
		{ { 4, 0, 16, -1, { 0 }, 0, 0, { { 0 } }, 0, NULL, NULL }, -EINVAL },
		{ { 4, 0, 16, 0, { 0 }, -1, 0, { { 0 } }, 0, NULL, NULL }, -EINVAL },
		{ { 4, 0, 16, 0, { 0 }, INT16_MAX, 0, { { 0 } }, 0, NULL, NULL }, 0 },
		{ { 4, 0, 16, 0, { 0 }, INT16_MAX + 1, 0, { { 0 } }, 0, NULL, NULL }, -EINVAL },
		{ { 4, 0, 16, 0, { 0 }, 0, 1, { { 0 } }, 0, NULL, NULL }, 0 },
		{ { 4, 0, 16, 0, { 0 }, 0, -1, { { 0 } }, 0, NULL, NULL }, -EINVAL },
		{ { 4, 0, 16, 0, { 0 }, 0, KV_GROUPS + 1, { { 0 } }, 0, NULL, NULL }, -EINVAL },
		{ { 4, 0, 16, 0, { 0 }, 0, 1, { { -1 } }, 0, NULL, NULL }, -EINVAL },
		{ { 4, 0, 16, 0, { 0 }, 0, 2, { { 0 }, { 512 } }, 0, NULL, NULL }, 0 },
		{ { 4, 1, 16, 0, { 0 }, 0, 2, { { 0 }, { 512 } }, 0, NULL, NULL }, 0 },
		{ { 4, 0, 16, 0, { 0 }, 0, 1, { { 0 } }, 3, NULL, NULL }, 0 },
		{ { 4, 0, 16, 0, { 0 }, 0, 1, { { 0 } }, -1, NULL, NULL }, -EINVAL },
		{ { 4, 0, 16, 0, { 0 }, 0, 2, { { 0 }, { 512 } }, 3, NULL, NULL }, -EINVAL },   /* states beside windows, a host tier */
		{ { 4, 1, 16, 0, { 0 }, 0, 1, { { 0 } }, 3, NULL, NULL }, -EINVAL },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct kv *kv = NULL;

		assert_int_equal(kv_create(&kv, &cases[i].c), cases[i].want);
		if (kv)
			kv_check(kv);
		kv_destroy(kv);
	}
}

static void test_no_memory(void **state)
{
	struct kv *kv = NULL;

	(void)state;
	no_memory = true;
	assert_int_equal(kv_create(&kv, &(struct kv_config){ .n_blocks = 4, .block_tokens = B }), -ENOMEM);
	no_memory = false;
	assert_null(kv);
}

static void test_grow(void **state)
{
	static const struct { int32_t n, want, blocks, available; } steps[] = {
		{ 1, 0, 1, 7 },   { 16, 0, 1, 7 }, { 17, 0, 2, 6 }, { 10, 0, 2, 6 },
		{ 128, 0, 8, 0 }, { 129, -ENOSPC, 8, 0 }, { 32 * B + 1, -E2BIG, 8, 0 },
	};
	struct kv *kv = make(8, 0, 0);
	struct text x;

	(void)state;
	text_make(&x, 0, 0);
	kv_begin(kv, 0);
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		assert_int_equal(kv_grow(kv, &x.t, steps[i].n), steps[i].want);
		assert_int_equal(x.t.n, steps[i].blocks);
		assert_int_equal(kv_available(kv), steps[i].available);
		kv_check(kv);
	}
	launched(kv);
	kv_release(kv, &x.t);
	assert_int_equal(kv_available(kv), 8);
	kv_destroy(kv);
}

/* Text 0 has 80 tokens published. How much of it does each request find? */
static void test_match(void **state)
{
	static const struct { const char *what; int32_t text; uint64_t salt; int32_t n, want; } cases[] = {
		{ "all but the last token is found",     0, 0, 80, 64 },
		{ "one token more, one block more",      0, 0, 81, 80 },
		{ "longer than what is there",           0, 0, 300, 80 },
		{ "less than a block is never found",    0, 0, 16, 0 },
		{ "just more than one",                  0, 0, 17, 16 },
		{ "another text",                        1, 0, 80, 0 },
		{ "another salt",                        0, 5, 80, 0 },
	};
	struct kv *kv = make(20, 0, 0);

	(void)state;
	leave_cached(kv, 0, 80);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (found(kv, cases[i].text, cases[i].salt, cases[i].n) != cases[i].want)
			fail_msg("%s", cases[i].what);
	}
	kv_destroy(kv);
}

static void test_only_full_blocks_are_shared(void **state)
{
	struct kv *kv = make(20, 0, 0);
	struct text a, b;

	(void)state;
	text_make(&a, 0, 0);
	text_make(&b, 0, 0);
	assert_int_equal(kv_grow(kv, &a.t, 40), 0);
	kv_publish(kv, &a.t, 40);
	assert_int_equal(a.t.published, 2);
	assert_true(a.t.key[0] && a.t.key[1]);          /* the whole of the last one's name */
	assert_int_equal(kv_match(kv, &b.t, 40), 32);
	assert_int_equal(b.block[1], a.block[1]);
	assert_int_equal(kv_grow(kv, &b.t, 40), 0);
	assert_int_not_equal(b.block[2], a.block[2]);
	kv_check(kv);
	kv_release(kv, &a.t);
	kv_check(kv);                       /* b holds two of them still */
	assert_int_equal(kv_available(kv), 17);
	kv_release(kv, &b.t);
	kv_destroy(kv);
}

/* Two compute the same at once: both keep their block, one is found. */
static void test_twice_published(void **state)
{
	struct kv *kv = make(20, 0, 0);
	struct text a, b, c;
	struct kv_stats st;

	(void)state;
	text_make(&a, 0, 0);
	text_make(&b, 0, 0);
	text_make(&c, 0, 0);
	assert_int_equal(kv_grow(kv, &a.t, 64), 0);
	assert_int_equal(kv_grow(kv, &b.t, 64), 0);
	kv_publish(kv, &a.t, 64);
	kv_publish(kv, &b.t, 64);
	kv_check(kv);
	assert_int_equal(b.t.published, 4);
	assert_int_equal(kv_match(kv, &c.t, 65), 64);
	assert_memory_equal(c.block, a.block, 4 * sizeof(int32_t));
	kv_release(kv, &b.t);
	kv_stats(kv, &st);
	assert_int_equal(st.n_free, 16);    /* its blocks were never indexed */
	kv_release(kv, &a.t);
	kv_release(kv, &c.t);
	kv_stats(kv, &st);
	assert_int_equal(st.n_cached, 4);
	kv_destroy(kv);
}

/* The oldest goes first, and of one text the tail goes before its start. */
static void test_eviction_order(void **state)
{
	struct kv *kv = make(8, 0, 0);
	struct kv_stats st;
	struct text x;

	(void)state;
	leave_cached(kv, 0, 64);            /* 4 blocks */
	leave_cached(kv, 1, 48);            /* 3 blocks, 1 is free */
	text_make(&x, 9, 0);
	assert_int_equal(kv_grow(kv, &x.t, 3 * B), 0);
	kv_stats(kv, &st);
	assert_int_equal(st.evictions, 2);
	assert_int_equal(found(kv, 0, 0, 65), 32);
	assert_int_equal(found(kv, 1, 0, 49), 48);
	kv_release(kv, &x.t);
	/* Text 0 was found before text 1, so it is again the older one. */
	assert_int_equal(kv_grow(kv, &x.t, 5 * B), 0);
	assert_int_equal(found(kv, 0, 0, 65), 0);
	assert_int_equal(found(kv, 1, 0, 49), 48);
	kv_release(kv, &x.t);
	kv_destroy(kv);
}

static int32_t copies_of(const struct kv *kv, int32_t out)
{
	const struct kv_copy *c;
	int32_t n = 0, all = kv_copies(kv, &c);

	for (int32_t j = 0; j < all; j++)
		n += c[j].out == out;
	return n;
}

/* Evicted blocks go to the host tier and come back from it. */
static void test_host_tier(void **state)
{
	struct kv *kv = make(8, 8, 8);
	struct text x, y;

	(void)state;
	leave_cached(kv, 0, 64);
	text_make(&x, 1, 0);
	kv_begin(kv, 8);
	assert_int_equal(kv_grow(kv, &x.t, 8 * B), 0);
	assert_int_equal(copies_of(kv, 1), 4);  /* at most half of the copies are evictions */
	launched(kv);
	kv_release(kv, &x.t);

	text_make(&y, 0, 0);
	kv_begin(kv, 2);
	assert_int_equal(kv_match(kv, &y.t, 65), 32);
	assert_true(y.t.more);
	assert_int_equal(copies_of(kv, 0), 2);
	launched(kv);
	kv_begin(kv, 8);
	assert_int_equal(kv_match(kv, &y.t, 65), 64); /* goes on where it stopped */
	assert_false(y.t.more);
	launched(kv);
	kv_release(kv, &y.t);
	assert_int_equal(found(kv, 0, 0, 65), 64);    /* they are on the device now */
	kv_destroy(kv);
}

/* Eviction uses at most half of a batch's copies; sequences that wait for copies in get the rest. */
static void test_half_out(void **state)
{
	struct kv *kv = make(8, 8, 8);
	struct text x;

	(void)state;
	leave_cached(kv, 0, 128);
	text_make(&x, 1, 0);
	kv_begin(kv, 6);
	assert_int_equal(kv_grow(kv, &x.t, 5 * B), 0);
	assert_int_equal(copies_of(kv, 1), 3);
	assert_int_equal(kv_demote(kv, 8), 3);        /* unused ones may be copied out */
	launched(kv);
	kv_release(kv, &x.t);
	kv_destroy(kv);
}

/* Where no copies are allowed, none is waited for. */
static void test_no_copies(void **state)
{
	struct kv *kv = make(8, 8, 8);
	struct text x;

	(void)state;
	leave_cached(kv, 0, 64);
	kv_begin(kv, 8);
	assert_int_equal(kv_demote(kv, 8), 4);
	launched(kv);
	text_make(&x, 1, 0);
	kv_begin(kv, 0);
	assert_int_equal(kv_grow(kv, &x.t, 8 * B), 0);
	launched(kv);
	kv_release(kv, &x.t);
	text_make(&x, 0, 0);
	kv_begin(kv, 0);
	assert_int_equal(kv_match(kv, &x.t, 65), 0);
	assert_false(x.t.more);
	launched(kv);
	kv_begin(kv, 1);
	assert_int_equal(kv_match(kv, &x.t, 65), 16);
	assert_true(x.t.more);
	launched(kv);
	kv_release(kv, &x.t);
	assert_false(x.t.more);                       /* released: it waits for nothing */
	kv_begin(kv, 8);
	text_make(&x, 0, 0);
	assert_int_equal(kv_match(kv, &x.t, 65), 64);
	assert_int_equal(copies_of(kv, 0), 3);
	launched(kv);
	kv_release(kv, &x.t);
	kv_destroy(kv);
}

/* A block that this batch copied in and released is not evicted before launch. */
static void test_pins(void **state)
{
	struct kv *kv = make(4, 4, 8);
	struct text x, y;

	(void)state;
	leave_cached(kv, 0, 32);
	kv_begin(kv, 8);
	assert_int_equal(kv_demote(kv, 8), 2);
	launched(kv);
	text_make(&x, 1, 0);
	kv_begin(kv, 0);
	assert_int_equal(kv_grow(kv, &x.t, 64), 0);
	launched(kv);
	kv_release(kv, &x.t);

	text_make(&x, 0, 0);
	text_make(&y, 2, 0);
	kv_begin(kv, 8);
	assert_int_equal(kv_match(kv, &x.t, 33), 32);
	kv_release(kv, &x.t);
	kv_check(kv);
	assert_int_equal(kv_available(kv), 2);
	assert_int_equal(kv_match(kv, &x.t, 17), 16);   /* held again: no longer cached and pinned */
	kv_check(kv);
	assert_int_equal(kv_available(kv), 2);
	kv_release(kv, &x.t);
	assert_int_equal(kv_grow(kv, &y.t, 3 * B), -ENOSPC);
	assert_int_equal(y.t.n, 0);
	assert_int_equal(kv_grow(kv, &y.t, 2 * B), 0);
	launched(kv);
	assert_int_equal(kv_available(kv), 2);
	kv_release(kv, &y.t);
	kv_destroy(kv);
}

/* Copying out ahead of need leaves the block where it is; the next eviction copies nothing. */
static void test_demote(void **state)
{
	struct kv *kv = make(4, 2, 8);
	struct kv_stats st;
	struct text x;

	(void)state;
	leave_cached(kv, 0, 64);
	kv_begin(kv, 1);
	assert_int_equal(kv_demote(kv, 8), 1);        /* the copies that it may carry */
	launched(kv);
	kv_begin(kv, 8);
	assert_int_equal(kv_demote(kv, 2), 1);        /* the blocks looked at that have no copy */
	launched(kv);
	kv_stats(kv, &st);
	assert_int_equal(st.n_cached, 4);
	assert_int_equal(st.n_host_cached, 2);
	text_make(&x, 1, 0);
	kv_begin(kv, 8);
	assert_int_equal(kv_grow(kv, &x.t, 2 * B), 0);
	assert_int_equal(copies_of(kv, 1), 0);
	launched(kv);
	kv_release(kv, &x.t);
	kv_destroy(kv);
}

/* Each counter, after each of these in turn. */
static void test_counters(void **state)
{
	enum { GROWN, MATCHED, MOVED, CAME_BACK, N };
	static const struct kv_stats want[N] = {
		[GROWN] =     { 2, 2, 0, 4, 0, .lookups = 0 },
		[MATCHED] =   { 2, 2, 0, 4, 0, .lookups = 2, .hit_blocks = 2 },
		[MOVED] =     { 0, 0, 4, 2, 2, .lookups = 2, .hit_blocks = 2, .evictions = 2, .copies_out = 2 },
		[CAME_BACK] = { 2, 0, 2, 2, 2, .lookups = 3, .hit_blocks = 4, .host_hits = 2, .evictions = 2,
				.copies_in = 2, .copies_out = 2 },
	};
	struct kv *kv;
	struct kv_stats got[N];
	struct text x;

	(void)state;
	assert_int_equal(kv_create(&kv, &(struct kv_config){ .n_blocks = 4, .n_host = 4, .block_tokens = B,
	                     .copies = 8, .key = { 7, 9 } }), 0); /* 0 owners count as one */
	leave_cached(kv, 0, 2 * B);
	kv_stats(kv, &got[GROWN]);
	assert_int_equal(found(kv, 0, 0, 2 * B + 1), 2 * B);
	assert_int_equal(found(kv, 1, 0, 2 * B + 1), 0);
	kv_stats(kv, &got[MATCHED]);
	text_make(&x, 1, 0);
	kv_begin(kv, 8);
	assert_int_equal(kv_grow(kv, &x.t, 4 * B), 0);
	launched(kv);
	kv_stats(kv, &got[MOVED]);
	kv_release(kv, &x.t);
	text_make(&x, 0, 0);
	kv_begin(kv, 8);
	assert_int_equal(kv_match(kv, &x.t, 2 * B + 1), 2 * B);
	launched(kv);
	kv_stats(kv, &got[CAME_BACK]);
	for (int i = 0; i < N; i++) {
		assert_memory_equal(&got[i].n_free, &want[i].n_free, 5 * sizeof(int32_t));
		assert_memory_equal(&got[i].lookups, &want[i].lookups, 6 * sizeof(uint64_t));
	}
	kv_release(kv, &x.t);
	kv_destroy(kv);
}

/* A tier of one block is one. */
static void test_one_host_block(void **state)
{
	struct kv *kv = make(4, 1, 8);

	(void)state;
	leave_cached(kv, 0, 2 * B);
	kv_begin(kv, 8);
	assert_int_equal(kv_demote(kv, 8), 1);
	launched(kv);
	kv_destroy(kv);
}

/* The name of a block that is yet to be computed: the same for the same text, salt and place, else another. */
static void test_next(void **state)
{
	static const struct { int32_t text; uint64_t salt; int32_t n; } cases[] = {
		{ 0, 0, 0 }, { 1, 0, 0 }, { 0, 5, 0 }, { 0, 0, B }, { 0, 0, 2 * B }, { 0, 5, B },
	};
	enum { N = sizeof(cases) / sizeof(cases[0]) };
	struct kv *kv = make(20, 0, 0);
	uint64_t name[2][N];

	(void)state;
	for (int again = 0; again < 2; again++)
		for (int i = 0; i < N; i++) {
			struct text x;

			text_make(&x, cases[i].text, cases[i].salt);
			assert_int_equal(kv_grow(kv, &x.t, cases[i].n), 0);
			kv_publish(kv, &x.t, cases[i].n);
			name[again][i] = kv_next(kv, &x.t);
			kv_release(kv, &x.t);
			for (int k = 0; k < i; k++)
				assert_true(name[again][k] != name[again][i]);
		}
	assert_memory_equal(name[0], name[1], sizeof(name[0]));
	kv_destroy(kv);
}

/* A match on the device counts as use on the host: there it is not evicted next. */
static void test_twins_age_together(void **state)
{
	struct kv *kv = make(8, 4, 8);
	struct text x;

	(void)state;
	leave_cached(kv, 0, 2 * B);
	leave_cached(kv, 1, 2 * B);
	kv_begin(kv, 8);
	assert_int_equal(kv_demote(kv, 8), 4);
	launched(kv);
	assert_int_equal(found(kv, 0, 0, 2 * B + 1), 2 * B);
	leave_cached(kv, 2, 2 * B);
	kv_begin(kv, 8);
	assert_int_equal(kv_demote(kv, 8), 2);          /* in place of text 1 */
	launched(kv);
	text_make(&x, 9, 0);
	kv_begin(kv, 0);
	assert_int_equal(kv_grow(kv, &x.t, 8 * B), 0);  /* none is on the device any more */
	launched(kv);
	kv_release(kv, &x.t);
	kv_begin(kv, 8);
	assert_int_equal(found(kv, 1, 0, 2 * B + 1), 0);
	assert_int_equal(found(kv, 0, 0, 2 * B + 1), 2 * B);
	launched(kv);
	kv_destroy(kv);
}

static void leave_cached_by(struct kv *kv, int32_t owner, int32_t text, int32_t n)
{
	struct text x;

	text_make(&x, text, 0);
	x.t.owner = owner;
	kv_begin(kv, 100);
	assert_int_equal(kv_grow(kv, &x.t, n), 0);
	launched(kv);
	kv_publish(kv, &x.t, n);
	kv_release(kv, &x.t);
	kv_check(kv);
}

/* Of 16 blocks a quarter is kept, between two: so 2 of owner 1's three, the head of its chain. */
static void test_floors(void **state)
{
	struct kv *kv = make(16, 0, 0);
	struct text x;

	(void)state;
	leave_cached_by(kv, 1, 1, 3 * B);
	assert_int_equal(kv_kept(kv, 0), 3);            /* alone it has all of the quarter */
	assert_int_equal(kv_kept(kv, 1), 0);            /* nothing is kept from its own owner */
	for (int i = 0; i < 8; i++)
		leave_cached_by(kv, 0, 10 + i, 4 * B);
	assert_int_equal(kv_kept(kv, 0), 2);
	assert_int_equal(kv_kept(kv, 2), 4);
	kv_begin(kv, 0);
	assert_int_equal(found(kv, 1, 0, 3 * B + 1), 2 * B);
	text_make(&x, 99, 0);
	assert_int_equal(kv_grow(kv, &x.t, 16 * B), 0); /* no request is refused for it */
	kv_launched(kv);
	kv_release(kv, &x.t);
	assert_int_equal(kv_kept(kv, 0), 0);
	kv_destroy(kv);
}

/* An owner that releases nothing while 16 times the tier is released loses its floor. */
static void test_floor_ends(void **state)
{
	struct kv *kv = make(16, 0, 0);

	(void)state;
	leave_cached_by(kv, 1, 1, 2 * B);
	for (int i = 0; i < 16 * 16 / 4 - 1; i++)
		leave_cached_by(kv, 0, 10 + i, 4 * B);
	assert_int_equal(kv_kept(kv, 0), 2);
	leave_cached_by(kv, 0, 9, 4 * B);
	assert_int_equal(kv_kept(kv, 0), 0);
	leave_cached_by(kv, 0, 8, 16 * B);
	kv_begin(kv, 0);
	assert_int_equal(found(kv, 1, 0, 2 * B + 1), 0);
	kv_launched(kv);
	kv_destroy(kv);
}

/* The host tier has floors of its own: an owner's blocks there stay through another's flood. */
static void test_host_floors(void **state)
{
	struct kv *kv = make(8, 16, 100);

	(void)state;
	leave_cached_by(kv, 1, 1, 2 * B);
	for (int i = 0; i < 20; i++)
		leave_cached_by(kv, 0, 10 + i, 8 * B);
	kv_begin(kv, 100);
	assert_int_equal(found(kv, 1, 0, 2 * B + 1), 2 * B);
	launched(kv);
	for (int i = 0; i < 64; i++)                    /* not for ever */
		leave_cached_by(kv, 0, 50 + i, 8 * B);
	kv_begin(kv, 100);
	assert_int_equal(found(kv, 1, 0, 2 * B + 1), 0);
	launched(kv);
	kv_destroy(kv);
}

/* Publishing many at a time equals one by one: with nothing new, with several blocks, with equal ones.
 * Then all are evicted, across runs of cached blocks and holes in them. */
static void test_many(void **state)
{
	enum { N = 40 };
	static struct text x[N];
	struct kv_table *t[N];
	int32_t n[N];
	struct kv *kv = make(200, 0, 0);
	struct kv_stats st;
	struct text big;

	(void)state;
	kv_begin(kv, 0);
	for (int i = 0; i < N; i++) {
		text_make(&x[i], i % 7 ? i : 1000, 0);           /* every seventh is the same text */
		t[i] = &x[i].t;
		n[i] = i % 5 == 4 ? B - 1 : B * (1 + i % 3);
		assert_int_equal(kv_grow(kv, t[i], 3 * B), 0);
	}
	launched(kv);
	kv_publish_many(kv, t, n, N);
	kv_check(kv);
	kv_publish_many(kv, t, n, 0);
	for (int i = 0; i < N; i++) {
		assert_int_equal(t[i]->published, n[i] / B);
		if (i % 7)
			assert_int_equal(found(kv, i, 0, 4 * B), n[i] / B * B);
	}
	assert_int_equal(found(kv, 1000, 0, 4 * B), 3 * B); /* the longest of them */
	for (int i = 0; i < N; i++)
		kv_release(kv, t[i]);
	kv_check(kv);
	assert_int_equal(found(kv, 20, 0, 4 * B), 3 * B);   /* taken from the middle, returned as newest */
	kv_stats(kv, &st);
	assert_int_equal(st.n_held, 0);
	kv_begin(kv, 0);
	text_make(&big, 5000, 0);
	for (int i = 0; i < 6; i++) {                       /* 192 of 200 blocks */
		text_make(&x[i], 5000 + i, 0);
		assert_int_equal(kv_grow(kv, &x[i].t, 32 * B), 0);
		kv_check(kv);
	}
	assert_int_equal(kv_grow(kv, &big.t, 33 * B), -E2BIG);
	assert_int_equal(kv_grow(kv, &big.t, 9 * B), -ENOSPC);
	launched(kv);
	assert_true(found(kv, 20, 0, 4 * B) > 0);           /* evicted last */
	for (int i = 0; i < 6; i++)
		kv_release(kv, &x[i].t);
	kv_destroy(kv);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_create), cmocka_unit_test(test_no_memory), cmocka_unit_test(test_grow),
		cmocka_unit_test(test_match), cmocka_unit_test(test_counters),
		cmocka_unit_test(test_only_full_blocks_are_shared), cmocka_unit_test(test_twice_published),
		cmocka_unit_test(test_eviction_order), cmocka_unit_test(test_host_tier), cmocka_unit_test(test_half_out),
		cmocka_unit_test(test_no_copies), cmocka_unit_test(test_pins), cmocka_unit_test(test_demote),
		cmocka_unit_test(test_one_host_block), cmocka_unit_test(test_next),
		cmocka_unit_test(test_twins_age_together),
		cmocka_unit_test(test_floors), cmocka_unit_test(test_floor_ends),
		cmocka_unit_test(test_host_floors), cmocka_unit_test(test_many),
	};

	return cmocka_run_group_tests_name("kv", tests, NULL, NULL);
}
