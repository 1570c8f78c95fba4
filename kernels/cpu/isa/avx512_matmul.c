/* avx512_matmul.c - matrix products for AVX-512 with VNNI and BF16.  Layouts: lanes.h.
 *
 * A tile is 1..8 rows by one column block (two for float weights); it walks K once, from the first
 * input to the last, and keeps its sums in registers.  The number of rows in a tile decides which sums
 * are computed together, never the order of one sum.
 *
 * On Zen 4 the products, fma and mul share one 512-bit slot per clock; unpacking nibbles, converting
 * and loading use others.  A group of 32 inputs costs a row
 * 8 vpdpbusd, a mul and 1 (no minimum) or 2 fma: 8 of 11 slots are products.
 */
#include "avx512.h"
#include "kernels/cpu/compact.h"
#include "kernels/cpu/lanes.h"

/* Where a tile reads and writes. */
struct matmul_tile {
	const uint8_t *w;             /* the column block */
	size_t w_bytes;               /* of a column block */
	struct lanes_units units;     /* of it, if its weights are quantized; of_all: of any */
	const uint8_t *x;             /* the activation tile */
	int32_t k;
	const uint8_t *fetch;         /* what to prefetch, this tile's part of it, or NULL */
	int32_t fetch_lines;          /* lines of 64 bytes to fetch per step through K */
	bool more;                    /* y has the sums over the inputs before these */
	const float *bias;            /* of these columns, or NULL */
	float *y;
	size_t ld;
	__mmask16 last;               /* the real columns of the tile's last block */
};

INLINE __m512 sums_before(const struct matmul_tile *t, int r, int c, __mmask16 m)
{
	return t->more ? _mm512_maskz_loadu_ps(m, t->y + (size_t)r * t->ld + 16 * c) : _mm512_setzero_ps();
}

/* Where the sums of a tile begin. */
INLINE __m512 begin(const struct matmul_tile *t, int r, int c, __mmask16 m)
{
	return t->units.of_all ? _mm512_setzero_ps() : sums_before(t, r, c, m);
}

INLINE void store(const int rows, const int cols, const struct matmul_tile *t, __m512 (*acc)[2])
{
	UNROLL
	for (int r = 0; r < rows; r++)
		UNROLL
		for (int c = 0; c < cols; c++) {
			__mmask16 m = c == cols - 1 ? t->last : 0xffff;
			__m512 v = acc[r][c];

			if (t->units.of_all)
				v = _mm512_fmadd_ps(v, _mm512_loadu_ps(t->units.of_all), sums_before(t, r, c, m));
			if (t->bias)
				v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(m, t->bias + 16 * c));
			_mm512_mask_storeu_ps(t->y + (size_t)r * t->ld + 16 * c, m, v);
		}
}

INLINE const uint8_t *fetch_some(const struct matmul_tile *t, const uint8_t *at)
{
	for (int32_t i = 0; i < t->fetch_lines; i++, at += 64)
		_mm_prefetch((const char *)at, _MM_HINT_T0);
	return at;
}

/* ---- quantized weights, int8 activations ---------------------------------------------------- */

INLINE __m512i four(const struct lanes_group *x, int r, int j)
{
	int32_t v;

	memcpy(&v, &x->q[r][4 * j], 4);
	return _mm512_set1_epi32(v);
}

/* The start of the integer sums: minus the quants' offset. */
INLINE __m512i start(const enum lanes_kind kind, const int32_t *minus_sum, int r)
{
	const int bits = lanes_offset_bits(kind);

	return bits ? _mm512_slli_epi32(_mm512_set1_epi32(minus_sum[r]), bits) : _mm512_setzero_si512();
}

INLINE __m512 scales(const uint8_t *unit, int i)
{
	return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)(unit + 32 * i)));
}

/* acc += scale of weights * scale of activations * sum */
INLINE void scale_add(const int rows, __m512 (*acc)[2], const __m512i *sum, __m512 d,
                      const struct lanes_group *x)
{
	UNROLL
	for (int r = 0; r < rows; r++)
		acc[r][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r]),
		                            _mm512_mul_ps(d, _mm512_set1_ps(x->scale[r])), acc[r][0]);
}

