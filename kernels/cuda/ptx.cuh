/* ptx.cuh - the instructions that CUDA C++ has no word for, each wrapped once; sm_80 and later. */
#ifndef CUDA_PTX_CUH
#define CUDA_PTX_CUH

#include "kernel.cuh"

#ifdef CUDA_EMULATED

static inline void cp_async_16(void *to, const void *from, bool wanted) { emu_cp_async_16(to, from, wanted); }
static inline void cp_async_commit() { emu_cp_async_commit(); }
template <int LEFT> static inline void cp_async_wait() { emu_cp_async_wait(LEFT); }
static inline void ldmatrix_x4(uint32_t (&r)[4], const void *row) { emu_ldmatrix_x4(r, row, false); }
static inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row) { emu_ldmatrix_x4(r, row, true); }
static inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	uint32_t b[2] = { b0, b1 };

	emu_mma_m16n8k16_bf16(c, a, b);
}

#else

static inline __device__ uint32_t shared_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes; zeros if not wanted, then `global` need only be an address. */
static inline __device__ void cp_async_16(void *shared, const void *global, bool wanted)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
		:: "r"(shared_address(shared)), "l"(global), "r"(wanted ? 16 : 0) : "memory");
}

static inline __device__ void cp_async_commit()
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most LEFT groups of this thread are under way. */
template <int LEFT> static inline __device__ void cp_async_wait()
{
	asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}

/* Four 8x8 matrices of 16 bits; lane i gives the address of row i % 8 of matrix i / 8. */
static inline __device__ void ldmatrix_x4(uint32_t (&r)[4], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
		: "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

static inline __device__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
		: "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

/* c[16][8] += a[16][16] b[16][8] */
static inline __device__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
		"{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
#endif
