/* forward.c - the transformer: llama, mistral, qwen2, qwen3, gemma2, gemma3.  What a model
 * lacks is NULL or 0, so the only decisions here are which layer and which slice. */
#include "ops.h"

void forward(const struct ops *op, struct dev *d, const struct net *n, int T, int R,
             int logit_rows, void (*yield)(void *ctx), void *ctx)
{
	const struct sr_model *m = n->m;
	const struct weight *post = NULL; /* norm of what the sublayer before left in Z */

	op->embed(d, n->embed, m->embed_scale, T);
	for (int l = 0; l < m->L; l++) {
		const struct net_layer *w = &n->layer[l];
		const struct sr_layer *y = &m->layer[l];

		op->add_norm(d, l == 0, post, w->norm1, m->eps, T);
		op->matmul(d, P_QKV, P_Y, w->qkv, T);
		op->rope_store(d, l, &m->rope[y->rope], w->qn, w->kn, m->eps, T);
		op->attend(d, l, m->attn_scale, m->attn_cap, y->window, T);
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
