/* processes.h - a back end divided among ranks, each a process that is forked here, for tests in C++. */
#ifndef CUDA_PROCESSES_H
#define CUDA_PROCESSES_H

#include "kernels/backend.h"
#include "kernels/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The table of `ops` in as many processes as limits.world says; what they open is *m, read from *src.  A caller gives
 * batch 0 only: an empty batch 1 follows each. */
const struct sr_backend_ops *processes_over(const struct sr_backend_ops *ops, const struct sr_model *m,
                                            const struct sr_source *src);

/* What was said since the last processes_over(). */
const char *processes_said(void);

/* In a rank, before it opens: for tests that break something there.  Or NULL. */
extern void (*processes_begin)(int32_t rank);

/* As ranks_setting.hang_ms: 60,000. */
extern uint32_t processes_hang_ms;

#ifdef __cplusplus
}
#endif
#endif
