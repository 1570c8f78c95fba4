/* LINK: @models kernels/rope.c -ljansson -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup,--wrap=open,--wrap=fstat,--wrap=mmap,--wrap=pread */
/* test_model.c - models in GGUF, and what GGUF and safetensors share: what is read, what is
 * refused, and in which words. */
#include "tests/rig/model_files.h"
#include "tests/rig/nth_call.h"

static void test_gguf(void **state)
{
	struct gguf_case c = usual;
	struct model *md;

	(void)state;
	assert_int_equal(model_open(&md, write_gguf(&c), err, sizeof(err)), 0);
	assert_string_equal(md->m.name, "tiny?model");
	assert_true(md->m.n_layers == 2 && md->m.d_model == 32 && md->m.n_kinds == 1 && md->m.kind[0].n_heads == 4 &&
	            md->m.kind[0].n_kv_heads == 2 && md->m.kind[0].head_dim == 8 &&
	            md->m.d_ff == 64);
	assert_true(md->m.n_vocab == 96 && md->m.context == 128 && md->m.eps == 1e-5f);
	assert_true(md->m.kind[0].rope.pairs == 1 && md->m.kind[0].rope.dims == 8 &&
	            md->m.kind[0].rope.kind == SR_ROPE_PLAIN);
	assert_true(md->n_eos == 2 && md->eos[0] == 7 && md->eos[1] == 9);
	assert_int_equal(md->m.head.type, SR_NONE);
	assert_true(md->m.layer[1].down.type == SR_Q4_0 && md->m.layer[1].down.n == 32 &&
	            md->m.layer[1].down.k == 64);
	assert_string_equal(md->m.layer[1].down.name, "blk.1.ffn_down.weight");
	assert_int_equal(md->m.layer[1].down.data.bytes, 32 * 64 / 32 * 18);
	assert_string_equal(md->stored, "Q4_0 (15), F32 (5)");
	assert_string_equal(md->format, "GGUF");
	assert_true(fabsf(md->m.kind[0].scale - 0.35355339f) < 1e-6f);
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

/* Optional settings, and settings of another type. */
static void test_gguf_settings(void **state)
{
	static const struct { const char *key; uint32_t type; int64_t i; double d; const char *s; } good[] = {
		{ "general.name", GGUF_STRING, 0, 0, NULL },       /* the file's name serves, too */
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
		assert_true(md->m.n_layers == 2 && md->m.kind[0].n_kv_heads == 2 && md->m.kind[0].head_dim == 8 &&
		            md->m.kind[0].rope.theta == 10000 &&
		            md->n_eos == 2);
		model_close(md);
	}
}

/* Blocks of NVFP4, with and without a scale for the matrix. */
static void test_nvfp4(void **state)
{
	(void)state;
	for (int scaled = 0; scaled < 2; scaled++) {
		struct gguf_case c = usual;
		const struct sr_tensor *t;
		struct model *md;

		c.down_types[1] = 40;
		c.extra = scaled ? "blk.1.ffn_down.scale" : NULL;
		c.extra_n = 1;
		if (model_open(&md, write_gguf(&c), err, sizeof(err)) != 0)
			fail_msg("%s", err);
		t = &md->m.layer[1].down;
		assert_true(t->type == SR_NVFP4 && t->data.bytes == (uint64_t)t->n * (uint64_t)t->k / 64 * 36 && !t->scale.bytes);
		assert_int_equal(t->zero.bytes, scaled ? 4 : 0);
		model_close(md);
	}
}

#define BAD(rc, says, ...) do { struct gguf_case c = usual; __VA_ARGS__; \
	refused(write_gguf(&c), rc, says, __LINE__); } while (0)

