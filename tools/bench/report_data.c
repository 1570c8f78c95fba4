/* report_data.c - computes what a report draws from result objects of `slipring bench serve` or `vllm bench
 * serve`, and writes the same as CSV. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "report.h"

#define BINS  60                 /* most bins of a run over time */
#define LEAST 0.25               /* s: a shorter bin is mostly noise */

static double at(const json_t *list, size_t i)
{
	return json_number_value(json_array_get(list, i));
}

static bool request_failed(const json_t *run, size_t i)
{
	const char *e = json_string_value(json_array_get(json_object_get(run, "errors"), i));

	return e && *e;
}

static const json_t *list_named(const json_t *run, const char *key)
{
	return json_object_get(run, key);
}

static bool detailed(const json_t *run)
{
	size_t n = json_array_size(list_named(run, "ttfts"));

	return n && json_array_size(list_named(run, "itls")) == n &&
	        json_array_size(list_named(run, "output_lens")) == n;
}

double report_mean(const struct report_of *of, const char *key)
{
	double sum = 0;
	size_t i, n = 0;
	json_t *run;

	json_array_foreach(of->runs, i, run) {
		const json_t *v = json_object_get(run, key);

		if (!json_is_number(v))
			return NAN;
		sum += json_number_value(v);
		n++;
	}
	return n ? sum / (double)n : NAN;
}

void report_range(const struct report_of *of, const char *key, double *low, double *high)
{
	size_t i;
	json_t *run;

	*low = INFINITY, *high = -INFINITY;
	json_array_foreach(of->runs, i, run) {
		*low = fmin(*low, json_number_value(json_object_get(run, key)));
		*high = fmax(*high, json_number_value(json_object_get(run, key)));
	}
}

const json_t *report_server(const struct report_of *of)
{
	return json_object_get(json_object_get(json_array_get(of->runs, 0), "slipring"), "server");
}

const char *report_field(const json_t *j, const char *key)
{
	const char *s = json_string_value(json_object_get(j, key));

	return s ? s : "";
}

void report_value(char *out, size_t n, const json_t *v)
{
	if (json_is_string(v))
		snprintf(out, n, "%s", json_string_value(v));
	else if (json_is_number(v))
		report_number(out, n, json_number_value(v));
	else
		snprintf(out, n, "-");
}

double report_reached(const struct report_of *of, const char *key)
{
	const json_t *v = json_object_get(json_object_get(report_server(of), "reached"), key);

	return json_is_number(v) ? json_number_value(v) : NAN;
}

/* ---- latencies --------------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double sum_of(const json_t *gaps)
{
	double s = 0;
	json_t *g;
	size_t i;

	json_array_foreach(gaps, i, g)
		s += json_number_value(g);
	return s;
}

static void collect_points(struct report_data *d, const json_t *run)
{
	size_t n = json_array_size(list_named(run, "ttfts")), k;
	json_t *gap;

	for (size_t i = 0; i < n; i++) {
		const json_t *gaps = json_array_get(list_named(run, "itls"), i);
		double ttft = at(list_named(run, "ttfts"), i), rest = sum_of(gaps);
		double out = at(list_named(run, "output_lens"), i);

		if (request_failed(run, i))
			continue;
		d->v[REPORT_TTFT][d->n[REPORT_TTFT]++] = ttft * 1e3;
		d->v[REPORT_E2EL][d->n[REPORT_E2EL]++] = (ttft + rest) * 1e3;
		if (out > 1)
			d->v[REPORT_TPOT][d->n[REPORT_TPOT]++] = rest / (out - 1) * 1e3;
		json_array_foreach(gaps, k, gap)
			d->v[REPORT_ITL][d->n[REPORT_ITL]++] = json_number_value(gap) * 1e3;
	}
}

/* ---- over time --------------------------------------------------------------------------------- */

static void put_in_bin(const struct report_data *d, double *v, double t, double amount)
{
	if (t >= 0 && t / d->bin < (double)d->n_bins)
		v[(size_t)(t / d->bin)] += amount;
}

static int over_time(struct report_data *d, const json_t *run)
{
	const json_t *starts = list_named(run, "start_times");
	double from = INFINITY, seconds = json_number_value(json_object_get(run, "duration"));
	size_t n = json_array_size(list_named(run, "ttfts")), k;

	if (json_array_size(starts) != n || !(seconds > 0))
		return 0;
	d->bin = fmax(LEAST, seconds / BINS);
	d->n_bins = (size_t)ceil(seconds / d->bin);
	d->n_bins = d->n_bins > 1 && d->n_bins < 100000 ? d->n_bins : 1;
	d->tokens_s = calloc(d->n_bins, sizeof(double));
	d->under_way = calloc(d->n_bins, sizeof(double));
	if (!d->tokens_s || !d->under_way)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		from = fmin(from, at(starts, i));
	for (size_t i = 0; i < n; i++) {
		const json_t *gaps = json_array_get(list_named(run, "itls"), i);
		double start = at(starts, i) - from, t = start + at(list_named(run, "ttfts"), i), chunks, each;
		json_t *gap;

		if (request_failed(run, i) || start < 0)
			continue;
		chunks = (double)json_array_size(gaps) + 1;
		each = at(list_named(run, "output_lens"), i) / chunks; /* an event may carry several tokens */
		put_in_bin(d, d->tokens_s, t, each / d->bin);
		json_array_foreach(gaps, k, gap) {
			t += json_number_value(gap);
			put_in_bin(d, d->tokens_s, t, each / d->bin);
		}
		for (size_t b = (size_t)(start / d->bin); b < d->n_bins && (double)b * d->bin < t; b++)
			d->under_way[b] += fmin(t / d->bin, (double)(b + 1)) - fmax(start / d->bin, (double)b);
	}
	return 0;
}

