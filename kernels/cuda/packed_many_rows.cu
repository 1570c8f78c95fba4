/* packed_many_rows.cu - y[T][FN] = x[T][K] w[FN][K]^T + bias for many rows, w of 4 or 8 bits (packed.cuh).
 * It is bound by arithmetic.  Tiles of 128 x 128 are computed slab by slab from a ring of STAGES in shared
 * memory.
 *
 *	W4, W8   weights are scaled and rounded to bf16 in registers, as if that had been done at load
 *	W8A8     sm_89 and later: x is quantized too, to e4m3 with a scale per row.  The sums of a group are
 *	         kept in separate registers until they are scaled, because tensor cores keep few digits for
 *	         e4m3
 */
#include "device.cuh"
#include "packed.cuh"
#include "product.cuh"

#define ROWS 128
#define COLS 128
#define THREADS 256
#define FM 4                                 /* fragments per warp: 64 rows, 32 columns */
#define FN 4

enum form { FORM_W4, FORM_W8, FORM_W8A8 };

template <enum form F_> struct many {
	static const enum form F = F_;
	static const int WORDS = F == FORM_W4 ? 1 : 2;
	static const int ROW_BYTES = F == FORM_W8A8 ? SLAB : 2 * SLAB, PITCH = ROW_BYTES + 16;
	static const size_t X = ROWS * PITCH, W = (size_t)COLS / STRIP * WORDS * TILE_WORDS * sizeof(uint32_t);
	static const size_t STAGE = X + W + COLS * sizeof(uint32_t);
	static const int STAGES = F == FORM_W4 ? 3 : 4; /* W4: two blocks per multiprocessor of 99 KiB */
	static const size_t SHARED_BYTES = STAGES * STAGE;
};

struct packed_many_args {
	void *y;
	bool f32;
	const unsigned char *x;                  /* bf16, or e4m3 in the order of packed_place() */
	const float *x_scale;                    /* W8A8: [T] */
	struct packed w;
	const float *bias;
	int32_t T;
};

template <class S> static __device__ void load(unsigned char *stage, const packed_many_args &a, int32_t slab)
{
	const int chunks = S::ROW_BYTES / 16, tile_chunks = S::WORDS * TILE_WORDS / 4;
	int32_t row = (int32_t)blockIdx.y * ROWS, strip = (int32_t)blockIdx.x * (COLS / STRIP);
	int32_t slabs = a.w.K / SLAB, strips = a.w.width / STRIP;

	for (int32_t i = (int32_t)threadIdx.x; i < ROWS * chunks; i += THREADS) {
		int32_t r = i / chunks, c = i % chunks * 16;
		bool there = row + r < a.T;

		cp_async_16(stage + r * S::PITCH + c,
			there ? a.x + ((size_t)(row + r) * (size_t)slabs + (size_t)slab) * S::ROW_BYTES + c : a.x,
			there);
	}
	for (int32_t i = (int32_t)threadIdx.x; i < COLS / STRIP * tile_chunks; i += THREADS) {
		int32_t s = strip + i / tile_chunks;
		bool there = s < strips;

		cp_async_16(stage + S::X + (size_t)i * 16, there ? a.w.words +
			((size_t)s * (size_t)slabs + (size_t)slab) * TILE_WORDS * S::WORDS + i % tile_chunks * 4 :
			a.w.words, there);
	}
	if (threadIdx.x < COLS / 4) {
		int32_t c = strip * STRIP + (int32_t)threadIdx.x * 4;
		bool there = c < a.w.width;

		cp_async_16(stage + S::X + S::W + threadIdx.x * 16, there ? a.w.scale +
			(size_t)(slab / a.w.group) * (size_t)a.w.width + c : a.w.scale, there);
	}
}

/* x * s + b for a pair of bf16, rounded */
static __device__ uint32_t scaled(uint32_t pair, float s, float b)
{
	return bf16_pair(__uint_as_float(pair << 16) * s + b, __uint_as_float(pair & 0xffff0000) * s + b);
}

