/* timings.h - how long an answer took, in parts that add up.
 *
 * All times are those that the daemon stamps into the rings (struct sr_end): taken from the ring, first
 * planned, first token put, last token put.  So queue, prompt and predicted time together are the total.
 * Answers, Server-Timing and the page have their numbers from here.
 */
#ifndef TIMINGS_H
#define TIMINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct choice;
struct out;
struct sr_end;

struct timings {
	uint64_t queued, scheduled, first, last;  /* CLOCK_MONOTONIC, ns, in this order; first and last are
	                                             the time of its end if it had no token */
	uint64_t cached, computed;                /* prompt tokens */
	uint64_t tokens;                          /* of the answer, as its usage counts them */
	bool known;                               /* false: no END has come yet */
};

/* Add one answer's end, at `now`: times are then those from the first answer's begin to the last's end. */
void timings_add(struct timings *t, const struct sr_end *e, uint64_t tokens, uint64_t now);

/* {"cache_n":..,"prompt_n":..,..} with llama.cpp's names, and queue_ms and total_ms. */
void timings_json(struct out *o, const struct timings *t);

#define TIMINGS_LINE 192
/* server-timing: queue;dur=..,.. with its CRLF; "" if they are not known. */
const char *timings_line(char out[TIMINGS_LINE], const struct timings *t);

#endif
