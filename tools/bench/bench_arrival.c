/* bench_arrival.c - random numbers, and when each request is to be sent.
 *
 * The generators are exactly those of numpy and Python's random.  With the same seed the same requests
 * arrive at the same moments as under `vllm bench serve`, so two tools can be compared in turns.
 * Sources: O'Neill 2014 (PCG), Matsumoto and Nishimura 1998 (MT19937), Lemire 2019 (bounded integers),
 * Marsaglia and Tsang 2000, Ahrens and Dieter 1974 (gamma).
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "bench.h"

/* ---- PCG64, seeded as numpy.random.default_rng(seed) ------------------------------------------ */

static uint32_t hash_mix(uint32_t v, uint32_t *constant, uint32_t factor)
{
	v ^= *constant;
	*constant *= factor;
	v *= *constant;
	return v ^ v >> 16;
}

static void pcg_step(struct pcg *g)
{
	const bench_u128 factor = (bench_u128)0x2360ED051FC65DA4u << 64 | 0x4385DF649FCCF645u;

	g->state = g->state * factor + g->inc;
}

void pcg_seed(struct pcg *g, uint64_t seed)
{
	uint32_t pool[4], constant = 0x43b0d7e5, word[8];
	const uint32_t entropy[4] = { (uint32_t)seed, (uint32_t)(seed >> 32), 0, 0 };
	uint64_t v[4];

	for (int i = 0; i < 4; i++)
		pool[i] = hash_mix(entropy[i], &constant, 0x931e8875);
	for (int from = 0; from < 4; from++)
		for (int to = 0; to < 4; to++) {
			if (from == to)
				continue;
			uint32_t mixed = hash_mix(pool[from], &constant, 0x931e8875);

			mixed = 0xca01f9ddu * pool[to] - 0x4973f715u * mixed;
			pool[to] = mixed ^ mixed >> 16;
		}
	constant = 0x8b51f9dd;
	for (int i = 0; i < 8; i++)
		word[i] = hash_mix(pool[i % 4], &constant, 0x58f38ded);
	for (int i = 0; i < 4; i++)
		v[i] = word[2 * i] | (uint64_t)word[2 * i + 1] << 32;
	memset(g, 0, sizeof(*g));
	g->inc = ((bench_u128)v[2] << 64 | v[3]) << 1 | 1;
	pcg_step(g);
	g->state += (bench_u128)v[0] << 64 | v[1];
	pcg_step(g);
}

static uint64_t pcg_next64(struct pcg *g)
{
	uint64_t x;
	int turn;

	pcg_step(g);
	x = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
	turn = (int)(g->state >> 122);
	return x >> turn | x << (-turn & 63);
}

/* Each 64 bits serve two draws of 32, low half first. */
static uint32_t pcg_next32(struct pcg *g)
{
	uint64_t x;

	if (g->has_half) {
		g->has_half = false;
		return g->half;
	}
	x = pcg_next64(g);
	g->has_half = true;
	g->half = (uint32_t)(x >> 32);
	return (uint32_t)x;
}

uint64_t pcg_below(struct pcg *g, uint64_t n)
{
	uint32_t bound = (uint32_t)n, threshold;
	uint64_t m;

	if (n <= 1)
		return 0;                     /* draws nothing, as in numpy */
	if (n > UINT32_MAX)
		return pcg_next64(g) % n;
	m = (uint64_t)pcg_next32(g) * bound;
	if ((uint32_t)m < bound) {
		threshold = -bound % bound;
		while ((uint32_t)m < threshold)
			m = (uint64_t)pcg_next32(g) * bound;
	}
	return m >> 32;
}

/* ---- MT19937 ----------------------------------------------------------------------------------- */

void twister_seed_numpy(struct twister *t, uint32_t seed)
{
	memset(t, 0, sizeof(*t));
	t->word[0] = seed;
	for (uint32_t i = 1; i < 624; i++)
		t->word[i] = 1812433253u * (t->word[i - 1] ^ t->word[i - 1] >> 30) + i;
	t->next = 624;
}

void twister_seed_python(struct twister *t, uint64_t seed)
{
	uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
	uint32_t n = key[1] ? 2 : 1, j = 0, i = 1, *w = t->word;

	twister_seed_numpy(t, 19650218);
	for (int k = 624; k > 0; k--) {
		w[i] = (w[i] ^ (w[i - 1] ^ w[i - 1] >> 30) * 1664525u) + key[j] + j;
		if (++i == 624) {
			w[0] = w[623];
			i = 1;
		}
		j = (j + 1) % n;
	}
	for (int k = 623; k > 0; k--) {
		w[i] = (w[i] ^ (w[i - 1] ^ w[i - 1] >> 30) * 1566083941u) - i;
		if (++i == 624) {
			w[0] = w[623];
			i = 1;
		}
	}
	w[0] = 0x80000000u;
}

