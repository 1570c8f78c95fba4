/* LINK: @models kernels/rope.c -ljansson -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup,--wrap=open,--wrap=fstat,--wrap=mmap,--wrap=pread */
/* test_quant.c - directories of AWQ, GPTQ and compressed-tensors: what is read, and which are refused,
 * with the name of what is wrong.  (Values of their weights: test_cpu.c.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/models/model.h"
#include "tests/rig/nth_call.h"

static char dir[] = "/tmp/slipring-test-quant-XXXXXX";
static char err[5000];

#define SETTINGS "\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":32,\"intermediate_size\":%d," \
	"\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":96," \
	"\"max_position_embeddings\":128,\"rms_norm_eps\":1e-6,\"tie_word_embeddings\":true"
#define AWQ "\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32,\"zero_point\":true,\"version\":\"gemm\""
#define GPTQ "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32,\"desc_act\":false,\"sym\":true"
#define GROUP0(weights, more) "\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\"," \
	"\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{" weights "}" more "}}"
#define F8 "\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\""
#define W8 "\"num_bits\":8,\"type\":\"float\",\"symmetric\":true"
#define KV8 W8 ",\"strategy\":\"tensor\""
#define I8GROUP(weights, more) "\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\"," \
	"\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{" weights "}" more "}}"
#define F8GROUP(weights, more) "\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\"," \
	"\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{" weights "}" more "}}"
#define W4A16 "\"num_bits\":4,\"type\":\"int\",\"symmetric\":false,\"strategy\":\"group\",\"group_size\":32"

static void put_file(const char *name, const void *p, size_t n)
{
	char path[200];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	assert_non_null(f = fopen(path, "w"));
	assert_int_equal(fwrite(p, 1, n, f), n);
	fclose(f);
}

/* ---- a file of weights ---------------------------------------------------------------------- */

/* What is wrong with the tensor whose name ends with `end`. */
struct wrong {
	const char *end;               /* NULL: nothing */
	const char *dtype;             /* another type; "" = leave it out */
	int a, b;                      /* another shape */
	int index;                     /* of g_idx: this input belongs to group 7; -1: groups from the last to the
	                                  first, -2: the first has 40 inputs */
	const char *deep;              /* this shape, of `index` bytes */
};

static char head[1 << 15];
static int head_len, data_len;
static int32_t data[1 << 18];
static int width = 64;                 /* of the feed-forward */
static int grouped = 32;               /* inputs to a scale; 0: all */

static void put_tensor(const struct wrong *w, const char *name, const char *dtype, int a, int b)
{
	size_t n = strlen(name), end = w->end ? strlen(w->end) : 0;
	size_t bytes;

	if (end && end <= n && strcmp(name + n - end, w->end) == 0) {
		if (w->dtype && !*w->dtype)
			return;
		dtype = w->dtype ? w->dtype : dtype;
		a = w->a ? w->a : a;
		b = w->a ? w->b : b;
	}
	if (w->deep && end && end <= n && strcmp(name + n - end, w->end) == 0) {
		head_len += sprintf(head + head_len, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%d,%d]}",
		                    head_len ? "," : "", name, dtype, w->deep, data_len, data_len + w->index);
		data_len += w->index;
		return;
	}
	bytes = (size_t)a * (size_t)(b ? b : 1) *
		(strcmp(dtype, "I64") == 0 ? 8 : dtype[1] == '8' /* I8, U8, F8_E4M3 */ ? 1 : strchr(dtype, '3') ? 4 : 2);
	head_len += sprintf(head + head_len, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%d", head_len ? "," : "",
	                    name, dtype, a);
	head_len += b ? sprintf(head + head_len, ",%d]", b) : sprintf(head + head_len, "]");
	head_len += sprintf(head + head_len, ",\"data_offsets\":[%d,%d]}", data_len, data_len + (int)bytes);
	if (n > 5 && strcmp(name + n - 5, "g_idx") == 0)
		for (int i = 0; i < a; i++)
			data[data_len / 4 + i] = w->index == -1 ? (a - 1 - i) / grouped : w->index == -2 ? i >= 40
				: w->index == i && i ? 7 : grouped ? i / grouped : 0;
	data_len += ((int)bytes + 3) / 4 * 4;
}

static int f8_scales;
static bool zeros = true;

