/* LINK: @slipringd shmring/client.c -Wl,--wrap=clock_gettime,--wrap=sr_backend_find,--wrap=connect */
/* test_main.c - the daemon as its operator and service manager see it: refused starts and their words,
 * reports on a terminal and elsewhere, ends, and resources that it can do without.
 *
 * It runs in a child of the test (slipringd.h), on a clock that the test can advance, and on a device
 * that the test can make fail.
 */
#include <grp.h>
#include <poll.h>
#include <pty.h>
#include <pwd.h>
#include <sys/un.h>
#include <time.h>

#include "tests/rig/slipringd.h"

/* Shared with the child. */
static struct world {
	_Atomic int64_t jump_ns;       /* its monotonic clock is ahead of ours by this, */
	_Atomic int64_t each_ns;       /* and by this more at each reading */
	_Atomic bool lost;             /* the device */
	_Atomic int64_t hangs;         /* until jump_ns is this */
	_Atomic int64_t computes;      /* until then it reports a layer a second */
	_Atomic bool told;             /* signals a finished batch by an eventfd */
	_Atomic int read;              /* pieces of its weights, while it is opened slowly */
	bool alone, signals, no_room;  /* the device computes by itself; can signal; cannot be opened, */
	bool slow;                     /* or in half a minute */
	int dials;                     /* connect() fails with this errno; ENOENT: the socket is gone */
} *world;
static bool mine;                      /* in this process */
static int pty, manager;               /* a terminal, the service manager's socket */

int __real_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t)
{
	int r = __real_clock_gettime(id, t);

	if (mine && id == CLOCK_MONOTONIC) {
		int64_t ns = (world->jump_ns += world->each_ns) + t->tv_nsec;

		t->tv_sec += ns / 1000000000;
		t->tv_nsec = ns % 1000000000;
	}
	return r;
}

int __real_connect(int fd, const struct sockaddr *a, socklen_t n);
int __wrap_connect(int fd, const struct sockaddr *a, socklen_t n);
int __wrap_connect(int fd, const struct sockaddr *a, socklen_t n)
{
	if (!mine || !world->dials)
		return __real_connect(fd, a, n);
	if (world->dials == ENOENT)
		assert_int_equal(unlink(((const struct sockaddr_un *)a)->sun_path), 0);
	errno = world->dials;
	return -1;
}

static const struct sr_backend_ops *real;

static int poll_or_lose(struct sr_backend *b, int32_t i)
{
	return world->lost ? -EIO : world->hangs > world->jump_ns ? 0 : real->poll(b, i);
}

/* A device closes when its batch is done. */
static void close_after(struct sr_backend *b)
{
	while (world->hangs > world->jump_ns)
		usleep(1000);
	real->close(b);
}

static uint64_t layers(const struct sr_backend *b)
{
	const int64_t now = world->jump_ns, end = world->computes;

	(void)b;
	return (uint64_t)((now < end ? now : end) / 1000000000);
}

/* Signals at once, so the loop polls and arms it again. */
static int arm(struct sr_backend *b, int32_t i, int fd)
{
	const uint64_t one = 1;

	(void)b;
	(void)i;
	world->told = true;
	return write(fd, &one, sizeof(one)) == sizeof(one) ? 0 : -errno;
}

static int open_nothing(struct sr_backend **out, const struct sr_model *m, const struct sr_source *source,
                        const struct sr_limits *l, char *err, size_t n)
{
	(void)m;
	(void)source;
	(void)l;
	*out = NULL;
	snprintf(err, n, "the device has no room");
	return -ENOMEM;
}

/* In pieces; a reader that stops is told why. */
static int open_slowly(struct sr_backend **out, const struct sr_model *m, const struct sr_source *source,
                       const struct sr_limits *l, char *err, size_t n)
{
	const struct sr_extent e = { 0, 4096, LOAD_RANDOM };
	char piece[4096];
	uint64_t tag;
	void *at;

	for (world->read = 0; world->read < 30000; world->read++) {
		int r = source->read(source->ctx, &e, 0, sizeof(piece), piece, 0);

		if (r == 0)
			r = source->wait(source->ctx, &tag, &at);
		if (r < 0) {
			snprintf(err, n, "weights cannot be read");
			return r;
		}
		usleep(1000);
	}
	return real->open(out, m, source, l, err, n);
}

