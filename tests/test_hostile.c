/* LINK: core/clients.c core/clients_conn.c core/record.c core/clients_translate.c shmring/client.c core/io.c core/sched.c core/sched_plan.c core/sched_queue.c core/sched_check.c core/kv.c core/stats.c core/log.c kernels/null/null.c -luring -lhugetlbfs -lxxhash */
/* test_hostile.c - what a client may try: the rules R1 to R14 of docs/trust.md, each with its
 * attack.  After each the daemon's invariants hold and its neighbour's answers are right. */
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#include "tests/daemon.h"
#include "shmring/server.c" /* the SIGBUS guard is tested from inside */

static struct daemon d;

/* ---- an honest neighbour --------------------------------------------------------------------- */

/* Ask for n tokens over c and compare them; how long it took. */
static uint64_t ask(struct sr_conn *c, uint32_t salt, uint32_t n)
{
	static int32_t ids[CONTEXT];
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 40, .max_tokens = n,
		.min_tokens = n, .user_data = salt };
	struct sr_token t = { 0 };
	uint64_t begin = io_now();
	uint32_t have = 40;
	int e;

	for (uint32_t i = 0; i < 40; i++)
		ids[i] = (int32_t)((salt * 7919 + i * i) % VOCAB);
	while ((e = sr_submit(c, &q, NULL)) == -EAGAIN)
		assert_true(sr_wait(c, SR_WAIT_ROOM, 2000) > 0);
	assert_int_equal(e, 0);
	while (t.kind != SR_END) {
		e = sr_next(c, &t);
		assert_true(e >= 0);
		if (e == 0)
			assert_true(sr_wait(c, SR_WAIT_TOKENS, 2000) > 0);
		else if (t.kind == SR_TOKEN) {
			assert_int_equal(t.id, answer(ids, (int32_t)have, 40, (int32_t)n));
			ids[have++] = t.id;
		}
	}
	assert_int_equal(t.end.finish, SR_LENGTH);
	assert_int_equal(t.end.n_tokens, n);
	return io_now() - begin;
}

static void neighbour_is_well(void)
{
	static uint32_t salt;
	struct sr_conn *c;

	assert_int_equal(sr_open(&c, d.path, NULL), 0);
	ask(c, ++salt, 30);
	sr_close(c);
	daemon_look(&d);
}

/* ---- a client by hand ------------------------------------------------------------------------ */

struct evil {
	int fd, up_fd, down_fd;
	struct sr_shape shape;
	unsigned char *up, *down;
	struct sr_ring requests, cancels, tokens;
	uint32_t n_ends;
	int32_t finish;               /* of the last END */
};

static int dial(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	strcpy(a.sun_path, d.path);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	return fd;
}

static void evil_open(struct evil *e, struct sr_shape want)
{
	struct sr_hello h = { .magic = SR_MAGIC, .version = SR_VERSION, .want = want, .name = "evil" };
	struct sr_welcome w;
	union { char buf[CMSG_SPACE(8)]; struct cmsghdr align; } control;
	struct iovec iov = { &w, sizeof(w) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
		.msg_controllen = sizeof(control.buf) };
	int fds[2];
	struct sr_up *up;
	struct sr_down *down;

	memset(e, 0, sizeof(*e));
	e->fd = dial();
	assert_int_equal(send(e->fd, &h, sizeof(h), 0), sizeof(h));
	assert_int_equal(recvmsg(e->fd, &msg, MSG_CMSG_CLOEXEC), sizeof(w));
	assert_int_equal(w.status, 0);
	memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fds));
	e->shape = w.shape;
	e->up_fd = fds[0];
	e->down_fd = fds[1];
	e->up = mmap(NULL, SR_UP_BYTES(&w.shape), PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
	e->down = mmap(NULL, SR_DOWN_BYTES(&w.shape), PROT_READ, MAP_SHARED, fds[1], 0);
	assert_true(e->up != MAP_FAILED && e->down != MAP_FAILED);
	up = (void *)e->up;
	down = (void *)e->down;
	sr_ring_init(&e->requests, true, &up->requests, &down->requests, e->up + SR_PAGE, w.shape.live, 256);
	sr_ring_init(&e->cancels, true, &up->cancels, &down->cancels, e->up + SR_OFF_CANCELS(w.shape.live),
	             2 * w.shape.live, 64);
	sr_ring_init(&e->tokens, false, &down->tokens, &up->tokens, e->down + SR_PAGE, w.shape.tokens, 64);
}

