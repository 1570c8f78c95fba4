/* LINK: @sched @null -lxxhash */
/* test_sched_states.c - models whose layers have a state: equal prompts are computed once, and a sequence starts only
 * if there is a state for it.  The null device checks every state that a row continues.
 */
#include "tests/rig/sched_world.h"

static void open_states(int32_t states)
{
	set_up();
	w.cfg.limits.n_states = states;
	w.cfg.limits.cmds += 2 * (w.cfg.limits.rows + 1);
	w.cfg.limits.tokens = w.cfg.knobs.batch_tokens = 512;
}

static void ask_same(uint64_t user_data, int32_t n_prompt)
{
	struct sched_request q = request(user_data, n_prompt, 4);

	q.no_cache = false;
	assert_int_equal(admit(0, &q), 0);
}

/* Several answers to one prompt: the others wait until the first has kept a snapshot, and compute what is behind. */
static void test_equal_prompts(void **state)
{
	static const struct { int32_t prompt, chunk_max, states, n, computed; } cases[] = {
		{ 100, 512, 16, 4, 100 + 3 * 4 },
		{ 100, 32, 16, 4, 100 + 3 * 4 },
		{ 96, 512, 16, 4, 96 + 3 * 16 },
		{ 97, 512, 16, 4, 97 + 3 * 1 },
		{ 15, 512, 16, 4, 60 },                 /* no full block */
		{ 100, 512, 1, 2, 200 },                /* a snapshot needs a second state */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		open_states(cases[i].states);
		w.cfg.knobs.chunk_max = cases[i].chunk_max;
		assert_int_equal(try_open(), 0);
		for (int32_t k = 0; k < cases[i].n; k++)
			ask_same((uint64_t)k, cases[i].prompt);
		until_idle();
		print_message("  %d tokens, chunks of %d, %d states\n", cases[i].prompt, cases[i].chunk_max, cases[i].states);
		assert_int_equal(w.n.prompt_computed, cases[i].computed);
		for (int32_t k = 0; k < cases[i].n; k++)
			assert_int_equal(tokens_of((uint64_t)k), 4);
		tear_down();
	}
}

/* With three states three sequences run, whatever the slots. */
static void test_few(void **state)
{
	int32_t most = 0;

	(void)state;
	open_states(3);
	assert_int_equal(try_open(), 0);
	for (int32_t k = 0; k < 8; k++)
		ask(k % 3, (uint64_t)k, 20 + k, 10);
	while (sched_busy(w.s)) {
		step();
		most = w.st.running > most ? w.st.running : most;
	}
	assert_int_equal(most, 3);
	for (uint64_t k = 0; k < 8; k++)
		assert_int_equal(tokens_of(k), 10);
	assert_int_equal(w.n.preemptions, 0);
	tear_down();
}

/* A limit without a cache of states, or the other way round, is refused. */
static void test_config(void **state)
{
	(void)state;
	open_states(4);
	w.cfg.limits.cmds = w.cfg.limits.rows + 1 + w.cfg.limits.slots + 7;
	assert_int_equal(try_open(), -EINVAL);
	tear_down();
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_equal_prompts), cmocka_unit_test(test_few),
		cmocka_unit_test(test_config) };

	return cmocka_run_group_tests_name("sched, states", tests, NULL, NULL);
}
