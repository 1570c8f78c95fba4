/* LINK: @slipringd shmring/client.c -Wl,--wrap=notify_sendf */
/* test_faults.c - every allocation and every system call of the daemon, its libraries' included, fails once,
 * in turn: while the daemon starts, while a client connects, is served, changes settings and has them
 * read again, while the daemon stops, and in the client.
 *
 * A start with a failure ends with exit code 1 and one sentence why, or goes on if the call was not needed.
 * A daemon that serves survives and serves the next client.  A client gets a -errno.  No process crashes,
 * hangs, or (in a build with AddressSanitizer) leaks.
 *
 *	SLIPRING_FAULTS=1    each of them; otherwise of the many that are alike only some
 */
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/rig/slipringd.h"
#include "tests/rig/one_fault.h"

static int tried, harmless;

/* The log has a line that says what is wrong. */
static bool explained(void)
{
	char line[1024];
	FILE *f = fopen(home.log, "r");
	bool yes = false;

	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		const char *e = strstr(line, " ERROR ");

		yes |= e && strlen(e) > 25 && !strstr(e, "(null)") && !strstr(e, "Success");
	}
	fclose(f);
	return yes;
}

static void show_log(void)
{
	char line[1024];
	FILE *f = fopen(home.log, "r");

	while (f && fgets(line, sizeof(line), f))
		if (!strstr(line, " INFO "))
			print_message("    %s", line);
	if (f)
		fclose(f);
}

static pid_t daemon_start(const char *step_us)
{
	char flags[80];

	snprintf(flags, sizeof(flags), "--config %s/config.yaml", home.dir);
	warden_start();
	return home_start_with(&home, in_child, step_us, flags);
}

static int try_start(int k, int at)
{
	arm(k, at, true);
	return end_of(daemon_start("0"));
}

/* SIGTERM: it must exit with 0. */
static void daemon_stop(pid_t pid)
{
	kill(pid, SIGTERM);
	if (end_of(pid) != 0) {
		show_log();
		fail_msg("the daemon did not end well");
	}
}

static void each_call_of_the_start_fails_once(void **state)
{
	int failed = 0;

	(void)state;
	tried = harmless = 0;
	assert_int_equal(try_start(-1, 0), 0);
	note();
	for (int k = 0; k < N_KINDS; k++)
		for (int at = 1; had[k]; at = next(at, 3)) {
			int code = try_start(k, at);

			if (!fault->hit) {
				assert_int_equal(code, 0);
				break;
			}
			tried++;
			harmless += code == 0;
			if (code == 0 || (code == 1 && explained()))
				continue;
			print_message("%s %d of the start: exit %d\n", kind_name(k), at, code);
			show_log();
			failed++;
		}
	print_message("start: %d faults, %d of them did not matter\n", tried, harmless);
	assert_int_equal(failed, 0);
	assert_true(tried - harmless > 30);
}

static int submit(struct sr_conn *c, uint32_t n, uint32_t *ticket)
{
	static const int32_t ids[20] = { 1, 2, 3 };
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 20, .max_tokens = n,
		.flags = SR_IGNORE_EOS };

	return sr_submit(c, &q, ticket);
}

/* Read to the END: 0, or the -errno of the client's call or of the END. */
static int read_end(struct sr_conn *c)
{
	struct sr_token t = { 0 };
	int e = 0;

	while (e >= 0 && t.kind != SR_END)
		if ((e = sr_next(c, &t)) == 0 && (e = sr_wait(c, SR_WAIT_TOKENS, 3000)) == 0)
			e = -ETIMEDOUT;
	return e < 0 ? e : t.end.finish < 0 ? t.end.finish : 0;
}

/* One request, from connect to END. */
static int one_request(void)
{
	struct sr_conn *c;
	int e = sr_open(&c, home.socket, NULL);

	if (e < 0)
		return e;
	e = submit(c, 10, NULL);
	if (!e)
		e = read_end(c);
	sr_close(c);
	return e;
}

