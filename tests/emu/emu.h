/* emu.h - the CUDA execution model on one CPU thread, so that kernels run unmodified in tests.
 *
 * Every CUDA thread is a fiber.  The scheduler runs the warps of a block one after the other, and a
 * warp's lanes one after the other, each until it waits: at a barrier of the block, or at a warp-wide
 * instruction.  When all lanes that a warp-wide instruction names wait at it, it is carried out once,
 * for all of them, on the scheduler's stack.  Blocks run one after the other.
 *
 * Found by running a kernel here:
 *	missing barriers     shared memory is NaN at the start, and warps run forward or reversed
 *	                     (emu_reversed): a read that is too early gets NaN or an old value
 *	missing waits        the target of cp.async is NaN until it is waited for; ldmatrix of what another lane
 *	                     copied, without a barrier behind its wait, is a fault
 *	divergence           a barrier or a shuffle that some lanes do not reach
 *	overruns             of shared memory (canaries), of device memory (ASan, canaries)
 *	misalignment         of cp.async and ldmatrix
 * and of Hopper's asynchronous instructions (hopper.cc), which come as late as they may:
 *	bulk copies          land only when nobody else can go on, the oldest or (reversed) the newest first;
 *	                     until then their target is NaN.  A barrier that is not initialized, is arrived at
 *	                     too often, or waited for in vain, is a fault
 *	wgmma                reads and adds up only in wgmma.wait_group, and when nobody else can go on; what was
 *	                     not waited for, has no fence, or whose registers change before that, is a fault
 *	fence.proxy.async    wgmma sees shared memory as bulk copies and the last such fence left it
 *	products of e4m3     keep 13 bits of fraction while 32 of them and the sum so far are added, as tensor
 *	                     cores of Ada and Hopper do: an order of adding that needs more shows
 *	clusters             their blocks run at the same time; barrier.cluster waits for all of them
 * With kernels that the compiler instruments (races.h): accesses that no barrier puts in order, of lanes, warps and
 * blocks.
 * Not found: bank conflicts, occupancy, the memory model, what a tensor core rounds otherwise.
 *
 * A fault stops the kernel; emu_fault() names it.
 */
#ifndef EMU_H
#define EMU_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

