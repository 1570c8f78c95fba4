/* tune_search.h - chooses which settings to measure next: a search along one axis at a time.
 *
 * It is independent of the server: values lie on ladders, and a function compares a point with the best so
 * far.  Throughput and goodput rise along each axis, then fall or stay.  So strides that double and then
 * halve find the top of an axis in about 2 log2 of its rungs.
 */
#ifndef TUNE_SEARCH_H
#define TUNE_SEARCH_H

#include <stdbool.h>
#include <stdint.h>

#define SEARCH_AXES  4
#define SEARCH_RUNGS 32
#define SEARCH_SEEN  256

struct search_axis {
	int n;
	int64_t value[SEARCH_RUNGS]; /* rising */
	int above;                   /* axis whose value is a lower bound for this one's; -1 = none */
};

struct search {
	int n;
	struct search_axis axis[SEARCH_AXES]; /* in the order of climbing */
	int at[SEARCH_AXES];         /* rungs of the best so far; initially the starting point */
	int seen[SEARCH_SEEN][SEARCH_AXES], n_seen;
};

/* Make rungs from least to most by doubling, including `now`.  Returns the index of `now`. */
int search_ladder(struct search_axis *a, int64_t least, int64_t most, int64_t now);

/* Climb.  better() compares the point at[] with the best so far.  1: the point becomes the best; 0: it does
 * not; below 0: stop.  Returns 0, or the value below 0 of better(). */
int search_climb(struct search *s, int (*better)(void *ctx, const int *at), void *ctx);

/* Ways to use `devices` of them: replicas of so many ranks each. */
#define TUNE_SHAPES 16
#define TUNE_MOST   16               /* replicas, and ranks of each */
struct tune_shape { int replicas, ranks; };

/* List the ways to try: 1, 2, 4 .. ranks, as many as `ranks` and as all devices, each with as many replicas
 * as devices allow; not the way that is there now.  Returns how many. */
int tune_shapes(struct tune_shape out[TUNE_SHAPES], int devices, int replicas, int ranks);

#endif
