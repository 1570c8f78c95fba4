/* lanes.c - packing for the vector tables (see lanes.h).  It is compiled for AVX2, so it may only be
 * called through a table that the machine can run.
 */
#include "lanes.h"

#include <assert.h>
#include <immintrin.h>

#include "compact.h"
#include "kvblock.h"

/* Eight vectors of eight dwords: rows become columns. */
static inline void transpose(__m256i v[8])
{
	__m256i a[8], b[8];

	for (int i = 0; i < 8; i += 2) {
		a[i]     = _mm256_unpacklo_epi32(v[i], v[i + 1]);
		a[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
	}
	for (int i = 0; i < 8; i += 4) {
		b[i]     = _mm256_unpacklo_epi64(a[i], a[i + 2]);
		b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
		b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
		b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
	}
	for (int i = 0; i < 4; i++) {
		v[i]     = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
		v[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
	}
}

/* ---- weights, at load ----------------------------------------------------------------------- */

static size_t units(enum lanes_kind kind, int32_t k)
{
	int per = lanes_unit_groups(kind);

	return (size_t)((k / GROUP + per - 1) / per);
}

size_t lanes_block_bytes(int32_t type, int32_t k)
{
	enum lanes_kind kind = lanes_kind(type);

	if (compact_groups(type))
		return compact_block_bytes(type, k);
	switch (kind) {
	case LANES_NONE: return 0;
	case LANES_F32:  return (size_t)k * KERN_COLS * 4;
	case LANES_F16:
	case LANES_BF16: return (size_t)k * KERN_COLS * 2;
	default:
		return units(kind, k) * lanes_unit_bytes(kind);
	}
}

/* Files hold Q4_1, Q4_0 and Q8_0 as lanes do, except for the place of each dword and the offset of Q8_0. */
static void pack_straight(int32_t type, int32_t k, const uint8_t *const src[KERN_COLS], uint8_t *dst)
{
	enum lanes_kind kind = lanes_kind(type);
	int per = lanes_unit_groups(kind), lines = (int)lanes_quants(kind) / 64;
	size_t bytes = types_bytes(type, GROUP), first = bytes - 4 * (size_t)lines;
	uint32_t flip = type == SR_Q8_0 ? 0x80808080 : 0;

	for (int32_t g = 0; g < k / GROUP; g++) {
		uint8_t *unit = dst + (size_t)(g / per) * lanes_unit_bytes(kind), *scales = unit + g % per * 32;
		uint8_t *quants = unit + LANES_SCALES + (size_t)(g % per) * lanes_quants(kind);

		for (int c = 0; c < KERN_COLS; c++) {
			const uint8_t *from = src[c];

			if (!from)
				continue;
			from += (size_t)g * bytes;
			memcpy(scales + 2 * c, from, 2);
			if (first == 4)
				memcpy(scales + 32 + 2 * c, from + 2, 2);
			for (int i = 0; i < lines; i++) {
				uint32_t four;

				memcpy(&four, from + first + 4 * i, 4);
				four ^= flip;
				memcpy(quants + 64 * i + 4 * c, &four, 4);
			}
		}
	}
}

/* F32, or BF16 as dwords of two inputs: a transpose. */
static void pack_dwords(int32_t dwords, const uint8_t *const src[KERN_COLS], uint8_t *dst)
{
	for (int32_t i = 0; i < dwords; i += 8)
		for (int half = 0; half < 2; half++) {
			__m256i v[8];

			for (int c = 0; c < 8; c++) {
				const uint8_t *row = src[8 * half + c];

				v[c] = _mm256_setzero_si256();
				if (row)
					memcpy(&v[c], row + 4 * (size_t)i, 32);
			}
			transpose(v);
			for (int j = 0; j < 8; j++) {
				void *to = dst + (size_t)(i + j) * 64 + 32 * half;

				_mm256_store_si256((__m256i *)to, v[j]);
			}
		}
}

static void pack_f16(int32_t k, const uint8_t *const src[KERN_COLS], uint8_t *dst)
{
	for (int32_t i = 0; i < k; i++)
		for (int c = 0; c < KERN_COLS; c++, dst += 2) {
			if (src[c])
				memcpy(dst, src[c] + 2 * (size_t)i, 2);
			else
				memset(dst, 0, 2);
		}
}

void lanes_pack(int32_t type, int32_t k, const uint8_t *const src[KERN_COLS], uint8_t *dst)
{
	assert(k % GROUP == 0);
	if (compact_groups(type)) {
		compact_pack(type, k, src, dst);
		return;
	}
	switch (lanes_kind(type)) {
	case LANES_F32:
		pack_dwords(k, src, dst);
		return;
	case LANES_BF16:
		pack_dwords(k / 2, src, dst);
		return;
	case LANES_F16:
		pack_f16(k, src, dst);
		return;
	default:
		memset(dst, 0, lanes_block_bytes(type, k)); /* a scale of 0: every weight is 0 */
		pack_straight(type, k, src, dst);
	}
}

/* Output c of a group in lanes; `scales` is the unit's, `quants` the group's. */
static void unpack_group(enum lanes_kind kind, const uint16_t *scales, const uint8_t *quants, int c,
                         int in_unit, float *dst)
{
	int offset = lanes_offset_bits(kind) ? 1 << lanes_offset_bits(kind) : 0;
	float d[2], m[2] = { 0 };

	d[0] = d[1] = f32_of_f16(scales[in_unit * KERN_COLS + c]);
	if (lanes_halves(kind))
		d[1] = f32_of_f16(scales[KERN_COLS + c]);
	if (kind == LANES_4M || kind == LANES_8M)
		m[0] = m[1] = f32_of_f16(scales[KERN_COLS + c]);
	for (int h = 0; h < 2 && kind == LANES_8HM; h++)
		m[h] = f32_of_f16(scales[(2 + h) * KERN_COLS + c]);
	for (int i = 0; i < GROUP; i++) {
		const uint8_t *at = quants + 4 * c + i % 4;
		int q = lanes_quants(kind) != 256 ? at[64 * (i / 4)]
		      : i < 16 ? at[64 * (i / 4)] & 15 : at[64 * (i / 4 - 4)] >> 4;

		dst[i] = d[i / 16] * (float)(q - offset) + m[i / 16];
	}
}

static float unpack_float(enum lanes_kind kind, const uint8_t *lines, int32_t i, int32_t c)
{
	const uint16_t *halves = (const uint16_t *)(const void *)lines;

	if (kind == LANES_F32)
		return ((const float *)(const void *)lines)[i * KERN_COLS + c];
	return kind == LANES_F16 ? f32_of_f16(halves[i * KERN_COLS + c])
	                         : f32_of_bf16(halves[(i / 2 * KERN_COLS + c) * 2 + i % 2]);
}

static void unpack_compact(int32_t type, int32_t k, const uint8_t *block, int32_t c, float *dst)
{
	enum lanes_kind kind = lanes_kind(type);
	int per = lanes_unit_groups(kind);
	_Alignas(64) uint8_t room[COMPACT_BYTES];

	for (int32_t first = 0, n; first < k / GROUP; first += n) {
		struct lanes_units u;

		n = compact_step(type, k, first, true);
		u = compact_expand(type, k, block, first, n, NULL, room);
		for (int32_t g = 0; g < n; g++) {
			float *to = dst + (first + g) * GROUP;

			if (types_quantized(type))
				unpack_group(kind, (const uint16_t *)(const void *)(u.scales + (size_t)(g / per) * u.scales_step),
					u.quants + (size_t)(g / per) * u.quants_step + (size_t)(g % per) * lanes_quants(kind), c,
					g % per, to);
			for (int32_t i = 0; i < GROUP; i++) {
				if (!types_quantized(type))
					to[i] = unpack_float(kind, u.quants, g * GROUP + i, c);
				to[i] *= u.of_all ? u.of_all[c] : 1;
			}
		}
	}
}

void lanes_unpack(int32_t type, int32_t k, const uint8_t *block, int32_t c, float *dst)
{
	enum lanes_kind kind = lanes_kind(type);
	int per = lanes_unit_groups(kind);
	struct lanes_units u = lanes_run(kind, block);

	if (compact_groups(type)) {
		unpack_compact(type, k, block, c, dst);
		return;
	}
	for (int32_t g = 0; types_quantized(type) && g < k / GROUP; g++)
		unpack_group(kind, (const uint16_t *)(const void *)(u.scales + (size_t)(g / per) * u.scales_step),
			u.quants + (size_t)(g / per) * u.quants_step + (size_t)(g % per) * lanes_quants(kind), c, g % per,
			dst + g * GROUP);
	for (int32_t i = 0; !types_quantized(type) && i < k; i++)
		dst[i] = unpack_float(kind, block, i, c);
}

/* ---- activations ---------------------------------------------------------------------------- */

size_t lanes_tile_bytes(enum kern_form form, int32_t k)
{
	switch (form) {
	case FORM_F32:  return (size_t)k * KERN_TILE * 4;
	case FORM_BF16: return (size_t)k * KERN_TILE * 2;
	default:        return (size_t)((k / GROUP + 1) / 2) * 2 * sizeof(struct lanes_group);
	}
}

/* Eight floats rounded to bf16, to nearest even, in the low halves of dwords; a NaN stays one. */
static inline __m256i to_bf16(__m256 x)
{
	__m256i u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16);
	__m256i even = _mm256_and_si256(high, _mm256_set1_epi32(1));
	__m256i rounded = _mm256_srli_epi32(
		_mm256_add_epi32(u, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff))), 16);
	__m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));

	return _mm256_blendv_epi8(rounded, _mm256_or_si256(high, _mm256_set1_epi32(64)), nan);
}

