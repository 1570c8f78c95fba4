/* ranks.cuh - one of several GPUs that hold a model together: how each gets what the others computed (gather.cu). */
#ifndef CUDA_RANKS_CUH
#define CUDA_RANKS_CUH

#include "kernels/cuda/kernel.cuh"
#include "kernels/batch.h"
#include "kernels/ops.h"
#include "kernels/shape.h"
#include "kernels/shared.h"
#include "nccl.h"

struct dev;

struct hall;                         /* where ranks meet: in host memory that all of them map */

struct ranks {
	int32_t rank, world;         /* 0, 0: alone */
	struct sr_shared *shared;    /* what all ranks map: a barrier, then the hall */
	struct hall *hall;           /* its beginning; then places for what ranks publish: [2][world][room] */
	unsigned char *rooms;
	size_t room;                 /* bytes */
	uint32_t *turn;              /* on the device: gathers that are done */
	uint32_t *arrived;           /* blocks of a gather that are done; 0 between kernels */
	nccl_comm comm;              /* NULL: all goes through the host's memory */
	unsigned char *received;     /* [world][slice] on the device, for NCCL; or NULL */
	uint64_t *tag;               /* [logit_rows] tags of masks, as rank 0 found them */
	struct sr_attn kind;         /* of the whole model: all its kinds have these heads */
	uint64_t waited_ns;          /* for other ranks, in batches that have ended */
	int32_t d_ff;                /* of the activations that are gathered next: of the whole model */
};

/* What the ranks share besides batches: bytes of host memory. */
size_t ranks_shared(const struct dev *d);

/* Scratch on the device, and where it lies.  `rows`: of logits at once. */
void ranks_lay(struct dev *d, struct cutter *c, size_t rows);

/* Once, at open: maps the memory that ranks share; after the weights are loaded, waits for the others.
 * False: d->fault. */
bool ranks_open(struct dev *d);
bool ranks_meet(struct dev *d);

/* The host waits for the others.  ranks_alike: 0, or -ENOTSUP and a line in err that names a GPU of another type than rank 0's.
 * ranks_without: what any rank has switched off is off on all; true if that is news to any of them. */
int ranks_alike(const struct dev *d, char *err, size_t errlen);
bool ranks_without(struct dev *d);
void ranks_close(struct dev *d);

/* Verbs.  gather: ops.h.  ranks_embed: X of the rank that has a token's row, on all.  ranks_tags: what rank 0 sees
 * of the masks of results i0 .. i0+R-1; the others draw by it. */
void gather(struct dev *d, enum place p, int T);
void ranks_embed(struct dev *d, int T);
void ranks_tags(struct dev *d, int i0, int R);

/* NCCL (nccl.cu), if every rank has it.  nccl_there: is there a library that can be used?  The first call says why not
 * on stderr.  The others return false if a call failed: d->fault says which.  nccl_id is rank 0's, for nccl_open of
 * all.  nccl_gather: `each` bytes of every rank, in order.  nccl_look: has anything failed since? */
extern int nccl_patience_ms;         /* tests have less */
bool nccl_there(void);
void nccl_forget(void);              /* tests: the next call looks again */
bool nccl_id(struct dev *d, struct nccl_id *id);
bool nccl_open(struct dev *d, const struct nccl_id *id);
bool nccl_gather(struct dev *d, const void *from, void *to, size_t each);
void nccl_look(struct dev *d);
void nccl_close(struct dev *d);

extern size_t ranks_far;             /* bytes of a rank from which on NCCL gathers: 32 KiB; tests have less */

/* Gathers that this rank has reached, for the host: a GPU that hangs makes no progress. */
uint64_t ranks_progress(const struct dev *d);

/* How long the device waited for other ranks since the last call: ns. */
uint32_t ranks_waited(struct dev *d);

/* The part of `width` columns that this rank has: of the activations of the feed-forward. */
static inline int32_t own_columns(const struct ranks *r, int32_t width)
{
	return r->world > 1 ? shape_columns(width, r->rank, r->world).n : width;
}

#endif
