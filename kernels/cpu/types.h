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

/* 32 consecutive weights of a quantized row: w[i] = d[i / 16] * q[i] + m. */
struct group {
	int8_t q[GROUP];
	float  d[2], m;               /* d[0] == d[1] unless the type is types_halves() */
};

size_t types_bytes(int32_t type, int32_t k);       /* of k stored weights; 0: not a type we read */
bool   types_quantized(int32_t type);              /* comes in groups; else one float per weight */
bool   types_halves(int32_t type);                 /* 16 weights to a scale, not 32 */
void   types_group(int32_t type, const uint8_t *row, int32_t g, struct group *out);
void   types_dequant(int32_t type, int32_t k, const uint8_t *row, float *dst);

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
