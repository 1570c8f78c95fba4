/* LINK: tools/bench/report_page.c tools/bench/report_draw.c tools/bench/report_data.c tools/bench/report_plot.c tools/bench/compare.c tools/bench/compare_stats.c tools/bench/bench_arrival.c tools/bench/bench_metrics.c tools/bench/bench_save.c core/instance/fresh.c tools/bench/bench_report.c core/figures/figures.c core/instance/stats.c core/instance/refuse.c -ljansson */
/* test_report.c - `slipring report`: what it draws, what it refuses, and that text from a file stays
 * text on the page. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "tools/bench/report.c"

#define N(a) (sizeof(a) / sizeof((a)[0]))

static char dir[] = "/tmp/slipring-test-report-XXXXXX";

static const char *in_dir(const char *name)
{
	static char path[8][200];
	static int k;

	k = (k + 1) % 8;
	snprintf(path[k], sizeof(path[k]), "%s/%s", dir, name);
	return path[k];
}

static char *slurp(const char *path)
{
	FILE *f = fopen(path, "r");
	char *s = NULL;
	size_t n = 0;

	assert_non_null(f);
	assert_true(getdelim(&s, &n, 0, f) > 0);
	fclose(f);
	return s;
}

static void put(const char *name, const char *s)
{
	FILE *f = fopen(in_dir(name), "w");

	assert_non_null(f);
	fputs(s, f);
	fclose(f);
}

/* A result with everything in it; every text is `label`. */
static json_t *result(const char *label, double slower)
{
	json_t *j = json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:s, s:f}", "date", label,
		"model_id", label, "label", label, "completed", 40, "failed", 1, "duration", 4.0 * slower,
		"request_throughput", 10 / slower, "output_throughput", 70 / slower, "mean_ttft_ms", 20 * slower,
		"median_ttft_ms", 20 * slower, "p99_ttft_ms", 30 * slower, "request_rate", label, "max_concurrency",
		8.0);
	json_t *server = json_pack("{s:s, s:s, s:s, s:{s:s}, s:f, s:i, s:{s:f, s:f}, s:{s:f, s:f}, s:f, s:f, "
		"s:{s:f, s:f, s:n}, s:{s:f, s:f, s:f, s:s, s:s}}", "device", label, "says", label, "limit", label,
		"knobs", label, label, "busy_seconds", 3.0, "generated_tokens", 200, "why_seconds", "empty", 1.0,
		"seqs", 3.0, "bound_seconds", "idle", 1.0, "compute", 3.0, "memory_bytes_per_s", 2e9, "ops_per_s",
		3e9, "reached", "memory", 0.5, "arithmetic", 0.25, "pcie", "ceilings", "memory_bytes_per_s", 4e9,
		"int8_ops_per_s", 12e9, "float_ops_per_s", 6e9, "processor", label, "date", label);
	json_t *time = json_pack("{s:[f,f], s:[f,f], s:{s:[f,f], s:[f,f]}, s:{s:[f,f], s:[f,f]}}", "at", 0.0, 2.0,
		"seconds", 2.0, 2.0, "why", "empty", 1.0, 0.0, "seqs", 1.0, 2.0, "bound", "idle", 1.0, 0.0, "compute",
		1.0, 2.0);
	json_t *ttfts = json_array(), *itls = json_array(), *lens = json_array(), *starts = json_array(),
	       *errors = json_array();

	assert_true(j && server && time);
	for (int i = 0; i < 41; i++) {
		json_array_append_new(ttfts, json_real(slower * (0.02 + 0.0001 * i)));
		json_array_append_new(itls, json_pack("[f,f,f,f,f,f]", .01, .011, .012, .01, .01, .01 * slower));
		json_array_append_new(lens, json_integer(7));
		json_array_append_new(starts, json_real(5 + 0.1 * i));
		json_array_append_new(errors, json_string(i == 40 ? label : ""));
	}
	json_object_set_new(server, "empty_seconds", json_pack("{s:f, s:f, s:f, s:f, s:f}", "tokenizing", 0.6,
		"network", 0.1, "silent", 0.3, "served", 0.0, "nobody", 0.0));
	json_object_set_new(time, "empty", json_pack("{s:[f,f], s:[f,f], s:[f,f]}", "tokenizing", 0.6, 0.0, "network",
		0.1, 0.0, "silent", 0.3, 0.0));
	json_object_set_new(server, "over_time", time);
	json_object_set_new(j, "slipring", json_pack("{s:i, s:o}", "format", 1, "server", server));
	json_object_set_new(j, "ttfts", ttfts);
	json_object_set_new(j, "itls", itls);
	json_object_set_new(j, "output_lens", lens);
	json_object_set_new(j, "start_times", starts);
	json_object_set_new(j, "errors", errors);
	return j;
}

