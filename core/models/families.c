/* models/families.c - the families of models that run, a row each: their names, and what their layers have
 * beyond the plain llama's.  A family whose parts are all known to kernels/ needs nothing but a row, a reader
 * of its own settings if it has some, a recorded model in tests/models and a word in docs/model.md.
 *
 * A reader runs when sizes, rope and windows are known: kind[0] is that of layers that attend to all, kind[1]
 * that of layers with a window.  A key that nobody reads is checked by keys.c.
 */
#include "impl.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- readers ------------------------------------------------------------------------------------ */

/* Embeddings times sqrt(D).  transformers rounds it to the type of the weights, llama.cpp does not, nor do we. */
static int read_gemma(struct opening *o)
{
	o->m->embed_scale = sqrtf((float)o->m->d_model);
	return 0;
}

/* 1 / sqrt(query_pre_attn_scalar).  A GGUF does not have it: it is the width of a head, but in the 27B models,
 * which are known by their number of layers, D / H; as in llama.cpp. */
static int gemma_scale(struct opening *o, int32_t layers_of_27b)
{
	struct sr_model *m = o->m;
	float of = (float)m->kind[0].head_dim;
	int rc;

	if (o->g && m->n_layers == layers_of_27b)
		of = (float)m->d_model / (float)m->kind[0].n_heads;
	rc = model_float(o, (struct setting){ "", "query_pre_attn_scalar" }, 1, 1e5, &of);
	m->kind[0].scale = m->kind[1].scale = 1 / sqrtf(of);
	return rc < 0 ? rc : 0;
}

static int read_gemma2(struct opening *o)
{
	struct sr_model *m = o->m;
	float scores = o->g ? 50 : 0, logits = o->g ? 30 : 0;   /* as llama.cpp; config.json: the row's defaults */
	int rc;

	if ((rc = model_float(o, (struct setting){ "attn_logit_softcapping", "attn_logit_softcapping" }, 0, 1e6,
	                      &scores)) < 0 ||
	    (rc = model_float(o, (struct setting){ "final_logit_softcapping", "final_logit_softcapping" }, 0, 1e6,
	                      &logits)) < 0)
		return rc;
	m->kind[0].cap = m->kind[1].cap = scores;
	m->logit_cap = logits;
	read_gemma(o);
	return gemma_scale(o, 46);
}

/* Layers with a window have a rope of their own: rope_parameters says so, or rope_local_base_freq. */
static int read_gemma3(struct opening *o)
{
	struct sr_model *m = o->m;
	float theta = 10000;
	int rc = model_float(o, (struct setting){ "rope.freq_base_swa", "rope_local_base_freq" }, 2, 1e12, &theta);

	if (rc < 0 || (rc = model_int(o, (struct setting){ "context_length", "max_position_embeddings" }, 1, 1 << 28,
	                              &m->context)) < 0) /* rope's factor does not make it longer */
		return rc;
	if (!o->rope[1].obj)
		m->kind[1].rope = (struct sr_rope){ .dims = m->kind[0].head_dim, .context = m->context,
		                                    .theta = theta, .factor = 1, .magnitude = 1 };
	m->embed_scale = sqrtf((float)m->d_model);
	if (!o->g && ((rc = model_must(o, "attn_logit_softcapping", "0")) != 0 ||
	              (rc = model_must(o, "final_logit_softcapping", "0")) != 0))
		return rc;
	return gemma_scale(o, 62);
}

/* Four multipliers.  The logits' is folded into the last norm. */
static int read_granite(struct opening *o)
{
	struct sr_model *m = o->m;
	struct sr_attn *kind = &m->kind[0];
	float logits = 1;
	int rc;

	if ((rc = model_float(o, (struct setting){ "attention.scale", "attention_multiplier" }, 0, 1e3,
	                      &kind->scale)) < 0 ||
	    (rc = model_float(o, (struct setting){ "embedding_scale", "embedding_multiplier" }, 0, 1e4,
	                      &m->embed_scale)) < 0 ||
	    (rc = model_float(o, (struct setting){ "residual_scale", "residual_multiplier" }, 0, 1e3,
	                      &m->residual)) < 0 ||
	    (rc = model_float(o, (struct setting){ "logit_scale", "logits_scaling" }, 1e-4, 1e4, &logits)) < 0)
		return rc;
	m->norm.mul = 1 / logits;
	return 0;
}

