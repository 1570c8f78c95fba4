/* mask.h - which tokens may come in a state: the walk of the vocabulary's tree, and what is remembered of it.
 *
 * What is remembered, made on first use:
 * - The whole mask of a state, as few ids or as those of a lexeme and a few more.
 * - By lexer state: the tokens that stay inside the lexeme, and the nodes at which it may end (crossings).
 *   The same lexeme in another place of the grammar needs only a walk of what follows the crossings.
 * - By vocabulary: plain tokens (trie.h), so that the first mask inside a string walks only the others.
 */
#ifndef MASK_H
#define MASK_H

#include "earley.h"
#include "trie.h"

struct mask {
	uint32_t inside;             /* 0, or a number of masks.inside: its ids besides */
	uint32_t at, n;              /* masks.ids[at .. at+n-1] */
	uint32_t *bits;              /* if it is neither; or NULL */
	uint32_t total;              /* how many ids in all */
	bool any;                    /* every id */
	int32_t until;               /* any: and this UNTIL alone is under way; or SYMBOL_NONE */
};

/* Of one state of a lexer. */
struct inside {
	uint32_t *bits;              /* tokens that stay inside it, or end it exactly */
	uint32_t *cross;             /* nodes at which it may end, with something below them */
	uint32_t n_cross;
	uint32_t total;
	bool many;                   /* too many crossings: the whole tree is walked instead */
};

struct masks {
	struct earley *y;
	const struct tokens *t;
	uint32_t words;
	struct inside *inside;       /* [0] is none */
	uint32_t n_inside, inside_cap;
	struct mask *mask;           /* [0] is none */
	uint32_t n, cap;
	int32_t *ids;
	uint32_t n_ids, ids_cap;
	uint32_t *scratch;           /* [words] */
	size_t bytes;
};

int  masks_create(struct masks *m, struct earley *y, const struct tokens *t);
void masks_free(struct masks *m);

/* *out is the mask of a state, valid until the next call.  0, -E2BIG, -ENOMEM. */
int  mask_of(struct masks *m, uint32_t state, const struct mask **out);
/* Its bits, without the ids that end the answer. */
void mask_bits(const struct masks *m, const struct mask *k, uint32_t *bits, uint32_t words);

#endif
