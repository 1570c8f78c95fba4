/* net.h - the weights of a model as a back end holds them, and the passes over them: net_load()
 * hands their tensors to the back end at open, forward() computes a batch.  Both call only the verbs of ops.h.
 */
#ifndef SR_NET_H
#define SR_NET_H

#include <stddef.h>
#include <stdint.h>

#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Weights that a layer does not have are NULL. */
struct net_layer {
	struct weight *norm1, *qkv, *qn, *kn, *sinks, *o, *post1; /* the mixer's: SR_ATTEND */
	struct weight *conv, *rate, *dt, *o_norm;          /* SR_DELTA, which has norm1, qkv, o and post1, too */
	struct weight *latent, *q, *k_b, *v_b;             /* SR_LATENT, with qn, kn, o: q_a and kv_a; q_b, or q */
	struct weight *norm2, *gu, *down, *post2;          /* the feed-forward's: SR_GATED, SR_PLAIN */
	struct weight *router, *choice_bias, *shared_mix;  /* SR_EXPERTS; gu and down are the shared one's */
	struct weight *expert_gu, *expert_down;
	struct weight *router_norm, *expert_norm, *expert_post, *mlp_post, *expert_scale; /* SR_BESIDE */
	struct weight *in_down, *in_up, *in_post, *out_scale;
};

struct net {
	const struct sr_model *m;
	struct weight *embed, *norm, *head;
	struct weight *in_embed, *in_proj, *in_norm;       /* inputs for each layer */
	struct weight *positions, *types, *second_type;    /* added to embed: by position; a vector, or the other */
	struct weight *dense, *dense_norm, *labels, *labels_bias; /* sr_classifier */
	int32_t ranks;              /* 1: each place that a product reads is gathered from several ranks first; 0: one rank */
	struct net_layer *layer;    /* [n_layers] */
};

/* Bytes of all weights; with n given, the back end notes them, to read them next.  Or -errno and err. */
int64_t net_load(const struct ops *op, struct dev *d, struct net *n, const struct sr_model *m,
                 char *err, size_t errlen);
void net_free(struct net *n);   /* the table; the weights are the back end's */

/* One batch of T tokens, R results, logit_rows of them at a time, and P runs of pooled tokens.  yield, unless NULL,
 * is called between layers: inline mode.  NULL while a graph is captured. */
void forward(const struct ops *op, struct dev *d, const struct net *n, int T, int R, int P,
             int logit_rows, void (*yield)(void *ctx), void *ctx);

#ifdef __cplusplus
}
#endif
#endif
