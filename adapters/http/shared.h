/* shared.h - counters of all adapter processes of an instance, in memory allocated before the fork.
 *
 * Every process adds with relaxed atomics.  A process that answers /metrics reads all of them, so every
 * process gives the same answer.  Sums of seconds are kept in nanoseconds.
 */
#ifndef SHARED_H
#define SHARED_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "adapters/http/fleet/fleet.h"
#include "api.h"
#include "adapters/http/gate/quota.h"

#define ROUTES_MAX 64

struct route_counters {
	_Atomic uint64_t by_class[6];        /* [status / 100] */
	_Atomic uint64_t bytes_in, bytes_out;
	_Atomic uint64_t ns, duration[4];    /* <= 0.1, 0.5, 1 s, more */
};

struct api_shared {
	struct quota_table quotas;           /* what each key uses */
	struct route_counters route[ROUTES_MAX];
	_Atomic uint64_t duration[22], duration_ns; /* all routes, fine buckets; see metrics.c */
	_Atomic uint64_t params_n[6], params_n_sum;
	_Atomic uint64_t preempted[8], preempted_sum; /* requests, by how often each was */
	_Atomic uint64_t parsed[2][2];       /* answers to chats with tools: [streamed][with a call] */
	_Atomic uint64_t rejected_requests;  /* 503: the daemon is away, or the queue is full of requests */
	_Atomic uint64_t rejected_tokens;    /* 503: the queue is full of tokens */
	_Atomic uint64_t rejected_keys;      /* 401 */
	_Atomic uint64_t gone;               /* clients that left before their answer was complete */
	_Atomic uint64_t moved, moved_tokens; /* requests that went on after their daemon had gone; tokens of
	                                        their answers that came before */
	_Atomic int64_t  load;               /* completions under way */
	_Atomic uint64_t turn_max_ns;        /* longest turn of a process's loop */
	_Atomic uint64_t guided;             /* requests whose answers keep to a grammar */
	_Atomic uint64_t grammars, grammar_ns; /* compilations, refused ones too; time spent */
	_Atomic uint64_t grammar_hits;       /* requests that found theirs compiled */
	_Atomic uint64_t guide_errors;       /* answers that ended because their grammar took too many steps */
	struct fleet_counters fleet[API_MODELS];
	_Atomic uint64_t tokenize_ns, prepared; /* time spent preparing requests; how many */
};

#define shared_add(counter, v) atomic_fetch_add_explicit(&(counter), (v), memory_order_relaxed)
#define shared_get(counter) atomic_load_explicit(&(counter), memory_order_relaxed)

static inline void shared_most(_Atomic uint64_t *counter, uint64_t v)
{
	uint64_t old = shared_get(*counter);

	while (v > old && !atomic_compare_exchange_weak_explicit(counter, &old, v, memory_order_relaxed,
	                                                         memory_order_relaxed))
		;
}

#endif
