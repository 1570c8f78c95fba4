/* LINK: @daemon -luring -lhugetlbfs -lxxhash */
/* test_guide_quotas.c - what guides cost their client: memory in its quota, and words of its token bucket, at times
 * that the test gives.  One thread: the daemon turns when the test says so. */
#include "core/clients/impl.h"
#include "tests/rig/daemon.h"
#include "tests/rig/evil.h"

static struct daemon d;
static struct evil e;
static atomic_bool opened;
static uint32_t guides;

static void *open_there(void *arg)
{
	(void)arg;
	evil_open(&e, d.path, (struct sr_shape){ 32, 64, 4096, guides, 0 });
	opened = true;
	return NULL;
}

static void begin(uint32_t n)
{
	pthread_t t;

	guides = n;
	opened = false;
	daemon_init(&d, &(struct clients_config){ .guides = 4096 });
	daemon_make(&d);
	assert_int_equal(pthread_create(&t, NULL, open_there, NULL), 0);
	while (!opened)
		daemon_turn(&d);
	pthread_join(t, NULL);
	d.paused = true;
}

static void end(void)
{
	evil_close(&e);
	for (int i = 0; i < 5; i++)
		daemon_turn(&d);
	daemon_unmake(&d);
	daemon_clear(&d);
}

/* Guides taken in all, after a turn at `now`. */
static uint32_t taken_at(uint64_t now)
{
	clients_take(d.cl, now);
	return atomic_load(e.guides.head);
}

static void memory_counts(void **state)
{
	static const uint32_t n[] = { 0, 8, 256 };
	size_t before = 0;

	(void)state;
	for (int i = 0; i < 3; i++) {
		size_t shared, bytes;

		begin(n[i]);
		shared = SR_UP_BYTES(&e.shape, VOCAB) + SR_DOWN_BYTES(&e.shape, 0);
		bytes = d.cl->all[0]->bytes;
		assert_int_equal(e.shape.guides, n[i]);
		assert_true(e.up_len >= SR_UP_BYTES(&e.shape, VOCAB));
		if (n[i])                     /* at least 8 kept records for each */
			assert_true(bytes >= shared + 32 * sizeof(struct live) + n[i] * 8 * 64 &&
			            bytes - before > n[i] * 2 * sr_mask_bytes(VOCAB));
		else
			assert_int_equal(bytes, shared + 32 * sizeof(struct live));
		before = n[i] ? bytes : 0;
		end();
	}
}

/* A mask costs a quarter of its words: with the record 406 of 32,768.  What is on credit is paid first. */
static void masks_are_paid_for(void **state)
{
	uint32_t cost = 16 + (VOCAB + 31) / 32 / 4, first = 32768 / cost + 1;
	uint64_t now;

	(void)state;
	assert_int_equal(cost, 406);
	begin(64);
	now = io_now() + 1000 * MS;
	for (int i = 0; i < 200; i++)         /* for a request that is over: ignored, and paid for all the same */
		assert_true(evil_guide(&e, &(struct sr_wire_guide){ .ticket = 0x80000000u, .place = (uint16_t)(i % 128) }));
	for (int k = 0; k < 3; k++)
		assert_int_equal(taken_at(now), first);
	assert_true(d.cl->owed);              /* the loop does not sleep for long */
	now += 8 * (first * cost - 32768);
	assert_int_equal(taken_at(now - 8), first);
	assert_int_equal(taken_at(now), first + 1);
	assert_int_equal(taken_at(now + 8 * (cost - 1)), first + 1);
	assert_int_equal(taken_at(now + 8 * cost), first + 2);
	end();
}

/* Small ones, of which many can be paid: a turn has its measure. */
static void a_turn_has_its_measure(void **state)
{
	uint64_t now;

	(void)state;
	begin(256);
	now = io_now() + 1000 * MS;
	for (int i = 0; i < 1000; i++)
		assert_true(evil_guide(&e, &(struct sr_wire_guide){ .ticket = 0x80000000u, .kind = SR_GUIDE_FREE }));
	assert_int_equal(taken_at(now), 512); /* before requests, and after them */
	assert_int_equal(taken_at(now + MS), 1000);
	end();
}

/* Kept guides are paid for when they come, and their masks when their request is taken. */
static void kept_guides_are_paid_for(void **state)
{
	uint64_t now;
	int64_t before;

	(void)state;
	begin(8);
	now = io_now() + 1000 * MS;
	taken_at(now);
	before = d.cl->all[0]->purse.words;
	assert_int_equal(before, 32768);
	assert_true(evil_guide(&e, &(struct sr_wire_guide){ .ticket = 0 }));
	taken_at(now);
	assert_int_equal(before - d.cl->all[0]->purse.words, 16);
	assert_true(evil_put(&e, &(struct sr_wire_request){ ASKS(4, 2), .flags = SR_GUIDED }));
	taken_at(now);
	assert_int_equal(before - d.cl->all[0]->purse.words, 16 + 390 + 64 + 4);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_counts), cmocka_unit_test(masks_are_paid_for),
		cmocka_unit_test(a_turn_has_its_measure), cmocka_unit_test(kept_guides_are_paid_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
