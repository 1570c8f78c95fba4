/* models/encoders.c - encoders, for models/open.c: BERT, RoBERTa and XLM-R, nomic and ModernBERT, in a Hugging Face
 * directory as sentence-transformers saves it, or in a GGUF file.  A family is a row of the last table, with a list
 * of its tensors.
 *
 * BERT puts each norm behind the sum, so that of layer l - 1's feed-forward part is norm1 of layer l here, the
 * embeddings' is norm1 of layer 0, and the last one is the model's (SR_AFTER_ALL).  ModernBERT has a norm of the
 * embeddings that replaces them, and none else before layer 0 attends: that is norm1 of layer 0, too
 * (SR_AFTER_FIRST).
 *
 * A class .. ForSequenceClassification has the same with a classifier (classifier.c), and its names begin with
 * `before`.  In a GGUF the classifier's tensors say that there is one.
 */
#include "impl.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 96

enum { ONE, sD, sF, sV, sP, sT, sT2 }; /* sizes: of the model, feed-forward, vocabulary, positions, types; sT2: the
                                        * second type, which only a classifier is given */
/* Where a tensor belongs: to each layer; to layer 0, or each other one; to the layer behind, or the last one's to
 * the model; to the model. */
enum place_of { LAYER, FIRST, OTHERS, NEXT, MODEL };

/* A tensor: its names in a directory and in a GGUF, where it is put, and its shape.  parts: it is that part of one
 * that has several under each other. */
struct encoder_spec {
	const char *hf, *gguf;
	size_t at;
	enum place_of place;
	uint8_t n, k, part, parts;
};

struct encoder {
	const char *class, *type;      /* config.json: architectures[0], model_type */
	const char *classifies, *before; /* the class with a classifier, and how its names begin; NULL: there is none */
	enum model_head head;          /* that classifier's form */
	const char *gguf;              /* general.architecture; NULL: its GGUF files bear another family's name */
	const char *layer;             /* what names of a layer begin with in a directory */
	const struct encoder_spec *specs;
	int n_specs;
	int32_t after;                 /* sr_model.norm_after */
	enum sr_ffn ffn;
	enum sr_act act;               /* the usual one */
	const char *act_key;           /* config.json: where another is named */
	int (*read)(struct opening *o); /* what only the family has.  0 or -errno */
};

#define L(field) offsetof(struct sr_layer, field)
#define M(field) offsetof(struct sr_model, field)
#define WITH_BIAS(hf, gguf, field, bias, place, n, k) \
	{ hf ".weight", gguf ".weight", field, place, n, k, 0, 1 }, { hf ".bias", gguf ".bias", bias, place, ONE, n == ONE ? k : n, 0, 1 }
