/* instance.c - finds the run directory and opens its page, or prints which instances there are. */
#include "instance.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/instance/config.h"
#include "core/instance/refuse.h"
#include "shmring/clock.h"
#include "shmring/slipring.h"

#define MS 1000000u
#define FIRST_MS 1000         /* ms of the first attempt to connect; the user is told after it */

static void say_if_there(const char *name, int *n)
{
	struct instance in = { .name = name };

	if (config_find_run_dir(name, in.dir, sizeof(in.dir)) < 0 || stats_open(&in.page, in.dir) < 0)
		return;
	fprintf(stderr, "%s %s (%s%s)", (*n)++ ? "," : "  there is:", name, in.page->model,
	        instance_alive(&in) ? "" : ", but its process is gone");
	stats_close(in.page);
}

/* Print the instances of this user, and the folders that were searched. */
static void say_others(const char *but)
{
	char base[4096];
	struct dirent *e;
	DIR *d;
	int n = 0;

	if (config_find_run_dir("default", base, sizeof(base)) < 0)
		return;
	if (strcmp(but, "default") != 0)
		say_if_there("default", &n);
	d = opendir(base);
	while (d && (e = readdir(d)))
		if (e->d_name[0] != '.' && strcmp(e->d_name, but) != 0)
			say_if_there(e->d_name, &n);
	if (d)
		closedir(d);
	if (n)
		fprintf(stderr, "; name it by --instance\n");
	else
		fprintf(stderr, "  there is no other daemon in %s; \"slipring serve\" starts one (RUNTIME_DIRECTORY "
		        "names the directory, also for the daemon)\n", base);
}

int instance_open(struct instance *in, const char *command, const char *name)
{
	int r;

	*in = (struct instance){ .name = name ? name : "default" };
	r = config_find_run_dir(in->name, in->dir, sizeof(in->dir));
	if (r < 0) {
		fprintf(stderr, "slipring %s: --instance %s: %s\n", command, in->name,
		        config_run_dir_why(r));
		return r;
	}
	r = stats_open(&in->page, in->dir);
	if (r == 0)
		return 0;
	if (r == -ENOENT || r == -ENOTDIR) {
		fprintf(stderr, "slipring %s: no daemon \"%s\" runs: %s/stats is not there\n", command, in->name,
		        in->dir);
		say_others(in->name);
	} else if (r == -EPROTO) {
		fprintf(stderr, "slipring %s: %s/stats was written by another version of slipringd; use the slipring "
		        "of that version (this one is %s)\n", command, in->dir, SLIPRING_VERSION);
	} else {
		fprintf(stderr, "slipring %s: %s/stats: %s%s\n", command, in->dir, strerror(-r),
		        r == -EACCES ?
		        "; members of the daemon's group may read it" : "");
	}
	return r;
}

void instance_close(struct instance *in)
{
	stats_close(in->page);
	in->page = NULL;
}

bool instance_follow(struct instance *in)
{
	const struct stats_page *now;

	if (!stats_stale(in->page, in->dir) || stats_open(&now, in->dir) < 0)
		return false;
	stats_close(in->page);
	in->page = now;
	return true;
}

bool instance_alive(const struct instance *in)
{
	uint32_t pid = in->page->pid;

	return in->page->epoch && pid && pid <= INT_MAX && (kill((pid_t)pid, 0) == 0 || errno == EPERM);
}

const char *instance_config(const struct instance *in, char *why, size_t n)
{
	uid_t owner = stats_owner(in->page);

	*why = 0;
	if (!*in->page->config_file)
		snprintf(why, n, "the daemon was started without --config");
	else if (owner != 0 && owner != geteuid())
		snprintf(why, n, "%s/stats names %s, but that page belongs to uid %u, which is neither yours nor "
		         "root's and could name any file", in->dir, in->page->config_file, (unsigned)owner);
	return *why ? NULL : in->page->config_file;
}

/* Does the page beside this socket show that its daemon is draining? */
static bool draining(const char *socket)
{
	const char *slash = strrchr(socket, '/');
	struct instance in = { .name = "" };
	bool yes;

	if (!slash || snprintf(in.dir, sizeof(in.dir), "%.*s", (int)(slash - socket), socket) >=
	    (int)sizeof(in.dir) || stats_open(&in.page, in.dir) < 0)
		return false;
	yes = !strcmp(in.page->state, "draining") && instance_alive(&in);
	instance_close(&in);
	return yes;
}

/* Write the sentence for sr_open(socket) == rc < 0, with advice.  Returns rc. */
static int refused(const char *socket, int rc, char *err, size_t errlen)
{
	const char *hint = "";

	if (rc == -EACCES)
		hint = "; the daemon's user may connect, and members of its --socket-group";
	else if ((rc == -ENOENT || rc == -ECONNREFUSED) && draining(socket))
		hint = "; the daemon there is draining: it finishes its requests and accepts no client";
	else if (rc == -EPROTO)
		hint = "; the daemon there is of another version: use the slipring of its version (this one is "
		       SLIPRING_VERSION ")";
	else if (rc == -ENOENT || rc == -ECONNREFUSED)
		hint = "; no daemon listens there (slipring serve starts one)";
	else if (rc == -ETIMEDOUT || rc == -ECONNRESET)
		hint = "; a daemon listens there, but it is stopped or hangs, or has no core (slipring doctor)";
	return refuse(rc, err, errlen, "%s: %s%s", socket, strerror(-rc), hint);
}

int instance_connect(struct sr_conn **c, const char *socket, const struct sr_options *o, char *err,
                     size_t errlen)
{
	const struct timespec pause = { .tv_nsec = 100 * MS };
	const uint64_t until = sr_now() + INSTANCE_WAIT_S * 1000ull * MS;
	struct sr_options mine = *o;
	bool said = false;
	uint64_t now;
	int rc;

	mine.timeout_ms = FIRST_MS;
	while ((rc = sr_open(c, socket, &mine)) == -ETIMEDOUT || rc == -ECONNRESET) {
		if (!said)
			fprintf(stderr, "slipring: %s: the daemon does not answer yet; trying again for %d s\n", socket,
			        INSTANCE_WAIT_S);
		said = true;
		nanosleep(&pause, NULL);
		now = sr_now();
		if (now >= until)
			break;
		mine.timeout_ms = (uint32_t)((until - now) / MS) + 1; /* a new attempt loses its place in the queue */
	}
	return rc < 0 ? refused(socket, rc, err, errlen) : 0;
}