/* Sixteen floats as eight dwords of two bf16. */
static inline __m256i to_pairs(const float *x)
{
	__m256i p = _mm256_packus_epi32(to_bf16(_mm256_loadu_ps(x)), to_bf16(_mm256_loadu_ps(x + 8)));

	return _mm256_permute4x64_epi64(p, 0xd8);
}

/* One tile of FORM_F32 or FORM_BF16: eight dwords of eight rows at a time.  Rows past the last
 * are copies of it and are never read. */
static void tile_float(enum kern_form form, int32_t k, const float *x, size_t ld, int32_t rows, uint8_t *dst)
{
	int32_t step = form == FORM_BF16 ? 16 : 8;

	for (int32_t i = 0; i < k; i += step, dst += 8 * 32) {
		__m256i v[8];

		for (int r = 0; r < 8; r++) {
			const float *src = x + (size_t)(r < rows ? r : rows - 1) * ld + (size_t)i;

			v[r] = form == FORM_BF16 ? to_pairs(src) : _mm256_castps_si256(_mm256_loadu_ps(src));
		}
		transpose(v);
		for (int r = 0; r < 8; r++)
			_mm256_store_si256((__m256i *)(void *)(dst + 32 * r), v[r]);
	}
}

static inline int32_t sum8(__m256i v)
{
	__m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

	s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
	s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
	return _mm_cvtsi128_si32(s);
}

