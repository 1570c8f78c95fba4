/* kernel.cuh - what every kernel here needs: a launch, bf16, sums over a warp and a block.
 *
 * Kernels are compiled twice: by nvcc, and by g++ against tests/emu, which has a <cuda_runtime.h>
 * of its own that runs them on the CPU (CUDA_EMULATED).  Only this file and ptx.cuh know.
 * Shared memory is always dynamic, so that the emulation can poison it and find overruns.
 */
#ifndef CUDA_KERNEL_CUH
#define CUDA_KERNEL_CUH

#include <cuda_runtime.h>
#include <stdint.h>
#include <string.h>

#ifdef CUDA_EMULATED
#define SHARED(p) unsigned char *p = emu::shared()
#else
#define SHARED(p) extern __shared__ __align__(128) unsigned char p[]
#endif

#define FULL 0xffffffffu             /* all lanes of a warp */

typedef uint16_t bf16;               /* its bits */

template <class... P, class... A>
static inline cudaError_t start(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t s,
	A... a)
{
#ifdef CUDA_EMULATED
	return emu_launch(grid, block, shared, s, [=] { kernel(P(a)...); });
#else
	cudaLaunchConfig_t c = {};

	c.gridDim = grid;
	c.blockDim = block;
	c.dynamicSmemBytes = shared;
	c.stream = s;
	return cudaLaunchKernelEx(&c, kernel, P(a)...);
#endif
}

template <class K> static inline cudaError_t allow_shared(K *kernel, size_t bytes)
{
	return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

static inline __host__ __device__ float f32_of(bf16 b)
{
	uint32_t u = (uint32_t)b << 16;
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

/* To nearest, even; a NaN stays one. */
static inline __host__ __device__ bf16 bf16_of(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	if ((u & 0x7fffffff) > 0x7f800000)
		return (bf16)(u >> 16 | 64);
	return (bf16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline __host__ __device__ uint32_t bf16_pair(float low, float high)
{
#if defined(__CUDA_ARCH__)
	uint32_t r;

	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
	return r;
#else
	return bf16_of(low) | (uint32_t)bf16_of(high) << 16;
#endif
}

template <class T> static inline __device__ T warp_sum(T v)
{
	for (int x = 16; x; x /= 2)
		v += __shfl_xor_sync(FULL, v, x);
	return v;
}

static inline __device__ float warp_max(float v)
{
	for (int x = 16; x; x /= 2)
		v = fmaxf(v, __shfl_xor_sync(FULL, v, x));
	return v;
}

/* Of all threads, to all.  `scratch`: one T per warp.  All threads of the block call it. */
template <class T> static inline __device__ T block_sum(T v, T *scratch)
{
	int warps = (int)blockDim.x / 32, warp = (int)threadIdx.x / 32;

	v = warp_sum(v);
	__syncthreads(); /* who called before us may still read */
	if (threadIdx.x % 32 == 0)
		scratch[warp] = v;
	__syncthreads();
	v = scratch[0];
	for (int i = 1; i < warps; i++)
		v += scratch[i];
	return v;
}

#endif
