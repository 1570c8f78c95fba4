/* engine.c - see engine.h.  The loop's thread only, except sr_open, which runs on a worker because
 * it may wait one second for a busy daemon.
 */
#include "engine.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/instance/log.h"
#include "tenants.h"
#include "worker.h"

#define PER_POLL   64
#define TURN_NS    1000000u      /* time to take tokens before the loop serves its sockets */
#define RETRY_MIN  (50 * 1000000ull)
#define RETRY_MAX  (2000 * 1000000ull)
#define PROBE_NS   (10 * 1000000ull)
#define HELD_MAX   (ENGINE_LIVE + ENGINE_QUEUE)

enum state { FREE, QUEUED, LIVE };
enum waiter_kind { PLAIN, LIMITED };        /* LIMITED: guided or pooled, of which fewer are granted */

struct engine_slot {
	enum state state;
	uint32_t gen;                /* in the upper half of user_data and of handles */
	uint32_t ticket;             /* LIVE */
	bool cancel;                 /* a cancel is still to be sent: the cancel ring was full */
	bool cancelled;              /* the owner has cancelled it */
	bool waits;                  /* waits for its first token */
	bool limited;                /* LIVE, with SR_GUIDED or SR_POOLED */
	bool guided, pooled;         /* as its flags say */
	uint32_t n_prompt, fresh;    /* tokens of the prompt; those that must be computed, as far as is known */
	void *owner;                 /* NULL = the owner dropped it */
	struct tenant *tenant;
	struct kept *kept;           /* while QUEUED, and while LIVE if the daemon may refuse it */
	uint32_t next;               /* FREE: the next free slot */
};

/* A request as submitted, with its pointers.  It is in its tenant's queue, or may return there. */
struct kept {
	struct waiter waiter;        /* first */
	uint32_t slot;
	struct sr_request q;
};

#define NONE UINT32_MAX

struct engine {
	struct engine_config c;
	struct io *io;
	struct workers *workers;
	struct sr_conn *conn;        /* NULL = the daemon is away */
	struct sr_model_info model;
	struct io_watch watch;
	struct io_timer again, retry, probe;
	uint64_t backoff;
	uint64_t since;              /* when n_live last rose from 0 */
	bool wrong, probing;         /* wrong: other vocabulary; probing: the timer `probe` is set */
	bool behind;                 /* the ring was not empty after a turn */
	bool full;                   /* the daemon can take no more for now */
	bool no_room;                /* because the ring had no room for the next request */
	bool limited_full;           /* it can take no more guided or pooled ones until one of ours ends */
	unsigned n_live, n_cancel;
	int doing[2];                /* requests in SR_PREPARING and SR_ARRIVING, reported on each connect */
	struct tenants tenants;      /* hold requests */
	uint64_t n_waits;            /* requests without a token */
	uint64_t fresh, sent;        /* engine_work() */
	uint32_t expected;           /* engine_expect(), for the next request */
	uint64_t waits, tokens;      /* these, and their prompt tokens; of each tenant at most its share */
	unsigned n_wait;             /* tenants that have such requests */
	struct engine_slot *slot;
	uint32_t n_slots, free;      /* slots allocated; first of the FREE list */
	struct connect *attempt;
	struct sr_token token;       /* being assembled from its records */
	float *vector;               /* [model.width] of the request that ends; NULL: the daemon makes none */
};

/* One sr_open on a worker.  It may outlive the engine. */
struct connect {
	struct work work;
	struct engine *e;            /* used on the loop's thread only; NULL = destroyed */
	char socket[128], name[32];
	struct sr_conn *conn;
	int result;
};

static void run(struct engine *e);

/* ---- slots ---- */

static uint64_t handle_of(const struct engine *e, uint32_t i)
{
	return (uint64_t)e->slot[i].gen << 32 | i;
}

static struct engine_slot *slot_of(struct engine *e, uint64_t handle)
{
	uint32_t i = (uint32_t)handle;

	if (i >= e->n_slots || e->slot[i].gen != handle >> 32 || e->slot[i].state == FREE)
		return NULL;
	return &e->slot[i];
}

