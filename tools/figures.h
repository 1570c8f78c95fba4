/* figures.h - two looks at the counters, as what people ask for: rates, shares, percentiles. */
#ifndef FIGURES_H
#define FIGURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "core/instance/limits.h"
#include "core/instance/stats.h"

struct figures {
	double seconds;
	double prompt_per_s, generated_per_s, requests_per_s, steps_per_s;
	double hit_rate;              /* of prompt tokens looked up, 0 .. 1; NAN: none was */
	double running, waiting;      /* on average */
	double rows;                  /* of a step, on average; NAN: there was none */
	double why_s[N_WHY], bound_s[N_BOUND]; /* seconds */
	double why_all, bound_all;    /* their sums */
	double empty_s[N_EMPTY];      /* why_s[WHY_EMPTY], split */
	uint64_t prompt_tokens, generated, ended, preemptions, steps;
	uint64_t held;                /* steps that prompts waited for another to compute what they share */
};

uint64_t figures_clock(void);         /* CLOCK_MONOTONIC, ns: the page's clock */

/* The counters now.  A daemon that sleeps counts its sleep when it wakes; here it is counted as
 * what it is, empty and idle; what its clients did meanwhile it will tell within a second.  One
 * that is not alive does not sleep. */
void figures_now(const struct stats_page *p, bool alive, struct stats_mark *out);

/* What happened from a to b. */
void figures_between(const struct stats_mark *a, const struct stats_mark *b, struct figures *out);

/* The value below which `share` of what was observed from a to b lies, interpolated in its
 * bucket; NAN if nothing was.  a NULL: since start. */
double figures_percentile(enum stats_hist h, const struct stats_histogram *a,
                          const struct stats_histogram *b, double share);

/* "####......" of n characters. */
void figures_bar(char *out, int n, double share);

/* {"empty": 1.5, "seqs": ..}: the n parts of an axis by their names. */
json_t *figures_json(const double *seconds, int n, const char *(*name)(int));

/* "tokenizing 12 %, silent 3 %": what `empty` was, as shares of the whole time `all` in the order of
 * enum stats_empty, without what is less than half a percent; "" if all is. */
char *figures_empty(char *out, size_t n, const double empty_s[N_EMPTY], double all);

/* Whatever a client calls itself, fit for a terminal. */
void figures_client(char out[33], const char name[32]);

/* Seconds of "90s", "5m", "24h", "1d", "90"; NAN: anything else. */
double figures_time(const char *text);

/* "3.2 ms", "-" for NAN; "4 d 3 h", "12 min", "3.4 s". */
void figures_ms(char *out, size_t n, double seconds);
void figures_age(char *out, size_t n, double seconds);

#endif
