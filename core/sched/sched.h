/* sched.h - which sequences compute what, next.
 *
 * There is no prefill phase and no decode phase.  A sequence has `known` tokens: prompt and answer
 * so far, and one placeholder for each sample in flight.  It has `planned` tokens, whose K,V are
 * computed or in flight.  Each step gives it a share of the token budget, so that planned catches up
 * with known.  When it has, the batch samples one more.  Chunked prefill, prefix hits, preemption and
 * decoding all follow from this one rule.
 *
 *	sched_admit -> WAITING --admit--> RUNNING --finish--> DONE, slot returned
 *	                  ^                  |
 *	                  +---- preempt -----+   blocks and slot given up, ids kept
 *
 * One step, in this order:
 *	reap    the oldest batch, if it is done: tokens out, ended sequences released
 *	time    sequences past their deadline end, waiting or running
 *	then, if fewer than depth are in flight, fill the next:
 *	decode  one token each, oldest first; short of a block, preempt the youngest
 *	prompt  running ones, oldest first, in chunks: whole blocks but for the last chunk.  If
 *	        another row of this batch computes a sequence's next block, the sequence skips
 *	        this batch and takes the block from the cache in the next
 *	guess   if all rows decode: ids that may come next, verified in the same row (sched/draft.c)
 *	admit   preempted ones first, then by priority, then tenants by deficit round robin
 *	        (tokens are charged when planned, while another waits), each tenant's clients
 *	        likewise, each client's requests in order of arrival.  One place of eight goes by
 *	        age, to a request that waited long behind better priorities.  Admission needs
 *	        blocks for all its tokens, without those kept for other tenants; there is none
 *	        in a step that preempted
 *	finish  END for slots left without owner; kv's copies; demotion with the copies left
 *	launch  if the batch has anything in it; publish the prompt blocks it computes
 *
 * A row in flight carries its sequence's generation.  Cancel, finish and preemption raise the
 * generation, so a late result is dropped (after a preemption the same token is drawn again).  A
 * victim never has a row in the batch being filled, because rows of a batch have no order.
 *
 * A sequence whose client has no room for its tokens gives way after a while if others want its slot
 * or blocks.  The client is admitted again once it has room: a slow reader stops only itself.
 *
 * No I/O, no clock, no allocation after sched_create: same calls, same answers.  A step
 * is O(running + moved + clients without room), never O(waiting).  Queueing is O(1) in
 * order of priority, and in the worst order O(waiting requests of this client).
 */
#ifndef SCHED_H
#define SCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "core/kv/kv.h"
#include "core/instance/counters.h"
#include "core/instance/limits.h"
#include "shmring/slipring-guide.h"

struct sched;

/* A command that begins a sequence's slot on the device: as struct sr_cmd, but slot and place in the
 * batch are chosen when it is admitted.  The scheduler does not look into its words. */
enum { SCHED_CMDS = 5, SCHED_BEGIN_WORDS = 16 }; /* most commands of a request; most words of its BEGIN */
struct sched_cmd { int32_t op, a, n; };

/* A checked request; everything it points to is copied.  core/clients/translate.c makes it from the
 * wire's record. */
struct sched_request {
	uint64_t user_data;       /* unique among live requests of one client */
	const int32_t *prompt;    /* [n_prompt] */
	int32_t  n_prompt, max_tokens;
	int32_t  n_answer;        /* the last ids of the prompt are answer already, as those of a sequence that was
	                             preempted; max_tokens counts them */
	const struct sched_cmd *cmd; /* [n_cmds], BEGIN first */
	const uint32_t *words;    /* [n_words]: of the commands, one after the other */
	int32_t  n_cmds, n_words;
	int32_t  stop, n_stop;    /* words[stop ..], not the BEGIN's: ids that end the answer */
	int32_t  min_position;    /* the first at which they do */
	uint64_t salt, deadline;  /* deadline 0 = none */
	uint64_t name;            /* for sched_config.ran */
	int32_t  priority;        /* lower runs first */
	uint8_t  n_top;           /* alternatives with each token */
	uint8_t  n_prompt_top;    /* the same with each scored prompt token */
	bool     score;           /* log-probabilities of the prompt: no prefix matching.
	                             max_tokens may then be 0: nothing is sampled */
	bool     no_cache;        /* compute the prompt even if a prefix of it is cached */
	bool     progress;        /* PROGRESS events while its prompt is computed */
	bool     history;         /* the device needs its ids (SR_CMD_HISTORY) */
	bool     guided;          /* each token of the answer needs a guide: sched_guide() */
	uint8_t  pool;            /* enum sr_pool; 0: it is not pooled.  Else max_tokens is 0, and n_vector
	                             elements are answered */
	int32_t  n_vector;
};

