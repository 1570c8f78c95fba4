/* LINK: @daemon -luring -lhugetlbfs -lxxhash -Wl,--wrap=accept4,--wrap=getsockopt,--wrap=io_watch_add,--wrap=calloc,--wrap=malloc,--wrap=recvmsg,--wrap=getrandom,--wrap=geteuid,--wrap=host_read,--wrap=sched_admit,--wrap=fcntl */
/* test_clients_conn.c - clients come and go: wrong configurations, a full table, descriptors
 * and memory that run out, peers of every uid, deaths at awkward moments. */
#include "tests/rig/clients_by_hand.h"

/* ---- coming ---------------------------------------------------------------------------------- */

static void wrong_configurations(void **state)
{
	static const struct {
		const char *what;
		int is;
		int32_t max, per_uid, take, n_eos, live, vocab;
	} t[] = {
		{ "right", 0, 1, 1, 1, 0, 32, 10 },
		{ "no clients", -EINVAL, 0, 1, 1, 0, 32, 10 },
		{ "more than there are ranges", -EINVAL, HOST_CONNS_MAX, 1, 1, 0, 32, 10 },
		{ "none of a uid", -EINVAL, 1, 0, 1, 0, 32, 10 },
		{ "nothing taken", -EINVAL, 1, 1, 0, 0, 32, 10 },
		{ "fewer than no ids", -EINVAL, 1, 1, 1, -1, 32, 10 },
		{ "no rings", -EINVAL, 1, 1, 1, 0, 0, 10 },
		{ "no vocabulary", -EINVAL, 1, 1, 1, 0, 32, 0 },
	};
	static const struct { const char *name; int times; int is; } faults[] = {
		{ "calloc", 6, -ENOMEM }, { "getrandom", 2, -EIO }, { "io_watch_add", 1, -ENOMEM },
		{ "malloc", 1, -ENOMEM },
	};
	struct counters counters = { 0 };
	struct clients_config cfg;
	struct io *io;

	(void)state;
	assert_int_equal(io_create(&io, 0), 0);
	for (size_t i = sizeof(t) / sizeof(t[0]); i-- > 0;) { /* the correct one last: faults need it */
		struct clients *cl = NULL;
		int e;

		cfg = (struct clients_config){ .max = t[i].max, .max_per_uid = t[i].per_uid,
			.take = (uint32_t)t[i].take, .n_eos = t[i].n_eos, .live = (uint32_t)t[i].live,
			.tokens = 64, .arena = 4096, .vocab = t[i].vocab, .context = 10, .counters = &counters };
		e = clients_create(&cl, &cfg, io, socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));

		if (e != t[i].is)
			fail_msg("%s: %d instead of %d", t[i].what, e, t[i].is);
		clients_destroy(cl);
	}
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		for (int nth = 1; nth <= faults[i].times; nth++) {
			struct clients *cl = NULL;
			int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), before = open_fds();

			fail_next(faults[i].name, nth, 1, ENOMEM);
			assert_int_equal(clients_create(&cl, &cfg, io, fd), faults[i].is);
			assert_int_equal(open_fds(), before - 1); /* it takes over the listener, and closed it */
			assert_null(fault.name);
		}
	io_destroy(io);
}

static void a_full_table_says_so(void **state)
{
	struct clients_config cfg = { .max = 3, .max_per_uid = 3 };
	int fd[3 + REFUSALS + 2], late;

	(void)state;
	begin(&cfg);
	for (int i = 0; i < 3; i++)
		assert_int_equal(comes(&fd[i]), 0);
	/* This many more are told that it is full; connections beyond them are closed at once. */
	for (int i = 3; i < 3 + REFUSALS + 2; i++)
		fd[i] = knock();
	turns(REFUSALS + 4);
	for (int i = 3; i < 3 + REFUSALS + 2; i++)
		assert_int_equal(answered(fd[i]), i < 3 + REFUSALS ? NOT_YET : GONE);
	for (int i = 3; i < 3 + REFUSALS; i++) {
		hello(fd[i]);
		turns(2);
		assert_int_equal(answered(fd[i]), -EUSERS);
		assert_int_equal(answered(fd[i]), GONE);
	}
	assert_int_equal(d.cs.connected, 3);
	assert_int_equal(d.n.refused, REFUSALS + 2);
	leaves(fd[0]);
	assert_int_equal(comes(&late), 0);    /* the place is free again */
	fd[0] = late;
	for (int i = 0; i < 3 + REFUSALS + 2; i++)
		close(fd[i]);
	turns(3);
	assert_int_equal(d.cs.connected, 0);
	end();
}

