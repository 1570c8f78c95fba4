/* bench_ring.c - the ring wire: requests and tokens through shared memory, without HTTP or text.
 *
 * One connection to each daemon holds its requests; user_data is a request's number.  A chunk is a token
 * record.
 *
 * Of several replicas a request goes to the one with the fewest tokens to do, or to the one that had a prompt
 * with the same beginning, unless that has more to do by more than the prompt.  The adapter knows the caches
 * themselves; this one needs nothing but what was sent.
 */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "tools/instance.h"
#include "shmring/slipring.h"

#define RECORDS   256            /* most records taken at once */
#define DAEMONS   64
#define BEGINNING 64             /* tokens that two prompts have alike if they are sent to the same daemon */

struct ring_client {
	struct bench_run *r;
	struct sr_conn *conn[DAEMONS];
	int n;
	double todo[DAEMONS];        /* tokens of requests under way */
	int *at;                     /* [load->n] which daemon has a request */
	struct { uint64_t beginning; int at; } *seen; /* [room] open addressing; beginning 0: free */
	size_t room;
	bool crowded;                /* the daemon takes no request until one ends */
};

static void ring_close(void *wire)
{
	struct ring_client *g = wire;

	for (int i = 0; i < g->n; i++)
		sr_close(g->conn[i]);
	free(g->at);
	free(g->seen);
	free(g);
}

/* Connect to all daemons.  0, or -errno. */
static int connect_all(struct ring_client *g, struct bench_run *r, const struct sr_options *o, char *err,
                       size_t errlen)
{
	int n = r->n_replicas ? r->n_replicas : 1;

	for (; g->n < n && g->n < DAEMONS; g->n++) {
		const char *socket = r->n_replicas ? r->replica[g->n] : r->socket;
		int rc = instance_connect(&g->conn[g->n], socket, o, err, errlen);

		if (rc < 0)
			return rc;
	}
	return 0;
}

static int ring_open(void **wire, struct bench_run *r, char *err, size_t errlen)
{
	struct sr_options o = { .size = sizeof(o), .name = "slipring bench", .live = 4096,
	                        .tokens = 1 << 16 };
	struct ring_client *g = calloc(1, sizeof(*g));
	uint64_t arena = 1 << 20;
	int rc;

	for (size_t i = 0; i < r->load->n && arena < 64 << 20; i++)
		arena += r->load->prompt[i].n_ids * sizeof(int32_t);
	o.arena = (uint32_t)arena;
	if (r->o->concurrency && r->o->concurrency < o.live)
		o.live = (uint32_t)r->o->concurrency;
	if (!g)
		return -ENOMEM;
	for (g->room = 16; g->room < 2 * r->load->n;)
		g->room *= 2;
	g->at = calloc(r->load->n + 1, sizeof(*g->at));
	g->seen = calloc(g->room, sizeof(*g->seen));
	rc = g->at && g->seen ? connect_all(g, r, &o, err, errlen) : -ENOMEM;
	if (rc < 0) {
		ring_close(g);
		return rc;
	}
	g->r = r;
	*wire = g;
	return 0;
}

/* ---- which daemon ------------------------------------------------------------------------------ */

/* The place of a prompt's beginning in seen[]. */
static size_t place_of(const struct ring_client *g, const struct bench_prompt *p, uint64_t *beginning)
{
	uint64_t h = 0xcbf29ce484222325u;
	size_t at;

	for (uint32_t i = 0; i < p->n_ids && i < BEGINNING; i++)
		h = (h ^ (uint32_t)p->ids[i]) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
	*beginning = h | 1;
	for (at = (size_t)(h >> 8) & (g->room - 1); g->seen[at].beginning && g->seen[at].beginning != *beginning;)
		at = (at + 1) & (g->room - 1);
	return at;
}

static int choose(const struct ring_client *g, const struct bench_prompt *p)
{
	uint64_t beginning;
	size_t at;
	int least = 0;

	if (g->n == 1)
		return 0;
	for (int i = 1; i < g->n; i++)
		if (g->todo[i] < g->todo[least])
			least = i;
	at = place_of(g, p, &beginning);
	if (!g->seen[at].beginning || g->todo[g->seen[at].at] > g->todo[least] + p->n_ids)
		return least;
	return g->seen[at].at;
}

static void given(struct ring_client *g, size_t i, const struct bench_prompt *p, int to)
{
	uint64_t beginning;
	size_t at;

	g->at[i] = to;
	g->todo[to] += p->n_ids + p->max_tokens;
	if (g->n == 1)
		return;
	at = place_of(g, p, &beginning);
	g->seen[at].beginning = beginning;
	g->seen[at].at = to;
}

static void taken_back(struct ring_client *g, size_t i)
{
	g->todo[g->at[i]] -= g->r->load->prompt[i].n_ids + g->r->load->prompt[i].max_tokens;
}

/* ---- requests and tokens ------------------------------------------------------------------------- */

static float or_served(double v, float served)
{
	return isnan(v) ? served : (float)v;
}

#define AS_ASKED(name, least, most) .name = or_served(o->name, served->name),

