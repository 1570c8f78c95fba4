/* kv.c - who owns which block of the KV cache, on which tier.  See kv.h for the states.
 *
 * Device blocks are numbered 0 .. n-1 and host blocks n .. n+host-1 in one array, so a list,
 * the index and a twin need only a number.  A block is in exactly one place: on its tier's
 * free list (through `next`), in its owner's list of cached blocks on that tier, least recently
 * released first (`prev`, `next`), or held by tables (`refs`).  Independent of that, a published
 * block is in the index, a hash table of chains through `chained`.
 *
 * Belongs to the scheduler's thread.
 */
#include "core/kv.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define NONE (-1)
#define FLOORS    4           /* all floors together are one part in so many of a tier, */
#define FLOOR_AGE 16          /* for owners heard of since so many times the tier was released */

enum tier { DEVICE, HOST };

struct key { uint64_t w[2]; };

struct block {
	int32_t  prev, next;      /* in the cached or the free list */
	int32_t  refs;            /* tables that hold it */
	int32_t  chained;         /* next in its bucket of the index */
	int32_t  twin;            /* the same tokens on the other tier, or NONE */
	bool     indexed;         /* published */
	bool     cached;          /* in the list of cached blocks */
	bool     pinned;          /* a copy of the batch being filled uses it */
	int32_t  owner;           /* who let go of it last, if cached; */
	uint64_t when;            /* and when: kv->clock[tier] then */
	struct key key, parent;   /* if indexed; its tokens are at kv->id[i * block_tokens] */
	uint64_t salt;
};

/* What one owner has cached on one tier, least recently released first. */
struct cache {
	int32_t oldest, newest, n;
	int32_t at;               /* place in kv->active[tier], while n > 0 */
};

struct kv {
	struct kv_config cfg;
	struct block *block;      /* [n_blocks + n_host] */
	int32_t *id;              /* [n_blocks + n_host][block_tokens], of those indexed */
	int32_t *bucket;          /* [mask + 1], the first of each chain */
	uint32_t mask;
	int32_t  free[2], n_free[2];             /* by tier */
	struct cache *cache[2];   /* [n_owners] */
	int32_t *active[2], n_active[2];         /* owners with anything cached, in no order */
	int32_t  n_cached[2];
	uint64_t clock[2];        /* blocks released into the cache so far */
	int32_t  n_pinned;        /* cached device blocks that are pinned */
	struct kv_copy *copy;     /* [cfg.copies], of the batch being filled */
	int32_t  n_copies;
	int32_t  budget;          /* copies this batch may carry; */
	int32_t  left, left_out;  /* not yet used; of these, evictions may use */
	struct kv_stats stats;
};

static enum tier tier_of(const struct kv *kv, int32_t i)
{
	return i < kv->cfg.n_blocks ? DEVICE : HOST;
}

static int32_t tier_size(const struct kv *kv, enum tier t)
{
	return t == DEVICE ? kv->cfg.n_blocks : kv->cfg.n_host;
}

static int32_t *ids_of(const struct kv *kv, int32_t i)
{
	return kv->id + (size_t)i * (size_t)kv->cfg.block_tokens;
}

static bool same_key(const struct key *a, const struct key *b)
{
	return a->w[0] == b->w[0] && a->w[1] == b->w[1];
}

/* ---- free and cached blocks ------------------------------------------------------------ */

static void free_put(struct kv *kv, int32_t i)
{
	enum tier t = tier_of(kv, i);

	kv->block[i].next = kv->free[t];
	kv->free[t] = i;
	kv->n_free[t]++;
}

static int32_t free_take(struct kv *kv, enum tier t)
{
	int32_t i = kv->free[t];

	if (i != NONE) {
		kv->free[t] = kv->block[i].next;
		kv->n_free[t]--;
	}
	return i;
}

