/* LINK: adapters/http/metrics.c adapters/http/gate/quota.c adapters/http/json/out.c adapters/http/json/number.c core/instance/stats.c core/instance/log.c core/instance/knobs.c core/instance/refuse.c */
/* test_metrics.c - /metrics as a scraper reads it: the format, the samples from the daemon's page, and
 * those from the counters that all adapter processes share.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/http/state.h"

/* ---- stand-ins for what metrics.c calls ---- */

static bool up;
static const struct sr_model_info model;
static const char *const routes[] = { "/v1/completions", "/health", "none" };

static struct replica daemon_of_it;

static int n_daemons = 1;

const struct sr_model_info *engine_model(const struct engine *e) { (void)e; return up ? &model : NULL; }
bool engine_up(const struct engine *e) { (void)e; return up; }
int fleet_n(const struct fleet *f) { (void)f; return n_daemons; }
bool fleet_ready(const struct fleet *f, int i) { (void)f; return up && i < n_daemons; }
const struct replica *fleet_replica(const struct fleet *f, int i) { (void)f; (void)i; return &daemon_of_it; }
void fleet_look(struct fleet *f) { (void)f; }
const char *api_route_name(int i) { return i < 3 ? routes[i] : NULL; }
const char *api_route_method(int i) { return i == 0 ? "POST" : "GET"; }
bool api_route_counted(int i) { return i != 1; }

/* ---- reading ---- */

static struct config cfg;
static struct api_shared shared;

static char *scrape(struct api *a)
{
	static struct out o;

	out_reset(&o);
	metrics_write(a, &o);
	out_bytes(&o, "", 1);
	assert_false(o.failed);
	return o.p;
}

static struct api adapter(void)
{
	daemon_of_it.page = NULL;
	return (struct api){ .cfg = &cfg, .shared = &shared, .name = { "smol" } };
}

/* The value of the sample whose line begins with this name and these labels. */
static double value(const char *text, const char *begins)
{
	const char *s = text;
	size_t n = strlen(begins);

	while (s && strncmp(s, begins, n)) {
		s = strchr(s, '\n');
		s = s ? s + 1 : NULL;
	}
	if (!s)
		fail_msg("no sample %s", begins);
	s = strchr(s, ' ');
	return strtod(s, NULL);
}

/* Each family has one HELP and one TYPE before its samples, and no other's samples among them; each
 * histogram's buckets rise to +Inf, which is its count. */
static void check_format(const char *text)
{
	static char copy[1 << 18], seen[1 << 16];
	char family[128] = "", name[130], *line, *save;
	double last = 0, inf = -1;
	bool typed = false;

	assert_true(strlen(text) < sizeof(copy));
	strcpy(copy, text);
	seen[0] = 0;
	for (line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		size_t n = strcspn(line, "{ ");
		double v = strtod(strrchr(line, ' '), NULL);

		if (!strncmp(line, "# HELP ", 7)) {
			assert_int_equal(sscanf(line + 7, "%127s", family), 1);
			snprintf(name, sizeof(name), "|%s|", family);
			if (strstr(seen, name))
				fail_msg("%s comes twice", family);
			strcat(seen, name);
			typed = false;
		} else if (!strncmp(line, "# TYPE ", 7)) {
			assert_memory_equal(line + 7, family, strlen(family));
			typed = true;
		} else if (!typed || strncmp(line, family, strlen(family))) {
			fail_msg("under %s: %s", family, line);
		} else if (n > 7 && !strncmp(line + n - 7, "_bucket", 7)) {
			last = inf >= 0 ? 0 : last;
			assert_true(v >= last);
			last = v;
			inf = strstr(line, "le=\"+Inf\"") ? v : -1;
		} else if (n > 6 && !strncmp(line + n - 6, "_count", 6) && inf >= 0) {
			assert_true(v == inf);
			last = 0;
			inf = -1;
		}
	}
	assert_true(strlen(seen) > 1500);
}

/* ---- the tests ---- */

static void without_a_daemon(void **state)
{
	struct api a = adapter();
	const char *text;

	(void)state;
	up = false;
	text = scrape(&a);
	check_format(text);
	assert_true(value(text, "slipring_up{") == 0);
	assert_true(value(text, "vllm:num_requests_running{engine=\"0\",model_name=\"smol\"}") == 0);
	assert_true(value(text, "vllm:time_to_first_token_seconds_count{") == 0);
}

