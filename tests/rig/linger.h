/* linger.h - a descriptor whose last reference is dropped slowly: a TCP socket with unsent data and SO_LINGER,
 * whose other end does not read.
 */
#ifndef TESTS_LINGER_H
#define TESTS_LINGER_H

#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83              /* Linux 6.16 */
#endif

struct linger_pair { int fd, other; };

/* false: there is no loopback. */
static inline bool linger_make(struct linger_pair *p, int seconds)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct linger how = { 1, seconds };
	int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), little = 1024;
	static const char data[65536];
	socklen_t n = sizeof(a);

	p->other = -1;
	p->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(door, SOL_SOCKET, SO_RCVBUF, &little, sizeof(little));
	if (bind(door, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(door, 1) == 0 &&
	    getsockname(door, (struct sockaddr *)&a, &n) == 0 && connect(p->fd, (struct sockaddr *)&a, sizeof(a)) == 0)
		p->other = accept(door, NULL, NULL);
	close(door);
	if (p->other < 0) {
		close(p->fd);
		return false;
	}
	while (send(p->fd, data, sizeof(data), MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
		;
	setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &how, sizeof(how));
	return true;
}

/* Send it with a message and drop our own reference.  0, or the errno of the kernel's refusal. */
static inline int linger_send(int to, const void *buf, size_t len, struct linger_pair *p)
{
	union { char buf[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control = { .buf = { 0 } };
	struct iovec iov = { (void *)(uintptr_t)buf, len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
		.msg_controllen = sizeof(control.buf) };
	struct cmsghdr *cm = &control.align;
	int e;

	cm->cmsg_level = SOL_SOCKET;
	cm->cmsg_type = SCM_RIGHTS;
	cm->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(cm), &p->fd, sizeof(int));
	e = sendmsg(to, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
	if (!e) {
		close(p->fd);
		p->fd = -1;
	}
	return e;
}

/* Nothing lingers any more. */
static inline void linger_end(struct linger_pair *p)
{
	struct linger none = { 1, 0 };

	if (p->fd >= 0) {
		setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
		close(p->fd);
	}
	close(p->other);
}

#endif