static uint32_t slot_take(struct engine *e)
{
	uint32_t i, n = e->n_slots ? e->n_slots * 2 : 64;
	struct engine_slot *s;

	if (e->free == NONE) {
		s = realloc(e->slot, n * sizeof(*s));
		if (!s)
			return NONE;
		memset(s + e->n_slots, 0, (n - e->n_slots) * sizeof(*s));
		for (i = n; i-- > e->n_slots; e->free = i)
			s[i].next = e->free;
		e->slot = s;
		e->n_slots = n;
	}
	i = e->free;
	e->free = e->slot[i].next;
	e->slot[i].gen++;
	return i;
}

/* One request of t with `prompt` tokens begins (by 1) or ends (by -1) its wait for a first token. */
static void count(struct engine *e, struct tenant *t, int by, uint64_t prompt)
{
	uint64_t most = tenant_most(t->id, e->c.max_requests), most_tokens = tenant_most(t->id, e->c.max_tokens);

	e->waits -= t->waits < most ? t->waits : most;
	e->tokens -= t->tokens < most_tokens ? t->tokens : most_tokens;
	e->n_wait -= t->waits > 0;
	e->n_waits += (uint64_t)by;
	t->waits += (uint64_t)by;
	t->tokens += by > 0 ? prompt : -prompt;
	e->n_wait += t->waits > 0;
	e->waits += t->waits < most ? t->waits : most;
	e->tokens += t->tokens < most_tokens ? t->tokens : most_tokens;
}

/* Its first token or its end came, so it has left the daemon's queue.  Its tenant may now submit two
 * requests of each kind, one more than the place it took. */
static void begun(struct engine *e, struct engine_slot *s)
{
	if (!s->waits)
		return;
	s->waits = false;
	e->fresh -= s->fresh;
	count(e, s->tenant, -1, s->n_prompt);
	for (int kind = 0; s->state == LIVE && kind < TENANT_KINDS; kind++)
		if (s->tenant->credit[kind] < ENGINE_LIVE)
			s->tenant->credit[kind] += 2;
}

/* The daemon no longer has it. */
static void unlive(struct engine *e, struct engine_slot *s)
{
	e->n_live--;
	s->tenant->live--;
	if (s->cancel)
		e->n_cancel--;
	if (s->limited)
		e->limited_full = false;
	s->cancel = s->limited = false;
}

static void slot_free(struct engine *e, uint32_t i)
{
	struct engine_slot *s = &e->slot[i];

	begun(e, s);
	if (s->state == LIVE)
		unlive(e, s);
	if (s->state == QUEUED)
		tenants_take(&e->tenants, &s->kept->waiter);
	free(s->kept);
	tenants_release(&e->tenants, s->tenant, 0);
	*s = (struct engine_slot){ .gen = s->gen, .next = e->free };
	e->free = i;
}

/* Free it, and tell its owner how it ended.  t NULL: the daemon did not say. */
static void end_slot(struct engine *e, uint32_t i, int finish, const struct sr_token *t)
{
	void *owner = e->slot[i].owner;
	bool pooled = e->slot[i].pooled;
	uint32_t n = t && pooled && finish > 0 && t->end.n_tokens <= e->model.width ? t->end.n_tokens : 0;

	if (t && t->place)
		sr_vector(e->conn, t->place, e->vector, owner ? n : 0);
	slot_free(e, i);
	if (owner && pooled)
		e->c.vector(owner, finish, t, e->vector, n);
	else if (owner)
		e->c.end(owner, finish, t);
}

static enum waiter_kind kind_of(const struct sr_request *q)
{
	return q->flags & (SR_GUIDED | SR_POOLED) ? LIMITED : PLAIN;
}

/* Put it into its tenant's queue for its kind. */
static void enqueue(struct engine *e, uint32_t i)
{
	struct engine_slot *s = &e->slot[i];

	s->state = QUEUED;
	tenants_put(&e->tenants, s->tenant, &s->kept->waiter);
}

static bool keep(struct engine_slot *s, uint32_t i, const struct sr_request *q)
{
	s->kept = malloc(sizeof(*s->kept));
	if (s->kept)
		*s->kept = (struct kept){ .waiter = { .cost = 1, .kind = kind_of(q) }, .slot = i, .q = *q };
	return s->kept;
}

/* ---- connection ---- */

