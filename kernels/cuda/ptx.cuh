/* ptx.cuh - the instructions that CUDA C++ does not have, each wrapped once; for sm_80 and later. */
#ifndef CUDA_PTX_CUH
#define CUDA_PTX_CUH

#include "kernel.cuh"

#ifdef CUDA_EMULATED

static inline void cp_async_16(void *to, const void *from, bool wanted) { emu_cp_async_16(to, from, wanted); }
static inline void cp_async_16_once(void *to, const void *from, bool wanted)
{
	emu_cp_async_16(to, from, wanted);
}
static inline void cp_async_commit() { emu_cp_async_commit(); }
template <int LEFT> static inline void cp_async_wait() { emu_cp_async_wait(LEFT); }
static inline void ldmatrix_x4(uint32_t (&r)[4], const void *row) { emu_ldmatrix_x4(r, row, false); }
static inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row) { emu_ldmatrix_x4(r, row, true); }
static inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	uint32_t b[2] = { b0, b1 };

	emu_mma_m16n8k16_bf16(c, a, b);
}
static inline void mma_e4m3(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	uint32_t b[2] = { b0, b1 };

	emu_mma_m16n8k32_e4m3(c, a, b);
}
static inline float exp2_fast(float x) { return exp2f(x); }
static inline float divide_fast(float x, float y) { return x / y; }
static inline uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which)
{
	uint64_t both = (uint64_t)b << 32 | a;
	uint32_t r = 0;

	for (int i = 0; i < 4; i++)
		r |= (uint32_t)(both >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
	return r;
}
static inline uint32_t mul_bf16_pair(uint32_t a, uint32_t b)
{
	return bf16_of(f32_of((bf16)a) * f32_of((bf16)b)) |
	       (uint32_t)bf16_of(f32_of((bf16)(a >> 16)) * f32_of((bf16)(b >> 16))) << 16;
}

#else

static inline __device__ uint32_t shared_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

/* Copies 16 bytes.  If not wanted, stores zeros; then `global` need only be a valid address. */
static inline __device__ void cp_async_16(void *shared, const void *global, bool wanted)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
		:: "r"(shared_address(shared)), "l"(global), "r"(wanted ? 16 : 0) : "memory");
}

/* The same for data that is read once: it is evicted first from L2. */
static inline __device__ void cp_async_16_once(void *shared, const void *global, bool wanted)
{
	asm volatile("{ .reg .b64 p; createpolicy.fractional.L2::evict_first.b64 p, 1.0;"
		"cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, p; }"
		:: "r"(shared_address(shared)), "l"(global), "r"(wanted ? 16 : 0) : "memory");
}

static inline __device__ void cp_async_commit()
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most LEFT groups of this thread are in flight. */
template <int LEFT> static inline __device__ void cp_async_wait()
{
	asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}

/* Loads four 8x8 matrices of 16 bits; lane i gives the address of row i % 8 of matrix i / 8. */
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

/* c[16][8] += a[16][32] b[32][8] of e4m3; sm_89 and later, which the callers check. */
static inline __device__ void mma_e4m3(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
	asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
		"{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
	asm volatile("trap;");
#endif
}

/* 2^x with 22 bits; results below 2^-126 are 0.  exp2f() takes four instructions more for those. */
static inline __device__ float exp2_fast(float x)
{
	float r;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
	return r;
}

/* Off by a few of the last bits. */
static inline __device__ float divide_fast(float x, float y) { return __fdividef(x, y); }

/* Byte i of the result is byte `which >> 4 * i & 7` of b:a. */
static inline __device__ uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which)
{
	return __byte_perm(a, b, which);
}

/* Two products.  sm_80 has no mul.bf16x2, but an fma, to which adding -0 changes nothing. */
static inline __device__ uint32_t mul_bf16_pair(uint32_t a, uint32_t b)
{
	uint32_t r;

	asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
	return r;
}

#endif

/* ---- e4m3: sign, 4 bits of exponent, 3 of fraction; no infinities ------------------------------ */

/* Converts bytes 0 and 2 of a word, then 1 and 3, to pairs of bf16, exactly.  Their bits go to the top of a
 * bf16, whose exponent is then too small by 120. */
static inline __device__ void bf16_of_e4m3(uint32_t word, uint32_t &even, uint32_t &odd)
{
	const uint32_t by = 0x7b807b80;  /* 2^120 */

	odd = mul_bf16_pair((word & 0x80008000) | (word & 0x7f007f00) >> 4, by);
	word <<= 8;
	even = mul_bf16_pair((word & 0x80008000) | (word & 0x7f007f00) >> 4, by);
}

/* The same of e2m1 (sign, 2 bits of exponent, 1 of fraction) in bits 0 .. 3 and 16 .. 19; the exponent is too
 * small by 126. */
static inline __device__ uint32_t bf16_of_e2m1(uint32_t pair)
{
	return mul_bf16_pair((pair & 0x00080008) << 12 | (pair & 0x00070007) << 6, 0x7e807e80);
}

/* Rounds to nearest even; beyond 448 it returns 448.  NaN stays NaN here, but is read back as 480. */
static inline __host__ __device__ uint32_t e4m3_of(float f)
{
	uint32_t u, sign;
	float size = fabsf(f);

	memcpy(&u, &f, sizeof(u));
	sign = u >> 24 & 0x80;
	if (size < 0.015625f)            /* subnormal: multiples of 2^-9 */
		return sign | (uint32_t)rintf(size * 512);
	u &= 0x7fffffff;
	if (u > 0x7f800000)
		return sign | 0x7f;
	if (size >= 448)
		return sign | 0x7e;
	return sign | (((u + 0x7ffff + (u >> 20 & 1)) >> 20) - (120 << 3));
}

#endif
