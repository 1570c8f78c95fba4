/* judge.h - what limited a daemon for a while, and which knob that is; the gain of turning it, if the
 * counters show it.
 *
 * Every step attributes the time since the previous step to one limit on each of two axes
 * (docs/scheduler.md).  So each axis adds up to the whole time. */
#ifndef JUDGE_H
#define JUDGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "figures.h"

struct step_fit {                         /* seconds of a step of only decoding rows = a + b * rows */
	int n;                            /* steps; 0: there is no fit */
	double a, b, mean, least, most;
};

struct chunks {                           /* seconds of any step = a + b * rows + c * (tokens - rows) */
	int n;                            /* steps; 0: there is no fit */
	double a, b, c, rows, more;       /* rows, and tokens beyond one per row, on average */
};

struct verdict {
	int largest;                      /* enum sched_why; WHY_EMPTY: nothing limited the daemon */
	int empty;                        /* enum stats_empty: the largest part of that time */
	double share, bound_share[N_BOUND];
	double cores_share;               /* of the time under way, that without a core */
	int cores_by;                     /* enum stats_cores: who had most of it */
	struct step_fit fit;
	double rows_now, rows_then;       /* per step, which `worth` compares; NAN: nothing */
	struct chunks chunks;
	double step_now, step_then;       /* ms, if the knob is about prompt tokens; else NAN */
	double worth;                     /* gain in tokens/s, as a share, while it limits; NAN: unknown */
	char no_worth[200];               /* why the gain is unknown */
};

struct advice {
	int knob;                         /* enum knob, or -1 */
	const char *what, *turn, *more;   /* what it means; what to turn; and what else to know, or "" */
};

/* Judge f, the figures since from_ns; p has the last steps. */
void judge_interval(struct verdict *v, const struct stats_page *p, const struct figures *f, uint64_t from_ns);
/* Is the limit before the ring, in requests that the clients have not submitted yet? */
bool judge_before_the_ring(const struct verdict *v);

const struct advice *judge_advice(const struct verdict *v);
const char *judge_limit(const struct verdict *v);      /* its name: "seqs", or "tokenizing" */
int judge_bound(const struct verdict *v);               /* enum sched_bound that bound most of the time */
const char *judge_bound_advice(const struct verdict *v);

/* Did the daemon lack cores for a fifth of the time under way, and a twentieth of all?  Then that is what bound it, whatever was larger:
 * what the device would need is seen only when it has its cores. */
bool judge_lacks_cores(const struct verdict *v);
const char *judge_cores_advice(const struct verdict *v);
int judge_late_rank(const struct stats_page *p);        /* the one that was behind the first for longest */

/* Begin of the last `seconds` before `now`: a minute's mark, or the start. */
void judge_since(const struct stats_page *p, const struct stats_mark *now, double seconds,
                 struct stats_mark *from);

/* For programs: the verdict; and every sentence of advice, by the axes' names: {"why": {"seqs": {..}}, ..}. */
json_t *judge_json(const struct verdict *v);
json_t *judge_advice_json(void);

#endif
