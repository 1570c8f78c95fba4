/* LINK: @sched @null @ranks -lxxhash */
/* test_ranks.c - ranks over the null device, each a process: a load of requests, and a rank that is killed,
 * stopped, ends, lies or computes something else at any moment of it.  Each is named, and every answer is as if
 * nothing had happened.
 *
 *	SLIPRING_MOMENTS=N    number of moments (60; 1,000 take two minutes)
 */
#include "kernels/ranks/ranks.c"

#include <time.h>

#include "tests/rig/sched_world.h"

enum { N = 8 };                                  /* requests */
#ifdef __SANITIZE_ADDRESS__
#define SOON (1000 * MS)                         /* the end of a process with shadow memory takes the kernel longer */
#else
#define SOON (10 * MS)
#endif

static struct { int32_t id[64]; int n; } answer[N], whole[N];
static char said[8][300];
static int n_said;
static pthread_mutex_t say_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t hang_ms = 2000;                  /* long, because a busy machine stops ranks, too */
static int refusing = -1;                        /* the rank that cannot open */

static const struct sr_model *tiny(void)
{
	static const struct sr_model model = { .n_vocab = VOCAB, .n_layers = 1, .n_kinds = 1,
		.kind = { { .n_kv_heads = 1, .head_dim = 8 } } };

	return &model;
}

static int open_null(void *ctx, const struct sr_limits *lim, _Atomic uint64_t *loaded, struct sr_backend **out,
                     char *err, size_t errlen)
{
	(void)ctx;
	*loaded = 1000;
	if (lim->rank == refusing) {
		snprintf(err, errlen, "this device is broken");
		return -EIO;
	}
	return sr_null_ops()->open(out, tiny(), NULL, lim, err, errlen);
}

static int spawn(void *ctx, int32_t rank, int memory, int bell)
{
	const struct ranks_door door = { .ops = sr_null_ops(), .open = open_null };
	int pid = fork();

	(void)ctx;
	if (pid == 0)
		_exit(ranks_serve(&door, rank, memory, bell));
	return pid;
}

static void hear(void *ctx, bool bad, const char *line)
{
	(void)ctx, (void)bad;
	pthread_mutex_lock(&say_lock);
	if (n_said < 8)
		snprintf(said[n_said++], sizeof(said[0]), "%s", line);
	pthread_mutex_unlock(&say_lock);
}

/* Was a line with these words said? */
static bool was_said(const char *words)
{
	bool is = false;

	pthread_mutex_lock(&say_lock);
	for (int i = 0; i < n_said; i++)
		is |= strstr(said[i], words) != NULL;
	pthread_mutex_unlock(&say_lock);
	return is;
}

static const struct sr_backend_ops *over_null(void)
{
	return ranks_over(&(struct ranks_setting){ .ops = sr_null_ops(), .spawn = spawn, .say = hear, .hang_ms = hang_ms });
}

static void start(int world)
{
	set_up();
	n_said = 0;
	sr_null_depth(2);
	sr_null_clock(NULL, NULL);
	w.cfg.context = 160;
	w.cfg.limits.seq_blocks = 10;
	w.cfg.limits.n_blocks = 24;
	w.cfg.limits.n_host_blocks = 16;
	w.cfg.limits.copies = w.cfg.knobs.copies = 4;
	w.cfg.limits.world = world;
	w.device = world ? over_null() : NULL;
	assert_int_equal(try_open(), 0);
	w.ops.work = sr_null_ops()->work;
	if (world)
		w.ops.work = NULL;
}

static void ask_all(void)
{
	for (int i = 0; i < N; i++) {
		struct sched_request q = request((uint64_t)i, 20 + 13 * (i % 5), 6 + 7 * (i % 6));

		q.no_cache = false;
		q.history = i % 3 == 0;
		assert_int_equal(admit(i % 3, &q), 0);
	}
}

/* A step; true: nothing moved. */
static bool turn(void)
{
	int work = sched_step(w.s, w.now += 1000);

	assert_true(work >= 0);
	sched_check(w.s);
	if (!work)
		usleep(100);
	return !work;
}

static void until_done(void)
{
	uint64_t until = sr_now() + 20 * 1000 * MS;

	while (sched_busy(w.s)) {
		assert_true(sr_now() < until);
		turn();
	}
}

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
	for (int r = 0; r < N; r++)
		assert_int_equal(end_of((uint64_t)r)->finish, SCHED_LENGTH);
}

/* As if they had been lost so much longer ago. */
static void age_losses(void)
{
	for (int i = 0; i < LOSSES; i++)
		w.b->losses[i] -= w.b->losses[i] ? LOSS_NS : 0;
}

/* Two, three and five ranks answer as the device alone. */
static void test_same(void **state)
{
	(void)state;
	start(0);
	ask_all();
	until_done();
	collect();
	memcpy(whole, answer, sizeof(whole));
	tear_down();
	for (int world = 1; world <= 5; world++) {
		start(world);
		ask_all();
		until_done();
		collect();
		assert_memory_equal(answer, whole, sizeof(whole));
		assert_int_equal(n_said, 0);
		tear_down();
	}
}

