/* wire.h - every byte between a client and the daemon.
 *
 * Two memory objects per connection, both made by the daemon (memfd, no name):
 *
 *	up     the client writes, the daemon reads.   F_SEAL_SHRINK | GROW; and FUTURE_WRITE | SEAL
 *	       [ sr_up, a page ][ requests ][ cancels ][ arena ]     once the client has mapped it
 *	down   the daemon writes, the client reads.   all of them, set after the daemon has
 *	       [ sr_down, a page ][ tokens ]          mapped it
 *
 * Every shared word lies in the object of the side that writes it.  up may hold anything
 * at any time.  Holes cannot be punched once it is sealed; where the kernel is too old for
 * that (5.1), there may be zeros anywhere, and of huge pages SIGBUS (server.c maps zeros
 * there and drops the client).
 *
 * Arena.  A byte ring.  A request has one span in it, whose parts follow each other:
 *
 *	prompt[n_prompt] more_stops[] allowed[] banned[] bad_words[] int32, bias[n_bias] sr_pair
 *
 * A span never wraps: the client skips to 0 where the end is too near, and starts at 0 when
 * none is out, so any span up to the whole arena fits.  The daemon copies it before it
 * leaves the request's record: when head passes record i, the spans of i and all before
 * are free.  The client keeps their ends in an array of its own, by place.
 *
 * Cancels.  A ring of its own, drained every turn, before requests and even when none can
 * be admitted.  A ticket is the request's index in its ring: unique, and it tells whether
 * that record is taken yet.  If not, the daemon marks the place, in private memory, and
 * ends it unplanned when its turn comes.
 *
 * Room.  The daemon takes a request only with a record reserved for its END, held until
 * then, and reserves sr_wire_records() more for each position a row may yield.
 *
 * Signals.  One byte by send(2) on the connection's socket, either way.  Full (EAGAIN)
 * means that the peer has one unread.  Who sleeps: empties the socket, arms, fences, looks,
 * sleeps until it is readable; it never empties between looking and sleeping.  The byte
 * itself says nothing.  End of file is the peer's death.
 *
 * Doing.  Two clocks of the client, so that the daemon can tell what it waited for: for how long
 * at least one request was being prepared; and for how long, none being so, one was arriving.
 * A word is the sum of ends less the sum of begins, in even ns of CLOCK_MONOTONIC, and odd while
 * it runs: one store starts or stops it, one load tells it at any moment.  Zero: says nothing.
 *
 * Version.  Raised when one side would misread the other.  Words that lay idle and mean nothing
 * while they are zero do not raise it.
 */
#ifndef SR_WIRE_H
#define SR_WIRE_H

#include <sys/socket.h>
#include <time.h>

#include "ring.h"
#include "slipring.h"

#define SR_MAGIC   0x474e5253u                /* "SRNG" */
#define SR_VERSION 1u                         /* of everything in this file */
#define SR_PAGE    ((size_t)4096)             /* before the first record of up and down */

struct sr_shape {                             /* sizes granted, see sr_shape_ok() */
	uint32_t live;                            /* requests under way = places for requests */
	uint32_t tokens;                          /* places for tokens */
	uint32_t arena;                           /* bytes */
};

/* Handshake, on a SEQPACKET socket, a second for each that comes up: hello up; welcome down with the
 * descriptors { up, down } if status is 0; a signal up, both are mapped; a signal down, it
 * begins.  After that signals as above. */
struct sr_hello {
	uint32_t magic, version;
	struct sr_shape want;                     /* 0 = default */
	uint32_t zero[3];
	char     name[32];                        /* printable, NUL-terminated */
};
struct sr_welcome {
	uint32_t magic, version;
	int32_t  status;                          /* 0 or -errno */
	struct sr_shape shape;
	uint64_t epoch;
};

/* A request: 4 lines, for a place is then a shift away and 80 bytes are left to grow into;
 * requests are few.  The first line holds what admission decides on. */
struct sr_wire_request {
	uint32_t seq;
	uint32_t flags;
	uint64_t user_data;
	uint32_t span;                            /* offset in the arena: bytes, 4-aligned */
	uint32_t n_prompt, n_more_stops, n_allowed, n_banned, n_bias;
	uint32_t max_tokens, min_tokens;
	uint64_t deadline;
	int32_t  priority;
	uint8_t  n_stop, n_top, n_prompt_top, zero0;

	uint64_t seed;
	float    temperature, top_p, min_p, presence, frequency, repetition;
	uint32_t top_k, n_bad_words;
	int32_t  stop[SR_STOP_MAX];
	uint64_t cache_salt, tenant;
	uint8_t  trace_id[16], span_id[8];
	uint8_t  zero[80];
};

/* A cancel: 1 line.  Ping rides here too, since this ring never waits. */
enum { SR_OP_CANCEL = 1, SR_OP_PING = 2 };
struct sr_wire_cancel {
	uint32_t seq;
	uint32_t op;                              /* SR_OP_CANCEL, SR_OP_PING */
	uint32_t ticket;                          /* CANCEL */
	uint32_t zero0;
	uint64_t nonce;                           /* PING: comes back in sr_down.pong */
	uint8_t  zero[40];
};