static void evil_close(struct evil *e)
{
	munmap(e->up, SR_UP_BYTES(&e->shape));
	munmap(e->down, SR_DOWN_BYTES(&e->shape));
	close(e->up_fd);
	close(e->down_fd);
	close(e->fd);
}

static int32_t *evil_arena(const struct evil *e) { return (void *)(e->up + SR_OFF_ARENA(e->shape.live)); }

static void evil_wake(struct evil *e)
{
	bool sleeps;

	sr_ring_fence();
	sleeps = sr_ring_wanted(&e->requests);
	sleeps |= sr_ring_wanted(&e->cancels);
	sleeps |= sr_ring_freed(&e->tokens);
	if (sleeps)
		sr_signal(e->fd);
}

static bool evil_put(struct evil *e, const struct sr_wire_request *q)
{
	if (sr_ring_reserve(&e->requests, 1) < 0)
		return false;
	sr_ring_put(&e->requests, q);
	evil_wake(e);
	return true;
}

static int evil_read(struct evil *e)
{
	struct sr_record r;
	int n = 0;

	while (sr_ring_take(&e->tokens, &r) == 1) {
		n++;
		if (r.kind == SR_END) {
			e->n_ends++;
			e->finish = r.u.end.finish;
		}
	}
	sr_ring_done(&e->tokens);
	evil_wake(e);
	return n;
}

/* Read until there were so many ENDs. */
static void evil_ends(struct evil *e, uint32_t n)
{
	uint64_t until = io_now() + 2000 * MS;

	while (e->n_ends < n) {
		evil_read(e);
		assert_true(io_now() < until);
	}
	assert_int_equal(e->n_ends, n);
}

static bool dropped_in(struct evil *e, unsigned ms)
{
	struct pollfd p = { .fd = e->fd, .events = POLLIN | POLLRDHUP };
	char byte;

	for (uint64_t until = io_now() + ms * MS; io_now() < until;) {
		ssize_t n = recv(e->fd, &byte, 1, MSG_DONTWAIT);

		if (n == 0 || (n < 0 && errno == ECONNRESET))
			return true;
		poll(&p, 1, 10);
	}
	return false;
}

static bool dropped(struct evil *e) { return dropped_in(e, 1000); }

static uint32_t xorshift(uint32_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 17;
	return *s ^= *s << 5;
}

static atomic_bool stop;
static const struct sr_shape small = { 32, 64, 4096 };
static const struct sr_wire_request plain = { .n_prompt = 4, .max_tokens = 2 };

/* ---- R1: indices ----------------------------------------------------------------------------- */

static void *scribble_seqs(void *arg)
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
	/* A head past what was put, or backwards: seen as soon as room is looked for. */
	for (size_t i = 0; i < sizeof(wild) / sizeof(wild[0]); i++) {
		struct sr_up *up;

		evil_open(&e, small);
		up = (void *)e.up;
		for (int k = 0; k < 30; k++) {
			struct sr_wire_request q = { .n_prompt = 1, .max_tokens = 50, .flags = SR_IGNORE_EOS };

			assert_true(evil_put(&e, &q));
		}
		usleep(2000);
		atomic_store(&up->tokens.head, 64 + wild[i]);
		if (wild[i] != 0xffffffffu) /* 63: a head that may be true */
			assert_true(dropped(&e));
		evil_close(&e);
	}
	/* Sequence words of every kind, changing while they are read. */
	evil_open(&e, small);
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

