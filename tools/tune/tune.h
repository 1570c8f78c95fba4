/* tune.h - what the files of `slipring tune` share: what was asked, which settings were measured and
 * how often, and what that says.
 *
 *	tune.c          the command: open, walk the steps, end
 *	tune_options.c  its flags; those of the traffic are bench serve's
 *	tune_steps.c    the checklist, step by step
 *	tune_search.c   which batching to try next
 *	tune_trial.c    turn the knobs, send the traffic once
 *	tune_judge.c    what is a gain and what is noise
 *	tune_server.c   a daemon of its own, started anew with other flags
 *	tune_state.c    what is kept on disk, to go on after an interruption
 *	tune_write.c    what is left behind: results, YAML, a drop-in
 *
 * One thread.  A setting is the values of all knobs, and of flags of a daemon of our own.
 */
#ifndef TUNE_H
#define TUNE_H

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

#include <jansson.h>

#include "tools/bench/bench.h"
#include "tools/bench/compare.h"
#include "core/instance/knobs.h"
#include "tools/figures.h"
#include "tools/instance.h"
#include "tools/live/turn.h"

#define TUNE_RUNS    16          /* of one setting */
#define TUNE_TRIALS  192
#define TUNE_WORDS   64
#define TUNE_FORMAT  1           /* of the state and of tune.json */

enum tune_goal { GOAL_THROUGHPUT, GOAL_GOODPUT };

struct tune_options {
	const char *instance, *out, *prove, *sibling;
	enum tune_goal goal;
	double budget;               /* s */
	double threshold;            /* a gain below does not count: 0.02 */
	int    pairs;                /* of the proof */
	bool   dry_run, apply, fresh;
	struct bench_options traffic;
	char  *bench[TUNE_WORDS + 1];/* the traffic's flags, as for bench serve */
	int    n_bench;
	char **server;               /* behind --: flags of a daemon of our own; NULL: one that runs */
	int    n_server;
};

struct tune_setting { int64_t knob[N_KNOBS]; };

struct tune_trial {              /* a setting and its runs */
	struct tune_setting s;
	char   flags[200];           /* of a daemon of our own, beyond those given; "" = none */
	int    n;                    /* whole runs */
	double score[TUNE_RUNS];     /* output tokens/s, or good requests/s */
	json_t *result[TUNE_RUNS];   /* as bench serve saves it */
	double seconds;              /* of the last run */
	bool   cut;                  /* given up: it was surely worse than the best at that time */
	double why[N_WHY];           /* shares of the last run's time, */
	double empty[N_EMPTY];       /*  why[WHY_EMPTY] split, */
	double hit_rate;             /*  and its prefix cache; NAN: off */
	uint64_t preemptions;
	size_t same, compared;       /* answers equal to the first run's, to the token; of so many */
};

struct tune_server {             /* a daemon of our own */
	pid_t pid;                   /* 0 = none runs */
	char  instance[64], log[PATH_MAX];
	char  flags[200];            /* beyond those given */
	const char *model;           /* instead of the one given, or NULL */
};

struct tune {
	struct tune_options o;
	struct instance in;
	struct tune_server server;
	struct sr_text *text;
	char   model[256], socket[4096];
	struct bench_load load;
	double *arrival;             /* [load.n] */
	uint64_t n_prompt, n_output; /* tokens of the whole traffic */
	uint32_t longest;            /* prompt and answer together */
	uint64_t *digest;            /* [load.n] of each answer of the first run; 0 = none */

	struct tune_setting start;   /* as it was found, and will be again */
	struct tune_trial trial[TUNE_TRIALS];
	int    n_trials, base, best; /* places in trial[] */
	int    n_sent;               /* runs of this process */
	double began, spent;         /* seconds; spent: by those before that were interrupted */
	bool   disturbed;            /* others used the server meanwhile */

	struct keeper keeper;
	bool   kept;
	char   state[PATH_MAX];
	int    lock;
	char   signature[100];
};

/* ---- tune_options.c ---- */
/* 0; 1 help was printed; -EINVAL and a sentence. */
int  tune_options(struct tune_options *o, int argc, char **argv, char *err, size_t errlen);
int  tune_traffic(struct tune_options *o, char *err, size_t errlen); /* from its words */

/* ---- tune_trial.c ---- */
extern volatile sig_atomic_t tune_interrupted;
void tune_interrupt(int sig);    /* for SIGINT and its like: the run under way ends soon */
/* The trial of this setting under the server's flags as they are; made if there is none. */
struct tune_trial *tune_trial(struct tune *t, const struct tune_setting *s);
int  tune_turn(struct tune *t, const struct tune_setting *s, char *err, size_t errlen);
/* Send the traffic once.  0; 1: longer than `limit` seconds (0 = none), so it was given up; -EINTR;
 * -ETIME: the budget is over; -errno. */
int  tune_send(struct tune *t, struct tune_trial *tr, double limit, char *err, size_t errlen);
/* A few requests, each alone: what the server needs for one.  Seconds, or NAN. */
int  tune_alone(struct tune *t, double *ttft, double *tpot, double *e2el, char *err, size_t errlen);
/* Answers of at most n requests under another model: how far they agree with those given. */
int  tune_ids(struct tune *t, size_t n, struct bench_run *r, char *err, size_t errlen);

/* ---- tune_judge.c ---- */
double tune_mean(const struct tune_trial *tr);
/* Standard deviation of a run's logarithm, from all settings that were measured more than once. */
double tune_noise(const struct tune *t, int *freedom);
/* b / a with an interval of 95 %. */
struct change tune_change(const struct tune *t, const struct tune_trial *a, const struct tune_trial *b);
struct change tune_paired(const struct tune_trial *a, const struct tune_trial *b, int n);
double tune_left(const struct tune *t);  /* seconds of the budget, the proof's own put aside */

/* ---- tune_steps.c ---- */
int  tune_walk(struct tune *t, char *err, size_t errlen);
int  tune_prove(struct tune *t, int a, int b, int *verdict, char *err, size_t errlen);
void tune_plan(const struct tune *t);
void tune_tell(const struct tune *t, const struct tune_trial *tr, char *out, size_t n);
void tune_limits(const struct tune_trial *tr, char *out, size_t n);
enum { VERDICT_SAME, VERDICT_BETTER, VERDICT_WORSE };
extern const char *const tune_verdict[];

/* ---- tune_server.c ---- */
int  tune_server_start(struct tune *t, char *err, size_t errlen);
void tune_server_stop(struct tune *t);
int  tune_server_again(struct tune *t, const char *flags, char *err, size_t errlen);

/* ---- tune_state.c ---- */
/* Take the state's lock; put back what a killed run left turned; read what it had measured. */
int  tune_state_open(struct tune *t, char *err, size_t errlen);
int  tune_state_save(const struct tune *t, const struct tune_setting *turned, char *err, size_t errlen);
void tune_state_close(struct tune *t, bool done);
json_t *tune_json(const struct tune *t);
int  tune_from_json(struct tune *t, const json_t *j);
int  tune_write_json(const char *path, const json_t *j, char *err, size_t errlen);

/* ---- tune_write.c ---- */
int  tune_write(const struct tune *t, int verdict, char *err, size_t errlen);
int  tune_make_out(const struct tune *t, char *err, size_t errlen);
/* Take traffic, goal, settings and verdict from what another tune left behind. */
int  tune_read(struct tune *t, int *verdict, char *err, size_t errlen);

#endif
