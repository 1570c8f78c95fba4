/* compact.h - types whose quants or scales take more room in lanes (lanes.h) than in a file.  They are
 * held in as many bytes as they are stored in, and become units of lanes a few groups at a time, in the
 * nearest cache, just before they are multiplied.
 *
 * A column block is the scales of all its inputs, then the quants.  Scales come in pieces of 8 groups
 * (K-quants, IQ4_XS) or one, quants in groups:
 *
 *	type      scales, each for 16 outputs                        quants of a group
 *	Q4_K      d f16, dmin f16, the 12 bytes of scales            nibbles
 *	Q5_K      the same                                           nibbles, bits
 *	Q6_K      the 16 scales, d f16                               nibbles, pairs
 *	Q3_K      the 12 bytes of scales, d f16                      pairs, bits
 *	IQ4_XS    d f16, the 2 and the 4 bytes of scales             nibbles
 *	IQ4_NL    d f16                                              nibbles
 *	Q5_0      d f16                                              nibbles, bits
 *	Q5_1      d f16, m f16                                       nibbles, bits
 *	MXFP4     an exponent                                        nibbles
 *	Q2_K      d f16, dmin f16, the 16 bytes of scales            pairs
 *	IQ2_XXS   d f16                                              4 sets, 4 bytes of signs and scale
 *	IQ2_XS    d f16, the 8 bytes of scales                       4 sets with their signs, u16
 *	IQ2_S     d f16, the 8 bytes of scales                       4 sets, their high bits, 4 bytes of signs
 *	IQ3_XXS   d f16                                              8 sets, 4 bytes of signs and scale
 *	IQ3_S     d f16, the 4 bytes of scales                       8 sets, their high bits, 4 bytes of signs
 *
 * Held types (types.h), whose pieces are as long as one scale counts for:
 *
 *	U4        d f16, z in nibbles: of output c and c + 8         nibbles; they are multiplied where they lie
 *	U4_ORDER  the same                                           8 bytes an input: of output c and c + 8
 *	I8        d f16                                              as in LANES_8, multiplied where they lie
 *	F8        d f32                                              16 bytes an input
 *	F8_BLOCK  d f32, one for 16 outputs                          the same
 *	NVFP4     d f32                                              two scales e4m3, nibbles
 *
 *	nibbles   256 bytes, as in LANES_4; those of Q4_K are multiplied where they lie
 *	bits      64 bytes: byte 4c + i has in bit j that of input 4j + i of output c
 *	sets      16 numbers for each, of one byte where it says no more
 *	pairs     128 bytes: byte 4c + i of line h has in bits 2f that of input 4(4h + f) + i
 */
#ifndef COMPACT_H
#define COMPACT_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kern.h"
#include "lanes.h"

#define COMPACT_MOST 8            /* groups of the longest piece */
#define COMPACT_ROOM 32           /* groups that become units at a time, for many rows: they fit L1 */
#define COMPACT_BYTES (COMPACT_ROOM * LANES_GROUP_MOST) /* of the room for them */

/* Groups of a piece of scales; 0: the type is not held this way. */
int    compact_groups(int32_t type);
size_t compact_block_bytes(int32_t type, int32_t k);
void   compact_pack(int32_t type, int32_t k, const uint8_t *const src[KERN_COLS], uint8_t *dst);
/* How many groups become units at a time, from group `first` on.  Where their sums are multiplied by of_all, it does
 * not depend on the number of rows. */
int32_t compact_step(int32_t type, int32_t k, int32_t first, bool few);
/* Groups [first, first + n) of a block of k inputs as units of lanes_kind(type), or as lines of floats.  first is a
 * multiple of COMPACT_MOST, or what compact_step() led to; n is at most what it says.  index: of kern_rows.  room:
 * COMPACT_BYTES, for what does not lie in the block as it is. */
struct lanes_units compact_expand(int32_t type, int32_t k, const uint8_t *block, int32_t first, int32_t n,
                                  const uint16_t *index, uint8_t *room);

#define COMPACT_SCALES_4K 256     /* bytes of the scales of a piece of Q4_K or Q5_K */

/* Bytes of s, shifted down and masked. */
static inline __m128i compact_bits(const uint8_t *s, const int down, const int mask)
{
	__m128i v = _mm_loadu_si128((const __m128i *)(const void *)s);

	return _mm_and_si128(_mm_srli_epi16(v, down), _mm_set1_epi8((char)mask));
}

/* The 6-bit scales and minima of group j (0 .. 7) of a piece of Q4_K or Q5_K. */
static inline void compact_scales_45(const uint8_t *piece, int j, __m128i *scale, __m128i *min)
{
	const uint8_t *at = piece + 64 + 16 * j;

	if (j < 4) {
		*scale = compact_bits(at, 0, 63);
		*min = compact_bits(at + 64, 0, 63);
	} else {
		*scale = _mm_or_si128(compact_bits(at + 64, 0, 15), compact_bits(at - 64, 2, 48));
		*min = _mm_or_si128(compact_bits(at + 64, 4, 15), compact_bits(at, 2, 48));
	}
}

#endif
