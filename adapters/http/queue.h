/* queue.h - may more requests wait, and if not, when is it worth while to come back? */
#ifndef HTTP_QUEUE_H
#define HTTP_QUEUE_H

#include <stdint.h>

#include "core/config.h"
#include "core/stats.h"

enum queue_limit { QUEUE_ROOM, QUEUE_REQS, QUEUE_TOKENS };

/* What this adapter has asked for and not got: answers that have not ended, and prompt tokens of
 * those that have not begun. */
struct queue_load { uint64_t requests, tokens; };

/* Which of --max-num-queued-reqs and -tokens n more requests with so many prompt tokens would pass.
 * Nobody is refused while nobody waits.  page: the daemon's, or NULL. */
enum queue_limit queue_check(const struct config *c, const struct stats_page *page,
                             const struct queue_load *l, uint64_t n, uint64_t tokens);

/* Seconds until an eighth of those who wait will have been served, as fast as in the last minute;
 * 1 .. 60, and 1 if nothing is known. */
int queue_retry_after(const struct stats_page *page, const struct queue_load *l);

#endif
