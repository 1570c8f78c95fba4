/* worker.h - a few threads for what would hold up the event loop: long prompts to tokenize, and
 * connecting to the daemon.  What is done comes back on the loop.
 *
 * Three lines, each with threads of its own: prompts below WORK_LONG bytes, longer ones, and texts
 * (/tokenize, /detokenize).  The threads for long prompts help with short ones when no long one waits.
 * In a line tenants are served in turn, by bytes, and each in order.  So a short prompt waits for no
 * long one, no prompt for a text, and no tenant for what others have piled up.
 */
#ifndef WORKER_H
#define WORKER_H

#include <stddef.h>
#include <stdint.h>

#include "core/io.h"
#include "tenants.h"

struct workers;

enum work_line { WORK_SHORT, WORK_LONGER, WORK_TEXT, WORK_LINES };

struct work {
	struct waiter waiter;          /* first */
	uint64_t tenant;
	bool text;                     /* not a prompt */
	enum work_line line;           /* as workers_give() chose it */
	void (*run)(struct work *w);   /* on a worker thread: touches only what the work owns */
	void (*done)(struct work *w);  /* on the loop's thread, once, also at workers_destroy */
	size_t bytes;                  /* what it holds, for the bound */
	struct work *next;
};

int  workers_create(struct workers **out, struct io *io);
/* -EAGAIN: its line holds WORKERS_MAX works or its bytes, or the tenant more than its share of them. */
int  workers_give(struct workers *p, struct work *w);
void workers_destroy(struct workers *p);   /* waits for what is running */

#define WORKERS_MAX   1024
#define WORKERS_BYTES (64u << 20)      /* in a line; of longer prompts twice as much */
#define WORK_LONG     (64u << 10)

#endif
