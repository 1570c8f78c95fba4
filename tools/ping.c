/* ping.c - slipring ping: measures the round trip of an empty record through the daemon's loop, past
 * everything queued.  Beside it, it prints the machine's limit: the round trip of a bare cache line between
 * two processes.  With pauses the daemon falls asleep, and the limit is a byte that wakes a process. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "commands.h"
#include "core/instance/config.h"
#include "instance.h"
#include "serve_at.h"
#include "shmring/slipring.h"
#include "shmring/clock.h"

#define COUNT      1000
#define COUNT_WAKE 50                     /* round trips with pauses */
#define COUNT_MAX  1000000
#define TIMEOUT_MS (1000 * INSTANCE_WAIT_S)
#define LONG_MS    2000                   /* a longer run is announced first */

struct summary { double min, median, p99; }; /* microseconds */

static int ping_usage(FILE *to)
{
	fprintf(to, "slipring ping [--socket PATH] [--instance NAME] [-n COUNT] [--every MS] [--json]\n"
	        "\n"
	        "Measures round trips of an empty record to the daemon's loop and back: least, median and 99th\n"
	        "percentile, beside those of a bare cache line between two processes; with pauses between\n"
	        "them, beside the wake-up of a process that sleeps on a socket.\n"
	        "\n"
	        "  --socket PATH    the daemon's socket (default: that of the instance)\n"
	        "  --instance NAME  which daemon (default: \"default\")\n"
	        "  --port N         the daemon that \"slipring serve --port N\" runs\n"
	        "  -n COUNT         number of round trips, 1 to %d (default: %d; with --every %d)\n"
	        "  --every MS       pause before each, 1 to 10000: what the first one after a pause costs\n"
	        "  --json           one line for programs; times in microseconds\n", COUNT_MAX, COUNT,
	        COUNT_WAKE);
	return to == stdout ? 0 : 2;
}

static int compare_times(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static struct summary summarize(uint64_t *ns, int n)
{
	qsort(ns, (size_t)n, sizeof(ns[0]), compare_times);
	return (struct summary){ (double)ns[0] / 1e3, (double)ns[n / 2] / 1e3,
	                         (double)ns[(int)((double)n * 0.99)] / 1e3 };
}

/* Wait for *line == value.  Yield the core now and then, because there may be only one. */
static void await(_Atomic uint32_t *line, uint32_t value)
{
	for (unsigned turn = 1; atomic_load_explicit(line, memory_order_acquire) != value; turn++)
		if (turn % 4096 == 0)
			sched_yield();
}

/* Two processes send a number back and forth.  Each writes to its own cache line. */
static int bare_line(uint64_t *ns, int n)
{
	_Atomic uint32_t *there = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	_Atomic uint32_t *back = there + 64;
	pid_t pid;

	if (there == MAP_FAILED || (pid = fork()) < 0)
		return -errno;
	if (pid == 0) {
		for (uint32_t i = 1; i <= (uint32_t)n; i++) {
			await(there, i);
			atomic_store_explicit(back, i, memory_order_release);
		}
		_exit(0);
	}
	for (uint32_t i = 1; i <= (uint32_t)n; i++) {
		uint64_t begin = sr_now();

		atomic_store_explicit(there, i, memory_order_release);
		await(back, i);
		ns[i - 1] = sr_now() - begin;
	}
	waitpid(pid, NULL, 0);
	munmap((void *)there, 4096);
	return 0;
}

static void pause_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

/* One process sleeps on a socket.  A byte wakes it, and it answers through a cache line, like the daemon. */
static int bare_wake(uint64_t *ns, int n, long every_ms)
{
	_Atomic uint32_t *back = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int fd[2], e = 0;
	char byte;
	pid_t pid;

	if (back == MAP_FAILED || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd) < 0 ||
	    (pid = fork()) < 0)
		return -errno;
	if (pid == 0) {
		close(fd[0]);
		for (uint32_t i = 1; read(fd[1], &byte, 1) == 1; i++)
			atomic_store_explicit(back, i, memory_order_release);
		_exit(0);
	}
	close(fd[1]);
	for (uint32_t i = 1; i <= (uint32_t)n && !e; i++) {
		uint64_t begin;

		pause_ms(every_ms);
		begin = sr_now();
		if (write(fd[0], "", 1) != 1)
			e = -EIO;
		else
			await(back, i);
		ns[i - 1] = sr_now() - begin;
	}
	close(fd[0]);
	waitpid(pid, NULL, 0);
	munmap((void *)back, 4096);
	return e;
}

