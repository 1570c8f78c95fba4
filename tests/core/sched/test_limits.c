/* LINK: @sched @null -lxxhash */
/* test_limits.c - for each limit on each axis, a load that meets this limit nearly all the time: nine
 * tenths of the time must be counted for it, and each axis must add up to the whole time exactly. */
#include "tests/rig/sched_world.h"

#define STEPS 2000

static uint64_t next_id;

/* Keep n requests waiting; forget earlier events. */
static void keep_waiting(int client, int n, int32_t n_prompt, int32_t max_tokens)
{
	w.n_heard = 0;
	w.c[client].room = 100000;
	while (w.st.waiting < n && !sched_full(w.s, &w.c[client], (uint64_t)client, n_prompt, 0)) {
		ask(client, ++next_id, n_prompt, max_tokens);
		sched_stats(w.s, &w.st);
	}
}

/* ---- why no more rows -------------------------------------------------------------------- */

static void nothing(void) { }

static void few_seqs(void) { w.cfg.knobs.max_seqs = 2; }
static void many_answers(void) { keep_waiting(0, 3, 8, 100); }

static void few_tokens(void) { w.cfg.knobs.batch_tokens = 16; }
static void many_prompts(void) { keep_waiting(0, 3, 200, 1); }

static void few_blocks(void) { w.cfg.knobs.headroom = 63; }

/* The running sequence has one or two blocks of 64, and 63 must stay free, so the next waits for blocks. */
static void long_answers(void) { keep_waiting(0, 2, 4, 12); }

/* Half the blocks are held for long; the first in the queue needs more than the other half. */
static void a_wide_one(void)
{
	if (w.st.running || w.st.waiting)
		return;
	w.n_heard = 0;
	w.c[0].room = 100000;
	ask(0, ++next_id, 200, 300);
	ask(0, ++next_id, 500, 1);
	sched_stats(w.s, &w.st);
}
static void half_the_blocks(void)
{
	w.cfg.limits.n_blocks = 34;
	w.cfg.limits.tokens = w.cfg.knobs.batch_tokens = w.cfg.knobs.chunk_max = 512;
}

/* A reader that takes nothing: its ring is full after a few tokens. */
static void small_ring(void) { w.c[0].room = 8; }
static void not_read(void)
{
	if (!w.st.running && !w.st.waiting)
		ask(0, ++next_id, 4, 100);
	sched_stats(w.s, &w.st);
}

/* A guided answer without guides. */
static void masks(void) { w.cfg.limits.masks = 2; }
static void not_guided(void)
{
	struct sched_request q = request(++next_id, 4, 100);

	q.guided = true;
	if (!w.st.running && !w.st.waiting)
		assert_int_equal(admit(0, &q), 0);
	sched_stats(w.s, &w.st);
}

/* 1 us and 1 us a token; prompts beside one that decodes are cut to 40 us. */
static void short_steps(void)
{
	sr_null_pace(1, 1);
	w.cfg.knobs.step_ns = 40000;
	w.cfg.limits.n_blocks = 400;
}
static void prompts_beside_answers(void)
{
	w.n_heard = 0;
	w.c[0].room = w.c[1].room = 100000;
	if (!w.st.running && !w.st.waiting)
		ask(1, ++next_id, 4, 500);
	keep_waiting(0, 1, 480, 1);
}

/* Two long prompts take turns; each pushes the other's blocks to the host, and one block comes
 * back per batch. */
static void two_tiers(void)
{
	w.cfg.context = IDS + 1;
	w.cfg.limits.seq_blocks = 64;
	w.cfg.limits.n_blocks = 66;
	w.cfg.limits.n_host_blocks = 200;
	w.cfg.limits.copies = w.cfg.knobs.copies = 2;
	w.cfg.limits.tokens = w.cfg.knobs.batch_tokens = w.cfg.knobs.chunk_max = 1024;
}
static void prefixes_from_the_host(void)
{
	int32_t longest = w.cfg.context <= IDS ? w.cfg.context - 1 : IDS;
	struct sched_request q;

	if (w.st.running || w.st.waiting)
		return;
	w.n_heard = 0;
	w.c[0].room = 100000;
	q = request(++next_id, longest, 1);
	q.no_cache = false;
	q.salt = next_id % 2;
	assert_int_equal(admit(0, &q), 0);
	sched_stats(w.s, &w.st);
}

