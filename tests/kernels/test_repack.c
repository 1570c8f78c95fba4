/* LINK: kernels/cpu/repack.c kernels/cpu/types.c */
/* test_repack.c - matrices whose scales lie apart, as rows that the CPU multiplies: each weight beside the format's
 * own formula.  4 bits without act-order, and MXFP4, are tested by what they multiply to: test_cpu.c, test_experts.c.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/repack.h"
#include "kernels/cpu/types.h"
#include "kernels/model.h"

#define N 64
#define K 96

static uint8_t data[N * K], rows[N * K * 4];
static float scales[N * K], got[K];
static uint32_t words[N * K / 8], zeros[N * K / 8], index_of[K];

static void fill(uint8_t *at, size_t n, uint32_t seed)
{
	for (size_t i = 0; i < n; i++) {
		seed = seed * 1664525 + 1013904223;
		at[i] = (uint8_t)(seed >> 24);
	}
}

static struct sr_tensor tensor(int32_t type, size_t bytes, size_t n_scales)
{
	for (size_t i = 0; i < n_scales; i++)
		scales[i] = 0.01f + 0.001f * (float)(i % 37);
	return (struct sr_tensor){ .type = type, .n = N, .k = K, .count = 1, .scale_type = SR_F32, .data = { .bytes = bytes },
	                           .scale = { .bytes = n_scales * 4 } };
}

static const float *row(const struct sr_tensor *t, const struct apart *a, int32_t c)
{
	assert_null(repack_refuses(t));
	repack_rows(t, a, c, 1, rows);
	types_dequant(repack_type(t), t->k, rows, got);
	return got;
}

static float e4m3(uint8_t v)
{
	int e = v >> 3 & 15;
	float f = ldexpf((float)(v & 7) + (e ? 8 : 0), (e ? e : 1) - 10);

	return v & 0x80 ? -f : f;
}

static void near(float is, float right, double most)
{
	if (!(fabs((double)is - (double)right) <= most * fabs((double)right)))
		fail_msg("%.9g is not %.9g", (double)is, (double)right);
}

/* In blocks of 32 x 48 of what is stored, which has its outputs as rows or as columns. */
static void test_f8(void **state)
{
	const struct apart a = { data, (const uint8_t *)scales, NULL, NULL };

	(void)state;
	fill(data, sizeof(data), 1);
	for (int transposed = 0; transposed < 2; transposed++) {
		size_t lines = transposed ? K : N, columns = transposed ? N : K, group = transposed ? 32 : 48;
		struct sr_tensor t = tensor(SR_F8, N * K, (lines + 31) / 32 * (columns / group));

		t.group = (int32_t)group;
		t.group_n = 32;
		t.transposed = transposed;
		for (int32_t c = 0; c < N; c++)
			for (int32_t k = 0; k < K; k++) {
				size_t line = (size_t)(transposed ? k : c), column = (size_t)(transposed ? c : k);
				uint8_t v = data[line * columns + column];

				row(&t, &a, c);
				if ((v & 0x7f) == 0x7f)
					assert_true(isnan(got[k]));
				else
					near(got[k], e4m3(v) * scales[line / 32 * (columns / group) + column / group], 1.0 / 256);
			}
	}
}

static void test_i8(void **state)
{
	const struct apart a = { data, (const uint8_t *)scales, NULL, NULL };
	struct sr_tensor t = tensor(SR_I8, N * K, N);

	(void)state;
	fill(data, sizeof(data), 2);
	t.group_n = 1;
	for (int32_t c = 0; c < N; c++) {
		row(&t, &a, c);
		for (int32_t k = 0; k < K; k++)
			near(got[k], (float)(int8_t)data[c * K + k] * scales[c], 1.0 / 2048);
	}
	assert_int_equal(repack_row_bytes(&t), K / 32 * 34);
	t.group = 32;
	assert_non_null(repack_refuses(&t));
}

/* GPTQ in groups of 32 inputs: input k is of group index_of[k].  Also 16 outputs from the 32nd on of N, as of a
 * fused matrix. */
static void test_act_order(void **state)
{
	struct apart a = { (const uint8_t *)words, (const uint8_t *)scales, (const uint8_t *)zeros, (const uint8_t *)index_of };
	struct sr_tensor t = tensor(SR_GPTQ4, N * K / 2, K / 32 * N);

	(void)state;
	fill((uint8_t *)words, sizeof(words), 3);
	fill((uint8_t *)zeros, sizeof(zeros), 4);
	for (uint32_t k = 0; k < K; k++)
		index_of[k] = k * 7 % K / 32;
	t.group = 32;
	t.zero.bytes = K / 32 * N / 2;
	t.index.bytes = K * 4;
	for (int part = 0; part < 2; part++) {
		int32_t first = part ? 32 : 0;

		t.n = part ? 16 : N;
		t.outputs = part ? N : 0;
		t.first = first;
		t.step = part;
		assert_int_equal(repack_type(&t), SR_F16);
		for (int32_t c = 0; c < t.n; c++) {
			row(&t, &a, c);
			for (int32_t k = 0; k < K; k++) {
				int32_t g = (int32_t)index_of[k], o = first + c, q = words[k / 8 * N + o] >> 4 * (k % 8) & 15;
				int32_t z = (int32_t)((zeros[g * (N / 8) + o / 8] >> 4 * (o % 8) & 15) + 1) & 15;

				near(got[k], (float)(q - z) * scales[g * N + o], 1.0 / 2048);
			}
		}
	}
	t.index.bytes = 0;                       /* in order: exact steps, as Q4_1 */
	assert_int_equal(repack_type(&t), SR_Q4_1);
	t.index.bytes = 4;
	assert_non_null(repack_refuses(&t));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_f8), cmocka_unit_test(test_i8), cmocka_unit_test(test_act_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