/* Inputs 4j .. of eight-bit quants. */
INLINE void line8(const int rows, __m512i *sum, const uint8_t *quants, const struct lanes_group *x, int j)
{
	__m512i b = _mm512_load_si512(quants + 64 * j);

	UNROLL
	for (int r = 0; r < rows; r++)
		sum[r] = _mm512_dpbusd_epi32(sum[r], b, four(x, r, j));
}

INLINE void line4(const int rows, __m512i *sum, const uint8_t *quants, const struct lanes_group *x, int j)
{
	const __m512i nibble = _mm512_set1_epi8(15);
	__m512i b = _mm512_load_si512(quants + 64 * j);
	__m512i low = _mm512_and_si512(b, nibble), high = _mm512_and_si512(_mm512_srli_epi16(b, 4), nibble);

	UNROLL
	for (int r = 0; r < rows; r++)
		sum[r] = _mm512_dpbusd_epi32(sum[r], low, four(x, r, j));
	UNROLL
	for (int r = 0; r < rows; r++)
		sum[r] = _mm512_dpbusd_epi32(sum[r], high, four(x, r, j + 4));
}

INLINE void add_group(const int rows, const enum lanes_kind kind, const uint8_t *unit, const uint8_t *quants,
                      const int in_unit, const struct lanes_group *x, __m512 (*acc)[2])
{
	const bool halves = lanes_halves(kind);
	const int lines = halves ? 4 : 8;
	__m512i sum[8], second[8];

	UNROLL
	for (int r = 0; r < rows; r++)
		sum[r] = start(kind, halves ? x->minus_first : x->minus_sum, r);
	if (lanes_quants(kind) == 256) {
		UNROLL
		for (int j = 0; j < 4; j++)
			line4(rows, sum, quants, x, j);
	} else {
		UNROLL
		for (int j = 0; j < lines; j++)
			line8(rows, sum, quants, x, j);
	}
	scale_add(rows, acc, sum, scales(unit, in_unit), x);
	if (halves) {
		UNROLL
		for (int r = 0; r < rows; r++)
			second[r] = _mm512_sub_epi32(start(kind, x->minus_sum, r),
			                             start(kind, x->minus_first, r));
		UNROLL
		for (int j = 4; j < 8; j++)
			line8(rows, second, quants, x, j);
		scale_add(rows, acc, second, scales(unit, 1), x);
	}
	if (kind == LANES_8HM) {
		__m512 m0 = scales(unit, 2), m1 = scales(unit, 3);

		UNROLL
		for (int r = 0; r < rows; r++) {
			float first = x->scale[r] * (float)-x->minus_first[r];
			float rest = x->scale[r] * (float)(x->minus_first[r] - x->minus_sum[r]);

			acc[r][0] = _mm512_fmadd_ps(m0, _mm512_set1_ps(first), acc[r][0]);
			acc[r][0] = _mm512_fmadd_ps(m1, _mm512_set1_ps(rest), acc[r][0]);
		}
	}
	if (kind == LANES_4M || kind == LANES_8M) {
		__m512 m = scales(unit, 1);

		UNROLL
		for (int r = 0; r < rows; r++)
			acc[r][0] = _mm512_fmadd_ps(m, _mm512_set1_ps(x->scaled_sum[r]), acc[r][0]);
	}
}

INLINE void quant_tile(const int rows, const enum lanes_kind kind, const struct matmul_tile *t)
{
	const struct lanes_group *x = (const struct lanes_group *)(const void *)t->x;
	const int per = lanes_unit_groups(kind);
	const uint8_t *s = t->units.scales, *q = t->units.quants, *fetch = t->fetch;
	__m512 acc[8][2];

	UNROLL
	for (int r = 0; r < rows; r++)
		acc[r][0] = begin(t, r, 0, t->last);
	for (int32_t g = 0; g < t->k / GROUP; g += per) {
		if (fetch)
			fetch = fetch_some(t, fetch);
		UNROLL
		for (int i = 0; i < per; i++)
			add_group(rows, kind, s, q + (size_t)i * lanes_quants(kind), i, x++, acc);
		s += t->units.scales_step;
		q += t->units.quants_step;
	}
	store(rows, 1, t, acc);
}