/* ---- what bound the time ----------------------------------------------------------------- */

static void slow_device(void) { sr_null_pace(100, 0); }   /* 100 steps of ours */

static struct { uint32_t compute, memory, copy, ranks; } roofs;
static struct { double quota; uint32_t left_out_ns; } lack; /* share of the time; of a batch's 100 us */

static void no_quota(void) { slow_device(); lack.quota = 0.95; }
static void left_out(void) { slow_device(); lack.left_out_ns = 95000; }

static int poll_with_roofs(struct sr_backend *b, int32_t i)
{
	struct sr_batch *t = w.ops.batch(b, i);
	int r = sr_null_ops()->poll(b, i);

	t->compute_ns = roofs.compute;
	t->memory_ns = roofs.memory;
	t->copy_ns = roofs.copy;
	t->ranks_ns = roofs.ranks;
	t->cores_ns = lack.left_out_ns;
	t->int8_ops = 1, t->float_ops = 2, t->bytes = 3, t->copied = 4;
	return r;
}

static const struct load {
	const char *name;
	int why, bound;               /* -1: any */
	void (*shape)(void);          /* limits and knobs, before it is opened */
	void (*feed)(void);           /* before each step */
	int warm;                     /* steps that do not count yet */
	uint32_t compute, memory, copy, ranks; /* the device's roofs, and waits; all 0: its own */
} loads[] = {
	{ "nothing to do",          WHY_EMPTY, BOUND_IDLE, nothing, nothing, 1, 0, 0, 0, 0 },
	{ "all in the batch",       WHY_EMPTY, -1, nothing, prefixes_from_the_host, 1, 0, 0, 0, 0 },
	{ "max-num-seqs",           WHY_SEQS, -1, few_seqs, many_answers, 5, 0, 0, 0, 0 },
	{ "max-num-batched-tokens", WHY_TOKENS, -1, few_tokens, many_prompts, 5, 0, 0, 0, 0 },
	{ "no block",               WHY_KV, -1, few_blocks, long_answers, 5, 0, 0, 0, 0 },
	{ "does not fit",           WHY_ORDER, -1, half_the_blocks, a_wide_one, 5, 0, 0, 0, 0 },
	{ "slow reader",            WHY_RING_OUT, -1, small_ring, not_read, 20, 0, 0, 0, 0 },
	{ "no guide",               WHY_GUIDE, -1, masks, not_guided, 20, 0, 0, 0, 0 },
	{ "step time",              WHY_STEP_TIME, -1, short_steps, prompts_beside_answers, 200, 0, 0, 0, 0 },
	{ "blocks on the way",      WHY_PCIE, -1, two_tiers, prefixes_from_the_host, 200, 0, 0, 0, 0 },
	{ "we are slower",          -1, BOUND_HOST, nothing, many_answers, 5, 0, 0, 0, 0 },
	{ "arithmetic",             -1, BOUND_COMPUTE, slow_device, many_answers, 200, 90, 50, 0, 0 },
	{ "bandwidth",              -1, BOUND_MEMORY, slow_device, many_answers, 200, 50, 90, 0, 0 },
	{ "copies",                 -1, BOUND_PCIE, slow_device, many_answers, 200, 50, 50, 90, 0 },
	{ "ranks",                  -1, BOUND_RANKS, slow_device, many_answers, 200, 50, 50, 80, 90 },
	{ "others on its cores",    -1, BOUND_CORES, no_quota, many_answers, 200, 90, 50, 0, 0 },
	{ "threads left out",       -1, BOUND_CORES, left_out, many_answers, 200, 90, 50, 0, 0 },
};