static void cached_add(struct kv *kv, int32_t i)
{
	enum tier t = tier_of(kv, i);
	struct block *b = &kv->block[i];
	struct cache *c = &kv->cache[t][b->owner];

	assert(!b->cached);
	b->cached = true;
	b->when = kv->clock[t]++;
	b->prev = c->newest;
	b->next = NONE;
	if (b->prev != NONE)
		kv->block[b->prev].next = i;
	else
		c->oldest = i;
	c->newest = i;
	if (c->n++ == 0) {
		c->at = kv->n_active[t];
		kv->active[t][kv->n_active[t]++] = b->owner;
	}
	kv->n_cached[t]++;
	if (t == DEVICE && b->pinned)
		kv->n_pinned++;
}

static void cached_remove(struct kv *kv, int32_t i)
{
	enum tier t = tier_of(kv, i);
	struct block *b = &kv->block[i];
	struct cache *c = &kv->cache[t][b->owner];

	assert(b->cached);
	if (b->prev != NONE)
		kv->block[b->prev].next = b->next;
	else
		c->oldest = b->next;
	if (b->next != NONE)
		kv->block[b->next].prev = b->prev;
	else
		c->newest = b->prev;
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

/* Blocks of owner o that others may not take. */
static int32_t kept_of(const struct kv *kv, enum tier t, int32_t o)
{
	const struct cache *c = &kv->cache[t][o];
	int32_t size = tier_size(kv, t), floor = size / FLOORS / kv->n_active[t];

	if (kv->clock[t] - kv->block[c->newest].when > (uint64_t)FLOOR_AGE * (uint64_t)size)
		return 0;
	return c->n < floor ? c->n : floor;
}

/* Pins are few (copies of one batch), so this walk is short. */
static int32_t oldest_unpinned(const struct kv *kv, const struct cache *c)
{
	int32_t i = c->oldest;

	while (i != NONE && kv->block[i].pinned)
		i = kv->block[i].next;
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
		if (i != NONE && (best == NONE || kv->block[i].when < kv->block[best].when))
			best = i;
	}
	return best;
}

/* The same if floors must give way. */
static int32_t any_victim(const struct kv *kv, enum tier t)
{
	int32_t best = NONE;

	for (int32_t k = 0; k < kv->n_active[t]; k++) {
		int32_t i = oldest_unpinned(kv, &kv->cache[t][kv->active[t][k]]);

		if (i != NONE && (best == NONE || kv->block[i].when < kv->block[best].when))
			best = i;
	}
	return best;
}

/* ---- the index ---------------------------------------------------------------------------- */

/* The name of the block that continues *t with these ids. */
static struct key key_of(const struct kv *kv, const struct kv_table *t, const int32_t *id)
{
	struct {
		uint64_t secret, parent[2], salt;
		int32_t  id[KV_CHUNK];
	} in;
	size_t n = (size_t)kv->cfg.block_tokens;
	XXH128_hash_t h;

	in.secret = kv->cfg.key[0];
	in.parent[0] = t->key[0];
	in.parent[1] = t->key[1];
	in.salt = t->salt;
	memcpy(in.id, id, n * sizeof(in.id[0]));
	h = XXH3_128bits_withSeed(&in, offsetof(__typeof__(in), id) + n * sizeof(in.id[0]),
				  kv->cfg.key[1]);
	return (struct key){ { h.low64, h.high64 } };
}

static int32_t *bucket_of(const struct kv *kv, const struct key *k)
{
	return &kv->bucket[k->w[0] & kv->mask];
}

static void index_add(struct kv *kv, int32_t i, const struct key *key, const struct kv_table *t,
		      const int32_t *id)
{
	struct block *b = &kv->block[i];
	int32_t *head = bucket_of(kv, key);

	assert(!b->indexed);
	b->key = *key;
	b->parent = (struct key){ { t->key[0], t->key[1] } };
	b->salt = t->salt;
	memcpy(ids_of(kv, i), id, (size_t)kv->cfg.block_tokens * sizeof(*id));
	b->chained = *head;
	b->indexed = true;
	b->twin = NONE;
	*head = i;
}