const struct sr_backend_ops *__real_sr_backend_find(const char *name, char *err, size_t n);
const struct sr_backend_ops *__wrap_sr_backend_find(const char *name, char *err, size_t n);
const struct sr_backend_ops *__wrap_sr_backend_find(const char *name, char *err, size_t n)
{
	static struct sr_backend_ops ops;

	real = __real_sr_backend_find(name, err, n);
	if (!real)
		return NULL;
	ops = *real;
	ops.poll = poll_or_lose;
	ops.progress = layers;
	ops.close = close_after;
	ops.work = world->alone ? NULL : ops.work;
	ops.arm = world->signals ? arm : ops.arm;
	ops.open = world->no_room ? open_nothing : world->slow ? open_slowly : ops.open;
	return &ops;
}

static void in_child(void) { mine = true; }

/* ---- helpers -------------------------------------------------------------------------------- */

static const char *log_text(void)
{
	static char text[1 << 16];
	FILE *f = fopen(home.log, "r");
	size_t n;

	assert_non_null(f);
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = 0;
	fclose(f);
	return text;
}

/* Wait until the log has this, ten seconds at most. */
static bool says(const char *what)
{
	for (int i = 0; i < 2000; i++) {
		if (strstr(log_text(), what))
			return true;
		usleep(5000);
	}
	print_message("no \"%s\" in:\n%s\n", what, log_text());
	return false;
}

/* Wait until the service manager gets a message with this in it. */
static bool hears(const char *what)
{
	struct pollfd p = { manager, POLLIN, 0 };
	char text[1000];

	while (poll(&p, 1, 10000) == 1) {
		ssize_t n = recv(manager, text, sizeof(text) - 1, 0);

		text[n < 0 ? 0 : n] = 0;
		if (strstr(text, what))
			return true;
	}
	return false;
}

static void ask(struct sr_conn *c, uint32_t n_prompt, uint32_t max_tokens)
{
	static int32_t ids[4096];
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = n_prompt, .max_tokens = max_tokens,
		.flags = SR_IGNORE_EOS };

	for (uint32_t i = 0; i < n_prompt; i++)
		ids[i] = (int32_t)(i * 7 + max_tokens) % 256;
	assert_int_equal(sr_submit(c, &q, NULL), 0);
}

/* The next token's kind; -errno if there comes none. */
static int next(struct sr_conn *c, struct sr_token *t)
{
	int e;

	while ((e = sr_next(c, t)) == 0)
		if ((e = sr_wait(c, SR_WAIT_TOKENS, 10000)) <= 0)
			return e ? e : -ETIMEDOUT;
	return e < 0 ? e : (int)t->kind;
}

/* Read n answers.  Returns how the last one ended. */
static int ends(struct sr_conn *c, int n)
{
	struct sr_token t = { 0 };

	while (n > 0) {
		int kind = next(c, &t);

		if (kind < 0)
			return kind;
		n -= kind == SR_END;
	}
	return t.end.finish;
}

