/* gguf.c - parses the table of a GGUF file.  Pure: (pointer, length) in, table out; one pass, no
 * recursion, memory in proportion to the bytes given.  See gguf.h.
 *
 * The head of a file, little endian throughout:
 *
 *	"GGUF" u32 version, u64 n_tensors, u64 n_values
 *	n_values  x { string key, u32 type, value }       string = u64 length, bytes
 *	n_tensors x { string name, u32 n_dims, u64 dim[n_dims], u32 type, u64 offset }
 *	zeros up to the alignment, then the data that the offsets count from
 */
#include "gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/instance/refuse.h"

#define KEY_MAX 65535          /* bytes, by the specification */
#define NAME_MAX_BYTES 64      /* of a tensor, by the specification */
#define VALUE_MIN (8 + 4 + 1)  /* bytes of the smallest value or tensor entry: bounds the counts */
#define TENSOR_MIN (8 + 4 + 8 + 4 + 8)

/* ggml's tensor types: weights per block and bytes per block.  gguf_parse lists types that are not
 * here with bytes == 0; the code that reads weights refuses them. */
static const struct { uint32_t type; const char *name; uint32_t block, bytes; } types[] = {
	{  0, "F32",    1,   4 },  {  1, "F16",    1,   2 },  {  2, "Q4_0",   32,  18 },
	{  3, "Q4_1",   32, 20 },  {  6, "Q5_0",   32, 22 },  {  7, "Q5_1",   32,  24 },
	{  8, "Q8_0",   32, 34 },  {  9, "Q8_1",   32, 36 },  { 10, "Q2_K",  256,  84 },
	{ 11, "Q3_K",  256, 110 }, { 12, "Q4_K",  256, 144 }, { 13, "Q5_K",  256, 176 },
	{ 14, "Q6_K",  256, 210 }, { 15, "Q8_K",  256, 292 }, { 16, "IQ2_XXS", 256, 66 },
	{ 17, "IQ2_XS", 256, 74 }, { 18, "IQ3_XXS", 256, 98 }, { 19, "IQ1_S", 256, 50 },
	{ 20, "IQ4_NL", 32,  18 }, { 21, "IQ3_S", 256, 110 }, { 22, "IQ2_S", 256,  82 },
	{ 23, "IQ4_XS", 256, 136 }, { 24, "I8",     1,   1 }, { 25, "I16",     1,   2 },
	{ 26, "I32",    1,   4 },  { 27, "I64",     1,   8 }, { 28, "F64",     1,   8 },
	{ 29, "IQ1_M", 256,  56 }, { 30, "BF16",    1,   2 }, { 34, "TQ1_0", 256,  54 },
	{ 35, "TQ2_0", 256,  66 }, { 39, "MXFP4",  32,  17 }, { 40, "NVFP4",  64,  36 },
};

static int type_index(uint32_t type)
{
	for (unsigned i = 0; i < sizeof(types) / sizeof(*types); i++)
		if (types[i].type == type)
			return (int)i;
	return -1;
}

const char *gguf_type_name(uint32_t tensor_type)
{
	static _Thread_local char other[20];
	int i = type_index(tensor_type);

	if (i >= 0)
		return types[i].name;
	snprintf(other, sizeof(other), "%" PRIu32, tensor_type);
	return other;
}

/* ---- reading, with bounds ------------------------------------------------------------------- */

struct gguf_reader {
	const uint8_t *p;
	uint64_t at, n;            /* bytes parsed, bytes in memory */
	uint64_t file;             /* bytes in the file */
	struct gguf_string of;     /* the key whose value is read, or empty */
	char  *err;
	size_t errlen;
};

#define fail(r, ...) refuse(-EINVAL, (r)->err, (r)->errlen, __VA_ARGS__)

static int show(const struct gguf_string *s)  /* length of a name, for %.*s */
{
	return s->n < 80 ? (int)s->n : 80;
}

/* Require n more bytes of `what`: 0; -E2BIG in the file but not in memory; -EINVAL not in the file. */
static int need(struct gguf_reader *r, uint64_t n, const char *what)
{
	if (n <= r->n - r->at)
		return 0;
	if (n <= r->file - r->at) {
		fail(r, "%s at offset %" PRIu64 " goes past the %" PRIu64 " bytes read", what, r->at, r->n);
		return -E2BIG;
	}
	return fail(r, "%s%s%.*s at offset %" PRIu64 " needs %" PRIu64 " bytes, but the file ends at %" PRIu64, what,
	            r->of.n ? " of " : "", show(&r->of), r->of.n ? r->of.s : "", r->at, n, r->file);
}

