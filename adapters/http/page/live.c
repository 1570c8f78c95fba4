/* live.c - what the daemons do, for the pages that show it: one event a second, the same for all viewers.
 *
 * Each daemon of each model has a timer.  Once a second it reads the daemon's stats page and keeps a row of
 * the past (past.h).  If somebody looks, it makes one event of the view that slipring top shows.  So 16
 * viewers cost little more than one. */
#include "page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "adapters/http/state.h"
#include "core/figures/judge.h"
#include "core/figures/view.h"
#include "past.h"

#define SECOND       1000000000ull
#define VIEWERS_MAX  16
#define VIEWERS_KEPT 4                 /* of them for those who see the clients: operators, or this machine */
#define VIEWERS_KEY  4                 /* most with one key */
#define CLIENTS_SHOWN 100              /* rows of clients in an event; the busiest */
#define STREAM_TYPE  "text/event-stream; charset=utf-8"

struct viewer {
	struct viewer *next;
	struct watched *w;
	struct exchange *x;
	uint64_t tenant;                      /* the key's; 0 without keys */
	bool sees_clients;
};

struct watched {                              /* one daemon */
	struct live *live;
	struct api *of;                       /* its model */
	int index, replica;                   /* among all; in the model's fleet */
	struct io_timer timer;
	struct past past;
	struct view *view;                    /* NULL while nobody looks */
	struct viewer *viewers;
	uint64_t away_at;                     /* since when it is away; 0: it is not */
};

struct live {
	struct api *api;
	int n_viewers, n;
	struct watched watched[];
};

/* ---- one event a second ------------------------------------------------------------------- */

static const struct replica *replica_of(const struct watched *w)
{
	return fleet_replica(w->of->fleet, w->replica);
}

static bool alive(const struct replica *r) { return r->page && r->page->epoch && engine_up(r->engine); }

/* What limited it in its last busy seconds: those of the page's bands, so that the two cannot differ. */
static json_t *verdict(const struct watched *w)
{
	const struct stats_mark none = { 0 };
	struct stats_mark sum;
	struct verdict found;
	struct figures f;
	uint32_t until;
	uint64_t from = past_lately(&w->past, &sum, &until);
	double empty;
	json_t *j;

	figures_between(&none, &sum, &f);
	empty = f.why_all > 0 ? f.why_s[WHY_EMPTY] / f.why_all : 1;
	judge_interval(&found, &w->view->now->page, &f, from);
	j = judge_json(&found);
	json_object_update_new(j, json_pack("{s:s, s:f, s:I, s:f, s:f}", "name", judge_limit(&found), "seconds",
		f.seconds, "until", (json_int_t)until, "empty_share", empty,
		"bound_share", found.bound_share[judge_bound(&found)]));
	return j;
}

static int add_bytes(const char *s, size_t n, void *out)
{
	out_bytes(out, s, n);
	return 0;
}

/* Takes j. */
static void add_json(struct out *o, json_t *j)
{
	o->failed |= !j || json_dump_callback(j, add_bytes, o, JSON_COMPACT | JSON_REAL_PRECISION(9)) < 0;
	json_decref(j);
}

static void write_event(struct out *o, const struct watched *w, bool clients)
{
	const struct view *v = w->view;
	const bool away = w->away_at || !v->now->page.ready_ns;
	json_t *j = away ?
		json_pack("{s:b, s:f, s:s}", "away", true, "away_s",
		          w->away_at ? (double)(io_now() - w->away_at) / 1e9 : 0.0, "state", v->now->page.state) :
		view_json(v, clients ? CLIENTS_SHOWN : 0);

	if (!away)
		json_object_set_new(j, "why", verdict(w));
	json_object_update_new(j, json_pack("{s:i, s:i, s:i, s:I}", "replica", w->index, "replicas", w->live->n,
	                                    "viewers", w->live->n_viewers, "at", (json_int_t)time(NULL)));
	out_str(o, "data: ");
	add_json(o, j);
	out_str(o, "\n\n");
}

