/* forward.c - the transformer, written once for all families.  What a model lacks is NULL or
 * 0, so the only decisions here are which layer and which slice.  docs/model.md has the
 * formulas. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "ops.h"

/* A network that is being loaded, or only counted. */
struct load {
	const struct ops *op;
	struct dev *d;
	const struct sr_source *src;
	char *err;
	size_t errlen;
	int64_t bytes;          /* so far; or -errno, and the rest is skipped */
};

static void stack(struct load *ld, struct weight **out, const struct sr_tensor *const *part,
                  const struct sr_tensor *const *bias, int n, enum share how)
{
	const struct sr_tensor *has_bias[3];
	int64_t bytes;

	if (out)
		*out = NULL;
	if (ld->bytes < 0 || part[0]->type == SR_NONE)
		return;
	for (int i = 0; i < n; i++)
		has_bias[i] = bias && bias[i]->type != SR_NONE ? bias[i] : NULL;
	bytes = ld->op->weight(ld->d, out, part, has_bias, n, how, ld->src, ld->err, ld->errlen);
	ld->bytes = bytes < 0 ? bytes : ld->bytes + bytes;
}

static void one(struct load *ld, struct weight **out, const struct sr_tensor *t, enum share how)
{
	stack(ld, out, &t, NULL, 1, how);
}

static void layer(struct load *ld, struct net_layer *w, const struct sr_layer *y)
{
	const struct sr_tensor *qkv[] = { &y->q, &y->k, &y->v };
	const struct sr_tensor *qkv_bias[] = { &y->q_bias, &y->k_bias, &y->v_bias };
	const struct sr_tensor *gu[] = { &y->gate, &y->up };
	const struct sr_tensor *o = &y->o, *o_bias = &y->o_bias;

	one(ld, w ? &w->norm1 : NULL, &y->norm1, WHOLE);
	stack(ld, w ? &w->qkv : NULL, qkv, qkv_bias, 3, BY_N);
	one(ld, w ? &w->qn : NULL, &y->q_norm, WHOLE);
	one(ld, w ? &w->kn : NULL, &y->k_norm, WHOLE);
	stack(ld, w ? &w->o : NULL, &o, &o_bias, 1, BY_K);
	one(ld, w ? &w->post1 : NULL, &y->post1, WHOLE);
	one(ld, w ? &w->norm2 : NULL, &y->norm2, WHOLE);
	stack(ld, w ? &w->gu : NULL, gu, NULL, 2, BY_N);
	one(ld, w ? &w->down : NULL, &y->down, BY_K);
	one(ld, w ? &w->post2 : NULL, &y->post2, WHOLE);
}

int64_t net_load(const struct ops *op, struct dev *d, struct net *n, const struct sr_model *m,
                 const struct sr_source *src, char *err, size_t errlen)
{
	struct load ld = { .op = op, .d = d, .src = src, .err = err, .errlen = errlen };
	int tied = m->head.type == SR_NONE;

	if (n) {
		*n = (struct net){ .m = m, .layer = calloc((size_t)m->n_layers, sizeof(*n->layer)) };
		if (!n->layer) {
			snprintf(err, errlen, "no memory for a table of %d layers", m->n_layers);
			return -ENOMEM;
		}
	}
	one(&ld, n ? &n->embed : NULL, &m->embed, tied ? BY_N : WHOLE);
	for (int l = 0; l < m->n_layers; l++)
		layer(&ld, n ? &n->layer[l] : NULL, &m->layer[l]);
	one(&ld, n ? &n->norm : NULL, &m->norm, WHOLE);
	one(&ld, n ? &n->head : NULL, &m->head, BY_N);
	if (n && tied)
		n->head = n->embed;
	if (n && ld.bytes < 0)
		net_free(n);
	return ld.bytes;
}

void net_free(struct net *n)
{
	free(n->layer);
	n->layer = NULL;
}

void forward(const struct ops *op, struct dev *d, const struct net *n, int T, int R,
             int logit_rows, void (*yield)(void *ctx), void *ctx)
{
	const struct sr_model *m = n->m;
	const struct weight *post = NULL; /* the norm of what the previous sublayer left in Z */

	op->embed(d, n->embed, m->embed_scale, T);
	for (int l = 0; l < m->n_layers; l++) {
		const struct net_layer *w = &n->layer[l];
		const struct sr_attn *kind = kind_of(m, l);

		op->add_norm(d, l == 0, post, w->norm1, m->eps, T);
		op->matmul(d, P_QKV, P_Y, w->qkv, T);
		op->rope_store(d, l, kind, w->qn, w->kn, m->eps, T);
		op->attend(d, l, kind, T);
		op->matmul(d, P_Z, P_A, w->o, T);
		op->reduce(d, P_Z, T);

		op->add_norm(d, 0, w->post1, w->norm2, m->eps, T);
		op->matmul(d, P_GU, P_Y, w->gu, T);
		op->act_mul(d, (enum sr_act)m->act, T);
		op->matmul(d, P_Z, P_ACT, w->down, T);
		op->reduce(d, P_Z, T);
		post = w->post2;
		if (yield)
			yield(ctx);
	}
	op->add_norm(d, 0, post, NULL, m->eps, T); /* NULL: X only */
	for (int i = 0; i < R; i += logit_rows) {
		int r = R - i < logit_rows ? R - i : logit_rows;

		op->pick_norm(d, n->norm, m->eps, i, r);
		op->matmul(d, P_LOGITS, P_Y, n->head, r);
		op->sample(d, m->logit_cap, i, r);
		if (yield)
			yield(ctx);
	}
}
