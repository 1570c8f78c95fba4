/* LINK: */
/* test_races.cc - accesses that nothing puts in order (tests/emu/races.h): each mistake is found, though the numbers are
 * right in the order in which the emulation executes; and what is in order is no mistake. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
}
#include "kernels/cuda/hopper.cuh"
#include "tests/emu/races.h"

enum { RIGHT, MISTAKE }; /* of each kernel; those that stay right take no argument */

/* Runs two kernels, the second of which may start early.  The fault of the second, or NULL. */
template <class K> static const char *run(unsigned blocks, unsigned threads, K kernel, float *device, int mistake,
	unsigned cluster = 1)
{
	cudaStream_t s;

	assert_int_equal(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
	for (int k = 0; k < 2; k++)
		assert_int_equal(start_clusters(cluster, kernel, blocks, threads, 8192, s, device, k ? mistake : RIGHT),
			cudaSuccess);
	cudaStreamSynchronize(s);
	emu_recover();
	assert_int_equal(cudaStreamDestroy(s), cudaSuccess);
	return emu_fault();
}

/* The first kernel writes 1 to `device`, so that what the second reads there is of a kernel before. */
static __device__ void begin(float *device)
{
	wait_for_previous();
	device[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}

/* ---- in a block --------------------------------------------------------------------------- */

/* Each thread reads what the thread `away` from it wrote. */
static __device__ float neighbour(float *x, unsigned away)
{
	return x[(threadIdx.x + away) % blockDim.x];
}

static __global__ void no_barrier_before_reading(float *device, int mistake)
{
	SHARED(shared);
	float *x = (float *)shared;

	begin(device);
	x[blockDim.x - 1 - threadIdx.x] = 1;
	if (!mistake)
		__syncthreads();
	device[threadIdx.x] += threadIdx.x < 32 ? 0 : x[threadIdx.x];
}

static __global__ void no_barrier_before_writing(float *device, int mistake)
{
	SHARED(shared);
	float *x = (float *)shared;

	begin(device);
	x[threadIdx.x] = 1;
	__syncthreads();
	device[threadIdx.x] += neighbour(x, 32);
	if (!mistake)
		__syncthreads();
	x[threadIdx.x] = 2;
}

static __global__ void no_syncwarp(float *device, int mistake)
{
	SHARED(shared);
	float *x = (float *)shared;

	begin(device);
	x[threadIdx.x] = 1;
	if (mistake)
		__shfl_xor_sync(FULL, 1, 1); /* waits for the lanes, and orders no memory */
	else
		__syncwarp();
	device[threadIdx.x] += x[threadIdx.x ^ 1];
}

static __global__ void syncwarp_of_others(float *device, int mistake)
{
	SHARED(shared);
	float *x = (float *)shared;

	begin(device);
	x[threadIdx.x] = 1;
	if (threadIdx.x % 32 < 16)
		__syncwarp(0xffff);
	else if (!mistake)
		__syncwarp(0xffff0000u);
	device[threadIdx.x] += x[threadIdx.x ^ 1];
}

static __global__ void barrier_of_some(float *device, int mistake)
{
	SHARED(shared);
	float *x = (float *)shared;

	begin(device);
	x[threadIdx.x] = 1;
	if (threadIdx.x < 64)
		barrier_sync(1, 64);
	device[threadIdx.x] += threadIdx.x < 64 ? x[mistake ? threadIdx.x + 64 : threadIdx.x ^ 32] : 0;
}

static __global__ void counts_and_reads(float *device, int mistake)
{
	SHARED(shared);
	uint32_t *x = (uint32_t *)shared;

	begin(device);
	if (threadIdx.x < 4)
		x[threadIdx.x] = 0;
	__syncthreads();
	atomicAdd(&x[threadIdx.x % 4], 1u);
	if (!mistake)
		__syncthreads();
	device[threadIdx.x] += (float)x[threadIdx.x % 4];
}

static __global__ void copies_are_seen(float *device, int mistake)
{
	SHARED(shared);
	float *x = (float *)shared;

	begin(device);
	__syncthreads();
	cp_async_16(x + 4 * threadIdx.x, device, true);
	cp_async_commit();
	cp_async_wait<0>();
	if (!mistake)
		__syncthreads();
	device[threadIdx.x + 1024] = neighbour(x, 4);
}

/* Bytes of one word; the same, written by all; words that all read; a word written by one thread after another. */
static __global__ void all_in_order(float *device, int)
{
	SHARED(shared);
	float *x = (float *)(shared + 1024);

	begin(device);
	shared[threadIdx.x] = 1;
	((volatile uint32_t *)shared)[512] = 5;
	for (unsigned i = 0; i < blockDim.x / 32; i++) {
		if (threadIdx.x == 32 * i)
			x[0] = (float)i;
		__syncthreads();
		device[threadIdx.x] += x[0];
		__syncthreads();
	}
	atomicAdd((uint32_t *)(shared + 3072), 1u);
}

/* ---- mbarriers ------------------------------------------------------------------------------ */

/* The first warp fills one place five times; the second reads it. */
static __global__ void one_place(float *device, int mistake)
{
	SHARED(shared);
	uint64_t *full = (uint64_t *)shared, *empty = full + 1;
	float *x = (float *)(shared + 1024), sum = 0;

	begin(device);
	if (threadIdx.x == 0) {
		mbarrier_init(full, 32);
		mbarrier_init(empty, 1);
	}
	__syncthreads();
	for (uint32_t i = 0; i < 5 && threadIdx.x < 64; i++) {
		if (threadIdx.x < 32) {
			mbarrier_wait(empty, ~i & 1);
			x[threadIdx.x] = (float)i;
			mbarrier_arrive(full);
		} else {
			mbarrier_wait(full, i & 1);
			sum += x[63 - threadIdx.x];
			if (!mistake)
				__syncwarp();
			if (threadIdx.x == 32)
				mbarrier_arrive(empty); /* for its warp */
		}
	}
	device[threadIdx.x] += sum;
}

/* A bulk copy comes while another warp may still read. */
static __global__ void bulk_place(float *device, int mistake)
{
	SHARED(shared);
	uint64_t *full = (uint64_t *)shared;
	float *x = (float *)(shared + 1024), sum = 0;

	begin(device);
	if (threadIdx.x == 0)
		mbarrier_init(full, 1);
	__syncthreads();
	for (uint32_t i = 0; i < 2; i++) {
		if (threadIdx.x == 0) {
			mbarrier_expect(full, 1024);
			bulk_load(x, device + 2048, 1024, full);
		}
		mbarrier_wait(full, i & 1);
		sum += x[threadIdx.x];
		if (!mistake)
			__syncthreads();
	}
	device[threadIdx.x] += sum;
}

/* ---- blocks ----------------------------------------------------------------------------------- */

static __device__ void add_shares(float *device, bool all_stored, bool counted)
{
	SHARED(shared);
	uint32_t *word = (uint32_t *)shared, *arrived = (uint32_t *)(device + 4096);
	float *share = device + 1024;

	begin(device);
	share[blockIdx.x * blockDim.x + threadIdx.x] = 1;
	if (all_stored)
		__syncthreads();
	if (threadIdx.x == 0)
		*word = counted ? count_in(arrived) + 1 == gridDim.x : blockIdx.x + 1 == gridDim.x;
	__syncthreads();
	if (*word) {
		for (unsigned b = 0; b < gridDim.x; b++)
			device[threadIdx.x] += load_l2(&share[b * blockDim.x + threadIdx.x]);
		if (threadIdx.x == 0)
			*arrived = 0;
	}
}

static __global__ void all_have_stored(float *device, int mistake) { add_shares(device, !mistake, true); }
static __global__ void blocks_are_counted(float *device, int mistake) { add_shares(device, true, !mistake); }

static __global__ void cluster_meets(float *device, int mistake)
{
	begin(device);
	device[1024 + blockIdx.x * blockDim.x + threadIdx.x] = 1;
	if (!mistake)
		barrier_cluster();
	device[2048 + blockIdx.x * blockDim.x + threadIdx.x] =
		device[1024 + (blockIdx.x ^ 1) * blockDim.x + threadIdx.x];
}

/* ---- kernels ------------------------------------------------------------------------------------ */

/* Reads too early what the kernel before wrote; its barrier is in the wrong place. */
static __global__ void waits_first(float *device, int mistake)
{
	float x = 0;

	if (mistake)
		x = device[threadIdx.x];
	wait_for_previous();
	device[threadIdx.x] = threadIdx.x < 1 ? x : 2;
}

static float *memory()
{
	float *device;

	assert_int_equal(cudaMalloc((void **)&device, 8192 * sizeof(float)), cudaSuccess);
	device[4096] = 0;            /* a count */
	for (int i = 0; i < 256; i++)
		device[2048 + i] = (float)i;
	return device;
}

#define CASE(kernel, ...) { #kernel, [](float *d, int m) { return run(__VA_ARGS__); } }

static const struct { const char *name; const char *(*run)(float *, int); } cases[] = {
	CASE(no_barrier_before_reading, 1, 128, no_barrier_before_reading, d, m),
	CASE(no_barrier_before_writing, 1, 128, no_barrier_before_writing, d, m),
	CASE(no_syncwarp, 1, 64, no_syncwarp, d, m),
	CASE(syncwarp_of_others, 1, 64, syncwarp_of_others, d, m),
	CASE(barrier_of_some, 1, 128, barrier_of_some, d, m),
	CASE(counts_and_reads, 1, 128, counts_and_reads, d, m),
	CASE(copies_are_seen, 1, 64, copies_are_seen, d, m),
	CASE(one_place, 1, 96, one_place, d, m),
	CASE(bulk_place, 1, 256, bulk_place, d, m),
	CASE(all_have_stored, 4, 64, all_have_stored, d, m),
	CASE(blocks_are_counted, 4, 64, blocks_are_counted, d, m),
	CASE(cluster_meets, 4, 64, cluster_meets, d, m, 2),
	CASE(waits_first, 1, 64, waits_first, d, m),
};

static void test_found(void **)
{
	if (!emu::races::on)
		skip();              /* under another sanitizer */
	for (int r = 0; r < 2; r++) {
		emu_reversed = r;
		for (const auto &c : cases) {
			for (int m = RIGHT; m <= MISTAKE; m++) {
				float *device = memory();
				const char *found = c.run(device, m);

				if (m == MISTAKE && !found)
					fail_msg("%s: not found", c.name);
				if (m == MISTAKE)
					assert_non_null(strstr(found, "memory"));
				else if (found)
					fail_msg("%s: %s", c.name, found);
				assert_int_equal(cudaFree(device), cudaSuccess);
			}
		}
	}
	emu_reversed = false;
}

static void test_in_order(void **)
{
	float *device = memory();

	assert_null(run(1, 128, all_in_order, device, RIGHT));
	assert_int_equal(cudaFree(device), cudaSuccess);
}

int main()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_found),
		cmocka_unit_test(test_in_order),
	};

	emu_capability = 90;          /* clusters */
	start_early = true;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