static void put_result(const char *name, const char *label, double slower)
{
	json_t *j = result(label, slower);

	assert_int_equal(json_dump_file(j, in_dir(name), 0), 0);
	json_decref(j);
}

static void put_sweep(const char *label)
{
	json_t *points = json_array(), *j;

	for (int i = 0; i < 4; i++) {
		char file[20];

		snprintf(file, sizeof(file), "p%d.json", i);
		put_result(file, label, 1 + 0.5 * i);
		json_array_append_new(points, json_pack("{s:s, s:s, s:s, s:s, s:f, s:i}", "name", label, "file", file,
			"settings", label, "load_name", label, "load", 1.0 + i % 2, "runs", 1));
	}
	j = json_pack("{s:i, s:o}", "format", 1, "points", points);
	assert_int_equal(json_dump_file(j, in_dir("sweep.json"), 0), 0);
	json_decref(j);
}

static char *page_of(const char *first, const char *second)
{
	char *name[2] = { (char *)(uintptr_t)in_dir(first), second ? (char *)(uintptr_t)in_dir(second) : NULL };
	char err[5000] = "";

	if (report_files(in_dir("out.html"), name, second ? 2 : 1, err, sizeof(err)))
		fail_msg("%s", err);
	return slurp(in_dir("out.html"));
}

/* ---- what is on it ----------------------------------------------------------------------------- */

static void it_shows_what_was_measured(void **state)
{
	static const char *const always[] = { "<!DOCTYPE html>", "prefers-color-scheme:dark", "Time to first token",
		"Inter-token latency", "What limited it", "default-src 'none'", "seqs", "Median TTFT (ms)" };
	static const struct { const char *a, *b; const char *has[6], *hasnt; } cases[] = {
		{ "one.json", NULL, { "Output throughput", "Requests under way", "ceiling: memory bandwidth", "P99 23.9 ms",
		                      "2.0 of 4.0 GB/s" }, "change</th>" },
		{ "one.json", "two.json", { "<th>change</th>", "Worse: ", "+50.0 %" }, "ceiling of the hardware" },
		{ "sweep.json", NULL, { "Throughput against latency", "4 points.", "ceiling of the hardware" },
		  "Requests under way" },
	};

	(void)state;
	put_result("one.json", "m", 1);
	put_result("two.json", "m", 1.5);
	put_sweep("s");
	for (size_t i = 0; i < N(cases); i++) {
		char *s = page_of(cases[i].a, cases[i].b);

		for (size_t k = 0; k < N(always); k++)
			if (!strstr(s, always[k]))
				fail_msg("case %zu: no \"%s\"", i, always[k]);
		for (size_t k = 0; cases[i].has[k]; k++)
			if (!strstr(s, cases[i].has[k]))
				fail_msg("case %zu: no \"%s\"", i, cases[i].has[k]);
		assert_null(strstr(s, cases[i].hasnt));
		assert_null(strstr(s, "nan"));
		free(s);
	}
}

/* `empty` is 1 of 4 s: its parts are of all four, in their order; and so they are of a result that has
 * no course over time, or one of the other axes only: each is a picture with something in it. */
static void empty_is_split(void **state)
{
	static const char *const parts[] = { "Of empty", "tokenizing 15.0 %", "network 2.5 %", "silent 7.5 %",
	                                     "What bound the time" };
	enum { WHOLE, WITHOUT_EMPTY, NONE, N_COURSES };

	(void)state;
	for (int course = WHOLE; course < N_COURSES; course++) {
		json_t *j = result("m", 1);
		json_t *server = json_object_get(json_object_get(j, "slipring"), "server");
		char *s, *at;

		if (course == NONE)
			json_object_del(server, "over_time");
		else if (course == WITHOUT_EMPTY)
			json_object_del(json_object_get(server, "over_time"), "empty");
		assert_int_equal(json_dump_file(j, in_dir("one.json"), 0), 0);
		json_decref(j);
		at = s = page_of("one.json", NULL);
		for (size_t i = 0; i < N(parts); i++)
			if (!(at = strstr(at, parts[i])))
				fail_msg("course %d: no \"%s\", or not there", course, parts[i]);
		assert_null(strstr(s, "served 0"));
		at = strstr(strstr(s, "Of empty"), "</svg>");
		assert_non_null(at);
		*at = 0;
		assert_non_null(strstr(strstr(s, "Of empty"), "class=\"band "));
		free(s);
	}
}

