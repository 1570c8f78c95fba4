/* packed_many_rows.cu - y[T][FN] = x[T][K] w[FN][K]^T + bias for many rows, w of 4 or 8 bits (packed.cuh).
 * It is bound by arithmetic.  Tiles of 128 x 128 are computed slab by slab from a ring of STAGES in shared
 * memory.
 *
 *	W4, W8   weights are scaled and rounded to bf16 in registers, as if that had been done at load
 *	N4       e2m1 with its scales is exact in bf16; a factor for each output is left to the end
 *	W8A8     sm_89 and later: x is quantized too, to e4m3 with a scale per row.  The sums of a group are
 *	         kept in separate registers until they are scaled, because tensor cores keep few digits for
 *	         e4m3
 *	W4A8     the same beside 4 bits, on request: q - z is a whole number of -16 .. 15, which e4m3 has
 *
 * Schedule   A block computes a tile, while there are tiles for all that fit on the GPU at a time.  Those of the last
 *            wave are laid end to end and cut into equal stripes (stripes.cuh).
 */
#include "device.cuh"
#include "packed.cuh"
#include "product.cuh"
#include "stripes.cuh"

#define ROWS 128
#define COLS 128
#define THREADS 256
#define PARTS 4                              /* most parts per tile, because its last block reads all */
#define THIN 8                               /* least slabs of a part */
#define FM 4                                 /* fragments per warp: 64 rows, 32 columns */
#define FN 4

enum form { FORM_W4, FORM_W8, FORM_W8A8, FORM_W4A8, FORM_N4 };

template <enum form F_> struct many {
	static const enum form F = F_;
	static const bool X8 = F == FORM_W8A8 || F == FORM_W4A8, FOUR = F != FORM_W8 && F != FORM_W8A8;
	static const bool PAIR = F == FORM_W4 || F == FORM_N4; /* two blocks fit on a multiprocessor of 99 KiB */
	static const int WORDS = FOUR ? 1 : 2;
	static const int ROW_BYTES = X8 ? SLAB : 2 * SLAB, PITCH = ROW_BYTES + 16;
	static const size_t X = ROWS * PITCH, W = (size_t)COLS / STRIP * WORDS * TILE_WORDS * sizeof(uint32_t);
	static const size_t STAGE = X + W + COLS * sizeof(uint32_t);
	static const int STAGES = PAIR ? 3 : 4;
	static const size_t SHARED_BYTES = STAGES * STAGE + 16;
	static const int BLOCKS = PAIR ? 2 : 1; /* per multiprocessor */
};

struct packed_many_args {
	void *y;
	bool f32;
	const unsigned char *x;                  /* bf16, or e4m3 in the order of packed_place() */
	const float *x_scale;                    /* e4m3: [T] */
	struct packed w;
	const float *bias;
	int32_t T;
	int32_t columns, whole, stripes, tiles;  /* tiles of outputs; tiles computed whole; blocks that share the rest;
	                                            all tiles */
	float *part;                             /* [stripes][2][FM * FN][THREADS] float4 */
	uint32_t *arrived;                       /* [tiles of the rest]; zero between kernels */
};

/* Slabs from .. to-1 of a tile. */
struct tile_part { int32_t tile, from, to; };

