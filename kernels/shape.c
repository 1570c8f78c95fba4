/* shape.c - who holds what of a model.  See shape.h. */
#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "refuse.h"
#include "shape.h"

static int32_t larger(int32_t a, int32_t b)
{
	return a > b ? a : b;
}

/* Part i of n things that are dealt to `parts`: each gets n / parts of them, rounded down or up. */
static struct rank_part deal(int32_t n, int32_t i, int32_t parts)
{
	int32_t from = (int32_t)((int64_t)n * i / parts), to = (int32_t)((int64_t)n * (i + 1) / parts);

	return (struct rank_part){ from, to - from };
}

struct rank_part shape_deal(int32_t n, int32_t unit, int32_t rank, int32_t world)
{
	struct rank_part p = deal((n + unit - 1) / unit, rank, world);
	int32_t from = p.from * unit, to = (p.from + p.n) * unit;

	return (struct rank_part){ from, (to < n ? to : n) - from };
}

void shape_heads(const struct sr_attn *kind, int32_t rank, int32_t world, struct rank_part *q,
                 struct rank_part *kv)
{
	int32_t each = kind->n_heads / kind->n_kv_heads, g = 0;
	struct rank_part ranks;

	*kv = deal(kind->n_kv_heads, rank, world);
	*q = (struct rank_part){ kv->from * each, kv->n * each };
	if (world <= kind->n_kv_heads)
		return;
	for (ranks = deal(world, g, kind->n_kv_heads); ranks.from + ranks.n <= rank; )
		ranks = deal(world, ++g, kind->n_kv_heads);
	*kv = (struct rank_part){ g, 1 };
	*q = deal(each, rank - ranks.from, ranks.n);
	q->from += g * each;
}

struct rank_part shape_columns(int32_t n, int32_t rank, int32_t world)
{
	return shape_deal(n, SHAPE_COLUMNS, rank, world);
}

int32_t shape_window(const struct sr_attn *kind)
{
	if (kind->bidirectional)
		return 0;
	return kind->window > 0 && (kind->chunk <= 0 || kind->window < kind->chunk) ? kind->window : kind->chunk;
}

/* The group that takes the next layer that looks back `window`, or -1. */
static int32_t next_group(const struct sr_limits *l, int32_t window, const int32_t *n)
{
	for (int32_t g = 0; g < l->n_groups; g++)
		if (l->n_groups == 1 || l->group[g].window == window)
			if (l->group[g].layers == 0 || n[g] < l->group[g].layers)
				return g;
	return -1;
}

int32_t shape_groups(struct kv_place *out, const struct sr_model *m, const struct sr_limits *l)
{
	int32_t n[SR_GROUPS_MAX] = { 0 }, most = 0, states = 0;

	if (l->n_groups == 1 && l->group[0].window > 0)
		for (int32_t i = 0; i < m->n_layers; i++)
			if (has_kv(m, i) && shape_window(kind_of(m, i)) != l->group[0].window)
				return -EINVAL;
	for (int32_t i = 0; i < m->n_layers; i++) {
		int32_t g;

		if (m->layer[i].mixer == SR_DELTA) {
			if (out)
				out[i] = (struct kv_place){ -1, states };
			states++;
			continue;
		}
		if (m->layer[i].kv_back) {
			if (out)
				out[i] = out[kv_of(m, i)];
			continue;
		}
		g = next_group(l, shape_window(kind_of(m, i)), n);
		if (g < 0)
			return -EINVAL;
		if (out)
			out[i] = (struct kv_place){ g, n[g] };
		most = larger(most, ++n[g]);
	}
	for (int32_t g = 0; g < l->n_groups; g++)
		if (!n[g] && states < m->n_layers)   /* a layer with a state alone, while a model is quantized, has no keys */
			return -EINVAL;
	return most;
}

