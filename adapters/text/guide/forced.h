/* forced.h - what guide.c asks of forced.c. */
#ifndef FORCED_H
#define FORCED_H

#include "guide.h"

/* The tokens that must come next, as the tokenizer makes them; the last may be the stop id.  Their number,
 * at most `most`; 0: nothing is forced, or not surely so. */
uint32_t forced_run(struct sr_guide *u, int32_t *ids, uint32_t most);

#endif
