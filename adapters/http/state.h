/* state.h - the contents of struct api: what the files behind api.h share. */
#ifndef STATE_H
#define STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "api.h"
#include "adapters/http/gate/auth.h"
#include "core/instance/config.h"
#include "core/models/locate.h"
#include "adapters/http/fleet/fleet.h"
#include "adapters/http/guided/grammars.h"
#include "adapters/http/json/openai.h"
#include "adapters/http/json/pooled.h"
#include "adapters/http/gate/origin.h"
#include "shared.h"
#include "worker.h"

struct dialect;
struct live;
struct pooled_call;
struct request;

struct api {
	struct api *front, *next;            /* the first model's, which is the door; the next model's */
	int number;                          /* 0 .. API_MODELS - 1 */
	const struct config *cfg;
	int index;                           /* of this adapter process */
	struct located model;
	struct io *io;
	struct api_shared *shared;
	struct conn_app app, metrics_app;    /* for the main port, for --metrics-port */
	bool draining;

	struct sr_text *text;
	struct chat_template *chat;          /* --chat-template, or NULL */
	struct calls *calls;                 /* how the model writes tool calls and thoughts */
	json_t *structured_outputs;          /* --structured-outputs-config: limits.guide_rules points into it */
	struct ask_limits limits;            /* all except those of the daemon */
	const char *name[CONFIG_LIST];
	char fingerprint[48];

	struct workers *workers;
	struct grammars *grammars;
	uint32_t *bits;                      /* [(vocab + 31) / 32] scratch for one guide */
	struct fleet *fleet;
	struct live *live;
	struct auth *auth;
	struct hosts *hosts;                 /* NULL = any Host is allowed */
	struct cors *cors;

	struct out metrics;                  /* the page of /metrics written last, */
	uint64_t metrics_at;                 /* and its time */

	unsigned dropped;                    /* what the log has said was left out: bits of enum ask_dropped */
	bool pools;                          /* answers are vectors and scores, not tokens (--runner pooling) */
	struct pooled_model pooled;
	json_t *labels;                      /* names of its classifier's labels, or NULL */
	struct pooled_call *pooled_calls;    /* the list of all live ones */
	struct request *requests;            /* the list of all live ones */
	unsigned n_requests;
};

/* What the head of a request contains, kept until its answer has been sent: the exchange's ctx. */
struct asked {
	int route;                           /* index into the table of routes.c; past the last: no such path */
	bool preflight, allowed;             /* a CORS preflight, not a request; its origin is allowed */
	struct auth_right right;             /* of its key */
	void (*gone)(void *owner);           /* NULL, or called when the client has left */
	void *owner;
	bool metered;                        /* its answer tells its key's limits */
	uint32_t under_way;                  /* answers that count for its key */
	size_t fixed;                        /* of `lines`, without those about the limits */
	char lines[];                        /* header lines of the answer */
};

#define JSON_TYPE "application/json"
#define LINES_MAX (1280 + QUOTA_LINES)       /* bytes of header lines that an answer has from its request */
#define PREPARE_HERE 4096                    /* bytes of body that are prepared on the loop */

/* The current limits; false: the daemon is away. */
bool api_limits(const struct api *a, struct ask_limits *l);
void api_problem(struct exchange *x, const struct problem *p); /* the answer to x */
/* 429: the key of x has used up a limit.  n: what it asked for, in tokens or answers. */
void api_over_quota(struct exchange *x, enum quota_refusal why, struct quota_wait wait, uint64_t n);

/* tokenize.c */
void tokenize(struct api *a, struct exchange *x);
void detokenize(struct api *a, struct exchange *x);
void count_tokens(struct api *a, struct exchange *x); /* of a completion in the route's dialect */
void render(struct api *a, struct exchange *x);      /* a completion as token ids */
void apply_template(struct api *a, struct exchange *x); /* the text of a chat's prompt */
/* pooled.c */
void pooled_embed(struct api *a, struct exchange *x);
void pooled_score(struct api *a, struct exchange *x);
void pooled_rerank(struct api *a, struct exchange *x);
void pooled_classify(struct api *a, struct exchange *x);
void pooled_plain(struct api *a, struct exchange *x);
void pooled_handed(void *owner, struct engine *to, uint64_t handle);
void pooled_vector(void *owner, int finish, const struct sr_token *t, const float *vector, uint32_t n);
void pooled_destroy(struct api *a);          /* all calls, after workers_destroy */
/* metrics.c */
void metrics_write(struct api *a, struct out *o);
void metrics_keys(const struct api *a, struct out *o); /* what each key's name has used */
void metrics_request_done(struct api *a, int route, int status, uint64_t ns, size_t in, size_t out);
void metrics_orca(struct api *a, bool json, char *line, size_t cap);
/* routes.c */
char *asked_lines(struct exchange *x);        /* header lines of the answer */
/* From now on `owner` answers x; gone(owner) is called if the client leaves before it does. */
void asked_by(struct exchange *x, void (*gone)(void *owner), void *owner);
const struct dialect *api_dialect(struct exchange *x);
const char *api_route_name(int route);       /* NULL past the last */
const char *api_route_method(int route);
bool api_route_counted(int route);

#endif
