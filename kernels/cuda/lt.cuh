/* lt.cuh - products of many rows by cuBLASLt: the interface of lt.cu for backend.cu and matmul.cu. */
#ifndef CUDA_LT_CUH
#define CUDA_LT_CUH

#include "device.cuh"

#define LT_WORK ((size_t)32 << 20)   /* bytes of work space: NVIDIA's recommendation for Hopper */
#define LT_OWN  ((int64_t)96 << 20)  /* estimate of what the library and its kernels' code take besides */

/* Is the library usable?  The first call reports it on stderr. */
bool lt_there(void);

/* Call it after the weights are loaded.  Chooses a kernel for each product of the network for up to `tokens`
 * or `logit_rows` rows, and executes it once.  Does nothing without work space.  False: d->fault.why. */
bool lt_open(struct dev *d, const struct net *n, int32_t tokens, int32_t logit_rows);
void lt_close(struct dev *d);

/* lt_can: does a kernel for T rows exist?  If so, lt_matmul computes y[T][n] = x[T][k] w^T + bias.  Up to
 * lt_rows() rows of y are written, and of x read. */
bool lt_can(const struct weight *w, int32_t T);
void lt_matmul(struct dev *d, void *y, const void *x, const struct weight *w, int32_t T);
int32_t lt_rows(int32_t T, int32_t most);

#endif
