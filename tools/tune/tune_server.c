/* tune_server.c - starts tune's own daemon, and restarts it with other flags.  It never restarts another
 * daemon.  The kernel ends the daemon when this process ends, however it ends. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/instance/config.h"
#include "core/instance/refuse.h"
#include "tune.h"

#define START_S  600.0           /* s; a large model takes time */
#define STOP_S   40.0

/* Run the slipringd beside this program.  An installed one may also be found by PATH. */
static void run_server(const struct tune *t, char **argv, pid_t parent)
{
	char path[PATH_MAX + 32];
	ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
	int log = open(t->server.log, O_WRONLY | O_CREAT | O_APPEND, 0644), none = open("/dev/null", O_RDONLY);
	char *slash;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	setpgid(0, 0);                        /* Ctrl-C must reach only tune */
	dup2(none, 0);
	dup2(log, 1);
	dup2(log, 2);
	unsetenv("NOTIFY_SOCKET");
	unsetenv("LISTEN_FDS");
	if (n > 0) {
		path[n] = 0;
		slash = strrchr(path, '/');
		if (slash) {
			strcpy(slash + 1, "slipringd");
			execv(path, argv);
		}
	}
	execvp("slipringd", argv);
	_exit(127);
}

/* Make the argv of slipringd: the user's words, then ours, which win.  Splits `flags` in place. */
static int words(struct tune *t, char **argv, int most, char *flags, char *instance)
{
	char *save = NULL;
	int n = 0;

	argv[n++] = (char *)(uintptr_t)"slipringd";
	for (int i = 0; i < t->o.n_server && n < most - 8; i++)
		argv[n++] = t->o.server[i];
	for (char *w = strtok_r(flags, " ", &save); w && n < most - 8; w = strtok_r(NULL, " ", &save))
		argv[n++] = w;
	if (t->server.model) {
		argv[n++] = (char *)(uintptr_t)"--model";
		argv[n++] = (char *)(uintptr_t)t->server.model;
	}
	argv[n++] = (char *)(uintptr_t)"--instance";
	argv[n++] = instance;
	argv[n] = NULL;
	return n;
}

/* The last line of the daemon's log, which says why it did not start. */
static void last_line(const char *path, char *out, size_t n)
{
	char line[600];
	FILE *f = fopen(path, "r");

	snprintf(out, n, "see %.400s", path);
	while (f && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = 0;
		if (strstr(line, " ERROR "))
			snprintf(out, n, "%.480s", strstr(line, " ERROR ") + 7);
	}
	if (f)
		fclose(f);
}

static int wait_ready(struct tune *t, char *err, size_t errlen)
{
	double until = bench_now() + START_S;
	struct timespec nap = { 0, 20000000 };
	char why[500];
	int status;

	for (;; nanosleep(&nap, NULL)) {
		if (waitpid(t->server.pid, &status, WNOHANG) == t->server.pid) {
			t->server.pid = 0;
			last_line(t->server.log, why, sizeof(why));
			return refuse(-ECHILD, err, errlen, "the daemon did not start: %s", why);
		}
		if (t->in.page)
			stats_close(t->in.page);
		t->in.page = NULL;
		if (stats_open(&t->in.page, t->in.dir) == 0 && t->in.page->pid == (uint32_t)t->server.pid &&
		    !strcmp(t->in.page->state, "ready") && t->in.page->ready_ns)
			return 0;
		if (tune_interrupted)
			return -EINTR;
		if (bench_now() > until)
			return refuse(-ETIMEDOUT, err, errlen, "the daemon was not ready after %.0f s; see %s", START_S,
			              t->server.log);
	}
}

int tune_server_start(struct tune *t, char *err, size_t errlen)
{
	struct config cfg;
	char *argv[TUNE_WORDS + 16], flags[sizeof(t->server.flags)];
	pid_t self = getpid();
	int n, rc;

	if (!*t->server.instance) {
		snprintf(t->server.instance, sizeof(t->server.instance), "tune-%d", (int)self);
		t->in.name = t->server.instance;
		rc = config_run_dir(t->in.name, t->in.dir, sizeof(t->in.dir));
		if (rc < 0)
			return rc;
		snprintf(t->server.log, sizeof(t->server.log), "%.2000s/slipringd.log", t->o.out);
	}
	snprintf(flags, sizeof(flags), "%s", t->server.flags);
	n = words(t, argv, TUNE_WORDS + 16, flags, t->server.instance);
	rc = config_parse(&cfg, n, argv, FOR_SERVE, err, errlen);
	if (rc)
		return rc > 0 ? -EINVAL : rc;
	config_free(&cfg);
	fflush(NULL);
	t->server.pid = fork();
	if (t->server.pid == 0)
		run_server(t, argv, self);
	if (t->server.pid < 0) {
		t->server.pid = 0;
		return refuse(-EAGAIN, err, errlen, "no process for the daemon: %s", strerror(errno));
	}
	return wait_ready(t, err, errlen);
}

/* Remove the run directory.  A daemon leaves its lock file for the next, but this name has no next one. */
static void leave_run_dir(const struct tune *t)
{
	char path[PATH_MAX + 16];

	snprintf(path, sizeof(path), "%s/lock", t->in.dir);
	unlink(path);
	rmdir(t->in.dir);
}

void tune_server_stop(struct tune *t)
{
	double until = bench_now() + STOP_S;
	struct timespec nap = { 0, 10000000 };

	if (!t->server.pid)
		return;
	kill(t->server.pid, SIGTERM);
	while (waitpid(t->server.pid, NULL, WNOHANG) == 0) {
		if (bench_now() > until)
			kill(t->server.pid, SIGKILL);
		nanosleep(&nap, NULL);
	}
	t->server.pid = 0;
	leave_run_dir(t);
}

int tune_server_again(struct tune *t, const char *flags, char *err, size_t errlen)
{
	char now[sizeof(t->server.flags)];

	snprintf(now, sizeof(now), "%s", flags);
	tune_server_stop(t);
	memcpy(t->server.flags, now, sizeof(now));
	return tune_server_start(t, err, errlen);
}
