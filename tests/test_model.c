/* LINK: core/model.c core/model_gguf.c core/model_hf.c core/model_quant.c core/model_kv.c core/gguf.c core/safetensors.c kernels/rope.c -ljansson -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup,--wrap=open,--wrap=fstat,--wrap=mmap,--wrap=pread */
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

#include "core/gguf.h"
#include "core/load.h"
#include "core/model.h"
#include "tests/gguf_write.h"
#include "tests/nth_call.h"

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
	bool untied;
	uint32_t norm_type, matrix_type, eos, rope_dims;
	const char *scaling;
	float freqs, freqs_2;          /* rope_freqs.weight: 1, 1, freqs_2 or 1, freqs */
	uint32_t freqs_type;
	uint32_t down_types[2];        /* of ffn_down, if not 0 */
	const char *key;               /* a setting that is another, or one more: */
	uint32_t key_type, items;      /* (items u8, if it is an array) */
	int64_t i;
	double d;
	const char *s;                 /* NULL: it is not there */
};
static const struct gguf_case usual = { .arch = "llama", .layers = 2, .heads = 4, .heads_kv = 2,
                                        .context = 128,
	.theta = 10000, .eps = 1e-5f, .matrix_type = 2, .eos = 7 };

static struct bytes w, tail, settings;
static uint32_t n_tensors, n_settings;
static bool met;                       /* the setting that is another */
static uint64_t data_at;

static void add(const struct gguf_case *c, const char *name, uint64_t k, uint64_t n, uint32_t type)
{
	uint64_t items = k * (n ? n : 1), bytes = type == 2 ? items / 32 * 18 : items * 4;   /* or less */

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
		add(c, name, t[i].k, t[i].n, !t[i].n ? c->norm_type : i == 8 && c->down_types[l]
		                             ? c->down_types[l] : c->matrix_type);
	}
}

/* The one of the case that is another. */
static void put_other(const struct gguf_case *c)
{
	float f = (float)c->d;

	n_settings++;
	put_key(&settings, c->key, c->key_type);
	switch (c->key_type) {
	case GGUF_STRING:
		put_str(&settings, c->s);
		break;
	case GGUF_ARRAY:
		put_u32(&settings, GGUF_U8);
		put_u64(&settings, c->items);
		put_zeros(&settings, c->items);
		break;
	case GGUF_F32:
		put(&settings, &f, 4);
		break;
	case GGUF_F64:
		put(&settings, &c->d, 8);
		break;
	default:
		put(&settings, &c->i, c->key_type == GGUF_U64 || c->key_type == GGUF_I64 ? 8 : 4);
	}
}

/* Is this key the one of the case?  Then it has been put, or left out. */
static bool other(const struct gguf_case *c, const char *key)
{
	if (!c->key || strcmp(c->key, key) != 0) {
		n_settings++;
		return false;
	}
	met = true;
	if (c->s || c->key_type != GGUF_STRING)
		put_other(c);
	return true;
}

