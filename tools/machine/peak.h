/* peak.h - measures the peak of one core: products from registers, and reading memory. */
#ifndef PEAK_H
#define PEAK_H

#include <stddef.h>
#include <stdint.h>

enum peak { PEAK_NONE, PEAK_INT8, PEAK_BF16, PEAK_F32, PEAK_READ, N_PEAKS };

extern const char *const peak_names[N_PEAKS];

/* Gop/s (a multiply-add is two), or GB/s of reading `bytes` at `memory` once.  `bytes` exceeds the caches and
 * is a multiple of 512; `memory` is aligned to 64.  0: this machine has no such instructions, or this file
 * has no code for them. */
double peak_measure(enum peak what, const uint8_t *memory, size_t bytes);

#endif
