/* truth.h - the CPU back end in plain C, verb by verb, for tests of other back ends in C++. */
#ifndef CUDA_TRUTH_H
#define CUDA_TRUTH_H

#include "kernels/net.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "tests/rig/drive.h"
#include "tests/rig/tiny.h"

extern const struct ops cpu_ops;           /* the verbs; of truth_dev() */

void truth_open(struct drive *d, const struct tiny *t, const struct sr_limits *lim);
void truth_slice(struct drive *d);         /* what was added to the batch becomes what the verbs work on */
struct dev *truth_dev(struct drive *d);
const struct net *truth_net(struct drive *d);
int truth_width(struct drive *d, enum place p);

#ifdef __cplusplus
}
#endif
#endif
