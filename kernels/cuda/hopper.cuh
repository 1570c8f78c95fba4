/* hopper.cuh - the instructions that only sm_90a has, each wrapped once; ptx.cuh wraps those of sm_80.
 * They are barriers that count bytes (mbarrier), copies that one thread starts for all (TMA), and products of
 * a warpgroup (wgmma).
 *
 * A kernel that uses them has a body only if ON_HOPPER is defined, and is launched only if can_hopper()
 * is true.
 *
 * An mbarrier counts arrivals and bytes; when all that it expects have come, the next phase begins.
 * A waiter passes the parity of the phase whose end it waits for.  A new barrier is in phase 0, and the phase
 * before it, of parity 1, counts as complete.  So in a ring, turn n of a stage is phase n of its barriers:
 *
 *	producer   wait(empty, ~n & 1)   expect(full, bytes)   loads that complete on full
 *	consumer   wait(full, n & 1)     reads                 arrive(empty)
 *
 * Operands of wgmma lie in shared memory in TMA's 128-byte swizzle: rows of 128 bytes along K.  Eight rows
 * make a pattern of 1,024 bytes, aligned to 1,024 bytes.  The 16-byte chunk c of row r is at place
 * c ^ r % 8, so that the 8 rows that a tensor core reads at once use all 32 banks:
 *
 *	place    0   1   2   3   4   5   6   7
 *	row 0    c0  c1  c2  c3  c4  c5  c6  c7
 *	row 1    c1  c0  c3  c2  c5  c4  c7  c6
 *	row 2    c2  c3  c0  c1  c6  c7  c4  c5
 *	  ..                                        row 8 is like row 0, at 1,024 bytes
 *
 * The hardware swizzles addresses (bits 4-6 by bits 7-9).  So the descriptor of the next 32 bytes of K is the
 * same plus 32 bytes.
 *
 * wgmma m64nNk16 (e4m3: k32) of warp w, lane 4g + t of the warpgroup:
 *
 *	d[4j + 0, 1]   row 16w + g,     columns 8j + 2t and the next       j = 0 .. N / 8 - 1
 *	d[4j + 2, 3]   row 16w + g + 8, the same columns
 *	a[0], a[1]     rows 16w + g and 16w + g + 8, bytes 4t .. 4t + 3 of the first 16 of K
 *	a[2], a[3]     the same rows, the other 16 bytes
 */
#ifndef CUDA_HOPPER_CUH
#define CUDA_HOPPER_CUH

#include "ptx.cuh"

#if defined(CUDA_EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ON_HOPPER 1
#endif

/* The body of a kernel on other GPUs: traps. */
static inline __device__ void not_hopper()
{
#if !defined(CUDA_EMULATED)
	asm volatile("trap;");
#endif
}

static inline bool can_hopper(int32_t capability)
{
	return capability >= 90 && capability < 100;
}

/* Alignment of tiles, and the most bytes that aligning a launch's shared memory to it costs. */
#define PATTERN 1024

#ifdef CUDA_EMULATED

