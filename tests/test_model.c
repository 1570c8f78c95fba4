/* LINK: core/model.c core/model_gguf.c core/model_hf.c core/model_quant.c core/gguf.c core/safetensors.c kernels/rope.c -ljansson */
/* test_model.c - models of either kind: what is read out of them, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/load.h"
#include "core/model.h"
#include "tests/gguf_write.h"

static char dir[] = "/tmp/slipring-test-model-XXXXXX";
static char err[5000];

/* ---- GGUF: 2 layers of 32, 4 heads and 2 for K,V of 8, feed-forward 64, vocabulary 96 ----------- */

struct gguf_case {
	const char *arch;
	uint32_t layers, heads, heads_kv, context;
	float theta, eps;
	const char *skip;              /* a tensor that is not there */
	const char *extra;             /* one more, f32 [32] */
	const char *wrong;             /* a tensor of another shape */
	bool untied, f16_norm;
	uint32_t matrix_type, eos, rope_dims;
	const char *scaling;
	float freqs, freqs_2;          /* rope_freqs.weight: 1, 1, freqs_2 or 1, freqs */
};
static const struct gguf_case usual = { .arch = "llama", .layers = 2, .heads = 4, .heads_kv = 2,
                                        .context = 128,
	.theta = 10000, .eps = 1e-5f, .matrix_type = 2, .eos = 7 };

static struct bytes w, tail;
static uint32_t n_tensors;
static uint64_t data_at;

static void add(const struct gguf_case *c, const char *name, uint64_t k, uint64_t n, uint32_t type)
{
	uint64_t items = k * (n ? n : 1), bytes = type == 2 ? items / 32 * 18 : items * 4;

	if (c->skip && strcmp(c->skip, name) == 0)
		return;
	if (c->wrong && strcmp(c->wrong, name) == 0)
		k += 32;
	put_tensor(&tail, name, n ? 2 : 1, k, n, type, data_at);
	data_at += (bytes + (c->wrong ? 4096 : 0) + 31) / 32 * 32;
	n_tensors++;
}

static void add_layer(const struct gguf_case *c, uint32_t l)
{
	static const struct { const char *name; uint64_t k, n; } t[] = {
		{ "attn_norm", 32, 0 }, { "attn_q", 32, 32 }, { "attn_k", 32, 16 }, { "attn_v", 32, 16 },
		{ "attn_output", 32, 32 }, { "ffn_norm", 32, 0 }, { "ffn_gate", 32, 64 },
			{ "ffn_up", 32, 64 },
		{ "ffn_down", 64, 32 },
	};
	char name[64];

	for (unsigned i = 0; i < sizeof(t) / sizeof(*t); i++) {
		snprintf(name, sizeof(name), "blk.%u.%s.weight", l, t[i].name);
		add(c, name, t[i].k, t[i].n, t[i].n ? c->matrix_type : c->f16_norm ? 1 : 0);
	}
}

static void put_settings(const struct gguf_case *c)
{
	char key[64];

	put_kv_str(&w, "general.architecture", c->arch);
	put_kv_str(&w, "general.name", "tiny\x01model");
#define K(s) (snprintf(key, sizeof(key), "%s.%s", c->arch, s), key)
	put_kv_u32(&w, K("block_count"), c->layers);
	put_kv_u32(&w, K("context_length"), c->context);
	put_kv_u32(&w, K("embedding_length"), 32);
	put_kv_u32(&w, K("feed_forward_length"), 64);
	put_kv_u32(&w, K("attention.head_count"), c->heads);
	put_kv_u32(&w, K("attention.head_count_kv"), c->heads_kv);
	put_kv_f32(&w, K("rope.freq_base"), c->theta);
	put_kv_f32(&w, K("attention.layer_norm_rms_epsilon"), c->eps);
	put_kv_u32(&w, K("rope.dimension_count"), c->rope_dims ? c->rope_dims : 8);
	put_kv_u32(&w, "tokenizer.ggml.eos_token_id", c->eos);
	put_kv_u32(&w, "tokenizer.ggml.eot_token_id", 9);
	put_kv_str(&w, K("rope.scaling.type"), c->scaling ? c->scaling : "none");
	put_kv_f32(&w, K("rope.scaling.factor"), c->scaling ? 4 : 1);
#undef K
}

