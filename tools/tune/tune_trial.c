/* tune_trial.c - turns the knobs to a setting, sends the whole traffic once, and keeps the result.
 *
 * All runs send the same prompts at the same times, with greedy sampling.  Each run has its own cache salt.
 * So it does not find the previous run's prompts in the prefix cache.  Only prefixes within the traffic are
 * shared.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/time.h>

#include "tune.h"

#define QUIET_S 10.0             /* s that the server may need to forget a run that was cut off */
#define ALONE   3                /* requests sent alone */

volatile sig_atomic_t tune_interrupted;
static volatile sig_atomic_t stop;       /* ends the run under way: set by signals and by the timer */

void tune_interrupt(int sig)
{
	(void)sig;
	tune_interrupted = stop = 1;
}

static void on_alarm(int sig)
{
	(void)sig;
	stop = 1;
}

/* End the run under way after `limit` seconds, or by Ctrl-C. */
static void watch_machine(double limit)
{
	struct itimerval every = { { 0, 200000 }, { 0, 200000 } };

	if (limit > 0) {
		every.it_value.tv_sec = (time_t)limit;
		every.it_value.tv_usec = (suseconds_t)((limit - floor(limit)) * 1e6) + 1;
	}
	stop = tune_interrupted;
	sigaction(SIGALRM, &(struct sigaction){ .sa_handler = on_alarm }, NULL);
	setitimer(ITIMER_REAL, limit > 0 ? &every : &(struct itimerval){ 0 }, NULL);
}

struct tune_trial *tune_trial(struct tune *t, const struct tune_setting *s)
{
	struct tune_trial *tr = t->trial;

	for (; tr < t->trial + t->n_trials; tr++)
		if (!memcmp(&tr->s, s, sizeof(*s)) && !strcmp(tr->flags, t->server.flags))
			return tr;
	if (t->n_trials == TUNE_TRIALS)
		return NULL;
	*tr = (struct tune_trial){ .s = *s, .hit_rate = NAN };
	snprintf(tr->flags, sizeof(tr->flags), "%s", t->server.flags);
	t->n_trials++;
	return tr;
}

int tune_turn(struct tune *t, const struct tune_setting *s, char *err, size_t errlen)
{
	int rc = tune_state_save(t, s, err, errlen);

	for (int i = 0; !rc && i < tune_instances(t); i++)
		rc = turn_all(tune_instance(t, i), s->knob, err, errlen);
	return rc;
}

/* ---- answers ----------------------------------------------------------------------------------- */

static uint64_t digest(const struct bench_answer *a)
{
	uint64_t h = a->n_ids;

	for (size_t i = 0; i < a->n_ids; i++) {
		h = (h ^ (uint32_t)a->ids[i]) * 0x9e3779b97f4a7c15u;
		h ^= h >> 29;
	}
	return h | 1;
}

static void compare_answers(struct tune *t, struct tune_trial *tr, const struct bench_run *r)
{
	bool first = !t->digest;

	if (first)
		t->digest = calloc(t->load.n, sizeof(*t->digest));
	tr->same = tr->compared = 0;
	for (size_t i = 0; t->digest && i < r->n_sent; i++) {
		if (r->answer[i].state != BENCH_OK)
			continue;
		if (first || !t->digest[i])
			t->digest[i] = digest(&r->answer[i]);
		tr->compared++;
		tr->same += t->digest[i] == digest(&r->answer[i]);
	}
}

/* ---- a run ------------------------------------------------------------------------------------- */

static struct bench_run new_run(const struct tune *t)
{
	struct bench_run r = { .o = &t->o.traffic, .load = &t->load, .at = t->arrival, .model = t->model,
	                       .text = t->text, .url = t->socket, .socket = t->socket, .stop = &stop,
	                       .replica = t->server.sockets, .n_replicas = t->server.n, .keep_ids = true };

	if (getrandom(&r.salt, sizeof(r.salt), 0) != sizeof(r.salt) || !r.salt)
		r.salt = (uint64_t)(bench_now() * 1e9) | 1;
	return r;
}

/* Closing the connection cancels a run that was cut off.  Wait until the server has forgotten it. */
static void wait_quiet(const struct tune *t)
{
	double until = bench_now() + QUIET_S;
	struct timespec nap = { 0, 1000000 };

	for (int i = 0; i < tune_instances(t); i++) {
		const struct stats_page *p = tune_instance(t, i)->page;

		while (stats_read(p) == 0 && (p->running || p->waiting) && bench_now() < until)
			nanosleep(&nap, NULL);
	}
}

/* Add n shares of `from`, whose sum is `all`, as a part of `parts`. */
static void add_shares(double *to, const double *from, int n, double all, int parts)
{
	for (int i = 0; i < n && all > 0; i++)
		to[i] += from[i] / all / parts;
}

