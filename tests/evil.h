/* evil.h - clients for tests of what a client may try: an honest neighbour, whose every token is
 * compared, and one by hand, which can put anything anywhere in the memory that is its own.
 * Included after tests/daemon.h; needs shmring/client.c.
 */
#ifndef TESTS_EVIL_H
#define TESTS_EVIL_H

#include <poll.h>
#include <sys/mman.h>

/* Ask for n tokens over c and compare them; how long it took. */
static inline uint64_t ask(struct sr_conn *c, uint32_t salt, uint32_t n)
{
	static int32_t ids[CONTEXT];
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 40, .max_tokens = n,
		.min_tokens = n, .user_data = salt };
	struct sr_token t = { 0 };
	uint64_t begin = io_now();
	uint32_t have = 40;
	int e;

	for (uint32_t i = 0; i < 40; i++)
		ids[i] = (int32_t)((salt * 7919 + i * i) % VOCAB);
	while ((e = sr_submit(c, &q, NULL)) == -EAGAIN)
		assert_true(sr_wait(c, SR_WAIT_ROOM, 2000) > 0);
	assert_int_equal(e, 0);
	while (t.kind != SR_END) {
		e = sr_next(c, &t);
		assert_true(e >= 0);
		if (e == 0)
			assert_true(sr_wait(c, SR_WAIT_TOKENS, 2000) > 0);
		else if (t.kind == SR_TOKEN) {
			assert_int_equal(t.id, answer(ids, (int32_t)have, 40, (int32_t)n));
			ids[have++] = t.id;
		}
	}
	assert_int_equal(t.end.finish, SR_LENGTH);
	assert_int_equal(t.end.n_tokens, n);
	return io_now() - begin;
}

/* ---- by hand -------------------------------------------------------------------------------- */

struct evil {
	int fd, up_fd, down_fd;
	struct sr_shape shape;
	unsigned char *up, *down;
	struct sr_ring requests, cancels, tokens;
	_Atomic uint32_t n_ends;      /* another thread may look */
	int32_t finish;               /* of the last END */
};

static inline int dial(const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	strcpy(a.sun_path, path);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	return fd;
}

static inline void evil_open(struct evil *e, const char *path, struct sr_shape want)
{
	struct sr_hello h = { .magic = SR_MAGIC, .version = SR_VERSION, .want = want, .name = "evil" };
	struct sr_welcome w;
	union { char buf[CMSG_SPACE(8)]; struct cmsghdr align; } control;
	struct iovec iov = { &w, sizeof(w) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
		.msg_controllen = sizeof(control.buf) };
	int fds[2];
	struct sr_up *up;
	struct sr_down *down;

	memset(e, 0, sizeof(*e));
	e->fd = dial(path);
	assert_int_equal(send(e->fd, &h, sizeof(h), 0), sizeof(h));
	assert_int_equal(recvmsg(e->fd, &msg, MSG_CMSG_CLOEXEC), sizeof(w));
	assert_int_equal(w.status, 0);
	memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fds));
	e->shape = w.shape;
	e->up_fd = fds[0];
	e->down_fd = fds[1];
	e->up = mmap(NULL, SR_UP_BYTES(&w.shape), PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
	e->down = mmap(NULL, SR_DOWN_BYTES(&w.shape), PROT_READ, MAP_SHARED, fds[1], 0);
	assert_true(e->up != MAP_FAILED && e->down != MAP_FAILED);
	up = (void *)e->up;
	down = (void *)e->down;
	sr_ring_init(&e->requests, true, &up->requests, &down->requests, e->up + SR_PAGE, w.shape.live, 256);
	sr_ring_init(&e->cancels, true, &up->cancels, &down->cancels, e->up + SR_OFF_CANCELS(w.shape.live),
	             2 * w.shape.live, 64);
	sr_ring_init(&e->tokens, false, &down->tokens, &up->tokens, e->down + SR_PAGE, w.shape.tokens, 64);
}

static inline void evil_close(struct evil *e)
{
	munmap(e->up, SR_UP_BYTES(&e->shape));
	munmap(e->down, SR_DOWN_BYTES(&e->shape));
	close(e->up_fd);
	close(e->down_fd);
	close(e->fd);
}

static inline int32_t *evil_arena(const struct evil *e) { return (void *)(e->up + SR_OFF_ARENA(e->shape.live)); }

static inline void evil_wake(struct evil *e)
{
	bool sleeps;

	sr_ring_fence();
	sleeps = sr_ring_wanted(&e->requests);
	sleeps |= sr_ring_wanted(&e->cancels);
	sleeps |= sr_ring_freed(&e->tokens);
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

/* Read until there were so many ENDs. */
static inline void evil_ends(struct evil *e, uint32_t n)
{
	uint64_t until = io_now() + 2000 * MS;

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

	for (uint64_t until = io_now() + ms * MS; io_now() < until;) {
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

static const struct sr_shape small = { 32, 64, 4096 };
static const struct sr_wire_request plain = { .n_prompt = 4, .max_tokens = 2 };

#endif
