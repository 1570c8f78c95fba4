/* models/from_bert.c - an encoder of BERT's family in a Hugging Face directory, for models/open.c: BertModel as
 * sentence-transformers saves it.
 *
 * BERT puts each norm behind the sum, so that of layer l - 1's feed-forward part is norm1 of layer l here, the
 * embeddings' is norm1 of layer 0, and the last one is the model's (sr_model.norm_after).
 */
#include "impl.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 96

/* What a tensor is named, in which layer's place it is put, and its shape. */
struct bert_spec { const char *name; size_t at; int layer; uint8_t n, k; };
enum { ONE, sD, sF, sV, sP, sT };      /* sizes: of the model, feed-forward, vocabulary, positions, types */
enum { WHOLE = -1, NEXT = -2 };        /* NEXT: of the layer behind it; the last one's is the whole model's */

#define LAYER(field) offsetof(struct sr_layer, field)
static const struct bert_spec layer_specs[] = {
	{ "attention.self.query.weight", LAYER(q), 0, sD, sD },
	{ "attention.self.key.weight", LAYER(k), 0, sD, sD },
	{ "attention.self.value.weight", LAYER(v), 0, sD, sD },
	{ "attention.self.query.bias", LAYER(q_bias), 0, ONE, sD },
	{ "attention.self.key.bias", LAYER(k_bias), 0, ONE, sD },
	{ "attention.self.value.bias", LAYER(v_bias), 0, ONE, sD },
	{ "attention.output.dense.weight", LAYER(o), 0, sD, sD },
	{ "attention.output.dense.bias", LAYER(o_bias), 0, ONE, sD },
	{ "attention.output.LayerNorm.weight", LAYER(norm2), 0, ONE, sD },
	{ "attention.output.LayerNorm.bias", LAYER(norm2_bias), 0, ONE, sD },
	{ "intermediate.dense.weight", LAYER(up), 0, sF, sD },
	{ "intermediate.dense.bias", LAYER(up_bias), 0, ONE, sF },
	{ "output.dense.weight", LAYER(down), 0, sD, sF },
	{ "output.dense.bias", LAYER(down_bias), 0, ONE, sD },
	{ "output.LayerNorm.weight", LAYER(norm1), NEXT, ONE, sD },
	{ "output.LayerNorm.bias", LAYER(norm1_bias), NEXT, ONE, sD },
	{ "embeddings.LayerNorm.weight", LAYER(norm1), WHOLE, ONE, sD },
	{ "embeddings.LayerNorm.bias", LAYER(norm1_bias), WHOLE, ONE, sD },
};
#undef LAYER
#define MODEL(field) offsetof(struct sr_model, field)
static const struct bert_spec model_specs[] = {
	{ "embeddings.word_embeddings.weight", MODEL(embed), WHOLE, sV, sD },
	{ "embeddings.position_embeddings.weight", MODEL(positions), WHOLE, sP, sD },
	{ "embeddings.token_type_embeddings.weight", MODEL(types), WHOLE, sT, sD },
};
#undef MODEL
#define COUNT(list) ((int)(sizeof(list) / sizeof(*(list))))

bool model_is_bert(const struct opening *o)
{
	const char *class = json_string_value(json_array_get(json_object_get(o->config, "architectures"), 0));

	return class && strcmp(class, "BertModel") == 0;
}

/* Settings that must have the one value that is computed here. */
static int check_fixed(struct opening *o)
{
	static const struct { const char *key, *value; } text[] = {
		{ "model_type", "bert" }, { "position_embedding_type", "absolute" },
	};
	static const char *const no[] = { "is_decoder", "add_cross_attention", "is_encoder_decoder" };

	for (int i = 0; i < COUNT(text); i++) {
		const json_t *j = json_object_get(o->config, text[i].key);

		if (j && !json_is_null(j) && (!json_is_string(j) || strcmp(json_string_value(j), text[i].value) != 0))
			return model_fail(o, -ENOTSUP, "%s must be %s", text[i].key, text[i].value);
	}
	for (int i = 0; i < COUNT(no); i++)
		if (json_is_true(json_object_get(o->config, no[i])))
			return model_fail(o, -ENOTSUP, "%s true is not supported", no[i]);
	if (json_object_size(json_object_get(o->config, "quantization_config")))
		return model_fail(o, -ENOTSUP, "quantization_config: an encoder with quantized weights is not supported");
	return 0;
}

static int activation(struct opening *o)
{
	const char *act = json_string_value(json_object_get(o->config, "hidden_act"));

	if (!act || strcmp(act, "gelu") == 0)
		o->m->act = SR_GELU_ERF;
	else if (strcmp(act, "gelu_new") == 0 || strcmp(act, "gelu_pytorch_tanh") == 0)
		o->m->act = SR_GELU_TANH;
	else
		return model_fail(o, -ENOTSUP, "hidden_act %.40s is not supported; gelu, gelu_new and gelu_pytorch_tanh "
		                  "are", act);
	return 0;
}