static inline uint32_t shared_address(const void *p) { return emu_shared_address(p); }
static inline void barrier_sync(int id, int threads) { emu_barrier((unsigned)id, (unsigned)threads); }
static inline void mbarrier_init(uint64_t *bar, uint32_t n) { emu_mbarrier_init(bar, n); }
static inline void mbarrier_fence_init() {}
static inline void mbarrier_arrive(uint64_t *bar) { emu_mbarrier_arrive(bar, 0); }
static inline void mbarrier_expect(uint64_t *bar, uint32_t bytes) { emu_mbarrier_arrive(bar, bytes); }
static inline void mbarrier_wait(uint64_t *bar, uint32_t parity) { emu_mbarrier_wait(bar, parity); }
static inline void fence_async() { emu_fence_async(); }
static inline void bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *bar)
{
	emu_bulk_load(to, from, bytes, bar);
}
static inline void tensor_load(void *to, const CUtensorMap *map, int32_t column, int32_t row, uint64_t *bar)
{
	emu_tensor_load(to, map, column, row, bar);
}
static inline void tensor_prefetch(const CUtensorMap *) {}
template <int N> static inline void registers_up() {}
template <int N> static inline void registers_down() {}
static inline void wgmma_fence() { emu_wgmma_fence(); }
static inline void wgmma_commit() { emu_wgmma_commit(); }
template <int LEFT> static inline void wgmma_wait() { emu_wgmma_wait(LEFT); }
template <class T, int REGISTERS> static inline void keep_order(T (&)[REGISTERS]) {}
template <int HALF_N> static inline void wgmma_bf16(float (&d)[HALF_N], uint64_t a, uint64_t b, bool keep)
{
	emu_wgmma(d, 2 * HALF_N, NULL, a, b, EMU_BF16, keep);
}
template <int HALF_N> static inline void wgmma_bf16(float (&d)[HALF_N], const uint32_t (&a)[4], uint64_t b,
	bool keep)
{
	emu_wgmma(d, 2 * HALF_N, a, 0, b, EMU_BF16, keep);
}
template <int HALF_N> static inline void wgmma_bf16_rows(float (&d)[HALF_N], const uint32_t (&a)[4],
	uint64_t b, bool keep)
{
	emu_wgmma(d, 2 * HALF_N, a, 0, b, EMU_BF16_ROWS, keep);
}
template <int HALF_N> static inline void wgmma_e4m3(float (&d)[HALF_N], const uint32_t (&a)[4], uint64_t b,
	bool keep)
{
	emu_wgmma(d, 2 * HALF_N, a, 0, b, EMU_E4M3, keep);
}
static inline uint32_t movmatrix_trans(uint32_t r) { return emu_movmatrix_trans(r); }

#else

#include <cuda.h>

/* A barrier of `threads` threads of the block, whole warps; id 0 is that of __syncthreads(). */
static inline __device__ void barrier_sync(int id, int threads)
{
	asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

/* ---- mbarrier ------------------------------------------------------------------------- */

static inline __device__ void mbarrier_init(uint64_t *bar, uint32_t n)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(bar)), "r"(n) : "memory");
}

/* Goes after the inits and before the barrier that publishes them: makes them visible to copies too. */
static inline __device__ void mbarrier_fence_init()
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static inline __device__ void mbarrier_arrive(uint64_t *bar)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(bar)) : "memory");
}

/* Arrives, and expects `bytes` more bytes. */
static inline __device__ void mbarrier_expect(uint64_t *bar, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
		:: "r"(shared_address(bar)), "r"(bytes) : "memory");
}

static inline __device__ void mbarrier_wait(uint64_t *bar, uint32_t parity)
{
	asm volatile("{ .reg .pred p;\n"
		"again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
		"@!p bra again; }" :: "r"(shared_address(bar)), "r"(parity & 1) : "memory");
}

/* Makes this thread's writes to shared memory visible to bulk copies and wgmma. */
static inline __device__ void fence_async()
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- copies --------------------------------------------------------------------------- */

/* Sizes and addresses are multiples of 16 bytes. */
static inline __device__ void bulk_load(void *shared, const void *global, uint32_t bytes, uint64_t *bar)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
		:: "r"(shared_address(shared)), "l"(global), "r"(bytes), "r"(shared_address(bar)) : "memory");
}

/* Loads the map's box at that element.  Zeros fill places beyond the matrix, and count as bytes. */
static inline __device__ void tensor_load(void *shared, const CUtensorMap *map, int32_t column, int32_t row,
	uint64_t *bar)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
		"[%0], [%1, {%2, %3}], [%4];"
		:: "r"(shared_address(shared)), "l"(map), "r"(column), "r"(row), "r"(shared_address(bar))
		: "memory");
}

/* Prefetches the map, a parameter of the kernel, so that the first load need not wait for it. */
static inline __device__ void tensor_prefetch(const CUtensorMap *map)
{
	asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}

/* ---- registers ------------------------------------------------------------------------ */

/* Sets the registers of each thread of this warpgroup from here on; all four warps call it. */
template <int N> static inline __device__ void registers_up()
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N));
}

template <int N> static inline __device__ void registers_down()
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N));
}

/* ---- wgmma ---------------------------------------------------------------------------- */

