/* LINK: core/instance/notify.c core/instance/log.c */
/* test_notify.c - the service manager's messages and sockets, and the lines of the log. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/instance/log.h"
#include "core/instance/notify.h"

static void set(const char *name, const char *value)
{
	if (value)
		setenv(name, value, 1);
	else
		unsetenv(name);
}

/* ---- sd_notify --------------------------------------------------------------------------- */

static int hear_at(const char *path, char *name)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_DGRAM, 0);

	memcpy(a.sun_path, path, strlen(path));
	strcpy(name, path);
	if (path[0] == '@')
		a.sun_path[0] = 0;
	assert_int_equal(bind(fd, (struct sockaddr *)&a,
	                      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path))), 0);
	set("NOTIFY_SOCKET", name);
	return fd;
}

static void test_send(void **state)
{
	char dir[] = "/tmp/test-notify-XXXXXX", path[100], name[100], got[600];

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/s", dir);
	for (int abstract = 0; abstract < 2; abstract++) {
		int fd = hear_at(abstract ? "@test-notify-slipring" : path, name);

		assert_int_equal(notify_send("READY=1\nSTATUS=x"), 0);
		assert_int_equal(recv(fd, got, sizeof(got), MSG_DONTWAIT), 16);
		assert_memory_equal(got, "READY=1\nSTATUS=x", 16);
		assert_int_equal(notify_sendf("STATUS=%d %%", 42), 0);
		assert_int_equal(recv(fd, got, sizeof(got), MSG_DONTWAIT), 11);
		assert_memory_equal(got, "STATUS=42 %", 11);
		assert_int_equal(notify_reloading(), 0);         /* a time of CLOCK_MONOTONIC, in us */
		memset(got, 0, sizeof(got));
		assert_in_range(recv(fd, got, sizeof(got) - 1, MSG_DONTWAIT), 27, 50);
		assert_memory_equal(got, "RELOADING=1\nMONOTONIC_USEC=", 27);
		assert_in_range(strtoll(got + 27, NULL, 10), 1, (uintmax_t)time(NULL) * 1000000);
		assert_int_equal(notify_sendf("%0900d", 1), 0);  /* cut, never overrun */
		assert_int_equal(recv(fd, got, sizeof(got), MSG_DONTWAIT), 511);
		close(fd);
	}
	assert_int_equal(notify_send("X=1"), -ECONNREFUSED);     /* the receiver is gone */
	unlink(path);
	rmdir(dir);
}

static void test_send_nowhere(void **state)
{
	static const struct { const char *to; int want; } cases[] = {
		{ NULL, 0 }, { "", 0 }, { "relative", -EINVAL }, { "/nowhere/at/all", -ENOENT },
		{ "/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
		  "xxxxxxxxxxxx", -EINVAL },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		set("NOTIFY_SOCKET", cases[i].to);
		if (notify_send("READY=1") != cases[i].want)
			fail_msg("case %zu", i);
	}
	set("NOTIFY_SOCKET", NULL);
}

static void test_watchdog(void **state)
{
	char me[20];
	struct { const char *usec, *pid; uint64_t want; } cases[] = {
		{ NULL, NULL, 0 }, { "10000000", NULL, 5000000000u }, { "10000000", me, 5000000000u },
		{ "10000000", "1", 0 }, { "0", NULL, 0 }, { "x", NULL, 0 }, { "-5", NULL, 0 }, { "5x", NULL,
		        0 },
		{ "99999999999999999999", NULL, 0 }, { "18446744073709551615", NULL, 0 },
	};

	(void)state;
	snprintf(me, sizeof(me), "%d", (int)getpid());
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		set("WATCHDOG_USEC", cases[i].usec);
		set("WATCHDOG_PID", cases[i].pid);
		if (notify_watchdog_ns() != cases[i].want)
			fail_msg("case %zu: %llu", i, (unsigned long long)notify_watchdog_ns());
	}
}

/* ---- sockets passed ---------------------------------------------------------------------- */

