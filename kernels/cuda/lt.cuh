/* lt.cuh - products of many rows by cuBLASLt: what backend.cu and matmul.cu call of lt.cu. */
#ifndef CUDA_LT_CUH
#define CUDA_LT_CUH

#include "device.cuh"

#define LT_WORK ((size_t)32 << 20)   /* bytes of work space: what NVIDIA recommends for Hopper */
#define LT_OWN  ((int64_t)96 << 20)  /* what the library and its kernels' code take beside it: an estimate */

/* Is the library to be had?  Said on stderr the first time. */
bool lt_there(void);

/* After the weights are there: choose a kernel for each product of the network and up to so many rows, and
 * execute it once.  Nothing to do where there is no work space.  False: d->why. */
bool lt_open(struct dev *d, const struct net *n, int32_t tokens, int32_t logit_rows);
void lt_close(struct dev *d);

/* Is there a kernel for T rows, and then: y[T][n] = x[T][k] w^T + bias.  Up to lt_rows() rows of y are
 * written, of x read. */
bool lt_can(const struct weight *w, int32_t T);
void lt_matmul(struct dev *d, void *y, const void *x, const struct weight *w, int32_t T);
int32_t lt_rows(int32_t T, int32_t most);

#endif
