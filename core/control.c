/* control.c - checks the client's rights and the new value, and turns the knob. */
#include "control.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/events.h"
#include "core/instance/aside.h"
#include "core/instance/knobs.h"
#include "core/instance/log.h"
#include "core/prefix.h"

#define CLIENTS_MAX 8
#define BACKLOG     128               /* connected and not yet accepted; one is accepted per REST_NS */
#define DEADLINE_NS 1000000000u       /* from accept to message */
#define REST_NS     10000000u         /* pause after each accepted client: accepting costs more than
	                                 connecting, and anyone in the run directory may connect */
#define AGAIN_NS    100000000u        /* the same pause when descriptors have run out */
#define GROUPS_MAX  256               /* most groups of a client that are checked */
#define STEP_MAX_US 4000000           /* the scheduler's target is 32 bits of ns */

struct control_client {
	struct control *c;
	struct io_watch socket;
	struct io_timer timer;
	struct ucred cred;
	bool used, records;           /* records: closing it ends the recording */
	bool limited;                 /* the gateway or the reader: it may only ask for what is its own */
	bool carries;                 /* its messages may carry descriptors: they are received aside, into these */
	bool asking, late;            /* one is being received; and then the connection ends */
	struct aside_job ask;
	struct control_ask q;
	ssize_t n;                    /* bytes, or -errno */
};

/* A client without the right gets the reason. */
struct denial {
	struct aside_job job;         /* first */
	int fd;
	struct control_answer a;
};

struct control {
	struct io *io;
	struct sched *s;
	struct sched_knobs knobs;     /* current values */
	int64_t ceiling[N_KNOBS];
	int64_t step_target_us;       /* as requested: 0 = chosen by device */
	uint32_t step_default_ns;
	struct recorder *recorder;
	struct stats_page *stats;
	uid_t gateway, reader;
	int prefix_fd, events_fd;
	gid_t group;                  /* -1: none */
	char group_name[64];
	struct io_watch listener;
	struct io_timer again;        /* listen again */
	struct aside *aside;
	bool stopping;
	struct control_client client[CLIENTS_MAX];
	uint64_t logged_at;           /* when a refused client was last logged */
	char path[4096];
};

/* ---- knobs ------------------------------------------------------------------------------- */

static int64_t knob_value(const struct control *c, enum knob k)
{
	switch (k) {
	case KNOB_MAX_NUM_SEQS:           return c->knobs.max_seqs;
	case KNOB_MAX_NUM_BATCHED_TOKENS: return c->knobs.batch_tokens;
	case KNOB_LONG_PREFILL:
		return c->knobs.chunk_max < c->ceiling[KNOB_LONG_PREFILL] ? c->knobs.chunk_max : 0;
	case KNOB_POLICY:                 return !c->knobs.fcfs;
	case KNOB_PREFIX_CACHING:         return !c->knobs.no_prefix_cache;
	case KNOB_STEP_TARGET:            return c->step_target_us;
	case N_KNOBS:                     break;
	}
	return 0;
}

static void knob_put(const struct control *c, struct sched_knobs *n, enum knob k, int64_t v)
{
	switch (k) {
	case KNOB_MAX_NUM_SEQS:           n->max_seqs = (int32_t)v; break;
	case KNOB_MAX_NUM_BATCHED_TOKENS: n->batch_tokens = (int32_t)v; break;
	case KNOB_LONG_PREFILL:           n->chunk_max = (int32_t)(v ? v : c->ceiling[k]); break;
	case KNOB_POLICY:                 n->fcfs = !v; break;
	case KNOB_PREFIX_CACHING:         n->no_prefix_cache = !v; break;
	case KNOB_STEP_TARGET:            n->step_ns = v ? (uint32_t)v * 1000 : c->step_default_ns; break;
	case N_KNOBS:                     break;
	}
}

static void show_knobs(const struct control *c)
{
	for (int k = 0; k < N_KNOBS; k++) {
		c->stats->knob[k] = knob_value(c, (enum knob)k);
		c->stats->knob_ceiling[k] = c->ceiling[k];
	}
	c->stats->max_num_seqs = (uint64_t)c->knobs.max_seqs;
	c->stats->max_batch_tokens = (uint64_t)c->knobs.batch_tokens;
}