static void *flip(void *arg)
{
	struct evil *e = arg;
	volatile struct sr_wire_request *r = (void *)(e->up + SR_PAGE);
	volatile int32_t *a = evil_arena(e);
	uint32_t s = 5;

	while (!stop) {
		uint32_t k = xorshift(&s), i = k % 32;

		r[i].span = k & 1 ? 0 : k;
		r[i].n_prompt = k & 2 ? 4 : k % 5000;
		r[i].n_bias = k & 4 ? 0 : k;
		r[i].n_bad_words = k & 8 ? 0 : k % 2000;
		r[i].max_tokens = k & 16 ? 2 : k;
		r[i].n_stop = (uint8_t)(k & 32 ? 0 : k);
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
	evil_open(&e, small);
	stop = false;
	pthread_create(&t, NULL, flip, &e);
	while (io_now() < until) {
		sent += evil_put(&e, &plain);
		evil_read(&e);
	}
	stop = true;
	pthread_join(t, NULL);
	evil_ends(&e, sent);                  /* each ended once, true or not */
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
	evil_open(&e, small);
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
	evil_open(&e, small);
	for (size_t i = 0; i < sizeof(edge) / sizeof(edge[0]); i++)
		for (size_t k = 0; k < sizeof(edge) / sizeof(edge[0]); k++) {
			struct sr_wire_request q = { .span = edge[i], .n_prompt = edge[k], .max_tokens = 1 };
			bool right = edge[i] % 4 == 0 && edge[k] >= 1 && edge[k] < CONTEXT &&
			             (uint64_t)edge[i] + 4ull * edge[k] <= e.shape.arena;

			assert_true(evil_put(&e, &q));
			evil_ends(&e, ++n);
			if ((e.finish > 0) != right)
				fail_msg("span %u, %u ids: ended with %d", edge[i], edge[k], e.finish);
		}
	neighbour_is_well();
	evil_close(&e);
}

static void R5_every_bit(void **state)
{
	static const uint8_t reserved[][2] = { { offsetof(struct sr_wire_request, zero0), 1 },
		{ offsetof(struct sr_wire_request, zero), sizeof(plain.zero) } };
	struct evil e;
	uint32_t n = 0;

	(void)state;
	evil_open(&e, small);
	for (uint32_t bit = 32; bit < 8 * sizeof(plain); bit++) {
		struct sr_wire_request q = plain;

		((uint8_t *)&q)[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_true(evil_put(&e, &q));
		evil_ends(&e, ++n);
		for (int k = 0; k < 2; k++)
			if (bit / 8 >= reserved[k][0] && bit / 8 < reserved[k][0] + reserved[k][1])
				assert_int_equal(e.finish, -EINVAL);
		assert_true(e.finish == SR_STOP || e.finish == SR_LENGTH || e.finish == -EINVAL ||
		            e.finish == -ETIME);
	}
	evil_close(&e);
	/* A cancel has nobody to answer to: a wrong one costs the connection. */
	for (uint32_t bit = 32; bit < 512; bit += bit < 64 || bit >= 96 ? 1 : 32) {
		struct sr_wire_cancel c = { .op = SR_OP_CANCEL };
		bool ticket = bit / 8 >= offsetof(struct sr_wire_cancel, ticket) &&
		              bit / 8 < offsetof(struct sr_wire_cancel, zero0);

		if (ticket || bit % 16 != 3)  /* a sample, for each needs a connection */
			continue;
		evil_open(&e, small);
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
	evil_open(&e, small);
	for (int round = 0; round < 20; round++) {
		for (uint32_t i = 0; i < 64; i++) {
			struct sr_wire_cancel w = { .op = SR_OP_CANCEL, .ticket = i % 2 ? i : ~i };

			if (sr_ring_reserve(&e.cancels, 1) == 0)
				sr_ring_put(&e.cancels, &w);
		}
		evil_wake(&e);
		ask(c, (uint32_t)round, 20);  /* its ticket is among them: it is not cancelled */
	}
	/* Equal names within one connection are its own affair: both end. */
	e.n_ends = 0;
	evil_close(&e);
	evil_open(&e, small);
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
	struct sr_wire_request q = { .n_prompt = 1, .max_tokens = 100, .flags = SR_IGNORE_EOS };
	uint32_t sent = 0;
	pthread_t t;
	int n = 0, refused = 0;

	(void)state;
	/* Connections of one uid: 64 are granted here, more are told so. */
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

	/* Live requests: no more than was granted, however many are handed in. */
	evil_open(&e, small);
	d.paused = true;
	for (int i = 0; i < 200; i++) {
		sent += evil_put(&e, &q);
		usleep(50);
	}
	daemon_look(&d);
	assert_int_equal(d.ss.waiting + d.ss.running, 32);
	assert_int_equal(sent, 32 + 32);      /* as many again wait in the ring: one held, its place kept */
	d.paused = false;
	evil_close(&e);
	assert_true(daemon_settles(&d, 0));

	/* Cancels without end, and signals without end: the neighbour is served all the same. */
	assert_int_equal(sr_open(&c, d.path, NULL), 0);
	evil_open(&e, small);
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
	struct sr_wire_request q = { .n_prompt = 100, .max_tokens = 10, .flags = SR_IGNORE_EOS | SR_NO_CACHE };

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
	evil_open(&e, (struct sr_shape){ 128, 4096, 65536 });
	stop = false;
	pthread_create(&t, NULL, keep_full, &e);
	/* 70 requests, and more until the greedy one was served too: its thread may start late. */
	for (int i = 0; i < 70 || (!__atomic_load_n(&e.n_ends, __ATOMIC_RELAXED) && i < 100000); i++) {
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
	struct sr_wire_request q = { .n_prompt = 1, .max_tokens = 900, .flags = SR_IGNORE_EOS };
	struct clients_config cfg = { .stall_ns = 100 * MS };
	struct evil e;
	uint64_t until;

	(void)state;
	daemon_start(&d, &cfg);
	evil_open(&e, small);
	for (int i = 0; i < 8; i++)
		assert_true(evil_put(&e, &q));
	usleep(20000);
	neighbour_is_well();
	assert_int_equal(d.cs.stalled, 0);
	assert_int_equal(d.ss.running + d.ss.waiting, 8);
	for (until = io_now() + 2000 * MS; d.cs.stalled == 0; daemon_look(&d)) {
		assert_true(io_now() < until);
		usleep(5000);
	}
	assert_int_equal(d.ss.running + d.ss.waiting, 0);
	assert_int_equal(d.ks.n_held, 0);
	evil_ends(&e, 8);                     /* their room was kept */
	assert_int_equal(e.finish, -ECANCELED);
	assert_true(evil_put(&e, &plain));    /* and it may go on */
	evil_ends(&e, 9);
	assert_int_equal(e.finish, SR_LENGTH);
	evil_close(&e);
	daemon_stop(&d);
}

/* ---- R10: death at any instruction ----------------------------------------------------------- */

/* Submit, cancel and read as fast as can be, until killed. */
static void victim(uint32_t seed)
{
	static const int32_t ids[200] = { 1, 2, 3 };
	struct sr_options o = { .size = sizeof(o), .live = 32, .tokens = 64, .arena = 4096 };
	struct sr_record r[16];
	struct sr_conn *c;
	uint32_t ticket;

	for (uint32_t s = seed + 1;;) {
		if (sr_open(&c, d.path, &o) < 0)
			_exit(1);
		for (int i = 0; i < 300; i++) {
			struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 1 + xorshift(&s) % 200,
				.max_tokens = 1 + xorshift(&s) % 40, .n_top = xorshift(&s) % 21 };

			if (sr_submit(c, &q, &ticket) == 0 && xorshift(&s) % 4 == 0)
				sr_cancel(c, ticket);
			if (xorshift(&s) % 4)
				sr_poll(c, r, 1 + xorshift(&s) % 16);
		}
		sr_close(c);
	}
}

static void R10_killed_clients_leave_nothing(void **state)
{
	const char *env = getenv("SLIPRING_KILLS");
	int kills = env ? atoi(env) : 200, quick = 0;
	uint64_t until = io_now() + (env ? 600000 : 5000) * MS;
	struct sr_conn *c;
	uint32_t s = (uint32_t)getpid();
	int fds, done = 0;

	(void)state;
	assert_int_equal(sr_open(&c, d.path, NULL), 0);
	ask(c, 0, 5);
	daemon_look(&d);
	fds = open_fds();
	for (; done < kills && io_now() < until; done++) {
		pid_t pid = fork();
		uint64_t at;

		if (!pid)
			victim(xorshift(&s) ^ (uint32_t)done);
		usleep(1500 + xorshift(&s) % 8000);
		if (done % 4 == 0)
			ask(c, (uint32_t)done, 10); /* while the victim is at work */
		kill(pid, SIGKILL);
		at = io_now();
		waitpid(pid, NULL, 0);
		assert_true(daemon_settles(&d, 1));
		quick += io_now() - at < 10 * MS;
		assert_int_equal(d.ss.running + d.ss.waiting, 0);
		assert_int_equal(d.ks.n_held, 0);
	}
	ask(c, 1, 50);
	daemon_look(&d);
	assert_int_equal(open_fds(), fds);
	assert_true(d.cs.died > 0);
	assert_true(done >= 20);
#ifndef __SANITIZE_ADDRESS__
	assert_true(quick * 4 >= done);       /* all, on a machine that does nothing else */
#endif
	print_message("R10: %d kills, %d reclaimed within 10 ms\n", done, quick);
	sr_close(c);
}

/* ---- R11: descriptors ------------------------------------------------------------------------ */

static void send_fds(int fd, const void *buf, size_t len, const int *fds, int n)
{
	static _Alignas(struct cmsghdr) char control[CMSG_SPACE(253 * sizeof(int))];
	struct iovec iov = { (void *)(uintptr_t)buf, len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
		.msg_controllen = CMSG_SPACE((size_t)n * sizeof(int)) };
	struct cmsghdr *cm = CMSG_FIRSTHDR(&msg);

	cm->cmsg_level = SOL_SOCKET;
	cm->cmsg_type = SCM_RIGHTS;
	cm->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
	memcpy(CMSG_DATA(cm), fds, (size_t)n * sizeof(int));
	assert_int_equal(sendmsg(fd, &msg, MSG_NOSIGNAL), (ssize_t)len);
}

static void R11_no_descriptor_is_accepted(void **state)
{
	struct sr_hello h = { .magic = SR_MAGIC, .version = SR_VERSION };
	int many[253], pipes[2], before, dir = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	(void)state;
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	neighbour_is_well();
	assert_true(daemon_settles(&d, 0));
	before = open_fds();
	for (int kind = 0; kind < 4; kind++) {
		struct evil e = { .fd = dial() };
		int n = kind == 0 ? 253 : 1;

		for (int i = 0; i < 253; i++)
			many[i] = kind == 1 ? pipes[0] : kind == 2 ? dir : kind == 3 ? e.fd : 0;
		send_fds(e.fd, &h, sizeof(h), many, n);
		assert_true(dropped(&e));
		close(e.fd);
	}
	struct evil e;

	evil_open(&e, small);                 /* later, with the signals */
	for (int i = 0; i < 20; i++)
		send_fds(e.fd, "", 1, many, 253);
	usleep(20000);
	evil_close(&e);
	neighbour_is_well();
	assert_true(daemon_settles(&d, 0));
	assert_int_equal(open_fds(), before);
	close(pipes[0]);
	close(pipes[1]);
	close(dir);
}

/* ---- R12: handshake -------------------------------------------------------------------------- */

static void R12_handshake(void **state)
{
	static const struct { size_t len; struct sr_hello h; int32_t status; } t[] = { /* 0: dropped */
		{ 0, { 0 }, 0 }, { 1, { .magic = SR_MAGIC }, 0 },
		{ 63, { .magic = SR_MAGIC, .version = SR_VERSION }, 0 },
		{ 64, { .magic = SR_MAGIC + 1, .version = SR_VERSION }, -EPROTO },
		{ 64, { .magic = SR_MAGIC, .version = SR_VERSION + 1 }, -EPROTO },
		{ 64, { .magic = SR_MAGIC, .version = SR_VERSION, .zero = { 0, 0, 1 } }, -EPROTO },
		{ 64, { .magic = SR_MAGIC, .version = SR_VERSION, .name = "new\nline" }, -EPROTO },
		{ 64, { .magic = SR_MAGIC, .version = SR_VERSION,
		        .name = "0123456789abcdef0123456789abcdef" }, -EPROTO },
	};
	char long_one[65] = { 0 };
	struct sr_welcome w;
	struct evil e;
	uint64_t at;

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		e.fd = dial();
		assert_int_equal(send(e.fd, &t[i].h, t[i].len, 0), (ssize_t)t[i].len);
		if (t[i].status) {
			assert_int_equal(recv(e.fd, &w, sizeof(w), 0), sizeof(w));
			assert_int_equal(w.status, t[i].status);
		}
		assert_true(dropped(&e));
		close(e.fd);
	}
	e.fd = dial();
	memcpy(long_one, &(struct sr_hello){ .magic = SR_MAGIC, .version = SR_VERSION }, 64);
	send(e.fd, long_one, 65, 0);
	assert_true(dropped(&e));
	close(e.fd);
	/* A flood of hellos: the first is answered, the others are but signals. */
	evil_open(&e, small);
	for (int i = 0; i < 100; i++)
		send(e.fd, long_one, 64, MSG_DONTWAIT);
	neighbour_is_well();
	evil_close(&e);
	/* Says nothing: closed after a second, and nobody waits for it. */
	e.fd = dial();
	at = io_now();
	neighbour_is_well();
	assert_true(io_now() - at < 900 * MS);
	while (!dropped(&e))
		assert_true(io_now() - at < 3000 * MS);
	assert_true(io_now() - at >= 900 * MS);
	close(e.fd);
}

/* ---- R13: restart ---------------------------------------------------------------------------- */

static void R13_a_killed_daemon_is_seen(void **state)
{
	static const int32_t ids[4] = { 1, 2, 3, 4 };
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 4, .max_tokens = 900,
		.flags = SR_IGNORE_EOS };
	uint64_t epochs[5] = { 0 }, slowest = 0;

	(void)state;
	for (int round = 0; round < 5; round++) {
		struct sr_conn *c[8];
		int ready[2], e;
		uint64_t at;
		pid_t pid;

		assert_int_equal(pipe(ready), 0);
		if (!(pid = fork())) {
			daemon_start(&d, NULL);
			if (write(ready[1], d.path, sizeof(d.path)) < 0)
				_exit(1);
			pause();
			_exit(0);
		}
		assert_int_equal(read(ready[0], d.path, sizeof(d.path)), sizeof(d.path));
		for (int i = 0; i < 8; i++) {
			assert_int_equal(sr_open(&c[i], d.path, NULL), 0);
			assert_int_equal(sr_submit(c[i], &q, NULL), 0);
		}
		epochs[round] = sr_model(c[0])->epoch;
		for (int i = 0; i < round; i++)
			assert_true(epochs[i] != epochs[round]);
		kill(pid, SIGKILL);
		at = io_now();
		for (int i = 0; i < 8; i++) {
			struct sr_record r[64];

			while ((e = sr_poll(c[i], r, 64)) > 0 || (e == 0 && (e = sr_wait(c[i], SR_WAIT_TOKENS, 2000)) > 0))
				;
			assert_int_equal(e, -ECONNRESET);
			slowest = io_now() - at > slowest ? io_now() - at : slowest;
			assert_int_equal(sr_submit(c[i], &q, NULL), -ECONNRESET);
			sr_close(c[i]);
		}
		waitpid(pid, NULL, 0);
		close(ready[0]);
		close(ready[1]);
		unlink(d.path);
		*strrchr(d.path, '/') = '\0';
		rmdir(d.path);
	}
	print_message("R13: the last of eight clients was told within %.1f ms\n", (double)slowest / 1e6);
	assert_true(slowest < 100 * MS);
}

/* ---- R14: memory taken away ------------------------------------------------------------------ */

static int punch(int fd, size_t bytes)
{
	return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes);
}

