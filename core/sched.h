/* sched.h - which sequences compute what, next.
 *
 * No prefill phase, no decode phase.  A sequence has `known` tokens (prompt and answer so
 * far, and one placeholder for each sample in flight) and `planned` tokens (whose K,V are
 * computed or in flight); a step gives each a share of the token budget so that planned
 * catches up with known.  When it has, the batch samples one more.  Chunked prefill,
 * prefix hits, preemption and decoding are all this one rule.
 *
 *	sched_admit -> WAITING --admit--> RUNNING --finish--> DONE, slot returned
 *	                  ^                  |
 *	                  +---- preempt -----+   blocks and slot given up, ids kept
 *
 * One step, in this order:
 *	reap    the oldest batch, if it is done: tokens out, ended sequences released
 *	time    those past their deadline end, waiting or running
 *	then, if fewer than depth are in flight, fill the next:
 *	decode  one token each, oldest first; short of a block, preempt the youngest
 *	prompt  running ones, oldest first, in chunks: whole blocks but for the last chunk; none
 *	        for one whose next block another row of this batch computes: it takes it from
 *	        the cache in the next
 *	admit   preempted ones first, then by priority (but one place of eight by age, to who
 *	        waited for long behind better ones), then tenants in turn (deficit round
 *	        robin; tokens are charged when planned, while another waits), each tenant's
 *	        clients likewise, each client's in order of arrival; only with blocks for all
 *	        its tokens, without those kept for other tenants; nothing in a step that
 *	        preempted
 *	finish  END for slots left without owner; kv's copies, demotion with what is left
 *	launch  if anything is in it; publish the prompt blocks it computes
 *
 * A row in flight carries its sequence's generation; cancel, finish and preemption raise
 * it, so a late result is dropped (and drawn again, the same, after a preemption).  A
 * victim never has a row in the batch being filled: within a batch there is no order.
 *
 * Whoever is held back by a full ring while others want slots or blocks gives way after a while, and
 * nobody of that client is admitted before there is room in it: a bad reader stops itself alone.
 *
 * No I/O, no clock, no allocation after sched_create: same calls, same answers.  A step
 * is O(running + moved + clients whose ring is full), never O(waiting).  To be queued is O(1) in the
 * order of priority, and in the worst order O(waiting of this client).
 */
#ifndef SCHED_H
#define SCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kv.h"
#include "sched_limits.h"

struct sched;

/* A request, checked; everything it points to is copied.  clients.c makes it from the
 * wire's record. */
struct sched_request {
	uint64_t user_data;       /* unique among live requests of one `who` */
	const int32_t *prompt;    /* [n_prompt] */
	int32_t  n_prompt, max_tokens;
	struct sr_sampling sampling; /* min_position: counted from the prompt's start */
	const uint32_t *list[4];  /* by enum sr_list, as words of SR_CMD_LIST; STOP: ids that end it,
	                             the model's eos among them unless they are ignored */
	int32_t  n_list[4];
	uint64_t salt, deadline;  /* deadline 0 = none */
	int32_t  priority;        /* lower runs first */
	uint8_t  n_top;           /* alternatives with each token */
	uint8_t  n_prompt_top;    /* the same with each scored prompt token */
	bool     score;           /* log-probabilities of the prompt: no prefix matching.  Then
	                             max_tokens may be 0: nothing is sampled */
	bool     no_cache;        /* compute the prompt even if a prefix of it is cached */
	bool     history;         /* the device needs the ids: penalties or bad words */
};

enum { SCHED_MORE, SCHED_STOP, SCHED_LENGTH }; /* else -ECANCELED, -ETIME, -EIO */

struct sched_event {          /* one token of an answer, one scored prompt token, or an end */
	uint64_t user_data;
	int32_t  id;              /* -1: an end without a token */
	int32_t  position;        /* in the sequence; < n_prompt: scored; an end's: ids it had */
	int32_t  rank, finish;
	float    logprob;
	int32_t  n_top;
	const struct sr_top *top; /* [n_top], valid during the call */
	/* in the first token of an answer and in an end: */
	int32_t  cached;          /* prompt tokens found in the prefix cache */
	uint64_t scheduled;       /* when it was first planned (the `now` of that step); 0 = never */
	int32_t  computed;        /* prompt tokens computed, again after each preemption */
	int32_t  preempted;       /* how often */
};

