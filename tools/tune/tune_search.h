/* tune_search.h - which settings to measure next: a search along one axis at a time.
 *
 * It knows no server: values lie on ladders, and a function says whether a point is better than the
 * best so far.  Throughput and goodput rise along each of these axes, then fall or stay; so a climb
 * by doubled strides, and back by halves, finds the top of one axis in about 2 log2 of its rungs.
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
	int above;                   /* axis whose value this one's may not be below; -1 = none */
};

struct search {
	int n;
	struct search_axis axis[SEARCH_AXES]; /* the first is climbed first */
	int at[SEARCH_AXES];         /* rungs of the best so far: at first, of where to begin */
	int seen[SEARCH_SEEN][SEARCH_AXES], n_seen;
};

/* Rungs from least to most, by doubling, with `now` among them; the index of now. */
int search_ladder(struct search_axis *a, int64_t least, int64_t most, int64_t now);

/* Climb.  better(): is the point at[] better than the best so far?  1, then it is the best; 0; or
 * below 0: stop.  0, or what better() returned. */
int search_climb(struct search *s, int (*better)(void *ctx, const int *at), void *ctx);

#endif
