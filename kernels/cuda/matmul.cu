/* matmul.cu - y[T][N] = x[T][K] w[N][K]^T + bias: the choice of kernel, and the kernel for many
 * rows of bf16 on every GPU (mma.m16n8k16, bf16 in, f32 sums).
 *
 *	rows     weights     by
 *	<= 64    bf16        dense_few_rows.cu           bound by reading w once
 *	<= 64    4, 8 bits   packed_few_rows.cu    the same; without wgmma up to 128, 64 at a time
 *	more     bf16        lt.cu            cuBLASLt if found; else hopper_many_rows.cu on sm_90a; else here
 *	more     4, 8 bits   packed_many_rows.cu   or hopper_many_rows.cu on sm_90a
 *
 * Whatever of these is switched off (special.cuh), the kernels here and in packed_many_rows.cu multiply any rows.
 *
 * A block computes a tile of ROWS x COLS of y.  Asynchronous copies bring slices of DEPTH along K into a
 * ring of STAGES in shared memory.  Rows there are 16 bytes longer than their data, so the 8 rows that
 * one ldmatrix reads are in different banks.
 *
 * A row's sum depends on which kernel ran, so on T, but not on the other rows.  With
 * --enforce-deterministic only the kernels for 64 rows run, once per 64 rows.
 */
#include <assert.h>

#include "device.cuh"
#include "product.cuh"
#include "ptx.cuh"

#define STAGES 4

#define ROWS 128
#define COLS 128
#define DEPTH 32
#define PITCH (DEPTH + 8)
#define MWARPS 2                             /* warps per tile: MWARPS x NWARPS */
#define NWARPS 4
#define THREADS (32 * MWARPS * NWARPS)
#define M (ROWS / MWARPS / 16)               /* fragments per warp */
#define N8 (COLS / NWARPS / 8)
#define STAGE ((ROWS + COLS) * PITCH)        /* elements */
#define SHARED_BYTES (STAGES * STAGE * sizeof(bf16))

/* Starts to copy rows row .. row+count of a matrix, columns k .. k+DEPTH, with zeros beyond its ends. */
static __device__ void load(bf16 *to, const bf16 *from, int32_t row, int32_t count, int32_t rows, int32_t k,
	int32_t K)
{
	const int chunks = DEPTH / 8;

	for (int32_t i = (int32_t)threadIdx.x; i < count * chunks; i += THREADS) {
		int32_t r = i / chunks, c = i % chunks * 8;
		bool there = row + r < rows && k + c < K;

		cp_async_16(to + r * PITCH + c, there ? from + (size_t)(row + r) * (size_t)K + k + c : from, there);
	}
}

