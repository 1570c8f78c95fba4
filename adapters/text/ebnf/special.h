/* special.h - tokens that a grammar names, by their spelling or their id. */
#ifndef SPECIAL_H
#define SPECIAL_H

#include "adapters/text/grammar/grammar.h"

/* The id of the one token that is spelled so, or -1. */
int32_t special_id(const struct grammar *g, const char *s, size_t n);

/* The symbol of one token that is none of these ids and none that ends an answer. */
int32_t special_except(struct grammar *g, const int32_t *ids, uint32_t n);

#endif
