/* clients.h - who is connected: accepts ring clients, carries requests from their rings to
 * the scheduler and tokens back, wakes those that sleep, and clears up after the dead.  The
 * only file that sees both the rings and the scheduler.  Belongs to the loop's thread.
 */
#ifndef CLIENTS_H
#define CLIENTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/io.h"
#include "core/record.h"
#include "core/sched.h"
#include "core/stats.h"

struct clients;
struct empty;

/* A token with n alternatives takes 1 + ceil(max(0, n - HERE) / PER) records: sched_config. */
enum { CLIENTS_TOPS_HERE = 4, CLIENTS_TOPS_PER = 6 };

struct clients_config {
	int32_t  max;                 /* connections */
	int32_t  max_per_uid;
	uint32_t live, tokens, arena; /* most a connection is granted, see sr_shape */
	size_t   stranger_bytes;      /* of memory shared with strangers, all together; 0 = any */
	uint32_t take;                /* requests of one client per turn (R8) */
	uid_t    gateway;             /* whose records may name a tenant; -1 = nobody but our own */
	bool     scope_global, scope_tenant; /* --prefix-cache-scope; neither: by uid */
	int32_t  vocab, context;
	const int32_t *eos;           /* [n_eos] end an answer unless SR_IGNORE_EOS */
	int32_t  n_eos;
	char     model_name[64];
	uint8_t  vocab_hash[32];
	uint64_t stall_ns;            /* a client with a full ring that reads nothing so long has its
	                                 requests cancelled; 0 = never */
	bool     works;               /* our thread is what computes: no time of it is spare */
	struct recorder *recorder;    /* told of each request and its end; NULL = nobody is */
	struct stats_page *stats;     /* where requests' times, tokens and ends are counted (not
	                                 connections: clients_stats); may be NULL */
};

struct clients_stats {
	int32_t  connected;
	uint64_t accepted, refused;   /* connections */
	uint64_t died;                /* went away with requests under way */
	uint64_t poisoned;            /* dropped: they broke the protocol, or their memory */
	uint64_t taken, invalid;      /* requests; of them wrong ones */
	uint64_t stalled;             /* times a slow reader's requests were cancelled */
};

/* listen_fd: a listening SEQPACKET socket, owned from now on.  0, -EINVAL, -ENOMEM, -errno. */
int  clients_create(struct clients **out, const struct clients_config *cfg, struct io *io,
                    int listen_fd);
void clients_destroy(struct clients *cl);

/* The port to give to sched_create, and then the scheduler it works for. */
void clients_port(struct clients *cl, struct sched_port *out);
void clients_attach(struct clients *cl, struct sched *s);

/* Cancels first, then requests, so many of each client per turn; forgets the dead.  Returns
 * the work done.  Also what the back end's yield calls. */
int  clients_take(struct clients *cl, uint64_t now);

/* Publish what this turn emitted: one fence, then a signal to each client that sleeps. */
void clients_flush(struct clients *cl);

/* Once a turn, after clients_flush: what the kernel has to do for connections, memory for who comes
 * and what who is gone had, is tens of us each.  One such chore at most, and while others are served
 * in the device's time, if it has enough, or in a sixteenth of ours.  Returns the work done. */
int  clients_chores(struct clients *cl);

/* Before the loop sleeps: ask every client for a signal, then look once more.  True: nothing
 * is there, sleep.  clients_awake: back. */
bool clients_arm(struct clients *cl);
void clients_awake(struct clients *cl);

/* Hear from each what it was doing since the last time (empty.h), and note it in its row if the
 * time since was in part empty. */
void clients_doing(struct clients *cl, struct empty *e, uint64_t now);

/* Draining: accept nobody new, end new requests with -ECONNRESET at once. */
void clients_drain(struct clients *cl);
void clients_stats(const struct clients *cl, struct clients_stats *out);

#endif
