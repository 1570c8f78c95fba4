/* tune.h - what the files of `slipring tune` share: the options, the measured settings with their runs, and
 * the judgement of them.
 *
 *	tune.c          the command: open, walk the steps, end
 *	tune_options.c  its flags; those of the traffic are bench serve's
 *	tune_steps.c    the checklist, step by step
 *	tune_devices.c  its step 7: several devices as replicas, as ranks, or both
 *	tune_search.c   which batching to try next
 *	tune_trial.c    turn the knobs, send the traffic once
 *	tune_judge.c    tells a gain from noise
 *	tune_server.c   its own daemon, restarted with other flags
 *	tune_state.c    the state on disk, to continue after an interruption
 *	tune_write.c    the output: results, YAML, a drop-in
 *
 * One thread.  A setting is the values of all knobs, and of the flags of tune's own daemon.
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
#include "core/instance/config.h"
#include "core/instance/knobs.h"
#include "core/figures/figures.h"
#include "tools/instance.h"
#include "tools/live/turn.h"

#define TUNE_RUNS    16          /* most runs kept of a setting */
#define TUNE_TRIALS  192
#define TUNE_WORDS   64
#define TUNE_FORMAT  1           /* version of the state file and of tune.json */
#define TUNE_DAEMONS 16

enum tune_goal { GOAL_THROUGHPUT, GOAL_GOODPUT };

struct tune_options {
	const char *instance, *out, *prove, *sibling;
	enum tune_goal goal;
	double budget;               /* s */
	double threshold;            /* smallest gain that counts: 0.02 */
	int    pairs;                /* pairs of runs in the proof */
	int    devices;              /* to be weighed; 0: those that are here */
	bool   dry_run, apply, fresh;
	struct bench_options traffic;
	char  *bench[TUNE_WORDS + 1];/* the traffic's flags, as for bench serve */
	int    n_bench;
	char **server;               /* after --: flags of tune's own daemon; NULL: uses a running one */
	int    n_server;
};

struct tune_setting { int64_t knob[N_KNOBS]; };

struct tune_trial {              /* a setting and its runs */
	struct tune_setting s;
	char   flags[200];           /* of tune's own daemon, besides the user's; "" = none */
	int    n;                    /* complete runs */
	double score[TUNE_RUNS];     /* output tokens/s, or good requests/s */
	json_t *result[TUNE_RUNS];   /* as bench serve saves it */
	double seconds;              /* of the last run */
	bool   cut;                  /* cut off: it was surely worse than the best at that time */
	double why[N_WHY];           /* shares of the last run's time */
	double empty[N_EMPTY];       /* the parts of why[WHY_EMPTY] */
	double bound[N_BOUND];       /* shares of the last run's steps */
	double step_ms;              /* of the last run; 0: not measured */
	double hit_rate;             /* prefix cache hits of the last run; NAN: off */
	struct counters count;       /* of the last run */
	size_t same, compared;       /* answers equal to the first run's by token; answers compared */
};

struct tune_server {             /* tune's own daemon, or one for each replica */
	int n;                       /* daemons; 0 = none runs */
	pid_t pid[TUNE_DAEMONS];
	char name[TUNE_DAEMONS][CONFIG_INSTANCE], socket[TUNE_DAEMONS][4096], log[PATH_MAX];
	const char *sockets[TUNE_DAEMONS];
	struct instance more[TUNE_DAEMONS]; /* of replicas 1 .. n - 1; tune.in is that of 0 */
	int replicas, ranks;         /* as the user's flags have them */
	char flags[200];             /* besides the user's */
	const char *model;           /* replaces the user's model, or NULL */
};

struct tune {
	struct tune_options o;
	struct instance in;
	struct tune_server server;
	struct sr_text *text;
	char   model[256], socket[4096]; /* socket: of a daemon that is not tune's own */
	struct bench_load load;
	double *arrival;             /* [load.n] */
	uint64_t n_prompt, n_output; /* tokens of the whole traffic */
	uint32_t longest;            /* prompt and answer together */
	uint64_t *digest;            /* [load.n] digest of each answer of the first run; 0 = none */

	struct tune_setting start;   /* found at the start, restored at the end */
	struct tune_trial trial[TUNE_TRIALS];
	int    n_trials, base, best; /* base, best: indices in trial[] */
	int    n_sent;               /* runs of this process */
	double began, spent;         /* seconds; spent: by earlier, interrupted tunes */
	bool   disturbed;            /* other clients used the server meanwhile */

