/* cpu.h - what the files of the CPU back end share.
 *
 *	backend.c   the door: memory, threads
 *	batches.c   a batch: commands, and rows cut into slices
 *	ops.c       the verbs over a slice, a share for each thread (share.h)
 *	experts.c   those of experts: which compute a token, their products, their sum
 *	recur.c     that of layers with a state
 *	weights.c   reads weights and packs them in the order in which threads stream them
 *	sample.c    from one row of logits to a token
 *	team.c      threads and barriers
 *	memory.c    mappings, and how much memory is left
 *	roof.c      the least time a batch can take
 *	kern.h      inner loops, one table per instruction set
 *
 * Threads  every thread of the team runs forward() over its own struct dev.  Verbs divide the
 *          work by thread number and meet at barriers; enter() in ops.c says when.
 * Slices   a batch is computed SLICE tokens at a time, so activations stay in the caches and
 *          their memory does not grow with the limits.  No result depends on where slices or
 *          chunks begin, because every sum is over one row alone.
 * Solo     with few rows (one activation tile) every thread computes all rows of the row-wise
 *          verbs in its own X, Y and tiles.  That costs less than a barrier.
 */
#ifndef CPU_H
#define CPU_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/batch.h"
#include "kernels/net.h"
#include "kernels/shape.h"
#include "kern.h"
#include "kernels/nodes.h"
#include "sample.h"
#include "team.h"

#define SLICE  512               /* most tokens of one pass through the layers, but for longer whole prompts */
#define SOLO   KERN_TILE         /* most rows that every thread computes for itself */
#define QUERIES 16               /* most queries of one attention item */
#define PARTS  6                 /* most tensors stacked into one weight */
#define HEAD_MAX 512             /* widest head */
#define CONV_MAX 8               /* most inputs of a convolution */
#define LATENT_MAX 1024          /* widest latent key */

enum batch_state { BATCH_IDLE, BATCH_LAUNCHED, BATCH_DONE };

struct part {
	int32_t type, n, n_blocks;   /* as held; outputs; ceil(n / KERN_COLS) */
	int32_t col;                 /* its first output in the stack */
	enum kern_form form;
	size_t block_bytes;
	uint16_t *index;             /* [count][k] of kern_rows, or NULL */
};

struct weight {
	struct weight *next;         /* the list of all weights, to free them */
	int32_t n, k, n_parts;
	int32_t count;               /* 1, or experts */
	unsigned forms;              /* bit per form that its parts multiply with */
	float *vec;                  /* a vector: [k]; then there are no parts */
	float *bias;                 /* [count][n] or NULL */
	struct part part[PARTS];
	uint8_t **share;             /* [threads][PARTS] where a thread's blocks of a part begin: [count][blocks] */
};

/* Each thread has a run of a part's blocks: thread i has [block_from(i), block_from(i+1)). */
static inline int32_t block_from(int32_t n_blocks, int i, int threads)
{
	return (int32_t)((int64_t)n_blocks * i / threads);
}

/* The thread whose run holds a block. */
static inline int block_owner(int32_t n_blocks, int32_t block, int threads)
{
	return (int)((((int64_t)block + 1) * threads - 1) / n_blocks);
}

/* Where a block of a part lies; its owner is known. */
static inline uint8_t *weight_block(const struct weight *w, int part, int32_t expert, int32_t block, int owner,
                                    int threads)
{
	const struct part *q = &w->part[part];
	int32_t first = block_from(q->n_blocks, owner, threads);
	size_t each = (size_t)(block_from(q->n_blocks, owner + 1, threads) - first);

	return w->share[owner * PARTS + part] + ((size_t)expert * each + (size_t)(block - first)) * q->block_bytes;
}

/* Tokens t .. t+n-1 of one sequence, and where its state lies before and after them; from -1: it is new.  After
 * n_keep of them it is left in `keep`, too, unless that is -1. */
struct state_run { int32_t t, n, from, to, keep, n_keep; };

struct slice {
	int32_t n_tokens, n_items, n_stores, n_picks, n_pools;
	int32_t n_runs;              /* 0 if no layer has a state */
	bool    guided;              /* a pick has a mask */
	bool    single;              /* one token of each sequence: no thread reads what another stores */
	/* Each has room for slice_tokens(), pick for twice as many. */
	struct batch_token *token;
	struct token_run *item;      /* of attention, cheap ones first */
	struct token_run *store;     /* tokens of one KV block; one thread stores them all, because
	                                they share words there */
	struct state_run *run;
	struct batch_pick *pick;     /* of tokens of this slice */
	struct batch_pool *pool;
	int32_t *last;               /* with limits.whole: the last position of each token's prompt */
};

struct row_run;

