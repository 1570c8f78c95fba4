/* device.cuh - what the files of the CUDA back end share.
 *
 *	backend.cu   the interface: batches, launch and poll; layout.cu: device memory (backend.cuh)
 *	step.cu      the first and the last kernel of a batch: makes lists of rows, executes commands
 *	graph.cu     steps of single tokens as graphs, captured by open()
 *	weights/     weights from files to the device: loader.cu reads, pack.cu converts them to the stored form
 *	rows.cu      embed, norms, activation, inputs of layers: a block per row
 *	matmul.cu    products, on tensor cores: which kernel does which (dense_few_rows.cu, packed_few_rows.cu,
 *	             packed_many_rows.cu, hopper_many_rows.cu; lt.cu by cuBLASLt, if that is installed)
 *	route.cu     which experts a token goes to; grouped.cu: products by expert
 *	rope.cu      positions, rope and KV store
 *	attend.cu    attention of single tokens and of runs (hopper_attend.cu: on sm_90a;
 *	             wide.cu: of other widths, and of latent keys)
 *	recur.cu     layers with a state; the gate of attention
 *	sample/      from logits to a token; vectors of prompts, and what a classifier makes of them (pool.cu)
 *	ranks/       several GPUs with one model: what each gets from the others
 *	check.cu     which kernels can be switched off, by name (special.cuh); those that compute wrongly are
 *	canary.cu    tries kernels in a child process before that (guard/canary.h)
 *	roof.cu      the least time that a batch takes, for statistics
 *
 * Each subject has its header: step.cuh (batches, slots, graphs, roof), weights.cuh, product.cuh, attend.cuh,
 * special.cuh.  Here is what belongs to none of them, and struct dev, which is made of all.
 *
 * Thread   everything runs in core's one thread, except the driver's own threads.
 * Stream   one: work executes in launch order, so all batches in flight share one set of buffers.
 * Errors   every CUDA call goes through cuda_ok(); after one has failed nothing more is
 *          launched, and poll() returns -EIO.
 * Memory   open() allocates all of it, as plan() counted.
 *
 * Types    X, Z, SCORES, OUT, SIDE, LOGITS f32; the other places bf16; weights bf16 or packed (packed.cuh), vectors and
 *          biases f32.
 * KV       [block][places][n_kv_heads][K, V][BLOCK][head_dim] bf16, or e4m3 with the layer's k_scale and
 *          v_scale; the K (or V) of one head in a block is contiguous.  Latent keys have no V.  Layers of other
 *          heads take other room (kv_pool.layer).  A layer has a place in the blocks of its
 *          group (kv_pool.place), and each group a part of a slot's table.
 */
#ifndef CUDA_DEVICE_CUH
#define CUDA_DEVICE_CUH

#include <stddef.h>

#include "attend.cuh"
#include "product.cuh"
#include "ranks/ranks.cuh"
#include "special.cuh"
#include "step.cuh"
#include "weights.cuh"
#include "kernels/shape.h"

/* Operations of a forward pass that work on rows (rows.cu), and sampling (sample.cu). */

void embed(struct dev *, const struct weight *, float, int);
void add_norm(struct dev *, int, const struct weight *, const struct weight *, enum sr_norm, float, float, int);
void pick_norm(struct dev *, const struct weight *, enum sr_norm, float, int, int);
void act_mul(struct dev *, enum sr_ffn, enum sr_act, float, int, int);
void norm(struct dev *, enum place, const struct weight *, float, int);
void sum(struct dev *, enum place, enum place, int);
void scale(struct dev *, const struct weight *, int);
void inputs(struct dev *, const struct weight *, const struct weight *, int, float, int);
void input_mul(struct dev *, int, enum sr_act, int, int);

/* Vectors of prompts, and the logits of labels (sample/pool.cu). */
void pool(struct dev *, const struct weight *, enum sr_norm, float, int);
void label(struct dev *, enum place, enum sr_head_act, const struct weight *, const struct weight *,
	const struct weight *, float, int);

/* Layers with a state, and the gate of attention (recur.cu). */
void recur(struct dev *, int, const struct sr_delta *, const struct recur_weights *, float, int);
void attend_gate(struct dev *, const struct sr_attn *, int);
int recur_check(const struct sr_model *m, char *err, size_t errlen); /* 0, or -ENOTSUP: a shape that it does not compute */
bool recur_prepare(struct dev *d);           /* once, at open */
size_t state_bytes(const struct sr_model *m); /* of one sequence; 0: no layer has a state */

