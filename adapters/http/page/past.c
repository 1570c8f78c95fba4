/* past.c - see past.h. */
#include "past.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shmring/clock.h"

static uint32_t unix_of(uint64_t at_ns)
{
	const uint64_t now = sr_now();

	return (uint32_t)((uint64_t)time(NULL) - (now > at_ns ? (now - at_ns) / 1000000000u : 0));
}

static uint32_t whole(double x)
{
	return isnan(x) || x < 0 ? PAST_NONE : x > 4e9 ? PAST_NONE - 1 : (uint32_t)(x + 0.5);
}

/* What happened between two marks. */
static void row_between(struct past_row *r, const struct stats_mark *a, const struct stats_mark *b,
                        uint64_t n_blocks)
{
	struct figures f;

	figures_between(a, b, &f);
	for (int i = 0; i < PAST_COLUMNS; i++)
		r->v[i] = PAST_NONE;
	for (int i = 0; i < N_WHY; i++)
		r->v[PAST_WHY + i] = whole(f.why_s[i] * 1e3);
	for (int i = 0; i < N_BOUND; i++)
		r->v[PAST_BOUND + i] = whole(f.bound_s[i] * 1e3);
	for (int i = 0; i < N_EMPTY; i++)
		r->v[PAST_EMPTY + i] = whole(f.empty_s[i] * 1e3);
	r->v[PAST_PROMPT] = whole(f.prompt_per_s);
	r->v[PAST_GENERATED] = whole(f.generated_per_s);
	r->v[PAST_REQUESTS] = whole(f.requests_per_s * 1e3);
	r->v[PAST_RUNNING] = whole(f.running * 1e3);
	r->v[PAST_WAITING] = whole(f.waiting * 1e3);
	r->v[PAST_HITS] = whole(f.hit_rate * 1e3);
	r->v[PAST_KV] = n_blocks ? (uint32_t)(1000 * (uint64_t)b->blocks_peak / n_blocks) : 0;
	r->at = unix_of(b->at_ns);
}

static void add_latency(uint32_t v[2], enum stats_hist h, const struct stats_page *page,
                        struct stats_histogram *old)
{
	v[0] = whole(figures_percentile(h, old, &page->hist[h], 0.5) * 1e6);
	v[1] = whole(figures_percentile(h, old, &page->hist[h], 0.99) * 1e6);
	*old = page->hist[h];
}

/* Since *old, which is then now. */
static void latencies(uint32_t v[PAST_LATENCIES], const struct stats_page *page, struct past_hists *old)
{
	add_latency(v, HIST_TTFT, page, &old->ttft);
	add_latency(v + PAST_ITL_50 - PAST_TTFT_50, HIST_ITL, page, &old->itl);
	add_latency(v + PAST_QUEUE_50 - PAST_TTFT_50, HIST_QUEUE, page, &old->queue);
}

/* Keep the latencies of the minute under way when another one begins. */
static void see_minute(struct past *p, const struct stats_page *page, uint32_t number)
{
	struct past_minute *m = &p->day[p->minute_now % STATS_MINUTES];

	if (number == p->minute_now)
		return;
	m->number = p->minute_now;
	latencies(m->v, page, &p->minute);
	p->minute_now = number;
}

static void see_turns(struct past *p, const struct stats_page *page)
{
	for (int k = 0; k < N_KNOBS; k++) {
		if (page->knob[k] == p->knob[k])
			continue;
		p->turn[p->n_turns++ % PAST_TURNS] = (struct past_turn){ (uint32_t)time(NULL), k, p->knob[k],
		                                                         page->knob[k] };
		p->knob[k] = page->knob[k];
	}
}

/* Keep a second, until `now`, in which something was under way. */
static void see_busy(struct past *p, const struct stats_mark *now)
{
	struct past_busy b = { .from_ns = p->mark.at_ns, .to_ns = now->at_ns, .at = unix_of(now->at_ns) };
	uint64_t busy = 0;

	counters_between(&p->mark.count, &now->count, &b.n);
	for (int i = 0; i < N_BOUND; i++)
		busy += i == BOUND_IDLE ? 0 : b.n.bound_ns[i];
	if (busy)
		p->busy[p->n_busy++ % PAST_BUSY] = b;
}

