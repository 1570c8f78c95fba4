/* listen.c - see listen.h. */
#include "listen.h"

#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/instance/notify.h"

/* Remove a socket file on which no server listens.  Any other file stays: --socket may name any path, and the
 * daemon's lock is that of its run directory. */
static int clear_stale(const struct sockaddr_un *a, char *err, size_t errlen)
{
	struct stat st;
	int fd, e;

	if (lstat(a->sun_path, &st) < 0)
		return 0;                     /* if something is wrong, bind reports it */
	if (!S_ISSOCK(st.st_mode)) {
		snprintf(err, errlen, "%s: it exists and is not a socket", a->sun_path);
		return -1;
	}
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	e = fd < 0 || connect(fd, (const struct sockaddr *)a, sizeof(*a)) < 0 ? errno : 0;
	if (fd >= 0)
		close(fd);
	if (e == ENOENT)
		return 0;                     /* its server has just removed it */
	if (e == ECONNREFUSED) {
		unlink(a->sun_path);
		return 0;
	}
	if (e == 0 || e == EAGAIN || e == EPROTOTYPE) /* its backlog is full, or it has another type */
		snprintf(err, errlen, "%s: another server listens there; stop it, or give this one "
		         "another --socket", a->sun_path);
	else if (e == EACCES)                 /* we cannot find out whether a server listens */
		snprintf(err, errlen, "%s: a socket of uid %u to which we may not connect; remove it if no server "
		         "uses it, or give another --socket", a->sun_path, (unsigned)st.st_uid);
	else
		snprintf(err, errlen, "%s: %s", a->sun_path, strerror(e));
	return -1;
}

static int bind_file(struct ring_socket *l, const struct sockaddr_un *a, char *err, size_t errlen)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	mode_t mask = umask(0117);            /* srw-rw---- from the first moment */
	int bound = fd < 0 ? -1 : bind(fd, (const struct sockaddr *)a, sizeof(*a));
	struct stat st;

	if (bound < 0 || listen(fd, 128) < 0) {
		snprintf(err, errlen, "%s: %s", a->sun_path, strerror(errno));
		umask(mask);
		if (fd >= 0)
			close(fd);
		return -1;
	}
	umask(mask);
	if (lstat(a->sun_path, &st) == 0) {
		l->dev = st.st_dev;
		l->ino = st.st_ino;
	}
	return fd;
}

int listen_open(struct ring_socket *l, const char *group, char *err, size_t errlen)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = notify_socket("slipring");
	struct group *g;

	if (fd >= 0)
		return fd;
	if (strlen(l->path) >= sizeof(a.sun_path)) {
		snprintf(err, errlen, "%.200s: longer than the %zu bytes a socket's path may have; "
		         "give a shorter --socket", l->path, sizeof(a.sun_path) - 1);
		return -1;
	}
	strcpy(a.sun_path, l->path);
	if (clear_stale(&a, err, errlen) < 0 || (fd = bind_file(l, &a, err, errlen)) < 0)
		return -1;
	if (!group)
		return fd;
	g = getgrnam(group);
	if (!g || chown(l->path, (uid_t)-1, g->gr_gid) < 0) {
		snprintf(err, errlen, "--socket-group %s: %s", group, g ? strerror(errno) : "no such group");
		close(fd);
		return -1;
	}
	return fd;
}

void listen_forget(const struct ring_socket *l)
{
	struct stat st;

	if (l->ino && lstat(l->path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino)
		unlink(l->path);
}
