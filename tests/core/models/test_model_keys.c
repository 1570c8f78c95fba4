/* LINK: @models kernels/rope.c -ljansson */
/* test_model_keys.c - each setting that may change the numbers is read, or must have the one value that we
 * compute, or is harmless, or is refused by name.  The models have no weights. */
#include "tests/rig/model_files.h"

enum { L = 1, M = 2, Q2 = 4, Q3 = 8, ALL = 15 };         /* Llama, Mistral, Qwen 2 and 3 */
static const char *const classes[] = { "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM",
                                       "Qwen3ForCausalLM" };

#define FOUR "\"hidden_size\":64,\"intermediate_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":4," \
	"\"num_key_value_heads\":2,\"vocab_size\":96,\"max_position_embeddings\":8192,\"rms_norm_eps\":1e-6," \
	"\"rope_theta\":10000.0,\"head_dim\":16,"

/* A model of class `family` with these settings before its sizes; NULL and a sentence in err. */
static struct model *open_config(int family, const char *more)
{
	char text[3000];
	struct model *md;

	snprintf(text, sizeof(text), "\"architectures\":[\"%s\"],%s%s" FOUR, classes[family], more,
	         *more ? "," : "");
	err[0] = 0;
	return model_open_dummy(&md, hf(text, NULL), err, sizeof(err)) == 0 ? md : NULL;
}

/* It opens, or is refused with the words in `says`. */
static void expect_config(int family, const char *more, const char *says)
{
	struct model *md = open_config(family, more);

	if (!md && (!says || !strstr(err, says) || !strstr(err, "/config.json: ")))
		fail_msg("%s %s: \"%s\" does not say \"%s\"", classes[family], more, err, says ? says : "(opens)");
	if (md && says)
		fail_msg("%s %s opens, but should say \"%s\"", classes[family], more, says);
	model_close(md);
}

/* ---- config.json ------------------------------------------------------------------------------ */

#define UNKNOWN "this setting is not known for"
#define TYPES(a, b, c, d) "\"layer_types\":[\"" a "_attention\",\"" b "_attention\",\"" c "_attention\",\"" d \
	"_attention\"]"
