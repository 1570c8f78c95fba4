/* calibrate.c - see calibrate.h. */
#include "calibrate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/share.h"

#define ROWS   512                 /* tokens of a batch */
#define FILE_X (-7)                /* the file that an extent names whose bytes are x */
#define READS  64                  /* that the source holds until they are waited for */

/* ---- moments -------------------------------------------------------------------------------- */

static int moments_create(struct moments *m, int32_t k)
{
	*m = (struct moments){ k, 0, calloc((size_t)k, sizeof(double)), calloc((size_t)k, sizeof(double)) };
	return m->size && m->square ? 0 : -ENOMEM;
}

static void moments_destroy(struct moments *m)
{
	free(m->size);
	free(m->square);
}

int inputs_create(struct inputs *in, const struct sr_model *m, int32_t l)
{
	const struct sr_layer *y = &m->layer[l];
	const struct sr_tensor *down = y->ffn == SR_EXPERTS ? &y->shared_down : &y->down;
	const int32_t width[N_INPUTS] = { [IN_MIXER] = m->d_model, [IN_Q] = y->q_a.type ? y->q.k : 0,
		[IN_O] = y->o.k, [IN_FFN] = m->d_model, [IN_DOWN] = down->type ? down->k : 0 };
	int rc = 0;

	*in = (struct inputs){ .n_experts = y->ffn == SR_EXPERTS ? m->experts.n : 0 };
	for (int i = 0; i < N_INPUTS && !rc; i++)
		rc = width[i] ? moments_create(&in->of[i], width[i]) : 0;
	if (rc || !in->n_experts)
		return rc;
	in->expert = calloc((size_t)in->n_experts, sizeof(*in->expert));
	in->expert_down = calloc((size_t)in->n_experts, sizeof(*in->expert_down));
	if (!in->expert || !in->expert_down)
		return -ENOMEM;
	for (int32_t e = 0; e < in->n_experts && !rc; e++) {
		rc = moments_create(&in->expert[e], m->d_model);
		rc = rc ? rc : moments_create(&in->expert_down[e], m->experts.d_ff);
	}
	return rc;
}

void inputs_destroy(struct inputs *in)
{
	for (int i = 0; i < N_INPUTS; i++)
		moments_destroy(&in->of[i]);
	for (int32_t e = 0; e < in->n_experts; e++) {
		if (in->expert)
			moments_destroy(&in->expert[e]);
		if (in->expert_down)
			moments_destroy(&in->expert_down[e]);
	}
	free(in->expert);
	free(in->expert_down);
	*in = (struct inputs){ 0 };
}

static void add_row(struct moments *in, const float *x)
{
	for (int32_t j = 0; j < in->k; j++) {
		double v = (double)x[j];

		in->size[j] += fabs(v);
		in->square[j] += v * v;
	}
	in->rows++;
}

/* ---- what the verbs multiply ----------------------------------------------------------------- */

/* Where the layer under way adds its inputs.  Verbs have no context, and one layer is computed at a time. */
static struct { struct inputs *in; int32_t half; } seeing;

static bool counts(const struct dev *d, int32_t token)
{
	return d->b->slice->token[token].position < seeing.half;
}

/* Rows are those of experts, in their order: Y by token, ACT one for each expert of a token. */
static void see_experts(struct dev *d, enum place x, const struct weight *w, struct moments *in, int T)
{
	const struct routing *r = &d->routing;

	for (int32_t i = 0; i < r->n_runs; i++)
		for (int32_t row = r->run[i].from; row < r->run[i].from + r->run[i].n; row++) {
			const float *from = x == P_Y ? row_of(d, x, r->token[row], T)
			                             : d->b->place[x] + (size_t)row * stride_of(d, x, w->k);

			if (counts(d, r->token[row]))
				add_row(&in[r->run[i].expert], from);
		}
}

static void see(struct dev *d, enum place x, const struct weight *w, int T)
{
	const struct net_layer *n = &d->b->net.layer[0];
	int input = w == n->qkv || w == n->latent ? IN_MIXER
	          : w == n->q ? (n->qn ? IN_Q : IN_MIXER)
	          : w == n->o ? IN_O
	          : w == n->router || (w == n->gu && !n->router) ? IN_FFN
	          : w == n->down ? IN_DOWN : N_INPUTS;

	if (w == n->q && !n->qn)           /* it reads what the latent ones read, which is counted */
		return;
	if (w->count > 1 && (w == n->expert_gu || w == n->expert_down))
		see_experts(d, x, w, w == n->expert_gu ? seeing.in->expert : seeing.in->expert_down, T);
	if (input == N_INPUTS)
		return;
	for (int32_t t = 0; t < T; t++)
		if (counts(d, t))
			add_row(&seeing.in->of[input],
			        x == P_Y ? row_of(d, x, t, T) : d->b->place[x] + (size_t)t * stride_of(d, x, w->k));
}

