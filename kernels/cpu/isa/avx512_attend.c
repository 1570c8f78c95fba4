/* avx512_attend.c - attention over paged K and V, for AVX-512 with VNNI.  Layouts: kvblock.h.
 *
 * A row is one head of one query.  A tile of 1..8 rows walks the positions that any of them reads, in
 * units of 64 tokens from position 0: scores of a unit, the running maximum and the weights, then
 * the values.  A token that a row does not read has a weight of exactly 0 in that row, and a unit of such
 * tokens multiplies the row's sums by exactly 1.  So a row's result does not depend on its tile.
 *
 * For bf16 K and V, queries and weights stay f32: a line is two vectors of floats after a shift and a mask.
 * vdpbf16ps needs two thirds of the time, but it rounds queries and weights to bf16, and routers then choose
 * other experts.
 * For int8 ones they become 16-bit integers: queries with a scale per row, weights (times the scales of V) with
 * one per row and unit.  Scores, maximum, total and sums are f32.
 */
#include <assert.h>
#include <math.h>

#include "avx512.h"
#include "kernels/backend.h"
#include "kernels/cpu/kvblock.h"
#include "kernels/cpu/types.h"

#define ROWS 8

struct attend_tile {
	const struct kern_attend *a;
	int32_t width;                 /* of a value: kern_values() */
	int32_t from[ROWS], to[ROWS];  /* positions a row reads */
	const float *q[ROWS];          /* [E] */
	uint32_t *pairs;               /* [ROWS][E/2] q as pairs of int16 */
	float q_scale[ROWS];           /* of the pairs */
	float *sum;                    /* [ROWS][E] of weight * v, of this span */
	float max[ROWS];
	__m512 total[ROWS];            /* of weights, by lane */
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

size_t avx512_attend_scratch(int32_t n, int32_t heads, int32_t E)
{
	(void)n;
	(void)heads;
	return (size_t)E * ROWS + (size_t)E / 2 * ROWS + kern_part(E) * (ROWS + 1);
}

/* Sixteen pairs of elements: floats, even and odd ones apart, of bf16; else dwords of two int16. */
struct line { __m512 even, odd; __m512i pairs; };

INLINE struct line line_at(const int kv, const uint8_t *half, size_t line)
{
	__m512i b;

	if (kv == SR_KV_I8)
		return (struct line){ .pairs = _mm512_cvtepi8_epi16(_mm256_load_si256((const __m256i *)(const void *)
			(half + KV_SCALES + 32 * line))) };
	b = _mm512_load_si512(half + 64 * line);
	return (struct line){ .even = _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)),
		.odd = _mm512_castsi512_ps(_mm512_and_si512(b, _mm512_set1_epi32((int)0xffff0000))) };
}

/* sum + a . (two floats), first the even one, then the odd one; or + a . (one of pairs), where sums are integers. */
INLINE __m512 add_pairs(const int kv, __m512 sum, struct line a, const float *two, const uint32_t *pair)
{
	if (kv == SR_KV_I8)
		return _mm512_castsi512_ps(_mm512_dpwssd_epi32(_mm512_castps_si512(sum), a.pairs,
		                                               _mm512_set1_epi32((int32_t)*pair)));
	sum = _mm512_fmadd_ps(a.even, _mm512_set1_ps(two[0]), sum);
	return _mm512_fmadd_ps(a.odd, _mm512_set1_ps(two[1]), sum);
}

/* ---- scores --------------------------------------------------------------------------------- */

INLINE void score_blocks(const int rows, const int kv, const int n, struct attend_tile *t, int32_t b)
{
	const int32_t half = t->a->head_dim / 2;
	const uint8_t *k[UNIT_BLOCKS];
	__m512 s[ROWS][UNIT_BLOCKS];

	UNROLL
	for (int i = 0; i < n; i++)
		k[i] = t->block[b + i] + t->a->k_off;
	UNROLL
	for (int r = 0; r < rows; r++)
		UNROLL
		for (int i = 0; i < n; i++)
			s[r][i] = _mm512_setzero_ps();
	for (int32_t e = 0; e < half; e++) {
		struct line line[UNIT_BLOCKS];

		UNROLL
		for (int i = 0; i < n; i++)
			line[i] = line_at(kv, k[i], (size_t)e);
		UNROLL
		for (int r = 0; r < rows; r++)
			UNROLL
			for (int i = 0; i < n; i++)
				s[r][i] = add_pairs(kv, s[r][i], line[i], t->q[r] + 2 * e, t->pairs + r * half + e);
	}
	UNROLL
	for (int r = 0; r < rows; r++)
		UNROLL
		for (int i = 0; i < n; i++) {
			if (kv == SR_KV_I8)
				s[r][i] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_castps_si512(s[r][i])),
					_mm512_mul_ps(_mm512_set1_ps(t->q_scale[r]),
					              _mm512_load_ps((const float *)(const void *)k[i])));
			_mm512_store_ps(&t->weight[r][16 * (b + i)], s[r][i]);
		}
}

