/* packed_few_rows.cu - y[T][N] = x[T][K] w[N][K]^T + bias for up to 64 rows, w of 4 or 8 bits (packed.cuh).
 * The aim is the time that reading w takes.
 *
 * Stripes  As in stripes.cuh; a unit is KWARPS slabs of a tile of COLS outputs.
 * Warps    NWARPS divide the outputs of a tile; KWARPS divide the inputs of the block's part of it.  The
 *          weights of a warp come through its own ring in shared memory; x is shared.
 * Weights  They are not scaled before the product.  W4: 128 + q is the bf16 0x4300 | q, so a pair takes a
 *          shift and one logic operation.  The sums of (128 + q) x and of x, which an mma by ones makes, are
 *          scaled in f32 at the end of a group.  So w = s (q - 8) + b is never rounded.  W8: e4m3 is
 *          converted to bf16 exactly, and x is not changed.  N4: weights with their scales are exact in bf16; a
 *          factor for each output is left to the end.  The order of weights and the stripes are those
 *          of Marlin (arXiv 2408.11743).
 * Sums     The warps that divide K exchange fragments through shared memory, as each lane has them: every warp
 *          gets the sums of its share of the fragments, which stay in registers until y or a part is stored.
 * Rows     Rows of x from T on are not loaded.  Whatever is in their places goes into sums of their own, which
 *          nothing stores.
 *
 * A row's sum depends on which kernel ran and on the number of multiprocessors, not on the other rows; with
 * --enforce-deterministic not on the other outputs either (product_blocks).
 */
#include "device.cuh"
#include "packed.cuh"
#include "product.cuh"
#include "stripes.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define ONES 0x3f803f80u                     /* two bf16 */
/* GPUs with 99 KiB of shared memory have no room for two blocks.  So registers need not leave it, and few<32, ..> does
 * not spill there. */
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
#define ONE_FITS true
#else
#define ONE_FITS false
#endif

enum { OF_W4 = 1, OF_W8, OF_N4 };            /* KIND of weights */

template <int ROWS_, int KIND_> struct few {
	static const bool N4 = KIND_ == OF_N4;   /* e2m1 under two scales, which are part of the weights */
	static const int ROWS = ROWS_, WORDS = KIND_ == OF_W8 ? 2 : 1, M = ROWS / 16, N = STRIP / 8;
	static const int NWARPS = ROWS == 64 ? 4 : 2, KWARPS = WARPS / NWARPS, COLS = STRIP * NWARPS;
	static const bool HOLD = M == 1;         /* the sums of a whole group fit in registers; else those of a
	                                            slab */
	static const int OWN = M * N / KWARPS;   /* fragments of a warp's share */
	static const int BLOCKS = M <= 2 ? 2 : 1; /* per multiprocessor */
	static const int PITCH = KWARPS * SLAB + 8;
	static const int CHUNKS = KWARPS * SLAB / 8, X_ROWS = THREADS / CHUNKS; /* 16-byte pieces of a row of x;
	                                                                           rows that threads copy at once */
	static const size_t X = (size_t)ROWS * PITCH * sizeof(bf16);
	static const size_t W = (size_t)WORDS * TILE_WORDS * sizeof(uint32_t), SCALE = STRIP * sizeof(uint32_t);
	static const size_t STAGE = X + WARPS * (W + SCALE), PART = (size_t)ROWS * COLS * sizeof(float);
	static const int STAGES = 4 * STAGE <= 96 << 10 ? 4 : 3; /* some GPUs have 99 KiB */
	static const size_t RING = STAGES * STAGE, SUMS = (size_t)WARPS * (KWARPS - 1) * OWN * 32 * sizeof(float4);
	static const size_t SHARED_BYTES = (RING > SUMS ? RING : SUMS) + 16;
};

struct packed_few_args {
	void *y;
	bool f32;
	const bf16 *x;
	struct packed w;
	const float *bias;
	int32_t T;
	float *part;                             /* [blocks][2][OWN][THREADS] float4 */
	uint32_t *arrived;                       /* [tiles]; zero between kernels */
	uint32_t magic;                          /* 0x43004300.  Not a constant: an instruction holds one of 32 bits,
	                                            and the mask beside it is one */
};

/* The part of a tile that a block computes: slabs from .. to-1, `steps` for each of its KWARPS. */
struct tile_slabs { int32_t tile, from, to, steps; };

/* ---- the ring ------------------------------------------------------------------------- */

