/* LINK: @inner */
/* test_kern.c - the inner loops of the CPU: plain C against double, the other tables against plain C,
 * and every table against itself: a row gives the same bits beside any other rows.
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
#include "kernels/cpu/types.h"
#include "tests/rig/kern_rig.h"

/* ---- stored types --------------------------------------------------------------------------- */

static const struct { int32_t type; const char *name; int16_t scales[2]; } stored[] = {
	{ SR_F32, "F32", { -1, -1 } },   { SR_F16, "F16", { -1, -1 } },   { SR_BF16, "BF16", { -1, -1 } },
	{ SR_Q8_0, "Q8_0", { 0, -1 } },  { SR_Q4_0, "Q4_0", { 0, -1 } },  { SR_Q4_1, "Q4_1", { 0, 2 } },
	{ SR_Q5_0, "Q5_0", { 0, -1 } },  { SR_Q5_1, "Q5_1", { 0, 2 } },   { SR_Q3_K, "Q3_K", { 108, -1 } },
	{ SR_Q4_K, "Q4_K", { 0, 2 } },   { SR_Q5_K, "Q5_K", { 0, 2 } },   { SR_Q6_K, "Q6_K", { 208, -1 } },
	{ SR_IQ4_NL, "IQ4_NL", { 0, -1 } }, { SR_IQ4_XS, "IQ4_XS", { 0, -1 } }, { SR_Q2_K, "Q2_K", { 80, 82 } },
	{ SR_IQ2_XXS, "IQ2_XXS", { 0, -1 } }, { SR_IQ2_XS, "IQ2_XS", { 0, -1 } }, { SR_IQ2_S, "IQ2_S", { 0, -1 } },
	{ SR_IQ3_XXS, "IQ3_XXS", { 0, -1 } }, { SR_IQ3_S, "IQ3_S", { 0, -1 } },
	/* as repack.c makes them */
	{ HELD(HELD_U4, 32), "u4 32", { 0, -1 } }, { HELD(HELD_U4, 128), "u4 128", { 0, -1 } },
	{ HELD(HELD_U4_ORDER, 32), "u4 order", { 0, -1 } }, { HELD_I8, "i8", { 0, -1 } },
	{ HELD_F8, "f8", { -1, -1 } }, { HELD(HELD_F8, 64), "f8 64", { -1, -1 } },
	{ HELD(HELD_F8_BLOCK, 128), "f8 block", { -1, -1 } }, { HELD_NVFP4, "nvfp4", { -1, -1 } },
};
#define N_STORED (sizeof stored / sizeof *stored)
#define N_FILES (N_STORED - 8)    /* those of files */

static uint16_t order[2048];      /* of HELD_U4_ORDER */

/* The type of a row of k; some are of one piece. */
static int32_t type_of(size_t s, int32_t k)
{
	return stored[s].type >= HELD_U4 && stored[s].type < 256 ? HELD(stored[s].type, k) : stored[s].type;
}

static int32_t per_block(int32_t type)
{
	return types_piece(type) ? types_piece(type) : types_bytes(type, 1) ? 1 : types_bytes(type, 32) ? 32 : 256;
}

/* A piece of a held type; `of`: pieces with the same have the same scale. */
static void held_piece(int32_t type, uint8_t *to, int of)
{
	size_t bytes = types_bytes(type, types_piece(type));
	float d = 0.01f * (1.1f + sinf((float)of));
	uint16_t h = f16_of_f32(d);

	for (size_t i = 0; i < bytes; i++) {
		to[i] = (uint8_t)rnd();
		if ((to[i] & 127) == 127) /* no number in e4m3 */
			to[i]--;
	}
	if (types_base(type) >= HELD_F8) {
		memcpy(to, &d, 4);
		return;
	}
	memcpy(to, &h, 2);
	if (types_base(type) != HELD_I8)
		to[2] &= 15;
}

