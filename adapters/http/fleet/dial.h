/* dial.h - one sr_open() on a worker, because it may wait one second for a busy daemon. */
#ifndef DIAL_H
#define DIAL_H

#include "shmring/slipring.h"

struct dial;
struct workers;

/* done: on the loop's thread, with a connection or NULL; the dial is over then.  0, or -errno: it is not
 * called. */
int  dial_start(struct dial **out, struct workers *w, const char *socket, const struct sr_options *o,
                void (*done)(void *ctx, struct sr_conn *conn), void *ctx);
void dial_forget(struct dial *d);              /* done is not called any more; NULL is allowed */

#endif
