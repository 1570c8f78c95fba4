/* compact_iq.c - IQ2 and IQ3 for compact.c.  Pure functions, compiled for AVX2.
 *
 * A set of IQ3 is one dword of a line, the four inputs of one output; a set of IQ2 is one of two lines.  So a line is
 * sixteen look-ups and their signs.
 */
#include "compact_unpack_iq.h"

static void put_word(uint8_t *dst, int c, const uint8_t *from)
{
	memcpy(dst + 4 * c, from, 4);
}

void compact_iq_pack(int32_t type, const uint8_t *b, int j, int c, uint8_t *dst)
{
	int n = type == SR_IQ3_XXS || type == SR_IQ3_S ? 8 : 4;

	for (int i = 0; i < n; i++) {
		if (type == SR_IQ2_XS)
			memcpy(dst + 32 * i + 2 * c, b + 2 + 8 * j + 2 * i, 2);
		else
			dst[16 * i + c] = b[2 + (type == SR_IQ2_XXS ? 8 : n) * j + i];
	}
	switch (type) {
	case SR_IQ2_XXS: put_word(dst + WORDS_2XXS, c, b + 6 + 8 * j); return;
	case SR_IQ3_XXS: put_word(dst + WORDS_3XXS, c, b + 66 + 4 * j); return;
	case SR_IQ2_S:
		dst[HIGH_2 + c] = b[66 + j];
		put_word(dst + WORDS_2S, c, b + 34 + 4 * j);
		return;
	case SR_IQ3_S:
		dst[HIGH_3 + c] = b[66 + j];
		put_word(dst + WORDS_3S, c, b + 74 + 4 * j);
	}
}

/* Numbers of sets i of outputs 8 half .. */
INLINE __m256i numbers(const int32_t type, const uint8_t *from, int i, int half)
{
	__m256i low, high;

	if (type == SR_IQ2_XS)
		return _mm256_and_si256(_mm256_cvtepu16_epi32(load16(from + 32 * i + 16 * half)), _mm256_set1_epi32(511));
	low = iq_eight_bytes(from + 16 * i + 8 * half);
	if (type != SR_IQ2_S && type != SR_IQ3_S)
		return low;
	high = iq_eight_bytes(from + (type == SR_IQ2_S ? HIGH_2 : HIGH_3) + 8 * half);
	high = _mm256_srli_epi32(high, type == SR_IQ2_S ? 2 * i : i);
	high = _mm256_and_si256(high, _mm256_set1_epi32(type == SR_IQ2_S ? 3 : 1));
	return _mm256_or_si256(low, _mm256_slli_epi32(high, 8));
}

INLINE __m256i weights(const int32_t type, const uint8_t *from, int j, int half)
{
	const int set = type == SR_IQ3_XXS || type == SR_IQ3_S ? j : j / 2;
	const __m256i n = numbers(type, from, set, half);
	const void *list = type == SR_IQ2_XXS ? (const void *)types_iq2_xxs : type == SR_IQ2_XS ? (const void *)types_iq2_xs
	                 : (const void *)types_iq2_s;

	if (type == SR_IQ3_XXS)
		return _mm256_i32gather_epi32((const int *)(const void *)types_iq3_xxs, n, 4);
	if (type == SR_IQ3_S)
		return _mm256_i32gather_epi32((const int *)(const void *)types_iq3_s, n, 4);
	return _mm256_i32gather_epi32((const int *)list + j % 2, n, 8);
}

INLINE void expand(const int32_t type, const uint8_t *piece, int j, const uint8_t *from, uint8_t *scales, uint8_t *quants)
{
	iq_scales(type, piece, j, from, scales);
	for (int half = 0; half < 2; half++) {
		__m256i bits = iq_signs(type, from, half);

		UNROLL
		for (int line = 0; line < 8; line++) {
			__m256i negative = iq_minus(bits, line), v = weights(type, from, line, half);

			v = _mm256_sub_epi8(_mm256_xor_si256(v, negative), negative);
			put(quants + 64 * line + 32 * half, _mm256_xor_si256(v, bytes(0x80)));
		}
	}
}

void compact_iq_expand(int32_t type, const uint8_t *piece, int j, const uint8_t *from, uint8_t *scales, uint8_t *quants)
{
	switch (type) {
	case SR_IQ2_XXS: expand(SR_IQ2_XXS, piece, j, from, scales, quants); return;
	case SR_IQ2_XS:  expand(SR_IQ2_XS, piece, j, from, scales, quants); return;
	case SR_IQ2_S:   expand(SR_IQ2_S, piece, j, from, scales, quants); return;
	case SR_IQ3_XXS: expand(SR_IQ3_XXS, piece, j, from, scales, quants); return;
	default:         expand(SR_IQ3_S, piece, j, from, scales, quants);
	}
}
