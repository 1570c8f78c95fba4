/* one_fault.h - shared by test_faults.c and test_http_faults.c.  A whole program runs in a child of the
 * test, and the n-th call of a kind fails there.  The caller may be we, a library, libc, or another thread
 * or process.
 *
 *	memory          malloc and the like are defined here and override libc's for the whole program.  Each
 *	                library is a kind, known by the address of the caller.
 *	system calls    a seccomp filter stops them.  A process beside the test, the warden, decides for each
 *	                whether the kernel makes it or it fails, also for the program's threads and children.
 *
 * tests/rig/nth_call.h is for code in the test's own process.  Linked with -Wl,--wrap=notify_sendf.
 */
#ifndef TESTS_ONE_FAULT_H
#define TESTS_ONE_FAULT_H

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/rig/home.h"

/* ---- what can fail ------------------------------------------------------------------------------- */

/* Who asks for memory.  The first is the program itself; "" is any library not named. */
static const char *const owner[] = { "the program", "libjansson", "libcrypto", "libssl", "libyaml",
	"libpcre2", "liburing", "libhugetlbfs", "libutf8proc", "" };
enum { N_OWNERS = sizeof(owner) / sizeof(owner[0]), N_CALLS = 80, N_KINDS = N_OWNERS + N_CALLS };

/* System calls, and how they fail.  Not in the list:
 * - close and munmap: the kernel does its part whatever it returns;
 * - brk: it reports failure in its own way, and malloc is above;
 * - exit, futex, signal masks and handlers, clocks, getpid and the like, the calls of a new thread,
 *   sched_yield: with correct arguments they do not fail. */
static const struct { int nr, error; const char *name; } call[] = {
#define CALL(name, error) { SYS_##name, error, #name }
	CALL(open, EMFILE), CALL(openat, EMFILE), CALL(socket, EMFILE), CALL(socketpair, EMFILE),
	CALL(accept4, EMFILE), CALL(eventfd2, EMFILE), CALL(signalfd4, EMFILE), CALL(memfd_create, EMFILE), CALL(epoll_create1, EMFILE),
	CALL(dup, EMFILE), CALL(pipe2, EMFILE),
	CALL(read, EIO), CALL(pread64, EIO), CALL(readv, EIO), CALL(preadv2, EIO), CALL(getdents64, EIO),
	CALL(readlink, EIO), CALL(stat, EIO), CALL(lstat, EIO), CALL(fstat, EIO), CALL(newfstatat, EIO),
	CALL(statx, EIO), CALL(lseek, EIO),
	CALL(write, ENOSPC), CALL(writev, ENOSPC), CALL(pwrite64, ENOSPC), CALL(ftruncate, ENOSPC),
	CALL(fallocate, ENOSPC), CALL(mkdir, ENOSPC), CALL(rename, ENOSPC), CALL(unlink, EIO), CALL(fsync, EIO),
	CALL(mmap, ENOMEM), CALL(mremap, ENOMEM), CALL(mprotect, ENOMEM), CALL(madvise, ENOMEM),
	CALL(mlock, ENOMEM), CALL(mbind, ENOMEM),
	CALL(bind, EADDRINUSE), CALL(listen, EADDRINUSE), CALL(connect, ECONNREFUSED), CALL(sendto, ENOBUFS),
	CALL(sendmsg, ENOBUFS), CALL(recvfrom, ENOBUFS), CALL(recvmsg, ENOBUFS), CALL(getsockopt, ENOBUFS),
	CALL(setsockopt, ENOBUFS), CALL(getsockname, ENOBUFS), CALL(shutdown, ENOBUFS),
	CALL(io_uring_setup, ENOMEM), CALL(io_uring_enter, EBUSY), CALL(io_uring_register, ENOMEM),
	CALL(epoll_ctl, ENOMEM), CALL(epoll_wait, EINTR), CALL(epoll_pwait, EINTR), CALL(poll, ENOMEM),
	CALL(rt_sigtimedwait, EINTR), CALL(clock_nanosleep, EINTR),
	CALL(clone, EAGAIN), CALL(clone3, EAGAIN), CALL(getrandom, EIO), CALL(fcntl, EBUSY), CALL(flock, ENOLCK),
	CALL(ioctl, ENOTTY), CALL(access, EACCES), CALL(chmod, EPERM), CALL(fchmod, EPERM), CALL(chown, EPERM),
	CALL(setpgid, EPERM), CALL(prlimit64, EPERM), CALL(prctl, EINVAL), CALL(sched_getaffinity, EINVAL),
	CALL(sched_setaffinity, EINVAL), CALL(sched_setscheduler, EPERM), CALL(sched_getattr, EINVAL),
#undef CALL
};
#define N_CALL ((int)(sizeof(call) / sizeof(call[0])))
_Static_assert(sizeof(call) / sizeof(call[0]) <= N_CALLS, "a kind for each");

/* Shared by all processes.  `on`: between the begin and the end of what is tried.  kind < 0: nothing fails,
 * and all calls are counted. */
