/* compact_unpack_iq.h - the same as compact_unpack.h, of IQ2 and IQ3.
 */
#ifndef COMPACT_UNPACK_IQ_H
#define COMPACT_UNPACK_IQ_H

#include "compact_impl.h"
#include "types_iq.h"

/* Where a group's parts begin: the high bits of its sets' numbers, and its 32-bit words (signs, or signs and scale). */
enum { HIGH_2 = 64, WORDS_2S = 80, WORDS_2XXS = 64, HIGH_3 = 128, WORDS_3S = 144, WORDS_3XXS = 128 };

INLINE __m256i iq_eight_bytes(const uint8_t *p)
{
	return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

/* The numbers of sets i of sixteen outputs; room is for types whose numbers do not lie in bytes. */
INLINE const void *iq_numbers(const int32_t type, const uint8_t *from, const int i, uint16_t *room)
{
	__m256i n, high;

	if (type == SR_IQ2_XXS || type == SR_IQ3_XXS)
		return from + 16 * i;
	if (type == SR_IQ2_XS) {
		n = _mm256_and_si256(load(from + 32 * i), _mm256_set1_epi16(511));
	} else {
		high = _mm256_cvtepu8_epi16(load16(from + (type == SR_IQ2_S ? HIGH_2 : HIGH_3)));
		high = _mm256_slli_epi16(high, type == SR_IQ2_S ? 8 - 2 * i : 8 - i);
		n = _mm256_or_si256(_mm256_cvtepu8_epi16(load16(from + 16 * i)),
		                    _mm256_and_si256(high, _mm256_set1_epi16(type == SR_IQ2_S ? 768 : 256)));
	}
	put((uint8_t *)room, n);
	return room;
}

/* Number c of those. */
INLINE size_t iq_number(const int32_t type, const void *numbers, const int c)
{
	return type == SR_IQ2_XXS || type == SR_IQ3_XXS ? ((const uint8_t *)numbers)[c] : ((const uint16_t *)numbers)[c];
}

/* Four times seven signs, a byte each, with the eighth: it makes their number even. */
INLINE __m256i iq_even(__m256i sevens)
{
	const __m256i odd = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128,
	                                                              -128, 0, 0, -128, 0, -128, -128, 0));
	__m256i parity = _mm256_xor_si256(_mm256_shuffle_epi8(odd, moved(sevens, 0, 15)),
	                                  _mm256_shuffle_epi8(odd, moved(sevens, -4, 15)));

	return _mm256_or_si256(sevens, parity);
}

/* A bit for each of 32 inputs of outputs 8 half .. */
INLINE __m256i iq_signs(const int32_t type, const uint8_t *from, int half)
{
	__m256i words = _mm256_setzero_si256(), all = words;

	if (type == SR_IQ2_S || type == SR_IQ3_S)
		return load(from + (type == SR_IQ2_S ? WORDS_2S : WORDS_3S) + 32 * half);
	if (type != SR_IQ2_XS)
		words = load(from + (type == SR_IQ2_XXS ? WORDS_2XXS : WORDS_3XXS) + 32 * half);
	UNROLL
	for (int i = 0; i < 4; i++)
		all = _mm256_or_si256(all, type == SR_IQ2_XS
			? _mm256_slli_epi32(_mm256_srli_epi32(_mm256_cvtepu16_epi32(load16(from + 32 * i + 16 * half)), 9), 8 * i)
			: _mm256_and_si256(_mm256_slli_epi32(words, i), _mm256_set1_epi32(127 << 8 * i)));
	return iq_even(all);
}

/* Four signs of each dword as bytes of 0 or -1. */
INLINE __m256i iq_minus(__m256i bits, int j)
{
	const __m256i each = _mm256_set1_epi32(0x08040201);
	const __m256i first = _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12,
	                                       0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
	__m256i v = _mm256_shuffle_epi8(_mm256_srli_epi32(bits, 4 * j), first);

	return _mm256_cmpeq_epi8(_mm256_and_si256(v, each), each);
}

/* (1 + 2 s) d of eight outputs as f16; d has been multiplied with what makes of this the type's own formula. */
INLINE void iq_put_scale(uint8_t *to, const uint8_t *d, float by, __m256i s)
{
	__m256 v = _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_add_epi32(s, s), _mm256_set1_epi32(1)));

	v = _mm256_mul_ps(_mm256_mul_ps(_mm256_cvtph_ps(load16(d)), _mm256_set1_ps(by)), v);
	_mm_store_si128((__m128i *)(void *)to, _mm256_cvtps_ph(v, 0));
}

/* The scales of group j of a piece, to their place in the line of their unit. */
INLINE void iq_scales(const int32_t type, const uint8_t *piece, int j, const uint8_t *from, uint8_t *to)
{
	const float by = type == SR_IQ3_S ? 1 : type == SR_IQ3_XXS ? 0.25f : 0.125f;

	UNROLL
	for (int half = 0; half < 2; half++) {
		const uint8_t *d = piece + 16 * half;
		__m256i s;

		if (type == SR_IQ2_XXS || type == SR_IQ3_XXS) {
			s = load(from + (type == SR_IQ2_XXS ? WORDS_2XXS : WORDS_3XXS) + 32 * half);
			iq_put_scale(to + 16 * half, d, by, _mm256_srli_epi32(s, 28));
			continue;
		}
		s = iq_eight_bytes(piece + 32 + 16 * (type == SR_IQ3_S ? j / 2 : j) + 8 * half);
		if (type == SR_IQ3_S) {
			s = _mm256_and_si256(_mm256_srli_epi32(s, 4 * (j % 2)), _mm256_set1_epi32(15));
			iq_put_scale(to + 16 * half, d, by, s);
			continue;
		}
		iq_put_scale(to + 16 * half, d, by, _mm256_and_si256(s, _mm256_set1_epi32(15)));
		iq_put_scale(to + 32 + 16 * half, d, by, _mm256_srli_epi32(s, 4));
	}
}

#endif
