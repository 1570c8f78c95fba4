/* product.cuh - products y[T][n] = x[T][k] w^T + bias: what they share, who multiplies (matmul.cu), and how
 * sums are stored from the registers of mma. */
#ifndef CUDA_PRODUCT_CUH
#define CUDA_PRODUCT_CUH

#include "weights.cuh"

#define FEW_ROWS 64                  /* most rows of the *_few_rows functions */

/* What products need besides x, w and y. */
struct products {
	bool use_lt;                 /* cuBLASLt for products of many rows */
	struct lt *lt;               /* NULL: not in use */
	void *lt_work;               /* LT_WORK bytes */
	float *part;                 /* product_part_bytes(): sums over parts of tiles */
	uint32_t *arrived;           /* [n_arrived], one per tile; zero between kernels */
	size_t n_arrived;
	unsigned char *hopper_work;  /* hopper_work_bytes(); NULL: not in use */
	uint32_t *x8;                /* [tokens][widest / 4] in e4m3; NULL: not needed */
	float *x8_scale;             /* [tokens] */
	const struct weight *made_for; /* x is already in the 8 bits or the order that this weight reads; or
	                                  NULL */
	const struct weight *reader; /* the product that reads this operation's output, see weight.feeds */
	bf16 *ordered;               /* [tokens][widest], x in a weight's order; NULL: no weight has an order */
};

void matmul(struct dev *, enum place, enum place, const struct weight *, int);
bool matmul_prepare(struct dev *d);  /* raises the limits of shared memory; once, at open */
const bf16 *in_order(struct dev *d, const bf16 *x, const struct weight *w, int T);

/* T <= FEW_ROWS; `rows` chooses how they compute. */
void dense_few_rows(struct dev *d, void *y, bool f32, const bf16 *x, const struct weight *w, int T, int rows);
void packed_few_rows(struct dev *d, void *y, bool f32, const bf16 *x, const struct weight *w, int T,
	int rows);

/* made: product.x8 already holds x. */
void packed_many_rows(struct dev *d, void *y, bool f32, const bf16 *x, const struct weight *w, int T,
	bool made);
void dense_many_rows(struct dev *d, void *y, bool f32, const bf16 *x, const struct weight *w, int T);

/* Returns false if it cannot do this product. */
bool hopper_many_rows(struct dev *d, void *y, bool f32, const void *x, const struct weight *w, int T);

/* Work space, and how many counts of arrival. */
size_t hopper_work_bytes(const struct dev *d);
size_t packed_part_bytes(const struct dev *d);
size_t product_part_bytes(const struct dev *d); /* enough for any product of few rows */
size_t product_tiles(int32_t N);     /* an upper bound for such a product */

bool dense_few_rows_prepare(struct dev *d);
bool packed_few_rows_prepare(struct dev *d);
bool packed_many_rows_prepare(struct dev *d);
bool hopper_many_rows_prepare(struct dev *d);

/* ---- in a kernel --------------------------------------------------------------------------------- */

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
