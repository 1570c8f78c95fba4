/* tenants.h - who holds what, and whose turn it is: a line for each tenant, deficit round robin
 * among those who wait.  For the engine (requests) and the workers (works); each has its own.
 *
 * A tenant has an entry while it holds something, so there are never more entries than things held,
 * and those are bounded by who keeps them.  Tenant 0 is whoever needs no key; then it is alone, and no
 * share is kept for others.
 */
#ifndef HTTP_TENANTS_H
#define HTTP_TENANTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tenant;

struct waiter {                        /* first in what waits */
	struct waiter *prev, *next;
	struct tenant *tenant;
	uint64_t order;                /* of arrival; 0: not yet given.  Lines are sorted by it */
	uint64_t cost;                 /* out of the quantum */
};

struct tenant {
	uint64_t id;
	uint64_t n, size;              /* it holds so many things, waiting or not, of this size together */
	struct waiter *first, *last;   /* its line; not empty: it is in the round */
	uint64_t deficit;
	struct tenant *prev, *next;    /* in the round */
	struct tenant *chained;        /* in its bucket */

	/* engine.c's alone: */
	uint64_t waits, tokens;        /* requests without a first token, and their prompts */
	unsigned live;                 /* requests that the daemon has */
	unsigned credit;               /* may be submitted while tight: */
	bool tight;                    /* the daemon has turned one away */
};

struct tenants {
	uint64_t quantum;              /* set this; the rest begins as zeros */
	struct tenant *bucket[1024];
	struct tenant *turn;           /* whose it is, in the round */
	unsigned n_round;              /* tenants who wait */
	uint64_t n, size, n_waiting;   /* of all tenants: held, and in lines */
	uint64_t order;
};

/* One holds eight times as much as it leaves to others, and no more: as in the daemon (core/sched.c). */
#define TENANT_SHARE 8
static inline bool tenant_over(uint64_t id, uint64_t mine, uint64_t left)
{
	return id && mine > TENANT_SHARE * left;
}

/* The most of so much that one may come to hold, if others hold nothing. */
static inline uint64_t tenant_most(uint64_t id, uint64_t all)
{
	return id ? all / (TENANT_SHARE + 1) * TENANT_SHARE + all % (TENANT_SHARE + 1) : UINT64_MAX;
}

const struct tenant *tenants_find(const struct tenants *ts, uint64_t id); /* NULL: it holds nothing */

/* One more thing of this size, or one less.  NULL: no memory.  release() after its waiter has left. */
struct tenant *tenants_hold(struct tenants *ts, uint64_t id, uint64_t size);
void tenants_release(struct tenants *ts, struct tenant *t, uint64_t size);

void tenants_put(struct tenants *ts, struct tenant *t, struct waiter *w);   /* into its line */
void tenants_take(struct tenants *ts, struct waiter *w);                    /* out of it */

/* Who is next, of the tenants that may go (NULL: all): first in its line.  It stays there, and next,
 * until served() takes it out and lets its tenant pay.  NULL: nobody. */
struct waiter *tenants_next(struct tenants *ts, bool (*may)(void *ctx, const struct tenant *t), void *ctx);
void tenants_served(struct tenants *ts, struct waiter *w);

#endif
