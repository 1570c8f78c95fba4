/* kv.h - who owns which block of the KV cache, on which tier.
 *
 * Bookkeeping only: block ids, never memory, which is the back end's.  The scheduler
 * alone calls this, from one thread; nothing here can block, log, allocate (after
 * kv_create) or fail for any reason but "full".
 *
 *	          kv_grow            kv_release, never published
 *	   FREE --------> HELD (refs > 0) --------------------> FREE
 *	    ^              ^ |
 *	    |      kv_match| | kv_release, published         copy out (eviction, kv_demote)
 *	    |              | v                              ------------------------------>
 *	    +----------- CACHED (refs = 0)        DEVICE                         HOST: FREE, CACHED
 *	     evicted, least recently released first         <------------------------------
 *	                                                     copy in (kv_match)
 *
 * Copies ride in the batch being filled: between kv_begin and kv_launched both their
 * host block and, for a copy in, the device block are pinned (nobody else's source,
 * target or victim).  The device block of a copy out may be given away at once, and a
 * block copied in may be read by rows of the same batch: the back end does all copies
 * out, then all in, then rows; and batches in launch order.
 *
 * Floors.  A cached block belongs to the owner of the table that let go of it last.  Each
 * owner keeps its newest ones, up to a floor, from what others evict: a quarter of the tier,
 * divided among those who have anything cached.  That ends for an owner of whom nothing was
 * released while the whole tier was, 16 times over: nobody is remembered for ever.  Floors
 * rule who is evicted, never whether: kv_grow goes below them if nothing else is left, so
 * whoever asks should have left kv_kept() out of kv_available() if it can wait.
 *
 * Invariants (kv_check asserts them all):
 *   1. free + cached + held == n on the device; free + cached == n on the host.
 *   2. Only full blocks are published; a published block is never written again.
 *      So blocks are shared without copy-on-write.
 *   3. A published block has key = H(parent's key, salt of the first, its ids); a match
 *      compares parent key (128 bits, keyed per boot), salt and ids.  Keys, not block
 *      numbers, name a parent: it may leave, come back, or live on the other tier.
 *   4. At most one indexed block per key and tier.  A chain is released tail first, so
 *      it is evicted tail first.
 *   5. Nothing is pinned outside kv_begin .. kv_launched.
 */
#ifndef KV_H
#define KV_H

#include <stdbool.h>
#include <stdint.h>

struct kv;

/* The ids of a sequence, in pooled chunks that it owns: all full but the last, which
 * always has room (so `at` below always has somewhere to point). */
#define KV_CHUNK 64           /* a multiple of block_tokens */
struct kv_chunk {
	struct kv_chunk *next;
	int32_t id[KV_CHUNK];
};

/* The blocks of one sequence, in order: token i lies in block[i / block_tokens].
 * Embedded in the slot; block[] is storage the slot owns. */
struct kv_table {
	int32_t *block;       /* [cap] */
	int32_t  cap;
	int32_t  n;           /* blocks held, one reference on each */
	int32_t  published;   /* the first this many are in the index, they or a twin */
	bool     more;        /* kv_match stopped for want of copies: try in the next batch.
	                         Never set in a batch that may carry none: nobody waits for 0 */
	int32_t  owner;       /* whose cache its blocks will be: 0 .. n_owners-1 */
	uint64_t salt;        /* prefixes match only within one salt */
	uint64_t key[2];      /* of block[published - 1] */
	const struct kv_chunk *at; /* where the ids of block[published] are or will be; the
	                              sequence's first chunk to begin with */
};

struct kv_config {
	int32_t  n_blocks, n_host, block_tokens;
	int32_t  copies;      /* most copies in one batch */
	uint64_t key[2];      /* random, per boot */
	int32_t  n_owners;    /* of cached blocks; 0 = 1 */
};

struct kv_copy { int32_t device, host, out; }; /* host counts from 0; out = 1 demotes */

struct kv_stats {
	int32_t  n_free, n_cached, n_held, n_host_free, n_host_cached;
	uint64_t lookups, hit_blocks, host_hits, evictions, copies_in, copies_out;
};

/* 0, -EINVAL, -ENOMEM.  One allocation. */
int  kv_create(struct kv **out, const struct kv_config *cfg);
void kv_destroy(struct kv *kv); /* asserts that nothing is held */

/* A batch is being filled; it may carry so many copies (a byte budget / bytes per block).
 * At most half of them go out by eviction, so that sequences waiting for copies in are
 * not starved; kv_demote may use what is left. */
void kv_begin(struct kv *kv, int32_t copies);

/* Extend *t by the published blocks that continue it, device first, else copied in.  *t
 * must hold exactly its published, computed blocks (none, at first): so it can be called
 * again in a later batch, to go on after t->more or to use what others published since.
 * n tokens are known.  Returns the tokens covered: a multiple of block_tokens and less
 * than n, so there is always one token left to compute. */
int32_t kv_match(struct kv *kv, struct kv_table *t, int32_t n);

/* The name (64 bits of it) of the full block that continues the published ones of *t, whose
 * ids must be known.  Two tables with the same are about to compute the same. */
uint64_t kv_next(const struct kv *kv, const struct kv_table *t);

/* Make *t long enough for n tokens.  Cached blocks are evicted, those without a twin on
 * the host tier copied out while the batch has copies left, else lost.  All or nothing:
 * 0, or -ENOSPC and *t is as before.  -E2BIG if t->cap is too small. */
int  kv_grow(struct kv *kv, struct kv_table *t, int32_t n);

/* The first n tokens of *t are in launched batches: publish the full blocks among them.
 * Not before launch: rows of one batch must not read each other. */
void kv_publish(struct kv *kv, struct kv_table *t, int32_t n);

/* The same for several tables: their memory is asked for ahead of its use, which is most of the
 * cost where many sequences fill a block in the same step. */
void kv_publish_many(struct kv *kv, struct kv_table *const *t, const int32_t *n, int32_t count);

/* Drop every reference of *t and empty it, even if launched rows still write there. */
void kv_release(struct kv *kv, struct kv_table *t);

/* Spend copies left on copying out, ahead of need, the cached blocks that would be
 * evicted next; they stay on the device too.  Only blocks that are published, cached,
 * without twin and not pinned move.  Host room is made oldest first.  Returns copies. */
int32_t kv_demote(struct kv *kv, int32_t look);

/* The copies of the batch being filled, and the end of filling: it is launched. */
int32_t kv_copies(const struct kv *kv, const struct kv_copy **out);
void    kv_launched(struct kv *kv);

int32_t kv_available(const struct kv *kv); /* blocks kv_grow could hand out now; */
int32_t kv_kept(const struct kv *kv, int32_t owner); /* of them, kept by floors from this owner */
void    kv_stats(const struct kv *kv, struct kv_stats *out);

/* Assert the invariants above.  O(blocks); tests call it after every step. */
void kv_check(const struct kv *kv);

#endif