/* Is v in the knob's own range?  0, or -ERANGE and one sentence. */
static int knob_in_range(const struct control *c, enum knob k, int64_t v, char *say, size_t n)
{
	const struct knob_info *i = knob_info(k);
	char most[32];

	knob_format(k, c->ceiling[k], most, sizeof(most));
	if (v > c->ceiling[k] && (k == KNOB_MAX_NUM_SEQS || k == KNOB_MAX_NUM_BATCHED_TOKENS))
		snprintf(say, n, "%s goes up to %s %s here, which was allocated at start; for more, restart the "
		         "daemon with --knob-ceiling %s=%lld", i->name, most, i->unit, i->name, (long long)v);
	else if (v > c->ceiling[k])
		snprintf(say, n, "%s goes up to %s%s%s", i->name, most, *i->unit ? " " : "", i->unit);
	else if (v < i->least)
		snprintf(say, n, "%s must be at least %lld", i->name, (long long)(i->least / i->scale));
	else
		return 0;
	return -ERANGE;
}

/* May knob k be v, with the other knobs as they are?  0, or -ERANGE and one sentence. */
static int knob_allowed(const struct control *c, enum knob k, int64_t v, char *say, size_t n)
{
	if (knob_in_range(c, k, v, say, n) < 0)
		return -ERANGE;
	if (k == KNOB_MAX_NUM_BATCHED_TOKENS && v < c->knobs.max_seqs)
		snprintf(say, n, "max-num-batched-tokens must be at least max-num-seqs, which is %d: each sequence "
		         "computes a token per step; lower that first", c->knobs.max_seqs);
	else if (k == KNOB_MAX_NUM_SEQS && v > c->knobs.batch_tokens)
		snprintf(say, n, "max-num-seqs must be at most max-num-batched-tokens, which is %d: each sequence "
		         "computes a token per step; raise that first", c->knobs.batch_tokens);
	else
		return 0;
	return -ERANGE;
}

static int turn_knob(struct control *c, enum knob k, int64_t v, const struct ucred *cred, char *say, size_t n)
{
	struct sched_knobs next = c->knobs;
	char old[32], now[32];
	int r = knob_allowed(c, k, v, say, n);

	if (r < 0)
		return r;
	knob_put(c, &next, k, v);
	if (sched_set(c->s, &next) < 0) {
		snprintf(say, n, "%s: the scheduler does not take this value", knob_info(k)->name);
		return -ERANGE;
	}
	knob_format(k, knob_value(c, k), old, sizeof(old));
	knob_format(k, v, now, sizeof(now));
	c->knobs = next;
	if (k == KNOB_STEP_TARGET)
		c->step_target_us = v;
	show_knobs(c);
	log_info("%s: %s -> %s, set by uid %u (pid %d)", knob_info(k)->name, old, now, (unsigned)cred->uid,
	         (int)cred->pid);
	return 0;
}

int control_set(struct control *c, const int64_t value[N_KNOBS], unsigned which, char *say, size_t n)
{
	struct sched_knobs next = c->knobs;
	char old[N_KNOBS][32], now[32];

	for (int k = 0; k < N_KNOBS; k++) {
		knob_format((enum knob)k, knob_value(c, (enum knob)k), old[k], sizeof(old[k]));
		if (!(which & 1u << k))
			continue;
		if (knob_in_range(c, (enum knob)k, value[k], say, n) < 0)
			return -ERANGE;
		knob_put(c, &next, (enum knob)k, value[k]);
	}
	if (next.batch_tokens < next.max_seqs) {
		snprintf(say, n, "max-num-batched-tokens, %d, must be at least max-num-seqs, %d: each sequence "
		         "computes a token per step", next.batch_tokens, next.max_seqs);
		return -ERANGE;
	}
	if (sched_set(c->s, &next) < 0) {
		snprintf(say, n, "the scheduler does not take these values");
		return -ERANGE;
	}
	c->knobs = next;
	if (which & 1u << KNOB_STEP_TARGET)
		c->step_target_us = value[KNOB_STEP_TARGET];
	show_knobs(c);
	for (int k = 0; k < N_KNOBS; k++) {
		knob_format((enum knob)k, knob_value(c, (enum knob)k), now, sizeof(now));
		if (strcmp(old[k], now))
			log_info("%s: %s -> %s", knob_info((enum knob)k)->name, old[k], now);
	}
	return 0;
}

