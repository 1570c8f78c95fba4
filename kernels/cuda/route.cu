/* route.cu - which experts the tokens of a batch go to, and the sum of what the experts make.
 *
 *	score     a warp per expert and eight tokens: scores in f32, in a fixed order
 *	choose    a warp per token: the best `top`, of equal ones the first; their weights
 *	group     one block: pairs sorted by expert (a stable counting sort), then cut into tiles
 *	combine   a block per token: the experts' rows, weighted, in order of rank
 *
 * No number depends on another token, so a token gets the same bits in any company.  Padding of captured
 * graphs goes to no expert, or it would read weights that nobody else needs.
 */
#include <errno.h>

#include "device.cuh"
#include "kernels/refuse.h"

/* ---- scores --------------------------------------------------------------------------- */

#define SCORE_WARPS 8
#define SCORE_TOKENS 8

/* grid: SCORE_TOKENS tokens, SCORE_WARPS experts */
static __global__ void __launch_bounds__(32 * SCORE_WARPS) score_kernel(const bf16 *y, const float *router,
	const float *bias, int32_t n, int32_t D, int32_t T, float *score)
{
	let_next_start();
	wait_for_previous();
	int32_t e = (int32_t)(blockIdx.y * SCORE_WARPS + threadIdx.x / 32), lane = (int32_t)threadIdx.x % 32;
	int32_t t0 = (int32_t)blockIdx.x * SCORE_TOKENS;
	float sum[SCORE_TOKENS] = {};

	if (e >= n)
		return;
	router += (size_t)e * (size_t)D;
	for (int32_t i = lane; i < D; i += 32) {
		float w = router[i];

#pragma unroll
		for (int j = 0; j < SCORE_TOKENS; j++)
			if (t0 + j < T)
				sum[j] += w * f32_of(y[(size_t)(t0 + j) * (size_t)D + (size_t)i]);
	}
#pragma unroll
	for (int j = 0; j < SCORE_TOKENS; j++) {
		float all = warp_sum(sum[j]);

		if (lane == 0 && t0 + j < T)
			score[(size_t)(t0 + j) * (size_t)n + (size_t)e] = all + (bias ? bias[e] : 0);
	}
}

/* ---- choice --------------------------------------------------------------------------- */

#define CHOOSE_WARPS 4
#define EACH (EXPERTS_MAX / 32)              /* experts of a lane: lane + 32 i */

/* Every lane gets the best value over the warp and its place; of equal ones the lowest place. */
static __device__ void warp_best(float &value, int32_t &place)
{
	for (int x = 16; x; x /= 2) {
		float v = __shfl_xor_sync(FULL, value, x);
		int32_t p = __shfl_xor_sync(FULL, place, x);

		if (v > value || (v == value && p < place)) {
			value = v;
			place = p;
		}
	}
}

/* Turns a token's logits into scores. */
static __device__ void score_of(float (&v)[EACH], const struct sr_experts &c)
{
	int32_t lane = (int32_t)threadIdx.x % 32;
	float most = -INFINITY, sum = 0;

#pragma unroll
	for (int i = 0; i < EACH; i++) {
		v[i] = lane + 32 * i < c.n ? v[i] : -INFINITY;
		most = fmaxf(most, v[i]);
	}
	if (c.score == SR_SCORE_CHOSEN)
		return;
	most = warp_max(most);
#pragma unroll
	for (int i = 0; i < EACH; i++) {
		if (c.score == SR_SCORE_SIGMOID)
			v[i] = 1 / (1 + expf(-v[i]));
		else
			v[i] = v[i] > -INFINITY ? expf(v[i] - most) : 0;
		sum += v[i];
	}
	if (c.score == SR_SCORE_SIGMOID)
		return;
	sum = warp_sum(sum);
#pragma unroll
	for (int i = 0; i < EACH; i++)
		v[i] /= sum;
}

/* Which groups may be chosen from, a bit each.  `value` is in shared memory; lane g has group g. */
static __device__ uint32_t best_groups(const float *value, const struct sr_experts &c)
{
	int32_t lane = (int32_t)threadIdx.x % 32, size = c.n / c.groups;
	float first = -INFINITY, second = -INFINITY, own;
	uint32_t taken = 0;

	for (int32_t i = 0; i < size && lane < c.groups; i++) {
		float v = value[lane * size + i];

		second = v > first ? first : fmaxf(second, v);
		first = fmaxf(first, v);
	}
	own = c.group_sum == 2 ? first + second : first;
	for (int32_t j = 0; j < c.groups_top; j++) {
		float best = lane < c.groups && !(taken >> lane & 1) ? own : -INFINITY;
		int32_t place = lane < c.groups && !(taken >> lane & 1) ? lane : 32 + lane;

		warp_best(best, place);
		taken |= 1u << (place & 31);
	}
	return taken;
}

