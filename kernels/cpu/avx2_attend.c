/* avx2_attend.c - attention over paged bf16 K and V, for AVX2 with FMA.  Layout: kvblock.h; the walk
 * is that of avx512_attend.c, in tiles of four rows, with queries and weights in f32.
 */
#include <assert.h>
#include <math.h>

#include "avx2.h"
#include "kvblock.h"

#define ROWS AVX2_ROWS

struct tile {
	const struct kern_attend *a;
	int32_t from[ROWS], to[ROWS];  /* positions a row reads */
	const float *q[ROWS];          /* [E] */
	float *sum;                    /* [ROWS][E] of weight * v */
	float max[ROWS];
	__m256 total[ROWS];            /* of weights, by lane */
	float *out[ROWS];

	/* of the unit at hand */
	int32_t base, blocks;          /* its first position; how many of its blocks anyone reads */
	const uint8_t *block[UNIT_BLOCKS];
	float weight[ROWS][UNIT] __attribute__((aligned(64))); /* scores before */
	float shrink[ROWS];            /* what older sums are multiplied with */
};

size_t avx2_attend_scratch(int32_t n, int32_t heads, int32_t E)
{
	(void)n;
	(void)heads;
	return (size_t)E * ROWS;
}

INLINE void score_block(const int rows, struct tile *t, int32_t b)
{
	const uint8_t *k = t->block[b] + t->a->k_off;
	__m256 s[ROWS][2];

	UNROLL
	for (int r = 0; r < rows; r++)
		s[r][0] = s[r][1] = _mm256_setzero_ps();
	for (int32_t e = 0; e < t->a->E; e += 2, k += 64) {
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

/* All ones in the lanes whose positions, from p on, row r reads. */
static inline __m256 reads(const struct tile *t, int r, int32_t p)
{
	__m256i at = _mm256_add_epi32(_mm256_set1_epi32(p), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
	__m256i not = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(t->from[r]), at),
	                              _mm256_cmpgt_epi32(at, _mm256_set1_epi32(t->to[r])));

	return _mm256_castsi256_ps(_mm256_andnot_si256(not, _mm256_set1_epi32(-1)));
}

/* Scores of row r become weights relative to its new maximum. */
static inline void weigh(struct tile *t, int r)
{
	const struct kern_attend *a = t->a;
	__m256 none = _mm256_set1_ps(-INFINITY), most = none, total;
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
	total = _mm256_mul_ps(t->total[r], _mm256_set1_ps(t->shrink[r]));
	for (int32_t i = 0; i < 16 * t->blocks; i += 8) {
		__m256 w = exp256(_mm256_sub_ps(_mm256_load_ps(&t->weight[r][i]), _mm256_set1_ps(max)));

		w = _mm256_and_ps(w, reads(t, r, t->base + i));
		total = _mm256_add_ps(total, w);
		_mm256_store_ps(&t->weight[r][i], w);
	}
	t->total[r] = total;
}

/* Elements e .. e + 15 of all rows' sums. */
INLINE void value_line(const int rows, struct tile *t, int32_t e)
{
	const size_t E = (size_t)t->a->E;
	float *at = t->sum + e;
	__m256 sum[ROWS][2];

	UNROLL
	for (int r = 0; r < rows; r++)
		UNROLL
		for (int i = 0; i < 2; i++)
			sum[r][i] = _mm256_mul_ps(_mm256_load_ps(at + (size_t)r * E + 8 * i),
			                          _mm256_set1_ps(t->shrink[r]));
	for (int32_t j = 0; j < 8 * t->blocks; j++) {
		const uint8_t *v = t->block[j / 8] + t->a->v_off + ((size_t)(j % 8) * E + (size_t)e) * 4;
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

INLINE void walk(const int rows, struct tile *t, int32_t from, int32_t to)
{
	for (t->base = from / UNIT * UNIT; t->base <= to; t->base += UNIT) {
		int32_t last = to - t->base < UNIT ? to - t->base : UNIT - 1;

		t->blocks = last / KERN_BLOCK + 1;
		for (int32_t b = 0; b < t->blocks; b++)
			t->block[b] = t->a->kv +
				(size_t)t->a->table[t->base / KERN_BLOCK + b] * t->a->block_stride;
		for (int32_t b = 0; b < t->blocks; b++)
			score_block(rows, t, b);
		for (int r = 0; r < rows; r++)
			weigh(t, r);
		for (int32_t e = 0; e < t->a->E; e += 16)
			value_line(rows, t, e);
	}
}

static void begin_row(struct tile *t, int r, int32_t query, int32_t head)
{
	const struct kern_attend *a = t->a;

	t->q[r] = a->q + (size_t)query * a->ld_q + (size_t)head * (size_t)a->E;
	t->to[r] = a->first + query;
	t->from[r] = a->window > 0 && t->to[r] >= a->window ? t->to[r] - a->window + 1 : 0;
	t->out[r] = a->out + (size_t)query * a->ld_out + (size_t)head * (size_t)a->E;
	t->max[r] = -1e30f;                       /* finite: less itself it is 0 */
	t->total[r] = _mm256_setzero_ps();
	for (int32_t e = 0; e < a->E; e += 8)
		_mm256_store_ps(&t->sum[(size_t)r * (size_t)a->E + (size_t)e], _mm256_setzero_ps());
}

static void end_row(struct tile *t, int r)
{
	const float *sum = t->sum + (size_t)r * (size_t)t->a->E;
	__m256 by = _mm256_set1_ps(1 / sum256(t->total[r]));

	for (int32_t e = 0; e < t->a->E; e += 8)
		_mm256_storeu_ps(t->out[r] + e,
		                 _mm256_mul_ps(by, _mm256_load_ps(sum + e)));
}

void avx2_attend(int32_t kv_type, const struct kern_attend *a)
{
	int32_t n = a->n * a->heads;
	struct tile t = { .a = a, .sum = a->scratch };

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
