/* LINK: */
/* test_emu.cc - the CPU's stand-in for a GPU (tests/emu): its instructions against plain loops, and the
 * mistakes that it must find.  `make gpu-check` runs the first half on a real GPU, against the same loops. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
}
#include <cstdio>

#include "kernels/cuda/hopper.cuh"
#include "tests/cuda/real.h"

#define POOL (256 << 10)

#ifdef CUDA_EMULATED
#define FIRST_WAIT 0
static cudaError_t cudaMallocManaged(void **p, size_t)
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
static void *both_bytes(size_t n)
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

/* ---- instructions --------------------------------------------------------------------- */

static __global__ void exchange_kernel(int *out)
{
	int i = (int)threadIdx.x, *mine = out + 8 * (blockIdx.x * blockDim.x + threadIdx.x);

	mine[0] = __shfl_xor_sync(FULL, i, 5);
	mine[1] = __shfl_up_sync(FULL, i, 3);
	mine[2] = __shfl_down_sync(FULL, i, 3);
	mine[3] = __shfl_sync(FULL, i, 7);
	mine[4] = (int)__ballot_sync(FULL, i % 3 == 0);
	mine[5] = warp_sum(i);
	mine[6] = i % 32 < 16 ? __shfl_xor_sync(0xffffu, i, 1) : -1;
	mine[7] = __any_sync(FULL, i % 32 == 31) + 2 * __all_sync(FULL, i % 32 < 31);
}

static void test_exchange(void **)
{
	int *out = both<int>(2 * 64 * 8);

	assert_null(launched(2, 64, 0, exchange_kernel, out));
	for (int i = 0; i < 128; i++) {
		int t = i % 64, lane = t % 32, base = t - lane, *o = out + 8 * i, votes = 0;

		for (int l = 0; l < 32; l++)
			votes |= ((base + l) % 3 == 0) << l;
		assert_int_equal(o[0], base + (lane ^ 5));
		assert_int_equal(o[1], lane < 3 ? t : t - 3);
		assert_int_equal(o[2], lane > 28 ? t : t + 3);
		assert_int_equal(o[3], base + 7);
		assert_int_equal(o[4], votes);
		assert_int_equal(o[5], 32 * base + 496);
		assert_int_equal(o[6], lane < 16 ? base + (lane ^ 1) : -1);
		assert_int_equal(o[7], 1);
	}
}

