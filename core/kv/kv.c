/* kv.c - which owner has which block of the KV cache, on which tier.  See kv.h for the states, impl.h
 * for the structures and the other files.  Belongs to the scheduler's thread.
 */
#include "core/kv/prefetch.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE    ((size_t)2 << 20)

static int32_t blocks_for(const struct kv *kv, int32_t n_tokens)
{
	return (n_tokens >> kv->shift) + ((n_tokens & (kv->cfg.block_tokens - 1)) != 0);
}

/* ---- free blocks, copies and eviction ------------------------------------------------------- */

void block_free(struct kv *kv, int32_t i)
{
	enum tier t = tier_of(kv, i);

	kv->block[i].free = true;
	kv->free[t][kv->n_free[t]++] = i;
}

static int32_t free_take(struct kv *kv, enum tier t)
{
	int32_t i;

	if (kv->n_free[t] == 0)
		return NONE;
	i = kv->free[t][--kv->n_free[t]];
	kv->block[i].free = false;
	return i;
}

void copy_put(struct kv *kv, int32_t device, int32_t host, bool out)
{
	assert(kv->n_copies < kv->cfg.copies);
	kv->copy[kv->n_copies++] = (struct kv_copy){ device, host - kv->cfg.n_blocks, out };
	kv->left--;
	kv->block[host].pinned = true;
	if (out) {
		kv->left_out--;
		kv->stats.copies_out++;
	} else {
		kv->block[device].pinned = true;
		kv->stats.copies_in++;
	}
}

/* A host block for `owner` to write to: a free one, else an evicted one; NONE if there is neither. */
int32_t host_take(struct kv *kv, int32_t owner)
{
	int32_t i = free_take(kv, HOST);

	if (i != NONE)
		return i;
	i = cache_victim(kv, HOST, owner);
	if (i != NONE) {
		if (in_unit(kv, i))
			unit_evict(kv, i);
		cache_take(kv, i);
		index_remove(kv, i);
	}
	return i;
}

/* Copy cached device block i to the host tier, and the rest of its unit, if that is useful and possible.
 * Returns the number of copies. */
static int32_t copy_out(struct kv *kv, int32_t i)
{
	int32_t host, owner = owner_of(kv, i);

	if (in_unit(kv, i))
		return unit_copy_out(kv, i);
	if (kv->left <= 0 || kv->left_out <= 0 || twin_of(kv, i) != NONE || kv->block[i].pinned)
		return 0;
	host = host_take(kv, owner);
	if (host == NONE)
		return 0;
	index_copy(kv, host, i);
	cache_put(kv, host, owner);
	copy_put(kv, i, host, true);
	return 1;
}

int32_t block_take(struct kv *kv, int32_t owner, bool must)
{
	int32_t i = free_take(kv, DEVICE);

	if (i != NONE)
		return i;
	i = cache_victim(kv, DEVICE, owner);
	if (i == NONE && must)
		i = cache_any_victim(kv, DEVICE);
	if (i == NONE)
		return NONE;
	prefetch_evictions(kv, i);
	copy_out(kv, i);
	if (in_unit(kv, i))
		unit_evict(kv, i);
	cache_take(kv, i);
	index_remove(kv, i);
	kv->stats.evictions++;
	return i;
}

/* ---- growing, publishing, releasing ---------------------------------------------------------- */

uint64_t kv_next(const struct kv *kv, const struct kv_table *t)
{
	return index_key(kv, t, ids_at(kv, t, t->published)).w[0];
}

uint64_t kv_name(const struct kv *kv, const struct kv_table *t, int32_t n)
{
	struct kv_table look = *t;         /* its names go on, its blocks are not touched */

	assert(n > t->published);
	while (look.published < n) {
		struct kv_key key = index_key(kv, &look, ids_at(kv, &look, look.published));

		table_advance(kv, &look, &key);
	}
	return look.key[0];
}

int kv_grow(struct kv *kv, struct kv_table *t, int32_t n)
{
	int32_t want = blocks_for(kv, n);

	if (want > t->cap)
		return -E2BIG;
	if ((int64_t)(want - t->n) * kv->cfg.n_groups > kv_available(kv))
		return -ENOSPC;
	for (; t->n < want; t->n++)
		for (int32_t g = 0; g < kv->cfg.n_groups; g++) {
			int32_t i = block_take(kv, t->owner, true);

			assert(i != NONE);
			kv->block[i].refs = 1;
			kv->stats.held[g]++;
			blocks_of(t, g)[t->n] = i;
		}
	return 0;
}

