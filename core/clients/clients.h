/* clients.h - the ring clients: accepts them, carries requests from their rings to the
 * scheduler and tokens back, wakes those that sleep, and clears up after those that died.  The
 * only file that sees both the rings and the scheduler.  Belongs to the loop's thread.
 */
#ifndef CLIENTS_H
#define CLIENTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/instance/io.h"
#include "core/instance/record.h"
#include "core/sched/sched.h"
#include "core/instance/stats.h"
#include "core/prefix.h"

struct clients;
struct empty;

struct clients_config {
	int32_t  max;                 /* connections */
	int32_t  max_per_uid;
	uint32_t live, tokens, arena; /* most a connection is granted, see sr_shape */
	uint32_t guides;              /* guided answers that a connection may have; its rings may have room for more */
	uint32_t vectors;             /* places for vectors of a connection */
	size_t   stranger_bytes;      /* most memory shared with all untrusted clients together, now and in the
	                                 last 10 s; 0 = no limit */
	uint32_t take;                /* most requests of one client per turn (R8) */
	uid_t    gateway;             /* its requests may name a tenant; -1 = only our own uid's may */
	enum prefix_scope scope;      /* --prefix-cache-scope */
	struct prefix_secret secret;  /* the keys of salts and tenants are made from it */
	int32_t  vocab, context;
	int32_t  width;               /* most elements of a vector; 0: there are none */
	bool     only_pooled;         /* the model is an encoder or classifies */
	bool     labels;              /* it classifies: vectors are logits of labels */
	const int32_t *eos;           /* [n_eos] end an answer unless SR_IGNORE_EOS */
	int32_t  n_eos;
	char     model_name[64];
	uint8_t  vocab_hash[32];
	uint32_t answers;             /* as in sr_model_info */
	struct sr_sampling sampling;  /* the same */
	uint32_t max_tokens;          /* the same */
	uint64_t stall_ns;            /* a client with a full ring that reads nothing for this long
	                                 has its requests cancelled; 0 = never */
	bool     works;               /* our thread computes too: chores take time from computing */
	struct recorder *recorder;    /* records each request and its end; NULL = no recording */
	struct counters *counters;    /* the caller's: connections, tokens and ends are added */
	struct stats_page *stats;     /* rows of clients, histograms of requests; may be NULL */
};

struct clients_stats {
	int32_t  connected;
	uint64_t poisoned;            /* dropped: they broke the protocol, or took away their memory */
	uint64_t taken;               /* requests */
	uint64_t stalled;             /* times a slow reader's requests were cancelled */
};

/* listen_fd: a listening SEQPACKET socket, owned by *out from now on.  0, -EINVAL, -ENOMEM, -errno. */
int  clients_create(struct clients **out, const struct clients_config *cfg, struct io *io,
                    int listen_fd);
void clients_destroy(struct clients *cl);

/* The port for sched_create, and then the scheduler that uses it. */
void clients_port(struct clients *cl, struct sched_port *out);
void clients_attach(struct clients *cl, struct sched *s);

/* Take cancels first, then requests, at most `take` of each client per turn; remove gone clients.
 * Returns the work done.  The back end's yield calls it, too. */
int  clients_take(struct clients *cl, uint64_t now);

/* Publish this turn's output: one fence, then a signal to each client that sleeps. */
void clients_flush(struct clients *cl);

/* Call once a turn, after clients_flush.  The kernel's work for connections (memory for new clients,
 * and freeing that of gone ones) takes tens of us each.  At most one such chore runs per call.  While
 * requests are under way it runs only in the device's time if there is enough, or in 1/16 of this
 * thread's.  Returns the work done. */
int  clients_chores(struct clients *cl);

/* Before the loop sleeps: ask every client for a signal, then look once more.  True: nothing
 * is there, sleep.  clients_awake: the loop is awake again. */
bool clients_arm(struct clients *cl);
void clients_awake(struct clients *cl);

/* Read what each client did since the last call (empty.h).  Note it in its row if part of that
 * time was empty. */
void clients_doing(struct clients *cl, struct empty *e, uint64_t now);

/* Draining: accept no new client, and end new requests with -ECONNRESET at once. */
void clients_drain(struct clients *cl);
void clients_stats(const struct clients *cl, struct clients_stats *out);

#endif
