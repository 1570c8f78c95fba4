/* roof.cu - what bounds a batch: the least time for its bytes, its operations and its copies at the rates
 * that this GPU reaches.  open() measures the rates once, in some ms.  For memory it reads weights; for the
 * bus it copies KV blocks.  For tensor cores it runs one of the model's products, with enough rows to fill
 * them and the kernel that would do it.  The rates are estimates for statistics only: no result depends on
 * them.
 *
 * Weights count once per batch, experts as one token reads them, keys and values as often as attention has to read them.
 */
#include "device.cuh"

#define READ_MAX   ((size_t)1 << 30)  /* bytes: more than caches hold, if the weights are that large */
#define READ_BLOCKS 4                 /* per multiprocessor */
#define READ_THREADS 512
#define ROWS_MAX   1024
#define TILE       128
#define WAVES      2                  /* of tiles over all multiprocessors */
#define COPY_MAX   ((size_t)16 << 20)

static __global__ void __launch_bounds__(READ_THREADS) read_kernel(const uint4 *from, size_t n, unsigned *to)
{
	let_next_start();
	wait_for_previous();
	size_t step = (size_t)gridDim.x * blockDim.x, i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
	unsigned sum = 0;

#pragma unroll 8
	for (; i < n; i += step) {
		uint4 v = from[i];

		sum ^= v.x ^ v.y ^ v.z ^ v.w;
	}
	if (sum == 0xdeadbeef)               /* keeps the compiler from removing the reads */
		*to = sum;
}

/* ---- rates ---------------------------------------------------------------------------- */

struct clocks { cudaEvent_t from, to; };

/* Nanoseconds that the work queued by `work` takes, after one run to warm up. */
template <class F> static double timed(struct dev *d, const struct clocks *c, const char *what, F work)
{
	float ms = 0;

	for (int turn = 0; turn < 2; turn++) {
		if (!d->fault.lost)
			cuda_ok(d, cudaEventRecord(c->from, d->stream), what);
		if (!d->fault.lost)
			work();
		if (!d->fault.lost)
			cuda_ok(d, cudaEventRecord(c->to, d->stream), what);
		if (!d->fault.lost)
			cuda_ok(d, cudaEventSynchronize(c->to), what);
	}
	if (!d->fault.lost)
		cuda_ok(d, cudaEventElapsedTime(&ms, c->from, c->to), what);
	return (double)ms * 1e6 + 1;
}

/* Rows at which a product with n outputs has WAVES tiles per multiprocessor. */
static int32_t many_rows(const struct dev *d, int32_t n, int32_t tokens)
{
	int32_t tiles = (n + TILE - 1) / TILE, rows = (WAVES * d->gpu.processors + tiles - 1) / tiles * TILE;

	rows = rows < ROWS_MAX ? rows : ROWS_MAX;
	return rows < tokens ? rows : tokens;
}

static void measure(struct dev *d, const struct net *n, const struct sr_limits *l, unsigned char *host,
	const struct clocks *c)
{
	struct roof *r = &d->roof;
	const struct weight *w = n->layer[0].gu ? n->layer[0].gu : n->layer[0].qkv;
	enum place to = n->layer[0].gu ? P_GU : P_QKV;
	size_t bytes = (size_t)(d->store.end - d->store.base), copy = (size_t)l->n_host_blocks * d->kv.block;
	int32_t rows = many_rows(d, w->n, l->tokens);

	bytes = bytes < READ_MAX ? bytes : READ_MAX;
	copy = copy < COPY_MAX ? copy : COPY_MAX;
	copy = copy < (size_t)l->n_blocks * d->kv.block ? copy : (size_t)l->n_blocks * d->kv.block;
	r->bytes_per_ns = (double)bytes / timed(d, c, "measure the memory", [&] {
		cuda_ok(d, start(read_kernel, (unsigned)(READ_BLOCKS * d->gpu.processors), READ_THREADS, 0, d->stream,
			(const uint4 *)d->store.base, bytes / sizeof(uint4), (unsigned *)d->draw.candidates),
			"measure the memory");
	});
	if (!d->fault.lost)                        /* small numbers, because arbitrary bits might be NaN */
		cuda_ok(d, cudaMemsetAsync(d->act.place[P_Y], 0x3c, (size_t)rows * (size_t)w->k * sizeof(bf16),
			d->stream), "measure a product");
	r->macs_per_ns = (double)rows * w->n * w->k / timed(d, c, "measure a product", [&] {
		matmul(d, to, P_Y, w, rows);
	});
	if (copy)
		r->copied_per_ns = (double)copy / timed(d, c, "measure copies", [&] {
			cuda_ok(d, cudaMemcpyAsync(host, d->kv.base, copy, cudaMemcpyDeviceToHost, d->stream),
				"measure copies");
		});
}

