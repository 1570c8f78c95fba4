/* tenants.h - counts what each tenant holds, and queues what waits: one queue per tenant, deficit round
 * robin among the tenants that wait.  The engine (requests) and the workers (works) each have their own.
 *
 * A tenant has an entry while it holds something.  So there are never more entries than things held,
 * and the engine and the workers bound those.  Tenant 0 stands for all clients if no key is required; it
 * is then the only tenant, and no share is kept for others.
 */
#ifndef HTTP_TENANTS_H
#define HTTP_TENANTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tenant;

struct waiter {                        /* the first member of what waits */
	struct waiter *prev, *next;
	struct tenant *tenant;
	uint64_t order;                /* of arrival; 0: not yet set.  Queues are sorted by it */
	uint64_t cost;                 /* what serving it takes from the deficit */
	unsigned kind;                 /* below TENANT_KINDS */
};

/* If one kind may not go for now, the others of the same tenant pass it.  For engine.c: LIMITED are guided
 * and pooled requests, of which fewer are granted. */
#define TENANT_KINDS 2
enum waiter_kind { PLAIN, LIMITED };

struct tenant {
	uint64_t id;
	uint64_t n, size;              /* number and total size of the things it holds, waiting or not */
	struct waiter *first[TENANT_KINDS]; /* its queues; while one is not empty, it is in the round */
	struct waiter *last[TENANT_KINDS];
	uint64_t deficit;
	struct tenant *prev, *next;    /* in the round */
	struct tenant *chained;        /* the next in its bucket */

	/* only for engine.c: */
	uint64_t waits, tokens;        /* requests without a first token, and their prompt tokens */
	uint64_t kept;                 /* bytes of ids of its answers */
	unsigned live;                 /* requests that the daemon has */
	unsigned credit[TENANT_KINDS]; /* requests of this kind that it may submit while tight */
	bool tight[TENANT_KINDS];      /* the daemon has refused one of this kind */
};

struct tenants {
	uint64_t quantum;              /* set this; all else starts as 0 */
	struct tenant *bucket[1024];
	struct tenant *turn;           /* the tenant in the round whose turn it is */
	unsigned n_round;              /* tenants who wait */
	uint64_t n, size, n_waiting;   /* of all tenants: held, its size; in queues */
	uint64_t order;
};

/* A tenant holds at most 8 times what it leaves to others, as in the daemon (core/sched/sched.c). */
#define TENANT_SHARE 8
static inline bool tenant_over(uint64_t id, uint64_t mine, uint64_t left)
{
	return id && mine > TENANT_SHARE * left;
}

/* The most of `all` that one tenant may hold if the others hold nothing. */
static inline uint64_t tenant_most(uint64_t id, uint64_t all)
{
	return id ? all / (TENANT_SHARE + 1) * TENANT_SHARE + all % (TENANT_SHARE + 1) : UINT64_MAX;
}

const struct tenant *tenants_find(const struct tenants *ts, uint64_t id); /* NULL: it holds nothing */

/* Count one more thing of this size, or one fewer.  NULL: no memory.  Call tenants_release() after its
 * waiter has left the queue. */
struct tenant *tenants_hold(struct tenants *ts, uint64_t id, uint64_t size);
void tenants_release(struct tenants *ts, struct tenant *t, uint64_t size);

void tenants_relax(struct tenants *ts);       /* none is tight */
void tenants_put(struct tenants *ts, struct tenant *t, struct waiter *w);   /* into its queue */
void tenants_take(struct tenants *ts, struct waiter *w);                    /* out of it */

/* The next waiter.  may() (NULL: all may) is asked for the first of each kind of a tenant; of those that may
 * go, the one that came first is the tenant's.  It stays next until tenants_served() takes it out and charges
 * its tenant.  NULL: there is none. */
struct waiter *tenants_next(struct tenants *ts, bool (*may)(void *ctx, const struct waiter *w), void *ctx);
void tenants_served(struct tenants *ts, struct waiter *w);

#endif
