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

int notify_send(const char *state)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	size_t n = path ? strlen(path) : 0;
	int fd, r = 0;

	if (!n)
		return 0;
	if (n >= sizeof(a.sun_path) || (path[0] != '/' && path[0] != '@'))
		return -EINVAL;
	memcpy(a.sun_path, path, n);
	if (path[0] == '@')
		a.sun_path[0] = 0;            /* the abstract name space */
	if ((fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) < 0)
		return -errno;
	if (sendto(fd, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&a,
	           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) < 0)
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

int notify_socket(const char *name)
{
	const char *names = getenv("LISTEN_FDNAMES");
	unsigned long long n = env_number("LISTEN_FDS");

	if (!n || n > 64 || env_number("LISTEN_PID") != (unsigned long long)getpid())
		return -ENOENT;
	for (unsigned i = 0; i < n; i++) {
		size_t len = names ? strcspn(names, ":") : 0;
		int fd = 3 + (int)i;

		if (name ? len == strlen(name) && !strncmp(names, name, len) : n == 1) {
			fcntl(fd, F_SETFD, FD_CLOEXEC);
			return fd;
		}
		if (names)
			names += len + (names[len] == ':');
	}
	return -ENOENT;
}