static uint32_t twister_next(struct twister *t)
{
	uint32_t y, *w = t->word;

	if (t->next == 624) {
		for (int i = 0; i < 624; i++) {
			y = (w[i] & 0x80000000u) | (w[(i + 1) % 624] & 0x7fffffffu);
			w[i] = w[(i + 397) % 624] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
		}
		t->next = 0;
	}
	y = w[t->next++];
	y ^= y >> 11;
	y ^= y << 7 & 0x9d2c5680u;
	y ^= y << 15 & 0xefc60000u;
	return y ^ y >> 18;
}

/* [0, 1), 53 bits. */
static double twister_real(struct twister *t)
{
	uint32_t high = twister_next(t) >> 5, low = twister_next(t) >> 6;

	return (high * 67108864.0 + low) / 9007199254740992.0;
}

uint64_t twister_below(struct twister *t, uint64_t n)
{
	int bits = 64 - __builtin_clzll(n | 1);
	uint64_t v;

	do {
		if (bits <= 32)
			v = twister_next(t) >> (32 - bits);
		else {
			v = twister_next(t);
			v |= (uint64_t)(twister_next(t) >> (64 - bits)) << 32;
		}
	} while (v >= n);
	return v;
}

static double exponential(struct twister *t)
{
	return -log(1.0 - twister_real(t));
}

/* The polar method gives two values at a time. */
static double gauss(struct twister *t)
{
	double x, y, r;

	if (t->has_gauss) {
		t->has_gauss = false;
		return t->gauss;
	}
	do {
		x = 2.0 * twister_real(t) - 1.0;
		y = 2.0 * twister_real(t) - 1.0;
		r = x * x + y * y;
	} while (r >= 1.0 || r == 0.0);
	r = sqrt(-2.0 * log(r) / r);
	t->gauss = r * x;
	t->has_gauss = true;
	return r * y;
}

static double gamma_small(struct twister *t, double shape)
{
	double u, v, x;

	for (;;) {
		u = twister_real(t);
		v = exponential(t);
		if (u <= 1.0 - shape) {
			x = pow(u, 1.0 / shape);
			if (x <= v)
				return x;
		} else {
			double y = -log((1.0 - u) / shape);

			x = pow(1.0 - shape + shape * y, 1.0 / shape);
			if (x <= v + y)
				return x;
		}
	}
}

double twister_gamma(struct twister *t, double shape)
{
	double b = shape - 1.0 / 3.0, c, u, v, x;

	if (shape == 1.0)
		return exponential(t);
	if (shape < 1.0)
		return gamma_small(t, shape);
	c = 1.0 / sqrt(9.0 * b);
	for (;;) {
		do {
			x = gauss(t);
			v = 1.0 + c * x;
		} while (v <= 0.0);
		v = v * v * v;
		u = twister_real(t);
		if (u < 1.0 - 0.0331 * (x * x) * (x * x) || log(u) < 0.5 * x * x + b * (1.0 - v + log(v)))
			return b * v;
	}
}

/* ---- arrivals ---------------------------------------------------------------------------------- */

static double rate_of(const struct bench_options *o, size_t i, size_t n)
{
	double progress = (double)i / (double)(n > 1 ? n - 1 : 1);

	if (!o->ramp)
		return o->rate;
	if (!strcmp(o->ramp, "linear"))
		return o->ramp_start + (o->ramp_end - o->ramp_start) * progress;
	return o->ramp_start * pow(o->ramp_end / o->ramp_start, progress);
}

int bench_arrivals(double *at, const struct bench_load *l, const struct bench_options *o)
{
	struct twister t;
	double sum = 0, rate;

	if (o->self_timed > 0) {
		for (size_t i = 0; i < l->n; i++)
			at[i] = l->prompt[i].at;
		return 0;
	}
	twister_seed_numpy(&t, (uint32_t)o->seed);
	for (size_t i = 0; i < l->n; i++) {
		rate = rate_of(o, i, l->n);
		if (rate <= 0)
			return -EINVAL;
		if (isfinite(rate))
			sum += (isinf(o->burstiness) ? 1 : twister_gamma(&t, o->burstiness) / o->burstiness) / rate;
		at[i] = sum;
	}
	/* the sum of n draws misses n / rate by 1 or 2 %, which would distort the throughput */
	if (!o->ramp && sum > 0)
		for (size_t i = 0; i < l->n; i++)
			at[i] *= (double)l->n / o->rate / sum;
	return 0;
}
