/* listen.c - opens the sockets on which the adapter listens.  See listen.h. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "core/instance/notify.h"
#include "listen.h"

#define LISTEN_KEPT "kept-http"   /* our sockets' name at `slipring serve` */
#define BACKLOG 4096              /* the kernel takes less if net.core.somaxconn is less */

static int complain(char *err, size_t errlen, const char *what, const char *where, int code)
{
	snprintf(err, errlen, "%s %s: %s.", what, where, strerror(code));
	return -code;
}

/* Write the URL that a user types to reach it. */
static void write_url(struct listener *l, const struct config *cfg)
{
	struct sockaddr_storage a = { 0 };
	socklen_t n = sizeof(a);
	char host[NI_MAXHOST], port[NI_MAXSERV];
	const struct sockaddr_un *un = (const struct sockaddr_un *)&a;

	if (getsockname(l->fd[0], (struct sockaddr *)&a, &n) < 0 || a.ss_family == AF_UNIX) {
		snprintf(l->url, sizeof(l->url), "unix:%.*s", (int)sizeof(un->sun_path), un->sun_path);
		return;
	}
	if (getnameinfo((struct sockaddr *)&a, n, host, sizeof(host), port, sizeof(port),
	                NI_NUMERICHOST | NI_NUMERICSERV))
		return;
	snprintf(l->url, sizeof(l->url), a.ss_family == AF_INET6 ? "%s://[%.200s]:%s" : "%s://%.200s:%s",
	         cfg->ssl_certfile ? "https" : "http", host, port);
}

static int inherited(struct listener *l, int fd, int n, char *err, size_t errlen)
{
	int yes = 0;
	socklen_t len = sizeof(yes);

	if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &len) < 0 || !yes) {
		snprintf(err, errlen, "The socket from the service manager does not listen: the .socket unit needs "
		                      "ListenStream=.");
		close(fd);
		return -EINVAL;
	}
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	l->fd[l->n++] = fd;
	while (l->n < n) {
		fd = fcntl(l->fd[0], F_DUPFD_CLOEXEC, 3);
		if (fd < 0)
			return complain(err, errlen, "Copying the listening socket", "failed", errno);
		l->fd[l->n++] = fd;
	}
	return 0;
}

/* Remove a socket file on which no process listens any more.  Any other file stays, and is an error. */
static int clear_stale(const struct sockaddr_un *a, char *err, size_t errlen)
{
	struct stat st;
	int fd, r;

	if (lstat(a->sun_path, &st) < 0)
		return 0;
	if (!S_ISSOCK(st.st_mode)) {
		snprintf(err, errlen, "--uds %s exists and is not a socket.", a->sun_path);
		return -EEXIST;
	}
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return complain(err, errlen, "--uds", a->sun_path, errno);
	r = connect(fd, (const struct sockaddr *)a, sizeof(*a)) < 0 ? errno : 0;
	close(fd);
	if (r != ECONNREFUSED) {
		snprintf(err, errlen, "--uds %s: another server listens on it.", a->sun_path);
		return -EADDRINUSE;
	}
	unlink(a->sun_path);
	return 0;
}

static int open_unix(struct listener *l, const char *path, int n, char *err, size_t errlen)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd, r;

	if (strlen(path) >= sizeof(a.sun_path)) {
		snprintf(err, errlen, "--uds %s: the path is longer than %zu bytes.", path,
		         sizeof(a.sun_path) - 1);
		return -ENAMETOOLONG;
	}
	strcpy(a.sun_path, path);
	r = clear_stale(&a, err, errlen);
	if (r < 0)
		return r;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, BACKLOG) < 0) {
		r = errno;
		if (fd >= 0)
			close(fd);
		return complain(err, errlen, "--uds", path, r);
	}
	l->unlink = path;
	return inherited(l, fd, n, err, errlen);
}

