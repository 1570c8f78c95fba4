/* LINK: core/control.c core/instance/aside.c core/instance/record.c core/instance/knobs.c core/instance/io.c core/instance/log.c core/instance/stats.c tools/save.c core/instance/fresh.c core/instance/refuse.c -luring -lxxhash -lyaml -Wl,--wrap=accept4,--wrap=getsockopt,--wrap=recv,--wrap=send,--wrap=sendmsg,--wrap=io_watch_add,--wrap=calloc,--wrap=socket,--wrap=chmod,--wrap=listen */
/* test_control.c - knobs: which values are valid, who may turn a knob or record, how far, what may fail,
 * and how a settings file changes.  The scheduler is a stand-in that remembers what it was given.  The
 * credentials of a peer can be made up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/control.h"
#include "core/instance/knobs.h"
#include "tests/rig/linger.h"
#include "tools/save.h"

static struct {
	char dir[64], path[128];
	struct io *io;
	struct stats_page page;
	struct recorder recorder;
	struct control *c;
	struct {                      /* the next call of this name fails */
		const char *name;
		int error;
	} fault;
	const struct ucred *peer;     /* credentials of the other end; NULL: the real ones */
	bool many_groups;             /* more than are looked at */
	struct sched_knobs set;       /* what the scheduler was given last */
	int n_set, answer;
} w;

int sched_set(struct sched *s, const struct sched_knobs *k)
{
	(void)s;
	w.set = *k;
	w.n_set++;
	return w.answer;
}

static bool fails(const char *name)
{
	if (!w.fault.name || strcmp(w.fault.name, name) != 0)
		return false;
	w.fault.name = NULL;
	errno = w.fault.error;
	return true;
}

static void fail_next(const char *name, int error)
{
	w.fault.name = name;
	w.fault.error = error;
}

#define WRAP(value, type, name, args, pass) \
	type __real_##name args; type __wrap_##name args; \
	type __wrap_##name args { return fails(#name) ? value : __real_##name pass; }

