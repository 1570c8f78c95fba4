/* lanes.h - the order in which the vector tables (avx2, avx512) hold matrices and activations.  Both
 * use the same bytes, so the packing is here once.
 *
 * A column block is 16 outputs, one to a lane; its inputs follow in one order.
 *
 *	F32        [k][16] f32                     F16   [k][16] f16
 *	BF16       [k/2][16][2] bf16: a line holds inputs 2i, 2i+1 of sixteen outputs
 *	quantized  a unit of one or two groups of 32 inputs after another: one line of scales, then
 *	           lines of quants.  In a line lane c holds four inputs of output c as four u8
 *	           (8-bit kinds: inputs 4j..4j+3 in line j), or as low nibbles, inputs 4j.., and high
 *	           nibbles, inputs 16+4j.. (4-bit kinds: the GGUF block, transposed by dwords).
 *
 *	kind        scales, f16        quant      types                           bytes per unit
 *	LANES_4M    d[16] m[16]        q          Q4_1, Q4_K                      64 + 256
 *	LANES_4     d[16] d'[16]       q + 8      Q4_0                            64 + 2 * 256
 *	LANES_8     d[16] d'[16]       q + 128    Q8_0, Q5_0 IQ4_NL IQ4_XS MXFP4  64 + 2 * 512
 *	                                          IQ3_XXS IQ3_S IQ2_XXS int8
 *	LANES_8M    d[16] m[16]        q          Q5_1 Q5_K                       64 + 512
 *	LANES_8H    d0[16] d1[16]      q + 32     Q6_K Q3_K NVFP4 (d per half)    64 + 512
 *	LANES_8HM   d0 d1 m0 m1, [16]  q          Q2_K                            128 + 512
 *	LANES_8HB   d0[16] d1[16]      q + 128    IQ2_XS IQ2_S                    64 + 512
 *
 * LANES_4 and LANES_8 have two groups in a unit.  Only Q4_1, Q4_0 and Q8_0 lie in memory like this; the
 * others are held as compact.h says and become units just before they are multiplied.  K-quants, IQ2, IQ3 and
 * IQ4_XS have products of two scales; these are rounded to f16 then (relative error 2^-12, none for subnormals).
 * Everything else is exact.  FP8 becomes BF16 lines, 4 bits with act-order F16 ones.
 *
 * Activations come in tiles of 8 rows; a shorter last tile leaves its other rows unused.
 *
 *	FORM_F32   [k][8] f32      FORM_BF16  [k/2][8][2] bf16      FORM_I8  struct lanes_group per 32
 */
#ifndef LANES_H
#define LANES_H

#include <stddef.h>
#include <stdint.h>

#include "kern.h"
#include "types.h"

enum lanes_kind { LANES_NONE, LANES_F32, LANES_F16, LANES_BF16,
                  LANES_4M, LANES_4, LANES_8, LANES_8M, LANES_8H, LANES_8HM, LANES_8HB };

/* 32 inputs of 8 rows: x = scale * q. */
struct lanes_group {
	int8_t  q[KERN_TILE][GROUP];
	float   scale[KERN_TILE];
	float   scaled_sum[KERN_TILE];    /* scale * sum of q: the factor of a group's minimum */
	int32_t minus_sum[KERN_TILE];     /* removes the quants' offset from an integer sum */
	int32_t minus_first[KERN_TILE];   /* the same over q[0..15] */
};

#define LANES_SCALES 64                   /* bytes of a unit's scales, mostly */
#define LANES_GROUP_MOST (2 * LANES_SCALES + 512) /* bytes of a unit, for each of its groups */

/* Where units lie: the first one's scales and quants, and the bytes from one unit to the next.  Lines of floats have
 * no scales.  of_all: NULL, or what each output's sum over these units is multiplied with, before it is added to the
 * sums over the units before. */
struct lanes_units { const uint8_t *scales, *quants; size_t scales_step, quants_step; const float *of_all; };