/* The tensors of one matrix n x k. */
static void put_matrix(const struct wrong *w, int32_t type, const char *stem, int n, int k)
{
	int groups = grouped ? k / grouped : 1;
	char name[100];

#define T(end) (snprintf(name, sizeof(name), "model.layers.0.%s.%s", stem, end), name)
	if (type == SR_AWQ4 || type == SR_GPTQ4) {
		put_tensor(w, T("qweight"), "I32", type == SR_AWQ4 ? k : k / 8, type == SR_AWQ4 ? n / 8 : n);
		put_tensor(w, T("qzeros"), "I32", groups, n / 8);
		put_tensor(w, T("scales"), "F16", groups, n);
		if (type == SR_GPTQ4)
			put_tensor(w, T("g_idx"), "I32", k, 0);
	} else if (type == SR_CT4) {
		put_tensor(w, T("weight_packed"), "I32", n, k / 8);
		put_tensor(w, T("weight_scale"), "BF16", n, groups);
		if (zeros)
			put_tensor(w, T("weight_zero_point"), "I32", n / 8, groups);
		put_tensor(w, T("weight_shape"), "I64", 2, 0);
	} else if (type == SR_NVFP4 || type == SR_NVFP4_CT) {
		put_tensor(w, type == SR_NVFP4 ? T("weight") : T("weight_packed"), "U8", n, k / 2);
		put_tensor(w, T("weight_scale"), "F8_E4M3", n, k / 16);
		put_tensor(w, type == SR_NVFP4 ? T("weight_scale_2") : T("weight_global_scale"), "F32", 1, 0);
		put_tensor(w, type == SR_NVFP4 ? T("input_scale") : T("input_global_scale"), "F32", 1, 0);
	} else if (type == SR_I8) {
		put_tensor(w, T("weight"), "I8", n, k);
		put_tensor(w, T("weight_scale"), "BF16", n, 1);
	} else if (type == SR_F8) {            /* scales for all, [output][1], blocks of 32 x 32, [output] */
		put_tensor(w, T("weight"), "F8_E4M3", n, k);
		if (f8_scales == 0)
			put_tensor(w, T("weight_scale"), "F32", 1, 0);
		else if (f8_scales == 1)
			put_tensor(w, T("weight_scale"), "BF16", n, 1);
		else if (f8_scales == 2)
			put_tensor(w, T("weight_scale_inv"), "F32", (n + 31) / 32, k / 32);
		else
			put_tensor(w, T("weight_scale"), "F16", n, 0);
		put_tensor(w, T("input_scale"), "F32", 1, 0);
	} else {
		put_tensor(w, T("weight"), "F16", n, k);
	}
#undef T
}

static void begin_weights(void)
{
	head_len = data_len = 0;
	memset(data, 0, sizeof(data));
}

static void end_weights(void)
{
	static char file[1 << 20];
	uint64_t n = (uint64_t)head_len + 2;

	memcpy(file, &n, 8);
	file[8] = '{';
	memcpy(file + 9, head, (size_t)head_len);
	file[9 + head_len] = '}';
	memcpy(file + 10 + head_len, data, (size_t)data_len);
	put_file("model.safetensors", file, (size_t)(10 + head_len + data_len));
}

/* All matrices of `type` but up_proj, which is of `up`. */
static void put_weights(int32_t type, int32_t up, const struct wrong *w)
{
	begin_weights();
	put_tensor(w, "model.embed_tokens.weight", "F16", 96, 32);
	put_tensor(w, "model.norm.weight", "F16", 32, 0);
	put_tensor(w, "model.layers.0.input_layernorm.weight", "F16", 32, 0);
	put_tensor(w, "model.layers.0.post_attention_layernorm.weight", "F16", 32, 0);
	put_matrix(w, type, "self_attn.q_proj", 32, 32);
	put_matrix(w, type, "self_attn.k_proj", 16, 32);
	put_matrix(w, type, "self_attn.v_proj", 16, 32);
	put_matrix(w, type, "self_attn.o_proj", 32, 32);
	put_matrix(w, type, "mlp.gate_proj", width, 32);
	put_matrix(w, up, "mlp.up_proj", width, 32);
	put_matrix(w, type, "mlp.down_proj", 32, width);
	if (w->end && *w->end == '+')
		put_tensor(w, w->end + 1, "F16", w->a ? w->a : 32, w->b);
	end_weights();
}

/* quantization: what its object holds, or (not beginning with a key) something else than an object. */
static int opened(struct model **md, const char *quantization)
{
	char text[4096];
	int n = snprintf(text, sizeof(text), *quantization == '"' ? "{" SETTINGS ",\"quantization_config\":{%s}}"
	                 : "{" SETTINGS ",\"quantization_config\":%s}", width, quantization);

	put_file("config.json", text, (size_t)n);
	err[0] = 0;
	return model_open(md, dir, err, sizeof(err));
}

/* ---- good ones ------------------------------------------------------------------------------ */

static void test_good(void **state)
{
	static const struct {
		const char *config, *method, *stored;
		int32_t file, type;            /* of the layout; as it is opened */
	} good[] = {
		{ AWQ, "awq", "AWQ (6), F16 (5)", SR_AWQ4, SR_AWQ4 },
		{ GPTQ, "gptq", "GPTQ (6), F16 (5)", SR_GPTQ4, SR_GPTQ4 },
		{ GPTQ ",\"checkpoint_format\":\"gptq_v2\"", "gptq", "", SR_GPTQ4, SR_GPTQ4_V2 },
		{ GROUP0(W4A16, ",\"input_activations\":null"), "compressed-tensors", "", SR_CT4, SR_CT4 },
	};
	const struct wrong nothing = { 0 };
	struct model *md;

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
		const struct sr_layer *y;

		put_weights(good[i].file, SR_F16, &nothing);
		if (opened(&md, good[i].config) != 0)
			fail_msg("%s: %s", good[i].config, err);
		y = &md->m.layer[0];
		assert_string_equal(md->quantization, good[i].method);
		assert_true(strncmp(md->stored, good[i].stored, strlen(good[i].stored)) == 0);
		assert_int_equal(y->down.type, good[i].type);
		assert_true(y->down.n == 32 && y->down.k == 64 && y->down.group == 32);
		assert_int_equal(y->down.data.bytes, 32 * 64 / 2);
		assert_int_equal(y->down.scale.bytes, 32 * 2 * 2);
		assert_int_equal(y->down.zero.bytes, 32 * 2 / 2);
		assert_int_equal(y->down.index.bytes, 0);
		assert_int_equal(y->down.scale_type, good[i].file == SR_CT4 ? SR_BF16 : SR_F16);
		assert_int_equal(y->up.type, SR_F16);      /* left out when it was quantized */
		model_close(md);
	}
}

