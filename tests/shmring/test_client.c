/* LINK: -Wl,--wrap=send */
/* test_client.c - the client against a fake daemon: this test answers the handshake with anything, and
 * writes anything into the memory that the client reads.  The client promises that a call soon returns, at
 * worst with -EPROTO, -ECONNRESET or -ETIMEDOUT. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "shmring/client.c"

#define MS 1000000ull
#define SHAPE { 32, 64, 4096, 0, 0 }
#define EPOCH 77

static int send_error;                /* the next send() fails with this */
ssize_t __real_send(int fd, const void *p, size_t n, int flags);
ssize_t __wrap_send(int fd, const void *p, size_t n, int flags);
ssize_t __wrap_send(int fd, const void *p, size_t n, int flags)
{
	if (!send_error)
		return __real_send(fd, p, n, flags);
	errno = send_error;
	send_error = 0;
	return -1;
}

/* ---- the false daemon ------------------------------------------------------------------------ */

enum object { SEALED, UNSEALED, SHORT, CUT_LATER, PLAIN_FILE, READ_ONLY, A_PIPE };
enum { HONEST = 0, SILENT, CLOSES, REFUSES_UNREAD, NEVER_BEGINS, CLOSES_LATE };

#define GOOD { SR_MAGIC, SR_VERSION, 0, SHAPE, EPOCH }

struct answer {                       /* to a hello */
	struct sr_welcome w;
	size_t len;                   /* of it; 0 = all */
	int n_fds;                    /* 0 = two, -1 none */
	enum object up, down;
	int manner;
};

static struct daemon {
	char dir[32], path[64];
	int listener, fd;             /* fd: our end of the last connection */
	const struct answer *answer;
	struct sr_hello hello;
	int up_fd, down_fd;
	struct sr_up *up;             /* both as the daemon sees them */
	struct sr_down *down;
	struct sr_ring requests, cancels, tokens;
} d;

static int object(enum object kind, size_t bytes)
{
	int fd, seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, pair[2];
	char path[80];

	if (kind == A_PIPE) {
		assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
		close(pair[1]);
		return pair[0];
	}
	if (kind == PLAIN_FILE) {
		snprintf(path, sizeof(path), "%s/file", d.dir);
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		unlink(path);
	} else {
		fd = memfd_create("false", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	}
	assert_true(fd >= 0 && ftruncate(fd, (off_t)(kind == SHORT ? bytes - SR_PAGE : bytes)) == 0);
	if (kind == CUT_LATER)
		seals = F_SEAL_GROW | F_SEAL_SEAL;
	if (kind != UNSEALED && kind != PLAIN_FILE)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	if (kind == READ_ONLY) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		pair[0] = open(path, O_RDONLY | O_CLOEXEC);
		close(fd);
		fd = pair[0];
	}
	return fd;
}

static void map_own(void)
{
	struct sr_shape s = SHAPE;
	unsigned char *up = mmap(NULL, SR_UP_BYTES(&s, 0), PROT_READ | PROT_WRITE, MAP_SHARED, d.up_fd, 0);
	unsigned char *down = mmap(NULL, SR_DOWN_BYTES(&s, 0), PROT_READ | PROT_WRITE, MAP_SHARED, d.down_fd, 0);

	if (up == MAP_FAILED || down == MAP_FAILED)
		return;               /* the client does not get this far */
	d.up = (void *)up;
	d.down = (void *)down;
	d.down->epoch = EPOCH;
	d.down->model.context = 500;
	d.down->model.vocab = 1000;
	memset(d.down->model.name, 'x', sizeof(d.down->model.name)); /* no end */
	sr_ring_init(&d.requests, false, &d.up->requests, &d.down->requests, up + SR_PAGE, s.live, 256);
	sr_ring_init(&d.cancels, false, &d.up->cancels, &d.down->cancels, up + SR_OFF_CANCELS(s.live),
	             2 * s.live, 64);
	sr_ring_init(&d.tokens, true, &d.down->tokens, &d.up->tokens, down + SR_PAGE, s.tokens, 64);
}

