/* LINK: @net core/instance/io.c core/instance/log.c -luring -lssl -lcrypto */
/* test_conn_long.c - answers too long for one turn of the loop are made slice by slice as the client reads,
 * and never held whole, even if the client leaves, pauses or shuts a side.
 */
#include <malloc.h>

#include "tests/rig/conn_rig.h"

#define LONG (20u << 20)
#define ROUND (26u * 1024)             /* bytes of one piece; divides no other size here */

/* ---- an app that makes LONG bytes --------------------------------------------------------- */

static struct making {
	struct exchange *x;
	size_t made, cut_at;
	int turns, most;                  /* calls; the most of them in one turn of the loop */
	int now;
	size_t memory;                    /* the most that was allocated */
} making;

static char at(size_t i) { return (char)('a' + i % 23); }

static void make(void *owner)
{
	struct making *m = owner;
	static char piece[ROUND];
	size_t n = 0, used = mallinfo2().uordblks;

	m->turns++;
	m->most = ++m->now > m->most ? m->now : m->most;
	m->memory = used > m->memory ? used : m->memory;
	if (m->cut_at && m->made >= m->cut_at) {
		exchange_cut(m->x);
		return;
	}
	for (size_t slice = 0; slice < CONN_SLICE && m->made < LONG; slice += n, m->made += n) {
		n = LONG - m->made < ROUND ? LONG - m->made : ROUND;
		for (size_t i = 0; i < n; i++)
			piece[i] = at(m->made + i);
		exchange_event(m->x, piece, n);
	}
	if (m->made == LONG)
		exchange_end(m->x);
}

/* Ask for it.  Returns the exchange that pulls. */
static int ask(const char *request, bool computed, size_t cut_at)
{
	int fd = client();

	say(fd, request, strlen(request));
	UNTIL(app.n_held == 1);
	making = (struct making){ .x = app.held[0], .cut_at = cut_at };
	exchange_pull(app.held[0], make, &making, computed);
	return fd;
}

#define STREAM "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"

/* Chunks taken out of their frames, in place: the length; *rest what follows the last. */
static size_t unchunk(char *p, char *end, char **rest)
{
	char *to = p, *from = p;
	size_t n;

	while (from < end) {
		n = strtoul(from, &from, 16);
		assert_memory_equal(from, "\r\n", 2);
		from += 2;
		if (!n)
			break;
		assert_true(n <= (size_t)(end - from));
		memmove(to, from, n);
		to += n;
		from += n;
		assert_memory_equal(from, "\r\n", 2);
		from += 2;
	}
	*rest = from;
	return (size_t)(to - p);
}

static void right(const char *p, size_t n)
{
	assert_int_equal(n, LONG);
	for (size_t i = 0; i < n; i++)
		if (p[i] != at(i))
			fail_msg("byte %zu is wrong", i);
}

static char *body_of(struct heard *h)
{
	char *p = strstr(h->p, "\r\n\r\n");

	assert_non_null(p);
	return p + 4;
}

/* Reads on, one look at the loop at a time, until the text at the end is `last`. */
static void hear_last(struct heard *h, int fd, const char *last)
{
	size_t n = strlen(last);

	while (!h->closed && (h->n < n || memcmp(h->p + h->n - n, last, n))) {
		making.now = 0;
		hear_once(h, fd);
	}
	assert_false(h->closed);
}

/* ---- made as it is read ------------------------------------------------------------------- */

static void test_pull(void **state)
{
	struct heard h = { 0 };
	size_t before;
	char *rest;
	int fd;

	(void)state;
	rig_open(NULL);
	before = mallinfo2().uordblks;
	fd = ask(STREAM, true, 0);
	turns(20);                             /* the client does not read: it goes on only as far as the socket takes it */
	assert_true(making.made < 8u << 20);
	SAY(fd, NEXT);                         /* and the next request waits its turn */
	before = mallinfo2().uordblks - before;
	making.most = 0;
	hear_last(&h, fd, "GET /next");
	right(body_of(&h), unchunk(body_of(&h), h.p + h.n, &rest));
	assert_memory_equal(rest, "\r\nHTTP/1.1 200", 14);
	assert_true(before < 512u << 10);
	assert_int_equal(making.most, 1);
	assert_true(making.turns >= (int)(LONG / (CONN_SLICE + ROUND)));
	assert_int_equal(app.n_done, 2);
	assert_int_equal(app.n_gone, 0);
	forget(&h);
	close(fd);
	rig_close();
}