WRAP(-1, int, accept4, (int fd, struct sockaddr *a, socklen_t *n, int flags), (fd, a, n, flags))
WRAP(-1, ssize_t, recv, (int fd, void *m, size_t n, int flags), (fd, m, n, flags))
WRAP(-1, ssize_t, send, (int fd, const void *m, size_t n, int flags), (fd, m, n, flags))
WRAP(-1, ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
WRAP(-w.fault.error, int, io_watch_add, (struct io *io, struct io_watch *x), (io, x))
WRAP(NULL, void *, calloc, (size_t n, size_t size), (n, size))
WRAP(-1, int, socket, (int domain, int type, int protocol), (domain, type, protocol))
WRAP(-1, int, chmod, (const char *path, mode_t mode), (path, mode))
WRAP(-1, int, listen, (int fd, int n), (fd, n))

int __real_getsockopt(int fd, int level, int name, void *to, socklen_t *n);
int __wrap_getsockopt(int fd, int level, int name, void *to, socklen_t *n);
int __wrap_getsockopt(int fd, int level, int name, void *to, socklen_t *n)
{
	if (name == SO_PEERCRED && fails("peercred"))
		return -1;
	if (name == SO_PEERCRED && w.peer) {
		memcpy(to, w.peer, sizeof(*w.peer));
		return 0;
	}
	if (name == SO_PEERGROUPS && w.many_groups) {
		errno = ERANGE;
		return -1;
	}
	return __real_getsockopt(fd, level, name, to, n);
}

static const struct sched_knobs at_start = { .max_seqs = 8, .batch_tokens = 64, .chunk_max = 64,
	.queue_requests = 5, .queue_tokens = 6, .quantum = 7, .step_ns = 50000000, .fcfs = true };

static int open_control(const char *group, char *err, size_t errlen)
{
	struct control_config cfg = { .run_dir = w.dir, .group = group, .knobs = at_start,
	                              .seqs_most = 16, .tokens_most = 64,
	                              .step_default_ns = 50000000, .recorder = &w.recorder,
	                              .stats = &w.page };

	return control_create(&w.c, &cfg, w.io, NULL, err, errlen);
}

static int set_up(void **state)
{
	char err[300];

	(void)state;
	memset(&w, 0, sizeof(w));
	strcpy(w.dir, "/tmp/test-control-XXXXXX");
	assert_non_null(mkdtemp(w.dir));
	assert_int_equal(chmod(w.dir, 0755), 0);
	snprintf(w.path, sizeof(w.path), "%s/%s", w.dir, CONTROL_FILE);
	assert_int_equal(io_create(&w.io, 0), 0);
	assert_int_equal(open_control(NULL, err, sizeof(err)), 0);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	control_destroy(w.c);
	io_destroy(w.io);
	assert_null(w.recorder.page);                    /* it ends recordings that peers began, */
	assert_int_equal(access(w.path, F_OK), -1);      /* and removes its socket */
	assert_int_equal(rmdir(w.dir), 0);
	return 0;
}

/* ---- a peer ------------------------------------------------------------------------------ */

static int dial(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	strcpy(a.sun_path, w.path);
	assert_true(fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0);
	return fd;
}

/* The pauses after n connections. */
static void turns(int n)
{
	const uint64_t end = io_now() + (uint64_t)n * 12000000;

	while (io_now() < end)
		io_sleep(w.io, end);
}

/* Bytes received, 0: closed without an answer. */
static ssize_t hear(int fd, struct control_answer *a)
{
	ssize_t n;

	memset(a, 0, sizeof(*a));
	for (int i = 0; i < 100 && poll(&(struct pollfd){ fd, POLLIN, 0 }, 1, 0) == 0; i++)
		turns(1);
	n = recv(fd, a, sizeof(*a), MSG_DONTWAIT);
	close(fd);
	return n;
}

static struct control_answer ask(uint32_t knob, int64_t value)
{
	struct control_ask q = { CONTROL_MAGIC, CONTROL_VERSION, knob, 0, value };
	struct control_answer a;
	int fd = dial();

	assert_int_equal(send(fd, &q, sizeof(q), 0), sizeof(q));
	assert_int_equal(hear(fd, &a), sizeof(a));
	assert_int_equal(a.magic, CONTROL_MAGIC);
	return a;
}

/* ---- values ------------------------------------------------------------------------------ */

static void test_values(void **state)
{
	static const struct { enum knob k; const char *text; int64_t want; } cases[] = { /* -1: refused */
		{ KNOB_MAX_NUM_SEQS, "1", 1 }, { KNOB_MAX_NUM_SEQS, "128", 128 }, { KNOB_MAX_NUM_SEQS, "4k",
		        4000 },
		{ KNOB_MAX_NUM_SEQS, "4K", 4096 }, { KNOB_MAX_NUM_SEQS, "1.5k", 1500 }, { KNOB_MAX_NUM_SEQS,
		        "0", -1 },
		{ KNOB_MAX_NUM_SEQS, "-3", -1 }, { KNOB_MAX_NUM_SEQS, "", -1 }, { KNOB_MAX_NUM_SEQS, "8x",
		        -1 },
		{ KNOB_MAX_NUM_SEQS, "1.5", -1 }, { KNOB_MAX_NUM_SEQS, "nan", -1 }, { KNOB_MAX_NUM_SEQS,
		        "inf", -1 },
		{ KNOB_MAX_NUM_SEQS, "1e300", -1 }, { KNOB_LONG_PREFILL, "0", 0 }, { KNOB_STEP_TARGET, "2.5",
		        2500 },
		{ KNOB_STEP_TARGET, "0", 0 }, { KNOB_STEP_TARGET, "2k", -1 }, { KNOB_STEP_TARGET, "0.0001",
		        -1 },
		{ KNOB_POLICY, "fcfs", 0 }, { KNOB_POLICY, "priority", 1 }, { KNOB_POLICY, "1", -1 },
		{ KNOB_PREFIX_CACHING, "true", 1 }, { KNOB_PREFIX_CACHING, "yes", -1 },
	};
	char err[200], back[40];
	int64_t v;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int r = knob_parse(cases[i].k, cases[i].text, &v, err, sizeof(err));

		if (r != (cases[i].want < 0 ? -EINVAL : 0) || (r == 0 && v != cases[i].want))
			fail_msg("case %zu, %s: %d %lld", i, cases[i].text, r, (long long)v);
		if (r < 0)
			assert_non_null(strstr(err, knob_info(cases[i].k)->name));
		if (r < 0)
			continue;
		knob_format(cases[i].k, v, back, sizeof(back));  /* and back again */
		assert_int_equal(knob_parse(cases[i].k, back, &v, err, sizeof(err)), 0);
		assert_int_equal(v, cases[i].want);
	}
	assert_int_equal(knob_find("max-num-seqs"), KNOB_MAX_NUM_SEQS);
	assert_int_equal(knob_find("--max_num_seqs"), KNOB_MAX_NUM_SEQS);
	assert_int_equal(knob_find("max-num-seq"), -1);
	assert_int_equal(knob_find("max-num-seqsx"), -1);
	assert_int_equal(knob_find(""), -1);
}

/* ---- turning ----------------------------------------------------------------------------- */

static void test_shown(void **state)
{
	(void)state;
	assert_int_equal(w.page.knob[KNOB_MAX_NUM_SEQS], 8);
	assert_int_equal(w.page.knob_ceiling[KNOB_MAX_NUM_SEQS], 16);
	assert_int_equal(w.page.max_num_seqs, 8);
	assert_int_equal(w.page.knob[KNOB_MAX_NUM_BATCHED_TOKENS], 64);
	assert_int_equal(w.page.knob[KNOB_LONG_PREFILL], 0);     /* no limit below the batch's */
	assert_int_equal(w.page.knob[KNOB_POLICY], 0);
	assert_int_equal(w.page.knob[KNOB_PREFIX_CACHING], 1);
	assert_int_equal(w.page.knob[KNOB_STEP_TARGET], 0);      /* by device */
}

