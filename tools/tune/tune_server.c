/* tune_server.c - starts tune's own daemon, or its replicas, and restarts them with other flags.  It never
 * restarts another daemon.  The kernel ends the daemons when this process ends, however it ends. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/instance/config.h"
#include "core/instance/refuse.h"
#include "tools/serve.h"
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

/* What has become of the page of daemon i?  True: it is ready. */
static bool is_ready(struct tune *t, int i)
{
	struct instance *in = i ? &t->server.more[i] : &t->in;

	if (in->page)
		stats_close(in->page);
	in->page = NULL;
	return stats_open(&in->page, in->dir) == 0 && in->page->pid == (uint32_t)t->server.pid[i] &&
	       !strcmp(in->page->state, "ready") && in->page->ready_ns;
}

static int wait_ready(struct tune *t, int i, char *err, size_t errlen)
{
	double until = bench_now() + START_S;
	struct timespec nap = { 0, 20000000 };
	char why[500];

	for (;; nanosleep(&nap, NULL)) {
		if (waitpid(t->server.pid[i], NULL, WNOHANG) == t->server.pid[i]) {
			t->server.pid[i] = 0;
			last_line(t->server.log, why, sizeof(why));
			return refuse(-ECHILD, err, errlen, "the daemon did not start: %s", why);
		}
		if (is_ready(t, i))
			return 0;
		if (tune_interrupted)
			return -EINTR;
		if (bench_now() > until)
			return refuse(-ETIMEDOUT, err, errlen, "the daemon was not ready after %.0f s; see %s", START_S,
			              t->server.log);
	}
}

/* Name replica i of cfg, and start it with these words.  0, or -errno. */
static int start_one(struct tune *t, const struct config *cfg, int i, char **argv, int n, char *err,
                     size_t errlen)
{
	struct instance *in = i ? &t->server.more[i] : &t->in;
	pid_t self = getpid(), pid;
	struct config mine;
	char rank[16];
	int rc;

	config_replica(cfg, i, &mine, t->server.name[i]);
	if (mine.instance != t->server.name[i])
		snprintf(t->server.name[i], CONFIG_INSTANCE, "%s", mine.instance);
	in->name = t->server.name[i];
	rc = config_run_dir(in->name, in->dir, sizeof(in->dir));
	if (!rc)
		rc = config_socket(&mine, t->server.socket[i], sizeof(t->server.socket[i]));
	if (rc)
		return refuse(rc, err, errlen, "%s: %s", in->name, config_run_dir_why(rc));
	t->server.sockets[i] = t->server.socket[i];
	if (cfg->data_parallel_size > 1) {
		snprintf(rank, sizeof(rank), "%d", i);
		argv[n++] = (char *)(uintptr_t)"--data-parallel-rank";
		argv[n++] = rank;
		argv[n] = NULL;
	}
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		if (cfg->data_parallel_size > 1)
			serve_place(i, cfg->data_parallel_size, cfg->tensor_parallel_size);
		run_server(t, argv, self);
	}
	if (pid < 0)
		return refuse(-EAGAIN, err, errlen, "no process for the daemon: %s", strerror(errno));
	t->server.pid[i] = pid;
	t->server.n = i + 1;
	return 0;
}

int tune_server_start(struct tune *t, char *err, size_t errlen)
{
	struct config cfg;
	char *argv[TUNE_WORDS + 16], flags[sizeof(t->server.flags)], instance[32];
	bool first = !*t->server.log;
	int n, rc;

	snprintf(instance, sizeof(instance), "tune-%d", (int)getpid());
	if (first)
		snprintf(t->server.log, sizeof(t->server.log), "%.2000s/slipringd.log", t->o.out);
	snprintf(flags, sizeof(flags), "%s", t->server.flags);
	n = words(t, argv, TUNE_WORDS + 12, flags, instance);
	rc = config_parse(&cfg, n, argv, FOR_SERVE, err, errlen);
	if (rc)
		return rc > 0 ? -EINVAL : rc;
	if (first) {
		t->server.replicas = cfg.data_parallel_size;
		t->server.ranks = cfg.tensor_parallel_size;
	}
	if (config_replicas(&cfg) > TUNE_DAEMONS)
		rc = refuse(-EINVAL, err, errlen, "--data-parallel-size %d: tune starts %d daemons at most",
		            cfg.data_parallel_size, TUNE_DAEMONS);
	for (int i = 0; !rc && i < config_replicas(&cfg); i++)
		rc = start_one(t, &cfg, i, argv, n, err, errlen);
	for (int i = 0; !rc && i < t->server.n; i++)
		rc = wait_ready(t, i, err, errlen);
	config_free(&cfg);
	if (rc)
		tune_server_stop(t);
	else
		memcpy(t->socket, t->server.socket[0], sizeof(t->socket));
	return rc;
}

/* Remove the run directory.  A daemon leaves its lock file for the next, but this name has no next one. */
static void leave_run_dir(const char *dir)
{
	char path[PATH_MAX + 16];

	snprintf(path, sizeof(path), "%s/lock", dir);
	unlink(path);
	rmdir(dir);
}

void tune_server_stop(struct tune *t)
{
	double until = bench_now() + STOP_S;
	struct timespec nap = { 0, 10000000 };

	for (int i = 0; i < t->server.n; i++)
		if (t->server.pid[i])
			kill(t->server.pid[i], SIGTERM);
	for (int i = 0; i < t->server.n; i++) {
		while (t->server.pid[i] && waitpid(t->server.pid[i], NULL, WNOHANG) == 0) {
			if (bench_now() > until)
				kill(t->server.pid[i], SIGKILL);
			nanosleep(&nap, NULL);
		}
		t->server.pid[i] = 0;
		leave_run_dir(tune_instance(t, i)->dir);
		if (i) {
			stats_close(t->server.more[i].page);
			t->server.more[i].page = NULL;
		}
	}
	t->server.n = 0;
}

int tune_server_again(struct tune *t, const char *flags, char *err, size_t errlen)
{
	char now[sizeof(t->server.flags)];

	snprintf(now, sizeof(now), "%s", flags);
	tune_server_stop(t);
	memcpy(t->server.flags, now, sizeof(now));
	return tune_server_start(t, err, errlen);
}

int tune_instances(const struct tune *t)
{
	return t->server.n ? t->server.n : 1;
}

const struct instance *tune_instance(const struct tune *t, int i)
{
	return i ? &t->server.more[i] : &t->in;
}
