/* wire.h - every byte between a client and the daemon.
 *
 * Two memory objects per connection, both made by the daemon (memfd, no name):
 *
 *	up     the client writes, the daemon reads.   F_SEAL_SHRINK | GROW; and FUTURE_WRITE | SEAL
 *	       [ sr_up, a page ][ requests ][ cancels ][ arena ]     once the client has mapped it
 *	       [ guides ][ mask places ]
 *	down   the daemon writes, the client reads.   all of them, set after the daemon has
 *	       [ sr_down, a page ][ tokens ]          mapped it
 *	       [ vectors ]
 *
 * Every shared word lies in the object of the side that writes it.  up may hold anything
 * at any time.  Holes cannot be punched once it is sealed.  Kernels before 5.1 lack that seal:
 * there may be zeros anywhere, and huge pages may raise SIGBUS (object.c then maps zeros
 * and drops the client).
 *
 * Arena.  A byte ring.  A request's prompt and lists are its spans: they lie there side by side, in
 * the order of enum sr_span_kind, and the record says from where, which, and how long.  Together they
 * never wrap.  The client skips to 0 if they do not fit before the end, and starts at 0 if none are in
 * use; so anything up to the whole arena fits.  The daemon copies them before it leaves the record.
 * When head passes record i, the spans of i and of all before it are free.  The client keeps their
 * ends in an array of its own, by place.
 *
 * Cancels.  A ring of its own, drained every turn, before requests and even when no request can
 * be admitted.  A ticket is the request's index in its ring: it is unique, and it shows whether
 * that record is taken yet.  If not, the daemon marks the place, in private memory, and
 * ends the request unplanned when its turn comes.
 *
 * Guides.  A ring of its own, and 2 * guides places for masks.  It is drained each turn after cancels and
 * before requests, and once more after requests, since a request and its first guides are put together.
 * A guide names its request by ticket and its token by index.  One for a request that is not taken yet is
 * kept by the daemon until then, in private memory; its mask stays in its place.  A mask place belongs to
 * the daemon from its record's publication until both that record and the request have been left.  One
 * for a request that is over, or that is not guided, is dropped.  Anything else that is wrong costs the
 * connection, because a guide has no answer.  Of a request, the tokens with a guide are n_answer .. next - 1.
 * Of those not yet put into the token ring at most one has a guide other than SR_GUIDE_IS, and at most
 * SR_GUIDE_RUN have one of that kind: nobody can honestly know more.
 *
 * Vectors.  A pooled request names a place in `down`, from 1 on.  It is the daemon's from the record's
 * publication until the request's END: the daemon writes the vector there before it puts the END.  A
 * client that names one place twice mixes up its own vectors and harms no other client.
 *
 * Room.  The daemon takes a request only with a record reserved for its END, held until the
 * end.  It reserves sr_wire_records() more for each position a row may yield.
 *
 * Signals.  One byte by send(2) on the connection's socket, either way.  A full socket (EAGAIN)
 * means that the receiver has a byte unread.  A side that sleeps empties the socket, arms, fences,
 * looks, and sleeps until the socket is readable; it never empties between looking and sleeping.
 * The byte has no meaning of its own.  End of file means that the other side is gone.
 *
 * Doing.  Two clocks of the client, which show the daemon what it waited for.  The first runs while
 * at least one request is being prepared; the second while none is, but one is arriving.  A word is
 * the sum of ends less the sum of begins, in even ns of CLOCK_MONOTONIC, and odd while the clock
 * runs.  One store starts or stops it; one load reads it at any moment.  Zero: no report.
 *
 * Version.  Raised when one side would misread the other.  A new use of an idle word does not raise
 * it, if 0 in that word means nothing.
 */
#ifndef SR_WIRE_H
#define SR_WIRE_H

#include <sys/socket.h>

#include "clock.h"
#include "ring.h"
#include "slipring.h"

#define SR_MAGIC   0x474e5253u                /* "SRNG" */
#define SR_VERSION 4u                         /* of everything in this file */
#define SR_PAGE    ((size_t)4096)             /* before the first record of up and down */

