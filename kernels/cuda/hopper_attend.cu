/* hopper_attend.cu - attention of runs on sm_90a: wgmma, with K and V loaded by TMA straight from the
 * cache's blocks.  It handles heads of width 64 and 128 in bf16; attend.cu handles all others, and single
 * tokens.
 *
 * Rows       (token, head) pairs of one KV head, as in attend.cu: 128 per block, 64 per warpgroup.  Their Q
 *            stays in registers as wgmma's left operand.  So do the scores S[64][128], which become P in
 *            bf16, again a left operand, and the sums O[64][E].  The online softmax is FlashAttention's.
 *            The roles are those of FlashAttention-3 (arXiv 2407.08608): one warp loads and two warpgroups
 *            compute; one does its softmax while the other multiplies.
 * K, V       A tile has 128 positions, which are 8 blocks of the cache.  TMA treats the whole cache as one
 *            matrix, [blocks * n_layers * n_kv_heads * 2 * BLOCK][E], where E is head_dim.  A block of one
 *            head's K is a box of 16 of its rows; heads of 128 need two boxes, of 128 bytes each row.  Lane i
 *            of the loading warp loads block i.
 *
 *	           tile of K, and of V          e 0 .. 63   e 64 .. 127
 *	   lane 0   positions  0 .. 15           2 KiB       2 KiB        S = Q K^T   E runs along both: operand()
 *	   lane 1             16 .. 31           2 KiB       2 KiB        O += P V    positions are rows, E runs
 *	    ..                                    ..          ..                      along N: operand_rows()
 *	   lane 7            112 .. 127          2 KiB       2 KiB
 *	                                        16 KiB, then 16 KiB
 *
 *            Beyond the last position a block holds arbitrary data, and 0 times that may be NaN.  So the last
 *            blocks of V are copied by threads, with zeros.  Scores there are overwritten in any case.
 * Ring       As in hopper_many_rows.cu.  K and V have separate barriers: K's stage is free after the scores.
 */
#include "device.cuh"
#include "hopper.cuh"

#define LOADERS 128                          /* threads: setmaxnreg works on whole warpgroups */
#define THREADS (LOADERS + 256)
#define ROWS 128                             /* per block */
#define POSITIONS 128                        /* per tile */
#define BLOCKS (POSITIONS / BLOCK)           /* blocks of the cache per tile */
#define HALF (POSITIONS * 128)               /* bytes: 64 elements of each position */
#define BOX (BLOCK * 128)

#define LOG2_E 1.4426950408889634f
#define NONE   (-INFINITY)

template <int E> struct attend_shape {
	static const int HALVES = E / 64, STAGES = E == 64 ? 4 : 3;
	static const size_t TILE = (size_t)HALVES * HALF, RING = 2 * STAGES * TILE;
	static const size_t SHARED_BYTES = PATTERN + RING + 4 * STAGES * sizeof(uint64_t);
};

struct run_args {
	CUtensorMap map;                         /* of the cache */
	const bf16 *qkv, *kv;
	bf16 *out;
	const struct batch_token *token;
	const struct run_piece *run;
	float *part;
	const int32_t *table;
	int32_t table_cap, n_layers, layer, n_kv_heads, n_heads, heads, width, window, chunk, ahead;
	float scale, cap;
	const float *sink;                       /* [n_heads], or NULL */
};

#ifdef ON_HOPPER

/* The work of a block: rows of tokens t .. of a sequence, which attend to positions from .. to - 1. */
struct run_work {
	int32_t piece;                           /* of the list */
	int32_t t, rows, position;               /* position: of token t */
	int32_t low, from, to, tiles;            /* low: the first position of its piece; from: of its first tile */
	bool part;                               /* other blocks have other positions of these rows */
	const int32_t *table;
};

template <int E> struct kv_ring {
	unsigned char *key, *value;
	uint64_t *key_full, *key_empty, *value_full, *value_empty;

	__device__ kv_ring(unsigned char *shared)
	{
		key = shared + (-shared_address(shared) & (PATTERN - 1));
		value = key + attend_shape<E>::STAGES * attend_shape<E>::TILE;
		key_full = (uint64_t *)(key + attend_shape<E>::RING);
		key_empty = key_full + attend_shape<E>::STAGES;
		value_full = key_empty + attend_shape<E>::STAGES;
		value_empty = value_full + attend_shape<E>::STAGES;
	}
};