/* How a request ended; else -ECANCELED, -ETIME, -EIO, -EDOM (its guide and its lists leave no id),
 * -ETIMEDOUT (no guide for 10 s). */
enum { SCHED_STOP = 1, SCHED_LENGTH };

enum sched_kind {
	SCHED_TOKEN,              /* the next token of an answer */
	SCHED_SCORED,             /* a prompt token with its log-probability */
	SCHED_VECTOR,             /* of a pooled prompt; its END is the next event */
	SCHED_END,                /* of the request: nothing follows */
	SCHED_PROGRESS,           /* a part of its prompt is computed */
};

struct sched_event {
	uint64_t user_data;
	uint8_t  kind;            /* enum sched_kind */
	uint8_t  last;            /* TOKEN: SCHED_STOP or SCHED_LENGTH if the request ends with it (its END is
	                             the next event), else 0 */
	int32_t  position;        /* of the token in the sequence; in an END: number of ids; PROGRESS: how many
	                             ids of the prompt are computed or were cached */

	/* TOKEN, SCORED: */
	int32_t  id, rank;
	float    logprob;
	int32_t  n_top;
	const struct sr_top *top; /* [n_top], valid during the call */

	/* VECTOR: */
	const float *vector;      /* [n_vector], valid during the call */
	int32_t  n_vector;

	/* END: */
	int32_t  finish;          /* SCHED_STOP, SCHED_LENGTH or -errno */

	/* END, PROGRESS, and the first TOKEN of an answer: */
	int32_t  cached;          /* prompt tokens found in the prefix cache */
	uint64_t scheduled;       /* `now` of the step that first planned it; 0 = never */
	int32_t  computed;        /* prompt tokens computed; counted again after a preemption */
	int32_t  preempted;       /* how often it was preempted */
};

/* Where tokens go.  `client` is the caller's handle for one.  Before a row is planned, records
 * are set aside for all it may yield, alternatives included.  So emit cannot fail, there is no
 * overflow path, and a slow reader slows only itself.  Admission sets aside one more for the end, if
 * that leaves room for the largest row.  Otherwise ends alone could take all room of a client and
 * block it for ever.
 *
 * A TOKEN or SCORED event uses cost[n_top] records, a VECTOR none; for a PROGRESS none is set aside.  An END uses the one set aside at admission.  All
 * other records set aside for a request are released before its END is emitted.  Only sched_admit,
 * sched_cancel and sched_step call the port; the port may not call the scheduler. */
struct sched_port {
	void *ctx;
	uint8_t cost[SR_TOP_MAX + 1]; /* by number of alternatives: records of a token, 1 or more, none less
	                                 than the one before */
	/* Are there `n` records to set aside now? */
	bool (*room)(void *ctx, void *client, uint32_t n);
	/* Set aside up to `most`, as many as there are; none, and return 0, if fewer than `least`. */
	uint32_t (*reserve)(void *ctx, void *client, uint32_t least, uint32_t most);
	void (*release)(void *ctx, void *client, uint32_t n);  /* give n back unused */
	void (*emit)(void *ctx, void *client, const struct sched_event *e);
};

/* Knobs may change between steps, up to what sched_create allocated. */
struct sched_knobs {
	int32_t  max_seqs;        /* running; up to limits.slots */
	int32_t  batch_tokens;    /* new tokens of a batch; at least max_seqs, up to limits.tokens */
	int32_t  chunk_max;       /* of one sequence's prompt in one batch */
	int32_t  queue_requests;  /* most requests waiting, up to the value at create */
	int64_t  queue_tokens;    /* most tokens of their prompts together, up to the value at create */
	int32_t  copies;          /* blocks copied between tiers per batch (a byte budget / per_block);
	                             up to limits.copies */
	int32_t  headroom;        /* blocks that must stay available after an admission */
	uint32_t step_ns;         /* 0 = none; prompt chunks shrink so that a batch takes this
	                             long, by the measured time per token (slow devices) */
	int32_t  quantum;         /* tokens of credit for a tenant per round */
	bool     first_chunk;     /* admit with blocks for the first chunk of a prompt, not all of it */
	bool     no_prefix_cache; /* from now on, match and publish nothing */
	bool     fcfs;            /* new requests' priorities are ignored: first come, first
	                             served.  Requests already there keep theirs */
};

