/* rope.cu - positions: their angles once a batch; queries and keys turned, keys and values stored in the cache. */
#include "device.cuh"
#include "ptx.cuh"

static const int ROPE_WARPS = 4;

/* ---- angles ---------------------------------------------------------------------------------------- */

static __global__ void angles_kernel(const struct batch_token *token, const float *freq, int32_t pairs,
	float size,
                                     float2 *out)
{
	let_next_start();
	wait_for_previous();
	for (int32_t i = (int32_t)threadIdx.x; i < pairs; i += (int32_t)blockDim.x) {
		/* double up to here: float has no digits left at position 100,000 */
		double turn = (double)token[blockIdx.x].position * (double)freq[i];
		float rest = (float)remainder(turn, 6.283185307179586), c, s;

		sincosf(rest, &s, &c);
		out[(size_t)blockIdx.x * (size_t)pairs + (size_t)i] = make_float2(c * size, s * size);
	}
}

void angles(struct dev *d, int T)
{
	for (int32_t i = 0; i < d->m->n_kinds; i++) {
		const struct sr_rope *r = &d->m->kind[i].rope;

		if (r->dims && sr_rope_like(d->m, i) == i && !d->fault.lost)
			cuda_ok(d, start(angles_kernel, T, 32, 0, d->stream,
				(const struct batch_token *)d->batch.list.token, d->act.freq[i],
				r->dims / 2, sr_rope_magnitude(r), d->act.angle[i]), "angles");
	}
}

/* ---- rotate and store ---------------------------------------------------------------------------------- */

struct rope_args {
	bf16 *qkv;
	int32_t width;               /* elements of a row of qkv */
	const struct batch_token *token;
	const float2 *angle;
	int32_t dims, by_pairs;
	const float *qn, *kn;
	float eps;
	int32_t qk_norm, v_norm;     /* as sr_attn's */
	float heat;
	int32_t heat_from, heat_add;
	int32_t n_heads, n_kv_heads, head_dim;
	int32_t k_heads, v_heads;    /* of a row; 0: it has none.  k_heads without v_heads: values are keys */
	const int32_t *table;
	int32_t table_cap;
	unsigned char *kv;
	bool f8;
	float k_scale, v_scale;
	size_t kv_half, stride, layer; /* elements: K of a block and head; a block; before the layer's in it */
};

/* The scale of an FP8 cache: stored element * scale = value. */
float scale_or_1(const struct dev *d, float scale)
{
	return d->kv.f8 && scale > 0 ? scale : 1;
}

/* 1 / rms of head[E], in every lane. */
static __device__ float rms_of_head(const struct rope_args &a, const float *head)
{
	float sum = 0;

	for (int i = (int)threadIdx.x % 32; i < a.head_dim; i += 32)
		sum += head[i] * head[i];
	return 1 / sqrtf(warp_sum(sum) / (float)a.head_dim + a.eps);
}

/* A warp multiplies head[E] by a number and weights; w NULL: none. */
static __device__ void scale_head(const struct rope_args &a, float by, const float *w, float *head)
{
	for (int i = (int)threadIdx.x % 32; i < a.head_dim; i += 32)
		head[i] = head[i] * by * (w ? w[i] : 1);
	__syncwarp();
}

/* A warp normalizes and rotates head[E].  w: weights of its norm, or NULL.  row_by: 1 / rms of the row that it
 * is part of (SR_QK_ROW). */
static __device__ void turn_head(const struct rope_args &a, const float2 *angle, const float *w, float row_by,
	float *head)
{
	int lane = (int)threadIdx.x % 32, half = a.dims / 2;
	bool row = a.qk_norm & SR_QK_ROW, late = a.qk_norm & SR_QK_LATE, own = !row && (w || a.qk_norm & SR_QK_BARE);

	if (row || (own && !late))
		scale_head(a, row ? row_by : rms_of_head(a, head), w, head);
	for (int i = lane; i < half; i += 32) {
		int u = a.by_pairs ? 2 * i : i, v = a.by_pairs ? 2 * i + 1 : i + half;
		float2 cs = angle[i];
		float x = head[u], y = head[v];

		head[u] = x * cs.x - y * cs.y;
		head[v] = x * cs.y + y * cs.x;
	}
	__syncwarp();
	if (own && late)
		scale_head(a, rms_of_head(a, head), w, head);
}

/* 1 / rms of n elements, in every thread. */
static __device__ float rms_of(const bf16 *x, int32_t n, float eps, float *scratch)
{
	float sum = 0;

	for (int32_t i = (int32_t)threadIdx.x; i < n; i += 32 * ROPE_WARPS)
		sum += f32_of(x[i]) * f32_of(x[i]);
	return 1 / sqrtf(block_sum(sum, scratch) / (float)n + eps);
}

/* A warp stores head[E] times `by`, rounded to bf16, as K or V of KV head g. */
static __device__ void store_head(const struct rope_args &a, const struct batch_token &k, int g, bool value,
	const float *head, float by)
{
	int32_t block = a.table[(size_t)k.slot * (size_t)a.table_cap + (size_t)(k.position / BLOCK)];
	size_t to = (size_t)block * a.stride + a.layer + (size_t)(2 * g + value) * a.kv_half +
		(size_t)(k.position % BLOCK * a.head_dim);
	float scale = value ? a.v_scale : a.k_scale;

	for (int i = (int)threadIdx.x % 32; i < a.head_dim; i += 32) {
		bf16 v = bf16_of(head[i] * by);

		if (a.f8)
			a.kv[to + (size_t)i] = (unsigned char)e4m3_of(f32_of(v) / scale);
		else
			((bf16 *)a.kv)[to + (size_t)i] = v;
	}
}

