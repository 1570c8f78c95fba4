/* attend.c - positions, the KV cache and attention, on every thread of the team at once: the verbs rope_store and
 * attend of ops.h.  ops.c says how barriers work.
 */
#include <math.h>
#include <string.h>

#include "cpu.h"
#include "share.h"

void attend_angles(struct dev *d)
{
	struct sr_backend *b = d->b;
	struct range r = deal(b->slice->n_tokens, d);

	enter(d, 0, bit(P_ANGLES));
	for (int32_t which = 0; which < b->m.n_kinds; which++) {
		const struct sr_rope *rope = &b->m.kind[which].rope;

		if (sr_rope_like(&b->m, which) < which)
			continue;
		for (int32_t t = r.from; t < r.to; t++) {
			float *cs = b->angle[which] + (size_t)t * (size_t)rope->dims;

			for (int32_t i = 0; i < rope->dims / 2; i++) {
				/* in double up to here: at position 100,000 a float has too few digits */
				double turn = (double)b->slice->token[t].position * (double)b->freq[which][i];
				float rest = (float)remainder(turn, 6.283185307179586);
				float size = sr_rope_magnitude(rope);

				sincosf(rest, &cs[2 * i + 1], &cs[2 * i]);
				cs[2 * i] *= size;
				cs[2 * i + 1] *= size;
			}
		}
	}
}

/* Few sequences of one token each: a (token, KV head) pair goes to the same thread in rope_store and
 * in attend, so no barrier is needed between them. */
static bool paired(const struct dev *d, const struct sr_attn *kind)
{
	const struct slice *s = d->b->slice;

	return s->single && s->n_tokens * kind->n_kv_heads % d->b->n_active == 0 &&
	       s->n_tokens * kind->n_kv_heads < 4 * d->b->n_active;
}

/* Where the keys and values of head g are. */
static const struct kv_pool *pool_of(const struct sr_backend *b, int32_t g)
{
	return &b->pool[b->n_pools > 1 ? node_of(g, b->m.kind[0].n_kv_heads, b->n_pools) : 0];
}

static uint8_t *kv_area(struct sr_backend *b, int32_t block, int l, int32_t g)
{
	const struct kv_pool *p = pool_of(b, g);
	size_t half = b->kv_half[b->m.layer[l].kind], at = b->kv_at[l];

	if (b->n_pools > 1) /* all kinds have the same heads */
		at = at / (size_t)b->m.kind[0].n_kv_heads * (size_t)p->heads;
	return p->at + (size_t)block * p->block + at + 2 * (size_t)(g - p->first) * half;
}

/* The blocks of a slot's sequence for layer l. */
static const int32_t *kv_table_of(const struct sr_backend *b, int32_t slot, int l)
{
	return b->slot[slot].table + b->kv_place[l].group * b->lim.seq_blocks;
}

/* The norm of one head of q or k; norms over rows are done before: norm_rows(). */
static void norm_head(struct dev *d, const struct sr_attn *kind, const struct weight *norm, float eps, float *head)
{
	int32_t E = kind->head_dim;

	if (norm && !(kind->qk_norm & SR_QK_ROW)) {
		d->b->k->norm(head, norm->vec, eps, E, d->row);
		memcpy(head, d->row, (size_t)E * sizeof(float));
	} else if (kind->qk_norm & SR_QK_BARE) {
		kern_bare_norm(head, eps, E);
	}
}

static void rope_head(struct dev *d, const struct sr_attn *kind, const struct weight *norm, float eps,
                      const float *cs, float *head)
{
	const struct sr_rope *rope = &kind->rope;

	if (!(kind->qk_norm & SR_QK_LATE))
		norm_head(d, kind, norm, eps, head);
	if (rope->dims)
		d->b->k->rope(head, cs, rope->dims, rope->pairs);
	if (kind->qk_norm & SR_QK_LATE)
		norm_head(d, kind, norm, eps, head);
}

/* SR_QK_ROW: one norm over all heads of q, one over all of k; a thread has whole rows. */
static void norm_rows(struct dev *d, int l, const struct sr_attn *kind, const struct weight *qn,
                      const struct weight *kn, float eps)
{
	struct range r = deal(d->b->slice->n_tokens, d);
	int32_t E = kind->head_dim;

	enter(d, bit(P_QKV), 0);
	for (int32_t t = r.from; t < r.to; t++) {
		float *q = row_of(d, P_QKV, t, SOLO + 1), *k = q + kind->n_heads * E;

		d->b->k->norm(q, qn->vec, eps, kind->n_heads * E, q);
		if (l >= 0)
			d->b->k->norm(k, kn->vec, eps, kind->n_kv_heads * E, k);
	}
	d->writes |= bit(P_QKV); /* divided otherwise than what reads it next */
}