static void R14_punched_memory(void **state)
{
	struct evil e;
	size_t up_bytes;

	(void)state;
	evil_open(&e, small);
	up_bytes = SR_UP_BYTES(&e.shape);
	assert_int_equal(ftruncate(e.up_fd, 0), -1);
	assert_int_equal(ftruncate(e.up_fd, 1 << 24), -1);
	assert_int_equal(fcntl(e.up_fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, e.down_fd, 0), MAP_FAILED);
	assert_int_equal(mprotect(e.down, 4096, PROT_READ | PROT_WRITE), -1);
	assert_int_equal(punch(e.down_fd, 4096), -1);
	assert_int_equal(pwrite(e.down_fd, "x", 1, 0), -1);
	for (uint64_t until = io_now() + 300 * MS, i = 0; io_now() < until; i++) {
		evil_put(&e, &plain);
		evil_read(&e);
		if (i % 3 == 0)               /* allowed, whatever the seals: the daemon reads zeros */
			assert_int_equal(punch(e.up_fd, up_bytes), 0);
	}
	evil_close(&e);
	neighbour_is_well();
}

/* cmocka has put its own handler over the one that server_create installed. */
static void guard_again(void)
{
	struct sigaction sa = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO };

	assert_int_equal(sigaction(SIGBUS, &sa, NULL), 0);
}

