/* engine_hold.c - what happens to requests when their daemon goes; see engine.h.
 *
 * What it had goes to another daemon that is up, or returns to the queue.  There it waits, with what waits
 * there already, for the daemon or its successor: wait_ns at most.  A daemon that leaves is treated like
 * one that is gone: it drains, or its device is lost.
 */
#include "engine_impl.h"

#include <errno.h>

#include "core/instance/log.h"

bool engine_holds(const struct engine *e)
{
	return e->resting || (e->down_at && io_now() < e->down_at + e->c.wait_ns);
}

/* Is what is needed to move a request kept? */
bool engine_keeps(const struct engine *e) { return e->c.wait_ns || e->c.elsewhere; }

static void down(struct engine *e)
{
	e->down_at = io_now();
	if (e->c.wait_ns)
		io_timer_set(e->io, &e->patience, e->down_at + e->c.wait_ns);
}

/* Which daemons may go on with a request: those that compute the same as the one where it began; 0: any. */
static uint32_t alike_of(const struct kept *k) { return k->n_ids || k->n_scored ? k->answers : 0; }

/* Give a request to an engine that is up.  False: there is none. */
static bool hand_over(struct engine *e, uint32_t i)
{
	struct engine_slot *s = &e->slot[i], *u;
	struct kept *k = s->kept;
	struct engine *to = e->c.elsewhere ? e->c.elsewhere(e->c.fleet, e, &k->q, alike_of(k)) : NULL;
	struct tenant *t = to ? tenants_hold(&to->tenants, s->tenant->id, 0) : NULL;
	uint32_t j = t ? engine_slot_take(to) : NONE;
	void *owner = s->owner;

	if (j == NONE) {
		if (t)
			tenants_release(&to->tenants, t, 0);
		return false;
	}
	if (s->state == QUEUED)
		tenants_take(&e->tenants, &k->waiter);
	else
		engine_unlive(e, s);
	s->state = FREE;
	kept_carry(k, s->tenant, &e->kept, t, &to->kept);
	k->slot = j;
	k->waiter.order = ++to->tenants.order;
	u = &to->slot[j];
	*u = (struct engine_slot){ .gen = u->gen, .owner = owner, .tenant = t, .kept = k, .guided = s->guided,
	                           .pooled = s->pooled, .n_prompt = s->n_prompt, .waits = s->waits };
	if (u->waits) {
		u->fresh = to->expected < u->n_prompt ? to->expected : u->n_prompt;
		to->fresh += u->fresh;
		engine_count(to, t, 1, u->n_prompt);
	}
	to->expected = UINT32_MAX;
	to->sent++;
	s->kept = NULL;
	engine_slot_free(e, i);
	engine_enqueue(to, j);
	e->c.handed(owner, u->pooled, to, engine_handle(to, j));
	io_timer_set(to->io, &to->again, io_now());
	return true;
}

/* Did the daemon compute it when it died?  One that only waited there is not the cause. */
static bool ran(const struct engine *e, uint32_t i)
{
	const uint64_t handle = engine_handle(e, i), *of;
	int n = 0;

	if (!e->c.ran || !(of = e->c.ran(e->c.replica, &n)))
		return true;
	for (int k = 0; k < n; k++)
		if (of[k] == handle)
			return true;
	return false;
}

/* A request that the daemon had goes elsewhere, or returns to the queue.  0, or why it must end. */
int engine_hold(struct engine *e, uint32_t i, bool fault)
{
	struct engine_slot *s = &e->slot[i];
	int r = engine_keeps(e) && s->owner && !s->cancelled ?
	        kept_move(s->kept, fault, fault && ran(e, i)) : -ECONNRESET;

	if (r < 0 || hand_over(e, i))
		return r;
	if (!e->c.wait_ns)
		return -ECONNRESET;
	engine_unlive(e, s);
	s->returns = false;
	engine_enqueue(e, i);
	return 0;
}

/* Nobody came: what is held ends. */
void engine_on_patience(struct io_timer *t)
{
	struct engine *e = t->ctx;
	unsigned ended = 0;

	for (uint32_t i = 0; i < e->n_slots; i++)
		if (e->slot[i].state == QUEUED && !hand_over(e, i)) {
			ended++;
			engine_end_slot(e, i, -ECONNRESET, NULL);
		}
	if (ended)
		log_warn("the daemon has not come back within %.0f s (--daemon-wait): %u requests end",
		         (double)e->c.wait_ns / 1e9, ended);
}

