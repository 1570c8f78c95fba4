/* rank.h - the processes of ranks: slipringd's own program, run again for each.  kernels/ranks does the rest. */
#ifndef RANK_H
#define RANK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/instance/config.h"
#include "core/instance/stats.h"
#include "kernels/backend.h"

/* What the process of a rank is told.  Must outlive the back end. */
struct rank_task {
	const char *model;            /* where its files are */
	const char *device;           /* its back end's name */
	bool    dummy;
	int32_t context;              /* set before the back end is opened */
	double  step_us, token_us;    /* of the null device */
	bool  (*loading)(void *ctx, uint64_t bytes); /* while ranks open; false: give up */
	void   *ctx;
};

/* Does this configuration ask for ranks? */
static inline bool rank_wanted(const struct config *c)
{
	return c->tensor_parallel_size > 1 || c->rank_process;
}

/* The table of a device whose ranks are processes. */
const struct sr_backend_ops *rank_backend(const struct sr_backend_ops *ops, const struct rank_task *task);

/* What is known of the ranks of such a back end, into the page. */
void rank_show(struct stats_page *st, const struct sr_backend *b);

/* Was this program started as a rank?  Then rank_main is its main. */
bool rank_called(int argc, char **argv);
int  rank_main(char **argv);

#endif
