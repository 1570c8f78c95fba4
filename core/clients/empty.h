/* empty.h - what the clients were doing while nothing more could be put into a batch.
 *
 * Each client keeps two clocks in memory that it shares with the daemon (docs/wire.md).  One shows how
 * long it has been preparing requests; the other how long, with none to prepare, some were arriving.
 * They run on while the daemon sleeps.  Time is cut into windows.  At the end of a window with time of
 * `empty` the clocks are read, and that time is split in proportion:
 *
 *	tokenizing    some client was preparing a request
 *	network       none was, but a request was arriving at some client
 *	the rest      what the daemon itself saw: no client connected, nothing under way, or everything
 *	              in the batch
 *
 * The clocks give only t and n, each client's shares of the window, not which of them overlapped.
 * They are taken to be independent:
 *
 *	tokenizing = 1 - prod (1 - t)      tokenizing + network = 1 - prod (1 - t - n)
 *
 * which is exact for one client, and for any number of clients that did the same during the whole window.
 * It is never less than what one of them reports, nor more than the sum of all.
 *
 * A window ends before each sleep and after it, else after some ms (empty_due).  So a busy daemon reads
 * no client's clocks, and one that is often empty reads each client's at most a hundred times a second.
 *
 * A client's clocks are not trusted.  An impossible clock, which ran backwards or faster than time, is
 * ignored in that window.  A plausible lie only shifts how the time of `empty` is split while the client
 * is connected: each ns is attributed once (tests/core/clients/test_empty.c).
 */
#ifndef EMPTY_H
#define EMPTY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/instance/stats.h"

enum { EMPTY_PREPARING, EMPTY_ARRIVING };  /* a client's clocks, in the order of wire.h */
struct empty_client { uint64_t ns[2]; };   /* their values when last read */

struct empty {
	uint64_t since;               /* start of the window */
	uint64_t seen[N_EMPTY];       /* empty ns of the window, by what the daemon saw: from EMPTY_SEEN on */
	double   silent, unprepared;  /* products over the clients read */
};

/* Count ns of empty time. */
void empty_add(struct empty *e, enum stats_empty seen, uint64_t ns);
bool empty_pending(const struct empty *e);            /* is there any in this window? */
bool empty_due(const struct empty *e, uint64_t now, int32_t n_clients);

/* End of a window at `now`.  First listen, then hear each client (`said`: its clocks at `now`;
 * `believed`: the ns of the window accepted for each), then split.  Split adds all pending time to
 * `out` and begins the next window. */
void empty_listen(struct empty *e);
void empty_hear(struct empty *e, struct empty_client *c, uint64_t now, const uint64_t said[2],
                uint64_t believed[2]);
void empty_split(struct empty *e, uint64_t now, uint64_t out[N_EMPTY]);

#endif
