/* avx2_attend.c - attention over paged K and V, for AVX2 with FMA.  Layouts: kvblock.h.  It
 * walks as avx512_attend.c does, in tiles of four rows, and sums in its order.  Queries and weights are f32 for
 * bf16 K and V, and 16-bit integers (vpmaddwd) for int8 ones.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "avx2.h"
#include "kernels/backend.h"
#include "kernels/cpu/kvblock.h"

#define ROWS AVX2_ROWS

struct attend_tile {
	const struct kern_attend *a;
	int32_t width;                 /* of a value: kern_values() */
	int32_t from[ROWS], to[ROWS];  /* positions a row reads */
	const float *q[ROWS];          /* [E] */
	uint32_t *pairs;               /* [ROWS][E/2] q as pairs of int16 */
	float q_scale[ROWS];           /* of the pairs */
	float *sum;                    /* [ROWS][E] of weight * v, of this span */
	float max[ROWS];
	__m256 total[ROWS][2];         /* of weights, in sixteen lanes */
	float *older;                  /* [ROWS][kern_part(E)] of the spans before it */
	float *part;                   /* one row's, before it is joined to older */
	float *out[ROWS];
	const float *sink[ROWS];       /* NULL: none */

	/* of the unit at hand */
	int32_t base, blocks;          /* its first position; how many of its blocks anyone reads */
	const uint8_t *block[UNIT_BLOCKS], *value[UNIT_BLOCKS]; /* where its values begin */
	float weight[ROWS][UNIT] __attribute__((aligned(64))); /* scores before */
	uint32_t weight_pairs[ROWS][UNIT / 2] __attribute__((aligned(64))); /* of int16 */
	float w_scale[ROWS];           /* of the pairs */
	float shrink[ROWS];            /* what older sums are multiplied with */
};

size_t avx2_attend_scratch(int32_t n, int32_t heads, int32_t E)
{
	(void)n;
	(void)heads;
	return (size_t)E * ROWS + (size_t)E / 2 * ROWS + kern_part(E) * (ROWS + 1);
}

INLINE void score_block(const int rows, struct attend_tile *t, int32_t b)
{
	const uint8_t *k = t->block[b] + t->a->k_off;
	__m256 s[ROWS][2];

	UNROLL
	for (int r = 0; r < rows; r++)
		s[r][0] = s[r][1] = _mm256_setzero_ps();
	for (int32_t e = 0; e < t->a->head_dim; e += 2, k += 64) {
		__m256i low = load256(k), high = load256(k + 32);
		__m256 a0 = low_bf16(low), a1 = low_bf16(high), b0 = high_bf16(low), b1 = high_bf16(high);

		UNROLL
		for (int r = 0; r < rows; r++) {
			__m256 q = _mm256_set1_ps(t->q[r][e]), p = _mm256_set1_ps(t->q[r][e + 1]);

			s[r][0] = _mm256_fmadd_ps(b0, p, _mm256_fmadd_ps(a0, q, s[r][0]));
			s[r][1] = _mm256_fmadd_ps(b1, p, _mm256_fmadd_ps(a1, q, s[r][1]));
		}
	}
	UNROLL
	for (int r = 0; r < rows; r++) {
		_mm256_store_ps(&t->weight[r][16 * b], s[r][0]);
		_mm256_store_ps(&t->weight[r][16 * b + 8], s[r][1]);
	}
}

/* Eight pairs of int8, 16 bits wide: half a line of one area. */
static inline __m256i pairs_at(const uint8_t *area, size_t half_line)
{
	return _mm256_cvtepi8_epi16(_mm_load_si128((const __m128i *)(const void *)
		(area + KV_SCALES + 16 * half_line)));
}

INLINE __m256i add_pairs(__m256i sum, __m256i a, uint32_t b)
{
	return _mm256_add_epi32(sum, _mm256_madd_epi16(a, _mm256_set1_epi32((int32_t)b)));
}