static uint64_t little(const uint8_t *p, unsigned bytes)
{
	uint64_t v = 0;

	for (unsigned i = 0; i < bytes; i++)
		v |= (uint64_t)p[i] << 8 * i;
	return v;
}

static int get_uint(struct gguf_reader *r, unsigned bytes, uint64_t *v, const char *what)
{
	int rc = need(r, bytes, what);

	if (rc == 0) {
		*v = little(r->p + r->at, bytes);
		r->at += bytes;
	}
	return rc;
}

static int get_u32(struct gguf_reader *r, uint32_t *v, const char *what)
{
	uint64_t x = 0;
	int rc = get_uint(r, 4, &x, what);

	*v = (uint32_t)x;
	return rc;
}

static int get_string(struct gguf_reader *r, struct gguf_string *s, uint64_t max, const char *what)
{
	uint64_t at = r->at;
	int rc = get_uint(r, 8, &s->n, what);

	if (rc)
		return rc;
	if (s->n > max)
		return fail(r, "%s at offset %" PRIu64 " is %" PRIu64 " bytes long; at most %" PRIu64 " are "
		            "allowed",
		            what, at, s->n, max);
	rc = need(r, s->n, what);
	if (rc)
		return rc;
	s->s = (const char *)r->p + r->at;
	r->at += s->n;
	return 0;
}

/* ---- values --------------------------------------------------------------------------------- */

static unsigned value_bytes(uint32_t type)   /* 0: a string, an array or an unknown type */
{
	static const uint8_t bytes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

	return type < sizeof(bytes) ? bytes[type] : 0;
}

/* Read the items of v; r->at is at the first. */
static int get_items(struct gguf_reader *r, struct gguf_value *v)
{
	uint32_t type = v->type == GGUF_ARRAY ? v->item : v->type;
	uint64_t start = r->at, bytes;
	struct gguf_string s;
	int rc;

	v->data = r->p + r->at;
	if (type == GGUF_STRING) {
		if (v->n > (r->file - r->at) / 8)
			return fail(r, "value %.*s at offset %" PRIu64 " claims %" PRIu64 " strings, more "
			            "than the file holds",
			            show(&v->key), v->key.s, r->at, v->n);
		for (uint64_t i = 0; i < v->n; i++)
			if ((rc = get_string(r, &s, UINT64_MAX, "string")) != 0)
				return rc;
	} else {
		if (__builtin_mul_overflow(v->n, (uint64_t)value_bytes(type), &bytes))
			return fail(r, "value %.*s at offset %" PRIu64 " claims %" PRIu64 " items, more than "
			            "the file holds",
			            show(&v->key), v->key.s, r->at, v->n);
		if ((rc = need(r, bytes, "value")) != 0)
			return rc;
		if (type == GGUF_BOOL)
			for (uint64_t i = 0; i < v->n; i++)
				if (v->data[i] > 1)
					return fail(r, "value %.*s at offset %" PRIu64 ": a boolean is 0 or "
					            "1, not %d",
					            show(&v->key), v->key.s, r->at + i, v->data[i]);
		r->at += bytes;
	}
	v->bytes = r->at - start;
	return 0;
}

static int get_value(struct gguf_reader *r, struct gguf_value *v)
{
	uint64_t at;
	int rc;

	r->of.n = 0;
	rc = get_string(r, &v->key, KEY_MAX, "key");
	at = r->at;
	if (rc)
		return rc;
	if (v->key.n == 0)
		return fail(r, "key before offset %" PRIu64 " is empty", at);
	r->of = v->key;
	v->n = 1;
	if ((rc = get_u32(r, &v->type, "type of a value")) != 0)
		return rc;
	if (v->type > GGUF_F64)
		return fail(r, "value %.*s at offset %" PRIu64 " has type %" PRIu32 "; types are 0 to %d",
		            show(&v->key), v->key.s, at, v->type, GGUF_F64);
	if (v->type == GGUF_ARRAY) {
		if ((rc = get_u32(r, &v->item, "type of an array's items")) != 0 ||
		    (rc = get_uint(r, 8, &v->n, "length of an array")) != 0)
			return rc;
		if (v->item > GGUF_F64 || v->item == GGUF_ARRAY)
			return fail(r, "array %.*s at offset %" PRIu64 " has items of type %" PRIu32
			            "; scalars and strings are supported", show(&v->key), v->key.s, at,
			            v->item);
	}
	return get_items(r, v);
}