struct dim3 {
	unsigned x, y, z;
	constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

extern bool emu_reversed;            /* warps and lanes in reverse order, blocks by jumps from the last one */
extern uint64_t emu_launches;
extern bool emu_spoils;              /* of this kernel: every product of a tensor core is wrong by a little */
extern bool emu_spoils_parts;        /* so is what it reads of other blocks' sums */
extern bool emu_early;               /* the next launch may start early on a GPU */
const char *emu_fault();             /* of the last kernel, or NULL */

namespace emu {

/* Stacks lie a little more than STACK apart: else their tops would share the same few sets of each cache. */
enum { STACK = 64 << 10, STRIDE = STACK + 9 * 64, SHARED_MAX = 227 << 10, THREADS_MAX = 1024, CLUSTER_MAX = 8,
	LANES_MAX = 4096 };          /* of the blocks that run at the same time */

enum : unsigned { ALL_BLOCKS = ~0u };   /* the barrier of a cluster */

struct copy { void *to; const void *from; };          /* of 16 bytes; from NULL: zeros */

struct wgmma {                       /* one under way */
	float *d;                    /* [n / 2] */
	const uint32_t *a;           /* [4], or NULL: by its descriptor */
	uint32_t a_was[4];
	uint64_t a_desc, b_desc;
	unsigned n, group;
	int kind;
	bool keep;                   /* adds to d */
};
struct fragment { const uint32_t *at; uint32_t was[4]; }; /* of A in registers, at the last fence */

struct lane {
	void *sp;                    /* where it stopped */
	unsigned char *stack;
	dim3 thread;
	unsigned number, warp;       /* in its warp; of its warp */
	unsigned block;              /* in its cluster */
	enum { RUN, AT_WARP, AT_BARRIER, AT_PHASE, LATE, DONE } state; /* LATE: until nobody else can go on */
	const char *at;              /* the instruction it waits at */
	unsigned barrier, expected;  /* AT_BARRIER: which; of how many threads, 0: all of the block */
	const uint64_t *phase;       /* AT_PHASE: an mbarrier, and the parity of the phase that has to end */
	unsigned parity;
	unsigned mask;               /* the lanes that take part */
	void *arg;                   /* its part in it, on its stack */
	void (*combine)(lane *warp, unsigned mask);
	std::vector<copy> copies;    /* begun and not waited for */
	std::vector<size_t> groups;  /* copies in each committed group, oldest first */
	std::vector<const void *> unseen; /* targets of copies that it has waited for, and no barrier followed */
	std::vector<wgmma> wgmmas;   /* begun and not waited for */
	std::vector<fragment> fragments;
	unsigned wgmma_groups;       /* committed */
	bool fenced;                 /* by wgmma.fence, since the last wait */
	void *fake_stack;            /* the address sanitizer's */
};

extern lane *self;                   /* running now */
extern dim3 block_index, block_size, grid_size;

unsigned char *shared();             /* of the block, as much as the launch asked for */
size_t shared_bytes();
void wait_barrier(unsigned barrier, unsigned expected, const char *at);
void wait_phase(const uint64_t *mbarrier, unsigned parity);
void wait_late(const char *at);
void show();                         /* what self has copied is there for its warp */
void wait_warp(const char *at, unsigned mask, void *arg, void (*combine)(lane *, unsigned));
/* Eight sums of 32 products: a[k] b[k * step + n]. */
void add_short(float (&sum)[8], const float *a, const float *b, unsigned step);
[[noreturn]] void fault(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
bool run(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &thread, unsigned cluster = 1);
unsigned lane_number();              /* of self, in its cluster */
void will_read(const void *at);      /* self asks for a bulk copy; a fault if it has to wait first: emu_guard() */
unsigned lane_number(const lane *l);

/* hopper.cc, for the scheduler */
void hopper_begin();                 /* a block */
bool phase_over(const uint64_t *mbarrier, unsigned parity);
bool land_one();                     /* carries out one bulk copy; false: none is under way */
void hopper_end();                   /* a block; a fault if anything is still under way */
void hopper_end(const lane *l);

/* A warp-wide exchange of one value: lane i gets the value of lane from(i). */
template <class T> struct shuffle { T value, result; unsigned from; };

template <class T> T exchange(const char *at, unsigned mask, T value, unsigned from)
{
	shuffle<T> s = { value, value, from };

	wait_warp(at, mask, &s, [](lane *w, unsigned m) {
		for (unsigned i = 0; i < 32; i++) {
			if (!(m >> i & 1))
				continue;
			shuffle<T> *me = static_cast<shuffle<T> *>(w[i].arg);

			if (!(m >> (me->from & 31) & 1))
				fault("a shuffle reads lane %u, which takes no part", me->from & 31);
			me->result = static_cast<shuffle<T> *>(w[me->from & 31].arg)->value;
		}
	});
	return s.result;
}

} // namespace emu

/* ---- the language, as nvcc has it -------------------------------------------------------------- */

#define CUDA_EMULATED 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __grid_constant__

#define threadIdx (emu::self->thread)
#define blockIdx  (emu::block_index)
#define blockDim  (emu::block_size)
#define gridDim   (emu::grid_size)

struct float2 { float x, y; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static inline float2 make_float2(float x, float y) { return { x, y }; }
static inline float4 make_float4(float x, float y, float z, float w) { return { x, y, z, w }; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return { x, y, z, w }; }

static inline void emu_barrier_cluster() { emu::wait_barrier(emu::ALL_BLOCKS, 0, "barrier.cluster"); }
static inline void __syncthreads() { emu::wait_barrier(0, 0, "__syncthreads"); }
static inline void __syncwarp(unsigned mask = ~0u)
{
	emu::show();
	emu::exchange<char>("__syncwarp", mask, 0, emu::self->number);
}

template <class T> T __shfl_xor_sync(unsigned mask, T v, int x)
{
	return emu::exchange("__shfl_xor_sync", mask, v, emu::self->number ^ (unsigned)x);
}
template <class T> T __shfl_sync(unsigned mask, T v, int from)
{
	return emu::exchange("__shfl_sync", mask, v, (unsigned)from);
}
template <class T> T __shfl_up_sync(unsigned mask, T v, unsigned by)
{
	unsigned i = emu::self->number;

	return emu::exchange("__shfl_up_sync", mask, v, i < by ? i : i - by);
}
template <class T> T __shfl_down_sync(unsigned mask, T v, unsigned by)
{
	unsigned i = emu::self->number;

	return emu::exchange("__shfl_down_sync", mask, v, i + by > 31 ? i : i + by);
}

unsigned __ballot_sync(unsigned mask, int p);
static inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
static inline int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, p) == mask; }

/* One OS thread: nothing comes between. */
#ifdef __SANITIZE_THREAD__           /* they are no accesses like others */
#define EMU_ATOMIC template <class T> __attribute__((noinline, no_sanitize("thread"))) T
#else
#define EMU_ATOMIC template <class T> T
#endif
void emu_atomic(const void *p, size_t n, const void *pc); /* races.h */
void __threadfence();
#define EMU_COUNTS(p) emu_atomic(p, sizeof(*(p)), __builtin_return_address(0))
EMU_ATOMIC atomicAdd(T *p, T v) { EMU_COUNTS(p); T old = *p; *p = (T)(old + v); return old; }
EMU_ATOMIC atomicOr(T *p, T v) { EMU_COUNTS(p); T old = *p; *p = old | v; return old; }
EMU_ATOMIC atomicExch(T *p, T v) { EMU_COUNTS(p); T old = *p; *p = v; return old; }
EMU_ATOMIC atomicMax(T *p, T v) { EMU_COUNTS(p); T old = *p; if (v > old) *p = v; return old; }
EMU_ATOMIC atomicMin(T *p, T v) { EMU_COUNTS(p); T old = *p; if (v < old) *p = v; return old; }
static inline void __threadfence_system()
{
	__threadfence();
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* ranks are processes */
}
void emu_pause();                    /* while a kernel waits for another process */

static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
#define __expf expf                  /* glibc has a function of the other name */
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(unsigned x) { return __builtin_ffs((int)x); }
static inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
static inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
static inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint64_t __umul64hi(uint64_t a,
	uint64_t b) { return (uint64_t)((unsigned __int128)a * b >> 64); }

/* ---- instructions that kernels/cuda/ptx.cuh wraps ------------------------------------------------- */

void emu_cp_async_16(void *shared, const void *global, bool wanted);
void emu_cp_async_commit();
void emu_cp_async_wait(int left);
void emu_ldmatrix_x4(uint32_t r[4], const void *row, bool transposed);
void emu_mma_m16n8k16_bf16(float c[4], const uint32_t a[4], const uint32_t b[2]);
void emu_mma_m16n8k32_e4m3(float c[4], const uint32_t a[4], const uint32_t b[2]);

/* ---- and hopper.cuh ------------------------------------------------------------------- */

struct CUtensorMap {                 /* a matrix in device memory, and the box that one load brings */
	const unsigned char *base;
	uint64_t columns, rows, stride; /* in elements; bytes from row to row */
	uint32_t element, box_columns, box_rows; /* bytes */
};

/* As the driver does: false, if a real one could not be made. */
bool emu_tensor_map(CUtensorMap *map, uint32_t element, const void *base, uint64_t columns, uint64_t rows,
	uint64_t stride, uint32_t box_columns, uint32_t box_rows);
uint32_t emu_shared_address(const void *p);
void emu_barrier(unsigned barrier, unsigned threads);
void emu_mbarrier_init(uint64_t *bar, uint32_t count);
void emu_mbarrier_arrive(uint64_t *bar, uint32_t expect_bytes);
void emu_mbarrier_wait(const uint64_t *bar, uint32_t parity);
void emu_fence_async();
void emu_bulk_load(void *shared, const void *global, uint32_t bytes, uint64_t *bar);
void emu_tensor_load(void *shared, const CUtensorMap *map, int32_t column, int32_t row, uint64_t *bar);
void emu_wgmma_fence();
void emu_wgmma_commit();
void emu_wgmma_wait(int left);
enum { EMU_BF16, EMU_BF16_ROWS, EMU_E4M3 }; /* ROWS: b's run along N */
void emu_wgmma(float *d, unsigned n, const uint32_t *a, uint64_t a_desc, uint64_t b_desc, int kind, bool keep);
uint32_t emu_movmatrix_trans(uint32_t r);

#endif
