/* LINK: @cpu tests/rig/drive.c tests/rig/tiny.c */
/* test_parity.c - verb by verb: every table of inner loops against plain C, through put and get.
 * A verb is run on two back ends that were opened with the same model and given the same places;
 * their results are compared relative to the size of the row. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cpu/batches.c"
#include "tests/rig/drive.h"
#include "tests/rig/tiny.h"

#define T_MAX 40
#define WIDE  1024

static const struct ops *const op = &cpu_ops;
static struct drive truth, other;
static struct tiny *model;
static const char *table;

/* A slice of T tokens of slot 0 at positions first.., as a batch would make it. */
static void slice_of(struct drive *d, int first, int T)
{
	struct row_cursor c = { 0, 0 };
	int32_t ids[T_MAX];

	for (int t = 0; t < T; t++)
		ids[t] = (first + t) * 31 % 200;
	drive_begin(d, 0, NULL);
	drive_range(d, 0, 2, 8);
	for (int32_t i = 0; i < d->batch->n_cmds; i++)
		do_command(d->b, &d->batch->cmd[i]);
	drive_row(d, 0, first, ids, T, T - 1, 1);
	assert_true(next_slice(d->b, &c));
	d->b->dev[0].reads = d->b->dev[0].writes = 0;
	attend_angles(&d->b->dev[0]);
	d->batch->n_cmds = d->batch->n_words = d->batch->n_rows = d->batch->n_ids = 0;
	d->batch->n_tokens = d->batch->n_results = 0;
}

static void fill(float *x, int n, uint32_t seed)
{
	for (int i = 0; i < n; i++) {
		seed = seed * 1664525u + 1013904223u;
		x[i] = ((float)(seed >> 8) / (1 << 23) - 1) * (i % 37 == 5 ? 8.0f : 1.5f);
	}
}

static void put_both(enum place p, int T, uint32_t seed)
{
	static float x[T_MAX * WIDE];

	fill(x, T * truth.b->shape.width[p], seed);
	op->put(&truth.b->dev[0], p, x, T);
	op->put(&other.b->dev[0], p, x, T);
}

/* Root mean square of the difference over that of the truth, worst row. */
static void compare(const char *verb, enum place p, int T, double bound)
{
	static float a[T_MAX * WIDE], b[T_MAX * WIDE];
	int n = truth.b->shape.width[p];

	op->get(&truth.b->dev[0], p, a, T);
	op->get(&other.b->dev[0], p, b, T);
	for (int t = 0; t < T; t++) {
		double diff = 0, size = 0;

		for (int i = t * n; i < (t + 1) * n; i++) {
			diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
			size += (double)a[i] * a[i];
		}
		if (!(sqrt(diff) <= bound * sqrt(size)) || !(size > 0))
			fail_msg("%s, %s, row %d of %d: off by %g, may be %g", verb, table, t, T,
				sqrt(diff / size), bound);
	}
}

#define BOTH(verb, ...) do {                            \
	op->verb(&truth.b->dev[0], __VA_ARGS__);        \
	op->verb(&other.b->dev[0], __VA_ARGS__);        \
} while (0)
#define WEIGHTS(verb, w, ...) do {                                      \
	op->verb(&truth.b->dev[0], __VA_ARGS__, truth.b->net.w, T);     \
	op->verb(&other.b->dev[0], __VA_ARGS__, other.b->net.w, T);     \
} while (0)

static void rows(int T)
{
	const struct net_layer *a = &truth.b->net.layer[1], *b = &other.b->net.layer[1];
	struct dev *da = &truth.b->dev[0], *db = &other.b->dev[0];

	op->embed(da, truth.b->net.embed, 3, T);
	op->embed(db, other.b->net.embed, 3, T);
	compare("embed", P_X, T, 1e-6);
	put_both(P_X, T, 1);
	put_both(P_Z, T, 2);
	op->add_norm(da, 0, NULL, a->norm1, SR_RMS, 1e-5f, 1, T);
	op->add_norm(db, 0, NULL, b->norm1, SR_RMS, 1e-5f, 1, T);
	compare("add_norm", P_X, T, 1e-6);
	compare("add_norm", P_Y, T, 1e-6);
	op->add_norm(da, 0, a->post2, NULL, SR_RMS, 1e-5f, 1, T);
	op->add_norm(db, 0, b->post2, NULL, SR_RMS, 1e-5f, 1, T);
	compare("add_norm with post", P_X, T, 1e-6);
	op->add_norm(da, 1, NULL, a->norm2, SR_RMS, 1e-5f, 1, T);
	op->add_norm(db, 1, NULL, b->norm2, SR_RMS, 1e-5f, 1, T);
	compare("the first add_norm", P_Y, T, 1e-6);
	op->pick_norm(da, truth.b->net.norm, SR_RMS, 1e-5f, 0, T);
	op->pick_norm(db, other.b->net.norm, SR_RMS, 1e-5f, 0, T);
	compare("pick_norm", P_Y, T, 1e-6);
}

