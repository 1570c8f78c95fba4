/* LINK: @cpu kernels/backend.c @null tests/rig/drive.c tests/rig/tiny.c */
/* test_cpu.c - the CPU back end through backend.h: against a transformer written again in double
 * precision, and against itself: a sequence gives the same bits beside any others, in any chunks, on any
 * number of threads, with and without shared prefixes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"
#include "tests/rig/drive.h"
#include "tests/rig/tiny.h"

#define N 80                       /* tokens of most sequences here */

static int32_t text[1200];

/* Open the back end, or fail the test. */
static struct drive opened(const struct tiny *t, const struct sr_limits *lim)
{
	struct drive d;

	if (drive_open(&d, sr_cpu_ops(), &t->m, &t->src, lim))
		fail_msg("%s", d.err);
	return d;
}

/* ---- the transformer once more ----------------------------------------------------------------- */

static double bf16(double x)
{
	float f = (float)x;
	uint32_t u;

	memcpy(&u, &f, 4);
	u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000;
	memcpy(&f, &u, 4);
	return f;
}

static void norm(const double *x, const float *w, double eps, int n, double *y)
{
	double s = 0;

	for (int i = 0; i < n; i++)
		s += x[i] * x[i];
	s = 1 / sqrt(s / n + eps);
	for (int i = 0; i < n; i++)
		y[i] = x[i] * s * w[i];
}

static void times(const struct tiny *t, const struct sr_tensor *w, const struct sr_tensor *b,
                  const double *x, double *y)
{
	float *dense = tiny_dense(t, w), *bias = b && b->type ? tiny_dense(t, b) : NULL;

	for (int i = 0; i < w->n; i++) {
		y[i] = bias ? bias[i] : 0;
		for (int j = 0; j < w->k; j++)
			y[i] += dense[(size_t)i * (size_t)w->k + (size_t)j] * x[j];
	}
	free(dense);
	free(bias);
}

static void norm_by(const struct tiny *t, const struct sr_tensor *w, const double *x, double *y)
{
	float *dense = tiny_dense(t, w);

	norm(x, dense, t->m.eps, w->k, y);
	free(dense);
}

static void rotate(const struct sr_rope *r, int position, double *head)
{
	float freq[256];

	sr_rope_freq(r, freq);
	for (int i = 0; i < r->dims / 2; i++) {
		double c = cos(position * (double)freq[i]), s = sin(position * (double)freq[i]);
		double *a = head + (r->pairs ? 2 * i : i), *b = head + (r->pairs ? 2 * i + 1 : i + r->dims / 2);
		double x = *a, y = *b;

		*a = x * c - y * s;
		*b = x * s + y * c;
	}
}

static double capped(double x, double cap)
{
	return cap > 0 ? cap * tanh(x / cap) : x;
}

struct memory_of { double k[2][N][64], v[2][N][64]; }; /* [layer][position][n_kv_heads * head_dim] */

static void attention(const struct sr_model *m, int l, struct memory_of *kv, int pos, const double *q, double *out)
{
	const struct sr_attn *kind = kind_of(m, l);
	int E = kind->head_dim, window = kind->window, from = window && pos >= window ? pos - window + 1 : 0;

	for (int h = 0; h < kind->n_heads; h++) {
		int g = h / (kind->n_heads / kind->n_kv_heads) * E;
		double p[N], most = -INFINITY, sum = 0;

		for (int j = from; j <= pos; j++) {
			p[j] = 0;
			for (int e = 0; e < E; e++)
				p[j] += q[h * E + e] * kv->k[l][j][g + e];
			p[j] = capped(p[j] * kind->scale, kind->cap);
			most = fmax(most, p[j]);
		}
		for (int j = from; j <= pos; j++)
			sum += p[j] = exp(p[j] - most);
		for (int e = 0; e < E; e++) {
			double o = 0;

			for (int j = from; j <= pos; j++)
				o += p[j] / sum * kv->v[l][j][g + e];
			out[h * E + e] = o;
		}
	}
}

