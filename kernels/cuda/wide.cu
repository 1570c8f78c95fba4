/* wide.cu - attention for heads that attend.cu has no kernel for: wider than 256, of other widths, with more than 16
 * query heads to a KV head; and latent keys, of which one serves all heads and is the value, too.
 *
 * A block has 16 rows (token, query head) of one KV head.  Their queries lie in shared memory, as do 32 positions of
 * keys, and of values unless those are the first elements of the keys.
 *
 *	scores   each of four warps has 8 positions, over all elements
 *	maxima   of a row over the warps, through shared memory; so all warps scale by the same
 *	sums     each warp has every fourth 16 elements of the values, over all 32 positions: at most 64 registers
 *
 * Prompts and single tokens are alike: a row's sums depend on the row alone. */
#include <errno.h>

#include "device.cuh"
#include "ptx.cuh"
#include "kernels/refuse.h"

#define WARPS     4
#define ROWS      16
#define POSITIONS 32
#define PAIRS     (WIDE_VALUES / 16 / WARPS) /* of 8 columns, that a warp has */
#define P_PITCH   (POSITIONS + 8)
#define LOG2_E    1.4426950408889634f
#define NONE      (-INFINITY)

struct wide_args {
	const bf16 *qkv;
	int32_t width;               /* elements of a row of qkv */
	bf16 *out;
	const struct batch_token *token;
	const struct run_piece *run;
	const int32_t *table;
	int32_t table_cap;
	const bf16 *kv;
	size_t stride, layer, each, value; /* elements: of a block; to the layer; of a KV head; from K to V */
	int32_t n_heads, heads, E, V; /* heads: query heads per KV head */
	bool shared;                 /* values are in keys */
	float scale, cap;
	const float *sink;
	int32_t window, chunk, ahead;
};

/* Shared memory, in order. */
struct wide_room {
	bf16 *q, *key, *value, *p;   /* [ROWS][E + 8], [POSITIONS][E + 8], [POSITIONS][V + 8], [ROWS][P_PITCH] */
	float *most, *sum;           /* [WARPS][ROWS] */
};

static __host__ __device__ size_t wide_bytes(int32_t E, int32_t V, bool shared)
{
	return ((size_t)(ROWS + POSITIONS) * (size_t)(E + 8) + (shared ? 0 : (size_t)POSITIONS * (size_t)(V + 8)) +
		ROWS * P_PITCH) * sizeof(bf16) + 2 * WARPS * ROWS * sizeof(float);
}

static __device__ struct wide_room room_of(unsigned char *shared, const wide_args &a)
{
	struct wide_room r;

	r.q = (bf16 *)shared;
	r.key = r.q + ROWS * (a.E + 8);
	r.value = a.shared ? r.key : r.key + POSITIONS * (a.E + 8);
	r.p = r.key + POSITIONS * (a.E + 8) + (a.shared ? 0 : POSITIONS * (a.V + 8));
	r.most = (float *)(r.p + ROWS * P_PITCH);
	r.sum = r.most + WARPS * ROWS;
	return r;
}

/* The first position that a lane's rows read, and the last; high -1: there is no such row. */
struct wide_rows { int32_t low[2], high[2]; float most[2], sum[2], o[2 * PAIRS][4]; };

static __device__ void load_queries(const wide_args &a, bf16 *to, int32_t t0, int32_t r0, int32_t n_rows, int g)
{
	for (int i = (int)threadIdx.x; i < ROWS * a.E / 8; i += 32 * WARPS) {
		int32_t r = r0 + i / (a.E / 8), c = i % (a.E / 8) * 8;
		bool there = r < n_rows;
		const bf16 *from = a.qkv;

		if (there)
			from += (size_t)(t0 + r / a.heads) * (size_t)a.width + (size_t)((g * a.heads + r % a.heads) * a.E + c);
		cp_async_16(to + (i / (a.E / 8)) * (a.E + 8) + c, from, there);
	}
}