static const struct encoder_spec bert_specs[] = {
	WITH_BIAS("attention.self.query", "attn_q", L(q), L(q_bias), LAYER, sD, sD),
	WITH_BIAS("attention.self.key", "attn_k", L(k), L(k_bias), LAYER, sD, sD),
	WITH_BIAS("attention.self.value", "attn_v", L(v), L(v_bias), LAYER, sD, sD),
	WITH_BIAS("attention.output.dense", "attn_output", L(o), L(o_bias), LAYER, sD, sD),
	WITH_BIAS("attention.output.LayerNorm", "attn_output_norm", L(norm2), L(norm2_bias), LAYER, ONE, sD),
	WITH_BIAS("intermediate.dense", "ffn_up", L(up), L(up_bias), LAYER, sF, sD),
	WITH_BIAS("output.dense", "ffn_down", L(down), L(down_bias), LAYER, sD, sF),
	WITH_BIAS("output.LayerNorm", "layer_output_norm", L(norm1), L(norm1_bias), NEXT, ONE, sD),
	WITH_BIAS("embeddings.LayerNorm", "token_embd_norm", L(norm1), L(norm1_bias), FIRST, ONE, sD),
	{ "embeddings.word_embeddings.weight", "token_embd.weight", M(embed), MODEL, sV, sD, 0, 1 },
	{ "embeddings.position_embeddings.weight", "position_embd.weight", M(positions), MODEL, sP, sD, 0, 1 },
	{ "embeddings.token_type_embeddings.weight", "token_types.weight", M(types), MODEL, sT, sD, 0, 1 },
	{ "embeddings.token_type_embeddings.weight", "token_types.weight", M(second_type), MODEL, sT2, sD, 0, 1 },
};
static const struct encoder_spec nomic_specs[] = {
	{ "attn.Wqkv.weight", "attn_qkv.weight", L(q), LAYER, sD, sD, 0, 3 },
	{ "attn.Wqkv.weight", "attn_qkv.weight", L(k), LAYER, sD, sD, 1, 3 },
	{ "attn.Wqkv.weight", "attn_qkv.weight", L(v), LAYER, sD, sD, 2, 3 },
	{ "attn.out_proj.weight", "attn_output.weight", L(o), LAYER, sD, sD, 0, 1 },
	WITH_BIAS("norm1", "attn_output_norm", L(norm2), L(norm2_bias), LAYER, ONE, sD),
	{ "mlp.fc12.weight", "ffn_gate.weight", L(gate), LAYER, sF, sD, 0, 1 },
	{ "mlp.fc11.weight", "ffn_up.weight", L(up), LAYER, sF, sD, 0, 1 },
	{ "mlp.fc2.weight", "ffn_down.weight", L(down), LAYER, sD, sF, 0, 1 },
	WITH_BIAS("norm2", "layer_output_norm", L(norm1), L(norm1_bias), NEXT, ONE, sD),
	WITH_BIAS("emb_ln", "token_embd_norm", L(norm1), L(norm1_bias), FIRST, ONE, sD),
	{ "embeddings.word_embeddings.weight", "token_embd.weight", M(embed), MODEL, sV, sD, 0, 1 },
	{ "embeddings.token_type_embeddings.weight", "token_types.weight", M(types), MODEL, sT, sD, 0, 1 },
};
static const struct encoder_spec modern_specs[] = {
	{ "attn.Wqkv.weight", "attn_qkv.weight", L(q), LAYER, sD, sD, 0, 3 },
	{ "attn.Wqkv.weight", "attn_qkv.weight", L(k), LAYER, sD, sD, 1, 3 },
	{ "attn.Wqkv.weight", "attn_qkv.weight", L(v), LAYER, sD, sD, 2, 3 },
	{ "attn.Wo.weight", "attn_output.weight", L(o), LAYER, sD, sD, 0, 1 },
	{ "attn_norm.weight", "attn_norm.weight", L(norm1), OTHERS, ONE, sD, 0, 1 },
	{ "mlp_norm.weight", "ffn_norm.weight", L(norm2), LAYER, ONE, sD, 0, 1 },
	{ "mlp.Wi.weight", "ffn_up.weight", L(gate), LAYER, sF, sD, 0, 2 },
	{ "mlp.Wi.weight", "ffn_up.weight", L(up), LAYER, sF, sD, 1, 2 },
	{ "mlp.Wo.weight", "ffn_down.weight", L(down), LAYER, sD, sF, 0, 1 },
	{ "embeddings.norm.weight", "token_embd_norm.weight", L(norm1), FIRST, ONE, sD, 0, 1 },
	{ "embeddings.tok_embeddings.weight", "token_embd.weight", M(embed), MODEL, sV, sD, 0, 1 },
	{ "final_norm.weight", "output_norm.weight", M(norm), MODEL, ONE, sD, 0, 1 },
};
#undef L
#undef M
#define COUNT(list) ((int)(sizeof(list) / sizeof(*(list))))

static bool classifies(const struct opening *o, const struct encoder *e);

/* ---- what only one family has --------------------------------------------------------------- */

/* Positions are counted from the row behind that of the padding token; a GGUF has not the rows before. */
static int read_roberta(struct opening *o)
{
	const struct setting pad = { "", "pad_token_id" };
	int32_t id = 1;
	int rc = model_int(o, pad, 0, 1 << 20, &id);

	if (rc < 0)
		return rc;
	o->first_position = id + 1;
	if (o->m->context <= o->first_position)
		return model_fail(o, -EINVAL, "max_position_embeddings is %d, and the first %d are padding", o->m->context,
		                  o->first_position);
	o->m->context -= o->first_position;
	return 0;
}