static void from_the_page(void **state)
{
	static struct stats_page p;
	struct api a = adapter();
	const char *text;

	(void)state;
	up = true;
	p.running = 3;
	p.waiting = 2;
	p.n_blocks = 8;
	p.blocks_used = 2;
	p.count.preemptions = 4;
	p.count.prompt_tokens = 100;
	p.count.prompt_cached = 30;
	p.count.ended[ENDED_LENGTH] = 7;
	for (int i = 0; i < N_EMPTY; i++)
		p.count.empty_ns[i] = (uint64_t)(i + 1) * 1000000000;
	p.max_model_len = 50;
	stats_observe(&p, HIST_TTFT, 0.25);
	stats_observe(&p, HIST_TTFT, 1e9);
	stats_observe(&p, HIST_PROMPT_TOKENS, 45);
	daemon_of_it.page = &p;
	text = scrape(&a);
	check_format(text);
	assert_true(value(text, "slipring_up{") == 1);
	assert_true(value(text, "vllm:num_requests_running{") == 3);
	assert_true(value(text, "vllm:num_requests_waiting{") == 2);
	assert_true(value(text, "vllm:kv_cache_usage_perc{") == 0.25);
	assert_true(value(text, "vllm:num_preemptions_total{") == 4);
	assert_true(value(text, "slipring_empty_seconds_total{doing=\"nobody\"") == 1 + EMPTY_NOBODY);
	assert_true(value(text, "slipring_empty_seconds_total{doing=\"tokenizing\"") == 1 + EMPTY_TOKENIZING);
	assert_true(value(text, "slipring_empty_seconds_total{doing=\"network\"") == 1 + EMPTY_NETWORK);
	assert_true(value(text, "vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"smol\","
	                  "source=\"local_compute\"}") == 70);
	assert_true(value(text, "vllm:request_success_total{engine=\"0\",finished_reason=\"length\"") == 7);
	assert_true(value(text, "vllm:time_to_first_token_seconds_count{") == 2);
	assert_true(value(text, "vllm:time_to_first_token_seconds_sum{") == 1e9 + 0.25);
	/* buckets of token counts end at the longest there can be */
	assert_true(value(text, "vllm:request_prompt_tokens_bucket{engine=\"0\",le=\"50.0\"") == 1);
	assert_null(strstr(text, "request_prompt_tokens_bucket{engine=\"0\",le=\"100.0\""));
}

/* Each of them under its own name, and vLLM's names that count nothing here where vLLM has them. */
static void every_counter(void **state)
{
	static const char *const order[] = { "vllm:estimated_flops_per_gpu_total", "vllm:prefix_cache_queries_total",
		"vllm:prefix_cache_hits_total", "vllm:external_prefix_cache_queries_total", "vllm:mm_cache_hits_total",
		"vllm:num_preemptions_total", "vllm:generation_tokens_total", "slipring_up",
		"slipring_clients_accepted_total", "slipring_sleeps_total", "slipring_cycle_max_seconds" };
	static struct stats_page p;
	struct api a = adapter();
	const char *text, *at;
	char start[100];
	int n = 0;

	(void)state;
	up = true;
	for (size_t i = 0; i < COUNTERS_NAMED; i++)
		counter_set(&p.count, i, 1000 + i);
	daemon_of_it.page = &p;
	at = text = scrape(&a);
	check_format(text);
	for (size_t i = 0; i < COUNTERS_NAMED; i++) {
		const struct counter *c = counter_info(i);

		if (!c->metric)
			continue;
		snprintf(start, sizeof(start), "%s{", c->metric);
		assert_true(value(text, start) == 1000 + (double)i);
		n++;
	}
	assert_int_equal(n, 27);
	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
		snprintf(start, sizeof(start), "\n%s{", order[i]);
		at = strstr(at, start);
		if (!at)
			fail_msg("%s: not there, or not behind the one before", order[i]);
	}
}

