/* repack.c - see repack.h.  Pure functions, called at load by any thread. */
#include "repack.h"

#include <string.h>

#include "kern.h"
#include "types.h"

#define ROW 20                     /* bytes of 32 weights in Q4_1: d, m, then nibbles i and i + 16 */
#define ROW_I8 34                  /* .. in Q8_0: d, then 32 bytes */

static uint32_t word_at(const uint8_t *p, size_t i)
{
	uint32_t w;

	memcpy(&w, p + 4 * i, 4);
	return w;
}

static uint32_t nibble(uint32_t word, int32_t i)
{
	return word >> 4 * i & 15;
}

static bool is_4bit(int32_t type)
{
	return type == SR_AWQ4 || type == SR_GPTQ4 || type == SR_GPTQ4_V2 || type == SR_CT4;
}

/* A byte a weight, scales apart. */
static bool is_8bit(int32_t type)
{
	return type == SR_F8 || type == SR_I8;
}

/* Inputs in groups out of order (act-order): each weight has a scale of its own, so it is computed. */
static bool is_scattered(const struct sr_tensor *t)
{
	return is_4bit(t->type) && sr_stored_of(t, 0).index.bytes > 0;
}

bool repack_needed(const struct sr_tensor *t)
{
	return is_4bit(t->type) || is_8bit(t->type) || t->outputs || t->transposed || (t->type == SR_MXFP4 && t->scale.bytes);
}

int32_t repack_type(const struct sr_tensor *t)
{
	if (is_scattered(t))
		return SR_F16;
	return is_4bit(t->type) ? SR_Q4_1 : t->type == SR_F8 ? SR_BF16 : t->type == SR_I8 ? SR_Q8_0 : t->type;
}

static int32_t group_of(const struct sr_tensor *t)
{
	return t->group ? t->group : t->k;
}

static size_t scale_bytes(const struct sr_tensor *t)
{
	return t->scale_type == SR_F32 ? 4 : 2;
}

/* Outputs that are stored, of which these are some. */
static size_t stored_outputs(const struct sr_tensor *t)
{
	return (size_t)(t->outputs ? t->outputs : t->n);
}

static const char *moved_refuses(const struct sr_tensor *t)
{
	struct sr_stored s = sr_stored_of(t, 0);
	bool f4 = t->type == SR_MXFP4 && t->scale.bytes;
	size_t k = (size_t)t->k;

	if (t->outputs && (t->first < 0 || t->step < 1 || sr_output_of(t, t->n - 1) >= t->outputs))
		return "its outputs are not among those that are stored";
	if (types_quantized(t->type) ? t->transposed : !types_bytes(t->type, t->k))
		return "only floats can be stored transposed";
	if (t->type == SR_MXFP4 && !f4)
		return "only floats and blocks with separate scales can alternate";
	if (s.data.bytes != stored_outputs(t) * (f4 ? k / 2 : types_bytes(t->type, t->k)) ||
	    (f4 && s.scale.bytes != stored_outputs(t) * (k / GROUP)))
		return "its parts are not as long as its shape says";
	return NULL;
}

/* What is stored: rows of bytes, and a scale for each block of group_n rows and group columns. */
static void stored_8bit(const struct sr_tensor *t, size_t *rows, size_t *columns)
{
	*rows = t->transposed ? (size_t)t->k : stored_outputs(t);
	*columns = t->transposed ? stored_outputs(t) : (size_t)t->k;
}

static const char *refuses_8bit(const struct sr_tensor *t)
{
	struct sr_stored s = sr_stored_of(t, 0);
	size_t rows, columns, group;

	stored_8bit(t, &rows, &columns);
	group = t->group ? (size_t)t->group : columns;
	if (t->outputs && (t->first < 0 || t->step < 1 || sr_output_of(t, t->n - 1) >= t->outputs))
		return "its outputs are not among those that are stored";
	if (t->type == SR_I8 && (t->transposed || t->group || t->group_n > 1))
		return "its scales must be of an output or of all";
	if (t->scale_type != SR_F16 && t->scale_type != SR_BF16 && t->scale_type != SR_F32)
		return "its scales must be F16, BF16 or F32";
	if (columns % group || s.data.bytes != rows * columns || s.scale.bytes != scale_bytes(t) * (columns / group) *
	    (t->group_n ? (rows + (size_t)t->group_n - 1) / (size_t)t->group_n : 1))
		return "its parts are not as long as its shape says";
	return NULL;
}

