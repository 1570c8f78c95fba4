/* compact.c - see compact.h.  Pure functions, compiled for AVX2: as lanes.c, they may only be called
 * through a table that the machine can run.
 */
#include "compact.h"

#include <assert.h>

#include "compact_impl.h"
#include "types.h"

struct layout {
	uint8_t  groups;              /* of a piece */
	uint16_t scales;              /* bytes before the groups */
	uint16_t group;               /* bytes of a group's quants */
	int8_t   offset;              /* makes the quants of types_group() unsigned */
};

INLINE const struct layout *layout_of(int32_t type)
{
	static const struct layout q4_k = { 8, 256, NIBBLES, 0 }, q5_k = { 8, 256, NIBBLES + BITS, 0 };
	static const struct layout q6_k = { 8, 288, NIBBLES + PAIRS, 32 }, q3_k = { 8, 224, PAIRS + BITS, 4 };
	static const struct layout iq4_xs = { 8, 128, NIBBLES, 0 }, iq4_nl = { 1, 32, NIBBLES, 0 };
	static const struct layout q5_0 = { 1, 32, NIBBLES + BITS, 16 }, q5_1 = { 1, 64, NIBBLES + BITS, 0 };
	static const struct layout mxfp4 = { 1, 16, NIBBLES, 0 }, q2_k = { 8, 320, PAIRS, 0 };
	static const struct layout iq2_xxs = { 8, 32, 128, 0 }, iq2_xs = { 8, 160, 128, 0 };
	static const struct layout iq2_s = { 8, 160, 144, 0 }, iq3_xxs = { 8, 32, 192, 0 }, iq3_s = { 8, 96, 208, 0 };

	switch (type) {
	case SR_Q4_K:   return &q4_k;
	case SR_Q5_K:   return &q5_k;
	case SR_Q6_K:   return &q6_k;
	case SR_Q3_K:   return &q3_k;
	case SR_IQ4_XS: return &iq4_xs;
	case SR_IQ4_NL: return &iq4_nl;
	case SR_Q5_0:   return &q5_0;
	case SR_Q5_1:   return &q5_1;
	case SR_MXFP4:  return &mxfp4;
	case SR_Q2_K:   return &q2_k;
	case SR_IQ2_XXS: return &iq2_xxs;
	case SR_IQ2_XS: return &iq2_xs;
	case SR_IQ2_S:  return &iq2_s;
	case SR_IQ3_XXS: return &iq3_xxs;
	case SR_IQ3_S:  return &iq3_s;
	}
	return NULL;
}

/* Bytes of the scales of all k inputs: where a block's quants begin. */
INLINE size_t scales_bytes(const struct layout *l, int32_t k)
{
	return (size_t)(k / GROUP / l->groups) * l->scales;
}

int compact_groups(int32_t type)
{
	const struct layout *l = layout_of(type);

	return l ? l->groups : types_piece(type) / GROUP;
}

int32_t compact_step(int32_t type, int32_t k, int32_t first, bool few)
{
	int32_t rest = k / GROUP - first, most = few ? COMPACT_MOST : COMPACT_ROOM, piece = types_piece(type) / GROUP;

	switch (types_base(type)) {
	case HELD_I8:                  /* its units lie in the block */
		return rest;
	case HELD_F8: case HELD_F8_BLOCK: case HELD_NVFP4:
		rest = piece - first % piece < rest ? piece - first % piece : rest;
		most = COMPACT_MOST;
		break;
	case HELD_U4_ORDER:
		most = COMPACT_MOST;
	}
	return rest < most ? rest : most;
}

size_t compact_block_bytes(int32_t type, int32_t k)
{
	const struct layout *l = layout_of(type);

	if (!l)
		return compact_held_bytes(type, k);
	return (scales_bytes(l, k) + (size_t)(k / GROUP) * l->group + 63) & ~(size_t)63;
}

/* ---- at load -------------------------------------------------------------------------------- */

