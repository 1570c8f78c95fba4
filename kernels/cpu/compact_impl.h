/* compact_impl.h - what the files of compact.h share.  Included by files compiled for AVX2 only.
 */
#ifndef COMPACT_IMPL_H
#define COMPACT_IMPL_H

#include <immintrin.h>

#include "compact.h"
#include "lanes.h"

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define INLINE static inline __attribute__((always_inline))

enum { NIBBLES = 256, PAIRS = 128, BITS = 64 };

extern const int8_t compact_e2m1[16];     /* doubled */

INLINE __m256i load(const void *p)
{
	return _mm256_loadu_si256((const __m256i *)p);
}

INLINE __m128i load16(const void *p)
{
	return _mm_loadu_si128((const __m128i *)p);
}

INLINE void put(uint8_t *to, __m256i v)
{
	_mm256_store_si256((__m256i *)(void *)to, v);
}

INLINE __m256i bytes(int v)
{
	return _mm256_set1_epi8((char)v);
}

/* The part of each byte under `mask`, moved up by `by` bits (down, if negative). */
INLINE __m256i moved(__m256i v, const int by, const int mask)
{
	v = by >= 0 ? _mm256_slli_epi16(v, by) : _mm256_srli_epi16(v, -by);
	return _mm256_and_si256(v, bytes(mask));
}

/* Nibbles of a table's entries, each with `add` more. */
INLINE void look_up(const int8_t *values, const int add, const uint8_t *from, uint8_t *to)
{
	const __m256i table = _mm256_add_epi8(_mm256_broadcastsi128_si256(load16(values)), bytes(add));

	UNROLL
	for (int i = 0; i < NIBBLES; i += 32) {
		__m256i v = load(from + i);

		put(to + i, _mm256_shuffle_epi8(table, moved(v, 0, 15)));
		put(to + NIBBLES + i, _mm256_shuffle_epi8(table, moved(v, -4, 15)));
	}
}

/* Products of f16 and small integers, sixteen, as f16.  by: signed bytes. */
INLINE void put_products(uint8_t *to, __m256 d0, __m256 d1, __m128i by)
{
	__m256 a = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(by));
	__m256 b = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(by, by)));

	_mm_store_si128((__m128i *)(void *)to, _mm256_cvtps_ph(_mm256_mul_ps(d0, a), 0));
	_mm_store_si128((__m128i *)(void *)(to + 16), _mm256_cvtps_ph(_mm256_mul_ps(d1, b), 0));
}

/* IQ2 and IQ3 (compact_iq.c): group j of a stored block, output c, into a group's quants; a group's scales and quants
 * into its unit, the scales to their place in the unit's line. */
void compact_iq_pack(int32_t type, const uint8_t *stored, int j, int c, uint8_t *dst);
void compact_iq_expand(int32_t type, const uint8_t *piece, int j, const uint8_t *from, uint8_t *scales, uint8_t *quants);

/* Held types (compact_held.c). */
size_t compact_held_bytes(int32_t type, int32_t k);
void   compact_held_pack(int32_t type, int32_t k, const uint8_t *const src[KERN_COLS], uint8_t *dst);
struct lanes_units compact_held_expand(int32_t type, int32_t k, const uint8_t *block, int32_t first, int32_t n,
                                       const uint16_t *index, uint8_t *room);

#endif