static int ring_send(void *wire, size_t i)
{
	struct ring_client *g = wire;
	const struct bench_options *o = g->r->o;
	const struct bench_prompt *p = &g->r->load->prompt[i];
	const struct sr_text_info *info = sr_text_info(g->r->text);
	const struct sr_sampling *served = &sr_model(g->conn[0])->sampling;
	struct sr_request q = {
		.size = sizeof(q), .user_data = i, .prompt = p->ids, .n_prompt = p->n_ids,
		.max_tokens = p->max_tokens,
		.sampling = { SR_SAMPLING_REALS(AS_ASKED)
		              .top_k = o->top_k >= 0 ? (int32_t)o->top_k : served->top_k },
		.n_top = o->logprobs > 0 ? (uint32_t)o->logprobs : 0, .cache_salt = g->r->salt,
	};
	int rc, to = choose(g, p);

	if (o->ignore_eos) {
		q.flags |= SR_IGNORE_EOS;
	} else {
		q.stop = info->stop;
		q.n_stop = (uint32_t)info->n_stop;
	}
	g->r->answer[i].start = g->r->answer[i].last = bench_now();
	rc = sr_submit(g->conn[to], &q, NULL);
	if (rc >= 0)
		given(g, i, p, to);
	g->crowded = rc == -EBUSY || rc == -EAGAIN;
	if (g->crowded)
		return -EAGAIN;
	if (rc == -EINVAL || rc == -EMSGSIZE || rc == -E2BIG) {
		char why[200];

		snprintf(why, sizeof(why),
		         "a prompt of %u and an answer of %u tokens are too long for the daemon, whose context is %u",
		         p->n_ids, p->max_tokens, sr_model(g->conn[to])->context);
		bench_done(g->r, &g->r->answer[i], why);
		return 0;
	}
	return rc;
}

static void ended(struct ring_client *g, struct bench_answer *a, const struct sr_end *end)
{
	char why[100];

	a->n_output = end->n_tokens;
	snprintf(why, sizeof(why), "the daemon ended the request: %s",
	         strerror(end->finish < 0 ? -end->finish : 0));
	bench_done(g->r, a, end->finish < 0 ? why : !a->n_chunks ? "no token came" : NULL);
}

static void answer_token(struct ring_client *g, struct bench_answer *a, int32_t id, double now)
{
	if (g->r->keep_ids && a->n_ids == a->cap_ids) {
		size_t cap = a->cap_ids ? a->cap_ids * 2 : 64;
		int32_t *grown = realloc(a->ids, cap * sizeof(*grown));

		if (!grown) {
			bench_done(g->r, a, "no memory for the answer's tokens");
			return;
		}
		a->ids = grown;
		a->cap_ids = cap;
	}
	if (g->r->keep_ids)
		a->ids[a->n_ids++] = id;
	bench_chunk(g->r, a, now);
}

static void daemon_lost(struct ring_client *g)
{
	for (size_t i = 0; i < g->r->n_sent; i++)
		bench_done(g->r, &g->r->answer[i], "the daemon is gone");
}

static void doze(struct ring_client *g, double until)
{
	struct pollfd fd[DAEMONS];
	double wait = until - bench_now();
	struct timespec ts = { 0, 0 };

	if (wait <= 0)
		return;
	for (int i = 0; i < g->n; i++) {
		fd[i] = (struct pollfd){ .fd = sr_fd(g->conn[i]), .events = POLLIN };
		if (sr_arm(g->conn[i], SR_WAIT_TOKENS | (g->crowded ? SR_WAIT_ROOM : 0)) != 0)
			return;
	}
	ts.tv_sec = (time_t)wait;
	ts.tv_nsec = (long)((wait - (double)ts.tv_sec) * 1e9);
	ppoll(fd, (nfds_t)g->n, &ts, NULL);
}

static void take(struct ring_client *g, const struct sr_record *rec, int n)
{
	double now = bench_now();

	for (int i = 0; i < n; i++) {
		struct bench_answer *a = &g->r->answer[rec[i].user_data];

		if (rec[i].user_data >= g->r->n_sent)
			continue;
		if (rec[i].kind == SR_TOKEN)
			answer_token(g, a, rec[i].u.token.id, now);
		else if (rec[i].kind == SR_END) {
			taken_back(g, rec[i].user_data);
			ended(g, a, &rec[i].u.end);
		}
	}
}

/* Take what all daemons sent.  Records taken, or -errno: one is gone. */
static int take_all(struct ring_client *g)
{
	struct sr_record rec[RECORDS];
	int all = 0;

	for (int i = 0; i < g->n; i++) {
		int n = sr_poll(g->conn[i], rec, RECORDS);

		if (n < 0)
			return n;
		take(g, rec, n);
		all += n;
	}
	return all;
}

static int ring_turn(void *wire, double until)
{
	struct ring_client *g = wire;
	int n = take_all(g);

	if (n == 0) {
		doze(g, until);
		n = take_all(g);
	}
	if (n < 0)
		daemon_lost(g);
	return n < 0 ? n : 0;
}

const struct bench_wire bench_wire_ring = { ring_open, ring_send, ring_turn, ring_close };