static void block(const struct tiny *t, int l, struct memory_of *kv, int pos, double *x)
{
	const struct sr_model *m = &t->m;
	const struct sr_layer *w = &m->layer[l];
	const struct sr_attn *kind = kind_of(m, l);
	int E = kind->head_dim;
	double y[96], q[64], k[64], v[64], a[64], z[96], gate[128], up[128];

	norm_by(t, &w->norm1, x, y);
	times(t, &w->q, &w->q_bias, y, q);
	times(t, &w->k, &w->k_bias, y, k);
	times(t, &w->v, &w->v_bias, y, v);
	for (int h = 0; h < kind->n_heads; h++) {
		if (w->q_norm.type)
			norm_by(t, &w->q_norm, q + h * E, q + h * E);
		rotate(&kind->rope, pos, q + h * E);
	}
	for (int g = 0; g < kind->n_kv_heads; g++) {
		if (w->k_norm.type)
			norm_by(t, &w->k_norm, k + g * E, k + g * E);
		rotate(&kind->rope, pos, k + g * E);
	}
	for (int i = 0; i < kind->n_kv_heads * E; i++) { /* what the cache keeps of them */
		kv->k[l][pos][i] = bf16(k[i]);
		kv->v[l][pos][i] = bf16(v[i]);
	}
	attention(m, l, kv, pos, q, a);
	times(t, &w->o, NULL, a, z);
	if (w->post1.type)
		norm_by(t, &w->post1, z, z);
	for (int i = 0; i < m->d_model; i++)
		x[i] += z[i];
	norm_by(t, &w->norm2, x, y);
	times(t, &w->gate, NULL, y, gate);
	times(t, &w->up, NULL, y, up);
	for (int i = 0; i < w->d_ff; i++) {
		double g = gate[i];

		gate[i] = up[i] * (m->act == SR_SILU ? g / (1 + exp(-g))
			: g / 2 * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))));
	}
	times(t, &w->down, NULL, gate, z);
	if (w->post2.type)
		norm_by(t, &w->post2, z, z);
	for (int i = 0; i < m->d_model; i++)
		x[i] += z[i];
}

/* Log-probabilities of ids[1..n) given what is before each. */
static void reference(const struct tiny *t, const int32_t *ids, int n, double *logprob)
{
	const struct sr_model *m = &t->m;
	struct memory_of *kv = calloc(1, sizeof(*kv));
	float *embed = tiny_dense(t, &m->embed);
	double x[96], y[96], logits[200], sum;

	assert_non_null(kv);
	for (int pos = 0; pos + 1 < n; pos++) {
		for (int i = 0; i < m->d_model; i++)
			x[i] = m->embed_scale * embed[ids[pos] * m->d_model + i];
		for (int l = 0; l < m->n_layers; l++)
			block(t, l, kv, pos, x);
		norm_by(t, &m->norm, x, y);
		times(t, m->head.type ? &m->head : &m->embed, NULL, y, logits);
		sum = 0;
		for (int i = 0; i < m->n_vocab; i++)
			sum += exp(logits[i] = capped(logits[i], m->logit_cap));
		logprob[pos] = logits[ids[pos + 1]] - log(sum);
	}
	free(embed);
	free(kv);
}

/* Give each matrix of the layers a list of its inputs' groups: the same weights, which multiply in another way. */
static void act_order(struct tiny *t)
{
	for (int32_t l = 0; l < t->m.n_layers; l++) {
		struct sr_layer *y = &t->m.layer[l];
		struct sr_tensor *all[] = { &y->q, &y->k, &y->v, &y->o, &y->gate, &y->up, &y->down };

		for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
			struct sr_tensor *w = all[i];

			w->index = (struct sr_extent){ .offset = t->size, .bytes = (uint64_t)w->k * 4 };
			t->bytes = realloc(t->bytes, t->size + w->index.bytes);
			assert_non_null(t->bytes);
			for (int32_t j = 0; j < w->k; j++)
				memcpy(t->bytes + t->size + 4 * j, (int32_t[]){ j / (w->group ? w->group : w->k) }, 4);
			t->size += w->index.bytes;
		}
	}
}

