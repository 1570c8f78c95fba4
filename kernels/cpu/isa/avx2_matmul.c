/* avx2_matmul.c - matrix products for AVX2 with FMA.  Layouts: lanes.h.
 *
 * A tile is 1..4 rows by 8 outputs (quantized weights) or 16 (float ones); it walks K once, from the
 * first input to the last, and keeps its sums in registers.
 *
 * There is no VNNI: vpmaddubsw multiplies u8 with s8 and adds neighbours to i16, saturating.  With
 * activations of at most 127 these bounds keep it exact:
 *
 *	4 bits       15 * 127 * 2 * 8 steps = 30480: a group's eight steps fit i16
 *	up to 31     31 * 127 * 2 * 4 steps = 31496: four steps fit
 *	up to 63     63 * 127 * 2 * 2 steps = 32004: two steps fit
 *	8 bits       |w| <= 128 as u8, its sign moved to the activation: 128 * 127 * 2 = 32512: one step fits
 *
 * Where quants are known to be at most `low` from their offset, they are multiplied as w + low, of u8.
 */
#include "avx2_tile.h"
#include "kernels/cpu/compact_unpack.h"

/* ---- quantized weights, int8 activations ---------------------------------------------------- */

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

/* Adds lines from .. from + lines - 1 of eight-bit quants to the sums of both halves.  base is what a line has too much;
 * fit: how many lines are added in words, or 0 for signed quants, which have an offset of 128. */
INLINE void sum8(const int rows, const int fit, const int base, __m256i sum[2][AVX2_ROWS], const uint8_t *quants,
                 const struct lanes_group *x, int first, const int from, const int lines)
{
	const int step = fit ? fit : 1;
	__m256i words[2][AVX2_ROWS];

	UNROLL
	for (int j = from; j < from + lines; j++)
		UNROLL
		for (int h = 0; h < 2; h++) {
			__m256i w = load256(quants + 64 * j + 32 * h), size;

			w = fit ? _mm256_sub_epi8(w, _mm256_set1_epi8((char)base)) : _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80));
			size = fit ? w : _mm256_abs_epi8(w);
			UNROLL
			for (int r = 0; r < rows; r++) {
				__m256i v = four(x, first + r, j);

				v = _mm256_maddubs_epi16(size, fit ? v : _mm256_sign_epi8(v, w));
				words[h][r] = j % step ? in_order(_mm256_add_epi16(words[h][r], v)) : v;
				if (j % step == step - 1)
					sum[h][r] = in_order(_mm256_add_epi32(sum[h][r],
						_mm256_madd_epi16(words[h][r], _mm256_set1_epi16(1))));
			}
		}
}

/* Where the sums of inputs from .. begin: what takes an offset of `low` away. */
INLINE __m256i without(const int low, const struct lanes_group *x, int r, const bool halves, const int from)
{
	__m256i minus = _mm256_set1_epi32(halves && !from ? x->minus_first[r] : x->minus_sum[r]);

	if (from)
		minus = _mm256_sub_epi32(minus, _mm256_set1_epi32(x->minus_first[r]));
	return low ? _mm256_mullo_epi32(minus, _mm256_set1_epi32(low)) : _mm256_setzero_si256();
}

/* The minima of the halves of a group. */
INLINE void add_minima(const int rows, const uint8_t *unit, const struct lanes_group *x, int first, __m256 *acc)
{
	UNROLL
	for (int r = 0; r < rows; r++) {
		__m256i before = _mm256_set1_epi32(x->minus_first[first + r]), all = _mm256_set1_epi32(x->minus_sum[first + r]);
		__m256 scale = _mm256_set1_ps(x->scale[first + r]);
		__m256 a = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(before));
		__m256 b = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_sub_epi32(all, before)));

		UNROLL
		for (int h = 0; h < 2; h++)
			acc[2 * r + h] = _mm256_fnmadd_ps(scales(unit, 3, h), b,
				_mm256_fnmadd_ps(scales(unit, 2, h), a, acc[2 * r + h]));
	}
}

