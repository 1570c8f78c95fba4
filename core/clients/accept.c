/* clients/accept.c - which clients come and go, and which are visited in a turn.
 *
 *	accept* -> HELLO --hello*--> MAPPING --mapped*--> OPEN --end of file, death, a lie--> gone, then
 *	               `--too many, wrong version--> refused*   `--a second passed--> closed*   removed by
 *	                                                                     clients_take and freed*
 * Callbacks of io only mark an open client as gone: its requests may be in use further up the stack.
 *
 * At each star the kernel allocates, maps, unmaps or closes.  That takes tens of us, in which no client
 * is served.  These steps are chores.  They wait in two lines, one for trusted clients and one for
 * untrusted ones.  clients_chores() does the first chore of one line
 *
 *	if no request was under way for QUIET_NS;
 *	or while a batch computes that will take longer than the chore;
 *	or after CHORE_MAY_WAIT, because such a batch may never come.  Then all chores together get
 *	1/CHORE_SHARE of this thread's time.
 *
 * While a client waits for its chore, only its hang-up is watched.
 */
#include "impl.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/instance/log.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77               /* Linux 6.5 */
#endif

#define HELLO_NS (1000 * MS)          /* a client's time for its hello, and again until it has mapped */
#define SIGNALS  16                   /* most signals read from a socket at a time */
#define BELLS    256                  /* most signals of a client that are read in a window (R7) */
#define BELLS_NS (10 * MS)            /* length of that window */
#define COMER_NS (4 * MS)             /* pause after each accepted client while requests are under way (R7) */
#define CHORE_NS 150000u              /* estimate of a long chore: memory for a small client takes 70 us */
#define QUIET_NS 200000u              /* no request for this long: no follow-up comes, so chores may run */
#define CHORE_MAY_WAIT (2 * MS)       /* how long a chore waits for a batch that hides it */
#define CHORE_SHARE 16                /* after CHORE_MAY_WAIT, chores get 1/16 of the thread's time (R7) */

/* ---- chores ---------------------------------------------------------------------------------- */

static struct chores *line_of(struct clients *cl, const struct chore *k)
{
	return &cl->line[k->client && !k->client->trusted ? FOR_STRANGERS : FOR_US];
}

static void chore_add(struct clients *cl, struct chore *k)
{
	struct chores *l = line_of(cl, k);

	if (k->since)
		return;
	k->since = io_now();
	k->next = NULL;
	*l->last = k;
	l->last = &k->next;
}

/* Continue this client first: one finished handshake is worth more than ten half done. */
static void chore_more(struct client *c)
{
	struct chore *k = &c->chore;
	struct chores *l = line_of(c->cl, k);

	k->since = c->cl->chore_since;
	k->next = l->first;
	l->first = k;
	if (!k->next)
		l->last = &k->next;
}

/* The two lines take turns, so neither delays the other. */
static struct chores *line_next(struct clients *cl)
{
	struct chores *l = &cl->line[cl->line_next];

	return l->first ? l : &cl->line[!cl->line_next];
}

static struct chore *chore_take(struct clients *cl)
{
	struct chores *l = line_next(cl);
	struct chore *k = l->first;

	l->first = k->next;
	if (!l->first)
		l->last = &l->first;
	cl->line_next = l == &cl->line[FOR_US];
	cl->chore_since = k->since;
	k->since = 0;
	return k;
}

/* Its chore is done: listen to it again.  Until it is open, it has a second for each step. */
static void hear(struct client *c)
{
	io_watch_set(c->cl->io, &c->socket, IO_IN | IO_HUP);
	if (c->stage != STAGE_OPEN)
		io_timer_set(c->cl->io, &c->timer, io_now() + HELLO_NS);
}

/* Queue its chore.  Until then poll only for hang-up, because input would fire on every turn. */
static void chore_for(struct client *c)
{
	chore_add(c->cl, &c->chore);
	io_watch_set(c->cl->io, &c->socket, c->gone ? 0 : IO_HUP);
	io_timer_del(c->cl->io, &c->timer);
}

