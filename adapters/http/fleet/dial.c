/* dial.c - see dial.h. */
#include "dial.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "adapters/http/worker.h"

struct dial {
	struct work work;            /* first */
	char socket[128];
	struct sr_options o;
	void (*done)(void *ctx, struct sr_conn *conn, int result); /* loop's thread only; NULL = forgotten */
	void *ctx;
	struct sr_conn *conn;
	int result;
};

static void run(struct work *w)
{
	struct dial *d = (struct dial *)w;

	d->result = sr_open(&d->conn, d->socket, &d->o);
}

static void done(struct work *w)
{
	struct dial *d = (struct dial *)w;
	struct sr_conn *conn = d->result < 0 ? NULL : d->conn;

	if (d->done)
		d->done(d->ctx, conn, d->result);
	else if (conn)
		sr_close(conn);
	free(d);
}

int dial_start(struct dial **out, struct workers *w, const char *socket, const struct sr_options *o,
               void (*fn)(void *ctx, struct sr_conn *conn, int result), void *ctx)
{
	struct dial *d = calloc(1, sizeof(*d));
	int r;

	*out = d;                            /* first: it may be done when workers_give returns */
	if (!d)
		return -ENOMEM;
	d->work = (struct work){ .run = run, .done = done };
	d->o = *o;
	d->done = fn;
	d->ctx = ctx;
	d->result = -ECONNABORTED;           /* stays if it comes back before a worker ran it */
	snprintf(d->socket, sizeof(d->socket), "%s", socket);
	r = workers_give(w, &d->work);
	if (r < 0) {
		free(d);
		*out = NULL;
	}
	return r;
}

void dial_forget(struct dial *d)
{
	if (d)
		d->done = NULL;
}
