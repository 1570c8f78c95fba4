/* events.h - which blocks a daemon has published, for a reader that tells others (slipring-events).  A leaf.
 *
 *	core/kv/index.c -> events_begin, events_end -> memory <- read by slipring-events, without messages
 *	slipring-events --CONTROL_EVENTS--> core/control.c
 *	                <-- a descriptor --'
 *
 * With --kv-events-config the names of the KV cache's blocks lie in this memory, so a name is written once.  Each
 * has a stamp; a reader that finds the stamp changed, or odd, reads again.  A ring says which blocks changed: it
 * holds their numbers, in order.  The daemon never waits, and nothing is lost: a reader that is a whole round
 * late sees that in the count and looks at all blocks once.
 *
 * The memory is sealed: only the daemon writes it, and nobody can cut it.  It holds prompts: the daemon's own user,
 * root and the user that --kv-events-config names get it.  Belongs to the scheduler's thread.
 */
#ifndef EVENTS_H
#define EVENTS_H

#include <stdatomic.h>
#include <stdint.h>

#define CONTROL_EVENTS  0x400u       /* as control_ask.knob: send me the memory; the connection stays */

#define EVENTS_MAGIC    0x56455253u  /* "SREV" */
#define EVENTS_VERSION  1u
#define EVENTS_RING     65536u       /* a power of 2 */
#define EVENTS_GROUPS   16           /* most groups of layers (KV_GROUPS) */
#define EVENTS_HEAD     64           /* bytes of a name before its ids */

/* Phases of a stamp's last two bits. */
enum { EVENTS_NONE, EVENTS_BUSY, EVENTS_LIVE };

/* What a reader sees of a block's name; the rest of the head is the KV cache's own. */
struct events_name {
	uint64_t key[2];             /* the name; the low half tells blocks apart */
	uint64_t parent[2];          /* of the block before; zeros: it begins a prompt */
	uint64_t salt;
	int32_t  group;              /* of layers */
	uint32_t stamp;              /* raised by each change */
};

struct events_page {
	uint32_t magic, version;
	uint64_t bytes;              /* of the whole memory */
	uint32_t n_blocks, n_host;   /* names: those of the device, then those of the host tier */
	uint32_t block_tokens;
	uint32_t name_bytes;         /* from one name to the next */
	uint64_t salt;               /* of requests that come from the adapter without a cache_salt or a tenant */
	uint32_t n_groups;
	int32_t  window[EVENTS_GROUPS]; /* most tokens that a group's layers look back; 0 = all */
	_Alignas(64) uint64_t n;     /* changes so far */
	uint32_t ring[EVENTS_RING];  /* the number of the block that change i was about: ring[i % EVENTS_RING] */
	_Alignas(64) unsigned char name[];
};

static inline uint32_t events_name_bytes(uint32_t block_tokens)
{
	return (EVENTS_HEAD + block_tokens * 4 + 63) / 64 * 64;
}

/* Writer: around the change of a name.  The stamp is odd before the first byte changes (release fence). */
static inline void events_begin(struct events_name *n)
{
	__atomic_store_n(&n->stamp, n->stamp + 1, __ATOMIC_RELAXED);
	atomic_thread_fence(memory_order_release);
}

/* The stamp moves on by `by`, to the next phase; block number `block` has changed. */
static inline void events_end(struct events_page *p, struct events_name *n, uint32_t by, uint32_t block)
{
	uint64_t at = p->n;

	__atomic_store_n(&n->stamp, n->stamp + by, __ATOMIC_RELEASE);
	__atomic_store_n(&p->ring[at % EVENTS_RING], block, __ATOMIC_RELAXED);
	__atomic_store_n(&p->n, at + 1, __ATOMIC_RELEASE);
}

/* *fd: of the memory, to be sent; the caller closes it.  0 or -errno. */
int  events_create(struct events_page **out, int *fd, int32_t n_blocks, int32_t n_host, int32_t block_tokens);
void events_destroy(struct events_page *p);

/* Reader: map what a daemon sent, and check it.  0, -EPROTO, -errno; fd stays the caller's. */
int  events_open(const struct events_page **out, int fd);
void events_close(const struct events_page *p);

/* Copy the name of block i and its ids (ids[block_tokens]): 1; 0: it is not published; -EAGAIN: it is being written
 * right now. */
int  events_read(const struct events_page *p, uint32_t i, struct events_name *out, int32_t *ids);

#endif
