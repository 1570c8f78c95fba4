/* device.cuh - what the files of the CUDA back end share.
 *
 *	backend.cu   the door: device memory, batches, launch and poll
 *	graph.cu     steps of single tokens as graphs, captured at open
 *	roof.cu      the least time that a batch takes, for statistics
 *	step.cu      the first and the last kernel of a batch: rows become lists, commands are carried out
 *	weights.cu   weights from files to the device, which pack.cu brings into the form it holds
 *	rows.cu      embed, norms, activation: a block per row
 *	matmul.cu    products, on tensor cores: who does which, and many rows
 *	few.cu       the same of up to 64 rows; packed_few.cu, packed_many.cu of 4- and 8-bit weights
 *	hopper_many.cu, hopper_attend.cu  products of many rows, attention of runs, on sm_90a
 *	lt.cu        products of many rows by cuBLASLt, where that is to be had
 *	attend.cu    rope and KV store; attention of single tokens and of runs
 *	sample.cu    from logits to a token
 *
 * Thread   all of it is core's one thread, but for the driver's own.
 * Stream   one: what is launched first is executed first, so one set of places is enough for all
 *          batches in flight.
 * Errors   every CUDA call goes through cuda_ok(); after one has failed nothing is launched any
 *          more and poll() says -EIO.
 * Memory   all of it is taken by open(), as plan() said.
 *
 * Types    X, Z, LOGITS f32; Y, QKV, A, GU, ACT bf16; weights bf16 or packed (packed.cuh), vectors and
 *          biases f32.
 * KV       [block][L][G][K, V][BLOCK][E] bf16, or e4m3 with the layer's k_scale and v_scale: what one head
 *          reads of a block is one run.
 */
#ifndef CUDA_DEVICE_CUH
#define CUDA_DEVICE_CUH

#include <stddef.h>

#include "kernel.cuh"
#include "kernels/backend.h"
#include "kernels/ops.h"

#define BLOCK 16                     /* tokens of a KV block */
#define TILE_ROWS 64                 /* (token, query head) pairs in one piece of a run's attention */

enum held { HELD_VECTOR, HELD_BF16, HELD_W4, HELD_W8 };
struct packed {                      /* packed.cuh has the order */
	uint32_t *words, *scale;
	int32_t N, K, width;         /* outputs, inputs; outputs rounded up to whole strips */
	int32_t group;               /* slabs to a scale */
};
struct weight {
	struct weight *next;         /* all of them, to free */
	enum held held;
	int32_t n, k;
	bf16  *mat;                  /* BF16: [n][k] */
	float *vec;                  /* VECTOR: [k] */
	float *bias;                 /* [n] or NULL */
	bf16  *bias16;               /* the same, for cuBLASLt, where that is used */
	int32_t *order;              /* [k] act-order: packed input i is input order[i] of x; NULL: as they are */
	int32_t *where;              /* [k] the inverse, for loading */
	const struct weight *feeds;  /* of a norm, and of gate+up through act_mul: the product that reads what
	                                it makes; or NULL */
	struct lt_use *lt;           /* how cuBLASLt multiplies by it, or NULL (lt.cu) */
	struct packed packed;        /* W4, W8 */
};

/* ---- a batch, as the kernels see it ------------------------------------------------------------ */

#define FLIGHTS 2                      /* batches in flight */

/* How the host sees it end; in pinned memory, one for each batch in flight. */
struct signal {
	uint32_t done;               /* the turn of the batch that ended last */
	uint64_t begin_ns, end_ns;   /* its first and last kernel, by the device's own clock: what lies between
	                                the end of one batch and the begin of the next, the device was idle */
};

/* A batch before it begins: what core filled, all of it in pinned memory. */
struct head {
	int32_t n_rows, n_chains;
	const struct sr_row *row;
	const int32_t *token;
	const struct sr_cmd *cmd;
	const uint32_t *word;
	const int32_t *chain, *next; /* the first command of each slot; the next of the same slot, or -1 */
	const uint32_t *mask;
	struct sr_result *result;
	struct sr_top *top;
	struct signal *signal;
};

/* The batch being computed, on the device. */
struct now {
	uint32_t turn;               /* batches that have ended; the head is heads[turn % FLIGHTS] */
	const uint32_t *mask;
	struct sr_result *result;
	struct sr_top *top;
	struct signal *signal;
};

struct token { int32_t id, position, slot; };    /* id may be SR_LAST */
struct pick {                        /* one result */
	int32_t t;                   /* the token it comes from */
	int32_t result;              /* where it goes; -1: padding */
	int32_t id;                  /* scored, or -1: drawn */
	int32_t position;            /* of the scored or drawn token */
	int32_t slot, mask;          /* -1: no mask */
	int32_t n_top, rank;         /* rank: wanted */
};
struct work {                        /* one token's query against positions from .. to-1 */
	int32_t t;                   /* -1: padding */
	int32_t from, to;
	int32_t first, pieces;       /* of this token: works first .. first + pieces - 1 */
};
struct run { int32_t t, n; };        /* tokens t .. t+n-1 of one sequence; t -1: padding */

