/* engine.c - see engine.h.  The loop's thread only. */
#include "engine_impl.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/instance/log.h"
#include "dial.h"

#define PER_POLL   64
#define TURN_NS    1000000u      /* time to take tokens before the loop serves its sockets */
#define RETRY_MAX  (2000 * 1000000ull)
#define PROBE_NS   (10 * 1000000ull)
#define HELD_MAX   (ENGINE_LIVE + ENGINE_QUEUE)

static void run(struct engine *e);

/* ---- slots ---- */

uint64_t engine_handle(const struct engine *e, uint32_t i)
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

uint32_t engine_slot_take(struct engine *e)
{
	uint32_t i, n = e->n_slots ? e->n_slots * 2 : 64;
	struct engine_slot *s;

	if (e->free == NONE) {
		s = realloc(e->slot, n * sizeof(*s));
		if (!s)
			return NONE;
		memset(s + e->n_slots, 0, (n - e->n_slots) * sizeof(*s));
		for (i = n; i-- > e->n_slots; e->free = i) {
			s[i].next = e->free;
			s[i].gen = (uint32_t)io_now(); /* other adapters' handles are others */
		}
		e->slot = s;
		e->n_slots = n;
	}
	i = e->free;
	e->free = e->slot[i].next;
	e->slot[i].gen++;
	return i;
}

/* One request of t with `prompt` tokens begins (by 1) or ends (by -1) its wait for a first token. */
void engine_count(struct engine *e, struct tenant *t, int by, uint64_t prompt)
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
	engine_count(e, s->tenant, -1, s->n_prompt);
	for (int kind = 0; s->state == LIVE && kind < TENANT_KINDS; kind++)
		if (s->tenant->credit[kind] < ENGINE_LIVE)
			s->tenant->credit[kind] += 2;
}

/* The daemon no longer has it. */
void engine_unlive(struct engine *e, struct engine_slot *s)
{
	e->n_live--;
	s->tenant->live--;
	if (s->cancel)
		e->n_cancel--;
	if (s->limited)
		e->limited_full = false;
	s->cancel = s->limited = false;
}

void engine_slot_free(struct engine *e, uint32_t i)
{
	struct engine_slot *s = &e->slot[i];

	begun(e, s);
	if (s->state == LIVE)
		engine_unlive(e, s);
	if (s->state == QUEUED)
		tenants_take(&e->tenants, &s->kept->waiter);
	kept_free(s->kept, s->tenant, &e->kept);
	tenants_release(&e->tenants, s->tenant, 0);
	*s = (struct engine_slot){ .gen = s->gen, .next = e->free };
	e->free = i;
}

