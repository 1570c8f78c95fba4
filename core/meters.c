/* meters.c - see meters.h. */
#include "meters.h"
#include "rank.h"

#include <stdio.h>
#include <unistd.h>

#include "core/instance/knobs.h"
#include "core/instance/log.h"

#define SECOND  1000000000ull
#define MINUTE  (60 * SECOND)
#define LEAST_BUSY (SECOND / 10)      /* under way; less says nothing about the cores */

_Static_assert(N_WHY <= COUNTERS_AXIS && N_BOUND <= COUNTERS_AXIS && N_KNOBS <= STATS_KNOBS,
               "room in the page");

/* Publish both axes.  Hold back time that is not attributed yet.  A new stretch of `empty` begins a window
 * if the last window ended long ago. */
static void show_axes(struct meters *m, enum sched_why why, bool at_once)
{
	bool pending = empty_pending(&m->empty);
	uint64_t now = m->at;

	if (pending || why == WHY_EMPTY) {
		bool due = empty_due(&m->empty, now, (int32_t)m->st->clients);

		if (due || (pending && at_once)) {
			uint64_t then = io_now(); /* `now` may be before the start of a client's clock */

			clients_doing(m->cl, &m->empty, then);
			empty_split(&m->empty, then, m->counters->empty_ns);
		} else if (pending) {
			return;
		}
	}
	stats_axes(m->st, m->counters, now);
}

/* Time since the turn before, in the state that held until this one. */
static void count_time(struct meters *m, uint64_t now)
{
	struct stats_page *st = m->st;
	struct counters *n = m->counters;

	if (m->at) {
		n->running_ns += st->running * (now - m->at);
		n->waiting_ns += st->waiting * (now - m->at);
	}
	empty_add(&m->empty, st->running ? EMPTY_SERVED : st->clients ? EMPTY_SILENT : EMPTY_NOBODY,
	          n->why_ns[WHY_EMPTY] - m->empty_ns);
	m->at = now;
	m->empty_ns = n->why_ns[WHY_EMPTY];
}

/* Once a second: for which share of the time under way did the daemon lack a core?  The next second's is counted by
 * it.  A look after little work only begins anew, so that waits of an idle daemon do not count. */
static void look_for_cores(struct meters *m, uint64_t now)
{
	const uint64_t since = now - m->cores.at_ns;
	int32_t pid[CORES_PIDS], n = 0;
	uint64_t lost[N_CORES], busy = 0;
	double share[N_CORES] = { 0 };

	for (int i = 0; i < N_BOUND; i++)
		busy += i == BOUND_IDLE ? 0 : m->counters->bound_ns[i];
	if (since < SECOND || (busy - m->cores_busy_ns < LEAST_BUSY && since < 3 * SECOND))
		return;
	pid[n++] = getpid();
	for (uint64_t i = 0; i < m->st->n_ranks && n < CORES_PIDS; i++)
		pid[n++] = (int32_t)m->st->rank[i].pid;
	cores_look(&m->cores, pid, n, now, lost);
	busy -= m->cores_busy_ns;
	m->cores_busy_ns += busy;
	for (int i = 0; i < N_CORES && busy >= LEAST_BUSY; i++)
		share[i] = (double)lost[i] / (double)busy;
	sched_lack_cores(m->s, share, m->computes);
	m->st->cores_known = m->cores.known;
}