/* ---- K and V -------------------------------------------------------------------------- */

/* Copies positions first .. of the tile of V at j0, with zeros from `to` on, swizzled as by TMA. */
template <int E> static __device__ void copy_values(unsigned char *tile, const run_args &a,
	const run_work &k, int32_t j0, int first)
{
	const int chunks = E / 8;                /* of 16 bytes */
	int lane = (int)threadIdx.x % 32, g = (int)blockIdx.y;

	for (int i = first * chunks + lane; i < POSITIONS * chunks; i += 32) {
		int r = i / chunks, c = i % chunks;
		int32_t j = j0 + r;
		uint4 v = make_uint4(0, 0, 0, 0);

		if (j < k.to)
			v = *(const uint4 *)(a.kv +
				kv_at(BLOCK * E, a.n_layers, a.n_kv_heads, k.table[j / BLOCK], a.layer, g) +
				(size_t)((BLOCK + j % BLOCK) * E + c * 8));
		*(uint4 *)(tile + c / 8 * HALF + r * 128 + (c % 8 ^ r % 8) * 16) = v;
	}
	fence_async();
	__syncwarp();
}

/* Loads this lane's block of K, or else of V, if it is one of the tile's first n. */
template <int E> static __device__ void load_block(unsigned char *tile, const run_args &a, const run_work &k,
	int32_t j0, bool value, int n, uint64_t *full)
{
	int lane = (int)threadIdx.x % 32;

	if (lane == 0)
		mbarrier_expect(full, (uint32_t)(n * attend_shape<E>::HALVES * BOX));
	__syncwarp();
	if (lane >= n)
		return;
	int32_t row = (int32_t)(kv_at(BLOCK, a.n_layers, a.n_kv_heads, k.table[j0 / BLOCK + lane], a.layer,
		(int)blockIdx.y)) + (value ? BLOCK : 0);

	for (int h = 0; h < attend_shape<E>::HALVES; h++)
		tensor_load(tile + h * HALF + lane * BOX, &a.map, 64 * h, row, full);
}

/* Run by one warp. */
template <int E> static __device__ void load(const run_args &a, const run_work &k, const kv_ring<E> &r)
{
	typedef attend_shape<E> S;
	int stage = 0;
	uint32_t phase = 0;

	for (int32_t i = 0; i < k.tiles; i++) {
		int32_t j0 = k.from + i * POSITIONS, left = k.to - j0 < POSITIONS ? k.to - j0 : POSITIONS;

		mbarrier_wait(&r.key_empty[stage], phase ^ 1);
		load_block<E>(r.key + stage * S::TILE, a, k, j0, false, (left + BLOCK - 1) / BLOCK,
			&r.key_full[stage]);
		mbarrier_wait(&r.value_empty[stage], phase ^ 1);
		if (left < POSITIONS)
			copy_values<E>(r.value + stage * S::TILE, a, k, j0, left / BLOCK * BLOCK);
		load_block<E>(r.value + stage * S::TILE, a, k, j0, true, left / BLOCK, &r.value_full[stage]);
		if (++stage == S::STAGES) {
			stage = 0;
			phase ^= 1;
		}
	}
}

/* ---- 64 rows -------------------------------------------------------------------------- */

template <int E> struct rows64 {             /* in a lane: rows g and g + 8 of its warp */
	uint32_t q[E / 16][4];
	float o[E / 2];
	float most[2], sum[2];
	int32_t low[2], high[2];                 /* the positions that a row attends to */
};

static __device__ int32_t first_row()        /* of this warp */
{
	return (int32_t)(threadIdx.x - LOADERS) / 32 * 16;
}

template <int E> static __device__ void begin_rows(rows64<E> &w, const run_args &a, const run_work &k)
{
	int lane = (int)threadIdx.x % 32, g = (int)blockIdx.y;

#pragma unroll
	for (int h = 0; h < 2; h++) {
		int32_t r = first_row() + lane / 4 + 8 * h, n = r < k.rows ? r : 0, at = k.position + n / a.heads;
		const bf16 *q = a.qkv + (size_t)(k.t + n / a.heads) * (size_t)a.width +
			(size_t)((g * a.heads + n % a.heads) * E + lane % 4 * 2);

		w.most[h] = NONE;
		w.sum[h] = 0;
		w.high[h] = r >= k.rows ? -1 : at + a.ahead < k.to ? at + a.ahead : k.to - 1;
		w.low[h] = first_read(a.window, a.chunk, at);
		w.low[h] = w.low[h] > k.low ? w.low[h] : k.low;
#pragma unroll
		for (int i = 0; i < E / 16; i++) {
			w.q[i][h] = *(const uint32_t *)(q + 16 * i);
			w.q[i][h + 2] = *(const uint32_t *)(q + 16 * i + 8);
		}
	}
#pragma unroll
	for (int i = 0; i < E / 2; i++)
		w.o[i] = 0;
}

