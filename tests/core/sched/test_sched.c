/* LINK: @sched @null -lxxhash -Wl,--wrap=calloc,--wrap=aligned_alloc */
/* test_sched.c - the scheduler's rules, one by one: what is refused, what a batch holds, which request is
 * next, and which has room.  test_sched_ends.c has the ways to end; test_sim.c plays all of it together,
 * in any order. */
#include "tests/rig/sched_world.h"

/* Contents of the batch just launched, seen when it is reaped, one step later. */
static void step_tokens(int32_t rows, int32_t tokens, enum sched_why why)
{
	step();
	assert_int_equal(w.st.last.rows, rows);
	assert_int_equal(w.st.last.tokens, tokens);
	assert_int_equal(w.st.last.why, why);
}

/* ---- what is refused -------------------------------------------------------------------------------- */

static void test_create(void **state)
{
	struct { size_t at; int32_t value; int want; } cases[] = {
#define CASE(field, value, want) { offsetof(struct sched_config, field), value, want }
		CASE(context, 512, 0),                   CASE(context, 514, -EINVAL),
		CASE(context, 0, -EINVAL),               CASE(tenants, 0, -EINVAL),
		CASE(limits.rows, 7, -EINVAL),
		CASE(limits.slots, 7, -EINVAL),          CASE(limits.tokens, 127, -EINVAL),
		CASE(limits.cmds, 23, -EINVAL),          CASE(limits.cmds, 24, 0),
		CASE(limits.words, 55, -EINVAL),         CASE(limits.words, 56, 0),
		CASE(limits.n_blocks, 31, -EINVAL),      CASE(knobs.max_seqs, 0, -EINVAL),
		CASE(knobs.batch_tokens, 7, -EINVAL),    CASE(knobs.chunk_max, 0, -EINVAL),
		CASE(knobs.queue_requests, 0, -EINVAL),  CASE(knobs.quantum, 0, -EINVAL),
		CASE(knobs.copies, 1, -EINVAL),          CASE(knobs.copies, -1, -EINVAL),
		CASE(knobs.headroom, -1, -EINVAL),       CASE(knobs.headroom, 1, 0),
		CASE(limits.seq_blocks, 31, -EINVAL),    CASE(context, 513, 0), /* the last token needs no block */
#undef CASE
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		set_up();
		memcpy((char *)&w.cfg + cases[i].at, &cases[i].value, sizeof(int32_t));
		if (try_open() != cases[i].want)
			fail_msg("case %zu", i);
		tear_down();
	}
}

/* A token takes at least one record, and alternatives never make it fewer. */
static void test_create_costs(void **state)
{
	static const struct { int32_t n, cost; int want; } cases[] = {
		{ 0, 0, -EINVAL }, { 0, 1, 0 }, { 0, 2, -EINVAL }, { 4, 0, -EINVAL }, { 4, 2, 0 }, { 4, 3, -EINVAL },
		{ SR_TOP_MAX, 3, -EINVAL }, { SR_TOP_MAX, 5, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct sched_port p = port();
		struct sched *s = NULL;
		int e;

		set_up();
		assert_int_equal(try_open(), 0);
		p.cost[cases[i].n] = (uint8_t)cases[i].cost;
		e = sched_create(&s, &w.cfg, w.kv, &w.ops, w.b, &p);
		if (e != cases[i].want)
			fail_msg("case %zu: %d", i, e);
		sched_destroy(s);
		tear_down();
	}
}

/* The longest sequence may hold all blocks of the pool. */
static void test_create_exact(void **state)
{
	(void)state;
	for (int32_t context = 513; context <= 514; context++) {
		set_up();
		w.cfg.context = context;
		w.cfg.limits.n_blocks = 32;
		w.cfg.limits.seq_blocks = 40;
		assert_int_equal(try_open(), context == 513 ? 0 : -EINVAL);
		tear_down();
	}
}

/* Sizes near 64 bits. */
static void test_create_wide(void **state)
{
	static const struct { int64_t queue, text; int want; } cases[] = {
		{ 4000, 20000, 0 }, { 0, 20000, -EINVAL }, { 4000, -1, -EINVAL },
		{ 1, 0, 0 },                             /* still room for the longest one */
		{ 4000, INT64_MAX / 4, -ENOMEM }, { INT64_MAX / 4, 0, -ENOMEM }, /* more chunks than can be counted */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		set_up();
		w.cfg.knobs.queue_tokens = cases[i].queue;
		w.cfg.ids_max = cases[i].text;
		if (try_open() != cases[i].want)
			fail_msg("case %zu", i);
		tear_down();
	}
}

/* The n-th allocation from here fails. */
static int allocations, fail_at;

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size)
{
	return ++allocations == fail_at ? NULL : __real_calloc(n, size);
}

