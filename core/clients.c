/* clients.c - who is connected, and what they ask for.
 *
 *	accept -> HELLO --hello--> OPEN --end of file, death, a lie--> gone, buried in clients_take
 *	               `--too many, wrong version, a second passed--> refused
 *
 * Everything that arrives from a client has passed server.c, which copies and checks; here are
 * the rules that need more than one record to be seen: quotas, turns, tenants, slow readers.
 *
 * The scheduler knows a request by `who` = struct client and user_data = its place in live[],
 * which is ours; the client's own user_data may be anything, also the same for all.
 *
 * All of it belongs to the loop's thread.  Callbacks of io only mark; clients_take acts.
 */
#include "clients.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/log.h"
#include "shmring/server.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77               /* Linux 6.5 */
#endif

#define MS            1000000ull
#define HELLO_NS      (1000 * MS)     /* from connect to hello */
#define REFUSALS      16              /* connections over the limit that may yet hear so */
#define CANCELS       64              /* of one client per turn (R7) */
#define TOKENS        65536           /* prompt tokens a client earns per turn (R8) */
#define SIGNALS       16              /* read from a socket at a time */
#define BELLS         256             /* times it was, in a window: then a client is not heard */
#define BELLS_NS      (10 * MS)       /* until the next (R7) */
#define COLD_TURNS    256             /* turns without work until a client is looked at less often */
#define COLD_LEAST    64              /* but so many of the cold are looked at every turn */
#define NONE          (-1)

_Static_assert(CLIENTS_TOPS_HERE == SR_TOP_HERE && CLIENTS_TOPS_PER == SR_TOP_PER, "one cost");

struct live {                         /* a request that the scheduler has */
	uint64_t user_data;           /* the client's */
	uint32_t ticket;
	int32_t  next;                /* in its bucket, or in the free list */
	bool     used;
	uint32_t n_prompt, max_tokens, n_tokens; /* n_tokens: of the answer so far */
	uint64_t queued, first, last;
};

struct client {
	struct clients *cl;
	struct server_conn *conn;     /* NULL until the hello */
	int fd, pidfd;
	uid_t uid;
	bool trusted, gateway;        /* may be urgent and hold huge pages; may name tenants */
	bool gone, dirty;             /* to be buried; to be woken */
	int  refuse;                  /* the answer to its hello: 0 or -errno */
	char name[32];
	struct io_watch socket, death;
	struct io_timer timer;        /* HELLO: the deadline; OPEN: hear it again */
	int32_t at, at_open;          /* places in all[], open[] */

	struct live *live;            /* [live] */
	int32_t *bucket;              /* [live]: by ticket */
	int32_t  free, n_live;
	uint32_t shift, odd;          /* of the hash: a client cannot choose what collides */

	int64_t  credit;              /* prompt tokens it may hand in this turn */
	uint32_t idle;                /* turns without work */
	uint32_t need;                /* records that somebody waits for room for; 0 = nobody */
	uint32_t stalled_left;        /* how far it had read */
	uint64_t stalled_at;          /*  when that was first seen */
	uint64_t bells_at;            /* begin of the window */
	uint32_t bells;
};

struct clients {
	struct clients_config cfg;
	struct clients_stats stats;
	struct io *io;
	struct sched *s;
	struct server *server;
	struct io_watch listener;
	struct io_timer again;        /* listen again, after descriptors had run out */
	bool draining, sweep;         /* sweep: look at all next turn */
	uint64_t now, turn;
	uid_t self;

	struct client **all;          /* [max + REFUSALS] */
	struct client **open;         /* [max]: those with work lately first, n_hot of them */
	struct client **dirty;        /* [max] */
	int32_t n_all, n_open, n_hot, n_dirty, n_gone, cold;

	uint64_t key[2], n_seeds;     /* of seeds and salts */
	uint32_t *stop, *bias, *allow, *bad; /* lists in the scheduler's form */
};

/* ---- keyed hash ------------------------------------------------------------------------------ */

#define ROTL(x, n) ((x) << (n) | (x) >> (64 - (n)))

