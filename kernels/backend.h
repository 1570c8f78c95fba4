/* backend.h - what a device must do.  kernels/cpu, kernels/cuda and kernels/null each
 * fill one struct sr_backend_ops; core/ knows nothing else about them.
 *
 * A back end owns the weights, the KV memory (on the device, and pinned on the host for
 * the second tier), the state of `slots` sequences, and `depth` batches in pinned memory.
 * Commands change a slot's state; a row says only what is new.  The result of a batch is as
 * if it did, in this order:
 *
 *	copies   all KV blocks to the host tier, then all back     (each group in any order)
 *	commands in order                                          (slots do not depend on each other)
 *	rows     in any order: no row reads what another row of its batch writes
 *
 *	batch:   filled by core -> launch() -> read by device -> poll() == 1 -> read by core
 *
 * Launch order is execution order, whatever streams or threads are used.  Core relies on it:
 * it gives a block or a slot to its next owner while an older batch still writes it.
 *
 * A batch holds indices and no addresses, so one of several ranks can be given the same
 * bytes.  C11 and C++17 (nvcc): no _Atomic, designated initialisers, flexible arrays.
 * Shapes are written [slowest][..][fastest].  Times are ns of CLOCK_MONOTONIC.
 */
#ifndef SR_BACKEND_H
#define SR_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "shmring/slipring-sampling.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SR_BACKEND_VERSION 12

/* The number of what is computed.  Two daemons with the same number, model and settings give the same answers to the
 * bit, so one goes on with what the other began, and K,V in a file of one (--kv-save) are read by the other.
 * Releases that compute the same share it.
 *
 * Raise it by hand with every change after which any back end or family may give other bits: the order of a sum, the
 * type of an intermediate value, the layout or rounding of a KV block, a draw. */
#define SR_BITS 1u

/* A hash of SR_BITS and of what else the bits depend on: the results of the C library's functions. */
uint64_t sr_bits(void);

#define SR_LAST    (-1)    /* sr_row.token: the token this slot sampled last */
#define SR_MISS    (-1)    /* sr_result.id: the row's mask was not there; nothing is drawn */
#define SR_NO_ID    (-2)    /* sr_result.id: the mask and the lists leave no id; nothing is drawn */
#define SR_UNDRAWN  (-3)    /* sr_result.id: a guess before it was wrong; nothing is drawn */

struct sr_model;           /* kernels/model.h: shapes, and where each tensor's bytes lie */
struct sr_source;          /* kernels/model.h: reads them */
struct sr_shared;         /* kernels/shared.h */
struct sr_backend;

enum sr_kv_type { SR_KV_BF16, SR_KV_F16, SR_KV_F8, SR_KV_I8, SR_KV_F32 }; /* F32: as computed, for tests */

/* KV blocks come in groups of layers.  The layers of a group look back equally far, so one table of
 * blocks per slot serves them all.  Blocks of all groups have the same size and come from one pool.
 *
 * One group has all layers.  Of several, each group takes the next layers that look back as far as it does,
 * up to `layers` of them (shape_groups in kernels/shape.h).  Core gives a slot no block for what its windows
 * have left, and gives such a block to others.  So entries of a table before the window of the row are
 * stale: what is read through them must have no weight. */
#define SR_GROUPS_MAX 16
struct sr_group {
	int32_t window;        /* most tokens that its layers look back; 0 = all */
	int32_t layers;        /* most layers it has; 0 = all */
	int64_t per_block;     /* bytes of one of its blocks, as plan() says; 0 = not planned */
};

#define SR_WHOLE_MAX 8192      /* tokens of a prompt that is computed whole */

/* Ceilings, fixed at open: knobs move below them, and nothing is allocated later.  A back end
 * keeps one slot and one block more, for the padding rows of captured graphs.  Core uses ids
 * 0 .. slots-1 and 0 .. n_blocks-1. */