static void columns(int T)
{
	put_both(P_Y, T, 3);
	WEIGHTS(matmul, layer[0].qkv, P_QKV, P_Y); /* three types in one, with bias */
	compare("matmul qkv", P_QKV, T, 0.004);
	put_both(P_A, T, 4);
	WEIGHTS(matmul, layer[0].o, P_Z, P_A);
	compare("matmul o", P_Z, T, 0.004);
	put_both(P_Y, T, 5);
	WEIGHTS(matmul, layer[1].gu, P_GU, P_Y);
	compare("matmul gate, up", P_GU, T, 0.004);
	put_both(P_GU, T, 6);
	BOTH(act_mul, SR_GATED, SR_SILU, 0, model->m.d_ff, T);
	compare("silu", P_ACT, T, 1e-5);
	BOTH(act_mul, SR_GATED, SR_GELU_TANH, 0, model->m.d_ff, T);
	compare("gelu", P_ACT, T, 1e-5);
	WEIGHTS(matmul, layer[1].down, P_Z, P_ACT);
	compare("matmul down", P_Z, T, 0.004);
}

static void positions(int first, int T)
{
	const struct net_layer *a = &truth.b->net.layer[0], *b = &other.b->net.layer[0];
	struct sr_attn all = model->m.kind[0], some = all;

	some.cap = 2;
	some.window = 7;
	put_both(P_QKV, T, 7 + (uint32_t)first);
	op->rope_store(&truth.b->dev[0], 0, &truth.b->m.kind[0], a->qn, a->kn, 1e-5f, T);
	op->rope_store(&other.b->dev[0], 0, &other.b->m.kind[0], b->qn, b->kn, 1e-5f, T);
	compare("rope_store", P_QKV, T, 1e-5);
	BOTH(attend, 0, &all, NULL, T);
	compare("attend", P_A, T, 0.006);
	BOTH(attend, 0, &some, NULL, T);
	compare("attend, window and cap", P_A, T, 0.006);
}

static void results(int T)
{
	op->pick_norm(&truth.b->dev[0], truth.b->net.norm, SR_RMS, 1e-5f, 0, T);
	op->pick_norm(&other.b->dev[0], other.b->net.norm, SR_RMS, 1e-5f, 0, T);
	put_both(P_LOGITS, T, 8);
	BOTH(sample, 9, 0, T);
	for (int i = 0; i < T; i++) {
		const struct sr_result *a = &truth.b->batch.result[i], *b = &other.b->batch.result[i];

		assert_int_equal(a->id, b->id);
		assert_int_equal(a->rank, b->rank);
		assert_float_equal(a->logprob, b->logprob, 1e-5);
	}
}

static void test_verbs(void **state)
{
	static const char *tables[] = { "avx2", "avx512vnni", "avx512" };
	static const int sizes[] = { 1, 2, 7, 8, 9, 16, 33 };
	struct sr_model shape = tiny_shape();
	struct sr_limits lim = drive_limits();
	int tried = 0;

	(void)state;
	shape.kind[0].rope.pairs = 0;
	lim.logit_rows = T_MAX;
	model = tiny_create(&shape, SR_Q8_0, TINY_MIXED | TINY_BIAS | TINY_QK_NORM | TINY_POST_NORM | TINY_UNTIED, 5);
	for (int k = 0; k < 6; k++) {
		table = tables[k / 2];
		if (!kern_pick(table))
			continue;
		tried++;
		lim.kv_type = k % 2 ? SR_KV_I8 : SR_KV_BF16;
		setenv("SLIPRING_CPU", "plain", 1);
		assert_int_equal(drive_open(&truth, sr_cpu_ops(), &model->m, &model->src, &lim), 0);
		setenv("SLIPRING_CPU", table, 1);
		assert_int_equal(drive_open(&other, sr_cpu_ops(), &model->m, &model->src, &lim), 0);
		for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
			int T = sizes[i];

			slice_of(&truth, 0, T);
			slice_of(&other, 0, T);
			rows(T);
			columns(T);
			positions(0, T);
			results(T);
			slice_of(&truth, T, 3); /* continues what is stored */
			slice_of(&other, T, 3);
			positions(T, 3);
		}
		drive_close(&truth);
		drive_close(&other);
	}
	unsetenv("SLIPRING_CPU");
	tiny_destroy(model);
	if (!tried) {
		printf("SKIP: this machine has neither AVX2 nor AVX-512 with VNNI and BF16\n");
		skip();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_verbs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
