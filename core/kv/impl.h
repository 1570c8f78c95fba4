/* kv/impl.h - what the files of core/kv share.
 *
 *	kv.c         grow, publish, release; copies between the tiers; eviction
 *	match.c      the published blocks that continue a table
 *	window.c     blocks that leave windows; units
 *	state.c      states of sequences, and their snapshots
 *	most.c       how many blocks a sequence may hold
 *	save.c       cached blocks that outlive the daemon
 *	index.c      from the name of a full block to the block
 *	cache.c      cached blocks by owner and time of release: floors, who is evicted next
 *	prefetch.h   what is prefetched, and how far ahead
 *	check.c      the invariants
 *
 * Device blocks are numbered 0 .. n-1 and host blocks n .. n+host-1 in one array, so a list,
 * the index and a twin need only a number.  A block is in exactly one of three places: on its
 * tier's stack of free blocks; in its owner's list of cached blocks on that tier, least recently
 * released first; or held by tables (`refs`).  Independent of that, a published block is in the
 * index, a hash table with chains through `next_in_bucket`.
 *
 * Cache misses cost more than all else here, so the layout serves prefetching.  Growing and releasing
 * touch a dozen bytes of a block; only publishing and matching touch its name.  Cached blocks are
 * listed in runs of consecutive releases, not one by one.  So the next evictions are known without
 * reading the block that is evicted now.
 */
#ifndef KV_IMPL_H
#define KV_IMPL_H

#include <stddef.h>

#include "core/events.h"
#include "core/kv/kv.h"
#include "core/prefix.h"

_Static_assert(PREFIX_GROUPS == KV_GROUPS && PREFIX_BLOCK_MAX == KV_CHUNK, "core/prefix.h is a leaf");
_Static_assert(EVENTS_GROUPS == KV_GROUPS, "core/events.h is a leaf");

#define NONE         (-1)
#define RUN_BLOCKS   26       /* blocks in a run: 128 bytes */
#define USUAL_TOKENS 16       /* usual tokens of a block: for these, lengths are constants */

enum tier { DEVICE, HOST };

struct kv_key { uint64_t w[2]; };

struct kv_block {
	int32_t  refs;            /* tables that hold it */
	int32_t  run;             /* if cached: the run that lists it */
	uint8_t  place;           /* if cached: its place in that run */
	bool     free;            /* on the stack of free blocks */
	bool     cached;
	bool     indexed;         /* published */
	bool     pinned;          /* a copy of the batch being filled uses it */
};

/* Cached blocks of one owner, from consecutive releases. */
struct kv_run {
	int32_t  prev, next;      /* in its owner's list, by time; `next` also links the free list */
	uint64_t released;        /* when the first block was, by kv->clock[tier]; block i: released + i */
	int16_t  n_used;          /* places used */
	int16_t  first;           /* the first place whose block is still cached */
	int16_t  n_cached;        /* blocks still cached */
	int16_t  owner;           /* who released them last */
	int32_t  block[RUN_BLOCKS]; /* NONE: no longer cached */
};

/* A published block's name in the index; it begins as struct events_name. */
struct kv_name {
	struct kv_key key, parent;
	uint64_t salt;
	int32_t  group;
	uint32_t stamp;           /* for who reads the events */
	int32_t  next_in_bucket;
	int32_t  twin;            /* the same tokens and group on the other tier, or NONE */
	int32_t  unit, unit_before; /* its neighbours in the ring of its unit; NONE: it is in no unit */
	int32_t  id[];            /* [block_tokens] */
};
_Static_assert(offsetof(struct kv_name, stamp) == offsetof(struct events_name, stamp) &&
               offsetof(struct kv_name, salt) == offsetof(struct events_name, salt) &&
               offsetof(struct kv_name, id) == EVENTS_HEAD, "core/events.h reads names");

/* A state of a sequence. */
struct kv_state {
	int32_t  refs;            /* tables that hold it */
	int32_t  prev, next;      /* in the list of cached ones; `next` also links the free list */
	int32_t  next_in_bucket;
	bool     named, cached;   /* a snapshot in the index; which no table holds */
	uint32_t stamp;           /* raised when it becomes a snapshot */
	uint64_t used;            /* the last batch in which a row reads it or leaves it behind */
	struct kv_key key;        /* of the block that it follows */
};

/* What a table has of states; at the end of its block[].  NONE: nothing. */
struct kv_hold {
	int32_t  own;             /* what its rows write */
	int32_t  from;            /* a snapshot that its next row continues */
	int32_t  kept, kept_at;   /* a state that gets its name when this many blocks are published */
	int32_t  passing;         /* then it replaces .. */
	int32_t  last;            /* .. this one, if that has the stamp still */
	uint32_t last_stamp;
};
_Static_assert(sizeof(struct kv_hold) <= KV_STATE_INTS * sizeof(int32_t), "it lies in block[]");

