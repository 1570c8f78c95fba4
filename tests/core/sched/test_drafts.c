/* LINK: @sched @null -lxxhash */
/* test_drafts.c - guesses: how many there are, by what they cost and by what was right.  That answers do not change
 * by them is what test_sim.c plays.
 */
#include "core/sched/impl.h"
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

/* ---- how long a batch takes, by its tokens ---- */

/* A device that computes rows by fours, where one alone waits for memory. */
static double stair(int32_t n)
{
	return n == 1 ? 100 : 150 + 50 * (double)((n - 1) / 4);
}

static bool near(double a, double b)
{
	return a > 0.97 * b && a < 1.03 * b;
}

/* n tokens, measured `times` times on a machine that is so much slower. */
static void took(struct draft_time *d, int32_t n, int times, double slower)
{
	while (times-- > 0)
		draft_measure(d, n, slower * stair(n), 0.1);
}

static void test_time(void **state)
{
	struct draft_time d;
	float times[9];

	(void)state;
	draft_time_create(&d);
	took(&d, 1, 1, 1);
	assert_true(near(draft_time(&d, 1), 100));
	assert_true(draft_time(&d, 9) > 101 && draft_time(&d, 9) < 150); /* by the device's share */
	took(&d, 9, 4, 1);
	assert_true(near(draft_time(&d, 9), stair(9)));
	assert_true(near(draft_time(&d, 5), 175));         /* between one and nine */
	took(&d, 5, 4, 1);
	assert_true(near(draft_time(&d, 5), stair(5)));
	assert_true(near(draft_time(&d, 9), stair(9)));
	took(&d, 1, 60, 2);                             /* the machine is slower now, for all numbers */
	assert_true(near(draft_time(&d, 9), 2 * stair(9)));
	took(&d, 1, 60, 1);
	took(&d, 300, 4, 1);                            /* many share a place */
	assert_true(near(draft_time(&d, 300), stair(300)));
	took(&d, 1, 400, 1);
	draft_measure(&d, 1, 1e9, 0.1);                 /* one that was disturbed counts little */
	assert_true(draft_time(&d, 1) < 140);
	took(&d, 1, 60, 1);
	took(&d, 4, 4, 1);
	draft_measure(&d, 3, 1e9, 0.1);                 /* not so the first of its number .. */
	assert_true(draft_time(&d, 3) > draft_time(&d, 4));
	draft_times(&d, 1, 8, times);
	for (int k = 1; k <= 8; k++)
		assert_true(times[k] >= times[k - 1]);
	took(&d, 1, 200, 1);
	assert_true(draft_time(&d, 3) <= 1.03 * draft_time(&d, 4)); /* .. which is forgotten soon */
}

/* Guesses fill the step of a stair, where the first guess alone would not be worth its time. */
static void test_stair(void **state)
{
	static const double sure[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8 }, likely[] = { 0, 0.4, 0.8, 1.2, 1.6, 2, 2.4, 2.8, 3.2 },
	                    never[9] = { 0 };
	struct draft_time d;
	float times[9], flat[] = { 1, 1.01f };

	(void)state;
	draft_time_create(&d);
	for (int32_t n = 1; n <= 9; n++)
		took(&d, n, 4, 1);
	draft_times(&d, 1, 8, times);
	assert_int_equal(draft_best(times, 8, sure, 1), 7);
	assert_int_equal(draft_best(times, 8, likely, 1), 7);
	assert_int_equal(draft_best(times, 1, likely, 1), 0);
	assert_int_equal(draft_best(times, 3, likely, 1), 3);
	assert_int_equal(draft_best(times, 8, never, 1), 0);
	assert_int_equal(draft_best(times, 8, likely, 8), 0); /* rows of others wait for it, too */
	assert_int_equal(draft_best(flat, 1, (double[]){ 0, 0.025 }, 1), 0); /* hardly a gain */
	assert_int_equal(draft_best(flat, 1, (double[]){ 0, 0.05 }, 1), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_gain), cmocka_unit_test(test_load),
					    cmocka_unit_test(test_refused), cmocka_unit_test(test_time),
					    cmocka_unit_test(test_stair) };

	return cmocka_run_group_tests_name("drafts", tests, NULL, NULL);
}
