/* tensors_out.h - writes a safetensors file: first all names and shapes, then the bytes in any order.
 * The file appears under its name when it is whole. */
#ifndef TENSORS_OUT_H
#define TENSORS_OUT_H

#include <stddef.h>
#include <stdint.h>

struct tensors_out;

struct tensors_out *tensors_out_create(const char *path);   /* NULL: no memory */
/* [a][b], or [a] if b is 0.  The number by which it is written, or -ENOMEM. */
int  tensors_out_add(struct tensors_out *o, const char *name, const char *dtype, size_t item, int64_t a,
                     int64_t b);
/* Nothing can be added any more.  0 or -errno. */
int  tensors_out_begin(struct tensors_out *o);
size_t tensors_out_bytes(const struct tensors_out *o, int tensor);
/* n bytes of a tensor from its byte `from` on.  0 or -errno. */
int  tensors_out_write(struct tensors_out *o, int tensor, size_t from, const void *p, size_t n);
/* On the disk and under its name.  0 or -errno; -EINVAL: some bytes were never written. */
int  tensors_out_finish(struct tensors_out *o);
void tensors_out_destroy(struct tensors_out *o);            /* an unfinished file is removed */

#endif
