/* kv/impl.h - the block manager's own structures, for core/kv/kv.c (which says what they are for) and
 * core/kv/check.c, the invariants.
 */
#ifndef KV_IMPL_H
#define KV_IMPL_H

#include <stddef.h>

#include "core/kv/kv.h"

#define NONE (-1)
#define RUN  26               /* blocks in a run: 128 bytes */

enum tier { DEVICE, HOST };

struct key { uint64_t w[2]; };

struct block {
	int32_t  refs;            /* tables that hold it */
	int32_t  run;             /* if cached: the run that lists it */
	uint8_t  place;           /* if cached: its place in that run */
	bool     free;            /* on the stack of free blocks */
	bool     cached;
	bool     indexed;         /* published */
	bool     pinned;          /* a copy of the batch being filled uses it */
};

/* Cached blocks of one owner, from consecutive releases. */
struct run {
	int32_t  prev, next;      /* in its owner's list, by time; `next` also links the free list */
	uint64_t when;            /* release time of the first block, by kv->clock[tier]; block i: when + i */
	int16_t  used, first;     /* places used; the first place that is still cached */
	int16_t  left, owner;     /* blocks still cached; the owner that released them last */
	int32_t  block[RUN];      /* NONE: no longer cached */
};

/* A published block's name in the index. */
struct name {
	struct key key, parent;
	uint64_t salt;
	int32_t  chained;         /* next in its bucket of the index */
	int32_t  twin;            /* the same tokens on the other tier, or NONE */
	int32_t  id[];            /* [block_tokens] */
};

/* What one owner has cached on one tier. */
struct cache {
	int32_t oldest, newest;   /* runs */
	int32_t n;                /* blocks */
	int32_t at;               /* place in kv->active[tier], while n > 0 */
};

struct kv {
	struct kv_config cfg;
	int32_t  shift;           /* block_tokens is 1 << shift: it divides KV_CHUNK */
	struct block *block;      /* [n_blocks + n_host] */
	char    *name;            /* [n_blocks + n_host], of name_bytes each */
	size_t   name_bytes;
	int32_t *bucket;          /* [mask + 1], the first of each chain */
	uint32_t mask;
	int32_t *free[2], n_free[2];             /* by tier: stacks */
	struct cache *cache[2];   /* [n_owners] */
	int32_t *active[2], n_active[2];         /* owners with anything cached, in no order */
	int32_t  n_cached[2];
	struct run *run;          /* [n_blocks + n_host] */
	int32_t  free_run, new_run; /* list of free runs; runs from new_run on were never used */
	uint64_t clock[2];        /* blocks released into the cache so far */
	int32_t  n_pinned;        /* cached device blocks that are pinned */
	struct kv_copy *copy;     /* [cfg.copies], of the batch being filled */
	int32_t  n_copies;
	int32_t  budget;          /* copies this batch may carry */
	int32_t  left, left_out;  /* copies not yet used; how many of them evictions may use */
	struct kv_stats stats;
};

static inline enum tier tier_of(const struct kv *kv, int32_t i)
{
	return i < kv->cfg.n_blocks ? DEVICE : HOST;
}

static inline struct name *name_of(const struct kv *kv, int32_t i)
{
	return (struct name *)(kv->name + (size_t)i * kv->name_bytes);
}

static inline bool same_key(const struct key *a, const struct key *b)
{
	return a->w[0] == b->w[0] && a->w[1] == b->w[1];
}

static inline int32_t *bucket_of(const struct kv *kv, const struct key *k)
{
	return &kv->bucket[k->w[0] & kv->mask];
}

#endif