/* Groups out of order: the index is the back end's to follow; where it is as without one it is none. */
static void test_act_order(void **state)
{
	struct wrong wrong = { .index = -1 };
	struct model *md;

	(void)state;
	put_weights(SR_GPTQ4, SR_F16, &wrong);
	if (opened(&md, GPTQ) != 0)
		fail_msg("%s", err);
	assert_int_equal(md->m.layer[0].down.index.bytes, 64 * 4);
	assert_int_equal(md->m.layer[0].q.index.bytes, 0);
	model_close(md);
	wrong.index = -2;
	put_weights(SR_GPTQ4, SR_F16, &wrong);
	assert_int_equal(opened(&md, GPTQ), -ENOTSUP);
	assert_non_null(strstr(err, "down_proj.g_idx puts 40 inputs into group 0; groups of one size, 32 here"));
}

/* Groups of all sizes, zero points or none, and an index that is read in pieces. */
static void test_groups(void **state)
{
#define CHANNEL "\"num_bits\":4,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"channel\""
#define LIKE(method) "\"quant_method\":\"" method "\",\"bits\":4,\"group_size\":"
	static const struct { const char *config; int32_t file; int width, grouped; bool zeros; } good[] = {
		{ LIKE("awq") "-1", SR_AWQ4, 64, 0, true },
		{ LIKE("gptq") "-1", SR_GPTQ4, 64, 0, true },
		{ LIKE("gptq") "32,\"dynamic\":{},\"checkpoint_format\":\"gptq\"", SR_GPTQ4, 64, 32, true },
		{ LIKE("gptq") "32,\"dynamic\":false", SR_GPTQ4, 2080, 32, true },
		{ LIKE("gptq") "32,\"dynamic\":null", SR_GPTQ4, 2048, 32, true },
		{ GROUP0(CHANNEL ",\"group_size\":null", ",\"output_activations\":false"), SR_CT4, 64, 0, false },
		{ GROUP0(CHANNEL ",\"group_size\":-1", "") ",\"kv_cache_scheme\":null", SR_CT4, 64, 0, false },
		{ GROUP0(CHANNEL, ""), SR_CT4, 64, 0, false },
		{ GROUP0(W4A16, ""), SR_CT4, 96, 32, true },
		{ " null", SR_F16, 64, 0, false },
	};
	const struct wrong nothing = { 0 };

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
		const struct sr_tensor *t;
		struct model *md;

		width = good[i].width;
		grouped = good[i].grouped;
		zeros = good[i].zeros;
		put_weights(good[i].file, SR_F16, &nothing);
		if (opened(&md, good[i].config) != 0)
			fail_msg("%s: %s", good[i].config, err);
		t = &md->m.layer[0].down;
		assert_true(t->type == good[i].file && t->k == width && t->group == grouped);
		assert_int_equal(t->data.bytes, good[i].file == SR_F16 ? 32 * width * 2 : 32 * width / 2);
		assert_int_equal(t->scale.bytes, good[i].file == SR_F16 ? 0 : grouped ? 32 * width / grouped * 2 : 64);
		assert_int_equal(t->zero.bytes, !zeros ? 0 : grouped ? 32 * width / grouped / 2 : 16);
		model_close(md);
	}
	width = 64;
	grouped = 32;
	zeros = true;
}

/* Latent keys and values in FP8: each head's part of kv_b_proj has its own scales. */
static void test_f8_latent(void **state)
{
	static const char *const experts[] = { "mlp.experts.0.", "mlp.experts.1.", "mlp.shared_experts." };
	static const char deepseek[] = "{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"model_type\":\"deepseek_v3\",\"hidden_size\":32,"
		"\"intermediate_size\":32,\"moe_intermediate_size\":32,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
		"\"vocab_size\":96,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,\"kv_lora_rank\":32,\"q_lora_rank\":null,"
		"\"qk_nope_head_dim\":64,\"qk_rope_head_dim\":16,\"v_head_dim\":32,\"n_routed_experts\":2,\"n_shared_experts\":1,"
		"\"num_experts_per_tok\":1,\"quantization_config\":{" F8 ",\"weight_block_size\":[32,32]}}";
	const struct wrong nothing = { 0 };
	struct model *md;
	char name[100];

	(void)state;
	f8_scales = 2;
	begin_weights();
	put_tensor(&nothing, "model.embed_tokens.weight", "F16", 96, 32);
	put_tensor(&nothing, "lm_head.weight", "F16", 96, 32);
	put_tensor(&nothing, "model.norm.weight", "F16", 32, 0);
	put_tensor(&nothing, "model.layers.0.input_layernorm.weight", "F16", 32, 0);
	put_tensor(&nothing, "model.layers.0.post_attention_layernorm.weight", "F16", 32, 0);
	put_tensor(&nothing, "model.layers.0.self_attn.q_proj.weight", "F16", 2 * 80, 32);
	put_tensor(&nothing, "model.layers.0.self_attn.kv_a_proj_with_mqa.weight", "F16", 48, 32);
	put_tensor(&nothing, "model.layers.0.self_attn.kv_a_layernorm.weight", "F16", 32, 0);
	put_tensor(&nothing, "model.layers.0.self_attn.o_proj.weight", "F16", 32, 64);
	put_matrix(&nothing, SR_F8, "self_attn.kv_b_proj", 2 * 96, 32);
	put_tensor(&nothing, "model.layers.0.mlp.gate.weight", "F16", 2, 32);
	put_tensor(&nothing, "model.layers.0.mlp.gate.e_score_correction_bias", "F32", 2, 0);
	for (int i = 0; i < 9; i++) {
		snprintf(name, sizeof(name), "model.layers.0.%s%s_proj.weight", experts[i / 3], i % 3 == 0 ? "gate" : i % 3 == 1
		         ? "up" : "down");
		put_tensor(&nothing, name, "F16", 32, 32);
	}
	end_weights();
	put_file("config.json", deepseek, strlen(deepseek));
	if (model_open(&md, dir, err, sizeof(err)) != 0)
		fail_msg("%s", err);
	for (int h = 0; h < 2; h++) {
		const struct sr_tensor *k = &md->m.layer[0].k_b, *v = &md->m.layer[0].v_b;

		assert_true(k->transposed && k->n == 32 && k->k == 64 && k->group == 32 && k->group_n == 32 && !v->transposed);
		assert_int_equal(k->each[h].data.offset - k->each[0].data.offset, h * 96 * 32);
		assert_int_equal(v->each[h].data.offset - k->each[h].data.offset, 64 * 32);
		assert_int_equal(k->each[h].scale.bytes, 2 * 4);
		assert_int_equal(v->each[h].scale.offset - k->each[0].scale.offset, (h * 3 + 2) * 4);
		assert_int_equal(v->each[h].scale.bytes, 4);
	}
	model_close(md);
	f8_scales = 0;
}

