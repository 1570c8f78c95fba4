/* sample.cuh - the blocks that sample a row together (sample.cu): what they tell each other, sums and maxima over all of
 * them, and where in the row a sum is reached. */
#ifndef CUDA_SAMPLE_CUH
#define CUDA_SAMPLE_CUH

#include "kernels/cuda/kernel.cuh"

#define THREADS 512
#define WARPS   (THREADS / 32)
#define BINS    2048                 /* of the radix search: 11, 11 and 10 bits */
#define SHARES  8                    /* most blocks of a row */

typedef unsigned long long u64;

/* What a block tells the others of its row, in device memory.  Two places for each in turn: who writes the second has
 * passed a barrier that all have passed since they read the first. */
struct sampler {
	uint64_t word[2];
	u64 bin[2][BINS];
};

struct scratch {                     /* in shared memory */
	u64 bin[BINS];
	u64 warp[WARPS];
	double sum[SHARES][WARPS];
	u64 found[2];
	struct sampler *row;         /* [blocks] */
	int32_t blocks, rank;        /* of this row; this one */
	uint32_t turn;
};

#define EACH(i, n) for (int32_t i = (int32_t)threadIdx.x; i < (n); i += THREADS)

/* Of all blocks of a row together; a thread has the same ones each time. */
#define EACH_SHARED(i, n, s) for (int32_t i = (s)->rank * THREADS + (int32_t)threadIdx.x, by_ = (s)->blocks * THREADS; \
	i < (n); i += by_)

/* What each thread of the row wrote is visible to all. */
static inline __device__ void row_barrier(const struct scratch *s)
{
	if (s->blocks > 1)
		barrier_cluster();
	else
		__syncthreads();
}

/* Each block gives a word, which all its threads have, and gets those of all blocks of the row. */
static inline __device__ void exchange(struct scratch *s, u64 mine, u64 (&all)[SHARES])
{
	uint32_t turn = s->turn & 1;

#pragma unroll
	for (int i = 0; i < SHARES; i++)
		all[i] = mine;
	if (s->blocks == 1)
		return;
	if (threadIdx.x == 0)
		s->row[s->rank].word[turn] = mine;
	row_barrier(s);
#pragma unroll
	for (int i = 0; i < SHARES; i++)
		all[i] = i < s->blocks ? load_far(&s->row[i].word[turn]) : 0;
	__syncthreads(); /* all threads have read the turn */
	if (threadIdx.x == 0)
		s->turn++;
}

static inline __device__ u64 row_sum(u64 v, struct scratch *s)
{
	u64 all[SHARES], sum = 0;

	exchange(s, block_sum(v, s->warp), all);
	for (int i = 0; i < s->blocks; i++)
		sum += all[i];
	return sum;
}

static inline __device__ u64 row_max(u64 v, struct scratch *s)
{
	u64 *scratch = s->warp, all[SHARES];

	for (int x = 16; x; x /= 2) {
		u64 other = __shfl_xor_sync(FULL, v, x);

		v = other > v ? other : v;
	}
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		scratch[threadIdx.x / 32] = v;
	__syncthreads();
	for (int i = 0; i < WARPS; i++)
		v = scratch[i] > v ? scratch[i] : v;
	exchange(s, v, all);
	for (int i = 0; i < s->blocks; i++)
		v = all[i] > v ? all[i] : v;
	return v;
}

/* The share of which block has the target; `from` and `n` become that share's, `target` what is left of it. */
template <class F> static inline __device__ void locate_share(int32_t &from, int32_t &n, u64 &target, struct scratch *s,
	F weight)
{
	int32_t step = (n + s->blocks - 1) / s->blocks, chosen = 0;
	int32_t a = s->rank * step, b = a + step < n ? a + step : n;
	u64 sum = 0, all[SHARES];

	for (int32_t i = a + (int32_t)threadIdx.x; i < b; i += THREADS)
		sum += weight(i);
	exchange(s, block_sum(sum, s->warp), all);
	while (chosen < s->blocks - 1 && target >= all[chosen])
		target -= all[chosen++];
	if (chosen * step >= n)
		chosen = (n - 1) / step; /* the target was beyond the total */
	from = chosen * step;
	n = n - from < step ? n - from : step;
}

/* The id i at which the sum of weight(0) .. weight(i) first exceeds `target`. */
template <class F> static inline __device__ int32_t locate(int32_t n, u64 target, struct scratch *s, F weight)
{
	int32_t from = 0, warp = (int32_t)threadIdx.x / 32, lane = (int32_t)threadIdx.x % 32;

	if (s->blocks > 1)
		locate_share(from, n, target, s, weight);
	while (n > 1) {
		int32_t step = (n + WARPS - 1) / WARPS, chosen = 0;
		int32_t a = from + warp * step, b = a + step < from + n ? a + step : from + n;
		u64 sum = 0;

		for (int32_t i = a + lane; i < b; i += 32)
			sum += weight(i);
		sum = warp_sum(sum);
		__syncthreads(); /* the previous sums are read */
		if (lane == 0)
			s->warp[warp] = sum;
		__syncthreads();
		while (chosen < WARPS - 1 && target >= s->warp[chosen])
			target -= s->warp[chosen++];
		if (chosen * step >= n)
			chosen = (n - 1) / step; /* the target was beyond the total */
		from += chosen * step;
		n = n - chosen * step < step ? n - chosen * step : step;
	}
	return from;
}

#endif
