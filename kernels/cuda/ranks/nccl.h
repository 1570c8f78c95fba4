/* nccl.h - what Slipring calls of NCCL, with prototypes of its own: the library is looked for at run time.  Names,
 * numbers and layouts are those of NCCL 2.14 and later. */
#ifndef CUDA_NCCL_H
#define CUDA_NCCL_H

#include <cuda_runtime.h>
#include <stddef.h>

typedef struct ncclComm *nccl_comm;

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 };
enum { NCCL_UINT8 = 1 };             /* ncclDataType_t */
enum { NCCL_OLDEST = 21400 };        /* the first with ncclCommInitRankConfig */

struct nccl_id { char bytes[128]; };

/* The beginning of ncclConfig_t as 2.14 has it.  A newer library copies `size` bytes and fills in the rest. */
struct nccl_config {
	size_t size;
	unsigned magic, version;     /* 0xcafebeef, 21400 */
	int blocking;                /* 0: calls return at once, and GetAsyncError says how they went */
};

struct nccl_calls {
	int (*GetVersion)(int *);
	int (*GetUniqueId)(struct nccl_id *);
	int (*CommInitRankConfig)(nccl_comm *, int world, struct nccl_id, int rank, struct nccl_config *);
	int (*CommGetAsyncError)(nccl_comm, int *);
	int (*AllGather)(const void *from, void *to, size_t each, int type, nccl_comm, cudaStream_t);
	int (*CommAbort)(nccl_comm);
	const char *(*GetErrorString)(int);
};

#endif