const char *repack_refuses(const struct sr_tensor *t)
{
	struct sr_stored s = sr_stored_of(t, 0);
	int32_t group = group_of(t);
	uint64_t groups, n = stored_outputs(t), words = (n + 7) / 8;

	if (is_8bit(t->type))
		return refuses_8bit(t);
	if (!is_4bit(t->type))
		return moved_refuses(t);
	if (t->transposed || (t->outputs && (t->step != 1 || t->first < 0 || t->first + (int64_t)t->n > t->outputs)))
		return "its outputs alternate or are transposed";
	if (s.index.bytes && s.index.bytes != (uint64_t)t->k * 4)
		return "its inputs' groups (act-order) are not one for each";
	if (group < GROUP || group % GROUP || t->k % group)
		return "its groups must be a multiple of 32 weights, all of one size";
	if (n % 8 && t->type != SR_CT4)
		return "its outputs must be a multiple of 8";
	if (t->scale_type != SR_F16 && t->scale_type != SR_BF16 && t->scale_type != SR_F32)
		return "its scales must be F16, BF16 or F32";
	groups = (uint64_t)(t->k / group);
	if (s.data.bytes != n * (uint64_t)t->k / 2 || s.scale.bytes != groups * n * scale_bytes(t) ||
	    (s.zero.bytes ? s.zero.bytes != groups * words * 4 : t->type != SR_CT4))
		return "its parts are not as long as its shape says";
	return NULL;
}

/* The place of output c among the eight in its word. */
static int32_t place(int32_t type, int32_t c)
{
	static const uint8_t awq[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };

	return type == SR_AWQ4 ? awq[c % 8] : c % 8;
}

static float scale_at(const struct sr_tensor *t, const struct apart *a, size_t at)
{
	uint32_t u = 0;

	memcpy(&u, a->scale + at * scale_bytes(t), scale_bytes(t));
	return t->scale_type == SR_F32 ? f32_of_bits(u)
	     : t->scale_type == SR_F16 ? f32_of_f16((uint16_t)u) : f32_of_bf16((uint16_t)u);
}

/* Of the 4-bit kinds c is the number among the stored outputs. */
static float scale_of(const struct sr_tensor *t, const struct apart *a, int32_t g, int32_t c)
{
	size_t groups = (size_t)(t->k / group_of(t));
	size_t at = t->type == SR_CT4 ? (size_t)c * groups + (size_t)g : (size_t)g * stored_outputs(t) + (size_t)c;

	return scale_at(t, a, at);
}

static uint32_t zero_of(const struct sr_tensor *t, const struct apart *a, int32_t g, int32_t c)
{
	size_t groups = (size_t)(t->k / group_of(t)), words = stored_outputs(t) / 8;
	size_t at = t->type == SR_CT4 ? (size_t)(c / 8) * groups + (size_t)g
	                              : (size_t)g * words + (size_t)(c / 8);
	uint32_t z = a->zero ? nibble(word_at(a->zero, at), place(t->type, c)) : 8;

	return t->type == SR_GPTQ4 ? (z + 1) & 15 : z;
}

/* Weights k0 .. k0+31 of output c. */
static void quants(const struct sr_tensor *t, const struct apart *a, int32_t k0, int32_t c, uint8_t q[GROUP])
{
	size_t n = stored_outputs(t), k = (size_t)k0;

	for (int32_t i = 0; i < GROUP; i++) {
		if (t->type == SR_AWQ4)
			q[i] = (uint8_t)nibble(word_at(a->data, (k + (size_t)i) * (n / 8) + (size_t)c / 8),
			                       place(t->type, c));
		else if (t->type == SR_CT4)
			q[i] = (uint8_t)nibble(word_at(a->data, ((size_t)c * (size_t)t->k + k) / 8 +
			                                        (size_t)i / 8), i % 8);
		else
			q[i] = (uint8_t)nibble(word_at(a->data, (k / 8 + (size_t)i / 8) * n + (size_t)c),
			                       i % 8);
	}
}

size_t repack_row_bytes(const struct sr_tensor *t)
{
	return types_bytes(repack_type(t), t->k);
}

/* Stored output c, as it is. */
static void move_row(const struct sr_tensor *t, const struct apart *a, size_t c, uint8_t *to)
{
	size_t size = t->transposed ? types_bytes(t->type, 1) : types_bytes(t->type, t->k);
	size_t n = stored_outputs(t);

	if (!t->transposed) {
		memcpy(to, a->data + c * size, size);
		return;
	}
	for (size_t k = 0; k < (size_t)t->k; k++)
		memcpy(to + k * size, a->data + (k * n + c) * size, size);
}