/* One slice: the fragments of this warp += x w^T. */
static __device__ void multiply(float (&sum)[M][N8][4], const bf16 *x, const bf16 *w, int m0, int n0)
{
	int lane = (int)threadIdx.x % 32;
	const bf16 *x_row = x + (m0 + lane % 16) * PITCH + lane / 16 * 8;
	const bf16 *w_row = w + (n0 + lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 8;

	for (int k = 0; k < DEPTH; k += 16) {
		uint32_t a[M][4], b[N8 / 2][4];

#pragma unroll
		for (int m = 0; m < M; m++) /* matrices: rows 0-7, rows 8-15, then both for the next 8 k */
			ldmatrix_x4(a[m], x_row + 16 * m * PITCH + k);
#pragma unroll
		for (int n = 0; n < N8 / 2; n++) /* columns 0-7, the same at the next 8 k; then columns 8-15 */
			ldmatrix_x4(b[n], w_row + 16 * n * PITCH + k);
#pragma unroll
		for (int m = 0; m < M; m++)
#pragma unroll
			for (int n = 0; n < N8; n++)
				mma_bf16(sum[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
	}
}

/* grid: tiles of columns, tiles of rows */
static __global__ void __launch_bounds__(THREADS) matmul_kernel(void *y, bool f32, const bf16 *x,
	const bf16 *w, const float *bias, int32_t T, int32_t N, int32_t K)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	bf16 *ring = (bf16 *)shared;
	int warp = (int)threadIdx.x / 32;
	int m0 = warp % MWARPS * (ROWS / MWARPS), n0 = warp / MWARPS * (COLS / NWARPS);
	int32_t row = (int32_t)blockIdx.y * ROWS, col = (int32_t)blockIdx.x * COLS;
	int32_t slices = (K + DEPTH - 1) / DEPTH;
	float sum[M][N8][4] = {};

	for (int32_t s = 0; s < STAGES - 1; s++) {
		if (s < slices) {
			load(ring + s * STAGE, x, row, ROWS, T, s * DEPTH, K);
			load(ring + s * STAGE + ROWS * PITCH, w, col, COLS, N, s * DEPTH, K);
		}
		cp_async_commit();
	}
	for (int32_t s = 0; s < slices; s++) {
		const bf16 *at = ring + s % STAGES * STAGE;
		int32_t ahead = s + STAGES - 1;

		cp_async_wait<STAGES - 2>();
		__syncthreads(); /* slice s is visible to all warps, and slice s - 1 is free */
		if (ahead < slices) {
			bf16 *to = ring + ahead % STAGES * STAGE;

			load(to, x, row, ROWS, T, ahead * DEPTH, K);
			load(to + ROWS * PITCH, w, col, COLS, N, ahead * DEPTH, K);
		}
		cp_async_commit();
		multiply(sum, at, at + ROWS * PITCH, m0, n0);
	}
	put_y(sum, y, f32, bias, row + m0, col + n0, T, N);
}

/* ---- many rows, few rows -------------------------------------------------------------- */

bool matmul_prepare(struct dev *d)
{
	bool latent = false;

	for (int32_t i = 0; i < d->m->n_kinds; i++)
		latent |= d->m->kind[i].latent > 0;
	return ((!d->m->experts.n && !latent) || experts_prepare(d)) && dense_few_rows_prepare(d) && packed_few_rows_prepare(d) && packed_many_rows_prepare(d) &&
	       hopper_many_rows_prepare(d) &&
	       cuda_ok(d, allow_shared(matmul_kernel, SHARED_BYTES), "matmul, many rows");
}

void dense_many_rows(struct dev *d, void *y, bool f32, const bf16 *x, const struct weight *w, int T)
{
	dim3 grid((unsigned)(w->n + COLS - 1) / COLS, (unsigned)(T + ROWS - 1) / ROWS);

	cuda_ok(d, start(matmul_kernel, grid, THREADS, SHARED_BYTES, d->stream, y, f32, x, w->mat, w->bias, T,
		w->n, w->k), "matmul, many rows");
}

static void few_rows(struct dev *d, unsigned char *y, bool f32, const bf16 *x, const struct weight *w, int T)
{
	size_t row = (size_t)w->n * (f32 ? sizeof(float) : sizeof(bf16));

	for (int t = 0; t < T; t += FEW_ROWS) {
		int rows = T - t < FEW_ROWS ? T - t : FEW_ROWS, as = d->deterministic ? FEW_ROWS : rows;

		(w->held == HELD_BF16 ? dense_few_rows : packed_few_rows)(d, y + (size_t)t * row, f32,
			x + (size_t)t * (size_t)w->k, w, rows, as);
	}
}

/* ---- act-order ------------------------------------------------------------------------ */

/* One block per row. */
static __global__ void order_kernel(const bf16 *x, const int32_t *order, int32_t K, bf16 *to)
{
	let_next_start();
	wait_for_previous();
	x += (size_t)blockIdx.x * (size_t)K;
	to += (size_t)blockIdx.x * (size_t)K;
	for (int32_t i = (int32_t)threadIdx.x; i < K; i += (int32_t)blockDim.x)
		to[i] = x[order[i]];
}

/* x in the order of w's inputs, if its producer did not write it so: attention.  Norms and act_mul do
 * (rows.cu). */
const bf16 *in_order(struct dev *d, const bf16 *x, const struct weight *w, int T)
{
	cuda_ok(d, start(order_kernel, (unsigned)T, 256, 0, d->stream, x, w->order, w->k, d->product.ordered),
		"order activations");
	return d->product.ordered;
}

/* ---- choice of kernel ----------------------------------------------------------------- */

/* The kernel that multiplies T rows by w.  It is decided only here, by rows, form of the weights and GPU. */
enum road { ROAD_FEW_ROWS, ROAD_LT, ROAD_MANY_ROWS };

static enum road road(const struct dev *d, const struct weight *w, int T)
{
	bool few = has(d, w->held == HELD_BF16 ? SPECIAL_DENSE_FEW : SPECIAL_PACKED_FEW);

	if (few && (T <= few_most(d, w) || d->deterministic))
		return ROAD_FEW_ROWS;
	if (has(d, SPECIAL_LT) && T > FEW_ROWS && !d->deterministic && lt_can(w, T))
		return ROAD_LT;
	return ROAD_MANY_ROWS;
}

void matmul(struct dev *d, enum place y, enum place x, const struct weight *w, int T)
{
	const bf16 *from = (const bf16 *)d->act.place[x == P_LATENT ? P_Y : x]; /* where norm() puts it */
	void *to = d->act.place[y];
	bool made = d->product.made_for == w;

	if (d->fault.lost)
		return;
	assert(!d->product.made_for || made);
	d->product.made_for = NULL;
	d->product.reader = w->feeds;
	if (w->held == HELD_F32) {
		experts_score(d, w, T);
		return;
	}
	if (w->count > 1) {
		experts_multiply(d, y, x, w, T);
		return;
	}
	if (w->order && !made)
		from = in_order(d, from, w, T);
	switch (road(d, w, T)) {
	case ROAD_FEW_ROWS:
		few_rows(d, (unsigned char *)to, is_f32(y), from, w, T);
		break;
	case ROAD_LT:
		lt_matmul(d, to, from, w, T);
		break;
	case ROAD_MANY_ROWS:
		if (w->held != HELD_BF16)
			packed_many_rows(d, to, is_f32(y), from, w, T, made);
		else if (!hopper_many_rows(d, to, is_f32(y), from, w, T))
			dense_many_rows(d, to, is_f32(y), from, w, T);
		break;
	}
}