/* Layers with a window are not scaled. */
static int read_olmo(struct opening *o)
{
	struct sr_attn *kind = &o->m->kind[1];
	float theta = kind->rope.theta;
	int rc = model_float(o, (struct setting){ "rope.freq_base_swa", "" }, 2, 1e12, &theta);

	if (!o->rope[1].obj)
		kind->rope = (struct sr_rope){ .dims = kind->rope.dims, .context = o->m->context, .theta = theta,
		                               .factor = 1, .magnitude = 1 };
	return rc < 0 ? rc : 0;
}

/* If there are windows at all, layers without one do not rotate. */
static int read_no_rope(struct opening *o)
{
	if (o->m->kind[1].window)
		o->m->kind[0].rope = (struct sr_rope){ .kind = SR_ROPE_NONE };
	return 0;
}

static int read_exaone4(struct opening *o)
{
	int rc = model_must(o, "sliding_window_pattern", "LLLG|4");

	return rc ? rc : read_no_rope(o);
}

static int read_cohere2(struct opening *o)
{
	float logits = 1;
	int rc = model_float(o, (struct setting){ "logit_scale", "logit_scale" }, 1e-4, 1e4, &logits);

	if (rc < 0 || (rc = model_must(o, "use_gated_activation", "true")) != 0 ||
	    (rc = model_must(o, "use_parallel_block", "true")) != 0 || (rc = model_must(o, "rotary_pct", "1")) != 0)
		return rc;
	o->m->norm.mul = logits;
	return read_no_rope(o);
}

/* Give layers that do not rotate kind `without`, the others the other one.  no_rope_layers[l] is 1 where rope is
 * used; without the list, or if it is empty, every 4th layer does not rotate. */
static int no_rope_kinds(struct opening *o, int32_t without)
{
	struct sr_model *m = o->m;
	const json_t *list = model_ask(o, o->config, "no_rope_layers");
	int32_t each = 4, rc = model_int(o, (struct setting){ "", "no_rope_layer_interval" }, 1, LAYERS_MAX, &each);

	if (rc < 0)
		return rc;
	if (list && json_array_size(list) > 0 && json_array_size(list) != (size_t)m->n_layers)
		return model_fail(o, -EINVAL, "no_rope_layers is no list of %d numbers, one a layer", m->n_layers);
	m->kind[without].rope = (struct sr_rope){ .kind = SR_ROPE_NONE };
	for (int32_t l = 0; l < m->n_layers; l++) {
		bool none = json_array_size(list) > 0 ? json_integer_value(json_array_get(list, (size_t)l)) == 0
		                                      : (l + 1) % each == 0;

		m->layer[l].kind = none ? without : !without;
	}
	return 0;
}

static int read_smollm3(struct opening *o)
{
	int rc = o->config ? model_must(o, "use_sliding_window", "false") : 0;

	return rc ? rc : no_rope_kinds(o, 1);
}

/* Its layer_types repeat no_rope_layers: kind 1 are the layers in chunks. */
static int llama4_types(struct opening *o)
{
	const json_t *types = model_ask(o, o->config, "layer_types");

	for (int32_t l = 0; json_array_size(types) > 0 && l < o->m->n_layers; l++) {
		const char *is = json_string_value(json_array_get(types, (size_t)l));
		const char *right = o->m->layer[l].kind ? "chunked_attention" : "full_attention";

		if (!is || strcmp(is, right) != 0)
			return model_fail(o, -ENOTSUP, "layer_types[%d] is %.40s; %s would be right for no_rope_layers", l,
			                  is ? is : "no string", right);
	}
	return 0;
}

/* Layers that rope turns attend in chunks, with norms after rope; the others to all, and their queries grow warmer.
 * A GGUF has no key for most of it: these are llama.cpp's values, which it takes for 128 experts without norms. */