enum { KILL, STOP, END, LIE, DIFFER, FAULTS };

static const char *harm(int fault, int r)
{
	struct sr_backend *b = w.b;

	switch (fault) {
	case KILL:
		kill(b->process[r].pid, SIGKILL);
		return "is gone: signal 9";
	case STOP:
		kill(b->process[r].pid, SIGSTOP);
		return "hangs: no sign of life";
	case END:
		kill(b->process[r].pid, SIGTERM);
		return "is gone: signal 15";
	case LIE:
		atomic_fetch_add(&b->page->rank[r].done, 5);
		return "batches are done, of";
	default:                                 /* its cache is no longer what the others have */
		b->page->batch[0].finished = 0;
		b->page->rank[r].check[0] ^= 1;
		b->page->rank[r].check[1] ^= 1;
		return "otherwise than rank";
	}
}

static void test_any_moment(void **state)
{
	const char *given = getenv("SLIPRING_MOMENTS");
	int moments = given ? atoi(given) : 60, seen[FAULTS] = { 0 }, restarts = 0;

	(void)state;
	for (int i = 0; i < moments; i++) {
		int fault = i % FAULTS, world = 1 + i / FAULTS % 3, rank = i % world, at = i * 7 % 45;
		const char *words;

		if (given && i && i % 100 == 0)
			fprintf(stderr, "%d of %d moments\n", i, moments);
		hang_ms = fault == STOP ? 200 : 2000;
		start(world);
		ask_all();
		for (int t = 0; t < at; t++)
			turn();
		words = harm(fault, rank);
		until_done();
		collect();
		assert_memory_equal(answer, whole, sizeof(whole));
		if (was_said(words))             /* or no batch came after it */
			seen[fault]++;
		restarts += (int)w.b->restarts;
		tear_down();
	}
	hang_ms = 2000;
	for (int f = 0; f < DIFFER; f++)
		if (seen[f] < moments / FAULTS / 3)
			fail_msg("fault %d was named %d times of %d", f, seen[f], moments / FAULTS);
	assert_true(restarts > moments / 3);
}

/* A rank that computes something else is found by its hash. */
static void test_differs(void **state)
{
	(void)state;
	start(3);
	w.b->batch[0].n_copies = w.b->batch[0].n_cmds = w.b->batch[0].n_rows = 0;
	assert_int_equal(w.ops.launch(w.b, 0), 0);
	while (w.b->page->batch[0].finished != 3)
		usleep(100);
	w.b->page->rank[2].check[0] ^= 1;
	assert_int_equal(w.ops.poll(w.b, 0), -EIO);
	assert_true(was_said("rank 2"));
	assert_true(was_said("has computed batch 1 otherwise than rank 0"));
	tear_down();
}

/* The time from the death of a rank to its name, asleep or not. */
static void test_seen_soon(void **state)
{
	uint64_t took[9];

	(void)state;
	for (int i = 0; i < 9; i++) {
		uint64_t began;

		start(2);
		ask_all();
		turn();
		began = sr_now();
		kill(w.b->process[1].pid, SIGKILL);
		while (!atomic_load(&w.b->lost))
			usleep(50);
		took[i] = sr_now() - began;
		until_done();
		tear_down();
	}
	for (int i = 0; i < 9; i++)              /* in order */
		for (int j = i + 1; j < 9; j++)
			if (took[j] < took[i]) {
				uint64_t t = took[i];

				took[i] = took[j];
				took[j] = t;
			}
	printf("a death was seen after %.2f ms (median), %.2f ms (most)\n", (double)took[4] / 1e6, (double)took[8] / 1e6);
	assert_true(took[2] < SOON);             /* a busy machine delays some */
}

/* The third loss in ten minutes is final: every request ends, and the reason is told. */
static void test_thrice(void **state)
{
	int r = 0;

	(void)state;
	start(2);
	ask_all();
	for (int i = 0; i < 100000 && r >= 0; i++) {
		uint64_t until = sr_now() + 2000 * MS;

		while (w.b->phase != RUNNING && (r = sched_step(w.s, w.now += 1000)) >= 0 && sr_now() < until)
			usleep(100);
		if (r >= 0)
			kill(w.b->process[0].pid, SIGKILL);
		while (r >= 0 && !atomic_load(&w.b->lost))
			usleep(100);
		if (r >= 0)
			r = sched_step(w.s, w.now += 1000);
	}
	assert_int_equal(r, -EIO);
	assert_int_equal(w.b->restarts, 2);
	assert_true(was_said("ranks were lost 3 times in 10 minutes: they are not started again"));
	for (uint64_t i = 0; i < N; i++)
		assert_int_equal(end_of(i)->finish, -EIO);
	tear_down();
	start(1);                                /* long ago does not count */
	ask_all();
	for (int i = 0; i < 4; i++) {
		age_losses();
		turn();
		kill(w.b->process[0].pid, SIGKILL);
		while (!atomic_load(&w.b->lost))
			usleep(100);
		turn();
		while (w.b->phase != RUNNING)
			turn();
	}
	until_done();
	collect();
	assert_memory_equal(answer, whole, sizeof(whole));
	tear_down();
}