enum { SCHED_DRAFT_MOST = COUNTERS_DRAFT, SCHED_DRAFT_MATCH = 32 }; /* ceilings of struct sched_drafts */

struct sched_config {
	struct sr_limits limits;  /* as opened.  rows >= slots, tokens >= rows, n_blocks enough for
	                             one sequence of context (kv_most), cmds >= n_groups * (rows + 1) + slots
	                             + 7, with states n_groups + 2 instead of n_groups, words >= n_groups * (rows + seq_blocks) + 16, plus the commands and
	                             ids of one request (else its admission is -E2BIG) */
	struct sched_knobs knobs; /* initial values */
	struct counters *counters; /* the caller's: the scheduler adds what it counts */
	int32_t  vocab, context;
	int32_t  tenants;         /* most tenants with live requests */
	int64_t  ids_max;         /* ids held: queue_tokens + (1 + ln slots) * those of all blocks
	                             is ample.  Create adds two chunks per sequence and takes at
	                             least two contexts.  When short, sequences wait (WHY_KV) */
	int64_t  cmd_words;       /* words of commands held; 0 = 64 K and 8 per sequence.  A request's
	                             BEGIN and up to 16 words more (stop ids, mostly) are free */
	struct sched_drafts {     /* guesses of what comes next, by what stands in the sequence already */
		int32_t most;     /* of a row: 0 = none, up to SCHED_DRAFT_MOST; limits.drafts of a batch */
		int32_t least, longest; /* ids that must stand there once more; more than `longest` are no better */
	} drafts;
	uint64_t age_ns;          /* a request that waited this long may get the next place by age; 0 = 5 s */
	uint64_t silent_ns;       /* a guided request that waits this long for a guide ends; 0 = 10 s */
	uint32_t blocked_ns;      /* a row whose client has no room this long gives way; 0 = 10 ms */
	struct sched_ran {        /* the caller's, written before launches: the names of all that run */
		uint64_t *n, *of; /* n NULL: nothing is written; *n may be above `most`: then of[] is not valid */
		int32_t  most;
	} ran;
};

struct sched_stats {
	int32_t  running, waiting, preempted;
	int64_t  waiting_tokens;
	double   prompt_token_ns;                  /* time that a prompt token adds to a batch; 0: not known */
	uint64_t samples, late, finished, cached_tokens;
	enum sched_why why;                        /* how the time until the next step is counted */
	struct {                                   /* the last batch reaped; a step reaps at most one */
		uint64_t begin_ns;
		int32_t  rows, tokens;
		uint32_t host_ns, device_ns;       /* time it waited for the host; time it computed */
		uint8_t  why, bound;
	} last;
};

/* 0, -EINVAL (impossible limits, knobs or costs), -ENOMEM.  kv and backend must outlive it. */
int  sched_create(struct sched **out, const struct sched_config *cfg, struct kv *kv,
                  const struct sr_backend_ops *ops, struct sr_backend *b,
                  const struct sched_port *port);
void sched_destroy(struct sched *s);

/* 0, or -ERANGE: a knob above its ceiling, or below 1 where 1 is the least. */
int  sched_set(struct sched *s, const struct sched_knobs *k);

/* Call this before taking a request from a client.  A request not taken stays with its client, and
 * that is the only back-pressure.  A tenant may queue up to 8 times what it leaves free (8/9
 * of the queue when alone).  Each of its clients may queue up to 8 times what the tenant has left.  So
 * no tenant can shut out another.  Together they leave room for the longest prompt of a tenant that
 * has nothing queued, or half of the queue.
 * SCHED_OVER: the tenant or client has its share; others may have room.  SCHED_FULL: until requests
 * leave, there is no room for any request of this size, or no entry for one more tenant.
 * n_words: words of the request's commands without the BEGIN's; their pool is shared by the same rule.
 * It holds until the next call that changes the scheduler: sched_admit does not ask again. */