static void test_turn(void **state)
{
	static const struct { uint32_t k; int64_t v; int want; const char *say; } cases[] = { /* in a row */
		{ KNOB_MAX_NUM_SEQS, 4, 0, "" }, { KNOB_MAX_NUM_SEQS, 16, 0, "" },
		{ KNOB_MAX_NUM_SEQS, 17, -ERANGE, "up to 16 sequences" },
		{ KNOB_MAX_NUM_SEQS, 17, -ERANGE, "--knob-ceiling max-num-seqs=17" },
		{ KNOB_MAX_NUM_SEQS, 8, 0, "" }, { KNOB_MAX_NUM_SEQS, 0, -ERANGE, "at "
		        "least 1" },
		{ KNOB_MAX_NUM_SEQS, -1, -ERANGE, "at least 1" }, { KNOB_MAX_NUM_SEQS, INT64_MAX, -ERANGE,
		                                                   "up to 16" },
		{ KNOB_MAX_NUM_SEQS, INT64_MIN, -ERANGE, "at least" },
		{ KNOB_MAX_NUM_BATCHED_TOKENS, 7, -ERANGE, "at least max-num-seqs, which is 8" },
		{ KNOB_MAX_NUM_BATCHED_TOKENS, 8, 0, "" },
		{ KNOB_MAX_NUM_SEQS, 4, 0, "" }, { KNOB_MAX_NUM_BATCHED_TOKENS, 7, 0, "" },
		{ KNOB_MAX_NUM_SEQS, 8, -ERANGE, "at most max-num-batched-tokens, which is 7" },
		{ KNOB_MAX_NUM_SEQS, 7, 0, "" }, { KNOB_MAX_NUM_SEQS, 4, 0, "" },
		{ KNOB_MAX_NUM_BATCHED_TOKENS, 65, -ERANGE, "--knob-ceiling max-num-batched-tokens=65" },
		{ KNOB_LONG_PREFILL, 16, 0, "" }, { KNOB_LONG_PREFILL, 0, 0, "" },
		{ KNOB_POLICY, 1, 0, "" }, { KNOB_POLICY, 2, -ERANGE, "priority" },
		{ KNOB_PREFIX_CACHING, 0, 0, "" }, { KNOB_STEP_TARGET, 2500, 0, "" },
		{ KNOB_STEP_TARGET, 4000001, -ERANGE, "up to 4000 ms" },
		{ N_KNOBS, 1, -EINVAL, "no knob" }, { UINT32_MAX, 1, -EINVAL, "no knob" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int before = w.n_set;
		struct control_answer a = ask(cases[i].k, cases[i].v);

		if (a.result != cases[i].want || !strstr(a.say, cases[i].say) || a.knob != cases[i].k)
			fail_msg("case %zu: %d %s", i, a.result, a.say);
		assert_int_equal(w.n_set - before, a.result == 0);
		if (a.result == 0) {
			assert_int_equal(a.now, cases[i].v);
			assert_int_equal(a.ceiling, w.page.knob_ceiling[cases[i].k]);
			assert_int_equal(w.page.knob[cases[i].k], cases[i].v);
		}
	}
	assert_int_equal(w.page.max_num_seqs, 4);
	assert_int_equal(w.set.max_seqs, 4);             /* all of them, not only the last */
	assert_int_equal(w.set.batch_tokens, 7);
	assert_int_equal(w.set.chunk_max, 64);
	assert_true(!w.set.fcfs && w.set.no_prefix_cache);
	assert_int_equal(w.set.step_ns, 2500000);
	assert_int_equal(w.set.queue_requests, 5);       /* other settings stay */
	assert_int_equal(ask(KNOB_STEP_TARGET, 0).result, 0);
	assert_int_equal(w.set.step_ns, 50000000);       /* 0: by device */
	w.answer = -ERANGE;                              /* the scheduler refuses */
	assert_int_equal(ask(KNOB_MAX_NUM_SEQS, 2).result, -ERANGE);
	assert_int_equal(w.page.knob[KNOB_MAX_NUM_SEQS], 4);
	for (int i = 0, before = w.n_set; i < 40; i++) { /* a connection without a request changes nothing, */
		close(dial());                           /* and frees its place */
		errno = EAGAIN;
		assert_int_equal(ask(N_KNOBS, 1).result, -EINVAL);
		assert_int_equal(w.n_set, before);
	}
}

/* A step target given at start is shown as given. */
static void test_shown_target(void **state)
{
	struct control_config cfg = { .run_dir = w.dir, .knobs = at_start, .seqs_most = 16, .tokens_most = 64,
	                              .step_default_ns = 20000000, .stats = &w.page };
	char err[300];

	(void)state;
	control_destroy(w.c);
	assert_int_equal(control_create(&w.c, &cfg, w.io, NULL, err, sizeof(err)), 0);
	assert_int_equal(w.page.knob[KNOB_STEP_TARGET], 50000);
	assert_int_equal(ask(KNOB_STEP_TARGET, 0).was, 50000);
	assert_int_equal(w.set.step_ns, 20000000);
}

/* Settings read again: all of them, or none. */
static void test_together(void **state)
{
	int64_t v[N_KNOBS] = { [KNOB_MAX_NUM_SEQS] = 3, [KNOB_MAX_NUM_BATCHED_TOKENS] = 5, [KNOB_STEP_TARGET] = 900 };
	unsigned two = 1u << KNOB_MAX_NUM_SEQS | 1u << KNOB_MAX_NUM_BATCHED_TOKENS;
	char say[300];

	(void)state;
	assert_int_equal(control_set(w.c, v, two | 1u << KNOB_STEP_TARGET, say, sizeof(say)), 0);
	assert_int_equal(w.set.max_seqs, 3);
	assert_int_equal(w.set.batch_tokens, 5);
	assert_int_equal(w.set.step_ns, 900000);
	assert_int_equal(w.page.knob[KNOB_STEP_TARGET], 900);
	v[KNOB_MAX_NUM_SEQS] = 2;             /* applied one by one, in either order, one would be invalid */
	v[KNOB_MAX_NUM_BATCHED_TOKENS] = 2;
	assert_int_equal(control_set(w.c, v, two, say, sizeof(say)), 0);
	v[KNOB_MAX_NUM_SEQS] = 4;
	v[KNOB_MAX_NUM_BATCHED_TOKENS] = 1 << 20;
	assert_int_equal(control_set(w.c, v, two, say, sizeof(say)), -ERANGE);
	assert_non_null(strstr(say, "max-num-batched-tokens goes up to"));
	v[KNOB_MAX_NUM_BATCHED_TOKENS] = 3;
	assert_int_equal(control_set(w.c, v, two, say, sizeof(say)), -ERANGE);
	assert_non_null(strstr(say, "max-num-batched-tokens, 3, must be at least max-num-seqs, 4"));
	assert_int_equal(w.set.max_seqs, 2);
	v[KNOB_MAX_NUM_SEQS] = 1;
	w.answer = -ERANGE;
	assert_int_equal(control_set(w.c, v, 1u << KNOB_MAX_NUM_SEQS, say, sizeof(say)), -ERANGE);
	assert_non_null(strstr(say, "the scheduler does not take"));
	assert_int_equal(w.page.knob[KNOB_MAX_NUM_SEQS], 2);
	w.answer = 0;
	assert_int_equal(control_set(w.c, v, 0, say, sizeof(say)), 0);
	assert_int_equal(w.page.knob[KNOB_MAX_NUM_SEQS], 2);
}

/* ---- who asks, and how ------------------------------------------------------------------- */

static void test_nonsense(void **state)
{
	struct control_ask q = { CONTROL_MAGIC, CONTROL_VERSION, 0, 0, 1 };
	struct { size_t n; uint32_t magic, version, zero; int want; } cases[] = {
		{ sizeof(q), 1, CONTROL_VERSION, 0, -EPROTO }, { sizeof(q), CONTROL_MAGIC, 99, 0, -EPROTO },
		{ sizeof(q), CONTROL_MAGIC, CONTROL_VERSION, 5, -EINVAL }, { 1, 0, 0, 0, -EPROTO },
		{ sizeof(q) - 1, CONTROL_MAGIC, CONTROL_VERSION, 0, -EPROTO },
		{ 4000, CONTROL_MAGIC, CONTROL_VERSION, 0, -EPROTO },
	};
	char big[4000] = { 0 };

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct control_answer a;
		int fd = dial();

		q.magic = cases[i].magic, q.version = cases[i].version, q.zero = cases[i].zero;
		memcpy(big, &q, sizeof(q));
		assert_int_equal(send(fd, big, cases[i].n, 0), cases[i].n);
		assert_int_equal(hear(fd, &a), sizeof(a));
		assert_int_equal(a.result, cases[i].want);
		assert_non_null(strstr(a.say, cases[i].want == -EPROTO ? "same version" : "no knob"));
	}
	assert_int_equal(w.n_set, 0);
	close(dial());                                   /* one that leaves at once */
	turns(4);
	assert_int_equal(ask(KNOB_MAX_NUM_SEQS, 3).result, 0);
}

