/* report_draw.c - the sections of the page that are pictures, and the numbers that they draw. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/instance/limits.h"
#include "core/instance/stats.h"
#include "report.h"

#define CURVE  200               /* points in the curve of a distribution */
#define MOST   8                 /* most distributions in one picture: the number of colours */
#define REACH  2.5               /* a ceiling above 2.5 times the highest value is only printed */
#define LINE   256               /* points of a line */

static void draw_text(const struct report *p, const char *s) { report_text(p->f, s); }

static void legend(const struct report *p, const size_t *pick, size_t n)
{
	if (n < 2)
		return;
	fprintf(p->f, "<ul class=\"legend\">");
	for (size_t i = 0; i < n; i++) {
		fprintf(p->f, "<li class=\"c%zu\"><span>", i % 8);
		if (p->comparison)
			fprintf(p->f, "%c  ", 'A' + (int)i);
		draw_text(p, p->of[pick ? pick[i] : i].name);
		fprintf(p->f, "</span></li>");
	}
	fprintf(p->f, "</ul>\n");
}

/* ---- latencies --------------------------------------------------------------------------------- */

static double quantile(const struct report_data *d, int q, double share)
{
	double at = share * (double)(d->n[q] - 1);
	size_t i = (size_t)at;

	return i + 1 < d->n[q] ? d->v[q][i] + (d->v[q][i + 1] - d->v[q][i]) * (at - (double)i) :
	        d->v[q][d->n[q] - 1];
}

