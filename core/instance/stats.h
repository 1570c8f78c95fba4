/* stats.h - counters, histograms, the last steps, a day of minutes and the connected clients.  They are
 * in a page that anyone with permission can read without asking the daemon.
 *
 * The daemon alone writes (plain stores to aligned words, single writer).  A reader copies what it
 * needs with pread, because the daemon's user can shrink the file, and that must not end a reader.  Each
 * word is whole; words may be from different moments.  File: <run dir>/stats, made anew at every start
 * (under a temporary name, then renamed).  A reader that sees another epoch or 0 opens it again.
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

#include "core/instance/counters.h"
#include "core/instance/limits.h"

#define STATS_MAGIC   0x54535253u  /* "SRST" */
#define STATS_VERSION 19u
#define STATS_BUCKETS 40
#define STATS_STEPS   4096
#define STATS_MINUTES 1440
#define STATS_CLIENTS 4096            /* rows: the most that --max-clients allows (tests/core/instance/test_config.c) */
#define STATS_RANKS   16
#define STATS_NAMES   16              /* CONFIG_LIST */
#define STATS_GROUPS  16              /* KV_GROUPS */
#define STATS_KNOBS   8               /* room for enum knob */
#define STATS_ENDED   4096            /* requests that ended: the last ones of each uid, see stats_end() */
#define STATS_UIDS    64              /* uids whose ends are told apart; all others share one more row */
#define STATS_RAN     4096            /* sequences that run at once, by user_data */

enum stats_hist {
	HIST_TTFT, HIST_ITL, HIST_TPOT, HIST_E2E, HIST_QUEUE, HIST_INFERENCE, HIST_PREFILL,
	HIST_DECODE, HIST_PROMPT_TOKENS, HIST_GENERATION_TOKENS, HIST_MAX_TOKENS,
	HIST_PREFILL_COMPUTED, HIST_STEP_TOKENS, N_HIST
};
struct stats_histogram { uint64_t count[STATS_BUCKETS]; double sum; };

struct stats_step {               /* one batch */
	uint64_t begin_ns;
	uint32_t rows, tokens;
	uint32_t host_ns, device_ns;
	uint8_t  why, bound;          /* enum sched_why, sched_bound */
	uint8_t  zero[6];
};

/* The counters at one moment; two marks show what happened between them.  If the loop sleeps
 * through a minute, the next mark has all of it. */
struct stats_mark {
	uint64_t at_ns;               /* MONOTONIC; 0: empty, or being written */
	struct counters count;
	uint32_t running, waiting, clients; /* at that moment */
	uint32_t blocks_peak;         /* most in use since the previous mark */
};

struct stats_client {
	uint64_t id;                  /* number of the connection, from 1; 0: the row is free */
	uint64_t since_ns;
	uint32_t pid, uid;
	char     name[32];            /* the client's own name: any bytes */
	uint32_t live, unanswered;    /* requests under way; those without a token yet */
	uint64_t requests, alone;     /* requests taken; those that came while none of its own was under way */
	uint64_t prompt_tokens, tokens;
	uint64_t held, full_since_ns; /* times its ring was full; since when it is full, 0 = it is not */
	uint64_t preparing_ns, arriving_ns; /* as the client reports, in windows of empty.h with `empty` time */
};

/* What the daemon did from one moment to another; or the sums up to a moment, which wrap around. */
struct stats_span {
	uint32_t steps, rows;         /* batches, and the rows in them */
	uint32_t why[N_WHY], bound[N_BOUND]; /* time by what limited it, in units of 1,024 ns */
};

