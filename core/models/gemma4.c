/* models/gemma4.c - what only Gemma 4 has: heads of other sizes in layers with a window, layers that read another
 * one's keys and values, inputs for each layer, experts beside the feed-forward part, a scale of what a layer makes.
 *
 * kind[0] is that of layers that attend to all (global_head_dim wide), kind[1] of those with a window.
 */
#include "impl.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STILL 1e30f                /* what a frequency is divided by so that its pair stands still */

/* ---- settings ----------------------------------------------------------------------------------- */

/* Value l of a setting that is a number, or a list of one for each layer.  -1: there is none. */
static int64_t gguf_each(struct opening *o, const char *key, int32_t l)
{
	const struct gguf_value *v;
	char name[96];
	uint64_t u = 0;
	uint32_t i;

	snprintf(name, sizeof(name), "%s.%s", o->m->arch, key);
	v = gguf_find(o->g, name);
	model_note_asked(o, false, key);
	if (!v)
		return -1;
	if (v->type != GGUF_ARRAY)
		return gguf_u64(o->g, name, &u) == 0 && u <= INT32_MAX ? (int64_t)u : -1;
	if (v->n != (uint64_t)o->m->n_layers)
		return -1;
	if (v->item == GGUF_BOOL)
		return v->data[l] != 0;
	if (v->item != GGUF_I32 && v->item != GGUF_U32)
		return -1;
	memcpy(&i, v->data + 4 * (size_t)l, 4);
	return i <= INT32_MAX ? (int64_t)i : -1;
}

static int gguf_sizes(struct opening *o, struct sr_attn *kind)
{
	static const char window[] = "attention.sliding_window_pattern", heads[] = "attention.head_count_kv";
	int32_t wide[2] = { 0, 0 }, kv[2] = { 0, 0 }, same = 0;
	int rc;

	if ((rc = model_int(o, (struct setting){ "attention.key_length", "" }, 2, 1024, &wide[0])) != 0 ||
	    (rc = model_int(o, (struct setting){ "attention.key_length_swa", "" }, 2, 1024, &wide[1])) != 0)
		return rc < 0 ? rc : model_fail(o, -EINVAL, "%s.attention.key_length or key_length_swa is missing", o->m->arch);
	for (int i = 0; i < 2; i++) {
		const char *key = i ? "attention.value_length_swa" : "attention.value_length";

		same = wide[i];
		if ((rc = model_int(o, (struct setting){ key, "" }, 2, 1024, &same)) < 0)
			return rc;
		if (same != wide[i])
			return model_fail(o, -ENOTSUP, "%s.%s is %d; %d, as for keys, is supported", o->m->arch, key, same,
			                  wide[i]);
	}
	for (int32_t l = 0; l < o->m->n_layers; l++) {
		int64_t near = gguf_each(o, window, l), n = gguf_each(o, heads, l);

		if (near < 0 || near > 1 || n < 1 || n > 4096 || (kv[near] && kv[near] != n))
			return model_fail(o, -EINVAL, "%s.%s and %s: layer %d has %lld KV heads, other layers like it %d", o->m->arch,
			                  window, heads, l, (long long)n, near < 0 || near > 1 ? 0 : kv[near]);
		kv[near] = (int32_t)n;
	}
	kind->head_dim = wide[0];
	kind->n_kv_heads = kv[0] ? kv[0] : kv[1];
	o->near.head_dim = wide[1];
	o->near.n_kv_heads = kv[1] ? kv[1] : kv[0];
	return 0;
}

/* transformers 5 writes per_layer_config: what layers that attend to all have otherwise. */
static int hf_each_layer(struct opening *o, struct sr_attn *kind)
{
	const json_t *all = model_ask(o, o->config, "per_layer_config"), *one;
	const char *layer;

	json_object_foreach((json_t *)(uintptr_t)all, layer, one) {
		const json_t *wide = json_object_get(one, "head_dim"), *kv = json_object_get(one, "num_key_value_heads");

		if (json_object_size(one) != (size_t)(wide != NULL) + (size_t)(kv != NULL) || !json_equal(one,
		    json_object_iter_value(json_object_iter((json_t *)(uintptr_t)all))) ||
		    (wide && !(json_integer_value(wide) >= 2 && json_integer_value(wide) <= 1024)) ||
		    (kv && !(json_integer_value(kv) >= 1 && json_integer_value(kv) <= 4096)))
			return model_fail(o, -ENOTSUP, "per_layer_config.%.20s: supported are head_dim and num_key_value_heads, alike "
			                  "in all layers that are named", layer);
		kind->head_dim = wide ? (int32_t)json_integer_value(wide) : kind->head_dim;
		kind->n_kv_heads = kv ? (int32_t)json_integer_value(kv) : kind->n_kv_heads;
	}
	return 0;
}

