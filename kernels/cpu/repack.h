/* repack.h - turns matrices that are not stored row by row into rows that every table of inner loops can
 * multiply.  Those of floats may be transposed or have rows of two matrices in turn; MXFP4 of safetensors
 * becomes that of GGUF.  Neither changes a bit.
 *
 * The others become rows of a held type (types.h), in as many bytes as they are stored in: AWQ, GPTQ and compressed-tensors
 * of 4 bits HELD_U4, or HELD_U4_ORDER if inputs are in groups out of order (act-order); int8 HELD_I8; FP8 HELD_F8 or,
 * where 16 outputs have one scale, HELD_F8_BLOCK; NVFP4 HELD_NVFP4.  Blocks of GGUF that lie along
 * the outputs become f16, and FP8 with a scale for each of such inputs bf16: both are few, of latent attention.  Scales of 4 and 8 bits are held as f16, which is what
 * the files have, or bf16, which is exact down to 2^-14.
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
int32_t repack_type(const struct sr_tensor *t); /* the type it is held as, or the type itself */
/* NULL, or which part of its shape is not supported. */
const char *repack_refuses(const struct sr_tensor *t);

/* Outputs first .. first+n-1 to rows [n][repack_row_bytes(k)]. */
size_t repack_row_bytes(const struct sr_tensor *t);
void   repack_rows(const struct sr_tensor *t, const struct apart *a, int32_t first, int32_t n, uint8_t *rows);
/* Of a matrix held as HELD_U4_ORDER: the piece of each of its k inputs. */
void   repack_index(const struct sr_tensor *t, const struct apart *a, uint16_t *index);

#endif