template <int E> static __device__ void scores(float (&s)[POSITIONS / 2], rows64<E> &w,
	const unsigned char *key)
{
#pragma unroll
	for (int i = 0; i < E / 16; i++)
		keep_order(w.q[i]);
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < E / 16; i++)
		wgmma_bf16(s, w.q[i], along(operand(key + i / 4 * HALF), i % 4 * 32), i > 0);
	wgmma_commit();
	wgmma_wait<0>();
	keep_order(s);
}

/* Turns scores into probabilities relative to 2^most.  Earlier sums are scaled down as `most` grows.  Scores stay
 * as they are until the exponent, where `by` makes them powers of 2; with a CAP they become that before. */
template <int E, bool CAP> static __device__ void softmax(float (&s)[POSITIONS / 2], rows64<E> &w, int32_t j0,
	float scale, float cap)
{
	int column = (int)threadIdx.x % 4 * 2;
	float by = CAP ? 1 : scale * LOG2_E;

#pragma unroll
	for (int i = 0; i < POSITIONS / 2 && CAP; i++)
		s[i] = cap * tanhf(s[i] * (scale / cap)) * LOG2_E;
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float most = NONE, base, sum = 0, shrink;

		if (j0 < w.low[h] || j0 + POSITIONS - 1 > w.high[h]) {
#pragma unroll
			for (int n = 0; n < POSITIONS / 4; n++) {
				float &x = s[n / 2 * 4 + 2 * h + n % 2];
				int32_t j = j0 + n / 2 * 8 + column + n % 2;

				x = j >= w.low[h] && j <= w.high[h] ? x : NONE;
			}
		}
#pragma unroll
		for (int n = 0; n < POSITIONS / 4; n++)
			most = fmaxf(most, s[n / 2 * 4 + 2 * h + n % 2]);
		most = fmaxf(most, __shfl_xor_sync(FULL, most, 1));
		most = fmaxf(most, __shfl_xor_sync(FULL, most, 2));
		most = fmaxf(w.most[h], most * by);
		base = most > NONE ? most : 0;   /* NONE so far: avoids -inf - -inf */
		shrink = exp2_fast(w.most[h] - base);
#pragma unroll
		for (int n = 0; n < POSITIONS / 4; n++) {
			float &x = s[n / 2 * 4 + 2 * h + n % 2];

			x = exp2_fast(x * by - base);
			sum += x;
		}
		w.most[h] = most;
		w.sum[h] = w.sum[h] * shrink + sum; /* of this lane's columns; lanes are added at the end */
#pragma unroll
		for (int n = 0; n < E / 4; n++)
			w.o[n / 2 * 4 + 2 * h + n % 2] *= shrink;
	}
}

template <int E> static __device__ void values(rows64<E> &w, uint32_t (&p)[POSITIONS / 16][4],
	const unsigned char *value)
{
#pragma unroll
	for (int i = 0; i < POSITIONS / 16; i++)
		keep_order(p[i]);
	keep_order(w.o);
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < POSITIONS / 16; i++)
		wgmma_bf16_rows(w.o, p[i], operand_rows(value + i * BOX, HALF), true);
	wgmma_commit();
	wgmma_wait<0>();
	keep_order(w.o);
}

static __device__ void release(uint64_t *empty)
{
	__syncwarp();
	if (threadIdx.x % 32 == 0)
		mbarrier_arrive(empty);
}

