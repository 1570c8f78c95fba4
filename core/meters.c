/* meters.c - see meters.h. */
#include "meters.h"

#include <stdio.h>

#include "core/instance/knobs.h"
#include "core/instance/log.h"

#define SECOND  1000000000ull
#define MINUTE  (60 * SECOND)

_Static_assert(N_WHY <= STATS_AXIS && N_BOUND <= STATS_AXIS && N_KNOBS <= STATS_KNOBS, "room in the page");

/* Publish both axes together, so that readers see them add up.  Hold back time that is not attributed yet.
 * A new stretch of `empty` begins a window if the last window ended long ago. */
static void show_axes(struct meters *m, const struct sched_stats *s, bool at_once)
{
	bool pending = empty_pending(&m->empty);
	struct stats_page *st = m->st;
	uint64_t now = m->at;

	if (pending || s->why == WHY_EMPTY) {
		bool due = empty_due(&m->empty, now, (int32_t)st->clients);

		if (due || (pending && at_once)) {
			uint64_t then = io_now(); /* `now` may be before the start of a client's clock */

			clients_doing(m->cl, &m->empty, then);
			empty_split(&m->empty, then, st->empty_ns);
		} else if (pending) {
			return;
		}
	}
	for (int i = 0; i < N_WHY; i++)
		st->why_ns[i] = s->why_ns[i];
	for (int i = 0; i < N_BOUND; i++)
		st->bound_ns[i] = s->bound_ns[i];
	st->accounted_ns = now;
}

void meters_count(struct meters *m, uint64_t now)
{
	struct sched_stats s;
	struct kv_stats k;
	struct clients_stats c;
	struct stats_page *st = m->st;

	if (m->at) {                  /* the state that held until this step */
		st->running_ns += st->running * (now - m->at);
		st->waiting_ns += st->waiting * (now - m->at);
	}
	sched_stats(m->s, &s);
	empty_add(&m->empty, st->running ? EMPTY_SERVED : st->clients ? EMPTY_SILENT : EMPTY_NOBODY,
	          s.why_ns[WHY_EMPTY] - m->empty_ns);
	m->at = now;
	m->empty_ns = s.why_ns[WHY_EMPTY];
	show_axes(m, &s, now >= m->minute_at);
	kv_stats(m->kv, &k);
	clients_stats(m->cl, &c);
	st->running = (uint64_t)s.running;
	st->waiting = (uint64_t)s.waiting;
	st->blocks_used = (uint64_t)k.n_held;
	if ((uint32_t)k.n_held > st->blocks_peak)
		st->blocks_peak = (uint32_t)k.n_held;
	st->clients = (uint64_t)c.connected;
	st->preemptions = s.preemptions;
	st->prefix_queries = s.prefix_queries;
	st->held = s.held;
	st->prefix_hits = s.prefix_hits;
	st->prompt_computed = s.prompt_computed;
	st->refused = c.refused;
	st->invalid = c.invalid;
	st->died = c.died;
	st->accepted = c.accepted;
	st->rows = s.rows;
	st->step_tokens = s.tokens;
	st->int8_ops = s.int8_ops;
	st->float_ops = s.float_ops;
	st->bytes_moved = s.bytes;
	st->bytes_copied = s.copied;
	if (s.steps != m->steps_seen) {
		st->step[st->n_step++ % STATS_STEPS] = (struct stats_step){
			.begin_ns = s.last.begin_ns, .rows = (uint32_t)s.last.rows,
			.tokens = (uint32_t)s.last.tokens, .host_ns = s.last.host_ns,
			.device_ns = s.last.device_ns, .why = s.last.why, .bound = s.last.bound };
		stats_observe(st, HIST_STEP_TOKENS, s.last.tokens);
		st->steps = s.steps;
		st->progress += s.steps - m->steps_seen;
		m->steps_seen = s.steps;
	}
	if (!st->ready_ns)
		st->ready_ns = now;           /* the first step: both axes begin */
	if (now >= m->minute_at) {
		stats_minute(st);
		m->minute_at = now + MINUTE;
		io_timer_set(m->io, &m->minute, m->minute_at);
	}
}

/* Only wakes an idle loop: meters_count() marks the minute after it has accounted for the sleep. */
static void on_minute(struct io_timer *t) { (void)t; }

/* Log vLLM's line after every ten seconds in which anything happened, and once more after the last. */
static void on_report(struct io_timer *t)
{
	struct meters *m = t->ctx;
	const struct stats_page *st = m->st;
	uint64_t now = io_now(), queries = st->prefix_queries - m->last.queries;
	double seconds = (double)(now - m->last.at) / 1e9;
	bool active = st->prompt_tokens != m->last.prompt || st->generation_tokens != m->last.generated ||
	              st->running || st->waiting;
	char preempted[40] = "";

	if (st->preemptions != m->last.preempted)
		snprintf(preempted, sizeof(preempted), "Preemptions: %llu, ", (unsigned long long)st->preemptions);
	if (active || m->last.active)
		log_info("Engine 000: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f "
		         "tokens/s, Running: %llu reqs, Waiting: %llu reqs, %sGPU KV cache usage: %.1f%%, "
		         "Prefix cache hit rate: %.1f%%",
		         (double)(st->prompt_tokens - m->last.prompt) / seconds,
		         (double)(st->generation_tokens - m->last.generated) / seconds,
		         (unsigned long long)st->running, (unsigned long long)st->waiting, preempted,
		         st->n_blocks ? 100.0 * (double)st->blocks_used / (double)st->n_blocks : 0.0,
		         queries ? 100.0 * (double)(st->prefix_hits - m->last.hits) / (double)queries : 0.0);
	m->last.at = now;
	m->last.prompt = st->prompt_tokens;
	m->last.generated = st->generation_tokens;
	m->last.queries = st->prefix_queries;
	m->last.hits = st->prefix_hits;
	m->last.preempted = st->preemptions;
	m->last.active = active;
	io_timer_set(m->io, t, now + 10 * SECOND);
}

void meters_report(struct meters *m, bool wanted)
{
	io_timer_del(m->io, &m->report);
	if (wanted)
		io_timer_set(m->io, &m->report, m->last.at + 10 * SECOND);
}

void meters_start(struct meters *m, bool report)
{
	m->minute = (struct io_timer){ .fn = on_minute, .ctx = m };
	m->report = (struct io_timer){ .fn = on_report, .ctx = m };
	m->last.at = io_now();
	meters_report(m, report);
}

void meters_sleep(struct meters *m)
{
	struct sched_stats s;

	sched_stats(m->s, &s);
	show_axes(m, &s, true);
}
