/* real.h - what the emulation offers to tests, where a real GPU takes its place. */
#ifndef CUDA_REAL_H
#define CUDA_REAL_H

#include <cuda_runtime.h>

#ifndef CUDA_EMULATED
static bool emu_reversed;              /* a GPU has an order of its own */
static int emu_allocations;
static inline const char *emu_fault() { return cudaGetErrorString(cudaPeekAtLastError()); }
#endif

#endif