static struct sr_rope plain_rope(const struct sr_model *m, float theta)
{
	return (struct sr_rope){ .kind = SR_ROPE_PLAIN, .dims = m->kind[0].head_dim, .context = m->context,
	                         .theta = theta, .factor = 1, .magnitude = 1 };
}

/* An object of rope_parameters: theta alone. */
static int read_theta(struct opening *o, const json_t *obj, float *theta)
{
	const char *key;
	json_t *j;

	json_object_foreach((json_t *)(uintptr_t)obj, key, j) {
		double v = json_number_value(j);

		if (strcmp(key, "rope_theta") == 0 && json_is_number(j) && v >= 2 && v <= 1e12)
			*theta = (float)v;
		else if (!json_is_null(j) && (strcmp(key, "rope_type") != 0 || !json_is_string(j) ||
		         strcmp(json_string_value(j), "default") != 0))
			return model_fail(o, -ENOTSUP, "rope_parameters: %.60s is not supported; rope_theta, with rope_type "
			                  "default, is", key);
	}
	return 0;
}

/* The names of nomic's own code and transformers' names for the same. */
static int nomic_names(struct opening *o)
{
	static const char *const names[][2] = {
		{ "n_embd", "hidden_size" }, { "n_layer", "num_hidden_layers" }, { "n_head", "num_attention_heads" },
		{ "n_inner", "intermediate_size" }, { "n_positions", "max_position_embeddings" },
		{ "layer_norm_epsilon", "layer_norm_eps" }, { "rotary_emb_base", "rope_theta" },
	};

	for (int i = 0; i < COUNT(names); i++) {
		json_t *j = json_object_get(o->config, names[i][0]);

		model_note_asked(o, false, names[i][0]);
		if (j && !json_object_get(o->config, names[i][1]) && json_object_set(o->config, names[i][1], j) != 0)
			return model_no_memory(o);
	}
	return 0;
}

static int read_nomic(struct opening *o)
{
	static const char *const must[][2] = {
		{ "rotary_emb_fraction", "1" }, { "rotary_emb_interleaved", "false" }, { "rotary_emb_scale_base", "null" },
		{ "prenorm", "false" }, { "qkv_proj_bias", "false" }, { "mlp_fc1_bias", "false" }, { "mlp_fc2_bias", "false" },
		{ "use_rms_norm", "false" }, { "parallel_block", "false" }, { "causal", "false" },
		{ "activation_function", "swiglu" }, { "scale_attn_weights", "true" }, { "moe_every_n_layers", "0" },
		{ "scale_attn_by_inverse_layer_idx", "false" },
	};
	const struct setting theta = { "rope.freq_base", "rope_theta" }, trained = { "", "max_trained_positions" };
	const json_t *obj = o->config ? model_ask(o, o->config, "rope_parameters") : NULL;
	int32_t most = o->m->context, width = o->m->kind[0].head_dim;
	float base = o->config ? 1000 : 10000;
	int rc;

	for (int i = 0; o->config && i < COUNT(must); i++)
		if ((rc = model_must(o, must[i][0], must[i][1])) != 0)
			return rc;
	if ((rc = model_float(o, theta, 2, 1e12, &base)) < 0 || (rc = read_theta(o, obj, &base)) != 0 ||
	    (rc = o->config ? model_int(o, trained, 1, 1 << 28, &most) : 0) < 0 ||
	    (rc = o->config ? model_int(o, (struct setting){ "", "head_dim" }, 1, 1 << 12, &width) : 0) < 0)
		return rc;
	if (width != o->m->kind[0].head_dim)
		return model_fail(o, -ENOTSUP, "head_dim is %d; supported is %d", width, o->m->kind[0].head_dim);
	/* rotary_scaling_factor changes what comes behind the trained positions */
	model_note_asked(o, false, "rotary_scaling_factor");
	o->m->context = most < o->m->context ? most : o->m->context;
	o->m->kind[0].rope = plain_rope(o->m, base);
	return 0;
}

