/* bpe.h - byte pair encoding: the merges of a vocabulary, and their use on one piece of text.
 *
 * A piece starts as its bytes; then, again and again, the neighbours whose pair has the lowest
 * rank are joined, the leftmost first.  Source: Sennrich et al. 2016, on bytes as in GPT-2.
 */
#ifndef BPE_H
#define BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vocab.h"

struct bpe_pair { int32_t left, right, rank, id; };  /* left + right become id; rank < 0: empty slot */

struct bpe {
	const struct vocab *v;
	struct bpe_pair *slot;       /* [mask + 1], open addressing */
	uint32_t mask, n;
	bool whole_first;            /* a piece that is a token is that token ("ignore_merges") */
	uint8_t *whole;              /* [v->n] enum whole: what the merges make of a token's own bytes;
	                                found out when first asked, the same by any thread */
	uint8_t *side;               /* [v->n] 1: a merge so far has it on one of its sides */
	bool unordered;              /* a merge makes what one before it has as a side: see encode_long */
};

/* Room for n merges over a sealed vocabulary.  0 or -ENOMEM. */
int  bpe_create(struct bpe *b, const struct vocab *v, uint32_t n);
void bpe_free(struct bpe *b);

/* The next merge in rank.  0; -EINVAL a side or the whole is no token. */
int  bpe_add(struct bpe *b, const char *left, size_t n_left, const char *right, size_t n_right);

/* Where ids go: the first cap of them are kept, all are counted; once there are more than limit
 * (0 = none), no more are looked for. */
struct bpe_out { int32_t *ids; size_t cap; int64_t n, limit; };

static inline bool bpe_over(const struct bpe_out *o) { return o->limit && o->n > o->limit; }

static inline void bpe_put(struct bpe_out *o, int32_t id)
{
	if ((size_t)o->n < o->cap)
		o->ids[o->n] = id;
	o->n++;
}

/* One piece to ids, in O(n) and little memory (merges that are not in order: O(n log n)).  A byte that
 * the vocabulary lacks is left out, as in the Hugging Face tokenizers.  0, -ENOMEM, -E2BIG. */
int  bpe_encode(const struct bpe *b, const char *s, size_t n, struct bpe_out *o);

#endif
