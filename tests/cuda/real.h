/* real.h - stand-ins for the emulation's functions, where tests run on a real GPU. */
#ifndef CUDA_REAL_H
#define CUDA_REAL_H

#include <cuda_runtime.h>

#ifndef CUDA_EMULATED
static bool emu_reversed;              /* a GPU chooses its own order */
static int emu_allocations;
static inline const char *emu_fault() { return cudaGetErrorString(cudaPeekAtLastError()); }
#endif

/* How far a row of products of e4m3 may be off, of its size.  Tensor cores of capability 8.9 and 9.0 keep 13 bits
 * of fraction while they add, as others have measured; so does the emulation.  Those of 10.x keep 25.  Nobody has
 * said what those of 12.x keep. */
static inline double e4m3_bound(int capability)
{
	return capability >= 100 && capability < 120 ? 1e-5 : 2e-3;
}

#endif