void meters_count(struct meters *m, uint64_t now)
{
	struct sched_stats s;
	struct kv_stats k;
	struct clients_stats c;
	struct stats_page *st = m->st;

	sched_stats(m->s, &s);
	count_time(m, now);
	show_axes(m, s.why, now >= m->minute_at);
	kv_stats(m->kv, &k);
	m->counters->window_blocks = k.slid;
	m->counters->window_misses = k.missed * m->st->block_tokens;
	m->counters->states_kept = k.states_kept;
	m->counters->states_hit = k.states_hit;
	m->counters->states_evicted = k.states_evicted;
	clients_stats(m->cl, &c);
	st->running = (uint64_t)s.running;
	st->waiting = (uint64_t)s.waiting;
	st->waiting_tokens = (uint64_t)s.waiting_tokens;
	st->prompt_token_ns = s.prompt_token_ns;
	st->blocks_used = (uint64_t)k.n_held;
	_Static_assert(STATS_GROUPS == KV_GROUPS, "a place for each");
	for (uint64_t g = 0; g < st->kv_groups; g++)
		st->group[g].used = (uint32_t)k.held[g];
	st->blocks_cached = (uint64_t)k.n_cached;
	st->host_cached = (uint64_t)k.n_host_cached;
	st->states_used = st->n_states - (uint64_t)(k.n_states_free + k.n_states_cached);
	if ((uint32_t)k.n_held > st->blocks_peak)
		st->blocks_peak = (uint32_t)k.n_held;
	st->clients = (uint64_t)c.connected;
	if (m->counters->steps != st->count.steps) {
		st->step[st->n_step++ % STATS_STEPS] = (struct stats_step){
			.begin_ns = s.last.begin_ns, .rows = (uint32_t)s.last.rows,
			.tokens = (uint32_t)s.last.tokens, .host_ns = s.last.host_ns,
			.device_ns = s.last.device_ns, .why = s.last.why, .bound = s.last.bound };
		stats_observe(st, HIST_STEP_TOKENS, s.last.tokens);
		st->progress += m->counters->steps - st->count.steps;
	}
	if (m->ranks)
		rank_show(st, m->ranks);
	look_for_cores(m, now);
	meters_show(m);
	if (!st->ready_ns)
		st->ready_ns = now;           /* the first step: both axes begin */
	if (now >= m->minute_at) {
		stats_minute(st);
		m->minute_at = now + MINUTE;
		io_timer_set(m->io, &m->minute, m->minute_at);
	}
}

void meters_show(struct meters *m) { stats_count(m->st, m->counters); }

/* Only wakes an idle loop: meters_count() marks the minute after it has accounted for the sleep. */
static void on_minute(struct io_timer *t) { (void)t; }

/* Log vLLM's line after every ten seconds in which anything happened, and once more after the last. */
static void on_report(struct io_timer *t)
{
	struct meters *m = t->ctx;
	const struct stats_page *st = m->st;
	uint64_t now = io_now();
	double seconds = (double)(now - m->last.at) / 1e9;
	char preempted[40] = "";
	struct counters n;
	bool active;

	counters_between(&m->last.count, &st->count, &n);
	active = n.prompt_tokens || n.generation_tokens || st->running || st->waiting;
	if (n.preemptions)
		snprintf(preempted, sizeof(preempted), "Preemptions: %llu, ",
		         (unsigned long long)st->count.preemptions);
	if (active || m->last.active)
		log_info("Engine 000: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f "
		         "tokens/s, Running: %llu reqs, Waiting: %llu reqs, %sGPU KV cache usage: %.1f%%, "
		         "Prefix cache hit rate: %.1f%%",
		         (double)n.prompt_tokens / seconds, (double)n.generation_tokens / seconds,
		         (unsigned long long)st->running, (unsigned long long)st->waiting, preempted,
		         st->n_blocks ? 100.0 * (double)st->blocks_used / (double)st->n_blocks : 0.0,
		         n.prefix_queries ? 100.0 * (double)n.prefix_hits / (double)n.prefix_queries : 0.0);
	m->last.at = now;
	m->last.count = st->count;
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
	cores_open(&m->cores, "");
	m->st->cores_known = m->cores.known;
	m->last.at = io_now();
	meters_report(m, report);
}

void meters_sleep(struct meters *m)
{
	struct sched_stats s;

	sched_stats(m->s, &s);
	show_axes(m, s.why, true);
}
