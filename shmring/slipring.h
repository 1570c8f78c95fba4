/* slipring.h - all that a client of Slipring needs.
 *
 * A connection is memory shared with the daemon.  The client writes one part (requests,
 * cancels, prompts) and can only read the other (tokens).  After sr_open(), sending a prompt and
 * reading its answer takes no system call.
 *
 *	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = len,
 *	                        .max_tokens = 64 };
 *	struct sr_token t = { 0 };
 *
 *	if (sr_open(&c, SR_SOCKET, NULL) < 0 || sr_submit(c, &q, NULL) < 0)
 *		return 1;
 *	while (t.kind != SR_END)
 *		if ((n = sr_next(c, &t)) == 1 && t.kind == SR_TOKEN)
 *			use(t.id);
 *		else if (n < 0 || (n == 0 && sr_wait(c, SR_WAIT_TOKENS, -1) < 0))
 *			return 1;
 *
 * Units    lengths in tokens, times in nanoseconds of CLOCK_MONOTONIC.
 * Results  int functions return 0 or a count, or -errno.
 * Memory   arguments are copied before a call returns; no pointer is kept.
 * Threads  a connection belongs to one thread at a time: open one per thread.
 * Text     none.  Prompts and answers are token ids; see adapters/text.
 * Restart  when the daemon stops, restarts or drops us, the tokens in the ring can still
 *          be read.  After them every call returns -ECONNRESET for good; an empty sr_poll()
 *          checks at intervals.  Requests without their SR_END are lost: open and submit anew.
 */
#ifndef SLIPRING_H
#define SLIPRING_H

#include <stdint.h>

#include "slipring-guide.h"
#include "slipring-sampling.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* everything the shared library exports */

#define SR_SOCKET   "/run/slipring/slipring.sock"
#define SR_LIST_MAX 1024     /* entries in each list of a request, but for bad: SR_BAD_MAX words */
#define SR_BAD_MAX  (2 * SR_LIST_MAX)
#define SR_TOP_HERE 4        /* alternatives in the TOKEN or PROMPT record itself */
#define SR_TOP_PER  6        /* alternatives in each TOP record after it */

struct sr_conn;

/* Zero means default.  Sizes are rounded up and cut to what the daemon allows. */
struct sr_options {
	uint32_t size;           /* sizeof(struct sr_options), see struct sr_request */
	uint32_t spin_us;        /* sr_wait() polls this long, then sleeps */
	uint32_t live;           /* requests under way at once: places in the request ring */
	uint32_t tokens;         /* records in the token ring */
	uint32_t arena;          /* bytes for prompts and lists not yet taken */
	char     name[32];       /* NUL-terminated, for logs and slipring top */
	uint32_t guides;         /* guided answers at once; 0 = none */
	uint32_t vectors;        /* pooled requests at once; 0 = none */
	uint32_t timeout_ms;     /* the whole of sr_open(); 0 = 5000 */
};

/* What the daemon serves and what it granted.  Fixed for the life of a connection. */
struct sr_model_info {
	char     name[64];       /* NUL-terminated */
	uint8_t  vocab_hash[32]; /* SHA-256 of the vocabulary: check it before you trust ids */
	uint64_t epoch;          /* differs after every start of the daemon */
	uint32_t vocab;          /* token ids are 0 .. vocab-1 */
	uint32_t context;        /* longest prompt + answer */
	uint32_t live, tokens, arena; /* as in struct sr_options */
	uint32_t flags;          /* SR_TENANTS_.. */
	uint32_t guides;         /* 0: the daemon guides no answers, or none were asked for */
	uint32_t vectors;        /* 0: the daemon makes no vectors, or none were asked for */
	uint32_t width;          /* most elements of a vector; 0: the daemon makes none */
	uint32_t answers;        /* two daemons with the same number here answer alike: same files, same settings
	                            of what is computed, same back end.  0: not known */
	struct sr_sampling sampling; /* for a request of which nothing is known: as the model's files and the
	                            daemon's settings have it.  A top_p and a repetition that are off are 1; the
	                            seed is 0 */
	uint32_t max_tokens;     /* of such an answer; 0: as many as fit */
	uint32_t padding;
};