static void index_remove(struct kv *kv, int32_t i)
{
	struct block *b = &kv->block[i];
	int32_t *at = bucket_of(kv, &b->key);

	while (*at != i)
		at = &kv->block[*at].chained;
	*at = b->chained;
	b->indexed = false;
	if (b->twin != NONE)
		kv->block[b->twin].twin = NONE;
	b->twin = NONE;
}

/* The indexed block on this tier that continues *t with these ids, whose key is *key.  The
 * hash alone is never believed. */
static int32_t index_find(const struct kv *kv, enum tier want, const struct kv_table *t,
			  const int32_t *id, const struct key *key)
{
	const struct key parent = { { t->key[0], t->key[1] } };

	for (int32_t i = *bucket_of(kv, key); i != NONE; i = kv->block[i].chained) {
		const struct block *b = &kv->block[i];

		if (tier_of(kv, i) == want && same_key(&b->key, key) && b->salt == t->salt &&
		    same_key(&b->parent, &parent) &&
		    !memcmp(ids_of(kv, i), id, (size_t)kv->cfg.block_tokens * sizeof(*id)))
			return i;
	}
	return NONE;
}

static void make_twins(struct kv *kv, int32_t a, int32_t b)
{
	kv->block[a].twin = b;
	kv->block[b].twin = a;
}

/* Index `to` as the same tokens as `from`, which is on the other tier. */
static void index_copy(struct kv *kv, int32_t to, int32_t from)
{
	const struct block *f = &kv->block[from];
	const struct kv_table as = { .key = { f->parent.w[0], f->parent.w[1] }, .salt = f->salt };

	index_add(kv, to, &f->key, &as, ids_of(kv, from));
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

/* A host block for `owner` to write to: a free one, else one evicted; NONE if none may be. */
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

/* Put a copy of cached device block i onto the host tier, if that is useful and possible. */
static bool copy_out(struct kv *kv, int32_t i)
{
	const struct block *b = &kv->block[i];
	int32_t host;

	if (kv->left <= 0 || kv->left_out <= 0 || b->twin != NONE || b->pinned)
		return false;
	host = host_take(kv, b->owner);
	if (host == NONE)
		return false;
	index_copy(kv, host, i);
	kv->block[host].owner = b->owner;
	cached_add(kv, host);
	copy_put(kv, i, host, true);
	return true;
}

/* A device block that nobody else knows: free, else a cached one, evicted; `must`: from
 * below the floors of others, if there is none above. */
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
	copy_out(kv, i);
	cached_remove(kv, i);
	index_remove(kv, i);
	kv->stats.evictions++;
	return i;
}

/* ---- matching and publishing --------------------------------------------------------------- */

/* The ids of block number n of *t, which t->at points into. */
static const int32_t *ids_at(const struct kv *kv, const struct kv_table *t, int32_t n)
{
	return t->at->id + (size_t)n * (size_t)kv->cfg.block_tokens % KV_CHUNK;
}

/* One more block of *t is in the index, under *key. */
static void advance(const struct kv *kv, struct kv_table *t, const struct key *key)
{
	t->key[0] = key->w[0];
	t->key[1] = key->w[1];
	t->published++;
	if (t->published * kv->cfg.block_tokens % KV_CHUNK == 0)
		t->at = t->at->next;
}

/* Make a host block the newest of its tier: it was of use. */
static void host_touch(struct kv *kv, int32_t host)
{
	cached_remove(kv, host);
	cached_add(kv, host);
}