static void tell_viewers(struct watched *w)
{
	struct out event[2] = { { 0 }, { 0 } };

	for (struct viewer *v = w->viewers, *next; v; v = next) {
		struct out *o = &event[v->sees_clients];

		next = v->next;
		if (!o->n)
			write_event(o, w, v->sees_clients);
		if (!o->failed)
			exchange_event(v->x, o->p, o->n);
	}
	out_free(&event[0]);
	out_free(&event[1]);
}

static void look(struct watched *w)
{
	const struct replica *r = replica_of(w);

	if (r->page && w->view)
		stats_read_all(r->page);
	else if (r->page)
		stats_read(r->page);
	if (alive(r))
		w->away_at = 0;
	else if (!w->away_at)
		w->away_at = io_now();
	if (r->page)
		past_look(&w->past, r->page, alive(r));
	if (r->page && w->view)
		view_look(w->view, r->page, alive(r));
}

static void on_second(struct io_timer *t)
{
	struct watched *w = t->ctx;

	look(w);
	tell_viewers(w);
	io_timer_set(w->live->api->io, t, io_now() + SECOND);
}

/* ---- viewers ------------------------------------------------------------------------------ */

static void viewer_forget(struct viewer *v)
{
	struct watched *w = v->w;
	struct viewer **at = &w->viewers;

	while (*at != v)
		at = &(*at)->next;
	*at = v->next;
	w->live->n_viewers--;
	if (!w->viewers) {
		view_destroy(w->view);
		w->view = NULL;
	}
	free(v);
}

static void on_gone(void *owner) { viewer_forget(owner); }

/* The daemon that "replica=2" asks for; without it the first.  NULL: there is no such one. */
static struct watched *watched_of(struct live *l, const struct http_request *r)
{
	static const char word[] = "replica=";
	const size_t from = sizeof(word) - 1;
	unsigned i = 0;

	if (r->query.n > from && r->query.n <= from + 3 && !memcmp(r->query.s, word, from))
		for (size_t k = from; k < r->query.n; k++) {
			const char c = r->query.s[k];

			i = i * 10 + (c >= '0' && c <= '9' ? (unsigned)(c - '0') : 1000);
		}
	return i < (unsigned)l->n ? &l->watched[i] : NULL;
}

/* May one more look, with this key?  One key leaves places to others; all plain viewers leave some to those
 * who operate the daemon. */
static int crowded(const struct live *l, uint64_t tenant, bool sees_clients, struct problem *p)
{
	int same = 0, plain = 0;

	for (int i = 0; i < l->n; i++)
		for (const struct viewer *v = l->watched[i].viewers; v; v = v->next) {
			same += v->tenant == tenant;
			plain += !v->sees_clients;
		}
	if (auth_needed(l->api->auth) && same >= VIEWERS_KEY)
		return problem_set(p, 503, "ServiceUnavailableError", NULL,
		                   "%d pages are looking already with this key.", VIEWERS_KEY);
	if (l->n_viewers >= VIEWERS_MAX || (!sees_clients && plain >= VIEWERS_MAX - VIEWERS_KEPT))
		return problem_set(p, 503, "ServiceUnavailableError", NULL, "%d pages are looking already.",
		                   l->n_viewers);
	return 0;
}

static int refused(struct live *l, struct watched *w, struct problem *p)
{
	if (!w)
		return problem_set(p, 404, "NotFoundError", "replica", "There are replicas 0 to %d.", l->n - 1);
	if (l->api->draining)
		return problem_set(p, 503, "ServiceUnavailableError", NULL, "The server is shutting down.");
	return 0;
}

/* What a viewer calls the daemons: by their models, if there are several. */
static void names(struct out *o, const struct live *l)
{
	char name[300];

	for (int i = 0; i < l->n; i++) {
		const struct watched *w = &l->watched[i];
		const bool alone = fleet_n(w->of->fleet) == 1;

		snprintf(name, sizeof(name), alone ? "%s" : "%s, daemon %d", w->of->name[0], w->replica);
		out_str(o, i ? "," : "");
		out_json_str(o, name);
	}
}