/* Free it, and tell its owner how it ended.  t NULL: the daemon did not say. */
void engine_end_slot(struct engine *e, uint32_t i, int finish, const struct sr_token *t)
{
	void *owner = e->slot[i].owner;
	bool pooled = e->slot[i].pooled;
	struct sr_token whole;
	uint32_t n = t && pooled && finish > 0 && t->end.n_tokens <= e->model.width ? t->end.n_tokens : 0;

	if (t && t->place)
		sr_vector(e->conn, t->place, e->vector, owner ? n : 0);
	if (t && e->slot[i].kept && e->slot[i].kept->moved) {
		whole = *t;
		kept_end(e->slot[i].kept, &whole.end);
		t = &whole;
	}
	engine_slot_free(e, i);
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
void engine_enqueue(struct engine *e, uint32_t i)
{
	struct engine_slot *s = &e->slot[i];

	s->state = QUEUED;
	tenants_put(&e->tenants, s->tenant, &s->kept->waiter);
}

static bool keep(struct engine_slot *s, uint32_t i, const struct sr_request *q)
{
	s->kept = kept_create(q, i, kind_of(q), io_now());
	return s->kept;
}

/* ---- connection ---- */

static void on_event(struct io_watch *w, uint32_t events)
{
	(void)events;
	run(w->ctx);
}

void engine_retry_later(struct engine *e)
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

/* Connected, perhaps again.  Nothing is known any more of what the daemon refused. */
static void welcome(struct engine *e)
{
	e->backoff = RETRY_MIN;
	e->limited_full = false;
	tenants_relax(&e->tenants);
	for (int i = 0; i < 2; i++)
		sr_doing(e->conn, i, e->doing[i]);
	log_info("connected to the daemon: context %u, vocabulary %u, %u requests at once",
	         e->model.context, e->model.vocab, e->model.live);
	if (e->down_at && e->tenants.n_waiting)
		log_info("%u requests that were held for %.1f s go on", (unsigned)e->tenants.n_waiting,
		         (double)(io_now() - e->down_at) / 1e9);
	e->down_at = 0;
	e->leaving = false;
	io_timer_del(e->io, &e->patience);
}

/* The daemon has another vocabulary than the tokenizer: the text would be nonsense. */
static bool other_vocabulary(struct engine *e, const struct sr_model_info *m)
{
	bool other = memcmp(m->vocab_hash, e->c.vocab_hash, sizeof(m->vocab_hash)) != 0;

	if (other && !e->wrong)
		log_error("the daemon at %s serves a model with another vocabulary than the "
		          "tokenizer here: start both with the same MODEL", e->c.socket);
	e->wrong = other;
	return other;
}

static void connected(void *ctx, struct sr_conn *conn, int result)
{
	struct engine *e = ctx;
	bool other;

	e->attempt = NULL;
	if (!conn)
		e->wrong = false;
	if (result == -ETIMEDOUT && !e->slow)
		log_warn("the daemon at %s does not answer yet; trying again", e->c.socket);
	e->slow = result == -ETIMEDOUT || result == -ECONNRESET;
	if (!conn || other_vocabulary(e, sr_model(conn))) {
		if (conn)
			sr_close(conn);
		engine_retry_later(e);
		return;
	}
	other = e->model.answers && e->model.answers != sr_model(conn)->answers;
	e->model = *sr_model(conn);
	e->conn = conn;
	free(e->vector);
	e->vector = calloc(e->model.width + 1, sizeof(*e->vector));
	e->watch = (struct io_watch){ .fd = sr_fd(e->conn), .events = IO_IN, .fn = on_event, .ctx = e };
	if (!e->vector || io_watch_add(e->io, &e->watch) < 0) {
		sr_close(e->conn);
		e->conn = NULL;
		engine_retry_later(e);
		return;
	}
	welcome(e);
	if (other)
		engine_other_model(e);
	warn_unheard(e);
	if (e->c.connected)
		e->c.connected(e->c.replica);
	run(e);
}

static void connect_start(struct io_timer *timer)
{
	struct engine *e = timer->ctx;
	struct sr_options o = { .size = sizeof(o), .live = ENGINE_LIVE, .tokens = 32768, .arena = 32u << 20,
	                        .guides = ENGINE_GUIDED, .vectors = ENGINE_VECTORS,
	                        .timeout_ms = 1000 + (uint32_t)(e->backoff / 1000000) };

	memcpy(o.name, e->c.name, sizeof(o.name));
	if (dial_start(&e->attempt, e->workers, e->c.socket, &o, connected, e) < 0)
		engine_retry_later(e);
}

/* ---- requests ---- */

static int try_submit(struct engine *e, uint32_t i, const struct sr_request *q)
{
	struct sr_request copy = *q;
	struct engine_slot *s = &e->slot[i];
	enum waiter_kind kind = kind_of(q);
	int32_t *joined = NULL;
	int r = s->kept ? kept_request(s->kept, &copy, &joined) : 0;

	copy.user_data = engine_handle(e, i);
	r = r ? r : sr_submit(e->conn, &copy, &s->ticket);
	free(joined);
	e->no_room = r == -EAGAIN;
	e->full = r == -EAGAIN || r == -EBUSY;
	if (r == -EBUSY && kind == LIMITED && e->n_live < e->model.live) {
		e->limited_full = true;       /* others may go */
		e->full = false;
	}
	if (r < 0)
		return r;
	if (s->kept && !s->kept->n_ids && !s->kept->n_scored)
		s->kept->answers = e->model.answers;
	s->state = LIVE;
	s->tenant->live++;
	s->tenant->credit[kind] -= s->tenant->credit[kind] > 0;
	if (!e->n_live++)
		e->since = io_now();
	s->limited = kind == LIMITED;
	if (s->kept && s->kept->moved && !s->kept->counted) {
		s->kept->counted = true;
		e->c.moved(e->c.ctx, s->kept->n_ids);
	}
	if (s->guided)
		e->c.submitted(s->owner);
	return 0;
}

/* Each tenant leaves some places in the daemon to others.  A tenant that the daemon refused waits until
 * one of its requests leaves the daemon's queue.  So do guided requests alone, if they were refused. */
static bool may_go(const struct engine *e, const struct tenant *t, enum waiter_kind kind)
{
	uint64_t left = e->model.live > e->n_live ? e->model.live - e->n_live - 1 : 0;

	if (e->leaving || (kind == LIMITED && e->limited_full))
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
			engine_lost(e);
			return;
		}
		if (!r) {
			tenants_served(&e->tenants, w);
			continue;
		}
		engine_end_slot(e, i, r, NULL);
	}
}

