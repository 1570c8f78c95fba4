/* avx2_matmul.c - matrix products for AVX2 with FMA.  Layouts: lanes.h.
 *
 * A tile is 1..4 rows by 8 outputs (quantized weights) or 16 (float ones); it walks K once, from the
 * first input to the last, and keeps its sums in registers.
 *
 * There is no VNNI: vpmaddubsw multiplies u8 with s8 and adds neighbours to i16, saturating.  With
 * activations of at most 127 these bounds keep it exact:
 *
 *	4 bits       15 * 127 * 2 * 8 steps = 30480: a group's eight steps fit i16
 *	up to 63     63 * 127 * 2 * 2 steps = 32004: two steps fit
 *	8 bits       |w| <= 128 as u8, its sign moved to the activation: 128 * 127 * 2 = 32512: one step fits
 */
#include "avx2.h"
#include "kernels/cpu/compact.h"
#include "kernels/cpu/lanes.h"

struct matmul_tile {
	const uint8_t *w;             /* the column block */
	size_t w_bytes;               /* of one */
	struct lanes_units units;     /* of it, if its weights are quantized; of_all: of any */
	const uint8_t *x;             /* the activation tile */
	int32_t first;                /* row of it that is the tile's first */
	int32_t k, cols;              /* cols: real columns of this block */
	bool fetch;                   /* prefetch what follows in memory */
	bool more;                    /* y has the sums over the inputs before these */
	const float *bias;            /* of this block, or NULL */
	float *y;                     /* row `first`, first column of the block */
	size_t ld;
};

/* What the first tile prefetches of the weights, in bytes ahead.  The machine's own prefetcher begins anew
 * at each 4 KiB. */
#define AHEAD 1024
#define AHEAD_4 2048               /* of four-bit quants */

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

/* ---- quantized weights, int8 activations ---------------------------------------------------- */

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

/* Sums of words, two a lane, of a group of four-bit quants.  Both halves at a time: an activation is loaded for
 * both, and eight sums of four rows leave room for what they need. */
INLINE void sum4(const int rows, __m256i s[2][AVX2_ROWS], const uint8_t *quants, const struct lanes_group *x,
                 int first)
{
	const __m256i nibble = _mm256_set1_epi8(15);

	UNROLL
	for (int r = 0; r < rows; r++)
		s[0][r] = s[1][r] = _mm256_setzero_si256();
	UNROLL
	for (int j = 0; j < 8; j++) {
		__m256i a = load256(quants + 64 * (j % 4)), b = load256(quants + 64 * (j % 4) + 32);

		a = _mm256_and_si256(j < 4 ? a : _mm256_srli_epi16(a, 4), nibble);
		b = _mm256_and_si256(j < 4 ? b : _mm256_srli_epi16(b, 4), nibble);
		UNROLL
		for (int r = 0; r < rows; r++) {
			__m256i v = four(x, first + r, j);

			s[0][r] = in_order(_mm256_add_epi16(s[0][r], _mm256_maddubs_epi16(a, v)));
			s[1][r] = in_order(_mm256_add_epi16(s[1][r], _mm256_maddubs_epi16(b, v)));
		}
	}
}

/* Integer sums of lines j .. j + lines of quants up to 63, two at a time. */
INLINE void sum6(const int rows, __m256i *sum, const uint8_t *quants, const struct lanes_group *x, int first,
                 const int from, const int lines)
{
	UNROLL
	for (int r = 0; r < rows; r++)
		sum[r] = _mm256_setzero_si256();
	UNROLL
	for (int j = from; j < from + lines; j += 2) {
		__m256i b = load256(quants + 64 * j), c = load256(quants + 64 * (j + 1));

		UNROLL
		for (int r = 0; r < rows; r++) {
			__m256i s = _mm256_add_epi16(_mm256_maddubs_epi16(b, four(x, first + r, j)),
			                             _mm256_maddubs_epi16(c, four(x, first + r, j + 1)));

			sum[r] = in_order(_mm256_add_epi32(sum[r], _mm256_madd_epi16(s, _mm256_set1_epi16(1))));
		}
	}
}

