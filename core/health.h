/* health.h - checks that the device makes progress, and pings the service manager's watchdog.
 * The loop's thread. */
#ifndef HEALTH_H
#define HEALTH_H

#include <stdbool.h>
#include <stdint.h>

#include "core/instance/io.h"
#include "kernels/backend.h"
#include "core/sched/sched.h"
#include "core/instance/stats.h"

struct health {
	/* the caller sets these before health_start */
	struct io *io;
	struct stats_page *st;
	const struct sr_backend_ops *ops;
	struct sr_backend *b;
	struct sched *s;
	bool works;                   /* the loop's thread computes and counts progress itself */

	bool hangs;                   /* the device is presumed hung: a call into it may never return */
	struct io_timer pulse, watchdog;
	uint64_t progress, device;    /* counts of the page and of the device at the last pulse */
	uint64_t seconds;             /* without progress */
	bool told;                    /* the log has a warning about it */
	uint64_t watchdog_ns;         /* between two pings; 0: the manager has no watchdog */
	uint64_t alive_at_watchdog;
};

void health_start(struct health *h);
void health_look(struct health *h, uint64_t now);   /* once a turn: watch a batch that is under way */

#endif