/* ---- clients of the socket --------------------------------------------------------------- */

static void shut(struct control *c, int fd, uid_t uid)
{
	if (aside_may_carry(fd))
		aside_close(c->aside, fd, uid);
	else
		close(fd);
}

static void client_close(struct control_client *p)
{
	if (p->records) {
		record_stop(p->c->recorder);
		log_info("The recording of uid %u (pid %d) is over", (unsigned)p->cred.uid, (int)p->cred.pid);
	}
	io_timer_del(p->c->io, &p->timer);
	if (p->asking)
		aside_drop(p->c->aside, &p->ask);
	if (p->carries && !p->c->stopping) {
		aside_end(p->c->aside, &p->socket, p->cred.uid);
	} else {
		io_watch_del(p->c->io, &p->socket);
		shut(p->c, p->socket.fd, p->cred.uid);
	}
	p->used = false;
}

static void send_answer(int fd, struct control_answer *a)
{
	a->magic = CONTROL_MAGIC;
	a->version = CONTROL_VERSION;
	if (send(fd, a, sizeof(*a), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		return;                       /* it is gone: the change stays, and is logged */
}

/* Send an answer with a descriptor: memory that only the daemon can write. */
static int send_memory(int to, int fd, struct control_answer *a)
{
	char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov = { a, sizeof(*a) };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
	                    .msg_controllen = sizeof(control) };
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);

	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(h), &fd, sizeof(int));
	a->magic = CONTROL_MAGIC;
	a->version = CONTROL_VERSION;
	return sendmsg(to, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static void send_prefixes(const struct control *c, int to, struct control_answer *a)
{
	a->result = 0;
	if (c->prefix_fd >= 0) {
		send_memory(to, c->prefix_fd, a);
		return;
	}
	a->result = -ENOTSUP;
	snprintf(a->say, sizeof(a->say), "this daemon is not one of several (--data-parallel-size), or caches no "
	         "prefixes");
	send_answer(to, a);
}

/* The connection stays: its end tells the reader that we are gone. */
static bool send_events(struct control_client *p, struct control_answer *a)
{
	const struct control *c = p->c;

	a->result = -EPERM;
	if (p->cred.uid != geteuid() && p->cred.uid != 0 && p->cred.uid != c->reader) {
		snprintf(a->say, sizeof(a->say), "uid %u may not read events, which hold prompts: only uid %u, root and the "
		         "\"user\" of --kv-events-config may", (unsigned)p->cred.uid, (unsigned)geteuid());
		return false;
	}
	a->result = -ENOTSUP;
	if (c->events_fd < 0) {
		snprintf(a->say, sizeof(a->say), "this daemon keeps no events: it was started without "
		         "--kv-events-config {\"enable_kv_cache_events\":true}, or caches no prefixes");
		return false;
	}
	a->result = 0;
	if (send_memory(p->socket.fd, c->events_fd, a) < 0)
		return false;
	io_timer_del(p->c->io, &p->timer);
	return true;
}

/* Send it memory that only the daemon can write, if it may see it; the connection stays. */
static bool start_recording(struct control_client *p, int64_t what, struct control_answer *a)
{
	int fd;

	a->result = -EPERM;
	if ((what & RECORD_IDS) && p->cred.uid != geteuid() && p->cred.uid != 0) {
		snprintf(a->say, sizeof(a->say), "uid %u may not read prompts: only uid %u and root may; without "
		         "--texts only lengths and common beginnings are recorded", (unsigned)p->cred.uid,
		         (unsigned)geteuid());
		return false;
	}
	a->result = !p->c->recorder || what & ~(int64_t)RECORD_IDS ? -EINVAL :
	            record_start(p->c->recorder, what & RECORD_IDS, io_now(), &fd);
	if (a->result < 0) {
		snprintf(a->say, sizeof(a->say), a->result == -EBUSY ? "another recording is running; only one at a "
		         "time is possible" :
		         "a recording cannot begin: %s", strerror(-a->result));
		return false;
	}
	p->records = true;
	a->result = send_memory(p->socket.fd, fd, a);  /* < 0: it is gone */
	close(fd);
	if (a->result < 0)
		return false;
	io_timer_del(p->c->io, &p->timer);
	log_info("Traffic is recorded%s by uid %u (pid %d)", what & RECORD_IDS ? ", prompts too," : "",
	         (unsigned)p->cred.uid, (int)p->cred.pid);
	return true;
}

/* Its message is here, or it has gone. */
static void answer(struct control_client *p)
{
	struct control *c = p->c;
	struct control_answer a = { .result = -EPROTO };
	struct control_ask q = p->q;
	struct io_watch *w = &p->socket;
	ssize_t n = p->n;

	if (n > 0 && (n != sizeof(q) || q.magic != CONTROL_MAGIC || q.version != CONTROL_VERSION)) {
		snprintf(a.say, sizeof(a.say), "the daemon is Slipring %s and does not understand this tool; use the "
		         "slipring of the same version", SLIPRING_VERSION);
		send_answer(w->fd, &a);
	} else if (n > 0) {
		a.knob = q.knob;
		if (q.knob == CONTROL_PREFIX && !q.zero && (!p->limited || p->cred.uid == c->gateway)) {
			send_prefixes(c, w->fd, &a);
			client_close(p);
			return;
		}
		if (q.knob == CONTROL_EVENTS && !q.zero) {
			if (send_events(p, &a))
				return;
		} else if (p->limited) {
			a.result = -EPERM;
			snprintf(a.say, sizeof(a.say), "uid %u may not change settings or record", (unsigned)p->cred.uid);
		} else if (q.knob == CONTROL_RECORD && !q.zero) {
			if (!p->records && start_recording(p, q.value, &a))
				return;
		} else if (q.knob >= N_KNOBS || q.zero) {
			a.result = -EINVAL;
			snprintf(a.say, sizeof(a.say), "there is no knob number %u", q.knob);
		} else {
			a.was = knob_value(c, (enum knob)q.knob);
			a.result = turn_knob(c, (enum knob)q.knob, q.value, &p->cred, a.say, sizeof(a.say));
			a.now = knob_value(c, (enum knob)q.knob);
			a.ceiling = c->ceiling[q.knob];
		}
		send_answer(w->fd, &a);
	}
	client_close(p);
}

static void ask_run(struct aside_job *j)
{
	struct control_client *p = (struct control_client *)((char *)j - offsetof(struct control_client, ask));

	p->n = recv(p->socket.fd, &p->q, sizeof(p->q), MSG_DONTWAIT | MSG_TRUNC);
	if (p->n < 0)
		p->n = -errno;
}

static void ask_done(struct aside_job *j)
{
	struct control_client *p = (struct control_client *)((char *)j - offsetof(struct control_client, ask));

	p->asking = false;
	if (p->late) {
		client_close(p);
		return;
	}
	io_watch_set(p->c->io, &p->socket, IO_IN | IO_HUP);
	if (p->n != -EAGAIN && p->n != -EINTR)
		answer(p);
}

static void on_message(struct io_watch *w, uint32_t events)
{
	struct control_client *p = w->ctx;

	(void)events;
	p->ask = (struct aside_job){ .run = ask_run, .done = ask_done, .uid = p->cred.uid };
	p->asking = true;
	io_watch_set(p->c->io, &p->socket, 0);
	if (p->carries) {
		aside_do(p->c->aside, &p->ask);
		return;
	}
	ask_run(&p->ask);
	ask_done(&p->ask);
}

static void on_deadline(struct io_timer *t)
{
	struct control_client *p = t->ctx;

	p->late = true;
	if (!p->asking)
		client_close(p);
}

static bool in_group(int fd, gid_t primary, gid_t group)
{
	gid_t g[GROUPS_MAX];
	socklen_t len = sizeof(g);

	if (group == (gid_t)-1)
		return false;
	if (primary == group)
		return true;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, g, &len) < 0)
		return false;                 /* it is in more than GROUPS_MAX groups */
	for (size_t i = 0; i < len / sizeof(g[0]); i++)
		if (g[i] == group)
			return true;
	return false;
}

