/* team.c - a fork-join team with a central barrier.  See team.h. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/nodes.h"
#include "team.h"
#include "shmring/clock.h"

/* How long a wait spins before it sleeps.  It is longer than the shares of one verb differ, and about
 * as long as an idle core takes to wake up (20 to 40 us). */
#define SPIN_NS 40000
#define SPIN_LOOK 64             /* turns between looks at the clock */

/* A thread loses its core to another process, usually for 3 to 4 ms, or to another thread of ours, for as
 * long as that one computes and spins, at every barrier.  The others' waits then go to sleep.  So do waits
 * for a share that takes longer than another, which is no reason to leave a thread out.  The kernel tells
 * the two apart: it counts for each thread how long it was ready to run and had no core (schedstat).  If
 * waits for lost cores took more of the last WINDOW_NS than one thread less would cost, the next jobs have
 * one thread less, for REST_NS at first.  The rest doubles each time a core is lost again, until none was
 * for PROVEN_NS. */
#define LATE_MIN_NS  2500000u
#define WINDOW_NS   24000000u
#define REST_NS     16000000u
#define REST_MAX_NS 128000000u
#define PROVEN_NS   48000000u

struct word {                    /* a value to wait for, on a cache line of its own */
	_Alignas(64) _Atomic uint32_t value;
	_Atomic uint32_t sleepers;
};

/* How many threads fit; only thread 0 touches it.  Times in ns. */
struct fit {
	int n;                       /* now */
	uint64_t worked, late, lost; /* in this window: in jobs; of that in waits that slept; without a core */
	uint64_t proven;             /* in jobs since n last changed */
	uint64_t rest, until;        /* how long to leave out a thread, and until when */
};

/* The threads of a job on one node. */
struct camp { _Alignas(64) _Atomic uint32_t arrived; uint32_t all; };

struct team {
	struct word gate;            /* counts barriers passed */
	_Alignas(64) _Atomic uint32_t arrived;
	_Alignas(64) _Atomic int32_t next;
	_Alignas(64) _Atomic uint64_t late; /* ns that threads of this job waited asleep, summed */
	_Atomic uint64_t lost;       /* ns that its threads were ready to run and had no core, summed */
	_Alignas(64) int n;          /* threads made */
	int now;                     /* of this job */
	const struct nodes *nodes;   /* several; or NULL */
	int n_camps;                 /* nodes that have threads of this job */
	struct camp *camp;           /* [nodes] */
	int stop;
	void (*fn)(void *ctx, int i);
	void *ctx;
	struct fit fit;
	struct member *member;       /* [n]; 0, the caller, has no thread */
};

struct member {
	struct word job;             /* number of this thread's jobs; a change starts one */
	struct team *team;
	pthread_t thread;
	int i, node;
	int schedstat;               /* of this thread, or -1 */
	uint64_t lost;               /* what it said last, ns */
};

