/* packed.cuh - the layout of 4- and 8-bit matrices on the device.  It is the order in which the lanes of a
 * warp feed them to mma: the 16 bytes of one load are what the lane multiplies next.
 *
 *	matrix   [strips of 64 outputs][slabs of 32 inputs] tiles, each a strip times a slab
 *	tile     8 fragments of 8 outputs, WORDS words for each of 32 lanes; lane 4g + t has output g and
 *	         inputs 2t, 2t+1, 8+2t, 9+2t, and the same plus 16
 *	W4       one word: nibbles 0 .. 3 are inputs 2t, 8+2t, 16+2t, 24+2t; nibbles 4 .. 7 are each plus 1
 *	F4       as W4, of e2m1; only of experts
 *	N4       as W4, of e2m1 (NVFP4)
 *	W8       two words of e4m3: bytes are inputs 2t, 8+2t, 2t+1, 9+2t; in the second word plus 16
 *	scale    [groups][strips * 64], one word per output.  W4: s, b in f16, w = s (q - 8) + b;
 *	         W8, F4: f32.  A group is a whole number of slabs.  N4: two of bf16, of the first 16 inputs of a
 *	         slab and of the others, each an e4m3 times the same power of two; w = s q by[n], by in 1 .. 2
 *
 * Outputs that pad the last strip are zero, and so are their scales.
 */
#ifndef CUDA_PACKED_CUH
#define CUDA_PACKED_CUH

#include "ptx.cuh"
#include "weights.cuh"

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

/* ---- activations in 8 bits ------------------------------------------------------------- */

/* The kernel that makes a row also turns it into e4m3 and a scale (rows.cu); for attention a separate kernel does so
 * (packed_many_rows.cu).  Each 16 inputs are in the order of a packed matrix's bytes: 0, 8, 1, 9 | 2, 10, 3, 11 | ..
 *
 * value(i): input i of this block's row, rounded to bf16; it is called twice for each.  All threads of the
 * block call this; `scratch` has one float per warp. */
template <class F> static inline __device__ void quantize_row(F value, int32_t K, uint32_t *to, float *scale,
	float *scratch)
{
	float most = 0, by;

	for (int32_t i = (int32_t)threadIdx.x; i < K; i += (int32_t)blockDim.x)
		most = fmaxf(most, fabsf(value(i)));
	most = warp_max(most);
	__syncthreads(); /* the previous user of scratch may still read it */
	if (threadIdx.x % 32 == 0)
		scratch[threadIdx.x / 32] = most;
	__syncthreads();
	for (int i = 0; i < (int)blockDim.x / 32; i++)
		most = fmaxf(most, scratch[i]);
	by = most > 1e-30f ? 448 / most : 0;
	for (int32_t i = (int32_t)threadIdx.x; i < K / 4; i += (int32_t)blockDim.x) {
		int32_t k = i / 4 * 16 + i % 4 * 2;

		to[i] = e4m3_of(value(k) * by) | e4m3_of(value(k + 8) * by) << 8 |
			e4m3_of(value(k + 1) * by) << 16 | e4m3_of(value(k + 9) * by) << 24;
	}
	if (threadIdx.x == 0)
		*scale = most / 448;
}

/* ---- weights of 4 bits in e4m3 ---------------------------------------------------------- */

/* Any v of 0 .. 16 is, as bits of e4m3, the number v * 2^-9.  So q - z, of -16 .. 15, is its sign and its size: no
 * rounding.  This is what sums of such products are too small by. */
#define W4A8_SCALE 512.0f

/* 16 - z in each byte, of a word of scales: b / s is 8 - z. */
static inline __device__ uint32_t w4a8_offset(float2 scale)
{
	int z = scale.x != 0 ? (int)rintf(divide_fast(scale.y, scale.x)) : 0;

	return (uint32_t)(z + 8 < 0 ? 0 : z + 8 > 16 ? 16 : z + 8) * 0x01010101u;
}

/* Of the digits in the low halves of four bytes. */
static inline __device__ uint32_t e4m3_of_digits(uint32_t word, uint32_t offset)
{
	uint32_t v = (word & 0x0f0f0f0f) + offset, below = ~v >> 4 & 0x01010101; /* v is q - z + 16 */

	return ((v & 0x0f0f0f0f) ^ below * 15) + below * 0x81;
}

/* The eight weights of a word, as the two words that W8 has of the same inputs. */
static inline __device__ void e4m3_of_w4(uint32_t word, uint32_t offset, uint32_t &low, uint32_t &high)
{
	uint32_t even = e4m3_of_digits(word, offset), odd = e4m3_of_digits(word >> 4, offset);

	low = pick_bytes(even, odd, 0x6240);
	high = pick_bytes(even, odd, 0x7351);
}

/* ---- N4 -------------------------------------------------------------------------------- */

/* Weights of a word in bf16: b[0], b[1] of the first 16 inputs, b[2], b[3] of the others.  e2m1 times e4m3 has 6 bits:
 * nothing is rounded. */
static inline __device__ void bf16_of_n4(uint32_t word, uint32_t scale, uint32_t (&b)[4])
{
	uint32_t first = (scale & 0xffff) * 0x10001u, second = (scale >> 16) * 0x10001u;

#pragma unroll
	for (int i = 0; i < 4; i++)
		b[i] = mul_bf16_pair(bf16_of_e2m1(word >> 4 * i), i < 2 ? first : second);
}

/* ---- one element at a time ------------------------------------------------------------ */

/* A matrix in any of the forms that products read: for embeddings, and for the check at open, which holds every fast
 * kernel to plain sums over these. */
struct table { enum held held; const bf16 *mat; struct packed packed; };

/* Element i of row n: output n, input i. */
static inline __device__ float table_at(const struct table &t, int32_t n, int32_t i)
{
	const struct packed &p = t.packed;
	uint32_t scale, even, odd;
	float2 f;

	if (t.held == HELD_BF16)
		return f32_of(t.mat[(size_t)n * (size_t)p.K + (size_t)i]);
	scale = p.scale[(size_t)(i / SLAB / p.group) * (size_t)p.width + (size_t)n];
	if (t.held == HELD_W8) {
		bf16_of_e4m3(p.words[packed_at<2>(n, i, p.K)], even, odd);
		return f32_of((bf16)((byte_of(i) % 2 ? odd : even) >> byte_of(i) / 2 * 16)) * __uint_as_float(scale);
	}
	if (t.held == HELD_N4)
		return f32_of((bf16)(scale >> i % SLAB / 16 * 16)) * p.by[n] *
			f32_of((bf16)bf16_of_e2m1(p.words[packed_at<1>(n, i, p.K)] >> 4 * nibble_of(i)));
	f = f32_of_f16_pair(scale);
	return f.x * (float)((int)(p.words[packed_at<1>(n, i, p.K)] >> 4 * nibble_of(i) & 15) - 8) + f.y;
}

#endif
