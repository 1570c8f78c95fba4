/* norm.cuh - norms of a row by a block, and activations, for kernels of rows (rows.cu, sample/pool.cu). */
#ifndef CUDA_NORM_CUH
#define CUDA_NORM_CUH

#include "device.cuh"

#define NORM_SCRATCH (512 / 32 * sizeof(float)) /* shared memory of norm_threads() */

/* Threads of a norm: by the row alone, because the order of its sum depends on them.  A long row takes latency, not
 * bandwidth. */
static inline unsigned norm_threads(int32_t D)
{
	return D < 2048 ? 128 : 512;
}

struct norm { const float *w, *bias; float eps; };   /* bias: NULL, none */

/* norm(x) = (x - mean) * scale * w + bias */
struct norm_of_row { float mean, scale; };

/* Of a row that is visible to all threads of the block.  HOW: SR_RMS, whose mean is 0, or SR_LAYER. */
template <int HOW> static __device__ struct norm_of_row measure_row(const float *x, int32_t n, float eps,
	float *scratch)
{
	struct norm_of_row r = { 0, 0 };
	float sum = 0;

	if (HOW == SR_LAYER) {
		for (int32_t i = (int32_t)threadIdx.x; i < n; i += (int32_t)blockDim.x)
			sum += x[i];
		r.mean = block_sum(sum, scratch) / (float)n;
		sum = 0;
	}
	for (int32_t i = (int32_t)threadIdx.x; i < n; i += (int32_t)blockDim.x)
		sum += (x[i] - r.mean) * (x[i] - r.mean);
	r.scale = 1 / sqrtf(block_sum(sum, scratch) / (float)n + eps);
	return r;
}

template <int HOW> static __device__ float normed(float x, const struct norm_of_row &r, const struct norm &k,
	int32_t i)
{
	float y = (x - r.mean) * r.scale * k.w[i];

	return HOW == SR_LAYER && k.bias ? y + k.bias[i] : y;
}

static inline struct norm norm_by(const struct weight *w, float eps)
{
	struct norm k = { w ? w->vec : NULL, w ? w->bias : NULL, eps };

	return k;
}

static inline __device__ float act_of(int act, float x)
{
	switch (act) {
	case SR_SILU:
		return x / (1 + __expf(-x));
	case SR_GELU_TANH:
		return x / 2 * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
	case SR_GELU_ERF:
		return x / 2 * (1 + erff(x * 0.7071067812f));
	case SR_RELU2:
		return x > 0 ? x * x : 0;
	}
	return x / (1 + __expf(-1.702f * x));    /* SR_OAI */
}

#endif