static void test_socket(void **state)
{
	char me[20];
	struct { const char *pid, *fds, *names, *name; int want; } cases[] = {
		{ me, "1", NULL, NULL, 3 }, { me, "1", "slipring", "slipring", 3 },
		{ me, "2", "http:slipring", "slipring", 4 }, { me, "2", "http:slipring", "http", 3 },
		{ me, "2", "http:slipring", NULL, -ENOENT }, /* which of them? */
		{ me, "2", "http:slipring", "slip", -ENOENT }, { me, "2", "http", "slipring", -ENOENT },
		{ me, "2", NULL, "slipring", -ENOENT }, { me, "0", NULL, NULL, -ENOENT },
		{ me, "65", NULL, NULL, -ENOENT }, { me, "x", NULL, NULL, -ENOENT },
		{ "1", "1", NULL, NULL, -ENOENT }, { NULL, "1", NULL, NULL, -ENOENT },
		{ me, NULL, NULL, NULL, -ENOENT }, { me, "3", "::a", "a", 5 },
	};
	int keep[3];

	(void)state;
	snprintf(me, sizeof(me), "%d", (int)getpid());
	for (int i = 0; i < 3; i++)               /* 3, 4 and 5 are in use here */
		keep[i] = fcntl(3 + i, F_DUPFD_CLOEXEC, 100);
	for (int i = 0; i < 3; i++)
		assert_int_equal(dup2(STDERR_FILENO, 3 + i), 3 + i);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int fd;

		set("LISTEN_PID", cases[i].pid);
		set("LISTEN_FDS", cases[i].fds);
		set("LISTEN_FDNAMES", cases[i].names);
		fd = notify_socket(cases[i].name);
		if (fd != cases[i].want)
			fail_msg("case %zu: %d", i, fd);
		if (fd >= 0)
			assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
	}
	for (int i = 0; i < 3; i++) {
		close(3 + i);
		if (keep[i] >= 0) {
			dup2(keep[i], 3 + i);
			close(keep[i]);
		}
	}
	set("LISTEN_PID", NULL);
	set("LISTEN_FDS", NULL);
	set("LISTEN_FDNAMES", NULL);
}

/* ---- the log ----------------------------------------------------------------------------- */

/* What one call writes to stderr. */
static size_t logged(char *out, size_t n, enum log_level level, const char *text)
{
	int p[2], old = dup(STDERR_FILENO);
	ssize_t got;

	assert_int_equal(pipe2(p, O_NONBLOCK), 0);
	dup2(p[1], STDERR_FILENO);
	log_open("prog");
	log_line(level, "%s", text);
	dup2(old, STDERR_FILENO);
	log_open("prog");
	got = read(p[0], out, n - 1);
	close(old);
	close(p[0]);
	close(p[1]);
	out[got > 0 ? got : 0] = 0;
	return got > 0 ? (size_t)got : 0;
}

static void test_log(void **state)
{
	char got[8192], long_text[6000], want[80];

	(void)state;
	set("JOURNAL_STREAM", NULL);
	log_open("prog");
	assert_true(logged(got, sizeof(got), LOG_WARN, "text") > 0);
	snprintf(want, sizeof(want), " prog[%d] WARN text\n", (int)getpid());
	assert_non_null(strstr(got, want));
	assert_int_equal(strspn(got, "0123456789-:. "), strlen("2026-01-31 12:00:00.123 "));
	assert_int_equal(logged(got, sizeof(got), LOG_DEBUG, "text"), 0);
	log_level_by_name("debug");
	assert_true(logged(got, sizeof(got), LOG_DEBUG, "text") > 0);
	log_level_by_name("error");
	assert_int_equal(logged(got, sizeof(got), LOG_WARN, "text"), 0);
	log_level_by_name("info");
	set("JOURNAL_STREAM", "8:1");
	log_open("prog");
	assert_true(logged(got, sizeof(got), LOG_ERROR, "two\nlines\033[2J") > 0);
	assert_string_equal(got, "<3>two lines [2J\n");          /* one event, one line */
	assert_true(logged(got, sizeof(got), LOG_INFO, "") == 4);
	memset(long_text, 'x', sizeof(long_text) - 1);
	long_text[sizeof(long_text) - 1] = 0;
	assert_in_range(logged(got, sizeof(got), LOG_INFO, long_text), 1000, 2048);
	assert_int_equal(got[strlen(got) - 1], '\n');            /* cut, and still one line */
	assert_non_null(strstr(got, "<6>xxx"));
}

