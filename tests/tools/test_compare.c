/* LINK: tools/bench/compare.c tools/bench/compare_stats.c tools/bench/bench_arrival.c tools/bench/bench_metrics.c tools/bench/bench_save.c core/instance/fresh.c tools/bench/bench_report.c core/figures/figures.c core/instance/stats.c core/instance/refuse.c -ljansson */
/* test_compare.c - `slipring compare` on made-up results: what counts as a change, and which files it reads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench/bench.h"
#include "tools/commands.h"
#include "tools/bench/compare.h"

#define N(a) (sizeof(a) / sizeof((a)[0]))

static char path[2][40] = { "/tmp/slipring-test-compare-a-XXXXXX", "/tmp/slipring-test-compare-b-XXXXXX" };

/* What compare prints, and its exit status. */
static int run(char *out, size_t n, const char *a, const char *b, const char *option)
{
	char printed[] = "/tmp/slipring-test-compare-o-XXXXXX";
	char *argv[] = { (char[]){ "compare" }, (char *)(uintptr_t)a, (char *)(uintptr_t)b,
	                (char *)(uintptr_t)option, NULL };
	int fd = mkstemp(printed), saved[2] = { dup(1), dup(2) }, rc;
	ssize_t len;

	fflush(stdout);
	dup2(fd, 1);
	dup2(fd, 2);
	rc = cmd_compare(option ? 4 : 3, argv);
	fflush(stdout);
	dup2(saved[0], 1);
	dup2(saved[1], 2);
	len = pread(fd, out, n - 1, 0);
	out[len > 0 ? len : 0] = 0;
	close(fd);
	close(saved[0]);
	close(saved[1]);
	unlink(printed);
	return rc;
}

static void put_file(int which, const char *s)
{
	FILE *f = fopen(path[which], "w");

	assert_non_null(f);
	fputs(s, f);
	fclose(f);
}

/* One result of 200 requests with 30 gaps each; times are slowed by a factor. */
static json_t *result(uint64_t seed, double slower, bool detailed, const char *date)
{
	double ttft_sum = 0, ttft_square = 0, gap_sum = 0, end = 0, at = 0;
	json_t *j = json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:f}", "date", date, "model_id", "m",
	                      "completed", 200,
	                      "failed", 0, "total_input_tokens", 20000, "total_output_tokens", 6200,
	                      "request_rate", 20.0);
	json_t *ttfts = json_array(), *itls = json_array(), *lens = json_array(), *starts = json_array();
	struct twister t;

	twister_seed_numpy(&t, (uint32_t)seed);
	for (int i = 0; i < 200; i++) {
		double ttft = slower * (0.02 + 0.001 * twister_gamma(&t, 4)), now;
		json_t *gaps = json_array();

		at += 0.05;
		now = at + ttft;
		for (int k = 0; k < 30; k++) {
			double gap = slower * (0.01 + 0.0005 * twister_gamma(&t, 1));

			json_array_append_new(gaps, json_real(gap));
			gap_sum += gap;
			now += gap;
		}
		end = now > end ? now : end;
		ttft_sum += ttft;
		ttft_square += ttft * ttft;
		json_array_append_new(ttfts, json_real(ttft));
		json_array_append_new(itls, gaps);
		json_array_append_new(lens, json_integer(31));
		json_array_append_new(starts, json_real(at));
	}
	json_object_set_new(j, "duration", json_real(end));
	json_object_set_new(j, "request_throughput", json_real(200 / end));
	json_object_set_new(j, "output_throughput", json_real(6200 / end));
	json_object_set_new(j, "mean_ttft_ms", json_real(ttft_sum / 200 * 1000));
	json_object_set_new(j, "std_ttft_ms",
	                    json_real(sqrt(ttft_square / 200 - ttft_sum * ttft_sum / 40000) * 1000));
	json_object_set_new(j, "mean_tpot_ms", json_real(gap_sum / 6000 * 1000));
	if (detailed) {
		json_object_set(j, "ttfts", ttfts);
		json_object_set(j, "itls", itls);
		json_object_set(j, "output_lens", lens);
		json_object_set(j, "start_times", starts);
	}
	json_decref(ttfts);
	json_decref(itls);
	json_decref(lens);
	json_decref(starts);
	return j;
}

