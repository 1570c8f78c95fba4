/* attend.cuh - the KV cache, and the operations that use it: rope and store (rope.cu), attention (attend.cu,
 * hopper_attend.cu, wide.cu). */
#ifndef CUDA_ATTEND_CUH
#define CUDA_ATTEND_CUH

#include "kernel.cuh"
#include "kernels/backend.h"
#include "kernels/ops.h"
#include "kernels/shape.h"

#define BLOCK 16                     /* tokens of a KV block */
#define TILE_ROWS 64                 /* (token, query head) pairs in one piece of a run's attention */
#define RUN_PITCH(E) ((E) + 4)       /* floats of a row of a run's part: o, max, sum, two that keep rows aligned */

struct kv_pool {
	unsigned char *base;
	bool f8;                     /* e4m3; false: bf16 */
	size_t stride;               /* elements of a block, of all layers of a group */
	const size_t *layer;         /* [n_layers] elements before a layer's in a block, on the host */
	size_t block;                /* bytes, over all layers of a group */
	const struct kv_place *place; /* [n_layers], on the host */
	int32_t places;              /* of layers in a block */
	int64_t rows;                /* rows of one head's width: of all blocks, K and V */
};

/* Where layers are all alike, as hopper_attend.cu has them.  n_layers: places in a block; layer: one of them. */
static inline __host__ __device__ size_t kv_at(size_t half, int32_t n_layers, int32_t n_kv_heads,
	int32_t block, int layer, int g)
{
	return (((size_t)block * (size_t)n_layers + (size_t)layer) * (size_t)n_kv_heads + (size_t)g) * 2 * half;
}

/* Pieces of a token's attention, until they are added up. */
struct attend_sums {
	float *part;                 /* [most_pieces][n_heads][head_dim + 2]: o, then max and sum */
	uint32_t *joined;            /* [most_pieces][n_kv_heads] finished pieces of a token; 0 between kernels */
	float *run_part;             /* [most_divided][n_kv_heads][attend_run_rows()][RUN_PITCH]: likewise, of runs */
	int32_t q_width;             /* elements of a row of QKV: layers that read another's cache have no k, v */
};

/* The first position that the query at position p reads. */
static inline __host__ __device__ int32_t first_read(int32_t window, int32_t chunk, int32_t p)
{
	int32_t from = window && p >= window ? p - window + 1 : 0, begun = chunk ? p / chunk * chunk : 0;

	return begun > from ? begun : from;
}

/* So many positions behind its own a query reads too, where its sequence has them. */
static inline int32_t read_ahead(const struct sr_attn *kind)
{
	return !kind->bidirectional ? 0 : kind->window ? kind->window - 1 : SR_WHOLE_MAX;
}

/* What a head's sink adds to the sum of 2^(score - most); a sink has no value.  sink NULL: nothing. */
static inline __device__ float sink_share(const float *sink, int32_t head, float most)
{
	return sink ? exp2f(sink[head] * 1.4426950408889634f - most) : 0;
}

float scale_or_1(const struct dev *, float scale); /* of a layer's cache: 1 where it has none, or in bf16 */
void angles(struct dev *, int);      /* cos and sin of the batch's positions */
void rope_store(struct dev *, int, const struct sr_attn *, const struct weight *, const struct weight *,
	float, int);
void attend(struct dev *, int, const struct sr_attn *, const struct weight *sinks, int);
int32_t attend_run_rows(const struct dev *d); /* (token, query head) pairs of a run at most */
#define WIDE_KEYS   576              /* elements of a key, and of a value, at most (wide.cu) */
#define WIDE_VALUES 512
bool attend_wide(const struct sr_attn *kind); /* true: wide.cu attends to layers of this kind */
void attend_by_wide(struct dev *d, int l, const struct sr_attn *kind, const float *sink);
void rope_store_latent(struct dev *d, int l, const struct sr_attn *kind, const struct weight *kn, float eps, int T);
bool wide_prepare(struct dev *d);
int wide_check(const struct sr_model *m, const struct sr_limits *lim, char *err, size_t errlen); /* 0, or -ENOTSUP */
bool attend_width(int32_t E);        /* true: a kernel exists for heads of width E */
bool attend_prepare(struct dev *d);  /* raises the limits of shared memory; once, at open */

bool hopper_attends(const struct dev *d); /* true: it does the runs of this model */
int32_t hopper_attend_rows(void);    /* (token, query head) pairs per piece of a run, if it does */
void hopper_attend(struct dev *d, int l, const struct sr_attn *kind, const float *sink);
bool hopper_attend_prepare(struct dev *d);

#endif
