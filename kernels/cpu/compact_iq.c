/* compact_iq.c - IQ2 and IQ3 for compact.c.  Pure functions, compiled for AVX2.
 *
 * A set of IQ3 is one dword of a line, the four inputs of one output; a set of IQ2 is one of two lines.  So a line is
 * sixteen look-ups and their signs.
 */
#include "compact_impl.h"
#include "types_iq.h"

/* Where a group's parts begin: the high bits of its sets' numbers, and its 32-bit words (signs, or signs and scale). */
enum { HIGH_2 = 64, WORDS_2S = 80, WORDS_2XXS = 64, HIGH_3 = 128, WORDS_3S = 144, WORDS_3XXS = 128 };

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

INLINE __m256i eight_bytes(const uint8_t *p)
{
	return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

/* Numbers of sets i of outputs 8 half .. */
INLINE __m256i numbers(const int32_t type, const uint8_t *from, int i, int half)
{
	__m256i low, high;

	if (type == SR_IQ2_XS)
		return _mm256_and_si256(_mm256_cvtepu16_epi32(load16(from + 32 * i + 16 * half)), _mm256_set1_epi32(511));
	low = eight_bytes(from + 16 * i + 8 * half);
	if (type != SR_IQ2_S && type != SR_IQ3_S)
		return low;
	high = eight_bytes(from + (type == SR_IQ2_S ? HIGH_2 : HIGH_3) + 8 * half);
	high = _mm256_srli_epi32(high, type == SR_IQ2_S ? 2 * i : i);
	high = _mm256_and_si256(high, _mm256_set1_epi32(type == SR_IQ2_S ? 3 : 1));
	return _mm256_or_si256(low, _mm256_slli_epi32(high, 8));
}

/* Seven signs as eight: bit p of 0x6996 is the parity of p. */
INLINE __m256i eighth(__m256i seven)
{
	__m256i p = _mm256_xor_si256(seven, _mm256_srli_epi32(seven, 4));

	p = _mm256_srlv_epi32(_mm256_set1_epi32(0x6996), _mm256_and_si256(p, _mm256_set1_epi32(15)));
	return _mm256_or_si256(seven, _mm256_slli_epi32(_mm256_and_si256(p, _mm256_set1_epi32(1)), 7));
}

/* A bit for each of 32 inputs of outputs 8 half .. */
INLINE __m256i signs(const int32_t type, const uint8_t *from, int half)
{
	__m256i words = _mm256_setzero_si256(), all = words;

	switch (type) {
	case SR_IQ2_S:   return load(from + WORDS_2S + 32 * half);
	case SR_IQ3_S:   return load(from + WORDS_3S + 32 * half);
	case SR_IQ2_XXS: words = load(from + WORDS_2XXS + 32 * half); break;
	case SR_IQ3_XXS: words = load(from + WORDS_3XXS + 32 * half); break;
	}
	UNROLL
	for (int i = 0; i < 4; i++) {
		__m256i seven = type == SR_IQ2_XS
			? _mm256_srli_epi32(_mm256_cvtepu16_epi32(load16(from + 32 * i + 16 * half)), 9)
			: _mm256_and_si256(_mm256_srli_epi32(words, 7 * i), _mm256_set1_epi32(127));

		all = _mm256_or_si256(all, _mm256_slli_epi32(eighth(seven), 8 * i));
	}
	return all;
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

/* Four signs of each dword as bytes of 0 or -1. */
INLINE __m256i minus(__m256i bits, int j)
{
	const __m256i each = _mm256_set1_epi32(0x08040201);
	const __m256i first = _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12,
	                                       0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
	__m256i v = _mm256_shuffle_epi8(_mm256_srli_epi32(bits, 4 * j), first);

	return _mm256_cmpeq_epi8(_mm256_and_si256(v, each), each);
}

/* (1 + 2 s) d of eight outputs as f16; d has been multiplied with what makes of this the type's own formula. */
INLINE void put_scale(uint8_t *to, const uint8_t *d, float by, __m256i s)
{
	__m256 v = _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_add_epi32(s, s), _mm256_set1_epi32(1)));

	v = _mm256_mul_ps(_mm256_mul_ps(_mm256_cvtph_ps(load16(d)), _mm256_set1_ps(by)), v);
	_mm_store_si128((__m128i *)(void *)to, _mm256_cvtps_ph(v, 0));
}

INLINE void put_scales(const int32_t type, const uint8_t *piece, int j, const uint8_t *from, uint8_t *to)
{
	const float by = type == SR_IQ3_S ? 1 : type == SR_IQ3_XXS ? 0.25f : 0.125f;

	UNROLL
	for (int half = 0; half < 2; half++) {
		const uint8_t *d = piece + 16 * half;
		__m256i s;

		if (type == SR_IQ2_XXS || type == SR_IQ3_XXS) {
			s = load(from + (type == SR_IQ2_XXS ? WORDS_2XXS : WORDS_3XXS) + 32 * half);
			put_scale(to + 16 * half, d, by, _mm256_srli_epi32(s, 28));
			continue;
		}
		s = eight_bytes(piece + 32 + 16 * (type == SR_IQ3_S ? j / 2 : j) + 8 * half);
		if (type == SR_IQ3_S) {
			s = _mm256_and_si256(_mm256_srli_epi32(s, 4 * (j % 2)), _mm256_set1_epi32(15));
			put_scale(to + 16 * half, d, by, s);
			continue;
		}
		put_scale(to + 16 * half, d, by, _mm256_and_si256(s, _mm256_set1_epi32(15)));
		put_scale(to + 32 + 16 * half, d, by, _mm256_srli_epi32(s, 4));
	}
}

INLINE void expand(const int32_t type, const uint8_t *piece, int j, const uint8_t *from, uint8_t *scales, uint8_t *quants)
{
	put_scales(type, piece, j, from, scales);
	for (int half = 0; half < 2; half++) {
		__m256i bits = signs(type, from, half);

		UNROLL
		for (int line = 0; line < 8; line++) {
			__m256i negative = minus(bits, line), v = weights(type, from, line, half);

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
