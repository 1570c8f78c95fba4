/* stats.h - counters, histograms, the last steps, a day of minutes and who is connected, in a
 * page that anyone permitted can read without asking.
 *
 * The daemon alone writes (plain stores to aligned words, single writer).  A reader copies what it
 * needs with pread: the daemon's user can cut the file, and that must not end a reader.  Each word is
 * whole, words may be of different moments.  File: <run dir>/stats, made anew at every start (written
 * under a temporary name, then renamed), so a reader that sees another epoch or 0 opens it again.
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
#include <sys/types.h>

#define STATS_MAGIC   0x54535253u  /* "SRST" */
#define STATS_VERSION 5u
#define STATS_BUCKETS 40
#define STATS_STEPS   4096
#define STATS_MINUTES 1440
#define STATS_CLIENTS 4096            /* rows: as many as --max-clients can be (tests/test_config.c) */
#define STATS_AXIS    16              /* room for enum sched_why, sched_bound */
#define STATS_KNOBS   8               /* room for enum knob */

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

/* What `empty` was, together why_ns[WHY_EMPTY]; in the order in which it is shown wherever it is.
 * First what clients say they were at: preparing a request; or waiting for the rest of one (empty.h).
 * Else what the daemon sees (from EMPTY_SEEN on): clients, but nothing under way; all that they asked
 * for in the batch; or nobody connected. */
enum stats_empty { EMPTY_TOKENIZING, EMPTY_NETWORK, EMPTY_SILENT, EMPTY_SERVED, EMPTY_NOBODY, N_EMPTY,
                   EMPTY_SEEN = EMPTY_SILENT };

/* What the counters stood at, at some moment: two of them tell what happened between.  No
 * minute is lost by a loop that slept through it: the next mark has all of it. */
struct stats_mark {
	uint64_t at_ns;               /* MONOTONIC; 0: none, or it is being written */
	uint64_t prompt_tokens, prompt_cached, prompt_computed, generation_tokens;
	uint64_t prefix_queries, prefix_hits;
	uint64_t ended, steps, rows, step_tokens, preemptions, held;
	uint64_t int8_ops, float_ops, bytes_moved, bytes_copied;
	uint64_t running_ns, waiting_ns; /* added up over the time: / seconds = how many on average */
	uint64_t why_ns[STATS_AXIS], bound_ns[STATS_AXIS], empty_ns[N_EMPTY];
	uint32_t running, waiting, clients; /* then */
	uint32_t blocks_peak;         /* most in use since the mark before */
};

struct stats_client {
	uint64_t id;                  /* of the connection, 1 ..; 0: the row is free, or changes hands */
	uint64_t since_ns;
	uint32_t pid, uid;
	char     name[32];            /* what it calls itself: any bytes */
	uint32_t live, unanswered;    /* requests under way; of them without a token yet */
	uint64_t requests, alone;     /* taken; of them those that found none of its own under way */
	uint64_t prompt_tokens, tokens;
	uint64_t held, full_since_ns; /* times its ring was full; since when it is, 0 = it is not */
	uint64_t preparing_ns, arriving_ns; /* by its own word, in windows of empty.h that had `empty` */
};

struct stats_page {
	uint32_t magic, version, bytes, pid;
	uint64_t epoch;               /* 0 once the daemon stopped cleanly */
	uint64_t start_ns, start_unix;/* CLOCK_MONOTONIC ns; seconds since 1970 */
	uint64_t ready_ns;            /* when the time on both axes began; 0 = not yet */
	uint64_t accounted_ns;        /* and how far it is counted: a loop that sleeps counts later */
	char     model[256], device[64], state[32]; /* state: loading, ready, draining */
	uint64_t alive_ns;            /* last turn of the loop or layer computed, MONOTONIC */
	uint64_t progress;            /* layers, as far as the device tells them, and batches, since start */
	uint64_t busy_since_ns;       /* 0 = idle; else since when work was there without pause */

