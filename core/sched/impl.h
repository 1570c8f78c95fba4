/* sched/impl.h - the scheduler's own structures, for this folder alone:
 *
 *	create.c  create, destroy, knobs
 *	admit.c   a request becomes a sequence; it is preempted, parked, or ends
 *	queue.c   waiting: tenants, order, quotas, deadlines, names
 *	guide.c   guided sequences: guides come, rows wait for them or miss
 *	fill.c    what goes into the next batch
 *	reap.c    results
 *	step.c    one step of all this; where the time went
 *	draft.c   guesses: rows that may yield several tokens
 *	draft_time.c  how long a batch takes, by its tokens
 *	ids.c     the pool of ids and of words of commands
 *	check.c   the invariants
 *
 * Sequences are numbers into seq[]; NONE is no sequence.
 */
#ifndef SCHED_IMPL_H
#define SCHED_IMPL_H

#include "core/sched/sched.h"

#define NONE       (-1)
#define DEPTH_MAX  8
#define WORDS_HERE 16        /* up to this many words of commands lie in the sequence itself */
#define LEADERS    256       /* a power of two */
#define AGED_EVERY 8         /* one place of 8 goes by age */
#define FORCED      (-2)     /* of a row: see guide_hold() */
#define GUIDE_TRUST 64       /* after this many guides in time a miss counts as the first */
#define GUIDE_DOUBT 8        /* most guides that must be in time, before rows are planned without theirs again */
#define GUIDE_FORCED (2 * SCHED_FORCED) /* positions of forced ids span SCHED_FORCED and the choice */
#define GUIDE_PATIENCE 10    /* times blocked_ns that a sequence without its guide may keep what others want */
#define DRAFT_KINDS 4        /* of matches, by their length */
#define AHEAD      6         /* rows that are prefetched ahead; twice as many where a first
                                prefetch finds the address of a second */

/* GCC removes calls to functions that only prefetch, so these are always inlined. */
#define PREFETCH static inline __attribute__((always_inline))

/* For code that runs once per decoding row. */
#define HOT  static inline __attribute__((always_inline))

enum seq_state { SEQ_FREE, SEQ_WAITING, SEQ_RUNNING };

/* planned <= known, have <= known <= end.  A sequence decodes once `drawn`: its next input is
 * what the device sampled last, so its ids are no longer sent.
 *
 * Cache line 1: all that a decoding row reads and writes in each step.  Line 2 is read only if the
 * sequence has stop ids. */
struct seq {
	_Alignas(64) void *client;
	uint64_t user_data;
	struct kv_chunk *tail;   /* last chunk of its ids; always has room */
	int32_t  slot;           /* NONE unless running */
	uint32_t gen;            /* raised to drop rows in flight */
	int32_t  planned;        /* tokens whose K,V are computed or in flight */
	int32_t  have;           /* ids held */
	int32_t  known;          /* have, plus a placeholder for each sample in flight */
	int32_t  end;            /* n_prompt + max_tokens */
	int32_t  first;          /* position of the first token that it is given */
	int32_t  reserved;       /* records set aside, without the one for the end */
	int32_t  sent;           /* blocks of its table that the device knows */
	uint8_t  n_top, cost;    /* alternatives with each token; records a token takes */
	bool     drawn;          /* a sample is planned or drawn since it got its slot */
	bool     stops : 1;      /* it has stop ids */
	bool     guided : 1;     /* guide is valid */
	bool     drafts : 1;     /* its rows may have guesses */
	bool     other : 1;      /* guided or drafts: its rows are not just one token */
	bool     guessing : 1;   /* a row with guesses is in flight: no other may be planned */

	int32_t  stop, n_stop;   /* its stop ids, as words */
	int32_t  min_position;   /* the first at which they end it */
	int32_t  n_words;        /* of its commands after the BEGIN */
	struct kv_chunk *more;   /* the words, if more than WORDS_HERE */
	uint32_t word[WORDS_HERE];    /* the words, if few */

	struct sched_cmd cmd[SCHED_CMDS]; /* BEGIN first */
	int32_t  n_cmds;
	uint32_t begin[SCHED_BEGIN_WORDS]; /* the BEGIN's words */

