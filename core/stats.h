/* stats.h - counters, histograms and the last steps, in a shared page that anyone permitted
 * can read without asking.
 *
 * The daemon alone writes (plain stores to aligned words, single writer); readers map the
 * file read-only and take what they see: each word is whole, words may be of different
 * moments.  File: <run dir>/stats, made anew at every start (write to a temporary name, then
 * rename), so a reader that sees another inode or epoch 0 reopens.
 *
 * Histograms count per bucket, not cumulatively; the last bucket is +Inf.  Bounds are vLLM's
 * with finer ones below, see stats.c.  Sums are in the unit of the histogram (seconds or
 * tokens).
 */
#ifndef STATS_H
#define STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STATS_MAGIC   0x54535253u  /* "SRST" */
#define STATS_VERSION 1u
#define STATS_BUCKETS 40
#define STATS_STEPS   4096

enum stats_hist {
	HIST_TTFT, HIST_ITL, HIST_TPOT, HIST_E2E, HIST_QUEUE, HIST_INFERENCE, HIST_PREFILL,
	HIST_DECODE, HIST_PROMPT_TOKENS, HIST_GENERATION_TOKENS, HIST_MAX_TOKENS,
	HIST_PREFILL_COMPUTED, HIST_STEP_TOKENS, N_HIST
};
struct stats_histogram { uint64_t count[STATS_BUCKETS]; double sum; };

enum stats_end { ENDED_STOP, ENDED_LENGTH, ENDED_ABORT, ENDED_ERROR, N_ENDED };

struct stats_step {               /* one batch */
	uint64_t begin_ns;
	uint32_t rows, tokens;
	uint32_t host_ns, device_ns;
	uint8_t  why, bound;          /* enum sched_why, sched_bound */
	uint8_t  zero[6];
};

struct stats_page {
	uint32_t magic, version, bytes, pid;
	uint64_t epoch;               /* 0 once the daemon stopped cleanly */
	uint64_t start_ns, start_unix;/* CLOCK_MONOTONIC ns; seconds since 1970 */
	char     model[256], device[64], state[32]; /* state: loading, ready, draining */
	uint64_t alive_ns;            /* last turn of the loop or layer computed, MONOTONIC */
	uint64_t progress;            /* layers or batches computed since start */
	uint64_t busy_since_ns;       /* 0 = idle; else since when work was there without pause */

	/* configuration, for cache_config_info and tools */
	uint64_t block_tokens, n_blocks, n_host_blocks, max_model_len, max_num_seqs, max_batch_tokens;
	uint64_t weights_bytes, kv_bytes;
	double   gpu_memory_utilization;
	uint32_t prefix_caching;
	char     kv_dtype[16];

	/* gauges */
	uint64_t running, waiting, blocks_used, clients;

	/* counters */
	uint64_t steps, preemptions, prompt_tokens, prompt_cached, prompt_computed, generation_tokens;
	uint64_t prefix_queries, prefix_hits;          /* tokens */
	uint64_t ended[N_ENDED];
	uint64_t refused, invalid, died, accepted;
	uint64_t why_ns[16], bound_ns[16];             /* by enum sched_why, sched_bound */
	uint64_t syscalls_sleep, cycle_max_ns;

	struct stats_histogram hist[N_HIST];
	uint64_t n_step;              /* step i lies at step[i % STATS_STEPS] */
	struct stats_step step[STATS_STEPS];
};

/* Upper bounds of a histogram's buckets without +Inf; how many in *n.  The token histograms'
 * are 1-2-5 x 10^k and end at the first bound >= max_model_len (readers cut there). */
const double *stats_bounds(enum stats_hist h, int *n);
const char *stats_name(enum stats_hist h);   /* vLLM's, without prefix "vllm:" */

/* Writer. */
int  stats_create(struct stats_page **out, const char *run_dir, char *err, size_t errlen);
void stats_observe(struct stats_page *p, enum stats_hist h, double value);
void stats_destroy(struct stats_page *p, const char *run_dir);

/* Reader: maps <run dir>/stats, checks magic, version and size.  0, -ENOENT, -EPROTO. */
int  stats_open(const struct stats_page **out, const char *run_dir);
bool stats_stale(const struct stats_page *p, const char *run_dir); /* reopen? */
void stats_close(const struct stats_page *p);

#endif