static void test_reference(void **state)
{
	static const struct {
		const char *what;
		int32_t type;
		unsigned flags;
		double bound;       /* on the mean difference of log-probabilities */
		int window, pairs, act, rope;
		float cap;
	} cases[] = {
		{ "f32", SR_F32, 0, 0.002, 0, 1, SR_SILU, SR_ROPE_PLAIN, 0 },
		{ "f32, halves, llama3", SR_F32, TINY_UNTIED, 0.002, 0, 0, SR_SILU, SR_ROPE_LLAMA3, 0 },
		{ "f16, bias (qwen2)", SR_F16, TINY_BIAS, 0.002, 0, 0, SR_SILU, SR_ROPE_YARN, 0 },
		{ "bf16, q and k norms (qwen3)", SR_BF16, TINY_QK_NORM, 0.01, 0, 0, SR_SILU, SR_ROPE_LINEAR, 0 },
		{ "f32, all of gemma", SR_F32, TINY_QK_NORM | TINY_POST_NORM, 0.005, 20, 0, SR_GELU_TANH, 0, 5 },
		{ "q8_0", SR_Q8_0, TINY_UNTIED, 0.1, 0, 1, SR_SILU, SR_ROPE_PLAIN, 0 },
		{ "q4_0", SR_Q4_0, 0, 0.1, 0, 1, SR_SILU, SR_ROPE_PLAIN, 0 },
		{ "q4_1", SR_Q4_1, TINY_BIAS | TINY_UNTIED, 0.1, 33, 1, SR_SILU, SR_ROPE_PLAIN, 0 },
		{ "awq", SR_AWQ4, TINY_UNTIED, 0.1, 0, 0, SR_SILU, SR_ROPE_PLAIN, 0 },
		{ "gptq", SR_GPTQ4, TINY_BIAS, 0.1, 0, 0, SR_SILU, SR_ROPE_PLAIN, 0 },
		{ "gptq_v2", SR_GPTQ4_V2, 0, 0.1, 0, 0, SR_SILU, SR_ROPE_PLAIN, 0 },
		{ "compressed-tensors", SR_CT4, 0, 0.1, 0, 0, SR_SILU, SR_ROPE_PLAIN, 0 },
		{ "act-order", SR_GPTQ4, TINY_BIAS, 0.005, 0, 0, SR_SILU, SR_ROPE_PLAIN, 0 },
		{ "fp8", SR_F8, TINY_UNTIED, 0.02, 0, 0, SR_SILU, SR_ROPE_PLAIN, 0 },
		{ "one of each", SR_Q8_0, TINY_MIXED, 0.1, 0, 1, SR_SILU, SR_ROPE_PLAIN, 0 },
	};
	static const char *tables[] = { "plain", "avx2", "avx512vnni", "avx512" };
	static const double looser[] = { 0, 0, 0, 0.03 }; /* its attention multiplies bf16 with bf16 */

	(void)state;
	for (size_t c = 0; c < sizeof(cases) / sizeof(*cases); c++) {
		struct sr_model shape = tiny_shape();
		struct sr_layer layers[2];
		struct sr_limits lim = drive_limits();
		double want[N];
		struct tiny *t;

		shape.act = cases[c].act;
		shape.kind[0].cap = shape.logit_cap = cases[c].cap;
		shape.embed_scale = cases[c].cap > 0 ? 2 : 1;
		shape.kind[0].rope.pairs = cases[c].pairs;
		shape.kind[0].rope.kind = cases[c].rope;
		shape.kind[0].rope.context = 32;
		shape.kind[0].rope.factor = 4;
		shape.kind[0].rope.low = 1;
		shape.kind[0].rope.high = cases[c].rope == SR_ROPE_YARN ? 32 : 4;
		tiny_window(&shape, layers, cases[c].window);
		if (cases[c].window)
			shape.kind[1].rope.theta = 700, layers[0].d_ff = 64; /* as well as another window */
		t = tiny_create(&shape, cases[c].type, cases[c].flags, 7 + c);
		reference(t, text, N, want);
		if (strcmp(cases[c].what, "act-order") == 0)
			act_order(t);
		for (size_t k = 0; k < sizeof(tables) / sizeof(*tables); k++) {
			double diff = 0;
			struct drive d;

			if (!kern_pick(tables[k]))
				continue;
			setenv("SLIPRING_CPU", tables[k], 1);
			d = opened(t, &lim);
			drive_begin(&d, 0, NULL);
			drive_range(&d, 0, 3, 5);
			drive_row(&d, 0, 0, text, N - 1, N - 1, 0);
			drive_step(&d);
			for (int i = 0; i < N - 1; i++) {
				assert_int_equal(d.batch->result[i].id, text[i + 1]);
				diff += fabs(d.batch->result[i].logprob - want[i]) / (N - 1);
			}
			if (!(diff <= cases[c].bound + looser[k]))
				fail_msg("%s, %s: mean difference %g", cases[c].what, tables[k], diff);
			drive_close(&d);
		}
		unsetenv("SLIPRING_CPU");
		tiny_destroy(t);
	}
}

/* ---- the same bits ------------------------------------------------------------------------------- */

struct answer { struct sr_result prompt[600], token[16]; };

/* One prompt of n tokens, scored, in chunks, then 16 drawn tokens, beside `others` similar sequences.
 * Block b of ours is blocks[b]. */