int model_bert_settings(struct opening *o)
{
	const struct setting width = { "", "hidden_size" }, layers = { "", "num_hidden_layers" },
		heads = { "", "num_attention_heads" }, ff = { "", "intermediate_size" },
		vocab = { "", "vocab_size" }, context = { "", "max_position_embeddings" }, eps = { "", "layer_norm_eps" };
	struct sr_model *m = o->m;
	struct sr_attn *kind = &m->kind[0];
	int rc;

	m->eps = 1e-12f;
	if ((rc = check_fixed(o)) != 0 || (rc = activation(o)) != 0 ||
	    (rc = model_need(o, width, model_int(o, width, 1, 1 << 20, &m->d_model))) != 0 ||
	    (rc = model_need(o, layers, model_int(o, layers, 1, LAYERS_MAX, &m->n_layers))) != 0 ||
	    (rc = model_need(o, heads, model_int(o, heads, 1, 1 << 12, &kind->n_heads))) != 0 ||
	    (rc = model_need(o, ff, model_int(o, ff, 1, 1 << 24, &m->d_ff))) != 0 ||
	    (rc = model_need(o, vocab, model_int(o, vocab, 1, 1 << 24, &m->n_vocab))) != 0 ||
	    (rc = model_need(o, context, model_int(o, context, 1, 1 << 28, &m->context))) != 0 ||
	    (rc = model_float(o, eps, 1e-14, 0.1, &m->eps)) < 0)
		return rc;
	if (m->d_model % kind->n_heads)
		return model_fail(o, -EINVAL, "a width of %d is no multiple of %d attention heads", m->d_model,
		                  kind->n_heads);
	kind->n_kv_heads = kind->n_heads;
	kind->head_dim = m->d_model / kind->n_heads;
	kind->scale = 1 / sqrtf((float)kind->head_dim);
	kind->bidirectional = 1;
	kind->rope = (struct sr_rope){ .kind = SR_ROPE_NONE, .factor = 1, .magnitude = 1 };
	m->n_kinds = 1;
	m->embed_scale = 1;
	m->norm_kind = SR_LAYER;
	m->norm_after = 1;
	model_set_name(m->arch, sizeof(m->arch), "BertModel", 9);
	return 0;
}

static int32_t size_of(const struct sr_model *m, uint8_t size)
{
	const int32_t of[] = { 1, m->d_model, m->d_ff, m->n_vocab, m->context, 0 };

	return of[size];
}

/* Where a tensor of layer l goes. */
static struct sr_tensor *place_of(struct opening *o, const struct bert_spec *s, bool layered, int32_t l)
{
	struct sr_model *m = o->m;

	if (!layered)
		return (struct sr_tensor *)((char *)m + s->at);
	if (s->layer == WHOLE)
		return (struct sr_tensor *)((char *)&m->layer[0] + s->at);
	if (s->layer == NEXT && l == m->n_layers - 1)
		return s->at == offsetof(struct sr_layer, norm1) ? &m->norm : &m->norm_bias;
	return (struct sr_tensor *)((char *)&m->layer[l + (s->layer == NEXT)] + s->at);
}

static int take(struct opening *o, const struct bert_spec *s, bool layered, int32_t l, char *name)
{
	struct sr_tensor *t = place_of(o, s, layered, l);
	struct found_tensor f = { .type = SR_NONE };
	bool vector = s->n == ONE;
	int rc;

	if (layered && s->layer != WHOLE)
		snprintf(name, NAME_MAX_BYTES, "encoder.layer.%d.%s", l, s->name);
	else
		snprintf(name, NAME_MAX_BYTES, "%s", s->name);
	rc = model_find_hf(o, name, &f);
	if (rc == 1)
		return model_fail(o, -EINVAL, "tensor %s is missing", name);
	if (rc)
		return rc;
	if (f.type != SR_F32 && f.type != SR_F16 && f.type != SR_BF16)
		return model_fail(o, -ENOTSUP, "tensor %s is of type %s; supported are F32, F16, BF16", name, f.type_name);
	*t = (struct sr_tensor){ .name = name, .type = f.type, .count = 1, .data = f.data, .k = size_of(o->m, s->k),
	                         .n = s->n == sT ? (int32_t)f.dim[0] : size_of(o->m, s->n) };
	if (f.n_dims != (vector ? 1u : 2u) || f.dim[vector ? 0 : 1] != (uint64_t)t->k ||
	    (!vector && (f.dim[0] != (uint64_t)t->n || t->n < 2)))
		return model_fail(o, -EINVAL, "tensor %s has not the shape [%d][%d] of this model's settings", name, t->n,
		                  t->k);
	o->md->weight_bytes += f.data.bytes;
	return 0;
}

/* A tensor that no line takes is refused, but for ids of positions, and the pooler, which only classifies. */
static int check_rest(struct opening *o)
{
	for (uint64_t i = 0; i < o->st->n_tensors; i++) {
		const char *name = o->st->all[i].t->name;

		if (!o->taken[i] && strcmp(name, "embeddings.position_ids") != 0 && strncmp(name, "pooler.", 7) != 0)
			return model_fail(o, -ENOTSUP, "tensor %.100s is no part of BertModel as Slipring knows it", name);
	}
	return 0;
}

int model_bert_tensors(struct opening *o)
{
	struct sr_model *m = o->m;
	int n = COUNT(model_specs), rc = 0;
	char *name;

	m->layer = calloc((size_t)m->n_layers, sizeof(*m->layer));
	o->taken = calloc(o->st->n_tensors + 1, sizeof(*o->taken));
	o->md->names = name = calloc((size_t)(m->n_layers * COUNT(layer_specs) + n), NAME_MAX_BYTES);
	if (!m->layer || !o->taken || !name)
		return model_no_memory(o);
	for (int i = 0; i < n && !rc; i++, name += NAME_MAX_BYTES)
		rc = take(o, &model_specs[i], false, 0, name);
	for (int32_t l = 0; l < m->n_layers; l++) {
		m->layer[l].mixer = SR_ATTEND;
		m->layer[l].ffn = SR_PLAIN;
		m->layer[l].d_ff = m->d_ff;
		for (int i = 0; i < COUNT(layer_specs) && !rc; i++, name += NAME_MAX_BYTES)
			if (layer_specs[i].layer != WHOLE || l == 0)
				rc = take(o, &layer_specs[i], true, l, name);
	}
	snprintf(o->md->stored, sizeof(o->md->stored), "%s", model_type_name(m->embed.type));
	return rc ? rc : check_rest(o);
}