/* c[16][8] = a[16][16] b[8][16]^T through shared memory; with `transposed`, of b[16][8]. */
static __global__ void mma_kernel(const bf16 *a, const bf16 *b, float *c, bool transposed)
{
	SHARED(shared);
	bf16 *sa = (bf16 *)shared, *sb = sa + 16 * 24;
	int lane = (int)threadIdx.x, pitch = transposed ? 16 : 24;
	uint32_t fa[4], fb[4];
	float sum[4] = {};

	for (int i = lane; i < 256; i += 32) {
		sa[i / 16 * 24 + i % 16] = a[i];
		sb[i / 16 * pitch + i % 16] = b[i];
	}
	__syncwarp();
	ldmatrix_x4(fa, sa + lane % 16 * 24 + lane / 16 * 8);
	if (transposed)
		ldmatrix_x4_trans(fb, sb + lane % 16 * pitch + lane / 16 * 8);
	else
		ldmatrix_x4(fb, sb + (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 8);
	mma_bf16(sum, fa, fb[0], fb[1]);
	for (int j = 0; j < 4; j++)
		c[(lane / 4 + j / 2 * 8) * 8 + lane % 4 * 2 + j % 2] = sum[j];
}

static void test_mma(void **)
{
	bf16 *a = both<bf16>(256), *b = both<bf16>(256);
	float *c = both<float>(128);

	for (int i = 0; i < 256; i++) {
		a[i] = bf16_of((float)(i * 37 % 101 - 50));
		b[i] = bf16_of((float)(i * 53 % 97 - 48));
	}
	for (int t = 0; t < 2; t++) {
		assert_null(launched(1, 32, 4096, mma_kernel, (const bf16 *)a, (const bf16 *)b, c, t == 1));
		for (int m = 0; m < 16; m++) {
			for (int n = 0; n < 8; n++) {
				float want = 0;

				for (int k = 0; k < 16; k++)
					want += f32_of(a[m * 16 + k]) * f32_of(t
						? b[k * 16 + n] : b[n * 16 + k]);
				assert_float_equal(c[m * 8 + n], want, 0);
			}
		}
	}
}

/* ---- e4m3 ------------------------------------------------------------------------------ */

static float e4m3_value(unsigned v)
{
	int e = (int)(v >> 3 & 15);
	float f = ldexpf((float)(v & 7) + (e ? 8 : 0), (e ? e : 1) - 10);

	return v & 0x80 ? -f : f;
}

/* Each of 256 values, four to a lane and back again; its bf16 by pairs of bytes 0, 2 and 1, 3. */
static __global__ void e4m3_kernel(uint32_t *even, uint32_t *odd)
{
	uint32_t v = 4 * threadIdx.x;

	bf16_of_e4m3(v | (v + 1) << 8 | (v + 2) << 16 | (v + 3) << 24, even[threadIdx.x], odd[threadIdx.x]);
}

static void test_e4m3(void **)
{
	static const struct { float f; unsigned bits; } cases[] = {
		{ 0, 0 }, { -0.0f, 0x80 }, { 448, 0x7e }, { 1e9f, 0x7e }, { -INFINITY, 0xfe }, { 1.0625f, 0x38 },
		{ 1.1875f, 0x3a }, { 0.0009765625f, 0 }, { 0.00098f, 1 }, { 0.0150f, 0x08 }, { NAN, 0x7f },
	};
	uint32_t *pairs = both<uint32_t>(128);

	for (const auto &c : cases)
		assert_int_equal(e4m3_of(c.f), c.bits);
	assert_null(launched(1, 64, 0, e4m3_kernel, pairs, pairs + 64));
	for (unsigned v = 0; v < 256; v++) {
		uint32_t pair = pairs[v % 2 * 64 + v / 4];

		if ((v & 0x7f) == 0x7f)
			continue;
		assert_int_equal(e4m3_of(e4m3_value(v)), v);
		assert_float_equal(f32_of((bf16)(v % 4 < 2 ? pair : pair >> 16)), e4m3_value(v), 0);
	}
}

/* c[16][8] = a[16][32] b[8][32]^T of e4m3, words as they lie. */
static __global__ void mma_e4m3_kernel(const uint32_t *a, const uint32_t *b, float *c)
{
	int g = (int)threadIdx.x / 4, t = (int)threadIdx.x % 4;
	uint32_t fa[4] = { a[8 * g + t], a[8 * (g + 8) + t], a[8 * g + 4 + t], a[8 * (g + 8) + 4 + t] };
	float sum[4] = {};

	mma_e4m3(sum, fa, b[8 * g + t], b[8 * g + 4 + t]);
	for (int j = 0; j < 4; j++)
		c[(g + j / 2 * 8) * 8 + 2 * t + j % 2] = sum[j];
}

static void test_mma_e4m3(void **)
{
	uint8_t *a = both<uint8_t>(512), *b = both<uint8_t>(256);
	float *c = both<float>(128);

#ifndef CUDA_EMULATED
	int major = 0, minor = 0;

	cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
	cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
	if (10 * major + minor < 89)
		skip();
#endif
	for (unsigned i = 0; i < 512; i++) {
		a[i] = (uint8_t)(0x30 + i * 37 % 23) | (uint8_t)(i % 3 == 0 ? 0x80 : 0);
		b[i % 256] = (uint8_t)(0x34 + i * 53 % 19) | (uint8_t)(i % 5 == 0 ? 0x80 : 0);
	}
	assert_null(launched(1, 32, 0, mma_e4m3_kernel, (const uint32_t *)a, (const uint32_t *)b, c));
	for (int m = 0; m < 16; m++) {
		for (int n = 0; n < 8; n++) {
			float want = 0;

			for (int k = 0; k < 32; k++)
				want += e4m3_value(a[m * 32 + k]) * e4m3_value(b[n * 32 + k]);
			assert_float_equal(c[m * 8 + n], want, 0.05); /* a GPU keeps fewer digits */
		}
	}
}

static void test_bf16(void **)
{
	static const struct { float f; unsigned bits; } cases[] = {
		{ 1, 0x3f80 }, { 1.00390625f, 0x3f80 }, { 1.01171875f, 0x3f82 }, { -2.5f, 0xc020 },
			{ 3.4e38f, 0x7f80 },
		{ INFINITY, 0x7f80 }, { 1e-40f, 0x0001 },
	};

	for (const auto &c : cases)
		assert_int_equal(bf16_of(c.f), c.bits);
	assert_true(f32_of(bf16_of(NAN)) != f32_of(bf16_of(NAN)));
	assert_int_equal(bf16_pair(1, -2.5f), 0xc0203f80);
}

/* ---- Hopper ---------------------------------------------------------------------------- */

/* Skip a test that needs the emulation. */
static void want_hopper()
{
#ifndef CUDA_EMULATED
	int major = 0;

	cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
	if (!can_hopper(10 * major))
		skip();
#endif
}

#ifdef CUDA_EMULATED
#define MISTAKE(m) (m)
#else
#define MISTAKE(m) 0                   /* none is tried on a GPU; known at compile time */
#endif

static CUtensorMap map_of(bool is_bf16, const void *base, int columns, int rows, int box_rows)
{
	CUtensorMap map;

	assert_int_equal(tensor_map(&map, is_bf16, base, columns, rows, box_rows), cudaSuccess);
	return map;
}

/* The emulation's driver refuses what a real one does. */
static void test_tensor_map(void **)
{
	static const struct { size_t off; int columns, rows, box_rows; bool fine; } cases[] = {
		{ 0, 64, 8, 8, true }, { 16, 72, 3, 256, true }, { 8, 64, 8, 8, false }, { 0, 68, 8, 8, false },
		{ 0, 64, 8, 257, false }, { 0, 64, 0, 8, false },
	};
	unsigned char *at = both<unsigned char>(1024);
	CUtensorMap map;

	want_hopper();
	for (const auto &c : cases)
		assert_int_equal(tensor_map(&map, true, at + c.off, c.columns, c.rows, c.box_rows),
			c.fine ? cudaSuccess : cudaErrorInvalidValue);
}

/* Shared memory as it is after a load of a box from row, column on, and of 512 bytes in a row. */
static __global__ void bulk_kernel(const __grid_constant__ CUtensorMap map, const uint32_t *from, int column, int row,
	int box_rows, uint32_t *out)
{
	wait_for_previous();
#ifdef ON_HOPPER
	SHARED(raw);
	unsigned char *shared = raw + (-shared_address(raw) & (PATTERN - 1));
	uint64_t *bar = (uint64_t *)(shared + 128 * box_rows + 512);

	if (threadIdx.x == 0) {
		mbarrier_init(bar, 1);
		mbarrier_fence_init();
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		tensor_prefetch(&map);
		mbarrier_expect(bar, 128 * (uint32_t)box_rows + 512);
		tensor_load(shared, &map, column, row, bar);
		bulk_load(shared + 128 * box_rows, from, 512, bar);
	}
	mbarrier_wait(bar, 0);
	for (int i = (int)threadIdx.x; i < 32 * box_rows + 128; i += (int)blockDim.x)
		out[i] = ((uint32_t *)shared)[i];
#else
	(void)from, (void)column, (void)row, (void)box_rows, (void)out;
	not_hopper();
#endif
}

/* Boxes inside, over each edge, and beyond: 16-byte chunks where the swizzle puts them, zeros outside. */
static void test_bulk(void **)
{
	static const struct { int column, row; } cases[] = { { 0, 0 }, { 64, 3 }, { 8, 30 }, { 128, 33 }, { -16, -2 } };
	const int columns = 136, rows = 37, box_rows = 24;
	bf16 *from = both<bf16>((size_t)(columns * rows));
	uint32_t *plain = both<uint32_t>(128), *out = both<uint32_t>(32 * box_rows + 128);

	want_hopper();
	for (int i = 0; i < columns * rows; i++)
		from[i] = (bf16)(i + 1);
	for (uint32_t i = 0; i < 128; i++)
		plain[i] = 77 * i;
	for (const auto &c : cases) {
		const bf16 *got = (const bf16 *)out;

		memset(out, 0xee, 128 * box_rows);
		assert_null(launched(1, 64, 128 * box_rows + 2048, bulk_kernel, map_of(true, from, columns, rows, box_rows),
			(const uint32_t *)plain, c.column, c.row, box_rows, out));
		for (int r = 0; r < box_rows; r++) {
			for (int k = 0; k < 64; k++) {
				int row = c.row + r, column = c.column + k;
				bool there = row >= 0 && row < rows && column >= 0 && column < columns;

				assert_int_equal(got[64 * r + (k / 8 ^ r % 8) * 8 + k % 8],
					there ? row * columns + column + 1 : 0);
			}
		}
		assert_memory_equal(out + 32 * box_rows, plain, 512);
	}
}

/* Two halves of a block, one always a step behind, by mbarriers alone; a barrier of the second half. */
static __global__ void phases_kernel(int *out)
{
	wait_for_previous();
#ifdef ON_HOPPER
	SHARED(shared);
	uint64_t *full = (uint64_t *)shared, *empty = full + 1;
	volatile int *word = (volatile int *)(shared + 64);
	int sum = 0;

	if (threadIdx.x == 0) {
		mbarrier_init(full, 64);
		mbarrier_init(empty, 64);
		mbarrier_fence_init();
	}
	__syncthreads();
	for (uint32_t n = 0; n < 10; n++) {
		if (threadIdx.x < 64) {
			mbarrier_wait(empty, ~n & 1);
			word[threadIdx.x] = (int)(n * 100 + threadIdx.x);
			mbarrier_arrive(full);
		} else {
			mbarrier_wait(full, n & 1);
			sum += word[127 - threadIdx.x];
			barrier_sync(3, 64);
			mbarrier_arrive(empty);
		}
	}
	if (threadIdx.x >= 64)
		out[threadIdx.x - 64] = sum;
#else
	(void)out;
	not_hopper();
#endif
}

static void test_phases(void **)
{
	int *out = both<int>(64);

	want_hopper();
	for (int r = 0; r < 2; r++) {
		emu_reversed = r;
		assert_null(launched(1, 128, 1024, phases_kernel, out));
		for (int i = 0; i < 64; i++)
			assert_int_equal(out[i], 4500 + 10 * (63 - i));
	}
	emu_reversed = false;
}

/* c[64][N] = a[64][K] b[N][K]^T, a and b 128 bytes wide.  HOW a comes: by TMA; by the threads' own stores; in
 * registers; in registers, of e4m3; in registers, and b is b[K][N].  Without the fence of what they stored, or of
 * the registers; waiting too late. */
enum how { A_TMA, A_STORED, A_REGISTERS, A_E4M3, A_AND_ROWS };
enum { NO_ASYNC_FENCE = 1, NO_WGMMA_FENCE, NO_WGMMA_WAIT, EARLY_CHANGE, LATE_CHANGE };

template <enum how HOW, int HALF_N> static __global__ void __launch_bounds__(128, 1)
wgmma_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map, const uint32_t *a,
	float *c, int mistake)
{
	wait_for_previous();
#ifdef ON_HOPPER
	SHARED(raw);
	unsigned char *shared = raw + (-shared_address(raw) & (PATTERN - 1)), *sb = shared + 64 * 128;
	uint64_t *bar = (uint64_t *)(sb + 2 * HALF_N * 128);
	int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
	float d[HALF_N];
	const int without = MISTAKE(mistake);
	uint32_t left[4][4] = {};

	if (threadIdx.x == 0) {
		mbarrier_init(bar, 1);
		mbarrier_fence_init();
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		mbarrier_expect(bar, 2 * HALF_N * 128 + (HOW == A_TMA ? 64 * 128 : 0));
		if (HOW == A_TMA)
			tensor_load(shared, &a_map, 0, 0, bar);
		for (int n = 0; n < (HOW == A_AND_ROWS ? HALF_N / 32 : 1); n++)
			tensor_load(sb + n * 64 * 128, &b_map, 64 * n, 0, bar);
	}
	for (int i = (int)threadIdx.x; i < 64 * 32 && HOW == A_STORED; i += 128) {
		int r = i / 32, w = i % 32;

		((uint32_t *)shared)[32 * r + (w / 4 ^ r % 8) * 4 + w % 4] = a[i];
	}
	if (HOW == A_STORED && without != NO_ASYNC_FENCE)
		fence_async();
	for (int i = 0; i < 16 && HOW >= A_REGISTERS; i++)
		left[i / 4][i % 4] = a[(16 * warp + g + i % 2 * 8) * 32 + i / 4 * 8 + i % 4 / 2 * 4 + t];
	__syncthreads();
	mbarrier_wait(bar, 0);
#pragma unroll
	for (int j = 0; j < 4; j++)
		keep_order(left[j]);
	if (without != NO_WGMMA_FENCE)
		wgmma_fence();
	for (int turn = 0; turn < (without == EARLY_CHANGE ? 2 : 1); turn++) {
#pragma unroll
		for (int j = 0; j < 4; j++) {
			uint64_t b = along(operand(sb), 32 * j);

			if constexpr (HOW == A_E4M3)
				wgmma_e4m3(d, left[j], b, j > 0);
			else if constexpr (HOW == A_AND_ROWS)
				wgmma_bf16_rows(d, left[j], operand_rows(sb + j * 16 * 128, 64 * 128), j > 0);
			else if constexpr (HOW == A_REGISTERS)
				wgmma_bf16(d, left[j], b, j > 0);
			else
				wgmma_bf16(d, along(operand(shared), 32 * j), b, j > 0);
		}
		wgmma_commit();
#ifdef CUDA_EMULATED
		if (without == EARLY_CHANGE || without == LATE_CHANGE)
			left[2][1] ^= 1;
#endif
	}
	if (without != NO_WGMMA_WAIT)
		wgmma_wait<0>();
	keep_order(d);
	for (int i = 0; i < HALF_N; i++)
		c[(16 * warp + g + i / 2 % 2 * 8) * 2 * HALF_N + i / 4 * 8 + 2 * t + i % 2] = d[i];
#else
	(void)a, (void)c, (void)mistake;
	not_hopper();
#endif
}

