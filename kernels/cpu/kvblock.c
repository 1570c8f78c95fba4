/* kvblock.c - writing a token into a KV block (see kvblock.h). */
#include "kvblock.h"

#include "kernels/backend.h"
#include "types.h"

static uint16_t stored(float f)
{
	uint16_t h = bf16_of_f32(f), mag = h & 0x7fff;

	if (mag > 0x7f80)
		return 0;
	return mag == 0x7f80 ? (uint16_t)((h & 0x8000) | 0x7f7f) : h;
}

size_t kvblock_bytes(int32_t kv_type, int32_t E)
{
	return kv_type == SR_KV_BF16 && E > 0 && E % 16 == 0 ? (size_t)E * KERN_BLOCK * 2 : 0;
}

void kvblock_store(int32_t kv_type, int32_t E, int32_t at, const float *k, const float *v,
                   uint8_t *k_area, uint8_t *v_area)
{
	uint16_t *kd = (uint16_t *)(void *)k_area, *vd = (uint16_t *)(void *)v_area;

	(void)kv_type;
	for (int32_t e = 0; e < E; e++) {
		kd[kv_k_at(e, at)] = stored(k[e]);
		vd[kv_v_at(E, e, at)] = stored(v[e]);
	}
}
