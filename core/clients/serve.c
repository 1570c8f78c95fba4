/* clients/serve.c - takes what clients ask for, and gives them what they get.
 *
 * Everything that arrives from a client has passed host.c, which copies and checks.  This file has
 * the rules that need more than one record: quotas, turns, slow readers.
 *
 * The scheduler knows a request by its struct client and user_data = its place in live[],
 * which we choose.  The client's own user_data may be anything, even the same for all requests.
 *
 * All of it belongs to the loop's thread.
 */
#include "impl.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/instance/log.h"

#define CANCELS       64              /* most cancels of one client per turn (R7) */
#define RECORD_WORDS  ((uint32_t)(sizeof(struct sr_wire_request) / 4))
#define WORDS         32768           /* words of requests: most that all clients may save up together (R8) */
#define WORD_NS       8               /* ns per word earned; reading a word takes about 1/8 of it */
#define COLD_TURNS    256             /* turns without work until a client is cold: visited less often */
#define COLD_LEAST    64              /* least number of cold clients visited per turn */

_Static_assert((int)SCHED_STOP == (int)SR_STOP && (int)SCHED_LENGTH == (int)SR_LENGTH, "one reason");

/* ---- live requests --------------------------------------------------------------------------- */

static int32_t *bucket_of(const struct client *c, uint32_t ticket)
{
	return &c->bucket[(uint32_t)(ticket * c->odd) >> c->shift];
}

static int32_t live_put(struct clients *cl, struct client *c, const struct host_request *r)
{
	int32_t i = c->free != NONE ? c->free : c->n_ever++, *b = bucket_of(c, r->ticket);
	struct live *q = &c->live[i];

	if (i == c->free)
		c->free = q->next;
	*q = (struct live){ .user_data = r->q.user_data, .ticket = r->ticket, .next = *b, .used = true,
	                    .n_prompt = r->n_prompt - r->q.n_answer, .n_answer = r->q.n_answer,
	                    .max_tokens = r->q.max_tokens, .queued = cl->now, .name = r->q.name,
	                    .guided = r->q.flags & SR_GUIDED, .place = r->q.place };
	c->n_guided += q->guided;
	memcpy(c->live[i].trace, r->q.trace_id, sizeof(c->live[i].trace));
	stats_span_now(cl->cfg.counters, &q->taken);
	*b = i;
	c->n_live++;
	c->row->live++;
	c->row->unanswered++;
	return i;
}

static void live_drop(struct client *c, int32_t i)
{
	int32_t *b = bucket_of(c, c->live[i].ticket);

	while (*b != i)
		b = &c->live[*b].next;
	*b = c->live[i].next;
	c->row->live--;
	c->row->unanswered -= c->live[i].n_tokens == 0;
	c->n_guided -= c->live[i].guided;
	c->live[i].used = false;
	c->live[i].next = c->free;
	c->free = i;
	if (--c->n_live == 0)
		c->stalled_at = 0;            /* records it did not read by then no longer count */
}

int32_t live_find(const struct client *c, uint32_t ticket)
{
	int32_t i = *bucket_of(c, ticket);

	while (i != NONE && c->live[i].ticket != ticket)
		i = c->live[i].next;
	return i;
}

static void cancel_all(struct clients *cl, struct client *c)
{
	for (uint32_t i = 0; c->n_live > 0; i++) { /* each cancel ends its request at once */
		assert(i < host_shape(c->conn)->live);
		if (c->live[i].used)
			sched_cancel(cl->s, c, i);
	}
}

/* ---- what is counted ------------------------------------------------------------------------- */

static void observe(struct stats_page *p, enum stats_hist h, uint64_t from, uint64_t to)
{
	stats_observe(p, h, to > from ? (double)(to - from) / 1e9 : 0);
}

static void count_gaps(struct clients *cl)
{
	if (cl->n_gaps)
		stats_observe_many(cl->cfg.stats, HIST_ITL, (double)cl->gap_ns / 1e9, cl->n_gaps);
	cl->n_gaps = 0;
}

/* The gaps of one step are mostly equal, so equal gaps are counted together. */
static void count_gap(struct clients *cl, uint64_t ns)
{
	if (cl->gap_ns != ns)
		count_gaps(cl);
	cl->gap_ns = ns;
	cl->n_gaps++;
}

