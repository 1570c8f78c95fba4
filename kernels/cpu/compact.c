/* compact.c - see compact.h.  Pure functions, compiled for AVX2: as lanes.c, they may only be called
 * through a table that the machine can run.
 */
#include "compact.h"

#include <assert.h>

#include "compact_unpack.h"
#include "types.h"

/* Bytes of the scales of all k inputs: where a block's quants begin. */
INLINE size_t scales_bytes(const struct compact_layout *l, int32_t k)
{
	return (size_t)(k / GROUP / l->groups) * l->scales;
}

int compact_groups(int32_t type)
{
	const struct compact_layout *l = compact_layout_of(type);

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
	const struct compact_layout *l = compact_layout_of(type);

	if (!l)
		return compact_held_bytes(type, k);
	return (scales_bytes(l, k) + (size_t)(k / GROUP) * l->group + 63) & ~(size_t)63;
}

/* ---- at load -------------------------------------------------------------------------------- */

const int8_t compact_iq4[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
const int8_t compact_e2m1[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

static const int8_t *values_of(int32_t type)
{
	return type == SR_IQ4_XS || type == SR_IQ4_NL ? compact_iq4 : type == SR_MXFP4 ? compact_e2m1 : NULL;
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
	const struct compact_layout *l = compact_layout_of(type);
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

/* 32 quants of sixteen outputs as lines of units, which have an offset of their own. */
INLINE void expand_quants(const int32_t type, const uint8_t *from, uint8_t *to)
{
	const int bits = lanes_offset_bits(lanes_kind(type)), add = (bits ? 1 << bits : 0) - unpack_offset(type);

	UNROLL
	for (int half = 0; half < 64; half += 32)
		UNROLL
		for (int j = 0; j < 8; j++) {
			__m256i v = unpack_line(type, from, j, half);

			put(to + 64 * j + half, add ? _mm256_add_epi8(v, bytes(add)) : v);
		}
}

INLINE struct lanes_units expand(const int32_t type, int32_t k, const uint8_t *block, int32_t first, int32_t n,
                                 uint8_t *room)
{
	const struct compact_layout *l = compact_layout_of(type);
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
			unpack_scales(type, piece, j, scales);
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
