/* host_conn.h - the daemon's side of one connection, whose client is the test: it writes into the shared memory.
 * Include shmring/host.c and shmring/object.c before it.
 */
#ifndef TESTS_HOST_CONN_H
#define TESTS_HOST_CONN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define VOCAB   1000
#define CONTEXT 256
#define SHAPE   { 32, 64, 4096, 0, 0 }

static const struct host_config plain = { .most = { 32, 64, 4096, 8 }, .model = { .vocab = VOCAB, .context = CONTEXT,
	.epoch = 1 } };
static const struct sr_hello hello = { .magic = SR_MAGIC, .version = SR_VERSION };

static struct host *host;
static struct host_conn *c;
static int pair[2];
static unsigned char *up;             /* as the client has it: writable */
static struct sr_ring requests, cancels, guides;

static inline int setup(void **state)
{
	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(host_create(&host, &plain), 0);
	return 0;
}

static inline int teardown(void **state)
{
	(void)state;
	if (c)
		host_close(c, false);
	c = NULL;
	host_destroy(host);
	close(pair[0]);
	close(pair[1]);
	return 0;
}

/* Open, with all pages there; closed again if that fails. */
static inline int opens(struct host_conn **out, struct host *s, int fd, const struct sr_hello *h, bool trusted)
{
	int e = host_open(out, s, fd, h, trusted, 0);

	if (e)
		return e;
	while ((e = host_fill(*out)) > 0)
		;
	if (e)
		host_close(*out, false);
	return e;
}

/* What follows on the client's signal. */
static inline int begins(struct host_conn *conn)
{
	int e = host_seal(conn);

	while (!e && (e = host_fill(conn)) > 0)
		e = 0;
	return e ? e : host_begin(conn);
}

static inline int connect_with(void **state, const struct sr_hello *h)
{
	struct sr_welcome w;
	union { char buf[CMSG_SPACE(8)]; struct cmsghdr align; } control;
	struct iovec iov = { &w, sizeof(w) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
		.msg_controllen = sizeof(control.buf) };
	struct sr_up *words;
	struct sr_down *down;
	int fds[2];

	setup(state);
	assert_int_equal(opens(&c, host, pair[0], h, false), 0);
	assert_int_equal(host_welcome(c), 0);
	assert_int_equal(recvmsg(pair[1], &msg, MSG_CMSG_CLOEXEC), sizeof(w));
	memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fds));
	up = mmap(NULL, c->up.len, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
	assert_true(up != MAP_FAILED);
	assert_int_equal(begins(c), 0);
	assert_int_equal(recv(pair[1], &(char){ 0 }, 1, 0), 1);
	close(fds[0]);
	close(fds[1]);
	words = (void *)up;
	down = (void *)c->down.at;
	sr_ring_init(&requests, true, &words->requests, &down->requests, up + SR_PAGE, 32, 256);
	sr_ring_init(&cancels, true, &words->cancels, &down->cancels, up + SR_OFF_CANCELS(32), 64, 64);
	if (c->shape.guides)
		sr_ring_init(&guides, true, &words->guides, &down->guides, up + SR_OFF_GUIDES(&c->shape), 32, 64);
	return 0;
}

static inline int connected(void **state) { return connect_with(state, &hello); }

static inline int parted(void **state)
{
	munmap(up, c->up.len);
	return teardown(state);
}

static inline int32_t *arena(void) { return (void *)(up + SR_OFF_ARENA(32)); }

static inline void put(struct sr_ring *r, const void *record)
{
	assert_int_equal(sr_ring_reserve(r, 1), 0);
	sr_ring_put(r, record);
}

#define PROMPT(n_ids) { .kind = SR_SPAN_PROMPT, .n = (n_ids) }
#define ASKS(n_ids, most) .span = { PROMPT(n_ids) }, .max_tokens = (most), .sampling.min_position = (n_ids)
#define Q(...) { ASKS(4, 2), __VA_ARGS__ }

#endif