/* The daemon refused it: the tenant's share is full.  The request returns to its place in the queue. */
static void turned_away(struct engine *e, uint32_t i)
{
	struct engine_slot *s = &e->slot[i];

	engine_unlive(e, s);
	engine_enqueue(e, i);
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

void engine_cancel_slot(struct engine *e, struct engine_slot *s)
{
	bool wanted = sr_cancel(e->conn, s->ticket) == -EAGAIN;

	e->n_cancel += wanted - s->cancel;
	s->cancel = wanted;
	s->cancelled = true;
}

/* An END that does not end the request: its daemon drains, or has lost its device. */
static bool may_return(struct engine *e, const struct engine_slot *s, int finish)
{
	if (!engine_keeps(e))
		return false;
	if (finish == -EIO || finish == -ECONNRESET)
		engine_leaves(e);
	return finish == -EIO || finish == -ECONNRESET || (finish == -ECANCELED && s->returns);
}

static void dispatch(struct engine *e, const struct sr_token *t, unsigned preempted)
{
	struct engine_slot *s = slot_of(e, t->user_data);
	int finish = t->end.finish;
	void *owner = s ? s->owner : NULL;

	if (!s || s->state != LIVE)
		return;
	if (t->kind != SR_END) {
		if (t->kind != SR_COMPUTED) {
			if (s->kept && engine_keeps(e) && !kept_token(s->kept, s->tenant, &e->kept, t))
				return;
			begun(e, s);
		}
		if (owner && s->guided && t->kind == SR_TOKEN && t->n_top > SR_TOP_HERE)
			e->c.drawn(owner, t->id, t->last);
		if (owner)
			e->c.token(owner, t);
		return;
	}
	if (may_return(e, s, finish) && !engine_hold(e, (uint32_t)t->user_data, finish == -EIO)) {
		if (t->place)
			sr_vector(e->conn, t->place, NULL, 0);
		return;
	}
	if (finish == -EAGAIN && s->kept && owner && !s->cancelled) {
		if (t->place)
			sr_vector(e->conn, t->place, NULL, 0);
		turned_away(e, (uint32_t)t->user_data);
		return;
	}
	e->c.preempted(e->c.ctx, t->place ? 0 : preempted);
	engine_end_slot(e, (uint32_t)t->user_data, finish == -EAGAIN ? -ECANCELED : finish, t);
}

/* Guides first: the daemon may wait for them. */
static void guide(struct engine *e, const struct sr_record *r, int n)
{
	for (int i = 0; i < n; i++) {
		const struct engine_slot *s = r[i].kind == SR_TOKEN ? slot_of(e, r[i].user_data) : NULL;

		if (s && s->guided && s->owner && r[i].n_top <= SR_TOP_HERE) /* else it is not whole yet */
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
			engine_cancel_slot(e, &e->slot[i]);
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
		engine_lost(e);
}

static void on_again(struct io_timer *t) { run(t->ctx); }

void engine_take(struct engine *e)
{
	if (!e->behind)                       /* else the timer `again` does it in every turn */
		run(e);
}

bool engine_behind(const struct engine *e) { return e->conn && e->behind; }

const struct sr_model_info *engine_model(const struct engine *e)
{
	return e->conn || engine_holds(e) ? &e->model : NULL;
}

bool engine_up(const struct engine *e) { return e->conn && !e->leaving; }
bool engine_slow(const struct engine *e) { return e->slow; }
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
	                            .above = e->n_waits - e->waits,
	                            .tokens = e->tokens, .mine = t ? t->waits : 0,
	                            .mine_tokens = t ? t->tokens : 0, .tenants = e->n_wait };
}