/* What a thread copies of the next step: its lane's words and scales of its warp's slab, and pieces of x. */
template <class S> struct copies {
	const uint32_t *words, *scale;
	const bf16 *x;
	int32_t slabs, x_slabs;                  /* that are left */
	int32_t in_group;                        /* slabs to the end of the group */
	int32_t x_rows;                          /* that exist, of those this thread copies */
};

/* The number of slabs of a K warp, of which some of the last may have fewer or none. */
static __device__ int32_t slabs_of(const struct tile_slabs &k, int32_t kwarp)
{
	int32_t left = k.to - k.from - kwarp * k.steps;

	return left < k.steps ? left : k.steps;
}

template <class S> static __device__ void begin_copies(copies<S> &c, const packed_few_args &a,
	const struct tile_slabs &k)
{
	int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
	int32_t strip = k.tile * S::NWARPS + warp / S::KWARPS, slab = k.from + warp % S::KWARPS * k.steps;
	int32_t row = (int32_t)threadIdx.x / S::CHUNKS, piece = (int32_t)threadIdx.x % S::CHUNKS * 8;
	int32_t x_slab = k.from + piece / SLAB * k.steps;

	c.slabs = strip < a.w.width / STRIP ? slabs_of(k, warp % S::KWARPS) : 0;
	c.words = a.w.words + ((size_t)strip * (size_t)(a.w.K / SLAB) + (size_t)slab) * (TILE_WORDS * S::WORDS) +
		lane * 4;
	c.scale = a.w.scale + (size_t)(slab / a.w.group) * (size_t)a.w.width + strip * STRIP + lane * 4;
	c.in_group = a.w.group - slab % a.w.group;
	c.x_slabs = slabs_of(k, piece / SLAB);
	c.x = a.x + (size_t)row * (size_t)a.w.K + x_slab * SLAB + piece % SLAB;
	c.x_rows = (a.T - row + S::X_ROWS - 1) / S::X_ROWS;
}

/* Starts to copy weights and scales, which depend on no other kernel. */
template <class S> static __device__ void load_w(unsigned char *stage, copies<S> &c, int32_t width,
	int32_t group)
{
	int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
	unsigned char *w = stage + S::X + (size_t)warp * S::W + lane * 16;

	if (c.slabs <= 0)
		return;
#pragma unroll
	for (int q = 0; q < 2 * S::WORDS; q++)
		cp_async_16_once(w + q * 512, c.words + q * 128, true);
	if ((!S::HOLD || c.in_group == 1 || c.slabs == 1) && lane < STRIP / 4)
		cp_async_16(stage + S::X + WARPS * S::W + warp * S::SCALE + lane * 16, c.scale, true);
	c.words += TILE_WORDS * S::WORDS;
	c.slabs--;
	if (--c.in_group == 0) {
		c.in_group = group;
		c.scale += width;
	}
}

/* The same for x, which all warps read. */
template <class S> static __device__ void load_x(unsigned char *stage, copies<S> &c, int32_t K)
{
	int row = (int)threadIdx.x / S::CHUNKS, piece = (int)threadIdx.x % S::CHUNKS * 8;
	bf16 *to = (bf16 *)stage + row * S::PITCH + piece;

	if (c.x_slabs <= 0)
		return;
#pragma unroll
	for (int i = 0; i < S::ROWS / S::X_ROWS; i++)
		if (i < c.x_rows)
			cp_async_16(to + i * S::X_ROWS * S::PITCH, c.x + (size_t)i * S::X_ROWS * (size_t)K, true);
	c.x += SLAB;
	c.x_slabs--;
}

/* ---- sums ----------------------------------------------------------------------------- */

template <class S> struct sums {
	float all[S::M][S::N][4];                /* scaled */
	float part[S::HOLD ? S::N : 1][4];       /* HOLD: of this group, not yet scaled */
	float x[4];                              /* HOLD, W4: sums of x over this group, in every column */
};

/* The weights of one fragment as bf16: b[0], b[1] for the first 16 inputs, b[2], b[3] for the others. */
template <class S> static __device__ void expand(const uint32_t *word, uint32_t scale, uint32_t magic,
	uint32_t (&b)[4])
{
	if (S::N4) {
		bf16_of_n4(word[0], scale, b);
	} else if (S::WORDS == 1) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			b[i] = (word[0] >> 4 * i & 0x000f000f) | magic;
	} else {
		bf16_of_e4m3(word[0], b[0], b[1]);
		bf16_of_e4m3(word[S::WORDS - 1], b[2], b[3]);
	}
}

/* The scale s of an output; W4's b + (-8 - 128) s goes with the sum of x. */
template <class S> static __device__ float2 scale_of(uint32_t word)
{
	float2 f;

	if (S::WORDS == 2)
		return make_float2(__uint_as_float(word), 0);
	f = f32_of_f16_pair(word);
	return make_float2(f.x, f.y - 136 * f.x);
}