static void count_token(struct clients *cl, const struct live *q, const struct sched_event *e)
{
	struct stats_page *p = cl->cfg.stats;
	struct counters *n = cl->cfg.counters;

	n->generation_tokens++;
	if (q->n_tokens > 1) {
		if (p)
			count_gap(cl, cl->now - q->last);
		return;
	}
	n->prompt_tokens += q->n_prompt;
	n->prompt_cached += (uint64_t)e->cached;
	if (p)
		observe(p, HIST_TTFT, q->queued, cl->now);
}

static void count_end(struct clients *cl, const struct live *q, const struct sched_event *e)
{
	struct stats_page *p = cl->cfg.stats;
	struct counters *n = cl->cfg.counters;
	bool whole = e->finish == SCHED_STOP || e->finish == SCHED_LENGTH;

	n->ended[e->finish == SCHED_STOP ? ENDED_STOP : e->finish == SCHED_LENGTH ? ENDED_LENGTH :
	         e->finish == -ECANCELED ? ENDED_ABORT : ENDED_ERROR]++;
	if (!q->n_tokens && whole) {          /* a prompt that was only scored */
		n->prompt_tokens += q->n_prompt;
		n->prompt_cached += (uint64_t)e->cached;
	}
	if (!p || (!q->n_tokens && !whole))
		return;
	stats_observe(p, HIST_PROMPT_TOKENS, q->n_prompt);
	stats_observe(p, HIST_GENERATION_TOKENS, q->n_tokens);
	stats_observe(p, HIST_MAX_TOKENS, q->max_tokens);
	stats_observe(p, HIST_PREFILL_COMPUTED, e->computed);
	observe(p, HIST_E2E, q->queued, cl->now);
	observe(p, HIST_QUEUE, q->queued, e->scheduled);
	observe(p, HIST_INFERENCE, e->scheduled, q->n_tokens ? q->last : cl->now);
	observe(p, HIST_PREFILL, e->scheduled, q->n_tokens ? q->first : cl->now);
	if (q->n_tokens)
		observe(p, HIST_DECODE, q->first, q->last);
	if (q->n_tokens > 1)
		stats_observe(p, HIST_TPOT, (double)(q->last - q->first) / 1e9 / (q->n_tokens - 1));
}

static const char *finish_text(int finish)
{
	return finish == SCHED_STOP ? "stop" : finish == SCHED_LENGTH ? "length" :
	       finish == -EDOM ? "its guide and its lists left no token" :
	       finish == -ETIMEDOUT ? "no guide came for 10 s" : strerror(-finish);
}

/* Logged at --log-level debug, by the trace id of the adapter's access log.  No prompt, no token. */
static void log_end(const struct clients *cl, const struct client *c, const struct live *q, int finish,
                    uint64_t scheduled)
{
	char hex[33];

	if (!log_shows(LOG_DEBUG))
		return;
	for (int i = 0; i < 16; i++)
		snprintf(hex + 2 * i, 3, "%02x", q->trace[i]);
	log_debug("request of %s, trace %s: %s; %u prompt tokens, %u of %u tokens; waited %.1f ms, first token "
	          "after %.1f ms, %.1f ms in all", c->name, hex, finish_text(finish), q->n_prompt, q->n_tokens,
	          q->max_tokens,
	          scheduled ? (double)(scheduled - q->queued) / 1e6 : 0.0,
	          q->n_tokens ? (double)(q->first - q->queued) / 1e6 : 0.0,
	          (double)(cl->now - q->queued) / 1e6);
}

/* Keep the end for slipring why. */
static void note_end(const struct clients *cl, const struct client *c, const struct live *q,
                     const struct sched_event *e)
{
	struct stats_ended end = {
		.name = q->name, .queued = q->queued, .scheduled = e->scheduled, .first = q->first, .last = q->last,
		.at = cl->now, .n_prompt = q->n_prompt, .cached = (uint32_t)e->cached,
		.computed = (uint32_t)e->computed, .n_tokens = q->n_tokens, .max_tokens = q->max_tokens,
		.preempted = (uint32_t)e->preempted, .finish = e->finish, .guided = q->guided,
		.masks = q->masks, .mask_us = q->mask_us, .mask_most_us = q->mask_most_us, .uid = c->uid,
	};
	struct stats_span now;

	if (!cl->cfg.stats)
		return;
	memcpy(end.trace, q->trace, sizeof(end.trace));
	memcpy(end.client, c->name, sizeof(end.client));
	stats_span_now(cl->cfg.counters, &now);
	stats_span_between(&q->taken, q->n_tokens ? &q->begun : &now, &end.before);
	if (q->n_tokens)
		stats_span_between(&q->begun, &now, &end.after);
	stats_end(cl->cfg.stats, &end);
}

