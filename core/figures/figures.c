/* figures.c - computes differences of counters and writes them as text. */
#include "figures.h"
#include "shmring/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void figures_now(const struct stats_page *p, bool alive, struct stats_mark *m)
{
	uint64_t now = sr_now();

	stats_now(p, m);
	if (!alive || p->busy_since_ns || !m->at_ns || now <= m->at_ns)
		return;
	m->count.why_ns[WHY_EMPTY] += now - m->at_ns;
	m->count.bound_ns[BOUND_IDLE] += now - m->at_ns;
	m->count.empty_ns[p->clients ? EMPTY_SILENT : EMPTY_NOBODY] += now - m->at_ns;
	m->at_ns = now;
}

/* (b - a) / by, but never below 0, because counters may be from different moments. */
static double per(uint64_t a, uint64_t b, double by)
{
	return b > a && by > 0 ? (double)(b - a) / by : 0;
}

void figures_between(const struct stats_mark *a, const struct stats_mark *b, struct figures *f)
{
	*f = (struct figures){ .hit_rate = NAN, .rows = NAN };
	f->seconds = per(a->at_ns, b->at_ns, 1e9);
	counters_between(&a->count, &b->count, &f->n);
	f->ended = counters_ended(&f->n);
	f->prompt_per_s = per(0, f->n.prompt_tokens, f->seconds);
	f->generated_per_s = per(0, f->n.generation_tokens, f->seconds);
	f->requests_per_s = per(0, f->ended, f->seconds);
	f->steps_per_s = per(0, f->n.steps, f->seconds);
	if (f->n.prefix_queries)
		f->hit_rate = per(0, f->n.prefix_hits, (double)f->n.prefix_queries);
	f->running = per(0, f->n.running_ns, f->seconds * 1e9);
	f->waiting = per(0, f->n.waiting_ns, f->seconds * 1e9);
	if (f->n.steps)
		f->rows = per(0, f->n.rows, (double)f->n.steps);
	for (int i = 0; i < N_WHY; i++)
		f->why_all += f->why_s[i] = per(0, f->n.why_ns[i], 1e9);
	for (int i = 0; i < N_EMPTY; i++)
		f->empty_s[i] = per(0, f->n.empty_ns[i], 1e9);
	for (int i = 0; i < N_CORES; i++)
		f->cores_s[i] = per(0, f->n.cores_ns[i], 1e9);
	for (int i = 0; i < N_BOUND; i++)
		f->bound_all += f->bound_s[i] = per(0, f->n.bound_ns[i], 1e9);
}

double figures_percentile(enum stats_hist h, const struct stats_histogram *a,
                          const struct stats_histogram *b, double share)
{
	uint64_t count[STATS_BUCKETS], all = 0;
	const double *bound;
	double want, below = 0;
	int n, i;

	bound = stats_bounds(h, &n);
	for (i = 0; i <= n; i++) {
		count[i] = b->count[i] - (a && a->count[i] < b->count[i] ? a->count[i] : a ? b->count[i] : 0);
		all += count[i];
	}
	if (!all)
		return NAN;
	want = share * (double)all;
	for (i = 0; i < n && below + (double)count[i] < want; i++)
		below += (double)count[i];
	if (i == n)
		return bound[n - 1];          /* above the last bound: return that bound */
	return (i ? bound[i - 1] : 0) + (bound[i] - (i ? bound[i - 1] : 0)) *
	       (count[i] ? (want - below) / (double)count[i] : 1);
}

void figures_bar(char *out, int n, double share)
{
	int full = share > 0 ? (int)(share * n + 0.5) : 0;

	full = full > n ? n : full;
	memset(out, '#', (size_t)full);
	memset(out + full, '.', (size_t)(n - full));
	out[n] = 0;
}

json_t *figures_json(const double *seconds, int n, const char *(*name)(int))
{
	json_t *j = json_object();

	for (int i = 0; i < n; i++)
		json_object_set_new(j, name(i), json_real(seconds[i]));
	return j;
}