/* Wait until w is no longer `old`.  Returns the ns it took if it slept, else 0. */
static uint64_t word_wait(struct word *w, uint32_t old)
{
	uint64_t until = 0;

	for (unsigned i = 1; atomic_load_explicit(&w->value, memory_order_acquire) == old; i++) {
		sr_relax();
		if (i % SPIN_LOOK)
			continue;
		if (!until)
			until = sr_now() + SPIN_NS;
		else if (sr_now() > until)
			break;
	}
	if (atomic_load_explicit(&w->value, memory_order_acquire) != old)
		return 0;
	/* F: the count of sleepers is raised before the value is looked at again, and the waker
	 * changes the value before it looks at the count: one of the two sees the other. */
	while (atomic_load(&w->value) == old) {
		atomic_fetch_add(&w->sleepers, 1);
		if (atomic_load(&w->value) == old)
			syscall(SYS_futex, &w->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
		atomic_fetch_sub(&w->sleepers, 1);
	}
	return sr_now() - (until - SPIN_NS);
}

static void word_bump(struct word *w)
{
	atomic_fetch_add(&w->value, 1);
	if (atomic_load(&w->sleepers))
		syscall(SYS_futex, &w->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static _Thread_local int my_node; /* of a thread of a team on several nodes */

static void open_gate(struct team *t)
{
	atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
	atomic_store_explicit(&t->next, 0, memory_order_relaxed);
	word_bump(&t->gate);
}

/* The last thread of a node arrives for all of them. */
static bool arrive_on_node(struct team *t)
{
	struct camp *c = &t->camp[my_node];
	uint32_t all = c->all, camps = (uint32_t)t->n_camps; /* read before we arrive */

	if (atomic_fetch_add(&c->arrived, 1) + 1 != all)
		return false;
	atomic_store_explicit(&c->arrived, 0, memory_order_relaxed);
	return atomic_fetch_add(&t->arrived, 1) + 1 == camps;
}

void team_barrier(struct team *t)
{
	uint32_t all = (uint32_t)t->now; /* read before we arrive: afterwards the next job may change it */
	uint32_t gate;
	uint64_t late;

	if (all == 1) {
		atomic_store_explicit(&t->next, 0, memory_order_relaxed);
		return;
	}
	gate = atomic_load_explicit(&t->gate.value, memory_order_relaxed);
	if (t->nodes ? arrive_on_node(t) : atomic_fetch_add(&t->arrived, 1) + 1 == all) {
		open_gate(t);
		return;
	}
	late = word_wait(&t->gate, gate);
	if (late)
		atomic_fetch_add(&t->late, late);
}

int32_t team_take(struct team *t)
{
	return atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);
}

/* ---- how many threads fit ------------------------------------------------------------------- */

/* How long this thread has been ready to run without a core: the second number.  0 if the kernel does not
 * count it: then no thread is ever left out. */
static uint64_t without_core(int schedstat)
{
	char text[64];
	ssize_t n = schedstat < 0 ? -1 : pread(schedstat, text, sizeof(text) - 1, 0);
	char *at = text;

	if (n <= 0)
		return 0;
	text[n] = 0;
	(void)strtoull(at, &at, 10);
	return strtoull(at, NULL, 10);
}

static void open_schedstat(struct member *m)
{
	m->schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
	m->lost = without_core(m->schedstat);
}

static void close_schedstat(struct member *m)
{
	if (m->schedstat >= 0)
		close(m->schedstat);
	m->schedstat = -1;
}

/* At the end of a job: add what this thread lost since it last told. */
static void tell_lost(struct team *t, struct member *m)
{
	uint64_t lost = without_core(m->schedstat);

	if (lost > m->lost)
		atomic_fetch_add_explicit(&t->lost, lost - m->lost, memory_order_relaxed);
	m->lost = lost;
}

int team_fit(struct team *t)
{
	struct fit *f = &t->fit;

	if (f->n < t->n && sr_now() >= f->until) {
		f->n++;              /* try one thread more again */
		f->worked = f->late = f->lost = f->proven = 0;
	}
	return f->n;
}

/* A job of f->n threads took `took` ns. */
static void fit_learn(struct team *t, uint64_t took)
{
	struct fit *f = &t->fit;
	uint64_t late = atomic_exchange_explicit(&t->late, 0, memory_order_relaxed);
	uint64_t lost = atomic_exchange_explicit(&t->lost, 0, memory_order_relaxed), least;

	if (f->n == 1)
		return;
	f->worked += took;
	f->late += late / (uint64_t)(f->n - 1);
	f->lost += lost;
	f->proven += took;
	least = f->late < f->lost ? f->late : f->lost;
	if (least * (uint64_t)f->n * 5 > f->worked * 3 && least > LATE_MIN_NS) {
		f->n--;
		f->worked = f->late = f->lost = f->proven = 0;
		f->until = sr_now() + f->rest;
		f->rest = 2 * f->rest < REST_MAX_NS ? 2 * f->rest : REST_MAX_NS;
	} else if (f->proven > PROVEN_NS) {
		f->rest = REST_NS;
		f->until = 0;
	}
	if (f->worked > WINDOW_NS) {
		f->worked /= 2;
		f->late /= 2;
		f->lost /= 2;
	}
}

/* ---- jobs ------------------------------------------------------------------------------------- */

static void go_to_node(const struct member *m)
{
	if (!m->team->nodes)
		return;
	my_node = m->node;
	nodes_pin(m->team->nodes, m->node);
}

/* Count the threads of this job on each node. */
static void make_camps(struct team *t)
{
	t->n_camps = 0;
	for (int k = 0; k < t->nodes->n; k++)
		t->camp[k].all = 0;
	for (int i = 0; i < t->now; i++)
		t->n_camps += t->camp[t->member[i].node].all++ == 0;
}

void team_run_some(struct team *t, int n, void (*fn)(void *ctx, int i), void *ctx)
{
	uint64_t begin = sr_now();

	assert(n >= 1 && n <= t->n);
	if (!pthread_equal(t->member[0].thread, pthread_self())) {
		close_schedstat(&t->member[0]); /* another thread is thread 0 from now on */
		open_schedstat(&t->member[0]);
		t->member[0].thread = pthread_self();
		go_to_node(&t->member[0]);
	}
	t->now = n;
	if (t->nodes)
		make_camps(t);
	t->fn = fn;
	t->ctx = ctx;
	atomic_store_explicit(&t->next, 0, memory_order_relaxed);
	for (int i = 1; i < n; i++)
		word_bump(&t->member[i].job);
	fn(ctx, 0);
	if (n > 1)
		tell_lost(t, &t->member[0]);
	team_barrier(t);
	if (n == t->fit.n)
		fit_learn(t, sr_now() - begin);
}

void team_run(struct team *t, void (*fn)(void *ctx, int i), void *ctx)
{
	team_run_some(t, t->n, fn, ctx);
}

static void *member_main(void *arg)
{
	struct member *m = arg;
	struct team *t = m->team;
	uint32_t seen = 0; /* jobs so far: none when the team was made */

	open_schedstat(m);
	go_to_node(m);
	for (;;) {
		word_wait(&m->job, seen);
		seen++;
		if (t->stop) {
			close_schedstat(m);
			return NULL;
		}
		t->fn(t->ctx, m->i);
		tell_lost(t, m);
		team_barrier(t);
	}
}

int team_create(struct team **out, int n, const struct nodes *nodes)
{
	struct team *t = NULL;
	sigset_t all, before;
	char name[24];
	int e = 0;

	assert(n > 0);
	if (posix_memalign((void **)&t, 64, sizeof(*t)))
		return -ENOMEM;
	*t = (struct team){ .n = 1, .now = 1 };
	if (posix_memalign((void **)&t->member, 64, (size_t)n * sizeof(*t->member)) ||
	    posix_memalign((void **)&t->camp, 64, NODES_MAX * sizeof(*t->camp))) {
		free(t->member);
		free(t);
		return -ENOMEM;
	}
	memset(t->camp, 0, NODES_MAX * sizeof(*t->camp));
	t->nodes = nodes && nodes->n > 1 ? nodes : NULL;
	t->member[0] = (struct member){ .team = t, .thread = pthread_self() };
	open_schedstat(&t->member[0]);
	go_to_node(&t->member[0]);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* the caller's thread takes signals */
	for (int i = 1; i < n; i++) {
		struct member *m = &t->member[i];

		*m = (struct member){ .team = t, .i = i, .node = nodes ? node_of(i, n, nodes->n) : 0 };
		e = pthread_create(&m->thread, NULL, member_main, m);
		if (e)
			break;
		t->n = i + 1;
		snprintf(name, sizeof(name), "sr-cpu-%d", i);
		pthread_setname_np(m->thread, name);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (e) {
		team_destroy(t);
		return -e;
	}
	t->fit = (struct fit){ .n = n, .rest = REST_NS };
	*out = t;
	return 0;
}

void team_destroy(struct team *t)
{
	if (!t)
		return;
	t->stop = 1;
	for (int i = 1; i < t->n; i++) {
		word_bump(&t->member[i].job);
		pthread_join(t->member[i].thread, NULL);
	}
	close_schedstat(&t->member[0]);
	free(t->camp);
	free(t->member);
	free(t);
}
