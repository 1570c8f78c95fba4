/* team.c - a fork-join team with a central barrier.  See team.h. */
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "team.h"

/* How long a wait spins before it sleeps.  Longer than what the shares of one verb differ by,
 * shorter than what the wake-up of an idle core costs (20 to 40 us) by not much. */
#define SPIN_NS 40000
#define SPIN_LOOK 64             /* turns between looks at the clock */

struct word {                    /* something to wait for; each on its own line */
	_Alignas(64) _Atomic uint32_t value;
	_Atomic uint32_t sleepers;
};

struct team {
	struct word job;             /* counts jobs; a change starts one */
	struct word gate;            /* counts barriers passed */
	_Alignas(64) _Atomic uint32_t arrived;
	_Alignas(64) _Atomic int32_t next;
	_Alignas(64) int n;
	int stop;
	void (*fn)(void *ctx, int i);
	void *ctx;
	struct member *member;       /* [n - 1] */
};

struct member {
	struct team *team;
	pthread_t thread;
	int i;
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#endif
}

/* Wait until w is no longer `old`. */
static void word_wait(struct word *w, uint32_t old)
{
	uint64_t until = 0;

	for (unsigned i = 1; atomic_load_explicit(&w->value, memory_order_acquire) == old; i++) {
		relax();
		if (i % SPIN_LOOK)
			continue;
		if (!until)
			until = now_ns() + SPIN_NS;
		else if (now_ns() > until)
			break;
	}
	/* F: the count of sleepers is raised before the value is looked at again, and the waker
	 * changes the value before it looks at the count: one of the two sees the other. */
	while (atomic_load(&w->value) == old) {
		atomic_fetch_add(&w->sleepers, 1);
		if (atomic_load(&w->value) == old)
			syscall(SYS_futex, &w->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
		atomic_fetch_sub(&w->sleepers, 1);
	}
}

static void word_bump(struct word *w)
{
	atomic_fetch_add(&w->value, 1);
	if (atomic_load(&w->sleepers))
		syscall(SYS_futex, &w->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void team_barrier(struct team *t)
{
	uint32_t gate;

	if (t->n == 1) {
		atomic_store_explicit(&t->next, 0, memory_order_relaxed);
		return;
	}
	gate = atomic_load_explicit(&t->gate.value, memory_order_relaxed);
	if (atomic_fetch_add(&t->arrived, 1) + 1 == (uint32_t)t->n) {
		atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
		atomic_store_explicit(&t->next, 0, memory_order_relaxed);
		word_bump(&t->gate);
	} else {
		word_wait(&t->gate, gate);
	}
}

int32_t team_take(struct team *t)
{
	return atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);
}

void team_run(struct team *t, void (*fn)(void *ctx, int i), void *ctx)
{
	t->fn = fn;
	t->ctx = ctx;
	atomic_store_explicit(&t->next, 0, memory_order_relaxed);
	if (t->n > 1)
		word_bump(&t->job);
	fn(ctx, 0);
	team_barrier(t);
}

static void *member_main(void *arg)
{
	struct member *m = arg;
	struct team *t = m->team;
	uint32_t seen = 0; /* jobs, as the team was when it was made */

	for (;;) {
		word_wait(&t->job, seen);
		seen++;
		if (t->stop)
			return NULL;
		t->fn(t->ctx, m->i);
		team_barrier(t);
	}
}

/* With as many threads as cores each gets its own: the kernel can only do worse.  With fewer,
 * pinning would put the teams of two processes onto the same cores, so it is left alone.
 * Thread 0 belongs to the caller and is never pinned. */
static void pin(struct member *m, const cpu_set_t *allowed, int threads)
{
	cpu_set_t one;
	int seen = 0;

	if (CPU_COUNT(allowed) != threads)
		return;
	CPU_ZERO(&one);
	for (int c = 0; c < CPU_SETSIZE; c++)
		if (CPU_ISSET(c, allowed) && seen++ == m->i)
			CPU_SET(c, &one);
	(void)pthread_setaffinity_np(m->thread, sizeof(one), &one);
}

int team_create(struct team **out, int n)
{
	struct team *t = NULL;
	sigset_t all, before;
	cpu_set_t allowed;
	char name[24];
	int e = 0;

	assert(n > 0);
	if (posix_memalign((void **)&t, 64, sizeof(*t)))
		return -ENOMEM;
	*t = (struct team){ .n = 1 };
	t->member = calloc((size_t)n, sizeof(*t->member));
	if (!t->member) {
		free(t);
		return -ENOMEM;
	}
	CPU_ZERO(&allowed);
	sched_getaffinity(0, sizeof(allowed), &allowed);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the caller's */
	for (int i = 1; i < n && !e; i++) {
		struct member *m = &t->member[i - 1];

		*m = (struct member){ .team = t, .i = i };
		e = pthread_create(&m->thread, NULL, member_main, m);
		if (e)
			break;
		t->n = i + 1;
		snprintf(name, sizeof(name), "sr-cpu-%d", i);
		pthread_setname_np(m->thread, name);
		pin(m, &allowed, n);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (e) {
		team_destroy(t);
		return -e;
	}
	*out = t;
	return 0;
}

int team_size(const struct team *t)
{
	return t->n;
}

void team_destroy(struct team *t)
{
	if (!t)
		return;
	t->stop = 1;
	word_bump(&t->job);
	for (int i = 1; i < t->n; i++)
		pthread_join(t->member[i - 1].thread, NULL);
	free(t->member);
	free(t);
}