static void each_uid_has_its_share(void **state)
{
	struct clients_config cfg = { .max = 8, .max_per_uid = 2 };
	struct ucred who = { .pid = getpid(), .uid = 0 };
	static const struct { uid_t uid; int is; } t[] = {
		{ 1000, 0 }, { 1000, 0 }, { 1000, -EUSERS }, { 1001, 0 }, { 1000, -EUSERS }, { 1001, 0 },
		{ 1001, -EUSERS }, { 1002, 0 },
	};
	int fd[8];

	(void)state;
	begin(&cfg);
	peer = &who;
	for (int i = 0; i < 8; i++) {
		who.uid = t[i].uid;
		assert_int_equal(comes(&fd[i]), t[i].is);
	}
	peer = NULL;
	for (int i = 0; i < 8; i++)
		close(fd[i]);
	turns(3);
	end();
}

/* Untrusted clients, however many, leave some places, and some of the memory that they share. */
static void strangers_leave_something(void **state)
{
	static const struct sr_shape small = { 32, 64, 4096, 0, 0 }; /* as in hello() */
	const size_t unit = SR_UP_BYTES(&small, 0) + SR_DOWN_BYTES(&small, 0) + 32 * sizeof(struct live);
	static const struct {
		const char *what;
		int32_t max;
		double bytes;         /* in units; 0: any */
		int first, second;    /* clients of one uid, then of another */
	} t[] = {
		{ "places", 16, 0, 14, 1 }, { "memory", 32, 10, 8, 1 }, { "both", 11, 10, 8, 1 },
		{ "no memory", 32, 0.99, 0, 0 }, { "enough", 4, 1000, 3, 0 },
	};
	struct ucred who = { .pid = getpid() };

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct clients_config cfg = { .max = t[i].max, .stranger_bytes = (size_t)(t[i].bytes * (double)unit) };
		int fd[40], n = 0, got[3] = { 0 }, e = 0;

		self = 500;
		begin(&cfg);
		peer = &who;
		for (int k = 0; k < 3; k++) {
			static const uid_t uid[] = { 1000, 1001, 500 };

			who.uid = uid[k];
			while ((e = comes(&fd[n++])) == 0 && got[k] < 20)
				got[k]++;
			assert_true(e == 0 || e == -EUSERS);
		}
		peer = NULL;
		self = (uid_t)-1;
		if (got[0] != t[i].first || got[1] != t[i].second)
			fail_msg("%s: %d, then %d", t[i].what, got[0], got[1]);
		/* Trusted clients always find a place, and may take all that are left. */
		assert_int_equal(got[2], t[i].max - got[0] - got[1] < 20 ? t[i].max - got[0] - got[1] : 20);
		while (n > 0)
			close(fd[--n]);
		turns(3);
		end();
	}
}