/* A matrix [n][k] of random bytes with sane scales. */
static uint8_t *weights(size_t s, int32_t n, int32_t k)
{
	int32_t type = type_of(s, k), per = per_block(type);
	size_t row = types_bytes(type, k), block = types_bytes(type, per);
	uint8_t *w = take((size_t)n * row);

	for (int32_t i = 0; i < k; i++)
		order[i] = (uint16_t)(i * 7 % k / 32);
	for (size_t at = 0; types_piece(type) && at < (size_t)n * row; at += block)
		held_piece(type, w + at, (int)(at % row + (types_base(type) == HELD_F8_BLOCK ? at / row / 16 : at / row) * 31));
	for (size_t at = 0; !types_piece(type) && at < (size_t)n * row; at += block) {
		float f = uniform();
		uint16_t h = type == SR_BF16 ? bf16_of_f32(f) : f16_of_f32(f);

		for (size_t i = 0; i < block; i++)
			w[at + i] = (uint8_t)rnd();
		if (per == 1)
			memcpy(w + at, type == SR_F32 ? (void *)&f : (void *)&h, block);
		for (int i = 0; i < 2; i++) {
			h = f16_of_f32(0.01f * (1.1f + uniform()));
			if (stored[s].scales[i] >= 0)
				memcpy(w + at + stored[s].scales[i], &h, 2);
		}
	}
	return w;
}

/* What the reference implementation in Python (gguf 0.19, gguf.quants.dequantize) makes of the bytes
 * i * 37 + i / 256 * 11 + 5, two blocks of each type, with the first scale 1 and the second 0.5:
 * the sum over i of (i % 7 + 1) * weight[i]. */
static void test_dequant(void **unused)
{
	static const struct { int32_t type; double sum; } right[] = {
		{ SR_Q8_0, -372 },    { SR_Q4_0, 106 },     { SR_Q4_1, 1855.5 },  { SR_Q5_0, 387 },
		{ SR_Q5_1, 3708.5 },  { SR_Q3_K, 1204 },    { SR_Q4_K, 479723 },  { SR_Q5_K, 837714 },
		{ SR_Q6_K, -38787 },  { SR_IQ4_NL, 1798 },  { SR_IQ4_XS, -60745 }, { SR_Q2_K, 16773 },
		{ SR_IQ2_XXS, 5683.25 }, { SR_IQ2_XS, 6750.5 }, { SR_IQ2_S, -4369.125 }, { SR_IQ3_XXS, -2025 }, { SR_IQ3_S, -11115 },
	};

	(void)unused;
	for (size_t s = 3; s < N_FILES; s++) {
		int32_t k = 2 * per_block(stored[s].type);
		size_t bytes = types_bytes(stored[s].type, k);
		uint16_t scale[2] = { 0x3c00, 0x3800 }; /* 1 and 0.5 */
		uint8_t raw[512];
		float w[512];
		double sum = 0;

		assert_int_equal(right[s - 3].type, stored[s].type);
		for (size_t i = 0; i < bytes; i++)
			raw[i] = (uint8_t)(i * 37 + i / 256 * 11 + 5);
		for (size_t at = 0; at < bytes; at += bytes / 2)
			for (int i = 0; i < 2; i++)
				if (stored[s].scales[i] >= 0)
					memcpy(raw + at + stored[s].scales[i], &scale[i], 2);
		types_dequant(stored[s].type, k, raw, w);
		for (int32_t i = 0; i < k; i++)
			sum += (i % 7 + 1) * (double)w[i];
		assert_true(sum == right[s - 3].sum);
	}
	assert_int_equal(types_bytes(SR_NONE, 256), 0);
	assert_int_equal(types_bytes(SR_Q4_K, 128), 0);
	assert_int_equal(types_bytes(1 << 20, 256), 0);
}

static void test_f16(void **unused)
{
	static const struct { float f; uint16_t h; } cases[] = {
		{ 0, 0 }, { 1, 0x3c00 }, { -2, 0xc000 }, { 65504, 0x7bff }, { 65519, 0x7bff },
		{ 65520, 0x7c00 },
		{ 0x1p-14f, 0x0400 }, { 0x1p-24f, 0x0001 }, { 0x1p-25f, 0 }, { 0x1.8p-24f, 0x0002 },
		{ 0x1.ff8p-15f, 0x03ff }, { 1 + 0x1p-11f, 0x3c00 }, { 1 + 0x1.8p-10f, 0x3c02 },
		{ INFINITY, 0x7c00 },
	};

	(void)unused;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		assert_int_equal(f16_of_f32(cases[i].f), cases[i].h);
	for (uint32_t h = 0; h < 0x7c00; h++) {
		assert_int_equal(f16_of_f32(f32_of_f16((uint16_t)h)), h);
		assert_int_equal(f16_of_f32(f32_of_f16((uint16_t)(h | 0x8000))), h | 0x8000);
	}
	assert_true(isnan(f32_of_f16(0x7e01)) && isnan(f32_of_bf16(bf16_of_f32(NAN))));
}

