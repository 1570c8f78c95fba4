/* bpe.h - byte pair encoding: the merges of a vocabulary, and their use on one piece of text.
 *
 * A piece starts as its bytes.  Then the two neighbours whose pair has the lowest rank are joined, the
 * leftmost first, until no pair has a rank.  Source: Sennrich et al. 2016, on bytes as in GPT-2.
 * With a SentencePiece vocabulary it starts as its characters.
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
	bool whole_first;            /* a piece that spells a token becomes it ("ignore_merges") */
	uint8_t *whole;              /* [v->n] enum whole: what the merges make of a token's own bytes;
	                                computed on first use, with the same result in any thread */
	uint8_t *side;               /* [v->n] 1: a merge added so far has it as a side */
	bool unordered;              /* a merge makes a token that an earlier one needs: see encode_long */
	bool glued;                  /* a merge makes a token with a space behind another character */
};

/* Room for n merges over a sealed vocabulary.  0 or -ENOMEM. */
int  bpe_create(struct bpe *b, const struct vocab *v, uint32_t n);
void bpe_free(struct bpe *b);

/* Add the merge with the next rank.  0; -EINVAL: a side or the result is no token. */
int  bpe_add(struct bpe *b, const char *left, size_t n_left, const char *right, size_t n_right);

/* SentencePiece: two tokens whose joined text is a token may merge, the one with the highest score first.
 * score: [v->n].  Adds them all to a zeroed *b.  0, -ENOMEM, or -EINVAL: a score is not a number, or a
 * token has more than BPE_SCORED_MAX bytes. */
enum { BPE_SCORED_MAX = 256 };
int  bpe_create_scored(struct bpe *b, const struct vocab *v, const float *score);

/* The output: the first cap ids are stored, all are counted.  Encoding stops once there are more than
 * limit ids (0 = no limit). */
struct bpe_out { int32_t *ids; size_t cap; int64_t n, limit; };

static inline bool bpe_over(const struct bpe_out *o) { return o->limit && o->n > o->limit; }

static inline void bpe_put(struct bpe_out *o, int32_t id)
{
	if ((size_t)o->n < o->cap)
		o->ids[o->n] = id;
	o->n++;
}

/* Encode one piece, in O(n) time and little memory (O(n log n) if the merges are not in order).  A byte
 * that the vocabulary lacks is omitted, as in the Hugging Face tokenizers.  0, -ENOMEM, -E2BIG. */
int  bpe_encode(const struct bpe *b, const char *s, size_t n, struct bpe_out *o);

#endif
