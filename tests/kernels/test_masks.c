/* LINK: @cpu kernels/backend.c @null tests/rig/drive.c tests/rig/tiny.c */
/* test_masks.c - guided rows on the CPU: masks in time, in the last moment, and missing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "tests/rig/drive.h"
#include "tests/rig/guided_rows.h"
#include "tests/rig/tiny.h"

static struct drive opened(const struct tiny *t, int threads)
{
	struct sr_limits lim = drive_limits();
	struct drive d;

	lim.threads = threads;
	lim.masks = 6;
	lim.logit_rows = threads;       /* 1: the two rows are sampled one after the other */
	if (drive_open(&d, sr_cpu_ops(), &t->m, &t->src, &lim))
		fail_msg("%s", d.err);
	return d;
}

/* Whenever the mask comes, the tokens are the same, also those of the row beside it. */
static void test_late(void **state)
{
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_F16, 0, 12);
	struct guided_run want, got;
	int32_t text[GUIDED_PROMPT];

	(void)state;
	for (int i = 0; i < GUIDED_PROMPT; i++)
		text[i] = (i * 31 + 5) % t->m.n_vocab;
	for (int threads = 1; threads <= 2; threads++) {
		struct drive d = opened(t, threads);

		guided_play(&d, t->m.n_vocab, text, GUIDED_BEFORE, &want);
		assert_int_equal(want.misses, 0);
		for (int n = 0; n < GUIDED_TOKENS; n++) {
			uint32_t what = guided_what(GUIDED_PROMPT + n, t->m.n_vocab);

			if (what == SR_MASK_BITS)
				assert_true(guided_allows(GUIDED_PROMPT + n, want.id[n]));
			else if (what != SR_MASK_ANY)
				assert_int_equal(want.id[n], what - 1);
		}
		for (int when = GUIDED_MEANWHILE; when <= GUIDED_MISSED; when++) {
			guided_play(&d, t->m.n_vocab, text, (enum guided_when)when, &got);
			assert_int_equal(got.misses, when == GUIDED_MISSED ? (GUIDED_TOKENS - 1) / 3 : 0);
			assert_memory_equal(got.id, want.id, sizeof(want.id));
			assert_memory_equal(got.other, want.other, sizeof(want.other));
			assert_memory_equal(got.logprob, want.logprob, sizeof(want.logprob));
		}
		drive_close(&d);
	}
	tiny_destroy(t);
}

/* A mask that leaves nothing: no token, the slot is as before, the row beside it is as ever. */
static void test_nothing_left(void **state)
{
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_F16, 0, 12);
	struct drive d = opened(t, 2);
	struct sr_masks m;
	int32_t text[GUIDED_PROMPT] = { 1, 2, 3 }, first, second, id[2];

	(void)state;
	d.ops->masks(d.b, &m);
	for (int32_t i = 0; i < d.lim.masks; i++)
		assert_true(m.tag[i] == SR_MASK_NO_TAG);
	for (int round = 0; round < 2; round++) { /* the second time with a row in between that draws nothing */
		guided_begin(&d, 3, 4, text);
		first = drive_row(&d, 3, 0, text, GUIDED_PROMPT, 0, 1);
		drive_step(&d);
		assert_true(d.batch->result[first].id >= 0);
		if (round) {
			m.tag[2 + (GUIDED_PROMPT + 1) % 2] = (uint64_t)(GUIDED_PROMPT + 1) << 32 | SR_MASK_BITS;
			memset(m.word + (size_t)(2 + (GUIDED_PROMPT + 1) % 2) * (size_t)m.words, 0,
			       (size_t)m.words * sizeof(*m.word));
			second = drive_row(&d, 3, GUIDED_PROMPT, NULL, 1, 0, 1);
			d.batch->row[0].mask = 2;
			drive_step(&d);
			assert_int_equal(d.batch->result[second].id, SR_NO_ID);
		}
		second = drive_row(&d, 3, GUIDED_PROMPT, NULL, 1, 0, 1);
		drive_step(&d);
		id[round] = d.batch->result[second].id;
	}
	assert_int_equal(id[0], id[1]);
	drive_close(&d);
	tiny_destroy(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_late), cmocka_unit_test(test_nothing_left) };

	return cmocka_run_group_tests_name("masks", tests, NULL, NULL);
}
