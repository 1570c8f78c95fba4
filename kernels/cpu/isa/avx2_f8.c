/* avx2_f8.c - few rows by FP8 as it is held (compact.h): no lines of bf16 are made.  One row takes two column blocks at
 * a time, because each sum waits for itself.  Sums are those of lines, to the bit.
 */
#include "avx2_tile.h"
#include "kernels/cpu/compact_unpack.h"

/* Two inputs of sixteen outputs, 2^8 times too small: v[half][input].  none: 0x7f is looked for, which is no number. */
INLINE void two_inputs(__m256i w, const bool none, __m256 v[2][2])
{
	UNROLL
	for (int h = 0; h < 2; h++) {
		__m256i zero = _mm256_setzero_si256(), u = h ? _mm256_unpackhi_epi8(zero, w) : _mm256_unpacklo_epi8(zero, w);

		u = _mm256_and_si256(_mm256_srai_epi16(u, 1), _mm256_set1_epi16((short)0xbf80));
		if (none) {
			__m256i is = _mm256_cmpeq_epi16(_mm256_and_si256(u, _mm256_set1_epi16(0x3f80)), _mm256_set1_epi16(0x3f80));

			u = _mm256_or_si256(u, _mm256_and_si256(is, _mm256_set1_epi16(0x4000)));
		}
		v[h][0] = _mm256_cvtph_ps(_mm256_castsi256_si128(u));
		v[h][1] = _mm256_cvtph_ps(_mm256_extracti128_si256(u, 1));
	}
}

/* Sums over `inputs` inputs of one or two blocks; returns whether one has a weight that is no number. */
INLINE bool sum_inputs(const int rows, const int blocks, const bool none, const struct matmul_tile *t, const uint8_t *from,
                       int32_t inputs, const float *x, __m256 acc[4][AVX2_ROWS])
{
	const __m256i sign = bytes(0x80), all = bytes(0xff);
	__m256i found = _mm256_setzero_si256();

	UNROLL
	for (int c = 0; c < 2 * blocks; c++)
		UNROLL
		for (int r = 0; r < rows; r++)
			acc[c][r] = _mm256_setzero_ps();
	for (int32_t i = 0; i < inputs; i += 2, x += 2 * KERN_TILE, from += 32)
		UNROLL
		for (int b = 0; b < blocks; b++) {
			const uint8_t *at = from + (size_t)b * t->w_bytes;
			const __m256i w = load(at);
			__m256 v[2][2];

			_mm_prefetch((const char *)at + AHEAD_4, _MM_HINT_T0);
			if (!none)
				found = _mm256_or_si256(found, _mm256_cmpeq_epi8(_mm256_or_si256(w, sign), all));
			two_inputs(w, none, v);
			UNROLL
			for (int e = 0; e < 2; e++)
				UNROLL
				for (int r = 0; r < rows; r++)
					UNROLL
					for (int h = 0; h < 2; h++)
						acc[2 * b + h][r] = _mm256_fmadd_ps(v[h][e], _mm256_set1_ps(x[e * KERN_TILE + r]),
						                                    acc[2 * b + h][r]);
		}
	return !_mm256_testz_si256(found, found);
}

/* What the sums over a piece are multiplied with. */
INLINE __m256 scale_of(const struct matmul_tile *t, int32_t piece, int c)
{
	const uint8_t *at = t->w + (size_t)(c / 2) * t->w_bytes;
	float one;

	if (types_base(t->type) == HELD_F8)
		return _mm256_mul_ps(_mm256_loadu_ps((const float *)(const void *)(at + 64 * (size_t)piece + 32 * (c % 2))),
		                     _mm256_set1_ps(256));
	memcpy(&one, at + 4 * (size_t)piece, 4);
	return _mm256_set1_ps(one * 256);
}

INLINE void f8_tile(const int rows, const int blocks, const struct matmul_tile *t)
{
	const int32_t per = types_piece(t->type) / GROUP, groups = t->k / GROUP;
	const float *x = (const float *)(const void *)t->x + t->first;
	const uint8_t *from = t->w + compact_held_quants(t->type, t->k);
	__m256 sums[4][AVX2_ROWS] = { 0 }, acc[4][AVX2_ROWS];

	for (int32_t g = 0, n; g < groups; g += n, x += n * GROUP * KERN_TILE, from += (size_t)n * GROUP * KERN_COLS) {
		n = compact_step(t->type, t->k, g, true);
		if (sum_inputs(rows, blocks, false, t, from, n * GROUP, x, acc))
			sum_inputs(rows, blocks, true, t, from, n * GROUP, x, acc);
		UNROLL
		for (int c = 0; c < 2 * blocks; c++)
			UNROLL
			for (int r = 0; r < rows; r++)
				sums[c][r] = _mm256_fmadd_ps(acc[c][r], scale_of(t, g / per, c), sums[c][r]);
	}
	UNROLL
	for (int c = 0; c < 2 * blocks; c++)
		UNROLL
		for (int r = 0; r < rows; r++)
			store(t, r, c, sums[c][r]);
}

void avx2_f8(int32_t rows, const struct matmul_tile *t)
{
	FOR_ROWS(rows, f8_tile, 1, t)
}

void avx2_f8_pair(const struct matmul_tile *t)
{
	f8_tile(1, 2, t);
}
