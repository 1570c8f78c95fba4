/* LINK: core/control.c core/record.c core/knobs.c core/io.c core/log.c core/stats.c tools/save.c -luring -lxxhash -lyaml */
/* test_control.c - knobs: what is taken as a value, who may turn one and how far, and what becomes of
 * a settings file.  The scheduler is a stand-in that remembers what it was given. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/control.h"
#include "core/knobs.h"
#include "tools/save.h"

static struct {
	char dir[64], path[128];
	struct io *io;
	struct stats_page page;
	struct control *c;
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

static const struct sched_knobs at_start = { .max_seqs = 8, .batch_tokens = 64, .chunk_max = 64,
	.queue_requests = 5, .queue_tokens = 6, .quantum = 7, .step_ns = 50000000, .fcfs = true };

static int open_control(const char *group, char *err, size_t errlen)
{
	struct control_config cfg = { .run_dir = w.dir, .group = group, .knobs = at_start,
	                              .seqs_most = 16, .tokens_most = 64,
	                              .step_default_ns = 50000000, .stats = &w.page };

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
	assert_int_equal(access(w.path, F_OK), -1);      /* it takes its socket along */
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

static void turns(int n)
{
	while (n--)
		io_sleep(w.io, io_now() + 2000000);
}

/* Bytes received, 0: closed without an answer. */
static ssize_t hear(int fd, struct control_answer *a)
{
	ssize_t n;

	memset(a, 0, sizeof(*a));
	turns(4);
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
		{ KNOB_MAX_NUM_SEQS, 4, 0, "" }, { KNOB_MAX_NUM_BATCHED_TOKENS, 7, 0, "" },
		{ KNOB_MAX_NUM_SEQS, 8, -ERANGE, "at most max-num-batched-tokens, which is 7" },
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

		if (a.result != cases[i].want || !strstr(a.say, cases[i].say))
			fail_msg("case %zu: %d %s", i, a.result, a.say);
		assert_int_equal(w.n_set - before, a.result == 0);
		if (a.result == 0) {
			assert_int_equal(a.now, cases[i].v);
			assert_int_equal(w.page.knob[cases[i].k], cases[i].v);
		}
	}
	assert_int_equal(w.page.max_num_seqs, 4);
	assert_int_equal(w.set.max_seqs, 4);             /* all of them, not only the last */
	assert_int_equal(w.set.batch_tokens, 7);
	assert_int_equal(w.set.chunk_max, 64);
	assert_true(!w.set.fcfs && w.set.no_prefix_cache);
	assert_int_equal(w.set.step_ns, 2500000);
	assert_int_equal(w.set.queue_requests, 5);       /* and what is no knob stays */
	assert_int_equal(ask(KNOB_STEP_TARGET, 0).result, 0);
	assert_int_equal(w.set.step_ns, 50000000);       /* 0: by device */
	w.answer = -ERANGE;                              /* the scheduler has the last word */
	assert_int_equal(ask(KNOB_MAX_NUM_SEQS, 2).result, -ERANGE);
	assert_int_equal(w.page.knob[KNOB_MAX_NUM_SEQS], 4);
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
	v[KNOB_MAX_NUM_SEQS] = 2;             /* in one order or the other, either alone would be wrong */
	v[KNOB_MAX_NUM_BATCHED_TOKENS] = 2;
	assert_int_equal(control_set(w.c, v, two, say, sizeof(say)), 0);
	v[KNOB_MAX_NUM_SEQS] = 4;
	v[KNOB_MAX_NUM_BATCHED_TOKENS] = 1 << 20;
	assert_int_equal(control_set(w.c, v, two, say, sizeof(say)), -ERANGE);
	assert_non_null(strstr(say, "max-num-batched-tokens goes up to"));
	v[KNOB_MAX_NUM_BATCHED_TOKENS] = 3;
	assert_int_equal(control_set(w.c, v, two, say, sizeof(say)), -ERANGE);
	assert_non_null(strstr(say, "max-num-batched-tokens, 3, is at least max-num-seqs, 4"));
	assert_int_equal(w.set.max_seqs, 2);
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
	}
	assert_int_equal(w.n_set, 0);
	close(dial());                                   /* one that leaves at once */
	turns(4);
	assert_int_equal(ask(KNOB_MAX_NUM_SEQS, 3).result, 0);
}

/* Silent ones hold their places for a second, no longer; a ninth is turned away. */
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

/* As another user: 0 may, 1 may not, and was told why; 2 otherwise. */
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

static void test_create_fails(void **state)
{
	struct control *kept = w.c;
	char err[300];

	(void)state;
	assert_int_equal(open_control("no-such-group-here", err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "no-such-group-here"));
	strcpy(w.dir + 5, "nowhere/at/all");
	assert_int_equal(open_control(NULL, err, sizeof(err)), -ENOENT);
	memset(w.dir + 5, 'x', sizeof(w.dir) - 6);       /* with the name it is still short enough, */
	assert_int_equal(open_control(NULL, err, sizeof(err)), -ENOENT);
	w.c = kept;
	snprintf(w.dir, sizeof(w.dir), "%.*s", (int)(strrchr(w.path, '/') - w.path), w.path);
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

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_values), T(test_shown), T(test_turn), T(test_together), T(test_nonsense),
			T(test_deadline),
		T(test_who), T(test_create_fails), T(test_save),
	};
#undef T

	return cmocka_run_group_tests_name("control", tests, NULL, NULL);
}
