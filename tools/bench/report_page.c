/* report_page.c - the page: its order, and the words around the pictures. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/instance/config.h"
#include "core/instance/fresh.h"
#include "report.h"
#include "report_style.h"

static void page_text(const struct report *p, const char *s) { report_text(p->f, s); }

/* ---- head -------------------------------------------------------------------------------------- */

static void page_head(const struct report *p)
{
	const json_t *run = json_array_get(p->of[0].runs, 0), *server = report_server(&p->of[0]);
	const char *model = report_field(run, "model_id"), *slash = strrchr(model, '/'), *date =
	        report_field(run, "date");
	static const char *const what[][2] = { { "request_rate", "request rate" },
	                                      { "max_concurrency", "concurrency" },
	                                       { "num_prompts", "requests" }, { "burstiness", "burstiness" } };
	char v[200];
	const char *mark = "";

	fprintf(p->f, "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\n"
	        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
	        "'unsafe-inline'; "
	        "img-src data:\">\n<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
	        "<link rel=\"icon\" href=\"data:,\">\n<title>Benchmark of ");
	page_text(p, slash && slash[1] ? slash + 1 : model);
	fprintf(p->f, "</title>\n<style>\n");
	for (size_t i = 0; i < sizeof(report_style) / sizeof(report_style[0]); i++)
		fputs(report_style[i], p->f);
	fprintf(p->f, "</style></head>\n<body><main>\n<header><h1>");
	page_text(p, slash && slash[1] ? slash + 1 : *model ? model : "Benchmark");
	fprintf(p->f, "</h1>\n<p>");
	if (*report_field(server, "device")) {
		fprintf(p->f, "on ");
		page_text(p, report_field(server, "device"));
		mark = ", ";
	}
	if (*date) {
		fputs(mark, p->f);
		if (strlen(date) == 15 && date[8] == '-')
			snprintf(v, sizeof(v), "%.4s-%.2s-%.2s %.2s:%.2s", date, date + 4, date + 6, date + 9, date +
			         11);
		else
			snprintf(v, sizeof(v), "%.50s", date);
		page_text(p, v);
		mark = ", ";
	}
	for (int i = 0; i < 4; i++) {
		const json_t *w = json_object_get(run, what[i][0]);

		if (!w || json_is_null(w) || (p->sweep && i < 2) || (i == 3 && json_number_value(w) == 1.0))
			continue;
		report_value(v, sizeof(v), w);
		fprintf(p->f, "%s%s ", mark, what[i][1]);
		page_text(p, v);
		mark = ", ";
	}
	fprintf(p->f, "</p></header>\n");
}

static void sentence(const struct report *p)
{
	const json_t *server = report_server(&p->of[0]);
	const char *verdict = report_field(p->comparison, "verdict"), *says = report_field(p->comparison,
	        "says");

	if (p->comparison) {
		fprintf(p->f, "<p class=\"says %s\"><b>A</b> ", !strcmp(verdict, "worse") ? "worse" :
		        !strcmp(verdict, "better") ? "better" : "");
		page_text(p, p->of[0].name);
		fprintf(p->f, ", <b>B</b> ");
		page_text(p, p->of[1].name);
		fprintf(p->f, ".<br>");
		page_text(p, says);
		fprintf(p->f, "</p>\n");
	} else if (*report_field(server, "says") && !p->sweep) {
		fprintf(p->f, "<p class=\"says\">");
		page_text(p, report_field(server, "says"));
		fprintf(p->f, ".</p>\n");
	}
}

static void tile(const struct report *p, const char *label, double v, const char *unit, const char *under)
{
	char number[40];

	if (!isfinite(v))
		return;
	report_number(number, sizeof(number), v);
	fprintf(p->f, "<li><span>%s</span><b>%s <small>%s</small></b><span>", label, number, unit);
	page_text(p, under);
	fprintf(p->f, "</span></li>\n");
}

static void under(char *out, size_t n, const char *before, double v, const char *after)
{
	char number[40];

	report_number(number, sizeof(number), v);
	snprintf(out, n, "%s%s%s", isfinite(v) ? before : "", isfinite(v) ? number : "", isfinite(v) ? after :
	         "");
}

