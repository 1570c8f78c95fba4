/* LINK: @models kernels/rope.c -ljansson -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup,--wrap=open,--wrap=fstat,--wrap=mmap,--wrap=pread */
/* test_model_kv.c - scales of an FP8 KV cache in a directory: their names, their values, and which
 * are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/models/model.h"
#include "tests/rig/nth_call.h"

#define CONFIG "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":32,\"intermediate_size\":32," \
	"\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":2,\"vocab_size\":32," \
	"\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,\"tie_word_embeddings\":true%s}"
#define GROUPS ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\"," \
	"\"config_groups\":{\"g\":{\"weights\":{\"num_bits\":8,\"type\":\"float\"}}}%s}"

static char dir[] = "/tmp/slipring-test-kv-XXXXXX";
static char err[5000], head[1 << 14];
static unsigned char data[1 << 16];
static size_t head_len, data_len;

struct scale { const char *name, *dtype, *shape; float value; };  /* name NULL: no more */

static void put_file(const char *name, const void *p, size_t n, const void *q, size_t m)
{
	uint64_t len = n;
	char path[200];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	assert_non_null(f = fopen(path, "w"));
	if (q)
		assert_int_equal(fwrite(&len, 8, 1, f), 1);
	assert_int_equal(fwrite(p, 1, n, f), n);
	assert_int_equal(q ? fwrite(q, 1, m, f) : m, m);
	fclose(f);
}

static void put_tensor(const char *name, const char *dtype, const char *shape, const void *from, size_t bytes)
{
	head_len += (size_t)snprintf(head + head_len, sizeof(head) - head_len,
	                             "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
	                             head_len > 1 ? "," : "{", name, dtype, shape, data_len, data_len + bytes);
	if (from)
		memcpy(data + data_len, from, bytes);
	data_len += bytes;
}

/* A model whose second layer has these scales. */
static int opened(struct model **md, const struct scale *s, const char *config)
{
	static const char *const square[] = { "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
		"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj" };
	char name[100], text[2000];

	head_len = data_len = 0;
	put_tensor("model.embed_tokens.weight", "BF16", "32,32", NULL, 2048);
	put_tensor("model.norm.weight", "BF16", "32", NULL, 64);
	for (int l = 0; l < 2; l++) {
		for (size_t i = 0; i < sizeof(square) / sizeof(*square); i++) {
			snprintf(name, sizeof(name), "model.layers.%d.%s.weight", l, square[i]);
			put_tensor(name, "BF16", "32,32", NULL, 2048);
		}
		snprintf(name, sizeof(name), "model.layers.%d.input_layernorm.weight", l);
		put_tensor(name, "BF16", "32", NULL, 64);
		snprintf(name, sizeof(name), "model.layers.%d.post_attention_layernorm.weight", l);
		put_tensor(name, "BF16", "32", NULL, 64);
	}
	for (; s->name; s++) {
		bool half = strcmp(s->dtype, "F32") != 0;

		snprintf(name, sizeof(name), "model.layers.1.self_attn.%s", s->name);
		put_tensor(name, s->dtype, s->shape, (const char *)&s->value + (half ? 2 : 0),
		           (strcmp(s->shape, "2") ? 1 : 2) * (half ? 2 : 4));
	}
	head_len += (size_t)snprintf(head + head_len, sizeof(head) - head_len, "}");
	put_file("model.safetensors", head, head_len, data, data_len);
	put_file("config.json", text, (size_t)snprintf(text, sizeof(text), CONFIG, config), NULL, 0);
	err[0] = 0;
	return model_open(md, dir, err, sizeof(err));
}

static void test_names(void **state)
{
	static const struct { struct scale s[4]; float k, v; } cases[] = {
		{ { { 0 } }, 0, 0 },
		{ { { "k_scale", "F32", "", 0.25f }, { "v_scale", "F32", "", 3 } }, 0.25f, 3 },
		{ { { "attn.k_scale", "F32", "1", 0.25f }, { "attn.v_scale", "BF16", "1", 3 } }, 0.25f, 3 },
		{ { { "k_proj.k_scale", "BF16", "", 0.5f }, { "v_proj.v_scale", "F32", "1,1", 0.125f } }, 0.5f, 0.125f },
		{ { { "qkv_proj.k_scale", "F32", "1", 2 }, { "qkv_proj.v_scale", "F32", "1", 4 } }, 2, 4 },
		{ { { "k_proj.output_scale", "F32", "1", 2 }, { "v_proj.output_scale", "F32", "1", 4 },
		    { "q_proj.output_scale", "F32", "1", 9 } }, 2, 4 },
		{ { { "kv_scale", "F32", "1", 0.75f } }, 0.75f, 0.75f },
		{ { { "k_scale", "F32", "1", 7 } }, 7, 7 },      /* v_scale takes k_scale's value */
		{ { { "v_scale", "F32", "1", 7 } }, 7, 7 },
		{ { { "q_scale", "F32", "1", 7 }, { "k_scale", "F32", "1", 1.5f }, { "v_scale", "F32", "1", 6 } }, 1.5f, 6 },
	};
	struct model *md;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		if (opened(&md, cases[i].s, ""))
			fail_msg("case %zu: %s", i, err);
		assert_true(md->m.layer[0].k_scale == 0 && md->m.layer[0].v_scale == 0);
		assert_true(md->m.layer[1].k_scale == cases[i].k && md->m.layer[1].v_scale == cases[i].v);
		assert_false(md->kv_f8);
		model_close(md);
	}
}

