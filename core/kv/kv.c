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

/* ---- free blocks, copies and eviction ------------------------------------------------------- */

static void free_put(struct kv *kv, int32_t i)
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

static void copy_put(struct kv *kv, int32_t device, int32_t host, bool out)
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
static int32_t host_take(struct kv *kv, int32_t owner)
{
	int32_t i = free_take(kv, HOST);

	if (i != NONE)
		return i;
	i = cache_victim(kv, HOST, owner);
	if (i != NONE) {
		cache_take(kv, i);
		index_remove(kv, i);
	}
	return i;
}

/* Copy cached device block i to the host tier, if that is useful and possible. */
static bool copy_out(struct kv *kv, int32_t i)
{
	int32_t host, owner = owner_of(kv, i);

	if (kv->left <= 0 || kv->left_out <= 0 || twin_of(kv, i) != NONE || kv->block[i].pinned)
		return false;
	host = host_take(kv, owner);
	if (host == NONE)
		return false;
	index_copy(kv, host, i);
	cache_put(kv, host, owner);
	copy_put(kv, i, host, true);
	return true;
}

/* A device block that is in no table and not in the index: a free one, else a cached one, evicted.
 * `must`: if no block is above the floors, take one from below them. */
static int32_t device_take(struct kv *kv, int32_t owner, bool must)
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
	cache_take(kv, i);
	index_remove(kv, i);
	kv->stats.evictions++;
	return i;
}

/* ---- matching and publishing --------------------------------------------------------------- */

/* *t has one more block in the index, under *key. */
static void table_advance(const struct kv *kv, struct kv_table *t, const struct kv_key *key)
{
	t->key[0] = key->w[0];
	t->key[1] = key->w[1];
	t->published++;
	if (((t->published << kv->shift) & (KV_CHUNK - 1)) == 0)
		t->at = t->at->next;
}

/* Make a host block the newest of its tier, because it was used. */
static void host_touch(struct kv *kv, int32_t host)
{
	int32_t owner = owner_of(kv, host);

	cache_take(kv, host);
	cache_put(kv, host, owner);
}

/* Copy host block `host` in.  NONE: not in this batch; *later reports whether a later one may do it. */
static int32_t copy_in(struct kv *kv, int32_t host, int32_t owner, bool *later)
{
	int32_t i;

	*later = kv->budget > 0;
	if (kv->block[host].pinned || kv->left <= 0)
		return NONE;
	kv->block[host].pinned = true;      /* its own eviction must not take this block's room */
	i = device_take(kv, owner, false);
	kv->block[host].pinned = false;
	if (i == NONE) {
		*later = false;             /* no device block: kv_grow deals with that */
		return NONE;
	}
	if (kv->left <= 0) {                /* the eviction took the last copy */
		free_put(kv, i);
		return NONE;
	}
	index_copy(kv, i, host);
	kv->block[i].refs = 1;
	copy_put(kv, i, host, false);
	host_touch(kv, host);
	kv->stats.host_hits++;
	return i;
}

static void hold_cached(struct kv *kv, int32_t i)
{
	int32_t twin = twin_of(kv, i);

	if (kv->block[i].refs++ == 0)
		cache_take(kv, i);
	if (twin != NONE && !kv->block[twin].pinned)
		host_touch(kv, twin);
}

int32_t kv_match(struct kv *kv, struct kv_table *t, int32_t n)
{
	const int32_t B = kv->cfg.block_tokens;
	struct kv_blocks *held = &t->group[0];

	assert(held->n == t->published);
	t->more = false;
	kv->stats.lookups++;
	while (held->n < held->cap && (held->n + 1) * B < n) {
		const int32_t *id = ids_at(kv, t, held->n);
		struct kv_key key = index_key(kv, t, id);
		int32_t found[2], i;

		index_find(kv, t, id, &key, found);
		i = found[DEVICE];
		if (i != NONE) {
			hold_cached(kv, i);
		} else {
			if (found[HOST] == NONE)
				break;
			i = copy_in(kv, found[HOST], t->owner, &t->more);
			if (i == NONE)
				break;
			t->more = false;
		}
		held->block[held->n++] = i;
		table_advance(kv, t, &key);
		kv->stats.hit_blocks++;
	}
	return held->n * B;
}

uint64_t kv_next(const struct kv *kv, const struct kv_table *t)
{
	return index_key(kv, t, ids_at(kv, t, t->published)).w[0];
}

