/* batch.h - events in the bytes of vLLM's KVEventBatch: msgpack, as maps or arrays.
 *
 *	[seconds, [event, ..], rank]
 *	BlockStored    blocks of one chain, one behind the other
 *	BlockRemoved   blocks of one tier
 *	AllBlocksCleared
 */
#ifndef BATCH_H
#define BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mirror.h"

#define BATCH_BLOCKS 256     /* most blocks of an event */
#define BATCH_EVENTS 1024    /* most events of a batch; routers take 4,096 */
#define BATCH_BYTES  (1u << 20) /* about the most bytes */

/* What is packed; `failed`: there was no memory. */
struct packed { unsigned char *at; size_t n, room; bool failed; };

struct batch {
	bool arrays;
	uint32_t rank, block_tokens;
	int32_t window[EVENTS_GROUPS];
	struct packed events, whole;
	uint32_t n_events;
	/* the event to which blocks are still added */
	enum { BATCH_NOTHING, BATCH_STORED, BATCH_REMOVED } open;
	int32_t  group;
	bool     host;
	uint64_t parent, name[BATCH_BLOCKS];
	uint32_t n_names;
	int32_t  ids[BATCH_BLOCKS * 64];
};

void batch_stored(struct batch *b, const struct mirror_block *block);
void batch_removed(struct batch *b, uint64_t name, int32_t group, bool host);
void batch_cleared(struct batch *b);
bool batch_full(const struct batch *b);

/* The bytes of all that was added, which last until the next call; then the batch is empty.  NULL: nothing
 * was added; or there was no memory, *failed says so. */
const unsigned char *batch_take(struct batch *b, double seconds, size_t *n, bool *failed);
void batch_free(struct batch *b);

#endif
