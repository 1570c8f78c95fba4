/* engine.h - the adapter's connection to the daemon: one ring connection, on the io loop.
 *
 *	            sr_open (worker)                 -ECONNRESET
 *	  AWAY ───────────────────────► CONNECTED ─────────────────► AWAY, requests are held for
 *	   ▲  timer, 50 ms .. 2 s            │                        wait_ns, timer set
 *	   └── failed, or other vocabulary ──┘
 *
 * An attempt has a second and the timer's time, so the later ones bear a daemon that is stopped for 3 s.
 *
 * What is held goes on when the daemon is back: a request that had not begun is submitted as it was; one that
 * had, with the ids of its answer (kept.h, sr_request.n_answer), so its owner sees one answer without a seam.
 * Requests must have a seed for that.  New requests join those that are held.  After wait_ns all of them end
 * with -ECONNRESET.  A request ends with -ECONNABORTED if daemons die of it, as far as one can see: each time
 * it was among those that the daemon computed.
 *
 * Requests that find no room in the ring wait here, in one queue per tenant, served in turn (tenants.h).
 * Each tenant leaves some places, in the daemon and here, to others.  So if one tenant has thousands of
 * requests, another's request still goes to the daemon at once, whose scheduler is fair.
 *
 * The daemon grants fewer guided and pooled requests (SR_GUIDED, SR_POOLED) than requests.  Those beyond that
 * wait, and the others pass them: each tenant has a queue for either kind.
 *
 * The daemon ends a request with -EAGAIN to refuse it: its tenant's share there is full (wire.md).  The
 * request returns to its place in the queue.  It is submitted again when a request of its tenant has left
 * the daemon's queue, or 10 ms later.
 *
 * Between submit and end() (or engine_drop) everything that the sr_request points to must
 * stay, because the request may still wait here.
 */
#ifndef ENGINE_H
#define ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/instance/io.h"
#include "adapters/http/queue.h"
#include "shmring/slipring.h"

struct engine;
struct workers;

#define ENGINE_LIVE  2048      /* the most requests in the daemon, if it grants them */
#define ENGINE_QUEUE 8192      /* the most requests that wait here */
#define ENGINE_GUIDED 512      /* the most guided requests in the daemon, if it grants them */
#define ENGINE_VECTORS 256     /* the most pooled requests in the daemon, if it grants them */

struct engine_config {
	const char *socket;
	char name[32];               /* shown by slipring top */
	uint8_t vocab_hash[32];      /* of our tokenizer: the daemon's must be the same */
	bool tenants;                /* requests name tenants: log it if the daemon ignores them */
	uint64_t max_requests, max_tokens; /* limits on what waits, see queue.h */
	bool rests;                  /* the daemon stops when it is idle, and a connection starts it */
	_Atomic uint64_t *woken;     /* counts these starts */
	uint64_t wait_ns;            /* how long requests are held while the daemon is away; 0: not at all */
	/* token: a complete token or prompt token of an owner.  end: finish is an enum sr_finish or
	 * -errno.  Both may call any function of this header. */
	void (*token)(void *owner, const struct sr_token *t);
	void (*end)(void *owner, int finish, const struct sr_token *t); /* t NULL: connection lost */
	/* Instead of both, for a request with SR_POOLED: its n elements, valid during the call; 0: it failed. */
	void (*vector)(void *owner, int finish, const struct sr_token *t, const float *vector, uint32_t n);
	/* A request with SR_GUIDED went to the daemon, perhaps again: its guides are wanted from the next token
	 * on.  It may call engine_guide() and engine_cancel(). */
	void (*submitted)(void *owner);
	/* A token of it was drawn; last: it is the answer's last.  For all tokens of one poll this is called
	 * before the first token(), so that no guide waits for the text of others. */
	void (*drawn)(void *owner, int32_t id, bool last);
	void (*preempted)(void *ctx, unsigned times);       /* for every request that ended */
	void (*connected)(void *replica);                   /* to the daemon, perhaps again; or NULL */
	void *replica;
	void (*moved)(void *ctx, uint32_t n);     /* one was submitted again, with n tokens of its answer */
	/* A request is not held here, but waits in `to` from now on, by this handle. */
	void (*handed)(void *owner, bool pooled, struct engine *to, uint64_t handle);
	/* Which engine shall have a request of `from`, which is not up?  answers: only one whose daemon has this
	 * number, or 0.  NULL: none; the request is held. */
	struct engine *(*elsewhere)(void *fleet, const struct engine *from, const struct sr_request *q,
	                            uint32_t answers);
	/* Is there such an engine?  NULL: the model has one daemon. */
	bool (*other)(void *fleet, const struct engine *from, uint32_t answers);
	/* The handles of the requests that the daemon computed when it died; NULL: it is not known. */
	const uint64_t *(*ran)(void *replica, int *n);
	void *ctx, *fleet;
};

int  engine_create(struct engine **out, struct io *io, struct workers *w, const struct engine_config *c);
void engine_destroy(struct engine *e);    /* after workers_destroy; calls no end() */

const struct sr_model_info *engine_model(const struct engine *e); /* NULL while away and nothing is held */
bool engine_rests(const struct engine *e);       /* the daemon stopped when idle: submit starts it */
void engine_wake(struct engine *e);              /* so does this, for requests to come */
bool engine_up(const struct engine *e);          /* connected, and the daemon takes requests */
bool engine_slow(const struct engine *e);        /* a daemon listens, but did not answer in time */
bool engine_wrong_model(const struct engine *e); /* a daemon is there, but has another vocabulary */
unsigned engine_live(const struct engine *e);     /* requests that the daemon has */
uint64_t engine_since(const struct engine *e);   /* when engine_live last rose from 0 */
unsigned engine_room(const struct engine *e, uint64_t tenant); /* requests it may still submit */
void engine_take(struct engine *e);          /* take what the daemon has made, one turn's worth */
bool engine_behind(const struct engine *e);  /* one turn could not take all that the daemon has made */
struct queue_load engine_load(const struct engine *e, uint64_t tenant);

/* Add `by` (may be negative) to the requests being prepared or arriving.  Kept across reconnects; reported
 * by sr_doing(). */
void engine_doing(struct engine *e, int what, int by);

/* 0 and *handle; -EAGAIN: the queue or the tenant's share of it is full; -ECONNREFUSED: the daemon is away;
 * or an error of sr_submit. */
int  engine_submit(struct engine *e, const struct sr_request *q, void *owner, uint64_t *handle);
/* The next request that is submitted needs only so many of its prompt's tokens computed; by default all. */
void engine_expect(struct engine *e, uint32_t tokens);
/* Requests submitted since the start; those without a first token; prompt tokens to compute for these. */
struct engine_work { uint64_t sent, waits, fresh; };
struct engine_work engine_work(const struct engine *e);
/* sr_guide() of a request that was submitted(); -ESRCH: it is not in the daemon. */
int  engine_guide(struct engine *e, uint64_t handle, uint32_t index, uint32_t kind, const int32_t *ids,
                  uint32_t n, const uint32_t *bits);
void engine_guide_took(struct engine *e, uint32_t us); /* sr_guide_took() */
void engine_cancel(struct engine *e, uint64_t handle); /* end() still follows */
/* The daemon drains: it gets nothing more.  Take back what it has, so that it can end at once, and hold it.
 * But what has begun stays while no other daemon computes the same.  Called again, it looks again. */
void engine_leave(struct engine *e);
void engine_drop(struct engine *e, uint64_t handle);   /* cancel; no more calls for owner */

#endif
