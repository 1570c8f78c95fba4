/* LINK: @models kernels/rope.c -ljansson */
/* test_families.c - what the readers of families make of settings that no recorded model in tests/models has:
 * defaults, lists of layers, factors by the length that is served.  The models have no weights. */
#include "tests/rig/model_files.h"

#define SMALL "\"hidden_size\":64,\"intermediate_size\":64,\"num_hidden_layers\":6,\"num_attention_heads\":4," \
	"\"num_key_value_heads\":2,\"vocab_size\":96,\"max_position_embeddings\":8192,\"rms_norm_eps\":1e-6," \
	"\"head_dim\":16,"

static struct model *open_settings(const char *config)
{
	struct model *md;

	if (model_open_dummy(&md, hf(config, NULL), err, sizeof(err)) != 0)
		fail_msg("%s", err);
	return md;
}

static void refuses(const char *config, int rc, const char *says)
{
	struct model *md;

	assert_int_equal(model_open_dummy(&md, hf(config, NULL), err, sizeof(err)), rc);
	if (!strstr(err, says))
		fail_msg("\"%s\" does not say \"%s\"", err, says);
}

/* The first Gemma 3 files with a tower leave out what transformers' class has as a default. */
static void test_gemma3_defaults(void **state)
{
	struct model *md = open_settings("\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"model_type\":\"gemma3\","
		"\"text_config\":{\"model_type\":\"gemma3_text\",\"hidden_size\":128,\"intermediate_size\":64,"
		"\"num_hidden_layers\":7,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0},"
		"\"sliding_window\":1024},\"vision_config\":{\"attention_dropout\":0.5},");
	const struct sr_attn *full = kind_of(&md->m, 5), *near = kind_of(&md->m, 6);

	(void)state;
	assert_true(full->n_heads == 8 && full->n_kv_heads == 4 && full->head_dim == 256 && md->m.n_vocab == 262208);
	assert_true(full->window == 0 && near->window == 1024 && kind_of(&md->m, 0) == near);
	assert_true(full->rope.theta == 1e6f && full->rope.kind == SR_ROPE_LINEAR && full->rope.factor == 8);
	assert_true(near->rope.theta == 1e4f && near->rope.kind == SR_ROPE_PLAIN);
	assert_true(full->scale == 0.0625f && near->scale == 0.0625f);
	assert_true(md->m.context == 131072 && md->m.head.type == SR_NONE && md->m.act == SR_GELU_TANH);
	model_close(md);
}

static void test_gemma2_scale(void **state)
{
#define GEMMA2 "\"architectures\":[\"Gemma2ForCausalLM\"]," SMALL
	struct model *md = open_settings(GEMMA2 "\"query_pre_attn_scalar\":144,\"final_logit_softcapping\":null,");

	(void)state;
	assert_true(fabsf(md->m.kind[0].scale - 1 / 12.0f) < 1e-7f && md->m.kind[0].scale == md->m.kind[1].scale);
	assert_true(md->m.kind[0].cap == 50 && md->m.kind[1].cap == 50 && md->m.logit_cap == 0);
	assert_true(kind_of(&md->m, 0)->window == 4096 && kind_of(&md->m, 1)->window == 0);
	model_close(md);
	md = open_settings(GEMMA2 "\"sliding_window\":null,");
	assert_true(md->m.n_kinds == 1 && md->m.kind[0].window == 0);
	model_close(md);
	md = open_settings(GEMMA2 "\"sliding_window_pattern\":3,");
	assert_true(kind_of(&md->m, 1)->window == 4096 && kind_of(&md->m, 2)->window == 0);
	model_close(md);
	refuses(GEMMA2 "\"hidden_activation\":\"silu\",", -ENOTSUP, "hidden_activation silu is not supported");
}

static void test_no_rope(void **state)
{
#define SMOL "\"architectures\":[\"SmolLM3ForCausalLM\"]," SMALL
	struct model *md = open_settings(SMOL);

	(void)state;
	for (int32_t l = 0; l < 6; l++)
		assert_int_equal(kind_of(&md->m, l)->rope.kind, l == 3 ? SR_ROPE_NONE : SR_ROPE_PLAIN);
	model_close(md);
	md = open_settings(SMOL "\"no_rope_layers\":[0,1,1,1,1,1],");
	assert_true(kind_of(&md->m, 0)->rope.dims == 0 && kind_of(&md->m, 3)->rope.dims == 16);
	model_close(md);
	refuses(SMOL "\"no_rope_layers\":[0,1],", -EINVAL, "no_rope_layers is no list of 6 numbers");
	refuses(SMOL "\"use_sliding_window\":true,", -ENOTSUP, "use_sliding_window is true");
	refuses("\"architectures\":[\"LlamaForCausalLM\"],\"residual_multiplier\":0.22," SMALL, -ENOTSUP,
	        "residual_multiplier is 0.22: this setting is not known for LlamaForCausalLM");
}