/* grid: tokens, parts of their heads; a warp per head. */
static __global__ void rope_store_kernel(struct rope_args a)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, E = a.head_dim;
	int heads = a.n_heads + a.k_heads + a.v_heads;
	float *head = (float *)shared + ROPE_WARPS + warp * E, q_by = 1, k_by = 1, heat = 1;
	struct batch_token k = a.token[blockIdx.x];
	bf16 *row = a.qkv + (size_t)blockIdx.x * (size_t)a.width;
	const float2 *angle = a.angle + (size_t)blockIdx.x * (size_t)(a.dims / 2);

	if (a.qk_norm & SR_QK_ROW) {
		q_by = rms_of(row, a.n_heads * E, a.eps, (float *)shared);
		if (a.k_heads)
			k_by = rms_of(row + a.n_heads * E, a.k_heads * E, a.eps, (float *)shared);
		__syncthreads(); /* all have read the row before a head of it is written */
	}
	if (a.heat != 0)
		heat += a.heat * logf((float)(1 + (k.position + a.heat_add) / a.heat_from));
	for (int h = (int)blockIdx.y * ROPE_WARPS + warp; h < heads; h += (int)gridDim.y * ROPE_WARPS) {
		bool query = h < a.n_heads, value = h >= a.n_heads + a.k_heads;
		int g = h - a.n_heads - (value ? a.k_heads : 0), of_row = a.qk_norm & SR_QK_ROW ? (query ? h : g) * E : 0;
		const float *w = query ? a.qn : a.kn;
		bf16 *x = row + h * E;

		for (int i = lane; i < E; i += 32)
			head[i] = f32_of(x[i]);
		__syncwarp();
		if (value || (!query && !a.v_heads))
			store_head(a, k, g, true, head, a.v_norm ? rms_of_head(a, head) : 1);
		if (value)
			continue;
		__syncwarp(); /* keys that are values: head is stored before it turns */
		turn_head(a, angle, w ? w + of_row : NULL, query ? q_by : k_by, head);
		for (int i = lane; i < E; i += 32)
			x[i] = bf16_of(query ? head[i] * heat : head[i]);
		if (!query)
			store_head(a, k, g, false, head, 1);
		__syncwarp(); /* head is read before the next one is loaded */
	}
}

/* KV heads in a row of QKV, of keys and of values; l < 0: it has only queries. */
static int32_t k_heads(const struct sr_attn *kind, int l)
{
	return l < 0 ? 0 : kind->n_kv_heads;
}

static int32_t v_heads(const struct sr_attn *kind, int l)
{
	return l < 0 || kind->k_is_v ? 0 : kind->n_kv_heads;
}

/* Blocks of a token: a head to each warp while processors would idle.  A norm over the row (SR_QK_ROW) is measured
 * before any head of it changes, so one block has the row. */
static unsigned rope_blocks(const struct dev *d, const struct rope_args &a, int T)
{
	int32_t heads = a.n_heads + a.k_heads + a.v_heads;

	return a.qk_norm & SR_QK_ROW || T >= d->gpu.processors ? 1 : (unsigned)(heads + ROPE_WARPS - 1) / ROPE_WARPS;
}

void rope_store(struct dev *d, int l, const struct sr_attn *kind, const struct weight *qn,
                const struct weight *kn, float eps, int T)
{
	const struct sr_model *m = d->m;
	const struct kv_place at = d->kv.place[l < 0 ? 0 : l];
	struct rope_args a = {};

	if (kind->latent) {
		rope_store_latent(d, l, kind, kn, eps, T);
		return;
	}
	a.qkv = (bf16 *)d->act.place[P_QKV];
	a.token = d->batch.list.token;
	a.angle = d->act.angle[kind - m->kind];
	a.dims = kind->rope.dims;
	a.by_pairs = kind->rope.pairs;
	a.qn = qn ? qn->vec : NULL;
	a.kn = kn ? kn->vec : NULL;
	a.eps = eps;
	a.qk_norm = kind->qk_norm;
	a.v_norm = kind->v_norm;
	a.heat = kind->heat;
	a.heat_from = kind->heat_from;
	a.heat_add = kind->heat_add;
	a.n_heads = kind->n_heads;
	a.n_kv_heads = kind->n_kv_heads;
	a.head_dim = kind->head_dim;
	a.k_heads = k_heads(kind, l);
	a.v_heads = v_heads(kind, l);
	a.table = d->slots.table + at.group * d->slots.group_cap;
	a.table_cap = d->slots.table_cap;
	a.kv = d->kv.base;
	a.f8 = d->kv.f8;
	a.k_scale = scale_or_1(d, m->layer[l < 0 ? 0 : l].k_scale);
	a.v_scale = scale_or_1(d, m->layer[l < 0 ? 0 : l].v_scale);
	a.kv_half = (size_t)BLOCK * (size_t)kind->head_dim;
	a.stride = d->kv.stride;
	a.layer = d->kv.layer[l < 0 ? 0 : l];
	a.width = (a.n_heads + a.k_heads + a.v_heads + (kind->gate ? a.n_heads : 0)) * a.head_dim;
	d->attend.q_width = a.width;
	if (!d->fault.lost)
		cuda_ok(d, start(rope_store_kernel, dim3((unsigned)T, rope_blocks(d, a, T)), 32 * ROPE_WARPS,
			ROPE_WARPS * (size_t)(kind->head_dim + 1) * sizeof(float),
			d->stream, a), "rope_store");
}
