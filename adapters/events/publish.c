/* publish.c - see publish.h. */
#include "publish.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zmq.h>

#include "shmring/clock.h"

#define ASKING 16             /* replays at a time; a client beyond that gets the end at once */
#define ID_MAX 255            /* bytes of a client's identity: ZeroMQ's limit */
#define TURN   256            /* batches that one replay gets in a turn */
#define UNREAD_NS 10000000000ull /* a replay of which the client takes nothing for this long ends */
#define HEARD  1024           /* bytes of a message to us: a subscription, or a replay's number */

struct kept { unsigned char *at; size_t n; };

/* A replay: who asked, and the batch that it gets next. */
struct replay {
	bool used;
	size_t n_id;
	unsigned char id[ID_MAX];
	uint64_t next;
	uint64_t sent;               /* when a batch was sent last, or when it was asked for */
};

struct publisher {
	void *pub, *router;
	char topic[KV_EVENTS_TEXT];
	bool arrays;
	uint64_t number, oldest;     /* of the next batch, and of the oldest that is kept */
	uint64_t most;
	struct kept *kept;           /* [most], batch i at i % most */
	size_t bytes;
	struct replay replay[ASKING];
};

/* ---- sockets ---- */

/* vLLM: the port and the rank together.  Endpoints of other kinds get the rank as an ending. */
static void add_rank(char *out, size_t n, const char *endpoint, int rank)
{
	const char *colon = strrchr(endpoint, ':');
	char *end;
	long port = colon ? strtol(colon + 1, &end, 10) : 0;

	if (!rank)
		snprintf(out, n, "%s", endpoint);
	else if (!strncmp(endpoint, "tcp://", 6) && colon && colon[1] && !*end)
		snprintf(out, n, "%.*s:%ld", (int)(colon - endpoint), endpoint, port + rank);
	else
		snprintf(out, n, "%s_dp%d", endpoint, rank);
}

/* As vLLM, endpoints for everybody are bound, others connected.  The loopback interface is bound, too. */
static bool binds(const char *endpoint)
{
	return !strncmp(endpoint, "tcp://lo:", 9) || strchr(endpoint, '*') || strstr(endpoint, "::") ||
	       !strncmp(endpoint, "ipc://", 6);
}

static void *open_socket(void *zmq, int type, const char *endpoint, bool bind, int hwm, char *err,
                         size_t errlen)
{
	void *s = zmq_socket(zmq, type);
	int64_t heard = HEARD;
	int zero = 0, one = 1;

	if (s && zmq_setsockopt(s, ZMQ_LINGER, &zero, sizeof(zero)) == 0 &&
	    zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &heard, sizeof(heard)) == 0 &&
	    zmq_setsockopt(s, ZMQ_SNDHWM, &hwm, sizeof(hwm)) == 0 &&
	    (!strstr(endpoint, "::") || zmq_setsockopt(s, ZMQ_IPV6, &one, sizeof(one)) == 0) &&
	    (type != ZMQ_ROUTER || zmq_setsockopt(s, ZMQ_ROUTER_MANDATORY, &one, sizeof(one)) == 0) &&
	    (bind ? zmq_bind(s, endpoint) : zmq_connect(s, endpoint)) == 0)
		return s;
	snprintf(err, errlen, "%s: %s", endpoint, zmq_strerror(zmq_errno()));
	if (s)
		zmq_close(s);
	return NULL;
}

int publish_create(struct publisher **out, void *zmq, const struct kv_events *cfg, const char *topic,
                   int rank, char *err, size_t errlen)
{
	struct publisher *p = calloc(1, sizeof(*p));
	char endpoint[KV_EVENTS_TEXT + 32];

	if (p)
		p->kept = calloc((size_t)cfg->steps, sizeof(*p->kept));
	if (!p || !p->kept) {
		free(p);
		snprintf(err, errlen, "no memory to keep %lld batches", (long long)cfg->steps);
		return -ENOMEM;
	}
	p->most = (uint64_t)cfg->steps;
	p->arrays = cfg->arrays;
	snprintf(p->topic, sizeof(p->topic), "%s", topic);
	add_rank(endpoint, sizeof(endpoint), cfg->endpoint, rank);
	p->pub = open_socket(zmq, ZMQ_PUB, endpoint, binds(endpoint), (int)cfg->hwm, err, errlen);
	if (p->pub && *cfg->replay) {
		add_rank(endpoint, sizeof(endpoint), cfg->replay, rank);
		p->router = open_socket(zmq, ZMQ_ROUTER, endpoint, true, 1000, err, errlen);
	}
	if (!p->pub || (*cfg->replay && !p->router)) {
		publish_destroy(p);
		return -EINVAL;
	}
	*out = p;
	return 0;
}

void publish_destroy(struct publisher *p)
{
	if (!p)
		return;
	for (uint64_t i = 0; i < p->most; i++)
		free(p->kept[i].at);
	if (p->pub)
		zmq_close(p->pub);
	if (p->router)
		zmq_close(p->router);
	free(p->kept);
	free(p);
}

