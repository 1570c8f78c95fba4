/* kv.h - which owner has which block of the KV cache, on which tier.
 *
 * Bookkeeping only: it handles block ids, never memory, which belongs to the back end.  The
 * scheduler alone calls it, from one thread.  No call here can block, log, allocate (after
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
 * Copies are part of the batch being filled.  From kv_begin to kv_launched, their host block and,
 * for a copy in, the device block are pinned: they are no other copy's source, target or victim.
 * The device block of a copy out may be given away at once, and rows of the same batch may read
 * a block copied in.  The back end does all copies out, then all in, then rows; and it runs
 * batches in launch order.
 *
 * Floors.  A cached block belongs to the owner of the table that released it last.  Other owners'
 * evictions leave each owner its newest cached blocks, up to a floor.  The floors are a quarter of
 * the tier, divided equally among the owners that have anything cached.  An owner loses its floor if
 * it released nothing while the whole tier was released 16 times over, so no floor lasts for ever.
 * Floors decide whose block is evicted, never whether one is.  kv_grow goes below them if nothing
 * else is left.  So a caller that can wait should subtract kv_kept() from kv_available().
 *
 * Invariants (kv_check asserts them all):
 *   1. free + cached + held == n on the device; free + cached == n on the host.
 *   2. Only full blocks are published; a published block is never written again.
 *      So blocks are shared without copy-on-write.
 *   3. A published block has key = H(parent's key, salt of the first, its ids); a match
 *      compares parent key (128 bits, keyed per boot), salt and ids.  Keys, not block
 *      numbers, name a parent: it may leave, come back, or be on the other tier.
 *   4. At most one indexed block per key and tier.  A chain is released tail first, so
 *      it is evicted tail first.
 *   5. Outside kv_begin .. kv_launched no block is pinned.
 *   6. A window's block that is cached belongs to a unit (below).
 *
 * Windows.  A group whose layers look back w tokens holds the last ceil((w-1) / block_tokens) + 1 full blocks
 * and what is being computed.  A block that leaves the window is free at once and is taken first; nothing could
 * match it.  What can be matched later is the window at the end of a prompt, at the end of an answer (or where a
 * sequence was preempted), and where prompts part: where kv_match found more blocks in the full groups than
 * in the windows.  Those blocks, of all windows, are a unit.  They are cached when they leave the window, and
 * the unit is evicted as a whole, since without one of its blocks the others match nothing.  The one block more
 * than a token reads lets a request match that parts inside the last block.  A block is in at most one
 * unit, the newest that it is part of.
 *
 * A unit is copied to the host tier whole or not at all.  A match with groups takes nothing before it can take
 * everything.  If its copies are too many for a batch, a part of the full groups' blocks is copied into the
 * device's cache and the caller tries again.
 *
 * States.  If layers have a state (kernels/backend.h, SR_CMD_STATE), a prefix can be used only where a snapshot of
 * the state was kept.  A running sequence has one state of its own, which its rows write.  A snapshot is a state that
 * is not written any more; its name is that of the block it follows.  So a match ends where there is a snapshot, and
 * is shorter than that of the blocks alone.  Snapshots are kept at the last full block before the end of a prompt, at
 * the last full block of an answer so far, which replaces the one before, and where prompts part: where the blocks
 * matched further (t->fork).  None is copied: the row that begins there continues one state and leaves another, or
 * leaves what it has in the middle in a second one.  Cached snapshots are evicted least recently released first,
 * whoever owns them, or when the block is evicted whose name they have.  With states there is one group without a
 * window, and no host tier.
 */
#ifndef KV_H
#define KV_H

#include <stdbool.h>
#include <stdint.h>

struct kv;
struct events_page;
struct prefix_page;

/* The ids of a sequence, in pooled chunks that it owns.  All are full but the last, which
 * always has room, so that `at` below always has a place to point to. */
#define KV_CHUNK 64           /* a multiple of block_tokens */
struct kv_chunk {
	struct kv_chunk *next;
	int32_t id[KV_CHUNK];
};

/* Blocks come in groups of layers (kernels/backend.h).  The layers of a group look back equally far. */
#define KV_GROUPS 16
struct kv_group { int32_t window; }; /* most tokens that its layers look back; 0 = all */

/* The blocks of one sequence, in order: token i lies in block i / block_tokens of each group.  Groups have
 * blocks of their own and share one chain of names.  Embedded in the slot, whose storage block[] is: one
 * cache line. */
