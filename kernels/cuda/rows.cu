/* rows.cu - operations on one row at a time: embedding, norms, activation.  One block per row. */
#include <assert.h>

#include "norm.cuh"
#include "packed.cuh"

#define THREADS 128

/* first: the first row of the table that this rank has; other rows are not looked up. */
static __global__ void embed_kernel(struct table table, const struct batch_token *token,
	const struct slot *slot, int32_t first, float scale, float *x)
{
	let_next_start();
	wait_for_previous();
	struct batch_token k = token[blockIdx.x];
	int32_t id = k.id == SR_LAST ? slot[k.slot].last : k.id, D = table.packed.K;

	id -= first;
	if (id < 0 || id >= table.packed.N)
		return;

	x += (size_t)blockIdx.x * (size_t)D;
	for (int32_t i = (int32_t)threadIdx.x; i < D; i += THREADS)
		x[i] = table_at(table, id, i) * scale;
}

/* X += types, or from the slot's position on second_type; then the row of each token's position.  What the model does
 * not have is NULL. */
static __global__ void embed_places_kernel(struct table positions, const float *types, const float *second_type,
	const struct slot *slot, const struct batch_token *token, int32_t D, float *x)
{
	let_next_start();
	wait_for_previous();
	int32_t position = token[blockIdx.x].position, second = slot[token[blockIdx.x].slot].second;
	const float *type = second_type && second && position >= second ? second_type : types;

	x += (size_t)blockIdx.x * (size_t)D;
	for (int32_t i = (int32_t)threadIdx.x; i < D; i += THREADS) {
		float v = x[i] + (type ? type[i] : 0);

		x[i] = positions.packed.K ? v + table_at(positions, position, i) : v;
	}
}

/* ---- norms ------------------------------------------------------------------------------------------ */

/* y = norm(x), as bf16, in the order of a weight; NULL: original order. */
template <int HOW> static __device__ void norm_row(const float *x, const struct norm &pre, int32_t D,
	const int32_t *order, bf16 *y, float *scratch)
{
	struct norm_of_row r = measure_row<HOW>(x, D, pre.eps, scratch); /* its barriers make x visible to all
	                                                                    threads */

	for (int32_t i = (int32_t)threadIdx.x; i < D; i += (int32_t)blockDim.x) {
		int32_t from = order ? order[i] : i;

		y[i] = bf16_of(normed<HOW>(x[from], r, pre, from));
	}
}

/* The same in original order, and x becomes the norm, too. */
template <int HOW> static __device__ void replace_row(float *x, const struct norm &pre, int32_t D, bf16 *y,
	float *scratch)
{
	struct norm_of_row r = measure_row<HOW>(x, D, pre.eps, scratch); /* its barriers: all have read x */

	for (int32_t i = (int32_t)threadIdx.x; i < D; i += (int32_t)blockDim.x) {
		x[i] = normed<HOW>(x[i], r, pre, i);
		y[i] = bf16_of(x[i]);
	}
}

struct add_norm_args {
	float *x;
	const float *z;                      /* NULL: the first */
	struct norm post, pre;               /* w NULL: none */
	float by;                            /* on z, after its norm */
	int32_t D;
	const int32_t *order;
	bf16 *y;
	uint32_t *x8;                        /* NULL: y is bf16 */
	float *x8_scale;
};

/* x += by * z, or its norm.  A thread adds the same elements that it squares in the next norm, so no barrier
 * is needed between. */
template <int HOW> static __device__ void add_z(const struct add_norm_args &a, float *x, const float *z,
	float *scratch)
{
	struct norm_of_row r;

	if (a.post.w)
		r = measure_row<HOW>(z, a.D, a.post.eps, scratch);
	for (int32_t i = (int32_t)threadIdx.x; i < a.D; i += (int32_t)blockDim.x)
		x[i] += a.by * (a.post.w ? normed<HOW>(z[i], r, a.post, i) : z[i]);
}

