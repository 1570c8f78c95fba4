/* fleet.c - see fleet.h. */
#include "fleet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/http/worker.h"
#include "core/instance/log.h"
#include "choose.h"
#include "known.h"

#define STUCK_NS (5 * 1000000000ull)         /* not ready after this time with work but no progress */
#define SILENT_NS (2 * 1000000000ull)        /* not chosen after this time with work but no sign of life */
#define LOOK_NS  1000000000ull
#define PULSE_NS 5000000ull                  /* pages are read so often while requests are under way */
#define FRESH_NS 100000000ull                /* and before a choice, if that is longer ago */
#define RATE     10000.0                     /* prompt tokens per second, until one was computed */

_Static_assert(KNOWN_DAEMONS >= FLEET_MAX, "all are asked");

struct fleet {
	const struct config *cfg;
	struct io *io;
	struct io_timer watch;               /* calls fleet_look() once a second */
	struct io_timer pulse;               /* reads the pages, since that costs more than choosing */
	bool pulses;                         /* it is set */
	int room;                            /* replicas that are allocated */
	int n, turn;                         /* turn: where the next choice begins to look */
	struct fleet_counters *count;
	struct known_names names;            /* of the prompt that is being placed */
	bool stays;                          /* what daemons have may end there */
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

static void tell_silent(struct replica *r, int i);

void fleet_look(struct fleet *f)
{
	for (int i = 0; i < f->n; i++) {
		look(&f->replica[i]);
		tell_silent(&f->replica[i], i);
		if (!f->stays && f->replica[i].page && !strcmp(f->replica[i].page->state, "draining"))
			engine_leave(f->replica[i].engine);
	}
}

void fleet_stay(struct fleet *f)
{
	if (f)
		f->stays = true;
}

static void on_watch(struct io_timer *t)
{
	struct fleet *f = t->ctx;

	fleet_look(f);
	io_timer_set(f->io, t, io_now() + LOOK_NS);
}

/* Has it work, and makes no turn?  It is stopped, or hangs. */
static bool silent(const struct replica *r, uint64_t now)
{
	return r->page && (r->page->busy_since_ns || engine_live(r->engine)) &&
	       now > r->page->alive_ns + SILENT_NS && now > engine_since(r->engine) + SILENT_NS;
}

static void tell_silent(struct replica *r, int i)
{
	const bool now = engine_up(r->engine) && silent(r, io_now());

	if (now && !r->silent)
		log_warn("daemon %d has made no turn for %.0f s: it gets no new requests", i,
		         (double)SILENT_NS / 1e9);
	else if (!now && r->silent)
		log_info("daemon %d makes turns again, or is gone", i);
	r->silent = now;
}

static bool ready(const struct replica *r, uint64_t now)
{
	uint64_t since;

	if (engine_rests(r->engine))
		return true;                  /* a request starts it */
	if (!r->page || !engine_up(r->engine) || !r->page->epoch || strcmp(r->page->state, "ready"))
		return false;
	if (silent(r, now))
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

bool fleet_slow(const struct fleet *f)
{
	for (int i = 0; i < f->n; i++)
		if (engine_slow(f->replica[i].engine))
			return true;
	return false;
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

static void refresh(struct replica *r, uint64_t now, uint64_t age)
{
	if (!r->page || now - r->read_at < age)
		return;
	stats_read(r->page);
	r->read_at = now;
	r->sent = engine_work(r->engine).sent;
}

static void on_pulse(struct io_timer *t)
{
	struct fleet *f = t->ctx;
	uint64_t now = io_now();

	f->pulses = false;
	for (int i = 0; i < f->n; i++) {
		refresh(&f->replica[i], now, 0);
		f->pulses |= engine_live(f->replica[i].engine) > 0;
	}
	if (f->pulses)
		io_timer_set(f->io, t, now + PULSE_NS);
}

static double rate_of(const struct replica *r)
{
	return r->page && r->page->prompt_token_ns > 0 ? 1e9 / r->page->prompt_token_ns : 0;
}

/* The mean time that its sequences take: what one that runs still has, if their times are spread widely. */
static double left_of(const struct stats_page *p)
{
	const struct stats_histogram *h = &p->hist[HIST_INFERENCE];
	uint64_t n = 0;

	for (int i = 0; i < STATS_BUCKETS; i++)
		n += h->count[i];
	return n ? h->sum / (double)n : 1;
}

/* What is known of one daemon.  What was sent since the page was read is not in it yet. */
static void load_of(const struct replica *r, const struct sr_request *q, uint32_t answers, uint64_t now,
                    struct choose_load *l)
{
	const struct stats_page *p = r->page;
	const struct sr_model_info *m = engine_model(r->engine);
	const struct engine_work w = engine_work(r->engine);

	*l = (struct choose_load){ .rate = rate_of(r), .fresh = (double)w.fresh, .max_seqs = 1e9, .left_s = 1,
	                           .running = (double)(w.sent - r->sent) };
	l->usable = m && engine_up(r->engine) && engine_room(r->engine, q->tenant) &&
	            (!answers || m->answers == answers);
	if (!p || !p->epoch) {
		l->running = engine_live(r->engine);
		return;
	}
	if (strcmp(p->state, "ready") || (p->busy_since_ns && now > p->alive_ns + SILENT_NS))
		l->usable = false;
	if (p->waiting > w.waits)             /* other adapters' requests wait there, too */
		l->fresh += (double)p->waiting_tokens * (double)(p->waiting - w.waits) / (double)p->waiting;
	l->running += (double)p->running;
	l->waiting = (double)p->waiting;
	l->max_seqs = (double)p->max_num_seqs;
	l->left_s = left_of(p);
}

/* Requests would wait at the best daemon that runs: start one that rests, for those to come. */
static void wake_next(struct fleet *f, const struct choose_load *best)
{
	if (best->running + best->waiting + 1 <= best->max_seqs)
		return;
	for (int i = 0; i < f->n; i++) {
		struct engine *e = f->replica[i].engine;

		if (engine_rests(e))
			engine_wake(e);
		if (!engine_up(e))            /* one is starting */
			return;
	}
}

static int choose(struct fleet *f, const struct sr_request *q, uint32_t answers, uint64_t now)
{
	struct choose_load l[FLEET_MAX];
	struct known_ask ask[FLEET_MAX];
	double rate = 0;
	int best;

	for (int i = 0; i < f->n; i++) {
		struct replica *r = &f->replica[i];

		refresh(r, now, FRESH_NS);
		load_of(r, q, answers, now, &l[i]);
		ask[i] = (struct known_ask){ .known = l[i].usable ? r->known : NULL,
			.gateway = l[i].usable && engine_model(r->engine)->flags & SR_TENANTS_HEARD };
		rate = l[i].rate > rate ? l[i].rate : rate;
	}
	known_tokens(ask, f->n, q, &f->names, now);
	for (int i = 0; i < f->n; i++) {
		l[i].cached = ask[i].tokens;
		if (l[i].rate <= 0)
			l[i].rate = rate > 0 ? rate : RATE;
	}
	best = choose_best(l, f->n, q->n_prompt, f->turn);
	if (best < 0)
		return best;
	atomic_fetch_add_explicit(&f->count->cached[best], (uint64_t)l[best].cached, memory_order_relaxed);
	engine_expect(f->replica[best].engine, q->n_prompt - (uint32_t)l[best].cached);
	known_sent(&ask[best], q, &f->names, now);
	if (!f->pulses)
		io_timer_set(f->io, &f->pulse, now + PULSE_NS);
	f->pulses = true;
	if (f->cfg->stop_when_idle_s > 0)     /* little work goes to the first, so that others rest */
		wake_next(f, &l[best]);
	else
		f->turn = (best + 1) % f->n;
	return best;
}

static int choose_counted(struct fleet *f, const struct sr_request *q, uint32_t answers)
{
	const uint64_t now = io_now();
	const int i = choose(f, q, answers, now);

	atomic_fetch_add_explicit(&f->count->n, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&f->count->ns, io_now() - now, memory_order_relaxed);
	return i;
}

struct engine *fleet_choose(struct fleet *f, const struct sr_request *q)
{
	int i;

	if (f->n == 1)
		return f->replica[0].engine;
	i = choose_counted(f, q, 0);
	for (int k = 0; i < 0 && k < f->n; k++)
		if (engine_rests(f->replica[k].engine)) /* the request starts it */
			i = k;
	for (int k = 0; i < 0 && k < f->n; k++)
		if (engine_model(f->replica[k].engine)) /* or it holds requests until it is back */
			i = k;
	return f->replica[i < 0 ? 0 : i].engine;
}

/* ---- what each has cached ---- */

struct fetch {
	struct work work;                    /* first */
	struct replica *replica;             /* used on the loop's thread only; NULL: the fleet is gone */
	char run_dir[256];
	const struct prefix_page *page;
	int result;
};

static void fetch_run(struct work *w)
{
	struct fetch *t = (struct fetch *)w;

	t->result = known_fetch(&t->page, t->run_dir);
}

static void fetch_done(struct work *w)
{
	struct fetch *t = (struct fetch *)w;

	if (t->replica) {
		t->replica->fetch = NULL;
		known_renew(t->replica->known, t->result < 0 ? NULL : t->page);
	} else if (t->result == 0) {
		prefix_close(t->page);
	}
	free(t);
}

/* A daemon has connected: nothing counts as cached there until its new page is here. */
static void on_connected(void *ctx)
{
	struct replica *r = ctx;
	struct fetch *t;

	look(r);
	r->epoch = r->page ? r->page->epoch : 0;
	if (!r->known || r->fetch)
		return;
	known_renew(r->known, NULL);
	t = calloc(1, sizeof(*t));
	if (!t)
		return;
	t->work = (struct work){ .run = fetch_run, .done = fetch_done };
	t->replica = r;
	t->result = -ECONNABORTED;           /* stays if it comes back before a worker ran it */
	memcpy(t->run_dir, r->run_dir, sizeof(t->run_dir));
	r->fetch = t;                        /* first: it may be done when workers_give returns */
	if (workers_give(r->workers, &t->work) < 0) {
		r->fetch = NULL;
		free(t);
	}
}

/* The page is still that of the daemon that died: its successor takes longer to start. */
static const uint64_t *ran(void *ctx, int *n)
{
	struct replica *r = ctx;

	if (!r->page || !r->epoch || r->page->epoch != r->epoch || (*n = stats_read_ran(r->page)) < 0)
		return NULL;
	return r->page->ran;
}

/* A daemon went or goes: which one is to have its request?  NULL: none can take it now. */
static struct engine *elsewhere(void *ctx, const struct engine *from, const struct sr_request *q,
                                uint32_t answers)
{
	struct fleet *f = ctx;
	const int i = choose_counted(f, q, answers);
	struct engine *e = i < 0 ? NULL : f->replica[i].engine;

	return e != from ? e : NULL;
}

static bool other(void *ctx, const struct engine *from, uint32_t answers)
{
	struct fleet *f = ctx;

	for (int i = 0; i < f->n; i++) {
		const struct replica *r = &f->replica[i];

		if (r->engine != from && engine_up(r->engine) && (!r->page || !strcmp(r->page->state, "ready")) &&
		    (!answers || engine_model(r->engine)->answers == answers))
			return true;
	}
	return false;
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
		if (f->n > 1)
			refresh(r, io_now(), FRESH_NS);
		else if (r->page)
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
	ec.connected = on_connected;
	ec.replica = r;
	ec.ran = ran;
	ec.rests = f->cfg->stop_when_idle_s > 0;
	ec.woken = f->count ? &f->count->woken : NULL;
	r->workers = w;
	if (config_replicas(f->cfg) > 1 && (rc = known_create(&r->known)) < 0) {
		snprintf(err, errlen, "The API cannot be started: %s.", strerror(-rc));
		return rc;
	}
	ec.elsewhere = config_replicas(f->cfg) > 1 ? elsewhere : NULL;
	ec.other = config_replicas(f->cfg) > 1 ? other : NULL;
	ec.fleet = f;
	snprintf(ec.name, sizeof(ec.name), "slipring-http %d", process);
	rc = engine_create(&r->engine, f->io, w, &ec);
	if (rc < 0)
		snprintf(err, errlen, "The API cannot be started: %s.", strerror(-rc));
	else
		f->n++;
	return rc;
}

int fleet_create(struct fleet **out, struct io *io, struct workers *w, const struct config *cfg,
                 const struct engine_config *c, struct fleet_counters *count, int process, char *err,
                 size_t errlen)
{
	int n = config_replicas(cfg), rc = 0;
	struct fleet *f = calloc(1, sizeof(*f) + (size_t)n * sizeof(f->replica[0]));

	*out = f;
	if (!f) {
		snprintf(err, errlen, "The API cannot be started: %s.", strerror(ENOMEM));
		return -ENOMEM;
	}
	f->cfg = cfg;
	f->room = n;
	f->count = count;
	f->io = io;
	f->watch = (struct io_timer){ .fn = on_watch, .ctx = f };
	f->pulse = (struct io_timer){ .fn = on_pulse, .ctx = f };
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
	io_timer_del(f->io, &f->pulse);
	for (int i = 0; i < f->n || (i < f->room && f->replica[i].known); i++) {
		engine_destroy(f->replica[i].engine);
		known_destroy(f->replica[i].known);
		if (f->replica[i].fetch)
			f->replica[i].fetch->replica = NULL;
		if (f->replica[i].page)
			stats_close(f->replica[i].page);
	}
	free(f);
}
