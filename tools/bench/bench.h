/* bench.h - what the files of `slipring bench serve` share: the command line (options), what is sent
 * and when (load), the results of requests (answers), and their statistics (summary).
 *
 * One thread.  Times are seconds of CLOCK_MONOTONIC as double (0.1 ns after a month of uptime).
 * All numbers are defined as in `vllm bench serve`, so that files can be compared.
 */
#ifndef BENCH_H
#define BENCH_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include <jansson.h>

#include "adapters/text/slipring-text.h"

#define BENCH_WORDS 64       /* the most values of a flag that takes several */
#define BENCH_FORMAT 1       /* version of our part of a result file: the object "slipring" */

/* ---- options (bench_options.c) ---------------------------------------------------------------- */

struct bench_words { const char *word[BENCH_WORDS]; int n; };

struct bench_options {
	/* the server */
	const char *backend;             /* openai, vllm: completions; openai-chat */
	const char *transport;           /* http, ring */
	const char *base_url, *host, *endpoint;
	int64_t port;
	const char *socket, *instance;   /* of the daemon, for the rings */
	const char *model, *served_name, *tokenizer;
	struct bench_words header;       /* K=V */
	bool insecure, skip_tokenizer;
	double ready_timeout;            /* s; 0 = no ready check */

	/* what is sent */
	const char *dataset, *dataset_path;
	int64_t n_prompts, seed, input_len, output_len;   /* lengths in tokens; 0 = the dataset's */
	int64_t random_input, random_output, random_prefix;
	const char *random_range;        /* a number, or JSON {"input":, "output":} */
	int64_t sharegpt_output, custom_output;           /* 0 = as in the dataset; custom: -1 */
	int64_t prefix_len, suffix_len, n_prefixes, prefix_output;
	int64_t trace_chunk;
	double trace_seconds;            /* one unit of the trace's clock */
	const char *trace_time, *trace_input, *trace_output, *trace_hashes;
	bool no_oversample, keep_order, no_template, ignore_eos, send_ids;
	const char *template_kwargs;     /* JSON */
	double temperature, top_p, min_p, frequency, presence, repetition; /* NaN = not sent */
	int64_t top_k, logprobs;         /* -1 = not sent */
	const char *extra_body;          /* JSON */
	const char *schema;              /* file with the JSON schema of structured answers, or NULL */
	double structured;               /* share of the requests whose answers keep to it */

	/* when it is sent */
	double rate, burstiness;         /* rate inf = all at once; burstiness inf = even gaps */
	const char *ramp;                /* linear, exponential, or NULL */
	double ramp_start, ramp_end;
	int64_t concurrency;             /* 0 = unlimited */
	int self_timed;                  /* -1 = as the dataset requires */
	int64_t warmups;

	/* what is reported */
	const char *metrics, *percentiles;  /* lists with commas */
	struct bench_words goodput, metadata;
	double steady;                   /* share of the peak concurrency that counts as steady */
	bool save, detailed, append, quiet;
	const char *dir, *filename, *baseline, *label, *id_prefix;
	const char *report;              /* HTML file */
};

/* 0; 1 = help was printed; -EINVAL and a sentence.  Strings point into argv. */
int bench_options(struct bench_options *o, int argc, char **argv, char *err, size_t errlen);

bool bench_chat(const struct bench_options *o);
bool bench_ring(const struct bench_options *o);
bool bench_structured(const struct bench_options *o, size_t i);  /* must answer i keep to the schema? */

/* ---- what is sent, and when (bench_data.c, bench_files.c, bench_arrival.c) -------------------- */

struct bench_prompt {
	char *text;                  /* UTF-8, or NULL: only ids */
	size_t n_text;
	int32_t *ids;                /* [n_ids], or NULL: only text */
	uint32_t n_ids;              /* our count, also without ids */
	uint32_t max_tokens;
	double at;                   /* s after the start; only of a timed trace */
	bool borrowed;               /* text and ids belong to another prompt */
};

struct bench_load {
	struct bench_prompt *prompt; /* [n] */
	size_t n, cap;
};

/* Draw or read the prompts.  text may be NULL (no tokenizer): then only `custom` can be read. */
int  bench_load(struct bench_load *l, const struct bench_options *o, const struct sr_text *text,
                char *err, size_t errlen);
int  bench_load_files(struct bench_load *l, const struct bench_options *o, const struct sr_text *text,
                      char *err, size_t errlen);
int  bench_load_add(struct bench_load *l, const struct bench_prompt *p);
void bench_load_free(struct bench_load *l);

/* at[n]: when each request is to be sent, in seconds after the start. */
int  bench_arrivals(double *at, const struct bench_load *l, const struct bench_options *o);

/* The generators of vLLM's benchmark, so that a seed gives the same draws here: numpy's PCG64
 * (prompts), and the Mersenne Twister as in numpy (arrivals) and in Python's random (order). */