void *__real_aligned_alloc(size_t align, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size)
{
	return ++allocations == fail_at ? NULL : __real_aligned_alloc(align, size);
}

/* Whichever fails, nothing leaks (AddressSanitizer checks) and the next try works. */
static void test_no_memory(void **state)
{
	const struct sched_port p = port();
	struct sched *s;
	int n;

	(void)state;
	set_up();
	assert_int_equal(try_open(), 0);
	allocations = 0;
	assert_int_equal(sched_create(&s, &w.cfg, w.kv, &w.ops, w.b, &p), 0);
	sched_destroy(s);
	n = allocations;
	assert_true(n > 10);
	for (int i = 1; i <= n; i++) {
		allocations = 0;
		fail_at = i;
		if (sched_create(&s, &w.cfg, w.kv, &w.ops, w.b, &p) != -ENOMEM)
			fail_msg("allocation %d", i);
	}
	fail_at = 0;
	assert_int_equal(sched_create(&s, &w.cfg, w.kv, &w.ops, w.b, &p), 0);
	sched_destroy(s);
	tear_down();
}

static void test_words(void **state)
{
	(void)state;
	for (int i = 0; i < N_WHY; i++)
		for (int k = 0; k < i; k++)
			assert_string_not_equal(sched_why_name(i), sched_why_name(k));
	for (int i = 0; i < N_BOUND; i++)
		for (int k = 0; k < i; k++)
			assert_string_not_equal(sched_bound_name(i), sched_bound_name(k));
	assert_string_equal(sched_why_name(N_WHY), "?");     /* from a newer stats page, for example */
	assert_string_equal(sched_why_name(-1), "?");
	assert_string_equal(sched_bound_name(N_BOUND), "?");
	assert_string_equal(sched_bound_name(-1), "?");
}

static void test_set(void **state)
{
	struct sched_knobs k;

	(void)state;
	set_up();
	assert_int_equal(try_open(), 0);
	k = w.cfg.knobs;
	k.max_seqs = 1;
	k.batch_tokens = 16;
	assert_int_equal(sched_set(w.s, &k), 0);
	k.max_seqs = 17;
	assert_int_equal(sched_set(w.s, &k), -ERANGE);
	k.max_seqs = 1;
	k.batch_tokens = 129;
	assert_int_equal(sched_set(w.s, &k), -ERANGE);
	k = w.cfg.knobs;
	k.queue_requests++;
	assert_int_equal(sched_set(w.s, &k), -ERANGE);
	k = w.cfg.knobs;
	k.queue_tokens++;
	assert_int_equal(sched_set(w.s, &k), -ERANGE);
	k = w.cfg.knobs;
	k.copies = w.cfg.limits.copies + 1;
	assert_int_equal(sched_set(w.s, &k), -ERANGE);
	k = w.cfg.knobs;
	k.quantum = 0;
	assert_int_equal(sched_set(w.s, &k), -ERANGE);
	tear_down();
}

/* Give it one list, of n words. */
static void with_list(struct sched_request *q, enum sr_list kind, const uint32_t *word, int32_t n)
{
	struct sr_null_request as = { .sampling = { .top_p = 1, .repetition = 1 } };

	as.list[kind] = word;
	as.n_list[kind] = n;
	begin(q, &as, 0);
}

