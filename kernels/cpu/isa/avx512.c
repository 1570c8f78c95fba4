/* avx512.c - the tables for machines with AVX-512 F, BW, VL, DQ, VNNI, with BF16 (Zen 4, Cooper Lake and
 * later) and without (Cascade Lake, Ice Lake), and their vector verbs.
 * A sum over a vector is kept in sixteen lanes, which are added at the end.
 */
#include "avx512.h"

#include <math.h>

#include "kernels/backend.h"
#include "kernels/cpu/kvblock.h"
#include "kernels/cpu/lanes.h"

/* A machine without BF16 instructions: float weights multiply with f32. */
static int form_vnni(int32_t type)
{
	return lanes_kind(type) == LANES_NONE ? -1 : types_quantized(type) ? FORM_I8 : FORM_F32;
}

/* bf16 weights multiply with bf16 activations, other float weights with f32.  That is twice as fast, and
 * rounding the activations loses less than rounding the weights did. */
static int form(int32_t type)
{
	return lanes_kind(type) == LANES_BF16 ? FORM_BF16 : form_vnni(type);
}

/* The lanes of elements i .. i + 15 that exist. */
static inline __mmask16 upto(int32_t i, int32_t n)
{
	return n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
}

static void norm(const float *x, const float *w, float eps, int32_t n, float *y)
{
	__m512 squares = _mm512_setzero_ps(), scale;

	for (int32_t i = 0; i < n; i += 16) {
		__m512 v = _mm512_maskz_loadu_ps(upto(i, n), x + i);

		squares = _mm512_fmadd_ps(v, v, squares);
	}
	scale = _mm512_set1_ps(1 / sqrtf(sum512(squares) / (float)n + eps));
	for (int32_t i = 0; i < n; i += 16) {
		__mmask16 m = upto(i, n);
		__m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), scale);

		_mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, w + i)));
	}
}

static void add(float *x, const float *z, int32_t n)
{
	for (int32_t i = 0; i < n; i += 16) {
		__mmask16 m = upto(i, n);

		_mm512_mask_storeu_ps(x + i, m, _mm512_add_ps(_mm512_maskz_loadu_ps(m, x + i),
		                                              _mm512_maskz_loadu_ps(m, z + i)));
	}
}

/* x = (a0, b0, a1, b1, ..) and cs = (c0, s0, c1, s1, ..): a' = a c - b s, b' = b c + a s */
static void rope_pairs(float *head, const float *cs, int32_t dims)
{
	for (int32_t i = 0; i < dims; i += 16) {
		__mmask16 m = upto(i, dims);
		__m512 x = _mm512_maskz_loadu_ps(m, head + i), t = _mm512_maskz_loadu_ps(m, cs + i);
		__m512 crossed = _mm512_mul_ps(_mm512_permute_ps(x, 0xb1), _mm512_movehdup_ps(t));

		_mm512_mask_storeu_ps(head + i, m, _mm512_fmaddsub_ps(x, _mm512_moveldup_ps(t), crossed));
	}
}

