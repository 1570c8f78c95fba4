/* LINK: @inner */
/* test_kern_attend.c - attention and its cache in the inner loops of the CPU: plain C against double, the other tables
 * against plain C, and every table against itself: a row gives the same bits beside any other rows.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend.h"
#include "kernels/cpu/kern.h"
#include "kernels/cpu/kvblock.h"
#include "kernels/cpu/types.h"
#include "tests/rig/kern_rig.h"

struct cache { int32_t type; uint8_t *kv; int32_t *table; int32_t blocks; size_t area; float *k, *v; };

/* A pool of `tokens` tokens in shuffled blocks, with NaN stored past the end. */
static struct cache fill(const struct kern *kt, int32_t type, int32_t E, int32_t tokens)
{
	struct cache c = { .type = type, .blocks = tokens / KERN_BLOCK + 1, .area = kt->kv_bytes(type, E) };

	assert_true(c.area > 0 && c.area % 64 == 0);
	c.kv = take((size_t)c.blocks * 2 * c.area);
	c.table = take((size_t)c.blocks * 4);
	c.k = activations(c.blocks * KERN_BLOCK, E);
	c.v = activations(c.blocks * KERN_BLOCK, E);
	for (int32_t b = 0; b < c.blocks; b++)
		c.table[b] = (b * 7 + 3) % c.blocks;
	if (c.blocks % 7 == 0)
		for (int32_t b = 0; b < c.blocks; b++)
			c.table[b] = c.blocks - 1 - b;
	for (int32_t p = 0; p < c.blocks * KERN_BLOCK; p++) {
		uint8_t *at = c.kv + (size_t)c.table[p / KERN_BLOCK] * 2 * c.area;

		for (int32_t e = 0; e < E && p >= tokens; e++)
			c.k[p * E + e] = c.v[p * E + e] = e % 3 ? NAN : e % 2 ? INFINITY : -INFINITY;
		kt->kv_store(type, E, p % KERN_BLOCK, c.k + p * E, c.v + p * E, at, at + c.area);
	}
	return c;
}

static void drop(struct cache *c)
{
	free(c->kv);
	free(c->table);
	free(c->k);
	free(c->v);
}

/* Element e of K (or V) of a token, as the cache holds it. */
static double held(const struct cache *c, int32_t E, int32_t p, int32_t e, bool v)
{
	const uint8_t *block = c->kv + (size_t)c->table[p / KERN_BLOCK] * 2 * c->area;
	int32_t at = p % KERN_BLOCK;

	return v ? (double)kv_value(c->type, block + c->area, kv_v_at(E, e, at), at)
	         : (double)kv_value(c->type, block, kv_k_at(e, at), at);
}

/* All tables store the same bytes, finite ones. */
static void stores_type(const struct kern *kt, int32_t type)
{
	int32_t E = 80;
	static const float bad[] = { NAN, INFINITY, -INFINITY, 3.3961e38f };
	size_t area = kt->kv_bytes(type, E);
	uint8_t *a = take(2 * area), *b = take(2 * area);

	assert_int_equal(kern_plain.kv_bytes(type, E), area);
	for (int32_t at = 0; at < KERN_BLOCK; at++) {
		float *k = activations(1, E), *v = activations(1, E);

		for (int32_t e = at; e < E; e += 11) {
			k[e] = v[e] = bad[e % 4];
			k[e] = at % 2 ? -k[e] : k[e];
		}
		kern_plain.kv_store(type, E, at, k, v, a, a + area);
		kt->kv_store(type, E, at, k, v, b, b + area);
		free(k);
		free(v);
	}
	assert_memory_equal(a, b, 2 * area);
	for (int32_t at = 0; at < KERN_BLOCK; at++)
		for (int32_t e = 0; e < E; e++)
			assert_true(isfinite(kv_value(type, a, kv_k_at(e, at), at)) &&
			            isfinite(kv_value(type, a + area, kv_v_at(E, e, at), at)));
	assert_int_equal(kt->kv_bytes(type, 24), 0);
	free(a);
	free(b);
}

static void stores(const struct kern *kt)
{
	stores_type(kt, SR_KV_BF16);
	stores_type(kt, SR_KV_I8);
	assert_int_equal(kt->kv_bytes(SR_KV_F8, 64), 0);
	assert_int_equal(kt->kv_bytes(SR_KV_I8, 512), 64 + 16 * 512);
	assert_int_equal(kt->kv_bytes(SR_KV_I8, 528), 0); /* its sums would not fit 32 bits */
}