	int32_t  n_prompt;
	int32_t  scored;         /* prompt ids before this place have had their log-probability sent */
	uint8_t  n_prompt_top, prompt_cost;
	bool     score, history, no_cache, progress;
	uint8_t  pool;           /* enum sr_pool, or 0 */
	int32_t  n_vector;       /* elements that a pooled request answers */
	struct kv_chunk *head;   /* first chunk of its ids */
	struct kv_chunk *cur;    /* chunk that was read last */
	int32_t  cur_at;         /* position of that chunk's first id */
	int32_t  n_chunks;
	int32_t  quota;          /* once started: chunks it may hold without asking again */
	int32_t  tenant, client_queue;

	enum seq_state state;
	bool     started;        /* it has run before */
	bool     looked_up;      /* its prompt is counted in prefix_queries */
	uint64_t order, deadline, scheduled;
	int32_t  priority;
	bool     aside;          /* waiting, and in s->aside */
	int32_t  guide;          /* number of its struct guide, and of its pair of mask places */
	int32_t  cached, computed, preempted;
	int32_t  held;           /* batches skipped while another row computed its prefix */
	uint64_t goal;           /* with states: name of the block behind which a snapshot will be kept; 0 = none */
	uint64_t blocked_since, blocked_filled; /* since when its client has no room; its slot's `filled` then */
	uint64_t blocked_last;   /* the last batch it was held back from */
	int32_t  wait_for;       /* it did not fit: retry when this many blocks are available */
	uint64_t wait_since;     /* it did not fit: retry when n_published differs from this */
	int32_t  prev, next;     /* by rank, while it waits; `next` also links the free list */
	int32_t  older, newer;   /* in its client's queue by arrival */
	uint64_t since;          /* time of arrival */
	int32_t  chained;        /* next in its bucket of names */
	int32_t  heap_at;        /* place in the deadline heap, or NONE */
	uint64_t salt, name;
};

/* What is kept of a guided sequence; guide.c says how the positions follow each other. */
struct guide {
	int32_t  told;           /* positions before this one have a guide */
	int32_t  choice;         /* position of the guide that leaves something to draw, or NONE */
	bool     any;            /* the choice is among all ids; else its bits are in a mask place */
	bool     again;          /* the slot must be given its history again */
	int32_t  n_until, until[SR_GUIDE_IDS];
	int32_t  bare;           /* last position for which a row without a mask was planned; 0 = none */
	int32_t  in_time;        /* rows since the last miss; up to GUIDE_TRUST */
	int32_t  doubt;          /* rows are planned without their guide if in_time is at least this */
	uint64_t since;          /* when it was first held back for the guide that is missing; 0 = it is not */
	uint64_t free_at;        /* free: batches launched when it was given back */
	int32_t  forced[GUIDE_FORCED]; /* ids, by position modulo GUIDE_FORCED */
};

/* A list of waiting sequences, first to last. */
struct seq_list { int32_t first, last, n; };

/* Deficit round robin (Shreedhar and Varghese, 1995) among those who wait; see queue.c.  A ring of
 * accounts: one of tenants, and in each tenant one of its clients. */
struct drr {
	int32_t  turn, n;        /* account whose turn it is; accounts in the ring */
	uint64_t rounds;         /* completed */
};

/* A tenant's account[t], or that of a client under a tenant, account[tenants + client queue]. */
struct account {
	int64_t  deficit;        /* tokens it may still plan in its turn; below 0: it owes */
	uint64_t at;             /* `rounds` of its ring when last credited */
	int32_t  priority;       /* the best priority waiting here */
	int32_t  prev, next;     /* in the ring, while something waits */
	uint64_t aged;           /* s->n_aged at its last place by age */
};

/* One client under one tenant. */
struct client_queue {
	void    *client;
	int32_t  tenant, live;   /* live requests; 0: the entry is free */
	struct seq_list by_rank; /* sequences never started, or parked because the client has no room */
	struct seq_list by_age;  /* the same, by arrival */
	int64_t  tokens;         /* ids of those sequences */
	bool     blocked;        /* the client has no room: in blocked[], not in its tenant's ring */
	int32_t  chained;        /* next in its bucket, or in the free list */
};

