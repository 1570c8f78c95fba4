/* LINK: adapters/http/http.c adapters/http/conn.c adapters/http/reply.c adapters/http/server.c adapters/http/tls.c core/io.c core/log.c -luring -lssl -lcrypto */
/* test_conn.c - connections against a toy app: hostile requests over real sockets, pipelining,
 * disconnects in every state, slow readers, deadlines, drain, many streams, TLS.  Server and
 * clients share one thread: turn() runs the loop once, clients never block.  Everything runs
 * on io_uring and again on epoll.
 */
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
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "adapters/http/conn.h"

#define MS 1000000ull
#define HELD 2048

/* ---- the toy app -------------------------------------------------------------------------- */

static struct {
	struct exchange *held[HELD];      /* /later and /stream wait here */
	int n_held, n_handled, n_gone, n_done, last_status;
	size_t last_in;
	bool refuse_all;
} app;

static int app_head(void *ctx, const struct http_request *r, char *body, size_t cap, char *extra,
                    size_t extra_cap)
{
	(void)ctx;
	if (!http_is(r->path, "/secret") && !app.refuse_all)
		return 0;
	snprintf(body, cap, "{\"error\":\"Unauthorized\"}");
	snprintf(extra, extra_cap, "WWW-Authenticate: Bearer\r\n");
	return 401;
}

static void app_handle(void *ctx, struct exchange *x, const struct http_request *r)
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

static void app_gone(void *ctx, struct exchange *x)
{
	struct exchange **h = exchange_ctx(x);

	(void)ctx;
	assert_ptr_equal(*h, x);
	*h = NULL;
	app.n_gone++;
}

static void app_done(void *ctx, const struct http_request *r, int status, uint64_t ns, size_t in,
                     size_t out)
{
	(void)ctx;
	(void)ns;
	(void)out;
	assert_true(r->method.n > 0 && r->target.n > 0);
	app.n_done++;
	app.last_status = status;
	app.last_in = in;
}

/* The app gives up what it holds (after server_abort and gone it holds nothing). */
static struct exchange *take(int i)
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
static const struct conn_app toy = { NULL, app_head, app_handle, app_gone, app_done };

static void turn(void)
{
	io_sleep(io, io_now() + 1 * MS);
}

static void turns(int ms)
{
	uint64_t end = io_now() + (uint64_t)ms * MS;

	while (io_now() < end)
		io_sleep(io, end);
}

/* Runs the loop until `condition`, two seconds at most. */
#define UNTIL(condition) do { \
	uint64_t until_end = io_now() + 2000 * MS; \
	while (!(condition) && io_now() < until_end) \
		turn(); \
	assert_true(condition); \
} while (0)

static void rig_open(const struct server_config *cfg)
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
	if (server_create(&server, io, fd, cfg ? cfg : &plain, &toy, err, sizeof(err)) < 0)
		fail_msg("%s", err);
}

static void rig_close(void)
{
	server_destroy(server);
	io_destroy(io);
}

static int client(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&where, sizeof(where)), 0);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	fcntl(fd, F_SETFL, O_NONBLOCK);
	return fd;
}