static void put_results(int which, uint64_t seed, double slower, int runs, bool detailed)
{
	FILE *f = fopen(path[which], "w");

	assert_non_null(f);
	for (int i = 0; i < runs; i++) {
		char date[32];
		json_t *j;

		snprintf(date, sizeof(date), "20260131-12%02d%02d", i, which * 30);
		j = result(seed + (uint64_t)i * 1000, slower, detailed, date);
		json_dumpf(j, f, 0);
		fputc('\n', f);
		json_decref(j);
	}
	fclose(f);
}

static void student_quantiles(void **state)
{
	static const struct { double p, freedom, t; } cases[] = {   /* of the printed tables */
		{ 0.975, 2, 4.302653 }, { 0.975, 100, 1.983972 }, { 0.995, 5, 4.032143 }, { 0.95, 1, 6.313752 },
		{ 0.9995, 10, 4.586894 },
	};

	(void)state;
	for (size_t i = 0; i < N(cases); i++)
		assert_true(fabs(student_quantile(cases[i].p, cases[i].freedom) - cases[i].t) < 2e-6);
}

static void changes_are_told_from_noise(void **state)
{
	static const struct { double a, b; int runs; bool detailed; int rc; const char *says; } cases[] = {
		{ 1, 1,    1, true, 0,  "B is the same as A" },      { 1, 1.05, 1, true, 1,  "Worse: " },
		{ 1.05, 1, 1, true, 0,  "B is better than A" },      { 1, 1,    5, false, 0,
		                                                      "B is the same as A" },
		{ 1, 1.05, 5, false, 1, "Mean TPOT rose by 5" },     { 1.05, 1, 5, false, 0,
		                                                      "Mean TPOT fell by 4" },
		{ 1, 1.05, 1, false, 1, "Mean TTFT rose by" },       { 1, 1,    1, false, 0,
		                                                      "B is the same as A" },
		{ 1, 1.01, 1, true, 0,  "B is the same as A" },      /* below the threshold of 2 % */
	};
	char out[8192];

	(void)state;
	for (size_t i = 0; i < N(cases); i++) {
		put_results(0, 1, cases[i].a, cases[i].runs, cases[i].detailed);
		put_results(1, 77, cases[i].b, cases[i].runs, cases[i].detailed);
		int rc = run(out, sizeof(out), path[0], path[1], NULL);

		if (rc != cases[i].rc || !strstr(out, cases[i].says))
			fail_msg("case %zu: exit %d\n%s", i, rc, out);
	}
}

/* 95 %: of 40 pairs of equal runs at least 38 must be called the same, and 5 % more time must be found
 * in at least 38. */
static void wrong_verdicts_are_rare(void **state)
{
	int same = 0, found = 0;
	char out[8192];

	(void)state;
	for (uint64_t i = 0; i < 40; i++) {
		put_results(0, 1000 + 2 * i, 1, 1, true);
		put_results(1, 1001 + 2 * i, 1, 1, true);
		same += run(out, sizeof(out), path[0], path[1], NULL) == 0 && strstr(out, "B is the same as A");
		put_results(1, 1001 + 2 * i, 1.05, 1, true);
		found += run(out, sizeof(out), path[0], path[1], NULL) == 1;
	}
	assert_in_range(same, 38, 40);
	assert_in_range(found, 38, 40);
}

static void other_work_and_turns_are_said(void **state)
{
	char out[8192], *s;
	json_t *j;

	(void)state;
	put_results(0, 1, 1, 3, false);
	put_results(1, 2, 1, 3, false);
	assert_int_equal(run(out, sizeof(out), path[0], path[1], NULL), 0);
	assert_non_null(strstr(out, "runs were made in turns"));
	assert_null(strstr(out, "NOT THE SAME WORK"));
	j = result(1, 1, true, "20260131-120000");
	json_object_set_new(j, "request_rate", json_string("inf"));
	json_object_set_new(j, "total_input_tokens", json_integer(40000));
	s = json_dumps(j, 0);
	put_file(1, s);
	run(out, sizeof(out), path[0], path[1], NULL);
	assert_non_null(strstr(out, "NOT THE SAME WORK: request_rate was 20.0, then \"inf\""));
	assert_non_null(strstr(out, "NOT THE SAME WORK: input tokens per request were 100.0, then 200.0"));
	free(s);
	json_object_set_new(j, "completed", json_integer(150));
	json_object_set_new(j, "failed", json_integer(50));
	s = json_dumps(j, 0);
	put_file(1, s);
	assert_int_equal(run(out, sizeof(out), path[0], path[1], NULL), 1);
	assert_non_null(strstr(out, "Worse: 25.0 % of the requests failed, and 0.0 % before."));
	free(s);
	json_decref(j);
}