static void put_settings(const struct gguf_case *c)
{
	char key[64];

#define STR(name, v) do { if (!other(c, name)) put_kv_str(&settings, name, v); } while (0)
#define U32(name, v) do { if (!other(c, name)) put_kv_u32(&settings, name, v); } while (0)
#define F32(name, v) do { if (!other(c, name)) put_kv_f32(&settings, name, v); } while (0)
#define K(s) (snprintf(key, sizeof(key), "%s.%s", c->arch, s), key)
	settings.n = n_settings = 0;
	met = false;
	STR("general.architecture", c->arch);
	STR("general.name", "tiny\x01model");
	U32(K("block_count"), c->layers);
	U32(K("context_length"), c->context);
	U32(K("embedding_length"), 32);
	U32(K("feed_forward_length"), 64);
	U32(K("attention.head_count"), c->heads);
	U32(K("attention.head_count_kv"), c->heads_kv);
	F32(K("rope.freq_base"), c->theta);
	F32(K("attention.layer_norm_rms_epsilon"), c->eps);
	U32(K("rope.dimension_count"), c->rope_dims ? c->rope_dims : 8);
	U32("tokenizer.ggml.eos_token_id", c->eos);
	U32("tokenizer.ggml.eot_token_id", 9);
	STR(K("rope.scaling.type"), c->scaling ? c->scaling : "none");
	F32(K("rope.scaling.factor"), c->scaling ? 4 : 1);
	if (c->key && !met)
		put_other(c);
#undef K
#undef F32
#undef U32
#undef STR
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
		add(c, "rope_freqs.weight", 4, 0, c->freqs_type);
	}
	put_settings(c);
	put_head(&w, 3, n_tensors, n_settings);
	put(&w, settings.b, settings.n);
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
	c.norm_type = 1;
	c.matrix_type = 1;
	assert_int_equal(model_open(&md, write_gguf(&c), err, sizeof(err)), 0);
	assert_true(md->m.head.type == SR_F16 && md->m.head.n == 96 && md->m.layer[0].norm1.type == SR_F16);
	model_close(md);
	c = usual;
	c.down_types[0] = 8;
	c.down_types[1] = 6;
	assert_int_equal(model_open(&md, write_gguf(&c), err, sizeof(err)), 0);
	assert_string_equal(md->stored, "Q4_0 (13), F32 (5), Q8_0 (1), Q5_0 (1)");
	model_close(md);
}

/* Settings that may be there, or may be written in another type. */
static void test_gguf_settings(void **state)
{
	static const struct { const char *key; uint32_t type; int64_t i; double d; const char *s; } good[] = {
		{ "general.name", GGUF_STRING, 0, 0, NULL },       /* the file's name is one, too */
		{ "general.name", GGUF_U32, 7, 0, NULL },
		{ "llama.attention.key_length", GGUF_U32, 8, 0, NULL },
		{ "llama.attention.value_length", GGUF_U32, 8, 0, NULL },
		{ "llama.block_count", GGUF_I32, 2, 0, NULL },
		{ "llama.block_count", GGUF_U64, 2, 0, NULL },
		{ "llama.rope.freq_base", GGUF_F64, 0, 10000, NULL },
		{ "llama.rope.freq_base", GGUF_STRING, 0, 0, NULL },
		{ "llama.rope.scaling.type", GGUF_STRING, 0, 0, NULL },
		{ "llama.attention.head_count_kv", GGUF_U32, 2, 0, NULL },
		{ "llama.expert_count", GGUF_U32, 0, 0, NULL },
		{ "tokenizer.ggml.eom_token_id", GGUF_U32, 9, 0, NULL },
		{ "tokenizer.ggml.tokens", GGUF_ARRAY, 0, 0, NULL },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
		struct gguf_case c = usual;
		struct model *md;

		c.key = good[i].key;
		c.key_type = good[i].type;
		c.i = good[i].i;
		c.d = good[i].d;
		c.items = 96;
		if (model_open(&md, write_gguf(&c), err, sizeof(err)) != 0)
			fail_msg("%s: %s", good[i].key, err);
		assert_string_equal(md->m.name, strcmp(c.key, "general.name") == 0 ? "tiny" : "tiny?model");
		assert_true(md->m.L == 2 && md->m.G == 2 && md->m.E == 8 && md->m.rope[0].theta == 10000 &&
		            md->n_eos == 2);
		model_close(md);
	}
}