/* Which layers look at a window: those of layer_types, or all but every n-th from the first on. */
static int modern_layers(struct opening *o)
{
	const json_t *list = o->config ? model_ask(o, o->config, "layer_types") : NULL;
	int32_t each = 3;
	int rc = o->config ? model_int(o, (struct setting){ "", "global_attn_every_n_layers" }, 1, LAYERS_MAX, &each)
	                   : model_int(o, (struct setting){ "attention.sliding_window_pattern", "" }, 1, LAYERS_MAX, &each);

	if (rc < 0)
		return rc;
	if (list && json_array_size(list) != (size_t)o->m->n_layers)
		return model_fail(o, -EINVAL, "layer_types names %zu layers, of %d", json_array_size(list), o->m->n_layers);
	for (int32_t l = 0; l < o->m->n_layers; l++) {
		const char *type = json_string_value(json_array_get(list, (size_t)l));

		o->m->layer[l].kind = l % each != 0;
		if (!list)
			continue;
		if (!type || (strcmp(type, "full_attention") != 0 && strcmp(type, "sliding_attention") != 0))
			return model_fail(o, -ENOTSUP, "layer_types[%d] must be full_attention or sliding_attention", l);
		o->m->layer[l].kind = type[0] == 's';
	}
	return 0;
}

static int read_modern(struct opening *o)
{
	static const char *const none[] = { "attention_bias", "mlp_bias", "norm_bias" };
	static const char *const any[] = { "global_rope_theta", "local_rope_theta" };
	const struct setting window = { "attention.sliding_window", "local_attention" };
	const struct setting all = { "rope.freq_base", "global_rope_theta" };
	const struct setting near = { "rope.freq_base_swa", "local_rope_theta" };
	const json_t *obj = o->config ? model_ask(o, o->config, "rope_parameters") : NULL;
	struct sr_attn *kind = o->m->kind;
	int32_t local = 128;
	float theta[2] = { 160000, 10000 };
	int rc;

	for (int i = 0; o->config && i < COUNT(none); i++)
		if ((rc = model_must(o, none[i], "false")) != 0)
			return rc;
	if (!o->g && classifies(o, model_encoder(o)) && (rc = model_must(o, "classifier_activation", "gelu")) != 0)
		return rc;
	model_note_asked(o, false, "classifier_activation");
	for (int i = 0; i < COUNT(any); i++)
		model_note_asked(o, false, any[i]);
	if ((rc = model_int(o, window, 2, 1 << 20, &local)) < 0 || (rc = model_float(o, all, 2, 1e12, &theta[0])) < 0 ||
	    (rc = model_float(o, near, 2, 1e12, &theta[1])) < 0 ||
	    (rc = read_theta(o, json_object_get(obj, "full_attention"), &theta[0])) != 0 ||
	    (rc = read_theta(o, json_object_get(obj, "sliding_attention"), &theta[1])) != 0)
		return rc;
	kind[1] = kind[0];
	kind[1].window = local / 2 + 1;  /* to either side, with its own */
	o->m->n_kinds = 2;
	for (int i = 0; i < 2; i++)
		kind[i].rope = plain_rope(o->m, theta[i]);
	return modern_layers(o);
}

