/* LINK: @kv -lxxhash */
/* test_kv_states.c - states of sequences: which one a row continues and leaves, where a match ends, which snapshot
 * is evicted, and that no two rows of a batch use one state. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/kv/kv.h"

enum { B = 16, CAP = 20, TABLES = 4 };

struct seq {
	struct kv_table t;
	int32_t block[KV_TABLE_INTS(1, CAP)];
	struct kv_chunk chunk[CAP * B / KV_CHUNK + 1];
	int32_t n;                            /* tokens in launched batches */
};

static struct kv *kv;
static struct seq s[TABLES];

static void open_kv(int32_t blocks, int32_t states)
{
	const struct kv_config c = { .n_blocks = blocks, .block_tokens = B, .key = { 1, 2 }, .n_states = states };

	assert_int_equal(kv_create(&kv, &c), 0);
	kv_begin(kv, 0);
}

static void close_kv(void)
{
	kv_check(kv);
	kv_destroy(kv);
}

static void next_batch(void)
{
	kv_launched(kv);
	kv_begin(kv, 0);
	kv_check(kv);
}

/* Sequence i of a text that parts from text 0 at token `from`.  Returns the tokens found. */
static int32_t begin(int i, int text, int32_t from, int32_t known)
{
	struct seq *q = &s[i];

	memset(q, 0, sizeof(*q));
	q->t = (struct kv_table){ .block = q->block, .cap = CAP, .at = q->chunk };
	for (int32_t k = 0; k < CAP * B; k++) {
		q->chunk[k / KV_CHUNK].id[k % KV_CHUNK] = k < from ? k : k + 1000 * text;
		q->chunk[k / KV_CHUNK].next = &q->chunk[k / KV_CHUNK + 1];
	}
	kv_state_begin(kv, &q->t);
	return q->n = kv_match(kv, &q->t, known);
}

/* A row of n tokens, launched. */
static struct kv_state_row row(int i, int32_t n, int32_t keep_at, bool passing)
{
	struct kv_state_row r = kv_state_row(kv, &s[i].t, s[i].n, keep_at, passing);

	assert_int_equal(kv_grow(kv, &s[i].t, s[i].n + n), 0);
	s[i].n += n;
	return r;
}

static void publish(int i)
{
	kv_publish(kv, &s[i].t, s[i].n);
}

static void leave(int i)
{
	kv_state_leave(kv, &s[i].t, s[i].n);
	kv_release(kv, &s[i].t);
}

static int32_t left(void)
{
	return kv_states_left(kv);
}

#define ROW(call, f, l, k) do { struct kv_state_row r_ = call; \
	assert_int_equal(r_.from, f); assert_int_equal(r_.to, l); assert_int_equal(r_.keep, k); } while (0)

/* A snapshot inside a row and one where a row begins; the next sequences go on from them. */
static void test_kept(void **state)
{
	(void)state;
	open_kv(40, 5);
	assert_int_equal(begin(0, 0, 0, 100), 0);
	assert_true(kv_state_take(kv, &s[0].t));
	ROW(row(0, 40, 32, false), -1, 0, 1);             /* new: no state before; the one before token 32 stays in 1 */
	publish(0);
	next_batch();
	ROW(row(0, 24, -1, false), -1, -1, -1);           /* goes on in place */
	publish(0);
	next_batch();
	ROW(row(0, 1, 64, true), 0, 2, -1);               /* leaves 0 behind, writes 2 */
	next_batch();
	assert_int_equal(begin(1, 1, 64, 100), 64);
	assert_true(kv_state_take(kv, &s[1].t));
	ROW(row(1, 10, -1, false), 0, 3, -1);             /* its own is another, and what it continued is not written */
	assert_int_equal(begin(2, 2, 48, 100), 32);       /* blocks match up to 48, but there is no state */
	assert_int_equal(s[2].t.fork, 3);
	assert_true(kv_state_take(kv, &s[2].t));
	ROW(row(2, 16, -1, false), 1, 4, -1);
	publish(2);
	next_batch();
	assert_int_equal(left(), 2);                      /* 0 and 1 are snapshots that nobody holds */
	ROW(row(2, 5, 48, false), 4, 0, -1);              /* .. the one used longest ago becomes its own */
	for (int i = 0; i < 3; i++)
		leave(i);
	assert_int_equal(left(), 5);
	next_batch();
	assert_int_equal(begin(3, 3, 56, 100), 48);
	kv_release(kv, &s[3].t);
	close_kv();
}