/* Queries at position p are this much hotter. */
static void heat_queries(const struct sr_attn *kind, int32_t p, float *q, int32_t n)
{
	float by = 1 + kind->heat * logf((float)(1 + (p + kind->heat_add) / kind->heat_from));

	for (int32_t i = 0; i < n; i++)
		q[i] *= by;
}

static void rope_store_one(struct dev *d, int l, const struct sr_attn *kind, const struct weight *qn,
                           const struct weight *kn, float eps, int32_t t, int32_t g)
{
	struct sr_backend *b = d->b;
	const struct batch_token *k = &b->slice->token[t];
	const float *cs = b->angle[kind - b->m.kind] + (size_t)t * (size_t)kind->rope.dims;
	int32_t heads = kind->n_heads / kind->n_kv_heads, E = kind->head_dim, place = k->position % KERN_BLOCK;
	float *q = row_of(d, P_QKV, t, SOLO + 1), *key = q + (kind->n_heads + g) * E;
	float *value = key + kind->n_kv_heads * E, copy[HEAD_MAX];
	uint8_t *to;

	for (int32_t h = g * heads; h < (g + 1) * heads; h++)
		rope_head(d, kind, qn, eps, cs, q + h * E);
	if (kind->heat != 0)
		heat_queries(kind, k->position, q + g * heads * E, heads * E);
	if (l < 0)
		return;
	if (kind->k_is_v)
		value = memcpy(copy, key, (size_t)E * sizeof(float));
	if (kind->v_norm)
		kern_bare_norm(value, eps, E);
	rope_head(d, kind, kn, eps, cs, key);
	to = kv_area(b, kv_table_of(b, k->slot, l)[k->position / KERN_BLOCK], l, g);
	b->k->kv_store(b->lim.kv_type, E, place, key, value, to, to + b->kv_half[kind - b->m.kind]);
}

/* Behind each head's latent query, what rope turns of it; then the token's key, which is its value, too. */
static void rope_store_latent(struct dev *d, int l, const struct sr_attn *kind, const struct weight *kn, float eps,
                              int32_t t)
{
	struct sr_backend *b = d->b;
	const struct batch_token *k = &b->slice->token[t];
	const struct sr_rope *rope = &kind->rope;
	const float *cs = b->angle[kind - b->m.kind] + (size_t)t * (size_t)rope->dims;
	const float *from = row_of(d, P_HEADS, t, SOLO + 1) + kind->q_dim;
	float *key = row_of(d, P_LATENT, t, SOLO + 1) + kind->q_rank, *q = row_of(d, P_QKV, t, SOLO + 1) + kind->latent;

	for (int32_t h = 0; h < kind->n_heads; h++, q += kind->head_dim, from += kind->q_dim + rope->dims) {
		memcpy(q, from, (size_t)rope->dims * sizeof(float));
		b->k->rope(q, cs, rope->dims, rope->pairs);
	}
	if (kind->heat != 0)
		heat_queries(kind, k->position, row_of(d, P_QKV, t, SOLO + 1), kind->n_heads * kind->head_dim);
	b->k->norm(key, kn->vec, eps, kind->latent, key);
	b->k->rope(key + kind->latent, cs, rope->dims, rope->pairs);
	b->k->kv_store(b->lim.kv_type, kind->head_dim, k->position % KERN_BLOCK, key, NULL,
	               kv_area(b, kv_table_of(b, k->slot, l)[k->position / KERN_BLOCK], l, 0), NULL);
}

void rope_store(struct dev *d, int l, const struct sr_attn *kind, const struct weight *qn,
                const struct weight *kn, float eps, int T)
{
	const struct slice *s = d->b->slice;
	int32_t G = kind->n_kv_heads;
	struct range r = deal(s->n_stores * G, d);

	(void)T;
	if (kind->qk_norm & SR_QK_ROW)
		norm_rows(d, l, kind, qn, kn, eps);
	enter(d, bit(P_QKV) | bit(P_ANGLES) | (kind->latent ? bit(P_LATENT) | bit(P_HEADS) : 0), 0);
	for (int32_t i = r.from; i < r.to; i++) {
		const struct token_run *tokens = &s->store[i / G];

		for (int32_t t = tokens->t; t < tokens->t + tokens->n; t++)
			if (kind->latent)
				rope_store_latent(d, l, kind, kn, eps, t);
			else
				rope_store_one(d, l, kind, qn, kn, eps, t, i % G);
	}
	if (!paired(d, kind))
		d->writes |= bit(P_QKV); /* divided otherwise than what reads it next */
}

