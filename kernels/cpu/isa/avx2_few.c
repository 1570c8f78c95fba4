/* avx2_few.c - few rows by weights that are held compactly (compact.h).  They wait for memory, so no units are made:
 * quants are taken apart in registers and multiplied at once, and a block's sums stay in registers.  Integers are
 * exact and scales are those of units, so the bits are the same.
 *
 * Products are added in words while they fit.  With activations of at most 127 these are
 *
 *	quants up to 31   31 * 127 * 2 * 4 lines = 31496
 *	up to 63          63 * 127 * 2 * 2 lines = 32004
 *	IQ4_NL, IQ4_XS    127 * 127 * 2 = 32258: one line; a quant's sign is moved to the activation
 */
#include "avx2_tile.h"
#include "kernels/cpu/compact_unpack.h"

/* Adds lines from .. from + 3 to the sums of both halves. */
INLINE void sum_lines(const int rows, const int32_t type, __m256i sum[2][AVX2_ROWS], const uint8_t *quants,
                      const struct lanes_group *x, int first, const int from)
{
	const bool sign = type == SR_IQ4_NL || type == SR_IQ4_XS;
	const int fit = sign ? 1 : type == SR_Q6_K ? 2 : 4;
	__m256i words[2][AVX2_ROWS];

	UNROLL
	for (int i = 0; i < 4; i++)
		UNROLL
		for (int h = 0; h < 2; h++) {
			__m256i w = unpack_line(type, quants, from + i, 32 * h), size = sign ? _mm256_abs_epi8(w) : w;

			UNROLL
			for (int r = 0; r < rows; r++) {
				__m256i v = four(x, first + r, from + i);

				v = _mm256_maddubs_epi16(size, sign ? _mm256_sign_epi8(v, w) : v);
				words[h][r] = i % fit ? in_order(_mm256_add_epi16(words[h][r], v)) : v;
				if (i % fit == fit - 1)
					sum[h][r] = in_order(_mm256_add_epi32(sum[h][r],
						_mm256_madd_epi16(words[h][r], _mm256_set1_epi16(1))));
			}
		}
}

/* acc += scale number i of the group * the sums, without the quants' offset; minus: what the activations add up to,
 * negative. */
INLINE void add_sums(const int rows, const int32_t type, __m256 acc[2][AVX2_ROWS], __m256i sum[2][AVX2_ROWS],
                     const uint8_t *s, const int i, const struct lanes_group *x, int first, const int32_t *minus)
{
	UNROLL
	for (int h = 0; h < 2; h++)
		UNROLL
		for (int r = 0; r < rows; r++) {
			if (unpack_offset(type))
				sum[h][r] = _mm256_add_epi32(sum[h][r], _mm256_mullo_epi32(_mm256_set1_epi32(minus[r]),
				                                                           _mm256_set1_epi32(unpack_offset(type))));
			scale_add(1, &acc[h][r], &sum[h][r], scales(s, i, h), x, first + r);
		}
}

INLINE void add_minima(const int rows, __m256 acc[2][AVX2_ROWS], const uint8_t *s, const int i, const float *by)
{
	UNROLL
	for (int h = 0; h < 2; h++)
		UNROLL
		for (int r = 0; r < rows; r++)
			acc[h][r] = _mm256_fmadd_ps(scales(s, i, h), _mm256_set1_ps(by[r]), acc[h][r]);
}

INLINE void few_group(const int rows, const int32_t type, const uint8_t *piece, int j, const uint8_t *quants,
                      const struct lanes_group *x, int first, __m256 acc[2][AVX2_ROWS])
{
	const enum lanes_kind kind = lanes_kind(type);
	_Alignas(32) uint8_t s[2 * LANES_SCALES];
	__m256i sum[2][AVX2_ROWS] = { 0 };
	int32_t minus[AVX2_ROWS];
	float before[AVX2_ROWS], rest[AVX2_ROWS];

	unpack_scales(type, piece, j, s);
	sum_lines(rows, type, sum, quants, x, first, 0);
	if (lanes_halves(kind)) {
		add_sums(rows, type, acc, sum, s, 0, x, first, x->minus_first + first);
		memset(sum, 0, sizeof(sum));
	}
	sum_lines(rows, type, sum, quants, x, first, 4);
	UNROLL
	for (int r = 0; r < rows; r++) {
		minus[r] = x->minus_sum[first + r] - (lanes_halves(kind) ? x->minus_first[first + r] : 0);
		before[r] = x->scale[first + r] * (float)-x->minus_first[first + r];
		rest[r] = x->scale[first + r] * (float)(x->minus_first[first + r] - x->minus_sum[first + r]);
	}
	add_sums(rows, type, acc, sum, s, lanes_halves(kind), x, first, minus);
	if (kind == LANES_8HM) {
		add_minima(rows, acc, s, 2, before);
		add_minima(rows, acc, s, 3, rest);
	}
	if (kind == LANES_8M)
		add_minima(rows, acc, s, 1, x->scaled_sum + first);
}