/* SipHash-2-4 (Aumasson and Bernstein, 2012) of n words. */
static uint64_t siphash(const uint64_t key[2], const uint64_t *word, int n)
{
	uint64_t a = key[0] ^ 0x736f6d6570736575u, b = key[1] ^ 0x646f72616e646f6du;
	uint64_t c = key[0] ^ 0x6c7967656e657261u, d = key[1] ^ 0x7465646279746573u;

	for (int i = 0; i <= n; i++) {
		uint64_t m = i < n ? word[i] : (uint64_t)n * 8 << 56;

		d ^= m;
		for (int round = 0; round < (i < n ? 2 : 6); round++) {
			if (i == n && round == 2) {
				a ^= m;
				c ^= 0xff;
			}
			a += b; b = ROTL(b, 13) ^ a; a = ROTL(a, 32);
			c += d; d = ROTL(d, 16) ^ c;
			a += d; d = ROTL(d, 21) ^ a;
			c += b; b = ROTL(b, 17) ^ c; c = ROTL(c, 32);
		}
		if (i < n)
			a ^= m;
	}
	return a ^ b ^ c ^ d;
}

/* Whom a cached prefix is shared with: nobody can make another's salt without the key. */
static uint64_t salt_of(const struct clients *cl, const struct client *c, uint64_t tenant, uint64_t salt)
{
	uint64_t by_uid[] = { 0, c->uid, salt }, by_tenant[] = { 1, tenant, salt }, global[] = { 2, 0, salt };

	return siphash(cl->key, cl->cfg.scope_global ? global : cl->cfg.scope_tenant ? by_tenant : by_uid, 3);
}

/* A tenant that a gateway names is never one of the machine's users. */
static uint64_t tenant_of(const struct clients *cl, const struct client *c, uint64_t named)
{
	uint64_t word[2] = { c->uid, named };

	return c->gateway && named ? siphash(cl->key, word, 2) | 1ull << 63 : c->uid;
}

static uint64_t seed_of(struct clients *cl, const struct sr_wire_request *q)
{
	return q->flags & SR_SEEDED ? q->seed : siphash(cl->key, &(uint64_t){ cl->n_seeds++ }, 1);
}

/* ---- who is where ---------------------------------------------------------------------------- */

static void place(struct clients *cl, struct client *c, int32_t at)
{
	cl->open[at] = c;
	c->at_open = at;
}

/* Look at it every turn. */
static void heat(struct clients *cl, struct client *c)
{
	c->idle = 0;
	if (c->at_open < cl->n_hot)
		return;
	place(cl, cl->open[cl->n_hot], c->at_open);
	place(cl, c, cl->n_hot++);
}

static void cool(struct clients *cl, struct client *c)
{
	int32_t at = c->at_open;

	if (at >= cl->n_hot)
		return;
	place(cl, cl->open[--cl->n_hot], at);
	place(cl, c, cl->n_hot);
}

static void soil(struct clients *cl, struct client *c)
{
	if (!c->dirty)
		cl->dirty[cl->n_dirty++] = c;
	c->dirty = true;
}

/* To be buried by the next clients_take: here its requests may be on the way somewhere. */
static void lose(struct client *c, const char *why)
{
	if (c->gone)
		return;
	c->gone = true;
	c->cl->n_gone++;
	log_debug("client %s (uid %u): %s", c->name, c->uid, why);
}

static void lie(struct client *c, int e)
{
	if (!c->gone)
		c->cl->stats.poisoned++;
	log_warn("client %s (uid %u) dropped: it %s", c->name, c->uid,
	         e == -EFAULT ? "took away the memory it shares" : "broke the protocol");
	lose(c, "dropped");
}

/* ---- come and go ----------------------------------------------------------------------------- */

/* Nothing of it stays: the scheduler forgets it, and watches have no callback any more. */
static void client_free(struct client *c, bool stopping)
{
	struct clients *cl = c->cl;

	if (c->conn) {
		if (cl->s)
			sched_forget(cl->s, c);
		cl->stats.died += c->n_live > 0 && !stopping;
		cool(cl, c);
		place(cl, cl->open[--cl->n_open], c->at_open);
		cl->stats.connected--;
		server_close(c->conn, stopping);
	}
	for (int32_t i = 0; c->dirty && i < cl->n_dirty; i++)
		if (cl->dirty[i] == c)
			cl->dirty[i] = cl->dirty[--cl->n_dirty], c->dirty = false;
	io_timer_del(cl->io, &c->timer);
	io_watch_del(cl->io, &c->socket);
	if (c->pidfd >= 0) {
		io_watch_del(cl->io, &c->death);
		close(c->pidfd);
	}
	close(c->fd);
	cl->n_gone -= c->gone;
	cl->all[c->at] = cl->all[--cl->n_all];
	cl->all[c->at]->at = c->at;
	free(c->live);
	free(c->bucket);
	free(c);
}