/* What begin_kernel makes of a head; at the same addresses for every batch, so that a graph knows them. */
struct lists {
	struct token *token;         /* [tokens] */
	struct pick *pick;           /* [rows + scores] */
	struct work *work;           /* [most_works] */
	struct run *run;
	struct sr_row *row;          /* [rows] a copy */
	int32_t *token_of, *pick_of; /* [rows] the first of each row */
};

/* For how many of each the kernels are launched: as many as there are, or a graph's. */
struct step { int32_t n_tokens, n_picks, n_works, n_runs, n_chains; };

struct tail { uint32_t turn; int32_t cmd; };

/* ---- a slot -------------------------------------------------------------------------------------- */

struct slot {
	struct sr_sampling s;
	int32_t last;                /* the token drawn last */
	int32_t counted;             /* a history was sent: keep it */
	int32_t n_prompt, n_history, n_words;
};

/* Lists lie one after the other as they came: word[0] = enum sr_list, word[1] = n, n words. */
struct slots {
	struct slot *slot;           /* [slots + 1] */
	int32_t  *table;             /* [slots + 1][table_cap] */
	int32_t  *history;           /* [slots + 1][history_cap], the prompt's ids first */
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

/* The rates that this GPU reaches, and what a batch of the model costs at least (roof.cu). */
struct roof {
	double bytes_per_ns, macs_per_ns, copied_per_ns;
	double token_macs, head_macs;    /* multiply-adds: of a token by the layers' weights, of a result */
	double layer_bytes, head_bytes;
	int32_t windows, window;         /* layers that attend to a window; the longest */
};

struct dev {
	struct sr_backend *b;
	const struct sr_model *m;
	cudaStream_t stream;
	int32_t processors;
	bool deterministic;          /* one kernel for any number of rows, tokens alone as runs of one */
	bool use_lt;                 /* cuBLASLt for many rows */
	int32_t capability;          /* 80, 89, 90, .. */
	int32_t shared_bytes;        /* of a processor */
	char bus[32];                /* PCI address */
	bool lost;                   /* a call has failed: all after it would */
	cudaError_t why_code;
	char why[256];

	unsigned char *arena, *arena_at, *arena_end; /* weights */
	struct weight *weights;
	struct loader *loader;       /* used while opening; weights_free() frees it */

	void  *place[P_LOGITS + 1];
	int32_t width[P_LOGITS + 1];
	float *freq[2];              /* [dims / 2] of both rope settings */
	float2 *angle[2];            /* [tokens][dims / 2] cos, sin; NULL: unused */
	float *part;                 /* [most_works][H][E + 2]: o, then max and sum */
	uint32_t *joined;            /* [most_works][G] pieces of a token that are done, zero between kernels */
	float    *work;              /* [logit_rows][V] */
	uint32_t *count;             /* [logit_rows][V], all zero between kernels */

	struct lt *lt;               /* NULL: not used */
	void *lt_work;               /* LT_WORK bytes */
	float *few_part;             /* few_part_bytes(): sums of parts of tiles */
	uint32_t *arrived;           /* [arrived_n] of each tile, zero between kernels */
	size_t arrived_n;
	unsigned char *hopper_work;  /* hopper_work_bytes(), NULL: not used */
	uint32_t *x8;                /* [tokens][widest / 4] in e4m3; NULL: not wanted */
	float *x8_scale;             /* [tokens] */
	const struct weight *made_for; /* x has been left as this one reads it, in 8 bits or its order; or NULL */
	const struct weight *after;  /* what the product before this verb feeds: see struct weight */
	bf16 *ordered;               /* [tokens][widest], x in a weight's order; NULL: no weight has one */

	unsigned char *kv;
	bool kv_f8;                  /* e4m3, else bf16 */
	size_t kv_half;              /* elements of K of one block and head */
	size_t kv_block;             /* bytes, of all layers */
	struct roof roof;
	int64_t kv_rows;             /* of a head's width, of all blocks, K and V */

