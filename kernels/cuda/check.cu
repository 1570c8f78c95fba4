/* check.cu - the names of special kernels (special.cuh), and their check at open: each is held to a plain one on this
 * GPU and with these weights.  One that differs is switched off by name, with a line that says by how much and where;
 * the plainer kernel that takes its place is checked then.  If there is none left, the device is not opened.
 *
 *	products    the first layer's, 16, 32, 64 and more rows: SAMPLES outputs, each a sum by one warp in f32
 *	attention   in the first layer's place of the cache, before it is in use: a token in one piece, in three, a
 *	            run likewise
 *	a draw      by several blocks and by one: the same bits
 *	steps       a step of padding with early starts and without: the same bits
 *
 * It takes no memory of its own: activations and the cache are free until the first batch. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.cuh"
#include "packed.cuh"
#include "kernels/refuse.h"

#define SAMPLES 256
#define POSITIONS 304                        /* of the cache that are used, if it has as many */
#define RUN 40                               /* tokens of a run */
#define CLOSE 0.03f                          /* of an output's size and the usual size: bf16 is off by 0.004 */
#define CLOSE_X8 0.3f                        /* activations in e4m3 */

/* ---- names ------------------------------------------------------------------------------ */

static const char *const names[N_SPECIAL] = {
	"early_start", "graphs", "lt", "hopper_many", "hopper_attend", "w8a8", "dense_few", "packed_few", "pieces",
	"run_pieces", "attend_one", "w4a8", "sample_blocks",
};

const char *special_name(int which)
{
	return names[which];
}

void special_list(uint32_t without, char *to, size_t size)
{
	size_t n = 0;

	*to = 0;
	for (int i = 0; i < N_SPECIAL; i++)
		if (without >> i & 1 && n < size)
			n += (size_t)snprintf(to + n, size - n, "%s%s", n ? "," : "", names[i]);
}

static int unknown(const char *name, int length, char *err, size_t errlen)
{
	char all[256];

	special_list(~0u, all, sizeof(all));
	return refuse(-EINVAL, err, errlen, "SLIPRING_CUDA_WITHOUT: \"%.*s\" is none of %s", length, name, all);
}

int special_parse(uint32_t *without, const char *list, char *err, size_t errlen)
{
	*without = 0;
	for (const char *at = list; at && *at;) {
		int length = (int)strcspn(at, ","), i = 0;

		while (i < N_SPECIAL && (strlen(names[i]) != (size_t)length || memcmp(names[i], at, (size_t)length)))
			i++;
		if (i == N_SPECIAL)
			return unknown(at, length < 60 ? length : 60, err, errlen);
		*without |= 1u << i;
		at += length;
		at += *at == ',';
	}
	return 0;
}

/* ---- comparing ---------------------------------------------------------------------------- */

/* One result beside the plain one. */
struct compared { float off, size; int32_t row, at; };

/* Any numbers of -1.5 .. 1.5, the same for the same seed. */
static __device__ float made_up(uint32_t i, uint32_t seed)
{
	uint32_t u = (i + seed * 0x9e3779b9u) * 2654435761u;

	u ^= u >> 15;
	u *= 2246822519u;
	u ^= u >> 13;
	return (float)(u >> 8) / (1 << 23) * 1.5f - 1.5f;
}

static __global__ void make_up(bf16 *x, uint32_t n, uint32_t seed)
{
	let_next_start();
	wait_for_previous();
	for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		x[i] = bf16_of(made_up(i, seed));
}

static __global__ void make_up_e4m3(unsigned char *x, uint32_t n, uint32_t seed)
{
	let_next_start();
	wait_for_previous();
	for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		x[i] = (unsigned char)e4m3_of(made_up(i, seed));
}

static void fill(struct dev *d, void *x, bool f8, size_t n, uint32_t seed)
{
	if (d->fault.lost)
		return;
	if (f8)
		cuda_ok(d, start(make_up_e4m3, 64, 128, 0, d->stream, (unsigned char *)x, (uint32_t)n, seed), "check");
	else
		cuda_ok(d, start(make_up, 64, 128, 0, d->stream, (bf16 *)x, (uint32_t)n, seed), "check");
}