static int end_of(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void renew(void) { memset(world, 0, sizeof(*world)); }

/* ---- what it does not start with --------------------------------------------------------------- */

#define LONG "/tmp/01234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
static void refused_starts(void **state)
{
	static const struct { const char *flags, *says; } cases[] = {
		{ "--max-num-seq 5", "--max-num-seq is unknown; did you mean --max-num-seqs?" },
		{ "another", "another: a MODEL was already given" },
		{ "--instance ../up", "--instance ../up: not a usable name (letters, digits, - _ .)" },
		{ "--socket " LONG, "longer than the 107 bytes a socket's path may have; give a shorter --socket" },
		{ "--socket /nowhere/at/all", "cannot listen: /nowhere/at/all: No such file or directory" },
		{ "--socket-group no-such-group", "--socket-group no-such-group: no such group" },
		{ "--operator-group no-such-group", "--operator-group no-such-group: no such group" },
		{ "--gateway-user no-such-user", "--gateway-user no-such-user: no such user" },
		{ "--max-model-len 5000", "greater than the derived max_model_len (4096)" },
		{ "--load-format safetensors", "cannot open the model: " },       /* there are no weights */
		{ "--load-format gguf", "cannot open the model: " },
		{ "--config /nowhere.yaml", "--config /nowhere.yaml: No such file or directory" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		int code = end_of(home_start_with(&home, in_child, "0", cases[i].flags));

		if (code != 1 || !strstr(log_text(), cases[i].says))
			fail_msg("%s: exit code %d, and:\n%s", cases[i].flags, code, log_text());
		assert_int_equal(access(home.socket, F_OK), -1);
	}
}

static void devices_that_cannot(void **state)
{
	(void)state;
	world->no_room = true;
	assert_int_equal(end_of(home_start(&home, in_child, "0")), 1);
	assert_true(says("cannot load the model: the device has no room"));
	renew();
	world->alone = true;
	assert_int_equal(end_of(home_start_with(&home, in_child, "0", "--run-mode inline")), 1);
	assert_true(says("--run-mode inline: the device \"null\" computes by itself; dedicated and waiting are possible"));
}

/* A GPU is asked for, but there is none, or no back end for it. */
static void no_gpu(void **state)
{
	(void)state;
	if (access("/dev/nvidiactl", F_OK) == 0) {
		print_message("SKIP: here is one\n");
		skip();
	}
	assert_int_equal(end_of(home_start_with(&home, in_child, "0", "--device cuda")), 1);
	assert_true(says("ERROR --device: "));
	assert_true(says("CUDA"));
}

static void no_model(void **state)
{
	struct home h = home;

	(void)state;
	strcpy(h.model, "/nowhere/model");
	assert_int_equal(end_of(home_start(&h, in_child, "0")), 1);
	assert_true(says("/nowhere/model: no such file or directory"));
}

/* Directories that it cannot or must not use. */
static char place[200];
static void elsewhere(void)
{
	mine = true;
	setenv("RUNTIME_DIRECTORY", place, 1);
}

static void wrong_places(void **state)
{
	static const struct { const char *make, *at, *says; } cases[] = {
		{ "touch %s/file", "file", "file is not a directory" },
		{ "touch %s/file", "file/in/it", "Not a directory" },
		{ "mkdir -m 777 %s/open", "open", "it must be ours, and nobody else may write there" },
		{ "mkdir -m 755 %s/locked && mkdir %1$s/locked/lock", "locked", "/locked/lock: Is a directory" },
		{ "mkdir -m 755 %s/taken && mkdir %1$s/taken/slipring.sock", "taken", "taken/slipring.sock: " },
		{ "mkdir -m 755 %s/page && mkdir %1$s/page/stats", "page", "/page/stats" },
		{ "mkdir -m 755 %s/" "0123456789012345678901234567890123456789012345678901234567890123456789", "0123456789"
		  "012345678901234567890123456789012345678901234567890123456789", "107 bytes a socket's path may have" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char command[400];
		int code;

		snprintf(command, sizeof(command), cases[i].make, home.dir);
		assert_int_equal(system(command), 0);
		snprintf(place, sizeof(place), "%s/%s", home.dir, cases[i].at);
		code = end_of(home_start(&home, elsewhere, "0"));
		if (code != 1 || !strstr(log_text(), cases[i].says))
			fail_msg("%s: exit code %d, and:\n%s", place, code, log_text());
	}
}

static void one_at_a_place(void **state)
{
	struct home second = home;
	pid_t pid = home_start(&home, in_child, "0");
	struct sr_conn *c = home_connect(&home, 0, 0);

	(void)state;
	snprintf(second.log, sizeof(second.log), "%.30s/second", home.dir);
	assert_int_equal(end_of(home_start(&second, in_child, "0")), 1);
	home = second;
	assert_true(says("another slipringd runs here; stop it, or give this one --instance NAME"));
	snprintf(home.log, sizeof(home.log), "%.30s/log", home.dir);
	ask(c, 5, 5);                         /* the first one still serves */
	assert_int_equal(ends(c, 1), SR_LENGTH);
	sr_close(c);
	assert_int_equal(home_stop(pid), 0);
	assert_int_equal(access(home.socket, F_OK), -1);
}

/* A socket may be anywhere.  A live one is left alone, and so is a file that is no socket or not ours. */
static void one_at_a_socket(void **state)
{
	struct home second = home;
	char flags[100];
	struct sr_conn *c;
	pid_t pid;

	(void)state;
	snprintf(place, sizeof(place), "%s/other", home.dir);
	snprintf(second.log, sizeof(second.log), "%.30s/second", home.dir);
	snprintf(second.socket, sizeof(second.socket), "%.30s/s", home.dir);
	snprintf(flags, sizeof(flags), "--socket %s", second.socket);
	pid = home_start_with(&home, in_child, "0", flags);
	c = home_connect(&second, 0, 0);
	assert_int_equal(end_of(home_start_with(&second, elsewhere, "0", flags)), 1);
	ask(c, 5, 5);                         /* the first one still serves, */
	assert_int_equal(ends(c, 1), SR_LENGTH);
	sr_close(c);
	sr_close(home_connect(&second, 0, 0)); /* and is still found there */
	kill(pid, SIGKILL);
	assert_int_equal(end_of(pid), -SIGKILL);
	home = second;
	assert_true(says("cannot listen: ") && says("/s: another server listens there; stop it, or give this one "
	                                            "another --socket"));
	assert_int_equal(access(second.socket, F_OK), 0);
	pid = home_start_with(&second, elsewhere, "0", flags); /* its old socket is replaced */
	sr_close(home_connect(&second, 0, 0));
	unlink(second.socket);                /* now it is another's */
	home_write(home.dir, "s", "");
	assert_int_equal(home_stop(pid), 0);
	assert_int_equal(access(second.socket, F_OK), 0);
	assert_int_equal(end_of(home_start_with(&second, in_child, "0", flags)), 1);
	assert_true(says("/s: it exists and is not a socket"));
	assert_int_equal(access(second.socket, F_OK), 0);
}

/* A socket that cannot be probed stays; one that disappears meanwhile does not matter. */
static void a_socket_not_to_be_asked(void **state)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	char flags[100], text[100];
	pid_t pid;

	(void)state;
	snprintf(home.socket, sizeof(home.socket), "%.30s/s", home.dir);
	snprintf(a.sun_path, sizeof(a.sun_path), "%.30s/s", home.dir);
	snprintf(flags, sizeof(flags), "--socket %s", home.socket);
	snprintf(text, sizeof(text), "/s: a socket of uid %u to which we may not connect; remove it if no server uses it",
	         (unsigned)geteuid());
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	close(fd);
	world->dials = EACCES;
	assert_int_equal(end_of(home_start_with(&home, in_child, "0", flags)), 1);
	assert_true(says(text));
	assert_int_equal(access(home.socket, F_OK), 0);
	world->dials = ENOENT;
	pid = home_start_with(&home, in_child, "0", flags);
	sr_close(home_connect(&home, 0, 0));
	assert_int_equal(home_stop(pid), 0);
}

/* ---- whom it listens to, and how ----------------------------------------------------------------- */

static struct rlimit most;

static void with_few_descriptors(void)
{
	struct rlimit few = { 64, most.rlim_max };

	mine = true;
	setrlimit(RLIMIT_NOFILE, &few);
}

static void groups_users_and_limits(void **state)
{
	const struct group *g = getgrgid(getegid());
	const struct passwd *pw = getpwuid(geteuid());
	char flags[300];
	struct rlimit its;
	struct stat st;
	pid_t pid;

	(void)state;
	if (!g || !pw) {
		print_message("SKIP: our user or group has no name here\n");
		skip();
	}
	snprintf(flags, sizeof(flags), "--socket-group %s --gateway-user %s --served-model-name mine --step-target-ms 9 "
	         "--max-num-queued-tokens 1 --long-prefill-token-threshold 64", g->gr_name, pw->pw_name);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &most), 0);
	pid = home_start_with(&home, with_few_descriptors, "0", flags);
	sr_close(home_connect(&home, 0, 0));
	assert_int_equal(stat(home.socket, &st), 0);
	assert_true(st.st_gid == getegid() && (st.st_mode & 0777) == 0660);
	assert_int_equal(prlimit(pid, RLIMIT_NOFILE, NULL, &its), 0);
	assert_true(its.rlim_cur == most.rlim_max);      /* it raises the limit as far as it may */
	assert_true(says("mine on null"));
	assert_int_equal(home_stop(pid), 0);
}

