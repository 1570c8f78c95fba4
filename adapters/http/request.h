/* request.h - a completion from its JSON to its last byte.
 *
 *	            parsed            first byte
 *	PREPARING ─────────► RUNNING ───────────► ANSWERING ──────────────────► OVER
 *	    │                   │                     │ an error amid an event     ▲ ▲
 *	    │                   │                     └───────► FAILING ───────────┘ │
 *	    └───────────────────┴── an error, or an answer sent with its first byte ─┘
 *	any state ── the client is gone ──► OVER
 *
 * PREPARING is on a worker if the request is long or its grammar is not compiled yet: the loop then changes
 * only `x` and `state`, by request_gone(), and the worker reads neither.  A request that is OVER is
 * freed when nobody holds it.
 *
 * Owns the parsed request, the prompts and one choice per answer.  Lives on the loop's thread.
 */
#ifndef REQUEST_H
#define REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "adapters/http/gate/auth.h"
#include "choice.h"
#include "events.h"
#include "timings.h"
#include "adapters/http/agents/items.h"
#include "adapters/http/net/conn.h"
#include "adapters/http/json/openai.h"
#include "core/instance/io.h"
#include "worker.h"

struct api;
struct dialect;
struct grammar_use;
struct request;

/* Log-probabilities of a prompt's tokens.  All its answers share them, so only the first asks for them. */
struct scored { struct scores scores; bool whole; };

enum request_state {
	REQUEST_PREPARING,             /* being parsed and tokenized */
	REQUEST_RUNNING,               /* being computed; no byte of an answer has been sent */
	REQUEST_ANSWERING,             /* the head of an answer has been sent */
	REQUEST_FAILING,               /* `problem` follows the event of which a part has been sent */
	REQUEST_OVER,                  /* nothing more is sent */
};

struct request {
	struct work work;              /* must be first: work_done() casts it */
	struct api *api;
	struct exchange *x;            /* NULL: the client is gone */
	struct ask_limits limits;
	struct ask ask;
	struct problem problem;
	char *body;                    /* a copy for the worker, or NULL */
	size_t body_n;
	const struct dialect *dialect;
	enum request_state state;
	bool pulled;                   /* the loop asks for more */
	int yielded;                   /* turns without a slice, because the ring had tokens */
	int holds;                     /* callers that use it, and the worker that has it */

	struct grammar_use *grammar;   /* what its answers keep to, or NULL */
	struct stops stops;
	struct choice *choice;         /* [n_choices] */
	int n_choices, n_running;      /* n_running: that have not ended */
	struct scored *scored;         /* [n_prompts], or NULL: no prompt's log-probabilities are wanted */
	struct choice *due, **due_end; /* choices with something to write, oldest first */
	int n_begun;                   /* events of dialect.begin */
	struct items items;            /* dialects of agents: what the answer has so far */
	uint64_t sent_at;              /* when the last event was sent */
	struct io_timer beat;          /* set while a stream may be silent */
	bool usage_begun;
	int64_t kept;                  /* bytes that exchange_keep() was told of */
	int rank;                      /* of the daemon that the client chose; -1: fleet_choose() does */
	struct auth_right right;       /* what its key allows */
	uint64_t reserved;             /* tokens taken of its key's for its answers */
	uint32_t answer_most;          /* tokens of an answer without max_tokens, by `tpm`; 0: no bound */
	uint64_t salt;
	uint64_t seed;                 /* of its first answer; drawn here if the request gives none */
	uint8_t trace_id[16], span_id[8];
	int64_t created;
	char header_id[ASK_ID_BYTES + 1]; /* X-Request-Id, or "" */
	char id[ASK_ID_BYTES + 16];    /* chatcmpl-.. */
	const char *fingerprint, *model;
	bool details;                  /* usage shows cached tokens */
	struct out head, event;        /* a chunk up to its choices; the slice being sent */
	struct pen pen;
	struct timings timings;        /* of the answers that have ended */
	struct choice *computed;       /* whose prompt's progress is to be told, or NULL */
	struct request *next, **link;  /* in the api's list */
};

/* Takes over an exchange and answers it, now or later. */
void request_start(struct api *a, struct exchange *x, const struct dialect *d);
void request_gone(void *owner);                             /* owner: a struct request */
/* tokens.c: what the engine reports of a choice. */
void request_token(void *choice_owner, const struct sr_token *t);
void request_end(void *choice_owner, int finish, const struct sr_token *t);
void request_handed(void *choice_owner, struct engine *to, uint64_t handle);

/* request.c, for tokens.c and respond.c */
extern const char request_too_many_scores[];
bool request_scores_prompt(const struct request *r, const struct choice *c); /* does it bring its prompt's? */
void request_drop_choices(struct request *r);               /* the engine has no more to do for it */
void request_hold(struct request *r);
void request_release(struct request *r);
void request_close(struct request *r);                      /* OVER, and over in the daemon, too */
void request_account(struct request *r, struct choice *c);  /* count its log-probabilities again */

/* guided/guides.c: what the answers keep to, and how long they may think. */
bool request_guided(const struct request *r);
void guides_ready(struct request *r);                       /* its grammar is compiled */
bool guides_open(struct request *r);                        /* one for each choice; false: no memory */
void guides_submitted(void *choice_owner);                  /* to the daemon, perhaps again */
void guides_drawn(void *choice_owner, int32_t id, bool last);
void guides_error(struct request *r, int e);                /* e: -errno of a guide */

/* respond.c: what is sent, and when. */
void request_error(struct request *r, const struct problem *p); /* instead of the rest of the answer */
void request_reject(struct request *r, const char *why);    /* 503 and counted as rejected */
void request_tell(struct request *r, struct choice *c);     /* in a stream: c has something to write */
void request_computed(struct request *r, struct choice *c);     /* in a stream: a part of its prompt */
void request_begins(struct request *r);                     /* accepted: a stream may begin before a token */
void request_answer(struct request *r);                     /* not streamed: all choices have ended */

#endif