static void csv_has_each_request(void **state)
{
	char *s;
	int lines = 0;

	(void)state;
	put_result("one.json", "m", 1);
	free(page_of("one.json", NULL));
	s = slurp(in_dir("out.csv"));
	for (char *p = s; *p; p++)
		lines += *p == '\n';
	assert_int_equal(lines, 42);
	assert_non_null(strstr(s, "\n\"one.json\",0,1,0.1,0,7,20.1,10.5,83.1,\"\"\n"));
	assert_non_null(strstr(s, ",7,,,,\"m\"\n"));  /* the one that failed has no times */
	free(s);
}

/* vLLM's file without --save-detailed has neither requests nor a server's page. */
static void a_bare_result_is_enough(void **state)
{
	char *s;

	(void)state;
	put("bare.json", "{\"duration\":2,\"completed\":3,\"request_throughput\":1.5,\"mean_ttft_ms\":12.5}");
	s = page_of("bare.json", NULL);
	assert_non_null(strstr(s, "hold no single requests"));
	assert_non_null(strstr(s, "Mean TTFT (ms)</th><td>12.5</td>"));
	assert_null(strstr(s, "<svg"));
	free(s);
}

/* ---- hostile texts ----------------------------------------------------------------------------- */

static size_t count(const char *s, const char *what)
{
	size_t n = 0;

	for (; (s = strstr(s, what)); s++)
		n++;
	return n;
}

static void texts_stay_texts(void **state)
{
	static const char *const hostile[] = {
		"<script>alert(1)</script>", "\"><img src=http://x/ onerror=alert(1)>", "</title></style><script>",
		"' onmouseover='alert(1)", "&lt;script&gt;", "]]><!--", "-->", "%s%n%d", "javascript:alert(1)",
		"\xe2\x80\xae live", "<svg onload=alert(1)>", "</svg><iframe src=//x>",
	};
	static const char *const never[] = { "<script", "<img", "<iframe", "onload=alert(1)>", "' onmouse",
	                                     "<!--", "]]>", "\xe2\x80\xae" };
	static const char *const files[][2] = { { "one.json", NULL }, { "one.json", "two.json" }, { "sweep.json", NULL } };
	size_t elements[3], quotes[3];

	(void)state;
	put_result("one.json", "m", 1);
	put_result("two.json", "m", 1.1);
	put_sweep("s");
	for (size_t f = 0; f < N(files); f++) {
		char *s = page_of(files[f][0], files[f][1]);

		elements[f] = count(s, "<");
		quotes[f] = count(s, "\"");
		free(s);
	}
	for (size_t i = 0; i < N(hostile); i++) {
		put_result("one.json", hostile[i], 1);
		put_result("two.json", hostile[i], 1.1);
		put_sweep(hostile[i]);
		for (size_t f = 0; f < N(files); f++) {
			char *s = page_of(files[f][0], files[f][1]);

			for (size_t k = 0; k < N(never); k++)
				if (strstr(s, never[k]))
					fail_msg("\"%s\" came through as \"%s\"", hostile[i], never[k]);
			assert_int_equal(count(s, "<"), elements[f]); /* not one element more, */
			assert_int_equal(count(s, "\""), quotes[f]);  /* and not one attribute */
			free(s);
		}
	}
}

static void csv_begins_no_formula(void **state)
{
	static const struct { const char *name, *cell; } cases[] = {
		{ "=cmd|' /C calc'!A0", "\"'=cmd|' /C calc'!A0\"" }, { "+1", "\"'+1\"" }, { "-1", "\"'-1\"" },
		{ "@x", "\"'@x\"" }, { "a\"b", "\"a\"\"b\"" }, { "a\nb", "\"a b\"" }, { "fine", "\"fine\"" },
	};

	(void)state;
	for (size_t i = 0; i < N(cases); i++) {
		json_t *run = result("m", 1), *runs = json_pack("[o]", run);
		struct report_of of = { .name = cases[i].name, .runs = runs };
		char *s = NULL, *line;
		size_t n;
		FILE *f = open_memstream(&s, &n);

		report_csv(f, &of, 1);
		fclose(f);
		line = strchr(s, '\n') + 1;
		if (strncmp(line, cases[i].cell, strlen(cases[i].cell)))
			fail_msg("%s: %.60s", cases[i].name, line);
		free(s);
		json_decref(runs);
	}
}