static struct fault {
	_Atomic int on, kind, at, seen[N_KINDS];
	_Atomic bool hit, stop_at_ready, ready;
} *fault;
static bool mine;                     /* this is the child: only its calls fail, not the test's */

static const char *kind_name(int k)
{
	static char text[60];

	if (k >= N_OWNERS)
		return call[k - N_OWNERS].name;
	snprintf(text, sizeof(text), "allocation of %s", *owner[k] ? owner[k] : "another library");
	return text;
}

static bool fails(int k)
{
	int n = ++fault->seen[k];

	if (fault->kind != k || fault->at != n)
		return false;
	fault->hit = true;
	return true;
}

/* ---- who calls ----------------------------------------------------------------------------------- */

enum { SANITIZER = -1, JANSSON = 1, LIBCRYPTO, LIBSSL, OTHER = N_OWNERS - 1 };

static struct range { uintptr_t from, to; int owner; } range[64];
static int n_ranges;

static int name_object(struct dl_phdr_info *o, size_t size, void *arg)
{
	int who = *(int *)arg ? OTHER : 0;    /* the first one is the program */

	(void)size;
	++*(int *)arg;
	for (int i = 1; i < OTHER; i++)
		if (strstr(o->dlpi_name, owner[i]))
			who = i;
	if (strstr(o->dlpi_name, "/libasan") || strstr(o->dlpi_name, "/libubsan"))
		who = SANITIZER;
	for (int i = 0; i < o->dlpi_phnum && n_ranges < 64; i++)
		if (o->dlpi_phdr[i].p_type == PT_LOAD && o->dlpi_phdr[i].p_flags & PF_X) {
			uintptr_t from = o->dlpi_addr + o->dlpi_phdr[i].p_vaddr;

			range[n_ranges++] = (struct range){ from, from + o->dlpi_phdr[i].p_memsz, who };
		}
	return 0;
}

static int who_is(uintptr_t at)
{
	for (int i = 0; i < n_ranges; i++)
		if (at >= range[i].from && at < range[i].to)
			return range[i].owner;
	return OTHER;
}

/* ---- memory -------------------------------------------------------------------------------------- */

static size_t ahead_of_jansson;         /* bytes that the program puts before each block of jansson's */
static _Thread_local bool not_ours;   /* AddressSanitizer is calling, in this thread */

/* jansson 2.14 writes past its buffer when a word's buffer cannot grow, up to the next power of two.
 * adapters/http/json/json.c protects requests from that.  The operator's own files are not protected. */
static bool buffer_of_jansson(int who, size_t n)
{
	n -= ahead_of_jansson;
	return who == JANSSON && fault->stop_at_ready && n >= 32 && !(n & (n - 1));
}

static bool no_memory(const void *from, size_t n)
{
	int who;

	if (!mine || not_ours || !fault || !fault->on || (who = who_is((uintptr_t)from)) == SANITIZER ||
	    buffer_of_jansson(who, n) || !fails(who))
		return false;
	errno = ENOMEM;
	return true;
}

#ifdef __SANITIZE_ADDRESS__
#define BELOW(name) __interceptor_##name
#else
#define BELOW(name) __libc_##name
#endif
#define PUBLIC __attribute__((visibility("default"), noinline))
#define FROM   __builtin_return_address(0)

void *BELOW(malloc)(size_t n);
void *BELOW(calloc)(size_t n, size_t size);
void *BELOW(realloc)(void *p, size_t n);
void *BELOW(memalign)(size_t a, size_t n);

PUBLIC void *malloc(size_t n) { return no_memory(FROM, n) ? NULL : BELOW(malloc)(n); }
PUBLIC void *calloc(size_t n, size_t m) { return no_memory(FROM, n * m) ? NULL : BELOW(calloc)(n, m); }
PUBLIC void *realloc(void *p, size_t n) { return no_memory(FROM, n) ? NULL : BELOW(realloc)(p, n); }
PUBLIC void *aligned_alloc(size_t a, size_t n) { return no_memory(FROM, n) ? NULL : BELOW(memalign)(a, n); }
PUBLIC int posix_memalign(void **out, size_t a, size_t n)
{
	return no_memory(FROM, n) || !(*out = BELOW(memalign)(a, n)) ? ENOMEM : 0;
}

#ifdef __SANITIZE_ADDRESS__
/* AddressSanitizer asks for each new thread's stack, and aborts if libc has no memory for the answer. */
PUBLIC int pthread_getattr_np(pthread_t t, pthread_attr_t *a)
{
	int (*real)(pthread_t t, pthread_attr_t *a), e;

	*(void **)&real = dlsym(RTLD_NEXT, "pthread_getattr_np");
	not_ours = true;
	e = real(t, a);
	not_ours = false;
	return e;
}
#endif

/* ---- system calls -------------------------------------------------------------------------------- */

static int warden_fd = -1;
static pid_t warden;