/* What huge pages do when their pool is emptied: SIGBUS under the daemon's own mapping.  Made
 * here with a memfd that is not sealed, put where a connection's `up` was, and cut. */
static void R14_sigbus_is_survived(void **state)
{
	struct server_config cfg = { .most = small, .model = { .vocab = VOCAB, .context = 512, .epoch = 1 } };
	struct sr_hello h = { .magic = SR_MAGIC, .version = SR_VERSION };
	struct server *sv;
	struct server_conn *c, *other;
	struct server_request *r;
	uint32_t ticket;
	int pair[2], fd = memfd_create("cut", MFD_CLOEXEC);

	(void)state;
	guard_again();
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	assert_int_equal(server_create(&sv, &cfg), 0);
	assert_int_equal(server_open(&c, sv, pair[0], &h, false), 0);
	assert_int_equal(server_open(&other, sv, pair[0], &h, false), 0);
	assert_int_equal(ftruncate(fd, (off_t)c->up.len), 0);
	assert_ptr_equal(mmap(c->up.at, c->up.len, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0), c->up.at);
	assert_int_equal(server_peek(c, &r), 0);
	assert_int_equal(ftruncate(fd, 0), 0);
	server_peek(c, &r);                   /* the fault: zeros are read */
	assert_int_equal(server_peek(c, &r), -EFAULT);
	assert_int_equal(server_cancel(c, &ticket), -EFAULT);
	assert_int_equal(server_peek(other, &r), 0); /* the other is not poisoned */
	server_close(c, false);
	server_close(other, false);
	server_destroy(sv);
	close(fd);
	close(pair[0]);
	close(pair[1]);
}

