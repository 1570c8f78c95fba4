/* avx512.h - what the files of the AVX-512 table share.  Included by files compiled for AVX-512 only.
 */
#ifndef AVX512_H
#define AVX512_H

#include <immintrin.h>

#include "kernels/cpu/kern.h"

/* The tile functions take their shape as constant arguments.  They must be inlined, and loops over
 * the shape unrolled, so that the sums stay in registers. */
#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Run f(rows, ...) with a constant first argument. */
#define FOR_ROWS(rows, f, ...)                       \
	switch (rows) {                              \
	case 1: f(1, __VA_ARGS__); break;            \
	case 2: f(2, __VA_ARGS__); break;            \
	case 3: f(3, __VA_ARGS__); break;            \
	case 4: f(4, __VA_ARGS__); break;            \
	case 5: f(5, __VA_ARGS__); break;            \
	case 6: f(6, __VA_ARGS__); break;            \
	case 7: f(7, __VA_ARGS__); break;            \
	case 8: f(8, __VA_ARGS__); break;            \
	}

/* exp(x) to 2 ulp; x is clamped to -87.3 .. 88, as in exp256().  NaN stays NaN, because min and max then return
 * their second argument.  x = n ln2 + r, |r| <= ln2 / 2, ln2 in two parts; the polynomial is that of
 * Moshier's Cephes library. */
static inline __m512 exp512(__m512 x)
{
	__m512 n, r, p;

	x = _mm512_min_ps(_mm512_set1_ps(88), _mm512_max_ps(_mm512_set1_ps(-87.3f), x));
	n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
	r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
	r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
	p = _mm512_set1_ps(1.9875691500e-4f);
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
	p = _mm512_fmadd_ps(_mm512_mul_ps(r, r), p, _mm512_add_ps(r, _mm512_set1_ps(1)));
	return _mm512_scalef_ps(p, n);
}

/* tanh(x) = 1 - 2 / (e^2x + 1) */
static inline __m512 tanh512(__m512 x)
{
	__m512 e = exp512(_mm512_add_ps(x, x)), one = _mm512_set1_ps(1);

	return _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2), _mm512_add_ps(e, one)));
}

/* Sixteen lanes are added in this order in every table: i and i + 8, then i and i + 4, 2, 1. */
static inline float sum512(__m512 v)
{
	__m256 u = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
	__m128 s = _mm_add_ps(_mm256_castps256_ps128(u), _mm256_extractf128_ps(u, 1));

	s = _mm_add_ps(s, _mm_movehl_ps(s, s));
	return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

void   avx512_matmul(int32_t type, int32_t k, const uint8_t *blocks, int32_t n_blocks, int32_t n_cols,
                     const struct kern_rows *x, const float *bias, float *y, size_t ld, const uint8_t *next);
size_t avx512_attend_scratch(int32_t n, int32_t heads, int32_t E);
void   avx512_attend(int32_t kv_type, const struct kern_attend *a);

#endif
