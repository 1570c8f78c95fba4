/* LINK: @cpu @models core/models/load.c core/instance/io.c core/instance/log.c tests/rig/drive.c -ljansson -luring */
/* test_default.c - the default model on the CPU against recorded answers of its float32 weights:
 * the whole chain from the file to log-probabilities.  tests/data/smollm2.json says what is in it.
 * MODEL in the environment names another file or directory of the same weights; DLOGP and DNLL
 * tighten the bounds (activations are quantized to 8 bits for Q4_1, hence 0.15 and 1 %). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/models/load.h"
#include "core/models/model.h"
#include "kernels/cpu/cpu.h"
#include "tests/rig/drive.h"

#define N_MAX 1024
#ifdef __SANITIZE_ADDRESS__
#define EACH 4                   /* prompts take ten times as long: every fourth one is enough for memory errors */
#else
#define EACH 1
#endif

static struct drive d;
static int32_t kv_type = SR_KV_BF16;
static json_t *truth;

static double setting(const char *name, double usual)
{
	const char *s = getenv(name);

	return s ? atof(s) : usual;
}

static const char *model_path(void)
{
	static char path[4096];
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

	if (getenv("MODEL"))
		return getenv("MODEL");
	if (cache && *cache)
		snprintf(path, sizeof(path), "%s", cache);
	else
		snprintf(path, sizeof(path), "%s/.cache", home ? home : "/root");
	strncat(path, "/slipring/models/SmolLM2-135M-Instruct.Q4_1.gguf", sizeof(path) - strlen(path) - 1);
	return path;
}

static int open_all(void **state)
{
	struct sr_limits lim = drive_limits();
	struct model *m;
	struct load *l;
	struct io *io = NULL;
	char err[512];

	(void)state;
	truth = json_load_file("tests/data/smollm2.json", 0, NULL);
	assert_non_null(truth);
	if (access(model_path(), R_OK)) {
		printf("SKIP: no model at %s\n", model_path());
		return 0;
	}
	lim.threads = 2;
	lim.kv_type = kv_type;
	lim.n_blocks = 128;
	if (model_open(&m, model_path(), err, sizeof(err)) || io_create(&io, 0))
		fail_msg("%s", err);
	if (load_create(&l, io, m->file, m->n_files, NULL, NULL, err, sizeof(err)))
		fail_msg("%s", err);
	if (drive_open(&d, sr_cpu_ops(), &m->m, load_source(l), &lim))
		fail_msg("%s", d.err);
	load_destroy(l);
	io_destroy(io);
	model_close(m);
	return 0;
}

static int close_all(void **state)
{
	(void)state;
	if (d.b)
		drive_close(&d);
	json_decref(truth);
	return 0;
}

static int read_ids(const json_t *list, int32_t *ids)
{
	size_t n = json_array_size(list);

	assert_in_range(n, 1, N_MAX);
	for (size_t i = 0; i < n; i++)
		ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
	return (int)n;
}

/* Mean difference of the log-probabilities of the most likely first tokens, and whether our
 * greedy first token is the reference's where that is clear. */
static void test_first_tokens(void **state)
{
	const json_t *all = json_object_get(truth, "greedy"), *line;
	double diff = 0, bound = setting("DLOGP", 0.15);
	int32_t ids[N_MAX];
	size_t i, n_prompts;

	(void)state;
	if (!d.b)
		skip();
	json_array_foreach(all, i, line) {
		const json_t *lp = json_object_get(line, "top_logprobs");
		int32_t top = (int32_t)json_integer_value(json_array_get(json_object_get(line, "top_ids"), 0));
		double want = json_real_value(json_array_get(lp, 0)), second = json_real_value(json_array_get(lp, 1));
		int n = read_ids(json_object_get(line, "ids"), ids);

		if (i % EACH)
			continue;
		ids[n] = top; /* scored as if it followed */
		drive_begin(&d, 0, NULL);
		drive_range(&d, 0, 0, n / 16 + 1);
		drive_row(&d, 0, 0, ids, n, n, 1);
		drive_step(&d);
		diff += fabs(d.batch->result[n - 1].logprob - want);
		assert_int_equal(d.batch->result[n - 1].id, top);
		if (want - second > 0.3)
			assert_int_equal(d.batch->result[n].id, top);
	}
	n_prompts = (json_array_size(all) + EACH - 1) / EACH;
	diff /= (double)n_prompts;
	printf("first tokens: mean |dlogp| %.4f over %zu prompts, bound %.2f\n", diff, n_prompts, bound);
	assert_true(diff <= bound);
}

/* Greedy answers: how many of the reference's tokens we also give before the first difference.
 * Ties broken by rounding end a match, so only the sum over all prompts is checked. */
static void test_greedy(void **state)
{
	const json_t *all = json_object_get(truth, "greedy"), *line;
	int32_t ids[N_MAX], want[N_MAX];
	int same = 0, total = 0;
	size_t i;

	(void)state;
	if (!d.b)
		skip();
	json_array_foreach(all, i, line) {
		int n = read_ids(json_object_get(line, "ids"), ids);
		int m = read_ids(json_object_get(line, "greedy"), want), j;

		if (i % EACH)
			continue;
		drive_begin(&d, 0, NULL);
		drive_range(&d, 0, 0, (n + m) / 16 + 1);
		drive_row(&d, 0, 0, ids, n, 0, 1);
		drive_step(&d);
		for (j = 0; j < m && d.batch->result[0].id == want[j]; j++) {
			drive_row(&d, 0, n + j, NULL, 1, 0, 1);
			drive_step(&d);
		}
		same += j;
		total += m;
	}
	printf("greedy answers: %d of %d tokens before the first difference\n", same, total);
	assert_true(same >= total / (EACH == 1 ? 4 : 8));  /* of 3 prompts one early tie counts for much */
}

static void test_nll(void **state)
{
	double want = json_real_value(json_object_get(truth, "nll")), got = 0, bound = setting("DNLL", 0.01);
	int32_t ids[N_MAX];
	int n;

	(void)state;
	if (!d.b)
		skip();
	n = read_ids(json_object_get(truth, "nll_ids"), ids);
	drive_begin(&d, 0, NULL);
	drive_range(&d, 0, 0, (n + 15) / 16);
	drive_row(&d, 0, 0, ids, n - 1, n - 1, 0);
	drive_step(&d);
	for (int i = 0; i < n - 1; i++)
		got -= d.batch->result[i].logprob;
	got /= n - 1;
	printf("nll over %d tokens: %.4f, reference %.4f, bound %.1f %%\n", n, got, want, 100 * bound);
	assert_true(fabs(got - want) <= bound * want);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_first_tokens),
		cmocka_unit_test(test_greedy),
		cmocka_unit_test(test_nll),
	};

	int failed = cmocka_run_group_tests_name("bf16 K and V", tests, open_all, close_all);

	d = (struct drive){ 0 };
	kv_type = SR_KV_I8;
	return failed + cmocka_run_group_tests_name("int8 K and V", tests, open_all, close_all);
}
