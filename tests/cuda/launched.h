/* launched.h - for tests of single instructions: a kernel that is run at once, memory that it shares with the test, and
 * the fault that a mistake must be. */
#ifndef CUDA_LAUNCHED_H
#define CUDA_LAUNCHED_H

#include <cstdio>

#include "kernels/cuda/hopper.cuh"
#include "tests/cuda/real.h"

#define POOL (256 << 10)

#ifdef CUDA_EMULATED
#define FIRST_WAIT 0
static inline cudaError_t cudaMallocManaged(void **p, size_t)
{
	static unsigned char pool[POOL] __attribute__((aligned(256)));

	*p = pool;
	return cudaSuccess;
}
#else
#define FIRST_WAIT 2                   /* memory before a wait is undefined on a GPU */
#endif

/* Run a kernel.  Returns the fault that was found, or NULL. */
template <class... A> static const char *launched(unsigned blocks, unsigned threads, size_t shared,
	void (*k)(A...), A... a)
{
#ifdef CUDA_EMULATED
	emu::run(blocks, threads, shared, [=] { k(a...); });
	return emu_fault();
#else
	cudaError_t e = start(k, blocks, threads, shared, NULL, a...);

	e = e == cudaSuccess ? cudaDeviceSynchronize() : e;
	return e == cudaSuccess ? NULL : cudaGetErrorString(e);
#endif
}

/* Memory that kernels and tests both see, for one test at a time. */
static inline void *both_bytes(size_t n)
{
	static unsigned char *pool;
	static size_t used;

	if (!pool)
		assert_int_equal(cudaMallocManaged((void **)&pool, POOL), cudaSuccess);
	n = (n + 15) / 16 * 16;
	used = used + n > POOL ? n : used + n;
	return pool + used - n;
}

template <class T> static T *both(size_t n)
{
	return (T *)both_bytes(n * sizeof(T));
}

static inline float e4m3_value(unsigned v)
{
	int e = (int)(v >> 3 & 15);
	float f = ldexpf((float)(v & 7) + (e ? 8 : 0), (e ? e : 1) - 10);

	return v & 0x80 ? -f : f;
}

/* Each of 256 values, four to a lane and back again; its bf16 by pairs of bytes 0, 2 and 1, 3. */

static inline void expect_fault(const char *what, const char *fault)
{
	if (!fault || !strstr(fault, what))
		fail_msg("expected a fault that says \"%s\", not \"%s\"", what, fault ? fault : "none");
}

#endif