static int hf_sizes(struct opening *o, struct sr_attn *kind)
{
	const bool same = json_is_true(model_ask(o, o->config, "attention_k_eq_v"));
	int32_t v = 0;
	int rc;

	if ((rc = model_int(o, (struct setting){ "", "head_dim" }, 2, 1024, &o->near.head_dim)) < 0 ||
	    (rc = model_int(o, (struct setting){ "", "num_key_value_heads" }, 1, 1 << 12, &o->near.n_kv_heads)) < 0 ||
	    (rc = model_int(o, (struct setting){ "", "global_head_dim" }, 2, 1024, &kind->head_dim)) < 0)
		return rc;
	if (!o->near.head_dim || !o->near.n_kv_heads || !kind->head_dim)
		return model_fail(o, -EINVAL, "head_dim, num_key_value_heads and global_head_dim must not be null");
	kind->n_kv_heads = o->near.n_kv_heads;
	rc = model_int(o, (struct setting){ "", "num_global_key_value_heads" }, 1, 1 << 12, &v);
	if (rc < 0)
		return rc;
	if (!rc && same)
		kind->n_kv_heads = v;
	return hf_each_layer(o, kind);
}

int model_gemma4_sizes(struct opening *o, struct sr_attn *kind)
{
	int rc = o->g ? gguf_sizes(o, kind) : hf_sizes(o, kind);

	if (rc)
		return rc;
	if (kind->n_heads % kind->n_kv_heads || kind->n_heads % o->near.n_kv_heads || kind->head_dim % 2 ||
	    o->near.head_dim % 2)
		return model_wrong(o, (struct setting){ "attention.head_count_kv", "num_key_value_heads" }, -EINVAL, "%d heads, %d "
		                   "and %d KV heads of width %d and %d: the heads must be a multiple of the KV heads, widths even",
		                   kind->n_heads, kind->n_kv_heads, o->near.n_kv_heads, kind->head_dim, o->near.head_dim);
	kind->scale = 1;
	return 0;
}

/* Of a head that attends to all the first pairs turn, a quarter usually, with theta^(-2 i / its whole width). */
static int hf_proportional(struct opening *o, struct sr_rope *r)
{
	const json_t *type = o->rope[0].obj ? json_object_get(o->rope[0].obj, "rope_type") : NULL;
	const json_t *part = o->rope[0].obj ? model_ask(o, o->rope[0].obj, "partial_rotary_factor") : NULL;
	double v = part ? json_number_value(part) : 0.25;
	float *divisor;

	if (type && strcmp(json_string_value(type) ? json_string_value(type) : "", "proportional") != 0)
		return model_fail(o, -ENOTSUP, "%s.rope_type is not supported; proportional is", o->rope[0].of);
	if (!(v > 0 && v <= 1))
		return model_fail(o, -EINVAL, "%s.partial_rotary_factor is no number above 0, up to 1", o->rope[0].of);
	free(o->md->divisor[0]);
	o->md->divisor[0] = divisor = calloc((size_t)r->dims / 2 + 1, sizeof(*divisor));
	if (!divisor)
		return model_no_memory(o);
	for (int32_t i = 0; i < r->dims / 2; i++)
		divisor[i] = i < (int32_t)(v * r->dims / 2) ? 1 : STILL;
	r->kind = SR_ROPE_FACTORS;
	r->divisor = divisor;
	r->magnitude = 1;
	if (!o->rope[0].obj)
		r->theta = 1e6f;
	return 0;
}

