/* kv.c - which owner has which block of the KV cache, on which tier.  See kv.h for the states.
 *
 * Device blocks are numbered 0 .. n-1 and host blocks n .. n+host-1 in one array, so a list,
 * the index and a twin need only a number.  A block is in exactly one of three places: on its
 * tier's stack of free blocks; in its owner's list of cached blocks on that tier, least recently
 * released first; or held by tables (`refs`).  Independent of that, a published block is in the
 * index, a hash table with chains through `chained`.
 *
 * Cache misses cost more than all else here, so the layout serves prefetching.  Growing and releasing
 * touch a dozen bytes of a block; only publishing and matching touch its name.  Cached blocks are
 * listed in runs of consecutive releases, not one by one.  So the next evictions are known without
 * reading the block that is evicted now.
 *
 * The structures are in kv/impl.h.  Belongs to the scheduler's thread.
 */
#include "core/kv/impl.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define XXH_INLINE_ALL        /* inlined: a call costs as much as hashing 100 bytes */
#include <xxhash.h>

#define FLOORS       4        /* all floors together are one part in 4 of a tier */
#define FLOOR_AGE    16       /* an owner keeps its floor until 16 times the tier was released */
#define HUGE         ((size_t)2 << 20)
#define USUAL        16       /* usual tokens of a block: for these the length is a constant */
#define AHEAD_NAME   14       /* a name is prefetched 14 evictions ahead */
#define AHEAD_BUCKET 9        /* its bucket in the index 9 evictions ahead */
#define AHEAD_CHAIN  4        /* the bucket's first entry 4 evictions ahead */
#define AHEAD        16        /* tables that kv_publish_many prefetches ahead */

/* GCC removes calls to functions that only prefetch: force inlining. */
#define ASKS static inline __attribute__((always_inline))

static int32_t tier_size(const struct kv *kv, enum tier t)
{
	return t == DEVICE ? kv->cfg.n_blocks : kv->cfg.n_host;
}

/* ---- free and cached blocks ------------------------------------------------------------ */

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

static int32_t run_take(struct kv *kv)
{
	int32_t r = kv->free_run;

	if (r == NONE)
		return kv->new_run++;
	kv->free_run = kv->run[r].next;
	return r;
}

/* The run to add to: the newest, if it has room and no other owner has released anything since. */
static struct run *run_to_add(struct kv *kv, enum tier t, int32_t owner)
{
	struct cache *c = &kv->cache[t][owner];
	int32_t r = c->newest;

	if (r != NONE && kv->run[r].used < RUN && kv->run[r].when + (uint64_t)kv->run[r].used == kv->clock[t])
		return &kv->run[r];
	r = run_take(kv);
	kv->run[r] = (struct run){ .prev = c->newest, .next = NONE, .when = kv->clock[t],
				   .owner = (int16_t)owner };
	if (c->newest != NONE)
		kv->run[c->newest].next = r;
	else
		c->oldest = r;
	c->newest = r;
	return &kv->run[r];
}