/* The weights of one fragment as bf16: b[0], b[1] for the first 16 inputs, b[2], b[3] for the others. */
template <class S> static __device__ void expand(const uint32_t *word, uint32_t scale, uint32_t (&b)[4])
{
	if (S::F == FORM_W4) {
		float2 f = f32_of_f16_pair(scale);

		f.y -= 136 * f.x;                /* 0x4300 | q is 128 + q */
#pragma unroll
		for (int i = 0; i < 4; i++)
			b[i] = scaled((word[0] >> 4 * i & 0x000f000f) | 0x43004300, f.x, f.y);
	} else {
		bf16_of_e4m3(word[0], b[0], b[1]);
		bf16_of_e4m3(word[1], b[2], b[3]);
#pragma unroll
		for (int i = 0; i < 4; i++)
			b[i] = scaled(b[i], __uint_as_float(scale), 0);
	}
}

template <class S> struct parts { float part[S::F == FORM_W8A8 ? FM : 1][FN][4]; }; /* not yet scaled */

template <class S> static __device__ void fold(float (&sum)[FM][FN][4], parts<S> &p, const uint32_t *scale)
{
#pragma unroll
	for (int i = 0; i < FM * FN * 4; i++) {
		float *part = &p.part[S::F == FORM_W8A8 ? i / 16 : 0][i / 4 % 4][i % 4];

		sum[i / 16][i / 4 % 4][i % 4] += *part * __uint_as_float(scale[i / 4 % 4 * 8 + i % 2]);
		*part = 0;
	}
}

/* One slab: the fragments of this warp in a tile, whose halves are the columns of two warps. */
template <class S> static __device__ void multiply(float (&sum)[FM][FN][4], parts<S> &p,
	const unsigned char *stage, bool over)
{
	int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, column = warp / 2 * 32;
	const unsigned char *x = stage + (warp % 2 * 64 + lane % 16) * S::PITCH + lane / 16 * 16;
	const uint32_t *w = (const uint32_t *)(stage + S::X) + column / STRIP * TILE_WORDS * S::WORDS;
	const uint32_t *scale = (const uint32_t *)(stage + S::X + S::W) + column;
	uint32_t b[FN][4];

#pragma unroll
	for (int n = 0; n < FN; n++) {
		uint32_t word[2];

		for (int i = 0; i < S::WORDS; i++)
			word[i] = w[in_tile<S::WORDS>(column % STRIP / 8 + n, i, lane)];
		if (S::F == FORM_W8A8) {
			b[n][0] = word[0];
			b[n][1] = word[1];
		} else {
			expand<S>(word, scale[8 * n + lane / 4], b[n]);
		}
	}
#pragma unroll
	for (int m = 0; m < FM; m++) {
		uint32_t a[2][4];

		ldmatrix_x4(a[0], x + 16 * m * S::PITCH);
		if (S::F != FORM_W8A8)
			ldmatrix_x4(a[1], x + 16 * m * S::PITCH + 32);
#pragma unroll
		for (int n = 0; n < FN; n++) {
			if (S::F == FORM_W8A8) {
				mma_e4m3(p.part[S::F == FORM_W8A8 ? m : 0][n], a[0], b[n][0], b[n][1]);
			} else {
				mma_bf16(sum[m][n], a[0], b[n][0], b[n][1]);
				mma_bf16(sum[m][n], a[1], b[n][2], b[n][3]);
			}
		}
	}
	if (S::F == FORM_W8A8 && over)
		fold<S>(sum, p, scale + lane % 4 * 2);
}