static inline uint32_t max8(__m256i v)
{
	__m128i s = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

	s = _mm_max_epu32(s, _mm_shuffle_epi32(s, 0x4e));
	s = _mm_max_epu32(s, _mm_shuffle_epi32(s, 0xb1));
	return (uint32_t)_mm_cvtsi128_si32(s);
}

/* 32 floats of row r to int8; if one is not finite, the scale becomes NaN. */
static inline void quantize(const float *x, struct lanes_group *dst, int r)
{
	const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
	__m256i most = _mm256_setzero_si256(), used, q[4];
	__m256 by;
	int32_t first, sum;

	for (int i = 0; i < 4; i++)
		most = _mm256_max_epu32(most, _mm256_and_si256(magnitude,
			_mm256_loadu_si256((const __m256i *)(const void *)(x + 8 * i))));
	by = _mm256_set1_ps(types_scale(max8(most), &dst->scale[r]));
	used = _mm256_castps_si256(_mm256_cmp_ps(by, _mm256_setzero_ps(), _CMP_GT_OQ));
	for (int i = 0; i < 4; i++) {
		__m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), by);

		q[i] = _mm256_and_si256(used, _mm256_cvtps_epi32(v));
	}
	first = sum8(_mm256_add_epi32(q[0], q[1]));
	sum = first + sum8(_mm256_add_epi32(q[2], q[3]));
	dst->scaled_sum[r] = dst->scale[r] * (float)sum;
	dst->minus_sum[r] = -sum;
	dst->minus_first[r] = -first;
	/* packs works on halves of a register: restore the order of the dwords */
	q[0] = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
	q[0] = _mm256_permutevar8x32_epi32(q[0], _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
	_mm256_store_si256((__m256i *)(void *)dst->q[r], q[0]);
}