static const char *write_gguf(const struct gguf_case *c)
{
	static char path[100];
	float freqs[4] = { 1, 1, c->freqs_2 ? c->freqs_2 : 1, c->freqs };
	uint64_t freqs_at = 0;
	FILE *f;

	n_tensors = 0;
	data_at = tail.n = 0;
	add(c, "token_embd.weight", 32, 96, c->matrix_type);
	add(c, "output_norm.weight", 32, 0, 0);
	if (c->untied)
		add(c, "output.weight", 32, 96, c->matrix_type);
	for (uint32_t l = 0; l < 2; l++)
		add_layer(c, l);
	if (c->extra)
		add(c, c->extra, 32, 0, 0);
	if (c->freqs) {
		freqs_at = data_at;
		add(c, "rope_freqs.weight", 4, 0, 0);
	}
	put_head(&w, 3, n_tensors, 15);
	put_settings(c);
	put(&w, tail.b, tail.n);
	put_pad(&w, 32);
	freqs_at += w.n;
	put_zeros(&w, data_at);
	if (c->freqs)
		memcpy(w.b + freqs_at, freqs, sizeof(freqs));
	snprintf(path, sizeof(path), "%s/tiny.gguf", dir);
	assert_non_null(f = fopen(path, "w"));
	assert_int_equal(fwrite(w.b, 1, w.n, f), w.n);
	fclose(f);
	return path;
}

static void test_gguf(void **state)
{
	struct gguf_case c = usual;
	struct model *md;

	(void)state;
	assert_int_equal(model_open(&md, write_gguf(&c), err, sizeof(err)), 0);
	assert_string_equal(md->m.name, "tiny?model");
	assert_true(md->m.L == 2 && md->m.D == 32 && md->m.H == 4 && md->m.G == 2 && md->m.E == 8 &&
	            md->m.F == 64);
	assert_true(md->m.V == 96 && md->m.context == 128 && md->m.eps == 1e-5f);
	assert_true(md->m.rope[0].pairs == 1 && md->m.rope[0].dims == 8 &&
	            md->m.rope[0].kind == SR_ROPE_PLAIN);
	assert_true(md->n_eos == 2 && md->eos[0] == 7 && md->eos[1] == 9);
	assert_int_equal(md->m.head.type, SR_NONE);
	assert_true(md->m.layer[1].down.type == SR_Q4_0 && md->m.layer[1].down.n == 32 &&
	            md->m.layer[1].down.k == 64);
	assert_string_equal(md->m.layer[1].down.name, "blk.1.ffn_down.weight");
	assert_int_equal(md->m.layer[1].down.data.bytes, 32 * 64 / 32 * 18);
	assert_string_equal(md->stored, "Q4_0 (15), F32 (5)");
	assert_string_equal(md->format, "GGUF");
	assert_true(fabsf(md->m.attn_scale - 0.35355339f) < 1e-6f);
	model_close(md);
	c.untied = true;
	c.f16_norm = true;
	c.matrix_type = 1;
	assert_int_equal(model_open(&md, write_gguf(&c), err, sizeof(err)), 0);
	assert_true(md->m.head.type == SR_F16 && md->m.head.n == 96 && md->m.layer[0].norm1.type == SR_F16);
	model_close(md);
}

static void refused(const char *path, int rc, const char *says, int line)
{
	struct model *md;
	int got = model_open(&md, path, err, sizeof(err));

	if (got != rc || !strstr(err, says) || !strstr(err, dir))
		fail_msg("line %d: %d \"%s\" is not %d \"%s\"", line, got, got ? err : "", rc, says);
}
#define BAD(rc, says, ...) do { struct gguf_case c = usual; __VA_ARGS__; \
	refused(write_gguf(&c), rc, says, __LINE__); } while (0)