static void test_admit(void **state)
{
	static uint32_t list[3000];
	struct sched_request q;
	int reserved;

	(void)state;
	set_up();
	w.cfg.cmd_words = 256;
	w.cfg.context = 200;
	assert_int_equal(try_open(), 0);
	ask(0, 1, 10, 5);
	q = request(1, 10, 5);
	assert_int_equal(admit(0, &q), -EEXIST);
	assert_int_equal(admit(1, &q), 0);              /* each client has its own names */
	q = request(2, 10, 5);
	with_list(&q, SR_LIST_BIAS, list, 3000);
	assert_int_equal(admit(0, &q), -E2BIG);         /* more words than any batch has */
	with_list(&q, SR_LIST_BIAS, list, 400);
	assert_int_equal(admit(0, &q), -E2BIG);         /* and than the pool of lists */
	with_list(&q, SR_LIST_BIAS, list, 128);
	assert_int_equal(admit(0, &q), 0);
	q.user_data = 3;
	assert_int_equal(admit(0, &q), -EAGAIN);        /* the other half is left for others */
	with_list(&q, SR_LIST_BIAS, list, 64);
	assert_int_equal(admit(0, &q), 0);
	q.user_data = 13;
	assert_int_equal(admit(0, &q), -EAGAIN);
	with_list(&q, SR_LIST_BIAS, list, 128);
	assert_int_equal(admit(1, &q), 0);
	w.c[2].room = 4;                                /* its end, and a token with 20 alternatives: 5 */
	q = request(4, 10, 5);
	reserved = w.n_reserved;
	assert_int_equal(admit(2, &q), -EAGAIN);
	assert_int_equal(w.n_reserved, reserved);       /* looking reserves nothing */
	w.c[2].room = 5;
	assert_int_equal(admit(2, &q), 0);
	assert_int_equal(w.c[2].reserved, 1);
	assert_int_equal(w.n_reserved, reserved + 1);
	sched_check(w.s);
	tear_down();
}

/* A request whose lists fill a batch to the last word is admitted and served, beside the most rows allowed. */
static void test_words_fit(void **state)
{
	static uint32_t list[100000];
	static const struct { int32_t n, history, more, want; } cases[] = {
		{ 500, 0, 0, 0 }, { 500, 0, -1, -E2BIG }, { 500, 1, 30, 0 }, { 500, 1, 29, -E2BIG },
		{ 66112, 0, 0, 0 },                     /* the default pool for lists: 65536 words and 8 for */
		{ 66200, 0, 0, -E2BIG },                /* each of 72 sequences, and a chunk */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct sched_request q;

		set_up();
		w.cfg.limits.words = (int32_t)(sizeof(struct sr_sampling) / 4) + cases[i].n + w.cfg.limits.seq_blocks +
				     w.cfg.limits.rows + cases[i].more;
		assert_int_equal(try_open(), 0);
		q = request(1, 20, 10);
		q.history = cases[i].history;
		with_list(&q, SR_LIST_BIAS, list, cases[i].n);
		if (admit(0, &q) != cases[i].want)
			fail_msg("case %zu", i);
		for (uint64_t u = 2; u < 9; u++)
			ask(0, u, 20, 10);
		until_idle();
		assert_int_equal(tokens_of(1), cases[i].want ? 0 : 10);
		tear_down();
	}
}

/* However many requests fill the queue, there is room for the longest prompt of another tenant. */
static void test_full_of_many(void **state)
{
	uint64_t u = 1;

	(void)state;
	set_up();
	w.cfg.knobs.queue_requests = 1000;
	w.cfg.tenants = 9;
	assert_int_equal(try_open(), 0);
	for (bool more = true; more; ) {
		more = false;
		for (int c = 0; c < 8; c++)
			if (!sched_full(w.s, &w.c[c], (uint64_t)c, 20, 0)) {
				ask(c, u++, 20, 1);
				more = true;
			}
	}
	assert_true(u > 100);
	assert_false(sched_full(w.s, &w.c[8], 8, w.cfg.context, 0));
	until_idle();
	tear_down();
}

static void test_full(void **state)
{
	(void)state;
	set_up();
	w.cfg.knobs.queue_requests = 8;
	w.cfg.knobs.queue_tokens = 1112;                            /* 512 of them for newcomers */
	w.cfg.tenants = 2;
	assert_int_equal(try_open(), 0);
	assert_false(sched_full(w.s, &w.c[0], 0, 5000, 0));         /* longer than the queue: admitted if it is empty */
	ask(0, 1, 200, 1);
	assert_false(sched_full(w.s, &w.c[0], 0, 347, 0));
	assert_true(sched_full(w.s, &w.c[0], 0, 348, 0));           /* more than eight times what it leaves */
	assert_false(sched_full(w.s, &w.c[2], 0, 375, 0));          /* to others of its tenant, */
	assert_true(sched_full(w.s, &w.c[2], 0, 376, 0));           /* or the tenant to other tenants */
	assert_false(sched_full(w.s, &w.c[1], 1, 912, 0));
	assert_true(sched_full(w.s, &w.c[1], 1, 913, 0));
	ask(1, 2, 10, 1);
	assert_true(sched_full(w.s, &w.c[2], 2, 1, 0));             /* no third tenant */
	for (uint64_t u = 3; u <= 7; u++)
		ask(0, u, 1, 1);
	assert_true(sched_full(w.s, &w.c[0], 0, 1, 0));             /* the last place is for a newcomer */
	assert_true(sched_full(w.s, &w.c[1], 1, 1, 0));
	until_idle();
	assert_false(sched_full(w.s, &w.c[2], 2, 1, 0));            /* entries of tenants are given back */
	tear_down();
}