/* int8: within half a step of the largest of a token; a token of zeros is zeros. */
static void stores_near(const struct kern *kt)
{
	struct cache c = fill(kt, SR_KV_I8, 64, 95);

	for (int32_t p = 0; p < 95; p++)
		for (int v = 0; v < 2; v++) {
			const float *x = (v ? c.v : c.k) + p * 64;
			double most = 0;

			for (int32_t e = 0; e < 64; e++) /* not fmax: GCC 12 for aarch64 fails at it */
				if (fabs((double)x[e]) > most)
					most = fabs((double)x[e]);
			for (int32_t e = 0; e < 64; e++)
				assert_true(fabs(held(&c, 64, p, e, v) - (double)x[e]) <= most / 253);
		}
	for (int32_t e = 0; e < 64; e++)
		c.k[e] = 0;
	kt->kv_store(SR_KV_I8, 64, 0, c.k, c.k, c.kv + (size_t)c.table[0] * 2 * c.area,
		c.kv + (size_t)c.table[0] * 2 * c.area + c.area);
	for (int32_t e = 0; e < 64; e++)
		assert_true(held(&c, 64, 0, e, false) == 0 && held(&c, 64, 0, e, true) == 0);
	drop(&c);
}

static const struct { int32_t E, heads, tokens, window; float cap; int32_t latent; } attends[] = {
	{ 64, 3, 1, 0, 0, 0 }, { 64, 3, 16, 0, 0, 0 }, { 64, 3, 150, 0, 0, 0 }, { 128, 4, 100, 0, 0, 0 },
	{ 64, 1, 131, 0, 30, 0 }, { 80, 8, 70, 0, 0, 0 }, { 16, 2, 200, 37, 0, 0 }, { 64, 7, 300, 100, 50, 0 },
	{ 96, 1, 65, 1, 0, 0 }, { 256, 2, 40, 16, 0, 0 }, { 16, 1, 1030, 0, 0, 0 }, { 16, 2, 570, 530, 0, 0 },
	{ 16, 9, 513, 0, 0, 0 }, { 512, 1, 20, 0, 0, 0 },
	{ 80, 4, 150, 0, 0, 64 }, { 576, 16, 70, 0, 0, 512 }, { 48, 3, 600, 0, 0, 32 }, { 32, 2, 90, 33, 0, 16 },
};

/* Elements of a value, and of all heads. */
static int32_t value_of(size_t i)
{
	return attends[i].latent ? attends[i].latent : attends[i].E;
}

static struct kern_attend question(const struct cache *c, size_t i, const float *q, float *out)
{
	size_t width = (size_t)(attends[i].heads * attends[i].E);
	bool latent = attends[i].latent > 0;

	return (struct kern_attend){
		.q = q, .out = out, .ld_q = width, .ld_out = (size_t)(attends[i].heads * value_of(i)), .n = attends[i].tokens,
		.heads = attends[i].heads, .head_dim = attends[i].E, .window = attends[i].window,
		.scale = 1 / sqrtf((float)attends[i].E), .cap = attends[i].cap,
		.table = c->table, .kv = c->kv, .block_stride = 2 * c->area, .k_off = 0,
		.v_off = latent ? 0 : c->area, .latent = attends[i].latent,
	};
}

static void run(const struct kern *kt, int32_t type, struct kern_attend a)
{
	a.scratch = take(kt->attend_scratch(a.n, a.heads, a.head_dim) * 4);
	a.turned = a.latent ? take(kvblock_turned(a.latent)) : NULL;
	kt->attend(type, &a);
	free(a.turned);
	free(a.scratch);
}

/* In double, from what the cache holds. */
static void attend_right(const struct cache *c, const struct kern_attend *a)
{
	for (int32_t t = 0; t < a->n; t++)
		for (int32_t h = 0; h < a->heads; h++) {
			const float *q = a->q + (size_t)t * a->ld_q + h * a->head_dim;
			float *out = a->out + (size_t)t * a->ld_out + h * kern_values(a);
			int32_t to = a->first + t;
			int32_t from = a->window && to >= a->window ? to - a->window + 1 : 0;
			double total = 0, sum[512] = { 0 };

			for (int32_t p = from; p <= to; p++) {
				double s = 0, w;

				for (int32_t e = 0; e < a->head_dim; e++)
					s += (double)q[e] * held(c, a->head_dim, p, e, false);
				s *= (double)a->scale;
				w = exp(a->cap > 0 ? (double)a->cap * tanh(s / (double)a->cap) : s);
				total += w;
				for (int32_t e = 0; e < kern_values(a); e++)
					sum[e] += w * held(c, a->head_dim, p, e, !a->latent);
			}
			for (int32_t e = 0; e < kern_values(a); e++)
				out[e] = (float)(sum[e] / total);
		}
}

