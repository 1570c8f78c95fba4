/* LINK: SLIPRINGD shmring/client.c -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=posix_memalign,--wrap=aligned_alloc,--wrap=mmap,--wrap=open,--wrap=fopen,--wrap=read,--wrap=pread,--wrap=memfd_create,--wrap=ftruncate,--wrap=socket,--wrap=bind,--wrap=listen,--wrap=getrandom,--wrap=io_uring_queue_init_params,--wrap=io_uring_submit,--wrap=io_uring_submit_and_wait_timeout,--wrap=madvise,--wrap=eventfd,--wrap=fstat,--wrap=accept4,--wrap=getsockopt,--wrap=connect,--wrap=send,--wrap=sendmsg,--wrap=recvmsg,--wrap=recv,--wrap=notify_sendf */
/* test_faults.c - every allocation, mapping, open, read, socket call and io_uring submission of ours
 * fails once, in turn: while the daemon starts, while a client comes, while it is served, asks for
 * settings and has them read again, while the daemon stops, and in the client.
 *
 * A start that is hit ends with exit code 1 and one sentence why, or starts all the same where the
 * thing was one it can do without.  A daemon that serves lives on and serves the next client.  A
 * client gets a -errno.  Nobody crashes, hangs, or (in a build with AddressSanitizer) leaks.
 *
 *	SLIPRING_FAULTS=1    each one with AddressSanitizer, too
 */
#include <fcntl.h>

#include "tests/slipringd.h"
#include "tests/one_fault.h"

enum { N_OURS = THREAD };             /* the daemon makes no threads here, and no TLS */

