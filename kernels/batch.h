/* batch.h - what every back end needs to know of a batch: where its arrays lie, what core may
 * put into it, and what its rows mean.
 *
 * Core fills a batch on its own, so a back end asserts the rules below: a breach is an error of
 * core, never of a client.  They are checked where a batch is launched or executed, and nowhere
 * else.  A batch that keeps them names no slot, block, id or result outside the limits.
 *
 * Functions of their arguments alone.  Those marked BATCH_RULE also run inside CUDA kernels.
 */
#ifndef SR_BATCH_H
#define SR_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend.h"

#ifdef __CUDACC__
#define BATCH_RULE static inline __host__ __device__
#else
#define BATCH_RULE static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- memory --------------------------------------------------------------------------------- */

/* Cuts a region into pieces, one after the other.  With base NULL it only counts: at the end `at`
 * is the size of the region. */
struct cutter {
	unsigned char *base;
	size_t at;                   /* bytes so far */
	size_t align;                /* of each piece; a power of two */
};

static inline void *cut(struct cutter *c, size_t n, size_t size)
{
	void *p = c->base ? c->base + c->at : NULL;

	c->at += (n * size + c->align - 1) & ~(c->align - 1);
	return p;
}

/* The next piece begins at a multiple of `align`, once. */
static inline void cut_align(struct cutter *c, size_t align)
{
	c->at = (c->at + align - 1) & ~(align - 1);
}

/* The arrays of a batch, as long as the limits say. */
void batch_cut(struct sr_batch *b, const struct sr_limits *l, struct cutter *c);

/* The arrays of `depth` batches, then the masks, in one region from `base` on, as limits.batches has them.
 * Returns its bytes; with base NULL it only counts. */
size_t batches_cut(struct sr_batch *b, int32_t depth, struct sr_masks *m, const struct sr_limits *l,
                   int32_t n_vocab, void *base);

/* Ids in a slot's history: a token for each place in its blocks, and the last, which needs none. */
static inline int32_t slot_history(const struct sr_limits *l)
{
	return l->seq_blocks * l->block_tokens + 1;
}

/* Words of a slot's lists.  Each list has a head of two words: its kind and its length. */
static inline int32_t slot_words(const struct sr_limits *l)
{
	return l->words + 2 * 128;
}

/* ---- what core may put into a batch ----------------------------------------------------------- */

/* The counts are within the limits. */
bool batch_fits(const struct sr_batch *b, const struct sr_limits *l);

/* The groups are possible, with blocks of `per_block` bytes. */
bool batch_groups_ok(const struct sr_limits *l, int64_t per_block);

/* There is one group, of all layers: what every back end knows. */
static inline bool batch_one_group(const struct sr_limits *l)
{
	return l->n_groups == 1 && l->group[0].window == 0;
}

/* A copy is between blocks that exist. */
bool batch_copy_ok(const struct sr_limits *l, const struct sr_copy *c);

/* A command names a slot that exists, its words lie in the batch, and they fit into the slot.  Ids of tokens
 * are not looked at. */
bool batch_cmd_ok(const struct sr_batch *b, const struct sr_limits *l, const struct sr_cmd *c);

/* Ids that a row is given: one more than it computes, if its last token is followed by a scored one. */
BATCH_RULE int32_t row_ids(const struct sr_row *r)
{
	return r->n + (r->n_score == r->n);
}

BATCH_RULE int32_t row_results(const struct sr_row *r)
{
	return r->n_score + (r->sample && !r->pool) + r->n_draft;
}

/* A row names a slot that exists, its positions fit into a sequence, its ids and results lie in the batch.
 * Inline, because the null device is measured. */
static inline bool batch_row_ok(const struct sr_batch *b, const struct sr_limits *l, const struct sr_row *r)
{
	if (r->slot < 0 || r->slot >= l->slots || r->n < 1 || r->first < 0 ||
	    (int64_t)r->first + r->n > (int64_t)l->seq_blocks * l->block_tokens)
		return false;
	if (r->n_score < 0 || r->n_score > r->n || r->n_top > SR_TOP_MAX ||
	    r->result < 0 || (int64_t)r->result + row_results(r) > b->n_results)
		return false;
	if (r->pool)
		return r->pool <= SR_POOL_LOGITS && !r->n_score && !r->n_top && r->token >= 0 &&
		       (int64_t)r->token + r->n <= b->n_ids && r->mask >= 0 && r->mask < l->vectors && !r->n_draft;
	if (r->n_draft && (!r->sample || r->n_draft >= r->n || r->n_score || r->mask || r->n_draft > l->drafts))
		return false;
	if (r->mask && (r->mask < 0 || r->mask > l->masks / 2 || !r->sample))
		return false;
	if (r->token == SR_LAST)
		return r->n == 1 && !r->n_score;
	return r->token >= 0 && (int64_t)r->token + row_ids(r) <= b->n_ids;
}

