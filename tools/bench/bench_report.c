/* bench_report.c - prints the block of `vllm bench serve`, equal to the byte.  After it come our own numbers:
 * the steady state, and how late this program itself was. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "core/figures/figures.h"

#define WIDTH 50
#define ERRORS 10
#define STEADY 0.2               /* share of the run: a shorter plateau is only a peak */

/* Print a text in the middle of a line of marks; an odd mark goes to the right. */
static void title(FILE *to, const char *s, char mark)
{
	size_t n = strlen(s), left = n < WIDTH ? (WIDTH - n) / 2 : 0;
	size_t right = n < WIDTH ? WIDTH - n - left : 0;

	while (left--)
		fputc(mark, to);
	fputs(s, to);
	while (right--)
		fputc(mark, to);
	fputc('\n', to);
}

static void real(FILE *to, const char *label, double v)
{
	fprintf(to, "%-40s %-10.2f\n", label, v);
}

static void print_whole(FILE *to, const char *label, uint64_t v)
{
	fprintf(to, "%-40s %-10llu\n", label, (unsigned long long)v);
}

size_t bench_real(char *out, size_t n, double v)
{
	bool plain = v == 0 || (fabs(v) >= 1e-4 && fabs(v) < 1e16);
	int len = 0;

	if (isinf(v))
		return (size_t)snprintf(out, n, "%s", v < 0 ? "-inf" : "inf");
	for (int digits = 1; digits <= 20; digits++) {
		len = plain ? snprintf(out, n, "%.*f", digits, v) : snprintf(out, n, "%.*g", digits, v);
		if (strtod(out, NULL) == v)
			break;
	}
	return (size_t)len;
}

/* Write a percentile as "99" or "99.9". */
static const char *percent(char *out, size_t n, double p)
{
	snprintf(out, n, "%.10g", p);
	return out;
}

static void section(FILE *to, const struct bench_metric *m, const struct bench_stat *s, const double *p,
                    int n_p)
{
	char label[80], number[24];

	title(to, m->title, '-');
	snprintf(label, sizeof(label), "Mean %s (ms):", m->label);
	real(to, label, s->mean * 1000);
	snprintf(label, sizeof(label), "Median %s (ms):", m->label);
	real(to, label, s->median * 1000);
	for (int i = 0; i < n_p; i++) {
		snprintf(label, sizeof(label), "P%s %s (ms):", percent(number, sizeof(number), p[i]), m->label);
		real(to, label, s->p[i] * 1000);
	}
}

bool bench_chosen(const struct bench_options *o, const struct bench_summary *s, int metric)
{
	const char *name = bench_metric[metric].name;
	size_t n = strlen(name);

	if ((metric < 3 && !s->tokenizer) || (metric >= 4 && !o->concurrency) ||
	    (metric == 5 && isinf(o->rate)))
		return false;
	for (const char *p = o->metrics; *p; p += strcspn(p, ","), p += *p == ',')
		if (!strncmp(p, name, n) && (p[n] == ',' || !p[n]))
			return true;
	return false;
}

static void failures(FILE *to, const struct bench_run *r)
{
	int k = 0;

	for (size_t i = 0; i < r->n_sent && k < ERRORS; i++) {
		if (r->answer[i].state != BENCH_FAILED)
			continue;
		if (!k)
			fprintf(to, "Failed requests during benchmark run detected (capping to %d):\n", ERRORS);
		fprintf(to, "Error %d: %s\n", k++, r->answer[i].error);
	}
}

void bench_print(FILE *to, const struct bench_summary *s, const struct bench_run *r)
{
	const struct bench_options *o = r->o;

	failures(to, r);
	title(to, " Serving Benchmark Result ", '=');
	print_whole(to, "Successful requests:", s->completed);
	print_whole(to, "Failed requests:", s->failed);
	if (o->concurrency)
		print_whole(to, "Maximum request concurrency:", (uint64_t)o->concurrency);
	if (isfinite(o->rate))
		real(to, "Request rate configured (RPS):", o->rate);
	real(to, "Benchmark duration (s):", s->duration);
	print_whole(to, "Total input tokens:", s->n_input);
	if (s->tokenizer)
		print_whole(to, "Total generated tokens:", s->n_output);
	real(to, "Request throughput (req/s):", s->requests_per_s);
	if (s->has_goodput)
		real(to, "Request goodput (req/s):", s->goodput);
	if (s->tokenizer) {
		real(to, "Output token throughput (tok/s):", s->output_per_s);
		real(to, "Peak output token throughput (tok/s):", s->peak_per_s);
	}
	real(to, "Peak concurrent requests:", (double)s->peak_concurrent);
	if (s->tokenizer)
		real(to, "Total token throughput (tok/s):", s->total_per_s);
	for (int m = 0; m < BENCH_METRICS; m++)
		if (bench_chosen(o, s, m))
			section(to, &bench_metric[m], &s->stat[m], s->p, s->n_p);
	title(to, "", '=');
}