/* ---- what a batch holds ----------------------------------------------------------------------------- */

static void test_one(void **state)
{
	struct sr_null_request as = { .sampling = { .top_p = 1, .repetition = 1 }, .n_prompt = 20,
				      .vocab = VOCAB };
	const struct sched_event *e;
	int32_t all[32];

	(void)state;
	set_up();
	assert_int_equal(try_open(), 0);
	ask(0, 7, 20, 3);
	until_idle();
	memcpy(all, ids, 20 * sizeof(int32_t));
	assert_int_equal(w.n_heard, 4);
	for (int i = 0; i < 3; i++) {
		e = &w.heard[i].e;
		assert_int_equal(e->kind, SCHED_TOKEN);
		assert_int_equal(e->last, i == 2 ? SCHED_LENGTH : 0);
		assert_int_equal(e->position, 20 + i);
		assert_int_equal(e->id, sr_null_next(&as, all, 20 + i));
		assert_int_equal(e->rank, 1);
		assert_true(e->logprob < 0 && e->logprob > -1);
		assert_int_equal(e->scheduled, i ? 0 : 2000); /* reported with the first token and the end */
		assert_int_equal(e->computed, i ? 0 : 20);
		all[20 + i] = e->id;
	}
	e = end_of(7);
	assert_ptr_equal(e, &w.heard[3].e);
	assert_int_equal(e->finish, SCHED_LENGTH);
	assert_int_equal(e->position, 23);
	assert_int_equal(e->scheduled, 2000);
	assert_int_equal(e->computed, 20);
	assert_int_equal(w.c[0].reserved, 0);
	assert_int_equal(w.c[0].room, 100000 - 4);      /* three tokens and the end */
	assert_int_equal(w.n.steps, 3);
	assert_int_equal(w.st.samples, 3);
	assert_int_equal(w.n.step_tokens, 22);
	tear_down();
}

static void test_chunks(void **state)
{
	(void)state;
	set_up();
	w.cfg.knobs.chunk_max = 40;
	assert_int_equal(try_open(), 0);
	ask(0, 1, 100, 2);
	step();
	step_tokens(1, 32, WHY_EMPTY);                  /* whole blocks of 40 */
	step_tokens(1, 32, WHY_EMPTY);
	step_tokens(1, 36, WHY_EMPTY);                  /* the last chunk is any length */
	step_tokens(1, 1, WHY_EMPTY);
	until_idle();
	assert_int_equal(tokens_of(1), 2);
	tear_down();
}

static void test_batch_tokens(void **state)
{
	(void)state;
	set_up();
	assert_int_equal(try_open(), 0);
	ask(0, 1, 100, 9);
	ask(0, 2, 100, 9);
	step();
	step_tokens(2, 116, WHY_TOKENS);                /* 100, and a whole block of the 28 left */
	step_tokens(2, 1 + 84, WHY_EMPTY);
	step_tokens(2, 2, WHY_EMPTY);
	until_idle();
	ask(0, 3, 128, 1);
	step();
	step_tokens(1, 128, WHY_EMPTY);                 /* it just fits: no limit met */
	tear_down();
}

