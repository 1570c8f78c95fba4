/* worker.h - a few threads for what would hold up the event loop: long prompts to tokenize, and
 * connecting to the daemon.  Work is handed out in order; what is done comes back on the loop.
 */
#ifndef WORKER_H
#define WORKER_H

#include <stddef.h>

#include "core/io.h"

struct workers;

struct work {
	void (*run)(struct work *w);   /* on a worker thread: touches only what the work owns */
	void (*done)(struct work *w);  /* on the loop's thread, once, also at workers_destroy */
	size_t bytes;                  /* what it holds, for the bound */
	struct work *next;
};

int  workers_create(struct workers **out, struct io *io, int threads);
/* -EAGAIN: more is queued than WORKERS_MAX or WORKERS_BYTES. */
int  workers_give(struct workers *p, struct work *w);
void workers_destroy(struct workers *p);   /* waits for what is running */

#define WORKERS_MAX   1024
#define WORKERS_BYTES (256u << 20)

#endif