	struct keeper keeper;
	bool   kept;
	char   state[PATH_MAX];
	int    lock;
	char   signature[100];
};

/* ---- tune_options.c ---- */
/* 0; 1: help was printed; -EINVAL and a sentence. */
int  tune_options(struct tune_options *o, int argc, char **argv, char *err, size_t errlen);
int  tune_traffic(struct tune_options *o, char *err, size_t errlen); /* parse o->bench */

/* ---- tune_trial.c ---- */
extern volatile sig_atomic_t tune_interrupted;
void tune_interrupt(int sig);    /* signal handler: the run under way ends soon */
/* The trial of this setting under the server's current flags; created if there is none. */
struct tune_trial *tune_trial(struct tune *t, const struct tune_setting *s);
int  tune_turn(struct tune *t, const struct tune_setting *s, char *err, size_t errlen);
/* Send the traffic once.  0; 1: it took longer than `limit` seconds (0 = no limit) and was cut off; -EINTR;
 * -ETIME: the budget is over; -errno. */
int  tune_send(struct tune *t, struct tune_trial *tr, double limit, char *err, size_t errlen);
/* Send a few requests, each alone, to measure what the server needs for one.  Seconds, or NAN. */
int  tune_alone(struct tune *t, double *ttft, double *tpot, double *e2el, char *err, size_t errlen);
/* Get the answers to at most n requests with their ids, to compare two models. */
int  tune_ids(struct tune *t, size_t n, struct bench_run *r, char *err, size_t errlen);

/* ---- tune_judge.c ---- */
double tune_mean(const struct tune_trial *tr);
/* Standard deviation of the logarithm of a run's score, from all settings with more than one run. */
double tune_noise(const struct tune *t, int *freedom);
/* The ratio b / a with its 95 % interval. */
struct change tune_change(const struct tune *t, const struct tune_trial *a, const struct tune_trial *b);
struct change tune_paired(const struct tune_trial *a, const struct tune_trial *b, int n);
double tune_left(const struct tune *t);  /* seconds left of the budget without the proof's share */

/* ---- tune_steps.c ---- */
/* Take the setting, under the server's current flags, if it is better than the best so far.  1: taken;
 * 0: not; -errno. */
int  tune_challenge(struct tune *t, const struct tune_setting *s, char *err, size_t errlen);
int  tune_walk(struct tune *t, char *err, size_t errlen);
int  tune_prove(struct tune *t, int a, int b, int *verdict, char *err, size_t errlen);
void tune_plan(const struct tune *t);
void tune_tell(const struct tune *t, const struct tune_trial *tr, char *out, size_t n);
enum { VERDICT_SAME, VERDICT_BETTER, VERDICT_WORSE };
extern const char *const tune_verdict[];

/* ---- tune_devices.c ---- */
/* Weigh replicas against ranks.  1: another shape is the best now; 0: none is; -errno. */
int  tune_devices(struct tune *t, char *err, size_t errlen);
void tune_devices_plan(const struct tune *t);

/* ---- tune_server.c ---- */
int  tune_instances(const struct tune *t);                          /* daemons that are tuned */
const struct instance *tune_instance(const struct tune *t, int i);
int  tune_server_start(struct tune *t, char *err, size_t errlen);
void tune_server_stop(struct tune *t);
int  tune_server_again(struct tune *t, const char *flags, char *err, size_t errlen);

/* ---- tune_state.c ---- */
/* Lock the state, put back knobs that a killed tune left turned, and read what it had measured. */
int  tune_state_open(struct tune *t, char *err, size_t errlen);
int  tune_state_save(const struct tune *t, const struct tune_setting *turned, char *err, size_t errlen);
void tune_state_close(struct tune *t, bool done);
json_t *tune_json(const struct tune *t);
int  tune_from_json(struct tune *t, const json_t *j);
int  tune_write_json(const char *path, const json_t *j, char *err, size_t errlen);

/* ---- tune_write.c ---- */
int  tune_write(const struct tune *t, int verdict, char *err, size_t errlen);
int  tune_make_out(const struct tune *t, char *err, size_t errlen);
/* Read traffic, goal, settings and verdict from the files of an earlier tune. */
int  tune_read(struct tune *t, int *verdict, char *err, size_t errlen);

#endif
