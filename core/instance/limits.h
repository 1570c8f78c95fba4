/* instance/limits.h - what limits a step, on two axes; and the words for it that users see in
 * metrics, top and why.  A leaf.
 */
#ifndef SCHED_LIMITS_H
#define SCHED_LIMITS_H

/* Why a step added no more rows; what bound the time since the step before. */
enum sched_why   { WHY_EMPTY, WHY_SEQS, WHY_TOKENS, WHY_KV, WHY_RING_OUT, WHY_ORDER,
                   WHY_STEP_TIME, WHY_PCIE, WHY_GUIDE, N_WHY };
enum sched_bound { BOUND_IDLE, BOUND_HOST, BOUND_COMPUTE, BOUND_MEMORY, BOUND_PCIE,
                   BOUND_RANKS, BOUND_CORES, N_BOUND };

static inline const char *sched_why_name(int why)
{
	static const char *const name[N_WHY] = { "empty", "seqs", "tokens", "kv", "ring_out", "order",
	                                         "step_time", "pcie", "guide" };

	return why >= 0 && why < N_WHY ? name[why] : "?";
}

static inline const char *sched_bound_name(int bound)
{
	static const char *const name[N_BOUND] = { "idle", "host", "compute", "bandwidth", "pcie", "ranks",
	                                           "cores" };

	return bound >= 0 && bound < N_BOUND ? name[bound] : "?";
}

#endif