/* A request that has ended.  Times are MONOTONIC ns; 0 = never. */
struct stats_ended {
	uint64_t number;              /* of the end, from 1; 0: empty, or being written */
	uint64_t name;                /* stats_request_name() of its id; 0 = the client gave none */
	uint8_t  trace[16];           /* W3C trace id; zeros: none */
	char     client[32];          /* the client's own name: any bytes */
	uint64_t queued, scheduled, first, last, at; /* taken, first planned, first and last token, ended */
	uint32_t n_prompt, cached, computed, n_tokens, max_tokens, preempted;
	int32_t  finish;              /* enum sr_finish, or -errno */
	uint32_t guided, masks;       /* 1: its tokens needed guides; masks that the client computed */
	uint32_t mask_us, mask_most_us; /* the client's own time for all of them; for the slowest */
	uint32_t uid;                 /* the client's, by the kernel */
	struct stats_span before, after; /* its first token, from when it was taken, until it ended */
};

struct stats_page {
	uint32_t magic, version, bytes, pid;
	uint64_t epoch;               /* 0 once the daemon has stopped cleanly */
	uint64_t start_ns, start_unix;/* CLOCK_MONOTONIC ns; seconds since 1970 */
	uint64_t ready_ns;            /* start of the time on both axes; 0 = not yet ready */
	uint64_t accounted_ns;        /* end of the time counted so far; a sleeping loop counts it later */
	char     model[256], device[64], state[32]; /* state: loading, ready, draining */
	uint64_t alive_ns;            /* last turn of the loop or layer computed, MONOTONIC */
	uint64_t progress;            /* layers (if the device reports them) and batches since start */
	uint64_t busy_since_ns;       /* 0 = idle; else since when there has been work without pause */

	/* configuration, for cache_config_info and tools; max_num_seqs, max_batch_tokens: current knobs */
	uint64_t block_tokens, n_blocks, n_host_blocks, max_model_len, max_num_seqs, max_batch_tokens;
	uint64_t weights_bytes, kv_bytes;
	uint64_t kv_tokens;           /* of requests of max_model_len, for which the blocks are enough */
	uint64_t kv_groups;           /* of layers that share blocks; 1 = all of them */
	uint64_t n_states, state_bytes; /* states of sequences, and bytes of all; 0: layers have none */
	double   gpu_memory_utilization;
	uint32_t prefix_caching;
	char     kv_dtype[16];
	char     kernels_off[256];    /* the GPU's that are switched off, by name, with commas between; "" = none */
	char     config_file[1024];   /* --config, as an absolute path; "" = none */
	int64_t  knob[STATS_KNOBS], knob_ceiling[STATS_KNOBS]; /* by enum knob, see knobs.h */

	/* gauges */
	uint64_t running, waiting, blocks_used, clients;
	uint64_t blocks_cached, host_cached; /* blocks that no sequence has, kept for their prefixes: by tier */
	uint64_t waiting_tokens;      /* prompt tokens of the waiting requests, cached or not */
	double   prompt_token_ns;     /* time that a prompt token adds to a batch, smoothed; 0 = not known */
	uint64_t states_used;         /* by running sequences */
	uint32_t blocks_peak;         /* since the last minute's mark */
	uint32_t cores_known;         /* 1: this kernel counts how long a thread waits for a core; 0: it does not */
	struct stats_group { uint32_t used; int32_t window; } group[STATS_GROUPS]; /* blocks_used by group of layers;
	                                 most tokens that these look back, 0 = all */

	struct counters count;
	uint64_t cycle_max_ns;        /* longest turn of the loop */

	struct stats_histogram hist[N_HIST];
	uint64_t n_step;              /* step i lies at step[i % STATS_STEPS] */
	struct stats_step step[STATS_STEPS];

	uint64_t n_minute;            /* mark i lies at minute[i % STATS_MINUTES]; the first is made at READY */
	struct stats_mark minute[STATS_MINUTES];
	uint64_t n_client;            /* connections so far */
	struct stats_client client[STATS_CLIENTS];

	/* for programs that open the model, too: they never change.  What does not fit here is left out. */
	char     model_path[4096];    /* file or directory, absolute; "" = unknown */
	char     served[STATS_NAMES][256]; /* its names in requests; "" = none */

	uint64_t n_ranks;             /* processes among which the model is divided; 0: the daemon has its device itself */
	struct stats_rank { uint64_t pid, batches, late_ns; } rank[STATS_RANKS]; /* late: behind the first, summed */