static void share(FILE *to, const char *label, const json_t *reached, const char *key)
{
	const json_t *v = json_object_get(reached, key);

	if (json_is_number(v))
		real(to, label, json_number_value(v) * 100);
}

static double sum_of(const json_t *seconds)
{
	double sum = 0;
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)(uintptr_t)seconds, key, v)
		sum += json_number_value(v);
	return sum;
}

/* Print the parts of the time, the largest first: "seqs 80 %, empty 20 %". */
static void parts(FILE *to, const char *label, json_t *seconds)
{
	double sum = sum_of(seconds), last = INFINITY, most;
	const char *key, *best;
	json_t *v;

	fprintf(to, "%-40s ", label);
	for (int n = 0;; n++, last = most) {
		most = 0, best = NULL;
		json_object_foreach(seconds, key, v)
			if (json_number_value(v) > most && json_number_value(v) < last) {
				most = json_number_value(v);
				best = key;
			}
		if (!best || most < 0.005 * sum)
			break;
		fprintf(to, "%s%s %.0f %%", n ? ", " : "", best, most / sum * 100);
	}
	fputc('\n', to);
}

/* Print the parts of `empty` as shares of the whole time. */
static void parts_of_empty(FILE *to, const json_t *j)
{
	const json_t *seconds = json_object_get(j, "empty_seconds");
	double empty_s[N_EMPTY];
	char words[120];

	for (int i = 0; i < N_EMPTY; i++)
		empty_s[i] = json_number_value(json_object_get(seconds, stats_empty_name(i)));
	if (*figures_empty(words, sizeof(words), empty_s, sum_of(json_object_get(j, "why_seconds"))))
		fprintf(to, "%-40s %s\n", "  of empty:", words);
}

static void served(FILE *to, const json_t *j)
{
	const json_t *reached = json_object_get(j, "reached");
	const char *unknown = json_string_value(json_object_get(json_object_get(j, "ceilings"), "unknown"));

	title(to, "How Far From the Limit", '-');
	share(to, "Memory bandwidth reached (%):", reached, "memory");
	share(to, "Arithmetic reached (%):", reached, "arithmetic");
	share(to, "PCIe reached (%):", reached, "pcie");
	parts(to, "No more rows a step because of:", json_object_get(j, "why_seconds"));
	parts_of_empty(to, j);
	parts(to, "The time was bound by:", json_object_get(j, "bound_seconds"));
	fprintf(to, "%s.\n", json_string_value(json_object_get(j, "says")));
	if (unknown && json_number_value(json_object_get(j, "memory_bytes_per_s")) > 0)
		fprintf(to, "No ceilings: %s.\n", unknown);
	if (json_is_true(json_object_get(j, "others_too")))
		fprintf(to, "Other clients were served meanwhile; these shares include them.\n");
}

void bench_print_more(FILE *to, const struct bench_summary *s, const struct bench_run *r)
{
	static const struct bench_metric open_ttft = { "", "TTFT", "From the Intended Time of Sending" };
	static const struct bench_metric steady_ttft = { "", "TTFT", "Steady State: Time to First Token" };
	static const struct bench_metric steady_itl = { "", "ITL", "Steady State: Inter-token Latency" };
	char line[80];

	if (s->cut + s->unsent)
		fprintf(to, "Interrupted: %zu requests were in flight and %zu not sent; no figure includes them.\n",
		        s->cut, s->unsent);
	if (s->steady.there && s->steady.seconds >= STEADY * s->duration) {
		snprintf(line, sizeof(line), "Steady State (%zu or more at once)", s->steady.concurrency);
		title(to, line, '-');
		real(to, "Duration (s):", s->steady.seconds);
		real(to, "Request throughput (req/s):", s->steady.requests_per_s);
		real(to, "Output token throughput (tok/s):", s->steady.output_per_s);
		if (s->steady.n) {
			section(to, &steady_ttft, &s->steady.ttft, s->p, s->n_p);
			section(to, &steady_itl, &s->steady.itl, s->p, s->n_p);
		}
	}
	if (isfinite(r->o->rate) || r->o->ramp || r->o->self_timed)
		section(to, &open_ttft, &s->open_ttft, s->p, s->n_p);
	title(to, "This Client's Own Lateness", '-');
	real(to, "Mean (ms):", s->late_mean * 1000);
	real(to, "P99 (ms):", s->late_p99 * 1000);
	real(to, "Max (ms):", s->late_max * 1000);
	if (r->served)
		served(to, r->served);
	else if (*r->unserved)
		fprintf(to, "What limited the server is not known: %s.\n", r->unserved);
	title(to, "", '=');
}