template <int E> static __device__ void put_rows(rows64<E> &w, const run_args &a, const run_work &k)
{
	int t = (int)threadIdx.x % 4, g = (int)threadIdx.x % 32 / 4;

#pragma unroll
	for (int h = 0; h < 2; h++) {
		int32_t r = first_row() + g + 8 * h;
		bf16 *to = a.out + (size_t)(k.t + r / a.heads) * (size_t)(a.n_heads * E) +
			(size_t)(((int)blockIdx.y * a.heads + r % a.heads) * E);
		float by = w.sum[h];

		by += __shfl_xor_sync(FULL, by, 1);
		by += __shfl_xor_sync(FULL, by, 2);
		by += sink_share(a.sink, (int)blockIdx.y * a.heads + r % a.heads, w.most[h]);
		by = 1 / by;
#pragma unroll
		for (int n = 0; n < E / 8; n += 4) { /* 4 groups of 8 columns; each lane stores one group */
			uint32_t word[4];

#pragma unroll
			for (int i = 0; i < 4; i++)
				word[i] = bf16_pair(w.o[4 * (n + i) + 2 * h] * by, w.o[4 * (n + i) + 2 * h + 1] * by);
			transpose_four(word);
			if (r < k.rows)
				*(uint4 *)(to + 8 * (n + t)) = make_uint4(word[0], word[1], word[2], word[3]);
		}
	}
}

template <int E> static __device__ void put_part(const rows64<E> &w, const run_args &a, const run_work &k)
{
	int t = (int)threadIdx.x % 4, g = (int)threadIdx.x % 32 / 4;

#pragma unroll
	for (int h = 0; h < 2; h++) {
		int32_t r = first_row() + g + 8 * h;
		float *to = a.part + (((size_t)k.piece * (size_t)a.n_kv_heads + blockIdx.y) * ROWS + (size_t)r) *
			RUN_PITCH(E);
		float sum = w.sum[h];

		sum += __shfl_xor_sync(FULL, sum, 1);
		sum += __shfl_xor_sync(FULL, sum, 2);
		if (r >= k.rows)
			continue;
#pragma unroll
		for (int n = 0; n < E / 8; n++)
			*(float2 *)(to + 8 * n + 2 * t) = make_float2(w.o[4 * n + 2 * h], w.o[4 * n + 2 * h + 1]);
		if (t == 0)
			*(float2 *)(to + E) = make_float2(w.most[h], sum);
	}
}

template <int E, bool CAP> static __device__ void compute(const run_args &a, const run_work &k, const kv_ring<E> &r)
{
	typedef attend_shape<E> S;
	int32_t last = (int32_t)(threadIdx.x - LOADERS) / 128 * 64; /* first row of this warpgroup, then its
	                                                               last position */
	int stage = 0;
	uint32_t phase = 0;
	rows64<E> w;

	begin_rows<E>(w, a, k);
	last = last < k.rows ? k.position + (last + 63 < k.rows ? last + 63 : k.rows - 1) / a.heads + a.ahead : -1;
	for (int32_t i = 0; i < k.tiles; i++) {
		int32_t j0 = k.from + i * POSITIONS;
		bool seen = j0 <= last;          /* some row attends to this tile */
		uint32_t p[POSITIONS / 16][4];
		float s[POSITIONS / 2];

		mbarrier_wait(&r.key_full[stage], phase);
		if (seen)
			scores<E>(s, w, r.key + stage * S::TILE);
		release(&r.key_empty[stage]);
		if (seen) {
			softmax<E, CAP>(s, w, j0, a.scale, a.cap);
#pragma unroll
			for (int n = 0; n < POSITIONS / 4; n++)
				p[n / 4][n % 4] = bf16_pair(s[2 * n], s[2 * n + 1]);
		}
		mbarrier_wait(&r.value_full[stage], phase);
		if (seen)
			values<E>(w, p, r.value + stage * S::TILE);
		release(&r.value_empty[stage]);
		if (++stage == S::STAGES) {
			stage = 0;
			phase ^= 1;
		}
	}
	if (k.part)
		put_part<E>(w, a, k);
	else
		put_rows<E>(w, a, k);
}

static __device__ run_work work_of(const run_args &a)
{
	int32_t i = (int32_t)(gridDim.x - 1 - blockIdx.x); /* end of the prompt first, because it takes longest */
	struct run_piece run = a.run[i];
	struct batch_token first = a.token[run.t < 0 ? 0 : run.t];
	run_work k = { i, run.t, run.t < 0 ? 0 : run.n * a.heads, first.position, run.from, 0, run.to, 0,
		run.pieces > 1, a.table + (size_t)first.slot * (size_t)a.table_cap };
	int32_t seen = first_read(a.window, a.chunk, k.position), end = k.position + run.n + a.ahead;

	k.to = end < k.to ? end : k.to;
	k.from = (seen > run.from ? seen : run.from) / BLOCK * BLOCK;
	k.tiles = run.t < 0 || k.to <= k.from ? 0 : (k.to - k.from + POSITIONS - 1) / POSITIONS;
	return k;
}