/* The results of n comparisons, in a place that the kernel before wrote; d->act.place[P_X] holds them. */
static bool read_back(struct dev *d, struct compared *to, int n)
{
	return cuda_ok(d, cudaMemcpyAsync(to, d->act.place[P_X], (size_t)n * sizeof(*to), cudaMemcpyDeviceToHost,
			d->stream), "check") &&
	       cuda_ok(d, cudaStreamSynchronize(d->stream), "check");
}

/* The worst of n, relative to its own size and the mean size; NaN is worst of all. */
static float worst_of(const struct compared *c, int n, struct compared *worst)
{
	float mean = 0, most = -1;

	for (int i = 0; i < n; i++)
		mean += fabsf(c[i].size) / (float)n;
	for (int i = 0; i < n; i++) {
		float off = c[i].off / (fabsf(c[i].size) + mean);

		if (!(off <= most)) {
			*worst = c[i];
			most = off;
			if (off != off)
				break;
		}
	}
	return most;
}

/* ---- products ------------------------------------------------------------------------- */

struct check_product {
	struct table w;
	const float *bias;
	const bf16 *x;
	const void *y;
	bool f32;
	int32_t T, N, K;
};

/* A warp compares one output; they are spread over all rows and outputs. */
static __global__ void check_product_kernel(struct check_product a, struct compared *out)
{
	let_next_start();
	wait_for_previous();
	uint32_t s = blockIdx.x;
	int32_t row = (int32_t)(s * 37u % (uint32_t)a.T), n = (int32_t)(s * 2654435761u % (uint32_t)a.N);
	size_t at = (size_t)row * (size_t)a.N + (size_t)n;
	float sum = 0, y = a.f32 ? ((const float *)a.y)[at] : f32_of(((const bf16 *)a.y)[at]);

	for (int32_t i = (int32_t)threadIdx.x; i < a.K; i += 32)
		sum += f32_of(a.x[(size_t)row * (size_t)a.K + (size_t)i]) * table_at(a.w, n, i);
	sum = warp_sum(sum) + (a.bias ? a.bias[n] : 0);
	if (threadIdx.x == 0)
		out[s] = (struct compared){ fabsf(y - sum), sum, row, n };
}

/* The special kernel that multiplies T rows by w, or N_SPECIAL: a plain one. */
static int product_by(const struct dev *d, const struct weight *w, int T)
{
	bool few = w->held == HELD_BF16 ? has(d, SPECIAL_DENSE_FEW) : has(d, SPECIAL_PACKED_FEW);

	if (few && (T <= few_most(d, w) || d->deterministic))
		return w->held == HELD_BF16 ? SPECIAL_DENSE_FEW : SPECIAL_PACKED_FEW;
	if (has(d, SPECIAL_LT) && w->lt && T > FEW_ROWS && !d->deterministic)
		return SPECIAL_LT;
	if (d->product.hopper_work && has(d, SPECIAL_HOPPER_MANY) && w->held != HELD_N4 &&
	    (w->held != HELD_W8 || uses_x8(d, w)))
		return SPECIAL_HOPPER_MANY;
	return !uses_x8(d, w) ? N_SPECIAL : w->held == HELD_W8 ? SPECIAL_W8A8 : SPECIAL_W4A8;
}

static float off_product(struct dev *d, const struct weight *w, enum place x, enum place y, int T,
	struct compared *worst)
{
	struct compared c[SAMPLES];
	struct check_product a = { { w->held, w->mat, w->packed }, w->bias, (const bf16 *)d->act.place[x],
		d->act.place[y], is_f32(y), T, w->n, w->k };

	a.w.packed.K = w->k;
	fill(d, d->act.place[x], false, (size_t)T * (size_t)w->k, (uint32_t)T);
	d->product.made_for = NULL;
	about_to(d, product_by(d, w, T));
	matmul(d, y, x, w, T);
	if (!d->fault.lost)
		cuda_ok(d, start(check_product_kernel, SAMPLES, 32, 0, d->stream, a,
			(struct compared *)d->act.place[P_X]), "check");
	return read_back(d, c, SAMPLES) ? worst_of(c, SAMPLES, worst) : 0;
}

/* Switches a kernel off and says so; false: there is nothing behind it. */
static bool switch_off(struct dev *d, int special, const char *what, int T, float off, const struct compared *at)
{
	if (special == N_SPECIAL)
		return false;
	d->without |= 1u << special;
	if (special == SPECIAL_EARLY_START)
		start_early = false;
	fprintf(stderr, "slipring-cuda: %s of %d rows is off by %.3g of its size at row %d, column %d: %s is switched off\n",
		what, T, (double)off, at->row, at->at, special_name(special));
	return true;
}

