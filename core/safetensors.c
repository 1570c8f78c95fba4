/* safetensors.c - the table of a safetensors file.  See safetensors.h. */
#include "safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#define HEADER_MAX (100u << 20)        /* bytes, as in the reference implementation */
#define NAME_MAX_BYTES 1024

static const struct { const char *name; uint32_t bits; } dtypes[] = {
	{ "BOOL", 8 }, { "U8", 8 }, { "I8", 8 }, { "F8_E5M2", 8 }, { "F8_E4M3", 8 }, { "F8_E8M0", 8 },
	{ "I16", 16 }, { "U16", 16 }, { "F16", 16 }, { "BF16", 16 }, { "I32", 32 }, { "U32", 32 },
	{ "F32", 32 }, { "F64", 64 }, { "I64", 64 }, { "U64", 64 }, { "F4", 4 },
};

struct where { char *err; size_t errlen; };

__attribute__((format(printf, 2, 3)))
static int fail(const struct where *w, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(w->err, w->errlen, fmt, ap);
	va_end(ap);
	return -EINVAL;
}

/* A JSON integer that is not negative. */
static int get_u64(const json_t *j, uint64_t *out)
{
	if (!json_is_integer(j) || json_integer_value(j) < 0)
		return -EINVAL;
	*out = (uint64_t)json_integer_value(j);
	return 0;
}

static int get_shape(struct safetensor *t, const json_t *shape, const char *dtype, const struct where *w)
{
	uint64_t items = 1, bits;
	size_t i;

	if (!json_is_array(shape) || json_array_size(shape) > 8)
		return fail(w, "tensor %s: shape is no list of at most 8 sizes", t->name);
	t->n_dims = (uint32_t)json_array_size(shape);
	for (i = 0; i < t->n_dims; i++)
		if (get_u64(json_array_get(shape, i), &t->dim[i]) ||
		    __builtin_mul_overflow(items, t->dim[i], &items))
			return fail(w, "tensor %s: shape[%zu] is no size, or too large", t->name, i);
	for (i = 0; i < sizeof(dtypes) / sizeof(*dtypes); i++)
		if (strcmp(dtype, dtypes[i].name) == 0)
			break;
	if (i == sizeof(dtypes) / sizeof(*dtypes))
		return fail(w, "tensor %s: dtype %.40s is unknown", t->name, dtype);
	snprintf(t->dtype, sizeof(t->dtype), "%s", dtype);
	if (__builtin_mul_overflow(items, (uint64_t)dtypes[i].bits, &bits) || bits % 8)
		return fail(w, "tensor %s: shape is too large, or no whole number of bytes", t->name);
	if (bits / 8 != t->bytes)
		return fail(w, "tensor %s: data_offsets hold %" PRIu64 " bytes, but shape and dtype need %" PRIu64,
		            t->name, t->bytes, bits / 8);
	return 0;
}

static int get_tensor(struct safetensor *t, const char *name, const json_t *j, uint64_t data_bytes,
                      const struct where *w)
{
	const json_t *span = json_object_get(j, "data_offsets"), *dtype = json_object_get(j, "dtype");
	uint64_t begin, end;

	if (strlen(name) > NAME_MAX_BYTES)
		return fail(w, "tensor %.60s..: its name is longer than %d bytes", name, NAME_MAX_BYTES);
	t->name = strdup(name);
	if (!t->name)
		return -ENOMEM;
	if (!json_is_object(j) || !json_is_string(dtype))
		return fail(w, "tensor %s: is no object with dtype, shape and data_offsets", name);
	if (!json_is_array(span) || json_array_size(span) != 2 ||
	    get_u64(json_array_get(span, 0), &begin) || get_u64(json_array_get(span, 1), &end))
		return fail(w, "tensor %s: data_offsets is no pair of offsets", name);
	if (begin > end || end > data_bytes)
		return fail(w, "tensor %s: data_offsets %" PRIu64 " to %" PRIu64 " are not inside the %" PRIu64
		            " bytes of data", name, begin, end, data_bytes);
	t->offset = begin;
	t->bytes = end - begin;
	return get_shape(t, json_object_get(j, "shape"), json_string_value(dtype), w);
}

