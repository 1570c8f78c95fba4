/* awq.c - see awq.h. */
#include "awq.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/types.h"

#define ALPHAS  21                 /* 0, 0.05, .. 1 */
#define SAMPLES 256                /* outputs of a matrix that the search uses */

int awq_create(struct awq *a, int32_t n, int32_t k, int32_t group)
{
	size_t groups = (size_t)n * (size_t)(k / group);

	*a = (struct awq){ n, k, group, malloc((size_t)n * (size_t)k), malloc(groups),
	                   malloc(groups * sizeof(*a->scale)) };
	if (a->q && a->zero && a->scale)
		return 0;
	awq_destroy(a);
	return -ENOMEM;
}

void awq_destroy(struct awq *a)
{
	free(a->q);
	free(a->zero);
	free(a->scale);
	*a = (struct awq){ 0 };
}

/* ---- rounding ------------------------------------------------------------------------------- */

struct grid { uint16_t scale; uint8_t zero; float s, z; };

/* 16 values from lo to hi, one of them exactly 0. */
static struct grid grid_of(float lo, float hi)
{
	struct grid g = { .scale = f16_of_f32((hi - lo) / 15) };

	if (!(g.scale & 0x7fff))       /* all zeros, or almost */
		g.scale = 1;
	else if (g.scale > 0x6c00)     /* 4096: readers hold 15 s in f16 too */
		g.scale = 0x6c00;
	g.s = f32_of_f16(g.scale);
	g.z = fminf(fmaxf(rintf(-lo / g.s), 0), 15);
	g.zero = (uint8_t)g.z;
	return g;
}

/* The squared error of w[n] on the grid, weighted by worth; fills q unless it is NULL. */
static double round_on(const struct grid *g, const float *w, const double *worth, int32_t n, uint8_t *q)
{
	float inverse = 1 / g->s, middle = g->z + 0.5f;
	double sum = 0;

	for (int32_t i = 0; i < n; i++) {
		int at = (int)fminf(fmaxf(w[i] * inverse + middle, 0), 15.5f);
		double d = (double)(((float)at - g->z) * g->s - w[i]);

		sum += d * d * (worth ? worth[i] : 1);
		if (q)
			q[i] = (uint8_t)at;
	}
	return sum;
}

static void range(const float *w, int32_t n, float *lo, float *hi)
{
	*lo = *hi = 0;
	for (int32_t i = 0; i < n; i++) {
		*lo = fminf(*lo, w[i]);
		*hi = fmaxf(*hi, w[i]);
	}
}

/* A narrower range loses precision for the few values at its ends and gains it for all others: try several
 * and take the best. */
static struct grid best_grid(const float *w, const double *worth, int32_t n)
{
	static const float parts[] = { 1, 0.95f, 0.9f, 0.85f, 0.8f, 0.75f, 0.7f, 0.65f, 0.6f, 0.55f };
	struct grid best = { 0 };
	double least = INFINITY;
	float lo, hi;

	range(w, n, &lo, &hi);
	for (unsigned i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		struct grid g = grid_of(lo * parts[i], hi * parts[i]);
		double error = round_on(&g, w, worth, n, NULL);

		if (error < least || i == 0) {
			least = error;
			best = g;
		}
	}
	return best;
}

double awq_round(struct awq *a, struct matrix *m, const double *worth)
{
	int32_t groups = a->k / a->group;
	double error = 0, all = 0;

	for (int32_t i = 0; i < a->n; i++)
		for (int32_t j = 0; j < groups; j++) {
			size_t at = (size_t)i * (size_t)groups + (size_t)j, first = at * (size_t)a->group;
			const double *value = worth ? worth + (size_t)j * (size_t)a->group : NULL;
			float *w = m->w + first;
			struct grid g = best_grid(w, value, a->group);

			a->scale[at] = g.scale;
			a->zero[at] = g.zero;
			error += round_on(&g, w, NULL, a->group, a->q + first);
			for (int32_t k = 0; k < a->group; k++) {
				all += (double)w[k] * (double)w[k];
				w[k] = ((float)a->q[first + (size_t)k] - g.z) * g.s;
			}
		}
	return all > 0 ? sqrt(error / all) : 0;
}