static void test_pull_http_1_0(void **state)
{
	struct heard h = { 0 };
	int fd;

	(void)state;
	rig_open(NULL);
	fd = ask("GET /stream HTTP/1.0\r\n\r\n", true, 0);
	hear(&h, fd, 5000);
	assert_true(h.closed && !h.reset);
	right(body_of(&h), h.n - (size_t)(body_of(&h) - h.p));
	forget(&h);
	close(fd);
	rig_close();
}

/* Several at a time: a turn makes a slice of each at most, and as much as its time allows of all. */
static void test_pull_many(void **state)
{
	enum { N = 8 };
	static struct making each[N];
	struct heard h[N] = { 0 };
	int fd[N], i, open;

	(void)state;
	rig_open(NULL);
	for (i = 0; i < N; i++) {
		fd[i] = client();
		SAY(fd[i], "GET /stream HTTP/1.0\r\n\r\n");
		UNTIL(app.n_held == i + 1);
		each[i] = (struct making){ .x = app.held[i] };
		exchange_pull(app.held[i], make, &each[i], true);
	}
	do {
		for (i = open = 0; i < N; i++)
			if (!h[i].closed) {
				hear_once(&h[i], fd[i]);
				open++;
			}
	} while (open);
	for (i = 0; i < N; i++) {
		right(body_of(&h[i]), h[i].n - (size_t)(body_of(&h[i]) - h[i].p));
		forget(&h[i]);
		close(fd[i]);
	}
	rig_close();
}

/* ---- ends in the middle ------------------------------------------------------------------- */

static void test_pull_gone(void **state)
{
	const struct server_config cfg = { .send_ns = 60 * MS };
	struct heard h = { 0 };
	int fd;

	(void)state;
	for (int how = 0; how < 4; how++) {
		rig_open(&cfg);
		fd = ask(STREAM, how != 2, 0);
		hear_text(&h, fd, "abc");
		if (how == 0)
			close(fd);                        /* leaves */
		else if (how == 1 || how == 3)
			turns(5);                         /* reads no more; 3: and the server ends */
		else
			shutdown(fd, SHUT_WR);            /* half: while it is computed that is leaving */
		if (how == 3)
			server_abort(server, "data: x\n\n", 9);
		UNTIL(app.n_gone == 1);
		assert_int_equal(server_connections(server), 0);
		assert_int_equal(app.n_done, 1);
		assert_int_equal(app.last_status, 499);
		assert_true(making.made < LONG);
		if (how)
			close(fd);
		forget(&h);
		rig_close();
	}
}

/* All is computed: a client that shuts its side still gets the rest. */
static void test_pull_half_close(void **state)
{
	struct heard h = { 0 };
	char *rest;
	int fd;

	(void)state;
	rig_open(NULL);
	fd = ask(STREAM, true, 0);
	hear_text(&h, fd, "abc");
	shutdown(fd, SHUT_WR);
	hear(&h, fd, 10000);
	assert_true(h.closed && !h.reset);
	right(body_of(&h), unchunk(body_of(&h), h.p + h.n, &rest));
	assert_int_equal(app.n_gone, 0);
	assert_int_equal(app.last_status, 200);
	forget(&h);
	close(fd);
	rig_close();
}

/* What cannot be finished ends so that nobody takes it for whole, also where the end is the only frame. */
static void test_cut(void **state)
{
	static const char *const request[] = { STREAM, "GET /stream HTTP/1.0\r\n\r\n" };
	struct heard h = { 0 };
	int fd;

	(void)state;
	for (int i = 0; i < 2; i++) {
		rig_open(NULL);
		fd = ask(request[i], true, 1 << 20);
		hear(&h, fd, 2000);
		assert_true(h.closed && h.reset);
		assert_true(h.n < LONG);
		UNTIL(server_connections(server) == 0);
		assert_int_equal(app.n_gone, 0);          /* the app knows */
		assert_int_equal(app.last_status, 500);
		forget(&h);
		close(fd);
		rig_close();
	}
}

/* ---- given whole -------------------------------------------------------------------------- */

static char *whole(void)
{
	char *p = malloc(LONG);

	assert_non_null(p);
	for (size_t i = 0; i < LONG; i++)
		p[i] = at(i);
	return p;
}

static int ask_later(const char *request, int held)
{
	int fd = client();

	say(fd, request, strlen(request));
	UNTIL(app.n_held == held);
	return fd;
}

