/* beyond.c - what a model has beyond the first families, so that a back end which does not compute it refuses
 * the model by name. */
#include <errno.h>
#include <stdio.h>

#include "model.h"

static unsigned of_kind(const struct sr_attn *k)
{
	return (k->qk_norm & SR_QK_ROW ? SR_HAS_ROW_NORM : 0u) | (k->qk_norm & SR_QK_LATE ? SR_HAS_LATE_NORM : 0u) |
	       (k->qk_norm & SR_QK_BARE ? SR_HAS_BARE_NORM : 0u) | (k->v_norm ? SR_HAS_V_NORM : 0u) |
	       (k->k_is_v ? SR_HAS_K_IS_V : 0u) | (k->chunk ? SR_HAS_CHUNKS : 0u) |
	       (k->bidirectional ? SR_HAS_BIDIRECTIONAL : 0u) | (k->heat != 0 ? SR_HAS_HEAT : 0u) |
	       (k->latent ? SR_HAS_LATENT : 0u) | (k->rope.kind == SR_ROPE_FACTORS ? SR_HAS_FACTORS : 0u) |
	       (k->rope.kind == SR_ROPE_NONE ? SR_HAS_NO_ROPE : 0u) | (k->gate ? SR_HAS_GATE : 0u);
}

static unsigned of_layer(const struct sr_layer *y)
{
	return (y->norm1.type == SR_NONE || (y->norm2.type == SR_NONE && !y->parallel) ? SR_HAS_NO_NORM : 0u) |
	       (y->parallel ? SR_HAS_PARALLEL : 0u) | (y->kv_back ? SR_HAS_SHARED_KV : 0u) |
	       (y->sinks.type != SR_NONE ? SR_HAS_SINKS : 0u) | (y->ffn == SR_PLAIN ? SR_HAS_PLAIN_FFN : 0u) |
	       (y->ffn == SR_EXPERTS ? SR_HAS_EXPERTS : 0u) | (y->ffn == SR_BESIDE ? SR_HAS_EXPERTS | SR_HAS_BESIDE : 0u) |
	       (y->out_scale.type != SR_NONE ? SR_HAS_OUT_SCALE : 0u) | (y->mixer == SR_DELTA ? SR_HAS_STATE : 0u) |
	       (y->gate_bias.type != SR_NONE || y->up_bias.type != SR_NONE || y->down_bias.type != SR_NONE
	        ? SR_HAS_FFN_BIAS : 0u);
}

unsigned sr_beyond(const struct sr_model *m)
{
	unsigned has = (m->norm_kind == SR_LAYER ? SR_HAS_LAYER_NORM : 0u) |
	               (m->residual != 0 && m->residual != 1 ? SR_HAS_RESIDUAL : 0u) |
	               (m->act > SR_GELU_TANH ? SR_HAS_OTHER_ACT : 0u) | (m->norm_after ? SR_HAS_NORM_AFTER : 0u) |
	               (m->positions.type != SR_NONE ? SR_HAS_POSITIONS : 0u);

	has |= (m->inputs ? SR_HAS_INPUTS : 0u) | (m->classifier.n_labels ? SR_HAS_LABELS : 0u);
	for (int32_t i = 0; i < m->n_kinds; i++) {
		has |= of_kind(&m->kind[i]);
		if (!sr_same_heads(&m->kind[0], &m->kind[i]))
			has |= SR_HAS_WIDTHS;
	}
	for (int32_t l = 0; l < m->n_layers; l++)
		has |= of_layer(&m->layer[l]);
	return has;
}

int sr_beyond_refuse(const struct sr_model *m, unsigned known, const char *who, char *err, size_t errlen)
{
	static const char *const names[] = {           /* by bit of enum sr_beyond */
		"norms that take the mean off (LayerNorm)", "layers without a norm before them",
		"a residual multiplier", "attention and feed-forward in parallel", "norms over whole rows of q and k",
		"norms of q and k after rope", "norms of q and k without weights", "a norm of v", "keys that are values",
		"attention sinks", "attention in chunks", "attention to later positions", "a temperature of queries",
		"layers that share a KV cache", "a feed-forward part without a gate", "an activation other than silu and "
		"gelu_tanh", "biases of the feed-forward part", "rope with a factor for each frequency",
		"layers without rope", "experts", "norms behind the sums", "learned positions", "a gate on what is attended",
		"layers with a state instead of keys and values (the gated delta rule)", "latent keys and values",
		"heads of other sizes in some layers", "experts beside a feed-forward part", "inputs for each layer",
		"a scale of what a layer makes", "a classifier of whole prompts",
	};
	unsigned lacks = sr_beyond(m) & ~known;

	if (!lacks)
		return 0;
	snprintf(err, errlen, "%s has %s, which %s does not compute yet", m->arch, names[__builtin_ctz(lacks)], who);
	return -ENOTSUP;
}
