/* gguf_table.h - the keys and tensors of a GGUF file as a table that a test may change and write, and a table of what
 * no key and no tensor should be.  The data of tensors are zeros that take no place on the disk.
 */
#ifndef TESTS_GGUF_TABLE_H
#define TESTS_GGUF_TABLE_H

#include <inttypes.h>

#include "core/models/gguf.h"
#include "tests/rig/hostile_values.h"

#define TABLE_KEYS    64
#define TABLE_TENSORS 400

struct table_blob { uint8_t *p; size_t n, cap; };

struct table_key { char name[96]; struct table_blob value; };      /* value: its type and its bytes */
struct table_tensor {
	char name[80];
	uint32_t n_dims, type;
	uint64_t dim[5], offset;
	float data[64];                    /* what the file must have here, if n_data is not 0 */
	uint32_t n_data;
};
struct table {
	struct table_key key[TABLE_KEYS];
	struct table_tensor tensor[TABLE_TENSORS];
	int n_keys, n_tensors;
	uint64_t data;                     /* bytes of all tensors */
};

/* ---- bytes ---------------------------------------------------------------------------------------- */

static inline void blob_put(struct table_blob *b, const void *p, size_t n)
{
	if (b->n + n > b->cap) {
		b->cap = 2 * (b->n + n);
		b->p = realloc(b->p, b->cap);
		assert_non_null(b->p);
	}
	memcpy(b->p + b->n, p, n);
	b->n += n;
}
static inline void blob_u32(struct table_blob *b, uint32_t v) { blob_put(b, &v, 4); }
static inline void blob_u64(struct table_blob *b, uint64_t v) { blob_put(b, &v, 8); }
static inline void blob_text(struct table_blob *b, const char *s, size_t n) { blob_u64(b, n); blob_put(b, s, n); }

static inline void blob_array(struct table_blob *b, uint32_t item, uint64_t n)
{
	blob_u32(b, GGUF_ARRAY);
	blob_u32(b, item);
	blob_u64(b, n);
}

/* ---- from JSON: what tests/models/recorded has ----------------------------------------------------- */

static inline uint32_t table_type(const char *kind, size_t n)
{
	static const struct { const char *name; uint32_t type; } types[] = {
		{ "u8", GGUF_U8 }, { "u16", GGUF_U16 }, { "u32", GGUF_U32 }, { "i32", GGUF_I32 }, { "f32", GGUF_F32 },
		{ "bool", GGUF_BOOL }, { "u64", GGUF_U64 }, { "str", GGUF_STRING },
	};

	for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
		if (strlen(types[i].name) == n && memcmp(types[i].name, kind, n) == 0)
			return types[i].type;
	fail_msg("no type %s", kind);
	return 0;
}

static inline void blob_value(struct table_blob *b, uint32_t type, const json_t *j)
{
	static const uint8_t bytes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8 };
	uint64_t v = json_is_true(j) ? 1 : (uint64_t)json_integer_value(j);
	float f = (float)json_number_value(j);

	if (type == GGUF_STRING)
		blob_text(b, json_string_value(j), json_string_length(j));
	else
		blob_put(b, type == GGUF_F32 ? (void *)&f : (void *)&v, bytes[type]);
}

/* [name, type or type[], value] */
static inline void table_add_key(struct table *t, const json_t *j)
{
	const char *name = json_string_value(json_array_get(j, 0)), *kind = json_string_value(json_array_get(j, 1));
	struct table_key *k = &t->key[t->n_keys++];
	const json_t *value = json_array_get(j, 2), *item;
	bool list = strchr(kind, '[') != NULL;
	uint32_t type = table_type(kind, strcspn(kind, "["));
	size_t i;

	assert_in_range(t->n_keys, 1, TABLE_KEYS - 1);
	snprintf(k->name, sizeof(k->name), "%s", name);
	if (!list) {
		blob_u32(&k->value, type);
		blob_value(&k->value, type, value);
		return;
	}
	blob_array(&k->value, type, json_array_size(value));
	json_array_foreach(value, i, item)
		blob_value(&k->value, type, item);
}