static const struct encoder encoders[] = {
#define ROW(class, type, head, gguf, layer, specs, ...) \
	{ class "Model", type, head, gguf, layer, specs, COUNT(specs), __VA_ARGS__ }
#define HEAD(class, before, head) class "ForSequenceClassification", before, head
#define NO_HEAD NULL, NULL, HEAD_NONE
	ROW("Bert", "bert", HEAD("Bert", "bert.", HEAD_BERT), "bert", "encoder.layer.", bert_specs, SR_AFTER_ALL, SR_PLAIN, SR_GELU_ERF, "hidden_act", NULL),
	ROW("Roberta", "roberta", HEAD("Roberta", "roberta.", HEAD_ROBERTA), NULL, "encoder.layer.", bert_specs, SR_AFTER_ALL, SR_PLAIN, SR_GELU_ERF, "hidden_act",
	    read_roberta),
	ROW("XLMRoberta", "xlm-roberta", HEAD("XLMRoberta", "roberta.", HEAD_ROBERTA), NULL, "encoder.layer.", bert_specs, SR_AFTER_ALL, SR_PLAIN, SR_GELU_ERF,
	    "hidden_act", read_roberta),
	ROW("NomicBert", "nomic_bert", NO_HEAD, "nomic-bert", "encoder.layers.", nomic_specs, SR_AFTER_ALL, SR_GATED, SR_SILU,
	    "hidden_act", read_nomic),
	ROW("ModernBert", "modernbert", HEAD("ModernBert", "model.", HEAD_MODERN), "modern-bert", "layers.", modern_specs, SR_AFTER_FIRST, SR_GATED, SR_GELU_ERF,
	    "hidden_activation", read_modern),
#undef ROW
#undef HEAD
#undef NO_HEAD
};

const struct encoder *model_encoder(const struct opening *o)
{
	const char *class = json_string_value(json_array_get(json_object_get(o->config, "architectures"), 0));
	struct gguf_string s = { "", 0 };

	if (o->g)
		gguf_str(o->g, "general.architecture", &s);
	for (int i = 0; i < COUNT(encoders); i++) {
		const char *name = o->g ? encoders[i].gguf : encoders[i].class;

		if (name && (o->g ? strlen(name) == s.n && memcmp(name, s.s, s.n) == 0 : class && strcmp(name, class) == 0))
			return &encoders[i];
		if (!o->g && class && encoders[i].classifies && strcmp(encoders[i].classifies, class) == 0)
			return &encoders[i];
	}
	return NULL;
}

/* Has it a classifier? */
static bool classifies(const struct opening *o, const struct encoder *e)
{
	const char *class = json_string_value(json_array_get(json_object_get(o->config, "architectures"), 0));

	return e->classifies && (o->g ? gguf_tensor(o->g, "cls.output.weight") != NULL : strcmp(class, e->classifies) == 0);
}

/* ---- settings ------------------------------------------------------------------------------- */

/* Settings that must have the one value that is computed here. */
static int check_fixed(struct opening *o, const struct encoder *e)
{
	static const char *const no[] = { "is_decoder", "add_cross_attention", "is_encoder_decoder" };
	bool causal = false;
	int rc;

	if (o->g) {
		rc = model_bool(o, (struct setting){ "attention.causal", "" }, &causal);
		if (rc < 0 || !causal)
			return rc < 0 ? rc : 0;
		return model_fail(o, -ENOTSUP, "%s.attention.causal is true, which is not supported for an encoder", o->m->arch);
	}
	if ((rc = model_must(o, "model_type", e->type)) != 0 ||
	    (rc = model_must(o, "position_embedding_type", "absolute")) != 0)
		return rc;
	for (int i = 0; i < COUNT(no); i++)
		if ((rc = model_must(o, no[i], "false")) != 0)
			return rc;
	if (json_object_size(json_object_get(o->config, "quantization_config")))
		return model_fail(o, -ENOTSUP, "quantization_config: an encoder with quantized weights is not supported");
	return 0;
}

static int activation(struct opening *o, const struct encoder *e)
{
	static const struct { const char *name; enum sr_act act; } known[] = {
		{ "gelu", SR_GELU_ERF }, { "gelu_new", SR_GELU_TANH }, { "gelu_pytorch_tanh", SR_GELU_TANH }, { "silu", SR_SILU },
	};
	const json_t *j = o->config ? model_ask(o, o->config, e->act_key) : NULL;
	struct gguf_string s = { json_string_value(j), json_string_length(j) };
	char key[96];

	o->m->act = e->act;
	snprintf(key, sizeof(key), "%s.hidden_activation", o->m->arch);
	model_note_asked(o, false, "hidden_activation");
	if (!j && (!o->g || gguf_str(o->g, key, &s) == -ENOENT))
		return 0;
	for (int i = 0; i < COUNT(known) && s.s; i++)
		if (strlen(known[i].name) == s.n && memcmp(s.s, known[i].name, s.n) == 0) {
			o->m->act = known[i].act;
			return 0;
		}
	return model_fail(o, -ENOTSUP, "%s %.*s is not supported; gelu, gelu_new, gelu_pytorch_tanh and silu are",
	                  o->g ? key : e->act_key, s.n < 40 ? (int)s.n : 40, s.s ? s.s : "");
}

