/* LINK: @sched @null -lxxhash */
/* test_sched_ends.c - prefixes, scores, stop ids, and all the ways in which a request ends. */
#include "tests/rig/sched_world.h"

/* ---- prefixes, scores, lists ------------------------------------------------------------------------ */

static void test_prefix(void **state)
{
	static const struct { const char *what; bool off, no_cache, score; uint64_t salt; int32_t cached; }
	cases[] = {
		{ "found",                     false, false, false, 0, 96 },
		{ "not if it asks not to",     false, true,  false, 0, 0 },
		{ "not with another salt",     false, false, false, 9, 0 },
		{ "not if its prompt is scored", false, false, true, 0, 0 },
		{ "not if switched off",       true,  false, false, 0, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct sched_request q;

		set_up();
		w.cfg.knobs.no_prefix_cache = cases[i].off;
		assert_int_equal(try_open(), 0);
		ask(0, 1, 100, 3);
		until_idle();
		q = request(2, 100, 3);
		q.no_cache = cases[i].no_cache;
		q.salt = cases[i].salt;
		q.score = cases[i].score;
		assert_int_equal(admit(0, &q), 0);
		until_idle();
		if (end_of(2)->cached != cases[i].cached || end_of(2)->computed != 100 - cases[i].cached)
			fail_msg("%s: %d", cases[i].what, end_of(2)->cached);
		assert_int_equal(w.n.prefix_hits, cases[i].cached);
		tear_down();
	}
}

/* Answers are cached like prompts, as far as they were computed: all but the last token. */
static void test_answers(void **state)
{
	static const struct { int32_t answer, cached; } cases[] = {
		{ 11, 16 }, { 12, 16 }, { 13, 32 }, { 14, 32 }, { 28, 32 }, { 29, 48 }, { 30, 48 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct sched_request q;

		set_up();
		assert_int_equal(try_open(), 0);
		q = request(1, 20, cases[i].answer);
		q.no_cache = false;
		assert_int_equal(admit(0, &q), 0);
		until_idle();
		q = request(2, 100, 2);
		q.no_cache = false;
		assert_int_equal(w.n_heard, cases[i].answer + 1);
		for (int k = 0; k < cases[i].answer; k++)
			ids[20 + k] = w.heard[k].e.id;
		assert_int_equal(admit(0, &q), 0);
		until_idle();
		assert_int_equal(end_of(2)->cached, cases[i].cached);
		tear_down();
	}
}

static void test_score(void **state)
{
	static const struct { int32_t n_prompt, max_tokens, room, n_top; } cases[] = {
		{ 100, 5, 1000, 0 }, { 100, 0, 1000, 0 }, { 1, 0, 1000, 0 }, { 1, 2, 1000, 0 },
		{ 2, 0, 1000, 20 },  { 100, 0, 12, 5 },   { 40, 3, 6, 20 },  { 100, 3, 7, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct sr_null_text before = { 0 };
		struct sched_request q;
		int n = 0;

		set_up();
		w.cfg.limits.scores = 30;
		assert_int_equal(try_open(), 0);
		w.c[0].room = cases[i].room;
		q = request(1, cases[i].n_prompt, cases[i].max_tokens);
		q.score = true;
		q.n_prompt_top = (uint8_t)cases[i].n_top;
		assert_int_equal(admit(0, &q), 0);
		for (int k = 0; k < 2000 && sched_busy(w.s); k++) {
			step();
			w.c[0].room = cases[i].room + w.c[0].reserved; /* it reads at once */
		}
		for (int k = 0; k < w.n_heard; k++) {
			const struct sched_event *e = &w.heard[k].e;

			if (e->kind != SCHED_SCORED)
				continue;
			assert_false(e->last);
			assert_int_equal(e->position, ++n);
			assert_int_equal(e->id, ids[n]);
			sr_null_read(&before, cases[i].n_prompt, ids, n);
			assert_true(e->logprob == sr_null_logprob(&before, ids[n]));
			assert_int_equal(e->n_top, cases[i].n_top);
		}
		assert_int_equal(n, cases[i].n_prompt - 1);
		assert_int_equal(tokens_of(1), cases[i].n_prompt - 1 + cases[i].max_tokens);
		assert_int_equal(end_of(1)->finish, SCHED_LENGTH);
		assert_int_equal(w.c[0].reserved, 0);
		tear_down();
	}
}

/* A stop id ends the request, unless it has fewer than min_tokens. */
static void test_stop(void **state)
{
	uint32_t stop[1200];
	struct sched_request q;
	int32_t second;

	(void)state;
	for (int n_stop = 1; n_stop <= 1200; n_stop += 1199) {
		set_up();
		w.cfg.limits.words = 4000;
		assert_int_equal(try_open(), 0);
		ask(0, 1, 30, 10);
		until_idle();
		second = w.heard[1].e.id;
		for (int i = 0; i < n_stop; i++)
			stop[i] = i == n_stop - 1 ? (uint32_t)second : VOCAB + (uint32_t)i;
		q = request(2, 30, 10);
		begin(&q, &(struct sr_null_request){ .list = { stop }, .n_list = { n_stop }, .sampling = {
			.top_p = 1, .repetition = 1, .min_position = 32 } }, 0);
		assert_int_equal(admit(0, &q), 0);
		until_idle();
		assert_true(tokens_of(2) >= 3);
		for (int i = 0; i < w.n_heard; i++)
			if (w.heard[i].e.user_data == 2 && w.heard[i].e.position < 32)
				assert_int_not_equal(w.heard[i].e.id, second);
		assert_int_equal(end_of(2)->finish == SCHED_STOP, w.heard[w.n_heard - 2].e.id == second);
		tear_down();
	}
}

/* Only a stop id may be drawn: before min_tokens it is an ordinary token.  Its words may lie anywhere: in
 * the sequence itself or in chunks, behind others, the last one in a chunk of its own. */
static void test_stop_alone(void **state)
{
	static const struct { int32_t n_stop, n_before; } cases[] = {
		{ 1, 0 }, { 1, 4 }, { 13, 2 }, { 17, 0 }, { 60, 2 }, { 64, 2 }, { 65, 64 }, { 200, 130 }, { 1, 200 },
	};
	static const uint32_t before[200];
	uint32_t stop[200];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int32_t n = cases[i].n_stop;
		struct sr_null_request as = { .sampling = { .top_p = 1, .repetition = 1, .min_position = 34 },
					      .list = { stop, before, &stop[n - 1] },
					      .n_list = { n, cases[i].n_before, 1 } };
		struct sched_request q = request(1, 30, 10);

		for (int32_t k = 0; k < n; k++)
			stop[k] = k == n - 1 ? 5 : VOCAB + (uint32_t)k;
		set_up();
		assert_int_equal(try_open(), 0);
		begin(&q, &as, SR_LIST_BIAS);
		assert_int_equal(admit(0, &q), 0);
		until_idle();
		if (tokens_of(1) != 5 || end_of(1)->finish != SCHED_STOP || end_of(1)->position != 35)
			fail_msg("%d stop ids behind %d words", n, cases[i].n_before);
		tear_down();
	}
}

/* ---- ends ---------------------------------------------------------------------------------------------- */

static void test_cancel(void **state)
{
	(void)state;
	set_up();
	w.cfg.knobs.max_seqs = w.cfg.limits.slots = 1;
	assert_int_equal(try_open(), 0);
	ask(0, 1, 20, 50);
	ask(0, 2, 20, 50);
	ask(1, 1, 20, 50);
	for (int i = 0; i < 4; i++)
		step();
	sched_cancel(w.s, &w.c[0], 99);                 /* unknown: nothing */
	sched_cancel(w.s, &w.c[1], 1);                  /* waiting: never computed */
	assert_int_equal(w.heard[w.n_heard - 1].e.finish, -ECANCELED);
	assert_int_equal(w.heard[w.n_heard - 1].e.scheduled, 0);
	sched_cancel(w.s, &w.c[0], 1);                  /* running, with a row in flight */
	assert_int_equal(end_of(2) == NULL, 1);
	assert_int_equal(w.st.late, 0);
	step();
	assert_int_equal(w.st.late, 1);
	until_idle();
	assert_int_equal(end_of(2)->finish, SCHED_LENGTH);
	assert_int_equal(w.c[0].reserved + w.c[1].reserved, 0);
	tear_down();
}

static void test_forget(void **state)
{
	int before;

	(void)state;
	set_up();
	assert_int_equal(try_open(), 0);
	for (uint64_t i = 0; i < 12; i++)
		ask(i % 2, i, 20, 50);
	for (int i = 0; i < 4; i++)
		step();
	before = w.n_heard;
	sched_forget(w.s, &w.c[0]);
	sched_check(w.s);
	assert_int_equal(w.n_heard, before);            /* no calls for it any more */
	w.c[0].reserved = -1000000;
	until_idle();
	for (int i = before; i < w.n_heard; i++)
		assert_ptr_equal(w.heard[i].client, &w.c[1]);
	assert_int_equal(w.c[1].reserved, 0);
	tear_down();
}

static void test_deadline(void **state)
{
	static const struct { int waiting; uint64_t after; int want; } cases[] = {
		{ 0, 100000, SCHED_LENGTH }, { 0, 5000, -ETIME }, { 1, 5000, -ETIME }, { 1, 1, -ETIME },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct sched_request q;

		set_up();
		w.cfg.knobs.max_seqs = w.cfg.limits.slots = 1;
		assert_int_equal(try_open(), 0);
		if (cases[i].waiting)
			ask(0, 1, 20, 50);
		q = request(2, 20, 30);
		q.deadline = w.now + cases[i].after;
		assert_int_equal(admit(0, &q), 0);
		while (!end_of(2))
			step();
		assert_int_equal(end_of(2)->finish, cases[i].want);
		if (cases[i].want == -ETIME)            /* in the first step after its deadline */
			assert_true(w.now >= q.deadline && w.now < q.deadline + 1000);
		until_idle();
		tear_down();
	}
}

/* Many deadlines, in all orders, some cancelled: each request ends in the first step after its own. */
static void test_deadlines(void **state)
{
	enum { N = 48 };
	uint32_t seed = 1;

	(void)state;
	for (int round = 0; round < 40; round++) {
		uint64_t at[N];

		set_up();
		w.cfg.limits.slots = w.cfg.knobs.max_seqs = 1;
		assert_int_equal(try_open(), 0);
		ask(0, N, 20, 400);                     /* the others wait for it */
		for (uint64_t i = 0; i < N; i++) {
			struct sched_request q = request(i, 20, 30);

			seed = seed * 1664525 + 1013904223;
			at[i] = q.deadline = w.now + 1000 * (1 + (seed >> 8) % 100);
			assert_int_equal(admit(0, &q), 0);
		}
		for (int n = 0; n < 100; n++) {
			seed = seed * 1664525 + 1013904223;
			if (n % 4 == 0)
				sched_cancel(w.s, &w.c[0], (seed >> 8) % N);
			step();
			for (uint64_t i = 0; i < N; i++)
				assert_true(end_of(i) ? at[i] <= w.now || end_of(i)->finish == -ECANCELED : at[i] > w.now);
		}
		sched_forget(w.s, &w.c[0]);
		tear_down();
	}
}

static void test_device_lost(void **state)
{
	(void)state;
	set_up();
	assert_int_equal(try_open(), 0);
	w.lost_after = 5;
	for (uint64_t i = 0; i < 12; i++)
		ask(0, i, 20, 50);
	for (int i = 0; sched_step(w.s, w.now += 1000) != -EIO; i++)
		assert_true(i < 10 && !end_of(0));      /* the step that ends them returns it */
	sched_check(w.s);
	for (uint64_t i = 0; i < 12; i++)
		assert_int_equal(end_of(i)->finish, -EIO);
	assert_false(sched_busy(w.s));
	assert_int_equal(sched_step(w.s, w.now), -EIO);
	struct sched_request q = request(1, 4, 1);
	assert_int_equal(admit(0, &q), -EIO);
	assert_int_equal(w.c[0].reserved, 0);
	tear_down();
}

/* The device gets an END for each free slot, once, and at once. */
static int32_t slot_ends[8];

static int launch_with_ends(struct sr_backend *b, int32_t i)
{
	const struct sr_batch *t = w.ops.batch(b, i);

	for (int32_t k = 0; k < t->n_cmds; k++)
		slot_ends[t->cmd[k].slot] += t->cmd[k].op == SR_CMD_END;
	return sr_null_ops()->launch(b, i);
}

static void test_slots_end(void **state)
{
	(void)state;
	set_up();
	memset(slot_ends, 0, sizeof(slot_ends));
	assert_int_equal(try_open(), 0);
	w.ops.launch = launch_with_ends;
	for (int i = 0; i < 5; i++)
		ask(0, (uint64_t)i, 20, 5 + i);
	for (int i = 0; i < 30; i++) {
		step();
		if (i == 3)
			sched_cancel(w.s, &w.c[0], 4);
	}
	assert_false(sched_busy(w.s));
	for (int i = 0; i < 8; i++)
		assert_int_equal(slot_ends[i], i < 5);
	tear_down();
}

/* ---- the inline device -------------------------------------------------------------------------- */

static void yield_acts(void *ctx)
{
	int *turn = ctx;

	w.now += 100;
	if (*turn == 0)
		ask(1, 50, 20, 3);
	if (*turn == 3)
		sched_cancel(w.s, &w.c[0], 1);
	(*turn)++;
	sched_check(w.s);
}

static void test_worked(void **state)
{
	int turn = 0;

	(void)state;
	set_up();
	sr_null_pace(1, 0);
	w.cfg.limits.worked = 1;
	assert_int_equal(try_open(), 0);
	ask(0, 1, 20, 100);
	ask(0, 2, 20, 5);
	for (int i = 0; sched_busy(w.s); i++) {
		assert_true(i < 100);
		step();
		w.ops.work(w.b, yield_acts, &turn);
	}
	assert_true(turn > 10);
	assert_int_equal(end_of(1)->finish, -ECANCELED);
	assert_int_equal(end_of(2)->finish, SCHED_LENGTH);
	assert_int_equal(end_of(50)->finish, SCHED_LENGTH);
	tear_down();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_prefix), cmocka_unit_test(test_answers), cmocka_unit_test(test_score), cmocka_unit_test(test_stop),
		cmocka_unit_test(test_stop_alone), cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_forget), cmocka_unit_test(test_deadline), cmocka_unit_test(test_deadlines),
		cmocka_unit_test(test_device_lost), cmocka_unit_test(test_slots_end),
		cmocka_unit_test(test_worked),
	};

	return cmocka_run_group_tests_name("sched ends", tests, NULL, NULL);
}
