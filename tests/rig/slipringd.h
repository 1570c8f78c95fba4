/* slipringd.h - the whole daemon, main() included, in a child of the test, on the null device and a
 * model of two files.  Linked with @slipringd.  The test is its client.
 */
#ifndef TESTS_SLIPRINGD_H
#define TESTS_SLIPRINGD_H

#include <stdatomic.h>
#include <sys/wait.h>

int slipringd_main(int argc, char **argv);
#define main slipringd_main
#include "core/main.c"
#undef main

#include "shmring/slipring.h"
#include "tests/rig/home.h"               /* after main.c, because both define fail() */

/* Start a daemon in a child, with its log in the home.  `before` runs in the child.  The daemon ends by
 * itself after a minute.  flags: further ones, separated by spaces; the last one of a name counts. */
static inline pid_t home_start_with(struct home *h, void (*before)(void), const char *step_us, const char *flags)
{
	char words[1000], *argv[60] = { "slipringd", "--device", "null", "--load-format", "dummy", "--null-step-us",
		(char *)step_us, "--num-gpu-blocks-override", "4096", "--max-num-seqs", "64", "--run-mode",
		(char *)(h->run_mode ? h->run_mode : "auto"), h->model };
	int argc = 14;
	pid_t pid = fork();

	if (pid)
		return pid;
	alarm(60);
	snprintf(words, sizeof(words), "%s", flags);
	for (char *s = strtok(words, " "); s && argc < 59; s = strtok(NULL, " "))
		argv[argc++] = s;
	if (!freopen(h->log, "w", stderr))
		_exit(99);
	if (before)
		before();
	exit(slipringd_main(argc, argv));
}

static inline pid_t home_start(struct home *h, void (*before)(void), const char *step_us)
{
	return home_start_with(h, before, step_us, "");
}

/* Connect, waiting up to ten seconds for the daemon. */
static inline struct sr_conn *home_connect(struct home *h, uint32_t live, uint32_t tokens)
{
	struct sr_options o = { .size = sizeof(o), .live = live, .tokens = tokens };
	struct sr_conn *c;

	for (int i = 0; i < 10000; i++) {
		if (sr_open(&c, h->socket, &o) == 0)
			return c;
		usleep(1000);
	}
	fail_msg("no daemon at %s", h->socket);
	return NULL;
}

/* Send SIGTERM.  Returns the exit code, or -signal if a signal ended it. */
static inline int home_stop(pid_t pid)
{
	int status;

	if (pid <= 0)
		return 0;
	kill(pid, SIGTERM);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

#endif
