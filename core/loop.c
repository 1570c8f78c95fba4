/* loop.c - see loop.h. */
#include "loop.h"

#include <stdio.h>
#include <string.h>

#include "core/instance/log.h"
#include "core/instance/notify.h"
#include "shmring/clock.h"

#define MS      1000000ull
#define SECOND  (1000 * MS)
#define NAP_NS  (2 * MS)          /* how often to look when work cannot move (a ring is full) */

static void say_ready(const struct loop *l)
{
	notify_sendf("READY=1\nSTATUS=Serving %s on %s", l->st->model, l->ops->name);
}

/* After SIGTERM take no new clients and let requests finish until the time limit.  A second signal ends them
 * at once.  True: the loop may end. */
static bool drained(struct loop *l, uint64_t now)
{
	if (!l->signals)
		return false;
	if (!l->draining) {
		l->draining = true;
		l->drain_until = now + (uint64_t)(l->shutdown_timeout * 1e9);
		snprintf(l->st->state, sizeof(l->st->state), "draining");
		notify_send("STOPPING=1\nSTATUS=Draining");
		log_info("Draining: %llu running, %llu waiting, at most %.0f s",
		         (unsigned long long)l->st->running, (unsigned long long)l->st->waiting,
		         l->shutdown_timeout);
		clients_drain(l->cl);
	}
	if (sched_busy(l->s) && l->signals < 2 && now < l->drain_until)
		return false;
	if (l->idle.mode != RUN_INLINE && sched_flying(l->s) >= 0)
		l->health.hangs = true;              /* do not close the device: closing waits for the batch */
	return true;
}

/* When the last batch was computed, or the daemon became ready. */
static uint64_t last_work(const struct loop *l)
{
	const struct stats_page *st = l->st;
	uint64_t at = st->n_step ? st->step[(st->n_step - 1) % STATS_STEPS].begin_ns : 0;

	return at > st->start_ns ? at : st->start_ns;
}

/* --stop-when-idle: nothing was to be done for that time, so drain, as if asked to. */
static void on_rest(struct io_timer *t)
{
	struct loop *l = t->ctx;
	uint64_t now = io_now(), at = last_work(l) + (uint64_t)(l->stop_when_idle_s * 1e9);

	if (sched_busy(l->s) || now < at) {
		io_timer_set(l->io, t, now < at ? at : now + (uint64_t)(l->stop_when_idle_s * 1e9));
		return;
	}
	log_info("No request for %.0f s: the daemon stops (--stop-when-idle)", l->stop_when_idle_s);
	l->signals++;
}

void loop_may_rest(struct loop *l)
{
	l->rest = (struct io_timer){ .fn = on_rest, .ctx = l };
	if (l->stop_when_idle_s > 0)
		io_timer_set(l->io, &l->rest, io_now() + (uint64_t)(l->stop_when_idle_s * 1e9));
}

/* SIGHUP: read the configuration again. */
static void reread_config(struct loop *l)
{
	const struct config *c = &l->reload.seen;
	char err[1024];

	l->reload_wanted = false;
	if (l->draining)
		return;
	notify_reloading();
	if (reload_now(&l->reload, err, sizeof(err)) < 0)
		log_error("SIGHUP: the old settings remain: %s", err);
	l->shutdown_timeout = c->shutdown_timeout;
	log_level_by_name(c->log_level);
	meters_report(&l->meters, !c->disable_log_stats);
	say_ready(l);
}

/* Called by the back end between layers: handle deaths, cancels and admissions, and show progress. */
static void turn_inside(void *ctx)
{
	struct loop *l = ctx;
	uint64_t now = io_now();

	l->st->alive_ns = now;
	l->st->progress++;
	io_poll(l->io);
	if (clients_take(l->cl, now)) {
		meters_show(&l->meters);
		clients_flush(l->cl);
	}
	clients_chores(l->cl);
}

/* The time at which a sleep ends; 0: a client, the device or a timer will wake it. */
static uint64_t sleep_until(struct loop *l, int32_t flying, uint64_t now)
{
	if (flying >= 0 && (!l->ops->arm || l->ops->arm(l->b, flying, l->done.fd) < 0))
		return now + l->idle.nap_ns;
	if (l->draining || (flying < 0 && sched_busy(l->s)))
		return now + NAP_NS;
	return l->st->clients ? now + SECOND : 0; /* once a second, to show in the page what clients do */
}

/* Nothing moved: poll a little longer, then ask every client for a signal, check once more, and sleep. */
static void poll_or_sleep(struct loop *l, uint64_t now)
{
	int32_t flying = sched_flying(l->s);

	if (!idle_enough(&l->idle, now, flying >= 0)) {
		for (int i = 0; i < 16; i++)
			sr_relax();
		return;
	}
	if (clients_arm(l->cl)) {
		l->counters.sleeps++;
		meters_show(&l->meters);
		if (flying < 0)
			meters_sleep(&l->meters);
		io_sleep(l->io, sleep_until(l, flying, now));
	}
	clients_awake(l->cl);
}

int loop_run(struct loop *l)
{
	say_ready(l);
	for (;;) {
		uint64_t now = io_now();
		int work = io_poll(l->io), r;

		if (!l->health.hangs && drained(l, now))
			return 0;
		if (l->reload_wanted)
			reread_config(l);
		work += clients_take(l->cl, now);
		r = l->health.hangs ? sched_lose(l->s) : sched_step(l->s, now);
		meters_count(&l->meters, now);    /* before the flush: a client that reads its END finds it counted */
		clients_flush(l->cl);             /* tokens leave before the next batch is computed */
		work += clients_chores(l->cl);
		l->st->alive_ns = now;
		health_look(&l->health, now);
		if (r < 0) {
			log_error("The device is lost (%s). Every request was ended; exiting with %d so that "
			          "the service manager starts anew.", strerror(-r), EXIT_DEVICE_LOST);
			return EXIT_DEVICE_LOST;
		}
		work += r;
		l->st->busy_since_ns = !sched_busy(l->s) ? 0 : l->st->busy_since_ns ? l->st->busy_since_ns : now;
		if (l->idle.mode == RUN_INLINE)
			l->ops->work(l->b, turn_inside, l);
		if (work) {
			l->idle.since = 0;
			now = io_now() - now;
			if (now > l->st->cycle_max_ns)
				l->st->cycle_max_ns = now;
		} else {
			poll_or_sleep(l, now);
		}
	}
}
