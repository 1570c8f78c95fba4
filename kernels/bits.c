/* bits.c - see sr_bits() in backend.h. */
#include <math.h>

#include "kernels/backend.h"

static uint64_t mix(uint64_t h, double x)
{
	union { double d; uint64_t u; } v = { x };

	h = (h ^ v.u) * 0x9e3779b97f4a7c15u;
	return h ^ h >> 29;
}

/* Kernels call these functions of the C library.  Libraries, and the versions that one library picks by CPU, differ in
 * the last bit of some results. */
uint64_t sr_bits(void)
{
	uint64_t h = SR_BITS;

	for (int i = 1; i <= 1024; i++) {
		const float x = (float)i * 0.0137f;
		float s, c;

		sincosf(x * 97, &s, &c);
		h = mix(mix(h, s), c);
		h = mix(mix(h, expf(-x)), logf(x));
		h = mix(mix(h, log1pf(expf(-x))), powf(10000, -x / 16));
		h = mix(mix(h, exp(-(double)x)), log((double)x));
		h = mix(h, pow(10000, -(double)x / 16));
	}
	return h;
}