static int read_llama4(struct opening *o)
{
	struct sr_model *m = o->m;
	struct sr_attn *full = &m->kind[0], *chunks = &m->kind[1];
	const json_t *heat = model_ask(o, o->config, "attn_temperature_tuning");
	bool norms = o->config || m->experts.n != 128;
	int32_t dense = m->d_ff, window = -1, rc;

	chunks->chunk = full->heat_from = 8192;
	if ((rc = no_rope_kinds(o, 0)) != 0 || (rc = llama4_types(o)) != 0 ||
	    (rc = model_bool(o, (struct setting){ "", "use_qk_norm" }, &norms)) < 0 ||
	    (o->config && (rc = model_int(o, (struct setting){ "", "attention_chunk_size" }, 1, 1 << 28,
	                                  &chunks->chunk)) < 0) ||
	    (o->config && (rc = model_int(o, (struct setting){ "", "floor_scale" }, 1, 1 << 28, &full->heat_from)) < 0) ||
	    (o->config && (rc = model_int(o, (struct setting){ "", "intermediate_size_mlp" }, 1, 1 << 19, &dense)) < 0) ||
	    (o->g && (rc = model_int(o, (struct setting){ "attention.sliding_window", "" }, 0, 0, &window)) < 0))
		return rc;
	chunks->qk_norm = norms ? SR_QK_BARE | SR_QK_LATE : 0;
	full->heat_add = 1;
	full->heat = o->g || json_is_true(heat) || json_number_value(heat) != 0 ? 0.1f : 0;
	rc = full->heat != 0 ? model_float(o, (struct setting){ "", "attn_scale" }, 0, 100, &full->heat) : 0;
	for (int32_t l = 0; l < m->n_layers; l++) {
		if (window == 0)                   /* neither chunks nor layers without rope */
			m->layer[l].kind = 1;
		if (m->layer[l].ffn == SR_GATED)
			m->layer[l].d_ff = dense;
	}
	if (window == 0)
		chunks->chunk = 0;
	m->d_ff = dense > m->d_ff ? dense : m->d_ff;
	return rc < 0 ? rc : 0;
}

/* Queries grow warmer with the position.  In a GGUF the magnitude of yarn has a key of its own. */
static int read_ministral3(struct opening *o)
{
	const char *of = o->rope[0].of;
	const json_t *beta = o->rope[0].obj ? model_ask(o, o->rope[0].obj, "llama_4_scaling_beta") : NULL;
	struct sr_attn *kind = &o->m->kind[0];
	float all = 0;
	int rc = 0;

	if (beta && (!json_is_number(beta) || !(json_number_value(beta) >= 0 && json_number_value(beta) <= 100)))
		return model_fail(o, -EINVAL, "%s.llama_4_scaling_beta is no number from 0 to 100", of);
	kind->heat = (float)json_number_value(beta);
	if (o->g && ((rc = model_float(o, (struct setting){ "attention.temperature_scale", "" }, 0, 100,
	                               &kind->heat)) < 0 ||
	             (rc = model_float(o, (struct setting){ "rope.scaling.yarn_log_multiplier", "" }, 0, 100,
	                               &all)) < 0))
		return rc;
	if (all > 0 && kind->rope.kind == SR_ROPE_YARN)
		kind->rope.magnitude = model_mscale(kind->rope.factor, 1) / model_mscale(kind->rope.factor, all);
	kind->heat_from = kind->rope.context;
	return 0;
}

static int read_seed(struct opening *o)
{
	bool out = false;
	int rc = model_bool(o, (struct setting){ "", "attention_out_bias" }, &out);

	o->has |= out ? O_BIAS : 0;
	return rc < 0 ? rc : 0;
}

/* Norms of q and k come after rope.  The dynamic scaling is one of theta, fixed: in a GGUF it is done. */
static int read_hunyuan(struct opening *o)
{
	struct sr_attn *kind = &o->m->kind[0];

	kind->qk_norm = SR_QK_LATE;
	return o->config ? model_must(o, "use_qk_norm", "true") : 0;
}

static int read_qwen2_moe(struct opening *o)
{
	return o->config ? model_must(o, "qkv_bias", "true") : 0;
}

static int read_minimax(struct opening *o)
{
	struct sr_rope *r = &o->m->kind[0].rope;
	int rc;

	if (o->g)
		return 0;
	if ((rc = model_int(o, (struct setting){ "", "rotary_dim" }, 2, o->m->kind[0].head_dim, &r->dims)) < 0 ||
	    (rc = model_must(o, "use_qk_norm", "true")) != 0 || (rc = model_must(o, "qk_norm_type", "per_layer")) != 0)
		return rc;
	return model_must(o, "use_routing_bias", "true");
}

