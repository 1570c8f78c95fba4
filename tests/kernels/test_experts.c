/* LINK: @cpu tests/rig/drive.c tests/rig/tiny.c */
/* test_experts.c - the verbs of experts: which are chosen, with which weights, and what they compute, against the
 * formulas written again in double precision; and the same bits for a sequence in any company. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <math.h>

#include "kernels/cpu/batches.c"
#include "tests/rig/drive.h"
#include "tests/rig/tiny.h"

#define T_MAX 40
#define D     64

static const char *const tables[] = { "plain", "avx2", "avx512vnni", "avx512" };

/* ---- the formulas once more ------------------------------------------------------------------------ */

static void times(const struct tiny *t, const struct sr_tensor *w, const struct sr_tensor *b, int e, const double *x,
                  double *y)
{
	struct sr_tensor one = tiny_part(w, e), of = b->type ? tiny_part(b, e) : *b;
	float *dense = tiny_dense(t, &one), *bias = b->type ? tiny_dense(t, &of) : NULL;

	for (int i = 0; i < one.n; i++) {
		y[i] = bias ? bias[i] : 0;
		for (int j = 0; j < one.k; j++)
			y[i] += dense[i * one.k + j] * x[j];
	}
	free(dense);
	free(bias);
}

static void mlp(const struct tiny *t, const struct sr_layer *w, bool shared, int e, double in, const double *y,
                double *z)
{
	const struct sr_tensor none = { 0 };
	double x[D], gate[128], up[128];
	int F = shared ? t->m.experts.d_shared : t->m.experts.d_ff;

	for (int i = 0; i < D; i++)
		x[i] = y[i] * in;
	times(t, shared ? &w->shared_gate : &w->expert_gate, shared ? &none : &w->expert_gate_bias, e, x, gate);
	times(t, shared ? &w->shared_up : &w->expert_up, shared ? &none : &w->expert_up_bias, e, x, up);
	for (int i = 0; i < F; i++)
		gate[i] *= up[i] / (1 + exp(-gate[i]));
	times(t, shared ? &w->shared_down : &w->expert_down, shared ? &none : &w->expert_down_bias, e, gate, z);
}

static int largest(const double *v, const bool *out, int n)
{
	int best = -1;

	for (int i = 0; i < n; i++)
		if (!out[i] && (best < 0 || v[i] > v[best]))
			best = i;
	return best;
}

/* The experts out of the best groups. */
static void limit_groups(const struct sr_experts *x, const double *v, bool *out)
{
	int each = x->n / x->groups;
	double good[8];
	bool in[8] = { false };

	for (int g = 0; g < x->groups; g++) {
		bool seen[64] = { false };

		good[g] = 0;
		for (int i = 0; i < x->group_sum; i++) {
			int best = largest(v + g * each, seen, each);

			seen[best] = true;
			good[g] += v[g * each + best];
		}
	}
	for (int i = 0; i < x->groups_top; i++)
		in[largest(good, in, x->groups)] = true;
	for (int e = 0; e < x->n; e++)
		out[e] = !in[e / each];
}

/* Which experts, and with which weights. */
static void choice(const struct tiny *t, const struct sr_layer *w, const double *y, int *id, double *weight)
{
	const struct sr_experts *x = &t->m.experts;
	double s[64], v[64], sum = 0;
	float *bias = w->choice_bias.type ? tiny_dense(t, &w->choice_bias) : NULL;
	bool out[64] = { false };

	times(t, &w->router, &w->router_bias, 0, y, s);
	for (int e = 0; e < x->n; e++)
		sum += exp(s[e]);
	for (int e = 0; e < x->n; e++) {
		s[e] = x->score == SR_SCORE_SOFTMAX ? exp(s[e]) / sum
		     : x->score == SR_SCORE_SIGMOID ? 1 / (1 + exp(-s[e])) : s[e];
		v[e] = s[e] + (bias ? (double)bias[e] : 0);
	}
	free(bias);
	if (x->groups)
		limit_groups(x, v, out);
	sum = 0;
	for (int j = 0; j < x->top; j++) {
		id[j] = largest(v, out, x->n);
		out[id[j]] = true;
		weight[j] = x->score == SR_SCORE_CHOSEN ? exp(s[id[j]]) : s[id[j]];
		sum += weight[j];
	}
	for (int j = 0; j < x->top; j++)
		weight[j] *= x->scale / (x->renorm || x->score == SR_SCORE_CHOSEN ? sum : 1);
}

