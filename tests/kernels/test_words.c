/* LINK: @inner */
/* test_words.c - sums of words do not overflow: the largest and the smallest quants of every type of GGUF, by
 * activations at their bounds, in every table, one row and several, beside plain C.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/kern.h"
#include "kernels/cpu/types.h"
#include "kernels/model.h"

#define K    512
#define N    16
#define ROWS 9

/* Where a block has its scales: f16, or an exponent. */
static const struct { int32_t type, per; int16_t scales[2]; } stored[] = {
	{ SR_Q8_0, 32, { 0, -1 } },   { SR_Q4_0, 32, { 0, -1 } },   { SR_Q4_1, 32, { 0, 2 } },   { SR_Q5_0, 32, { 0, -1 } },
	{ SR_Q5_1, 32, { 0, 2 } },    { SR_IQ4_NL, 32, { 0, -1 } }, { SR_MXFP4, 32, { 0, -1 } }, { SR_Q2_K, 256, { 80, 82 } },
	{ SR_Q3_K, 256, { 108, -1 } }, { SR_Q4_K, 256, { 0, 2 } },  { SR_Q5_K, 256, { 0, 2 } },  { SR_Q6_K, 256, { 208, -1 } },
	{ SR_IQ4_XS, 256, { 0, -1 } }, { SR_IQ2_XXS, 256, { 0, -1 } }, { SR_IQ2_XS, 256, { 0, -1 } },
	{ SR_IQ2_S, 256, { 0, -1 } },  { SR_IQ3_XXS, 256, { 0, -1 } }, { SR_IQ3_S, 256, { 0, -1 } },
};

/* One row of weights of which each byte is `fill`, but for scales. */
static void weights(size_t s, int fill, uint8_t *row)
{
	const int32_t type = stored[s].type;
	const size_t all = types_bytes(type, K), block = types_bytes(type, stored[s].per);
	const uint16_t scale = 0x1c00; /* 2^-8 */

	memset(row, fill, all);
	for (size_t at = 0; at < all; at += block)
		for (int i = 0; i < 2 && stored[s].scales[i] >= 0; i++) {
			if (type == SR_MXFP4)
				row[at] = 120;
			else
				memcpy(row + at + stored[s].scales[i], &scale, 2);
		}
}

static void multiply(const struct kern *kt, int32_t type, const uint8_t *row, const float *x, int32_t rows, float *y)
{
	enum kern_form form = (enum kern_form)kt->form(type);
	struct kern_rows r = { .form = form, .k = K, .rows = rows, .tile_bytes = kt->tile_bytes(form, K) };
	uint8_t *block = aligned_alloc(64, kt->block_bytes(type, K));
	const uint8_t *src[N];

	r.data = aligned_alloc(64, (ROWS + KERN_TILE - 1) / KERN_TILE * r.tile_bytes);
	assert_non_null(block);
	assert_non_null(r.data);
	for (int c = 0; c < N; c++)
		src[c] = row;
	kt->pack(type, K, src, block);
	kt->make_rows(&r, x, K, 0, (rows + KERN_TILE - 1) / KERN_TILE);
	kt->matmul(type, K, block, 1, N, &r, NULL, y, N, NULL);
	free(block);
	free(r.data);
}

/* Rows of the largest activations: one sign, the other, and both in turns of some inputs. */
static void activations(float *x)
{
	static const int turn[ROWS] = { K, K, 1, 2, 4, 8, 16, 32, 64 };

	for (int r = 0; r < ROWS; r++)
		for (int i = 0; i < K; i++)
			x[r * K + i] = (i / turn[r] + r) % 2 ? -1 : 1;
}

static void extremes(const struct kern *kt)
{
	static float x[ROWS * K], right[ROWS * N], y[ROWS * N];
	static uint8_t row[4 * K];

	activations(x);
	for (size_t s = 0; s < sizeof(stored) / sizeof(*stored); s++)
		for (int i = 0; i < 17; i++) {
			const int fill = i < 16 ? 17 * i : 128;
			double off = 0;

			weights(s, fill, row);
			multiply(&kern_plain, stored[s].type, row, x, ROWS, right);
			for (int j = 0; j < ROWS * N && !types_bytes(stored[s].type, GROUP); j++) /* scales of parts are rounded */
				off = fmax(off, 1e-3 * fabs((double)right[j]));
			for (int32_t rows = 1; rows <= ROWS; rows += rows < 3 ? 1 : 3) {
				multiply(kt, stored[s].type, row, x, rows, y);
				for (int32_t j = 0; j < rows * N; j++)
					if (!(fabs((double)y[j] - (double)right[j]) <= off))
						fail_msg("%s, type %d, bytes %d, row %d of %d: %g, not %g", kt->name, stored[s].type, fill,
						         j / N, rows, (double)y[j], (double)right[j]);
			}
		}
}

static void test_avx2(void **state)
{
	(void)state;
	if (!kern_avx2())
		skip();
	extremes(kern_avx2());
}

static void test_avx512vnni(void **state)
{
	(void)state;
	if (!kern_avx512vnni())
		skip();
	extremes(kern_avx512vnni());
}

static void test_avx512(void **state)
{
	(void)state;
	if (!kern_avx512())
		skip();
	extremes(kern_avx512());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_avx2), cmocka_unit_test(test_avx512vnni), cmocka_unit_test(test_avx512),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
