/* attend.cu - attention to the KV cache.
 *
 * The queries of the heads that share a KV head are rows of one matrix, so K and V are read once for all
 * of them.  E is head_dim.  Row r of a piece is token r / heads, head r % heads.  A warp has sixteen rows.
 * Q stays in registers; K and V come through shared memory; scores and the running maximum and sum stay
 * in registers.  This is the online softmax of arXiv 1805.02867 in the layout of FlashAttention-2 (arXiv
 * 2307.08691).  Exponents are to base 2.
 *
 * In a cache of e4m3 (F8) a lane loads words of four elements.  A word becomes two pairs of bf16: bytes
 * 0, 2 and 1, 3.  For scores, Q's elements are taken in the same order.  V's bytes are transposed by
 * pairs: one mma makes the even elements of the output and another the odd ones.
 *
 *	attend_one   a single token: the rows of one warp; all warps of a block divide the positions.  Long
 *	             sequences are divided among blocks too (the list of struct attend_piece); the last block to
 *	             finish adds up the parts.
 *	attend_run   tokens of a prompt: the rows of four warps, which share all positions.  On Hopper
 *	             hopper_attend.cu does it for the head widths that it supports.  While processors would idle, the
 *	             positions are divided among blocks (struct run_piece); then join_runs adds up the parts.
 */
#include "device.cuh"
#include "ptx.cuh"

/* Bytes of one position of K or V: in memory, and with padding in a tile in shared memory. */
#define SIZE(F8)     ((F8) ? 1 : (int)sizeof(bf16))
#define PITCH(E, F8) ((E) * SIZE(F8) + 16)

#define LOG2_E 1.4426950408889634f
#define NONE   (-INFINITY)
#define RUN_WARPS (TILE_ROWS / 16)

/* ---- attention: what a warp does ---------------------------------------------------- */

struct attend_args {
	const bf16 *qkv;
	int32_t width;               /* elements of a row of qkv */
	bf16 *out;
	const struct batch_token *token;
	const struct attend_piece *piece;
	const struct run_piece *run;
	float *part, *run_part;
	int32_t run_rows;
	uint32_t *joined;
	int32_t n_heads, n_kv_heads, heads; /* heads: query heads per KV head */
	const int32_t *table;
	int32_t table_cap;
	const unsigned char *kv;
	size_t kv_half, stride, layer; /* as rope_args' */
	float scale, cap;            /* includes the scale of K */
	float v_scale;               /* applied to the output */
	const float *sink;           /* [n_heads], or NULL */
	int32_t window, chunk, ahead;
};

/* Sixteen rows: lane i has rows i / 4 and i / 4 + 8, with h = 0 and 1. */
template <int E> struct rows16 {
	uint32_t q[E / 16][4];
	float o[E / 8][4], most[2], sum[2];
	int32_t low[2], high[2];     /* positions that the row reads; high < low: no row */
};

/* Row r of the piece that starts at token t0 and has n_rows rows. */
template <int E, bool F8> static __device__ void begin_row(struct rows16<E> &w, int h,
	const struct attend_args &a, int32_t t0, int32_t r, int32_t n_rows, int g)
{
	int t = (int)threadIdx.x % 4;
	bool there = r < n_rows;
	int32_t token = t0 + (there ? r / a.heads : 0);
	int32_t at = a.token[token].position;
	const bf16 *q = a.qkv + (size_t)token * (size_t)a.width + (size_t)((g * a.heads + r % a.heads) * E);

	w.most[h] = NONE;
	w.sum[h] = 0;
	w.high[h] = there ? at + a.ahead : -1;
	w.low[h] = first_read(a.window, a.chunk, at);
#pragma unroll
	for (int k = 0; k < E / 16; k++) {
		const uint32_t *from = (const uint32_t *)(q + 16 * k + (F8 ? 4 : 2) * t);
		uint32_t u = there ? from[0] : 0, v = there ? from[F8 ? 1 : 4] : 0;

		w.q[k][h] = F8 ? (u & 0xffff) | v << 16 : u;
		w.q[k][h + 2] = F8 ? u >> 16 | (v & 0xffff0000) : v;
	}
#pragma unroll
	for (int n = 0; n < E / 8; n++)
		w.o[n][2 * h] = w.o[n][2 * h + 1] = 0;
}

