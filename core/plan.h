/* plan.h - the memory plan: how many KV blocks fit, and the printed sum with its reasons. */
#ifndef PLAN_H
#define PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/instance/config.h"
#include "core/models/model.h"
#include "kernels/backend.h"

struct plan {
	struct sr_limits limits;      /* for opening the back end; ceilings of the two knobs */
	int32_t max_seqs, batch_tokens; /* initial values of the knobs */
	int64_t ceiling_bytes;        /* part of `need` that the ceilings cost */
	struct sr_need   need;        /* what the back end will take */
	int32_t context;              /* max_model_len, as decided */
	int64_t kv_bytes, host_bytes; /* KV pool; everything else of ours but tier_bytes */
	int64_t whole_block;          /* bytes of a block of all layers */
	int64_t kv_tokens;            /* of sequences of full length, for which the pool is enough */
	int64_t tier_bytes;           /* KV blocks in host memory */
	int64_t state_bytes;          /* states of sequences */
	bool    on_host;              /* the device computes in host memory */
	double  full_seqs;            /* sequences of max_model_len that fit the KV pool */
	char    text[3072];           /* the sum, one item a line, for the log and slipring show */
};

/* 0, or -ENOMEM / -EINVAL and one sentence that names a value which would fit. */
int plan_make(struct plan *out, const struct config *cfg, const struct model *m,
              const struct sr_backend_ops *ops, char *err, size_t errlen);

#endif