/* Tokens: struct sr_record, 1 line; a token with 4 alternatives, or an END, just fits. */

struct sr_up {                                /* start of up: words of the client */
	struct sr_ring_prod requests, cancels;
	struct sr_ring_cons tokens;
	_Alignas(128) _Atomic uint64_t doing[2];  /* by SR_PREPARING, SR_ARRIVING */
};
struct sr_down {                              /* start of down: words of the daemon */
	struct sr_ring_cons requests, cancels;
	struct sr_ring_prod tokens;
	_Alignas(128) _Atomic uint64_t pong;
	_Alignas(128) _Atomic uint64_t epoch;     /* as in the welcome; 0 once it stops */
	_Alignas(128) struct sr_model_info model;
};

_Static_assert(sizeof(struct sr_record) == 64 && sizeof(struct sr_wire_cancel) == 64, "one line");
_Static_assert(sizeof(struct sr_wire_request) == 256, "four lines");
_Static_assert(offsetof(struct sr_wire_request, seed) == 64, "admission in the first");
_Static_assert(sizeof(struct sr_up) == 5 * 128 && sizeof(struct sr_down) <= SR_PAGE, "a page");
_Static_assert(sizeof(struct sr_hello) == 64 && sizeof(struct sr_welcome) == 32, "no holes");
_Static_assert(offsetof(struct sr_model_info, flags) == 124, "in what were idle bytes");
_Static_assert(sizeof(struct sr_model_info) == 128, "no holes");
_Static_assert(sizeof(struct sr_pair) == 8 && sizeof(float) == 4, "spans are of 4-byte words");

/* Powers of two and whole pages; both sides check.  Cancels have 2 * live places: for each
 * live request and as many just ended.  Tokens: an END for each, as much again to stream. */
static inline bool sr_shape_ok(const struct sr_shape *s)
{
	return s->live >= 32 && s->live <= 1u << 14 && !(s->live & (s->live - 1)) &&
	       s->tokens >= 2 * s->live && s->tokens <= 1u << 20 && !(s->tokens & (s->tokens - 1)) &&
	       s->arena >= SR_PAGE && s->arena <= 1u << 30 && s->arena % SR_PAGE == 0;
}

/* Offsets into up and down, and their sizes, in bytes. */
#define SR_OFF_CANCELS(live) (SR_PAGE + (live) * sizeof(struct sr_wire_request))
#define SR_OFF_ARENA(live)   (SR_OFF_CANCELS(live) + (live) * 2 * sizeof(struct sr_wire_cancel))
#define SR_UP_BYTES(s)       (SR_OFF_ARENA((s)->live) + (s)->arena)
#define SR_DOWN_BYTES(s)     (SR_PAGE + (s)->tokens * sizeof(struct sr_record))

/* Bytes of a request's span, or -1 if it does not lie in the arena.  Call it on the copy. */
static inline int64_t sr_wire_span(const struct sr_wire_request *q, uint32_t arena)
{
	uint64_t n = 4 * ((uint64_t)q->n_prompt + q->n_more_stops + q->n_allowed + q->n_banned +
	                  q->n_bad_words) + 8 * (uint64_t)q->n_bias; /* 32-bit terms: no overflow */

	return q->span % 4 || q->span > arena || n > arena - q->span ? -1 : (int64_t)n;
}

/* Records that one position with n_top alternatives takes: 20 take 4. */
static inline uint32_t sr_wire_records(uint32_t n_top)
{
	return 1 + (n_top <= SR_TOP_HERE ? 0 : (n_top - SR_TOP_HERE + SR_TOP_PER - 1) / SR_TOP_PER);
}

/* In ns of CLOCK_MONOTONIC, which is the same for both sides. */
static inline uint64_t sr_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A word of `doing` after its clock was started, or stopped, at `now`; and what it tells then. */
static inline uint64_t sr_doing_flip(uint64_t word, uint64_t now)
{
	return word & 1 ? word - 1 + (now & ~1ull) : (word - (now & ~1ull)) | 1;
}

static inline uint64_t sr_doing_ns(uint64_t word, uint64_t now)
{
	return word & 1 ? word - 1 + (now & ~1ull) : word;
}

/* Wake the peer.  0 if it will wake, else -errno: the connection is over.  EAGAIN: a byte
 * is unread, so it wakes, or is being read: then it looks after our F2 and finds all. */
static inline int sr_signal(int fd)
{
	return send(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1 || errno == EAGAIN ? 0 : -errno;
}

/* Empty the socket: how many signals there were, or -ECONNRESET.  At most max, for a peer may
 * flood; with more it stays readable. */
static inline int sr_drain(int fd, unsigned max)
{
	char byte;
	ssize_t n = 1;
	int had = 0;

	while (max-- > 0 && (n = recv(fd, &byte, 1, MSG_DONTWAIT)) > 0)
		had++;
	return n > 0 || (n < 0 && errno == EAGAIN) ? had : -ECONNRESET;
}
#endif