/* Each snapshot of an answer replaces the one before; the prompt's stays. */
static void test_passing(void **state)
{
	struct kv_stats k;

	(void)state;
	open_kv(40, 8);
	begin(0, 0, 0, 100);
	assert_true(kv_state_take(kv, &s[0].t));
	row(0, 20, 16, false);
	publish(0);
	next_batch();
	for (int32_t p = 20; p < 100; p++) {
		row(0, 1, p % B == 0 ? p : -1, true);
		publish(0);
		next_batch();
	}
	kv_stats(kv, &k);
	assert_int_equal(k.states_kept, 6);               /* 16; 32, 48, .., 96 */
	assert_int_equal(k.n_states_cached, 2);
	assert_int_equal(begin(1, 1, 100, 200), 96);
	kv_release(kv, &s[1].t);
	assert_int_equal(begin(1, 1, 90, 200), 16);
	assert_int_equal(s[1].t.fork, 5);
	kv_release(kv, &s[1].t);
	leave(0);
	close_kv();
}

/* What a preempted sequence has at a block's end is kept; what it has inside a block is not. */
static void test_leave(void **state)
{
	(void)state;
	for (int32_t n = 32; n <= 33; n++) {
		open_kv(40, 2);
		begin(0, 0, 0, 100);
		assert_true(kv_state_take(kv, &s[0].t));
		row(0, n, -1, false);
		publish(0);
		next_batch();
		leave(0);
		assert_int_equal(begin(1, 0, 0, 100), n == 32 ? 32 : 0);
		kv_release(kv, &s[1].t);
		close_kv();
	}
}

/* With one state: no snapshot while it is held, and a snapshot that is continued becomes the sequence's own. */
static void test_one(void **state)
{
	(void)state;
	open_kv(40, 1);
	begin(0, 0, 0, 100);
	assert_true(kv_state_take(kv, &s[0].t));
	ROW(row(0, 32, 16, false), -1, 0, -1);
	publish(0);
	next_batch();
	begin(1, 1, 0, 100);
	assert_false(kv_state_take(kv, &s[1].t));
	kv_release(kv, &s[1].t);
	leave(0);
	assert_int_equal(begin(1, 0, 0, 100), 32);
	assert_true(kv_state_take(kv, &s[1].t));
	ROW(row(1, 4, -1, false), 0, 0, -1);
	next_batch();
	assert_int_equal(begin(2, 0, 0, 100), 0);         /* it is written now: no snapshot any more */
	assert_int_equal(s[2].t.fork, 2);
	kv_release(kv, &s[2].t);
	leave(1);
	assert_int_equal(left(), 1);
	close_kv();
}

/* Rows of a batch have no order: what one reads, another does not write before the next batch. */
static void test_in_use(void **state)
{
	(void)state;
	open_kv(40, 3);
	begin(0, 0, 0, 100);
	assert_true(kv_state_take(kv, &s[0].t));
	row(0, 16, -1, false);
	publish(0);
	leave(0);
	next_batch();
	assert_int_equal(begin(0, 0, 0, 100), 16);
	assert_true(kv_state_take(kv, &s[0].t));
	ROW(row(0, 16, -1, false), 0, 1, -1);
	begin(1, 1, 0, 100);
	assert_true(kv_state_take(kv, &s[1].t));          /* the last free one */
	assert_int_equal(left(), 1);
	begin(2, 2, 0, 100);
	assert_false(kv_state_take(kv, &s[2].t));         /* a row reads the snapshot */
	next_batch();
	assert_true(kv_state_take(kv, &s[2].t));
	for (int i = 0; i < 3; i++)
		kv_release(kv, &s[i].t);
	close_kv();
}

/* A snapshot goes with the block whose name it has. */
static void test_evicted(void **state)
{
	struct kv_stats k;

	(void)state;
	open_kv(4, 4);
	begin(0, 0, 0, 100);
	assert_true(kv_state_take(kv, &s[0].t));
	row(0, 64, -1, false);
	publish(0);
	next_batch();
	leave(0);
	kv_stats(kv, &k);
	assert_int_equal(k.n_states_cached, 1);
	begin(1, 1, 0, 100);
	assert_true(kv_state_take(kv, &s[1].t));
	row(1, 16, -1, false);                            /* takes the last block of the first */
	kv_stats(kv, &k);
	assert_true(k.n_states_cached == 0 && k.states_evicted == 1);
	next_batch();
	leave(1);
	kv_launched(kv);
	kv_forget(kv);
	assert_int_equal(left(), 4);
	close_kv();
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_kept), cmocka_unit_test(test_passing),
		cmocka_unit_test(test_leave), cmocka_unit_test(test_one), cmocka_unit_test(test_in_use),
		cmocka_unit_test(test_evicted) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
