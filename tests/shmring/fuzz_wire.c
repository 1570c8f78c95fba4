/* LINK: shmring/object.c -lhugetlbfs */
/* fuzz_wire.c - any bytes in a client's memory: what host.c hands on is valid, and what it takes is
 * bounded.
 *
 * An input is [n_requests][n_cancels][flags][seq][head: 4 bytes][n_guides] then records of 252, 60 and 60 bytes
 * (without seq, which is correct unless flags change it); the rest fills the arena. */
#include <stdlib.h>

#include "shmring/host.c"

#define VOCAB   1000
#define CONTEXT 256
#define LIVE    32
#define GUIDES  8

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static struct host_conn *conn;
static unsigned char *up;             /* writable, as the client has it */

static void must(bool x)
{
	if (!x)
		abort();
}

static void open_once(void)
{
	struct host_config cfg = { .most = { LIVE, 64, 4096, GUIDES },
		.model = { .vocab = VOCAB, .context = CONTEXT, .epoch = 1 } };
	struct sr_hello h = { .magic = SR_MAGIC, .version = SR_VERSION, .want.guides = GUIDES };
	struct sr_welcome w;
	union { char buf[CMSG_SPACE(8)]; struct cmsghdr align; } control;
	struct iovec iov = { &w, sizeof(w) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
		.msg_controllen = sizeof(control.buf) };
	struct host *host = NULL;
	int pair[2], fds[2];

	must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0 && host_create(&host, &cfg) == 0);
	must(host_open(&conn, host, pair[0], &h, false, 0) == 0);
	while (host_fill(conn) > 0)
		;
	must(host_welcome(conn) == 0);
	must(recvmsg(pair[1], &msg, 0) == sizeof(w));
	memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fds));
	up = mmap(NULL, conn->up.len, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
	must(up != MAP_FAILED);
}

static size_t eat(const uint8_t **p, size_t *n, void *to, size_t want)
{
	size_t have = *n < want ? *n : want;

	memcpy(to, *p, have);
	*p += have;
	*n -= have;
	return have;
}

static void check_ids(const int32_t *id, uint32_t n)
{
	must(n <= SR_LIST_MAX || n <= CONTEXT);
	for (uint32_t i = 0; i < n; i++)
		must(id[i] >= 0 && id[i] < VOCAB);
}

/* Everything that clients/serve.c and the scheduler rely on. */
static void check_request(const struct host_request *r)
{
	const struct sr_wire_request *q = &r->q;
	const struct host_list *bad = &r->list[SR_SPAN_BAD], *bias = &r->list[SR_SPAN_BIAS];
	uint32_t i = 0, words = 0, n = r->n_prompt, least = (uint32_t)q->sampling.min_position;

	must(n >= 1 && n <= CONTEXT && q->max_tokens <= CONTEXT - n && least >= n && least <= n + q->max_tokens);
	must(q->max_tokens || q->flags & SR_PROMPT_LOGPROBS);
	must(q->sampling.temperature >= 0 && q->sampling.temperature < 1e7f);
	must(q->sampling.top_p >= 0 && q->sampling.top_p <= 1 && q->sampling.min_p >= 0 && q->sampling.min_p <= 1);
	must(q->sampling.repetition >= 0 && q->sampling.repetition < 1e7f);
	must(q->sampling.presence >= -2 && q->sampling.presence <= 2);
	must(q->sampling.frequency >= -2 && q->sampling.frequency <= 2);
	must(q->n_top <= SR_TOP_MAX && q->n_prompt_top <= SR_TOP_MAX);
	for (unsigned kind = 0; kind < SR_SPAN_KINDS; kind++)
		words += r->list[kind].n;
	must(words == r->words && r->list[SR_SPAN_PROMPT].n == n && !r->list[0].n);
	check_ids(r->list[SR_SPAN_PROMPT].word, n);
	check_ids(r->list[SR_SPAN_STOP].word, r->list[SR_SPAN_STOP].n);
	check_ids(r->list[SR_SPAN_ALLOW].word, r->list[SR_SPAN_ALLOW].n);
	must(bad->n <= SR_BAD_MAX && bias->n <= 2 * SR_LIST_MAX && bias->n % 2 == 0);
	for (; i < bad->n; i += 1 + (uint32_t)bad->word[i]) {
		must(bad->word[i] >= 1 && i + (uint32_t)bad->word[i] < bad->n);
		check_ids(bad->word + i + 1, (uint32_t)bad->word[i]);
	}
	must(i == bad->n);
	for (i = 0; i < bias->n; i += 2) {
		float value;

		check_ids(bias->word + i, 1);
		memcpy(&value, bias->word + i + 1, 4);
		must(value >= -1e6f && value <= 1e6f);
	}
}

