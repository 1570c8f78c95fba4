/* LINK: @sched @null -lxxhash */
/* test_sched_share.c - what requests share: prefixes computed once, equal shares for the clients of a
 * tenant, places in the queue, cached blocks, time of prompts and of copies.  Each by numbers. */
#include "tests/rig/sched_world.h"

/* ---- a prefix that is being computed ----------------------------------------------------------- */

static void ask_shared(int client, uint64_t user_data, int32_t n_prompt, int32_t max_tokens, bool no_cache)
{
	struct sched_request q = request(user_data, n_prompt, max_tokens);

	q.no_cache = no_cache;
	assert_int_equal(sched_admit(w.s, &w.c[client], 0, &q, w.now), 0);
}

static void test_follow(void **state)
{
	static const struct {
		const char *name;
		int32_t prompt, chunk_max, n; /* this many requests with the same ids at once */
		bool    no_cache, off;
		int32_t computed, held;
	} cases[] = {
		{ "in one step",                100, 128, 4, false, false, 100 + 3 * 4, 3 },
		{ "in three chunks of a leader", 100, 32, 2, false, false, 100 + 4,     3 },
		{ "whole blocks",                96, 128, 4, false, false, 96 + 3 * B,  3 }, /* each has a last block of its own */
		{ "asked not to share",         100, 128, 4, true,  false, 400,         0 },
		{ "the cache is off",           100, 128, 4, false, true,  400,         0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		set_up();
		w.cfg.limits.tokens = w.cfg.knobs.batch_tokens = 512;
		w.cfg.knobs.chunk_max = cases[i].chunk_max;
		w.cfg.knobs.no_prefix_cache = cases[i].off;
		assert_int_equal(try_open(), 0);
		for (int32_t k = 0; k < cases[i].n; k++)
			ask_shared(k, (uint64_t)k, cases[i].prompt, 4, cases[i].no_cache);
		while (sched_busy(w.s)) {
			step();
			assert_int_equal(w.st.why, WHY_EMPTY); /* a follower is not held back by a limit */
		}
		print_message("  %s\n", cases[i].name);
		assert_int_equal(w.n.prompt_computed, cases[i].computed);
		assert_int_equal(w.n.prefix_hits, cases[i].n * cases[i].prompt - cases[i].computed);
		assert_int_equal(w.n.prefix_waits, cases[i].held);
		for (int32_t k = 1; k < cases[i].n; k++)
			for (int t = 0; t < 4; t++)
				assert_int_equal(tokens_of((uint64_t)k), 4);
		tear_down();
	}
}

/* A sequence that waits for a prefix delays no other, and outlives the sequence that computes it. */
static void test_follow_and_strangers(void **state)
{
	struct sched_request stranger;

	(void)state;
	set_up();
	w.cfg.knobs.chunk_max = 32;
	assert_int_equal(try_open(), 0);
	ask_shared(0, 1, 320, 4, false);
	ask_shared(1, 2, 320, 4, false);
	stranger = request(3, 20, 1);
	for (int i = 0; i < 20; i++)
		ids[i] = i + 1;
	assert_int_equal(admit(2, &stranger), 0);
	step();
	step();
	assert_int_equal(end_of(3)->finish, SCHED_LENGTH);
	assert_int_equal(w.st.last.rows, 2);            /* the leader and an unrelated one */
	sched_cancel(w.s, &w.c[0], 1);
	until_idle();
	assert_int_equal(end_of(2)->finish, SCHED_LENGTH);
	assert_int_equal(end_of(2)->computed + end_of(2)->cached, 320);
	assert_in_range(end_of(2)->cached, 32, 64);
	tear_down();
}

/* ---- shares ----------------------------------------------------------------------------------------- */

/* Nine clients, of one user or of nine: one has as many requests waiting as it can, eight have two
 * each.  Each gets a ninth of the tokens, whatever the lengths of its requests. */
static void test_shares(void **state)
{
	static const struct { int32_t prompt, answer; bool tenants, gateway; } greedy[] = {
		{ 20, 20, false, false }, { 200, 10, false, false }, { 10, 100, false, false },
		{ 20, 20, true, false },  { 200, 10, true, false },  { 10, 100, true, false },
		{ 20, 20, true, true }, { 200, 10, true, true }, { 10, 100, true, true }, /* of one client */
	};

	(void)state;
	for (size_t k = 0; k < sizeof(greedy) / sizeof(greedy[0]); k++) {
		uint64_t user_data = 1, served[9] = { 0 }, all = 0, least = UINT64_MAX;
		int32_t live[9] = { 0 };

		set_up();
		w.cfg.tenants = 9;
		w.cfg.limits.n_blocks = 400;
		w.cfg.knobs.queue_tokens = 40000;
		assert_int_equal(try_open(), 0);
		for (int n = 0; n < 20000; n++) {
			for (int c = 0; c < 9; c++) {
				uint64_t tenant = greedy[k].tenants ? (uint64_t)c : 0;
				struct sched_request q = request(0, c ? 24 : greedy[k].prompt,
								 c ? 16 + c : greedy[k].answer);

				struct client *client = &w.c[greedy[k].gateway ? 0 : c];

				while ((c == 0 || live[c] < 3) && !sched_full(w.s, client, tenant, q.n_prompt, 0)) {
					q.user_data = user_data++ * 16 + (uint64_t)c;
					assert_int_equal(sched_admit(w.s, client, tenant, &q, w.now), 0);
					live[c]++;
				}
			}
			w.now += 1000;
			assert_true(sched_step(w.s, w.now) >= 0);
			for (int i = 0; i < w.n_heard; i++) {
				const struct sched_event *e = &w.heard[i].e;
				int c = (int)(e->user_data % 16);

				served[c] += e->kind == SCHED_END ? (uint64_t)e->computed : 1;
				live[c] -= e->kind == SCHED_END;
				w.heard[i].client->room = 100000;
			}
			w.n_heard = 0;
		}
		sched_check(w.s);
		assert_true(live[0] > 20);              /* it is greedy */
		for (int c = 0; c < 9; c++)
			all += served[c];
		for (int c = 1; c < 9; c++)
			least = served[c] < least ? served[c] : least;
		print_message("  beside %s of %d + %d tokens: the least of eight gets %.1f %% of its share\n",
			      greedy[k].gateway ? "a gateway's tenant" : greedy[k].tenants ? "a tenant" : "one", greedy[k].prompt, greedy[k].answer,
			      900.0 * (double)least / (double)all);
		assert_true(all > 100000);
		assert_true(least * 9 * 10 >= all * 9);
		tear_down();
	}
}

/* Which of these two clients began more of the requests first .. first + n - 1, by their first tokens. */
static int begun_by(int client, int first, int n)
{
	int begun = 0, his = 0;

	for (int i = 0; i < w.n_heard; i++) {
		const struct heard *h = &w.heard[i];

		if (h->e.position != 20)         /* where each prompt here ends */
			continue;
		his += begun >= first && begun < first + n && h->client == &w.c[client];
		begun++;
	}
	assert_true(begun >= first + n);
	return his;
}

static void ask_many(int client, uint64_t tenant, int32_t priority, int n, int32_t answer)
{
	static uint64_t user_data;
	struct sched_request q = request(0, 20, answer);

	q.priority = priority;
	for (; n > 0; n--) {
		q.user_data = ++user_data;
		assert_int_equal(sched_admit(w.s, &w.c[client], tenant, &q, w.now), 0);
	}
}

/* Tokens computed while no other waited are no debt: once another comes, they take turns. */
static void test_alone(void **state)
{
	(void)state;
	for (uint64_t tenants = 0; tenants < 2; tenants++) { /* two clients of one user, or of two */
		set_up();
		assert_int_equal(try_open(), 0);
		ask_many(0, 0, 0, 9, 100);
		while (w.n_heard < 8 * 98)
			step();
		ask_many(0, 0, 0, 16, 10);
		ask_many(1, tenants, 0, 16, 10);
		until_idle();
		assert_in_range(begun_by(1, 8, 16), 7, 9);
		tear_down();
	}
}

/* Credit is not saved up: a tenant that waited long behind better priorities does not shut out later ones. */
static void test_credit(void **state)
{
	(void)state;
	set_up();
	w.cfg.limits.slots = w.cfg.knobs.max_seqs = 1;
	w.cfg.knobs.queue_requests = 200;
	w.cfg.knobs.queue_tokens = 10000;
	assert_int_equal(try_open(), 0);
	ask_many(2, 0, 1, 16, 10);
	for (int i = 0; i < 20; i++) {
		ask_many(0, 0, 0, 1, 10);
		ask_many(1, 0, 0, 1, 10);
	}
	for (step(); w.st.waiting > 16; )
		step();
	ask_many(3, 0, 1, 16, 10);
	until_idle();
	assert_in_range(begun_by(3, 40, 16), 6, 9);
	tear_down();
}

/* Beside a client that keeps the queue full with a better priority, others are still served: one place of
 * eight goes to a request that waited long, tenants in turn.  Each case: which client has the worse priority. */
static void test_ageing(void **state)
{
	static const struct {
		const char *name;
		bool fcfs;
		uint64_t tenant;
		int32_t priority, each;        /* number at a time */
		int low, high;
	} cases[] = {
		{ "another tenant",            false, 1, 0,     1,  11, 16 }, /* each after 20 us, of a place a us */
		{ "the same one",              false, 0, 0,     1,  11, 16 },
		{ "with a backlog",            false, 1, 0,     20, 30, 36 },
		{ "of the same priority",      false, 1, -1000, 20, 120, 160 }, /* equal: tenants share */
		{ "no priorities",             true,  1, 0,     20, 120, 160 },
	};

	(void)state;
	for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
		uint64_t user_data = 1;
		int32_t live[2] = { 0 };
		int served[2] = { 0 };

		set_up();
		w.cfg.limits.slots = w.cfg.knobs.max_seqs = 1;
		w.cfg.knobs.fcfs = cases[k].fcfs;
		w.cfg.age_ns = 20000;
		assert_int_equal(try_open(), 0);
		while (served[0] + served[1] < 300) {
			for (int c = 0; c < 2; c++)
				for (int32_t most = c ? cases[k].each : 20; live[c] < most; live[c]++) {
					struct sched_request q = request(user_data++, 20, 1);

					q.priority = c ? cases[k].priority : -1000;
					assert_int_equal(sched_admit(w.s, &w.c[c], c ? cases[k].tenant : 0, &q,
								     w.now), 0);
				}
			step();
			for (int i = 0; i < w.n_heard; i++) {
				int c = (int)(w.heard[i].client - w.c);

				served[c] += w.heard[i].e.kind == SCHED_END;
				live[c] -= w.heard[i].e.kind == SCHED_END;
				w.c[c].room = 100000;
			}
			w.n_heard = 0;
		}
		print_message("  %s: %d of 300\n", cases[k].name, served[1]);
		assert_in_range(served[1], cases[k].low, cases[k].high);
		tear_down();
	}
}

