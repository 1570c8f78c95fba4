/* LINK: @daemon shmring/client.c -luring -lhugetlbfs -lxxhash */
/* test_unread.c - what connections leave behind.  The kernel charges an unread welcome's descriptors to the
 * daemon's user, who may have RLIMIT_NOFILE of them in flight.  root is not limited, so each runs as another uid.
 */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/rig/daemon.h"
#include "tests/rig/evil.h"

enum { DAEMON = 65531, NEWCOMER = 65532, HOSTILE = 65534 };
#define FILES  320                    /* RLIMIT_NOFILE of the daemon */
#define SOCKETS 400                   /* two descriptors each */
#define TRIES   60                    /* of a connection with memory of 2 MiB */
#define STRANGERS ((size_t)48 << 20)  /* memory for untrusted clients */

static struct daemon d;
static char path[sizeof(d.path)], said[64];

static bool become(uid_t uid)
{
	struct rlimit r = { FILES, FILES };

	if (uid == DAEMON)
		setrlimit(RLIMIT_NOFILE, &r);
	return setgid(uid) == 0 && setuid(uid) == 0;
}

/* A process of the uid that runs fn and tells when it is done with it; then it stays. */
static pid_t process(uid_t uid, void (*fn)(void))
{
	int done[2];
	char byte = 0;
	pid_t pid;

	assert_int_equal(pipe(done), 0);
	fflush(NULL);
	pid = fork();
	if (!pid) {
		if (!become(uid) || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
			_exit(1);
		fn();
		if (write(done[1], uid == DAEMON ? d.path : "", uid == DAEMON ? sizeof(d.path) : 1) < 0)
			_exit(1);
		for (;;)
			pause();
	}
	close(done[1]);
	if (uid == DAEMON)
		assert_int_equal(read(done[0], path, sizeof(path)), sizeof(path));
	else
		assert_int_equal(read(done[0], &byte, 1), 1);
	close(done[0]);
	return pid;
}

static void end_process(pid_t pid)
{
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void serve(void)
{
	struct clients_config cfg = { .stranger_bytes = STRANGERS };
	int log = open(said, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	if (log < 0 || dup2(log, 2) < 0)
		_exit(1);
	daemon_start(&d, &cfg);
	log_level_by_name("warning");
	if (chmod(d.dir, 0755) < 0 || chmod(d.path, 0666) < 0)
		_exit(1);
}

/* Half of them leave as soon as the welcome is there, the others say that they have mapped it. */
static void leave_unread(void)
{
	struct sr_hello h = { .magic = SR_MAGIC, .version = SR_VERSION, .want = { 32, 64, 4096, 0, 0 } };

	for (int i = 0; i < SOCKETS; i++) {
		struct pollfd p = { .fd = dial(path), .events = POLLIN };

		if (p.fd < 0 || send(p.fd, &h, sizeof(h), MSG_NOSIGNAL) < 0)
			continue;
		poll(&p, 1, 5000);
		if (i % 2)
			sr_signal(p.fd);
		shutdown(p.fd, SHUT_WR);
	}
}

/* What sr_open() says to a process of that uid. */
static int opens(uid_t uid)
{
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (!pid) {
		struct sr_conn *c;

		_exit(become(uid) ? -sr_open(&c, path, NULL) : 255);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return -WEXITSTATUS(status);
}

/* The same, until it is `is`, for 10 s.  The table may be full of connections that wait to be cleared up. */
static int opens_at_last(uid_t uid, int is)
{
	uint64_t until = io_now() + 10000 * MS;
	int e;

	while ((e = opens(uid)) != is && io_now() < until)
		usleep(20000);
	return e;
}

/* Open and close, each time with the largest memory, and keep the descriptors of it. */
static size_t *held;

static void keep_memory(void)
{
	struct sr_shape most = { 1024, 8192, 1 << 20, 0, 0 };
	struct stat st[2];
	struct evil e;

	for (int i = 0; i < TRIES; i++) {
		if (!evil_try(&e, path, most))
			continue;
		if (fstat(e.up_fd, &st[0]) < 0 || fstat(e.down_fd, &st[1]) < 0)
			_exit(1);
		held[0] += (size_t)(st[0].st_blocks + st[1].st_blocks) * 512;
		held[1]++;
		munmap(e.up, e.up_len);
		munmap(e.down, e.down_len);
		close(e.fd);
	}
}

static bool contains(const char *file, const char *what)
{
	static char text[65536];
	FILE *f = fopen(file, "r");
	size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;

	text[n] = '\0';
	if (f)
		fclose(f);
	return strstr(text, what);
}

static void clear_up(void)
{
	unlink(path);
	*strrchr(path, '/') = '\0';
	rmdir(path);
	unlink(said);
}

static void unread_welcomes_shut_nobody_out(void **state)
{
	pid_t daemon, hostile;
	int e = 0;

	(void)state;
	if (geteuid() != 0) {
		print_message("SKIP: it takes root to be three users\n");
		skip();
	}
	snprintf(said, sizeof(said), "/tmp/slipring-unread-%d", (int)getpid());
	daemon = process(DAEMON, serve);
	hostile = process(HOSTILE, leave_unread);
	e = opens_at_last(NEWCOMER, 0);
	print_message("a newcomer beside %d sockets: %s\n", SOCKETS, e ? strerror(-e) : "welcome");
	assert_int_equal(e, 0);
	assert_int_equal(opens_at_last(0, 0), 0);
	assert_int_equal(opens_at_last(HOSTILE, -EUSERS), -EUSERS); /* its places are taken as long as the messages are unread */
	assert_true(contains(said, "uid 65534 has no place for another client"));
	end_process(hostile);
	assert_int_equal(opens_at_last(HOSTILE, 0), 0); /* and no longer */
	end_process(daemon);
	clear_up();
}

/* A uid has its share of the memory, however often it opens and closes, and another has one, too. */
static void closed_connections_count(void **state)
{
	pid_t daemon, hostile;

	(void)state;
	if (geteuid() != 0) {
		print_message("SKIP: it takes root to be three users\n");
		skip();
	}
	held = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	snprintf(said, sizeof(said), "/tmp/slipring-unread-%d", (int)getpid());
	daemon = process(DAEMON, serve);
	hostile = process(HOSTILE, keep_memory);
	print_message("%zu connections, one after the other, left %zu KiB of the %zu for all\n", held[1], held[0] >> 10,
	              STRANGERS >> 10);
	assert_in_range(held[1], 10, TRIES);
	assert_in_range(held[0], 1, STRANGERS);
	assert_true(contains(said, "uid 65534 has no memory for another client"));
	assert_int_equal(opens_at_last(NEWCOMER, 0), 0);
	end_process(hostile);
	end_process(daemon);
	munmap(held, 4096);
	clear_up();
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(unread_welcomes_shut_nobody_out),
		cmocka_unit_test(closed_connections_count) };

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