static void matmul(struct dev *d, enum place y, enum place x, const struct weight *w, int T)
{
	if (seeing.in) {
		meet(d);                       /* x is whole, and nobody writes it before all meet again */
		if (d->i == 0)
			see(d, x, w, T);
	}
	cpu_ops.matmul(d, y, x, w, T);
}

/* ---- a model of one layer -------------------------------------------------------------------- */

struct source {
	const int *file;
	const float *x;
	struct { uint64_t tag; void *at; } done[READS];
	int n;
};

static int source_read(void *ctx, const struct sr_extent *e, uint64_t from, size_t n, void *buf, uint64_t tag)
{
	struct source *s = ctx;

	if (s->n == READS)
		return -EAGAIN;
	if (e->file == FILE_X)
		memcpy(buf, (const char *)s->x + e->offset + from, n);
	else if (pread(s->file[e->file], buf, n, (off_t)(e->offset + from)) != (ssize_t)n)
		return -EIO;
	s->done[s->n].tag = tag;
	s->done[s->n++].at = buf;
	return 0;
}

static int source_wait(void *ctx, uint64_t *tag, void **at)
{
	struct source *s = ctx;

	if (!s->n)
		return -EIO;
	*tag = s->done[--s->n].tag;
	*at = s->done[s->n].at;
	return 0;
}

/* Layer y alone.  Its tokens are rows of x. */
static struct sr_model one_layer(const struct sr_model *m, struct sr_layer *y, int32_t T)
{
	struct sr_model one = *m;

	one.n_layers = 1;
	one.layer = y;
	one.n_vocab = one.context = T;
	one.embed = (struct sr_tensor){ .name = "x", .type = SR_F32, .n = T, .k = m->d_model, .count = 1,
		.data = { 0, (uint64_t)T * (uint64_t)m->d_model * 4, FILE_X } };
	one.embed_scale = 1;
	one.logit_cap = 0;
	one.head = one.positions = one.types = one.norm = one.norm_bias = (struct sr_tensor){ .type = SR_NONE };
	return one;
}

static struct sr_limits limits_of(const struct calibrate *c, const struct sr_model *m)
{
	const int32_t blocks = (c->n_tokens + KERN_BLOCK - 1) / KERN_BLOCK;

	return (struct sr_limits){
		.block_tokens = KERN_BLOCK, .n_blocks = blocks, .seq_blocks = blocks, .slots = 1, .rows = 1,
		.tokens = ROWS,
		.cmds = 4, .words = c->n_tokens + blocks + 256, .logit_rows = 1, .kv_type = SR_KV_BF16,
		.threads = c->threads, .worked = 1, .world = 1, .eager = 1, .n_groups = 1,
		.n_states = m->delta.v_heads > 0,
	};
}

/* The commands before the first row. */
static void begin(struct sr_batch *b, const struct sr_limits *lim)
{
	static const struct sr_sampling greedy = { .top_p = 1, .repetition = 1 };
	const int32_t at = (int32_t)(sizeof(greedy) / sizeof(uint32_t));

	b->cmd[b->n_cmds++] = (struct sr_cmd){ .op = SR_CMD_BEGIN };
	memcpy(b->word, &greedy, sizeof(greedy));
	b->cmd[b->n_cmds++] = (struct sr_cmd){ .op = SR_CMD_BLOCKS, .n = lim->n_blocks, .data = (uint32_t)at };
	for (int32_t i = 0; i < lim->n_blocks; i++)
		b->word[at + i] = (uint32_t)i;
	b->n_words = at + lim->n_blocks;
	if (lim->n_states)
		b->cmd[b->n_cmds++] = (struct sr_cmd){ .op = SR_CMD_STATE, .a = -1 };
}

static void run(struct sr_backend *be, const struct sr_limits *lim, const struct calibrate *c, float *x)
{
	const struct sr_backend_ops *ops = sr_cpu_ops();
	struct sr_batch *b = ops->batch(be, 0);

	for (int32_t t = 0; t < c->n_tokens; t += ROWS) {
		int32_t n = c->n_tokens - t < ROWS ? c->n_tokens - t : ROWS;

		b->n_copies = b->n_cmds = b->n_words = b->n_results = 0;
		if (t == 0)
			begin(b, lim);
		b->n_rows = 1;
		b->n_ids = b->n_tokens = n;
		b->row[0] = (struct sr_row){ .first = t, .n = n };
		for (int32_t i = 0; i < n; i++)
			b->token[i] = t + i;
		ops->launch(be, 0);
		ops->work(be, NULL, NULL);
		cpu_ops.get(&be->dev[0], P_X, x + (size_t)t * (size_t)be->m.d_model, n);
	}
}