/* The fault that was found, or NULL; then *off is the largest error of c. */
template <enum how HOW, int HALF_N> static const char *wgmma(int without, float *off)
{
	const int N = 2 * HALF_N, K = HOW == A_E4M3 ? 128 : 64;
	const bool rows = HOW == A_AND_ROWS;
	uint32_t *a = both<uint32_t>(64 * 32), *b = both<uint32_t>(N * 32);
	float *c = both<float>(64 * N);
	const char *found;

	auto value = [](const uint32_t *m, int i) {
		return HOW == A_E4M3 ? e4m3_value(((const uint8_t *)m)[i]) : f32_of(((const bf16 *)m)[i]);
	};
	for (int i = 0; i < 64 * K; i++) {
		((uint8_t *)a)[HOW == A_E4M3 ? i : 0] = (uint8_t)((0x30 + i * 37 % 23) | (i % 3 == 0 ? 0x80 : 0));
		if (HOW != A_E4M3)
			((bf16 *)a)[i] = bf16_of((float)(i * 37 % 101 - 50));
	}
	for (int i = 0; i < N * K; i++) {
		((uint8_t *)b)[HOW == A_E4M3 ? i : 0] = (uint8_t)((0x34 + i * 53 % 19) | (i % 5 == 0 ? 0x80 : 0));
		if (HOW != A_E4M3)
			((bf16 *)b)[i] = bf16_of((float)(i * 53 % 97 - 48));
	}
	memset(c, 0xff, sizeof(*c) * 64 * N);
	found = launched(1, 128, 8192 + N * 128 + 2048, wgmma_kernel<HOW, HALF_N>, map_of(HOW != A_E4M3, a, K, 64, 64),
		rows ? map_of(true, b, N, K, K) : map_of(HOW != A_E4M3, b, K, N, N), (const uint32_t *)a, c, without);
	*off = 0;
	for (int m = 0; m < 64 && !found; m++) {
		for (int n = 0; n < N; n++) {
			float want = 0;

			for (int k = 0; k < K; k++)
				want += value(a, m * K + k) * value(b, rows ? k * N + n : n * K + k);
			if (*off == *off && !(fabsf(c[m * N + n] - want) <= *off)) /* a NaN stays */
				*off = fabsf(c[m * N + n] - want);
		}
	}
	return found;
}

