/* report_page.c - the page: what stands where, and the words around the pictures. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/config.h"
#include "core/sched_limits.h"
#include "report.h"
#include "report_style.h"

#define CURVE  200               /* points of a distribution */
#define MOST   8                 /* distributions in one picture: as many as there are colours */
#define REACH  2.5               /* a ceiling further away than so many times the highest is only told */

struct page {
	FILE *f;
	const struct report_of *of;
	struct report_data *data;    /* [n] */
	size_t n;
	const json_t *comparison;
	bool sweep;
};

static void say(const struct page *p, const char *s) { report_text(p->f, s); }

static const char *text_of(const json_t *j, const char *key)
{
	const char *s = json_string_value(json_object_get(j, key));

	return s ? s : "";
}

/* A value as one would write it: a text, or a number. */
static void value_of(char *out, size_t n, const json_t *v)
{
	if (json_is_string(v))
		snprintf(out, n, "%s", json_string_value(v));
	else if (json_is_number(v))
		report_number(out, n, json_number_value(v));
	else
		snprintf(out, n, "-");
}

static double share_of(const json_t *server, const char *key)
{
	const json_t *v = json_object_get(json_object_get(server, "reached"), key);

	return json_is_number(v) ? json_number_value(v) : NAN;
}

/* ---- head -------------------------------------------------------------------------------------- */

static void head(const struct page *p)
{
	const json_t *run = json_array_get(p->of[0].runs, 0), *server = report_server(&p->of[0]);
	const char *model = text_of(run, "model_id"), *slash = strrchr(model, '/'), *date = text_of(run, "date");
	static const char *const what[][2] = { { "request_rate", "request rate" }, { "max_concurrency", "concurrency" },
	                                       { "num_prompts", "requests" }, { "burstiness", "burstiness" } };
	char v[200];
	const char *mark = "";

	fprintf(p->f, "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\n"
	        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
	        "img-src data:\">\n<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
	        "<link rel=\"icon\" href=\"data:,\">\n<title>Benchmark of ");
	say(p, slash && slash[1] ? slash + 1 : model);
	fprintf(p->f, "</title>\n<style>\n");
	for (size_t i = 0; i < sizeof(report_style) / sizeof(report_style[0]); i++)
		fputs(report_style[i], p->f);
	fprintf(p->f, "</style></head>\n<body><main>\n<header><h1>");
	say(p, slash && slash[1] ? slash + 1 : *model ? model : "Benchmark");
	fprintf(p->f, "</h1>\n<p>");
	if (*text_of(server, "device")) {
		fprintf(p->f, "on ");
		say(p, text_of(server, "device"));
		mark = ", ";
	}
	if (*date) {
		fputs(mark, p->f);
		if (strlen(date) == 15 && date[8] == '-')
			snprintf(v, sizeof(v), "%.4s-%.2s-%.2s %.2s:%.2s", date, date + 4, date + 6, date + 9, date + 11);
		else
			snprintf(v, sizeof(v), "%.50s", date);
		say(p, v);
		mark = ", ";
	}
	for (int i = 0; i < 4; i++) {
		const json_t *w = json_object_get(run, what[i][0]);

		if (!w || json_is_null(w) || (p->sweep && i < 2) || (i == 3 && json_number_value(w) == 1.0))
			continue;
		value_of(v, sizeof(v), w);
		fprintf(p->f, "%s%s ", mark, what[i][1]);
		say(p, v);
		mark = ", ";
	}
	fprintf(p->f, "</p></header>\n");
}

static void sentence(const struct page *p)
{
	const json_t *server = report_server(&p->of[0]);
	const char *verdict = text_of(p->comparison, "verdict"), *says = text_of(p->comparison, "says");

	if (p->comparison) {
		fprintf(p->f, "<p class=\"says %s\"><b>A</b> ", !strcmp(verdict, "worse") ? "worse" :
		        !strcmp(verdict, "better") ? "better" : "");
		say(p, p->of[0].name);
		fprintf(p->f, ", <b>B</b> ");
		say(p, p->of[1].name);
		fprintf(p->f, ".<br>");
		say(p, says);
		fprintf(p->f, "</p>\n");
	} else if (*text_of(server, "says") && !p->sweep) {
		fprintf(p->f, "<p class=\"says\">");
		say(p, text_of(server, "says"));
		fprintf(p->f, ".</p>\n");
	}
}