	struct slots slots;
	int32_t null_slot;           /* of padding; its table has the null block */
	struct tail *tail;           /* [slots + 1] of the host, while commands are chained */
	uint32_t turn;               /* batches launched */
	struct head *heads;          /* [FLIGHTS] pinned */
	struct now *now;
	struct lists list;
	struct step step;            /* being launched */
	struct graphs *graphs;       /* NULL: none */
};

static inline __host__ __device__ size_t kv_at(size_t half, int32_t L, int32_t G, int32_t block, int l, int g)
{
	return (((size_t)block * (size_t)L + (size_t)l) * (size_t)G + (size_t)g) * 2 * half;
}

/* Notes the first error and its place.  False: there was one, now or before. */
bool cuda_ok(struct dev *d, cudaError_t e, const char *what);

/* step.cu */
int32_t most_works(const struct dev *d, int32_t singles);            /* at most */
int32_t most_runs(const struct dev *d, const struct sr_limits *l);
void step_fill(struct dev *d, const struct sr_batch *b, int32_t *chain, int32_t *next, struct signal *s);
void step_begin(struct dev *d);
void step_end(struct dev *d);

/* backend.cu */
void batch_empty(struct sr_backend *b);      /* the next batch to be computed is one of padding only */
void batch_compute(struct sr_backend *b);    /* from its first to its last kernel, as d->step says */

/* roof.cu */
bool roof_measure(struct dev *d, const struct net *n, const struct sr_limits *l, unsigned char *host_kv);
void roof_count(const struct dev *d, struct sr_batch *b);            /* fills its statistics */

/* graph.cu */
int32_t graph_sizes(const struct sr_limits *l, int32_t *size);       /* how many; size[64]: rows, ascending */
int64_t graph_bytes(const struct dev *d, const struct sr_limits *l); /* what they may take, about */
bool graph_capture(struct dev *d, const struct sr_limits *l);
bool graph_launch(struct dev *d, const struct sr_batch *b);          /* false: there is none for this batch */
void graph_free(struct dev *d);

/* weights.cu */
size_t loader_pinned(uint32_t slack);
size_t loader_staging(void);
bool loader_create(struct dev *d, const struct sr_source *src, unsigned char *staging, char *err,
	size_t errlen);
int  loader_finish(struct dev *d, char *err, size_t errlen); /* all has been read, and lies on the device */
int64_t weight_add(struct dev *d, struct weight **out, const struct sr_tensor *const *part,
                   const struct sr_tensor *const *bias, int n, enum share how,
                   const struct sr_source *src, char *err, size_t errlen);
int64_t weight_bytes(const struct weight *w);               /* as held, without its bias */
void weights_free(struct dev *d);                           /* and the loader */

/* pack.cu */
struct piece;
bool pack_layout(int32_t type, int32_t *weights, int32_t *bytes);   /* of a block; false: not known */
bool pack_rows(struct dev *d, const struct piece *p, const unsigned char *data);

/* Products; T and rows of few at most 64, and they work as they would for `rows`. */
#define FEW_ROWS 64
const bf16 *in_order(struct dev *d, const bf16 *x, const struct weight *w, int T);
void packed_few(struct dev *d, void *y, bool f32, const bf16 *x, const struct weight *w, int T, int rows);
/* made: x8 has x already. */
void packed_many(struct dev *d, void *y, bool f32, const bf16 *x, const struct weight *w, int T, bool made);
bool hopper_attends(const struct dev *d);    /* the runs of this model's heads */
int32_t hopper_attend_rows(void);            /* (token, query head) pairs in one piece of a run then */
void hopper_attend(struct dev *d, int l, float scale, float cap, int window);
/* false: not it */
bool hopper_many(struct dev *d, void *y, bool f32, const void *x, const struct weight *w, int T);
size_t hopper_work_bytes(const struct dev *d);
size_t packed_part_bytes(const struct dev *d);
void dense_few(struct dev *d, void *y, bool f32, const bf16 *x, const struct weight *w, int T, int rows);
void dense_many(struct dev *d, void *y, bool f32, const bf16 *x, const struct weight *w, int T);
size_t few_part_bytes(const struct dev *d);  /* of any product of few rows */
size_t few_tiles(int32_t N);                 /* likewise, at most */
bool few_prepare(struct dev *d);

/* The verbs. */
void embed(struct dev *, const struct weight *, float, int);
void add_norm(struct dev *, int, const struct weight *, const struct weight *, float, int);
void pick_norm(struct dev *, const struct weight *, float, int, int);
void act_mul(struct dev *, enum sr_act, int);
void matmul(struct dev *, enum place, enum place, const struct weight *, int);
void angles(struct dev *, int);
void rope_store(struct dev *, int, const struct sr_rope *, const struct weight *, const struct weight *,
	float, int);
void attend(struct dev *, int, float, float, int, int);
void sample(struct dev *, float, int, int);
void put(struct dev *, enum place, const float *, int);
void get(struct dev *, enum place, float *, int);

/* Raise the limits of shared memory, once. */
bool matmul_prepare(struct dev *d);
bool packed_few_prepare(struct dev *d);
bool packed_many_prepare(struct dev *d);
bool hopper_many_prepare(struct dev *d);
bool hopper_attend_prepare(struct dev *d);
bool attend_prepare(struct dev *d);
bool attend_width(int32_t E);        /* is there a kernel for heads of this width? */

/* True if the producer of x should write FP8 at once, because only the product with w reads x. */
static inline bool wants_x8(const struct dev *d, const struct weight *w, int T)
{
	return d->x8 && T > FEW_ROWS && w && w->held == HELD_W8;
}

static inline bool is_f32(enum place p)
{
	return p == P_X || p == P_Z || p == P_LOGITS;
}

#endif