/* Figures of the run that began at from[]: the mean of all daemons. */
static void keep_limits(struct tune *t, struct tune_trial *tr, const struct stats_mark *from, size_t n_ended)
{
	int n = tune_instances(t);
	struct stats_mark to;
	struct figures f;
	double hits = 0, steps = 0, busy = 0;
	uint64_t ended = 0;

	memset(tr->why, 0, sizeof(tr->why));
	memset(tr->empty, 0, sizeof(tr->empty));
	memset(tr->bound, 0, sizeof(tr->bound));
	for (int i = n - 1; i >= 0; i--) {
		stats_read(tune_instance(t, i)->page);
		figures_now(tune_instance(t, i)->page, true, &to);
		figures_between(&from[i], &to, &f);
		add_shares(tr->why, f.why_s, N_WHY, f.why_all, n);
		add_shares(tr->empty, f.empty_s, N_EMPTY, f.why_all, n);
		add_shares(tr->bound, f.bound_s, N_BOUND, f.bound_all - f.bound_s[BOUND_IDLE], n);
		hits += f.hit_rate / n;
		steps += (double)f.n.steps;
		busy += f.bound_all - f.bound_s[BOUND_IDLE];
		ended += f.ended;
	}
	tr->bound[BOUND_IDLE] = 0;
	tr->step_ms = steps > 0 ? busy / steps * 1000 : 0;
	tr->hit_rate = hits;
	tr->count = f.n;                      /* of the first daemon */
	t->disturbed |= ended > n_ended;
}

static int keep_result(struct tune *t, struct tune_trial *tr, const struct bench_run *r, char *err,
                       size_t errlen)
{
	struct bench_about about = { t->model, t->model, time(NULL) };
	struct bench_summary s;
	int rc = bench_summarize(&s, r, err, errlen);

	if (rc)
		return rc;
	if (!s.completed || s.failed) {
		for (size_t i = 0; i < r->n_sent; i++)
			if (r->answer[i].state == BENCH_FAILED) {
				snprintf(err, errlen, "%zu of %zu requests failed: %s", s.failed, t->load.n,
				         r->answer[i].error);
				break;
			}
		return -EIO;
	}
	if (tr->n == TUNE_RUNS) {             /* drop the oldest */
		json_decref(tr->result[0]);
		memmove(tr->result, tr->result + 1, (TUNE_RUNS - 1) * sizeof(*tr->result));
		memmove(tr->score, tr->score + 1, (TUNE_RUNS - 1) * sizeof(*tr->score));
		tr->n--;
	}
	tr->result[tr->n] = bench_result(&s, r, &about, false);
	tr->score[tr->n] = t->o.goal == GOAL_GOODPUT ? s.goodput : s.output_per_s;
	tr->n++;
	tr->seconds = s.duration;
	compare_answers(t, tr, r);
	return 0;
}

int tune_send(struct tune *t, struct tune_trial *tr, double limit, char *err, size_t errlen)
{
	static struct stats_mark from[TUNE_DAEMONS];
	struct bench_run r = new_run(t);
	double left = tune_left(t);
	bool by_clock, by_budget = false;
	int rc = tune_turn(t, &tr->s, err, errlen);

	if (rc)
		return rc;
	wait_quiet(t);
	for (int i = 0; i < tune_instances(t); i++)
		figures_now(tune_instance(t, i)->page, true, &from[i]);
	if (t->n_trials > 1 && (limit <= 0 || left < limit)) {
		by_budget = true;             /* a cut is due to the budget, not to slowness */
		limit = left > 0 ? left : 0.01;
	}
	watch_machine(limit);
	rc = bench_run(&r, err, errlen);
	watch_machine(0);
	t->n_sent++;
	by_clock = !rc && r.n_done < t->load.n && !tune_interrupted;
	if (!rc && tune_interrupted)
		rc = -EINTR;
	else if (!rc && !by_clock)
		rc = keep_result(t, tr, &r, err, errlen);
	if (by_clock && by_budget) {
		snprintf(err, errlen, "the time of --budget is used up");
		rc = -ETIME;
	} else if (by_clock) {
		tr->cut = true;
		tr->seconds = limit;
	}
	wait_quiet(t);
	if (!rc)
		keep_limits(t, tr, from, r.n_sent);
	bench_run_free(&r);
	if (!rc)
		rc = tune_state_save(t, &tr->s, err, errlen);
	return rc ? rc : by_clock;
}

/* ---- few requests ------------------------------------------------------------------------------ */

int tune_alone(struct tune *t, double *ttft, double *tpot, double *e2el, char *err, size_t errlen)
{
	struct bench_options o = t->o.traffic;
	struct bench_run r = new_run(t);
	struct bench_load few = t->load;
	struct bench_summary s;
	double at[ALONE] = { 0 };
	int rc;

	few.n = few.n < ALONE ? few.n : ALONE;
	o.concurrency = 1;
	r.o = &o;
	r.load = &few;
	r.at = at;
	watch_machine(0);
	rc = bench_run(&r, err, errlen);
	if (!rc && tune_interrupted)
		rc = -EINTR;
	if (!rc)
		rc = bench_summarize(&s, &r, err, errlen);
	if (!rc && (!s.completed || s.failed)) {
		snprintf(err, errlen, "the first requests failed: %s", r.answer[0].error);
		rc = -EIO;
	}
	if (!rc) {
		*ttft = s.stat[0].median;
		*tpot = s.stat[1].median;
		*e2el = s.stat[3].median;
	}
	bench_run_free(&r);
	return rc;
}

int tune_ids(struct tune *t, size_t n, struct bench_run *r, char *err, size_t errlen)
{
	static struct bench_load few;
	static double at[256];
	int rc;

	few = t->load;
	few.n = few.n < n ? few.n : n;
	few.n = few.n < 256 ? few.n : 256;
	*r = new_run(t);
	r->load = &few;
	r->at = at;
	watch_machine(0);
	rc = bench_run(r, err, errlen);
	return !rc && tune_interrupted ? -EINTR : rc;
}