static void check_share(const struct load *l, const char *axis, const uint64_t *ns, const uint64_t *before,
                        int n, int want, const char *(*name)(int), uint64_t time)
{
	uint64_t sum = 0;

	for (int i = 0; i < n; i++)
		sum += ns[i] - before[i];
	assert_int_equal(sum, time);
	if (want < 0 || (ns[want] - before[want]) * 10 >= time * 9)
		return;
	for (int i = 0; i < n; i++)
		print_message("  %-10s %5.1f %%\n", name(i),
		              100.0 * (double)(ns[i] - before[i]) / (double)time);
	fail_msg("%s: %s is not %s", l->name, axis, name(want));
}

static void test_loads(void **state)
{
	bool why[N_WHY] = { false }, bound[N_BOUND] = { false };

	(void)state;
	for (size_t c = 0; c < sizeof(loads) / sizeof(loads[0]); c++) {
		const struct load *l = &loads[c];
		struct counters before;
		uint64_t from;

		set_up();
		lack.quota = 0, lack.left_out_ns = 0;
		l->shape();
		assert_int_equal(try_open(), 0);
		roofs.compute = l->compute, roofs.memory = l->memory, roofs.copy = l->copy, roofs.ranks = l->ranks;
		sched_lack_cores(w.s, (double[N_CORES]){ [CORES_QUOTA] = lack.quota }, true);
		if (l->compute | l->memory | l->copy)
			w.ops.poll = poll_with_roofs;
		for (int i = 0; i < l->warm; i++) {
			l->feed();
			step();
		}
		before = w.n;
		from = w.now;
		for (int i = 0; i < STEPS; i++) {
			l->feed();
			step();
		}
		check_share(l, "the reason", w.n.why_ns, before.why_ns, N_WHY, l->why, sched_why_name,
		            w.now - from);
		check_share(l, "the bound", w.n.bound_ns, before.bound_ns, N_BOUND, l->bound,
		            sched_bound_name,
		            w.now - from);
		assert_int_equal(w.n.cores_ns[CORES_OTHERS] + w.n.cores_ns[CORES_QUOTA], w.n.bound_ns[BOUND_CORES]);
		assert_true(lack.quota > 0 ? !w.n.cores_ns[CORES_OTHERS] : !w.n.cores_ns[CORES_QUOTA]);
		if (w.ops.poll == poll_with_roofs) { /* the device's counts are added up, batch by batch */
			assert_true(w.n.int8_ops - before.int8_ops >= STEPS / 200);
			assert_true(w.n.float_ops == 2 * w.n.int8_ops && w.n.bytes_moved == 3 * w.n.int8_ops);
			assert_true(w.n.bytes_copied == 4 * w.n.int8_ops);
		}
		for (int i = 0; i < 4; i++)
			sched_forget(w.s, &w.c[i]);
		until_idle();
		tear_down();
		if (l->why >= 0)
			why[l->why] = true;
		if (l->bound >= 0)
			bound[l->bound] = true;
	}
	for (int i = 0; i < N_WHY; i++)          /* none is left out */
		assert_true(why[i]);
	for (int i = 0; i < N_BOUND; i++)
		assert_true(bound[i]);
}

/* If a step meets several limits, the last one counts, in the order of a step; see
 * docs/scheduler.md. */
static void test_precedence(void **state)
{
	(void)state;
	set_up();
	w.cfg.knobs.max_seqs = 2;
	assert_int_equal(try_open(), 0);
	w.c[0].room = 6;
	ask(0, 1, 4, 50);                        /* its ring will be full */
	ask(1, 2, 4, 50);
	for (int i = 0; i < 10; i++)
		step();
	assert_int_equal(w.st.last.why, WHY_RING_OUT); /* none waits: the blocked row counts */
	ask(1, 3, 4, 50);
	step();
	step();
	assert_int_equal(w.st.last.why, WHY_SEQS);     /* one waits: why it is not admitted */
	sched_forget(w.s, &w.c[0]);
	sched_forget(w.s, &w.c[1]);
	until_idle();
	tear_down();
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_loads), cmocka_unit_test(test_precedence) };

	/* Helpers of sched_world.h that this test does not use. */
	(void)end_of;
	(void)tokens_of;
	return cmocka_run_group_tests_name("limits", tests, NULL, NULL);
}
