/* sched/draft_time.c - how long a batch that decodes takes, by its number of tokens.  What a guess costs is read from
 * this, so it decides how many there are.
 *
 * A device does not take a time in proportion: kernels compute rows in groups, and a few rows hide behind memory.  So
 * it is measured for each number of tokens, as a multiple (`times`) of what one token takes (`base`).  The base follows
 * the last batches closely, and the multiples slowly: a machine that is slower for a second is so for all of them.
 *
 * Numbers without a measurement, or with one that is old, lie on the line between their neighbours; beyond the last
 * one, each token adds what the device says of itself: the share of its operations in all that it must do.  So a
 * number of tokens is rather tried once than never.
 */
#include <string.h>

#include "core/sched/impl.h"

#define BASE_WEIGHT  0.1     /* of a new measurement */
#define TIMES_WEIGHT 0.15
#define LONGEST      3.0     /* a batch that took this many times what it should counts as this long */
#define OLD          2048    /* batches after which a measurement is forgotten */
#define OLD_FEW      128     /* the same, of one that was made FEW times or less: it may have been disturbed */
#define FEW          3
#define GAIN         1.02    /* tokens in a time that guesses must bring, as a multiple of those without */

/* The place of n tokens: each number up to 64, then 16 an octave. */
static int32_t place_of(int32_t n)
{
	int32_t octave = 0, i;

	if (n <= DRAFT_EACH)
		return n - 1;
	while (n >> octave >= 2 * DRAFT_EACH)
		octave++;
	i = DRAFT_EACH + octave * 16 + ((n >> octave) - DRAFT_EACH) / (DRAFT_EACH / 16);
	return i < DRAFT_PLACES ? i : DRAFT_PLACES - 1;
}

/* The number of tokens that a place stands for. */
static double tokens_at(int32_t i)
{
	int32_t j = i - DRAFT_EACH;

	return i < DRAFT_EACH ? i + 1 : (double)(DRAFT_EACH << (j / 16)) * (1 + (j % 16 + 0.5) / 16);
}

static bool known(const struct draft_time *d, int32_t i)
{
	return i == 0 || (d->seen[i] && d->n_batches - d->at[i] < (d->seen[i] <= FEW ? OLD_FEW : OLD));
}

/* The last known place up to i, and the next one behind it; NONE. */
static void around(const struct draft_time *d, int32_t i, int32_t *from, int32_t *to)
{
	for (*from = i; !known(d, *from); )
		(*from)--;
	for (*to = *from + 1; *to < DRAFT_PLACES && !known(d, *to); )
		(*to)++;
	if (*to == DRAFT_PLACES)
		*to = NONE;
}

static double times_on(const struct draft_time *d, int32_t from, int32_t to, double n)
{
	double at = tokens_at(from), each = d->slope;

	if (to != NONE)
		each = (d->times[to] - d->times[from]) / (tokens_at(to) - at);
	return d->times[from] + (each > 0 ? each : 0) * (n - at);
}

static double times_of(const struct draft_time *d, int32_t n)
{
	int32_t i = place_of(n), from, to;

	around(d, i, &from, &to);
	if (n <= DRAFT_EACH && from == i)
		return d->times[i];
	return times_on(d, from, to, n);
}

double draft_time(const struct draft_time *d, int32_t n)
{
	return d->base * times_of(d, n);
}

/* The same of n, n + 1, .. n + most tokens, as multiples of the base; none is less than one before it. */
void draft_times(const struct draft_time *d, int32_t n, int32_t most, float *times)
{
	times[0] = (float)times_of(d, n);
	for (int32_t k = 1; k <= most; k++) {
		float t = (float)times_of(d, n + k);

		times[k] = t > times[k - 1] ? t : times[k - 1];
	}
}

/* How many guesses, up to `most`, bring most tokens in the time that times[guesses] says, beside `expected` ones.
 * hoped[k]: how many of k will be right.  0: none is worth it. */
int32_t draft_best(const float *times, int32_t most, const double *hoped, double expected)
{
	double best = GAIN * expected / (double)times[0];
	int32_t best_k = 0;

	for (int32_t k = 1; k <= most; k++)
		if ((expected + hoped[k]) / (double)times[k] > best) {
			best = (expected + hoped[k]) / (double)times[k];
			best_k = k;
		}
	return best_k;
}

void draft_time_create(struct draft_time *d)
{
	memset(d, 0, sizeof(*d));
	d->times[0] = 1;
}

/* A batch of n tokens, that only decodes, took `ns`; `share`: of its operations in what the device had to do. */
void draft_measure(struct draft_time *d, int32_t n, double ns, double share)
{
	int32_t i = place_of(n);
	double should;

	if (ns <= 0)
		return;
	d->n_batches++;
	should = draft_time(d, n);
	if (should <= 0) {
		d->base = n == 1 ? ns : ns / (1 + share);
		should = ns;
	}
	d->slope += BASE_WEIGHT * (share * times_of(d, n) / n - d->slope);
	if (known(d, i) && ns > LONGEST * should)
		ns = LONGEST * should;
	if (!known(d, i)) {
		d->times[i] = (float)(ns / d->base);
		d->seen[i] = 0;
	} else {
		d->base *= 1 + BASE_WEIGHT * (ns / should - 1);
		if (i)
			d->times[i] += (float)(TIMES_WEIGHT * (ns / d->base - d->times[i]));
	}
	d->at[i] = d->n_batches;
	d->seen[i] += d->seen[i] < UINT8_MAX;
}