struct sr_limits {
	int32_t block_tokens;  /* 16 */
	int32_t n_blocks;      /* KV blocks on the device */
	int32_t n_host_blocks; /* pinned KV blocks of the host tier; 0 = none */
	int32_t seq_blocks;    /* most blocks of one sequence */
	int32_t slots;         /* sequences that can be live */
	int32_t rows;          /* per batch: most rows */
	int32_t tokens;        /*   new tokens, over all rows */
	int32_t scores;        /*   prompt tokens whose log-probability is wanted */
	int32_t cmds;          /*   commands */
	int32_t words;         /*   words of their arguments: at least the lists, the table and
	                            the history of one sequence */
	int32_t copies;        /*   blocks copied between tiers */
	int32_t drafts;        /*   guesses (sr_row.n_draft), over all rows; 0 = none.  A back end may refuse more (-ENOTSUP) */
	int32_t masks;         /* places for masks of guided rows, two for each sequence; 0 = none */
	int32_t vectors;       /* per batch: rows that answer a vector; 0 = pooled rows are not possible */
	int32_t width;         /*   elements of a vector: d_model, or of a model with a classifier its labels */
	int32_t whole;         /* 1: rows are whole prompts, of at most SR_WHOLE_MAX tokens, because the layers look both ways */
	int32_t logit_rows;    /* rows of f32 logits held at once; more are done in slices */
	int32_t kv_type;       /* enum sr_kv_type */
	int32_t deterministic; /* 1: sums that depend on the row alone, as the CPU's always do */
	int32_t self_check;    /* 1: at open special kernels are held to plain ones, where there are some; 2: and
	                          before that they are tried in a process of their own */
	int32_t w4a8;          /* 1: activations become e4m3 beside weights of 4 bits; a back end may refuse it (-ENOTSUP) */
	int32_t eager;         /* 1: no captured graphs, where there would be some */
	int32_t threads;       /* of the worker team; 0 where there is none */
	int32_t worked;        /* 1: core calls work(), its thread is the team's first */
	int32_t rank, world;   /* 0, 1 = alone */
	void   *batches;       /* NULL: its own.  Else where the arrays of its batches and its masks lie, which
	                          all ranks and core map; see batches_cut() */
	struct sr_shared *shared; /* of several ranks: what they share, with sr_need.shared bytes behind it; or NULL */
	int32_t n_groups;      /* 1 and more; a back end may refuse more (-ENOTSUP) */
	struct sr_group group[SR_GROUPS_MAX];
	int32_t n_states;      /* states of sequences (SR_CMD_STATE); 0 for a model whose layers have none */
};

/* Bytes, before anything is opened.  core/plan.c prints the sum with its reasons and
 * picks n_blocks; open() then takes what was planned or fails. */
struct sr_need {
	int64_t weights;       /* as this back end will hold them */
	int64_t scratch;       /* activations and logits at these limits */
	int64_t graphs;        /* captured graphs, library work space; an estimate */
	int64_t slots;         /* state of all slots: tables, counts, lists */
	int64_t per_block;     /* one KV block of the largest group, scales included; on either tier */
	int32_t kinds_in_groups; /* 1: it can keep layers in groups (sr_limits.group); 0: one group of all */
	int64_t pinned;        /* host: batches and bounce buffers, without the host tier */
	int64_t shared;        /* host: what several ranks share besides their batches; 0: nothing */
	int64_t per_state;     /* the state of one sequence, of all layers that have one; 0: none has */
	int64_t avail, total;  /* device memory: free now, and in all; on the CPU the control group's */
};

struct sr_copy {           /* host blocks are numbered from 0, in their own tier */
	int32_t device, host;
	int32_t out;           /* 1 = device to host, 0 = host to device */
};

/* What a slot keeps.  The arguments of a command lie at word[data]. */
enum sr_op {
	SR_CMD_BEGIN,          /* forget everything of this slot but its state; word: struct sr_sampling */
	SR_CMD_LIST,           /* a = enum sr_list; n words; a second list of a kind is appended */
	SR_CMD_HISTORY,        /* n token ids, of which the first a are the prompt; sent only if
	                          penalties or bad words need it, and again after a preemption.
	                          The device itself counts what the slot samples later */
	SR_CMD_BLOCKS,         /* table[a .. a+n) of this group = n block ids */
	SR_CMD_END,            /* the slot is free; a BEGIN needs no END before it */
	SR_CMD_POOL,           /* word: struct sr_pooling; the slot's rows are pooled.  a: from this position on tokens
	                          are of the second type (model.h); 0: none is */
	SR_CMD_STATE,          /* the slot's next row continues state a (-1: none, it is the first) and leaves state
	                          n, which may be a; rows after it continue state n.  No words */
	SR_CMD_KEEP,           /* the slot's next row leaves its state before position n, which lies inside the row, in
	                          state a, too.  No words */
};
enum sr_list {
	SR_LIST_STOP,          /* n ids that may not be drawn before min_position, unless the row's
	                          mask leaves nothing else */
	SR_LIST_BIAS,          /* n/2 pairs: id, f32 added to its logit */
	SR_LIST_ALLOW,         /* n ids: nothing else may be drawn */
	SR_LIST_BAD,           /* sequences, each its length, then its ids: never completed;
	                          of length 1: a banned id */
};
struct sr_cmd { int32_t op, slot, a, n; uint32_t data; int32_t group; }; /* group: of BLOCKS, else 0 */

