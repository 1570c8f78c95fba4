/* LINK: @net core/instance/io.c core/instance/log.c -luring -lssl -lcrypto */
/* test_conn_limits.c - deadlines, limits, memory, drain and the end of connections. */
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include "tests/rig/conn_rig.h"

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

/* A client does not read a large answer, or does not close after one.  Both are ended. */
static void test_stalled(void **state)
{
	const struct server_config cfg = { .send_ns = 500 * MS, .linger_ns = 500 * MS };
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

/* A client that has sent all and shuts its side still gets a whole large answer; nothing spins. */
static void test_half_close(void **state)
{
	struct heard h = { 0 };
	struct timespec a, b;
	int fd;

	(void)state;
	rig_open(NULL);
	fd = client();
	SAY(fd, "GET /big HTTP/1.1\r\nHost: a\r\n\r\n");
	UNTIL(app.n_handled == 1);
	shutdown(fd, SHUT_WR);
	turns(5);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
	turns(50);                             /* the client does not read: nothing to do */
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
	assert_true((b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000 < 25);
	hear_end(&h, fd);
	assert_true(h.n > 4u << 20);
	UNTIL(server_connections(server) == 0);
	assert_int_equal(app.n_gone, 0);
	assert_int_equal(app.last_status, 200);
	forget(&h);
	close(fd);
	rig_close();
}

/* A reader that takes a little now and then, so that something always moves, is cut off too. */
static void test_trickle(void **state)
{
	const struct server_config cfg = { .send_ns = 100 * MS };
	uint64_t begun = io_now();
	char buf[512];
	int fd;

	(void)state;
	rig_open(&cfg);
	fd = client();
	SAY(fd, "GET /big HTTP/1.1\r\nHost: a\r\n\r\n");
	UNTIL(app.n_handled == 1);
	while (server_connections(server) && io_now() - begun < 1500 * MS) {
		turns(2);
		recv(fd, buf, sizeof(buf), MSG_DONTWAIT);
	}
	assert_int_equal(server_connections(server), 0);
	assert_true(io_now() - begun > 90 * MS);
	close(fd);
	rig_close();
}

/* The access log has the client's address. */
static void test_peer(void **state)
{
	struct sockaddr_in own;
	socklen_t n = sizeof(own);
	char text[64];
	int fd;

	(void)state;
	rig_open(NULL);
	fd = client();
	assert_int_equal(getsockname(fd, (struct sockaddr *)&own, &n), 0);
	SAY(fd, G "\r\n");
	UNTIL(app.n_done == 1);
	snprintf(text, sizeof(text), "127.0.0.1:%d", ntohs(own.sin_port));
	assert_string_equal(app.last_peer, text);
	close(fd);
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
	fd[4] = client();                      /* fd[0] is idle: it makes room */
	SAY(fd[4], "GET /later HTTP/1.1\r\nHost: a\r\n\r\n");
	UNTIL(app.n_held == 4);
	hear_end(&h, fd[0]);
	assert_int_equal(h.n, 0);
	forget(&h);
	fd[5] = client();                      /* none is idle now */
	hear_end(&h, fd[5]);
	assert_int_equal(strncmp(h.p, "HTTP/1.1 503 ", 13), 0);
	assert_non_null(strstr(h.p, "Retry-After: 1\r\n"));
	assert_non_null(strstr(h.p, "\r\n\r\n{\"error\":{\"message\":\"The server has no more connections.\""));
	assert_string_equal(h.p + h.n - 12, "\"code\":503}}");
	forget(&h);
	for (int i = 0; i < 6; i++)
		close(fd[i]);
	UNTIL(app.n_gone == 4);
	rig_close();
}

/* Of many clients that connect at once, 64 are accepted in a turn: connected ones wait no longer than that. */
static void test_crowd(void **state)
{
	enum { N = 200, A_TURN = 64 };
	static int fd[N];
	int before;

	(void)state;
	rig_open(NULL);
	for (int i = 0; i < N; i++)
		fd[i] = client();
	do {
		before = server_connections(server);
		io_poll(io);
		assert_in_range(server_connections(server) - before, 0, A_TURN);
	} while (server_connections(server) < N);
	for (int i = 0; i < N; i++)
		close(fd[i]);
	UNTIL(server_connections(server) == 0);
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
	struct heard answer[64] = { 0 }, h = { 0 };

	(void)state;
	rig_open(NULL);
	for (; n < 32; n++) {                  /* none gives up its place */
		fd[n] = client();
		SAY(fd[n], "GET /later HTTP/1.1\r\nHost: a\r\n\r\n");
	}
	getrlimit(RLIMIT_NOFILE, &old);
	top = fd[31];
	low = (struct rlimit){ (rlim_t)top + 8, old.rlim_max };
	setrlimit(RLIMIT_NOFILE, &low);
	turns(30);
	for (uint64_t end = io_now() + 2000 * MS; refused + server_connections(server) < n && io_now() < end;)
		for (int i = 0; i < n; i++)
			if (!answer[i].closed) {
				hear(&answer[i], fd[i], 2);
				refused += answer[i].closed && answer[i].n && !strncmp(answer[i].p, "HTTP/1.1 503 ", 13);
			}
	for (int i = 0; i < n; i++)
		forget(&answer[i]);
	assert_true(refused > 0);
	assert_int_equal(refused + server_connections(server), n);
	setrlimit(RLIMIT_NOFILE, &old);
	for (int i = 0; i < n; i++)
		close(fd[i]);
	UNTIL(server_connections(server) == 0);
	fd[0] = client();                      /* there is room again */
	SAY(fd[0], G "\r\n");
	hear_text(&h, fd[0], "GET /json");
	forget(&h);
	close(fd[0]);
	rig_close();
}

static void test_idle_memory(void **state)
{
	enum { N = 500 };
	static int fd[N];
	const struct server_config cfg = { .max_connections = N + N / 8 };  /* one address may have N */
	size_t none = heap(), pool, before, each;
	struct heard h = { 0 };

	(void)state;
	rig_open(&cfg);
	pool = (heap() - none) / (N + N / 8);
	fd[0] = client();                      /* the first connection allocates more */
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

/* A client that connects before the server opens waits and is served. */
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
	struct stat before, after;

	(void)state;
	assert_int_equal(fstat(0, &before), 0);
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
	assert_int_equal(fstat(0, &after), 0); /* only the server's own descriptors were closed */
	assert_true(before.st_dev == after.st_dev && before.st_ino == after.st_ino);
}

/* Idle connections give their descriptors to clients that wait in the kernel's queue. */
static void test_drain_without_descriptors(void **state)
{
	enum { IDLE = 3, LATE = 2 };           /* with none free, one more is given up to see an empty queue */
	struct heard h = { 0 };
	struct rlimit old, low;
	int fd[IDLE + LATE], next;

	(void)state;
	rig_open(NULL);
	for (int i = 0; i < IDLE + LATE; i++) {
		fd[i] = client();
		SAY(fd[i], G "\r\n");
		if (i < IDLE)
			UNTIL(app.n_handled == i + 1);
	}
	getrlimit(RLIMIT_NOFILE, &old);
	next = dup(fd[0]);
	close(next);
	low = (struct rlimit){ (rlim_t)next, old.rlim_max };
	setrlimit(RLIMIT_NOFILE, &low);
	server_drain(server);
	setrlimit(RLIMIT_NOFILE, &old);
	for (int i = 0; i < IDLE + LATE; i++) {
		hear_end(&h, fd[i]);
		assert_non_null(strstr(h.p, "GET /json"));
		forget(&h);
		close(fd[i]);
	}
	UNTIL(server_connections(server) == 0);
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

/* Destroyed in every state: each exchange is told, and nothing leaks (a sanitizer checks). */
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
	server_destroy(server);
	UNTIL(refused());                      /* the loop drops the listening socket, too */
	io_destroy(io);
	assert_int_equal(app.arriving, 0);
	assert_int_equal(app.n_gone, 2);
	for (int i = 0; i < 4; i++)
		close(fd[i]);
}

/* ---- all of it, on both loops --------------------------------------------------------------- */

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_deadlines), cmocka_unit_test(test_stalled),
		cmocka_unit_test(test_half_close), cmocka_unit_test(test_trickle), cmocka_unit_test(test_peer),
		cmocka_unit_test(test_steady_upload), cmocka_unit_test(test_full), cmocka_unit_test(test_crowd),
		cmocka_unit_test(test_held_bytes), cmocka_unit_test(test_descriptors),
		cmocka_unit_test(test_idle_memory), cmocka_unit_test(test_closed),
		cmocka_unit_test(test_drain), cmocka_unit_test(test_drain_without_descriptors), cmocka_unit_test(test_abort), cmocka_unit_test(test_destroy),
	};

	return rig_run(tests, sizeof(tests) / sizeof(*tests));
}