static void test_max_seqs(void **state)
{
	struct sched_knobs k;

	(void)state;
	set_up();
	assert_int_equal(try_open(), 0);
	for (uint64_t i = 0; i < 6; i++)
		ask(0, i, 4, 20);
	k = w.cfg.knobs;
	k.max_seqs = 3;
	assert_int_equal(sched_set(w.s, &k), 0);
	step();
	step_tokens(3, 12, WHY_SEQS);
	assert_int_equal(w.st.running, 3);
	assert_int_equal(w.st.waiting, 3);
	assert_int_equal(w.st.waiting_tokens, 12);
	assert_int_equal(sched_set(w.s, &w.cfg.knobs), 0);
	step();
	step_tokens(6, 3 + 12, WHY_EMPTY);
	assert_int_equal(sched_set(w.s, &k), 0);
	step();
	ask(0, 6, 4, 20);
	step();
	assert_int_equal(w.st.why, WHY_SEQS);
	k.batch_tokens = 4;                             /* fewer than run: each in turn */
	assert_int_equal(sched_set(w.s, &k), 0);
	step();
	step_tokens(4, 4, WHY_SEQS);
	sched_cancel(w.s, &w.c[0], 6);
	step();
	step_tokens(4, 4, WHY_TOKENS);
	sched_forget(w.s, &w.c[0]);
	step();
	step();
	assert_int_equal(w.st.why, WHY_EMPTY);          /* no longer the limit of before */
	tear_down();
}

/* The sum of whys and the sum of bounds are the time, to the nanosecond. */
static void test_time_adds_up(void **state)
{
	uint64_t why = 0, bound = 0, from;

	(void)state;
	set_up();
	w.now = 1ull << 40;                             /* the clock does not begin at 0 */
	sr_null_pace(3, 0.1);
	assert_int_equal(try_open(), 0);
	step();
	from = w.now;
	for (int i = 0; i < 10; i++)
		step();
	ask(0, 1, 300, 30);
	for (int i = 0; i < 100; i++)
		step();
	for (int i = 0; i < N_WHY; i++)
		why += w.n.why_ns[i];
	for (int i = 0; i < N_BOUND; i++)
		bound += w.n.bound_ns[i];
	assert_int_equal(why, w.now - from);
	assert_int_equal(bound, w.now - from);
	assert_true(w.n.why_ns[WHY_TOKENS] > 0 && w.n.why_ns[WHY_EMPTY] > 0);
	assert_true(w.n.bound_ns[BOUND_IDLE] > 0 && w.n.bound_ns[BOUND_HOST] > 0);
	assert_true(w.st.last.device_ns >= 3000 && w.st.last.host_ns < 10000);
	tear_down();
}

/* On a device where prompts cost nothing, the target does not cut them. */
static void test_free_prompts(void **state)
{
	uint64_t seen;
	int chunks = 0;

	(void)state;
	set_up();
	w.cfg.limits.tokens = w.cfg.knobs.batch_tokens = w.cfg.knobs.chunk_max = 512;
	sr_null_pace(2, 0);
	w.cfg.knobs.step_ns = 10000;
	assert_int_equal(try_open(), 0);
	ask(0, 1, 10, 200);
	while (tokens_of(1) < 20)
		step();
	for (uint64_t u = 2; u < 6; u++) {              /* it learns from the first ones */
		ask(0, u, 400, 1);
		for (chunks = 0; !end_of(u); ) {
			seen = w.n.steps;
			step();
			chunks += w.n.steps > seen && w.st.last.tokens > 1;
		}
	}
	assert_int_equal(chunks, 1);
	tear_down();
}

/* Host time counts between batches while there is work, not while there is none. */
static void test_host_time(void **state)
{
	(void)state;
	set_up();
	w.now = 1ull << 40;
	assert_int_equal(try_open(), 0);
	for (uint64_t u = 1; u < 4; u++) {
		ask(0, u, 20, 3);
		step();
		step();
		assert_int_equal(w.st.last.host_ns, 0);
		step();
		assert_int_equal(w.st.last.host_ns, 1000); /* one step of the test's clock */
		until_idle();
		w.now += 1000000;
	}
	tear_down();
}

/* On a slow device a prompt leaves time to others; alone it takes all it can. */
static void test_step_time(void **state)
{
	struct sched_knobs k;

	(void)state;
	set_up();
	sr_null_pace(1, 1);                             /* 1 us and 1 us a token */
	w.cfg.knobs.step_ns = 40000;
	assert_int_equal(try_open(), 0);
	k = w.cfg.knobs;
	ask(0, 1, 120, 200);
	for (int i = 0; i < 300 && !tokens_of(1); i++)
		step();
	assert_int_equal(w.n.steps, 1);                /* 121 us, but it was alone */
	ask(0, 2, 400, 5);
	for (int i = 0; i < 3000 && !tokens_of(2); i++) {
		step();
		assert_true(w.n.steps == 1 || w.st.last.device_ns <= 45000);
		if (w.st.last.tokens > 1 && w.n.steps > 1)
			assert_true(w.st.last.tokens > B);   /* never starved */
	}
	assert_true(w.n.why_ns[WHY_STEP_TIME] > 0);
	assert_true(tokens_of(2) == 1 && tokens_of(1) > 10);
	until_idle();
	k.step_ns = 10000;                              /* alone it may take five times as long, and no longer */
	assert_int_equal(sched_set(w.s, &k), 0);
	ask(0, 3, 128, 1);
	step();
	step();
	while (w.st.last.tokens == 1 || !w.st.running)
		step();
	assert_in_range(w.st.last.tokens, B, 60);
	until_idle();
	tear_down();
}

