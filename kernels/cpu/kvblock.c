/* kvblock.c - stores a token in a KV block (see kvblock.h), and adds up spans of attention. */
#include "kvblock.h"

#include <math.h>

/* The finite bf16 that is stored for x. */
static uint16_t stored(float f)
{
	uint16_t h = bf16_of_f32(f), mag = h & 0x7fff;

	if (mag > 0x7f80)
		return 0;
	return mag == 0x7f80 ? (uint16_t)((h & 0x8000) | 0x7f7f) : h;
}

static float finite_of(float f)
{
	const float largest = f32_of_bits(0x7f7f0000);

	if (f != f)
		return 0;
	return f > largest ? largest : f < -largest ? -largest : f;
}

size_t kvblock_bytes(int32_t kv_type, int32_t E)
{
	if (E <= 0 || E % 16)
		return 0;
	switch (kv_type) {
	case SR_KV_BF16: return (size_t)E * KERN_BLOCK * 2;
	case SR_KV_F32:  return (size_t)E * KERN_BLOCK * 4;
	case SR_KV_I8:   return E <= 512 ? KV_SCALES + (size_t)E * KERN_BLOCK : 0;
	}
	return 0;
}

/* One token's k or v to int8 at to[i * step]. */
static void store_i8(int32_t E, int32_t at, const float *x, uint8_t *area, int8_t *q)
{
	float *scale = (float *)(void *)area + at, most = 0, by;

	for (int32_t e = 0; e < E; e++)
		most = fmaxf(most, fabsf(finite_of(x[e])));
	by = types_scale(bits_of_f32(most), scale);
	for (int32_t e = 0; e < E; e++)
		q[e] = (int8_t)rintf(finite_of(x[e]) * by);
}

void kvblock_store(int32_t kv_type, int32_t E, int32_t at, const float *k, const float *v,
                   uint8_t *k_area, uint8_t *v_area)
{
	uint16_t *kd = (uint16_t *)(void *)k_area, *vd = (uint16_t *)(void *)v_area;
	int8_t *ki = (int8_t *)k_area + KV_SCALES, *vi = (int8_t *)v_area + KV_SCALES, q[512];

	if (kv_type == SR_KV_I8) {
		store_i8(E, at, k, k_area, q);
		for (int32_t e = 0; e < E; e++)
			ki[kv_k_at(e, at)] = q[e];
		if (v)
			store_i8(E, at, v, v_area, q);
		for (int32_t e = 0; v && e < E; e++)
			vi[kv_v_at(E, e, at)] = q[e];
		return;
	}
	for (int32_t e = 0; kv_type == SR_KV_F32 && e < E; e++) {
		((float *)(void *)k_area)[kv_k_at(e, at)] = finite_of(k[e]);
		if (v)
			((float *)(void *)v_area)[kv_v_at(E, e, at)] = finite_of(v[e]);
	}
	for (int32_t e = 0; kv_type == SR_KV_BF16 && e < E; e++) {
		kd[kv_k_at(e, at)] = stored(k[e]);
		if (v)
			vd[kv_v_at(E, e, at)] = stored(v[e]);
	}
}

/* Eight bytes of a key line are elements 2i, 2i+1 of two tokens; those of a value line two tokens' element 2i,
 * then 2i+1.  So the two in the middle change places, and rows of eight become columns. */
void kvblock_turn(int32_t Ev, const uint8_t *k_area, uint8_t *v_area)
{
	const uint64_t *from = (const uint64_t *)(const void *)k_area;
	uint64_t *to = (uint64_t *)(void *)v_area;
	size_t pairs = (size_t)Ev / 2;

	for (size_t i = 0; i < pairs; i += 8)
		for (size_t j = 0; j < KERN_BLOCK / 2; j++)
			for (size_t n = i; n < i + 8; n++) {
				uint64_t x = from[n * (KERN_BLOCK / 2) + j];

				to[j * pairs + n] = (x & 0xffff00000000ffff) | (x >> 16 & 0xffff0000) |
				                    (x & 0xffff0000) << 16;
			}
}

void kern_join(float *older, const float *part, int32_t E)
{
	float max = fmaxf(older[0], part[0]), a = expf(older[0] - max), b = expf(part[0] - max);

	older[0] = max;
	older[1] = older[1] * a + part[1] * b;
	for (int32_t e = 16; e < 16 + E; e++)
		older[e] = older[e] * a + part[e] * b;
}
