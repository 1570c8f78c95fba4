/* hopper_many_rows.cu - y[T][N] = x[T][K] w[N][K]^T + bias for many rows on sm_90a: wgmma fed by TMA, w of
 * bf16, 4 or 8 bits.  matmul.cu and packed_many_rows.cu try it first; they have kernels for all GPUs.
 *
 * Operands   The weights are wgmma's left operand, 64 outputs per warpgroup, and tokens its columns.  So T
 *            fills tiles of 128 or 256 columns.  Only the left operand may come from registers, as weights of
 *            4 and 8 bits do.
 *
 *	                       tokens, 128 or 256
 *	             +------------------------------------+
 *	   outputs   | warpgroup 1: 64 outputs            |   a tile of y, transposed: its sums are in
 *	     128     +------------------------------------+   registers, TOKENS / 2 per thread
 *	             | warpgroup 2: the next 64           |
 *	             +------------------------------------+
 *
 * Ring       Slices of 128 bytes of x along K (64 of bf16, 128 of e4m3), each with its weights and scales.
 *
 *	warp 0     w, scales --TMA--> +---------+---------+---------+--       full: w and x are loaded
 *	warp 1     x ---------TMA---> | stage 0 | stage 1 | stage 2 | ..      empty: all 8 warps have read it
 *	warps 4-11             <----- +---------+---------+---------+--
 *
 *            Weights depend on no other kernel, so warp 0 fills the ring while the previous one still runs.
 *
 * bf16       Both operands come from shared memory.  One slice is multiplied while the products of the next
 *            one are queued.
 * W4         A lane's words (packed.cuh) are its registers of wgmma's left operand: row g of fragments 2w and
 *            2w + 1 becomes rows g and g + 8 of warp w.  So Hopper needs no separate layout.  A slice at a
 *            time is scaled and rounded to bf16 as in packed_many_rows.cu, while the other warpgroup
 *            multiplies.
 *            ptxas allows no write to an operand's register while a wgmma is in flight.
 * W8A8       The same layout, without a conversion; x is quantized as in packed_many_rows.cu.  The sums of a
 *            slice are scaled and added in other registers, because tensor cores keep few digits for e4m3.
 *            Groups are multiples of 128, or the whole row.
 * W4A8       W8A8 with weights of 4 bits, which become e4m3 exactly (packed.cuh), on request.
 *
 * Schedule   One block per multiprocessor.  Tiles are computed whole while every multiprocessor gets one.
 *            The remaining tiles are laid end to end and cut into equal stripes, so that all finish together.
 *            The last block to finish a part of a tile adds up its parts, in the order of K.
 */
#include "device.cuh"
#include "hopper.cuh"
#include "packed.cuh"
#include "product.cuh"

#define PRODUCERS 128                        /* threads: setmaxnreg works on whole warpgroups */
#define CONSUMERS 256
#define THREADS (PRODUCERS + CONSUMERS)
#define OUTPUTS 128
#define ROW 128                              /* bytes of x in a slice */
#define BAND 16                              /* tiles of outputs computed at the same time */
#define PARTS 4                              /* most parts per tile, because its last block reads all */
#define THIN 4                               /* least slices of a part */
#define SHARED_MOST ((size_t)227 << 10)

enum form { FORM_BF16, FORM_W4, FORM_W8A8, FORM_W4A8 };

template <enum form F_, int TOKENS_> struct tile_shape {
	static const enum form F = F_;
	static const int TOKENS = TOKENS_, SUMS = TOKENS / 2;
	static const bool X8 = F == FORM_W8A8 || F == FORM_W4A8;
	static const int DEPTH = X8 ? 128 : 64, SLABS = DEPTH / SLAB;
	static const int SCALES = F == FORM_BF16 ? 0 : F == FORM_W4 ? SLABS : 1; /* rows of scales per slice */
	static const size_t X = (size_t)TOKENS * ROW;
	static const size_t W = OUTPUTS * DEPTH * (F == FORM_BF16 ? 4 : F == FORM_W8A8 ? 2 : 1) / 2;
	static const size_t SCALE = (size_t)SCALES * OUTPUTS * sizeof(uint32_t), STAGE = X + W + SCALE;
	static const size_t ROOM = (SHARED_MOST - PATTERN - 256) / STAGE;
	static const int STAGES = ROOM < 8 ? ROOM : 8;
	static const size_t RING = STAGES * STAGE;
	static const size_t SHARED_BYTES = PATTERN + RING + 2 * STAGES * sizeof(uint64_t) + 16;
};