static void reference(const struct tiny *t, const struct sr_layer *w, const double *y, const int *id,
                      const double *weight, double *z)
{
	const struct sr_experts *x = &t->m.experts;
	double one[D], mix = 1;

	memset(z, 0, D * sizeof(*z));
	for (int j = 0; j < x->top; j++) {
		mlp(t, w, false, id[j], x->before ? weight[j] : 1, y, one);
		for (int i = 0; i < D; i++)
			z[i] += (x->before ? 1 : weight[j]) * one[i];
	}
	if (!x->d_shared)
		return;
	mlp(t, w, true, 0, 1, y, one);
	if (w->shared_mix.type) {
		times(t, &w->shared_mix, &(struct sr_tensor){ 0 }, 0, y, &mix);
		mix = 1 / (1 + exp(-mix));
	}
	for (int i = 0; i < D; i++)
		z[i] += mix * one[i];
}

/* ---- the verbs -------------------------------------------------------------------------------------- */

/* As forward() calls them. */
static void run(struct drive *d, const struct net_layer *w, int T)
{
	const struct sr_experts *x = &d->b->m.experts;
	struct dev *dev = &d->b->dev[0];

	if (w->gu) {
		cpu_ops.matmul(dev, P_GU, P_Y, w->gu, T);
		cpu_ops.act_mul(dev, SR_GATED, SR_SILU, 0, x->d_shared, T);
		cpu_ops.matmul(dev, P_Z, P_ACT, w->down, T);
	}
	cpu_ops.matmul(dev, P_SCORES, P_Y, w->router, T);
	cpu_ops.route(dev, x, w->choice_bias, T);
	cpu_ops.matmul(dev, P_GU, P_Y, w->expert_gu, T);
	cpu_ops.act_mul(dev, SR_GATED, SR_SILU, 0, x->d_ff, T * x->top);
	cpu_ops.matmul(dev, P_OUT, P_ACT, w->expert_down, T);
	cpu_ops.combine(dev, x, w->gu != NULL, w->shared_mix, T);
}

static float input(int t, int i)
{
	uint32_t u = (uint32_t)(t * 977 + i * 131 + 7) * 2654435761u;

	return ((float)(u >> 8) / (1 << 23) - 1) * (i % 17 == 3 ? 3.0f : 1.0f);
}

/* T tokens through layer 1.  Returns the worst row's difference, relative to its size. */
static double differs(struct drive *d, const struct tiny *t, int T)
{
	const struct sr_layer *w = &t->m.layer[1];
	const struct routing *r = &d->b->dev[0].routing;
	static float y[T_MAX * D], z[T_MAX * D];
	double worst = 0;

	for (int i = 0; i < T * D; i++)
		y[i] = input(i / D, i % D);
	cpu_ops.put(&d->b->dev[0], P_Y, y, T);
	run(d, &d->b->net.layer[1], T);
	cpu_ops.get(&d->b->dev[0], P_Z, z, T);
	for (int i = 0; i < T; i++) {
		double in[D], want[D], weight[8], diff = 0, size = 0;
		int id[8], top = t->m.experts.top;

		for (int j = 0; j < D; j++)
			in[j] = y[i * D + j];
		choice(t, w, in, id, weight);
		for (int j = 0; j < top; j++) {
			assert_int_equal(r->id[i * top + j], id[j]);
			assert_float_equal(r->weight[i * top + j], weight[j], 1e-5);
		}
		reference(t, w, in, id, weight, want);
		for (int j = 0; j < D; j++) {
			diff += (z[i * D + j] - want[j]) * (z[i * D + j] - want[j]);
			size += want[j] * want[j];
		}
		worst = fmax(worst, sqrt(diff / size));
	}
	return worst;
}