/* A byte of safetensors has two weights that are neighbours; one of GGUF those 16 apart. */
static void mxfp4_row(const struct sr_tensor *t, const struct apart *a, size_t c, uint8_t *to)
{
	size_t groups = (size_t)t->k / GROUP;

	for (size_t g = c * groups; g < (c + 1) * groups; g++, to += 17) {
		const uint8_t *from = a->data + 16 * g;

		to[0] = a->scale[g];
		for (size_t i = 0; i < 16; i++)
			to[1 + i] = (uint8_t)((from[i / 2] >> 4 * (i % 2) & 15) |
			                      (from[8 + i / 2] >> 4 * (i % 2) & 15) << 4);
	}
}

/* e4m3 has no infinity; 0x7f and 0xff are no numbers. */
static float f32_of_f8(uint8_t v)
{
	uint32_t mag = v & 0x7f;
	float f = mag == 0x7f ? f32_of_bits(0x7fc00000) : f32_of_bits(mag << 20) * 0x1p120f;

	return v & 0x80 ? -f : f;
}

/* Stored output c: e4m3 times its scale as bf16; int8 as Q8_0, whose d is the scale. */
static void row_8bit(const struct sr_tensor *t, const struct apart *a, size_t c, uint8_t *to)
{
	size_t rows, columns, groups, group_n = (size_t)t->group_n;

	stored_8bit(t, &rows, &columns);
	groups = t->group ? columns / (size_t)t->group : 1;
	for (size_t k = 0; k < (size_t)t->k; k++) {
		size_t row = t->transposed ? k : c, column = t->transposed ? c : k;
		size_t block = (group_n ? row / group_n : 0) * groups + (t->group ? column / (size_t)t->group : 0);
		uint8_t v = a->data[row * columns + column];
		uint16_t h;

		if (t->type == SR_F8) {
			h = bf16_of_f32(f32_of_f8(v) * scale_at(t, a, block));
			memcpy(to + 2 * k, &h, 2);
			continue;
		}
		h = f16_of_f32(scale_at(t, a, block));
		if (k % GROUP == 0)
			memcpy(to + k / GROUP * ROW_I8, &h, 2);
		to[k / GROUP * ROW_I8 + 2 + k % GROUP] = v;
	}
}

/* Output c of a matrix whose inputs are in groups out of order, as f16. */
static void scattered_row(const struct sr_tensor *t, const struct apart *a, int32_t c, uint8_t *to)
{
	uint8_t q[GROUP];

	for (int32_t k = 0; k < t->k; k++) {
		int32_t g = (int32_t)word_at(a->index, (size_t)k);
		uint16_t h = 0x7e00;                  /* the reader has checked the groups: core/models/quant.c */

		if (k % GROUP == 0)
			quants(t, a, k, c, q);
		if (g >= 0 && g < t->k / group_of(t))
			h = f16_of_f32(scale_of(t, a, g, c) * (float)((int32_t)q[k % GROUP] - (int32_t)zero_of(t, a, g, c)));
		memcpy(to + 2 * (size_t)k, &h, 2);
	}
}

void repack_rows(const struct sr_tensor *t, const struct apart *a, int32_t first, int32_t n, uint8_t *rows)
{
	size_t row_bytes = repack_row_bytes(t);

	for (int32_t i = 0; i < n && !is_4bit(t->type); i++) {
		size_t c = (size_t)sr_output_of(t, first + i);

		if (is_8bit(t->type))
			row_8bit(t, a, c, rows + (size_t)i * row_bytes);
		else if (t->type == SR_MXFP4)
			mxfp4_row(t, a, c, rows + (size_t)i * row_bytes);
		else
			move_row(t, a, c, rows + (size_t)i * row_bytes);
	}
	for (int32_t i = 0; i < n && is_scattered(t); i++)
		scattered_row(t, a, (t->outputs ? t->first : 0) + first + i, rows + (size_t)i * row_bytes);
	for (int32_t k = 0; k < t->k && is_4bit(t->type) && !is_scattered(t); k += GROUP)
		for (int32_t i = 0; i < n; i++) {
			int32_t c = (t->outputs ? t->first : 0) + first + i, g = k / group_of(t);
			uint8_t *to = rows + (size_t)i * row_bytes + (size_t)(k / GROUP) * ROW, q[GROUP];
			float s = scale_of(t, a, g, c);
			uint16_t d = f16_of_f32(s), m = f16_of_f32(-s * (float)zero_of(t, a, g, c));

			quants(t, a, k, c, q);
			memcpy(to, &d, 2);
			memcpy(to + 2, &m, 2);
			for (int j = 0; j < 16; j++)
				to[4 + j] = (uint8_t)(q[j] | q[j + 16] << 4);
		}
}