/* A target that cannot be met: still a block at a time. */
static void test_step_time_too_short(void **state)
{
	(void)state;
	set_up();
	sr_null_pace(100, 1);
	w.cfg.knobs.step_ns = 1000;
	assert_int_equal(try_open(), 0);
	ask(0, 1, 16, 100);
	ask(0, 2, 160, 5);
	for (int i = 0; i < 3000 && !end_of(2); i++)
		step();
	assert_int_equal(end_of(2)->finish, SCHED_LENGTH);
	assert_int_equal(end_of(2)->computed, 160);
	tear_down();
}

/* ---- order and room --------------------------------------------------------------------------------- */

static void test_priority(void **state)
{
	static const struct { bool fcfs; uint64_t first, second, third; } cases[] = {
		{ false, 3, 1, 2 }, { true, 1, 2, 3 },
	};

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		set_up();
		w.cfg.knobs.fcfs = cases[i].fcfs;
		w.cfg.knobs.max_seqs = w.cfg.limits.slots = 1;
		assert_int_equal(try_open(), 0);
		for (uint64_t u = 1; u <= 3; u++) {
			struct sched_request q = request(u, 4, 1);

			q.priority = u == 3 ? -1 : 0;
			assert_int_equal(admit(0, &q), 0);
		}
		until_idle();
		assert_int_equal(w.heard[0].e.user_data, cases[i].first); /* a token and an end each */
		assert_int_equal(w.heard[2].e.user_data, cases[i].second);
		assert_int_equal(w.heard[4].e.user_data, cases[i].third);
		tear_down();
	}
}

/* The policy may change while requests wait: they keep their rank. */
static void test_policy_changes(void **state)
{
	static const uint64_t order[] = { 2, 3, 4, 1 };  /* priorities -7, 0, 0, 7 */
	struct sched_knobs k;

	(void)state;
	set_up();
	w.cfg.knobs.max_seqs = w.cfg.limits.slots = 1;
	assert_int_equal(try_open(), 0);
	k = w.cfg.knobs;
	for (uint64_t u = 1; u <= 4; u++) {
		struct sched_request q = request(u, 4, 1);

		k.fcfs = u > 2;
		assert_int_equal(sched_set(w.s, &k), 0);
		q.priority = u == 1 ? 7 : u == 2 ? -7 : u == 3 ? 1 : -1;
		assert_int_equal(admit(0, &q), 0);
	}
	until_idle();
	for (int i = 0; i < 4; i++)
		assert_int_equal(w.heard[2 * i].e.user_data, order[i]); /* a token and an end each */
	tear_down();
}

/* Two busy tenants get the same number of tokens, however long their requests are. */
static void test_fair(void **state)
{
	static const int32_t prompt[2] = { 100, 12 }, answer[2] = { 60, 10 };
	uint64_t user_data = 1, served[2] = { 0, 0 };

	(void)state;
	set_up();
	w.cfg.limits.n_blocks = 400;
	assert_int_equal(try_open(), 0);
	for (int n = 0; n < 20000; n++) {
		for (int c = 0; c < 2; c++)
			while (!sched_full(w.s, &w.c[c], (uint64_t)c, prompt[c], 0))
				ask(c, user_data++, prompt[c], answer[c]);
		step();
		for (int i = 0; i < w.n_heard; i++) {
			int c = w.heard[i].client == &w.c[1];

			served[c] += w.heard[i].e.kind == SCHED_END ? (uint64_t)prompt[c] : 1;
		}
		w.n_heard = 0;
		w.c[0].room = w.c[1].room = 100000;
	}
	assert_true(served[0] > 10000);
	assert_in_range(served[0] * 100 / served[1], 85, 115);
	tear_down();
}