static void connect_run(struct work *w)
{
	struct connect *t = (struct connect *)w;
	struct sr_options o = { .size = sizeof(o), .live = ENGINE_LIVE, .tokens = 32768, .arena = 32u << 20,
	                        .guides = ENGINE_GUIDED, .vectors = ENGINE_VECTORS };

	memcpy(o.name, t->name, sizeof(o.name));
	t->result = sr_open(&t->conn, t->socket, &o);
}

static void on_event(struct io_watch *w, uint32_t events)
{
	(void)events;
	run(w->ctx);
}

static void retry_later(struct engine *e)
{
	io_timer_set(e->io, &e->retry, io_now() + e->backoff);
	e->backoff = e->backoff * 2 > RETRY_MAX ? RETRY_MAX : e->backoff * 2;
}

static void warn_unheard(const struct engine *e)
{
	if (e->c.tenants && !(e->model.flags & SR_TENANTS_HEARD))
		log_warn("the daemon takes no tenants from this adapter, so all API keys share one turn: start it "
		         "with --gateway-user and the name of this user (uid %u)", (unsigned)geteuid());
}

static void connect_done(struct work *w)
{
	struct connect *t = (struct connect *)w;
	struct engine *e = t->e;

	if (!e || t->result < 0) {
		if (!t->result)
			sr_close(t->conn);
		free(t);
		if (e) {
			e->attempt = NULL;
			e->wrong = false;
			retry_later(e);
		}
		return;
	}
	e->attempt = NULL;
	e->model = *sr_model(t->conn);
	if (memcmp(e->model.vocab_hash, e->c.vocab_hash, sizeof(e->c.vocab_hash))) {
		if (!e->wrong)
			log_error("the daemon at %s serves a model with another vocabulary than the "
			          "tokenizer here: start both with the same MODEL", e->c.socket);
		e->wrong = true;
		sr_close(t->conn);
		free(t);
		retry_later(e);
		return;
	}
	e->wrong = false;
	e->conn = t->conn;
	free(t);
	free(e->vector);
	e->vector = calloc(e->model.width + 1, sizeof(*e->vector));
	e->watch = (struct io_watch){ .fd = sr_fd(e->conn), .events = IO_IN, .fn = on_event, .ctx = e };
	if (!e->vector || io_watch_add(e->io, &e->watch) < 0) {
		sr_close(e->conn);
		e->conn = NULL;
		retry_later(e);
		return;
	}
	e->backoff = RETRY_MIN;
	for (int i = 0; i < 2; i++)
		sr_doing(e->conn, i, e->doing[i]);
	log_info("connected to the daemon: context %u, vocabulary %u, %u requests at once",
	         e->model.context, e->model.vocab, e->model.live);
	warn_unheard(e);
	if (e->c.connected)
		e->c.connected(e->c.replica);
	run(e);
}

static void connect_start(struct io_timer *timer)
{
	struct engine *e = timer->ctx;
	struct connect *t = calloc(1, sizeof(*t));

	if (!t) {
		retry_later(e);
		return;
	}
	t->e = e;
	t->result = -ECONNABORTED;           /* stays if it comes back before a worker ran it */
	t->work = (struct work){ .run = connect_run, .done = connect_done };
	snprintf(t->socket, sizeof(t->socket), "%s", e->c.socket);
	memcpy(t->name, e->c.name, sizeof(t->name));
	e->attempt = t;                      /* first: it may be done when workers_give returns */
	if (workers_give(e->workers, &t->work) < 0) {
		e->attempt = NULL;
		free(t);
		retry_later(e);
	}
}

static void lost(struct engine *e)
{
	struct sr_conn *conn = e->conn;
	uint32_t n = e->n_slots;

	if (!conn)
		return;
	log_warn("the daemon is gone: %u requests end, new ones get 503 until it is back",
	         (unsigned)e->tenants.n);
	e->conn = NULL;                      /* first: owners that submit again must be refused */
	io_watch_del(e->io, &e->watch);
	io_timer_del(e->io, &e->again);
	io_timer_del(e->io, &e->probe);
	e->probing = false;
	sr_close(conn);
	for (uint32_t i = 0; i < n; i++) {
		if (e->slot[i].state == FREE)
			continue;
		end_slot(e, i, -ECONNRESET, NULL);
	}
	e->backoff = RETRY_MIN;
	retry_later(e);
}

/* ---- requests ---- */