static void denial_run(struct aside_job *j)
{
	struct denial *d = (struct denial *)j;
	char unread[64];

	/* Read its message before closing, else the kernel would report a reset to it instead of the answer. */
	shutdown(d->fd, SHUT_RD);
	while (recv(d->fd, unread, sizeof(unread), MSG_DONTWAIT) > 0)
		;
	send_answer(d->fd, &d->a);
	close(d->fd);
	free(d);
}

/* Takes over fd. */
static void deny(struct control *c, int fd, uid_t uid, const struct control_answer *a)
{
	struct denial *d = malloc(sizeof(*d));

	if (!d) {
		shut(c, fd, uid);
		return;
	}
	*d = (struct denial){ .job = { .run = denial_run, .uid = uid }, .fd = fd, .a = *a };
	if (aside_may_carry(fd))
		aside_do(c->aside, &d->job);
	else
		denial_run(&d->job);
}

/* A client without the right gets the reason at once and takes no place: then fd is no longer ours. */
static bool may_ask(struct control *c, int fd, struct ucred *cred, bool *limited)
{
	struct control_answer a = { .result = -EPERM };
	socklen_t len = sizeof(*cred);
	uint64_t now = io_now();

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, cred, &len) < 0) {
		shut(c, fd, (uid_t)-1);
		return false;
	}
	if (cred->uid == geteuid() || cred->uid == 0 || in_group(fd, cred->gid, c->group))
		return true;
	*limited = (c->gateway != (uid_t)-1 && cred->uid == c->gateway) ||
	           (c->reader != (uid_t)-1 && cred->uid == c->reader);
	if (*limited)
		return true;
	if (*c->group_name)
		snprintf(a.say, sizeof(a.say), "uid %u may not change settings or record: only uid %u, root and "
		         "members of the group %s may", (unsigned)cred->uid, (unsigned)geteuid(),
		         c->group_name);
	else
		snprintf(a.say, sizeof(a.say), "uid %u may not change settings or record: only uid %u and root may; "
		         "slipringd --operator-group NAME lets a group do it", (unsigned)cred->uid,
		         (unsigned)geteuid());
	deny(c, fd, cred->uid, &a);
	if (now - c->logged_at > DEADLINE_NS) {
		log_warn("uid %u (pid %d) may not change the setting that it asked for", (unsigned)cred->uid,
		         (int)cred->pid);
		c->logged_at = now;
	}
	return false;
}

