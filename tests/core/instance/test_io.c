/* LINK: core/instance/io.c -luring -Wl,--wrap=io_uring_queue_init_params,--wrap=epoll_create1,--wrap=io_uring_submit */
/* The event loop, every case over io_uring (if the kernel lets us) and over epoll. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/instance/io.h"
#include "tests/rig/cpu_time.h"

#define MS 1000000ull

struct seen { int n, reads; uint32_t events; int64_t result; struct io *io; struct io_watch *other; };

static void count(struct io_watch *w, uint32_t events)
{
	struct seen *s = w->ctx;

	s->n++;
	s->events |= events;
}

static void read_one(struct io_watch *w, uint32_t events)
{
	char c;

	count(w, events);
	if (read(w->fd, &c, 1) == 1)
		((struct seen *)w->ctx)->reads++;
}

static void spin(struct io *io, unsigned ms)
{
	for (uint64_t end = io_now() + ms * MS; io_now() < end; )
		io_sleep(io, io_now() + MS);
}

static void test_level_triggered(void **state)
{
	struct seen s = { 0 };
	struct io_watch w = { .events = IO_IN, .fn = read_one, .ctx = &s };
	int fd[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	w.fd = fd[0];
	assert_int_equal(io_watch_add(*state, &w), 0);
	assert_int_equal(write(fd[1], "abc", 3), 3);
	spin(*state, 20);
	assert_int_equal(s.reads, 3);             /* one byte a callback: three callbacks */
	assert_int_equal(s.events, IO_IN);
	io_watch_del(*state, &w);
	assert_int_equal(write(fd[1], "d", 1), 1);
	spin(*state, 5);
	assert_int_equal(s.n, 3);
	close(fd[0]);
	close(fd[1]);
}

static void test_change_of_interest(void **state)
{
	struct seen s = { 0 };
	struct io_watch w = { .events = 0, .fn = count, .ctx = &s };
	int fd[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	w.fd = fd[0];
	assert_int_equal(io_watch_add(*state, &w), 0);
	assert_int_equal(write(fd[1], "x", 1), 1);
	spin(*state, 5);
	assert_int_equal(s.n, 0);                 /* no event was asked for */
	io_watch_set(*state, &w, IO_OUT);
	io_sleep(*state, io_now() + 100 * MS);
	io_watch_set(*state, &w, IO_IN);
	io_watch_set(*state, &w, IO_HUP);
	assert_int_equal(s.events, IO_OUT);
	s = (struct seen){ 0 };
	spin(*state, 5);
	assert_int_equal(s.n, 0);                 /* there is input, but interest was withdrawn */
	close(fd[1]);
	spin(*state, 5);
	assert_true(s.n > 0 && s.events == IO_HUP);
	io_watch_del(*state, &w);
	close(fd[0]);
}

static void remove_other(struct io_watch *w, uint32_t events)
{
	struct seen *s = w->ctx;

	count(w, events);
	io_watch_del(s->io, s->other);
	io_watch_del(s->io, w);
}

static void test_remove_in_callback(void **state)
{
	struct seen s[2] = { { .io = *state }, { .io = *state } };
	struct io_watch w[2] = { { .events = IO_IN, .fn = remove_other, .ctx = &s[0] },
	                         { .events = IO_IN, .fn = remove_other, .ctx = &s[1] } };
	int fd[2][2];

	for (int i = 0; i < 2; i++) {
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd[i]), 0);
		w[i].fd = fd[i][0];
		s[i].other = &w[1 - i];
		assert_int_equal(io_watch_add(*state, &w[i]), 0);
		assert_int_equal(write(fd[i][1], "x", 1), 1);
	}
	spin(*state, 10);
	assert_int_equal(s[0].n + s[1].n, 1);     /* the first callback removed both */
	for (int i = 0; i < 4; i++)
		close(fd[i / 2][i % 2]);
}

struct tick { struct io_timer t; int *order, *n, me; };
static void tick(struct io_timer *t)
{
	struct tick *k = t->ctx;

	k->order[(*k->n)++] = k->me;
}

