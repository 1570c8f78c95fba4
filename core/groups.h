/* groups.h - which layers share blocks of the KV cache: how many layers each group has, and what that saves. */
#ifndef GROUPS_H
#define GROUPS_H

#include <stdint.h>

#include "kernels/backend.h"
#include "kernels/model.h"

/* Set n_groups, and window and layers of each group, so that a sequence of `context` tokens takes the fewest
 * bytes, or nearly, with fewer groups.  All groups have the same number of layers, since their blocks have the same size.  The last group of
 * its kind may have fewer; the rest of its blocks is padding. */
void groups_choose(struct sr_limits *l, const struct sr_model *m, int32_t context);

/* The most blocks of a sequence of n tokens, when no batch computes more than `step` of them. */
int32_t groups_most(const struct sr_limits *l, int32_t n, int32_t step);

/* Blocks of all windows that are copied between tiers at once; evictions may use half of a batch's copies. */
int32_t groups_unit(const struct sr_limits *l);

/* Places of a block that no layer has, over all groups. */
int32_t groups_padding(const struct sr_limits *l, const struct sr_model *m);

#endif
