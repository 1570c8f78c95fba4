/* host.c - the daemon's side of a connection: handshake, requests, tokens.
 *
 * THE TRUST BOUNDARY.  `up` belongs to the client.  It may change at any instant and be zero at
 * any place (a punched hole); huge pages of it may raise SIGBUS.  So, without exception:
 *
 *   1. a record or span is copied out once, and only the copy is checked and used;
 *   2. every index we own is kept in private memory and only written out (ring.h);
 *   3. after each copy `poisoned` is checked, because a fault may have put zeros under it;
 *   4. sizes come from the grant (private), never from shared memory.
 *
 * `down` is sealed: the client cannot write, punch or resize it.
 */
#include "host.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "object.h"

#define LIVE_DEFAULT 64
#define FILL_NS      60000u           /* time of one host_fill(); then it finishes one last piece */
#define FLAGS (SR_SEEDED | SR_IGNORE_EOS | SR_PROMPT_LOGPROBS | SR_NO_CACHE | SR_GUIDED | SR_POOLED | \
               SR_PROGRESS)
#define KEPT  8u                         /* guides kept for requests to come, by guided answer granted */

_Static_assert(2 * HOST_CONNS_MAX <= OBJECTS_MAX, "both objects of a connection are guarded");

struct host {
	struct host_config cfg;
	unsigned char *span;                  /* [span_max()]: private copy of the spans being checked */
	uint32_t *mask;                       /* [sr_mask_words()]: private copy of a guide's mask */
};

/* A connection's guides.  A request that is not taken yet has a chain of those that came for it, by its
 * place: KEPT are ample for an honest client, whose runs of known ids fill their records.  When none is free,
 * the next guide is held, and those behind it wait. */
struct kept {
	struct sr_wire_guide g;
	uint32_t next;                        /* its place in kept[] + 1; 0: the last */
};
struct host_guides {
	struct sr_ring ring;
	bool held;                            /* g is taken and not yet left */
	struct sr_wire_guide g;
	uint32_t free;                        /* the first unused one of kept[], + 1 */
	uint32_t *first, *last;               /* [live]: chains, by place of the request; + 1, 0: none */
	struct kept kept[];                   /* [KEPT * guides] */
};

struct host_conn {
	struct host *host;
	int fd;                               /* belongs to the caller */
	struct sr_shape shape;
	uint32_t flags;                       /* for its model info */
	struct object up, down;
	struct sr_ring requests, cancels, tokens;
	struct host_guides *guides;           /* NULL: none were granted */
	volatile sig_atomic_t poisoned;       /* set by the SIGBUS handler */
	bool broken;                          /* the client wrote an impossible head of the token ring */
	bool held;                            /* req is taken and not yet left */
	struct host_request req;
	uint64_t mark[];                      /* [live / 64 + 1]: bit set if cancelled before it was taken */
};

/* ---- the rules ------------------------------------------------------------------------------- */

/* Bytes of the longest spans that request_true() accepts. */
static size_t span_max(uint32_t context) { return 4 * (size_t)context + sr_lists_bytes(); }

int host_create(struct host **out, const struct host_config *cfg)
{
	struct host *host;
	int e;

	if (!sr_shape_ok(&cfg->most) || !cfg->model.vocab || cfg->model.vocab > INT32_MAX ||
	    !cfg->model.context || cfg->model.context > INT32_MAX || !cfg->model.epoch ||
	    cfg->model.width > 1u << 20 || (cfg->most.vectors && !cfg->model.width))
		return -EINVAL;
	host = calloc(1, sizeof(*host));
	if (!host)
		return -ENOMEM;
	host->cfg = *cfg;
	host->span = malloc(span_max(cfg->model.context));
	host->mask = malloc(sr_mask_bytes(cfg->model.vocab));
	e = host->span && host->mask ? object_guards_on() : -ENOMEM;
	if (e) {
		host_destroy(host);
		return e;
	}
	*out = host;
	return 0;
}

void host_destroy(struct host *host)
{
	if (host) {
		free(host->span);
		free(host->mask);
	}
	free(host);
}