static int read_ernie(struct opening *o) { return o->config ? model_must(o, "use_bias", "false") : 0; }

static int read_ernie_moe(struct opening *o)
{
	int rc = read_ernie(o);

	if (rc || !o->config || (rc = model_must(o, "moe_use_aux_free", "true")) != 0)
		return rc;
	return model_must(o, "moe_norm_min", "1e-12|1e-20");
}

/* The large model has norms of q and k, the small one none. */
static int read_glm4_moe(struct opening *o)
{
	bool norms = o->g && gguf_tensor(o->g, "blk.0.attn_q_norm.weight");
	int rc = o->config ? model_bool(o, (struct setting){ "", "use_qk_norm" }, &norms) : 0;

	o->has |= norms ? QK_NORM : 0;
	return rc < 0 ? rc : 0;
}

/* Positions of text are the same in all three parts of a rope for images, so it is the usual one.  Value heads
 * lie in turn in a GGUF: the first of each key head, then the second. */
static int read_qwen3_5(struct opening *o)
{
	o->m->delta.tiled = o->g != NULL;
	model_note_asked(o, false, "rope.dimension_sections");
	model_note_asked(o, true, "mrope_section");
	model_note_asked(o, true, "mrope_interleaved");
	return o->config ? model_must(o, "attn_output_gate", "true") : 0;
}

/* An activation and biases of its own.  A GGUF does not say where yarn's ramp is exact, nor the limit. */
static int read_gpt_oss(struct opening *o)
{
	struct sr_model *m = o->m;
	int rc = 0;

	m->act = SR_OAI;
	m->act_limit = 7;
	m->kind[0].rope.exact = m->kind[1].rope.exact |= o->g != NULL;
	if (o->config && (rc = model_float(o, (struct setting){ "", "swiglu_limit" }, 0.1, 1e4, &m->act_limit)) >= 0)
		rc = model_must(o, "swiglu_alpha", "1.702");
	return rc < 0 ? rc : 0;
}

/* A list that repeats which layers have experts. */
static int mlp_types(struct opening *o)
{
	const json_t *types = model_ask(o, o->config, "mlp_layer_types");

	for (int32_t l = 0; json_array_size(types) > 0 && l < o->m->n_layers; l++) {
		const char *is = json_string_value(json_array_get(types, (size_t)l));
		const char *right = o->m->layer[l].ffn == SR_EXPERTS ? "sparse" : "dense";

		if (!is || strcmp(is, right) != 0)
			return model_fail(o, -ENOTSUP, "mlp_layer_types[%d] is %.40s; %s would be right for "
			                  "first_k_dense_replace", l, is ? is : "no string", right);
	}
	return 0;
}

static int read_deepseek(struct opening *o)
{
	int rc = o->config ? model_must(o, "attention_bias", "false") : 0;

	if (rc || (o->config && (rc = model_must(o, "rope_interleave", "true")) != 0) || (rc = mlp_types(o)) != 0)
		return rc;
	return model_latent_settings(o);
}

/* Its weights are not renormalized: what would be done if they were, programs do differently. */
static int read_deepseek2(struct opening *o)
{
	int rc = o->config ? model_must(o, "norm_topk_prob", "false") : 0;

	return rc ? rc : read_deepseek(o);
}

/* ---- the rows ----------------------------------------------------------------------------------- */

