/* LINK: @daemon shmring/client.c -luring -lhugetlbfs -lxxhash */
/* test_hostile.c - what a client may write, ask and refuse to read: the rules R1 to R9 of docs/trust.md,
 * each with its attack.  After each the daemon's invariants hold and its neighbour's answers are right. */
#include <signal.h>

#include "core/clients/empty.h"
#include "tests/rig/daemon.h"
#include "tests/rig/evil.h"

static struct daemon d;
static atomic_bool stop;

/* Threads race here on purpose: ThreadSanitizer must not report it. */
#define SCRIBBLER __attribute__((no_sanitize("thread")))

static void neighbour_is_well(void)
{
	static uint32_t salt;
	struct sr_conn *c;

	assert_int_equal(sr_open(&c, d.path, NULL), 0);
	ask(c, ++salt, 30);
	sr_close(c);
	daemon_look(&d);
}

/* ---- R1: indices ----------------------------------------------------------------------------- */

static SCRIBBLER void *scribble_seqs(void *arg)
{
	struct evil *e = arg;
	uint32_t s = 9;

	while (!stop) {
		uint32_t i = xorshift(&s) % 32, k = xorshift(&s);
		_Atomic uint32_t *seq = (void *)(e->up + SR_PAGE + 256 * i);

		atomic_store(seq, k % 4 == 0 ? k : k % 4 == 1 ? sr_ring_seq(i) + k % 3 * 64 : k % 4 == 2 ?
			sr_ring_seq(i + 0x80000000u) : sr_ring_seq(atomic_load(e->requests.head) + i));
	}
	return NULL;
}

static void R1_wild_indices(void **state)
{
	static const uint32_t wild[] = { 1, 2, 65, 1000, 0x80000000u, 0xffffffffu };
	struct evil e;
	pthread_t t;

	(void)state;
	/* A head past what was put, or backwards: found as soon as room is checked. */
	for (size_t i = 0; i < sizeof(wild) / sizeof(wild[0]); i++) {
		struct sr_up *up;

		evil_open(&e, d.path, small);
		up = (void *)e.up;
		for (int k = 0; k < 30; k++) {
			struct sr_wire_request q = { ASKS(1, 50), .flags = SR_IGNORE_EOS };

			assert_true(evil_put(&e, &q));
		}
		usleep(2000);
		atomic_store(&up->tokens.head, 64 + wild[i]);
		if (wild[i] != 0xffffffffu) /* 63: a head that could be right */
			assert_true(dropped(&e));
		evil_close(&e);
	}
	/* Sequence words of every kind, changing while they are read. */
	evil_open(&e, d.path, small);
	stop = false;
	pthread_create(&t, NULL, scribble_seqs, &e);
	for (int i = 0; i < 100; i++) {
		sr_signal(e.fd);
		evil_read(&e);
		usleep(1000);
	}
	stop = true;
	pthread_join(t, NULL);
	neighbour_is_well();
	evil_close(&e);
}

/* ---- R2, R4: memory that changes ------------------------------------------------------------- */

static SCRIBBLER void *flip(void *arg)
{
	struct evil *e = arg;
	volatile struct sr_wire_request *r = (void *)(e->up + SR_PAGE);
	volatile int32_t *a = evil_arena(e);
	uint32_t s = 5;

	while (!stop) {
		uint32_t k = xorshift(&s), i = k % 32;

		r[i].at = k & 1 ? 0 : k;
		r[i].span[0].n = k & 2 ? 4 : k % 5000;
		r[i].span[1].kind = k & 4 ? 0 : SR_SPAN_BIAS;
		r[i].span[1].n = k & 4 ? 0 : k;
		r[i].span[2].kind = k & 8 ? 0 : SR_SPAN_BAD;
		r[i].span[2].n = k & 8 ? 0 : k % 4000;
		r[i].max_tokens = k & 16 ? 2 : k;
		r[i].span[k & 32 ? 7 : 1].kind = (uint16_t)k;
		a[k % 1024] = k & 64 ? 5 : (int32_t)k;
	}
	return NULL;
}

static void R2_double_fetch(void **state)
{
	struct evil e;
	pthread_t t;
	uint32_t sent = 0;
	uint64_t until = io_now() + 700 * MS;

	(void)state;
	evil_open(&e, d.path, small);
	stop = false;
	pthread_create(&t, NULL, flip, &e);
	while (io_now() < until) {
		sent += evil_put(&e, &plain);
		evil_read(&e);
	}
	stop = true;
	pthread_join(t, NULL);
	evil_ends(&e, sent);                  /* each ended once, right or wrong */
	assert_true(sent > 100);
	neighbour_is_well();
	evil_close(&e);
}

