/* avx512_attend.c - attention over paged bf16 K and V, for AVX-512 with BF16.  Layout: kvblock.h.
 *
 * A row is one head of one query.  A tile of 1..8 rows walks the positions that any of them reads, in
 * units of 64 tokens from position 0: scores of a unit, the running maximum and the weights, then
 * the values.  To a row, a token that it does not read has a weight of exactly 0, and a unit of such
 * tokens multiplies its sums by exactly 1: so a row's result does not depend on the tile it is in.
 *
 * Queries and weights are rounded to bf16 for vdpbf16ps; scores, maximum, total and sums are f32.
 */
#include <assert.h>
#include <math.h>

#include "avx512.h"
#include "kvblock.h"
#include "types.h"

#define ROWS 8

struct tile {
	const struct kern_attend *a;
	int32_t from[ROWS], to[ROWS];  /* positions a row reads */
	uint32_t *q;                   /* [ROWS][E/2] pairs of bf16 */
	float *sum;                    /* [ROWS][E] of weight * v */
	float max[ROWS];
	__m512 total[ROWS];            /* of weights, by lane */
	float *out[ROWS];

	/* of the unit at hand */
	int32_t base, blocks;          /* its first position; how many of its blocks anyone reads */
	const uint8_t *block[UNIT_BLOCKS];
	float score[ROWS][UNIT] __attribute__((aligned(64)));
	uint32_t weight[ROWS][UNIT / 2] __attribute__((aligned(64))); /* pairs of bf16 */
	float shrink[ROWS];            /* what older sums are multiplied with */
};

size_t avx512_attend_scratch(int32_t n, int32_t heads, int32_t E)
{
	(void)n;
	(void)heads;
	return (size_t)E * ROWS + (size_t)E / 2 * ROWS;
}

/* ---- scores --------------------------------------------------------------------------------- */

INLINE void score_blocks(const int rows, const int n, struct tile *t, int32_t b)
{
	const int32_t half = t->a->E / 2;
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
		__m512bh line[UNIT_BLOCKS];

		UNROLL
		for (int i = 0; i < n; i++)
			line[i] = (__m512bh)_mm512_load_si512(k[i] + 64 * (size_t)e);
		UNROLL
		for (int r = 0; r < rows; r++) {
			__m512bh q = (__m512bh)_mm512_set1_epi32((int32_t)t->q[r * half + e]);

			UNROLL
			for (int i = 0; i < n; i++)
				s[r][i] = _mm512_dpbf16_ps(s[r][i], line[i], q);
		}
	}
	UNROLL
	for (int r = 0; r < rows; r++)
		UNROLL
		for (int i = 0; i < n; i++)
			_mm512_store_ps(&t->score[r][16 * (b + i)], s[r][i]);
}

INLINE void scores(const int rows, struct tile *t)
{
	const int wide = rows <= 4 ? 4 : 2;      /* blocks side by side: enough sums to hide latency */
	int32_t b = 0;

	for (; b + wide <= t->blocks; b += wide)
		score_blocks(rows, wide, t, b);
	for (; b < t->blocks; b++)
		score_blocks(rows, 1, t, b);
}

/* ---- weights -------------------------------------------------------------------------------- */

/* Which of the sixteen positions from p on row r reads. */
static inline __mmask16 reads(const struct tile *t, int r, int32_t p)
{
	int32_t skip = t->from[r] - p, count = t->to[r] - p + 1;
	uint32_t low = skip <= 0 ? 0 : skip >= 16 ? 0xffff : (1u << skip) - 1;
	uint32_t upto = count <= 0 ? 0 : count >= 16 ? 0xffff : (1u << count) - 1;

	return (__mmask16)(upto & ~low);
}

/* Scores of row r become weights relative to its new maximum. */
static inline void weigh(struct tile *t, int r)
{
	const struct kern_attend *a = t->a;
	__m512 s[UNIT_BLOCKS], none = _mm512_set1_ps(-INFINITY), most = none, total;
	float before = t->max[r], max;

	for (int32_t b = 0; b < t->blocks; b++) {
		s[b] = _mm512_mul_ps(_mm512_load_ps(&t->score[r][16 * b]), _mm512_set1_ps(a->scale));
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
		_mm256_store_si256((__m256i *)(void *)&t->weight[r][8 * b], (__m256i)_mm512_cvtneps_pbh(w));
	}
	t->total[r] = total;
}

/* ---- values --------------------------------------------------------------------------------- */