/* Which experts compute which tokens of a slice, as one thread found it; see experts.c. */
struct routing {
	int32_t *id;                 /* [T][top] experts of each token, the best first */
	float   *weight;             /* [T][top] */
	int32_t *own_id;             /* [SOLO][top], solo; else both are of all threads */
	float   *own_weight;
	int32_t *row;                /* [T][top] where in the order by expert */
	int32_t *token;              /* [T * top] of each row */
	int32_t *begin;              /* [n] scratch */
	struct row_run *run;         /* [n] experts that have rows */
	int32_t n_runs, n_tiles;
	float   *scores;             /* [2 n] */
	float   *gathered;           /* [KERN_TILE][d_model] */
};

/* One thread's own state. */
struct dev {
	struct sr_backend *b;
	int32_t  i;                  /* its number */
	unsigned reads, writes;      /* bits of places that other threads' shares touched since the
	                                last barrier */
	unsigned far;                /* of several ranks: bits of places that others may still read */
	uint64_t breathed;           /* when thread 0 last yielded, ns */
	uint8_t *arena, *arena_end;  /* packed weights */
	size_t   arena_size;         /* counted at first, then as mapped */
	float   *x, *y;              /* [SOLO][d_model] solo forms of X and Y */
	uint8_t *tiles[N_FORMS];     /* solo: one tile each; with experts up to SOLO * top */
	struct routing routing;
	float   *attend;             /* scratch of kern.attend */
	uint8_t *turned;             /* and of latent values */
	float   *row;                /* [d_model], with a classifier twice that, [head_dim] or [n_layers * inputs], the longest */
	struct sample_scratch sample;
};

enum { P_TILES = P_LOGITS + 1, P_ANGLES, P_CHOICE, N_PLACES };

/* The machine's rates, and what the model costs; see roof.c. */
struct roof {
	double bytes_per_ns, macs_per_ns; /* 0: not measured */
	double token_macs;           /* of all layers, without attention */
	double score_macs;           /* of all layers, for each position that a query reads; as many for values */
	double int8_share;           /* the part of them that multiplies as int8 */
	double layer_bytes, head_bytes; /* of weights, without experts: see experts_matmul() */
};

/* The least that a batch costs; a multiply-add (mac) is two operations. */
struct cost { double int8_macs, float_macs, bytes; };

struct sr_backend {
	const struct kern *k;
	const struct ops *verbs;     /* of batches: cpu_ops; or a tool's, which call them (tools/quantize/calibrate.c) */
	struct kern       exact;     /* with a KV cache in f32: the table k, but plain C attends */
	struct sr_model   m;         /* a copy, cut for this rank (share.h); m.layer is ours too */
	struct sr_limits  lim;
	struct rank_shape shape;     /* with the floats of a row of each place */
	struct net        net;
	struct team      *team;
	int32_t           n_threads; /* created; each has a share of the weights */
	int32_t           n_active;  /* the first n_active compute this slice */
	struct dev       *dev;       /* [n_threads] */
	struct weight    *weights;
	struct loader    *loader;    /* while opening */

	/* shared by the threads */
	float   *place[P_LOGITS + 1];/* [SLICE][row], but LOGITS [logit_rows][n_vocab] */
	int32_t  first[P_LOGITS + 1];/* of several ranks: this one's first column, where it writes */
	struct rank_part vocab;      /* its rows of the table and the head */
	size_t   shared_bytes;       /* of places that ranks share */
	uint64_t ranks_ns;           /* of this batch: waiting for other ranks; thread 0's */
	uint8_t *tiles[N_FORMS];     /* [SLICE / KERN_TILE] tiles of the widest row; with experts more */
	int32_t *chosen;             /* [SLICE][top] experts of each token, if threads share the work of routing */
	float   *chosen_weight;      /* likewise */
	float   *angle[SR_KINDS];    /* [SLICE][dims] cos, sin; kinds that rotate alike share them */
	float   *freq[SR_KINDS];     /* [dims / 2], likewise */
	struct slice slice[1];
	float   *parts;              /* of attention by spans: [max_split][n_spans][n_heads][kern_part(head_dim)] */
	int32_t  max_split, n_spans; /* most items cut by spans; spans of the longest sequence */
	unsigned made_forms;         /* bit per form that some weight multiplies with */

	/* KV: [n_blocks + 1 + n_host_blocks][layers of a group][n_kv_heads][K, V] */
	uint8_t *kv;
	size_t   kv_size, kv_block;  /* bytes: all, a block */
	size_t   kv_half[SR_KINDS];  /* bytes of K of one head, in a layer of each kind */
	size_t   kv_group[SR_GROUPS_MAX]; /* bytes of a block that the layers of each group take */
	size_t  *kv_at;              /* [n_layers] where a layer begins in a block */
	struct nodes nodes;
	int      n_pools;            /* above 1: `kv` is a pool for each node, each with some of the heads */
	struct kv_pool { uint8_t *at; size_t block; int32_t first, heads; } pool[NODES_MAX];
	struct kv_place *kv_place;   /* [n_layers]; of layers with a state, `at` counts those before */
	float   *states;             /* [n_states][n_state_layers][recur_layer_floats()] */
	int32_t  n_state_layers;

