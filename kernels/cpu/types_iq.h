/* types_iq.h - GGUF's types IQ2 and IQ3 (see types_iq.c). */
#ifndef TYPES_IQ_H
#define TYPES_IQ_H

#include "types.h"

/* The weights of each set, the first in the lowest byte. */
extern const uint32_t types_iq3_xxs[256], types_iq3_s[512];
extern const uint64_t types_iq2_xxs[256], types_iq2_xs[512], types_iq2_s[1024];

/* 32 weights: the numbers of their sets (8 of IQ3, 4 of IQ2), a bit for each that is negative, a scale per half. */
struct iq_parts { uint16_t set[8]; uint32_t signs; uint8_t scale[2]; };

/* Group j (0 .. 7) of a block. */
void types_iq_parts(int32_t type, const uint8_t *block, int j, struct iq_parts *out);
void types_iq_group(int32_t type, const uint8_t *block, int j, struct group *out);

#endif