int calibrate_layer(const struct calibrate *c, const struct sr_model *m, const int *file, int32_t l, float *x,
                    struct inputs *in, char *err, size_t errlen)
{
	struct sr_layer y = m->layer[l];
	struct sr_model one = one_layer(m, &y, c->n_tokens);
	struct sr_limits lim = limits_of(c, m);
	struct source s = { .file = file, .x = x };
	const struct sr_source src = { .ctx = &s, .read = source_read, .wait = source_wait };
	struct ops verbs = cpu_ops;
	struct sr_backend *be;
	int rc = sr_cpu_ops()->open(&be, &one, &src, &lim, err, errlen);

	if (rc)
		return rc;
	verbs.matmul = matmul;
	be->verbs = &verbs;
	seeing.in = in;
	seeing.half = c->n_tokens / 2;
	run(be, &lim, c, x);
	seeing.in = NULL;
	sr_cpu_ops()->close(be);
	return 0;
}

/* ---- the end ---------------------------------------------------------------------------------- */

void calibrate_norm(const struct calibrate *c, const struct sr_model *m, const float *w, const float *bias,
                    float *x)
{
	const struct kern *k = kern_pick(NULL);
	size_t D = (size_t)m->d_model;

	for (size_t t = 0; t < (size_t)c->n_tokens; t++)
		if (m->norm_kind == SR_LAYER)
			kern_layer_norm(x + t * D, w, bias, m->eps, m->d_model, x + t * D);
		else
			k->norm(x + t * D, w, m->eps, m->d_model, x + t * D);
}

static void *room(size_t bytes)
{
	return aligned_alloc(64, (bytes + 63) & ~(size_t)63);
}

/* y[rows][n] = x[rows][k] w^T */
static void multiply(const struct kern *k, const struct matrix *w, const float *x, int32_t rows, float *y,
                     uint8_t *tiles, uint8_t *block)
{
	struct kern_rows in = { .form = FORM_F32, .k = w->k, .rows = rows, .data = tiles,
	                        .tile_bytes = k->tile_bytes(FORM_F32, w->k) };

	k->make_rows(&in, x, (size_t)w->k, 0, (rows + KERN_TILE - 1) / KERN_TILE);
	for (int32_t i = 0; i < w->n; i += KERN_COLS) {
		int32_t n = w->n - i < KERN_COLS ? w->n - i : KERN_COLS;
		const uint8_t *src[KERN_COLS] = { NULL };

		for (int32_t j = 0; j < n; j++)
			src[j] = (const uint8_t *)(w->w + (size_t)(i + j) * (size_t)w->k);
		k->pack(SR_F32, w->k, src, block);
		k->matmul(SR_F32, w->k, block, 1, n, &in, NULL, y + i, (size_t)w->n, NULL);
	}
}

static void merge(const struct kern *k, float *logit, int32_t n, float cap, int32_t target, double *sum,
                  double *hit)
{
	double part, low, high;
	int32_t arg;
	float top;

	for (int32_t i = 0; cap > 0 && i < n; i++)
		logit[i] = cap * tanhf(logit[i] / cap);
	k->logits(logit, n, &top, &arg, &part);
	low = fmin(part, *sum);
	high = fmax(part, *sum);
	*sum = high + log1p(exp(low - high));
	if (target >= 0 && target < n)
		*hit = (double)logit[target];
}

int calibrate_head(const struct calibrate *c, const struct sr_model *m, const struct matrix *head,
                   int32_t first, const float *x, int32_t from, const int32_t *id, double *sum, double *hit)
{
	const struct kern *k = kern_pick(NULL);
	size_t D = (size_t)head->k, n = (size_t)head->n;
	float *logit = room(ROWS * n * 4);
	uint8_t *tiles = room(ROWS / KERN_TILE * k->tile_bytes(FORM_F32, head->k));
	uint8_t *block = room(k->block_bytes(SR_F32, head->k));
	int rc = logit && tiles && block ? 0 : -ENOMEM;

	for (int32_t t0 = from; t0 < c->n_tokens - 1 && !rc; t0 += ROWS) {
		int32_t rows = c->n_tokens - 1 - t0 < ROWS ? c->n_tokens - 1 - t0 : ROWS;

		multiply(k, head, x + (size_t)t0 * D, rows, logit, tiles, block);
		for (int32_t t = t0; t < t0 + rows; t++)
			merge(k, logit + (size_t)(t - t0) * n, head->n, m->logit_cap, id[t + 1] - first, &sum[t],
			      &hit[t]);
	}
	free(logit);
	free(tiles);
	free(block);
	return rc;
}
