/* clients_by_hand.h - a daemon that turns when the test says so, in one thread; calls of the system that fail
 * when the test says so; and a client of the library that asks.
 *
 * A test that includes it links with --wrap for each WRAP() below.
 */
#ifndef CLIENTS_BY_HAND_H
#define CLIENTS_BY_HAND_H

#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/wait.h>

#include "tests/rig/daemon.h"
#include "core/clients/impl.h"
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif
#include "shmring/client.c" /* a client that miscounts is built from it */

/* ---- calls that fail ------------------------------------------------------------------------- */

static struct { const char *name; int nth, times, error; } fault;
static struct ucred *peer;            /* what SO_PEERCRED returns, if not NULL */
static uid_t self = (uid_t)-1;        /* what geteuid() returns, unless -1 */

static inline bool fails(const char *name)
{
	if (!fault.name || strcmp(fault.name, name) != 0 || --fault.nth > 0)
		return false;
	errno = fault.error;
	if (--fault.times == 0)
		fault.name = NULL;
	return true;
}

static inline void fail_next(const char *name, int nth, int times, int error)
{
	fault.name = name;
	fault.nth = nth;
	fault.times = times;
	fault.error = error;
}

#define WRAP(value, type, name, args, pass) \
	type __real_##name args; type __wrap_##name args; \
	type __wrap_##name args { return fails(#name) ? value : __real_##name pass; }

WRAP(-1, int, accept4, (int fd, struct sockaddr *a, socklen_t *n, int flags), (fd, a, n, flags))
WRAP(-ENOMEM, int, io_watch_add, (struct io *io, struct io_watch *w), (io, w))
WRAP(NULL, void *, calloc, (size_t n, size_t size), (n, size))
WRAP(NULL, void *, malloc, (size_t n), (n))
WRAP(-1, ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags))
WRAP(-1, ssize_t, getrandom, (void *to, size_t n, unsigned flags), (to, n, flags))
WRAP(-1, int, fcntl, (int fd, int cmd, long arg), (fd, cmd, arg))

static int n_read;
int __real_host_read(struct host_conn *c);
int __wrap_host_read(struct host_conn *c);
int __wrap_host_read(struct host_conn *c)
{
	n_read++;
	return fails("host_read") ? -EFAULT : __real_host_read(c);
}

WRAP(-fault.error, int, sched_admit, (struct sched *s, void *client, uint64_t tenant,
     const struct sched_request *r, uint64_t now), (s, client, tenant, r, now))

uid_t __real_geteuid(void);
uid_t __wrap_geteuid(void);
uid_t __wrap_geteuid(void) { return self == (uid_t)-1 ? __real_geteuid() : self; }

int __real_getsockopt(int fd, int level, int name, void *to, socklen_t *n);
int __wrap_getsockopt(int fd, int level, int name, void *to, socklen_t *n);
int __wrap_getsockopt(int fd, int level, int name, void *to, socklen_t *n)
{
	if (name != SO_PASSRIGHTS && fails(name == SO_PEERCRED ? "peercred" : "peerpidfd"))
		return -1;
	if (name == SO_PEERCRED && peer) {
		memcpy(to, peer, sizeof(*peer));
		return 0;
	}
	return __real_getsockopt(fd, level, name, to, n);
}

/* ---- the daemon by hand ---------------------------------------------------------------------- */

static struct daemon d;

static inline void begin(const struct clients_config *cfg)
{
	daemon_init(&d, cfg);
	daemon_make(&d);
}

static inline void end(void)
{
	daemon_unmake(&d);
	daemon_clear(&d);
	assert_null(fault.name);
}

static inline int setup(void **state)
{
	(void)state;
	begin(NULL);
	return 0;
}

static inline int teardown(void **state)
{
	(void)state;
	end();
	return 0;
}

static inline void turns(int n)
{
	for (int i = 0; i < n; i++)
		daemon_turn(&d);
	look_inside(&d);
}

static inline int knock(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	strcpy(a.sun_path, d.path);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	return fd;
}

static inline void hello(int fd)
{
	struct sr_hello h = { .magic = SR_MAGIC, .version = SR_VERSION, .want = { 32, 64, 4096 } };

	assert_int_equal(send(fd, &h, sizeof(h), MSG_NOSIGNAL), sizeof(h));
}

enum { NOT_YET = 1, GONE = 2 };

/* The answer: 0, -errno, NOT_YET, or GONE if it was closed. */
static inline int answered(int fd)
{
	struct sr_welcome w;
	ssize_t n = recv(fd, &w, sizeof(w), MSG_DONTWAIT);

	if (n < 0 && errno == EAGAIN)
		return NOT_YET;
	if (n <= 0)
		return GONE;
	assert_int_equal(n, sizeof(w));
	return w.status;
}

/* Connect and send a hello.  Returns the answer. */
static inline int comes(int *fd)
{
	int e;

	*fd = knock();
	turns(3);
	hello(*fd);
	turns(3);
	e = answered(*fd);
	if (e == 0) {
		assert_int_equal(sr_signal(*fd), 0);
		turns(3);
		assert_int_equal(recv(*fd, &(char){ 0 }, 1, MSG_DONTWAIT), 1);
	}
	return e;
}

static inline void leaves(int fd)
{
	close(fd);
	turns(3);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static struct sr_conn *conn;
static atomic_bool opened;
static uint32_t wish_live = 32;

static inline void *open_there(void *arg)
{
	struct sr_options o = { .size = sizeof(o), .live = wish_live, .tokens = 64, .arena = 1 << 19 };

	(void)arg;
	if (sr_open(&conn, d.path, &o) < 0)
		conn = NULL;
	opened = true;
	return NULL;
}

/* A client of the library needs a daemon that turns while it connects. */
static inline void open_conn(void)
{
	pthread_t t;

	opened = false;
	assert_int_equal(pthread_create(&t, NULL, open_there, NULL), 0);
	while (!opened)
		turns(1);
	pthread_join(t, NULL);
	assert_non_null(conn);
}

static const int32_t ids[1024];

static inline uint32_t submit(uint32_t n_prompt, uint32_t max, uint32_t n_bias)
{
	static const struct sr_pair bias[SR_LIST_MAX];
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = n_prompt, .max_tokens = max,
		.bias = bias, .n_bias = n_bias, .flags = SR_IGNORE_EOS };
	uint32_t ticket;

	assert_int_equal(sr_submit(conn, &q, &ticket), 0);
	return ticket;
}

/* Turn until n ENDs were read.  Returns the last one's finish. */
static inline int32_t ends(int n)
{
	struct sr_record r[16];
	uint64_t until = io_now() + 5000 * MS;
	int32_t finish = 0;

	while (n > 0) {
		int k = sr_poll(conn, r, 16);

		assert_true(k >= 0 && io_now() < until);
		for (int i = 0; i < k; i++)
			if (r[i].kind == SR_END) {
				finish = r[i].u.end.finish;
				n--;
			}
		turns(1);
	}
	return finish;
}

/* While clients are served, new ones are accepted only beside a batch, or after a while. */

#endif
