/* safetensors.h - the table of a safetensors file, from bytes in memory.
 *
 * Source: the format's own README.  u64 LE header length (at most 100 MB), JSON header,
 * data.  Offsets must tile the data without holes or overlaps.
 */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

struct safetensor {
	char *name;
	char dtype[12];               /* "F32", "BF16", "F16", "I32", "F8_E4M3", .. */
	uint32_t n_dims;              /* 0 .. 8 */
	uint64_t dim[8];              /* outermost first */
	uint64_t offset, bytes;       /* offset absolute in the file */
};

struct safetensors {
	uint64_t n;
	struct safetensor *tensor;    /* sorted by name */
};

/* p[0..n): the first 8 + header bytes of a file of file_bytes; -E2BIG if n is too small. */
int  safetensors_parse(struct safetensors **out, const void *p, size_t n, uint64_t file_bytes,
                       char *err, size_t errlen);
void safetensors_free(struct safetensors *s);

/* The weights of a Hugging Face directory: model.safetensors, or the shards that
 * model.safetensors.index.json names.  Shards are regular files in the directory itself, or links
 * to regular files (the download cache consists of links).  No tensor is in two of them. */
struct safetensors_set {
	int32_t n;
	struct { char *path; struct safetensors *table; } *file;   /* [n] */
	uint64_t n_tensors;           /* of all files */
	struct safetensors_at { const struct safetensor *t; int32_t file; } *all; /* [n_tensors], by name */
};
int  safetensors_open(struct safetensors_set **out, const char *dir, char *err, size_t errlen);
void safetensors_close(struct safetensors_set *s);
/* The tensor with this name, in whichever file; by bisection.  NULL: not found. */
const struct safetensors_at *safetensors_lookup(const struct safetensors_set *s, const char *name);

/* Read a JSON file of at most `most` bytes as a NUL-terminated string of *n bytes (free it). */
int  safetensors_text(char **out, size_t *n, const char *path, size_t most, char *err, size_t errlen);

#endif
