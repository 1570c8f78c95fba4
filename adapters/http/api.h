/* api.h - the meaning of HTTP requests: routes, the OpenAI API with vLLM's extensions, metrics.
 *
 * One struct api per adapter process, on that process's io loop and thread.  main.c makes the
 * shared counters before it forks, one api in each process, and gives api_app() to the server
 * of conn.h.  The model's text side is opened here; the daemon need not be there: until it
 * is, requests are answered with 503, and a timer looks for it.
 *
 *	api_shared_create -> fork -> io_create -> api_create -> server_create(.., api_app(a), ..)
 *	SIGHUP: api_reload (the API key file).  SIGTERM: api_drain, then wait for api_idle.
 */
#ifndef API_H
#define API_H

#include <stdbool.h>
#include <stddef.h>

#include "conn.h"

struct api;
struct api_shared;      /* counters of all adapter processes of this instance, see shared.h */
struct config;
struct io;
struct located;

struct api_config {
	const struct config *cfg;       /* must outlive the api, as the next two */
	const struct located *model;
	struct api_shared *shared;
	int index;                      /* which adapter process, 0 .. api_server_count-1 */
};

/* In MAP_SHARED memory, zeroed; NULL if there is none to be had. */
struct api_shared *api_shared_create(void);
void api_shared_destroy(struct api_shared *s);

/* 0, or -errno and one sentence: the tokenizer, the chat template or the key file are wrong. */
int  api_create(struct api **out, const struct api_config *c, struct io *io, char *err, size_t errlen);
const struct conn_app *api_app(struct api *a);
const struct conn_app *api_metrics_app(struct api *a);  /* for --metrics-port */
void api_drain(struct api *a);          /* answer nothing new but status routes; /health says 503 */
bool api_idle(const struct api *a);     /* no request under way */
int  api_reload(struct api *a, char *err, size_t errlen); /* a bad key file leaves the old keys */
void api_destroy(struct api *a);        /* after server_destroy */

#endif