static bool chore_may(struct clients *cl, uint64_t now)
{
	const struct chore *k = line_next(cl)->first;

	if (!sched_busy(cl->s))
		return now - cl->busy_at >= QUIET_NS;
	if (cl->cfg.works)
		return now >= cl->chore_at;
	return sched_spare(cl->s, now) >= CHORE_NS ||
	       (now >= cl->chore_at && now - k->since >= CHORE_MAY_WAIT);
}

/* ---- places in the lists --------------------------------------------------------------------- */

static void place(struct clients *cl, struct client *c, int32_t at)
{
	cl->open[at] = c;
	c->at_open = at;
}

/* Visit the client in every turn. */
void conn_heat(struct clients *cl, struct client *c)
{
	c->idle = 0;
	if (c->at_open < cl->n_hot)
		return;
	place(cl, cl->open[cl->n_hot], c->at_open);
	place(cl, c, cl->n_hot++);
}

void conn_cool(struct clients *cl, struct client *c)
{
	int32_t at = c->at_open;

	if (at >= cl->n_hot)
		return;
	place(cl, cl->open[--cl->n_hot], at);
	place(cl, c, cl->n_hot);
}

/* The next clients_take removes an open client: its requests may be in use further up the stack. */
void conn_lose(struct client *c, const char *why)
{
	if (c->gone)
		return;
	c->gone = true;
	if (c->open)
		c->cl->n_gone++;
	else if (!c->asking)
		chore_for(c);
	log_debug("client %s (uid %u): %s", c->name, c->uid, why);
}

void conn_lie(struct client *c, int e)
{
	const char *what = e == -EFAULT ? "took away the memory it shares" : "broke the protocol";
	struct clients *cl = c->cl;

	if (c->gone)
		return;
	cl->stats.poisoned++;
	if (cl->now - cl->told_at > 1000 * MS) { /* at most one line a second: it may reconnect and repeat */
		log_warn("client %s (uid %u) dropped: it %s", c->name, c->uid, what);
		cl->told_at = cl->now;
	}
	conn_lose(c, what);
}

/* ---- come and go ----------------------------------------------------------------------------- */

/* Detach the client from the scheduler and from the lists that a turn visits. */
static void leave(struct client *c, bool stopping)
{
	struct clients *cl = c->cl;

	if (c->row != &cl->unseen)
		stats_client_give(c->row);
	if (c->n_live)                        /* sched_forget() walks all sequences */
		sched_forget(cl->s, c);
	cl->cfg.counters->died += c->n_live > 0 && !stopping;
	cl->stats.connected--;
	cl->n_gone -= c->gone;
	conn_cool(cl, c);
	place(cl, cl->open[--cl->n_open], c->at_open);
	c->open = false;
	for (int32_t i = 0; c->dirty; i++) {
		assert(i < cl->n_dirty);
		if (cl->dirty[i] == c)
			cl->dirty[i] = cl->dirty[--cl->n_dirty], c->dirty = false;
	}
}

void conn_close(struct clients *cl, int fd, bool carries, uid_t uid)
{
	if (carries)
		aside_close(cl->aside, fd, uid);
	else
		close(fd);
}

/* Free everything of it; its watches get no more callbacks. */
void conn_free(struct client *c, bool stopping)
{
	struct clients *cl = c->cl;
	int fd[2] = { -1, -1 };
	size_t kept = c->stage >= STAGE_MAP && !c->trusted ? c->bytes : 0; /* its client may keep that */

	if (c->open)
		leave(c, stopping);
	if (c->conn)
		host_detach(c->conn, stopping, fd);
	for (int i = 0; i < 2; i++)
		if (fd[i] >= 0)
			io_close(cl->io, fd[i]);
	io_timer_del(cl->io, &c->timer);
	if (c->pidfd >= 0) {
		io_watch_del(cl->io, &c->death);
		close(c->pidfd);
	}
	if (c->asking)
		aside_drop(cl->aside, &c->ask);
	if (!stopping && c->stage == STAGE_MAP && left_unread(c->fd)) {
		io_watch_del(cl->io, &c->socket);
		left_keep(cl, (struct left){ .fd = c->fd, .uid = c->uid, .carries = c->carries, .bytes = kept });
		kept = 0;
	} else if (c->carries && !stopping) {
		aside_end(cl->aside, &c->socket, c->uid);
	} else {
		io_watch_del(cl->io, &c->socket);
		conn_close(cl, c->fd, c->carries, c->uid);
	}
	left_charge(cl, c->uid, kept);
	cl->all[c->at] = cl->all[--cl->n_all];
	cl->all[c->at]->at = c->at;
	free(c->live);
	free(c->bucket);
	free(c);
}