static void test_refused(void **state)
{
	static const struct { struct scale s[3]; int rc; const char *says; } cases[] = {
		{ { { "k_scale", "F32", "1", 0 } }, -EINVAL, "self_attn.k_scale at offset" },
		{ { { "k_scale", "F32", "1", -1 } }, -EINVAL, "is -1; a scale is above 0" },
		{ { { "v_scale", "F32", "1", INFINITY } }, -EINVAL, "is inf; a scale is above 0" },
		{ { { "v_scale", "BF16", "1", NAN } }, -EINVAL, "nan; a scale is above 0" },
		{ { { "k_scale", "F32", "2", 1 } }, -ENOTSUP, "one F32 or BF16 for all keys" },
		{ { { "k_scale", "F16", "1", 1 } }, -ENOTSUP, "is of type F16" },
		{ { { "k_zero_point", "F32", "1", 1 } }, -ENOTSUP, "no part of the" },
	};
	struct model *md;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		int rc = opened(&md, cases[i].s, "");

		if (rc != cases[i].rc || !strstr(err, cases[i].says))
			fail_msg("case %zu: %d \"%s\", not %d \"%s\"", i, rc, err, cases[i].rc, cases[i].says);
	}
}

/* compressed-tensors says that the cache is to be FP8. */
static void test_scheme(void **state)
{
#define SCHEME(bits, type, more) ",\"kv_cache_scheme\":{\"num_bits\":" bits ",\"type\":" type more "}"
	static const char *const others[] = {
		SCHEME("4", "\"float\"", ",\"strategy\":\"tensor\""), SCHEME("8", "\"int\"", ",\"strategy\":\"tensor\""),
		SCHEME("8", "null", ",\"strategy\":\"tensor\""), SCHEME("8", "\"float\"", ""),
		SCHEME("8", "\"float\"", ",\"strategy\":\"attn_head\""),
		SCHEME("8", "\"float\"", ",\"strategy\":\"tensor\",\"dynamic\":true"),
		SCHEME("8", "\"float\"", ",\"strategy\":\"tensor\",\"symmetric\":false"),
		",\"kv_cache_scheme\":\"fp8\"",
	};
#undef SCHEME
	static const struct scale none[1], two[3] = { { "k_scale", "F32", "1", 2 }, { "v_scale", "F32", "1", 4 } };
	char config[1000];
	struct model *md;

	(void)state;
	snprintf(config, sizeof(config), GROUPS, ",\"kv_cache_scheme\":{\"num_bits\":8,\"type\":\"float\","
	         "\"strategy\":\"tensor\",\"symmetric\":true,\"dynamic\":false}");
	if (opened(&md, two, config))
		fail_msg("%s", err);
	assert_true(md->kv_f8 && md->m.layer[1].v_scale == 4);
	model_close(md);
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
		snprintf(config, sizeof(config), GROUPS, others[i]);
		assert_int_equal(opened(&md, two, config), -ENOTSUP);
		if (!strstr(err, "this kv_cache_scheme is not supported; supported is num_bits 8, type float"))
			fail_msg("%s: %s", others[i], err);
	}
	snprintf(config, sizeof(config), GROUPS, ",\"kv_cache_scheme\":null");
	if (opened(&md, none, config))
		fail_msg("%s", err);
	assert_false(md->kv_f8);
	model_close(md);
}

/* The file is read again for each scale, which may fail. */
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
	static const struct scale two[3] = { { "k_scale", "F32", "1", 2 }, { "v_scale", "BF16", "1", 4 } };
	struct model *md;

	(void)state;
	assert_int_equal(opened(&md, two, ""), 0);
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
	char path[200];

	(void)state;
	snprintf(path, sizeof(path), "%s/model.safetensors", dir);
	unlink(path);
	snprintf(path, sizeof(path), "%s/config.json", dir);
	unlink(path);
	return rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names), cmocka_unit_test(test_refused), cmocka_unit_test(test_scheme),
		cmocka_unit_test(test_calls_that_fail),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