/* HOW: of both norms.  SR_SAME: y is x, and z's norm is SR_RMS.  AFTER: x is replaced by its norm, too. */
template <int HOW, bool AFTER> static __global__ void add_norm_kernel(struct add_norm_args a)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	const int NORM = HOW == SR_SAME ? (int)SR_RMS : HOW;
	float *scratch = (float *)shared;
	size_t at = (size_t)blockIdx.x * (size_t)a.D;
	float *x = a.x + at;

	if (a.z)
		add_z<NORM>(a, x, a.z + at, scratch);
	if (AFTER) {
		replace_row<NORM>(x, a.pre, a.D, a.y + at, scratch);
	} else if (HOW == SR_SAME) {
		for (int32_t i = (int32_t)threadIdx.x; i < a.D; i += (int32_t)blockDim.x)
			a.y[at + (size_t)i] = bf16_of(x[i]);
	} else if (a.pre.w && a.x8) {
		struct norm_of_row r = measure_row<NORM>(x, a.D, a.pre.eps, scratch); /* makes x visible */

		quantize_row([=](int32_t i) { return f32_of(bf16_of(normed<NORM>(x[i], r, a.pre, i))); }, a.D,
			a.x8 + at / 4, a.x8_scale + blockIdx.x, scratch);
	} else if (a.pre.w) {
		norm_row<NORM>(x, a.pre, a.D, a.order, a.y + at, scratch);
	}
}

template <int HOW> static __global__ void pick_norm_kernel(const float *x, const struct batch_pick *pick,
	struct norm pre, int32_t D, bf16 *y)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);

	norm_row<HOW>(x + (size_t)pick[blockIdx.x].t * (size_t)D, pre, D, NULL,
		y + (size_t)blockIdx.x * (size_t)D, (float *)shared);
}

/* ---- rows of other places ----------------------------------------------------------------------------- */

/* The first n elements of rows of f32, in place. */
static __global__ void norm_f32_kernel(float *x, int32_t width, const float *w, int32_t n, float eps)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	struct norm pre = { w, NULL, eps };

	x += (size_t)blockIdx.x * (size_t)width;
	struct norm_of_row r = measure_row<SR_RMS>(x, n, eps, (float *)shared); /* its barriers: all have read x */

	for (int32_t i = (int32_t)threadIdx.x; i < n; i += THREADS)
		x[i] = normed<SR_RMS>(x[i], r, pre, i);
}

/* Of bf16, into rows of n. */
static __global__ void norm_bf16_kernel(const bf16 *x, int32_t width, const float *w, int32_t n, float eps, bf16 *to)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	float sum = 0, by;

	x += (size_t)blockIdx.x * (size_t)width;
	for (int32_t i = (int32_t)threadIdx.x; i < n; i += THREADS)
		sum += f32_of(x[i]) * f32_of(x[i]);
	by = 1 / sqrtf(block_sum(sum, (float *)shared) / (float)n + eps);
	for (int32_t i = (int32_t)threadIdx.x; i < n; i += THREADS)
		to[(size_t)blockIdx.x * (size_t)n + (size_t)i] = bf16_of(f32_of(x[i]) * by * w[i]);
}

/* y = y * by + x; x NULL: 0.  by NULL: 1. */
static __global__ void sum_kernel(float *y, const float *x, const float *by, int32_t D)
{
	let_next_start();
	wait_for_previous();
	size_t at = (size_t)blockIdx.x * (size_t)D;

	for (size_t i = at + threadIdx.x; i < at + (size_t)D; i += THREADS)
		y[i] = y[i] * (by ? *by : 1) + (x ? x[i] : 0);
}

/* grid: tokens, layers */
static __global__ void inputs_kernel(bf16 *x, struct table table, const float *w, const struct batch_token *token,
	const struct slot *slot, int32_t width, int32_t D, float eps)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	struct batch_token k = token[blockIdx.x];
	int32_t id = k.id == SR_LAST ? slot[k.slot].last : k.id, first = (int32_t)blockIdx.y * width;
	float down = 1 / sqrtf((float)D), up = sqrtf((float)width), sum = 0, by;

	x += (size_t)blockIdx.x * gridDim.y * (size_t)width + (size_t)first;
	for (int32_t i = (int32_t)threadIdx.x; i < width; i += THREADS)
		sum += f32_of(x[i]) * down * (f32_of(x[i]) * down);
	by = down / sqrtf(block_sum(sum, (float *)shared) / (float)width + eps);
	for (int32_t i = (int32_t)threadIdx.x; i < width; i += THREADS)
		x[i] = bf16_of((f32_of(x[i]) * by * w[i] + up * table_at(table, id, first + i)) * sqrtf(0.5f));
}

/* ---- activations ------------------------------------------------------------------------------------ */

struct act_args {
	const bf16 *gu;
	int32_t gated;                       /* 0: there is no up, gu has rows of F */
	int act;                             /* enum sr_act */
	float limit;                         /* SR_OAI's; 0: none */
	int32_t F;
};