static int ropes(struct opening *o)
{
	struct sr_attn *full = &o->m->kind[0], *near = &o->m->kind[1];
	struct sr_rope plain = { .dims = o->near.head_dim, .context = o->m->context, .theta = 10000, .factor = 1,
	                         .magnitude = 1 };
	int32_t dims = plain.dims;
	int rc;

	if (o->g) {
		if ((rc = model_float(o, (struct setting){ "rope.freq_base_swa", "" }, 2, 1e12, &plain.theta)) < 0 ||
		    (rc = model_int(o, (struct setting){ "rope.dimension_count_swa", "" }, 2, 1024, &dims)) < 0)
			return rc;
		if (dims != plain.dims)
			return model_fail(o, -ENOTSUP, "%s.rope.dimension_count_swa is %d; %d, the whole head, is supported",
			                  o->m->arch, dims, plain.dims);
		near->rope = plain;
		return 0;
	}
	if (o->rope[1].obj)
		plain.theta = near->rope.theta;
	if (o->rope[1].obj && near->rope.kind != SR_ROPE_PLAIN)
		return model_fail(o, -ENOTSUP, "%s.rope_type is not supported; default is", o->rope[1].of);
	near->rope = plain;
	return hf_proportional(o, &full->rope);
}

/* The last layers have no keys and values: each reads those of the last layer of its kind before them. */
static int share_kv(struct opening *o)
{
	struct sr_model *m = o->m;
	int32_t shared = 0, ff = 0, last[2] = { -1, -1 };
	bool doubled = false;
	int rc;

	if ((rc = model_int(o, (struct setting){ "attention.shared_kv_layers", "num_kv_shared_layers" }, 0, m->n_layers - 1,
	                    &shared)) < 0 ||
	    (o->config && (rc = model_bool(o, (struct setting){ "", "use_double_wide_mlp" }, &doubled)) < 0))
		return rc;
	for (int32_t l = 0; l < m->n_layers; l++) {
		struct sr_layer *y = &m->layer[l];

		if (o->g) {
			int64_t own = gguf_each(o, "feed_forward_length", l);

			if (own < 1 || own > 1 << 19)
				return model_fail(o, -EINVAL, "%s.feed_forward_length is no number, or list of %d, from 1 to %d",
				                  m->arch, m->n_layers, 1 << 19);
			y->d_ff = (int32_t)own;
		} else if (l >= m->n_layers - shared && doubled && y->ffn != SR_EXPERTS) {
			y->d_ff = 2 * m->d_ff;
		}
		ff = y->d_ff > ff ? y->d_ff : ff;
		if (l < m->n_layers - shared) {
			last[y->kind] = l;
			continue;
		}
		if (last[y->kind] < 0)
			return model_fail(o, -EINVAL, "layer %d shares keys and values, but no layer before the last %d is of its "
			                  "kind", l, shared);
		y->kv_back = l - last[y->kind];
	}
	m->d_ff = ff;
	return 0;
}

int model_gemma4_settings(struct opening *o)
{
	struct sr_model *m = o->m;
	struct sr_attn *full = &m->kind[0], *near = &m->kind[1];
	int32_t vocab = m->n_vocab;
	int rc;

	near->head_dim = o->near.head_dim;
	near->n_kv_heads = o->near.n_kv_heads;
	full->v_norm = near->v_norm = 1;
	m->embed_scale = sqrtf((float)m->d_model);
	if (o->config) {
		const char *both = json_string_value(model_ask(o, o->config, "use_bidirectional_attention"));

		full->k_is_v = json_is_true(json_object_get(o->config, "attention_k_eq_v"));
		if (both && strcmp(both, "vision") != 0)       /* that is about images */
			return model_fail(o, -ENOTSUP, "use_bidirectional_attention is %.40s; null and vision are supported", both);
	} else {
		for (int32_t l = m->n_layers - 1; l >= 0; l--) {
			char name[64];

			snprintf(name, sizeof(name), "blk.%d.attn_v.weight", l);
			if (m->layer[l].kind == 0 && !gguf_tensor(o->g, name))
				full->k_is_v = 1;
			else if (m->layer[l].kind == 0)
				full->k_is_v = 0;              /* the first one decides: later ones may read another's */
		}
	}
	if ((rc = ropes(o)) != 0 || (rc = share_kv(o)) != 0 ||
	    (rc = model_float(o, (struct setting){ "final_logit_softcapping", "final_logit_softcapping" }, 0, 1e6,
	                      &m->logit_cap)) < 0 ||
	    (rc = model_int(o, (struct setting){ "embedding_length_per_layer_input", "hidden_size_per_layer_input" }, 0,
	                    1 << 14, &m->inputs)) < 0 ||
	    (rc = model_int(o, (struct setting){ "", "vocab_size_per_layer_input" }, 1, 1 << 24, &vocab)) < 0)
		return rc;
	if (m->inputs && o->config && vocab != m->n_vocab)
		return model_fail(o, -ENOTSUP, "vocab_size_per_layer_input is %d; %d, as vocab_size, is supported", vocab,
		                  m->n_vocab);
	if (m->inputs && m->n_layers > (1 << 24) / m->inputs)
		return model_fail(o, -EINVAL, "%d layers with inputs of %d are too many", m->n_layers, m->inputs);
	return 0;
}