struct kv_states {
	struct kv_state *state;   /* [n_states] */
	int32_t *bucket;          /* [mask + 1] */
	uint32_t mask;
	int32_t  free, n_free;
	int32_t  oldest, newest, n_cached;
	uint64_t batch;           /* the one that is being filled: rows of it have no order */
};

/* What one owner has cached on one tier. */
struct kv_cache {
	int32_t oldest, newest;   /* runs */
	int32_t n;                /* blocks */
	int32_t at;               /* place in kv->active[tier], while n > 0 */
};

struct kv {
	struct kv_config cfg;
	int32_t  shift;           /* block_tokens is 1 << shift: it divides KV_CHUNK */
	bool     windows;         /* a group has a window */
	int32_t  reach[KV_GROUPS]; /* full blocks that the next token reads; 0 = all */
	struct kv_block *block;   /* [n_blocks + n_host] */
	char    *name;            /* [n_blocks + n_host], of name_bytes each */
	size_t   name_bytes;
	int32_t *bucket;          /* [mask + 1], the first block of each chain */
	uint32_t mask;
	int32_t *free[2], n_free[2];             /* by tier: stacks */
	struct kv_cache *cache[2];               /* [n_owners] */
	int32_t *active[2], n_active[2];         /* owners with anything cached, in no order */
	int32_t  n_cached[2];
	struct kv_run *run;       /* [n_blocks + n_host] */
	int32_t  free_run, new_run; /* list of free runs; runs from new_run on were never used */
	uint64_t clock[2];        /* blocks released into the cache so far */
	int32_t  n_pinned;        /* cached device blocks that are pinned */
	struct kv_copy *copy;     /* [cfg.copies], of the batch being filled */
	int32_t  n_copies;
	int32_t  budget;          /* copies this batch may carry */
	int32_t  left, left_out;  /* copies not yet used; how many of them evictions may use */
	struct kv_stats stats;
	struct kv_states states;
};

static inline enum tier tier_of(const struct kv *kv, int32_t i)
{
	return i < kv->cfg.n_blocks ? DEVICE : HOST;
}

static inline struct kv_name *name_of(const struct kv *kv, int32_t i)
{
	return (struct kv_name *)(kv->name + (size_t)i * kv->name_bytes);
}

static inline bool same_key(const struct kv_key *a, const struct kv_key *b)
{
	return a->w[0] == b->w[0] && a->w[1] == b->w[1];
}

static inline int32_t *bucket_of(const struct kv *kv, const struct kv_key *k)
{
	return &kv->bucket[k->w[0] & kv->mask];
}

static inline int32_t *blocks_of(const struct kv_table *t, int32_t group)
{
	return t->block + (size_t)group * (size_t)t->cap;
}

/* Where the number of the first block is that *t holds of a group; only for windows. */
static inline int32_t *first_of(const struct kv *kv, const struct kv_table *t, int32_t group)
{
	return t->block + (size_t)kv->cfg.n_groups * (size_t)t->cap + group;
}

/* Is block i, which is published, part of a unit? */
static inline bool in_unit(const struct kv *kv, int32_t i)
{
	return kv->windows && name_of(kv, i)->unit != NONE;
}

static inline int32_t first_held(const struct kv *kv, const struct kv_table *t, int32_t group)
{
	return kv->cfg.group[group].window > 0 ? *first_of(kv, t, group) : 0;
}

/* The ids of block number n of *t; t->at points to their chunk. */
static inline const int32_t *ids_at(const struct kv *kv, const struct kv_table *t, int32_t n)
{
	return t->at->id + ((n << kv->shift) & (KV_CHUNK - 1));
}

static inline int32_t twin_of(const struct kv *kv, int32_t i)
{
	return kv->block[i].indexed ? name_of(kv, i)->twin : NONE;
}

static inline int32_t owner_of(const struct kv *kv, int32_t i)
{
	return kv->run[kv->block[i].run].owner;
}

/* The next cached block after (*run, *place); advances both.  Place -1: before the run's first.  NONE:
 * there is no other. */
static inline int32_t run_next(const struct kv *kv, int32_t *run, int32_t *place)
{
	for (; *run != NONE; *run = kv->run[*run].next, *place = -1)
		while (++*place < kv->run[*run].n_used)
			if (kv->run[*run].block[*place] != NONE)
				return kv->run[*run].block[*place];
	return NONE;
}

