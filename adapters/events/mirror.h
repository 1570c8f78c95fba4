/* mirror.h - what slipring-events knows of a daemon's published blocks, and what has changed.
 *
 * The mirror follows the ring of changes in core/events.h: for each it compares the block as it is now with
 * what it knew, and tells the difference.  A round too late, it compares all blocks once.  So after each turn
 * what was told is what the daemon had at some moment of the turn, whatever was missed.  A name that is on a
 * tier twice while it moves is told once.
 */
#ifndef MIRROR_H
#define MIRROR_H

#include <stdbool.h>
#include <stdint.h>

#include "core/events.h"

struct mirror;

/* A block that was published.  Names are never 0; parent 0: it begins a prompt. */
struct mirror_block {
	uint64_t name, parent;
	int32_t  group;
	bool     host;               /* on the host tier */
	const int32_t *ids;          /* [block_tokens] */
};

/* Who is told. */
struct mirror_sink {
	void *ctx;
	void (*stored)(void *ctx, const struct mirror_block *b);
	void (*removed)(void *ctx, uint64_t name, int32_t group, bool host);
	void (*cleared)(void *ctx);
};

/* 0 or -ENOMEM.  The page must last as long as the mirror. */
int  mirror_create(struct mirror **out, const struct events_page *page);
void mirror_destroy(struct mirror *m);

/* Follow the changes until now, at most `most` of them.  Returns how many were looked at. */
uint64_t mirror_turn(struct mirror *m, const struct mirror_sink *to, uint64_t most);

/* Tell all: cleared, then each block behind its parent. */
void mirror_tell_all(struct mirror *m, const struct mirror_sink *to);

uint64_t mirror_overruns(const struct mirror *m); /* how often it was a round too late */

#endif