static int try_submit(struct engine *e, uint32_t i, const struct sr_request *q)
{
	struct sr_request copy = *q;
	struct engine_slot *s = &e->slot[i];
	enum waiter_kind kind = kind_of(q);
	int r;

	copy.user_data = handle_of(e, i);
	r = sr_submit(e->conn, &copy, &s->ticket);
	e->no_room = r == -EAGAIN;
	e->full = r == -EAGAIN || r == -EBUSY;
	if (r == -EBUSY && kind == LIMITED && e->n_live < e->model.live) {
		e->limited_full = true;       /* others may go */
		e->full = false;
	}
	if (r < 0)
		return r;
	s->state = LIVE;
	s->tenant->live++;
	s->tenant->credit[kind] -= s->tenant->credit[kind] > 0;
	if (!e->n_live++)
		e->since = io_now();
	s->limited = kind == LIMITED;
	if (s->guided)
		e->c.submitted(s->owner);
	return 0;
}

/* Each tenant leaves some places in the daemon to others.  A tenant that the daemon refused waits until
 * one of its requests leaves the daemon's queue.  So do guided requests alone, if they were refused. */
static bool may_go(const struct engine *e, const struct tenant *t, enum waiter_kind kind)
{
	uint64_t left = e->model.live > e->n_live ? e->model.live - e->n_live - 1 : 0;

	if (kind == LIMITED && e->limited_full)
		return false;
	return !(t->tight[kind] && !t->credit[kind]) && !tenant_over(t->id, t->live, left);
}

static bool waiter_may_go(void *ctx, const struct waiter *w) { return may_go(ctx, w->tenant, w->kind); }

/* Submit what waits, with the tenants in turn. */
static void pump(struct engine *e)
{
	struct waiter *w;
	uint32_t i;
	int r;

	e->full = false;
	while (e->conn && (w = tenants_next(&e->tenants, waiter_may_go, e))) {
		i = ((struct kept *)w)->slot;
		r = try_submit(e, i, &e->slot[i].kept->q);
		if (e->full)
			return;
		if (r == -EBUSY)
			continue;
		if (r == -ECONNRESET) {
			lost(e);
			return;
		}
		if (!r) {
			tenants_served(&e->tenants, w);
			continue;
		}
		end_slot(e, i, r, NULL);
	}
}

/* The daemon refused it: the tenant's share is full.  The request returns to its place in the queue. */
static void turned_away(struct engine *e, uint32_t i)
{
	struct engine_slot *s = &e->slot[i];

	unlive(e, s);
	enqueue(e, i);
	s->tenant->tight[s->kept->waiter.kind] = true;
	s->tenant->credit[s->kept->waiter.kind] = 0;
	if (!e->probing)
		io_timer_set(e->io, &e->probe, io_now() + PROBE_NS);
	e->probing = true;
}

/* Other connections may fill a tenant's share, so it can get room although none of our requests leaves
 * the daemon's queue.  Hence one request of each such tenant tries again. */
static void on_probe(struct io_timer *timer)
{
	struct engine *e = timer->ctx;
	struct tenant *t = e->tenants.turn;

	e->probing = false;
	for (unsigned i = 0; i < e->tenants.n_round; i++, t = t->next)
		for (int kind = 0; kind < TENANT_KINDS; kind++)
			if (t->tight[kind] && !t->credit[kind]) {
				t->credit[kind] = 1;
				e->probing = true;
			}
	if (e->probing)
		io_timer_set(e->io, timer, io_now() + PROBE_NS);
	run(e);
}

static void cancel_slot(struct engine *e, struct engine_slot *s)
{
	bool wanted = sr_cancel(e->conn, s->ticket) == -EAGAIN;

	e->n_cancel += wanted - s->cancel;
	s->cancel = wanted;
	s->cancelled = true;
}

static void dispatch(struct engine *e, const struct sr_token *t, unsigned preempted)
{
	struct engine_slot *s = slot_of(e, t->user_data);
	int finish = t->end.finish;
	void *owner = s ? s->owner : NULL;

	if (!s || s->state != LIVE)
		return;
	if (t->kind != SR_END) {
		if (t->kind != SR_COMPUTED)
			begun(e, s);
		if (owner)
			e->c.token(owner, t);
		return;
	}
	if (finish == -EAGAIN && s->kept && owner && !s->cancelled) {
		if (t->place)
			sr_vector(e->conn, t->place, NULL, 0);
		turned_away(e, (uint32_t)t->user_data);
		return;
	}
	e->c.preempted(e->c.ctx, t->place ? 0 : preempted);
	end_slot(e, (uint32_t)t->user_data, finish == -EAGAIN ? -ECANCELED : finish, t);
}