static void answer_of(struct drive *d, int n, int chunk, int others, const int32_t *blocks, struct answer *out)
{
	const struct sr_sampling s = { .seed = 5, .temperature = 1, .top_p = 0.9f, .repetition = 1.2f };
	int at;

	memset(out, 0, sizeof(*out));
	drive_begin(d, 0, &s);
	drive_blocks(d, 0, 0, blocks, (n + 16) / 16 + 1);
	drive_history(d, 0, text, n, n);
	for (int i = 1; i <= others; i++) {
		int32_t own[2] = { 64 - 2 * i, 65 - 2 * i };

		drive_begin(d, i, i % 2 ? &s : NULL);
		drive_blocks(d, i, 0, own, 2);
	}
	for (int i = 0, step = 0; i < n; i += chunk, step++) {
		int len = n - i < chunk ? n - i : chunk, last = i + len == n;

		for (int o = 1; o <= others && step < 30; o++)
			drive_row(d, o, step, step % 7 ? text + o + step : text + o, 1, 0, 1);
		at = drive_row(d, 0, i, text + i, len, last ? len - 1 : len, last);
		drive_step(d);
		memcpy(out->prompt + i, d->batch->result + at, (size_t)(last ? len - 1 : len) * sizeof(*out->prompt));
		out->token[0] = d->batch->result[at + len - 1];
		out->token[0].rank = 0; /* ranks come only if some row is scored */
	}
	for (int i = 1; i < 16; i++) {
		at = drive_row(d, 0, n + i - 1, NULL, 1, 0, 1);
		for (int o = 1; o <= others; o++)
			drive_row(d, o, i, text + i + o, 1, 0, 1);
		drive_step(d);
		out->token[i] = d->batch->result[at];
	}
}

static void test_same_bits(void **state)
{
	static const struct { int n, chunk, others, threads, worked; } ways[] = {
		{ 550, 550, 0, 1, 1 }, /* more than a slice */
		{ 550, 512, 0, 1, 1 }, { 550, 16, 0, 1, 1 }, { 550, 7, 31, 1, 1 }, { 550, 100, 3, 2, 1 },
		{ 550, 550, 12, 3, 0 }, { 550, 9, 0, 2, 0 },
		{ 61, 61, 0, 1, 1 }, { 61, 1, 0, 1, 1 }, { 61, 1, 31, 2, 1 }, { 61, 3, 9, 5, 1 }, { 61, 8, 1, 2, 0 },
	};
	static const char *tables[] = { "plain", "avx2", "avx512vnni", "avx512" };
	struct answer first, got;
	int32_t blocks[64];

	(void)state;
	for (size_t i = 0; i < 2 * sizeof(tables) / sizeof(*tables); i++) {
		struct sr_model shape = tiny_shape();
		struct tiny *t = tiny_create(&shape, SR_Q8_0, TINY_MIXED | TINY_UNTIED | TINY_BIAS, 3);
		size_t k = i / 2;

		if (!kern_pick(tables[k])) {
			tiny_destroy(t);
			continue;
		}
		setenv("SLIPRING_CPU", tables[k], 1);
		for (size_t w = 0; w < sizeof(ways) / sizeof(*ways); w++) {
			struct sr_limits lim = drive_limits();
			struct drive d;

			lim.n_blocks = 128;
			lim.kv_type = i % 2 ? SR_KV_I8 : SR_KV_BF16;
			lim.threads = ways[w].threads;
			lim.worked = ways[w].worked;
			for (int b = 0; b < 64; b++) /* other blocks in other orders */
				blocks[b] = w % 2 ? 127 - b : 66 + (b * 7 + (int)w) % 50;
			d = opened(t, &lim);
			answer_of(&d, ways[w].n, ways[w].chunk, ways[w].others, blocks, &got);
			drive_close(&d);
			if (!w || ways[w].n != ways[w - 1].n)
				first = got;
			else if (memcmp(&first, &got, sizeof(got)))
				fail_msg("%s, %s: way %zu gives other bits", tables[k], i % 2 ? "int8 K and V" : "bf16 K and V", w);
		}
		tiny_destroy(t);
	}
	unsetenv("SLIPRING_CPU");
}

/* Keys and values in int8: near to bf16 ones, not the same, and in about half the memory. */
/* Sizes that fill no vector, tile, block or thread: the bits do not depend on other rows or threads, and
 * each table agrees with plain C within its rounding. */