	/* configuration, for cache_config_info and tools; the last two of the line as the knobs are now */
	uint64_t block_tokens, n_blocks, n_host_blocks, max_model_len, max_num_seqs, max_batch_tokens;
	uint64_t weights_bytes, kv_bytes;
	double   gpu_memory_utilization;
	uint32_t prefix_caching;
	char     kv_dtype[16];
	char     config_file[1024];   /* --config, from the root; "" = none */
	int64_t  knob[STATS_KNOBS], knob_ceiling[STATS_KNOBS]; /* by enum knob, see knobs.h */

	/* gauges */
	uint64_t running, waiting, blocks_used, clients;
	uint32_t blocks_peak;         /* since the last minute's mark */

	/* counters */
	uint64_t steps, rows, step_tokens; /* batches done; planned: rows, new tokens */
	/* what the batches done took at least: operations (a multiply-add is two) of products of bytes
	 * and of floats; bytes of the device's memory, and between the tiers.  0: not counted there. */
	uint64_t int8_ops, float_ops, bytes_moved, bytes_copied;
	uint64_t preemptions, prompt_tokens, prompt_cached, prompt_computed, generation_tokens;
	uint64_t prefix_queries, prefix_hits;          /* tokens */
	uint64_t held;                /* steps that prompts waited for another to compute what they share */
	uint64_t ended[N_ENDED];
	uint64_t refused, invalid, died, accepted;
	uint64_t running_ns, waiting_ns;               /* sequences times ns */
	uint64_t why_ns[STATS_AXIS], bound_ns[STATS_AXIS]; /* by enum sched_why, sched_bound */
	uint64_t empty_ns[N_EMPTY];                    /* why_ns[WHY_EMPTY], split */
	uint64_t syscalls_sleep, cycle_max_ns;

	struct stats_histogram hist[N_HIST];
	uint64_t n_step;              /* step i lies at step[i % STATS_STEPS] */
	struct stats_step step[STATS_STEPS];

	uint64_t n_minute;            /* mark i lies at minute[i % STATS_MINUTES]; the first is of READY */
	struct stats_mark minute[STATS_MINUTES];
	uint64_t n_client;            /* connections so far */
	struct stats_client client[STATS_CLIENTS];
};

/* Upper bounds of a histogram's buckets without +Inf; how many in *n.  The token histograms'
 * are 1-2-5 x 10^k and end at the first bound >= max_model_len (readers cut there). */
const double *stats_bounds(enum stats_hist h, int *n);
const char *stats_name(enum stats_hist h);   /* vLLM's, without prefix "vllm:" */
const char *stats_empty_name(int empty);      /* "tokenizing" */

/* Writer. */
int  stats_create(struct stats_page **out, const char *run_dir, char *err, size_t errlen);
void stats_observe(struct stats_page *p, enum stats_hist h, double value);
void stats_observe_many(struct stats_page *p, enum stats_hist h, double value, uint64_t n);
void stats_minute(struct stats_page *p);     /* mark now, and begin another minute */
/* A row for a connection, its id set; NULL if all are taken.  Then back. */
struct stats_client *stats_client_take(struct stats_page *p, const char name[32], uint32_t pid, uint32_t uid);
void stats_client_give(struct stats_client *c);
void stats_destroy(struct stats_page *p, const char *run_dir);

/* Reader: a copy of <run dir>/stats in the reader's own memory, magic, version and size checked, its
 * strings ended and fit to be shown.  It is as it was at the last stats_read.  0, -ENOENT, -EPROTO. */
int  stats_open(const struct stats_page **out, const char *run_dir);
void stats_close(const struct stats_page *p);
/* Again, of a page that stats_open gave: all but steps and clients (8 KB; minutes too if one was added);
 * or all of it (1.3 MB, thrice).  0, or -errno: the file was cut or spoiled, and epoch is 0 here. */
int  stats_read(const struct stats_page *p);
int  stats_read_all(const struct stats_page *p);
bool stats_stale(const struct stats_page *p, const char *run_dir); /* reopen? asks the files, not the copy */
uid_t stats_owner(const struct stats_page *p); /* of the file: whose word all of it is */

/* Reader: the counters as they stand; and the mark nearest to, but not after, the time since_ns, or
 * the oldest there is.  False: there is none (the daemon is not ready yet). */
void stats_now(const struct stats_page *p, struct stats_mark *out);
bool stats_since(const struct stats_page *p, uint64_t since_ns, struct stats_mark *out);

#endif
