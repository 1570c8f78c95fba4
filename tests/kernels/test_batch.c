/* LINK: kernels/batch.c */
/* test_batch.c - where a batch's arrays lie, what core may put into them, and what a row means. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/batch.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

static const struct sr_limits limits = {
	.masks = 4, .n_groups = 1,
	.block_tokens = 16, .n_blocks = 8, .n_host_blocks = 2, .seq_blocks = 4, .slots = 3, .rows = 5,
	.tokens = 70, .scores = 9, .drafts = 3, .cmds = 6, .words = 100, .copies = 7,
};

/* ---- memory --------------------------------------------------------------------------------- */

/* Each array of a batch, in the order in which they are cut. */
struct array { unsigned char *at; size_t bytes; };

static void arrays_of(const struct sr_batch *b, struct array out[7])
{
	out[0] = (struct array){ (unsigned char *)b->copy, 7 * sizeof(struct sr_copy) };
	out[1] = (struct array){ (unsigned char *)b->cmd, 6 * sizeof(struct sr_cmd) };
	out[2] = (struct array){ (unsigned char *)b->word, 100 * sizeof(uint32_t) };
	out[3] = (struct array){ (unsigned char *)b->row, 5 * sizeof(struct sr_row) };
	out[4] = (struct array){ (unsigned char *)b->token, (70 + 5) * sizeof(int32_t) };
	out[5] = (struct array){ (unsigned char *)b->result, (5 + 9 + 6) * sizeof(struct sr_result) };
	out[6] = (struct array){ (unsigned char *)b->top, (5 + 9 + 6) * SR_TOP_MAX * sizeof(struct sr_top) };
}

static void test_layout(void **state)
{
	static const size_t aligns[] = { 1, 16, 64, 256, 4096 };

	(void)state;
	for (int a = 0; a < COUNT(aligns); a++) {
		struct cutter counted = { NULL, 0, aligns[a] }, laid;
		struct sr_batch b;
		struct array array[7];
		unsigned char *base, *end;

		memset(&b, 0x55, sizeof(b));
		batch_cut(&b, &limits, &counted);
		assert_null(b.copy);
		assert_null(b.top);
		base = aligned_alloc(4096, (counted.at + 4095) / 4096 * 4096);
		assert_non_null(base);
		laid = (struct cutter){ base, 0, aligns[a] };
		batch_cut(&b, &limits, &laid);
		assert_int_equal(laid.at, counted.at);
		arrays_of(&b, array);
		end = base;
		for (int i = 0; i < 7; i++) { /* one behind the other: no two overlap */
			assert_int_equal((uintptr_t)array[i].at % aligns[a], 0);
			assert_true(array[i].at >= end && array[i].at < end + aligns[a]);
			end = array[i].at + array[i].bytes;
		}
		assert_true(end <= base + laid.at && base + laid.at < end + aligns[a]);
		free(base);
	}
}

static void test_cut(void **state)
{
	unsigned char region[512];
	struct cutter c = { region, 0, 64 };

	(void)state;
	assert_ptr_equal(cut(&c, 3, 20), region);
	assert_ptr_equal(cut(&c, 1, 64), region + 64);
	assert_ptr_equal(cut(&c, 0, 8), region + 128); /* nothing takes no room */
	assert_ptr_equal(cut(&c, 65, 1), region + 128);
	assert_int_equal(c.at, 256);
	c.at = 257;
	cut_align(&c, 128);
	assert_int_equal(c.at, 384);
	cut_align(&c, 128);
	assert_int_equal(c.at, 384);
}

static void test_slots(void **state)
{
	(void)state;
	assert_int_equal(slot_history(&limits), 4 * 16 + 1);
	assert_int_equal(slot_words(&limits), 100 + 256);
}

/* ---- what core may put into a batch ----------------------------------------------------------- */

