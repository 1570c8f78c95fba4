/* dense_few_rows.cu - y[T][N] = x[T][K] w[N][K]^T + bias for up to 64 rows and bf16 w.  The aim is the time
 * that reading w takes.
 *
 *	stage   COLS = 128 rows of w and ROWS of x, 64 inputs (128 bytes) of each:  w 16 KiB, x 2, 4 or 8 KiB
 *
 *	             64 inputs                16-byte piece c of row r lies at c ^ r % 8: the 8 rows that
 *	          +-------------+             one ldmatrix reads are in different banks, without padding
 *	  w       | 128 outputs |
 *	          |             |   --cp.async--> ring of 4 or 5 stages --ldmatrix--> mma, sums in registers
 *	          +-------------+
 *	  x       |  ROWS rows  |
 *	          +-------------+
 *
 * In flight  three stages or more: 48 KiB of w per block, and two blocks per multiprocessor if its shared
 *            memory suffices.  For an H200, 4.3 TB/s times 700 ns is 23 KiB for each of its 132
 *            multiprocessors.
 * Stripes    as in stripes.cuh; a unit is a stage.  The pipeline does not stall between tiles: the loads
 *            of the next tile are in flight while the sums of this one are stored.
 * Caches     w is read once and evicted first from L2; x, which every block reads, stays.
 * Start      w depends on no other kernel, so the ring is filled before wait_for_previous().
 * Warps      divide the outputs, 16 each.  With 64 rows two divide the rows and four the outputs, 32 x 32
 *            each, because shared memory could not keep up otherwise.  No two add to the same sum.
 *
 * A row's sum depends on which of the three kernels ran and on the number of multiprocessors, not on the
 * other rows.  With --enforce-deterministic only the kernel for 64 rows runs, once per 64 rows, and each tile is
 * cut at the same inputs: no sum depends on how many other outputs a rank has.
 */
#include "device.cuh"
#include "product.cuh"
#include "ptx.cuh"
#include "stripes.cuh"

#define THREADS 256
#define COLS 128                             /* outputs of a tile */
#define DEPTH 64                             /* inputs of a stage */
#define PIECES (DEPTH / 8)                   /* 16-byte pieces per row of a stage */
#define MOST_PARTS 16                        /* of a tile, in deterministic mode */
#define MORE_BLOCKS 4                        /* times as many as fit, in deterministic mode, if tiles have parts */

template <int ROWS_> struct most_rows {
	static const int ROWS = ROWS_, MWARPS = ROWS == 64 ? 2 : 1, NWARPS = THREADS / 32 / MWARPS;
	static const int M = ROWS / MWARPS / 16, N = COLS / NWARPS / 8;  /* fragments per warp */
	static const int STAGES = ROWS == 16 ? 5 : 4;                    /* some GPUs have 99 KiB */
	static const size_t W = (size_t)COLS * DEPTH, STAGE = W + (size_t)ROWS * DEPTH; /* elements */
	static const size_t SHARED_BYTES = STAGES * STAGE * sizeof(bf16) + 16;
};

struct rows_args {
	void *y;
	bool f32;
	const bf16 *x, *w;
	const float *bias;
	int32_t T, N, K;
	float *part;                         /* [blocks][2][ROWS * COLS] */
	uint32_t *arrived;                   /* [tiles]; zero between kernels */
};

/* A position in the sequence of units: a tile, and a slice of DEPTH of its inputs. */
struct unit_cursor { int32_t tile, slice; };

static __device__ int32_t slices_of(const rows_args &a)
{
	return (a.K + DEPTH - 1) / DEPTH;
}

static __device__ void advance(struct unit_cursor &c, int32_t slices)
{
	if (++c.slice == slices) {
		c.slice = 0;
		c.tile++;
	}
}

static __device__ bf16 *place(bf16 *rows, int r, int piece)
{
	return rows + r * DEPTH + (piece ^ r % 8) * 8;
}

static __device__ void load_w(bf16 *to, const rows_args &a, struct unit_cursor c)
{
	int piece = (int)threadIdx.x % PIECES;
	int32_t k = c.slice * DEPTH + piece * 8, n = c.tile * COLS + (int32_t)threadIdx.x / PIECES;

#pragma unroll
	for (int i = 0; i < COLS * PIECES / THREADS; i++, n += THREADS / PIECES) {
		bool there = n < a.N && k < a.K;

		cp_async_16_once(place(to, (int)threadIdx.x / PIECES + i * (THREADS / PIECES), piece),
			there ? a.w + (size_t)n * (size_t)a.K + k : a.w, there);
	}
}

