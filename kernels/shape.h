/* shape.h - what one rank holds of a model, and how wide the places of its activations are.
 *
 * Ranks divide a model in whole units, so shares may be uneven and none is padded:
 *
 *	q             query heads, with the KV heads that they read
 *	k, v, cache   KV heads; with more ranks than KV heads several ranks hold a copy of one
 *	gate, up, o, down    runs of 32 columns of their outputs
 *	embed, head   runs of 64 rows of the vocabulary
 *	norms, X      whole on every rank
 *
 * Pure functions of their arguments; nothing else decides who holds what.  share.h cuts the tensors.
 */
#ifndef SR_SHAPE_H
#define SR_SHAPE_H

#include <stddef.h>
#include <stdint.h>

#include "backend.h"
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHAPE_COLUMNS 32         /* a run of columns */
#define SHAPE_ROWS    64         /* a run of rows of the vocabulary */

struct rank_part { int32_t from, n; };      /* of the whole model's: from .. from+n-1 */

struct rank_shape {
	struct { struct rank_part heads, kv_heads; } kind[SR_KINDS]; /* as sr_model.kind */
	struct rank_part vocab;             /* rows of embed and head */
	int32_t width[P_LOGITS + 1];         /* elements of a token in each place, in the widest layer */
	int32_t inputs, outputs;             /* most of any product */
};

/* Where keys and values of a layer lie: at place `at` of the blocks of a group.  A layer with a state is in group
 * -1, and `at` counts those before it. */
struct kv_place { int32_t group, at; };

/* The most positions that a layer looks back, its own included; 0 = all. */
int32_t shape_window(const struct sr_attn *kind);

/* Elements of a token's keys and values in a layer of this kind, for one KV head. */
static inline int32_t shape_kv(const struct sr_attn *kind)
{
	return kind->latent ? kind->head_dim : 2 * kind->head_dim;
}

/* The place of each layer (out may be NULL); a layer that reads another's cache has that one's.  Returns the
 * places of the largest group, or -EINVAL if the groups are not for this model: a layer is in no group, or a
 * group has no layer. */
int32_t shape_groups(struct kv_place *out, const struct sr_model *m, const struct sr_limits *l);

/* Elements of a token in the largest group, each KV head of each layer; or -1: as shape_groups(). */
int64_t shape_kv_most(const struct sr_model *m, const struct sr_limits *l);

/* The part of n things that a rank has, in whole units; the last unit may be short. */
struct rank_part shape_deal(int32_t n, int32_t unit, int32_t rank, int32_t world);

/* Up to as many ranks as KV heads: each has some KV heads with all their query heads.  More ranks: some
 * share a KV head, and its query heads are dealt among them. */
void shape_heads(const struct sr_attn *kind, int32_t rank, int32_t world, struct rank_part *q,
                 struct rank_part *kv);

/* Columns of n outputs: of gate and up, of an expert's, of o and down. */
struct rank_part shape_columns(int32_t n, int32_t rank, int32_t world);

/* 0, or -ENOTSUP and a line in err: of several ranks, kinds of attention with other heads than the first kind;
 * or so many ranks that this one would hold nothing. */
int shape_of(struct rank_shape *out, const struct sr_model *m, int32_t rank, int32_t world, char *err,
             size_t errlen);

#ifdef __cplusplus
}
#endif
#endif