#define ATTENDS(type) (sizeof(attends) / sizeof(*attends) - ((type) == SR_KV_I8 ? 4 : 0)) /* without latent ones */

static void attention_type(const struct kern *kt, int32_t type)
{
	/* Queries and weights are rounded to 16-bit integers for int8; rounded to bf16 they differ by 6e-3. */
	double most = type == SR_KV_BF16 ? 1e-5 : 1e-4;

	for (size_t i = 0; i < ATTENDS(type); i++) {
		int32_t tokens = attends[i].tokens, width = attends[i].heads * attends[i].E;
		int32_t made = attends[i].heads * value_of(i);
		struct cache c = fill(kt, type, attends[i].E, tokens);
		float *q = activations(tokens, width), *right = take((size_t)(tokens * made) * 4);
		float *y = take((size_t)(tokens * made) * 4);
		struct kern_attend a = question(&c, i, q, right);

		attend_right(&c, &a);
		a.out = y;
		run(kt, type, a);
		assert_true(rms_difference(y, right, (size_t)(tokens * made)) <=
		            most * rms(right, (size_t)(tokens * made)));
		a.out = right;
		run(&kern_plain, type, a);
		assert_memory_equal(y, right, (size_t)(tokens * made) * 4);
		free(q); free(right); free(y);
		drop(&c);
	}
}

static void attention(const struct kern *kt)
{
	attention_type(kt, SR_KV_BF16);
	attention_type(kt, SR_KV_I8);
}

/* One query span by span, the last one first, then joined: the same bits as in one walk. */
static void spans_bits(const struct kern *kt, int32_t type, struct kern_attend a, const float *all)
{
	int32_t Ev = kern_values(&a);
	size_t width = (size_t)(a.heads * Ev), part = kern_part(Ev);
	int32_t from = a.window && a.first >= a.window ? a.first - a.window + 1 : 0;
	int32_t first = from / KERN_SPAN, n = a.first / KERN_SPAN + 1 - first;
	float *parts = take((size_t)n * (size_t)a.heads * part * 4);

	a.ld_part = part;
	for (int32_t i = n - 1; i >= 0; i--) {
		a.span = first + i;
		a.part = parts + (size_t)(i * a.heads) * part;
		run(kt, type, a);
	}
	for (int32_t h = 0; h < a.heads; h++) {
		float *sum = parts + (size_t)h * part;

		for (int32_t i = 1; i < n; i++)
			kern_join(sum, parts + (size_t)(i * a.heads + h) * part, Ev);
		for (int32_t e = 0; e < Ev; e++)
			sum[16 + e] *= 1 / sum[1];
		assert_memory_equal(sum + 16, all + (size_t)a.first * width + h * Ev, (size_t)Ev * 4);
	}
	free(parts);
}

/* Each query alone, and the whole in chunks of many sizes: the same bits as in one run. */
static void attention_bits_type(const struct kern *kt, int32_t type)
{
	static const int32_t chunk[] = { 1, 2, 5, 16, 17, 64, 100 };

	for (size_t i = 0; i < ATTENDS(type); i++) {
		int32_t tokens = attends[i].tokens, width = attends[i].heads * attends[i].E;
		int32_t made = attends[i].heads * value_of(i);
		struct cache c = fill(kt, type, attends[i].E, tokens);
		float *q = activations(tokens, width), *all = take((size_t)(tokens * made) * 4);
		float *y = take((size_t)(tokens * made) * 4);
		struct kern_attend a = question(&c, i, q, all);

		run(kt, type, a);
		for (size_t j = tokens > 500 ? 5 : 0; j < sizeof chunk / sizeof *chunk; j++) {
			for (a.first = 0; a.first < tokens; a.first += chunk[j]) {
				a.n = tokens - a.first < chunk[j] ? tokens - a.first : chunk[j];
				a.q = q + a.first * width;
				a.out = y + a.first * made;
				run(kt, type, a);
			}
			assert_memory_equal(y, all, (size_t)(tokens * made) * 4);
		}
		a.n = 1;
		for (a.first = tokens - 1; a.first >= 0; a.first -= 101) {
			a.q = q + a.first * width;
			spans_bits(kt, type, a, all);
		}
		free(q); free(all); free(y);
		drop(&c);
	}
}

static void attention_bits(const struct kern *kt)
{
	attention_bits_type(kt, SR_KV_BF16);
	attention_bits_type(kt, SR_KV_I8);
}

ON(stores) ON(stores_near) ON(attention) ON(attention_bits)

int main(void)
{
	const struct CMUnitTest tests[] = {
		ALL(stores), ALL(stores_near), ALL(attention), ALL(attention_bits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
