/* matmul.cu - y[T][N] = x[T][K] w[N][K]^T + bias on tensor cores (mma.m16n8k16, bf16 in, f32 sums);
 * weights of fewer bits are packed_few.cu's and packed_many.cu's.
 *
 * A block makes a tile of ROWS x COLS of y.  Slices of DEPTH along K come through a ring of STAGES
 * in shared memory, by asynchronous copies; rows there are 16 bytes longer than their data, which
 * puts the 8 rows that one ldmatrix reads into different banks.
 *
 *	few    up to 64 rows: bound by reading w once.  Narrow tiles, so that there is one for every
 *	       processor; the four warps divide K among them (KWARPS) and add up at the end.
 *	many   bound by arithmetic: wide tiles, the warps divide the tile.
 *
 * What a row's sum is depends on which of the two kernels ran, so on T; not on the other rows.  With
 * --enforce-deterministic there is only the one for 64 rows, as often as it takes.
 */
#include "device.cuh"
#include "lt.cuh"
#include "product.cuh"
#include "ptx.cuh"

#define STAGES 4

/* Warps: MWARPS x NWARPS over the tile, times KWARPS over each slice of K. */
template <int ROWS_, int COLS_, int DEPTH_, int MWARPS_, int NWARPS_, int KWARPS_> struct shape {
	static const int ROWS = ROWS_, COLS = COLS_, DEPTH = DEPTH_, PITCH = DEPTH + 8;
	static const int MWARPS = MWARPS_, NWARPS = NWARPS_, KWARPS = KWARPS_;
	static const int THREADS = 32 * MWARPS * NWARPS * KWARPS;
	static const int M = ROWS / MWARPS / 16, N = COLS / NWARPS / 8; /* fragments of a warp */
	static const size_t STAGE = (size_t)(ROWS + COLS) * PITCH;      /* elements */
	static const size_t SUMS = (size_t)ROWS * COLS * sizeof(float) * (KWARPS > 1 ? KWARPS : 0);
	static const size_t RING = STAGES * STAGE * sizeof(bf16);
	static const size_t SHARED_BYTES = RING > SUMS ? RING : SUMS;
};

/* Begin copying rows row .. row+count of a matrix, columns k .. k+DEPTH; zeros beyond its ends. */
template <class S> static __device__ void load(bf16 *to, const bf16 *from, int32_t row, int32_t count,
                                               int32_t rows, int32_t k, int32_t K)
{
	const int chunks = S::DEPTH / 8;

	for (int32_t i = (int32_t)threadIdx.x; i < count * chunks; i += S::THREADS) {
		int32_t r = i / chunks, c = i % chunks * 8;
		bool there = row + r < rows && k + c < K;

		cp_async_16(to + r * S::PITCH + c,
			there ? from + (size_t)(row + r) * (size_t)K + k + c : from, there);
	}
}

