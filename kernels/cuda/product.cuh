/* product.cuh - how the sums of a product are stored from the registers of mma. */
#ifndef CUDA_PRODUCT_CUH
#define CUDA_PRODUCT_CUH

#include "kernel.cuh"

static inline __device__ void put_one(void *y, bool f32, size_t at, float v)
{
	if (f32)
		((float *)y)[at] = v;
	else
		((bf16 *)y)[at] = bf16_of(v);
}

/* Stores M x N fragments of a warp, starting at row and col, to y[T][width]. */
template <int M, int N> static inline __device__ void put_y(float (&sum)[M][N][4], void *y, bool f32,
	const float *bias, int32_t row, int32_t col, int32_t T, int32_t width)
{
	int lane = (int)threadIdx.x % 32;

#pragma unroll
	for (int m = 0; m < M; m++)
#pragma unroll
		for (int n = 0; n < N; n++)
#pragma unroll
			for (int j = 0; j < 4; j++) {
				int32_t r = row + 16 * m + lane / 4 + j / 2 * 8;
				int32_t c = col + 8 * n + lane % 4 * 2 + j % 2;

				if (r < T && c < width)
					put_one(y, f32, (size_t)r * (size_t)width + (size_t)c,
						sum[m][n][j] + (bias ? bias[c] : 0));
			}
}

#endif