/* Goes before the first wgmma, and after any other access to the registers of wgmma. */
static inline __device__ void wgmma_fence()
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static inline __device__ void wgmma_commit()
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most LEFT groups of this warpgroup are in flight. */
template <int LEFT> static inline __device__ void wgmma_wait()
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}

/* The compiler moves no access to these registers across this: reads of wgmma's sums stay after the wait,
 * and writes of its left operand stay before the fence. */
template <int REGISTERS> static inline __device__ void keep_order(float (&d)[REGISTERS])
{
#pragma unroll
	for (int i = 0; i < REGISTERS; i++)
		asm volatile("" : "+f"(d[i]) :: "memory");
}

template <int REGISTERS> static inline __device__ void keep_order(uint32_t (&a)[REGISTERS])
{
#pragma unroll
	for (int i = 0; i < REGISTERS; i++)
		asm volatile("" : "+r"(a[i]) :: "memory");
}

#define D8(i)   "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
		"+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define D32(i)  D8(i), D8(i + 8), D8(i + 16), D8(i + 24)
#define D64     D32(0), D32(32)
#define D128    D64, D32(64), D32(96)
#define S32     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
		"%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define S64     S32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
		"%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define S128    S64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
		"%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
		"%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
		"%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/* S and D: SHAPE's sums.  Then A and B, then whether to keep the old value of d, each as %operand. */
#define WGMMA_SHARED(SHAPE, S, D, a_, b_, k_) \
	asm volatile("{ .reg .pred p; setp.ne.b32 p, " k_ ", 0;" \
		"wgmma.mma_async.sync.aligned." SHAPE " {" S "}, " a_ ", " b_ ", p, 1, 1, 0, 0; }" \
		: D : "l"(a), "l"(b), "r"((int)keep))
#define WGMMA_REGISTERS(SHAPE, S, D, a_, b_, k_, last) \
	asm volatile("{ .reg .pred p; setp.ne.b32 p, " k_ ", 0;" \
		"wgmma.mma_async.sync.aligned." SHAPE " {" S "}, {" a_ "}, " b_ ", p, 1, 1" last "; }" \
		: D : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)keep))

/* d[64][N] (+)= a[64][16] b[N][16]^T of bf16; a and b are descriptors. */
template <int HALF_N> static inline __device__ void wgmma_bf16(float (&d)[HALF_N], uint64_t a, uint64_t b,
	bool keep)
{
	static_assert(HALF_N == 64 || HALF_N == 128, "N is 128 or 256");
	if constexpr (HALF_N == 64)
		WGMMA_SHARED("m64n128k16.f32.bf16.bf16", S64, D64, "%64", "%65", "%66");
	else
		WGMMA_SHARED("m64n256k16.f32.bf16.bf16", S128, D128, "%128", "%129", "%130");
}

/* The same with a in registers. */
template <int HALF_N> static inline __device__ void wgmma_bf16(float (&d)[HALF_N], const uint32_t (&a)[4],
	uint64_t b, bool keep)
{
	static_assert(HALF_N == 64 || HALF_N == 128, "N is 128 or 256");
	if constexpr (HALF_N == 64)
		WGMMA_REGISTERS("m64n128k16.f32.bf16.bf16", S64, D64, "%64, %65, %66, %67", "%68", "%69", ", 0");
	else
		WGMMA_REGISTERS("m64n256k16.f32.bf16.bf16", S128, D128, "%128, %129, %130, %131", "%132", "%133",
			", 0");
}

/* d[64][N] (+)= a[64][16] b[16][N]: b by rows, with a descriptor from operand_rows(). */
template <int HALF_N> static inline __device__ void wgmma_bf16_rows(float (&d)[HALF_N],
	const uint32_t (&a)[4], uint64_t b, bool keep)
{
	static_assert(HALF_N == 32 || HALF_N == 64, "N is 64 or 128");
	if constexpr (HALF_N == 32)
		WGMMA_REGISTERS("m64n64k16.f32.bf16.bf16", S32, D32(0), "%32, %33, %34, %35", "%36", "%37", ", 1");
	else
		WGMMA_REGISTERS("m64n128k16.f32.bf16.bf16", S64, D64, "%64, %65, %66, %67", "%68", "%69", ", 1");
}