/* Publish the next block of a group of *t, which is full, under *key. */
static void publish_of(struct kv *kv, const struct kv_table *t, int32_t group, const int32_t *id,
                       const struct kv_key *key)
{
	int32_t i = blocks_of(t, group)[t->published], found[2];

	/* If another table published the same block meanwhile, ours stays private. */
	index_find(kv, t, group, id, key, found);
	if (found[DEVICE] != NONE)
		return;
	index_add(kv, i, t, group, id, key);
	if (found[HOST] != NONE)
		index_twins(kv, i, found[HOST]);
}

/* Publish the next block of *t, which is full; its name in group 0 is *key. */
static void publish(struct kv *kv, struct kv_table *t, const struct kv_key *key)
{
	const int32_t *id = ids_at(kv, t, t->published);

	if (!kv->windows || first_held(kv, t, 0) <= t->published)
		publish_of(kv, t, 0, id, key);
	for (int32_t g = 1; g < kv->cfg.n_groups; g++) {
		struct kv_key of_group = key_of_group(key, g);

		if (first_held(kv, t, g) <= t->published)
			publish_of(kv, t, g, id, &of_group);
	}
	table_advance(kv, t, key);
	if (kv->cfg.n_states)
		state_named(kv, t);
	if (kv->windows && (t->published == t->end || t->published == t->fork))
		window_keep(kv, t);
}

static bool publishable(const struct kv *kv, const struct kv_table *t, int32_t n)
{
	return t->published < n >> kv->shift;
}

void kv_publish(struct kv *kv, struct kv_table *t, int32_t n)
{
	while (publishable(kv, t, n)) {
		struct kv_key key = index_key(kv, t, ids_at(kv, t, t->published));

		publish(kv, t, &key);
	}
}

/* Each table needs a bucket, its entry, and room for a name, anywhere in memory.  So all of them
 * are prefetched before any is used. */
static void publish_some(struct kv *kv, struct kv_table *const *tables, const int32_t *n, int32_t count)
{
	struct kv_table *t[AHEAD_TABLES];
	struct kv_key key[AHEAD_TABLES];
	int32_t k = 0;

	for (int32_t j = 0; j < count; j++) {
		if (!publishable(kv, tables[j], n[j]))
			continue;
		t[k] = tables[j];
		prefetch_ids(kv, t[k++]);
	}
	for (int32_t j = 0; j < k; j++) {
		prefetch_name(kv, t[j]);
		key[j] = index_key(kv, t[j], ids_at(kv, t[j], t[j]->published));
		prefetch_bucket(kv, &key[j]);
	}
	for (int32_t j = 0; j < k; j++)
		prefetch_chain(kv, &key[j]);
	for (int32_t j = 0; j < k; j++)
		publish(kv, t[j], &key[j]);
	for (int32_t j = 0; j < count; j++)
		if (publishable(kv, tables[j], n[j]))
			kv_publish(kv, tables[j], n[j]);
}

void kv_publish_many(struct kv *kv, struct kv_table *const *t, const int32_t *n, int32_t count)
{
	for (; count > AHEAD_TABLES; count -= AHEAD_TABLES, t += AHEAD_TABLES, n += AHEAD_TABLES)
		publish_some(kv, t, n, AHEAD_TABLES);
	publish_some(kv, t, n, count);
}

static void release_group(struct kv *kv, struct kv_table *t, int32_t group)
{
	for (int32_t j = t->n - 1; j >= 0; j--) {
		int32_t i = blocks_of(t, group)[j];
		struct kv_block *b = &kv->block[i];

		assert(b->refs > 0);
		if (--b->refs > 0)
			continue;
		kv->stats.held[group]--;
		if (b->indexed)
			cache_put(kv, i, t->owner);
		else
			block_free(kv, i);
	}
}

/* Windows go first: their units are evicted before the full groups' blocks behind which they lie. */
void kv_release(struct kv *kv, struct kv_table *t)
{
	assert(t->owner >= 0 && t->owner < kv->cfg.n_owners);
	if (kv->windows)
		window_release(kv, t);
	for (int32_t g = 0; g < kv->cfg.n_groups; g++)
		if (!has_window(kv, g))
			release_group(kv, t, g);
	if (kv->cfg.n_states)
		state_release(kv, t);
	t->n = t->published = t->end = t->fork = 0;
	t->more = false;
	t->tries = 0;
	t->key[0] = t->key[1] = 0;
}

