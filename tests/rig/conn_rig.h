/* conn_rig.h - a server with a toy app, and clients, all in one thread.  turn() runs the loop once, and
 * clients never block.  Tests of connections use it; each runs on io_uring and on epoll.
 */
#ifndef CONN_RIG_H
#define CONN_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "adapters/http/net/conn.h"

#define MS 1000000ull
#define HELD 2048

/* ---- the toy app -------------------------------------------------------------------------- */

static struct {
	struct exchange *held[HELD];      /* /later and /stream wait here */
	int n_held, n_handled, n_gone, n_done, last_status;
	int arriving;                     /* requests that have arrived in part */
	size_t last_in;
	char last_peer[64];
} app;

static inline int app_head(void *ctx, struct exchange *x, const struct http_request *r, char *body,
                           size_t cap, char *extra, size_t extra_cap)
{
	(void)ctx;
	if (http_header(r, "x-key"))
		exchange_trust(x);
	if (http_is(r->path, "/skip"))
		exchange_skip_body(x);
	if (!http_is(r->path, "/secret"))
		return 0;
	snprintf(body, cap, "{\"error\":\"Unauthorized\"}");
	snprintf(extra, extra_cap, "WWW-Authenticate: Bearer\r\n");
	return 401;
}

static inline void app_handle(void *ctx, struct exchange *x, const struct http_request *r)
{
	static char big[4 << 20];

	(void)ctx;
	app.n_handled++;
	assert_ptr_equal(exchange_request(x), r);
	if (http_is(r->path, "/echo")) {
		exchange_reply(x, 200, "text/plain", NULL, r->body.s, r->body.n);
	} else if (http_is(r->path, "/big")) {
		exchange_reply(x, 200, "text/plain", NULL, big, sizeof(big));
	} else if (http_is(r->path, "/split")) {
		exchange_reply(x, 200, "text/plain", "X-Request-Id: a\r\n\r\nevil\r\n", "ok", 2);
	} else if (http_is(r->path, "/later") || http_is(r->path, "/stream")) {
		assert_true(app.n_held < HELD);
		exchange_set_ctx(x, &app.held[app.n_held]);
		app.held[app.n_held++] = x;
		if (http_is(r->path, "/stream"))
			exchange_begin(x, 200, "text/event-stream", "Cache-Control: no-cache\r\n");
	} else {
		char text[64];
		int n = snprintf(text, sizeof(text), "%.*s %.*s", (int)r->method.n, r->method.s,
		                 (int)(r->path.n < 40 ? r->path.n : 40), r->path.s);

		exchange_reply(x, 200, "application/json", NULL, text, (size_t)n);
	}
}

static inline void app_gone(void *ctx, struct exchange *x)
{
	struct exchange **h = exchange_ctx(x);

	(void)ctx;
	assert_ptr_equal(*h, x);
	*h = NULL;
	app.n_gone++;
}

static inline void app_done(void *ctx, struct exchange *x, const char *peer, const char *note,
                            int status, uint64_t ns, size_t in, size_t out)
{
	const struct http_request *r = exchange_request(x);

	(void)ctx;
	(void)ns;
	(void)out;
	assert_string_equal(note, "");
	assert_true(r->method.n > 0 && r->target.n > 0);
	app.n_done++;
	app.last_status = status;
	app.last_in = in;
	snprintf(app.last_peer, sizeof(app.last_peer), "%s", peer);
}

static inline void app_arriving(void *ctx, int by)
{
	(void)ctx;
	app.arriving += by;
	assert_true(app.arriving >= 0);
}

/* The app frees what it holds (after server_abort and gone it holds nothing). */
static inline struct exchange *take(int i)
{
	struct exchange *x = app.held[i];

	app.held[i] = NULL;
	return x;
}

/* ---- the rig ------------------------------------------------------------------------------ */

static struct io *io;
static struct server *server;
static struct sockaddr_in where;
static int io_flags;
static const struct conn_app toy = { NULL, app_head, app_handle, app_gone, app_done, app_arriving };

static inline void turn(void)
{
	io_sleep(io, io_now() + 1 * MS);
}

/* For so many milliseconds, and five events at least: time passes without us where the machine is busy. */
static inline void turns(int ms)
{
	uint64_t end = io_now() + (uint64_t)ms * MS;

	for (int n = 0; io_now() < end || (n < ms && n < 5); n++) {
		uint64_t soon = io_now() + 1 * MS;

		io_sleep(io, end > soon ? end : soon);
	}
}