/* Copy host block `host` in.  NONE if not in this batch; *later tells whether in another. */
static int32_t copy_in(struct kv *kv, int32_t host, int32_t owner, bool *later)
{
	int32_t i;

	*later = kv->budget > 0;
	if (kv->block[host].pinned || kv->left <= 0)
		return NONE;
	kv->block[host].pinned = true;      /* not the room for what is evicted for it */
	i = device_take(kv, owner, false);
	kv->block[host].pinned = false;
	if (i == NONE) {
		*later = false;             /* no device block: that is kv_grow's affair */
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
	struct block *b = &kv->block[i];

	if (b->refs++ == 0)
		cached_remove(kv, i);
	if (b->twin != NONE && !kv->block[b->twin].pinned)
		host_touch(kv, b->twin);
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
		int32_t i = index_find(kv, DEVICE, t, id, &key);

		if (i != NONE) {
			hold_cached(kv, i);
		} else {
			int32_t host = index_find(kv, HOST, t, id, &key);

			if (host == NONE)
				break;
			i = copy_in(kv, host, t->owner, &t->more);
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
	const int32_t B = kv->cfg.block_tokens;
	int32_t want = n / B + (n % B != 0);

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

void kv_publish(struct kv *kv, struct kv_table *t, int32_t n)
{
	while ((t->published + 1) * kv->cfg.block_tokens <= n) {
		const int32_t *id = ids_at(kv, t, t->published);
		int32_t i = t->block[t->published];
		struct key key = key_of(kv, t, id);

		/* Somebody may have published the same meanwhile: then ours stays private. */
		if (index_find(kv, DEVICE, t, id, &key) == NONE) {
			int32_t host = index_find(kv, HOST, t, id, &key);

			index_add(kv, i, &key, t, id);
			if (host != NONE)
				make_twins(kv, i, host);
		}
		advance(kv, t, &key);
	}
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
		b->owner = t->owner;
		if (b->indexed)
			cached_add(kv, i);
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
		int32_t i = kv->cache[DEVICE][kv->active[DEVICE][k]].oldest;
		int32_t m = (look + kv->n_active[DEVICE] - 1) / kv->n_active[DEVICE];

		for (; m > 0 && i != NONE && kv->left > 0; m--) {
			n += copy_out(kv, i);
			i = kv->block[i].next;
		}
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

/* ---- create, destroy, check ------------------------------------------------------------------ */

static size_t padded(size_t n)
{
	return (n + 63) & ~(size_t)63;
}

int kv_create(struct kv **out, const struct kv_config *cfg)
{
	int64_t total = (int64_t)cfg->n_blocks + cfg->n_host;
	uint32_t buckets = 16;
	size_t owners = cfg->n_owners > 0 ? (size_t)cfg->n_owners : 1;
	size_t at_block = padded(sizeof(struct kv)), at_id, at_bucket, at_copy, at_cache, at_active;
	struct kv *kv;

	if (cfg->n_blocks < 1 || cfg->n_host < 0 || cfg->n_owners < 0 || cfg->copies < 0 || cfg->block_tokens < 1 ||
	    KV_CHUNK % cfg->block_tokens != 0 || total > INT32_MAX / 4)
		return -EINVAL;
	while (buckets < 2 * (uint32_t)total)
		buckets *= 2;
	at_id = at_block + padded((size_t)total * sizeof(struct block));
	at_bucket = at_id + padded((size_t)total * (size_t)cfg->block_tokens * sizeof(int32_t));
	at_copy = at_bucket + padded(buckets * sizeof(int32_t));
	at_cache = at_copy + padded(((size_t)cfg->copies + 1) * sizeof(struct kv_copy));
	at_active = at_cache + padded(2 * owners * sizeof(struct cache));
	kv = calloc(1, at_active + 2 * owners * sizeof(int32_t));
	if (!kv)
		return -ENOMEM;
	kv->cfg = *cfg;
	kv->block = (struct block *)((char *)kv + at_block);
	kv->id = (int32_t *)((char *)kv + at_id);
	kv->bucket = (int32_t *)((char *)kv + at_bucket);
	kv->copy = (struct kv_copy *)((char *)kv + at_copy);
	kv->cache[DEVICE] = (struct cache *)((char *)kv + at_cache);
	kv->cache[HOST] = kv->cache[DEVICE] + owners;
	kv->active[DEVICE] = (int32_t *)((char *)kv + at_active);
	kv->active[HOST] = kv->active[DEVICE] + owners;
	kv->cfg.n_owners = (int32_t)owners;
	kv->mask = buckets - 1;
	for (uint32_t i = 0; i < buckets; i++)
		kv->bucket[i] = NONE;
	kv->free[DEVICE] = kv->free[HOST] = NONE;
	for (size_t o = 0; o < 2 * owners; o++)
		kv->cache[DEVICE][o].oldest = kv->cache[DEVICE][o].newest = NONE;
	for (int32_t i = (int32_t)total - 1; i >= 0; i--) {
		kv->block[i].twin = NONE;
		free_put(kv, i);
	}
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

static void check_lists(const struct kv *kv, enum tier t)
{
	int32_t n = 0, pinned = 0;

	for (int32_t i = kv->free[t]; i != NONE; i = kv->block[i].next, n++) {
		const struct block *b = &kv->block[i];

		assert(tier_of(kv, i) == t && !b->indexed && !b->cached && b->refs == 0);
	}
	assert(n == kv->n_free[t]);
	n = 0;
	for (int32_t k = 0; k < kv->n_active[t]; k++) {
		int32_t o = kv->active[t][k], mine = 0, before = NONE;
		const struct cache *c = &kv->cache[t][o];

		assert(c->at == k && c->n > 0);
		for (int32_t i = c->oldest; i != NONE; before = i, i = kv->block[i].next, mine++) {
			const struct block *b = &kv->block[i];

			assert(tier_of(kv, i) == t && b->indexed && b->cached && b->refs == 0);
			assert(b->owner == o && b->prev == before);
			assert(before == NONE || kv->block[before].when < b->when);
			pinned += b->pinned;
		}
		assert(mine == c->n && c->newest == before);
		n += mine;
	}
	assert(n == kv->n_cached[t]);
	if (t == DEVICE)
		assert(pinned == kv->n_pinned);
}

static void check_block(const struct kv *kv, int32_t i)
{
	const struct block *b = &kv->block[i];
	int found = 0;

	assert(!b->pinned || kv->n_copies > 0);
	if (!b->indexed) {
		assert(b->twin == NONE);
		return;
	}
	if (b->twin != NONE) {
		const struct block *o = &kv->block[b->twin];

		assert(o->indexed && o->twin == i && tier_of(kv, b->twin) != tier_of(kv, i));
		assert(same_key(&o->key, &b->key) && o->salt == b->salt);
	}
	for (int32_t j = *bucket_of(kv, &b->key); j != NONE; j = kv->block[j].chained) {
		found += j == i;
		assert(j == i || tier_of(kv, j) != tier_of(kv, i) ||
		       !same_key(&kv->block[j].key, &b->key));
	}
	assert(found == 1);
}

void kv_check(const struct kv *kv)
{
	int32_t total = kv->cfg.n_blocks + kv->cfg.n_host, held = 0, n_indexed = 0, n_chained = 0;

	for (int t = DEVICE; t <= HOST; t++)
		check_lists(kv, (enum tier)t);
	for (int32_t i = 0; i < total; i++) {
		check_block(kv, i);
		held += kv->block[i].refs > 0;
		n_indexed += kv->block[i].indexed;
	}
	for (uint32_t k = 0; k <= kv->mask; k++)
		for (int32_t i = kv->bucket[k]; i != NONE; i = kv->block[i].chained)
			n_chained++;
	assert(n_chained == n_indexed);
	assert(kv->n_free[DEVICE] + kv->n_cached[DEVICE] + held == kv->cfg.n_blocks);
	assert(kv->n_free[HOST] + kv->n_cached[HOST] == kv->cfg.n_host);
}