static const struct { int families; const char *settings, *says; } config_keys[] = {
	/* read: a wrong value is refused by the reader (test_model_hf.c has more of them) */
	{ L, "\"model_type\":\"llama\"", NULL }, { M, "\"model_type\":\"mistral\"", NULL },
	{ Q2, "\"model_type\":\"qwen2\"", NULL }, { Q3, "\"model_type\":\"qwen3\"", NULL },
	{ L, "\"model_type\":\"granite\"", "model_type is granite, but architectures[0] is LlamaForCausalLM; llama" },
	{ Q2, "\"model_type\":\"qwen3\"", "model_type is qwen3, but architectures[0] is Qwen2ForCausalLM" },
	{ ALL, "\"hidden_act\":\"gelu\"", "hidden_act gelu is not supported" },
	{ M | Q2 | Q3, "\"mlp_bias\":true", "mlp_bias is true, which is not supported" },
	{ L, "\"mlp_bias\":true", NULL },
	{ ALL, "\"attention_bias\":false,\"mlp_bias\":false,\"hidden_act\":\"silu\"", NULL },
	{ ALL, "\"v_head_dim\":8", "heads of values are 8 wide" },
	{ ALL, "\"original_max_position_embeddings\":0", "original_max_position_embeddings is 0; 1 to" },
	/* must have one value */
	{ ALL, "\"partial_rotary_factor\":1.0", NULL }, { ALL, "\"partial_rotary_factor\":null", NULL },
	{ ALL, "\"partial_rotary_factor\":0.5", "partial_rotary_factor is 0.5, which is not supported for" },
	{ ALL, "\"rope_interleaved\":false", NULL },
	{ ALL, "\"rope_interleaved\":true", "rope_interleaved is true, which is not supported for" },
	{ ALL, "\"is_causal\":true", NULL }, { ALL, "\"is_causal\":false", "is_causal is false" },
	{ ALL, "\"is_encoder_decoder\":true", "is_encoder_decoder is true" },
	{ ALL, "\"add_cross_attention\":true", "add_cross_attention is true" },
	{ ALL, "\"hidden_activation\":\"silu\",\"activation_function\":\"silu\",\"activation\":\"swiglu\"", NULL },
	{ ALL, "\"hidden_activation\":\"gelu\"", "hidden_activation is \"gelu\"" },
	{ ALL, "\"activation_function\":7", "activation_function is 7" },
	{ ALL, "\"num_experts\":0,\"num_local_experts\":null", NULL },
	{ ALL, "\"num_experts\":8", "num_experts is 8" }, { ALL, "\"num_local_experts\":8", "num_local_experts is 8" },
	{ ALL, "\"n_routed_experts\":64", "n_routed_experts is 64" },
	{ ALL, "\"attention_multiplier\":null", NULL }, { ALL, "\"attention_multiplier\":1.0", "attention_multiplier is 1" },
	{ ALL, "\"text_config\":{\"hidden_size\":64}", "text_config is {\"hidden_size\":64}, which" },
	/* unknown, with a name that suggests numbers */
	{ ALL, "\"embedding_multiplier\":1.0,\"residual_multiplier\":1,\"logits_scaling\":1.0,\"logit_scale\":1", NULL },
	{ ALL, "\"embedding_multiplier\":12.0", "embedding_multiplier is 12.0: " UNKNOWN },
	{ ALL, "\"residual_multiplier\":0.22", "residual_multiplier is 0.2" },
	{ ALL, "\"logits_scaling\":8", "logits_scaling is 8: " UNKNOWN },
	{ ALL, "\"logit_scale\":0.0625", "logit_scale is 0.0625: " UNKNOWN },
	{ ALL, "\"final_logit_softcapping\":null,\"attn_logit_softcapping\":0.0", NULL },
	{ ALL, "\"final_logit_softcapping\":30.0", "final_logit_softcapping is 30.0: " UNKNOWN },
	{ ALL, "\"attn_logit_softcapping\":50", "attn_logit_softcapping is 50: " UNKNOWN },
	{ ALL, "\"query_pre_attn_scalar\":256", "query_pre_attn_scalar is 256: " UNKNOWN },
	{ ALL, "\"rope_local_base_freq\":10000", "rope_local_base_freq is 10000: " UNKNOWN },
	{ ALL, "\"no_rope_layers\":[1,0]", "no_rope_layers is [1,0]: " UNKNOWN },
	{ ALL, "\"rotary_pct\":0.25", "rotary_pct is 0.25: " UNKNOWN },
	{ ALL, "\"use_qk_norm\":true", "use_qk_norm is true: " UNKNOWN }, { ALL, "\"use_qk_norm\":false", NULL },
	{ ALL, "\"clip_qkv\":8.0", "clip_qkv is 8.0: " UNKNOWN }, { ALL, "\"alibi\":true", "alibi is true: " UNKNOWN },
	{ ALL, "\"sliding_window_pattern\":6", "sliding_window_pattern is 6: " UNKNOWN },
	{ ALL, "\"attn_temperature_tuning\":4", "attn_temperature_tuning is 4: " UNKNOWN },
	{ ALL, "\"quantization\":{\"bits\":4}", "quantization is {\"bits\":4}: " UNKNOWN },
	{ ALL, "\"compression_config\":{\"format\":\"x\"}", "compression_config is {\"format\":\"x\"}: " UNKNOWN },
	{ ALL, "\"use_parallel_residual\":true", "use_parallel_residual is true: " UNKNOWN },
	/* harmless: training, naming, generation, how a program computes */
	{ ALL, "\"_name_or_path\":\"a/b\",\"transformers_version\":\"4.57.1\",\"torch_dtype\":\"bfloat16\","
	       "\"dtype\":\"bfloat16\",\"use_cache\":true,\"initializer_range\":0.02,\"attention_dropout\":0.1,"
	       "\"pretraining_tp\":2,\"bos_token_id\":1,\"pad_token_id\":2,\"unsloth_version\":\"2025.1\","
	       "\"unsloth_fixed\":true,\"auto_map\":{\"AutoConfig\":\"x.Y\"},\"task_specific_params\":{\"a\":1}", NULL },
	{ ALL, "\"attn_implementation\":\"eager\",\"_attn_implementation_autoset\":true,\"use_flash_attn\":true,"
	       "\"attn_pdrop\":0.1,\"resid_pdrop\":0.1,\"use_memory_efficient_attention\":true,\"output_attentions\":true,\"temperature\":0.7,"
	       "\"layer_norm_eps\":1e-5,\"attn_bias\":true,\"max_sequence_length\":2048,\"is_llama_config\":true,"
	       "\"num_logits_to_keep\":1,\"rope_scaling\":null,\"rope_parameters\":{},\"quantization_config\":null", NULL },
	/* of windows */
	{ L, "\"sliding_window\":64,\"use_sliding_window\":true,\"max_window_layers\":2", NULL },
	{ ALL, "\"sliding_window\":null," TYPES("full", "full", "full", "full"), NULL },
	{ ALL, "\"layer_types\":[\"full_attention\"]", "layer_types is no list of 4 names, one a layer" },
	{ ALL, "\"layer_types\":\"full_attention\"", "layer_types is no list of 4 names" },
	{ ALL, "\"layer_types\":[1,2,3,4]", "layer_types[0] is no string" },
	{ ALL, TYPES("full", "chunked", "full", "full"), "layer_types[1] is chunked_attention; supported are" },
	{ L, TYPES("full", "sliding", "full", "full"), "layer_types has sliding_attention, but this model has no window" },
	{ M, "\"sliding_window\":null," TYPES("full", "sliding", "full", "full"), "but this model has no window" },
	{ M, "\"sliding_window\":64," TYPES("full", "sliding", "full", "full"), "layer_types has full_attention, but "
	                                                                      "sliding_window is 64" },
	{ Q2 | Q3, TYPES("full", "sliding", "full", "full"), "but use_sliding_window or sliding_window says" },
	{ Q2 | Q3, "\"use_sliding_window\":true,\"sliding_window\":null," TYPES("full", "sliding", "full", "full"),
	  "but use_sliding_window or sliding_window says" },
	{ Q2 | Q3, "\"use_sliding_window\":\"yes\"", "use_sliding_window is neither true nor false" },
};