static void bury(struct clients *cl)
{
	for (int32_t i = cl->n_all - 1; cl->n_gone > 0 && i >= 0; i--)
		if (cl->all[i]->gone)
			client_free(cl->all[i], false);
}

static int live_make(struct client *c)
{
	int32_t n = (int32_t)server_shape(c->conn)->live;

	c->live = calloc((size_t)n, sizeof(c->live[0]));
	c->bucket = malloc((size_t)n * sizeof(c->bucket[0]));
	if (!c->live || !c->bucket)
		return -ENOMEM;
	for (int32_t i = 0; i < n; i++) {
		c->live[i].next = i + 1 < n ? i + 1 : NONE;
		c->bucket[i] = NONE;
	}
	c->shift = 32 - (uint32_t)__builtin_ctz((unsigned)n);
	c->odd = (uint32_t)siphash(c->cl->key, &(uint64_t){ c->cl->n_seeds++ }, 1) | 1;
	return 0;
}

static void client_hello(struct client *c)
{
	struct clients *cl = c->cl;
	struct sr_hello h;
	int e = server_hello(c->fd, &h);

	if (e == -EAGAIN)
		return;
	if (!e)
		e = c->refuse;
	if (!e)
		e = server_open(&c->conn, cl->server, c->fd, &h, c->trusted);
	if (!e && (e = live_make(c)) < 0) {
		server_close(c->conn, false);
		c->conn = NULL;
	}
	if (e) {
		if (e != -ECONNRESET)
			server_refuse(c->fd, e);
		cl->stats.refused++;
		client_free(c, false);
		return;
	}
	memcpy(c->name, h.name, sizeof(c->name));
	io_timer_del(cl->io, &c->timer);
	cl->stats.accepted++;
	cl->stats.connected++;
	place(cl, c, cl->n_open++);
	heat(cl, c);
	log_debug("client %s (uid %u) connected", c->name, c->uid);
}

/* A signal says nothing but "look at me".  Who sends more than anybody could need is not heard
 * until the window is over: it makes only itself wait. */
static void client_bell(struct client *c)
{
	struct clients *cl = c->cl;
	uint64_t now = io_now();

	if (server_drain(c->conn, SIGNALS) < 0) {
		lose(c, "closed");
		return;
	}
	heat(cl, c);
	if (now - c->bells_at > BELLS_NS) {
		c->bells_at = now;
		c->bells = 0;
	}
	if (++c->bells > BELLS) {
		io_watch_set(cl->io, &c->socket, IO_HUP);
		io_timer_set(cl->io, &c->timer, c->bells_at + BELLS_NS);
	}
}

static void on_socket(struct io_watch *w, uint32_t events)
{
	struct client *c = w->ctx;

	if (c->gone)
		return;
	if (c->conn && events & IO_HUP)
		lose(c, "closed");
	else if (c->conn)
		client_bell(c);
	else if (events & IO_IN)
		client_hello(c);
	else
		client_free(c, false);
}

static void on_death(struct io_watch *w, uint32_t events)
{
	(void)events;
	lose(w->ctx, "died");
}

static void on_timer(struct io_timer *t)
{
	struct client *c = t->ctx;

	if (c->conn) {
		io_watch_set(c->cl->io, &c->socket, IO_IN | IO_HUP);
		return;
	}
	c->cl->stats.refused++;
	client_free(c, false);
}