static const int8_t iq4[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
const int8_t compact_e2m1[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

static const int8_t *values_of(int32_t type)
{
	return type == SR_IQ4_XS || type == SR_IQ4_NL ? iq4 : type == SR_MXFP4 ? compact_e2m1 : NULL;
}

/* The scales of a piece: n bytes at `from` of the stored block, byte i of output c to dst[width * c + i] or,
 * spread, to dst[16 * i + c]. */
static uint8_t *put_scales(uint8_t *dst, const uint8_t *stored, int c, int from, int n, bool spread)
{
	for (int i = 0; i < n; i++)
		dst[spread ? KERN_COLS * i + c : n * c + i] = stored[from + i];
	return dst + KERN_COLS * n;
}

static void pack_scales(int32_t type, const uint8_t *stored, int c, uint8_t *dst)
{
	switch (type) {
	case SR_Q4_K: case SR_Q5_K:
		dst = put_scales(dst, stored, c, 0, 2, false);
		dst = put_scales(dst, stored, c, 2, 2, false);
		put_scales(dst, stored, c, 4, 12, true);
		return;
	case SR_Q6_K:
		dst = put_scales(dst, stored, c, 192, 16, true);
		put_scales(dst, stored, c, 208, 2, false);
		return;
	case SR_Q3_K:
		dst = put_scales(dst, stored, c, 96, 12, true);
		put_scales(dst, stored, c, 108, 2, false);
		return;
	case SR_IQ4_XS:
		dst = put_scales(dst, stored, c, 0, 2, false);
		put_scales(dst, stored, c, 2, 6, true);
		return;
	case SR_Q2_K:
		dst = put_scales(dst, stored, c, 80, 2, false);
		dst = put_scales(dst, stored, c, 82, 2, false);
		put_scales(dst, stored, c, 0, 16, true);
		return;
	case SR_IQ2_XS: case SR_IQ2_S: case SR_IQ3_S:
		dst = put_scales(dst, stored, c, 0, 2, false);
		put_scales(dst, stored, c, type == SR_IQ2_XS ? 66 : type == SR_IQ2_S ? 74 : 106, type == SR_IQ3_S ? 4 : 8, true);
		return;
	case SR_MXFP4:
		put_scales(dst, stored, c, 0, 1, false);
		return;
	default:
		dst = put_scales(dst, stored, c, 0, 2, false);
		if (type == SR_Q5_1)
			put_scales(dst, stored, c, 2, 2, false);
	}
}

/* `bits` bits of the 32 quants of output c from bit `from` on, `bits` 1 or 2. */
static void pack_high(const uint8_t *q, int c, int from, int bits, uint8_t *dst)
{
	int per = 8 / bits;

	for (int i = 0; i < GROUP; i++) {
		int line = i / 4, part = (q[i] >> from) & ((1 << bits) - 1);

		dst[64 * (line / per) + 4 * c + i % 4] |= (uint8_t)(part << bits * (line % per));
	}
}

static void pack_quants(int32_t type, const uint8_t *q, int c, uint8_t *dst)
{
	if (type == SR_Q3_K || type == SR_Q2_K) {
		pack_high(q, c, 0, 2, dst);
		if (type == SR_Q3_K)
			pack_high(q, c, 2, 1, dst + PAIRS);
		return;
	}
	for (int i = 0; i < 16; i++)
		dst[64 * (i / 4) + 4 * c + i % 4] = (uint8_t)((q[i] & 15) | q[i + 16] << 4);
	if (type == SR_Q6_K)
		pack_high(q, c, 4, 2, dst + NIBBLES);
	else if (type != SR_Q4_K && !values_of(type))
		pack_high(q, c, 4, 1, dst + NIBBLES);
}

static bool of_sets(int32_t type)
{
	return type >= SR_IQ2_XXS && type <= SR_IQ3_S;
}

void compact_pack(int32_t type, int32_t k, const uint8_t *const src[KERN_COLS], uint8_t *dst)
{
	const struct layout *l = layout_of(type);
	const int8_t *values = values_of(type);
	uint8_t index[256] = { 0 };

	for (int i = 15; values && i >= 0; i--)
		index[(uint8_t)values[i]] = (uint8_t)i;
	memset(dst, 0, compact_block_bytes(type, k));
	if (!l) {
		compact_held_pack(type, k, src, dst);
		return;
	}
	for (int32_t g = 0; g < k / GROUP; g++)
		for (int c = 0; c < KERN_COLS; c++) {
			uint8_t *to = dst + scales_bytes(l, k) + (size_t)g * l->group, q[GROUP];
			const uint8_t *stored;
			struct group w;

			if (!src[c])
				continue;         /* zero scales: every weight is 0 */
			stored = src[c] + (size_t)(g / l->groups) * types_bytes(type, GROUP * l->groups);
			if (g % l->groups == 0)
				pack_scales(type, stored, c, dst + (size_t)(g / l->groups) * l->scales);
			if (of_sets(type)) {
				compact_iq_pack(type, stored, g % l->groups, c, to);
				continue;
			}
			types_group(type, src[c], g, &w);
			for (int i = 0; i < GROUP; i++)
				q[i] = values ? index[(uint8_t)w.q[i]] : (uint8_t)(w.q[i] + l->offset);
			pack_quants(type, q, c, to);
		}
}

/* ---- before products ------------------------------------------------------------------------ */

/* Nibbles and a fifth bit, and `add` more. */
INLINE void five_bits(const uint8_t *from, const int add, uint8_t *to)
{
	UNROLL
	for (int half = 0; half < 64; half += 32) {
		__m256i high = load(from + NIBBLES + half);

		UNROLL
		for (int j = 0; j < 4; j++) {
			__m256i v = load(from + 64 * j + half);
			__m256i a = _mm256_or_si256(moved(v, 0, 15), moved(high, 4 - j, 16));
			__m256i b = _mm256_or_si256(moved(v, -4, 15), moved(high, -j, 16));

			put(to + 64 * j + half, add ? _mm256_add_epi8(a, bytes(add)) : a);
			put(to + 64 * (j + 4) + half, add ? _mm256_add_epi8(b, bytes(add)) : b);
		}
	}
}

/* Nibbles and two more bits. */
INLINE void six_bits(const uint8_t *from, uint8_t *to)
{
	UNROLL
	for (int half = 0; half < 64; half += 32) {
		__m256i low = load(from + NIBBLES + half), high = load(from + NIBBLES + 64 + half);

		UNROLL
		for (int j = 0; j < 4; j++) {
			__m256i v = load(from + 64 * j + half);

			put(to + 64 * j + half, _mm256_or_si256(moved(v, 0, 15), moved(low, 4 - 2 * j, 48)));
			put(to + 64 * (j + 4) + half,
				_mm256_or_si256(moved(v, -4, 15), moved(high, 4 - 2 * j, 48)));
		}
	}
}

INLINE void two_bits(const uint8_t *from, uint8_t *to)
{
	UNROLL
	for (int half = 0; half < 64; half += 32)
		UNROLL
		for (int j = 0; j < 8; j++)
			put(to + 64 * j + half, moved(load(from + j / 4 * 64 + half), -2 * (j % 4), 3));
}

/* Two bits and a third, which is 1 if 4 is not to be taken away; lanes hold 32 more. */
INLINE void three_bits(const uint8_t *from, uint8_t *to)
{
	UNROLL
	for (int half = 0; half < 64; half += 32) {
		__m256i high = load(from + PAIRS + half);

		UNROLL
		for (int j = 0; j < 8; j++) {
			__m256i low = moved(load(from + j / 4 * 64 + half), -2 * (j % 4), 3);

			put(to + 64 * j + half, _mm256_add_epi8(bytes(28), _mm256_or_si256(low, moved(high, 2 - j, 4))));
		}
	}
}

INLINE __m128i bits_up(const uint8_t *s, const int up, const int mask)
{
	return _mm_and_si128(_mm_slli_epi16(load16(s), up), _mm_set1_epi8((char)mask));
}

/* The scale and the minimum of group j; Q4_K and Q5_K store the minima's negative. */
INLINE void scales_45(const uint8_t *s, int j, uint8_t *to)
{
	const __m256 minus = _mm256_set1_ps(-0.0f);
	__m256 d0 = _mm256_cvtph_ps(load16(s)), d1 = _mm256_cvtph_ps(load16(s + 16));
	__m256 m0 = _mm256_xor_ps(_mm256_cvtph_ps(load16(s + 32)), minus);
	__m256 m1 = _mm256_xor_ps(_mm256_cvtph_ps(load16(s + 48)), minus);
	__m128i scale, min;

	compact_scales_45(s, j, &scale, &min);
	put_products(to, d0, d1, scale);
	put_products(to + 32, m0, m1, min);
}

/* d0, d1, m0, m1; minima are stored negative. */
INLINE void scales_2(const uint8_t *s, int j, uint8_t *to)
{
	const __m256 minus = _mm256_set1_ps(-0.0f);
	__m256 d0 = _mm256_cvtph_ps(load16(s)), d1 = _mm256_cvtph_ps(load16(s + 16));
	__m256 m0 = _mm256_xor_ps(_mm256_cvtph_ps(load16(s + 32)), minus);
	__m256 m1 = _mm256_xor_ps(_mm256_cvtph_ps(load16(s + 48)), minus);

	for (int h = 0; h < 2; h++) {
		const uint8_t *at = s + 64 + 16 * (2 * j + h);

		put_products(to + 32 * h, d0, d1, compact_bits(at, 0, 15));
		put_products(to + 64 + 32 * h, m0, m1, compact_bits(at, 4, 15));
	}
}

INLINE void scales_6(const uint8_t *s, int j, uint8_t *to)
{
	__m256 d0 = _mm256_cvtph_ps(load16(s + 256)), d1 = _mm256_cvtph_ps(load16(s + 272));

	put_products(to, d0, d1, load16(s + 32 * j));
	put_products(to + 32, d0, d1, load16(s + 32 * j + 16));
}

INLINE void scales_3(const uint8_t *s, int j, uint8_t *to)
{
	__m256 d0 = _mm256_cvtph_ps(load16(s + 192)), d1 = _mm256_cvtph_ps(load16(s + 208));

	for (int at = 2 * j; at < 2 * j + 2; at++, to += 32) {
		const uint8_t *high = s + 16 * (8 + at % 4);
		__m128i low = at < 8 ? compact_bits(s + 16 * at, 0, 15) : compact_bits(s + 16 * (at - 8), 4, 15);
		__m128i top = at < 4 ? bits_up(high, 4, 48) : at < 8 ? bits_up(high, 2, 48)
		            : at < 12 ? compact_bits(high, 0, 48) : compact_bits(high, 2, 48);

		put_products(to, d0, d1, _mm_sub_epi8(_mm_or_si128(low, top), _mm_set1_epi8(32)));
	}
}

INLINE void scales_iq4(const uint8_t *s, int j, uint8_t *to)
{
	const uint8_t *high = s + 32 + 16 * (j / 4), *low = s + 64 + 16 * (j / 2);
	__m128i top = j % 4 == 0 ? bits_up(high, 4, 48) : j % 4 == 1 ? bits_up(high, 2, 48)
	            : j % 4 == 2 ? compact_bits(high, 0, 48) : compact_bits(high, 2, 48);

	put_products(to, _mm256_cvtph_ps(load16(s)), _mm256_cvtph_ps(load16(s + 16)),
		_mm_sub_epi8(_mm_or_si128(j % 2 ? compact_bits(low, 4, 15) : compact_bits(low, 0, 15), top), _mm_set1_epi8(32)));
}

/* 2^(e - 128); below what f16 can hold it is 0, as f16_of_f32() makes it. */
INLINE void scales_mx(const uint8_t *s, uint8_t *to)
{
	for (int i = 0; i < 2; i++) {
		__m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(s + 8 * i)));
		__m256i some = _mm256_cmpgt_epi32(e, _mm256_setzero_si256());

		e = _mm256_and_si256(some, _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23));
		_mm_store_si128((__m128i *)(void *)(to + 16 * i), _mm256_cvtps_ph(_mm256_castsi256_ps(e), 0));
	}
}