enum {                       /* flags of a connection */
	SR_TENANTS_HEARD = 1,    /* sr_request.tenant counts: our uid is the daemon's or its gateway's */
	SR_TENANTS_APART = 2,    /* cached prefixes are shared within a tenant (--prefix-cache-scope tenant) */
	SR_ONLY_POOLED = 4,      /* the model is an encoder or classifies: it answers pooled requests alone, but
	                            none with LOGITS */
	SR_LABELS = 8,           /* the model classifies: a vector is the logits of its labels, `width` of them,
	                            and never of length 1 */
};

struct sr_pair {             /* a token with a bias, or with its log-probability */
	int32_t  id;
	float    value;
};

enum {                       /* flags of a request; unknown ones are -EINVAL */
	SR_SEEDED = 1,           /* sampling.seed is given; without it the daemon picks one each time */
	SR_IGNORE_EOS = 2,       /* end-of-sequence is a token like any other */
	SR_PROMPT_LOGPROBS = 4,  /* SR_PROMPT for each prompt token but the first; skips the cache */
	SR_NO_CACHE = 8,         /* compute the prompt even if a prefix of it is cached */
	SR_GUIDED = 16,          /* each token of the answer needs a guide: see sr_guide() */
	SR_POOLED = 32,          /* answer one vector and no token: see sr_vector() */
	SR_PROGRESS = 64,        /* an SR_COMPUTED for each part of its prompt that is computed; one that finds
	                            no room in the ring is left out */
};

/* Zero means off or default: a prompt and max_tokens alone ask for greedy decoding.  New fields
 * are appended.  Fields beyond `size` count as zero; fields the library lacks must be zero (-E2BIG). */
struct sr_request {
	uint32_t size;           /* sizeof(struct sr_request) */
	uint32_t flags;
	uint64_t user_data;      /* comes back in every record; the daemon never reads it */
	const int32_t *prompt;   /* [n_prompt] token ids */
	uint32_t n_prompt;       /* 1 .. context */
	uint32_t max_tokens;     /* 1 .. context-n_prompt (+ n_answer); 0 with SR_POOLED, and allowed with
	                            SR_PROMPT_LOGPROBS */
	uint32_t min_tokens;     /* no end-of-sequence or stop id before this many tokens */
	int32_t  priority;       /* lower goes first; 0 = normal.  Values below 0 need the daemon's
	                            own uid or the gateway's, else they count as 0 */
	uint64_t deadline;       /* 0 = none; after it the request ends with -ETIME */
	struct sr_sampling sampling;
	uint32_t n_top;          /* 0 .. SR_TOP_MAX alternatives with each token */
	uint32_t n_prompt_top;   /* alternatives with each prompt token; needs SR_PROMPT_LOGPROBS */
	const int32_t *stop;     /* ids; any of them ends the answer */
	const int32_t *allow;    /* ids; nothing else is drawn */
	const struct sr_pair *bias; /* added to these ids' logits */
	const int32_t *bad;      /* sequences that the answer never completes: each is its length and its ids */
	uint32_t n_stop, n_allow, n_bias; /* 0 .. SR_LIST_MAX */
	uint32_t n_bad;          /* words in bad, lengths included; 0 .. SR_BAD_MAX */
	uint64_t cache_salt;     /* cached prefixes are shared only between equal salts */
	uint64_t tenant;         /* the work's owner; 0 = our uid's tenant; needs SR_TENANTS_HEARD */
	uint8_t  trace_id[16], span_id[8]; /* W3C trace context; all zero = none */
	struct sr_pooling pooling; /* with SR_POOLED, which takes neither sampling nor alternatives, and of the
	                            lists `allow` with SR_POOL_LOGITS alone */
	uint32_t padding;        /* not read: it was padding before n_answer came */
	uint32_t n_answer;       /* the last n_answer ids of `prompt` are answer already: the request goes on
	                            where another one ended.  max_tokens and min_tokens count them, penalties
	                            take them for answer, the first token that comes has this index, and so has
	                            the first guide.  With the same seed the rest of the answer is the same.
	                            0 .. n_prompt-1, below max_tokens; 0 with SR_POOLED and
	                            SR_PROMPT_LOGPROBS */
	uint64_t name;           /* by which slipring why finds the request after its end, see
	                            stats_request_name(); 0 = none.  The daemon does nothing else with it */
	uint32_t second;         /* with SR_POOLED: the prompt is a pair of texts, and its tokens from here on are
	                            of the second type, which some encoders tell apart (BERT).  0: none is; else
	                            below n_prompt */
	uint32_t padding2;       /* not read */
};

