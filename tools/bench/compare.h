/* compare.h - what the two files of `slipring compare` share: results, and estimates with
 * their uncertainty.  One thread. */
#ifndef COMPARE_H
#define COMPARE_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#define COMPARE_RUNS 64

/* A quantity of a result.  The spread is that of its logarithm, so that changes are ratios. */
struct estimate {
	double value;                /* NAN = not in the file */
	double spread;               /* standard error of log(value); NAN = unknown */
	double freedom;              /* degrees of freedom of the spread */
};

enum quantity { PER_SECOND, TOKENS_PER_SECOND, GOOD_PER_SECOND, LATENCY };
enum over { MEAN, MEDIAN, P99 };
enum latency { TTFT, TPOT, ITL, E2EL, N_LATENCIES };

struct measure {                 /* one row of the comparison */
	enum quantity what;
	enum latency latency;
	enum over over;
	const char *key;             /* in a result file */
	const char *label;
	bool more_is_better;
};

struct result {
	const char *name;            /* as given */
	char path[4096];
	json_t *run[COMPARE_RUNS];   /* result objects, in the order of the file */
	int n;
};

/* Read a result file or a saved baseline.  0, -ENOENT, -EINVAL and a sentence. */
int  compare_read(struct result *r, const char *name, char *err, size_t errlen);
void compare_free(struct result *r);

/* The whole comparison, with the default options, as the object that --json prints; NULL: no memory. */
json_t *compare_results(const struct result *a, const struct result *b);

/* The quantity in r: from its repeated runs if there are any, else from the single requests, else from
 * mean and standard deviation. */
struct estimate compare_estimate(const struct result *r, const struct measure *m);

/* Ratio b / a with its interval at confidence 1 - alpha. */
struct change { double ratio, low, high; };
struct change compare_change(const struct estimate *a, const struct estimate *b, double alpha);
/* Throughput of two single, detailed runs. */
struct change compare_windows(const struct result *a, const struct result *b, const struct measure *m,
                              double alpha);
/* The same from runs made in turns, each compared with its neighbour. */
struct change compare_paired(const struct result *a, const struct result *b, const struct measure *m,
                             double alpha);
bool   compare_in_turns(const struct result *a, const struct result *b);

double student_quantile(double p, double freedom);

#endif