/* A rank that cannot open says why; nothing is left behind. */
static void test_refuses(void **state)
{
	const struct sr_backend_ops *ops;
	struct sr_backend *b = NULL;
	char err[300];

	(void)state;
	set_up();
	refusing = 1;
	w.cfg.limits.world = 3;
	ops = over_null();
	assert_int_equal(ops->open(&b, tiny(), NULL, &w.cfg.limits, err, sizeof(err)), -EIO);
	assert_string_equal(err, "rank 1: this device is broken");
	refusing = -1;
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
	assert_int_equal(errno, ECHILD);
}

/* A sleeping core is woken by the end of a batch, and by a death. */
static void test_arm(void **state)
{
	int fd = eventfd(0, EFD_CLOEXEC);
	struct pollfd f = { .fd = fd, .events = POLLIN };
	uint64_t n;

	(void)state;
	start(2);
	for (int i = 0; i < 20; i++) {
		struct sr_batch *t = w.ops.batch(w.b, i % 2);

		t->n_copies = t->n_cmds = t->n_rows = t->n_results = t->n_tokens = t->n_ids = t->n_words = 0;
		assert_int_equal(w.ops.launch(w.b, i % 2), 0);
		if (i == 13)
			while (w.b->page->batch[i % 2].finished != 2)
				usleep(100);
		assert_int_equal(w.ops.arm(w.b, i % 2, fd), 0);
		assert_int_equal(poll(&f, 1, 10000), 1);
		assert_int_equal(read(fd, &n, sizeof(n)), sizeof(n));
		assert_int_equal(w.ops.poll(w.b, i % 2), 1);
	}
	kill(w.b->process[0].pid, SIGSTOP);
	assert_int_equal(w.ops.launch(w.b, 0), 0);
	assert_int_equal(w.ops.arm(w.b, 0, fd), 0);
	assert_int_equal(poll(&f, 1, 10000), 1);
	assert_int_equal(w.ops.poll(w.b, 0), -EIO);
	tear_down();
	close(fd);
}

/* A rank that dies while nothing is to be done is started again at once, and a core that sleeps is woken. */
static void test_idle(void **state)
{
	int fd = eventfd(0, EFD_CLOEXEC);
	struct pollfd f = { .fd = fd, .events = POLLIN };
	uint64_t n;

	(void)state;
	start(2);
	ask_all();
	until_done();
	assert_int_equal(w.ops.arm(w.b, 0, fd), 0);      /* the batch is done: it rings at once */
	assert_int_equal(read(fd, &n, sizeof(n)), sizeof(n));
	kill(w.b->process[1].pid, SIGKILL);
	assert_int_equal(poll(&f, 1, 10000), 1);
	turn();
	assert_true(sched_busy(w.s));
	until_done();
	assert_int_equal(w.b->restarts, 1);
	assert_int_equal(w.b->phase, RUNNING);
	collect();
	tear_down();
	close(fd);
}

/* Ranks do not outlive core. */
static void test_orphans(void **state)
{
	int pipes[2], pid, pids[2], status;

	(void)state;
	assert_int_equal(pipe(pipes), 0);
	pid = fork();
	if (pid == 0) {
		start(2);
		pids[0] = w.b->process[0].pid;
		pids[1] = w.b->process[1].pid;
		if (write(pipes[1], pids, sizeof(pids)) < 0)
			_exit(1);
		kill(getpid(), SIGKILL);
	}
	for (int r = 0; r < 2; r++)
		assert_int_equal(read(pipes[0], &pids[r], sizeof(int)), sizeof(int));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	for (int r = 0; r < 2; r++) {            /* somebody else reaps them: wait until they are gone or zombies */
		char path[64], stat[200] = "";
		bool gone = false;

		snprintf(path, sizeof(path), "/proc/%d/stat", pids[r]);
		for (int i = 0; i < 500 && !gone; i++) {
			FILE *f = fopen(path, "re");

			gone = !f || !fgets(stat, sizeof(stat), f) || strstr(stat, ") Z");
			if (f)
				fclose(f);
			usleep(1000);
		}
		assert_true(gone);
	}
	close(pipes[0]);
	close(pipes[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same), cmocka_unit_test(test_any_moment), cmocka_unit_test(test_differs),
		cmocka_unit_test(test_seen_soon), cmocka_unit_test(test_thrice), cmocka_unit_test(test_refuses),
		cmocka_unit_test(test_arm), cmocka_unit_test(test_idle), cmocka_unit_test(test_orphans),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