INLINE void score_block_i8(const int rows, struct attend_tile *t, int32_t b)
{
	const uint8_t *k = t->block[b] + t->a->k_off;
	const float *scale = (const float *)(const void *)k;
	const int32_t pairs = t->a->head_dim / 2;
	__m256i s[ROWS][2];

	UNROLL
	for (int r = 0; r < rows; r++)
		s[r][0] = s[r][1] = _mm256_setzero_si256();
	for (int32_t e = 0; e < pairs; e++) {
		__m256i low = pairs_at(k, 2 * (size_t)e), high = pairs_at(k, 2 * (size_t)e + 1);

		UNROLL
		for (int r = 0; r < rows; r++) {
			s[r][0] = add_pairs(s[r][0], low, t->pairs[r * pairs + e]);
			s[r][1] = add_pairs(s[r][1], high, t->pairs[r * pairs + e]);
		}
	}
	UNROLL
	for (int r = 0; r < rows; r++)
		UNROLL
		for (int h = 0; h < 2; h++)
			_mm256_store_ps(&t->weight[r][16 * b + 8 * h], _mm256_mul_ps(_mm256_cvtepi32_ps(s[r][h]),
				_mm256_mul_ps(_mm256_set1_ps(t->q_scale[r]), _mm256_load_ps(scale + 8 * h))));
}

/* All ones in the lanes, from position p on, that row r reads. */
static inline __m256 reads(const struct attend_tile *t, int r, int32_t p)
{
	__m256i at = _mm256_add_epi32(_mm256_set1_epi32(p), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
	__m256i not = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(t->from[r]), at),
	                              _mm256_cmpgt_epi32(at, _mm256_set1_epi32(t->to[r])));

	return _mm256_castsi256_ps(_mm256_andnot_si256(not, _mm256_set1_epi32(-1)));
}

/* Eight floats a and eight b as sixteen int16, in order. */
static inline __m256i to_int16(__m256 a, __m256 b)
{
	return _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b)), 0xd8);
}

/* The weights of a unit times the scales of its V, as 16-bit integers relative to the largest. */
static inline void weigh_int(struct attend_tile *t, int r)
{
	__m256 most = _mm256_setzero_ps(), by;
	float *w = t->weight[r];

	for (int32_t i = 0; i < 16 * t->blocks; i += 8) {
		const float *scale = (const float *)(const void *)t->value[i / 16] + i % 16;
		__m256 v = _mm256_mul_ps(_mm256_load_ps(w + i), _mm256_load_ps(scale));

		most = _mm256_max_ps(most, v);
		_mm256_store_ps(w + i, v);
	}
	t->w_scale[r] = max256(most) / KV_MOST;
	by = _mm256_set1_ps(t->w_scale[r] > 1e-34f ? 1 / t->w_scale[r] : 0);
	for (int32_t i = 0; i < 16 * t->blocks; i += 16)
		_mm256_store_si256((__m256i *)(void *)&t->weight_pairs[r][i / 2],
			to_int16(_mm256_mul_ps(_mm256_load_ps(w + i), by),
			         _mm256_mul_ps(_mm256_load_ps(w + i + 8), by)));
}