static void welcome(const struct answer *a)
{
	struct sr_shape s = SHAPE;
	char bytes[64] = { 0 };
	union {
		char buf[CMSG_SPACE(3 * sizeof(int))];
		struct cmsghdr align;
	} control = { .buf = { 0 } };
	struct iovec iov = { bytes, a->len ? a->len : sizeof(a->w) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *cm = &control.align;
	int n = a->n_fds ? a->n_fds : 2, fds[3];

	memcpy(bytes, &a->w, sizeof(a->w));
	fds[0] = d.up_fd = object(a->up, SR_UP_BYTES(&s, 0));
	fds[1] = d.down_fd = object(a->down, SR_DOWN_BYTES(&s, 0));
	fds[2] = d.up_fd;
	map_own();
	if (n > 0) {
		msg.msg_control = control.buf;
		msg.msg_controllen = CMSG_SPACE((size_t)n * sizeof(int));
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
		memcpy(CMSG_DATA(cm), fds, (size_t)n * sizeof(int));
	}
	sendmsg(d.fd, &msg, MSG_NOSIGNAL);
}

/* One connection. */
static void *answer_one(void *arg)
{
	const struct answer *a = arg;

	d.fd = accept4(d.listener, NULL, NULL, SOCK_CLOEXEC);
	if (a->manner == REFUSES_UNREAD) {
		__real_send(d.fd, &a->w, sizeof(a->w), MSG_NOSIGNAL);
		return NULL;
	}
	recv(d.fd, &d.hello, sizeof(d.hello), 0);
	if (a->manner == CLOSES)
		shutdown(d.fd, SHUT_RDWR);
	if (a->manner == HONEST || a->manner >= NEVER_BEGINS)
		welcome(a);
	if (a->manner == HONEST)
		sr_signal(d.fd);
	if (a->manner == CLOSES_LATE)
		shutdown(d.fd, SHUT_RDWR);
	return NULL;
}

/* What sr_open() says of that answer. */
static int open_to(struct sr_conn **c, const struct answer *a, const struct sr_options *o)
{
	pthread_t t;
	int e;

	d.up = NULL;
	d.up_fd = d.down_fd = -1;
	assert_int_equal(pthread_create(&t, NULL, answer_one, (void *)(uintptr_t)a), 0);
	e = sr_open(c, d.path, o);
	pthread_join(t, NULL);
	return e;
}

static void hang_up(void)
{
	struct sr_shape s = SHAPE;

	if (d.up) {
		munmap(d.up, SR_UP_BYTES(&s, 0));
		munmap(d.down, SR_DOWN_BYTES(&s, 0));
	}
	if (d.fd >= 0)
		close(d.fd);
	if (d.up_fd >= 0)
		close(d.up_fd);
	if (d.down_fd >= 0)
		close(d.down_fd);
	d.fd = d.up_fd = d.down_fd = -1;
	d.up = NULL;
}

static int setup(void **state)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	(void)state;
	strcpy(d.dir, "/tmp/slipring-test-XXXXXX");
	assert_non_null(mkdtemp(d.dir));
	snprintf(d.path, sizeof(d.path), "%s/sock", d.dir);
	strcpy(a.sun_path, d.path);
	d.fd = d.up_fd = d.down_fd = -1;
	d.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(d.listener, (struct sockaddr *)&a, sizeof(a)), 0);
	return listen(d.listener, 4);
}

static int teardown(void **state)
{
	(void)state;
	hang_up();
	close(d.listener);
	unlink(d.path);
	return rmdir(d.dir);
}

/* ---- connecting ------------------------------------------------------------------------------ */

