/* counters.h - everything that the daemon counts, in one struct, and the words for it.  A leaf.
 *
 * The daemon has one of these.  The scheduler, the clients and the loop add to it, all from the loop's
 * thread; core/meters.c copies it whole into the stats page, and the page into a mark each minute.
 * Tools subtract two of them.  A counter is added here and where it is counted; if it has a metric, or is
 * work lost, /metrics and the tools show it without being told.
 *
 * Every member is a uint64_t that only grows.  Tokens are ids; operations count a multiply-add as two.
 */
#ifndef COUNTERS_H
#define COUNTERS_H

#include <stddef.h>
#include <stdint.h>

#define COUNTERS_AXIS 16              /* room for enum sched_why, sched_bound of limits.h */
#define COUNTERS_DRAFT 16             /* most guesses of a row */

enum stats_end { ENDED_STOP, ENDED_LENGTH, ENDED_ABORT, ENDED_ERROR, N_ENDED };

/* How the time of `empty` is split; the sum is why_ns[WHY_EMPTY].  Tools show it in this order.
 * First what clients report: preparing a request, or receiving one (clients/empty.h).  Then, from EMPTY_SEEN
 * on, what the daemon sees: clients connected but nothing under way; all their requests in the batch;
 * or no client connected. */
enum stats_empty { EMPTY_TOKENIZING, EMPTY_NETWORK, EMPTY_SILENT, EMPTY_SERVED, EMPTY_NOBODY, N_EMPTY,
                   EMPTY_SEEN = EMPTY_SILENT };

/* Who had the cores for which the daemon's threads waited: other programs of this machine; nobody, because its
 * cgroup's quota was used up; or other machines of the hypervisor.  The sum is bound_ns[BOUND_CORES]. */
enum stats_cores { CORES_OTHERS, CORES_QUOTA, CORES_MACHINE, N_CORES };

/* In the order in which /metrics prints those with a metric.  .past and .lost: each is work lost, and
 * tools say so. */
#define COUNTERS(X) \
	/* prompt tokens looked up in the prefix cache; found there */ \
	X(prefix_queries, .metric = "vllm:prefix_cache_queries_total", \
	  .help = "Prefix cache queries, in terms of number of queried tokens.") \
	X(prefix_hits, .metric = "vllm:prefix_cache_hits_total", \
	  .help = "Prefix cache hits, in terms of number of cached tokens.") \
	X(preemptions, .metric = "vllm:num_preemptions_total", \
	  .help = "Cumulative number of preemption from the engine.", \
	  .past = "preempted", .lost = "sequences lost their KV blocks and were computed again") \
	/* of requests with their first token: all prompt tokens; those of them found in the cache */ \
	X(prompt_tokens, .metric = "vllm:prompt_tokens_total", .help = "Number of prefill tokens processed.") \
	X(prompt_cached, .metric = "vllm:prompt_tokens_cached_total", \
	  .help = "Number of cached prompt tokens (local + external).") \
	X(generation_tokens, .metric = "vllm:generation_tokens_total", \
	  .help = "Number of generation tokens processed.") \
	/* connections; requests under way at a client's death are not counted one by one */ \
	X(accepted, .metric = "slipring_clients_accepted_total", .help = "Ring connections accepted.") \
	X(died, .metric = "slipring_clients_died_total", .help = "Clients that died with requests under way.") \
	X(refused, .metric = "slipring_refused_total", .help = "Connections and clients refused.") \
	X(invalid, .metric = "slipring_invalid_total", .help = "Requests refused as invalid by the daemon.") \
	X(steps, .metric = "slipring_steps_total", .help = "Batches computed.") \
	X(device_restarts, .metric = "slipring_device_restarts_total", \
	  .help = "Times that the device was lost and started anew; every request went on.") \
	X(prefix_waits, .metric = "slipring_prefix_waits_total", \
	  .help = "Steps that prompts waited for another to compute what they begin with.") \
	/* of layers that look back at a window only: blocks given back as they left it; prompt tokens that other \
	 * layers had cached, but these no longer, or of which no state was kept */ \
	X(window_blocks, .metric = "slipring_window_blocks_total", \
	  .help = "KV blocks given back because they left their layers' window.") \
	X(window_misses, .metric = "slipring_window_misses_total", \
	  .help = "Prompt tokens that were cached, but for the layers with a window or a state.") \
	/* of models whose layers have a state: snapshots for the prefix cache */ \
	X(states_kept, .metric = "slipring_states_kept_total", \
	  .help = "Snapshots of a sequence's state that were kept for cached prefixes.") \
	X(states_hit, .metric = "slipring_states_hit_total", .help = "Prefixes that were continued from a snapshot.") \
	X(states_evicted, .metric = "slipring_states_evicted_total", .help = "Snapshots evicted.") \
	X(sleeps, .metric = "slipring_sleeps_total", .help = "Times that the daemon slept.") \
	/* requests that were taken and whose answers are guided; guides taken, also those that were ignored */ \
	X(guided, .metric = "slipring_guided_requests_total", .help = "Requests with a guided answer.") \
	X(guides, .metric = "slipring_guides_total", .help = "Guides received from clients.") \
	X(pooled, .metric = "slipring_pooled_requests_total", .help = "Requests whose answer is a vector.") \
	/* rows of guided answers that were computed before their guide was there; tokens that guides forced */ \
	X(guide_misses, .metric = "slipring_guide_misses_total", \
	  .help = "Rows computed again because their guide came too late.", \
	  .past = "missed", .lost = "rows were computed again because their guide came too late") \
	X(forced_tokens, .metric = "slipring_forced_tokens_total", \
	  .help = "Tokens of answers that a guide forced, without a draw.") \
	/* rows with guesses, and these, when planned; those that were right */ \
	X(drafts, .metric = "vllm:spec_decode_num_drafts_total", .help = "Number of spec decoding drafts.") \
	X(draft_tokens, .metric = "vllm:spec_decode_num_draft_tokens_total", .help = "Number of draft tokens.") \
	X(draft_accepted, .metric = "vllm:spec_decode_num_accepted_tokens_total", .help = "Number of accepted tokens.") \
	/* batches with guesses took draft_ns; their tokens would have taken draft_without_ns without */ \
	X(draft_ns, .metric = NULL) \
	X(draft_without_ns, .metric = NULL) \
	/* rows and new tokens of batches, counted when planned; prompt tokens of them */ \
	X(rows, .metric = NULL) \
	X(step_tokens, .metric = NULL) \
	X(prompt_computed, .metric = NULL) \
	/* least work of batches computed: operations on bytes and on floats; bytes of device memory, and \
	 * between the tiers.  0: not counted by this device */ \
	X(int8_ops, .metric = NULL) \
	X(float_ops, .metric = NULL) \
	X(bytes_moved, .metric = NULL) \
	X(bytes_copied, .metric = NULL) \
	/* sequences times ns: divided by the time, they give averages */ \
	X(running_ns, .metric = NULL) \
	X(waiting_ns, .metric = NULL)