/* Why a request ended: SR_STOP an end-of-sequence or stop id (the last token's id), SR_LENGTH
 * max_tokens reached.  A failure is a -errno instead. */
enum sr_finish { SR_STOP = 1, SR_LENGTH = 2 };

/* The token ring as it is, one cache line per record.  A request that sr_submit() accepted yields
 * PROMPT* TOKEN* END: exactly one END, and each PROMPT and TOKEN directly followed by its TOPs.  With
 * SR_PROGRESS there are COMPUTEDs before the first TOKEN; like an END they have a struct sr_end, with
 * `computed` the prompt tokens done so far, cached ones included, and `last` the time. */
enum sr_kind { SR_TOKEN = 1, SR_TOP = 2, SR_PROMPT = 3, SR_END = 4, SR_COMPUTED = 5 };

struct sr_end {
	int32_t  finish;         /* enum sr_finish, or -ECANCELED, -ETIME, -EINVAL, -EIO, -ENOSPC (more
	                            KV cache than there is), -E2BIG (lists that no batch can hold),
	                            -ECONNRESET (the daemon is stopping), -EDOM (guided: no token is left that
	                            guide and lists allow), -ETIMEDOUT (guided: no guide came for 10 s).
	                            -EAGAIN, only if it named a
	                            tenant: that tenant has its share of the queue.  Send it again
	                            once a request of that tenant gets a token or its end */
	uint32_t n_tokens;       /* in the answer, n_answer included; of a pooled request: elements of its
	                            vector */
	uint32_t computed;       /* prompt tokens computed; counted again after a preemption */
	uint32_t cached;         /* prompt tokens found in the cache */
	uint64_t queued, scheduled; /* when taken from the ring; when first planned */
	uint64_t first, last;    /* when its first and last token were put; 0 = never */
};

struct sr_record {
	uint32_t seq;            /* the ring's own word, see ring.h */
	uint8_t  kind;           /* enum sr_kind */
	union {
		uint8_t n_top;   /* TOKEN, PROMPT: all alternatives, most likely first; TOP: those here */
		uint8_t was;     /* END: the request's SR_GUIDED and SR_POOLED */
	};
	union {
		uint16_t last;       /* TOKEN: enum sr_finish if the request ends with it, else 0 */
		uint16_t preempted;  /* END: how often it was preempted */
		uint16_t place;      /* END of a pooled request: for sr_vector() */
	};
	uint64_t user_data;
	union {
		struct {
			int32_t  id;
			uint32_t index;  /* TOKEN: 0 = first of the answer; PROMPT: position in the prompt */
			float    logprob;/* natural log, before temperature and truncation */
			uint32_t rank;   /* 1 = the most likely */
			struct sr_pair top[SR_TOP_HERE];
		} token;
		struct sr_pair top[SR_TOP_PER];
		struct sr_end end;
	} u;
};

/* Simpler than records: one struct per token, however many records it takes. */
struct sr_token {
	uint64_t user_data;
	uint32_t kind;           /* SR_TOKEN, SR_PROMPT, SR_END or SR_COMPUTED */
	int32_t  id;             /* -1 in an SR_END */
	uint32_t index, rank;
	float    logprob;
	uint32_t n_top, n_here;  /* alternatives, and how many have arrived: all of them, once it is whole */
	uint32_t last;           /* in an SR_TOKEN: enum sr_finish if the request ends with it (SR_END is next) */
	struct sr_pair top[SR_TOP_MAX];
	struct sr_end end;       /* in an SR_END, and an SR_COMPUTED */
	uint32_t place;          /* in an SR_END of a pooled request: for sr_vector(); else 0 */
};

/* Connect: receive the shared memory over the socket and map it.  o may be NULL.
 * -ENOENT or -ECONNREFUSED no daemon, -EACCES not permitted, -EPROTO another
 * version, -EUSERS no free connection, -ETIMEDOUT no answer within timeout_ms, -ECONNRESET the
 * daemon went, or gave up because we took longer than a second for a step.  After the last two, try again:
 * either side may have had no core. */
int sr_open(struct sr_conn **out, const char *socket_path, const struct sr_options *o);

const struct sr_model_info *sr_model(const struct sr_conn *c);

/* Disconnect.  Live requests are cancelled.  NULL is allowed. */
void sr_close(struct sr_conn *c);