void conn_bury(struct clients *cl)
{
	for (int32_t i = cl->n_open - 1; cl->n_gone > 0; i--) {
		struct client *c;

		assert(i >= 0);
		c = cl->open[i];
		if (!c->gone)
			continue;
		leave(c, false);
		chore_add(cl, &c->chore);
	}
}

static int live_make(struct client *c)
{
	uint32_t n = host_shape(c->conn)->live;

	c->live = calloc(n, sizeof(c->live[0]));
	c->bucket = malloc(n * sizeof(c->bucket[0]));
	if (!c->live || !c->bucket)
		return -ENOMEM;
	memset(c->bucket, 0xff, n * sizeof(c->bucket[0])); /* NONE */
	c->free = NONE;
	c->shift = 32 - (uint32_t)__builtin_ctz(n);
	c->odd = (uint32_t)prefix_hash(c->cl->key, &(uint64_t){ c->cl->n_seeds++ }, 1) | 1;
	return 0;
}

/* May a uid be logged that has no more room?  At most one a second. */
static bool full_now(struct clients *cl)
{
	uint64_t now = io_now();

	if (now - cl->full_at < 1000 * MS)
		return false;
	cl->full_at = now;
	return true;
}

/* Untrusted clients share stranger_bytes; one uid may hold at most 8 times what is still free. */
static int afford(struct clients *cl, struct client *c)
{
	const struct sr_shape *s = host_shape(c->conn);
	size_t all = left_bytes(cl, NULL), same = left_bytes(cl, &c->uid);
	size_t need = host_bytes(c->conn) + s->live * sizeof(c->live[0]);

	for (int32_t i = 0; i < cl->n_all; i++) {
		const struct client *o = cl->all[i];

		all += o->trusted ? 0 : o->bytes;
		same += o->uid == c->uid ? o->bytes : 0;
	}
	if (!c->trusted && cl->cfg.stranger_bytes &&
	    (need + all > cl->cfg.stranger_bytes || need + same > 8 * (cl->cfg.stranger_bytes - all - need))) {
		if (full_now(cl))
			log_warn("uid %u has no memory for another client: it has, or had within %d s, %zu KiB of the %zu that "
			         "are taken, of %zu in all", c->uid, CHARGED_S, same >> 10, all >> 10,
			         cl->cfg.stranger_bytes >> 10);
		return -EUSERS;
	}
	c->bytes = need;
	return 0;
}

/* Refuse the client and free it. */
static void turn_back(struct client *c, int error)
{
	if (error != -ECONNRESET)
		host_refuse(c->fd, error);
	c->cl->cfg.counters->refused++;
	conn_free(c, false);
}

/* The kernel reports the process's end, even if another process holds the socket. */
static int watch_death(struct clients *cl, struct client *c)
{
	socklen_t n = sizeof(c->pidfd);

	if (getsockopt(c->fd, SOL_SOCKET, SO_PEERPIDFD, &c->pidfd, &n) < 0)
		/* Before Linux 6.5.  The pid may belong to another process since it connected; then
		 * only the socket reports its end. */
		c->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
	c->death.fd = c->pidfd;
	return c->pidfd < 0 ? 0 : io_watch_add(cl->io, &c->death);
}

static void ask_run(struct aside_job *j)
{
	struct client *c = (struct client *)((char *)j - offsetof(struct client, ask));

	c->heard = host_hello(c->fd, &c->hello);
}

