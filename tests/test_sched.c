/* LINK: core/kv.c core/sched.c core/sched_plan.c core/sched_queue.c core/sched_check.c kernels/null/null.c -lxxhash */
/* test_sched.c - the scheduler's rules, one by one, on the null device with a clock by hand.
 * (That they hold together in any order is test_sim.c's.) */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/sched.h"
#include "kernels/model.h"
#include "kernels/null/null.h"

#define VOCAB  97
#define EVENTS 4096
#define B      16

struct client { int32_t room, reserved; };       /* records */
struct heard { struct client *who; struct sched_event e; };

static struct {
	struct sched_config cfg;
	struct sched *s;
	struct kv *kv;
	struct sr_backend *b;
	struct sr_backend_ops ops;
	struct sched_stats st;
	uint64_t now;
	int      lost_after;                     /* polls, then the device is lost; 0 = never */
	struct client c[4];
	struct heard heard[EVENTS];
	int      n_heard;
} w;

static uint64_t hand_clock(void *ctx)
{
	(void)ctx;
	return w.now;
}

static uint32_t port_reserve(void *ctx, void *who, uint32_t least, uint32_t most)
{
	struct client *c = who;
	uint32_t room = (uint32_t)(c->room - c->reserved), n = room < most ? room : most;

	(void)ctx;
	if (n < least)
		return 0;
	c->reserved += (int32_t)n;
	return n;
}

static void port_release(void *ctx, void *who, uint32_t n)
{
	struct client *c = who;

	(void)ctx;
	c->reserved -= (int32_t)n;
	assert_true(c->reserved >= 0);
}

static int32_t cost(int32_t n_top)
{
	return 1 + (n_top > 4 ? (n_top - 4 + 5) / 6 : 0);
}

static void port_emit(void *ctx, void *who, const struct sched_event *e)
{
	struct client *c = who;
	int32_t n = (e->id >= 0 ? cost(e->n_top) : 0) + (e->finish != SCHED_MORE);

	(void)ctx;
	assert_true(w.n_heard < EVENTS);
	w.heard[w.n_heard++] = (struct heard){ c, *e };
	c->reserved -= n;
	c->room -= n;
	assert_true(c->reserved >= 0);
}

static int lossy_poll(struct sr_backend *b, int32_t i)
{
	if (w.lost_after && --w.lost_after == 0)
		return -EIO;
	return sr_null_ops()->poll(b, i);
}

static void set_up(void)
{
	memset(&w, 0, sizeof(w));
	w.now = 1000;
	for (int i = 0; i < 4; i++)
		w.c[i].room = 100000;
	w.cfg = (struct sched_config){
		.limits = { .block_tokens = B, .n_blocks = 64, .seq_blocks = 32, .slots = 8, .rows = 8,
			    .tokens = 128, .scores = 128, .cmds = 64, .words = 2000, },
		.knobs = { .max_seqs = 8, .batch_tokens = 128, .chunk_max = 128, .queue_requests = 64,
			   .queue_tokens = 4000, .quantum = 32 },
		.vocab = VOCAB, .context = 512, .tenants = 3, .text_tokens = 20000, .tops_here = 4,
		.tops_per_record = 6,
	};
	sr_null_depth(1);
	sr_null_pace(0, 0);
	sr_null_clock(hand_clock, NULL);
}

static int try_open(void)
{
	static const struct sched_port port = { NULL, port_reserve, port_release, port_emit };
	const struct sr_model model = { .V = VOCAB, .L = 1, .G = 1, .E = 8 };
	struct kv_config kc = { w.cfg.limits.n_blocks, 0, B, 0, { 3, 4 } };
	char err[200];
	int r;

	w.ops = *sr_null_ops();
	w.ops.poll = lossy_poll;
	assert_int_equal(kv_create(&w.kv, &kc), 0);
	assert_int_equal(w.ops.open(&w.b, &model, NULL, &w.cfg.limits, err, sizeof(err)), 0);
	r = sched_create(&w.s, &w.cfg, w.kv, &w.ops, w.b, &port);
	if (r < 0)
		w.s = NULL;
	return r;
}