/* 500 prompts of one client fit the default queue at once, and others are still admitted. */
static void test_queue(void **state)
{
	int n = 0;

	(void)state;
	set_up();
	w.cfg.knobs.queue_requests = 4096;
	w.cfg.knobs.queue_tokens = 1 << 20;
	w.cfg.ids_max = 1 << 21;
	assert_int_equal(try_open(), 0);
	while (!sched_full(w.s, &w.c[0], 0, 500, 0)) {
		struct sched_request q = request((uint64_t)n++, 500, 1);

		assert_int_equal(sched_admit(w.s, &w.c[0], 0, &q, w.now), 0);
	}
	assert_in_range(n, (1 << 20) / 500 * 75 / 100, (1 << 20) / 500);
	for (int c = 1; c < CLIENTS; c++) {             /* of the same user, and of others */
		struct sched_request q = request(1, 500, 1);

		for (uint64_t u = 0; u < 3; u++, q.user_data++) {
			uint64_t tenant = c < 5 ? 0 : (uint64_t)c % 2 + 1;

			assert_false(sched_full(w.s, &w.c[c], tenant, 500, 0));
			assert_int_equal(sched_admit(w.s, &w.c[c], tenant, &q, w.now), 0);
		}
	}
	sched_check(w.s);
	tear_down();
}