/* Where tokens are drawn. */
struct draw_space {
	struct sr_masks masks;       /* pinned; core writes them at any time */
	bool guided;                 /* there are masks */
	int32_t width;               /* elements of a vector in a batch */
	float    *candidates;        /* [logit_rows][n_vocab] */
	uint32_t *count;             /* [logit_rows][n_vocab], all zero between kernels */
	struct sampler *sampler;     /* sampler_bytes(); NULL: a block has a whole row (sample.cu) */
	int32_t  *drawn;             /* [picks] ids drawn in rows with guesses; NULL: there are none */
};

void sample(struct dev *, float, int, int);
size_t sampler_bytes(const struct dev *d);
int32_t sample_blocks(const struct dev *d, int R); /* of each of R rows */
void sample_settle(struct dev *);            /* rows with guesses: what was drawn for nothing */

/* Which GPU this is, and what it can do. */
struct gpu {
	int number;                  /* the driver's, from 0 */
	int32_t processors;
	int32_t capability;          /* 80, 89, 90, .. */
	int32_t shared_bytes;        /* of a multiprocessor */
	uint64_t memory;             /* bytes, used or not */
	char bus[32];                /* PCI address */
};

/* The first call that failed; all later ones would. */
struct fault {
	bool lost;
	cudaError_t code;
	char why[256];
};

struct activations {
	void  *place[P_LOGITS + 1];
	float *freq[SR_KINDS];       /* [dims / 2]; kinds that rotate alike share them */
	float2 *angle[SR_KINDS];     /* [tokens][dims / 2] cos, sin; likewise */
};

struct dev {
	struct sr_backend *b;
	const struct sr_model *m;
	struct rank_shape shape;     /* with the elements of a row of each place */
	cudaStream_t stream;
	uint32_t without;            /* bits of enum special */
	const struct weight *positions, *types, *second_type; /* added to embeddings; NULL: the model has none */
	bool whole;                  /* sr_limits.whole */
	bool uneven;                 /* kinds of attention differ in heads or widths, or wide.cu attends to one */
	bool deterministic;          /* one kernel for any number of rows; a single token is a run of one */
	struct gpu gpu;
	struct fault fault;
	struct weight_store store;
	struct activations act;
	struct attend_sums attend;
	struct draw_space draw;
	struct products product;
	struct routing routing;
	struct kv_pool kv;
	float *states;               /* [n_states], of state_bytes() each; or NULL */
	struct slots slots;
	struct batches batch;
	struct ranks ranks;
	struct roof roof;
};

/* Records the first error and its place.  Returns false if there is an error, now or earlier. */
bool cuda_ok(struct dev *d, cudaError_t e, const char *what);

static inline bool has(const struct dev *d, enum special s)
{
	return !(d->without >> s & 1);
}

/* True if many rows are multiplied by w with activations in e4m3.  Hopper's kernel scales sums every 128 inputs. */
static inline bool uses_x8(const struct dev *d, const struct weight *w)
{
	if (!d->product.x8 || (w->held != HELD_W8 && w->held != HELD_W4))
		return false;
	if (w->held == HELD_W8)
		return has(d, SPECIAL_W8A8);
	return d->product.w4a8 && has(d, SPECIAL_W4A8) && w->whole_zeros && w->count == 1 && !w->order &&
		(!d->product.hopper_work || !has(d, SPECIAL_HOPPER_MANY) || w->packed.group % 4 == 0);
}

/* True if a single token is attended to as a run of one. */
static inline bool runs_only(const struct dev *d)
{
	return d->deterministic || d->uneven || !has(d, SPECIAL_ATTEND_ONE);
}

/* Up to so many rows are multiplied by the kernels of few rows, 64 at a time.  Without wgmma, four readings of packed
 * weights take no longer than the operations of tiles of 128 rows in bf16, and two no longer than in e4m3 (make
 * cuda-report). */
static inline int few_most(const struct dev *d, const struct weight *w)
{
	bool packed = w->held == HELD_W4 || w->held == HELD_W8 || w->held == HELD_N4;
	bool hopper = d->product.hopper_work && has(d, SPECIAL_HOPPER_MANY) && w->held != HELD_N4;

	return !packed || hopper ? FEW_ROWS : uses_x8(d, w) ? 2 * FEW_ROWS : 4 * FEW_ROWS;
}

/* True if the producer of x should itself write FP8, because only the product with w reads x. */
static inline bool wants_x8(const struct dev *d, const struct weight *w, int T)
{
	return w && uses_x8(d, w) && T > few_most(d, w);
}

static inline bool is_f32(enum place p)
{
	return p == P_X || p == P_Z || p == P_SCORES || p == P_OUT || p == P_SIDE || p == P_LOGITS;
}

#endif