/* Scores of row r become weights relative to its new maximum. */
static inline void weigh(const int kv, struct attend_tile *t, int r)
{
	const struct kern_attend *a = t->a;
	__m256 none = _mm256_set1_ps(-INFINITY), most = none, total[2];
	float before = t->max[r], max;

	for (int32_t i = 0; i < 16 * t->blocks; i += 8) {
		__m256 s = _mm256_mul_ps(_mm256_load_ps(&t->weight[r][i]), _mm256_set1_ps(a->scale));

		if (a->cap > 0)
			s = _mm256_mul_ps(_mm256_set1_ps(a->cap),
			                  tanh256(_mm256_div_ps(s, _mm256_set1_ps(a->cap))));
		s = _mm256_blendv_ps(none, s, reads(t, r, t->base + i));
		most = _mm256_max_ps(most, s);
		_mm256_store_ps(&t->weight[r][i], s);
	}
	max = max256(most);
	max = max > before ? max : before;
	t->max[r] = max;
	t->shrink[r] = _mm256_cvtss_f32(exp256(_mm256_set1_ps(before - max)));
	total[0] = _mm256_mul_ps(t->total[r][0], _mm256_set1_ps(t->shrink[r]));
	total[1] = _mm256_mul_ps(t->total[r][1], _mm256_set1_ps(t->shrink[r]));
	for (int32_t i = 0; i < 16 * t->blocks; i += 8) {
		__m256 w = exp256(_mm256_sub_ps(_mm256_load_ps(&t->weight[r][i]), _mm256_set1_ps(max)));

		w = _mm256_and_ps(w, reads(t, r, t->base + i));
		total[i / 8 % 2] = _mm256_add_ps(total[i / 8 % 2], w);
		_mm256_store_ps(&t->weight[r][i], w);
	}
	t->total[r][0] = total[0];
	t->total[r][1] = total[1];
	if (kv == SR_KV_I8)
		weigh_int(t, r);
}

/* Elements e .. e + 15 of all rows' sums. */
INLINE void value_line(const int rows, struct attend_tile *t, int32_t e)
{
	const size_t E = (size_t)t->width;
	float *at = t->sum + e;
	__m256 sum[ROWS][2];

	UNROLL
	for (int r = 0; r < rows; r++)
		UNROLL
		for (int i = 0; i < 2; i++)
			sum[r][i] = _mm256_mul_ps(_mm256_load_ps(at + (size_t)r * E + 8 * i),
			                          _mm256_set1_ps(t->shrink[r]));
	for (int32_t j = 0; j < 8 * t->blocks; j++) {
		const uint8_t *v = t->value[j / 8] + ((size_t)(j % 8) * E + (size_t)e) * 4;
		__m256i low = load256(v), high = load256(v + 32);
		__m256 a0 = low_bf16(low), a1 = low_bf16(high), b0 = high_bf16(low), b1 = high_bf16(high);

		UNROLL
		for (int r = 0; r < rows; r++) {
			__m256 w = _mm256_set1_ps(t->weight[r][2 * j]);
			__m256 u = _mm256_set1_ps(t->weight[r][2 * j + 1]);

			sum[r][0] = _mm256_fmadd_ps(b0, u, _mm256_fmadd_ps(a0, w, sum[r][0]));
			sum[r][1] = _mm256_fmadd_ps(b1, u, _mm256_fmadd_ps(a1, w, sum[r][1]));
		}
	}
	UNROLL
	for (int r = 0; r < rows; r++)
		UNROLL
		for (int i = 0; i < 2; i++)
			_mm256_store_ps(at + (size_t)r * E + 8 * i, sum[r][i]);
}

INLINE void value_line_i8(const int rows, struct attend_tile *t, int32_t e)
{
	const size_t E = (size_t)t->width;
	__m256i sum[ROWS][2];

	UNROLL
	for (int r = 0; r < rows; r++)
		sum[r][0] = sum[r][1] = _mm256_setzero_si256();
	for (int32_t j = 0; j < 8 * t->blocks; j++) {
		const uint8_t *v = t->value[j / 8];
		size_t at = ((size_t)(j % 8) * E + (size_t)e) / 8;
		__m256i low = pairs_at(v, at), high = pairs_at(v, at + 1);

		UNROLL
		for (int r = 0; r < rows; r++) {
			sum[r][0] = add_pairs(sum[r][0], low, t->weight_pairs[r][j]);
			sum[r][1] = add_pairs(sum[r][1], high, t->weight_pairs[r][j]);
		}
	}
	UNROLL
	for (int r = 0; r < rows; r++)
		UNROLL
		for (int h = 0; h < 2; h++) {
			float *at = t->sum + (size_t)r * E + e + 8 * h;
			__m256 old = _mm256_mul_ps(_mm256_load_ps(at), _mm256_set1_ps(t->shrink[r]));

			_mm256_store_ps(at, _mm256_fmadd_ps(_mm256_set1_ps(t->w_scale[r]),
			                                    _mm256_cvtepi32_ps(sum[r][h]), old));
		}
}