/* Who is it, and may it stay? */
static int admit(struct clients *cl, struct client *c)
{
	struct ucred cred;
	socklen_t len = sizeof(cred), n = sizeof(c->pidfd);
	int32_t same = 0;

	if (getsockopt(c->fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
		return -EACCES;
	c->uid = cred.uid;
	c->trusted = c->uid == cl->self || c->uid == 0 || c->uid == cl->cfg.gateway;
	c->gateway = c->uid == cl->self || c->uid == cl->cfg.gateway;
	if (getsockopt(c->fd, SOL_SOCKET, SO_PEERPIDFD, &c->pidfd, &n) < 0)
		/* Before Linux 6.5.  The pid may have been given to another since it connected; then
		 * its end is seen by the socket alone. */
		c->pidfd = (int)syscall(SYS_pidfd_open, cred.pid, 0);
	for (int32_t i = 0; i < cl->n_all; i++)
		same += cl->all[i]->uid == c->uid && !cl->all[i]->refuse;
	if (cl->draining)
		return -ECONNREFUSED;
	return cl->n_all >= cl->cfg.max || same >= cl->cfg.max_per_uid ? -EUSERS : 0;
}

static void client_new(struct clients *cl, int fd)
{
	struct client *c = cl->n_all < cl->cfg.max + REFUSALS ? calloc(1, sizeof(*c)) : NULL;

	if (!c) {
		cl->stats.refused++;
		close(fd);
		return;
	}
	*c = (struct client){ .cl = cl, .fd = fd, .pidfd = -1, .at = cl->n_all, .free = 0, .name = "?" };
	c->refuse = admit(cl, c);
	c->socket = (struct io_watch){ .fd = fd, .events = IO_IN | IO_HUP, .fn = on_socket, .ctx = c };
	c->death = (struct io_watch){ .fd = c->pidfd, .events = IO_IN, .fn = on_death, .ctx = c };
	c->timer = (struct io_timer){ .fn = on_timer, .ctx = c };
	cl->all[cl->n_all++] = c;
	io_timer_set(cl->io, &c->timer, io_now() + HELLO_NS);
	if (io_watch_add(cl->io, &c->socket) < 0 || (c->pidfd >= 0 && io_watch_add(cl->io, &c->death) < 0)) {
		cl->stats.refused++;
		client_free(c, false);
	}
}

static void on_listener(struct io_watch *w, uint32_t events)
{
	struct clients *cl = w->ctx;

	(void)events;
	for (int i = 0; i < 16; i++) {
		int fd = accept4(w->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd >= 0) {
			client_new(cl, fd);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
			log_warn("no descriptors or memory for another client: waiting a moment");
			io_watch_set(cl->io, w, 0); /* it stays readable: do not spin on it */
			io_timer_set(cl->io, &cl->again, io_now() + 100 * MS);
		}
		return;
	}
}

static void on_again(struct io_timer *t)
{
	struct clients *cl = t->ctx;

	io_watch_set(cl->io, &cl->listener, IO_IN);
}

/* ---- live requests --------------------------------------------------------------------------- */

static int32_t *bucket_of(const struct client *c, uint32_t ticket)
{
	return &c->bucket[(uint32_t)(ticket * c->odd) >> c->shift];
}

static int32_t live_put(struct client *c, const struct server_request *r, uint64_t now)
{
	int32_t i = c->free, *b = bucket_of(c, r->ticket);
	struct live *q = &c->live[i];

	c->free = q->next;
	*q = (struct live){ .user_data = r->q.user_data, .ticket = r->ticket, .next = *b, .used = true,
	                    .n_prompt = r->q.n_prompt, .max_tokens = r->q.max_tokens, .queued = now };
	*b = i;
	c->n_live++;
	return i;
}

static void live_drop(struct client *c, int32_t i)
{
	int32_t *b = bucket_of(c, c->live[i].ticket);

	while (*b != i)
		b = &c->live[*b].next;
	*b = c->live[i].next;
	c->live[i].used = false;
	c->live[i].next = c->free;
	c->free = i;
	c->n_live--;
}

static int32_t live_find(const struct client *c, uint32_t ticket)
{
	int32_t i = *bucket_of(c, ticket);

	while (i != NONE && c->live[i].ticket != ticket)
		i = c->live[i].next;
	return i;
}

static void cancel_all(struct clients *cl, struct client *c)
{
	for (uint32_t i = 0; c->n_live > 0 && i < server_shape(c->conn)->live; i++)
		if (c->live[i].used)
			sched_cancel(cl->s, c, i);
}

/* ---- what is counted ------------------------------------------------------------------------- */

static void observe(struct stats_page *p, enum stats_hist h, uint64_t from, uint64_t to)
{
	stats_observe(p, h, to > from ? (double)(to - from) / 1e9 : 0);
}

static void count_token(struct clients *cl, const struct live *q, const struct sched_event *e)
{
	struct stats_page *p = cl->cfg.stats;

	if (!p)
		return;
	p->generation_tokens++;
	if (q->n_tokens > 1) {
		observe(p, HIST_ITL, q->last, cl->now);
		return;
	}
	observe(p, HIST_TTFT, q->queued, cl->now);
	p->prompt_tokens += q->n_prompt;
	p->prompt_cached += (uint64_t)e->cached;
}

static void count_end(struct clients *cl, const struct live *q, const struct sched_event *e)
{
	struct stats_page *p = cl->cfg.stats;
	bool whole = e->finish == SCHED_STOP || e->finish == SCHED_LENGTH;

	if (!p)
		return;
	p->ended[e->finish == SCHED_STOP ? ENDED_STOP : e->finish == SCHED_LENGTH ? ENDED_LENGTH :
	         e->finish == -ECANCELED ? ENDED_ABORT : ENDED_ERROR]++;
	if (!q->n_tokens && whole) {          /* a prompt that was only scored */
		p->prompt_tokens += q->n_prompt;
		p->prompt_cached += (uint64_t)e->cached;
	}
	if (!q->n_tokens && !whole)
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

/* ---- the scheduler's port -------------------------------------------------------------------- */

static uint32_t port_reserve(void *ctx, void *who, uint32_t least, uint32_t most)
{
	struct clients *cl = ctx;
	struct client *c = who;
	uint32_t n = server_reserve(c->conn, least, most);

	if (n)
		return n;
	if (!c->need) {
		c->stalled_at = cl->now;
		c->stalled_left = server_left(c->conn);
	}
	if (!c->need || least < c->need)
		c->need = least;
	return 0;
}

static void port_release(void *ctx, void *who, uint32_t n)
{
	(void)ctx;
	server_release(((struct client *)who)->conn, n);
}

static void put_token(struct clients *cl, struct client *c, struct live *q, const struct sched_event *e)
{
	bool scored = (uint32_t)e->position < q->n_prompt;
	struct sr_token t;

	t.user_data = q->user_data;
	t.kind = scored ? SR_PROMPT : SR_TOKEN;
	t.id = e->id;
	t.index = scored ? (uint32_t)e->position : q->n_tokens;
	t.rank = (uint32_t)e->rank;
	t.logprob = e->logprob;
	t.n_top = (uint32_t)e->n_top;
	for (int32_t i = 0; i < e->n_top; i++)
		t.top[i] = (struct sr_pair){ e->top[i].id, e->top[i].logprob };
	server_token(c->conn, &t);
	if (scored)
		return;
	if (!q->n_tokens++)
		q->first = cl->now;
	count_token(cl, q, e);
	q->last = cl->now;
}

static void port_emit(void *ctx, void *who, const struct sched_event *e)
{
	struct clients *cl = ctx;
	struct client *c = who;
	struct live *q = &c->live[e->user_data];
	int32_t finish;

	assert(q->used);
	soil(cl, c);
	if (e->id >= 0)
		put_token(cl, c, q, e);
	if (e->finish == SCHED_MORE)
		return;
	finish = e->finish == SCHED_STOP ? SR_STOP : e->finish == SCHED_LENGTH ? SR_LENGTH : e->finish;
	server_end(c->conn, q->user_data, &(struct sr_end){
		.finish = finish, .n_tokens = q->n_tokens,
		.computed = (uint32_t)e->computed, .cached = (uint32_t)e->cached,
		.queued = q->queued, .scheduled = e->scheduled, .first = q->first, .last = q->last,
	}, (uint32_t)e->preempted);
	count_end(cl, q, e);
	live_drop(c, (int32_t)e->user_data);
}

void clients_port(struct clients *cl, struct sched_port *out)
{
	*out = (struct sched_port){ cl, port_reserve, port_release, port_emit };
}

void clients_attach(struct clients *cl, struct sched *s) { cl->s = s; }

/* ---- requests -------------------------------------------------------------------------------- */

/* Lists, as the back end wants them: words, each kind by itself. */
static void lists_of(struct clients *cl, const struct server_request *r, struct sched_request *out)
{
	const struct sr_wire_request *q = &r->q;
	int32_t n = 0;

	if (!(q->flags & SR_IGNORE_EOS))
		for (; n < cl->cfg.n_eos; n++)
			cl->stop[n] = (uint32_t)cl->cfg.eos[n];
	for (uint32_t i = 0; i < q->n_stop; i++)
		cl->stop[n++] = (uint32_t)q->stop[i];
	for (uint32_t i = 0; i < q->n_more_stops; i++)
		cl->stop[n++] = (uint32_t)r->more_stops[i];
	out->list[SR_LIST_STOP] = cl->stop;
	out->n_list[SR_LIST_STOP] = n;

	memcpy(cl->bias, r->bias, q->n_bias * sizeof(r->bias[0])); /* id, f32: the same words */
	out->list[SR_LIST_BIAS] = cl->bias;
	out->n_list[SR_LIST_BIAS] = 2 * (int32_t)q->n_bias;

	memcpy(cl->allow, r->allowed, q->n_allowed * sizeof(r->allowed[0]));
	out->list[SR_LIST_ALLOW] = cl->allow;
	out->n_list[SR_LIST_ALLOW] = (int32_t)q->n_allowed;

	for (n = 0; n < 2 * (int32_t)q->n_banned; n += 2) { /* a sequence of length 1 */
		cl->bad[n] = 1;
		cl->bad[n + 1] = (uint32_t)r->banned[n / 2];
	}
	memcpy(cl->bad + n, r->bad_words, q->n_bad_words * sizeof(r->bad_words[0]));
	out->list[SR_LIST_BAD] = cl->bad;
	out->n_list[SR_LIST_BAD] = n + (int32_t)q->n_bad_words;
}

/* Does the device need to know what was said before: penalties, or a bad word of several ids? */
static bool looks_back(const struct server_request *r)
{
	const struct sr_wire_request *q = &r->q;
	bool yes = q->presence != 0 || q->frequency != 0 || (q->repetition != 0 && q->repetition != 1);

	for (uint32_t i = 0; i < q->n_bad_words; i += 1 + (uint32_t)r->bad_words[i])
		yes |= r->bad_words[i] > 1;
	return yes;
}

static struct sched_request translate(struct clients *cl, const struct client *c,
                                      const struct server_request *r, uint64_t tenant)
{
	const struct sr_wire_request *q = &r->q;
	struct sched_request out = {
		.prompt = r->prompt, .n_prompt = (int32_t)q->n_prompt, .max_tokens = (int32_t)q->max_tokens,
		.sampling = {
			.seed = seed_of(cl, q), .temperature = q->temperature,
			.top_p = q->top_p > 0 ? q->top_p : 1, .min_p = q->min_p,
			.top_k = q->top_k < INT32_MAX ? (int32_t)q->top_k : 0,
			.presence = q->presence, .frequency = q->frequency,
			.repetition = q->repetition > 0 ? q->repetition : 1,
			.min_position = (int32_t)(q->n_prompt + q->min_tokens),
		},
		.salt = salt_of(cl, c, tenant, q->cache_salt), .deadline = q->deadline,
		.priority = c->trusted || q->priority > 0 ? q->priority : 0,
		.n_top = q->n_top, .n_prompt_top = q->n_prompt_top,
		.score = q->flags & SR_PROMPT_LOGPROBS, .no_cache = q->flags & SR_NO_CACHE,
		.history = looks_back(r),
	};

	lists_of(cl, r, &out);
	return out;
}

/* End a request that the scheduler never had.  False: there is no room for it now. */
static bool turn_away(struct clients *cl, struct client *c, const struct server_request *r, int error)
{
	struct stats_page *p = cl->cfg.stats;

	if (!port_reserve(cl, c, 1, 1))
		return false;
	server_end(c->conn, r->q.user_data, &(struct sr_end){ .finish = error, .queued = cl->now }, 0);
	cl->stats.invalid += error == -EINVAL;
	if (p)
		p->ended[error == -ECANCELED ? ENDED_ABORT : ENDED_ERROR]++;
	return true;
}

/* Deal with the request held: true if that is done, false to look again next turn. */
static bool take_one(struct clients *cl, struct client *c, struct server_request *r)
{
	uint64_t tenant = tenant_of(cl, c, r->q.tenant);
	struct sched_request q;
	int32_t i;
	int e;

	if (c->need)                          /* no room for its end, or those before it */
		return false;
	if (r->error || r->cancelled || cl->draining)
		return turn_away(cl, c, r, r->error ? r->error : r->cancelled ? -ECANCELED : -ECONNRESET);
	if (c->n_live == (int32_t)server_shape(c->conn)->live ||
	    sched_full(cl->s, tenant, (int32_t)r->q.n_prompt))
		return false;
	e = server_read(c->conn);
	if (e == -EFAULT) {
		lie(c, e);
		return false;
	}
	if (e)
		return turn_away(cl, c, r, e);
	q = translate(cl, c, r, tenant);
	i = live_put(c, r, cl->now);
	q.user_data = (uint64_t)i;
	e = sched_admit(cl->s, c, tenant, &q, cl->now);
	if (e)
		live_drop(c, i);
	return e == -EAGAIN ? false : e ? turn_away(cl, c, r, e) : true;
}

/* In turns: so many requests, and so many prompt tokens, the last of which may be in debt. */
static int take_requests(struct clients *cl, struct client *c)
{
	struct server_request *r;
	uint32_t n = 0;
	int e = 0;

	c->credit = c->credit < 0 ? c->credit + TOKENS : TOKENS;
	while (n < cl->cfg.take && c->credit > 0 && (e = server_peek(c->conn, &r)) == 1 &&
	       take_one(cl, c, r)) {
		c->credit -= r->q.n_prompt;
		server_leave(c->conn);
		n++;
	}
	if (e < 0)
		lie(c, e);
	cl->stats.taken += n;
	return (int)n;
}

static int take_cancels(struct clients *cl, struct client *c)
{
	uint32_t ticket;
	int n = 0, e = 0;

	for (; n < CANCELS && (e = server_cancel(c->conn, &ticket)) > 0; n++) {
		int32_t i = e == 1 ? live_find(c, ticket) : NONE;

		if (i != NONE)
			sched_cancel(cl->s, c, (uint64_t)i);
	}
	if (e < 0)
		lie(c, e);
	return n;
}

/* Somebody found no room in its ring: is there now?  Or does it not read at all? */
static int take_room(struct clients *cl, struct client *c)
{
	uint32_t left;

	if (server_room(c->conn, c->need)) {
		c->need = 0;
		return 1;
	}
	left = server_left(c->conn);
	if (left != c->stalled_left) {
		c->stalled_left = left;
		c->stalled_at = cl->now;
	} else if (cl->cfg.stall_ns && c->n_live && cl->now - c->stalled_at > cl->cfg.stall_ns) {
		log_debug("client %s (uid %u) does not read: its %d requests are cancelled", c->name, c->uid,
		          c->n_live);
		cl->stats.stalled++;
		cancel_all(cl, c);
		return 1;
	}
	return 0;
}

static int serve(struct clients *cl, struct client *c)
{
	int work = 0;

	if (c->gone)
		return 0;
	if (c->need)
		work += take_room(cl, c);
	work += take_cancels(cl, c);
	if (!c->gone)
		work += take_requests(cl, c);
	if (work) {
		soil(cl, c);                  /* it may sleep for what was left */
		c->idle = 0;
	} else if (c->n_live == 0 && !c->need) {
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
	if (cl->n_gone)
		bury(cl);
	n = cl->n_hot;
	for (int32_t i = 0; i < n; i++)       /* another is first in every turn */
		work += serve(cl, cl->open[(i + (int32_t)(cl->turn % (uint32_t)n)) % n]);
	n_cold = cl->n_open - n;
	n = cl->sweep || n_cold <= COLD_LEAST ? n_cold : n_cold / 16 > COLD_LEAST ? n_cold / 16 : COLD_LEAST;
	for (; n > 0; n--) {                  /* heat() moves another cold one into its place */
		struct client *c = cl->open[cl->n_hot + cl->cold++ % n_cold];
		int did = serve(cl, c);

		if (did) {
			heat(cl, c);
			if (--n_cold == 0)
				break;
		}
		work += did;
	}
	cl->cold = n_cold ? cl->cold % n_cold : 0;
	cl->sweep = false;
	for (int32_t i = cl->n_hot - 1; i >= 0 && cl->turn % 64 == 0; i--)
		if (cl->open[i]->idle > COLD_TURNS)
			cool(cl, cl->open[i]);
	return work;
}

void clients_flush(struct clients *cl)
{
	if (!cl->n_dirty)
		return;
	sr_ring_fence();                      /* F2, for all */
	for (int32_t i = 0; i < cl->n_dirty; i++) {
		struct client *c = cl->dirty[i];

		c->dirty = false;
		if (!c->gone && server_wake(c->conn) < 0)
			lose(c, "closed");
	}
	cl->n_dirty = 0;
}

bool clients_arm(struct clients *cl)
{
	if (cl->n_gone || cl->n_dirty)
		return false;
	for (int32_t i = 0; i < cl->n_open; i++)
		server_arm(cl->open[i]->conn, cl->open[i]->need);
	sr_ring_fence();                      /* F1, for all */
	for (int32_t i = 0; i < cl->n_open; i++)
		if (server_ready(cl->open[i]->conn, cl->open[i]->need)) {
			heat(cl, cl->open[i]);
			return false;
		}
	return true;
}

/* The asks stay as they are: each costs one needless signal, fewer than taking them all back. */
void clients_awake(struct clients *cl) { cl->sweep = true; }

void clients_drain(struct clients *cl)
{
	if (cl->draining)
		return;
	cl->draining = true;
	io_timer_del(cl->io, &cl->again);
	io_watch_del(cl->io, &cl->listener);
	close(cl->listener.fd);
	cl->listener.fd = -1;
	for (int32_t i = 0; i < cl->n_all; i++)
		if (!cl->all[i]->conn)
			cl->all[i]->refuse = -ECONNREFUSED;
}

void clients_stats(const struct clients *cl, struct clients_stats *out) { *out = cl->stats; }

/* ---- create and destroy ---------------------------------------------------------------------- */

static int server_make(struct clients *cl)
{
	const struct clients_config *cfg = &cl->cfg;
	struct server_config s = { .most = { cfg->live, cfg->tokens, cfg->arena } };

	if (getrandom(cl->key, sizeof(cl->key), 0) != sizeof(cl->key) ||
	    getrandom(&s.model.epoch, sizeof(s.model.epoch), 0) != sizeof(s.model.epoch))
		return -EIO;
	s.model.epoch |= 1;                   /* 0 says that the daemon is gone */
	s.model.vocab = (uint32_t)cfg->vocab;
	s.model.context = (uint32_t)cfg->context;
	memcpy(s.model.name, cfg->model_name, sizeof(s.model.name) - 1);
	memcpy(s.model.vocab_hash, cfg->vocab_hash, sizeof(s.model.vocab_hash));
	return server_create(&cl->server, &s);
}

int clients_create(struct clients **out, const struct clients_config *cfg, struct io *io, int listen_fd)
{
	struct clients *cl = calloc(1, sizeof(*cl));
	size_t max = (size_t)cfg->max + REFUSALS;
	int e;

	if (!cl || cfg->max < 1 || cfg->max > SERVER_CONNS_MAX - REFUSALS || cfg->max_per_uid < 1 ||
	    cfg->take < 1 || cfg->n_eos < 0) {
		e = cl ? -EINVAL : -ENOMEM;
		close(listen_fd);
		free(cl);
		return e;
	}
	cl->cfg = *cfg;
	cl->io = io;
	cl->self = geteuid();
	cl->listener = (struct io_watch){ .fd = listen_fd, .events = IO_IN, .fn = on_listener, .ctx = cl };
	cl->again = (struct io_timer){ .fn = on_again, .ctx = cl };
	cl->all = calloc(max, sizeof(cl->all[0]));
	cl->open = calloc(max, sizeof(cl->open[0]));
	cl->dirty = calloc(max, sizeof(cl->dirty[0]));
	cl->stop = calloc((size_t)cfg->n_eos + SR_STOP_MAX + SR_LIST_MAX, sizeof(uint32_t));
	cl->bias = calloc(2 * SR_LIST_MAX, sizeof(uint32_t));
	cl->allow = calloc(SR_LIST_MAX, sizeof(uint32_t));
	cl->bad = calloc(3 * SR_LIST_MAX, sizeof(uint32_t));
	e = !cl->all || !cl->open || !cl->dirty || !cl->stop || !cl->bias || !cl->allow || !cl->bad ?
		-ENOMEM : server_make(cl);
	if (!e)
		e = io_watch_add(io, &cl->listener);
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
	while (cl->n_all > 0)
		client_free(cl->all[cl->n_all - 1], true);
	if (!cl->draining) {
		io_timer_del(cl->io, &cl->again);
		io_watch_del(cl->io, &cl->listener);
		close(cl->listener.fd);
	}
	server_destroy(cl->server);
	free(cl->all);
	free(cl->open);
	free(cl->dirty);
	free(cl->stop);
	free(cl->bias);
	free(cl->allow);
	free(cl->bad);
	free(cl);
}