#define GEMMA_DEFAULTS "\"tie_word_embeddings\":true,\"head_dim\":256,\"rms_norm_eps\":1e-6,"
static const char gemma[] = "{" GEMMA_DEFAULTS "\"hidden_act\":\"gelu_pytorch_tanh\"}",
	gemma2[] = "{" GEMMA_DEFAULTS "\"query_pre_attn_scalar\":256,\"sliding_window\":4096,"
		"\"attn_logit_softcapping\":50,\"final_logit_softcapping\":30}",
	gemma3[] = "{" GEMMA_DEFAULTS "\"query_pre_attn_scalar\":256,\"sliding_window\":4096,\"rope_theta\":1e6,"
		"\"vocab_size\":262208,\"num_attention_heads\":8,\"num_key_value_heads\":4,"
		"\"max_position_embeddings\":131072}",
	deepseek[] = "{\"norm_topk_prob\":true,\"topk_method\":\"noaux_tc\"}",
	deepseek2[] = "{\"topk_method\":\"greedy\"}",
	mistral4[] = "{\"norm_topk_prob\":true}",
	gemma4[] = "{\"tie_word_embeddings\":true,\"head_dim\":256,\"rms_norm_eps\":1e-6,\"sliding_window\":512,"
		"\"global_head_dim\":512,\"hidden_size_per_layer_input\":256,\"num_attention_heads\":8,"
		"\"num_key_value_heads\":4,\"max_position_embeddings\":131072,\"vocab_size\":262144,"
		"\"vocab_size_per_layer_input\":262144}",
	llama4[] = "{\"interleave_moe_layer_step\":1,\"use_qk_norm\":true,\"attn_temperature_tuning\":true,"
		"\"head_dim\":128}",
	qwen3_next[] = "{\"head_dim\":256,\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":128,"
		"\"linear_value_head_dim\":128,\"linear_num_key_heads\":16,\"linear_num_value_heads\":32}",
	tied[] = "{\"tie_word_embeddings\":true}";

