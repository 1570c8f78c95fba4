/* real.h - stand-ins for the emulation's functions, where tests run on a real GPU. */
#ifndef CUDA_REAL_H
#define CUDA_REAL_H

#include <cuda_runtime.h>

#ifndef CUDA_EMULATED
static bool emu_reversed;              /* a GPU chooses its own order */
static int emu_allocations;
static inline const char *emu_fault() { return cudaGetErrorString(cudaPeekAtLastError()); }
#endif

#endif