/* q, k and v in one AWQ matrix, gate and up in another: outputs of a larger one. */
static void test_fused(void **state)
{
	static const char phi[] = "{\"architectures\":[\"Phi3ForCausalLM\"],\"model_type\":\"phi3\",\"hidden_size\":32,"
		"\"intermediate_size\":64,\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
		"\"vocab_size\":96,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,\"sliding_window\":null,"
		"\"tie_word_embeddings\":true,\"quantization_config\":{" AWQ "}}";
	const struct wrong nothing = { 0 };
	const struct sr_layer *y;
	struct model *md;

	(void)state;
	begin_weights();
	put_tensor(&nothing, "model.embed_tokens.weight", "F16", 96, 32);
	put_tensor(&nothing, "model.norm.weight", "F16", 32, 0);
	put_tensor(&nothing, "model.layers.0.input_layernorm.weight", "F16", 32, 0);
	put_tensor(&nothing, "model.layers.0.post_attention_layernorm.weight", "F16", 32, 0);
	put_matrix(&nothing, SR_AWQ4, "self_attn.qkv_proj", 64, 32);
	put_matrix(&nothing, SR_AWQ4, "self_attn.o_proj", 32, 32);
	put_matrix(&nothing, SR_AWQ4, "mlp.gate_up_proj", 128, 32);
	put_matrix(&nothing, SR_AWQ4, "mlp.down_proj", 32, 64);
	end_weights();
	put_file("config.json", phi, strlen(phi));
	if (model_open(&md, dir, err, sizeof(err)) != 0)
		fail_msg("%s", err);
	y = &md->m.layer[0];
	assert_true(y->q.outputs == 64 && y->q.first == 0 && y->q.n == 32 && y->q.step == 1);
	assert_true(y->k.outputs == 64 && y->k.first == 32 && y->k.n == 16 && y->v.first == 48 && y->v.n == 16);
	assert_true(y->up.outputs == 128 && y->up.first == 64 && y->up.n == 64 && y->up.data.offset == y->gate.data.offset);
	assert_true(!y->o.outputs && y->q.data.bytes == 64 * 32 / 2);
	model_close(md);
}

static void test_i8(void **state)
{
	const struct wrong nothing = { 0 };
	struct model *md;

	(void)state;
	put_weights(SR_I8, SR_F16, &nothing);
	if (opened(&md, I8GROUP("\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\",\"symmetric\":true",
	                        ",\"input_activations\":{\"num_bits\":8,\"type\":\"int\",\"dynamic\":true}")) != 0)
		fail_msg("%s", err);
	assert_string_equal(md->stored, "int8 (6), F16 (5)");
	assert_true(md->m.layer[0].gate.type == SR_I8 && md->m.layer[0].gate.group_n == 1 && !md->m.layer[0].gate.group);
	assert_int_equal(md->m.layer[0].gate.scale.bytes, 128);
	model_close(md);
	assert_int_equal(opened(&md, AWQ), -ENOTSUP);        /* nothing says what int8 is times */
	assert_non_null(strstr(err, "is of type I8"));
}