/* Integer sums of lines j .. j + lines of eight-bit quants, without their offset of 128. */
INLINE void sum8(const int rows, __m256i *sum, const uint8_t *quants, const struct lanes_group *x, int first,
                 const int from, const int lines)
{
	UNROLL
	for (int r = 0; r < rows; r++)
		sum[r] = _mm256_setzero_si256();
	UNROLL
	for (int j = from; j < from + lines; j++) {
		__m256i w = _mm256_xor_si256(load256(quants + 64 * j), _mm256_set1_epi8((char)0x80));
		__m256i size = _mm256_abs_epi8(w);

		UNROLL
		for (int r = 0; r < rows; r++) {
			__m256i s = _mm256_maddubs_epi16(size, _mm256_sign_epi8(four(x, first + r, j), w));

			sum[r] = in_order(_mm256_add_epi32(sum[r], _mm256_madd_epi16(s, _mm256_set1_epi16(1))));
		}
	}
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

INLINE __m256i offset(const enum lanes_kind kind, int32_t minus_sum)
{
	return _mm256_set1_epi32(minus_sum * (1 << lanes_offset_bits(kind)));
}

INLINE void add_group(const int rows, const enum lanes_kind kind, const uint8_t *unit, const uint8_t *quants,
                      const int in_unit, const int half, const struct lanes_group *x, int first, __m256 *acc)
{
	const bool halves = lanes_halves(kind);
	__m256i sum[AVX2_ROWS];

	if (kind == LANES_8 || kind == LANES_8HB)
		sum8(rows, sum, quants, x, first, 0, halves ? 4 : 8);
	else
		sum6(rows, sum, quants, x, first, 0, halves ? 4 : 8);
	UNROLL
	for (int r = 0; r < rows; r++)
		if (kind == LANES_8H)
			sum[r] = _mm256_add_epi32(sum[r], offset(kind, x->minus_first[first + r]));
	scale_add(rows, acc, sum, scales(unit, in_unit, half), x, first);
	if (halves) {
		if (kind == LANES_8HB)
			sum8(rows, sum, quants, x, first, 4, 4);
		else
			sum6(rows, sum, quants, x, first, 4, 4);
		UNROLL
		for (int r = 0; kind == LANES_8H && r < rows; r++)
			sum[r] = _mm256_add_epi32(sum[r], offset(kind, x->minus_sum[first + r] -
			                                               x->minus_first[first + r]));
		scale_add(rows, acc, sum, scales(unit, 1, half), x, first);
	}
	if (kind == LANES_8HM) {
		__m256 m0 = scales(unit, 2, half), m1 = scales(unit, 3, half);

		UNROLL
		for (int r = 0; r < rows; r++) {
			float before = x->scale[first + r] * (float)-x->minus_first[first + r];
			float rest = x->scale[first + r] * (float)(x->minus_first[first + r] - x->minus_sum[first + r]);

			acc[r] = _mm256_fmadd_ps(m0, _mm256_set1_ps(before), acc[r]);
			acc[r] = _mm256_fmadd_ps(m1, _mm256_set1_ps(rest), acc[r]);
		}
	}
	if (kind == LANES_8M) {
		__m256 m = scales(unit, 1, half);

		UNROLL
		for (int r = 0; r < rows; r++)
			acc[r] = _mm256_fmadd_ps(m, _mm256_set1_ps(x->scaled_sum[first + r]), acc[r]);
	}
}

INLINE void quant_tile(const int rows, const enum lanes_kind kind, const struct matmul_tile *t)
{
	const int per = lanes_unit_groups(kind), wide = rows <= 2 ? 2 : 1; /* halves at a time */

	for (int half = 0; half < 2; half += wide) {
		const struct lanes_group *x = (const struct lanes_group *)(const void *)t->x;
		const uint8_t *s = t->units.scales, *q = t->units.quants;
		const bool fetch = t->fetch && !half;
		__m256 acc[2][AVX2_ROWS];

		UNROLL
		for (int h = 0; h < wide; h++)
			UNROLL
			for (int r = 0; r < rows; r++)
				acc[h][r] = begin(t, r, half + h);
		for (int32_t g = 0; g < t->k / GROUP; g += per, x += per) {
			if (fetch)
				fetch_ahead(q, AHEAD, per * lanes_quants(kind));
			UNROLL
			for (int i = 0; i < per; i++)
				UNROLL
				for (int h = 0; h < wide; h++)
					add_group(rows, kind, s, q + (size_t)i * lanes_quants(kind) + 32 * (half + h), i,
						half + h, x + i, t->first, acc[h]);
			s += t->units.scales_step;
			q += t->units.quants_step;
		}
		UNROLL
		for (int h = 0; h < wide; h++)
			UNROLL
			for (int r = 0; r < rows; r++)
				store(t, r, half + h, acc[h][r]);
	}
}

/* Eight products of a scale's parts, rounded as in units. */
INLINE __m256 product(const uint8_t *d, __m128i by)
{
	__m256 v = _mm256_mul_ps(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)d)),
	                         _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(by)));

	return _mm256_cvtph_ps(_mm256_cvtps_ph(v, 0));
}

