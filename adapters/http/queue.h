/* queue.h - whether more requests may wait, and if not, after how long a client should retry. */
#ifndef HTTP_QUEUE_H
#define HTTP_QUEUE_H

#include <stdint.h>

#include "core/instance/config.h"
#include "core/instance/stats.h"

enum queue_limit { QUEUE_ROOM, QUEUE_REQS, QUEUE_TOKENS };

/* This adapter's open requests: answers that have not ended, and the prompt tokens of those without a
 * first token.  Of each tenant's waiting requests at most its share counts: what it queued above that,
 * while no other waited, is not held against others. */
struct queue_load {
	uint64_t requests, tokens;         /* of all tenants */
	uint64_t above;                    /* waiting requests above their tenants' shares: not in `requests` */
	uint64_t tenant, mine, mine_tokens; /* mine: this tenant's, without a first token */
	unsigned tenants;                  /* with requests that have no first token */
};

/* Which of --max-num-queued-reqs and -tokens would n more requests with `tokens` prompt tokens exceed?
 * Both limit all tenants together.  A tenant with waiting requests may also hold at most 8 times what it
 * leaves to others; of tokens, what it leaves is counted without room for another's longest prompt.  So
 * that tenant is refused, not the others.  While nothing waits, none is refused.  page: the daemon's, or
 * NULL. */
enum queue_limit queue_check(const struct config *c, const struct stats_page *page,
                             const struct queue_load *l, uint64_t n, uint64_t tokens);

/* Seconds until 1/8 of the tenant's waiting requests will have been served, or of all requests if it has
 * none waiting.  The rate is that of the last minute, split equally among the tenants that wait.
 * 1 .. 60, and 1 if no rate is known. */
int queue_retry_after(const struct stats_page *page, const struct queue_load *l);

#endif