static int by_offset(const void *a, const void *b)
{
	const struct safetensor *x = a, *y = b;

	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}
static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct safetensor *)a)->name, ((const struct safetensor *)b)->name);
}

/* Together the tensors are the data: no holes, no overlaps. */
static int check_tiling(struct safetensors *s, uint64_t data_bytes, const struct where *w)
{
	uint64_t at = 0;

	qsort(s->tensor, s->n, sizeof(*s->tensor), by_offset);
	for (uint64_t i = 0; i < s->n; i++) {
		const struct safetensor *t = &s->tensor[i];

		if (t->offset != at)
			return fail(w, "tensor %s: its data begins at %" PRIu64 " of the data, but %" PRIu64
			            " is where the one before ends", t->name, t->offset, at);
		at += t->bytes;
	}
	if (at != data_bytes)
		return fail(w, "the tensors end at %" PRIu64 " of the data, but the file holds %" PRIu64 " bytes of it",
		            at, data_bytes);
	return 0;
}

static int parse(struct safetensors *s, json_t *root, uint64_t data_offset, uint64_t data_bytes,
                 const struct where *w)
{
	const char *name;
	json_t *j;
	int rc;

	s->tensor = calloc(json_object_size(root) + 1, sizeof(*s->tensor));
	if (!s->tensor)
		return -ENOMEM;
	json_object_foreach(root, name, j) {
		if (strcmp(name, "__metadata__") == 0)
			continue;
		rc = get_tensor(&s->tensor[s->n++], name, j, data_bytes, w);
		if (rc)
			return rc;
	}
	rc = check_tiling(s, data_bytes, w);
	if (rc)
		return rc;
	for (uint64_t i = 0; i < s->n; i++)
		s->tensor[i].offset += data_offset;
	qsort(s->tensor, s->n, sizeof(*s->tensor), by_name);
	return 0;
}

int safetensors_parse(struct safetensors **out, const void *p, size_t n, uint64_t file_bytes,
                      char *err, size_t errlen)
{
	const struct where w = { err, errlen };
	const uint8_t *b = p;
	struct safetensors *s = NULL;
	json_error_t why;
	uint64_t header = 0;
	json_t *root;
	int rc;

	*out = NULL;
	if (file_bytes < 8)
		return fail(&w, "the file has %" PRIu64 " bytes; a header length of 8 bytes comes first", file_bytes);
	if (n < 8)
		return -E2BIG;
	for (int i = 7; i >= 0; i--)
		header = header << 8 | b[i];
	if (header > HEADER_MAX || header > file_bytes - 8)
		return fail(&w, "header length at offset 0 is %" PRIu64 "; at most %" PRIu64 " are possible here", header,
		            file_bytes - 8 < HEADER_MAX ? file_bytes - 8 : (uint64_t)HEADER_MAX);
	if (header > n - 8)
		return -E2BIG;
	root = json_loadb((const char *)b + 8, header, JSON_REJECT_DUPLICATES, &why);
	if (!root)
		return fail(&w, "header at offset %d: %s", 8 + why.position, why.text);
	if (!json_is_object(root)) {
		rc = fail(&w, "header at offset 8 is no JSON object");
	} else {
		s = calloc(1, sizeof(*s));
		rc = s ? parse(s, root, 8 + header, file_bytes - 8 - header, &w) : -ENOMEM;
	}
	json_decref(root);
	if (rc == -ENOMEM)
		snprintf(err, errlen, "no memory for the table of a safetensors file");
	if (rc)
		safetensors_free(s);
	else
		*out = s;
	return rc;
}

void safetensors_free(struct safetensors *s)
{
	if (!s)
		return;
	for (uint64_t i = 0; s->tensor && i < s->n; i++)
		free(s->tensor[i].name);
	free(s->tensor);
	free(s);
}

const struct safetensor *safetensors_find(const struct safetensors *s, const char *name)
{
	struct safetensor key = { .name = (char *)(uintptr_t)name };

	return s->n ? bsearch(&key, s->tensor, s->n, sizeof(key), by_name) : NULL;
}