static void ask_done(struct aside_job *j)
{
	struct client *c = (struct client *)((char *)j - offsetof(struct client, ask));

	c->asking = false;
	chore_for(c);                         /* its hello again; or it has gone meanwhile */
}

/* 0, -errno as host_hello(), or 1: it is being received. */
static int hear_hello(struct client *c)
{
	int e = c->heard;

	if (!c->carries)
		return host_hello(c->fd, &c->hello);
	c->heard = 1;                         /* for the next time */
	if (e > 0) {
		c->ask = (struct aside_job){ .run = ask_run, .done = ask_done, .uid = c->uid };
		c->asking = true;
		aside_do(c->cl->aside, &c->ask);
	}
	return e;
}

static void client_hello(struct client *c)
{
	struct clients *cl = c->cl;
	uint32_t flags = (c->gateway ? SR_TENANTS_HEARD : 0) | (cl->cfg.scope == PREFIX_BY_TENANT ? SR_TENANTS_APART : 0);
	int e = hear_hello(c);

	if (e > 0)
		return;
	if (e == -EAGAIN) {
		hear(c);
		return;
	}
	if (!e)
		e = c->refuse;
	if (!e)
		e = host_open(&c->conn, cl->host, c->fd, &c->hello, c->trusted, flags);
	if (!e)
		e = afford(cl, c);
	if (!e)
		e = watch_death(cl, c);
	if (e) {
		turn_back(c, e);
		return;
	}
	memcpy(c->name, c->hello.name, sizeof(c->name));
	c->stage = STAGE_FILL;
	chore_for(c);
}

static void client_fill(struct client *c)
{
	int e = host_fill(c->conn);

	if (e > 0) {
		chore_more(c);
		return;
	}
	if (!e && (e = live_make(c)) == 0)
		e = host_welcome(c->conn);
	if (e) {
		turn_back(c, e);
		return;
	}
	c->stage = STAGE_MAP;
	hear(c);
}

/* The client's first signal reports that it has mapped both objects. */
static void client_mapped(struct client *c)
{
	int e = host_drain(c->conn, 1);

	if (e == 0) {
		hear(c);
		return;
	}
	if (e > 0 && left_unread(c->fd))      /* it cannot have mapped what it has not read */
		e = -EPROTO;
	if (e > 0)
		e = host_seal(c->conn);
	if (e < 0) {
		turn_back(c, -ECONNRESET);
		return;
	}
	c->stage = STAGE_REFILL;
	chore_for(c);
}

static void client_refill(struct client *c)
{
	struct clients *cl = c->cl;
	int e = host_fill(c->conn);

	if (e > 0) {
		chore_more(c);
		return;
	}
	if (e < 0 || host_begin(c->conn) < 0) {
		turn_back(c, -ECONNRESET);
		return;
	}
	c->stage = STAGE_OPEN;
	c->open = true;
	c->guides = host_shape(c->conn)->guides > 0;
	c->row = cl->cfg.stats ? stats_client_take(cl->cfg.stats, c->name, (uint32_t)c->pid, c->uid) : NULL;
	if (!c->row)
		c->row = &cl->unseen;
	cl->cfg.counters->accepted++;
	cl->stats.connected++;
	place(cl, c, cl->n_open++);
	conn_heat(cl, c);
	hear(c);
	log_debug("client %s (uid %u) connected", c->name, c->uid);
}

/* A signal means only "look at me".  A client that sends more than BELLS in a window is not read
 * until the window is over: it delays only itself. */
static void client_bell(struct client *c)
{
	struct clients *cl = c->cl;
	uint64_t now = io_now();
	int n = host_drain(c->conn, SIGNALS);

	if (n < 0) {
		conn_lose(c, "closed");
		return;
	}
	conn_heat(cl, c);
	if (now - c->bells_at > BELLS_NS) {
		c->bells_at = now;
		c->bells = 0;
	}
	c->bells += (uint32_t)n;
	if (c->bells > BELLS) {
		io_watch_set(cl->io, &c->socket, IO_HUP);
		io_timer_set(cl->io, &c->timer, c->bells_at + BELLS_NS);
	}
}