INLINE void add_group(const int rows, const enum lanes_kind kind, const int fit, const int low, const uint8_t *unit,
                      const uint8_t *quants, const int in_unit, const struct lanes_group *x, int first, __m256 *acc)
{
	const int bits = lanes_offset_bits(kind), base = bits ? (1 << bits) - low : 0, parts = lanes_halves(kind) ? 2 : 1;
	__m256i sum[2][AVX2_ROWS];

	UNROLL
	for (int part = 0; part < parts; part++) {
		UNROLL
		for (int r = 0; r < rows; r++)
			sum[0][r] = sum[1][r] = without(low, x, first + r, parts == 2, 4 * part);
		sum8(rows, fit, base, sum, quants, x, first, 4 * part, 8 / parts);
		UNROLL
		for (int h = 0; h < 2; h++) {
			__m256 d = scales(unit, in_unit + part, h);

			UNROLL
			for (int r = 0; r < rows; r++)
				scale_add(1, &acc[2 * r + h], &sum[h][r], d, x, first + r);
		}
	}
	if (kind == LANES_8HM)
		add_minima(rows, unit, x, first, acc);
	if (kind != LANES_8M)
		return;
	UNROLL
	for (int i = 0; i < 2 * rows; i++)
		acc[i] = _mm256_fmadd_ps(scales(unit, 1, i % 2), _mm256_set1_ps(x->scaled_sum[first + i / 2]), acc[i]);
}