static void test_timers_in_order(void **state)
{
	enum { N = 200 };
	static struct tick k[N];
	int order[N], n = 0, gone = 0;
	uint64_t start = io_now();

	for (int i = 0; i < N; i++) {
		int rank = (i * 73 + 11) % N;         /* a permutation: 73 and 200 have no factor */

		k[i] = (struct tick){ { .fn = tick, .ctx = &k[i] }, order, &n, rank };
		io_timer_set(*state, &k[i].t, start + 5 * MS + (uint64_t)rank * 1000);
	}
	for (int i = 0; i < N; i += 10, gone++)
		io_timer_del(*state, &k[i].t);
	io_timer_set(*state, &k[1].t, start + 8 * MS);  /* moved to the end */
	while (n < N - gone && io_now() < start + 500 * MS)
		io_sleep(*state, start + 500 * MS);
	assert_int_equal(n, N - gone);
	for (int i = 1; i < n - 1; i++)
		assert_true(order[i] > order[i - 1]);
	assert_int_equal(order[n - 1], k[1].me);
	assert_true(io_now() - start >= 5 * MS);
}

/* ---- another thread ends the sleep ---- */

static struct io_watch bell;              /* an eventfd */

static void rung(struct io_watch *w, uint32_t events)
{
	uint64_t n;

	(void)events;
	assert_int_equal(read(w->fd, &n, sizeof(n)), sizeof(n));
}

static void *ringer(void *arg)
{
	uint64_t one = 1;

	(void)arg;
	usleep(5000);
	assert_int_equal(write(bell.fd, &one, sizeof(one)), sizeof(one));
	return NULL;
}

/* How long io_sleep took until the other thread ended it. */
static uint64_t sleep_until_rung(struct io *io, uint64_t until)
{
	uint64_t start = io_now(), took;
	pthread_t t;

	bell = (struct io_watch){ .fd = eventfd(0, EFD_NONBLOCK), .events = IO_IN, .fn = rung };
	assert_int_equal(io_watch_add(io, &bell), 0);
	assert_int_equal(pthread_create(&t, NULL, ringer, NULL), 0);
	io_sleep(io, until);
	took = io_now() - start;
	pthread_join(t, NULL);
	io_poll(io);
	io_watch_del(io, &bell);
	close(bell.fd);
	return took;
}

static void test_wake_from_another_thread(void **state)
{
	assert_true(sleep_until_rung(*state, io_now() + 2000 * MS) < 1000 * MS);
}

static void read_done(struct io_read *r, int64_t result)
{
	struct seen *s = r->ctx;

	s->n++;
	s->result += result;
}

static void test_reads(void **state)
{
	char path[] = "/tmp/slipring-io-XXXXXX", *buf = aligned_alloc(4096, 8 * 4096);
	struct seen s = { 0 }, bad = { 0 };
	struct io_read r[8], wrong = { .fd = 1 << 20, .buf = buf, .n = 1, .fn = read_done, .ctx = &bad };
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	unlink(path);
	for (int i = 0; i < 7 * 4096 + 100; i++)
		buf[i] = (char)(i * 7);
	assert_int_equal(write(fd, buf, 7 * 4096 + 100), 7 * 4096 + 100);
	memset(buf, 0, 8 * 4096);
	for (int i = 0; i < 8; i++) {
		r[i] = (struct io_read){ .fd = fd, .offset = (uint64_t)i * 4096, .buf = buf + i * 4096,
		                         .n = 4096, .fn = read_done, .ctx = &s };
		assert_int_equal(io_read_start(*state, &r[i]), 0);
	}
	assert_int_equal(io_read_start(*state, &wrong), 0);
	for (int i = 0; i < 200 && s.n + bad.n < 9; i++)
		io_sleep(*state, io_now() + 10 * MS);
	assert_int_equal(s.n, 8);
	assert_int_equal(s.result, 7 * 4096 + 100);   /* the last one was short */
	assert_int_equal(bad.result, -EBADF);
	for (int i = 0; i < 7 * 4096 + 100; i++)
		assert_int_equal(buf[i], (char)(i * 7));
	close(fd);
	free(buf);
}