/* Runs the loop until `condition`, WAIT_MS at most: what a busy machine needs, not what is expected. */
#define WAIT_MS 20000
#define UNTIL(condition) do { \
	uint64_t until_end = io_now() + WAIT_MS * MS; \
	while (!(condition) && io_now() < until_end) \
		turn(); \
	assert_true(condition); \
} while (0)

static inline void rig_open(const struct server_config *cfg)
{
	static const struct server_config plain;
	socklen_t n = sizeof(where);
	char err[256] = "";
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	memset(&app, 0, sizeof(app));
	where = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	assert_int_equal(bind(fd, (struct sockaddr *)&where, n), 0);
	assert_int_equal(listen(fd, 4096), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&where, &n), 0);
	assert_int_equal(io_create(&io, io_flags), 0);
	if (server_create(&server, io, fd, cfg ? cfg : &plain, &toy, err, sizeof(err)) != 0)
		fail_msg("%s", err);
}

static inline void rig_close(void)
{
	server_destroy(server);
	io_destroy(io);
	assert_int_equal(app.arriving, 0);
}

/* Bytes of heap in use.  0 under a sanitizer, which finds leaks itself. */
static inline size_t heap(void)
{
	struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
}

static inline int client(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&where, sizeof(where)), 0);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	fcntl(fd, F_SETFL, O_NONBLOCK);
	return fd;
}

static inline void say(int fd, const char *bytes, size_t n)
{
	while (n) {
		ssize_t k = send(fd, bytes, n, MSG_NOSIGNAL);

		if (k < 0 && errno == EAGAIN) {
			turn();
			continue;
		}
		if (k < 0)
			return;            /* refused already; some cases still send */
		bytes += k;
		n -= (size_t)k;
	}
}

#define SAY(fd, text) say(fd, text, sizeof(text) - 1)

struct heard {
	char *p;
	size_t n, cap;
	bool closed, reset;
};

static inline void hear_once(struct heard *h, int fd)
{
	ssize_t n;

	if (h->cap - h->n < 65537) {
		h->cap += 1 << 20;
		h->p = realloc(h->p, h->cap);
		assert_non_null(h->p);
	}
	n = recv(fd, h->p + h->n, 65536, MSG_DONTWAIT);
	if (n > 0) {
		h->n += (size_t)n;
	} else if (n == 0 || errno != EAGAIN) {
		h->closed = true;
		h->reset = n < 0;
	} else {
		turn();
	}
	h->p[h->n] = 0;
}

/* Read until the connection ends or the time is over. */
static inline void hear(struct heard *h, int fd, int ms)
{
	uint64_t end = io_now() + (uint64_t)ms * MS;

	do
		hear_once(h, fd);
	while (!h->closed && io_now() < end);
}

/* Read for WAIT_MS at most.  By then the connection must have ended, and not by a reset. */
static inline void hear_end(struct heard *h, int fd)
{
	hear(h, fd, WAIT_MS);
	assert_true(h->closed && !h->reset);
}

/* Read until `text` has arrived, for WAIT_MS at most. */
static inline void hear_text(struct heard *h, int fd, const char *text)
{
	uint64_t end = io_now() + WAIT_MS * MS;
	size_t from = 0;

	do {
		hear_once(h, fd);
		if (strstr(h->p + from, text))
			return;
		from = h->n > 100 ? h->n - 100 : 0;
	} while (!h->closed && io_now() < end);
	fail_msg("no \"%s\" in %s", text, h->p);
}

static inline void forget(struct heard *h)
{
	free(h->p);
	*h = (struct heard){ 0 };
}

#define G "GET /json HTTP/1.1\r\nHost: a\r\n"
#define P "POST /echo HTTP/1.1\r\nHost: a\r\n"
#define NEXT "GET /next HTTP/1.1\r\nHost: a\r\n\r\n"

/* Run the group on io_uring, then on epoll. */
static inline int rig_run(const struct CMUnitTest *tests, size_t n)
{
	int failed = 0;

	for (io_flags = 0; io_flags <= IO_EPOLL; io_flags += IO_EPOLL)
		failed += _cmocka_run_group_tests(io_flags ? "epoll" : "io_uring", tests, n, NULL, NULL);
	return failed;
}

#endif
