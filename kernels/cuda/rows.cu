/* rows.cu - operations on one row at a time: embedding, norms, activation.  One block per row. */
#include "device.cuh"
#include "packed.cuh"
#include "quantize.cuh"

#define THREADS 128

struct table { enum held held; const bf16 *mat; struct packed packed; };

/* Element i of a row: output n, input i of a table that is also the head. */
static __device__ float table_at(const struct table &t, int32_t n, int32_t i)
{
	const struct packed &p = t.packed;
	uint32_t scale, even, odd;
	float2 f;

	if (t.held == HELD_BF16)
		return f32_of(t.mat[(size_t)n * (size_t)p.K + (size_t)i]);
	scale = p.scale[(size_t)(i / SLAB / p.group) * (size_t)p.width + (size_t)n];
	if (t.held == HELD_W8) {
		bf16_of_e4m3(p.words[packed_at<2>(n, i, p.K)], even, odd);
		return f32_of((bf16)((byte_of(i) % 2 ? odd : even) >> byte_of(i) / 2 * 16)) * __uint_as_float(scale);
	}
	f = f32_of_f16_pair(scale);
	return f.x * (float)((int)(p.words[packed_at<1>(n, i, p.K)] >> 4 * nibble_of(i) & 15) - 8) + f.y;
}

static __global__ void embed_kernel(struct table table, const struct batch_token *token,
	const struct slot *slot,
                                    float scale, float *x)
{
	let_next_start();
	wait_for_previous();
	struct batch_token k = token[blockIdx.x];
	int32_t id = k.id == SR_LAST ? slot[k.slot].last : k.id, D = table.packed.K;

	x += (size_t)blockIdx.x * (size_t)D;
	for (int32_t i = (int32_t)threadIdx.x; i < D; i += THREADS)
		x[i] = table_at(table, id, i) * scale;
}

/* 1 / rms of a row that is visible to all threads of the block. */
static __device__ float rms_scale(const float *x, int32_t n, float eps, float *scratch)
{
	float sum = 0;

	for (int32_t i = (int32_t)threadIdx.x; i < n; i += THREADS)
		sum += x[i] * x[i];
	return 1 / sqrtf(block_sum(sum, scratch) / (float)n + eps);
}

/* y = x / rms(x) * pre, as bf16, in the order of a weight; NULL: original order. */
static __device__ void norm_row(const float *x, const float *pre, float eps, int32_t D, const int32_t *order,
	bf16 *y, float *scratch)
{
	float scale = rms_scale(x, D, eps, scratch); /* its barriers make x visible to all threads */

	for (int32_t i = (int32_t)threadIdx.x; i < D; i += THREADS) {
		int32_t from = order ? order[i] : i;

		y[i] = bf16_of(x[from] * scale * pre[from]);
	}
}

/* A thread adds the same elements that it squares in the norm, so no barrier is needed between. */
static __global__ void add_norm_kernel(float *x, const float *z, const float *post, const float *pre,
                                       float eps, int32_t D, const int32_t *order, bf16 *y, uint32_t *x8,
                                       float *x8_scale)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	float *scratch = (float *)shared, scale = 1;
	size_t at = (size_t)blockIdx.x * (size_t)D;

	x += at;
	if (z) {
		z += at;
		if (post)
			scale = rms_scale(z, D, eps, scratch);
		for (int32_t i = (int32_t)threadIdx.x; i < D; i += THREADS)
			x[i] += post ? z[i] * scale * post[i] : z[i];
	}
	if (pre && x8) {
		scale = rms_scale(x, D, eps, scratch); /* its barriers make x visible to all threads */
		quantize_row([=](int32_t i) { return f32_of(bf16_of(x[i] * scale * pre[i])); }, D, x8 + at / 4,
			x8_scale + blockIdx.x, scratch);
	} else if (pre) {
		norm_row(x, pre, eps, D, order, y + at, scratch);
	}
}

static __global__ void pick_norm_kernel(const float *x, const struct batch_pick *pick, const float *pre,
                                        float eps, int32_t D, bf16 *y)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);

	norm_row(x + (size_t)pick[blockIdx.x].t * (size_t)D, pre, eps, D, NULL,
		y + (size_t)blockIdx.x * (size_t)D, (float *)shared);
}