/* ---- the scheduler's port -------------------------------------------------------------------- */

/* A stall ends when the client has read one record for each request it had when the stall began;
 * room made by cancelling does not count. */
static bool stall_goes_on(struct clients *cl, struct client *c)
{
	uint32_t left = host_left(c->conn);

	if (c->stalled_at && left - c->stalled_left < c->stalled_live)
		return true;
	c->stalled_at = cl->now;
	c->stalled_left = left;
	c->stalled_live = c->n_live > 0 ? (uint32_t)c->n_live : 1;
	return false;
}

/* A row or an end found no room for `least` records in this client's ring. */
static __attribute__((noinline)) void stall(struct clients *cl, struct client *c, uint32_t least)
{
	if (!c->need) {
		stall_goes_on(cl, c);
		c->row->held++;
		c->row->full_since_ns = cl->now;
	}
	if (!c->need || least < c->need)
		c->need = least;
}

static bool port_room(void *ctx, void *client, uint32_t n)
{
	struct client *c = client;

	if (host_room(c->conn, n))
		return true;
	stall(ctx, c, n);
	return false;
}

static uint32_t port_reserve(void *ctx, void *client, uint32_t least, uint32_t most)
{
	struct client *c = client;
	uint32_t n = host_reserve(c->conn, least, most);

	if (!n)
		stall(ctx, c, least);
	return n;
}

static void port_release(void *ctx, void *client, uint32_t n)
{
	(void)ctx;
	host_release(((struct client *)client)->conn, n);
}

static void soil(struct clients *cl, struct client *c)
{
	if (!c->dirty)
		cl->dirty[cl->n_dirty++] = c;
	c->dirty = true;
}

_Static_assert(sizeof(struct sr_top) == sizeof(struct sr_pair) &&
               offsetof(struct sr_top, logprob) == offsetof(struct sr_pair, value), "an id and a float, both");

static void put_token(struct clients *cl, struct client *c, struct live *q, const struct sched_event *e)
{
	bool scored = e->kind == SCHED_SCORED;

	host_token(c->conn, &(struct host_token){
		.user_data = q->user_data, .id = e->id, .index = scored ? (uint32_t)e->position :
		         q->n_answer + q->n_tokens,
		.rank = (uint32_t)e->rank, .logprob = e->logprob, .kind = scored ? SR_PROMPT : SR_TOKEN,
		.n_top = (uint32_t)e->n_top, .last = e->last, .top = (const struct sr_pair *)(const void *)e->top,
	});
	if (scored)
		return;
	if (!q->n_tokens++) {
		q->first = cl->now;
		stats_span_now(cl->cfg.counters, &q->begun);
		c->row->unanswered--;
	}
	c->row->tokens++;
	count_token(cl, q, e);
	q->last = cl->now;
}

static __attribute__((noinline)) void put_end(struct clients *cl, struct client *c, struct live *q,
                                              const struct sched_event *e)
{
	host_end(c->conn, q->user_data, &(struct sr_end){
		.finish = e->finish, .n_tokens = q->place ? q->n_vector : q->n_answer + q->n_tokens,
		.computed = (uint32_t)e->computed, .cached = (uint32_t)e->cached,
		.queued = q->queued, .scheduled = e->scheduled, .first = q->first, .last = q->last,
	}, (uint32_t)e->preempted, (q->guided ? SR_GUIDED : 0) | (q->place ? SR_POOLED : 0), q->place);
	count_end(cl, q, e);
	if (q->recorded)
		record_end(cl->cfg.recorder, q->recorded, cl->now, q->n_tokens, e->finish);
	log_end(cl, c, q, e->finish, e->scheduled);
	note_end(cl, c, q, e);
	live_drop(c, (int32_t)e->user_data);
}