static void programs_get_json(void **state)
{
	static char out[16384];
	json_t *j;

	(void)state;
	put_results(0, 1, 1, 1, true);
	put_results(1, 2, 1.1, 1, true);
	assert_int_equal(run(out, sizeof(out), path[0], path[1], "--json"), 1);
	j = json_loads(out, 0, NULL);
	assert_string_equal(json_string_value(json_object_get(j, "verdict")), "worse");
	assert_true(json_array_size(json_object_get(j, "metrics")) >= 10);
	assert_true(json_number_value(json_object_get(json_array_get(json_object_get(j, "metrics"), 2),
	                                              "change_percent")) > 8);
	json_decref(j);
}

static void bad_files_are_named(void **state)
{
	static const struct { const char *file, *says; } cases[] = {
		{ "", "it holds no result" },
		{ "[1]", "line 1: not a JSON object" },
		{ "{\"duration\":1,\n\"completed\":", "line 2: " },
		{ "{\"duration\":1,\"completed\":1,\"request_throughput\":1}\n\n{\"a\":\n}", "line 4: " },
		{ "{\"completed\":1,\"request_throughput\":1}", "field \"duration\" is missing" },
		{ "{\"duration\":\"1\",\"completed\":1,\"request_throughput\":1}",
		 "field \"duration\" is missing or not a number" },
		{ "{\"duration\":1,\"completed\":1,\"request_throughput\":1,\"slipring\":{\"format\":2}}",
		 "another version wrote" },
		{ "{\"duration\":1,\"completed\":1,\"request_throughput\":1,\"slipring\":{}}",
		 "another version wrote" },
		{ "{\"duration\":1,\"completed\":2,\"request_throughput\":1,\"ttfts\":[1,2],\"itls\":[[]],\"output_lens\":[1,1]}",
		  "differ in length" },
	};
	char out[8192];

	(void)state;
	put_results(0, 1, 1, 1, true);
	for (size_t i = 0; i < N(cases); i++) {
		put_file(1, cases[i].file);
		assert_int_equal(run(out, sizeof(out), path[0], path[1], NULL), 2);
		if (!strstr(out, cases[i].says) || !strstr(out, path[1]))
			fail_msg("\"%s\" does not say \"%s\"", out, cases[i].says);
	}
	assert_int_equal(run(out, sizeof(out), path[0], "no-such-baseline", NULL), 2);
	assert_non_null(strstr(out,
	                       "no-such-baseline: No such file or directory, and no baseline of this name"));
	put_file(0, "{\"duration\":1,\"completed\":1,\"request_throughput\":1}");
	assert_int_equal(run(out, sizeof(out), path[0], path[0], NULL), 2);
	assert_non_null(strstr(out, "the files hold no measure of noise"));
}

static void baselines_are_found_by_name(void **state)
{
	char out[8192], dir[] = "/tmp/slipring-test-compare-d-XXXXXX", err[300], file[300];
	static const char *const bad[] = { "", "../x", ".x", "a/b" };

	(void)state;
	assert_non_null(mkdtemp(dir));
	setenv("XDG_DATA_HOME", dir, 1);
	assert_int_equal(bench_baseline_path("before", file, sizeof(file), err, sizeof(err)), 0);
	snprintf(out, sizeof(out), "%s/slipring/baselines/before.json", dir);
	assert_string_equal(file, out);
	for (size_t i = 0; i < N(bad); i++)
		assert_int_equal(bench_baseline_path(bad[i], file, sizeof(file), err, sizeof(err)), -EINVAL);
	unsetenv("XDG_DATA_HOME");
	rmdir(dir);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(student_quantiles), cmocka_unit_test(changes_are_told_from_noise),
		cmocka_unit_test(wrong_verdicts_are_rare), cmocka_unit_test(other_work_and_turns_are_said),
		cmocka_unit_test(programs_get_json), cmocka_unit_test(bad_files_are_named),
		cmocka_unit_test(baselines_are_found_by_name),
	};
	int rc, fd[2] = { mkstemp(path[0]), mkstemp(path[1]) };

	if (fd[0] < 0 || fd[1] < 0)
		return 1;
	close(fd[0]);
	close(fd[1]);
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(path[0]);
	unlink(path[1]);
	return rc;
}
