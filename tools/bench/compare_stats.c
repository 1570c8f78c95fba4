/* compare_stats.c - computes values and their uncertainty from a result file.
 *
 * It uses the best of three sources that the file has:
 *   - repeated runs: the spread between them;
 *   - single requests: bootstrap over blocks of neighbours, because concurrent requests are correlated;
 *   - mean and standard deviation.
 * Only repeated runs show the differences between runs.  The other two show only the noise inside one run, so
 * `compare` has a threshold besides its intervals.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "compare.h"

#define REPLICAS   400
#define WORK       50000000      /* most values that all replicas together visit */
#define WINDOWS    16            /* windows of a run, for throughput */
#define BINS       1024          /* bins for quantiles of many gaps */
#define PAIRS      3             /* fewest runs that are compared in pairs */
#define TAIL       1000          /* fewest requests for a P99, resting on 1 in 100 of them; one pause of the
                                  * machine makes it, and hits all requests under way at once */
#define LEAST      1e-7          /* s; shorter gaps come from one read of the socket */

static double number_of(const json_t *j, const char *key)
{
	const json_t *v = json_object_get(j, key);

	return json_is_number(v) ? json_number_value(v) : NAN;
}

/* ---- Student's t ------------------------------------------------------------------------------- */

/* Regularized incomplete beta function by its continued fraction (DLMF 8.17.22). */
static double incomplete_beta(double a, double b, double x)
{
	double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x));
	double c = 1, d, f, k;

	if (x > (a + 1) / (a + b + 2))
		return 1 - incomplete_beta(b, a, 1 - x);
	d = 1 - (a + b) * x / (a + 1);
	d = 1 / (fabs(d) < 1e-300 ? 1e-300 : d);
	f = d;
	for (int m = 1; m < 300; m++) {
		k = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
		d = 1 / (1 + k * d);
		c = 1 + k / c;
		f *= c * d;
		k = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
		d = 1 / (1 + k * d);
		c = 1 + k / c;
		f *= c * d;
		if (fabs(c * d - 1) < 1e-12)
			break;
	}
	return front * f / a;
}

/* P(T <= t) for t > 0. */
static double student(double t, double freedom)
{
	return 1 - incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2;
}

double student_quantile(double p, double freedom)
{
	double low = 0, high = 1;

	while (student(high, freedom) < p && high < 1e9)
		high *= 2;
	for (int i = 0; i < 100; i++) {
		double mid = (low + high) / 2;

		if (student(mid, freedom) < p)
			low = mid;
		else
			high = mid;
	}
	return high;
}

/* The mean and its standard error. */
static struct estimate of_values(const double *v, int n)
{
	double sum = 0, square = 0;

	for (int i = 0; i < n; i++)
		sum += v[i];
	for (int i = 0; i < n; i++)
		square += (v[i] - sum / n) * (v[i] - sum / n);
	return (struct estimate){ sum / n, n > 1 ? sqrt(square / (n - 1) / n) : NAN, n - 1 };
}

/* ---- single requests --------------------------------------------------------------------------- */

struct values {
	double *v;                   /* all values, request by request */
	size_t *first;               /* [n + 1] index of each request's first value */
	size_t n;                    /* requests, in the order of their starts */
	uint16_t *bin;               /* the bin of each value, for quantiles */
	double low, step;            /* of the bins, as logarithms */
};