void figures_guesses_json(json_t *to, const struct counters *n)
{
	json_object_update_new(to, json_pack("{s:I, s:I, s:I, s:f, s:f}", "drafts", (json_int_t)n->drafts, "draft_tokens",
	              (json_int_t)n->draft_tokens, "draft_accepted", (json_int_t)n->draft_accepted,
	              "draft_s", (double)n->draft_ns / 1e9, "draft_without_s", (double)n->draft_without_ns / 1e9));
}

void figures_lost_json(json_t *to, const struct counters *n)
{
	for (size_t i = 0; i < COUNTERS_NAMED; i++)
		if (counter_info(i)->lost)
			json_object_set_new(to, counter_info(i)->name, json_integer((json_int_t)counter_value(n, i)));
}

void figures_lost_read(struct counters *n, const json_t *from)
{
	for (size_t i = 0; i < COUNTERS_NAMED; i++)
		if (counter_info(i)->lost)
			counter_set(n, i, (uint64_t)json_integer_value(json_object_get(from, counter_info(i)->name)));
}

char *figures_lost(char *out, size_t size, const struct counters *n, bool *any)
{
	size_t at = 0;
	bool some = false;

	*out = 0;
	for (size_t i = 0; i < COUNTERS_NAMED; i++) {
		if (!counter_info(i)->lost)
			continue;
		some |= counter_value(n, i) > 0;
		if (at < size)
			at += (size_t)snprintf(out + at, size - at, "%s%llu %s", at ? ", " : "",
			                       (unsigned long long)counter_value(n, i), counter_info(i)->name);
	}
	if (any)
		*any = some;
	return out;
}

char *figures_empty(char *out, size_t n, const double empty_s[N_EMPTY], double all)
{
	size_t at = 0;

	*out = 0;
	for (int i = 0; i < N_EMPTY; i++)
		if (all > 0 && empty_s[i] / all >= 0.005 && at < n)
			at += (size_t)snprintf(out + at, n - at, "%s%s %.0f %%", at ? ", " : "",
			                       stats_empty_name(i), empty_s[i] / all * 100);
	return out;
}

void figures_client(char out[33], const char name[32])
{
	int n = 0;

	for (; n < 32 && name[n]; n++)
		out[n] = name[n] >= ' ' && name[n] <= '~' ? name[n] : '?';
	out[n] = 0;
}

double figures_time(const char *text)
{
	static const struct { const char *unit; double s; } units[] = { { "", 1 }, { "s", 1 }, { "m", 60 },
		{ "min", 60 }, { "h", 3600 }, { "d", 86400 } };
	char *end;
	double v = strtod(text, &end);

	for (size_t i = 0; end != text && i < sizeof(units) / sizeof(units[0]); i++)
		if (!strcmp(end, units[i].unit) && v > 0 && v < 1e9)
			return v * units[i].s;
	return NAN;
}

void figures_ms(char *out, size_t n, double seconds)
{
	if (isnan(seconds))
		snprintf(out, n, "-");
	else
		snprintf(out, n, seconds < 0.01 ? "%.2f ms" : seconds < 0.1 ? "%.1f ms" : "%.0f ms", seconds * 1e3);
}

void figures_age(char *out, size_t n, double seconds)
{
	unsigned long s = seconds > 0 ? (unsigned long)seconds : 0;

	if (s >= 86400)
		snprintf(out, n, "%lu d %lu h", s / 86400, s % 86400 / 3600);
	else if (s >= 3600)
		snprintf(out, n, "%lu h %lu min", s / 3600, s % 3600 / 60);
	else if (s >= 60)
		snprintf(out, n, "%lu min %lu s", s / 60, s % 60);
	else
		snprintf(out, n, "%.1f s", seconds > 0 ? seconds : 0);
}