void kv_forget(struct kv *kv)
{
	assert(kv->n_copies == 0 && kv->n_free[DEVICE] + kv->n_cached[DEVICE] == kv->cfg.n_blocks);
	for (enum tier t = DEVICE; t <= HOST; t++)
		for (int32_t i; (i = cache_any_victim(kv, t)) != NONE; ) {
			if (in_unit(kv, i))
				unit_evict(kv, i);
			cache_take(kv, i);
			index_remove(kv, i);
			block_free(kv, i);
		}
	states_forget(kv);
}

/* ---- batches ------------------------------------------------------------------------------ */

void kv_begin(struct kv *kv, int32_t copies)
{
	assert(kv->n_copies == 0);
	if (kv->cfg.n_host == 0)
		copies = 0;
	if (copies > kv->cfg.copies)
		copies = kv->cfg.copies;
	kv->budget = kv->left = copies;
	kv->left_out = copies / 2;
	kv->states.batch++;
}

int32_t kv_demote(struct kv *kv, int32_t look)
{
	int32_t n = 0;

	kv->left_out = kv->left;
	for (int32_t k = 0; k < kv->n_active[DEVICE] && kv->left > 0; k++) {
		int32_t run = kv->cache[DEVICE][kv->active[DEVICE][k]].oldest, place = -1, i;
		int32_t m = (look + kv->n_active[DEVICE] - 1) / kv->n_active[DEVICE];

		for (; m > 0 && kv->left > 0 && (i = run_next(kv, &run, &place)) != NONE; m--)
			n += copy_out(kv, i);
	}
	return n;
}

int32_t kv_copies(const struct kv *kv, const struct kv_copy **out)
{
	*out = kv->copy;
	return kv->n_copies;
}

void kv_launched(struct kv *kv)
{
	for (int32_t j = 0; j < kv->n_copies; j++) {
		const struct kv_copy *c = &kv->copy[j];

		kv->block[kv->cfg.n_blocks + c->host].pinned = false;
		if (!c->out)
			kv->block[c->device].pinned = false;
	}
	kv->n_pinned = 0;
	kv->n_copies = 0;
	kv->budget = kv->left = kv->left_out = 0;
}

int32_t kv_available(const struct kv *kv)
{
	return kv->n_free[DEVICE] + kv->n_cached[DEVICE] - kv->n_pinned;
}

void kv_stats(const struct kv *kv, struct kv_stats *out)
{
	*out = kv->stats;
	out->n_free = kv->n_free[DEVICE];
	out->n_cached = kv->n_cached[DEVICE];
	out->n_held = kv->cfg.n_blocks - out->n_free - out->n_cached;
	out->n_host_free = kv->n_free[HOST];
	out->n_host_cached = kv->n_cached[HOST];
	out->n_states_free = kv->states.n_free;
	out->n_states_cached = kv->states.n_cached;
}

/* ---- create, destroy ------------------------------------------------------------------------- */

static size_t padded(size_t n)
{
	return (n + 63) & ~(size_t)63;
}

static bool config_works(const struct kv_config *c)
{
	int64_t total = (int64_t)c->n_blocks + c->n_host;

	if (c->n_blocks < 1 || c->n_host < 0 || c->n_owners < 0 || c->n_owners > INT16_MAX || c->copies < 0 ||
	    c->block_tokens < 1 || KV_CHUNK % c->block_tokens != 0 || total > INT32_MAX / 4 ||
	    c->n_groups < 0 || c->n_groups > KV_GROUPS ||
	    c->n_states < 0 || (c->n_states && (c->n_groups > 1 || c->group[0].window || c->n_host)))
		return false;
	for (int32_t g = 0; g < c->n_groups; g++)
		if (c->group[g].window < 0)
			return false;
	return true;
}

int32_t kv_lacks(const struct kv *kv, const struct kv_table *t, int32_t n, int32_t step)
{
	int32_t want = blocks_for(kv, n), sum = 0;

	for (int32_t g = 0; g < kv->cfg.n_groups; g++) {
		int32_t more = want - t->n;

		if (has_window(kv, g)) {
			more = most_of_window(&kv->cfg, g, n, step) - (t->n - first_held(kv, t, g));
			more = more > 0 ? more : 0;
		}
		sum += more;
	}
	return sum;
}