/* ---- in files ------------------------------------------------------------------------------- */

/* The output that nibble i of a word belongs to. */
static const uint8_t order[8] = { 0, 2, 4, 6, 1, 3, 5, 7 };

void awq_pack(const struct awq *a, uint32_t *qweight, uint32_t *qzeros, uint16_t *scales)
{
	size_t n = (size_t)a->n, k = (size_t)a->k, groups = k / (size_t)a->group;

	for (size_t j = 0; j < k; j++)
		for (size_t c = 0; c < n / 8; c++) {
			uint32_t word = 0;

			for (int i = 0; i < 8; i++)
				word |= (uint32_t)a->q[(8 * c + order[i]) * k + j] << 4 * i;
			qweight[j * (n / 8) + c] = word;
		}
	for (size_t g = 0; g < groups; g++) {
		for (size_t c = 0; c < n / 8; c++) {
			uint32_t word = 0;

			for (int i = 0; i < 8; i++)
				word |= (uint32_t)a->zero[(8 * c + order[i]) * groups + g] << 4 * i;
			qzeros[g * (n / 8) + c] = word;
		}
		for (size_t i = 0; i < n; i++)
			scales[g * n + i] = a->scale[i * groups + g];
	}
}

/* ---- scales for inputs ---------------------------------------------------------------------- */

void awq_scale_inputs(struct matrix *m, const float *s)
{
	for (size_t i = 0; i < (size_t)m->n; i++)
		for (size_t j = 0; j < (size_t)m->k; j++)
			m->w[i * (size_t)m->k + j] *= s[j];
}

/* s = mean(|x|)^alpha, normalized so that the largest times the smallest is 1. */
static void scales_of(const struct moments *x, double alpha, float *s)
{
	double least = INFINITY, most = 0;

	for (int32_t j = 0; j < x->k; j++) {
		double size = pow(fmax(x->size[j] / (double)x->rows, 1e-4), alpha);

		least = fmin(least, size);
		most = fmax(most, size);
		s[j] = (float)size;
	}
	for (int32_t j = 0; j < x->k; j++)
		s[j] = fminf(fmaxf(s[j] / (float)sqrt(least * most), 1e-3f), 1e3f);
}

/* The error in the outputs of m, scaled by s and rounded, if its inputs were independent. */
static double cost_of(const struct matrix *m, int32_t group, const float *s, const double *worth, float *row)
{
	int32_t step = m->n > SAMPLES ? m->n / SAMPLES : 1;
	double sum = 0;

	for (int32_t i = 0; i < m->n; i += step) {
		const float *w = m->w + (size_t)i * (size_t)m->k;

		for (int32_t j = 0; j < m->k; j++)
			row[j] = w[j] * s[j];
		for (int32_t j = 0; j < m->k; j += group) {
			struct grid g;
			float lo, hi;

			range(row + j, group, &lo, &hi);
			g = grid_of(lo, hi);
			sum += round_on(&g, row + j, worth + j, group, NULL);
		}
	}
	return sum;
}

double awq_search(const struct matrix *const *m, int n, int32_t group, const struct moments *x, float *s)
{
	double *worth = malloc((size_t)x->k * sizeof(*worth)), least = INFINITY, best = 0;
	float *row = malloc((size_t)x->k * sizeof(*row));

	for (int i = 0; worth && row && i < ALPHAS; i++) {
		double alpha = (double)i / (ALPHAS - 1), cost = 0;

		scales_of(x, alpha, s);
		for (int32_t j = 0; j < x->k; j++)
			worth[j] = x->square[j] / (double)x->rows / (double)s[j] / (double)s[j];
		for (int p = 0; p < n; p++)
			cost += cost_of(m[p], group, s, worth, row);
		if (cost < least) {
			least = cost;
			best = alpha;
		}
	}
	scales_of(x, best, s);
	free(worth);
	free(row);
	return best;
}
