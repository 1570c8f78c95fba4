/* request.h - a completion from its JSON to its last byte.
 *
 *	NEW ──► PREPARING (here if short, else on a worker) ──► RUNNING ──► over: reply or end
 *	                  │ a problem: 4xx                      │ client gone, daemon gone
 *
 * Owns the parsed request, the prompts and one choice per answer.  Lives on the loop's thread.  While a
 * worker prepares it, the loop touches only `x`, which request_gone() sets to NULL.
 */
#ifndef REQUEST_H
#define REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "auth.h"
#include "choice.h"
#include "adapters/http/net/conn.h"
#include "adapters/http/json/openai.h"
#include "worker.h"

struct api;
struct request;

typedef bool event_part(struct request *r); /* writes a piece of r->event; true: the part is whole */

/* How much of an event or an answer is written; events.c. */
struct pen {
	event_part *const *part;       /* the part being written; NULL ends the list */
	event_part *const *next_choice; /* a whole answer: the next choice begins here again */
	struct choice *c;              /* the choice it is about, or NULL */
	int index;                     /* of a choice, where the event has nothing else of it */
	bool first, with_prompt, ended; /* the choice's first event; has the prompt; has the end */
	size_t n_text, n_lps, n_ids;   /* bytes of the choice that the event covers */
	int64_t n_counted;             /* tokens in usage */
	size_t at;                     /* bytes or entries of the part that are done */
	bool some, in_answer;          /* a list has begun; the prompt's scores are done */
	uint32_t offset;
	struct sr_detok detok;
};

/* Log-probabilities of a prompt's tokens.  All its answers share them, so only the first asks for them. */
struct scored { struct lps lps; bool whole; };

struct request {
	struct work work;              /* must be first: work_done() casts it */
	struct api *api;
	struct exchange *x;            /* NULL: the client is gone */
	struct ask_limits limits;
	struct ask ask;
	struct problem problem;
	char *body;                    /* a copy for the worker, or NULL */
	size_t body_n;
	enum ask_kind kind;
	bool preparing, begun, over;
	bool writing, partial;         /* pen has an event; a part of it has been sent */
	bool pulled, failing;          /* the loop asks for more; `problem` follows the event */
	int yielded;                   /* turns without a slice, because the ring had tokens */
	int depth;                     /* > 0: a caller uses it, free later */

	struct stops stops;
	struct choice *choice;         /* [n_choices] */
	int n_choices, n_ended;
	struct scored *scored;         /* [n_prompts], or NULL: no prompt's log-probabilities are wanted */
	struct choice *due, **due_end; /* choices with something to write, oldest first */
	int n_told, n_repeated;        /* choices of a chat's stream with role, with echo written */
	bool usage_told;
	int64_t held;                  /* bytes of log-probabilities that api.scores counts */
	struct auth_right right;       /* what its key allows */
	uint64_t salt;
	uint8_t trace_id[16], span_id[8];
	int64_t created;
	char header_id[ASK_ID_BYTES + 1]; /* X-Request-Id, or "" */
	char id[ASK_ID_BYTES + 16];    /* chatcmpl-.. */
	const char *fingerprint, *model;
	bool details;                  /* usage shows cached tokens */
	struct out head, event;        /* a chunk up to its choices; the slice being sent */
	struct pen pen;
	struct request *next, **link;  /* in the api's list */
};

/* Takes over an exchange and answers it, now or later. */
void request_start(struct api *a, struct exchange *x, enum ask_kind kind);
void request_gone(void *owner);                             /* owner: a struct request */
/* What the engine reports of a choice. */
void request_token(void *choice_owner, const struct sr_token *t);
void request_end(void *choice_owner, int finish, const struct sr_token *t);

/* request.c, for respond.c */
void request_hold(struct request *r);
void request_release(struct request *r);
void request_over(struct request *r);                       /* nothing more is sent */
void request_account(struct request *r, struct choice *c);  /* count its log-probabilities again */

/* respond.c: what is sent, and when. */
void request_cut(struct request *r);                        /* drop the rest of an answer that has begun */
void request_fail(struct request *r, const struct problem *p);
void request_unavailable(struct request *r, const char *why);
void request_tell(struct request *r, struct choice *c);     /* in a stream: c has something to write */
void request_answer(struct request *r);                     /* not streamed: all choices have ended */

/* events.c: the bytes.  event_write() makes the next slice of an event in r->event; true: the last slice.
 * The other functions begin an event. */
bool event_write(struct request *r);
void event_role(struct request *r, int index);
void event_echo(struct request *r, int index);
void event_chunk(struct request *r, struct choice *c);      /* what has come since the last chunk */
void event_usage(struct request *r);
void event_head(struct request *r);                         /* make r->head, once */
void event_problem(struct request *r, const struct problem *p); /* whole, in r->event */
void answer(struct request *r);                             /* not streamed: the whole answer */

#endif
