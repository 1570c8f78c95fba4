/* recur.cu - layers with a state (SR_DELTA), and the gate of attention.
 *
 *	rule    a block per row and value head, a thread per column of the state, which lies in shared memory.  STAGE
 *	        tokens at a time are read, convolved and normed together; within them a thread needs no other
 *	past    a thread per channel of a row: the inputs that the convolution of the next row needs
 *
 * Tokens are taken one after the other, so a state depends on its sequence alone, not on how rows are cut.
 *
 * A state, in f32: for each layer with one, [conv - 1][channels] inputs of the convolution, the oldest first, then
 * [v_heads][k_dim][v_dim].  Slots say which one a row continues, and which it leaves (SR_CMD_STATE, SR_CMD_KEEP).
 */
#include <errno.h>

#include "device.cuh"
#include "kernels/refuse.h"

#define THREADS  128
#define STAGE    16                   /* tokens */
#define CONV_MAX 8

struct recur_args {
	const bf16 *qkv;                     /* [T][width]: q, k, v, z, b, a */
	bf16 *out;                           /* [T][v_heads * v_dim] */
	const float *conv, *rate, *dt, *norm;
	float eps;
	struct sr_delta of;
	int32_t width, channels;
	const struct sr_row *row;
	const int32_t *token_of;
	const struct slot *slot;
	float *state;                        /* of this layer */
	size_t each;                         /* floats from one state to the next */
};

static __device__ float *state_at(const recur_args &a, int32_t state)
{
	return state < 0 ? NULL : a.state + (size_t)state * a.each;
}

/* ---- the convolution ------------------------------------------------------------------ */

/* Input i of channel c: of this row, or, below 0, of the tokens before it. */
static __device__ float input(const recur_args &a, const bf16 *row, const float *from, int32_t i, int32_t c)
{
	if (i >= 0)
		return f32_of(row[(size_t)i * (size_t)a.width + (size_t)c]);
	return from ? from[(a.of.conv - 1 + i) * a.channels + c] : 0;
}

/* What the rule reads of channel c at token t of the row. */
static __device__ float conv_at(const recur_args &a, const bf16 *row, const float *from, int32_t t, int32_t c)
{
	float sum = 0;

	for (int32_t j = 0; j < a.of.conv; j++)
		sum += a.conv[c * a.of.conv + j] * input(a, row, from, t - a.of.conv + 1 + j, c);
	return sum / (1 + expf(-sum));
}

/* What the convolution needs of the first n tokens. */
static __device__ void put_past(const recur_args &a, float *to, const bf16 *row, const float *from, int32_t n, int32_t c)
{
	float past[CONV_MAX - 1];            /* `to` may be `from` */

	for (int32_t j = 0; j < a.of.conv - 1; j++)
		past[j] = input(a, row, from, n - a.of.conv + 1 + j, c);
	for (int32_t j = 0; j < a.of.conv - 1; j++)
		to[j * a.channels + c] = past[j];
}

/* Runs after the rule, whose blocks read what it replaces. */
static __global__ void __launch_bounds__(THREADS) past_kernel(struct recur_args a)
{
	let_next_start();
	wait_for_previous();
	struct sr_row r = a.row[blockIdx.x];
	const struct slot *s = &a.slot[r.slot];
	int32_t c = (int32_t)(blockIdx.y * THREADS + threadIdx.x);
	const bf16 *row = a.qkv + (size_t)a.token_of[blockIdx.x] * (size_t)a.width;
	const float *from = state_at(a, s->from);

	if (c >= a.channels)
		return;
	if (s->keep >= 0)
		put_past(a, state_at(a, s->keep), row, from, s->keep_at - r.first, c);
	put_past(a, state_at(a, s->to), row, from, r.n, c);
}

/* ---- the rule ------------------------------------------------------------------------- */

/* In shared memory. */
struct stage {
	float *state;                        /* [k_dim][v_dim] */
	float *q, *k;                        /* [STAGE][k_dim] */
	float *out;                          /* [STAGE][v_dim] */
	float *decay, *write;                /* [STAGE] */
};

static __host__ __device__ size_t stage_floats(const struct sr_delta &a)
{
	return (size_t)a.k_dim * (size_t)a.v_dim + STAGE * (size_t)(2 * a.k_dim + a.v_dim + 2);
}

static __device__ struct stage stage_in(const recur_args &a, float *shared)
{
	struct stage s;

	s.state = shared;
	s.q = s.state + a.of.k_dim * a.of.v_dim;
	s.k = s.q + STAGE * a.of.k_dim;
	s.out = s.k + STAGE * a.of.k_dim;
	s.decay = s.out + STAGE * a.of.v_dim;
	s.write = s.decay + STAGE;
	return s;
}

static __device__ float sum_of_squares(const float *x, int32_t n)
{
	float sum = 0;

	for (int32_t i = (int32_t)threadIdx.x % 32; i < n; i += 32)
		sum += x[i] * x[i];
	return warp_sum(sum);
}

