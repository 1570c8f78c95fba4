/* net.c - the weights of a model are handed to the back end, tensor by tensor.  See net.h.
 *
 * What multiplies the same input is stacked into one weight: q, k and v, with what gates them; gate and up.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "net.h"

/* A network that is being loaded, or only counted. */
struct loading {
	const struct ops *op;
	struct dev *d;
	char *err;
	size_t errlen;
	int64_t bytes;          /* so far; or -errno, and the rest is skipped */
};

static void add_stacked(struct loading *ld, struct weight **out, const struct sr_tensor *const *part,
                        const struct sr_tensor *const *bias, int n)
{
	const struct sr_tensor *has[6], *has_bias[6];
	int64_t bytes;
	int given = 0;

	if (out)
		*out = NULL;
	for (int i = 0; i < n; i++) { /* v, or k and v, may be missing; gate, too */
		if (part[i]->type == SR_NONE)
			continue;
		has[given] = part[i];
		has_bias[given++] = bias && bias[i]->type != SR_NONE ? bias[i] : NULL;
	}
	if (ld->bytes < 0 || !given)
		return;
	part = has;
	n = given;
	bytes = ld->op->weight(ld->d, out, part, has_bias, n, ld->err, ld->errlen);
	ld->bytes = bytes < 0 ? bytes : ld->bytes + bytes;
}

static void add_tensor(struct loading *ld, struct weight **out, const struct sr_tensor *t)
{
	add_stacked(ld, out, &t, NULL, 1);
}

static void add_with_bias(struct loading *ld, struct weight **out, const struct sr_tensor *t,
                          const struct sr_tensor *bias)
{
	add_stacked(ld, out, &t, &bias, 1);
}

static void add_attention(struct loading *ld, struct net_layer *w, const struct sr_layer *y)
{
	static const struct sr_tensor none;
	const struct sr_tensor *qkv[] = { &y->q, &y->k, &y->v, &y->o_gate };
	const struct sr_tensor *qkv_bias[] = { &y->q_bias, &y->k_bias, &y->v_bias, &none };

	add_with_bias(ld, w ? &w->norm1 : NULL, &y->norm1, &y->norm1_bias);
	add_stacked(ld, w ? &w->qkv : NULL, qkv, qkv_bias, 4);
	add_tensor(ld, w ? &w->qn : NULL, &y->q_norm);
	add_tensor(ld, w ? &w->kn : NULL, &y->k_norm);
	add_tensor(ld, w ? &w->sinks : NULL, &y->sinks);
	add_with_bias(ld, w ? &w->o : NULL, &y->o, &y->o_bias);
	add_tensor(ld, w ? &w->post1 : NULL, &y->post1);
}

static void add_delta(struct loading *ld, struct net_layer *w, const struct sr_layer *y)
{
	const struct sr_tensor *all[] = { &y->q, &y->k, &y->v, &y->o_gate, &y->beta, &y->alpha };

	add_with_bias(ld, w ? &w->norm1 : NULL, &y->norm1, &y->norm1_bias);
	add_stacked(ld, w ? &w->qkv : NULL, all, NULL, 6);
	add_tensor(ld, w ? &w->conv : NULL, &y->conv);
	add_tensor(ld, w ? &w->rate : NULL, &y->rate);
	add_tensor(ld, w ? &w->dt : NULL, &y->dt);
	add_tensor(ld, w ? &w->o_norm : NULL, &y->o_norm);
	add_tensor(ld, w ? &w->o : NULL, &y->o);
	add_tensor(ld, w ? &w->post1 : NULL, &y->post1);
}

static void add_latent(struct loading *ld, struct net_layer *w, const struct sr_layer *y)
{
	const struct sr_tensor *down[] = { &y->q_a, &y->kv_a };

	add_with_bias(ld, w ? &w->norm1 : NULL, &y->norm1, &y->norm1_bias);
	add_stacked(ld, w ? &w->latent : NULL, down, NULL, 2);
	add_tensor(ld, w ? &w->qn : NULL, &y->q_a_norm);
	add_tensor(ld, w ? &w->q : NULL, &y->q);
	add_tensor(ld, w ? &w->k_b : NULL, &y->k_b);
	add_tensor(ld, w ? &w->kn : NULL, &y->kv_a_norm);
	add_tensor(ld, w ? &w->v_b : NULL, &y->v_b);
	add_tensor(ld, w ? &w->o : NULL, &y->o);
	add_tensor(ld, w ? &w->post1 : NULL, &y->post1);
}

static void add_ffn(struct loading *ld, struct net_layer *w, const struct sr_layer *y)
{
	const struct sr_tensor *gu[] = { &y->gate, &y->up };
	const struct sr_tensor *gu_bias[] = { &y->gate_bias, &y->up_bias };

	add_with_bias(ld, w ? &w->norm2 : NULL, &y->norm2, &y->norm2_bias);
	add_stacked(ld, w ? &w->gu : NULL, gu, gu_bias, 2);
	add_with_bias(ld, w ? &w->down : NULL, &y->down, &y->down_bias);
	add_tensor(ld, w ? &w->post2 : NULL, &y->post2);
}