static void tear_down(void)
{
	sched_destroy(w.s);
	kv_destroy(w.kv);
	w.ops.close(w.b);
}

static int32_t ids[600];

static struct sched_request request(uint64_t user_data, int32_t n_prompt, int32_t max_tokens)
{
	for (int32_t i = 0; i < 600; i++)
		ids[i] = (i * i + i / 7) % VOCAB;
	return (struct sched_request){ .user_data = user_data, .prompt = ids, .n_prompt = n_prompt,
				       .max_tokens = max_tokens,
				       .sampling = { .top_p = 1, .repetition = 1 }, .no_cache = true };
}

static int admit(int client, const struct sched_request *q)
{
	return sched_admit(w.s, &w.c[client], (uint64_t)client, q, w.now);
}

static void ask(int client, uint64_t user_data, int32_t n_prompt, int32_t max_tokens)
{
	struct sched_request q = request(user_data, n_prompt, max_tokens);

	assert_int_equal(admit(client, &q), 0);
}

static void step(void)
{
	w.now += 1000;
	assert_true(sched_step(w.s, w.now) >= 0);
	sched_check(w.s);
	sched_stats(w.s, &w.st);
}

/* What the batch just launched has, seen when it is reaped: so this is one step more. */
static void step_tokens(int32_t rows, int32_t tokens, enum sched_why why)
{
	step();
	assert_int_equal(w.st.last.rows, rows);
	assert_int_equal(w.st.last.tokens, tokens);
	assert_int_equal(w.st.last.why, why);
}

static void until_idle(void)
{
	for (int i = 0; sched_busy(w.s); i++) {
		assert_true(i < 5000);
		step();
	}
}

static const struct sched_event *end_of(uint64_t user_data)
{
	const struct sched_event *e = NULL;

	for (int i = 0; i < w.n_heard; i++)
		if (w.heard[i].e.user_data == user_data && w.heard[i].e.finish != SCHED_MORE) {
			assert_null(e);
			e = &w.heard[i].e;
		}
	return e;
}

static int tokens_of(uint64_t user_data)
{
	int n = 0;

	for (int i = 0; i < w.n_heard; i++)
		n += w.heard[i].e.user_data == user_data && w.heard[i].e.id >= 0;
	return n;
}

/* ---- what is refused -------------------------------------------------------------------------------- */