/* Write the main numbers of the only result, of the second of two compared, or of a sweep's fastest point. */
static void tiles(const struct report *p)
{
	const struct report_of *of = &p->of[p->comparison ? 1 : 0];
	char s[200], t[200];

	for (size_t i = 0; p->sweep && i < p->n; i++)
		if (report_mean(&p->of[i], "output_throughput") > report_mean(of, "output_throughput"))
			of = &p->of[i];
	if (p->sweep) {
		fprintf(p->f, "<p class=\"says\">%zu points. Most tokens a second came at <b>", p->n);
		page_text(p, of->name);
		fprintf(p->f, "</b>: ");
		page_text(p, *report_field(report_server(of), "says") ? report_field(report_server(of), "says") :
		          "these are its numbers");
		fprintf(p->f, ".</p>\n");
	}
	fprintf(p->f, "<ul class=\"tiles\">\n");
	under(s, sizeof(s), "with the prompts ", report_mean(of, "total_token_throughput"), " tok/s");
	tile(p, "Output throughput", report_mean(of, "output_throughput"), "tok/s", s);
	under(s, sizeof(s), "", report_mean(of, "completed"), " answered");
	under(t, sizeof(t), ", ", report_mean(of, "failed"), " failed");
	snprintf(s + strlen(s), sizeof(s) - strlen(s), "%s", t);
	tile(p, "Requests", report_mean(of, "request_throughput"), "a second", s);
	tile(p, "Goodput", report_mean(of, "request_goodput"), "a second", "within every bound");
	under(s, sizeof(s), "median; P99 ", report_mean(of, "p99_ttft_ms"), " ms");
	tile(p, "Time to first token", report_mean(of, "median_ttft_ms"), "ms", s);
	under(s, sizeof(s), "mean; P99 ", report_mean(of, "p99_tpot_ms"), " ms");
	tile(p, "Time per token", report_mean(of, "mean_tpot_ms"), "ms", s);
	under(s, sizeof(s), "arithmetic ", report_reached(of, "arithmetic") * 100, " %");
	tile(p, "Memory bandwidth used", report_reached(of, "memory") * 100, "%", s);
	fprintf(p->f, "</ul>\n");
}

/* ---- hardware ---------------------------------------------------------------------------------- */

static void bar(const struct report *p, const char *name, double share, const char *amount, int colour)
{
	fprintf(p->f, "<div><dt>");
	page_text(p, name);
	fprintf(p->f, "</dt><dd><svg viewBox=\"0 0 100 4\" preserveAspectRatio=\"none\" aria-hidden=\"true\">"
	        "<rect class=\"n\" fill=\"currentColor\" opacity=\".45\" width=\"100\" height=\"4\"/>"
	        "<rect class=\"c%d\" fill=\"currentColor\" width=\"%.2f\" height=\"4\"/></svg></dd><dd>%.1f %% "
	        "<small>", colour % 8, fmin(fmax(share * 100, 0), 100), share * 100);
	page_text(p, amount);
	fprintf(p->f, "</small></dd></div>\n");
}

static void hardware(const struct report *p)
{
	static const struct { const char *key, *name, *is, *most; } what[] = {
		{ "memory", "memory bandwidth", "memory_bytes_per_s", "memory_bytes_per_s" },
		{ "arithmetic", "arithmetic", "ops_per_s", NULL },
		{ "pcie", "PCIe", "pcie_bytes_per_s", "pcie_bytes_per_s" },
	};
	bool begun = false;
	char name[300], amount[100];

	for (size_t i = 0; !p->sweep && i < p->n; i++) {
		const json_t *server = report_server(&p->of[i]), *most = json_object_get(server, "ceilings");

		for (int k = 0; k < 3; k++) {
			double share = report_reached(&p->of[i], what[k].key), is =
			        json_number_value(json_object_get(server, what[k].is));

			if (isnan(share))
				continue;
			if (!begun)
				fprintf(p->f, "<h2>How far from the hardware</h2><p>What the engine's batches needed at "
				        "least, by "
				        "their bytes and operations, against what this machine's memory and cores reach at "
				        "most; while something was being computed.</p>\n<dl class=\"bars\">\n");
			begun = true;
			if (p->n > 1)
				snprintf(name, sizeof(name), "%.200s: %s", p->of[i].name, what[k].name);
			else
				snprintf(name, sizeof(name), "%s", what[k].name);
			if (what[k].most)
				snprintf(amount, sizeof(amount), "%.1f of %.1f GB/s", is / 1e9,
				         json_number_value(json_object_get(most, what[k].most)) / 1e9);
			else
				snprintf(amount, sizeof(amount), "%.1f Gop/s", is / 1e9);
			bar(p, name, share, amount, k);
		}
	}
	if (begun)
		fprintf(p->f, "</dl>\n");
}