static void numbers_are_short(void **state)
{
	static const struct { double v; const char *s; } cases[] = {
		{ 0, "0" }, { 0.12345, "0.123" }, { 1.234, "1.23" }, { 12.34, "12.3" }, { 123.4, "123" }, { 6, "6" },
		{ 999.6, "1,000" }, { 1234567, "1,234,567" }, { -1234, "-1,234" }, { NAN, "-" }, { INFINITY, "-" },
		{ 0.9999, "1.00" },
	};
	char s[40];

	(void)state;
	for (size_t i = 0; i < N(cases); i++) {
		report_number(s, sizeof(s), cases[i].v);
		assert_string_equal(s, cases[i].s);
	}
}

/* ---- bad files --------------------------------------------------------------------------------- */

static void bad_files_are_named(void **state)
{
	static const struct { const char *file, *says; } cases[] = {
		{ "", "it holds no result" }, { "{", "line 1: " }, { "[]", "line 1: not a JSON object" },
		{ "{\"completed\":1}", "field \"duration\"" },
		{ "{\"format\":2,\"points\":[{\"name\":\"a\",\"file\":\"b\",\"runs\":1}]}", "field \"format\"" },
		{ "{\"format\":1,\"points\":[]}", "field \"points\"" },
		{ "{\"format\":1,\"points\":[{\"name\":\"a\",\"file\":\"../b\",\"runs\":1}]}", "entry 0: " },
		{ "{\"format\":1,\"points\":[{\"name\":\"a\",\"file\":\"nowhere.json\",\"runs\":1}]}",
		  "nowhere.json: No such file" },
		{ "{\"format\":1,\"points\":[{\"name\":\"a\",\"file\":\"b\",\"runs\":0}]}", "nothing was measured" },
		{ "{\"duration\":1,\"completed\":1,\"request_throughput\":1,\"slipring\":{\"format\":9}}",
		  "another version" },
	};
	char err[5000], *name;
	struct dirent *e;
	DIR *d;

	(void)state;
	unlink(in_dir("bad.html"));
	for (size_t i = 0; i < N(cases); i++) {
		put("bad.json", cases[i].file);
		name = (char *)(uintptr_t)in_dir("bad.json");
		assert_true(report_files(in_dir("bad.html"), &name, 1, err, sizeof(err)) < 0);
		if (!strstr(err, cases[i].says) || strchr(err, '\n'))
			fail_msg("\"%s\" does not say \"%s\"", err, cases[i].says);
	}
	put_result("one.json", "m", 1);
	name = (char *)(uintptr_t)in_dir("one.json");
	assert_true(report_files("/nowhere/at/all.html", &name, 1, err, sizeof(err)) < 0);
	assert_non_null(strstr(err, "/nowhere/at/all.html cannot be written: No such file"));
	d = opendir(dir);
	while ((e = readdir(d)))
		assert_null(strstr(e->d_name, "bad.html")); /* no partial file, and no temporary one */
	closedir(d);
}

/* Another user of the page's folder puts links there: they are not written through. */
static void links_beside_are_not_followed(void **state)
{
	static const char *const names[] = { "linked.html", "linked.csv" };
	char name[200], err[600], *file, was[40] = "";
	FILE *f;

	(void)state;
	put("victim", "untouched");
	put_result("one.json", "m", 1);
	for (size_t i = 0; i < N(names); i++) {
		snprintf(name, sizeof(name), "%s/%s.%ld", dir, names[i], (long)getpid());
		assert_int_equal(symlink("victim", name), 0);
	}
	file = strdup(in_dir("one.json"));
	assert_int_equal(report_files(in_dir("linked.html"), &file, 1, err, sizeof(err)), 0);
	free(file);
	f = fopen(in_dir("victim"), "r");
	assert_non_null(f);
	assert_non_null(fgets(was, sizeof(was), f));
	fclose(f);
	assert_string_equal(was, "untouched");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_shows_what_was_measured), cmocka_unit_test(empty_is_split),
		cmocka_unit_test(csv_has_each_request), cmocka_unit_test(a_bare_result_is_enough), cmocka_unit_test(texts_stay_texts),
		cmocka_unit_test(csv_begins_no_formula), cmocka_unit_test(numbers_are_short),
		cmocka_unit_test(bad_files_are_named), cmocka_unit_test(links_beside_are_not_followed),
	};
	char clean[200];
	int rc;

	if (!mkdtemp(dir))
		return 1;
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	return system(clean) || rc;
}