static void refused(const char *path, int rc, const char *says, int line)
{
	struct model *md;
	int got = model_open(&md, path, err, sizeof(err));

	if (got != rc || !strstr(err, says) || !strstr(err, path))
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
	BAD(-EINVAL, "rope_freqs.weight[3] is 2000; 1 to 1024", c.freqs = 2000);
	BAD(-EINVAL, "rope_freqs.weight at offset", c.freqs = 8; c.wrong = "rope_freqs.weight");
	BAD(-EINVAL, "is not F32 [4]", c.freqs = 8; c.freqs_type = 1);
	BAD(-EINVAL, "is not F32 [3]", c.freqs = 8; c.rope_dims = 6);
	BAD(-EINVAL, "blk.0.attn_q.bias is missing", c.arch = "qwen2");
	BAD(-EINVAL, "blk.0.attn_q_norm.weight is missing", c.arch = "qwen3");
	BAD(-EINVAL, "blk.1.attn_output.bias is missing", c.extra = "blk.0.attn_output.bias");
	BAD(-ENOTSUP, "blk.0.attn_norm.weight is of type Q8_0; a vector must be F32", c.norm_type = 8);
	BAD(-ENOTSUP, "blk.1.ffn_down.weight is of type IQ4_NL; supported", c.down_types[1] = 20);
	BAD(-ENOTSUP, "blk.1.ffn_down.weight is of type 77; supported", c.down_types[1] = 77);
	BAD(-ENOTSUP, "tensor blk.0.\?[2J is no part", c.extra = "blk.0.\033[2J"); /* not to a terminal */
}