struct kv_table {
	int32_t *block;       /* [n_groups][cap], then kv.c's own: KV_TABLE_INTS */
	int32_t  cap;
	int32_t  n;           /* blocks of each group, those included that left its window */
	int32_t  published;   /* this many blocks from the start, or their twins, are in the index */
	int32_t  end;         /* the caller's: full blocks of the prompt; windows keep their last blocks there */
	int32_t  fork;        /* kv_match: full groups had this many blocks, windows fewer; kept there, too */
	int16_t  owner;       /* the owner of its blocks in the cache: 0 .. n_owners-1 */
	bool     more;        /* kv_match stopped because copies ran out: try in the next batch.
	                         Never set in a batch without copies, so nothing waits for 0 */
	uint8_t  tries;       /* kv.c's: batches in which it did, with several groups */
	uint64_t salt;        /* prefixes match only within one salt */
	uint64_t key[2];      /* of block published - 1 */
	const struct kv_chunk *at; /* where the ids of block `published` are or will be; at the
	                              start, the sequence's first chunk */
};
#define KV_STATE_INTS 8
#define KV_TABLE_INTS(n_groups, cap) ((size_t)(n_groups) * ((size_t)(cap) + 1) + KV_STATE_INTS)

struct kv_config {
	int32_t  n_blocks, n_host, block_tokens;
	int32_t  copies;      /* most copies in one batch */
	uint64_t key[2];      /* random, per boot */
	int32_t  n_owners;    /* of cached blocks; 0 = 1 */
	int32_t  n_groups;    /* at most KV_GROUPS; 0 = 1 */
	struct kv_group group[KV_GROUPS];
	int32_t  n_states;    /* 0: layers have none */
	struct prefix_page *shown; /* shows the names of published blocks (core/prefix.h); NULL = nobody looks */
	struct events_page *events; /* made for these blocks: their names lie there (core/events.h); NULL = nobody
	                              is told */
};

struct kv_copy { int32_t device, host, out; }; /* host counts from 0; out = 1 demotes */

struct kv_stats {
	int32_t  n_free, n_cached, n_held, n_host_free, n_host_cached;
	int32_t  held[KV_GROUPS]; /* of n_held: blocks of each group */
	uint64_t lookups, hit_blocks, host_hits, evictions, copies_in, copies_out;
	uint64_t slid;        /* blocks that left a window, but for those of units */
	uint64_t missed;      /* blocks of prefixes that full groups had, but windows or states did not */
	int32_t  n_states_free, n_states_cached;
	uint64_t states_kept, states_hit, states_evicted; /* snapshots */
};

/* 0, -EINVAL, -ENOMEM.  One allocation. */
int  kv_create(struct kv **out, const struct kv_config *cfg);
void kv_destroy(struct kv *kv); /* asserts that nothing is held */

/* Begin to fill a batch that may carry `copies` copies (a byte budget / bytes per block).
 * Evictions may use at most half of them for copies out, so that sequences waiting for copies in
 * are not starved; kv_demote may use what is left. */
void kv_begin(struct kv *kv, int32_t copies);

/* Extend *t by the published blocks that continue it: those on the device, else copied in.  Full groups need
 * all of them, a window those that the next token reads.
 * *t must hold exactly its published, computed blocks (none, at first).  So a later batch can call
 * it again, after t->more or to use blocks published since.  n tokens are known.  Returns
 * the tokens covered: a multiple of block_tokens that is less than n, so at least one token
 * is left to compute. */
int32_t kv_match(struct kv *kv, struct kv_table *t, int32_t n);

/* The name (64 bits of it) of the full block that continues the published ones of *t.  Its ids
 * must be known.  Two tables with the same name are about to compute the same block. */
uint64_t kv_next(const struct kv *kv, const struct kv_table *t);

/* The same of block n - 1, which is behind the published ones.  All ids before its end must be known. */
uint64_t kv_name(const struct kv *kv, const struct kv_table *t, int32_t n);

/* No token before `from` will be computed again: let go of the blocks that windows have left.  One more than
 * the token at `from` reads is kept, so up to block_tokens tokens before it may still be. */
void kv_slide(struct kv *kv, struct kv_table *t, int32_t from);

/* Has a group a window?  If not, kv_slide does nothing and kv_first is 0. */
bool kv_windows(const struct kv *kv);