struct tenant_queue {
	uint64_t id;
	int32_t  live;           /* live requests; 0: the entry may be given to another tenant */
	uint64_t left;           /* when it became free: the oldest is reused first */
	int32_t  n;              /* sequences in its clients' queues */
	int64_t  tokens;         /* ids of those sequences */
	int32_t  word_chunks;    /* held by its live requests */
	int32_t  guides;         /* the same */
	struct drr drr;          /* of clients that wait */
	int32_t  n_best;         /* those in the ring with the tenant's priority */
};

/* A batch in flight: the sequence and generation of each row at launch. */
struct in_flight_row { int32_t seq; uint32_t gen; };
struct in_flight {
	int32_t  n, n_tokens, n_decode;
	int32_t  n_guesses;      /* of n_tokens */
	uint64_t at;             /* when it was launched */
	bool     pressed;        /* the device had work until then: a gap before this batch counts as host time */
	enum sched_why why;
	struct in_flight_row *row; /* [limits.rows] */
};

/* What is kept of a sequence whose rows may have guesses. */
struct draft {
	float    chance[DRAFT_KINDS]; /* that a guess is right, by the kind of its match */
	int32_t  shadow;         /* first guess for the token in flight; NONE */
	int32_t  match;          /* length of its match */
	bool     lucky;          /* the last guess was right, or worth its time */
};

/* How long a batch that decodes takes, by its tokens: draft_time.c. */
#define DRAFT_EACH   64          /* so many have a place each; beyond, 16 an octave */
#define DRAFT_PLACES (DRAFT_EACH + 8 * 16)
struct draft_time {
	double   base;           /* ns of a batch of one token */
	double   slope;          /* what a token more adds where nothing is measured, as a multiple of it */
	uint64_t n_batches;      /* measured */
	float    times[DRAFT_PLACES]; /* time at each place, as a multiple of the base */
	uint64_t at[DRAFT_PLACES];    /* n_batches then */
	uint8_t  seen[DRAFT_PLACES];  /* measurements since it was known last; up to 255 */
};

struct sched {
	struct sched_config cfg;
	struct sched_knobs knobs;
	struct {                 /* see sched_lack_cores() */
		double share[N_CORES];
		bool all;
		uint64_t left_out_ns; /* of batches that are done, and not yet counted */
	} cores;
	struct kv *kv;
	const struct sr_backend_ops *ops;
	struct sr_backend *b;
	struct sched_port port;

	struct seq *seq;         /* [n_seq] */
	int32_t  n_seq, free_seq;
	int32_t *bucket;         /* [bucket_mask + 1]: sequences by (client, user_data) */
	uint32_t bucket_mask;
	int32_t *heap, n_heap;   /* sequences with a deadline, the nearest first */

	struct tenant_queue *tenant; /* [cfg.tenants] */
	struct client_queue *client_queue; /* [n_seq] */
	int32_t  free_client_queue;
	int32_t *client_bucket;  /* [bucket_mask + 1]: by (client, tenant) */
	struct account *account; /* [cfg.tenants + n_seq] */
	struct drr drr;          /* of tenants */
	int32_t *blocked, n_blocked; /* client queues whose client has no room; [n_seq] */
	int32_t  n_queued;       /* sequences in all client queues */
	int64_t  queued_tokens;  /* ids of those sequences */
	struct seq_list preempted; /* preempted sequences, by rank */
	struct seq_list aside;   /* the same, but without the guide that they need: nobody's turn */
	int32_t  aged_head;      /* the sequence queue_head() chose by age, else NONE */
	int32_t  n_by_rank;      /* places given since the last one by age; up to AGED_EVERY */
	uint64_t n_aged;         /* places given by age */

	struct kv_table *table;  /* [slots] */
	int64_t  table_ints;     /* of the storage of one */
	bool     windows;        /* a group has a window */
	bool     states;         /* layers have a state */
	int32_t *free_slot, n_free_slot;
	bool    *taken, *ended;  /* [slots]: has an owner; END is not yet sent to the device */
	int32_t *ended_slot, n_ended;
	uint64_t *filled;        /* [slots] n_filled of the last batch with a row for the slot */
	int32_t *run, n_run;     /* running sequences, by rank */
	bool     run_changed;    /* since cfg.ran was written */