/* Where tokens go.  `who` is the caller's handle for a client.  Records are set aside
 * before a row is planned, for all it may yield, alternatives included: so emit cannot
 * fail, there is no overflow path, and a slow reader slows itself.  One more is set aside
 * at admission for the end, if that leaves room for the largest row: else the ends alone
 * could fill a ring and nothing would ever move.
 *
 * An event uses cost(n_top) records if it has a token (id >= 0), and the one set aside at
 * admission if it is an end (finish != SCHED_MORE); both, if the last token ends it.  What
 * else was set aside for a request is released before its end is emitted.  Not called from
 * anywhere but sched_admit, sched_cancel and sched_step; may not call the scheduler. */
struct sched_port {
	void *ctx;
	/* Set aside as many as there are, most at most; 0, and none, if fewer than least. */
	uint32_t (*reserve)(void *ctx, void *who, uint32_t least, uint32_t most);
	void (*release)(void *ctx, void *who, uint32_t n);  /* give n back unused */
	void (*emit)(void *ctx, void *who, const struct sched_event *e);
};

/* Knobs may change between steps, up to what was allocated at create. */
struct sched_knobs {
	int32_t  max_seqs;        /* running; up to limits.slots */
	int32_t  batch_tokens;    /* new tokens of one batch; at least max_seqs, up to limits.tokens */
	int32_t  chunk_max;       /* of one sequence's prompt in one batch */
	int32_t  queue_requests;  /* waiting; this */
	int64_t  queue_tokens;    /* and their prompts, together, up to what they were at create */
	int32_t  copies;          /* blocks between tiers per batch (a byte budget / per_block); up to
	                             limits.copies */
	int32_t  headroom;        /* blocks that must stay available when one is admitted */
	uint32_t step_ns;         /* 0 = none; prompt chunks shrink so that a batch takes this
	                             long, by the measured time per token (slow devices) */
	int32_t  quantum;         /* tokens a tenant earns per round */
	bool     first_chunk;     /* admit with blocks for the first chunk of a prompt, not all of it */
	bool     no_prefix_cache; /* nothing is matched or published from now on */
	bool     fcfs;            /* priorities of requests that come are not heard: first come, first
	                             served.  Those that are there keep theirs */
};

struct sched_config {
	struct sr_limits limits;  /* as opened.  rows >= slots, tokens >= rows, n_blocks enough for
	                             one sequence of context, cmds >= rows + slots + 8, words >= rows +
	                             seq_blocks + 16, and what the lists and ids of one request take
	                             besides (else its admission is -E2BIG) */
	struct sched_knobs knobs; /* to begin with */
	int32_t  vocab, context;
	int32_t  tenants;         /* most with live requests */
	int64_t  text_tokens;     /* ids held: queue_tokens + (1 + ln slots) * those of all blocks
	                             is ample.  Create adds two chunks per sequence and takes at
	                             least two contexts; when short, sequences wait (WHY_KV) */
	int64_t  list_words;      /* of lists held; 0 = 64 K and 8 per sequence.  Up to 16 words of
	                             one request (its stop ids, mostly) are free */
	uint64_t age_ns;          /* who has waited so long may have the next place that goes by age; 0 = 5 s */
	uint32_t ring_ns;         /* who was held back by a full ring so long gives way to others; 0 = 10 ms */
	int32_t  tops_here;       /* records a token costs with n alternatives: */
	int32_t  tops_per_record; /*   1 + ceil(max(0, n - tops_here) / tops_per_record) */
};

