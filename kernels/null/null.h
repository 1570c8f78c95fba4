/* null.h - a device without weights: next = f(sequence, as its KV cells and commands tell).
 *
 * Each token leaves a 64-bit cell in its KV block, made from the cell before it, so a wrong
 * block, table, position, copy or command changes the tokens that follow; sr_null_next() says
 * from the ids alone what must come.  It measures what everything but the numbers costs, and
 * every test without a model runs on it.
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

/* Before open.  A batch takes step_us + token_us for each of its new tokens; 0, 0 (as at
 * first): it is done when it is asked about. */
void sr_null_pace(double step_us, double token_us);

/* For tests, before open: batches in flight, 1 .. 8 (2 at first); and the time, in ns, from
 * somewhere else than CLOCK_MONOTONIC (NULL: from there). */
void sr_null_depth(int32_t depth);
void sr_null_clock(uint64_t (*now)(void *ctx), void *ctx);

/* What a request's commands tell the device. */
struct sr_null_request {
	struct sr_sampling sampling;
	const uint32_t *list[4];  /* by enum sr_list, as words of SR_CMD_LIST */
	int32_t n_list[4];
	int32_t n_prompt;
	bool    history;          /* SR_CMD_HISTORY was sent */
	int32_t vocab;
};

/* The token that follows ids[0 .. n).  Of two requests that differ in seed (at a temperature
 * above 0), in another field or in a list, it differs but by chance. */
int32_t sr_null_next(const struct sr_null_request *q, const int32_t *ids, int32_t n);

/* What the ids of a sequence so far amount to: begin with zeros, and read on as they come.  The
 * token that follows is sr_null_next()'s. */
struct sr_null_text { int32_t n; uint64_t cell, seen; };
void sr_null_read(struct sr_null_text *t, int32_t n_prompt, const int32_t *ids, int32_t n);
int32_t sr_null_draw(const struct sr_null_request *q, const int32_t *ids, const struct sr_null_text *t);

/* The log-probability of `id` in the place after a text, as token or scored; and the k-th
 * alternative there, k = 0 being the token itself. */
float sr_null_logprob(const struct sr_null_text *t, int32_t id);
struct sr_top sr_null_top(const struct sr_null_text *t, int32_t id, int32_t k, int32_t vocab);

#ifdef __cplusplus
}
#endif
#endif