/* Into registered memory and other memory; more reads at once than there is room for. */
static void test_many_reads(void **state)
{
	enum { N = 64, EACH = 512 };
	char path[] = "/tmp/slipring-io-XXXXXX", *known = aligned_alloc(4096, N * EACH), *unknown = malloc(N * EACH);
	struct iovec iov[17] = { { known, N * EACH / 2 }, { known + N * EACH / 2, N * EACH / 2 } };
	bool uring = strcmp(io_kind(*state), "io_uring") == 0;
	struct seen s = { 0 };
	struct io_read r[N + 1];
	int fd = mkstemp(path), rc;

	assert_true(fd >= 0);
	unlink(path);
	for (int i = 0; i < N * EACH; i++)
		known[i] = (char)(i * 31 >> 3);
	assert_int_equal(write(fd, known, N * EACH), N * EACH);
	assert_int_equal(io_buffers(*state, iov, 17), -ENOTSUP);
	rc = io_buffers(*state, iov, 2);
	assert_true(uring ? rc == 0 || rc == -ENOMEM : rc == -ENOTSUP);   /* as RLIMIT_MEMLOCK allows */
	assert_true(io_buffers(*state, iov, 1) == rc);                    /* instead of the two */
	for (int round = 0; round < 3; round++) {                         /* registered, half of it, none */
		memset(known, 0, N * EACH);
		memset(unknown, 0, N * EACH);
		s = (struct seen){ 0 };
		for (int i = 0; i <= N; i++) {
			r[i] = (struct io_read){ .fd = fd, .offset = (uint64_t)(i % N) * EACH,
			                         .buf = (i % 2 ? known : unknown) + i % N * EACH, .n = EACH,
			                         .fn = read_done, .ctx = &s };
			assert_int_equal(io_read_start(*state, &r[i]), i < N ? 0 : -EAGAIN);
		}
		for (int i = 0; i < 1000 && s.n < N; i++)
			io_sleep(*state, io_now() + 10 * MS);
		assert_int_equal(s.n, N);
		assert_int_equal(s.result, N * EACH);
		for (int i = 0; i < N * EACH; i++)
			assert_int_equal((i / EACH % 2 ? known : unknown)[i], (char)(i * 31 >> 3));
		if (round == 1)
			assert_int_equal(io_buffers(*state, NULL, 0), uring ? 0 : -ENOTSUP);
	}
	close(fd);
	free(known);
	free(unknown);
}

/* A sleep of hours, or without limit: an event ends it. */
static void test_long_sleeps(void **state)
{
	static const uint64_t hours[] = { 0, 2, 1ull << 21 };

	for (size_t i = 0; i < sizeof(hours) / sizeof(hours[0]); i++) {
		uint64_t until = hours[i] ? io_now() + hours[i] * 3600000 * MS : 0;

		assert_true(sleep_until_rung(*state, until) < 5000 * MS);
	}
	io_sleep(*state, 1);                      /* in the past: no sleep */
}

/* A closed descriptor, or one that cannot be polled, is reported at once or in the callback. */
static void test_bad_descriptors(void **state)
{
	bool uring = strcmp(io_kind(*state), "io_uring") == 0;
	struct seen s = { 0 };
	struct io_watch closed = { .fd = 1000, .events = IO_IN | IO_HUP, .fn = count, .ctx = &s };
	struct io_watch other = { .events = IO_IN, .fn = count, .ctx = &s };
	int fd[2];

	assert_int_equal(io_watch_add(*state, &closed), uring ? 0 : -EBADF);
	if (uring) {
		io_sleep(*state, io_now() + 1000 * MS);
		assert_true(s.n >= 1 && s.events == (IO_IN | IO_HUP));
		io_watch_del(*state, &closed);
	}
	io_watch_del(*state, &closed);            /* not added: nothing to do */
	assert_int_equal(pipe(fd), 0);            /* its place is free for the next one */
	other.fd = fd[0];
	s = (struct seen){ 0 };
	assert_int_equal(io_watch_add(*state, &other), 0);
	io_watch_set(*state, &other, IO_IN);      /* as it was */
	assert_int_equal(write(fd[1], "x", 1), 1);
	io_sleep(*state, io_now() + 1000 * MS);
	assert_true(s.n >= 1);
	io_watch_del(*state, &other);
	close(fd[0]);
	close(fd[1]);
}