static void wrong_welcomes(void **state)
{
#define W(...) { SR_MAGIC, SR_VERSION, __VA_ARGS__ }
	static const struct { const char *what; int is; struct answer a; } t[] = {
		{ "none, closed", -ECONNRESET, { .manner = CLOSES } },
		{ "none at all", -ETIMEDOUT, { .manner = SILENT } },
		{ "no bytes", -ECONNRESET, { .w = GOOD, .len = 1, .manner = CLOSES } },
		{ "good, and never begins", -ETIMEDOUT, { .w = GOOD, .manner = NEVER_BEGINS } },
		{ "too short", -EPROTO, { .w = GOOD, .len = 39 } },
		{ "too long", -EPROTO, { .w = GOOD, .len = 41 } },
		{ "magic", -EPROTO, { .w = { 1, SR_VERSION, 0, SHAPE, 1 } } },
		{ "version", -EPROTO, { .w = { SR_MAGIC, SR_VERSION + 1, 0, SHAPE, 1 } } },
		{ "refused", -EUSERS, { .w = W(-EUSERS, SHAPE, 1), .n_fds = -1 } },
		{ "refused before the hello", -EUSERS, { .w = W(-EUSERS, SHAPE, 1), .manner = REFUSES_UNREAD } },
		{ "a status that is no errno", -EPROTO, { .w = W(-5000, SHAPE, 1), .n_fds = -1 } },
		{ "a status above 0", -EPROTO, { .w = W(1, SHAPE, 1), .n_fds = -1 } },
		{ "no descriptors", -EPROTO, { .w = GOOD, .n_fds = -1 } },
		{ "one", -EPROTO, { .w = GOOD, .n_fds = 1 } },
		{ "three", -EPROTO, { .w = GOOD, .n_fds = 3 } },
		{ "live not a power of two", -EPROTO, { .w = W(0, { 33, 128, 4096, 0, 0 }, 1) } },
		{ "live too few", -EPROTO, { .w = W(0, { 16, 64, 4096, 0, 0 }, 1) } },
		{ "live too many", -EPROTO, { .w = W(0, { 1u << 15, 1u << 17, 4096, 0, 0 }, 1) } },
		{ "tokens too few", -EPROTO, { .w = W(0, { 64, 64, 4096, 0, 0 }, 1) } },
		{ "tokens not a power of two", -EPROTO, { .w = W(0, { 32, 96, 4096, 0, 0 }, 1) } },
		{ "tokens too many", -EPROTO, { .w = W(0, { 32, 1u << 21, 4096, 0, 0 }, 1) } },
		{ "no arena", -EPROTO, { .w = W(0, { 32, 64, 0, 0, 0 }, 1) } },
		{ "a vast arena", -EPROTO, { .w = W(0, { 32, 64, 0xfffff000u, 0, 0 }, 1) } },
		{ "a part of a page", -EPROTO, { .w = W(0, { 32, 64, 5000, 0, 0 }, 1) } },
		{ "guides not a power of two", -EPROTO, { .w = W(0, { 32, 64, 4096, 24, 0 }, 1) } },
		{ "too many guides", -EPROTO, { .w = W(0, { 32, 64, 4096, 8192, 0 }, 1) } },
		{ "guides beyond the object", -EPROTO, { .w = W(0, { 32, 64, 4096, 8, 0 }, 1) } },
		{ "larger than the objects", -EPROTO, { .w = W(0, { 64, 128, 4096, 0, 0 }, 1) } },
		{ "up short", -EPROTO, { .w = GOOD, .up = SHORT } },
		{ "down short", -EPROTO, { .w = GOOD, .down = SHORT } },
		{ "up unsealed", -EPROTO, { .w = GOOD, .up = UNSEALED } },
		{ "down unsealed", -EPROTO, { .w = GOOD, .down = UNSEALED } },
		{ "down that can be cut", -EPROTO, { .w = GOOD, .down = CUT_LATER } },
		{ "a file", -EPROTO, { .w = GOOD, .up = PLAIN_FILE } },
		{ "a file, too", -EPROTO, { .w = GOOD, .down = PLAIN_FILE } },
		{ "a pipe", -EPROTO, { .w = GOOD, .down = A_PIPE } },
		{ "up read-only", -EACCES, { .w = GOOD, .up = READ_ONLY } },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		const struct sr_options o = { .size = sizeof(o), .timeout_ms = t[i].is == -ETIMEDOUT ? 200 : 0 };
		struct sr_conn *c = NULL;
		uint64_t begin = sr_now();
		int e = open_to(&c, &t[i].a, &o);

		if (e != t[i].is)
			fail_msg("%s: %d instead of %d", t[i].what, e, t[i].is);
		assert_null(c);
		assert_true(sr_now() - begin < 5000 * MS);
		assert_true(e != -ETIMEDOUT || sr_now() - begin >= 200 * MS);
		hang_up();
	}
}

static void a_daemon_that_does_not_accept(void **state)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	const struct sr_options o = { .size = sizeof(o), .timeout_ms = 1500 };
	int waiting[16], n = 0;
	struct sr_conn *c;
	uint64_t begin;

	(void)state;
	strcpy(a.sun_path, d.path);
	for (int e = 0; !e && n < 16; n++) {  /* until the backlog is full */
		waiting[n] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		e = connect(waiting[n], (struct sockaddr *)&a, sizeof(a));
	}
	assert_true(n < 16);
	begin = sr_now();
	assert_int_equal(sr_open(&c, d.path, &o), -ETIMEDOUT);
	assert_true(sr_now() - begin >= 1400 * MS);
	while (n > 0)
		close(waiting[--n]);
}

