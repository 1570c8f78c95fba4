/* LINK: @daemon shmring/client.c -luring -lhugetlbfs -lxxhash */
/* test_hostile_guides.c - what a client may try with guides: the rules of docs/trust.md for the ring of guides and the
 * places for masks.  After each the daemon's invariants hold and its neighbour's answers are right. */
#include <signal.h>

#include "tests/rig/daemon.h"
#include "tests/rig/evil.h"

static struct daemon d;
static atomic_bool stop;

#define SCRIBBLER __attribute__((no_sanitize("thread")))
#define WORDS ((VOCAB + 31) / 32)

static const struct sr_wire_request guided = { ASKS(4, 200), .flags = SR_GUIDED | SR_IGNORE_EOS };

static void neighbour_is_well(void)
{
	static uint32_t salt;
	struct sr_conn *c;

	assert_int_equal(sr_open(&c, d.path, NULL), 0);
	ask(c, ++salt, 30);
	sr_close(c);
	daemon_look(&d);
}

static void open_evil(struct evil *e)
{
	evil_open(e, d.path, small_guided);
	assert_int_equal(e->shape.guides, 8);
}

/* A guided request under way; its ticket. */
static uint32_t begin(struct evil *e)
{
	uint32_t ticket = e->requests.mine;

	assert_true(evil_put(e, &guided));
	while (atomic_load(e->requests.head) == ticket)
		usleep(50);
	return ticket;
}

/* ---- one record ------------------------------------------------------------------------------ */

static void wrong_guides_cost_the_connection(void **state)
{
	static const struct { const char *name; bool good; int n; struct sr_wire_guide what[8]; } t[] = {
		{ "a mask", true, 1, { { .place = 15 } } },
		{ "a place beyond", false, 1, { { .place = 16 } } },
		{ "the last of all places", false, 1, { { .place = UINT16_MAX } } },
		{ "an id beyond", false, 1, { { .kind = SR_GUIDE_ONLY, .n = 1, .id = { VOCAB } } } },
		{ "no id", false, 1, { { .kind = SR_GUIDE_ONLY } } },
		{ "13 ids", false, 1, { { .kind = SR_GUIDE_IS, .n = 13 } } },
		{ "no kind", false, 1, { { .kind = 4 } } },
		{ "unused bytes", false, 1, { { .kind = SR_GUIDE_FREE, .id[11] = 1 } } },
		{ "not the first", false, 1, { { .index = 1 } } },
		{ "the last index", false, 1, { { .index = ~0u } } },
		{ "the largest index", false, 1, { { .index = INT32_MAX } } },
		{ "below 0", false, 1, { { .index = 0x80000000u } } },
		{ "another ticket", true, 1, { { .ticket = 5, .index = 9 } } },
		{ "a ticket of long ago", true, 1, { { .ticket = 0x80000000u, .index = 9 } } },
		{ "known ids and a mask", true, 2, { { .kind = SR_GUIDE_IS, .n = 12 }, { .index = 12 } } },
		{ "65 known ids", false, 6, { { .kind = SR_GUIDE_IS, .n = 12 }, { .kind = SR_GUIDE_IS, .n = 12, .index = 12 },
			{ .kind = SR_GUIDE_IS, .n = 12, .index = 24 }, { .kind = SR_GUIDE_IS, .n = 12, .index = 36 },
			{ .kind = SR_GUIDE_IS, .n = 12, .index = 48 }, { .kind = SR_GUIDE_IS, .n = 5, .index = 60 } } },
		{ "64 known ids", true, 6, { { .kind = SR_GUIDE_IS, .n = 12 }, { .kind = SR_GUIDE_IS, .n = 12, .index = 12 },
			{ .kind = SR_GUIDE_IS, .n = 12, .index = 24 }, { .kind = SR_GUIDE_IS, .n = 12, .index = 36 },
			{ .kind = SR_GUIDE_IS, .n = 12, .index = 48 }, { .kind = SR_GUIDE_IS, .n = 4, .index = 60 } } },
		{ "twice", false, 2, { { .index = 0 }, { .index = 0 } } },
		{ "two ahead", false, 2, { { .index = 0 }, { .index = 1 } } },
		{ "one left out", false, 2, { { .kind = SR_GUIDE_IS, .n = 2 }, { .index = 3 } } },
		{ "while any may come", false, 2, { { .kind = SR_GUIDE_FREE, .n = 1, .id = { 9 } }, { .index = 1 } } },
	};

	(void)state;
	for (size_t i = 0; i < 2 * sizeof(t) / sizeof(t[0]); i++) {
		bool early = i % 2;           /* before the request: kept, and then the same */
		struct evil e;

		open_evil(&e);
		d.paused = true;              /* no token comes between */
		if (!early)
			begin(&e);
		for (int k = 0; k < t[i / 2].n; k++)
			assert_true(evil_guide(&e, &t[i / 2].what[k]));
		if (early)
			evil_put(&e, &guided);
		sr_signal(e.fd);
		if (t[i / 2].good ? dropped_in(&e, 20) : !dropped(&e))
			fail_msg("%s%s", t[i / 2].name, early ? ", early" : "");
		d.paused = false;
		evil_close(&e);
		neighbour_is_well();
	}
}