/* ---- room ------------------------------------------------------------------------------------------- */

/* What is admitted beside a first prompt: a prompt needs all its blocks, or with first_chunk those of one
 * chunk.  A step that preempted admits none. */
static void test_first_chunk(void **state)
{
	static const struct {
		bool    first_chunk;
		int32_t n_blocks, batch_tokens, chunk_max, first, steps, second, running;
		bool    preempted;
	} cases[] = {
		{ false, 16, 128, 16, 160, 0, 160, 1, false }, /* 10 blocks each */
		{ true,  16, 128, 16, 160, 0, 160, 2, true },
		{ false, 16, 128, 128, 160, 4, 80, 2, true },  /* exactly what is left */
		{ false, 16, 128, 128, 160, 4, 81, 1, false }, /* one more */
		{ false, 20, 128, 128, 160, 1, 160, 2, true }, /* all but the blocks of answers */
		{ false, 20, 128, 16, 160, 0, 160, 2, true },  /* blocks that the first one still needs are not free */
		{ false, 19, 128, 16, 160, 0, 160, 1, false },
		{ true,  16, 64, 128, 215, 5, 160, 1, false }, /* a chunk is what the batch holds: 4 blocks of 2 left */
		{ true,  16, 32, 128, 215, 9, 160, 2, true },
		{ true,  16, 64, 128, 215, 5, 20, 2, true },   /* and not more than the prompt */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t before = 0;

		set_up();
		w.cfg.limits.n_blocks = cases[i].n_blocks;
		w.cfg.limits.seq_blocks = 16;
		w.cfg.context = 256;
		w.cfg.knobs.batch_tokens = cases[i].batch_tokens;
		w.cfg.knobs.chunk_max = cases[i].chunk_max;
		w.cfg.knobs.first_chunk = cases[i].first_chunk;
		assert_int_equal(try_open(), 0);
		ask(0, 1, cases[i].first, 20);
		for (int k = 0; k < cases[i].steps; k++)
			step();
		ask(0, 2, cases[i].second, 20);
		step();
		if (w.st.running != cases[i].running)
			fail_msg("case %zu: %d run", i, w.st.running);
		while (sched_busy(w.s)) {
			step();
			if (w.n.preemptions > before)
				assert_true(w.st.preempted > 0 && w.st.why == WHY_KV);
			before = w.n.preemptions;
		}
		assert_int_equal(tokens_of(1), 20);
		assert_int_equal(tokens_of(2), 20);
		if ((w.n.preemptions > 0) != cases[i].preempted)
			fail_msg("case %zu: %ju preempted", i, (uintmax_t)w.n.preemptions);
		tear_down();
	}
}