INLINE void scores(const int rows, const int kv, struct attend_tile *t)
{
	const int wide = rows <= 4 ? 4 : 2;      /* blocks at a time: enough independent sums to hide latency */
	int32_t b = 0;

	for (; b + wide <= t->blocks; b += wide)
		score_blocks(rows, kv, wide, t, b);
	for (; b < t->blocks; b++)
		score_blocks(rows, kv, 1, t, b);
}

/* ---- weights -------------------------------------------------------------------------------- */

/* The mask of the sixteen positions from p on that row r reads. */
static inline __mmask16 reads(const struct attend_tile *t, int r, int32_t p)
{
	int32_t skip = t->from[r] - p, count = t->to[r] - p + 1;
	uint32_t low = skip <= 0 ? 0 : skip >= 16 ? 0xffff : (1u << skip) - 1;
	uint32_t upto = count <= 0 ? 0 : count >= 16 ? 0xffff : (1u << count) - 1;

	return (__mmask16)(upto & ~low);
}

/* The weights of a unit times the scales of its V, as 16-bit integers relative to the largest. */
static inline void weigh_int(struct attend_tile *t, int r, __m512 *w)
{
	__m512 most = _mm512_setzero_ps(), by;

	for (int32_t b = 0; b < t->blocks; b++) {
		w[b] = _mm512_mul_ps(w[b], _mm512_load_ps((const float *)(const void *)
			t->value[b]));
		most = _mm512_max_ps(most, w[b]);
	}
	t->w_scale[r] = _mm512_reduce_max_ps(most) / KV_MOST;
	by = _mm512_set1_ps(t->w_scale[r] > 1e-34f ? 1 / t->w_scale[r] : 0);
	for (int32_t b = 0; b < t->blocks; b++)
		_mm256_store_si256((__m256i *)(void *)&t->weight_pairs[r][8 * b],
			_mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(w[b], by))));
}

/* Scores of row r become weights relative to its new maximum. */
static inline void weigh(const int kv, struct attend_tile *t, int r)
{
	const struct kern_attend *a = t->a;
	__m512 s[UNIT_BLOCKS], none = _mm512_set1_ps(-INFINITY), most = none, total;
	float before = t->max[r], max;

	for (int32_t b = 0; b < t->blocks; b++) {
		s[b] = _mm512_mul_ps(_mm512_load_ps(&t->weight[r][16 * b]), _mm512_set1_ps(a->scale));
		if (a->cap > 0)
			s[b] = _mm512_mul_ps(_mm512_set1_ps(a->cap),
			                     tanh512(_mm512_div_ps(s[b], _mm512_set1_ps(a->cap))));
		s[b] = _mm512_mask_mov_ps(none, reads(t, r, t->base + 16 * b), s[b]);
		most = _mm512_max_ps(most, s[b]);
	}
	max = _mm512_reduce_max_ps(most);
	max = max > before ? max : before;
	t->max[r] = max;
	t->shrink[r] = _mm512_cvtss_f32(exp512(_mm512_set1_ps(before - max)));
	total = _mm512_mul_ps(t->total[r], _mm512_set1_ps(t->shrink[r]));
	for (int32_t b = 0; b < t->blocks; b++) {
		__m512 w = _mm512_maskz_mov_ps(reads(t, r, t->base + 16 * b),
		                               exp512(_mm512_sub_ps(s[b], _mm512_set1_ps(max))));

		total = _mm512_add_ps(total, w);
		s[b] = w;
		if (kv == SR_KV_BF16)
			_mm512_store_ps(&t->weight[r][16 * b], w);
	}
	t->total[r] = total;
	if (kv == SR_KV_I8)
		weigh_int(t, r, s);
}

/* ---- values --------------------------------------------------------------------------------- */

