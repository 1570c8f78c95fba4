/* unigram.h - the tokenizer of XLM-R and T5: of all ways to write a text by tokens, the one whose scores have
 * the largest sum.
 *
 * Source: Kudo, 2018 (arXiv 1804.10959), and the search of sentencepiece and Hugging Face's tokenizers: from
 * the first character on, each place keeps the best way to it.  What no token spells is one unknown token,
 * however long.
 */
#ifndef UNIGRAM_H
#define UNIGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bpe.h"
#include "vocab.h"

enum { UNIGRAM_LONGEST = 256 };      /* most bytes of a token */

struct unigram {
	bool on;                     /* the vocabulary is one of unigrams */
	double *score;               /* [v->n], owned */
	int32_t unknown;             /* the token of what no token spells */
	double  penalty;             /* and its score for each character */
	int32_t one[256];            /* tokens of one byte; -1: none */
	int32_t *sorted;             /* the others, by their bytes */
	uint32_t *from;              /* [65537] where those begin whose first two bytes are this */
	bool glued;                  /* text cannot be cut into words: a token goes over a space */
};

/* score: [v->n], malloc'ed; *u owns it from here on, also after an error.  Tokens that are added, special or
 * bytes are left out.  least: the lowest score.  0, -ENOMEM, or -EINVAL: a token that may be made is too
 * long, its score is not a number, or `unknown` is no token. */
int  unigram_create(struct unigram *u, const struct vocab *v, double *score, double least, int32_t unknown);
void unigram_free(struct unigram *u);

/* s is valid UTF-8 with spaces for U+2581.  0, -ENOMEM or -E2BIG. */
int  unigram_encode(const struct unigram *u, const struct vocab *v, const char *s, size_t n,
                    struct bpe_out *out);

#endif
