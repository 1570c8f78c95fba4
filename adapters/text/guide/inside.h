/* inside.h - what mask.c and inside.c share. */
#ifndef INSIDE_H
#define INSIDE_H

#include "mask.h"

/* What stays inside the lexeme in state lex: a new number of masks.inside.  0, -E2BIG, -ENOMEM. */
int inside_make(struct masks *m, uint32_t lex, uint32_t *out);

/* Set the bit of a token of the tree, and of the others with the same bytes. */
static inline void mask_set(const struct masks *m, int32_t id, uint32_t *bits)
{
	bits[id / 32] |= 1u << id % 32;
	if (m->t->all.twins)                         /* seldom, and a look at twin[] is a miss of the cache */
		while ((id = m->t->all.twin[id]) >= 0)
			bits[id / 32] |= 1u << id % 32;
}

static inline uint32_t mask_count(const uint32_t *bits, uint32_t words)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < words; i++)
		n += (uint32_t)__builtin_popcount(bits[i]);
	return n;
}

#endif
