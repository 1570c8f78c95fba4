/* client.c - a client's side of a connection: all of slipring.h.
 *
 *	sr_submit   writes the spans into the arena and the record into the request ring, and signals
 *	            the daemon if it sleeps
 *	sr_guide    writes a mask into a free place and the record into the guide ring
 *	sr_poll     takes records out of the token ring
 *	sr_vector   copies a vector out of its place
 *	sr_wait     spins for a short time, then sleeps on the socket
 *
 * A connection belongs to one thread at a time, and this file starts no threads.  The daemon may
 * die at any instruction, or lie.  Everything it wrote is checked where it is read, so the worst
 * result is a call that returns -EPROTO or -ECONNRESET.
 */
#include "slipring.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "wire.h"

#define HANDSHAKE_MS 5000         /* of sr_open(), unless the options set it */
#define SPIN_US      50           /* of sr_wait(), unless the options set it */
#define CLOCK_EVERY 16                        /* empty polls between two readings of the clock */
#define SILENCE_NS  20000000ull               /* a silence this long: ask the kernel if the daemon lives */
#define SEALS        (F_SEAL_SHRINK | F_SEAL_GROW) /* permanent: a seal cannot be removed */

struct mask_place {                   /* used: by these records, as numbered since the start */
	uint64_t guide, request;      /* 0: never used; else the number of records put up to and with it */
};

struct sr_conn {
	int fd;
	unsigned char *up, *down;
	size_t up_len, down_len, masks;   /* masks: where in up the mask places begin */
	struct sr_ring requests, cancels, tokens, guides;
	struct sr_model_info model;       /* our private copy */
	uint64_t spin_ns, nonce;
	uint32_t live;                    /* submitted, END not yet read */
	uint32_t empty;                   /* polls in a row that found no record */
	uint64_t silent;                  /* when the silence began, or when the kernel was last asked */
	bool over;                        /* the daemon is gone */

	/* The arena, in bytes since the start: spans lie in [left, put), at offset % size. */
	uint64_t arena_left, arena_put;
	uint32_t seen;                    /* the requests.left for which arena_left was computed */
	bool refused;                     /* the last submit returned -EAGAIN */
	uint32_t blocker;                 /* the refused request fits once the daemon has left this record */
	uint32_t doing[2];                /* counts of requests, see sr_doing() */

	uint32_t live_guided;             /* of live, those that are guided */
	uint64_t n_requests, n_guides;    /* records put since the start */
	struct mask_place *place;         /* [2 * model.guides] */
	uint32_t next_place;              /* where to look first */
	int32_t guide_us;                 /* what the next guide with bits took */
	unsigned char *vectors;           /* in down, where the places of vectors begin */
	bool *used;                       /* [model.vectors]: named by a request, and not given back */
	uint32_t next_vector;             /* where to look first */
	uint64_t end[];                   /* [live] by place: arena_put after that request's spans */
};

/* Copy a caller's versioned struct: fields it lacks become zero; fields we lack must be zero. */
static int versioned(void *to, size_t have, const void *from, uint32_t size)
{
	if (size < sizeof(uint32_t))
		return -EINVAL;
	for (size_t i = have; i < size; i++)
		if (((const unsigned char *)from)[i])
			return -E2BIG;
	memset(to, 0, have);
	memcpy(to, from, size < have ? size : have);
	return 0;
}

/* ---- open and close -------------------------------------------------------------------------- */

static int dial(const char *path, uint32_t ms)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct timeval limit = { .tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000 };
	int fd, e;

	if (!path || strlen(path) >= sizeof(a.sun_path))
		return -ENAMETOOLONG;
	strcpy(a.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)); /* connect() obeys it, too */
	if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
		e = errno == EAGAIN ? -ETIMEDOUT : -errno;
		close(fd);
		return e;
	}
	return fd;
}

