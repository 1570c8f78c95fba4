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
	assert(!t->first);
	while (*at != t)
		at = &(*at)->chained;
	*at = t->chained;
	free(t);
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
	struct waiter *after = t->last;

	if (!w->order)
		w->order = ++ts->order;
	w->tenant = t;
	if (after && after->order > w->order)  /* it returns: its place is near the front */
		for (after = NULL; (after ? after->next : t->first)->order < w->order;)
			after = after ? after->next : t->first;
	if (!t->first)
		round_join(ts, t);
	w->prev = after;
	w->next = after ? after->next : t->first;
	*(w->prev ? &w->prev->next : &t->first) = w;
	*(w->next ? &w->next->prev : &t->last) = w;
	ts->n_waiting++;
}

void tenants_take(struct tenants *ts, struct waiter *w)
{
	struct tenant *t = w->tenant;

	*(w->prev ? &w->prev->next : &t->first) = w->next;
	*(w->next ? &w->next->prev : &t->last) = w->prev;
	ts->n_waiting--;
	if (!t->first)
		round_leave(ts, t);
}

/* The first tenant, from ts->turn on, that may go and can pay.  NULL if there is none; *rounds is then
 * the least number of quanta that one of them lacks, or UINT64_MAX if none may go. */
static struct tenant *payer(struct tenants *ts, bool (*may)(void *ctx, const struct tenant *t), void *ctx,
                            uint64_t *rounds)
{
	struct tenant *t = ts->turn;
	uint64_t lacks;

	*rounds = UINT64_MAX;
	for (unsigned i = 0; i < ts->n_round; i++, t = t->next) {
		if (may && !may(ctx, t))
			continue;
		if (t->first->cost <= t->deficit)
			return t;
		lacks = (t->first->cost - t->deficit + ts->quantum - 1) / ts->quantum;
		*rounds = lacks < *rounds ? lacks : *rounds;
	}
	return NULL;
}

struct waiter *tenants_next(struct tenants *ts, bool (*may)(void *ctx, const struct tenant *t), void *ctx)
{
	uint64_t rounds;
	struct tenant *t = payer(ts, may, ctx, &rounds);

	if (!t && rounds == UINT64_MAX)
		return NULL;
	if (!t) {                              /* skip the rounds in which no tenant could pay */
		t = ts->turn;
		for (unsigned i = 0; i < ts->n_round; i++, t = t->next)
			if (!may || may(ctx, t))
				t->deficit += rounds * ts->quantum;
		t = payer(ts, may, ctx, &rounds);
	}
	ts->turn = t;
	return t->first;
}

void tenants_served(struct tenants *ts, struct waiter *w)
{
	struct tenant *t = w->tenant;

	t->deficit -= w->cost;
	tenants_take(ts, w);
	if (ts->turn == t && t->first && t->first->cost > t->deficit)
		ts->turn = t->next;            /* else it would also be first in the next round */
}