static void test_give(void **state)
{
	static const char *const request[] = { "GET /later HTTP/1.1\r\nHost: a\r\n\r\n" NEXT,
		"GET /later HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" NEXT,
		"HEAD /later HTTP/1.1\r\nHost: a\r\n\r\n" NEXT };
	struct heard h = { 0 };
	size_t before, grown;
	int fd;

	(void)state;
	for (int i = 0; i < 3; i++) {
		char *body = whole();

		rig_open(NULL);
		fd = ask_later(request[i], 1);
		before = mallinfo2().uordblks + mallinfo2().hblkhd;
		exchange_give(take(0), 200, "text/plain", NULL, body, LONG);
		turns(10);
		grown = mallinfo2().uordblks + mallinfo2().hblkhd - before;
		assert_true(i == 2 || grown < 512u << 10);  /* it is not there twice */
		hear_last(&h, fd, "GET /next");
		assert_non_null(strstr(h.p, "Content-Length: 20971520\r\n"));
		if (i < 2)
			right(body_of(&h), (size_t)(strstr(body_of(&h) + LONG, "HTTP/1.1 200") - body_of(&h)));
		else
			assert_memory_equal(body_of(&h), "HTTP/1.1 200", 12);
		assert_int_equal(app.n_gone, 0);
		forget(&h);
		close(fd);
		rig_close();
	}
}

/* Unread answers together are bounded: beyond it the next that asks for something is told to come back. */
static void test_unread(void **state)
{
	const struct server_config cfg = { .max_unread = LONG + (4u << 20) };
	static const char post[] = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
	struct heard h = { 0 };
	int fd[4];

	(void)state;
	rig_open(&cfg);
	fd[0] = ask_later("GET /later HTTP/1.1\r\nHost: a\r\n\r\n", 1);
	fd[1] = ask_later("GET /later HTTP/1.1\r\nHost: a\r\n\r\n", 2);
	exchange_give(take(0), 200, "text/plain", NULL, whole(), LONG);
	exchange_give(take(1), 200, "text/plain", NULL, whole(), LONG);
	hear_text(&h, fd[1], "503");           /* the second does not fit */
	assert_non_null(strcasestr(h.p, "Retry-After: "));
	forget(&h);
	fd[2] = client();
	SAY(fd[2], post);
	hear_text(&h, fd[2], "\r\n\r\nhi");    /* what is small still does */
	forget(&h);
	fd[3] = client();
	SAY(fd[3], "GET /big HTTP/1.1\r\nHost: a\r\n\r\n");
	UNTIL(app.n_handled == 4);
	SAY(fd[2], post);                      /* and now it is past the bound */
	hear_text(&h, fd[2], "503");
	assert_non_null(strcasestr(h.p, "Retry-After: "));
	forget(&h);
	close(fd[0]);                          /* a client that leaves gives it back */
	close(fd[2]);
	UNTIL(app.n_done == 4);
	fd[2] = client();
	SAY(fd[2], post);
	hear_text(&h, fd[2], "\r\n\r\nhi");
	forget(&h);
	for (int i = 1; i < 4; i++)
		close(fd[i]);
	rig_close();
}

/* A client that does not read blocks no other: after a second it is ended, the one longest behind first. */
static void test_unread_makes_room(void **state)
{
	const struct server_config cfg = { .max_unread = 12u << 20 };
	static const char post[] = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
	struct heard h = { 0 };
	uint64_t until;
	int fd[3];

	(void)state;
	rig_open(&cfg);
	for (int i = 0; i < 2; i++) {          /* 4 MiB each, in buffers of 8 */
		fd[i] = client();
		SAY(fd[i], "GET /big HTTP/1.1\r\nHost: a\r\n\r\n");
		UNTIL(app.n_handled == i + 1);
		for (until = io_now() + 50 * MS; io_now() < until;)
			turn();
	}
	fd[2] = client();
	SAY(fd[2], post);
	hear_text(&h, fd[2], "503");           /* they may yet read */
	forget(&h);
	close(fd[2]);
	for (until = io_now() + 1100 * MS; io_now() < until;)
		turn();
	fd[2] = client();
	SAY(fd[2], post);
	hear_text(&h, fd[2], "\r\n\r\nhi");
	forget(&h);
	assert_int_equal(server_connections(server), 2);
	SAY(fd[1], post);                      /* the first was behind longest: the second lives */
	assert_int_equal(recv(fd[1], (char[1]){ 0 }, 1, 0), 1);
	for (int i = 0; i < 3; i++)
		close(fd[i]);
	rig_close();
}