/* One tensor; `number` takes the place of # in its name.  Weights are F32. */
static inline void table_add_tensor(struct table *t, const json_t *j, long number)
{
	const char *name = json_string_value(json_array_get(j, 0)), *mark = strchr(name, '#');
	const json_t *shape = json_array_get(j, 1), *data = json_array_get(j, 3);
	struct table_tensor *e = &t->tensor[t->n_tensors++];
	uint64_t items = 1;

	assert_in_range(t->n_tensors, 1, TABLE_TENSORS - 1);
	if (mark)
		snprintf(e->name, sizeof(e->name), "%.*s%ld%s", (int)(mark - name), name, number, mark + 1);
	else
		snprintf(e->name, sizeof(e->name), "%s", name);
	e->n_dims = (uint32_t)json_array_size(shape);
	for (uint32_t d = 0; d < e->n_dims; d++) {
		e->dim[d] = (uint64_t)json_integer_value(json_array_get(shape, e->n_dims - 1 - d));
		items *= e->dim[d];
	}
	if (json_is_null(json_array_get(j, 2)))        /* made of numbers that the recipe has */
		for (; e->n_data < json_array_size(data) && e->n_data < 64; e->n_data++)
			e->data[e->n_data] = (float)json_number_value(json_array_get(data, e->n_data));
	e->offset = t->data;
	t->data += (4 * items + 31) / 32 * 32;
}

/* [name, shape, source, steps, numbers]: numbers such as "0-2,5", or "". */
static inline void table_add_tensors(struct table *t, const json_t *j)
{
	const char *at = json_string_value(json_array_get(j, 4));

	if (!at || !*at) {
		table_add_tensor(t, j, 0);
		return;
	}
	for (; *at; at += *at == ',') {
		long first = strtol(at, (char **)&at, 10), last = *at == '-' ? strtol(at + 1, (char **)&at, 10) : first;

		for (; first <= last; first++)
			table_add_tensor(t, j, first);
	}
}

static inline struct table *table_read(const json_t *keys, const json_t *tensors)
{
	struct table *t = calloc(1, sizeof(*t));
	const json_t *j;
	size_t i;

	assert_non_null(t);
	json_array_foreach(keys, i, j)
		table_add_key(t, j);
	json_array_foreach(tensors, i, j)
		table_add_tensors(t, j);
	return t;
}

static inline void table_free(struct table *t)
{
	for (int i = 0; i < t->n_keys; i++)
		free(t->key[i].value.p);
	free(t);
}

/* ---- to a file -------------------------------------------------------------------------------------- */

/* Into a file in memory. */
static inline void table_write(const struct table *t, int fd, uint64_t *bytes)
{
	static struct table_blob b;
	size_t head;

	b.n = 0;
	blob_put(&b, "GGUF\3\0\0", 8);
	blob_u64(&b, (uint64_t)t->n_tensors);
	blob_u64(&b, (uint64_t)t->n_keys);
	for (int i = 0; i < t->n_keys; i++) {
		blob_text(&b, t->key[i].name, strlen(t->key[i].name));
		blob_put(&b, t->key[i].value.p, t->key[i].value.n);
	}
	for (int i = 0; i < t->n_tensors; i++) {
		const struct table_tensor *e = &t->tensor[i];

		blob_text(&b, e->name, strlen(e->name));
		blob_u32(&b, e->n_dims);
		blob_put(&b, e->dim, 8 * (e->n_dims < 5 ? e->n_dims : 5));
		blob_u32(&b, e->type);
		blob_u64(&b, e->offset);
	}
	while (b.n % 32)
		blob_put(&b, "", 1);
	head = b.n;
	*bytes = head + t->data;
	assert_int_equal(ftruncate(fd, 0), 0);
	assert_int_equal(pwrite(fd, b.p, head, 0), head);
	assert_int_equal(ftruncate(fd, (off_t)*bytes), 0);
	for (int i = 0; i < t->n_tensors; i++)
		if (t->tensor[i].n_data && t->tensor[i].offset < t->data)
			assert_true(pwrite(fd, t->tensor[i].data, 4 * t->tensor[i].n_data,
			                   (off_t)(head + t->tensor[i].offset)) > 0);
}