int kv_grow(struct kv *kv, struct kv_table *t, int32_t n)
{
	struct kv_blocks *held = &t->group[0];
	int32_t want = (n >> kv->shift) + ((n & (kv->cfg.block_tokens - 1)) != 0);

	if (want > held->cap)
		return -E2BIG;
	if (want - held->n > kv_available(kv))
		return -ENOSPC;
	while (held->n < want) {
		int32_t i = device_take(kv, t->owner, true);

		assert(i != NONE);
		kv->block[i].refs = 1;
		held->block[held->n++] = i;
	}
	return 0;
}

/* Publish the next block of *t, which is full, under *key. */
static void publish(struct kv *kv, struct kv_table *t, const struct kv_key *key)
{
	const int32_t *id = ids_at(kv, t, t->published);
	int32_t i = t->group[0].block[t->published], found[2];

	/* If another table published the same block meanwhile, ours stays private. */
	index_find(kv, t, id, key, found);
	if (found[DEVICE] == NONE) {
		index_add(kv, i, key, (const struct kv_key *)t->key, t->salt, id);
		if (found[HOST] != NONE)
			index_twins(kv, i, found[HOST]);
	}
	table_advance(kv, t, key);
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

void kv_release(struct kv *kv, struct kv_table *t)
{
	struct kv_blocks *held = &t->group[0];

	for (int32_t j = held->n - 1; j >= 0; j--) {
		int32_t i = held->block[j];
		struct kv_block *b = &kv->block[i];

		assert(b->refs > 0);
		if (--b->refs > 0)
			continue;
		assert(t->owner >= 0 && t->owner < kv->cfg.n_owners);
		if (b->indexed)
			cache_put(kv, i, t->owner);
		else
			free_put(kv, i);
	}
	held->n = t->published = 0;
	t->more = false;
	t->key[0] = t->key[1] = 0;
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
}

/* ---- create, destroy ------------------------------------------------------------------------- */

static size_t padded(size_t n)
{
	return (n + 63) & ~(size_t)63;
}

int kv_create(struct kv **out, const struct kv_config *cfg)
{
	int64_t total = (int64_t)cfg->n_blocks + cfg->n_host;
	uint32_t buckets = 16;
	size_t owners = cfg->n_owners > 0 ? (size_t)cfg->n_owners : 1;
	size_t at_block = padded(sizeof(struct kv)), at_name, at_bucket, at_free, at_copy, at_cache, at_active;
	size_t at_run, end, name_bytes;
	struct kv *kv;

	if (cfg->n_blocks < 1 || cfg->n_host < 0 || cfg->n_owners < 0 || cfg->n_owners > INT16_MAX ||
	    cfg->n_groups < 0 || cfg->n_groups > KV_GROUPS || cfg->group[0].window != 0 ||
	    cfg->copies < 0 || cfg->block_tokens < 1 ||
	    KV_CHUNK % cfg->block_tokens != 0 || total > INT32_MAX / 4)
		return -EINVAL;
	while (buckets < 2 * (uint32_t)total)
		buckets *= 2;
	name_bytes = padded(sizeof(struct kv_name) + (size_t)cfg->block_tokens * sizeof(int32_t));
	at_name = at_block + padded((size_t)total * sizeof(struct kv_block));
	at_bucket = at_name + (size_t)total * name_bytes;
	at_free = at_bucket + padded(buckets * sizeof(int32_t));
	at_copy = at_free + padded((size_t)total * sizeof(int32_t));
	at_cache = at_copy + padded(((size_t)cfg->copies + 1) * sizeof(struct kv_copy));
	at_active = at_cache + padded(2 * owners * sizeof(struct kv_cache));
	at_run = at_active + padded(2 * owners * sizeof(int32_t));
	end = at_run + (size_t)total * sizeof(struct kv_run);
	kv = aligned_alloc(HUGE_PAGE, (end + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
	if (!kv)
		return -ENOMEM;
	madvise(kv, end, MADV_HUGEPAGE); /* halves the time of many random reads; works without, too */
	memset(kv, 0, at_run);           /* runs are written at first use, and few are ever used */
	kv->cfg = *cfg;
	kv->shift = __builtin_ctz((unsigned)cfg->block_tokens);
	kv->block = (struct kv_block *)((char *)kv + at_block);
	kv->run = (struct kv_run *)((char *)kv + at_run);
	kv->name = (char *)kv + at_name;
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
	for (uint32_t i = 0; i < buckets; i++)
		kv->bucket[i] = NONE;
	for (size_t o = 0; o < 2 * owners; o++)
		kv->cache[DEVICE][o].oldest = kv->cache[DEVICE][o].newest = NONE;
	for (int32_t i = (int32_t)total - 1; i >= 0; i--)
		free_put(kv, i);
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