static int try_request(int k, int at)
{
	int e;

	arm(k, at, false);
	fault->on = 1;
	e = one_request();
	fault->on = 0;
	return e;
}

static void each_call_of_a_connection_fails_once(void **state)
{
	pid_t pid;

	(void)state;
	tried = harmless = 0;
	arm(-1, 0, false);
	pid = daemon_start("0");
	sr_close(home_connect(&home, 0, 0));
	assert_int_equal(try_request(-1, 0), 0);
	note();
	for (int k = 0; k < N_KINDS; k++)
		for (int at = 1; had[k] && at < 40; at = next(at, 6)) {
			int e;

			assert_int_equal(one_request(), 0); /* it serves, and nothing is under way */
			e = try_request(k, at);
			if (!fault->hit)
				break;
			tried++;
			harmless += e == 0;
			if (e == -ETIMEDOUT)
				fail_msg("%s %d of a connection: the client waited in vain", kind_name(k), at);
		}
	assert_int_equal(one_request(), 0);
	daemon_stop(pid);
	print_message("connection: %d faults, %d of them did not matter\n", tried, harmless);
	assert_true(tried > 8);
}

/* Ask over the control socket: 0, or -errno: the answer's, or why none came. */
static int turn_knob(int64_t value)
{
	struct control_ask q = { CONTROL_MAGIC, CONTROL_VERSION, KNOB_MAX_NUM_SEQS, 0, value };
	struct timeval patience = { .tv_sec = 3 };
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct control_answer say;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), e;
	ssize_t n;

	snprintf(a.sun_path, sizeof(a.sun_path), "%.60s/" CONTROL_FILE, home.dir);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || send(fd, &q, sizeof(q), MSG_NOSIGNAL) < 0)
		e = -errno;
	else if ((n = recv(fd, &say, sizeof(say), 0)) == sizeof(say))
		e = say.result;
	else
		e = n < 0 && errno == EAGAIN ? -ETIMEDOUT : -ECONNRESET;
	close(fd);
	return e;
}

/* A typical day: a request, a cancelled one, a knob turned, settings read again, a sleep.
 * Returns the worst result; -ETIMEDOUT: something was waited for in vain. */
static int service(struct sr_conn *c, pid_t pid)
{
	uint32_t ticket;
	int said[5] = { submit(c, 10, NULL), 0 }, worst = 0;

	if (!said[0])
		said[0] = read_end(c);
	if (!(said[1] = submit(c, 4000, &ticket)) && !(said[1] = sr_cancel(c, ticket)))
		said[1] = read_end(c);
	said[1] = said[1] == -ECANCELED ? 0 : said[1];
	said[2] = turn_knob(32);
	kill(pid, SIGHUP);
	usleep(3000);                         /* longer than it polls before it sleeps */
	said[3] = turn_knob(64);
	if (!(said[4] = submit(c, 2, NULL)))
		said[4] = read_end(c);
	for (int i = 0; i < 5; i++)
		worst = worst == -ETIMEDOUT || !said[i] ? worst : said[i];
	return worst;
}

static int try_service(int k, int at, struct sr_conn *c, pid_t pid)
{
	int e;

	arm(k, at, false);
	fault->on = 1;
	e = service(c, pid);
	fault->on = 0;
	return e;
}

static void each_call_of_the_service_fails_once(void **state)
{
	struct sr_conn *c;
	pid_t pid;

	(void)state;
	tried = harmless = 0;
	arm(-1, 0, false);
	pid = daemon_start("0");
	c = home_connect(&home, 0, 0);
	assert_int_equal(try_service(-1, 0, c, pid), 0);
	note();
	for (int k = 0; k < N_KINDS; k++)
		for (int at = 1; had[k] && at < 60; at = next(at, 6)) {
			int e;

			assert_int_equal(service(c, pid), 0);
			e = try_service(k, at, c, pid);
			if (!fault->hit)
				break;
			tried++;
			harmless += e == 0;
			if (e == -ETIMEDOUT)
				fail_msg("%s %d of the service: somebody waited in vain", kind_name(k), at);
			if (submit(c, 1, NULL) < 0 || read_end(c) < 0) { /* it was dropped: connect again */
				sr_close(c);
				c = home_connect(&home, 0, 0);
			}
		}
	assert_int_equal(service(c, pid), 0);
	sr_close(c);
	daemon_stop(pid);
	print_message("service: %d faults, %d of them did not matter\n", tried, harmless);
	assert_true(tried > 20);
}