/* What attention reads: the cache of layer l, by a kind of attention, with sinks or NULL. */
struct from { int l; const struct sr_attn *kind; const float *sinks; };

/* The number of this rank's first query head. */
static int32_t first_head(const struct dev *d, const struct sr_attn *kind)
{
	return d->b->net.ranks ? d->b->shape.kind[kind - d->b->m.kind].heads.from : 0;
}

static int32_t value_width(const struct sr_attn *kind)
{
	return kind->latent ? kind->latent : kind->head_dim;
}

/* The queries of one item for one KV head: its query heads h0 .. h1-1. */
static struct kern_attend question(struct dev *d, const struct from *f, const struct token_run *it, int32_t g,
                                   int32_t h0, int32_t h1)
{
	struct sr_backend *b = d->b;
	const struct sr_attn *kind = f->kind;
	const struct batch_token *first = &b->slice->token[it->t];
	size_t h = (size_t)(g * (kind->n_heads / kind->n_kv_heads) + h0);
	const struct kv_pool *pool = pool_of(b, g);
	uint8_t *layer = kv_area(b, 0, f->l, g);
	float *out = row_of(d, P_A, it->t, SOLO + 1) + first_head(d, kind) * value_width(kind);
	int32_t last = first->position, window = kind->window;

	if (kind->bidirectional) {       /* one query, as if it stood at the last position that it reads */
		last = b->slice->last[it->t];
		if (window && last - first->position >= window)
			last = first->position + window - 1;
		window = window ? last - (first->position < window ? 0 : first->position - window + 1) + 1 : 0;
	}
	return (struct kern_attend){
		.q = row_of(d, P_QKV, it->t, SOLO + 1) + h * (size_t)kind->head_dim, .ld_q = (size_t)b->shape.width[P_QKV],
		.out = out + h * (size_t)value_width(kind), .ld_out = (size_t)b->shape.width[P_A],
		.n = it->n, .heads = h1 - h0, .head_dim = kind->head_dim,
		.latent = kind->latent, .turned = d->turned,
		.first = last, .window = window, .chunk = kind->chunk, .sink = f->sinks ? f->sinks + h : NULL,
		.scale = kind->scale, .cap = kind->cap, .table = kv_table_of(b, first->slot, f->l),
		.kv = pool->at, .block_stride = pool->block, .k_off = (size_t)(layer - pool->at),
		.v_off = (size_t)(layer - pool->at) + (kind->latent ? 0 : b->kv_half[b->m.layer[f->l].kind]),
		.scratch = d->attend,
	};
}

static void attend_item(struct dev *d, const struct from *f, const struct token_run *it, int32_t g, int32_t h0,
                        int32_t h1)
{
	struct kern_attend a = question(d, f, it, g, h0, h1);

	d->b->k->attend(d->b->lim.kv_type, &a);
	ops_breathe(d);
}

/* By pairs: a thread has the (token, KV head) pairs whose K and V it stored.  See paired(). */
static void attend_pairs(struct dev *d, const struct from *f)
{
	int32_t G = f->kind->n_kv_heads;
	struct range r = deal(d->b->slice->n_tokens * G, d);

	enter(d, 0, bit(P_A));
	for (int32_t i = r.from; i < r.to; i++)
		attend_item(d, f, &(struct token_run){ i / G, 1 }, i % G, 0, f->kind->n_heads / G);
}

/* By items: threads take them one by one, the costly first.  Each reads K and V once. */
static void attend_items(struct dev *d, const struct from *f)
{
	const struct slice *s = d->b->slice;
	int32_t G = f->kind->n_kv_heads, n = s->n_items * G;

	for (int32_t i = team_take(d->b->team); i < n; i = team_take(d->b->team)) {
		int32_t from_end = n - 1 - i;

		attend_item(d, f, &s->item[from_end / G], from_end % G, 0, f->kind->n_heads / G);
	}
}