/* ---- index.c ------------------------------------------------------------------------------ */

/* The name of the block of group 0 that continues *t with these ids. */
struct kv_key index_key(const struct kv *kv, const struct kv_table *t, const int32_t *id);

/* The name of the same block of another group. */
static inline struct kv_key key_of_group(const struct kv_key *key, int32_t group)
{
	return (struct kv_key){ { prefix_of_group(key->w[0], group), key->w[1] } };
}

/* Find the indexed blocks of a group, one by tier, that continue *t with these ids, whose key is *key; NONE.
 * The hash alone is never trusted. */
void index_find(const struct kv *kv, const struct kv_table *t, int32_t group, const int32_t *id,
                const struct kv_key *key, int32_t found[2]);
/* Index block i as the one that continues *t with these ids. */
void index_add(struct kv *kv, int32_t i, const struct kv_table *t, int32_t group, const int32_t *id,
               const struct kv_key *key);
void index_remove(struct kv *kv, int32_t i);
/* Index `to` as the same tokens as `from`, which is on the other tier. */
void index_copy(struct kv *kv, int32_t to, int32_t from);
void index_twins(struct kv *kv, int32_t a, int32_t b);

/* ---- kv.c --------------------------------------------------------------------------------- */

void    block_free(struct kv *kv, int32_t i);
/* A device block that is in no table and not in the index: a free one, else a cached one, evicted.
 * `must`: if no block is above the floors, take one from below them. */
int32_t block_take(struct kv *kv, int32_t owner, bool must);
int32_t host_take(struct kv *kv, int32_t owner);
void    copy_put(struct kv *kv, int32_t device, int32_t host, bool out);

/* *t has one more block in the index, under *key. */
static inline void table_advance(const struct kv *kv, struct kv_table *t, const struct kv_key *key)
{
	t->key[0] = key->w[0];
	t->key[1] = key->w[1];
	t->published++;
	if (((t->published << kv->shift) & (KV_CHUNK - 1)) == 0)
		t->at = t->at->next;
}

/* ---- most.c ------------------------------------------------------------------------------- */

/* Full blocks of a window that the token behind them reads. */
int32_t most_reach(const struct kv_config *c, int32_t group);
/* The most blocks that a window holds of n tokens: what the token reads that is computed next, one more, the
 * block it lies in, and those of a step. */
int32_t most_of_window(const struct kv_config *c, int32_t group, int32_t n, int32_t step);

/* ---- window.c ----------------------------------------------------------------------------- */

static inline bool has_window(const struct kv *kv, int32_t group)
{
	return kv->cfg.group[group].window > 0;
}

/* The windows that end with the published blocks of *t become a unit. */
void window_keep(struct kv *kv, const struct kv_table *t);
/* Drop the references to the blocks of windows. */
void window_release(struct kv *kv, struct kv_table *t);
void unit_leave(struct kv *kv, int32_t i);
/* Cached block i is evicted: the rest of its unit is free at once, or no longer published if held.  What a copy
 * pins stays. */
void unit_evict(struct kv *kv, int32_t i);
/* Copy the unit of cached device block i to the host tier, or nothing.  Returns the number of copies. */
int32_t unit_copy_out(struct kv *kv, int32_t i);

/* ---- state.c ------------------------------------------------------------------------------ */

/* The snapshot of this name, or NONE. */
int32_t state_find(const struct kv *kv, const struct kv_key *key);
/* *t continues the snapshot behind its published blocks, which is there. */
void    state_match(struct kv *kv, struct kv_table *t);
/* A block of *t was published: what it kept there may have a name now. */
void    state_named(struct kv *kv, struct kv_table *t);
/* The block of this name is evicted. */
void    state_evict(struct kv *kv, const struct kv_key *key);
void    state_release(struct kv *kv, struct kv_table *t);
/* Bytes of the arrays; with base, where they lie.  Then states_begin(). */
size_t  states_lay(struct kv_states *s, int32_t n, char *base);
void    states_begin(struct kv *kv);
void    states_forget(struct kv *kv);
void    states_check(const struct kv *kv);

/* ---- cache.c ------------------------------------------------------------------------------ */

void    cache_put(struct kv *kv, int32_t i, int32_t owner);
void    cache_take(struct kv *kv, int32_t i);
/* The cached block to evict for `owner`: the least recently released one that floors do not keep. */
int32_t cache_victim(const struct kv *kv, enum tier t, int32_t owner);
int32_t cache_any_victim(const struct kv *kv, enum tier t); /* the same without floors */

#endif