static void test_fits(void **state)
{
	struct sr_batch b;
	const struct { int32_t *n; int32_t most; const char *what; } counts[] = {
		{ &b.n_copies, 7, "copies" }, { &b.n_cmds, 6, "commands" }, { &b.n_words, 100, "words" },
		{ &b.n_rows, 5, "rows" }, { &b.n_tokens, 70, "tokens" }, { &b.n_ids, 75, "ids" },
		{ &b.n_results, 20, "results" },
	};

	(void)state;
	memset(&b, 0, sizeof(b));
	assert_true(batch_fits(&b, &limits));
	for (int i = 0; i < COUNT(counts); i++)
		*counts[i].n = counts[i].most;
	assert_true(batch_fits(&b, &limits));
	for (int i = 0; i < COUNT(counts); i++) {
		print_message("  %s\n", counts[i].what);
		*counts[i].n = counts[i].most + 1;
		assert_false(batch_fits(&b, &limits));
		*counts[i].n = -1;
		assert_false(batch_fits(&b, &limits));
		*counts[i].n = 0;
		assert_true(batch_fits(&b, &limits));
	}
}

static void test_copies(void **state)
{
	static const struct { struct sr_copy c; bool ok; } cases[] = {
		{ { 0, 0, 0 }, true }, { { 7, 1, 1 }, true }, { { 8, 1, 1 }, false }, { { -1, 1, 1 }, false },
		{ { 7, 2, 0 }, false }, { { 7, -1, 0 }, false },
	};

	(void)state;
	for (int i = 0; i < COUNT(cases); i++)
		assert_int_equal(batch_copy_ok(&limits, &cases[i].c), cases[i].ok);
}

/* All groups have blocks of one size; another plan of blocks is an error of core. */
static void test_groups(void **state)
{
	static const struct { int32_t n, window; int64_t planned; bool ok, one; } cases[] = {
		{ 1, 0, 4096, true, true }, { 1, 0, 0, true, true }, { 0, 0, 4096, false, false },
		{ 2, 0, 4096, true, false }, { 1, 512, 4096, true, false }, { 1, 0, 4095, false, true },
		{ 1, -1, 4096, false, false }, { SR_GROUPS_MAX, 0, 4096, true, false },
		{ SR_GROUPS_MAX + 1, 0, 4096, false, false },
	};

	(void)state;
	for (int i = 0; i < COUNT(cases); i++) {
		struct sr_limits l = limits;

		l.n_groups = cases[i].n;
		l.group[0] = (struct sr_group){ .window = cases[i].window, .per_block = cases[i].planned };
		assert_int_equal(batch_groups_ok(&l, 4096), cases[i].ok);
		assert_int_equal(batch_one_group(&l), cases[i].one);
	}
}

