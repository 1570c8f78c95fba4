/* forward.c - the transformer, written once for all families.  What a model lacks is NULL or
 * 0, so the only decisions here are which layer, what it is made of, and which slice.
 * docs/model.md has the formulas. */
#include <stdbool.h>

#include "net.h"

/* A place of which each rank has computed its part */
static void gather(const struct ops *op, struct dev *d, const struct net *n, enum place p, int T)
{
	if (n->ranks)
		op->gather(d, p, T);
}

/* Z = latent attention of Y.  k_b is multiplied with queries and v_b with what attention makes, never with the
 * cache: so a prompt and an answer are summed up alike. */
static void run_latent(const struct ops *op, struct dev *d, const struct net *n, int l, int T)
{
	const struct net_layer *w = &n->layer[l];
	const struct sr_attn *kind = kind_of(n->m, l);
	const int query = kind->q_dim + kind->head_dim - kind->latent;

	op->matmul(d, P_LATENT, P_Y, w->latent, T);
	if (w->qn)
		op->norm(d, P_LATENT, w->qn, n->m->eps, T);
	op->matmul(d, P_HEADS, w->qn ? P_LATENT : P_Y, w->q, T);
	op->heads(d, P_QKV, kind->head_dim, P_HEADS, query, w->k_b, T);
	op->rope_store(d, l, kind, NULL, w->kn, n->m->eps, T);
	op->attend(d, l, kind, NULL, T);
	op->heads(d, P_HEADS, kind->v_dim, P_A, kind->latent, w->v_b, T);
	op->matmul(d, P_Z, P_HEADS, w->o, T);
}

/* Z = what the layer's mixer makes of Y */
static void run_mixer(const struct ops *op, struct dev *d, const struct net *n, int l, int T)
{
	const struct net_layer *w = &n->layer[l];
	const struct sr_attn *kind = kind_of(n->m, l);

	switch ((enum sr_mixer)n->m->layer[l].mixer) {
	case SR_ATTEND:
		op->matmul(d, P_QKV, P_Y, w->qkv, T);
		op->rope_store(d, kv_of(n->m, l) == l ? l : -1, kind, w->qn, w->kn, n->m->eps, T);
		op->attend(d, kv_of(n->m, l), kind, w->sinks, T);
		if (kind->gate)
			op->gate(d, kind, T);
		gather(op, d, n, P_A, T);
		op->matmul(d, P_Z, P_A, w->o, T);
		break;
	case SR_DELTA:
		op->matmul(d, P_QKV, P_Y, w->qkv, T);
		op->recur(d, l, &n->m->delta, &(struct recur_weights){ w->conv, w->rate, w->dt, w->o_norm }, n->m->eps, T);
		op->matmul(d, P_Z, P_A, w->o, T);
		break;
	case SR_LATENT:
		run_latent(op, d, n, l, T);
		break;
	}
	gather(op, d, n, P_Z, T);
}

/* Z = what the experts make of Y, and with them the one that computes every token */
static void run_experts(const struct ops *op, struct dev *d, const struct net *n, const struct net_layer *w, int T)
{
	const struct sr_experts *x = &n->m->experts;
	const enum sr_act act = (enum sr_act)n->m->act;
	const float limit = n->m->act_limit;

	if (w->gu) {
		op->matmul(d, P_GU, P_Y, w->gu, T);
		op->act_mul(d, SR_GATED, act, limit, x->d_shared, T);
		gather(op, d, n, P_ACT, T);
		op->matmul(d, P_Z, P_ACT, w->down, T);
	}
	op->matmul(d, P_SCORES, P_Y, w->router, T);
	op->route(d, x, w->choice_bias, T);
	op->matmul(d, P_GU, P_Y, w->expert_gu, T);
	op->act_mul(d, SR_GATED, act, limit, x->d_ff, T * x->top);
	gather(op, d, n, P_ACT, T * x->top);
	op->matmul(d, P_OUT, P_ACT, w->expert_down, T);
	op->combine(d, x, w->gu != NULL, w->shared_mix, T);
}

/* Z = the sum of what the feed-forward part makes of Y and what experts make of X, each normed */
static void run_beside(const struct ops *op, struct dev *d, const struct net *n, const struct net_layer *w, int d_ff,
                       int T)
{
	const struct sr_experts *x = &n->m->experts;
	const enum sr_act act = (enum sr_act)n->m->act;
	const float eps = n->m->eps, limit = n->m->act_limit;

	op->matmul(d, P_GU, P_Y, w->gu, T);
	op->act_mul(d, SR_GATED, act, limit, d_ff, T);
	op->matmul(d, P_SIDE, P_ACT, w->down, T);
	op->norm(d, P_SIDE, w->mlp_post, eps, T);
	op->add_norm(d, 1, NULL, w->router_norm, SR_RMS, eps, 1, T);
	op->matmul(d, P_SCORES, P_Y, w->router, T);
	op->add_norm(d, 1, NULL, w->expert_norm, SR_RMS, eps, 1, T);
	op->route(d, x, NULL, T);
	op->weigh(d, w->expert_scale, T);
	op->matmul(d, P_GU, P_Y, w->expert_gu, T);
	op->act_mul(d, SR_GATED, act, limit, x->d_ff, T * x->top);
	op->matmul(d, P_OUT, P_ACT, w->expert_down, T);
	op->combine(d, x, 0, NULL, T);
	op->norm(d, P_Z, w->expert_post, eps, T);
	op->sum(d, P_Z, P_SIDE, T);
}

