/* awq.h - matrices in AWQ's format: 4 bits per weight, a scale and a zero point for each output and group
 * of inputs, w = (q - zero) * scale.
 *
 * What the paper adds to plain rounding (arXiv 2306.00978): inputs with large activations get more
 * precision.  Input j of a matrix is multiplied by s[j] before rounding, and the layer before it divides
 * by s[j], so that the model stays the same.  s = mean(|x|)^alpha; a search finds alpha.
 */
#ifndef AWQ_H
#define AWQ_H

#include <stdint.h>

struct matrix { int32_t n, k; float *w; };   /* [n][k] */

/* Statistics of the inputs of a matrix, summed over `rows`. */
struct moments {
	int32_t k;
	int64_t rows;
	double *size, *square;         /* [k]: |x|, x^2 */
};

struct awq {
	int32_t n, k, group;           /* group divides k; k is a multiple of 32, n of 8 */
	uint8_t  *q;                   /* [n][k], 0 .. 15 */
	uint8_t  *zero;                /* [n][k/group] */
	uint16_t *scale;               /* [n][k/group], f16 */
};

/* 0 or -ENOMEM. */
int  awq_create(struct awq *a, int32_t n, int32_t k, int32_t group);
void awq_destroy(struct awq *a);

/* Round m into a; m gets the rounded values.  worth: [k] weight of an error at each input, NULL = all
 * equal.  Returns the error as a fraction of m, both as root mean squares. */
double awq_round(struct awq *a, struct matrix *m, const double *worth);

/* Pack as in files: qweight [k][n/8], qzeros [k/group][n/8], scales [k/group][n]. */
void awq_pack(const struct awq *a, uint32_t *qweight, uint32_t *qzeros, uint16_t *scales);

/* Find the scales s[k] with the least error when n matrices with the same inputs x are rounded; returns
 * alpha. */
double awq_search(const struct matrix *const *m, int n, int32_t group, const struct moments *x, float *s);

/* w[.][j] *= s[j] */
void awq_scale_inputs(struct matrix *m, const float *s);

#endif
