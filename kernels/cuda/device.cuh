/* device.cuh - what the files of the CUDA back end share.
 *
 *	backend.cu   the interface: device memory, batches, launch and poll
 *	graph.cu     steps of single tokens as graphs, captured by open()
 *	roof.cu      the least time that a batch takes, for statistics
 *	step.cu      the first and the last kernel of a batch: makes lists of rows, executes commands
 *	weights.cu   weights from files to the device; pack.cu converts them to the stored form
 *	rows.cu      embed, norms, activation: a block per row
 *	matmul.cu    products, on tensor cores: which kernel does which, and many rows
 *	dense_few_rows.cu       products of up to 64 rows; packed_few_rows.cu, packed_many_rows.cu: 4- and 8-bit weights
 *	hopper_many_rows.cu, hopper_attend.cu  products of many rows, attention of runs, for sm_90a
 *	lt.cu        products of many rows by cuBLASLt, if that is installed
 *	attend.cu    rope and KV store; attention of single tokens and of runs
 *	sample.cu    from logits to a token
 *
 * Thread   everything runs in core's one thread, except the driver's own threads.
 * Stream   one: work executes in launch order, so all batches in flight share one set of buffers.
 * Errors   every CUDA call goes through cuda_ok(); after one has failed nothing more is
 *          launched, and poll() returns -EIO.
 * Memory   open() allocates all of it, as plan() counted.
 *
 * Types    X, Z, LOGITS f32; Y, QKV, A, GU, ACT bf16; weights bf16 or packed (packed.cuh), vectors and
 *          biases f32.
 * KV       [block][n_layers][n_kv_heads][K, V][BLOCK][head_dim] bf16, or e4m3 with the layer's k_scale and
 *          v_scale; the K (or V) of one head in a block is contiguous.
 */
#ifndef CUDA_DEVICE_CUH
#define CUDA_DEVICE_CUH

#include <stddef.h>

#include "kernel.cuh"
#include "kernels/batch.h"
#include "kernels/net.h"
#include "kernels/shape.h"

#define BLOCK 16                     /* tokens of a KV block */
#define TILE_ROWS 64                 /* (token, query head) pairs in one piece of a run's attention */

enum held { HELD_VECTOR, HELD_BF16, HELD_W4, HELD_W8 };
struct packed {                      /* order: packed.cuh */
	uint32_t *words, *scale;
	int32_t N, K, width;         /* outputs, inputs, outputs rounded up to whole strips */
	int32_t group;               /* slabs per scale */
};
struct weight {
	struct weight *next;         /* list of all weights, to free them */
	enum held held;
	int32_t n, k;
	bf16  *mat;                  /* BF16: [n][k] */
	float *vec;                  /* VECTOR: [k] */
	float *bias;                 /* [n] or NULL */
	bf16  *bias16;               /* a copy in bf16 for cuBLASLt, if that is used */
	int32_t *order;              /* [k] act-order: packed input i is input order[i] of x; NULL: original
	                                order */
	int32_t *where;              /* [k] the inverse of order, for loading */
	const struct weight *feeds;  /* of a norm, and of gate+up through act_mul: the product that reads its
	                                output; or NULL */
	struct lt_use *lt;           /* how cuBLASLt multiplies by it, or NULL (lt.cu) */
	struct packed packed;        /* W4, W8 */
};

/* ---- a batch, for the kernels ------------------------------------------------------------------ */

#define FLIGHTS 2                      /* batches in flight */

/* Signals the host that a batch has ended; in pinned memory, one for each batch in flight. */
struct signal {
	uint32_t done;               /* turn of the batch that ended last */
	uint64_t begin_ns, end_ns;   /* of its first and last kernel, by the device's clock; between the end
	                                of a batch and the start of the next the device is idle */
};