/* Scales and minima of both halves of group i of a unit; or, of a block of Q4_K as it is held, of group i of a
 * piece. */
INLINE void scales4(const enum lanes_kind kind, const bool held, const uint8_t *s, int i, __m256 d[2], __m256 m[2])
{
	__m128i scale, min;

	if (held) {
		compact_scales_45(s, i, &scale, &min);
		d[0] = product(s, scale);
		d[1] = product(s + 16, _mm_unpackhi_epi64(scale, scale));
		m[0] = product(s + 32, min);
		m[1] = product(s + 48, _mm_unpackhi_epi64(min, min));
		return;
	}
	for (int h = 0; h < 2; h++) {
		d[h] = scales(s, i, h);
		m[h] = kind == LANES_4M ? scales(s, 1, h) : d[h];
	}
}

/* A group of four-bit quants: the held ones' minima are taken away. */
INLINE void add_group4(const int rows, const enum lanes_kind kind, const bool held, const uint8_t *s, int i,
                       const uint8_t *quants, const struct lanes_group *x, int first, __m256 *acc)
{
	__m256i sum[2][AVX2_ROWS];
	__m256 d[2], m[2];

	sum4(rows, sum, quants, x, first);
	if (rows > 2 && kind == LANES_4) /* acc is not read before: 1.06 times, 16 rows */
		__asm__("" : "+r"(acc) : : "memory");
	scales4(kind, held, s, i, d, m);
	UNROLL
	for (int r = 0; r < rows; r++) {
		const __m256i minus = _mm256_slli_epi32(_mm256_set1_epi32(x->minus_sum[first + r]), 3);
		const __m256 by = _mm256_set1_ps(x->scaled_sum[first + r]);

		UNROLL
		for (int h = 0; h < 2; h++) {
			__m256 a = acc[2 * r + h];

			sum[h][r] = _mm256_madd_epi16(sum[h][r], _mm256_set1_epi16(1));
			if (kind == LANES_4)
				sum[h][r] = _mm256_add_epi32(sum[h][r], minus);
			scale_add(1, &a, &sum[h][r], d[h], x, first + r);
			if (held)
				a = _mm256_fnmadd_ps(m[h], by, a);
			else if (kind == LANES_4M)
				a = _mm256_fmadd_ps(m[h], by, a);
			acc[2 * r + h] = a;
		}
	}
}

/* Rows by a block of four-bit quants: units, or Q4_K as it is held, of which few rows make no units.  With more
 * than two rows sums stay in memory, where they are needed once a group. */
INLINE void tile4(const int rows, const enum lanes_kind kind, const bool held, const struct matmul_tile *t)
{
	const int per = held ? COMPACT_MOST : lanes_unit_groups(kind), first = t->first;
	const struct lanes_group *x = (const struct lanes_group *)(const void *)t->x;
	const size_t s_step = t->units.scales_step, q_step = t->units.quants_step;
	const uint8_t *s = t->units.scales, *q = t->units.quants;
	const int32_t groups = t->k / GROUP;
	const bool fetch = t->fetch;
	__m256 sums[2 * AVX2_ROWS], *acc = sums;

	if (rows > 2)
		__asm__("" : "+r"(acc) : : "memory");
	UNROLL
	for (int i = 0; i < 2 * rows; i++)
		acc[i] = begin(t, i / 2, i % 2);
	for (int32_t g = 0; g < groups; g += per, x += per, s += s_step, q += q_step) {
		if (fetch && held)
			fetch_ahead(s, AHEAD_4, COMPACT_SCALES_4K);
		if (fetch && !held)
			fetch_ahead(q, AHEAD_4, LANES_SCALES + per * lanes_quants(kind));
		for (int i = 0; i < per; i++) {
			if (fetch && held)
				fetch_ahead(q + 256 * i, AHEAD_4, 256);
			add_group4(rows, kind, held, s, i, q + 256 * i, x + i, first, acc);
		}
		if (rows > 2)
			__asm__("" : "+r"(acc) : : "memory");
	}
	UNROLL
	for (int i = 0; i < 2 * rows; i++)
		store(t, i / 2, i % 2, acc[i]);
}

/* ---- float weights -------------------------------------------------------------------------- */