/* ---- tensors -------------------------------------------------------------------------------- */

static int get_tensor(struct gguf_reader *r, struct gguf_tensor *t)
{
	uint64_t items = 1;
	int rc, i;

	t->at = r->at;
	r->of.n = 0;
	if ((rc = get_string(r, &t->name, NAME_MAX_BYTES, "tensor name")) != 0 ||
	    (rc = get_u32(r, &t->n_dims, "dimensions of a tensor")) != 0)
		return rc;
	if (t->n_dims < 1 || t->n_dims > 4)
		return fail(r, "tensor %.*s at offset %" PRIu64 " has %" PRIu32 " dimensions; 1 to 4 are "
		            "allowed",
		            show(&t->name), t->name.s, t->at, t->n_dims);
	for (unsigned d = 0; d < 4; d++) {
		t->dim[d] = 1;
		if (d < t->n_dims && (rc = get_uint(r, 8, &t->dim[d], "dimension of a tensor")) != 0)
			return rc;
		if (t->dim[d] == 0 || __builtin_mul_overflow(items, t->dim[d], &items) || items > INT64_MAX)
			return fail(r, "tensor %.*s at offset %" PRIu64 ": dimension %u is %" PRIu64
			            ", which is zero or too large", show(&t->name), t->name.s, t->at, d,
			            t->dim[d]);
	}
	if ((rc = get_u32(r, &t->type, "type of a tensor")) != 0 ||
	    (rc = get_uint(r, 8, &t->offset, "offset of a tensor")) != 0)
		return rc;
	i = type_index(t->type);
	if (i < 0)
		return 0;
	if (t->dim[0] % types[i].block)
		return fail(r, "tensor %.*s at offset %" PRIu64 ": rows of %" PRIu64 " are no multiple of "
		            "the %u of a %s block",
		            show(&t->name), t->name.s, t->at, t->dim[0], types[i].block, types[i].name);
	if (__builtin_mul_overflow(items / types[i].block, (uint64_t)types[i].bytes, &t->bytes))
		return fail(r, "tensor %.*s at offset %" PRIu64 " is too large", show(&t->name), t->name.s,
		            t->at);
	return 0;
}

/* Make offsets absolute.  Each must be aligned, and its data inside the file. */
static int place_tensors(struct gguf_reader *r, struct gguf *g, uint64_t alignment)
{
	uint64_t pad = (alignment - r->at % alignment) % alignment;

	g->data_offset = r->at + pad;
	if (g->n_tensors == 0)
		return 0;
	if (g->data_offset > r->file)
		return fail(r, "tensor data should begin at offset %" PRIu64 ", but the file ends at "
		            "%" PRIu64,
		            g->data_offset, r->file);
	for (uint64_t i = 0; i < g->n_tensors; i++) {
		struct gguf_tensor *t = &g->tensor[i];
		uint64_t room = r->file - g->data_offset;

		if (t->offset % alignment)
			return fail(r, "tensor %.*s at offset %" PRIu64 ": its data offset %" PRIu64
			            " is no multiple of the alignment %" PRIu64,
			            show(&t->name), t->name.s, t->at, t->offset, alignment);
		if (t->offset > room || t->bytes > room - t->offset)
			return fail(r, "tensor %.*s at offset %" PRIu64 ": its data (%" PRIu64 " bytes at "
			            "%" PRIu64
			            " of the data) goes past the end of the file at %" PRIu64,
			            show(&t->name), t->name.s, t->at, t->bytes, t->offset, r->file);
		t->offset += g->data_offset;
	}
	return 0;
}

/* ---- no name twice, no byte twice ----------------------------------------------------------- */

int gguf_compare(const struct gguf_string *a, const struct gguf_string *b)
{
	size_t n = a->n < b->n ? a->n : b->n;
	int c = n ? memcmp(a->s, b->s, n) : 0;

	return c ? c : (a->n > b->n) - (a->n < b->n);
}
static int by_key(const void *a, const void *b)
{
	const struct gguf_value *const *x = a, *const *y = b;

	return gguf_compare(&(*x)->key, &(*y)->key);
}
static int by_name(const void *a, const void *b)
{
	const struct gguf_tensor *const *x = a, *const *y = b;

	return gguf_compare(&(*x)->name, &(*y)->name);
}
static int by_offset(const void *a, const void *b)
{
	const struct gguf_tensor *x = *(struct gguf_tensor *const *)a, *y = *(struct gguf_tensor *const *)b;

	return (x->offset > y->offset) - (x->offset < y->offset);
}

