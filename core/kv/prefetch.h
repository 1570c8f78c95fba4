/* kv/prefetch.h - what core/kv prefetches, and how far ahead.  Nothing here changes a result.
 *
 * The next evictions are known, because cached blocks are listed in runs of consecutive releases.  The
 * next names are known when several tables publish in one step.  Either way one prefetch needs
 * the memory of the one before it: a block, then its name, then the name's bucket, then the bucket's
 * first entry.  So each of them comes some evictions, or one pass over the tables, later.
 *
 * GCC removes calls to functions that only prefetch, so these are always inlined.
 */
#ifndef KV_PREFETCH_H
#define KV_PREFETCH_H

#include "core/kv/impl.h"

#define PREFETCH static inline __attribute__((always_inline))

#define AHEAD_NAME   14       /* a name is prefetched 14 evictions ahead */
#define AHEAD_BUCKET 9        /* its bucket in the index 9 evictions ahead */
#define AHEAD_CHAIN  4        /* the bucket's first entry 4 evictions ahead */
#define AHEAD_TABLES 16       /* tables that kv_publish_many prefetches ahead */

/* The bucket of a name, and that of the page that shows names. */
PREFETCH void prefetch_bucket(const struct kv *kv, const struct kv_key *key)
{
	__builtin_prefetch(bucket_of(kv, key), 1);
	if (kv->cfg.shown)
		__builtin_prefetch(prefix_bucket(kv->cfg.shown, key->w[0], 0), 1);
}

/* ---- evictions ------------------------------------------------------------------------------ */

/* The block `by` places behind cached block i in its run or the next run.  NONE: there is none, or it is
 * gone. */
static int32_t released_after(const struct kv *kv, int32_t i, int32_t by)
{
	const struct kv_run *r = &kv->run[kv->block[i].run];
	int32_t place = kv->block[i].place + by;

	if (place >= r->n_used) {
		place -= r->n_used;
		if (r->next == NONE)
			return NONE;
		r = &kv->run[r->next];
	}
	return place < r->n_used ? r->block[place] : NONE;
}

/* Cached block i is about to be evicted, and the blocks behind it will be soon. */
PREFETCH void prefetch_evictions(const struct kv *kv, int32_t i)
{
	int32_t chain = released_after(kv, i, AHEAD_CHAIN), bucket = released_after(kv, i, AHEAD_BUCKET);
	int32_t name = released_after(kv, i, AHEAD_NAME);

	if (chain != NONE)
		__builtin_prefetch(name_of(kv, *bucket_of(kv, &name_of(kv, chain)->key)), 1);
	if (bucket != NONE)
		prefetch_bucket(kv, &name_of(kv, bucket)->key);
	if (name != NONE) {
		__builtin_prefetch(&kv->block[name], 1);
		__builtin_prefetch(name_of(kv, name), 1);
	}
	if (kv->block[i].place == 0 && kv->run[kv->block[i].run].next != NONE) {
		const char *run = (const char *)&kv->run[kv->run[kv->block[i].run].next];

		__builtin_prefetch(run, 1);
		__builtin_prefetch(run + 64, 1);
	}
}

/* ---- publishing, one pass over the tables each ---------------------------------------------- */

PREFETCH void prefetch_ids(const struct kv *kv, const struct kv_table *t)
{
	__builtin_prefetch(t->block + t->published);
	__builtin_prefetch(ids_at(kv, t, t->published));
}

PREFETCH void prefetch_name(const struct kv *kv, const struct kv_table *t)
{
	int32_t i = t->block[t->published];
	const char *name = (const char *)name_of(kv, i);

	__builtin_prefetch(&kv->block[i], 1);
	__builtin_prefetch(name, 1);
	__builtin_prefetch(name + 64, 1);
}

PREFETCH void prefetch_chain(const struct kv *kv, const struct kv_key *key)
{
	if (*bucket_of(kv, key) != NONE)
		__builtin_prefetch(name_of(kv, *bucket_of(kv, key)));
}

#endif