struct sr_shape {                             /* sizes granted, see sr_shape_ok() */
	uint32_t live;                            /* requests under way = places in the request ring */
	uint32_t tokens;                          /* places for tokens */
	uint32_t arena;                           /* bytes */
	uint32_t guides;                          /* guided answers at once; 0 = none, and no memory for them */
	uint32_t vectors;                         /* places for vectors; likewise */
};

/* Handshake, on a SEQPACKET socket, one second for each message to the daemon: hello to the daemon;
 * welcome to the client, with the descriptors { up, down } if status is 0; a signal to the daemon: both
 * are mapped; a signal to the client: it may begin.  After that, signals as above. */
struct sr_hello {
	uint32_t magic, version;
	struct sr_shape want;                     /* 0 = default */
	uint32_t zero;
	char     name[32];                        /* printable, NUL-terminated */
};
struct sr_welcome {
	uint32_t magic, version;
	int32_t  status;                          /* 0 or -errno */
	struct sr_shape shape;
	uint64_t epoch;
};

enum sr_span_kind {
	SR_SPAN_PROMPT = 1, SR_SPAN_STOP, SR_SPAN_ALLOW, SR_SPAN_BIAS, SR_SPAN_BAD, SR_SPAN_KINDS
};
#define SR_SPANS 8u                           /* places for spans in a record */

struct sr_span {
	uint16_t kind;                            /* enum sr_span_kind; 0: no span, and none behind it */
	uint16_t zero;
	uint32_t n;                               /* at least 1, in units of its kind */
};

/* A request: 4 lines, so that a place is a shift away and 60 bytes are left to grow into.
 * Requests are few. */
struct sr_wire_request {
	uint32_t seq;
	uint32_t flags;
	uint64_t user_data;
	uint32_t at;                              /* of its spans in the arena: bytes, 4-aligned */
	uint32_t max_tokens;
	uint64_t deadline;
	int32_t  priority;
	uint8_t  n_top, n_prompt_top;
	uint8_t  pool, unit;                      /* of SR_POOLED: as struct sr_pooling */
	uint32_t width;
	uint16_t place;                           /* of its vector, from 1 on; 0: not pooled */
	uint8_t  zero0[2];
	uint64_t cache_salt, tenant;
	struct sr_span span[SR_SPANS];            /* the prompt, then kinds in rising order */
	struct sr_sampling sampling;
	uint8_t  trace_id[16], span_id[8];
	uint32_t n_answer;                        /* ids at the prompt's end that are answer already */
	uint32_t second;                          /* of SR_POOLED: as in struct sr_request; else 0 */
	uint64_t name;
	uint8_t  zero[48];
};

/* A cancel: 1 line.  Pings use this ring too, because it never waits. */
enum { SR_OP_CANCEL = 1, SR_OP_PING = 2 };
struct sr_wire_cancel {
	uint32_t seq;
	uint32_t op;                              /* SR_OP_CANCEL, SR_OP_PING */
	uint32_t ticket;                          /* CANCEL */
	uint32_t zero0;
	uint64_t nonce;                           /* PING: comes back in sr_down.pong */
	uint8_t  zero[40];
};

/* A guide: 1 line. */
struct sr_wire_guide {
	uint32_t seq;
	uint32_t ticket;                          /* the request's index in its ring */
	uint32_t index;                           /* of the token: 0 = first of the answer; IS: of id[0] */
	uint8_t  kind;                            /* enum sr_guide_kind */
	uint8_t  n;                               /* ids; 0 with BITS */
	uint16_t place;                           /* BITS: the mask's; else 0 */
	int32_t  id[SR_GUIDE_IDS];                /* those behind n are 0; BITS: id[0] may be the microseconds
	                                             that the client took for it, 0 or more */
};

/* Tokens: struct sr_record, 1 line.  A token with 4 alternatives, or an END, just fits. */