WRAP(MEMORY, ENOMEM, NULL, void *, aligned_alloc, (size_t a, size_t n), (a, n))
WRAP(MEMORY, ENOMEM, ENOMEM, int, posix_memalign, (void **out, size_t a, size_t n), (out, a, n))
WRAP(MAPPING, EMFILE, -1, int, memfd_create, (const char *name, unsigned flags), (name, flags))
WRAP(MAPPING, ENOSPC, -1, int, ftruncate, (int fd, off_t n), (fd, n))
WRAP(READ, EIO, -1, ssize_t, pread, (int fd, void *to, size_t n, off_t o), (fd, to, n, o))
WRAP(SOCKET, EADDRINUSE, -1, int, bind, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
WRAP(SOCKET, EADDRINUSE, -1, int, listen, (int fd, int n), (fd, n))
WRAP(MAPPING, ENOMEM, -1, int, madvise, (void *at, size_t n, int advice), (at, n, advice))

static int tried, harmless;

/* Each; with AddressSanitizer, which is slow, of many only some, for the later ones are alike. */
static int next(int at)
{
#ifdef __SANITIZE_ADDRESS__
	if (!getenv("SLIPRING_FAULTS") && at >= 12)
		return at + at / 6;
#endif
	return at + 1;
}

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

static void each_call_of_the_start_fails_once(void **state)
{
	int failed = 0;

	(void)state;
	tried = harmless = 0;
	for (int k = 0; k < N_OURS; k++)
		for (int at = 1;; at = next(at)) {
			int code;

			arm((enum kind)k, at, true);
			code = end_of(home_start(&home, in_child, "0"));
			if (!fault->hit) {
				assert_int_equal(code, 0);
				break;
			}
			tried++;
			harmless += code == 0;
			if (code == 0 || (code == 1 && explained()))
				continue;
			print_message("%s %d of the start: exit %d\n", kind_name[k], at, code);
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

/* Read to the END: 0, or the -errno that the client got, or that it ended with. */
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

static void each_call_of_a_connection_fails_once(void **state)
{
	pid_t pid;

	(void)state;
	tried = harmless = 0;
	arm(MEMORY, 0, false);
	pid = home_start(&home, in_child, "0");
	sr_close(home_connect(&home, 0, 0));
	for (int k = 0; k < N_OURS; k++)
		for (int at = 1; at < 40; at++) {
			int e;

			assert_int_equal(one_request(), 0); /* it is well, and nothing is under way */
			arm((enum kind)k, at, false);
			fault->on = 1;
			e = one_request();
			fault->on = 0;
			if (!fault->hit)
				break;
			tried++;
			harmless += e == 0;
			if (e == -ETIMEDOUT)
				fail_msg("%s %d of a connection: the client waited in vain", kind_name[k], at);
		}
	assert_int_equal(one_request(), 0);
	if (home_stop(pid) != 0) {
		show_log();
		fail_msg("the daemon did not end well");
	}
	print_message("connection: %d faults, %d of them did not matter\n", tried, harmless);
	assert_true(tried > 8);
}

/* Ask over the control socket: 0, or -errno, what was answered or why nothing was. */
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

/* What a day brings: a request, one that is cancelled, a knob turned, settings read again, a sleep.
 * The worst that came of it: -ETIMEDOUT if somebody waited in vain. */
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
	usleep(3000);                         /* longer than it looks before it sleeps */
	said[3] = turn_knob(64);
	if (!(said[4] = submit(c, 2, NULL)))
		said[4] = read_end(c);
	for (int i = 0; i < 5; i++)
		worst = worst == -ETIMEDOUT || !said[i] ? worst : said[i];
	return worst;
}

static void each_call_of_the_service_fails_once(void **state)
{
	struct sr_conn *c;
	pid_t pid;

	(void)state;
	tried = harmless = 0;
	arm(MEMORY, 0, false);
	pid = home_start(&home, in_child, "0");
	c = home_connect(&home, 0, 0);
	for (int k = 0; k < N_OURS; k++)
		for (int at = 1; at < 60; at = next(at)) {
			int e;

			assert_int_equal(service(c, pid), 0);
			arm((enum kind)k, at, false);
			fault->on = 1;
			e = service(c, pid);
			fault->on = 0;
			if (!fault->hit)
				break;
			tried++;
			harmless += e == 0;
			if (e == -ETIMEDOUT)
				fail_msg("%s %d of the service: somebody waited in vain", kind_name[k], at);
			if (submit(c, 1, NULL) < 0 || read_end(c) < 0) { /* it was dropped: another one */
				sr_close(c);
				c = home_connect(&home, 0, 0);
			}
		}
	assert_int_equal(service(c, pid), 0);
	sr_close(c);
	if (home_stop(pid) != 0) {
		show_log();
		fail_msg("the daemon did not end well");
	}
	print_message("service: %d faults, %d of them did not matter\n", tried, harmless);
	assert_true(tried > 20);
}

/* SIGTERM with a request under way: it ends, the client hears, the exit code is 0. */
static void each_call_of_the_stop_fails_once(void **state)
{
	(void)state;
	tried = harmless = 0;
	for (int k = 0; k < N_OURS; k++)
		for (int at = 1;; at = next(at)) {
			struct sr_conn *c;
			pid_t pid;
			int e, code;

			arm((enum kind)k, at, false);
			pid = home_start(&home, in_child, "20");
			c = home_connect(&home, 0, 0);
			assert_int_equal(submit(c, 200, NULL), 0);
			fault->on = 1;
			assert_int_equal(kill(pid, SIGTERM), 0);
			e = read_end(c);
			code = end_of(pid);
			fault->on = 0;
			sr_close(c);
			if (e == -ETIMEDOUT || code != 0) {
				show_log();
				fail_msg("%s %d of the stop: exit %d, the client got %d", kind_name[k], at, code, e);
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

static void each_call_of_the_client_fails_once(void **state)
{
	int fds;
	pid_t pid;

	(void)state;
	tried = harmless = 0;
	arm(MEMORY, 0, false);
	pid = home_start(&home, NULL, "0");
	sr_close(home_connect(&home, 0, 0));
	fds = open_fds();
	for (int k = 0; k < N_OURS; k++)
		for (int at = 1;; at++) {
			int e;

			arm((enum kind)k, at, false);
			mine = true;
			fault->on = 1;
			e = one_request();
			fault->on = 0;
			mine = false;
			if (!fault->hit)
				break;
			tried++;
			harmless += e == 0;
			if (e < -4095)
				fail_msg("%s %d of a client: %d is no -errno", kind_name[k], at, e);
			assert_int_equal(open_fds(), fds);
		}
	assert_int_equal(one_request(), 0);
	assert_int_equal(home_stop(pid), 0);
	print_message("client: %d faults, %d of them did not matter\n", tried, harmless);
	assert_true(tried - harmless >= 4);
}

static int setup(void **state)
{
	(void)state;
	fault = home_share(sizeof(*fault));
	home_make(&home);
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

	return cmocka_run_group_tests(tests, setup, home_teardown);
}