static void distribution(const struct report *p, int q, const size_t *pick, size_t n)
{
	static const char *const title[N_REPORT] = { "Time to first token", "Time per output token",
	                                             "Inter-token latency", "End-to-end latency" };
	static const double marks[] = { 0.5, 0.9, 0.99 };
	double x[CURVE + 1], y[CURVE + 1], low = INFINITY, high = 0, most = 0;
	char tip[400], number[40];
	struct plot plot = { .f = p->f, .title = title[q], .y_label = "share of them that were faster",
	                    .x_label = "ms",
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

void report_draw_latencies(const struct report *p)
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
	fprintf(p->f, "<h2>Latencies</h2><p>How many were at least so fast. Marked are P50, P90 and "
	        "P99%s.</p>\n", with > MOST ? "; eight of the points are shown" : "");
	legend(p, pick, n);
	fprintf(p->f, "<div class=\"grid\">\n");
	for (int q = 0; q < N_REPORT; q++)
		distribution(p, q, pick, n);
	fprintf(p->f, "</div>\n");
}

/* ---- over time --------------------------------------------------------------------------------- */

/* Tokens a second if the most loaded hardware were at its ceiling; NAN: unknown. */
static double ceiling(const struct report_of *of, const char **what)
{
	const json_t *server = report_server(of);
	double memory = report_reached(of, "memory"), arithmetic = report_reached(of, "arithmetic");
	double busy = json_number_value(json_object_get(server, "busy_seconds"));
	double tokens = json_number_value(json_object_get(server, "generated_tokens"));

	*what = arithmetic > memory ? "arithmetic" : "memory bandwidth";
	return isnan(memory) || isnan(arithmetic) || !(busy > 0) ? NAN : tokens / busy / fmax(memory,
	        arithmetic);
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

static void bins(const struct report *p, bool tokens)
{
	const char *what = "";
	double top = 0, wide = 0, limit = ceiling(&p->of[0], &what), *x;
	char tell[200] = "tokens a second", number[40];
	struct plot plot = { .f = p->f, .title = tokens ? "Output throughput" : "Requests under way",
	                     .y_label = tokens ? tell : "at a time", .x_label =
	                     "seconds since the first request", .say = tell };

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

void report_draw_time(const struct report *p)
{
	if (p->sweep || !p->data[0].n_bins)
		return;
	fprintf(p->f, "<h2>Over time</h2><p>The first run, counted where the answers arrive. The ceiling is "
	        "what this "
	        "work would reach if the hardware that is nearest to its end were all used.</p>\n");
	legend(p, NULL, p->n);
	fprintf(p->f, "<div class=\"grid\">\n");
	bins(p, true);
	bins(p, false);
	fprintf(p->f, "</div>\n");
}

/* ---- limits ------------------------------------------------------------------------------------ */

static const int why_colour[N_WHY] = { -1, 0, 1, 2, 3, 4, 5, 6 };
static const int bound_colour[N_BOUND] = { -1, 4, 1, 0, 6, 2, 3 };
static const int empty_colour[N_EMPTY] = { 3, 4, 5, 0, -1 };

struct axis {
	const char *key, *seconds;   /* keys of the values over time, and of the totals */
	const char *title, *label;
	int n;
	const char *(*name)(int);
	const int *colour;
	const struct axis *whole;    /* the axis that is 100 %; NULL: this one */
};
static const struct axis why_axis = { "why", "why_seconds", "Why no more rows",
	"what kept more requests out of a step", N_WHY, sched_why_name, why_colour, NULL };
static const struct axis empty_axis = { "empty", "empty_seconds", "Of empty",
	"what the clients did meanwhile", N_EMPTY, stats_empty_name, empty_colour, &why_axis };
static const struct axis bound_axis = { "bound", "bound_seconds", "What bound the time",
	"what the device did", N_BOUND, sched_bound_name, bound_colour, NULL };

/* The share of value k in the whole run. */
static double share_of(const json_t *server, const struct axis *a, int k)
{
	const struct axis *whole = a->whole ? a->whole : a;
	const json_t *seconds = json_object_get(server, whole->seconds);
	double sum = 0;

	for (int i = 0; i < whole->n; i++)
		sum += json_number_value(json_object_get(seconds, whole->name(i)));
	seconds = json_object_get(server, a->seconds);
	return sum > 0 ? json_number_value(json_object_get(seconds, a->name(k))) / sum : 0;
}

/* The same for one time interval of the run. */
static double share_at(const json_t *time, const struct axis *a, int k, size_t i)
{
	const struct axis *whole = a->whole ? a->whole : a;
	const json_t *lists = json_object_get(time, whole->key);
	double sum = 0;

	for (int m = 0; m < whole->n; m++)
		sum += json_number_value(json_array_get(json_object_get(lists, whole->name(m)), i));
	lists = json_object_get(time, a->key);
	return sum > 0 ? json_number_value(json_array_get(json_object_get(lists, a->name(k)), i)) / sum : 0;
}

/* The legend of an axis, with the limits that occurred.  malloc'ed; NULL: no memory, so no legend. */
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
			v = fmax(v, share_of(report_server(&of[i]), a, k));
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

/* Draw an axis as bands that fill the whole time. */
static void bands(const struct report *p, const struct report_of *of_one, const struct axis *a)
{
	const json_t *time = json_object_get(report_server(of_one), "over_time");
	const json_t *at = json_object_get(time, "at"), *width = json_object_get(time, "seconds");
	size_t n = json_array_size(at);
	char *legend = limit_legend(of_one, 1, a);
	double *x = calloc(n + 1, sizeof(*x)), *below = calloc(n + 1, sizeof(*below)), *above = calloc(n + 1,
	        sizeof(*above));
	struct plot plot = { .f = p->f, .title = a->title, .y_label = a->label, .x_label =
	                    "seconds since the first request",
	                     .y = { 0, 1 }, .percent = true, .legend = legend, .say =
	                     "Shares of the time, stacked" };

	if (x && below && above && n) {
		for (size_t i = 0; i < n; i++)
			x[i] = json_number_value(json_array_get(at, i));
		x[n] = x[n - 1] + json_number_value(json_array_get(width, n - 1));
		plot.x[1] = fmax(x[n], 0.01);
		plot_begin(&plot);
		for (int k = 0; k < a->n; k++) {
			bool any = false;

			for (size_t i = 0; i < n; i++) {
				double v = share_at(time, a, k, i);

				any = any || v > 0;
				above[i] = below[i] + v;
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

/* Draw a column for each point of a sweep, or for each run without values over time. */
static void columns(const struct report *p, const struct axis *a)
{
	struct plot plot = { .f = p->f, .title = a->title, .y_label = a->label,
	                     .x_label = p->sweep ? "point, by its number below" : "run",
	                     .x = { 0.4, (double)p->n + 0.6 }, .y = { 0, 1 }, .percent = true,
	                     .say = "Shares of the time at each point, stacked" };
	char tip[400], *legend = limit_legend(p->of, p->n, a);

	plot.legend = legend;
	plot_begin(&plot);
	for (size_t i = 0; i < p->n; i++) {
		double x[2] = { (double)i + 0.62, (double)i + 1.38 }, below[1] = { 0 }, above[1];

		for (int k = 0; k < a->n; k++) {
			double v = share_of(report_server(&p->of[i]), a, k);

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

/* Draw the share of the ceiling that each point of a sweep reached. */
static void reached(const struct report *p)
{
	static const char *const key[] = { "memory", "arithmetic" };
	struct plot plot = { .f = p->f, .title = "Used of the hardware", .y_label =
	                    "while something was computed",
	                     .x_label = "point, by its number below", .x = { 0.4, (double)p->n + 0.6 }, .y =
	                     { 0, 1.12 }, .percent = true, .say =
	                     "Memory bandwidth and arithmetic at each point, below 100 %", .legend =
	                     "<ul class=\"legend\"><li class=\"c0\"><span>memory bandwidth</span></li>"
	                     "<li class=\"c1\"><span>arithmetic</span></li></ul>" };
	double x[256], y[256];
	char tip[400];

	plot_begin(&plot);
	plot_rule(&plot, false, 1, "ceiling of the hardware");
	for (int k = 0; k < 2; k++) {
		size_t n = 0;

		for (size_t i = 0; i < p->n && n < 256; i++) {
			double v = report_reached(&p->of[i], key[k]);

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

/* Has this axis any values?  Results of older versions do not split `empty`. */
static bool met(const struct report *p, const struct axis *a)
{
	for (size_t i = 0; i < p->n; i++)
		for (int k = 0; k < a->n; k++)
			if (share_of(report_server(&p->of[i]), a, k) >= 0.0005)
				return true;
	return false;
}

/* Write the sentence about the limit of one of several runs. */
static void say_limit(const struct report *p, size_t i)
{
	const json_t *server = report_server(&p->of[i]);

	if (!server || p->n == 1 || p->sweep)
		return;
	fprintf(p->f, "<p><b>%c</b> ", 'A' + (int)(i % 26));
	draw_text(p, p->of[i].name);
	fprintf(p->f, ": ");
	draw_text(p, report_field(server, "says"));
	fprintf(p->f, ".</p>\n");
}

/* Draw each axis over the time of run i, or as one column if an older version wrote no values over time.
 * Or draw columns of all runs. */
static void grid(const struct report *p, size_t i, bool course)
{
	static const struct axis *const axes[] = { &why_axis, &empty_axis, &bound_axis };
	const json_t *time = json_object_get(report_server(&p->of[i]), "over_time");
	struct report shown = *p;

	if (course) {
		shown.of = &p->of[i];
		shown.n = 1;
	}
	fprintf(p->f, "<div class=\"grid\">\n");
	for (int k = 0; k < 3; k++) {
		if (!met(&shown, axes[k]))
			continue;
		if (course && json_object_get(time, axes[k]->key))
			bands(p, &p->of[i], axes[k]);
		else
			columns(&shown, axes[k]);
	}
	if (p->sweep && isfinite(report_reached(&p->of[0], "memory")))
		reached(p);
	fprintf(p->f, "</div>\n");
}

void report_draw_limits(const struct report *p)
{
	bool any = false, course = !p->sweep;

	for (size_t i = 0; i < p->n; i++) {
		const json_t *server = report_server(&p->of[i]), *time = json_object_get(server, "over_time");

		any = any || server;
		course = course && (!server || json_array_size(json_object_get(time, "at")) > 0);
	}
	if (!any)
		return;
	fprintf(p->f, "<h2>What limited it</h2><p>Each step of the scheduler ran into one limit on each of two "
	        "axes, so each adds up to the whole time. empty and idle: nothing more was asked for; host: the "
	        "device waited for the daemon. What empty was is told by what the clients did: tokenizing, "
	        "waiting for the network, silent with nothing under way, served with all they had asked for, or "
	        "nobody connected.</p>\n");
	for (size_t i = 0; i < p->n; i++) {
		say_limit(p, i);
		if (course && report_server(&p->of[i]))
			grid(p, i, true);
	}
	if (!course)
		grid(p, 0, false);
}

/* ---- a sweep ----------------------------------------------------------------------------------- */

struct curve { const char *settings; size_t at[256], n; };

/* Group points into curves: points that differ only in their load are on one curve. */
static size_t curves(const struct report *p, struct curve *c, size_t most)
{
	size_t n = 0, k;

	for (size_t i = 0; i < p->n; i++) {
		const char *s = report_field(p->of[i].point, "settings");

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

/* Draw one quantity of all points against another; x_key NULL: against the load. */
static void against(const struct report *p, const struct curve *c, size_t n_curves, const char *x_key,
                    const char *y_key, const char *title, const char *x_label, const char *y_label,
                    bool with_ceiling)
{
	struct plot plot = { .f = p->f, .title = title, .x_label = x_label, .y_label = y_label,
	                     .x = { INFINITY, 0 }, .y = { INFINITY, 0 }, .say = "A curve for each setting" };
	double x[256], y[256], low, high, limit = NAN, best = 0;
	const char *what = "";
	char tip[500], load[60];

	for (size_t i = 0; i < p->n; i++) {
		double v = x_key ? report_mean(&p->of[i], x_key) : json_number_value(json_object_get(p->of[i].point,
		        "load"));
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
			report_value(load, sizeof(load), json_object_get(of->point, "load"));
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

void report_draw_sweep(const struct report *p)
{
	static struct curve c[64];
	const char *load = report_field(p->of[0].point, "load_name");
	size_t n = curves(p, c, 64);

	fprintf(p->f, "<h2>Throughput against latency</h2><p>A point for each load, joined for the same "
	        "settings; the "
	        "number beside it is the load. Lines across a point: the range of its runs.</p>\n");
	if (n > 1) {
		fprintf(p->f, "<ul class=\"legend\">");
		for (size_t k = 0; k < n; k++) {
			fprintf(p->f, "<li class=\"c%zu\"><span>", k % 8);
			draw_text(p, c[k].settings);
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

