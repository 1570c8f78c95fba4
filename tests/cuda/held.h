/* held.h - the forms in which weights are held, for tests that look at something else: bf16 in `make test`, all of them
 * with SLIPRING_ALL=1 (make cuda-paths). */
#ifndef CUDA_HELD_H
#define CUDA_HELD_H

#include <stdlib.h>

extern "C" {
#include "tests/rig/tiny.h"
}

static const struct held_kind { const char *what; int32_t type; bool experts; } held_kinds[] = {
	{ "bf16", SR_BF16, false }, { "q4_1", SR_Q4_1, false }, { "awq", SR_AWQ4, false }, { "gptq", SR_GPTQ4, false },
	{ "fp8", SR_F8, false }, { "mxfp4 experts", SR_MXFP4, true },
};

static inline int held_count(void)
{
	return getenv("SLIPRING_ALL") ? (int)(sizeof(held_kinds) / sizeof(*held_kinds)) : 1;
}

/* `shape` has no experts yet. */
static inline struct tiny *held_model(const struct held_kind &k, struct sr_model shape, unsigned flags, uint32_t seed)
{
	if (k.experts) {
		shape.experts.n = 8;
		shape.experts.top = 3;
		shape.experts.d_ff = 96;
		shape.experts.scale = 1;
	}
	return tiny_create(&shape, k.type, flags, seed);
}

#endif
