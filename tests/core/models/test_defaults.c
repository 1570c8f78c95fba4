/* LINK: core/models/defaults.c core/models/gguf.c core/models/safetensors.c core/instance/refuse.c -ljansson */
/* test_defaults.c - sampling for a request that does not say: what is read of generation_config.json and of a GGUF
 * file, what replaces it, what is refused, and in which words. */
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

#include "core/models/defaults.h"
#include "tests/rig/gguf_write.h"

static char dir[] = "/tmp/test_defaults.XXXXXX", path[64], gguf[64];
static char err[256];

static int reads(struct defaults *d, const char *text, const char *config)
{
	FILE *f = fopen(path, "w");

	assert_true(f && fputs(text, f) >= 0 && !fclose(f));
	err[0] = 0;
	return defaults_read(d, dir, false, config, NULL, err, sizeof(err));
}

static bool same(const struct defaults *d, double temperature, int64_t top_k, double top_p, double min_p,
                 double repetition)
{
	return d->temperature == temperature && d->top_k == top_k && d->top_p == top_p && d->min_p == min_p &&
	       d->repetition == repetition;
}

static bool plain(const struct defaults *d)
{
	return same(d, 1, 0, 1, 0, 1) && d->max_tokens == -1 && d->max_tokens_cap == -1;
}

static void a_folder(void **state)
{
	static const char all[] = "{\"temperature\":0.5,\"top_p\":0.25,\"min_p\":0.125,\"top_k\":40,"
	                          "\"repetition_penalty\":1.5,\"max_new_tokens\":300}";
	struct defaults d;

	(void)state;
	unlink(path);
	assert_int_equal(defaults_read(&d, dir, false, "auto", NULL, err, sizeof(err)), 0);
	assert_true(plain(&d));
	assert_string_equal(d.from, "vLLM's defaults");
	assert_int_equal(reads(&d, "{\"temperature\":null,\"other\":[1]}", NULL), 0);
	assert_true(plain(&d));
	assert_int_equal(reads(&d, all, "vllm"), 0);
	assert_true(plain(&d));
	assert_int_equal(reads(&d, all, "auto"), 0);
	assert_true(same(&d, 0.5, 40, 0.25, 0.125, 1.5) && d.max_tokens == 300 && d.max_tokens_cap == -1);
	assert_string_equal(d.from, "generation_config.json");
	assert_int_equal(reads(&d, all, dir), 0);
	assert_true(same(&d, 0.5, 40, 0.25, 0.125, 1.5) && d.max_tokens == 300 && d.max_tokens_cap == 300);
	assert_int_equal(reads(&d, "{\"temperature\":0,\"top_p\":1,\"min_p\":0,\"top_k\":-1,\"max_new_tokens\":1}", NULL), 0);
	assert_true(same(&d, 0, 0, 1, 0, 1) && d.max_tokens == 1);
}

/* A GGUF file with one value of the type `type` (gguf.h), or without any (key NULL). */
static int reads_gguf(struct defaults *d, const char *key, uint32_t type, double value, const char *config)
{
	static struct bytes w;
	const float f32 = (float)value;
	const int32_t i32 = (int32_t)value;
	FILE *f = fopen(gguf, "w");

	put_head(&w, 3, 0, key ? 3 : 2);
	put_kv_str(&w, "general.architecture", "llama");
	put_kv_u32(&w, "general.alignment", 32);
	if (key) {
		put_key(&w, key, type);
		if (type == 6)
			put(&w, &f32, 4);
		else if (type == 12)
			put(&w, &value, 8);
		else if (type == 8)
			put_str(&w, "0.6");
		else
			put(&w, &i32, 4);
	}
	put_pad(&w, 32);
	assert_true(f && fwrite(w.b, 1, w.n, f) == w.n && !fclose(f));
	err[0] = 0;
	return defaults_read(d, gguf, true, config, NULL, err, sizeof(err));
}