static const struct shape_case {
	const char *what;
	struct sr_experts x;
	unsigned flags;
	int32_t type;
	double bound;                  /* F32: rounding; the others quantize activations */
} cases[] = {
	{ "mixtral", { 8, 2, 96, 0, SR_SCORE_SOFTMAX, .renorm = 1, .scale = 1 }, 0, SR_F32, 1e-5 },
	{ "apart", { 8, 2, 96, 0, SR_SCORE_SOFTMAX, .renorm = 1, .scale = 1 }, TINY_EACH, SR_F32, 1e-5 },
	{ "qwen2", { 12, 4, 64, 96, SR_SCORE_SOFTMAX, .scale = 1 }, TINY_SHARED_MIX, SR_F32, 1e-5 },
	{ "gpt-oss", { 16, 4, 32, 0, SR_SCORE_CHOSEN, .scale = 1 }, TINY_EXPERT_BIAS, SR_F32, 1e-5 },
	{ "glm", { 16, 8, 32, 32, SR_SCORE_SIGMOID, .renorm = 1, .scale = 2.5f }, TINY_CHOICE_BIAS, SR_F32, 1e-5 },
	{ "deepseek", { 32, 4, 32, 64, SR_SCORE_SIGMOID, .renorm = 1, .groups = 8, .groups_top = 3, .group_sum = 2,
	  .scale = 2.5f }, TINY_CHOICE_BIAS, SR_F32, 1e-5 },
	{ "deepseek 2", { 32, 4, 32, 0, SR_SCORE_SOFTMAX, .groups = 4, .groups_top = 2, .group_sum = 1, .scale = 16 },
	  0, SR_F32, 1e-5 },
	{ "llama 4", { 4, 1, 96, 96, SR_SCORE_SIGMOID, .before = 1, .scale = 1 }, TINY_EACH, SR_F32, 1e-5 },
	{ "all", { 3, 3, 32, 0, SR_SCORE_SOFTMAX, .scale = 1 }, 0, SR_F32, 1e-5 },
	{ "bf16", { 8, 2, 96, 0, SR_SCORE_SOFTMAX, .renorm = 1, .scale = 1 }, 0, SR_BF16, 0.01 },
	{ "q8_0", { 8, 2, 96, 32, SR_SCORE_SOFTMAX, .renorm = 1, .scale = 1 }, TINY_EACH, SR_Q8_0, 0.03 },
	{ "q4_1", { 8, 2, 96, 32, SR_SCORE_SOFTMAX, .renorm = 1, .scale = 1 }, TINY_EXPERT_BIAS, SR_Q4_1, 0.03 },
	{ "mxfp4", { 8, 2, 96, 32, SR_SCORE_CHOSEN, .scale = 1 }, TINY_EXPERT_BIAS, SR_MXFP4, 0.03 },
	{ "awq", { 8, 2, 96, 32, SR_SCORE_SOFTMAX, .renorm = 1, .scale = 1 }, 0, SR_AWQ4, 0.03 },
	{ "gptq", { 8, 2, 96, 0, SR_SCORE_SOFTMAX, .renorm = 1, .scale = 1 }, 0, SR_GPTQ4, 0.03 },
	{ "compressed-tensors", { 8, 2, 96, 0, SR_SCORE_SOFTMAX, .renorm = 1, .scale = 1 }, 0, SR_CT4, 0.03 },
};

static struct tiny *model_of(const struct shape_case *c)
{
	struct sr_model shape = tiny_shape();

	shape.experts = c->x;
	return tiny_create(&shape, c->type, c->flags, 3);
}

static void open_as(struct drive *d, const struct tiny *t, int threads)
{
	struct sr_limits lim = drive_limits();

	lim.threads = threads;
	if (drive_open(d, sr_cpu_ops(), &t->m, &t->src, &lim))
		fail_msg("%s", d->err);
}

static void test_formulas(void **state)
{
	static const int sizes[] = { 1, 2, 8, 9, 33 };

	(void)state;
	for (size_t c = 0; c < sizeof(cases) / sizeof(*cases); c++) {
		struct tiny *t = model_of(&cases[c]);

		for (int k = 0; k < 4; k++) {
			struct drive d;

			if (!kern_pick(tables[k]))
				continue;
			setenv("SLIPRING_CPU", tables[k], 1);
			open_as(&d, t, 1);
			for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
				double off = differs(&d, t, sizes[i]);

				if (!(off <= cases[c].bound))
					fail_msg("%s, %s, %d tokens: off by %g, may be %g", cases[c].what, tables[k],
						sizes[i], off, cases[c].bound);
			}
			drive_close(&d);
		}
		tiny_destroy(t);
	}
	unsetenv("SLIPRING_CPU");
}

