/* product.cuh - products y[T][n] = x[T][k] w^T + bias: what they share, who multiplies (matmul.cu), how sums
 * are stored from the registers of mma; experts. */
#ifndef CUDA_PRODUCT_CUH
#define CUDA_PRODUCT_CUH

#include "weights.cuh"
#include "kernels/net.h"

#define FEW_ROWS 64                  /* most rows of the *_few_rows functions */

/* What products need besides x, w and y. */
struct products {
	bool use_lt;                 /* cuBLASLt for products of many rows */
	struct lt *lt;               /* NULL: not in use */
	void *lt_work;               /* LT_WORK bytes */
	float *part;                 /* product_part_bytes(): sums over parts of tiles */
	uint32_t *arrived;           /* [n_arrived], one per tile; zero between kernels */
	size_t n_arrived;
	bool divided;                /* tiles of packed_many_rows.cu are shared by blocks; `part` has room for it */
	unsigned char *hopper_work;  /* hopper_work_bytes(); NULL: not in use */
	bool w4a8;                   /* activations in e4m3 beside weights of 4 bits, too */
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
size_t packed_many_part_bytes(const struct dev *d);
size_t product_part_bytes(const struct dev *d); /* enough for any product but those of hopper_work */

/* Blocks for a product of few rows with `tiles` of outputs, of `all` that the ranks have together, and `units` of
 * inputs each; so many `fit` on the GPU.  With --enforce-deterministic each tile is cut at the same units whatever
 * its rank has. */
unsigned product_blocks(const struct dev *d, int64_t tiles, int64_t all, int64_t units, int64_t fit);
size_t product_tiles(const struct dev *d, int32_t N); /* an upper bound of the tiles with parts */

bool dense_few_rows_prepare(struct dev *d);
bool packed_few_rows_prepare(struct dev *d);
bool packed_many_rows_prepare(struct dev *d);
bool hopper_many_rows_prepare(struct dev *d);

/* ---- cuBLASLt (lt.cu) ----------------------------------------------------------------------------- */

#define LT_WORK ((size_t)32 << 20)   /* bytes of work space: NVIDIA's recommendation for Hopper */
#define LT_OWN  ((int64_t)96 << 20)  /* estimate of what the library and its kernels' code take besides */

/* Is the library usable?  The first call reports it on stderr. */
bool lt_there(void);

/* Call it after the weights are loaded.  Chooses a kernel for each product of the network for up to `tokens`
 * or `logit_rows` rows, and executes it once.  Does nothing without work space.  False: d->fault.why. */
bool lt_open(struct dev *d, const struct net *n, int32_t tokens, int32_t logit_rows);
void lt_close(struct dev *d);

/* lt_can: does a kernel for T rows exist?  If so, lt_matmul computes y[T][n] = x[T][k] w^T + bias.  Up to
 * lt_rows() rows of y are written, and of x read. */
bool lt_can(const struct weight *w, int32_t T);
void lt_matmul(struct dev *d, void *y, const void *x, const struct weight *w, int32_t T);
int32_t lt_rows(int32_t T, int32_t most);

/* ---- by expert --------------------------------------------------------------------------------------
 *
 * Feed-forward parts of which each token uses a few: which ones (route.cu), their products (grouped.cu), and
 * the sum (route.cu).  A pair is a token with one of its experts: pair t * top + j has the expert of token t
 * whose rank is j.  GU, ACT and OUT have rows in the order of pairs, so results do not depend on how pairs are
 * grouped. */

#define EXPERTS_MAX 512              /* of a layer: a warp has their scores in registers */
#define TOP_MAX 32                   /* experts of a token */

/* Rows of one expert that a block multiplies. */
struct expert_tile { int32_t expert, first, n; }; /* pairs pair[first .. first + n - 1]; n 0: nothing */

/* Where the tokens of a batch go, in one layer; rewritten in the next. */
struct routing {
	int32_t *id;                 /* [tokens][top] by rank; -1: padding, which goes nowhere */
	float   *weight;             /* [tokens][top] */
	int32_t *pair;               /* [tokens * top] by expert, then ascending */
	struct expert_tile *tile;    /* [most_expert_tiles()] of all tokens */
};

/* Rows per tile for T tokens.  A row's sums are the same bits with each. */
static inline int32_t expert_rows(int32_t T, int32_t n, int32_t top)
{
	return (int64_t)T * top > (int64_t)16 * n ? 64 : 16;
}

/* The most tiles that T tokens can have. */
static inline int32_t expert_tiles(int32_t T, int32_t n, int32_t top)
{
	int64_t pairs = (int64_t)T * top;

	return (int32_t)(pairs < n ? pairs : n + pairs / expert_rows(T, n, top));
}

/* The same of any number of tokens up to T. */
static inline int32_t most_expert_tiles(int32_t T, int32_t n, int32_t top)
{
	return 2 * n + (int32_t)((int64_t)T * top / 64);
}

int  experts_check(const struct sr_model *m, char *err, size_t errlen); /* 0, or -ENOTSUP and a line in err */
bool experts_prepare(struct dev *d);  /* raises the limits of shared memory; once, at open */
void experts_score(struct dev *d, const struct weight *router, int T);
void route(struct dev *d, const struct sr_experts *, const struct weight *choice_bias, int T);
void combine(struct dev *d, const struct sr_experts *, int shared, const struct weight *mix, int T);

void weigh(struct dev *d, const struct weight *w, int T);

/* A matrix for each head of latent keys, with count of them (grouped.cu). */
void heads(struct dev *d, enum place y, int y_step, enum place x, int x_step, const struct weight *w, int T);

/* From Y to GU by token, from ACT to OUT by pair. */
void experts_multiply(struct dev *d, enum place y, enum place x, const struct weight *w, int T);

/* ---- in a kernel --------------------------------------------------------------------------------- */

static inline __device__ void put_one(void *y, bool f32, size_t at, float v)
{
	if (f32)
		((float *)y)[at] = v;
	else
		((bf16 *)y)[at] = (bf16)bf16_pair(v, 0);
}

/* Stores outputs col and col + 1 of a row of y[T][width], those of them that exist. */
static inline __device__ void put_pair(void *y, bool f32, const float *bias, int32_t row, int32_t col, int32_t T,
	int32_t width, float v, float w)
{
	size_t at = (size_t)row * (size_t)width + (size_t)col;

	if (row >= T || col >= width)
		return;
	v += bias ? bias[col] : 0;
	if (width % 2 == 0) {
		w += bias ? bias[col + 1] : 0;
		if (f32)
			*(float2 *)((float *)y + at) = make_float2(v, w);
		else
			*(uint32_t *)((bf16 *)y + at) = bf16_pair(v, w);
		return;
	}
	put_one(y, f32, at, v);
	if (col + 1 < width)
		put_one(y, f32, at + 1, w + (bias ? bias[col + 1] : 0));
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
			for (int j = 0; j < 4; j += 2)
				put_pair(y, f32, bias, row + 16 * m + lane / 4 + j / 2 * 8, col + 8 * n + lane % 4 * 2, T,
					width, sum[m][n][j], sum[m][n][j + 1]);
}

#endif