void *publish_socket(const struct publisher *p) { return p->router; }
uint64_t publish_number(const struct publisher *p) { return p->number; }

/* ---- batches ---- */

static void number_bytes(uint64_t n, unsigned char to[8])
{
	for (int i = 0; i < 8; i++)
		to[i] = (unsigned char)(n >> (56 - 8 * i));
}

static void drop_oldest(struct publisher *p)
{
	struct kept *k = &p->kept[p->oldest++ % p->most];

	p->bytes -= k->n;
	free(k->at);
	*k = (struct kept){ 0 };
}

int publish_send(struct publisher *p, const unsigned char *batch, size_t n)
{
	unsigned char number[8], *copy = malloc(n);
	uint64_t at = p->number++;

	while (p->oldest < at && (at - p->oldest >= p->most || p->bytes + n > PUBLISH_KEPT))
		drop_oldest(p);
	if (copy)
		memcpy(copy, batch, n);
	p->kept[at % p->most] = (struct kept){ copy, copy ? n : 0 };
	p->bytes += copy ? n : 0;
	if (!copy)
		return -ENOMEM;
	number_bytes(at, number);
	/* A PUB socket never waits: what a slow subscriber cannot take is dropped for it. */
	if (zmq_send(p->pub, p->topic, strlen(p->topic), ZMQ_SNDMORE) < 0 ||
	    zmq_send(p->pub, number, sizeof(number), ZMQ_SNDMORE) < 0 || zmq_send(p->pub, batch, n, 0) < 0)
		return -ENOMEM;
	return 0;
}

/* ---- replays ---- */

/* One message of three frames: identity, nothing, the number.  0: it is none; -1: there is no message. */
static int read_asked(struct publisher *p, struct replay *r)
{
	unsigned char body[8];
	int frames = 0, more = 1, bad = 0;
	size_t size = sizeof(more);

	while (more) {
		zmq_msg_t m;
		int n;

		zmq_msg_init(&m);
		n = zmq_msg_recv(&m, p->router, ZMQ_DONTWAIT);
		if (n < 0) {
			zmq_msg_close(&m);
			return -1;
		}
		if (frames == 0 && n <= ID_MAX) {
			memcpy(r->id, zmq_msg_data(&m), (size_t)n);
			r->n_id = (size_t)n;
		} else if (frames == 2 && n == 8) {
			memcpy(body, zmq_msg_data(&m), 8);
		} else if (frames != 1 || n) {
			bad = 1;
		}
		frames++;
		zmq_msg_close(&m);
		zmq_getsockopt(p->router, ZMQ_RCVMORE, &more, &size);
	}
	r->next = 0;
	for (int i = 0; i < 8 && frames == 3 && !bad; i++)
		r->next = r->next << 8 | body[i];
	return frames == 3 && !bad;
}

bool publish_asked(struct publisher *p)
{
	bool lost = false;
	struct replay asked = { .used = true, .sent = sr_now() };
	int r;

	for (int k = 0; k < ASKING && p->router && (r = read_asked(p, &asked)) >= 0; k++) {
		struct replay *to = p->replay;

		while (to < p->replay + ASKING && to->used)
			to++;
		if (!r || to == p->replay + ASKING)
			continue;
		*to = asked;
		lost |= to->next < p->oldest;
	}
	return lost;
}

/* 1: sent; 0: not now; -1: the client is gone. */
static int send_answer(struct publisher *p, const struct replay *r, uint64_t number, const struct kept *k)
{
	unsigned char bytes[8];
	int rc = zmq_send(p->router, r->id, r->n_id, ZMQ_SNDMORE | ZMQ_DONTWAIT);

	if (rc < 0)
		return zmq_errno() == EAGAIN ? 0 : -1;
	number_bytes(number, bytes);
	/* The first frame went, so the others do. */
	zmq_send(p->router, "", 0, ZMQ_SNDMORE);
	if (!p->arrays)
		zmq_send(p->router, p->topic, strlen(p->topic), ZMQ_SNDMORE);
	zmq_send(p->router, bytes, sizeof(bytes), ZMQ_SNDMORE);
	zmq_send(p->router, k ? k->at : (unsigned char *)"", k ? k->n : 0, 0);
	return 1;
}

static bool answer_one(struct publisher *p, struct replay *r)
{
	for (int i = 0; i < TURN; i++) {
		const struct kept *k;
		int sent;

		if (r->next < p->oldest)
			r->next = p->oldest;
		k = r->next < p->number ? &p->kept[r->next % p->most] : NULL;
		sent = k && !k->at ? 1 : send_answer(p, r, k ? r->next : UINT64_MAX, k);
		if (!sent && sr_now() - r->sent < UNREAD_NS)
			return true;
		if (sent <= 0 || !k) {
			r->used = false;
			return false;
		}
		r->next++;
		r->sent = sr_now();
	}
	return true;
}

bool publish_answer(struct publisher *p)
{
	bool more = false;

	for (struct replay *r = p->replay; r < p->replay + ASKING; r++)
		if (r->used)
			more |= answer_one(p, r);
	return more;
}