/* The daemon went away while the hello was on its way: its earlier message is still read. */
static void a_hello_that_cannot_be_sent(void **state)
{
	static const struct { int error, is; struct answer a; } t[] = {
		{ EPIPE, -EUSERS, { .w = { SR_MAGIC, SR_VERSION, -EUSERS, SHAPE, 1 }, .manner = REFUSES_UNREAD } },
		{ ENOBUFS, -ENOBUFS, { .w = GOOD, .manner = REFUSES_UNREAD } },
	};
	struct sr_conn *c;

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		send_error = t[i].error;
		assert_int_equal(open_to(&c, &t[i].a, NULL), t[i].is);
		hang_up();
	}
}

/* The daemon goes while the client maps, before or after the client's signal. */
static void closed_instead_of_begun(void **state)
{
	static const struct answer a = { .w = GOOD, .manner = CLOSES_LATE };
	struct sr_conn *c;

	(void)state;
	for (int i = 0; i < 20; i++) {
		int e = open_to(&c, &a, NULL);

		assert_true(e == -ECONNRESET || e == -EPIPE);
		hang_up();
	}
}

static void options_and_paths(void **state)
{
	struct sr_options none = { .size = 0 }, name = { .size = sizeof(name), .live = 5, .spin_us = 7 };
	struct { struct sr_options o; uint64_t zero; } later = { .o.size = sizeof(later) }; /* a later one */
	static const struct answer honest = { .w = GOOD };
	struct rlimit files;
	cpu_set_t all, one;
	struct sr_conn *c;

	(void)state;
	assert_int_equal(sr_open(&c, NULL, NULL), -ENAMETOOLONG);
	assert_int_equal(sr_open(&c, d.path, &none), -EINVAL);
	getrlimit(RLIMIT_NOFILE, &files);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 0, files.rlim_max }), 0);
	assert_int_equal(sr_open(&c, d.path, NULL), -EMFILE);
	setrlimit(RLIMIT_NOFILE, &files);
	memset(name.name, 'n', sizeof(name.name));
	assert_int_equal(sr_open(&c, d.path, &name), -EINVAL);
	name.name[5] = '\0';
	assert_int_equal(open_to(&c, &honest, &name), 0);
	assert_string_equal(d.hello.name, "nnnnn");
	assert_int_equal(d.hello.want.live, 5);
	assert_int_equal(c->spin_ns, 7000);
	assert_int_equal(strlen(sr_model(c)->name), 63);
	assert_int_equal(sr_model(c)->live, 32);
	assert_int_equal(sr_model(c)->epoch, EPOCH);
	sr_close(c);
	sr_close(NULL);
	hang_up();

	/* One core for both: spinning would keep the daemon off it. */
	CPU_ZERO(&one);
	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
		if (CPU_ISSET(i, &all))
			CPU_SET(i, &one);
	sched_setaffinity(0, sizeof(one), &one);
	assert_int_equal(open_to(&c, &honest, &later.o), 0);
	assert_int_equal(c->spin_ns, 0);
	sr_close(c);
	sched_setaffinity(0, sizeof(all), &all);
}

/* ---- a connection to it ---------------------------------------------------------------------- */

static struct sr_conn *connected(void)
{
	static const struct answer honest = { .w = GOOD };
	struct sr_options o = { .size = sizeof(o), .spin_us = 50 };
	struct sr_conn *c;

	assert_int_equal(open_to(&c, &honest, &o), 0);
	return c;
}

static void put_token(const struct sr_record *r)
{
	assert_int_equal(sr_ring_reserve(&d.tokens, 1), 0);
	sr_ring_put(&d.tokens, r);
}

static int ask(struct sr_conn *c, uint32_t n_prompt, uint32_t *ticket)
{
	static const int32_t ids[512];
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = n_prompt, .max_tokens = 1 };

	return sr_submit(c, &q, ticket);
}

/* Leave this request and those before it. */
static void leave(uint32_t upto) { atomic_store(&d.down->requests.head, upto); }

static const struct sr_record token = { .kind = SR_TOKEN }, end = { .kind = SR_END };

static void wild_heads(void **state)
{
	static const uint32_t wild[] = { 2, 32, 0x7fffffff, 0x80000000u, 0xffffffffu };

	(void)state;
	for (size_t i = 0; i < sizeof(wild) / sizeof(wild[0]); i++) {
		struct sr_conn *c = connected();

		assert_int_equal(ask(c, 1, NULL), 0);
		leave(wild[i]);
		assert_int_equal(ask(c, 1, NULL), -EPROTO);
		assert_int_equal(sr_wait(c, SR_WAIT_ROOM, 100), -EPROTO);
		assert_int_equal(sr_arm(c, SR_WAIT_ROOM), -EPROTO);
		/* sr_cancel does not read the head before its ring seems full. */
		atomic_store(&d.down->cancels.head, wild[i] | 256);
		for (int k = 0; k < 64; k++)
			assert_int_equal(sr_cancel(c, 0), 0);
		assert_int_equal(sr_cancel(c, 0), -EPROTO);
		sr_close(c);
		hang_up();
	}
}

