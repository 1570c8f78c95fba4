/* kernel.cuh - launches, bf16, sums over a warp and a block, for every kernel.
 *
 * Kernels are compiled twice: by nvcc, and by g++ against tests/emu, whose <cuda_runtime.h> runs
 * them on the CPU (CUDA_EMULATED).  Only this file, ptx.cuh and hopper.cuh depend on that.
 * Shared memory is always dynamic, so that the emulation can poison it and detect overruns.
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

/* Programmatic dependent launch (sm_90 and later).  Blocks of a kernel may start as soon as all blocks of
 * the previous kernel have called let_next_start() or ended.  So when its last block ends, they are
 * already resident and their prefetch of weights is in flight.
 *
 *	wait_for_previous()   Returns when the previous kernel is complete and its writes are visible.  Every
 *	                      thread of every kernel calls it, even one without work.  Before it, a thread
 *	                      accesses only weights, its arguments, registers and shared memory.
 *	let_next_start()      May be called at any time; later writes are visible to the next kernel, too.
 *
 * This keeps stream order.  A kernel is complete when all its threads have ended.  Each of them has waited,
 * so the previous kernel is complete, and by induction all before it.  The kernel after the next may start
 * while the kernel before the last still runs.  Until its own wait it only reads weights, which nothing
 * writes after open.  A kernel in which no thread waits would break the chain for all after it.  Because
 * every thread waits, nothing has to be counted; the emulation reports a thread that ends without it. */
inline bool start_early;             /* set at open: the GPU supports it; else each kernel waits at its
                                        launch */

#ifdef CUDA_EMULATED
static inline float load_l2(const float *p) { return emu_spoils_parts ? *p + 1 : *p; }
static inline float4 load_l2(const float4 *p) { return make_float4(load_l2(&p->x), p->y, p->z, p->w); }
static inline uint32_t count_in(uint32_t *p)
{
	__threadfence();
	return atomicAdd(p, 1u);
}
static inline void wait_for_previous() { emu_wait_for_previous(); }
static inline void let_next_start() {}
static inline void barrier_cluster() { emu_barrier_cluster(); }
static inline uint64_t device_ns() { return emu_globaltimer(); }
static inline uint32_t load_far(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static inline uint64_t load_far(const uint64_t *p) { return *p + emu_spoils_parts; }
template <class V> static inline V load_far(const V *p) { return *p; }
static inline void store_far(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline void spin_pause() { emu_pause(); }
static inline void give_up(const char *why) { emu::fault("%s", why); }
#else
/* What another GPU or the host wrote: past all caches.  A fence comes between a word and what it announces. */
static inline __device__ uint32_t load_far(const uint32_t *p) { return *(const volatile uint32_t *)p; }
static inline __device__ uint16_t load_far(const uint16_t *p) { return *(const volatile uint16_t *)p; }
static inline __device__ uint64_t load_far(const uint64_t *p) { return *(const volatile uint64_t *)p; }
static inline __device__ uint4 load_far(const uint4 *p)
{
	uint4 v;

	asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
		: "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
	return v;
}
static inline __device__ void store_far(uint32_t *p, uint32_t v) { *(volatile uint32_t *)p = v; }
static inline __device__ void spin_pause() { __nanosleep(40); }
static inline __device__ void give_up(const char *) { __trap(); }

/* Past the cache of this multiprocessor, which does not hear of what others write. */
static inline __device__ float4 load_l2(const float4 *p) { return __ldcg(p); }
static inline __device__ float load_l2(const float *p) { return __ldcg(p); }

/* Adds 1 and returns what was there.  What this thread wrote or saw at a barrier is visible before; what others
 * wrote before their call is, after. */
static inline __device__ uint32_t count_in(uint32_t *p)
{
	uint32_t was;

	asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(was) : "l"(p) : "memory");
	return was;
}

static inline __device__ void wait_for_previous()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static inline __device__ void let_next_start()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Waits for all threads of all blocks of a cluster, and what they wrote is visible; sm_90 and later, which the
 * launch checks. */
static inline __device__ void barrier_cluster()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
	asm volatile("barrier.cluster.arrive.release;\n" /* not .aligned: a warp may come apart before it */
		"barrier.cluster.wait.acquire;" ::: "memory");
#else
	__trap();
#endif
}

/* The device's clock in nanoseconds since an arbitrary time, in steps of up to 1 us. */
static inline __device__ uint64_t device_ns()
{
	uint64_t t;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}
#endif

/* Launches every kernel of the back end; in the emulation all GPUs support an early start.  cluster: blocks that run
 * at the same time; 1: none wait for each other. */
template <class... P, class... A>
static inline cudaError_t start_clusters(unsigned cluster, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
	cudaStream_t s, A... a)
{
#ifdef CUDA_EMULATED
	emu_early = start_early;
	return emu_launch(grid, block, shared, s, true, cluster, [=] { kernel(P(a)...); }, __PRETTY_FUNCTION__);
#else
	cudaLaunchConfig_t c = {};
	cudaLaunchAttribute more[2] = {};
	unsigned n = 0;

	if (start_early) {
		more[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
		more[n++].val.programmaticStreamSerializationAllowed = 1;
	}
	if (cluster > 1) {
		more[n].id = cudaLaunchAttributeClusterDimension;
		more[n].val.clusterDim.x = cluster;
		more[n].val.clusterDim.y = more[n].val.clusterDim.z = 1;
		n++;
	}
	c.gridDim = grid;
	c.blockDim = block;
	c.dynamicSmemBytes = shared;
	c.stream = s;
	c.attrs = more;
	c.numAttrs = n;
	return cudaLaunchKernelEx(&c, kernel, P(a)...);
#endif
}

template <class... P, class... A>
static inline cudaError_t start(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t s, A... a)
{
	return start_clusters(1, kernel, grid, block, shared, s, a...);
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

/* Rounds to nearest even; NaN stays NaN. */
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

/* Reports that this block's share of a sum is stored.  True in all threads of the last of `parts` blocks, which
 * then sees all shares, by load_l2(); the count is 0 again.  `word` is in shared memory.  One thread's release
 * covers the block: the barrier before it orders the other threads' stores, as PTX's memory model has it. */
static inline __device__ bool arrive(uint32_t *arrived, uint32_t parts, uint32_t *word)
{
	__syncthreads(); /* all threads have stored their share */
	if (threadIdx.x == 0) {
		*word = count_in(arrived) + 1 == parts;
		if (*word)
			*arrived = 0;
	}
	__syncthreads();
	return *word;
}

/* Every thread gets the sum over all threads.  `scratch`: one T per warp.  All threads of the block
 * call it. */
template <class T> static inline __device__ T block_sum(T v, T *scratch)
{
	int warps = (int)blockDim.x / 32, warp = (int)threadIdx.x / 32;

	v = warp_sum(v);
	__syncthreads(); /* the previous call may still read scratch */
	if (threadIdx.x % 32 == 0)
		scratch[warp] = v;
	__syncthreads();
	v = scratch[0];
	for (int i = 1; i < warps; i++)
		v += scratch[i];
	return v;
}

#endif