/* For this record nothing was set aside: it may use only room that is free now. */
static __attribute__((noinline)) void put_progress(struct clients *cl, struct client *c, const struct live *q,
                                                   const struct sched_event *e)
{
	if (host_reserve(c->conn, 1, 1))
		host_computed(c->conn, q->user_data, &(struct sr_end){
			.computed = (uint32_t)e->position, .cached = (uint32_t)e->cached, .queued = q->queued,
			.scheduled = e->scheduled, .last = cl->now,
		});
}

static void port_emit(void *ctx, void *client, const struct sched_event *e)
{
	struct clients *cl = ctx;
	struct client *c = client;
	struct live *q = &c->live[e->user_data];

	assert(q->used);
	soil(cl, c);
	if (e->kind == SCHED_END) {
		put_end(cl, c, q, e);
	} else if (e->kind == SCHED_PROGRESS) {
		put_progress(cl, c, q, e);
	} else if (e->kind == SCHED_VECTOR) {
		q->n_vector = (uint32_t)e->n_vector;
		host_vector(c->conn, q->place, e->vector, q->n_vector);
	} else {
		put_token(cl, c, q, e);
	}
}

void clients_port(struct clients *cl, struct sched_port *out)
{
	*out = (struct sched_port){ .ctx = cl, .room = port_room, .reserve = port_reserve, .release = port_release,
	                            .emit = port_emit };
	for (uint32_t n = 0; n <= SR_TOP_MAX; n++)
		out->cost[n] = (uint8_t)sr_wire_records(n);
}

void clients_attach(struct clients *cl, struct sched *s) { cl->s = s; }

/* ---- requests -------------------------------------------------------------------------------- */

/* Copying requests costs the loop's time, whether they are right or wrong.  So each client has a token
 * bucket of words (its purse), refilled by time: one word per WORD_NS, divided among the clients that
 * had work lately, at most WORDS in all.  A client may overdraw its bucket once while the common bucket,
 * refilled likewise, is not in debt.  So long prompts are read one after the other, and short ones do
 * not wait for them. */
static void earn(struct purse *p, uint64_t now, uint32_t n)
{
	uint64_t words = now > p->at ? (now - p->at) / (WORD_NS * n) : 0;
	int64_t most = WORDS / n;

	if (p->words + (int64_t)words >= most)
		*p = (struct purse){ most, now };
	else
		*p = (struct purse){ p->words + (int64_t)words, p->at + words * WORD_NS * n };
}

bool can_pay(const struct clients *cl, const struct client *c, uint32_t words)
{
	return c->purse.words >= words || (c->purse.words >= 0 && cl->purse.words > 0);
}

void pay(struct clients *cl, struct client *c, uint32_t words)
{
	if (c->purse.words < words)
		cl->purse.words -= words;
	c->purse.words -= words;
}

/* End a request that the scheduler never had.  False: the ring has no room for the end now. */
static bool turn_away(struct clients *cl, struct client *c, const struct host_request *r, int error)
{
	struct counters *n = cl->cfg.counters;
	struct live refused = { .n_prompt = r->n_prompt, .max_tokens = r->q.max_tokens, .queued = cl->now,
	                        .name = r->q.name };

	memcpy(refused.trace, r->q.trace_id, sizeof(refused.trace));
	if (!port_reserve(cl, c, 1, 1))
		return false;
	host_end(c->conn, r->q.user_data, &(struct sr_end){ .finish = error, .queued = cl->now }, 0,
	         r->q.flags, r->q.place);
	if (error == -EAGAIN)                 /* it is submitted again: for its own client it has not ended */
		return true;
	log_end(cl, c, &refused, error, 0);
	stats_span_now(n, &refused.taken);
	if (error != -EINVAL)                 /* it costs its client nothing, and shows what the client says */
		note_end(cl, c, &refused, &(struct sched_event){ .finish = error });
	n->invalid += error == -EINVAL;
	n->ended[error == -ECANCELED ? ENDED_ABORT : ENDED_ERROR]++;
	return true;
}