struct hopper_args {
	CUtensorMap x_map, w_map;                /* w_map: bf16 only */
	void *y;
	bool f32;
	struct packed w;                         /* the other types */
	const float *bias, *x_scale;             /* bias[N]; x_scale[T] for x in e4m3 */
	int32_t T, N, K;
	int32_t bands, columns, slices;          /* tiles of outputs; tiles of tokens; slices of K */
	int32_t whole, stripes;                  /* tiles computed whole; blocks that share the rest */
	uint32_t *arrived;                       /* [tiles of the rest]; zero between kernels */
	float *part;                             /* [stripes][2][SUMS][CONSUMERS] */
};

/* Slices from .. to-1 of a tile; `next`: the tile or the unit of work where the block continues. */
struct tile_slices { int32_t tile, from, to, next; };

#ifdef ON_HOPPER

/* ---- division of the work ------------------------------------------------------------- */

/* A unit is one slice of a tile that is not computed whole.  Stripe b begins at: */
static __device__ int32_t stripe(const hopper_args &a, int32_t b)
{
	int64_t units = (int64_t)(a.bands * a.columns - a.whole) * a.slices;

	return (int32_t)(units * b / a.stripes);
}

/* The stripe that has unit u. */
static __device__ int32_t stripe_of(const hopper_args &a, int32_t u)
{
	int64_t units = (int64_t)(a.bands * a.columns - a.whole) * a.slices;

	return (int32_t)(((int64_t)(u + 1) * a.stripes - 1) / units);
}

/* Steps through the work of the block, in the same order in every role.  False: no more work. */
static __device__ bool next_span(const hopper_args &a, tile_slices &k)
{
	int32_t end, block = (int32_t)blockIdx.x;

	if (k.next < a.whole) {
		k = { k.next, 0, a.slices, k.next + (int32_t)gridDim.x };
		if (k.next >= a.whole)
			k.next = block < a.stripes ? a.whole + stripe(a, block) : INT32_MAX;
		return true;
	}
	if (block >= a.stripes)
		return false;
	end = a.whole + stripe(a, block + 1);    /* from here on `next` is whole + unit */
	if (k.next >= end)
		return false;
	k.tile = a.whole + (k.next - a.whole) / a.slices;
	k.from = (k.next - a.whole) % a.slices;
	k.to = a.slices - k.from < end - k.next ? a.slices : k.from + end - k.next;
	k.next += k.to - k.from;
	return true;
}

static __device__ tile_slices first_span(const hopper_args &a)
{
	int32_t block = (int32_t)blockIdx.x;

	return { 0, 0, 0, block < a.whole ? block : block < a.stripes ? a.whole + stripe(a, block) : INT32_MAX };
}

/* The first output and token of a tile.  The order is BAND tiles of outputs by all tokens, then the next
 * band.  So at any time the multiprocessors read about as many rows of w as of x, which fit in L2. */
static __device__ void place_of(const hopper_args &a, int32_t tokens, int32_t tile, int32_t &output,
	int32_t &token)
{
	int32_t band = tile / (BAND * a.columns) * BAND, wide = a.bands - band < BAND ? a.bands - band : BAND;
	int32_t in = tile - band * a.columns;

	output = (band + in % wide) * OUTPUTS;
	token = in / wide * tokens;
}

/* ---- the ring ------------------------------------------------------------------------- */

struct turn { int32_t stage; uint32_t phase; };

template <class S> static __device__ void step(turn &t)
{
	if (++t.stage == S::STAGES) {
		t.stage = 0;
		t.phase ^= 1;
	}
}

template <class S> struct slice_ring {
	unsigned char *x, *w, *scale;
	uint64_t *full, *empty;
	uint32_t *word;                          /* shared by all consumers */

	__device__ slice_ring(unsigned char *shared)
	{
		x = shared + (-shared_address(shared) & (PATTERN - 1));
		w = x + S::STAGES * S::X;
		scale = w + S::STAGES * S::W;
		full = (uint64_t *)(x + S::RING);
		empty = full + S::STAGES;
		word = (uint32_t *)(empty + S::STAGES);
	}
};

