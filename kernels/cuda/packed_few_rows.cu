/* packed_few_rows.cu - y[T][N] = x[T][K] w[N][K]^T + bias for up to 64 rows, w of 4 or 8 bits (packed.cuh).
 * The aim is the time that reading w takes.
 *
 * Stripes  As in stripes.cuh; a unit is KWARPS slabs of a tile of COLS outputs.
 * Warps    NWARPS divide the outputs of a tile; KWARPS divide the inputs of the block's part of it.  The
 *          weights of a warp come through its own ring in shared memory; x is shared.
 * Weights  They are not scaled before the product.  W4: 128 + q is the bf16 0x4300 | q, so a pair takes a
 *          shift and one logic operation.  The sums of (128 + q) x and of x, which an mma by ones makes, are
 *          scaled in f32 at the end of a group.  So w = s (q - 8) + b is never rounded.  W8: e4m3 is
 *          converted to bf16 exactly, and x is not changed.  The order of weights and the stripes are those
 *          of Marlin (arXiv 2408.11743).
 *
 * A row's sum depends on which kernel ran and on the number of multiprocessors, not on the other rows.
 */
#include "device.cuh"
#include "packed.cuh"
#include "product.cuh"
#include "stripes.cuh"

#define THREADS 256
#define ONES 0x3f803f80u                     /* two bf16 */

template <int ROWS_, int WORDS_> struct few {
	static const int ROWS = ROWS_, WORDS = WORDS_, M = ROWS / 16, N = STRIP / 8;
	static const int H = M < 4 ? 1 : M;      /* fragments of M at a time; weights are expanded M / H times */
	static const int NWARPS = ROWS == 64 ? 4 : 2, KWARPS = THREADS / 32 / NWARPS, COLS = STRIP * NWARPS;
	static const bool HOLD = M == 1;         /* the sums of a whole group fit in registers; else those of a
	                                            slab */
	static const int BLOCKS = M <= 2 ? 2 : 1; /* per multiprocessor */
	static const int PITCH = KWARPS * SLAB + 8;
	static const size_t X = (size_t)ROWS * PITCH * sizeof(bf16);
	static const size_t W = (size_t)WORDS * TILE_WORDS * sizeof(uint32_t), SCALE = STRIP * sizeof(uint32_t);
	static const size_t STAGE = X + NWARPS * KWARPS * (W + SCALE), SUMS = (size_t)ROWS * COLS * sizeof(float);
	static const int STAGES = 4 * STAGE <= 96 << 10 ? 4 : 3; /* some GPUs have 99 KiB */
	static const size_t RING = STAGES * STAGE;
	static const size_t SHARED_BYTES = (RING > SUMS ? RING : SUMS) + 16;
};

struct packed_few_args {
	void *y;
	bool f32;
	const bf16 *x;
	struct packed w;
	const float *bias;
	int32_t T;
	float *part;                             /* [blocks][2][ROWS][COLS] */
	uint32_t *arrived;                       /* [tiles]; zero between kernels */
};

/* The part of a tile that a block computes: slabs from .. to-1, `steps` for each of its KWARPS. */
struct tile_slabs { int32_t tile, from, to, steps; };

/* ---- the ring ------------------------------------------------------------------------- */

/* Is this the slab after which a warp scales its sums? */
template <class S> static __device__ bool ends(const packed_few_args &a, int32_t slab, int32_t end)
{
	return !S::HOLD || (slab + 1) % a.w.group == 0 || slab + 1 == end;
}

/* Starts to copy step i of this warp's weights and scales, which depend on no other kernel. */
template <class S> static __device__ void load_w(unsigned char *stage, const packed_few_args &a,
	const struct tile_slabs &k, int32_t i)
{
	int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
	int32_t slab = k.from + warp % S::KWARPS * k.steps + i, strip = k.tile * S::NWARPS + warp / S::KWARPS;
	int32_t end = k.from + (warp % S::KWARPS + 1) * k.steps, slabs = a.w.K / SLAB;
	bool there = slab < k.to && strip < a.w.width / STRIP;
	unsigned char *w = stage + S::X + (size_t)warp * S::W, *scale = stage + S::X + THREADS / 32 * S::W;
	size_t tile = (size_t)strip * (size_t)slabs + (size_t)slab;

#pragma unroll
	for (int q = 0; q < 2 * S::WORDS; q++)
		cp_async_16_once(w + q * 512 + lane * 16,
			there ? a.w.words + tile * TILE_WORDS * S::WORDS + (size_t)(q * 128 + lane * 4) :
			a.w.words, there);
	if (there && ends<S>(a, slab, end < k.to ? end : k.to) && lane < STRIP / 4)
		cp_async_16(scale + warp * S::SCALE + lane * 16,
			a.w.scale + (size_t)(slab / a.w.group) * (size_t)a.w.width + strip * STRIP + lane * 4, true);
}