static void on_socket(struct io_watch *w, uint32_t events)
{
	struct client *c = w->ctx;

	if (events & IO_HUP) {
		c->cl->cfg.counters->refused += !c->open && !c->gone;
		conn_lose(c, "closed");
		io_watch_set(c->cl->io, w, 0);
	} else if (c->open) {
		client_bell(c);
	} else {
		chore_for(c);                 /* its hello, or its signal that it has mapped */
	}
}

static void on_death(struct io_watch *w, uint32_t events)
{
	struct client *c = w->ctx;

	(void)events;
	conn_lose(c, "died");
	io_watch_set(c->cl->io, w, 0);        /* a dead process stays readable */
}

static void on_timer(struct io_timer *t)
{
	struct client *c = t->ctx;

	if (c->open) {
		hear(c);
		return;
	}
	c->cl->cfg.counters->refused += !c->gone;
	conn_lose(c, "did not end its handshake");
}

/* Places taken, by the uid or by all: by clients that stay, and by welcomes that are unread. */
static int32_t places_of(const struct clients *cl, const uid_t *uid)
{
	int32_t n = 0;

	for (int32_t i = 0; i < cl->n_all; i++) {
		const struct client *o = cl->all[i];

		n += !o->refuse && (!o->gone || o->stage == STAGE_MAP) && (!uid || o->uid == *uid);
	}
	for (int32_t i = 0; i < cl->n_left; i++)
		n += !uid || cl->left[i].uid == *uid;
	return n;
}

static int no_place(struct clients *cl, const struct client *c, int32_t same, int32_t all)
{
	int32_t unread = 0;

	if (!full_now(cl))
		return -EUSERS;
	for (int32_t i = 0; i < cl->n_left; i++)
		unread += cl->left[i].uid == c->uid;
	log_warn("uid %u has no place for another client: it has %d of the %d that are taken, of %d in all; %d of its "
	         "own are closed, but nobody has read their welcome", c->uid, same, all, cl->cfg.max, unread);
	return -EUSERS;
}

/* Get its credentials, and decide if it may stay. */
static int admit(struct clients *cl, struct client *c)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);
	int32_t same, all;

	if (getsockopt(c->fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
		return -EACCES;
	c->uid = cred.uid;
	c->pid = cred.pid;
	c->trusted = c->uid == cl->self || c->uid == 0 || c->uid == cl->cfg.gateway;
	c->gateway = c->uid == cl->self || c->uid == cl->cfg.gateway;
	same = places_of(cl, &c->uid);
	all = places_of(cl, NULL);
	if (all >= cl->cfg.max || same >= cl->cfg.max_per_uid)
		return no_place(cl, c, same, all);
	/* Each untrusted uid leaves places for others, and all of them leave 1/16 for trusted clients. */
	if (!c->trusted && same >= 8 * (cl->cfg.max - (cl->cfg.max + 15) / 16 - all))
		return no_place(cl, c, same, all);
	return 0;
}

static bool crowded(const struct clients *cl)
{
	int32_t n = 0;

	for (int32_t i = 0; i < cl->n_all; i++)
		n += cl->all[i]->refuse && !cl->all[i]->gone;
	return n > REFUSALS;
}

static void client_new(struct clients *cl, int fd)
{
	struct client *c = cl->n_all < cl->n_places ? calloc(1, sizeof(*c)) : NULL;

	if (!c) {
		cl->cfg.counters->refused++;
		conn_close(cl, fd, aside_may_carry(fd), (uid_t)-1);
		return;
	}
	*c = (struct client){ .cl = cl, .fd = fd, .pidfd = -1, .at = cl->n_all, .free = 0, .name = "?", .heard = 1,
	                       .carries = aside_may_carry(fd),
	                       .row = &cl->unseen, .chore.client = c };
	c->refuse = admit(cl, c);
	c->socket = (struct io_watch){ .fd = fd, .events = IO_IN | IO_HUP, .fn = on_socket, .ctx = c };
	c->death = (struct io_watch){ .fd = -1, .events = IO_IN, .fn = on_death, .ctx = c };
	c->timer = (struct io_timer){ .fn = on_timer, .ctx = c };
	cl->all[cl->n_all++] = c;
	if ((c->refuse && crowded(cl)) || io_watch_add(cl->io, &c->socket) < 0) {
		cl->cfg.counters->refused++;
		conn_free(c, false);
		return;
	}
	hear(c);
}

static void on_listener(struct io_watch *w, uint32_t events)
{
	struct clients *cl = w->ctx;

	(void)events;
	io_watch_set(cl->io, w, 0);
	chore_add(cl, &cl->door);
}

static void on_again(struct io_timer *t)
{
	struct clients *cl = t->ctx;

	io_watch_set(cl->io, &cl->listener, IO_IN);
}

static void let_in(struct clients *cl)
{
	int fd;

	if (cl->listener.fd < 0)              /* closed meanwhile */
		return;
	fd = accept4(cl->listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd >= 0) {
		client_new(cl, fd);
	} else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
		log_warn("no descriptors or memory for another client: waiting a moment");
		io_timer_set(cl->io, &cl->again, io_now() + 100 * MS);
		return;
	}
	if (sched_busy(cl->s) || aside_full(cl->aside))
		io_timer_set(cl->io, &cl->again, io_now() + COMER_NS);
	else
		io_watch_set(cl->io, &cl->listener, IO_IN);
}