static int measure_trips(const char *socket, uint64_t *ns, int n, long every_ms, struct summary *ring,
                         struct summary *bare)
{
	struct sr_options o = { .size = sizeof(o), .name = "slipring ping" };
	struct sr_conn *c;
	char err[4300];
	int e = instance_connect(&c, socket, &o, err, sizeof(err));

	if (e < 0) {
		fprintf(stderr, "slipring ping: %s\n", err);
		return e;
	}
	if (2 * n * every_ms > LONG_MS)       /* twice: the daemon, then the bare wake-up */
		fprintf(stderr, "slipring ping: %d pauses of %ld ms, twice: %.0f s; Ctrl-C ends it\n", n, every_ms,
		        2e-3 * n * (double)every_ms);
	for (int i = 0; i < n && e == 0; i++) {
		if (every_ms)
			pause_ms(every_ms);
		e = sr_ping(c, &ns[i], TIMEOUT_MS);
	}
	sr_close(c);
	if (e < 0) {
		fprintf(stderr, "slipring ping: %s: %s\n", socket, strerror(-e));
		return e;
	}
	*ring = summarize(ns, n);
	e = every_ms ? bare_wake(ns, n, every_ms) : bare_line(ns, n);
	*bare = e < 0 ? (struct summary){ 0, 0, 0 } : summarize(ns, n);
	return 0;
}

static int print_trips_json(const char *socket, long n, bool wake, const struct summary *ring,
                            const struct summary *bare)
{
	json_t *j = json_pack("{s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "socket", socket,
		"count", (json_int_t)n, "min_us", ring->min, "median_us", ring->median, "p99_us", ring->p99,
		wake ? "bare_wake_min_us" : "bare_line_min_us", bare->min,
		wake ? "bare_wake_median_us" : "bare_line_median_us", bare->median,
		wake ? "bare_wake_p99_us" : "bare_line_p99_us", bare->p99);
	int e = j ? json_dumpf(j, stdout, JSON_REAL_PRECISION(6)) : -1;

	putchar('\n');
	json_decref(j);
	return e < 0;
}

int cmd_ping(int argc, char **argv)
{
	struct config cfg = { .instance = "default" };
	struct summary ring, bare;
	const char *port = NULL;
	char socket[4096];
	uint64_t *ns;
	bool json = false;
	long n = 0, every = 0;
	int rc;

	for (int i = 1; i < argc; i++) {
		int at = i;
		char *end = NULL;

		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return ping_usage(stdout);
		if (!strcmp(argv[i], "--json"))
			json = true;
		else if (!strcmp(argv[i], "--socket") && i + 1 < argc)
			cfg.socket = argv[++i];
		else if (!strcmp(argv[i], "--instance") && i + 1 < argc)
			cfg.instance = argv[++i];
		else if (!strcmp(argv[i], "--port") && i + 1 < argc)
			port = argv[++i];
		else if (!strcmp(argv[i], "-n") && i + 1 < argc && (n = strtol(argv[++i], &end, 10)) >= 1 &&
		         n <= COUNT_MAX && !*end)
			;
		else if (!strcmp(argv[i], "--every") && i + 1 < argc &&
		         (every = strtol(argv[++i], &end, 10)) >= 1 && every <= 10000 && !*end)
			;
		else
			return command_wrong("ping", argv, at, i);
	}
	if (port && !(cfg.instance = serve_found("ping", port)))
		return 1;
	rc = config_socket(&cfg, socket, sizeof(socket));
	if (rc < 0) {
		fprintf(stderr, "slipring ping: --instance %s: %s\n", cfg.instance, config_run_dir_why(rc));
		return 2;
	}
	if (!n)
		n = every ? COUNT_WAKE : COUNT;
	ns = calloc((size_t)n, sizeof(ns[0]));
	if (!ns || measure_trips(socket, ns, (int)n, every, &ring, &bare) < 0) {
		free(ns);
		return 1;
	}
	free(ns);
	if (json)
		return print_trips_json(socket, n, every != 0, &ring, &bare);
	printf("%ld round trips to %s\n"
	       "               least     median        p99\n"
	       "  daemon   %7.2f us %7.2f us %7.2f us\n"
	       "  bare %s%7.2f us %7.2f us %7.2f us   %s\n",
	       n, socket, ring.min, ring.median, ring.p99, every ? "wake" : "line", bare.min, bare.median,
	       bare.p99, every ? "a byte to a process that sleeps on a socket" :
	       "two processes, one cache line each way");
	return 0;
}