static void a_daemon_that_takes_nothing(void **state)
{
	struct sr_conn *c = connected();
	uint64_t rtt;
	int n = 0;

	(void)state;
	while (sr_cancel(c, 0) == 0)
		n++;
	assert_int_equal(n, 64);
	assert_int_equal(sr_cancel(c, 0), -EAGAIN);
	assert_int_equal(sr_ping(c, &rtt, 100), -EAGAIN);
	/* 400 ids twice do not fit 4,096 bytes; room comes when the first is left. */
	assert_int_equal(ask(c, 400, NULL), 0);
	assert_int_equal(sr_wait(c, SR_WAIT_ROOM, 0), SR_WAIT_ROOM); /* none was refused */
	assert_int_equal(ask(c, 400, NULL), 0);
	assert_int_equal(ask(c, 300, NULL), -EAGAIN);
	assert_int_equal(sr_wait(c, SR_WAIT_ROOM | SR_WAIT_TOKENS, 5), 0);
	assert_int_equal(sr_arm(c, SR_WAIT_ROOM), 0);
	leave(1);
	sr_signal(d.fd);
	assert_int_equal(sr_wait(c, SR_WAIT_ROOM, 1000), SR_WAIT_ROOM);
	assert_int_equal(ask(c, 300, NULL), 0);
	leave(3);
	/* A ring of 32 requests, all taken and none left: the ring is the limit. */
	for (n = 0; n < 29; n++)
		assert_int_equal(ask(c, 1, NULL), 0);
	assert_int_equal(ask(c, 1, NULL), -EBUSY);
	for (n = 0; n < 33; n++)              /* more ENDs than requests */
		put_token(&end);
	for (struct sr_record r[8]; n > 0;)
		n -= sr_poll(c, r, 8);
	for (n = 0; n < 3; n++)
		assert_int_equal(ask(c, 1, NULL), 0);
	assert_int_equal(ask(c, 1, NULL), -EAGAIN);
	assert_int_equal(sr_wait(c, SR_WAIT_ROOM, 1), 0);
	leave(4);
	assert_int_equal(sr_wait(c, SR_WAIT_ROOM, 1), SR_WAIT_ROOM);
	assert_int_equal(ask(c, 1, NULL), 0);
	sr_close(c);
}

