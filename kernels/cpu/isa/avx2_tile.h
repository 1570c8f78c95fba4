/* avx2_tile.h - a tile of a matrix product, for the files of the AVX2 table that multiply.
 */
#ifndef AVX2_TILE_H
#define AVX2_TILE_H

#include "avx2.h"
#include "kernels/cpu/lanes.h"

struct matmul_tile {
	const uint8_t *w;             /* the column block */
	size_t w_bytes;               /* of one */
	struct lanes_units units;     /* of it, if its weights are quantized; of_all: of any */
	const uint8_t *x;             /* the activation tile */
	int32_t first;                /* row of it that is the tile's first */
	int32_t type, k, cols;        /* cols: real columns of this block */
	bool fetch;                   /* prefetch what follows in memory */
	bool more;                    /* y has the sums over the inputs before these */
	const float *bias;            /* of this block, or NULL */
	float *y;                     /* row `first`, first column of the block */
	size_t ld;
};

/* What the first tile prefetches of the weights, in bytes ahead.  The machine's own prefetcher begins anew
 * at each 4 KiB. */
#define AHEAD 1024
#define AHEAD_4 2048               /* of four-bit quants, and what few rows multiply without units */

INLINE void fetch_ahead(const uint8_t *w, const size_t ahead, const size_t bytes)
{
	UNROLL
	for (size_t i = 0; i < bytes; i += 64)
		_mm_prefetch((const char *)w + ahead + i, _MM_HINT_T0);
}

static inline __m256 sums_before(const struct matmul_tile *t, int r, int half)
{
	return t->more ? get256(t->y + (size_t)r * t->ld, 8 * half, t->cols) : _mm256_setzero_ps();
}

/* Where the sums of a tile begin. */
INLINE __m256 begin(const struct matmul_tile *t, int r, int half)
{
	return t->units.of_all ? _mm256_setzero_ps() : sums_before(t, r, half);
}

/* Columns 8 half .. of one row. */
static inline void store(const struct matmul_tile *t, int r, int half, __m256 v)
{
	if (t->units.of_all)
		v = _mm256_fmadd_ps(v, _mm256_loadu_ps(t->units.of_all + 8 * half), sums_before(t, r, half));
	if (t->bias)
		v = _mm256_add_ps(v, get256(t->bias, 8 * half, t->cols));
	put256(t->y + (size_t)r * t->ld, 8 * half, t->cols, v);
}

INLINE __m256i four(const struct lanes_group *x, int r, int j)
{
	int32_t v;

	memcpy(&v, &x->q[r][4 * j], 4);
	return _mm256_set1_epi32(v);
}

/* Compilers may add integers in any order.  Freed to do so, they add up the products of a group as a tree,
 * which takes more than sixteen registers. */
INLINE __m256i in_order(__m256i sum)
{
	__asm__("" : "+x"(sum));
	return sum;
}

INLINE __m256 scales(const uint8_t *unit, int i, int half)
{
	return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)(unit + 32 * i + 16 * half)));
}

/* acc += scale of weights * scale of activations * sum, as in every table */
INLINE void scale_add(const int rows, __m256 *acc, const __m256i *sum, __m256 d, const struct lanes_group *x,
                      int first)
{
	UNROLL
	for (int r = 0; r < rows; r++)
		acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r]),
		                         _mm256_mul_ps(d, _mm256_set1_ps(x->scale[first + r])), acc[r]);
}

typedef void avx2_tile_fn(int32_t rows, const struct matmul_tile *t);

#define TILE(name, f, ...)                                                           \
	static __attribute__((noinline)) void name(int32_t rows, const struct matmul_tile *t) \
	{                                                                             \
		FOR_ROWS(rows, f, __VA_ARGS__, t)                                     \
	}

/* How `rows` rows by a block are multiplied without units: compact quants are unpacked in registers.  NULL: they are
 * not.  The tile's w is the block as it is held; of its units nothing is read. */
avx2_tile_fn *avx2_few(int32_t type, int32_t rows);
avx2_tile_fn *avx2_few_iq(int32_t type);  /* of IQ2 and IQ3, up to AVX2_ROWS rows */
avx2_tile_fn avx2_f8;                     /* of FP8, likewise */
void avx2_f8_pair(const struct matmul_tile *t); /* one row by two blocks */

#endif
