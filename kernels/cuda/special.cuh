/* special.cuh - what makes this back end fast and has something plainer behind it: each can be switched off by
 * name, with SLIPRING_CUDA_WITHOUT=name,name or by the check at open (check.cu).  What is left computes all. */
#ifndef CUDA_SPECIAL_CUH
#define CUDA_SPECIAL_CUH

#include <stddef.h>
#include <stdint.h>

#include "kernels/net.h"

struct dev;

enum special {
	SPECIAL_EARLY_START,         /* without: each kernel starts when the one before has ended */
	SPECIAL_GRAPHS,              /* steps are launched kernel by kernel */
	SPECIAL_LT,                  /* cuBLASLt; own kernels multiply */
	SPECIAL_HOPPER_MANY,         /* products of many rows are those of all GPUs */
	SPECIAL_HOPPER_ATTEND,       /* so is attention of runs */
	SPECIAL_W8A8,                /* activations stay bf16 beside FP8 weights */
	SPECIAL_DENSE_FEW,           /* few rows are multiplied as many; bf16 */
	SPECIAL_PACKED_FEW,          /* the same, 4 and 8 bits */
	SPECIAL_PIECES,              /* a token's attention is not divided among blocks */
	SPECIAL_RUN_PIECES,          /* nor is a run's */
	SPECIAL_ATTEND_ONE,          /* single tokens are attended to as runs of one */
	SPECIAL_W4A8,                /* activations stay bf16 beside weights of 4 bits */
	SPECIAL_SAMPLE_BLOCKS,       /* a block samples a whole row */
	N_SPECIAL
};

const char *special_name(int which); /* "early_start", .. */

/* Names with commas between, or NULL.  Returns 0 and their bits in *without, or -EINVAL and a line in err. */
int special_parse(uint32_t *without, const char *names, char *err, size_t errlen);

void special_list(uint32_t without, char *names, size_t size);

/* canary.cu: before anything touches CUDA, each is tried in a child process (canary.h), once for a GPU, a driver, this
 * object and what a model uses.  Adds to *without what traps, hangs or is wrong.  0; -EIO and a line in err. */
int canary_check(const struct sr_model *m, const struct sr_limits *lim, uint32_t *without, char *err, size_t errlen);
extern int canary_patience_ms;       /* with a silent child; tests have less */
void canary_forget(void);            /* what plan() was told; the next plan() or open() asks anew */
int canary_gpu(void);                /* in the child: the GPU of the rank whose child it is; else 0 */
void about_to(const struct dev *d, int special); /* in the child: tells its parent; N_SPECIAL: a plain kernel */

/* check.cu: after the weights are loaded, before the first batch and before graphs.  Returns 0 with the bits of
 * d->without set for what is wrong, or -EIO and a line in err where the plainest kernel is.  CUDA's own errors are in
 * d->fault. */
int self_check(struct dev *d, const struct net *n, const struct sr_limits *lim, char *err, size_t errlen);

#endif