static void R4_ids_are_copied(void **state)
{
	struct evil e;
	struct sr_record r;
	int32_t ids[4] = { 1, 2, 3, 4 };
	uint32_t ticket;

	(void)state;
	evil_open(&e, d.path, small);
	d.paused = true;
	memcpy(evil_arena(&e), ids, sizeof(ids));
	ticket = e.requests.mine;
	assert_true(evil_put(&e, &plain));
	while (atomic_load(e.requests.head) == ticket) /* until it is taken */
		usleep(100);
	memset(evil_arena(&e), 0xff, sizeof(ids));
	d.paused = false;
	while (sr_ring_take(&e.tokens, &r) == 0)
		;
	assert_int_equal(r.kind, SR_TOKEN);
	assert_int_equal(r.u.token.id, answer(ids, 4, 4, 0));
	evil_close(&e);
	neighbour_is_well();
}

/* ---- R3, R5: one record ---------------------------------------------------------------------- */

static void R3_spans(void **state)
{
	static const uint32_t edge[] = { 0, 1, 2, 4, 8, 4076, 4080, 4084, 4088, 4092, 4095, 4096, 4100, 8192,
		1u << 20, 0x7ffffffc, 0x80000000u, 0xfffffff0u, 0xfffffffcu, 0xffffffffu };
	struct evil e;
	uint32_t n = 0;

	(void)state;
	evil_open(&e, d.path, small);
	for (size_t i = 0; i < sizeof(edge) / sizeof(edge[0]); i++)
		for (size_t k = 0; k < sizeof(edge) / sizeof(edge[0]); k++) {
			struct sr_wire_request q = { .at = edge[i], ASKS(edge[k], 1) };
			bool right = edge[i] % 4 == 0 && edge[k] >= 1 && edge[k] < CONTEXT &&
			             (uint64_t)edge[i] + 4ull * edge[k] <= e.shape.arena;

			assert_true(evil_put(&e, &q));
			evil_ends(&e, ++n);
			if ((e.finish > 0) != right)
				fail_msg("at %u, %u ids: ended with %d", edge[i], edge[k], e.finish);
		}
	neighbour_is_well();
	evil_close(&e);
}