/* longrope: one list up to the context before scaling, the other beyond. */
static void test_longrope(void **state)
{
	struct model *md = open_settings("\"architectures\":[\"Phi3ForCausalLM\"],\"sliding_window\":null,"
		"\"original_max_position_embeddings\":4096,\"partial_rotary_factor\":0.25,\"rope_scaling\":{"
		"\"type\":\"longrope\",\"short_factor\":[1,2],\"long_factor\":[3,4]}," SMALL);
	const struct sr_rope *r = &md->m.kind[0].rope;
	float freq[2];

	(void)state;
	assert_true(r->kind == SR_ROPE_FACTORS && r->dims == 4 && md->m.context == 8192);
	assert_true(fabsf(r->magnitude - sqrtf(1 + logf(2) / logf(4096))) < 1e-6f);
	model_serve(md, 4096);
	sr_rope_freq(r, freq);
	assert_true(freq[0] == 1 && fabsf(freq[1] - 0.01f / 2) < 1e-8f);
	model_serve(md, 4097);
	sr_rope_freq(r, freq);
	assert_true(fabsf(freq[0] - 1 / 3.0f) < 1e-7f && fabsf(freq[1] - 0.01f / 4) < 1e-8f);
	model_close(md);
}

/* Tensors of a tower are counted and left out, but only beside a text_config. */
static void test_tower(void **state)
{
#define TOWER "\"architectures\":[\"Mistral3ForConditionalGeneration\"],\"model_type\":\"mistral3\"," \
	"\"text_config\":{" SIZES "\"model_type\":\"mistral\",\"sliding_window\":null},"
	static const struct odd tensor = { "vision_tower.patch.weight", "BF16", "4", 8 };
	struct model *md;

	(void)state;
	odd = &tensor;
	put_weights(4);
	md = OPEN(TOWER, NULL);
	assert_string_equal(md->left_out, "1 tensors of towers, 0 of layers that draft");
	assert_string_equal(md->m.arch, "MistralForCausalLM");
	model_close(md);
	refused(hf(LLAMA, NULL), -ENOTSUP, "tensor vision_tower.patch.weight is no part of", __LINE__);
	odd = NULL;
	refuses(TOWER "\"logit_scale\":2,", -ENOTSUP, "logit_scale is 2: this setting is not known");
	refuses("\"architectures\":[\"XForConditionalGeneration\"],\"text_config\":{\"model_type\":\"mamba\"},", -ENOTSUP,
	        "text_config.model_type mamba is not supported");
}

/* Which layers have a state, and the sizes that transformers' class has as a default. */
static void test_delta(void **state)
{
#define QWEN35 "\"architectures\":[\"Qwen3_5ForCausalLM\"],\"model_type\":\"qwen3_5_text\"," SMALL
	struct model *md = open_settings(QWEN35 "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e7,"
		"\"mrope_section\":[11,11,10],\"mrope_interleaved\":true,\"partial_rotary_factor\":0.5},");
	const struct sr_delta *a = &md->m.delta;

	(void)state;
	assert_true(a->k_heads == 16 && a->v_heads == 32 && a->k_dim == 128 && a->v_dim == 128 && a->conv == 4);
	for (int32_t l = 0; l < 6; l++)
		assert_int_equal(md->m.layer[l].mixer, l == 3 ? SR_ATTEND : SR_DELTA);
	assert_true(md->m.kind[0].gate && md->m.kind[0].rope.dims == 8 && !a->tiled);
	assert_true(md->m.layer[0].q.n == 2048 && md->m.layer[0].o.k == 4096 && md->m.layer[3].o_gate.n == 64);
	model_close(md);
	md = open_settings(QWEN35 "\"layer_types\":[\"full_attention\",\"linear_attention\",\"linear_attention\","
		"\"linear_attention\",\"linear_attention\",\"linear_attention\"],");
	assert_true(md->m.layer[0].mixer == SR_ATTEND && md->m.layer[3].mixer == SR_DELTA);
	model_close(md);
	refuses(QWEN35 "\"attn_output_gate\":false,", -ENOTSUP, "attn_output_gate is false");
	refuses(QWEN35 "\"linear_num_value_heads\":24,", -EINVAL, "24 value heads of 16 key heads");
	refuses(QWEN35 "\"linear_conv_kernel_dim\":1,", -EINVAL, "a convolution of 1");
	refuses(QWEN35 "\"full_attention_interval\":7,", -ENOTSUP, "no layer has attention");
	refuses(QWEN35 "\"gate_multiplier\":2,", -ENOTSUP, "gate_multiplier is 2: this setting is not known");
	refuses("\"architectures\":[\"LlamaForCausalLM\"],\"layer_types\":[\"linear_attention\",\"x\",\"x\",\"x\",\"x\","
		"\"x\"]," SMALL, -ENOTSUP, "layer_types[0] is linear_attention; supported are");
}

