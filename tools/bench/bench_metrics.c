/* bench_metrics.c - computes numbers from answers, by vLLM's definitions (docs/bench.md). */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "core/instance/refuse.h"

enum { TTFT, TPOT, ITL, E2EL, QUEUE, E2EL_QUEUE };

const struct bench_metric bench_metric[BENCH_METRICS] = {
	{ "ttft", "TTFT", "Time to First Token" },
	{ "tpot", "TPOT", "Time per Output Token (excl. 1st token)" },
	{ "itl", "ITL", "Inter-token Latency" },
	{ "e2el", "E2EL", "End-to-end Latency" },
	{ "client_queue_time", "Client Queue Time", "Client-side Queueing" },
	{ "e2el_including_client_queue", "E2EL incl. Client Queue", "Queue-inclusive End-to-end Latency" },
};

static int compare_seconds(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double bench_percentile(const double *sorted, size_t n, double p)
{
	double at = p / 100 * (double)(n ? n - 1 : 0);
	size_t i = (size_t)at;

	if (!n)
		return 0;
	return i + 1 < n ? sorted[i] + (sorted[i + 1] - sorted[i]) * (at - (double)i) : sorted[n - 1];
}

void bench_stat(struct bench_stat *s, double *v, size_t n, const double *p, int n_p)
{
	double sum = 0, square = 0;

	memset(s, 0, sizeof(*s));
	if (!n)
		return;
	qsort(v, n, sizeof(*v), compare_seconds);
	for (size_t i = 0; i < n; i++)
		sum += v[i];
	s->mean = sum / (double)n;
	for (size_t i = 0; i < n; i++)
		square += (v[i] - s->mean) * (v[i] - s->mean);
	s->std = sqrt(square / (double)n);
	s->median = bench_percentile(v, n, 50);
	for (int i = 0; i < n_p; i++)
		s->p[i] = bench_percentile(v, n, p[i]);
}

int bench_slo(const char *word, char *name, size_t n, double *ms)
{
	const char *colon = strchr(word, ':');
	char *end;

	if (!colon || (size_t)(colon - word) >= n)
		return -EINVAL;
	memcpy(name, word, (size_t)(colon - word));
	name[colon - word] = 0;
	*ms = strtod(colon + 1, &end);
	if (end == colon + 1 || *end || !(*ms >= 0))
		return -EINVAL;
	return strcmp(name, "ttft") && strcmp(name, "tpot") && strcmp(name, "e2el") ? -EINVAL : 0;
}

/* An answer's value of a quantity that each request has once; NAN = it has none. */
static double value(const struct bench_answer *a, int metric)
{
	switch (metric) {
	case TTFT:       return a->ttft;
	case TPOT:       return a->n_output > 1 ? (a->latency - a->ttft) / (double)(a->n_output - 1) : NAN;
	case E2EL:       return a->latency;
	case QUEUE:      return a->start - a->due;
	case E2EL_QUEUE: return a->latency + (a->start - a->due);
	default:         return NAN;
	}
}

static bool good(const struct bench_answer *a, const struct bench_words *slos)
{
	char name[16];
	double ms, v;

	for (int i = 0; i < slos->n; i++) {
		if (bench_slo(slos->word[i], name, sizeof(name), &ms))
			return false;
		v = value(a, name[0] == 'e' ? E2EL : name[1] == 't' ? TTFT : TPOT);
		if (!isnan(v) && v > ms / 1000)
			return false;
	}
	return true;
}

static int percentiles(struct bench_summary *s, const char *list, char *err, size_t errlen)
{
	for (const char *p = list; *p;) {
		char *end;
		double v = strtod(p, &end);

		if (end == p || (*end && *end != ',') || !(v >= 0 && v <= 100) || s->n_p == BENCH_PERCENTILES)
			return refuse(-EINVAL, err, errlen, "--metric-percentiles %s: give up to %d numbers from 0 to "
			              "100, separated by commas", list, BENCH_PERCENTILES);
		s->p[s->n_p++] = v;
		p = *end ? end + 1 : end;
	}
	return 0;
}

/* ---- per second -------------------------------------------------------------------------------- */

/* Find the most tokens and the most requests under way in a second, in buckets from the first start on. */
static int peaks(struct bench_summary *s, const struct bench_run *r, double from, double to)
{
	size_t n = (size_t)ceil(to - from) + 1;
	uint32_t *tokens = calloc(n, sizeof(*tokens)), *alive = calloc(n, sizeof(*alive));

	for (size_t i = 0; tokens && alive && i < r->n_sent; i++) {
		const struct bench_answer *a = &r->answer[i];
		double at = a->start + a->ttft;

		if (a->state != BENCH_OK)
			continue;
		for (size_t k = 0;; at += a->itl[k++]) {
			if ((size_t)(at - from) < n)
				tokens[(size_t)(at - from)]++;
			if (k == a->n_itl)
				break;
		}
		size_t last = (size_t)(a->start + a->latency - from);

		for (size_t k = (size_t)(a->start - from); k <= last && k < n; k++)
			alive[k]++;
	}
	for (size_t i = 0; tokens && alive && i < n; i++) {
		if (tokens[i] > s->peak_per_s)
			s->peak_per_s = tokens[i];
		if (alive[i] > s->peak_concurrent)
			s->peak_concurrent = alive[i];
	}
	free(tokens);
	free(alive);
	return tokens && alive ? 0 : -ENOMEM;
}

/* ---- the steady state -------------------------------------------------------------------------- */

struct edge { double at; int step; };

static int by_time(const void *a, const void *b)
{
	const struct edge *x = a, *y = b;

	return x->at != y->at ? (x->at > y->at) - (x->at < y->at) : x->step - y->step;
}

/* Find the first and last time at which the number under way was near its peak, without start and drain. */
static int plateau(struct bench_summary *s, const struct bench_run *r, double *to)
{
	struct edge *e = malloc((2 * s->completed + 1) * sizeof(*e));
	size_t n = 0;
	int live = 0, most = 0, near;

	if (!e)
		return -ENOMEM;
	for (size_t i = 0; i < r->n_sent; i++)
		if (r->answer[i].state == BENCH_OK) {
			e[n++] = (struct edge){ r->answer[i].start, 1 };
			e[n++] = (struct edge){ r->answer[i].start + r->answer[i].latency, -1 };
		}
	qsort(e, n, sizeof(*e), by_time);
	for (size_t i = 0; i < n; i++) {
		live += e[i].step;
		most = live > most ? live : most;
	}
	near = (int)ceil(most * r->o->steady);
	live = 0;
	*to = -1;
	for (size_t i = 0; i < n; i++) {
		if (e[i].step < 0 && live >= near)
			*to = e[i].at;
		live += e[i].step;
		if (live >= near && !s->steady.there) {
			s->steady.there = true;
			s->steady.from = e[i].at;
		}
	}
	s->steady.concurrency = (size_t)near;
	free(e);
	return 0;
}

static int steady(struct bench_summary *s, const struct bench_run *r, double *room, double *gaps)
{
	size_t n_ttft = 0, n_itl = 0, ended = 0;
	double to = 0, tokens = 0, from;
	int rc = plateau(s, r, &to);

	from = s->steady.from;
	s->steady.there = s->steady.there && to > from;
	if (rc || !s->steady.there)
		return rc;
	for (size_t i = 0; i < r->n_sent; i++) {
		const struct bench_answer *a = &r->answer[i];
		double at = a->start + a->ttft, each = (double)a->n_output / fmax(1, (double)a->n_chunks);

		if (a->state != BENCH_OK)
			continue;
		if (a->start >= from && at <= to)
			room[n_ttft++] = a->ttft;
		if (a->start + a->latency >= from && a->start + a->latency <= to)
			ended++;
		for (size_t k = 0;; at += a->itl[k++]) {
			if (at >= from && at <= to)
				tokens += each;
			if (k == a->n_itl)
				break;
			if (at >= from && at + a->itl[k] <= to)
				gaps[n_itl++] = a->itl[k];
		}
	}
	s->steady.n = n_ttft;
	s->steady.seconds = to - from;
	s->steady.requests_per_s = (double)ended / (to - from);
	s->steady.output_per_s = tokens / (to - from);
	bench_stat(&s->steady.ttft, room, n_ttft, s->p, s->n_p);
	bench_stat(&s->steady.itl, gaps, n_itl, s->p, s->n_p);
	return 0;
}

/* ---- all --------------------------------------------------------------------------------------- */

/* Put the values of all good answers into v.  Returns their number. */
static size_t gather(const struct bench_run *r, int metric, double *v)
{
	size_t n = 0;

	for (size_t i = 0; i < r->n_sent; i++) {
		const struct bench_answer *a = &r->answer[i];
		double x = value(a, metric);

		if (a->state != BENCH_OK)
			continue;
		if (metric == ITL)
			for (size_t k = 0; k < a->n_itl; k++)
				v[n++] = a->itl[k];
		else if (!isnan(x))
			v[n++] = x;
	}
	return n;
}

static void lateness(struct bench_summary *s, const struct bench_run *r, double *v)
{
	const double p[1] = { 99 };
	struct bench_stat late;
	size_t n = 0;

	for (size_t i = 0; i < r->n_sent; i++)
		v[n++] = r->answer[i].late;
	bench_stat(&late, v, n, p, 1);
	s->late_mean = late.mean;
	s->late_p99 = late.p[0];
	s->late_max = n ? v[n - 1] : 0;
	n = 0;
	for (size_t i = 0; i < r->n_sent; i++)
		if (r->answer[i].state == BENCH_OK)
			v[n++] = r->answer[i].ttft + (r->answer[i].start - r->answer[i].due);
	bench_stat(&s->open_ttft, v, n, s->p, s->n_p);
	n = gather(r, E2EL_QUEUE, v);
	bench_stat(&s->open_e2el, v, n, s->p, s->n_p);
}

static void count_requests(struct bench_summary *s, const struct bench_run *r, double *from, double *to,
                           size_t *n_good)
{
	for (size_t i = 0; i < r->load->n; i++) {
		const struct bench_answer *a = &r->answer[i];

		s->failed += a->state == BENCH_FAILED;
		s->cut += a->state == BENCH_CUT;
		s->unsent += a->state == BENCH_UNSENT;
		if (a->state != BENCH_OK)
			continue;
		if (!s->completed++ || a->start < *from)
			*from = a->start;
		if (a->start + a->latency > *to)
			*to = a->start + a->latency;
		s->n_input += a->n_input;
		s->n_output += a->n_output;
		*n_good += good(a, &r->o->goodput);
	}
}

int bench_summarize(struct bench_summary *s, const struct bench_run *r, char *err, size_t errlen)
{
	size_t n_good = 0, n_gaps = 0;
	double from = 0, to = 0, *v;
	int rc;

	memset(s, 0, sizeof(*s));
	rc = percentiles(s, r->o->percentiles, err, errlen);
	if (rc)
		return rc;
	s->tokenizer = r->text != NULL;
	s->has_goodput = r->o->goodput.n > 0;
	count_requests(s, r, &from, &to, &n_good);
	s->duration = r->end - r->begin;
	if (s->duration > 0) {
		s->requests_per_s = (double)s->completed / s->duration;
		s->goodput = s->has_goodput ? (double)n_good / s->duration : 0;
		s->output_per_s = (double)s->n_output / s->duration;
		s->total_per_s = (double)(s->n_input + s->n_output) / s->duration;
	}
	for (size_t i = 0; i < r->n_sent; i++)
		n_gaps += r->answer[i].n_itl;
	v = malloc((r->load->n + n_gaps + 1) * sizeof(*v));
	rc = v ? 0 : -ENOMEM;
	if (!rc && s->completed)
		rc = peaks(s, r, from, to);
	for (int m = 0; !rc && m < BENCH_METRICS; m++) {
		size_t n = gather(r, m, v);

		bench_stat(&s->stat[m], v, n, s->p, s->n_p);
	}
	if (!rc)
		lateness(s, r, v);
	if (!rc && s->completed)
		rc = steady(s, r, v, v + r->load->n);
	free(v);
	if (rc)
		snprintf(err, errlen, "no memory to sum up %zu answers", r->n_sent);
	return rc;
}
