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
#include "conn.h"
#include "openai.h"
#include "worker.h"

struct api;

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
	int depth;                     /* > 0: in use up the stack, free later */

	struct stops stops;
	struct choice *choice;         /* [n_choices] */
	int n_choices, n_ended;
	struct auth_right right;       /* of its key */
	uint64_t salt;
	uint8_t trace_id[16], span_id[8];
	int64_t created;
	char header_id[ASK_ID_BYTES + 1]; /* X-Request-Id, or "" */
	char id[ASK_ID_BYTES + 16];    /* chatcmpl-.. */
	const char *fingerprint, *model;
	bool details;                  /* usage tells cached tokens */
	struct out head, event;        /* a chunk up to its choices; scratch */
	struct request *next, **link;  /* among the api's */
};

/* Takes an exchange: answers it sooner or later.  id: from a header, or NULL. */
void request_start(struct api *a, struct exchange *x, enum ask_kind kind, const struct http_str *id,
                   const struct auth_right *right, const char *extra);
void request_gone(void *owner);                             /* a struct request */
/* What the engine tells of a choice. */
void request_token(void *choice_owner, const struct sr_token *t);
void request_end(void *choice_owner, int finish, const struct sr_token *t);

/* events.c: the bytes.  Each sets r->event. */
void event_head(struct request *r);                         /* r->head, once */
void event_role(struct request *r, int index);
void event_echo(struct request *r, int index);
void event_chunk(struct request *r, struct choice *c);      /* what has come since the last one */
void event_usage(struct request *r);
void event_problem(struct request *r, const struct problem *p);
void answer(struct request *r);                             /* the whole, not streamed */
const char *finish_name(enum choice_finish f);

#endif
