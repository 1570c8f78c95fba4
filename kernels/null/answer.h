/* answer.h - f, from its pieces, for the files of this folder: the cell of a token, and what is drawn after it. */
#ifndef SR_NULL_ANSWER_H
#define SR_NULL_ANSWER_H

#include "kernels/null/null.h"

static inline uint64_t mix(uint64_t x)
{
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93u;
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93u;
	return x ^ (x >> 32);
}

/* The cell of token `id` at position `pos`, after a token whose cell is `prev`. */
static inline uint64_t cell(uint64_t prev, int32_t id, int32_t pos)
{
	return mix(prev * 3 ^ mix((uint64_t)(uint32_t)id + 77) ^ (uint64_t)(uint32_t)pos << 32);
}

/* Penalties count each token, separately in prompt and answer, in any order. */
static inline uint64_t seen(int32_t id, bool answer)
{
	return mix((uint64_t)(uint32_t)id + (answer ? 1u << 31 : 0) + 5);
}

struct draw_at {                /* the place of the token to draw */
	uint64_t cell;        /* of the token before it */
	uint64_t asked;       /* settings and lists, folded */
	int32_t  position;
	const struct sr_sampling *sampling;
	const uint32_t *const *list;
	const int32_t *n_list;
	const int32_t *ids;   /* [position], or NULL without a history */
	uint64_t seen;        /* sum over ids, if there is a history */
	int32_t  vocab;
	const uint32_t *mask; /* NULL: it is not guided */
};

/* Settings and lists, folded: sr_null_request.list. */
uint64_t null_asked(const struct sr_sampling *s, const uint32_t *const list[4], const int32_t n_list[4]);

int32_t null_draw(const struct draw_at *p);   /* an id, or SR_NO_ID: the mask allows none */

/* The token has between 1/2 and 9/10, and each alternative half of the rest.  So a sum of probabilities
 * stays below 1, and the token's rank of 1 is correct. */
static inline float null_logprob(uint64_t cell, int32_t id)
{
	return -0.69f + 0.58f * (float)(mix(cell ^ (uint64_t)(uint32_t)id) >> 40) / (1 << 24);
}

struct sr_top null_alternative(uint64_t cell, int32_t id, int32_t k, int32_t vocab);

/* Element i of a vector, or the logit of id i. */
float null_element(uint64_t h, int32_t i);

#endif
