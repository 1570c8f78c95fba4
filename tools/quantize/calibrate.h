/* calibrate.h - runs one text through a model, a layer at a time. It measures the inputs of each matrix,
 * and how well the model predicts. For `slipring quantize`, which never has more than one layer in
 * memory.
 *
 * A layer is computed by the CPU back end, as a model of this layer alone whose table of
 * embeddings is x. So every family that runs can be calibrated, and there is no second transformer.
 */
#ifndef CALIBRATE_H
#define CALIBRATE_H

#include <stddef.h>
#include <stdint.h>

#include "awq.h"
#include "kernels/model.h"

/* What matrices multiply. MIXER: q, k, v, a gate, and what makes latent queries and keys; Q: queries that
 * come from latent ones; FFN: gate and up, also of a shared expert; DOWN: likewise. */
enum { IN_MIXER, IN_Q, IN_O, IN_FFN, IN_DOWN, N_INPUTS };

/* Of a layer.  Those that it lacks have k == 0. */
struct inputs {
	struct moments of[N_INPUTS];
	int32_t n_experts;
	struct moments *expert, *expert_down;  /* [n_experts], of the tokens that chose each */
};

int  inputs_create(struct inputs *in, const struct sr_model *m, int32_t l);    /* 0 or -ENOMEM */
void inputs_destroy(struct inputs *in);

/* A text of T tokens.  file: descriptors by the numbers that extents use. */
struct calibrate { int32_t n_tokens, threads; };

/* Pass x [T][D] through layer l of m. The inputs of its matrices at the first half of the positions are
 * added to `in`, unless it is NULL. (The second half serves to judge the result.) 0, or -errno and a
 * sentence. */
int  calibrate_layer(const struct calibrate *c, const struct sr_model *m, const int *file, int32_t l,
                     float *x, struct inputs *in, char *err, size_t errlen);

/* The last norm of T rows, in place.  w, bias (or NULL): [D]. */
void calibrate_norm(const struct calibrate *c, const struct sr_model *m, const float *w, const float *bias,
                    float *x);

/* Logits of rows from .. T-2 for a part of the vocabulary: head [n][D], starting at id `first`. For each
 * row their log-sum-exp is merged into sum[T], and the logit of id[t + 1], if it is among them, is stored
 * in hit[T]. x: after the last norm. sum starts as minus infinity. 0 or -ENOMEM. */
int  calibrate_head(const struct calibrate *c, const struct sr_model *m, const struct matrix *head,
                    int32_t first, const float *x, int32_t from, const int32_t *id, double *sum, double *hit);

#endif