/* Z = what its feed-forward part makes of Y */
static void run_ffn(const struct ops *op, struct dev *d, const struct net *n, int l, int T)
{
	const struct net_layer *w = &n->layer[l];
	const struct sr_layer *y = &n->m->layer[l];

	switch ((enum sr_ffn)y->ffn) {
	case SR_GATED:
	case SR_PLAIN:
		op->matmul(d, P_GU, P_Y, w->gu, T);
		op->act_mul(d, (enum sr_ffn)y->ffn, (enum sr_act)n->m->act, n->m->act_limit, y->d_ff, T);
		gather(op, d, n, P_ACT, T);
		op->matmul(d, P_Z, P_ACT, w->down, T);
		break;
	case SR_EXPERTS:
		run_experts(op, d, n, w, T);
		break;
	case SR_BESIDE:
		run_beside(op, d, n, w, y->d_ff, T);
		break;
	}
	gather(op, d, n, P_Z, T);
}

/* A layer without a norm there passes X on as it is. */
static enum sr_norm how(const struct net *n, const struct weight *norm)
{
	return norm ? (enum sr_norm)n->m->norm_kind : SR_SAME;
}

/* INPUTS of all layers, from the embedding in X */
static void make_inputs(const struct ops *op, struct dev *d, const struct net *n, int T)
{
	op->add_norm(d, 1, NULL, NULL, SR_SAME, n->m->eps, 1, T);
	op->matmul(d, P_INPUTS, P_Y, n->in_proj, T);
	op->inputs(d, n->in_embed, n->in_norm, n->m->inputs, n->m->eps, T);
}

/* X after the layer, with its own input and scale; false: it has neither, and Z is not added yet. */
static bool end_layer(const struct ops *op, struct dev *d, const struct net *n, int l, float by, int T)
{
	const struct net_layer *w = &n->layer[l];
	const float eps = n->m->eps;

	if (!w->in_down && !w->out_scale)
		return false;
	op->add_norm(d, 0, w->post2, NULL, w->in_down ? SR_SAME : SR_RMS, eps, by, T);
	if (w->in_down) {
		op->matmul(d, P_GU, P_Y, w->in_down, T);
		op->input_mul(d, l, (enum sr_act)n->m->act, n->m->inputs, T);
		op->matmul(d, P_Z, P_ACT, w->in_up, T);
		op->add_norm(d, 0, w->in_post, NULL, SR_RMS, eps, by, T);
	}
	if (w->out_scale)
		op->scale(d, w->out_scale, T);
	return true;
}

/* The logits of labels, from the vectors that pooling left in Y */
static void classify(const struct ops *op, struct dev *d, const struct net *n, int P)
{
	const enum sr_head_act act = (enum sr_head_act)n->m->classifier.act;

	if (n->dense)
		op->matmul(d, P_Z, P_Y, n->dense, P);
	op->label(d, n->dense ? P_Z : P_Y, act, n->dense_norm, n->labels, n->labels_bias, n->m->eps, P);
}

void forward(const struct ops *op, struct dev *d, const struct net *n, int T, int R, int P,
             int logit_rows, void (*yield)(void *ctx), void *ctx)
{
	const struct sr_model *m = n->m;
	const enum sr_norm kind = (enum sr_norm)m->norm_kind;
	const float by = m->residual != 0 ? m->residual : 1;
	const struct weight *post = NULL; /* the norm of what the previous sublayer left in Z */
	bool ended = true;                /* nothing is left there */

	op->embed(d, n->embed, m->embed_scale, T);
	if (m->inputs)
		make_inputs(op, d, n, T);
	for (int l = 0; l < m->n_layers; l++) {
		const struct net_layer *w = &n->layer[l];

		op->add_norm(d, ended, post, w->norm1, how(n, w->norm1), m->eps, by, T);
		run_mixer(op, d, n, l, T);
		op->add_norm(d, 0, w->post1, w->norm2, m->layer[l].parallel ? kind : how(n, w->norm2), m->eps, by, T);
		run_ffn(op, d, n, l, T);
		post = w->post2;
		ended = end_layer(op, d, n, l, by, T);
		if (yield)
			yield(ctx);
	}
	op->add_norm(d, ended, post, NULL, kind, m->eps, by, T); /* NULL: X only */
	if (P > 0)
		op->pool(d, n->norm, kind, m->eps, P);
	if (P > 0 && n->labels)
		classify(op, d, n, P);
	for (int i = 0; i < R; i += logit_rows) {
		int r = R - i < logit_rows ? R - i : logit_rows;

		op->pick_norm(d, n->norm, kind, m->eps, i, r);
		op->matmul(d, P_LOGITS, P_Y, n->head, r);
		gather(op, d, n, P_LOGITS, r);
		op->sample(d, m->logit_cap, i, r);
		if (yield)
			yield(ctx);
	}
}
