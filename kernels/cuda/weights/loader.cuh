/* loader.cuh - reading files for weights (loader.cu), for weights.cu alone. */
#ifndef CUDA_LOADER_CUH
#define CUDA_LOADER_CUH

#include "pack.cuh"

#define BUFFERS 8
#define BUFFER  ((size_t)2 << 20)    /* most bytes per read */

struct read_buffer {
	struct file_piece piece;
	unsigned char *host, *device;
	cudaEvent_t copied;
	bool reading, copying;
};

struct loader {
	const struct sr_source *src;
	unsigned char *pinned;
	struct read_buffer buffer[BUFFERS];
	int turn, n_reading;
	int integrated;              /* the GPU shares the host's memory, and reads weights there */
	int n_scales;                /* reads in flight that are pieces of scales */
	int32_t *order;              /* host copy, until it is on the device; or NULL */
};

/* Takes one finished read and queues its copy and conversion.  Returns 0 or -errno. */
int forward_one(struct dev *d);

/* Reads a whole extent of `all` rows, as many at a time as a buffer holds; `step` rows stay together. */
int read_rows(struct dev *d, const struct sr_tensor *t, const struct sr_extent *of, int32_t all, int32_t step,
	struct file_piece p, char *err, size_t errlen);

/* Reads what is small into the next buffer, on the host, until the next read; no other is in flight then.  NULL: it
 * cannot be read. */
const void *read_small(struct dev *d, const struct sr_extent *of);

void loader_wait(struct dev *d);     /* after a failed load: no read may write to the buffers any more */
void loader_free(struct dev *d);

#endif