/* Kimi K2 is a DeepSeek V3 by another name.  One key of 576 elements for 64 heads. */
static void test_latent(void **state)
{
#define KIMI "\"architectures\":[\"DeepseekV3ForCausalLM\"],\"model_type\":\"kimi_k2\",\"hidden_size\":128," \
	"\"intermediate_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":64,\"num_key_value_heads\":64," \
	"\"vocab_size\":96,\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-6,\"first_k_dense_replace\":1," \
	"\"n_routed_experts\":16,\"n_shared_experts\":1,\"num_experts_per_tok\":8,\"moe_intermediate_size\":32," \
	"\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128,"
#define YARN(more) "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":32.0,\"original_max_position_embeddings\":4096" more "},"
	struct model *md = open_settings(KIMI "\"q_lora_rank\":1536," YARN(",\"mscale\":1.0,\"mscale_all_dim\":1.0"));
	const struct sr_attn *k = &md->m.kind[0];
	const struct sr_layer *y = &md->m.layer[1];
	float by = 1 + 0.1f * logf(32);

	(void)state;
	assert_true(k->head_dim == 576 && k->latent == 512 && k->n_kv_heads == 1 && k->n_heads == 64 && k->rope.dims == 64);
	assert_true(fabsf(k->scale - by * by / sqrtf(192)) < 1e-6f && k->rope.magnitude == 1 && k->rope.pairs);
	assert_true(y->mixer == SR_LATENT && y->k_b.count == 64 && y->k_b.n == 512 && y->k_b.k == 128 && y->v_b.n == 128 &&
	            y->v_b.k == 512 && y->q.n == 64 * 192 && y->q.k == 1536 && y->o.k == 64 * 128 && y->q_a.n == 1536);
	assert_true(md->m.layer[0].ffn == SR_GATED && y->ffn == SR_EXPERTS && y->choice_bias.type != SR_NONE);
	assert_true(md->m.experts.score == SR_SCORE_SIGMOID && md->m.experts.renorm);
	model_close(md);
	md = open_settings(KIMI "\"q_lora_rank\":null,\"scoring_func\":\"softmax\",\"topk_method\":\"greedy\",\"n_group\":4,"
		"\"topk_group\":2,");
	assert_true(md->m.layer[1].q.k == 128 && md->m.layer[1].q_a.type == SR_NONE && !md->m.experts.groups);
	assert_true(md->m.experts.score == SR_SCORE_SOFTMAX && md->m.layer[1].choice_bias.type == SR_NONE);
	model_close(md);
	refuses(KIMI "\"topk_method\":\"best\",", -ENOTSUP, "topk_method best is not supported");
	refuses(KIMI "\"rope_interleave\":false,", -ENOTSUP, "rope_interleave is false");
	refuses(KIMI "\"attention_bias\":true,", -ENOTSUP, "attention_bias is true");
	refuses(KIMI "\"mlp_layer_types\":[\"sparse\",\"sparse\",\"sparse\"],", -ENOTSUP, "mlp_layer_types[0] is sparse; dense");
	refuses(KIMI YARN(",\"partial_rotary_factor\":0.5"), -ENOTSUP, "partial_rotary_factor is 0.5");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_gemma3_defaults), cmocka_unit_test(test_gemma2_scale),
		cmocka_unit_test(test_no_rope), cmocka_unit_test(test_longrope), cmocka_unit_test(test_tower), cmocka_unit_test(test_delta),
		cmocka_unit_test(test_latent),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