static int given;                      /* a socket of the service manager's */

static void with_a_socket(void)
{
	char pid[20];

	mine = true;
	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	setenv("LISTEN_PID", pid, 1);
	setenv("LISTEN_FDS", "1", 1);
	setenv("LISTEN_FDNAMES", "slipring", 1);
	if (dup2(given, 3) != 3)
		_exit(98);
}

static void a_socket_from_the_manager(void **state)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct sr_conn *c;
	pid_t pid;

	(void)state;
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", home.socket);
	given = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
	assert_int_equal(bind(given, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(given, 16), 0);
	pid = home_start(&home, with_a_socket, "0");
	c = home_connect(&home, 0, 0);
	ask(c, 5, 5);
	assert_int_equal(ends(c, 1), SR_LENGTH);
	sr_close(c);
	assert_int_equal(home_stop(pid), 0);
	assert_int_equal(access(home.socket, F_OK), 0);  /* the manager unlinks it */
	close(given);
	unlink(home.socket);
}

/* ---- what it says --------------------------------------------------------------------------------- */

static void ready_a_life_and_a_report(void **state)
{
	pid_t pid = home_start_with(&home, in_child, "200", "--num-gpu-blocks-override 40 --max-model-len 600");
	struct sr_conn *c = home_connect(&home, 0, 0);
	const struct stats_page *st;
	const char *at;

	(void)state;
	assert_int_equal(stats_open(&st, home.dir), 0);
	for (int i = 0; i < 50 && !st->count.preemptions; i++) {  /* if one does not end before the other begins: */
		ask(c, 300, 200);             /* two of them do not fit into 40 blocks of 16, one gives way */
		ask(c, 300, 200);
		assert_int_equal(ends(c, 2), SR_LENGTH);
		assert_int_equal(stats_read(st), 0);
	}
	stats_close(st);
	world->jump_ns += 11000000000;
	ask(c, 4, 1);                         /* wakes it */
	assert_int_equal(ends(c, 1), SR_LENGTH);
	assert_true(says("Engine 000: Avg prompt throughput: "));
	at = strstr(log_text(), "Engine 000");
	assert_true(strtod(strstr(at, "prompt throughput: ") + 19, NULL) > 50);      /* 600 in 11 s, or more */
	assert_true(strtod(strstr(at, "generation throughput: ") + 23, NULL) > 30);
	assert_non_null(strstr(at, "Preemptions: "));
	assert_non_null(strstr(at, "GPU KV cache usage: "));
	for (int i = 0; i < 3; i++) {         /* its rest, a report of zero, and then none */
		static const int lines[] = { 2, 3, 3 };
		int n = 0;

		sr_close(c);
		world->jump_ns += 11000000000;
		c = home_connect(&home, 0, 0);
		ask(c, 4, 0);                 /* no report is due any more at its end */
		assert_true(ends(c, 1) < 0);
		for (at = log_text(); (at = strstr(at, "Engine 000")) != NULL; at++)
			n++;
		assert_int_equal(n, lines[i]);
	}
	assert_non_null(strstr(log_text(), "Avg prompt throughput: 0."));
	sr_close(c);
	assert_int_equal(home_stop(pid), 0);
	pid = home_start_with(&home, in_child, "0", "--disable-log-stats --step-target-ms 5000");
	c = home_connect(&home, 0, 0);
	world->jump_ns += 11000000000;
	ask(c, 4, 1);
	assert_int_equal(ends(c, 1), SR_LENGTH);
	sr_close(c);
	assert_int_equal(home_stop(pid), 0);
	assert_null(strstr(log_text(), "Engine 000"));
}