	uint64_t n_ended;             /* ends so far; one lies anywhere, see its number */
	struct stats_ended ended[STATS_ENDED];
	/* the daemon's own: the places of each uid's ends, oldest first; the last row is of all other uids */
	struct stats_uid { uint32_t uid, n; uint16_t first, last, zero[2]; } uid[STATS_UIDS + 1];
	uint16_t end_next[STATS_ENDED];
	uint32_t ends_used;

	/* What ran when the last batch was launched, as its clients name it (sr_request.user_data).  A daemon that
	 * died leaves this behind.  n_ran > STATS_RAN: it is not known. */
	uint64_t n_ran, ran[STATS_RAN];
};

/* Upper bounds of a histogram's buckets without +Inf; *n is their number.  Bounds of the token
 * histograms are 1-2-5 x 10^k and end at the first bound >= max_model_len (readers cut there). */
const double *stats_bounds(enum stats_hist h, int *n);
const char *stats_name(enum stats_hist h);   /* vLLM's name, without the prefix "vllm:" */
const char *stats_empty_name(int empty);      /* "tokenizing" */
const char *stats_cores_name(int by);         /* "others" */

/* Writer. */
int  stats_create(struct stats_page **out, const char *run_dir, char *err, size_t errlen);
void stats_observe(struct stats_page *p, enum stats_hist h, double value);
void stats_observe_many(struct stats_page *p, enum stats_hist h, double value, uint64_t n);
void stats_count(struct stats_page *p, const struct counters *c); /* copy all but the times on the axes */
void stats_axes(struct stats_page *p, const struct counters *c, uint64_t now); /* and these, counted until now */
void stats_minute(struct stats_page *p);     /* mark now, and begin another minute */
/* Take a row for a connection and set its id; NULL if all are taken.  Then give it back. */
struct stats_client *stats_client_take(struct stats_page *p, const char name[32], uint32_t pid, uint32_t uid);
void stats_client_give(struct stats_client *c);
/* Keep an end, whose number is given here.  If all places are taken, it replaces the oldest end of the uid
 * that has most of them.  So no uid pushes out the ends of another that has fewer. */
void stats_end(struct stats_page *p, const struct stats_ended *e);
void stats_destroy(struct stats_page *p, const char *run_dir);

/* The sums of a span until now; and the span between two moments. */
void stats_span_now(const struct counters *c, struct stats_span *out);
void stats_span_between(const struct stats_span *from, const struct stats_span *to, struct stats_span *out);

/* The number by which the page has the id of a request, as clients and tools compute it (FNV-1a); never 0. */
uint64_t stats_request_name(const char *id, size_t n);

/* Reader: a copy of <run dir>/stats in the reader's own memory.  Magic, version and size are checked;
 * strings are terminated and safe to display.  It shows the last stats_read.  0, -ENOENT, -EPROTO. */
int  stats_open(const struct stats_page **out, const char *run_dir);
void stats_close(const struct stats_page *p);
/* Read again a page that stats_open returned: all but steps and clients (8 KB; minutes, too, if one was
 * added); or all but the ends (1.4 MB, three times).  0, or -errno: the file is cut or invalid, and epoch is 0. */
int  stats_read(const struct stats_page *p);
int  stats_read_all(const struct stats_page *p);
int  stats_read_ended(const struct stats_page *p); /* the ends, which neither of both reads */
/* What ran at the end of the daemon that made the page that was opened, although another one may be there now.
 * How many, or -errno; -E2BIG: it is not known. */
int  stats_read_ran(const struct stats_page *p);
bool stats_stale(const struct stats_page *p, const char *run_dir); /* reopen?  Checks files, not the copy */
uid_t stats_owner(const struct stats_page *p); /* owner of the file, who can write all of it */

/* Reader: the counters now; and the latest mark not after the time since_ns, or else the oldest
 * mark.  False: there is none (the daemon is not ready yet). */
void stats_now(const struct stats_page *p, struct stats_mark *out);
bool stats_since(const struct stats_page *p, uint64_t since_ns, struct stats_mark *out);

#endif
