/* compact_unpack.h - quants and scales of a block that is held compactly (compact.h), taken apart in registers.
 * Included by files compiled for AVX2 only.
 */
#ifndef COMPACT_UNPACK_H
#define COMPACT_UNPACK_H

#include "compact_impl.h"
#include "types.h"

/* What unpack_line() adds to a quant, so that it is not negative; 0: nothing. */
INLINE int unpack_offset(const int32_t type)
{
	switch (type) {
	case SR_Q6_K:  return 32;
	case SR_Q5_0:  return 16;
	case SR_MXFP4: case HELD_NVFP4: return 12;
	case SR_Q3_K:  return 4;
	default:       return 0;
	}
}

/* Inputs 4j .. 4j + 3 of outputs 8 .. of a group: half 0 or 32.  Bytes; of IQ4_NL and IQ4_XS signed ones. */
INLINE __m256i unpack_line(const int32_t type, const uint8_t *from, const int j, const int half)
{
	const uint8_t *high = from + NIBBLES + half;
	const int of_pair = -2 * (j % 4);
	__m256i v;

	if (type == SR_Q2_K)
		return moved(load(from + j / 4 * 64 + half), of_pair, 3);
	if (type == SR_Q3_K)
		return _mm256_or_si256(moved(load(from + j / 4 * 64 + half), of_pair, 3),
		                       moved(load(from + PAIRS + half), 2 - j, 4));
	v = moved(load(from + 64 * (j % 4) + half), j < 4 ? 0 : -4, 15);
	switch (type) {
	case SR_Q5_0: case SR_Q5_1: case SR_Q5_K:
		return _mm256_or_si256(v, moved(load(high), 4 - j, 16));
	case SR_Q6_K:
		return _mm256_or_si256(v, moved(load(high + j / 4 * 64), 4 + of_pair, 48));
	case SR_MXFP4: case HELD_NVFP4:
		return _mm256_shuffle_epi8(_mm256_add_epi8(table16(compact_e2m1), bytes(12)), v);
	default:
		return _mm256_shuffle_epi8(table16(compact_iq4), v);
	}
}

INLINE __m128i bits_up(const uint8_t *s, const int up, const int mask)
{
	return _mm_and_si128(_mm_slli_epi16(load16(s), up), _mm_set1_epi8((char)mask));
}

/* The scale and the minimum of group j; Q4_K and Q5_K store the minima's negative. */
INLINE void scales_45(const uint8_t *s, int j, uint8_t *to)
{
	const __m256 minus = _mm256_set1_ps(-0.0f);
	__m256 d0 = _mm256_cvtph_ps(load16(s)), d1 = _mm256_cvtph_ps(load16(s + 16));
	__m256 m0 = _mm256_xor_ps(_mm256_cvtph_ps(load16(s + 32)), minus);
	__m256 m1 = _mm256_xor_ps(_mm256_cvtph_ps(load16(s + 48)), minus);
	__m128i scale, min;

	compact_scales_45(s, j, &scale, &min);
	put_products(to, d0, d1, scale);
	put_products(to + 32, m0, m1, min);
}

/* d0, d1, m0, m1; minima are stored negative. */
INLINE void scales_2(const uint8_t *s, int j, uint8_t *to)
{
	const __m256 minus = _mm256_set1_ps(-0.0f);
	__m256 d0 = _mm256_cvtph_ps(load16(s)), d1 = _mm256_cvtph_ps(load16(s + 16));
	__m256 m0 = _mm256_xor_ps(_mm256_cvtph_ps(load16(s + 32)), minus);
	__m256 m1 = _mm256_xor_ps(_mm256_cvtph_ps(load16(s + 48)), minus);

	for (int h = 0; h < 2; h++) {
		const uint8_t *at = s + 64 + 16 * (2 * j + h);

		put_products(to + 32 * h, d0, d1, compact_bits(at, 0, 15));
		put_products(to + 64 + 32 * h, m0, m1, compact_bits(at, 4, 15));
	}
}

INLINE void scales_6(const uint8_t *s, int j, uint8_t *to)
{
	__m256 d0 = _mm256_cvtph_ps(load16(s + 256)), d1 = _mm256_cvtph_ps(load16(s + 272));

	put_products(to, d0, d1, load16(s + 32 * j));
	put_products(to + 32, d0, d1, load16(s + 32 * j + 16));
}