/* Everything that clients/guide.c and the scheduler rely on. */
static void check_guide(const struct host_guide *h)
{
	const struct sr_wire_guide *g = &h->g;
	uint32_t least = g->kind == SR_GUIDE_ONLY || g->kind == SR_GUIDE_IS;

	must(g->kind <= SR_GUIDE_FREE && g->n >= least && g->n <= (g->kind == SR_GUIDE_BITS ? 0 : SR_GUIDE_IDS));
	check_ids(g->id, g->n);
	must(!h->bits == (g->kind != SR_GUIDE_BITS) && h->words == (h->bits ? 16 + 32 : 16));
	must(!h->bits || h->bits == conn->host->mask);
}

/* Each kept record has one place: in the free list, or in the chain of one request. */
static void check_kept(void)
{
	const struct host_guides *u = conn->guides;
	uint32_t n = 0;

	for (uint32_t i = u->free; i; i = u->kept[i - 1].next)
		must(++n <= KEPT * GUIDES);
	for (uint32_t k = 0; k < LIVE; k++)
		for (uint32_t i = u->first[k]; i; i = u->kept[i - 1].next) {
			must(++n <= KEPT * GUIDES && (u->kept[i - 1].g.ticket & (LIVE - 1)) == k);
			must(u->kept[i - 1].next || u->last[k] == i);
		}
	must(n == KEPT * GUIDES);
}

static void drive_guides(void)
{
	struct host_guide h;
	int e, n = 0;

	for (; (e = host_guide(conn, &h)) > 0; n++) {
		must(n <= 4 * GUIDES + 1);
		if (e == 1)
			check_guide(&h);
	}
	must(e == 0 || e == -EPROTO);
	check_kept();
}

static void drive(void)
{
	struct host_request *r;
	struct host_guide h;
	uint32_t ticket, n = 0, promised;
	int e;

	for (n = 0; (e = host_cancel(conn, &ticket)) > 0; n++)
		must(n <= 2 * LIVE);
	must(e == 0 || e == -EPROTO);
	drive_guides();
	for (n = 0; (e = host_peek(conn, &r)) == 1; n++) {
		must(n <= LIVE);
		if (!r->error && host_read(conn) == 0)
			check_request(r);
		while (!r->error && (e = host_guide_kept(conn, &h)) == 1)
			check_guide(&h);
		must(r->error || e == 0);
		host_leave(conn);
	}
	must(e == 0 || e == -EPROTO);
	drive_guides();
	promised = host_reserve(conn, 1, 70);
	must(promised <= 64 && conn->tokens.mine - conn->tokens.left + conn->tokens.reserved <= 64);
	while (promised-- > 0)
		host_end(conn, 0, &(struct sr_end){ 0 }, 0, 0, 0);
	host_arm(conn, 3);
	host_ready(conn, 3);
	host_wake(conn);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	uint8_t head[9] = { 0 };
	struct sr_up *words;

	if (!conn)
		open_once();
	memset(up, 0, SR_UP_BYTES(&conn->shape, VOCAB));
	words = (void *)up;
	memset(conn->mark, 0, 8 * (LIVE / 64 + 1));
	conn->held = conn->broken = false;
	free(conn->guides);
	conn->guides = guides_make(&conn->shape);
	must(conn->guides);
	rings_init(conn);
	eat(&p, &n, head, sizeof(head));
	memcpy((void *)&words->tokens.head, head + 4, 4);
	if (!(head[2] & 1))
		atomic_store(&words->tokens.head, 0);
	for (uint32_t i = 0; i < head[0] % (LIVE + 2); i++) {
		unsigned char *at = up + SR_PAGE + 256 * (i % LIVE);
		uint32_t seq = sr_ring_seq(i) + (head[2] & 2 ? head[3] : 0);

		memcpy(at, &seq, 4);
		eat(&p, &n, at + 4, 252);
	}
	for (uint32_t i = 0; i < head[1] % (2 * LIVE + 2); i++) {
		unsigned char *at = up + SR_OFF_CANCELS(LIVE) + 64 * (i % (2 * LIVE));
		uint32_t seq = sr_ring_seq(i) + (head[2] & 4 ? head[3] : 0);

		memcpy(at, &seq, 4);
		eat(&p, &n, at + 4, 60);
	}
	for (uint32_t i = 0; i < head[8] % (4 * GUIDES + 2); i++) {
		unsigned char *at = up + SR_OFF_GUIDES(&conn->shape) + 64 * (i % (4 * GUIDES));
		uint32_t seq = sr_ring_seq(i) + (head[2] & 8 ? head[3] : 0);

		memcpy(at, &seq, 4);
		eat(&p, &n, at + 4, 60);
	}
	eat(&p, &n, up + SR_OFF_ARENA(LIVE), 4096);
	drive();
	drive();                              /* again, like the next turn */
	return 0;
}
