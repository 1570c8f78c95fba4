/* LINK: @net core/instance/io.c core/instance/log.c -luring -lssl -lcrypto */
/* test_conn.c - connections against a toy app: hostile requests over real sockets, pipelining,
 * streams, slow readers, disconnects in every state.
 */
#include <malloc.h>
#include <sys/resource.h>

#include "tests/rig/conn_rig.h"

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

/* What is sent, the answers, whether the connection lives on, and text in the last answer.  Each case is
 * sent at once and again byte by byte, unless marked. */
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
	{ "body unwanted, here (whole)", "POST /skip HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello" NEXT,
	  "200 200", true, "GET /next" },
	{ "body unwanted, late", "POST /skip HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", "200", false,
	  "POST /skip" },
	{ "body unwanted, 100-continue", "POST /skip HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
	  "Content-Length: 5\r\n\r\n", "200", false, "POST /skip" },
	{ "body unwanted, chunked", "POST /skip HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
	  "200", false, "POST /skip" },
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
	hear(&h, fd, cases[i].lives ? 2 : 2000);  /* either nothing more comes, or the end */
	statuses(&h, got, false);
	if (bytewise && !strncmp(got, "100 ", 4))
		answers += 4;              /* the body was late: 100 Continue */
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

/* A turn serves one of many pipelined requests, so the next client does not wait for all of them. */
static void test_turns(void **state)
{
	enum { N = 200 };
	static char all[N * sizeof(NEXT)];
	struct heard h = { 0 };
	int a, b;

	(void)state;
	rig_open(NULL);
	a = client();
	b = client();
	UNTIL(server_connections(server) == 2);
	all[0] = 0;
	for (int i = 0; i < N; i++)
		strcat(all, NEXT);
	say(a, all, strlen(all));
	SAY(b, G "\r\n");
	hear_text(&h, b, "GET /json");
	assert_true(app.n_handled <= 8);
	forget(&h);
	shutdown(a, SHUT_WR);                  /* what it had sent is answered */
	UNTIL(app.n_handled == N + 1);
	close(a);
	close(b);
	rig_close();
}

/* A pipelined request waits for the one before it, and is not lost if that one is streamed. */
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
		n = recv(fd, buf, sizeof(buf) - 1, 0);   /* one segment, complete at once */
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

/* A client that does not read is cancelled, and no other client is affected. */
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

static bool asks_big(const char *bytes) { return strstr(bytes, "/big ") != NULL; }

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

			if (how == HALF && asks_big(when[i].bytes)) {  /* this is not a disconnect */
				close(fd);
				UNTIL(server_connections(server) == 0);
				continue;
			}
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

/* An answer after the client has left ends the exchange; gone() is not called as well. */
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

/* 413 is sent while the client still sends 8 MB, and reaches it: no reset. */
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
	if (before.arena)              /* a sanitizer's heap has no figures */
		assert_true(before.uordblks + before.hblkhd - after.uordblks - after.hblkhd > 190000);
	assert_int_equal(exchange_request(app.held[0])->body.n, 0);
	assert_true(http_is(*http_header(exchange_request(app.held[0]), "x-tag"), "yes"));
	exchange_reply(take(0), 200, NULL, NULL, "", 0);
	hear_text(&h, fd, "GET /next");
	forget(&h);
	close(fd);
	rig_close();
}

/* ---- all of it, on both loops --------------------------------------------------------------- */

/* A request that arrives in parts is reported from its first byte to its last, once. */
static void test_arriving(void **state)
{
	struct heard h = { 0 };
	int a, b, c;

	(void)state;
	rig_open(NULL);
	a = client();
	b = client();
	c = client();
	SAY(a, G "\r\n");                     /* whole: it never was arriving */
	hear_text(&h, a, "GET /json");
	assert_int_equal(app.arriving, 0);
	SAY(a, "POST /ec");
	UNTIL(app.arriving == 1);
	SAY(b, P "Content-Length: 5\r\n\r\n");
	SAY(c, P "Content-Length: 5\r\n\r\nhe");
	UNTIL(app.arriving == 3);
	SAY(a, "ho HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nh");
	SAY(b, "hello" "POST /ec");           /* and a part of the next */
	turns(20);
	assert_int_equal(app.arriving, 3);
	SAY(a, "o");
	UNTIL(app.arriving == 2);
	close(c);
	UNTIL(app.arriving == 1);
	close(a);
	close(b);
	UNTIL(app.arriving == 0);
	b = client();
	SAY(b, "POST /ec");
	UNTIL(app.arriving == 1);
	rig_close();                          /* with one that is still arriving */
	close(b);
	forget(&h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cases), cmocka_unit_test(test_head), cmocka_unit_test(test_random),
		cmocka_unit_test(test_pipeline), cmocka_unit_test(test_order), cmocka_unit_test(test_turns),
		cmocka_unit_test(test_one_send_per_event), cmocka_unit_test(test_many_streams),
		cmocka_unit_test(test_slow_reader), cmocka_unit_test(test_big_reply),
		cmocka_unit_test(test_gone), cmocka_unit_test(test_answer_to_nobody),
		cmocka_unit_test(test_linger), cmocka_unit_test(test_drop_body),
		cmocka_unit_test(test_arriving),
	};

	return rig_run(tests, sizeof(tests) / sizeof(*tests));
}