/* Short of blocks, the youngest is preempted, keeps its ids and comes back.  No token changes, and each
 * preemption is counted. */
static void test_preempt(void **state)
{
	static const struct { int32_t n_blocks; uint64_t n; } cases[] = { { 16, 2 }, { 24, 3 } };

	(void)state;
	for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
		uint64_t youngest = cases[k].n, sum = 0;

		set_up();
		w.cfg.limits.n_blocks = cases[k].n_blocks;
		w.cfg.limits.seq_blocks = 16;
		w.cfg.context = 256;
		assert_int_equal(try_open(), 0);
		for (uint64_t u = 1; u <= youngest; u++)
			ask(0, u, 100, 100);
		until_idle();
		assert_int_equal(end_of(1)->preempted, 0);
		assert_true(end_of(youngest)->preempted >= 1);
		assert_true(end_of(youngest)->computed >= 200);
		for (uint64_t u = 1; u <= youngest; u++) {
			struct sr_null_request as = { .sampling = { .top_p = 1, .repetition = 1 },
						      .n_prompt = 100, .vocab = VOCAB };
			int32_t all[300];

			assert_true(u == 1 || end_of(u)->preempted >= end_of(u - 1)->preempted);
			sum += (uint64_t)end_of(u)->preempted;
			memcpy(all, ids, 100 * sizeof(int32_t));
			for (int i = 0, n = 100; i < w.n_heard; i++)
				if (w.heard[i].e.user_data == u && w.heard[i].e.kind == SCHED_TOKEN) {
					assert_int_equal(w.heard[i].e.id, sr_null_next(&as, all, n));
					all[n++] = w.heard[i].e.id;
				}
		}
		assert_int_equal(w.n.preemptions, sum);
		tear_down();
	}
}

/* A request is admitted only with blocks for all its ids, so long prompts do not thrash. */
static void test_admission_room(void **state)
{
	(void)state;
	set_up();
	w.cfg.limits.n_blocks = w.cfg.limits.seq_blocks = 16;
	w.cfg.context = 256;
	w.cfg.knobs.chunk_max = 16;
	assert_int_equal(try_open(), 0);
	ask(0, 1, 150, 20);
	ask(0, 2, 150, 20);
	step();
	step_tokens(1, 16, WHY_ORDER);
	until_idle();
	assert_int_equal(w.n.preemptions, 0);
	assert_int_equal(tokens_of(2), 20);
	tear_down();
}

static void test_slow_reader(void **state)
{
	(void)state;
	set_up();
	assert_int_equal(try_open(), 0);
	w.c[0].room = 8;
	ask(0, 1, 4, 50);
	ask(1, 2, 4, 50);
	for (int i = 0; i < 60; i++)
		step();
	assert_int_equal(tokens_of(1), 7);               /* one record is kept for its end */
	assert_int_equal(end_of(2)->finish, SCHED_LENGTH);
	assert_true(w.n.why_ns[WHY_RING_OUT] > 0);
	sched_cancel(w.s, &w.c[0], 1);                  /* needs no more room */
	assert_int_equal(end_of(1)->finish, -ECANCELED);
	assert_int_equal(w.c[0].room, 0);
	tear_down();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_create), cmocka_unit_test(test_create_costs),
		cmocka_unit_test(test_create_exact), cmocka_unit_test(test_create_wide),
		cmocka_unit_test(test_no_memory), cmocka_unit_test(test_words),
		cmocka_unit_test(test_set), cmocka_unit_test(test_admit),
		cmocka_unit_test(test_words_fit), cmocka_unit_test(test_full),
		cmocka_unit_test(test_full_of_many), cmocka_unit_test(test_one), cmocka_unit_test(test_chunks),
		cmocka_unit_test(test_batch_tokens), cmocka_unit_test(test_max_seqs),
		cmocka_unit_test(test_time_adds_up), cmocka_unit_test(test_host_time), cmocka_unit_test(test_free_prompts), cmocka_unit_test(test_step_time),
		cmocka_unit_test(test_step_time_too_short), cmocka_unit_test(test_priority),
		cmocka_unit_test(test_policy_changes),
		cmocka_unit_test(test_fair), cmocka_unit_test(test_preempt),
		cmocka_unit_test(test_admission_room), cmocka_unit_test(test_slow_reader),
	};

	return cmocka_run_group_tests_name("sched", tests, NULL, NULL);
}