/* A batch before it begins: the data from core, all in pinned memory. */
struct submission {
	int32_t n_rows, n_cmd_slots;
	const struct sr_row *row;
	const int32_t *token;
	const struct sr_cmd *cmd;
	const uint32_t *word;
	const int32_t *first_cmd, *next_cmd; /* of each slot; of the same slot, or -1 */
	struct sr_result *result;
	struct sr_top *top;
	struct signal *signal;
};

/* The batch being computed, on the device. */
struct current_batch {
	uint32_t turn;               /* batches that have ended; this one is submitted[turn % FLIGHTS] */
	struct sr_result *result;
	struct sr_top *top;
	struct signal *signal;
};

struct attend_piece {                        /* the query of one token against positions from .. to-1 */
	int32_t t;                   /* -1: padding */
	int32_t from, to;
	int32_t first, pieces;       /* of this token: first .. first + pieces - 1 */
};

/* The output of begin_kernel.  Its addresses are the same for every batch, so that graphs can hold them. */
struct lists {
	struct batch_token *token;   /* [tokens]; an id may be SR_LAST */
	struct batch_pick *pick;     /* [rows + scores] */
	struct attend_piece *piece;  /* [most_pieces] */
	struct token_run *run;       /* [most_runs]; t -1: padding */
	struct sr_row *row;          /* [rows], a copy */
	int32_t *token_of, *pick_of; /* [rows] the first token and pick of each row */
};

/* The counts that the kernels are launched for: those of the batch, or those of a graph. */
/* n_cmd_slots: slots that have commands. */
struct step { int32_t n_tokens, n_picks, n_pieces, n_runs, n_cmd_slots; };

struct last_cmd { uint32_t turn; int32_t cmd; }; /* of a slot, in the batch of a turn */

/* ---- a slot -------------------------------------------------------------------------------------- */

struct slot {
	struct sr_sampling s;
	int32_t last;                /* the token drawn last */
	int32_t counted;             /* a history was sent: append drawn tokens to it */
	int32_t n_prompt, n_history, n_words;
};

/* Lists are stored in order of arrival: word[0] = enum sr_list, word[1] = n, then n words. */
struct slots {
	struct slot *slot;           /* [slots + 1] */
	int32_t  *table;             /* [slots + 1][table_cap] */
	int32_t  *history;           /* [slots + 1][history_cap], prompt first */
	uint32_t *word;              /* [slots + 1][word_cap] */
	int32_t   table_cap, history_cap, word_cap;
};

static inline __host__ __device__ int32_t *table_of(const struct slots *s, int32_t slot)
{
	return s->table + (size_t)slot * (size_t)s->table_cap;
}

static inline __host__ __device__ int32_t *history_of(const struct slots *s, int32_t slot)
{
	return s->history + (size_t)slot * (size_t)s->history_cap;
}

static inline __host__ __device__ uint32_t *word_of(const struct slots *s, int32_t slot)
{
	return s->word + (size_t)slot * (size_t)s->word_cap;
}

/* ---- the device ------------------------------------------------------------------------------------ */

/* The measured rates of this GPU, and the least cost of a batch of the model (roof.cu). */
struct roof {
	double bytes_per_ns, macs_per_ns, copied_per_ns;
	double token_macs, head_macs;    /* multiply-adds: per token with the layers' weights, per result */
	double layer_bytes, head_bytes;
	int32_t windows, window;         /* number of layers with a window; the longest window */
};

/* Which GPU this is, and what it can do. */
struct gpu {
	int number;                  /* the driver's, from 0 */
	int32_t processors;
	int32_t capability;          /* 80, 89, 90, .. */
	int32_t shared_bytes;        /* of a multiprocessor */
	char bus[32];                /* PCI address */
};

/* The first call that failed; all later ones would. */
struct fault {
	bool lost;
	cudaError_t code;
	char why[256];
};

/* Where weights lie. */
struct weight_store {
	unsigned char *base, *at, *end; /* all of it; up to `at` it is in use */
	struct weight *list;
	struct loader *loader;       /* used during open; weights_free() frees it */
};

