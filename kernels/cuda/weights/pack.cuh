/* pack.cuh - a piece of a file and its destination: the interface between weights.cu, which reads, and
 * pack.cu. */
#ifndef CUDA_PACK_CUH
#define CUDA_PACK_CUH

#include "kernels/cuda/device.cuh"

enum piece_of { OF_DENSE, OF_QUANTS, OF_SCALES, OF_ZEROS };

struct file_piece {                       /* whole rows of one extent of a tensor */
	enum piece_of of;
	int32_t type, scale_type;    /* enum sr_type */
	int32_t n, k;                /* of the tensor */
	int32_t group, group_n;      /* inputs and outputs per scale */
	int32_t first, rows;         /* in the extent's unit: outputs, inputs, groups .. */
	size_t row_bytes, skip;      /* of a row, the first `skip` bytes are another tensor's */
	int32_t outputs, at, step;   /* of a vector or of what is stored transposed: element i is number at + i * step,
	                                in transposed rows of `outputs` elements; else 0, 0, 1.  Of a rank's part
	                                of AWQ, GPTQ: its first output in a row; of scales and zeros: in the first
	                                row */
	bool transposed, apart;      /* apart: scales are in an extent of their own */
	bool in_blocks;              /* NVFP4 of GGUF */
	float add, mul;
	bool neg_exp;                /* then -exp of it */
	void *dense;                 /* OF_DENSE: destination of row `first` */
	bool f32;                    /* OF_DENSE: write f32, else bf16 */
	enum held held;              /* other forms: the stored form */
	struct packed to;
	int32_t col;                 /* output of `to` that is output 0 of the tensor */
	const int32_t *where;        /* act-order: input k of the tensor is input where[k] of `to`; or NULL */
};

/* Types of 4 bits whose scales and zero points are in separate extents. */
static inline __host__ __device__ bool is_apart(int32_t type)
{
	return type == SR_AWQ4 || type == SR_GPTQ4 || type == SR_GPTQ4_V2 || type == SR_CT4;
}

static inline size_t scale_bytes(int32_t type)
{
	return type == SR_F32 ? 4 : 2;
}

bool pack_layout(int32_t type, int32_t *weights, int32_t *bytes);   /* of a block; false: unknown type */
bool pack_rows(struct dev *d, const struct file_piece *p, const unsigned char *data);

#endif