static void with_a_terminal(void)
{
	mine = true;
	if (dup2(pty, STDERR_FILENO) < 0)
		_exit(98);
}

/* On a terminal a bar, elsewhere a line every two seconds; here the CPU's loading takes a while. */
static void loading(void **state)
{
	char text[8000] = "";
	struct pollfd p = { .events = POLLIN };
	int master;
	ssize_t n = 0;
	pid_t pid;

	(void)state;
	assert_int_equal(openpty(&master, &pty, NULL, NULL, NULL), 0);
	pid = home_start_with(&home, with_a_terminal, "0", "--device cpu --kv-cache-memory-bytes 64M");
	sr_close(home_connect(&home, 0, 0));
	p.fd = master;
	while (n < (ssize_t)sizeof(text) - 1 && !strstr(text, "Ready") && poll(&p, 1, 5000) == 1) {
		ssize_t got = read(master, text + n, sizeof(text) - 1 - (size_t)n);

		assert_true(got > 0);
		n += got;
		text[n] = 0;
	}
	if (!strstr(text, "\rLoading weights [") || !strstr(text, "[########################################] 100 %"))
		fail_msg("the terminal shows %s", text);
	assert_int_equal(home_stop(pid), 0);
	close(master);
	close(pty);
	world->each_ns = 3000000000;          /* more than two seconds between two readings of the clock */
	pid = home_start_with(&home, in_child, "0", "--device cpu --kv-cache-memory-bytes 64M");
	assert_true(says("INFO Loading weights: 100 % ("));
	world->each_ns = 0;
	assert_null(strstr(log_text(), "Loading weights ["));
	sr_close(home_connect(&home, 0, 0));
	assert_int_equal(home_stop(pid), 0);
}

