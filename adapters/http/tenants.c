/* tenants.c - see tenants.h. */
#include "tenants.h"

#include <assert.h>
#include <stdlib.h>

#define BUCKETS (sizeof(((struct tenants *)0)->bucket) / sizeof(struct tenant *))

/* Ids are hashes of keys or names, so no client can choose ids that collide. */
static size_t bucket_of(uint64_t id) { return (id * 0x9e3779b97f4a7c15u >> 32) % BUCKETS; }

const struct tenant *tenants_find(const struct tenants *ts, uint64_t id)
{
	const struct tenant *t = ts->bucket[bucket_of(id)];

	while (t && t->id != id)
		t = t->chained;
	return t;
}

static bool waits(const struct tenant *t)
{
	return t->first[0] || t->first[1];
}

struct tenant *tenants_hold(struct tenants *ts, uint64_t id, uint64_t size)
{
	struct tenant *t = (struct tenant *)tenants_find(ts, id), **head = &ts->bucket[bucket_of(id)];

	if (!t) {
		t = calloc(1, sizeof(*t));
		if (!t)
			return NULL;
		t->id = id;
		t->chained = *head;
		*head = t;
	}
	t->n++;
	t->size += size;
	ts->n++;
	ts->size += size;
	return t;
}

void tenants_release(struct tenants *ts, struct tenant *t, uint64_t size)
{
	struct tenant **at = &ts->bucket[bucket_of(t->id)];

	assert(t->n && t->size >= size);
	ts->n--;
	ts->size -= size;
	t->size -= size;
	if (--t->n)
		return;
	assert(!waits(t));
	while (*at != t)
		at = &(*at)->chained;
	*at = t->chained;
	free(t);
}

void tenants_relax(struct tenants *ts)
{
	for (size_t i = 0; i < BUCKETS; i++)
		for (struct tenant *t = ts->bucket[i]; t; t = t->chained)
			t->tight[0] = t->tight[1] = false;
}

static void round_join(struct tenants *ts, struct tenant *t)
{
	t->deficit = 0;
	if (ts->n_round++ == 0) {
		ts->turn = t->prev = t->next = t;
		return;
	}
	t->next = ts->turn;                    /* at the end of the round */
	t->prev = ts->turn->prev;
	t->prev->next = t;
	t->next->prev = t;
}

static void round_leave(struct tenants *ts, struct tenant *t)
{
	t->prev->next = t->next;
	t->next->prev = t->prev;
	if (ts->turn == t)
		ts->turn = t->next;
	if (--ts->n_round == 0)
		ts->turn = NULL;
}

void tenants_put(struct tenants *ts, struct tenant *t, struct waiter *w)
{
	struct waiter **first = &t->first[w->kind], **last = &t->last[w->kind], *after = *last;

	if (!w->order)
		w->order = ++ts->order;
	w->tenant = t;
	if (after && after->order > w->order)  /* it returns: its place is near the front */
		for (after = NULL; (after ? after->next : *first)->order < w->order;)
			after = after ? after->next : *first;
	if (!waits(t))
		round_join(ts, t);
	w->prev = after;
	w->next = after ? after->next : *first;
	*(w->prev ? &w->prev->next : first) = w;
	*(w->next ? &w->next->prev : last) = w;
	ts->n_waiting++;
}

void tenants_take(struct tenants *ts, struct waiter *w)
{
	struct tenant *t = w->tenant;

	*(w->prev ? &w->prev->next : &t->first[w->kind]) = w->next;
	*(w->next ? &w->next->prev : &t->last[w->kind]) = w->prev;
	ts->n_waiting--;
	if (!waits(t))
		round_leave(ts, t);
}

/* The tenant's waiter that came first, of those that may go; NULL: none may. */
static struct waiter *first_of(const struct tenant *t, bool (*may)(void *ctx, const struct waiter *w),
                               void *ctx)
{
	struct waiter *first = NULL;

	for (int kind = 0; kind < TENANT_KINDS; kind++) {
		struct waiter *w = t->first[kind];

		if (w && (!first || w->order < first->order) && (!may || may(ctx, w)))
			first = w;
	}
	return first;
}

/* The first waiter, by tenants from ts->turn on, that may go and whose tenant can pay.  NULL if there is
 * none; *rounds is then the least number of quanta that one of them lacks, or UINT64_MAX if none may go. */
static struct waiter *paid(struct tenants *ts, bool (*may)(void *ctx, const struct waiter *w), void *ctx,
                           uint64_t *rounds)
{
	struct tenant *t = ts->turn;
	uint64_t lacks;

	*rounds = UINT64_MAX;
	for (unsigned i = 0; i < ts->n_round; i++, t = t->next) {
		struct waiter *w = first_of(t, may, ctx);

		if (!w)
			continue;
		if (w->cost <= t->deficit)
			return w;
		lacks = (w->cost - t->deficit + ts->quantum - 1) / ts->quantum;
		*rounds = lacks < *rounds ? lacks : *rounds;
	}
	return NULL;
}

struct waiter *tenants_next(struct tenants *ts, bool (*may)(void *ctx, const struct waiter *w), void *ctx)
{
	uint64_t rounds;
	struct waiter *w = paid(ts, may, ctx, &rounds);
	struct tenant *t = ts->turn;

	if (!w && rounds == UINT64_MAX)
		return NULL;
	if (!w) {                              /* skip the rounds in which no tenant could pay */
		for (unsigned i = 0; i < ts->n_round; i++, t = t->next)
			if (first_of(t, may, ctx))
				t->deficit += rounds * ts->quantum;
		w = paid(ts, may, ctx, &rounds);
	}
	ts->turn = w->tenant;
	return w;
}

void tenants_served(struct tenants *ts, struct waiter *w)
{
	struct tenant *t = w->tenant;

	t->deficit -= w->cost;
	tenants_take(ts, w);
	w = first_of(t, NULL, NULL);
	if (ts->turn == t && w && w->cost > t->deficit)
		ts->turn = t->next;            /* else it would also be first in the next round */
}