/* ---- matrices ------------------------------------------------------------------------------- */

struct packed { uint8_t *blocks; int32_t n_blocks; };

static struct packed pack(const struct kern *kt, int32_t type, int32_t n, int32_t k, const uint8_t *w)
{
	size_t block = kt->block_bytes(type, k), row = types_bytes(type, k);
	struct packed p = { .n_blocks = (n + KERN_COLS - 1) / KERN_COLS };

	assert_int_equal(block % 64, 0);
	p.blocks = take((size_t)p.n_blocks * block);
	for (int32_t b = 0; b < p.n_blocks; b++) {
		const uint8_t *src[KERN_COLS];

		for (int32_t c = 0; c < KERN_COLS; c++)
			src[c] = KERN_COLS * b + c < n ? w + (size_t)(KERN_COLS * b + c) * row : NULL;
		kt->pack(type, k, src, p.blocks + (size_t)b * block);
	}
	return p;
}

/* y[rows][ld] = x w^T + bias, from f32 */
static void product(const struct kern *kt, int32_t type, int32_t n, int32_t k, const struct packed *w,
                    const float *x, int32_t rows, const float *bias, float *y, size_t ld)
{
	enum kern_form form = (enum kern_form)kt->form(type);
	struct kern_rows r = { .form = form, .k = k, .rows = rows, .tile_bytes = kt->tile_bytes(form, k),
	                       .index = order };
	int32_t tiles = (rows + KERN_TILE - 1) / KERN_TILE;

	r.data = take((size_t)tiles * r.tile_bytes);
	for (int32_t t = tiles; t-- > 0; )        /* in any order, by any thread */
		kt->make_rows(&r, x, (size_t)k, t, t + 1);
	kt->matmul(type, k, w->blocks, w->n_blocks, n, &r, bias, y, ld, NULL);
	free(r.data);
}

static const struct { int32_t n, k, rows; } shapes[] = {
	{ 16, 256, 1 }, { 40, 768, 11 }, { 33, 1536, 8 }, { 7, 256, 3 }, { 64, 512, 21 },
	{ 21, 96, 4 }, { 50, 576, 13 }, { 16, 32, 1 },  /* K-quants have no such k */
};

/* Plain C against double with unrounded activations: the difference is their rounding to int8. */
static void test_plain_matmul(void **unused)
{
	(void)unused;
	for (size_t s = 0; s < N_STORED; s++) {
		int32_t n = 19, k = 768, rows = 9, type = type_of(s, k);
		uint8_t *w = weights(s, n, k);
		float *x = activations(rows, k), *row = take((size_t)k * 4), *bias = activations(1, n);
		float *y = take((size_t)(rows * n) * 4), *right = take((size_t)(rows * n) * 4);
		struct packed p = pack(&kern_plain, type, n, k, w);

		for (int32_t c = 0; c < n; c++) {
			for (int32_t i = 0; i < k; i += GROUP)
				types_dequant_group(type, w + (size_t)c * types_bytes(type, k), i, order, row + i);
			for (int32_t t = 0; t < rows; t++) {
				double sum = 0;

				for (int32_t i = 0; i < k; i++)
					sum += (double)row[i] * (double)x[t * k + i];
				right[t * n + c] = (float)(sum + (double)bias[c]);
			}
		}
		product(&kern_plain, type, n, k, &p, x, rows, bias, y, (size_t)n);
		assert_true(rms_difference(y, right, (size_t)(rows * n)) <
		            (types_quantized(type) ? 0.02 : 1e-5) * rms(right, (size_t)(rows * n)));
		free(w); free(x); free(row); free(bias); free(y); free(right); free(p.blocks);
	}
}