uint64_t past_lately(const struct past *p, struct stats_mark *sum, uint32_t *until)
{
	uint64_t first = 0;

	*sum = (struct stats_mark){ 0 };
	*until = 0;
	for (uint64_t i = p->n_busy > PAST_BUSY ? p->n_busy - PAST_BUSY : 0; i < p->n_busy; i++) {
		const struct past_busy *b = &p->busy[i % PAST_BUSY];

		if (b->to_ns + PAST_BUSY_S * 1000000000ull < p->mark.at_ns)
			continue;
		first = first ? first : b->from_ns;
		sum->at_ns += b->to_ns - b->from_ns;
		for (size_t k = 0; k < COUNTERS_WORDS; k++)
			counter_set(&sum->count, k, counter_value(&sum->count, k) + counter_value(&b->n, k));
		*until = b->at;
	}
	return first;
}

void past_look(struct past *p, const struct stats_page *page, bool alive)
{
	const bool other = page->epoch != p->epoch;
	struct stats_mark now;
	struct past_row *r;

	if (!page->epoch || !page->ready_ns)
		return;
	figures_now(page, alive, &now);
	if (other) {
		p->epoch = page->epoch;
		p->mark = now;
		p->second = p->minute = (struct past_hists){ page->hist[HIST_TTFT], page->hist[HIST_ITL],
		                                             page->hist[HIST_QUEUE] };
		p->minute_now = unix_of(now.at_ns) / 60;
		p->n_busy = 0;
		memcpy(p->knob, page->knob, sizeof(p->knob));
	}
	see_turns(p, page);
	if (now.at_ns <= p->mark.at_ns)
		return;
	r = &p->row[p->n_rows++ % PAST_SECONDS];
	row_between(r, &p->mark, &now, page->n_blocks);
	r->v[PAST_KV] = page->n_blocks ? (uint32_t)(1000 * page->blocks_used / page->n_blocks) : 0;
	latencies(&r->v[PAST_TTFT_50], page, &p->second);
	see_minute(p, page, r->at / 60);
	see_busy(p, &now);
	p->mark = now;
}

/* ---- as JSON -------------------------------------------------------------------------------- */

struct rows { const struct past_row *row; uint64_t from, n, size; }; /* row i lies at [i % size] */

static const struct past_row *row_at(const struct rows *r, uint64_t i)
{
	return &r->row[(r->from + i) % r->size];
}

static bool zeros(const struct rows *r, int column)
{
	for (uint64_t i = 0; i < r->n; i++)
		if (row_at(r, i)->v[column] && row_at(r, i)->v[column] != PAST_NONE)
			return false;
	return true;
}

/* "name":[1,2,null]; true: it was written. */
static bool column_json(struct out *o, const struct rows *r, const char *name, int column, bool comma)
{
	if (column >= 0 && zeros(r, column))
		return false;
	out_fmt(o, "%s\"%s\":[", comma ? "," : "", name);
	for (uint64_t i = 0; i < r->n; i++) {
		const struct past_row *x = row_at(r, i);
		uint32_t v = column < 0 ? x->at : x->v[column];

		if (i)
			out_str(o, ",");
		if (v == PAST_NONE)
			out_str(o, "null");
		else
			out_int(o, v);
	}
	out_str(o, "]");
	return true;
}

static void axis_json(struct out *o, const struct rows *r, const char *axis, int column, int n,
                      const char *(*name)(int))
{
	bool some = false;

	out_fmt(o, ",\"%s\":{", axis);
	for (int i = 0; i < n; i++)
		some |= column_json(o, r, name(i), column + i, some);
	out_str(o, "}");
}

