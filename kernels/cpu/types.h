/* types.h - how files store weights, row by row.  Every table packs from it, and the embedding
 * lookup reads it.  Source for the GGUF types: ggml's description of its block formats.
 */
#ifndef TYPES_H
#define TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define GROUP 32                  /* weights to a scale, whatever the stored type's block is */

/* How matrices whose scales lie apart are held; repack.c makes their rows.  A row is pieces of as many weights as
 * share a scale: HELD(kind, weights).  Quants are as in Q4_0 and Q8_0.
 *
 *	HELD_U4       d f16, z u8, nibbles: w = d (q - z)
 *	HELD_U4_ORDER the same, but weight i has d and z of the piece index[i] (act-order), and w is rounded to f16
 *	HELD_I8       d f16, int8
 *	HELD_F8       d f32, e4m3
 *	HELD_F8_BLOCK the same, where 16 outputs have one d
 *	HELD_NVFP4    d f32, then for 32 weights two scales in e4m3 and nibbles: w = d s e2m1
 */
enum { HELD_U4 = 64, HELD_U4_ORDER, HELD_I8, HELD_F8, HELD_F8_BLOCK, HELD_NVFP4 };
#define HELD(kind, weights) ((kind) | (weights) / GROUP << 8)
#define HELD_MOST ((1 << 22) * GROUP) /* weights of the longest piece */

static inline int32_t types_base(int32_t type)
{
	return type & 255;
}

/* Weights of a piece of a held type. */
static inline int32_t types_piece(int32_t type)
{
	return (type >> 8) * GROUP;
}

/* 32 consecutive weights of a quantized row: w[i] = d[i / 16] * q[i] + m[i / 16]. */
struct group {
	int8_t q[GROUP];
	float  d[2], m[2];            /* d[0] == d[1] and m[0] == m[1] unless the type is types_halves() */
};

/* Bytes of a held type before the quants of a piece, and of 32 quants; false: it is none. */
bool   types_held(int32_t type, size_t *head, size_t *quants);
size_t types_bytes(int32_t type, int32_t k);       /* of k stored weights; 0: not a type we read */
bool   types_quantized(int32_t type);              /* comes in groups; else one float per weight */
bool   types_halves(int32_t type);                 /* 16 weights to a scale, not 32 */
void   types_group(int32_t type, const uint8_t *row, int32_t g, struct group *out);
void   types_dequant(int32_t type, int32_t k, const uint8_t *row, float *dst);
/* The same of weights k0 .. k0 + 31; index: of HELD_U4_ORDER, for each weight of the row. */
void   types_dequant_group(int32_t type, const uint8_t *row, int32_t k0, const uint16_t *index, float *dst);
float  types_f32_of_f8(uint8_t v);                 /* e4m3: no infinity; 0x7f and 0xff are no numbers */

static inline float f32_of_bits(uint32_t u)
{
	float f;

	memcpy(&f, &u, 4);
	return f;
}

static inline uint32_t bits_of_f32(float f)
{
	uint32_t u;

	memcpy(&u, &f, 4);
	return u;
}

static inline float f32_of_bf16(uint16_t h)
{
	return f32_of_bits((uint32_t)h << 16);
}

/* Round to nearest even; a NaN stays one. */
static inline uint16_t bf16_of_f32(float f)
{
	uint32_t u = bits_of_f32(f);

	if ((u & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(u >> 16 | 64);
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* How 32 activations become int8: returns the factor, and in *scale its inverse, from the bits of the
 * largest magnitude.  A value that is not finite makes the scale NaN, and so the result. */
static inline float types_scale(uint32_t most_bits, float *scale)
{
	float most = f32_of_bits(most_bits);

	if (most_bits >= 0x7f800000) {
		*scale = f32_of_bits(0x7fc00000);
		return 0;
	}
	*scale = most / 127;
	return most > 1e-30f ? 127 / most : 0;    /* below, 127 / most might be infinite */
}

float    f32_of_f16(uint16_t h);
uint16_t f16_of_f32(float f);     /* to nearest even */

#endif