static void test_commands(void **state)
{
	enum { SAMPLING = sizeof(struct sr_sampling) / sizeof(uint32_t) };
	static const struct { const char *what; struct sr_cmd c; bool ok; } cases[] = {
		{ "begin", { SR_CMD_BEGIN, 0, 0, SAMPLING, 0, 0 }, true },
		{ "begin, its length left out", { SR_CMD_BEGIN, 2, 0, 0, 100 - SAMPLING, 0 }, true },
		{ "begin past the words", { SR_CMD_BEGIN, 2, 0, 0, 101 - SAMPLING, 0 }, false },
		{ "begin far past the words", { SR_CMD_BEGIN, 2, 0, 0, UINT32_MAX, 0 }, false },
		{ "a slot too many", { SR_CMD_BEGIN, 3, 0, 0, 0, 0 }, false },
		{ "a slot below", { SR_CMD_BEGIN, -1, 0, 0, 0, 0 }, false },
		{ "end", { SR_CMD_END, 2, 0, 0, UINT32_MAX, 0 }, true },
		{ "end of a slot too many", { SR_CMD_END, 3, 0, 0, 0, 0 }, false },
		{ "a list", { SR_CMD_LIST, 1, SR_LIST_STOP, 100, 0, 0 }, true },
		{ "the last kind of list", { SR_CMD_LIST, 1, SR_LIST_BAD, 0, 100, 0 }, true },
		{ "an unknown list", { SR_CMD_LIST, 1, SR_LIST_BAD + 1, 1, 0, 0 }, false },
		{ "a list below", { SR_CMD_LIST, 1, -1, 1, 0, 0 }, false },
		{ "a list past the words", { SR_CMD_LIST, 1, 0, 100, 1, 0 }, false },
		{ "a list of less than nothing", { SR_CMD_LIST, 1, 0, -1, 4, 0 }, false },
		{ "a history", { SR_CMD_HISTORY, 1, 65, 65, 0, 0 }, true },
		{ "a history of nothing", { SR_CMD_HISTORY, 1, 0, 0, 0, 0 }, true },
		{ "a history longer than a sequence", { SR_CMD_HISTORY, 1, 0, 66, 0, 0 }, false },
		{ "a prompt longer than its history", { SR_CMD_HISTORY, 1, 5, 4, 0, 0 }, false },
		{ "a prompt below", { SR_CMD_HISTORY, 1, -1, 4, 0, 0 }, false },
		{ "a history past the words", { SR_CMD_HISTORY, 1, 0, 20, 81, 0 }, false },
		{ "blocks", { SR_CMD_BLOCKS, 1, 0, 4, 4, 0 }, true },
		{ "the last block", { SR_CMD_BLOCKS, 1, 3, 1, 7, 0 }, true },
		{ "no block, behind the last", { SR_CMD_BLOCKS, 1, 4, 0, 0, 0 }, true },
		{ "a block behind the last", { SR_CMD_BLOCKS, 1, 4, 1, 0, 0 }, false },
		{ "blocks past the table", { SR_CMD_BLOCKS, 1, 1, 4, 0, 0 }, false },
		{ "a block before the table", { SR_CMD_BLOCKS, 1, -1, 1, 0, 0 }, false },
		{ "less than no block", { SR_CMD_BLOCKS, 1, 3, -1, 0, 0 }, false },
		{ "a block that does not exist", { SR_CMD_BLOCKS, 1, 0, 4, 5, 0 }, false },
		{ "a block below", { SR_CMD_BLOCKS, 1, 0, 1, 9, 0 }, false },
		{ "blocks past the words", { SR_CMD_BLOCKS, 1, 0, 2, 99, 0 }, false },
		{ "blocks of a group too many", { SR_CMD_BLOCKS, 1, 0, 4, 4, 1 }, false },
		{ "blocks of a group below", { SR_CMD_BLOCKS, 1, 0, 4, 4, -1 }, false },
		{ "a list of a group", { SR_CMD_LIST, 1, SR_LIST_STOP, 1, 0, 1 }, false },
		{ "no command", { SR_CMD_POOL + 1, 1, 0, 0, 0, 0 }, false },
		{ "a command below", { -1, 1, 0, 0, 0, 0 }, false },
	};
	uint32_t word[100];
	struct sr_batch b = { .n_words = 100, .word = word };

	(void)state;
	for (int i = 0; i < COUNT(word); i++)
		word[i] = i == 9 ? (uint32_t)-1 : (uint32_t)i; /* blocks 0 .. 7 exist */
	for (int i = 0; i < COUNT(cases); i++) {
		print_message("  %s\n", cases[i].what);
		assert_int_equal(batch_cmd_ok(&b, &limits, &cases[i].c), cases[i].ok);
	}
}