/* d[64][N] (+)= a[64][32] b[N][32]^T of e4m3.  Its sums have few digits: add them to others soon. */
template <int HALF_N> static inline __device__ void wgmma_e4m3(float (&d)[HALF_N], const uint32_t (&a)[4],
	uint64_t b, bool keep)
{
	static_assert(HALF_N == 64, "N is 128");
	WGMMA_REGISTERS("m64n128k32.f32.e4m3.e4m3", S64, D64, "%64, %65, %66, %67", "%68", "%69", "");
}

/* Transposes 8x8 elements of 16 bits: lane 4g + t gives and gets elements 2t and 2t + 1 of row g. */
static inline __device__ uint32_t movmatrix_trans(uint32_t r)
{
	uint32_t to;

	asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(r));
	return to;
}

#endif

/* Makes the map of a matrix in device memory, rows contiguous, of bf16 or else bytes.  A load brings a box
 * of `box_rows` rows, 128 bytes each.  The host makes it without a call to the device, which reads it as a
 * kernel parameter.  The driver's function is looked up at run time, because nothing here links with
 * libcuda. */
static inline cudaError_t tensor_map(CUtensorMap *map, bool is_bf16, const void *base, int32_t columns,
	int64_t rows, int32_t box_rows)
{
	uint64_t stride = (uint64_t)columns * (is_bf16 ? 2 : 1);
	uint32_t box_columns = is_bf16 ? 64 : 128;

#ifdef CUDA_EMULATED
	return emu_tensor_map(map, is_bf16 ? 2 : 1, base, (uint64_t)columns, (uint64_t)rows, stride, box_columns,
		(uint32_t)box_rows) ? cudaSuccess : cudaErrorInvalidValue;
#else
	static decltype(cuTensorMapEncodeTiled) *encode;
	cuuint64_t sizes[2] = { (cuuint64_t)columns, (cuuint64_t)rows }, strides[1] = { stride };
	cuuint32_t box[2] = { box_columns, (cuuint32_t)box_rows }, steps[2] = { 1, 1 };
	cudaDriverEntryPointQueryResult found;
	cudaError_t e = encode ? cudaSuccess : cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled",
		(void **)&encode, 12000, cudaEnableDefault, &found);

	if (e != cudaSuccess || !encode)
		return e != cudaSuccess ? e : cudaErrorInsufficientDriver;
	return encode(map, is_bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8, 2,
		const_cast<void *>(base), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
		CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
		CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
#endif
}

/* The descriptor of an operand at `shared`: swizzled, rows of 128 bytes, patterns contiguous. */
static inline __device__ uint64_t operand(const void *shared)
{
	const uint64_t swizzle_128 = (uint64_t)1 << 62, pattern = (uint64_t)(PATTERN / 16) << 32;
	const uint64_t unused = 1 << 16;

	return (shared_address(shared) & 0x3ffff) >> 4 | unused | pattern | swizzle_128;
}

/* The descriptor of a right operand whose rows run along N: 64 elements of each row of K in 128 bytes.  The
 * next 64 of N are `next` bytes further. */
static inline __device__ uint64_t operand_rows(const void *shared, int next)
{
	const uint64_t swizzle_128 = (uint64_t)1 << 62, pattern = (uint64_t)(PATTERN / 16) << 32;

	return (shared_address(shared) & 0x3ffff) >> 4 | (uint64_t)(next / 16) << 16 | pattern | swizzle_128;
}

/* The descriptor `bytes` further along K. */
static inline __device__ uint64_t along(uint64_t operand, int bytes)
{
	return operand + (uint64_t)(bytes / 16);
}

/* Transposes words among four lanes: lane t has word i of row t and gets word t of row i. */
static inline __device__ void transpose_four(uint32_t (&w)[4])
{
	int lane = (int)threadIdx.x;

#pragma unroll
	for (int x = 1; x <= 2; x++) {
		bool odd = lane & x;

#pragma unroll
		for (int i = 0; i < 4; i++) {
			if (i & x)
				continue;
			uint32_t got = __shfl_xor_sync(FULL, odd ? w[i] : w[i + x], x);

			if (odd)
				w[i] = got;
			else
				w[i + x] = got;
		}
	}
}

#endif
