/* avx2.h - what the files of the AVX2 table share.  Included by files compiled for AVX2 and FMA only.
 */
#ifndef AVX2_H
#define AVX2_H

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

/* There are sixteen registers: enough for the sums of four rows. */
#define AVX2_ROWS 4

/* Run f(rows, ...) with a constant first argument. */
#define FOR_ROWS(rows, f, ...)                       \
	switch (rows) {                              \
	case 1: f(1, __VA_ARGS__); break;            \
	case 2: f(2, __VA_ARGS__); break;            \
	case 3: f(3, __VA_ARGS__); break;            \
	case 4: f(4, __VA_ARGS__); break;            \
	}

/* Eight dwords of two bf16 as floats: the low ones, the high ones. */
static inline __m256 low_bf16(__m256i pairs)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}

static inline __m256 high_bf16(__m256i pairs)
{
	return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000)));
}

static inline __m256i load256(const void *p)
{
	return _mm256_load_si256((const __m256i *)p);
}

/* Elements i .. i + 7 of n; those past the end read as 0 and are not written.  Masks are used at the
 * end only, because masked stores are slow on AMD. */
static inline __m256i upto256(int32_t i, int32_t n)
{
	return _mm256_cmpgt_epi32(_mm256_set1_epi32(n - i), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline __m256 get256(const float *x, int32_t i, int32_t n)
{
	return n - i >= 8 ? _mm256_loadu_ps(x + i) : _mm256_maskload_ps(x + i, upto256(i, n));
}

static inline void put256(float *x, int32_t i, int32_t n, __m256 v)
{
	if (n - i >= 8)
		_mm256_storeu_ps(x + i, v);
	else
		_mm256_maskstore_ps(x + i, upto256(i, n), v);
}

static inline float sum256(__m256 v)
{
	__m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

	s = _mm_add_ps(s, _mm_movehl_ps(s, s));
	return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline float max256(__m256 v)
{
	__m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

	s = _mm_max_ps(s, _mm_movehl_ps(s, s));
	return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

/* exp(x) to 2 ulp; x is clamped to -87.3 .. 88.  NaN stays NaN, because min and max then return their
 * second argument.  x = n ln2 + r, |r| <= ln2 / 2, ln2 in two parts; the polynomial is that of
 * Moshier's Cephes library. */
static inline __m256 exp256(__m256 x)
{
	__m256 n, r, p;
	__m256i power;

	x = _mm256_min_ps(_mm256_set1_ps(88), _mm256_max_ps(_mm256_set1_ps(-87.3f), x));
	n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
	                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
	r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
	r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
	p = _mm256_set1_ps(1.9875691500e-4f);
	p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
	p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
	p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
	p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
	p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
	p = _mm256_fmadd_ps(_mm256_mul_ps(r, r), p, _mm256_add_ps(r, _mm256_set1_ps(1)));
	power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
	return _mm256_mul_ps(p, _mm256_castsi256_ps(power));
}

/* tanh(x) = 1 - 2 / (e^2x + 1) */
static inline __m256 tanh256(__m256 x)
{
	__m256 e = exp256(_mm256_add_ps(x, x)), one = _mm256_set1_ps(1);

	return _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2), _mm256_add_ps(e, one)));
}

void   avx2_matmul(int32_t type, int32_t k, const uint8_t *blocks, int32_t n_blocks, int32_t n_cols,
                   const struct kern_rows *x, const float *bias, float *y, size_t ld, const uint8_t *next);
size_t avx2_attend_scratch(int32_t n, int32_t heads, int32_t E);
void   avx2_attend(int32_t kv_type, const struct kern_attend *a);

#endif
