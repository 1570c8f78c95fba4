/* notify.c - sd_notify(3) and sd_listen_fds(3), by their protocols. */
#include "notify.h"
#include "shmring/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Where the service manager reads.  1; 0: there is none; -EINVAL. */
static int address(struct sockaddr_un *a, socklen_t *len)
{
	const char *path = getenv("NOTIFY_SOCKET");
	size_t n = path ? strlen(path) : 0;

	*a = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (!n)
		return 0;
	if (n >= sizeof(a->sun_path) || (path[0] != '/' && path[0] != '@'))
		return -EINVAL;
	memcpy(a->sun_path, path, n);
	if (path[0] == '@')
		a->sun_path[0] = 0;           /* the abstract name space */
	*len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
	return 1;
}

int notify_send(const char *state)
{
	struct sockaddr_un a;
	socklen_t len;
	int fd, r = address(&a, &len);

	if (r <= 0)
		return r;
	r = 0;
	if ((fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) < 0)
		return -errno;
	if (sendto(fd, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&a,
	           len) < 0)
		r = -errno;
	close(fd);
	return r;
}

int notify_sendf(const char *fmt, ...)
{
	char s[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(s, sizeof(s), fmt, ap);
	va_end(ap);
	return notify_send(s);
}

int notify_reloading(void)
{
	return notify_sendf("RELOADING=1\nMONOTONIC_USEC=%lld", (long long)(sr_now() / 1000));
}

int notify_store(const char *name, const int *fd, int n)
{
	union { char bytes[CMSG_SPACE(NOTIFY_SOCKETS * sizeof(int))]; struct cmsghdr align; } control = { { 0 } };
	char text[64];
	struct sockaddr_un a;
	socklen_t len;
	struct iovec iov = { text, (size_t)snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%.40s", name) };
	struct msghdr m = { .msg_name = &a, .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes };
	struct cmsghdr *h = &control.align;
	int r = address(&a, &len), s;

	if (r <= 0 || n < 1 || n > NOTIFY_SOCKETS)
		return r < 0 ? r : r ? -EINVAL : 0;
	m.msg_namelen = len;
	m.msg_controllen = CMSG_SPACE((size_t)n * sizeof(int));
	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
	memcpy(CMSG_DATA(h), fd, (size_t)n * sizeof(int));
	if ((s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) < 0)
		return -errno;
	r = sendmsg(s, &m, MSG_NOSIGNAL) < 0 ? -errno : 0;
	close(s);
	return r;
}

/* A whole number from the environment; 0 if it is missing or invalid. */
static unsigned long long env_number(const char *name)
{
	const char *s = getenv(name);
	char *end;
	unsigned long long v;

	if (!s || *s < '0' || *s > '9')
		return 0;
	errno = 0;
	v = strtoull(s, &end, 10);
	return errno || *end ? 0 : v;
}

uint64_t notify_watchdog_ns(void)
{
	unsigned long long us = env_number("WATCHDOG_USEC"), pid = env_number("WATCHDOG_PID");

	if (!us || us > UINT64_MAX / 1000 || (pid && pid != (unsigned long long)getpid()))
		return 0;
	return us * 1000 / 2;
}

int notify_sockets(const char *name, int *out, int most)
{
	const char *names = getenv("LISTEN_FDNAMES");
	unsigned long long n = env_number("LISTEN_FDS");
	int found = 0;

	if (!n || n > 2 * NOTIFY_SOCKETS || env_number("LISTEN_PID") != (unsigned long long)getpid())
		return 0;
	for (unsigned i = 0; i < n && found < most; i++) {
		size_t len = names ? strcspn(names, ":") : 0;
		int fd = 3 + (int)i;

		if (name ? len == strlen(name) && !strncmp(names, name, len) : n == 1) {
			fcntl(fd, F_SETFD, FD_CLOEXEC);
			out[found++] = fd;
		}
		if (names)
			names += len + (names[len] == ':');
	}
	return found;
}

int notify_socket(const char *name)
{
	int fd;

	return notify_sockets(name, &fd, 1) ? fd : -ENOENT;
}
