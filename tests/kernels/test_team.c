/* LINK: @cpu tests/rig/drive.c tests/rig/tiny.c */
/* test_team.c - the threads: which take part in a job, when one is left out and comes back, and that
 * no answer depends on it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/team.c"
#include "tests/rig/drive.h"
#include "tests/rig/tiny.h"

#define THREADS 5
#define ROUNDS  200

struct job {
	struct team *team;
	_Atomic int ran[THREADS];          /* times that a thread took part */
	_Atomic int phase, wrong;          /* of the barrier test */
	int n, late, core;                 /* this thread shares this core */
};

static void come(void *ctx, int i)
{
	struct job *j = ctx;

	j->ran[i]++;
}

static void test_who_takes_part(void **state)
{
	struct job j = { 0 };

	(void)state;
	assert_int_equal(team_create(&j.team, THREADS, NULL), 0);
	team_run(j.team, come, &j);
	for (int n = THREADS; n >= 1; n--)
		team_run_some(j.team, n, come, &j);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(j.ran[i], 1 + THREADS - i);
	team_destroy(j.team);
}

/* Between two barriers every thread sees the full count of the phase. */
static void count(void *ctx, int i)
{
	struct job *j = ctx;

	(void)i;
	for (int round = 0; round < ROUNDS; round++) {
		j->phase++;
		team_barrier(j->team);
		j->wrong += j->phase != (round + 1) * j->n;
		team_barrier(j->team);
	}
}

static void test_barriers_of_few(void **state)
{
	struct job j = { 0 };

	(void)state;
	assert_int_equal(team_create(&j.team, THREADS, NULL), 0);
	for (j.n = 1; j.n <= THREADS; j.n++) {
		j.phase = 0;
		team_run_some(j.team, j.n, count, &j);
	}
	assert_int_equal(j.wrong, 0);
	team_destroy(j.team);
}

/* Jobs of changing size in quick succession: no thread of one job takes part in the end of the next. */
static void test_sizes_change(void **state)
{
	struct job j = { 0 };
	int came[THREADS] = { 0 };

	(void)state;
	assert_int_equal(team_create(&j.team, THREADS, NULL), 0);
	for (int round = 0; round < 5 * ROUNDS; round++) {
		int n = 1 + round * 7 % THREADS;

		team_run_some(j.team, n, come, &j);
		for (int i = 0; i < n; i++)
			assert_int_equal(j.ran[i], ++came[i]);
	}
	team_destroy(j.team);
}

static void nap(int64_t ns)
{
	const struct timespec t = { ns / 1000000000, ns % 1000000000 };

	nanosleep(&t, NULL);
}

/* Compute for 10 ms of CPU time on the core that another process is on. */
static void share_a_core(void *ctx, int i)
{
	struct job *j = ctx;
	struct timespec t;
	cpu_set_t one;
	int64_t until;

	if (i != j->late)
		return;
	CPU_ZERO(&one);
	CPU_SET(j->core, &one);
	sched_setaffinity(0, sizeof(one), &one);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	until = t.tv_sec * 1000000000 + t.tv_nsec + 10000000;
	while (t.tv_sec * 1000000000 + t.tv_nsec < until)
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
}

static pid_t busy_process(int core)
{
	pid_t pid = fork();
	cpu_set_t one;

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	CPU_ZERO(&one);
	CPU_SET(core, &one);
	sched_setaffinity(0, sizeof(one), &one);
	for (volatile int spin = 0;; spin++)
		;
}

/* A thread that shares its core is left out, and asked again in the end. */
static void test_one_without_core_rests(void **state)
{
	struct job j = { .late = 1, .core = -1 };
	int jobs = 0;
	cpu_set_t all;
	pid_t busy;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	for (int i = 0; i < CPU_SETSIZE && j.core < 0; i++)
		j.core = CPU_ISSET(i, &all) ? i : -1;
	busy = busy_process(j.core);
	assert_true(busy > 0);
	assert_int_equal(team_create(&j.team, 2, NULL), 0);
	assert_int_equal(team_fit(j.team), 2);
	while (team_fit(j.team) == 2 && ++jobs < 50)
		team_run_some(j.team, 2, share_a_core, &j);
	assert_true(jobs < 50);
	assert_int_equal(team_fit(j.team), 1);
	team_run_some(j.team, 1, share_a_core, &j);
	nap(REST_NS + 1000000);
	assert_int_equal(team_fit(j.team), 2);
	for (jobs = 0; j.team->fit.n == 2 && jobs < 50; jobs++)
		team_run_some(j.team, 2, share_a_core, &j);
	assert_true(jobs < 50);
	assert_true(j.team->fit.rest > 2 * REST_NS); /* lost again: the next rest is longer */
	team_destroy(j.team);
	kill(busy, SIGKILL);
	waitpid(busy, NULL, 0);
}

/* The caller may be another thread than the one that made the team: its core counts, too. */
static void *run_one(void *ctx)
{
	struct job *j = ctx;

	team_run(j->team, come, j);
	assert_true(j->team->member[0].schedstat >= 0);
	return NULL;
}