static void test_odd_shapes(void **state)
{
	static const struct { int32_t D, H, G, E, F, V, dims, type; unsigned flags; int pairs, kv, window; } of[] = {
		{ 96, 7, 1, 96, 160, 577, 34, SR_Q8_0, TINY_BIAS, 0, SR_KV_BF16, 0 },
		{ 32, 2, 1, 16, 32, 3, 2, SR_F32, TINY_UNTIED, 1, SR_KV_BF16, 1 },
		{ 160, 3, 3, 512, 96, 33, 70, SR_Q4_0, TINY_QK_NORM, 1, SR_KV_I8, 37 },
		{ 224, 10, 5, 80, 288, 131, 78, SR_Q8_0, TINY_MIXED, 0, SR_KV_I8, 0 },
		{ 64, 4, 2, 48, 224, 1001, 46, SR_BF16, TINY_POST_NORM, 0, SR_KV_BF16, 20 },
	};
	static const char *tables[] = { "plain", "avx2", "avx512vnni", "avx512" };
	static const struct { int chunk, others, threads; } ways[] = { { 70, 0, 1 }, { 9, 5, 7 } };
	struct answer plain, got[2];
	int32_t blocks[8], kept[sizeof(text) / sizeof(*text)];

	(void)state;
	memcpy(kept, text, sizeof(text));
	for (int b = 0; b < 8; b++)
		blocks[b] = 40 - 3 * b;
	for (size_t c = 0; c < sizeof(of) / sizeof(*of); c++) {
		struct sr_model shape = tiny_shape();
		struct sr_layer layers[2];
		struct tiny *t;

		shape.d_model = of[c].D, shape.d_ff = of[c].F, shape.n_vocab = of[c].V;
		shape.kind[0].n_heads = of[c].H, shape.kind[0].n_kv_heads = of[c].G;
		shape.kind[0].head_dim = of[c].E;
		shape.kind[0].rope.dims = of[c].dims;
		shape.kind[0].rope.pairs = of[c].pairs;
		shape.kind[0].scale = 1 / sqrtf((float)of[c].E);
		tiny_window(&shape, layers, of[c].window);
		t = tiny_create(&shape, of[c].type, of[c].flags, 11 + c);
		for (size_t i = 0; i < sizeof(text) / sizeof(*text); i++)
			text[i] = kept[i] % of[c].V;
		for (size_t k = 0; k < sizeof(tables) / sizeof(*tables); k++) {
			double diff = 0;

			if (!kern_pick(tables[k]))
				continue;
			setenv("SLIPRING_CPU", tables[k], 1);
			for (int w = 0; w < 2; w++) {
				struct sr_limits lim = drive_limits();
				struct drive d;

				lim.kv_type = of[c].kv;
				lim.threads = ways[w].threads;
				d = opened(t, &lim);
				answer_of(&d, 70, ways[w].chunk, ways[w].others, blocks, &got[w]);
				drive_close(&d);
			}
			if (memcmp(&got[0], &got[1], sizeof(got[0])))
				fail_msg("shape %zu, %s: other bits in company", c, tables[k]);
			if (!k)
				plain = got[0];
			for (int i = 0; i < 69; i++)
				diff += fabs(got[0].prompt[i].logprob - plain.prompt[i].logprob) / 69;
			if (!(diff <= 0.15)) /* small random models amplify each rounding */
				fail_msg("shape %zu, %s: %g from plain C", c, tables[k], diff);
		}
		tiny_destroy(t);
	}
	memcpy(text, kept, sizeof(text));
	unsetenv("SLIPRING_CPU");
}

static void test_int8_cache(void **state)
{
	static const char *tables[] = { "plain", "avx2", "avx512vnni", "avx512" };
	static const int32_t kv[] = { SR_KV_BF16, SR_KV_I8 };
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_F32, TINY_UNTIED, 19);
	struct sr_need need[2];
	char err[256];

	(void)state;
	for (size_t k = 0; k < sizeof(tables) / sizeof(*tables); k++) {
		double lp[2][N], diff = 0;

		if (!kern_pick(tables[k]))
			continue;
		setenv("SLIPRING_CPU", tables[k], 1);
		for (int which = 0; which < 2; which++) {
			struct sr_limits lim = drive_limits();
			struct drive d;

			lim.kv_type = kv[which];
			assert_int_equal(sr_cpu_ops()->plan(&t->m, &lim, &need[which], err, sizeof(err)), 0);
			d = opened(t, &lim);
			drive_begin(&d, 0, NULL);
			drive_range(&d, 0, 3, 5);
			drive_row(&d, 0, 0, text, N - 1, N - 1, 0);
			drive_step(&d);
			for (int i = 0; i < N - 1; i++)
				lp[which][i] = d.batch->result[i].logprob;
			drive_close(&d);
		}
		for (int i = 0; i < N - 1; i++)
			diff += fabs(lp[0][i] - lp[1][i]) / (N - 1);
		if (!(diff > 0 && diff < 0.05))
			fail_msg("%s: mean difference %g", tables[k], diff);
	}
	assert_int_equal(need[1].per_block, 2 * 2 * 2 * (16 * 4 + 16 * 16)); /* L, K and V, G, scales, int8 */
	unsetenv("SLIPRING_CPU");
	tiny_destroy(t);
}