static bool add_latencies(struct values *w, const json_t *run, size_t i, enum latency latency, size_t *cap)
{
	const json_t *gaps = json_array_get(json_object_get(run, "itls"), i), *gap;
	double ttft = json_number_value(json_array_get(json_object_get(run, "ttfts"), i)), end = ttft;
	double out = json_number_value(json_array_get(json_object_get(run, "output_lens"), i));
	size_t at = w->first[w->n], k, need = at + json_array_size(gaps) + 1;
	double *grown;

	if (need > *cap) {
		*cap = need * 2;
		grown = realloc(w->v, *cap * sizeof(*grown));
		if (!grown)
			return false;
		w->v = grown;
	}
	json_array_foreach(gaps, k, gap) {
		if (latency == ITL)
			w->v[at++] = json_number_value(gap);
		end += json_number_value(gap);
	}
	if (latency == TTFT)
		w->v[at++] = ttft;
	else if (latency == E2EL)
		w->v[at++] = end;
	else if (latency == TPOT && out > 1)
		w->v[at++] = (end - ttft) / (out - 1);
	w->first[++w->n] = at;
	return true;
}

static void free_values(struct values *w)
{
	free(w->v);
	free(w->first);
	free(w->bin);
}

/* Collect all values of a quantity in one detailed run. */
static bool collect_latencies(struct values *w, const json_t *run, enum latency latency)
{
	const json_t *ttfts = json_object_get(run, "ttfts"), *errors = json_object_get(run, "errors");
	size_t n = json_array_size(ttfts), cap = 0;

	*w = (struct values){ .first = calloc(n + 1, sizeof(size_t)) };
	if (!w->first || json_array_size(json_object_get(run, "itls")) != n ||
	    json_array_size(json_object_get(run, "output_lens")) != n)
		return false;
	for (size_t i = 0; i < n; i++) {
		const char *error = json_string_value(json_array_get(errors, i));

		if ((!error || !*error) && !add_latencies(w, run, i, latency, &cap))
			return false;
	}
	return w->n > 1 && w->first[w->n] > 1;
}

static bool sort_into_bins(struct values *w)
{
	size_t n = w->first[w->n];
	double low = INFINITY, high = 0;

	w->bin = malloc(n * sizeof(*w->bin));
	for (size_t i = 0; i < n; i++) {
		low = fmin(low, fmax(w->v[i], LEAST));
		high = fmax(high, fmax(w->v[i], LEAST));
	}
	w->low = log(low);
	w->step = (log(high) - w->low) / (BINS - 1);
	if (!w->bin)
		return false;
	for (size_t i = 0; i < n; i++)
		w->bin[i] = w->step > 0 ? (uint16_t)((log(fmax(w->v[i], LEAST)) - w->low) / w->step) : 0;
	return true;
}

/* The logarithm of a statistic over the requests pick[0..n), which may repeat. */
static double statistic(const struct values *w, const size_t *pick, size_t n, enum over over)
{
	static uint32_t bin[BINS];
	size_t count = 0, below = 0, target;
	double sum = 0;

	if (over == MEAN) {
		for (size_t i = 0; i < n; i++)
			for (size_t k = w->first[pick[i]]; k < w->first[pick[i] + 1]; k++, count++)
				sum += w->v[k];
		return count && sum > 0 ? log(sum / (double)count) : NAN;
	}
	memset(bin, 0, sizeof(bin));
	for (size_t i = 0; i < n; i++)
		for (size_t k = w->first[pick[i]]; k < w->first[pick[i] + 1]; k++, count++)
			bin[w->bin[k]]++;
	target = (size_t)((double)count * (over == P99 ? 0.99 : 0.5));
	for (int b = 0; b < BINS; b++) {
		if (below + bin[b] > target)      /* assumes an even spread inside the bin */
			return w->low + w->step * (b + (double)(target - below) / bin[b]);
		below += bin[b];
	}
	return w->low + w->step * BINS;
}

