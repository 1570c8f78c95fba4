/* repack.c - see repack.h.  Pure functions, called at load by any thread. */
#include "repack.h"

#include <string.h>

#include "kern.h"
#include "types.h"

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

static bool is_nvfp4(const struct sr_tensor *t)
{
	return t->type == SR_NVFP4 || t->type == SR_NVFP4_CT;
}

/* Inputs in groups out of order (act-order). */
static bool is_scattered(const struct sr_tensor *t)
{
	return is_4bit(t->type) && sr_stored_of(t, 0).index.bytes > 0;
}

bool repack_needed(const struct sr_tensor *t)
{
	return is_4bit(t->type) || is_8bit(t->type) || is_nvfp4(t) || t->outputs || t->transposed ||
	       (t->type == SR_MXFP4 && t->scale.bytes);
}

static int32_t group_of(const struct sr_tensor *t)
{
	return t->group ? t->group : t->k;
}

/* Inputs of FP8 that share a scale, as a piece: all pieces of a row are of one size, a multiple of 32. */
static int32_t piece_f8(const struct sr_tensor *t)
{
	int32_t group = t->transposed ? t->group_n : t->group, k = t->k;

	if (!group || group >= k)
		return k;
	while (k % group) {            /* the last one is shorter: their common divisor */
		int32_t rest = k % group;

		k = group;
		group = rest;
	}
	return group;
}

/* Does each column block of FP8 lie within one block of outputs? */
static bool one_scale(const struct sr_tensor *t)
{
	int64_t each = t->transposed ? t->group : t->group_n;

	for (int64_t c = 0; each && c < t->n; c += KERN_COLS) {
		int64_t last = c + KERN_COLS < t->n ? c + KERN_COLS - 1 : t->n - 1;

		if (sr_output_of(t, c) / each != sr_output_of(t, last) / each)
			return false;
	}
	return true;
}

/* Blocks of quantized weights that lie along the outputs (keys of latent attention in a GGUF that has them with values). */
static bool is_turned(const struct sr_tensor *t)
{
	return t->transposed && types_quantized(t->type);
}