/* More timers, due at once, than a turn runs: the others come in the next. */
static void test_many_timers(void **state)
{
	enum { N = 500 };
	static struct tick k[N];
	static int order[N];
	int n = 0;

	for (int i = 0; i < N; i++) {
		k[i] = (struct tick){ { .fn = tick, .ctx = &k[i] }, order, &n, i };
		io_timer_set(*state, &k[i].t, (uint64_t)i + 1);
	}
	assert_int_equal(io_poll(*state), 256);
	assert_int_equal(n, 256);
	for (int i = 0; i < 3; i++)
		io_poll(*state);
	assert_int_equal(n, N);
	for (int i = 0; i < N; i++)
		assert_int_equal(order[i], i);
	io_timer_del(*state, &k[0].t);            /* it has run: nothing to do */
}

static void slow(struct io_watch *w, uint32_t events)
{
	const struct timespec nap = { 0, 1000000 };

	read_one(w, events);
	nanosleep(&nap, NULL);
}

/* Callbacks of 1 ms and turns of 3 ms: at most 4 a turn, and timers come between them. */
static void test_turns_have_a_limit(void **state)
{
	enum { N = 40 };
	const bool uring = !strcmp(io_kind(*state), "io_uring");
	struct seen s[N] = { 0 };
	struct io_watch w[N];
	int fd[N][2], done = 0, turns = 0;

	io_turn(*state, 3 * MS);
	for (int i = 0; i < N; i++) {
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd[i]), 0);
		w[i] = (struct io_watch){ .fd = fd[i][0], .events = IO_IN, .fn = slow, .ctx = &s[i] };
		assert_int_equal(io_watch_add(*state, &w[i]), 0);
		assert_int_equal(write(fd[i][1], "x", 1), 1);
	}
	while (done < N && turns < 1000) {
		int n = io_sleep(*state, io_now() + 100 * MS);

		assert_true(n <= (uring ? 4 : 16));
		if (n && done + n + (uring ? 0 : 16) < N)
			assert_true(io_cut(*state));
		done += n;
		turns++;
	}
	assert_int_equal(done, N);
	for (int i = 0; i < N; i++) {
		assert_int_equal(s[i].reads, 1);
		io_watch_del(*state, &w[i]);
		close(fd[i][0]);
		close(fd[i][1]);
	}
	io_poll(*state);
	assert_false(io_cut(*state));
}

/* ---- kernels that are older, or forbid it --------------------------------------------------------- */

/* What the kernel returns for the first, second, .. attempt at a ring.  1: success; 2: success without EXT_ARG. */
static const int *kernel;
static int attempts;
static bool no_epoll;

struct io_uring;
int __real_io_uring_queue_init_params(unsigned n, struct io_uring *r, struct io_uring_params *p);
int __wrap_io_uring_queue_init_params(unsigned n, struct io_uring *r, struct io_uring_params *p);
int __wrap_io_uring_queue_init_params(unsigned n, struct io_uring *r, struct io_uring_params *p)
{
	int say = kernel ? kernel[attempts++] : 1, rc = say < 0 ? say : __real_io_uring_queue_init_params(n, r, p);

	if (say == 2)
		p->features &= ~IORING_FEAT_EXT_ARG;
	return rc;
}

static void once(struct io_watch *w, uint32_t events)
{
	struct seen *s = w->ctx;

	count(w, events);
	io_watch_set(s->io, w, 0);
}

static int refusals, refusal = EAGAIN; /* this many calls submit nothing and return this */
int __real_io_uring_submit(struct io_uring *r);
int __wrap_io_uring_submit(struct io_uring *r);
int __wrap_io_uring_submit(struct io_uring *r)
{
	if (refusals > 0) {
		refusals--;
		return -refusal;
	}
	return __real_io_uring_submit(r);
}

int __real_epoll_create1(int flags);
int __wrap_epoll_create1(int flags);
int __wrap_epoll_create1(int flags)
{
	if (!no_epoll)
		return __real_epoll_create1(flags);
	errno = EMFILE;
	return -1;
}

