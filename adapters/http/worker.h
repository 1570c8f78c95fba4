/* worker.h - a few threads for work that would block the event loop: tokenizing long prompts, and
 * connecting to the daemon.  Finished works come back on the loop.
 *
 * Three queues, each with its own threads: prompts below WORK_LONG bytes, longer prompts, and texts
 * (/tokenize, /detokenize).  The threads for long prompts also run short ones when no long one waits.
 * In a queue tenants are served in turn, by bytes, and each tenant's works in order.  Of prompts of
 * WORK_LONG bytes or more a tenant runs one at a time.  So a short prompt never waits for a long one, nor
 * a prompt for a text, nor a tenant for another's backlog.
 */
#ifndef WORKER_H
#define WORKER_H

#include <stddef.h>
#include <stdint.h>

#include "core/instance/io.h"
#include "tenants.h"

struct workers;

enum work_line { WORK_SHORT, WORK_LONGER, WORK_TEXT, WORK_LINES };

struct work {
	struct waiter waiter;          /* first */
	uint64_t tenant;
	bool text;                     /* of /tokenize or /detokenize, not a prompt */
	enum work_line line;           /* set by workers_give() */
	void (*run)(struct work *w);   /* on a worker thread: touches only what the work owns */
	void (*done)(struct work *w);  /* on the loop's thread, once, also at workers_destroy */
	size_t bytes;                  /* memory it holds, for the bound */
	struct work *next;
};

int  workers_create(struct workers **out, struct io *io);
/* 0, or -EAGAIN: its queue is full (WORKERS_MAX works, or its bytes), or the tenant's share of it is. */
int  workers_give(struct workers *p, struct work *w);
void workers_destroy(struct workers *p);   /* waits for what is running */

#define WORKERS_MAX   1024
#define WORKERS_BYTES (64u << 20)      /* the most in a queue; twice that for longer prompts */
#define WORK_LONG     (64u << 10)

#endif
