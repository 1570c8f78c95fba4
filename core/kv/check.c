/* kv/check.c - each block has one place, each name one entry: the invariants of kv.h, asserted. */
#include "core/kv/impl.h"

#include <assert.h>

/* Owner o's cached blocks, checked and counted. */
static int32_t check_cache(const struct kv *kv, enum tier t, int32_t o, int32_t *pinned)
{
	const struct kv_cache *c = &kv->cache[t][o];
	int32_t n = 0, before = NONE;

	for (int32_t r = c->oldest; r != NONE; before = r, r = kv->run[r].next) {
		const struct kv_run *x = &kv->run[r];
		int32_t left = 0;

		assert(x->owner == o && x->prev == before && x->n_cached > 0 && x->n_used <= RUN_BLOCKS);
		assert(before == NONE || kv->run[before].released + (uint64_t)kv->run[before].n_used <= x->released);
		assert(x->released + (uint64_t)x->n_used <= kv->clock[t] && x->block[x->first] != NONE);
		for (int16_t k = 0; k < x->n_used; k++) {
			const struct kv_block *b = &kv->block[x->block[k] == NONE ? 0 : x->block[k]];

			if (x->block[k] == NONE)
				continue;
			assert(tier_of(kv, x->block[k]) == t && b->cached && b->run == r && b->place == k);
			assert(k >= x->first);
			*pinned += b->pinned;
			left++;
		}
		assert(left == x->n_cached);
		n += left;
	}
	assert(c->newest == before && n == c->n && n > 0);
	return n;
}

static void check_lists(const struct kv *kv, enum tier t)
{
	int32_t n = 0, pinned = 0;

	for (int32_t j = 0; j < kv->n_free[t]; j++) {
		const struct kv_block *b = &kv->block[kv->free[t][j]];

		assert(tier_of(kv, kv->free[t][j]) == t && b->free);
	}
	for (int32_t k = 0; k < kv->n_active[t]; k++) {
		int32_t o = kv->active[t][k];

		assert(kv->cache[t][o].at == k);
		n += check_cache(kv, t, o, &pinned);
	}
	assert(n == kv->n_cached[t]);
	if (t == DEVICE)
		assert(pinned == kv->n_pinned);
}

static void check_block(const struct kv *kv, int32_t i)
{
	const struct kv_block *b = &kv->block[i];

	assert(b->free + b->cached + (b->refs > 0) == 1 && b->refs >= 0);
	assert(!b->free || !b->indexed);
	assert(!b->cached || b->indexed);
	assert(!b->pinned || kv->n_copies > 0);
}

/* Block i is at its place in the index, and no later block of the chain has its key on its tier. */
static void check_name(const struct kv *kv, int32_t i, const int32_t *bucket)
{
	const struct kv_name *n = name_of(kv, i);

	assert(kv->block[i].indexed && bucket_of(kv, &n->key) == bucket);
	for (int32_t j = n->next_in_bucket; j != NONE; j = name_of(kv, j)->next_in_bucket)
		assert(j != i && (tier_of(kv, j) != tier_of(kv, i) || !same_key(&name_of(kv, j)->key, &n->key)));
	assert(n->group >= 0 && n->group < kv->cfg.n_groups);
	assert((n->unit == NONE) == (n->unit_before == NONE));
	assert(n->unit == NONE || has_window(kv, n->group));
	if (n->unit != NONE) {
		assert(kv->block[n->unit].indexed && name_of(kv, n->unit)->unit_before == i);
		assert(kv->block[n->unit_before].indexed && name_of(kv, n->unit_before)->unit == i);
	}
	assert(!kv->block[i].cached || !has_window(kv, n->group) || n->unit != NONE);
	if (n->twin != NONE) {
		const struct kv_name *o = name_of(kv, n->twin);

		assert(kv->block[n->twin].indexed && o->twin == i && tier_of(kv, n->twin) != tier_of(kv, i));
		assert(same_key(&o->key, &n->key) && o->salt == n->salt);
	}
}

void kv_check(const struct kv *kv)
{
	int32_t n_free[2] = { 0, 0 }, n_indexed = 0, n_chained = 0, held = 0, named[KV_GROUPS] = { 0 };

	states_check(kv);
	for (int t = DEVICE; t <= HOST; t++)
		check_lists(kv, (enum tier)t);
	for (int32_t i = 0; i < kv->cfg.n_blocks + kv->cfg.n_host; i++) {
		check_block(kv, i);
		n_free[tier_of(kv, i)] += kv->block[i].free;
		held += kv->block[i].refs > 0;
		n_indexed += kv->block[i].indexed;
		if (kv->block[i].refs > 0 && kv->block[i].indexed)
			named[name_of(kv, i)->group]++;
	}
	for (uint32_t k = 0; k <= kv->mask; k++)
		for (int32_t i = kv->bucket[k]; i != NONE; i = name_of(kv, i)->next_in_bucket, n_chained++)
			check_name(kv, i, &kv->bucket[k]);
	assert(n_chained == n_indexed); /* so each is in the index exactly once */
	assert(n_free[DEVICE] == kv->n_free[DEVICE] && n_free[HOST] == kv->n_free[HOST]);
	assert(kv->n_free[DEVICE] + kv->n_cached[DEVICE] + held == kv->cfg.n_blocks);
	assert(kv->n_free[HOST] + kv->n_cached[HOST] == kv->cfg.n_host);
	for (int32_t g = 0; g < KV_GROUPS; g++) {
		assert(kv->stats.held[g] >= named[g]);
		held -= kv->stats.held[g];
	}
	assert(held == 0);
}