static void test_kernels(void **state)
{
	static const struct { int say[3], n; const char *kind, *env; } cases[] = {
		{ { 1 }, 1, "io_uring", NULL }, { { 1 }, 1, "io_uring", "1" },
		{ { -EINVAL, 1 }, 2, "io_uring", NULL },           /* 5.19: no DEFER_TASKRUN */
		{ { -EINVAL, -EINVAL, 1 }, 3, "io_uring", NULL },  /* older kernels */
		{ { -EINVAL, -EINVAL, -EINVAL }, 3, "epoll", NULL },
		{ { 2 }, 1, "epoll", NULL },                       /* before 5.11: no timeout with the wait */
		{ { -EPERM }, 1, "epoll", NULL },                  /* kernel.io_uring_disabled, seccomp */
		{ { -ENOSYS }, 1, "epoll", NULL },
		{ { 1 }, 0, "epoll", "0" },                        /* IO_URING=0 */
	};
	struct io *io;

	(void)state;
	assert_int_equal(io_create(&io, 0), 0);
	if (strcmp(io_kind(io), "io_uring") != 0) {
		io_destroy(io);
		print_message("SKIP: no io_uring here\n");
		skip();
	}
	io_destroy(io);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct seen s = { 0 };
		struct io_timer t = { .fn = NULL };
		struct tick k = { .order = (int[1]){ 0 }, .n = &s.n };

		kernel = cases[i].say;
		attempts = 0;
		if (cases[i].env)
			setenv("IO_URING", cases[i].env, 1);
		assert_int_equal(io_create(&io, 0), 0);
		unsetenv("IO_URING");
		kernel = NULL;
		if (strcmp(io_kind(io), cases[i].kind) != 0 || attempts != cases[i].n)
			fail_msg("case %zu: %s after %d attempts", i, io_kind(io), attempts);
		t.fn = tick;                      /* and it works */
		t.ctx = &k;
		io_timer_set(io, &t, io_now() + MS);
		for (int n = 0; n < 1000 && !s.n; n++)
			io_sleep(io, 0);
		assert_int_equal(s.n, 1);
		io_destroy(io);
	}
	no_epoll = true;
	assert_int_equal(io_create(&io, IO_EPOLL), -EMFILE);
	assert_null(io);
	no_epoll = false;
	io_destroy(NULL);
}

static void on_signal(void *ctx, int sig) { *(int *)ctx = sig; }

static void test_signals(void **state)
{
	sigset_t m;
	int got = 0;

	sigemptyset(&m);
	sigaddset(&m, SIGUSR1);
	assert_int_equal(io_signals(*state, &m, on_signal, &got), 0);
	raise(SIGUSR1);
	for (int i = 0; i < 100 && !got; i++)
		io_sleep(*state, io_now() + 10 * MS);
	assert_int_equal(got, SIGUSR1);
}

static void armed(struct io_watch *w, uint32_t events) { (void)w, (void)events; }

/* In a child that may only call exit: the kernel kills it at any other system call. */
static void test_idle_poll_makes_no_system_call(void **state)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		struct io_watch w = { .fd = eventfd(0, 0), .events = IO_IN, .fn = armed };
		struct io *io;

#ifdef __SANITIZE_THREAD__                    /* the sanitizer makes calls of its own */
		_exit(77);
#endif
		if (io_create(&io, 0) < 0 || strcmp(io_kind(io), "io_uring") || io_watch_add(io, &w) < 0)
			_exit(77);
		io_poll(io);                      /* submit what the set-up queued */
		if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) < 0)
			_exit(77);
		for (int i = 0; i < 10000; i++)
			io_poll(io);
		syscall(SYS_exit, 0);
	}
	(void)state;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		print_message("SKIP: no io_uring or no seccomp here\n");
		skip();
	}
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* More requests than the queue holds, while the kernel is short of memory: all are submitted in the end. */
static void test_a_kernel_that_is_short(void **state)
{
	enum { N = 600 };
	static struct io_watch w[N];
	static struct seen s;
	int fd[2];

	s = (struct seen){ .io = *state };
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	assert_int_equal(write(fd[1], "x", 1), 1);
	refusals = 5;
	for (int i = 0; i < N; i++) {
		w[i] = (struct io_watch){ .fd = dup(fd[0]), .events = IO_IN, .fn = once, .ctx = &s };
		assert_int_equal(io_watch_add(*state, &w[i]), 0);
	}
	for (int i = 0; i < 1000 && s.n < N; i++)
		spin(*state, 1);
	assert_int_equal(s.n, N);
	for (int i = 0; i < N; i++) {
		io_watch_del(*state, &w[i]);
		close(w[i].fd);
	}
	refusals = 0;
	close(fd[0]);
	close(fd[1]);
}

