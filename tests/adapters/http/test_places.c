/* LINK: @net core/instance/io.c core/instance/log.c -luring -lssl -lcrypto */
/* test_places.c - all places are taken: which connection ends, which stays, which is refused. */
#include "tests/rig/conn_rig.h"

#include "adapters/http/net/conn_impl.h"

#define GRACE 500                          /* ms; of places.c */
#define SLOW  5000                         /* and this */
#define KEYED "GET /json HTTP/1.1\r\nHost: a\r\nX-Key: yes\r\n\r\n"
#define LATER "GET /later HTTP/1.1\r\nHost: a\r\n\r\n"

static bool ended(int fd)
{
	char b[4096];
	ssize_t n;

	while ((n = recv(fd, b, sizeof(b), MSG_DONTWAIT)) > 0)
		;
	return n == 0 || errno != EAGAIN;
}

/* Connect from 127.0.0.`host` and send this. */
static int from(int host, const char *text)
{
	struct sockaddr_in own = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000000u + (unsigned)host) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof(own)), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&where, sizeof(where)), 0);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	say(fd, text, strlen(text));
	turns(10);
	return fd;
}

/* The same, and an answer has come: it is idle. */
static int idle_from(int host)
{
	struct heard h = { 0 };
	int fd = from(host, G "\r\n");

	hear_text(&h, fd, "GET /json");
	forget(&h);
	return fd;
}

/* The order in which connections without a key are ended, whatever order they came in. */
static void the_order(void **state)
{
	static const char *const says[] = {    /* the last one is ended first */
		KEYED, "GET /big HTTP/1.1\r\nHost: a\r\n\r\n", G "\r\n", P "Content-Length: 5\r\n\r\nhe", "GET /",
		G "Connection: close\r\n\r\n",
	};
	enum { N = sizeof(says) / sizeof(*says) };
	const struct server_config cfg = { .max_connections = N };
	int fd[N], other[N];

	(void)state;
	rig_open(&cfg);
	for (int i = 0; i < N; i++) {
		fd[i] = from(1, says[i]);
		turns(5);
	}
	assert_int_equal(server_connections(server), N);
	turns(GRACE + 20);
	for (int i = N - 1; i > 0; i--) {
		other[i] = from(1, LATER);     /* keeps its place */
		for (int k = 0; k < N - 1; k++)  /* a lingering connection was shut before; its other end does not matter */
			if (k != 1 && ended(fd[k]) != (k >= i))
				fail_msg("newcomer %d: %d is %s", N - i, k, k >= i ? "not ended" : "ended");
		assert_int_equal(server_connections(server), N);
	}
	UNTIL(app.n_held == N - 1);
	assert_int_equal(app.n_gone, 0);
	for (int i = 0; i < N; i++)
		close(fd[i]);
	for (int i = 1; i < N; i++)
		close(other[i]);
	UNTIL(server_connections(server) == 0);
	rig_close();
}

/* A connection that has just begun is not ended before those that have waited longer. */
static void the_young_stay(void **state)
{
	const struct server_config cfg = { .max_connections = 3 };
	int idle, head, a, b;

	(void)state;
	rig_open(&cfg);
	idle = from(1, "");
	turns(GRACE + 20);
	head = from(1, "GET /");
	a = from(1, LATER);
	assert_false(ended(idle));
	b = from(1, LATER);
	assert_true(ended(idle));
	assert_false(ended(head));
	assert_false(ended(a) || ended(b));
	close(idle);
	close(head);
	close(a);
	close(b);
	UNTIL(server_connections(server) == 0);
	rig_close();
}