/* Three spans, the last of which lies before the others: a request for the middle waits for two. */
static void spans_go_round(void **state)
{
	struct sr_conn *c = connected();
	static const struct sr_pair bias[SR_LIST_MAX];
	static const int32_t id[] = { 1 };
	struct sr_request q = { .size = sizeof(q), .prompt = id, .n_prompt = 1, .max_tokens = 1 };
	static const struct { uint32_t n, left; int is; } t[] = {
		{ 400, 0, 0 }, { 300, 0, 0 }, { 100, 0, 0 }, /* 3,200 of 4,096 bytes */
		{ 300, 0, -EAGAIN }, { 300, 1, 0 },          /* does not fit behind: at 0, once that is free */
		{ 300, 1, -EAGAIN }, { 400, 2, 0 },          /* and into the middle */
		{ 1025, 3, -EMSGSIZE }, { 500, 3, -EMSGSIZE }, { 499, 5, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		int e;

		leave(t[i].left);
		e = ask(c, t[i].n, NULL);
		if (e != t[i].is)
			fail_msg("case %zu: %d instead of %d", i, e, t[i].is);
	}
	sr_close(c);
	hang_up();

	/* Five spans of 800 bytes: for 1,996 more, the first three must be left. */
	c = connected();
	for (int i = 0; i < 5; i++)
		assert_int_equal(ask(c, 200, NULL), 0);
	assert_int_equal(ask(c, 499, NULL), -EAGAIN);
	for (uint32_t i = 1; i < 4; i++) {
		assert_int_equal(sr_wait(c, SR_WAIT_ROOM, 1), 0);
		leave(i);
	}
	assert_int_equal(sr_wait(c, SR_WAIT_ROOM, 1), SR_WAIT_ROOM);
	assert_int_equal(ask(c, 499, NULL), 0);
	sr_close(c);
	hang_up();

	/* A span of all but 96 bytes: only the last leave makes room. */
	c = connected();
	for (int i = 0; i < 2; i++)
		assert_int_equal(ask(c, 50, NULL), 0);
	q.bias = bias;
	q.n_bias = 499;
	assert_int_equal(sr_submit(c, &q, NULL), -EAGAIN);
	leave(1);
	assert_int_equal(sr_wait(c, SR_WAIT_ROOM, 1), 0);
	leave(2);
	assert_int_equal(sr_wait(c, SR_WAIT_ROOM, 1), SR_WAIT_ROOM);
	assert_int_equal(sr_submit(c, &q, NULL), 0);
	sr_close(c);
}

static void what_does_not_fit_the_wire(void **state)
{
	static const int32_t id[] = { 1 };
	static const struct sr_pair bias[SR_LIST_MAX];
	static const struct { const char *what; int is; struct sr_request q; } t[] = {
		{ "no prompt", -EINVAL, { .n_prompt = 1, .max_tokens = 1 } },
		{ "of no ids", -EINVAL, { .prompt = id, .n_bad = 1, .bad = id, .max_tokens = 1 } },
		{ "too many stops", -EINVAL, { .prompt = id, .n_prompt = 1, .stop = id, .n_stop = 1025 } },
		{ "alternatives", -EINVAL, { .prompt = id, .n_prompt = 1, .n_top = 21 } },
		{ "of the prompt", -EINVAL, { .prompt = id, .n_prompt = 1, .n_prompt_top = 21 } },
		{ "the daemon's", -EINVAL, { .prompt = id, .n_prompt = 1, .sampling.min_position = 1 } },
		{ "a list of no memory", -EINVAL, { .prompt = id, .n_prompt = 1, .n_bias = 1 } },
		{ "longer than the context", -EMSGSIZE, { .prompt = id, .n_prompt = 501 } },
		{ "with its answer", -EMSGSIZE, { .prompt = id, .n_prompt = 1, .max_tokens = 500 } },
		{ "longer than the arena", -EMSGSIZE, { .prompt = id, .n_prompt = 1, .max_tokens = 1, .bias = bias,
			.n_bias = 1024 } },
	};
	struct sr_conn *c = connected();

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct sr_request q = t[i].q;
		int e;

		q.size = sizeof(q);
		e = sr_submit(c, &q, NULL);
		if (e != t[i].is)
			fail_msg("%s: %d instead of %d", t[i].what, e, t[i].is);
	}
	assert_false(sr_ring_ready(&d.requests));
	sr_close(c);
}

static void records_out_of_order(void **state)
{
#define TOK(n) { .kind = SR_TOKEN, .n_top = (n), .user_data = 1 }
#define TOP(n) { .kind = SR_TOP, .n_top = (n), .user_data = 1 }
	static const struct { const char *what; int n, whole; struct sr_record r[5]; } t[] = {
		{ "a TOP alone", 1, 0, { TOP(1) } },
		{ "a TOP too many", 2, 1, { TOK(4), TOP(1) } },
		{ "an empty TOP", 2, 0, { TOK(5), TOP(0) } },
		{ "a TOP of seven", 2, 0, { TOK(20), TOP(7) } },
		{ "more than were announced", 2, 0, { TOK(6), TOP(3) } },
		{ "another's TOP", 2, 0, { TOK(5), { .kind = SR_TOP, .n_top = 1, .user_data = 2 } } },
		{ "a token too early", 2, 0, { TOK(5), TOK(0) } },
		{ "an end too early", 3, 0, { TOK(11), TOP(6), { .kind = SR_END } } },
		{ "more than twenty", 1, 0, { TOK(21) } },
		{ "no kind", 1, 0, { { .kind = 0 } } },
		{ "a kind of its own", 1, 0, { { .kind = 6 } } },
		{ "progress amid a token", 2, 0, { TOK(5), { .kind = SR_COMPUTED } } },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct sr_conn *c = connected();
		struct sr_token k = { 0 };
		int whole = 0, e;

		for (int r = 0; r < t[i].n; r++)
			put_token(&t[i].r[r]);
		while ((e = sr_next(c, &k)) == 1)
			whole++;
		if (e != -EPROTO || whole != t[i].whole)
			fail_msg("%s: %d after %d", t[i].what, e, whole);
		sr_close(c);
		hang_up();
	}
}