/* An output read back from its block equals the stored one, except for scales of K-quants and IQ4_XS. */
static void unpacks(const struct kern *kt)
{
	for (size_t s = 0; s < N_STORED; s++) {
		int32_t n = 23, k = 512, type = type_of(s, k);
		uint8_t *w = types_base(type) == HELD_U4_ORDER ? NULL : weights(s, n, k);
		float *right = take((size_t)k * 4), *got = take((size_t)k * 4);
		struct packed p = { NULL, 0 };

		if (w)
			p = pack(kt, type, n, k, w);
		for (int32_t c = 0; w && c < n; c++) {
			kt->dequant(type, k, w + (size_t)c * types_bytes(type, k), right);
			kt->unpack(type, k, p.blocks + (size_t)(c / 16) * kt->block_bytes(type, k), c % 16,
			           got);
			if (types_bytes(type, GROUP))
				assert_memory_equal(got, right, (size_t)k * 4);
			assert_true(rms_difference(got, right, (size_t)k) <= 1e-3 * rms(right, (size_t)k));
		}
		free(w); free(right); free(got); free(p.blocks);
	}
}

/* Weights are held in at most 1.03 times the bytes in which they are stored. */
static void compact(const struct kern *kt)
{
	for (int32_t type = 0; type < 64; type++)
		for (int32_t k = 2048; k <= 14336 && types_bytes(type, k) && kt->form(type) >= 0; k += 1024) {
			size_t most = 16 * types_bytes(type, k) * 103 / 100;

			if (kt->block_bytes(type, k) > most)
				fail_msg("%s, type %d: %zu bytes of 16 x %d, of at most %zu", kt->name, type,
				         kt->block_bytes(type, k), k, most);
		}
}

/* How far from plain C a table may be: the groups' arithmetic is the same to the bit, but a K-quant's
 * scales are rounded to f16; f32 sums differ in order; bf16 rounds the activations. */
static double allowed(const struct kern *kt, int32_t type)
{
	if (types_base(type) == HELD_U4 || types_base(type) == HELD_I8)
		return 0;
	if (types_base(type) == HELD_NVFP4)
		return 1e-6;
	if (types_quantized(type))
		return types_bytes(type, GROUP) ? 0 : 1e-3;
	return kt->form(type) == FORM_BF16 ? 6e-3 : 1e-6;
}

static void against_plain(const struct kern *kt)
{
	for (size_t s = 0; s < N_STORED; s++)
		for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
			int32_t n = shapes[i].n, k = shapes[i].k, rows = shapes[i].rows, type = type_of(s, k);
			size_t ld = (size_t)n + 3, all = (size_t)rows * ld;
			float *x, *bias, *right, *y;
			struct packed p, q;
			uint8_t *w;

			if (k % per_block(type))
				continue;
			w = weights(s, n, k);
			x = activations(rows, k);
			bias = i % 2 ? activations(1, n) : NULL;
			right = take(all * 4);
			y = take(all * 4);
			p = pack(&kern_plain, type, n, k, w);
			q = pack(kt, type, n, k, w);
			product(&kern_plain, type, n, k, &p, x, rows, bias, right, ld);
			product(kt, type, n, k, &q, x, rows, bias, y, ld);
			for (int32_t t = 0; t < rows; t++) {
				float *a = y + (size_t)t * ld, *b = right + (size_t)t * ld;

				for (size_t c = (size_t)n; c < ld; c++)   /* not written */
					assert_memory_equal(&a[c], "\xa5\xa5\xa5\xa5", 4);
				assert_true(rms_difference(a, b, (size_t)n) <=
				            allowed(kt, type) * rms(b, (size_t)n));
			}
			free(w); free(x); free(bias); free(right); free(y); free(p.blocks); free(q.blocks);
		}
}

/* The same row alone, among few and among many, at every place of a tile, with a shifted column
 * share: the same bits. */
static void same_bits(const struct kern *kt)
{
	for (size_t s = 0; s < N_STORED; s++) {
		int32_t n = 48, k = 96, rows = 23, type = type_of(s, k);
		uint8_t *w;
		float *x, *all = take((size_t)(rows * n) * 4), *some = take((size_t)(rows * n) * 4);
		struct packed p, last;

		k = k % per_block(type) ? 256 : k;
		type = type_of(s, k);
		w = weights(s, n, k);
		x = activations(rows, k);
		p = pack(kt, type, n, k, w);
		last = (struct packed){ p.blocks + 2 * kt->block_bytes(type, k), 1 };
		product(kt, type, n, k, &p, x, rows, NULL, all, (size_t)n);
		for (int32_t count = 1; count <= 9; count++)
			for (int32_t from = 0; from + count <= rows; from += count == 1 ? 1 : 5) {
				product(kt, type, n, k, &p, x + from * k, count, NULL, some, (size_t)n);
				assert_memory_equal(some, all + from * n, (size_t)(count * n) * 4);
				product(kt, type, 16, k, &last, x + from * k, count, NULL, some, 16);
				for (int32_t t = 0; t < count; t++)
					assert_memory_equal(some + 16 * t, all + (from + t) * n + 32, 64);
			}
		free(w); free(x); free(all); free(some); free(p.blocks);
	}
}