/* Room for the ids of two of the longest sequences, one of them the oldest's: fewer start than there are slots,
 * and while the oldest runs no other grows beyond its first chunks.  Each reaches its end. */
static void test_ids(void **state)
{
	static const struct { int64_t text; int32_t running; } cases[] = {
		{ 0, 5 },                               /* 2 chunks each, of 20; 10 are kept for the first */
		{ 4000 + 6 * KV_CHUNK, 6 },             /* of 22: 2 for each slot, and those not of the queue */
	};

	(void)state;
	for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
		set_up();
		w.cfg.ids_max = cases[k].text;
		assert_int_equal(try_open(), 0);
		for (uint64_t i = 0; i < 8; i++)
			ask(0, i, 20, 200);
		step();
		step();
		assert_int_equal(w.st.running, cases[k].running);
		while (!end_of(0))
			step();
		for (uint64_t i = 1; i < 8; i++)
			assert_in_range(tokens_of(i), i < (uint64_t)cases[k].running ? 44 : 0,
					i < (uint64_t)cases[k].running ? 46 : 0);
		until_idle();
		for (uint64_t i = 0; i < 8; i++)
			assert_int_equal(tokens_of(i), 200);
		tear_down();
	}
}

static int32_t text_of(int text, int32_t i)
{
	return (text * 37 + i * (text + 3)) % VOCAB;
}