/* The whole lines in it, and how many lines it reports as lost. */
static unsigned long lines_in(int fd, unsigned long *lost)
{
	static char text[1 << 20];
	unsigned long lines = 0;
	size_t n = 0;
	ssize_t r;

	fcntl(fd, F_SETFL, O_NONBLOCK);
	while (n < sizeof(text) - 1 && (r = read(fd, text + n, sizeof(text) - 1 - n)) > 0)
		n += (size_t)r;
	text[n] = 0;
	for (char *s = text, *end; (end = strchr(s, '\n')); s = end + 1) {
		char *was;

		*end = 0;
		was = strstr(s, "WARN ");
		if (was && strstr(was, " lines of this log are lost"))
			*lost += strtoul(was + 5, NULL, 10);
		else
			lines++;
	}
	return lines;
}

/* stderr is never read: no line waits for room, and every lost one is counted. */
static void test_nobody_reads(void **state)
{
	enum { LINES = 20000, WRITERS = 4 };
	enum kind { PIPE, FOREIGN_PIPE, SOCKET, TERMINAL, SEVERAL, N_KINDS };

	(void)state;
	set("JOURNAL_STREAM", NULL);
	for (enum kind k = PIPE; k < N_KINDS; k++) {
		int p[2], old = dup(STDERR_FILENO);
		unsigned long lost = 0, here, writers = k == SEVERAL ? WRITERS : 1;

		if (k == SOCKET)
			assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, p), 0);
		else if (k == TERMINAL && openpty(&p[0], &p[1], NULL, NULL, NULL) != 0) {
			print_message("SKIP: no terminal nobody reads: openpty: %s\n", strerror(errno));
			close(old);
			continue;
		} else if (k != TERMINAL)
			assert_int_equal(pipe(p), 0);
		if (k == FOREIGN_PIPE) {              /* opened by path */
			FILE *f = tmpfile();

			assert_non_null(f);
			dup2(fileno(f), STDERR_FILENO);
			fclose(f);
			log_open("prog");
		}
		dup2(p[1], STDERR_FILENO);
		if (k != FOREIGN_PIPE)
			log_open("prog");
		fflush(NULL);
		for (unsigned long i = 0; i < writers; i++) {
			pid_t pid = fork();

			if (pid)
				continue;
			alarm(20);
			for (int j = 0; j < LINES; j++)
				log_line(LOG_INFO, "line %d of many", j);
			_exit(0);
		}
		for (unsigned long i = 0; i < writers; i++) {
			int status;

			assert_true(wait(&status) > 0);
			if (status)
				fail_msg("kind %d: a writer waited for who does not read", k);
		}
		dup2(old, STDERR_FILENO);
		log_open("prog");
		here = lines_in(p[0], &lost);
		assert_in_range(here + lost, 10, LINES * writers - 1);
		close(old);
		close(p[0]);
		close(p[1]);
	}
}

/* There is room again: the number of lost lines is reported once. */
static void test_lost(void **state)
{
	int p[2], old = dup(STDERR_FILENO);
	unsigned long lost = 0, here;

	(void)state;
	assert_int_equal(pipe(p), 0);
	dup2(p[1], STDERR_FILENO);
	log_open("prog");
	for (int i = 0; i < 5000; i++)
		log_line(LOG_INFO, "line %d", i);
	here = lines_in(p[0], &lost);
	assert_in_range(here, 10, 4999);
	assert_int_equal(lost, 0);
	log_line(LOG_INFO, "one more");
	log_line(LOG_INFO, "and one");
	dup2(old, STDERR_FILENO);
	log_open("prog");
	assert_int_equal(lines_in(p[0], &lost), 2);
	assert_int_equal(here + lost, 5000);
	close(old);
	close(p[0]);
	close(p[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_send), cmocka_unit_test(test_send_nowhere),
			cmocka_unit_test(test_watchdog),
		cmocka_unit_test(test_socket), cmocka_unit_test(test_log),
		cmocka_unit_test(test_nobody_reads), cmocka_unit_test(test_lost),
	};

	return cmocka_run_group_tests_name("notify", tests, NULL, NULL);
}
