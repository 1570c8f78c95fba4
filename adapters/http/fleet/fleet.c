/* fleet.c - see fleet.h. */
#include "fleet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STUCK_NS (5 * 1000000000ull)         /* not ready after this time with work but no progress */
#define LOOK_NS  1000000000ull

struct fleet {
	const struct config *cfg;
	struct io *io;
	struct io_timer watch;               /* calls fleet_look() once a second */
	int n, turn;                         /* turn: where the next choice begins to look */
	struct replica replica[];
};

/* ---- the stats pages ---- */

static void look(struct replica *r)
{
	uint64_t progress;

	if (r->page && (stats_read(r->page) < 0 || stats_stale(r->page, r->run_dir))) {
		stats_close(r->page);
		r->page = NULL;
	}
	if (!r->page && stats_open(&r->page, r->run_dir) < 0)
		r->page = NULL;
	if (!r->page)
		return;
	progress = r->page->progress + r->page->count.steps;
	if (progress != r->progress || !r->progress_at) {
		r->progress = progress;
		r->progress_at = io_now();
	}
}

void fleet_look(struct fleet *f)
{
	for (int i = 0; i < f->n; i++)
		look(&f->replica[i]);
}

static void on_watch(struct io_timer *t)
{
	struct fleet *f = t->ctx;

	fleet_look(f);
	io_timer_set(f->io, t, io_now() + LOOK_NS);
}

static bool ready(const struct replica *r, uint64_t now)
{
	uint64_t since;

	if (!r->page || !engine_model(r->engine) || !r->page->epoch || strcmp(r->page->state, "ready"))
		return false;
	since = r->page->busy_since_ns;
	if (!since && !engine_live(r->engine))
		return true;
	if (r->progress_at > since)
		since = r->progress_at;
	if (engine_since(r->engine) > since)  /* the page may not count yet what we sent */
		since = engine_since(r->engine);
	return now < since + STUCK_NS;
}

bool fleet_ready(const struct fleet *f, int i) { return ready(&f->replica[i], io_now()); }

bool fleet_complete(struct fleet *f)
{
	fleet_look(f);
	for (int i = 0; i < f->n; i++)
		if (!fleet_ready(f, i))
			return false;
	return true;
}

bool fleet_healthy(struct fleet *f)
{
	uint64_t now = io_now();

	fleet_look(f);
	for (int i = 0; i < f->n; i++)
		if (ready(&f->replica[i], now))
			return true;
	return false;
}

/* ---- the choice ---- */

struct engine *fleet_choose(struct fleet *f, const struct sr_request *q)
{
	struct engine *best = NULL;
	unsigned least = 0;
	int at = 0;

	if (f->n == 1)
		return f->replica[0].engine;
	for (int k = 0; k < f->n; k++) {
		int i = (f->turn + k) % f->n;
		struct engine *e = f->replica[i].engine;
		const struct queue_load l = engine_load(e, q->tenant);

		if (!engine_room(e, q->tenant) || (best && l.requests >= least))
			continue;
		best = e;
		least = (unsigned)l.requests;
		at = i;
	}
	f->turn = (at + 1) % f->n;
	return best ? best : f->replica[0].engine;
}

/* ---- all of them ---- */

int fleet_n(const struct fleet *f) { return f->n; }
const struct replica *fleet_replica(const struct fleet *f, int i) { return &f->replica[i]; }

const struct sr_model_info *fleet_model(const struct fleet *f)
{
	const struct sr_model_info *m = NULL;

	for (int i = 0; i < f->n && !m; i++)
		m = engine_model(f->replica[i].engine);
	return m;
}

bool fleet_wrong_model(const struct fleet *f)
{
	bool wrong = false;

	for (int i = 0; i < f->n; i++)
		wrong |= engine_wrong_model(f->replica[i].engine);
	return wrong;
}

bool fleet_behind(const struct fleet *f)
{
	for (int i = 0; i < f->n; i++)
		if (engine_behind(f->replica[i].engine))
			return true;
	return false;
}

unsigned fleet_room(const struct fleet *f, uint64_t tenant)
{
	unsigned n = 0;

	for (int i = 0; i < f->n; i++)
		n += engine_room(f->replica[i].engine, tenant);
	return n;
}

void fleet_doing(struct fleet *f, int what, int by)
{
	for (int i = 0; i < f->n; i++)
		engine_doing(f->replica[i].engine, what, by);
}

enum queue_limit fleet_queue(struct fleet *f, uint64_t tenant, uint64_t n, uint64_t tokens, int *retry_after)
{
	enum queue_limit limit = QUEUE_ROOM;

	*retry_after = 0;
	for (int i = 0; i < f->n; i++) {
		struct replica *r = &f->replica[i];
		const struct queue_load load = engine_load(r->engine, tenant);
		int after;

		if (f->n > 1 && !engine_model(r->engine))
			continue;
		if (r->page)
			stats_read(r->page);
		limit = queue_check(f->cfg, r->page, &load, n, tokens);
		if (limit == QUEUE_ROOM)
			return limit;
		after = queue_retry_after(r->page, &load);
		if (!*retry_after || after < *retry_after)
			*retry_after = after;
	}
	return limit;
}

/* ---- life ---- */

static int open_replica(struct fleet *f, struct workers *w, const struct engine_config *c, int process,
                        char *err, size_t errlen)
{
	struct replica *r = &f->replica[f->n];
	struct engine_config ec = *c;
	char socket[256], name[CONFIG_INSTANCE];
	struct config cfg;
	int rc;

	config_replica(f->cfg, f->n, &cfg, name);
	rc = config_socket(&cfg, socket, sizeof(socket));

	if (!rc)
		rc = config_find_run_dir(cfg.instance, r->run_dir, sizeof(r->run_dir));
	if (rc < 0) {
		snprintf(err, errlen, "The daemon of --instance %s cannot be found: %s.", cfg.instance,
		         config_run_dir_why(rc));
		return rc;
	}
	ec.socket = socket;
	snprintf(ec.name, sizeof(ec.name), "slipring-http %d", process);
	rc = engine_create(&r->engine, f->io, w, &ec);
	if (rc < 0)
		snprintf(err, errlen, "The API cannot be started: %s.", strerror(-rc));
	else
		f->n++;
	return rc;
}

int fleet_create(struct fleet **out, struct io *io, struct workers *w, const struct config *cfg,
                 const struct engine_config *c, int process, char *err, size_t errlen)
{
	int n = config_replicas(cfg), rc = 0;
	struct fleet *f = calloc(1, sizeof(*f) + (size_t)n * sizeof(f->replica[0]));

	*out = f;
	if (!f) {
		snprintf(err, errlen, "The API cannot be started: %s.", strerror(ENOMEM));
		return -ENOMEM;
	}
	f->cfg = cfg;
	f->io = io;
	f->watch = (struct io_timer){ .fn = on_watch, .ctx = f };
	while (!rc && f->n < n)
		rc = open_replica(f, w, c, process, err, errlen);
	if (rc < 0) {
		fleet_destroy(f);
		*out = NULL;
		return rc;
	}
	on_watch(&f->watch);
	return 0;
}

void fleet_destroy(struct fleet *f)
{
	if (!f)
		return;
	io_timer_del(f->io, &f->watch);
	for (int i = 0; i < f->n; i++) {
		engine_destroy(f->replica[i].engine);
		if (f->replica[i].page)
			stats_close(f->replica[i].page);
	}
	free(f);
}