/* Loads slice i of w and its scales, without strips and slabs that do not exist. */
template <class S> static __device__ void load_w(const hopper_args &a, const slice_ring<S> &r, const turn &t,
	int32_t output, int32_t i)
{
	const uint32_t tile_bytes = TILE_WORDS * (S::F == FORM_W8A8 ? 2 : 1) * sizeof(uint32_t);
	uint64_t *full = &r.full[t.stage];
	unsigned char *to = r.w + (size_t)t.stage * S::W, *scale = r.scale + (size_t)t.stage * S::SCALE;
	int32_t slab = i * S::SLABS, all = a.w.K / SLAB, n = all - slab < S::SLABS ? all - slab : S::SLABS;
	int32_t strips = a.w.width - output < OUTPUTS ? 1 : 2, rows = n < S::SCALES ? n : S::SCALES;

	if (S::F == FORM_BF16) {
		mbarrier_expect(full, S::W);
		tensor_load(to, &a.w_map, i * S::DEPTH, output, full);
		return;
	}
	mbarrier_expect(full, (uint32_t)(strips * n) * tile_bytes +
		(uint32_t)(rows * strips * STRIP) * (uint32_t)sizeof(uint32_t));
	for (int32_t s = 0; s < strips; s++)
		bulk_load(to + s * S::SLABS * (int32_t)tile_bytes, (const unsigned char *)a.w.words +
			((size_t)(output / STRIP + s) * (size_t)all + (size_t)slab) * tile_bytes,
			(uint32_t)n * tile_bytes, full);
	for (int32_t s = 0; s < rows; s++)
		bulk_load(scale + s * OUTPUTS * 4, a.w.scale + (size_t)((slab + s) / a.w.group) * (size_t)a.w.width +
			(size_t)output, (uint32_t)(strips * STRIP) * (uint32_t)sizeof(uint32_t), full);
}

/* One thread loads all weights, another all of x. */
template <class S> static __device__ void produce(const hopper_args &a, const slice_ring<S> &r, bool weights)
{
	turn t = { 0, 0 };

	for (tile_slices k = first_span(a); next_span(a, k);) {
		int32_t output, token;

		place_of(a, S::TOKENS, k.tile, output, token);
		for (int32_t i = k.from; i < k.to; i++, step<S>(t)) {
			mbarrier_wait(&r.empty[t.stage], t.phase ^ 1);
			if (weights) {
				load_w<S>(a, r, t, output, i);
			} else {
				mbarrier_expect(&r.full[t.stage], S::X);
				tensor_load(r.x + (size_t)t.stage * S::X, &a.x_map, i * S::DEPTH, token,
					&r.full[t.stage]);
			}
		}
	}
}

/* This warp has read that stage. */
template <class S> static __device__ void release(const slice_ring<S> &r, int32_t stage)
{
	__syncwarp();
	if (threadIdx.x % 32 == 0)
		mbarrier_arrive(&r.empty[stage]);
}

/* ---- products ------------------------------------------------------------------------- */

static __device__ int warpgroup()
{
	return (int)threadIdx.x / 128 - PRODUCERS / 128;
}

template <class S> static __device__ void multiply_bf16(float (&sum)[S::SUMS], const hopper_args &,
	const slice_ring<S> &r, turn &t, const tile_slices &k)
{
	int32_t before = 0;

	for (int32_t i = k.from; i < k.to; i++) {
		uint64_t w = operand(r.w + (size_t)t.stage * S::W + (size_t)warpgroup() * 64 * ROW);
		uint64_t x = operand(r.x + (size_t)t.stage * S::X);

		mbarrier_wait(&r.full[t.stage], t.phase);
		wgmma_fence();
#pragma unroll
		for (int j = 0; j < S::DEPTH / 16; j++)
			wgmma_bf16(sum, along(w, 32 * j), along(x, 32 * j), i > k.from || j > 0);
		wgmma_commit();
		wgmma_wait<1>();                 /* the previous slice is read */
		if (i > k.from)
			release<S>(r, before);
		before = t.stage;
		step<S>(t);
	}
	wgmma_wait<0>();
	release<S>(r, before);
}

/* Nibbles i of both words, scaled: rows g and g + 8 of wgmma's left operand. */
static __device__ uint32_t expanded(uint32_t word, int i, float2 f)
{
	uint32_t pair = (word >> 4 * i & 0x000f000f) | 0x43004300; /* 128 + q */

	return bf16_pair(__uint_as_float(pair << 16) * f.x + f.y, __uint_as_float(pair & 0xffff0000) * f.x + f.y);
}