enum sched_room { SCHED_ROOM, SCHED_FULL, SCHED_OVER };
enum sched_room sched_full(const struct sched *s, const void *client, uint64_t tenant, int32_t n_prompt,
                           int32_t n_words);

/* 0; -EEXIST user_data is live for this client; -EAGAIN no record for its end; -E2BIG its words (commands,
 * and its ids where the device needs them) could never fit a batch; -EIO the device is lost.  The caller
 * has checked lengths, ids and numbers, and sched_full said SCHED_ROOM: if not, that is an assert. */
int  sched_admit(struct sched *s, void *client, uint64_t tenant,
                 const struct sched_request *q, uint64_t now);

/* Guided answers.  Ask this besides sched_full for a guided request: of limits.masks / 2 guided requests in
 * all, waiting or running, a tenant gets 8 times what it leaves free. */
enum sched_room sched_guides_full(const struct sched *s, uint64_t tenant);
uint32_t sched_guides_alone(uint32_t all);   /* how many of `all` a tenant gets that is alone */

/* What the next tokens of an answer may be.  index 0 is the first token of the answer, and n_answer the first
 * that is guided. */
enum { SCHED_FORCED = 64 };   /* most ids of SR_GUIDE_IS that are not yet tokens */
struct sched_guide {
	int32_t index, kind, n;       /* enum sr_guide_kind */
	const int32_t *id;            /* [n]; n is up to SR_GUIDE_IDS, SCHED_FORCED for SR_GUIDE_IS */
	const uint32_t *bits;         /* BITS: [(vocab + 31) / 32]; copied before the call returns */
};

/* 0; -ENOENT no guided request of this name is live (it may have just ended); -EPROTO: an id outside the
 * vocabulary, a wrong number of ids, more than SCHED_FORCED ids, an index that is not the next without a guide,
 * or another guide than SR_GUIDE_IS came before and its token is not emitted yet (with SR_GUIDE_FREE and ids:
 * none of the ids is).  Nothing changes then.
 *
 * A row that draws is planned if its guide is there, or if guides of this sequence came in time lately.  Then
 * the guide may come until the row's logits are sampled.  If it does not, the row misses: nothing is drawn, and
 * it is computed again once the guide is there.  Answers are the same either way.  A stop id ends a guided answer
 * even before min_position: it can be drawn there only if the guide leaves nothing else. */
int  sched_guide(struct sched *s, void *client, uint64_t user_data, const struct sched_guide *g);

/* End one request, or all of a client that is gone (it gets no more port calls).  Never needs
 * room, so cancels are read even when nothing else is.  Slot and blocks are free at once.
 * Unknown user_data is not an error: the request may have just ended. */
void sched_cancel(struct sched *s, void *client, uint64_t user_data);
void sched_forget(struct sched *s, void *client);

/* One step.  Returns the work done (reaped + moved + launched); 0: the loop may idle.  -EIO: the
 * device is lost, and every request got its end.  If the back end can start its device anew (ops->again), a loss
 * preempts every sequence instead, and steps return 0 until the device is back: no token is lost or sent twice.
 * In inline mode the loop calls ops->work
 * after it, whose yield may admit, cancel and forget. */
int  sched_step(struct sched *s, uint64_t now);

bool sched_busy(const struct sched *s); /* anything waiting, running or in flight, or the device being started? */
int32_t sched_flying(const struct sched *s); /* number of the oldest batch in flight; -1: none */

/* Expected ns until the oldest batch in flight is done, by earlier batches; until then the device
 * needs nothing from the host.  0: none is in flight, it is due, or no such batch was seen yet. */
uint64_t sched_spare(const struct sched *s, uint64_t now);

/* Expected ns that the oldest batch in flight takes, by earlier batches.  0: as above. */
uint64_t sched_takes(const struct sched *s);

/* Give up the device, whatever it reports: every request gets its end.  Returns -EIO, and so does
 * every later step. */
int  sched_lose(struct sched *s);

/* The share of the time under way for which the daemon's threads lacked a core, by enum stats_cores, as it was
 * measured last; it holds until the next call.  all: the device computes on these cores, so each lack delays it.
 * Else only the host's time is divided. */
void sched_lack_cores(struct sched *s, const double share[N_CORES], bool all);
void sched_stats(const struct sched *s, struct sched_stats *out);
void sched_check(const struct sched *s); /* every slot, block, chunk and record has one owner */

#endif
