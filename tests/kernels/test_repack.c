/* LINK: kernels/cpu/repack.c kernels/cpu/types.c kernels/cpu/types_iq.c */
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

static uint8_t data[2 * N * K], rows[N * K * 4];
static float scales[N * K], got[K];
static uint32_t words[N * K / 8], zeros[N * K / 8], index_of[K];
static uint16_t order[K];

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
	for (int32_t k = 0; k < t->k; k += GROUP)
		types_dequant_group(repack_type(t), rows, k, order, got + k);
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

/* In blocks of 32 x 32 or 32 x 16 of what is stored, which has its outputs as rows or as columns. */
static void test_f8(void **state)
{
	const struct apart a = { data, (const uint8_t *)scales, NULL, NULL };

	(void)state;
	fill(data, sizeof(data), 1);
	for (int transposed = 0; transposed < 2; transposed++) {
		size_t lines = transposed ? K : N, columns = transposed ? N : K, group = transposed ? 16 : 32;
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
					assert_true(got[k] == e4m3(v) * scales[line / 32 * (columns / group) + column / group]);
			}
		assert_int_equal(types_base(repack_type(&t)), HELD_F8_BLOCK); /* 16 and 32 are whole column blocks */
		assert_int_equal(types_piece(repack_type(&t)), 32);
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
	assert_int_equal(repack_row_bytes(&t), 2 + K);
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
		assert_int_equal(repack_type(&t), HELD(HELD_U4_ORDER, 32));
		repack_index(&t, &a, order);
		for (int32_t c = 0; c < t.n; c++) {
			row(&t, &a, c);
			for (int32_t k = 0; k < K; k++) {
				int32_t g = (int32_t)index_of[k], o = first + c, q = words[k / 8 * N + o] >> 4 * (k % 8) & 15;
				int32_t z = (int32_t)((zeros[g * (N / 8) + o / 8] >> 4 * (o % 8) & 15) + 1) & 15;

				near(got[k], (float)(q - z) * scales[g * N + o], 1.0 / 1024); /* scale and weight are rounded to f16 */
			}
		}
	}
	t.index.bytes = 0;                       /* in order: exact steps, as Q4_1 */
	assert_int_equal(repack_type(&t), HELD(HELD_U4, 32));
	t.index.bytes = 4;
	assert_non_null(repack_refuses(&t));
}

/* Stored as rows of inputs: Q8_0 blocks along the outputs; and FP8 whose inputs each have a scale. */
static void test_turned(void **state)
{
	struct sr_tensor t = { .type = SR_Q8_0, .n = N, .k = K, .count = 1, .transposed = 1, .data = { .bytes = K * (N / 32 * 34) } };
	const struct apart a = { data, (const uint8_t *)scales, NULL, NULL };
	float right[N];

	(void)state;
	fill(data, sizeof(data), 7);
	for (size_t i = 0; i < K * (N / 32); i++)
		memcpy(data + 34 * i, (uint16_t[]){ (uint16_t)(0x2000 + i) }, 2);
	assert_int_equal(repack_type(&t), SR_F16);
	for (int32_t k = 0; k < K; k++) {
		types_dequant(SR_Q8_0, N, data + k * (N / 32 * 34), right);
		for (int32_t c = 0; c < N; c++)
			near(row(&t, &a, c)[k], right[c], 1.0 / 2048);
	}
	repack_rows(&t, &a, 16, 16, rows);      /* sixteen at once, as they are packed */
	types_dequant(SR_F16, K, rows + 15 * repack_row_bytes(&t), got);
	types_dequant(SR_Q8_0, N, data, right);
	near(got[0], right[31], 1.0 / 2048);
	t.data.bytes--;
	assert_non_null(repack_refuses(&t));
	t = tensor(SR_F8, N * K, K);
	t.group_n = t.transposed = 1;
	fill(data, sizeof(data), 8);
	for (size_t i = 0; i < N * K; i++)
		data[i] &= 0xf7;
	assert_int_equal(repack_type(&t), SR_BF16);
	for (int32_t k = 0; k < K; k++)
		near(row(&t, &a, 5)[k], e4m3(data[k * N + 5]) * scales[k], 1.0 / 256);
}

/* The value of e2m1. */
static float e2m1(int q)
{
	static const float v[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };

	return q & 8 ? -v[q & 7] : v[q & 7];
}

/* As in a GGUF, in safetensors, and in those of compressed-tensors, which divides by the scale of all. */
static void test_nvfp4(void **state)
{
	enum { WIDE = 64 };
	static float all = 0.25f;
	static uint8_t block[N * WIDE / 16];

	(void)state;
	fill(data, sizeof(data), 5);
	fill(block, sizeof(block), 6);
	for (size_t i = 0; i < sizeof(block); i++)
		block[i] &= 0x77;              /* e4m3 above 0, and no number that is none */
	for (size_t i = 0; i < N * WIDE / 64; i++)
		for (size_t j = 0; j < 4; j++)
			data[36 * i + j] &= 0x77;
	for (int gguf = 0; gguf < 2; gguf++)
		for (int ct = 0; ct < 2 - gguf; ct++) {
			const struct apart a = { data, gguf ? NULL : block, (const uint8_t *)&all, NULL };
			struct sr_tensor t = tensor(ct ? SR_NVFP4_CT : SR_NVFP4, gguf ? N * 36 : N * WIDE / 2, 0);

			t.k = WIDE;
			t.scale.bytes = gguf ? 0 : sizeof(block);
			t.zero.bytes = 4;
			for (int32_t c = 0; c < N; c++) {
				row(&t, &a, c);
				for (int32_t k = 0; k < WIDE; k++) {
					const uint8_t *of = data + 36 * c, q = gguf ? of[4 + k / 16 * 8 + k % 8] >> k % 16 / 8 * 4 & 15
						: data[(c * WIDE + k) / 2] >> 4 * (k % 2) & 15;

					near(got[k], (ct ? 4 : 0.25f) * e4m3(gguf ? of[k / 16] : block[(c * WIDE + k) / 16]) * e2m1(q), 0);
				}
			}
			assert_int_equal(repack_row_bytes(&t), 4 + WIDE / 32 * 18);
			t.zero.bytes = 8;
			assert_non_null(repack_refuses(&t));
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_f8), cmocka_unit_test(test_i8), cmocka_unit_test(test_act_order),
		cmocka_unit_test(test_nvfp4), cmocka_unit_test(test_turned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