static void test_another_caller(void **state)
{
	struct job j = { 0 };
	pthread_t other;
	char before[64], after[64], path[64];

	(void)state;
	assert_int_equal(team_create(&j.team, 2, NULL), 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", j.team->member[0].schedstat);
	before[readlink(path, before, sizeof(before) - 1)] = 0;
	assert_int_equal(pthread_create(&other, NULL, run_one, &j), 0);
	pthread_join(other, NULL);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", j.team->member[0].schedstat);
	after[readlink(path, after, sizeof(after) - 1)] = 0;
	assert_string_not_equal(before, after);
	team_destroy(j.team);
}

/* Unequal shares, and a single slow job among many, exclude no thread. */
static void test_uneven_ones_stay(void **state)
{
	struct job j = { 0 };
	struct fit *f;

	(void)state;
	assert_int_equal(team_create(&j.team, 2, NULL), 0);
	f = &j.team->fit;
	for (int i = 0; i < 20; i++) { /* real times vary: only the rule is tested */
		atomic_store(&j.team->late, 900000); /* asleep nearly all the time, but no core was lost */
		fit_learn(j.team, 1000000);
		assert_int_equal(f->n, 2);
	}
	*f = (struct fit){ .n = 2, .rest = REST_NS };
	for (int i = 0; i < 20; i++) {
		atomic_store(&j.team->lost, 900000); /* nobody waited for it */
		fit_learn(j.team, 1000000);
		assert_int_equal(f->n, 2);
	}
	*f = (struct fit){ .n = 2, .rest = REST_NS };
	for (int i = 0; i < 20; i++)
		fit_learn(j.team, 1000000);
	atomic_store(&j.team->late, 4000000);
	atomic_store(&j.team->lost, 4000000);
	fit_learn(j.team, 4500000);
	assert_int_equal(f->n, 2);
	atomic_store(&j.team->late, 9000000);
	atomic_store(&j.team->lost, 9000000);
	fit_learn(j.team, 9500000);
	assert_int_equal(f->n, 1);
	team_destroy(j.team);
}

/* ---- barriers of a layer ------------------------------------------------------------------------ */

/* How often the team meets while it computes `n` tokens at position `first` of a model of `layers` layers. */
static uint32_t barriers_of(int layers, int threads, int first, int n)
{
	struct sr_model shape = tiny_shape();
	struct sr_limits lim = drive_limits();
	static int32_t text[1000];
	struct tiny *t;
	struct drive d;
	uint32_t before, met;

	shape.n_layers = layers;
	t = tiny_create(&shape, SR_BF16, 0, 7);
	lim.threads = threads;
	assert_int_equal(drive_open(&d, sr_cpu_ops(), &t->m, &t->src, &lim), 0);
	d.b->team->fit = (struct fit){ .n = threads, .until = UINT64_MAX };
	drive_begin(&d, 0, NULL);
	drive_range(&d, 0, 0, 64);
	if (first) {
		drive_row(&d, 0, 0, text, first, 0, 0);
		drive_step(&d);
	}
	d.b->team->fit = (struct fit){ .n = threads, .until = UINT64_MAX };
	before = atomic_load(&d.b->team->gate.value);
	drive_row(&d, 0, first, text, n, 0, 1);
	drive_step(&d);
	met = atomic_load(&d.b->team->gate.value) - before;
	assert_int_equal(d.b->n_active, threads);
	drive_close(&d);
	tiny_destroy(t);
	return met;
}

/* The table at the head of ops.c. */
static void test_barriers_of_a_layer(void **state)
{
	static const struct { const char *what; int threads, first, n; uint32_t want; } cases[] = {
		{ "solo and paired", 2, 100, 1, 5 },
		{ "solo, by heads", 3, 100, 1, 6 },
		{ "solo, by spans", 3, 600, 1, 7 },
		{ "many rows", 2, 0, 40, 10 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		uint32_t two = barriers_of(2, cases[i].threads, cases[i].first, cases[i].n);
		uint32_t three = barriers_of(3, cases[i].threads, cases[i].first, cases[i].n);

		print_message("  %s: %u\n", cases[i].what, three - two);
		assert_int_equal(three - two, cases[i].want);
	}
}

/* ---- answers ---------------------------------------------------------------------------------- */

#define TOKENS 40

/* Log-probabilities of a prompt and of some tokens after it, by `active` of `made` threads. */
static void answers(const struct tiny *t, int made, int active, float *out)
{
	struct sr_limits lim = drive_limits();
	int32_t text[TOKENS + 1];
	struct drive d;
	int at;

	lim.threads = made;
	if (drive_open(&d, sr_cpu_ops(), &t->m, &t->src, &lim))
		fail_msg("%s", d.err);
	d.b->team->fit = (struct fit){ .n = active, .until = UINT64_MAX };
	for (int i = 0; i <= TOKENS; i++)
		text[i] = (i * 37 + 5) % t->m.n_vocab;
	drive_begin(&d, 0, NULL);
	drive_range(&d, 0, 0, 8);
	at = drive_row(&d, 0, 0, text, TOKENS, TOKENS, 0);
	drive_step(&d);
	for (int i = 0; i < TOKENS; i++)
		out[i] = d.batch->result[at + i].logprob;
	for (int i = 0; i < TOKENS; i++) {
		at = drive_row(&d, 0, TOKENS + i, &text[i], 1, 0, 1);
		drive_step(&d);
		out[TOKENS + i] = d.batch->result[at].logprob;
	}
	drive_close(&d);
}

static void test_answers_do_not_change(void **state)
{
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_Q4_1, TINY_MIXED | TINY_UNTIED, 7);
	float all[2 * TOKENS], some[2 * TOKENS];

	(void)state;
	answers(t, 1, 1, all);
	for (int made = 2; made <= THREADS; made++) {
		for (int active = 1; active <= made; active++) {
			answers(t, made, active, some);
			assert_memory_equal(some, all, sizeof(all));
		}
	}
	tiny_destroy(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_who_takes_part),
		cmocka_unit_test(test_barriers_of_few),
		cmocka_unit_test(test_sizes_change),
		cmocka_unit_test(test_one_without_core_rests),
		cmocka_unit_test(test_another_caller),
		cmocka_unit_test(test_uneven_ones_stay),
		cmocka_unit_test(test_barriers_of_a_layer),
		cmocka_unit_test(test_answers_do_not_change),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
