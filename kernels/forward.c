/* forward.c - the transformer, written once for all families.  What a model lacks is NULL or
 * 0, so the only decisions here are which layer, what it is made of, and which slice.
 * docs/model.md has the formulas. */
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
	}
	gather(op, d, n, P_Z, T);
}

/* A layer without a norm there passes X on as it is. */
static enum sr_norm how(const struct net *n, const struct weight *norm)
{
	return norm ? (enum sr_norm)n->m->norm_kind : SR_SAME;
}

void forward(const struct ops *op, struct dev *d, const struct net *n, int T, int R, int P,
             int logit_rows, void (*yield)(void *ctx), void *ctx)
{
	const struct sr_model *m = n->m;
	const enum sr_norm kind = (enum sr_norm)m->norm_kind;
	const float by = m->residual != 0 ? m->residual : 1;
	const struct weight *post = NULL; /* the norm of what the previous sublayer left in Z */

	op->embed(d, n->embed, m->embed_scale, T);
	for (int l = 0; l < m->n_layers; l++) {
		const struct net_layer *w = &n->layer[l];

		op->add_norm(d, l == 0, post, w->norm1, how(n, w->norm1), m->eps, by, T);
		run_mixer(op, d, n, l, T);
		op->add_norm(d, 0, w->post1, w->norm2, m->layer[l].parallel ? kind : how(n, w->norm2), m->eps, by, T);
		run_ffn(op, d, n, l, T);
		post = w->post2;
		if (yield)
			yield(ctx);
	}
	op->add_norm(d, 0, post, NULL, kind, m->eps, by, T); /* NULL: X only */
	if (P > 0)
		op->pool(d, n->norm, kind, m->eps, P);
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