static void serve(int client, uint64_t user_data, int text, int32_t n_prompt)
{
	struct sched_request q = request(user_data, n_prompt, 8);

	for (int32_t i = 0; i < n_prompt; i++)
		ids[i] = text_of(text, i);
	q.no_cache = false;
	while (sched_full(w.s, &w.c[client], (uint64_t)client, n_prompt, 0))
		step();
	assert_int_equal(admit(client, &q), 0);
}

/* One tenant sends long prompts without end.  The other asks only now and then, and its system prompt
 * stays cached up to its floor: 8 blocks of 64. */
static void test_floor(void **state)
{
	static const struct { const char *name; int32_t prompt, cached; int tenant, floods; } cases[] = {
		{ "a flood by another tenant", 8 * B + 1, 8 * B, 1, 20 },
		{ "a flood by its own",        8 * B + 1, 0,     0, 20 },
		{ "of 24 blocks the first 8",  24 * B + 1, 8 * B, 1, 20 },
		{ "a flood that does not end", 8 * B + 1, 0,     1, 60 },
	};

	(void)state;
	for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
		uint64_t u = 10;

		set_up();
		assert_int_equal(try_open(), 0);
		serve(0, 1, 0, cases[k].prompt);
		until_idle();
		for (int i = 0; i < cases[k].floods; i++) {
			serve(cases[k].tenant, u++, 1 + i % 30, 300);
			serve(cases[k].tenant, u++, 31 + i % 30, 200);
			step();
			step();
		}
		until_idle();
		serve(0, 2, 0, cases[k].prompt);
		until_idle();
		print_message("  %s\n", cases[k].name);
		assert_int_equal(end_of(2)->cached, cases[k].cached);
		tear_down();
	}
}

/* Running sequences that grow do not take a floor either: the youngest of their tenant is preempted. */
static void test_floor_beside_growth(void **state)
{
	(void)state;
	set_up();
	assert_int_equal(try_open(), 0);
	serve(0, 1, 0, 8 * B + 1);
	until_idle();
	for (uint64_t u = 10; u < 18; u++)
		ask(1, u, 20, 200);                     /* 14 blocks each, of 64 */
	until_idle();
	assert_true(w.n.preemptions > 0);
	assert_int_equal(end_of(10)->preempted, 0);
	serve(0, 2, 0, 8 * B + 1);
	until_idle();
	assert_in_range(end_of(2)->cached, 6 * B, 8 * B); /* less what the oldest needed */
	tear_down();
}

/* Floors do not block the oldest sequence: if it needs every block, it gets them. */
static void test_floor_gives_way(void **state)
{
	(void)state;
	set_up();
	w.cfg.limits.n_blocks = 32;
	assert_int_equal(try_open(), 0);
	serve(1, 1, 0, 4 * B + 1);
	until_idle();
	assert_int_equal(kv_kept(w.kv, 1), 4);         /* kept from the next tenant */
	ask(0, 2, 440, 72);
	until_idle();
	assert_int_equal(end_of(2)->finish, SCHED_LENGTH);
	assert_int_equal(end_of(2)->preempted, 0);
	assert_int_equal(kv_kept(w.kv, 1), 0);
	tear_down();
}

/* ---- time ---------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Six streams, and long prompts one after the other: 400 tokens of 100 us, on a device that takes
 * 2 ms for any batch.  The streams' tokens come within the target; the prompts get the rest. */