static int wrong(const char *what, int T, float off, const struct compared *at, char *err, size_t errlen)
{
	return refuse(-EIO, err, errlen, "%s of %d rows is off by %.3g of its size at row %d, column %d, by the plainest "
		"kernel too: this GPU or its driver computes wrongly", what, T, (double)off, at->row, at->at);
}

static int check_products(struct dev *d, const char *what, const struct weight *w, enum place x, enum place y,
	int most, char *err, size_t errlen)
{
	const int rows[] = { 16, 32, 64, w ? few_most(d, w) + 9 : 0 };

	if (!w || w->count > 1 || w->order || (w->held != HELD_BF16 && w->held != HELD_W4 && w->held != HELD_W8 &&
	    w->held != HELD_N4))
		return 0;
	for (int T : rows) {
		T = T < most ? T : most;
		for (;;) {
			struct compared at = {};
			int by = product_by(d, w, T);
			float off = off_product(d, w, x, y, T, &at);
			bool x8 = uses_x8(d, w) && by != SPECIAL_PACKED_FEW;

			if (d->fault.lost || off <= (x8 ? CLOSE_X8 : CLOSE))
				break;
			if (!switch_off(d, by, what, T, off, &at))
				return wrong(what, T, off, &at, err, errlen);
		}
	}
	return 0;
}

/* ---- attention ------------------------------------------------------------------------ */

struct check_attend {
	const bf16 *qkv, *out;
	const unsigned char *kv;
	const int32_t *table;
	const float *sink;
	size_t kv_half, stride, layer;
	int32_t first, width, n_heads, heads, n_kv_heads, E, window, chunk, ahead, end; /* end: of the sequence */
	bool f8;
	float scale, cap, v_scale;
};

static __device__ float kv_value(const check_attend &a, int32_t j, int g, bool value, int e)
{
	size_t at = (size_t)a.table[j / BLOCK] * a.stride + a.layer + (size_t)(2 * g + value) * a.kv_half +
		(size_t)(j % BLOCK * a.E + e);
	uint32_t even, odd;

	if (!a.f8)
		return f32_of(((const bf16 *)a.kv)[at]);
	bf16_of_e4m3(a.kv[at], even, odd);
	return f32_of((bf16)even);
}

/* grid: tokens, heads; a warp.  Token t is at position first + t of slot 0. */
static __global__ void check_attend_kernel(struct check_attend a, struct compared *out)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	float *p = (float *)shared, most = -INFINITY, sum = 0, off = 0, size = 0;
	int t = (int)blockIdx.x, head = (int)blockIdx.y, g = head / a.heads, lane = (int)threadIdx.x;
	int32_t low = first_read(a.window, a.chunk, a.first + t), at = a.first + t + a.ahead;
	const bf16 *q = a.qkv + (size_t)t * (size_t)a.width + (size_t)(head * a.E);
	const bf16 *got = a.out + ((size_t)t * (size_t)a.n_heads + (size_t)head) * (size_t)a.E;

	at = at < a.end ? at : a.end - 1;
	for (int32_t j = low + lane; j <= at; j += 32) {
		float s = 0;

		for (int e = 0; e < a.E; e++)
			s += f32_of(q[e]) * kv_value(a, j, g, false, e);
		s *= a.scale;
		p[j - low] = a.cap > 0 ? a.cap * tanhf(s / a.cap) : s;
		most = fmaxf(most, p[j - low]);
	}
	most = warp_max(most);
	for (int32_t j = low + lane; j <= at; j += 32) {
		p[j - low] = expf(p[j - low] - most);
		sum += p[j - low];
	}
	sum = warp_sum(sum) + (a.sink ? expf(a.sink[head] - most) : 0);
	__syncwarp();
	for (int e = lane; e < a.E; e += 32) {
		float o = 0, by;

		for (int32_t j = low; j <= at; j++)
			o += p[j - low] * kv_value(a, j, g, true, e);
		o *= a.v_scale / sum;
		by = fabsf(f32_of(got[e]) - o);
		off = by <= off ? off : by;      /* NaN stays */
		size = fmaxf(size, fabsf(o));
	}
	for (int x = 16; x; x /= 2) {
		float other = __shfl_xor_sync(FULL, off, x);

		off = other <= off ? off : other;
	}
	size = warp_max(size);
	if (lane == 0)
		out[(size_t)blockIdx.x * gridDim.y + blockIdx.y] = (struct compared){ off, size, t, head };
}