struct sched_stats {
	int32_t  running, waiting, preempted;
	int64_t  waiting_tokens;
	uint64_t steps, rows, tokens, samples; /* steps: batches reaped that had rows */
	uint64_t late, preemptions, finished, cached_tokens;
	uint64_t why_ns[N_WHY], bound_ns[N_BOUND]; /* each sums to the time between steps */
	enum sched_why why;                        /* what the time until the next step counts as */
	uint64_t prefix_queries, prefix_hits;      /* tokens looked up in the prefix cache, found */
	uint64_t prompt_computed;                  /* prompt tokens computed */
	uint64_t held;                             /* steps that prompts waited for another to compute
	                                              what they have in common */
	uint64_t int8_ops, float_ops, bytes, copied; /* of all batches reaped, as backend.h counts them */
	struct {                                   /* the batch reaped last: at most one in a step */
		uint64_t begin_ns;
		int32_t  rows, tokens;
		uint32_t host_ns, device_ns;       /* it waited for the host; it computed */
		uint8_t  why, bound;
	} last;
};

/* 0, -EINVAL (limits or knobs that cannot work), -ENOMEM.  kv and backend outlive it. */
int  sched_create(struct sched **out, const struct sched_config *cfg, struct kv *kv,
                  const struct sr_backend_ops *ops, struct sr_backend *b,
                  const struct sched_port *port);
void sched_destroy(struct sched *s);

/* 0, or -ERANGE: above its ceiling, or below 1 where that is the least. */
int  sched_set(struct sched *s, const struct sched_knobs *k);

/* Call this before taking a request out of a client's ring: what is not taken stays there, and
 * that is the only back-pressure.  A tenant may queue up to 8 times what it leaves free (8/9 of the
 * queue when alone), and each of its clients up to 8 times what the tenant has left.  So no tenant
 * can shut out another.  Together they leave room for the longest prompt of a tenant that has
 * nothing queued, or half of the queue.
 * SCHED_OVER: the tenant or client has its share, others may have room.  SCHED_FULL: there is no room
 * for anybody's request of this size, or no entry for one more tenant, until others leave.
 * n_words: of the request's lists, whose pool is shared by the same rule. */
enum sched_room { SCHED_ROOM, SCHED_FULL, SCHED_OVER };
enum sched_room sched_full(const struct sched *s, const void *who, uint64_t tenant, int32_t n_prompt,
                           int32_t n_words);

/* 0; -EEXIST user_data is live for who; -EAGAIN full, or no record for its end; -E2BIG it
 * could never fit a batch's words (lists, and its ids where the device needs them); -EIO
 * the device is lost.  Lengths, ids and numbers were checked: wrong ones are asserts. */
int  sched_admit(struct sched *s, void *who, uint64_t tenant,
                 const struct sched_request *q, uint64_t now);

/* End one request, or all of a client that is gone (no port calls for it any more).  Never
 * needs room, so cancels are read even when nothing else is.  Slot and blocks are free at
 * once.  Unknown user_data is not an error: it may have just ended. */
void sched_cancel(struct sched *s, void *who, uint64_t user_data);
void sched_forget(struct sched *s, void *who);

/* One step: the work done (reaped + moved + launched); 0: the loop may idle.  -EIO: the
 * device is lost, every request got its end.  In inline mode the loop calls ops->work
 * after it, whose yield may admit, cancel and forget. */
int  sched_step(struct sched *s, uint64_t now);

bool sched_busy(const struct sched *s); /* anything waiting, running or in flight? */
int32_t sched_flying(const struct sched *s); /* the oldest batch in flight, by its number; -1: none */

/* For how many ns more the device, as batches went so far, needs nothing of us: until the oldest
 * batch in flight is done.  0: none is, it should be done, or such a batch was never seen. */
uint64_t sched_spare(const struct sched *s, uint64_t now);

/* How long the oldest batch in flight takes, as batches went so far.  0: as above. */
uint64_t sched_takes(const struct sched *s);

/* The device is given up, whatever it says: every request gets its end.  -EIO, and so is every step
 * from now on. */
int  sched_lose(struct sched *s);
void sched_stats(const struct sched *s, struct sched_stats *out);
void sched_check(const struct sched *s); /* every slot, block, chunk, record has one owner */

#endif