/* The daemon overwrites records not yet read: they are lost, and nothing else is harmed. */
static void more_records_than_places(void **state)
{
	struct sr_conn *c = connected();
	struct sr_record r[200];

	(void)state;
	d.tokens.reserved = 128;
	for (int i = 0; i < 128; i++)
		sr_ring_put(&d.tokens, &token);
	assert_int_equal(sr_poll(c, r, 200), 0); /* record 64 lies in place of record 0 */
	atomic_store((_Atomic uint32_t *)sr_ring_place(&d.tokens, 64), sr_ring_seq(0));
	for (uint32_t i = 1; i < 64; i++)
		atomic_store((_Atomic uint32_t *)sr_ring_place(&d.tokens, i), sr_ring_seq(i));
	assert_int_equal(sr_poll(c, r, 0), 0);
	assert_int_equal(sr_poll(c, r, 64), 64);
	sr_close(c);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Another epoch, or end of file: every call reports it from then on. */
static void it_is_over(void **state)
{
	(void)state;
	for (int how = 0; how < 4; how++) {
		struct sr_conn *c = connected();
		struct sr_record r[4];
		uint64_t rtt, begin = sr_now();
		int e;

		put_token(&token);
		if (how == 0)
			d.down->epoch = 0;
		else if (how == 1)
			d.down->epoch = 78;
		else
			close(d.fd), d.fd = -1;
		if (how == 2)                 /* asleep */
			assert_int_equal(sr_arm(c, SR_WAIT_TOKENS), SR_WAIT_TOKENS);
		assert_int_equal(sr_poll(c, r, 4), 1);
		while ((e = sr_poll(c, r, 4)) == 0)
			assert_true(sr_now() - begin < 2000 * MS);
		assert_int_equal(e, -ECONNRESET);
		assert_int_equal(ask(c, 1, NULL), -ECONNRESET);
		assert_int_equal(sr_cancel(c, 0), -ECONNRESET);
		assert_int_equal(sr_wait(c, SR_WAIT_TOKENS, -1), -ECONNRESET);
		assert_int_equal(sr_ping(c, &rtt, -1), -ECONNRESET);
		c->refused = true;            /* no room will come */
		c->blocker = 5;
		assert_int_equal(sr_wait(c, SR_WAIT_ROOM, -1), -ECONNRESET);
		put_token(&token);            /* still reported where there is something */
		assert_int_equal(sr_wait(c, SR_WAIT_TOKENS, 0), SR_WAIT_TOKENS);
		sr_close(c);
		hang_up();
	}
}

/* The side to be woken is gone: this call succeeds, the next one reports it. */
static void nobody_to_wake(void **state)
{
	struct sr_conn *c = connected();

	(void)state;
	shutdown(d.fd, SHUT_RDWR);
	assert_int_equal(ask(c, 1, NULL), 0); /* fresh memory asks for record 0 */
	assert_int_equal(ask(c, 1, NULL), -ECONNRESET);
	sr_close(c);
	hang_up();
	c = connected();
	shutdown(d.fd, SHUT_RDWR);
	assert_int_equal(sr_cancel(c, 0), -ECONNRESET);
	sr_close(c);
}

/* At the first touch of the page with the daemon's words, which holds the epoch, the daemon puts a
 * token and goes: between a client's look at its ring and its look at the epoch. */
static void *guarded;

static void last_words(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	(void)context;
	if ((uintptr_t)info->si_addr - (uintptr_t)guarded >= SR_PAGE)
		abort();
	sr_ring_put(&d.tokens, &token);
	atomic_store_explicit(&d.down->epoch, 0, memory_order_release);
	mprotect(guarded, SR_PAGE, PROT_READ);
}

static void a_token_put_before_the_end_is_read(void **state)
{
	struct sigaction sa = { .sa_sigaction = last_words, .sa_flags = SA_SIGINFO }, before;

	(void)state;
	for (int how = 0; how < 3; how++) {
		struct sr_conn *c = connected();
		struct sr_record r;

		assert_int_equal(sr_ring_reserve(&d.tokens, 1), 0);
		guarded = c->down;
		assert_int_equal(mprotect(guarded, SR_PAGE, PROT_NONE), 0);
		sigaction(SIGSEGV, &sa, &before);
		if (how == 1)
			assert_int_equal(sr_wait(c, SR_WAIT_TOKENS, 0), SR_WAIT_TOKENS);
		if (how == 2)
			assert_int_equal(sr_arm(c, SR_WAIT_TOKENS), SR_WAIT_TOKENS);
		assert_int_equal(sr_poll(c, &r, 1), 1);
		sigaction(SIGSEGV, &before, NULL);
		assert_int_equal(r.kind, SR_TOKEN);
		assert_int_equal(sr_poll(c, &r, 1), -ECONNRESET);
		sr_close(c);
		hang_up();
	}
}

/* A client that polls asks the kernel only after a silence, and then again: a killed daemon writes
 * no epoch. */
static void silence_makes_it_ask(void **state)
{
	struct sr_conn *c = connected();
	struct sr_record r;
	uint64_t begin;
	int e;

	(void)state;
	for (begin = sr_now(); sr_now() - begin < 50 * MS;)
		assert_int_equal(sr_poll(c, &r, 1), 0);
	sr_signal(d.fd);                      /* a byte is not an end */
	for (begin = sr_now(); sr_now() - begin < 50 * MS;)
		assert_int_equal(sr_poll(c, &r, 1), 0);
	close(d.fd);
	d.fd = -1;
	for (begin = sr_now(); (e = sr_poll(c, &r, 1)) == 0;)
		assert_true(sr_now() - begin < 2000 * MS);
	assert_int_equal(e, -ECONNRESET);
	sr_close(c);
}

/* ---- waiting --------------------------------------------------------------------------------- */

static void nothing_to_do(int sig) { (void)sig; }

static void waits_are_bounded(void **state)
{
	struct sr_conn *c = connected();
	struct sigaction sa = { .sa_handler = nothing_to_do }, before;
	struct itimerspec soon = { .it_value.tv_nsec = 20 * MS };
	struct sigevent ev = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	uint64_t begin = sr_now(), rtt;
	timer_t timer;

	(void)state;
	assert_int_equal(sr_wait(c, SR_WAIT_TOKENS, 0), 0);
	assert_int_equal(sr_wait(c, SR_WAIT_TOKENS, 30), 0);
	assert_true(sr_now() - begin >= 30 * MS);
	assert_int_equal(sr_ping(c, &rtt, 30), -ETIMEDOUT);
	d.down->pong = 2;                     /* the answer to the next, before it is asked */
	assert_int_equal(sr_ping(c, &rtt, 1000), 0);
	d.down->pong = 99;
	assert_int_equal(sr_ping(c, &rtt, 5), -ETIMEDOUT);
	assert_int_equal(sr_ping(c, &rtt, 0), -ETIMEDOUT); /* one look */
	sigaction(SIGUSR1, &sa, &before);
	assert_int_equal(timer_create(CLOCK_MONOTONIC, &ev, &timer), 0);
	assert_int_equal(timer_settime(timer, 0, &soon, NULL), 0);
	assert_int_equal(sr_wait(c, SR_WAIT_TOKENS, 5000), -EINTR);
	timer_delete(timer);
	sigaction(SIGUSR1, &before, NULL);
	d.down->pong = 5;
	assert_int_equal(sr_ping(c, &rtt, -1), 0);
	d.down->cancels.wake_at = 1000;       /* the daemon needs no signal, and is gone */
	close(d.fd);
	d.fd = -1;
	assert_int_equal(sr_ping(c, &rtt, 10000), -ECONNRESET);
	sr_close(c);
}

static void *ring_later(void *arg)
{
	(void)arg;
	usleep(20000);
	sr_ring_put(&d.tokens, &token);
	sr_signal(d.fd);
	return NULL;
}

static void woken_from_an_endless_sleep(void **state)
{
	struct sr_conn *c = connected();
	pthread_t t;

	(void)state;
	for (int how = 0; how < 2; how++) {   /* after a spin; alone on its core, at once */
		struct sr_record r;

		assert_int_equal(sr_ring_reserve(&d.tokens, 1), 0);
		assert_int_equal(pthread_create(&t, NULL, ring_later, NULL), 0);
		assert_int_equal(sr_wait(c, SR_WAIT_TOKENS, -1), SR_WAIT_TOKENS);
		pthread_join(t, NULL);
		assert_int_equal(sr_poll(c, &r, 1), 1);
		c->spin_ns = 0;
	}
	sr_close(c);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		CASE(wrong_welcomes),
		CASE(a_daemon_that_does_not_accept),
		CASE(a_hello_that_cannot_be_sent),
		CASE(closed_instead_of_begun),
		CASE(options_and_paths),
		CASE(wild_heads),
		CASE(a_daemon_that_takes_nothing),
		CASE(spans_go_round),
		CASE(what_does_not_fit_the_wire),
		CASE(records_out_of_order),
		CASE(more_records_than_places),
		CASE(it_is_over),
		CASE(nobody_to_wake),
		CASE(a_token_put_before_the_end_is_read),
		CASE(silence_makes_it_ask),
		CASE(waits_are_bounded),
		CASE(woken_from_an_endless_sleep),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
