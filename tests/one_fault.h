/* one_fault.h - what test_faults.c and test_http_faults.c share: in a whole program, in a child of the test, one
 * call fails, the n-th of its kind.  Both are linked with what is wrapped here (-Wl,--wrap=..), and wrap more.
 * tests/nth_call.h is for code in the test's own process.
 */
#ifndef TESTS_ONE_FAULT_H
#define TESTS_ONE_FAULT_H

#include <errno.h>
#include <liburing.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "tests/home.h"

enum kind { MEMORY, MAPPING, OPEN, READ, SOCKET, EVENTS, RANDOM, THREAD, TLS, N_KINDS };
static const char *const kind_name[] = { "allocation", "mapping", "open", "read", "socket call",
	"call for events", "random bytes", "thread", "TLS call" };

/* Shared with the child.  `on`: only between begin and end of what is tried. */
static struct fault {
	_Atomic int on, kind, at, seen[N_KINDS];
	_Atomic bool hit, stop_at_ready, ready;
} *fault;
static bool mine;                     /* in this process: the child's faults are not the test's */

static bool fails(enum kind k)
{
	int n;

	if (!mine || !fault || !fault->on)
		return false;
	n = ++fault->seen[k];
	if (fault->kind != (int)k || fault->at != n)
		return false;
	fault->hit = true;
	return true;
}

#define WRAP(k, error, value, type, name, args, pass) \
	type __real_##name args; type __wrap_##name args; \
	type __wrap_##name args \
	{ \
		if (fails(k)) { \
			errno = error; \
			return value; \
		} \
		return __real_##name pass; \
	}

WRAP(MEMORY, ENOMEM, NULL, void *, malloc, (size_t n), (n))
WRAP(MEMORY, ENOMEM, NULL, void *, calloc, (size_t n, size_t size), (n, size))
WRAP(MEMORY, ENOMEM, NULL, void *, realloc, (void *p, size_t n), (p, n))
WRAP(MAPPING, ENOMEM, MAP_FAILED, void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t o),
     (at, n, prot, flags, fd, o))
WRAP(OPEN, EMFILE, NULL, FILE *, fopen, (const char *path, const char *mode), (path, mode))
WRAP(READ, EIO, -1, ssize_t, read, (int fd, void *to, size_t n), (fd, to, n))
WRAP(SOCKET, EMFILE, -1, int, socket, (int domain, int type, int protocol), (domain, type, protocol))
WRAP(SOCKET, ENOBUFS, -1, ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
WRAP(SOCKET, ENOBUFS, -1, ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags))
WRAP(SOCKET, ENOBUFS, -1, ssize_t, send, (int fd, const void *m, size_t n, int flags), (fd, m, n, flags))
WRAP(SOCKET, ENOBUFS, -1, ssize_t, recv, (int fd, void *m, size_t n, int flags), (fd, m, n, flags))
WRAP(SOCKET, EMFILE, -1, int, accept4, (int fd, struct sockaddr *a, socklen_t *n, int flags),
     (fd, a, n, flags))
WRAP(SOCKET, EACCES, -1, int, getsockopt, (int fd, int level, int name, void *to, socklen_t *n),
     (fd, level, name, to, n))
WRAP(SOCKET, ECONNREFUSED, -1, int, connect, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
WRAP(OPEN, EMFILE, -1, int, eventfd, (unsigned n, int flags), (n, flags))
WRAP(READ, EIO, -1, int, fstat, (int fd, struct stat *st), (fd, st))
WRAP(RANDOM, EIO, -1, ssize_t, getrandom, (void *to, size_t n, unsigned flags), (to, n, flags))
WRAP(EVENTS, ENOMEM, -ENOMEM, int, io_uring_queue_init_params,
     (unsigned n, struct io_uring *r, struct io_uring_params *p), (n, r, p))
WRAP(EVENTS, EBUSY, -EBUSY, int, io_uring_submit, (struct io_uring *r), (r))
WRAP(EVENTS, EBUSY, -EBUSY, int, io_uring_submit_and_wait_timeout, (struct io_uring *r,
     struct io_uring_cqe **c, unsigned n, struct __kernel_timespec *t, sigset_t *m), (r, c, n, t, m))

int __real_open(const char *path, int flags, mode_t mode);
int __wrap_open(const char *path, int flags, mode_t mode);
int __wrap_open(const char *path, int flags, mode_t mode)
{
	if (fails(OPEN)) {
		errno = EMFILE;
		return -1;
	}
	return __real_open(path, flags, mode);
}

/* The end of the start is what it tells its service manager. */
int __wrap_notify_sendf(const char *fmt, ...);
int __wrap_notify_sendf(const char *fmt, ...)
{
	if (mine && fault && strncmp(fmt, "READY=1", 7) == 0) {
		fault->ready = true;
		if (fault->stop_at_ready) {
			fault->on = 0;
			raise(SIGTERM);
		}
	}
	return 0;
}

static void not_mine(void) { mine = false; }

/* What is called at exit (by gcov, by sanitizers) is not ours. */
static void in_child(void)
{
	mine = true;
	atexit(not_mine);
}

static int end_of(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void arm(enum kind k, int at, bool start)
{
	memset(fault, 0, sizeof(*fault));
	fault->kind = (int)k;
	fault->at = at;
	fault->stop_at_ready = start;
	fault->on = start;
}

#endif