INLINE void scales_3(const uint8_t *s, int j, uint8_t *to)
{
	__m256 d0 = _mm256_cvtph_ps(load16(s + 192)), d1 = _mm256_cvtph_ps(load16(s + 208));

	for (int at = 2 * j; at < 2 * j + 2; at++, to += 32) {
		const uint8_t *high = s + 16 * (8 + at % 4);
		__m128i low = at < 8 ? compact_bits(s + 16 * at, 0, 15) : compact_bits(s + 16 * (at - 8), 4, 15);
		__m128i top = at < 4 ? bits_up(high, 4, 48) : at < 8 ? bits_up(high, 2, 48)
		            : at < 12 ? compact_bits(high, 0, 48) : compact_bits(high, 2, 48);

		put_products(to, d0, d1, _mm_sub_epi8(_mm_or_si128(low, top), _mm_set1_epi8(32)));
	}
}

INLINE void scales_iq4(const uint8_t *s, int j, uint8_t *to)
{
	const uint8_t *high = s + 32 + 16 * (j / 4), *low = s + 64 + 16 * (j / 2);
	__m128i top = j % 4 == 0 ? bits_up(high, 4, 48) : j % 4 == 1 ? bits_up(high, 2, 48)
	            : j % 4 == 2 ? compact_bits(high, 0, 48) : compact_bits(high, 2, 48);

	put_products(to, _mm256_cvtph_ps(load16(s)), _mm256_cvtph_ps(load16(s + 16)),
		_mm_sub_epi8(_mm_or_si128(j % 2 ? compact_bits(low, 4, 15) : compact_bits(low, 0, 15), top), _mm_set1_epi8(32)));
}

/* 2^(e - 128); below what f16 can hold it is 0, as f16_of_f32() makes it. */
INLINE void scales_mx(const uint8_t *s, uint8_t *to)
{
	for (int i = 0; i < 2; i++) {
		__m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(s + 8 * i)));
		__m256i some = _mm256_cmpgt_epi32(e, _mm256_setzero_si256());

		e = _mm256_and_si256(some, _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23));
		_mm_store_si128((__m128i *)(void *)(to + 16 * i), _mm256_cvtps_ph(_mm256_castsi256_ps(e), 0));
	}
}

/* Sixteen nibbles: of outputs 0 .. 7, then of 8 .. 15. */
INLINE __m128i sixteen(const uint8_t *p)
{
	__m128i v = _mm_loadl_epi64((const __m128i *)(const void *)p), fifteen = _mm_set1_epi8(15);

	return _mm_unpacklo_epi64(_mm_and_si128(v, fifteen), _mm_and_si128(_mm_srli_epi16(v, 4), fifteen));
}

/* d and m = -d z of a piece as a unit's scales. */
INLINE void scales_u4(const uint8_t *s, uint8_t *to)
{
	const __m256 minus = _mm256_set1_ps(-0.0f);

	put(to, load(s));
	put_products(to + 32, _mm256_xor_ps(_mm256_cvtph_ps(load16(s)), minus),
		_mm256_xor_ps(_mm256_cvtph_ps(load16(s + 16)), minus), sixteen(s + 32));
}

/* Sixteen e4m3 as f16, 2^8 times smaller; 0x7f is 0. */
INLINE void scales_nvfp4(const uint8_t *s, uint8_t *to)
{
	__m128i v = _mm_and_si128(load16(s), _mm_set1_epi8(127));

	v = _mm_andnot_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8(127)), v);
	put(to, _mm256_slli_epi16(_mm256_cvtepu8_epi16(v), 7));
}

/* The scales of group j of a piece, to its place in the line of its unit.  NVFP4 has them in the group. */
INLINE void unpack_scales(const int32_t type, const uint8_t *piece, int j, uint8_t *to)
{
	switch (type) {
	case SR_Q4_K: case SR_Q5_K: scales_45(piece, j, to); return;
	case SR_Q6_K:   scales_6(piece, j, to); return;
	case SR_Q3_K:   scales_3(piece, j, to); return;
	case SR_IQ4_XS: scales_iq4(piece, j, to); return;
	case SR_MXFP4:  scales_mx(piece, to); return;
	case SR_Q2_K:   scales_2(piece, j, to); return;
	case HELD_NVFP4:
		scales_nvfp4(piece, to);
		scales_nvfp4(piece + 16, to + 32);
		return;
	default:        memcpy(to, piece, type == SR_Q5_1 ? 64 : 32);
	}
}

#endif