/* Positions from j0 on, with zeros before `low` and from `to` on. */
static __device__ void load_tile(const wide_args &a, bf16 *to, int32_t n, size_t off, const int32_t *table, int32_t j0,
	int32_t low, int32_t end)
{
	for (int i = (int)threadIdx.x; i < POSITIONS * n / 8; i += 32 * WARPS) {
		int32_t r = i / (n / 8), c = i % (n / 8) * 8, j = j0 + r;
		bool there = j >= low && j < end;
		const bf16 *from = a.kv;

		if (there)
			from += (size_t)table[j / BLOCK] * a.stride + off + (size_t)(j % BLOCK * n + c);
		cp_async_16(to + r * (n + 8) + c, from, there);
	}
}

/* s[16 rows][8 positions of this warp] */
static __device__ void wide_scores(float (&s)[4], const wide_args &a, const struct wide_room &m)
{
	int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, pitch = a.E + 8;
	const bf16 *q = m.q + lane % 16 * pitch + lane / 16 * 8, *k = m.key + (8 * warp + lane % 8) * pitch + lane / 8 * 8;

	for (int e = 0; e < a.E; e += 32) {      /* of the last 16 inputs, f[2] and f[3] are no keys */
		uint32_t f[4], x[4];

		ldmatrix_x4(f, k + e);
		ldmatrix_x4(x, q + e);
		mma_bf16(s, x, f[0], f[1]);
		if (e + 16 >= a.E)
			break;
		ldmatrix_x4(x, q + e + 16);
		mma_bf16(s, x, f[2], f[3]);
	}
}

/* From scores to probabilities in shared memory, and the sums so far scaled to the new maximum. */
static __device__ void wide_softmax(float (&s)[4], struct wide_rows &w, const wide_args &a, const struct wide_room &m,
	int32_t j0)
{
	int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;

	for (int i = 0; i < 4; i++) {
		int h = i / 2;
		int32_t j = j0 + 8 * warp + lane % 4 * 2 + i % 2;
		float x = s[i] * a.scale;

		x = (a.cap > 0 ? a.cap * tanhf(x / a.cap) : x) * LOG2_E;
		s[i] = j >= w.low[h] && j <= w.high[h] ? x : NONE;
	}
	for (int h = 0; h < 2; h++) {
		float most = fmaxf(s[2 * h], s[2 * h + 1]);

		most = fmaxf(most, __shfl_xor_sync(FULL, most, 1));
		most = fmaxf(most, __shfl_xor_sync(FULL, most, 2));
		if (lane % 4 == 0)
			m.most[warp * ROWS + lane / 4 + 8 * h] = most;
	}
	__syncthreads(); /* the maxima of all warps are there */
	for (int h = 0; h < 2; h++) {
		float most = w.most[h], base, shrink, p0, p1;

		for (int v = 0; v < WARPS; v++)
			most = fmaxf(most, m.most[v * ROWS + lane / 4 + 8 * h]);
		base = most > NONE ? most : 0;   /* avoids -inf - -inf */
		shrink = exp2_fast(w.most[h] - base);
		p0 = exp2_fast(s[2 * h] - base);
		p1 = exp2_fast(s[2 * h + 1] - base);
		w.most[h] = most;
		w.sum[h] = w.sum[h] * shrink + p0 + p1;
		*(uint32_t *)(m.p + (lane / 4 + 8 * h) * P_PITCH + 8 * warp + lane % 4 * 2) = bf16_pair(p0, p1);
#pragma unroll
		for (int n = 0; n < 2 * PAIRS; n++) {
			w.o[n][2 * h] *= shrink;
			w.o[n][2 * h + 1] *= shrink;
		}
	}
	__syncthreads(); /* and all probabilities */
}

static __device__ void wide_values(struct wide_rows &w, const wide_args &a, const struct wide_room &m)
{
	int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, pitch = (a.shared ? a.E : a.V) + 8;

#pragma unroll
	for (int k = 0; k < POSITIONS; k += 16) {
		uint32_t p[4];

		ldmatrix_x4(p, m.p + lane % 16 * P_PITCH + k + lane / 16 * 8);
#pragma unroll
		for (int n = 0; n < PAIRS; n++) {
			int pair = n * WARPS + warp;
			uint32_t f[4];

			if (16 * pair >= a.V)
				break;
			ldmatrix_x4_trans(f, m.value + (k + lane % 16) * pitch + 16 * pair + lane / 16 * 8);
			mma_bf16(w.o[2 * n], p, f[0], f[1]);
			mma_bf16(w.o[2 * n + 1], p, f[2], f[3]);
		}
	}
}