static __device__ float2 scale_of(uint32_t word, bool there)
{
	float2 f = f32_of_f16_pair(there ? word : 0);

	return make_float2(f.x, f.y - 136 * f.x);
}

template <class S> static __device__ void multiply_w4(float (&sum)[S::SUMS], const hopper_args &a,
	const slice_ring<S> &r, turn &t, const tile_slices &k)
{
	int warp = (int)threadIdx.x / 32 % 4, lane = (int)threadIdx.x % 32;
	uint32_t left[2 * S::SLABS][4];

	for (int32_t i = k.from; i < k.to; i++) {
		const uint32_t *w = (const uint32_t *)(r.w + (size_t)t.stage * S::W) +
			warpgroup() * S::SLABS * TILE_WORDS + in_tile<1>(2 * warp, 0, lane);
		const uint32_t *scale = (const uint32_t *)(r.scale + (size_t)t.stage * S::SCALE) +
			warpgroup() * STRIP + 16 * warp + lane / 4;
		uint64_t x = operand(r.x + (size_t)t.stage * S::X);

		mbarrier_wait(&r.full[t.stage], t.phase);
#pragma unroll
		for (int s = 0; s < S::SLABS; s++) {
			bool there = (i * S::SLABS + s) * SLAB < a.w.K; /* else x is 0, so these are set to 0 */
			uint2 words = *(const uint2 *)(w + s * TILE_WORDS);
			float2 f = scale_of(scale[s * OUTPUTS], there), f8 = scale_of(scale[s * OUTPUTS + 8], there);

#pragma unroll
			for (int j = 0; j < 4; j++) {
				left[2 * s + j / 2][j % 2 * 2] = expanded(words.x, j, f);
				left[2 * s + j / 2][j % 2 * 2 + 1] = expanded(words.y, j, f8);
			}
		}
#pragma unroll
		for (int j = 0; j < 2 * S::SLABS; j++)
			keep_order(left[j]);
		wgmma_fence();
#pragma unroll
		for (int j = 0; j < 2 * S::SLABS; j++)
			wgmma_bf16(sum, left[j], along(x, 32 * j), i > k.from || j > 0);
		wgmma_commit();
		wgmma_wait<0>();                 /* the other warpgroup's products continue */
		release<S>(r, t.stage);
		step<S>(t);
	}
}

/* Of four bytes, the inputs of wgmma's left operand in rows g and g + 8: those of a slab, in e4m3.  Returns the
 * scales of both rows. */
template <class S> static __device__ float2 left_of(uint32_t (&left)[S::SLABS][4], const slice_ring<S> &r,
	const turn &t, int32_t inputs)
{
	int warp = (int)threadIdx.x / 32 % 4, lane = (int)threadIdx.x % 32;
	const int WORDS = S::F == FORM_W8A8 ? 2 : 1;
	const uint32_t *w = (const uint32_t *)(r.w + (size_t)t.stage * S::W) +
		warpgroup() * S::SLABS * WORDS * TILE_WORDS + in_tile<WORDS>(2 * warp, 0, lane);
	const uint32_t *scale = (const uint32_t *)(r.scale + (size_t)t.stage * S::SCALE) + warpgroup() * STRIP +
		16 * warp + lane / 4;

	if constexpr (S::F == FORM_W8A8) {
#pragma unroll
		for (int s = 0; s < S::SLABS; s++) {
			bool there = s * SLAB < inputs; /* else x is 0, and these must not be NaN */
			uint4 words = *(const uint4 *)(w + s * 2 * TILE_WORDS);

			left[s][0] = there ? words.x : 0;
			left[s][1] = there ? words.z : 0;
			left[s][2] = there ? words.y : 0;
			left[s][3] = there ? words.w : 0;
		}
		return make_float2(__uint_as_float(scale[0]), __uint_as_float(scale[8]));
	} else {
		float2 f = f32_of_f16_pair(scale[0]), f8 = f32_of_f16_pair(scale[8]);
		uint32_t offset = w4a8_offset(f), offset8 = w4a8_offset(f8);

#pragma unroll
		for (int s = 0; s < S::SLABS; s++) {
			uint2 words = *(const uint2 *)(w + s * TILE_WORDS);

			e4m3_of_w4(words.x, offset, left[s][0], left[s][2]);
			e4m3_of_w4(words.y, offset8, left[s][1], left[s][3]);
		}
		return make_float2(f.x * W4A8_SCALE, f8.x * W4A8_SCALE);
	}
}

