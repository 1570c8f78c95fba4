/* packed.cuh - the layout of 4- and 8-bit matrices on the device.  It is the order in which the lanes of a
 * warp feed them to mma: the 16 bytes of one load are what the lane multiplies next.
 *
 *	matrix   [strips of 64 outputs][slabs of 32 inputs] tiles, each a strip times a slab
 *	tile     8 fragments of 8 outputs, WORDS words for each of 32 lanes; lane 4g + t has output g and
 *	         inputs 2t, 2t+1, 8+2t, 9+2t, and the same plus 16
 *	W4       one word: nibbles 0 .. 3 are inputs 2t, 8+2t, 16+2t, 24+2t; nibbles 4 .. 7 are each plus 1
 *	F4       as W4, of e2m1; only of experts
 *	W8       two words of e4m3: bytes are inputs 2t, 8+2t, 2t+1, 9+2t; in the second word plus 16
 *	scale    [groups][strips * 64], one word per output.  W4: s, b in f16, w = s (q - 8) + b;
 *	         W8, F4: f32.  A group is a whole number of slabs.
 *
 * Outputs that pad the last strip are zero, and so are their scales.
 */
#ifndef CUDA_PACKED_CUH
#define CUDA_PACKED_CUH

#include "ptx.cuh"

#define STRIP 64
#define SLAB  32
#define TILE_WORDS (STRIP * SLAB / 8)        /* times WORDS */

/* The index in a tile of word i (of WORDS) of fragment j, in lane `lane`. */
template <int WORDS> static inline __host__ __device__ int in_tile(int j, int i, int lane)
{
	int at = j * WORDS + i;

	return at / 4 * 128 + lane * 4 + at % 4;
}

/* The index of the word with output n and input k; t is the place of k in its lane's quarter. */
template <int WORDS> static inline __host__ __device__ size_t packed_at(int32_t n, int32_t k, int32_t K)
{
	size_t tile = (size_t)(n / STRIP) * (size_t)(K / SLAB) + (size_t)(k / SLAB);
	int lane = n % 8 * 4 + k % 8 / 2, word = WORDS == 2 ? k % 32 / 16 : 0;

	return tile * TILE_WORDS * WORDS + (size_t)in_tile<WORDS>(n % STRIP / 8, word, lane);
}

static inline __host__ __device__ int nibble_of(int32_t k)   /* nibble of input k in its word */
{
	return k % 32 / 8 + 4 * (k % 2);
}

static inline __host__ __device__ int byte_of(int32_t k)
{
	return k % 16 / 8 + 2 * (k % 2);
}

static inline __host__ __device__ float f32_of_f16(uint32_t h)
{
	uint32_t sign = (h & 0x8000) << 16, size = h & 0x7fff, u;
	float f;

	if (size < 0x400) {
		f = (float)size * 5.9604644775390625e-8f; /* 2^-24 */
		return sign ? -f : f;
	}
	u = sign | (size >= 0x7c00 ? 0x7f800000 | (size & 0x3ff) << 13 : (size << 13) + (112u << 23));
	memcpy(&f, &u, sizeof(f));
	return f;
}

/* Unpacks a word of scales. */
static inline __device__ float2 f32_of_f16_pair(uint32_t word)
{
#if defined(__CUDA_ARCH__)
	float2 r;

	asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
		: "=f"(r.x), "=f"(r.y) : "r"(word));
	return r;
#else
	return make_float2(f32_of_f16(word & 0xffff), f32_of_f16(word >> 16));
#endif
}

#endif