/* ---- the walk ------------------------------------------------------------------------------- */

static float total_of(const struct attend_tile *t, int r)
{
	return sum256(_mm256_add_ps(t->total[r][0], t->total[r][1]));
}

static void begin_span(struct attend_tile *t, int r)
{
	t->max[r] = -1e30f;                       /* finite, so that max - max is 0 */
	t->total[r][0] = t->total[r][1] = _mm256_setzero_ps();
	for (int32_t e = 0; e < t->width; e += 8)
		_mm256_store_ps(&t->sum[(size_t)r * (size_t)t->width + (size_t)e], _mm256_setzero_ps());
}

/* Row r's sums over the span, in the form of kern_join(). */
static void end_span(const struct attend_tile *t, int r, float *part)
{
	part[0] = t->max[r];
	part[1] = total_of(t, r);
	memcpy(part + 16, t->sum + (size_t)r * (size_t)t->width, (size_t)t->width * sizeof(float));
}

INLINE void scores(const int rows, const int kv, struct attend_tile *t)
{
	for (int32_t b = 0; b < t->blocks; b++)
		(kv == SR_KV_I8 ? score_block_i8 : score_block)(rows, t, b);
}

INLINE void values(const int rows, const int kv, struct attend_tile *t)
{
	for (int32_t e = 0; e < t->width; e += 16)
		(kv == SR_KV_I8 ? value_line_i8 : value_line)(rows, t, e);
}

/* A query that is not finite gets a scale of NaN, and so a result of NaN. */
static float query_i16(const float *q, int32_t E, uint32_t *to)
{
	__m256 most = _mm256_setzero_ps(), bad = most, by;
	float largest;

	for (int32_t e = 0; e < E; e += 8) {
		__m256 v = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), _mm256_loadu_ps(q + e));

		most = _mm256_max_ps(most, v);
		bad = _mm256_or_ps(bad, _mm256_cmp_ps(v, _mm256_set1_ps(3.4e38f), _CMP_NLT_UQ));
	}
	largest = max256(most);
	by = _mm256_set1_ps(largest > 1e-30f ? KV_MOST / largest : 0);
	for (int32_t e = 0; e < E; e += 16)
		_mm256_store_si256((__m256i *)(void *)(to + e / 2),
			to_int16(_mm256_mul_ps(_mm256_loadu_ps(q + e), by),
			         _mm256_mul_ps(_mm256_loadu_ps(q + e + 8), by)));
	return _mm256_movemask_ps(bad) ? NAN : largest / KV_MOST;
}

static void begin_row(int32_t kv_type, struct attend_tile *t, int r, int32_t query, int32_t head)
{
	const struct kern_attend *a = t->a;

	t->q[r] = a->q + (size_t)query * a->ld_q + (size_t)head * (size_t)a->head_dim;
	t->to[r] = a->first + query;
	t->from[r] = kern_from(a->window, a->chunk, t->to[r]);
	t->sink[r] = a->sink ? a->sink + head : NULL;
	t->out[r] = a->out + (size_t)query * a->ld_out + (size_t)head * (size_t)t->width;
	if (kv_type == SR_KV_I8)
		t->q_scale[r] = query_i16(t->q[r], a->head_dim, t->pairs + r * (a->head_dim / 2));
}

#include "attend_spans.h"

void avx2_attend(int32_t kv_type, const struct kern_attend *a)
{
	float *pairs = a->scratch + (size_t)a->head_dim * ROWS, *older = pairs + (size_t)a->head_dim / 2 * ROWS;
	struct attend_tile t = { .a = a, .width = kern_values(a), .sum = a->scratch, .pairs = (uint32_t *)(void *)pairs, .older = older,
		.part = older + kern_part(a->head_dim) * ROWS };

	all_tiles(kv_type, a, &t);
}