/* The same for x, which all warps read. */
template <class S> static __device__ void load_x(unsigned char *stage, const packed_few_args &a,
	const struct tile_slabs &k, int32_t i)
{
	const int CHUNKS = S::KWARPS * SLAB / 8; /* of 16 bytes, per row of x */
	int c = (int)threadIdx.x % CHUNKS * 8;
	int32_t at = k.from + c / SLAB * k.steps + i;

#pragma unroll 1
	for (int r = (int)threadIdx.x / CHUNKS; r < S::ROWS; r += THREADS / CHUNKS) {
		bool row = r < a.T && at < k.to;

		cp_async_16((bf16 *)stage + r * S::PITCH + c,
			row ? a.x + (size_t)r * (size_t)a.w.K + at * SLAB + c % SLAB : a.x, row);
	}
}

/* ---- sums ----------------------------------------------------------------------------- */

template <class S> struct sums {
	float all[S::M][S::N][4];                /* scaled */
	float part[S::H][S::HOLD ? S::N : 1][4]; /* of this group, not yet scaled */
	float x[S::H][4];                        /* W4: sums of x over this group, in every column */
};

/* The weights of one fragment as bf16: b[0], b[1] for the first 16 inputs, b[2], b[3] for the others. */
template <class S> static __device__ void expand(const uint32_t *word, uint32_t (&b)[4])
{
	if (S::WORDS == 1) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			b[i] = (word[0] >> 4 * i & 0x000f000f) | 0x43004300;
	} else {
		bf16_of_e4m3(word[0], b[0], b[1]);
		bf16_of_e4m3(word[S::WORDS - 1], b[2], b[3]);
	}
}

/* all += part, scaled, for fragments n of rows from m0; part[..][at] is reset. */
template <class S> static __device__ void fold(sums<S> &sum, int m0, int n, int at, const uint32_t *scale)
{
	int t = (int)threadIdx.x % 4;

#pragma unroll
	for (int c = 0; c < 2; c++) {
		uint32_t word = scale[8 * n + 2 * t + c];
		float2 f = S::WORDS == 1 ? f32_of_f16_pair(word) : make_float2(__uint_as_float(word), 0);
		float b = f.y - 136 * f.x;

#pragma unroll
		for (int m = 0; m < S::H; m++)
#pragma unroll
			for (int h = 0; h < 4; h += 2) {
				float v = f.x * sum.part[m][at][h + c];

				if (S::WORDS == 1)
					v += b * sum.x[m][h];
				sum.all[m0 + m][n][h + c] += v;
				sum.part[m][at][h + c] = 0;
			}
	}
}

