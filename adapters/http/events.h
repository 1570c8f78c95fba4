/* events.h - the fields that the events and answers of all dialects share.
 *
 * An event is a list of fields.  Each field is a function that writes a piece of a few KiB into r->event and
 * returns whether the field is whole; r->pen keeps the place.  So event_write() can stop after any piece and
 * continue in a later turn of the loop.  Only one slice of a long answer exists at a time.
 */
#ifndef EVENTS_H
#define EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "choice.h"

struct problem;
struct request;

typedef bool event_field(struct request *r);

/* How much of an event or an answer is written. */
struct pen {
	event_field *const *field;     /* the field being written, NULL ends the list; NULL: no event is begun */
	bool sent;                     /* a part of the event has been sent */
	event_field *const *next_choice; /* a whole answer: the next choice begins here again */
	struct choice *c;              /* the choice it is about, or NULL */
	struct part part;              /* what of the choice it has */
	bool first, with_prompt, ended; /* the choice's first event; has the prompt; has the end */
	size_t n_scores, n_ids;        /* bytes of the choice's lists that it has */
	int64_t n_counted;             /* tokens in usage */
	size_t at;                     /* bytes or entries of the field that are done */
	bool some, in_answer;          /* a list has begun; the prompt's scores are done */
	uint32_t offset;
	struct sr_detok detok;
};

/* Make the next slice of the event that was begun, in r->event; true: the last slice. */
bool event_write(struct request *r);
void event_problem(struct request *r, const struct problem *p); /* whole, in r->event */
void event_start(struct request *r);                            /* make r->head, once */

/* Begin an event about what the choice has to write, or a whole answer: `field` from the second on is
 * repeated for each choice up to event_choice_closes. */
void event_of_part(struct request *r, struct choice *c, event_field *const *field, bool with_prompt);
void event_of_answer(struct request *r, event_field *const *field, bool with_prompt);

/* Fields of events and of answers */
event_field event_head, event_answer_text, event_finish_reason, event_stop_reason, event_token_ids,
            event_prompt_ids, event_prompt_text, event_prompt_logprobs;
/* of events: the end of a choice and of its event; of an event without one; the usage of all choices; how
 * much of a prompt is computed, and the event's end */
event_field event_part_closes, event_closes, event_usage, event_progress;
/* of answers */
event_field event_choice_closes, event_next_choice, event_answer_usage, event_answer_closes;

/* Pieces of fields */
#define PUT(o, literal) out_bytes(o, literal, sizeof(literal) - 1)
#define EVENT_IDS 512                  /* most entries of a list in a piece */

bool event_text(struct request *r, const char *s, size_t n); /* a piece of a string, without its quotes */
void event_choice_opens(struct request *r);                  /* {"index":0 */
void event_usage_object(struct request *r);                  /* "usage":{..} of an answer */
/* ,"usage":{.. without its last brace, if usage is wanted in each event; else returns false. */
bool event_usage_so_far(struct request *r, uint32_t prompt, int64_t completion);
const struct prompt *event_prompt(const struct request *r);  /* the prompt that the event is about */

/* A token in log-probabilities: its text; its name in quotes; itself and the other alternatives, most
 * likely first, and their number. */
const char *event_piece(const struct request *r, int32_t id, size_t *n);
void event_token_name(const struct request *r, struct out *o, int32_t id);
int  event_entries(const struct score *p, struct sr_pair e[SR_TOP_MAX + 1]);
/* {"token":..,"logprob":..,"bytes":[..] of a chat, without its last brace. */
void event_entry(const struct request *r, struct out *o, struct sr_pair e);
double event_logprob(float v);         /* as vLLM writes it: never below -9999 */

#endif