static void say(int fd, const char *bytes, size_t n)
{
	while (n) {
		ssize_t k = send(fd, bytes, n, MSG_NOSIGNAL);

		if (k < 0 && errno == EAGAIN) {
			turn();
			continue;
		}
		if (k < 0)
			return;            /* refused already: some cases go on sending */
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

static void hear_once(struct heard *h, int fd)
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

/* Until the connection ends, or for so long. */
static void hear(struct heard *h, int fd, int ms)
{
	uint64_t end = io_now() + (uint64_t)ms * MS;

	do
		hear_once(h, fd);
	while (!h->closed && io_now() < end);
}

/* Until the end, two seconds at most: then it must have ended, and not by a reset. */
static void hear_end(struct heard *h, int fd)
{
	hear(h, fd, 2000);
	assert_true(h->closed && !h->reset);
}

/* Until `text` was heard, two seconds at most. */
static void hear_text(struct heard *h, int fd, const char *text)
{
	uint64_t end = io_now() + 2000 * MS;
	size_t from = 0;

	do {
		hear_once(h, fd);
		if (strstr(h->p + from, text))
			return;
		from = h->n > 100 ? h->n - 100 : 0;
	} while (!h->closed && io_now() < end);
	fail_msg("no \"%s\" in %s", text, h->p);
}

static void forget(struct heard *h)
{
	free(h->p);
	*h = (struct heard){ 0 };
}

/* Statuses of the answers in h: "200 200 400"; bodies by Content-Length or chunks are skipped. */
static void statuses(const struct heard *h, char *out, bool head)
{
	const char *p = h->p, *end = h->p + h->n;

	*out = 0;
	while (p && p < end && !strncmp(p, "HTTP/1.1 ", 9)) {
		const char *body = strstr(p, "\r\n\r\n"), *len = strcasestr(p, "\r\nContent-Length: ");
		int status = atoi(p + 9);

		sprintf(out + strlen(out), "%s%d", *out ? " " : "", status);
		assert_non_null(body);
		p = body + 4;
		if (len && len < body && !head)
			p += atol(len + 18);
	}
}

/* ---- hostile and odd requests over a socket ----------------------------------------------- */

#define G "GET /json HTTP/1.1\r\nHost: a\r\n"
#define P "POST /echo HTTP/1.1\r\nHost: a\r\n"
#define NEXT "GET /next HTTP/1.1\r\nHost: a\r\n\r\n"

/* What is sent, the answers, whether the connection lives on, and what is in the last answer.
 * Once at once and once byte by byte, but for those marked so. */
static const struct { const char *name, *bytes, *answers; bool lives; const char *holds; } cases[] = {
	{ "plain", G "\r\n", "200", true, "GET /json" },
	{ "two", G "\r\n" NEXT, "200 200", true, "GET /next" },
	{ "body", P "Content-Length: 5\r\n\r\nhello" NEXT, "200 200", true, "hello" },
	{ "chunked body", P "Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x\r\nlo\r\n0\r\n\r\n" NEXT,
	  "200 200", true, "hello" },
	{ "GET with a body", "GET /json HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nxx" NEXT, "200 200",
	  true, "GET /next" },
	{ "HTTP/1.0", "GET /json HTTP/1.0\r\n\r\n", "200", false, "Connection: close" },
	{ "HTTP/1.0 keep-alive", "GET /json HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" NEXT, "200 200",
	  true, "GET /next" },
	{ "Connection: close", G "Connection: close\r\n\r\n" NEXT, "200", false, "Connection: close" },
	{ "absolute URI", "GET http://a/json HTTP/1.1\r\nHost: a\r\n\r\n", "200", true, "GET /json" },
	{ "OPTIONS *", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "200", true, "OPTIONS *" },
	{ "OPTIONS", "OPTIONS /json HTTP/1.1\r\nHost: a\r\n\r\n", "200", true, "OPTIONS /json" },
	{ "empty line between", G "\r\n" "\r\n" NEXT, "200 200", true, "GET /next" },
	{ "100-continue", P "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n", "100", true, "Continue" },
	{ "100-continue, body sent anyway", P "Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
	  "200", true, "hello" },
	{ "100-continue, refused first", "POST /secret HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
	  "Content-Length: 5\r\n\r\n", "401", false, "Bearer" },
	{ "refused, body unread", "POST /secret HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\nhello",
	  "401", false, "Unauthorized" },
	{ "refused, body here (whole)", "POST /secret HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello" NEXT,
	  "401 200", true, "GET /next" },
	{ "refused, chunked", "POST /secret HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
	  "0\r\n\r\n" NEXT, "401", false, NULL },
	{ "body too large", P "Content-Length: 100001\r\n\r\n", "413", false, "max-body-bytes" },
	{ "body absurd", P "Content-Length: 999999999999999999\r\n\r\n", "413", false, NULL },
	{ "body too large, 100-continue", P "Expect: 100-continue\r\nContent-Length: 100001\r\n\r\n", "413",
	  false, NULL },
	{ "chunk too large", P "Transfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n", "413", false, NULL },
	{ "chunk size overflow (whole)", P "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", "400", false,
	  NULL },
	{ "chunk broken", P "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX", "400", false, "chunk" },
	{ "trailer as a request", P "Transfer-Encoding: chunked\r\n\r\n0\r\n" NEXT, "400", false, NULL },
	{ "smuggled by CL+TE", P "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" NEXT,
	  "400", false, "both" },
	{ "smuggled by TE xchunked", P "Transfer-Encoding: xchunked\r\n\r\n" NEXT, "501", false, NULL },
	{ "smuggled by two CL", P "Content-Length: 0\r\nContent-Length: 31\r\n\r\n" NEXT, "400", false, NULL },
	{ "bare LF", "GET / HTTP/1.1\nHost: a\n\n", "400", false, "Bad Request" },
	{ "fold", G "X: a\r\n b\r\n\r\n", "400", false, NULL },
	{ "space before colon", G "X : a\r\n\r\n", "400", false, NULL },
	{ "CL +5", P "Content-Length: +5\r\n\r\nhello", "400", false, NULL },
	{ "expect odd", P "Expect: foo\r\nContent-Length: 5\r\n\r\n", "417", false, NULL },
	{ "HTTP/0.9", "GET /\r\n", "400", false, NULL },
	{ "HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505", false, "\"code\":505" },
	{ "TLS hello", "\x16\x03\x01\x02\x01\x01", "400", false, NULL },
	{ "second is wrong", G "\r\n" "x\r\n", "200 400", false, NULL },
	{ "app splits its answer", "GET /split HTTP/1.1\r\nHost: a\r\n\r\n", "500", false, NULL },
	{ "quote in a message", P "Transfer-Encoding: gzip\r\n\r\n", "501", false, "\\\"chunked\\\"" },
};

static void run_case(size_t i, bool bytewise)
{
	size_t n = strlen(cases[i].bytes);
	struct heard h = { 0 };
	char got[256], *answers = got;
	int fd = client();

	for (size_t at = 0; at < n; at += bytewise ? 1 : n) {
		say(fd, cases[i].bytes + at, bytewise ? 1 : n);
		if (bytewise)
			io_poll(io);
	}
	if (cases[i].lives)
		hear_text(&h, fd, cases[i].holds);
	hear(&h, fd, cases[i].lives ? 2 : 2000);  /* nothing more, or the end */
	statuses(&h, got, false);
	if (bytewise && !strncmp(got, "100 ", 4))
		answers += 4;              /* the body was late, so it was asked for */
	if (strcmp(answers, cases[i].answers))
		fail_msg("%s%s: %s instead of %s in %s", cases[i].name, bytewise ? " (by bytes)" : "", got,
		         cases[i].answers, h.p);
	if (h.closed == cases[i].lives || h.reset)
		fail_msg("%s: %s", cases[i].name, h.reset ? "reset" : h.closed ? "closed" : "lives");
	if (cases[i].holds && !strstr(h.p, cases[i].holds))
		fail_msg("%s: no \"%s\" in %s", cases[i].name, cases[i].holds, h.p);
	forget(&h);
	close(fd);
}

static void test_cases(void **state)
{
	const struct server_config cfg = { .max_body = 100000, .linger_ns = 20 * MS };

	(void)state;
	rig_open(&cfg);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		run_case(i, false);
		if (!strstr(cases[i].name, "(whole)"))
			run_case(i, true);
	}
	UNTIL(server_connections(server) == 0);
	assert_int_equal(app.n_gone, 0);
	rig_close();
}

static void test_head(void **state)
{
	struct heard h = { 0 };
	char got[64];
	int fd;

	(void)state;
	rig_open(NULL);
	fd = client();
	SAY(fd, "HEAD /json HTTP/1.1\r\nHost: a\r\n\r\n" "HEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n"
	        "HEAD /secret HTTP/1.1\r\nHost: a\r\n\r\n");
	UNTIL(app.n_held == 1);
	exchange_event(app.held[0], "data: x\n\n", 9);
	exchange_end(take(0));
	hear_text(&h, fd, "401");
	hear(&h, fd, 2);
	statuses(&h, got, true);
	assert_string_equal(got, "200 200 401");
	assert_non_null(strstr(h.p, "Content-Length: 10\r\n"));
	assert_null(strstr(h.p, "data: x"));
	assert_null(strstr(h.p, "Unauthorized\"}"));
	forget(&h);
	close(fd);
	rig_close();
}

static void test_random(void **state)
{
	unsigned seed = 1;

	(void)state;
	rig_open(NULL);
	for (int i = 0; i < 300; i++) {
		char bytes[600];
		int fd = client();
		size_t n = 0;

		if (i & 1)
			n = (size_t)sprintf(bytes, i & 2 ? G : P "Transfer-Encoding: chunked\r\n\r\n");
		for (; n < sizeof(bytes); n++)
			bytes[n] = (char)(rand_r(&seed) >> (i & 4 ? 8 : 25));
		say(fd, bytes, n);
		turn();
		close(fd);
	}
	UNTIL(server_connections(server) == 0);
	assert_int_equal(app.n_gone, 0);
	rig_close();
}

/* ---- pipelining --------------------------------------------------------------------------- */

static void test_pipeline(void **state)
{
	enum { N = 10000 };
	struct heard h = { 0 };
	char *all = malloc(N * 64), *p;
	size_t n = 0, sent = 0;
	int fd, i;

	(void)state;
	rig_open(NULL);
	fd = client();
	for (i = 0; i < N; i++)
		n += (size_t)sprintf(all + n, "GET /%d HTTP/1.1\r\nHost: a\r\n\r\n", i);
	while (sent < n) {
		ssize_t k = send(fd, all + sent, n - sent, MSG_NOSIGNAL | MSG_DONTWAIT);

		sent += k > 0 ? (size_t)k : 0;
		hear(&h, fd, 1);
	}
	hear_text(&h, fd, "GET /9999");
	assert_int_equal(app.n_handled, N);
	for (i = 0, p = h.p; i < N; i++) {
		char want[32];

		p = strstr(p, "\r\n\r\n");
		assert_non_null(p);
		sprintf(want, "GET /%dHTTP", i);
		if (i < N - 1)
			assert_int_equal(strncmp(p + 4, want, strlen(want)), 0);
		p += 4;
	}
	forget(&h);
	free(all);
	close(fd);
	rig_close();
}

/* A pipelined request waits for the one before it, and is not lost when that one is streamed. */
static void test_order(void **state)
{
	struct heard h = { 0 };
	int fd;

	(void)state;
	rig_open(NULL);
	fd = client();
	SAY(fd, "GET /later HTTP/1.1\r\nHost: a\r\n\r\n" "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n" NEXT);
	UNTIL(app.n_held == 1);
	turns(5);
	assert_int_equal(app.n_handled, 1);
	exchange_reply(take(0), 200, "text/plain", NULL, "first", 5);
	assert_int_equal(app.n_handled, 1);    /* not from inside our own call */
	UNTIL(app.n_held == 2);
	exchange_event(app.held[1], "second", 6);
	exchange_end(take(1));
	hear_text(&h, fd, "GET /next");
	assert_true(strstr(h.p, "first") < strstr(h.p, "6\r\nsecond\r\n0\r\n\r\n"));
	forget(&h);
	close(fd);
	rig_close();
}

/* ---- streams ------------------------------------------------------------------------------ */

static void test_one_send_per_event(void **state)
{
	char buf[4096], event[64];
	ssize_t n;
	int fd;

	(void)state;
	rig_open(NULL);
	fd = client();
	SAY(fd, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
	UNTIL(app.n_held == 1);
	turns(3);
	assert_int_equal(recv(fd, buf, sizeof(buf), MSG_DONTWAIT), -1);  /* the head waits */
	for (int i = 0; i < 20; i++) {
		int len = sprintf(event, "data: %d\n\n", i), want;
		char chunk[96];

		want = sprintf(chunk, "%x\r\n%s\r\n", (unsigned)len, event);
		exchange_event(app.held[0], event, (size_t)len);
		n = recv(fd, buf, sizeof(buf) - 1, 0);   /* one segment, there at once */
		assert_true(n >= want);
		buf[n] = 0;
		assert_string_equal(buf + n - want, chunk);
		if (i == 0)
			assert_int_equal(strncmp(buf, "HTTP/1.1 200 OK\r\n", 17), 0);
		else
			assert_int_equal(n, want);
	}
	exchange_end(take(0));
	assert_int_equal(recv(fd, buf, sizeof(buf), 0), 5);
	close(fd);

	fd = client();                         /* 1.0: bare bytes until the connection ends */
	SAY(fd, "GET /stream HTTP/1.0\r\n\r\n");
	UNTIL(app.n_held == 2);
	exchange_event(app.held[1], "data", 4);
	exchange_end(take(1));
	turn();
	n = recv(fd, buf, sizeof(buf) - 1, 0);
	assert_true(n > 4);
	buf[n] = 0;
	assert_string_equal(strstr(buf, "\r\n\r\n"), "\r\n\r\ndata");
	assert_int_equal(recv(fd, buf, sizeof(buf), 0), 0);
	close(fd);
	rig_close();
}

static void test_many_streams(void **state)
{
	enum { N = 1000, EVENTS = 20 };
	static int fd[N];
	char buf[8192], event[64];
	struct rlimit limit;

	(void)state;
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max < 4096 ? limit.rlim_max : 4096;
	setrlimit(RLIMIT_NOFILE, &limit);
	if (limit.rlim_cur < 2 * N + 64) {
		print_message("SKIP test_many_streams: at most %ld descriptors\n", (long)limit.rlim_cur);
		skip();
	}
	rig_open(NULL);
	for (int i = 0; i < N; i++) {
		fd[i] = client();
		SAY(fd[i], "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
		if (i % 64 == 0)
			turn();
	}
	UNTIL(app.n_held == N);
	for (int e = 0; e < EVENTS; e++) {
		int n = sprintf(event, "data: event %d of all\n\n", 100 + e);

		for (int i = 0; i < N; i++)
			exchange_event(app.held[i], event, (size_t)n);
		turn();
	}
	for (int i = 0; i < N; i++)
		exchange_end(take(i));
	for (int i = 0; i < N; i++) {
		ssize_t n = recv(fd[i], buf, sizeof(buf) - 1, 0);
		char *p = buf;

		assert_true(n > 0);
		buf[n] = 0;
		for (int e = 0; e < EVENTS; e++) {
			sprintf(event, "data: event %d of all\n\n", 100 + e);
			p = strstr(p, event);
			if (!p)
				fail_msg("stream %d lacks event %d", i, e);
		}
		assert_string_equal(buf + n - 7, "\r\n0\r\n\r\n");
		close(fd[i]);
	}
	UNTIL(server_connections(server) == 0);
	assert_int_equal(app.n_gone, 0);
	rig_close();
}

/* Who does not read is cancelled, and nobody else notices. */
static void test_slow_reader(void **state)
{
	static char event[16384];
	struct heard h = { 0 };
	int slow, quick, events = 0;

	(void)state;
	rig_open(NULL);
	slow = client();
	SAY(slow, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
	UNTIL(app.n_held == 1);
	quick = client();
	while (!app.n_gone && events < 4096) {
		exchange_event(app.held[0], event, sizeof(event));
		events++;
		assert_true(app.n_gone == 0);  /* not from inside our own call */
		if (events % 16 == 0) {
			uint64_t before = io_now();

			SAY(quick, G "\r\n");
			turn();
			assert_true(io_now() - before < 500 * MS);
		}
		io_poll(io);
	}
	print_message("a reader that never reads: cancelled after %d KiB\n", events * 16);
	assert_int_equal(app.n_gone, 1);
	assert_true(events * sizeof(event) > CONN_BEHIND);
	assert_int_equal(app.last_status, 499);
	hear_text(&h, quick, "GET /json");
	assert_false(h.closed);
	forget(&h);
	close(slow);
	close(quick);
	rig_close();
}

static void test_big_reply(void **state)
{
	struct heard h = { 0 };
	int fd;

	(void)state;
	rig_open(NULL);
	fd = client();
	SAY(fd, "GET /big HTTP/1.1\r\nHost: a\r\n\r\n" NEXT);
	turns(5);
	do
		hear_once(&h, fd);     /* 4 MiB of zeros, and then the next answer */
	while (h.n < 9 || memcmp(h.p + h.n - 9, "GET /next", 9));
	assert_true(h.n > 4u << 20);
	forget(&h);
	close(fd);
	rig_close();
}

/* ---- going away --------------------------------------------------------------------------- */

enum how { CLOSE, HALF, RESET };

static void leave(int fd, enum how how)
{
	struct linger now = { 1, 0 };

	if (how == HALF) {
		shutdown(fd, SHUT_WR);
		return;
	}
	if (how == RESET)
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	close(fd);
}

static void test_gone(void **state)
{
	static const struct { const char *name, *bytes; bool app_has, event; } when[] = {
		{ "before a byte", "", false, false },
		{ "in the head", "GET /la", false, false },
		{ "in the body", P "Content-Length: 5\r\n\r\nhe", false, false },
		{ "in a chunk", P "Transfer-Encoding: chunked\r\n\r\n5\r\nhe", false, false },
		{ "while the app works", "GET /later HTTP/1.1\r\nHost: a\r\n\r\n", true, false },
		{ "with a request unread", "GET /later HTTP/1.1\r\nHost: a\r\n\r\n" NEXT, true, false },
		{ "before the first event", "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n", true, false },
		{ "amid the events", "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n", true, true },
		{ "amid a large answer", "GET /big HTTP/1.1\r\nHost: a\r\n\r\n", false, false },
	};

	(void)state;
	rig_open(NULL);
	for (size_t i = 0; i < sizeof(when) / sizeof(*when); i++) {
		for (enum how how = CLOSE; how <= RESET; how++) {
			int fd = client(), held = app.n_held, gone = app.n_gone, done = app.n_done;
			uint64_t left;

			say(fd, when[i].bytes, strlen(when[i].bytes));
			UNTIL(app.n_held == held + when[i].app_has && server_connections(server) == 1);
			turns(2);
			if (when[i].event)
				exchange_event(app.held[held], "data", 4);
			turns(2);
			leave(fd, how);
			left = io_now();
			UNTIL(server_connections(server) == 0);
			if (io_now() - left > 500 * MS)
				fail_msg("%s: seen after %d ms", when[i].name, (int)((io_now() - left) / MS));
			assert_int_equal(app.n_gone, gone + when[i].app_has);
			if (when[i].app_has) {
				assert_int_equal(app.n_done, done + 1);
				assert_int_equal(app.last_status, 499);
			}
			if (how == HALF)
				close(fd);
		}
	}
	rig_close();
}

/* An answer that is given while the peer has left ends the exchange; gone() does not come too. */
static void test_answer_to_nobody(void **state)
{
	struct linger now = { 1, 0 };
	int fd;

	(void)state;
	rig_open(NULL);
	fd = client();
	SAY(fd, "GET /later HTTP/1.1\r\nHost: a\r\n\r\n");
	UNTIL(app.n_held == 1);
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	close(fd);
	exchange_reply(take(0), 200, "text/plain", NULL, "x", 1);
	UNTIL(server_connections(server) == 0);
	assert_int_equal(app.n_gone, 0);
	assert_int_equal(app.n_done, 1);
	rig_close();
}

/* 413 comes while the client still sends 8 MB, and reaches it: nothing is reset. */
static void test_linger(void **state)
{
	static const char head[] = P "Content-Length: 8388608\r\n\r\n";
	static char body[8 << 20];
	const struct server_config cfg = { .max_body = 1000 };
	struct heard h = { 0 };
	int fd;

	(void)state;
	rig_open(&cfg);
	fd = client();
	SAY(fd, head);
	say(fd, body, sizeof(body));
	hear_end(&h, fd);
	assert_int_equal(strncmp(h.p, "HTTP/1.1 413 ", 13), 0);
	forget(&h);
	close(fd);
	UNTIL(server_connections(server) == 0);
	rig_close();
}

static void test_drop_body(void **state)
{
	static char bytes[300000];
	struct heard h = { 0 };
	int fd, n = sprintf(bytes, "POST /later HTTP/1.1\r\nHost: a\r\nX-Tag: yes\r\nContent-Length: 200000\r\n\r\n");
	struct mallinfo2 before, after;

	(void)state;
	rig_open(NULL);
	fd = client();
	memset(bytes + n, 'x', 200000);
	memcpy(bytes + n + 200000, NEXT, sizeof(NEXT));
	say(fd, bytes, (size_t)n + 200000 + sizeof(NEXT) - 1);
	UNTIL(app.n_held == 1);
	assert_int_equal(exchange_request(app.held[0])->body.n, 200000);
	assert_int_equal(app.last_in, 0);
	before = mallinfo2();
	exchange_drop_body(app.held[0]);
	after = mallinfo2();
	if (before.arena)              /* a sanitizer's heap does not tell */
		assert_true(before.uordblks + before.hblkhd - after.uordblks - after.hblkhd > 190000);
	assert_int_equal(exchange_request(app.held[0])->body.n, 0);
	assert_true(http_is(*http_header(exchange_request(app.held[0]), "x-tag"), "yes"));
	exchange_reply(take(0), 200, NULL, NULL, "", 0);
	hear_text(&h, fd, "GET /next");
	forget(&h);
	close(fd);
	rig_close();
}

/* ---- deadlines and limits ----------------------------------------------------------------- */

static void test_deadlines(void **state)
{
	static const struct { const char *name, *bytes, *drip, *answer; } slow[] = {
		{ "nothing sent", "", NULL, NULL },
		{ "head", "GET / HT", NULL, "HTTP/1.1 408 " },
		{ "head, a byte at a time", "GET /", "a", "HTTP/1.1 408 " },
		{ "empty line, then nothing", "\r\n", NULL, "HTTP/1.1 408 " },
		{ "body", P "Content-Length: 5\r\n\r\nhe", NULL, "HTTP/1.1 408 " },
		{ "body, a byte at a time", P "Content-Length: 5000\r\n\r\nhe", "a", "HTTP/1.1 408 " },
		{ "chunks, a byte at a time", P "Transfer-Encoding: chunked\r\n\r\n", "1\r\na\r\n",
		  "HTTP/1.1 408 " },
		{ "idle after an answer", G "\r\n", NULL, "HTTP/1.1 200 " },
	};
	const struct server_config cfg = { .head_ns = 60 * MS, .body_ns = 60 * MS, .idle_ns = 60 * MS,
	                                   .send_ns = 60 * MS, .linger_ns = 60 * MS };

	(void)state;
	rig_open(&cfg);
	for (size_t i = 0; i < sizeof(slow) / sizeof(*slow); i++) {
		struct heard h = { 0 };
		uint64_t begun = io_now();
		int fd = client();

		say(fd, slow[i].bytes, strlen(slow[i].bytes));
		while (!h.closed && io_now() - begun < 2000 * MS) {
			hear(&h, fd, 8);
			if (slow[i].drip && !h.n)
				say(fd, slow[i].drip, strlen(slow[i].drip));
		}
		if (!h.closed || io_now() - begun < 50 * MS )
			fail_msg("%s: closed after %d ms", slow[i].name, (int)((io_now() - begun) / MS));
		if (slow[i].answer ? !strstr(h.p, slow[i].answer) : h.n != 0)
			fail_msg("%s: %s", slow[i].name, h.p);
		forget(&h);
		close(fd);
	}
	rig_close();
}

/* Nobody reads a large answer; nobody closes after one.  Both end. */
static void test_stalled(void **state)
{
	const struct server_config cfg = { .send_ns = 60 * MS, .linger_ns = 60 * MS };
	char buf[1024];
	int fd[2];

	(void)state;
	rig_open(&cfg);
	fd[0] = client();
	fd[1] = client();
	SAY(fd[0], "GET /big HTTP/1.1\r\nHost: a\r\n\r\n");
	SAY(fd[1], G "Connection: close\r\n\r\n");
	UNTIL(app.n_handled == 2);
	turns(5);
	assert_true(recv(fd[1], buf, sizeof(buf), MSG_DONTWAIT) > 0);
	assert_int_equal(server_connections(server), 2);
	UNTIL(server_connections(server) == 0);
	close(fd[0]);
	close(fd[1]);
	rig_close();
}

static void test_steady_upload(void **state)
{
	enum { BODY = 400000, PIECE = 80000 };
	static char bytes[BODY + 100];
	const struct server_config cfg = { .body_ns = 120 * MS };
	int n = sprintf(bytes, P "Content-Length: %d\r\n\r\n", BODY), fd;
	struct heard h = { 0 };

	(void)state;
	rig_open(&cfg);
	fd = client();
	for (int at = 0; at < n + BODY; at += PIECE) {     /* longer than the deadline, but never slow */
		say(fd, bytes + at, (size_t)(n + BODY - at < PIECE ? n + BODY - at : PIECE));
		turns(30);
	}
	hear_text(&h, fd, "HTTP/1.1 200 ");
	forget(&h);
	close(fd);
	rig_close();
}

static void test_full(void **state)
{
	const struct server_config cfg = { .max_connections = 4 };
	struct heard h = { 0 };
	int fd[6];

	(void)state;
	rig_open(&cfg);
	for (int i = 0; i < 4; i++) {
		fd[i] = client();
		UNTIL(server_connections(server) == i + 1);
		if (i)
			SAY(fd[i], "GET /later HTTP/1.1\r\nHost: a\r\n\r\n");
	}
	UNTIL(app.n_held == 3);
	fd[4] = client();                      /* fd[0] has been idle: it makes room */
	SAY(fd[4], "GET /later HTTP/1.1\r\nHost: a\r\n\r\n");
	UNTIL(app.n_held == 4);
	hear_end(&h, fd[0]);
	assert_int_equal(h.n, 0);
	forget(&h);
	fd[5] = client();                      /* nobody is idle now */
	hear_end(&h, fd[5]);
	assert_int_equal(strncmp(h.p, "HTTP/1.1 503 ", 13), 0);
	assert_non_null(strstr(h.p, "Retry-After: 1\r\n"));
	forget(&h);
	for (int i = 0; i < 6; i++)
		close(fd[i]);
	UNTIL(app.n_gone == 4);
	rig_close();
}

static void test_held_bytes(void **state)
{
	const struct server_config cfg = { .max_body = 100000, .max_held = 1 };  /* = two such bodies */
	static char bytes[90000];
	struct heard h = { 0 };
	int fd[4], n;

	(void)state;
	rig_open(&cfg);
	for (int i = 0; i < 4; i++) {
		fd[i] = client();
		n = sprintf(bytes, P "Content-Length: 95000\r\n\r\n");
		say(fd[i], bytes, sizeof(bytes));
		turns(5);
		bytes[n] = 0;
	}
	hear_text(&h, fd[3], "HTTP/1.1 503 ");
	forget(&h);
	say(fd[0], bytes, 95000 - sizeof(bytes) + (size_t)n);
	hear_text(&h, fd[0], "HTTP/1.1 200 ");
	forget(&h);
	for (int i = 0; i < 4; i++)
		close(fd[i]);
	UNTIL(server_connections(server) == 0);
	rig_close();
}

static void test_descriptors(void **state)
{
	struct rlimit old, low;
	int fd[64], n = 0, refused = 0, top;
	struct heard h = { 0 };

	(void)state;
	rig_open(NULL);
	for (; n < 32; n++)
		fd[n] = client();
	getrlimit(RLIMIT_NOFILE, &old);
	top = fd[31];
	low = (struct rlimit){ (rlim_t)top + 8, old.rlim_max };
	setrlimit(RLIMIT_NOFILE, &low);
	turns(30);
	for (int i = 0; i < n; i++) {
		hear(&h, fd[i], 2);
		refused += h.closed && h.n && !strncmp(h.p, "HTTP/1.1 503 ", 13);
		forget(&h);
	}
	assert_true(refused > 0);
	assert_int_equal(refused + server_connections(server), n);
	setrlimit(RLIMIT_NOFILE, &old);
	for (int i = 0; i < n; i++)
		close(fd[i]);
	UNTIL(server_connections(server) == 0);
	fd[0] = client();                      /* and all is well again */
	SAY(fd[0], G "\r\n");
	UNTIL(app.n_handled == 1);
	close(fd[0]);
	rig_close();
}

static size_t heap(void)
{
	struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
}

static void test_idle_memory(void **state)
{
	enum { N = 500 };
	static int fd[N];
	const struct server_config cfg = { .max_connections = N };
	size_t none = heap(), pool, before, each;
	struct heard h = { 0 };

	(void)state;
	rig_open(&cfg);
	pool = (heap() - none) / N;
	fd[0] = client();                      /* what the first one costs is not each one's */
	SAY(fd[0], G "\r\n");
	UNTIL(app.n_handled == 1);
	before = heap();
	for (int i = 1; i < N; i++) {
		fd[i] = client();
		SAY(fd[i], G "\r\n");
		turn();
	}
	UNTIL(app.n_handled == N);
	each = (heap() - before) / (N - 1);
	if (before)
		print_message("an idle connection: %zu bytes in the pool and %zu of heap\n", pool, each);
	else
		print_message("SKIP the bound of test_idle_memory: this heap does not tell its size\n");
	assert_true(pool < 4096 && each < 512);
	for (int i = 0; i < N; i++) {
		hear_text(&h, fd[i], "GET /json");
		assert_false(h.closed);
		forget(&h);
		close(fd[i]);
	}
	rig_close();
}

/* Who connects before the server opens waits, and is served. */
static void test_closed(void **state)
{
	const struct server_config cfg = { .closed = true };
	struct heard h = { 0 };
	int fd;

	(void)state;
	rig_open(&cfg);
	fd = client();
	SAY(fd, G "\r\n");
	turns(5);
	assert_int_equal(app.n_handled, 0);
	assert_int_equal(server_open(server), 0);
	hear_text(&h, fd, "GET /json");
	forget(&h);
	close(fd);
	rig_close();
}

/* ---- the end ------------------------------------------------------------------------------ */

static bool refused(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool yes = connect(fd, (struct sockaddr *)&where, sizeof(where)) < 0 && errno == ECONNREFUSED;

	close(fd);
	return yes;
}

static void test_drain(void **state)
{
	struct heard h[3] = { { 0 } };
	int idle, stream, late;

	(void)state;
	rig_open(NULL);
	idle = client();
	stream = client();
	SAY(stream, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
	UNTIL(app.n_held == 1 && server_connections(server) == 2);
	late = client();                       /* in the queue of the kernel, with its request */
	SAY(late, G "\r\n");
	server_drain(server);
	UNTIL(refused());
	hear_end(&h[0], idle);
	assert_int_equal(h[0].n, 0);
	hear_end(&h[1], late);
	assert_non_null(strstr(h[1].p, "Connection: close\r\n"));
	assert_non_null(strstr(h[1].p, "GET /json"));
	assert_false(server_idle(server));
	exchange_event(app.held[0], "data: x\n\n", 9);
	exchange_end(take(0));
	hear_end(&h[2], stream);
	assert_non_null(strstr(h[2].p, "data: x\n\n\r\n0\r\n\r\n"));
	close(idle);
	close(stream);
	close(late);
	UNTIL(server_idle(server) && server_connections(server) == 0);
	for (int i = 0; i < 3; i++)
		forget(&h[i]);
	rig_close();
}

static void test_abort(void **state)
{
	struct heard h[2] = { { 0 } };
	int stream, later;

	(void)state;
	rig_open(NULL);
	stream = client();
	SAY(stream, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
	UNTIL(app.n_held == 1);
	later = client();
	SAY(later, "GET /later HTTP/1.1\r\nHost: a\r\n\r\n");
	UNTIL(app.n_held == 2);
	exchange_event(app.held[0], "data: 1\n\n", 9);
	server_abort(server, "data: over\n\n", 12);
	assert_int_equal(app.n_gone, 2);
	hear_end(&h[0], stream);
	hear_end(&h[1], later);
	assert_non_null(strstr(h[0].p, "data: 1\n\n\r\nc\r\ndata: over\n\n\r\n0\r\n\r\n"));
	assert_int_equal(strncmp(h[1].p, "HTTP/1.1 503 ", 13), 0);
	forget(&h[0]);
	forget(&h[1]);
	close(stream);
	close(later);
	rig_close();
}

/* Destroyed amid everything: each exchange is told, nothing leaks (a sanitizer looks on). */
static void test_destroy(void **state)
{
	int fd[4];

	(void)state;
	rig_open(NULL);
	for (int i = 0; i < 4; i++)
		fd[i] = client();
	SAY(fd[1], "GET /later HTTP/1.1\r\nHost: a\r\n\r\n" NEXT);
	SAY(fd[2], "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
	SAY(fd[3], P "Content-Length: 500\r\n\r\nhe");
	UNTIL(app.n_held == 2 && server_connections(server) == 4);
	rig_close();
	assert_int_equal(app.n_gone, 2);
	for (int i = 0; i < 4; i++)
		close(fd[i]);
}

/* ---- TLS ---------------------------------------------------------------------------------- */

static char pem_dir[64], cert_file[96], key_file[96];

/* A self-signed certificate for `name`, written as the operator would. */
static void write_certificate(const char *name)
{
	EVP_PKEY *key = EVP_EC_gen("P-256");
	X509 *x = X509_new();
	X509_NAME *who = X509_get_subject_name(x);
	FILE *f;

	assert_non_null(key);
	ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
	X509_gmtime_adj(X509_getm_notBefore(x), -60);
	X509_gmtime_adj(X509_getm_notAfter(x), 3600);
	X509_set_pubkey(x, key);
	X509_NAME_add_entry_by_txt(who, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
	X509_set_issuer_name(x, who);
	assert_true(X509_sign(x, key, EVP_sha256()) > 0);
	f = fopen(cert_file, "w");
	assert_true(f && PEM_write_X509(f, x) && !fclose(f));
	f = fopen(key_file, "w");
	assert_true(f && PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL) && !fclose(f));
	X509_free(x);
	EVP_PKEY_free(key);
}

static void rig_open_tls(uint64_t head_ns)
{
	const struct server_config cfg = { .certfile = cert_file, .keyfile = key_file, .head_ns = head_ns,
	                                   .linger_ns = 50 * MS };

	strcpy(pem_dir, "/tmp/test_conn.XXXXXX");
	assert_non_null(mkdtemp(pem_dir));
	sprintf(cert_file, "%s/cert.pem", pem_dir);
	sprintf(key_file, "%s/key.pem", pem_dir);
	write_certificate("first");
	rig_open(&cfg);
}

static void rig_close_tls(void)
{
	unlink(cert_file);
	unlink(key_file);
	rmdir(pem_dir);
	rig_close();
}

/* A call of the client's until it got what it wanted, running the server in between. */
enum call { CONNECT, READ, WRITE };

static int tls(SSL *ssl, enum call call, void *buf, int n)
{
	uint64_t end = io_now() + 2000 * MS;
	int r, e;

	do {
		turn();
		r = call == CONNECT ? SSL_connect(ssl) : call == READ ? SSL_read(ssl, buf, n) :
		    SSL_write(ssl, buf, n);
		e = SSL_get_error(ssl, r);
	} while (r <= 0 && (e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE) && io_now() < end);
	return r;
}

static void tls_say(SSL *ssl, const char *text)
{
	assert_int_equal(tls(ssl, WRITE, (void *)(uintptr_t)text, (int)strlen(text)), strlen(text));
}

static SSL *tls_client(SSL_CTX *ctx, int *fd)
{
	SSL *ssl = SSL_new(ctx);

	*fd = client();
	SSL_set_fd(ssl, *fd);
	return ssl;
}

static void common_name(SSL *ssl, char *out, int n)
{
	X509 *x = SSL_get1_peer_certificate(ssl);

	X509_NAME_get_text_by_NID(X509_get_subject_name(x), NID_commonName, out, n);
	X509_free(x);
}

static void test_tls(void **state)
{
	static const unsigned char http11[] = "\x02h2\x08http/1.1";
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
	char buf[16384], name[64], err[256];
	const unsigned char *proto;
	unsigned len;
	SSL *ssl;
	int fd, n;

	(void)state;
	rig_open_tls(0);
	SSL_CTX_set_alpn_protos(ctx, http11, sizeof(http11) - 1);
	ssl = tls_client(ctx, &fd);
	assert_int_equal(tls(ssl, CONNECT, NULL, 0), 1);
	SSL_get0_alpn_selected(ssl, &proto, &len);
	assert_int_equal(len, 8);
	common_name(ssl, name, sizeof(name));
	assert_string_equal(name, "first");

	/* two pipelined requests in one record, then a stream: an event is one record */
	tls_say(ssl, G "\r\n" NEXT);
	UNTIL(app.n_handled == 2);
	for (int i = 0; i < 2; i++) {
		n = tls(ssl, READ, buf, sizeof(buf) - 1);
		assert_true(n > 0);
		buf[n] = 0;
		assert_non_null(strstr(buf, i ? "GET /next" : "GET /json"));
	}
	tls_say(ssl, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
	UNTIL(app.n_held == 1);
	for (int i = 0; i < 3; i++) {
		exchange_event(app.held[0], "data: x\n\n", 9);
		n = tls(ssl, READ, buf, sizeof(buf) - 1);
		buf[n > 0 ? n : 0] = 0;
		assert_non_null(strstr(buf, "9\r\ndata: x\n\n\r\n"));
		assert_true(i == 0 || n == 14);
	}

	/* the certificate is replaced while the stream runs; a wrong one is not taken */
	write_certificate("second");
	assert_int_equal(server_reload_tls(server, err, sizeof(err)), 0);
	assert_int_equal(truncate(cert_file, 10), 0);
	assert_true(server_reload_tls(server, err, sizeof(err)) < 0);
	assert_non_null(strstr(err, cert_file));
	exchange_event(app.held[0], "data: y\n\n", 9);
	exchange_end(take(0));
	n = tls(ssl, READ, buf, sizeof(buf) - 1);
	assert_int_equal(n, 14);
	SSL_free(ssl);
	close(fd);

	ssl = tls_client(ctx, &fd);
	assert_int_equal(tls(ssl, CONNECT, NULL, 0), 1);
	common_name(ssl, name, sizeof(name));
	assert_string_equal(name, "second");

	/* gone is seen under TLS too */
	tls_say(ssl, "GET /later HTTP/1.1\r\nHost: a\r\n\r\n");
	UNTIL(app.n_held == 2);
	SSL_free(ssl);
	close(fd);
	UNTIL(app.n_gone == 1);
	SSL_CTX_free(ctx);
	rig_close_tls();
}

static void test_tls_big(void **state)
{
	static char body[200000], buf[1 << 16];
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
	int fd, n = sprintf(body, P "Content-Length: 190000\r\nConnection: close\r\n\r\n"), sum = 0, r;
	SSL *ssl;

	(void)state;
	rig_open_tls(0);
	ssl = tls_client(ctx, &fd);
	assert_int_equal(tls(ssl, CONNECT, NULL, 0), 1);
	memset(body + n, 'z', 190000);
	SSL_set_mode(ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	for (int at = 0; at < n + 190000; at += r) {
		r = tls(ssl, WRITE, body + at, n + 190000 - at);
		assert_true(r > 0);
	}
	while ((r = tls(ssl, READ, buf, sizeof(buf))) > 0)
		sum += r;
	assert_true(sum > 190000);
	assert_int_equal(SSL_get_error(ssl, r), SSL_ERROR_ZERO_RETURN);  /* close_notify, not a cut */
	SSL_free(ssl);
	close(fd);
	SSL_CTX_free(ctx);
	rig_close_tls();
}

/* What is no TLS ends cleanly; what is half a handshake waits without work, and not for ever. */
static void test_tls_hostile(void **state)
{
	struct heard h = { 0 };
	struct timespec a, b;
	int fd, wakes = 0;
	uint64_t end;

	(void)state;
	rig_open_tls(100 * MS);
	fd = client();
	SAY(fd, G "\r\n");
	hear_end(&h, fd);
	assert_int_equal(app.n_handled, 0);
	forget(&h);
	close(fd);

	fd = client();
	SAY(fd, "\x16");
	UNTIL(server_connections(server) == 1);
	turns(5);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
	for (end = io_now() + 60 * MS; io_now() < end; wakes++)
		io_sleep(io, end);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
	assert_true(wakes < 5);
	assert_true((b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000 < 30);
	UNTIL(server_connections(server) == 0);
	hear_end(&h, fd);
	forget(&h);
	close(fd);
	rig_close_tls();
}

/* ---- all of it, on both loops --------------------------------------------------------------- */

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cases), cmocka_unit_test(test_head), cmocka_unit_test(test_random),
		cmocka_unit_test(test_pipeline), cmocka_unit_test(test_order),
		cmocka_unit_test(test_one_send_per_event), cmocka_unit_test(test_many_streams),
		cmocka_unit_test(test_slow_reader), cmocka_unit_test(test_big_reply),
		cmocka_unit_test(test_gone), cmocka_unit_test(test_answer_to_nobody),
		cmocka_unit_test(test_linger), cmocka_unit_test(test_drop_body),
		cmocka_unit_test(test_deadlines), cmocka_unit_test(test_stalled),
		cmocka_unit_test(test_steady_upload), cmocka_unit_test(test_full),
		cmocka_unit_test(test_held_bytes), cmocka_unit_test(test_descriptors),
		cmocka_unit_test(test_idle_memory), cmocka_unit_test(test_closed),
		cmocka_unit_test(test_drain), cmocka_unit_test(test_abort),
		cmocka_unit_test(test_destroy), cmocka_unit_test(test_tls), cmocka_unit_test(test_tls_big),
		cmocka_unit_test(test_tls_hostile),
	};
	int failed = 0;

	for (io_flags = 0; io_flags <= IO_EPOLL; io_flags += IO_EPOLL)
		failed += cmocka_run_group_tests_name(io_flags ? "epoll" : "io_uring", tests, NULL, NULL);
	return failed;
}
