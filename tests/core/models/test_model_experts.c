/* LINK: @models kernels/rope.c -ljansson */
/* test_model_experts.c - experts in Hugging Face directories: where each one's matrices lie, which settings are read,
 * and what is refused, in which words.  (That it computes the right thing: tests/models.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/models/model.h"

#define N 4                        /* experts */
#define D 64
#define F 32

static char dir[] = "/tmp/slipring-test-experts-XXXXXX";
static char err[512];

/* ---- a directory ---------------------------------------------------------------------------------- */

static char head[65536];           /* of model.safetensors */
static uint64_t data_bytes;

/* One change to what put_tensor() writes: the tensor whose name ends so has another type or shape, or is left out. */
static struct { const char *end, *dtype, *shape; } wrong;

static uint64_t items_of(const char *shape)
{
	uint64_t n = 1;

	for (char *p = (char *)(uintptr_t)shape; *p; p += *p == ',')
		n *= strtoull(p, &p, 10);
	return n;
}

static void put_tensor(const char *name, const char *dtype, const char *shape)
{
	size_t n = strlen(name), end = wrong.end ? strlen(wrong.end) : 0;
	uint64_t bytes;

	if (end && n >= end && strcmp(name + n - end, wrong.end) == 0) {
		if (!wrong.dtype)
			return;
		dtype = wrong.dtype;
		shape = wrong.shape;
	}
	bytes = items_of(shape) * (strcmp(dtype, "F32") == 0 || strcmp(dtype, "I32") == 0 ? 4
	                           : strcmp(dtype, "U8") == 0 ? 1 : 2);
	snprintf(head + strlen(head), sizeof(head) - strlen(head),
	         "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}", *head ? "," : "", name, dtype,
	         shape, (unsigned long long)data_bytes, (unsigned long long)(data_bytes + bytes));
	data_bytes += bytes;
}

#define PUT(dtype, shape, ...) do { \
		char put_name[160]; \
		snprintf(put_name, sizeof(put_name), __VA_ARGS__); \
		put_tensor(put_name, dtype, shape); \
	} while (0)

static void put_file(const char *name, const char *text, uint64_t extra)
{
	uint64_t n = strlen(text);
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "w");
	assert_non_null(f);
	if (extra)
		fwrite(&n, 8, 1, f);
	assert_int_equal(fwrite(text, 1, n, f), n);
	assert_int_equal(fflush(f), 0);
	assert_int_equal(ftruncate(fileno(f), (off_t)(extra ? 8 + n + extra : n)), 0);
	fclose(f);
}

/* Everything but the experts, of two layers. */
static void put_rest(const char *router)
{
	*head = 0;
	data_bytes = 0;
	PUT("BF16", "128,64", "model.embed_tokens.weight");
	PUT("BF16", "64", "model.norm.weight");
	for (int l = 0; l < 2; l++) {
		PUT("BF16", "64", "model.layers.%d.input_layernorm.weight", l);
		PUT("BF16", "64", "model.layers.%d.post_attention_layernorm.weight", l);
		for (int i = 0; i < 4; i++)
			PUT("BF16", "64,64", "model.layers.%d.self_attn.%c_proj.weight", l, "qkvo"[i]);
		for (int i = 0; i < 2; i++)
			PUT("BF16", "32", "model.layers.%d.self_attn.%c_norm.weight", l, "qk"[i]);
		if (router)
			PUT("BF16", "4,64", "model.layers.%d.%s", l, router);
	}
}

static void put_one_by_one(void)
{
	put_rest("mlp.gate.weight");
	for (int l = 0; l < 2; l++)
		for (int e = 0; e < N; e++) {
			PUT("BF16", "32,64", "model.layers.%d.mlp.experts.%d.gate_proj.weight", l, e);
			PUT("BF16", "32,64", "model.layers.%d.mlp.experts.%d.up_proj.weight", l, e);
			PUT("BF16", "64,32", "model.layers.%d.mlp.experts.%d.down_proj.weight", l, e);
		}
}

