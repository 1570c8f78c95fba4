/* made_up.h - weights that are in no file, for the canary's model and the benchmark's: an extent's file says what its
 * bytes are, and whoever reads it makes them. */
#ifndef CUDA_MADE_UP_H
#define CUDA_MADE_UP_H

#include "kernels/model.h"

enum made_of { BITS, BF16_SMALL, F16_SCALES, F32_ONES, E4M3_SMALL, F32_SCALES, MADE };

/* Byte i of an extent, of a random one; those of f32 are the same from each multiple of 4 on. */
static inline unsigned char made_byte(int of, size_t i, unsigned char random)
{
	static const float f32[2] = { 1, 0.01f };
	bool high = i % 2;

	switch (of) {
	case BF16_SMALL: return high ? 0x3c | (random & 0x80) : random;            /* +-0.01 */
	case F16_SCALES: return high ? 0x18 : random;                              /* 0.002 */
	case E4M3_SMALL: return random & 0xbf;                                     /* below 2 */
	case F32_ONES: return ((const unsigned char *)&f32[0])[i % 4];
	case F32_SCALES: return ((const unsigned char *)&f32[1])[i % 4];
	default: return random;
	}
}

static inline struct sr_extent made(enum made_of of, int64_t bytes)
{
	struct sr_extent e = { 0, (uint64_t)bytes, of };

	return e;
}

/* Of 4 bits only if k is a multiple of 32: else bf16. */
static inline struct sr_tensor made_tensor(int32_t type, int64_t n, int64_t k)
{
	struct sr_tensor t = {};

	if ((type == SR_AWQ4 || type == SR_NVFP4) && k % 32)
		type = SR_BF16;
	t.name = "made up";
	t.type = type;
	t.n = (int32_t)n;
	t.k = (int32_t)k;
	t.count = 1;
	switch (type) {
	case SR_F32:
		t.data = made(F32_ONES, n * k * 4);
		break;
	case SR_BF16:
		t.data = made(BF16_SMALL, n * k * 2);
		break;
	case SR_AWQ4:
		t.group = k % 128 ? 32 : 128;
		t.scale_type = SR_F16;
		t.data = made(BITS, n * k / 2);
		t.zero = made(BITS, k / t.group * n / 2);
		t.scale = made(F16_SCALES, k / t.group * n * 2);
		break;
	case SR_NVFP4:
		t.group = 16;
		t.data = made(BITS, n * k / 2);
		t.scale = made(E4M3_SMALL, n * k / 16);
		t.zero = made(F32_SCALES, 4);
		break;
	case SR_F8:
		t.group_n = 1;
		t.scale_type = SR_F32;
		t.data = made(E4M3_SMALL, n * k);
		t.scale = made(F32_SCALES, n * 4);
		break;
	}
	return t;
}

#endif
