/* LINK: @daemon -luring -lhugetlbfs -lxxhash -Wl,--wrap=accept4,--wrap=getsockopt,--wrap=io_watch_add,--wrap=calloc,--wrap=malloc,--wrap=recvmsg,--wrap=getrandom,--wrap=geteuid,--wrap=host_read,--wrap=sched_admit,--wrap=fcntl */
/* test_clients_ask.c - what clients ask for: room, what is read in a turn and paid for, recordings, clients that
 * stall or lie. */
#include "tests/rig/clients_by_hand.h"

/* While clients are served, new ones are accepted only beside a batch, or after a while. */
static void chores_wait_for_their_time(void **state)
{
	static const struct { const char *what; double step_us; bool works; } t[] = {
		{ "a batch that hides it", 3000, false }, { "none does", 20, false }, { "we compute", 3000, true },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct clients_config cfg = { .works = t[i].works };
		int fd, done = 0;

		sr_null_pace(t[i].step_us, 0);
		begin(&cfg);
		open_conn();
		submit(1, 900, 0);
		while (d.n.steps < 3)
			turns(1);             /* now the time of a batch is known */
		fd = knock();
		for (uint64_t begun = io_now(), took = 0, at = 0; done < 3;) {
			uint64_t now = io_now(), since, spare;

			assert_true(now - begun < 5000 * MS);
			io_poll(d.io);
			clients_take(d.cl, now);
			sched_step(d.s, now);
			clients_flush(d.cl);
			spare = sched_spare(d.s, io_now());
			since = d.cl->line[FOR_US].first ? d.cl->line[FOR_US].first->since : 0;
			now = io_now();
			assert_true(sched_busy(d.s));
			if (!clients_chores(d.cl)) {
				assert_int_equal(d.cl->n_all, 1 + (done > 0));
				continue;
			}
			if (t[i].works)
				assert_true(!at || now - at >= took); /* rests at least as long as it worked */
			else
				assert_true(spare >= 100000 || io_now() - since >= 2 * MS);
			took = io_now() - now;
			at = now;
			if (done++ == 0)
				hello(fd);
			assert_int_equal(d.cl->n_all, 2);
		}
		close(fd);
		sr_close(conn);
		d.paused = true;
		daemon_unmake(&d);
		daemon_clear(&d);
	}
	sr_null_pace(0, 0);
}

static void requests_without_a_page(void **state)
{
	uint32_t ticket;

	(void)state;
	daemon_init(&d, NULL);
	d.cfg.stats = NULL;
	daemon_make(&d);
	open_conn();
	submit(5, 3, 0);
	assert_int_equal(ends(1), SR_LENGTH);
	ticket = submit(5, 900, 0);
	turns(5);
	assert_int_equal(sr_cancel(conn, ticket), 0);
	assert_int_equal(ends(1), -ECANCELED);
	submit(5, 3, 0);
	clients_drain(d.cl);
	assert_int_equal(ends(1), -ECONNRESET);
	sr_close(conn);
	turns(3);
	end();
}

/* Lists of all requests under way share one pool.  A request that finds it full waits in the ring, and is not
 * read repeatedly meanwhile. */
static void a_full_store_of_lists_is_waited_for(void **state)
{
	(void)state;
	open_conn();
	d.paused = true;
	n_read = 0;
	for (int i = 0; i < 31; i++) {
		submit(1, 2, SR_LIST_MAX);
		turns(2);
	}
	assert_true(d.ss.waiting > 1 && d.ss.waiting < 31);
	assert_int_equal(n_read, d.ss.waiting);
	d.paused = false;
	assert_int_equal(ends(31), SR_LENGTH);
	sr_close(conn);
	turns(3);
}

/* Ends of wrong requests fill the ring of a client that miscounts and reads nothing: the next is
 * held until there is room for its end.  That is no stall, because nothing is under way. */
static void no_room_for_a_refusal(void **state)
{
	struct clients_config cfg = { .stall_ns = 1 };

	(void)state;
	begin(&cfg);
	open_conn();
	for (int i = 0; i < 70; i++) {
		submit(1, 1, 0);
		conn->live = 0;
		((struct sr_wire_request *)sr_ring_place(&conn->requests, conn->requests.mine - 1))->n_top = 99;
		turns(2);
	}
	assert_int_equal(d.n.invalid, 64);
	assert_true(d.cl->all[0]->need == 1 && d.cs.stalled == 0);
	assert_int_equal(ends(70), -EINVAL);
	sr_close(conn);
	turns(3);
	end();
}