struct sr_up {                                /* start of up: words that the client writes */
	struct sr_ring_prod requests, cancels;
	struct sr_ring_cons tokens;
	_Alignas(128) _Atomic uint64_t doing[2];  /* by SR_PREPARING, SR_ARRIVING */
	struct sr_ring_prod guides;
};
struct sr_down {                              /* start of down: words that the daemon writes */
	struct sr_ring_cons requests, cancels;
	struct sr_ring_prod tokens;
	_Alignas(128) _Atomic uint64_t pong;
	_Alignas(128) _Atomic uint64_t epoch;     /* as in the welcome; 0 once it stops */
	_Alignas(128) struct sr_model_info model;
	struct sr_ring_cons guides;
};

_Static_assert(sizeof(struct sr_record) == 64 && sizeof(struct sr_wire_cancel) == 64 &&
               sizeof(struct sr_wire_guide) == 64, "one line");
_Static_assert(sizeof(struct sr_wire_request) == 256, "four lines");
_Static_assert(offsetof(struct sr_wire_request, span) == 64 && sizeof(struct sr_span[SR_SPANS]) == 64 &&
               sizeof(struct sr_sampling) == 40, "no holes");
_Static_assert(sizeof(struct sr_up) == 6 * 128 && sizeof(struct sr_down) <= SR_PAGE, "a page");
_Static_assert(sizeof(struct sr_hello) == 64 && sizeof(struct sr_welcome) == 40, "no holes");
_Static_assert(sizeof(struct sr_model_info) == 192, "no holes");
_Static_assert(sizeof(struct sr_pair) == 8 && sizeof(float) == 4, "spans are of 4-byte words");

/* Powers of two and whole pages; both sides check.  Cancels have 2 * live places: one for each
 * live request and one for each just ended.  Tokens: an END for each, and as many again to stream.
 * Guides: 4 records and 2 mask places for each guided answer.  Vectors: places. */
static inline bool sr_places_ok(uint32_t n)
{
	return !n || (n >= 8 && n <= 1u << 12 && !(n & (n - 1)));
}

static inline bool sr_shape_ok(const struct sr_shape *s)
{
	return s->live >= 32 && s->live <= 1u << 14 && !(s->live & (s->live - 1)) &&
	       s->tokens >= 2 * s->live && s->tokens <= 1u << 20 && !(s->tokens & (s->tokens - 1)) &&
	       s->arena >= SR_PAGE && s->arena <= 1u << 30 && s->arena % SR_PAGE == 0 &&
	       sr_places_ok(s->guides) && sr_places_ok(s->vectors);
}

/* Words of 4 bytes of a mask: bit i % 32 of word i / 32 is that of id i; bits beyond the vocabulary do not
 * count.  A mask place is whole lines. */
static inline uint32_t sr_mask_words(uint32_t vocab) { return vocab / 32 + (vocab % 32 != 0); }
static inline size_t sr_mask_bytes(uint32_t vocab)
{
	return ((size_t)sr_mask_words(vocab) * 4 + 63) / 64 * 64;
}

/* Bytes of a place for a vector: whole lines. */
static inline size_t sr_vector_bytes(uint32_t width) { return ((size_t)width * 4 + 63) / 64 * 64; }

/* Offsets into up and down, and their sizes, in bytes. */
#define SR_OFF_CANCELS(live) (SR_PAGE + (live) * sizeof(struct sr_wire_request))
#define SR_OFF_ARENA(live)   (SR_OFF_CANCELS(live) + (live) * 2 * sizeof(struct sr_wire_cancel))
#define SR_OFF_GUIDES(s)     (SR_OFF_ARENA((s)->live) + (s)->arena)
#define SR_OFF_MASKS(s)      (SR_OFF_GUIDES(s) + (s)->guides * 4 * sizeof(struct sr_wire_guide))
#define SR_UP_BYTES(s, vocab) (SR_OFF_MASKS(s) + (s)->guides * 2 * sr_mask_bytes(vocab))
#define SR_OFF_VECTORS(s)    (SR_PAGE + (s)->tokens * sizeof(struct sr_record))
#define SR_DOWN_BYTES(s, width) (SR_OFF_VECTORS(s) + (s)->vectors * sr_vector_bytes(width))