/* The scales of group j of a piece, to its place in the line of its unit. */
INLINE void expand_scales(const int32_t type, const uint8_t *piece, int j, uint8_t *to)
{
	switch (type) {
	case SR_Q4_K: case SR_Q5_K: scales_45(piece, j, to); return;
	case SR_Q6_K:   scales_6(piece, j, to); return;
	case SR_Q3_K:   scales_3(piece, j, to); return;
	case SR_IQ4_XS: scales_iq4(piece, j, to); return;
	case SR_MXFP4:  scales_mx(piece, to); return;
	case SR_Q2_K:   scales_2(piece, j, to); return;
	default:        memcpy(to, piece, type == SR_Q5_1 ? 64 : 32);
	}
}

INLINE void expand_quants(const int32_t type, const uint8_t *from, uint8_t *to)
{
	switch (type) {
	case SR_Q5_K: case SR_Q5_1: five_bits(from, 0, to); return;
	case SR_Q6_K:  six_bits(from, to); return;
	case SR_Q3_K:  three_bits(from, to); return;
	case SR_Q2_K:  two_bits(from, to); return;
	case SR_IQ4_XS: case SR_IQ4_NL: look_up(iq4, 128, from, to); return;
	case SR_MXFP4: look_up(compact_e2m1, 128, from, to); return;
	default:       five_bits(from, 128 - 16, to);
	}
}