/* Two inputs of eight outputs as f32. */
INLINE void two_inputs(const enum lanes_kind kind, const uint8_t *w, int half, __m256 *a, __m256 *b)
{
	switch (kind) {
	case LANES_F32:
		*a = _mm256_load_ps((const float *)(const void *)(w + 32 * half));
		*b = _mm256_load_ps((const float *)(const void *)(w + 64 + 32 * half));
		return;
	case LANES_F16:
		*a = scales(w, 0, half);
		*b = scales(w, 1, half);
		return;
	default:
		*a = low_bf16(load256(w + 32 * half));
		*b = high_bf16(load256(w + 32 * half));
	}
}

INLINE void f32_tile(const int rows, const enum lanes_kind kind, const struct matmul_tile *t)
{
	const size_t line = kind == LANES_F32 ? 128 : 64;
	const float *x = (const float *)(const void *)t->x + t->first;
	const uint8_t *w = t->w;
	__m256 acc[AVX2_ROWS][2];

	UNROLL
	for (int r = 0; r < rows; r++)
		UNROLL
		for (int half = 0; half < 2; half++)
			acc[r][half] = begin(t, r, half);
	for (int32_t i = 0; i < t->k / 2; i++, x += 2 * KERN_TILE, w += line) {
		__m256 a[2], b[2];

		if (t->fetch)
			fetch_ahead(w, AHEAD, line);
		two_inputs(kind, w, 0, &a[0], &b[0]);
		two_inputs(kind, w, 1, &a[1], &b[1]);
		UNROLL
		for (int r = 0; r < rows; r++) {
			__m256 v = _mm256_set1_ps(x[r]);

			acc[r][0] = _mm256_fmadd_ps(a[0], v, acc[r][0]);
			acc[r][1] = _mm256_fmadd_ps(a[1], v, acc[r][1]);
		}
		UNROLL
		for (int r = 0; r < rows; r++) {
			__m256 v = _mm256_set1_ps(x[KERN_TILE + r]);

			acc[r][0] = _mm256_fmadd_ps(b[0], v, acc[r][0]);
			acc[r][1] = _mm256_fmadd_ps(b[1], v, acc[r][1]);
		}
	}
	UNROLL
	for (int r = 0; r < rows; r++) {
		store(t, r, 0, acc[r][0]);
		store(t, r, 1, acc[r][1]);
	}
}

/* One row by two column blocks: it waits for memory, and two streams are faster than one. */
INLINE void f32_pair(const enum lanes_kind kind, const struct matmul_tile *t)
{
	const size_t line = kind == LANES_F32 ? 128 : 64;
	const float *x = (const float *)(const void *)t->x + t->first;
	const uint8_t *w = t->w, *v = t->w + t->w_bytes;
	__m256 acc[4] = { _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps() };

	for (int32_t i = 0; i < t->k / 2; i++, x += 2 * KERN_TILE, w += line, v += line) {
		__m256 a[4], b[4];

		_mm_prefetch((const char *)w + AHEAD, _MM_HINT_T0);
		_mm_prefetch((const char *)v + AHEAD, _MM_HINT_T0);
		two_inputs(kind, w, 0, &a[0], &b[0]);
		two_inputs(kind, w, 1, &a[1], &b[1]);
		two_inputs(kind, v, 0, &a[2], &b[2]);
		two_inputs(kind, v, 1, &a[3], &b[3]);
		UNROLL
		for (int c = 0; c < 4; c++)
			acc[c] = _mm256_fmadd_ps(b[c], _mm256_set1_ps(x[KERN_TILE]),
			                         _mm256_fmadd_ps(a[c], _mm256_set1_ps(x[0]), acc[c]));
	}
	UNROLL
	for (int c = 0; c < 4; c++)
		store(t, 0, c, acc[c]);
}

/* ---- the table's verb ----------------------------------------------------------------------- */

typedef void tile_fn(int32_t rows, const struct matmul_tile *t);

#define TILE(name, f, ...)                                                           \
	static __attribute__((noinline)) void name(int32_t rows, const struct matmul_tile *t) \
	{                                                                             \
		FOR_ROWS(rows, f, __VA_ARGS__, t)                                     \
	}
TILE(tile_4m, tile4, LANES_4M, false)
TILE(tile_4, tile4, LANES_4, false)
TILE(tile_q4k, tile4, LANES_4M, true)
TILE(tile_8, quant_tile, LANES_8)
TILE(tile_8m, quant_tile, LANES_8M)
TILE(tile_8h, quant_tile, LANES_8H)
TILE(tile_8hm, quant_tile, LANES_8HM)
TILE(tile_8hb, quant_tile, LANES_8HB)