template <class S> static __device__ void load_x(bf16 *to, const rows_args &a, struct unit_cursor c)
{
	int piece = (int)threadIdx.x % PIECES;
	int32_t k = c.slice * DEPTH + piece * 8;

#pragma unroll
	for (int32_t t = (int32_t)threadIdx.x / PIECES; t < S::ROWS; t += THREADS / PIECES) {
		bool there = t < a.T && k < a.K;

		cp_async_16(place(to, t, piece), there ? a.x + (size_t)t * (size_t)a.K + k : a.x, there);
	}
}

/* One stage: the fragments of this warp += x w^T. */
template <class S> static __device__ void multiply(float (&sum)[S::M][S::N][4], bf16 *stage)
{
	int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
	int row = warp % S::MWARPS * S::M * 16 + lane % 16;
	int col = warp / S::MWARPS * S::N * 8 + lane / 16 * 8 + lane % 8;

#pragma unroll
	for (int k = 0; k < PIECES; k += 2) {
		uint32_t a[S::M][4], b[S::N / 2][4];

#pragma unroll
		for (int m = 0; m < S::M; m++) /* matrices: rows 0-7, rows 8-15, then both for the next 8 k */
			ldmatrix_x4(a[m], place(stage + S::W, row + 16 * m, k + lane / 16));
#pragma unroll
		for (int n = 0; n < S::N / 2; n++) /* columns 0-7, the same at the next 8 k; then columns 8-15 */
			ldmatrix_x4(b[n], place(stage, col + 16 * n, k + lane / 8 % 2));
#pragma unroll
		for (int m = 0; m < S::M; m++)
#pragma unroll
			for (int n = 0; n < S::N; n++)
				mma_bf16(sum[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
	}
}

/* ---- storing the sums of a tile ------------------------------------------------------- */

/* The sums of this thread in a part: [fragments * 4][THREADS]. */
template <class S> static __device__ void put_part(const float (&sum)[S::M][S::N][4], float *part)
{
#pragma unroll
	for (int i = 0; i < S::M * S::N * 4; i++)
		part[i * THREADS + (int)threadIdx.x] = sum[i / 4 / S::N][i / 4 % S::N][i % 4];
}

template <class S> static __device__ void add_part(float (&sum)[S::M][S::N][4], const float *part)
{
#pragma unroll
	for (int i = 0; i < S::M * S::N * 4; i++)
		sum[i / 4 / S::N][i / 4 % S::N][i % 4] += load_l2(part + i * THREADS + (int)threadIdx.x);
}

/* Finishes this block's share of a tile.  Stores y if the share is the whole tile or the last to arrive,
 * else a part.  Resets the sums. */
template <class S> static __device__ void finish(const rows_args &a, int32_t tile, uint32_t units,
	uint32_t all, float (&sum)[S::M][S::N][4], uint32_t *word)
{
	const size_t each = (size_t)S::ROWS * COLS;
	int warp = (int)threadIdx.x / 32;
	uint32_t first, parts = parts_of(all, gridDim.x, units, (uint32_t)tile, first);
	bool whole = parts == 1;

	if (!whole) {
		put_part<S>(sum, part_at(a.part, each, blockIdx.x, blockIdx.x == first));
		whole = arrive(&a.arrived[tile], parts, word);
		memset(sum, 0, sizeof(sum));
#pragma unroll 2
		for (uint32_t b = first; whole && b < first + parts; b++)
			add_part<S>(sum, part_at(a.part, each, b, b == first));
	}
	if (whole)
		put_y(sum, a.y, a.f32, a.bias, warp % S::MWARPS * S::M * 16,
			tile * COLS + warp / S::MWARPS * S::N * 8, a.T, a.N);
	memset(sum, 0, sizeof(sum));
}

template <class S> static __global__ void __launch_bounds__(THREADS, 2) rows_kernel(struct rows_args a)
{
	SHARED(shared);
	bf16 *ring = (bf16 *)shared;
	uint32_t *word = (uint32_t *)(shared + S::SHARED_BYTES - 16);
	uint32_t units = (uint32_t)slices_of(a), all = units * (uint32_t)((a.N + COLS - 1) / COLS);
	uint32_t from = first_unit(all, gridDim.x, blockIdx.x);
	int32_t count = (int32_t)(first_unit(all, gridDim.x, blockIdx.x + 1) - from), slices = (int32_t)units;
	struct unit_cursor at = { (int32_t)(from / units), (int32_t)(from % units) }, ahead = at, x_ahead = at;
	float sum[S::M][S::N][4] = {};

	let_next_start();
	for (int32_t i = 0; i < S::STAGES - 1 && i < count; i++, advance(ahead, slices))
		load_w(ring + i * S::STAGE, a, ahead);
	wait_for_previous();
	for (int32_t i = 0; i < S::STAGES - 1; i++, advance(x_ahead, slices)) {
		if (i < count)
			load_x<S>(ring + i * S::STAGE + S::W, a, x_ahead);
		cp_async_commit(); /* the first group has all loads of w so far */
	}
	for (int32_t i = 0; i < count; i++, advance(at, slices)) {
		int32_t next = i + S::STAGES - 1;

		cp_async_wait<S::STAGES - 2>();
		__syncthreads(); /* stage i is visible to all warps, and stage i - 1 is free */
		if (next < count) {
			bf16 *to = ring + next % S::STAGES * S::STAGE;

			load_w(to, a, ahead);
			load_x<S>(to + S::W, a, ahead);
			advance(ahead, slices);
		}
		cp_async_commit();
		multiply<S>(sum, ring + i % S::STAGES * S::STAGE);
		if (at.slice + 1 == slices || i + 1 == count)
			finish<S>(a, at.tile, units, all, sum, word);
	}
}

/* ---- choice of kernel ----------------------------------------------------------------- */

template <class S> static int64_t blocks_of(const struct dev *d)
{
	return d->gpu.processors * (d->gpu.shared_bytes >= (int32_t)(2 * (S::SHARED_BYTES + 1024)) ? 2 : 1);
}

size_t product_part_bytes(const struct dev *d)
{
	size_t dense = (size_t)d->gpu.processors * 2 * 2 * FEW_ROWS * COLS * sizeof(float);
	size_t packed = packed_part_bytes(d), few = (dense > packed ? dense : packed) * (d->deterministic ? MORE_BLOCKS : 1);
	size_t many = d->product.divided ? packed_many_part_bytes(d) : 0;

	return few > many ? few : many;
}

/* How many blocks share a tile: as many as leave the least of the last wave of blocks idle. */
static int64_t blocks_of_tile(int64_t tiles, int64_t units, int64_t fit)
{
	int64_t best = 1;
	double least = (double)((tiles + fit - 1) / fit);

	for (int64_t n = 2; n <= MOST_PARTS && n <= units && tiles * n <= MORE_BLOCKS * fit; n++) {
		double waves = (double)((tiles * n + fit - 1) / fit) / (double)n;

		if (waves < 0.99 * least) {
			least = waves;
			best = n;
		}
	}
	return best;
}

unsigned product_blocks(const struct dev *d, int64_t tiles, int64_t all, int64_t units, int64_t fit)
{
	if (!d->deterministic)
		return (unsigned)(fit < tiles * units ? fit : tiles * units);
	return (unsigned)(tiles * blocks_of_tile(all > tiles ? all : tiles, units, fit));
}

size_t product_tiles(const struct dev *d, int32_t N)
{
	size_t few = ((size_t)N + COLS - 1) / COLS, many = (size_t)d->gpu.processors * 2; /* packed tiles are at least
	                                                                                     as wide */

	return few > many ? few : many;
}

bool dense_few_rows_prepare(struct dev *d)
{
	return cuda_ok(d, allow_shared(rows_kernel<most_rows<16>>, most_rows<16>::SHARED_BYTES),
			"matmul, 16 rows") &&
	       cuda_ok(d, allow_shared(rows_kernel<most_rows<32>>, most_rows<32>::SHARED_BYTES),
			"matmul, 32 rows") &&
	       cuda_ok(d, allow_shared(rows_kernel<most_rows<64>>, most_rows<64>::SHARED_BYTES),
			"matmul, 64 rows");
}

template <class S> static void product(struct dev *d, const struct rows_args &a, int32_t whole)
{
	unsigned blocks = product_blocks(d, (a.N + COLS - 1) / COLS, (whole + COLS - 1) / COLS, (a.K + DEPTH - 1) / DEPTH,
		blocks_of<S>(d));

	cuda_ok(d, start(rows_kernel<S>, blocks, THREADS, S::SHARED_BYTES, d->stream, a), "matmul, few rows");
}

void dense_few_rows(struct dev *d, void *y, bool f32, const bf16 *x, const struct weight *w, int T, int rows)
{
	struct rows_args a = { y, f32, x, w->mat, w->bias, T, w->n, w->k, d->product.part, d->product.arrived };

	if (d->fault.lost)
		return;
	if (rows <= 16)
		product<most_rows<16>>(d, a, w->whole);
	else if (rows <= 32)
		product<most_rows<32>>(d, a, w->whole);
	else
		product<most_rows<64>>(d, a, w->whole);
}
