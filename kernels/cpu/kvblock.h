/* kvblock.h - how K and V of one layer and KV head lie in a block of 16 tokens.  All tables share
 * this layout.  E is head_dim.
 *
 *	SR_KV_BF16
 *	K  [E/2][16 tokens][2]   a line of 64 bytes holds elements 2i, 2i+1 of sixteen keys, as two vectors of
 *	                         floats after a shift and a mask
 *	V  [8 token pairs][E][2] a line holds sixteen elements of tokens 2j, 2j+1, likewise
 *
 *	SR_KV_I8: each half begins with one line, the sixteen tokens' scales (f32); then the same order
 *	in int8, x = scale * q, the largest of a token and head being 127.  The tables multiply them as
 *	16-bit integers, with queries and weights of 16 bits (vpdpwssd, vpmaddwd): sums of integers are
 *	exact, and E * 127 * 32767 fits 32 bits up to E = 512.
 *
 *	SR_KV_F32: the order of bf16, in f32.  For tests: plain C attends, in every table (backend.c).
 *
 * Only finite numbers are stored (NaN as 0, infinity as the largest bf16), and the pool begins
 * zeroed.  So a masked token, whose weight is 0, adds exactly 0, whatever is stored there.
 */
#ifndef KVBLOCK_H
#define KVBLOCK_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kern.h"
#include "types.h"

/* Attention walks the positions in units of this many tokens, counted from position 0; the running
 * maximum changes once per unit.  So a query's sum does not depend on what is computed beside it. */
#define UNIT_BLOCKS 4
#define UNIT        (UNIT_BLOCKS * KERN_BLOCK)

static inline size_t kv_k_at(int32_t e, int32_t token)
{
	return ((size_t)(e / 2) * KERN_BLOCK + (size_t)token) * 2 + (size_t)(e % 2);
}

static inline size_t kv_v_at(int32_t E, int32_t e, int32_t token)
{
	return ((size_t)(token / 2) * (size_t)E + (size_t)e) * 2 + (size_t)(token % 2);
}

#define KV_SCALES ((size_t)KERN_BLOCK * sizeof(float)) /* bytes before the int8 ones */

static inline float kv_scale(const uint8_t *area, int32_t token)
{
	return ((const float *)(const void *)area)[token];
}

/* The value of a token at place `at`, which kv_k_at() or kv_v_at() gave. */
static inline float kv_value(int32_t kv_type, const uint8_t *area, size_t at, int32_t token)
{
	if (kv_type == SR_KV_I8)
		return (float)((const int8_t *)(area + KV_SCALES))[at] * kv_scale(area, token);
	if (kv_type == SR_KV_F32)
		return ((const float *)(const void *)area)[at];
	return f32_of_bf16(((const uint16_t *)(const void *)area)[at]);
}

/* The largest magnitude of queries and weights of 16 bits. */
#define KV_MOST 32767.0f

/* Latent values: the first Ev elements of the keys of a block, in the order of V; bf16 alone. */
static inline size_t kvblock_turned(int32_t Ev) { return (size_t)Ev * UNIT * 2; }
void kvblock_turn(int32_t Ev, const uint8_t *k_area, uint8_t *v_area);

size_t kvblock_bytes(int32_t kv_type, int32_t E);
void   kvblock_store(int32_t kv_type, int32_t E, int32_t at, const float *k, const float *v,
                     uint8_t *k_area, uint8_t *v_area);

#endif