static int named_twice(struct gguf_reader *r, const char *what, const struct gguf_string *s)
{
	return fail(r, "%s %.*s at offset %" PRIu64 " is there twice", what, show(s), s->s,
	            (uint64_t)((const uint8_t *)s->s - r->p));
}

/* Sort the tables: names are found by bisection, and duplicates show. */
static int sort_names(struct gguf_reader *r, struct gguf *g)
{
	g->value_by_name = calloc(g->n_values + 1, sizeof(*g->value_by_name));
	g->tensor_by_name = calloc(g->n_tensors + 1, sizeof(*g->tensor_by_name));
	if (!g->value_by_name || !g->tensor_by_name)
		return -ENOMEM;
	for (uint64_t i = 0; i < g->n_values; i++)
		g->value_by_name[i] = &g->value[i];
	for (uint64_t i = 0; i < g->n_tensors; i++)
		g->tensor_by_name[i] = &g->tensor[i];
	qsort(g->value_by_name, g->n_values, sizeof(*g->value_by_name), by_key);
	qsort(g->tensor_by_name, g->n_tensors, sizeof(*g->tensor_by_name), by_name);
	for (uint64_t i = 1; i < g->n_values; i++)
		if (by_key(&g->value_by_name[i - 1], &g->value_by_name[i]) == 0)
			return named_twice(r, "key", &g->value_by_name[i]->key);
	for (uint64_t i = 1; i < g->n_tensors; i++)
		if (by_name(&g->tensor_by_name[i - 1], &g->tensor_by_name[i]) == 0)
			return named_twice(r, "tensor", &g->tensor_by_name[i]->name);
	return 0;
}

static int check_overlaps(struct gguf_reader *r, const struct gguf *g)
{
	const struct gguf_tensor **sorted = calloc(g->n_tensors + 1, sizeof(*sorted));
	int rc = 0;

	if (!sorted)
		return -ENOMEM;
	for (uint64_t i = 0; i < g->n_tensors; i++)
		sorted[i] = &g->tensor[i];
	qsort(sorted, g->n_tensors, sizeof(*sorted), by_offset);
	for (uint64_t i = 1; i < g->n_tensors && !rc; i++) {
		const struct gguf_tensor *a = sorted[i - 1], *b = sorted[i];

		if (a->bytes > b->offset - a->offset)
			rc = fail(r, "tensor %.*s at offset %" PRIu64 ": its data overlaps that of %.*s",
			          show(&b->name), b->name.s, b->at, show(&a->name), a->name.s);
	}
	free(sorted);
	return rc;
}

/* ---- the whole ------------------------------------------------------------------------------ */

static int parse_counts(struct gguf_reader *r, struct gguf *g)
{
	uint64_t left;
	int rc = need(r, 4, "magic");

	if (rc)
		return rc;
	if (memcmp(r->p, "GGUF", 4) != 0)
		return fail(r, "magic at offset 0 is not \"GGUF\": this is no GGUF file");
	r->at = 4;
	if ((rc = get_u32(r, &g->version, "version")) != 0)
		return rc;
	if (g->version != 2 && g->version != 3)
		return fail(r, "version at offset 4 is %" PRIu32 "; 2 and 3 are supported%s", g->version,
		            g->version && !(g->version & 0xffff) ? " (this file is big endian)" : "");
	if ((rc = get_uint(r, 8, &g->n_tensors, "tensor_count")) != 0 ||
	    (rc = get_uint(r, 8, &g->n_values, "kv_count")) != 0)
		return rc;
	left = r->file - r->at;
	if (g->n_tensors > left / TENSOR_MIN)
		return fail(r, "tensor_count at offset 8 is %" PRIu64 ", more than %" PRIu64 " bytes can "
		            "hold",
		            g->n_tensors, r->file);
	if (g->n_values > left / VALUE_MIN)
		return fail(r, "kv_count at offset 16 is %" PRIu64 ", more than %" PRIu64 " bytes can hold",
		            g->n_values, r->file);
	if (g->n_tensors > (r->n - r->at) / TENSOR_MIN || g->n_values > (r->n - r->at) / VALUE_MIN)
		return -E2BIG;         /* memory in proportion to the bytes in memory, not to the file's claim */
	g->value = calloc(g->n_values + 1, sizeof(*g->value));
	g->tensor = calloc(g->n_tensors + 1, sizeof(*g->tensor));
	return g->value && g->tensor ? 0 : -ENOMEM;
}

