/* LINK: @cpu kernels/backend.c @null tests/rig/drive.c tests/rig/tiny.c */
/* test_guess.c - rows with guesses (sr_row.n_draft), on the CPU and on the null device: what they draw is what the
 * sequence draws alone, to the bit, up to the first wrong guess; the slot keeps that and nothing else.  For penalties,
 * bad words, seeds, windows, experts, alternatives, among other rows, on several threads, across slices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/null/null.h"
#include "tests/rig/drive.h"
#include "tests/rig/tiny.h"

#define PROMPT  37
#define ANSWER  60
#define TOP     3
#define MOST    12                 /* guesses of a row */

struct token { struct sr_result r; struct sr_top top[TOP]; };

static int32_t text[600];
static uint64_t rng;

static uint32_t below(uint32_t n)
{
	rng = rng * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(rng >> 33) % n;
}

static const struct sr_sampling asked[] = {
	{ .top_p = 1, .repetition = 1 },
	{ .seed = 5, .temperature = 1, .top_p = 0.9f, .repetition = 1.3f, .frequency = 0.5f, .presence = 0.2f },
	{ .seed = 77, .temperature = 1.5f, .top_k = 20, .top_p = 1, .repetition = 1, .min_position = PROMPT + 30 },
};

static void start(struct drive *d, int slot, const struct sr_sampling *s, int from_block)
{
	static const uint32_t bad[] = { 1, 7, 2, 9, 11 }, stop[] = { 3, 5, 8 };

	drive_begin(d, slot, s);
	drive_list(d, slot, SR_LIST_BAD, bad, 5);
	drive_list(d, slot, SR_LIST_STOP, stop, 3);
	drive_history(d, slot, text, PROMPT, PROMPT);
	drive_range(d, slot, from_block, (PROMPT + ANSWER + MOST) / 16 + 1);
}

static void last_row_tops(struct drive *d)
{
	d->batch->row[d->batch->n_rows - 1].n_top = TOP;
}

static void read_results(const struct drive *d, int at, int n, struct token *out)
{
	for (int i = 0; i < n; i++) {
		out[i].r = d->batch->result[at + i];
		memcpy(out[i].top, d->batch->top + (size_t)(at + i) * SR_TOP_MAX, sizeof(out[i].top));
	}
}

static void answer_alone(struct drive *d, const struct sr_sampling *s, struct token *out)
{
	int at;

	start(d, 0, s, 0);
	at = drive_row(d, 0, 0, text, PROMPT, 0, 1);
	last_row_tops(d);
	drive_step(d);
	read_results(d, at, 1, out);
	for (int i = 1; i < ANSWER; i++) {
		at = drive_row(d, 0, PROMPT + i - 1, NULL, 1, 0, 1);
		last_row_tops(d);
		drive_step(d);
		read_results(d, at, 1, out + i);
	}
}

/* A row of slot 1 that has answered `n` tokens: some guesses, one of them wrong if wrong < n_draft. */
static int guessed_row(struct drive *d, const struct token *want, int n, int n_draft, int wrong)
{
	int32_t ids[MOST + 1] = { want[n - 1].r.id };
	struct sr_row *r;
	int at;

	for (int i = 0; i < n_draft; i++)
		ids[1 + i] = i < wrong ? want[n + i].r.id : i == wrong ? (want[n + i].r.id + 1) % 50 : (int32_t)below(50);
	at = drive_row(d, 1, PROMPT + n - 1, ids, 1 + n_draft, 0, 1);
	r = &d->batch->row[d->batch->n_rows - 1];
	r->n_draft = (uint8_t)n_draft;
	r->n_top = TOP;
	d->batch->n_results += n_draft;
	return at;
}

/* The same answer with guesses, beside another sequence in slot 2 and a long prompt in slot 3. */
static void answer_guessed(struct drive *d, const struct sr_sampling *s, const struct token *want, bool beside)
{
	struct token got[MOST + 1];
	int n = 1, at;

	start(d, 1, s, 10);
	at = drive_row(d, 1, 0, text, PROMPT, 0, 1);
	last_row_tops(d);
	drive_step(d);
	read_results(d, at, 1, got);
	assert_memory_equal(got, want, sizeof(*got));
	if (beside)
		start(d, 2, s, 20);
	for (int step = 0; n < ANSWER; step++) {
		int most = ANSWER - n - 1 < MOST ? ANSWER - n - 1 : MOST, n_draft = most > 0 ? (int)below((uint32_t)most + 1) : 0;
		int wrong = (int)below(3) ? n_draft : (int)below((uint32_t)n_draft + 1), right = wrong < n_draft ? wrong : n_draft;

		if (beside && step == 2) {           /* 508 tokens before it: its row lies across two slices */
			drive_begin(d, 3, NULL);
			drive_range(d, 3, 30, 32);
			drive_row(d, 3, 0, text, 508, 0, 1);
		}
		if (beside)
			drive_row(d, 2, step, text + step, 1, 0, 0);
		if (n_draft)
			at = guessed_row(d, want, n, n_draft, wrong);
		else
			at = drive_row(d, 1, PROMPT + n - 1, NULL, 1, 0, 1), last_row_tops(d);
		drive_step(d);
		read_results(d, at, n_draft + 1, got);
		assert_memory_equal(got, want + n, (size_t)(right + 1) * sizeof(*got));
		for (int i = right + 1; i <= n_draft; i++)
			assert_int_equal(got[i].r.id, SR_UNDRAWN);
		n += right + 1;
	}
}