static void R5_every_bit(void **state)
{
	static const uint8_t reserved[][2] = {
		{ offsetof(struct sr_wire_request, zero0), sizeof(plain.zero0) },
		{ offsetof(struct sr_wire_request, zero), sizeof(plain.zero) },
		{ offsetof(struct sr_wire_request, span[0].kind), 4 }, /* the prompt's: no other kind is the first */
		{ offsetof(struct sr_wire_request, span[1]), 7 * sizeof(plain.span[0]) },
	};
	struct evil e;
	uint32_t n = 0;

	(void)state;
	evil_open(&e, d.path, small);
	for (uint32_t bit = 32; bit < 8 * sizeof(plain); bit++) {
		struct sr_wire_request q = plain;

		((uint8_t *)&q)[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_true(evil_put(&e, &q));
		evil_ends(&e, ++n);
		for (int k = 0; k < 4; k++)
			if (bit / 8 >= reserved[k][0] && bit / 8 < reserved[k][0] + reserved[k][1])
				assert_int_equal(e.finish, -EINVAL);
		assert_true(e.finish == SR_STOP || e.finish == SR_LENGTH || e.finish == -EINVAL ||
		            e.finish == -ETIME);
	}
	evil_close(&e);
	/* A cancel has no answer, so a wrong one ends the connection. */
	for (uint32_t bit = 32; bit < 512; bit += bit < 64 || bit >= 96 ? 1 : 32) {
		struct sr_wire_cancel c = { .op = SR_OP_CANCEL };
		bool ticket = bit / 8 >= offsetof(struct sr_wire_cancel, ticket) &&
		              bit / 8 < offsetof(struct sr_wire_cancel, zero0);

		if (ticket || bit % 16 != 3)  /* a sample, because each needs a connection */
			continue;
		evil_open(&e, d.path, small);
		((uint8_t *)&c)[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_int_equal(sr_ring_reserve(&e.cancels, 1), 0);
		sr_ring_put(&e.cancels, &c);
		evil_wake(&e);
		assert_true(dropped(&e));
		evil_close(&e);
	}
	neighbour_is_well();
}

/* ---- R6: others' requests -------------------------------------------------------------------- */

static void R6_only_own_requests(void **state)
{
	struct evil e;
	struct sr_conn *c;

	(void)state;
	assert_int_equal(sr_open(&c, d.path, NULL), 0);
	evil_open(&e, d.path, small);
	for (int round = 0; round < 20; round++) {
		for (uint32_t i = 0; i < 64; i++) {
			struct sr_wire_cancel w = { .op = SR_OP_CANCEL, .ticket = i % 2 ? i : ~i };

			if (sr_ring_reserve(&e.cancels, 1) == 0)
				sr_ring_put(&e.cancels, &w);
		}
		evil_wake(&e);
		ask(c, (uint32_t)round, 20);  /* its ticket is among them: it is not cancelled */
	}
	/* Equal names within one connection harm only itself: both requests end. */
	e.n_ends = 0;
	evil_close(&e);
	evil_open(&e, d.path, small);
	assert_true(evil_put(&e, &plain) && evil_put(&e, &plain));
	evil_ends(&e, 2);
	evil_close(&e);
	sr_close(c);
	daemon_look(&d);
}

/* ---- R7: quotas ------------------------------------------------------------------------------ */

static void *ring_bells(void *arg)
{
	char much[64] = { 0 };

	while (!stop)
		send(*(int *)arg, much, sizeof(much), MSG_DONTWAIT | MSG_NOSIGNAL);
	return NULL;
}

static void R7_quotas(void **state)
{
	struct sr_conn *conn[70], *c;
	struct evil e;
	struct sr_wire_request q = { ASKS(1, 100), .flags = SR_IGNORE_EOS };
	uint32_t sent = 0;
	pthread_t t;
	int n = 0, refused = 0;

	(void)state;
	/* Connections of one uid: 64 are granted here, more are refused. */
	for (int i = 0; i < 70; i++) {
		int r = sr_open(&conn[n], d.path, NULL);

		assert_true(r == 0 || r == -EUSERS);
		n += r == 0;
		refused += r == -EUSERS;
	}
	assert_int_equal(n, 64);
	assert_int_equal(refused, 6);
	while (n > 0)
		sr_close(conn[--n]);
	assert_true(daemon_settles(&d, 0));

	/* Live requests: at most the number granted, however many are submitted. */
	evil_open(&e, d.path, small);
	d.paused = true;
	for (int i = 0; i < 200; i++) {
		sent += evil_put(&e, &q);
		usleep(50);
	}
	daemon_look(&d);
	assert_int_equal(d.ss.waiting + d.ss.running, 32);
	assert_int_equal(sent, 32 + 32);      /* as many again wait in the ring; one is held with its place */
	d.paused = false;
	evil_close(&e);
	assert_true(daemon_settles(&d, 0));

	/* Endless cancels and signals: the neighbour is still served. */
	assert_int_equal(sr_open(&c, d.path, NULL), 0);
	evil_open(&e, d.path, small);
	stop = false;
	pthread_create(&t, NULL, ring_bells, &e.fd);
	for (uint64_t until = io_now() + 300 * MS, i = 0; io_now() < until; i++) {
		struct sr_wire_cancel w = { .op = SR_OP_CANCEL, .ticket = (uint32_t)i };

		while (sr_ring_reserve(&e.cancels, 1) == 0)
			sr_ring_put(&e.cancels, &w);
		if (i % 64 == 0)
			assert_true(ask(c, (uint32_t)i, 5) < 500 * MS);
	}
	stop = true;
	pthread_join(t, NULL);
	evil_close(&e);
	sr_close(c);
	neighbour_is_well();
}

/* ---- R8: turns ------------------------------------------------------------------------------- */

static void *keep_full(void *arg)
{
	struct evil *e = arg;
	struct sr_wire_request q = { ASKS(100, 10), .flags = SR_IGNORE_EOS | SR_NO_CACHE };

	while (!stop) {
		while (evil_put(e, &q))
			;
		evil_read(e);
	}
	return NULL;
}

static void R8_a_full_ring_does_not_shut_out_others(void **state)
{
	struct sr_conn *c[7];
	struct evil e;
	pthread_t t;
	uint64_t worst = 0;

	(void)state;
	for (int i = 0; i < 7; i++)
		assert_int_equal(sr_open(&c[i], d.path, NULL), 0);
	evil_open(&e, d.path, (struct sr_shape){ 128, 4096, 65536, 0, 0 });
	stop = false;
	pthread_create(&t, NULL, keep_full, &e);
	/* 70 requests, and more until the greedy client was served, too: its thread may start late. */
	for (int i = 0; i < 70 || (!e.n_ends && i < 100000); i++) {
		uint64_t took = ask(c[i % 7], (uint32_t)i, 5);

		worst = took > worst ? took : worst;
	}
	stop = true;
	pthread_join(t, NULL);
	assert_true(e.n_ends > 0);
	assert_true(worst < 1000 * MS);
	evil_close(&e);
	for (int i = 0; i < 7; i++)
		sr_close(c[i]);
	neighbour_is_well();
}

/* ---- R9: who does not read ------------------------------------------------------------------- */

static void R9_a_full_token_ring_stops_only_its_reader(void **state)
{
	struct sr_wire_request q = { ASKS(1, 900), .flags = SR_IGNORE_EOS };
	struct clients_config cfg = { .stall_ns = 100 * MS };
	struct evil e;
	uint64_t until;

	(void)state;
	daemon_start(&d, &cfg);
	evil_open(&e, d.path, small);
	d.paused = true;                      /* until all are there: one could fill the ring */
	for (int i = 0; i < 8; i++)
		assert_true(evil_put(&e, &q));
	for (until = io_now() + 2000 * MS; d.cs.taken < 8; daemon_look(&d))
		assert_true(io_now() < until);
	d.paused = false;
	neighbour_is_well();
	assert_int_equal(d.cs.stalled, 0);
	assert_int_equal(d.ss.running + d.ss.waiting, 8);
	for (until = io_now() + 2000 * MS; d.cs.stalled == 0; daemon_look(&d)) {
		assert_true(io_now() < until);
		usleep(5000);
	}
	assert_int_equal(d.ss.running + d.ss.waiting, 0);
	assert_int_equal(d.ks.n_held, 0);
	evil_ends(&e, 8);                     /* their room was reserved */
	assert_int_equal(e.finish, -ECANCELED);
	assert_true(evil_put(&e, &plain));    /* and it may go on */
	evil_ends(&e, 9);
	assert_int_equal(e.finish, SR_LENGTH);
	evil_close(&e);
	daemon_stop(&d);
}

/* ---- what it says it does -------------------------------------------------------------------- */

static uint64_t parity;               /* bits that its words must not have */

static SCRIBBLER void *scribble_clocks(void *arg)
{
	struct sr_up *up = (void *)((struct evil *)arg)->up;
	uint32_t s = 3;

	while (!stop) {
		uint64_t k = (uint64_t)xorshift(&s) << 32 | xorshift(&s);

		atomic_store(&up->doing[0], k & ~parity);
		atomic_store(&up->doing[1], (k % 3 ? 0 - k : atomic_load(&up->doing[1]) - 2000000000) & ~parity);
	}
	return NULL;
}

static struct empty heard;
static uint64_t split[N_EMPTY], given;

static void hear(struct daemon *daemon)
{
	uint64_t now = io_now();

	if (heard.since) {
		empty_add(&heard, EMPTY_SILENT, now - heard.since);
		given += now - heard.since;
	}
	clients_doing(daemon->cl, &heard, now);
	empty_split(&heard, now, split);
}

/* Random words in its clocks: each ns is assigned once, and the other client's clocks still count.  An odd
 * word that stays a while is a running clock, and may be right.  Without one, all of it is ignored, and
 * the other client counts as if it were alone. */
static void clocks_that_lie(void **state)
{
	struct sr_conn *c;
	struct evil e;
	pthread_t t;

	(void)state;
	assert_int_equal(sr_open(&c, d.path, NULL), 0);
	sr_doing(c, SR_ARRIVING, 1);
	evil_open(&e, d.path, small);
	for (parity = 0; parity < 2; parity++) {
		uint64_t all = 0;

		memset(&heard, 0, sizeof(heard));
		memset(split, 0, sizeof(split));
		given = 0;
		stop = false;
		pthread_create(&t, NULL, scribble_clocks, &e);
		for (int i = 0; i < 2000; i++)
			daemon_call(&d, hear);
		stop = true;
		pthread_join(t, NULL);
		memset(((struct sr_up *)(void *)e.up)->doing, 0, 16); /* the next round begins without a running clock */
		for (int i = 0; i < N_EMPTY; i++)
			all += split[i];
		assert_true(given > 0);
		assert_int_equal(all, given);
		assert_true(split[EMPTY_TOKENIZING] + split[EMPTY_NETWORK] >= given / 100 * 99);
		assert_true(!parity || split[EMPTY_NETWORK] >= given / 100 * 99);
	}
	evil_close(&e);
	sr_close(c);
	neighbour_is_well();
}

int main(void)
{
#define CASE(f) DAEMON_CASE(f, &d)
	const struct CMUnitTest tests[] = {
		CASE(R1_wild_indices),
		CASE(R2_double_fetch),
		CASE(R3_spans),
		CASE(R4_ids_are_copied),
		CASE(R5_every_bit),
		CASE(R6_only_own_requests),
		CASE(R7_quotas),
		CASE(R8_a_full_ring_does_not_shut_out_others),
		cmocka_unit_test(R9_a_full_token_ring_stops_only_its_reader),
		CASE(clocks_that_lie),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