/* recvmsg() within what is left of the handshake's time. */
static ssize_t receive_until(int fd, struct msghdr *msg, uint64_t until)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	for (;;) {
		ssize_t n = recvmsg(fd, msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		uint64_t now = sr_now();

		if (n >= 0 || errno != EAGAIN)
			return n >= 0 ? n : -errno;
		if (now >= until)
			return -ETIMEDOUT;
		poll(&p, 1, (int)((until - now) / 1000000) + 1);
	}
}

/* Receive the welcome and its descriptors, at most two. */
static int receive(int fd, struct sr_welcome *w, int fds[2], uint64_t until)
{
	union {
		char buf[CMSG_SPACE(2 * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = { w, sizeof(*w) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1,
	                      .msg_control = control.buf, .msg_controllen = sizeof(control.buf) };
	struct cmsghdr *cm;
	ssize_t n = receive_until(fd, &msg, until);
	int got = 0;

	if (n < 0)
		return (int)n;
	cm = CMSG_FIRSTHDR(&msg);         /* it holds descriptors: no other ancillary data was enabled */
	if (cm) {
		got = (int)((cm->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(fds, CMSG_DATA(cm), (size_t)got * sizeof(int));
	}
	if (n == 0)
		return -ECONNRESET;
	if (n != sizeof(*w) || msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC) || w->magic != SR_MAGIC ||
	    w->version != SR_VERSION)
		return -EPROTO;
	if (w->status)
		return w->status < 0 && w->status > -4096 ? w->status : -EPROTO;
	return got == 2 && sr_shape_ok(&w->shape) ? 0 : -EPROTO;
}

/* Map an object of at least `bytes` bytes.  It must be sealed, so that nobody can shrink it. */
static int map(int fd, size_t bytes, int prot, unsigned char **at, size_t *len)
{
	int seals = fcntl(fd, F_GET_SEALS); /* -1 if it is no memfd: then every bit is set */
	struct stat st;
	void *p;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (seals < 0 || (seals & SEALS) != SEALS || (size_t)st.st_size < bytes)
		return -EPROTO;
	p = mmap(NULL, (size_t)st.st_size, prot, MAP_SHARED, fd, 0); /* all of it: huge pages map only whole */
	if (p == MAP_FAILED)
		return -errno;
	madvise(p, bytes, prot & PROT_WRITE ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
	*at = p;
	*len = (size_t)st.st_size;
	return 0;
}

/* Both are mapped: lay the rings over them. */
static int rings_make(struct sr_conn *c, const struct sr_welcome *w)
{
	struct sr_down *down = (void *)c->down;
	struct sr_up *up = (void *)c->up;
	uint32_t live = w->shape.live, guides = w->shape.guides, vectors = w->shape.vectors;

	sr_ring_init(&c->requests, true, &up->requests, &down->requests, c->up + SR_PAGE, live,
	             sizeof(struct sr_wire_request));
	sr_ring_init(&c->cancels, true, &up->cancels, &down->cancels, c->up + SR_OFF_CANCELS(live),
	             2 * live, sizeof(struct sr_wire_cancel));
	sr_ring_init(&c->tokens, false, &down->tokens, &up->tokens, c->down + SR_PAGE,
	             w->shape.tokens, sizeof(struct sr_record));
	if (vectors) {
		c->model.vectors = vectors;
		c->vectors = c->down + SR_OFF_VECTORS(&w->shape);
		c->used = calloc(vectors, sizeof(c->used[0]));
		if (!c->used)
			return -ENOMEM;
	}
	if (!guides)
		return 0;
	sr_ring_init(&c->guides, true, &up->guides, &down->guides, c->up + SR_OFF_GUIDES(&w->shape),
	             4 * guides, sizeof(struct sr_wire_guide));
	if (!c->model.guides || c->model.guides > guides)
		c->model.guides = guides;
	c->masks = SR_OFF_MASKS(&w->shape);
	c->place = calloc(2 * (size_t)guides, sizeof(c->place[0]));
	return c->place ? 0 : -ENOMEM;
}

static int attach(struct sr_conn *c, const struct sr_welcome *w, const int fds[2])
{
	int e = map(fds[1], SR_DOWN_BYTES(&w->shape, 0), PROT_READ, &c->down, &c->down_len);

	if (e)
		return e;
	c->model = ((struct sr_down *)(void *)c->down)->model;
	if (c->model.vocab > INT32_MAX)       /* the size of a mask comes from it */
		return -EPROTO;
	if (c->model.width > 1u << 20 || SR_DOWN_BYTES(&w->shape, c->model.width) > c->down_len)
		return -EPROTO;
	c->model.name[sizeof(c->model.name) - 1] = '\0';
	c->model.epoch = w->epoch;
	c->model.live = w->shape.live;
	c->model.tokens = w->shape.tokens;
	c->model.arena = w->shape.arena;
	if (!w->shape.guides)
		c->model.guides = 0;
	c->model.vectors = 0;
	e = map(fds[0], SR_UP_BYTES(&w->shape, c->model.vocab), PROT_READ | PROT_WRITE, &c->up, &c->up_len);
	return e ? e : rings_make(c, w);
}

/* Signal that both are mapped.  Wait until the daemon has sealed what we write and watches it. */
static int announce(int fd, uint64_t until)
{
	char byte;
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	int e = sr_signal(fd);
	ssize_t n = e ? e : receive_until(fd, &msg, until);

	return n > 0 ? 0 : n < 0 ? (int)n : -ECONNRESET;
}

/* With a single core, spinning takes the core that the daemon needs to answer. */
static bool alone(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) < 2;
}

int sr_open(struct sr_conn **out, const char *socket_path, const struct sr_options *options)
{
	struct sr_hello h = { .magic = SR_MAGIC, .version = SR_VERSION };
	struct sr_welcome w;
	struct sr_options o = { 0 };
	struct sr_conn *c = NULL;
	int fd, fds[2] = { -1, -1 }, e;
	uint64_t until;

	if (options && (e = versioned(&o, sizeof(o), options, options->size)) < 0)
		return e;
	if (!memchr(o.name, '\0', sizeof(o.name)))
		return -EINVAL;
	h.want = (struct sr_shape){ o.live, o.tokens, o.arena, o.guides, o.vectors };
	memcpy(h.name, o.name, sizeof(h.name));
	until = sr_now() + (o.timeout_ms ? o.timeout_ms : HANDSHAKE_MS) * 1000000ull;
	fd = dial(socket_path, o.timeout_ms ? o.timeout_ms : HANDSHAKE_MS);
	if (fd < 0)
		return fd;
	/* A refusal may come before the daemon reads our hello: try to receive even if sending fails. */
	e = send(fd, &h, sizeof(h), MSG_NOSIGNAL) == sizeof(h) ? 0 : -errno;
	if (e == 0 || e == -EPIPE)
		e = receive(fd, &w, fds, until);
	if (!e) {
		c = calloc(1, sizeof(*c) + w.shape.live * sizeof(c->end[0]));
		e = c ? 0 : -ENOMEM;
	}
	if (!e) {
		c->fd = fd;
		c->spin_ns = o.spin_us ? o.spin_us * 1000ull : alone() ? 0 : SPIN_US * 1000ull;
		e = attach(c, &w, fds);
	}
	if (!e)
		e = announce(fd, until);
	for (int i = 0; i < 2; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	if (e < 0) {
		if (c)
			sr_close(c);
		else
			close(fd);
		return e;
	}
	*out = c;
	return 0;
}

void sr_close(struct sr_conn *c)
{
	if (!c)
		return;
	if (c->up)
		munmap(c->up, c->up_len);
	if (c->down)
		munmap(c->down, c->down_len);
	close(c->fd);
	free(c->place);
	free(c->used);
	free(c);
}

const struct sr_model_info *sr_model(const struct sr_conn *c) { return &c->model; }
int sr_fd(const struct sr_conn *c) { return c->fd; }

/* ---- is it still there? ---------------------------------------------------------------------- */

/* A daemon that stops clears its epoch; one that is killed closes the socket.  Both come after its
 * last record, so a caller that sees the end looks into the ring once more (acquire). */
static int alive(struct sr_conn *c, bool ask_kernel)
{
	const struct sr_down *down = (const void *)c->down;
	struct pollfd p = { .fd = c->fd, .events = POLLRDHUP };

	if (!c->over && atomic_load_explicit(&down->epoch, memory_order_acquire) != c->model.epoch)
		c->over = true;
	if (!c->over && ask_kernel)       /* POLLRDHUP shows even behind unread signals */
		c->over = poll(&p, 1, 0) > 0;
	return c->over ? -ECONNRESET : 0;
}

int sr_stopped(const struct sr_conn *c)
{
	const struct sr_down *down = (const void *)c->down;

	return atomic_load_explicit(&down->epoch, memory_order_acquire) == 0;
}

/* One fence, then one signal if the daemon sleeps on any ring. */
static int wake(struct sr_conn *c)
{
	bool sleeps;

	sr_ring_fence();
	sleeps = sr_ring_wanted(&c->requests);
	sleeps |= sr_ring_wanted(&c->cancels);
	sleeps |= sr_ring_freed(&c->tokens);
	sleeps |= c->place && sr_ring_wanted(&c->guides);
	if (sleeps && sr_signal(c->fd) < 0)
		c->over = true;
	return c->over ? -ECONNRESET : 0;
}

/* ---- submit and cancel ----------------------------------------------------------------------- */

static const void *list_of(const struct sr_request *q, unsigned kind)
{
	const void *list;

	memcpy(&list, (const char *)q + sr_span_rules[kind].list, sizeof(list));
	return list;
}

/* Name the spans of q in its record.  Their size in bytes, or 0 if a list is wrong. */
static uint64_t spans_name(struct sr_wire_request *w, const struct sr_request *q)
{
	uint64_t bytes = 0;

	for (unsigned kind = SR_SPAN_PROMPT, i = 0; kind < SR_SPAN_KINDS; kind++) {
		struct sr_span s = { .kind = (uint16_t)kind };

		memcpy(&s.n, (const char *)q + sr_span_rules[kind].count, sizeof(s.n));
		if (s.n > sr_span_rules[kind].most || (s.n && !list_of(q, kind)))
			return 0;
		if (s.n)
			w->span[i++] = s;
		bytes += sr_span_bytes(&s);
	}
	return bytes;
}

/* Find room for n bytes in the arena: *at is where the spans go, in bytes since the
 * start.  -EAGAIN: there is room once the daemon has left record c->blocker.  Invariant: the spans
 * of records left .. mine-1 lie in [arena_left, arena_put), which is at most one arena long. */
static int arena_find(struct sr_conn *c, uint64_t n, uint64_t *at)
{
	struct sr_ring *r = &c->requests;
	uint64_t size = c->model.arena, put = c->arena_put, need;

	if (sr_ring_look(r) < 0)
		return -EPROTO;
	if (r->left != c->seen) {
		c->arena_left = c->end[(r->left - 1) & r->mask];
		c->seen = r->left;
	}
	if (r->left == r->mine)           /* none is in use: start at 0, so the whole arena fits */
		c->arena_left = put = c->arena_put = (put + size - 1) / size * size;
	if (put % size + n > size)        /* they never wrap */
		put += size - put % size;
	need = put + n;
	*at = put;
	if (need - c->arena_left <= size)
		return 0;
	c->blocker = r->left;             /* the first record whose end frees enough; at worst the last */
	while (c->blocker + 1 != r->mine && need - c->end[c->blocker & r->mask] > size)
		c->blocker++;
	return -EAGAIN;
}

static void spans_write(unsigned char *to, const struct sr_wire_request *w, const struct sr_request *q)
{
	for (unsigned i = 0; i < SR_SPANS && w->span[i].kind; i++) {
		uint64_t bytes = sr_span_bytes(&w->span[i]);

		memcpy(to, list_of(q, w->span[i].kind), bytes);
		to += bytes;
	}
}

/* What a pooled request asks for, and the place for its vector.  0, -ENOTSUP, -EBUSY. */
static int pooling_name(struct sr_conn *c, struct sr_wire_request *w, const struct sr_request *q)
{
	uint32_t n = c->model.vectors;

	if (!(q->flags & SR_POOLED))
		return q->pooling.kind || q->pooling.width || q->pooling.unit || q->second ? -EINVAL : 0;
	if (!n)
		return -ENOTSUP;
	if (q->pooling.kind > SR_POOL_LOGITS || q->pooling.unit > 1)
		return -EINVAL;
	w->pool = (uint8_t)q->pooling.kind;
	w->unit = (uint8_t)q->pooling.unit;
	w->width = q->pooling.width;
	w->second = q->second;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t p = (c->next_vector + i) % n;

		if (!c->used[p]) {
			c->next_vector = p + 1;
			w->place = (uint16_t)(p + 1);
			return 0;
		}
	}
	return -EBUSY;
}

int sr_submit(struct sr_conn *c, const struct sr_request *request, uint32_t *ticket)
{
	struct sr_request q;
	struct sr_wire_request w;
	uint64_t bytes, at;
	uint32_t index = c->requests.mine;
	int e = versioned(&q, sizeof(q), request, request->size);

	if (e < 0)
		return e;
	w = (struct sr_wire_request){
		.flags = q.flags, .user_data = q.user_data, .max_tokens = q.max_tokens, .deadline = q.deadline,
		.priority = q.priority, .n_top = (uint8_t)q.n_top, .n_prompt_top = (uint8_t)q.n_prompt_top,
		.cache_salt = q.cache_salt, .tenant = q.tenant, .sampling = q.sampling, .n_answer = q.n_answer,
		.name = q.name,
	};
	w.sampling.min_position = (int32_t)(q.n_prompt - q.n_answer + q.min_tokens);
	memcpy(w.trace_id, q.trace_id, sizeof(w.trace_id));
	memcpy(w.span_id, q.span_id, sizeof(w.span_id));
	/* Only what does not fit the wire is refused here; the daemon judges the rest. */
	bytes = spans_name(&w, &q);
	if (!bytes || q.n_prompt <= q.n_answer || q.n_top > SR_TOP_MAX || q.n_prompt_top > SR_TOP_MAX ||
	    q.sampling.min_position)
		return -EINVAL;
	if (q.n_prompt > c->model.context || q.max_tokens > c->model.context - (q.n_prompt - q.n_answer) ||
	    bytes > c->model.arena)
		return -EMSGSIZE;
	if (q.flags & SR_GUIDED && !c->place)
		return -ENOTSUP;
	if (alive(c, false) < 0)
		return -ECONNRESET;
	if (c->live == c->model.live || (q.flags & SR_GUIDED && c->live_guided == c->model.guides))
		return -EBUSY;
	if ((e = pooling_name(c, &w, &q)) < 0)
		return e;
	e = arena_find(c, bytes, &at);
	if (!e && (e = sr_ring_reserve(&c->requests, 1)) == -EAGAIN)
		c->blocker = sr_ring_blocker(&c->requests, 1);
	c->refused = e == -EAGAIN;
	if (e < 0)
		return e;
	w.at = (uint32_t)(at % c->model.arena);
	spans_write(c->up + SR_OFF_ARENA(c->model.live) + w.at, &w, &q);
	c->arena_put = at + bytes;
	c->end[index & c->requests.mask] = c->arena_put;
	sr_ring_put(&c->requests, &w);
	if (w.place)
		c->used[w.place - 1] = true;
	c->live++;
	c->live_guided += !!(q.flags & SR_GUIDED);
	c->n_requests++;
	if (ticket)
		*ticket = index;
	wake(c);                          /* it is put: if the daemon is gone, the next call reports it */
	return 0;
}

static int cancel_put(struct sr_conn *c, const struct sr_wire_cancel *w)
{
	int e = sr_ring_reserve(&c->cancels, 1);

	if (e < 0)
		return e;
	sr_ring_put(&c->cancels, w);
	return wake(c);
}

int sr_cancel(struct sr_conn *c, uint32_t ticket)
{
	struct sr_wire_cancel w = { .op = SR_OP_CANCEL, .ticket = ticket };

	return alive(c, false) < 0 ? -ECONNRESET : cancel_put(c, &w);
}

/* ---- guides ---------------------------------------------------------------------------------- */

/* Has the daemon left record number `nth` of n put into this ring, by the last head read? */
static bool has_left(const struct sr_ring *r, uint64_t n, uint64_t nth)
{
	return n - nth >= r->mine - r->left;
}

/* A mask place that is ours, or -EAGAIN.  Places are used in turn, so the first is mostly free. */
static int32_t place_find(struct sr_conn *c)
{
	uint32_t n = 2 * c->model.guides;

	if (sr_ring_look(&c->guides) < 0 || sr_ring_look(&c->requests) < 0)
		return -EPROTO;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t p = c->next_place++ % n;

		if (has_left(&c->guides, c->n_guides, c->place[p].guide) &&
		    has_left(&c->requests, c->n_requests, c->place[p].request))
			return (int32_t)p;
	}
	return -EAGAIN;
}

static bool guide_true(const struct sr_conn *c, uint32_t kind, const int32_t *ids, uint32_t n,
                       const uint32_t *bits)
{
	static const struct { uint8_t least, most; } count[] = { [SR_GUIDE_BITS] = { 0, 0 },
		[SR_GUIDE_ONLY] = { 1, SR_GUIDE_IDS }, [SR_GUIDE_IS] = { 1, SR_GUIDE_RUN },
		[SR_GUIDE_FREE] = { 0, SR_GUIDE_IDS } };

	if (kind > SR_GUIDE_FREE || n < count[kind].least || n > count[kind].most || (n && !ids) ||
	    (kind == SR_GUIDE_BITS && !bits))
		return false;
	for (uint32_t i = 0; i < n; i++)
		if ((uint32_t)ids[i] >= c->model.vocab)
			return false;
	return true;
}

int sr_guide(struct sr_conn *c, uint32_t ticket, uint32_t index, uint32_t kind, const int32_t *ids,
             uint32_t n, const uint32_t *bits)
{
	uint32_t records = n > SR_GUIDE_IDS ? (n + SR_GUIDE_IDS - 1) / SR_GUIDE_IDS : 1;
	int32_t place = 0;
	int e;

	if (!c->place)
		return -ENOTSUP;
	if ((int32_t)(c->requests.mine - 1 - ticket) < 0 || !guide_true(c, kind, ids, n, bits))
		return -EINVAL;
	if (alive(c, false) < 0)
		return -ECONNRESET;
	if (kind == SR_GUIDE_BITS && (place = place_find(c)) < 0)
		return place;
	if ((e = sr_ring_reserve(&c->guides, records)) < 0)
		return e;
	if (kind == SR_GUIDE_BITS) {
		memcpy(c->up + c->masks + (size_t)place * sr_mask_bytes(c->model.vocab), bits,
		       4 * (size_t)sr_mask_words(c->model.vocab));
		c->place[place].guide = c->n_guides + 1;
		c->place[place].request = c->n_requests - (uint32_t)(c->requests.mine - 1 - ticket);
	}
	for (uint32_t at = 0; records > 0; at += SR_GUIDE_IDS, records--) {
		uint32_t here = n - at < SR_GUIDE_IDS ? n - at : SR_GUIDE_IDS;
		struct sr_wire_guide w = { .ticket = ticket, .index = index + at, .kind = (uint8_t)kind,
		                           .n = (uint8_t)here, .place = (uint16_t)place };

		if (here)
			memcpy(w.id, ids + at, here * sizeof(ids[0]));
		if (kind == SR_GUIDE_BITS) {
			w.id[0] = c->guide_us;
			c->guide_us = 0;
		}
		sr_ring_put(&c->guides, &w);
		c->n_guides++;
	}
	return wake(c);
}

void sr_guide_took(struct sr_conn *c, uint32_t us)
{
	c->guide_us = us < INT32_MAX ? (int32_t)us : INT32_MAX;
}

/* ---- vectors --------------------------------------------------------------------------------- */

int sr_vector(struct sr_conn *c, uint32_t place, float *out, uint32_t n)
{
	if (place < 1 || place > c->model.vectors || !c->used[place - 1] || n > c->model.width || (n && !out))
		return -EINVAL;
	if (n)
		memcpy(out, c->vectors + (place - 1) * sr_vector_bytes(c->model.width), (size_t)n * sizeof(*out));
	c->used[place - 1] = false;
	return 0;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* No record was there: return 0, or the error if none will come.  The kernel is asked only after
 * a silence, so a client that polls while tokens come makes no system call for them. */
static int nothing(struct sr_conn *c)
{
	uint64_t now;

	if (++c->empty % CLOCK_EVERY)
		return alive(c, false);
	now = sr_now();
	if (c->empty == CLOCK_EVERY)
		c->silent = now;
	if (now - c->silent < SILENCE_NS)
		return alive(c, false);
	c->silent = now;
	return alive(c, true);
}

int sr_poll(struct sr_conn *c, struct sr_record *out, unsigned max)
{
	unsigned n = 0;
	int e;

	if (!max)
		return 0;
	do {
		for (; n < max && sr_ring_take(&c->tokens, &out[n]) == 1; n++)
			if (out[n].kind == SR_END) {
				c->live -= c->live > 0;
				c->live_guided -= (out[n].was & SR_GUIDED) && c->live_guided > 0;
			}
	} while (!n && (e = nothing(c)) < 0 && sr_ring_ready(&c->tokens)); /* records put before the end */
	if (!n)
		return e;
	c->empty = 0;
	sr_ring_done(&c->tokens);
	wake(c);
	return (int)n;
}

int sr_gather(struct sr_token *t, const struct sr_record *r)
{
	uint32_t n = r->kind == SR_END || r->kind == SR_COMPUTED ? 0 : r->n_top;

	if (r->kind == SR_TOP) {
		if (t->n_here >= t->n_top || r->user_data != t->user_data || n < 1 || n > SR_TOP_PER ||
		    n > t->n_top - t->n_here)
			return -EPROTO;
		memcpy(t->top + t->n_here, r->u.top, n * sizeof(t->top[0]));
		t->n_here += n;
		return t->n_here == t->n_top;
	}
	if (t->n_here < t->n_top || r->kind < SR_TOKEN || r->kind > SR_COMPUTED || n > SR_TOP_MAX)
		return -EPROTO;
	memset(t, 0, sizeof(*t));
	t->user_data = r->user_data;
	t->kind = r->kind;
	t->id = -1;
	if (r->kind == SR_END || r->kind == SR_COMPUTED) {
		t->end = r->u.end;
		t->place = r->kind == SR_END && r->was & SR_POOLED ? r->place : 0;
		return 1;
	}
	t->last = r->last;
	t->id = r->u.token.id;
	t->index = r->u.token.index;
	t->rank = r->u.token.rank;
	t->logprob = r->u.token.logprob;
	t->n_top = n;
	t->n_here = n < SR_TOP_HERE ? n : SR_TOP_HERE;
	memcpy(t->top, r->u.token.top, t->n_here * sizeof(t->top[0]));
	return t->n_here == t->n_top;
}

int sr_next(struct sr_conn *c, struct sr_token *t)
{
	struct sr_record r;
	int n;

	while ((n = sr_poll(c, &r, 1)) == 1)
		if ((n = sr_gather(t, &r)) != 0)
			break;
	return n;
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Which events of `what` have happened: flags, or -errno. */
static int look(struct sr_conn *c, int what)
{
	int have = 0;

	if (what & SR_WAIT_TOKENS && sr_ring_ready(&c->tokens))
		have |= SR_WAIT_TOKENS;
	if (what & SR_WAIT_ROOM) {
		if (sr_ring_look(&c->requests) < 0)
			return -EPROTO;
		/* The blocker is a record already put, so it is less than a ring behind. */
		if (!c->refused || c->requests.left - c->blocker - 1 <= c->requests.mask)
			have |= SR_WAIT_ROOM;
	}
	if (have || alive(c, false) == 0)
		return have;
	return what & SR_WAIT_TOKENS && sr_ring_ready(&c->tokens) ? SR_WAIT_TOKENS : -ECONNRESET;
}

/* Order (wire.h, Signals): empty the socket, arm, fence F1, look.  After that the caller sleeps. */
int sr_arm(struct sr_conn *c, int what)
{
	if (sr_drain(c->fd, 64) < 0)
		c->over = true;
	if (what & SR_WAIT_TOKENS)
		sr_ring_arm(&c->tokens);
	if (what & SR_WAIT_ROOM && c->refused)
		sr_ring_arm_room(&c->requests, c->blocker);
	sr_ring_fence();
	return look(c, what);
}

static int spin(struct sr_conn *c, int what, uint64_t until)
{
	for (unsigned turn = 0;; turn++) {
		int have = look(c, what);

		if (have)
			return have;
		if (turn % 16 == 15 && sr_now() >= until)
			return 0;
		sr_relax();
	}
}

int sr_wait(struct sr_conn *c, int what, int timeout_ms)
{
	uint64_t begin, until, now;
	struct pollfd p = { .fd = c->fd, .events = POLLIN };
	int have = look(c, what);

	if (have || !timeout_ms)
		return have;
	begin = sr_now();
	until = timeout_ms < 0 ? UINT64_MAX : begin + (uint64_t)timeout_ms * 1000000;
	if (c->spin_ns) {
		now = begin + c->spin_ns;
		if ((have = spin(c, what, now < until ? now : until)) != 0)
			return have;
	}
	for (;;) {
		if ((have = sr_arm(c, what)) != 0)
			return have;
		now = sr_now();
		if (now >= until)
			return 0;
		/* Round up: rounded down, the last part of a millisecond would be spent spinning. */
		if (poll(&p, 1, until == UINT64_MAX ? -1 : (int)((until - now + 999999) / 1000000)) < 0)
			return -errno;        /* EINTR goes to the caller */
	}
}

/* The clock that should run: preparing comes before arriving. */
static int clock_of(const struct sr_conn *c)
{
	return c->doing[SR_PREPARING] ? SR_PREPARING : c->doing[SR_ARRIVING] ? SR_ARRIVING : -1;
}

static void flip(struct sr_conn *c, int clock, uint64_t now)
{
	_Atomic uint64_t *word = &((struct sr_up *)(void *)c->up)->doing[clock];

	atomic_store_explicit(word, sr_doing_flip(atomic_load_explicit(word, memory_order_relaxed), now),
	                      memory_order_relaxed);
}

void sr_doing(struct sr_conn *c, int what, int by)
{
	int was = clock_of(c), is;
	uint64_t now;
	int64_t n;

	if (what != SR_PREPARING && what != SR_ARRIVING)
		return;
	n = (int64_t)c->doing[what] + by;
	c->doing[what] = n < 0 ? 0 : n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
	is = clock_of(c);
	if (is == was)
		return;
	now = sr_now();
	if (was >= 0)
		flip(c, was, now);
	if (is >= 0)
		flip(c, is, now);
}

int sr_ping(struct sr_conn *c, uint64_t *rtt_ns, int timeout_ms)
{
	const struct sr_down *down = (const void *)c->down;
	struct sr_wire_cancel w = { .op = SR_OP_PING, .nonce = ++c->nonce };
	uint64_t begin, until;
	int e;

	if (alive(c, false) < 0)
		return -ECONNRESET;
	begin = sr_now();
	until = timeout_ms < 0 ? UINT64_MAX : begin + (uint64_t)timeout_ms * 1000000;
	e = cancel_put(c, &w);
	for (unsigned turn = 1; !e; turn++) {
		if (atomic_load_explicit(&down->pong, memory_order_acquire) == w.nonce) {
			*rtt_ns = sr_now() - begin;
			return 0;
		}
		sr_relax();
		if (turn % 256)
			continue;
		e = alive(c, turn % 65536 == 0);
		if (!e && sr_now() >= until)
			e = -ETIMEDOUT;
		sched_yield();                /* the daemon may need this core to answer */
	}
	return e;
}