/* A row that is not finite has outputs that are not finite, and does not change other rows. */
static void not_finite(const struct kern *kt)
{
	static const float bad[] = { NAN, INFINITY, -INFINITY };

	for (size_t s = 0; s < N_STORED; s++)
		for (size_t i = 0; i < 3; i++) {
			int32_t n = 16, k = 256, rows = 5, type = type_of(s, k);
			uint8_t *w = weights(s, n, k);
			float *x = activations(rows, k), *y = take((size_t)(rows * n) * 4);
			float *right = take((size_t)(rows * n) * 4);
			struct packed p = pack(kt, type, n, k, w);

			product(kt, type, n, k, &p, x, rows, NULL, right, (size_t)n);
			x[2 * k + 77] = bad[i];
			product(kt, type, n, k, &p, x, rows, NULL, y, (size_t)n);
			assert_memory_equal(y, right, (size_t)(2 * n) * 4);
			assert_memory_equal(y + 3 * n, right + 3 * n, (size_t)(2 * n) * 4);
			for (int32_t c = 0; c < n; c++)
				assert_false(isfinite(y[2 * n + c]));
			free(w); free(x); free(right); free(y); free(p.blocks);
		}
}

/* ---- vectors -------------------------------------------------------------------------------- */

static void vectors(const struct kern *kt)
{
	static const int32_t widths[] = { 576, 1536, 64, 50, 16, 7, 1 };

	for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
		int32_t n = widths[i], dims = n / 2 * 2;
		float *x = activations(1, n), *z = activations(1, n), *cs = activations(1, n + 1);
		float *a = take((size_t)n * 4), *b = take((size_t)n * 4);

		kern_plain.norm(x, z, 1e-5f, n, b);
		kt->norm(x, z, 1e-5f, n, a);
		assert_memory_equal(a, b, (size_t)n * 4);
		memcpy(a, x, (size_t)n * 4);
		kt->add(a, z, n);
		for (int32_t j = 0; j < n; j++)
			assert_true(a[j] == x[j] + z[j]);
		for (int32_t act = SR_SILU; act <= SR_GELU_TANH; act++) {
			for (int32_t j = 0; j < n; j++)
				x[j] = j % 16 == 3 ? 95 : j % 16 == 4 ? -95 : 6 * uniform();
			kern_plain.act_mul(act, x, z, n, b);
			kt->act_mul(act, x, z, n, a);
			assert_memory_equal(a, b, (size_t)n * 4);
		}
		for (int32_t pairs = 0; pairs < 2 && dims; pairs++) {
			memcpy(a, x, (size_t)n * 4);
			memcpy(b, x, (size_t)n * 4);
			kern_plain.rope(b, cs, dims, pairs);
			kt->rope(a, cs, dims, pairs);
			assert_memory_equal(a, b, (size_t)n * 4);
			if (n > dims)
				assert_true(a[n - 1] == x[n - 1]);
		}
		free(x); free(z); free(cs); free(a); free(b);
	}
}

/* The largest logit, the first of equals, and the logarithm of the sum. */
static void logits(const struct kern *kt)
{
	static const int32_t widths[] = { 1, 5, 16, 17, 1000, 49152 };

	for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
		int32_t n = widths[i], arg, at = n * 2 / 3;
		float *x = take((size_t)n * 4), max;
		double sum = 0, logsum;

		for (int32_t j = 0; j < n; j++)
			x[j] = 10 * uniform() - 300;
		x[at] = x[n - 1] = -280;
		if (n > 2)
			x[0] = -INFINITY;         /* masked */
		for (int32_t j = 0; j < n; j++)
			sum += exp((double)x[j] + 280);
		kt->logits(x, n, &max, &arg, &logsum);
		assert_true(max == -280);
		assert_int_equal(arg, at);
		assert_true(fabs(logsum - (log(sum) - 280)) < 1e-6);
		kern_plain.logits(x, n, &max, &arg, &sum);
		assert_true(logsum == sum && max == -280 && arg == at);
		free(x);
	}
}

