/* one_step.h - for tests that launch and poll by themselves: a batch of one row, and its end. */
#ifndef CUDA_ONE_STEP_H
#define CUDA_ONE_STEP_H

#include "tests/cuda/pair.h"

static inline int wait_for(struct sr_backend *b, int i)
{
	int e;

	for (int looks = 0; !(e = poll_batch(b, i)); looks++)
		assert_true(looks < 1000000);
	return e;
}

static inline void fill_step(struct sr_batch *b, int slot, int first, int32_t token)
{
	clear(b);
	b->row[b->n_rows++] = (struct sr_row){ slot, first, 1, token == SR_LAST ? SR_LAST : 0, 0, 0, 1, 0, 0, 0, 0 };
	if (token != SR_LAST)
		b->token[b->n_ids++] = token;
	b->n_tokens = b->n_results = 1;
}

#endif