static void test_rows(void **state)
{
	static const struct { const char *what; struct sr_row r; bool ok; } cases[] = {
		{ "decodes", { .slot = 2, .first = 63, .n = 1, .token = SR_LAST, .result = 13, .sample = 1 }, true },
		{ "prefills", { .slot = 0, .first = 0, .n = 64, .token = 11, .n_score = 0, .sample = 0 }, true },
		{ "scores all but one", { .n = 10, .token = 0, .n_score = 9, .result = 5 }, true },
		{ "scores all, one id more", { .n = 10, .token = 64, .n_score = 10, .result = 4 }, true },
		{ "scores all, that id is missing", { .n = 10, .token = 65, .n_score = 10, .result = 4 }, false },
		{ "ids past the batch", { .n = 10, .token = 66 }, false },
		{ "ids before the batch", { .n = 10, .token = -2 }, false },
		{ "a slot too many", { .slot = 3, .n = 1, .token = SR_LAST }, false },
		{ "a slot below", { .slot = -1, .n = 1, .token = SR_LAST }, false },
		{ "nothing to compute", { .n = 0, .token = 0 }, false },
		{ "less than nothing", { .n = -1, .token = 0 }, false },
		{ "before the sequence", { .first = -1, .n = 1, .token = 0 }, false },
		{ "past the sequence", { .first = 64, .n = 1, .token = 0 }, false },
		{ "far past the sequence", { .first = INT32_MAX, .n = 1, .token = 0 }, false },
		{ "two last tokens", { .n = 2, .token = SR_LAST }, false },
		{ "a last token that is scored", { .n = 1, .n_score = 1, .token = SR_LAST }, false },
		{ "more scores than tokens", { .n = 3, .n_score = 4, .token = 0 }, false },
		{ "less than no score", { .n = 3, .n_score = -1, .token = 0 }, false },
		{ "results past the batch", { .n = 10, .n_score = 4, .result = 11, .token = 0 }, false },
		{ "a drawn one past the batch", { .n = 1, .result = 14, .token = 0, .sample = 1 }, false },
		{ "results before the batch", { .n = 1, .result = -1, .token = 0, .sample = 1 }, false },
		{ "too many alternatives", { .n = 1, .token = 0, .n_top = SR_TOP_MAX + 1 }, false },
		{ "all alternatives", { .n = 1, .token = 0, .n_top = SR_TOP_MAX }, true },
		{ "guided", { .n = 1, .token = SR_LAST, .result = 13, .sample = 1, .mask = 2 }, true },
		{ "a pair of masks too many", { .n = 1, .token = SR_LAST, .result = 13, .sample = 1, .mask = 3 }, false },
		{ "a pair of masks below", { .n = 1, .token = SR_LAST, .result = 13, .sample = 1, .mask = -1 }, false },
		{ "guesses", { .n = 3, .token = 0, .result = 11, .sample = 1, .n_draft = 2 }, true },
		{ "results of guesses past the batch", { .n = 3, .token = 0, .result = 12, .sample = 1, .n_draft = 2 }, false },
		{ "nothing but guesses", { .n = 2, .token = 0, .sample = 1, .n_draft = 2 }, false },
		{ "more guesses than a batch has", { .n = 5, .token = 0, .sample = 1, .n_draft = 4 }, false },
		{ "guesses, but nothing is drawn", { .n = 3, .token = 0, .n_draft = 2 }, false },
		{ "guesses and scores", { .n = 3, .token = 0, .sample = 1, .n_score = 1, .n_draft = 2 }, false },
		{ "guesses and a mask", { .n = 3, .token = 0, .sample = 1, .mask = 1, .n_draft = 2 }, false },
		{ "a mask, but nothing is drawn", { .n = 1, .token = SR_LAST, .mask = 1 }, false },
	};
	struct sr_batch b = { .n_ids = 75, .n_results = 14 };

	(void)state;
	for (int i = 0; i < COUNT(cases); i++) {
		print_message("  %s\n", cases[i].what);
		assert_int_equal(batch_row_ok(&b, &limits, &cases[i].r), cases[i].ok);
	}
}

/* ---- what a row means ------------------------------------------------------------------------- */

static void test_tokens(void **state)
{
	static const int32_t ids[] = { 90, 91, 92, 93, 94 };
	struct sr_row r = { .slot = 2, .first = 30, .n = 3, .token = 1 };
	struct batch_token t = row_token(&r, ids, 2);

	(void)state;
	assert_int_equal(t.id, 93);
	assert_int_equal(t.position, 32);
	assert_int_equal(t.slot, 2);
	r = (struct sr_row){ .slot = 1, .first = 7, .n = 1, .token = SR_LAST };
	t = row_token(&r, ids, 0);
	assert_int_equal(t.id, SR_LAST);
	assert_int_equal(t.position, 7);
	assert_int_equal(t.slot, 1);
}