static __device__ void put_wide(struct wide_rows &w, const wide_args &a, const struct wide_room &m, int32_t t0,
	int32_t r0, int g)
{
	int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;

	for (int h = 0; h < 2; h++) {
		float sum = w.sum[h];

		sum += __shfl_xor_sync(FULL, sum, 1);
		sum += __shfl_xor_sync(FULL, sum, 2);
		if (lane % 4 == 0)
			m.sum[warp * ROWS + lane / 4 + 8 * h] = sum;
	}
	__syncthreads(); /* the sums of all warps are there */
	for (int h = 0; h < 2; h++) {
		int32_t r = r0 + lane / 4 + 8 * h, head = g * a.heads + r % a.heads;
		float sum = 0, by;
		bf16 *to = a.out + (size_t)(t0 + r / a.heads) * (size_t)(a.n_heads * a.V) + (size_t)(head * a.V);

		if (w.high[h] < 0)
			continue;
		for (int v = 0; v < WARPS; v++)
			sum += m.sum[v * ROWS + lane / 4 + 8 * h];
		by = 1 / (sum + sink_share(a.sink, head, w.most[h]));
#pragma unroll
		for (int n = 0; n < 2 * PAIRS; n++) {
			int32_t c = 16 * (n / 2 * WARPS + warp) + n % 2 * 8 + lane % 4 * 2;

			if (c < a.V)
				*(uint32_t *)(to + c) = bf16_pair(w.o[n][2 * h] * by, w.o[n][2 * h + 1] * by);
		}
	}
}

/* grid: runs, KV heads, rows of a run by 16 */
static __global__ void __launch_bounds__(32 * WARPS) attend_wide_kernel(struct wide_args a)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	struct run_piece k = a.run[blockIdx.x];
	int32_t r0 = ROWS * (int32_t)blockIdx.z, n_rows = k.n * a.heads, low, from, end;
	int g = (int)blockIdx.y, lane = (int)threadIdx.x % 32;
	struct wide_room m = room_of(shared, a);
	struct wide_rows w = {};

	if (k.t < 0 || r0 >= n_rows)
		return;
	struct batch_token first = a.token[k.t + r0 / a.heads];
	const int32_t *table = a.table + (size_t)first.slot * (size_t)a.table_cap;
	size_t key = a.layer + (size_t)g * a.each;

	for (int h = 0; h < 2; h++) {
		int32_t r = r0 + lane / 4 + 8 * h, at = first.position + r / a.heads - r0 / a.heads;

		w.most[h] = NONE;
		w.high[h] = r >= n_rows ? -1 : at + a.ahead < k.to ? at + a.ahead : k.to - 1;
		w.low[h] = first_read(a.window, a.chunk, at);
	}
	low = first_read(a.window, a.chunk, first.position);
	from = low / POSITIONS * POSITIONS;
	end = first.position + ((r0 + ROWS < n_rows ? r0 + ROWS : n_rows) - 1) / a.heads - r0 / a.heads + 1 + a.ahead;
	end = end < k.to ? end : k.to;
	load_queries(a, m.q, k.t, r0, n_rows, g);
	for (int32_t j0 = from; j0 < end; j0 += POSITIONS) {
		float s[4] = {};

		load_tile(a, m.key, a.E, key, table, j0, low, end);
		if (!a.shared)
			load_tile(a, m.value, a.V, key + a.value, table, j0, low, end);
		cp_async_commit();
		cp_async_wait<0>();
		__syncthreads(); /* the tile is visible to all warps */
		wide_scores(s, a, m);
		wide_softmax(s, w, a, m, j0);
		wide_values(w, a, m);
		__syncthreads(); /* nobody reads the tile, the maxima or the probabilities any more */
	}
	put_wide(w, a, m, k.t, r0, g);
}

/* ---- latent keys: rope and store ------------------------------------------------------- */

struct latent_args {
	bf16 *qkv, *kv;
	const bf16 *heads, *key;     /* HEADS; LATENT from the key on */
	int32_t key_width;           /* elements of a row of LATENT */
	const struct batch_token *token;
	const float2 *angle;
	int32_t n_heads, E, latent, q_dim, dims, by_pairs;
	const float *kn;
	float eps, heat;
	int32_t heat_from, heat_add;
	const int32_t *table;
	int32_t table_cap;
	size_t stride, layer;
};