int64_t shape_kv_most(const struct sr_model *m, const struct sr_limits *l)
{
	int64_t sum[SR_GROUPS_MAX] = { 0 }, most = 0;
	struct kv_place *place = calloc((size_t)m->n_layers + 1, sizeof(*place));

	if (!place || shape_groups(place, m, l) < 0) {
		free(place);
		return -1;
	}
	for (int32_t i = 0; i < m->n_layers; i++) {
		const struct sr_attn *kind = kind_of(m, i);

		if (m->layer[i].mixer == SR_DELTA || m->layer[i].kv_back)
			continue;
		sum[place[i].group] += (int64_t)kind->n_kv_heads * shape_kv(kind);
		most = sum[place[i].group] > most ? sum[place[i].group] : most;
	}
	free(place);
	return most;
}

int shape_of(struct rank_shape *out, const struct sr_model *m, int32_t rank, int32_t world, char *err,
             size_t errlen)
{
	const struct sr_attn *first = &m->kind[0];
	const struct sr_experts *x = &m->experts;
	const struct sr_delta *a = &m->delta;
	int32_t D = m->d_model, qkv = 0, attended = 0, latent = 0, heads = 0, ff = 0, least = INT32_MAX;

	bool beside = false;

	assert(world >= 1 && rank >= 0 && rank < world);
	for (int32_t i = 0; i < m->n_kinds; i++) {
		const struct sr_attn *kind = &m->kind[i];
		struct rank_part *q = &out->kind[i].heads, *kv = &out->kind[i].kv_heads;

		if (world > 1 && !sr_same_heads(kind, first))
			return refuse(-ENOTSUP, err, errlen, "%d query heads, %d KV heads of width %d in some layers, "
				"%d, %d and %d in others: they must be the same in all", first->n_heads,
				first->n_kv_heads, first->head_dim, kind->n_heads, kind->n_kv_heads, kind->head_dim);
		shape_heads(kind, rank, world, q, kv);
		least = q->n < least ? q->n : least;
		attended = larger(attended, q->n * (kind->latent ? kind->latent : kind->head_dim));
		qkv = larger(qkv, (q->n + 2 * kv->n + (kind->gate ? q->n : 0)) * kind->head_dim);
		if (!kind->latent)
			continue;
		latent = larger(latent, kind->q_rank + kind->head_dim);
		heads = larger(heads, q->n * larger(kind->v_dim, kind->q_dim + kind->head_dim - kind->latent));
	}
	if (a->v_heads && world > 1)
		return refuse(-ENOTSUP, err, errlen, "layers with a state cannot be divided among ranks yet");
	if (a->v_heads) {
		attended = larger(attended, a->v_heads * a->v_dim);
		qkv = larger(qkv, sr_delta_channels(a) + a->v_heads * (a->v_dim + 2));
	}
	for (int32_t l = 0; l < m->n_layers; l++) {
		struct rank_part p = shape_columns(m->layer[l].d_ff, rank, world);

		least = p.n < least ? p.n : least;
		ff = larger(ff, p.n);
		beside |= m->layer[l].ffn == SR_BESIDE;
	}
	out->vocab = shape_deal(m->n_vocab, SHAPE_ROWS, rank, world);
	if (out->vocab.n < 1 || least < 1)
		return refuse(-ENOTSUP, err, errlen, "%d ranks are too many: rank %d would hold no query head, no "
			"part of the feed-forward or no part of the vocabulary", world, rank);
	out->width[P_X] = out->width[P_Y] = out->width[P_Z] = D;
	out->width[P_QKV] = qkv;
	out->width[P_A] = attended;
	out->width[P_ACT] = larger(larger(ff, m->inputs), x->top * x->d_ff);
	out->width[P_GU] = 2 * out->width[P_ACT];
	out->width[P_SCORES] = x->n;
	out->width[P_OUT] = x->top * D;
	out->width[P_LATENT] = latent;
	out->width[P_HEADS] = heads;
	out->width[P_INPUTS] = m->n_layers * m->inputs;
	out->width[P_SIDE] = beside ? D : 0;
	out->width[P_LOGITS] = m->n_vocab; /* all of them, on every rank: each draws the same token */
	out->inputs = larger(larger(D, larger(attended, ff)), larger(latent, heads));
	out->outputs = larger(larger(D, out->vocab.n), larger(larger(qkv, heads), 2 * ff));
	return 0;
}