static void test_shared_prefix(void **state)
{
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_Q4_1, 0, 11);
	struct sr_limits lim = drive_limits();
	struct drive d = opened(t, &lim);
	struct sr_result alone[16];
	int32_t own[] = { 3, 4, 50 };
	int at;

	(void)state;
	drive_begin(&d, 0, NULL);
	drive_range(&d, 0, 1, 4);
	drive_row(&d, 0, 0, text, 48, 0, 0);
	drive_step(&d);
	at = drive_row(&d, 0, 48, text + 48, 10, 9, 1);
	drive_step(&d);
	memcpy(alone, d.batch->result + at, sizeof(alone));
	/* another slot: two blocks of the first, which went to the host and came back elsewhere, and one
	 * copied in the same batch that reads it */
	drive_begin(&d, 1, NULL);
	d.batch->copy[d.batch->n_copies++] = (struct sr_copy){ .device = 1, .host = 2, .out = 1 };
	d.batch->copy[d.batch->n_copies++] = (struct sr_copy){ .device = 20, .host = 2, .out = 0 };
	drive_blocks(&d, 1, 1, (int32_t[]){ 2, 3, 30 }, 3);
	drive_blocks(&d, 1, 0, (int32_t[]){ 20 }, 1);
	at = drive_row(&d, 1, 48, text + 48, 10, 9, 1);
	drive_step(&d);
	assert_memory_equal(alone, d.batch->result + at, 10 * sizeof(*alone));
	/* a wrong block must be noticed, else this test proves nothing */
	drive_blocks(&d, 1, 0, own, 1);
	at = drive_row(&d, 1, 48, text + 48, 10, 9, 1);
	drive_step(&d);
	assert_memory_not_equal(alone, d.batch->result + at, 10 * sizeof(*alone));
	drive_close(&d);
	tiny_destroy(t);
}

/* ---- commands -------------------------------------------------------------------------------------- */

/* Tokens that a slot drew are in its history, as if all were sent again after a preemption. */
static void test_history(void **state)
{
	const struct sr_sampling s = { .seed = 9, .temperature = 1.5f, .top_p = 1, .repetition = 1.3f,
		.presence = 0.7f, .frequency = 0.4f };
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_F16, 0, 12);
	struct sr_limits lim = drive_limits();
	struct drive d = opened(t, &lim);
	int32_t ids[64], again;

	(void)state;
	memcpy(ids, text, 20 * sizeof(*ids));
	drive_begin(&d, 4, &s);
	drive_range(&d, 4, 0, 4);
	drive_history(&d, 4, ids, 20, 20);
	drive_row(&d, 4, 0, ids, 20, 0, 1);
	for (int n = 20; n < 60; n++) {
		drive_step(&d);
		ids[n] = d.batch->result[0].id;
		/* preempted and computed anew, in another slot */
		drive_begin(&d, 7, &s);
		drive_range(&d, 7, 20, 4);
		drive_history(&d, 7, ids, n, 20);
		drive_row(&d, 7, 0, ids, n, 0, 1);
		drive_step(&d);
		again = d.batch->result[0].id;
		assert_int_equal(again, ids[n]);
		drive_row(&d, 4, n, NULL, 1, 0, 1);
	}
	drive_step(&d);
	drive_close(&d);
	tiny_destroy(t);
}