/* Pair i of dims elements, rotated */
static __device__ float2 turned(const latent_args &a, const bf16 *x, const float2 *angle, int i, int &u, int &v)
{
	u = a.by_pairs ? 2 * i : i;
	v = a.by_pairs ? 2 * i + 1 : i + a.dims / 2;
	float p = f32_of(x[u]), q = f32_of(x[v]);

	return make_float2(p * angle[i].x - q * angle[i].y, p * angle[i].y + q * angle[i].x);
}

/* grid: tokens.  What rope turns of each query goes behind its latent part; the token's key into the cache. */
static __global__ void __launch_bounds__(32 * WARPS) rope_latent_kernel(struct latent_args a)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	struct batch_token k = a.token[blockIdx.x];
	const float2 *angle = a.angle + (size_t)blockIdx.x * (size_t)(a.dims / 2);
	const bf16 *key = a.key + (size_t)blockIdx.x * (size_t)a.key_width;
	bf16 *q = a.qkv + (size_t)blockIdx.x * (size_t)(a.n_heads * a.E);
	bf16 *to = a.kv + (size_t)a.table[(size_t)k.slot * (size_t)a.table_cap + (size_t)(k.position / BLOCK)] * a.stride +
		a.layer + (size_t)(k.position % BLOCK * a.E);
	const bf16 *from = a.heads + (size_t)blockIdx.x * (size_t)(a.n_heads * (a.q_dim + a.dims)) + a.q_dim;
	float sum = 0, heat = 1, by;
	int u, v;

	if (a.heat != 0)
		heat += a.heat * logf((float)(1 + (k.position + a.heat_add) / a.heat_from));
	for (int i = (int)threadIdx.x; i < a.n_heads * a.dims / 2; i += 32 * WARPS) {
		int h = i / (a.dims / 2);
		float2 x = turned(a, from + h * (a.q_dim + a.dims), angle, i % (a.dims / 2), u, v);

		q[h * a.E + a.latent + u] = bf16_of(x.x * heat);
		q[h * a.E + a.latent + v] = bf16_of(x.y * heat);
	}
	for (int i = (int)threadIdx.x; i < a.n_heads * a.latent && heat != 1; i += 32 * WARPS) {
		bf16 *x = q + i / a.latent * a.E + i % a.latent;

		*x = bf16_of(f32_of(*x) * heat);
	}
	for (int i = (int)threadIdx.x; i < a.latent; i += 32 * WARPS)
		sum += f32_of(key[i]) * f32_of(key[i]);
	by = 1 / sqrtf(block_sum(sum, (float *)shared) / (float)a.latent + a.eps);
	for (int i = (int)threadIdx.x; i < a.latent; i += 32 * WARPS)
		to[i] = bf16_of(f32_of(key[i]) * by * a.kn[i]);
	for (int i = (int)threadIdx.x; i < a.dims / 2; i += 32 * WARPS) {
		float2 x = turned(a, key + a.latent, angle, i, u, v);

		to[a.latent + u] = bf16_of(x.x);
		to[a.latent + v] = bf16_of(x.y);
	}
}

/* ---- the operations -------------------------------------------------------------------- */

int wide_check(const struct sr_model *m, const struct sr_limits *lim, char *err, size_t errlen)
{
	for (int32_t i = 0; i < m->n_kinds; i++) {
		const struct sr_attn *k = &m->kind[i];
		int32_t V = k->latent ? k->latent : k->head_dim;

		if (k->n_kv_heads < 1 || k->n_heads < 1 || k->n_heads % k->n_kv_heads)
			return refuse(-ENOTSUP, err, errlen, "%d query heads, %d KV heads: the first must be a multiple of the "
				"second", k->n_heads, k->n_kv_heads);
		if (!attend_wide(k))
			continue;
		if (k->head_dim % 16 || V % 16 || V > WIDE_VALUES || k->head_dim > WIDE_KEYS || k->head_dim < 16)
			return refuse(-ENOTSUP, err, errlen, "heads of width %d, with values of %d: the CUDA back end has keys "
				"of up to %d and values of up to %d elements, multiples of 16", k->head_dim, V, WIDE_KEYS, WIDE_VALUES);
		if (lim->kv_type != SR_KV_BF16)
			return refuse(-ENOTSUP, err, errlen, "--kv-cache-dtype: of heads of width %d the CUDA back end has a "
				"cache in bfloat16 (auto) only", k->head_dim);
		if (k->q_rank > m->d_model || k->q_rank % 8 || k->q_dim % 8 || k->v_dim % 8)
			return refuse(-ENOTSUP, err, errlen, "latent queries of %d elements, heads of %d and %d: the CUDA back "
				"end has multiples of 8, queries of up to the width %d", k->q_rank, k->q_dim, k->v_dim, m->d_model);
	}
	return 0;
}