#define SIZES "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":2," \
	"\"head_dim\":32,\"vocab_size\":128,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6," \
	"\"tie_word_embeddings\":true,"
#define QWEN "\"architectures\":[\"Qwen3MoeForCausalLM\"],\"moe_intermediate_size\":32,\"num_experts_per_tok\":2," SIZES
#define FOUR "\"num_experts\":4"

/* Open what was put; NULL: err. */
static struct model *opened(const char *config, int *rc)
{
	struct model *md = NULL;
	static char text[66000];
	char whole[2048];

	snprintf(whole, sizeof(whole), "{%s}", config);
	put_file("config.json", whole, 0);
	snprintf(text, sizeof(text), "{%s}", head);
	put_file("model.safetensors", text, data_bytes);
	*rc = model_open(&md, dir, err, sizeof(err));
	return md;
}

static struct model *good(const char *config)
{
	int rc;
	struct model *md = opened(config, &rc);

	if (rc)
		fail_msg("%s", err);
	return md;
}

static void bad(const char *config, int want, const char *sentence)
{
	int rc;
	struct model *md = opened(config, &rc);

	if (md)
		model_close(md);
	if (rc != want || !strstr(err, sentence))
		fail_msg("%d \"%s\" is not %d \"%s\"", rc, rc ? err : "", want, sentence);
}

/* ---- where they lie ------------------------------------------------------------------------------- */

static void test_one_by_one(void **state)
{
	const struct sr_experts *x;
	const struct sr_layer *y;
	struct model *md;

	(void)state;
	put_one_by_one();
	md = good(QWEN FOUR ",\"norm_topk_prob\":true");
	x = &md->m.experts;
	y = &md->m.layer[1];
	assert_true(x->n == N && x->top == 2 && x->d_ff == F && x->renorm == 1 && x->score == SR_SCORE_SOFTMAX && x->scale == 1);
	assert_true(y->ffn == SR_EXPERTS && y->gate.type == SR_NONE && y->router.n == N && y->router.k == D);
	assert_true(y->expert_gate.count == N && y->expert_gate.n == F && y->expert_gate.k == D);
	assert_true(y->expert_down.n == D && y->expert_down.k == F);
	for (int e = 0; e < N; e++) { /* gate, up and down follow each other, expert by expert */
		uint64_t at = y->expert_gate.each[0].data.offset + (uint64_t)e * 3 * F * D * 2;

		assert_true(sr_stored_of(&y->expert_gate, e).data.offset == at);
		assert_true(sr_stored_of(&y->expert_up, e).data.offset == at + F * D * 2);
		assert_true(sr_stored_of(&y->expert_down, e).data.offset == at + F * D * 4);
		assert_true(sr_stored_of(&y->expert_down, e).data.bytes == F * D * 2);
	}
	assert_true(strncmp(md->stored, "BF16 (44)", 9) == 0);
	assert_true(md->weight_bytes == data_bytes);
	model_close(md);
}

static void test_all_in_one(void **state)
{
	const struct sr_layer *y;
	struct model *md;

	(void)state;
	put_rest("mlp.gate.weight");
	for (int l = 0; l < 2; l++) {
		PUT("BF16", "4,64,64", "model.layers.%d.mlp.experts.gate_up_proj", l);
		PUT("BF16", "4,64,32", "model.layers.%d.mlp.experts.down_proj", l);
	}
	md = good(QWEN FOUR);
	y = &md->m.layer[0];
	for (int e = 0; e < N; e++) {
		assert_true(y->expert_gate.each[e].data.offset == y->expert_gate.each[0].data.offset + (uint64_t)e * F * D * 4);
		assert_true(y->expert_up.each[e].data.offset == y->expert_gate.each[e].data.offset + F * D * 2);
	}
	assert_true(!y->expert_down.each && sr_stored_of(&y->expert_down, 3).data.offset ==
	            y->expert_down.data.offset + 3 * F * D * 2);
	assert_true(md->weight_bytes == data_bytes && md->m.experts.renorm == 0);
	model_close(md);
}

#define AWQ ",\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32,\"zero_point\":true}"

