/* step.cuh - a batch and the slots, as kernels see them; its first and its last kernel (step.cu); steps of
 * single tokens as graphs (graph.cu); the least time that a batch takes (roof.cu). */
#ifndef CUDA_STEP_CUH
#define CUDA_STEP_CUH

#include "kernel.cuh"
#include "kernels/batch.h"
#include "kernels/net.h"

struct dev;

/* ---- a batch ------------------------------------------------------------------------------------- */

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
	const int32_t *first_cmd;    /* [n_cmd_slots] the first command of each slot that has some */
	const int32_t *next_cmd;     /* [cmds] the next of the same slot, or -1 */
	struct sr_result *result;
	struct sr_top *top;
	float *vector;
	struct signal *signal;
};

/* The batch being computed, on the device. */
struct current_batch {
	uint32_t turn;               /* batches that have ended; this one is submitted[turn % FLIGHTS] */
	struct sr_result *result;
	struct sr_top *top;
	float *vector;
	struct signal *signal;
};

struct attend_piece {                /* the query of one token against positions from .. to-1 */
	int32_t t;                   /* -1: padding */
	int32_t from, to;
	int32_t first, pieces;       /* of this token: first .. first + pieces - 1 */
};

/* Tokens t .. t+n-1 of a sequence, whose queries of one KV head fill a tile, against positions from .. to-1. */
struct run_piece {
	int32_t t, n;                /* t -1: padding */
	int32_t from, to;            /* to: at most the last token's position + 1 */
	int32_t first, pieces;       /* of these tokens: first .. first + pieces - 1 of the list */
};

/* The output of begin_kernel.  Its addresses are the same for every batch, so that graphs can hold them. */
struct lists {
	struct batch_token *token;   /* [tokens]; an id may be SR_LAST */
	struct batch_pick *pick;     /* [rows + scores + 2 * drafts] */
	struct attend_piece *piece;  /* [most_pieces] */
	struct run_piece *run;       /* [most_runs] */
	struct sr_row *row;          /* [rows], a copy */
	int32_t *token_of, *pick_of; /* [rows] the first token and pick of each row */
};

/* The counts that the kernels are launched for: those of the batch, or those of a graph.
 * n_cmd_slots: slots that have commands.  n_rows: 0 in a graph.  full_runs: pieces of runs that fill the device;
 * 0: no run is divided.  n_guessed: rows with guesses.  n_pooled: rows that are
 * pooled, but for logits. */
struct step { int32_t n_tokens, n_picks, n_pieces, n_runs, n_cmd_slots, n_rows, full_runs, n_guessed, n_pooled; };

struct last_cmd { uint32_t turn; int32_t cmd; }; /* of a slot, in the batch of a turn */

/* ---- a slot -------------------------------------------------------------------------------------- */

struct slot {
	struct sr_sampling s;
	struct sr_pooling pooling;   /* SR_CMD_POOL */
	int32_t second;              /* and from where tokens are of the second type; 0: none is */
	int32_t last;                /* the token drawn last */
	int32_t counted;             /* a history was sent: append drawn tokens to it */
	int32_t n_prompt, n_history, n_words;
	int32_t from, to;            /* SR_CMD_STATE */
	int32_t keep, keep_at;       /* SR_CMD_KEEP; keep -1: nothing */
};

/* Lists are stored in order of arrival: word[0] = enum sr_list, word[1] = n, then n words. */
struct slots {
	struct slot *slot;           /* [slots + 1] */
	int32_t  *table;             /* [slots + 1][table_cap]: [n_groups][group_cap] */
	int32_t  *history;           /* [slots + 1][history_cap], prompt first */
	uint32_t *word;              /* [slots + 1][word_cap] */
	float    *sum;               /* [slots + 1][d_model] of pooled prompts; NULL: there are none */
	int32_t   table_cap, group_cap, history_cap, word_cap;
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

/* ---- functions ----------------------------------------------------------------------------------- */

int32_t most_pieces(const struct dev *d, int32_t singles);           /* an upper bound */
int32_t run_tokens(const struct dev *d);                             /* most tokens of a run */
int32_t most_runs(const struct dev *d, const struct sr_limits *l);
int32_t most_divided(const struct dev *d);                           /* most pieces of runs, if any is divided */
int32_t full_runs(const struct dev *d, int32_t n_runs);              /* struct step's, of n_runs runs */
void step_fill(struct dev *d, const struct sr_batch *b, const struct sr_limits *l, int32_t *first_cmd,
	int32_t *next_cmd, struct signal *s);
void step_begin(struct dev *d);
void step_end(struct dev *d);

/* By backend.cu, for graphs. */
void batch_empty(struct sr_backend *b);      /* makes the next batch one of padding only */
void batch_compute(struct sr_backend *b);    /* from its first to its last kernel, for the counts in
                                                d->batch.step */

/* graph.cu */
int32_t graph_sizes(const struct sr_limits *l, int32_t *size);       /* returns their number; size[64]:
                                                                        rows, ascending */
int64_t graph_bytes(const struct dev *d, const struct sr_limits *l); /* an estimate of device memory */
bool graph_capture(struct dev *d, const struct sr_limits *l);
bool graph_launch(struct dev *d, const struct sr_batch *b);          /* false: no graph fits this batch */
void graph_free(struct dev *d);

/* ---- the least time of a batch (roof.cu) --------------------------------------------------------- */

/* The measured rates of this GPU, and the least cost of a batch of the model (roof.cu). */
struct roof {
	double bytes_per_ns, macs_per_ns, copied_per_ns;
	double token_macs, head_macs;    /* multiply-adds: per token with the layers' weights, per result */
	double layer_bytes, head_bytes;
	double position, attend_macs;    /* bytes of a position, multiply-adds with it: of a layer, on average */
	int32_t windows, window;         /* number of layers with a window; the longest window */
};

bool roof_measure(struct dev *d, const struct net *n, const struct sr_limits *l, unsigned char *host_kv);
void roof_count(const struct dev *d, struct sr_batch *b);            /* fills the batch's statistics */

#endif
