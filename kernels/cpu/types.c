/* types.c - stored weights, group by group (see types.h).  Pure functions.  They run at load, in the
 * plain table and for embedding rows, so they are written for clarity, not speed.
 */
#include "types.h"

#include <math.h>

#include "types_iq.h"
#include "kernels/model.h"

static uint16_t u16_at(const uint8_t *p)
{
	return (uint16_t)(p[0] | p[1] << 8);
}

static float f16_at(const uint8_t *p)
{
	return f32_of_f16(u16_at(p));
}

float f32_of_f16(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fff;

	if (mag >= 0x7c00)
		return f32_of_bits(sign | 0x7f800000 | (mag & 0x3ff) << 13);
	if (mag >= 0x400)
		return f32_of_bits(sign | ((mag << 13) + (112u << 23)));
	return f32_of_bits(sign | bits_of_f32((float)mag * 0x1p-24f));
}

uint16_t f16_of_f32(float f)
{
	uint32_t u = bits_of_f32(f), sign = u >> 16 & 0x8000, mag = u & 0x7fffffff;

	if (mag > 0x7f800000)
		return (uint16_t)(sign | 0x7e00);
	if (mag >= 0x477ff000)                    /* rounds to 65536 or more */
		return (uint16_t)(sign | 0x7c00);
	if (mag < 0x38800000)                     /* subnormal: let the FPU round to a multiple of 2^-24 */
		return (uint16_t)(sign | (bits_of_f32(f32_of_bits(mag) + 0.5f) - 0x3f000000));
	mag += 0xfff + (mag >> 13 & 1);
	return (uint16_t)(sign | (mag - (112u << 23)) >> 13);
}

static const struct { int16_t weights, bytes; } layout[] = {
	[SR_F32]  = { 1, 4 },      [SR_F16]  = { 1, 2 },      [SR_BF16] = { 1, 2 },
	[SR_Q8_0] = { 32, 34 },    [SR_Q4_0] = { 32, 18 },    [SR_Q4_1] = { 32, 20 },
	[SR_Q5_0] = { 32, 22 },    [SR_Q5_1] = { 32, 24 },
	[SR_Q3_K] = { 256, 110 },  [SR_Q4_K] = { 256, 144 },  [SR_Q5_K] = { 256, 176 },
	[SR_Q6_K] = { 256, 210 },  [SR_IQ4_NL] = { 32, 18 },  [SR_IQ4_XS] = { 256, 136 },
	[SR_MXFP4] = { 32, 17 },   [SR_Q2_K] = { 256, 84 },
	[SR_IQ2_XXS] = { 256, 66 }, [SR_IQ2_XS] = { 256, 74 }, [SR_IQ2_S] = { 256, 82 },
	[SR_IQ3_XXS] = { 256, 98 }, [SR_IQ3_S] = { 256, 110 },
};

static bool known(int32_t type)
{
	return type >= 0 && (size_t)type < sizeof layout / sizeof *layout && layout[type].weights;
}

bool types_held(int32_t type, size_t *head, size_t *quants)
{
	static const struct { uint8_t head, quants; } of[] = {
		{ 3, 16 }, { 3, 16 }, { 2, 32 }, { 4, 32 }, { 4, 32 }, { 4, 18 },
	};
	int32_t i = types_base(type) - HELD_U4;

	if (type < 0 || !types_piece(type) || i < 0 || (size_t)i >= sizeof of / sizeof *of)
		return false;
	*head = of[i].head;
	*quants = of[i].quants;
	return true;
}

static bool held_float(int32_t type)
{
	int32_t base = types_base(type);

	return base == HELD_U4_ORDER || base == HELD_F8 || base == HELD_F8_BLOCK;
}

size_t types_bytes(int32_t type, int32_t k)
{
	size_t head, quants;

	if (types_held(type, &head, &quants))
		return k <= 0 || k % types_piece(type) ? 0
		     : (size_t)(k / types_piece(type)) * head + (size_t)(k / GROUP) * quants;
	if (!known(type) || k <= 0 || k % layout[type].weights)
		return 0;
	return (size_t)(k / layout[type].weights) * (size_t)layout[type].bytes;
}

bool types_quantized(int32_t type)
{
	size_t head, quants;

	return types_held(type, &head, &quants) ? !held_float(type) : known(type) && layout[type].weights > 1;
}

bool types_halves(int32_t type)
{
	return type == SR_Q6_K || type == SR_Q3_K || type == SR_Q2_K || type == SR_IQ2_XS || type == SR_IQ2_S ||
	       types_base(type) == HELD_NVFP4;
}

/* Low nibbles are weights 0..15, high ones 16..31. */
static void nibbles(const uint8_t *qs, int8_t *q)
{
	for (int i = 0; i < 16; i++) {
		q[i] = qs[i] & 15;
		q[i + 16] = (int8_t)(qs[i] >> 4);
	}
}

/* Nibbles of the IQ4 types index 16 steps that lie closer together near 0. */
static void steps(const uint8_t *qs, int8_t *q)
{
	static const int8_t step[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };

	nibbles(qs, q);
	for (int i = 0; i < GROUP; i++)
		q[i] = step[q[i]];
}