static void client_accept(struct control *c, int fd)
{
	struct control_client *p = c->client;
	struct ucred cred;
	bool limited = false;

	while (p < c->client + CLIENTS_MAX && p->used)
		p++;
	if (!may_ask(c, fd, &cred, &limited))
		return;
	if (p == c->client + CLIENTS_MAX) {
		shut(c, fd, cred.uid);
		return;
	}
	*p = (struct control_client){ .c = c, .cred = cred, .used = true, .limited = limited,
	                    .carries = aside_may_carry(fd),
	                    .socket = { .fd = fd, .events = IO_IN | IO_HUP, .fn = on_message, .ctx = p },
	                    .timer = { .fn = on_deadline, .ctx = p } };
	io_timer_set(c->io, &p->timer, io_now() + DEADLINE_NS);
	if (io_watch_add(c->io, &p->socket) < 0)
		client_close(p);
}

static void on_listener(struct io_watch *w, uint32_t events)
{
	struct control *c = w->ctx;
	int fd = accept4(w->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	uint64_t rest = aside_full(c->aside) ? AGAIN_NS : REST_NS;

	(void)events;
	if (fd >= 0)
		client_accept(c, fd);
	else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
		rest = AGAIN_NS;              /* the listener stays readable: do not spin on it */
	io_watch_set(c->io, w, 0);
	io_timer_set(c->io, &c->again, io_now() + rest);
}

static void on_again(struct io_timer *t)
{
	struct control *c = t->ctx;

	io_watch_set(c->io, &c->listener, IO_IN);
}

/* ---- create and destroy ------------------------------------------------------------------ */

/* Anyone who may enter the run directory may connect: credentials decide, not the file mode. */
static int listen_at(struct control *c, char *err, size_t errlen)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd, e;

	if (strlen(c->path) >= sizeof(a.sun_path)) {
		snprintf(err, errlen, "%.200s: longer than the %zu bytes a socket's path may have; set "
		         "RUNTIME_DIRECTORY to a shorter one", c->path, sizeof(a.sun_path) - 1);
		return -ENAMETOOLONG;
	}
	strcpy(a.sun_path, c->path);
	unlink(c->path);                      /* it is ours: the run directory is locked */
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || chmod(c->path, 0666) < 0 ||
	    listen(fd, BACKLOG) < 0) {
		e = errno;
		snprintf(err, errlen, "%.200s: %s", c->path, strerror(e));
		if (fd >= 0)
			close(fd);
		return -e;
	}
	aside_refuse(fd);
	c->listener = (struct io_watch){ .fd = fd, .events = IO_IN, .fn = on_listener, .ctx = c };
	c->again = (struct io_timer){ .fn = on_again, .ctx = c };
	e = io_watch_add(c->io, &c->listener);
	if (e < 0)
		snprintf(err, errlen, "%.200s: cannot listen here: %s", c->path, strerror(-e));
	return e;
}

