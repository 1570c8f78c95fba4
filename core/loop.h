/* loop.h - the daemon's loop: poll the kernel, take from the rings, step the scheduler, flush the rings, work
 * for the device, sleep when nothing moved.
 *
 * One thread does all of it.  Where the back end has no thread of its own, this thread also computes:
 * ops->work calls turn_inside between layers.
 */
#ifndef LOOP_H
#define LOOP_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/clients/clients.h"
#include "health.h"
#include "idle.h"
#include "core/instance/io.h"
#include "kernels/backend.h"
#include "meters.h"
#include "reload.h"
#include "core/sched/sched.h"
#include "core/instance/stats.h"

#define EXIT_DEVICE_LOST 70

struct loop {
	/* the caller sets these before loop_run and frees them after it */
	struct io *io;
	struct stats_page *st;
	const struct sr_backend_ops *ops;
	struct sr_backend *b;
	struct clients *cl;
	struct sched *s;
	struct reload reload;
	struct idle idle;
	struct health health;
	struct meters meters;
	struct counters counters;     /* the daemon's */
	struct io_watch done;         /* eventfd: the device signals the end of a batch; fd -1: none */
	double shutdown_timeout;      /* s; time limit for draining */

	double stop_when_idle_s;      /* 0: never */
	struct io_timer rest;         /* looks whether it is time for that */
	int  signals;                 /* SIGTERM or SIGINT so far: 1 drains, 2 stops at once */
	bool reload_wanted;           /* SIGHUP came */
	bool draining;
	uint64_t drain_until;
};

/* 0: a signal ended the loop.  EXIT_DEVICE_LOST: the device is lost, and every request was ended. */
int loop_run(struct loop *l);

/* Begin to look whether the daemon is idle (stop_when_idle_s). */
void loop_may_rest(struct loop *l);

#endif