static void test_create(void **state)
{
	struct { size_t at; int32_t value; int want; } cases[] = {
#define CASE(field, value, want) { offsetof(struct sched_config, field), value, want }
		CASE(context, 512, 0),                   CASE(context, 514, -EINVAL),
		CASE(context, 0, -EINVAL),               CASE(tenants, 0, -EINVAL),
		CASE(tops_per_record, 0, -EINVAL),       CASE(limits.rows, 7, -EINVAL),
		CASE(limits.slots, 7, -EINVAL),          CASE(limits.tokens, 127, -EINVAL),
		CASE(limits.cmds, 23, -EINVAL),          CASE(limits.cmds, 24, 0),
		CASE(limits.words, 55, -EINVAL),         CASE(limits.words, 56, 0),
		CASE(limits.n_blocks, 31, -EINVAL),      CASE(knobs.max_seqs, 0, -EINVAL),
		CASE(knobs.batch_tokens, 7, -EINVAL),    CASE(knobs.chunk_max, 0, -EINVAL),
		CASE(knobs.queue_requests, 0, -EINVAL),  CASE(knobs.quantum, 0, -EINVAL),
		CASE(knobs.copies, 1, -EINVAL),
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
	tear_down();
}

static void test_admit(void **state)
{
	static uint32_t list[3000];
	struct sched_request q;

	(void)state;
	set_up();
	w.cfg.list_words = 256;
	w.cfg.context = 200;
	assert_int_equal(try_open(), 0);
	ask(0, 1, 10, 5);
	q = request(1, 10, 5);
	assert_int_equal(admit(0, &q), -EEXIST);
	assert_int_equal(admit(1, &q), 0);              /* another client's names are its own */
	q = request(2, 10, 5);
	q.list[SR_LIST_BIAS] = list;
	q.n_list[SR_LIST_BIAS] = 3000;
	assert_int_equal(admit(0, &q), -E2BIG);         /* no batch has so many words */
	q.n_list[SR_LIST_BIAS] = 400;
	assert_int_equal(admit(0, &q), -E2BIG);         /* nor the pool of lists */
	q.n_list[SR_LIST_BIAS] = 128;
	assert_int_equal(admit(0, &q), 0);
	q.user_data = 3;
	assert_int_equal(admit(0, &q), -EAGAIN);        /* what is left is the others' */
	assert_int_equal(admit(1, &q), 0);
	w.c[2].room = 4;                                /* its end, and a token with 20 alternatives: 5 */
	q = request(4, 10, 5);
	assert_int_equal(admit(2, &q), -EAGAIN);
	w.c[2].room = 5;
	assert_int_equal(admit(2, &q), 0);
	assert_int_equal(w.c[2].reserved, 1);
	sched_check(w.s);
	tear_down();
}

static void test_full(void **state)
{
	(void)state;
	set_up();
	w.cfg.knobs.queue_requests = 8;
	w.cfg.knobs.queue_tokens = 600;
	w.cfg.tenants = 2;
	assert_int_equal(try_open(), 0);
	assert_false(sched_full(w.s, 0, 5000));         /* longer than the queue: if it is empty */
	ask(0, 1, 200, 1);
	assert_false(sched_full(w.s, 0, 200));
	assert_true(sched_full(w.s, 0, 201));           /* more than it leaves to others */
	assert_false(sched_full(w.s, 1, 400));
	assert_true(sched_full(w.s, 1, 401));
	ask(1, 2, 10, 1);
	assert_true(sched_full(w.s, 2, 1));             /* no third tenant */
	ask(0, 3, 1, 1);
	ask(0, 4, 1, 1);
	ask(0, 5, 1, 1);
	assert_true(sched_full(w.s, 0, 1));             /* 4 waiting, 3 places left */
	assert_false(sched_full(w.s, 1, 1));
	until_idle();
	assert_false(sched_full(w.s, 2, 1));            /* entries of tenants are given back */
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
	assert_int_equal(w.n_heard, 3);
	for (int i = 0; i < 3; i++) {
		e = &w.heard[i].e;
		assert_int_equal(e->position, 20 + i);
		assert_int_equal(e->id, sr_null_next(&as, all, 20 + i));
		assert_int_equal(e->finish, i == 2 ? SCHED_LENGTH : SCHED_MORE);
		assert_int_equal(e->rank, 1);
		assert_true(e->logprob < 0 && e->logprob > -1);
		assert_int_equal(e->scheduled, 2000);
		assert_int_equal(e->computed, 20);
		all[20 + i] = e->id;
	}
	assert_int_equal(w.c[0].reserved, 0);
	assert_int_equal(w.c[0].room, 100000 - 4);      /* three tokens and the end */
	assert_int_equal(w.st.steps, 3);
	assert_int_equal(w.st.samples, 3);
	assert_int_equal(w.st.tokens, 22);
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
	step_tokens(1, 36, WHY_EMPTY);                  /* the last is as it is */
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
	tear_down();
}

/* The sum of whys and the sum of bounds are the time, to the nanosecond. */
static void test_time_adds_up(void **state)
{
	uint64_t why = 0, bound = 0, from;

	(void)state;
	set_up();
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
		why += w.st.why_ns[i];
	for (int i = 0; i < N_BOUND; i++)
		bound += w.st.bound_ns[i];
	assert_int_equal(why, w.now - from);
	assert_int_equal(bound, w.now - from);
	assert_true(w.st.why_ns[WHY_TOKENS] > 0 && w.st.why_ns[WHY_EMPTY] > 0);
	assert_true(w.st.bound_ns[BOUND_IDLE] > 0 && w.st.bound_ns[BOUND_HOST] > 0);
	assert_true(w.st.last.device_ns >= 3000);
	tear_down();
}

/* On a slow device a prompt leaves time to the others; alone it takes all it can. */
static void test_step_time(void **state)
{
	(void)state;
	set_up();
	sr_null_pace(1, 1);                             /* 1 us and 1 us a token */
	w.cfg.knobs.step_ns = 40000;
	assert_int_equal(try_open(), 0);
	ask(0, 1, 120, 200);
	for (int i = 0; i < 300 && !tokens_of(1); i++)
		step();
	assert_int_equal(w.st.steps, 1);                /* 121 us, but nobody else was there */
	ask(0, 2, 400, 5);
	for (int i = 0; i < 3000 && !tokens_of(2); i++) {
		step();
		assert_true(w.st.steps == 1 || w.st.last.device_ns <= 45000);
		if (w.st.last.tokens > 1 && w.st.steps > 1)
			assert_true(w.st.last.tokens > B);   /* never starved */
	}
	assert_true(w.st.why_ns[WHY_STEP_TIME] > 0);
	assert_true(tokens_of(2) == 1 && tokens_of(1) > 10);
	tear_down();
}

/* A target that cannot be kept: a block at a time all the same. */
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
		w.cfg.fcfs = cases[i].fcfs;
		w.cfg.knobs.max_seqs = w.cfg.limits.slots = 1;
		assert_int_equal(try_open(), 0);
		for (uint64_t u = 1; u <= 3; u++) {
			struct sched_request q = request(u, 4, 1);

			q.priority = u == 3 ? -1 : 0;
			assert_int_equal(admit(0, &q), 0);
		}
		until_idle();
		assert_int_equal(w.heard[0].e.user_data, cases[i].first);
		assert_int_equal(w.heard[1].e.user_data, cases[i].second);
		assert_int_equal(w.heard[2].e.user_data, cases[i].third);
		tear_down();
	}
}

