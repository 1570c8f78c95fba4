/* tune_judge.c - tells a gain from noise with the statistics of `slipring compare`.
 *
 * It compares logarithms, because everything is a ratio.  The spread between runs of one setting is estimated
 * from all settings with more than one run together, because one setting has too few runs.  A search finds
 * only a candidate this way.  The proof at the end uses new, interleaved runs.
 */
#include <math.h>

#include "tune.h"

#define LEAST_NOISE 0.003        /* lower limit, because two runs may agree by chance */
#define ALPHA       0.05

static double score(double v)
{
	return log(v > 1e-6 ? v : 1e-6);     /* goodput may be 0 */
}

double tune_mean(const struct tune_trial *tr)
{
	double sum = 0;

	for (int i = 0; i < tr->n; i++)
		sum += score(tr->score[i]);
	return tr->n ? exp(sum / tr->n) : NAN;
}

double tune_noise(const struct tune *t, int *freedom)
{
	double square = 0;

	*freedom = 0;
	for (int k = 0; k < t->n_trials; k++) {
		const struct tune_trial *tr = &t->trial[k];
		double mean = log(tune_mean(tr));

		if (tr->n < 2)
			continue;
		*freedom += tr->n - 1;
		for (int i = 0; i < tr->n; i++)
			square += (score(tr->score[i]) - mean) * (score(tr->score[i]) - mean);
	}
	return *freedom ? fmax(sqrt(square / *freedom), LEAST_NOISE) : NAN;
}

struct change tune_change(const struct tune *t, const struct tune_trial *a, const struct tune_trial *b)
{
	int freedom;
	double noise = tune_noise(t, &freedom), d = log(tune_mean(b) / tune_mean(a)), half;
	struct change c = { exp(d), NAN, NAN };

	if (!freedom || !a->n || !b->n)
		return c;
	half = student_quantile(1 - ALPHA / 2, freedom) * noise * sqrt(1.0 / a->n + 1.0 / b->n);
	c.low = exp(d - half);
	c.high = exp(d + half);
	return c;
}

/* Compare the last n runs of both, which were interleaved. */
struct change tune_paired(const struct tune_trial *a, const struct tune_trial *b, int n)
{
	double d[TUNE_RUNS], sum = 0, square = 0, half;

	for (int i = 0; i < n; i++)
		sum += d[i] = score(b->score[b->n - n + i]) - score(a->score[a->n - n + i]);
	for (int i = 0; i < n; i++)
		square += (d[i] - sum / n) * (d[i] - sum / n);
	if (n < 2)
		return (struct change){ n ? exp(sum) : NAN, NAN, NAN };
	half = student_quantile(1 - ALPHA / 2, n - 1) * sqrt(square / (n - 1) / n);
	return (struct change){ exp(sum / n), exp(sum / n - half), exp(sum / n + half) };
}

double tune_left(const struct tune *t)
{
	const struct tune_trial *a = &t->trial[t->base], *b = &t->trial[t->best];
	double proof = t->n_trials ? t->o.pairs * (a->seconds + b->seconds) : 0;

	return t->o.budget - (bench_now() - t->began) - t->spent - proof;
}
