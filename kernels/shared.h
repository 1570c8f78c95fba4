/* shared.h - what the ranks of a model share: one region of memory that each maps, and a barrier in it.
 *
 * The region is zero at first.  Its owner is whoever starts the ranks (kernels/ranks); it kills ranks that
 * hang, so a wait here has no end of its own.  A rank that computes or waits raises its `beat` every 20 ms
 * or more often.  So a rank that is stopped can be told from those that wait for it.
 */
#ifndef SR_SHARED_H
#define SR_SHARED_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SR_RANKS_MAX = 16 };
#define SHARED_CLEAR ((size_t)4096)

#ifndef __cplusplus                  /* C++ has no _Atomic: kernels/cuda calls the functions */
#include <stdatomic.h>

struct sr_shared {
	int32_t world;
	uint32_t spin_ns;            /* how long a wait spins before it sleeps */
	_Alignas(64) _Atomic uint32_t arrived;
	_Alignas(64) _Atomic uint32_t gate;      /* counts barriers passed; a futex */
	_Atomic uint32_t sleepers;
	struct { _Alignas(64) _Atomic uint64_t beat; } rank[SR_RANKS_MAX];
	_Alignas(64) unsigned char data[];       /* sr_need.shared bytes; up to SHARED_CLEAR of them are 0 when ranks start */
};

static inline void shared_beat(struct sr_shared *s, int32_t rank)
{
	atomic_fetch_add_explicit(&s->rank[rank].beat, 1, memory_order_relaxed);
}
#endif

/* Wait for all ranks.  What one wrote before, all see after.  One thread of each rank calls it. */
void shared_meet(struct sr_shared *s, int32_t rank);

/* Where data lies, and how many bytes it is from the start of the region. */
unsigned char *shared_data(struct sr_shared *s);
size_t shared_head(void);

#ifndef __cplusplus
/* Wait until *word is no longer `old`, but 20 ms at most: spin for spin_ns, then sleep.  Wake: raise the word, then
 * call shared_wake.  Between processes. */
void shared_wait(_Atomic uint32_t *word, uint32_t old, _Atomic uint32_t *sleepers, uint32_t spin_ns);
void shared_wake(_Atomic uint32_t *word, _Atomic uint32_t *sleepers);

#endif
#ifdef __cplusplus
}
#endif
#endif