static long pool(long set)
{
	FILE *f = fopen("/proc/sys/vm/nr_hugepages", set >= 0 ? "w" : "r");
	long n = -1;

	if (!f)
		return -1;
	if (set >= 0)
		n = fprintf(f, "%ld\n", set) > 0 ? set : -1;
	else if (fscanf(f, "%ld", &n) != 1)
		n = -1;
	return fclose(f) == 0 ? n : -1;
}

/* Take all pages that are free. */
static size_t grab(void **page, size_t n, size_t bytes)
{
	for (; n < 64; n++) {
		page[n] = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		               MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
		if (page[n] == MAP_FAILED)
			break;
		if (madvise(page[n], bytes, MADV_POPULATE_WRITE) < 0) {
			munmap(page[n], bytes);
			break;
		}
	}
	return n;
}

/* The real thing: a trusted client punches its huge pages and somebody takes them all. */
static void R14_huge_pages_taken_away(void **state)
{
	struct sr_shape big = { 1024, 4096, 1 << 20 };
	long before = pool(-1);
	void *grabbed[64];
	size_t n = 0;
	struct statfs fs;
	struct evil e;

	(void)state;
	if (before < 0 || pool(before + 8) < 0 || pool(-1) < before + 8) {
		print_message("SKIP R14_huge_pages_taken_away: may not add to the pool of huge pages\n");
		if (before >= 0)
			pool(before);
		skip();
	}
	guard_again();
	evil_open(&e, big);
	assert_int_equal(fstatfs(e.up_fd, &fs), 0);
	assert_int_equal(fs.f_type, HUGETLBFS_MAGIC);
	munmap(e.up, SR_UP_BYTES(&e.shape) + (2u << 20) - SR_UP_BYTES(&e.shape) % (2u << 20));
	/* The daemon may touch the hole before the page is gone: try again. */
	for (int i = 0; i < 50 && !dropped_in(&e, 20); i++) {
		assert_int_equal(punch(e.up_fd, (size_t)fs.f_bsize), 0);
		n = grab(grabbed, n, (size_t)fs.f_bsize);
		sr_signal(e.fd);
	}
	assert_true(dropped(&e));
	neighbour_is_well();
	assert_int_equal(d.cs.poisoned, 1);
	while (n > 0)
		munmap(grabbed[--n], (size_t)fs.f_bsize);
	e.up = mmap(NULL, SR_UP_BYTES(&e.shape), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	evil_close(&e);
	assert_true(daemon_settles(&d, 0));
	assert_int_equal(pool(before), before);
}

static int setup(void **state)
{
	(void)state;
	daemon_start(&d, NULL);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	return daemon_end(&d);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
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
		CASE(R10_killed_clients_leave_nothing),
		CASE(R11_no_descriptor_is_accepted),
		CASE(R12_handshake),
		cmocka_unit_test(R13_a_killed_daemon_is_seen),
		CASE(R14_punched_memory),
		cmocka_unit_test(R14_sigbus_is_survived),
		CASE(R14_huge_pages_taken_away),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