/* Two tenants with much to do get as many tokens each, however long their requests are. */
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
			while (!sched_full(w.s, (uint64_t)c, prompt[c]))
				ask(c, user_data++, prompt[c], answer[c]);
		step();
		for (int i = 0; i < w.n_heard; i++) {
			int c = w.heard[i].who == &w.c[1];

			served[c] += 1 + (w.heard[i].e.finish ? (uint64_t)prompt[c] : 0);
		}
		w.n_heard = 0;
		w.c[0].room = w.c[1].room = 100000;
	}
	assert_true(served[0] > 10000);
	assert_in_range(served[0] * 100 / served[1], 85, 115);
	tear_down();
}

/* Short of blocks the youngest gives way, keeps its ids and comes back; no token changes. */
static void test_preempt(void **state)
{
	struct sr_null_request as = { .sampling = { .top_p = 1, .repetition = 1 }, .n_prompt = 100,
				      .vocab = VOCAB };
	int32_t all[300];

	(void)state;
	set_up();
	w.cfg.limits.n_blocks = w.cfg.limits.seq_blocks = 16;
	w.cfg.context = 256;
	assert_int_equal(try_open(), 0);
	ask(0, 1, 100, 100);
	ask(0, 2, 100, 100);
	until_idle();
	assert_int_equal(end_of(1)->preempted, 0);
	assert_true(end_of(2)->preempted >= 1);
	assert_true(end_of(2)->computed >= 200);
	assert_int_equal(w.st.preemptions, end_of(2)->preempted);
	memcpy(all, ids, 100 * sizeof(int32_t));
	for (int i = 0, n = 100; i < w.n_heard; i++)
		if (w.heard[i].e.user_data == 2) {
			assert_int_equal(w.heard[i].e.id, sr_null_next(&as, all, n));
			all[n++] = w.heard[i].e.id;
		}
	tear_down();
}