static void tile(const struct page *p, const char *label, double v, const char *unit, const char *under)
{
	char number[40];

	if (!isfinite(v))
		return;
	report_number(number, sizeof(number), v);
	fprintf(p->f, "<li><span>%s</span><b>%s <small>%s</small></b><span>", label, number, unit);
	say(p, under);
	fprintf(p->f, "</span></li>\n");
}

static void under(char *out, size_t n, const char *before, double v, const char *after)
{
	char number[40];

	report_number(number, sizeof(number), v);
	snprintf(out, n, "%s%s%s", isfinite(v) ? before : "", isfinite(v) ? number : "", isfinite(v) ? after : "");
}

/* Of one result; of the second of two, which is the one in question; of the fastest point of a sweep. */
static void tiles(const struct page *p)
{
	const struct report_of *of = &p->of[p->comparison ? 1 : 0];
	char s[200], t[200];

	for (size_t i = 0; p->sweep && i < p->n; i++)
		if (report_mean(&p->of[i], "output_throughput") > report_mean(of, "output_throughput"))
			of = &p->of[i];
	if (p->sweep) {
		fprintf(p->f, "<p class=\"says\">%zu points. Most tokens a second came at <b>", p->n);
		say(p, of->name);
		fprintf(p->f, "</b>: ");
		say(p, *text_of(report_server(of), "says") ? text_of(report_server(of), "says") : "these are its numbers");
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
	under(s, sizeof(s), "arithmetic ", share_of(report_server(of), "arithmetic") * 100, " %");
	tile(p, "Memory bandwidth used", share_of(report_server(of), "memory") * 100, "%", s);
	fprintf(p->f, "</ul>\n");
}

static void legend(const struct page *p, const size_t *pick, size_t n)
{
	if (n < 2)
		return;
	fprintf(p->f, "<ul class=\"legend\">");
	for (size_t i = 0; i < n; i++) {
		fprintf(p->f, "<li class=\"c%zu\"><span>", i % 8);
		if (p->comparison)
			fprintf(p->f, "%c  ", 'A' + (int)i);
		say(p, p->of[pick ? pick[i] : i].name);
		fprintf(p->f, "</span></li>");
	}
	fprintf(p->f, "</ul>\n");
}

/* ---- latencies --------------------------------------------------------------------------------- */

static double quantile(const struct report_data *d, int q, double share)
{
	double at = share * (double)(d->n[q] - 1);
	size_t i = (size_t)at;

	return i + 1 < d->n[q] ? d->v[q][i] + (d->v[q][i + 1] - d->v[q][i]) * (at - (double)i) : d->v[q][d->n[q] - 1];
}

static void distribution(const struct page *p, int q, const size_t *pick, size_t n)
{
	static const char *const title[N_REPORT] = { "Time to first token", "Time per output token",
	                                             "Inter-token latency", "End-to-end latency" };
	static const double marks[] = { 0.5, 0.9, 0.99 };
	double x[CURVE + 1], y[CURVE + 1], low = INFINITY, high = 0, most = 0;
	char tip[400], number[40];
	struct plot plot = { .f = p->f, .title = title[q], .y_label = "share of them that were faster", .x_label = "ms",
	                     .y = { 0, 1 }, .percent = true, .say = tip };

	snprintf(tip, sizeof(tip), "Cumulative distribution");
	for (size_t i = 0; i < n; i++) {
		const struct report_data *d = &p->data[pick[i]];

		if (!d->n[q])
			continue;
		low = fmin(low, quantile(d, q, 0.02));
		high = fmax(high, quantile(d, q, 0.995));
		most = fmax(most, quantile(d, q, 1));
		report_number(number, sizeof(number), quantile(d, q, 0.5));
		snprintf(tip + strlen(tip), sizeof(tip) - strlen(tip), "; median %.30s ms", number);
	}
	if (!(high > 0))
		return;
	low = fmax(low, high * 1e-3);
	plot.log_x = high > 20 * low;
	plot.x[0] = plot.log_x ? low * 0.9 : 0;
	plot.x[1] = fmax(fmin(most, high * 1.3), plot.x[0] * 1.01 + 1e-6);
	plot_begin(&plot);
	for (size_t i = 0; i < n; i++) {
		const struct report_data *d = &p->data[pick[i]];

		for (int k = 0; k <= CURVE && d->n[q]; k++) {
			x[k] = quantile(d, q, (double)k / CURVE);
			y[k] = (double)k / CURVE;
		}
		if (d->n[q])
			plot_line(&plot, x, y, CURVE + 1, (int)i, n == 1);
	}
	for (size_t i = 0; i < n; i++)
		for (int k = 0; k < 3 && p->data[pick[i]].n[q]; k++) {
			double v = quantile(&p->data[pick[i]], q, marks[k]);

			report_number(number, sizeof(number), v);
			snprintf(tip, sizeof(tip), "P%.0f %s ms", marks[k] * 100, number);
			if (n == 1)
				plot_label(&plot, v, marks[k] - 0.07, tip);
			snprintf(tip, sizeof(tip), "%.200s: P%.0f %s ms", p->of[pick[i]].name, marks[k] * 100, number);
			plot_dot(&plot, v, marks[k], (int)i, tip);
		}
	plot_end(&plot);
}

static void latencies(const struct page *p)
{
	size_t pick[MOST], n = 0, with = 0;

	for (size_t i = 0; i < p->n; i++)
		with += p->data[i].n[REPORT_TTFT] > 0;
	for (size_t i = 0, k = 0; i < p->n && n < MOST; i++)
		if (p->data[i].n[REPORT_TTFT] && k++ * MOST >= n * (with > MOST ? with : MOST))
			pick[n++] = i;
	if (!with) {
		fprintf(p->f, "<h2>Latencies</h2><p>The files hold no single requests; with --save-detailed their "
		        "distributions and their course over time would stand here.</p>\n");
		return;
	}
	fprintf(p->f, "<h2>Latencies</h2><p>How many were at least so fast. Marked are P50, P90 and P99%s.</p>\n",
	        with > MOST ? "; eight of the points are shown" : "");
	legend(p, pick, n);
	fprintf(p->f, "<div class=\"grid\">\n");
	for (int q = 0; q < N_REPORT; q++)
		distribution(p, q, pick, n);
	fprintf(p->f, "</div>\n");
}

/* ---- over time --------------------------------------------------------------------------------- */

/* Tokens a second if the hardware that is nearest to its end were at it; NAN: not known. */
static double ceiling(const struct report_of *of, const char **what)
{
	const json_t *server = report_server(of);
	double memory = share_of(server, "memory"), arithmetic = share_of(server, "arithmetic");
	double busy = json_number_value(json_object_get(server, "busy_seconds"));
	double tokens = json_number_value(json_object_get(server, "generated_tokens"));

	*what = arithmetic > memory ? "arithmetic" : "memory bandwidth";
	return isnan(memory) || isnan(arithmetic) || !(busy > 0) ? NAN : tokens / busy / fmax(memory, arithmetic);
}

static void draw_ceiling(const struct plot *plot, double at, const char *what)
{
	char label[100], number[40];

	if (!isfinite(at) || at > plot->y[1])
		return;
	report_number(number, sizeof(number), at);
	snprintf(label, sizeof(label), "ceiling: %s, %s tok/s", what, number);
	plot_rule(plot, false, at, label);
}

static void bins(const struct page *p, bool tokens)
{
	const char *what = "";
	double top = 0, wide = 0, limit = ceiling(&p->of[0], &what), *x;
	char tell[200] = "tokens a second", number[40];
	struct plot plot = { .f = p->f, .title = tokens ? "Output throughput" : "Requests under way",
	                     .y_label = tokens ? tell : "at a time", .x_label = "seconds since the first request",
	                     .say = tell };

	for (size_t i = 0; i < p->n; i++) {
		const struct report_data *d = &p->data[i];

		wide = fmax(wide, (double)d->n_bins * d->bin);
		for (size_t k = 0; k < d->n_bins; k++)
			top = fmax(top, tokens ? d->tokens_s[k] : d->under_way[k]);
	}
	if (tokens && isfinite(limit)) {
		report_number(number, sizeof(number), limit);
		if (limit > REACH * top)
			snprintf(tell, sizeof(tell), "tokens a second; the ceiling, by %s, is at %s", what, number);
		else
			top = fmax(top, limit);
	}
	plot.x[1] = fmax(wide, 0.1);
	plot.y[1] = fmax(top, 1e-9) * 1.08;
	plot_begin(&plot);
	for (size_t i = 0; i < p->n; i++) {
		const struct report_data *d = &p->data[i];

		x = malloc((d->n_bins + 1) * sizeof(*x));
		for (size_t k = 0; x && k < d->n_bins; k++)
			x[k] = ((double)k + 0.5) * d->bin;
		if (x)
			plot_line(&plot, x, tokens ? d->tokens_s : d->under_way, d->n_bins, (int)i, p->n == 1);
		free(x);
	}
	if (tokens)
		draw_ceiling(&plot, limit, what);
	plot_end(&plot);
}

static void over_time(const struct page *p)
{
	if (p->sweep || !p->data[0].n_bins)
		return;
	fprintf(p->f, "<h2>Over time</h2><p>The first run, counted where the answers arrive. The ceiling is what this "
	        "work would reach if the hardware that is nearest to its end were all used.</p>\n");
	legend(p, NULL, p->n);
	fprintf(p->f, "<div class=\"grid\">\n");
	bins(p, true);
	bins(p, false);
	fprintf(p->f, "</div>\n");
}

/* ---- limits ------------------------------------------------------------------------------------ */

static const int why_colour[N_WHY] = { -1, 0, 1, 2, 3, 4, 5, 6 };
static const int bound_colour[N_BOUND] = { -1, 4, 1, 0, 6 };

struct axis { const char *key, *seconds, *title, *label; int n; const char *(*name)(int); const int *colour; };
static const struct axis axes[] = {
	{ "why", "why_seconds", "Why no more rows", "what kept more requests out of a step", N_WHY, sched_why_name,
	  why_colour },
	{ "bound", "bound_seconds", "What bound the time", "what the device did",
	  N_BOUND, sched_bound_name, bound_colour },
};

static double part(const json_t *seconds, const struct axis *a, int k)
{
	double sum = 0;

	for (int i = 0; i < a->n; i++)
		sum += json_number_value(json_object_get(seconds, a->name(i)));
	return sum > 0 ? json_number_value(json_object_get(seconds, a->name(k))) / sum : 0;
}

/* Those of an axis that were met at all.  malloc'ed; NULL: no memory, no legend. */
static char *limit_legend(const struct report_of *of, size_t points, const struct axis *a)
{
	char *html = NULL;
	size_t n;
	FILE *f = open_memstream(&html, &n);

	if (!f)
		return NULL;
	fprintf(f, "<ul class=\"legend\">");
	for (int k = 0; k < a->n; k++) {
		double v = 0;

		for (size_t i = 0; i < points; i++)
			v = fmax(v, part(json_object_get(report_server(&of[i]), a->seconds), a, k));

		if (v < 0.0005)
			continue;
		fprintf(f, "<li class=\"%s\"><span>%s", plot_class(a->colour[k]), a->name(k));
		if (points == 1)
			fprintf(f, " %.1f %%", v * 100);
		fprintf(f, "</span></li>");
	}
	fprintf(f, "</ul>\n");
	fclose(f);
	return html;
}

/* One axis as bands that fill all of the time. */
static void bands(const struct page *p, const struct report_of *of_one, const struct axis *a)
{
	const json_t *server = report_server(of_one), *time = json_object_get(server, "over_time"), *at = json_object_get(time, "at"),
	             *width = json_object_get(time, "seconds"), *of = json_object_get(time, a->key);
	size_t n = json_array_size(at);
	char *legend = limit_legend(of_one, 1, a);
	double *x = calloc(n + 1, sizeof(*x)), *below = calloc(n + 1, sizeof(*below)), *above = calloc(n + 1, sizeof(*above));
	struct plot plot = { .f = p->f, .title = a->title, .y_label = a->label, .x_label = "seconds since the first request",
	                     .y = { 0, 1 }, .percent = true, .legend = legend, .say = "Shares of the time, stacked" };

	if (x && below && above && n) {
		for (size_t i = 0; i < n; i++)
			x[i] = json_number_value(json_array_get(at, i));
		x[n] = x[n - 1] + json_number_value(json_array_get(width, n - 1));
		plot.x[1] = fmax(x[n], 0.01);
		plot_begin(&plot);
		for (int k = 0; k < a->n; k++) {
			bool any = false;

			for (size_t i = 0; i < n; i++) {
				double all = 0, v = json_number_value(json_array_get(json_object_get(of, a->name(k)), i));

				for (int m = 0; m < a->n; m++)
					all += json_number_value(json_array_get(json_object_get(of, a->name(m)), i));
				any = any || v > 0;
				above[i] = below[i] + (all > 0 ? v / all : 0);
			}
			if (any)
				plot_layer(&plot, x, below, above, n, a->colour[k], a->name(k));
			memcpy(below, above, n * sizeof(*below));
		}
		plot_end(&plot);
	}
	free(x);
	free(below);
	free(above);
	free(legend);
}

/* A column for each point of a sweep. */
static void columns(const struct page *p, const struct axis *a)
{
	struct plot plot = { .f = p->f, .title = a->title, .y_label = a->label, .x_label = "point, by its number below",
	                     .x = { 0.4, (double)p->n + 0.6 }, .y = { 0, 1 }, .percent = true,
	                     .say = "Shares of the time at each point, stacked" };
	char tip[400], *legend = limit_legend(p->of, p->n, a);

	plot.legend = legend;
	plot_begin(&plot);
	for (size_t i = 0; i < p->n; i++) {
		const json_t *seconds = json_object_get(report_server(&p->of[i]), a->seconds);
		double x[2] = { (double)i + 0.62, (double)i + 1.38 }, below[1] = { 0 }, above[1];

		for (int k = 0; seconds && k < a->n; k++) {
			double v = part(seconds, a, k);

			above[0] = below[0] + v;
			snprintf(tip, sizeof(tip), "%.300s: %s %.1f %%", p->of[i].name, a->name(k), v * 100);
			if (v > 0)
				plot_layer(&plot, x, below, above, 1, a->colour[k], tip);
			below[0] = above[0];
		}
	}
	plot_end(&plot);
	free(legend);
}

/* At each point of a sweep, under the ceiling. */
static void reached(const struct page *p)
{
	static const char *const key[] = { "memory", "arithmetic" };
	struct plot plot = { .f = p->f, .title = "Used of the hardware", .y_label = "while something was computed",
	                     .x_label = "point, by its number below", .x = { 0.4, (double)p->n + 0.6 }, .y = { 0, 1.12 },
	                     .percent = true, .say = "Memory bandwidth and arithmetic at each point, below 100 %",
	                     .legend = "<ul class=\"legend\"><li class=\"c0\"><span>memory bandwidth</span></li>"
	                     "<li class=\"c1\"><span>arithmetic</span></li></ul>" };
	double x[256], y[256];
	char tip[400];

	plot_begin(&plot);
	plot_rule(&plot, false, 1, "ceiling of the hardware");
	for (int k = 0; k < 2; k++) {
		size_t n = 0;

		for (size_t i = 0; i < p->n && n < 256; i++) {
			double v = share_of(report_server(&p->of[i]), key[k]);

			if (isnan(v))
				continue;
			x[n] = (double)i + 1;
			y[n++] = v;
			snprintf(tip, sizeof(tip), "%.300s: %s %.1f %%", p->of[i].name, key[k], v * 100);
			plot_dot(&plot, (double)i + 1, v, k, tip);
		}
		plot_line(&plot, x, y, n, k, false);
	}
	plot_end(&plot);
}

static void limits(const struct page *p)
{
	bool any = false;

	for (size_t i = 0; i < p->n; i++)
		any = any || report_server(&p->of[i]);
	if (!any)
		return;
	fprintf(p->f, "<h2>What limited it</h2><p>Each step of the scheduler ran into one limit on each of two axes, so "
	        "each adds up to the whole time. empty and idle: nothing more was asked for; host: the device waited for the "
	        "daemon.</p>\n");
	if (p->sweep) {
		fprintf(p->f, "<div class=\"grid\">\n");
		columns(p, &axes[0]);
		columns(p, &axes[1]);
		if (isfinite(share_of(report_server(&p->of[0]), "memory")))
			reached(p);
		fprintf(p->f, "</div>\n");
		return;
	}
	for (size_t i = 0; i < p->n; i++) {
		const json_t *server = report_server(&p->of[i]);

		if (!server)
			continue;
		if (p->n > 1) {
			fprintf(p->f, "<p><b>%c</b> ", 'A' + (int)(i % 26));
			say(p, p->of[i].name);
			fprintf(p->f, ": ");
			say(p, text_of(server, "says"));
			fprintf(p->f, ".</p>\n");
		}
		fprintf(p->f, "<div class=\"grid\">\n");
		bands(p, &p->of[i], &axes[0]);
		bands(p, &p->of[i], &axes[1]);
		fprintf(p->f, "</div>\n");
	}
}

/* ---- hardware ---------------------------------------------------------------------------------- */

static void bar(const struct page *p, const char *name, double share, const char *amount, int colour)
{
	fprintf(p->f, "<div><dt>");
	say(p, name);
	fprintf(p->f, "</dt><dd><svg viewBox=\"0 0 100 4\" preserveAspectRatio=\"none\" aria-hidden=\"true\">"
	        "<rect class=\"n\" fill=\"currentColor\" opacity=\".45\" width=\"100\" height=\"4\"/>"
	        "<rect class=\"c%d\" fill=\"currentColor\" width=\"%.2f\" height=\"4\"/></svg></dd><dd>%.1f %% <small>",
	        colour % 8, fmin(fmax(share * 100, 0), 100), share * 100);
	say(p, amount);
	fprintf(p->f, "</small></dd></div>\n");
}

static void hardware(const struct page *p)
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
			double share = share_of(server, what[k].key), is = json_number_value(json_object_get(server, what[k].is));

			if (isnan(share))
				continue;
			if (!begun)
				fprintf(p->f, "<h2>How far from the hardware</h2><p>What the engine's batches needed at least, by "
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

/* ---- a sweep ----------------------------------------------------------------------------------- */

struct curve { const char *settings; size_t at[256], n; };

/* Points that differ only in their load lie on one curve. */
static size_t curves(const struct page *p, struct curve *c, size_t most)
{
	size_t n = 0, k;

	for (size_t i = 0; i < p->n; i++) {
		const char *s = text_of(p->of[i].point, "settings");

		for (k = 0; k < n && strcmp(c[k].settings, s); k++)
			continue;
		if (k == most)
			continue;
		if (k == n)
			c[n++] = (struct curve){ .settings = s };
		if (c[k].n < 256)
			c[k].at[c[k].n++] = i;
	}
	return n;
}

/* One quantity of all points against another; x_key NULL: against the load. */
static void against(const struct page *p, const struct curve *c, size_t n_curves, const char *x_key, const char *y_key,
                    const char *title, const char *x_label, const char *y_label, bool with_ceiling)
{
	struct plot plot = { .f = p->f, .title = title, .x_label = x_label, .y_label = y_label,
	                     .x = { INFINITY, 0 }, .y = { INFINITY, 0 }, .say = "A curve for each setting" };
	double x[256], y[256], low, high, limit = NAN, best = 0;
	const char *what = "";
	char tip[500], load[60];

	for (size_t i = 0; i < p->n; i++) {
		double v = x_key ? report_mean(&p->of[i], x_key) : json_number_value(json_object_get(p->of[i].point, "load"));
		double w = report_mean(&p->of[i], y_key);

		if (v > 0)
			plot.x[0] = fmin(plot.x[0], v), plot.x[1] = fmax(plot.x[1], v);
		if (w > 0)
			plot.y[0] = fmin(plot.y[0], w), plot.y[1] = fmax(plot.y[1], w);
		if (with_ceiling && w > best) {
			best = w;
			limit = ceiling(&p->of[i], &what);
		}
	}
	if (!(plot.y[1] > 0) || !(plot.x[1] > 0))
		return;
	plot.log_y = !with_ceiling && plot.y[1] > 20 * plot.y[0];
	plot.log_x = !x_key && plot.x[1] > 10 * plot.x[0];
	plot.y[1] = fmax(plot.y[1], limit <= REACH * best ? limit : 0) * 1.1;
	plot.x[1] *= plot.log_x ? 1.15 : 1.05;
	plot.y[0] = plot.log_y ? plot.y[0] * 0.8 : 0;
	plot.x[0] = plot.log_x ? plot.x[0] * 0.87 : 0;
	plot_begin(&plot);
	for (size_t k = 0; k < n_curves; k++) {
		for (size_t i = 0; i < c[k].n; i++) {
			const struct report_of *of = &p->of[c[k].at[i]];

			x[i] = x_key ? report_mean(of, x_key) : json_number_value(json_object_get(of->point, "load"));
			y[i] = report_mean(of, y_key);
		}
		plot_line(&plot, x, y, c[k].n, (int)k, false);
		for (size_t i = 0; i < c[k].n; i++) {
			const struct report_of *of = &p->of[c[k].at[i]];

			report_range(of, y_key, &low, &high);
			if (high > low)
				plot_whisker(&plot, x[i], low, high, (int)k);
			value_of(load, sizeof(load), json_object_get(of->point, "load"));
			snprintf(tip, sizeof(tip), "%.300s: %.4g, %.4g", of->name, x[i], y[i]);
			plot_dot(&plot, x[i], y[i], (int)k, tip);
			if (x_key && n_curves <= 3 && c[k].n <= 12 && json_object_get(of->point, "load"))
				plot_label(&plot, x[i], y[i], load);
		}
	}
	if (with_ceiling)
		draw_ceiling(&plot, limit, what);
	plot_end(&plot);
}

static void sweep(const struct page *p)
{
	static struct curve c[64];
	const char *load = text_of(p->of[0].point, "load_name");
	size_t n = curves(p, c, 64);

	fprintf(p->f, "<h2>Throughput against latency</h2><p>A point for each load, joined for the same settings; the "
	        "number beside it is the load. Lines across a point: the range of its runs.</p>\n");
	if (n > 1) {
		fprintf(p->f, "<ul class=\"legend\">");
		for (size_t k = 0; k < n; k++) {
			fprintf(p->f, "<li class=\"c%zu\"><span>", k % 8);
			say(p, c[k].settings);
			fprintf(p->f, "</span></li>");
		}
		fprintf(p->f, "</ul>\n");
	}
	fprintf(p->f, "<div class=\"grid\">\n");
	against(p, c, n, "output_throughput", "median_ttft_ms", "Time to first token", "output tokens a second",
	        "median, ms", false);
	against(p, c, n, "output_throughput", "mean_tpot_ms", "Time per output token", "output tokens a second",
	        "mean, ms", false);
	if (*load) {
		against(p, c, n, NULL, "output_throughput", "Output throughput", load, "tokens a second", true);
		against(p, c, n, NULL, "p99_ttft_ms", "Time to first token", load, "P99, ms", false);
	}
	fprintf(p->f, "</div>\n");
}

/* ---- all numbers ------------------------------------------------------------------------------- */

static const struct { const char *key, *label; } rows[] = {
	{ "completed", "Successful requests" }, { "failed", "Failed requests" }, { "duration", "Duration (s)" },
	{ "total_input_tokens", "Input tokens" }, { "total_output_tokens", "Generated tokens" },
	{ "request_throughput", "Request throughput (req/s)" }, { "request_goodput", "Request goodput (req/s)" },
	{ "output_throughput", "Output throughput (tok/s)" }, { "total_token_throughput", "Total throughput (tok/s)" },
	{ "mean_ttft_ms", "Mean TTFT (ms)" }, { "median_ttft_ms", "Median TTFT (ms)" }, { "p99_ttft_ms", "P99 TTFT (ms)" },
	{ "mean_tpot_ms", "Mean TPOT (ms)" }, { "median_tpot_ms", "Median TPOT (ms)" }, { "p99_tpot_ms", "P99 TPOT (ms)" },
	{ "mean_itl_ms", "Mean ITL (ms)" }, { "median_itl_ms", "Median ITL (ms)" }, { "p99_itl_ms", "P99 ITL (ms)" },
	{ "mean_e2el_ms", "Mean E2EL (ms)" }, { "p99_e2el_ms", "P99 E2EL (ms)" },
};
#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

static void change(const struct page *p, const char *key)
{
	const json_t *metrics = json_object_get(p->comparison, "metrics");
	json_t *m;
	size_t i;

	json_array_foreach(metrics, i, m) {
		const char *verdict = text_of(m, "verdict");

		if (strcmp(text_of(m, "metric"), key))
			continue;
		fprintf(p->f, "<td>%+.1f %%</td><td class=\"%s\">", json_number_value(json_object_get(m, "change_percent")),
		        !strcmp(verdict, "better") ? "better" : !strcmp(verdict, "worse") ? "worse" : "");
		say(p, verdict);
		fprintf(p->f, "</td>");
		return;
	}
	fprintf(p->f, "<td></td><td></td>");
}

static void numbers(const struct page *p)
{
	char number[40];

	fprintf(p->f, "<h2>All numbers</h2>\n<div class=\"scroll\" tabindex=\"0\"><table><caption>Means over the runs; defined "
	        "as by vllm bench serve.</caption>\n<thead><tr><th>");
	for (size_t i = 0; i < p->n; i++) {
		fprintf(p->f, "</th><th class=\"name\" scope=\"col\">");
		if (p->sweep)
			fprintf(p->f, "%zu. ", i + 1);
		say(p, p->of[i].name);
	}
	fprintf(p->f, "</th>%s</tr></thead>\n<tbody>\n", p->comparison ? "<th>change</th><th>verdict</th>" : "");
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
			change(p, rows[r].key);
		fprintf(p->f, "</tr>\n");
	}
	fprintf(p->f, "</tbody></table></div>\n");
}

static void settings(const struct page *p)
{
	const json_t *server = report_server(&p->of[0]), *most = json_object_get(server, "ceilings");
	const char *key, *unknown = text_of(most, "unknown");
	json_t *v;
	char s[200];

	fprintf(p->f, "<footer><p>");
	if (server && !p->sweep) {
		fprintf(p->f, "Settings of the daemon: ");
		json_object_foreach((json_t *)(uintptr_t)json_object_get(server, "knobs"), key, v) {
			value_of(s, sizeof(s), v);
			say(p, key);
			fputc(' ', p->f);
			say(p, s);
			fprintf(p->f, "; ");
		}
		fprintf(p->f, "KV cache of %lld blocks. ", (long long)json_integer_value(json_object_get(server, "kv_blocks")));
	}
	if (*unknown) {
		fprintf(p->f, "The hardware's ceilings are not known: ");
		say(p, unknown);
		fprintf(p->f, ". ");
	} else if (most) {
		fprintf(p->f, "Ceilings: %.1f GB/s of memory, %.0f Gop/s with bytes, %.0f with floats, on %d cores of ",
		        json_number_value(json_object_get(most, "memory_bytes_per_s")) / 1e9,
		        json_number_value(json_object_get(most, "int8_ops_per_s")) / 1e9,
		        json_number_value(json_object_get(most, "float_ops_per_s")) / 1e9,
		        (int)json_integer_value(json_object_get(most, "cores")));
		say(p, text_of(most, "processor"));
		fprintf(p->f, ", ");
		say(p, text_of(most, "date"));
		fprintf(p->f, ". ");
	}
	fprintf(p->f, "Made by slipring %s; this page asks nothing of any server.</p></footer>\n", SLIPRING_VERSION);
}

/* ---- files ------------------------------------------------------------------------------------- */

static void page(const struct page *p)
{
	head(p);
	sentence(p);
	tiles(p);
	if (p->sweep)
		sweep(p);
	latencies(p);
	over_time(p);
	limits(p);
	hardware(p);
	numbers(p);
	settings(p);
	fprintf(p->f, "</main></body></html>\n");
}

/* Open a file beside its place. */
static FILE *open_beside(const char *path, char *beside, size_t n)
{
	if ((size_t)snprintf(beside, n, "%s.%ld", path, (long)getpid()) >= n) {
		errno = ENAMETOOLONG;
		return NULL;
	}
	return fopen(beside, "we");
}

static int close_whole(FILE *f)
{
	int rc = fflush(f) || ferror(f) ? -EIO : 0;

	return fclose(f) || rc ? -EIO : 0;
}

static int write_both(const struct page *p, FILE *html, FILE *csv)
{
	struct page q = *p;
	int rc;

	q.f = html;
	page(&q);
	report_csv(csv, p->of, p->n);
	rc = close_whole(html);
	return close_whole(csv) || rc ? -EIO : 0;
}

int report_write(const char *path, const struct report_of *of, size_t n, const json_t *comparison,
                 char *err, size_t errlen)
{
	struct page p = { .of = of, .n = n, .comparison = comparison, .sweep = of[0].point != NULL,
	                  .data = calloc(n, sizeof(*p.data)) };
	char csv[PATH_MAX], beside[2][PATH_MAX + 32];
	size_t len = strlen(path), stem = len > 5 && !strcmp(path + len - 5, ".html") ? len - 5 : len;
	FILE *f[2] = { NULL, NULL };
	int rc = p.data && snprintf(csv, sizeof(csv), "%.*s.csv", (int)stem, path) < (int)sizeof(csv) ? 0 : -ENOMEM;

	for (size_t i = 0; !rc && i < n; i++)
		rc = report_data(&p.data[i], &of[i]);
	for (int k = 0; !rc && k < 2; k++)
		if (!(f[k] = open_beside(k ? csv : path, beside[k], sizeof(beside[k]))))
			rc = -errno;
	if (!rc)
		rc = write_both(&p, f[0], f[1]);
	else
		for (int k = 0; k < 2; k++)
			if (f[k])
				fclose(f[k]);
	if (!rc && (rename(beside[0], path) || rename(beside[1], csv)))
		rc = -errno;
	for (int k = 0; rc && k < 2; k++)
		if (f[k])
			unlink(beside[k]);
	for (size_t i = 0; p.data && i < n; i++)
		report_data_free(&p.data[i]);
	free(p.data);
	if (rc)
		snprintf(err, errlen, "%s cannot be written: %s", path, strerror(-rc));
	return rc;
}
