/* ask.c - see ask.h. */
#include "ask.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

static int receive_fd(int s, struct control_answer *a)
{
	char control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = { a, sizeof(*a) };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
	                    .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(s, &m, MSG_CMSG_CLOEXEC);
	struct cmsghdr *h = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
	int fd = -1;

	if (h && h->cmsg_type == SCM_RIGHTS && h->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(&fd, CMSG_DATA(h), sizeof(fd));
	a->say[sizeof(a->say) - 1] = 0;
	if (n == sizeof(*a) && a->magic == CONTROL_MAGIC && a->result < 0) {
		if (fd >= 0)
			close(fd);
		return a->result;
	}
	return n == sizeof(*a) && fd >= 0 ? fd : -EPROTO;
}

int ask_memory(const char *run_dir, uint32_t what, struct control_answer *a, int *connection)
{
	const struct control_ask q = { CONTROL_MAGIC, CONTROL_VERSION, what, 0, 0 };
	const struct timeval second = { 1, 0 };
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), fd = -EPROTO, r;

	memset(a, 0, sizeof(*a));
	if (s < 0)
		return -errno;
	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof(second));
	setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof(second));
	r = snprintf(at.sun_path, sizeof(at.sun_path), "%s/%s", run_dir, CONTROL_FILE);
	if (r >= (int)sizeof(at.sun_path))
		fd = -ENAMETOOLONG;
	else if (connect(s, (struct sockaddr *)&at, sizeof(at)) < 0 ||
	         send(s, &q, sizeof(q), MSG_NOSIGNAL) != sizeof(q))
		fd = -errno;
	else
		fd = receive_fd(s, a);
	if (fd >= 0 && connection)
		*connection = s;
	else
		close(s);
	return fd;
}