int kv_create(struct kv **out, const struct kv_config *cfg)
{
	int64_t total = (int64_t)cfg->n_blocks + cfg->n_host;
	uint32_t buckets = 16;
	size_t owners = cfg->n_owners > 0 ? (size_t)cfg->n_owners : 1;
	size_t at_block = padded(sizeof(struct kv)), at_name, at_bucket, at_free, at_copy, at_cache, at_active;
	size_t at_run, at_states, end, name_bytes, names;
	struct kv *kv;

	if (!config_works(cfg))
		return -EINVAL;
	while (buckets < 2 * (uint32_t)total)
		buckets *= 2;
	name_bytes = events_name_bytes((uint32_t)cfg->block_tokens);
	names = cfg->events ? 0 : (size_t)total * name_bytes;
	at_name = at_block + padded((size_t)total * sizeof(struct kv_block));
	at_bucket = at_name + names;
	at_free = at_bucket + padded(buckets * sizeof(int32_t));
	at_copy = at_free + padded((size_t)total * sizeof(int32_t));
	at_cache = at_copy + padded(((size_t)cfg->copies + 1) * sizeof(struct kv_copy));
	at_active = at_cache + padded(2 * owners * sizeof(struct kv_cache));
	at_run = at_active + padded(2 * owners * sizeof(int32_t));
	at_states = padded(at_run + (size_t)total * sizeof(struct kv_run));
	end = at_states + states_lay(NULL, cfg->n_states, NULL);
	kv = aligned_alloc(HUGE_PAGE, (end + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
	if (!kv)
		return -ENOMEM;
	madvise(kv, end, MADV_HUGEPAGE); /* halves the time of many random reads; works without, too */
	memset(kv, 0, at_run);           /* runs are written at first use, and few are ever used */
	kv->cfg = *cfg;
	kv->cfg.n_groups = cfg->n_groups > 0 ? cfg->n_groups : 1;
	for (int32_t g = 0; g < kv->cfg.n_groups; g++) {
		kv->reach[g] = most_reach(cfg, g);
		kv->windows |= has_window(kv, g);
	}
	if (cfg->shown) {
		cfg->shown->block_tokens = (uint32_t)cfg->block_tokens;
		cfg->shown->n_groups = (uint32_t)kv->cfg.n_groups;
		memcpy(cfg->shown->reach, kv->reach, sizeof(kv->reach));
	}
	if (cfg->events) {
		cfg->events->n_groups = (uint32_t)kv->cfg.n_groups;
		for (int32_t g = 0; g < kv->cfg.n_groups; g++)
			cfg->events->window[g] = cfg->group[g].window;
	}
	kv->shift = __builtin_ctz((unsigned)cfg->block_tokens);
	kv->block = (struct kv_block *)((char *)kv + at_block);
	kv->run = (struct kv_run *)((char *)kv + at_run);
	kv->name = cfg->events ? (char *)cfg->events->name : (char *)kv + at_name;
	kv->name_bytes = name_bytes;
	kv->bucket = (int32_t *)((char *)kv + at_bucket);
	kv->free[DEVICE] = (int32_t *)((char *)kv + at_free);
	kv->free[HOST] = kv->free[DEVICE] + cfg->n_blocks;
	kv->copy = (struct kv_copy *)((char *)kv + at_copy);
	kv->cache[DEVICE] = (struct kv_cache *)((char *)kv + at_cache);
	kv->cache[HOST] = kv->cache[DEVICE] + owners;
	kv->active[DEVICE] = (int32_t *)((char *)kv + at_active);
	kv->active[HOST] = kv->active[DEVICE] + owners;
	kv->cfg.n_owners = (int32_t)owners;
	kv->mask = buckets - 1;
	kv->free_run = NONE;
	if (cfg->n_states)
		memset((char *)kv + at_states, 0, end - at_states);
	states_lay(&kv->states, cfg->n_states, (char *)kv + at_states);
	states_begin(kv);
	for (uint32_t i = 0; i < buckets; i++)
		kv->bucket[i] = NONE;
	for (size_t o = 0; o < 2 * owners; o++)
		kv->cache[DEVICE][o].oldest = kv->cache[DEVICE][o].newest = NONE;
	for (int32_t i = (int32_t)total - 1; i >= 0; i--)
		block_free(kv, i);
	*out = kv;
	return 0;
}

void kv_destroy(struct kv *kv)
{
	if (!kv)
		return;
	assert(kv->n_free[DEVICE] + kv->n_cached[DEVICE] == kv->cfg.n_blocks);
	free(kv);
}
