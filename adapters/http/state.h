/* state.h - the inside of struct api: what the files behind api.h share. */
#ifndef STATE_H
#define STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "api.h"
#include "auth.h"
#include "core/config.h"
#include "core/locate.h"
#include "core/stats.h"
#include "engine.h"
#include "openai.h"
#include "origin.h"
#include "shared.h"
#include "worker.h"

struct request;

struct api {
	const struct config *cfg;
	struct located model;
	struct io *io;
	struct api_shared *shared;
	struct conn_app app, metrics_app;    /* of the main port, of --metrics-port */
	bool draining;

	struct sr_text *text;
	struct template *chat;               /* --chat-template, or NULL */
	struct ask_limits limits;            /* all but what the daemon says */
	const char *name[CONFIG_LIST];
	char fingerprint[48];

	struct workers *workers;
	struct engine *engine;
	struct auth *auth;
	struct hosts *hosts;                 /* NULL = any Host */
	struct cors *cors;

	char run_dir[256];
	const struct stats_page *page;       /* the daemon's, or NULL */
	uint64_t progress, progress_at;      /* when it was last seen to change */
	struct io_timer watch;               /* looks once a second */
	struct out metrics;                  /* the page as it was written last */
	uint64_t metrics_at;                 /* and when */

	struct request *requests;            /* all alive */
	unsigned n_requests;
	int64_t scores;                      /* bytes of log-probabilities that requests hold */
};

/* What is known of a request from its head on until its answer has left: the exchange's ctx. */
struct asked {
	int route;                           /* index of routes.c; past the last: no such path */
	bool preflight, allowed;             /* CORS asks, no client of ours; and may */
	struct auth_right right;             /* of its key */
	void (*gone)(void *owner);           /* NULL, or hears that the client left */
	void *owner;
	char lines[];                        /* header lines of the answer */
};

#define JSON_TYPE "application/json"
#define PREPARE_HERE 4096                    /* bytes of body that are prepared on the loop */

/* The limits of this moment; false: the daemon is away and never was there. */
bool api_limits(const struct api *a, struct ask_limits *l);
void api_problem(struct exchange *x, const struct problem *p, const char *extra);
bool api_healthy(struct api *a);
void api_look(struct api *a);                /* at the daemon's stats page */

/* tokenize.c */
void tokenize_start(struct api *a, struct exchange *x, enum ask_kind kind, uint64_t tenant,
                    const char *extra);
/* metrics.c */
void metrics_write(struct api *a, struct out *o);
void metrics_request_done(struct api *a, int route, int status, uint64_t ns, size_t in, size_t out);
void metrics_orca(struct api *a, bool json, char *line, size_t cap);
/* routes.c */
/* From now on `owner` answers x, and gone(owner) is called if the client leaves before that. */
void asked_by(struct exchange *x, void (*gone)(void *owner), void *owner);
const char *api_route_name(int route);       /* NULL past the last */
const char *api_route_method(int route);
bool api_route_counted(int route);

#endif