/* Which client may be urgent and hold huge pages (trusted), and which may name tenants (gateway). */
static void peers_are_known_by_uid(void **state)
{
	static const struct { uid_t self, gateway, uid; bool trusted, names; } t[] = {
		{ 500, 600, 500, true, true }, { 500, 600, 600, true, true }, { 500, 600, 0, true, false },
		{ 500, 600, 700, false, false }, { 0, (uid_t)-1, 0, true, true }, { 0, (uid_t)-1, 1, false, false },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct clients_config cfg = { .gateway = t[i].gateway };
		struct ucred who = { .pid = getpid(), .uid = t[i].uid };
		int fd;

		self = t[i].self;
		begin(&cfg);
		peer = &who;
		assert_int_equal(comes(&fd), 0);
		peer = NULL;
		self = (uid_t)-1;
		assert_int_equal(d.cl->all[0]->trusted, t[i].trusted);
		assert_int_equal(d.cl->all[0]->gateway, t[i].names);
		leaves(fd);
		end();
	}
}

/* Open descriptors, once their number stays: the kernel's threads close large memory a little later. */
static int settled_fds(void)
{
	int n = open_fds();

	for (int same = 0, rounds = 0; same < 5 && rounds < 1000; rounds++) {
		int before = n;

		usleep(2000);
		n = open_fds();
		same = n == before ? same + 1 : 0;
	}
	return n;
}

/* A resource that runs out ends that client; the next is accepted. */
static void whatever_runs_out_the_next_one_comes_in(void **state)
{
	static const struct { const char *name; int nth, is; } t[] = {
		{ "calloc", 1, GONE },        /* its place */
		{ "io_watch_add", 1, GONE }, { "io_watch_add", 2, -ENOMEM },
		{ "peercred", 1, -EACCES }, { "peerpidfd", 1, 0 }, /* before Linux 6.5 */
		{ "calloc", 2, -ENOMEM },     /* its rings */
		{ "calloc", 3, -ENOMEM }, { "malloc", 1, -ENOMEM }, /* its requests */
		{ "recvmsg", 1, 0 },          /* a hello that is not there after all */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		int fd, fds = settled_fds(), e;

		fail_next(t[i].name, t[i].nth, 1, EAGAIN);
		fd = knock();
		turns(3);
		if (t[i].is != GONE)
			hello(fd);
		turns(3);
		e = answered(fd);
		if (e != t[i].is || fault.name)
			fail_msg("%s %d: %d instead of %d", t[i].name, t[i].nth, e, t[i].is);
		leaves(fd);
		assert_int_equal(comes(&fd), 0);
		leaves(fd);
		assert_int_equal(settled_fds(), fds);
	}
}

static void without_a_pidfd_the_socket_tells(void **state)
{
	struct ucred who = { .pid = 0x7ffffff0, .uid = 5 }; /* nobody's */
	int fd;

	(void)state;
	peer = &who;
	fail_next("peerpidfd", 1, 1, ENOPROTOOPT);
	assert_int_equal(comes(&fd), 0);
	peer = NULL;
	assert_int_equal(d.cl->all[0]->pidfd, -1);
	leaves(fd);
	assert_int_equal(d.cs.connected, 0);
}

/* No descriptors: the listener pauses for 100 ms, then the waiting clients are accepted. */
static void descriptors_run_out_and_come_back(void **state)
{
	static const struct { int error; bool rests; } t[] = {
		{ EMFILE, true }, { ENFILE, true }, { ENOMEM, true }, { ENOBUFS, true }, { ECONNABORTED, false },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		uint64_t begun = io_now();
		int fd;

		fail_next("accept4", 1, 1, t[i].error);
		fd = knock();
		turns(4);
		assert_null(fault.name);
		assert_int_equal(d.cl->n_all, !t[i].rests);
		while (d.cl->n_all == 0) {
			assert_true(io_now() - begun < 2000 * MS);
			turns(1);
		}
		assert_true(!t[i].rests || io_now() - begun >= 100 * MS);
		leaves(fd);
	}
}

static void a_crowd_at_the_door(void **state)
{
	int fd[40];

	(void)state;
	for (int i = 0; i < 40; i++)
		fd[i] = knock();
	turns(3);                             /* one in a turn, so that others are served */
	assert_in_range(d.cl->n_all, 1, 3);
	turns(40);
	assert_int_equal(d.cl->n_all, 40);
	for (int i = 0; i < 40; i++)
		close(fd[i]);
	turns(3);
	assert_int_equal(d.cl->n_all, 0);
}