static int parse(struct gguf_reader *r, struct gguf *g)
{
	uint64_t alignment = 32, i;
	int rc = parse_counts(r, g);

	for (i = 0; rc == 0 && i < g->n_values; i++)
		rc = get_value(r, &g->value[i]);
	for (i = 0; rc == 0 && i < g->n_tensors; i++)
		rc = get_tensor(r, &g->tensor[i]);
	if (rc)
		return rc;
	rc = sort_names(r, g);
	if (rc)
		return rc;
	if (gguf_u64(g, "general.alignment", &alignment) == -EINVAL)
		return fail(r, "value general.alignment is no integer from 0 up");
	if (alignment < 8 || alignment > 1 << 20 || alignment & (alignment - 1))
		return fail(r, "value general.alignment is %" PRIu64 "; powers of two from 8 to 1048576 are "
		            "allowed",
		            alignment);
	rc = place_tensors(r, g, alignment);
	return rc ? rc : check_overlaps(r, g);
}

int gguf_parse(struct gguf **out, const void *p, size_t n, uint64_t file_bytes, char *err, size_t errlen)
{
	struct gguf_reader r = { .p = p, .n = n < file_bytes ? n : file_bytes, .file = file_bytes,
	                         .err = err, .errlen = errlen };
	struct gguf *g = calloc(1, sizeof(*g));
	int rc;

	*out = NULL;
	if (!g)
		rc = -ENOMEM;
	else
		rc = parse(&r, g);
	if (rc == -ENOMEM)
		snprintf(err, errlen, "no memory for the table of a GGUF file");
	if (rc)
		gguf_free(g);
	else
		*out = g;
	return rc;
}

void gguf_free(struct gguf *g)
{
	if (!g)
		return;
	free(g->value);
	free(g->tensor);
	free(g->value_by_name);
	free(g->tensor_by_name);
	free(g);
}

/* ---- questions ------------------------------------------------------------------------------ */

const struct gguf_value *gguf_find(const struct gguf *g, const char *key)
{
	const struct gguf_value want = { .key = { key, strlen(key) } }, *w = &want;
	const struct gguf_value **at = bsearch(&w, g->value_by_name, g->n_values, sizeof(w), by_key);

	return at ? *at : NULL;
}

const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name)
{
	const struct gguf_tensor want = { .name = { name, strlen(name) } }, *w = &want;
	const struct gguf_tensor **at = bsearch(&w, g->tensor_by_name, g->n_tensors, sizeof(w), by_name);

	return at ? *at : NULL;
}

int gguf_u64(const struct gguf *g, const char *key, uint64_t *out)
{
	const struct gguf_value *v = gguf_find(g, key);
	uint64_t x;
	unsigned bytes;

	if (!v)
		return -ENOENT;
	bytes = value_bytes(v->type);
	x = little(v->data, bytes);
	switch (v->type) {
	case GGUF_I8: case GGUF_I16: case GGUF_I32: case GGUF_I64:
		if (x >> (8 * bytes - 1) & 1)
			return -EINVAL;        /* negative */
		break;
	case GGUF_U8: case GGUF_U16: case GGUF_U32: case GGUF_U64:
		break;
	default:
		return -EINVAL;
	}
	*out = x;
	return 0;
}

int gguf_f64(const struct gguf *g, const char *key, double *out)
{
	const struct gguf_value *v = gguf_find(g, key);
	uint32_t bits;
	float f;

	if (!v)
		return -ENOENT;
	if (v->type == GGUF_F64) {
		uint64_t wide = little(v->data, 8);
		memcpy(out, &wide, 8);
	} else if (v->type == GGUF_F32) {
		bits = (uint32_t)little(v->data, 4);
		memcpy(&f, &bits, 4);
		*out = (double)f;
	} else {
		return -EINVAL;
	}
	return isfinite(*out) ? 0 : -EINVAL;
}

int gguf_bool(const struct gguf *g, const char *key, bool *out)
{
	const struct gguf_value *v = gguf_find(g, key);

	if (!v)
		return -ENOENT;
	if (v->type != GGUF_BOOL)
		return -EINVAL;
	*out = v->data[0] != 0;
	return 0;
}

int gguf_str(const struct gguf *g, const char *key, struct gguf_string *out)
{
	const struct gguf_value *v = gguf_find(g, key);

	if (!v)
		return -ENOENT;
	if (v->type != GGUF_STRING)
		return -EINVAL;
	out->n = little(v->data, 8);
	out->s = (const char *)v->data + 8;
	return 0;
}

