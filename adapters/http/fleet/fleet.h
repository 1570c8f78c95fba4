/* fleet.h - the daemons that serve one model, and which of them serves a request.
 *
 * A model has one daemon, or --data-parallel-size of them: replicas with the same arguments.  A fleet has a
 * connection to each (engine.h) and reads the stats page of each.  Who submits a request asks fleet_choose()
 * for a daemon and then uses engine.h with it.  When that daemon goes, or its page says that it drains,
 * another one gets the request.  Belongs to the loop's thread.
 */
#ifndef FLEET_H
#define FLEET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "adapters/http/queue.h"
#include "core/instance/config.h"
#include "core/instance/stats.h"
#include "engine.h"

struct fetch;
struct fleet;
struct known;
struct workers;

#define FLEET_MAX 64                   /* most daemons of a model */

/* Choices of all adapter processes, in memory that they share. */
struct fleet_counters {
	_Atomic uint64_t woken;            /* times that a request started a daemon that had stopped when idle */
	_Atomic uint64_t n, ns;            /* choices, and the time that they took */
	_Atomic uint64_t cached[FLEET_MAX]; /* prompt tokens that a chosen daemon seemed to have cached */
};

/* One daemon. */
struct replica {
	struct engine *engine;
	char run_dir[256];
	const struct stats_page *page;     /* NULL: there is none */
	bool silent;                       /* it hangs, and the log says so */
	uint64_t progress, progress_at;    /* of its page; progress_at: when it last changed */
	uint64_t read_at;                  /* when the page was last read, */
	uint64_t sent;                     /* and what had been sent by then */
	struct workers *workers;
	uint64_t epoch;                    /* of the daemon to which we are or were connected; 0: not known */
	struct known *known;               /* what it has cached; NULL: it is the only one */
	struct fetch *fetch;               /* its prefix page is being asked for */
};

/* c: socket and name are made here, for each daemon.  0, or -errno and one sentence. */
int  fleet_create(struct fleet **out, struct io *io, struct workers *w, const struct config *cfg,
                  const struct engine_config *c, struct fleet_counters *n, int process, char *err,
                  size_t errlen);
void fleet_destroy(struct fleet *f);      /* after workers_destroy */

int  fleet_n(const struct fleet *f);
const struct replica *fleet_replica(const struct fleet *f, int i); /* 0 .. fleet_n() - 1 */

/* The daemon that is to serve *q; never NULL.  With one daemon it is that one, connected or not.  Of several
 * it is the one that will answer first (choose.h), of those that are connected, ready and have room for the
 * request's tenant.  If there is none, it is the first that is connected, or the first. */
struct engine *fleet_choose(struct fleet *f, const struct sr_request *q);

const struct sr_model_info *fleet_model(const struct fleet *f); /* of the first that is connected, or NULL */
bool fleet_wrong_model(const struct fleet *f); /* one is there, but has another vocabulary */
bool fleet_behind(const struct fleet *f);      /* as engine_behind(), of any */
unsigned fleet_room(const struct fleet *f, uint64_t tenant); /* of all together */
void fleet_doing(struct fleet *f, int what, int by);

/* What queue_check() says of the daemon where the most may wait, and after how many seconds to retry. */
enum queue_limit fleet_queue(struct fleet *f, uint64_t tenant, uint64_t n, uint64_t tokens, int *retry_after);

void fleet_look(struct fleet *f);              /* at all stats pages; once a second it does so itself */
void fleet_stay(struct fleet *f);              /* we end, too: daemons that drain keep what they have */
/* One daemon is ready, and idle or making progress. */
bool fleet_healthy(struct fleet *f);
bool fleet_ready(const struct fleet *f, int i); /* this one is */
bool fleet_complete(struct fleet *f);          /* all are */
bool fleet_slow(const struct fleet *f);        /* one listens, but did not answer in time */

#endif