TILE(tile_f32, f32_tile, LANES_F32)
TILE(tile_f16, f32_tile, LANES_F16)
TILE(tile_bf16, f32_tile, LANES_BF16)

typedef void pair_fn(const struct matmul_tile *t);

#define PAIR(name, kind)                                                    \
	static __attribute__((noinline)) void name(const struct matmul_tile *t)    \
	{                                                                   \
		f32_pair(kind, t);                                          \
	}
PAIR(pair_f32, LANES_F32)
PAIR(pair_f16, LANES_F16)
PAIR(pair_bf16, LANES_BF16)

static pair_fn *const pairs[LANES_8HB + 1] = {
	[LANES_F32] = pair_f32, [LANES_F16] = pair_f16, [LANES_BF16] = pair_bf16,
};

static tile_fn *const tiles[] = {
	[LANES_F32] = tile_f32, [LANES_F16] = tile_f16, [LANES_BF16] = tile_bf16, [LANES_4M] = tile_4m,
	[LANES_4] = tile_4, [LANES_8] = tile_8, [LANES_8M] = tile_8m, [LANES_8H] = tile_8h,
	[LANES_8HM] = tile_8hm, [LANES_8HB] = tile_8hb,
};

/* All rows by the inputs of t, which begin at group `first`.  The first tile prefetches. */
static void all_rows(tile_fn *f, struct matmul_tile *t, const struct kern_rows *x, int32_t first, float *y)
{
	for (int32_t r = 0; r < x->rows; r += AVX2_ROWS) {
		t->x = x->data + (size_t)(r / KERN_TILE) * x->tile_bytes + (size_t)first * lanes_group_bytes(x->form);
		t->first = r % KERN_TILE;
		t->y = y + (size_t)r * t->ld;
		f(x->rows - r < AVX2_ROWS ? x->rows - r : AVX2_ROWS, t);
		t->fetch = false;
	}
}

/* A block that is held compactly: some groups at a time become units, and sums stay in y in between.  Few
 * rows take few groups, so that units are multiplied while the next are on their way from memory. */
static void by_pieces(int32_t type, tile_fn *f, const struct matmul_tile *t, const struct kern_rows *x, float *y)
{
	_Alignas(64) uint8_t room[COMPACT_BYTES];
	const int32_t groups = t->k / GROUP;
	struct matmul_tile part = *t;

	for (int32_t g = 0, n; g < groups; g += n) {
		n = compact_step(type, t->k, g, x->rows <= AVX2_ROWS);
		part.units = compact_expand(type, t->k, t->w, g, n, x->index, room);
		part.w = part.units.quants;
		part.k = n * GROUP;
		part.more = g > 0;
		part.bias = g + n == groups ? t->bias : NULL;
		all_rows(f, &part, x, g, y);
	}
}

/* Columns in the outer loop, rows in the inner one: weights stay in L1, activations stream from L2. */
void avx2_matmul(int32_t type, int32_t k, const uint8_t *blocks, int32_t n_blocks, int32_t n_cols,
                 const struct kern_rows *x, const float *bias, float *y, size_t ld, const uint8_t *next)
{
	const enum lanes_kind kind = lanes_kind(type);
	tile_fn *f = tiles[kind];
	size_t block = lanes_block_bytes(type, k);
	pair_fn *pair = x->rows == 1 && !compact_groups(type) ? pairs[kind] : NULL;
	struct matmul_tile t = { .w_bytes = block, .k = k, .ld = ld };

	(void)next;
	for (int32_t b = 0; b < n_blocks; b++) {
		t.w = blocks + (size_t)b * block;
		t.cols = n_cols - 16 * b;
		t.bias = bias ? bias + 16 * b : NULL;
		if (pair && b + 2 <= n_blocks) {
			t.x = x->data;
			t.first = 0;
			t.y = y + 16 * b;
			pair(&t);
			b++;
		} else if (type == SR_Q4_K && x->rows <= AVX2_ROWS) {
			t.fetch = true;
			t.units = (struct lanes_units){ t.w, t.w + (size_t)k / 256 * COMPACT_SCALES_4K,
			                                COMPACT_SCALES_4K, 8 * 256, NULL };
			all_rows(tile_q4k, &t, x, 0, y + 16 * b);
		} else if (compact_groups(type)) {
			by_pieces(type, f, &t, x, y + 16 * b);
		} else {
			t.fetch = true;
			t.units = lanes_run(kind, t.w);
			all_rows(f, &t, x, 0, y + 16 * b);
		}
	}
}