/* The wish, or the default, between least and most, rounded up to a power of two like both limits. */
static uint32_t grant(uint32_t want, uint32_t preset, uint32_t least, uint32_t most)
{
	uint32_t n = want ? want : preset;

	n = n < least ? least : n > most ? most : n;
	while (n & (n - 1))
		n += n & -n;
	return n;
}

static struct sr_shape shape_of(const struct host_config *cfg, const struct sr_shape *want)
{
	struct sr_shape s = { .live = grant(want->live, LIVE_DEFAULT, 32, cfg->most.live) };
	size_t arena = want->arena ? want->arena : 2 * span_max(cfg->model.context);

	s.tokens = grant(want->tokens, 16 * s.live, 2 * s.live, cfg->most.tokens);
	arena = (arena + SR_PAGE - 1) / SR_PAGE * SR_PAGE;
	s.arena = arena < cfg->most.arena ? (uint32_t)arena : cfg->most.arena;
	if (want->guides && cfg->most.guides)
		s.guides = grant(want->guides, 0, 8, cfg->most.guides);
	if (want->vectors && cfg->most.vectors)
		s.vectors = grant(want->vectors, 0, 8, cfg->most.vectors);
	assert(sr_shape_ok(&s));
	return s;
}

/* ---- handshake ------------------------------------------------------------------------------- */

static bool all_zero(const void *p, size_t n)
{
	const uint8_t *b = p;
	uint64_t any = 0, word;

	for (; n >= sizeof(word); n -= sizeof(word), b += sizeof(word)) {
		memcpy(&word, b, sizeof(word));
		any |= word;
	}
	while (n > 0)
		any |= b[--n];
	return !any;
}

static bool name_ok(const char *name, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!name[i])
			return true;
		else if (name[i] < ' ' || name[i] > '~')
			return false;
	return false;
}