/* Rows m0 .. m0 + H - 1 of fragments times one slab of this warp. */
template <class S> static __device__ void multiply(sums<S> &sum, const unsigned char *stage, int m0,
	bool over)
{
	int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
	const bf16 *x = (const bf16 *)stage + (16 * m0 + lane % 16) * S::PITCH + warp % S::KWARPS * SLAB +
		lane / 16 * 8;
	const uint4 *w = (const uint4 *)(stage + S::X + (size_t)warp * S::W) + lane;
	const uint32_t *scale = (const uint32_t *)(stage + S::X + THREADS / 32 * S::W + warp * S::SCALE);
	uint32_t a[S::H][2][4];

#pragma unroll
	for (int m = 0; m < S::H; m++)
#pragma unroll
		for (int c = 0; c < 2; c++) {
			ldmatrix_x4(a[m][c], x + 16 * m * S::PITCH + 16 * c);
			if (S::WORDS == 1)
				mma_bf16(sum.x[m], a[m][c], ONES, ONES);
		}
#pragma unroll
	for (int q = 0; q < 2 * S::WORDS; q++) {
		uint4 four = w[32 * q];
		uint32_t word[4] = { four.x, four.y, four.z, four.w };

#pragma unroll
		for (int i = 0; i < 4; i += S::WORDS) {
			int n = (4 * q + i) / S::WORDS, at = S::HOLD ? n : 0;
			uint32_t b[4];

			expand<S>(word + i, b);
#pragma unroll
			for (int m = 0; m < S::H; m++) {
				mma_bf16(sum.part[m][at], a[m][0], b[0], b[1]);
				mma_bf16(sum.part[m][at], a[m][1], b[2], b[3]);
			}
			if (over)
				fold<S>(sum, m0, n, at, scale);
		}
	}
#pragma unroll
	for (int m = 0; m < S::H; m++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			sum.x[m][j] = over ? 0 : sum.x[m][j];
}

/* The warps that divide K add their sums in shared memory, in order of warps. */
template <class S> static __device__ void add_warps(const sums<S> &sum, float *tile)
{
	int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;

	tile += lane / 4 * S::COLS + warp / S::KWARPS * STRIP + lane % 4 * 2;
	for (int k = 0; k < S::KWARPS; k++) {
		__syncthreads(); /* the ring is free, and warp k - 1 has added */
		if (warp % S::KWARPS != k)
			continue;
#pragma unroll
		for (int m = 0; m < S::M; m++)
#pragma unroll
			for (int n = 0; n < S::N; n++)
#pragma unroll
				for (int j = 0; j < 4; j++) {
					float *to = &tile[(16 * m + j / 2 * 8) * S::COLS + 8 * n + j % 2];

					*to = k ? *to + sum.all[m][n][j] : sum.all[m][n][j];
				}
	}
	__syncthreads();
}

/* ---- stripes -------------------------------------------------------------------------- */

/* The address of part i of a tile, which its block stores. */
template <class S> static __device__ float *part_of(const packed_few_args &a, uint32_t block, bool first)
{
	return part_at(a.part, (size_t)S::ROWS * S::COLS, block, first);
}

template <class S> static __device__ void put_tile(const packed_few_args &a, int32_t tile, const float *sum,
	float *part)
{
#pragma unroll 1
	for (int32_t i = (int32_t)threadIdx.x; i < S::ROWS * S::COLS; i += THREADS) {
		int32_t r = i / S::COLS, c = tile * S::COLS + i % S::COLS;

		if (r >= a.T || c >= a.w.N)
			continue;
		if (part)
			part[i] = sum[i];
		else
			put_one(a.y, a.f32, (size_t)r * (size_t)a.w.N + (size_t)c,
				sum[i] + (a.bias ? a.bias[c] : 0));
	}
}

template <class S> static __device__ void add_parts(const packed_few_args &a, int32_t tile, uint32_t first,
	uint32_t last)
{
#pragma unroll 1
	for (int32_t i = (int32_t)threadIdx.x; i < S::ROWS * S::COLS; i += THREADS) {
		int32_t r = i / S::COLS, c = tile * S::COLS + i % S::COLS;
		float sum = 0;

		if (r >= a.T || c >= a.w.N)
			continue;
		for (uint32_t b = first; b <= last; b++)
			sum += ((const volatile float *)part_of<S>(a, b, b == first))[i];
		put_one(a.y, a.f32, (size_t)r * (size_t)a.w.N + (size_t)c, sum + (a.bias ? a.bias[c] : 0));
	}
}

template <class S> static __device__ void multiply_span(const packed_few_args &a, const struct tile_slabs &k,
	unsigned char *ring)
{
	sums<S> sum = {};
	int32_t kwarp = (int32_t)threadIdx.x / 32 % S::KWARPS;
	int32_t first = k.from + kwarp * k.steps, end = first + k.steps < k.to ? first + k.steps : k.to;

	for (int32_t i = 0; i < S::STAGES - 1 && i < k.steps; i++)
		load_w<S>(ring + i * S::STAGE, a, k, i);
	wait_for_previous();             /* returns at once, except in a block's first span */
#pragma unroll 1
	for (int32_t i = 0; i < S::STAGES - 1; i++) {
		if (i < k.steps)
			load_x<S>(ring + i * S::STAGE, a, k, i);
		cp_async_commit();       /* the first group has all loads of weights so far */
	}
#pragma unroll 1
	for (int32_t i = 0; i < k.steps; i++) {
		int32_t ahead = i + S::STAGES - 1;

		cp_async_wait<S::STAGES - 2>();
		__syncthreads(); /* step i is visible to all warps, and step i - 1 is free */
		if (ahead < k.steps) {
			load_w<S>(ring + ahead % S::STAGES * S::STAGE, a, k, ahead);
			load_x<S>(ring + ahead % S::STAGES * S::STAGE, a, k, ahead);
		}
		cp_async_commit();
		if (first + i >= end)
			continue;
#pragma unroll
		for (int m = 0; m < S::M; m += S::H)
			multiply<S>(sum, ring + i % S::STAGES * S::STAGE, m, ends<S>(a, first + i, end));
	}
	add_warps<S>(sum, (float *)ring);
}

/* Units (KWARPS slabs of a tile): per tile, then in all. */
template <class S> static __device__ uint32_t units_of(const packed_few_args &a)
{
	return (uint32_t)(a.w.K / SLAB + S::KWARPS - 1) / S::KWARPS;
}

template <class S> static __device__ uint32_t all_units(const packed_few_args &a)
{
	return (uint32_t)(a.w.width + S::COLS - 1) / S::COLS * units_of<S>(a);
}

/* The part of this block in the tile after k's, or in its first tile.  False: none. */
template <class S> static __device__ bool next_span(const packed_few_args &a, struct tile_slabs &k)
{
	uint32_t units = units_of<S>(a), all = all_units<S>(a), from = first_unit(all, blockIdx.x);
	uint32_t to = first_unit(all, blockIdx.x + 1), begin;

	k.tile = k.tile < 0 ? (int32_t)(from / units) : k.tile + 1;
	begin = (uint32_t)k.tile * units;
	from = from > begin ? from - begin : 0;
	if (begin + from >= to)
		return false;
	to = to - begin < units ? to - begin : units;
	k.from = (int32_t)from * S::KWARPS;
	k.to = (int32_t)to * S::KWARPS < a.w.K / SLAB ? (int32_t)to * S::KWARPS : a.w.K / SLAB;
	k.steps = (k.to - k.from + S::KWARPS - 1) / S::KWARPS;
	return true;
}

template <class S> static __global__ void __launch_bounds__(THREADS, S::BLOCKS)
packed_few_kernel(struct packed_few_args a)
{
	SHARED(shared);
	float *tile_sums = (float *)shared;
	uint32_t *word = (uint32_t *)(shared + S::SHARED_BYTES - 16);
	struct tile_slabs k;
	uint32_t parts, first;

	let_next_start();
	for (k.tile = -1; next_span<S>(a, k); __syncthreads()) { /* the sums are read: the ring can be reused */
		multiply_span<S>(a, k, shared);
		parts = parts_of(all_units<S>(a), units_of<S>(a), (uint32_t)k.tile, first);
		if (parts == 1) {
			put_tile<S>(a, k.tile, tile_sums, NULL);
			continue;
		}
		put_tile<S>(a, k.tile, tile_sums, part_of<S>(a, blockIdx.x, blockIdx.x == first));
		if (arrive(&a.arrived[k.tile], parts, word))
			add_parts<S>(a, k.tile, first, first + parts - 1);
	}
}

/* ---- choice of kernel ----------------------------------------------------------------- */

/* The number of blocks that fit on all multiprocessors. */
template <class S> static int32_t blocks_of(const struct dev *d)
{
	bool all = d->gpu.shared_bytes >= (int32_t)(2 * (S::SHARED_BYTES + 1024));

	return d->gpu.processors * (all ? S::BLOCKS : 1);
}

size_t packed_part_bytes(const struct dev *d)
{
	size_t few_rows = (size_t)d->gpu.processors * 2 * 2 * few<32, 1>::SUMS;
	size_t more_rows = (size_t)d->gpu.processors * 2 * few<64, 1>::SUMS;

	return few_rows > more_rows ? few_rows : more_rows;
}

template <class S> static bool allow(struct dev *d)
{
	return cuda_ok(d, allow_shared(packed_few_kernel<S>, S::SHARED_BYTES),
		"matmul of packed weights, few rows");
}

bool packed_few_rows_prepare(struct dev *d)
{
	return allow<few<16, 1>>(d) && allow<few<32, 1>>(d) && allow<few<64, 1>>(d) &&
	       allow<few<16, 2>>(d) && allow<few<32, 2>>(d) && allow<few<64, 2>>(d);
}

template <class S> static void product(struct dev *d, struct packed_few_args &a)
{
	int64_t units = (int64_t)((a.w.width + S::COLS - 1) / S::COLS) *
		((a.w.K / SLAB + S::KWARPS - 1) / S::KWARPS);
	int32_t blocks = blocks_of<S>(d);

	if (blocks > units)
		blocks = (int32_t)units;
	cuda_ok(d, start(packed_few_kernel<S>, (unsigned)blocks, THREADS, S::SHARED_BYTES, d->stream, a),
		"matmul of packed weights, few rows");
}

template <int WORDS> static void pick(struct dev *d, struct packed_few_args &a, int32_t rows)
{
	if (rows <= 16)
		product<few<16, WORDS>>(d, a);
	else if (rows <= 32)
		product<few<32, WORDS>>(d, a);
	else
		product<few<64, WORDS>>(d, a);
}

/* Multiplies T rows of x with the kernel for `rows` rows; both are at most 64. */
void packed_few_rows(struct dev *d, void *y, bool f32, const bf16 *x, const struct weight *w, int T, int rows)
{
	struct packed_few_args a = { y, f32, x, w->packed, w->bias, T, d->product.part, d->product.arrived };

	if (d->fault.lost)
		return;
	if (w->held == HELD_W4)
		pick<1>(d, a, rows);
	else
		pick<2>(d, a, rows);
}