/* One slice: this warp's fragments += x w^T. */
template <class S> static __device__ void multiply(float (&sum)[S::M][S::N][4], const bf16 *x, const bf16 *w,
                                                   int m0, int n0, int kwarp)
{
	int lane = (int)threadIdx.x % 32;
	const bf16 *x_row = x + (m0 + lane % 16) * S::PITCH + lane / 16 * 8;
	const bf16 *w_row = w + (n0 + lane / 16 * 8 + lane % 8) * S::PITCH + lane / 8 % 2 * 8;

	for (int k = 16 * kwarp; k < S::DEPTH; k += 16 * S::KWARPS) {
		uint32_t a[S::M][4], b[S::N / 2][4];

#pragma unroll
		for (int m = 0; m < S::M; m++) /* matrices: rows 0-7, rows 8-15, the same of the next 8 k */
			ldmatrix_x4(a[m], x_row + 16 * m * S::PITCH + k);
#pragma unroll
		for (int n = 0; n < S::N / 2; n++) /* columns 0-7, their next 8 k; columns 8-15, likewise */
			ldmatrix_x4(b[n], w_row + 16 * n * S::PITCH + k);
#pragma unroll
		for (int m = 0; m < S::M; m++)
#pragma unroll
			for (int n = 0; n < S::N; n++)
				mma_bf16(sum[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
	}
}

/* Fragments of a warp to its own copy of the tile in shared memory. */
template <class S> static __device__ void put_sums(float (&sum)[S::M][S::N][4], float *tile, int m0, int n0)
{
	int lane = (int)threadIdx.x % 32;

	tile += (m0 + lane / 4) * S::COLS + n0 + lane % 4 * 2;
#pragma unroll
	for (int m = 0; m < S::M; m++)
#pragma unroll
		for (int n = 0; n < S::N; n++)
#pragma unroll
			for (int j = 0; j < 4; j++)
				tile[(16 * m + j / 2 * 8) * S::COLS + 8 * n + j % 2] =
					sum[m][n][j];
}

/* The KWARPS copies of the tile, in their order. */
template <class S> static __device__ void add_copies(const float *tile, void *y, bool f32, const float *bias,
                                                     int32_t row, int32_t col, int32_t T, int32_t N)
{
	for (int i = (int)threadIdx.x; i < S::ROWS * S::COLS; i += S::THREADS) {
		int32_t r = row + i / S::COLS, c = col + i % S::COLS;
		float v = 0;

		if (r >= T || c >= N)
			continue;
#pragma unroll
		for (int k = 0; k < S::KWARPS; k++)
			v += tile[k * S::ROWS * S::COLS + i];
		put_one(y, f32, (size_t)r * (size_t)N + (size_t)c, v + (bias ? bias[c] : 0));
	}
}

/* grid: tiles of columns, tiles of rows */
template <class S> static __global__ void __launch_bounds__(S::THREADS)
matmul_kernel(void *y, bool f32, const bf16 *x, const bf16 *w, const float *bias, int32_t T, int32_t N,
	int32_t K)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	bf16 *ring = (bf16 *)shared;
	int warp = (int)threadIdx.x / 32, kwarp = warp % S::KWARPS;
	int m0 = warp / S::KWARPS % S::MWARPS * (S::ROWS / S::MWARPS);
	int n0 = warp / S::KWARPS / S::MWARPS * (S::COLS / S::NWARPS);
	int32_t row = (int32_t)blockIdx.y * S::ROWS, col = (int32_t)blockIdx.x * S::COLS;
	int32_t slices = (K + S::DEPTH - 1) / S::DEPTH;
	float sum[S::M][S::N][4] = {};

	for (int32_t s = 0; s < STAGES - 1; s++) {
		if (s < slices) {
			load<S>(ring + s * S::STAGE, x, row, S::ROWS, T, s * S::DEPTH, K);
			load<S>(ring + s * S::STAGE + S::ROWS * S::PITCH, w, col, S::COLS, N, s * S::DEPTH,
				K);
		}
		cp_async_commit();
	}
	for (int32_t s = 0; s < slices; s++) {
		const bf16 *at = ring + s % STAGES * S::STAGE;
		int32_t ahead = s + STAGES - 1;

		cp_async_wait<STAGES - 2>();
		__syncthreads(); /* slice s is there for all, and slice s - 1 is read by all */
		if (ahead < slices) {
			bf16 *to = ring + ahead % STAGES * S::STAGE;

			load<S>(to, x, row, S::ROWS, T, ahead * S::DEPTH, K);
			load<S>(to + S::ROWS * S::PITCH, w, col, S::COLS, N, ahead * S::DEPTH, K);
		}
		cp_async_commit();
		multiply<S>(sum, at, at + S::ROWS * S::PITCH, m0, n0, kwarp);
	}
	if (S::KWARPS == 1) {
		put_y(sum, y, f32, bias, row + m0, col + n0, T, N);
		return;
	}
	__syncthreads(); /* the ring becomes the sums */
	put_sums<S>(sum, (float *)shared + kwarp * S::ROWS * S::COLS, m0, n0);
	__syncthreads();
	add_copies<S>((float *)shared, y, f32, bias, row, col, T, N);
}

/* ---- which ------------------------------------------------------------------------------------------- */

typedef shape<16, 32, 128, 1, 1, 4> few16;
typedef shape<32, 32, 128, 1, 1, 4> few32;
typedef shape<64, 32, 64, 1, 1, 4> few64; /* of 99 KiB, which is all some have */
typedef shape<128, 128, 32, 2, 4, 1> many;

bool matmul_prepare(struct dev *d)
{
	return packed_few_prepare(d) && packed_many_prepare(d) && hopper_many_prepare(d) &&
	       cuda_ok(d, allow_shared(matmul_kernel<few16>, few16::SHARED_BYTES), "matmul, 16 rows") &&
	       cuda_ok(d, allow_shared(matmul_kernel<few32>, few32::SHARED_BYTES), "matmul, 32 rows") &&
	       cuda_ok(d, allow_shared(matmul_kernel<few64>, few64::SHARED_BYTES), "matmul, 64 rows") &&
	       cuda_ok(d, allow_shared(matmul_kernel<many>, many::SHARED_BYTES), "matmul, many rows");
}

template <class S> static void product(struct dev *d, enum place y, enum place x, const struct weight *w,
	int T)
{
	dim3 grid((unsigned)(w->n + S::COLS - 1) / S::COLS, (unsigned)(T + S::ROWS - 1) / S::ROWS);

	cuda_ok(d, start(matmul_kernel<S>, grid, S::THREADS, S::SHARED_BYTES, d->stream, d->place[y],
		is_f32(y), (const bf16 *)d->place[x], w->mat, w->bias, T, w->n, w->k), "matmul");
}

static void dense_few(struct dev *d, enum place y, enum place x, const struct weight *w, int T)
{
	if (T <= 16 && !d->deterministic)
		product<few16>(d, y, x, w, T);
	else if (T <= 32 && !d->deterministic)
		product<few32>(d, y, x, w, T);
	else
		product<few64>(d, y, x, w, T);
}

static void few(struct dev *d, enum place y, enum place x, const struct weight *w, int T)
{
	const bf16 *from = (const bf16 *)d->place[x];
	unsigned char *to = (unsigned char *)d->place[y];
	size_t row = (size_t)w->n * (is_f32(y) ? sizeof(float) : sizeof(bf16));

	if (w->held == HELD_BF16)
		dense_few(d, y, x, w, T);
	else if (!d->deterministic)
		packed_few(d, to, is_f32(y), from, w, T, T);
	else
		for (int t = 0; t < T; t += 64)
			packed_few(d, to + (size_t)t * row, is_f32(y), from + (size_t)t * (size_t)w->k, w,
				T - t < 64 ? T - t : 64, 64);
}

/* Who multiplies T rows by w: the one place where that is decided, by rows, form of the weights and GPU. */
enum road { ROAD_FEW, ROAD_LT, ROAD_MANY };

static enum road road(const struct dev *d, const struct weight *w, int T)
{
	if (T <= 64 || d->deterministic)
		return ROAD_FEW;
	if (lt_can(w, T))
		return ROAD_LT;
	return ROAD_MANY;
}

void matmul(struct dev *d, enum place y, enum place x, const struct weight *w, int T)
{
	if (d->lost)
		return;
	switch (road(d, w, T)) {
	case ROAD_FEW:
		few(d, y, x, w, T);
		break;
	case ROAD_LT:
		lt_matmul(d, d->place[y], d->place[x], w, T);
		break;
	case ROAD_MANY:
		if (w->held != HELD_BF16)
			packed_many(d, d->place[y], is_f32(y), (const bf16 *)d->place[x], w, T);
		else if (!hopper_many(d, d->place[y], is_f32(y), d->place[x], w, T))
			product<many>(d, y, x, w, T);
		break;
	}
}