/* Silent ones hold their places for a second, no longer; a ninth connection is refused. */
static void test_deadline(void **state)
{
	struct control_answer a;
	uint64_t end = io_now() + 1500000000u;
	int fd[8], ninth;

	(void)state;
	for (int i = 0; i < 8; i++) {
		fd[i] = dial();
		turns(2);
	}
	ninth = dial();
	assert_int_equal(hear(ninth, &a), 0);
	while (io_now() < end)
		io_sleep(w.io, io_now() + 50000000);
	assert_int_equal(ask(KNOB_MAX_NUM_SEQS, 3).result, 0);
	for (int i = 0; i < 8; i++)
		assert_int_equal(hear(fd[i], &a), 0);
}

/* Pretend to be a uid and group, as the kernel would report them. */
static void test_strangers(void **state)
{
	static const struct {
		struct ucred who;
		bool many;                    /* groups */
		int want;
		const char *say;
	} cases[] = {
		{ { 1, 0, 54321 },     false, 0,      "" },
		{ { 1, 54321, 54321 }, false, -EPERM, "uid 54321 may not" },
		{ { 1, 54321, 0 },     false, -EPERM, "may not" },          /* root's group is not root */
		{ { 1, 54321, 54321 }, true,  -EPERM, "may not" },
	};
	struct group *g = getgrnam("daemon");
	struct control_answer a;
	char err[300];
	int fd;

	(void)state;
	for (int group = 0; group < (g ? 2 : 1); group++) {
		if (group) {
			control_destroy(w.c);
			assert_int_equal(open_control("daemon", err, sizeof(err)), 0);
		}
		for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
			struct control_ask q = { CONTROL_MAGIC, CONTROL_VERSION, KNOB_MAX_NUM_SEQS, 0, 5 };

			w.peer = &cases[i].who;
			w.many_groups = cases[i].many;
			fd = dial();
			assert_int_equal(send(fd, &q, sizeof(q), 0), sizeof(q));
			assert_int_equal(hear(fd, &a), sizeof(a));
			if (a.result != cases[i].want || !strstr(a.say, cases[i].say))
				fail_msg("case %zu: %d %s", i, a.result, a.say);
			if (a.result == -EPERM)
				assert_non_null(strstr(a.say, group ? "members of the group daemon" : "--operator-group"));
		}
		assert_int_equal(w.n_set, group + 1);
	}
	if (g) {
		const struct ucred member = { 1, 54321, g->gr_gid };

		w.peer = &member;
		assert_int_equal(ask(KNOB_MAX_NUM_SEQS, 4).result, 0);
	}
}