/* shared: other sockets bind the same port too, and the kernel spreads connections over them. */
static int open_tcp(const struct addrinfo *ai, bool shared)
{
	int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1, r;

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (shared)
		setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
	if (bind(fd, ai->ai_addr, ai->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
		return fd;
	r = -errno;
	close(fd);
	return r;
}

static void set_port(struct addrinfo *ai, int fd)
{
	struct sockaddr_storage a;
	socklen_t n = sizeof(a);

	if (getsockname(fd, (struct sockaddr *)&a, &n) < 0)
		return;
	if (ai->ai_family == AF_INET6)
		((struct sockaddr_in6 *)(void *)ai->ai_addr)->sin6_port = ((struct sockaddr_in6 *)&a)->sin6_port;
	else
		((struct sockaddr_in *)(void *)ai->ai_addr)->sin_port = ((struct sockaddr_in *)&a)->sin_port;
}

/* The first bind is without SO_REUSEPORT: only so does it fail if another server has the port.  With it,
 * n sockets would silently share the port with a second server of the same user. */
static int open_address(struct listener *l, struct addrinfo *ai, int n)
{
	int fd = open_tcp(ai, false);

	if (fd < 0)
		return fd;
	if (n == 1) {
		l->fd[l->n++] = fd;
		return 0;
	}
	set_port(ai, fd);
	close(fd);
	while (l->n < n) {
		fd = open_tcp(ai, true);
		if (fd < 0)
			return fd;
		l->fd[l->n++] = fd;
	}
	return 0;
}

static int open_host(struct listener *l, const struct config *cfg, int n, char *err, size_t errlen)
{
	const char *host = cfg->host && *cfg->host ? cfg->host : "127.0.0.1";
	struct addrinfo hint = { .ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM };
	struct addrinfo *list;
	char port[16];
	int r;

	snprintf(port, sizeof(port), "%d", cfg->port);
	r = getaddrinfo(host, port, &hint, &list);
	if (r) {
		snprintf(err, errlen, "--host %s: %s.", host, gai_strerror(r));
		return -EADDRNOTAVAIL;
	}
	r = -EADDRNOTAVAIL;
	for (struct addrinfo *ai = list; ai && r < 0; ai = ai->ai_next) {
		if (ai->ai_family != AF_INET && ai->ai_family != AF_INET6)
			continue;
		r = open_address(l, ai, n);
		if (r < 0)
			listen_close(l);
	}
	freeaddrinfo(list);
	if (r == -EADDRINUSE)
		snprintf(err, errlen, "%s port %d is taken by another server; choose another --port, or 0 for "
		                      "any free one.", host, cfg->port);
	else if (r < 0)
		snprintf(err, errlen, "--host %s --port %d: %s.", host, cfg->port, strerror(-r));
	return r;
}

/* If the address is in use, try again for one second.  After a process is killed, the kernel frees its
 * io_uring, and with it its listening socket, a moment later. */
static int open_own(struct listener *l, const struct config *cfg, int n, char *err, size_t errlen)
{
	const struct timespec moment = { 0, 50000000 };
	int r = -EADDRINUSE;

	for (int i = 0; i < 20 && r == -EADDRINUSE; i++) {
		if (i)
			nanosleep(&moment, NULL);
		r = cfg->uds ? open_unix(l, cfg->uds, n, err, errlen) : open_host(l, cfg, n, err, errlen);
	}
	return r;
}

/* Those that our predecessor, which died, gave to `slipring serve`; or our own, which it gets. */
static int kept_or_own(struct listener *l, const struct config *cfg, const char *name, int n, char *err,
                       size_t errlen)
{
	int r;

	l->n = notify_sockets(name, l->fd, n);
	if (l->n == n) {
		l->unlink = cfg->uds;
		return 0;
	}
	listen_close(l);
	r = open_own(l, cfg, n, err, errlen);
	if (r == 0)
		notify_store(name, l->fd, n);
	return r;
}

int listen_open(struct listener *l, const struct config *cfg, int n, char *err, size_t errlen)
{
	int fd = notify_socket("http"), r;

	*l = (struct listener){ .n = 0 };
	if (n < 1 || n > LISTEN_MAX) {
		snprintf(err, errlen, "--api-server-count is %d; it must be 1 to %d.", n, LISTEN_MAX);
		return -EINVAL;
	}
	if (fd < 0 && notify_socket(LISTEN_KEPT) < 0)
		fd = notify_socket(NULL);
	r = fd >= 0 ? inherited(l, fd, n, err, errlen) : kept_or_own(l, cfg, LISTEN_KEPT, n, err, errlen);
	if (r == 0)
		write_url(l, cfg);
	else
		listen_close(l);
	return r;
}

int listen_metrics(struct listener *l, const struct config *cfg, int n, char *err, size_t errlen)
{
	struct config own = *cfg;
	char why[512];
	int r;

	*l = (struct listener){ .n = 0 };
	if (!cfg->metrics_port)
		return 0;
	own.port = cfg->metrics_port;
	own.uds = NULL;
	r = kept_or_own(l, &own, LISTEN_KEPT "-metrics", n, why, sizeof(why));
	if (r < 0)
		snprintf(err, errlen, "--metrics-port %d: %s", cfg->metrics_port, why);
	else
		write_url(l, &own);
	return r;
}

bool listen_reachable(const struct listener *l)
{
	struct sockaddr_storage a = { 0 };
	socklen_t n = sizeof(a);
	const struct sockaddr_in *in = (const struct sockaddr_in *)&a;
	const struct in6_addr *in6 = &((const struct sockaddr_in6 *)&a)->sin6_addr;

	if (!l->n || getsockname(l->fd[0], (struct sockaddr *)&a, &n) < 0)
		return false;
	if (a.ss_family == AF_INET)
		return ntohl(in->sin_addr.s_addr) >> 24 != IN_LOOPBACKNET;
	return a.ss_family == AF_INET6 && !IN6_IS_ADDR_LOOPBACK(in6) &&
	       !(IN6_IS_ADDR_V4MAPPED(in6) && in6->s6_addr[12] == IN_LOOPBACKNET);
}

void listen_close(struct listener *l)
{
	while (l->n)
		close(l->fd[--l->n]);
	if (l->unlink)
		unlink(l->unlink);
	l->unlink = NULL;
}
