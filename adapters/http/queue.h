/* queue.h - may more requests wait, and if not, when is it worth while to come back? */
#ifndef HTTP_QUEUE_H
#define HTTP_QUEUE_H

#include <stdint.h>

#include "core/config.h"
#include "core/stats.h"

enum queue_limit { QUEUE_ROOM, QUEUE_REQS, QUEUE_TOKENS };

/* What this adapter has asked for and not got: answers that have not ended, and prompt tokens of
 * those that have not begun.  Of each tenant no more waiting ones count than its share: who got more in
 * while nobody waited has not taken it from others. */
struct queue_load {
	uint64_t requests, tokens;         /* of all tenants */
	uint64_t tenant, mine, mine_tokens; /* of this one: those that have not begun */
	unsigned tenants;                  /* with some that have not begun */
};

/* Which of --max-num-queued-reqs and -tokens n more requests with so many prompt tokens would pass.
 * They hold for all tenants together; and one that has something waiting may hold eight times what it
 * leaves, of tokens without the longest prompt of another, so it is the one refused and others are
 * not.  Nobody is refused while nobody waits.  page: the daemon's, or NULL. */
enum queue_limit queue_check(const struct config *c, const struct stats_page *page,
                             const struct queue_load *l, uint64_t n, uint64_t tokens);

/* Seconds until an eighth of the tenant's own that wait will have been served, or of all if none does,
 * at the rate of the last minute, of which each tenant that waits has an equal part; 1 .. 60, and 1 if
 * nothing is known. */
int queue_retry_after(const struct stats_page *page, const struct queue_load *l);

#endif