/* Among equal scores the expert with the lower number is chosen; one that is not a number harms no other token. */
static void test_ties(void **state)
{
	struct sr_experts x = cases[0].x;
	struct tiny *t = model_of(&cases[0]);
	float logits[3][8] = { { 1, 2, 1, 2, 2, 0, 0, 0 }, { 0 }, { NAN, NAN, 1, NAN, NAN, NAN, NAN, NAN } };
	float hot[8] = { 20, 30, 25, 40, 0, 0, 0, 0 };
	struct routing *r;
	struct drive d;

	(void)state;
	open_as(&d, t, 1);
	r = &d.b->dev[0].routing;
	cpu_ops.put(&d.b->dev[0], P_SCORES, &logits[0][0], 3);
	cpu_ops.route(&d.b->dev[0], &x, NULL, 3);
	assert_true(r->id[0] == 1 && r->id[1] == 3 && r->weight[0] == 0.5f);
	assert_true(r->id[2] == 0 && r->id[3] == 1 && r->weight[3] == 0.5f);
	for (int j = 4; j < 6; j++)
		assert_true(r->id[j] >= 0 && r->id[j] < 8 && isnan(r->weight[j]));
	assert_true(r->id[4] != r->id[5]);
	x.score = SR_SCORE_SIGMOID;                 /* of 20 and of 40 is 1: Llama 4 compares what it is of */
	x.before = 1;
	cpu_ops.put(&d.b->dev[0], P_SCORES, hot, 1);
	cpu_ops.route(&d.b->dev[0], &x, NULL, 1);
	assert_true(r->id[0] == 3 && r->id[1] == 1);
	drive_close(&d);
	tiny_destroy(t);
}

/* ---- the same bits ---------------------------------------------------------------------------------- */

/* 100 scored tokens in pieces of `chunk`, beside `others`. */
static void score_prompt(struct drive *d, int chunk, int others, struct sr_result *out)
{
	int32_t ids[101];

	for (int i = 0; i < 101; i++)
		ids[i] = i * 31 % 200;
	for (int i = 0; i <= others; i++) {
		drive_begin(d, i, NULL);
		drive_range(d, i, i ? 6 + i : 0, i ? 1 : 7);
	}
	for (int from = 0, step = 0; from < 100; from += chunk, step++) {
		int n = 100 - from < chunk ? 100 - from : chunk, at;

		for (int i = 1; i <= others && step < 16; i++)
			drive_row(d, i, step, ids + i + step, 1, 0, 1);
		at = drive_row(d, 0, from, ids + from, n, n, 0);
		drive_step(d);
		memcpy(out + from, d->batch->result + at, (size_t)n * sizeof(*out));
	}
}

static void test_same_bits(void **state)
{
	static const struct { int chunk, others, threads; } ways[] = {
		{ 100, 0, 1 }, { 1, 0, 1 }, { 7, 31, 1 }, { 8, 3, 2 }, { 33, 0, 3 }, { 1, 31, 2 }, { 9, 7, 5 },
	};

	(void)state;
	for (size_t c = 0; c < sizeof(cases) / sizeof(*cases); c += 3) {
		struct tiny *t = model_of(&cases[c]);
		struct sr_result first[100], got[100];

		for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
			struct drive d;

			open_as(&d, t, ways[i].threads);
			score_prompt(&d, ways[i].chunk, ways[i].others, i ? got : first);
			if (i && memcmp(got, first, sizeof(got)))
				fail_msg("%s: other bits in chunks of %d, beside %d, with %d threads", cases[c].what,
					ways[i].chunk, ways[i].others, ways[i].threads);
			drive_close(&d);
		}
		tiny_destroy(t);
	}
}

/* What a batch reads of experts is what its tokens chose. */
static void test_bytes(void **state)
{
	struct tiny *t = model_of(&cases[8]), *some = model_of(&cases[0]);
	uint64_t all = 0;
	struct drive d;

	(void)state;
	open_as(&d, t, 1);              /* all of 3 experts */
	drive_begin(&d, 0, NULL);
	drive_range(&d, 0, 0, 1);
	drive_row(&d, 0, 0, (int32_t[]){ 5, 6 }, 1, 0, 1);
	drive_step(&d);
	all = d.batch->bytes;
	assert_true(all > t->m.layer[0].expert_gate.data.bytes * 6);
	drive_close(&d);
	open_as(&d, some, 1);           /* 2 of 8 */
	drive_begin(&d, 0, NULL);
	drive_range(&d, 0, 0, 1);
	drive_row(&d, 0, 0, (int32_t[]){ 5, 6 }, 1, 0, 1);
	drive_step(&d);
	all = some->m.layer[0].expert_gate.data.bytes * 6; /* of two layers */
	assert_true(d.batch->bytes < some->size - all / 2 && d.batch->bytes > some->size - all);
	drive_close(&d);
	tiny_destroy(t);
	tiny_destroy(some);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_formulas), cmocka_unit_test(test_ties), cmocka_unit_test(test_same_bits),
		cmocka_unit_test(test_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
