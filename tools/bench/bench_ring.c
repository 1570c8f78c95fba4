/* bench_ring.c - the ring wire: requests and tokens through shared memory, without HTTP or text.
 *
 * One connection holds all requests; user_data is a request's number.  A chunk is a token record.
 */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "tools/instance.h"
#include "shmring/slipring.h"

#define RECORDS 256              /* most records taken at once */

struct ring_client {
	struct bench_run *r;
	struct sr_conn *conn;
	bool crowded;                /* the daemon takes no request until one ends */
};

static void ring_close(void *wire)
{
	struct ring_client *g = wire;

	sr_close(g->conn);
	free(g);
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
	rc = g ? sr_open(&g->conn, r->socket, &o) : -ENOMEM;
	if (rc < 0) {
		free(g);
		return instance_refused(r->socket, rc, err, errlen);
	}
	g->r = r;
	*wire = g;
	return 0;
}

static float or_off(double v)
{
	return isnan(v) ? 0 : (float)v;
}

#define AS_ASKED(name, least, most) .name = or_off(o->name),

static int ring_send(void *wire, size_t i)
{
	struct ring_client *g = wire;
	const struct bench_options *o = g->r->o;
	const struct bench_prompt *p = &g->r->load->prompt[i];
	const struct sr_text_info *info = sr_text_info(g->r->text);
	struct sr_request q = {
		.size = sizeof(q), .user_data = i, .prompt = p->ids, .n_prompt = p->n_ids,
		.max_tokens = p->max_tokens,
		.sampling = { SR_SAMPLING_REALS(AS_ASKED) .top_k = o->top_k > 0 ? (int32_t)o->top_k : 0 },
		.n_top = o->logprobs > 0 ? (uint32_t)o->logprobs : 0, .cache_salt = g->r->salt,
	};
	int rc;

	if (o->ignore_eos) {
		q.flags |= SR_IGNORE_EOS;
	} else {
		q.stop = info->stop;
		q.n_stop = (uint32_t)info->n_stop;
	}
	g->r->answer[i].start = g->r->answer[i].last = bench_now();
	rc = sr_submit(g->conn, &q, NULL);
	g->crowded = rc == -EBUSY || rc == -EAGAIN;
	if (g->crowded)
		return -EAGAIN;
	if (rc == -EINVAL || rc == -EMSGSIZE || rc == -E2BIG) {
		char why[200];

		snprintf(why, sizeof(why),
		         "a prompt of %u and an answer of %u tokens are too long for the daemon, whose context is %u",
		         p->n_ids, p->max_tokens, sr_model(g->conn)->context);
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
	struct pollfd fd = { .fd = sr_fd(g->conn), .events = POLLIN };
	double wait = until - bench_now();
	struct timespec ts = { 0, 0 };

	if (wait <= 0 || sr_arm(g->conn, SR_WAIT_TOKENS | (g->crowded ? SR_WAIT_ROOM : 0)) != 0)
		return;
	ts.tv_sec = (time_t)wait;
	ts.tv_nsec = (long)((wait - (double)ts.tv_sec) * 1e9);
	ppoll(&fd, 1, &ts, NULL);
}

static int ring_turn(void *wire, double until)
{
	struct ring_client *g = wire;
	struct sr_record rec[RECORDS];
	double now;
	int n = sr_poll(g->conn, rec, RECORDS);

	if (n == 0) {
		doze(g, until);
		n = sr_poll(g->conn, rec, RECORDS);
	}
	if (n < 0) {
		daemon_lost(g);
		return n;
	}
	now = bench_now();
	for (int i = 0; i < n; i++) {
		struct bench_answer *a = &g->r->answer[rec[i].user_data];

		if (rec[i].user_data >= g->r->n_sent)
			continue;
		if (rec[i].kind == SR_TOKEN)
			answer_token(g, a, rec[i].u.token.id, now);
		else if (rec[i].kind == SR_END)
			ended(g, a, &rec[i].u.end);
	}
	return 0;
}

const struct bench_wire bench_wire_ring = { ring_open, ring_send, ring_turn, ring_close };
