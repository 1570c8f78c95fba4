/* share.h - a model as one of several ranks holds it: the same layers, with each tensor cut to the outputs that
 * are this rank's.
 *
 *	q              its query heads                 o, down     its columns of the residual stream
 *	k, v           its KV heads                    embed, head its rows of the vocabulary
 *	gate, up       its columns of the feed-forward, of each expert and of the shared one
 *	biases, sinks  those of its outputs, its heads
 *	norms, router  whole
 *
 * No tensor is cut along its inputs.  So an output is the sum of one rank, in the order in which one rank
 * alone would add, and the answers of any number of ranks are equal to the bit.  The price: what a product
 * reads must be whole on every rank.  Attention's outputs and the activations of the feed-forward part are
 * gathered before the products that read them (`gather` in ops.h), not only the products' sums.
 *
 * Pure functions of their arguments.
 */
#ifndef SR_SHARE_H
#define SR_SHARE_H

#include <stddef.h>
#include <stdint.h>

#include "model.h"
#include "shape.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How the outputs of a tensor are divided. */
enum share { SHARE_WHOLE, SHARE_HEADS, SHARE_KV, SHARE_FEED, SHARE_EXPERT, SHARE_SHARED, SHARE_WIDTH, SHARE_VOCAB };

/* The outputs that a rank has, of layer l where that matters: heads are counted in elements. */
struct rank_part share_part(const struct sr_model *m, int32_t l, enum share by, int32_t rank, int32_t world);

/* *out is *m as this rank holds it: its kinds of attention have this rank's heads, its tensors this rank's
 * outputs; widths (d_model, d_ff, n_vocab) are the whole model's.  Its layers are one allocation: free(out->layer).
 * 0, -ENOMEM, or -ENOTSUP and a line in err that says what cannot be divided. */
int share_model(struct sr_model *out, const struct sr_model *m, int32_t rank, int32_t world, char *err,
                size_t errlen);

#ifdef __cplusplus
}
#endif
#endif
