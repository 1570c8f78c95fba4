/* compact_held.c - matrices whose scales lie apart, as compact.h and types.h say, for compact.c.  Pure functions,
 * compiled for AVX2.
 */
#include "compact_unpack.h"

/* Bytes of a group's quants, and of the scales of a piece. */
static void layout_of(int32_t type, size_t *scales, size_t *quants)
{
	switch (types_base(type)) {
	case HELD_U4: case HELD_U4_ORDER:
		*scales = 40;
		*quants = NIBBLES;
		return;
	case HELD_I8:
		*scales = 32;
		*quants = 512;
		return;
	case HELD_NVFP4:
		*scales = 64;
		*quants = 32 + NIBBLES;
		return;
	default:
		*scales = types_base(type) == HELD_F8 ? 64 : 4;
		*quants = 512;
	}
}

/* Where a block's quants begin: after the scales of all pieces. */
static size_t quants_from(int32_t type, int32_t k, size_t scales)
{
	return ((size_t)(k / types_piece(type)) * scales + 63) & ~(size_t)63;
}

size_t compact_held_quants(int32_t type, int32_t k)
{
	size_t scales, quants;

	layout_of(type, &scales, &quants);
	return quants_from(type, k, scales);
}

size_t compact_held_bytes(int32_t type, int32_t k)
{
	size_t scales, quants, groups = (size_t)(k / GROUP);

	layout_of(type, &scales, &quants);
	if (types_base(type) == HELD_I8)
		groups += groups % 2;  /* its units have two groups */
	return (quants_from(type, k, scales) + groups * quants + 63) & ~(size_t)63;
}

/* ---- at load -------------------------------------------------------------------------------- */

/* The head of a piece of output c. */
static void pack_head(int32_t type, const uint8_t *from, int c, uint8_t *dst)
{
	switch (types_base(type)) {
	case HELD_U4: case HELD_U4_ORDER:
		memcpy(dst + 2 * c, from, 2);
		dst[32 + c % 8] |= (uint8_t)((from[2] & 15) << (c < 8 ? 0 : 4));
		return;
	case HELD_I8:
		memcpy(dst + 2 * c, from, 2);
		return;
	case HELD_F8_BLOCK:
		memcpy(dst, from, 4);
		return;
	default:
		memcpy(dst + 4 * c, from, 4);
	}
}

/* 32 quants of output c. */
static void pack_quants(int32_t type, const uint8_t *from, int c, uint8_t *dst)
{
	switch (types_base(type)) {
	case HELD_NVFP4:
		dst[c] = from[0];
		dst[16 + c] = from[1];
		from += 2;
		dst += 32;
		/* fall through */
	case HELD_U4:
		for (int i = 0; i < 16; i++)
			dst[64 * (i / 4) + 4 * c + i % 4] = from[i];
		return;
	case HELD_U4_ORDER:
		for (int i = 0; i < GROUP; i++)
			dst[8 * i + c % 8] |= (uint8_t)((from[i % 16] >> (i < 16 ? 0 : 4) & 15) << (c < 8 ? 0 : 4));
		return;
	case HELD_I8:
		for (int i = 0; i < GROUP; i++)
			dst[64 * (i / 4) + 4 * c + i % 4] = from[i] ^ 0x80;
		return;
	default:
		for (int i = 0; i < GROUP; i++)
			dst[16 * i + c] = from[i];
	}
}

void compact_held_pack(int32_t type, int32_t k, const uint8_t *const src[KERN_COLS], uint8_t *dst)
{
	const int32_t piece = types_piece(type), per = piece / GROUP;
	const size_t stored = types_bytes(type, piece);
	size_t scales, quants, head, each;

	layout_of(type, &scales, &quants);
	types_held(type, &head, &each);
	for (int c = 0; c < KERN_COLS; c++)
		for (int32_t g = 0; src[c] && g < k / GROUP; g++) {
			const uint8_t *from = src[c] + (size_t)(g / per) * stored;

			if (g % per == 0)
				pack_head(type, from, c, dst + (size_t)(g / per) * scales);
			pack_quants(type, from + head + (size_t)(g % per) * each, c,
				dst + quants_from(type, k, scales) + (size_t)g * quants);
		}
}

/* ---- before products ------------------------------------------------------------------------ */

static void fetch_next(const uint8_t *from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 64)
		_mm_prefetch((const char *)from + bytes + i, _MM_HINT_T0);
}

static struct lanes_units expand_u4(int32_t type, const uint8_t *block, const uint8_t *from, int32_t first, int32_t n,
                                    uint8_t *room)
{
	const int32_t per = types_piece(type) / GROUP;

	for (int32_t g = 0; g < n; g++) {
		if (g && (first + g) % per)
			memcpy(room + (size_t)g * LANES_SCALES, room + (size_t)(g - 1) * LANES_SCALES, LANES_SCALES);
		else
			scales_u4(block + (size_t)((first + g) / per) * 40, room + (size_t)g * LANES_SCALES);
	}
	return (struct lanes_units){ room, from, LANES_SCALES, NIBBLES, NULL };
}