static void test_bad_gguf(void **state)
{
	(void)state;
	BAD(-ENOTSUP, "architecture mamba is not supported; supported are llama, qwen2, qwen3",
	    c.arch = "mamba");
	BAD(-EINVAL, "llama.block_count is 0; 1 to 4096 are allowed", c.layers = 0);
	BAD(-EINVAL, "llama.block_count is 4294967295", c.layers = UINT32_MAX);
	BAD(-EINVAL, "tensor blk.2.attn_norm.weight is missing", c.layers = 3);
	BAD(-ENOTSUP, "tensor blk.1.attn_norm.weight is no part of the llama", c.layers = 1);
	BAD(-EINVAL, "llama.attention.head_count is 0", c.heads = 0);
	BAD(-EINVAL, "32 is no multiple of 5 attention heads", c.heads = 5; c.heads_kv = 5);
	BAD(-EINVAL, "4 attention heads are no multiple of 3", c.heads_kv = 3);
	BAD(-EINVAL, "llama.attention.head_count_kv is 0", c.heads_kv = 0);
	BAD(-EINVAL, "[16][32]; the settings of this model make it [32][32]", c.heads_kv = 4);
	BAD(-EINVAL, "heads are 1 wide; even widths", c.heads = 32; c.heads_kv = 32; c.rope_dims = 2);
	BAD(-EINVAL, "llama.context_length is 0", c.context = 0);
	BAD(-EINVAL, "llama.rope.freq_base is 0; 2 to", c.theta = 0);
	BAD(-EINVAL, "llama.rope.freq_base is no finite float", c.theta = NAN);
	BAD(-EINVAL, "llama.rope.freq_base is no finite float", c.theta = INFINITY);
	BAD(-EINVAL, "layer_norm_rms_epsilon is no finite float", c.eps = NAN);
	BAD(-EINVAL, "layer_norm_rms_epsilon is 0;", c.eps = 0);
	BAD(-EINVAL, "layer_norm_rms_epsilon is -1e-05", c.eps = -1e-5f);
	BAD(-EINVAL, "llama.rope.dimension_count is 3; it must be even", c.rope_dims = 3);
	BAD(-EINVAL, "llama.rope.dimension_count is 16; 2 to 8", c.rope_dims = 16);
	BAD(-ENOTSUP, "llama.rope.scaling.type is longrope; supported are none, linear, yarn",
	    c.scaling = "longrope");
	BAD(-EINVAL, "eos_token_id is -1; token ids are 0 to 95", c.eos = UINT32_MAX);
	BAD(-EINVAL, "eos_token_id is 96; token ids are 0 to 95", c.eos = 96);
	BAD(-EINVAL, "tensor output_norm.weight is missing", c.skip = "output_norm.weight");
	BAD(-EINVAL, "token_embd.weight is missing", c.skip = "token_embd.weight");
	BAD(-EINVAL, "tensor blk.1.ffn_up.weight is missing", c.skip = "blk.1.ffn_up.weight");
	BAD(-EINVAL, "blk.1.ffn_up.weight at offset", c.wrong = "blk.1.ffn_up.weight");
	BAD(-EINVAL, "blk.0.attn_norm.weight at offset", c.wrong = "blk.0.attn_norm.weight");
	BAD(-ENOTSUP, "tensor blk.0.ffn_gate_exps.weight is no part", c.extra = "blk.0.ffn_gate_exps.weight");
	BAD(-ENOTSUP, "tensor blk.0.attn_q_norm.weight is no part", c.extra = "blk.0.attn_q_norm.weight");
	BAD(-EINVAL, "blk.0.attn_k.bias is missing", c.extra = "blk.0.attn_q.bias");
	BAD(-ENOTSUP, "tensor token_embd.weight is of type I16; supported are F32, F16, BF16, Q8_0",
	    c.matrix_type = 25);
	BAD(-ENOTSUP, "rope_freqs.weight[3] is 8, which Llama 3's scaling by 8 does not give", c.freqs = 8);
	BAD(-EINVAL, "rope_freqs.weight[3] is nan", c.freqs = NAN);
	BAD(-EINVAL, "rope_freqs.weight[3] is 0.5", c.freqs = 0.5f);
}