/* Sixteen products of a scale's parts, rounded as in units. */
INLINE __m512 product(const uint8_t *d, __m128i by)
{
	__m512 v = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)d)),
	                         _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(by)));

	return _mm512_cvtph_ps(_mm512_cvtps_ph(v, 0));
}

/* Few rows by a block of Q4_K: its units would be read once, so they are not made. */
INLINE void q4k_tile(const int rows, const struct matmul_tile *t)
{
	const struct lanes_group *x = (const struct lanes_group *)(const void *)t->x;
	const uint8_t *s = t->w, *q = t->w + (size_t)t->k / 256 * COMPACT_SCALES_4K, *fetch = t->fetch;
	__m512 acc[8][2];

	UNROLL
	for (int r = 0; r < rows; r++)
		acc[r][0] = _mm512_setzero_ps();
	for (int32_t g = 0; g < t->k / GROUP; g++, x++, q += 256) {
		__m128i scale, min;
		__m512i sum[8];
		__m512 m;

		if (fetch)
			fetch = fetch_some(t, fetch);
		compact_scales_45(s, g % 8, &scale, &min);
		m = product(s + 32, min);
		UNROLL
		for (int r = 0; r < rows; r++)
			sum[r] = _mm512_setzero_si512();
		UNROLL
		for (int j = 0; j < 4; j++)
			line4(rows, sum, q, x, j);
		scale_add(rows, acc, sum, product(s, scale), x);
		UNROLL
		for (int r = 0; r < rows; r++)
			acc[r][0] = _mm512_fnmadd_ps(m, _mm512_set1_ps(x->scaled_sum[r]), acc[r][0]);
		s += g % 8 == 7 ? COMPACT_SCALES_4K : 0;
	}
	store(rows, 1, t, acc);
}

/* ---- float weights -------------------------------------------------------------------------- */

/* Two inputs of sixteen outputs as f32: the first and the second. */
INLINE void two_inputs(const enum lanes_kind kind, const uint8_t *w, __m512 *first, __m512 *second)
{
	__m512i both;

	switch (kind) {
	case LANES_F32:
		*first = _mm512_load_ps(w);
		*second = _mm512_load_ps(w + 64);
		return;
	case LANES_F16:
		*first = scales(w, 0);
		*second = scales(w, 1);
		return;
	default:
		both = _mm512_load_si512(w);
		*first = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
		*second = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000)));
	}
}

INLINE void f32_tile(const int rows, const int cols, const enum lanes_kind kind, const struct matmul_tile *t)
{
	const size_t line = kind == LANES_F32 ? 128 : 64;
	const float *x = (const float *)(const void *)t->x;
	const uint8_t *fetch = t->fetch;
	__m512 acc[8][2];

	UNROLL
	for (int r = 0; r < rows; r++)
		UNROLL
		for (int c = 0; c < cols; c++)
			acc[r][c] = begin(t, r, c, c == cols - 1 ? t->last : 0xffff);
	for (int32_t i = 0; i < t->k / 2; i++, x += 2 * KERN_TILE) {
		__m512 first[2], second[2], v;

		if (fetch)
			fetch = fetch_some(t, fetch);
		UNROLL
		for (int c = 0; c < cols; c++) {
			const uint8_t *w = t->w + (size_t)c * t->w_bytes + (size_t)i * line;

			two_inputs(kind, w, &first[c], &second[c]);
		}
		UNROLL
		for (int r = 0; r < rows; r++) {
			v = _mm512_set1_ps(x[r]);
			UNROLL
			for (int c = 0; c < cols; c++)
				acc[r][c] = _mm512_fmadd_ps(first[c], v, acc[r][c]);
		}
		UNROLL
		for (int r = 0; r < rows; r++) {
			v = _mm512_set1_ps(x[KERN_TILE + r]);
			UNROLL
			for (int c = 0; c < cols; c++)
				acc[r][c] = _mm512_fmadd_ps(second[c], v, acc[r][c]);
		}
	}
	store(rows, cols, t, acc);
}