/* ---- what should not be ------------------------------------------------------------------------------ */

#define MIB (1u << 20)

static inline void blob_number(struct table_blob *b, uint32_t type, uint64_t v, size_t bytes)
{
	blob_u32(b, type);
	blob_put(b, &v, bytes);
}

static inline void blob_float(struct table_blob *b, double v)
{
	float f = (float)v;

	blob_u32(b, GGUF_F32);
	blob_put(b, &f, 4);
}

static inline void blob_repeated(struct table_blob *b, char c, size_t n)
{
	blob_u32(b, GGUF_STRING);
	blob_u64(b, n);
	while (n--)
		blob_put(b, &c, 1);
}

static inline void blob_numbers(struct table_blob *b, uint32_t item, size_t bytes, uint64_t n, uint64_t v)
{
	blob_array(b, item, n);
	while (n--)
		blob_put(b, &v, bytes);
}

static inline void blob_texts(struct table_blob *b, uint64_t n, const char *s)
{
	blob_array(b, GGUF_STRING, n);
	while (n--)
		blob_text(b, s, strlen(s));
}

/* Value i of any key. */
#define GGUF_VALUES 42
static inline void gguf_hostile(struct table_blob *b, int i)
{
	switch (i) {
	case 0:  blob_number(b, GGUF_U32, 0, 4); break;
	case 1:  blob_number(b, GGUF_U32, 1, 4); break;
	case 2:  blob_number(b, GGUF_I32, UINT64_MAX, 4); break;
	case 3:  blob_number(b, GGUF_I64, UINT64_MAX, 8); break;
	case 4:  blob_number(b, GGUF_U32, 1u << 31, 4); break;
	case 5:  blob_number(b, GGUF_U32, INT32_MAX, 4); break;
	case 6:  blob_number(b, GGUF_U64, (uint64_t)1 << 32, 8); break;
	case 7:  blob_number(b, GGUF_U64, ((uint64_t)1 << 32) + 4, 8); break;
	case 8:  blob_number(b, GGUF_U64, (uint64_t)1 << 63, 8); break;
	case 9:  blob_number(b, GGUF_U64, UINT64_MAX, 8); break;
	case 10: blob_number(b, GGUF_I64, (uint64_t)1 << 63, 8); break;
	case 11: blob_number(b, GGUF_U8, 255, 1); break;
	case 12: blob_number(b, GGUF_U32, 1 << 20, 4); break;
	case 13: blob_number(b, GGUF_U32, 3, 4); break;
	case 14: blob_number(b, GGUF_F32, 0x7fc00000, 4); break;               /* NaN */
	case 15: blob_number(b, GGUF_F64, 0x7ff0000000000000, 8); break;       /* infinity */
	case 16: blob_float(b, 1e38); break;
	case 17: blob_float(b, -1); break;
	case 18: blob_float(b, 0); break;
	case 19: blob_number(b, GGUF_BOOL, 1, 1); break;
	case 20: blob_number(b, GGUF_BOOL, 0, 1); break;
	case 21: blob_number(b, GGUF_BOOL, 7, 1); break;
	case 22: blob_repeated(b, 'x', 0); break;
	case 23: blob_repeated(b, 'x', 1); break;
	case 24: blob_repeated(b, '\n', 300); break;
	case 25: blob_repeated(b, 'a', MIB); break;
	case 26: blob_repeated(b, '\x7f', MIB); break;
	case 27: blob_repeated(b, '{', MIB); break;
	case 28: blob_number(b, GGUF_STRING, (uint64_t)1 << 63, 8); break;     /* as long as that */
	case 29: blob_array(b, GGUF_U32, (uint64_t)1 << 62); break;
	case 30: blob_array(b, GGUF_STRING, (uint64_t)1 << 61); break;
	case 31: blob_array(b, GGUF_U8, (uint64_t)1 << 32); break;
	case 32: blob_array(b, GGUF_ARRAY, 1); break;
	case 33: blob_array(b, GGUF_U32, 0); break;
	case 34: blob_array(b, GGUF_STRING, 0); break;
	case 35: blob_numbers(b, GGUF_U32, 4, 4096, UINT32_MAX); break;
	case 36: blob_numbers(b, GGUF_F32, 4, 64, 0x7fc00000); break;
	case 37: blob_numbers(b, GGUF_BOOL, 1, 70000, 1); break;
	case 38: blob_numbers(b, GGUF_I32, 4, 70000, 1); break;
	case 39: blob_texts(b, 20000, ""); break;
	case 40: blob_texts(b, 20000, "a b"); break;
	default: blob_number(b, 13, 0, 8); break;                              /* a type that is none */
	}
}