struct choose_args {
	struct routing to;
	struct sr_experts c;
	const float *score, *bias;           /* [T][n]; [n] on scores where they are compared, or NULL */
	const struct batch_token *token;
	int32_t padding;                     /* its slot */
	int32_t T;
};

/* The scores of a token, and what its experts are chosen by; `shared` has room for one for each expert. */
static __device__ void read_scores(const struct choose_args &a, int32_t t, float (&score)[EACH],
	float (&value)[EACH], float *shared)
{
	int32_t lane = (int32_t)threadIdx.x % 32, n = a.c.n, each = n / (a.c.groups > 1 ? a.c.groups : 1);
	uint32_t groups;

#pragma unroll
	for (int i = 0; i < EACH; i++)
		score[i] = lane + 32 * i < n ? a.score[(size_t)t * (size_t)n + (size_t)(lane + 32 * i)] : 0;
	score_of(score, a.c);
#pragma unroll
	for (int i = 0; i < EACH; i++) {
		int32_t e = lane + 32 * i;

		value[i] = e >= n ? -INFINITY : a.c.before ? a.score[(size_t)t * (size_t)n + (size_t)e]
		                              : score[i] + (a.bias ? a.bias[e] : 0);
		value[i] = value[i] == value[i] ? value[i] : -INFINITY; /* NaN has no place in an order */
		shared[e] = value[i];
	}
	if (a.c.groups <= 1)
		return;
	__syncwarp();
	groups = best_groups(shared, a.c);
#pragma unroll
	for (int i = 0; i < EACH; i++)
		if (lane + 32 * i < n && !(groups >> (lane + 32 * i) / each & 1))
			value[i] = -INFINITY;
}

/* The best expert that is not taken, and its score; of equal ones the first. */
static __device__ int32_t take_best(const float (&value)[EACH], const float (&score)[EACH], int32_t n,
	uint32_t &taken, float &f)
{
	int32_t lane = (int32_t)threadIdx.x % 32, place = n;
	float best = -INFINITY;

	f = 0;
#pragma unroll
	for (int i = 0; i < EACH; i++)           /* ascending */
		if (lane + 32 * i < n && !(taken >> i & 1) && (value[i] > best || place == n)) {
			best = value[i];
			place = lane + 32 * i;
		}
	warp_best(best, place);
#pragma unroll
	for (int i = 0; i < EACH; i++)
		f = place / 32 == i ? score[i] : f;
	taken |= place % 32 == lane ? 1u << place / 32 : 0;
	f = __shfl_sync(FULL, f, place % 32);
	return place;
}

/* A warp per token. */
static __global__ void __launch_bounds__(32 * CHOOSE_WARPS) choose_kernel(struct choose_args a)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	int32_t lane = (int32_t)threadIdx.x % 32, warp = (int32_t)threadIdx.x / 32, top = a.c.top, id = -1;
	int32_t t = (int32_t)blockIdx.x * CHOOSE_WARPS + warp;
	float score[EACH], value[EACH], own = 0, sum = 0, most; /* own: of rank `lane` */
	uint32_t taken = 0;

	if (t >= a.T)
		return;
	if (a.token[t].slot == a.padding) {
		if (lane < top)
			a.to.id[t * top + lane] = -1;
		return;
	}
	read_scores(a, t, score, value, (float *)shared + warp * EXPERTS_MAX);
	for (int32_t j = 0; j < top; j++) {
		float f;
		int32_t place = take_best(value, score, a.c.n, taken, f);

		id = lane == j ? place : id;
		own = lane == j ? f : own;
	}
	if (a.c.score == SR_SCORE_CHOSEN) {
		most = warp_max(lane < top ? own : -INFINITY);
		own = expf(own - most);
	}
	for (int32_t j = 0; j < top; j++)            /* in order of rank */
		sum += __shfl_sync(FULL, own, j);
	if (a.c.renorm || a.c.score == SR_SCORE_CHOSEN)
		own /= sum + 1e-20f;
	if (lane < top) {
		a.to.id[t * top + lane] = id;
		a.to.weight[t * top + lane] = own * a.c.scale;
	}
}

/* ---- pairs by expert ------------------------------------------------------------------ */

#define GROUP_THREADS EXPERTS_MAX            /* one per expert */
#define GROUP_WARPS (GROUP_THREADS / 32)

/* The lanes whose id is this lane's; ids are below EXPERTS_MAX, or -1. */
static __device__ uint32_t same_id(int32_t id)
{
	uint32_t same = FULL;

	for (int bit = 0; bit < 10; bit++) {
		uint32_t set = __ballot_sync(FULL, id >> bit & 1);

		same &= id >> bit & 1 ? set : ~set;
	}
	return same;
}

