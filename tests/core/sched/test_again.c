/* LINK: @sched @null -lxxhash */
/* test_again.c - a device that is lost at any moment and comes back: every answer is as if it had not been lost,
 * no token is missing or sent twice, and nothing that the device held is trusted. */
#include "tests/rig/sched_world.h"

enum { N = 10 };                                 /* requests */

static struct sr_backend *now_open;              /* the device; the scheduler's own pointer is to the first */
static int calls, lose_at, losses, away;         /* polls and launches so far; the one that fails; steps that it is away */
static bool dead, stays_dead;
static struct { int32_t id[64]; int n; } answer[N], whole[N];

static bool fails(void)
{
	if (++calls == lose_at || dead) {
		dead = true;
		return true;
	}
	return false;
}

static struct sr_batch *batch_of(struct sr_backend *b, int32_t i)
{
	(void)b;
	return sr_null_ops()->batch(now_open, i);
}

static int launch(struct sr_backend *b, int32_t i)
{
	(void)b;
	return fails() ? -EIO : sr_null_ops()->launch(now_open, i);
}

static int poll_one(struct sr_backend *b, int32_t i)
{
	(void)b;
	return fails() ? -EIO : sr_null_ops()->poll(now_open, i);
}

/* A new device: its slots and blocks are empty. */
static int again(struct sr_backend *b)
{
	const struct sr_model model = { .n_vocab = VOCAB, .n_layers = 1, .n_kinds = 1,
		.kind = { { .n_kv_heads = 1, .head_dim = 8 } } };
	char err[200];

	(void)b;
	if (!dead)
		return 1;
	if (stays_dead)
		return -EIO;
	if (away-- > 0)
		return 0;
	if (now_open != w.b)
		sr_null_ops()->close(now_open);
	assert_int_equal(sr_null_ops()->open(&now_open, &model, NULL, &w.cfg.limits, err, sizeof(err)), 0);
	dead = false;
	losses++;
	lose_at = 0;
	return 1;
}

static void start(int lose, int steps_away, int depth)
{
	set_up();
	sr_null_depth(depth);
	w.cfg.context = 160;
	w.cfg.limits.seq_blocks = 10;
	w.cfg.limits.n_blocks = 24;                  /* too few for all: some are preempted anyway */
	w.cfg.limits.n_host_blocks = 16;
	w.cfg.limits.copies = w.cfg.knobs.copies = 4;
	assert_int_equal(try_open(), 0);
	w.ops.batch = batch_of;
	w.ops.launch = launch;
	w.ops.poll = poll_one;
	w.ops.again = again;
	now_open = w.b;
	calls = losses = 0;
	dead = stays_dead = false;
	lose_at = lose;
	away = steps_away;
}

static void stop(void)
{
	if (now_open != w.b)
		sr_null_ops()->close(now_open);
	tear_down();
}

/* Requests of many kinds, some with the same prefix; two come later than the others. */
static void ask_all(int from, int to)
{
	for (int i = from; i < to; i++) {
		struct sched_request q = request((uint64_t)i, 20 + 13 * (i % 5), 6 + 7 * (i % 6));

		q.no_cache = false;
		q.history = i % 3 == 0;
		assert_int_equal(admit(i % 3, &q), 0);
	}
}

static void run_all(void)
{
	ask_all(0, N - 2);
	for (int i = 0; i < 5; i++)
		step();
	ask_all(N - 2, N);
	until_idle();
}

/* The tokens of each answer, each with the place that follows the one before. */
static void collect(void)
{
	memset(answer, 0, sizeof(answer));
	for (int i = 0; i < w.n_heard; i++) {
		const struct sched_event *e = &w.heard[i].e;
		int r = (int)e->user_data;

		if (e->kind != SCHED_TOKEN)
			continue;
		assert_int_equal(e->position, 20 + 13 * (r % 5) + answer[r].n);
		answer[r].id[answer[r].n++] = e->id;
	}
	for (int r = 0; r < N; r++) {
		assert_int_equal(end_of((uint64_t)r)->finish, SCHED_LENGTH);
		assert_int_equal(answer[r].n, 6 + 7 * (r % 6));
	}
}

static void test_any_moment(void **state)
{
	int moments = 0;

	(void)state;
	for (int depth = 1; depth <= 2; depth++) {
		start(0, 0, depth);
		run_all();
		collect();
		memcpy(whole, answer, sizeof(whole));
		assert_true(calls > 50);
		stop();
		for (int lose = 1, all = calls; lose <= all; lose++, moments++) {
			start(lose, lose % 4, depth);
			run_all();
			assert_int_equal(losses, 1);
			collect();
			assert_memory_equal(answer, whole, sizeof(whole));
			for (int c = 0; c < CLIENTS; c++)
				assert_int_equal(w.c[c].reserved, 0);
			stop();
		}
	}
	assert_true(moments > 100);
}

/* It is lost while nothing is to be done: what it had cached is forgotten before the next request comes. */
static void test_idle(void **state)
{
	struct sched_request q;

	(void)state;
	start(0, 2, 1);
	ask_all(0, 1);
	until_idle();
	dead = true;
	step();
	assert_true(sched_busy(w.s));
	until_idle();
	assert_int_equal(losses, 1);
	q = request(50, 20, 6);                      /* the prompt of the first */
	q.no_cache = false;
	q.history = true;
	assert_int_equal(admit(0, &q), 0);
	until_idle();
	assert_int_equal(end_of(50)->cached, 0);
	stays_dead = dead = true;
	assert_int_equal(sched_step(w.s, w.now += 1000), -EIO);
	stop();
}

/* While it is away, requests are taken, cancelled and end by their deadline. */
static void test_away(void **state)
{
	struct sched_request q;

	(void)state;
	start(4, 100, 1);
	ask_all(0, 4);
	for (int i = 0; i < 10; i++)
		step();
	assert_true(dead);
	assert_int_equal(sched_flying(w.s), -1);
	q = request(77, 20, 5);
	q.deadline = w.now + 3000;
	assert_int_equal(admit(0, &q), 0);
	sched_cancel(w.s, &w.c[0], 0);
	assert_int_equal(end_of(0)->finish, -ECANCELED);
	for (int i = 0; i < 5; i++)
		step();
	assert_int_equal(end_of(77)->finish, -ETIME);
	until_idle();
	for (uint64_t r = 1; r < 4; r++)
		assert_int_equal(end_of(r)->finish, SCHED_LENGTH);
	stop();
}

/* It cannot be started: every request ends. */
static void test_gone(void **state)
{
	(void)state;
	for (int later = 0; later < 2; later++) {
		start(6, 3, 1);
		ask_all(0, 4);
		stays_dead = !later;
		for (int i = 0; !dead && i < 20; i++)
			sched_step(w.s, w.now += 1000);
		stays_dead = true;
		for (int i = 0; i < 20 && sched_step(w.s, w.now += 1000) != -EIO; i++)
			;
		for (uint64_t r = 0; r < 4; r++)
			assert_int_equal(end_of(r)->finish, -EIO);
		assert_int_equal(sched_step(w.s, w.now), -EIO);
		stop();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_any_moment), cmocka_unit_test(test_idle), cmocka_unit_test(test_away), cmocka_unit_test(test_gone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
