/* serve.h - where each of several daemons of `slipring serve` computes. */
#ifndef SERVE_H
#define SERVE_H

#include <stddef.h>

#define SERVE_DAEMONS 64              /* most daemons */
#define SERVE_WORDS   2               /* words that a daemon gets besides ours */

/* Give this process the CPUs and the GPUs of daemon `rank` of n.  CPUs are dealt in the order of their nodes
 * and cores; if there are fewer than daemons, some share one.  CUDA_VISIBLE_DEVICES is dealt evenly, too. */
void serve_place(int rank, int n);

/* The words of a list separated by commas that rank `rank` of n gets: as many as every other, in order.
 * 0; -E2BIG: the list has fewer words than ranks, or out is too small. */
int serve_deal(const char *list, int rank, int n, char *out, size_t size);

#endif
