/* quantize.cuh - activations in 8 bits.  The kernel that makes a row also turns it into e4m3 and a scale
 * (rows.cu); for attention a separate kernel does so (packed_many_rows.cu).
 *
 * Each 16 inputs are in the order of a packed matrix's bytes (packed.cuh): 0, 8, 1, 9 | 2, 10, 3, 11 | ..
 */
#ifndef CUDA_QUANTIZE_CUH
#define CUDA_QUANTIZE_CUH

#include "ptx.cuh"

/* value(i): input i of this block's row, rounded to bf16; it is called twice for each.  All threads of the
 * block call this; `scratch` has one float per warp. */
template <class F> static inline __device__ void quantize_row(F value, int32_t K, uint32_t *to, float *scale,
	float *scratch)
{
	float most = 0, by;

	for (int32_t i = (int32_t)threadIdx.x; i < K; i += (int32_t)blockDim.x)
		most = fmaxf(most, fabsf(value(i)));
	most = warp_max(most);
	__syncthreads(); /* the previous user of scratch may still read it */
	if (threadIdx.x % 32 == 0)
		scratch[threadIdx.x / 32] = most;
	__syncthreads();
	for (int i = 0; i < (int)blockDim.x / 32; i++)
		most = fmaxf(most, scratch[i]);
	by = most > 1e-30f ? 448 / most : 0;
	for (int32_t i = (int32_t)threadIdx.x; i < K / 4; i += (int32_t)blockDim.x) {
		int32_t k = i / 4 * 16 + i % 4 * 2;

		to[i] = e4m3_of(value(k) * by) | e4m3_of(value(k + 8) * by) << 8 |
			e4m3_of(value(k + 1) * by) << 16 | e4m3_of(value(k + 9) * by) << 24;
	}
	if (threadIdx.x == 0)
		*scale = most / 448;
}

#endif