static void test_f8(void **state)
{
	static const struct { const char *config, *method; int scales, group_n, group; } good[] = {
		{ F8, "fp8", 0, 0, 0 }, { F8, "fp8", 1, 1, 0 },
		{ F8 ",\"weight_block_size\":[32,32]", "fp8", 2, 32, 32 },
		{ F8GROUP(W8, ",\"input_activations\":{\"num_bits\":8,\"type\":\"float\",\"dynamic\":true}"),
		  "compressed-tensors", 1, 1, 0 },
		{ F8 ",\"fmt\":\"e4m3\",\"weight_block_size\":null", "fp8", 3, 1, 0 },
		{ F8GROUP(W8 ",\"block_structure\":[32,32]", ""), "compressed-tensors", 2, 32, 32 },
	};
	static const struct { int scales; struct wrong wrong; int rc; const char *says; } bad[] = {
		{ 0, { "q_proj.weight_scale", "", 0, 0, 0, NULL }, -EINVAL, "q_proj.weight_scale is missing" },
		{ 0, { "q_proj.weight_scale", "I32", 0, 0, 0, NULL }, -ENOTSUP, "weight_scale is of type I32; F16" },
		{ 1, { "q_proj.weight_scale", NULL, 28, 1, 0, NULL }, -EINVAL, "a scale for all or for each of 32" },
		{ 0, { "q_proj.weight", NULL, 32, 31, 0, NULL }, -EINVAL, "make it [32][32]" },
		{ 0, { "norm.weight", "F8_E4M3", 0, 0, 0, NULL }, -ENOTSUP, "which is supported for matrices" },
		{ 0, { "q_proj.weight", .deep = "32,32,1", .index = 1024 }, -ENOTSUP, "which is supported for matrices" },
		{ 0, { "q_proj.weight", .deep = "0,32" }, -ENOTSUP, "which is supported for matrices" },
		{ 0, { "q_proj.weight", .deep = "32,0" }, -ENOTSUP, "which is supported for matrices" },
		{ 1, { "q_proj.weight_scale", .deep = "1,1,5", .index = 10 }, -EINVAL, "has 3 dimensions" },
		{ 1, { "q_proj.weight_scale", .deep = "32,2", .index = 128 }, -EINVAL, "has 2 dimensions" },
		{ 1, { "q_proj.weight_scale", .deep = "1,32", .index = 64 }, -EINVAL, "has 2 dimensions" },
		{ 0, { "q_proj.weight_scale", .deep = "", .index = 4 }, 0, "" },        /* one number */
		{ 0, { "q_proj.weight_scale", .deep = "1,1", .index = 4 }, 0, "" },
	};
	const struct wrong nothing = { 0 };
	struct model *md;

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
		const struct sr_tensor *t;

		f8_scales = good[i].scales;
		put_weights(SR_F8, SR_F16, &nothing);
		if (opened(&md, good[i].config) != 0)
			fail_msg("%s: %s", good[i].config, err);
		t = &md->m.layer[0].gate;
		assert_string_equal(md->quantization, good[i].method);
		assert_string_equal(md->stored, "FP8 (6), F16 (5)");
		assert_true(t->type == SR_F8 && t->n == 64 && t->k == 32);
		assert_true(t->group == good[i].group && t->group_n == good[i].group_n);
		assert_int_equal(t->data.bytes, 64 * 32);
		assert_int_equal(t->scale.bytes, f8_scales == 0 ? 4 : f8_scales == 2 ? 8 : 128);
		assert_int_equal(md->m.layer[0].up.type, SR_F16);
		model_close(md);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		int rc;

		f8_scales = bad[i].scales;
		put_weights(SR_F8, SR_F8, &bad[i].wrong);
		rc = opened(&md, F8);
		if (rc != bad[i].rc || !strstr(err, bad[i].says))
			fail_msg("%s: %d \"%s\", not %d \"%s\"", bad[i].wrong.end, rc, err, bad[i].rc, bad[i].says);
		if (!rc)
			model_close(md);
	}
	f8_scales = 2;
	put_weights(SR_F8, SR_F8, &nothing);
	assert_int_equal(opened(&md, F8), -EINVAL);   /* blocks of which size? */
	assert_int_equal(opened(&md, F8 ",\"weight_block_size\":[32,64]"), -ENOTSUP);
	assert_non_null(strstr(err, "which blocks of 64 do not divide"));
}

/* ---- what is refused ------------------------------------------------------------------------ */

