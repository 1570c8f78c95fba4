/* quantize_pieces.h - merges of a SentencePiece vocabulary, as tokenizer.json lists them. A GGUF has
 * scores instead. */
#ifndef QUANTIZE_PIECES_H
#define QUANTIZE_PIECES_H

#include <jansson.h>

#include "core/models/gguf.h"

/* All ways to put a piece together from two others, the best score first. vocab: {piece: id}. NULL: no
 * memory, or scores are missing. */
json_t *quantize_pieces_merges(const struct gguf *g, const json_t *vocab);

#endif
