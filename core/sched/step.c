/* sched/step.c - one step: results, deadlines, the next batch; where the time went. */
#include <errno.h>

#include "core/sched/impl.h"

/* Of dt, the part without a core, which is counted by who had it.  Threads that the device left out are the
 * first part; the shares are of the rest. */
static uint64_t lack_cores(struct sched *s, uint64_t dt)
{
	uint64_t sum = s->cores.left_out_ns < dt ? s->cores.left_out_ns : dt, rest = dt - sum;
	int most = CORES_OTHERS;

	for (int i = 0; i < N_CORES; i++)
		most = s->cores.share[i] > s->cores.share[most] ? i : most;
	s->cores.left_out_ns -= sum;
	s->cfg.counters->cores_ns[most] += sum;
	for (int i = 0; i < N_CORES; i++) {
		uint64_t ns = (uint64_t)(s->cores.share[i] * (double)rest);

		ns = ns < dt - sum ? ns : dt - sum;
		s->cfg.counters->cores_ns[i] += ns;
		sum += ns;
	}
	return sum;
}

/* Add the time since the last step to both axes. */
static void account_time(struct sched *s, uint64_t now, bool flying, uint32_t host_ns)
{
	uint64_t dt = s->last_step && now > s->last_step ? now - s->last_step : 0;
	uint64_t host = host_ns < dt ? host_ns : dt, lack, from_host;

	s->last_step = now;
	s->cfg.counters->why_ns[s->why] += dt;
	if (!flying) {
		s->cfg.counters->bound_ns[BOUND_IDLE] += dt;
		return;
	}
	lack = lack_cores(s, s->cores.all ? dt : host);
	from_host = lack < host ? lack : host;
	s->cfg.counters->bound_ns[BOUND_CORES] += lack;
	s->cfg.counters->bound_ns[BOUND_HOST] += host - from_host;
	s->cfg.counters->bound_ns[s->bound] += dt - host - (lack - from_host);
}

void sched_lack_cores(struct sched *s, const double share[N_CORES], bool all)
{
	double sum = 0;

	for (int i = 0; i < N_CORES; i++)
		sum += share[i];
	for (int i = 0; i < N_CORES; i++)
		s->cores.share[i] = sum > 1 ? share[i] / sum : share[i];
	s->cores.all = all;
}

static int expire(struct sched *s, uint64_t now)
{
	int n = 0;

	for (; s->n_heap && s->seq[s->heap[0]].deadline <= now; n++)
		seq_finish(s, s->heap[0], -ETIME);
	return n;
}

int sched_lose(struct sched *s)
{
	s->lost = true;
	for (int32_t i = 0; i < s->n_seq; i++)
		if (s->seq[i].state != SEQ_FREE)
			seq_finish(s, i, -EIO);
	s->reaped = s->launched;
	return -EIO;
}

/* The device lost all that it held, and can be started anew.  That is a preemption of every sequence: the ids are
 * here, so each waits, is computed again and goes on.  Batches in flight are nobody's any more. */
static void lose_all(struct sched *s)
{
	while (s->reaped % (uint32_t)s->ops->depth || s->reaped < s->launched)
		s->reaped++;                     /* the device's first batch is number 0 again */
	s->launched = s->reaped;
	s->n_filled++;                           /* no sequence has a row in a batch that is being filled */
	while (s->n_run)
		seq_preempt(s, s->run[s->n_run - 1]);
	while (s->n_ended)
		s->ended[s->ended_slot[--s->n_ended]] = false; /* its slots are empty: none needs an END */
	s->n_due = 0;
	s->cfg.counters->device_restarts++;
	kv_forget(s->kv);
	s->prev_end = 0;
}

/* What a lost device means: 0, it is being started anew; or -EIO. */
static int lost(struct sched *s)
{
	int r;

	if (!s->ops->again)
		return sched_lose(s);
	lose_all(s);
	r = s->ops->again(s->b);
	s->away = r == 0;
	return r < 0 ? sched_lose(s) : 0;
}

/* Nothing is to be done: was the device lost meanwhile? */
static int lost_idle(struct sched *s)
{
	int r = s->ops->again && s->reaped == s->launched ? s->ops->again(s->b) : 1;

	if (r == 1)
		return 0;
	lose_all(s);
	s->away = r == 0;
	return r < 0 ? sched_lose(s) : 0;
}

int sched_step(struct sched *s, uint64_t now)
{
	bool flying = s->reaped != s->launched;
	uint32_t host_ns;
	int reaped, filled, work;

	if (s->lost)
		return -EIO;
	if (s->away) {
		reaped = s->ops->again(s->b);
		if (reaped < 0)
			return sched_lose(s);
		if (reaped == 0) {
			account_time(s, now, false, 0);
			return expire(s, now);
		}
		s->away = false;
	}
	reaped = reap_batch(s, &host_ns);
	if (reaped < 0)
		return lost(s);
	account_time(s, now, flying, host_ns);
	work = reaped + expire(s, now);
	if (s->launched - s->reaped == (uint32_t)s->ops->depth)
		return work;
	if (!s->n_run && !s->stats.waiting && !s->n_ended) {
		s->why = WHY_EMPTY;
		return lost_idle(s) < 0 ? -EIO : work;
	}
	filled = fill_batch(s, now, reaped > 0);
	if (filled < 0)
		return lost(s) < 0 ? -EIO : work;
	return work + filled;
}

int32_t sched_flying(const struct sched *s)
{
	return s->reaped == s->launched ? -1 : (int32_t)(s->reaped % (uint32_t)s->ops->depth);
}

uint64_t sched_takes(const struct sched *s)
{
	const struct in_flight *f = &s->flight[s->reaped % (uint32_t)s->ops->depth];

	if (s->reaped == s->launched)
		return 0;
	if (f->n_guesses)
		return (uint64_t)draft_time(&s->draft.time, f->n_tokens);
	return (uint64_t)((f->n_decode ? s->decode_ns : 0) +
	                  (f->n_tokens - f->n_decode) * s->prompt_ns);
}

uint64_t sched_spare(const struct sched *s, uint64_t now)
{
	const struct in_flight *f = &s->flight[s->reaped % (uint32_t)s->ops->depth];
	uint64_t done;

	if (s->reaped == s->launched)
		return 0;
	done = (f->at > s->prev_end ? f->at : s->prev_end) + sched_takes(s); /* after the batch before it */
	return done > now ? done - now : 0;
}

bool sched_busy(const struct sched *s)
{
	return s->stats.waiting || s->n_run || s->reaped != s->launched || s->away;
}

void sched_stats(const struct sched *s, struct sched_stats *out)
{
	*out = s->stats;
	out->running = s->n_run;
	out->why = s->why;
	out->prompt_token_ns = s->prompt_ns;
	out->preempted = s->preempted.n;
}