struct counters {
#define FIELD(name, ...) uint64_t name;
	COUNTERS(FIELD)
#undef FIELD
	uint64_t ended[N_ENDED];
	uint64_t draft_right[COUNTERS_DRAFT]; /* rows whose guess at this place was right */
	/* time since READY on both axes, by enum sched_why and sched_bound; why_ns[WHY_EMPTY], split */
	uint64_t why_ns[COUNTERS_AXIS], bound_ns[COUNTERS_AXIS];
	uint64_t empty_ns[N_EMPTY];
	uint64_t cores_ns[N_CORES];
};

struct counter {
	const char *name;
	const char *metric, *help;    /* as /metrics prints it; NULL: it does not */
	const char *past, *lost;      /* "preempted"; why it is work lost.  NULL: it is not */
};

#define COUNTERS_WORDS (sizeof(struct counters) / sizeof(uint64_t))
#define COUNTERS_NAMED (offsetof(struct counters, ended) / sizeof(uint64_t))

/* Counter i of COUNTERS_NAMED, in the order above. */
static inline const struct counter *counter_info(size_t i)
{
	static const struct counter info[] = {
#define ROW(field, ...) { .name = #field, __VA_ARGS__ },
		COUNTERS(ROW)
#undef ROW
	};

	_Static_assert(sizeof(info) / sizeof(info[0]) == COUNTERS_NAMED, "every field has its row");
	return &info[i];
}

static inline uint64_t counter_value(const struct counters *c, size_t i)
{
	return ((const uint64_t *)c)[i];
}

static inline void counter_set(struct counters *c, size_t i, uint64_t v)
{
	((uint64_t *)c)[i] = v;
}

/* What was counted from a to b.  Never below 0, because words may be from different moments. */
static inline void counters_between(const struct counters *a, const struct counters *b, struct counters *out)
{
	for (size_t i = 0; i < COUNTERS_WORDS; i++) {
		uint64_t from = counter_value(a, i), to = counter_value(b, i);

		counter_set(out, i, to > from ? to - from : 0);
	}
}

static inline uint64_t counters_ended(const struct counters *c)
{
	uint64_t n = 0;

	for (int i = 0; i < N_ENDED; i++)
		n += c->ended[i];
	return n;
}

#endif
