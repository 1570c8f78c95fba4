/* calibrate.h - runs the transformer over one text, a layer at a time, in f32.  It measures the inputs of
 * each matrix, and how well the model predicts.  For `slipring quantize`, which never has more than one
 * layer in memory.  The verbs are those of kernels/cpu/kern.h.
 */
#ifndef CALIBRATE_H
#define CALIBRATE_H

#include <stdint.h>

#include "awq.h"
#include "kernels/model.h"

enum { IN_QKV, IN_O, IN_MLP, IN_DOWN, N_INPUTS };
enum { M_Q, M_K, M_V, M_O, M_GATE, M_UP, M_DOWN, N_MATRICES };

/* One layer as floats; vectors that it lacks are NULL. */
struct layer {
	float *norm1, *norm2, *q_bias, *k_bias, *v_bias, *o_bias, *q_norm, *k_norm;
	struct matrix m[N_MATRICES];
};

struct calibrate;

/* For T positions of one sequence.  Below, D is d_model and F is d_ff.  0 or -ENOMEM. */
int  calibrate_create(struct calibrate **out, const struct sr_model *m, int32_t T);
void calibrate_destroy(struct calibrate *c);

/* Pass x [T][D] through layer l.  The inputs of its matrices at the first half of the positions are added
 * to in[N_INPUTS], unless it is NULL.  (The second half serves to judge the result.) */
void calibrate_layer(struct calibrate *c, int32_t l, const struct layer *w, float *x, struct moments *in);

/* Logits of rows from .. T-2 for a part of the vocabulary: head [n][D], n <= 2 F, starting at id `first`.
 * For each row their log-sum-exp is merged into sum[T], and the logit of id[t + 1], if it is among them, is
 * stored in hit[T].  x: after the last norm.  sum starts as minus infinity. */
void calibrate_head(struct calibrate *c, const struct matrix *head, int32_t first, const float *x,
                    int32_t from,
                    const int32_t *id, double *sum, double *hit);
void calibrate_norm(struct calibrate *c, const float *w, const float *x, float *y);

#endif