struct attend_check {                        /* what all checks of attention share */
	const struct sr_attn *kind;
	const struct weight *sinks;
	int32_t l, positions;
};

static float off_attend(struct dev *d, const struct attend_check *c, int pieces, int run, struct compared *worst)
{
	const struct kv_place at = d->kv.place[c->l];
	const struct sr_layer *y = &d->m->layer[c->l];
	int32_t T = run ? run : 1, first = c->positions - T, n_heads = c->kind->n_heads, n = T * n_heads;
	struct token_run runs[RUN];
	struct run_piece parts[3 * RUN];
	struct attend_piece piece[3];
	struct batch_token token[RUN];
	struct compared *all = (struct compared *)malloc((size_t)n * sizeof(*all));
	bool f8 = d->kv.f8;
	struct check_attend a = { (const bf16 *)d->act.place[P_QKV], (const bf16 *)d->act.place[P_A], d->kv.base,
		d->slots.table + at.group * d->slots.group_cap, c->sinks ? c->sinks->vec : NULL,
		(size_t)BLOCK * (size_t)c->kind->head_dim, d->kv.stride, d->kv.layer[c->l], first,
		d->attend.q_width, n_heads, n_heads / c->kind->n_kv_heads, c->kind->n_kv_heads, c->kind->head_dim,
		c->kind->window, c->kind->chunk, read_ahead(c->kind), c->positions, f8,
		c->kind->scale * (f8 && y->k_scale > 0 ? y->k_scale : 1), c->kind->cap,
		f8 && y->v_scale > 0 ? y->v_scale : 1 };
	int32_t size = (c->positions / 3 + BLOCK - 1) / BLOCK * BLOCK;
	float off = 0;

	for (int32_t t = 0; t < T; t++)
		token[t] = (struct batch_token){ 0, first + t, 0 };
	for (int32_t i = 0; i < pieces; i++)
		piece[i] = (struct attend_piece){ 0, i * size, i + 1 < pieces ? (i + 1) * size : c->positions, 0, pieces };
	d->batch.step = {};
	d->batch.step.n_pieces = run ? 0 : pieces;
	d->batch.step.n_runs = run ? cut_runs(runs, 0, run, 0, run_tokens(d)) * pieces : 0;
	d->batch.step.full_runs = pieces > 1 ? d->batch.step.n_runs : 0;
	for (int32_t i = 0; i < d->batch.step.n_runs; i++) {
		const struct token_run *r = &runs[i / pieces];
		int32_t part = i % pieces, end = d->whole ? c->positions : first + r->t + r->n;

		parts[i] = (struct run_piece){ r->t, r->n, part * size,
			part + 1 < pieces && (part + 1) * size < end ? (part + 1) * size : end, i - part, pieces };
	}
	fill(d, d->act.place[P_QKV], false, (size_t)T * (size_t)a.width, 5);
	cuda_ok(d, cudaMemcpyAsync(d->batch.list.token, token, (size_t)T * sizeof(*token), cudaMemcpyHostToDevice,
		d->stream), "check");
	if (!run)
		cuda_ok(d, cudaMemcpyAsync(d->batch.list.piece, piece, (size_t)pieces * sizeof(*piece),
			cudaMemcpyHostToDevice, d->stream), "check");
	if (run)
		cuda_ok(d, cudaMemcpyAsync(d->batch.list.run, parts, (size_t)d->batch.step.n_runs * sizeof(*parts),
			cudaMemcpyHostToDevice, d->stream), "check");
	attend(d, c->l, c->kind, c->sinks, T);
	if (!d->fault.lost)
		cuda_ok(d, start(check_attend_kernel, dim3((unsigned)T, (unsigned)n_heads), 32,
			POSITIONS * sizeof(float), d->stream, a, (struct compared *)d->act.place[P_X]), "check");
	if (all && read_back(d, all, n))
		off = worst_of(all, n, worst);
	free(all);
	return off;
}

