/* share.c - what a rank holds of each tensor.  See share.h. */
#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "refuse.h"
#include "share.h"

/* Beyond Llama, what ranks can divide.  Not: norms over all heads of a token, whose sum would go over ranks, and
 * encoders, which are small. */
#define KNOWN (SR_HAS_LAYER_NORM | SR_HAS_NO_NORM | SR_HAS_RESIDUAL | SR_HAS_PARALLEL | SR_HAS_LATE_NORM | \
               SR_HAS_BARE_NORM | SR_HAS_V_NORM | SR_HAS_K_IS_V | SR_HAS_SINKS | SR_HAS_CHUNKS | SR_HAS_HEAT | \
               SR_HAS_SHARED_KV | SR_HAS_PLAIN_FFN | SR_HAS_OTHER_ACT | SR_HAS_FFN_BIAS | SR_HAS_FACTORS | \
               SR_HAS_NO_ROPE | SR_HAS_EXPERTS)

static struct rank_part times(struct rank_part p, int32_t by)
{
	return (struct rank_part){ p.from * by, p.n * by };
}

struct rank_part share_part(const struct sr_model *m, int32_t l, enum share by, int32_t rank, int32_t world)
{
	const struct sr_layer *y = &m->layer[l];
	const struct sr_attn *kind = &m->kind[y->kind];
	struct rank_part q, kv;

	switch (by) {
	case SHARE_HEADS:
	case SHARE_KV:
		shape_heads(kind, rank, world, &q, &kv);
		return times(by == SHARE_HEADS ? q : kv, kind->head_dim);
	case SHARE_FEED:
		return shape_columns(y->d_ff, rank, world);
	case SHARE_EXPERT:
		return shape_columns(m->experts.d_ff, rank, world);
	case SHARE_SHARED:
		return shape_columns(m->experts.d_shared, rank, world);
	case SHARE_WIDTH:
		return shape_columns(m->d_model, rank, world);
	case SHARE_VOCAB:
		return shape_deal(m->n_vocab, SHAPE_ROWS, rank, world);
	case SHARE_WHOLE:
		break;
	}
	return (struct rank_part){ 0, INT32_MAX };
}

/* ---- one tensor --------------------------------------------------------------------------------- */

struct cutting {
	const struct sr_model *m;
	struct sr_stored *spare;     /* where the next list of extents goes */
	int32_t l, rank, world;
	char *err;
	size_t errlen;
	int rc;
};

/* Are its outputs one after another, each in bytes of its own?  Then a part of it is a part of its bytes. */
static bool row_by_row(const struct sr_tensor *t)
{
	return !t->outputs && !t->transposed && !t->scale.bytes && !t->zero.bytes && !t->index.bytes;
}

/* The reader of such a tensor takes `n` outputs of those that are stored: number first + i * step. */
static void pick(struct sr_tensor *t, struct rank_part p, int32_t stored)
{
	int32_t step = t->outputs ? t->step : 1;

	t->first = (t->outputs ? t->first : 0) + p.from * step;
	t->outputs = t->outputs ? t->outputs : stored;
	t->step = step;
}

static void cut_extent(struct cutting *c, const struct sr_tensor *t, struct sr_extent *e, struct rank_part p)
{
	uint64_t row = e->bytes / (uint64_t)t->n;

	if (row * (uint64_t)t->n != e->bytes && !c->rc)
		c->rc = refuse(-EINVAL, c->err, c->errlen, "tensor %s has %d outputs in %llu bytes, which cannot be "
			"divided among ranks", t->name, t->n, (unsigned long long)e->bytes);
	e->offset += row * (uint64_t)p.from;
	e->bytes = row * (uint64_t)p.n;
}

static void cut_rows(struct cutting *c, struct sr_tensor *t, struct rank_part p)
{
	if (t->count > 1) {
		struct sr_stored *each = c->spare;

		c->spare += t->count;
		for (int32_t i = 0; i < t->count; i++) {
			each[i] = sr_stored_of(t, i);
			cut_extent(c, t, &each[i].data, p);
		}
		t->each = each;
	} else {
		cut_extent(c, t, &t->data, p);
	}
}

/* *t keeps the outputs of this rank.  A vector's outputs are its elements. */
static void cut_tensor(struct cutting *c, struct sr_tensor *t, enum share by)
{
	struct rank_part p = share_part(c->m, c->l, by, c->rank, c->world);
	bool vector = t->n == 1;
	int32_t n = vector ? t->k : t->n;

	if (t->type == SR_NONE || by == SHARE_WHOLE)
		return;
	if (t->run > 1 && !c->rc)
		c->rc = refuse(-ENOTSUP, c->err, c->errlen, "tensor %s is stored in runs of outputs of several tensors, which "
			"ranks cannot divide yet", t->name);
	if (p.from + p.n > n && !c->rc)
		c->rc = refuse(-EINVAL, c->err, c->errlen, "tensor %s has %d outputs, but rank %d of %d has those up to "
			"%d", t->name, n, c->rank, c->world, p.from + p.n);
	if (vector || !row_by_row(t))
		pick(t, p, n);
	else
		cut_rows(c, t, p);
	t->whole = n;
	*(vector ? &t->k : &t->n) = p.n;
}