static void with_a_manager(void)
{
	char path[64];

	mine = true;
	snprintf(path, sizeof(path), "%.30s/manager", home.dir);
	setenv("NOTIFY_SOCKET", path, 1);
	setenv("WATCHDOG_USEC", "20000", 1);
}

static void the_manager_is_told(void **state)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	char config[64], flags[100];
	struct sr_conn *c;
	pid_t pid;

	(void)state;
	snprintf(a.sun_path, sizeof(a.sun_path), "%.30s/manager", home.dir);
	manager = socket(AF_UNIX, SOCK_DGRAM, 0);
	assert_int_equal(bind(manager, (struct sockaddr *)&a, sizeof(a)), 0);
	home_write(home.dir, "config.yaml", "max-num-seqs: 8\n");
	snprintf(config, sizeof(config), "%.30s/config.yaml", home.dir);
	snprintf(flags, sizeof(flags), "--config %s", config);
	pid = home_start_with(&home, with_a_manager, "0", flags);
	assert_true(hears("READY=1\nSTATUS=Serving "));
	c = home_connect(&home, 0, 0);
	for (int i = 0; i < 3; i++)
		assert_true(hears("WATCHDOG=1"));
	home_write(home.dir, "config.yaml", "max-num-seqs: many\n");
	assert_int_equal(kill(pid, SIGHUP), 0);
	assert_true(hears("RELOADING=1") && hears("READY=1"));
	assert_true(says("SIGHUP: the old settings remain: "));
	home_write(home.dir, "config.yaml", "max-num-seqs: 8\ndisable-log-stats: true\nshutdown-timeout: 5\n");
	assert_int_equal(kill(pid, SIGHUP), 0);
	assert_true(hears("RELOADING=1") && hears("READY=1"));
	assert_true(says("changed: ") && says("shutdown-timeout"));
	ask(c, 4, 4);
	assert_int_equal(ends(c, 1), SR_LENGTH);
	assert_int_equal(kill(pid, SIGTERM), 0);
	assert_true(hears("STOPPING=1"));
	assert_int_equal(end_of(pid), 0);
	sr_close(c);
	close(manager);
	unlink(a.sun_path);
}

/* ---- how it ends -------------------------------------------------------------------------------- */

