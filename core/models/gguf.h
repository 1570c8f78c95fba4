/* gguf.h - the table of a GGUF file (versions 2 and 3), from bytes in memory.
 *
 * Source: the GGUF specification in ggml's docs/gguf.md.  Nothing is copied: keys, strings
 * and arrays point into the bytes, which must outlive the table.  All arithmetic is checked;
 * every error names the field and its offset.
 */
#ifndef GGUF_H
#define GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gguf_type {               /* types of values */
	GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL,
	GGUF_STRING, GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_F64
};

struct gguf_string { const char *s; uint64_t n; };   /* not NUL-terminated, any bytes */

struct gguf_value {
	struct gguf_string key;
	uint32_t type;             /* enum gguf_type */
	uint32_t item;             /* ARRAY: type of its items (never ARRAY) */
	uint64_t n;                /* ARRAY: items; else 1 */
	const uint8_t *data;       /* first item, unaligned, little endian */
	uint64_t bytes;            /* of all items */
};

struct gguf_tensor {
	struct gguf_string name;
	uint32_t n_dims;           /* 1 .. 4 */
	uint64_t dim[4];           /* innermost first, as in the file; unused ones are 1 */
	uint32_t type;             /* ggml's number: 0 F32, 1 F16, 2 Q4_0, 3 Q4_1, 8 Q8_0, 30 BF16 .. */
	uint64_t offset;           /* in the file, absolute */
	uint64_t bytes;            /* 0 if the type is not known here */
	uint64_t at;               /* offset of its entry, for messages */
	int32_t  part;             /* the file that has it: 0, or as gguf_parts.h numbers them */
};

struct gguf {
	uint32_t version;
	uint64_t n_values, n_tensors;
	struct gguf_value *value;
	struct gguf_tensor *tensor;
	const struct gguf_value **value_by_name;     /* [n_values], sorted by key */
	const struct gguf_tensor **tensor_by_name;   /* [n_tensors], sorted by name */
	uint64_t data_offset;      /* where the tensor data begins */
};

/* Parse the head of a file of file_bytes, of which the first n are at p.  n may be smaller if
 * only the head was read: -E2BIG then means that more is needed.  0, -EINVAL, -ENOMEM. */
int  gguf_parse(struct gguf **out, const void *p, size_t n, uint64_t file_bytes,
                char *err, size_t errlen);
void gguf_free(struct gguf *g);

/* By bisection.  NULL: not found. */
const struct gguf_value *gguf_find(const struct gguf *g, const char *key);
const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name);

/* 0, -ENOENT no such key, -EINVAL another type or out of range (any integer type counts as
 * an integer, any float type as a float). */
int gguf_u64(const struct gguf *g, const char *key, uint64_t *out);
int gguf_f64(const struct gguf *g, const char *key, double *out);
int gguf_bool(const struct gguf *g, const char *key, bool *out);
int gguf_str(const struct gguf *g, const char *key, struct gguf_string *out);

/* Walk an array of strings: *at starts as v->data; false at the end. */
bool gguf_next_string(const struct gguf_value *v, const uint8_t **at, struct gguf_string *out);

const char *gguf_type_name(uint32_t tensor_type);    /* "Q4_1"; "99" if the type has no name */

int  gguf_compare(const struct gguf_string *a, const struct gguf_string *b);

/* Does the path end as that of part `no` (from 1) of `of`: -00002-of-00004.gguf? */
bool gguf_part_name(const char *path, int32_t *no, int32_t *of);

/* gguf_open maps a whole file read-only.  If the file shrinks, access raises SIGBUS: open regular
 * files only.  For adapters and tools.  gguf_read is safe: it reads as much of the head as the table
 * needs into memory.  The daemon uses it, and io.h for the weights. */
struct gguf_file { struct gguf *g; const uint8_t *base; uint64_t bytes; int fd; bool mapped; };
int  gguf_open(struct gguf_file *f, const char *path, char *err, size_t errlen);
int  gguf_read(struct gguf_file *f, const char *path, char *err, size_t errlen);
void gguf_close(struct gguf_file *f);

#endif
