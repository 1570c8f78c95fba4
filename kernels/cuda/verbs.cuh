/* verbs.cuh - the operations of a forward pass that work on rows (rows.cu), and sampling (sample.cu).
 * Products: product.cuh; rope and attention: attend.cuh. */
#ifndef CUDA_VERBS_CUH
#define CUDA_VERBS_CUH

#include "kernel.cuh"
#include "kernels/ops.h"

void embed(struct dev *, const struct weight *, float, int);
void add_norm(struct dev *, int, const struct weight *, const struct weight *, enum sr_norm, float, float, int);
void pick_norm(struct dev *, const struct weight *, enum sr_norm, float, int, int);
void act_mul(struct dev *, enum sr_ffn, enum sr_act, float, int, int);

/* Layers with a state, and the gate of attention (recur.cu). */
void recur(struct dev *, int, const struct sr_delta *, const struct recur_weights *, float, int);
void attend_gate(struct dev *, const struct sr_attn *, int);
int recur_check(const struct sr_model *m, char *err, size_t errlen); /* 0, or -ENOTSUP: a shape that it does not compute */
bool recur_prepare(struct dev *d);           /* once, at open */
size_t state_bytes(const struct sr_model *m); /* of one sequence; 0: no layer has a state */

/* Where tokens are drawn. */
struct draw_space {
	struct sr_masks masks;       /* pinned; core writes them at any time */
	float    *candidates;        /* [logit_rows][n_vocab] */
	uint32_t *count;             /* [logit_rows][n_vocab], all zero between kernels */
};

void sample(struct dev *, float, int, int);

#endif
