/* kept.h - a request that the daemon has or shall get, as it was asked, and the ids of its answer so far.
 * With these and the seed it can be submitted again, and the answer goes on where it was: after the
 * daemon's end, or in another one.
 *
 * Belongs to one engine (engine.h) and lies in its tenant's queue while it waits.  The request's pointers are
 * the owner's; the ids are ours.
 */
#ifndef KEPT_H
#define KEPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shmring/slipring.h"
#include "adapters/http/tenants.h"

#define KEPT_BYTES (64u << 20) /* the most bytes of ids that one engine keeps: 16 million tokens */
#define KEPT_VAIN  2           /* daemons that died while they computed it, without a token between: it may be
                                  what kills them, so the next death ends it */
#define KEPT_FAULTS 8          /* and such deaths in all */
#define KEPT_WAITS 16          /* deaths in a row while it only waited: to take it may be what kills them */

/* Bytes of all ids that an engine keeps. */
struct kept_bytes { uint64_t n; };

struct kept {
	struct waiter waiter;        /* first */
	uint32_t slot;
	struct sr_request q;
	int32_t *id;                 /* [n_ids]: of the answer */
	uint32_t n_ids, cap;
	uint32_t n_scored, again;    /* prompt tokens whose scores came; of these, that will come again */
	uint8_t  faults, vain;       /* deaths of daemons that computed it; those since its last token */
	uint8_t  waited;             /* deaths of those where it waited, since its last token */
	bool     moved;              /* it was in another daemon, or in this one before it started anew */
	bool     counted;            /* engine.c: and that move has been counted */
	bool     forgot;             /* there was no room for its ids: it cannot be moved once it has begun */
	uint32_t answers;            /* sr_model_info.answers of the daemon where it began */
	uint64_t asked, first;       /* when it was submitted first, and when its first token came; 0: not yet */
};

struct kept *kept_create(const struct sr_request *q, uint32_t slot, enum waiter_kind kind, uint64_t now);
void kept_free(struct kept *k, struct tenant *t, struct kept_bytes *all);

/* It goes from one engine to another. */
void kept_carry(struct kept *k, struct tenant *from, struct kept_bytes *all, struct tenant *to,
                struct kept_bytes *all_to);

/* A token or prompt token came.  False: it came before, and its owner must not get it again. */
bool kept_token(struct kept *k, struct tenant *t, struct kept_bytes *all, const struct sr_token *token);
/* The daemon ended without ending it.  fault: it was not told to; ran: it computed it.  0, or why the request
 * cannot be moved: -ECONNABORTED, daemons die of it; -ECONNRESET, its ids were forgotten. */
int  kept_move(struct kept *k, bool fault, bool ran);
/* What to submit now: *q is it.  Free the result, which q->prompt may point to.  0, -ENOMEM. */
int  kept_request(struct kept *k, struct sr_request *q, int32_t **joined);
/* Its END came, from the last of several daemons: times are those of the whole request. */
void kept_end(const struct kept *k, struct sr_end *e);

#endif