/* Item `at` of an array becomes this: of numbers all bits, or nothing; of strings an empty one, a long one, ..  False:
 * the value is no array, or has no such item. */
#define GGUF_ITEMS 12
static inline bool gguf_hostile_item(struct table_blob *out, const struct table_blob *old, int i)
{
	static const uint8_t bytes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
	static char text[MIB];
	uint32_t type, item;
	uint64_t n, at, len = 0, want = i % 6 == 0 ? 0 : i % 6 == 1 ? 300 : i % 6 == 2 ? MIB : 1;
	const uint8_t *p = old->p + 16, *end = old->p + old->n;

	memcpy(&type, old->p, 4);
	if (type != GGUF_ARRAY)
		return false;
	memcpy(&item, old->p + 4, 4);
	memcpy(&n, old->p + 8, 8);
	at = i < 6 ? 0 : n / 2;
	if (at >= n)
		return false;
	memset(text, i % 6 == 3 ? '\n' : i % 6 == 4 ? ' ' : 'a', sizeof(text));
	blob_array(out, item, i % 6 == 5 ? n - 1 : n);         /* one is missing */
	for (uint64_t k = 0; p < end; k++, p += len) {
		len = bytes[item];
		if (item == GGUF_STRING) {
			memcpy(&len, p, 8);
			len += 8;
		}
		if (k != at)
			blob_put(out, p, len);
		else if (i % 6 != 5 && item == GGUF_STRING)
			blob_text(out, text, want);
		else if (i % 6 != 5)
			blob_put(out, i % 6 == 0 ? "\xff\xff\xff\xff\xff\xff\xff\x7f" : i % 6 == 1 ? "\0\0\xc0\x7f\0\0\0\x80" :
			         i % 6 == 2 ? "\0\0\0\0\0\0\0" : i % 6 == 3 ? "\1\0\0\0\0\0\0" : "\0\0\0\x80\0\0\0", len);
	}
	return true;
}

/* Tensor e of the table becomes what it must not be. */
#define GGUF_TENSORS 27
static inline void gguf_hostile_tensor(struct table *t, int e, int i)
{
	static const uint64_t sizes[] = { 0, 1, (uint64_t)1 << 31, (uint64_t)1 << 32, (uint64_t)1 << 63, UINT64_MAX };
	static const uint32_t types[] = { 1, 8, 12, 26, 39, 40, 99, UINT32_MAX };
	struct table_tensor *x = &t->tensor[e];
	uint64_t first = x->dim[0];

	if (i < 6) {
		x->dim[0] = sizes[i];
	} else if (i < 14) {
		x->type = types[i - 6];
	} else switch (i) {
	case 14: x->n_dims = 0; break;
	case 15: x->n_dims = 1; break;
	case 16: x->dim[x->n_dims] = 1; x->n_dims++; break;
	case 17: x->n_dims = 5; break;
	case 18: x->dim[0] = x->dim[1]; x->dim[1] = first; break;
	case 19: x->dim[0]++; break;
	case 20: x->dim[x->n_dims - 1] = (uint64_t)1 << 32; break;
	case 21: x->offset += 1; break;
	case 22: x->offset = (uint64_t)1 << 63; break;
	case 23: x->offset = t->data; break;
	case 24: x->offset = e ? t->tensor[0].offset : t->tensor[1].offset; break;
	case 25: strcpy(x->name, "x\ny.weight"); break;
	default: t->tensor[e] = t->tensor[--t->n_tensors]; break;      /* it is missing */
	}
}

#endif