bool wide_prepare(struct dev *d)
{
	size_t most = 0;

	for (int32_t i = 0; i < d->m->n_kinds; i++) {
		const struct sr_attn *k = &d->m->kind[i];
		size_t n = attend_wide(k) ? wide_bytes(k->head_dim, k->latent ? k->latent : k->head_dim, k->latent) : 0;

		most = n > most ? n : most;
	}
	return !most || cuda_ok(d, allow_shared(attend_wide_kernel, most), "attend, wide heads");
}

void attend_by_wide(struct dev *d, int l, const struct sr_attn *kind, const float *sink)
{
	const struct kv_place at = d->kv.place[l];
	struct wide_args a = {};

	a.qkv = (const bf16 *)d->act.place[P_QKV];
	a.width = kind->latent ? kind->n_heads * kind->head_dim : d->attend.q_width;
	a.out = (bf16 *)d->act.place[P_A];
	a.token = d->batch.list.token;
	a.run = d->batch.list.run;
	a.table = d->slots.table + at.group * d->slots.group_cap;
	a.table_cap = d->slots.table_cap;
	a.kv = (const bf16 *)d->kv.base;
	a.stride = d->kv.stride;
	a.layer = d->kv.layer[l];
	a.each = (size_t)BLOCK * (size_t)shape_kv(kind);
	a.value = (size_t)BLOCK * (size_t)kind->head_dim;
	a.n_heads = kind->n_heads;
	a.heads = kind->n_heads / kind->n_kv_heads;
	a.E = kind->head_dim;
	a.V = kind->latent ? kind->latent : kind->head_dim;
	a.shared = kind->latent;
	a.scale = kind->scale;
	a.cap = kind->cap;
	a.window = kind->window;
	a.chunk = kind->chunk;
	a.ahead = read_ahead(kind);
	a.sink = sink;
	if (d->batch.step.n_runs && !d->fault.lost)
		cuda_ok(d, start(attend_wide_kernel, dim3((unsigned)d->batch.step.n_runs, (unsigned)kind->n_kv_heads,
			(unsigned)(run_tokens(d) * a.heads + ROWS - 1) / ROWS), 32 * WARPS, wide_bytes(a.E, a.V, a.shared),
			d->stream, a), "attend, wide heads");
}

void rope_store_latent(struct dev *d, int l, const struct sr_attn *kind, const struct weight *kn, float eps, int T)
{
	const struct kv_place at = d->kv.place[l];
	struct latent_args a = {};

	a.qkv = (bf16 *)d->act.place[P_QKV];
	a.kv = (bf16 *)d->kv.base;
	a.heads = (const bf16 *)d->act.place[P_HEADS];
	a.key = (const bf16 *)d->act.place[P_LATENT] + kind->q_rank;
	a.key_width = kind->q_rank + kind->head_dim;
	a.token = d->batch.list.token;
	a.angle = d->act.angle[kind - d->m->kind];
	a.n_heads = kind->n_heads;
	a.E = kind->head_dim;
	a.latent = kind->latent;
	a.q_dim = kind->q_dim;
	a.dims = kind->rope.dims;
	a.by_pairs = kind->rope.pairs;
	a.kn = kn->vec;
	a.eps = eps;
	a.heat = kind->heat;
	a.heat_from = kind->heat_from;
	a.heat_add = kind->heat_add;
	a.table = d->slots.table + at.group * d->slots.group_cap;
	a.table_cap = d->slots.table_cap;
	a.stride = d->kv.stride;
	a.layer = d->kv.layer[l];
	if (!d->fault.lost)
		cuda_ok(d, start(rope_latent_kernel, T, 32 * WARPS, WARPS * sizeof(float), d->stream, a),
			"rope_store, latent");
}
