/* pool.cu - vectors of prompts, and the logits that a classifier makes of them. */
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/packed.cuh"

struct pool_args {
	const struct sr_row *row;
	const int32_t *token_of;             /* [rows] */
	float *x;
	struct norm pre;
	struct slots slots;
	const struct current_batch *current;
	int32_t D, width;                    /* width: of a vector's place in the batch */
	bf16 *y;                             /* of a model with a classifier, which reads it; else NULL */
};

/* The tokens of a row that count, from .. to - 1. */
static __device__ int32_t counts_to(const struct sr_row &r)
{
	return r.pool == SR_POOL_MEAN ? r.n : r.pool == SR_POOL_FIRST ? r.first == 0 : r.sample ? r.n : 0;
}

static __device__ int32_t counts_from(const struct sr_row &r)
{
	return r.pool == SR_POOL_LAST ? r.n - 1 : 0;
}

/* By which the sum of a prompt that this row ends is multiplied. */
static __device__ float share_of(const struct sr_row &r)
{
	return r.pool == SR_POOL_MEAN ? 1 / (float)(r.first + r.n) : 1;
}

/* The vector of a prompt that ends in this batch, in the host's memory. */
static __device__ void put_vector(const struct pool_args &a, const struct sr_row &r, const float *sum, float *scratch)
{
	struct sr_pooling want = a.slots.slot[r.slot].pooling;
	int32_t n = want.width ? (int32_t)want.width : a.D;
	float *to = a.current->vector + (size_t)r.mask * (size_t)a.width, by = share_of(r), squares = 0;

	for (int32_t i = (int32_t)threadIdx.x; i < n && want.unit; i += (int32_t)blockDim.x)
		squares += sum[i] * by * (sum[i] * by);
	if (want.unit)
		by /= fmaxf(sqrtf(block_sum(squares, scratch)), 1e-12f);
	for (int32_t i = (int32_t)threadIdx.x; i < n && i < a.width; i += (int32_t)blockDim.x)
		to[i] = sum[i] * by;
}

/* grid: rows, parts of their tokens.  What counts of X becomes its norm. */
template <int HOW> static __global__ void pool_norm_kernel(struct pool_args a)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	struct sr_row r = a.row[blockIdx.x];

	if (!r.pool || r.pool == SR_POOL_LOGITS)
		return;
	for (int32_t j = counts_from(r) + (int32_t)blockIdx.y; j < counts_to(r); j += (int32_t)gridDim.y) {
		float *x = a.x + (size_t)(a.token_of[blockIdx.x] + j) * (size_t)a.D;
		struct norm_of_row k = measure_row<HOW>(x, a.D, a.pre.eps, (float *)shared);

		for (int32_t i = (int32_t)threadIdx.x; i < a.D; i += (int32_t)blockDim.x)
			x[i] = normed<HOW>(x[i], k, a.pre, i);
	}
}

/* grid: rows.  Tokens are added in the order of their positions; a thread adds the same elements of each. */
static __global__ void pool_kernel(struct pool_args a)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	struct sr_row r = a.row[blockIdx.x];
	float *sum = a.slots.sum + (size_t)r.slot * (size_t)a.D;
	const float *x = a.x + (size_t)a.token_of[blockIdx.x] * (size_t)a.D;
	int32_t from = counts_from(r), to = counts_to(r);
	bool begun = r.pool == SR_POOL_MEAN && r.first > 0; /* by rows before this one */

	if (!r.pool || r.pool == SR_POOL_LOGITS)
		return;
	for (int32_t i = (int32_t)threadIdx.x; i < a.D && from < to; i += (int32_t)blockDim.x) {
		float v = begun ? sum[i] : x[(size_t)from * (size_t)a.D + (size_t)i];

#pragma unroll 8
		for (int32_t j = begun ? from : from + 1; j < to; j++)
			v += x[(size_t)j * (size_t)a.D + (size_t)i];
		sum[i] = v;
	}
	if (a.y)
		for (int32_t i = (int32_t)threadIdx.x; i < a.D; i += (int32_t)blockDim.x)
			a.y[(size_t)blockIdx.x * (size_t)a.D + (size_t)i] = bf16_of(r.sample ? sum[i] * share_of(r) : 0);
	else if (r.sample)
		put_vector(a, r, sum, (float *)shared);
}