static void test_delay(void **state)
{
	static const struct { double target_ms; int32_t depth; double p50, p99, most; } cases[] = {
		{ 0,  1, 2.0, 45, 50 },         /* no target: a prompt of 400 tokens delays by its whole time */
		{ 10, 1, 10,  10.2, 12 },
		{ 10, 2, 10,  10.2, 12 },
		{ 5,  2, 5,   5.2,  6 },
	};
	static double gap[60000];

	(void)state;
	for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
		uint64_t last[8] = { 0 }, u = 100;
		int n = 0, prompts = 0;

		set_up();
		w.cfg.limits.tokens = w.cfg.knobs.batch_tokens = w.cfg.knobs.chunk_max = 512;
		w.cfg.limits.n_blocks = 400;
		w.cfg.knobs.step_ns = (uint32_t)(cases[k].target_ms * 1e6);
		sr_null_depth(cases[k].depth);
		sr_null_pace(2000, 100);
		assert_int_equal(try_open(), 0);
		for (uint64_t i = 0; i < 6; i++)
			ask(0, i, 10, 300);
		for (bool over = false; !over; ) {
			w.now += 20000;                 /* 50 turns a millisecond */
			assert_true(sched_step(w.s, w.now) >= 0);
			for (int j = 0; j < w.n_heard; j++) {
				const struct sched_event *e = &w.heard[j].e;

				if (e->user_data < 6 && e->kind == SCHED_TOKEN && last[e->user_data] && e->position > 60)
					gap[n++] = (double)(w.now - last[e->user_data]) / 1e6;
				if (e->user_data < 6)
					last[e->user_data] = w.now;
				else
					prompts += e->kind == SCHED_END;
				over |= e->kind == SCHED_END && e->user_data == 0;
			}
			w.n_heard = 0;
			sched_stats(w.s, &w.st);
			if (w.st.running + w.st.waiting < 7 && last[0])
				ask(1, u++, 400, 1);
		}
		qsort(gap, (size_t)n, sizeof(gap[0]), by_value);
		print_message("  target %4.0f ms, depth %d: %d prompts; between tokens p50 %.1f, p99 %.1f, most "
			      "%.1f ms\n", cases[k].target_ms, cases[k].depth, prompts, gap[n / 2],
			      gap[n * 99 / 100], gap[n - 1]);
		assert_true(n > 1000 && prompts > 5);
		if (cases[k].target_ms > 0) {
			assert_true(gap[n / 2] <= cases[k].p50 + 0.1);
			assert_true(gap[n * 99 / 100] <= cases[k].p99 && gap[n - 1] <= cases[k].most);
		} else {
			assert_true(gap[n - 1] >= 40);
		}
		tear_down();
	}
}

/* A device of 2 ms per batch and 0.25 ms per copied block. */
static uint64_t ready_at[8], last_ready;
static int64_t n_copied;
static int32_t most_copied;

static int launch_with_copies(struct sr_backend *b, int32_t i)
{
	int32_t n = w.ops.batch(b, i)->n_copies;

	last_ready = (last_ready > w.now ? last_ready : w.now) + 2000000 + (uint64_t)n * 250000;
	ready_at[i] = last_ready;
	n_copied += n;
	most_copied = n > most_copied ? n : most_copied;
	return sr_null_ops()->launch(b, i);
}

static int poll_with_copies(struct sr_backend *b, int32_t i)
{
	return w.now < ready_at[i] ? 0 : sr_null_ops()->poll(b, i);
}

/* Six streams, and endless prompts whose blocks are all on the host.  Copies per batch are bounded, so they
 * delay a token by that bound and not by a whole prompt's copies. */