/* One sequence in a batch: `n` new tokens at positions first .. first+n-1, 1 when it
 * decodes, mostly more when it prefills.  K,V of 0 .. first-1 are in the blocks of the
 * slot's table, which is long enough for first+n. */
struct sr_row {            /* 32 bytes: two to a cache line.  With 28 a step of 256 rows took 5 % longer */
	int32_t slot;
	int32_t first;
	int32_t n;
	int32_t token;         /* its ids are token[token ..], or SR_LAST (n is 1) */
	int32_t n_score;       /* score the ids at first+1 .. first+n_score; if n_score == n, one
	                          id more than n is given, only to be scored */
	int32_t result;        /* its results: result[result ..], n_score, then 1 if it samples */
	uint8_t sample;        /* 1: draw the token of position first+n; it stays as SR_LAST */
	uint8_t n_top;         /* alternatives per result, at most SR_TOP_MAX */
	uint8_t pool;          /* enum sr_pool; 0: the row is not pooled */
	uint8_t n_draft;       /* its last ids are guesses: see below; 0 with `pool`, `mask` or n_score */
	int32_t mask;          /* 0: none.  m: the row is guided, its masks are in places 2m-2 and 2m-1.
	                          Of a pooled row: the number of its vector in the batch */
};

/* Pooled rows.  A prompt whose slot had SR_CMD_POOL is computed in rows with that `pool`, from position 0 on with
 * SR_POOL_MEAN and SR_POOL_FIRST.  Its last row has sample = 1: it draws nothing, and takes no result, but
 * vector[mask] of the batch is the answer, of as many elements as the slot's sr_pooling says (LOGITS: as its
 * SR_LIST_ALLOW has).  A mean is summed in float32 in order of position, then divided: it does not depend on where
 * rows begin. */

/* Guesses.  The last n_draft ids of a row that samples were guessed by core.  The row has n_draft + 1 results, which
 * are the draws for positions first + n - n_draft .. first + n, in order.  Each is what the sequence would have drawn
 * there alone, up to the first that differs from the guess for its position; the results behind that one are
 * SR_UNDRAWN.  The slot keeps (last token, history) what was drawn, and nothing of the guesses.  K,V of a wrong guess
 * and of those behind it stay in the blocks until a later row computes these positions.  Core launches no other row of
 * the slot before it knows the results. */

/* Masks of guided rows: which ids may be drawn.  They belong to the back end, not to a batch, because core
 * writes one while the row that needs it is already being computed.  A mask for an even position is in the
 * first place of its pair, for an odd one in the second.  When the device samples such a row, it looks whether
 * the tag there has the position of the token to be drawn, first + n:
 *
 *	SR_MASK_BITS   id i may be drawn if bit i % 32 of word i / 32 is set; bits from n_vocab on are 0.
 *	               Log-probabilities, rank and alternatives are those after the mask.  If mask and lists
 *	               leave nothing, the result is SR_NO_ID
 *	SR_MASK_ANY    as a row without a mask
 *	id + 1         this id is drawn, whatever logits and lists say.  Core makes up its numbers
 *
 * It has another: the result is SR_MISS.  After SR_MISS and SR_NO_ID the slot is as before (its last token,
 * its history), and the same row may be computed again.  Rows of the sequence that are launched already are
 * computed with any last token; core drops their results.
 *
 * Core writes the tag last, with release.  It writes bits only while no row in flight can find a tag that
 * points to them. */
#define SR_MASK_BITS   0u
#define SR_MASK_ANY    0xffffffffu
#define SR_MASK_NO_TAG UINT64_MAX
struct sr_masks {
	int32_t   words;       /* of a place: (n_vocab + 31) / 32 */
	uint32_t *word;        /* [limits.masks][words] */
	uint64_t *tag;         /* [limits.masks] position << 32 | one of the above; SR_MASK_NO_TAG: no mask */
};

struct sr_top    { int32_t id; float logprob; };
struct sr_result {
	int32_t id;            /* drawn, or the prompt's; SR_MISS, SR_NO_ID */
	float   logprob;       /* natural log of the softmax of the raw logits */
	int32_t rank;          /* 1 = the most likely; 0 unless n_score or n_top asked */
};

struct sr_batch {
	/* core fills these counts and arrays; all in pinned memory */
	int32_t n_copies, n_cmds, n_words, n_rows, n_results;
	int32_t n_ids;             /* in token[] */
	int32_t n_tokens;          /* new ones, over all rows: picks the graph */
	struct sr_copy *copy;      /* [copies] */
	struct sr_cmd  *cmd;       /* [cmds] */
	uint32_t       *word;      /* [words] */
	struct sr_row  *row;       /* [rows] */
	int32_t        *token;     /* [tokens + rows] */