#endif

/* grid: pieces of runs, KV heads */
template <int E, bool CAP> static __global__ void __launch_bounds__(THREADS, 1)
hopper_attend_kernel(const __grid_constant__ struct run_args a)
{
#ifdef ON_HOPPER
	let_next_start();
	SHARED(shared);
	kv_ring<E> r(shared);

	if (threadIdx.x == 0) {
		for (int s = 0; s < attend_shape<E>::STAGES; s++) {
			mbarrier_init(&r.key_full[s], 1);
			mbarrier_init(&r.value_full[s], 1);
			mbarrier_init(&r.key_empty[s], (THREADS - LOADERS) / 32);
			mbarrier_init(&r.value_empty[s], (THREADS - LOADERS) / 32);
		}
		mbarrier_fence_init();
		tensor_prefetch(&a.map);
	}
	__syncthreads();
	wait_for_previous();
	run_work k = work_of(a);

	if (threadIdx.x < LOADERS) {
		registers_down<40>();
		if (threadIdx.x < 32)
			load<E>(a, k, r);
	} else {
		registers_up<232>();
		if (k.t >= 0)
			compute<E, CAP>(a, k, r);
	}
#else
	not_hopper();
#endif
}

/* ---- choice of kernel ----------------------------------------------------------------- */

bool hopper_attends(const struct dev *d)
{
	int32_t E = d->m->kind[0].head_dim;

	return can_hopper(d->gpu.capability) && !d->uneven && has(d, SPECIAL_HOPPER_ATTEND) && !d->deterministic && !d->kv.f8 &&
	       (E == 64 || E == 128);
}

int32_t hopper_attend_rows(void)
{
	return ROWS;
}

template <int E> static bool allow(struct dev *d)
{
	return cuda_ok(d, allow_shared(hopper_attend_kernel<E, false>, attend_shape<E>::SHARED_BYTES),
			"attend, runs on Hopper") &&
	       cuda_ok(d, allow_shared(hopper_attend_kernel<E, true>, attend_shape<E>::SHARED_BYTES),
			"attend, runs on Hopper");
}

bool hopper_attend_prepare(struct dev *d)
{
	return !hopper_attends(d) || (d->m->kind[0].head_dim == 64 ? allow<64>(d) : allow<128>(d));
}

template <int E> static cudaError_t launch(struct dev *d, dim3 grid, const struct run_args &a)
{
	return start(a.cap > 0 ? hopper_attend_kernel<E, true> : hopper_attend_kernel<E, false>, grid, THREADS,
		attend_shape<E>::SHARED_BYTES, d->stream, a);
}

void hopper_attend(struct dev *d, int l, const struct sr_attn *kind, const float *sink)
{
	const struct kv_place at = d->kv.place[l];
	struct run_args a = {};
	dim3 grid((unsigned)d->batch.step.n_runs, (unsigned)kind->n_kv_heads);

	if (!cuda_ok(d, tensor_map(&a.map, true, d->kv.base, kind->head_dim, d->kv.rows, BLOCK),
			"describe the KV cache"))
		return;
	a.qkv = (const bf16 *)d->act.place[P_QKV];
	a.kv = (const bf16 *)d->kv.base;
	a.out = (bf16 *)d->act.place[P_A];
	a.token = d->batch.list.token;
	a.run = d->batch.list.run;
	a.part = d->attend.run_part;
	a.table = d->slots.table + at.group * d->slots.group_cap;
	a.table_cap = d->slots.table_cap;
	a.n_layers = d->kv.places;
	a.layer = at.at;
	a.n_kv_heads = kind->n_kv_heads;
	a.n_heads = kind->n_heads;
	a.heads = kind->n_heads / kind->n_kv_heads;
	a.width = d->attend.q_width;
	a.window = kind->window;
	a.chunk = kind->chunk;
	a.ahead = read_ahead(kind);
	a.sink = sink;
	a.scale = kind->scale;
	a.cap = kind->cap;
	cuda_ok(d, kind->head_dim == 64 ? launch<64>(d, grid, a) : launch<128>(d, grid, a), "attend, runs on Hopper");
}