static int sizes(struct opening *o, const struct encoder *e)
{
	const struct setting width = { "embedding_length", "hidden_size" }, layers = { "block_count", "num_hidden_layers" },
		heads = { "attention.head_count", "num_attention_heads" }, ff = { "feed_forward_length", "intermediate_size" },
		vocab = { "", "vocab_size" }, context = { "context_length", "max_position_embeddings" },
		eps = { "attention.layer_norm_epsilon", e->after == SR_AFTER_FIRST ? "norm_eps" : "layer_norm_eps" };
	const struct gguf_tensor *embed = o->g ? gguf_tensor(o->g, "token_embd.weight") : NULL;
	struct sr_model *m = o->m;
	struct sr_attn *kind = &m->kind[0];
	int rc;

	m->eps = e->after == SR_AFTER_FIRST ? 1e-5f : 1e-12f;
	if ((rc = model_need(o, width, model_int(o, width, 1, 1 << 17, &m->d_model))) != 0 ||
	    (rc = model_need(o, layers, model_int(o, layers, 1, LAYERS_MAX, &m->n_layers))) != 0 ||
	    (rc = model_need(o, heads, model_int(o, heads, 1, 1 << 12, &kind->n_heads))) != 0 ||
	    (rc = model_need(o, ff, model_int(o, ff, 1, 1 << 19, &m->d_ff))) != 0 ||
	    (rc = o->g ? 0 : model_need(o, vocab, model_int(o, vocab, 1, 1 << 24, &m->n_vocab))) != 0 ||
	    (rc = model_need(o, context, model_int(o, context, 1, 1 << 28, &m->context))) != 0 ||
	    (rc = model_float(o, eps, 1e-14, 0.1, &m->eps)) < 0)
		return rc;
	if (o->g && (!embed || embed->n_dims != 2 || embed->dim[1] > 1 << 24))
		return model_fail(o, -EINVAL, "tensor token_embd.weight is missing or no matrix of at most %d rows", 1 << 24);
	if (o->g)
		m->n_vocab = (int32_t)embed->dim[1];
	if (m->d_model % kind->n_heads || m->d_model / kind->n_heads % 2)
		return model_wrong(o, heads, -EINVAL, "a width of %d is no even multiple of %d attention heads", m->d_model,
		                   kind->n_heads);
	return 0;
}

/* What a GGUF may say of heads and rope must be what is computed. */
static int check_heads(struct opening *o)
{
	const struct sr_attn *kind = &o->m->kind[0];
	const struct { const char *key; int32_t value; } must[] = {
		{ "attention.head_count_kv", kind->n_heads }, { "attention.key_length", kind->head_dim },
		{ "attention.value_length", kind->head_dim }, { "rope.dimension_count", kind->head_dim },
	};
	static const char *const none[] = { "rope.scaling.factor", "rope.scale_linear", "attention.scale" };

	for (int i = 0; i < COUNT(must); i++) {
		int32_t v = must[i].value;
		int rc = model_int(o, (struct setting){ must[i].key, "" }, 1, 1 << 20, &v);

		if (rc < 0)
			return rc;
		if (v != must[i].value)
			return model_fail(o, -ENOTSUP, "%s.%s is %d; supported is %d", o->m->arch, must[i].key, v, must[i].value);
	}
	for (int i = 0; i < COUNT(none); i++) {
		float v = 0;
		int rc = model_float(o, (struct setting){ none[i], "" }, 0, 1e6, &v);

		if (rc < 0)
			return rc;
		if (v != 0)
			return model_fail(o, -ENOTSUP, "%s.%s is not supported for an encoder", o->m->arch, none[i]);
	}
	return 0;
}

