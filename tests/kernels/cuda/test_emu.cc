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
#include "tests/cuda/launched.h"

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

static __global__ void unseen_kernel(const float *from, int barrier)
{
	SHARED(shared);
	uint32_t r[4];

	cp_async_16(shared + 16 * threadIdx.x, from + 4 * threadIdx.x, true);
	cp_async_commit();
	cp_async_wait<0>();
	if (barrier)
		__syncwarp();
	ldmatrix_x4(r, shared + 16 * threadIdx.x);
}

static void test_faults(void **)
{
	float *from = both<float>(128);

	expect_fault("without a barrier", launched(1, 32, 512, unseen_kernel, (const float *)from, 0));
	assert_null(launched(1, 32, 512, unseen_kernel, (const float *)from, 1));
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
		cmocka_unit_test(test_missing_barrier),
		cmocka_unit_test(test_missing_wait),
#ifdef CUDA_EMULATED
		cmocka_unit_test(test_faults),
		cmocka_unit_test(test_runtime),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