/* all[m][n] += part and the sums of x, each scaled */
template <class S> static __device__ void add_scaled(sums<S> &sum, int m, int n, const float (&part)[4],
	const float (&x)[4], const uint32_t *scale)
{
	uint2 word = *(const uint2 *)(scale + 8 * n);
	float2 low = scale_of<S>(word.x), high = scale_of<S>(word.y);

#pragma unroll
	for (int j = 0; j < 4; j++) {
		float2 f = j % 2 ? high : low;

		sum.all[m][n][j] += f.x * part[j];
		if (S::WORDS == 1)
			sum.all[m][n][j] += f.y * x[j / 2 * 2];
	}
}

/* HOLD: at the end of a group. */
template <class S> static __device__ void end_group(sums<S> &sum, const uint32_t *scale)
{
#pragma unroll
	for (int n = 0; n < S::N; n++) {
		int at = S::HOLD ? n : 0;

		add_scaled<S>(sum, 0, n, sum.part[at], sum.x, scale);
#pragma unroll
		for (int j = 0; j < 4; j++)
			sum.part[at][j] = 0;
	}
#pragma unroll
	for (int j = 0; j < 4; j++)
		sum.x[j] = 0;
}

/* All rows times one slab of this warp. */
template <class S> static __device__ void multiply(sums<S> &sum, const unsigned char *stage, uint32_t magic,
	bool group_ends)
{
	int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
	const bf16 *x = (const bf16 *)stage + lane % 16 * S::PITCH + warp % S::KWARPS * SLAB + lane / 16 * 8;
	const uint4 *w = (const uint4 *)(stage + S::X + (size_t)warp * S::W) + lane;
	const uint32_t *scale = (const uint32_t *)(stage + S::X + WARPS * S::W + warp * S::SCALE) + lane % 4 * 2;
	uint32_t a[S::M][2][4];
	float slab_x[S::M][4] = {};

#pragma unroll
	for (int m = 0; m < S::M; m++)
#pragma unroll
		for (int c = 0; c < 2; c++) {
			ldmatrix_x4(a[m][c], x + 16 * m * S::PITCH + 16 * c);
			if (S::WORDS == 1 && !S::N4)
				mma_bf16(S::HOLD ? sum.x : slab_x[m], a[m][c], ONES, ONES);
		}
#pragma unroll
	for (int q = 0; q < 2 * S::WORDS; q++) {
		uint4 four = w[32 * q];
		uint32_t word[4] = { four.x, four.y, four.z, four.w };

#pragma unroll
		for (int i = 0; i < 4; i += S::WORDS) {
			int n = (4 * q + i) / S::WORDS;
			uint32_t b[4];

			expand<S>(word + i, S::N4 ? scale[8 * n + lane / 4 - lane % 4 * 2] : 0, magic, b);
#pragma unroll
			for (int m = 0; m < S::M && S::N4; m++) {
				mma_bf16(sum.all[m][n], a[m][0], b[0], b[1]);
				mma_bf16(sum.all[m][n], a[m][1], b[2], b[3]);
			}
			if (S::HOLD && !S::N4) {
				mma_bf16(sum.part[S::HOLD ? n : 0], a[0][0], b[0], b[1]);
				mma_bf16(sum.part[S::HOLD ? n : 0], a[0][1], b[2], b[3]);
			}
#pragma unroll
			for (int m = 0; m < S::M && !S::HOLD && !S::N4; m++) {
				float part[4] = {};

				mma_bf16(part, a[m][0], b[0], b[1]);
				mma_bf16(part, a[m][1], b[2], b[3]);
				add_scaled<S>(sum, m, n, part, slab_x[m], scale);
			}
		}
	}
	if (S::HOLD && !S::N4 && group_ends)
		end_group<S>(sum, scale);
}

/* The warps that divide K give each other their fragments and add up their own share, in order of warps.  A
 * fragment of a lane is 16 bytes: no two lanes use the same bank at a time. */