static void rows_json(struct out *o, const struct rows *r)
{
	static const char *const name[PAST_COLUMNS] = {
		[PAST_PROMPT] = "prompt_tokens_per_s", [PAST_GENERATED] = "generated_tokens_per_s",
		[PAST_REQUESTS] = "requests_per_1000_s", [PAST_RUNNING] = "running_milli",
		[PAST_WAITING] = "waiting_milli",
		[PAST_HITS] = "prefix_hits_permille", [PAST_KV] = "kv_permille",
		[PAST_TTFT_50] = "ttft_us_p50", [PAST_TTFT_99] = "ttft_us_p99", [PAST_ITL_50] = "itl_us_p50",
		[PAST_ITL_99] = "itl_us_p99", [PAST_QUEUE_50] = "queue_us_p50", [PAST_QUEUE_99] = "queue_us_p99",
	};

	out_str(o, "{");
	column_json(o, r, "at", -1, false);
	axis_json(o, r, "why", PAST_WHY, N_WHY, sched_why_name);
	axis_json(o, r, "bound", PAST_BOUND, N_BOUND, sched_bound_name);
	axis_json(o, r, "empty", PAST_EMPTY, N_EMPTY, stats_empty_name);
	for (int i = PAST_AXES; i < PAST_COLUMNS; i++)
		column_json(o, r, name[i], i, true);
	out_str(o, "}");
}

/* The daemon's minutes begin at any second: a row gets the latencies of the one it shares most with. */
static void know_latencies(struct past_row *r, const struct past *p)
{
	const uint32_t number = (r->at - 30) / 60;
	const struct past_minute *m = &p->day[number % STATS_MINUTES];

	if (m->number == number)
		memcpy(&r->v[PAST_TTFT_50], m->v, sizeof(m->v));
}

/* The rows between the marks of the page, and that of the minute under way.  A mark that was being replaced
 * is left out. */
static uint64_t minutes(struct past_row *row, const struct past *p, const struct stats_page *page)
{
	const uint64_t n = page->n_minute, oldest = n > STATS_MINUTES ? n - STATS_MINUTES : 0;
	const struct stats_mark *a = NULL;
	struct stats_mark now;
	uint64_t rows = 0;

	for (uint64_t i = oldest; i < n; i++) {
		const struct stats_mark *b = &page->minute[i % STATS_MINUTES];

		if (!b->at_ns || (a && b->at_ns <= a->at_ns))
			continue;
		if (a)
			row_between(&row[rows++], a, b, page->n_blocks);
		a = b;
	}
	figures_now(page, true, &now);
	if (a && now.at_ns > a->at_ns)
		row_between(&row[rows++], a, &now, page->n_blocks);
	for (uint64_t i = 0; i < rows; i++)
		know_latencies(&row[i], p);
	return rows;
}

static void turns_json(struct out *o, const struct past *p)
{
	char was[32], now[32];

	out_str(o, ",\"turns\":[");
	for (uint64_t n = p->n_turns, i = n > PAST_TURNS ? n - PAST_TURNS : 0, first = i; i < n; i++) {
		const struct past_turn *t = &p->turn[i % PAST_TURNS];

		knob_format((enum knob)t->knob, t->was, was, sizeof(was));
		knob_format((enum knob)t->knob, t->now, now, sizeof(now));
		out_fmt(o, "%s{\"at\":%u,\"knob\":\"%s\",\"was\":\"%s\",\"now\":\"%s\"}", i > first ? "," : "", t->at,
		        knob_info((enum knob)t->knob)->name, was, now);
	}
	out_str(o, "]");
}

void past_json(struct out *o, const struct past *p, const struct stats_page *page)
{
	struct past_row *day = page ? malloc(STATS_MINUTES * sizeof(*day)) : NULL;
	const uint64_t n = p->n_rows < PAST_SECONDS ? p->n_rows : PAST_SECONDS;

	out_str(o, "{\"seconds\":");
	rows_json(o, &(struct rows){ p->row, p->n_rows - n, n, PAST_SECONDS });
	out_str(o, ",\"minutes\":");
	rows_json(o, &(struct rows){ day, 0, day ? minutes(day, p, page) : 0, STATS_MINUTES });
	turns_json(o, p);
	out_str(o, "}");
	o->failed |= page && !day;
	free(day);
}