/* Each process answers for all of them. */
/* Each family has one head; each of the daemon's samples is there for each daemon, the adapter's once. */
static void of_all_daemons(void **state)
{
	static struct stats_page p;
	struct api a = adapter();
	const char *text;
	int heads = 0;

	(void)state;
	p.running = 3;
	daemon_of_it.page = &p;
	n_daemons = 3;
	text = scrape(&a);
	n_daemons = 1;
	check_format(text);
	for (const char *s = text; (s = strstr(s, "# TYPE vllm:num_requests_running ")); s++)
		heads++;
	assert_int_equal(heads, 1);
	assert_true(value(text, "vllm:num_requests_running{engine=\"0\"") == 3);
	assert_true(value(text, "vllm:num_requests_running{engine=\"2\"") == 3);
	assert_true(value(text, "slipring_engine_up{engine=\"1\"") == up);
	assert_non_null(strstr(text, "vllm:request_params_n_count{engine=\"0\""));
	assert_null(strstr(text, "vllm:request_params_n_count{engine=\"1\""));
	assert_non_null(strstr(text, "vllm:cache_config_info{block_size=\"0\",cache_dtype=\"auto\","
	                             "enable_prefix_caching=\"False\",engine=\"2\""));
}

static void of_all_processes(void **state)
{
	struct api a = adapter(), b = adapter();
	char *first;
	const char *second, *begin;

	(void)state;
	metrics_request_done(&a, 0, 200, 5000000, 100, 1000);
	metrics_request_done(&b, 0, 200, 700000000, 50, 500);
	metrics_request_done(&b, 0, 404, 90000000000, 1, 2);
	metrics_request_done(&a, 1, 200, 1, 1, 1);      /* status routes are not counted */
	metrics_request_done(&a, 2, 499, 1000, 9, 0);
	metrics_request_done(&a, 0, 0, 1, 1, 1);        /* no status: nothing was sent */
	first = strdup(scrape(&a));
	second = scrape(&b);
	check_format(second);
	begin = strstr(second, "# HELP http_requests_total");
	assert_non_null(begin);
	assert_string_equal(strstr(first, "# HELP http_requests_total"), begin);
	assert_true(value(second, "http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"2xx\"}") == 2);
	assert_true(value(second, "http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"4xx\"}") == 1);
	assert_true(value(second, "http_requests_total{handler=\"none\",method=\"GET\",status=\"4xx\"}") == 1);
	assert_null(strstr(second, "handler=\"/health\""));
	assert_true(value(second, "http_request_size_bytes_sum{handler=\"/v1/completions\"}") == 151);
	assert_true(value(second, "http_response_size_bytes_count{handler=\"/v1/completions\"}") == 3);
	assert_true(value(second, "http_request_duration_seconds_bucket{handler=\"/v1/completions\",le=\"0.1\"") == 1);
	assert_true(value(second, "http_request_duration_seconds_bucket{handler=\"/v1/completions\",le=\"+Inf\"") == 3);
	assert_true(value(second, "http_request_duration_highr_seconds_bucket{le=\"60.0\"}") == 3);
	assert_true(value(second, "http_request_duration_highr_seconds_count") == 4);
	free(first);
}

static void names_are_escaped(void **state)
{
	struct api a = adapter();

	(void)state;
	a.name[0] = "a\"b\\c\nd";
	assert_non_null(strstr(scrape(&a), "model_name=\"a\\\"b\\\\c\\nd\"} "));
}

/* endpoint-load-metrics-format: one whole header line. */
static void orca(void **state)
{
	static struct stats_page p = { .n_blocks = 4, .blocks_used = 1, .waiting = 5 };
	struct api a = adapter();
	char line[256];

	(void)state;
	daemon_of_it.page = &p;
	metrics_orca(&a, true, line, sizeof(line));
	assert_string_equal(line, "endpoint-load-metrics: JSON {\"named_metrics\": {\"kv_cache_usage_perc\": 0.2500, "
	                    "\"num_requests_waiting\": 5.0}}\r\n");
	metrics_orca(&a, false, line, sizeof(line));
	assert_string_equal(line, "endpoint-load-metrics: TEXT named_metrics.kv_cache_usage_perc=0.2500, "
	                    "named_metrics.num_requests_waiting=5.0\r\n");
	metrics_orca(&a, true, line, 40);
	assert_string_equal(line, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_a_daemon), cmocka_unit_test(from_the_page), cmocka_unit_test(every_counter),
		cmocka_unit_test(of_all_processes), cmocka_unit_test(of_all_daemons), cmocka_unit_test(names_are_escaped), cmocka_unit_test(orca),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
