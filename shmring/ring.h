/* ring.h - one producer, one consumer, fixed-size records, shared memory.
 *
 * Indices count records since the beginning and wrap at 2^32; record i lies at place
 * i & mask.  head .. tail-1 are waiting, mask + 1 at most.
 *
 *	         head              tail   tail+reserved
 *	          v                 v          v
 *	  [ free | waiting, in order | promised | free ]
 *
 * There is no shared tail.  The first word of a record is its seq, 2 i + 1 once record i
 * is published: who polls for the next record touches that record's line and no other.
 * A seq is odd, so fresh or punched (zero) memory is never a record.  Whatever a producer
 * writes, no more can be here than there are places.
 *
 * Each shared word lies in memory of the side that writes it: records and room_at of the
 * producer, head and wake_at of the consumer.  Each side keeps its own index privately
 * and only writes it out, so a peer that scribbles can stall or confuse its own ring and
 * nothing else; where its words are read, see PEER.
 *
 *	producer   reserve, put, put ..   fence (F2)   wanted -> signal the peer
 *	consumer   take, take .., done    fence (F2)   freed  -> signal the peer
 *	consumer before it sleeps: arm,   fence (F1)   ready
 *	producer before it sleeps: arm_room, fence (F1)  look or reserve again
 *
 * One fence serves all rings of a turn.  Ordering, by label in the code below:
 *   R1 -> A1   the consumer sees the bytes of a record once it sees its seq
 *   R2 -> A2   the producer reuses a place (and the arena behind it) only after the
 *              consumer has left it
 *   F1 <> F2   no wake-up is lost.  The sleeper asks for index i, F1, then looks for i.
 *              The mover passes i, maybe with others, F2, then reads the ask.  All seq_cst
 *              fences have one order.  F1 first: the mover reads i (a later ask: it is
 *              awake already), and i is in [told, upto), for told moves only when the ask
 *              is read: it signals.  F2 first: the sleeper sees i passed, stays awake.
 *              A stale ask costs one needless signal in 2^32 records.
 */
#ifndef SR_RING_H
#define SR_RING_H

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "shared between processes");

/* In shared memory, each in a pair of lines of its own: an ask, read with every publication
 * but written only before sleep, stays in its reader's cache. */
struct sr_ring_prod {                         /* written by the producer alone */
	_Alignas(128) _Atomic uint32_t room_at;   /* signal me when head passes it */
};
struct sr_ring_cons {                         /* written by the consumer alone */
	_Alignas(128) _Atomic uint32_t head;      /* all before it have been left */
	_Alignas(128) _Atomic uint32_t wake_at;   /* signal me when it is published */
};

struct sr_ring {                              /* in private memory, one per side */
	_Atomic uint32_t *head;                   /* the consumer's */
	_Atomic uint32_t *ask, *asked;            /* room_at and wake_at: own one, peer's one */
	unsigned char *records;                   /* [mask + 1][size] in shared memory */
	uint32_t mask;                            /* capacity - 1, a power of two less one */
	uint32_t size;                            /* of a record: a multiple of 64 bytes */
	uint32_t mine;                            /* next to put, or next to take */
	uint32_t left;                            /* head, as last seen or last published */
	uint32_t told;                            /* up to here the peer's ask has been read */
	uint32_t reserved;                        /* producer: room promised, not yet used */
};

static inline void sr_ring_init(struct sr_ring *r, bool producer, struct sr_ring_prod *p,
		struct sr_ring_cons *c, void *records, uint32_t cap, uint32_t size)
{
	*r = (struct sr_ring){ &c->head, producer ? &p->room_at : &c->wake_at,
		producer ? &c->wake_at : &p->room_at, records, cap - 1, size, 0, 0, 0, 0 };
}

static inline uint32_t sr_ring_seq(uint32_t i) { return 2 * i + 1; }
static inline void *sr_ring_place(const struct sr_ring *r, uint32_t i)
{
	return r->records + (size_t)(i & r->mask) * r->size;
}

/* Producer: room neither filled nor promised, as far as is known. */
static inline uint32_t sr_ring_room(const struct sr_ring *r)
{
	return r->mask + 1 - (r->mine - r->left) - r->reserved;
}

/* Producer: see how far the consumer is.  0, or -EPROTO a wild head. */
static inline int sr_ring_look(struct sr_ring *r)
{
	uint32_t head = atomic_load_explicit(r->head, memory_order_acquire); /* A2 */

	if (head - r->left > r->mine - r->left)   /* PEER: backwards, or past what was put */
		return -EPROTO;
	r->left = head;
	return 0;
}