const struct model_family model_families[] = {
	{ .class = "LlamaForCausalLM", .type = "llama", .gguf = "llama", .has = UNTIED | MAY_FFN_BIAS, .pairs = true,
	  .experts = &experts_llama },
	{ .class = "MistralForCausalLM", .type = "mistral", .has = UNTIED, .windows = WINDOW_ALL },
	{ .class = "Qwen2ForCausalLM", .type = "qwen2", .gguf = "qwen2", .has = UNTIED | QKV_BIAS,
	  .windows = WINDOW_ASKED },
	{ .class = "Qwen3ForCausalLM", .type = "qwen3", .gguf = "qwen3", .has = UNTIED | QK_NORM,
	  .windows = WINDOW_ASKED },
	{ .class = "GemmaForCausalLM", .type = "gemma", .gguf = "gemma", .has = UNTIED | LESS_ONE, .act = SR_GELU_TANH,
	  .defaults = gemma, .read = read_gemma },
	{ .class = "Gemma2ForCausalLM", .type = "gemma2", .gguf = "gemma2", .has = UNTIED | LESS_ONE | POST_NORM,
	  .windows = WINDOW_SOME, .full_each = 2, .act = SR_GELU_TANH, .act_key = "hidden_activation",
	  .defaults = gemma2, .read = read_gemma2 },
	{ .class = "Gemma3ForCausalLM", .type = "gemma3_text", .gguf = "gemma3",
	  .has = UNTIED | LESS_ONE | POST_NORM | QK_NORM, .windows = WINDOW_SOME, .full_each = 6, .act = SR_GELU_TANH,
	  .act_key = "hidden_activation", .defaults = gemma3, .read = read_gemma3 },
	{ .class = "Gemma4ForCausalLM", .type = "gemma4_text", .gguf = "gemma4",
	  .has = UNTIED | POST_NORM | QK_NORM | GEMMA4, .windows = WINDOW_SOME, .full_each = 6, .act = SR_GELU_TANH,
	  .act_key = "hidden_activation", .defaults = gemma4, .experts = &experts_gemma4, .read = model_gemma4_settings },
	{ .class = "Phi3ForCausalLM", .type = "phi3", .gguf = "phi3", .has = UNTIED | FUSED_QKV | FUSED_UP,
	  .windows = WINDOW_ALL, .partial = 1 },
	{ .class = "Olmo2ForCausalLM", .type = "olmo2", .gguf = "olmo2",
	  .has = UNTIED | POST_NORM | NO_PRE_NORM | QK_NORM | ROW_NORM, .windows = WINDOW_SOME, .full_each = 4,
	  .read = read_olmo },
	{ .class = "Olmo3ForCausalLM", .type = "olmo3", .has = UNTIED | POST_NORM | NO_PRE_NORM | QK_NORM | ROW_NORM,
	  .windows = WINDOW_SOME, .full_each = 4, .read = read_olmo },
	{ .class = "GraniteForCausalLM", .type = "granite", .gguf = "granite", .has = UNTIED | MAY_FFN_BIAS, .pairs = true,
	  .read = read_granite },
	{ .class = "SmolLM3ForCausalLM", .type = "smollm3", .gguf = "smollm3", .has = UNTIED | MAY_FFN_BIAS, .pairs = true,
	  .defaults = tied, .read = read_smollm3 },
	{ .class = "Ministral3ForCausalLM", .type = "ministral3", .gguf = "mistral3", .has = UNTIED, .pairs = true,
	  .windows = WINDOW_ALL, .read = read_ministral3 },
	{ .class = "Glm4ForCausalLM", .type = "glm4", .gguf = "glm4",
	  .has = UNTIED | POST_NORM | GLM_NAMES | FUSED_UP | NO_O_BIAS, .pairs = true, .hf_pairs = true,
	  .partial = 0.5f },
	{ .class = "Exaone4ForCausalLM", .type = "exaone4", .gguf = "exaone4",
	  .has = UNTIED | POST_NORM | NO_PRE_NORM | QK_NORM, .windows = WINDOW_SOME, .full_each = 4,
	  .read = read_exaone4 },
	{ .class = "Cohere2ForCausalLM", .type = "cohere2", .gguf = "cohere2", .has = UNTIED | ONE_NORM | LAYER_NORM,
	  .windows = WINDOW_SOME, .full_each = 4, .pairs = true, .hf_pairs = true, .defaults = tied,
	  .read = read_cohere2 },
	{ .class = "NemotronForCausalLM", .type = "nemotron", .gguf = "nemotron",
	  .has = UNTIED | MAY_FFN_BIAS | LAYER_NORM | NORM_BIAS | LESS_ONE | NO_GATE, .act = SR_RELU2, .partial = 0.5f },
	{ .class = "MixtralForCausalLM", .type = "mixtral", .has = UNTIED, .windows = WINDOW_ALL,
	  .experts = &experts_mixtral },
	{ .class = "Qwen2MoeForCausalLM", .type = "qwen2_moe", .gguf = "qwen2moe", .has = UNTIED | QKV_BIAS,
	  .windows = WINDOW_ASKED, .experts = &experts_qwen2, .read = read_qwen2_moe },
	{ .class = "Qwen3MoeForCausalLM", .type = "qwen3_moe", .gguf = "qwen3moe", .has = UNTIED | QK_NORM,
	  .windows = WINDOW_ASKED, .experts = &experts_qwen3 },
	{ .class = "OlmoeForCausalLM", .type = "olmoe", .gguf = "olmoe", .has = UNTIED | QK_NORM | ROW_NORM,
	  .experts = &experts_olmoe },
	{ .class = "GraniteMoeForCausalLM", .type = "granitemoe", .gguf = "granitemoe", .has = UNTIED, .pairs = true,
	  .experts = &experts_granite, .read = read_granite },
	{ .class = "MiniMaxM2ForCausalLM", .type = "minimax_m2", .gguf = "minimax-m2",
	  .has = UNTIED | QK_NORM | ROW_NORM, .partial = 0.5f, .experts = &experts_minimax, .read = read_minimax },
	{ .class = "Ernie4_5ForCausalLM", .type = "ernie4_5", .gguf = "ernie4_5", .has = UNTIED, .pairs = true,
	  .hf_pairs = true, .defaults = tied, .read = read_ernie },
	{ .class = "Ernie4_5_MoeForCausalLM", .type = "ernie4_5_moe", .gguf = "ernie4_5-moe", .has = UNTIED,
	  .pairs = true, .hf_pairs = true, .experts = &experts_ernie, .read = read_ernie_moe },
	{ .class = "Glm4MoeForCausalLM", .type = "glm4_moe", .gguf = "glm4moe",
	  .has = UNTIED | NO_O_BIAS | POST_IS_NORM2 | MAY_DRAFT,
	  .partial = 0.5f, .experts = &experts_glm4, .read = read_glm4_moe },
	{ .class = "GptOssForCausalLM", .type = "gpt_oss", .gguf = "gpt-oss", .has = UNTIED | SINKS | POST_IS_NORM2,
	  .windows = WINDOW_SOME, .full_each = 2, .experts = &experts_gpt_oss, .read = read_gpt_oss },
	{ .class = "Qwen3NextForCausalLM", .type = "qwen3_next", .gguf = "qwen3next",
	  .has = UNTIED | QK_NORM | LESS_ONE | POST_IS_NORM2 | O_GATE | DELTA | MAY_DRAFT, .partial = 0.25f,
	  .defaults = qwen3_next, .experts = &experts_qwen3_next },
	{ .class = "Qwen3_5ForCausalLM", .type = "qwen3_5_text", .gguf = "qwen35",
	  .has = UNTIED | QK_NORM | LESS_ONE | POST_IS_NORM2 | O_GATE | DELTA | MAY_DRAFT, .partial = 0.25f,
	  .defaults = qwen3_next, .read = read_qwen3_5 },
	{ .class = "Qwen3_5MoeForCausalLM", .type = "qwen3_5_moe_text", .gguf = "qwen35moe",
	  .has = UNTIED | QK_NORM | LESS_ONE | POST_IS_NORM2 | O_GATE | DELTA | MAY_DRAFT, .partial = 0.25f,
	  .defaults = qwen3_next, .experts = &experts_qwen3_5, .read = read_qwen3_5 },
	{ .class = "SeedOssForCausalLM", .type = "seed_oss", .gguf = "seed_oss", .has = UNTIED | MAY_FFN_BIAS | NO_O_BIAS | POST_IS_NORM2,
	  .read = read_seed },
	{ .class = "DeepseekV3ForCausalLM", .type = "deepseek_v3", .also = "kimi_k2", .gguf = "deepseek2",
	  .has = UNTIED | LATENT | MAY_DRAFT, .pairs = true, .hf_pairs = true, .defaults = deepseek,
	  .experts = &experts_deepseek, .read = read_deepseek },
	{ .class = "DeepseekV2ForCausalLM", .type = "deepseek_v2", .has = UNTIED | LATENT, .hf_pairs = true,
	  .defaults = deepseek2, .experts = &experts_deepseek2, .read = read_deepseek2 },
	{ .class = "Glm4MoeLiteForCausalLM", .type = "glm4_moe_lite", .has = UNTIED | LATENT | MAY_DRAFT, .hf_pairs = true,
	  .defaults = deepseek, .experts = &experts_deepseek, .read = read_deepseek },
	{ .class = "Mistral4ForCausalLM", .type = "mistral4", .gguf = "mistral4", .has = UNTIED | LATENT, .pairs = true,
	  .hf_pairs = true, .defaults = mistral4, .experts = &experts_mistral4, .read = read_deepseek },
	{ .class = "Llama4ForCausalLM", .type = "llama4_text", .gguf = "llama4", .has = UNTIED | LLAMA4_NAMES,
	  .windows = WINDOW_CHUNKS, .pairs = true, .hf_pairs = true, .defaults = llama4, .experts = &experts_llama4,
	  .read = read_llama4 },
	{ .class = "HunYuanDenseV1ForCausalLM", .type = "hunyuan_v1_dense", .gguf = "hunyuan-dense",
	  .has = UNTIED | QK_NORM | HUNYUAN_NAMES, .read = read_hunyuan },
};
const int model_n_families = sizeof(model_families) / sizeof(*model_families);

/* ---- finding one -------------------------------------------------------------------------------- */

static const char *family_name(const struct model_family *f, bool gguf)
{
	return gguf ? f->gguf : f->class;
}

const struct model_family *model_family_find(const char *name, bool gguf)
{
	for (int i = 0; i < model_n_families; i++) {
		const char *is = family_name(&model_families[i], gguf);

		if (name && is && strcmp(is, name) == 0)
			return &model_families[i];
	}
	return NULL;
}

const struct model_family *model_family_of_type(const char *type)
{
	for (int i = 0; i < model_n_families; i++)
		if (type && (strcmp(model_families[i].type, type) == 0 ||
		             (model_families[i].also && strcmp(model_families[i].also, type) == 0)))
			return &model_families[i];
	return NULL;
}

const char *model_class_of(const char *arch)
{
	const struct model_family *f = model_family_find(arch, true);

	return f ? f->class : NULL;
}