/* Standard error of log(statistic), by drawing whole blocks of neighbouring requests again. */
static double bootstrap(const struct values *w, enum over over, double *freedom)
{
	size_t block = (size_t)ceil(sqrt((double)w->n) / 2), blocks = (w->n + block - 1) / block;
	size_t *pick = malloc(blocks * block * sizeof(*pick)), all = w->first[w->n];
	int replicas = all * REPLICAS > WORK ? (int)(WORK / all) : REPLICAS;
	double sum = 0, square = 0, x;
	struct pcg g;

	pcg_seed(&g, 1);                      /* the same files give the same verdict */
	if (replicas < 50)
		replicas = 50;
	for (int i = 0; pick && i < replicas; i++) {
		size_t n = 0;

		for (size_t b = 0; b < blocks; b++) {
			size_t from = pcg_below(&g, w->n);

			for (size_t k = 0; k < block; k++)
				pick[n++] = (from + k) % w->n;
		}
		x = statistic(w, pick, n, over);
		sum += x;
		square += x * x;
	}
	free(pick);
	*freedom = (double)(blocks > 2 ? blocks - 1 : 1);
	square = (square - sum * sum / replicas) / (replicas - 1);
	return square > 0 ? sqrt(square) : 0;
}

static int compare_latencies(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static struct estimate from_requests(const json_t *run, const struct measure *m)
{
	struct estimate e = { NAN, NAN, 0 };
	struct values w;

	if (collect_latencies(&w, run, m->latency) && (m->over == MEAN || sort_into_bins(&w))) {
		size_t n = w.first[w.n];

		e.spread = bootstrap(&w, m->over, &e.freedom);
		qsort(w.v, n, sizeof(*w.v), compare_latencies);
		if (m->over == MEAN)
			e.value = of_values(w.v, (int)n).value * 1000;
		else
			e.value = bench_percentile(w.v, n, m->over == P99 ? 99 : 50) * 1000;
		if (m->over == P99 && w.n < TAIL)
			e.spread = NAN;
	}
	free_values(&w);
	return e;
}

/* Count tokens or finished requests in each of WINDOWS parts of a run, without its start and drain. */
static bool windows(const json_t *run, const struct measure *m, double *count)
{
	const json_t *starts = json_object_get(run, "start_times"), *ttfts = json_object_get(run, "ttfts"),
	             *itls = json_object_get(run, "itls"), *gap;
	double from = INFINITY, duration = number_of(run, "duration");
	size_t n = json_array_size(starts);

	memset(count, 0, WINDOWS * sizeof(*count));
	if (n < 2 * WINDOWS || !(duration > 0) || json_array_size(itls) != n || json_array_size(ttfts) != n)
		return false;
	for (size_t i = 0; i < n; i++)
		from = fmin(from, json_number_value(json_array_get(starts, i)));
	for (size_t i = 0; i < n; i++) {
		double at = json_number_value(json_array_get(starts, i)) +
		            json_number_value(json_array_get(ttfts, i));
		const json_t *gaps = json_array_get(itls, i);

		for (size_t k = 0;; k++) {
			double place = (at - from) / duration * (WINDOWS + 2) - 1;

			gap = json_array_get(gaps, k);
			if (place >= 0 && place < WINDOWS && (m->what == TOKENS_PER_SECOND || !gap))
				count[(int)place]++;
			if (!gap)
				break;
			at += json_number_value(gap);
		}
	}
	for (int k = 0; k < WINDOWS; k++)
		if (!(count[k] > 0))
			return false;
	return true;
}

/* Compare window with window.  If both runs have the same arrivals, their variations cancel. */
struct change compare_windows(const struct result *a, const struct result *b, const struct measure *m,
                              double alpha)
{
	double x[WINDOWS], y[WINDOWS], d = number_of(b->run[0], m->key) / number_of(a->run[0], m->key), half;
	struct change c = { d, NAN, NAN };
	struct estimate e;

	if (!windows(a->run[0], m, x) || !windows(b->run[0], m, y) || !(d > 0))
		return c;
	for (int k = 0; k < WINDOWS; k++)
		y[k] = log(y[k] / x[k]);
	e = of_values(y, WINDOWS);
	half = e.spread > 0 ? student_quantile(1 - alpha / 2, e.freedom) * e.spread : 0;
	return (struct change){ d, exp(log(d) - half), exp(log(d) + half) };
}

/* ---- which source ------------------------------------------------------------------------------ */

static struct estimate from_moments(const json_t *run, const struct measure *m)
{
	static const char *const std[N_LATENCIES] = { "std_ttft_ms", "std_tpot_ms", "std_itl_ms",
	                                              "std_e2el_ms" };
	struct estimate e = { number_of(run, m->key), NAN, 0 };
	double n = number_of(run, "completed"), s;

	if (m->what != LATENCY || m->over != MEAN || !(e.value > 0))
		return e;
	s = number_of(run, std[m->latency]);
	if (n > 1 && s >= 0) {                /* gaps of one request are correlated: count requests */
		e.spread = s / e.value / sqrt(n);
		e.freedom = n - 1;
	}
	return e;
}

static struct estimate of_run(const json_t *run, const struct measure *m)
{
	struct estimate e = { NAN, NAN, 0 };

	if (json_array_size(json_object_get(run, "ttfts")) > 1 && m->what == LATENCY)
		e = from_requests(run, m);
	return isnan(e.value) ? from_moments(run, m) : e;
}

struct estimate compare_estimate(const struct result *r, const struct measure *m)
{
	double v[COMPARE_RUNS];
	struct estimate e;
	int n = 0;

	if (r->n == 1) {
		e = of_run(r->run[0], m);
		if (!(e.value > 0))
			e.value = NAN;
		return e;
	}
	for (int i = 0; i < r->n; i++) {
		double x = number_of(r->run[i], m->key);

		if (isnan(x) && m->what == LATENCY)
			x = of_run(r->run[i], m).value;
		if (x > 0)
			v[n++] = log(x);
	}
	if (n < r->n)
		return (struct estimate){ NAN, NAN, 0 };
	e = of_values(v, n);
	e.value = exp(e.value);
	return e;
}

struct change compare_change(const struct estimate *a, const struct estimate *b, double alpha)
{
	double va = a->spread * a->spread, vb = b->spread * b->spread;
	double d = log(b->value / a->value), half, freedom;
	struct change c = { b->value / a->value, NAN, NAN };

	if (isnan(va + vb) || isnan(d))
		return c;
	/* degrees of freedom of the sum of two spreads (Welch, Satterthwaite) */
	freedom = va + vb > 0 ? (va + vb) * (va + vb) / (va * va / a->freedom + vb * vb / b->freedom) : 1;
	half = va + vb > 0 ? student_quantile(1 - alpha / 2, freedom) * sqrt(va + vb) : 0;
	c.low = exp(d - half);
	c.high = exp(d + half);
	return c;
}

static const char *date(const struct result *r, int i)
{
	return i < r->n ? json_string_value(json_object_get(r->run[i], "date")) : NULL;
}

bool compare_in_turns(const struct result *a, const struct result *b)
{
	if (a->n != b->n || a->n < PAIRS)
		return false;
	for (int i = 0; i < a->n; i++) {
		const char *x = date(a, i), *y = date(b, i), *next = date(a, i + 1);

		if (!x || !y || strcmp(x, y) >= 0 || (next && strcmp(y, next) >= 0))
			return false;
	}
	return true;
}

struct change compare_paired(const struct result *a, const struct result *b, const struct measure *m,
                             double alpha)
{
	double d[COMPARE_RUNS];
	struct estimate e;
	double half;

	for (int i = 0; i < a->n; i++) {
		double x = number_of(a->run[i], m->key), y = number_of(b->run[i], m->key);

		if (!(x > 0) || !(y > 0))
			return (struct change){ NAN, NAN, NAN };
		d[i] = log(y / x);
	}
	e = of_values(d, a->n);
	half = e.spread > 0 ? student_quantile(1 - alpha / 2, e.freedom) * e.spread : 0;
	return (struct change){ exp(e.value), exp(e.value - half), exp(e.value + half) };
}
