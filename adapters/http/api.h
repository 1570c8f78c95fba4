/* api.h - the meaning of HTTP requests: routes, the OpenAI API with vLLM's extensions, metrics.
 *
 * One struct api per adapter process and model; the first model's is the one that the functions below take.
 * All belong to the process's io loop and thread.  main.c makes the shared counters before it forks.  Each
 * process then makes its apis and gives api_app() to the server of conn.h.  They open their models' text
 * side.  They need no daemon to start: while there is none, requests are answered with 503, or held.
 *
 *	api_shared_create -> fork -> io_create -> api_create -> server_create(.., api_app(a), ..)
 *	SIGHUP: api_reload (the API key file).  SIGTERM: api_drain, then wait for api_idle.
 */
#ifndef API_H
#define API_H

#include <stdbool.h>
#include <stddef.h>

#include "adapters/http/net/conn.h"

struct api;
struct api_shared;      /* counters of all adapter processes of this instance, see shared.h */
struct config;
struct io;
struct located;

#define API_MODELS 16           /* most models of --models */

/* One model, with the settings of its line; both must outlive the api. */
struct api_model {
	const struct config *cfg;
	const struct located *model;
};

struct api_config {
	const struct api_model *model;  /* [n_models]; the settings of the server are the first one's */
	int n_models;
	struct api_shared *shared;      /* must outlive the api */
	int index;                      /* of this adapter process, 0 .. api_server_count-1 */
};

/* In MAP_SHARED memory, zeroed; NULL: no memory. */
struct api_shared *api_shared_create(void);
void api_shared_destroy(struct api_shared *s);

/* 0, or -errno and one sentence: the tokenizer, the chat template or the key file is wrong. */
int  api_create(struct api **out, const struct api_config *c, struct io *io, char *err, size_t errlen);
const struct conn_app *api_app(struct api *a);
const struct conn_app *api_metrics_app(struct api *a);  /* for --metrics-port */
void api_drain(struct api *a);          /* of new requests serve only status routes; /health is 503 */
void api_take(struct api *a);           /* take the tokens that have come, though events wait in the loop */
bool api_complete(struct api *a);       /* all daemons are ready */
bool api_healthy(struct api *a);        /* each model has a daemon that answers */
bool api_slow(const struct api *a);     /* a daemon listens, but did not answer in time */
bool api_idle(const struct api *a);     /* no request under way */
int  api_reload(struct api *a, char *err, size_t errlen); /* keeps the old keys if the key file is bad */
void api_destroy(struct api *a);        /* after server_destroy */

#endif