static inline enum lanes_kind lanes_kind(int32_t type)
{
	switch (types_base(type)) {
	case HELD_U4:     return LANES_4M;
	case HELD_U4_ORDER: return LANES_F16;
	case HELD_I8:     return LANES_8;
	case HELD_F8: case HELD_F8_BLOCK: return LANES_BF16;
	case HELD_NVFP4:  return LANES_8H;
	}
	switch (type) {
	case SR_F32:  return LANES_F32;
	case SR_F16:  return LANES_F16;
	case SR_BF16: return LANES_BF16;
	case SR_Q4_1: case SR_Q4_K: return LANES_4M;
	case SR_Q4_0: return LANES_4;
	case SR_Q8_0: case SR_Q5_0: case SR_IQ4_NL: case SR_IQ4_XS: case SR_MXFP4: case SR_IQ2_XXS: case SR_IQ3_XXS:
	case SR_IQ3_S: return LANES_8;
	case SR_Q5_1: case SR_Q5_K: return LANES_8M;
	case SR_Q6_K: case SR_Q3_K: return LANES_8H;
	case SR_Q2_K: return LANES_8HM;
	case SR_IQ2_XS: case SR_IQ2_S: return LANES_8HB;
	}
	return LANES_NONE;
}

static inline int lanes_unit_groups(enum lanes_kind kind)
{
	return kind == LANES_4 || kind == LANES_8 ? 2 : 1;
}

/* 16 weights to a scale. */
static inline bool lanes_halves(enum lanes_kind kind)
{
	return kind == LANES_8H || kind == LANES_8HM || kind == LANES_8HB;
}

static inline size_t lanes_scales(enum lanes_kind kind)
{
	return kind == LANES_8HM ? 2 * LANES_SCALES : LANES_SCALES;
}

/* Bytes of 32 inputs of a tile. */
static inline size_t lanes_group_bytes(enum kern_form form)
{
	return form == FORM_I8 ? sizeof(struct lanes_group) : (size_t)GROUP * KERN_TILE * (form == FORM_F32 ? 4 : 2);
}

/* Bytes of one group's quants. */
static inline size_t lanes_quants(enum lanes_kind kind)
{
	return kind == LANES_4M || kind == LANES_4 ? 256 : 512;
}

static inline size_t lanes_unit_bytes(enum lanes_kind kind)
{
	return lanes_scales(kind) + (size_t)lanes_unit_groups(kind) * lanes_quants(kind);
}

/* Units one after another. */
static inline struct lanes_units lanes_run(enum lanes_kind kind, const uint8_t *at)
{
	size_t bytes = lanes_unit_bytes(kind);

	return (struct lanes_units){ at, at + lanes_scales(kind), bytes, bytes, NULL };
}

/* log2 of the offset that makes a quant unsigned; 0: no offset. */
static inline int lanes_offset_bits(enum lanes_kind kind)
{
	return kind == LANES_4 ? 3 : kind == LANES_8 || kind == LANES_8HB ? 7 : kind == LANES_8H ? 5 : 0;
}

size_t lanes_block_bytes(int32_t type, int32_t k);
void   lanes_pack(int32_t type, int32_t k, const uint8_t *const src[KERN_COLS], uint8_t *dst);
void   lanes_unpack(int32_t type, int32_t k, const uint8_t *block, int32_t c, float *dst);
size_t lanes_tile_bytes(enum kern_form form, int32_t k);
void   lanes_make_rows(struct kern_rows *dst, const float *x, size_t ld, int32_t tile0, int32_t tile1);

/* As kvblock_store(), the same bytes, with vectors for bf16. */
void   lanes_kv_store(int32_t kv_type, int32_t E, int32_t at, const float *k, const float *v,
                      uint8_t *k_area, uint8_t *v_area);

/* The tables that use these.  Only pick.c refers to them: it tests what the machine can run. */
extern const struct kern avx2_table, avx512vnni_table, avx512_table;

#endif