int report_data(struct report_data *d, const struct report_of *of)
{
	size_t room[N_REPORT] = { 0 }, i, k;
	json_t *run, *gaps;

	*d = (struct report_data){ 0 };
	json_array_foreach(of->runs, i, run)
		if (detailed(run)) {
			size_t n = json_array_size(list_named(run, "ttfts"));

			room[REPORT_TTFT] += n, room[REPORT_TPOT] += n, room[REPORT_E2EL] += n;
			json_array_foreach(list_named(run, "itls"), k, gaps)
				room[REPORT_ITL] += json_array_size(gaps);
		}
	for (int q = 0; q < N_REPORT; q++)
		if (!(d->v[q] = malloc((room[q] + 1) * sizeof(double))))
			return -ENOMEM;
	json_array_foreach(of->runs, i, run)
		if (detailed(run))
			collect_points(d, run);
	for (int q = 0; q < N_REPORT; q++)
		qsort(d->v[q], d->n[q], sizeof(double), compare_doubles);
	run = json_array_get(of->runs, 0);
	return detailed(run) ? over_time(d, run) : 0;
}

void report_data_free(struct report_data *d)
{
	for (int q = 0; q < N_REPORT; q++)
		free(d->v[q]);
	free(d->tokens_s);
	free(d->under_way);
	*d = (struct report_data){ 0 };
}

/* ---- CSV --------------------------------------------------------------------------------------- */

/* Write a cell in quotes.  A text that a spreadsheet would take for a formula begins with an apostrophe. */
static void cell(FILE *f, const char *s)
{
	fputs(*s && strchr("=+-@\t\r", *s) ? "\"'" : "\"", f);
	for (; *s; s++)
		if (*s == '"')
			fputs("\"\"", f);
		else
			fputc((unsigned char)*s < ' ' ? ' ' : *s, f);
	fputc('"', f);
}

static void write_number(FILE *f, double v)
{
	if (isfinite(v))
		fprintf(f, ",%.10g", v);
	else
		fputc(',', f);
}

static const char *const summary[] = {
	"request_rate", "max_concurrency", "duration", "completed", "failed", "total_input_tokens",
	"total_output_tokens", "request_throughput", "request_goodput", "output_throughput",
	"total_token_throughput", "mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms",
	"median_tpot_ms", "p99_tpot_ms", "mean_itl_ms", "median_itl_ms", "p99_itl_ms",
};
#define N_SUMMARY ((int)(sizeof(summary) / sizeof(summary[0])))

static void csv_runs(FILE *f, const struct report_of *of, size_t n)
{
	size_t k;
	json_t *run;

	fprintf(f, "name,run");
	for (int i = 0; i < N_SUMMARY; i++)
		fprintf(f, ",%s", summary[i]);
	fprintf(f, ",memory_reached,arithmetic_reached,limit\n");
	for (size_t i = 0; i < n; i++)
		json_array_foreach(of[i].runs, k, run) {
			const json_t *server = json_object_get(json_object_get(run, "slipring"), "server");
			const char *limit = json_string_value(json_object_get(server, "limit"));

			cell(f, of[i].name);
			fprintf(f, ",%zu", k);
			for (int s = 0; s < N_SUMMARY; s++) {
				const json_t *v = json_object_get(run, summary[s]);

				write_number(f, json_is_number(v) ? json_number_value(v) : NAN);
			}
			for (int r = 0; r < 2; r++) {
				const json_t *v = json_object_get(json_object_get(server, "reached"),
				                                  r ? "arithmetic" : "memory");

				write_number(f, json_is_number(v) ? json_number_value(v) : NAN);
			}
			fputc(',', f);
			cell(f, limit ? limit : "");
			fputc('\n', f);
		}
}

static void csv_requests(FILE *f, const char *name, const json_t *run, size_t k)
{
	const json_t *starts = list_named(run, "start_times");
	size_t n = json_array_size(list_named(run, "ttfts"));
	double from = INFINITY;

	for (size_t i = 0; i < n; i++)
		from = fmin(from, at(starts, i));
	for (size_t i = 0; i < n; i++) {
		double ttft = at(list_named(run, "ttfts"), i),
		       rest = sum_of(json_array_get(list_named(run, "itls"), i));
		double out = at(list_named(run, "output_lens"), i);
		const char *e = json_string_value(json_array_get(list_named(run, "errors"), i));

		cell(f, name);
		fprintf(f, ",%zu,%zu", k, i);
		write_number(f, json_array_size(starts) == n ? at(starts, i) - from : NAN);
		write_number(f, at(list_named(run, "input_lens"), i));
		write_number(f, out);
		write_number(f, request_failed(run, i) ? NAN : ttft * 1e3);
		write_number(f, !request_failed(run, i) && out > 1 ? rest / (out - 1) * 1e3 : NAN);
		write_number(f, request_failed(run, i) ? NAN : (ttft + rest) * 1e3);
		fputc(',', f);
		cell(f, e ? e : "");
		fputc('\n', f);
	}
}

void report_csv(FILE *f, const struct report_of *of, size_t n)
{
	bool requests = n <= 2 && !of[0].point;
	size_t k;
	json_t *run;

	for (size_t i = 0; i < n; i++)
		requests = requests && detailed(json_array_get(of[i].runs, 0));
	if (!requests) {
		csv_runs(f, of, n);
		return;
	}
	fprintf(f, "name,run,request,start_s,input_tokens,output_tokens,ttft_ms,tpot_ms,e2el_ms,error\n");
	for (size_t i = 0; i < n; i++)
		json_array_foreach(of[i].runs, k, run)
			if (detailed(run))
				csv_requests(f, of[i].name, run, k);
}