static void test_rope(void **state)
{
	struct gguf_case c = usual;
	struct model *md;

	(void)state;
	c.scaling = "linear";
	assert_int_equal(model_open(&md, write_gguf(&c), err, sizeof(err)), 0);
	assert_true(md->m.rope[0].kind == SR_ROPE_LINEAR && md->m.rope[0].factor == 4 &&
	            md->m.context == 128);
	model_close(md);
	c.scaling = "yarn";
	assert_int_equal(model_open(&md, write_gguf(&c), err, sizeof(err)), 0);
	assert_true(md->m.rope[0].kind == SR_ROPE_YARN &&
	            fabsf(md->m.rope[0].magnitude - 1.1386294f) < 1e-5f);
	model_close(md);
	c.scaling = NULL;
	c.freqs = 1;                       /* factors that change nothing */
	assert_int_equal(model_open(&md, write_gguf(&c), err, sizeof(err)), 0);
	assert_int_equal(md->m.rope[0].kind, SR_ROPE_PLAIN);
	model_close(md);
	/* Llama 3.1's: the third frequency, of wavelength 4442, lies between the two bounds, where
	 * (8192 / 4442 - 1) / 3 = 0.2814 of it stays and the rest is divided by 8. */
	c.theta = 500000;
	c.freqs = 8;
	c.freqs_2 = 1 / (0.2814f + 0.7186f / 8);
	assert_int_equal(model_open(&md, write_gguf(&c), err, sizeof(err)), 0);
	assert_true(md->m.rope[0].kind == SR_ROPE_LLAMA3 && md->m.rope[0].factor == 8);
	model_close(md);
}

/* ---- Hugging Face ---------------------------------------------------------------------------- */

static void put_file(const char *name, const void *p, size_t n)
{
	char path[200];
	FILE *f;

	snprintf(path, sizeof(path), "%s/hf/%s", dir, name);
	assert_non_null(f = fopen(path, "w"));
	assert_int_equal(fwrite(p, 1, n, f), n);
	fclose(f);
}

#define SIZES "\"hidden_size\":32,\"intermediate_size\":64,\"num_hidden_layers\":1," \
	"\"num_attention_heads\":4," \
	"\"num_key_value_heads\":2,\"vocab_size\":96,\"max_position_embeddings\":128,\"rms_norm_eps\":1e-6,"
#define LLAMA "\"architectures\":[\"LlamaForCausalLM\"],\"eos_token_id\":3," SIZES