template <class S> static __device__ void multiply_x8(float (&sum)[S::SUMS], const hopper_args &a,
	const slice_ring<S> &r, turn &t, const tile_slices &k)
{
	float part[S::SUMS];
	uint32_t left[S::SLABS][4];

#pragma unroll
	for (int j = 0; j < S::SUMS; j++)
		sum[j] = 0;
	for (int32_t i = k.from; i < k.to; i++) {
		uint64_t x = operand(r.x + (size_t)t.stage * S::X);
		float2 f;

		mbarrier_wait(&r.full[t.stage], t.phase);
		f = left_of<S>(left, r, t, a.w.K - i * S::DEPTH);
		if (S::F == FORM_W4A8) {
#pragma unroll
			for (int s = 0; s < S::SLABS; s++)
				keep_order(left[s]);
		}
		wgmma_fence();
#pragma unroll
		for (int s = 0; s < S::SLABS; s++)
			wgmma_e4m3(part, left[s], along(x, 32 * s), s > 0);
		wgmma_commit();
		wgmma_wait<0>();
		keep_order(part);
		release<S>(r, t.stage);
		step<S>(t);
#pragma unroll
		for (int j = 0; j < S::SUMS; j++)
			sum[j] += part[j] * (j / 2 % 2 ? f.y : f.x);
	}
}

/* ---- parts of a tile ------------------------------------------------------------------ */

template <class S> static __device__ float *part_at(const hopper_args &a, int32_t block, int32_t tile)
{
	int32_t second = tile - a.whole != stripe(a, block) / a.slices; /* 0 or 1: a stripe has parts of at
	                                                                   most two tiles */

	return a.part + (size_t)(2 * block + second) * S::SUMS * CONSUMERS + (threadIdx.x - PRODUCERS);
}

/* Stores the part of this block.  Returns true in all consumers of the last block to do so, whose sums are
 * then those of the tile. */
template <class S> static __device__ bool add_parts(float (&sum)[S::SUMS], const hopper_args &a,
	const slice_ring<S> &r, const tile_slices &k)
{
	int32_t unit = (k.tile - a.whole) * a.slices;
	int32_t first = stripe_of(a, unit), last = stripe_of(a, unit + a.slices - 1);
	float *mine = part_at<S>(a, (int32_t)blockIdx.x, k.tile);
	uint32_t *arrived = &a.arrived[k.tile - a.whole];

#pragma unroll
	for (int j = 0; j < S::SUMS; j++)
		mine[j * CONSUMERS] = sum[j];
	__threadfence();
	barrier_sync(1, CONSUMERS);
	if (threadIdx.x == PRODUCERS) {
		*r.word = atomicAdd(arrived, 1u) == (uint32_t)(last - first);
		if (*r.word)
			*arrived = 0;
	}
	barrier_sync(1, CONSUMERS);
	__threadfence();
	if (!*r.word)
		return false;
#pragma unroll
	for (int j = 0; j < S::SUMS; j++)
		sum[j] = 0;
	for (int32_t b = first; b <= last; b++) {
		const volatile float *part = part_at<S>(a, b, k.tile);

#pragma unroll
		for (int j = 0; j < S::SUMS; j++)
			sum[j] += part[j * CONSUMERS];
	}
	return true;
}

/* ---- storing y ------------------------------------------------------------------------ */

/* bf16: two 8x8 blocks of tokens by the 16 outputs of the warp.  Once transposed, each of a lane's four
 * words has two outputs of a token.  Transposed again, a lane has all 8 outputs of one half: 16 bytes. */
static __device__ void put_bf16(const float *sum, const hopper_args &a, int32_t output, int32_t token)
{
	int t = (int)threadIdx.x % 4, g = (int)threadIdx.x % 32 / 4;
	uint32_t w[4];

#pragma unroll
	for (int i = 0; i < 4; i++)
		w[i] = movmatrix_trans(bf16_pair(sum[2 * i], sum[2 * i + 1]));
	transpose_four(w);
	token += t / 2 * 8 + g;
	output += t % 2 * 8;
	if (token >= a.T || output >= a.N)
		return;
	bf16 *y = (bf16 *)a.y + (size_t)token * (size_t)a.N + output;

	if (a.N % 8 == 0) {
		*(uint4 *)y = make_uint4(w[0], w[1], w[2], w[3]);
		return;
	}
#pragma unroll
	for (int i = 0; i < 8; i++)
		if (output + i < a.N)
			y[i] = (bf16)(w[i / 2] >> 16 * (i % 2));
}

