/* slipring-sampling.h - how a request's tokens are drawn, or how its prompt becomes a vector.
 *
 * The same structs lie in a client's struct sr_request and behind SR_CMD_BEGIN and SR_CMD_POOL on the
 * device; the wire carries them.  So kernels/backend.h includes this file, and nothing else of shmring.
 * C11 and C++17 (nvcc).
 */
#ifndef SLIPRING_SAMPLING_H
#define SLIPRING_SAMPLING_H

#include <stdint.h>

#define SR_TOP_MAX 20      /* most alternatives of one token */

/* Raw logits -> penalties, bias, masks -> temperature -> cut.  In a request 0 is off everywhere; the device
 * gets 1 for a top_p and a repetition that are off. */
struct sr_sampling {
	uint64_t seed;         /* draw = f(seed, position): no state, so replays agree.  In a request it
	                          needs SR_SEEDED; without that the daemon picks one each time */
	float    temperature;  /* 0 = greedy: always the most likely token */
	float    top_p, min_p; /* [0, 1]; 1, 0 = off */
	int32_t  top_k;        /* 0 = off; in a request also below 0 */
	float    presence;     /* [-2, 2] subtracted once from each token already in the answer */
	float    frequency;    /* [-2, 2] subtracted once for each time that the token occurs there */
	float    repetition;   /* > 0: divides or multiplies the logits of tokens seen; 1 = off */
	int32_t  min_position; /* the first position that a stop id may take; sr_submit() sets it */
};

/* Its real numbers, each with the least and the most that the daemon takes: X(name, least, most). */
#define SR_SAMPLING_REALS(X) \
	X(temperature, 0, 1e6f) X(top_p, 0, 1) X(min_p, 0, 1) \
	X(presence, -2, 2) X(frequency, -2, 2) X(repetition, 0, 1e6f)

/* A pooled request (SR_POOLED) answers one vector.  All kinds but LOGITS take the output of the last layer,
 * after the model's final norm. */
enum sr_pool {
	SR_POOL_LAST = 1,      /* of the last token */
	SR_POOL_MEAN,          /* the mean over all tokens */
	SR_POOL_FIRST,         /* of the first token, which encoders call CLS */
	SR_POOL_LOGITS,        /* logits behind the last token: those of the ids in `allow`, in their order */
};
struct sr_pooling {
	uint32_t kind;         /* enum sr_pool; 0: the request is not pooled */
	uint32_t width;        /* elements wanted, the first ones of the vector; 0 = all.  0 with LOGITS */
	uint32_t unit;         /* 1: what is wanted of it is divided by its Euclidean length; 0 with LOGITS */
};

#endif