static void test_begin_forgets(void **state)
{
	const struct { int32_t id; float bias; } up = { 77, 1000 };
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_F32, 0, 13);
	struct sr_limits lim = drive_limits();
	struct drive d = opened(t, &lim);
	int32_t before = -1;

	(void)state;
	for (int round = 0; round < 3; round++) {
		drive_begin(&d, 0, NULL);
		drive_range(&d, 0, 0, 2);
		if (round == 1)
			drive_list(&d, 0, SR_LIST_BIAS, &up, 2);
		drive_row(&d, 0, 0, text, 9, 0, 1);
		d.batch->row[0].n_top = 5;
		drive_step(&d);
		if (round == 0)
			before = d.batch->result[0].id;
		assert_int_equal(d.batch->result[0].id, round == 1 ? 77 : before);
		assert_int_equal(d.batch->top[0].id, before); /* raw, whatever is drawn */
		assert_float_equal(d.batch->top[0].logprob,
			round == 1 ? d.batch->top[0].logprob : d.batch->result[0].logprob, 0);
		for (int i = 1; i < 5; i++)
			assert_true(d.batch->top[i].logprob <= d.batch->top[i - 1].logprob);
	}
	/* a batch with nothing in it */
	drive_step(&d);
	assert_true(d.batch->begin_ns && d.batch->end_ns >= d.batch->begin_ns);
	drive_row(&d, 0, 0, text, 9, 0, 1);
	drive_step(&d);
	assert_true(d.batch->memory_ns > 0 && d.batch->compute_ns > 0);
	assert_true(d.batch->bytes > 0 && d.batch->int8_ops + d.batch->float_ops > 0 && !d.batch->copied);
	drive_close(&d);
	tiny_destroy(t);
}

/* ---- the door ---------------------------------------------------------------------------------------- */

static void test_plan(void **state)
{
	static const struct { const char *what; int block, world, kv, E; } wrong[] = {
		{ "block-size", 32, 1, SR_KV_BF16, 16 },
		{ "3 ranks are too many", 16, 3, SR_KV_BF16, 16 }, /* the residual stream is two runs of columns */
		{ "kv-cache-dtype", 16, 1, 77, 16 },
		{ "fp8 is not supported on the CPU; bfloat16", 16, 1, SR_KV_F8, 16 },
		{ "multiple of 16", 16, 1, SR_KV_BF16, 24 },
	};
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_Q4_1, 0, 1);
	struct sr_limits lim = drive_limits();
	struct sr_need need;
	char err[256] = "";

	(void)state;
	assert_int_equal(sr_cpu_ops()->plan(&t->m, &lim, &need, err, sizeof(err)), 0);
	assert_int_equal(need.per_block, 2 * 2 * 2 * 16 * 16 * 2); /* layers, K and V, KV heads, tokens, width, bf16 */
	assert_true(need.weights > 0 && (uint64_t)need.weights < t->size + 65536);
	assert_true(need.avail > 0 && need.total >= need.avail);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		struct sr_model m = t->m;
		struct sr_limits l = lim;

		l.block_tokens = wrong[i].block;
		l.world = wrong[i].world;
		l.kv_type = wrong[i].kv;
		m.kind[0].head_dim = wrong[i].E;
		assert_int_equal(sr_cpu_ops()->plan(&m, &l, &need, err, sizeof(err)), -ENOTSUP);
		assert_non_null(strstr(err, wrong[i].what));
	}
	shape = t->m;
	shape.n_kinds = 2;
	shape.kind[1] = shape.kind[0];
	assert_int_equal(sr_cpu_ops()->plan(&shape, &lim, &need, err, sizeof(err)), 0);
	shape.kind[1].n_kv_heads = 3;
	assert_int_equal(sr_cpu_ops()->plan(&shape, &lim, &need, err, sizeof(err)), -ENOTSUP);
	assert_non_null(strstr(err, "4 query heads, 3 KV heads of width 16: the width must be"));
	shape = t->m;
	shape.n_vocab = 1;
	assert_int_equal(sr_cpu_ops()->plan(&shape, &lim, &need, err, sizeof(err)), -ENOTSUP);
	assert_non_null(strstr(err, "a vocabulary of 1"));
	t->m.layer[1].up.count = 8;
	assert_int_equal(sr_cpu_ops()->plan(&t->m, &lim, &need, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "tensor up is 96 x 64, which is not"));
	t->m.layer[1].up.count = 1;
	t->m.layer[1].d_ff = 80;
	assert_int_equal(sr_cpu_ops()->plan(&t->m, &lim, &need, err, sizeof(err)), -ENOTSUP);
	assert_non_null(strstr(err, "width 64, feed-forward 80: both must be multiples of 32"));
	t->m.layer[1].d_ff = 96;
	t->m.layer[1].up.data.bytes -= 20; /* too few bytes for its shape, and half a super-block */
	assert_int_equal(sr_cpu_ops()->plan(&t->m, &lim, &need, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "tensor up is 96 x 64, which is not 3820 bytes"));
	t->m.layer[1].up.type = SR_Q4_K;
	assert_int_equal(sr_cpu_ops()->plan(&t->m, &lim, &need, err, sizeof(err)), -ENOTSUP);
	assert_non_null(strstr(err, "of 256 for K-quants"));
	t->m.layer[1].up.type = SR_AWQ4;
	assert_int_equal(sr_cpu_ops()->plan(&t->m, &lim, &need, err, sizeof(err)), -ENOTSUP);
	assert_non_null(strstr(err, "tensor up"));
	tiny_destroy(t);
}