/* Connections without a key make room among themselves; idle ones with a key stay, but for a ninth of the places. */
static void the_trusted_stay(void **state)
{
	enum { PLACES = 18, KEYS = 12, CROWD = 60 };
	const struct server_config cfg = { .max_connections = PLACES };
	int key[KEYS], crowd[CROWD], left = 0;

	(void)state;
	rig_open(&cfg);
	for (int i = 0; i < KEYS; i++)
		key[i] = from(1, KEYED);
	for (int i = 0; i < CROWD; i++)
		crowd[i] = from(1, i & 1 ? "GET /" : "");
	for (int i = 0; i < KEYS; i++)
		assert_false(ended(key[i]));
	for (int i = 0; i < CROWD; i++)
		left += !ended(crowd[i]);
	assert_int_equal(left, PLACES - KEYS);
	for (int i = 0; i < CROWD; i++)
		close(crowd[i]);
	UNTIL(server_connections(server) == KEYS);
	for (int i = KEYS; i < PLACES; i++)
		crowd[i] = from(1, KEYED);     /* all places are taken, each with a key */
	for (int i = 0; i < 5; i++)
		close(from(1, ""));
	for (int i = 0; i < 3; i++)
		from(1, "GET /");              /* the third is refused: newcomers have their ninth, 18 / 9 */
	assert_true(ended(key[0]) && ended(key[1]));
	for (int i = 3; i < KEYS; i++)
		assert_false(ended(key[i]));
	rig_close();
}

/* One address holds eight ninths of the places, and its next connection takes one of its own. */
static void a_share_for_each_address(void **state)
{
	enum { PLACES = 18, MOST = 16 };
	const struct server_config cfg = { .max_connections = PLACES };
	struct heard h = { 0 };
	int fd[MOST + 2], other[2], more;

	(void)state;
	rig_open(&cfg);
	server->secret = 1;                    /* of 128 counts 127.0.0.1, .2 and .3 have three: a random one may not */
	fd[0] = idle_from(2);
	for (int i = 1; i < MOST; i++)
		fd[i] = from(2, LATER);
	UNTIL(app.n_held == MOST - 1);
	fd[MOST] = from(2, LATER);             /* in place of the idle one */
	UNTIL(ended(fd[0]));
	assert_int_equal(server_connections(server), MOST);
	fd[MOST + 1] = from(2, LATER);         /* all of its own are being answered */
	hear_end(&h, fd[MOST + 1]);
	assert_int_equal(strncmp(h.p, "HTTP/1.1 503 ", 13), 0);
	forget(&h);
	for (int i = 0; i < 2; i++)
		other[i] = idle_from(3);
	UNTIL(server_connections(server) == PLACES);
	more = idle_from(1);                   /* a third one takes the place idle longest */
	UNTIL(ended(other[0]));
	assert_true(!ended(other[1]) && !ended(more));
	assert_int_equal(app.n_gone, 0);
	for (int i = 0; i < MOST + 2; i++)
		close(fd[i]);
	close(more);
	close(other[0]);
	close(other[1]);
	UNTIL(server_connections(server) == 0);
	fd[0] = idle_from(2);                  /* the place was given back */
	close(fd[0]);
	rig_close();
}

/* A stalled client with a key makes room in the end, the one stalled longest first. */
static void the_slow_give_way(void **state)
{
	enum { PLACES = 3 };
	const struct server_config cfg = { .max_connections = PLACES };
	struct heard h = { 0 };
	int slow[PLACES], fd;

	(void)state;
	rig_open(&cfg);
	for (int i = 0; i < PLACES; i++) {
		slow[i] = from(1, i == 1 ? P "X-Key: yes\r\nContent-Length: 5\r\n\r\nhe" : KEYED "GET /");
		turns(5);
	}
	fd = from(1, KEYED);
	hear_end(&h, fd);
	assert_int_equal(strncmp(h.p, "HTTP/1.1 503 ", 13), 0);
	forget(&h);
	close(fd);
	turns(SLOW + 20);
	fd = from(1, KEYED);
	hear_text(&h, fd, "GET /json");
	assert_true(ended(slow[0]) && !ended(slow[1]) && !ended(slow[2]));
	forget(&h);
	close(fd);
	for (int i = 0; i < PLACES; i++)
		close(slow[i]);
	UNTIL(server_connections(server) == 0);
	rig_close();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_order), cmocka_unit_test(the_young_stay), cmocka_unit_test(the_trusted_stay),
		cmocka_unit_test(a_share_for_each_address), cmocka_unit_test(the_slow_give_way),
	};

	return rig_run(tests, sizeof(tests) / sizeof(*tests));
}