/* Elements e .. e + 16 * n of all rows' sums. */
INLINE void value_lines(const int rows, const int kv, const int n, struct attend_tile *t, int32_t e)
{
	const size_t E = (size_t)t->width;
	float *at = t->sum + e;
	__m512 sum[ROWS][4], old;

	UNROLL
	for (int r = 0; r < rows; r++)
		UNROLL
		for (int i = 0; i < n; i++)
			sum[r][i] = kv == SR_KV_I8 ? _mm512_setzero_ps()
				: _mm512_mul_ps(_mm512_load_ps(at + (size_t)r * E + 16 * i),
				                _mm512_set1_ps(t->shrink[r]));
	for (int32_t j = 0; j < 8 * t->blocks; j++) {
		const uint8_t *v = t->value[j / 8];
		struct line line[4];

		UNROLL
		for (int i = 0; i < n; i++)
			line[i] = line_at(kv, v, ((size_t)(j % 8) * E + (size_t)e) / 16 + (size_t)i);
		UNROLL
		for (int r = 0; r < rows; r++)
			UNROLL
			for (int i = 0; i < n; i++)
				sum[r][i] = add_pairs(kv, sum[r][i], line[i], &t->weight[r][2 * j], &t->weight_pairs[r][j]);
	}
	UNROLL
	for (int r = 0; r < rows; r++)
		UNROLL
		for (int i = 0; i < n; i++) {
			if (kv == SR_KV_I8) {
				old = _mm512_mul_ps(_mm512_load_ps(at + (size_t)r * E + 16 * i),
				                    _mm512_set1_ps(t->shrink[r]));
				sum[r][i] = _mm512_fmadd_ps(_mm512_set1_ps(t->w_scale[r]),
					_mm512_cvtepi32_ps(_mm512_castps_si512(sum[r][i])), old);
			}
			_mm512_store_ps(at + (size_t)r * E + 16 * i, sum[r][i]);
		}
}

INLINE void values(const int rows, const int kv, struct attend_tile *t)
{
	const int wide = rows <= 4 ? 4 : 2;
	int32_t e = 0;

	for (; e + 16 * wide <= t->width; e += 16 * wide)
		value_lines(rows, kv, wide, t, e);
	for (; e < t->width; e += 16)
		value_lines(rows, kv, 1, t, e);
}

/* ---- the walk ------------------------------------------------------------------------------- */

static void begin_span(struct attend_tile *t, int r)
{
	t->max[r] = -1e30f;                       /* finite, so that max - max is 0 */
	t->total[r] = _mm512_setzero_ps();
	for (int32_t e = 0; e < t->width; e += 16)
		_mm512_store_ps(&t->sum[(size_t)r * (size_t)t->width + (size_t)e], _mm512_setzero_ps());
}

/* Row r's sums over the span, in the form of kern_join(). */
static void end_span(const struct attend_tile *t, int r, float *part)
{
	part[0] = t->max[r];
	part[1] = sum512(t->total[r]);
	memcpy(part + 16, t->sum + (size_t)r * (size_t)t->width, (size_t)t->width * sizeof(float));
}

/* A query that is not finite gets a scale of NaN, and so a result of NaN. */
static float query_i16(const float *q, int32_t E, uint32_t *to)
{
	__m512i most = _mm512_setzero_si512();
	float largest, by;

	for (int32_t e = 0; e < E; e += 16)
		most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_set1_epi32(0x7fffffff),
		                                               _mm512_loadu_si512(q + e)));
	largest = f32_of_bits(_mm512_reduce_max_epu32(most));
	by = largest > 1e-30f && largest < 3.4e38f ? KV_MOST / largest : 0;
	for (int32_t e = 0; e < E; e += 16)
		_mm256_store_si256((__m256i *)(void *)(to + e / 2), _mm512_cvtsepi32_epi16(
			_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(q + e), _mm512_set1_ps(by)))));
	return largest < 3.4e38f ? largest / KV_MOST : NAN;
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

static float total_of(const struct attend_tile *t, int r)
{
	return sum512(t->total[r]);
}

#include "attend_spans.h"

void avx512_attend(int32_t kv_type, const struct kern_attend *a)
{
	float *pairs = a->scratch + (size_t)a->head_dim * ROWS, *older = pairs + (size_t)a->head_dim / 2 * ROWS;
	struct attend_tile t = { .a = a, .width = kern_values(a), .sum = a->scratch, .pairs = (uint32_t *)(void *)pairs, .older = older,
		.part = older + kern_part(a->head_dim) * ROWS };

	all_tiles(kv_type, a, &t);
}