/* Guides first: the daemon may wait for them. */
static void guide(struct engine *e, const struct sr_record *r, int n)
{
	for (int i = 0; i < n; i++) {
		const struct engine_slot *s = r[i].kind == SR_TOKEN ? slot_of(e, r[i].user_data) : NULL;

		if (s && s->guided && s->owner)
			e->c.drawn(s->owner, r[i].u.token.id, r[i].last);
	}
}

/* Take what the ring holds, at most one turn's worth.  0: it is empty; 1: there may be more; or -errno. */
static int take(struct engine *e)
{
	struct sr_record r[PER_POLL];
	uint64_t end = io_now() + TURN_NS;
	int n, g;

	do {
		n = sr_poll(e->conn, r, PER_POLL);
		if (n <= 0)
			return n;
		guide(e, r, n);
		for (int i = 0; i < n; i++) {
			g = sr_gather(&e->token, &r[i]);
			if (g < 0)
				return g;
			if (g)
				dispatch(e, &e->token, r[i].preempted);
		}
	} while (io_now() < end);
	return 1;
}

static void cancel_again(struct engine *e)
{
	for (uint32_t i = 0; e->n_cancel && i < e->n_slots; i++)
		if (e->slot[i].state == LIVE && e->slot[i].cancel)
			cancel_slot(e, &e->slot[i]);
}

/* Take all there is, then arm, look once more, and sleep on sr_fd. */
static void run(struct engine *e)
{
	int r = 0;

	while (e->conn) {
		r = take(e);
		if (r < 0)
			break;
		e->behind = r > 0;
		cancel_again(e);
		pump(e);
		if (!e->conn)
			return;
		if (r > 0) {
			io_timer_set(e->io, &e->again, io_now());
			return;
		}
		/* With all granted requests live, guided ones or others, room in the ring is of no use: an END
		 * wakes us. */
		r = sr_arm(e->conn, SR_WAIT_TOKENS | (e->full && e->no_room ? SR_WAIT_ROOM : 0));
		if (r < 0)
			break;
		if (!r)
			return;
	}
	if (r < 0)
		lost(e);
}

static void on_again(struct io_timer *t) { run(t->ctx); }

bool engine_behind(const struct engine *e) { return e->conn && e->behind; }

const struct sr_model_info *engine_model(const struct engine *e) { return e->conn ? &e->model : NULL; }
bool engine_wrong_model(const struct engine *e) { return e->wrong; }

unsigned engine_live(const struct engine *e) { return e->n_live; }
uint64_t engine_since(const struct engine *e) { return e->since; }

void engine_doing(struct engine *e, int what, int by)
{
	e->doing[what] += by;
	assert(e->doing[what] >= 0);
	if (e->conn)
		sr_doing(e->conn, what, by);
}

struct queue_load engine_load(const struct engine *e, uint64_t tenant)
{
	const struct tenant *t = tenants_find(&e->tenants, tenant);

	return (struct queue_load){ .tenant = tenant, .requests = e->tenants.n - e->n_waits + e->waits,
	                            .tokens = e->tokens, .mine = t ? t->waits : 0,
	                            .mine_tokens = t ? t->tokens : 0, .tenants = e->n_wait };
}

/* How many more the tenant can hold, each of them within its share. */
unsigned engine_room(const struct engine *e, uint64_t tenant)
{
	const struct tenant *t = tenants_find(&e->tenants, tenant);
	uint64_t left = HELD_MAX - e->tenants.n, mine = t ? t->n : 0, may = TENANT_SHARE * left + 1;

	if (!e->conn || !tenant)
		return e->conn ? (unsigned)left : 0;
	return may > mine ? (unsigned)((may - mine) / (TENANT_SHARE + 1)) : 0;
}