static struct sr_limits limits(int threads)
{
	struct sr_limits lim = drive_limits();

	lim.drafts = MOST;
	lim.threads = threads;
	return lim;
}

static void both(const struct sr_backend_ops *ops, const struct tiny *t, const struct sr_model *m, int threads)
{
	struct sr_limits lim = limits(threads);
	struct drive d;

	if (drive_open(&d, ops, m, t ? &t->src : NULL, &lim))
		fail_msg("%s", d.err);
	for (size_t i = 0; i < sizeof(asked) / sizeof(*asked); i++) {
		struct token want[ANSWER];
		int kinds = 0;

		memset(want, 0, sizeof(want));
		answer_alone(&d, &asked[i], want);
		for (int j = 1; j < ANSWER; j++)
			kinds += want[j].r.id != want[0].r.id;
		assert_true(kinds > 5 || !asked[i].seed);
		answer_guessed(&d, &asked[i], want, false);
		answer_guessed(&d, &asked[i], want, true);
	}
	drive_close(&d);
}

static void test_null(void **state)
{
	const struct sr_model model = { .n_vocab = 97, .n_layers = 1, .n_kinds = 1,
		.kind = { { .n_kv_heads = 1, .head_dim = 8 } } };

	(void)state;
	sr_null_depth(1);
	both(sr_null_ops(), NULL, &model, 0);
}

static void test_cpu(void **state)
{
	static const char *tables[] = { "plain", "avx2", "avx512vnni", "avx512" };
	static const struct { int32_t type; unsigned flags; int window, experts, threads; float cap; } cases[] = {
		{ SR_BF16, 0, 0, 0, 1, 0 }, { SR_Q4_0, TINY_UNTIED, 0, 0, 2, 0 }, { SR_Q8_0, TINY_QK_NORM, 20, 0, 5, 5 },
		{ SR_Q4_1, 0, 0, 4, 2, 0 },
	};

	(void)state;
	for (size_t c = 0; c < sizeof(cases) / sizeof(*cases); c++) {
		struct sr_model shape = tiny_shape();
		struct sr_layer layers[2];
		struct tiny *t;

		shape.logit_cap = cases[c].cap;
		tiny_window(&shape, layers, cases[c].window);
		if (cases[c].experts)
			shape.experts = (struct sr_experts){ .n = 4, .top = 2, .d_ff = 64 };
		t = tiny_create(&shape, cases[c].type, cases[c].flags, 11 + c);
		for (size_t k = 0; k < sizeof(tables) / sizeof(*tables); k++) {
			if (!kern_pick(tables[k]) || (c > 0 && k != c))
				continue;
			setenv("SLIPRING_CPU", tables[k], 1);
			both(sr_cpu_ops(), t, &t->m, cases[c].threads);
		}
		unsetenv("SLIPRING_CPU");
		tiny_destroy(t);
	}
}

/* A guess would have changed the state of such layers. */
static void test_refused(void **state)
{
	struct sr_model shape = tiny_shape();
	struct sr_limits lim = limits(1);
	struct tiny *t = tiny_create(&shape, SR_BF16, 0, 3);
	struct sr_need need;
	char err[300];

	(void)state;
	assert_int_equal(sr_cpu_ops()->plan(&t->m, &lim, &need, err, sizeof(err)), 0);
	t->m.delta = (struct sr_delta){ .k_heads = 2, .v_heads = 2, .k_dim = 16, .v_dim = 16, .conv = 4 };
	lim.n_states = 2;
	assert_true(sr_cpu_ops()->plan(&t->m, &lim, &need, err, sizeof(err)) < 0);
	assert_non_null(strstr(err, "--speculative-config"));
	tiny_destroy(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_null), cmocka_unit_test(test_cpu),
					    cmocka_unit_test(test_refused) };

	for (int i = 0; i < 600; i++)
		text[i] = (i * 7 + i * i / 3) % 50;
	return cmocka_run_group_tests_name("guess", tests, NULL, NULL);
}
