/* backend.cuh - a back end, as its own files see it: backend.cu, layout.cu. */
#ifndef CUDA_BACKEND_CUH
#define CUDA_BACKEND_CUH

#include "device.cuh"

enum { IDLE, LAUNCHED, DONE };

struct flight {                      /* a batch in flight */
	struct sr_batch batch;
	int state;
	uint32_t turn;               /* value of signal->done when it has ended */
	struct signal *signal;       /* pinned, as are first_cmd and next_cmd */
	int32_t *first_cmd, *next_cmd; /* [cmds] from step_fill() */
	uint64_t launched_ns;
	cudaEvent_t ended;           /* for arm() */
	int armed_fd;                /* eventfd that a driver thread writes at the end; -1: none */
};

struct sr_backend {
	struct dev d;
	struct sr_model m;           /* a copy; m.layer is a copy too */
	struct sr_limits lim;
	struct net net;
	struct flight flight[FLIGHTS];
	float    freq[SR_KINDS][WIDE_KEYS / 2]; /* of rope; kept until the copy to the device is done */
	int32_t null_block;          /* kept until its copy is done */
	uint32_t looks;
	cudaStream_t waiting;        /* waits for the end of batches that are armed */
	bool said;                   /* the loss of the device was reported */
	struct xid *xid;             /* or NULL */
	uint64_t ended_ns;           /* end of the batch that ended last */

	unsigned char *weights, *scratch, *slots, *kv; /* device */
	unsigned char *pinned, *host_kv;
	size_t given;                /* bytes at lim.batches */
	bool registered;             /* they are */
	unsigned char *staging;      /* in scratch: raw weights during open */
	size_t kv_block;             /* bytes */
};

/* layout.cu.  At NULL each returns the bytes that it takes. */
size_t lay_scratch(struct sr_backend *b, unsigned char *base);
size_t lay_slots(struct sr_backend *b, unsigned char *base);
size_t lay_pinned(struct sr_backend *b, unsigned char *base);
size_t logit_rows(const struct sr_backend *b);
bool any_weight(const struct sr_model *m, bool (*is)(const struct sr_tensor *)); /* of those that are multiplied */

#endif
