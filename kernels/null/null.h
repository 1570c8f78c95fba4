/* null.h - a device without weights: next = f(sequence, as its KV cells and commands give it).
 *
 * Each token writes a 64-bit cell to its KV block, computed from the cell before it.  So a wrong
 * block, table, position, copy or command changes the tokens that follow.  sr_null_next() computes
 * the expected token from the ids alone.  The device measures the cost of everything except the
 * computation of a model, and every test without a model runs on it.
 */
#ifndef SR_NULL_H
#define SR_NULL_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

const struct sr_backend_ops *sr_null_ops(void);

/* Call before open.  A batch takes step_us + token_us for each of its new tokens.  With 0, 0 (the default)
 * it is done when it is polled. */
void sr_null_pace(double step_us, double token_us);

/* For tests, before open.  Depth: batches in flight, 1 .. 8 (default 2).  Clock: a source of time in ns;
 * NULL is CLOCK_MONOTONIC, the default. */
void sr_null_depth(int32_t depth);
void sr_null_clock(uint64_t (*now)(void *ctx), void *ctx);

/* What the commands of a request tell the device. */
struct sr_null_request {
	struct sr_sampling sampling;
	const uint32_t *list[4];  /* by enum sr_list, as words of SR_CMD_LIST */
	int32_t n_list[4];
	int32_t n_prompt;
	bool    history;          /* SR_CMD_HISTORY was sent */
	int32_t vocab;
	const uint32_t *mask;     /* of the next token: bits, by id; NULL: it is not guided */
};

/* The token that follows ids[0 .. n), or SR_NO_ID.  If two requests differ in seed (at a temperature above 0), another
 * field or a list, their tokens are equal only by chance. */
int32_t sr_null_next(const struct sr_null_request *q, const int32_t *ids, int32_t n);

/* A summary of a sequence's ids so far.  Start with zeros and read ids as they come.  The next token is that
 * of sr_null_next(). */
struct sr_null_text { int32_t n; uint64_t cell, seen; };
void sr_null_read(struct sr_null_text *t, int32_t n_prompt, const int32_t *ids, int32_t n);
int32_t sr_null_draw(const struct sr_null_request *q, const int32_t *ids, const struct sr_null_text *t);

/* The vector that a pooled request of these ids answers: `width` elements, or n_allow with SR_POOL_LOGITS. */
void sr_null_vector(enum sr_pool kind, const int32_t *ids, int32_t n, const uint32_t *allow, int32_t n_allow,
                    int32_t width, float *out);

/* The log-probability of `id` at the place after a text, drawn or scored; and the k-th alternative there,
 * where k = 0 is the token itself. */
float sr_null_logprob(const struct sr_null_text *t, int32_t id);
struct sr_top sr_null_top(const struct sr_null_text *t, int32_t id, int32_t k, int32_t vocab);

#ifdef __cplusplus
}
#endif
#endif