/* The sum of v over the threads before this one; `sums` has a number per warp. */
static __device__ int32_t sum_before(int32_t v, int32_t *sums)
{
	int32_t warp = (int32_t)threadIdx.x / 32, lane = (int32_t)threadIdx.x % 32, upto = v, before = 0;

	for (int32_t by = 1; by < 32; by *= 2) {
		int32_t more = __shfl_up_sync(FULL, upto, (unsigned)by);

		upto += lane >= by ? more : 0;
	}
	__syncthreads(); /* the previous call has read sums */
	if (lane == 31)
		sums[warp] = upto;
	__syncthreads();
	for (int32_t i = 0; i < warp; i++)
		before += sums[i];
	return before + upto - v;
}

/* Warps have consecutive parts of the pairs.  count[warp][expert]: first how many of its part there are, then
 * where the next of them goes. */
static __global__ void __launch_bounds__(GROUP_THREADS) group_kernel(struct routing r, int32_t n,
	int32_t pairs, int32_t rows, int32_t most_tiles)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	int32_t *count = (int32_t *)shared, *sums = count + GROUP_WARPS * n;
	int32_t e = (int32_t)threadIdx.x, warp = e / 32, lane = e % 32;
	int32_t part = (pairs + GROUP_THREADS - 1) / GROUP_THREADS * 32;
	int32_t from = warp * part, to = from + part < pairs ? from + part : pairs, all = 0, first, tile;
	int32_t *own = count + warp * n;

	for (int32_t i = e; i < GROUP_WARPS * n; i += GROUP_THREADS)
		count[i] = 0;
	__syncthreads();
	for (int32_t k = from; k < to; k += 32) {
		int32_t id = k + lane < to ? r.id[k + lane] : -1;
		uint32_t same = same_id(id);

		if (id >= 0 && lane == __ffs((int)same) - 1)
			own[id] += __popc(same);
		__syncwarp();
	}
	__syncthreads();
	for (int32_t w = 0; w < GROUP_WARPS && e < n; w++) {
		int32_t c = count[w * n + e];

		count[w * n + e] = all;
		all += c;
	}
	first = sum_before(all, sums);
	tile = sum_before((all + rows - 1) / rows, sums);
	for (int32_t w = 0; w < GROUP_WARPS && e < n; w++)
		count[w * n + e] += first;
	for (int32_t i = 0; i < all; i += rows)
		r.tile[tile++] = { e, first + i, all - i < rows ? all - i : rows };
	if (e == GROUP_THREADS - 1)
		sums[GROUP_WARPS] = tile;    /* of all experts */
	__syncthreads();
	for (int32_t i = sums[GROUP_WARPS] + e; i < most_tiles; i += GROUP_THREADS)
		r.tile[i] = { 0, 0, 0 };
	for (int32_t k = from; k < to; k += 32) {
		int32_t id = k + lane < to ? r.id[k + lane] : -1;
		uint32_t same = same_id(id);

		if (id >= 0)
			r.pair[own[id] + __popc(same & ((1u << lane) - 1))] = k + lane;
		__syncwarp();
		if (id >= 0 && lane == __ffs((int)same) - 1)
			own[id] += __popc(same);
		__syncwarp();
	}
}

/* ---- the sum -------------------------------------------------------------------------- */

#define COMBINE_THREADS 256

struct combine_args {
	struct routing from;
	int32_t top, own, D;                 /* own: the columns of Z that this rank has, of D */
	float *z;
	const float *out;                    /* [pairs][own] */
	bool weighted, shared;               /* out is to be weighted; z is added */
	const float *mix;                    /* z is multiplied by sigmoid(mix . y) before; NULL: by 1 */
	const bf16 *y;
};

static __global__ void __launch_bounds__(COMBINE_THREADS) combine_kernel(struct combine_args a)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	size_t t = (size_t)blockIdx.x, D = (size_t)a.D, own = (size_t)a.own;
	const int32_t *id = a.from.id + t * (size_t)a.top;
	const float *weight = a.from.weight + t * (size_t)a.top, *out = a.out + t * (size_t)a.top * own;
	float *z = a.z + t * own, by = 1, sum = 0;

	if (a.mix) {
		for (size_t i = threadIdx.x; i < D; i += COMBINE_THREADS)
			sum += a.mix[i] * f32_of(a.y[t * D + i]);
		by = 1 / (1 + expf(-block_sum(sum, (float *)shared)));
	}
	for (size_t i = threadIdx.x; i < own; i += COMBINE_THREADS) {
		float v = 0;

		for (int32_t j = 0; j < a.top && id[j] >= 0; j++)
			v += (a.weighted ? weight[j] : 1) * out[(size_t)j * own + i];
		z[i] = a.shared ? v + by * z[i] : v;
	}
}

