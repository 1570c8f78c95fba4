/* tensors_out.h - writes a safetensors file: first all names and shapes, then the bytes in any order.
 * The file gets its name when it is whole. */
#ifndef TENSORS_OUT_H
#define TENSORS_OUT_H

#include <stddef.h>
#include <stdint.h>

struct tensors_out;

struct tensors_out *tensors_out_create(const char *path);   /* NULL: no memory */
/* Add a tensor [a][b], or [a] if b is 0.  Returns its number for tensors_out_write, or -ENOMEM. */
int  tensors_out_add(struct tensors_out *o, const char *name, const char *dtype, size_t item, int64_t a,
                     int64_t b);
/* The same with any dimensions and a type of `bytes` in all. */
int  tensors_out_add_as(struct tensors_out *o, const char *name, const char *dtype, uint64_t bytes,
                        uint32_t n_dims,
                        const uint64_t *dim);
/* Call this after the last tensor was added.  0 or -errno. */
int  tensors_out_begin(struct tensors_out *o);
size_t tensors_out_bytes(const struct tensors_out *o, int tensor);
/* Write n bytes of a tensor from its byte `from` on.  0 or -errno. */
int  tensors_out_write(struct tensors_out *o, int tensor, size_t from, const void *p, size_t n);
/* Write the file to the disk and rename it.  0 or -errno; -EINVAL: some bytes were never written. */
int  tensors_out_finish(struct tensors_out *o);
void tensors_out_destroy(struct tensors_out *o);            /* removes an unfinished file */

#endif