static void test_settings(void **state)
{
	static const struct { const char *config; int rc; const char *says; } bad[] = {
		{ "\"quant_method\":\"bitsandbytes\"", -ENOTSUP,
		  "quant_method bitsandbytes is not supported; supported are awq, gptq and compressed-tensors" },
		{ "\"bits\":4", -ENOTSUP, "quant_method (none) is not supported" },
		{ "\"quant_method\":4", -ENOTSUP, "quant_method (none) is not supported" },
		{ "\"quant_method\":\"awq\",\"bits\":8,\"group_size\":32", -ENOTSUP, "bits is not 4" },
		{ "\"quant_method\":\"awq\",\"bits\":\"4\",\"group_size\":32", -ENOTSUP, "bits is not 4" },
		{ "\"quant_method\":\"awq\",\"bits\":4", -EINVAL, "group_size is no integer" },
		{ "\"quant_method\":\"awq\",\"bits\":4,\"group_size\":16", -ENOTSUP, "group_size is 16" },
		{ "\"quant_method\":\"awq\",\"bits\":4,\"group_size\":0", -ENOTSUP, "group_size is 0" },
		{ "\"quant_method\":\"awq\",\"bits\":4,\"group_size\":9223372036854775807", -ENOTSUP,
		  "group_size is" },
		{ "\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128", -ENOTSUP,
		  "groups of 128 do not divide" },
		{ AWQ ",\"version\":\"gemv\"", -ENOTSUP, "version gemv is not supported; supported is gemm" },
		{ AWQ ",\"zero_point\":false", -ENOTSUP, "zero_point false" },
		{ GPTQ ",\"checkpoint_format\":\"marlin\"", -ENOTSUP, "checkpoint_format marlin" },
		{ GPTQ ",\"dynamic\":{\"-:.*\":{}}", -ENOTSUP, "dynamic" },
		{ "\"quant_method\":\"compressed-tensors\",\"format\":\"naive-quantized\"", -ENOTSUP,
		  "format naive-quantized" },
		{ I8GROUP("\"num_bits\":4,\"type\":\"int\",\"strategy\":\"channel\"", ""), -ENOTSUP, "symmetric int with num_bits 8" },
		{ I8GROUP("\"num_bits\":8,\"type\":\"int\",\"strategy\":\"group\"", ""), -ENOTSUP, "by channel or tensor" },
		{ I8GROUP("\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\",\"symmetric\":false", ""), -ENOTSUP, "symmetric int" },
		{ I8GROUP("\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\"", ",\"input_activations\":{\"num_bits\":8,\"type\":\"float\"}"),
		  -ENOTSUP, "input_activations other than int" },
		{ F8GROUP("\"num_bits\":8,\"type\":\"int\"", ""), -ENOTSUP, "weights of type int" },
		{ F8GROUP(W8, ",\"input_activations\":{\"num_bits\":8,\"type\":\"int\"}"), -ENOTSUP,
		  "input_activations other than float" },
		{ F8GROUP(W8 ",\"block_structure\":[128]", ""), -ENOTSUP, "block_structure is no pair" },
		{ F8 ",\"fmt\":\"e5m2\"", -ENOTSUP, "fmt e5m2" },
		{ F8 ",\"weight_block_size\":[128,100]", -ENOTSUP, "weight_block_size is no pair" },
		{ GROUP0("\"num_bits\":8", ""), -ENOTSUP, "num_bits is not 4" },
		{ GROUP0("\"num_bits\":4,\"type\":\"float\"", ""), -ENOTSUP,
		  "weights of type float, strategy (none)" },
		{ GROUP0(W4A16, ",\"input_activations\":{\"num_bits\":8}"), -ENOTSUP,
		  "quantized activations" },
		{ GROUP0(W4A16, "},\"group_1\":{\"weights\":{}"), -ENOTSUP, "other than one group" },
		{ " \"awq\"", -ENOTSUP, "quant_method (none) is not supported" },
		{ "\"quant_method\":\"gptq\",\"bits\":8,\"group_size\":32", -ENOTSUP, "bits is not 4" },
		{ "\"quant_method\":\"gptq\",\"group_size\":32", -ENOTSUP, "bits is not 4" },
		{ "\"quant_method\":\"awq\",\"bits\":4,\"group_size\":48", -ENOTSUP, "group_size is 48" },
		{ "\"quant_method\":\"awq\",\"bits\":4,\"group_size\":null", -EINVAL, "group_size is no integer" },
		{ "\"quant_method\":\"compressed-tensors\"", -ENOTSUP, "format (none) is not supported" },
		{ "\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\"", -ENOTSUP,
		  "other than one group" },
		{ "\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"a\":3}",
		  -ENOTSUP, "other than one group" },
		{ GROUP0("\"num_bits\":4", ""), -ENOTSUP, "weights of type (none), strategy (none)" },
		{ GROUP0("\"num_bits\":4,\"type\":\"int\",\"strategy\":\"tensor\"", ""), -ENOTSUP,
		  "weights of type int, strategy tensor are not supported; supported are int, by group or channel" },
		{ GROUP0(W4A16, ",\"output_activations\":{\"num_bits\":8}"), -ENOTSUP, "quantized activations" },
		{ GROUP0(W4A16, "") ",\"kv_cache_scheme\":{\"num_bits\":8}", -ENOTSUP, "this kv_cache_scheme is not supported" },
		{ GROUP0(CHANNEL ",\"group_size\":\"all\"", ""), -EINVAL, "group_size is no integer" },
		{ F8GROUP("\"num_bits\":8", ""), -ENOTSUP, "weights of type (none)" },
		{ F8GROUP("\"num_bits\":4,\"type\":\"float\"", ""), -ENOTSUP, "supported is float with num_bits 8" },
		{ F8GROUP(W8, ",\"input_activations\":{\"num_bits\":8}"), -ENOTSUP, "input_activations other than" },
		{ F8GROUP(W8, ",\"output_activations\":{\"num_bits\":8}"), -ENOTSUP, "output_activations are not" },
		{ F8GROUP(W8, "") ",\"kv_cache_scheme\":{" KV8 ",\"dynamic\":true}", -ENOTSUP, "not dynamic" },
		{ F8GROUP(W8, "") ",\"kv_cache_scheme\":{" W8 ",\"strategy\":\"channel\"}", -ENOTSUP, "strategy tensor" },
		{ F8GROUP(W8, "") ",\"kv_cache_scheme\":{\"num_bits\":8,\"type\":\"int\",\"strategy\":\"tensor\"}", -ENOTSUP,
		  "type float" },
		{ F8 ",\"weight_block_size\":[0,128]", -ENOTSUP, "weight_block_size is no pair" },
		{ F8 ",\"weight_block_size\":[65537,128]", -ENOTSUP, "weight_block_size is no pair" },
		{ F8 ",\"weight_block_size\":[128,16]", -ENOTSUP, "weight_block_size is no pair" },
		{ F8 ",\"weight_block_size\":[128,131072]", -ENOTSUP, "weight_block_size is no pair" },
		{ F8 ",\"weight_block_size\":128", -ENOTSUP, "weight_block_size is no pair" },
	};
	const struct wrong nothing = { 0 };
	struct model *md;

	(void)state;
	put_weights(SR_AWQ4, SR_AWQ4, &nothing);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		int rc = opened(&md, bad[i].config);

		if (rc != bad[i].rc || !strstr(err, bad[i].says))
			fail_msg("%s: %d \"%s\", not %d \"%s\"", bad[i].config, rc, err, bad[i].rc,
			         bad[i].says);
	}
}

