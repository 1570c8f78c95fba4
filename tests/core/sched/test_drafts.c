/* LINK: @sched @null -lxxhash */
/* test_drafts.c - guesses: how many there are, by what they cost and by what was right.  That answers do not change
 * by them is what test_sim.c plays.
 */
#include "tests/rig/sched_world.h"

#define ANSWER 100

/* A request that may draw `kinds` ids alone: with one of them every guess is right. */
static void ask_for(uint64_t user_data, uint32_t kinds)
{
	static const uint32_t allow[] = { 40, 41, 42, 43 };
	struct sched_request q = request(user_data, 20, ANSWER);
	struct sr_null_request as = { .sampling = { .seed = user_data, .temperature = 1, .top_p = 1, .repetition = 1 } };

	as.list[SR_LIST_ALLOW] = allow;
	as.n_list[SR_LIST_ALLOW] = (int32_t)kinds;
	begin(&q, &as, 0);
	assert_int_equal(admit(0, &q), 0);
}

/* The steps of so many answers, where a batch takes fixed_us and each_us a token. */
static uint64_t steps_of(int32_t guesses, int answers, uint32_t kinds, double fixed_us, double each_us, int depth)
{
	uint64_t steps;

	set_up();
	w.cfg.limits.drafts = 64;
	w.cfg.drafts = (struct sched_drafts){ guesses, 2, 8 };
	sr_null_depth(depth);
	sr_null_pace(fixed_us, each_us);
	assert_int_equal(try_open(), 0);
	for (int i = 0; i < answers; i++)
		ask_for((uint64_t)i, kinds);
	until_idle();
	for (int i = 0; i < answers; i++)
		assert_int_equal(tokens_of((uint64_t)i), ANSWER);
	for (int i = 0; i < CLIENTS; i++)
		assert_int_equal(w.c[i].reserved, 0);
	steps = w.n.steps;
	tear_down();
	return steps;
}

static void test_gain(void **state)
{
	(void)state;
	assert_int_equal(steps_of(0, 1, 1, 0.9, 0.01, 1), ANSWER);
	assert_int_equal(w.n.drafts, 0);
	assert_true(steps_of(8, 1, 1, 0.9, 0.01, 1) < ANSWER / 4); /* a token costs little: each row brings nine */
	assert_true(w.n.draft_accepted > ANSWER * 3 / 4);
	assert_true(steps_of(8, 1, 1, 0.9, 0.01, 2) < ANSWER / 2); /* it waits for its results */
	assert_true(steps_of(2, 1, 1, 0.9, 0.01, 1) >= ANSWER / 3); /* no row has more than two */
}

/* A token of a batch takes as long as a batch: guesses gain nothing, unless they are surely right. */
static void test_load(void **state)
{
	(void)state;
	steps_of(8, 8, 2, 0.01, 0.1, 1);
	assert_true(w.n.draft_tokens < 400);       /* without a price it would be some 3,200 */
	assert_true(steps_of(8, 1, 4, 0.9, 0.001, 1) < ANSWER); /* one in four is right, but guesses cost nothing */
	assert_true(w.n.draft_tokens > 2 * w.n.draft_accepted);
}

static void test_refused(void **state)
{
	static const struct { struct sched_drafts d; int32_t batch; } wrong[] = {
		{ { 4, 2, 8 }, 0 }, { { SCHED_DRAFT_MOST + 1, 2, 8 }, 8 }, { { 4, 0, 8 }, 8 }, { { 4, 3, 2 }, 8 },
		{ { 4, 2, SCHED_DRAFT_MATCH + 1 }, 8 }, { { -1, 2, 8 }, 8 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		set_up();
		w.cfg.limits.drafts = wrong[i].batch;
		w.cfg.drafts = wrong[i].d;
		assert_int_equal(try_open(), -EINVAL);
		tear_down();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_gain), cmocka_unit_test(test_load),
					    cmocka_unit_test(test_refused) };

	return cmocka_run_group_tests_name("drafts", tests, NULL, NULL);
}