	struct kv_chunk *chunk;  /* [n_chunk] */
	struct kv_chunk **free_chunk;      /* a stack */
	int32_t  n_chunk, n_free_chunk;
	int32_t  start_chunks, start_used; /* chunks for started sequences; sum of their quotas */
	int32_t  word_chunks, word_used;   /* chunks for words of commands; in use */

	struct sr_masks masks;   /* places 2i and 2i + 1 are those of guide[i] */
	struct guide *guide;     /* [n_guide] */
	int32_t  n_guide;
	int32_t *free_guide, free_guide_at, n_free_guide; /* a ring: the one given back first is taken first */

	struct in_flight flight[DEPTH_MAX];
	struct kv_table **due;   /* [limits.rows]: tables of answers that just filled a block */
	int32_t *due_at, n_due;  /* their tokens that are known and computed; length of the list */
	uint64_t launched, reaped; /* they never wrap, so any depth works as divisor */
	enum sched_why why;
	enum sched_bound bound;  /* of the batch reaped last */
	uint64_t order;
	uint64_t n_published;    /* times that prompt blocks were published */
	uint64_t last_step, prev_end;
	struct { uint64_t name, batch; } leader[LEADERS]; /* next blocks that prompts in this batch compute, by
	                            name.  A collision costs one prefix computed twice */
	uint64_t n_filled;       /* batches filled or tried so far */
	bool     rows_blocked;   /* a running sequence may be held back because its client has no room */
	double   decode_ns;      /* time of a batch without prompts */
	double   prompt_ns;      /* time added by each prompt token; smoothed, 0 = not known */
	struct {
		struct draft_time time;
		struct draft *of; /* [n_seq]; NULL: none has guesses */
		float   *times;  /* [limits.drafts + 1]: of the batch being filled, by its guesses */
		float    chance[DRAFT_KINDS]; /* of all sequences; where one begins */
		int32_t *ids;    /* [context]: those of one sequence in one piece, while they are searched */
		int64_t  looked; /* ids searched in this step */
		int32_t  most;   /* guesses that the batch being filled may have */
	} draft;
	bool     lost;
	bool     away;           /* the device is being started anew */
	struct sched_stats stats;
};

/* State of one fill. */
struct fill {
	struct sr_batch *b;
	struct in_flight *f;
	uint64_t now;
	int32_t  budget;         /* new tokens this batch may have */
	int32_t  n_decode, n_scores; /* rows of one sampled token; results that are scores */
	int32_t  n_vectors;      /* rows that answer a vector */
	bool     prompts;        /* a running sequence may have prompt tokens to compute */
	bool     timed;          /* step_ns made the budget smaller than the knob */
	enum sched_why why;      /* WHY_EMPTY until a sequence is held back */
	int64_t  owed;           /* blocks that running prompts still need */
	int      moved;          /* sequences admitted or preempted */
};

/* Chunks that a started sequence with n tokens may hold: those for its tokens, the room at the
 * tail, and one more, so that decoding asks only once a chunk. */
static inline int32_t quota_for(int32_t n)
{
	return n / KV_CHUNK + 2;
}

/* Does q, which is running, have a row in the batch being filled? */
static inline bool in_fill(const struct sched *s, const struct seq *q)
{
	return s->filled[q->slot] == s->n_filled;
}

static inline bool ranks_before(const struct seq *a, const struct seq *b)
{
	return a->priority != b->priority ? a->priority < b->priority : a->order < b->order;
}

/* ---- sched/queue.c ---- */
int32_t queue_tenant(const struct sched *s, uint64_t id);
int32_t queue_tenant_join(struct sched *s, uint64_t id);
int32_t queue_of(const struct sched *s, const void *client, int32_t tenant);
int32_t queue_join(struct sched *s, void *client, int32_t tenant);
void    queue_leave(struct sched *s, int32_t client_queue);
void    queue_charge(struct sched *s, const struct seq *q, int32_t n);
void    queue_put(struct sched *s, int32_t i);
void    queue_take(struct sched *s, int32_t i);
bool    queue_room(const struct sched *s, int64_t n_ids);
void    queue_block(struct sched *s, int32_t client_queue);
void    queue_unblock(struct sched *s, int32_t client_queue);
int32_t queue_head(struct sched *s, uint64_t now);
void    queue_admitted(struct sched *s, int32_t i);
int32_t queue_find(const struct sched *s, const void *client, uint64_t user_data);
void    queue_name(struct sched *s, int32_t i);
void    queue_unname(struct sched *s, int32_t i);
void    queue_deadline(struct sched *s, int32_t i);
void    queue_deadline_off(struct sched *s, int32_t i);