/* Runs first: they take the place of single tokens, too. */
static int check_attention(struct dev *d, const struct net *n, const struct sr_limits *lim, char *err,
	size_t errlen)
{
	static const struct { const char *what; int pieces, run, special; } cases[] = {
		{ "attention of runs", 1, RUN, SPECIAL_HOPPER_ATTEND },
		{ "attention of runs in three pieces", 3, RUN, SPECIAL_RUN_PIECES },
		{ "attention of a token", 1, 0, SPECIAL_ATTEND_ONE },
		{ "attention in three pieces", 3, 0, SPECIAL_PIECES },
	};
	struct attend_check c = {};
	int32_t blocks[POSITIONS / BLOCK];
	int32_t most = lim->seq_blocks < lim->n_blocks ? lim->seq_blocks : lim->n_blocks;

	most = most < POSITIONS / BLOCK ? most : POSITIONS / BLOCK;

	while (c.l < d->m->n_layers && !has_kv(d->m, c.l))
		c.l++;
	c.positions = most * BLOCK - 5;
	if (c.l == d->m->n_layers || c.positions < RUN || lim->tokens < RUN)
		return 0;
	c.kind = &d->m->kind[d->m->layer[c.l].kind];
	c.sinks = n->layer[c.l].sinks;
	d->attend.q_width = (c.kind->n_heads * (c.kind->gate ? 2 : 1) + (c.kind->k_is_v ? 1 : 2) *
		c.kind->n_kv_heads) * c.kind->head_dim;
	for (int32_t i = 0; i < most; i++)
		blocks[i] = most - 1 - i;        /* in no order */
	cuda_ok(d, cudaMemcpyAsync(d->slots.table + d->kv.place[c.l].group * d->slots.group_cap, blocks,
		(size_t)most * sizeof(*blocks), cudaMemcpyHostToDevice, d->stream), "check");
	fill(d, d->kv.base, d->kv.f8, (size_t)most * d->kv.block / (d->kv.f8 ? 1 : sizeof(bf16)), 3);
	for (const auto &k : cases) {
		for (;;) {
			struct compared at = {};
			bool special = k.special != SPECIAL_HOPPER_ATTEND ? has(d, (enum special)k.special) : hopper_attends(d);
			float off;

			if (k.run ? k.pieces > 1 && most_divided(d) < k.pieces * count_runs(k.run, 0, run_tokens(d))
			    : runs_only(d) || (k.pieces > 1 && (!special || most_pieces(d, lim->rows) < k.pieces)))
				break;
			about_to(d, special ? k.special : (int)N_SPECIAL);
			off = off_attend(d, &c, k.pieces, k.run, &at);
			if (d->fault.lost || off <= CLOSE)
				break;
			if (!switch_off(d, special ? k.special : (int)N_SPECIAL, k.what, k.run ? k.run : 1, off, &at))
				return wrong(k.what, k.run, off, &at, err, errlen);
		}
	}
	return 0;
}

/* ---- steps ---------------------------------------------------------------------------- */

/* A whole step of padding, with early starts and without.  The ends of the residual stream are the same bits. */
static void check_steps(struct dev *d)
{
	const size_t n = (size_t)(d->m->d_model < 4096 ? d->m->d_model : 4096);
	float *x[2] = { (float *)malloc(n * sizeof(float)), (float *)malloc(n * sizeof(float)) };
	bool early = start_early;
	struct compared at = {};

	for (int i = 0; i < 2 && x[0] && x[1] && early; i++) {
		start_early = i;
		about_to(d, i ? SPECIAL_EARLY_START : N_SPECIAL);
		batch_empty(d->b);
		d->batch.step = {};
		d->batch.step.n_tokens = d->batch.step.n_picks = 1;
		if (runs_only(d))
			d->batch.step.n_runs = 1;
		else
			d->batch.step.n_pieces = most_pieces(d, 1);
		batch_compute(d->b);
		cuda_ok(d, cudaMemcpyAsync(x[i], d->act.place[P_X], n * sizeof(float), cudaMemcpyDeviceToHost, d->stream),
			"check");
		cuda_ok(d, cudaStreamSynchronize(d->stream), "check");
	}
	start_early = early;
	for (size_t i = 0; i < n && x[0] && x[1] && early && !d->fault.lost; i++)
		if (memcmp(&x[0][i], &x[1][i], sizeof(float)) && has(d, SPECIAL_EARLY_START)) {
			at.at = (int32_t)i;
			switch_off(d, SPECIAL_EARLY_START, "a step", 1, fabsf(x[0][i] - x[1][i]), &at);
		}
	free(x[0]);
	free(x[1]);
}