	/* the device fills these */
	struct sr_result *result;  /* [rows + scores + 2 * drafts] */
	struct sr_top    *top;     /* the same [..][SR_TOP_MAX], most likely first */
	float            *vector;  /* [vectors][width] */
	uint64_t begin_ns, end_ns; /* when the device worked on it */
	uint32_t compute_ns, memory_ns, copy_ns; /* least time that its operations, bytes and copies
	                              take at the measured roofs; the largest of them bound it */
	uint32_t ranks_ns;         /* for how long ranks waited for each other; 0: there is one */
	uint32_t cores_ns;         /* what threads would have saved that it left out because others had their cores */
	uint64_t int8_ops, float_ops; /* at least; a multiply-add is two operations; 0: not counted */
	uint64_t bytes, copied;    /* of device memory, and between the tiers; 0: not counted */
	uint64_t check;            /* a hash of what all ranks must have computed alike; 0: not computed */
};

struct sr_backend_ops {
	uint32_t    version;       /* SR_BACKEND_VERSION */
	int32_t     depth;         /* batches in flight: CPU 1, CUDA 2, null any */
	const char *name;

	/* What open() would take.  0, or -ENODEV, -ENOTSUP (a shape or type it cannot compute)
	 * and one line for the operator in err. */
	int (*plan)(const struct sr_model *m, const struct sr_limits *lim,
	            struct sr_need *out, char *err, size_t errlen);

	/* Allocate everything, stream the weights in (repacked on the way), capture graphs. */
	int (*open)(struct sr_backend **out, const struct sr_model *m,
	            const struct sr_source *src, const struct sr_limits *lim,
	            char *err, size_t errlen);
	void (*close)(struct sr_backend *b);

	/* Where masks lie; all tags are SR_MASK_NO_TAG at open.  NULL: it has none, limits.masks is 0. */
	void (*masks)(struct sr_backend *b, struct sr_masks *out);

	/* Batch i < depth.  Core may write it only while it is not launched. */
	struct sr_batch *(*batch)(struct sr_backend *b, int32_t i);

	/* Start batch i and return; a batch without rows is allowed.  0, or -EIO: lost. */
	int (*launch)(struct sr_backend *b, int32_t i);

	/* 1 batch i is done and its results are readable, 0 not yet, -EIO device lost. */
	int (*poll)(struct sr_backend *b, int32_t i);

	/* NULL where the device runs by itself.  If opened as `worked`: compute what is launched
	 * on this thread and its team, and call yield(ctx) between layers, at least every few ms.
	 * When it returns, poll() is 1 or -EIO.  yield may admit and cancel; it may not step,
	 * launch or poll. */
	void (*work)(struct sr_backend *b, void (*yield)(void *ctx), void *ctx);

	/* NULL, or: write 1 to eventfd fd when batch i is done, for a loop that sleeps. */
	int (*arm)(struct sr_backend *b, int32_t i, int fd);

	/* NULL, or: a number that grows with every layer of a batch, so that a long batch can be
	 * told from one that hangs.  Any thread may call it. */
	uint64_t (*progress)(const struct sr_backend *b);

	/* NULL, or where KV block i of the device lies, for a file that outlives the back end; it returns NULL if a block
	 * is not in one piece.  *kind names all that its
	 * bytes depend on besides the model and the limits.  Only while no batch is in flight. */
	void *(*kv)(struct sr_backend *b, int32_t i, const char **kind);

	/* NULL: a device that is lost stays lost.  Else, after launch or poll said -EIO: start it anew.  0: it is
	 * being started, ask again; 1: it is as after open, with nothing in its slots, blocks and batches (core's
	 * masks are as they were); -EIO: it cannot be.  Core also asks while no batch is in flight: 1 then says that
	 * nothing was lost, and 0 that it was. */
	int (*again)(struct sr_backend *b);

	/* NULL, or: the names of the kernels that are switched off, with commas between; "" = none. */
	const char *(*without)(const struct sr_backend *b);
};

/* The one symbol of slipring-<name>.so.  NULL: it does not have this version. */
const struct sr_backend_ops *sr_backend_get(uint32_t version);

/* By name, or the best one present for NULL; NULL and one line in err if there is none. */
const struct sr_backend_ops *sr_backend_find(const char *name, char *err, size_t errlen);

#ifdef __cplusplus
}
#endif
#endif
