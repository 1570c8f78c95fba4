/* roof.c - what bounds a batch: the least time that its bytes and its operations take at this
 * machine's rates.  The rates are measured once, at open, in some ms.  They are estimates for
 * statistics; no result depends on them.
 */
#include <string.h>

#include "cpu.h"
#include "shmring/clock.h"

#define READ_MAX ((size_t)32 << 20)    /* bytes each thread reads: more than its caches hold */

struct probe {
	struct sr_backend *b;
	const struct weight *w;        /* multiplied, from the caches */
	_Atomic uint64_t sum;          /* of what was read, so that the compiler keeps the reads */
};

static size_t read_size(const struct dev *d)
{
	return d->arena_size < READ_MAX ? d->arena_size : READ_MAX;
}

static void read_arena(void *ctx, int i)
{
	struct probe *p = ctx;
	const struct dev *d = &p->b->dev[i];
	const uint8_t *at = d->arena_end - d->arena_size;
	uint64_t sum = 0;

	for (size_t line = 0; line + 64 <= read_size(d); line += 64) {
		uint64_t word;

		memcpy(&word, at + line, sizeof(word));
		sum += word;
	}
	atomic_fetch_add(&p->sum, sum);
}

/* One tile times the thread's blocks of the first part. */
static void multiply(void *ctx, int i)
{
	struct probe *p = ctx;
	struct dev *d = &p->b->dev[i];
	const struct part *q = &p->w->part[0];
	int32_t from = block_from(q->n_blocks, i, p->b->n_threads);
	int32_t n = block_from(q->n_blocks, i + 1, p->b->n_threads) - from;
	struct kern_rows x = { .form = q->form, .k = p->w->k, .rows = KERN_TILE, .data = d->tiles[q->form],
		.tile_bytes = p->b->k->tile_bytes(q->form, p->w->k), .index = q->index };

	for (int32_t j = 0; j < n; j++) /* one block at a time fits L1, as it does in a prompt */
		for (int turn = 0; turn < 4; turn++)
			p->b->k->matmul(q->type, p->w->k, p->w->share[i * PARTS] + (size_t)j * q->block_bytes,
				1, KERN_COLS, &x, NULL, d->sample.work, KERN_COLS, NULL);
}

static double best_ns(struct probe *p, void (*fn)(void *ctx, int i))
{
	double best = 1e18;

	for (int round = 0; round < 3; round++) {
		uint64_t begin = sr_now();
		double ns;

		team_run(p->b->team, fn, p);
		ns = (double)(sr_now() - begin) + 1;
		best = ns < best ? ns : best;
	}
	return best;
}

/* A matrix for each expert; with latent keys there is one for each head, too, of which all multiply a token. */
static bool of_experts(const struct sr_backend *b, const struct weight *w)
{
	for (int32_t l = 0; w->count > 1 && l < b->m.n_layers; l++)
		if (w == b->net.layer[l].expert_gu || w == b->net.layer[l].expert_down)
			return true;
	return false;
}

/* The part of the layers' multiply-adds that is int8. */
static double int8_share(const struct sr_backend *b)
{
	double macs[N_FORMS] = { 0 }, all = 0;

	for (const struct weight *w = b->weights; w; w = w->next)
		for (int32_t i = 0; w != b->net.embed && w != b->net.head && w != b->net.in_embed && w != b->net.dense && w != b->net.labels && i < w->n_parts; i++)
			macs[w->part[i].form] += (double)w->part[i].n * w->k * (of_experts(b, w) ? b->m.experts.top : w->count);
	for (int form = 0; form < N_FORMS; form++)
		all += macs[form];
	return all > 0 ? macs[FORM_I8] / all : 0;
}

/* Multiply-adds of a layer for a token. */
static double layer_macs(const struct sr_backend *b, int32_t l)
{
	const struct sr_experts *x = &b->m.experts;
	const struct net_layer *w = &b->net.layer[l];
	const struct sr_delta *a = &b->m.delta;
	double macs = w->o->k, heads = 0;

	if (w->qkv)
		macs += w->qkv->n;
	else
		heads = (double)w->q->n * w->q->k + (double)w->k_b->count * (w->k_b->n * w->k_b->k + w->v_b->n * w->v_b->k);
	if (w->latent)
		macs += w->latent->n;
	if (b->m.layer[l].mixer == SR_DELTA) /* the state is read twice and written; its rows are no multiple of y's */
		macs += 4.0 * a->v_heads * a->k_dim * a->v_dim / b->m.d_model;
	if (w->gu)
		macs += w->gu->n + w->down->k;
	if (w->expert_gu)
		macs += w->router->n + (double)x->top * (w->expert_gu->n + w->expert_down->k);
	return macs * b->m.d_model + heads;
}