static __global__ void input_mul_kernel(const bf16 *gu, const bf16 *in, int32_t in_width, int act, int32_t width,
	bf16 *out)
{
	let_next_start();
	wait_for_previous();
	for (int32_t i = (int32_t)threadIdx.x; i < width; i += THREADS)
		out[(size_t)blockIdx.x * (size_t)width + (size_t)i] = bf16_of(
			act_of(act, f32_of(gu[(size_t)blockIdx.x * (size_t)width + (size_t)i])) *
			f32_of(in[(size_t)blockIdx.x * (size_t)in_width + (size_t)i]));
}

/* Output i of this block's row. */
static __device__ float activated(const struct act_args &a, const bf16 *row, int32_t i)
{
	float g = f32_of(row[i]), u = a.gated ? f32_of(row[a.F + i]) : 1;

	if (a.act == SR_OAI) {
		g = a.limit > 0 ? fminf(g, a.limit) : g;
		u = (a.limit > 0 ? fminf(fmaxf(u, -a.limit), a.limit) : u) + 1;
	}
	return act_of(a.act, g) * u;
}

static __device__ const bf16 *row_of(const struct act_args &a)
{
	return a.gu + (size_t)blockIdx.x * (size_t)(a.gated ? 2 * a.F : a.F);
}

static __global__ void act_mul_kernel(struct act_args a, const int32_t *order, bf16 *out)
{
	let_next_start();
	wait_for_previous();
	const bf16 *row = row_of(a);

	out += (size_t)blockIdx.x * (size_t)a.F;
	for (int32_t i = (int32_t)(blockIdx.y * THREADS + threadIdx.x); i < a.F;
	     i += (int32_t)(gridDim.y * THREADS))
		out[i] = bf16_of(activated(a, row, order ? order[i] : i));
}

/* The same in 8 bits; a block has a whole row. */
static __global__ void act_mul_x8_kernel(struct act_args a, uint32_t *x8, float *x8_scale)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	const bf16 *row = row_of(a);

	quantize_row([=](int32_t i) { return f32_of(bf16_of(activated(a, row, i))); }, a.F,
		x8 + (size_t)blockIdx.x * (size_t)(a.F / 4), x8_scale + blockIdx.x, (float *)shared);
}

/* ---- the operations --------------------------------------------------------------------------------- */

static const size_t SCRATCH = THREADS / 32 * sizeof(float);

static const float *vector_of(const struct weight *w)
{
	return w ? w->vec : NULL;
}

void embed(struct dev *d, const struct weight *table, float scale, int T)
{
	const struct weight *p = d->positions;
	struct table t = { table->held, table->mat, table->packed }, places = {};

	if (!d->fault.lost)
		cuda_ok(d, start(embed_kernel, T, THREADS, 0, d->stream, t, d->batch.list.token, d->slots.slot, d->shape.vocab.from,
			scale, (float *)d->act.place[P_X]), "embed");
	if (p)
		places = { p->held, p->mat, p->packed };
	if ((p || d->types) && !d->fault.lost)
		cuda_ok(d, start(embed_places_kernel, T, THREADS, 0, d->stream, places, vector_of(d->types),
			vector_of(d->second_type), d->slots.slot, d->batch.list.token, d->m->d_model,
			(float *)d->act.place[P_X]), "embed places");
	if (d->ranks.world > 1)
		ranks_embed(d, T);
}

void add_norm(struct dev *d, int first, const struct weight *post, const struct weight *pre, enum sr_norm how,
	float eps, float by, int T)
{
	const struct weight *next = pre ? pre->feeds : NULL;
	bool x8 = wants_x8(d, next, T);
	struct add_norm_args a = { (float *)d->act.place[P_X], first ? NULL : (const float *)d->act.place[P_Z],
		norm_by(post, eps), norm_by(pre, eps), by, d->m->d_model, next ? next->order : NULL,
		(bf16 *)d->act.place[P_Y], x8 ? d->product.x8 : NULL, d->product.x8_scale };

	bool after = pre && (d->m->norm_after == SR_AFTER_ALL || (d->m->norm_after == SR_AFTER_FIRST && first));

	assert(!after || (how == SR_LAYER && !x8 && !a.order));
	d->product.made_for = x8 || (next && next->order) ? next : NULL;
	if (!d->fault.lost)
		cuda_ok(d, start(after ? add_norm_kernel<SR_LAYER, true> : how == SR_LAYER ? add_norm_kernel<SR_LAYER, false> :
			how == SR_SAME ? add_norm_kernel<SR_SAME, false> : add_norm_kernel<SR_RMS, false>, T, norm_threads(a.D),
			NORM_SCRATCH, d->stream, a), "add_norm");
}