/* By query heads: threads have equal parts of them.  Threads that share a KV head each read its K and V. */
static void attend_heads(struct dev *d, const struct from *f)
{
	const struct slice *s = d->b->slice;
	int32_t H = f->kind->n_heads, heads = H / f->kind->n_kv_heads;
	struct range r = deal(s->n_items * H, d);

	for (int32_t i = r.from, n; i < r.to; i += n) {
		int32_t h = i % heads;

		n = r.to - i < heads - h ? r.to - i : heads - h;
		attend_item(d, f, &s->item[i / H], i % H / heads, h, h + n);
	}
}

/* The spans of positions that an item reads. */
static struct range spans_of(const struct dev *d, const struct token_run *it, const struct sr_attn *kind)
{
	int32_t to = d->b->slice->token[it->t].position;

	return (struct range){ kern_from(kind->window, kind->chunk, to) / KERN_SPAN, to / KERN_SPAN + 1 };
}

static float *part_of(const struct dev *d, const struct sr_attn *kind, int32_t item, int32_t span,
                      int32_t head)
{
	const struct sr_backend *b = d->b;

	return b->parts + (((size_t)item * (size_t)b->n_spans + (size_t)span) * (size_t)kind->n_heads +
	                   (size_t)head) * kern_part(value_width(kind));
}

/* By spans of positions: threads have equal parts of them, then add up the sums of each head's spans. */
static void attend_spans(struct dev *d, const struct from *f, int32_t n_units)
{
	const struct slice *s = d->b->slice;
	const struct sr_attn *kind = f->kind;
	int32_t H = kind->n_heads, G = kind->n_kv_heads, E = value_width(kind), heads = H / G, unit = 0;
	struct range r = deal(n_units, d);

	for (int32_t i = 0; i < s->n_items; i++) {
		struct range spans = spans_of(d, &s->item[i], kind);

		for (int32_t at = spans.from * G; at < spans.to * G; at++, unit++) {
			struct kern_attend a;

			if (unit < r.from || unit >= r.to)
				continue;
			a = question(d, f, &s->item[i], at % G, 0, heads);
			a.span = at / G;
			a.part = part_of(d, kind, i, a.span, at % G * heads);
			a.ld_part = kern_part(E);
			d->b->k->attend(d->b->lim.kv_type, &a);
			ops_breathe(d);
		}
	}
	meet(d);
	d->writes |= bit(P_A);
	r = deal(s->n_items * H, d);
	for (int32_t i = r.from; i < r.to; i++) {
		struct range spans = spans_of(d, &s->item[i / H], kind);
		float *sum = part_of(d, kind, i / H, spans.from, i % H);
		float *out = row_of(d, P_A, s->item[i / H].t, SOLO + 1) + (first_head(d, kind) + i % H) * E, by;

		for (int32_t span = spans.from + 1; span < spans.to; span++)
			kern_join(sum, part_of(d, kind, i / H, span, i % H), E);
		by = kern_share(sum[0], sum[1], f->sinks ? f->sinks + i % H : NULL);
		for (int32_t e = 0; e < E; e++)
			out[e] = sum[16 + e] * by;
	}
}

/* The number of (span, KV head) units if attention is to be divided by spans, else 0. */
static int32_t span_units(const struct dev *d, const struct sr_attn *kind)
{
	const struct slice *s = d->b->slice;
	int32_t n = 0;

	if (!s->single || s->n_items > d->b->max_split)
		return 0;
	for (int32_t i = 0; i < s->n_items; i++) {
		struct range spans = spans_of(d, &s->item[i], kind);

		n += spans.to - spans.from;
	}
	return n > s->n_items ? n * kind->n_kv_heads : 0;
}

/*	by pairs   single tokens, fewer than 4 pairs a thread, and each thread has equally many
 *	by spans   single tokens, fewer than 4 pairs a thread, of more than one span each on average
 *	by heads   fewer than 4 (item, KV head) pairs a thread
 *	by items   else */
void attend(struct dev *d, int l, const struct sr_attn *kind, const struct weight *sinks, int T)
{
	const struct from f = { l, kind, sinks ? sinks->vec : NULL };
	bool few = d->b->slice->n_items * kind->n_kv_heads < 4 * d->b->n_active;
	int32_t units;

	(void)T;
	write_far(d, P_A);
	if (paired(d, kind)) {
		attend_pairs(d, &f);
		return;
	}
	meet(d);
	d->reads |= bit(P_QKV);
	d->writes |= bit(P_A);
	units = few ? span_units(d, kind) : 0;
	if (units)
		attend_spans(d, &f, units);
	else if (few)
		attend_heads(d, &f);
	else
		attend_items(d, &f);
}