int model_encoder_settings(struct opening *o)
{
	const struct encoder *e = model_encoder(o);
	const char *name = o->g ? e->gguf : classifies(o, e) ? e->classifies : e->class;
	struct sr_model *m = o->m;
	struct sr_attn *kind = &m->kind[0];
	int rc;

	model_set_name(m->arch, sizeof(m->arch), name, strlen(name));
	if ((o->config && (rc = nomic_names(o)) != 0) || (rc = check_fixed(o, e)) != 0 || (rc = activation(o, e)) != 0 ||
	    (rc = sizes(o, e)) != 0)
		return rc;
	m->layer = calloc((size_t)m->n_layers, sizeof(*m->layer));
	if (!m->layer)
		return model_no_memory(o);
	for (int32_t l = 0; l < m->n_layers; l++)
		m->layer[l] = (struct sr_layer){ .mixer = SR_ATTEND, .ffn = e->ffn, .d_ff = m->d_ff };
	kind->n_kv_heads = kind->n_heads;
	kind->head_dim = m->d_model / kind->n_heads;
	kind->scale = 1 / sqrtf((float)kind->head_dim);
	kind->bidirectional = 1;
	kind->rope = (struct sr_rope){ .kind = SR_ROPE_NONE, .factor = 1, .magnitude = 1 };
	m->n_kinds = 1;
	m->embed_scale = 1;
	m->norm_kind = SR_LAYER;
	m->norm_after = e->after;
	if ((o->g && (rc = check_heads(o)) != 0) || (e->read && (rc = e->read(o)) != 0))
		return rc;
	if (classifies(o, e) && (rc = model_classifier_settings(o, e->head)) != 0)
		return rc;
	return o->g ? model_check_gguf(o) : model_check_config(o);
}

/* ---- tensors -------------------------------------------------------------------------------- */

static int32_t size_of(const struct sr_model *m, uint8_t size)
{
	const int32_t of[] = { 1, m->d_model, m->d_ff, m->n_vocab, m->context, 0, 0 };

	return of[size];
}

/* Where a tensor of layer l goes. */
static struct sr_tensor *place(struct sr_model *m, const struct encoder_spec *s, int32_t l)
{
	if (s->place == MODEL)
		return (struct sr_tensor *)((char *)m + s->at);
	if (s->place == NEXT && l == m->n_layers - 1)
		return s->at == offsetof(struct sr_layer, norm1) ? &m->norm : &m->norm_bias;
	return (struct sr_tensor *)((char *)&m->layer[l + (s->place == NEXT)] + s->at);
}

/* The shape of the tensor in its file, and the part of it that is s. */
static int fit(struct opening *o, const struct encoder_spec *s, const char *name, struct found_tensor *f)
{
	const uint64_t k = (uint64_t)size_of(o->m, s->k);
	const uint64_t skipped = s->n == sP ? (uint64_t)o->first_position : 0;
	const bool types = s->n == sT || s->n == sT2;
	uint64_t n = types ? f->n_dims == 1 ? 1 : f->dim[0] : (uint64_t)size_of(o->m, s->n) * s->parts + skipped;
	bool vector = f->n_dims == 1;

	if ((vector ? n != 1 : f->n_dims != 2 || s->n == ONE || f->dim[0] != n) || f->dim[!vector] != k)
		return model_fail(o, -EINVAL, "tensor %s has not the shape [%d][%d] of this model's settings", name, (int)n,
		                  (int)k);
	if (types)                             /* type 0 is added to all tokens, or the second one */
		return n > 1 ? model_cut_rows(o, name, f, n, s->n == sT2, 1) : 0;
	if (s->parts > 1 || skipped)
		return model_cut_rows(o, name, f, n, skipped + (uint64_t)s->part * (n / s->parts), n / s->parts - skipped);
	return 0;
}