static void test_wgmma(void **)
{
	float off;

	want_hopper();
	assert_null((wgmma<A_TMA, 64>(0, &off)));
	assert_float_equal(off, 0, 0);         /* sums of integers */
	assert_null((wgmma<A_TMA, 128>(0, &off)));
	assert_float_equal(off, 0, 0);
	assert_null((wgmma<A_STORED, 64>(0, &off)));
	assert_float_equal(off, 0, 0);
	assert_null((wgmma<A_REGISTERS, 64>(0, &off)));
	assert_float_equal(off, 0, 0);
	assert_null((wgmma<A_REGISTERS, 128>(0, &off)));
	assert_float_equal(off, 0, 0);
	assert_null((wgmma<A_AND_ROWS, 32>(0, &off)));
	assert_float_equal(off, 0, 0);
	assert_null((wgmma<A_AND_ROWS, 64>(0, &off)));
	assert_float_equal(off, 0, 0);
	assert_null((wgmma<A_E4M3, 64>(0, &off)));
	assert_float_equal(off, 0, 1);         /* a GPU keeps fewer digits */
}

static __global__ void movmatrix_kernel(uint32_t *out)
{
	uint32_t i = threadIdx.x;

	wait_for_previous();
	out[i] = movmatrix_trans((i / 4 * 8 + 2 * (i % 4)) | (i / 4 * 8 + 2 * (i % 4) + 1) << 16);
}