/* A lasting refusal ends the process, with the reason. */
static void test_a_kernel_that_refuses(void **state)
{
	static const int transient[] = { EAGAIN, EBUSY, ENOMEM, EINTR };
	struct io_watch w = { .events = 0, .fn = once };
	char text[200] = "";
	int out[2], status;
	pid_t pid;

	if (strcmp(io_kind(*state), "io_uring")) {
		print_message("SKIP: no io_uring here\n");
		skip();
	}
	w.fd = 0;
	assert_int_equal(io_watch_add(*state, &w), 0);
	for (size_t i = 0; i < sizeof(transient) / sizeof(*transient); i++) {
		refusal = transient[i];
		refusals = 2;
		for (int k = 0; k < 1000; k++) /* each queues one entry, or two */
			io_watch_set(*state, &w, k % 2 ? 0 : IO_HUP);
		assert_int_equal(refusals, 0);
	}
	assert_int_equal(pipe(out), 0);
	pid = fork();
	if (pid == 0) {
		signal(SIGABRT, SIG_DFL);
		dup2(out[1], STDERR_FILENO);
		refusal = EBADF;
		refusals = 1;
		for (int k = 0; k < 1000; k++)
			io_watch_set(*state, &w, k % 2 ? 0 : IO_HUP);
		_exit(1);
	}
	refusal = EAGAIN;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	assert_true(read(out[0], text, sizeof(text) - 1) > 0);
	assert_non_null(strstr(text, "io_uring accepts no more requests: Bad file descriptor"));
	io_watch_del(*state, &w);
	close(out[0]);
	close(out[1]);
}

static int uring(void **state) { return io_create((struct io **)state, 0); }
static int epoll(void **state) { return io_create((struct io **)state, IO_EPOLL); }
static int done(void **state) { io_destroy(*state); return 0; }

static int large_file(void)
{
	static char piece[1 << 20];
	int fd = memfd_create("large", MFD_CLOEXEC);

	assert_true(fd >= 0);
	for (int i = 0; i < 64; i++)
		assert_int_equal(write(fd, piece, sizeof(piece)), sizeof(piece));
	return fd;
}

static bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

/* Closed soon; before the loop ends in any case; and large memory is freed by another thread. */
static void test_close(void **state)
{
	uint64_t here, there;
	int fd = large_file(), last;
	struct io *io;

	here = own_cpu_ns();
	close(fd);
	here = own_cpu_ns() - here;
	fd = large_file();
	there = own_cpu_ns();
	io_close(*state, fd);
	io_poll(*state);
	there = own_cpu_ns() - there;
	for (int i = 0; i < 2000 && is_open(fd); i++)
		spin(*state, 1);
	assert_false(is_open(fd));
	if (!strcmp(io_kind(*state), "io_uring"))
		assert_true(there < here / 4);
	assert_int_equal(io_create(&io, strcmp(io_kind(*state), "epoll") ? 0 : IO_EPOLL), 0);
	last = large_file();
	io_close(io, last);
	io_destroy(io);
	assert_false(is_open(last));
}

#define BOTH(f) cmocka_unit_test_setup_teardown(f, uring, done), \
	{ #f " (epoll)", f, epoll, done, NULL }

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(test_level_triggered), BOTH(test_change_of_interest), BOTH(test_remove_in_callback), BOTH(test_close),
		BOTH(test_timers_in_order), BOTH(test_wake_from_another_thread), BOTH(test_reads),
		BOTH(test_many_reads), BOTH(test_long_sleeps), BOTH(test_bad_descriptors), BOTH(test_many_timers),
		BOTH(test_turns_have_a_limit),
		BOTH(test_signals), BOTH(test_a_kernel_that_is_short),
		cmocka_unit_test_setup_teardown(test_a_kernel_that_refuses, uring, done),
		cmocka_unit_test(test_kernels), cmocka_unit_test(test_idle_poll_makes_no_system_call),
	};

	alarm(60);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