/* Every bit of a record: the answer goes on, or its client is dropped; nobody else is touched. */
static void R5_every_bit(void **state)
{
	struct evil e;
	int drops = 0;

	(void)state;
	for (uint32_t bit = 32; bit < 512; bit += 3) {
		struct sr_wire_guide g = { .kind = SR_GUIDE_FREE };

		open_evil(&e);
		d.paused = true;
		begin(&e);
		((uint8_t *)&g)[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_true(evil_guide(&e, &g));
		if (bit / 8 >= offsetof(struct sr_wire_guide, index)) {
			bool may = bit / 8 == offsetof(struct sr_wire_guide, kind) || bit / 8 == offsetof(struct sr_wire_guide, n);

			drops += dropped_in(&e, may ? 20 : 1000);
			if (!may && !dropped_in(&e, 1))
				fail_msg("bit %u", bit);
		}
		d.paused = false;
		evil_close(&e);
	}
	assert_true(drops > 100);
	neighbour_is_well();
}

/* ---- memory that changes --------------------------------------------------------------------- */

static SCRIBBLER void *scribble(void *arg)
{
	struct evil *e = arg;
	uint32_t s = 11;

	while (!stop) {
		uint32_t k = xorshift(&s), i = k % 32;
		volatile struct sr_wire_guide *g = (void *)(e->up + SR_OFF_GUIDES(&e->shape) + 64 * i);

		((volatile uint32_t *)evil_mask(e, k % 16))[k >> 8 & 1023] = k;
		if (k % 64 == 0)
			g->place = k & 128 ? (uint16_t)k : 0;
		if (k % 64 == 1)
			g->id[k >> 8 & 7] = k & 128 ? (int32_t)k : 0;
		if (k % 64 == 2)
			g->n = (uint8_t)(k >> 9 & 15);
		if (k % 1024 == 3)
			g->index = k;
	}
	return NULL;
}

/* Records and masks change while they are read: each answer ends, or the client is dropped. */
static void R2_double_fetch(void **state)
{
	uint32_t connections = 0, guides = 0;

	(void)state;
	for (uint64_t until = io_now() + 1000 * MS; io_now() < until; connections++) {
		struct evil e;
		pthread_t t;
		uint32_t ticket, index = 0;

		open_evil(&e);
		stop = false;
		pthread_create(&t, NULL, scribble, &e);
		ticket = e.requests.mine;
		evil_put(&e, &guided);
		for (int i = 0; i < 3000 && !e.n_ends && !dropped_in(&e, 0); i++) {
			struct sr_wire_guide g = { .ticket = ticket, .index = index, .place = (uint16_t)(index % 16) };

			if (i % 10 == 0 && evil_guide(&e, &g))
				guides++;
			index += (uint32_t)evil_read(&e);
		}
		stop = true;
		pthread_join(t, NULL);
		evil_close(&e);
	}
	assert_true(connections > 1 && guides > 20);
	neighbour_is_well();
}

static SCRIBBLER void *scribble_seqs(void *arg)
{
	struct evil *e = arg;
	uint32_t s = 9;

	while (!stop) {
		uint32_t i = xorshift(&s) % 32, k = xorshift(&s);
		_Atomic uint32_t *seq = (void *)(e->up + SR_OFF_GUIDES(&e->shape) + 64 * i);

		atomic_store(seq, k % 4 == 0 ? k : k % 4 == 1 ? sr_ring_seq(i) + k % 3 * 64 :
			sr_ring_seq(atomic_load(e->guides.head) + i));
	}
	return NULL;
}

/* Sequence words of every kind, over records that are zero: guides for ticket 0, again and again. */
static void R1_wild_indices(void **state)
{
	struct evil e;
	pthread_t t;

	(void)state;
	for (int round = 0; round < 20; round++) {
		open_evil(&e);
		stop = false;
		pthread_create(&t, NULL, scribble_seqs, &e);
		for (int i = 0; i < 20; i++) {
			sr_signal(e.fd);
			evil_read(&e);
			usleep(200);
		}
		stop = true;
		pthread_join(t, NULL);
		evil_close(&e);
	}
	neighbour_is_well();
}

/* ---- others' requests, floods, silence ------------------------------------------------------- */

static void *flood(void *arg)
{
	struct evil *e = arg;
	uint32_t s = 1, n = 0;

	/* For tickets that were never given, that are over and that are to come, with and without masks. */
	for (; !stop; n++) {
		uint32_t k = xorshift(&s);

		evil_guide(e, &(struct sr_wire_guide){ .ticket = k % 3 ? k : k % 64, .index = k % 5,
			.kind = k % 2 ? SR_GUIDE_FREE : SR_GUIDE_BITS, .place = k % 2 ? 0 : (uint16_t)(k % 16) });
		if (k % 256 == 0)
			evil_put(e, &(struct sr_wire_request){ ASKS(1, 1) });
		evil_read(e);
	}
	return NULL;
}

/* Guides name only requests of their own connection, and however many come, others are served. */
static void R6_R8_a_flood_for_any_ticket(void **state)
{
	struct sr_options o = { .size = sizeof(o), .guides = 8 };
	static const int32_t prompt[] = { 1, 2, 3, 4 };
	struct sr_request q = { .size = sizeof(q), .prompt = prompt, .n_prompt = 4, .max_tokens = 50,
		.flags = SR_GUIDED | SR_IGNORE_EOS };
	struct sr_token t = { 0 };
	struct sr_conn *c;
	struct evil e;
	pthread_t thread;
	uint64_t worst = 0;

	(void)state;
	open_evil(&e);
	assert_int_equal(sr_open(&c, d.path, &o), 0);
	stop = false;
	pthread_create(&thread, NULL, flood, &e);
	for (int round = 0; round < 20; round++) {
		uint32_t ticket;
		uint64_t begin_ns = io_now();

		assert_int_equal(sr_submit(c, &q, &ticket), 0);
		assert_int_equal(sr_guide(c, ticket, 0, SR_GUIDE_IS, prompt, 1, NULL), 0);
		do {
			int n;

			while ((n = sr_next(c, &t)) == 0)
				assert_true(sr_wait(c, SR_WAIT_TOKENS, 2000) > 0);
			assert_int_equal(n, 1);
			if (t.kind == SR_TOKEN) {
				assert_int_equal(t.id, prompt[t.index % 4]);
				assert_int_equal(sr_guide(c, ticket, t.index + 1, SR_GUIDE_ONLY, prompt + (t.index + 1) % 4, 1, NULL), 0);
			}
		} while (t.kind != SR_END);
		assert_int_equal(t.end.finish, SR_LENGTH);
		worst = io_now() - begin_ns > worst ? io_now() - begin_ns : worst;
	}
	stop = true;
	pthread_join(thread, NULL);
	assert_true(worst < 1000 * MS);
	assert_false(dropped_in(&e, 1) && e.guides.mine < 1000);
	evil_close(&e);
	sr_close(c);
	neighbour_is_well();
}

/* It asks for guided answers and guides none: its slots go to others that want them. */
static void silence_costs_its_own(void **state)
{
	struct evil e[4];

	(void)state;
	for (int k = 0; k < 4; k++) {
		open_evil(&e[k]);
		for (int i = 0; i < 8; i++)
			evil_put(&e[k], &guided);
	}
	for (int i = 0; i < 20; i++)
		neighbour_is_well();
	for (int k = 0; k < 4; k++) {
		assert_int_equal(e[k].n_ends, 0);
		evil_close(&e[k]);
	}
}

/* At most as many guided answers are under way as were granted; what is not granted is refused. */
static void R7_what_was_granted(void **state)
{
	struct evil e;
	uint32_t n = 0;

	(void)state;
	open_evil(&e);
	d.paused = true;
	for (int i = 0; i < 30; i++)
		assert_true(evil_put(&e, &guided));
	usleep(20000);
	daemon_look(&d);
	assert_int_equal(d.ss.waiting + d.ss.running, 8);
	d.paused = false;
	evil_close(&e);
	assert_true(daemon_settles(&d, 0));
	evil_open(&e, d.path, small);
	assert_true(evil_put(&e, &guided));
	evil_ends(&e, ++n);
	assert_int_equal(e.finish, -EINVAL);
	evil_close(&e);
	neighbour_is_well();
}

/* Zeros over all that it writes, while its answers are guided. */
static void R14_zeroed_memory(void **state)
{
	(void)state;
	for (int round = 0; round < 20; round++) {
		struct evil e;

		open_evil(&e);
		for (int i = 0; i < 4; i++)
			assert_true(evil_put(&e, &guided));
		for (uint32_t i = 0; i < 4; i++)
			assert_true(evil_guide(&e, &(struct sr_wire_guide){ .ticket = i, .place = (uint16_t)i }));
		usleep((useconds_t)round * 10);
		memset(e.up, 0, e.up_len);
		sr_signal(e.fd);
		usleep(500);
		evil_close(&e);
	}
	neighbour_is_well();
}

int main(void)
{
#define CASE(f) DAEMON_CASE(f, &d)
	const struct CMUnitTest tests[] = {
		CASE(wrong_guides_cost_the_connection), CASE(R5_every_bit), CASE(R2_double_fetch), CASE(R1_wild_indices),
		CASE(R6_R8_a_flood_for_any_ticket), CASE(silence_costs_its_own), CASE(R7_what_was_granted),
		CASE(R14_zeroed_memory),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