/* Producer: promise room for n records.  0, -EAGAIN not now, -EPROTO.  Kept: mine - left +
 * reserved <= capacity; left only grows, so a promise holds whatever the consumer does. */
static inline int sr_ring_reserve(struct sr_ring *r, uint32_t n)
{
	if (sr_ring_room(r) < n && sr_ring_look(r) < 0)
		return -EPROTO;
	if (sr_ring_room(r) < n)
		return -EAGAIN;
	r->reserved += n;
	return 0;
}

/* Producer: give back promised room. */
static inline void sr_ring_unreserve(struct sr_ring *r, uint32_t n)
{
	assert(n <= r->reserved);
	r->reserved -= n;
}

/* Producer: append one record in promised room.  Cannot fail: it reads nothing shared.  What is
 * between begin, which says where, and end writes all of it but the first word. */
static inline void *sr_ring_begin(struct sr_ring *r)
{
	assert(r->reserved > 0);
	return sr_ring_place(r, r->mine);
}
static inline void sr_ring_end(struct sr_ring *r, void *place)
{
	_Atomic uint32_t *seq = place;

	atomic_store_explicit(seq, sr_ring_seq(r->mine), memory_order_release); /* R1 */
	r->mine++;
	r->reserved--;
}

/* Producer: the same, copied from `record`.  It is copied in the sizes in which the caller wrote it, so
 * that stores forward to the loads. */
static inline void sr_ring_put(struct sr_ring *r, const void *record)
{
	const unsigned char *from = record;
	unsigned char *place = sr_ring_begin(r);

	memcpy(place + 4, from + 4, 4);
	memcpy(place + 8, from + 8, 8);
	if (r->size == 64)
		memcpy(place + 16, from + 16, 48);
	else
		memcpy(place + 16, from + 16, r->size - 16);
	sr_ring_end(r, place);
}

/* Consumer: is the next record here? */
static inline bool sr_ring_ready(const struct sr_ring *r)
{
	_Atomic uint32_t *seq = sr_ring_place(r, r->mine);

	return atomic_load_explicit(seq, memory_order_acquire) == sr_ring_seq(r->mine); /* A1 */
}

/* Consumer: copy the next record out.  1 taken, 0 none, -EPROTO too many since the last
 * done.  Check the copy, never the place. */
static inline int sr_ring_take(struct sr_ring *r, void *record)
{
	if (!sr_ring_ready(r))
		return 0;
	if (r->mine - r->left > r->mask)          /* PEER: put into a place not yet left */
		return -EPROTO;
	if (r->size == 64)                        /* a copy of known length takes no call */
		memcpy(record, sr_ring_place(r, r->mine), 64);
	else
		memcpy(record, sr_ring_place(r, r->mine), r->size);
	atomic_signal_fence(memory_order_seq_cst); /* PEER: the compiler reads it once */
	r->mine++;
	return 1;
}

/* Consumer: leave all that was taken, with whatever it points to. */
static inline void sr_ring_done(struct sr_ring *r)
{
	if (r->left != r->mine)
		atomic_store_explicit(r->head, r->left = r->mine, memory_order_release); /* R2 */
}

/* Consumer, before sleep: ask for the next record. */
static inline void sr_ring_arm(struct sr_ring *r)
{
	assert(r->left == r->mine);               /* nobody sleeps on places it has not left */
	atomic_store_explicit(r->ask, r->mine, memory_order_relaxed);
}

/* Producer, before sleep: ask for record i to be left; and the i that stands in the way of
 * n more records: reserve(n) says -EAGAIN exactly until it is left. */
static inline void sr_ring_arm_room(struct sr_ring *r, uint32_t i)
{
	atomic_store_explicit(r->ask, i, memory_order_relaxed);
}
static inline uint32_t sr_ring_blocker(const struct sr_ring *r, uint32_t n)
{
	return r->mine + r->reserved + n - (r->mask + 1) - 1;
}

static inline void sr_ring_fence(void) { atomic_thread_fence(memory_order_seq_cst); } /* F1, F2 */

static inline bool sr_ring_passed(struct sr_ring *r, uint32_t upto)
{
	uint32_t at = atomic_load_explicit(r->asked, memory_order_relaxed);
	bool hit = at - r->told < upto - r->told; /* PEER: a wild ask costs a signal at most */

	r->told = upto;
	return hit;
}

/* After fence: does the peer sleep for what was put, or left, since the last call? */
static inline bool sr_ring_wanted(struct sr_ring *r) { return sr_ring_passed(r, r->mine); }
static inline bool sr_ring_freed(struct sr_ring *r) { return sr_ring_passed(r, r->left); }
#endif