/* ---- all numbers ------------------------------------------------------------------------------- */

static const struct { const char *key, *label; } rows[] = {
	{ "completed", "Successful requests" }, { "failed", "Failed requests" }, { "duration", "Duration (s)" },
	{ "total_input_tokens", "Input tokens" }, { "total_output_tokens", "Generated tokens" },
	{ "request_throughput", "Request throughput (req/s)" }, { "request_goodput", "Request goodput (req/s)"
	        },
	{ "output_throughput", "Output throughput (tok/s)" }, { "total_token_throughput",
	                                                       "Total throughput (tok/s)" },
	{ "mean_ttft_ms", "Mean TTFT (ms)" }, { "median_ttft_ms", "Median TTFT (ms)" }, { "p99_ttft_ms",
	        "P99 TTFT (ms)" },
	{ "mean_tpot_ms", "Mean TPOT (ms)" }, { "median_tpot_ms", "Median TPOT (ms)" }, { "p99_tpot_ms",
	        "P99 TPOT (ms)" },
	{ "mean_itl_ms", "Mean ITL (ms)" }, { "median_itl_ms", "Median ITL (ms)" }, { "p99_itl_ms",
	        "P99 ITL (ms)" },
	{ "mean_e2el_ms", "Mean E2EL (ms)" }, { "p99_e2el_ms", "P99 E2EL (ms)" },
};
#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

static void page_change(const struct report *p, const char *key)
{
	const json_t *metrics = json_object_get(p->comparison, "metrics");
	json_t *m;
	size_t i;

	json_array_foreach(metrics, i, m) {
		const char *verdict = report_field(m, "verdict");

		if (strcmp(report_field(m, "metric"), key))
			continue;
		fprintf(p->f, "<td>%+.1f %%</td><td class=\"%s\">",
		        json_number_value(json_object_get(m, "change_percent")), !strcmp(verdict, "better") ?
		        "better" : !strcmp(verdict, "worse") ? "worse" : "");
		page_text(p, verdict);
		fprintf(p->f, "</td>");
		return;
	}
	fprintf(p->f, "<td></td><td></td>");
}

static void numbers(const struct report *p)
{
	char number[40];

	fprintf(p->f, "<h2>All numbers</h2>\n<div class=\"scroll\" tabindex=\"0\"><table><caption>Means over "
	        "the runs; defined " "as by vllm bench serve.</caption>\n<thead><tr><th>");
	for (size_t i = 0; i < p->n; i++) {
		fprintf(p->f, "</th><th class=\"name\" scope=\"col\">");
		if (p->sweep)
			fprintf(p->f, "%zu. ", i + 1);
		page_text(p, p->of[i].name);
	}
	fprintf(p->f, "</th>%s</tr></thead>\n<tbody>\n", p->comparison ? "<th>change</th><th>verdict</th>" :
	        "");
	for (size_t r = 0; r < N_ROWS; r++) {
		bool any = false;

		for (size_t i = 0; i < p->n; i++)
			any = any || isfinite(report_mean(&p->of[i], rows[r].key));
		if (!any)
			continue;
		fprintf(p->f, "<tr><th scope=\"row\">%s</th>", rows[r].label);
		for (size_t i = 0; i < p->n; i++) {
			report_number(number, sizeof(number), report_mean(&p->of[i], rows[r].key));
			fprintf(p->f, "<td>%s</td>", number);
		}
		if (p->comparison)
			page_change(p, rows[r].key);
		fprintf(p->f, "</tr>\n");
	}
	fprintf(p->f, "</tbody></table></div>\n");
}