static void run_drop(struct kv *kv, struct cache *c, int32_t r)
{
	struct run *x = &kv->run[r];

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

static void cached_add(struct kv *kv, int32_t i, int32_t owner)
{
	enum tier t = tier_of(kv, i);
	struct block *b = &kv->block[i];
	struct cache *c = &kv->cache[t][owner];
	struct run *r = run_to_add(kv, t, owner);

	assert(!b->cached);
	b->cached = true;
	b->run = (int32_t)(r - kv->run);
	b->place = (uint8_t)r->used;
	r->block[r->used++] = i;
	r->left++;
	kv->clock[t]++;
	if (c->n++ == 0) {
		c->at = kv->n_active[t];
		kv->active[t][kv->n_active[t]++] = owner;
	}
	kv->n_cached[t]++;
	if (t == DEVICE && b->pinned)
		kv->n_pinned++;
}

static void cached_remove(struct kv *kv, int32_t i)
{
	enum tier t = tier_of(kv, i);
	struct block *b = &kv->block[i];
	struct run *r = &kv->run[b->run];
	struct cache *c = &kv->cache[t][r->owner];

	assert(b->cached && r->block[b->place] == i);
	r->block[b->place] = NONE;
	while (r->first < r->used && r->block[r->first] == NONE)
		r->first++;
	if (--r->left == 0)
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

static int32_t owner_of(const struct kv *kv, int32_t i)
{
	return kv->run[kv->block[i].run].owner;
}

static uint64_t when_of(const struct kv *kv, int32_t i)
{
	return kv->run[kv->block[i].run].when + kv->block[i].place;
}

/* The next cached block after (*run, *place); advances both.  Place -1: before the run's first.  NONE:
 * there is no other. */
static int32_t run_next(const struct kv *kv, int32_t *run, int32_t *place)
{
	for (; *run != NONE; *run = kv->run[*run].next, *place = -1)
		while (++*place < kv->run[*run].used)
			if (kv->run[*run].block[*place] != NONE)
				return kv->run[*run].block[*place];
	return NONE;
}

/* When owner o last released a block that is still cached; o has at least one. */
static uint64_t newest_of(const struct kv *kv, enum tier t, int32_t o)
{
	const struct run *r = &kv->run[kv->cache[t][o].newest];
	int16_t k = r->used;

	while (r->block[--k] == NONE)
		;
	return r->when + (uint64_t)k;
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
static int32_t oldest_unpinned(const struct kv *kv, const struct cache *c)
{
	int32_t run = c->oldest, place = kv->run[run].first, i = kv->run[run].block[place];

	if (!kv->block[i].pinned)
		return i;
	do
		i = run_next(kv, &run, &place);
	while (i != NONE && kv->block[i].pinned);
	return i;
}

/* The cached block to evict for `owner`: the least recently released one that may be taken. */
static int32_t victim(const struct kv *kv, enum tier t, int32_t owner)
{
	int32_t best = NONE;

	for (int32_t k = 0; k < kv->n_active[t]; k++) {
		int32_t o = kv->active[t][k], i;
		const struct cache *c = &kv->cache[t][o];

		if (o != owner && c->n <= kept_of(kv, t, o))
			continue;
		i = oldest_unpinned(kv, c);
		if (i != NONE && (best == NONE || when_of(kv, i) < when_of(kv, best)))
			best = i;
	}
	return best;
}

/* The same without floors. */
static int32_t any_victim(const struct kv *kv, enum tier t)
{
	int32_t best = NONE;

	for (int32_t k = 0; k < kv->n_active[t]; k++) {
		int32_t i = oldest_unpinned(kv, &kv->cache[t][kv->active[t][k]]);

		if (i != NONE && (best == NONE || when_of(kv, i) < when_of(kv, best)))
			best = i;
	}
	return best;
}

/* ---- the index ---------------------------------------------------------------------------- */

/* Copy a block's ids; the constant length lets the compiler inline the copy. */
static inline void copy_ids(const struct kv *kv, int32_t *to, const int32_t *from)
{
	if (kv->cfg.block_tokens == USUAL)
		memcpy(to, from, USUAL * sizeof(*to));
	else
		memcpy(to, from, (size_t)kv->cfg.block_tokens * sizeof(*to));
}

struct named {
	uint64_t secret, parent[2], salt;
	int32_t  id[KV_CHUNK];
};
#define NAMED(ids) (offsetof(struct named, id) + (size_t)(ids) * sizeof(int32_t))

/* A constant length leaves no branch on it in the hash. */
static __attribute__((flatten)) XXH128_hash_t hash_usual(const struct named *in, uint64_t seed)
{
	return XXH3_128bits_withSeed(in, NAMED(USUAL), seed);
}

/* The name of the block that continues *t with these ids. */
static struct key key_of(const struct kv *kv, const struct kv_table *t, const int32_t *id)
{
	struct named in;
	XXH128_hash_t h;

	in.secret = kv->cfg.key[0];
	in.parent[0] = t->key[0];
	in.parent[1] = t->key[1];
	in.salt = t->salt;
	copy_ids(kv, in.id, id);
	h = kv->cfg.block_tokens == USUAL ? hash_usual(&in, kv->cfg.key[1]) :
	    XXH3_128bits_withSeed(&in, NAMED(kv->cfg.block_tokens), kv->cfg.key[1]);
	return (struct key){ { h.low64, h.high64 } };
}

static void index_add(struct kv *kv, int32_t i, const struct key *key, const struct key *parent,
		      uint64_t salt, const int32_t *id)
{
	struct name *n = name_of(kv, i);
	int32_t *head = bucket_of(kv, key);

	assert(!kv->block[i].indexed);
	kv->block[i].indexed = true;
	n->key = *key;
	n->parent = *parent;
	n->salt = salt;
	copy_ids(kv, n->id, id);
	n->chained = *head;
	n->twin = NONE;
	*head = i;
}

static int32_t twin_of(const struct kv *kv, int32_t i)
{
	return kv->block[i].indexed ? name_of(kv, i)->twin : NONE;
}

static void index_remove(struct kv *kv, int32_t i)
{
	struct name *n = name_of(kv, i);
	int32_t *at = bucket_of(kv, &n->key);

	while (*at != i)
		at = &name_of(kv, *at)->chained;
	*at = n->chained;
	kv->block[i].indexed = false;
	if (n->twin != NONE)
		name_of(kv, n->twin)->twin = NONE;
}

/* Find the indexed blocks, one by tier, that continue *t with these ids, whose key is *key; NONE.
 * The hash alone is never trusted. */
static void index_find(const struct kv *kv, const struct kv_table *t, const int32_t *id,
		       const struct key *key, int32_t found[2])
{
	const struct key *parent = (const struct key *)t->key;

	found[DEVICE] = found[HOST] = NONE;
	for (int32_t i = *bucket_of(kv, key); i != NONE; i = name_of(kv, i)->chained) {
		const struct name *n = name_of(kv, i);

		if (same_key(&n->key, key) && n->salt == t->salt && same_key(&n->parent, parent) &&
		    !memcmp(n->id, id, (size_t)kv->cfg.block_tokens * sizeof(*id)))
			found[tier_of(kv, i)] = i;
	}
}

static void make_twins(struct kv *kv, int32_t a, int32_t b)
{
	name_of(kv, a)->twin = b;
	name_of(kv, b)->twin = a;
}

/* Index `to` as the same tokens as `from`, which is on the other tier. */
static void index_copy(struct kv *kv, int32_t to, int32_t from)
{
	const struct name *f = name_of(kv, from);

	index_add(kv, to, &f->key, &f->parent, f->salt, f->id);
	make_twins(kv, to, from);
}

/* ---- copies and eviction ------------------------------------------------------------------ */

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
	i = victim(kv, HOST, owner);
	if (i != NONE) {
		cached_remove(kv, i);
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
	cached_add(kv, host, owner);
	copy_put(kv, i, host, true);
	return true;
}

/* The block `by` places behind i in its run or the next run.  NONE: there is none, or it is gone. */
static int32_t behind(const struct kv *kv, int32_t i, int32_t by)
{
	const struct run *r = &kv->run[kv->block[i].run];
	int32_t place = kv->block[i].place + by;

	if (place >= r->used) {
		place -= r->used;
		if (r->next == NONE)
			return NONE;
		r = &kv->run[r->next];
	}
	return place < r->used ? r->block[place] : NONE;
}

/* Block i is evicted, and the blocks behind it will be soon: prefetch what that will touch.  A
 * name gives the bucket, so the bucket is prefetched some evictions after the name. */
ASKS void look_ahead(const struct kv *kv, int32_t i)
{
	int32_t next = behind(kv, i, AHEAD_CHAIN), soon = behind(kv, i, AHEAD_BUCKET);
	int32_t later = behind(kv, i, AHEAD_NAME);

	if (next != NONE)
		__builtin_prefetch(name_of(kv, *bucket_of(kv, &name_of(kv, next)->key)), 1);
	if (soon != NONE)
		__builtin_prefetch(bucket_of(kv, &name_of(kv, soon)->key), 1);
	if (later != NONE) {
		__builtin_prefetch(&kv->block[later], 1);
		__builtin_prefetch(name_of(kv, later), 1);
	}
	if (kv->block[i].place == 0 && kv->run[kv->block[i].run].next != NONE) {
		const char *run = (const char *)&kv->run[kv->run[kv->block[i].run].next];

		__builtin_prefetch(run, 1);
		__builtin_prefetch(run + 64, 1);
	}
}

/* A device block that is in no table and not in the index: a free one, else a cached one, evicted.
 * `must`: if no block is above the floors, take one from below them. */
static int32_t device_take(struct kv *kv, int32_t owner, bool must)
{
	int32_t i = free_take(kv, DEVICE);

	if (i != NONE)
		return i;
	i = victim(kv, DEVICE, owner);
	if (i == NONE && must)
		i = any_victim(kv, DEVICE);
	if (i == NONE)
		return NONE;
	look_ahead(kv, i);
	copy_out(kv, i);
	cached_remove(kv, i);
	index_remove(kv, i);
	kv->stats.evictions++;
	return i;
}

/* ---- matching and publishing --------------------------------------------------------------- */

/* The ids of block number n of *t; t->at points to their chunk. */
static const int32_t *ids_at(const struct kv *kv, const struct kv_table *t, int32_t n)
{
	return t->at->id + ((n << kv->shift) & (KV_CHUNK - 1));
}

/* *t has one more block in the index, under *key. */
static void advance(const struct kv *kv, struct kv_table *t, const struct key *key)
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

	cached_remove(kv, host);
	cached_add(kv, host, owner);
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
		cached_remove(kv, i);
	if (twin != NONE && !kv->block[twin].pinned)
		host_touch(kv, twin);
}

int32_t kv_match(struct kv *kv, struct kv_table *t, int32_t n)
{
	const int32_t B = kv->cfg.block_tokens;

	assert(t->n == t->published);
	t->more = false;
	kv->stats.lookups++;
	while (t->n < t->cap && (t->n + 1) * B < n) {
		const int32_t *id = ids_at(kv, t, t->n);
		struct key key = key_of(kv, t, id);
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
		t->block[t->n++] = i;
		advance(kv, t, &key);
		kv->stats.hit_blocks++;
	}
	return t->n * B;
}

uint64_t kv_next(const struct kv *kv, const struct kv_table *t)
{
	return key_of(kv, t, ids_at(kv, t, t->published)).w[0];
}

int kv_grow(struct kv *kv, struct kv_table *t, int32_t n)
{
	int32_t want = (n >> kv->shift) + ((n & (kv->cfg.block_tokens - 1)) != 0);

	if (want > t->cap)
		return -E2BIG;
	if (want - t->n > kv_available(kv))
		return -ENOSPC;
	while (t->n < want) {
		int32_t i = device_take(kv, t->owner, true);

		assert(i != NONE);
		kv->block[i].refs = 1;
		t->block[t->n++] = i;
	}
	return 0;
}

/* Publish the next block of *t, which is full, under *key. */
static void publish(struct kv *kv, struct kv_table *t, const struct key *key)
{
	const int32_t *id = ids_at(kv, t, t->published);
	int32_t i = t->block[t->published], found[2];

	/* If another table published the same block meanwhile, ours stays private. */
	index_find(kv, t, id, key, found);
	if (found[DEVICE] == NONE) {
		index_add(kv, i, key, (const struct key *)t->key, t->salt, id);
		if (found[HOST] != NONE)
			make_twins(kv, i, found[HOST]);
	}
	advance(kv, t, key);
}

static bool publishable(const struct kv *kv, const struct kv_table *t, int32_t n)
{
	return t->published < n >> kv->shift;
}

void kv_publish(struct kv *kv, struct kv_table *t, int32_t n)
{
	while (publishable(kv, t, n)) {
		struct key key = key_of(kv, t, ids_at(kv, t, t->published));

		publish(kv, t, &key);
	}
}

/* Each table needs a bucket, its entry, and room for a name, anywhere in memory.  So all of them
 * are prefetched before any is used. */
static void publish_some(struct kv *kv, struct kv_table *const *tables, const int32_t *n, int32_t count)
{
	struct kv_table *t[AHEAD];
	struct key key[AHEAD];
	int32_t k = 0;

	for (int32_t j = 0; j < count; j++) {
		if (!publishable(kv, tables[j], n[j]))
			continue;
		t[k] = tables[j];
		__builtin_prefetch(t[k]->block + t[k]->published);
		__builtin_prefetch(ids_at(kv, t[k], t[k]->published));
		k++;
	}
	for (int32_t j = 0; j < k; j++) {
		int32_t i = t[j]->block[t[j]->published];
		const char *name = (const char *)name_of(kv, i);

		__builtin_prefetch(&kv->block[i], 1);
		__builtin_prefetch(name, 1);
		__builtin_prefetch(name + 64, 1);
		key[j] = key_of(kv, t[j], ids_at(kv, t[j], t[j]->published));
		__builtin_prefetch(bucket_of(kv, &key[j]), 1);
	}
	for (int32_t j = 0; j < k; j++)
		if (*bucket_of(kv, &key[j]) != NONE)
			__builtin_prefetch(name_of(kv, *bucket_of(kv, &key[j])));
	for (int32_t j = 0; j < k; j++)
		publish(kv, t[j], &key[j]);
	for (int32_t j = 0; j < count; j++)
		if (publishable(kv, tables[j], n[j]))
			kv_publish(kv, tables[j], n[j]);
}

void kv_publish_many(struct kv *kv, struct kv_table *const *t, const int32_t *n, int32_t count)
{
	for (; count > AHEAD; count -= AHEAD, t += AHEAD, n += AHEAD)
		publish_some(kv, t, n, AHEAD);
	publish_some(kv, t, n, count);
}

void kv_release(struct kv *kv, struct kv_table *t)
{
	for (int32_t j = t->n - 1; j >= 0; j--) {
		int32_t i = t->block[j];
		struct block *b = &kv->block[i];

		assert(b->refs > 0);
		if (--b->refs > 0)
			continue;
		assert(t->owner >= 0 && t->owner < kv->cfg.n_owners);
		if (b->indexed)
			cached_add(kv, i, t->owner);
		else
			free_put(kv, i);
	}
	t->n = t->published = 0;
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

int32_t kv_kept(const struct kv *kv, int32_t owner)
{
	int32_t n = 0;

	for (int32_t k = 0; k < kv->n_active[DEVICE]; k++)
		if (kv->active[DEVICE][k] != owner)
			n += kept_of(kv, DEVICE, kv->active[DEVICE][k]);
	return n;
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
	    cfg->copies < 0 || cfg->block_tokens < 1 ||
	    KV_CHUNK % cfg->block_tokens != 0 || total > INT32_MAX / 4)
		return -EINVAL;
	while (buckets < 2 * (uint32_t)total)
		buckets *= 2;
	name_bytes = padded(sizeof(struct name) + (size_t)cfg->block_tokens * sizeof(int32_t));
	at_name = at_block + padded((size_t)total * sizeof(struct block));
	at_bucket = at_name + (size_t)total * name_bytes;
	at_free = at_bucket + padded(buckets * sizeof(int32_t));
	at_copy = at_free + padded((size_t)total * sizeof(int32_t));
	at_cache = at_copy + padded(((size_t)cfg->copies + 1) * sizeof(struct kv_copy));
	at_active = at_cache + padded(2 * owners * sizeof(struct cache));
	at_run = at_active + padded(2 * owners * sizeof(int32_t));
	end = at_run + (size_t)total * sizeof(struct run);
	kv = aligned_alloc(HUGE, (end + HUGE - 1) / HUGE * HUGE);
	if (!kv)
		return -ENOMEM;
	madvise(kv, end, MADV_HUGEPAGE); /* halves the time of many random reads; works without, too */
	memset(kv, 0, at_run);           /* runs are written at first use, and few are ever used */
	kv->cfg = *cfg;
	kv->shift = __builtin_ctz((unsigned)cfg->block_tokens);
	kv->block = (struct block *)((char *)kv + at_block);
	kv->run = (struct run *)((char *)kv + at_run);
	kv->name = (char *)kv + at_name;
	kv->name_bytes = name_bytes;
	kv->bucket = (int32_t *)((char *)kv + at_bucket);
	kv->free[DEVICE] = (int32_t *)((char *)kv + at_free);
	kv->free[HOST] = kv->free[DEVICE] + cfg->n_blocks;
	kv->copy = (struct kv_copy *)((char *)kv + at_copy);
	kv->cache[DEVICE] = (struct cache *)((char *)kv + at_cache);
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