/* grid: tiles of columns, tiles of rows */
template <class S> static __global__ void __launch_bounds__(THREADS)
	packed_many_kernel(struct packed_many_args a)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	int32_t slabs = a.w.K / SLAB, warp = (int32_t)threadIdx.x / 32, lane = (int32_t)threadIdx.x % 32;
	int32_t row = (int32_t)blockIdx.y * ROWS + warp % 2 * 64;
	int32_t col = (int32_t)blockIdx.x * COLS + warp / 2 * 32;
	float sum[FM][FN][4] = {};
	parts<S> p = {};

	for (int32_t s = 0; s < S::STAGES - 1; s++) {
		if (s < slabs)
			load<S>(shared + s * S::STAGE, a, s);
		cp_async_commit();
	}
	for (int32_t s = 0; s < slabs; s++) {
		int32_t ahead = s + S::STAGES - 1;

		cp_async_wait<S::STAGES - 2>();
		__syncthreads(); /* slab s is visible to all warps, and slab s - 1 is free */
		if (ahead < slabs)
			load<S>(shared + ahead % S::STAGES * S::STAGE, a, ahead);
		cp_async_commit();
		/* at least every 128 inputs: so far sums are accurate enough in the few digits of e4m3 */
		multiply<S>(sum, p, shared + s % S::STAGES * S::STAGE,
			(s + 1) % a.w.group == 0 || s % 4 == 3 || s + 1 == slabs);
	}
	if (S::F == FORM_W8A8) {
#pragma unroll
		for (int i = 0; i < 2 * FM; i++) {
			int32_t r = row + 8 * i + lane / 4;
			float f = r < a.T ? a.x_scale[r] : 0;

#pragma unroll
			for (int n = 0; n < FN; n++)
#pragma unroll
				for (int c = 0; c < 2; c++)
					sum[i / 2][n][i % 2 * 2 + c] *= f;
		}
	}
	put_y(sum, a.y, a.f32, a.bias, row, col, a.T, a.w.N);
}

/* ---- x in 8 bits ---------------------------------------------------------------------- */

/* For the output of attention, whose blocks do not have a whole row.  One block per row. */
static __global__ void quantize_kernel(const bf16 *x, int32_t K, uint32_t *to, float *scale)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);

	x += (size_t)blockIdx.x * (size_t)K;
	quantize_row([=](int32_t i) { return f32_of(x[i]); }, K, to + (size_t)blockIdx.x * (size_t)(K / 4),
		scale + blockIdx.x, (float *)shared);
}

static void quantize(struct dev *d, const bf16 *x, int32_t K, int T)
{
	cuda_ok(d, start(quantize_kernel, (unsigned)T, 128, 4 * sizeof(float), d->stream, x, K, d->product.x8,
		d->product.x8_scale), "quantize activations");
}

/* ---- choice of kernel ----------------------------------------------------------------- */

template <class S> static bool allow(struct dev *d)
{
	return cuda_ok(d, allow_shared(packed_many_kernel<S>, S::SHARED_BYTES), "matmul of packed weights");
}

bool packed_many_rows_prepare(struct dev *d)
{
	return allow<many<FORM_W4>>(d) && allow<many<FORM_W8>>(d) && allow<many<FORM_W8A8>>(d);
}

template <class S> static void product(struct dev *d, const struct packed_many_args &a)
{
	dim3 grid((unsigned)(a.w.N + COLS - 1) / COLS, (unsigned)(a.T + ROWS - 1) / ROWS);

	cuda_ok(d, start(packed_many_kernel<S>, grid, THREADS, S::SHARED_BYTES, d->stream, a),
		"matmul of packed weights");
}

void packed_many_rows(struct dev *d, void *y, bool f32, const bf16 *x, const struct weight *w, int T,
	bool made)
{
	struct packed_many_args a = { y, f32, (const unsigned char *)x, d->product.x8_scale, w->packed,
		w->bias, T };

	if (d->fault.lost)
		return;
	if (w->held == HELD_W4) {
		if (!hopper_many_rows(d, y, f32, x, w, T))
			product<many<FORM_W4>>(d, a);
	} else if (!uses_x8(d)) {
		product<many<FORM_W8>>(d, a);
	} else {
		if (!made)
			quantize(d, x, w->k, T);
		a.x = (const unsigned char *)d->product.x8;
		if (!d->fault.lost && !hopper_many_rows(d, y, f32, d->product.x8, w, T))
			product<many<FORM_W8A8>>(d, a);
	}
}