static void test_config_keys(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(config_keys) / sizeof(*config_keys); i++)
		for (int f = 0; f < 4; f++)
			if (config_keys[i].families & 1 << f)
				expect_config(f, config_keys[i].settings, config_keys[i].says);
}

static void test_windows(void **state)
{
	static const struct { int families; const char *settings; int window[4]; } cases[] = {
		{ Q2 | Q3, "\"sliding_window\":64,\"max_window_layers\":1", { 0 } },
		{ Q2 | Q3, "\"use_sliding_window\":true,\"sliding_window\":64,\"max_window_layers\":1", { 0, 64, 64, 64 } },
		{ Q2 | Q3, "\"use_sliding_window\":true,\"sliding_window\":64", { 0 } },        /* from layer 28 */
		{ Q2 | Q3, "\"use_sliding_window\":true,\"max_window_layers\":2", { 0, 0, 4096, 4096 } },
		{ Q2 | Q3, "\"use_sliding_window\":true,\"sliding_window\":null,\"max_window_layers\":0", { 0 } },
		{ Q2 | Q3, "\"use_sliding_window\":true,\"sliding_window\":64,\"max_window_layers\":4,"
		           TYPES("sliding", "full", "sliding", "full"), { 64, 0, 64, 0 } },     /* the list wins */
		{ Q2 | Q3, "\"use_sliding_window\":true,\"sliding_window\":64,\"max_window_layers\":0,"
		           TYPES("full", "full", "full", "full"), { 0 } },
		{ M, "\"sliding_window\":64", { 64, 64, 64, 64 } }, { M, "\"sliding_window\":null", { 0 } },
		{ M, "", { 4096, 4096, 4096, 4096 } },
		{ M, "\"sliding_window\":64," TYPES("sliding", "sliding", "sliding", "sliding"), { 64, 64, 64, 64 } },
		{ L, "\"sliding_window\":64", { 0 } },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		for (int f = 0; f < 4; f++) {
			struct model *md;
			bool mixed = false;

			if (!(cases[i].families & 1 << f))
				continue;
			md = open_config(f, cases[i].settings);
			if (!md)
				fail_msg("%s %s: %s", classes[f], cases[i].settings, err);
			for (int l = 1; l < 4; l++)
				mixed |= cases[i].window[l] != cases[i].window[0];
			assert_int_equal(md->m.n_kinds, mixed ? 2 : 1);
			for (int l = 0; l < 4; l++)
				if (kind_of(&md->m, l)->window != cases[i].window[l])
					fail_msg("%s %s: layer %d has a window of %d", classes[f], cases[i].settings, l,
					         kind_of(&md->m, l)->window);
			model_close(md);
		}
}

/* ---- rope_scaling ------------------------------------------------------------------------------- */

/* A model with this rope. */
static void expect_rope(const struct model *md, const char *what, float magnitude, const float *freq)
{
	float got[8];

	sr_rope_freq(&md->m.kind[0].rope, got);
	if (fabsf(md->m.kind[0].rope.magnitude - magnitude) > 1e-6f * magnitude)
		fail_msg("%s: magnitude %.8g, not %.8g", what, (double)md->m.kind[0].rope.magnitude, (double)magnitude);
	for (int i = 0; i < 8; i++)
		if (fabsf(got[i] - freq[i]) > 1e-6f * freq[i])
			fail_msg("%s: frequency %d is %.8g, not %.8g", what, i, (double)got[i], (double)freq[i]);
}

#define FACTOR_4 { 1, 0.31622777, 0.1, 0.025693506, 0.00625, 0.0013834965, 0.00025, 7.9056942e-05 }
#define EXACT_4  { 1, 0.31622777, 0.1, 0.028613609, 0.0065569715, 0.001285632, 0.00025, 7.9056942e-05 }
#define NARROW   { 1, 0.31622777, 0.1, 0.031622777, 0.0067708333, 0.0011199733, 3.125e-05, 9.8821177e-06 }
#define FACTOR_40 { 1, 0.31622777, 0.1, 0.023914725, 0.005125, 0.00084986212, 2.5e-05, 7.9056942e-06 }
#define FACTOR_2 { 1, 0.31622777, 0.1, 0.02766993, 0.0075, 0.0019764235, 0.0005, 0.00015811388 }

/* From tests/data/make_yarn.py, but for attn_factor: vLLM multiplies by it. */
static void test_yarn(void **state)
{
	static const struct { const char *settings; float magnitude, freq[8]; } cases[] = {
		{ "\"factor\":4", 1.1386294f, FACTOR_4 },
		{ "\"factor\":4,\"truncate\":true,\"beta_fast\":null,\"mscale\":null", 1.1386294f, FACTOR_4 },
		{ "\"factor\":4,\"truncate\":false", 1.1386294f, EXACT_4 },
		{ "\"factor\":32,\"beta_fast\":16,\"beta_slow\":2", 1.3465736f, NARROW },
		{ "\"factor\":4,\"mscale\":0.707,\"mscale_all_dim\":1", 0.96432691f, FACTOR_4 },
		{ "\"factor\":40,\"mscale\":1,\"mscale_all_dim\":1", 1, FACTOR_40 },
		{ "\"factor\":4,\"attention_factor\":1.25,\"mscale\":0.5,\"mscale_all_dim\":1", 1.25f, FACTOR_4 },
		{ "\"factor\":4,\"mscale\":0.707", 1.1386294f, FACTOR_4 },
		{ "\"factor\":null", 1.0693147f, FACTOR_2 },
		{ "\"factor\":4,\"attn_factor\":0.5", 0.5f * 1.1386294f, FACTOR_4 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		for (int outer = 0; outer < 2; outer++) {
			char text[600];
			struct model *md;

			snprintf(text, sizeof(text), "%s\"rope_scaling\":{\"rope_type\":\"yarn\","
			         "\"original_max_position_embeddings\":%d,%s}", outer
			         ? "\"original_max_position_embeddings\":4096," : "", outer ? 100 : 4096, cases[i].settings);
			md = open_config(0, text);
			if (!md)
				fail_msg("%s: %s", text, err);
			expect_rope(md, text, cases[i].magnitude, cases[i].freq);
			model_close(md);
		}
}

#define YARN(s) "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":4096," s "}"
#define INSIDE(s) "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2," s "}"
static void test_bad_rope(void **state)
{
	static const struct { const char *settings, *says; } cases[] = {
		{ YARN("\"mscale\":-1"), "rope_scaling.mscale is no number from 0" },
		{ YARN("\"mscale_all_dim\":\"1\""), "rope_scaling.mscale_all_dim is no number" },
		{ YARN("\"truncate\":0"), "rope_scaling.truncate is neither true nor false" },
		{ YARN("\"attn_factor\":0"), "rope_scaling.attn_factor is no number from" },
		{ YARN("\"beta_fast\":1,\"beta_slow\":2"), "rope_scaling.beta_fast must not be below beta_slow" },
		{ YARN("\"extrapolation_factor\":0.5"), "rope_scaling.extrapolation_factor is 0.5, which is not supported" },
		{ YARN("\"extrapolation_factor\":1,\"finetuned\":true,\"apply_yarn_scaling\":true"), NULL },
		{ YARN("\"apply_yarn_scaling\":false"), "rope_scaling.apply_yarn_scaling is false, which" },
		{ "\"rope_scaling\":{\"type\":\"yarn\"}", "rope_scaling.factor is missing, and max_position_embed" },
		{ "\"rope_scaling\":{\"type\":\"linear\"}", "rope_scaling.factor is missing" },
		{ INSIDE("\"partial_rotary_factor\":0.5"), "rope_scaling.partial_rotary_factor is 0.5, which is not" },
		{ INSIDE("\"partial_rotary_factor\":1.0,\"low_freq_factor\":1"), NULL },
		{ INSIDE("\"mrope_section\":[16,24,24]"), "rope_scaling.mrope_section is [16,24,24]: " UNKNOWN },
		{ INSIDE("\"short_factor\":[1.0]"), "rope_scaling.short_factor is [1.0]: " UNKNOWN },
		{ INSIDE("\"alpha\":1000.0"), "rope_scaling.alpha is 1000.0: " UNKNOWN },
		{ INSIDE("\"anything\":null,\"at_all\":false"), NULL },
		{ "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}",
		  "rope_parameters.full_attention is {" },
		{ "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":7e5}," INSIDE("\"a\":null"),
		  "rope_scaling and rope_parameters say different things" },
		{ "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2},\"rope_scaling\":{\"rope_type\":\"linear\","
		  "\"factor\":2}", NULL },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		expect_config(0, cases[i].settings, cases[i].says);
}

/* ---- quantization_config ------------------------------------------------------------------------ */

#define AWQ(s) "\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128,\"version\":\"gemm\"," \
	"\"zero_point\":true," s "}"
#define GPTQ(s) "\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128," s "}"
static void test_quant_keys(void **state)
{
	static const struct { const char *settings, *says; } cases[] = {
		{ AWQ("\"modules_to_not_convert\":[\"lm_head\"],\"do_fuse\":true,\"backend\":\"autoawq\""), NULL },
		{ AWQ("\"rotation\":\"hadamard\""), "quantization_config.rotation is \"hadamard\": " UNKNOWN },
		{ GPTQ("\"desc_act\":true,\"damp_percent\":0.01,\"sym\":true,\"true_sequential\":true,\"static_groups\":false,"
		       "\"pack_dtype\":\"int32\",\"meta\":{\"quantizer\":[\"x\"]},\"lm_head\":false,\"dynamic\":null"), NULL },
		{ GPTQ("\"is_marlin_format\":true"), "quantization_config.is_marlin_format is true, which" },
		{ GPTQ("\"pack_dtype\":\"int16\""), "quantization_config.pack_dtype is \"int16\", which" },
		{ GPTQ("\"sparsity_config\":{\"format\":\"dense\"},\"transform_config\":{}"), NULL },
		{ GPTQ("\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"}"), "quantization_config.sparsity_config is {" },
		{ GPTQ("\"transform_config\":{\"config_groups\":{\"a\":1}}"), "quantization_config.transform_config is {" },
		{ "\"quantization_config\":{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\"}", NULL },
		{ "\"quantization_config\":{\"quant_method\":\"fp8\",\"activation_scheme\":\"x\"}",
		  "quantization_config.activation_scheme is \"x\", which" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		expect_config(0, cases[i].settings, cases[i].says);
}

/* ---- GGUF --------------------------------------------------------------------------------------- */

/* `key` in each architecture's name; kind: the type of its value. */
static const struct { const char *key; uint32_t kind; double v; const char *s, *says; } gguf_keys[] = {
	{ "vocab_size", GGUF_U32, 96, NULL, NULL }, { "rope.scaling.finetuned", GGUF_BOOL, 1, NULL, NULL },
	{ "pooling_type", GGUF_U32, 3, NULL, NULL }, { "tensor_data_layout", GGUF_STRING, 0, "x", NULL },
	{ "attention.layer_norm_epsilon", GGUF_F32, 1, NULL, NULL },
	{ "attention.causal", GGUF_BOOL, 1, NULL, NULL },
	{ "attention.causal", GGUF_BOOL, 0, NULL, ".attention.causal is false, which is not supported; supported is true" },
	{ "attention.scale", GGUF_F32, 0.35355339, NULL, NULL }, { "attention.scale", GGUF_F32, 0, NULL, NULL },
	{ "attention.scale", GGUF_F32, 0.25, NULL, ".attention.scale is 0.25, which is not supported; 0.353553" },
	{ "attention.sliding_window", GGUF_U32, 0, NULL, NULL },
	{ "attention.sliding_window", GGUF_U32, 128, NULL, NULL },         /* of a context of 128 */
	{ "attention.sliding_window", GGUF_U32, 64, NULL, ".attention.sliding_window is 64 of a context of 128" },
	{ "attention.clamp_kqv", GGUF_F32, 0, NULL, NULL },
	{ "attention.clamp_kqv", GGUF_F32, 8, NULL, ".attention.clamp_kqv is 8, which is not supported; supported is 0" },
	{ "attention.max_alibi_bias", GGUF_F32, 8, NULL, ".attention.max_alibi_bias is 8" },
	{ "attention.temperature_scale", GGUF_F32, 0.5, NULL, ".attention.temperature_scale is 0.5" },
	{ "attn_logit_softcapping", GGUF_F32, 50, NULL, ".attn_logit_softcapping is 50" },
	{ "final_logit_softcapping", GGUF_F32, 30, NULL, ".final_logit_softcapping is 30" },
	{ "logit_scale", GGUF_F32, 1, NULL, NULL }, { "logit_scale", GGUF_F32, 0.25, NULL, ".logit_scale is 0.25" },
	{ "residual_scale", GGUF_F32, 0.5, NULL, ".residual_scale is 0.5" },
	{ "embedding_scale", GGUF_F32, 12, NULL, ".embedding_scale is 12, which is not supported; supported is 0|1" },
	{ "use_parallel_residual", GGUF_BOOL, 1, NULL, ".use_parallel_residual is true" },
	{ "hidden_activation", GGUF_STRING, 0, "silu", NULL },
	{ "hidden_activation", GGUF_STRING, 0, "gelu", ".hidden_activation is gelu" },
	{ "expert_count", GGUF_U32, 0, NULL, NULL }, { "expert_used_count", GGUF_U32, 0, NULL, NULL },
	{ "expert_used_count", GGUF_U32, 2, NULL, ".expert_used_count is 2" },
	{ "expert_shared_count", GGUF_U32, 2, NULL, ".expert_shared_count is 2" },
	{ "leading_dense_block_count", GGUF_U32, 1, NULL, ".leading_dense_block_count is 1" },
	{ "nextn_predict_layers", GGUF_U32, 1, NULL, ".nextn_predict_layers is 1" },
	{ "rope.scaling.alpha", GGUF_F32, 1000, NULL, ".rope.scaling.alpha is 1000" },
	{ "rope.scaling.yarn_log_multiplier", GGUF_F32, 0, NULL, NULL },
	{ "rope.scaling.yarn_log_multiplier", GGUF_F32, 0.1, NULL, ".rope.scaling.yarn_log_multiplier is 0.1, which is not" },
	{ "rope.scaling.attn_factor", GGUF_F32, 1, NULL, NULL },
	{ "rope.scaling.attn_factor", GGUF_F32, 1.2, NULL, ".rope.scaling.attn_factor is 1.2 without rope.scaling.type yarn" },
	{ "rope.scaling.yarn_attn_factor", GGUF_F32, 1.2, NULL, ".rope.scaling.yarn_attn_factor is 1.2 without" },
	{ "rope.scaling.yarn_ext_factor", GGUF_F32, -1, NULL, NULL },
	{ "rope.scaling.yarn_ext_factor", GGUF_F32, 1, NULL, ".rope.scaling.yarn_ext_factor is 1 without" },
	{ "rope.freq_base_swa", GGUF_F32, 10000, NULL, ".rope.freq_base_swa is 10000: this setting is not known" },
	{ "attention.output_scale", GGUF_F32, 2, NULL, ".attention.output_scale is 2: this setting is not known" },
	{ "anything", GGUF_STRING, 0, "new", ".anything is new: this setting is not known" },
	{ "anything", GGUF_BOOL, 0, NULL, ".anything is false: this setting is not known" },
	{ "rope.dimension_sections", GGUF_ARRAY, 0, NULL, ".rope.dimension_sections is a list of 4: this setting" },
};

static void expect_gguf(const struct gguf_case *c, const char *says)
{
	const char *path = write_gguf(c);
	struct model *md = NULL;
	int rc = model_open_dummy(&md, path, err, sizeof(err));

	if (rc == 0 ? says != NULL : !says || !strstr(err, says) || !strstr(err, path))
		fail_msg("%s %s %g: \"%s\" does not say \"%s\"", c->arch, c->key ? c->key : "", c->d, rc ? err : "(opens)",
		         says ? says : "(opens)");
	model_close(md);
}

static void test_gguf_keys(void **state)
{
	static const char *const archs[] = { "llama", "qwen2", "qwen3" };

	(void)state;
	for (size_t i = 0; i < sizeof(gguf_keys) / sizeof(*gguf_keys); i++)
		for (int a = 0; a < 3; a++) {
			struct gguf_case c = usual;
			char key[100], says[200];

			snprintf(key, sizeof(key), "%s.%s", archs[a], gguf_keys[i].key);
			snprintf(says, sizeof(says), "%s%s", archs[a], gguf_keys[i].says ? gguf_keys[i].says : "");
			c.arch = archs[a];
			c.key = key;
			c.key_type = gguf_keys[i].kind;
			c.d = gguf_keys[i].v;
			c.i = (int64_t)gguf_keys[i].v;
			c.s = gguf_keys[i].s;
			c.items = 4;
			expect_gguf(&c, gguf_keys[i].says ? says : NULL);
		}
}

/* Settings without an architecture's prefix. */
static void test_other_gguf_keys(void **state)
{
	static const struct { const char *key; uint32_t kind; int64_t i; const char *s, *says; } cases[] = {
		{ "general.type", GGUF_STRING, 0, "model", NULL },
		{ "general.type", GGUF_STRING, 0, "adapter", "general.type is adapter, which is not supported; supported is" },
		{ "split.count", GGUF_U32, 1, NULL, NULL }, { "split.count", GGUF_U32, 3, NULL, "split.no is missing" },
		{ "general.quantization_version", GGUF_U32, 2, NULL, NULL },
		{ "quantize.imatrix.entries_count", GGUF_U32, 7, NULL, NULL },
		{ "mistral.attention.scale", GGUF_U32, 7, NULL, NULL }, { "llamas.scale", GGUF_U32, 7, NULL, NULL },
		{ "llama", GGUF_U32, 7, NULL, NULL }, { "llama.", GGUF_U32, 7, NULL, "llama. is 7: this setting" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct gguf_case c = usual;

		c.key = cases[i].key;
		c.key_type = cases[i].kind;
		c.i = cases[i].i;
		c.s = cases[i].s;
		expect_gguf(&c, cases[i].says);
	}
}

/* yarn in a GGUF, by llama.cpp's names: heads 16 wide, stretched by 4 beyond 4,096. */
#define R "llama.rope.scaling."
static void test_gguf_yarn(void **state)
{
	static const struct { struct { const char *key; float v; } more[2]; float magnitude, freq[8]; const char *says; }
	cases[] = {
		{ { { NULL } }, 1.1386294f, FACTOR_4, NULL },
		{ { { R "attn_factor", 0.5f } }, 0.5f * 1.1386294f, FACTOR_4, NULL },
		{ { { R "yarn_beta_fast", 32 }, { R "yarn_beta_slow", 1 } }, 1.1386294f, FACTOR_4, NULL },
		{ { { R "yarn_ext_factor", 1 }, { R "yarn_attn_factor", 1.1386294f } }, 1.1386294f, FACTOR_4, NULL },
		{ { { R "yarn_ext_factor", -1 } }, 1.1386294f, FACTOR_4, NULL },
		{ { { R "yarn_ext_factor", 0.5f } }, 0, { 0 }, R "yarn_ext_factor is 0.5, which is not supported; 1 is" },
		{ { { R "yarn_attn_factor", 1 } }, 0, { 0 }, R "yarn_attn_factor is 1, but a factor of 4" },
		{ { { R "yarn_beta_fast", 1 }, { R "yarn_beta_slow", 2 } }, 0, { 0 }, "yarn_beta_fast must not be below" },
		{ { { R "yarn_beta_slow", 0 } }, 0, { 0 }, R "yarn_beta_slow is 0; 0.001 to 1000" },
		{ { { R "yarn_log_multiplier", 0.1f } }, 0, { 0 }, R "yarn_log_multiplier is 0.1, which is not supported" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct gguf_case c = usual;
		struct model *md;

		c.heads = 2;
		c.heads_kv = 1;
		c.rope_dims = 16;
		c.scaling = "yarn";
		c.key = R "original_context_length";
		c.key_type = GGUF_U32;
		c.i = 4096;
		for (int k = 0; k < 2; k++) {
			c.floats[k].key = cases[i].more[k].key;
			c.floats[k].v = cases[i].more[k].v;
		}
		if (cases[i].says) {
			expect_gguf(&c, cases[i].says);
			continue;
		}
		if (model_open_dummy(&md, write_gguf(&c), err, sizeof(err)) != 0)
			fail_msg("case %zu: %s", i, err);
		expect_rope(md, c.floats[0].key ? c.floats[0].key : "yarn", cases[i].magnitude, cases[i].freq);
		model_close(md);
	}
}

/* The older name of the factor.  Without a type it is linear, as in llama.cpp. */
static void test_gguf_linear(void **state)
{
	struct gguf_case c = usual;
	struct model *md;

	(void)state;
	c.scaling = "linear";
	c.key = R "type";                          /* is not there; factor 4 is */
	c.key_type = GGUF_STRING;
	assert_int_equal(model_open_dummy(&md, write_gguf(&c), err, sizeof(err)), 0);
	assert_true(md->m.kind[0].rope.kind == SR_ROPE_LINEAR && md->m.kind[0].rope.factor == 4);
	model_close(md);
	c.key = R "factor";                        /* is not there */
	c.floats[0].key = "llama.rope.scale_linear";
	c.floats[0].v = 8;
	assert_int_equal(model_open_dummy(&md, write_gguf(&c), err, sizeof(err)), 0);
	assert_true(md->m.kind[0].rope.kind == SR_ROPE_LINEAR && md->m.kind[0].rope.factor == 8);
	model_close(md);
	c = usual;
	c.scaling = "linear";
	c.freqs = 8;
	c.freqs_2 = 4;
	refused(write_gguf(&c), -ENOTSUP, "rope_freqs.weight and rope.scaling.type both scale", __LINE__);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_config_keys), cmocka_unit_test(test_windows), cmocka_unit_test(test_yarn),
		cmocka_unit_test(test_bad_rope), cmocka_unit_test(test_quant_keys), cmocka_unit_test(test_gguf_keys),
		cmocka_unit_test(test_other_gguf_keys), cmocka_unit_test(test_gguf_yarn), cmocka_unit_test(test_gguf_linear),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