/* SIGTERM with an answer under way that takes very long: the limit, or a second signal, ends it. */
static void a_drain_has_an_end(void **state)
{
	(void)state;
	for (int way = 0; way < 3; way++) {
		pid_t pid = home_start_with(&home, in_child, "2000", "--shutdown-timeout 100");
		struct sr_conn *c = home_connect(&home, 0, 0);
		struct sr_token t = { 0 };

		ask(c, 4, 3000);
		assert_int_equal(next(c, &t), SR_TOKEN);
		assert_int_equal(kill(pid, SIGTERM), 0);
		assert_true(says("Draining: 1 running, 0 waiting, at most 100 s"));
		assert_int_equal(kill(pid, SIGHUP), 0); /* too late */
		for (int i = 0; i < 3; i++)           /* it goes on */
			assert_int_equal(next(c, &t), SR_TOKEN);
		if (way == 0)
			assert_int_equal(kill(pid, SIGTERM), 0);
		else if (way == 1)
			assert_int_equal(kill(pid, SIGINT), 0);
		else
			world->jump_ns += 101000000000;
		assert_true(ends(c, 1) < 0);
		assert_int_equal(end_of(pid), 0);
		assert_null(strstr(log_text(), "SIGHUP"));
		sr_close(c);
		renew();
	}
}

/* SIGTERM while the device hangs, before it counts as lost: the end does not wait for it. */
static void a_drain_beside_a_hang_has_an_end(void **state)
{
	(void)state;
	for (int way = 0; way < 2; way++) {
		struct sr_token t = { 0 };
		struct sr_conn *c;
		pid_t pid;

		world->alone = true;
		pid = home_start_with(&home, in_child, "2000", "--run-mode dedicated --shutdown-timeout 100");
		c = home_connect(&home, 0, 0);
		ask(c, 4, 3000);
		ask(c, 4, 3000);
		assert_int_equal(next(c, &t), SR_TOKEN);
		world->hangs = INT64_MAX;
		assert_int_equal(kill(pid, SIGTERM), 0);
		assert_true(says("Draining: "));
		if (way == 0)
			assert_int_equal(kill(pid, SIGTERM), 0);
		else
			world->jump_ns += 101000000000;
		assert_true(ends(c, 2) < 0);
		assert_int_equal(end_of(pid), 0);
		assert_null(strstr(log_text(), "computed nothing"));
		assert_int_equal(access(home.socket, F_OK), -1);
		sr_close(c);
		renew();
	}
}

/* SIGTERM while weights are read: it does not wait for the last of them. */
static void a_stop_while_loading(void **state)
{
	static const int sig[] = { SIGTERM, SIGINT };

	(void)state;
	for (int i = 0; i < 2; i++) {
		pid_t pid;

		world->slow = true;
		pid = home_start(&home, in_child, "0");
		for (int k = 0; k < 10000 && !world->read; k++)
			usleep(1000);
		assert_true(world->read > 0);
		assert_int_equal(kill(pid, SIGHUP), 0);       /* ignored */
		assert_int_equal(kill(pid, sig[i]), 0);
		assert_int_equal(end_of(pid), 0);
		assert_true(says("Asked to stop while loading: "));
		assert_null(strstr(log_text(), "ERROR"));
		assert_null(strstr(log_text(), "Ready"));
		assert_int_equal(access(home.socket, F_OK), -1);
		renew();
	}
}

static void a_lost_device(void **state)
{
	pid_t pid = home_start(&home, in_child, "2000");
	struct sr_conn *c = home_connect(&home, 0, 0);
	struct sr_token t = { 0 };

	(void)state;
	ask(c, 4, 3000);
	ask(c, 4, 3000);
	assert_int_equal(next(c, &t), SR_TOKEN);
	world->lost = true;
	assert_int_equal(ends(c, 2), -EIO);
	assert_int_equal(end_of(pid), 70);
	assert_true(says("The device is lost (Input/output error). Every request was ended; exiting with 70"));
	sr_close(c);
}

/* The number in the log behind these words. */
static double said(const char *words)
{
	const char *at = strstr(log_text(), words);

	assert_non_null(at);
	return strtod(at + strlen(words), NULL);
}

/* A long batch is waited for while it computes layers, and up to 20 times the usual time.  Then a warning
 * comes, and in the end the device is lost.  Its clock is fast: 50 ms at each reading. */