__extension__ typedef unsigned __int128 bench_u128;
struct pcg { bench_u128 state, inc; uint32_t half; bool has_half; };
struct twister { uint32_t word[624]; int next; double gauss; bool has_gauss; };

void     pcg_seed(struct pcg *g, uint64_t seed);
uint64_t pcg_below(struct pcg *g, uint64_t n);                 /* uniform in [0, n) */
void     twister_seed_numpy(struct twister *t, uint32_t seed);
void     twister_seed_python(struct twister *t, uint64_t seed);
double   twister_gamma(struct twister *t, double shape);       /* scale 1 */
uint64_t twister_below(struct twister *t, uint64_t n);         /* Python's randrange(n) */

/* ---- what came back (bench_run.c, bench_http.c, bench_ring.c) --------------------------------- */

enum bench_state { BENCH_UNSENT, BENCH_LIVE, BENCH_OK, BENCH_FAILED, BENCH_CUT };

struct bench_answer {
	enum bench_state state;      /* CUT: still under way when the user interrupted the run */
	uint32_t n_input, n_output;  /* tokens; as the server reports, else as counted here */
	double due;                  /* intended time of sending */
	double start;                /* when it was sent */
	double late;                 /* the part of that delay that this program caused */
	double ttft, latency;        /* from start; to the first, to the last chunk */
	double last;                 /* time of the latest chunk */
	double *itl;                 /* [n_itl] gaps between chunks */
	size_t n_itl, cap_itl;
	size_t n_chunks;
	char *text;
	size_t n_text, cap_text;
	int32_t *ids;                /* [n_ids] over the rings, if bench_run.keep_ids */
	size_t n_ids, cap_ids;
	char error[240];
};

struct bench_run {
	const struct bench_options *o;
	const struct bench_load *load;
	const double *at;            /* [load->n] */
	const char *model;           /* its name in requests */
	const struct sr_text *text;  /* tokenizer, or NULL */
	const char *url;             /* of the endpoint */
	const char *socket;          /* of the daemon */
	const char *const *replica;  /* [n_replicas] sockets of all daemons of the model, over the rings; */
	int n_replicas;              /* 0: there is one, at `socket` */
	const volatile sig_atomic_t *stop;
	bool bar;                    /* show progress */
	FILE *say;                   /* gets the messages about what was saved, or NULL */
	bool keep_ids;               /* keep the answers' tokens, to compare them */
	uint64_t salt;               /* cache salt, so that runs share no prefixes; 0: not sent */
	struct bench_server *server; /* the daemon's page, or NULL */

	struct bench_answer *answer; /* [load->n] */
	size_t n_sent, n_live, n_done, n_failed;
	uint64_t n_tokens;           /* chunks so far, for the bar */
	double begin, end;           /* first send, last answer */
	double freed;                /* when a place for a request last became free */
	json_t *served;              /* bench_server_result(), or NULL; bench_run_free() frees it */
	char unserved[500];          /* why it is NULL, if that needs a word */
};

/* A transport to the server; there are two. */
struct bench_wire {
	int  (*open)(void **wire, struct bench_run *r, char *err, size_t errlen);
	/* Send request i.  0; -EAGAIN: call turn() first; other -errno: nothing more can be sent. */
	int  (*send)(void *wire, size_t i);
	/* Take what has arrived, or sleep until something arrives or `until` (bench_now()) is past.
	 * 0, or -errno: the server is gone and every request under way has failed. */
	int  (*turn)(void *wire, double until);
	void (*close)(void *wire);
};
extern const struct bench_wire bench_wire_http, bench_wire_ring;

int    bench_run(struct bench_run *r, char *err, size_t errlen);
void   bench_run_free(struct bench_run *r);
double bench_now(void);
void   bench_chunk(struct bench_run *r, struct bench_answer *a, double now);
int    bench_text(struct bench_answer *a, const char *s, size_t n);
void   bench_done(struct bench_run *r, struct bench_answer *a, const char *error); /* NULL = success */

/* One small request and its whole answer, before or after the run; GET if body is NULL.  Returns the
 * HTTP status, or -errno; *out is malloc'ed. */
int  bench_fetch(const struct bench_options *o, const char *url, const char *body, char **out,
                 char *err, size_t errlen);

/* ---- the daemon behind it (bench_server.c) ---------------------------------------------------- */

/* The instance under test: by --instance, or by the port on this machine.  Else "default", whose page may be
 * that of another server, and the reason. */
const char *bench_instance(const struct bench_options *o, char *why, size_t n);
/* The stats page of the daemon under test if it runs on this machine, else NULL.  *why: what to say if the
 * page is not there, or turns out to be another daemon's. */
