/* kern_rig.h - for tests of the CPU's inner loops: numbers that are the same in each run, how far two rows are apart, and
 * a case for each table of kernels that this machine has. */
#ifndef KERN_RIG_H
#define KERN_RIG_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/kern.h"

static uint64_t state;

static inline uint32_t rnd(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 16);
}

static inline float uniform(void)                        /* -1 .. 1 */
{
	return (float)(int32_t)rnd() * 0x1p-31f;
}

static inline void *take(size_t bytes)
{
	void *p = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);

	assert_non_null(p);
	memset(p, 0xa5, (bytes + 63) / 64 * 64 + 64);
	return p;
}

/* Activations like a model's: channels of very different size. */
static inline float *activations(int32_t rows, int32_t k)
{
	float *x = take((size_t)rows * (size_t)k * 4);

	for (int32_t i = 0; i < rows * k; i++)
		x[i] = uniform() * expf(2 * sinf((float)(i % k) * 12.9898f));
	return x;
}

static inline double rms(const float *v, size_t n)
{
	double s = 0;

	for (size_t i = 0; i < n; i++)
		s += (double)v[i] * v[i];
	return sqrt(s / (double)n);
}

static inline double rms_difference(const float *a, const float *b, size_t n)
{
	double s = 0;

	for (size_t i = 0; i < n; i++)
		s += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
	return sqrt(s / (double)n);
}

static inline const struct kern *table(int i)
{
	const struct kern *have[] = { &kern_plain, kern_avx2(), kern_avx512(), kern_avx512vnni() };

	state = 88172645463325252u;
	if (!have[i]) {
		printf("SKIP: this machine lacks %s\n", i == 1 ? "AVX2 with FMA"
		       : i == 2 ? "AVX-512 with VNNI and BF16" : "AVX-512 with VNNI");
		skip();
	}
	return have[i];
}

#define ON(what)                                                            \
	static void what##_plain(void **u)  { (void)u; what(table(0)); }    \
	static void what##_avx2(void **u)   { (void)u; what(table(1)); }    \
	static void what##_avx512(void **u) { (void)u; what(table(2)); }    \
	static void what##_vnni(void **u)   { (void)u; what(table(3)); }

#define ALL(what)                                                            \
	cmocka_unit_test(what##_plain), cmocka_unit_test(what##_avx2),       \
	cmocka_unit_test(what##_avx512), cmocka_unit_test(what##_vnni)

#endif