/* ---- what a row means ------------------------------------------------------------------------- */

/* A new token, as layers see it. */
struct batch_token { int32_t id, position, slot; };

/* Token j of a row, from the ids of its batch.  Its id is SR_LAST where only the slot knows it. */
BATCH_RULE struct batch_token row_token(const struct sr_row *r, const int32_t *ids, int32_t j)
{
	struct batch_token t = { r->token == SR_LAST ? SR_LAST : ids[r->token + j], r->first + j, r->slot };

	return t;
}

/* A result that is wanted, as sampling sees it. */
struct batch_pick {
	int32_t t;                   /* the token whose logits these are */
	int32_t result;              /* where it goes; -1: nowhere (padding) */
	int32_t id;                  /* scored, or -1: drawn */
	int32_t position;            /* of the scored or drawn token */
	int32_t slot;
	int32_t n_top;               /* alternatives */
	int32_t rank;                /* 1: its rank is wanted */
	int32_t mask;                /* as sr_row.mask */
	int32_t vector;              /* v: no result, but vector v - 1 of the batch (SR_POOL_LOGITS); 0: a result */
	int32_t guess;               /* g: drawn in a row with guesses, behind g - 1 of them; 0: in another row */
};

/* ---- masks of guided rows ---------------------------------------------------------------------- */

static inline int32_t mask_words(int32_t n_vocab)
{
	return (n_vocab + 31) / 32;
}

/* The places and the tags.  With the tags at SR_MASK_NO_TAG, nothing else needs a value. */
void masks_cut(struct sr_masks *m, const struct sr_limits *l, int32_t n_vocab, struct cutter *c);
void masks_clear(struct sr_masks *m, const struct sr_limits *l);

/* The tag, without its position, of the mask for the token at `position`, and in *words its bits.  False: it
 * is not there yet. */
static inline bool mask_find(const struct sr_masks *m, int32_t mask, int32_t position, uint32_t *what,
                             const uint32_t **words)
{
	int32_t place = 2 * (mask - 1) + (position & 1);
	uint64_t tag = __atomic_load_n(&m->tag[place], __ATOMIC_ACQUIRE);

	*what = (uint32_t)tag;
	*words = m->word + (size_t)place * (size_t)m->words;
	return tag >> 32 == (uint64_t)position;
}

/* Result j of a row, from the ids of its batch; token 0 of the row is token t. */
BATCH_RULE struct batch_pick row_pick(const struct sr_row *r, const int32_t *ids, int32_t t, int32_t j)
{
	bool scored = j < r->n_score;
	int32_t last = scored ? j : r->n - 1 - r->n_draft + (j - r->n_score); /* the token before it, in the row */
	struct batch_pick p = {
		t + last,
		r->result + j,
		scored ? ids[r->token + j + 1] : -1,
		r->first + last + 1,
		r->slot,
		r->n_top,
		r->n_score > 0 || r->n_top > 0,
		scored || r->pool ? 0 : r->mask,
		r->pool ? r->mask + 1 : 0,
		r->n_draft ? 1 + j : 0,
	};

	return p;
}

/* Tokens t .. t+n-1 of one sequence. */
struct token_run { int32_t t, n; };

/* Tokens of a pooled row, as pooling sees them.  Rows with SR_POOL_LOGITS have a pick instead. */
struct batch_pool {
	int32_t t, n;                /* tokens t .. t+n-1 */
	int32_t first;               /* position of the first of them */
	int32_t slot, pool;          /* enum sr_pool */
	int32_t vector;              /* of the batch, if these are the prompt's last tokens; else -1 */
};

/* Tokens t .. t+n-1, the first of them at place `from`, are cut where a place is a multiple of `step`.
 * Returns the number of runs. */
BATCH_RULE int32_t cut_runs(struct token_run *out, int32_t t, int32_t n, int32_t from, int32_t step)
{
	int32_t runs = 0, most = step - from % step;

	for (int32_t j = 0; j < n; j += most, most = step) {
		out[runs].t = t + j;
		out[runs].n = n - j < most ? n - j : most;
		runs++;
	}
	return runs;
}

/* The same number, without cutting. */
BATCH_RULE int32_t count_runs(int32_t n, int32_t from, int32_t step)
{
	return (from % step + n + step - 1) / step;
}

#ifdef __cplusplus
}
#endif
#endif