/* The request may have ended already: a score of one id computes nothing. */
static void record_taken(struct clients *cl, struct client *c, int32_t i, const struct host_request *r,
                         const struct sched_request *q)
{
	uint64_t number = record_request(cl->cfg.recorder, cl->now, q->salt, q->prompt, r->n_prompt,
	                                 r->q.max_tokens - r->q.n_answer);

	if (c->live[i].used)
		c->live[i].recorded = number;
	else if (number)
		record_end(cl->cfg.recorder, number, cl->now, 0, SCHED_LENGTH);
}

/* Handle the held request: true if that is done, false to try again next turn. */
static bool take_one(struct clients *cl, struct client *c, struct host_request *r)
{
	uint64_t tenant = key_tenant(cl, c, r->q.tenant);
	bool unread = r->error || r->cancelled || cl->draining;
	enum sched_room room = SCHED_ROOM;
	uint32_t words = RECORD_WORDS + (unread ? 0 : r->words);
	struct sched_request q;
	int32_t i;
	int e;

	if (c->need)                          /* no room for its end, or for records before it */
		return false;
	if (!unread && c->n_live == (int32_t)host_shape(c->conn)->live)
		return false;
	if (!unread && r->q.flags & SR_GUIDED && c->n_guided == (int32_t)host_shape(c->conn)->guides)
		return false;
	if (!unread)
		room = sched_full(cl->s, c, tenant, (int32_t)r->n_prompt, words_of(cl, r));
	if (!unread && !room && r->q.flags & SR_GUIDED)
		room = sched_guides_full(cl->s, tenant);
	if (room == SCHED_OVER && tenant != c->uid) {
		words = RECORD_WORDS;         /* requests of other tenants wait behind it in the same ring */
		unread = true;
	} else if (room) {
		return false;
	}
	if (!can_pay(cl, c, words)) {
		cl->owed = c->owes = true;
		return false;
	}
	pay(cl, c, words);
	if (unread)
		return turn_away(cl, c, r, r->error ? r->error : r->cancelled ? -ECANCELED :
		                 room ? -EAGAIN : -ECONNRESET);
	e = host_read(c->conn);
	if (e == -EFAULT) {
		conn_lie(c, e);
		return false;
	}
	if (e)
		return turn_away(cl, c, r, e);
	q = translate(cl, c, r, tenant);
	i = live_put(cl, c, r);
	q.user_data = (uint64_t)i;
	e = sched_admit(cl->s, c, tenant, &q, cl->now);
	if (e)
		live_drop(c, i);
	if (e)
		return e != -EAGAIN && turn_away(cl, c, r, e);
	if (cl->cfg.recorder)
		record_taken(cl, c, i, r, &q);
	c->row->requests++;
	c->row->alone += c->n_live == 1;
	c->row->prompt_tokens += r->n_prompt;
	cl->cfg.counters->guided += c->live[i].guided;
	cl->cfg.counters->pooled += c->live[i].place > 0;
	take_guides_kept(cl, c);
	return true;
}

/* Take at most cfg.take requests in a turn, as far as the token bucket pays for them. */
static int take_requests(struct clients *cl, struct client *c)
{
	struct host_request *r;
	uint32_t n = 0;
	int e = 0;

	while (!c->gone && n < cl->cfg.take && (e = host_peek(c->conn, &r)) == 1 && take_one(cl, c, r)) {
		host_leave(c->conn);
		n++;
	}
	if (e < 0)
		conn_lie(c, e);
	cl->stats.taken += n;
	return (int)n;
}

static int take_cancels(struct clients *cl, struct client *c)
{
	uint32_t ticket;
	int n = 0, e = 0;

	for (; n < CANCELS && (e = host_cancel(c->conn, &ticket)) > 0; n++) {
		int32_t i = e == 1 ? live_find(c, ticket) : NONE;

		if (i != NONE)
			sched_cancel(cl->s, c, (uint64_t)i);
	}
	if (e < 0)
		conn_lie(c, e);
	return n;
}

/* The ring had no room: has it room now?  Or does the client not read at all? */
static int take_room(struct clients *cl, struct client *c)
{
	if (host_room(c->conn, c->need)) {
		c->need = 0;
		c->row->full_since_ns = 0;
		return 1;
	}
	if (stall_goes_on(cl, c) && cl->cfg.stall_ns && c->n_live && cl->now - c->stalled_at > cl->cfg.stall_ns) {
		log_debug("client %s (uid %u) does not read: its %d requests are cancelled", c->name, c->uid,
		          c->n_live);
		cl->stats.stalled++;
		c->stalled_at = 0;
		cancel_all(cl, c);
		return 1;
	}
	return 0;
}