/* A row of 3 tokens from position 30 on, whose first token is token 100 of what is computed. */
static void test_picks(void **state)
{
	static const int32_t ids[] = { 90, 91, 92, 93, 94 };
	static const struct { int n_score, sample, n_top, j; struct batch_pick want; } cases[] = {
		{ 0, 1, 0, 0, { 102, 20, -1, 33, 2, 0, 0, 7, 0, 0 } },
		{ 0, 1, 3, 0, { 102, 20, -1, 33, 2, 3, 1, 7, 0, 0 } },
		{ 2, 0, 0, 0, { 100, 20, 92, 31, 2, 0, 1, 0, 0, 0 } },
		{ 2, 0, 0, 1, { 101, 21, 93, 32, 2, 0, 1, 0, 0, 0 } },
		{ 2, 1, 0, 2, { 102, 22, -1, 33, 2, 0, 1, 7, 0, 0 } },
		{ 3, 0, 5, 2, { 102, 22, 94, 33, 2, 5, 1, 0, 0, 0 } }, /* the id that is given only to be scored */
		{ 3, 1, 5, 3, { 102, 23, -1, 33, 2, 5, 1, 7, 0, 0 } },
	};

	(void)state;
	for (int i = 0; i < COUNT(cases); i++) {
		struct sr_row r = { .slot = 2, .first = 30, .n = 3, .token = 1, .n_score = cases[i].n_score,
			.result = 20, .sample = (uint8_t)cases[i].sample, .n_top = (uint8_t)cases[i].n_top, .mask = 7 };
		struct batch_pick got = row_pick(&r, ids, 100, cases[i].j);

		assert_memory_equal(&got, &cases[i].want, sizeof(got));
		assert_int_equal(row_results(&r), cases[i].n_score + cases[i].sample);
		assert_int_equal(row_ids(&r), cases[i].n_score == 3 ? 4 : 3);
	}
}

/* The same row, whose last two ids are guesses: three draws. */
static void test_guesses(void **state)
{
	static const int32_t ids[] = { 90, 91, 92, 93, 94 };
	static const struct batch_pick want[] = {
		{ 100, 20, -1, 31, 2, 4, 1, 0, 0, 1 }, { 101, 21, -1, 32, 2, 4, 1, 0, 0, 2 }, { 102, 22, -1, 33, 2, 4, 1, 0, 0, 3 },
	};
	const struct sr_row r = { .slot = 2, .first = 30, .n = 3, .token = 1, .result = 20, .sample = 1, .n_top = 4, .n_draft = 2 };

	(void)state;
	assert_int_equal(row_results(&r), COUNT(want));
	for (int j = 0; j < COUNT(want); j++) {
		struct batch_pick got = row_pick(&r, ids, 100, j);

		assert_memory_equal(&got, &want[j], sizeof(got));
	}
}

/* Every length, place and step: the runs cover the tokens in order, none crosses a multiple of step, none is
 * shorter than it must be. */
static void test_runs(void **state)
{
	struct token_run run[64];

	(void)state;
	for (int32_t step = 1; step <= 17; step++)
		for (int32_t from = 0; from <= 40; from++)
			for (int32_t n = 1; n <= 50; n++) {
				int32_t runs = cut_runs(run, 7, n, from, step), t = 7;

				assert_int_equal(runs, count_runs(n, from, step));
				for (int32_t i = 0; i < runs; i++) {
					int32_t place = from + run[i].t - 7, end = place + run[i].n;

					assert_int_equal(run[i].t, t);
					assert_true(run[i].n >= 1);
					assert_int_equal(place / step, (end - 1) / step);
					assert_true(i == runs - 1 || end % step == 0);
					t += run[i].n;
				}
				assert_int_equal(t, 7 + n);
			}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cut), cmocka_unit_test(test_layout), cmocka_unit_test(test_slots),
		cmocka_unit_test(test_fits), cmocka_unit_test(test_copies), cmocka_unit_test(test_groups),
		cmocka_unit_test(test_commands),
		cmocka_unit_test(test_rows), cmocka_unit_test(test_tokens), cmocka_unit_test(test_picks), cmocka_unit_test(test_guesses),
		cmocka_unit_test(test_runs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