/* A client that connects without end is accepted at a fixed rate. */
static void test_dialling(void **state)
{
	const struct ucred stranger = { 1, 54321, 54321 };
	uint64_t begin = io_now(), ms;
	struct control_answer a;
	int n = 0;

	(void)state;
	w.peer = &stranger;
	while (io_now() < begin + 200000000) {
		int fd = dial();

		for (int i = 0; i < 100000 && recv(fd, &a, sizeof(a), MSG_DONTWAIT) < 0; i++)
			io_poll(w.io);
		n++;                          /* it was accepted and answered */
		close(fd);
	}
	ms = (io_now() - begin) / 1000000;
	assert_in_range(n, 1, ms / 10 + 1);
	w.peer = NULL;                        /* an allowed user still gets an answer */
	assert_int_equal(ask(KNOB_MAX_NUM_SEQS, 4).result, 0);
}

/* As another user: 0 allowed, 1 refused with a reason, 2 otherwise. */
static int as_other(uid_t uid, gid_t gid, gid_t more)
{
	struct control_ask q = { CONTROL_MAGIC, CONTROL_VERSION, KNOB_MAX_NUM_SEQS, 0, 5 };
	struct control_answer a = { .result = 1 };
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		struct sockaddr_un to = { .sun_family = AF_UNIX };
		int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

		strcpy(to.sun_path, w.path);
		if (setgroups(1, &more) || setgid(gid) || setuid(uid) ||
		    connect(fd, (struct sockaddr *)&to, sizeof(to)))
			_exit(2);
		send(fd, &q, sizeof(q), MSG_NOSIGNAL);
		if (recv(fd, &a, sizeof(a), 0) != sizeof(a))
			_exit(2);
		_exit(a.result == 0 ? 0 : a.result == -EPERM && strstr(a.say, "may not") ? 1 : 2);
	}
	while (waitpid(pid, &status, WNOHANG) == 0)
		io_sleep(w.io, io_now() + 5000000);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}

static void test_who(void **state)
{
	struct group *g = getgrnam("daemon");
	char err[300];

	(void)state;
	if (geteuid() != 0 || !g) {
		print_message("SKIP: only root can be somebody else\n");
		skip();
	}
	assert_int_equal(as_other(65534, 65534, 65534), 1);
	assert_int_equal(w.n_set, 0);
	control_destroy(w.c);
	assert_int_equal(open_control("daemon", err, sizeof(err)), 0);
	assert_int_equal(as_other(65534, 65534, 65534), 1);
	assert_int_equal(as_other(65534, g->gr_gid, 65534), 0);  /* by its first group, */
	assert_int_equal(as_other(65534, 65534, g->gr_gid), 0);  /* or another */
	assert_int_equal(w.n_set, 2);
}

