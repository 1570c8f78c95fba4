/* engine.h - the adapter's connection to the daemon: one ring connection, on the io loop.
 *
 *	            sr_open (worker)                 -ECONNRESET
 *	  AWAY ───────────────────────► CONNECTED ─────────────────► AWAY, all requests end,
 *	   ▲  timer, 50 ms .. 2 s            │                        timer set
 *	   └── failed, or other vocabulary ──┘
 *
 * What the ring has no room for waits here, a line for each tenant, served in turn (tenants.h).  A
 * tenant leaves some of the places in the daemon, and of those here, to others: so beside one with
 * thousands of requests another's goes to the daemon at once, whose scheduler is fair.
 *
 * A request that ends with -EAGAIN was turned away because the daemon holds as much of its tenant as
 * it may (wire.md).  It goes back to its place in the line, and is submitted again when something of
 * its tenant has left the daemon's queue, or 10 ms later.
 *
 * Between submit and end() (or engine_drop) everything that the sr_request points to must
 * stay: it may still be waiting.
 */
#ifndef ENGINE_H
#define ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/io.h"
#include "queue.h"
#include "shmring/slipring.h"

struct engine;
struct workers;

#define ENGINE_LIVE  2048      /* requests under way in the daemon, if it grants them */
#define ENGINE_QUEUE 8192      /* and waiting here */

struct engine_config {
	const char *socket;
	char name[32];               /* for slipring top */
	uint8_t vocab_hash[32];      /* of our tokenizer: the daemon's must be the same */
	bool tenants;                /* requests name tenants: log it if the daemon does not hear them */
	uint64_t max_requests, max_tokens; /* that may wait, see queue.h */
	/* A whole token, or prompt token, of an owner; its end: enum sr_finish or -errno.  Both may
	 * call anything here. */
	void (*token)(void *owner, const struct sr_token *t);
	void (*end)(void *owner, int finish, const struct sr_token *t); /* t NULL: connection lost */
	void (*preempted)(void *ctx, unsigned times);       /* of every request that ended */
	void *ctx;
};

int  engine_create(struct engine **out, struct io *io, struct workers *w, const struct engine_config *c);
void engine_destroy(struct engine *e);    /* after workers_destroy; owners get no end */

const struct sr_model_info *engine_model(const struct engine *e); /* NULL while away */
bool engine_wrong_model(const struct engine *e); /* it is there, and serves other ids */
unsigned engine_live(const struct engine *e);     /* requests that the daemon has */
uint64_t engine_since(const struct engine *e);   /* when they became more than none */
unsigned engine_room(const struct engine *e, uint64_t tenant); /* how many more it may submit now */
bool engine_behind(const struct engine *e);  /* the daemon has made more than a turn of ours takes */
struct queue_load engine_load(const struct engine *e, uint64_t tenant);

/* `by` more requests, or fewer, are being prepared or arrive: sr_doing(), over all connections. */
void engine_doing(struct engine *e, int what, int by);

/* 0 and *handle; -EAGAIN the queue, or its tenant's share of it, is full; -ECONNREFUSED away; or what
 * sr_submit says. */
int  engine_submit(struct engine *e, const struct sr_request *q, void *owner, uint64_t *handle);
void engine_cancel(struct engine *e, uint64_t handle); /* its end will come */
void engine_drop(struct engine *e, uint64_t handle);   /* the same, and owner hears no more */

#endif
