/* engine_impl.h - what engine.c and engine_hold.c share. */
#ifndef ENGINE_IMPL_H
#define ENGINE_IMPL_H

#include "engine.h"
#include "kept.h"
#include "adapters/http/tenants.h"

#define RETRY_MIN (50 * 1000000ull)          /* ns; doubled up to 2 s */

enum engine_state { FREE, QUEUED, LIVE };

struct engine_slot {
	enum engine_state state;
	uint32_t gen;                /* in the upper half of user_data and of handles */
	uint32_t ticket;             /* LIVE */
	bool cancel;                 /* a cancel is still to be sent: the cancel ring was full */
	bool cancelled;              /* the owner has cancelled it */
	bool waits;                  /* waits for its first token */
	bool returns;                /* LIVE: it is cancelled because the daemon drains, and goes on later */
	bool limited;                /* LIVE, with SR_GUIDED or SR_POOLED */
	bool guided, pooled;         /* as its flags say */
	uint32_t n_prompt, fresh;    /* tokens of the prompt; those that must be computed, as far as is known */
	void *owner;                 /* NULL = the owner dropped it */
	struct tenant *tenant;
	struct kept *kept;           /* while QUEUED, and while LIVE if the daemon may refuse it or go */
	uint32_t next;               /* FREE: the next free slot */
};

#define NONE UINT32_MAX

struct engine {
	struct engine_config c;
	struct io *io;
	struct workers *workers;
	struct sr_conn *conn;        /* NULL = the daemon is away */
	struct sr_model_info model;
	struct io_watch watch;
	struct io_timer again, retry, probe, patience;
	uint64_t down_at;            /* since when requests are held: it went, or leaves; 0: they are not */
	bool resting;                /* engine_rests() */
	bool leaving;                /* connected, but it takes nothing more: it drains, or its device is lost */
	struct kept_bytes kept;
	uint64_t backoff;
	uint64_t since;              /* when n_live last rose from 0 */
	bool slow;                   /* engine_slow() */
	bool wrong, probing;         /* wrong: other vocabulary; probing: the timer `probe` is set */
	bool behind;                 /* the ring was not empty after a turn */
	bool full;                   /* the daemon can take no more for now */
	bool no_room;                /* because the ring had no room for the next request */
	bool limited_full;           /* it can take no more guided or pooled ones until one of ours ends */
	unsigned n_live, n_cancel;
	int doing[2];                /* requests in SR_PREPARING and SR_ARRIVING, reported on each connect */
	struct tenants tenants;      /* hold requests */
	uint64_t n_waits;            /* requests without a token */
	uint64_t fresh, sent;        /* engine_work() */
	uint32_t expected;           /* engine_expect(), for the next request */
	uint64_t waits, tokens;      /* these, and their prompt tokens; of each tenant at most its share */
	unsigned n_wait;             /* tenants that have such requests */
	struct engine_slot *slot;
	uint32_t n_slots, free;      /* slots allocated; first of the FREE list */
	struct dial *attempt;
	struct sr_token token;       /* being assembled from its records */
	float *vector;               /* [model.width] of the request that ends; NULL: the daemon makes none */
};

/* engine.c */
void engine_count(struct engine *e, struct tenant *t, int by, uint64_t prompt);
void engine_unlive(struct engine *e, struct engine_slot *s);
uint32_t engine_slot_take(struct engine *e);
void engine_slot_free(struct engine *e, uint32_t i);
void engine_end_slot(struct engine *e, uint32_t i, int finish, const struct sr_token *t);
void engine_enqueue(struct engine *e, uint32_t i);
void engine_cancel_slot(struct engine *e, struct engine_slot *s);
void engine_retry_later(struct engine *e);
uint64_t engine_handle(const struct engine *e, uint32_t i);

/* engine_hold.c */
bool engine_holds(const struct engine *e);
bool engine_keeps(const struct engine *e);
int  engine_hold(struct engine *e, uint32_t i, bool fault);
void engine_leaves(struct engine *e);
void engine_lost(struct engine *e);
void engine_other_model(struct engine *e);
void engine_on_patience(struct io_timer *t);

#endif
