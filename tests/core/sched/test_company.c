/* LINK: @sched @null -lxxhash */
/* test_company.c - a request gets the same answer in any company: alone or among others, in chunks of
 * any size, with its prefix cached or computed, and after preemptions.
 */
#include "tests/rig/sched_world.h"

#define OTHERS 31
#define ANSWER 40

struct company {
	const char *name;
	int     others;         /* other requests with the same prefix, before and while it runs */
	bool    again;          /* asked twice: the second finds its prefix cached */
	bool    no_cache;
	int32_t chunk_max, n_blocks, depth;
};

static const struct company companies[] = {
	{ "alone",                      0,      false, true,  512, 400, 2 },
	{ "alone, in chunks of 16",     0,      false, true,  16,  400, 1 },
	{ "among 31",                   OTHERS, false, true,  512, 400, 2 },
	{ "among 31, prefixes cached",  OTHERS, false, false, 512, 400, 2 },
	{ "the same again",             0,      true,  false, 512, 400, 2 },
	{ "among 31, in chunks of 32",  OTHERS, true,  false, 32,  400, 3 },
	{ "among 31, preempted",        OTHERS, true,  false, 64,  24,  2 },
};

struct answer { int32_t id[ANSWER]; float logprob[ANSWER]; };

static void open_company(const struct company *c)
{
	set_up();
	w.cfg.limits = (struct sr_limits){ .n_groups = 1, .block_tokens = B, .n_blocks = c->n_blocks, .seq_blocks = 22,
					   .slots = 40, .rows = 40, .tokens = 512, .cmds = 400, .words = 20000 };
	w.cfg.knobs = (struct sched_knobs){ .max_seqs = 40, .batch_tokens = 512, .chunk_max = c->chunk_max,
					    .queue_requests = 100, .queue_tokens = 100000, .quantum = 64,
					    .no_prefix_cache = c->no_cache };
	w.cfg.ids_max = 120000;
	w.cfg.context = 350;
	sr_null_depth(c->depth);
	sr_null_pace(1, 0);
	assert_int_equal(try_open(), 0);
}

/* Requests 0 and 1 are the same one; all begin with the same 151 ids. */
static void ask_company(uint64_t user_data, int32_t n_prompt, uint64_t seed)
{
	struct sched_request q = request(user_data, n_prompt, ANSWER);
	int32_t prompt[300];

	for (int32_t i = 0; i < n_prompt; i++)
		prompt[i] = user_data > 1 && i > 150 ? (i * (int32_t)user_data) % VOCAB : i * i % VOCAB;
	q.prompt = prompt;
	q.history = user_data % 3 < 2;
	q.no_cache = false;
	begin(&q, &(struct sr_null_request){ .sampling = { .seed = seed, .temperature = 0.8f, .top_p = 1,
							   .repetition = 1 } }, 0);
	assert_int_equal(admit(0, &q), 0);
}

static struct answer answer_of(uint64_t user_data)
{
	struct answer a;
	int n = 0;

	assert_int_equal(end_of(user_data)->finish, SCHED_LENGTH);
	assert_int_equal(tokens_of(user_data), ANSWER);
	for (int i = 0; i < w.n_heard; i++) {
		const struct sched_event *e = &w.heard[i].e;

		if (e->user_data != user_data || e->kind != SCHED_TOKEN)
			continue;
		a.id[n] = e->id;
		a.logprob[n++] = e->logprob;
	}
	return a;
}

static void assert_same(const struct answer *a, const struct answer *b)
{
	assert_memory_equal(a->id, b->id, sizeof(a->id));
	assert_memory_equal(a->logprob, b->logprob, sizeof(a->logprob));
}

static struct answer in_company(const struct company *c)
{
	struct answer first, again;

	open_company(c);
	for (int i = 0; i < c->others / 2; i++)
		ask_company(2 + (uint64_t)i, 160 + i, (uint64_t)i);
	for (int i = 0; i < 20 && sched_busy(w.s); i++)
		step();
	ask_company(0, 200, 4711);
	for (int i = c->others / 2; i < c->others; i++)
		ask_company(2 + (uint64_t)i, 160 + i, (uint64_t)i);
	until_idle();
	first = answer_of(0);
	if (c->again) {
		ask_company(1, 200, 4711);
		until_idle();
		assert_true(end_of(1)->cached > 0);
		again = answer_of(1);
		assert_same(&again, &first);
	}
	assert_true(c->n_blocks > 100 || w.n.preemptions > 0);
	assert_true(!c->others || w.n.rows > w.n.steps * 2);
	assert_true(c->no_cache || !c->others || w.n.prefix_hits > 0);
	tear_down();
	return first;
}

static void test_company(void **state)
{
	struct answer alone = in_company(&companies[0]);

	(void)state;
	for (size_t i = 1; i < sizeof(companies) / sizeof(companies[0]); i++) {
		struct answer a = in_company(&companies[i]);

		print_message("  %s\n", companies[i].name);
		assert_same(&a, &alone);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_company) };

	return cmocka_run_group_tests_name("company", tests, NULL, NULL);
}