template <class S> static __device__ void add_warps(const sums<S> &sum, unsigned char *shared,
	float (&own)[S::OWN][4])
{
	int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, me = warp % S::KWARPS;
	float4 *strip = (float4 *)shared + warp / S::KWARPS * (S::KWARPS * (S::KWARPS - 1) * S::OWN * 32) + lane;

	__syncthreads(); /* the ring is free */
#pragma unroll
	for (int to = 0; to < S::KWARPS; to++)
#pragma unroll
		for (int i = 0; i < S::OWN; i++) {
			const float *f = sum.all[(to * S::OWN + i) / S::N][(to * S::OWN + i) % S::N];

			if (to == me) {
#pragma unroll
				for (int j = 0; j < 4; j++)
					own[i][j] = f[j];
			} else {
				strip[((to * (S::KWARPS - 1) + me - (me > to)) * S::OWN + i) * 32] =
					make_float4(f[0], f[1], f[2], f[3]);
			}
		}
	__syncthreads();
#pragma unroll
	for (int i = 0; i < S::OWN; i++) {
		float mine[4] = { own[i][0], own[i][1], own[i][2], own[i][3] };

#pragma unroll
		for (int from = 0; from < S::KWARPS; from++) {
			float4 v = make_float4(mine[0], mine[1], mine[2], mine[3]);

			if (from != me)
				v = strip[((me * (S::KWARPS - 1) + from - (from > me)) * S::OWN + i) * 32];
			own[i][0] = from ? own[i][0] + v.x : v.x;
			own[i][1] = from ? own[i][1] + v.y : v.y;
			own[i][2] = from ? own[i][2] + v.z : v.z;
			own[i][3] = from ? own[i][3] + v.w : v.w;
		}
	}
}

/* ---- stripes -------------------------------------------------------------------------- */

/* Where fragment i of this thread's share is: its first row and first output. */
template <class S> static __device__ void place_of(int32_t tile, int i, int32_t &row, int32_t &col)
{
	int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, f = warp % S::KWARPS * S::OWN + i;

	row = f / S::N * 16 + lane / 4;
	col = tile * S::COLS + warp / S::KWARPS * STRIP + f % S::N * 8 + lane % 4 * 2;
}

template <class S> static __device__ void put_tile(const packed_few_args &a, int32_t tile,
	const float (&own)[S::OWN][4])
{
#pragma unroll
	for (int i = 0; i < S::OWN; i++) {
		int32_t row, col;

		place_of<S>(tile, i, row, col);
		bool there = S::N4 && col < a.w.width;
		float f = there ? a.w.by[col] : 1, g = there ? a.w.by[col + 1] : 1;

		put_pair(a.y, a.f32, a.bias, row, col, a.T, a.w.N, own[i][0] * f, own[i][1] * g);
		put_pair(a.y, a.f32, a.bias, row + 8, col, a.T, a.w.N, own[i][2] * f, own[i][3] * g);
	}
}

/* This thread's place in a part of a tile; fragment i is THREADS float4 further. */
template <class S> static __device__ float4 *part_of(const packed_few_args &a, uint32_t block, bool first)
{
	return (float4 *)part_at(a.part, (size_t)S::ROWS * S::COLS, block, first) + threadIdx.x;
}

/* Fragments whose first row is beyond the last are neither stored nor added. */
template <class S> static __device__ void put_part(const packed_few_args &a, int32_t tile,
	const float (&own)[S::OWN][4], float4 *part)
{
#pragma unroll
	for (int i = 0; i < S::OWN; i++) {
		int32_t row, col;

		place_of<S>(tile, i, row, col);
		if (row < a.T)
			part[i * THREADS] = make_float4(own[i][0], own[i][1], own[i][2], own[i][3]);
	}
}

template <class S> static __device__ void add_parts(const packed_few_args &a, int32_t tile, uint32_t first,
	uint32_t parts, float (&own)[S::OWN][4])
{
	memset(own, 0, sizeof(own));
#pragma unroll 2
	for (uint32_t b = first; b < first + parts; b++) {
		const float4 *part = part_of<S>(a, b, b == first);
		float4 v[S::OWN];

#pragma unroll
		for (int i = 0; i < S::OWN; i++) {
			int32_t row, col;

			place_of<S>(tile, i, row, col);
			v[i] = row < a.T ? load_l2(part + i * THREADS) : make_float4(0, 0, 0, 0);
		}
#pragma unroll
		for (int i = 0; i < S::OWN; i++) {
			own[i][0] += v[i].x;
			own[i][1] += v[i].y;
			own[i][2] += v[i].z;
			own[i][3] += v[i].w;
		}
	}
}

template <class S> static __device__ unsigned char *after(unsigned char *stage, unsigned char *ring)
{
	return stage + S::STAGE == ring + S::RING ? ring : stage + S::STAGE;
}