static void more_than_was_granted_waits(void **state)
{
	(void)state;
	open_conn();
	d.paused = true;
	for (int i = 0; i < 33; i++) {
		conn->live = 0;
		submit(1, 1, 0);
		turns(1);
	}
	assert_int_equal(d.ss.waiting, 32);
	for (uint32_t i = 0; i < 60; i++)     /* tickets of none; all buckets are searched */
		assert_int_equal(sr_cancel(conn, i - 100), 0);
	turns(3);
	assert_int_equal(d.ss.waiting, 32);
	d.paused = false;
	assert_int_equal(ends(33), SR_LENGTH);
	sr_close(conn);
	turns(3);
}

/* In one turn a client hands in at most this many requests. */
static void a_turn_has_its_measure(void **state)
{
	struct clients_config cfg = { .take = 16 };

	(void)state;
	wish_live = 128;
	begin(&cfg);
	open_conn();
	d.paused = true;
	for (int k = 0; k < 40; k++)
		submit(1, 1, 0);
	for (int k = 1; k <= 3; k++) {
		turns(1);
		assert_int_equal(d.cs.taken, k < 3 ? 16 * k : 40);
	}
	d.paused = false;
	ends(40);
	sr_close(conn);
	turns(3);
	end();
	wish_live = 32;
}

static uint64_t taken_at(uint64_t now)
{
	clients_take(d.cl, now);
	look_inside(&d);
	return d.cs.taken;
}

/* And at most this many words, 8 ns for each, right or wrong.  A request of 1000 ids has 1064: 32,768 words
 * pay for 30, and one more is on credit. */
static void words_are_paid_for(void **state)
{
	struct clients_config cfg = { .take = 1000 };
	uint64_t now;

	(void)state;
	wish_live = 128;
	for (int wrong = 0; wrong < 2; wrong++) {
		begin(&cfg);
		open_conn();
		d.paused = true;
		for (int k = 0; k < 100; k++) {
			struct sr_wire_request *w;
			int32_t *span;

			submit(1000, 1, 0);
			w = sr_ring_place(&conn->requests, conn->requests.mine - 1);
			span = (void *)(conn->up + SR_OFF_ARENA(conn->model.live) + w->at);
			span[999] = wrong ? VOCAB : 0;
		}
		now = io_now() + 1000 * MS;
		for (int k = 0; k < 3; k++)
			assert_int_equal(taken_at(now), 31);
		assert_false(clients_arm(d.cl)); /* requests are left */
		clients_flush(d.cl);
		assert_true(clients_arm(d.cl));  /* it may sleep, but not for long */
		assert_int_not_equal(d.cl->nap.index, 0);
		clients_awake(d.cl);
		now += 8 * (31 * 1064 - 32768);
		assert_int_equal(taken_at(now - 8), 31);
		assert_int_equal(taken_at(now), 32);
		assert_int_equal(taken_at(now + 8 * 1063), 32);
		assert_int_equal(taken_at(now + 8 * 1064), 33);
		assert_int_equal(d.n.invalid, wrong ? 33 : 0);
		d.paused = false;
		ends(100);
		sr_close(conn);
		turns(3);
		end();
	}
	wish_live = 32;
}

/* Sixteen clients share what one has alone, and a client that asks for little does not wait for them. */
static void words_are_shared(void **state)
{
	struct clients_config cfg = { .take = 1000 };
	struct sr_conn *c[17];
	uint64_t now;

	(void)state;
	begin(&cfg);
	for (int i = 0; i < 17; i++) {
		open_conn();
		c[i] = conn;
	}
	d.paused = true;
	for (int i = 0; i < 16; i++) {
		conn = c[i];
		for (int k = 0; k < 10; k++)
			submit(1000, 1, 0);
	}
	for (int i = 0; i < d.cl->n_open; i++)
		conn_heat(d.cl, d.cl->open[i]);
	now = io_now() + 1000 * MS;
	assert_int_equal(taken_at(now), 32);  /* each pays for one, and gets one on credit */
	for (int i = 0; i < d.cl->n_open; i++)
		assert_true(d.cl->open[i]->n_live == 2 || d.cl->open[i]->n_live == 0);
	assert_int_equal(taken_at(now), 32);
	conn = c[16];
	submit(1, 1, 0);
	assert_int_equal(taken_at(now), 33);
	d.paused = false;
	for (int i = 0; i < 17; i++) {
		conn = c[i];
		ends(i < 16 ? 10 : 1);
	}
	for (int i = 0; i < 17; i++)
		sr_close(c[i]);
	turns(3);
	end();
}

