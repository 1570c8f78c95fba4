/* pack.cuh - a piece of a file, and what becomes of it: between weights.cu, which reads, and pack.cu. */
#ifndef CUDA_PACK_CUH
#define CUDA_PACK_CUH

#include "device.cuh"

enum piece_of { OF_DENSE, OF_QUANTS, OF_SCALES, OF_ZEROS };

struct piece {                       /* whole rows of one of a tensor's extents */
	enum piece_of of;
	int32_t type, scale_type;    /* enum sr_type */
	int32_t n, k;                /* of the tensor */
	int32_t group, group_n;      /* inputs, outputs to a scale */
	int32_t first, rows;         /* as the extent has them: outputs, inputs, groups .. */
	size_t row_bytes;
	float add;
	void *dense;                 /* OF_DENSE: row `first` of it goes here */
	bool f32;                    /* and as this, else bf16 */
	enum held held;              /* else */
	struct packed to;
	int32_t col;                 /* output of `to` that is the tensor's first */
	const int32_t *where;        /* act-order: input k of the tensor is input where[k] of `to`; or NULL */
};

/* 4 bits, scales and zero points in extents of their own */
static inline __host__ __device__ bool is_apart(int32_t type)
{
	return type == SR_AWQ4 || type == SR_GPTQ4 || type == SR_GPTQ4_V2 || type == SR_CT4;
}

static inline size_t scale_bytes(int32_t type)
{
	return type == SR_F32 ? 4 : 2;
}

#endif