/* A client that signals too often is ignored until the window is over, whatever way it ends. */
static void who_rings_too_often_is_not_heard(void **state)
{
	static const struct { const char *what; int first, later; bool pause, heard; } t[] = {
		{ "often", 200, 40, false, true }, { "too often", 200, 100, false, false },
		{ "in two windows", 200, 200, true, true },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct client *c;
		uint64_t begun, first;
		int fd;

		assert_int_equal(comes(&fd), 0);
		c = d.cl->all[0];
		begun = io_now();
		first = c->bells_at;
		for (int k = 0; k < t[i].first + t[i].later; k++) {
			if (k == t[i].first && t[i].pause)
				usleep(12000);
			assert_int_equal(sr_signal(fd), 0);
			if (k % 8 == 7)
				turns(1);
		}
		turns(4);
		/* On a slow machine they may take more than one window. */
		if ((t[i].pause || io_now() - begun < 9 * MS) && c->bells_at != first && c->socket.events != (t[i].heard ? IO_IN | IO_HUP : IO_HUP))
			fail_msg("%s: listened to for %x", t[i].what, c->socket.events);
		for (uint64_t until = io_now() + 5000 * MS; c->socket.events != (IO_IN | IO_HUP); turns(1))
			assert_true(io_now() < until);
		leaves(fd);
		assert_int_equal(d.cl->n_all, 0);
	}
}

/* It ends while it is ignored. */
static void one_not_heard_goes(void **state)
{
	int fd;

	(void)state;
	assert_int_equal(comes(&fd), 0);
	for (int k = 0; k < 300; k++) {
		assert_int_equal(sr_signal(fd), 0);
		if (k % 8 == 7)
			turns(1);
	}
	leaves(fd);
	assert_int_equal(d.cs.connected, 0);
	usleep(11000);
	turns(2);                             /* the window is over */
	assert_int_equal(d.cl->n_all, 0);
}

static void a_hello_has_a_second(void **state)
{
	uint64_t begun = io_now();
	int fd = knock();

	(void)state;
	turns(2);
	while (d.cl->n_all > 0) {
		assert_true(io_now() - begun < 3000 * MS);
		usleep(2000);
		turns(1);
	}
	assert_true(io_now() - begun >= 1000 * MS);
	turns(2);
	assert_int_equal(d.n.refused, 1);
	assert_int_equal(answered(fd), GONE);
	close(fd);
}

/* Between welcome and mapped: the client is silent, leaves, or its memory cannot be sealed. */
static void who_never_maps_is_not_looked_at(void **state)
{
	uint64_t begun = io_now();
	int fd[3];

	(void)state;
	for (int i = 0; i < 3; i++) {
		fd[i] = knock();
		hello(fd[i]);
		turns(4);
		assert_int_equal(answered(fd[i]), 0);
	}
	assert_true(d.cl->n_all == 3 && d.cl->n_open == 0 && d.cs.connected == 0);
	leaves(fd[0]);
	assert_int_equal(d.cl->n_all, 2);
	fail_next("fcntl", 1, 1, EPERM);
	assert_int_equal(sr_signal(fd[1]), 0);
	turns(3);
	assert_int_equal(d.cl->n_all, 1);
	assert_int_equal(answered(fd[1]), GONE);
	while (d.cl->n_all > 0) {
		assert_true(io_now() - begun < 3000 * MS);
		usleep(2000);
		turns(1);
	}
	turns(2);
	assert_int_equal(answered(fd[2]), GONE);
	assert_int_equal(d.n.refused, 3);
	close(fd[1]);
	close(fd[2]);
}

static void draining_answers_who_is_at_the_door(void **state)
{
	int fd = knock(), e;

	(void)state;
	turns(2);
	clients_drain(d.cl);
	clients_drain(d.cl);
	hello(fd);
	turns(2);
	e = answered(fd);
	assert_int_equal(e, -ECONNREFUSED);
	close(fd);
	turns(2);
}