template <class S> static __device__ void load(unsigned char *stage, const packed_many_args &a, int32_t tile,
	int32_t slab)
{
	const int chunks = S::ROW_BYTES / 16, tile_chunks = S::WORDS * TILE_WORDS / 4;
	int32_t row = tile / a.columns * ROWS, strip = tile % a.columns * (COLS / STRIP);
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

/* The weights of one fragment as bf16: b[0], b[1] for the first 16 inputs, b[2], b[3] for the others.  Beside x in
 * e4m3 b[0] and b[1] are their bytes. */
template <class S> static __device__ void expand(const uint32_t *word, uint32_t scale, uint32_t (&b)[4])
{
	if (S::F == FORM_W8A8) {
		b[0] = word[0];
		b[1] = word[S::WORDS - 1];
	} else if (S::F == FORM_N4) {
		bf16_of_n4(word[0], scale, b);
	} else if (S::F == FORM_W4A8) {
		e4m3_of_w4(word[0], w4a8_offset(f32_of_f16_pair(scale)), b[0], b[1]);
	} else if (S::F == FORM_W4) {
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

template <class S> struct parts { float part[S::X8 ? FM : 1][FN][4]; }; /* not yet scaled */

template <class S> static __device__ float factor(uint32_t scale)
{
	return S::F == FORM_W4A8 ? f32_of_f16_pair(scale).x * W4A8_SCALE : __uint_as_float(scale);
}

template <class S> static __device__ void fold(float (&sum)[FM][FN][4], parts<S> &p, const uint32_t *scale)
{
#pragma unroll
	for (int i = 0; i < FM * FN * 4; i++) {
		float *part = &p.part[S::X8 ? i / 16 : 0][i / 4 % 4][i % 4];

		sum[i / 16][i / 4 % 4][i % 4] += *part * factor<S>(scale[i / 4 % 4 * 8 + i % 2]);
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
		expand<S>(word, S::F == FORM_W8A8 ? 0 : scale[8 * n + lane / 4], b[n]);
	}
#pragma unroll
	for (int m = 0; m < FM; m++) {
		uint32_t a[2][4];

		ldmatrix_x4(a[0], x + 16 * m * S::PITCH);
		if (!S::X8)
			ldmatrix_x4(a[1], x + 16 * m * S::PITCH + 32);
#pragma unroll
		for (int n = 0; n < FN; n++) {
			if (S::X8) {
				mma_e4m3(p.part[S::X8 ? m : 0][n], a[0], b[n][0], b[n][1]);
			} else {
				mma_bf16(sum[m][n], a[0], b[n][0], b[n][1]);
				mma_bf16(sum[m][n], a[1], b[n][2], b[n][3]);
			}
		}
	}
	if (S::X8 && over)
		fold<S>(sum, p, scale + lane % 4 * 2);
}

/* ---- tiles ----------------------------------------------------------------------------- */

template <class S> static __device__ void multiply_part(float (&sum)[FM][FN][4], const packed_many_args &a,
	const struct tile_part &k, unsigned char *shared)
{
	parts<S> p = {};
	int32_t n = k.to - k.from;

	for (int32_t i = 0; i < S::STAGES - 1; i++) {
		if (i < n)
			load<S>(shared + i * S::STAGE, a, k.tile, k.from + i);
		cp_async_commit();
	}
	for (int32_t i = 0; i < n; i++) {
		int32_t ahead = i + S::STAGES - 1, s = k.from + i;

		cp_async_wait<S::STAGES - 2>();
		__syncthreads(); /* slab i is visible to all warps, and slab i - 1 is free */
		if (ahead < n)
			load<S>(shared + ahead % S::STAGES * S::STAGE, a, k.tile, k.from + ahead);
		cp_async_commit();
		/* at least every 128 inputs: so far sums are accurate enough in the few digits of e4m3 */
		multiply<S>(sum, p, shared + i % S::STAGES * S::STAGE,
			(s + 1) % a.w.group == 0 || s % 4 == 3 || s + 1 == k.to);
	}
}

/* The rows of x in 8 bits have a scale each. */
static __device__ void scale_rows(float (&sum)[FM][FN][4], const packed_many_args &a, int32_t row)
{
#pragma unroll
	for (int32_t i = 0; i < 2 * FM; i++) {
		int32_t r = row + 8 * i + (int32_t)threadIdx.x % 32 / 4;
		float f = r < a.T ? a.x_scale[r] : 0;

#pragma unroll
		for (int n = 0; n < FN; n++)
#pragma unroll
			for (int c = 0; c < 2; c++)
				sum[i / 2][n][i % 2 * 2 + c] *= f;
	}
}

/* N4: what is left of each output's factor. */
static __device__ void scale_outputs(float (&sum)[FM][FN][4], const packed_many_args &a, int32_t col)
{
	col += (int32_t)threadIdx.x % 4 * 2;
#pragma unroll
	for (int i = 0; i < FM * FN * 4; i++) {
		int32_t c = col + i / 4 % FN * 8 + i % 2;

		sum[i / (4 * FN)][i / 4 % FN][i % 4] *= c < a.w.width ? a.w.by[c] : 0;
	}
}

/* The work of this block after k; at first k.tile is -1.  False: none is left. */
template <class S> static __device__ bool next_part(const packed_many_args &a, struct tile_part &k)
{
	uint32_t slabs = (uint32_t)(a.w.K / SLAB), all = (uint32_t)(a.tiles - a.whole) * slabs, from, to, begin;
	uint32_t stripe = blockIdx.x - (uint32_t)a.whole;

	if (blockIdx.x < (uint32_t)a.whole) {
		if (k.tile >= 0)
			return false;
		k = { (int32_t)blockIdx.x, 0, (int32_t)slabs };
		return true;
	}
	from = first_unit(all, (uint32_t)a.stripes, stripe);
	to = first_unit(all, (uint32_t)a.stripes, stripe + 1);
	k.tile = k.tile < 0 ? a.whole + (int32_t)(from / slabs) : k.tile + 1;
	begin = (uint32_t)(k.tile - a.whole) * slabs;
	from = from > begin ? from - begin : 0;
	if (begin + from >= to)
		return false;
	k.from = (int32_t)from;
	k.to = (int32_t)(to - begin < slabs ? to - begin : slabs);
	return true;
}

/* Stores the part of this block.  True in the last block to do so, whose sums are then those of the tile. */
static __device__ bool add_parts(float (&sum)[FM][FN][4], const packed_many_args &a, const struct tile_part &k,
	int32_t row, uint32_t *word)
{
	uint32_t slabs = (uint32_t)(a.w.K / SLAB), first, stripe = blockIdx.x - (uint32_t)a.whole;
	uint32_t parts = parts_of((uint32_t)(a.tiles - a.whole) * slabs, (uint32_t)a.stripes, slabs,
		(uint32_t)(k.tile - a.whole), first);
	float4 *mine = (float4 *)part_at(a.part, (size_t)ROWS * COLS, stripe, stripe == first) + threadIdx.x;

	row += (int32_t)threadIdx.x % 32 / 4;
#pragma unroll
	for (int i = 0; i < FM * FN; i++) {
		float *f = sum[i / FN][i % FN];

		if (row + i / FN * 16 < a.T)     /* fragments whose first row is beyond the last stay where they are */
			mine[i * THREADS] = make_float4(f[0], f[1], f[2], f[3]);
	}
	if (!arrive(&a.arrived[k.tile - a.whole], parts, word))
		return false;
	memset(sum, 0, sizeof(sum));
#pragma unroll 1
	for (uint32_t b = first; b < first + parts; b++) {
		const float4 *part = (const float4 *)part_at(a.part, (size_t)ROWS * COLS, b, b == first) + threadIdx.x;

#pragma unroll
		for (int i = 0; i < FM * FN; i++) {
			float4 v = row + i / FN * 16 < a.T ? load_l2(part + i * THREADS) : make_float4(0, 0, 0, 0);
			float *f = sum[i / FN][i % FN];

			f[0] += v.x;
			f[1] += v.y;
			f[2] += v.z;
			f[3] += v.w;
		}
	}
	return true;
}

/* grid: a.whole + a.stripes */
template <class S> static __global__ void __launch_bounds__(THREADS, S::BLOCKS)
	packed_many_kernel(struct packed_many_args a)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	int32_t warp = (int32_t)threadIdx.x / 32;
	struct tile_part k;

	for (k.tile = -1; next_part<S>(a, k); __syncthreads()) { /* then the ring can be reused */
		int32_t row = k.tile / a.columns * ROWS + warp % 2 * 64, col = k.tile % a.columns * COLS + warp / 2 * 32;
		float sum[FM][FN][4] = {};

		multiply_part<S>(sum, a, k, shared);
		if (k.to - k.from < a.w.K / SLAB &&
		    !add_parts(sum, a, k, row, (uint32_t *)(shared + S::STAGES * S::STAGE)))
			continue;
		if (S::X8)
			scale_rows(sum, a, row);
		if (S::F == FORM_N4)
			scale_outputs(sum, a, col);
		put_y(sum, a.y, a.f32, a.bias, row, col, a.T, a.w.N);
	}
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
	return allow<many<FORM_W4>>(d) && allow<many<FORM_W8>>(d) && allow<many<FORM_W8A8>>(d) &&
	       allow<many<FORM_W4A8>>(d) && allow<many<FORM_N4>>(d);
}

size_t packed_many_part_bytes(const struct dev *d)
{
	return (size_t)d->gpu.processors * many<FORM_W4>::BLOCKS * 2 * ROWS * COLS * sizeof(float);
}

/* Decides which tiles are computed whole, and how many blocks share the rest. */
template <class S> static void schedule(const struct dev *d, struct packed_many_args *a)
{
	bool all = d->gpu.shared_bytes >= (int32_t)(S::BLOCKS * (S::SHARED_BYTES + 1024));
	int32_t fit = d->gpu.processors * (all ? S::BLOCKS : 1), slabs = a->w.K / SLAB, rest, thin;

	a->columns = (a->w.N + COLS - 1) / COLS;
	a->tiles = a->columns * ((a->T + ROWS - 1) / ROWS);
	rest = d->product.divided ? a->tiles % fit : 0;
	a->stripes = rest * PARTS < fit ? rest * PARTS : fit;
	thin = (int32_t)((int64_t)rest * slabs / THIN);
	if (a->stripes > thin)
		a->stripes = thin;
	if (a->stripes <= rest || rest * 10 > fit * 9) /* above 90% parts would cost more than they save */
		a->stripes = rest = 0;
	a->whole = a->tiles - rest;
}

template <class S> static void product(struct dev *d, struct packed_many_args a)
{
	schedule<S>(d, &a);
	cuda_ok(d, start(packed_many_kernel<S>, (unsigned)(a.whole + a.stripes), THREADS, S::SHARED_BYTES, d->stream, a),
		"matmul of packed weights");
}

void packed_many_rows(struct dev *d, void *y, bool f32, const bf16 *x, const struct weight *w, int T,
	bool made)
{
	struct packed_many_args a = { y, f32, (const unsigned char *)x, d->product.x8_scale, w->packed,
		w->bias, T, 0, 0, 0, 0, d->product.part, d->product.arrived };

	bool x8 = uses_x8(d, w);

	if (d->fault.lost)
		return;
	if (x8 && !made)
		quantize(d, x, w->k, T);
	if (x8)
		a.x = (const unsigned char *)d->product.x8;
	if (d->fault.lost || ((x8 || w->held == HELD_W4) && hopper_many_rows(d, y, f32, a.x, w, T)))
		return;
	if (w->held == HELD_N4)
		product<many<FORM_N4>>(d, a);
	else if (w->held == HELD_W4)
		x8 ? product<many<FORM_W4A8>>(d, a) : product<many<FORM_W4>>(d, a);
	else
		x8 ? product<many<FORM_W8A8>>(d, a) : product<many<FORM_W8>>(d, a);
}