/* ---- what fails on the way --------------------------------------------------------------- */

/* One call fails once: this peer is dropped without an answer or waits, and the next one is served. */
static void test_faults(void **state)
{
	static const struct { const char *name; int error; bool waits, rests; } cases[] = {
		{ "accept4", EMFILE, true, true }, { "accept4", ENFILE, true, true }, { "accept4", ENOMEM, true, true },
		{ "accept4", ENOBUFS, true, true }, { "accept4", ECONNABORTED, true, false },
		{ "accept4", EAGAIN, true, false },
		{ "peercred", EINVAL, false, false }, { "io_watch_add", ENOMEM, false, false },
		{ "recv", EAGAIN, true, false }, { "recv", EINTR, true, false }, { "recv", ECONNRESET, false, false },
		{ "send", EPIPE, false, false },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct control_ask q = { CONTROL_MAGIC, CONTROL_VERSION, KNOB_MAX_NUM_SEQS, 0, 3 };
		uint64_t began = io_now(), end = began + 3000000000u;
		struct control_answer a;
		ssize_t n;
		int fd = dial();

		assert_int_equal(send(fd, &q, sizeof(q), 0), sizeof(q));
		fail_next(cases[i].name, cases[i].error);
		while (w.fault.name && io_now() < end)
			turns(1);
		assert_null(w.fault.name);
		do {                                     /* answered, or closed */
			turns(1);
			n = __real_recv(fd, &a, sizeof(a), MSG_DONTWAIT);
		} while (n < 0 && errno == EAGAIN && io_now() < end);
		if (cases[i].waits ? n != sizeof(a) : n > 0 || (n < 0 && errno == EAGAIN))
			fail_msg("case %zu, %s: %zd", i, cases[i].name, n);
		if (cases[i].rests)                      /* it does not spin on a socket that stays readable */
			assert_true(io_now() - began > 50000000);
		close(fd);
		assert_int_equal(ask(KNOB_MAX_NUM_SEQS, 4).result, 0);
	}
}

/* A socket that cannot be made: an error sentence, and nothing is left. */
static void test_listen_fails(void **state)
{
	static const struct { const char *name; int error; } cases[] = {
		{ "calloc", ENOMEM }, { "socket", EMFILE }, { "chmod", EPERM }, { "listen", EADDRINUSE },
		{ "io_watch_add", ENOMEM },
	};
	char err[300];
	int first = dup(0), last;

	(void)state;
	close(first);
	control_destroy(NULL);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		control_destroy(w.c);
		w.c = (void *)&w;
		fail_next(cases[i].name, cases[i].error);
		*err = 0;
		assert_int_equal(open_control(NULL, err, sizeof(err)), -cases[i].error);
		assert_true(*err);
		assert_null(w.c);
		assert_null(w.fault.name);
		last = dup(0);
		close(last);
		assert_in_range(last, 0, first);         /* no descriptor is left */
		assert_int_equal(open_control(NULL, err, sizeof(err)), 0);
		assert_int_equal(ask(KNOB_MAX_NUM_SEQS, 4).result, 0);
	}
}

static void test_create_fails(void **state)
{
	struct control_config far = { .run_dir = "/tmp/a-name-much-too-long-for-a-socket/of-which-a-hundred-"
	                              "and-eight-bytes-are-the-most/that-the-kernel-takes",
	                              .knobs = at_start, .stats = &w.page };
	struct control *none;
	struct control *kept = w.c;
	char err[300];

	(void)state;
	assert_int_equal(open_control("no-such-group-here", err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "no-such-group-here"));
	assert_int_equal(control_create(&none, &far, w.io, NULL, err, sizeof(err)), -ENAMETOOLONG);
	assert_non_null(strstr(err, "RUNTIME_DIRECTORY"));
	assert_null(none);
	strcpy(w.dir + 5, "nowhere/at/all");
	assert_int_equal(open_control(NULL, err, sizeof(err)), -ENOENT);
	memset(w.dir + 5, 'x', sizeof(w.dir) - 6);       /* with the name it still fits, */
	assert_int_equal(open_control(NULL, err, sizeof(err)), -ENOENT);
	w.c = kept;
	snprintf(w.dir, sizeof(w.dir), "%.*s", (int)(strrchr(w.path, '/') - w.path), w.path);
}

/* ---- recordings -------------------------------------------------------------------------- */

