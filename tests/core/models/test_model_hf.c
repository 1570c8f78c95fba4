/* LINK: @models kernels/rope.c -ljansson */
/* test_model_hf.c - models in Hugging Face directories: what is read from config.json and the tables of
 * weights, what is refused, and in which words.  (Quantized ones: test_quant.c.) */
#include "tests/rig/model_files.h"

static void test_hf(void **state)
{
	struct model *md;

	(void)state;
	put_weights(0);
	md = OPEN(LLAMA "\"tie_word_embeddings\":true,\"rope_theta\":500000.0,", NULL);
	assert_true(md->m.kind[0].head_dim == 8 && md->m.kind[0].n_kv_heads == 2 &&
	            md->m.kind[0].rope.pairs == 0 &&
	            md->m.kind[0].rope.theta == 500000);
	assert_true(md->n_eos == 1 && md->eos[0] == 3 && md->n_files == 1);
	assert_string_equal(md->stored, "BF16 (11)");
	assert_string_equal(md->m.name, "hf");
	model_close(md);
	md = OPEN(LLAMA "\"tie_word_embeddings\":true,", "{\"eos_token_id\":[5,6,5]}");
	assert_true(md->n_eos == 2 && md->eos[0] == 5 && md->eos[1] == 6);
	model_close(md);
	md = OPEN(LLAMA "\"tie_word_embeddings\":true,", "{\"temperature\":0.6}");
	assert_true(md->n_eos == 1 && md->eos[0] == 3);
	model_close(md);
	put_weights(4);
	md = OPEN(LLAMA, NULL);                    /* untied by default */
	assert_int_equal(md->m.head.type, SR_BF16);
	model_close(md);
	md = OPEN(LLAMA "\"tie_word_embeddings\":true,", NULL);   /* tied, a copy of the head is there */
	assert_int_equal(md->m.head.type, SR_NONE);
	model_close(md);
	put_weights(4 | 1);
	md = OPEN("\"architectures\":[\"Qwen2ForCausalLM\"],\"sliding_window\":64,"
	          "\"use_sliding_window\":false," SIZES, NULL);
	assert_true(md->m.layer[0].k_bias.k == 16 && kind_of(&md->m, 0)->window == 0 && md->n_eos == 0);
	model_close(md);
	put_weights(4 | 2);
	md = OPEN("\"architectures\":[\"Qwen3ForCausalLM\"]," SIZES, NULL);
	assert_true(md->m.layer[0].q_norm.k == 8 && md->m.layer[0].q_bias.type == SR_NONE);
	model_close(md);
	put_weights(4);
	md = OPEN("\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":64," SIZES, NULL);
	assert_int_equal(kind_of(&md->m, 0)->window, 64);
	model_close(md);
	md = OPEN("\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":null,\"hidden_act\":null," SIZES, NULL);
	assert_int_equal(kind_of(&md->m, 0)->window, 0);
	model_close(md);
	md = OPEN(LLAMA "\"sliding_window\":64,", NULL);           /* ignored: Llama has no windows */
	assert_int_equal(kind_of(&md->m, 0)->window, 0);
	model_close(md);
	put_weights(4 | 1 | 8);
	md = OPEN(LLAMA "\"attention_bias\":true,\"mlp_bias\":false,\"hidden_act\":\"silu\",\"head_dim\":8,", NULL);
	assert_true(md->m.layer[0].o_bias.k == 32 && md->m.layer[0].v_bias.k == 16);
	model_close(md);
	put_weights(4 | 1);
	for (int from = 0; from < 2; from++) {                   /* Qwen's begins at a layer */
		char text[1000];

		snprintf(text, sizeof(text), "\"architectures\":[\"Qwen2ForCausalLM\"],\"sliding_window\":64,"
		         "\"use_sliding_window\":true,\"max_window_layers\":%d," SIZES, from);
		md = OPEN(text, NULL);
		assert_int_equal(kind_of(&md->m, 0)->window, from ? 0 : 64);
		model_close(md);
	}
}

#define SCALING(s) LLAMA "\"rope_theta\":500000.0,\"rope_scaling\":{" s "},"
static void test_hf_rope(void **state)
{
	const struct sr_rope *r;
	struct model *md;

	(void)state;
	put_weights(4);
	md = OPEN(SCALING("\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
	                  "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":64"), NULL);
	r = &md->m.kind[0].rope;
	assert_true(r->kind == SR_ROPE_LLAMA3 && r->factor == 8 && r->low == 1 && r->high == 4 &&
	            r->context == 64);
	assert_int_equal(md->m.context, 128);
	model_close(md);
	md = OPEN(SCALING("\"type\":\"linear\",\"factor\":4"), NULL);
	assert_true(md->m.kind[0].rope.kind == SR_ROPE_LINEAR && md->m.context == 512);
	model_close(md);
	md = OPEN(SCALING("\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":100"), NULL);
	assert_true(md->m.kind[0].rope.kind == SR_ROPE_YARN && md->m.context == 400);
	model_close(md);
	md = OPEN(SCALING("\"type\":\"yarn\",\"factor\":4,\"attention_factor\":1.5,\"beta_slow\":2,\"beta_fast\":16"),
	          NULL);
	r = &md->m.kind[0].rope;
	assert_true(r->magnitude == 1.5f && r->low == 2 && r->high == 16 && md->m.context == 512);
	model_close(md);
	md = OPEN(LLAMA "\"rope_scaling\":null,\"rope_theta\":null,", NULL);
	assert_true(md->m.kind[0].rope.kind == SR_ROPE_PLAIN && md->m.kind[0].rope.theta == 10000);
	model_close(md);
	md = OPEN(SCALING("\"type\":null"), NULL);
	assert_int_equal(md->m.kind[0].rope.kind, SR_ROPE_PLAIN);
	model_close(md);
	md = OPEN(LLAMA "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":7e5},", NULL);
	assert_true(md->m.kind[0].rope.kind == SR_ROPE_PLAIN && md->m.kind[0].rope.theta == 7e5f);
	model_close(md);
}

#define BAD_HF(rc, says, config, generation) refused(hf(config, generation), rc, says, __LINE__)
static void test_bad_hf(void **state)
{
	(void)state;
	put_weights(4);
	BAD_HF(-EINVAL, "config.json: line 1, column", "{", NULL);
	BAD_HF(-ENOTSUP, "architectures[0] (none) is not supported; ", SIZES, NULL);
	BAD_HF(-ENOTSUP, "(docs/model.md), and the nearest name is Mi",
	       "\"architectures\":[\"Mixtral2ForCausalLM\"],",
	       NULL);
	BAD_HF(-ENOTSUP, "architectures[0] XForCausalLM is not supported: its index_topk means attention to chosen tokens",
	       "\"architectures\":[\"XForCausalLM\"],\"index_topk\":512,", NULL);
	BAD_HF(-ENOTSUP, "architectures[0] XForCausalLM is not supported; ",
	       "\"architectures\":[\"XForCausalLM\"],\"index_topk\":null,", NULL);
	BAD_HF(-EINVAL, "config.json: num_hidden_layers is missing",
	       "\"architectures\":[\"LlamaForCausalLM\"],", NULL);
	BAD_HF(-EINVAL, "hidden_size is no integer", LLAMA "\"hidden_size\":\"32\",", NULL);
	BAD_HF(-EINVAL, "hidden_size is no integer", LLAMA "\"hidden_size\":32.0,", NULL);
	BAD_HF(-EINVAL, "hidden_size is -32; 1 to", LLAMA "\"hidden_size\":-32,", NULL);
	BAD_HF(-EINVAL, "hidden_size is 9223372036854775807", LLAMA "\"hidden_size\":9223372036854775807,",
	       NULL);
	BAD_HF(-EINVAL, "too big integer", LLAMA "\"hidden_size\":9223372036854775808,", NULL);
	BAD_HF(-EINVAL, "num_attention_heads is 0", LLAMA "\"num_attention_heads\":0,", NULL);
	BAD_HF(-EINVAL, "head_dim is 0", LLAMA "\"head_dim\":0,", NULL);
	BAD_HF(-EINVAL, "vocab_size is 0", LLAMA "\"vocab_size\":0,", NULL);
	BAD_HF(-EINVAL, "tensor model.embed_tokens.weight", LLAMA "\"vocab_size\":97,", NULL);
	BAD_HF(-EINVAL, "rope_theta is 0", LLAMA "\"rope_theta\":0,", NULL);
	BAD_HF(-EINVAL, "rope_theta is no number", LLAMA "\"rope_theta\":\"x\",", NULL);
	BAD_HF(-EINVAL, "rms_norm_eps is 0", LLAMA "\"rms_norm_eps\":0,", NULL);
	BAD_HF(-EINVAL, "/config.json: eos_token_id is 96", LLAMA "\"eos_token_id\":96,", NULL);
	BAD_HF(-EINVAL, "/config.json: eos_token_id is 96", LLAMA "\"eos_token_id\":96,", "{}");
	BAD_HF(-EINVAL, "/generation_config.json: eos_token_id is 97", LLAMA, "{\"eos_token_id\":97}");
	BAD_HF(-EINVAL, "eos_token_id is no integer", LLAMA, "{\"eos_token_id\":[2,\"3\"]}");
	BAD_HF(-EINVAL, "eos_token_id is -1", LLAMA "\"eos_token_id\":[1,-1],", NULL);
	BAD_HF(-EINVAL, "eos_token_id has more than 8 ids", LLAMA, "{\"eos_token_id\":[1,2,3,4,5,6,7,8,9]}");
	BAD_HF(-EINVAL, "eos_token_id is no integer", LLAMA, "{\"eos_token_id\":\"2\"}");
	BAD_HF(-EINVAL, "generation_config.json: line 1", LLAMA, "{");
	BAD_HF(-EINVAL, "generation_config.json: is no JSON object", LLAMA, "[]");
	BAD_HF(-ENOTSUP, "quant_method hqq is not supported",
	       LLAMA "\"quantization_config\":{\"quant_method\":\"hqq\"},", NULL);
	BAD_HF(-ENOTSUP, "hidden_act gelu", LLAMA "\"hidden_act\":\"gelu\",", NULL);
	BAD_HF(-EINVAL, "mlp.gate_proj.bias is missing", LLAMA "\"mlp_bias\":true,", NULL);
	BAD_HF(-EINVAL, "mlp_bias is neither true nor false", LLAMA "\"mlp_bias\":1,", NULL);
	BAD_HF(-EINVAL, "attention_bias is neither", LLAMA "\"attention_bias\":\"true\",", NULL);
	BAD_HF(-EINVAL, "tie_word_embeddings is neither", LLAMA "\"tie_word_embeddings\":\"true\",", NULL);
	BAD_HF(-ENOTSUP, "hidden_act (no string) is not supported", LLAMA "\"hidden_act\":[\"silu\"],", NULL);
	BAD_HF(-EINVAL, "use_sliding_window is neither",
	       "\"architectures\":[\"Qwen2ForCausalLM\"],\"use_sliding_window\":0," SIZES, NULL);
	BAD_HF(-EINVAL, "/config.json: max_window_layers is -1", "\"architectures\":[\"Qwen2ForCausalLM\"],"
	       "\"use_sliding_window\":true,\"sliding_window\":64,\"max_window_layers\":-1," SIZES, NULL);
	BAD_HF(-EINVAL, "/config.json: sliding_window is no integer",
	       "\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":\"64\"," SIZES, NULL);
	BAD_HF(-EINVAL, "hidden_size is missing", LLAMA "\"hidden_size\":null,", NULL);
	BAD_HF(-EINVAL, "num_key_value_heads is no integer", LLAMA "\"num_key_value_heads\":\"2\",", NULL);
	BAD_HF(-EINVAL, "rms_norm_eps is no number", LLAMA "\"rms_norm_eps\":\"1e-5\",", NULL);
	BAD_HF(-EINVAL, "rope_scaling.factor is missing", SCALING("\"type\":\"linear\",\"factor\":null"), NULL);
	BAD_HF(-EINVAL, "rope_scaling.factor is missing", SCALING("\"type\":\"llama3\""), NULL);
	BAD_HF(-EINVAL, "rope_scaling is no object", LLAMA "\"rope_scaling\":3,", NULL);
	BAD_HF(-EINVAL, "rope_scaling.short_factor is no list of 4", SCALING("\"rope_type\":\"longrope\""), NULL);
	BAD_HF(-ENOTSUP, "rope_type dynamic is not supported without alpha", SCALING("\"rope_type\":\"dynamic\""), NULL);
	BAD_HF(-ENOTSUP, "rope_scaling.rope_type mrope", SCALING("\"rope_type\":\"mrope\""), NULL);
	BAD_HF(-EINVAL, "rope_scaling.factor is no number from 1",
	       SCALING("\"type\":\"linear\",\"factor\":0"), NULL);
	BAD_HF(-EINVAL, "rope_scaling.factor is no number from 1", SCALING("\"type\":\"linear\",\"factor\":\"4\""),
	       NULL);
	BAD_HF(-EINVAL, "rope_scaling.factor is no number from 1", SCALING("\"type\":\"linear\",\"factor\":4097"),
	       NULL);
	BAD_HF(-EINVAL, "rope_scaling.rope_type is no string", SCALING("\"rope_type\":3"), NULL);
	BAD_HF(-EINVAL, "rope_scaling.type is no string", SCALING("\"type\":[\"yarn\"]"), NULL);
	BAD_HF(-EINVAL, "rope_scaling.rope_theta is no number from 2", SCALING("\"rope_theta\":1"), NULL);
	BAD_HF(-EINVAL, "original_max_position_embeddings is no integer from 1",
	       SCALING("\"type\":\"yarn\",\"original_max_position_embeddings\":0"), NULL);
	BAD_HF(-EINVAL, "original_max_position_embeddings is no integer from 1",
	       SCALING("\"type\":\"yarn\",\"original_max_position_embeddings\":64.0"), NULL);
	BAD_HF(-EINVAL, "original_max_position_embeddings is no integer from 1",
	       SCALING("\"type\":\"yarn\",\"original_max_position_embeddings\":268435457"), NULL);
	BAD_HF(-EINVAL, "low_freq_factor is no number", SCALING("\"type\":\"llama3\",\"low_freq_factor\":0"), NULL);
	BAD_HF(-EINVAL, "high_freq_factor is no number", SCALING("\"type\":\"llama3\",\"high_freq_factor\":{}"),
	       NULL);
	BAD_HF(-EINVAL, "beta_slow is no number", SCALING("\"type\":\"yarn\",\"beta_slow\":0"), NULL);
	BAD_HF(-EINVAL, "beta_fast is no number", SCALING("\"type\":\"yarn\",\"beta_fast\":1e9"), NULL);
	BAD_HF(-EINVAL, "attention_factor is no number", SCALING("\"type\":\"yarn\",\"attention_factor\":\"1\""),
	       NULL);
	BAD_HF(-EINVAL, "high_freq_factor must "
	       "not be below", SCALING("\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":2,\"high_freq_factor\":1"), NULL);
	BAD_HF(-EINVAL, "rope scaling by "
	       "4096", LLAMA "\"max_position_embeddings\":268435456,"
	       "\"rope_scaling\":{\"type\":\"linear\",\"factor\":4096},", NULL);
	BAD_HF(-EINVAL, "self_attn.q_proj.bias is missing", LLAMA "\"attention_bias\":true,", NULL);
	put_weights(0);
	BAD_HF(-EINVAL, "tensor lm_head.weight is missing", LLAMA, NULL);
	put_weights(4 | 1);
	BAD_HF(-ENOTSUP, "self_attn.k_proj.bias is no part", LLAMA, NULL);
	put_file("model.safetensors", "abc", 3);
	BAD_HF(-EINVAL, "model.safetensors: the file has 3 bytes", LLAMA, NULL);
}

/* Tensors of wrong types and shapes, and unknown ones. */
static void test_bad_hf_tensors(void **state)
{
#define L "model.layers.0."
	static const struct { struct odd odd; int rc; const char *says; } cases[] = {
		{ { L "mlp.up_proj.weight", "I16", "64,32", 4096 }, -ENOTSUP, "of type I16; supported are F32, F16, BF16" },
		{ { L "mlp.up_proj.weight", "BF16", "64,31", 3968 }, -EINVAL, "[64][31]; the settings of this model make" },
		{ { L "mlp.up_proj.weight", "BF16", "63,32", 4032 }, -EINVAL, "[63][32]; the settings of this model make" },
		{ { L "mlp.up_proj.weight", "BF16", "2048", 4096 }, -EINVAL, "has 1 dimensions" },
		{ { L "mlp.up_proj.weight", "BF16", "64,8,4", 4096 }, -EINVAL, "has 3 dimensions" },
		{ { L "mlp.up_proj.weight", "BF16", "64,2,2,2,2,2", 4096 }, -EINVAL, "has 5 dimensions" },
		{ { L "input_layernorm.weight", "BF16", "1,32", 64 }, -EINVAL, "has 2 dimensions" },
		{ { L "input_layernorm.weight", "BF16", "31", 62 }, -EINVAL, "make it [32]" },
		{ { L "input_layernorm.weight", "F8_E4M3", "32", 32 }, -ENOTSUP, "F8_E4M3, which is supported for matr" },
		{ { L "mlp.up_proj.weight", "F8_E4M3", "64,32", 2048 }, -EINVAL, "up_proj.weight_scale is missing" },
		{ { "visual.lm_head.weight", "BF16", "4", 8 }, -ENOTSUP, "tensor visual.lm_head.weight is no part of" },
		{ { L "mlp.up_proj.bias", "BF16", "64", 128 }, -ENOTSUP, "up_proj.bias is no part of" },
		{ { L "self_attn.rotary_emb.inv_freq", "F32", "4", 16 }, 0, NULL },    /* says what config.json says */
		{ { "x", "BF16", "4", 8 }, -ENOTSUP, "tensor x is no part of the LlamaForCausalLM architecture" },
		{ { "bell\\u0007", "BF16", "4", 8 }, -ENOTSUP, "tensor bell? is no part of" },
	};
#undef L

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		odd = &cases[i].odd;
		put_weights(4);
		if (cases[i].rc)
			refused(hf(LLAMA, NULL), cases[i].rc, cases[i].says, __LINE__);
		else
			model_close(OPEN(LLAMA, NULL));
	}
	odd = NULL;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hf), cmocka_unit_test(test_hf_rope), cmocka_unit_test(test_bad_hf),
		cmocka_unit_test(test_bad_hf_tensors),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