static void test_tensors(void **state)
{
	static const struct { int32_t type; struct wrong wrong; int rc; const char *says; } bad[] = {
		{ SR_AWQ4, { "q_proj.qweight", "", 0, 0, 0, NULL }, -EINVAL, "q_proj.weight is missing" },
		{ SR_AWQ4, { "q_proj.scales", "", 0, 0, 0, NULL }, -EINVAL, "q_proj.scales is missing" },
		{ SR_AWQ4, { "q_proj.qzeros", "", 0, 0, 0, NULL }, -EINVAL, "q_proj.qzeros is missing" },
		{ SR_AWQ4, { "q_proj.qweight", "F32", 0, 0, 0, NULL }, -EINVAL, "q_proj.qweight at offset" },
		{ SR_AWQ4, { "q_proj.qweight", NULL, 32, 0, 0, NULL }, -EINVAL, "it must be an I32 matrix" },
		{ SR_AWQ4, { "q_proj.qweight", NULL, 64, 4, 0, NULL }, -EINVAL, "q_proj.scales at offset" },
		{ SR_AWQ4, { "q_proj.qweight", NULL, 32, 8, 0, NULL }, -EINVAL, "q_proj.scales at offset" },
		{ SR_AWQ4, { "q_proj.qweight", NULL, 33, 4, 0, NULL }, -ENOTSUP, "groups of 32 do not divide" },
		{ SR_AWQ4, { "q_proj.scales", "I32", 0, 0, 0, NULL }, -ENOTSUP, "scales is of type I32; F16" },
		{ SR_AWQ4, { "q_proj.scales", NULL, 2, 32, 0, NULL }, -EINVAL, "make it [1][32]" },
		{ SR_AWQ4, { "q_proj.qzeros", NULL, 1, 8, 0, NULL }, -EINVAL, "make it [1][4]" },
		{ SR_AWQ4, { "q_proj.qzeros", "F32", 0, 0, 0, NULL }, -ENOTSUP, "qzeros is of type F32; I32" },
		{ SR_AWQ4, { "+model.layers.0.self_attn.q_proj.bias", NULL, 0, 0, 0, NULL }, -ENOTSUP,
		  "no part of" },
		{ SR_AWQ4, { "+model.layers.0.self_attn.q_proj.weight", NULL, 32, 32, 0, NULL }, -ENOTSUP,
		  "no part of" },
		{ SR_GPTQ4, { "q_proj.qweight", NULL, 4, 33, 0, NULL }, -ENOTSUP, "8 outputs to a word" },
		{ SR_GPTQ4, { "q_proj.g_idx", NULL, 31, 0, 0, NULL }, -EINVAL, "q_proj.g_idx at offset" },
		{ SR_GPTQ4, { "q_proj.g_idx", NULL, 0, 0, 9, NULL }, -EINVAL, "puts input 9 into group 7; there are 1" },
		{ SR_GPTQ4, { "+model.layers.0.self_attn.q_proj.bias", NULL, 0, 0, 0, NULL }, 0, "" },
		{ SR_CT4, { "q_proj.weight_scale", "", 0, 0, 0, NULL }, -EINVAL, "q_proj.weight_scale is missing" },
		{ SR_CT4, { "q_proj.weight_zero_point", NULL, 4, 2, 0, NULL }, -EINVAL, "make it [4][1]" },
		{ SR_CT4, { "q_proj.weight_packed", NULL, 16, 4, 0, NULL }, -EINVAL, "make it [16][1]" },
		{ SR_AWQ4, { "q_proj.qweight", .deep = "33554432,0" }, -EINVAL, "an I32 matrix of at most 16777216" },
		{ SR_AWQ4, { "q_proj.qweight", .deep = "0,33554432" }, -EINVAL, "an I32 matrix of at most 16777216" },
		{ SR_AWQ4, { "q_proj.qweight", .deep = "0,4" }, -EINVAL, "q_proj.qweight at offset" },
		{ SR_AWQ4, { "q_proj.qweight", .deep = "32,0" }, -EINVAL, "is empty" },
		{ SR_AWQ4, { "q_proj.scales", .deep = "1,32,1", .index = 64 }, -EINVAL, "has 3 dimensions" },
		{ SR_GPTQ4, { "q_proj.g_idx", "F32", 0, 0, 0, NULL }, -EINVAL, "is not I32 [32]" },
		{ SR_GPTQ4, { "q_proj.g_idx", NULL, 32, 1, 0, NULL }, -EINVAL, "is not I32 [32]" },
		{ SR_GPTQ4, { "+model.layers.0.other.bias", NULL, 0, 0, 0, NULL }, -ENOTSUP, "no part of" },
	};
	struct model *md;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		int rc;

		put_weights(bad[i].type, bad[i].type, &bad[i].wrong);
		rc = opened(&md, bad[i].type == SR_AWQ4 ? AWQ : bad[i].type == SR_GPTQ4 ? GPTQ
		                                                                       : GROUP0(W4A16, ""));
		if (rc != bad[i].rc || !strstr(err, bad[i].says))
			fail_msg("case %zu, %s: %d \"%s\", not %d \"%s\"", i, bad[i].wrong.end, rc, err,
			         bad[i].rc, bad[i].says);
		if (!rc)
			model_close(md);
	}
}

/* Memory, descriptors and the disk may fail at any call: a sentence, and nothing is left behind. */
static int open_it(char *why, size_t n)
{
	struct model *md;
	int rc = model_open(&md, dir, why, n);

	if (rc == 0)
		model_close(md);
	return rc;
}