/* Elements e .. e + 16 * n of all rows' sums. */
INLINE void value_lines(const int rows, const int n, struct tile *t, int32_t e)
{
	const size_t E = (size_t)t->a->E;
	float *at = t->sum + e;
	__m512 sum[ROWS][4];

	UNROLL
	for (int r = 0; r < rows; r++)
		UNROLL
		for (int i = 0; i < n; i++)
			sum[r][i] = _mm512_mul_ps(_mm512_load_ps(at + (size_t)r * E + 16 * i),
			                          _mm512_set1_ps(t->shrink[r]));
	for (int32_t j = 0; j < 8 * t->blocks; j++) {
		const uint8_t *v = t->block[j / 8] + t->a->v_off + ((size_t)(j % 8) * E + (size_t)e) * 4;
		__m512bh line[4];

		UNROLL
		for (int i = 0; i < n; i++)
			line[i] = (__m512bh)_mm512_load_si512(v + 64 * i);
		UNROLL
		for (int r = 0; r < rows; r++) {
			__m512bh w = (__m512bh)_mm512_set1_epi32((int32_t)t->weight[r][j]);

			UNROLL
			for (int i = 0; i < n; i++)
				sum[r][i] = _mm512_dpbf16_ps(sum[r][i], line[i], w);
		}
	}
	UNROLL
	for (int r = 0; r < rows; r++)
		UNROLL
		for (int i = 0; i < n; i++)
			_mm512_store_ps(at + (size_t)r * E + 16 * i, sum[r][i]);
}

INLINE void values(const int rows, struct tile *t)
{
	const int wide = rows <= 4 ? 4 : 2;
	int32_t e = 0;

	for (; e + 16 * wide <= t->a->E; e += 16 * wide)
		value_lines(rows, wide, t, e);
	for (; e < t->a->E; e += 16)
		value_lines(rows, 1, t, e);
}

/* ---- the walk ------------------------------------------------------------------------------- */

INLINE void walk(const int rows, struct tile *t, int32_t from, int32_t to)
{
	for (t->base = from / UNIT * UNIT; t->base <= to; t->base += UNIT) {
		int32_t last = to - t->base < UNIT ? to - t->base : UNIT - 1;

		t->blocks = last / KERN_BLOCK + 1;
		for (int32_t b = 0; b < t->blocks; b++)
			t->block[b] = t->a->kv +
				(size_t)t->a->table[t->base / KERN_BLOCK + b] * t->a->block_stride;
		scores(rows, t);
		for (int r = 0; r < rows; r++)
			weigh(t, r);
		values(rows, t);
	}
}

static void begin_row(struct tile *t, int r, int32_t query, int32_t head)
{
	const struct kern_attend *a = t->a;
	const float *q = a->q + (size_t)query * a->ld_q + (size_t)head * (size_t)a->E;

	t->to[r] = a->first + query;
	t->from[r] = a->window > 0 && t->to[r] >= a->window ? t->to[r] - a->window + 1 : 0;
	t->out[r] = a->out + (size_t)query * a->ld_out + (size_t)head * (size_t)a->E;
	t->max[r] = -1e30f;                       /* finite: less itself it is 0 */
	t->total[r] = _mm512_setzero_ps();
	for (int32_t e = 0; e < a->E; e += 16) {
		_mm256_store_si256((__m256i *)(void *)&t->q[r * (a->E / 2) + e / 2],
		                   (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(q + e)));
		_mm512_store_ps(&t->sum[(size_t)r * (size_t)a->E + (size_t)e], _mm512_setzero_ps());
	}
}

static void end_row(struct tile *t, int r)
{
	const float *sum = t->sum + (size_t)r * (size_t)t->a->E;
	__m512 by = _mm512_set1_ps(1 / _mm512_reduce_add_ps(t->total[r]));

	for (int32_t e = 0; e < t->a->E; e += 16)
		_mm512_storeu_ps(t->out[r] + e,
		                 _mm512_mul_ps(by, _mm512_load_ps(sum + e)));
}

void avx512_attend(int32_t kv_type, const struct kern_attend *a)
{
	int32_t n = a->n * a->heads;
	struct tile t = {
		.a = a,
		.sum = a->scratch,
		.q = (uint32_t *)(void *)(a->scratch + (size_t)a->E * ROWS),
	};

	assert(kvblock_bytes(kv_type, a->E));
	for (int32_t i = 0; i < n; i += ROWS) {
		int32_t rows = n - i < ROWS ? n - i : ROWS;

		for (int32_t r = 0; r < rows; r++)
			begin_row(&t, r, (i + r) / a->heads, (i + r) % a->heads);
		FOR_ROWS(rows, walk, &t, t.from[0], t.to[rows - 1])
		for (int32_t r = 0; r < rows; r++)
			end_row(&t, r);
	}
}
