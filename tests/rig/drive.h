/* drive.h - fill and run batches of a back end by hand, for tests.  Add commands and rows, call
 * drive_step to compute them, and read results from the batch until the next one begins. */
#ifndef DRIVE_H
#define DRIVE_H

#include "kernels/backend.h"

struct drive {
	const struct sr_backend_ops *ops;
	struct sr_backend *b;
	struct sr_limits lim;
	struct sr_batch *batch;
	int yields;                /* calls of yield so far */
	char err[512];
};

/* Limits for small tests: 64 blocks, 33 slots, batches of 1100 tokens, no graphs. */
struct sr_limits drive_limits(void);

/* 0, or the error of open(). */
int  drive_open(struct drive *d, const struct sr_backend_ops *ops, const struct sr_model *m,
                const struct sr_source *src, const struct sr_limits *lim);
void drive_close(struct drive *d);

void drive_begin(struct drive *d, int slot, const struct sr_sampling *s);  /* NULL: greedy; its state is new */
void drive_state(struct drive *d, int slot, int from, int to);              /* SR_CMD_STATE */
void drive_keep(struct drive *d, int slot, int state, int position);        /* SR_CMD_KEEP */
void drive_list(struct drive *d, int slot, enum sr_list kind, const void *words, int n);
void drive_history(struct drive *d, int slot, const int32_t *ids, int n, int n_prompt);
void drive_blocks(struct drive *d, int slot, int from, const int32_t *blocks, int n);
void drive_range(struct drive *d, int slot, int first_block, int n);        /* consecutive ones */

/* Add a row.  ids NULL: the slot's last token.  With n_score == n, ids has n + 1 entries.
 * Returns the index of its first result. */
int  drive_row(struct drive *d, int slot, int first, const int32_t *ids, int n, int n_score, int sample);
void drive_pool(struct drive *d, int slot, const struct sr_pooling *how);
/* Add a row of a pooled slot; vector: where in the batch its vector goes, -1 unless it is the last. */
void drive_pool_row(struct drive *d, int slot, enum sr_pool pool, int first, const int32_t *ids, int n, int vector);
void drive_step(struct drive *d);
void drive_step_with(struct drive *d, void (*yield)(void *ctx), void *ctx); /* where the device yields */

#endif