#define BAD_KEY(rc, says, k, type, ...) BAD(rc, says, c.key = k; c.key_type = type; __VA_ARGS__)
static void test_bad_settings(void **state)
{
	(void)state;
	BAD_KEY(-EINVAL, "general.architecture is missing or no string", "general.architecture", GGUF_STRING, );
	BAD_KEY(-EINVAL, "general.architecture is missing or no string", "general.architecture", GGUF_U32, );
	BAD_KEY(-EINVAL, "llama.block_count is missing", "llama.block_count", GGUF_STRING, );
	BAD_KEY(-EINVAL, "llama.block_count is no integer from 0 up", "llama.block_count", GGUF_STRING, c.s = "2");
	BAD_KEY(-EINVAL, "llama.block_count is no integer from 0 up", "llama.block_count", GGUF_F32, c.d = 2);
	BAD_KEY(-EINVAL, "llama.block_count is no integer from 0 up", "llama.block_count", GGUF_I32, c.i = -2);
	BAD_KEY(-EINVAL, "llama.block_count is no integer from 0 up", "llama.block_count", GGUF_I64, c.i = -2);
	BAD_KEY(-EINVAL, "llama.block_count is 9223372036854775807; 1 to 4096", "llama.block_count", GGUF_U64,
	        c.i = -1);
	BAD_KEY(-EINVAL, "rms_epsilon is missing", "llama.attention.layer_norm_rms_epsilon", GGUF_STRING, );
	BAD_KEY(-EINVAL, "key_length is 0", "llama.attention.key_length", GGUF_U32, );
	BAD_KEY(-EINVAL, "heads are 2048 wide; even widths up to 1024", "llama.attention.key_length", GGUF_U32,
	        c.i = 2048);
	BAD_KEY(-EINVAL, "settings of this model make it [64][32]", "llama.attention.key_length", GGUF_U32, c.i = 16);
	BAD_KEY(-ENOTSUP, "heads of values are 4 wide and heads of keys 8", "llama.attention.value_length", GGUF_U32,
	        c.i = 4);
	BAD_KEY(-EINVAL, "value_length is no integer", "llama.attention.value_length", GGUF_F32, c.d = 8);
	BAD_KEY(-EINVAL, "rope.freq_base is no finite float", "llama.rope.freq_base", GGUF_U32, c.i = 10000);
	BAD_KEY(-EINVAL, "rope.freq_base is 1e+13; 2 to 1e+12", "llama.rope.freq_base", GGUF_F64, c.d = 1e13);
	BAD_KEY(-EINVAL, "rope.scaling.factor is 0.5; 1 to 4096", "llama.rope.scaling.factor", GGUF_F32, c.d = 0.5);
	BAD_KEY(-EINVAL, "original_context_length is 0", "llama.rope.scaling.original_context_length", GGUF_U32, );
	BAD_KEY(-EINVAL, "llama.rope.scaling.type is no string", "llama.rope.scaling.type", GGUF_U32, );
	BAD_KEY(-ENOTSUP, "scaling.type is linean; supported", "llama.rope.scaling.type", GGUF_STRING, c.s = "linean");
	BAD_KEY(-ENOTSUP, "scaling.type is nonE; supported", "llama.rope.scaling.type", GGUF_STRING, c.s = "nonE");
	BAD_KEY(-ENOTSUP, "aaaaaaaaaaaaaaaa; supported", "llama.rope.scaling.type", GGUF_STRING,
	        c.s = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
	BAD_KEY(-ENOTSUP, "llama.expert_count is 8: mixtures of experts are not supported", "llama.expert_count",
	        GGUF_U32, c.i = 8);
	BAD_KEY(-EINVAL, "llama.expert_count is no integer", "llama.expert_count", GGUF_STRING, c.s = "8");
	BAD_KEY(-EINVAL, "eos_token_id is no integer from 0 up", "tokenizer.ggml.eos_token_id", GGUF_STRING,
	        c.s = "</s>");
	BAD_KEY(-EINVAL, "eot_token_id is -1; token ids are 0 to 95", "tokenizer.ggml.eot_token_id", GGUF_U64,
	        c.i = 1ll << 40);
	BAD_KEY(-EINVAL, "tokens has 97 tokens, but token_embd.weight only 96 rows", "tokenizer.ggml.tokens",
	        GGUF_ARRAY, c.items = 97);
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

/* A tensor of another type or shape, or (a name that is none) one more. */
static const struct odd { const char *name, *dtype, *shape; int bytes; } *odd;

/* model.safetensors of one layer in bf16; `more`: bits 1 q,k,v bias, 2 q and k norms, 4 lm_head,
 * 8 a bias of o. */
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
		{ L "self_attn.o_proj.bias", 0, 32, 8 },
#undef L
	};
	static char file[1 << 16];
	int len = 8, at = 0;
	uint64_t head;

	len += sprintf(file + len, "{");
	for (unsigned i = 0; i < sizeof(t) / sizeof(*t); i++) {
		int bytes = 2 * (t[i].n ? t[i].n : 1) * t[i].k;

		if ((t[i].when && !(more & t[i].when)) || (odd && strcmp(odd->name, t[i].name) == 0))
			continue;
		len += sprintf(file + len, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[", at ? "," : "",
		               t[i].name);
		len += t[i].n ? sprintf(file + len, "%d,%d", t[i].n, t[i].k) : sprintf(file + len, "%d",
		                                                                       t[i].k);
		len += sprintf(file + len, "],\"data_offsets\":[%d,%d]}", at, at + bytes);
		at += bytes;
	}
	if (odd) {
		len += sprintf(file + len, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%d,%d]}",
		               odd->name, odd->dtype, odd->shape, at, at + odd->bytes);
		at += odd->bytes;
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
	md = OPEN("\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":null," SIZES, NULL);
	assert_int_equal(md->m.layer[0].window, 0);
	model_close(md);
	md = OPEN(LLAMA "\"sliding_window\":64,", NULL);           /* Llama has none, whatever is said */
	assert_int_equal(md->m.layer[0].window, 0);
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
		assert_int_equal(md->m.layer[0].window, from ? 0 : 64);
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
	md = OPEN(SCALING("\"type\":\"yarn\",\"factor\":4,\"attention_factor\":1.5,\"beta_slow\":2,\"beta_fast\":16"),
	          NULL);
	r = &md->m.rope[0];
	assert_true(r->magnitude == 1.5f && r->low == 2 && r->high == 16 && md->m.context == 512);
	model_close(md);
	md = OPEN(SCALING("\"type\":\"linear\",\"factor\":null") "\"partial_rotary_factor\":0.5,", NULL);
	r = &md->m.rope[0];
	assert_true(r->kind == SR_ROPE_LINEAR && r->factor == 1 && r->dims == 4);
	model_close(md);
	md = OPEN(LLAMA "\"rope_scaling\":null,\"rope_theta\":null,", NULL);
	assert_true(md->m.rope[0].kind == SR_ROPE_PLAIN && md->m.rope[0].theta == 10000);
	model_close(md);
	md = OPEN(SCALING("\"type\":null"), NULL);
	assert_int_equal(md->m.rope[0].kind, SR_ROPE_PLAIN);
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
	BAD_HF(-EINVAL, "/config.json: eos_token_id is 96", LLAMA "\"eos_token_id\":96,", NULL);
	BAD_HF(-EINVAL, "/config.json: eos_token_id is 96", LLAMA "\"eos_token_id\":96,", "{}");
	BAD_HF(-EINVAL, "/generation_config.json: eos_token_id is 97", LLAMA, "{\"eos_token_id\":97}");
	BAD_HF(-EINVAL, "eos_token_id is no integer", LLAMA, "{\"eos_token_id\":[2,\"3\"]}");
	BAD_HF(-EINVAL, "eos_token_id is -1", LLAMA "\"eos_token_id\":[1,-1],", NULL);
	BAD_HF(-EINVAL, "eos_token_id has more than 8 ids", LLAMA, "{\"eos_token_id\":[1,2,3,4,5,6,7,8,9]}");
	BAD_HF(-EINVAL, "eos_token_id is no integer", LLAMA, "{\"eos_token_id\":\"2\"}");
	BAD_HF(-EINVAL, "generation_config.json: line 1", LLAMA, "{");
	BAD_HF(-EINVAL, "generation_config.json: is no JSON object", LLAMA, "[]");
	BAD_HF(-ENOTSUP, "quant_method mxfp4 is not supported",
	       LLAMA "\"quantization_config\":{\"quant_method\":\"mxfp4\"},", NULL);
	BAD_HF(-ENOTSUP, "hidden_act gelu", LLAMA "\"hidden_act\":\"gelu\",", NULL);
	BAD_HF(-ENOTSUP, "mlp_bias", LLAMA "\"mlp_bias\":true,", NULL);
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
	BAD_HF(-EINVAL, "partial_rotary_factor is 0; 0.01 to 1", LLAMA "\"partial_rotary_factor\":0,", NULL);
	BAD_HF(-EINVAL, "partial_rotary_factor leaves no dimension of 8", LLAMA "\"partial_rotary_factor\":0.1,",
	       NULL);
	
	BAD_HF(-EINVAL, "rope_scaling is no object", LLAMA "\"rope_scaling\":3,", NULL);
	BAD_HF(-ENOTSUP, "rope_scaling.rope_type longrope", SCALING("\"rope_type\":\"longrope\""), NULL);
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

/* Tensors of types and shapes that are not the table's, and ones that stand for nothing. */
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

/* ---- both --------------------------------------------------------------------------------------- */

/* The name of a model that says none is the last part of its path. */
static void test_names(void **state)
{
	static const struct { const char *path, *name; } paths[] = {
		{ "tiny.gguf", "tiny" }, { "./tiny.gguf", "tiny" }, { "sub/.gguf", ".gguf" }, { "sub/x", "x" },
		{ "sub/../sub/x", "x" }, { "directory.gguf//", "directory" }, { "directory.gguf", "directory" },
	};
	struct gguf_case c = usual;
	char here[4096];

	(void)state;
	c.key = "general.name";                    /* says nothing */
	c.key_type = GGUF_STRING;
	assert_non_null(getcwd(here, sizeof(here)));
	write_gguf(&c);
	assert_int_equal(chdir(dir), 0);
	assert_int_equal(mkdir("sub", 0700), 0);
	assert_true(link("tiny.gguf", "sub/x") == 0 && link("tiny.gguf", "sub/.gguf") == 0);
	assert_int_equal(symlink("hf", "directory.gguf"), 0);
	put_weights(0);
	hf(LLAMA "\"tie_word_embeddings\":true,", NULL);
	for (size_t i = 0; i < sizeof(paths) / sizeof(*paths); i++) {
		struct model *md;

		if (model_open(&md, paths[i].path, err, sizeof(err)) != 0)
			fail_msg("%s: %s", paths[i].path, err);
		assert_string_equal(md->m.name, paths[i].name);
		model_close(md);
	}
	assert_int_equal(chdir(here), 0);
}

/* Memory, descriptors and the disk may fail at any call: a sentence, and nothing is left behind. */
static const char *to_open;

static int open_it(char *why, size_t n)
{
	struct model *md;
	int rc = model_open(&md, to_open, why, n);

	assert_true(rc == 0 || !md);
	if (rc == 0)
		model_close(md);
	return rc;
}

static void each_call(const char *path)
{
	to_open = path;
	for (enum nth how = NTH_FAILS; how <= NTH_ENDS; how++)
		nth_each(how, open_it, dir);
}

static void test_calls_that_fail(void **state)
{
	struct gguf_case c = usual;

	(void)state;
	each_call(write_gguf(&c));
	put_weights(4);
	each_call(hf(LLAMA, "{\"eos_token_id\":[5,6]}"));
	c.freqs = 1;                               /* read besides */
	to_open = write_gguf(&c);
	nth_each(NTH_FAILS, open_it, dir);
	nth_each(NTH_ENDS, open_it, dir);
	refused("/nowhere/x.gguf", -ENOENT, "/nowhere/x.gguf: No such file", __LINE__);
}

/* ---- no weights ------------------------------------------------------------------------------- */

static void test_dummy(void **state)
{
	struct gguf_case c = usual;
	struct model *md;

	(void)state;
	put_file("model.safetensors", "abc", 3);   /* not looked at */
	assert_int_equal(model_open_dummy(&md, hf(LLAMA, NULL), err, sizeof(err)), 0);
	assert_true(md->m.head.n == 96 && md->m.layer[0].down.k == 64 && md->m.layer[0].q_bias.type == SR_NONE);
	assert_true(md->m.layer[0].up.data.file == MODEL_RANDOM &&
	            md->m.layer[0].norm1.data.file == MODEL_ONES);
	assert_int_equal(MODEL_RANDOM, LOAD_RANDOM);
	assert_int_equal(MODEL_ONES, LOAD_ONES);
	assert_int_equal(md->n_files, 0);
	assert_string_equal(md->format, "dummy");
	assert_string_equal(md->stored, "BF16 (12)");
	model_close(md);
	c.matrix_type = 25;                        /* nor at these, but for the vocabulary's size */
	assert_int_equal(model_open_dummy(&md, write_gguf(&c), err, sizeof(err)), 0);
	assert_true(md->m.V == 96 && md->m.embed.data.file == MODEL_RANDOM);
	assert_string_equal(md->format, "dummy");
	model_close(md);
}

static void test_type_names(void **state)
{
	(void)state;
	assert_string_equal(model_type_name(SR_Q4_1), "Q4_1");
	assert_string_equal(model_type_name(SR_CT4), "packed int4");
	assert_string_equal(model_type_name(SR_NONE), "none");
	for (int32_t type = SR_F32; type <= SR_CT4; type++)
		assert_string_not_equal(model_type_name(type), "none");
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
		cmocka_unit_test(test_gguf), cmocka_unit_test(test_gguf_settings), cmocka_unit_test(test_bad_gguf),
		cmocka_unit_test(test_bad_settings), cmocka_unit_test(test_rope), cmocka_unit_test(test_hf),
		cmocka_unit_test(test_hf_rope), cmocka_unit_test(test_bad_hf), cmocka_unit_test(test_bad_hf_tensors),
		cmocka_unit_test(test_names), cmocka_unit_test(test_dummy), cmocka_unit_test(test_type_names),
		cmocka_unit_test(test_calls_that_fail), cmocka_unit_test(test_default),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