/* Rows by a block of eight-bit quants.  With more than two rows sums stay in memory, as in tile4(). */
INLINE void quant_tile(const int rows, const enum lanes_kind kind, const int fit, const int low,
                       const struct matmul_tile *t)
{
	const int per = lanes_unit_groups(kind);
	const struct lanes_group *x = (const struct lanes_group *)(const void *)t->x;
	const uint8_t *s = t->units.scales, *q = t->units.quants;
	__m256 sums[2 * AVX2_ROWS], *acc = sums;

	if (rows > 2)
		__asm__("" : "+r"(acc) : : "memory");
	UNROLL
	for (int i = 0; i < 2 * rows; i++)
		acc[i] = begin(t, i / 2, i % 2);
	for (int32_t g = 0; g < t->k / GROUP; g += per, x += per) {
		if (t->fetch)
			fetch_ahead(q, AHEAD, per * lanes_quants(kind));
		UNROLL
		for (int i = 0; i < per; i++) {
			add_group(rows, kind, fit, low, s, q + (size_t)i * lanes_quants(kind), i, x + i, t->first, acc);
			if (rows > 2)
				__asm__("" : "+r"(acc) : : "memory");
		}
		s += t->units.scales_step;
		q += t->units.quants_step;
	}
	UNROLL
	for (int i = 0; i < 2 * rows; i++)
		store(t, i / 2, i % 2, acc[i]);
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

/* Few rows by a block of HELD_U4: the scales of a piece are made once. */
INLINE void u4_tile(const int rows, const struct matmul_tile *t)
{
	const int32_t per = types_piece(t->type) / GROUP, groups = t->k / GROUP;
	const struct lanes_group *x = (const struct lanes_group *)(const void *)t->x;
	const uint8_t *q = t->w + compact_held_quants(t->type, t->k);
	_Alignas(64) uint8_t s[LANES_SCALES] = { 0 };
	__m256 sums[2 * AVX2_ROWS], *acc = sums;

	if (rows > 2)
		__asm__("" : "+r"(acc) : : "memory");
	UNROLL
	for (int i = 0; i < 2 * rows; i++)
		acc[i] = begin(t, i / 2, i % 2);
	for (int32_t g = 0; g < groups; g++, x++, q += NIBBLES) {
		if (t->fetch)
			fetch_ahead(q, AHEAD_4, NIBBLES);
		if (g % per == 0)
			scales_u4(t->w + (size_t)(g / per) * 40, s);
		add_group4(rows, LANES_4M, false, s, 0, q, x, t->first, acc);
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

TILE(tile_4m, tile4, LANES_4M, false)
TILE(tile_4, tile4, LANES_4, false)
TILE(tile_q4k, tile4, LANES_4M, true)
TILE(tile_8, quant_tile, LANES_8, 0, 0)
TILE(tile_8m, quant_tile, LANES_8M, 4, 0)
TILE(tile_8hm, quant_tile, LANES_8HM, 4, 0)
TILE(tile_q6_k, quant_tile, LANES_8H, 2, 32)
TILE(tile_q3_k, quant_tile, LANES_8H, 4, 4)
TILE(tile_nvfp4, quant_tile, LANES_8H, 4, 12)
TILE(tile_q5_0, quant_tile, LANES_8, 4, 16)
TILE(tile_mxfp4, quant_tile, LANES_8, 4, 12)
TILE(tile_iq3_s, quant_tile, LANES_8, 4, 15)
TILE(tile_iq3_xxs, quant_tile, LANES_8, 1, 62)
TILE(tile_iq2_xxs, quant_tile, LANES_8, 1, 43)
TILE(tile_iq2, quant_tile, LANES_8HB, 1, 43)

static __attribute__((noinline)) void tile_u4(int32_t rows, const struct matmul_tile *t)
{
	FOR_ROWS(rows, u4_tile, t)
}

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

static avx2_tile_fn *tile_of(int32_t type)
{
	static avx2_tile_fn *const of_kind[] = {
		[LANES_F32] = tile_f32, [LANES_F16] = tile_f16, [LANES_BF16] = tile_bf16, [LANES_4M] = tile_4m,
		[LANES_4] = tile_4, [LANES_8] = tile_8, [LANES_8M] = tile_8m, [LANES_8HM] = tile_8hm,
	};

	switch (type) {
	case SR_Q6_K:    return tile_q6_k;
	case SR_Q3_K:    return tile_q3_k;
	case SR_Q5_0:    return tile_q5_0;
	case SR_MXFP4:   return tile_mxfp4;
	case SR_IQ3_S:   return tile_iq3_s;
	case SR_IQ3_XXS: return tile_iq3_xxs;
	case SR_IQ2_XXS: return tile_iq2_xxs;
	case SR_IQ2_XS: case SR_IQ2_S: return tile_iq2;
	}
	return types_base(type) == HELD_NVFP4 ? tile_nvfp4 : of_kind[lanes_kind(type)];
}

/* All rows by the inputs of t, which begin at group `first`.  The first tile prefetches. */
static void all_rows(avx2_tile_fn *f, struct matmul_tile *t, const struct kern_rows *x, int32_t first, float *y)
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
static void by_pieces(int32_t type, avx2_tile_fn *f, const struct matmul_tile *t, const struct kern_rows *x, float *y)
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
	avx2_tile_fn *f = tile_of(type);
	size_t block = lanes_block_bytes(type, k);
	const bool f8 = types_base(type) == HELD_F8 || types_base(type) == HELD_F8_BLOCK;
	avx2_tile_fn *few = f8 && x->rows <= AVX2_ROWS ? avx2_f8 : avx2_few(type, x->rows);
	pair_fn *pair = x->rows != 1 ? NULL : f8 ? avx2_f8_pair : compact_groups(type) ? NULL : pairs[kind];
	struct matmul_tile t = { .w_bytes = block, .type = type, .k = k, .ld = ld };

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
		} else if (types_base(type) == HELD_U4 && x->rows <= AVX2_ROWS) {
			t.fetch = true;
			all_rows(tile_u4, &t, x, 0, y + 16 * b);
		} else if (few) {
			t.fetch = true;
			all_rows(few, &t, x, 0, y + 16 * b);
		} else if (compact_groups(type)) {
			t.fetch = types_base(type) == HELD_I8; /* its units lie in the block */
			by_pieces(type, f, &t, x, y + 16 * b);
		} else {
			t.fetch = true;
			t.units = lanes_run(kind, t.w);
			all_rows(f, &t, x, 0, y + 16 * b);
		}
	}
}