/* Each input with the scales of its own piece. */
static struct lanes_units expand_order(const uint8_t *block, const uint8_t *from, int32_t first, int32_t n,
                                       const uint16_t *index, uint8_t *room)
{
	for (int32_t i = 0; i < n * GROUP; i++, from += 8) {
		const uint8_t *s = block + (size_t)index[first * GROUP + i] * 40;
		__m128i w = _mm_sub_epi8(sixteen(from), sixteen(s + 32));

		put_products(room + (size_t)i * 32, _mm256_cvtph_ps(load16(s)), _mm256_cvtph_ps(load16(s + 16)), w);
	}
	return (struct lanes_units){ room, room, 0, 0, NULL };
}

static struct lanes_units expand_i8(const uint8_t *block, const uint8_t *from, uint8_t *room)
{
	put(room, load(block));
	put(room + 32, load(block));
	return (struct lanes_units){ room, from, 0, 1024, NULL };
}

/* e4m3 as f16, 2^8 times smaller: a sign, a bit less of exponent, and the same again.  Of f16 0x7f would be a number. */
INLINE __m256i f16_of_f8(const uint8_t *from)
{
	__m256i v = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load16(from)), 7), none;

	v = _mm256_and_si256(v, _mm256_set1_epi16((short)0xbf80));
	none = _mm256_cmpeq_epi16(_mm256_and_si256(v, _mm256_set1_epi16(0x3f80)), _mm256_set1_epi16(0x3f80));
	return _mm256_or_si256(v, _mm256_and_si256(none, _mm256_set1_epi16(0x4000)));
}

/* Two inputs as a line of bf16.  All bits of e4m3 fit. */
INLINE void two_inputs(const uint8_t *from, uint8_t *to)
{
	__m256i a = f16_of_f8(from), b = f16_of_f8(from + 16);

	UNROLL
	for (int half = 0; half < 2; half++) {
		__m128i x = half ? _mm256_extracti128_si256(a, 1) : _mm256_castsi256_si128(a);
		__m128i y = half ? _mm256_extracti128_si256(b, 1) : _mm256_castsi256_si128(b);
		__m256i low = _mm256_srli_epi32(_mm256_castps_si256(_mm256_cvtph_ps(x)), 16);

		put(to + 32 * half, _mm256_or_si256(low, _mm256_castps_si256(_mm256_cvtph_ps(y))));
	}
}

/* What the sums are multiplied with lies before the lines. */
static struct lanes_units expand_f8(int32_t type, const uint8_t *block, const uint8_t *from, int32_t first, int32_t n,
                                    uint8_t *room)
{
	const int32_t piece = first / (types_piece(type) / GROUP);
	float *of_all = (float *)(void *)room;
	uint8_t *to = room + 64;

	for (int c = 0; c < KERN_COLS; c++) {
		memcpy(&of_all[c], types_base(type) == HELD_F8 ? block + 64 * (size_t)piece + 4 * c : block + 4 * (size_t)piece, 4);
		of_all[c] *= 256;
	}
	for (int32_t i = 0; i < n * GROUP; i += 2)
		two_inputs(from + 16 * (size_t)i, to + 32 * (size_t)i);
	return (struct lanes_units){ to, to, 0, 0, of_all };
}

static struct lanes_units expand_nvfp4(const uint8_t *block, const uint8_t *from, int32_t n, uint8_t *room)
{
	float *of_all = (float *)(void *)room;
	uint8_t *to = room + 64;
	struct lanes_units u = lanes_run(LANES_8H, to);

	memcpy(of_all, block, 64);
	for (int c = 0; c < KERN_COLS; c++)
		of_all[c] *= 128;         /* 2^8, and quants are doubled */
	for (int32_t g = 0; g < n; g++, from += 32 + NIBBLES, to += u.scales_step) {
		scales_nvfp4(from, to);
		scales_nvfp4(from + 16, to + 32);
		look_up(compact_e2m1, 32, from + 32, to + LANES_SCALES);
	}
	u.of_all = of_all;
	return u;
}

struct lanes_units compact_held_expand(int32_t type, int32_t k, const uint8_t *block, int32_t first, int32_t n,
                                       const uint16_t *index, uint8_t *room)
{
	size_t scales, quants;
	const uint8_t *from;

	layout_of(type, &scales, &quants);
	from = block + quants_from(type, k, scales) + (size_t)first * quants;
	if (n <= COMPACT_MOST)
		fetch_next(from, (size_t)n * quants);
	switch (types_base(type)) {
	case HELD_U4:       return expand_u4(type, block, from, first, n, room);
	case HELD_U4_ORDER: return expand_order(block, from, first, n, index, room);
	case HELD_I8:       return expand_i8(block, from, room);
	case HELD_NVFP4:    return expand_nvfp4(block, from, n, room);
	default:            return expand_f8(type, block, from, first, n, room);
	}
}
