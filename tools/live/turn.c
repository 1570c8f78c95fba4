/* turn.c - the client of core/control.c (one message, one answer), and the keeper of knobs. */
#include "turn.h"
#include "core/instance/refuse.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define TIMEOUT_S 5                       /* s; the daemon reads between layers, every few ms */

static int reach(const struct instance *in, struct sockaddr_un *addr, char *err, size_t errlen)
{
	int fd, e;

	if (strlen(in->dir) > 100 || (size_t)snprintf(addr->sun_path, sizeof(addr->sun_path), "%.100s/%s",
	    in->dir, CONTROL_FILE) >= sizeof(addr->sun_path))
		return refuse(-ENAMETOOLONG, err, errlen, "%s: the path is too long for a socket", in->dir);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)addr, sizeof(*addr)) == 0)
		return fd;
	e = -errno;
	snprintf(err, errlen, "%s: %s%s", addr->sun_path, strerror(-e), e == -ECONNREFUSED || e == -ENOENT ?
	         "; the daemon is gone (\"slipring serve\" starts one)" : "");
	if (fd >= 0)
		close(fd);
	return e;
}

int turn(const struct instance *in, enum knob k, int64_t value, struct control_answer *a, char *err,
         size_t errlen)
{
	struct control_ask q = { .magic = CONTROL_MAGIC, .version = CONTROL_VERSION, .knob = (uint32_t)k,
	                         .value = value };
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct timeval limit = { .tv_sec = TIMEOUT_S };
	int fd = reach(in, &addr, err, errlen), e;
	ssize_t n;

	if (fd < 0)
		return fd;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if (send(fd, &q, sizeof(q), MSG_NOSIGNAL) < 0 && errno != EPIPE) {
		e = -errno;                   /* with EPIPE the daemon refused us, and its answer says why */
		snprintf(err, errlen, "%s: %s", addr.sun_path, strerror(-e));
		close(fd);
		return e;
	}
	n = recv(fd, a, sizeof(*a), 0);
	close(fd);
	if (n == (ssize_t)sizeof(*a) && a->magic == CONTROL_MAGIC && a->version == CONTROL_VERSION) {
		a->say[sizeof(a->say) - 1] = 0;
		snprintf(err, errlen, "%s", a->say);
		return a->result;
	}
	return refuse(-EPROTO, err, errlen,
	              n < 0 ? "the daemon does not answer within %d s; see its log" :
	              "this version does not understand the daemon's answer; try again",
	              TIMEOUT_S);
}

int turn_all(const struct instance *in, const int64_t want[N_KNOBS], char *err, size_t errlen)
{
	struct control_answer a;
	int rc = 0, e;

	for (int round = 0; round < N_KNOBS; round++) {
		rc = 0;
		stats_read(in->page);
		for (int k = 0; k < N_KNOBS; k++)
			if (in->page->knob[k] != want[k] && (e = turn(in, (enum knob)k, want[k], &a, err, errlen)) < 0)
				rc = e;
		if (!rc)
			break;
	}
	return rc;
}

/* ---- the keeper -------------------------------------------------------------------------------- */


static int keep_knobs(const struct instance *in, const int64_t *was, int end)
{
	char err[400], word;

	setsid();                             /* a terminal's Ctrl-C must not reach the keeper */
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	while (read(end, &word, 1) < 0 && errno == EINTR)
		continue;
	if (stats_stale(in->page, in->dir) || !instance_alive(in) || !turn_all(in, was, err, sizeof(err)))
		return 0;
	fprintf(stderr, "slipring: not all knobs could be put back: %s; \"slipring set\" lists them\n", err);
	return 1;
}

int keeper_start(struct keeper *k, const struct instance *in, char *err, size_t errlen)
{
	int64_t was[N_KNOBS];
	int end[2];

	memcpy(was, in->page->knob, sizeof(was));
	if (pipe2(end, O_CLOEXEC) < 0) {
		snprintf(err, errlen, "no pipe: %s", strerror(errno));
		return -errno;
	}
	fflush(NULL);
	k->pid = fork();
	if (k->pid == 0) {
		close(end[1]);
		_exit(keep_knobs(in, was, end[0]));
	}
	close(end[0]);
	k->end = end[1];
	if (k->pid > 0)
		return 0;
	snprintf(err, errlen, "no process: %s", strerror(errno));
	close(k->end);
	return -EAGAIN;
}

int keeper_stop(struct keeper *k)
{
	int status = 0;

	close(k->end);
	while (waitpid(k->pid, &status, 0) < 0 && errno == EINTR)
		continue;
	return status ? -EIO : 0;
}