/* The gated delta rule against double; the same bits in every table, and cut in pieces or not. */
static void delta_once(const struct kern *kt, const struct kern_delta *a)
{
	float *after = take((size_t)(a->k_dim * a->v_dim) * 4), *out = take((size_t)(a->n * a->v_dim) * 4);
	struct kern_delta b = *a;

	kt->delta(a);
	memcpy(after, a->from, (size_t)(a->k_dim * a->v_dim) * 4);
	b.out = out;
	b.from = b.to = after;
	for (int32_t t = 0; t < a->n; t += b.n) { /* in place, 1, 2, 3 .. tokens at a time, and in plain C */
		b.n = t / 2 + 1 < a->n - t ? t / 2 + 1 : a->n - t;
		(t % 2 ? kt : &kern_plain)->delta(&b);
		b.q += b.n * (int32_t)b.ld;
		b.k += b.n * (int32_t)b.ld;
		b.v += b.n * (int32_t)b.ld;
		b.decay += b.n * (int32_t)b.ld;
		b.write += b.n * (int32_t)b.ld;
		b.out += b.n * (int32_t)b.ld_out;
	}
	assert_memory_equal(out, a->out, (size_t)(a->n * a->v_dim) * 4);
	assert_memory_equal(after, a->to, (size_t)(a->k_dim * a->v_dim) * 4);
	free(after); free(out);
}

static void delta(const struct kern *kt)
{
	enum { N = 9, K = 48, V = 32, LD = 2 * K + V + 2 };
	float *x = take(N * LD * 4), *from = take(K * V * 4), *to = take(K * V * 4), *out = take(N * V * 4);
	struct kern_delta a = { .n = N, .k_dim = K, .v_dim = V, .q = x, .k = x + K, .v = x + 2 * K, .decay = x + LD - 2,
		.write = x + LD - 1, .out = out, .ld = LD, .ld_out = V, .from = from, .to = to };
	double s[K][V];

	for (int i = 0; i < N * LD; i++)
		x[i] = i % LD >= LD - 2 ? 0.5f + 0.5f * uniform() : uniform();
	for (int i = 0; i < K * V; i++)
		from[i] = uniform();
	delta_once(kt, &a);
	for (int i = 0; i < K; i++)
		for (int j = 0; j < V; j++)
			s[i][j] = (double)from[j / 16 * 16 * K + i * 16 + j % 16];
	for (int t = 0; t < N; t++)
		for (int j = 0; j < V; j++) {
			double sum = 0, d, got = 0;

			for (int i = 0; i < K; i++)
				sum += (double)a.k[t * LD + i] * s[i][j];
			d = (double)a.write[t * LD] * ((double)a.v[t * LD + j] - (double)a.decay[t * LD] * sum);
			for (int i = 0; i < K; i++) {
				s[i][j] = s[i][j] * (double)a.decay[t * LD] + d * (double)a.k[t * LD + i];
				got += s[i][j] * (double)a.q[t * LD + i];
			}
			assert_true(fabs(got - (double)out[t * V + j]) <= 2e-5 * (fabs(got) + 100));
		}
	free(x); free(from); free(to); free(out);
}

/* ---- every table ---------------------------------------------------------------------------- */

ON(unpacks) ON(compact) ON(against_plain) ON(same_bits) ON(not_finite)
ON(vectors) ON(logits) ON(delta)

static void test_pick(void **unused)
{
	(void)unused;
	setenv("SLIPRING_CPU", "plain", 1);
	assert_ptr_equal(kern_pick(NULL), &kern_plain);
	unsetenv("SLIPRING_CPU");
	assert_ptr_equal(kern_pick("plain"), &kern_plain);
	assert_ptr_equal(kern_pick("avx512"), kern_avx512());
	assert_ptr_equal(kern_pick("avx512vnni"), kern_avx512vnni());
	assert_null(kern_pick("mmx"));
	assert_non_null(kern_pick(NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_dequant), cmocka_unit_test(test_f16),
		cmocka_unit_test(test_plain_matmul), cmocka_unit_test(test_pick),
		ALL(unpacks), ALL(compact), ALL(against_plain), ALL(same_bits), ALL(not_finite),
		ALL(vectors), ALL(logits), ALL(delta),
	};

	state = 88172645463325252u;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