static int take(struct opening *o, const struct encoder *e, const struct encoder_spec *s, int32_t l, char *name)
{
	struct sr_tensor *t = place(o->m, s, l);
	struct found_tensor f = { .type = SR_NONE };
	const char *own = o->g ? s->gguf : s->hf;
	int rc;

	if (s->place == MODEL || s->place == FIRST)
		snprintf(name, NAME_MAX_BYTES, "%s%s", o->g || !o->m->classifier.n_labels ? "" : e->before, own);
	else
		snprintf(name, NAME_MAX_BYTES, "%s%s%d.%s", o->g || !o->m->classifier.n_labels ? "" : e->before,
		         o->g ? "blk." : e->layer, l, own);
	rc = o->g ? model_find_gguf(o, name, &f) : model_find_hf(o, name, &f);
	if (rc == 1)
		return model_fail(o, -EINVAL, "tensor %s is missing", name);
	if (rc)
		return rc;
	if (f.type == SR_NONE || (!o->g && f.type != SR_F32 && f.type != SR_F16 && f.type != SR_BF16))
		return model_fail(o, -ENOTSUP, "tensor %s is of type %s; supported are F32, F16, BF16", name, f.type_name);
	if (s->n == sT2 && (!o->m->classifier.n_labels || f.n_dims == 1 || f.dim[0] == 1))
		return 0;                      /* none is told apart */
	if ((rc = fit(o, s, name, &f)) != 0)
		return rc;
	*t = (struct sr_tensor){ .name = name, .type = f.type, .count = 1, .data = f.data, .k = size_of(o->m, s->k),
	                         .n = s->n == sT || s->n == sT2 ? 1 : size_of(o->m, s->n) };
	o->md->weight_bytes += f.data.bytes;
	return 0;
}

/* A tensor that no line takes is refused, but for ids of positions, and a pooler that no classifier reads. */
static int check_rest(struct opening *o, const struct encoder *e)
{
	const char *before = !o->g && o->m->classifier.n_labels ? e->before : "";
	const size_t skip = strlen(before);

	for (uint64_t i = 0; i < (o->g ? o->g->n_tensors : o->st->n_tensors); i++) {
		struct gguf_string s = o->g ? o->g->tensor[i].name
			: (struct gguf_string){ o->st->all[i].t->name, strlen(o->st->all[i].t->name) };

		if (s.n > skip && memcmp(s.s, before, skip) == 0)
			s = (struct gguf_string){ s.s + skip, s.n - skip };

		if (!o->taken[i] && !(s.n == 23 && memcmp(s.s, "embeddings.position_ids", 23) == 0) &&
		    !(s.n > 7 && memcmp(s.s, "pooler.", 7) == 0))
			return model_fail(o, -ENOTSUP, "tensor %.*s is no part of %s as Slipring knows it", s.n < 100 ? (int)s.n : 100,
			                  s.s, o->m->arch);
	}
	return 0;
}

int model_encoder_tensors(struct opening *o)
{
	const struct encoder *e = model_encoder(o);
	struct sr_model *m = o->m;
	int rc = 0;
	char *name;

	o->taken = calloc((o->g ? o->g->n_tensors : o->st->n_tensors) + 1, sizeof(*o->taken));
	o->md->names = name = calloc((size_t)m->n_layers * (size_t)e->n_specs, NAME_MAX_BYTES);
	if (!o->taken || !name)
		return model_no_memory(o);
	for (int32_t l = 0; l < m->n_layers; l++)
		for (int i = 0; i < e->n_specs && !rc; i++) {
			const enum place_of p = e->specs[i].place;

			if (l ? p == MODEL || p == FIRST : p == OTHERS)
				continue;
			rc = take(o, e, &e->specs[i], l, name);
			name += NAME_MAX_BYTES;
		}
	snprintf(o->md->stored, sizeof(o->md->stored), "%s", model_type_name(o->g ? m->layer[0].up.type : m->embed.type));
	if (!rc && m->classifier.n_labels)
		rc = model_take_classifier(o, e->head);
	return rc ? rc : check_rest(o, e);
}