/* Without a stats page all goes on; so it does when the page has no row left. */
static void rows_are_not_needed(void **state)
{
	struct clients_config cfg = { .max = 4 };
	int fd[3];

	(void)state;
	begin(&cfg);
	for (int i = 0; i < STATS_CLIENTS - 1; i++)
		stats_client_take(d.stats, (char[32]){ "another" }, 1, 1);
	for (int i = 0; i < 3; i++)
		assert_int_equal(comes(&fd[i]), 0);
	assert_ptr_equal(d.cl->all[0]->row, &d.stats->client[STATS_CLIENTS - 1]);
	assert_ptr_equal(d.cl->all[1]->row, &d.cl->unseen);
	for (int i = 0; i < 3; i++)
		close(fd[i]);
	turns(3);
	end();
}

/* ---- going ----------------------------------------------------------------------------------- */

/* Socket and pidfd report the same death in the same turn: it is freed once. */
static void a_death_is_told_twice(void **state)
{
	pid_t pid = fork();

	(void)state;
	if (!pid) {
		alarm(20);
		open_there(NULL);
		while (conn && sr_wait(conn, SR_WAIT_TOKENS, -1) >= 0)
			;
		pause();
		_exit(0);
	}
	for (uint64_t until = io_now() + 5000 * MS; d.n.accepted == 0; turns(1))
		assert_true(io_now() < until);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	usleep(1000);
	turns(4);
	assert_int_equal(d.cs.connected, 0);
	assert_int_equal(d.cl->n_gone, 0);
}

/* clients_take twice without a flush, as the back end's yield may do: the client is dirty and dead. */
static void it_dies_with_something_to_be_told(void **state)
{
	(void)state;
	for (int with = 0; with < 2; with++) { /* another dirty one before it in the list */
		struct sr_conn *other = NULL;

		if (with) {
			open_conn();
			other = conn;
		}
		open_conn();
		if (other) {
			struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 1, .max_tokens = 1 };

			assert_int_equal(sr_submit(other, &q, NULL), 0);
		}
		submit(1, 900, 0);
		clients_take(d.cl, io_now());
		assert_int_equal(d.cl->n_dirty, 1 + with);
		assert_false(clients_arm(d.cl)); /* it must not sleep */
		sr_close(conn);
		io_poll(d.io);
		clients_take(d.cl, io_now());
		assert_int_equal(d.cl->n_dirty, with);
		turns(2);
		assert_int_equal(d.n.died, 1 + with);
		sr_close(other);
		turns(3);
	}
}

/* It dies after its tokens were put and before its signal. */
static void nobody_is_there_to_be_woken(void **state)
{
	struct sr_record r;

	(void)state;
	open_conn();
	submit(1, 900, 0);
	turns(3);
	while (sr_poll(conn, &r, 1) > 0)
		;
	while (!sr_arm(conn, SR_WAIT_TOKENS)) {
		shutdown(sr_fd(conn), SHUT_RDWR);
		clients_take(d.cl, io_now()); /* not polled: the death is not seen yet */
		sched_step(d.s, io_now());
		sched_step(d.s, io_now());
		clients_flush(d.cl);
		break;
	}
	turns(3);
	assert_int_equal(d.cs.connected, 0);
	sr_close(conn);
}

static void stopping_ends_what_runs(void **state)
{
	struct sr_record r[8];
	int e;

	(void)state;
	begin(NULL);
	open_conn();
	submit(1, 900, 0);
	turns(5);
	d.fds += 1;                           /* our end */
	d.paused = true;                      /* its requests are gone, too */
	daemon_unmake(&d);
	while ((e = sr_poll(conn, r, 8)) > 0)
		;
	assert_int_equal(e, -ECONNRESET);
	daemon_clear(&d);
	sr_close(conn);
}

