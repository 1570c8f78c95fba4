/* figures.h - turns two copies of the counters into rates, shares and percentiles. */
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
	double hit_rate;              /* share of the looked-up prompt tokens, 0 .. 1; NAN: none */
	double running, waiting;      /* on average */
	double rows;                  /* rows in a step, on average; NAN: no step */
	double why_s[N_WHY], bound_s[N_BOUND]; /* seconds */
	double why_all, bound_all;    /* their sums */
	double empty_s[N_EMPTY];      /* why_s[WHY_EMPTY], split */
	double cores_s[N_CORES];      /* bound_s[BOUND_CORES], split */
	struct counters n;            /* what was counted meanwhile */
	uint64_t ended;               /* of it, requests that ended in any way */
};

/* The counters now.  A sleeping daemon counts its sleep only when it wakes, so the sleep is added here as
 * empty and idle.  The daemon publishes within a second what its clients did meanwhile.  A daemon that is
 * not alive does not sleep. */
void figures_now(const struct stats_page *p, bool alive, struct stats_mark *out);

/* The figures for the time from a to b. */
void figures_between(const struct stats_mark *a, const struct stats_mark *b, struct figures *out);

/* The value below which `share` of the observations from a to b lies, interpolated in its bucket.  NAN:
 * there are no observations.  a NULL: since the start. */
double figures_percentile(enum stats_hist h, const struct stats_histogram *a,
                          const struct stats_histogram *b, double share);

/* Write a bar "####......" of n characters. */
void figures_bar(char *out, int n, double share);

/* The n parts of an axis by their names: {"empty": 1.5, "seqs": ..}. */
json_t *figures_json(const double *seconds, int n, const char *(*name)(int));

/* Counters of work that was lost: into an object by their names, and back. */
void figures_lost_json(json_t *to, const struct counters *n);
/* Guesses, and the seconds of their batches with them and, estimated, without. */
void figures_guesses_json(json_t *to, const struct counters *n);
void figures_lost_read(struct counters *n, const json_t *from);
/* "3 NAME, 0 NAME"; *any: one is not 0; may be NULL. */
char *figures_lost(char *out, size_t size, const struct counters *n, bool *any);

/* The parts of `empty` as shares of the whole time `all`: "tokenizing 12 %, silent 3 %".  The order is that
 * of enum stats_empty.  Parts below 0.5 % are left out; "" if all are. */
char *figures_empty(char *out, size_t n, const double empty_s[N_EMPTY], double all);

/* A client's name, made safe for a terminal. */
void figures_client(char out[33], const char name[32]);

/* The seconds that "90s", "5m", "24h", "1d" or "90" stands for; NAN for anything else. */
double figures_time(const char *text);

/* ms: "3.2 ms", or "-" for NAN.  age: "4 d 3 h", "12 min" or "3.4 s". */
void figures_ms(char *out, size_t n, double seconds);
void figures_age(char *out, size_t n, double seconds);

#endif
