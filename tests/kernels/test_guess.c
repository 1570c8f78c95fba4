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
#include "tests/rig/tiny.h"

#define ANSWER  60
#define MOST    12                 /* guesses of a row */
#define BESIDE  508                /* the row behind it lies across two slices */
#include "tests/rig/guessed_rows.h"

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