/* Calls of AddressSanitizer itself pass: it cannot cope with a failure. */
static void judge(const struct seccomp_notif *q, struct seccomp_notif_resp *a)
{
	*a = (struct seccomp_notif_resp){ .id = q->id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE };
	if (!fault->on || who_is(q->data.instruction_pointer) == SANITIZER)
		return;
	for (int i = 0; i < N_CALL; i++)
		if (call[i].nr == q->data.nr && fails(N_OWNERS + i)) {
			a->error = -call[i].error;
			a->flags = 0;
		}
}

/* In the warden: judge the program's calls until the last of its processes has ended. */
static void watch_calls(int from)
{
	char space[CMSG_SPACE(sizeof(int))], byte;
	struct iovec io = { &byte, 1 };
	struct msghdr m = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = space,
		.msg_controllen = sizeof(space) };
	struct pollfd p = { .events = POLLIN };

	if (recvmsg(from, &m, 0) != 1 || !CMSG_FIRSTHDR(&m))
		return;                       /* it ended earlier and reported why */
	memcpy(&p.fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(p.fd));
	while (poll(&p, 1, -1) >= 0 && p.revents & POLLIN) {
		union { struct seccomp_notif q; char room[256]; } q = { 0 };
		union { struct seccomp_notif_resp a; char room[256]; } a = { 0 };

		if (ioctl(p.fd, SECCOMP_IOCTL_NOTIF_RECV, &q) < 0)
			continue;             /* the caller was killed meanwhile */
		judge(&q.q, &a.a);
		ioctl(p.fd, SECCOMP_IOCTL_NOTIF_SEND, &a);
	}
}

/* Before the fork of the program. */
static void warden_start(void)
{
	int fd[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
	fflush(NULL);
	warden = fork();
	assert_true(warden >= 0);
	if (!warden) {
		close(fd[1]);
		watch_calls(fd[0]);
		_exit(0);
	}
	close(fd[0]);
	warden_fd = fd[1];
}

/* In the program, before its main: the warden sees its calls from here on.  Nobody else calls sendmmsg. */
static void be_watched(void)
{
	char space[CMSG_SPACE(sizeof(int))] = { 0 }, byte = 0;
	struct iovec io = { &byte, 1 };
	struct mmsghdr m = { .msg_hdr = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = space,
		.msg_controllen = sizeof(space) } };
	struct sock_filter f[N_CALLS + 6] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	};
	struct sock_fprog prog = { .filter = f };
	int n = 1, fd;

	for (int i = 0; i < N_CALL; i++)
		f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call[i].nr,
		                                      (uint8_t)(N_CALL - i), 0);
	f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
	prog.len = (unsigned short)n;
	/* Killed with its test, the warden leaves calls that fail for ever: nothing may spin on them for long. */
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || setrlimit(RLIMIT_CPU, &(struct rlimit){ 600, 600 }) < 0)
		_exit(98);
	fd = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &prog);
	if (fd < 0)
		_exit(98);
	*CMSG_FIRSTHDR(&m.msg_hdr) = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
		.cmsg_len = CMSG_LEN(sizeof(fd)) };
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m.msg_hdr)), &fd, sizeof(fd));
	if (sendmmsg(warden_fd, &m, 1, 0) != 1)
		_exit(98);
	close(fd);
	close(warden_fd);
}

/* ---- the program --------------------------------------------------------------------------------- */

/* Starting ends with the message to the service manager. */
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

/* Calls made at exit by gcov and sanitizers do not count. */
static void not_mine(void) { mine = false; }

static void in_child(void)
{
	for (int i = 0; i < 5; i++)           /* otherwise cmocka would run further tests in this child */
		signal((int[]){ SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE }[i], SIG_DFL);
	be_watched();
	mine = true;
	atexit(not_mine);
}

static int end_of(pid_t pid)
{
	int status;

	if (warden_fd >= 0)
		close(warden_fd);
	warden_fd = -1;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (warden)
		assert_int_equal(waitpid(warden, NULL, 0), warden);
	warden = 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static bool had[N_KINDS];             /* kinds of call that the tried code makes */

static void note(void)
{
	for (int k = 0; k < N_KINDS; k++)
		had[k] = fault->seen[k] > 0;
}

/* Try each call; of more than `all` similar ones, only a sample.  SLIPRING_FAULTS tries all. */
static int next(int at, int all)
{
	return at < all || getenv("SLIPRING_FAULTS") ? at + 1 : at + 1 + at * (all ? 1 : 4) / 2;
}

static void arm(int k, int at, bool start)
{
	memset(fault, 0, sizeof(*fault));
	fault->kind = k;
	fault->at = at;
	fault->stop_at_ready = start;
	fault->on = start;
}

/* Can a process judge another's calls by seccomp here?  If not, print once why the test is skipped. */
static bool can_fault(void)
{
	int objects = 0;
	pid_t pid;

	fault = home_share(sizeof(*fault));
	dl_iterate_phdr(name_object, &objects);
	warden_start();
	pid = fork();
	if (!pid) {
		be_watched();
		_exit(0);
	}
	return end_of(pid) == 0;
}

#endif