static void tile_i8(int32_t k, const float *x, size_t ld, int32_t rows, struct lanes_group *dst)
{
	for (int32_t r = 0; r < rows; r++)
		for (int32_t g = 0; g < k / GROUP; g++)
			quantize(x + (size_t)r * ld + (size_t)g * GROUP, &dst[g], r);
	if (k / GROUP % 2)                        /* a unit without a second group */
		memset(&dst[k / GROUP], 0, sizeof *dst);
}

void lanes_make_rows(struct kern_rows *dst, const float *x, size_t ld, int32_t tile0, int32_t tile1)
{
	assert(dst->k % GROUP == 0);
	for (int32_t t = tile0; t < tile1; t++) {
		int32_t rest = dst->rows - t * KERN_TILE, rows = rest < KERN_TILE ? rest : KERN_TILE;
		const float *from = x + (size_t)t * KERN_TILE * ld;
		uint8_t *to = dst->data + (size_t)t * dst->tile_bytes;

		if (dst->form == FORM_I8)
			tile_i8(dst->k, from, ld, rows, (struct lanes_group *)(void *)to);
		else
			tile_float(dst->form, dst->k, from, ld, rows, to);
	}
}

/* ---- K and V -------------------------------------------------------------------------------- */

/* As kvblock.c stores it: NaN becomes 0, infinity the largest bf16. */
static inline __m256 bounded(__m256 x)
{
	const __m256 largest = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f7f0000));

	x = _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q));
	return _mm256_max_ps(_mm256_min_ps(x, largest), _mm256_sub_ps(_mm256_setzero_ps(), largest));
}

void lanes_kv_store(int32_t kv_type, int32_t E, int32_t at, const float *k, const float *v,
                    uint8_t *k_area, uint8_t *v_area)
{
	uint32_t *kd = (uint32_t *)(void *)k_area;
	uint8_t *vd;

	if (kv_type != SR_KV_BF16) {
		kvblock_store(kv_type, E, at, k, v, k_area, v_area);
		return;
	}
	for (int32_t e = 0; e < E; e += 16) {     /* dwords of two elements, one line apart */
		__m256i low = to_bf16(bounded(_mm256_loadu_ps(k + e)));
		__m256i high = to_bf16(bounded(_mm256_loadu_ps(k + e + 8)));
		uint32_t pair[8];

		low = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
		_mm256_storeu_si256((__m256i *)(void *)pair, low);
		for (int32_t i = 0; i < 8; i++)
			kd[(e / 2 + i) * KERN_BLOCK + at] = pair[i];
	}
	if (!v)
		return;
	vd = v_area + (size_t)(at / 2) * (size_t)E * 4;
	for (int32_t e = 0; e < E; e += 8) {      /* one half of a dword of two tokens */
		__m256i *to = (__m256i *)(void *)(vd + 4 * (size_t)e), old = _mm256_load_si256(to);
		__m256i new = to_bf16(bounded(_mm256_loadu_ps(v + e)));

		_mm256_store_si256(to, at % 2 ? _mm256_blend_epi16(old, _mm256_slli_epi32(new, 16), 0xaa)
		                              : _mm256_blend_epi16(old, new, 0x55));
	}
}