/* Ask for a recording: the answer, and in *got its memory or -1.  The connection stays open. */
static int ask_record(int64_t what, struct control_answer *a, int *got)
{
	struct control_ask q = { CONTROL_MAGIC, CONTROL_VERSION, CONTROL_RECORD, 0, what };
	char control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = { a, sizeof(*a) };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
	                    .msg_controllen = sizeof(control) };
	int fd = dial();

	memset(a, 0, sizeof(*a));
	*got = -1;
	assert_int_equal(send(fd, &q, sizeof(q), 0), sizeof(q));
	turns(4);
	assert_int_equal(recvmsg(fd, &m, MSG_DONTWAIT), sizeof(*a));
	assert_int_equal(a->magic, CONTROL_MAGIC);
	if (CMSG_FIRSTHDR(&m))
		memcpy(got, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(*got));
	return fd;
}

static void test_record(void **state)
{
	static const struct ucred root = { 1, 0, 0 };
	struct control_ask q = { CONTROL_MAGIC, CONTROL_VERSION, CONTROL_RECORD, 0, 0 };
	struct control_answer a;
	uint64_t end = io_now() + 1200000000u;
	int first, other, map, none;

	(void)state;
	first = ask_record(0, &a, &map);
	assert_int_equal(a.result, 0);
	assert_true(map >= 0 && w.recorder.page && !w.recorder.ids);
	close(map);
	other = ask_record(0, &a, &none);                /* one at a time */
	assert_int_equal(a.result, -EBUSY);
	assert_non_null(strstr(a.say, "another recording is running"));
	assert_int_equal(none, -1);
	close(other);
	while (io_now() < end)                           /* it has no deadline */
		io_sleep(w.io, io_now() + 50000000);
	assert_non_null(w.recorder.page);
	close(first);
	turns(4);
	assert_null(w.recorder.page);                    /* the connection's end is the recording's */
	w.peer = &root;
	first = ask_record(RECORD_IDS, &a, &map);
	assert_int_equal(a.result, 0);
	assert_true(w.recorder.ids);
	assert_int_equal(send(first, &q, sizeof(q), 0), sizeof(q));  /* a second request ends it */
	assert_int_equal(hear(first, &a), sizeof(a));
	assert_int_equal(a.result, -EPROTO);
	assert_null(w.recorder.page);
	close(map);
	first = ask_record(0, &a, &map);                 /* one that lives when the daemon ends */
	assert_int_equal(a.result, 0);
	close(map);
	close(first);
}

static void test_record_refused(void **state)
{
	struct ucred member = { 1, 54321, 0 };
	struct group *g = getgrnam("daemon");
	static const struct { int64_t what; bool member, none; int want; const char *say; } cases[] = {
		{ 2, false, false, -EINVAL, "cannot begin" },
		{ -1, false, false, -EINVAL, "cannot begin" },
		{ 0, false, true, -EINVAL, "cannot begin" },          /* a daemon that has no recorder */
		{ RECORD_IDS, true, false, -EPERM, "may not read prompts" },
	};
	struct control_ask q = { CONTROL_MAGIC, CONTROL_VERSION, CONTROL_RECORD, 7, 0 };
	struct control_answer a;
	char err[300];
	int fd, none;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct control_config cfg = { .run_dir = w.dir, .group = g ? "daemon" : NULL, .knobs = at_start,
		                              .seqs_most = 16, .tokens_most = 64, .stats = &w.page,
		                              .recorder = cases[i].none ? NULL : &w.recorder };

		if (cases[i].member && !g)
			continue;
		control_destroy(w.c);
		assert_int_equal(control_create(&w.c, &cfg, w.io, NULL, err, sizeof(err)), 0);
		member.gid = g ? g->gr_gid : 0;
		w.peer = cases[i].member ? &member : NULL;
		fd = ask_record(cases[i].what, &a, &none);
		if (a.result != cases[i].want || !strstr(a.say, cases[i].say))
			fail_msg("case %zu: %d %s", i, a.result, a.say);
		assert_int_equal(none, -1);
		assert_null(w.recorder.page);
		assert_int_equal(hear(fd, &a), 0);       /* and closed */
	}
	w.peer = NULL;
	fd = dial();
	assert_int_equal(send(fd, &q, sizeof(q), 0), sizeof(q));
	assert_int_equal(hear(fd, &a), sizeof(a));
	assert_int_equal(a.result, -EINVAL);
	assert_null(w.recorder.page);
	if (g) {                                         /* without prompts a member may */
		w.peer = &member;
		close(ask_record(0, &a, &none));
		assert_int_equal(a.result, 0);
		close(none);
		turns(4);
	}
	w.peer = NULL;
	fd = dial();                                     /* it leaves before the answer */
	q.zero = 0;
	assert_int_equal(send(fd, &q, sizeof(q), 0), sizeof(q));
	fail_next("sendmsg", EPIPE);
	assert_int_equal(hear(fd, &a), sizeof(a));
	assert_int_equal(a.result, -EPIPE);
	assert_null(w.recorder.page);
}

/* ---- the settings file ------------------------------------------------------------------- */