/* One is admitted only with blocks for all its ids, so a long prompt does not thrash. */
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
	assert_int_equal(w.st.preemptions, 0);
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
	assert_int_equal(tokens_of(1), 7);               /* one record is its end's */
	assert_int_equal(end_of(2)->finish, SCHED_LENGTH);
	assert_true(w.st.why_ns[WHY_RING_OUT] > 0);
	sched_cancel(w.s, &w.c[0], 1);                  /* needs no more room */
	assert_int_equal(end_of(1)->finish, -ECANCELED);
	assert_int_equal(w.c[0].room, 0);
	tear_down();
}

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
		assert_int_equal(w.st.prefix_hits, cases[i].cached);
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

			if (e->id < 0 || e->position >= cases[i].n_prompt)
				continue;
			assert_int_equal(e->position, ++n);
			assert_int_equal(e->id, ids[n]);
			assert_true(e->logprob == sr_null_logprob(ids, n, ids[n]));
			assert_int_equal(e->n_top, cases[i].n_top);
		}
		assert_int_equal(n, cases[i].n_prompt - 1);
		assert_int_equal(tokens_of(1), cases[i].n_prompt - 1 + cases[i].max_tokens);
		assert_int_equal(end_of(1)->finish, SCHED_LENGTH);
		assert_int_equal(w.c[0].reserved, 0);
		tear_down();
	}
}

/* A stop id ends it, at its place or, while fewer than min tokens are there, not at all. */
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
		q.n_list[SR_LIST_STOP] = n_stop;
		q.list[SR_LIST_STOP] = stop;
		q.sampling.min_position = 32;
		assert_int_equal(admit(0, &q), 0);
		until_idle();
		assert_true(tokens_of(2) >= 3);
		for (int i = 0; i < w.n_heard; i++)
			if (w.heard[i].e.user_data == 2 && w.heard[i].e.position < 32)
				assert_int_not_equal(w.heard[i].e.id, second);
		assert_int_equal(end_of(2)->finish == SCHED_STOP, end_of(2)->id == second);
		tear_down();
	}
}

/* Nothing but a stop id may be drawn: before its time it is a token like any other. */
static void test_stop_alone(void **state)
{
	const uint32_t five = 5;
	struct sched_request q;

	(void)state;
	set_up();
	assert_int_equal(try_open(), 0);
	q = request(1, 30, 10);
	q.list[SR_LIST_STOP] = q.list[SR_LIST_ALLOW] = &five;
	q.n_list[SR_LIST_STOP] = q.n_list[SR_LIST_ALLOW] = 1;
	q.sampling.min_position = 34;
	assert_int_equal(admit(0, &q), 0);
	until_idle();
	assert_int_equal(tokens_of(1), 5);
	assert_int_equal(end_of(1)->finish, SCHED_STOP);
	assert_int_equal(end_of(1)->position, 34);
	tear_down();
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
		assert_ptr_equal(w.heard[i].who, &w.c[1]);
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
		if (cases[i].want == -ETIME)            /* in the first step that sees it pass */
			assert_true(w.now >= q.deadline && w.now < q.deadline + 1000);
		until_idle();
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
		assert_true(i < 10);
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
		cmocka_unit_test(test_create), cmocka_unit_test(test_set), cmocka_unit_test(test_admit),
		cmocka_unit_test(test_full), cmocka_unit_test(test_one), cmocka_unit_test(test_chunks),
		cmocka_unit_test(test_batch_tokens), cmocka_unit_test(test_max_seqs),
		cmocka_unit_test(test_time_adds_up), cmocka_unit_test(test_step_time),
		cmocka_unit_test(test_step_time_too_short), cmocka_unit_test(test_priority),
		cmocka_unit_test(test_fair), cmocka_unit_test(test_preempt),
		cmocka_unit_test(test_admission_room), cmocka_unit_test(test_slow_reader),
		cmocka_unit_test(test_prefix), cmocka_unit_test(test_score), cmocka_unit_test(test_stop),
		cmocka_unit_test(test_stop_alone),
		cmocka_unit_test(test_cancel), cmocka_unit_test(test_forget),
		cmocka_unit_test(test_deadline), cmocka_unit_test(test_device_lost),
		cmocka_unit_test(test_worked),
	};

	return cmocka_run_group_tests_name("sched", tests, NULL, NULL);
}
