/* LINK: adapters/http/json/defaults.c -ljansson */
/* test_defaults.c - generation_config.json: what is read, what is refused, and in which words. */
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
#include <unistd.h>

#include "adapters/http/json/openai.h"

static char dir[] = "/tmp/test_defaults.XXXXXX", path[64];

static int reads(struct ask_defaults *d, const char *text, bool cap, char *err, size_t errlen)
{
	FILE *f = fopen(path, "w");

	assert_true(f && fputs(text, f) >= 0 && !fclose(f));
	err[0] = 0;
	return ask_defaults_read(d, dir, cap, err, errlen);
}

static bool none(const struct ask_defaults *d)
{
	return isnan(d->temperature) && isnan(d->top_p) && isnan(d->min_p) && isnan(d->repetition_penalty) &&
	       d->top_k == -1 && d->max_tokens == -1 && d->max_tokens_cap == -1;
}

static void taken(void **state)
{
	struct ask_defaults d;
	char err[256];

	(void)state;
	assert_int_equal(ask_defaults_read(&d, NULL, true, err, sizeof(err)), 0);
	assert_true(none(&d));
	assert_int_equal(ask_defaults_read(&d, dir, true, err, sizeof(err)), 0);  /* without the file */
	assert_true(none(&d));
	assert_int_equal(reads(&d, "{\"temperature\":null,\"other\":[1]}", true, err, sizeof(err)), 0);
	assert_true(none(&d));
	for (int cap = 0; cap <= 1; cap++) {
		assert_int_equal(reads(&d, "{\"temperature\":0.5,\"top_p\":0.25,\"min_p\":0.125,\"top_k\":40,"
		                       "\"repetition_penalty\":1.5,\"max_new_tokens\":300}", cap, err, sizeof(err)), 0);
		assert_true(d.temperature == 0.5 && d.top_p == 0.25 && d.min_p == 0.125);
		assert_true(d.repetition_penalty == 1.5 && d.top_k == 40 && d.max_tokens == 300);
		assert_int_equal(d.max_tokens_cap, cap ? 300 : -1);
	}
	assert_int_equal(reads(&d, "{\"temperature\":0,\"top_p\":1,\"min_p\":0,\"top_k\":-1,\"max_new_tokens\":1}",
	                       false, err, sizeof(err)), 0);
	assert_true(d.temperature == 0 && d.top_p == 1 && d.min_p == 0 && d.top_k == -1 && d.max_tokens == 1);
}

static void refused(void **state)
{
	static const struct { const char *text, *words; } cases[] = {
		{ "{\"temperature\":2.1,\"top_k\":5}", "temperature must be a number from 0 to 2" },
		{ "{\"temperature\":-1}", "temperature must be" }, { "{\"temperature\":\"0.5\"}", "temperature must be" },
		{ "{\"top_p\":0}", "top_p must be a number from 1e-06 to 1" }, { "{\"min_p\":1.5}", "min_p must be" },
		{ "{\"repetition_penalty\":0}", "repetition_penalty must be" }, { "{\"top_k\":-2}", "top_k must be" },
		{ "{\"max_new_tokens\":0}", "max_new_tokens must be" }, { "{\n\"top_k\":}", "line 2" },
	};
	struct ask_defaults d;
	char err[256];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (reads(&d, cases[i].text, true, err, sizeof(err)) != -EINVAL || !strstr(err, cases[i].words) ||
		    strncmp(err, path, strlen(path)))
			fail_msg("%s: %s", cases[i].text, err);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(taken), cmocka_unit_test(refused) };
	int failed;

	if (!mkdtemp(dir))
		return 1;
	snprintf(path, sizeof(path), "%s/generation_config.json", dir);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(path);
	rmdir(dir);
	return failed;
}