static void test_save(void **state)
{
	static const struct { const char *before, *key, *value, *after; } cases[] = { /* NULL: refused */
		{ "", "max-num-seqs", "4", "max-num-seqs: 4\n" },
		{ "a: 1\n", "max-num-seqs", "4", "a: 1\nmax-num-seqs: 4\n" },
		{ "a: 1", "max-num-seqs", "4", "a: 1\nmax-num-seqs: 4\n" },
		{ "max-num-seqs: 128", "max-num-seqs", "4", "max-num-seqs: 4" },
		{ "max_num_seqs:   128\t # few\nb: 2\n", "max-num-seqs", "4", "max_num_seqs: 4\t # few\nb: "
		 "2\n" },
		{ "# max-num-seqs: 9\nb: 2\n", "max-num-seqs", "4", "# max-num-seqs: 9\nb: 2\nmax-num-seqs: "
		 "4\n" },
		{ "max-num-seqs:\nb: 2\n", "max-num-seqs", "4", "max-num-seqs: 4\nb: 2\n" },
		{ "max-num-seqs: \"9\"\r\nb: 2\n", "max-num-seqs", "4", "max-num-seqs: 4\r\nb: 2\n" },
		{ "n:\n  max-num-seqs: 9\n", "max-num-seqs", "4", "n:\n  max-num-seqs: 9\nmax-num-seqs: "
		 "4\n" },
		{ "max-num-seqs-x: 1\n", "max-num-seqs", "4", "max-num-seqs-x: 1\nmax-num-seqs: 4\n" },
		{ "{max-num-seqs: 9}\n", "max-num-seqs", "4", NULL },
		{ "max-num-seqs: 9\nmax_num_seqs: 8\n", "max-num-seqs", "4", NULL },
		{ "max-num-seqs: [1,\n 2]\n", "max-num-seqs", "4", NULL },
		{ "- a list\n", "max-num-seqs", "4", NULL },
		{ "a: |\nmax-num-seqs: 9\n", "max-num-seqs", "4", "a: |\nmax-num-seqs: 4\n" },
	};
	char path[128], link[128], text[400], err[300];
	struct stat st;

	(void)state;
	snprintf(path, sizeof(path), "%s/s.yaml", w.dir);
	snprintf(link, sizeof(link), "%s/link.yaml", w.dir);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *want = cases[i].after ? cases[i].after : cases[i].before;
		int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0640), r;

		assert_int_equal(write(fd, cases[i].before, strlen(cases[i].before)),
		                 strlen(cases[i].before));
		close(fd);
		r = save_key(path, cases[i].key, cases[i].value, err, sizeof(err));
		fd = open(path, O_RDONLY);
		text[read(fd, text, sizeof(text) - 1)] = 0;
		assert_int_equal(fstat(fd, &st), 0);
		close(fd);
		if ((r == 0) != (cases[i].after != NULL) || strcmp(text, want) != 0)
			fail_msg("case %zu: %d %s\n%s", i, r, r ? err : "", text);
		assert_int_equal(st.st_mode & 0777, 0640);
	}
	unlink(path);
	assert_int_equal(save_key(path, "a", "1", err, sizeof(err)), 0);         /* it is made */
	assert_int_equal(symlink("s.yaml", link), 0);
	assert_int_equal(save_key(link, "a", "2", err, sizeof(err)), 0);
	assert_true(lstat(link, &st) == 0 && S_ISLNK(st.st_mode));               /* a link stays one */
	assert_true(stat(path, &st) == 0 && st.st_size == 5);
	unlink(link);
	unlink(path);
	assert_int_equal(save_key(w.dir, "a", "1", err, sizeof(err)), -EINVAL);
	assert_int_equal(save_key("/nowhere/s.yaml", "a", "1", err, sizeof(err)), -ENOENT);
}

/* A message with a descriptor that would end slowly is not even sent. */
static void test_no_descriptors(void **state)
{
	struct control_ask q = { CONTROL_MAGIC, CONTROL_VERSION, KNOB_MAX_NUM_SEQS, 0, 4 };
	struct linger_pair p = { -1, -1 };
	int fd = dial(), may = 1, e;
	socklen_t n = sizeof(may);

	(void)state;
	if (getsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &may, &n) < 0 || !linger_make(&p, 3)) {
		close(fd);
		print_message("SKIP: this kernel has no SO_PASSRIGHTS, or no loopback\n");
		skip();
	}
	e = linger_send(fd, &q, sizeof(q), &p);
	linger_end(&p);
	close(fd);
	assert_int_equal(e, EPERM);
	assert_int_equal(ask(KNOB_MAX_NUM_SEQS, 4).result, 0);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_values), T(test_shown), T(test_turn), T(test_no_descriptors), T(test_shown_target),
		T(test_together), T(test_nonsense), T(test_deadline), T(test_strangers), T(test_dialling), T(test_who),
		T(test_faults), T(test_listen_fails), T(test_create_fails), T(test_record),
		T(test_record_refused), T(test_save),
	};
#undef T

	return cmocka_run_group_tests_name("control", tests, NULL, NULL);
}