	struct slot *slot;           /* [slots + 1] */
	int32_t      history_cap;    /* ids of a slot */
	struct sr_batch batch;
	struct sr_masks masks;
	struct roof roof;
	struct cost cost;            /* of the batch so far */
	struct memory *memory;       /* all mappings, to unmap them */
	_Atomic int state;           /* of the batch: enum batch_state */
	pthread_mutex_t lock;        /* of armed, and of state becoming BATCH_DONE */
	int      armed;              /* the eventfd to signal, or -1 */
	void (*yield)(void *ctx);
	void *yield_ctx;
	_Atomic uint64_t breaths;    /* times that thread 0 could yield, over all batches */
	struct own *own;             /* the thread that computes if core's thread does not */
	struct toucher *toucher;     /* the thread that faults the KV pool in */
};

const struct sr_backend_ops *sr_cpu_ops(void);
int32_t slice_tokens(const struct sr_backend *b); /* most tokens of a slice */
int32_t logit_rows(const struct sr_backend *b);   /* most rows of logits of one pass */

/* batches.c */
void batches_run(struct sr_backend *b);           /* the one that is launched */

/* ops.c */
extern const struct ops cpu_ops;
void ops_breathe(struct dev *d); /* thread 0: count it, and yield if it is time */

/* attend.c */
void attend_angles(struct dev *d); /* cos and sin of the slice's positions, this thread's share */
void rope_store(struct dev *d, int l, const struct sr_attn *kind, const struct weight *qn, const struct weight *kn,
                float eps, int T);
void attend(struct dev *d, int l, const struct sr_attn *kind, const struct weight *sinks, int T);

/* experts.c */
void experts_route(struct dev *d, const struct sr_experts *x, const struct weight *choice_bias, int T);
void experts_matmul(struct dev *d, enum place y, enum place x, const struct weight *w, int T);
void experts_combine(struct dev *d, const struct sr_experts *x, int shared, const struct weight *mix, int T);
/* Scratch of one thread, or of all (d NULL); most tiles of a slice of T tokens. */
void experts_lay(struct sr_backend *b, struct dev *d, struct cutter *c, size_t T);
size_t experts_tiles(const struct sr_backend *b, size_t T);
/* Of latent keys: a norm of the first part of a row; a matrix for each head. */
void latent_norm(struct dev *d, enum place p, const struct weight *w, float eps, int T);
void latent_heads(struct dev *d, enum place y, int y_step, enum place x, int x_step, const struct weight *w, int T);
void experts_weigh(struct dev *d, const struct weight *w, int T);

/* memory.c */
/* Zeroed address space, aligned to 2 MiB, backed by pages when touched.  NULL: no memory. */
void *memory_map(struct memory **list, size_t size);
void  memory_huge(void *at, size_t size);   /* ask for huge pages, from a mapping's start on */
void  memory_unmap_all(struct memory **list);

/* Bytes free and in all: of the machine, or of the control group with the tightest limit. */
void  memory_left(int64_t *avail, int64_t *total);

/* recur.c */
void recur(struct dev *d, int l, const struct sr_delta *a, const struct recur_weights *w, float eps, int T);
void attend_gate(struct dev *d, const struct sr_attn *kind, int T);
size_t recur_layer_floats(const struct sr_delta *a);

/* roof.c */
void roof_measure(struct sr_backend *b);
void roof_add(const struct sr_backend *b, const struct slice *s, struct cost *c);

/* weights.c.  With out == NULL it only counts, into the arena_size of each dev. */
int64_t weights_add(struct dev *d, struct weight **out, const struct sr_tensor *const *part,
                    const struct sr_tensor *const *bias, int n, char *err, size_t errlen);
struct loader *weights_loader_create(void);
void weights_loader_destroy(struct loader *ld);
/* Read and pack what was added.  0 or -errno and a sentence. */
int  weights_load(struct sr_backend *b, const struct sr_source *src, char *err, size_t errlen);
void weights_free(struct sr_backend *b);
void weights_lookup(const struct sr_backend *b, const struct weight *w, int32_t row, float *dst);

/* a . b, in sixteen sums of one order; n a multiple of 16. */
static inline float dot_of_sixteens(const float *a, const float *b, int32_t n)
{
	float part[16] = { 0 }, sum = 0;

	for (int32_t i = 0; i < n; i += 16)
		for (int32_t j = 0; j < 16; j++)
			part[j] += a[i + j] * b[i + j];
	for (int32_t j = 0; j < 16; j++)
		sum += part[j];
	return sum;
}

#endif