static int find_group(struct control *c, const char *name, char *err, size_t errlen)
{
	struct group *g;

	c->group = (gid_t)-1;
	if (!name)
		return 0;
	if (!(g = getgrnam(name))) {
		snprintf(err, errlen, "--operator-group %.100s: no such group", name);
		return -EINVAL;
	}
	c->group = g->gr_gid;
	snprintf(c->group_name, sizeof(c->group_name), "%.63s", name);
	return 0;
}

int control_create(struct control **out, const struct control_config *cfg, struct io *io,
                   struct sched *s, char *err, size_t errlen)
{
	struct control *c = calloc(1, sizeof(*c));
	int r;

	*out = NULL;
	if (!c) {
		snprintf(err, errlen, "no memory");
		return -ENOMEM;
	}
	c->io = io;
	c->s = s;
	c->knobs = cfg->knobs;
	c->stats = cfg->stats;
	c->recorder = cfg->recorder;
	c->gateway = cfg->gateway;
	c->reader = cfg->reader;
	c->prefix_fd = cfg->prefix_fd;
	c->events_fd = cfg->events_fd;
	c->step_default_ns = cfg->step_default_ns;
	c->step_target_us = cfg->knobs.step_ns == cfg->step_default_ns ? 0 : cfg->knobs.step_ns / 1000;
	c->listener.fd = -1;
	c->ceiling[KNOB_MAX_NUM_SEQS] = cfg->seqs_most;
	c->ceiling[KNOB_MAX_NUM_BATCHED_TOKENS] = cfg->tokens_most;
	c->ceiling[KNOB_LONG_PREFILL] = cfg->tokens_most;
	c->ceiling[KNOB_POLICY] = c->ceiling[KNOB_PREFIX_CACHING] = 1;
	c->ceiling[KNOB_STEP_TARGET] = STEP_MAX_US;
	snprintf(c->path, sizeof(c->path), "%.4000s/%s", cfg->run_dir, CONTROL_FILE);
	r = aside_create(&c->aside, io);
	if (r < 0)
		snprintf(err, errlen, "%s", strerror(-r));
	else
		r = find_group(c, cfg->group, err, errlen);
	if (r == 0)
		r = listen_at(c, err, errlen);
	if (r < 0) {
		control_destroy(c);
		return r;
	}
	show_knobs(c);
	*out = c;
	return 0;
}

void control_destroy(struct control *c)
{
	if (!c)
		return;
	c->stopping = true;
	for (struct control_client *p = c->client; p < c->client + CLIENTS_MAX; p++)
		if (p->used)
			client_close(p);
	if (c->listener.fd >= 0) {
		io_timer_del(c->io, &c->again);
		io_watch_del(c->io, &c->listener);
		close(c->listener.fd);
		unlink(c->path);
	}
	aside_destroy(c->aside);
	free(c);
}