struct activations {
	void  *place[P_LOGITS + 1];
	float *freq[SR_KINDS];       /* [dims / 2]; kinds that rotate alike share them */
	float2 *angle[SR_KINDS];     /* [tokens][dims / 2] cos, sin; likewise */
};

/* Pieces of a token's attention, until they are added up. */
struct attend_sums {
	float *part;                 /* [most_pieces][n_heads][head_dim + 2]: o, then max and sum */
	uint32_t *joined;            /* [most_pieces][n_kv_heads] finished pieces of a token; 0 between kernels */
};

/* Where tokens are drawn. */
struct draw_space {
	float    *candidates;        /* [logit_rows][n_vocab] */
	uint32_t *count;             /* [logit_rows][n_vocab], all zero between kernels */
};

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

struct kv_pool {
	unsigned char *base;
	bool f8;                     /* e4m3; false: bf16 */
	size_t half;                 /* elements of K of one block and head */
	size_t block;                /* bytes, over all layers */
	int64_t rows;                /* rows of one head's width: of all blocks, K and V */
};

/* From what core submitted to the lists of the kernels (step.cu). */
struct batches {
	uint32_t turn;               /* batches launched */
	struct submission *submitted; /* [FLIGHTS] pinned */
	struct current_batch *current;
	struct lists list;
	struct step step;            /* of the launch in progress */
	struct last_cmd *last_cmd;   /* [slots + 1] on the host, used while commands are linked */
	int32_t null_slot;           /* of padding; its table has only the null block */
	struct graphs *graphs;       /* NULL: none */
};

struct dev {
	struct sr_backend *b;
	const struct sr_model *m;
	struct rank_shape shape;     /* with the elements of a row of each place */
	cudaStream_t stream;
	bool deterministic;          /* one kernel for any number of rows; a single token is a run of one */
	struct gpu gpu;
	struct fault fault;
	struct weight_store store;
	struct activations act;
	struct attend_sums attend;
	struct draw_space draw;
	struct products product;
	struct kv_pool kv;
	struct slots slots;
	struct batches batch;
	struct roof roof;
};

static inline __host__ __device__ size_t kv_at(size_t half, int32_t n_layers, int32_t n_kv_heads,
	int32_t block, int layer, int g)
{
	return (((size_t)block * (size_t)n_layers + (size_t)layer) * (size_t)n_kv_heads + (size_t)g) * 2 * half;
}

/* Records the first error and its place.  Returns false if there is an error, now or earlier. */
bool cuda_ok(struct dev *d, cudaError_t e, const char *what);

/* step.cu */
int32_t most_pieces(const struct dev *d, int32_t singles);            /* an upper bound */
int32_t most_runs(const struct dev *d, const struct sr_limits *l);
void step_fill(struct dev *d, const struct sr_batch *b, const struct sr_limits *l, int32_t *first_cmd,
	int32_t *next_cmd, struct signal *s);
void step_begin(struct dev *d);
void step_end(struct dev *d);

/* backend.cu */
void batch_empty(struct sr_backend *b);      /* makes the next batch one of padding only */
void batch_compute(struct sr_backend *b);    /* from its first to its last kernel, for the counts in
                                                d->batch.step */

/* roof.cu */
bool roof_measure(struct dev *d, const struct net *n, const struct sr_limits *l, unsigned char *host_kv);
void roof_count(const struct dev *d, struct sr_batch *b);            /* fills the batch's statistics */

/* graph.cu */
int32_t graph_sizes(const struct sr_limits *l, int32_t *size);       /* returns their number; size[64]:
                                                                        rows, ascending */
int64_t graph_bytes(const struct dev *d, const struct sr_limits *l); /* an estimate of device memory */
bool graph_capture(struct dev *d, const struct sr_limits *l);
bool graph_launch(struct dev *d, const struct sr_batch *b);          /* false: no graph fits this batch */
void graph_free(struct dev *d);