static void put_awq(int e, const char *name, const char *words, const char *zeros, const char *scales)
{
	for (int l = 0; l < 2; l++) {
		PUT("I32", words, "model.layers.%d.mlp.experts.%d.%s.qweight", l, e, name);
		PUT("I32", zeros, "model.layers.%d.mlp.experts.%d.%s.qzeros", l, e, name);
		PUT("F16", scales, "model.layers.%d.mlp.experts.%d.%s.scales", l, e, name);
	}
}

static void test_awq(void **state)
{
	const struct sr_tensor *t;
	struct model *md;

	(void)state;
	put_rest("mlp.gate.weight");
	for (int e = 0; e < N; e++) {
		put_awq(e, "gate_proj", "64,4", "2,4", "2,32");
		put_awq(e, "up_proj", "64,4", "2,4", "2,32");
		put_awq(e, "down_proj", "32,8", "1,8", "1,64");
	}
	md = good(QWEN FOUR AWQ);
	t = &md->m.layer[1].expert_up;
	assert_true(t->type == SR_AWQ4 && t->group == 32 && t->each[0].zero.bytes == 32 && t->each[3].scale.bytes == 128);
	assert_true(t->each[3].data.offset > t->each[2].data.offset && t->each[3].data.bytes == 1024);
	model_close(md);
	wrong.end = "1.mlp.experts.2.up_proj.scales";
	wrong.dtype = "BF16";
	wrong.shape = "2,32";
	put_rest("mlp.gate.weight");
	for (int e = 0; e < N; e++) {
		put_awq(e, "gate_proj", "64,4", "2,4", "2,32");
		put_awq(e, "up_proj", "64,4", "2,4", "2,32");
		put_awq(e, "down_proj", "32,8", "1,8", "1,64");
	}
	bad(QWEN FOUR AWQ, -ENOTSUP, "experts.2.up_proj.weight is stored otherwise than model.layers.1.mlp.experts.0");
	wrong.end = NULL;
}

/* ---- what is refused ------------------------------------------------------------------------------ */

static void test_tensors(void **state)
{
	static const struct { const char *end, *dtype, *shape, *sentence; int rc; } cases[] = {
		{ "0.mlp.experts.3.up_proj.weight", NULL, NULL, "experts.3.up_proj.weight is missing", -EINVAL },
		{ "1.mlp.gate.weight", NULL, NULL, "layers.1.mlp.gate.weight is missing", -EINVAL },
		{ "1.mlp.gate.weight", "BF16", "5,64", "is [5][64]; the settings of this model make it [1][4][64]", -EINVAL },
		{ "1.mlp.experts.1.down_proj.weight", "BF16", "32,64", "is [32][64]; the settings of this model make it [64][32]",
		  -EINVAL },
		{ "1.mlp.experts.1.down_proj.weight", "F32", "64,32", "experts.1.down_proj.weight is stored otherwise", -ENOTSUP },
		{ "1.mlp.experts.0.down_proj.weight", "U8", "64,32", "is of type U8, which is not supported", -ENOTSUP },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		wrong.end = cases[i].end;
		wrong.dtype = cases[i].dtype;
		wrong.shape = cases[i].shape;
		put_one_by_one();
		bad(QWEN FOUR, cases[i].rc, cases[i].sentence);
	}
	wrong.end = NULL;
	put_one_by_one();
	PUT("BF16", "32,64", "model.layers.1.mlp.experts.4.up_proj.weight");
	bad(QWEN FOUR, -ENOTSUP, "experts.4.up_proj.weight is no part of the Qwen3MoeForCausalLM");
}