/* A token reads `top` experts; of all tokens of a batch some may read the same. */
static void layer_sizes(struct roof *r, const struct net_layer *y, int32_t top)
{
	struct weight *const all[] = { y->norm1, y->qkv, y->qn, y->kn, y->sinks, y->o, y->post1, y->norm2, y->gu,
		y->down, y->post2, y->router, y->expert_gu, y->expert_down, y->latent, y->q, y->k_b, y->v_b, y->in_down,
		y->in_up };

	for (const struct weight *w : all) {
		bool by_head = w && (w == y->k_b || w == y->v_b);
		double share = w && w->count > 1 && !by_head ? (double)top / w->count : 1;

		if (!w)
			continue;
		r->layer_bytes += share * (double)weight_bytes(w);
		if (w->held != HELD_VECTOR)
			r->token_macs += share * w->count * w->n * w->k;
	}
}

static void sizes(struct roof *r, const struct net *n)
{
	const struct sr_model *m = n->m;

	for (int32_t l = 0; l < m->n_layers; l++) {
		const struct sr_attn *kind = kind_of(m, l);

		layer_sizes(r, &n->layer[l], m->experts.top);
		r->position += (double)kind->n_kv_heads * shape_kv(kind) / m->n_layers;
		r->attend_macs += (double)kind->n_heads * (kind->head_dim + (kind->latent ? kind->latent : kind->head_dim)) /
			m->n_layers;
		if (kind_of(m, l)->window > 0) {
			r->windows++;
			r->window = kind_of(m, l)->window > r->window ? kind_of(m, l)->window : r->window;
		}
	}
	r->head_bytes = (double)weight_bytes(n->head);
	r->head_macs = (double)n->head->n * n->head->k;
}

bool roof_measure(struct dev *d, const struct net *n, const struct sr_limits *l, unsigned char *host)
{
	struct clocks c = {};

	sizes(&d->roof, n);
	if (cuda_ok(d, cudaEventCreateWithFlags(&c.from, cudaEventDefault), "an event") &&
	    cuda_ok(d, cudaEventCreateWithFlags(&c.to, cudaEventDefault), "an event"))
		measure(d, n, l, host, &c);
	for (cudaEvent_t e : { c.from, c.to })
		if (e)
			cuda_ok(d, cudaEventDestroy(e), "free an event");
	return !d->fault.lost;
}

/* ---- a batch -------------------------------------------------------------------------- */

static uint32_t least_ns(double amount, double per_ns)
{
	double ns = per_ns > 0 ? amount / per_ns : 0;

	return ns < 4e9 ? (uint32_t)ns : 4000000000u;
}

/* The positions that all tokens of a row read in a layer, summed over the tokens.  whole: sr_limits.whole. */
static double read_by(const struct sr_row *r, int32_t window, bool whole)
{
	double first = r->first, n = r->n, all = n * first + n * (n + 1) / 2, over;

	if (whole)
		return n * (window && 2 * window - 1 < n ? 2 * window - 1 : n);
	if (!window || r->first + r->n <= window)
		return all;
	over = r->first >= window ? n : first + n - window;     /* tokens that see a whole window */
	n -= over;                                              /* tokens that see less */
	return n * first + n * (n + 1) / 2 + over * window;
}

void roof_count(const struct dev *d, struct sr_batch *b)
{
	const struct roof *r = &d->roof;
	const struct sr_model *m = d->m;
	double position = r->position * (d->kv.f8 ? 1 : sizeof(bf16));
	double full = m->n_layers - r->windows, macs, bytes;
	double seen = 0, read = 0;           /* positions in all layers: seen counts them per token, read once
	                                        per row */

	for (int32_t i = 0; i < b->n_rows; i++) {
		const struct sr_row *row = &b->row[i];
		double last = (double)row->first + row->n, windowed = d->whole ? last : (double)row->n + r->window - 1;

		seen += full * read_by(row, 0, d->whole) + r->windows * read_by(row, r->window, d->whole);
		read += full * last + r->windows * (last < windowed ? last : windowed);
	}
	macs = d->batch.step.n_tokens * r->token_macs + d->batch.step.n_picks * r->head_macs
		+ seen * r->attend_macs;
	bytes = (b->n_rows ? r->layer_bytes : 0) + (d->batch.step.n_picks ? r->head_bytes : 0) + read * position;
	b->int8_ops = 0;
	b->float_ops = (uint64_t)(2 * macs);
	b->bytes = (uint64_t)bytes;
	b->copied = (uint64_t)b->n_copies * d->kv.block;
	b->compute_ns = least_ns(macs, r->macs_per_ns);
	b->memory_ns = least_ns(bytes, r->bytes_per_ns);
	b->copy_ns = least_ns((double)b->copied, r->copied_per_ns);
}
