/* dial.h - one sr_open() on a worker, because it may wait seconds for a busy daemon. */
#ifndef DIAL_H
#define DIAL_H

#include "shmring/slipring.h"

struct dial;
struct workers;

/* done: on the loop's thread, with what sr_open() said, and its connection or NULL; the dial is over then.
 * 0, or -errno: it is not called. */
int  dial_start(struct dial **out, struct workers *w, const char *socket, const struct sr_options *o,
                void (*done)(void *ctx, struct sr_conn *conn, int result), void *ctx);
void dial_forget(struct dial *d);              /* done is not called any more; NULL is allowed */

#endif