struct label_args {
	struct pool_args of;
	float *z;                            /* [rows][D] what the dense layer made; NULL: there is none */
	int act;                             /* enum sr_head_act; of z, before its norm */
	const float *vec, *bias;             /* vec: of a single label; NULL: they are in the table.  bias: or NULL */
	struct table labels;
	int32_t n;
};

/* grid: rows.  The logits of a prompt that ends in this batch, in the host's memory. */
static __global__ void label_kernel(struct label_args a)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	struct sr_row r = a.of.row[blockIdx.x];
	const float *sum = a.of.slots.sum + (size_t)r.slot * (size_t)a.of.D;
	float *z = a.z ? a.z + (size_t)blockIdx.x * (size_t)a.of.D : NULL, *to = a.of.current->vector + (size_t)r.mask * (size_t)a.of.width;
	struct norm_of_row k = { 0, 1 };

	if (!r.pool || r.pool == SR_POOL_LOGITS || !r.sample)
		return;
	for (int32_t i = (int32_t)threadIdx.x; z && i < a.of.D; i += (int32_t)blockDim.x)
		z[i] = a.act == SR_HEAD_TANH ? tanhf(z[i]) : act_of(SR_GELU_ERF, z[i]);
	if (z && a.of.pre.w)
		k = measure_row<SR_LAYER>(z, a.of.D, a.of.pre.eps, (float *)shared);
	int32_t wanted = (int32_t)a.of.slots.slot[r.slot].pooling.width, n = wanted && wanted < a.n ? wanted : a.n;

	for (int32_t l = 0; l < n; l++) {
		float dot = 0;

		for (int32_t i = (int32_t)threadIdx.x; i < a.of.D; i += (int32_t)blockDim.x) {
			float v = !z ? sum[i] * share_of(r) : a.of.pre.w ? normed<SR_LAYER>(z[i], k, a.of.pre, i) : z[i];

			dot += v * (a.vec ? a.vec[i] : table_at(a.labels, l, i));
		}
		dot = block_sum(dot, (float *)shared);
		if (threadIdx.x == 0)
			to[l] = dot + (a.bias ? a.bias[l] : 0);
	}
}

/* ---- the operations --------------------------------------------------------------------------------- */

static struct pool_args args_of(struct dev *d, const struct weight *norm, float eps)
{
	struct pool_args a = { d->batch.list.row, d->batch.list.token_of, (float *)d->act.place[P_X], norm_by(norm, eps),
		d->slots, d->batch.current, d->m->d_model, d->draw.width,
		d->m->classifier.n_labels ? (bf16 *)d->act.place[P_Y] : NULL };

	return a;
}

void pool(struct dev *d, const struct weight *w, enum sr_norm how, float eps, int n_rows)
{
	struct pool_args a = args_of(d, w, eps);
	dim3 grid((unsigned)n_rows, (unsigned)(4 * d->gpu.processors / n_rows + 1));

	if (w && !d->fault.lost)
		cuda_ok(d, start(how == SR_LAYER ? pool_norm_kernel<SR_LAYER> : pool_norm_kernel<SR_RMS>, grid,
			norm_threads(a.D), NORM_SCRATCH, d->stream, a), "pool");
	if (!d->fault.lost)
		cuda_ok(d, start(pool_kernel, n_rows, norm_threads(a.D), NORM_SCRATCH, d->stream, a), "pool");
}

/* From Y: from the sums of slots, which Y has rounded. */
void label(struct dev *d, enum place from, enum sr_head_act act, const struct weight *norm, const struct weight *labels,
	const struct weight *bias, float eps, int n_rows)
{
	struct label_args a = { args_of(d, norm, eps), from == P_Z ? (float *)d->act.place[P_Z] : NULL, (int)act,
		labels->held == HELD_VECTOR ? labels->vec : NULL, bias ? bias->vec : NULL,
		{ labels->held, labels->mat, labels->packed }, d->m->classifier.n_labels };

	if (!d->fault.lost)
		cuda_ok(d, start(label_kernel, n_rows, norm_threads(a.of.D), NORM_SCRATCH, d->stream, a), "labels");
}