template <class S> static __device__ void put_tile(float (&sum)[S::SUMS], const hopper_args &a,
	int32_t output, int32_t token)
{
	int lane = (int)threadIdx.x % 32, t = lane % 4, g = lane / 4;
	float bias[2];

	output += (int32_t)(threadIdx.x - PRODUCERS) / 32 * 16;
#pragma unroll
	for (int h = 0; h < 2; h++)
		bias[h] = a.bias && output + 8 * h + g < a.N ? a.bias[output + 8 * h + g] : 0;
#pragma unroll
	for (int j = 0; j < S::TOKENS / 8; j++) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int32_t r = token + 8 * j + 2 * t + i % 2, c = output + g + i / 2 * 8;
			float &v = sum[4 * j + i];

			if (S::X8)
				v *= r < a.T ? a.x_scale[r] : 0;
			v += bias[i / 2];
			if (a.f32 && r < a.T && c < a.N)
				((float *)a.y)[(size_t)r * (size_t)a.N + c] = v;
		}
		if (!a.f32 && j % 2)
			put_bf16(&sum[4 * (j - 1)], a, output, token + 8 * (j - 1));
	}
}

template <class S> static __device__ void consume(const hopper_args &a, const slice_ring<S> &r)
{
	float sum[S::SUMS];
	turn t = { 0, 0 };

	for (tile_slices k = first_span(a); next_span(a, k);) {
		int32_t output, token;

		keep_order(sum);
		if constexpr (S::F == FORM_BF16)
			multiply_bf16<S>(sum, a, r, t, k);
		else if constexpr (S::F == FORM_W4)
			multiply_w4<S>(sum, a, r, t, k);
		else
			multiply_x8<S>(sum, a, r, t, k);
		keep_order(sum);
		if (k.to - k.from < a.slices && !add_parts<S>(sum, a, r, k))
			continue;
		place_of(a, S::TOKENS, k.tile, output, token);
		put_tile<S>(sum, a, output, token);
	}
}

#endif

/* grid: the number of blocks from schedule() */
template <class S> static __global__ void __launch_bounds__(THREADS, 1)
hopper_many_kernel(const __grid_constant__ struct hopper_args a)
{
#ifdef ON_HOPPER
	let_next_start();
	SHARED(shared);
	slice_ring<S> r(shared);

	if (threadIdx.x == 0) {
		for (int s = 0; s < S::STAGES; s++) {
			mbarrier_init(&r.full[s], 2); /* both producers */
			mbarrier_init(&r.empty[s], CONSUMERS / 32);
		}
		mbarrier_fence_init();
		tensor_prefetch(&a.x_map);
		if (S::F == FORM_BF16)
			tensor_prefetch(&a.w_map);
	}
	__syncthreads();
	if (threadIdx.x < PRODUCERS) {
		registers_down<40>();
		if (threadIdx.x == 0)
			produce<S>(a, r, true);
		wait_for_previous();             /* only weights are read before it */
		if (threadIdx.x == 32)
			produce<S>(a, r, false);
	} else {
		registers_up<232>();
		wait_for_previous();
		consume<S>(a, r);
	}
#else
	not_hopper();
#endif
}

/* ---- choice of kernel ----------------------------------------------------------------- */

typedef tile_shape<FORM_BF16, 128> bf16_128;
typedef tile_shape<FORM_BF16, 256> bf16_256;
typedef tile_shape<FORM_W4, 128> w4_128;
typedef tile_shape<FORM_W4, 256> w4_256;
typedef tile_shape<FORM_W8A8, 128> w8a8_128;
typedef tile_shape<FORM_W4A8, 128> w4a8_128;

template <class S> static bool allow(struct dev *d)
{
	return cuda_ok(d, allow_shared(hopper_many_kernel<S>, S::SHARED_BYTES), "matmul on Hopper");
}