/* to[pair] = y, times the pair's weight: the input of experts whose outputs are not weighted. */
static __global__ void __launch_bounds__(COMBINE_THREADS) weigh_kernel(struct routing r, int32_t top,
	const bf16 *y, int32_t D, bf16 *to)
{
	let_next_start();
	wait_for_previous();
	size_t pair = (size_t)blockIdx.x;

	y += pair / (size_t)top * (size_t)D;
	to += pair * (size_t)D;
	for (int32_t i = (int32_t)threadIdx.x; i < D && r.id[pair] >= 0; i += COMBINE_THREADS)
		to[i] = bf16_of(f32_of(y[i]) * r.weight[pair]);
}

/* ---- the operations ------------------------------------------------------------------- */

int experts_check(const struct sr_model *m, char *err, size_t errlen)
{
	const struct sr_experts *c = &m->experts;
	int32_t groups = c->groups > 1 ? c->groups : 1;

	if (!c->n)
		return 0;
	if (c->n > EXPERTS_MAX || c->top < 1 || c->top > TOP_MAX || c->top > c->n || groups > 32 || c->n % groups ||
	    (groups > 1 && (c->groups_top < 1 || c->groups_top > groups)))
		return refuse(-ENOTSUP, err, errlen, "%d experts in %d groups, %d for a token: the CUDA back end has up to "
			"%d in up to 32 groups of one size, and up to %d for a token", c->n, groups, c->top, EXPERTS_MAX,
			TOP_MAX);
	if (c->d_ff % 8 || c->d_shared % 8)
		return refuse(-ENOTSUP, err, errlen, "experts %d wide, a shared one of %d: both must be multiples of 8",
			c->d_ff, c->d_shared);
	return 0;
}

void experts_score(struct dev *d, const struct weight *router, int T)
{
	dim3 grid((unsigned)(T + SCORE_TOKENS - 1) / SCORE_TOKENS,
		(unsigned)(router->n + SCORE_WARPS - 1) / SCORE_WARPS);

	if (!d->fault.lost)
		cuda_ok(d, start(score_kernel, grid, 32 * SCORE_WARPS, 0, d->stream, (const bf16 *)d->act.place[P_Y],
			router->vec, router->bias, router->n, router->k, T, (float *)d->act.place[P_SCORES]),
			"scores of experts");
}

void route(struct dev *d, const struct sr_experts *c, const struct weight *choice_bias, int T)
{
	struct choose_args a = { d->routing, *c, (const float *)d->act.place[P_SCORES],
		choice_bias ? choice_bias->vec : NULL, d->batch.list.token, d->batch.null_slot, T };

	if (!d->fault.lost)
		cuda_ok(d, start(choose_kernel, (unsigned)(T + CHOOSE_WARPS - 1) / CHOOSE_WARPS, 32 * CHOOSE_WARPS,
			CHOOSE_WARPS * EXPERTS_MAX * sizeof(float), d->stream, a), "choose experts");
	if (!d->fault.lost)
		cuda_ok(d, start(group_kernel, 1, GROUP_THREADS,
			(size_t)(GROUP_WARPS * (c->n + 1) + 1) * sizeof(int32_t), d->stream, d->routing, c->n,
			T * c->top, expert_rows(T, c->n, c->top), expert_tiles(T, c->n, c->top)),
			"group tokens by expert");
	if (c->before && !d->fault.lost)             /* OUT is free until the experts have read it */
		cuda_ok(d, start(weigh_kernel, (unsigned)(T * c->top), COMBINE_THREADS, 0, d->stream, d->routing,
			c->top, (const bf16 *)d->act.place[P_Y], d->m->d_model, (bf16 *)d->act.place[P_OUT]),
			"weigh what experts read");
}

static __global__ void weigh_experts_kernel(struct routing r, const float *w, int32_t pairs)
{
	let_next_start();
	wait_for_previous();
	int32_t i = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);

	if (i < pairs && r.id[i] >= 0)
		r.weight[i] *= w[r.id[i]];
}

void weigh(struct dev *d, const struct weight *w, int T)
{
	int32_t pairs = T * d->m->experts.top;

	if (!d->fault.lost)
		cuda_ok(d, start(weigh_experts_kernel, (unsigned)(pairs + 127) / 128, 128, 0, d->stream, d->routing, w->vec,
			pairs), "weigh experts");
}

void combine(struct dev *d, const struct sr_experts *c, int shared, const struct weight *mix, int T)
{
	struct combine_args a = { d->routing, c->top, own_columns(&d->ranks, d->m->d_model), d->m->d_model, (float *)d->act.place[P_Z],
		(const float *)d->act.place[P_OUT], !c->before, shared != 0, mix ? mix->vec : NULL,
		(const bf16 *)d->act.place[P_Y] };

	if (!d->fault.lost)
		cuda_ok(d, start(combine_kernel, (unsigned)T, COMBINE_THREADS, COMBINE_THREADS / 32 * sizeof(float),
			d->stream, a), "add what experts made");
}
