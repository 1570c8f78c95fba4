/* ring.h - one producer, one consumer, fixed-size records, shared memory.
 *
 * Indices count records since the start and wrap at 2^32; record i lies at place i & mask.
 * Records head .. tail-1 are waiting, at most mask + 1 of them.
 *
 *	         head              tail   tail+reserved
 *	          v                 v          v
 *	  [ free | waiting, in order | promised | free ]
 *
 * There is no shared tail.  The first word of a record is its seq, which is 2 i + 1 once record i
 * is published.  So a consumer that polls for the next record touches only that record's line.
 * A seq is odd, so fresh or punched (zero) memory is never a record.  Whatever a producer
 * writes, no more records can wait than there are places.
 *
 * Each shared word lies in memory of the side that writes it.  The producer writes records and
 * room_at; the consumer writes head and wake_at.  Each side keeps its own index in private memory
 * and only writes it out.  So a side that scribbles can stall or confuse its own ring and nothing
 * else.  "PEER" marks the places that read the other side's words.
 *
 *	producer   reserve, put, put ..   fence (F2)   wanted -> signal the consumer
 *	consumer   take, take .., done    fence (F2)   freed  -> signal the producer
 *	consumer before it sleeps: arm,   fence (F1)   ready
 *	producer before it sleeps: arm_room, fence (F1)  look or reserve again
 *
 * One fence serves all rings of a turn.  Ordering, by label in the code below:
 *   R1 -> A1   the consumer sees the bytes of a record once it sees its seq
 *   R2 -> A2   the producer reuses a place (and the arena behind it) only after the
 *              consumer has left it
 *   F1 <> F2   no wake-up is lost.  The sleeper asks for index i, does F1, then looks for i.
 *              The mover passes i and perhaps others, does F2, then reads the ask.  All seq_cst
 *              fences have one order.  If F1 is first, the mover reads i, or a later ask: then
 *              the sleeper is already awake.  i is in [told, upto), because told moves only when
 *              the ask is read; so the mover signals.  If F2 is first, the sleeper sees that i is
 *              passed and stays awake.  A stale ask costs one needless signal in 2^32 records.
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

/* In shared memory, each in its own pair of cache lines.  An ask is read at each publication but
 * written only before sleep, so it stays in its reader's cache. */
struct sr_ring_prod {                         /* written by the producer alone */
	_Alignas(128) _Atomic uint32_t room_at;   /* signal the producer when head passes it */
};
struct sr_ring_cons {                         /* written by the consumer alone */
	_Alignas(128) _Atomic uint32_t head;      /* all records before it have been left */
	_Alignas(128) _Atomic uint32_t wake_at;   /* signal the consumer when this record is published */
};

struct sr_ring {                              /* in private memory, one per side */
	_Atomic uint32_t *head;                   /* the consumer's */
	_Atomic uint32_t *ask, *asked;            /* room_at and wake_at: this side's, the other side's */
	unsigned char *records;                   /* [mask + 1][size] in shared memory */
	uint32_t mask;                            /* capacity - 1; the capacity is a power of two */
	uint32_t size;                            /* of a record: a multiple of 64 bytes */
	uint32_t mine;                            /* index of the next record to put or to take */
	uint32_t left;                            /* head, as last seen or last published */
	uint32_t told;                            /* the other side's ask has been read up to here */
	uint32_t reserved;                        /* producer: room promised and not yet used */
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

/* Producer: room that is neither filled nor promised, by the last head read. */
static inline uint32_t sr_ring_room(const struct sr_ring *r)
{
	return r->mask + 1 - (r->mine - r->left) - r->reserved;
}

/* Producer: read the consumer's head.  0, or -EPROTO if the head is impossible. */
static inline int sr_ring_look(struct sr_ring *r)
{
	uint32_t head = atomic_load_explicit(r->head, memory_order_acquire); /* A2 */

	if (head - r->left > r->mine - r->left)   /* PEER: backwards, or past what was put */
		return -EPROTO;
	r->left = head;
	return 0;
}

/* Producer: promise room for n records.  0, -EAGAIN not now, -EPROTO.  Invariant: mine - left +
 * reserved <= capacity.  left only grows, so a promise holds whatever the consumer does. */
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

/* Producer: append one record in promised room.  It cannot fail, because it reads nothing shared.
 * Begin returns the place; the caller writes all of it except the first word; end publishes it. */
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

/* Producer: the same, copied from `record`.  The copy uses the field sizes with which the caller
 * wrote, so that store forwarding works. */
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
 * done.  Check the copy, never the shared place. */
static inline int sr_ring_take(struct sr_ring *r, void *record)
{
	if (!sr_ring_ready(r))
		return 0;
	if (r->mine - r->left > r->mask)          /* PEER: the producer put into a place not yet left */
		return -EPROTO;
	if (r->size == 64)                        /* a constant length makes the copy inline */
		memcpy(record, sr_ring_place(r, r->mine), 64);
	else
		memcpy(record, sr_ring_place(r, r->mine), r->size);
	atomic_signal_fence(memory_order_seq_cst); /* PEER: the compiler reads the place once */
	r->mine++;
	return 1;
}

/* Consumer: leave all records taken, and the arena they point to. */
static inline void sr_ring_done(struct sr_ring *r)
{
	if (r->left != r->mine)
		atomic_store_explicit(r->head, r->left = r->mine, memory_order_release); /* R2 */
}

/* Consumer, before sleep: ask for the next record. */
static inline void sr_ring_arm(struct sr_ring *r)
{
	assert(r->left == r->mine);               /* a sleeper has left all that it took */
	atomic_store_explicit(r->ask, r->mine, memory_order_relaxed);
}

/* Producer, before sleep: ask for record i to be left.  sr_ring_blocker: the i that blocks n more
 * records.  reserve(n) returns -EAGAIN exactly until it is left. */
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
	bool hit = at - r->told < upto - r->told; /* PEER: a wild ask costs one signal at most */

	r->told = upto;
	return hit;
}

/* After the fence: does the other side sleep for records put, or left, since the last call? */
static inline bool sr_ring_wanted(struct sr_ring *r) { return sr_ring_passed(r, r->mine); }
static inline bool sr_ring_freed(struct sr_ring *r) { return sr_ring_passed(r, r->left); }
#endif
