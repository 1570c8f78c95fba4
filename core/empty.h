/* empty.h - what the clients were doing while nothing more could be put into a batch.
 *
 * Each client keeps two clocks in memory that it shares with us (docs/wire.md): how long it has
 * been preparing requests, and how long, with none to prepare, some were arriving.  They go on
 * while we sleep.  The time is cut into windows; at the end of one that had time of `empty` the
 * clocks are looked at, and that time is split as the window was:
 *
 *	tokenizing    some client was preparing a request
 *	network       none was, but some client heard one arrive
 *	the rest      what the daemon saw by itself: nobody connected, nothing under way, or all of it
 *	              in the batch
 *
 * From shares of the window alone, t and n of each client, it cannot be known which of them fell
 * together.  They are taken to be independent:
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
 * is connected: each ns is attributed once (tests/test_empty.c).
 */
#ifndef EMPTY_H
#define EMPTY_H

#include <stdbool.h>
#include <stdint.h>

#include "stats.h"

enum { EMPTY_PREPARING, EMPTY_ARRIVING };  /* a client's clocks, in the order of wire.h */
struct empty_client { uint64_t ns[2]; };   /* what they told when last looked at */

struct empty {
	uint64_t since;               /* when the window began */
	uint64_t seen[N_EMPTY];       /* ns of it that were empty, as the daemon saw them: from EMPTY_SEEN on */
	double   silent, unprepared;  /* products over the clients looked at */
};

/* So much time was empty. */
void empty_add(struct empty *e, enum stats_empty seen, uint64_t ns);
bool empty_pending(const struct empty *e);            /* is there any in this window? */
bool empty_due(const struct empty *e, uint64_t now, int32_t n_clients);

/* The end of a window at `now`: listen, hear each client (`said`: what its clocks tell at `now`;
 * `believed`: how much of the window it did each), then split: adds all that was pending to
 * `out`, and begins the next window. */
void empty_listen(struct empty *e);
void empty_hear(struct empty *e, struct empty_client *c, uint64_t now, const uint64_t said[2],
                uint64_t believed[2]);
void empty_split(struct empty *e, uint64_t now, uint64_t out[N_EMPTY]);

#endif