/* What a block works on: its row in QKV, and the state before it. */
struct source { const bf16 *row; const float *from; };

/* A warp: one head of q or k at token t, from channel c on, convolved and normed. */
static __device__ void read_head(const recur_args &a, const struct source &x, int32_t t, int32_t c, float by, float *to)
{
	int32_t n = a.of.k_dim;

	for (int32_t i = (int32_t)threadIdx.x % 32; i < n; i += 32)
		to[i] = conv_at(a, x.row, x.from, t, c + i);
	__syncwarp();
	by /= sqrtf(sum_of_squares(to, n) + 1e-6f);
	__syncwarp();
	for (int32_t i = (int32_t)threadIdx.x % 32; i < n; i += 32)
		to[i] *= by;
}

/* A warp per token from t0 on: q and k of key head g, decay and write of value head h. */
static __device__ void read_stage(const recur_args &a, const struct source &x, int32_t t0, int32_t n, int32_t g,
	int32_t h, const struct stage &s)
{
	int32_t warp = (int32_t)threadIdx.x / 32, dk = a.of.k_dim, at = a.channels + a.of.v_heads * a.of.v_dim;

	for (int32_t t = warp; t < n; t += THREADS / 32) {
		const bf16 *row = x.row + (size_t)(t0 + t) * (size_t)a.width;

		read_head(a, x, t0 + t, g * dk, 1 / sqrtf((float)dk), s.q + t * dk);
		read_head(a, x, t0 + t, (a.of.k_heads + g) * dk, 1, s.k + t * dk);
		if (threadIdx.x % 32 == 0) {
			float b = f32_of(row[at + h]), dt = f32_of(row[at + a.of.v_heads + h]) + a.dt[h];

			s.write[t] = 1 / (1 + expf(-b));
			s.decay[t] = expf(a.rate[h] * (dt > 20 ? dt : log1pf(expf(dt))));
		}
	}
	__syncthreads();
}

/* One column of the state through n tokens; c: its channel of v. */
static __device__ void run_column(const recur_args &a, const struct source &x, int32_t t0, int32_t n, int32_t c, int32_t j,
	const struct stage &s)
{
	int32_t dk = a.of.k_dim, dv = a.of.v_dim;
	float *column = s.state + j;

	for (int32_t t = 0; t < n; t++) {
		const float *q = s.q + t * dk, *k = s.k + t * dk;
		float decay = s.decay[t], sum = 0, out = 0, d;

		for (int32_t i = 0; i < dk; i++)
			sum += column[i * dv] * k[i];
		d = (conv_at(a, x.row, x.from, t0 + t, c) - sum * decay) * s.write[t];
		for (int32_t i = 0; i < dk; i++) {
			float y = column[i * dv] * decay + d * k[i];

			column[i * dv] = y;
			out += y * q[i];
		}
		s.out[t * dv + j] = out;
	}
}

/* A warp per token: the gated norm. */
static __device__ void write_stage(const recur_args &a, const bf16 *z, bf16 *out, int32_t n, const struct stage &s)
{
	int32_t warp = (int32_t)threadIdx.x / 32, dv = a.of.v_dim;

	for (int32_t t = warp; t < n; t += THREADS / 32) {
		const float *x = s.out + t * dv;
		float by = 1 / sqrtf(sum_of_squares(x, dv) / (float)dv + a.eps);

		for (int32_t i = (int32_t)threadIdx.x % 32; i < dv; i += 32) {
			float gate = f32_of(z[(size_t)t * (size_t)a.width + (size_t)i]);

			out[(size_t)t * (size_t)(a.of.v_heads * dv) + (size_t)i] = bf16_of(x[i] * by * a.norm[i] * gate /
				(1 + expf(-gate)));
		}
	}
	__syncthreads(); /* the next tokens replace what was read */
}

static __device__ void copy_matrix(float *to, const float *from, int32_t n)
{
	for (int32_t i = (int32_t)threadIdx.x; i < n; i += THREADS)
		to[i] = from ? from[i] : 0;
	__syncthreads();
}

static __global__ void __launch_bounds__(THREADS) rule_kernel(struct recur_args a)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	const struct stage st = stage_in(a, (float *)shared);
	struct sr_row r = a.row[blockIdx.x];
	const struct slot *s = &a.slot[r.slot];
	int32_t h = (int32_t)blockIdx.y, g = a.of.tiled ? h % a.of.k_heads : h / (a.of.v_heads / a.of.k_heads);
	int32_t dv = a.of.v_dim, each = a.of.k_dim * dv, keep = s->keep >= 0 ? s->keep_at - r.first : -1, n;
	size_t at = (size_t)(a.of.conv - 1) * (size_t)a.channels + (size_t)h * (size_t)each;
	size_t token = (size_t)a.token_of[blockIdx.x];
	const struct source x = { a.qkv + token * (size_t)a.width, state_at(a, s->from) };
	const bf16 *z = x.row + a.channels + h * dv;
	bf16 *out = a.out + token * (size_t)(a.of.v_heads * dv) + h * dv;

	copy_matrix(st.state, x.from ? x.from + at : NULL, each);
	for (int32_t t = 0; t < r.n; t += n) {
		n = r.n - t < STAGE ? r.n - t : STAGE;
		n = keep > t && keep - t < n ? keep - t : n;
		read_stage(a, x, t, n, g, h, st);
		for (int32_t j = (int32_t)threadIdx.x; j < dv; j += THREADS)
			run_column(a, x, t, n, 2 * a.of.k_heads * a.of.k_dim + h * dv + j, j, st);
		__syncthreads();
		write_stage(a, z, out, n, st);
		if (t + n == keep)
			copy_matrix(state_at(a, s->keep) + at, st.state, each);
		z += (size_t)n * (size_t)a.width;
		out += (size_t)n * (size_t)(a.of.v_heads * dv);
	}
	copy_matrix(state_at(a, s->to) + at, st.state, each);
}