static void test_calls_that_fail(void **state)
{
	const struct wrong nothing = { 0 };
	struct model *md;

	(void)state;
	put_weights(SR_GPTQ4, SR_F16, &nothing);
	assert_int_equal(opened(&md, GPTQ), 0);
	model_close(md);
	nth_each(NTH_FAILS, open_it, dir);
	nth_each(NTH_ENDS, open_it, dir);
}

static int setup(void **state)
{
	(void)state;
	return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
	char command[200];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	return system(command);
}

#define F4 "\"num_bits\":4,\"type\":\"float\",\"group_size\":16"
#define MODELOPT(more) "\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\",\"producer\":{\"name\":\"modelopt\"}," \
	"\"ignore\":[\"lm_head\"],\"config_groups\":{\"group_0\":{\"weights\":{" F4 "},\"targets\":[\"Linear\"]}}" more
#define F4GROUP(weights, more) "\"quant_method\":\"compressed-tensors\",\"format\":\"nvfp4-pack-quantized\"," \
	"\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{" weights "}" more "}}"
#define F4CT F4GROUP(F4 ",\"strategy\":\"tensor_group\"", "")

static void test_nvfp4(void **state)
{
	static const struct { const char *config; int32_t type; bool kv_f8; } good[] = {
		{ MODELOPT(""), SR_NVFP4, false },
		{ MODELOPT(",\"kv_cache_scheme\":{\"num_bits\":8,\"type\":\"float\",\"dynamic\":false}"), SR_NVFP4, true },
		{ "\"quant_method\":\"modelopt_fp4\",\"quant_algo\":\"NVFP4\",\"group_size\":16", SR_NVFP4, false },
		{ F4CT, SR_NVFP4_CT, false },
		{ F4GROUP(F4, ",\"input_activations\":{" F4 ",\"dynamic\":\"local\"}"), SR_NVFP4_CT, false },
	};
	static const struct { const char *config; int32_t type; struct wrong w; int rc; const char *what; } bad[] = {
		{ MODELOPT(""), SR_NVFP4, { "up_proj.weight_scale", "", 0, 0, 0, NULL }, -EINVAL, "up_proj.weight_scale is missing" },
		{ MODELOPT(""), SR_NVFP4, { "up_proj.weight_scale_2", "", 0, 0, 0, NULL }, -EINVAL, "weight_scale_2 is missing" },
		{ MODELOPT(""), SR_NVFP4, { "up_proj.weight_scale_2", NULL, 2, 0, 0, NULL }, -EINVAL, "is not one F32" },
		{ MODELOPT(""), SR_NVFP4, { "up_proj.weight_scale", NULL, 64, 4, 0, NULL }, -EINVAL, "is not F8_E4M3 [64][2]" },
		{ MODELOPT(""), SR_NVFP4, { "up_proj.weight", NULL, 64, 15, 0, NULL }, -ENOTSUP, "a multiple of 16 inputs" },
		{ F4CT, SR_NVFP4_CT, { "up_proj.weight_packed", "I32", 0, 0, 0, NULL }, -ENOTSUP, "is of type I32; NVFP4 is" },
		{ F4CT, SR_NVFP4_CT, { "up_proj.weight_global_scale", "", 0, 0, 0, NULL }, -EINVAL, "weight_global_scale is missing" },
		{ F4GROUP("\"num_bits\":4,\"type\":\"float\",\"group_size\":32", ""), SR_NVFP4_CT, { 0 }, -ENOTSUP, "group_size 16" },
		{ "\"quant_method\":\"modelopt\",\"quant_algo\":\"W4A8_AWQ\"", SR_NVFP4, { 0 }, -ENOTSUP, "quant_algo W4A8_AWQ" },
		{ "\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\",\"group_size\":32", SR_NVFP4, { 0 }, -ENOTSUP,
		  "group_size is 32" },
		{ MODELOPT(",\"kv_cache_quant_algo\":\"NVFP4\""), SR_NVFP4, { 0 }, -ENOTSUP, "this KV cache" },
	};
	const struct wrong nothing = { 0 };
	struct model *md;

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
		const struct sr_tensor *t;

		put_weights(good[i].type, good[i].type, &nothing);
		if (opened(&md, good[i].config) != 0)
			fail_msg("%s: %s", good[i].config, err);
		t = &md->m.layer[0].down;
		assert_true(t->type == good[i].type && t->n == 32 && t->k == 64 && md->kv_f8 == good[i].kv_f8);
		assert_true(t->data.bytes == 32 * 64 / 2 && t->scale.bytes == 32 * 64 / 16 && t->zero.bytes == 4);
		assert_true(strncmp(md->stored, "NVFP4 (7)", 9) == 0);
		model_close(md);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		put_weights(bad[i].type, bad[i].type, &bad[i].w);
		if (opened(&md, bad[i].config) != bad[i].rc || !strstr(err, bad[i].what))
			fail_msg("%s: %s", bad[i].what, err);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good), cmocka_unit_test(test_nvfp4), cmocka_unit_test(test_act_order), cmocka_unit_test(test_groups),
		cmocka_unit_test(test_i8), cmocka_unit_test(test_f8_latent), cmocka_unit_test(test_fused),
		cmocka_unit_test(test_f8),
		cmocka_unit_test(test_settings), cmocka_unit_test(test_tensors), cmocka_unit_test(test_calls_that_fail),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