/* SIGTERM with a request under way: the daemon ends and the client is told.  Returns the exit code; *e: what
 * the client got. */
static int try_stop(int k, int at, int *e)
{
	struct sr_conn *c;
	pid_t pid;
	int code;

	arm(k, at, false);
	pid = daemon_start("20");
	c = home_connect(&home, 0, 0);
	assert_int_equal(submit(c, 200, NULL), 0);
	fault->on = 1;
	assert_int_equal(kill(pid, SIGTERM), 0);
	*e = read_end(c);
	code = end_of(pid);
	sr_close(c);
	return code;
}

static void each_call_of_the_stop_fails_once(void **state)
{
	int e;

	(void)state;
	tried = harmless = 0;
	assert_int_equal(try_stop(-1, 0, &e), 0);
	note();
	for (int k = 0; k < N_KINDS; k++)
		for (int at = 1; had[k]; at = next(at, 6)) {
			int code = try_stop(k, at, &e);

			if (e == -ETIMEDOUT || code != 0) {
				show_log();
				fail_msg("%s %d of the stop: exit %d, the client got %d", kind_name(k), at, code, e);
			}
			if (!fault->hit)
				break;
			tried++;
			harmless += e == 0;
		}
	print_message("stop: %d faults, %d of them did not matter\n", tried, harmless);
	assert_true(tried > 0);
}

static int open_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

enum { SERVED, REFUSED, IN_VAIN, LEFT_OPEN, NO_ERRNO };

/* In a child, because a seccomp filter cannot be removed. */
static int client(int k, int at)
{
	int fds, e;
	pid_t pid;

	arm(k, at, false);
	warden_start();
	pid = fork();
	if (pid)
		return end_of(pid);
	alarm(30);
	in_child();
	fds = open_fds();
	fault->on = 1;
	e = one_request();
	fault->on = 0;
	exit(open_fds() != fds ? LEFT_OPEN : e == -ETIMEDOUT ? IN_VAIN : e < -4095 ? NO_ERRNO :
	     e ? REFUSED : SERVED);
}

static void each_call_of_the_client_fails_once(void **state)
{
	pid_t pid;

	(void)state;
	tried = harmless = 0;
	arm(-1, 0, false);
	pid = home_start(&home, NULL, "0");
	sr_close(home_connect(&home, 0, 0));
	assert_int_equal(client(-1, 0), SERVED);
	note();
	for (int k = 0; k < N_KINDS; k++)
		for (int at = 1; had[k]; at++) {
			int end = client(k, at);

			if (end != SERVED && end != REFUSED)
				fail_msg("%s %d of a client: %d", kind_name(k), at, end);
			if (!fault->hit)
				break;
			tried++;
			harmless += end == SERVED;
		}
	assert_int_equal(one_request(), 0);
	assert_int_equal(home_stop(pid), 0);
	print_message("client: %d faults, %d of them did not matter\n", tried, harmless);
	assert_true(tried - harmless >= 4);
}

static int setup(void **state)
{
	(void)state;
	home_make(&home);
	home_write(home.dir, "config.yaml", "max-num-seqs: 64\nserved-model-name: [one, two]\n");
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_call_of_the_start_fails_once),
		cmocka_unit_test(each_call_of_a_connection_fails_once),
		cmocka_unit_test(each_call_of_the_service_fails_once),
		cmocka_unit_test(each_call_of_the_stop_fails_once),
		cmocka_unit_test(each_call_of_the_client_fails_once),
	};

	if (!can_fault()) {
		print_message("SKIP: no seccomp that lets a process judge another's system calls\n");
		return 0;
	}
	return cmocka_run_group_tests(tests, setup, home_teardown);
}