/* ---- attention's gate ----------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS) gate_kernel(bf16 *out, const bf16 *gate, int32_t n, int32_t width)
{
	let_next_start();
	wait_for_previous();
	out += (size_t)blockIdx.x * (size_t)n;
	gate += (size_t)blockIdx.x * (size_t)width;
	for (int32_t i = (int32_t)threadIdx.x; i < n; i += THREADS)
		out[i] = bf16_of(f32_of(out[i]) / (1 + expf(-f32_of(gate[i]))));
}

void attend_gate(struct dev *d, const struct sr_attn *kind, int T)
{
	int32_t n = kind->n_heads * kind->head_dim, width = d->attend.q_width;

	if (!d->fault.lost)
		cuda_ok(d, start(gate_kernel, (unsigned)T, THREADS, 0, d->stream, (bf16 *)d->act.place[P_A],
			(const bf16 *)d->act.place[P_QKV] + (width - n), n, width), "gate");
}

/* ---- on the host ---------------------------------------------------------------------- */

int32_t state_layers(const struct sr_model *m)
{
	int32_t n = 0;

	for (int32_t l = 0; l < m->n_layers; l++)
		n += m->layer[l].mixer == SR_DELTA;
	return n;
}

static size_t layer_floats(const struct sr_delta *a)
{
	return (size_t)(a->conv - 1) * (size_t)sr_delta_channels(a) +
	       (size_t)a->v_heads * (size_t)a->k_dim * (size_t)a->v_dim;
}

size_t state_bytes(const struct sr_model *m)
{
	return m->delta.v_heads ? (size_t)state_layers(m) * layer_floats(&m->delta) * sizeof(float) : 0;
}

bool recur_prepare(struct dev *d)
{
	return !d->m->delta.v_heads || cuda_ok(d, allow_shared(rule_kernel, stage_floats(d->m->delta) * sizeof(float)),
		"shared memory for a state");
}

int recur_check(const struct sr_model *m, char *err, size_t errlen)
{
	const struct sr_delta *a = &m->delta;

	if (a->v_heads && (a->k_dim % 8 || a->v_dim % 8 || a->k_dim > 128 || a->v_dim > 128 || a->v_heads % 4 ||
	                   a->conv < 2 || a->conv > CONV_MAX))
		return refuse(-ENOTSUP, err, errlen, "a state of %d heads, %d x %d, and a convolution of %d: the CUDA back end "
			"computes widths that are multiples of 8 up to 128, heads that are a multiple of 4, and "
			"convolutions of 2 to %d", a->v_heads, a->k_dim, a->v_dim, a->conv, CONV_MAX);
	return 0;
}

void recur(struct dev *d, int l, const struct sr_delta *of, const struct recur_weights *w, float eps, int T)
{
	struct recur_args a = {};
	unsigned rows = (unsigned)d->batch.step.n_rows;

	(void)T;
	a.qkv = (const bf16 *)d->act.place[P_QKV];
	a.out = (bf16 *)d->act.place[P_A];
	a.conv = w->conv->vec;
	a.rate = w->rate->vec;
	a.dt = w->dt->vec;
	a.norm = w->norm->vec;
	a.eps = eps;
	a.of = *of;
	a.channels = sr_delta_channels(of);
	a.width = a.channels + of->v_heads * (of->v_dim + 2);
	a.row = d->batch.list.row;
	a.token_of = d->batch.list.token_of;
	a.slot = d->slots.slot;
	a.state = d->states + (size_t)d->kv.place[l].at * layer_floats(of);
	a.each = (size_t)state_layers(d->m) * layer_floats(of);
	if (d->fault.lost || !rows)
		return;
	if (cuda_ok(d, start(rule_kernel, dim3(rows, (unsigned)of->v_heads), THREADS, stage_floats(*of) * sizeof(float),
			d->stream, a), "the delta rule"))
		cuda_ok(d, start(past_kernel, dim3(rows, (unsigned)(a.channels + THREADS - 1) / THREADS), THREADS, 0,
			d->stream, a), "the inputs of a convolution");
}