template <class S> static __device__ void multiply_span(const packed_few_args &a, const struct tile_slabs &k,
	unsigned char *ring, float (&own)[S::OWN][4])
{
	unsigned char *to = ring, *from = ring;
	copies<S> c;
	sums<S> sum = {};

	begin_copies<S>(c, a, k);
	int32_t slabs = slabs_of(k, (int32_t)threadIdx.x / 32 % S::KWARPS), in_group = c.in_group;

	for (int32_t i = 0; i < S::STAGES - 1; i++)
		load_w<S>(ring + i * S::STAGE, c, a.w.width, a.w.group);
	wait_for_previous();             /* returns at once, except in a block's first span */
#pragma unroll 1
	for (int32_t i = 0; i < S::STAGES - 1; i++, to = after<S>(to, ring)) {
		load_x<S>(to, c, a.w.K);
		cp_async_commit();       /* the first group has all loads of weights so far */
	}
#pragma unroll 1
	for (int32_t i = 0; i < k.steps; i++) {
		bool ends = in_group == 1;

		cp_async_wait<S::STAGES - 2>();
		__syncthreads(); /* step i is visible to all warps, and step i - 1 is free */
		load_w<S>(to, c, a.w.width, a.w.group);
		load_x<S>(to, c, a.w.K);
		cp_async_commit();
		if (i < slabs)
			multiply<S>(sum, from, a.magic, ends || i + 1 == slabs);
		in_group = ends ? a.w.group : in_group - 1;
		to = after<S>(to, ring);
		from = after<S>(from, ring);
	}
	add_warps<S>(sum, ring, own);
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
	uint32_t units = units_of<S>(a), all = all_units<S>(a), from = first_unit(all, gridDim.x, blockIdx.x);
	uint32_t to = first_unit(all, gridDim.x, blockIdx.x + 1), begin;

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

template <class S> static __global__ void __launch_bounds__(THREADS, ONE_FITS ? 1 : S::BLOCKS)
packed_few_kernel(struct packed_few_args a)
{
	SHARED(shared);
	uint32_t *word = (uint32_t *)(shared + S::SHARED_BYTES - 16);
	struct tile_slabs k;
	uint32_t parts, first;

	let_next_start();
	for (k.tile = -1; next_span<S>(a, k); __syncthreads()) { /* the sums are read: the ring can be reused */
		float own[S::OWN][4];

		multiply_span<S>(a, k, shared, own);
		parts = parts_of(all_units<S>(a), gridDim.x, units_of<S>(a), (uint32_t)k.tile, first);
		if (parts > 1) {
			put_part<S>(a, k.tile, own, part_of<S>(a, blockIdx.x, blockIdx.x == first));
			if (!arrive(&a.arrived[k.tile], parts, word))
				continue;
			add_parts<S>(a, k.tile, first, parts, own);
		}
		put_tile<S>(a, k.tile, own);
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
	size_t few_rows = (size_t)d->gpu.processors * 2 * 2 * few<32, 1>::PART;
	size_t more_rows = (size_t)d->gpu.processors * 2 * few<64, 1>::PART;

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
	       allow<few<16, 2>>(d) && allow<few<32, 2>>(d) && allow<few<64, 2>>(d) &&
	       allow<few<16, OF_N4>>(d) && allow<few<32, OF_N4>>(d) && allow<few<64, OF_N4>>(d);
}

template <class S> static void product(struct dev *d, struct packed_few_args &a, int32_t whole)
{
	unsigned blocks = product_blocks(d, (a.w.width + S::COLS - 1) / S::COLS, (whole + S::COLS - 1) / S::COLS,
		(a.w.K / SLAB + S::KWARPS - 1) / S::KWARPS, blocks_of<S>(d));

	cuda_ok(d, start(packed_few_kernel<S>, blocks, THREADS, S::SHARED_BYTES, d->stream, a),
		"matmul of packed weights, few rows");
}

template <int KIND> static void pick(struct dev *d, struct packed_few_args &a, int32_t rows, int32_t whole)
{
	if (rows <= 16)
		product<few<16, KIND>>(d, a, whole);
	else if (rows <= 32)
		product<few<32, KIND>>(d, a, whole);
	else
		product<few<64, KIND>>(d, a, whole);
}

/* Multiplies T rows of x with the kernel for `rows` rows; both are at most 64. */
void packed_few_rows(struct dev *d, void *y, bool f32, const bf16 *x, const struct weight *w, int T, int rows)
{
	struct packed_few_args a = { y, f32, x, w->packed, w->bias, T, d->product.part, d->product.arrived,
		0x43004300 };

	if (d->fault.lost)
		return;
	if (w->held == HELD_N4)
		pick<OF_N4>(d, a, rows, w->whole);
	else if (w->held == HELD_W4)
		pick<OF_W4>(d, a, rows, w->whole);
	else
		pick<OF_W8>(d, a, rows, w->whole);
}