void live_get(struct api *a, struct exchange *x)
{
	struct watched *w = watched_of(a->live, exchange_request(x));
	const uint64_t tenant = ((const struct asked *)exchange_ctx(x))->right.tenant;
	const unsigned may = page_rights(a, x);
	struct viewer *v = NULL;
	struct problem p;
	struct out hello = { 0 };

	if (refused(a->live, w, &p) || crowded(a->live, tenant, may & PAGE_SEES_CLIENTS, &p)) {
		api_problem(x, &p);
		return;
	}
	if (http_is(exchange_request(x)->method, "HEAD")) {
		exchange_reply(x, 200, STREAM_TYPE, NULL, "", 0);
		return;
	}
	if (!w->view)
		w->view = view_create(w->of->cfg->instance);
	if (w->view)
		v = calloc(1, sizeof(*v));
	if (!v) {
		problem_memory(&p);
		api_problem(x, &p);
		return;
	}
	*v = (struct viewer){ .next = w->viewers, .w = w, .x = x, .tenant = tenant,
	                      .sees_clients = may & PAGE_SEES_CLIENTS };
	a->live->n_viewers++;
	if (!w->viewers)
		look(w);                      /* the next look then has one to compare with */
	w->viewers = v;
	asked_by(x, on_gone, v);
	exchange_begin(x, 200, STREAM_TYPE, 
	               "Cache-Control: no-store\r\nX-Accel-Buffering: no\r\nX-Content-Type-Options: nosniff\r\n");
	out_fmt(&hello, "data: {\"hello\":true,\"sees_clients\":%s,\"turns_knobs\":%s,\"daemons\":[",
	        may & PAGE_SEES_CLIENTS ? "true" : "false", may & PAGE_TURNS_KNOBS ? "true" : "false");
	names(&hello, a->live);
	out_str(&hello, "]}\n\n");
	if (!hello.failed)
		exchange_event(x, hello.p, hello.n);
	out_free(&hello);
}

void live_past(struct api *a, struct exchange *x)
{
	struct watched *w = watched_of(a->live, exchange_request(x));
	struct out o = { 0 };
	struct problem p;

	if (!w) {
		refused(a->live, w, &p);
		api_problem(x, &p);
		return;
	}
	out_str(&o, "{\"past\":");
	past_json(&o, &w->past, replica_of(w)->page);
	out_str(&o, ",\"advice\":");
	add_json(&o, judge_advice_json());
	out_str(&o, "}");
	if (o.failed) {
		problem_memory(&p);
		api_problem(x, &p);
		out_free(&o);
		return;
	}
	exchange_give(x, 200, JSON_TYPE, "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n", o.p,
	              o.n);
}

/* ---- life --------------------------------------------------------------------------------- */

const struct replica *live_replica(const struct live *l, int i)
{
	return i < 0 || i >= l->n ? NULL : replica_of(&l->watched[i]);
}

int live_create(struct live **out, struct api *a)
{
	struct api *of = a;
	struct live *l;
	int n = 0;

	for (const struct api *m = a; m; m = m->next)
		n += a->cfg->ui == UI_OFF ? 0 : fleet_n(m->fleet);
	*out = l = calloc(1, sizeof(*l) + (size_t)n * sizeof(l->watched[0]));
	if (!l)
		return -1;
	l->api = a;
	l->n = n;
	for (int i = 0, k = 0; i < n; i++, k++) { /* not all at one moment */
		struct watched *w = &l->watched[i];

		if (k == fleet_n(of->fleet)) {
			of = of->next;
			k = 0;
		}
		w->live = l;
		w->of = of;
		w->index = i;
		w->replica = k;
		w->timer = (struct io_timer){ .fn = on_second, .ctx = w };
		io_timer_set(a->io, &w->timer, io_now() + SECOND / 2 + SECOND * (unsigned)i / (unsigned)n);
	}
	return 0;
}

void live_drain(struct live *l)
{
	for (int i = 0; l && i < l->n; i++)
		while (l->watched[i].viewers) {
			struct exchange *x = l->watched[i].viewers->x;

			viewer_forget(l->watched[i].viewers);
			exchange_end(x);
		}
}

void live_destroy(struct live *l)
{
	for (int i = 0; l && i < l->n; i++) {
		io_timer_del(l->api->io, &l->watched[i].timer);
		while (l->watched[i].viewers)
			viewer_forget(l->watched[i].viewers);
	}
	free(l);
}