/* model.safetensors of one layer in bf16; `more`: bits 1 q,k,v bias, 2 q and k norms, 4 lm_head. */
static void put_weights(unsigned more)
{
	static const struct { const char *name; int n, k; unsigned when; } t[] = {
		{ "model.embed_tokens.weight", 96, 32, 0 }, { "model.norm.weight", 0, 32, 0 },
			{ "lm_head.weight", 96, 32, 4 },
#define L "model.layers.0."
		{ L "input_layernorm.weight", 0, 32, 0 }, { L "self_attn.q_proj.weight", 32, 32, 0 },
		{ L "self_attn.k_proj.weight", 16, 32, 0 }, { L "self_attn.v_proj.weight", 16, 32, 0 },
		{ L "self_attn.o_proj.weight", 32, 32, 0 }, { L "post_attention_layernorm.weight", 0, 32, 0 },
		{ L "mlp.gate_proj.weight", 64, 32, 0 }, { L "mlp.up_proj.weight", 64, 32, 0 },
		{ L "mlp.down_proj.weight", 32, 64, 0 }, { L "self_attn.q_proj.bias", 0, 32, 1 },
		{ L "self_attn.k_proj.bias", 0, 16, 1 }, { L "self_attn.v_proj.bias", 0, 16, 1 },
		{ L "self_attn.q_norm.weight", 0, 8, 2 }, { L "self_attn.k_norm.weight", 0, 8, 2 },
#undef L
	};
	static char file[1 << 16];
	int len = 8, at = 0;
	uint64_t head;

	len += sprintf(file + len, "{");
	for (unsigned i = 0; i < sizeof(t) / sizeof(*t); i++) {
		int bytes = 2 * (t[i].n ? t[i].n : 1) * t[i].k;

		if (t[i].when && !(more & t[i].when))
			continue;
		len += sprintf(file + len, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[", at ? "," : "",
		               t[i].name);
		len += t[i].n ? sprintf(file + len, "%d,%d", t[i].n, t[i].k) : sprintf(file + len, "%d",
		                                                                       t[i].k);
		len += sprintf(file + len, "],\"data_offsets\":[%d,%d]}", at, at + bytes);
		at += bytes;
	}
	len += sprintf(file + len, "}");
	head = (uint64_t)len - 8;
	memcpy(file, &head, 8);
	memset(file + len, 0, (size_t)at);
	put_file("model.safetensors", file, (size_t)(len + at));
}

static const char *hf(const char *config, const char *generation)
{
	static char path[200];
	char text[4096];
	int n = snprintf(text, sizeof(text), "{%s\"x\":0}", config);

	snprintf(path, sizeof(path), "%s/hf", dir);
	put_file("config.json", text, (size_t)n);
	if (generation) {
		put_file("generation_config.json", generation, strlen(generation));
	} else {
		char gone[260];

		snprintf(gone, sizeof(gone), "%s/generation_config.json", path);
		unlink(gone);
	}
	return path;
}

static struct model *opened(const char *path, int line)
{
	struct model *md;

	if (model_open(&md, path, err, sizeof(err)) != 0)
		fail_msg("line %d: %s", line, err);
	return md;
}
#define OPEN(config, generation) opened(hf(config, generation), __LINE__)

static void test_hf(void **state)
{
	struct model *md;

	(void)state;
	put_weights(0);
	md = OPEN(LLAMA "\"tie_word_embeddings\":true,\"rope_theta\":500000.0,", NULL);
	assert_true(md->m.E == 8 && md->m.G == 2 && md->m.rope[0].pairs == 0 &&
	            md->m.rope[0].theta == 500000);
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
	md = OPEN(LLAMA, NULL);                    /* untied unless it says tied */
	assert_int_equal(md->m.head.type, SR_BF16);
	model_close(md);
	md = OPEN(LLAMA "\"tie_word_embeddings\":true,", NULL);   /* tied, a copy of the head is there */
	assert_int_equal(md->m.head.type, SR_NONE);
	model_close(md);
	put_weights(4 | 1);
	md = OPEN("\"architectures\":[\"Qwen2ForCausalLM\"],\"sliding_window\":64,"
	          "\"use_sliding_window\":false," SIZES, NULL);
	assert_true(md->m.layer[0].k_bias.k == 16 && md->m.layer[0].window == 0 && md->n_eos == 0);
	model_close(md);
	put_weights(4 | 2);
	md = OPEN("\"architectures\":[\"Qwen3ForCausalLM\"]," SIZES, NULL);
	assert_true(md->m.layer[0].q_norm.k == 8 && md->m.layer[0].q_bias.type == SR_NONE);
	model_close(md);
	put_weights(4);
	md = OPEN("\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":64," SIZES, NULL);
	assert_int_equal(md->m.layer[0].window, 64);
	model_close(md);
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
	r = &md->m.rope[0];
	assert_true(r->kind == SR_ROPE_LLAMA3 && r->factor == 8 && r->low == 1 && r->high == 4 &&
	            r->context == 64);
	assert_int_equal(md->m.context, 128);
	model_close(md);
	md = OPEN(SCALING("\"type\":\"linear\",\"factor\":4"), NULL);
	assert_true(md->m.rope[0].kind == SR_ROPE_LINEAR && md->m.context == 512);
	model_close(md);
	md = OPEN(SCALING("\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":100"), NULL);
	assert_true(md->m.rope[0].kind == SR_ROPE_YARN && md->m.context == 400);
	model_close(md);
	md = OPEN(LLAMA "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":7e5},", NULL);
	assert_true(md->m.rope[0].kind == SR_ROPE_PLAIN && md->m.rope[0].theta == 7e5f);
	model_close(md);
}

#define BAD_HF(rc, says, config, generation) refused(hf(config, generation), rc, says, __LINE__)
static void test_bad_hf(void **state)
{
	(void)state;
	put_weights(4);
	BAD_HF(-EINVAL, "config.json: line 1, column", "{", NULL);
	BAD_HF(-ENOTSUP, "architectures[0] (none) is not supported; supported are LlamaForCausalLM", SIZES,
	       NULL);
	BAD_HF(-ENOTSUP, "GemmaForCausalLM is not supported", "\"architectures\":[\"GemmaForCausalLM\"],",
	       NULL);
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
	BAD_HF(-EINVAL, "eos_token_id is 96", LLAMA "\"eos_token_id\":96,", NULL);
	BAD_HF(-EINVAL, "eos_token_id is -1", LLAMA "\"eos_token_id\":[1,-1],", NULL);
	BAD_HF(-EINVAL, "eos_token_id has more than 8 ids", LLAMA, "{\"eos_token_id\":[1,2,3,4,5,6,7,8,9]}");
	BAD_HF(-EINVAL, "eos_token_id is no integer", LLAMA, "{\"eos_token_id\":\"2\"}");
	BAD_HF(-EINVAL, "generation_config.json: line 1", LLAMA, "{");
	BAD_HF(-EINVAL, "generation_config.json: is no JSON object", LLAMA, "[]");
	BAD_HF(-ENOTSUP, "quant_method mxfp4 is not supported",
	       LLAMA "\"quantization_config\":{\"quant_method\":\"mxfp4\"},", NULL);
	BAD_HF(-ENOTSUP, "hidden_act gelu", LLAMA "\"hidden_act\":\"gelu\",", NULL);
	BAD_HF(-ENOTSUP, "mlp_bias", LLAMA "\"mlp_bias\":true,", NULL);
	BAD_HF(-EINVAL, "rope_scaling is no object", LLAMA "\"rope_scaling\":3,", NULL);
	BAD_HF(-ENOTSUP, "rope_scaling.rope_type longrope", SCALING("\"rope_type\":\"longrope\""), NULL);
	BAD_HF(-EINVAL, "rope_scaling.factor is no number from 1",
	       SCALING("\"type\":\"linear\",\"factor\":0"), NULL);
	BAD_HF(-EINVAL, "high_freq_factor must be "
	       "above", SCALING("\"rope_type\":\"llama3\",\"high_freq_factor\":1"), NULL);
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

/* ---- no weights ------------------------------------------------------------------------------- */

static void test_dummy(void **state)
{
	struct sr_model shape = { .arch = "llama", .name = "made up", .L = 3, .D = 64, .H = 4, .G = 2,
	                          .E = 16, .F = 128,
	                          .V = 100, .context = 256, .eps = 1e-5f };
	struct model *md;

	(void)state;
	shape.head.type = SR_F16;
	assert_int_equal(model_dummy(&md, &shape, err, sizeof(err)), 0);
	assert_true(md->m.head.n == 100 && md->m.layer[2].down.k == 128 &&
	            md->m.layer[2].q_bias.type == SR_NONE);
	assert_true(md->m.embed.data.file == MODEL_RANDOM && md->m.norm.data.file == MODEL_ONES);
	assert_int_equal(MODEL_RANDOM, LOAD_RANDOM);
	assert_int_equal(MODEL_ONES, LOAD_ONES);
	assert_int_equal(md->n_files, 0);
	model_close(md);
	shape.H = 3;
	assert_int_equal(model_dummy(&md, &shape, err, sizeof(err)), -EINVAL);
	put_file("model.safetensors", "abc", 3);   /* not looked at */
	assert_int_equal(model_open_dummy(&md, hf(LLAMA, NULL), err, sizeof(err)), 0);
	assert_true(md->m.layer[0].up.data.file == MODEL_RANDOM &&
	            md->m.layer[0].norm1.data.file == MODEL_ONES);
	assert_string_equal(md->format, "dummy");
	model_close(md);
}

static void test_default(void **state)
{
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	char path[4096];
	struct model *md;

	(void)state;
	snprintf(path, sizeof(path), "%s%s/slipring/models/SmolLM2-135M-Instruct.Q4_1.gguf", cache ? cache
	         : home ? home : "",
	         cache ? "" : "/.cache");
	if (access(path, R_OK) != 0) {
		print_message("SKIP: the default model is not at %s\n", path);
		skip();
	}
	assert_int_equal(model_open(&md, path, err, sizeof(err)), 0);
	assert_true(md->m.L == 30 && md->m.D == 576 && md->m.H == 9 && md->m.G == 3 && md->m.F == 1536 &&
	            md->m.V == 49152);
	assert_true(md->m.rope[0].theta == 100000 && md->m.context == 8192 && md->eos[0] == 2);
	assert_string_equal(md->stored, "Q4_1 (210), F32 (61), Q8_0 (1)");
	model_close(md);
}

static int setup(void **state)
{
	char path[200];

	(void)state;
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/hf", dir);
	return mkdir(path, 0700);
}

static int teardown(void **state)
{
	char command[200];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_gguf), cmocka_unit_test(test_bad_gguf), cmocka_unit_test(test_rope),
		cmocka_unit_test(test_hf), cmocka_unit_test(test_hf_rope), cmocka_unit_test(test_bad_hf),
		cmocka_unit_test(test_dummy), cmocka_unit_test(test_default),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