int host_hello(int fd, struct sr_hello *h)
{
	struct iovec iov = { h, sizeof(*h) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t n = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	if (n < 0)
		return errno == EAGAIN ? -EAGAIN : -ECONNRESET;
	/* No room was given for descriptors: the kernel has closed them and set MSG_CTRUNC. */
	if (n != sizeof(*h) || msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
		return -ECONNRESET;
	if (h->magic != SR_MAGIC || h->version != SR_VERSION ||
	    h->zero || !name_ok(h->name, sizeof(h->name)))
		return -EPROTO;
	return 0;
}

void host_refuse(int fd, int error)
{
	struct sr_welcome w = { .magic = SR_MAGIC, .version = SR_VERSION, .status = error };

	send(fd, &w, sizeof(w), MSG_DONTWAIT | MSG_NOSIGNAL); /* an answer that does not fit is dropped */
}

/* Send the two descriptors in one message. */
int host_welcome(struct host_conn *c)
{
	struct sr_welcome w = { .magic = SR_MAGIC, .version = SR_VERSION, .shape = c->shape,
		.epoch = c->host->cfg.model.epoch };
	union {
		char buf[CMSG_SPACE(2 * sizeof(int))];
		struct cmsghdr align;
	} control = { .buf = { 0 } };
	struct iovec iov = { &w, sizeof(w) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1,
	                      .msg_control = control.buf, .msg_controllen = sizeof(control.buf) };
	struct cmsghdr *cm = &control.align;
	int fds[2] = { c->up.fd, c->down.fd };

	cm->cmsg_level = SOL_SOCKET;
	cm->cmsg_type = SCM_RIGHTS;
	cm->cmsg_len = CMSG_LEN(sizeof(fds));
	memcpy(CMSG_DATA(cm), fds, sizeof(fds));
	return sendmsg(c->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(w) ? 0 : -ECONNRESET;
}

int host_seal(struct host_conn *c) { return object_seal(&c->up); }
int host_begin(struct host_conn *c) { return sr_signal(c->fd); }

static void rings_init(struct host_conn *c)
{
	struct sr_up *up = (void *)c->up.at;
	struct sr_down *down = (void *)c->down.at;
	uint32_t live = c->shape.live;

	sr_ring_init(&c->requests, false, &up->requests, &down->requests, c->up.at + SR_PAGE, live,
	             sizeof(struct sr_wire_request));
	sr_ring_init(&c->cancels, false, &up->cancels, &down->cancels, c->up.at + SR_OFF_CANCELS(live),
	             2 * live, sizeof(struct sr_wire_cancel));
	sr_ring_init(&c->tokens, true, &down->tokens, &up->tokens, c->down.at + SR_PAGE,
	             c->shape.tokens, sizeof(struct sr_record));
	if (c->guides)
		sr_ring_init(&c->guides->ring, false, &up->guides, &down->guides,
		             c->up.at + SR_OFF_GUIDES(&c->shape), 4 * c->shape.guides,
		             sizeof(struct sr_wire_guide));
	down->model = c->host->cfg.model;
	down->model.live = live;
	down->model.tokens = c->shape.tokens;
	down->model.arena = c->shape.arena;
	if (!down->model.guides || down->model.guides > c->shape.guides)
		down->model.guides = c->shape.guides;
	down->model.vectors = c->shape.vectors;
	down->model.flags |= c->flags;
	atomic_store_explicit(&down->epoch, down->model.epoch, memory_order_release);
}

static size_t guides_bytes(const struct sr_shape *s)
{
	return sizeof(struct host_guides) + KEPT * s->guides * sizeof(struct kept) +
	       2 * s->live * sizeof(uint32_t);
}

static struct host_guides *guides_make(const struct sr_shape *s)
{
	struct host_guides *g = calloc(1, guides_bytes(s));
	uint32_t n = KEPT * s->guides;

	if (!g)
		return NULL;
	g->first = (void *)&g->kept[n];
	g->last = g->first + s->live;
	for (uint32_t i = 0; i < n; i++)      /* all in the free list: 1, 2 .. n */
		g->kept[i].next = i + 1 < n ? i + 2 : 0;
	g->free = 1;
	return g;
}

int host_open(struct host_conn **out, struct host *host, int fd, const struct sr_hello *h,
              bool trusted, uint32_t flags)
{
	struct sr_shape shape = shape_of(&host->cfg, &h->want);
	struct host_conn *c = calloc(1, sizeof(*c) + 8 * (shape.live / 64 + 1));
	int e;

	if (!c)
		return -ENOMEM;
	c->host = host;
	c->fd = fd;
	c->shape = shape;
	c->flags = flags;
	c->up.guard = c->down.guard = -1;
	c->guides = shape.guides ? guides_make(&shape) : NULL;
	e = shape.guides && !c->guides ? -ENOMEM : 0;
	if (!e)
		e = object_open(&c->up, SR_UP_BYTES(&shape, host->cfg.model.vocab), PROT_READ, trusted);
	if (!e)
		e = object_open(&c->down, SR_DOWN_BYTES(&shape, host->cfg.model.width), PROT_READ | PROT_WRITE, true);
	if (e) {
		host_close(c, false);
		return e;
	}
	*out = c;
	return 0;
}

int host_fill(struct host_conn *c)
{
	uint64_t until = sr_now() + FILL_NS;
	int e;

	if (c->down.guard >= 0)               /* second fill, after the seal: no other object may replace it */
		return object_fill(&c->up, until) < 0 ? -EFAULT : c->up.there < c->up.len;
	e = object_fill(&c->up, until);
	if (!e)
		e = object_fill(&c->down, until);
	if (e)
		return e;
	e = object_guard(&c->up, &c->poisoned);
	if (!e)
		e = object_guard(&c->down, &c->poisoned);
	if (e)
		return e;
	rings_init(c);
	return 0;
}

int host_unmap(struct host_conn *c)
{
	uint64_t until = sr_now() + FILL_NS;

	return object_unmap(&c->up, until) || object_unmap(&c->down, until);
}

void host_detach(struct host_conn *c, bool stopping, int fd[2])
{
	if (stopping && c->down.guard >= 0)
		atomic_store_explicit(&((struct sr_down *)(void *)c->down.at)->epoch, 0,
		                      memory_order_release);
	fd[0] = object_detach(&c->up);
	fd[1] = object_detach(&c->down);
	free(c->guides);
	free(c);
}

void host_close(struct host_conn *c, bool stopping)
{
	int fd[2];

	host_detach(c, stopping, fd);
	for (int i = 0; i < 2; i++)
		if (fd[i] >= 0)
			close(fd[i]);
}

const struct sr_shape *host_shape(const struct host_conn *c) { return &c->shape; }

size_t host_bytes(const struct host_conn *c)
{
	const struct sr_model_info *m = &c->host->cfg.model;

	return SR_UP_BYTES(&c->shape, m->vocab) + SR_DOWN_BYTES(&c->shape, m->width) +
	       (c->guides ? guides_bytes(&c->shape) : 0);
}

/* ---- requests -------------------------------------------------------------------------------- */

static bool within(float x, float least, float most) { return x >= least && x <= most; } /* not NaN */

static bool sampling_true(const struct sr_sampling *s)
{
#define TRUE(name, least, most) && within(s->name, least, most)
	return true SR_SAMPLING_REALS(TRUE);
#undef TRUE
}

/* The prompt, then other kinds in rising order, each at most once, and nothing behind the last. */
static bool spans_true(const struct sr_span *span)
{
	uint32_t before = 0, i = 0;

	for (; i < SR_SPANS && span[i].kind; i++) {
		const struct sr_span *s = &span[i];

		if (s->kind <= before || s->kind >= SR_SPAN_KINDS || s->zero || s->n < 1 ||
		    s->n > sr_span_rules[s->kind].most)
			return false;
		before = s->kind;
	}
	return span[0].kind == SR_SPAN_PROMPT && all_zero(&span[i], (SR_SPANS - i) * sizeof(*span));
}

/* A pooled request has what a vector needs and nothing that only tokens need; others have none of it. */
static bool pooling_true(const struct host_config *cfg, const struct sr_shape *s,
                         const struct sr_wire_request *q)
{
	bool logits = q->pool == SR_POOL_LOGITS, encoder = cfg->model.flags & SR_ONLY_POOLED;
	struct sr_sampling none = { .min_position = (int32_t)q->span[0].n };

	if (!(q->flags & SR_POOLED))
		return !q->pool && !q->unit && !q->width && !q->place && !q->second && !encoder;
	if (q->second >= q->span[0].n || (q->unit && cfg->model.flags & SR_LABELS))
		return false;
	if (q->flags & (SR_GUIDED | SR_PROMPT_LOGPROBS | SR_SEEDED) || q->max_tokens || q->n_top ||
	    q->n_prompt_top || q->n_answer || memcmp(&q->sampling, &none, sizeof(none)))
		return false;
	if (q->pool < SR_POOL_LAST || q->pool > SR_POOL_LOGITS || q->unit > 1 || q->place < 1 ||
	    q->place > s->vectors || q->width > cfg->model.width || (logits && (q->width || q->unit || encoder)))
		return false;
	if (logits)
		return q->span[1].kind == SR_SPAN_ALLOW && q->span[1].n <= cfg->model.width && !q->span[2].kind;
	return !q->span[1].kind;
}

/* Check all of a record that needs no span's words.  q is our copy. */
static bool request_true(const struct host_config *cfg, const struct sr_shape *s,
                         const struct sr_wire_request *q)
{
	uint32_t context = cfg->model.context, n_prompt = q->span[0].n - q->n_answer; /* without the answer */

	if (q->flags & ~(uint32_t)FLAGS || !all_zero(q->zero0, sizeof(q->zero0)) ||
	    !all_zero(q->zero, sizeof(q->zero)) || !spans_true(q->span))
		return false;
	if (!pooling_true(cfg, s, q) || (q->flags & SR_GUIDED && !(s->guides && q->max_tokens)))
		return false;
	if (q->n_answer && (q->n_answer >= q->span[0].n || q->n_answer >= q->max_tokens ||
	    q->flags & SR_PROMPT_LOGPROBS))
		return false;
	if (n_prompt > context || q->max_tokens > context - n_prompt)
		return false;
	if ((uint32_t)q->sampling.min_position - n_prompt > q->max_tokens)
		return false;
	if (q->max_tokens == 0 && !(q->flags & (SR_PROMPT_LOGPROBS | SR_POOLED)))
		return false;
	if (q->n_top > SR_TOP_MAX || q->n_prompt_top > SR_TOP_MAX ||
	    (q->n_prompt_top && !(q->flags & SR_PROMPT_LOGPROBS)))
		return false;
	if (q->sampling.seed && !(q->flags & SR_SEEDED))
		return false;
	return sampling_true(&q->sampling);
}

static bool ids_true(const int32_t *id, uint32_t n, uint32_t vocab)
{
	uint32_t most = 0;

	for (uint32_t i = 0; i < n; i++) /* no branch, because prompts are long */
		most = (uint32_t)id[i] > most ? (uint32_t)id[i] : most;
	return most < vocab;
}

static bool pairs_true(const struct sr_pair *p, uint32_t n, uint32_t vocab)
{
	for (uint32_t i = 0; i < n; i++)
		if ((uint32_t)p[i].id >= vocab || !within(p[i].value, -1e6f, 1e6f))
			return false;
	return true;
}

/* Sequences: each is a length and its ids.  They must fill the n words exactly. */
static bool sequences_true(const int32_t *w, uint32_t n, uint32_t vocab)
{
	for (uint32_t i = 0, len; i < n; i += 1 + len) {
		len = (uint32_t)w[i];
		if (len < 1 || len > n - i - 1 || !ids_true(w + i + 1, len, vocab))
			return false;
	}
	return true;
}

static bool list_true(const struct host_list *l, unsigned kind, uint32_t vocab)
{
	switch (sr_span_rules[kind].check) {
	case SR_CHECK_IDS:
		return ids_true(l->word, l->n, vocab);
	case SR_CHECK_PAIRS:
		return pairs_true((const void *)l->word, l->n / 2, vocab);
	default:
		return sequences_true(l->word, l->n, vocab);
	}
}

int host_cancel(struct host_conn *c, uint32_t *ticket)
{
	struct sr_wire_cancel w;
	uint32_t first = c->requests.mine - c->held; /* the first request not yet handled */
	int e = c->poisoned ? -EFAULT : sr_ring_take(&c->cancels, &w);

	if (e <= 0)
		return e;
	sr_ring_done(&c->cancels);
	if (c->poisoned)
		return -EFAULT;
	if (w.zero0 || !all_zero(w.zero, sizeof(w.zero)))
		return -EPROTO;
	if (w.op == SR_OP_PING && !w.ticket) {
		struct sr_down *down = (void *)c->down.at;

		atomic_store_explicit(&down->pong, w.nonce, memory_order_release);
		return 2;
	}
	if (w.op != SR_OP_CANCEL || w.nonce)
		return -EPROTO;
	if (w.ticket - first < c->shape.live) { /* not taken: a false ticket marks only its own requests */
		uint32_t place = w.ticket & c->requests.mask;

		c->mark[place / 64] |= 1ull << place % 64;
		return 2;
	}
	*ticket = w.ticket;
	return 1;
}

/* What the checked copy of a record says of its spans. */
static void request_spans(struct host_request *r, const struct host_config *cfg, const struct sr_shape *s)
{
	int64_t bytes = sr_wire_bytes(&r->q, s->arena);

	memset(r->list, 0, sizeof(r->list));
	r->n_prompt = r->q.span[0].n;
	r->words = 0;
	r->error = bytes >= 0 && request_true(cfg, s, &r->q) ? 0 : -EINVAL;
	if (r->error)
		return;
	r->words = (uint32_t)(bytes / 4);
	for (uint32_t i = 0; i < SR_SPANS && r->q.span[i].kind; i++)
		r->list[r->q.span[i].kind].n = (uint32_t)(sr_span_bytes(&r->q.span[i]) / 4);
}

/* ---- guides ---------------------------------------------------------------------------------- */

/* Check all of a record that needs no request.  g is our copy. */
static bool guide_true(const struct sr_wire_guide *g, uint32_t guides, uint32_t vocab)
{
	static const struct { uint8_t least, most; } n[] = { [SR_GUIDE_BITS] = { 0, 0 },
		[SR_GUIDE_ONLY] = { 1, SR_GUIDE_IDS }, [SR_GUIDE_IS] = { 1, SR_GUIDE_IDS },
		[SR_GUIDE_FREE] = { 0, SR_GUIDE_IDS } };

	const uint32_t used = g->kind == SR_GUIDE_BITS ? 1 : g->n;

	return g->kind <= SR_GUIDE_FREE && g->n >= n[g->kind].least && g->n <= n[g->kind].most &&
	       g->place < (g->kind == SR_GUIDE_BITS ? 2 * guides : 1) && ids_true(g->id, g->n, vocab) &&
	       g->id[0] >= 0 && all_zero(g->id + used, (SR_GUIDE_IDS - used) * sizeof(g->id[0]));
}

/* Is the request named not taken yet?  A ticket that nobody has yet is one, too. */
static bool yet_to_come(const struct host_conn *c, uint32_t ticket)
{
	return ticket - (c->requests.mine - c->held) < c->shape.live;
}

static bool kept_put(struct host_guides *u, uint32_t place, const struct sr_wire_guide *g)
{
	uint32_t i = u->free;

	if (!i)
		return false;
	u->free = u->kept[i - 1].next;
	u->kept[i - 1] = (struct kept){ .g = *g };
	*(u->first[place] ? &u->kept[u->last[place] - 1].next : &u->first[place]) = i;
	u->last[place] = i;
	return true;
}

/* All that is kept for the request at this place is free again. */
static void kept_drop(struct host_guides *u, uint32_t place)
{
	if (!u->first[place])
		return;
	u->kept[u->last[place] - 1].next = u->free;
	u->free = u->first[place];
	u->first[place] = 0;
}

/* Hand out a checked record, with a copy of its mask. */
static int guide_give(struct host_conn *c, const struct sr_wire_guide *g, struct host_guide *out)
{
	uint32_t vocab = c->host->cfg.model.vocab, words = sr_mask_words(vocab);

	*out = (struct host_guide){ .g = *g, .words = sizeof(*g) / 4 };
	if (g->kind != SR_GUIDE_BITS)
		return 1;
	memcpy(c->host->mask, c->up.at + SR_OFF_MASKS(&c->shape) + g->place * sr_mask_bytes(vocab),
	       4 * (size_t)words);
	atomic_signal_fence(memory_order_seq_cst); /* the compiler reads the mask once */
	if (c->poisoned)
		return -EFAULT;
	out->bits = c->host->mask;
	out->words += words;
	return 1;
}

bool host_guide_ready(const struct host_conn *c)
{
	const struct host_guides *u = c->guides;

	return u && (!u->held ? sr_ring_ready(&u->ring) : u->free || !yet_to_come(c, u->g.ticket));
}

int host_guide(struct host_conn *c, struct host_guide *out)
{
	struct host_guides *u = c->guides;
	int e = 1;

	if (c->poisoned || !host_guide_ready(c))
		return c->poisoned ? -EFAULT : 0;
	if (!u->held) {
		e = sr_ring_take(&u->ring, &u->g);
		if (e < 0 || c->poisoned)
			return e < 0 ? e : -EFAULT;
		if (!guide_true(&u->g, c->shape.guides, c->host->cfg.model.vocab)) {
			sr_ring_done(&u->ring);
			return -EPROTO;
		}
		u->held = true;
	}
	if (!yet_to_come(c, u->g.ticket))
		e = guide_give(c, &u->g, out);
	else if (kept_put(u, u->g.ticket & c->requests.mask, &u->g))
		*out = (struct host_guide){ .words = sizeof(u->g) / 4 }, e = 2;
	else
		return 0;
	u->held = false;
	sr_ring_done(&u->ring);
	return e;
}

int host_guide_kept(struct host_conn *c, struct host_guide *out)
{
	struct host_guides *u = c->guides;
	uint32_t place = c->req.ticket & c->requests.mask, i = u ? u->first[place] : 0;

	assert(c->held);
	if (!i)
		return 0;
	u->first[place] = u->kept[i - 1].next;
	u->kept[i - 1].next = u->free;
	u->free = i;
	return guide_give(c, &u->kept[i - 1].g, out);
}

/* ---- requests again --------------------------------------------------------------------------- */

int host_peek(struct host_conn *c, struct host_request **out)
{
	struct host_request *r = &c->req;
	uint32_t place;

	if (c->poisoned || c->broken)
		return c->poisoned ? -EFAULT : -EPROTO;
	if (!c->held) {
		int e = sr_ring_take(&c->requests, &r->q);

		if (e <= 0)
			return e;
		if (c->poisoned)
			return -EFAULT;
		c->held = true;
		r->ticket = c->requests.mine - 1;
		request_spans(r, &c->host->cfg, &c->shape);
	}
	place = r->ticket & c->requests.mask;
	r->cancelled = c->mark[place / 64] >> place % 64 & 1;
	*out = r;
	return 1;
}

int host_read(struct host_conn *c)
{
	struct host_request *r = &c->req;
	const int32_t *w = (const void *)c->host->span;
	size_t n = 4 * (size_t)r->words;

	assert(c->held && !r->error && n <= span_max(c->host->cfg.model.context));
	memcpy(c->host->span, c->up.at + SR_OFF_ARENA(c->shape.live) + r->q.at, n);
	atomic_signal_fence(memory_order_seq_cst); /* the compiler reads the spans once */
	if (c->poisoned)
		return -EFAULT;
	for (unsigned kind = SR_SPAN_PROMPT; kind < SR_SPAN_KINDS; kind++) {
		r->list[kind].word = w;
		w += r->list[kind].n;
		if (r->list[kind].n && !list_true(&r->list[kind], kind, c->host->cfg.model.vocab))
			return r->error = -EINVAL;
	}
	return 0;
}

void host_leave(struct host_conn *c)
{
	uint32_t place = c->req.ticket & c->requests.mask;

	assert(c->held);
	if (c->guides)
		kept_drop(c->guides, place);
	c->held = false;
	c->mark[place / 64] &= ~(1ull << place % 64);
	sr_ring_done(&c->requests);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

uint32_t host_reserve(struct host_conn *c, uint32_t least, uint32_t most)
{
	uint32_t n = most;
	int e;

	assert(least >= 1 && least <= most);
	if (sr_ring_room(&c->tokens) < most && !host_room(c, most)) /* the last head read is too old: reread */
		n = sr_ring_room(&c->tokens);
	if (n < least || c->broken)
		return 0;
	e = sr_ring_reserve(&c->tokens, n);
	assert(e == 0);                       /* room only grows */
	return n;
}

void host_release(struct host_conn *c, uint32_t n) { sr_ring_unreserve(&c->tokens, n); }

/* Put the alternatives that do not fit into the token's own record. */
static __attribute__((noinline)) uint32_t put_tops(struct host_conn *c, const struct host_token *t)
{
	uint32_t records = 0;

	for (uint32_t have = SR_TOP_HERE; have < t->n_top; records++) {
		uint32_t n = t->n_top - have < SR_TOP_PER ? t->n_top - have : SR_TOP_PER;
		struct sr_record more = { .kind = SR_TOP, .n_top = (uint8_t)n, .user_data = t->user_data };

		memcpy(more.u.top, t->top + have, n * sizeof(t->top[0]));
		sr_ring_put(&c->tokens, &more);
		have += n;
	}
	return records;
}

/* Written in place: a copy reads fields just written with wider loads, which defeats store forwarding. */
uint32_t host_token(struct host_conn *c, const struct host_token *t)
{
	struct sr_record *r = sr_ring_begin(&c->tokens);

	assert((t->kind == SR_TOKEN || t->kind == SR_PROMPT) && t->n_top <= SR_TOP_MAX);
	r->kind = (uint8_t)t->kind;
	r->n_top = (uint8_t)t->n_top;
	r->last = (uint16_t)t->last;
	r->user_data = t->user_data;
	r->u.token.id = t->id;
	r->u.token.index = t->index;
	r->u.token.logprob = t->logprob;
	r->u.token.rank = t->rank;
	memset(r->u.token.top, 0, sizeof(r->u.token.top));
	if (t->n_top)
		memcpy(r->u.token.top, t->top, sizeof(t->top[0]) * (t->n_top < SR_TOP_HERE ? t->n_top : SR_TOP_HERE));
	sr_ring_end(&c->tokens, r);
	return 1 + (t->n_top > SR_TOP_HERE ? put_tops(c, t) : 0);
}

uint32_t host_end(struct host_conn *c, uint64_t user_data, const struct sr_end *end,
                  uint32_t preempted, uint32_t flags, uint32_t place)
{
	struct sr_record r = { .kind = SR_END, .was = (uint8_t)(flags & (SR_GUIDED | SR_POOLED)),
	                       .user_data = user_data, .u.end = *end,
	                       .preempted = (uint16_t)(preempted < UINT16_MAX ? preempted : UINT16_MAX) };

	if (flags & SR_POOLED)
		r.place = (uint16_t)place;
	sr_ring_put(&c->tokens, &r);
	return 1;
}

void host_computed(struct host_conn *c, uint64_t user_data, const struct sr_end *so_far)
{
	struct sr_record r = { .kind = SR_COMPUTED, .user_data = user_data, .u.end = *so_far };

	sr_ring_put(&c->tokens, &r);
}

void host_vector(struct host_conn *c, uint32_t place, const float *vector, uint32_t n)
{
	uint32_t width = c->host->cfg.model.width;

	assert(place >= 1 && place <= c->shape.vectors && n <= width);
	memcpy(c->down.at + SR_OFF_VECTORS(&c->shape) + (place - 1) * sr_vector_bytes(width), vector,
	       (size_t)n * sizeof(*vector));
}

bool host_room(struct host_conn *c, uint32_t n)
{
	if (sr_ring_room(&c->tokens) < n && sr_ring_look(&c->tokens) < 0)
		c->broken = true;
	return !c->broken && sr_ring_room(&c->tokens) >= n;
}

uint32_t host_left(const struct host_conn *c) { return c->tokens.left; }

void host_doing(const struct host_conn *c, uint64_t now, uint64_t ns[2])
{
	const struct sr_up *up = (const void *)c->up.at;

	for (int i = 0; i < 2; i++)
		ns[i] = sr_doing_ns(atomic_load_explicit(&up->doing[i], memory_order_relaxed), now);
}

/* ---- sleep and wake -------------------------------------------------------------------------- */

int host_wake(struct host_conn *c)
{
	bool sleeps = sr_ring_wanted(&c->tokens);

	sleeps |= sr_ring_freed(&c->requests); /* no short circuit: each call moves that ring's `told` */
	sleeps |= sr_ring_freed(&c->cancels);
	sleeps |= c->guides && sr_ring_freed(&c->guides->ring);
	return sleeps ? sr_signal(c->fd) : 0;
}

void host_arm(struct host_conn *c, uint32_t need)
{
	sr_ring_arm(&c->cancels);
	if (!c->held)
		sr_ring_arm(&c->requests);
	if (c->guides && !c->guides->held)
		sr_ring_arm(&c->guides->ring);
	if (need)
		sr_ring_arm_room(&c->tokens, sr_ring_blocker(&c->tokens, need));
}

bool host_ready(struct host_conn *c, uint32_t need)
{
	return c->poisoned || c->broken || sr_ring_ready(&c->cancels) ||
	       (!c->held && sr_ring_ready(&c->requests)) || host_guide_ready(c) ||
	       (need && (host_room(c, need) || c->broken));
}

int host_drain(struct host_conn *c, unsigned most) { return sr_drain(c->fd, most); }
