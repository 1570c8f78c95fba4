/* kvblock.h - how K and V of one layer and KV head lie in a block of 16 tokens.  All tables share
 * this layout; type SR_KV_BF16 only.
 *
 *	K  [E/2][16 tokens][2]   a line of 64 bytes holds elements 2i, 2i+1 of sixteen keys, so one
 *	                         vdpbf16ps adds two terms to sixteen scores
 *	V  [8 token pairs][E][2] a line holds sixteen elements of tokens 2j, 2j+1, so one vdpbf16ps
 *	                         adds two tokens to sixteen elements of the output
 *
 * Only finite numbers are stored (a NaN as 0, an infinity as the largest number), and the pool
 * begins zeroed: so a masked token's weight of zero makes its term zero, whatever was stored there
 * and by whom.
 */
#ifndef KVBLOCK_H
#define KVBLOCK_H

#include <stddef.h>
#include <stdint.h>

#include "kern.h"

/* Attention walks the positions in units of this many tokens, counted from position 0; the running
 * maximum moves once per unit.  That makes the sum over a query's tokens independent of who is
 * computed beside it. */
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

size_t kvblock_bytes(int32_t kv_type, int32_t E);
void   kvblock_store(int32_t kv_type, int32_t E, int32_t at, const float *k, const float *v,
                     uint8_t *k_area, uint8_t *v_area);

#endif
