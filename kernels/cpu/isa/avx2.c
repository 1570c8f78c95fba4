/* avx2.c - the table for machines with AVX2, FMA and F16C, and its vector verbs.  A sum over a vector
 * is kept in sixteen lanes, as in every table: two registers of floats, four of doubles.
 */
#include "avx2.h"

#include <math.h>

#include "kernels/cpu/kvblock.h"
#include "kernels/cpu/lanes.h"

static int form(int32_t type)
{
	if (lanes_kind(type) == LANES_NONE)
		return -1;
	return types_quantized(type) ? FORM_I8 : FORM_F32;
}

static void norm(const float *x, const float *w, float eps, int32_t n, float *y)
{
	__m256 squares[2] = { _mm256_setzero_ps(), _mm256_setzero_ps() }, scale;

	for (int32_t i = 0; i < n; i += 16) {
		__m256 v = get256(x, i, n), u = i + 8 < n ? get256(x, i + 8, n) : _mm256_setzero_ps();

		squares[0] = _mm256_fmadd_ps(v, v, squares[0]);
		squares[1] = _mm256_fmadd_ps(u, u, squares[1]);
	}
	scale = _mm256_set1_ps(1 / sqrtf(sum256(_mm256_add_ps(squares[0], squares[1])) / (float)n + eps));
	for (int32_t i = 0; i < n; i += 8)
		put256(y, i, n, _mm256_mul_ps(_mm256_mul_ps(get256(x, i, n), scale), get256(w, i, n)));
}

static void add(float *x, const float *z, int32_t n)
{
	for (int32_t i = 0; i < n; i += 8)
		put256(x, i, n, _mm256_add_ps(get256(x, i, n), get256(z, i, n)));
}

/* x = (a0, b0, a1, b1, ..) and cs = (c0, s0, c1, s1, ..): a' = a c - b s, b' = b c + a s */
static void rope_pairs(float *head, const float *cs, int32_t dims)
{
	for (int32_t i = 0; i < dims; i += 8) {
		__m256 x = get256(head, i, dims), t = get256(cs, i, dims);
		__m256 crossed = _mm256_mul_ps(_mm256_permute_ps(x, 0xb1), _mm256_movehdup_ps(t));

		put256(head, i, dims, _mm256_fmaddsub_ps(x, _mm256_moveldup_ps(t), crossed));
	}
}

static void rope_halves(float *head, const float *cs, int32_t dims)
{
	float *second = head + dims / 2;
	int32_t i = 0;

	for (; i + 8 <= dims / 2; i += 8) {
		__m256 low = _mm256_loadu_ps(cs + 2 * i), high = _mm256_loadu_ps(cs + 2 * i + 8);
		__m256 c = _mm256_shuffle_ps(low, high, 0x88), s = _mm256_shuffle_ps(low, high, 0xdd);
		__m256 a = _mm256_loadu_ps(head + i), b = _mm256_loadu_ps(second + i);

		c = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(c), 0xd8));
		s = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(s), 0xd8));
		_mm256_storeu_ps(head + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
		_mm256_storeu_ps(second + i, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
	}
	for (; i < dims / 2; i++) {
		float a = head[i], b = second[i], c = cs[2 * i], s = cs[2 * i + 1];

		head[i] = fmaf(a, c, -(b * s));
		second[i] = fmaf(b, c, a * s);
	}
}

static void rope(float *head, const float *cs, int32_t dims, int32_t pairs)
{
	if (pairs)
		rope_pairs(head, cs, dims);
	else
		rope_halves(head, cs, dims);
}

/* x sigmoid(y) */
static inline __m256 gated(__m256 x, __m256 y)
{
	__m256 e = exp256(_mm256_sub_ps(_mm256_setzero_ps(), y));

	return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1), e));
}

/* gelu's tanh form is x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3) */
static inline __m256 gelu_tanh(__m256 x)
{
	__m256 cubic = _mm256_mul_ps(_mm256_mul_ps(x, x), _mm256_mul_ps(x, _mm256_set1_ps(0.044715f)));

	return gated(x, _mm256_mul_ps(_mm256_set1_ps(1.59576912f), _mm256_add_ps(x, cubic)));
}

static void act_mul(int32_t act, const float *gate, const float *up, int32_t n, float *out)
{
	for (int32_t i = 0; i < n; i += 8) {
		__m256 g = get256(gate, i, n);

		g = act == SR_SILU ? gated(g, g) : gelu_tanh(g);
		put256(out, i, n, _mm256_mul_ps(g, get256(up, i, n)));
	}
}

static float largest(const float *x, int32_t n)
{
	__m256 none = _mm256_set1_ps(-INFINITY), most = none;

	for (int32_t i = 0; i < n; i += 8) {
		__m256 v = _mm256_blendv_ps(none, get256(x, i, n), _mm256_castsi256_ps(upto256(i, n)));

		most = _mm256_max_ps(v, most);
	}
	return max256(most);
}

static void logits(const float *x, int32_t n, float *max, int32_t *arg, double *logsum)
{
	__m256 top = _mm256_set1_ps(*max = largest(x, n));
	__m256d sum[4] = { _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd() };
	bool found = false;
	double lane[4];

	*arg = 0;
	for (int32_t i = 0; i < n; i += 8) {
		__m256 m = _mm256_castsi256_ps(upto256(i, n)), v = get256(x, i, n), e;
		__m256d *to = sum + i / 8 % 2 * 2;
		int same = _mm256_movemask_ps(_mm256_and_ps(m, _mm256_cmp_ps(v, top, _CMP_EQ_OQ)));

		if (same && !found) {
			*arg = i + __builtin_ctz((unsigned)same);
			found = true;
		}
		e = _mm256_and_ps(m, exp256(_mm256_sub_ps(v, top)));
		to[0] = _mm256_add_pd(to[0], _mm256_cvtps_pd(_mm256_castps256_ps128(e)));
		to[1] = _mm256_add_pd(to[1], _mm256_cvtps_pd(_mm256_extractf128_ps(e, 1)));
	}
	_mm256_storeu_pd(lane, _mm256_add_pd(_mm256_add_pd(sum[0], sum[2]), _mm256_add_pd(sum[1], sum[3])));
	*logsum = log((lane[0] + lane[2]) + (lane[1] + lane[3])) + (double)*max;
}

static void delta(const struct kern_delta *a)
{
	kern_delta_rule(a);
}

const struct kern avx2_table = {
	.name = "avx2",
	.form = form,
	.block_bytes = lanes_block_bytes,
	.pack = lanes_pack,
	.unpack = lanes_unpack,
	.tile_bytes = lanes_tile_bytes,
	.make_rows = lanes_make_rows,
	.matmul = avx2_matmul,
	.dequant = types_dequant,
	.kv_bytes = kvblock_bytes,
	.kv_store = lanes_kv_store,
	.attend_scratch = avx2_attend_scratch,
	.attend = avx2_attend,
	.norm = norm,
	.add = add,
	.rope = rope,
	.act_mul = act_mul,
	.delta = delta,
	.logits = logits,
};
