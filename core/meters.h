/* meters.h - what operators see: the stats page, written once a turn, and a log line every ten seconds.
 * The loop's thread. */
#ifndef METERS_H
#define METERS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/clients/clients.h"
#include "core/clients/empty.h"
#include "core/instance/io.h"
#include "core/cores.h"
#include "core/kv/kv.h"
#include "core/sched/sched.h"
#include "core/instance/stats.h"

struct meters {
	/* the caller sets these before meters_start */
	struct io *io;
	struct stats_page *st;
	struct sched *s;
	struct kv *kv;
	struct clients *cl;
	const struct sr_backend *ranks; /* whose ranks the page shows; NULL: there are none */
	bool computes;                /* the device computes on this machine's cores */
	struct counters *counters;    /* to which the scheduler, the clients, the loop and these meters add */

	struct empty empty;
	struct cores cores;
	uint64_t cores_busy_ns;       /* time under way, at its last look */
	uint64_t at, empty_ns;        /* the last turn counted up to `at`; its total of `empty` */
	uint64_t minute_at;           /* when the next minute is marked in the page */
	struct io_timer minute, report;
	struct { uint64_t at; struct counters count; bool active; } last; /* last report */
};

void meters_start(struct meters *m, bool report);
void meters_report(struct meters *m, bool wanted);     /* turn the log's line on or off */
void meters_count(struct meters *m, uint64_t now);     /* once a turn, before tokens leave */
void meters_show(struct meters *m);                    /* copy the counters to the page, not the time */
void meters_sleep(struct meters *m);                   /* before a sleep, so the page stays right during it */

#endif
