/* weights.cuh - a weight on the device, and how weights come there (weights.cu). */
#ifndef CUDA_WEIGHTS_CUH
#define CUDA_WEIGHTS_CUH

#include "kernel.cuh"
#include "kernels/ops.h"

enum held { HELD_VECTOR, HELD_BF16, HELD_W4, HELD_W8, HELD_F4, HELD_F32, HELD_N4 };
struct packed {                      /* order: packed.cuh */
	uint32_t *words, *scale;
	int32_t N, K, width;         /* outputs, inputs, outputs rounded up to whole strips */
	int32_t group;               /* slabs per scale */
	float *by;                   /* N4: [width] the rest of each output's factor */
};
struct weight {
	struct weight *next;         /* list of all weights, to free them */
	enum held held;
	int32_t n, k;
	int32_t whole;               /* outputs that all ranks have together; n, if there is one rank */
	bool whole_zeros;            /* W4: b / s of packed.cuh is a whole number */
	int32_t count;               /* experts, each [n][k]; 1: none */
	bf16  *mat;                  /* BF16: [count][n][k] */
	float *vec;                  /* VECTOR: [k]; F32, a router's: [n][k] */
	float *bias;                 /* [count][n], of a vector [k]; or NULL */
	bf16  *bias16;               /* a copy in bf16 for cuBLASLt, if that is used */
	int32_t *order;              /* [k] act-order: packed input i is input order[i] of x; NULL: original
	                                order */
	int32_t *where;              /* [k] the inverse of order, for loading */
	const struct weight *feeds;  /* of a norm, and of gate+up through act_mul: the product that reads its
	                                output; or NULL */
	struct lt_use *lt;           /* how cuBLASLt multiplies by it, or NULL (lt.cu) */
	struct packed packed;        /* W4, W8, F4, N4; each expert begins with a strip */
};

/* Where weights lie. */
struct weight_store {
	unsigned char *base, *at, *end; /* all of it; up to `at` it is in use */
	struct weight *list;
	struct loader *loader;       /* used during open; weights_free() frees it */
};

size_t loader_pinned(uint32_t slack);
size_t loader_staging(void);
bool loader_create(struct dev *d, const struct sr_source *src, unsigned char *staging, char *err,
	size_t errlen);
int  loader_finish(struct dev *d, char *err, size_t errlen); /* after the last read; waits until all is
                                                                on the device */
int64_t weight_add(struct dev *d, struct weight **out, const struct sr_tensor *const *part,
                   const struct sr_tensor *const *bias, int n, char *err, size_t errlen);
bool weight_packed(const struct sr_tensor *t);              /* held in 4 or 8 bits, if it is alone */
bool weight_whole_zeros(const struct sr_tensor *t);         /* of 4 bits, with zero points that are whole numbers */
int64_t weight_bytes(const struct weight *w);               /* as stored, without its bias */
void weights_free(struct dev *d);                           /* and the loader */

#endif