static void test_settings(void **state)
{
	struct model *md;

	(void)state;
	put_one_by_one();
	bad(QWEN "\"num_experts\":0", -EINVAL, "the number of experts is missing");
	bad(QWEN "\"num_experts\":1", -EINVAL, "2 of 1 experts are to compute a token; 1 to 1 could");
	bad(QWEN FOUR ",\"num_local_experts\":8", -EINVAL, "num_local_experts is 8, but a setting of the same meaning is 4");
	bad(QWEN FOUR ",\"scoring_func\":\"sigmoid\"", -ENOTSUP, "scoring_func is \"sigmoid\"");
	bad(QWEN FOUR ",\"norm_topk_prob\":1", -EINVAL, "norm_topk_prob is neither true nor false");
	bad(QWEN FOUR ",\"decoder_sparse_step\":3", -EINVAL, "no layer has experts");
	bad(QWEN FOUR ",\"routed_scaling_factor\":2.5", -ENOTSUP, "routed_scaling_factor is 2.5");
	md = good(QWEN "\"num_local_experts\":4,\"num_experts\":4,\"scoring_func\":\"softmax\"");
	model_close(md);
	bad(QWEN FOUR ",\"mlp_only_layers\":[1]", -EINVAL, "model.layers.1.mlp.gate_proj.weight is missing");
}

#define OSS "\"architectures\":[\"GptOssForCausalLM\"],\"num_local_experts\":4,\"experts_per_token\":2," \
	"\"attention_bias\":false,\"sliding_window\":null," SIZES

/* Experts in blocks, with their scales. */
static void test_mxfp4(void **state)
{
	static const char config[] = OSS "\"quantization_config\":{\"quant_method\":\"mxfp4\"}";
	const struct sr_layer *y;
	struct model *md;

	(void)state;
	for (int turn = 0; turn < 2; turn++) {
		put_rest(NULL);
		*head = 0;
		data_bytes = 0;
		PUT("BF16", "128,64", "model.embed_tokens.weight");
		PUT("BF16", "64", "model.norm.weight");
		for (int l = 0; l < 2; l++) {
			PUT("BF16", "64", "model.layers.%d.input_layernorm.weight", l);
			PUT("BF16", "64", "model.layers.%d.post_attention_layernorm.weight", l);
			for (int i = 0; i < 4; i++)
				PUT("BF16", "64,64", "model.layers.%d.self_attn.%c_proj.weight", l, "qkvo"[i]);
			PUT("BF16", "2", "model.layers.%d.self_attn.sinks", l);
			PUT("BF16", "4,64", "model.layers.%d.mlp.router.weight", l);
			PUT("BF16", "4", "model.layers.%d.mlp.router.bias", l);
			PUT("U8", "4,192,2,16", "model.layers.%d.mlp.experts.gate_up_proj_blocks", l);
			PUT("U8", "4,192,2", "model.layers.%d.mlp.experts.gate_up_proj_scales", l);
			PUT("BF16", "4,192", "model.layers.%d.mlp.experts.gate_up_proj_bias", l);
			PUT("U8", "4,64,3,16", "model.layers.%d.mlp.experts.down_proj_blocks", l);
			PUT("U8", turn ? "4,64,2" : "4,64,3", "model.layers.%d.mlp.experts.down_proj_scales", l);
			PUT("BF16", "4,64", "model.layers.%d.mlp.experts.down_proj_bias", l);
		}
		if (turn) {
			bad(config, -EINVAL, "down_proj_scales at offset");
			continue;
		}
		md = good(config);
		y = &md->m.layer[1];
		assert_true(y->expert_up.type == SR_MXFP4 && y->expert_up.outputs == 192 && y->expert_up.first == 1 &&
		            y->expert_up.step == 2 && y->expert_up.n == 96 && y->expert_up.k == D);
		assert_true(y->expert_down.outputs == 0 && sr_stored_of(&y->expert_down, 1).scale.bytes == 64 * 3);
		assert_true(y->expert_up_bias.outputs == 192 && y->expert_up_bias.k == 96 && y->router_bias.k == N);
		assert_true(md->weight_bytes == data_bytes);
		model_close(md);
	}
}

static int make_dir(void **state)
{
	(void)state;
	return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
	char command[128];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_by_one), cmocka_unit_test(test_all_in_one), cmocka_unit_test(test_awq),
		cmocka_unit_test(test_tensors), cmocka_unit_test(test_settings), cmocka_unit_test(test_mxfp4),
	};

	return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