/* Send a request; *ticket (ticket may be NULL) names it for sr_cancel().  -EAGAIN ring or arena
 * full (SR_WAIT_ROOM), -EBUSY the granted number is live (read tokens until an SR_END), or as many
 * guided ones as were granted, or all granted vectors are in use (sr_vector), -EMSGSIZE longer than context
 * or arena, -ENOTSUP SR_GUIDED or SR_POOLED without granted guides or vectors, -EINVAL a field is out of
 * range. */
int sr_submit(struct sr_conn *c, const struct sr_request *q, uint32_t *ticket);

/* End a request early.  Its SR_END comes, with -ECANCELED unless it ended by itself first.  A
 * request not begun is never computed.  Overtakes submits.  -EAGAIN if the ring of cancels is full. */
int sr_cancel(struct sr_conn *c, uint32_t ticket);

/* Guide an SR_GUIDED request: what its token `index` may be.  ids: [n], by kind (slipring-guide.h).  bits:
 * with SR_GUIDE_BITS, [(vocab + 31) / 32] words; bit i % 32 of word i / 32 is that of id i.
 * SR_GUIDE_IS guides the tokens index .. index + n - 1.
 *
 * Guides come in order of index, each token's once.  The first may come right after sr_submit(), the next
 * after the token before it was read.  Known tokens (SR_GUIDE_IS, up to SR_GUIDE_RUN of them) may come ahead,
 * followed by one other guide.  The daemon drops a connection that breaks this order.  It ignores guides for
 * a request that has ended.  A token whose guide is late waits for it, and is the same token.
 *
 * -EAGAIN no room in the ring or no free mask place: try again after an sr_poll().  It does not happen to a
 * client that keeps the order above and reads its tokens.  -ENOTSUP no guides were granted, -EINVAL. */
int sr_guide(struct sr_conn *c, uint32_t ticket, uint32_t index, uint32_t kind, const int32_t *ids,
             uint32_t n, const uint32_t *bits);

/* The next guide with bits took the client so many microseconds to compute: slipring why shows it. */
void sr_guide_took(struct sr_conn *c, uint32_t us);

/* Copy the first n elements of a pooled request's vector out of the shared memory, and give its place
 * back.  `place` is that of its SR_END; n is at most end.n_tokens, which is 0 if the request failed.
 * Call this once for each such END, with n = 0 if the vector is not wanted: no other request uses the
 * place before.  -EINVAL: no vector lies there. */
int sr_vector(struct sr_conn *c, uint32_t place, float *out, uint32_t n);

/* Take up to max records; returns how many.  Never blocks.  A client that does not read gets no
 * more tokens; nothing is ever dropped. */
int sr_poll(struct sr_conn *c, struct sr_record *out, unsigned max);

/* Take one whole token: 1, or 0 if none is complete.  Use this or sr_poll(), not both.
 * sr_gather() does its work: it adds a record to *t, which is zero at first.  1: *t is whole, and the
 * next record starts a new token; 0: TOPs are to follow; -EPROTO: records out of order. */
int sr_next(struct sr_conn *c, struct sr_token *t);
int sr_gather(struct sr_token *t, const struct sr_record *r);

/* Sleep until one of the events in `what` happened.  Returns those flags, 0 after timeout_ms (-1 = no
 * limit), or -EINTR if a signal came.  ROOM: the request last refused with -EAGAIN would fit now.
 * For an event loop: sr_arm() returns the flags, or 0, and then sr_fd() becomes readable when an
 * event happens.  Never read from it. */
enum { SR_WAIT_TOKENS = 1, SR_WAIT_ROOM = 2 };
int sr_wait(struct sr_conn *c, int what, int timeout_ms);
int sr_arm(struct sr_conn *c, int what);
int sr_fd(const struct sr_conn *c);

/* After -ECONNRESET: 1 if the daemon said that it stops, 0 if it was killed or dropped us. */
int sr_stopped(const struct sr_conn *c);

/* Report what this client does for requests that it has not submitted yet: `by` more of them (fewer, if
 * below 0) are being prepared (templates, tokenizing), or are arriving over a network.  `slipring why`
 * shows it; a client that never reports counts as silent.  The counts belong to the connection: report
 * again after reconnecting.  It reads the clock when the first begins or the last ends, and makes no
 * system call. */
enum { SR_PREPARING, SR_ARRIVING };
void sr_doing(struct sr_conn *c, int what, int by);

/* Time a round trip to the daemon's loop, ahead of all queued work.  It polls: for measuring only. */
int sr_ping(struct sr_conn *c, uint64_t *rtt_ns, int timeout_ms);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