INLINE void bf16_tile(const int rows, const int cols, const struct matmul_tile *t)
{
	const int32_t *x = (const int32_t *)(const void *)t->x;
	const uint8_t *fetch = t->fetch;
	__m512 acc[8][2];

	UNROLL
	for (int r = 0; r < rows; r++)
		UNROLL
		for (int c = 0; c < cols; c++)
			acc[r][c] = begin(t, r, c, c == cols - 1 ? t->last : 0xffff);
	for (int32_t i = 0; i < t->k / 2; i++, x += KERN_TILE) {
		__m512i w[2];

		if (fetch)
			fetch = fetch_some(t, fetch);
		UNROLL
		for (int c = 0; c < cols; c++)
			w[c] = _mm512_load_si512(t->w + (size_t)c * t->w_bytes + (size_t)i * 64);
		UNROLL
		for (int r = 0; r < rows; r++)
			UNROLL
			for (int c = 0; c < cols; c++)
				acc[r][c] = _mm512_dpbf16_ps(acc[r][c], (__m512bh)w[c],
				                             (__m512bh)_mm512_set1_epi32(x[r]));
	}
	store(rows, cols, t, acc);
}

/* ---- the table's verb ----------------------------------------------------------------------- */

#define FETCHERS 4              /* most row tiles that divide the prefetch of the next column block */

typedef void tile_fn(int32_t rows, const struct matmul_tile *t);

#define TILE(name, f, ...)                                                            \
	static __attribute__((noinline)) void name(int32_t rows, const struct matmul_tile *t)  \
	{                                                                              \
		FOR_ROWS(rows, f, __VA_ARGS__, t)                                      \
	}
TILE(tile_4m, quant_tile, LANES_4M)
TILE(tile_4, quant_tile, LANES_4)
TILE(tile_8, quant_tile, LANES_8)
TILE(tile_8m, quant_tile, LANES_8M)
TILE(tile_8h, quant_tile, LANES_8H)
TILE(tile_8hm, quant_tile, LANES_8HM)
TILE(tile_8hb, quant_tile, LANES_8HB)

static __attribute__((noinline)) void tile_q4k(int32_t rows, const struct matmul_tile *t)
{
	FOR_ROWS(rows, q4k_tile, t)
}

TILE(tile_f32_1, f32_tile, 1, LANES_F32)
TILE(tile_f32_2, f32_tile, 2, LANES_F32)
TILE(tile_f16_1, f32_tile, 1, LANES_F16)
TILE(tile_f16_2, f32_tile, 2, LANES_F16)
TILE(tile_bf16_1, bf16_tile, 1)
TILE(tile_bf16_2, bf16_tile, 2)

TILE(tile_bf16_f32_1, f32_tile, 1, LANES_BF16)
TILE(tile_bf16_f32_2, f32_tile, 2, LANES_BF16)

/* Without bf16 instructions: bf16 weights with f32 activations. */
static tile_fn *const bf16_with_f32[] = { tile_bf16_f32_1, tile_bf16_f32_2 };

/* [kind][column blocks - 1] */
static tile_fn *const tiles[][2] = {
	[LANES_F32]  = { tile_f32_1, tile_f32_2 },
	[LANES_F16]  = { tile_f16_1, tile_f16_2 },
	[LANES_BF16] = { tile_bf16_1, tile_bf16_2 },
	[LANES_4M]   = { tile_4m },
	[LANES_4]    = { tile_4 },
	[LANES_8]    = { tile_8 },
	[LANES_8M]   = { tile_8m },
	[LANES_8H]   = { tile_8h },
	[LANES_8HM]  = { tile_8hm },
	[LANES_8HB]  = { tile_8hb },
};

/* Bytes of weights that a tile of one column block reads in one step through K. */
static size_t step_bytes(enum lanes_kind kind)
{
	switch (kind) {
	case LANES_F32:  return 128;
	case LANES_F16:
	case LANES_BF16: return 64;
	default:         return lanes_unit_bytes(kind);
	}
}

/* All rows by the inputs of t, which begin at group `first`.  Some of the first tiles prefetch, each its
 * part, of `part` bytes. */
static void all_rows(tile_fn *f, struct matmul_tile *t, const struct kern_rows *x, int32_t first, float *y,
                     int32_t fetchers, size_t part)
{
	for (int32_t r = 0; r < x->rows; r += KERN_TILE) {
		t->x = x->data + (size_t)(r / KERN_TILE) * x->tile_bytes + (size_t)first * lanes_group_bytes(x->form);
		t->y = y + (size_t)r * t->ld;
		f(x->rows - r < KERN_TILE ? x->rows - r : KERN_TILE, t);
		t->fetch = t->fetch && r / KERN_TILE + 1 < fetchers ? t->fetch + part : NULL;
	}
}

