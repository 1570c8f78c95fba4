/* ngram.h - what may follow a text, by its own words: where its last ids stand once more, and what came behind them
 * there (Saxena, "Prompt lookup decoding", 2023).  Pure: the same ids give the same guesses.  A leaf.
 */
#ifndef NGRAM_H
#define NGRAM_H

#include <stdint.h>

/* Of the places of ids[0 .. n) before which the last `least` ids or more stand once more, the one where most of them
 * agree, `most` being as good as more; of equal ones the latest.  Returns the place behind them, or -1; *length: how
 * many agree.  1 <= least <= most.  O(n): after 8 n equal ids, which only a text has that is made to be slow, earlier
 * places are not looked at. */
int32_t ngram_find(const int32_t *ids, int32_t n, int32_t least, int32_t most, int32_t *length);

/* The k ids from that place on.  Behind the end of the text they go on with themselves, as if the text were
 * periodic. */
void ngram_copy(const int32_t *ids, int32_t n, int32_t from, int32_t k, int32_t *out);

#endif