/* ---- sampling ------------------------------------------------------------------------- */

/* A draw by several blocks and by one, of the same logits: the same bits.  The slot of padding takes part. */
static void check_draw(struct dev *d)
{
	struct slot *slot = d->slots.slot + d->batch.null_slot, was, asked = {};
	struct current_batch current, place = {};
	struct batch_pick pick = {};
	struct sr_result r[2] = {};
	struct compared at = {};

	if (sample_blocks(d, 1) == 1)
		return;
	about_to(d, SPECIAL_SAMPLE_BLOCKS);
	asked.s.temperature = 0.8f;
	asked.s.top_k = 900;
	asked.s.top_p = 0.9f;
	asked.s.repetition = 1;
	pick.id = -1;
	pick.slot = d->batch.null_slot;
	pick.rank = 1;
	place.result = (struct sr_result *)d->act.place[P_X];
	cuda_ok(d, cudaMemcpyAsync(&was, slot, sizeof(was), cudaMemcpyDeviceToHost, d->stream), "check");
	cuda_ok(d, cudaMemcpyAsync(&current, d->batch.current, sizeof(current), cudaMemcpyDeviceToHost, d->stream), "check");
	cuda_ok(d, cudaStreamSynchronize(d->stream), "check");
	cuda_ok(d, cudaMemcpyAsync(d->batch.current, &place, sizeof(place), cudaMemcpyHostToDevice, d->stream), "check");
	cuda_ok(d, cudaMemcpyAsync(d->batch.list.pick, &pick, sizeof(pick), cudaMemcpyHostToDevice, d->stream), "check");
	for (int i = 0; i < 2; i++) {
		uint32_t without = d->without;

		cuda_ok(d, cudaMemcpyAsync(slot, &asked, sizeof(asked), cudaMemcpyHostToDevice, d->stream), "check");
		fill(d, d->act.place[P_LOGITS], false, 2 * (size_t)d->m->n_vocab, 7); /* two of bf16 are one of f32 */
		d->without |= i ? 1u << SPECIAL_SAMPLE_BLOCKS : 0;
		sample(d, 0, 0, 1);
		d->without = without;
		cuda_ok(d, cudaMemcpyAsync(&r[i], place.result, sizeof(r[i]), cudaMemcpyDeviceToHost, d->stream), "check");
		cuda_ok(d, cudaStreamSynchronize(d->stream), "check");
	}
	cuda_ok(d, cudaMemcpyAsync(slot, &was, sizeof(was), cudaMemcpyHostToDevice, d->stream), "check");
	cuda_ok(d, cudaMemcpyAsync(d->batch.current, &current, sizeof(current), cudaMemcpyHostToDevice, d->stream), "check");
	cuda_ok(d, cudaStreamSynchronize(d->stream), "check");
	at.at = r[0].id;
	if (memcmp(&r[0], &r[1], sizeof(r[0])) && !d->fault.lost)
		switch_off(d, SPECIAL_SAMPLE_BLOCKS, "a draw", 1, fabsf(r[0].logprob - r[1].logprob), &at);
}

/* ---- all ------------------------------------------------------------------------------ */

int self_check(struct dev *d, const struct net *n, const struct sr_limits *lim, char *err, size_t errlen)
{
	int32_t l = 0;
	int e = 0;

	while (l < d->m->n_layers && !(n->layer[l].qkv && n->layer[l].gu))
		l++;
	if (l < d->m->n_layers) {
		const struct net_layer *y = &n->layer[l];

		e = check_products(d, "queries, keys and values", y->qkv, P_Y, P_QKV, lim->tokens, err, errlen);
		if (!e)
			e = check_products(d, "gate and up", y->gu, P_Y, P_GU, lim->tokens, err, errlen);
		if (!e)
			e = check_products(d, "down", y->down, P_ACT, P_Z, lim->tokens, err, errlen);
	}
	if (!e)
		e = check_attention(d, n, lim, err, errlen);
	if (!e)
		check_draw(d);
	if (!e)
		check_steps(d);
	d->product.made_for = d->product.reader = NULL;
	return e;
}