/* A block that is held compactly: some groups at a time become units, and sums stay in y in between.  Few
 * rows take few groups, so that units are multiplied while the next are on their way from memory. */
static void by_pieces(int32_t type, tile_fn *f, const struct matmul_tile *t, const struct kern_rows *x, float *y,
                      int32_t fetchers)
{
	_Alignas(64) uint8_t room[COMPACT_BYTES];
	const int32_t groups = t->k / GROUP, per = lanes_unit_groups(lanes_kind(type));
	const bool few = x->rows <= KERN_TILE;
	const size_t each = t->w_bytes / (size_t)groups;
	struct matmul_tile part = *t;

	part.fetch_lines = fetchers ? (int32_t)(each * (size_t)per / 64 / (size_t)fetchers) + 1 : 0;
	for (int32_t g = 0, n; g < groups; g += n) {
		n = compact_step(type, t->k, g, few);
		part.units = compact_expand(type, t->k, t->w, g, n, x->index, room);
		part.w = part.units.quants;
		part.k = n * GROUP;
		part.more = g > 0;
		part.bias = g + n == groups ? t->bias : NULL;
		part.fetch = t->fetch && x->form == FORM_I8 ? t->fetch + (size_t)g * each : NULL;
		all_rows(f, &part, x, g, y, fetchers, (size_t)(n / per * part.fetch_lines) * 64);
	}
}

/* Columns in the outer loop, rows in the inner one: the weights of a tile stay in L1 while the
 * activations stream from L2.  Meanwhile the first row tiles prefetch the next column block, in equal
 * parts: one tile alone would ask for more than memory delivers in its time, the others for nothing.
 * With few rows memory is the limit, and the machine's own prefetcher does better alone. */
void avx512_matmul(int32_t type, int32_t k, const uint8_t *blocks, int32_t n_blocks, int32_t n_cols,
                   const struct kern_rows *x, const float *bias, float *y, size_t ld, const uint8_t *next)
{
	const enum lanes_kind kind = lanes_kind(type);
	const int32_t n_tiles = (x->rows + KERN_TILE - 1) / KERN_TILE;
	const bool compact = compact_groups(type) > 0;
	const int32_t fetchers = x->rows < 4 ? 0 : n_tiles < FETCHERS ? n_tiles : FETCHERS;
	tile_fn *const *f = kind == LANES_BF16 && x->form == FORM_F32 ? bf16_with_f32 : tiles[kind];
	struct matmul_tile t = { .w = blocks, .w_bytes = lanes_block_bytes(type, k), .k = k, .ld = ld };
	int32_t cols;

	for (int32_t b = 0; b < n_blocks; b += cols, t.w += (size_t)cols * t.w_bytes) {
		int32_t real = n_cols - 16 * b;
		size_t step, part;

		cols = f[1] && b + 2 <= n_blocks && !compact ? 2 : 1;
		t.last = real >= 16 * cols ? 0xffff : (__mmask16)((1u << (real - 16 * (cols - 1))) - 1);
		t.bias = bias ? bias + 16 * b : NULL;
		t.fetch = !fetchers ? NULL : b + cols < n_blocks ? t.w + (size_t)cols * t.w_bytes : next;
		if (type == SR_Q4_K && n_tiles == 1) {
			t.fetch_lines = fetchers ? 5 : 0; /* 288 bytes a group */
			all_rows(tile_q4k, &t, x, 0, y + 16 * b, fetchers, 0);
			continue;
		}
		if (compact) {
			by_pieces(type, f[0], &t, x, y + 16 * b, fetchers);
			continue;
		}
		if (kind >= LANES_4M)
			t.units = lanes_run(kind, t.w);
		step = (size_t)cols * step_bytes(kind) / 64;
		t.fetch_lines = fetchers ? ((int32_t)step + fetchers - 1) / fetchers : 0;
		part = (size_t)cols * t.w_bytes / step * (size_t)t.fetch_lines;
		all_rows(f[cols - 1], &t, x, 0, y + 16 * b, fetchers, part);
	}
}
