/* wordpiece.h - WordPiece, the tokenizer of BERT: the text in its normal form, cut into words at spaces and
 * at punctuation; of each word the longest tokens from its beginning on, "##" before those inside it.
 *
 * Source: Devlin and others, 2018 (arXiv 1810.04805), and BertNormalizer, BertPreTokenizer and WordPiece of
 * Hugging Face's tokenizers.  What counts as a mark, as punctuation or as a control is that of Unicode 8, as
 * there.
 */
#ifndef WORDPIECE_H
#define WORDPIECE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bpe.h"
#include "vocab.h"

#define WORDPIECE_MOST 200           /* most characters of a word that a file may ask for */

struct wordpiece {
	bool on;                     /* the vocabulary is one of WordPiece */
	bool clean;                  /* control characters are left out */
	bool chinese;                /* each ideograph is a word */
	bool strip, lower;           /* accents are left out; lower case */
	int32_t unknown;             /* the token of a word that no tokens make */
	uint32_t most;               /* a word of more characters is unknown */
};

/* s is valid UTF-8.  0, or 1: there are more ids than the limit. */
int wordpiece_encode(const struct wordpiece *w, const struct vocab *v, const char *s, size_t n,
                     struct bpe_out *out);

#endif
