/* probe.h - the first thing of `make gpu-check`: one line that says what GPU 0 is, or one sentence that says why CUDA
 * cannot use it.  Part of bench.cc. */
#ifndef CUDA_PROBE_H
#define CUDA_PROBE_H

#include <cuda_runtime_api.h>

#include "kernels/cuda/guard/missing.h"

static __global__ void probe_kernel(int *out)
{
	let_next_start();
	wait_for_previous();
	if (threadIdx.x == 0)
		*out = 42;
}

static int probe_says(cudaError_t e, int driver, int runtime)
{
	char why[256];

	gpu_missing(why, sizeof(why), "", driver, runtime);
	if (e == cudaErrorMemoryAllocation)
		printf("GPU 0 has no memory left: another program has it\n");
	else if (e == cudaErrorECCUncorrectable)
		printf("GPU 0 has an uncorrected memory error: reset it (nvidia-smi --gpu-reset) or restart the machine\n");
	else
		printf("CUDA cannot use GPU 0: %s (%s); %s\n", cudaGetErrorString(e), cudaGetErrorName(e), why);
	return 1;
}

/* 0: a kernel has run. */
static int probe()
{
	int n = 0, major = 0, minor = 0, processors = 0, shared = 0, driver = 0, runtime = 0, got = 0, *at = NULL;
	size_t avail = 0, total = 0;
	cudaStream_t s = NULL;
	cudaError_t e;

	cudaDriverGetVersion(&driver);
	cudaRuntimeGetVersion(&runtime);
	e = cudaGetDeviceCount(&n);
	if (e == cudaSuccess && n > 0)
		e = cudaSetDevice(0);
	if (e == cudaSuccess)
		e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
	if (e == cudaSuccess)
		e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
	if (e == cudaSuccess)
		e = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0);
	if (e == cudaSuccess)
		e = cudaDeviceGetAttribute(&shared, cudaDevAttrIntegrated, 0);
	if (e == cudaSuccess)
		e = cudaMemGetInfo(&avail, &total);
	if (e == cudaSuccess && major < 8) {
		printf("GPU 0 has compute capability %d.%d; 8.0 (Ampere) or later is needed\n", major, minor);
		return 1;
	}
	if (e == cudaSuccess)
		e = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
	if (e == cudaSuccess)
		e = cudaMalloc((void **)&at, sizeof(*at));
	if (e == cudaSuccess)
		e = start(probe_kernel, 1, 32, 0, s, at);
	if (e == cudaSuccess)
		e = cudaMemcpyAsync(&got, at, sizeof(got), cudaMemcpyDeviceToHost, s);
	if (e == cudaSuccess)
		e = cudaStreamSynchronize(s);
	if (e != cudaSuccess || n < 1)
		return probe_says(e, driver, runtime);
	cudaFree(at);
	cudaStreamDestroy(s);
	printf("GPU 0: compute capability %d.%d, %d processors, %.1f of %.1f GiB are free%s; driver for CUDA %d.%d, this build "
		"CUDA %d.%d\n", major, minor, processors, (double)avail / 0x1p30, (double)total / 0x1p30,
		shared ? " (the host's own memory)" : "", driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
	if (got != 42)
		printf("a kernel wrote %d, not 42\n", got);
	return got != 42;
}

#endif