/* The row that lane i addresses for four 8x8 matrices of 16 bits.  In order: positions 0-7 and 8-15 of the
 * first 16 bytes, then of the next 16.  For the transpose of bf16 K: 8 positions' 32 bytes, then the next 8
 * positions. */
static __device__ int row_of(bool in_order, int lane, int pitch)
{
	return in_order ? lane % 16 * pitch + lane / 16 * 16
	                : (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 16;
}

/* s[16 rows][16 N positions] = q k^T */
template <int E, bool F8, int N> static __device__ void scores(float (&s)[2 * N][4],
	const struct rows16<E> &w, const unsigned char *key)
{
	const unsigned char *row = key + row_of(F8, (int)threadIdx.x % 32, PITCH(E, F8));

#pragma unroll
	for (int k = 0; k < E / 16; k += F8 ? 2 : 1)
#pragma unroll
		for (int b = 0; b < N; b++) {
			uint32_t f[4];

			if (!F8) {
				ldmatrix_x4(f, row + 16 * b * PITCH(E, F8) + 32 * k);
				mma_bf16(s[2 * b], w.q[k], f[0], f[1]);
				mma_bf16(s[2 * b + 1], w.q[k], f[2], f[3]);
				continue;
			}
			ldmatrix_x4(f, row + 16 * b * PITCH(E, F8) + 16 * k);
#pragma unroll
			for (int i = 0; i < 4; i++) { /* at a width of 16, f[2] and f[3] are padding */
				uint32_t even, odd;

				if (k + i / 2 >= E / 16)
					continue;
				bf16_of_e4m3(f[i], even, odd);
				mma_bf16(s[2 * b + i % 2], w.q[k + i / 2], even, odd);
			}
		}
}

/* o += p v: p[16 rows][16 positions] */
template <int E, bool F8> static __device__ void values(struct rows16<E> &w, const uint32_t (&p)[4],
	const unsigned char *value)
{
	const unsigned char *row = value + row_of(true, (int)threadIdx.x % 32, PITCH(E, F8));

#pragma unroll
	for (int n = 0; n < E / 16; n += F8 ? 2 : 1) {
		uint32_t f[4];

		if (!F8) {
			ldmatrix_x4_trans(f, row + 32 * n);
			mma_bf16(w.o[2 * n], p, f[0], f[1]);
			mma_bf16(w.o[2 * n + 1], p, f[2], f[3]);
			continue;
		}
		ldmatrix_x4_trans(f, row + 16 * n);
#pragma unroll
		for (int i = 0; i < 4 && n + i / 2 < E / 16; i += 2) {
			uint32_t even[2], odd[2];

			bf16_of_e4m3(f[i], even[0], odd[0]);
			bf16_of_e4m3(f[i + 1], even[1], odd[1]);
			mma_bf16(w.o[2 * n + i], p, even[0], even[1]);
			mma_bf16(w.o[2 * n + i + 1], p, odd[0], odd[1]);
		}
	}
}

/* The element of the head that w.o[n][j] of a lane holds; j is 0 or 1. */
template <bool F8> static __device__ int element(int n, int j)
{
	int t = (int)threadIdx.x % 4;

	return F8 ? n / 2 * 16 + 4 * t + 2 * j + n % 2 : 8 * n + 2 * t + j;
}

/* Attends to N blocks of 16 positions in shared memory; the first starts at j0.  Scores stay as they are until the
 * exponent, where `by` makes them powers of 2; with a CAP they become that before. */
template <int E, bool F8, bool CAP, int N> static __device__ void flash(struct rows16<E> &w,
	const unsigned char *key, const unsigned char *value, int32_t j0, float scale, float cap)
{
	int lane = (int)threadIdx.x % 32;
	float s[2 * N][4] = {}, by = CAP ? 1 : scale * LOG2_E;

	scores<E, F8, N>(s, w, key);
#pragma unroll
	for (int n = 0; n < 2 * N && CAP; n++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			s[n][j] = cap * tanhf(s[n][j] * (scale / cap)) * LOG2_E;
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float most = NONE, base, sum = 0, shrink;

		if (j0 < w.low[h] || j0 + 16 * N - 1 > w.high[h]) {
#pragma unroll
			for (int n = 0; n < 2 * N; n++)
#pragma unroll
				for (int c = 0; c < 2; c++) {
					int32_t j = j0 + 8 * n + lane % 4 * 2 + c;

					s[n][2 * h + c] = j >= w.low[h] && j <= w.high[h] ? s[n][2 * h + c] : NONE;
				}
		}
#pragma unroll
		for (int n = 0; n < 2 * N; n++)
			most = fmaxf(most, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
		most = fmaxf(most, __shfl_xor_sync(FULL, most, 1));
		most = fmaxf(most, __shfl_xor_sync(FULL, most, 2));
		most = fmaxf(w.most[h], most * by);
		base = most > NONE ? most : 0;   /* NONE so far: avoids -inf - -inf */
		shrink = exp2_fast(w.most[h] - base);
#pragma unroll
		for (int n = 0; n < 2 * N; n++)
#pragma unroll
			for (int c = 0; c < 2; c++) {
				float p = exp2_fast(s[n][2 * h + c] * by - base);

				s[n][2 * h + c] = p;
				sum += p;
			}
		w.most[h] = most;
		w.sum[h] = w.sum[h] * shrink + sum; /* of this lane's columns; lanes are added at the end */
#pragma unroll
		for (int n = 0; n < E / 8; n++) {
			w.o[n][2 * h] *= shrink;
			w.o[n][2 * h + 1] *= shrink;
		}
	}
#pragma unroll
	for (int b = 0; b < N; b++) {
		uint32_t p[4] = { bf16_pair(s[2 * b][0], s[2 * b][1]), bf16_pair(s[2 * b][2], s[2 * b][3]),
			bf16_pair(s[2 * b + 1][0], s[2 * b + 1][1]),
			bf16_pair(s[2 * b + 1][2], s[2 * b + 1][3]) };

		values<E, F8>(w, p, value + 16 * b * PITCH(E, F8));
	}
}

template <int E> static __device__ void end_rows(struct rows16<E> &w)
{
	for (int h = 0; h < 2; h++) {
		w.sum[h] += __shfl_xor_sync(FULL, w.sum[h], 1);
		w.sum[h] += __shfl_xor_sync(FULL, w.sum[h], 2);
	}
}

/* Thread i of n starts to copy `tokens` positions of K and V from j0 on, with zeros before `low` and from `to`
 * on.  Entries of the table before `low` may be others' blocks by now. */
template <int E, bool F8> static __device__ void load_kv(unsigned char *key, unsigned char *value,
	const struct attend_args &a, const int32_t *table, int g, int32_t j0, int32_t low, int32_t to, int tokens,
	int i, int n)
{
	const int chunks = E * SIZE(F8) / 16;

	for (; i < tokens * chunks; i += n) {
		int r = i / chunks, c = i % chunks * 16;
		int32_t j = j0 + r;
		bool there = j >= low && j < to;
		const unsigned char *from = a.kv;

		if (there)
			from += ((size_t)table[j / BLOCK] * a.stride + a.layer + (size_t)(2 * g) * a.kv_half +
				(size_t)(j % BLOCK * E)) * SIZE(F8) + (size_t)c;
		cp_async_16(key + r * PITCH(E, F8) + c, from, there);
		cp_async_16(value + r * PITCH(E, F8) + c, there ? from + a.kv_half * SIZE(F8) : from, there);
	}
}

/* ---- single tokens -------------------------------------------------------------------- */

template <int E, bool F8> struct one_shape {
	static const int WARPS = E <= 128 ? 4 : 2, STAGES = E * SIZE(F8) <= 128 ? 4 : 2;
	static const size_t HALF = (size_t)16 * PITCH(E, F8), STAGE = 2 * HALF; /* K and V of 16 positions */
	static const size_t RING = WARPS * STAGES * STAGE, SUMS = WARPS * 16 * (E + 2) * sizeof(float);
	static const size_t SHARED_BYTES = RING > SUMS + 16 ? RING : SUMS + 16;
};

/* Adds the warps' results, in order of warps, into the output or into this block's part. */
template <int E, bool F8> static __device__ void join(struct rows16<E> &w, float *shared,
	const struct attend_args &a, const struct attend_piece &k, int g)
{
	typedef one_shape<E, F8> S;
	const int ROW = E + 2;
	int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;

	for (int h = 0; h < 2; h++) {
		float *row = shared + (warp * 16 + lane / 4 + 8 * h) * ROW;

		for (int n = 0; n < E / 8; n++) {
			row[element<F8>(n, 0)] = w.o[n][2 * h];
			row[element<F8>(n, 1)] = w.o[n][2 * h + 1];
		}
		if (lane % 4 == 0) {
			row[E] = w.most[h];
			row[E + 1] = w.sum[h];
		}
	}
	__syncthreads();
	for (int i = (int)threadIdx.x; i < a.heads * E; i += 32 * S::WARPS) {
		int r = i / E, e = i % E, head = g * a.heads + r;
		float most = NONE, sum = 0, o = 0;

		for (int v = 0; v < S::WARPS; v++)
			most = fmaxf(most, shared[(v * 16 + r) * ROW + E]);
		for (int v = 0; v < S::WARPS; v++) {
			const float *row = shared + (v * 16 + r) * ROW;
			float f = row[E] > NONE ? exp2f(row[E] - most) : 0;

			sum += f * row[E + 1];
			o += f * row[e];
		}
		if (k.pieces == 1) {
			sum += sink_share(a.sink, head, most);
			a.out[(size_t)k.t * (size_t)(a.n_heads * E) + (size_t)(head * E + e)] =
				bf16_of(o * a.v_scale / sum);
			continue;
		}
		float *to = a.part + ((size_t)blockIdx.x * (size_t)a.n_heads + (size_t)head) * ROW;

		to[e] = o;
		if (e == 0) {
			to[E] = most;
			to[E + 1] = sum;
		}
	}
}

/* A warp adds the parts of a row of one head, in their order, into out[E]; each is o[E], max, sum, and the next
 * part is `each` floats behind it. */
template <int E> static __device__ void add_row(const struct attend_args &a, const float *part, size_t each,
	int32_t pieces, int32_t head, bf16 *out)
{
	const int EACH = (E + 31) / 32;
	int lane = (int)threadIdx.x % 32;
	float most = NONE, sum = 0, o[EACH] = {};

	for (int32_t i = lane; i < pieces; i += 32)
		most = fmaxf(most, load_l2(&part[(size_t)i * each + E]));
	most = warp_max(most);
#pragma unroll 4
	for (int32_t i = 0; i < pieces; i++) {
		const float *p = part + (size_t)i * each;
		float own = load_l2(&p[E]), f = own > NONE ? exp2f(own - most) : 0;

		sum += f * load_l2(&p[E + 1]);
#pragma unroll
		for (int j = 0; j < EACH; j++)
			if (E % 32 == 0 || lane < E)
				o[j] += f * load_l2(&p[lane + 32 * j]);
	}
	sum += sink_share(a.sink, head, most);
#pragma unroll
	for (int j = 0; j < EACH; j++)
		if (E % 32 == 0 || lane < E)
			out[lane + 32 * j] = bf16_of(o[j] * a.v_scale / sum);
}

/* Adds a token's parts into the output; a warp per query head. */
template <int E> static __device__ void add_parts(const struct attend_args &a, const struct attend_piece &k,
	int g)
{
	size_t each = (size_t)a.n_heads * (E + 2);

	for (int r = (int)threadIdx.x / 32; r < a.heads; r += (int)blockDim.x / 32) {
		int head = g * a.heads + r;

		add_row<E>(a, a.part + (size_t)k.first * each + (size_t)(head * (E + 2)), each, k.pieces, head,
			a.out + (size_t)k.t * (size_t)(a.n_heads * E) + (size_t)(head * E));
	}
}

/* grid: pieces, KV heads.  Warp w takes blocks of 16 positions w, w + WARPS, .. */
template <int E, bool F8, bool CAP> static __global__ void __launch_bounds__(32 * one_shape<E, F8>::WARPS)
attend_one(struct attend_args a)
{
	let_next_start();
	wait_for_previous();
	typedef one_shape<E, F8> S;
	SHARED(shared);
	int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = (int)blockIdx.y;
	struct attend_piece k = a.piece[blockIdx.x];
	unsigned char *ring = shared + warp * S::STAGES * S::STAGE;
	const int32_t *table;
	int32_t from = k.from, j0, steps;
	struct rows16<E> w;

	if (k.t < 0)
		return;
	table = a.table + (size_t)a.token[k.t].slot * (size_t)a.table_cap;
	for (int h = 0; h < 2; h++)
		begin_row<E, F8>(w, h, a, k.t, lane / 4 + 8 * h, a.heads, g);
	if (w.low[0] > from)
		from = w.low[0];          /* start of the window, the same for all rows */
	j0 = from / 16 * 16 + 16 * warp;
	steps = j0 < k.to ? (k.to - j0 + 16 * S::WARPS - 1) / (16 * S::WARPS) : 0;
	for (int h = 0; h < 2; h++) {
		w.low[h] = from;
		w.high[h] = w.high[h] < 0 ? -1 : k.to - 1;
	}
	for (int32_t i = 0; i < S::STAGES - 1; i++) {
		unsigned char *to = ring + i * S::STAGE;

		if (i < steps)
			load_kv<E, F8>(to, to + S::HALF, a, table, g, j0 + i * 16 * S::WARPS, from, k.to, 16,
				lane, 32);
		cp_async_commit();
	}
	for (int32_t i = 0; i < steps; i++) {
		const unsigned char *at = ring + i % S::STAGES * S::STAGE;
		int32_t ahead = i + S::STAGES - 1;

		cp_async_wait<S::STAGES - 2>();
		__syncwarp(); /* copies of other lanes are visible, and stage i - 1 is free */
		if (ahead < steps) {
			unsigned char *to = ring + ahead % S::STAGES * S::STAGE;

			load_kv<E, F8>(to, to + S::HALF, a, table, g, j0 + ahead * 16 * S::WARPS, from,
				k.to, 16, lane, 32);
		}
		cp_async_commit();
		flash<E, F8, CAP, 1>(w, at, at + S::HALF, j0 + i * 16 * S::WARPS, a.scale, a.cap);
	}
	end_rows<E>(w);
	__syncthreads(); /* the ring's memory is reused for the sums */
	join<E, F8>(w, (float *)shared, a, k, g);
	if (k.pieces > 1 && arrive(a.joined + k.first * a.n_kv_heads + g, (uint32_t)k.pieces,
			(uint32_t *)(shared + S::SUMS)))
		add_parts<E>(a, k, g);
}

/* ---- runs ----------------------------------------------------------------------------- */

template <int E, bool F8> struct run_shape {
	static const int TOKENS = E <= 128 ? 64 : 32, STAGES = 2;
	static const size_t HALF = (size_t)TOKENS * PITCH(E, F8), STAGE = 2 * HALF;
	static const size_t SHARED_BYTES = STAGES * STAGE;
};

template <int E, bool F8> static __device__ void put_rows(struct rows16<E> &w, const struct attend_args &a,
	int32_t t0, int32_t r0, int g)
{
	int lane = (int)threadIdx.x % 32;

	for (int h = 0; h < 2; h++) {
		int32_t r = r0 + lane / 4 + 8 * h;
		bf16 *to = a.out + (size_t)(t0 + r / a.heads) * (size_t)(a.n_heads * E) +
			(size_t)((g * a.heads + r % a.heads) * E);

		if (w.high[h] < 0)
			continue;
		w.sum[h] += sink_share(a.sink, g * a.heads + r % a.heads, w.most[h]);
		float per = a.v_scale / w.sum[h];
#pragma unroll
		for (int n = 0; n < E / 8; n += 2) {
			float a0 = w.o[n][2 * h] * per, a1 = w.o[n][2 * h + 1] * per;
			float b0 = w.o[n + 1][2 * h] * per, b1 = w.o[n + 1][2 * h + 1] * per;

			*(uint32_t *)(to + element<F8>(n, 0)) = bf16_pair(a0, F8 ? b0 : a1);
			*(uint32_t *)(to + (F8 ? element<F8>(n, 1) : element<F8>(n + 1, 0))) =
				bf16_pair(F8 ? a1 : b0, b1);
		}
	}
}

/* The row of a run's part that is row r of piece i and KV head g. */
template <int E> static __device__ float *run_row(const struct attend_args &a, int32_t i, int g, int32_t r)
{
	return a.run_part + (((size_t)i * (size_t)a.n_kv_heads + (size_t)g) * (size_t)a.run_rows + (size_t)r) *
		RUN_PITCH(E);
}

template <int E, bool F8> static __device__ void put_part(const struct rows16<E> &w, const struct attend_args &a,
	int32_t r0, int g)
{
	int lane = (int)threadIdx.x % 32;

	for (int h = 0; h < 2; h++) {
		float *to = run_row<E>(a, (int32_t)blockIdx.x, g, r0 + lane / 4 + 8 * h);

		if (w.high[h] < 0)
			continue;
#pragma unroll
		for (int n = 0; n < E / 8; n++) {
			to[element<F8>(n, 0)] = w.o[n][2 * h];
			to[element<F8>(n, 1)] = w.o[n][2 * h + 1];
		}
		if (lane % 4 == 0) {
			to[E] = w.most[h];
			to[E + 1] = w.sum[h];
		}
	}
}

/* grid: pieces of runs, KV heads, rows by 16; a warp takes every fourth row. */
template <int E> static __global__ void __launch_bounds__(32 * RUN_WARPS) join_runs(struct attend_args a)
{
	let_next_start();
	wait_for_previous();
	struct run_piece k = a.run[blockIdx.x];
	int32_t r = 16 * (int32_t)blockIdx.z + (int32_t)threadIdx.x / 32, end = r / 16 * 16 + 16;
	int g = (int)blockIdx.y;

	if (k.t < 0 || k.pieces == 1 || k.first != (int32_t)blockIdx.x)
		return;
	for (; r < end && r < k.n * a.heads; r += RUN_WARPS) {
		int head = g * a.heads + r % a.heads;

		add_row<E>(a, run_row<E>(a, k.first, g, r),
			(size_t)a.n_kv_heads * (size_t)a.run_rows * RUN_PITCH(E), k.pieces, head,
			a.out + (size_t)(k.t + r / a.heads) * (size_t)(a.n_heads * E) + (size_t)(head * E));
	}
}

/* grid: pieces of runs, KV heads */
template <int E, bool F8, bool CAP> static __global__ void __launch_bounds__(32 * RUN_WARPS)
attend_run(struct attend_args a)
{
	let_next_start();
	wait_for_previous();
	typedef run_shape<E, F8> S;
	SHARED(shared);
	unsigned char *ring = shared;
	int lane = (int)threadIdx.x % 32, g = (int)blockIdx.y;
	struct run_piece k = a.run[blockIdx.x];
	struct batch_token first = a.token[k.t < 0 ? 0 : k.t];
	const int32_t *table = a.table + (size_t)first.slot * (size_t)a.table_cap;
	int32_t r0 = 16 * (int32_t)(threadIdx.x / 32), n_rows = k.n * a.heads;
	int32_t to = first.position + k.n + a.ahead, low, from, steps, warp_last;
	struct rows16<E> w;

	if (k.t < 0)
		return;
	for (int h = 0; h < 2; h++) {
		begin_row<E, F8>(w, h, a, k.t, r0 + lane / 4 + 8 * h, n_rows, g);
		w.low[h] = w.low[h] > k.from ? w.low[h] : k.from;
		w.high[h] = w.high[h] < k.to ? w.high[h] : k.to - 1;
	}
	to = to < k.to ? to : k.to;
	low = first_read(a.window, a.chunk, first.position);
	low = low > k.from ? low : k.from;
	from = low / S::TOKENS * S::TOKENS;
	steps = to > low ? (to - from + S::TOKENS - 1) / S::TOKENS : 0; /* 0: all before the window */
	warp_last = r0 < n_rows ? first.position + (r0 + 15) / a.heads + a.ahead : -1; /* of 16 rows; rows that do
	                                                                                  not exist are masked */
	if (steps)
		load_kv<E, F8>(ring, ring + S::HALF, a, table, g, from, low, to, S::TOKENS, (int)threadIdx.x,
			32 * RUN_WARPS);
	cp_async_commit();
	for (int32_t i = 0; i < steps; i++) {
		const unsigned char *at = ring + i % 2 * S::STAGE;
		unsigned char *next = ring + (i + 1) % 2 * S::STAGE;
		int32_t j0 = from + i * S::TOKENS;

		cp_async_wait<0>();
		__syncthreads(); /* tile i is visible to all warps, and tile i - 1 is free */
		if (i + 1 < steps)
			load_kv<E, F8>(next, next + S::HALF, a, table, g, j0 + S::TOKENS, low, to,
				S::TOKENS, (int)threadIdx.x, 32 * RUN_WARPS);
		cp_async_commit();
		if (j0 <= warp_last)
			flash<E, F8, CAP, S::TOKENS / 16>(w, at, at + S::HALF, j0, a.scale, a.cap);
	}
	end_rows<E>(w);
	if (k.pieces > 1)
		put_part<E, F8>(w, a, r0, g);
	else
		put_rows<E, F8>(w, a, k.t, r0, g);
}

/* ---- the operation -------------------------------------------------------------------- */

#define EACH_WIDTH(DO) DO(16) DO(32) DO(64) DO(96) DO(128) DO(256)

int32_t attend_run_rows(const struct dev *d)
{
	return hopper_attends(d) ? hopper_attend_rows() : TILE_ROWS;
}

bool attend_width(int32_t E)
{
#define SAME(W) if (E == W) return true;
	EACH_WIDTH(SAME)
#undef SAME
	return false;
}

template <int E, bool F8> static bool allow(struct dev *d)
{
	const size_t one = one_shape<E, F8>::SHARED_BYTES, run = run_shape<E, F8>::SHARED_BYTES;

	return cuda_ok(d, allow_shared(attend_one<E, F8, false>, one), "attend, single") &&
	       cuda_ok(d, allow_shared(attend_one<E, F8, true>, one), "attend, single") &&
	       cuda_ok(d, allow_shared(attend_run<E, F8, false>, run), "attend, runs") &&
	       cuda_ok(d, allow_shared(attend_run<E, F8, true>, run), "attend, runs");
}

bool attend_wide(const struct sr_attn *kind)
{
	return kind->latent || !attend_width(kind->head_dim) || kind->n_heads / kind->n_kv_heads > 16;
}

static bool allow_kind(struct dev *d, const struct sr_attn *kind)
{
#define ALLOW(W) if (kind->head_dim == W) \
	return d->kv.f8 ? allow<W, true>(d) : allow<W, false>(d);
	EACH_WIDTH(ALLOW)
#undef ALLOW
	return false;
}

bool attend_prepare(struct dev *d)
{
	bool all = hopper_attend_prepare(d) && wide_prepare(d);

	for (int32_t i = 0; i < d->m->n_kinds && all; i++)
		all = attend_wide(&d->m->kind[i]) || allow_kind(d, &d->m->kind[i]);
	return all;
}

template <int E, bool F8, bool CAP> static void attend_as(struct dev *d, const struct attend_args &a)
{
	const struct step *s = &d->batch.step;

	if (s->n_pieces && !d->fault.lost)
		cuda_ok(d, start(attend_one<E, F8, CAP>, dim3((unsigned)s->n_pieces, (unsigned)a.n_kv_heads),
			32 * one_shape<E, F8>::WARPS, one_shape<E, F8>::SHARED_BYTES, d->stream, a),
			"attend, single tokens");
	if (s->n_runs && !d->fault.lost && !hopper_attends(d))
		cuda_ok(d, start(attend_run<E, F8, CAP>, dim3((unsigned)s->n_runs, (unsigned)a.n_kv_heads),
			32 * RUN_WARPS, run_shape<E, F8>::SHARED_BYTES, d->stream, a), "attend, runs");
	if (s->n_runs && s->full_runs && !d->fault.lost)
		cuda_ok(d, start(join_runs<E>, dim3((unsigned)s->n_runs, (unsigned)a.n_kv_heads,
			(unsigned)attend_run_rows(d) / 16), 32 * RUN_WARPS, 0, d->stream, a), "add up runs");
}

template <int E, bool F8> static void attend_with(struct dev *d, const struct attend_args &a)
{
	if (a.cap > 0)
		attend_as<E, F8, true>(d, a);
	else
		attend_as<E, F8, false>(d, a);
}

void attend(struct dev *d, int l, const struct sr_attn *kind, const struct weight *sinks, int T)
{
	const struct sr_model *m = d->m;
	const struct kv_place at = d->kv.place[l];
	struct attend_args a = {};

	(void)T;
	if (attend_wide(kind)) {
		attend_by_wide(d, l, kind, sinks ? sinks->vec : NULL);
		return;
	}
	a.qkv = (const bf16 *)d->act.place[P_QKV];
	a.width = d->attend.q_width;
	a.out = (bf16 *)d->act.place[P_A];
	a.token = d->batch.list.token;
	a.piece = d->batch.list.piece;
	a.run = d->batch.list.run;
	a.part = d->attend.part;
	a.run_part = d->attend.run_part;
	a.run_rows = attend_run_rows(d);
	a.joined = d->attend.joined;
	a.n_heads = kind->n_heads;
	a.n_kv_heads = kind->n_kv_heads;
	a.heads = kind->n_heads / kind->n_kv_heads;
	a.table = d->slots.table + at.group * d->slots.group_cap;
	a.table_cap = d->slots.table_cap;
	a.kv = d->kv.base;
	a.kv_half = (size_t)BLOCK * (size_t)kind->head_dim;
	a.stride = d->kv.stride;
	a.layer = d->kv.layer[l];
	a.scale = kind->scale * scale_or_1(d, m->layer[l].k_scale);
	a.v_scale = scale_or_1(d, m->layer[l].v_scale);
	a.cap = kind->cap;
	a.window = kind->window;
	a.chunk = kind->chunk;
	a.ahead = read_ahead(kind);
	a.sink = sinks ? sinks->vec : NULL;
	if (d->batch.step.n_runs && !d->fault.lost && hopper_attends(d))
		hopper_attend(d, l, kind, a.sink);
#define CALL(W) if (kind->head_dim == W) d->kv.f8 ? attend_with<W, true>(d, a) : attend_with<W, false>(d, a);
	EACH_WIDTH(CALL)
#undef CALL
}