static void test_copies(void **state)
{
	static const struct { int32_t copies, depth; double most; } cases[] = {
		{ 4,  1, 3 },
		{ 4,  2, 3 },
		{ 64, 1, 18 },                  /* practically no bound, for comparison */
	};

	(void)state;
	for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
		uint64_t last[8] = { 0 }, u = 100;
		double most = 0;
		int prompts = 0;

		set_up();
		w.cfg.limits.tokens = w.cfg.knobs.batch_tokens = w.cfg.knobs.chunk_max = 512;
		w.cfg.limits.n_blocks = 200;
		w.cfg.limits.n_host_blocks = 400;
		w.cfg.limits.copies = w.cfg.knobs.copies = cases[k].copies;
		sr_null_depth(cases[k].depth);
		assert_int_equal(try_open(), 0);
		w.ops.launch = launch_with_copies;
		w.ops.poll = poll_with_copies;
		last_ready = 0;
		n_copied = most_copied = 0;
		for (uint64_t i = 0; i < 6; i++)
			ask(0, i, 10, 480);
		for (bool over = false; !over; ) {
			w.now += 20000;
			assert_true(sched_step(w.s, w.now) >= 0);
			for (int j = 0; j < w.n_heard; j++) {
				const struct sched_event *e = &w.heard[j].e;

				if (e->user_data < 6 && last[e->user_data]) {
					double ms = (double)(w.now - last[e->user_data]) / 1e6;

					most = ms > most ? ms : most;
				}
				if (e->user_data < 6)
					last[e->user_data] = w.now;
				else
					prompts += e->kind == SCHED_END;
				over |= e->kind == SCHED_END && e->user_data == 0;
			}
			w.n_heard = 0;
			w.c[0].room = w.c[1].room = 100000;
			sched_stats(w.s, &w.st);
			if (w.st.running + w.st.waiting < 8 && last[0]) {
				serve(1, u, (int)(u % 12), 400);
				u++;
			}
		}
		sched_check(w.s);
		print_message("  %d copies a batch, depth %d: %d prompts, %jd copies; most between tokens %.1f ms\n",
			      cases[k].copies, cases[k].depth, prompts, (intmax_t)n_copied, most);
		assert_true(prompts > 20 && n_copied > 500 && most_copied <= cases[k].copies);
		if (cases[k].copies < 10)
			assert_true(most_copied == cases[k].copies && most <= cases[k].most + 0.1);
		else
			assert_true(most > 6 && most <= cases[k].most + 0.1);
		for (int c = 0; c < 2; c++)
			sched_forget(w.s, &w.c[c]);
		for (int i = 0; sched_busy(w.s); i++) {
			assert_true(i < 5000);
			w.now += 1000000;
			assert_true(sched_step(w.s, w.now) >= 0);
		}
		tear_down();
	}
}

/* A slow reader has all slots: waiting requests get them, and the reader's wait until there is room, and
 * lose nothing. */
static void test_full_ring_gives_way(void **state)
{
	(void)state;
	set_up();
	w.cfg.blocked_ns = 5000;
	assert_int_equal(try_open(), 0);
	w.c[0].room = 40;
	for (uint64_t i = 0; i < 8; i++)
		ask(0, i, 20, 100);
	for (int i = 0; i < 40; i++)
		step();
	assert_int_equal(w.st.running, 8);      /* none wants their slots */
	assert_int_equal(w.st.why, WHY_RING_OUT);
	for (uint64_t i = 100; i < 120; i++) {
		ask(1, i, 20, 4);
		for (int n = 0; !end_of(i); n++) {
			w.c[0].room += n == 3;  /* a record now and then */
			assert_true(n < 20);
			step();
		}
	}
	assert_true(w.st.preempted == 0 && w.n.preemptions >= 8);
	for (uint64_t i = 0; i < 8; i++)
		assert_null(end_of(i));
	w.c[0].room += 10000;
	until_idle();
	for (uint64_t i = 0; i < 8; i++)
		assert_true(end_of(i) && end_of(i)->finish == SCHED_LENGTH && tokens_of(i) == 100);
	tear_down();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_full_ring_gives_way),
		cmocka_unit_test(test_follow), cmocka_unit_test(test_follow_and_strangers),
		cmocka_unit_test(test_shares), cmocka_unit_test(test_alone),
		cmocka_unit_test(test_credit), cmocka_unit_test(test_ageing), cmocka_unit_test(test_queue), cmocka_unit_test(test_ids),
		cmocka_unit_test(test_first_chunk), cmocka_unit_test(test_floor),
		cmocka_unit_test(test_floor_gives_way), cmocka_unit_test(test_floor_beside_growth), cmocka_unit_test(test_delay),
		cmocka_unit_test(test_copies),
	};

	return cmocka_run_group_tests_name("sched_share", tests, NULL, NULL);
}
