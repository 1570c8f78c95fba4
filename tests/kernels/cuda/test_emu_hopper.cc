/* LINK: */
/* test_emu_hopper.cc - Hopper's instructions in the CPU's stand-in for a GPU (tests/emu/hopper.cc) against plain loops, and
 * the mistakes that it must find.  `make gpu-check` runs the first half on a real GPU, against the same loops. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
}
#include "tests/cuda/launched.h"

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

#ifdef CUDA_EMULATED
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
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tensor_map),
		cmocka_unit_test(test_bulk),
		cmocka_unit_test(test_phases),
		cmocka_unit_test(test_wgmma),
		cmocka_unit_test(test_movmatrix),
		cmocka_unit_test(test_ring),
#ifdef CUDA_EMULATED
		cmocka_unit_test(test_hopper_mistakes),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