/* The listener is closed while a new client waits for its chore. */
static void draining_with_somebody_at_the_door(void **state)
{
	int fd;

	(void)state;
	sr_null_pace(20, 0);
	begin(NULL);
	open_conn();
	submit(1, 900, 0);
	while (d.n.steps < 3)
		turns(1);
	fd = knock();
	while (!d.cl->door.since) {           /* a turn without chores */
		io_poll(d.io);
		clients_take(d.cl, io_now());
		sched_step(d.s, io_now());
		clients_flush(d.cl);
	}
	clients_drain(d.cl);
	assert_int_equal(ends(1), SR_LENGTH);
	for (uint64_t until = io_now() + 10 * MS; io_now() < until;)
		turns(1);
	assert_int_equal(d.cl->n_all, 1);
	close(fd);
	sr_close(conn);
	turns(3);
	end();
	sr_null_pace(0, 0);
}

/* One cold client lies, and another works: none is served again in the same turn. */
static void a_cold_liar_beside_others(void **state)
{
	struct sr_wire_cancel wrong = { .op = 9 };
	struct sr_conn *c[3], *by_place[3];

	(void)state;
	for (int i = 0; i < 3; i++) {
		open_conn();
		c[i] = conn;
	}
	for (int i = 0; d.cl->n_hot > 0; i++) {
		assert_true(i < 2000);
		turns(1);
	}
	for (int i = 0; i < 3; i++)
		by_place[d.cl->all[i]->at_open] = c[i];
	d.cl->cold = 0;
	assert_int_equal(cancel_put(by_place[0], &wrong), 0);
	conn = by_place[1];
	submit(1, 5, 0);
	turns(1);
	assert_int_equal(ends(1), SR_LENGTH);
	assert_int_equal(d.cs.poisoned, 1);
	assert_int_equal(d.cs.connected, 2);
	for (int i = 0; i < 3; i++)
		sr_close(c[i]);
	turns(3);
}

/* A refused client that stays silent takes no place from others. */
static void silent_refused_ones(void **state)
{
	struct clients_config cfg = { .max = 16 };
	struct ucred who = { .pid = getpid(), .uid = 1000 };
	int fd[40], mine[2];

	(void)state;
	self = 500;
	begin(&cfg);
	peer = &who;
	for (int i = 0; i < 40; i++) {
		fd[i] = knock();
		turns(2);
	}
	assert_int_equal(d.cl->n_all, 14 + REFUSALS);
	for (int i = 0; i < 2; i++) {
		who.uid = i ? 0 : 500;
		assert_int_equal(comes(&mine[i]), 0);
		close(mine[i]);
		turns(2);
	}
	peer = NULL;
	self = (uid_t)-1;
	for (int i = 0; i < 40; i++)
		close(fd[i]);
	turns(3);
	end();
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wrong_configurations),
		cmocka_unit_test(a_full_table_says_so),
		cmocka_unit_test(each_uid_has_its_share),
		cmocka_unit_test(strangers_leave_something),
		cmocka_unit_test(peers_are_known_by_uid),
		CASE(whatever_runs_out_the_next_one_comes_in),
		CASE(without_a_pidfd_the_socket_tells),
		CASE(descriptors_run_out_and_come_back),
		CASE(a_crowd_at_the_door),
		CASE(who_rings_too_often_is_not_heard),
		cmocka_unit_test(draining_with_somebody_at_the_door),
		CASE(a_cold_liar_beside_others),
		cmocka_unit_test(silent_refused_ones),
		CASE(one_not_heard_goes),
		CASE(a_hello_has_a_second),
		CASE(who_never_maps_is_not_looked_at),
		CASE(draining_answers_who_is_at_the_door),
		cmocka_unit_test(rows_are_not_needed),
		CASE(a_death_is_told_twice),
		CASE(it_dies_with_something_to_be_told),
		CASE(nobody_is_there_to_be_woken),
		cmocka_unit_test(stopping_ends_what_runs),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