INLINE struct lanes_units expand(const int32_t type, int32_t k, const uint8_t *block, int32_t first, int32_t n,
                                 uint8_t *room)
{
	const struct layout *l = layout_of(type);
	const enum lanes_kind kind = lanes_kind(type);
	const bool in_place = type == SR_Q4_K, few = n <= COMPACT_MOST;
	const int per = lanes_unit_groups(kind);
	const uint8_t *piece = block + (size_t)(first / l->groups) * l->scales;
	const uint8_t *from = block + scales_bytes(l, k) + (size_t)first * l->group;
	struct lanes_units u = lanes_run(kind, room);

	if (in_place)
		u = (struct lanes_units){ room, from, LANES_SCALES, NIBBLES, NULL };
	for (int32_t g = 0; g < n; piece += l->scales)
		for (int j = 0; j < l->groups && g < n; j++, g++, from += l->group) {
			uint8_t *unit = room + (size_t)(g / per) * u.scales_step, *scales = unit + g % per * 32;
			uint8_t *quants = unit + lanes_scales(kind) + (size_t)(g % per) * lanes_quants(kind);

			for (int i = 0; few && i < l->group; i += 64)
				_mm_prefetch((const char *)from + (size_t)COMPACT_MOST * l->group + i, _MM_HINT_T0);
			if (of_sets(type)) {
				compact_iq_expand(type, piece, j, from, scales, quants);
				continue;
			}
			expand_scales(type, piece, j, scales);
			if (!in_place)
				expand_quants(type, from, quants);
		}
	if (n % per)              /* a unit without a second group */
		memset(room + (size_t)(n / per) * u.scales_step + 32, 0, 32);
	return u;
}

struct lanes_units compact_expand(int32_t type, int32_t k, const uint8_t *block, int32_t first, int32_t n,
                                  const uint16_t *index, uint8_t *room)
{
	if (types_piece(type))
		return compact_held_expand(type, k, block, first, n, index, room);
	switch (type) {
#define CASE(t) case t: return expand(t, k, block, first, n, room)
	CASE(SR_Q4_K);
	CASE(SR_Q5_K);
	CASE(SR_Q6_K);
	CASE(SR_Q3_K);
	CASE(SR_IQ4_XS);
	CASE(SR_IQ4_NL);
	CASE(SR_Q5_0);
	CASE(SR_Q5_1);
	CASE(SR_MXFP4);
	CASE(SR_Q2_K);
	CASE(SR_IQ2_XXS);
	CASE(SR_IQ2_XS);
	CASE(SR_IQ2_S);
	CASE(SR_IQ3_XXS);
	CASE(SR_IQ3_S);
#undef CASE
	}
	assert(!"a type that compact_groups() knows");
	return (struct lanes_units){ 0 };
}