/* All that differs from one kind of span to the next: the client writes and the daemon checks by it. */
enum sr_span_check { SR_CHECK_IDS, SR_CHECK_PAIRS, SR_CHECK_SEQUENCES };
static const struct sr_span_rule {
	uint8_t  unit;                            /* bytes of one: a multiple of 4 */
	uint8_t  check;                           /* enum sr_span_check: what lies in it */
	uint16_t list, count;                     /* where struct sr_request has its pointer and its length */
	uint32_t most;                            /* units; of a prompt the context, too */
} sr_span_rules[SR_SPAN_KINDS] = {
#define SR_IN(list, count) offsetof(struct sr_request, list), offsetof(struct sr_request, count)
	[SR_SPAN_PROMPT] = { 4, SR_CHECK_IDS,       SR_IN(prompt, n_prompt), UINT32_MAX },
	[SR_SPAN_STOP]   = { 4, SR_CHECK_IDS,       SR_IN(stop, n_stop),     SR_LIST_MAX },
	[SR_SPAN_ALLOW]  = { 4, SR_CHECK_IDS,       SR_IN(allow, n_allow),   SR_LIST_MAX },
	[SR_SPAN_BIAS]   = { 8, SR_CHECK_PAIRS,     SR_IN(bias, n_bias),     SR_LIST_MAX },
	[SR_SPAN_BAD]    = { 4, SR_CHECK_SEQUENCES, SR_IN(bad, n_bad),       SR_BAD_MAX },
#undef SR_IN
};

static inline uint64_t sr_span_bytes(const struct sr_span *s)
{
	return s->kind < SR_SPAN_KINDS ? (uint64_t)s->n * sr_span_rules[s->kind].unit : 0;
}

/* The most bytes of a request's lists, its prompt not counted. */
static inline size_t sr_lists_bytes(void)
{
	size_t n = 0;

	for (unsigned kind = SR_SPAN_PROMPT + 1; kind < SR_SPAN_KINDS; kind++)
		n += (size_t)sr_span_rules[kind].unit * sr_span_rules[kind].most;
	return n;
}

/* Bytes of a request's spans, or -1 if they do not lie in the arena.  Call it on the private copy. */
static inline int64_t sr_wire_bytes(const struct sr_wire_request *q, uint32_t arena)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < SR_SPANS && q->span[i].kind; i++)
		n += sr_span_bytes(&q->span[i]);
	return q->at % 4 || q->at > arena || n > arena - q->at ? -1 : (int64_t)n;
}

/* Records for one position with n_top alternatives: 20 alternatives take 4. */
static inline uint32_t sr_wire_records(uint32_t n_top)
{
	return 1 + (n_top <= SR_TOP_HERE ? 0 : (n_top - SR_TOP_HERE + SR_TOP_PER - 1) / SR_TOP_PER);
}

/* A word of `doing` after its clock starts or stops at `now`; and the time it shows at `now`. */
static inline uint64_t sr_doing_flip(uint64_t word, uint64_t now)
{
	return word & 1 ? word - 1 + (now & ~1ull) : (word - (now & ~1ull)) | 1;
}

static inline uint64_t sr_doing_ns(uint64_t word, uint64_t now)
{
	return word & 1 ? word - 1 + (now & ~1ull) : word;
}

/* Wake the other side.  0 if it will wake, else -errno: the connection is over.  EAGAIN: a byte is
 * unread, so it wakes; or it is being read, and then the look after our F2 finds everything. */
static inline int sr_signal(int fd)
{
	return send(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1 || errno == EAGAIN ? 0 : -errno;
}

/* Empty the socket: returns the number of signals, or -ECONNRESET.  Reads at most max, because the
 * other side may flood; a socket with more stays readable. */
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