/* A score of one id ends as soon as it is taken, in the recording, too. */
static void a_recording_has_each_end(void **state)
{
	struct recorder rec = { 0 };
	struct clients_config cfg = { .recorder = &rec };
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .flags = SR_PROMPT_LOGPROBS };
	struct record_entry *e;
	int fd;

	(void)state;
	begin(&cfg);
	open_conn();
	assert_int_equal(record_start(&rec, false, io_now(), &fd), 0);
	close(fd);
	for (q.n_prompt = 1; q.n_prompt <= 2; q.n_prompt++) {
		assert_int_equal(sr_submit(conn, &q, NULL), 0);
		assert_int_equal(ends(1), SR_LENGTH);
	}
	assert_int_equal(rec.page->n, 4);
	e = (void *)rec.page->entry;
	for (uint32_t i = 0; i < 4; i++, e = (void *)((unsigned char *)e + e->bytes)) {
		assert_int_equal(e->kind, i % 2 ? RECORD_ANSWER : RECORD_REQUEST);
		assert_int_equal(e->id, i / 2 + 1);
	}
	record_stop(&rec);
	sr_close(conn);
	turns(3);
	end();
}

/* A client that does not read is cancelled after the stall time, or never. */
static void stalling_has_an_end_if_one_is_set(void **state)
{
	(void)state;
	for (int never = 0; never < 2; never++) {
		struct clients_config cfg = { .stall_ns = 1 };

		daemon_init(&d, &cfg);
		d.cfg.stall_ns = !never;
		daemon_make(&d);
		open_conn();
		for (int i = 0; i < 3; i++)
			submit(1, i == 0 ? 1 : 900, 0); /* the first leaves a hole in the table */
		for (int i = 0; i < 400; i++)
			turns(1);
		assert_int_equal(d.cs.stalled, !never);
		assert_int_equal(d.ss.running + d.ss.waiting, never ? 2 : 0);
		assert_int_equal(ends(3), never ? SR_LENGTH : -ECANCELED);
		sr_close(conn);
		turns(3);
		end();
	}
}

/* Reading a record now and then does not end a stall of three requests. */
static void a_drip_is_a_stall(void **state)
{
	struct clients_config cfg = { .stall_ns = 20 * MS };
	uint64_t until = io_now() + 5000 * MS;
	struct sr_record r;

	(void)state;
	begin(&cfg);
	open_conn();
	for (int i = 0; i < 3; i++)
		submit(1, 900, 0);
	for (uint64_t next = 0; d.cs.stalled == 0; turns(1)) {
		assert_true(io_now() < until);
		if (io_now() >= next && d.ss.running > 0 && d.cl->all[0]->need) {
			assert_int_equal(sr_poll(conn, &r, 1), 1);
			next = io_now() + 15 * MS;
		}
	}
	assert_int_equal(ends(3), -ECANCELED);
	sr_close(conn);
	turns(3);
	end();
}

/* Its memory is taken away while its prompt is read: it is dropped.  The scheduler refuses: the request
 * ends with that error, or is offered again. */
static void what_the_others_say_is_passed_on(void **state)
{
	uint64_t rtt;

	(void)state;
	open_conn();
	fail_next("sched_admit", 1, 1, EIO);
	submit(1, 1, 0);
	assert_int_equal(ends(1), -EIO);
	fail_next("sched_admit", 1, 1, EAGAIN);
	submit(1, 1, 0);
	assert_int_equal(ends(1), SR_LENGTH);
	fail_next("host_read", 1, 1, EFAULT);
	submit(1, 1, 0);
	turns(3);
	assert_int_equal(d.cs.poisoned, 1);
	assert_int_equal(d.cs.connected, 0);
	usleep(300);                          /* longer than QUIET_NS without a request */
	turns(2);                             /* the ring submits it in the second */
	assert_int_equal(sr_ping(conn, &rtt, 1000), -ECONNRESET);
	sr_close(conn);
}

/* A lie after a correct record: the client is dirty and gone in the same turn. */
static void a_lie_behind_a_truth(void **state)
{
	struct sr_wire_cancel right = { .op = SR_OP_CANCEL, .ticket = 1000 }, wrong = { .op = 9 };

	(void)state;
	for (int i = 0; i < 2; i++) {         /* the second gets no line in the log */
		open_conn();
		assert_int_equal(cancel_put(conn, &right), 0);
		assert_int_equal(cancel_put(conn, &wrong), 0);
		turns(3);
		assert_int_equal(d.cs.poisoned, i + 1);
		sr_close(conn);
	}
	turns(1);
	assert_int_equal(d.cs.connected, 0);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(chores_wait_for_their_time),
		cmocka_unit_test(requests_without_a_page),
		CASE(a_full_store_of_lists_is_waited_for),
		cmocka_unit_test(no_room_for_a_refusal),
		CASE(more_than_was_granted_waits),
		cmocka_unit_test(a_turn_has_its_measure),
		cmocka_unit_test(words_are_paid_for),
		cmocka_unit_test(words_are_shared),
		cmocka_unit_test(a_recording_has_each_end),
		cmocka_unit_test(stalling_has_an_end_if_one_is_set),
		cmocka_unit_test(a_drip_is_a_stall),
		CASE(what_the_others_say_is_passed_on),
		CASE(a_lie_behind_a_truth),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