static void test_bad_gguf(void **state)
{
	(void)state;
	BAD(-ENOTSUP, "(docs/model.md), and the nearest name is llama", c.arch = "mamba");
	BAD(-ENOTSUP, "architecture qwen99 is not supported: its ssm.state_size means layers with a state instead of",
	    c.arch = "qwen99"; c.key = "qwen99.ssm.state_size"; c.key_type = GGUF_U32; c.i = 16);
	BAD(-ENOTSUP, "the nearest name is qwen", c.arch = "qwen99");
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
	BAD(-EINVAL, "rope_freqs.weight[3] is nan", c.freqs = NAN);
	BAD(-EINVAL, "rope_freqs.weight[3] is 0.0005; 0.001 to 1e30", c.freqs = 0.0005f);
	BAD(-EINVAL, "rope_freqs.weight at offset", c.freqs = 8; c.wrong = "rope_freqs.weight");
	BAD(-EINVAL, "is not F32 [4]", c.freqs = 8; c.freqs_type = 1);
	BAD(-EINVAL, "is not F32 [3]", c.freqs = 8; c.rope_dims = 6);
	BAD(-EINVAL, "blk.0.attn_q.bias is missing", c.arch = "qwen2");
	BAD(-EINVAL, "blk.0.attn_q_norm.weight is missing", c.arch = "qwen3");
	BAD(-EINVAL, "blk.1.attn_output.bias is missing", c.extra = "blk.0.attn_output.bias");
	BAD(-ENOTSUP, "blk.0.attn_norm.weight is of type Q8_0; a vector must be F32", c.norm_type = 8);
	BAD(-ENOTSUP, "blk.1.ffn_down.weight is of type I8; supported", c.down_types[1] = 24);
	BAD(-EINVAL, "the scale of tensor blk.1.ffn_down.weight at offset", c.down_types[1] = 40;
	    c.extra = "blk.1.ffn_down.scale"; c.extra_n = 2);
	BAD(-ENOTSUP, "blk.1.ffn_down.scale is no part of", c.extra = "blk.1.ffn_down.scale"; c.extra_n = 1);
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
	BAD_KEY(-ENOTSUP, "heads of values are 4 wide and heads of keys (attention.key_length) 8", "llama.attention.value_length", GGUF_U32,
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
	BAD_KEY(-EINVAL, "0 of 8 experts are to compute a token; 1 to 8 could", "llama.expert_count",
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
	float freq[4];

	(void)state;
	c.scaling = "linear";
	assert_int_equal(model_open(&md, write_gguf(&c), err, sizeof(err)), 0);
	assert_true(md->m.kind[0].rope.kind == SR_ROPE_LINEAR && md->m.kind[0].rope.factor == 4 &&
	            md->m.context == 128);
	model_close(md);
	c.scaling = "yarn";
	assert_int_equal(model_open(&md, write_gguf(&c), err, sizeof(err)), 0);
	assert_true(md->m.kind[0].rope.kind == SR_ROPE_YARN &&
	            fabsf(md->m.kind[0].rope.magnitude - 1.1386294f) < 1e-5f);
	model_close(md);
	c.scaling = NULL;
	c.freqs = 1;                       /* factors of 1: no change */
	assert_int_equal(model_open(&md, write_gguf(&c), err, sizeof(err)), 0);
	assert_int_equal(md->m.kind[0].rope.kind, SR_ROPE_PLAIN);
	model_close(md);
	c.freqs = 8;
	c.freqs_2 = 2.5f;
	assert_int_equal(model_open(&md, write_gguf(&c), err, sizeof(err)), 0);
	assert_int_equal(md->m.kind[0].rope.kind, SR_ROPE_FACTORS);
	assert_true(md->m.kind[0].rope.divisor[1] == 1 && md->m.kind[0].rope.divisor[2] == 2.5f &&
	            md->m.kind[0].rope.divisor[3] == 8);
	sr_rope_freq(&md->m.kind[0].rope, freq);
	assert_true(fabsf(freq[3] - powf(md->m.kind[0].rope.theta, -0.75f) / 8) < 1e-9f);
	model_close(md);
}

/* ---- both --------------------------------------------------------------------------------------- */

/* A model without a name is named by the last part of its path. */
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
	c.freqs = 1;                               /* read, too */
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
	c.matrix_type = 25;                        /* nor at these, except the vocabulary's size */
	assert_int_equal(model_open_dummy(&md, write_gguf(&c), err, sizeof(err)), 0);
	assert_true(md->m.n_vocab == 96 && md->m.embed.data.file == MODEL_RANDOM);
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
	assert_true(md->m.n_layers == 30 && md->m.d_model == 576 && md->m.kind[0].n_heads == 9 &&
	            md->m.kind[0].n_kv_heads == 3 && md->m.d_ff == 1536 &&
	            md->m.n_vocab == 49152);
	assert_true(md->m.kind[0].rope.theta == 100000 && md->m.context == 8192 && md->eos[0] == 2);
	assert_string_equal(md->stored, "Q4_1 (210), F32 (61), Q8_0 (1)");
	model_close(md);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_gguf), cmocka_unit_test(test_gguf_settings), cmocka_unit_test(test_nvfp4), cmocka_unit_test(test_bad_gguf),
		cmocka_unit_test(test_bad_settings), cmocka_unit_test(test_rope), cmocka_unit_test(test_names),
		cmocka_unit_test(test_dummy), cmocka_unit_test(test_type_names),
		cmocka_unit_test(test_calls_that_fail), cmocka_unit_test(test_default),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