static int serve(struct clients *cl, struct client *c)
{
	int work = 0;

	assert(!c->gone);                     /* gone clients were removed before this */
	c->owes = false;
	earn(&c->purse, cl->now, cl->n_hot > 1 ? (uint32_t)cl->n_hot : 1);
	if (c->need)
		work += take_room(cl, c);
	work += take_cancels(cl, c);
	if (c->guides && !c->gone)
		work += take_guides(cl, c);
	if (!c->gone)
		work += take_requests(cl, c);
	if (c->guides && !c->gone)            /* for requests just taken */
		work += take_guides(cl, c);
	if (work) {
		soil(cl, c);                  /* it may sleep for room in its request ring */
		c->idle = 0;
	} else if (c->n_live == 0 && !c->need && !c->owes) {
		c->idle++;
	}
	return work;
}

/* ---- the loop's verbs ------------------------------------------------------------------------ */

int clients_take(struct clients *cl, uint64_t now)
{
	int work = cl->n_gone;
	int32_t n, n_cold;

	cl->now = now;
	cl->turn++;
	cl->owed = false;
	earn(&cl->purse, now, 1);
	if (cl->n_gone)
		conn_bury(cl);
	n = cl->n_hot;
	for (int32_t i = 0; i < n; i++)       /* start at another client in each turn */
		work += serve(cl, cl->open[(i + (int32_t)(cl->turn % (uint32_t)n)) % n]);
	n_cold = cl->n_open - n;
	n = cl->sweep || n_cold <= COLD_LEAST ? n_cold : n_cold / 16 > COLD_LEAST ? n_cold / 16 : COLD_LEAST;
	for (; n > 0; n--) {                  /* conn_heat() puts another cold client in its place */
		struct client *c = cl->open[cl->n_hot + cl->cold++ % n_cold];
		int did;

		if (c->gone)                  /* it broke the protocol in this turn, and its place came up again */
			continue;
		did = serve(cl, c);
		if (did || c->owes) {
			conn_heat(cl, c);
			if (--n_cold == 0)
				break;
		}
		work += did;
	}
	cl->cold = n_cold ? cl->cold % n_cold : 0;
	cl->sweep = false;
	for (int32_t i = cl->n_hot - 1; i >= 0 && cl->turn % 64 == 0; i--)
		if (cl->open[i]->idle > COLD_TURNS)
			conn_cool(cl, cl->open[i]);
	return work;
}

void clients_flush(struct clients *cl)
{
	if (!cl->n_dirty)
		return;
	count_gaps(cl);
	sr_ring_fence();                      /* F2, for all clients */
	for (int32_t i = 0; i < cl->n_dirty; i++) {
		struct client *c = cl->dirty[i];

		c->dirty = false;
		if (!c->gone && host_wake(c->conn) < 0)
			conn_lose(c, "closed");
	}
	cl->n_dirty = 0;
}

bool clients_arm(struct clients *cl)
{
	if (cl->n_gone || cl->n_dirty || !conn_rest(cl))
		return false;
	for (int32_t i = 0; i < cl->n_open; i++)
		host_arm(cl->open[i]->conn, cl->open[i]->need);
	sr_ring_fence();                      /* F1, for all clients */
	for (int32_t i = 0; i < cl->n_open; i++)
		if (host_ready(cl->open[i]->conn, cl->open[i]->need)) {
			conn_heat(cl, cl->open[i]);
			return false;
		}
	return true;
}

/* Asks stay armed: each costs one needless signal, less work than to disarm them all. */
void clients_awake(struct clients *cl) { cl->sweep = true; }

void clients_doing(struct clients *cl, struct empty *e, uint64_t now)
{
	bool pending = empty_pending(e);
	uint64_t said[2], ns[2];

	empty_listen(e);
	for (int32_t i = 0; i < cl->n_open; i++) {
		struct client *c = cl->open[i];

		host_doing(c->conn, now, said);
		empty_hear(e, &c->doing, now, said, ns);
		c->row->preparing_ns += pending ? ns[EMPTY_PREPARING] : 0;
		c->row->arriving_ns += pending ? ns[EMPTY_ARRIVING] : 0;
	}
}