void pick_norm(struct dev *d, const struct weight *w, enum sr_norm how, float eps, int i0, int R)
{
	if (!d->fault.lost)
		cuda_ok(d, start(how == SR_LAYER ? pick_norm_kernel<SR_LAYER> : pick_norm_kernel<SR_RMS>, R,
			norm_threads(d->m->d_model), NORM_SCRATCH, d->stream, (const float *)d->act.place[P_X], d->batch.list.pick + i0,
			norm_by(w, eps), d->m->d_model, (bf16 *)d->act.place[P_Y]), "pick_norm");
}

void act_mul(struct dev *d, enum sr_ffn ffn, enum sr_act act, float limit, int F, int T)
{
	const struct weight *next = d->ranks.world > 1 ? NULL : d->product.reader; /* of ranks it reads all columns */
	bool x8 = wants_x8(d, next, T);
	struct act_args a = { (const bf16 *)d->act.place[P_GU], ffn != SR_PLAIN, (int)act, limit,
		own_columns(&d->ranks, F) };

	d->ranks.d_ff = F;
	F = a.F;
	d->product.made_for = x8 || (next && next->order) ? next : NULL;
	if (x8 && !d->fault.lost)
		cuda_ok(d, start(act_mul_x8_kernel, T, 2 * THREADS, 2 * SCRATCH, d->stream, a, d->product.x8,
			d->product.x8_scale), "act_mul");
	else if (!d->fault.lost)
		cuda_ok(d, start(act_mul_kernel, dim3((unsigned)T, (unsigned)(F + 1023) / 1024), THREADS, 0,
			d->stream, a, next ? next->order : NULL, (bf16 *)d->act.place[P_ACT]), "act_mul");
}

/* Of LATENT into Y, where the product that reads it finds rows of its own width. */
void norm(struct dev *d, enum place p, const struct weight *w, float eps, int T)
{
	int32_t width = d->shape.width[p];

	if (d->fault.lost)
		return;
	if (is_f32(p))
		cuda_ok(d, start(norm_f32_kernel, T, THREADS, SCRATCH, d->stream, (float *)d->act.place[p], width, w->vec, w->k,
			eps), "norm");
	else
		cuda_ok(d, start(norm_bf16_kernel, T, THREADS, SCRATCH, d->stream, (const bf16 *)d->act.place[p], width, w->vec,
			w->k, eps, (bf16 *)d->act.place[P_Y]), "norm");
}

void sum(struct dev *d, enum place y, enum place x, int T)
{
	if (!d->fault.lost)
		cuda_ok(d, start(sum_kernel, T, THREADS, 0, d->stream, (float *)d->act.place[y], (const float *)d->act.place[x],
			(const float *)NULL, d->m->d_model), "sum");
}

void scale(struct dev *d, const struct weight *w, int T)
{
	if (!d->fault.lost)
		cuda_ok(d, start(sum_kernel, T, THREADS, 0, d->stream, (float *)d->act.place[P_X], (const float *)NULL, w->vec,
			d->m->d_model), "scale");
}

void inputs(struct dev *d, const struct weight *table, const struct weight *w, int width, float eps, int T)
{
	struct table t = { table->held, table->mat, table->packed };

	t.packed.K = table->k;
	if (!d->fault.lost)
		cuda_ok(d, start(inputs_kernel, dim3((unsigned)T, (unsigned)d->m->n_layers), THREADS, SCRATCH, d->stream,
			(bf16 *)d->act.place[P_INPUTS], t, w->vec, d->batch.list.token, d->slots.slot, width, d->m->d_model,
			eps), "inputs of layers");
}

void input_mul(struct dev *d, int l, enum sr_act act, int width, int T)
{
	if (!d->fault.lost)
		cuda_ok(d, start(input_mul_kernel, T, THREADS, 0, d->stream, (const bf16 *)d->act.place[P_GU],
			(const bf16 *)d->act.place[P_INPUTS] + (size_t)l * (size_t)width, d->m->n_layers * width, (int)act,
			width, (bf16 *)d->act.place[P_ACT]), "input of a layer");
}