/* ---- sched/ids.c ---- */
int32_t word_chunks_for(int32_t n_words);
void    ids_more(struct sched *s, struct seq *q);
void    ids_read(struct seq *q, int32_t from, int32_t n, int32_t *out);
void    ids_free(struct sched *s, struct seq *q);
bool    ids_may_start(const struct sched *s, const struct seq *q);
bool    ids_may_grow(struct sched *s, struct seq *q, int32_t n);
void    ids_started(struct sched *s, struct seq *q, int32_t quota);
void    words_store(struct sched *s, struct seq *q, const uint32_t *word);
void    words_read(const struct seq *q, uint32_t *out);
bool    words_stop(const struct seq *q, int32_t id);

/* The tail always has room: a new chunk is taken when the tail is full, not when it is needed. */
static inline void ids_append(struct sched *s, struct seq *q, int32_t id)
{
	if (!q->tail)
		ids_more(s, q);
	q->tail->id[(uint32_t)q->have++ % KV_CHUNK] = id;
	if ((uint32_t)q->have % KV_CHUNK == 0)
		ids_more(s, q);
}

/* ---- sched/admit.c ---- */
static inline void seq_summary(const struct seq *q, struct sched_event *e)
{
	e->cached = q->cached;
	e->scheduled = q->scheduled;
	e->computed = q->computed;
	e->preempted = q->preempted;
}

void seq_finish(struct sched *s, int32_t i, int32_t finish);
void seq_preempt(struct sched *s, int32_t i);
bool seq_park(struct sched *s, int32_t i);
bool seq_has_room(const struct sched *s, const struct seq *q);

/* ---- sched/guide.c ---- */
void    guide_join(struct sched *s, struct seq *q);
void    guide_leave(struct sched *s, const struct seq *q);
bool    guide_ready(const struct sched *s, const struct seq *q);
int     guide_hold(struct sched *s, const struct seq *q, uint64_t now);
int32_t guide_mask(struct sched *s, const struct seq *q);
void    guides_fill(struct sched *s, struct fill *x);
void    guide_missed(struct sched *s, struct seq *q);
int32_t guide_forced(const struct sched *s, const struct seq *q);
void    guide_drawn(struct sched *s, struct seq *q, int32_t id);
void    guide_check(const struct sched *s, const struct seq *q);

/* ---- sched/draft.c ---- */
void draft_create(struct sched *s);
void draft_join(struct sched *s, struct seq *q);
bool draft_waits(const struct sched *s, const struct seq *q);
void draft_fill(struct sched *s, struct fill *x);
void draft_heard(struct sched *s, struct seq *q, int32_t id);
void draft_reap(struct sched *s, struct seq *q, const struct sr_row *r, const struct sr_batch *b);
void draft_gained(struct sched *s, const struct in_flight *f, const struct sr_batch *b, uint64_t right);

/* ---- sched/draft_time.c ---- */
void   draft_time_create(struct draft_time *d);
void   draft_measure(struct draft_time *d, int32_t n, double ns, double share);
double draft_time(const struct draft_time *d, int32_t n);
void   draft_times(const struct draft_time *d, int32_t n, int32_t most, float *times);
int32_t draft_best(const float *times, int32_t most, const double *hoped, double expected);

/* ---- sched/fill.c ---- */
void fill_blocks(struct sched *s, struct fill *x, struct seq *q);
int  fill_batch(struct sched *s, uint64_t now, bool after_batch);

/* ---- sched/reap.c ---- */
int  reap_batch(struct sched *s, uint32_t *host_ns);
void reap_drawn(struct sched *s, struct seq *q, const struct sr_batch *b, int32_t result);
void reap_known(struct sched *s, struct seq *q, int32_t id, bool computed);

/* ---- sched/check.c: sched_check() ---- */

#endif