static void settings(const struct report *p)
{
	const json_t *server = report_server(&p->of[0]), *most = json_object_get(server, "ceilings");
	const char *key, *unknown = report_field(most, "unknown");
	json_t *v;
	char s[200];

	fprintf(p->f, "<footer><p>");
	if (server && !p->sweep) {
		fprintf(p->f, "Settings of the daemon: ");
		json_object_foreach((json_t *)(uintptr_t)json_object_get(server, "knobs"), key, v) {
			report_value(s, sizeof(s), v);
			page_text(p, key);
			fputc(' ', p->f);
			page_text(p, s);
			fprintf(p->f, "; ");
		}
		fprintf(p->f, "KV cache of %lld blocks. "
		        "", (long long)json_integer_value(json_object_get(server, "kv_blocks")));
	}
	if (*unknown) {
		fprintf(p->f, "The hardware's ceilings are not known: ");
		page_text(p, unknown);
		fprintf(p->f, ". ");
	} else if (most) {
		fprintf(p->f, "Ceilings: %.1f GB/s of memory, %.0f Gop/s with bytes, %.0f with floats, on %d cores "
		        "of ", json_number_value(json_object_get(most, "memory_bytes_per_s")) / 1e9,
		        json_number_value(json_object_get(most, "int8_ops_per_s")) / 1e9,
		        json_number_value(json_object_get(most, "float_ops_per_s")) / 1e9,
		        (int)json_integer_value(json_object_get(most, "cores")));
		page_text(p, report_field(most, "processor"));
		fprintf(p->f, ", ");
		page_text(p, report_field(most, "date"));
		fprintf(p->f, ". ");
	}
	fprintf(p->f, "Made by slipring %s; this page asks nothing of any server.</p></footer>\n",
	        SLIPRING_VERSION);
}

/* ---- files ------------------------------------------------------------------------------------- */

static void page(const struct report *p)
{
	page_head(p);
	sentence(p);
	tiles(p);
	if (p->sweep)
		report_draw_sweep(p);
	report_draw_latencies(p);
	report_draw_time(p);
	report_draw_limits(p);
	hardware(p);
	numbers(p);
	settings(p);
	fprintf(p->f, "</main></body></html>\n");
}

static void write_both(const struct report *p, FILE *html, FILE *csv)
{
	struct report q = *p;

	q.f = html;
	page(&q);
	report_csv(csv, p->of, p->n);
}

int report_write(const char *path, const struct report_of *of, size_t n, const json_t *comparison,
                 char *err, size_t errlen)
{
	struct report p = { .of = of, .n = n, .comparison = comparison, .sweep = of[0].point != NULL,
	                  .data = calloc(n, sizeof(*p.data)) };
	struct fresh w[2] = { { .f = NULL }, { .f = NULL } };
	char csv[PATH_MAX];
	size_t len = strlen(path), stem = len > 5 && !strcmp(path + len - 5, ".html") ? len - 5 : len;
	int rc = p.data && snprintf(csv, sizeof(csv), "%.*s.csv", (int)stem, path) < (int)sizeof(csv) ? 0 :
	        -ENOMEM;

	for (size_t i = 0; !rc && i < n; i++)
		rc = report_data(&p.data[i], &of[i]);
	for (int k = 0; !rc && k < 2; k++)
		rc = fresh_open(&w[k], AT_FDCWD, k ? csv : path, 0666);
	if (!rc)
		write_both(&p, w[0].f, w[1].f);
	for (int k = 0; k < 2; k++) {
		if (!rc)
			rc = fresh_done(&w[k]);
		fresh_drop(&w[k]);
	}
	for (size_t i = 0; p.data && i < n; i++)
		report_data_free(&p.data[i]);
	free(p.data);
	if (rc)
		snprintf(err, errlen, "%s cannot be written: %s", path, strerror(-rc));
	return rc;
}
