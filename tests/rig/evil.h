/* evil.h - a client by hand, for tests of what a client may try.  It can write anything anywhere in its
 * own memory.
 */
#ifndef TESTS_EVIL_H
#define TESTS_EVIL_H

#include <poll.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/instance/io.h"
#include "shmring/wire.h"

struct evil {
	int fd, up_fd, down_fd;
	struct sr_shape shape;
	unsigned char *up, *down;
	size_t up_len, down_len;      /* of whole objects, in whole pages */
	struct sr_ring requests, cancels, tokens, guides;
	uint32_t vocab;
	_Atomic uint32_t n_ends;      /* another thread may look */
	int32_t finish;               /* of the last END */
};

/* A connected socket, or -1. */
static inline int dial(const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
		return fd;
	close(fd);
	return -1;
}

/* Receive the welcome and its two objects.  false: there is none. */
static inline bool evil_welcome(struct evil *e)
{
	struct sr_welcome w = { .status = -1 };
	union { char buf[CMSG_SPACE(8)]; struct cmsghdr align; } control;
	struct iovec iov = { &w, sizeof(w) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
		.msg_controllen = sizeof(control.buf) };
	int fds[2];

	if (recvmsg(e->fd, &msg, MSG_CMSG_CLOEXEC) != sizeof(w) || w.status)
		return false;
	memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fds));
	e->shape = w.shape;
	e->up_fd = fds[0];
	e->down_fd = fds[1];
	return true;
}

static inline void evil_close(struct evil *e)
{
	munmap(e->up, e->up_len);
	munmap(e->down, e->down_len);
	close(e->up_fd);
	close(e->down_fd);
	close(e->fd);
}

static inline unsigned char *evil_object(int fd, int prot, size_t *len)
{
	struct stat st;
	void *at;

	if (fstat(fd, &st) < 0)
		abort();
	*len = (size_t)st.st_size;
	at = mmap(NULL, *len, prot, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		abort();
	return at;
}

/* Hello and welcome, both objects mapped; the daemon has not been signalled yet. */
static inline bool evil_map(struct evil *e, const char *path, struct sr_shape want)
{
	struct sr_hello h = { .magic = SR_MAGIC, .version = SR_VERSION, .want = want, .name = "evil" };
	struct sr_up *up;
	struct sr_down *down;
	uint32_t live;

	memset(e, 0, sizeof(*e));
	e->fd = dial(path);
	if (e->fd < 0)
		return false;
	if (send(e->fd, &h, sizeof(h), MSG_NOSIGNAL) != sizeof(h) || !evil_welcome(e)) {
		close(e->fd);
		return false;
	}
	live = e->shape.live;
	e->up = evil_object(e->up_fd, PROT_READ | PROT_WRITE, &e->up_len);
	e->down = evil_object(e->down_fd, PROT_READ, &e->down_len);
	up = (void *)e->up;
	down = (void *)e->down;
	sr_ring_init(&e->requests, true, &up->requests, &down->requests, e->up + SR_PAGE, live, 256);
	sr_ring_init(&e->cancels, true, &up->cancels, &down->cancels, e->up + SR_OFF_CANCELS(live), 2 * live, 64);
	sr_ring_init(&e->tokens, false, &down->tokens, &up->tokens, e->down + SR_PAGE, e->shape.tokens, 64);
	if (e->shape.guides)
		sr_ring_init(&e->guides, true, &up->guides, &down->guides, e->up + SR_OFF_GUIDES(&e->shape),
		             4 * e->shape.guides, 64);
	e->vocab = down->model.vocab;
	return true;
}

static inline bool evil_try(struct evil *e, const char *path, struct sr_shape want)
{
	char byte;

	if (!evil_map(e, path, want))
		return false;
	if (sr_signal(e->fd) == 0 && recv(e->fd, &byte, 1, 0) == 1)
		return true;
	evil_close(e);
	return false;
}

static inline void evil_open(struct evil *e, const char *path, struct sr_shape want)
{
	assert_true(evil_try(e, path, want));
}

static inline int32_t *evil_arena(const struct evil *e)
{
	return (void *)(e->up + SR_OFF_ARENA(e->shape.live));
}

static inline void evil_wake(struct evil *e)
{
	bool sleeps;

	sr_ring_fence();
	sleeps = sr_ring_wanted(&e->requests);
	sleeps |= sr_ring_wanted(&e->cancels);
	sleeps |= sr_ring_freed(&e->tokens);
	sleeps |= e->shape.guides && sr_ring_wanted(&e->guides);
	if (sleeps)
		sr_signal(e->fd);
}

static inline bool evil_put(struct evil *e, const struct sr_wire_request *q)
{
	if (sr_ring_reserve(&e->requests, 1) < 0)
		return false;
	sr_ring_put(&e->requests, q);
	evil_wake(e);
	return true;
}

static inline bool evil_guide(struct evil *e, const struct sr_wire_guide *g)
{
	if (sr_ring_reserve(&e->guides, 1) < 0)
		return false;
	sr_ring_put(&e->guides, g);
	evil_wake(e);
	return true;
}

static inline uint32_t *evil_mask(const struct evil *e, uint32_t place)
{
	return (void *)(e->up + SR_OFF_MASKS(&e->shape) + place * sr_mask_bytes(e->vocab));
}

static inline int evil_read(struct evil *e)
{
	struct sr_record r;
	int n = 0;

	while (sr_ring_take(&e->tokens, &r) == 1) {
		n++;
		if (r.kind == SR_END) {
			e->n_ends++;
			e->finish = r.u.end.finish;
		}
	}
	sr_ring_done(&e->tokens);
	evil_wake(e);
	return n;
}

/* Read until n ENDs have come. */
static inline void evil_ends(struct evil *e, uint32_t n)
{
	uint64_t until = io_now() + 2000000000ull;

	while (e->n_ends < n) {
		evil_read(e);
		assert_true(io_now() < until);
	}
	assert_int_equal(e->n_ends, n);
}

static inline bool dropped_in(struct evil *e, unsigned ms)
{
	struct pollfd p = { .fd = e->fd, .events = POLLIN | POLLRDHUP };
	char byte;

	for (uint64_t until = io_now() + ms * 1000000ull; io_now() < until;) {
		ssize_t n = recv(e->fd, &byte, 1, MSG_DONTWAIT);

		if (n == 0 || (n < 0 && errno == ECONNRESET))
			return true;
		poll(&p, 1, 10);
	}
	return false;
}

static inline bool dropped(struct evil *e) { return dropped_in(e, 1000); }

static inline uint32_t xorshift(uint32_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 17;
	return *s ^= *s << 5;
}

static const struct sr_shape small = { 32, 64, 4096, 0, 0 };
static const struct sr_shape small_guided __attribute__((unused)) = { 32, 64, 4096, 8, 0 };
/* A record that asks for an answer of at most `most` tokens to a prompt of n ids at the arena's start. */
#define ASKS(n_ids, most) .span = { { .kind = SR_SPAN_PROMPT, .n = (n_ids) } }, .max_tokens = (most), \
	.sampling.min_position = (int32_t)(n_ids)
static const struct sr_wire_request plain = { ASKS(4, 2) };

#endif
