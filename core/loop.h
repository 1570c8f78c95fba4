/* loop.h - the daemon's loop: poll the kernel, take from the rings, step the scheduler, flush the rings, work
 * for the device, sleep when nothing moved.
 *
 * One thread does all of it.  Where the back end has no thread of its own it computes, too: ops->work comes
 * back between layers through turn_inside.
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
	/* set before loop_run, and not freed by it */
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
	struct io_watch done;         /* an eventfd by which a device signals the end of a batch; fd -1: none */
	double shutdown_timeout;      /* s to drain */

	int  signals;                 /* SIGTERM or SIGINT so far: 1 drains, 2 stops at once */
	bool reload_wanted;           /* SIGHUP came */
	bool draining;
	uint64_t drain_until;
};

/* 0: a signal ended it.  EXIT_DEVICE_LOST: every request was ended. */
int loop_run(struct loop *l);

#endif
