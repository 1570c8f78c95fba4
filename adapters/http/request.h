/* request.h - a completion from its JSON to its last byte.
 *
 *	NEW ──► PREPARING (here if short, else on a worker) ──► RUNNING ──► over: reply or end
 *	                  │ a problem: 4xx                      │ peer gone, daemon gone
 *
 * Owns the parsed request, the prompts and one choice per answer.  Lives on the loop's thread;
 * while a worker prepares it, nobody else touches it but for `x`, which gone() takes away.
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

/* How far the writing of an event or an answer is; events.c. */
struct pen {
	event_part *const *part;       /* the one being written, of a list that NULL ends */
	event_part *const *next_choice; /* a whole answer: from here on again for the next choice */
	struct choice *c;              /* whose, or NULL */
	int index;                     /* of a choice, where that is all that is told */
	bool first, with_prompt, ended; /* its first event; the prompt is given out; so is the end */
	size_t n_text, n_lps, n_ids;   /* bytes of what the choice has that are told */
	int64_t n_counted;             /* tokens */
	size_t at;                     /* in the part: bytes or entries done; */
	bool some, in_answer;          /* a list has begun; the prompt's scores are done */
	uint32_t offset;
	struct sr_detok detok;
};

/* What is known of a prompt's tokens: the same for all answers to it, so asked of its first alone. */
struct scored { struct lps lps; bool whole; };

struct request {
	struct work work;              /* first: how a worker's result finds it */
	struct api *api;
	struct exchange *x;            /* NULL: the peer is gone */
	struct ask_limits limits;
	struct ask ask;
	struct problem problem;
	char *body;                    /* a copy for the worker, or NULL */
	size_t body_n;
	enum ask_kind kind;
	char extra[1024];              /* header lines of the answer */
	bool preparing, begun, over;
	bool writing, partial;         /* pen has an event; a part of it has been sent */
	bool pulled, failing;          /* the loop asks for more; after that event `problem` is told */
	int yielded;                   /* turns in which it sent no slice, for the ring was full */
	int depth;                     /* > 0: in use up the stack, free later */

	struct stops stops;
	struct choice *choice;         /* [n_choices] */
	int n_choices, n_ended;
	struct scored *scored;         /* [n_prompts], or NULL: no prompt's log-probabilities are wanted */
	struct choice *due, **due_end; /* have something to tell, longest first */
	int n_told, n_repeated;        /* of the choices of a chat's stream: role told, echo given */
	bool usage_told;
	int64_t held;                  /* bytes of log-probabilities, as counted in the api */
	struct auth_right right;       /* of its key */
	uint64_t salt;
	uint8_t trace_id[16], span_id[8];
	int64_t created;
	char header_id[ASK_ID_BYTES + 1]; /* X-Request-Id, or "" */
	char id[ASK_ID_BYTES + 16];    /* chatcmpl-.. */
	const char *fingerprint, *model;
	bool details;                  /* usage tells cached tokens */
	struct out head, event;        /* a chunk up to its choices; the slice being sent */
	struct pen pen;
	struct request *next, **link;  /* among the api's */
};

/* Takes an exchange: answers it sooner or later.  id: from a header, or NULL. */
void request_start(struct api *a, struct exchange *x, enum ask_kind kind, const struct http_str *id,
                   const struct auth_right *right, const char *extra);
void request_gone(void *owner);                             /* a struct request */
/* What the engine tells of a choice. */
void request_token(void *choice_owner, const struct sr_token *t);
void request_end(void *choice_owner, int finish, const struct sr_token *t);

/* request.c, for respond.c */
void request_hold(struct request *r);
void request_release(struct request *r);
void request_over(struct request *r);                       /* no more is to be said */
void request_account(struct request *r, struct choice *c);  /* its log-probabilities became more or fewer */

/* respond.c: what leaves, and when. */
void request_cut(struct request *r);                        /* one that has begun: the rest is not sent */
void request_fail(struct request *r, const struct problem *p);
void request_unavailable(struct request *r, const char *why);
void request_tell(struct request *r, struct choice *c);     /* a stream: c has something to tell */
void request_answer(struct request *r);                     /* the whole, not streamed: all have ended */

/* events.c: the bytes.  These begin one; event_write makes its next slice in r->event: true, the last. */
bool event_write(struct request *r);
void event_role(struct request *r, int index);
void event_echo(struct request *r, int index);
void event_chunk(struct request *r, struct choice *c);      /* what has come since the last one */
void event_usage(struct request *r);
void event_head(struct request *r);                         /* r->head, once */
void event_problem(struct request *r, const struct problem *p); /* at once, in r->event */
void answer(struct request *r);                             /* the whole, not streamed */
const char *finish_name(enum choice_finish f);

#endif