bool gguf_next_string(const struct gguf_value *v, const uint8_t **at, struct gguf_string *out)
{
	if (*at >= v->data + v->bytes)
		return false;
	out->n = little(*at, 8);
	out->s = (const char *)*at + 8;
	*at += 8 + out->n;
	return true;
}

bool gguf_part_name(const char *path, int32_t *no, int32_t *of)
{
	static const char form[] = "-ddddd-of-ddddd.gguf";
	size_t n = strlen(path), len = sizeof(form) - 1;
	const char *end = path + n - len;

	if (n < len)
		return false;
	for (size_t i = 0; i < len; i++)
		if (form[i] == 'd' ? end[i] < '0' || end[i] > '9' : end[i] != form[i])
			return false;
	*no = (int32_t)strtol(end + 1, NULL, 10);
	*of = (int32_t)strtol(end + 10, NULL, 10);
	return true;
}

/* ---- files ---------------------------------------------------------------------------------- */

static int open_regular(struct gguf_file *f, const char *path, char *err, size_t errlen)
{
	struct stat st;
	int rc = 0;

	memset(f, 0, sizeof(*f));
	f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  /* O_NONBLOCK: a FIFO must not block us */
	if (f->fd < 0 || fstat(f->fd, &st) < 0) {
		rc = -errno;
		snprintf(err, errlen, "%s: %s", path, strerror(-rc));
	} else if (!S_ISREG(st.st_mode) || st.st_size <= 0) {
		rc = -EINVAL;
		snprintf(err, errlen, "%s: is empty or no regular file", path);
	} else {
		f->bytes = (uint64_t)st.st_size;
	}
	return rc;
}

int gguf_open(struct gguf_file *f, const char *path, char *err, size_t errlen)
{
	char why[300] = "";
	void *base;
	int rc = open_regular(f, path, err, errlen);

	if (rc)
		goto out;
	base = mmap(NULL, f->bytes, PROT_READ, MAP_SHARED, f->fd, 0);
	if (base == MAP_FAILED) {
		rc = -errno;
		snprintf(err, errlen, "%s: cannot be mapped: %s", path, strerror(-rc));
		goto out;
	}
	f->base = base;
	f->mapped = true;
	rc = gguf_parse(&f->g, f->base, f->bytes, f->bytes, why, sizeof(why));
	if (rc)
		snprintf(err, errlen, "%s: %s", path, why);
out:
	if (rc)
		gguf_close(f);
	return rc;
}

/* Grow base, and read bytes [*have, want) of the file into it. */
static int read_more(struct gguf_file *f, uint64_t *have, uint64_t want, char *why, size_t whylen)
{
	uint8_t *p = realloc((void *)(uintptr_t)f->base, want);

	if (!p) {
		snprintf(why, whylen, "no memory for its first %" PRIu64 " bytes", want);
		return -ENOMEM;
	}
	f->base = p;
	while (*have < want) {
		ssize_t r = pread(f->fd, p + *have, want - *have, (off_t)*have);

		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0) {
			int rc = r < 0 ? -errno : -EIO;

			snprintf(why, whylen, "offset %" PRIu64 ": %s", *have,
			         r < 0 ? strerror(-rc) : "the file ends here; it was longer a moment ago");
			return rc;
		}
		*have += (uint64_t)r;
	}
	return 0;
}

int gguf_read(struct gguf_file *f, const char *path, char *err, size_t errlen)
{
	char why[300] = "";
	uint64_t have = 0, want = 1 << 20;
	int rc = open_regular(f, path, err, errlen);

	if (rc) {
		gguf_close(f);
		return rc;
	}
	do {
		want = want < f->bytes ? want : f->bytes;
		rc = read_more(f, &have, want, why, sizeof(why));
		if (rc == 0)
			rc = gguf_parse(&f->g, f->base, have, f->bytes, why, sizeof(why));
		want *= 4;
	} while (rc == -E2BIG && have < f->bytes);
	if (rc) {
		snprintf(err, errlen, "%s: %s", path, why);
		gguf_close(f);
	}
	return rc;
}

void gguf_close(struct gguf_file *f)
{
	gguf_free(f->g);
	if (f->mapped)
		munmap((void *)(uintptr_t)f->base, f->bytes);
	else
		free((void *)(uintptr_t)f->base);
	if (f->fd >= 0)
		close(f->fd);
	memset(f, 0, sizeof(*f));
	f->fd = -1;
}
