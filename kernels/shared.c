/* shared.c - see shared.h. */
#include <limits.h>
#include <linux/futex.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shared.h"
#include "shmring/clock.h"

#define NAP_NS    20000000       /* longest sleep: a beat follows */
#define SPIN_LOOK 64             /* turns between looks at the clock */

void shared_wait(_Atomic uint32_t *word, uint32_t old, _Atomic uint32_t *sleepers, uint32_t spin_ns)
{
	const struct timespec nap = { 0, NAP_NS };
	uint64_t until = spin_ns ? sr_now() + spin_ns : 0;

	for (unsigned i = 1; spin_ns; i++) {
		if (atomic_load_explicit(word, memory_order_acquire) != old)
			return;
		sr_relax();
		if (i % SPIN_LOOK == 0 && sr_now() > until)
			break;
	}
	/* F: the count of sleepers is raised before the word is looked at again, and the waker raises the word
	 * before it looks at the count: one of the two sees the other.  A sleeper that is killed leaves a count,
	 * which costs a system call. */
	atomic_fetch_add(sleepers, 1);
	if (atomic_load(word) == old)
		syscall(SYS_futex, word, FUTEX_WAIT, old, &nap, NULL, 0);
	atomic_fetch_sub(sleepers, 1);
}

void shared_wake(_Atomic uint32_t *word, _Atomic uint32_t *sleepers)
{
	if (atomic_load(sleepers))
		syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

unsigned char *shared_data(struct sr_shared *s)
{
	return s->data;
}

size_t shared_head(void)
{
	return sizeof(struct sr_shared);
}

void shared_meet(struct sr_shared *s, int32_t rank)
{
	uint32_t gate = atomic_load_explicit(&s->gate, memory_order_relaxed);

	shared_beat(s, rank);
	if (atomic_fetch_add(&s->arrived, 1) + 1 == (uint32_t)s->world) {
		atomic_store_explicit(&s->arrived, 0, memory_order_relaxed);
		atomic_fetch_add(&s->gate, 1);
		shared_wake(&s->gate, &s->sleepers);
		return;
	}
	while (atomic_load_explicit(&s->gate, memory_order_acquire) == gate) {
		shared_wait(&s->gate, gate, &s->sleepers, s->spin_ns);
		shared_beat(s, rank);
	}
}