static void add_experts(struct loading *ld, struct net_layer *w, const struct sr_layer *y)
{
	const struct sr_tensor *gu[] = { &y->expert_gate, &y->expert_up };
	const struct sr_tensor *gu_bias[] = { &y->expert_gate_bias, &y->expert_up_bias };
	const struct sr_tensor *shared[] = { &y->shared_gate, &y->shared_up };

	add_with_bias(ld, w ? &w->norm2 : NULL, &y->norm2, &y->norm2_bias);
	add_with_bias(ld, w ? &w->router : NULL, &y->router, &y->router_bias);
	add_tensor(ld, w ? &w->choice_bias : NULL, &y->choice_bias);
	add_stacked(ld, w ? &w->gu : NULL, shared, NULL, 2);
	add_tensor(ld, w ? &w->down : NULL, &y->shared_down);
	add_tensor(ld, w ? &w->shared_mix : NULL, &y->shared_mix);
	add_stacked(ld, w ? &w->expert_gu : NULL, gu, gu_bias, 2);
	add_with_bias(ld, w ? &w->expert_down : NULL, &y->expert_down, &y->expert_down_bias);
	add_tensor(ld, w ? &w->post2 : NULL, &y->post2);
}

/* Experts beside a feed-forward part */
static void add_beside(struct loading *ld, struct net_layer *w, const struct sr_layer *y)
{
	const struct sr_tensor *gu[] = { &y->expert_gate, &y->expert_up };

	add_tensor(ld, w ? &w->mlp_post : NULL, &y->mlp_post);
	add_tensor(ld, w ? &w->router_norm : NULL, &y->router_norm);
	add_tensor(ld, w ? &w->router : NULL, &y->router);
	add_tensor(ld, w ? &w->expert_scale : NULL, &y->expert_scale);
	add_tensor(ld, w ? &w->expert_norm : NULL, &y->expert_norm);
	add_stacked(ld, w ? &w->expert_gu : NULL, gu, NULL, 2);
	add_tensor(ld, w ? &w->expert_down : NULL, &y->expert_down);
	add_tensor(ld, w ? &w->expert_post : NULL, &y->expert_post);
}

static void add_layer(struct loading *ld, struct net_layer *w, const struct sr_layer *y)
{
	switch ((enum sr_mixer)y->mixer) {
	case SR_ATTEND:
		add_attention(ld, w, y);
		break;
	case SR_DELTA:
		add_delta(ld, w, y);
		break;
	case SR_LATENT:
		add_latent(ld, w, y);
		break;
	}
	switch ((enum sr_ffn)y->ffn) {
	case SR_GATED:
	case SR_PLAIN:
		add_ffn(ld, w, y);
		break;
	case SR_EXPERTS:
		add_experts(ld, w, y);
		break;
	case SR_BESIDE:
		add_ffn(ld, w, y);
		add_beside(ld, w, y);
		break;
	}
	add_tensor(ld, w ? &w->in_down : NULL, &y->in_down);
	add_tensor(ld, w ? &w->in_up : NULL, &y->in_up);
	add_tensor(ld, w ? &w->in_post : NULL, &y->in_post);
	add_tensor(ld, w ? &w->out_scale : NULL, &y->out_scale);
}

static void add_classifier(struct loading *ld, struct net *n, const struct sr_classifier *c)
{
	add_with_bias(ld, n ? &n->dense : NULL, &c->dense, &c->dense_bias);
	add_with_bias(ld, n ? &n->dense_norm : NULL, &c->norm, &c->norm_bias);
	add_tensor(ld, n ? &n->labels : NULL, &c->labels);
	add_tensor(ld, n ? &n->labels_bias : NULL, &c->labels_bias);
}

int64_t net_load(const struct ops *op, struct dev *d, struct net *n, const struct sr_model *m,
                 char *err, size_t errlen)
{
	struct loading ld = { .op = op, .d = d, .err = err, .errlen = errlen };
	int tied = m->head.type == SR_NONE;

	if (n) {
		*n = (struct net){ .m = m, .layer = calloc((size_t)m->n_layers, sizeof(*n->layer)) };
		if (!n->layer) {
			snprintf(err, errlen, "no memory for a table of %d layers", m->n_layers);
			return -ENOMEM;
		}
	}
	add_tensor(&ld, n ? &n->embed : NULL, &m->embed);
	add_tensor(&ld, n ? &n->positions : NULL, &m->positions);
	add_tensor(&ld, n ? &n->types : NULL, &m->types);
	add_tensor(&ld, n ? &n->second_type : NULL, &m->second_type);
	add_tensor(&ld, n ? &n->in_embed : NULL, &m->in_embed);
	add_tensor(&ld, n ? &n->in_proj : NULL, &m->in_proj);
	add_tensor(&ld, n ? &n->in_norm : NULL, &m->in_norm);
	for (int l = 0; l < m->n_layers; l++)
		add_layer(&ld, n ? &n->layer[l] : NULL, &m->layer[l]);
	add_with_bias(&ld, n ? &n->norm : NULL, &m->norm, &m->norm_bias);
	add_tensor(&ld, n ? &n->head : NULL, &m->head);
	add_classifier(&ld, n, &m->classifier);
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