int32_t repack_type(const struct sr_tensor *t)
{
	if (is_4bit(t->type))
		return HELD(is_scattered(t) ? HELD_U4_ORDER : HELD_U4, group_of(t));
	if (is_turned(t))
		return SR_F16;
	if (t->type == SR_F8 && piece_f8(t) % GROUP)
		return SR_BF16;
	if (t->type == SR_F8)
		return HELD(one_scale(t) ? HELD_F8_BLOCK : HELD_F8, piece_f8(t));
	return t->type == SR_I8 ? HELD(HELD_I8, t->k) : is_nvfp4(t) ? HELD(HELD_NVFP4, t->k) : t->type;
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
	if (is_turned(t))
		return !t->outputs && !t->scale.bytes && types_bytes(t->type, t->n) &&
		       s.data.bytes == k * types_bytes(t->type, t->n) ? NULL : "its parts are not as long as its shape says";
	if (!types_quantized(t->type) && !types_bytes(t->type, t->k))
		return "only floats and blocks of GGUF can be stored transposed";
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

static const char *refuses_nvfp4(const struct sr_tensor *t)
{
	struct sr_stored s = sr_stored_of(t, 0);
	size_t n = stored_outputs(t), k = (size_t)t->k;

	if (t->transposed || (t->outputs && (t->first < 0 || t->step < 1 || sr_output_of(t, t->n - 1) >= t->outputs)))
		return "its outputs are transposed or not among those that are stored";
	if (!s.scale.bytes && k % 64)
		return "its inputs must be a multiple of 64";
	if (s.data.bytes != (s.scale.bytes ? n * k / 2 : n * k / 64 * 36) || (s.scale.bytes && s.scale.bytes != n * k / 16) ||
	    (s.zero.bytes && s.zero.bytes != 4))
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
	if (is_nvfp4(t))
		return refuses_nvfp4(t);
	if (!is_4bit(t->type))
		return moved_refuses(t);
	if (t->transposed || (t->outputs && (t->step != 1 || t->first < 0 || t->first + (int64_t)t->n > t->outputs)))
		return "its outputs alternate or are transposed";
	if (s.index.bytes && s.index.bytes != (uint64_t)t->k * 4)
		return "its inputs' groups (act-order) are not one for each";
	if (group < GROUP || group % GROUP || t->k % group || group > HELD_MOST || t->k / group > UINT16_MAX)
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

/* Stored output c, pieces of which each has one scale. */
static void row_8bit(const struct sr_tensor *t, const struct apart *a, size_t c, uint8_t *to)
{
	size_t piece = (size_t)types_piece(repack_type(t)), rows, columns, groups, group_n = (size_t)t->group_n;

	stored_8bit(t, &rows, &columns);
	groups = t->group ? columns / (size_t)t->group : 1;
	for (size_t k = 0; k < (size_t)t->k; k++) {
		size_t row = t->transposed ? k : c, column = t->transposed ? c : k;
		size_t block = (group_n ? row / group_n : 0) * groups + (t->group ? column / (size_t)t->group : 0);
		uint8_t v = a->data[row * columns + column];

		if (!piece) {                  /* scales of single inputs: SR_BF16 */
			uint16_t h = bf16_of_f32(types_f32_of_f8(v) * scale_at(t, a, block));

			memcpy(to + 2 * k, &h, 2);
			continue;
		}
		if (k % piece == 0) {
			float d = scale_at(t, a, block);
			uint16_t h = f16_of_f32(d);

			memcpy(to, t->type == SR_F8 ? (void *)&d : (void *)&h, t->type == SR_F8 ? 4 : 2);
			to += t->type == SR_F8 ? 4 : 2;
		}
		*to++ = v;
	}
}

/* Stored output c.  Bytes of safetensors hold two weights that are neighbours; those of GGUF two that are 8 apart, of
 * sixteen; ours two that are 16 apart. */
static void row_nvfp4(const struct sr_tensor *t, const struct apart *a, size_t c, uint8_t *to)
{
	size_t k = (size_t)t->k;
	float all = a->zero ? f32_of_bits(word_at(a->zero, 0)) : 1;

	all = t->type == SR_NVFP4_CT ? 1 / all : all;
	memcpy(to, &all, 4);
	to += 4;
	for (size_t g = 0; g < k / GROUP; g++, to += 18) {
		const uint8_t *blocks = a->data + (c * k + g * GROUP) / 64 * 36;
		uint8_t q[GROUP];

		for (size_t h = 0; h < 2; h++) {
			const uint8_t *from = a->scale ? a->data + (c * k + g * GROUP) / 2 + 8 * h : blocks + 4 + 16 * (g % 2) + 8 * h;

			to[h] = a->scale ? a->scale[(c * k + g * GROUP) / 16 + h] : blocks[2 * (g % 2) + h];
			for (size_t i = 0; i < 16; i++)
				q[16 * h + i] = a->scale ? from[i / 2] >> 4 * (i % 2) & 15 : from[i % 8] >> 4 * (i / 8) & 15;
		}
		for (size_t i = 0; i < 16; i++)
			to[2 + i] = (uint8_t)(q[i] | q[i + 16] << 4);
	}
}

/* Outputs first .. of a matrix of 4 bits: they are read together, since a word holds several. */
static void rows_4bit(const struct sr_tensor *t, const struct apart *a, int32_t first, int32_t n, uint8_t *rows)
{
	int32_t group = group_of(t);
	size_t row_bytes = repack_row_bytes(t), piece = types_bytes(repack_type(t), group);

	for (int32_t k = 0; k < t->k; k += GROUP)
		for (int32_t i = 0; i < n; i++) {
			int32_t c = (t->outputs ? t->first : 0) + first + i, g = k / group;
			uint8_t *head = rows + (size_t)i * row_bytes + (size_t)g * piece, *to = head + 3 + k % group / 2, q[GROUP];
			uint16_t d = f16_of_f32(scale_of(t, a, g, c));

			memcpy(head, &d, 2);
			head[2] = (uint8_t)zero_of(t, a, g, c);
			quants(t, a, k, c, q);
			for (int j = 0; j < 16; j++)
				to[j] = (uint8_t)(q[j] | q[j + 16] << 4);
		}
}

/* Outputs of blocks that lie along them: each group is read once for those of them that are asked for. */
static void rows_turned(const struct sr_tensor *t, const struct apart *a, int32_t first, int32_t n, uint8_t *rows)
{
	size_t stored = types_bytes(t->type, t->n), row_bytes = repack_row_bytes(t);

	for (int32_t k = 0; k < t->k; k++) {
		float w[GROUP];

		for (int32_t i = 0; i < n; i++) {
			int32_t c = first + i;
			uint16_t h;

			if (!i || c % GROUP == 0)
				types_dequant_group(t->type, a->data + (size_t)k * stored, c / GROUP * GROUP, NULL, w);
			h = f16_of_f32(w[c % GROUP]);
			memcpy(rows + (size_t)i * row_bytes + 2 * (size_t)k, &h, 2);
		}
	}
}

void repack_rows(const struct sr_tensor *t, const struct apart *a, int32_t first, int32_t n, uint8_t *rows)
{
	size_t row_bytes = repack_row_bytes(t);

	if (is_turned(t)) {
		rows_turned(t, a, first, n, rows);
		return;
	}
	if (is_4bit(t->type)) {
		rows_4bit(t, a, first, n, rows);
		return;
	}
	for (int32_t i = 0; i < n; i++) {
		size_t c = (size_t)sr_output_of(t, first + i);

		if (is_8bit(t->type))
			row_8bit(t, a, c, rows + (size_t)i * row_bytes);
		else if (is_nvfp4(t))
			row_nvfp4(t, a, c, rows + (size_t)i * row_bytes);
		else if (t->type == SR_MXFP4)
			mxfp4_row(t, a, c, rows + (size_t)i * row_bytes);
		else
			move_row(t, a, c, rows + (size_t)i * row_bytes);
	}
}

void repack_index(const struct sr_tensor *t, const struct apart *a, uint16_t *index)
{
	int32_t groups = t->k / group_of(t);

	for (int32_t k = 0; k < t->k; k++) {
		uint32_t g = word_at(a->index, (size_t)k);

		index[k] = (uint16_t)(g < (uint32_t)groups ? g : 0); /* core/models/quant.c has checked them */
	}
}
