/* model_files.h - writes models for the tests of model readers, correct ones and wrong ones: a GGUF file,
 * and a Hugging Face directory with one file of weights, in a directory that setup() makes.
 */
#ifndef TESTS_MODEL_FILES_H
#define TESTS_MODEL_FILES_H

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

#include "core/models/gguf.h"
#include "core/models/load.h"
#include "core/models/model.h"
#include "tests/rig/gguf_write.h"

static char dir[] = "/tmp/slipring-test-model-XXXXXX";
static char err[5000];

/* ---- GGUF: 2 layers of 32, 4 heads and 2 for K,V of 8, feed-forward 64, vocabulary 96 ----------- */

struct gguf_case {
	const char *arch;
	uint32_t layers, heads, heads_kv, context;
	float theta, eps;
	const char *skip;              /* leave this tensor out */
	const char *extra;             /* add this tensor, f32 [extra_n], 32 if that is 0 */
	uint64_t extra_n;
	const char *wrong;             /* give this tensor another shape */
	bool untied;
	uint32_t norm_type, matrix_type, eos, rope_dims;
	const char *scaling;
	float freqs, freqs_2;          /* rope_freqs.weight: 1, 1, freqs_2 or 1, freqs */
	uint32_t freqs_type;
	uint32_t down_types[2];        /* of ffn_down, if not 0 */
	const char *key;               /* a setting to change or to add: */
	uint32_t key_type, items;      /* (items u8, if it is an array) */
	int64_t i;
	double d;
	const char *s;                 /* NULL: leave it out */
	struct { const char *key; float v; } floats[4]; /* settings to add */
};
static const struct gguf_case usual = { .arch = "llama", .layers = 2, .heads = 4, .heads_kv = 2,
                                        .context = 128,
	.theta = 10000, .eps = 1e-5f, .matrix_type = 2, .eos = 7 };

static struct bytes w, tail, settings;
static uint32_t n_tensors, n_settings;
static bool met;                       /* whether the changed setting has been written */
static uint64_t data_at;

static inline void add(const struct gguf_case *c, const char *name, uint64_t k, uint64_t n, uint32_t type)
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

static inline void add_layer(const struct gguf_case *c, uint32_t l)
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

/* Write the setting that this case changes. */
static inline void put_other(const struct gguf_case *c)
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
	case GGUF_BOOL:
		put(&settings, &c->i, 1);
		break;
	case GGUF_F64:
		put(&settings, &c->d, 8);
		break;
	default:
		put(&settings, &c->i, c->key_type == GGUF_U64 || c->key_type == GGUF_I64 ? 8 : 4);
	}
}

/* Does this case change this key?  If so, it has been written, or left out. */
static inline bool other(const struct gguf_case *c, const char *key)
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

static inline void put_settings(const struct gguf_case *c)
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
	for (int i = 0; i < 4 && c->floats[i].key; i++, n_settings++)
		put_kv_f32(&settings, c->floats[i].key, c->floats[i].v);
#undef K
#undef F32
#undef U32
#undef STR
}

static inline const char *write_gguf(const struct gguf_case *c)
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
		add(c, c->extra, c->extra_n ? c->extra_n : 32, 0, 0);
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


/* ---- Hugging Face ---------------------------------------------------------------------------- */

static inline void put_file(const char *name, const void *p, size_t n)
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

/* Give a tensor another type or shape; an unknown name adds a tensor. */
static const struct odd { const char *name, *dtype, *shape; int bytes; } *odd;

/* Write model.safetensors of one layer in bf16.  Bits of `more`: 1 biases of q, k, v; 2 norms of q and k;
 * 4 lm_head; 8 a bias of o. */
static inline void put_weights(unsigned more)
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

static inline const char *hf(const char *config, const char *generation)
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

static inline struct model *opened(const char *path, int line)
{
	struct model *md;

	if (model_open(&md, path, err, sizeof(err)) != 0)
		fail_msg("line %d: %s", line, err);
	return md;
}
#define OPEN(config, generation) opened(hf(config, generation), __LINE__)

/* ---- both ------------------------------------------------------------------------------------ */

static inline void refused(const char *path, int rc, const char *says, int line)
{
	struct model *md;
	int got = model_open(&md, path, err, sizeof(err));

	if (got != rc || !strstr(err, says) || !strstr(err, path))
		fail_msg("line %d: %d \"%s\" is not %d \"%s\"", line, got, got ? err : "", rc, says);
}
static inline int setup(void **state)
{
	char path[200];

	(void)state;
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/hf", dir);
	return mkdir(path, 0700);
}

static inline int teardown(void **state)
{
	char command[200];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	return system(command);
}

#endif