static void a_device_that_hangs(void **state)
{
	static const char *const mode[] = { "--run-mode dedicated", "--run-mode waiting" };

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct sr_token t = { 0 };
		struct sr_conn *c;
		int64_t then;
		pid_t pid;

		world->alone = true;
		pid = home_start_with(&home, in_child, "2000", mode[i]);
		c = home_connect(&home, 0, 0);
		ask(c, 4, 3000);
		ask(c, 4, 3000);
		assert_int_equal(next(c, &t), SR_TOKEN);
		then = world->jump_ns;
		world->computes = then + 300000000000; /* for five minutes of its time */
		world->hangs = INT64_MAX;
		world->each_ns = 50000000;
		assert_true(says("WARN The device has computed nothing for 15 s; such a batch usually takes 0.0"));
		assert_true(world->jump_ns >= then + 310000000000);
		assert_true(said("s; after ") == 60);
		assert_int_equal(ends(c, 2), -EIO);
		assert_int_equal(end_of(pid), 70);
		assert_true(says("ERROR The device has computed nothing for 60 s"));
		assert_true(says("The device is lost (Input/output error). Every request was ended; exiting with 70"));
		assert_int_equal(access(home.socket, F_OK), -1);
		sr_close(c);
		renew();
	}
}

/* A device whose batches take 5 s gets 100 s. */
static void a_slow_device(void **state)
{
	struct sr_token t = { 0 };
	struct sr_conn *c;
	double limit;
	pid_t pid;

	(void)state;
	world->alone = true;
	world->each_ns = 10000000;
	pid = home_start_with(&home, in_child, "5000000", "--run-mode dedicated");
	c = home_connect(&home, 0, 0);
	ask(c, 4, 3000);
	for (int i = 0; i < 6; i++)
		assert_int_equal(next(c, &t), SR_TOKEN);
	assert_null(strstr(log_text(), "computed nothing"));
	world->hangs = world->jump_ns + 60000000000;
	assert_true(says("WARN The device has computed nothing for "));
	limit = said("s; after ");
	assert_true(limit > 80 && limit < 200);
	assert_int_equal(next(c, &t), SR_TOKEN);
	assert_true(says("INFO The device makes progress again"));
	sr_close(c);
	world->each_ns = 0;
	assert_int_equal(home_stop(pid), 0);
}

/* ---- ways to wait ------------------------------------------------------------------------------- */

static void each_way_of_waiting_serves(void **state)
{
	static const struct { const char *flags, *says; bool alone, signals; } cases[] = {
		{ "--run-mode dedicated", "Run mode dedicated: this thread polls", false, false },
		{ "--run-mode waiting", "Run mode waiting: this thread sleeps", true, false },
		{ "--run-mode waiting", "Run mode waiting: this thread sleeps", true, true },
		{ "--run-mode auto", "Run mode ", true, false },
		{ "--device cpu --threads 1 --kv-cache-memory-bytes 64M", "Run mode inline: this thread is one of 1", false,
		  false },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct sr_conn *c;
		pid_t pid;

		world->alone = cases[i].alone;
		world->signals = cases[i].signals;
		world->told = false;
		pid = home_start_with(&home, in_child, "300", cases[i].flags);
		c = home_connect(&home, 0, 0);
		for (uint32_t k = 0; k < 8; k++)
			ask(c, 20 + k, 20);
		assert_int_equal(ends(c, 8), SR_LENGTH);
		assert_true(says(cases[i].says));
		assert_true(world->told == world->signals);
		sr_close(c);
		assert_int_equal(home_stop(pid), 0);
	}
}

static int setup(void **state)
{
	(void)state;
	if (!world)
		world = home_share(sizeof(*world));
	renew();
	home_make(&home);
	return 0;
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, home_teardown)
	const struct CMUnitTest tests[] = {
		T(refused_starts), T(devices_that_cannot), T(no_gpu), T(no_model), T(wrong_places), T(one_at_a_place),
		T(one_at_a_socket), T(a_socket_not_to_be_asked),
		T(groups_users_and_limits), T(a_socket_from_the_manager), T(ready_a_life_and_a_report), T(loading),
		T(the_manager_is_told), T(a_drain_has_an_end), T(a_drain_beside_a_hang_has_an_end), T(a_stop_while_loading),
		T(a_lost_device),
		T(a_device_that_hangs), T(a_slow_device), T(each_way_of_waiting_serves),
	};
#undef T

	return cmocka_run_group_tests(tests, NULL, NULL);
}