/* The timer only has to end the sleep, so that chores get their time. */
static void on_nap(struct io_timer *t) { (void)t; }

int conn_listen(struct clients *cl, int fd)
{
	for (int i = 0; i < 2; i++)
		cl->line[i].last = &cl->line[i].first;
	cl->listener = (struct io_watch){ .fd = fd, .events = IO_IN, .fn = on_listener, .ctx = cl };
	cl->again = (struct io_timer){ .fn = on_again, .ctx = cl };
	cl->nap = (struct io_timer){ .fn = on_nap };
	cl->look = (struct io_timer){ .fn = left_look, .ctx = cl };
	aside_refuse(fd);
	return io_watch_add(cl->io, &cl->listener);
}

void conn_deaf(struct clients *cl)
{
	if (cl->listener.fd < 0)
		return;
	io_timer_del(cl->io, &cl->again);
	io_watch_del(cl->io, &cl->listener);
	close(cl->listener.fd);
	cl->listener.fd = -1;
}

/* ---- the line, once a turn ----------------------------------------------------------------------- */

static bool chores_left(const struct clients *cl) { return cl->line[0].first || cl->line[1].first; }

/* CPU time of this thread. */
static uint64_t cpu_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000 * MS + (uint64_t)t.tv_nsec;
}

bool conn_rest(struct clients *cl)
{
	uint64_t now = io_now();

	if (chores_left(cl) && chore_may(cl, now))
		return false;
	if (chores_left(cl) || cl->owed)
		io_timer_set(cl->io, &cl->nap, now + QUIET_NS);
	return true;
}

/* Its memory a piece at a time, then the rest of it. */
static void client_end(struct client *c)
{
	if (c->conn && host_unmap(c->conn))
		chore_more(c);
	else
		conn_free(c, false);
}

int clients_chores(struct clients *cl)
{
	static void (*const step[])(struct client *) = { [STAGE_HELLO] = client_hello, [STAGE_FILL] = client_fill,
		[STAGE_MAP] = client_mapped, [STAGE_REFILL] = client_refill };
	uint64_t began;
	struct client *c;

	if (sched_busy(cl->s))
		cl->busy_at = cl->now;
	if (!chores_left(cl) || !chore_may(cl, io_now()))
		return 0;
	began = cpu_now();
	c = chore_take(cl)->client;
	if (!c)
		let_in(cl);
	else if (c->gone)
		client_end(c);
	else
		step[c->stage](c);
	cl->chore_at = io_now() + (CHORE_SHARE - 1) * (cpu_now() - began);
	return 1;
}
