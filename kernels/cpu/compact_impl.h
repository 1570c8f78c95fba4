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

extern const int8_t compact_iq4[16], compact_e2m1[16]; /* e2m1: doubled */

struct compact_layout {
	uint8_t  groups;              /* of a piece */
	uint16_t scales;              /* bytes before the groups */
	uint16_t group;               /* bytes of a group's quants */
	int8_t   offset;              /* makes the quants of types_group() unsigned */
};

INLINE const struct compact_layout *compact_layout_of(int32_t type)
{
	static const struct compact_layout q4_k = { 8, 256, NIBBLES, 0 }, q5_k = { 8, 256, NIBBLES + BITS, 0 };
	static const struct compact_layout q6_k = { 8, 288, NIBBLES + PAIRS, 32 }, q3_k = { 8, 224, PAIRS + BITS, 4 };
	static const struct compact_layout iq4_xs = { 8, 128, NIBBLES, 0 }, iq4_nl = { 1, 32, NIBBLES, 0 };
	static const struct compact_layout q5_0 = { 1, 32, NIBBLES + BITS, 16 }, q5_1 = { 1, 64, NIBBLES + BITS, 0 };
	static const struct compact_layout mxfp4 = { 1, 16, NIBBLES, 0 }, q2_k = { 8, 320, PAIRS, 0 };
	static const struct compact_layout iq2_xxs = { 8, 32, 128, 0 }, iq2_xs = { 8, 160, 128, 0 };
	static const struct compact_layout iq2_s = { 8, 160, 144, 0 }, iq3_xxs = { 8, 32, 192, 0 }, iq3_s = { 8, 96, 208, 0 };

	switch (type) {
	case SR_Q4_K:   return &q4_k;
	case SR_Q5_K:   return &q5_k;
	case SR_Q6_K:   return &q6_k;
	case SR_Q3_K:   return &q3_k;
	case SR_IQ4_XS: return &iq4_xs;
	case SR_IQ4_NL: return &iq4_nl;
	case SR_Q5_0:   return &q5_0;
	case SR_Q5_1:   return &q5_1;
	case SR_MXFP4:  return &mxfp4;
	case SR_Q2_K:   return &q2_k;
	case SR_IQ2_XXS: return &iq2_xxs;
	case SR_IQ2_XS: return &iq2_xs;
	case SR_IQ2_S:  return &iq2_s;
	case SR_IQ3_XXS: return &iq3_xxs;
	case SR_IQ3_S:  return &iq3_s;
	}
	return NULL;
}

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

INLINE __m256i table16(const int8_t *values)
{
	return _mm256_broadcastsi128_si256(load16(values));
}

/* Nibbles of a table's entries, each with `add` more. */
INLINE void look_up(const int8_t *values, const int add, const uint8_t *from, uint8_t *to)
{
	const __m256i table = _mm256_add_epi8(table16(values), bytes(add));

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
size_t compact_held_quants(int32_t type, int32_t k); /* where a block's quants begin */
void   compact_held_pack(int32_t type, int32_t k, const uint8_t *const src[KERN_COLS], uint8_t *dst);
struct lanes_units compact_held_expand(int32_t type, int32_t k, const uint8_t *block, int32_t first, int32_t n,
                                       const uint16_t *index, uint8_t *room);

#endif