INLINE void few_tile(const int rows, const int32_t type, const struct matmul_tile *t)
{
	const struct compact_layout *l = compact_layout_of(type);
	const struct lanes_group *x = (const struct lanes_group *)(const void *)t->x;
	const uint8_t *piece = t->w, *quants = t->w + (size_t)(t->k / GROUP / l->groups) * l->scales;
	__m256 acc[2][AVX2_ROWS];

	UNROLL
	for (int h = 0; h < 2; h++)
		UNROLL
		for (int r = 0; r < rows; r++)
			acc[h][r] = begin(t, r, h);
	for (int32_t g = 0; g < t->k / GROUP; g += l->groups, piece += l->scales) {
		if (t->fetch)
			fetch_ahead(piece, AHEAD_4, l->scales);
		for (int j = 0; j < l->groups; j++, x++, quants += l->group) {
			if (t->fetch)
				fetch_ahead(quants, AHEAD_4, l->group);
			few_group(rows, type, piece, j, quants, x, t->first, acc);
		}
	}
	UNROLL
	for (int h = 0; h < 2; h++)
		UNROLL
		for (int r = 0; r < rows; r++)
			store(t, r, h, acc[h][r]);
}

/* NVFP4 as it is held: the sums over some groups are multiplied with what their piece has, as units' are. */
INLINE void nvfp4_tile(const int rows, const struct matmul_tile *t)
{
	const int32_t per = types_piece(t->type) / GROUP, groups = t->k / GROUP;
	const struct lanes_group *x = (const struct lanes_group *)(const void *)t->x;
	const uint8_t *quants = t->w + compact_held_quants(t->type, t->k);
	__m256 all[2][AVX2_ROWS] = { 0 };

	for (int32_t g = 0, n; g < groups; g += n) {
		const float *d = (const float *)(const void *)(t->w + 64 * (size_t)(g / per));
		__m256 acc[2][AVX2_ROWS] = { 0 };

		n = compact_step(t->type, t->k, g, true);
		for (int32_t i = 0; i < n; i++, x++, quants += 32 + NIBBLES) {
			if (t->fetch)
				fetch_ahead(quants, AHEAD_4, 32 + NIBBLES);
			few_group(rows, HELD_NVFP4, quants, 0, quants + 32, x, t->first, acc);
		}
		UNROLL
		for (int i = 0; i < 2 * rows; i++) /* scales are 2^8 times too small, quants are doubled */
			all[i % 2][i / 2] = _mm256_fmadd_ps(acc[i % 2][i / 2],
				_mm256_mul_ps(_mm256_loadu_ps(d + i % 2 * 8), _mm256_set1_ps(128)), all[i % 2][i / 2]);
	}
	UNROLL
	for (int i = 0; i < 2 * rows; i++)
		store(t, i / 2, i % 2, all[i % 2][i / 2]);
}

static __attribute__((noinline)) void few_nvfp4(int32_t rows, const struct matmul_tile *t)
{
	FOR_ROWS(rows, nvfp4_tile, t)
}

TILE(few_q2_k, few_tile, SR_Q2_K)
TILE(few_q3_k, few_tile, SR_Q3_K)
TILE(few_q5_k, few_tile, SR_Q5_K)
TILE(few_q6_k, few_tile, SR_Q6_K)
TILE(few_q5_0, few_tile, SR_Q5_0)
TILE(few_q5_1, few_tile, SR_Q5_1)
TILE(few_iq4_nl, few_tile, SR_IQ4_NL)
TILE(few_iq4_xs, few_tile, SR_IQ4_XS)
TILE(few_mxfp4, few_tile, SR_MXFP4)

avx2_tile_fn *avx2_few(int32_t type, int32_t rows)
{
	if (rows > AVX2_ROWS)
		return NULL;
	if (types_base(type) == HELD_NVFP4)
		return few_nvfp4;
	switch (type) {
	case SR_Q2_K:   return few_q2_k;
	case SR_Q3_K:   return few_q3_k;
	case SR_Q5_K:   return few_q5_k;
	case SR_Q6_K:   return few_q6_k;
	case SR_Q5_0:   return few_q5_0;
	case SR_Q5_1:   return few_q5_1;
	case SR_IQ4_NL: return few_iq4_nl;
	case SR_IQ4_XS: return few_iq4_xs;
	case SR_MXFP4:  return few_mxfp4;
	}
	return avx2_few_iq(type);
}
