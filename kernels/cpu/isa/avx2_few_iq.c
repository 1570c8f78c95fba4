/* avx2_few_iq.c - few rows by weights of IQ2 and IQ3: as avx2_few.c, but what is taken apart are sets by number.
 *
 * A set of IQ2 is eight inputs of an output and one load.  A vector has those of four outputs, so its products' sums
 * have two dwords an output, which are added at the end.  A set of IQ3 is a dword, a vector has eight outputs, as a
 * line of lanes.h.  Signs are moved to the activations.  How many products fit a word, with activations of at most 127:
 *
 *	IQ2       43 * 127 * 2 * 2 sets = 21844
 *	IQ3_XXS   62 * 127 * 2 * 2 sets = 31496
 *	IQ3_S     15 * 127 * 2 * 8 sets = 30480
 */
#include "avx2_tile.h"
#include "kernels/cpu/compact_unpack_iq.h"

/* 1 or -1 of bytes whose bit is set. */
INLINE __m256i signs_of(__m256i spread, __m256i bit)
{
	__m256i minus = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);

	return _mm256_or_si256(minus, bytes(1));
}

INLINE __m256i sum_words(__m256i sum, __m256i words)
{
	return in_order(_mm256_add_epi32(sum, _mm256_madd_epi16(words, _mm256_set1_epi16(1))));
}

/* ---- IQ2 ---------------------------------------------------------------------------------------- */

/* Outputs 2 part, 2 part + 1 and the same of the next four: a sum of two such vectors by hadd has its outputs in order. */
INLINE __m256i four_sets(const int32_t type, const void *numbers, const int part)
{
	const uint64_t *list = type == SR_IQ2_XXS ? types_iq2_xxs : type == SR_IQ2_XS ? types_iq2_xs : types_iq2_s;
	const int c = part / 2 * 8 + part % 2 * 2;
	uint64_t set[4];

	UNROLL
	for (int i = 0; i < 4; i++)
		set[i] = list[iq_number(type, numbers, c + i / 2 * 4 + i % 2)];
	return _mm256_set_epi64x((long long)set[3], (long long)set[2], (long long)set[1], (long long)set[0]);
}

/* Of the same outputs: byte i of each dword of bits, eight times. */
INLINE __m256i eight_signs(__m256i bits, const int part, const int i)
{
	const char a = (char)(part % 2 * 8 + i), b = (char)(a + 4);
	const __m256i eight = _mm256_setr_epi8(a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b,
	                                       a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b);

	return signs_of(_mm256_shuffle_epi8(bits, eight), _mm256_set1_epi64x((long long)0x8040201008040201));
}

INLINE __m256i eight_inputs(const struct lanes_group *x, int r, int i)
{
	long long v;

	memcpy(&v, &x->q[r][8 * i], 8);
	return _mm256_set1_epi64x(v);
}

/* Products of sets i and i + 1. */
INLINE void two_sets(const int rows, const int32_t type, __m256i sum[4][AVX2_ROWS], const uint8_t *from,
                     const __m256i bits[2], const struct lanes_group *x, int first, const int i)
{
	_Alignas(32) uint16_t room[2][KERN_COLS];
	const void *n[2] = { iq_numbers(type, from, i, room[0]), iq_numbers(type, from, i + 1, room[1]) };

	UNROLL
	for (int part = 0; part < 4; part++) {
		const __m256i w0 = four_sets(type, n[0], part), w1 = four_sets(type, n[1], part);
		const __m256i s0 = eight_signs(bits[part / 2], part, i), s1 = eight_signs(bits[part / 2], part, i + 1);

		UNROLL
		for (int r = 0; r < rows; r++) {
			__m256i a = _mm256_maddubs_epi16(w0, _mm256_sign_epi8(eight_inputs(x, first + r, i), s0));
			__m256i b = _mm256_maddubs_epi16(w1, _mm256_sign_epi8(eight_inputs(x, first + r, i + 1), s1));

			sum[part][r] = sum_words(sum[part][r], _mm256_add_epi16(a, b));
		}
	}
}

/* acc += scale number i of the group * the sums */
INLINE void add_sums2(const int rows, __m256 acc[2][AVX2_ROWS], __m256i sum[4][AVX2_ROWS], const uint8_t *s, const int i,
                      const struct lanes_group *x, int first)
{
	UNROLL
	for (int h = 0; h < 2; h++)
		UNROLL
		for (int r = 0; r < rows; r++) {
			__m256i all = _mm256_hadd_epi32(sum[2 * h][r], sum[2 * h + 1][r]);

			scale_add(1, &acc[h][r], &all, scales(s, i, h), x, first + r);
		}
}