static __device__ float activation(int act, float x)
{
	if (act == SR_SILU)
		return x / (1 + __expf(-x));
	return x / 2 * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static __global__ void act_mul_kernel(const bf16 *gu, int act, int32_t F, const int32_t *order, bf16 *out)
{
	let_next_start();
	wait_for_previous();
	const bf16 *gate = gu + (size_t)blockIdx.x * 2 * (size_t)F;

	out += (size_t)blockIdx.x * (size_t)F;
	for (int32_t i = (int32_t)(blockIdx.y * THREADS + threadIdx.x); i < F;
	     i += (int32_t)(gridDim.y * THREADS)) {
		int32_t from = order ? order[i] : i;

		out[i] = bf16_of(activation(act, f32_of(gate[from])) * f32_of(gate[F + from]));
	}
}

/* The same in 8 bits; a block has a whole row. */
static __global__ void act_mul_x8_kernel(const bf16 *gu, int act, int32_t F, uint32_t *x8, float *x8_scale)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	const bf16 *gate = gu + (size_t)blockIdx.x * 2 * (size_t)F;

	quantize_row([=](int32_t i) {
		return f32_of(bf16_of(activation(act, f32_of(gate[i])) * f32_of(gate[F + i])));
	}, F, x8 + (size_t)blockIdx.x * (size_t)(F / 4), x8_scale + blockIdx.x, (float *)shared);
}

/* ---- the operations --------------------------------------------------------------------------------- */

static const size_t SCRATCH = THREADS / 32 * sizeof(float);

void embed(struct dev *d, const struct weight *table, float scale, int T)
{
	struct table t = { table->held, table->mat, table->packed };

	if (!d->fault.lost)
		cuda_ok(d, start(embed_kernel, T, THREADS, 0, d->stream, t, d->batch.list.token, d->slots.slot, scale,
			(float *)d->act.place[P_X]), "embed");
}

/* how and by: backend.cu refuses models that have others than SR_RMS and 1. */
void add_norm(struct dev *d, int first, const struct weight *post, const struct weight *pre, enum sr_norm, float eps,
	float, int T)
{
	const float *z = first ? NULL : (const float *)d->act.place[P_Z];
	const struct weight *next = pre ? pre->feeds : NULL;
	bool x8 = wants_x8(d, next, T);

	d->product.made_for = x8 || (next && next->order) ? next : NULL;
	if (!d->fault.lost)
		cuda_ok(d, start(add_norm_kernel, T, THREADS, SCRATCH, d->stream, (float *)d->act.place[P_X], z,
			post ? post->vec : NULL, pre ? pre->vec : NULL, eps, d->m->d_model,
			next ? next->order : NULL, (bf16 *)d->act.place[P_Y], x8 ? d->product.x8 : NULL,
			d->product.x8_scale), "add_norm");
}

void pick_norm(struct dev *d, const struct weight *w, enum sr_norm, float eps, int i0, int R)
{
	if (!d->fault.lost)
		cuda_ok(d, start(pick_norm_kernel, R, THREADS, SCRATCH, d->stream,
			(const float *)d->act.place[P_X],
			d->batch.list.pick + i0, w->vec, eps, d->m->d_model, (bf16 *)d->act.place[P_Y]), "pick_norm");
}

void act_mul(struct dev *d, enum sr_ffn, enum sr_act act, float, int F, int T)
{
	const struct weight *next = d->product.reader;
	bool x8 = wants_x8(d, next, T);

	d->product.made_for = x8 || (next && next->order) ? next : NULL;
	if (x8 && !d->fault.lost)
		cuda_ok(d, start(act_mul_x8_kernel, T, 2 * THREADS, 2 * SCRATCH, d->stream,
			(const bf16 *)d->act.place[P_GU], (int)act, F, d->product.x8, d->product.x8_scale), "act_mul");
	else if (!d->fault.lost)
		cuda_ok(d, start(act_mul_kernel, dim3((unsigned)T, (unsigned)(F + 1023) / 1024), THREADS, 0,
			d->stream,
			(const bf16 *)d->act.place[P_GU], (int)act, F, next ? next->order : NULL,
			(bf16 *)d->act.place[P_ACT]), "act_mul");
}
