/* peak.h - what one core of this machine can do: products from registers, and reading memory. */
#ifndef PEAK_H
#define PEAK_H

#include <stddef.h>
#include <stdint.h>

enum peak { PEAK_NONE, PEAK_INT8, PEAK_BF16, PEAK_F32, PEAK_READ, N_PEAKS };

extern const char *const peak_names[N_PEAKS];

/* Gop/s (a multiply-add is two), or GB/s of reading `bytes` at `memory` once: more than caches hold, a
 * multiple of 512, aligned to 64.  0: this machine has no such instructions, or we have none for it. */
double peak_measure(enum peak what, const uint8_t *memory, size_t bytes);

#endif