/* e2m1, in halves: then all are integers. */
static void halves(const uint8_t *qs, int8_t *q)
{
	static const int8_t value[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

	nibbles(qs, q);
	for (int i = 0; i < GROUP; i++)
		q[i] = value[q[i]];
}

/* The fifth bits of Q5_0 and Q5_1: bit i is weight i's. */
static void fifth(const uint8_t *qh, int8_t *q)
{
	for (int i = 0; i < GROUP; i++)
		q[i] = (int8_t)(q[i] | (qh[i / 8] >> i % 8 & 1) << 4);
}

static void shift(int8_t *q, int by)
{
	for (int i = 0; i < GROUP; i++)
		q[i] = (int8_t)(q[i] - by);
}

/* Q4_K and Q5_K: eight 6-bit scales and eight 6-bit minima in 12 bytes. */
static void scale_min(const uint8_t *s, int j, int *scale, int *min)
{
	if (j < 4) {
		*scale = s[j] & 63;
		*min = s[j + 4] & 63;
	} else {
		*scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
		*min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
	}
}

static void q45_k(int32_t type, const uint8_t *b, int j, struct group *out)
{
	const uint8_t *qh = type == SR_Q5_K ? b + 16 : NULL;
	const uint8_t *qs = b + (qh ? 48 : 16) + 32 * (j / 2);
	int scale, min;

	scale_min(b + 4, j, &scale, &min);
	out->d[0] = out->d[1] = f16_at(b) * (float)scale;
	out->m[0] = out->m[1] = -(f16_at(b + 2) * (float)min);
	for (int i = 0; i < GROUP; i++) {
		int q = j % 2 ? qs[i] >> 4 : qs[i] & 15;

		out->q[i] = (int8_t)(qh ? q | (qh[i] >> j & 1) << 4 : q);
	}
}

static void q6_k(const uint8_t *b, int j, struct group *out)
{
	const uint8_t *ql = b + 64 * (j / 4) + 32 * (j % 2), *qh = b + 128 + 32 * (j / 4);
	int nibble = 4 * (j % 4 / 2), pair = 2 * (j % 4);

	for (int i = 0; i < GROUP; i++)
		out->q[i] = (int8_t)((ql[i] >> nibble & 15) | (qh[i] >> pair & 3) << 4);
	shift(out->q, 32);
	for (int h = 0; h < 2; h++)
		out->d[h] = f16_at(b + 208) * (float)(int8_t)b[192 + 2 * j + h];
}

static void q2_k(const uint8_t *b, int j, struct group *out)
{
	const uint8_t *qs = b + 16 + 32 * (j / 4);

	for (int i = 0; i < GROUP; i++)
		out->q[i] = (int8_t)(qs[i] >> 2 * (j % 4) & 3);
	for (int h = 0; h < 2; h++) {
		out->d[h] = f16_at(b + 80) * (float)(b[2 * j + h] & 15);
		out->m[h] = -(f16_at(b + 82) * (float)(b[2 * j + h] >> 4));
	}
}

static void q3_k(const uint8_t *b, int j, struct group *out)
{
	const uint8_t *high = b, *qs = b + 32 + 32 * (j / 4), *s = b + 96;

	for (int i = 0; i < GROUP; i++)
		out->q[i] = (int8_t)((qs[i] >> 2 * (j % 4) & 3) - (high[i] >> j & 1 ? 0 : 4));
	for (int h = 0; h < 2; h++) {
		int at = 2 * j + h;
		int low = at < 8 ? s[at] & 15 : s[at - 8] >> 4;
		int top = s[8 + at % 4] >> 2 * (at / 4) & 3;

		out->d[h] = f16_at(b + 108) * (float)((low | top << 4) - 32);
	}
}

/* f16 d, u16 with the two high bits of eight scales, their low ones in 4 bytes, eight times 16 bytes. */
static void iq4_xs(const uint8_t *b, int j, struct group *out)
{
	int low = b[4 + j / 2] >> 4 * (j % 2) & 15, top = u16_at(b + 2) >> 2 * j & 3;

	out->d[0] = out->d[1] = f16_at(b) * (float)((low | top << 4) - 32);
	steps(b + 8 + 16 * j, out->q);
}

float types_f32_of_f8(uint8_t v)
{
	uint32_t mag = v & 0x7f;
	float f = mag == 0x7f ? f32_of_bits(0x7fc00000) : f32_of_bits(mag << 20) * 0x1p120f;

	return v & 0x80 ? -f : f;
}

static float f32_at(const uint8_t *p)
{
	float f;

	memcpy(&f, p, 4);
	return f;
}

/* The head of piece i of a held row. */
static const uint8_t *piece_at(int32_t type, const uint8_t *row, int32_t i)
{
	return row + (size_t)i * types_bytes(type, types_piece(type));
}

/* Group g of a row that repack.c made. */
static void held_group(int32_t type, const uint8_t *row, int32_t g, struct group *out)
{
	int32_t per = types_piece(type) / GROUP;
	const uint8_t *b = piece_at(type, row, g / per), *q;
	size_t head = 0, quants = 0;

	types_held(type, &head, &quants);
	q = b + head + (size_t)(g % per) * quants;
	switch (types_base(type)) {
	case HELD_U4:
		nibbles(q, out->q);
		out->d[0] = out->d[1] = f16_at(b);
		out->m[0] = out->m[1] = f32_of_f16(f16_of_f32(-(f16_at(b) * (float)b[2])));
		break;
	case HELD_I8:
		memcpy(out->q, q, GROUP);
		out->d[0] = out->d[1] = f16_at(b);
		break;
	default:
		for (int h = 0; h < 2; h++)      /* 0x7f is no number: it counts as 0, as in ggml */
			out->d[h] = (q[h] & 127) == 127 ? 0 : f32_at(b) * (types_f32_of_f8(q[h] & 127) / 2);
		halves(q + 2, out->q);
	}
}

void types_group(int32_t type, const uint8_t *row, int32_t g, struct group *out)
{
	const uint8_t *b;
	size_t per;
	int j;

	out->m[0] = out->m[1] = 0;
	if (types_piece(type)) {
		held_group(type, row, g, out);
		return;
	}
	per = (size_t)layout[type].weights / GROUP;
	b = row + (size_t)g / per * (size_t)layout[type].bytes;
	j = (int)((size_t)g % per);
	switch (type) {
	case SR_Q2_K:
		q2_k(b, j, out);
		return;
	case SR_IQ2_XXS: case SR_IQ2_XS: case SR_IQ2_S: case SR_IQ3_XXS: case SR_IQ3_S:
		types_iq_group(type, b, j, out);
		return;
	case SR_Q4_K: case SR_Q5_K:
		q45_k(type, b, j, out);
		return;
	case SR_Q6_K:
		q6_k(b, j, out);
		return;
	case SR_Q3_K:
		q3_k(b, j, out);
		return;
	case SR_IQ4_XS:
		iq4_xs(b, j, out);
		return;
	case SR_MXFP4:
		out->d[0] = out->d[1] = ldexpf(1, b[0] - 128);
		halves(b + 1, out->q);
		return;
	}
	out->d[0] = out->d[1] = f16_at(b);
	switch (type) {
	case SR_Q8_0:
		memcpy(out->q, b + 2, GROUP);
		break;
	case SR_Q4_0:
		nibbles(b + 2, out->q);
		shift(out->q, 8);
		break;
	case SR_IQ4_NL:
		steps(b + 2, out->q);
		break;
	case SR_Q4_1:
		nibbles(b + 4, out->q);
		out->m[0] = out->m[1] = f16_at(b + 2);
		break;
	case SR_Q5_0:
		nibbles(b + 6, out->q);
		fifth(b + 2, out->q);
		shift(out->q, 16);
		break;
	case SR_Q5_1:
		nibbles(b + 8, out->q);
		fifth(b + 4, out->q);
		out->m[0] = out->m[1] = f16_at(b + 2);
		break;
	}
}

static void held_floats(int32_t type, const uint8_t *row, int32_t k0, const uint16_t *index, float *dst)
{
	const uint8_t *b = piece_at(type, row, k0 / types_piece(type));
	const size_t at = (size_t)(k0 % types_piece(type));
	int8_t q[GROUP];

	if (types_base(type) != HELD_U4_ORDER) {
		for (size_t i = 0; i < GROUP; i++)
			dst[i] = f32_at(b) * types_f32_of_f8(b[4 + at + i]);
		return;
	}
	nibbles(b + 3 + at / 2, q);
	for (int i = 0; i < GROUP; i++) {
		const uint8_t *of = piece_at(type, row, index[k0 + i]);

		dst[i] = f32_of_f16(f16_of_f32(f16_at(of) * (float)(q[i] - of[2])));
	}
}

void types_dequant_group(int32_t type, const uint8_t *row, int32_t k0, const uint16_t *index, float *dst)
{
	struct group w;

	if (!types_quantized(type)) {
		if (types_piece(type))
			held_floats(type, row, k0, index, dst);
		else
			types_dequant(type, GROUP, row + (size_t)k0 * types_bytes(type, 1), dst);
		return;
	}
	types_group(type, row, k0 / GROUP, &w);
	for (int i = 0; i < GROUP; i++)
		dst[i] = w.d[i / 16] * (float)w.q[i] + w.m[i / 16];
}

void types_dequant(int32_t type, int32_t k, const uint8_t *row, float *dst)
{
	switch (type) {
	case SR_F32:
		memcpy(dst, row, (size_t)k * 4);
		return;
	case SR_F16:
		for (int32_t i = 0; i < k; i++)
			dst[i] = f16_at(row + 2 * (size_t)i);
		return;
	case SR_BF16:
		for (int32_t i = 0; i < k; i++)
			dst[i] = f32_of_bf16(u16_at(row + 2 * (size_t)i));
		return;
	}
	for (int32_t at = 0; at < k; at += GROUP)
		types_dequant_group(type, row, at, NULL, dst + at);
}