/* ---- the model ------------------------------------------------------------------------------------- */

static void cut_layer(struct cutting *c, struct sr_layer *y)
{
	const struct { struct sr_tensor *t; enum share by; } all[] = {
		{ &y->q, SHARE_HEADS }, { &y->q_bias, SHARE_HEADS },
		{ &y->k, SHARE_KV }, { &y->k_bias, SHARE_KV }, { &y->v, SHARE_KV }, { &y->v_bias, SHARE_KV },
		{ &y->o, SHARE_WIDTH }, { &y->o_bias, SHARE_WIDTH },
		{ &y->gate, SHARE_FEED }, { &y->gate_bias, SHARE_FEED },
		{ &y->up, SHARE_FEED }, { &y->up_bias, SHARE_FEED },
		{ &y->down, SHARE_WIDTH }, { &y->down_bias, SHARE_WIDTH },
		{ &y->expert_gate, SHARE_EXPERT }, { &y->expert_gate_bias, SHARE_EXPERT },
		{ &y->expert_up, SHARE_EXPERT }, { &y->expert_up_bias, SHARE_EXPERT },
		{ &y->expert_down, SHARE_WIDTH }, { &y->expert_down_bias, SHARE_WIDTH },
		{ &y->shared_gate, SHARE_SHARED }, { &y->shared_up, SHARE_SHARED }, { &y->shared_down, SHARE_WIDTH },
	};
	const struct sr_attn *kind = &c->m->kind[y->kind];

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		cut_tensor(c, all[i].t, all[i].by);
	if (y->sinks.type != SR_NONE) {
		struct rank_part q, kv;

		shape_heads(kind, c->rank, c->world, &q, &kv);
		pick(&y->sinks, q, y->sinks.k);
		y->sinks.k = q.n;
	}
}

/* Extents that the experts' tensors need, of all layers. */
static size_t count_spare(const struct sr_model *m)
{
	size_t n = 0;

	for (int32_t l = 0; l < m->n_layers; l++) {
		const struct sr_layer *y = &m->layer[l];
		const struct sr_tensor *all[] = { &y->expert_gate, &y->expert_up, &y->expert_down };

		for (int i = 0; i < 3; i++)
			n += all[i]->type != SR_NONE ? (size_t)all[i]->count : 0;
	}
	return n;
}

static int check(const struct sr_model *m, int32_t rank, int32_t world, char *err, size_t errlen)
{
	struct rank_shape s;
	int rc = sr_beyond_refuse(m, KNOWN, "a model divided among ranks", err, errlen);

	if (!rc)
		rc = shape_of(&s, m, rank, world, err, errlen);
	if (rc)
		return rc;
	for (int32_t l = 0; l < m->n_layers; l++) {
		bool experts = m->layer[l].ffn == SR_EXPERTS;

		if (share_part(m, l, SHARE_WIDTH, rank, world).n < 1 ||
		    (experts && (share_part(m, l, SHARE_EXPERT, rank, world).n < 1 ||
		    (m->experts.d_shared && share_part(m, l, SHARE_SHARED, rank, world).n < 1))))
			return refuse(-ENOTSUP, err, errlen, "%d ranks are too many: rank %d would hold no columns of layer %d",
				world, rank, l);
	}
	return 0;
}

int share_model(struct sr_model *out, const struct sr_model *m, int32_t rank, int32_t world, char *err,
                size_t errlen)
{
	struct cutting c = { .m = m, .rank = rank, .world = world, .err = err, .errlen = errlen };
	size_t layers = (size_t)m->n_layers * sizeof(*m->layer);

	assert(world >= 1 && rank >= 0 && rank < world);
	*out = *m;
	out->layer = NULL;
	c.rc = check(m, rank, world, err, errlen);
	if (c.rc)
		return c.rc;
	out->layer = malloc(layers + count_spare(m) * sizeof(struct sr_stored));
	if (!out->layer)
		return refuse(-ENOMEM, err, errlen, "no memory for a table of %d layers", m->n_layers);
	memcpy(out->layer, m->layer, layers);
	c.spare = (struct sr_stored *)(out->layer + m->n_layers);
	for (c.l = 0; c.l < m->n_layers; c.l++)
		cut_layer(&c, &out->layer[c.l]);
	c.l = 0;
	cut_tensor(&c, &out->embed, SHARE_VOCAB);
	cut_tensor(&c, &out->head, SHARE_VOCAB);
	for (int32_t i = 0; i < m->n_kinds; i++) {
		struct rank_part q, kv;

		shape_heads(&m->kind[i], rank, world, &q, &kv);
		out->kind[i].n_heads = q.n;
		out->kind[i].n_kv_heads = kv.n;
	}
	if (c.rc) {
		free(out->layer);
		out->layer = NULL;
	}
	return c.rc;
}