static void rope_halves(float *head, const float *cs, int32_t dims)
{
	const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
	const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
	float *second = head + dims / 2;

	for (int32_t i = 0; i < dims / 2; i += 16) {
		__mmask16 m = upto(i, dims / 2);
		__m512 low = _mm512_maskz_loadu_ps(upto(2 * i, dims), cs + 2 * i);
		__m512 high = 2 * i + 16 >= dims ? _mm512_setzero_ps()
			: _mm512_maskz_loadu_ps(upto(2 * i + 16, dims), cs + 2 * i + 16);
		__m512 c = _mm512_permutex2var_ps(low, even, high);
		__m512 s = _mm512_permutex2var_ps(low, odd, high);
		__m512 a = _mm512_maskz_loadu_ps(m, head + i), b = _mm512_maskz_loadu_ps(m, second + i);

		_mm512_mask_storeu_ps(head + i, m, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
		_mm512_mask_storeu_ps(second + i, m, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
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
static inline __m512 gated(__m512 x, __m512 y)
{
	__m512 e = exp512(_mm512_sub_ps(_mm512_setzero_ps(), y));

	return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1), e));
}

/* gelu's tanh form is x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3) */
static inline __m512 gelu_tanh(__m512 x)
{
	__m512 cubic = _mm512_mul_ps(_mm512_mul_ps(x, x), _mm512_mul_ps(x, _mm512_set1_ps(0.044715f)));

	return gated(x, _mm512_mul_ps(_mm512_set1_ps(1.59576912f), _mm512_add_ps(x, cubic)));
}

static void act_mul(int32_t act, const float *gate, const float *up, int32_t n, float *out)
{
	for (int32_t i = 0; i < n; i += 16) {
		__mmask16 m = upto(i, n);
		__m512 g = _mm512_maskz_loadu_ps(m, gate + i), u = _mm512_maskz_loadu_ps(m, up + i);

		g = act == SR_SILU ? gated(g, g) : gelu_tanh(g);
		_mm512_mask_storeu_ps(out + i, m, _mm512_mul_ps(g, u));
	}
}

static float largest(const float *x, int32_t n)
{
	__m512 none = _mm512_set1_ps(-INFINITY), most = none;

	for (int32_t i = 0; i < n; i += 16)
		most = _mm512_max_ps(_mm512_mask_loadu_ps(none, upto(i, n), x + i), most);
	return _mm512_reduce_max_ps(most);
}

static void logits(const float *x, int32_t n, float *max, int32_t *arg, double *logsum)
{
	__m512 top = _mm512_set1_ps(*max = largest(x, n));
	__m512d sum = _mm512_setzero_pd(), more = _mm512_setzero_pd();
	bool found = false;
	double lane[8];

	*arg = 0;
	for (int32_t i = 0; i < n; i += 16) {
		__mmask16 m = upto(i, n), same;
		__m512 v = _mm512_maskz_loadu_ps(m, x + i), e;

		same = _mm512_mask_cmp_ps_mask(m, v, top, _CMP_EQ_OQ);
		if (same && !found) {
			*arg = i + __builtin_ctz(same);
			found = true;
		}
		e = _mm512_maskz_mov_ps(m, exp512(_mm512_sub_ps(v, top)));
		sum = _mm512_add_pd(sum, _mm512_cvtps_pd(_mm512_castps512_ps256(e)));
		more = _mm512_add_pd(more, _mm512_cvtps_pd(_mm512_extractf32x8_ps(e, 1)));
	}
	_mm512_storeu_pd(lane, _mm512_add_pd(sum, more));
	for (int i = 0; i < 4; i++)
		lane[i] += lane[i + 4];
	*logsum = log((lane[0] + lane[2]) + (lane[1] + lane[3])) + (double)*max;
}

static void delta(const struct kern_delta *a)
{
	kern_delta_rule(a);
}

#define TABLE(nickname, f)                              \
	.name = nickname,                               \
	.form = f,                                      \
	.block_bytes = lanes_block_bytes,               \
	.pack = lanes_pack,                             \
	.unpack = lanes_unpack,                         \
	.tile_bytes = lanes_tile_bytes,                 \
	.make_rows = lanes_make_rows,                   \
	.matmul = avx512_matmul,                        \
	.dequant = types_dequant,                       \
	.kv_bytes = kvblock_bytes,                      \
	.kv_store = lanes_kv_store,                     \
	.attend_scratch = avx512_attend_scratch,        \
	.attend = avx512_attend,                        \
	.norm = norm,                                   \
	.add = add,                                     \
	.rope = rope,                                   \
	.act_mul = act_mul,                             \
	.delta = delta,                                 \
	.logits = logits,

const struct kern avx512_table = { TABLE("avx512", form) };
const struct kern avx512vnni_table = { TABLE("avx512vnni", form_vnni) };