static void test_movmatrix(void **)
{
	uint32_t *out = both<uint32_t>(32);

	assert_null(launched(1, 32, 0, movmatrix_kernel, out));
	for (uint32_t i = 0; i < 32; i++)
		assert_int_equal(out[i], (2 * (i % 4) * 8 + i / 4) | ((2 * (i % 4) + 1) * 8 + i / 4) << 16);
}

/* ---- a ring, as Hopper's products have it ------------------------------------------------ */

#define RING_STAGES 2
#define RING_SLICES 5

enum { NO_FULL_WAIT = 1, NO_EMPTY_WAIT, FULL_PARITY, EMPTY_PARITY, SHORT_EXPECT, LONG_EXPECT, NO_ARRIVE, ARRIVE_TWICE,
	EARLY_ARRIVE, WRONG_ADVANCE, NO_INIT, RING_MISTAKES };

/* c[64][128] = a b^T, K of RING_SLICES times 64: warp 0 loads, the second warpgroup multiplies. */
static __global__ void __launch_bounds__(256, 1)
ring_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map, float *c, int mistake)
{
	wait_for_previous();
#ifdef ON_HOPPER
	SHARED(raw);
	const uint32_t stage_bytes = (64 + 128) * 128;
	unsigned char *ring = raw + (-shared_address(raw) & (PATTERN - 1));
	uint64_t *full = (uint64_t *)(ring + RING_STAGES * stage_bytes), *empty = full + RING_STAGES;
	int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4;
	float d[64];
	const int without = MISTAKE(mistake);

	if (threadIdx.x == 0) {
		for (int s = 0; s < RING_STAGES && without != NO_INIT; s++) {
			mbarrier_init(&full[s], 1);
			mbarrier_init(&empty[s], 4);
		}
		mbarrier_fence_init();
	}
	__syncthreads();
	if (threadIdx.x < 128) {
		registers_down<40>();
		for (uint32_t i = 0; i < RING_SLICES && threadIdx.x == 0; i++) {
			unsigned char *to = ring + i % RING_STAGES * stage_bytes;
			uint64_t *bar = &full[i % RING_STAGES];

			if (without != NO_EMPTY_WAIT)
				mbarrier_wait(&empty[i % RING_STAGES],
					i / RING_STAGES + (without == EMPTY_PARITY ? 0 : 1));
			mbarrier_expect(bar, without == SHORT_EXPECT ? stage_bytes / 2 :
				stage_bytes + (without == LONG_EXPECT ? 16 : 0));
			tensor_load(to, &a_map, (int)i * 64, 0, bar);
			tensor_load(to + 64 * 128, &b_map, (int)i * 64, 0, bar);
		}
	} else {
		registers_up<232>();
		for (uint32_t i = 0; i < RING_SLICES; i++) {
			uint64_t a = operand(ring + i % RING_STAGES * stage_bytes);

			if (without != NO_FULL_WAIT)
				mbarrier_wait(&full[i % RING_STAGES], i / RING_STAGES + (without == FULL_PARITY ? 1 : 0));
			__syncwarp();
			if (without == EARLY_ARRIVE && lane == 0)
				mbarrier_arrive(&empty[i % RING_STAGES]);
			wgmma_fence();
#pragma unroll
			for (int j = 0; j < 4; j++)
				wgmma_bf16(d, along(a, 32 * j), along(a, 64 * 128 + (without == WRONG_ADVANCE ? 16 : 32) * j),
					i > 0 || j > 0);
			wgmma_commit();
			wgmma_wait<0>();
			for (int n = without == ARRIVE_TWICE ? 2 : without == NO_ARRIVE || without == EARLY_ARRIVE ? 0 : 1;
			     n > 0 && lane == 0; n--)
				mbarrier_arrive(&empty[i % RING_STAGES]);
		}
		keep_order(d);
		for (int i = 0; i < 64; i++)
			c[(16 * warp + lane / 4 + i / 2 % 2 * 8) * 128 + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
	}
#else
	(void)c, (void)mistake;
	not_hopper();
#endif
}

/* Does it run, and are all sums right, in this order? */
static bool ring_right(int without, const char **found)
{
	const int K = 64 * RING_SLICES;
	bf16 *a = both<bf16>((size_t)(64 * K)), *b = both<bf16>((size_t)(128 * K));
	float *c = both<float>(64 * 128);

	for (int i = 0; i < 64 * K; i++)
		a[i] = bf16_of((float)(i * 37 % 101 - 50));
	for (int i = 0; i < 128 * K; i++)
		b[i] = bf16_of((float)(i * 53 % 97 - 48));
	*found = launched(1, 256, 52 << 10, ring_kernel, map_of(true, a, K, 64, 64), map_of(true, b, K, 128, 128), c,
		without);
	if (*found)
		return false;
	for (int m = 0; m < 64; m++) {
		for (int n = 0; n < 128; n++) {
			float want = 0;

			for (int k = 0; k < K; k++)
				want += f32_of(a[m * K + k]) * f32_of(b[n * K + k]);
			if (c[m * 128 + n] != want)
				return false;
		}
	}
	return true;
}

static void test_ring(void **)
{
	const char *found;

	want_hopper();
#ifndef CUDA_EMULATED
	assert_int_equal(cudaFuncSetAttribute(ring_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 52 << 10),
		cudaSuccess);
#endif
	for (int r = 0; r < 2; r++) {
		emu_reversed = r;
		assert_true(ring_right(0, &found));
	}
	emu_reversed = false;
}

/* ---- mistakes ------------------------------------------------------------------------- */

/* Sums over a block by shared memory, with a barrier left out: 1 before reading, 2 before the next round. */
static __global__ void sum_kernel(float *out, int without)
{
	SHARED(shared);
	float *x = (float *)shared, sum = 0;

	for (int round = 0; round < 3; round++) {
		x[threadIdx.x] = (float)(threadIdx.x + (unsigned)round);
		if (without != 1)
			__syncthreads();
		for (unsigned i = 0; i < blockDim.x; i++)
			sum += x[(threadIdx.x + i) % blockDim.x];
		if (without != 2)
			__syncthreads();
	}
	out[threadIdx.x] = sum;
}

/* Are all sums right, warps and lanes forward and reversed? */
static bool right(int without)
{
	float *out = both<float>(128);
	bool same = true;

	for (int r = 0; r < 2; r++) {
		emu_reversed = r;
		assert_null(launched(1, 128, 128 * sizeof(float), sum_kernel, out, without));
		for (int i = 0; i < 128; i++)
			same &= out[i] == 3 * 128 * 127 / 2 + 3 * 128;
	}
	emu_reversed = false;
	return same;
}

static void test_missing_barrier(void **)
{
	assert_true(right(0));
#ifdef CUDA_EMULATED
	assert_false(right(1));
	assert_false(right(2));
#endif
}

static __global__ void copy_kernel(const float *from, float *out, int wait)
{
	SHARED(shared);
	float *x = (float *)shared;

	cp_async_16(x + 4 * threadIdx.x, from + 4 * threadIdx.x, true);
	cp_async_commit();
	cp_async_16(x + 128 + 4 * threadIdx.x, from, false);
	cp_async_commit();
	if (wait == 1)
		cp_async_wait<1>();
	if (wait == 2)
		cp_async_wait<0>();
	out[threadIdx.x] = x[4 * threadIdx.x + 1];
	out[32 + threadIdx.x] = x[128 + 4 * threadIdx.x];
}

static void test_missing_wait(void **)
{
	float *from = both<float>(128), *out = both<float>(64);

	for (int i = 0; i < 128; i++)
		from[i] = (float)i;
	for (int wait = FIRST_WAIT; wait < 3; wait++) {
		assert_null(launched(1, 32, 1024, copy_kernel, (const float *)from, out, wait));
		for (int i = 0; i < 32; i++) {
			assert_true(wait >= 1 ? out[i] == (float)(4 * i + 1) : std::isnan(out[i]));
			assert_true(wait >= 2 ? out[32 + i] == 0 : std::isnan(out[32 + i]));
		}
	}
}

#ifdef CUDA_EMULATED

static void expect_fault(const char *what, const char *fault)
{
	if (!fault || !strstr(fault, what))
		fail_msg("expected a fault that says \"%s\", not \"%s\"", what, fault ? fault : "none");
}

static __global__ void diverge_kernel(int how)
{
	SHARED(shared);
	uint32_t r[4];

	if (how == 0 && threadIdx.x < 40)
		__syncthreads();
	if (how == 0 && threadIdx.x >= 40)
		__shfl_xor_sync(FULL, 1, 1);   /* lanes 0-7 of this warp are elsewhere */
	if (how == 1 && threadIdx.x % 32 < 31)
		__shfl_xor_sync(FULL, 1, 1);   /* lane 31 has ended */
	if (how == 2 && threadIdx.x == 9)
		__shfl_sync(1u, 1, 0);         /* in a mask that it is not in */
	if (how == 3)
		shared[64 + threadIdx.x % 4] = 1;
	if (how == 4)
		ldmatrix_x4(r, shared + 8);
	if (how == 5)
		cp_async_16(shared, shared + 4, true);
	if (how == 6 && threadIdx.x < 16)
		__shfl_sync(0xffffu, 1, 20);   /* from a lane that takes no part */
}

static void test_faults(void **)
{
	expect_fault("deadlock", launched(1, 64, 64, diverge_kernel, 0));
	expect_fault("has ended", launched(1, 64, 64, diverge_kernel, 1));
	expect_fault("not in its own mask", launched(1, 64, 64, diverge_kernel, 2));
	expect_fault("past its 64 bytes", launched(1, 64, 64, diverge_kernel, 3));
	expect_fault("misaligned", launched(1, 64, 64, diverge_kernel, 4));
	expect_fault("misaligned", launched(1, 64, 64, diverge_kernel, 5));
	expect_fault("takes no part", launched(1, 32, 64, diverge_kernel, 6));
	expect_fault("cannot be launched", launched(1, 48, 64, diverge_kernel, 7));
	expect_fault("cannot be launched", launched(0, 32, 64, diverge_kernel, 7));
	assert_null(launched(1, 64, 64, diverge_kernel, 7));
}

/* Each mistake in Hopper's instructions is a fault, or shows in the sums, in one order or the other. */
static void test_hopper_mistakes(void **)
{
	static const struct { int without; const char *fault; } ring[] = {
		{ NO_FULL_WAIT, NULL }, { NO_EMPTY_WAIT, "once more" }, { FULL_PARITY, NULL }, { EMPTY_PARITY, "deadlock" },
		{ SHORT_EXPECT, "deadlock" }, { LONG_EXPECT, "deadlock" }, { NO_ARRIVE, "deadlock" }, { ARRIVE_TWICE, NULL },
		{ EARLY_ARRIVE, NULL }, { WRONG_ADVANCE, NULL }, { NO_INIT, "not initialized" },
	};
	const char *found;
	float off;

	assert_int_equal(sizeof(ring) / sizeof(*ring), RING_MISTAKES - 1);
	for (const auto &c : ring) {
		bool right = true;

		for (int r = 0; r < 2; r++) {
			emu_reversed = r;
			right &= ring_right(c.without, &found);
			if (c.fault)
				expect_fault(c.fault, found);
		}
		if (right)
			fail_msg("mistake %d in the ring is not found", c.without);
	}
	emu_reversed = false;
	assert_null((wgmma<A_STORED, 64>(NO_ASYNC_FENCE, &off)));
	assert_true(off != off || off > 0);
	expect_fault("without a wgmma.fence", (wgmma<A_TMA, 64>(NO_WGMMA_FENCE, &off)));
	expect_fault("nobody waited for", (wgmma<A_TMA, 64>(NO_WGMMA_WAIT, &off)));
	expect_fault("changed after the last wgmma.fence", (wgmma<A_REGISTERS, 64>(EARLY_CHANGE, &off)));
	expect_fault("changed while a wgmma reads", (wgmma<A_REGISTERS, 64>(LATE_CHANGE, &off)));
}

/* ---- the runtime ---------------------------------------------------------------------- */

static __global__ void add_kernel(int *p) { wait_for_previous(); *p += (int)(threadIdx.x == 0); }

static void test_runtime(void **)
{
	cudaStream_t s;
	cudaEvent_t e;
	int *p, seen = 0;

	assert_int_equal(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
	assert_int_equal(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), cudaSuccess);
	assert_int_equal(cudaMalloc((void **)&p, sizeof(*p)), cudaSuccess);
	assert_int_equal(*p, -1); /* fresh memory is not zero */
	cudaMemsetAsync(p, 0, sizeof(*p), s);
	assert_int_equal(start(add_kernel, 3, 32, 0, s, p), cudaSuccess);
	cudaEventRecord(e, s);
	cudaMemcpyAsync(&seen, p, sizeof(seen), cudaMemcpyDeviceToHost, s);
	assert_int_equal(*p, -1); /* nothing is done before it is asked for */
	assert_int_equal(cudaEventQuery(e), cudaErrorNotReady);
	assert_int_equal(cudaEventSynchronize(e), cudaSuccess);
	assert_int_equal(*p, 3);
	assert_int_equal(seen, 0);
	assert_int_equal(cudaStreamSynchronize(s), cudaSuccess);
	assert_int_equal(seen, 3);

	emu_fail(2, cudaErrorMemoryAllocation); /* passes */
	assert_int_equal(cudaStreamQuery(s), cudaSuccess);
	assert_int_equal(cudaStreamQuery(s), cudaErrorMemoryAllocation);
	assert_int_equal(cudaStreamQuery(s), cudaSuccess);
	emu_fail(1, cudaErrorIllegalAddress);   /* stays */
	assert_int_equal(cudaStreamQuery(s), cudaErrorIllegalAddress);
	assert_int_equal(cudaStreamQuery(s), cudaErrorIllegalAddress);
	emu_recover();
	start(diverge_kernel, 1, 64, 64, s, 1); /* so does a kernel that fails */
	assert_int_equal(cudaStreamSynchronize(s), cudaErrorLaunchFailure);
	emu_recover();
	cudaFree(p);
	cudaEventDestroy(e);
	cudaStreamDestroy(s);
	assert_int_equal(emu_allocations, 0);
}

#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_exchange),
		cmocka_unit_test(test_mma),
		cmocka_unit_test(test_bf16),
		cmocka_unit_test(test_e4m3),
		cmocka_unit_test(test_mma_e4m3),
		cmocka_unit_test(test_movmatrix),
		cmocka_unit_test(test_tensor_map),
		cmocka_unit_test(test_bulk),
		cmocka_unit_test(test_phases),
		cmocka_unit_test(test_wgmma),
		cmocka_unit_test(test_ring),
		cmocka_unit_test(test_missing_barrier),
		cmocka_unit_test(test_missing_wait),
#ifdef CUDA_EMULATED
		cmocka_unit_test(test_faults),
		cmocka_unit_test(test_hopper_mistakes),
		cmocka_unit_test(test_runtime),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