/* How many more the tenant can hold, each of them within its share. */
unsigned engine_room(const struct engine *e, uint64_t tenant)
{
	const struct tenant *t = tenants_find(&e->tenants, tenant);
	uint64_t left = HELD_MAX - e->tenants.n, mine = t ? t->n : 0, may = TENANT_SHARE * left + 1;

	if (!engine_up(e) && !engine_holds(e))
		return 0;
	if (!tenant)
		return (unsigned)left;
	return may > mine ? (unsigned)((may - mine) / (TENANT_SHARE + 1)) : 0;
}

int engine_submit(struct engine *e, const struct sr_request *q, void *owner, uint64_t *handle)
{
	struct engine_slot *s;
	uint32_t i;
	int r = -EAGAIN;

	if (!engine_up(e) && !engine_holds(e))
		return -ECONNREFUSED;
	if (!engine_room(e, q->tenant))
		return -EAGAIN;
	if (e->resting)
		engine_wake(e);
	i = engine_slot_take(e);
	if (i == NONE)
		return -ENOMEM;
	s = &e->slot[i];
	*handle = engine_handle(e, i);
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
	engine_count(e, s->tenant, 1, q->n_prompt);
	if ((q->tenant || engine_keeps(e)) && !keep(s, i, q)) /* the daemon may refuse it, or go */
		r = -ENOMEM;
	if (s->kept)
		s->kept->waiter.order = ++e->tenants.order;
	if (r == -EAGAIN && e->conn && !e->tenants.n_waiting && may_go(e, s->tenant, kind_of(q)))
		r = try_submit(e, i, q);
	if (r == -EAGAIN || r == -EBUSY || (r == -ECONNRESET && e->c.wait_ns)) {
		r = -ENOMEM;
		if (s->kept || keep(s, i, q)) {
			engine_enqueue(e, i);
			io_timer_set(e->io, &e->again, io_now()); /* submits it in turn, or arms for room */
			r = 0;
		}
	}
	if (r < 0)
		engine_slot_free(e, i);
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

	int r;

	if (!s || s->state != LIVE || !e->conn)
		return -ESRCH;
	r = sr_guide(e->conn, s->ticket, index, kind, ids, n, bits);
	return r == -ECONNRESET && engine_keeps(e) ? 0 : r; /* submitted() asks for it again */
}

void engine_guide_took(struct engine *e, uint32_t us)
{
	if (e->conn)
		sr_guide_took(e->conn, us);
}

void engine_cancel(struct engine *e, uint64_t handle)
{
	struct engine_slot *s = slot_of(e, handle);

	if (s && s->state == LIVE && e->conn)
		engine_cancel_slot(e, s);
}

void engine_drop(struct engine *e, uint64_t handle)
{
	struct engine_slot *s = slot_of(e, handle);

	if (!s)
		return;
	s->owner = NULL;
	if (s->state == QUEUED)
		engine_slot_free(e, (uint32_t)handle);
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
	e->patience = (struct io_timer){ .fn = engine_on_patience, .ctx = e };
	connect_start(&e->retry);
	return 0;
}

void engine_destroy(struct engine *e)
{
	if (!e)
		return;
	dial_forget(e->attempt);
	io_timer_del(e->io, &e->again);
	io_timer_del(e->io, &e->retry);
	io_timer_del(e->io, &e->probe);
	io_timer_del(e->io, &e->patience);
	if (e->conn) {
		io_watch_del(e->io, &e->watch);
		sr_close(e->conn);
	}
	for (uint32_t i = 0; i < e->n_slots; i++)
		if (e->slot[i].state != FREE)
			engine_slot_free(e, i);
	free(e->slot);
	free(e->vector);
	free((char *)e->c.socket);
	free(e);
}
