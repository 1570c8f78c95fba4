/* cuda_runtime.h - as much of the CUDA runtime as kernels/cuda uses, on the CPU.
 *
 * Work queued in a stream is done late: only when the stream, or an event in it, is asked about or
 * waited for, and one operation for each question.  So memory that is written or freed too early,
 * or read before it is there, is noticed.  Device memory is NaN at first and has canaries at its end.
 *
 * A stream that captures keeps its operations, with their arguments as they are then, in a graph, which
 * can be launched any number of times; queries and allocations during the capture are refused, as by CUDA.
 *
 * Every call is counted; emu_fail(n, e) makes the n-th from now fail with e.  An error of the kind
 * that poisons a context (a launch failure) is returned by every call after it.
 *
 * A program that has this as its slipring-cuda.so (tests/e2e/e2e_cuda.py) reads its environment: EMU_DEVICES,
 * the number of devices; EMU_AT_ONCE, all work is done once a callback is asked for or a stream is asked about; EMU_LOSE=FILE, once that file
 * exists every call fails with an illegal address; EMU_CAPABILITY, 80; EMU_SPOIL="HOW TYPE", a kernel with an argument
 * of this type is wrong, reads parts of others wrongly, starts too early, traps, hangs, or traps in graphs alone.
 */
#ifndef EMU_CUDA_RUNTIME_H
#define EMU_CUDA_RUNTIME_H

#include <cstddef>

#include "tests/emu/emu.h"

enum cudaError_t {
	cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2,
		cudaErrorInsufficientDriver = 35,
	cudaErrorNoDevice = 100, cudaErrorECCUncorrectable = 214, cudaErrorNotSupported = 801, cudaErrorNotReady = 600,
	cudaErrorIllegalAddress = 700, cudaErrorLaunchFailure = 719, cudaErrorStreamCaptureUnsupported = 900,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDefault = 4 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaDeviceAttr {
	cudaDevAttrMultiProcessorCount = 16, cudaDevAttrComputeCapabilityMajor = 75,
	cudaDevAttrComputeCapabilityMinor = 76, cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
	cudaDevAttrCanUseHostPointerForRegisteredMem = 91,
};
enum { cudaHostAllocDefault = 0, cudaHostRegisterPortable = 1, cudaHostRegisterMapped = 2, cudaStreamNonBlocking = 1, cudaEventDefault = 0,
	cudaEventDisableTiming = 2 };

typedef struct emu_stream *cudaStream_t;
typedef struct emu_event *cudaEvent_t;
typedef struct emu_graph *cudaGraph_t;
typedef struct emu_exec *cudaGraphExec_t;
typedef void (*cudaStreamCallback_t)(cudaStream_t, cudaError_t, void *);
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
#define CUDART_CB

cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetPCIBusId(char *id, int n, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr what, int device);
cudaError_t cudaMemGetInfo(size_t *avail, size_t *total);
cudaError_t cudaGetLastError();
const char *cudaGetErrorName(cudaError_t e);
const char *cudaGetErrorString(cudaError_t e);

cudaError_t cudaMalloc(void **p, size_t n);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaHostRegister(void *p, size_t n, unsigned flags); /* counted as an allocation */
cudaError_t cudaHostUnregister(void *p);
cudaError_t cudaDeviceReset();       /* only without allocations */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamQuery(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind kind, cudaStream_t s);
cudaError_t cudaMemsetAsync(void *p, int byte, size_t n, cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t fn, void *arg, unsigned flags);

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t s);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);

cudaError_t emu_func_attribute(size_t value);
template <class F> cudaError_t cudaFuncSetAttribute(F *, cudaFuncAttribute, int value)
{
	return emu_func_attribute((size_t)value);
}

cudaError_t emu_queue(cudaStream_t s, std::function<cudaError_t()> op);
/* early: as one that may start before the kernel before it is complete; then every thread has to wait. */
cudaError_t emu_launch(dim3 grid, dim3 block, size_t shared, cudaStream_t s, bool early, unsigned cluster,
	std::function<void()> thread, const char *arguments = NULL);
void emu_wait_for_previous();
uint64_t emu_globaltimer();

/* For tests. */
extern const char *emu_spoiled;             /* tensor cores are wrong in kernels with an argument of this type; NULL: none */
extern size_t emu_spoiled_shared;           /* and with so many bytes of shared memory; 0: any */
/* Or, instead: they read the sums of other blocks wrongly; where they may start early, they have not seen what the kernel
 * before wrote (none of their writes are there); they trap; they hang. */
extern enum emu_how { EMU_WRONG, EMU_WRONG_PARTS, EMU_WRONG_EARLY, EMU_TRAPS, EMU_HANGS } emu_spoiled_how;
extern bool emu_spoiled_in_graphs;          /* only there */
extern uint64_t emu_calls;                  /* so far */
extern int emu_allocations;                 /* not yet freed: memory, streams, events */
extern uint64_t emu_taken;                  /* bytes of memory, so far */
extern uint64_t emu_graph_launches;
extern float emu_elapsed_ms;                /* what any two events are apart; 0: what they are */
extern int emu_devices;                     /* 1 */
extern int emu_capability;
extern size_t emu_memory;                   /* bytes of a device: 1 GiB */
extern bool emu_at_once;                    /* false; EMU_AT_ONCE */
void emu_fail(uint64_t nth, cudaError_t e); /* the nth call from now; 0: none */
void emu_recover();                         /* a fresh process: no poison, nothing queued */
void emu_process_ends(void);          /* frees what is still allocated */

/* From now on a kernel's first thread may, before somebody has waited, touch no memory of the runtime's but
 * what `constant` lies in; all else is a fault.  NULL: no longer. */
void emu_guard(const void *constant);

#endif