static void test_find(void **state)
{
	static const struct { const char *name, *is, *says; } cases[] = {
		{ "cpu", "cpu", NULL }, { "null", "null", NULL }, { "gpu", NULL, "there is no such device" },
		{ "", NULL, "there is no such device" },
	};
	const struct sr_backend_ops *ops;
	char err[700];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		ops = sr_backend_find(cases[i].name, err, sizeof(err));
		if (cases[i].is)
			assert_string_equal(ops->name, cases[i].is);
		else
			assert_true(!ops && strstr(err, cases[i].says));
	}
	ops = sr_backend_find("cuda", err, sizeof(err));
	assert_true(ops ? !strcmp(ops->name, "cuda") : strstr(err, "CUDA back end") != NULL);
	/* never the CPU by accident */
	ops = sr_backend_find(NULL, err, sizeof(err));
	if (!access("/dev/nvidiactl", F_OK) || !access("/proc/driver/nvidia", F_OK))
		assert_true(ops ? !strcmp(ops->name, "cuda") : strstr(err, "cannot be used") != NULL);
	else
		assert_string_equal(ops->name, "cpu");
}

static void test_read_error(void **state)
{
	struct sr_model shape = tiny_shape();
	struct sr_limits lim = drive_limits();

	(void)state;
	shape.n_vocab = 90000;          /* more than 20 reads */
	for (int after = 1; after < 20; after += 6) {
		struct tiny *t = tiny_create(&shape, SR_F16, 0, 1);
		struct drive d;

		t->fail_after = after;
		assert_int_equal(drive_open(&d, sr_cpu_ops(), &t->m, &t->src, &lim), -EIO);
		assert_non_null(strstr(d.err, "weights"));
		tiny_destroy(t);
	}
}

/* On threads of its own, with an eventfd; and worked by the caller, with yields. */
static void test_waiting(void **state)
{
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_F16, 0, 1);
	struct sr_limits lim = drive_limits();
	struct pollfd p = { .fd = eventfd(0, EFD_NONBLOCK), .events = POLLIN };
	struct drive d;
	uint64_t n;

	(void)state;
	lim.worked = 0;
	lim.threads = 2;
	d = opened(t, &lim);
	for (int round = 0; round < 20; round++) {
		drive_begin(&d, 0, NULL);
		drive_range(&d, 0, 0, 4);
		drive_row(&d, 0, 0, text, 50, 0, 1);
		assert_int_equal(d.ops->launch(d.b, 0), 0);
		if (round % 3 == 1)
			usleep(2000);
		assert_int_equal(d.ops->arm(d.b, 0, p.fd), 0);
		assert_int_equal(poll(&p, 1, 5000), 1);
		assert_int_equal(read(p.fd, &n, sizeof(n)), sizeof(n));
		assert_int_equal(d.ops->poll(d.b, 0), 1);
		d.batch->n_cmds = d.batch->n_words = d.batch->n_rows = d.batch->n_ids = 0;
		d.batch->n_tokens = d.batch->n_results = 0;
	}
	close(p.fd);
	drive_close(&d);
	lim.worked = 1;
	setenv("SLIPRING_CPU", "plain", 1); /* slow enough to yield */
	d = opened(t, &lim);
	drive_begin(&d, 0, NULL);
	drive_range(&d, 0, 0, 60);
	drive_row(&d, 0, 0, text, 900, 0, 1);
	drive_step(&d);
	assert_true(d.yields > 0);
	unsetenv("SLIPRING_CPU");
	drive_close(&d);
	tiny_destroy(t);
}

static int make_text(void **state)
{
	uint32_t x = 1;

	(void)state;
	for (int i = 0; i < 1200; i++)
		text[i] = (int32_t)((x = x * 1664525u + 1013904223u) >> 8) % 200;
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reference),
		cmocka_unit_test(test_same_bits),
		cmocka_unit_test(test_odd_shapes),
		cmocka_unit_test(test_int8_cache),
		cmocka_unit_test(test_shared_prefix),
		cmocka_unit_test(test_history),
		cmocka_unit_test(test_begin_forgets),
		cmocka_unit_test(test_plan),
		cmocka_unit_test(test_find),
		cmocka_unit_test(test_read_error),
		cmocka_unit_test(test_waiting),
	};

	return cmocka_run_group_tests(tests, make_text, NULL);
}
