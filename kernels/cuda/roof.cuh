/* roof.cuh - the least time that a batch takes (roof.cu). */
#ifndef CUDA_ROOF_CUH
#define CUDA_ROOF_CUH

#include "kernels/backend.h"
#include "kernels/net.h"

/* The measured rates of this GPU, and the least cost of a batch of the model (roof.cu). */
struct roof {
	double bytes_per_ns, macs_per_ns, copied_per_ns;
	double token_macs, head_macs;    /* multiply-adds: per token with the layers' weights, per result */
	double layer_bytes, head_bytes;
	int32_t windows, window;         /* number of layers with a window; the longest window */
};

bool roof_measure(struct dev *d, const struct net *n, const struct sr_limits *l, unsigned char *host_kv);
void roof_count(const struct dev *d, struct sr_batch *b);            /* fills the batch's statistics */

#endif