void clients_drain(struct clients *cl)
{
	if (cl->draining)
		return;
	cl->draining = true;
	conn_deaf(cl);
	for (int32_t i = 0; i < cl->n_all; i++)
		if (!cl->all[i]->conn)
			cl->all[i]->refuse = -ECONNREFUSED;
}

void clients_stats(const struct clients *cl, struct clients_stats *out) { *out = cl->stats; }

/* ---- create and destroy ---------------------------------------------------------------------- */

/* Rings for n guided answers, by the wire's rule for sizes. */
static uint32_t guides_room(uint32_t n)
{
	uint32_t room = 8;

	while (room < n && room < 1u << 12)
		room *= 2;
	return n ? room : 0;
}

static int host_make(struct clients *cl)
{
	const struct clients_config *cfg = &cl->cfg;
	struct host_config s = { .most = { cfg->live, cfg->tokens, cfg->arena, guides_room(cfg->guides), cfg->vectors } };

	if (getrandom(cl->key, sizeof(cl->key), 0) != sizeof(cl->key) ||
	    getrandom(&s.model.epoch, sizeof(s.model.epoch), 0) != sizeof(s.model.epoch))
		return -EIO;
	s.model.epoch |= 1;                   /* 0 would mean that the daemon is gone */
	s.model.vocab = (uint32_t)cfg->vocab;
	s.model.context = (uint32_t)cfg->context;
	s.model.guides = cfg->guides;
	s.model.width = (uint32_t)cfg->width;
	s.model.answers = cfg->answers;
	s.model.sampling = cfg->sampling;
	s.model.max_tokens = cfg->max_tokens;
	s.model.flags = (cfg->only_pooled ? SR_ONLY_POOLED : 0) | (cfg->labels ? SR_LABELS : 0);
	memcpy(s.model.name, cfg->model_name, sizeof(s.model.name) - 1);
	memcpy(s.model.vocab_hash, cfg->vocab_hash, sizeof(s.model.vocab_hash));
	return host_create(&cl->host, &s);
}

int clients_create(struct clients **out, const struct clients_config *cfg, struct io *io, int listen_fd)
{
	struct clients *cl = calloc(1, sizeof(*cl));
	size_t max = 2 * (size_t)cfg->max + REFUSALS; /* staying, refused, or not yet cleared up */
	int e;

	if (!cl || cfg->max < 1 || cfg->max > HOST_CONNS_MAX - REFUSALS || cfg->max_per_uid < 1 ||
	    cfg->take < 1 || cfg->n_eos < 0 || !cfg->counters) {
		e = cl ? -EINVAL : -ENOMEM;
		close(listen_fd);
		free(cl);
		return e;
	}
	cl->cfg = *cfg;
	cl->io = io;
	cl->self = geteuid();
	cl->listener.fd = listen_fd;
	cl->n_places = (int32_t)max;
	cl->all = calloc(max, sizeof(cl->all[0]));
	cl->open = calloc(max, sizeof(cl->open[0]));
	cl->dirty = calloc(max, sizeof(cl->dirty[0]));
	cl->left = calloc(max, sizeof(cl->left[0]));
	cl->words = calloc(SCHED_BEGIN_WORDS + (size_t)cfg->n_eos + sr_lists_bytes() / 4, sizeof(uint32_t));
	e = !cl->all || !cl->open || !cl->dirty || !cl->left || !cl->words ? -ENOMEM : host_make(cl);
	if (!e)
		e = aside_create(&cl->aside, io);
	if (!e)
		e = conn_listen(cl, listen_fd);
	if (e) {
		clients_destroy(cl);
		return e;
	}
	*out = cl;
	return 0;
}

void clients_destroy(struct clients *cl)
{
	if (!cl)
		return;
	cl->line[0].first = cl->line[1].first = NULL;
	while (cl->n_all > 0)
		conn_free(cl->all[cl->n_all - 1], true);
	left_end(cl);
	conn_deaf(cl);
	aside_destroy(cl->aside);
	io_timer_del(cl->io, &cl->nap);
	host_destroy(cl->host);
	free(cl->all);
	free(cl->open);
	free(cl->dirty);
	free(cl->left);
	free(cl->words);
	free(cl);
}