/* ---- tensors ------------------------------------------------------------------------------------ */

enum size { SIZE_1, SIZE_D, SIZE_IN, SIZE_ALL, SIZE_V, SIZE_X };
enum when { ALWAYS, INPUTS, BESIDE };
#define AT(field) offsetof(struct sr_layer, field)
static const struct { const char *gguf, *hf; size_t at; enum size n, k; enum when when; } of_layer[] = {
	{ "layer_output_scale.weight", "layer_scalar", AT(out_scale), SIZE_1, SIZE_1, ALWAYS },
	{ "inp_gate.weight", "per_layer_input_gate.weight", AT(in_down), SIZE_IN, SIZE_D, INPUTS },
	{ "proj.weight", "per_layer_projection.weight", AT(in_up), SIZE_D, SIZE_IN, INPUTS },
	{ "post_norm.weight", "post_per_layer_input_norm.weight", AT(in_post), SIZE_1, SIZE_D, INPUTS },
	{ "post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight", AT(mlp_post), SIZE_1, SIZE_D, BESIDE },
	{ "post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight", AT(expert_post), SIZE_1, SIZE_D, BESIDE },
	{ "pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight", AT(expert_norm), SIZE_1, SIZE_D, BESIDE },
	{ "ffn_gate_inp.scale", "router.scale", AT(router_norm), SIZE_1, SIZE_D, BESIDE },
	{ "ffn_down_exps.scale", "router.per_expert_scale", AT(expert_scale), SIZE_1, SIZE_X, BESIDE },
};
#undef AT
#define N_OF_LAYER ((int)(sizeof(of_layer) / sizeof(*of_layer)))

static int32_t size(const struct sr_model *m, enum size s)
{
	const int32_t of[] = { 1, m->d_model, m->inputs, m->inputs * m->n_layers, m->n_vocab, m->experts.n };

	return of[s];
}

static struct sr_tensor *at(struct sr_layer *y, int i)
{
	return (struct sr_tensor *)((char *)y + of_layer[i].at);
}

int model_take_gemma4(struct opening *o)
{
	struct sr_model *m = o->m;
	const int32_t all = size(m, SIZE_ALL);
	int rc = 0;

	if (m->inputs &&
	    ((rc = model_take_one(o, &m->in_embed, -1, m->n_vocab, all, "per_layer_token_embd.weight",
	                          "embed_tokens_per_layer.weight")) != 0 ||
	     (rc = model_take_one(o, &m->in_proj, -1, all, m->d_model, "per_layer_model_proj.weight",
	                          "per_layer_model_projection.weight")) != 0 ||
	     (rc = model_take_one(o, &m->in_norm, -1, 1, m->inputs, "per_layer_proj_norm.weight",
	                          "per_layer_projection_norm.weight")) != 0))
		return rc;
	for (int32_t l = 0; l < m->n_layers && !rc; l++) {
		struct sr_layer *y = &m->layer[l];
		bool has[] = { [ALWAYS] = true, [INPUTS] = m->inputs > 0, [BESIDE] = y->ffn == SR_BESIDE };

		for (int i = 0; i < N_OF_LAYER && !rc; i++)
			if (has[of_layer[i].when])
				rc = model_take_one(o, at(y, i), l, size(m, of_layer[i].n), size(m, of_layer[i].k), of_layer[i].gguf,
				                    of_layer[i].hf);
		y->router_norm.mul = 1 / sqrtf((float)m->d_model);
	}
	return rc;
}

struct sr_tensor *model_gemma4_tensor(struct sr_model *m, int32_t l, int i)
{
	struct sr_tensor *const whole[] = { &m->in_embed, &m->in_proj, &m->in_norm };

	if (l < 0)
		return i < 3 ? whole[i] : NULL;
	return i < N_OF_LAYER ? at(&m->layer[l], i) : NULL;
}