/* weights.cu */
size_t loader_pinned(uint32_t slack);
size_t loader_staging(void);
bool loader_create(struct dev *d, const struct sr_source *src, unsigned char *staging, char *err,
	size_t errlen);
int  loader_finish(struct dev *d, char *err, size_t errlen); /* after the last read; waits until all is
                                                                on the device */
int64_t weight_add(struct dev *d, struct weight **out, const struct sr_tensor *const *part,
                   const struct sr_tensor *const *bias, int n, char *err, size_t errlen);
int64_t weight_bytes(const struct weight *w);               /* as stored, without its bias */
void weights_free(struct dev *d);                           /* and the loader */

/* pack.cu */
struct piece;
bool pack_layout(int32_t type, int32_t *weights, int32_t *bytes);   /* of a block; false: unknown type */
bool pack_rows(struct dev *d, const struct piece *p, const unsigned char *data);

/* Products.  T is at most 64 in the *_few functions; `rows` chooses how they compute. */
#define FEW_ROWS 64
const bf16 *in_order(struct dev *d, const bf16 *x, const struct weight *w, int T);
void packed_few_rows(struct dev *d, void *y, bool f32, const bf16 *x, const struct weight *w, int T, int rows);
/* made: x8 already holds x. */
void packed_many_rows(struct dev *d, void *y, bool f32, const bf16 *x, const struct weight *w, int T, bool made);
bool hopper_attends(const struct dev *d);    /* true: it does the runs of this model */
int32_t hopper_attend_rows(void);            /* (token, query head) pairs per piece of a run, if it does */
void hopper_attend(struct dev *d, int l, const struct sr_attn *kind);
/* Returns false if it cannot do this product. */
bool hopper_many_rows(struct dev *d, void *y, bool f32, const void *x, const struct weight *w, int T);
size_t hopper_work_bytes(const struct dev *d);
size_t packed_part_bytes(const struct dev *d);
void dense_few_rows(struct dev *d, void *y, bool f32, const bf16 *x, const struct weight *w, int T, int rows);
void dense_many_rows(struct dev *d, void *y, bool f32, const bf16 *x, const struct weight *w, int T);
size_t product_part_bytes(const struct dev *d);  /* enough for any product of few rows */
size_t product_tiles(int32_t N);                 /* an upper bound for such a product */
bool dense_few_rows_prepare(struct dev *d);

/* The operations of the forward pass. */
void embed(struct dev *, const struct weight *, float, int);
void add_norm(struct dev *, int, const struct weight *, const struct weight *, float, int);
void pick_norm(struct dev *, const struct weight *, float, int, int);
void act_mul(struct dev *, enum sr_act, int, int);
void matmul(struct dev *, enum place, enum place, const struct weight *, int);
void angles(struct dev *, int);
void rope_store(struct dev *, int, const struct sr_attn *, const struct weight *, const struct weight *,
	float, int);
void attend(struct dev *, int, const struct sr_attn *, int);
void sample(struct dev *, float, int, int);
void put(struct dev *, enum place, const float *, int);
void get(struct dev *, enum place, float *, int);

/* Raise the limits of shared memory; once, at open. */
bool matmul_prepare(struct dev *d);
bool packed_few_rows_prepare(struct dev *d);
bool packed_many_rows_prepare(struct dev *d);
bool hopper_many_rows_prepare(struct dev *d);
bool hopper_attend_prepare(struct dev *d);
bool attend_prepare(struct dev *d);
bool attend_width(int32_t E);        /* true: a kernel exists for heads of width E */

/* True if the producer of x should itself write FP8, because only the product with w reads x. */
static inline bool wants_x8(const struct dev *d, const struct weight *w, int T)
{
	return d->product.x8 && T > FEW_ROWS && w && w->held == HELD_W8;
}

static inline bool is_f32(enum place p)
{
	return p == P_X || p == P_Z || p == P_LOGITS;
}

#endif