int engine_submit(struct engine *e, const struct sr_request *q, void *owner, uint64_t *handle)
{
	struct engine_slot *s;
	uint32_t i;
	int r = -EAGAIN;

	if (!e->conn)
		return -ECONNREFUSED;
	if (!engine_room(e, q->tenant))
		return -EAGAIN;
	i = slot_take(e);
	if (i == NONE)
		return -ENOMEM;
	s = &e->slot[i];
	*handle = handle_of(e, i);
	s->tenant = tenants_hold(&e->tenants, q->tenant, 0);
	if (!s->tenant) {
		s->next = e->free;
		e->free = i;
		return -ENOMEM;
	}
	s->owner = owner;
	s->guided = q->flags & SR_GUIDED;
	s->pooled = q->flags & SR_POOLED;
	s->n_prompt = q->n_prompt;
	s->waits = true;
	s->fresh = e->expected < q->n_prompt ? e->expected : q->n_prompt;
	e->expected = UINT32_MAX;
	e->fresh += s->fresh;
	e->sent++;
	count(e, s->tenant, 1, q->n_prompt);
	if (q->tenant && !keep(s, i, q))         /* the daemon may refuse it */
		r = -ENOMEM;
	if (r == -EAGAIN && !e->tenants.n_waiting && may_go(e, s->tenant, kind_of(q)))
		r = try_submit(e, i, q);
	if (r == -EAGAIN || r == -EBUSY) {
		r = -ENOMEM;
		if (s->kept || keep(s, i, q)) {
			enqueue(e, i);
			io_timer_set(e->io, &e->again, io_now()); /* submits it in turn, or arms for room */
			r = 0;
		}
	}
	if (r < 0)
		slot_free(e, i);
	if (r == -ECONNRESET)
		io_timer_set(e->io, &e->again, io_now());         /* later, not inside the caller */
	return r;
}

void engine_expect(struct engine *e, uint32_t tokens) { e->expected = tokens; }
struct engine_work engine_work(const struct engine *e)
{
	return (struct engine_work){ e->sent, e->n_waits, e->fresh };
}

int engine_guide(struct engine *e, uint64_t handle, uint32_t index, uint32_t kind, const int32_t *ids,
                 uint32_t n, const uint32_t *bits)
{
	const struct engine_slot *s = slot_of(e, handle);

	if (!s || s->state != LIVE || !e->conn)
		return -ESRCH;
	return sr_guide(e->conn, s->ticket, index, kind, ids, n, bits);
}

void engine_cancel(struct engine *e, uint64_t handle)
{
	struct engine_slot *s = slot_of(e, handle);

	if (s && s->state == LIVE && e->conn)
		cancel_slot(e, s);
}

void engine_drop(struct engine *e, uint64_t handle)
{
	struct engine_slot *s = slot_of(e, handle);

	if (!s)
		return;
	s->owner = NULL;
	if (s->state == QUEUED)
		slot_free(e, (uint32_t)handle);
	else
		engine_cancel(e, handle);
}

int engine_create(struct engine **out, struct io *io, struct workers *w, const struct engine_config *c)
{
	struct engine *e = calloc(1, sizeof(*e));

	*out = e;
	if (!e)
		return -ENOMEM;
	e->c = *c;
	e->c.socket = strdup(c->socket);
	if (!e->c.socket) {
		free(e);
		*out = NULL;
		return -ENOMEM;
	}
	e->io = io;
	e->workers = w;
	e->free = NONE;
	e->expected = UINT32_MAX;
	e->tenants.quantum = 1;              /* every request costs 1, whatever its size */
	e->backoff = RETRY_MIN;
	e->again = (struct io_timer){ .fn = on_again, .ctx = e };
	e->retry = (struct io_timer){ .fn = connect_start, .ctx = e };
	e->probe = (struct io_timer){ .fn = on_probe, .ctx = e };
	connect_start(&e->retry);
	return 0;
}

void engine_destroy(struct engine *e)
{
	if (!e)
		return;
	if (e->attempt)
		e->attempt->e = NULL;
	io_timer_del(e->io, &e->again);
	io_timer_del(e->io, &e->retry);
	io_timer_del(e->io, &e->probe);
	if (e->conn) {
		io_watch_del(e->io, &e->watch);
		sr_close(e->conn);
	}
	for (uint32_t i = 0; i < e->n_slots; i++)
		if (e->slot[i].state != FREE)
			slot_free(e, i);
	free(e->slot);
	free(e->vector);
	free((char *)e->c.socket);
	free(e);
}