/* Blocks that *t lacks for n tokens, if no call of kv_grow is for more than `step` tokens. */
int32_t kv_lacks(const struct kv *kv, const struct kv_table *t, int32_t n, int32_t step);

/* The most blocks that a sequence of n tokens holds.  A pool must have as many. */
int32_t kv_most(const struct kv_config *cfg, int32_t n, int32_t step);

/* The first block of a group that *t holds; those before it left its window, or were never there. */
int32_t kv_first(const struct kv *kv, const struct kv_table *t, int32_t group);

/* Make *t long enough for n tokens: each group gets the same number of blocks.  Cached blocks are evicted.
 * Those without a twin on the host tier are copied out while the batch has copies left; after that they are
 * lost.  All or nothing: 0, or -ENOSPC and *t is unchanged.  -E2BIG if the table is too small. */
int  kv_grow(struct kv *kv, struct kv_table *t, int32_t n);

/* The first n tokens of *t are in launched batches: publish the full blocks among them.
 * Never before launch, because rows of one batch must not read each other. */
void kv_publish(struct kv *kv, struct kv_table *t, int32_t n);

/* The same for several tables.  It prefetches their memory, which is most of the cost when many
 * sequences fill a block in the same step. */
void kv_publish_many(struct kv *kv, struct kv_table *const *t, const int32_t *n, int32_t count);

/* States.  kv_state_begin: before the first match of a new table.  kv_state_take: after it, a state of its own; false:
 * all are held, or rows of the batch that is being filled use them. */
bool    kv_states(const struct kv *kv);
int32_t kv_states_left(const struct kv *kv);
void    kv_state_begin(struct kv *kv, struct kv_table *t);
bool    kv_state_take(struct kv *kv, struct kv_table *t);

/* What the row of *t does that begins at position `first`: it continues state `from` (-1: none) and leaves `to`; with
 * to == -1 it goes on where the row before it stopped.  keep: where the state before position keep_at goes, which lies
 * inside the row; or -1.  keep_at: a multiple of block_tokens from `first` on, where a snapshot is wanted, or -1;
 * there is none if all states are held.  passing: it replaces the snapshot that was so kept before. */
struct kv_state_row { int32_t from, to, keep; };
struct kv_state_row kv_state_row(struct kv *kv, struct kv_table *t, int32_t first, int32_t keep_at, bool passing);

/* The launched rows of *t compute its first n tokens, and kv_release follows: keep its own state, if it has a name. */
void    kv_state_leave(struct kv *kv, struct kv_table *t, int32_t n);

/* Drop every reference of *t and empty it, even if launched rows still write to its blocks. */
void kv_release(struct kv *kv, struct kv_table *t);

/* The device lost what its blocks held, on both tiers: nothing is cached any more.  No table may hold a block, and
 * no batch may be being filled. */
void kv_forget(struct kv *kv);

/* Blocks for a file (core/keep.h), of a cache with one group, without windows and states.  kv_saved: up to `most`
 * cached blocks of the device, the one released last first, so that a parent comes before its children.
 * kv_restore: into an empty cache, in this order; sets each `block`, whose content the caller puts there before the
 * first batch.  Both return how many. */
struct kv_saved {
	int32_t  block;
	int32_t  parent;      /* its place in this list; -1: none, it begins a prompt */
	uint64_t salt;
	const int32_t *id;    /* [block_tokens] */
};
int32_t kv_saved(const struct kv *kv, struct kv_saved *out, int32_t most);
int32_t kv_restore(struct kv *kv, struct kv_saved *in, int32_t n);

/* Copy out, ahead of need, the cached blocks that would be evicted next, with the copies that
 * are left.  They stay on the device too.  Only blocks that are published, cached, without a twin
 * and not pinned are copied.  Host room is made oldest first.  Returns the number of copies. */
int32_t kv_demote(struct kv *kv, int32_t look);

/* kv_copies: the copies of the batch being filled.  kv_launched: the batch is launched. */
int32_t kv_copies(const struct kv *kv, const struct kv_copy **out);
void    kv_launched(struct kv *kv);

int32_t kv_available(const struct kv *kv); /* blocks that kv_grow could give now */
int32_t kv_kept(const struct kv *kv, int32_t owner); /* of those, blocks that floors keep from this owner */
void    kv_stats(const struct kv *kv, struct kv_stats *out);

/* Assert the invariants above.  O(blocks); tests call it after every step. */
void kv_check(const struct kv *kv);

#endif