/* Another model or other settings came back: an answer that has begun would go on as another one, unless
 * another daemon computes as the old one did. */
void engine_other_model(struct engine *e)
{
	unsigned ended = 0;

	for (uint32_t i = 0; i < e->n_slots; i++) {
		const struct kept *k = e->slot[i].state == QUEUED ? e->slot[i].kept : NULL;

		if (k && alike_of(k) && alike_of(k) != e->model.answers && !hand_over(e, i)) {
			ended++;
			engine_end_slot(e, i, -ESTALE, NULL);
		}
	}
	if (ended)
		log_warn("the daemon came back with another model or other settings: %u answers that had begun "
		         "end", ended);
}

/* The daemon will take nothing more, although it is still there. */
void engine_leaves(struct engine *e)
{
	if (e->leaving)
		return;
	e->leaving = true;
	down(e);
}

/* Is there a daemon that could go on with this request?  For a single daemon that is its successor. */
static bool goes_on(const struct engine *e, const struct engine_slot *s)
{
	return !e->c.other || e->c.other(e->c.fleet, e, alike_of(s->kept));
}

void engine_leave(struct engine *e)
{
	unsigned returned = 0, stay = 0;

	if (!e->conn || !engine_keeps(e))
		return;
	for (uint32_t i = 0; i < e->n_slots; i++) {
		struct engine_slot *s = &e->slot[i];

		if (s->state == QUEUED)
			hand_over(e, i);
		if (s->state != LIVE || s->returns || !s->owner || s->cancelled || s->kept->forgot)
			continue;
		if (!goes_on(e, s)) {
			stay++;
			continue;
		}
		s->returns = true;
		returned++;
		engine_cancel_slot(e, s);
		s->cancelled = false;
	}
	if (returned)
		log_info("the daemon drains: %u requests go on when it is back, or elsewhere", returned);
	if (stay && !e->leaving)
		log_info("the daemon drains: %u requests that have begun end there, because no daemon is up that "
		         "computes the same", stay);
	if (!e->leaving)
		engine_leaves(e);
	io_timer_set(e->io, &e->again, io_now());
}

/* A request has come: connecting starts the daemon. */
void engine_wake(struct engine *e)
{
	e->resting = false;
	if (e->c.woken)
		atomic_fetch_add_explicit(e->c.woken, 1, memory_order_relaxed);
	e->backoff = RETRY_MIN;
	down(e);
	io_timer_set(e->io, &e->retry, io_now());
}

bool engine_rests(const struct engine *e) { return e->resting; }

void engine_lost(struct engine *e)
{
	struct sr_conn *conn = e->conn;
	uint32_t n = e->n_slots;
	unsigned ended = 0, had = (unsigned)e->tenants.n;
	bool fault;

	if (!conn)
		return;
	fault = !sr_stopped(conn);
	e->conn = NULL;                      /* first: owners that submit again must be refused, or held */
	e->leaving = false;
	e->token = (struct sr_token){ 0 };
	down(e);
	io_watch_del(e->io, &e->watch);
	io_timer_del(e->io, &e->again);
	io_timer_del(e->io, &e->probe);
	e->probing = false;
	sr_close(conn);
	if (e->c.rests && !fault && !had && e->c.wait_ns) {
		log_info("the daemon rests until a request comes (--stop-when-idle)");
		e->resting = true;
		io_timer_del(e->io, &e->patience);
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		bool queued = e->slot[i].state == QUEUED;
		int r = e->slot[i].state == LIVE ? engine_hold(e, i, fault) :
		        queued && !hand_over(e, i) && !e->c.wait_ns ? -ECONNRESET : 0;

		if (r < 0)
			engine_end_slot(e, i, r, NULL);
		ended += r < 0;
	}
	log_warn("the daemon is gone: of %u requests %u end, %u wait for it for up to %.0f s (--daemon-wait), "
	         "%u go elsewhere", had, ended, (unsigned)e->tenants.n, (double)e->c.wait_ns / 1e9,
	         had - ended - (had - ended < e->tenants.n ? had - ended : (unsigned)e->tenants.n));
	e->backoff = RETRY_MIN;
	engine_retry_later(e);
}

