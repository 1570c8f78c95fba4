/* repack.h - turns matrices that are not stored row by row into rows that every table of inner loops can
 * multiply.  Those of floats may be transposed or have rows of two matrices in turn; MXFP4 of safetensors
 * becomes that of GGUF.  Neither changes a bit.
 *
 * Those with separate scales and zero points (AWQ, GPTQ, compressed-tensors) become Q4_1.  With scale s and zero point z of a group, w = (q - z) s = s q + m where m = -z s.  Q4_1 holds s and m
 * as f16.  s is exact: the files hold f16, or bf16, which is exact down to 2^-14.  m is rounded by at
 * most 2^-11 of itself, less than a hundredth of a step of q.  With inputs in groups out of order (act-order) there is no
 * such form: then (q - z) s is held as f16.
 *
 * FP8 (e4m3) becomes bf16, value times scale, rounded to the nearest; int8 with a scale for each output becomes
 * Q8_0, whose scales are f16.
 */
#ifndef REPACK_H
#define REPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sr_tensor;

/* A whole tensor in memory, as its files store it. */
struct apart { const uint8_t *data, *scale, *zero, *index; };   /* zero NULL: all 8; index: act-order */

bool    repack_needed(const struct sr_tensor *t);
int32_t repack_type(const struct sr_tensor *t); /* the type it is held as: SR_Q4_1, .., or the type itself */
/* NULL, or which part of its shape is not supported. */
const char *repack_refuses(const struct sr_tensor *t);

/* Outputs first .. first+n-1 to rows [n][repack_row_bytes(k)]. */
size_t repack_row_bytes(const struct sr_tensor *t);
void   repack_rows(const struct sr_tensor *t, const struct apart *a, int32_t first, int32_t n, uint8_t *rows);

#endif
