/* gguf_parts.h - a GGUF of one file, or of several parts (NAME-00001-of-00004.gguf and so on), as one table: the
 * values of the first part and the tensors of all.
 *
 * Source: gguf-split of llama.cpp.  split.count and split.no (from 0) are in each part, split.tensors.count is the
 * sum.  A model is named by its first part; the others lie beside it.
 */
#ifndef GGUF_PARTS_H
#define GGUF_PARTS_H

#include "gguf.h"

#define GGUF_PARTS_MAX 512

struct gguf_parts {
	const struct gguf *g;      /* a tensor's `part` says in which file it is */
	struct gguf_file *file;    /* [n] open for reading */
	char  **path;              /* [n] */
	int32_t n;
	struct gguf *joined;       /* = g, if there are several parts */
};

/* 0, or -errno and one sentence. */
int  gguf_read_parts(struct gguf_parts *p, const char *path, char *err, size_t errlen);
void gguf_close_parts(struct gguf_parts *p);

#endif