/* llama.cpp's values, less what the file says: in any type of number that converters write. */
static void a_gguf(void **state)
{
	static const struct { const char *key; uint32_t type; double value; double temperature; int64_t top_k;
		double top_p, min_p, repetition; } cases[] = {
		{ NULL, 0, 0, 0.8, 40, 0.95, 0.05, 1 },
		{ "general.sampling.temp", 6, 0.6, 0.6, 40, 0.95, 0.05, 1 },
		{ "general.sampling.temp", 12, 0.7, 0.7, 40, 0.95, 0.05, 1 },
		{ "general.sampling.temp", 4, 1, 1, 40, 0.95, 0.05, 1 },
		{ "general.sampling.top_k", 5, 20, 0.8, 20, 0.95, 0.05, 1 },
		{ "general.sampling.top_k", 4, 64, 0.8, 64, 0.95, 0.05, 1 },
		{ "general.sampling.top_k", 5, -1, 0.8, 0, 0.95, 0.05, 1 },
		{ "general.sampling.top_p", 6, 0.9, 0.8, 40, 0.9, 0.05, 1 },
		{ "general.sampling.min_p", 6, 0, 0.8, 40, 0.95, 0, 1 },
		{ "general.sampling.penalty_repeat", 6, 1.05, 0.8, 40, 0.95, 0.05, 1.05 },
		{ "general.sampling.mirostat", 5, 2, 0.8, 40, 0.95, 0.05, 1 },
	};
	struct defaults d;
	char words[160];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(reads_gguf(&d, cases[i].key, cases[i].type, cases[i].value, "auto"), 0);
		if (!same(&d, cases[i].temperature, cases[i].top_k, cases[i].top_p, cases[i].min_p, cases[i].repetition))
			fail_msg("case %zu: %g %lld %g %g %g", i, d.temperature, (long long)d.top_k, d.top_p, d.min_p,
			         d.repetition);
		assert_int_equal(d.max_tokens, -1);
	}
	assert_int_equal(reads_gguf(&d, NULL, 0, 0, NULL), 0);
	assert_string_equal(d.from, "llama.cpp's defaults");
	defaults_say(&d, words, sizeof(words));
	assert_string_equal(words, "temperature 0.8, top_k 40, top_p 0.95, min_p 0.05");
	assert_int_equal(reads_gguf(&d, "general.sampling.temp", 6, 0.6, "vllm"), 0);
	assert_true(plain(&d));
	assert_int_equal(reads(&d, "{\"top_p\":0.5}", NULL), 0);
	assert_int_equal(reads_gguf(&d, "general.sampling.temp", 6, 0.6, dir), 0);
	assert_true(same(&d, 1, 0, 0.5, 0, 1));
	assert_int_equal(reads_gguf(&d, "general.sampling.temp", 6, 3, "auto"), -EINVAL);
	assert_non_null(strstr(err, "general.sampling.temp must be a number from 0 to 2"));
	assert_int_equal(reads_gguf(&d, "general.sampling.temp", 8, 0, "auto"), -EINVAL);
	assert_non_null(strstr(err, "general.sampling.temp must be a number"));
}

static void replaced(void **state)
{
	struct sr_sampling s;
	struct defaults d;

	(void)state;
	assert_int_equal(reads_gguf(&d, NULL, 0, 0, NULL), 0);
	assert_int_equal(defaults_read(&d, gguf, true, "auto", "{\"temperature\":0.25,\"max_new_tokens\":9}", err,
	                               sizeof(err)), 0);
	assert_true(same(&d, 0.25, 40, 0.95, 0.05, 1) && d.max_tokens == 9 && d.max_tokens_cap == 9);
	assert_int_equal(defaults_read(&d, gguf, true, "vllm", "{\"top_k\":5}", err, sizeof(err)), 0);
	assert_true(same(&d, 1, 5, 1, 0, 1) && d.max_tokens_cap == -1);
	assert_int_equal(defaults_read(&d, gguf, true, "vllm", "{}", err, sizeof(err)), 0);
	assert_true(plain(&d));
	assert_int_equal(defaults_read(&d, gguf, true, "auto", "{\"top_p\":7}", err, sizeof(err)), -EINVAL);
	assert_string_equal(err, "--override-generation-config: top_p must be a number from 1e-06 to 1");
	assert_int_equal(defaults_read(&d, gguf, true, "auto", "[1]", err, sizeof(err)), -EINVAL);
	assert_int_equal(defaults_read(&d, gguf, true, "auto", "{", err, sizeof(err)), -EINVAL);
	assert_int_equal(defaults_read(&d, gguf, true, "auto", NULL, err, sizeof(err)), 0);
	defaults_sampling(&d, &s);
	assert_true(s.temperature == 0.8f && s.top_k == 40 && s.top_p == 0.95f && s.min_p == 0.05f && s.repetition == 1 &&
	            s.presence == 0 && s.frequency == 0 && s.seed == 0 && s.min_position == 0);
}

static void refused(void **state)
{
	static const struct { const char *text, *words; } cases[] = {
		{ "{\"temperature\":2.1,\"top_k\":5}", "temperature must be a number from 0 to 2" },
		{ "{\"temperature\":-1}", "temperature must be" }, { "{\"temperature\":\"0.5\"}", "temperature must be" },
		{ "{\"top_p\":0}", "top_p must be a number from 1e-06 to 1" }, { "{\"min_p\":1.5}", "min_p must be" },
		{ "{\"repetition_penalty\":0}", "repetition_penalty must be" }, { "{\"top_k\":-2}", "top_k must be" },
		{ "{\"max_new_tokens\":0}", "max_new_tokens must be" }, { "{\n\"top_k\":}", "line 2" },
		{ "[]", "must be a JSON object" },
	};
	struct defaults d;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (reads(&d, cases[i].text, NULL) != -EINVAL || !strstr(err, cases[i].words) ||
		    strncmp(err, path, strlen(path)))
			fail_msg("%s: %s", cases[i].text, err);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_folder), cmocka_unit_test(a_gguf), cmocka_unit_test(replaced), cmocka_unit_test(refused),
	};
	int failed;

	if (!mkdtemp(dir))
		return 1;
	snprintf(path, sizeof(path), "%s/generation_config.json", dir);
	snprintf(gguf, sizeof(gguf), "%s/m.gguf", dir);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(path);
	unlink(gguf);
	rmdir(dir);
	return failed;
}