/* Nor does a client that reads slowly, and so is never a second behind: the largest gives way. */
static void test_slow_readers_make_room(void **state)
{
	const struct server_config cfg = { .max_unread = 12u << 20 };
	static const char post[] = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
	static char some[64 << 10];
	struct heard h = { 0 };
	int fd[3];

	(void)state;
	rig_open(&cfg);
	for (int i = 0; i < 2; i++) {
		fd[i] = client();
		SAY(fd[i], "GET /big HTTP/1.1\r\nHost: a\r\n\r\n");
		UNTIL(app.n_handled == i + 1);
	}
	for (int k = 0; k < 24; k++) {
		assert_true(recv(fd[k % 2], some, sizeof(some), 0) > 0);
		for (uint64_t until = io_now() + 50 * MS; io_now() < until;)
			turn();
	}
	fd[2] = client();
	SAY(fd[2], post);
	hear_text(&h, fd[2], "\r\n\r\nhi");
	forget(&h);
	assert_int_equal(server_connections(server), 2);
	for (int i = 0; i < 3; i++)
		close(fd[i]);
	rig_close();
}

/* What the app keeps for answers is bounded likewise.  It waits for a client only while it is pulled. */
static void test_kept_makes_room(void **state)
{
	const struct server_config cfg = { .max_kept = 10u << 20 };
	static char large[8 << 20];
	struct making owner[3] = { 0 };
	int64_t left;
	int fd[3];

	(void)state;
	rig_open(&cfg);
	for (int i = 0; i < 3; i++) {
		fd[i] = client();
		SAY(fd[i], STREAM);
		UNTIL(app.n_held == i + 1);
		owner[i].x = app.held[i];
	}
	assert_true(exchange_room(app.held[0], 99u << 20, &left));  /* nothing is kept: whatever it is, it has room */
	assert_true(left < 0);
	exchange_keep(app.held[0], 3u << 20);
	exchange_keep(app.held[1], 2u << 20);
	exchange_keep(app.held[2], 4u << 20);
	assert_true(exchange_room(app.held[0], 1u << 20, &left));
	assert_int_equal(left, 0);
	exchange_pull(app.held[0], make, &owner[0], true);
	exchange_pull(app.held[1], make, &owner[1], true);
	turns(20);
	assert_false(exchange_room(app.held[2], 2u << 20, &left));  /* they may yet read */
	for (uint64_t until = io_now() + 1100 * MS; io_now() < until;)
		turn();
	assert_true(exchange_room(app.held[2], 2u << 20, &left));   /* the first is behind longest */
	assert_int_equal(left, 2u << 20);
	UNTIL(app.n_gone == 1);
	assert_true(exchange_room(app.held[2], 5u << 20, &left));   /* then the second; none counts twice */
	assert_int_equal(left, 1u << 20);
	UNTIL(app.n_gone == 2);
	assert_false(exchange_room(app.held[2], 7u << 20, &left));  /* the third is being computed */
	close(fd[0]);
	fd[0] = client();
	SAY(fd[0], STREAM);
	UNTIL(app.n_held == 4);
	exchange_event(app.held[2], large, sizeof(large));
	exchange_end(app.held[2]);             /* the app is done, although the client has not read it all */
	assert_true(exchange_room(app.held[3], 10u << 20, &left));
	assert_int_equal(left, 0);
	for (int i = 0; i < 3; i++)
		close(fd[i]);
	rig_close();
}

/* A client that reads what is kept for it slowly is never behind, and makes room all the same. */
static void test_slow_reader_of_kept(void **state)
{
	const struct server_config cfg = { .max_kept = 10u << 20 };
	static char some[64 << 10];
	int64_t left;
	int fd, e = 0;

	(void)state;
	rig_open(&cfg);
	fd = ask(STREAM, true, 0);
	exchange_keep(app.held[0], 8u << 20);
	turns(20);
	for (int k = 0; k < 24; k++) {
		if (k == 12)
			assert_false(exchange_room(app.held[0], 4u << 20, &left));
		assert_true(recv(fd, some, sizeof(some), 0) > 0);
		for (uint64_t until = io_now() + 50 * MS; io_now() < until;)
			turn();
	}
	assert_true(exchange_room(app.held[0], 4u << 20, &left));
	UNTIL(app.n_gone == 1);
	UNTIL(e || (recv(fd, some, sizeof(some), MSG_DONTWAIT) < 0 && errno != EAGAIN && (e = errno)));
	assert_int_equal(e, ECONNRESET);   /* no client mistakes the part for the whole */
	close(fd);
	rig_close();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pull), cmocka_unit_test(test_pull_http_1_0), cmocka_unit_test(test_pull_many),
		cmocka_unit_test(test_pull_gone), cmocka_unit_test(test_pull_half_close), cmocka_unit_test(test_cut),
		cmocka_unit_test(test_give), cmocka_unit_test(test_unread),
		cmocka_unit_test(test_unread_makes_room), cmocka_unit_test(test_slow_readers_make_room),
		cmocka_unit_test(test_kept_makes_room), cmocka_unit_test(test_slow_reader_of_kept),
	};

	return rig_run(tests, sizeof(tests) / sizeof(*tests));
}
