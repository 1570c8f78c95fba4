/* kv/cache.c - cached blocks: in which order they were released, by whom, and which is evicted next.
 *
 * Each owner has a list of runs on each tier, least recently released first.  See kv.h for floors.
 * Belongs to the scheduler's thread.
 */
#include "core/kv/impl.h"

#include <assert.h>

#define FLOORS       4        /* all floors together are one part in 4 of a tier */
#define FLOOR_AGE    16       /* an owner keeps its floor until 16 times the tier was released */

static int32_t tier_size(const struct kv *kv, enum tier t)
{
	return t == DEVICE ? kv->cfg.n_blocks : kv->cfg.n_host;
}

/* ---- runs ----------------------------------------------------------------------------------- */

static int32_t run_take(struct kv *kv)
{
	int32_t r = kv->free_run;

	if (r == NONE)
		return kv->new_run++;
	kv->free_run = kv->run[r].next;
	return r;
}

/* The run to add to: the newest, if it has room and no other owner has released anything since. */
static struct kv_run *run_to_add(struct kv *kv, enum tier t, int32_t owner)
{
	struct kv_cache *c = &kv->cache[t][owner];
	int32_t r = c->newest;

	if (r != NONE && kv->run[r].n_used < RUN_BLOCKS &&
	    kv->run[r].released + (uint64_t)kv->run[r].n_used == kv->clock[t])
		return &kv->run[r];
	r = run_take(kv);
	kv->run[r] = (struct kv_run){ .prev = c->newest, .next = NONE, .released = kv->clock[t],
	                             .owner = (int16_t)owner };
	if (c->newest != NONE)
		kv->run[c->newest].next = r;
	else
		c->oldest = r;
	c->newest = r;
	return &kv->run[r];
}

static void run_drop(struct kv *kv, struct kv_cache *c, int32_t r)
{
	struct kv_run *x = &kv->run[r];

	if (x->prev != NONE)
		kv->run[x->prev].next = x->next;
	else
		c->oldest = x->next;
	if (x->next != NONE)
		kv->run[x->next].prev = x->prev;
	else
		c->newest = x->prev;
	x->next = kv->free_run;
	kv->free_run = r;
}

void cache_put(struct kv *kv, int32_t i, int32_t owner)
{
	enum tier t = tier_of(kv, i);
	struct kv_block *b = &kv->block[i];
	struct kv_cache *c = &kv->cache[t][owner];
	struct kv_run *r = run_to_add(kv, t, owner);

	assert(!b->cached);
	b->cached = true;
	b->run = (int32_t)(r - kv->run);
	b->place = (uint8_t)r->n_used;
	r->block[r->n_used++] = i;
	r->n_cached++;
	kv->clock[t]++;
	if (c->n++ == 0) {
		c->at = kv->n_active[t];
		kv->active[t][kv->n_active[t]++] = owner;
	}
	kv->n_cached[t]++;
	if (t == DEVICE && b->pinned)
		kv->n_pinned++;
}

void cache_take(struct kv *kv, int32_t i)
{
	enum tier t = tier_of(kv, i);
	struct kv_block *b = &kv->block[i];
	struct kv_run *r = &kv->run[b->run];
	struct kv_cache *c = &kv->cache[t][r->owner];

	assert(b->cached && r->block[b->place] == i);
	r->block[b->place] = NONE;
	while (r->first < r->n_used && r->block[r->first] == NONE)
		r->first++;
	if (--r->n_cached == 0)
		run_drop(kv, c, b->run);
	if (--c->n == 0) {
		int32_t last = kv->active[t][--kv->n_active[t]];

		kv->active[t][c->at] = last;
		kv->cache[t][last].at = c->at;
	}
	b->cached = false;
	kv->n_cached[t]--;
	if (t == DEVICE && b->pinned)
		kv->n_pinned--;
}

static uint64_t released_at(const struct kv *kv, int32_t i)
{
	return kv->run[kv->block[i].run].released + kv->block[i].place;
}

/* ---- floors and victims --------------------------------------------------------------------- */

/* When owner o last released a block that is still cached; o has at least one. */
static uint64_t newest_of(const struct kv *kv, enum tier t, int32_t o)
{
	const struct kv_run *r = &kv->run[kv->cache[t][o].newest];
	int16_t k = r->n_used;

	while (r->block[--k] == NONE)
		;
	return r->released + (uint64_t)k;
}

/* Cached blocks of owner o that other owners may not evict. */
static int32_t kept_of(const struct kv *kv, enum tier t, int32_t o)
{
	int32_t size = tier_size(kv, t), floor = size / FLOORS / kv->n_active[t], n = kv->cache[t][o].n;

	if (kv->clock[t] - newest_of(kv, t, o) > (uint64_t)FLOOR_AGE * (uint64_t)size)
		return 0;
	return n < floor ? n : floor;
}

/* Pins are few (copies of one batch), so this walk is short. */
static int32_t oldest_unpinned(const struct kv *kv, const struct kv_cache *c)
{
	int32_t run = c->oldest, place = kv->run[run].first, i = kv->run[run].block[place];

	if (!kv->block[i].pinned)
		return i;
	do
		i = run_next(kv, &run, &place);
	while (i != NONE && kv->block[i].pinned);
	return i;
}

int32_t cache_victim(const struct kv *kv, enum tier t, int32_t owner)
{
	int32_t best = NONE;

	for (int32_t k = 0; k < kv->n_active[t]; k++) {
		int32_t o = kv->active[t][k], i;
		const struct kv_cache *c = &kv->cache[t][o];

		if (o != owner && c->n <= kept_of(kv, t, o))
			continue;
		i = oldest_unpinned(kv, c);
		if (i != NONE && (best == NONE || released_at(kv, i) < released_at(kv, best)))
			best = i;
	}
	return best;
}

int32_t cache_any_victim(const struct kv *kv, enum tier t)
{
	int32_t best = NONE;

	for (int32_t k = 0; k < kv->n_active[t]; k++) {
		int32_t i = oldest_unpinned(kv, &kv->cache[t][kv->active[t][k]]);

		if (i != NONE && (best == NONE || released_at(kv, i) < released_at(kv, best)))
			best = i;
	}
	return best;
}

int32_t kv_kept(const struct kv *kv, int32_t owner)
{
	int32_t n = 0;

	for (int32_t k = 0; k < kv->n_active[DEVICE]; k++)
		if (kv->active[DEVICE][k] != owner)
			n += kept_of(kv, DEVICE, kv->active[DEVICE][k]);
	return n;
}