bool hopper_many_rows_prepare(struct dev *d)
{
	size_t counts = (size_t)d->gpu.processors * sizeof(uint32_t);

	if (!d->product.hopper_work)
		return true;
	return cuda_ok(d, cudaMemsetAsync(d->product.hopper_work, 0, counts, d->stream),
			"clear counts of tiles") &&
	       allow<bf16_128>(d) && allow<bf16_256>(d) && allow<w4_128>(d) && allow<w4_256>(d) &&
	       allow<w8a8_128>(d) && allow<w4a8_128>(d);
}

static size_t counts_bytes(const struct dev *d)
{
	return ((size_t)d->gpu.processors * sizeof(uint32_t) + 255) / 256 * 256;
}

size_t hopper_work_bytes(const struct dev *d)
{
	if (!can_hopper(d->gpu.capability) || d->deterministic)
		return 0;
	return counts_bytes(d) + (size_t)d->gpu.processors * 2 * bf16_256::SUMS * CONSUMERS * sizeof(float);
}

/* Decides which tiles are computed whole and how many blocks share the rest; returns the number of blocks. */
template <class S> static int32_t schedule(const struct dev *d, struct hopper_args *a)
{
	int32_t tiles, rest, units;

	a->bands = (a->N + OUTPUTS - 1) / OUTPUTS;
	a->columns = (a->T + S::TOKENS - 1) / S::TOKENS;
	a->slices = (a->K + S::DEPTH - 1) / S::DEPTH;
	tiles = a->bands * a->columns;
	rest = tiles % d->gpu.processors;
	if (rest * 10 > d->gpu.processors * 9)       /* above 90% parts would cost more than they save */
		rest = 0;
	a->whole = tiles - rest;
	units = rest * a->slices;
	a->stripes = rest * PARTS < d->gpu.processors ? rest * PARTS : d->gpu.processors;
	if (a->stripes > units / THIN)
		a->stripes = units / THIN > rest ? units / THIN : rest;
	return a->whole > a->stripes ? a->whole < d->gpu.processors ? a->whole : d->gpu.processors : a->stripes;
}

template <class S> static void launch(struct dev *d, struct hopper_args *a, const void *x, const bf16 *w)
{
	int32_t blocks = schedule<S>(d, a);

	if (cuda_ok(d, tensor_map(&a->x_map, !S::X8, x, a->K, a->T, S::TOKENS),
			"describe activations") &&
	    (!w || cuda_ok(d, tensor_map(&a->w_map, true, w, a->K, a->N, OUTPUTS), "describe weights")))
		cuda_ok(d, start(hopper_many_kernel<S>, (unsigned)blocks, THREADS, S::SHARED_BYTES, d->stream, *a),
			"matmul on Hopper");
}

/* Are tiles of 256 tokens better?  They read less of w per token, but the last one may be emptier. */
static bool wide(int32_t T)
{
	return (T + 255) / 256 * (256 + OUTPUTS / 2) <= (T + 127) / 128 * (128 + OUTPUTS / 2);
}

/* x is in bf16, or where uses_x8() and for weights of 8 bits in e4m3 with d->product.x8_scale.  False: it cannot do
 * this product. */
bool hopper_many_rows(struct dev *d, void *y, bool f32, const void *x, const struct weight *w, int T)
{
	struct hopper_args a = {};

	if (!d->product.hopper_work || !has(d, SPECIAL_HOPPER_MANY) || w->held == HELD_N4 || (w->held == HELD_W8 && w->packed.group % w8a8_128::SLABS &&
			w->packed.group * SLAB != w->k))
		return false;
	a.y = y;
	a.f32 = f32;
	a.w = w->packed;
	a.bias = w->bias;
	a.x_scale = d->product.x8_scale;
	a.T = T;
	a.N = w->n;
	a.K = w->k;
	a.arrived = (uint32_t *)d->product.hopper_work;
	a.part = (float *)(d->product.hopper_work + counts_bytes(d));
	if (w->held == HELD_W8)
		launch<w8a8_128>(d, &a, x, NULL);
	else if (uses_x8(d, w))
		launch<w4a8_128>(d, &a, x, NULL);
	else if (w->held == HELD_W4 && wide(T))
		launch<w4_256>(d, &a, x, NULL);
	else if (w->held == HELD_W4)
		launch<w4_128>(d, &a, x, NULL);
	else if (wide(T))
		launch<bf16_256>(d, &a, x, w->mat);
	else
		launch<bf16_128>(d, &a, x, w->mat);
	return true;
}
