/* serve.h - where the daemons of `slipring serve` compute, and whether they fit. */
#ifndef SERVE_H
#define SERVE_H

#include <stddef.h>
#include <stdint.h>

#include "core/instance/config.h"

#define SERVE_DAEMONS 64              /* most daemons */
#define SERVE_WORDS   2               /* words that a daemon gets besides ours */

/* Give this process the CPUs and the GPUs of daemon `rank` of n.  CPUs are dealt in the order of their nodes
 * and cores; if there are fewer than daemons, some share one.  Of GPUs each daemon gets an equal part of
 * CUDA_VISIBLE_DEVICES; if that is not set, the next `gpus`. */
void serve_place(int rank, int n, int gpus);

/* The words of a list separated by commas that rank `rank` of n gets: as many as every other, in order.
 * 0; -E2BIG: the list has fewer words than ranks, or out is too small. */
int serve_deal(const char *list, int rank, int n, char *out, size_t size);

/* Memory of all models together, by their plans; of the devices that compute in host memory alone. */
struct serve_budget { int64_t bytes, avail; };
/* Add one model.  Do all of them fit?  0, or -errno and one sentence. */
int serve_plan(const struct config *cfg, struct serve_budget *b, char *err, size_t errlen);
int serve_fits(const struct serve_budget *b, char *err, size_t errlen);

#endif