INLINE void group2(const int rows, const int32_t type, const uint8_t *s, const uint8_t *from,
                   const struct lanes_group *x, int first, __m256 acc[2][AVX2_ROWS])
{
	const __m256i bits[2] = { iq_signs(type, from, 0), iq_signs(type, from, 1) };
	__m256i sum[4][AVX2_ROWS] = { 0 };

	two_sets(rows, type, sum, from, bits, x, first, 0);
	if (type != SR_IQ2_XXS) {
		add_sums2(rows, acc, sum, s, 0, x, first);
		memset(sum, 0, sizeof(sum));
	}
	two_sets(rows, type, sum, from, bits, x, first, 2);
	add_sums2(rows, acc, sum, s, type != SR_IQ2_XXS, x, first);
}

/* ---- IQ3 ---------------------------------------------------------------------------------------- */

INLINE __m256i eight_sets(const int32_t type, const void *numbers, const int half)
{
	const uint32_t *list = type == SR_IQ3_XXS ? types_iq3_xxs : types_iq3_s;
	int set[8];

	UNROLL
	for (int i = 0; i < 8; i++)
		set[i] = (int)list[iq_number(type, numbers, 8 * half + i)];
	return _mm256_setr_epi32(set[0], set[1], set[2], set[3], set[4], set[5], set[6], set[7]);
}

INLINE void group3(const int rows, const int32_t type, const uint8_t *s, const uint8_t *from,
                   const struct lanes_group *x, int first, __m256 acc[2][AVX2_ROWS])
{
	const __m256i bits[2] = { iq_signs(type, from, 0), iq_signs(type, from, 1) };
	const int fit = type == SR_IQ3_XXS ? 2 : 8;
	__m256i sum[2][AVX2_ROWS] = { 0 }, words[2][AVX2_ROWS];
	_Alignas(32) uint16_t room[8][KERN_COLS];

	UNROLL
	for (int j = 0; j < 8; j++) {
		const void *n = iq_numbers(type, from, j, room[j]);

		UNROLL
		for (int h = 0; h < 2; h++) {
			const __m256i w = eight_sets(type, n, h), by = _mm256_or_si256(iq_minus(bits[h], j), bytes(1));

			UNROLL
			for (int r = 0; r < rows; r++) {
				__m256i v = _mm256_maddubs_epi16(w, _mm256_sign_epi8(four(x, first + r, j), by));

				words[h][r] = j % fit ? in_order(_mm256_add_epi16(words[h][r], v)) : v;
				if (j % fit == fit - 1)
					sum[h][r] = sum_words(sum[h][r], words[h][r]);
			}
		}
	}
	UNROLL
	for (int h = 0; h < 2; h++)
		scale_add(rows, acc[h], sum[h], scales(s, 0, h), x, first);
}

/* ---- a block -------------------------------------------------------------------------------------- */

INLINE void few_sets(const int rows, const int32_t type, const struct matmul_tile *t)
{
	const struct compact_layout *l = compact_layout_of(type);
	const struct lanes_group *x = (const struct lanes_group *)(const void *)t->x;
	const uint8_t *piece = t->w, *from = t->w + (size_t)(t->k / GROUP / l->groups) * l->scales;
	__m256 acc[2][AVX2_ROWS];

	UNROLL
	for (int i = 0; i < 2 * rows; i++)
		acc[i % 2][i / 2] = begin(t, i / 2, i % 2);
	for (int32_t g = 0; g < t->k / GROUP; g += l->groups, piece += l->scales) {
		for (int j = 0; j < l->groups; j++, x++, from += l->group) {
			_Alignas(32) uint8_t s[LANES_SCALES];

			if (t->fetch)
				fetch_ahead(from, AHEAD, l->group);
			iq_scales(type, piece, j, from, s);
			if (type == SR_IQ3_XXS || type == SR_IQ3_S)
				group3(rows, type, s, from, x, t->first, acc);
			else
				group2(rows, type, s, from, x, t->first, acc);
		}
	}
	UNROLL
	for (int i = 0; i < 2 * rows; i++)
		store(t, i / 2, i % 2, acc[i % 2][i / 2]);
}

TILE(few_iq2_xxs, few_sets, SR_IQ2_XXS)
TILE(few_iq2_xs, few_sets, SR_IQ2_XS)
TILE(few_iq2_s, few_sets, SR_IQ2_S)
TILE(few_iq3_xxs, few_sets, SR_IQ3_XXS)
TILE(few_iq3_s, few_sets, SR_IQ3_S)

avx2_tile_fn *avx2_few_iq(int32_t type)
{
	switch (type) {
	case SR_IQ2_XXS: return few_iq2_xxs;
	case SR_IQ2_XS:  return few_iq2_xs;
	case SR_IQ2_S:   return few_iq2_s;
	case SR_IQ3_XXS: return few_iq3_xxs;
	case SR_IQ3_S:   return few_iq3_s;
	}
	return NULL;
}