struct bench_server *bench_server_open(const struct bench_options *o, char *why, size_t n);
void   bench_server_close(struct bench_server *s);
void   bench_server_begin(struct bench_server *s, double now);
double bench_server_turn(struct bench_server *s, double now);  /* returns when to call it next */
void   bench_server_end(struct bench_server *s);
/* What the daemon did during the run; NULL: the answers did not come from it. */
json_t *bench_server_result(const struct bench_server *s, const struct bench_run *r);

/* ---- the stream's events (bench_sse.c) -------------------------------------------------------- */

struct sse { char *held; size_t n, cap; };   /* the beginning of an incomplete line */

struct sse_event {
	bool done;                   /* [DONE] */
	bool choices;                /* "choices" is present and not empty */
	const char *text;            /* JSON string of the first choice, without quotes, or NULL */
	size_t n_text;
	int64_t n_prompt, n_output;  /* of "usage", -1 = absent */
	const char *error;           /* message of "error", as text */
	size_t n_error;
};

/* Pass every complete event in these bytes to take().  0, what take() returned, -EBADMSG: a data
 * line is no JSON object, -E2BIG: a line is longer than any event, or -ENOMEM. */
int  sse_feed(struct sse *s, const char *p, size_t n, int (*take)(void *arg, const struct sse_event *e),
              void *arg);
int  sse_end(struct sse *s, int (*take)(void *arg, const struct sse_event *e), void *arg);
void sse_free(struct sse *s);
int  sse_scan(const char *p, size_t n, struct sse_event *e);
size_t sse_unescape(const char *s, size_t n, char *out);  /* out: room for n bytes; returns the length */

/* ---- what it amounts to (bench_metrics.c, bench_report.c, bench_save.c) ----------------------- */

#define BENCH_PERCENTILES 16
#define BENCH_METRICS 6

struct bench_stat {              /* statistics of one quantity, in seconds */
	double mean, median, std;
	double p[BENCH_PERCENTILES];
};

struct bench_summary {
	bool tokenizer;              /* token counts are valid */
	size_t completed, failed, cut, unsent;
	uint64_t n_input, n_output;
	double duration;
	double requests_per_s, goodput, output_per_s, total_per_s, peak_per_s;
	size_t peak_concurrent;
	bool has_goodput;
	int n_p;
	double p[BENCH_PERCENTILES];
	struct bench_stat stat[BENCH_METRICS]; /* in the order of bench_metric[] */

	/* what vLLM's summary does not have */
	double late_mean, late_p99, late_max;  /* the delay that this program caused */
	struct bench_stat open_ttft, open_e2el;/* from the intended time of sending */
	struct {
		bool there;
		double from, seconds, requests_per_s, output_per_s;
		size_t concurrency, n;
		struct bench_stat ttft, itl;
	} steady;
};

struct bench_metric { const char *name, *label, *title; };
extern const struct bench_metric bench_metric[BENCH_METRICS];

int    bench_summarize(struct bench_summary *s, const struct bench_run *r, char *err, size_t errlen);
bool   bench_chosen(const struct bench_options *o, const struct bench_summary *s, int metric);
void   bench_stat(struct bench_stat *s, double *v, size_t n, const double *p, int n_p); /* sorts v */
double bench_percentile(const double *sorted, size_t n, double p);
/* parses "ttft:200" into name and milliseconds; -EINVAL */
int    bench_slo(const char *word, char *name, size_t n, double *ms);

void   bench_print(FILE *to, const struct bench_summary *s, const struct bench_run *r);
void   bench_print_more(FILE *to, const struct bench_summary *s, const struct bench_run *r);
size_t bench_real(char *out, size_t n, double v);         /* as Python prints a float */

struct bench_about { const char *model_id, *tokenizer_id; time_t when; };
json_t *bench_result(const struct bench_summary *s, const struct bench_run *r, const struct bench_about *a,
                     bool detailed);
int    bench_save(const struct bench_summary *s, const struct bench_run *r, const struct bench_about *a,
                  char *err, size_t errlen);
int    bench_save_baseline(const struct bench_summary *s, const struct bench_run *r,
                           const struct bench_about *a, char *err, size_t errlen);
/* Write a temporary file and rename it; append: keep what the file has.  Makes its folders. */
int    bench_write(const char *path, const json_t *j, bool append, char *err, size_t errlen);
/* The path of the baseline with this name, whether it exists or not. */
int    bench_baseline_path(const char *name, char *out, size_t n, char *err, size_t errlen);

/* ---- the command (bench.c) -------------------------------------------------------------------- */

struct bench_call {
	FILE *say;                   /* gets the output; errors go to stderr */
	uint64_t salt;
	json_t *result;              /* out: with details; NULL: nothing was measured */
};

/* Run one benchmark by its command line; argv[0] is its name.  Returns the exit status; 130: interrupted. */
int    bench_serve(int argc, char **argv, struct bench_call *call);
int    bench_sweep(int argc, char **argv);                       /* sweep.c */

#endif