/* Bytes of all experts, which a batch reads only where a token chose them. */
static double expert_bytes(const struct sr_backend *b)
{
	double bytes = 0;

	for (const struct weight *w = b->weights; w; w = w->next)
		for (int32_t i = 0; of_experts(b, w) && i < w->n_parts; i++)
			bytes += (double)w->count * w->part[i].n_blocks * (double)w->part[i].block_bytes;
	return bytes;
}

void roof_measure(struct sr_backend *b)
{
	const struct sr_model *m = &b->m;
	const struct net_layer *first = &b->net.layer[0];
	struct probe p = { .b = b, .w = first->expert_gu ? first->expert_gu : first->gu };
	const struct part *q = &p.w->part[0];
	double bytes = 0;

	for (int i = 0; i < b->n_threads; i++)
		bytes += (double)read_size(&b->dev[i]);
	b->roof.bytes_per_ns = bytes / best_ns(&p, read_arena);
	if (m->n_vocab >= KERN_TILE * KERN_COLS) /* the place that multiply() writes to */
		b->roof.macs_per_ns = 4.0 * q->n_blocks * KERN_COLS * p.w->k * KERN_TILE / best_ns(&p, multiply);
	for (int32_t l = 0; l < m->n_layers; l++) {
		const struct sr_attn *kind = kind_of(m, l);

		b->roof.token_macs += layer_macs(b, l);
		if (m->layer[l].mixer == SR_ATTEND)
			b->roof.score_macs += (double)kind->n_heads * kind->head_dim;
	}
	b->roof.int8_share = int8_share(b);
	for (int32_t part = 0; part < b->net.head->n_parts; part++)
		b->roof.head_bytes += (double)b->net.head->part[part].n_blocks *
		                      (double)b->net.head->part[part].block_bytes;
	for (int i = 0; i < b->n_threads; i++)
		b->roof.layer_bytes += (double)(b->dev[i].arena - (b->dev[i].arena_end - b->dev[i].arena_size));
	if (b->net.head == b->net.embed)
		b->roof.layer_bytes -= b->roof.head_bytes;
	b->roof.layer_bytes -= expert_bytes(b);
	for (int32_t part = 0; b->net.in_embed && part < b->net.in_embed->n_parts; part++) /* one row is read */
		b->roof.layer_bytes -= (double)b->net.in_embed->part[part].n_blocks *
		                       (double)b->net.in_embed->part[part].block_bytes;
}

/* Bytes of KV that attention reads for a query at position `last` - 1, and those that it shares with it. */
static double kv_bytes(const struct sr_backend *b, double last)
{
	double bytes = 0;

	for (int32_t g = 0; g < b->lim.n_groups; g++) {
		double window = b->lim.group[g].window;

		bytes += (window > 0 && window < last ? window : last) / KERN_BLOCK * (double)b->kv_group[g];
	}
	return bytes;
}

/* Add the least cost of one slice. */
void roof_add(const struct sr_backend *b, const struct slice *s, struct cost *c)
{
	const struct sr_model *m = &b->m;
	double layers = s->n_tokens * b->roof.token_macs, head = (double)s->n_picks * m->n_vocab * m->d_model;
	double read = 0;               /* positions read by attention */

	for (int32_t i = 0; i < s->n_items; i++) {
		const struct token_run *it = &s->item[i];
		double last = s->token[it->t].position + it->n;

		read += it->n * last;
		c->bytes += kv_bytes(b, last);
	}
	c->bytes += 2.0 * s->n_runs * b->n_state_layers * (double)recur_layer_floats(&m->delta) * sizeof(float);
	c->int8_macs += layers * b->roof.int8_share;
	c->float_macs += layers * (1 - b->roof.int8_share) + 2.0 * read * b->roof.score_macs;
	*(b->net.head->part[0].form == FORM_I8 ? &c->int8_macs : &c->float_macs) += head;
	c->bytes += b->roof.layer_bytes + (s->n_picks ? b->roof.head_bytes : 0);
}
