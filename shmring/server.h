/* server.h - the daemon's side of a connection.  THE TRUST BOUNDARY: what passes out of here
 * was copied once out of memory that its client can write, and checked in the copy.
 *
 *	struct server        what all connections share: the rules, the sizes, a buffer
 *	struct server_conn   one client: its two memory objects and three rings
 *
 *	server_hello -> server_open, fill, server_welcome, [mapped] server_seal, fill, server_begin, then
 *	             -> server_refuse+-> server_cancel ..        each turn: cancels first,
 *	                             +-> server_peek, read, leave  then requests
 *	                             +-> server_reserve, token .., end
 *	                             +-> sr_ring_fence, server_wake   once per turn
 *	                             `-> server_arm, sr_ring_fence, server_ready, sleep, drain
 *
 * Belongs to one thread; only the SIGBUS handler may interrupt it.  Whatever a client does,
 * calls here take bounded time, touch nothing of another client, and say -EPROTO or -EFAULT
 * at worst: drop it then.  File descriptors passed in stay the caller's.
 */
#ifndef SR_SERVER_H
#define SR_SERVER_H

#include "wire.h"

#define SERVER_CONNS_MAX 4096     /* connections of one process: places in the SIGBUS table */

struct server;
struct server_conn;

struct server_config {
	struct sr_shape most;         /* granted at most; sr_shape_ok() */
	struct sr_model_info model;   /* name, vocab_hash, epoch, vocab, context; the rest is filled in */
};

/* 0, -EINVAL, -ENOMEM.  Installs the SIGBUS handler. */
int  server_create(struct server **out, const struct server_config *cfg);
void server_destroy(struct server *sv);

/* Receive a hello: 0, -EAGAIN not here yet, -EPROTO wrong (say so by server_refuse),
 * -ECONNRESET gone, or it sent what nobody may send (descriptors, another size). */
int  server_hello(int fd, struct sr_hello *out);

/* Answer a hello with an error and nothing else. */
void server_refuse(int fd, int error);

/* Make, seal and map the memory: 0, -ENOMEM, -EMFILE ...  trusted: a client that may
 * hold huge pages which the daemon reads (see object_open() in server.c).  flags: of its model info. */
int  server_open(struct server_conn **out, struct server *sv, int fd, const struct sr_hello *h,
                 bool trusted, uint32_t flags);

/* Have the kernel find pages for it, for some 0.1 ms: 1 call again, 0 all are there, -ENOMEM,
 * -EUSERS; after server_seal -EFAULT: it took pages away. */
int  server_fill(struct server_conn *c);

/* Pass it over, filled: 0, -ECONNRESET.  Then, once its first signal says that it has mapped both,
 * seal what it writes (0, -errno), fill what it had taken away before, and tell it so. */
int  server_welcome(struct server_conn *c);
int  server_seal(struct server_conn *c);
int  server_begin(struct server_conn *c);

/* stopping: tell the client that the daemon is going, not only this connection. */
void server_close(struct server_conn *c, bool stopping);

const struct sr_shape *server_shape(const struct server_conn *c);

/* ---- requests ------------------------------------------------------------------------- */

/* The copy of a record, checked.  The lists are valid after server_read, until the next. */
struct server_request {
	struct sr_wire_request q;
	uint32_t ticket;
	bool     cancelled;           /* its client has taken it back already */
	int      error;               /* 0, or -EINVAL: end it so */
	uint32_t words;               /* of its span: what server_read copies, and looks at */
	const int32_t *prompt, *more_stops, *allowed, *banned, *bad_words;
	const struct sr_pair *bias;
};

/* Take one cancel: 1 for the request *ticket, if that is under way; 2 done with it here (a
 * ping, or the request is not taken yet and marked); 0 none; -EPROTO, -EFAULT. */
int  server_cancel(struct server_conn *c, uint32_t *ticket);

/* The next request, held until server_leave: 1, 0 none, -EPROTO, -EFAULT.  Its prompt and
 * lists are not read yet: ask the scheduler first. */
int  server_peek(struct server_conn *c, struct server_request **out);

/* Copy and check prompt and lists of the request held: 0, -EINVAL, -EFAULT. */
int  server_read(struct server_conn *c);

/* The request held has been dealt with: its place and its span are the client's again. */
void server_leave(struct server_conn *c);

/* ---- tokens --------------------------------------------------------------------------- */

/* Promise room for as many records as there are, `most` at most; 0, and none, if fewer than
 * `least`.  A client that lies about its head has no room, and is dropped at the next peek. */
uint32_t server_reserve(struct server_conn *c, uint32_t least, uint32_t most);
void     server_release(struct server_conn *c, uint32_t n);

/* Put a TOKEN or PROMPT and its TOPs, or an END, into promised room: how many records. */
struct server_token {
	uint64_t user_data;
	int32_t  id;
	uint32_t index, rank;
	float    logprob;
	uint32_t kind, n_top;
	const struct sr_pair *top;    /* [n_top] */
};
uint32_t server_token(struct server_conn *c, const struct server_token *t);
uint32_t server_end(struct server_conn *c, uint64_t user_data, const struct sr_end *end,
                    uint32_t preempted);

/* Is there room for n records now?  And how far the client has read: it stalls if this stays. */
bool     server_room(struct server_conn *c, uint32_t n);
uint32_t server_left(const struct server_conn *c);

/* What the client's two clocks (wire.h, Doing) tell at `now`: any value, it is the client's. */
void     server_doing(const struct server_conn *c, uint64_t now, uint64_t ns[2]);

/* ---- sleep and wake ------------------------------------------------------------------- */

/* After sr_ring_fence(): signal the client if it sleeps for what was put or left since the
 * last call.  0 or -errno: it is gone. */
int  server_wake(struct server_conn *c);

/* Before sleep: ask for the next request (not if one is held) and cancel, and for room for
 * `need` records (0: none wanted).  Then sr_ring_fence(), then look if one of them is there. */
void server_arm(struct server_conn *c, uint32_t need);
bool server_ready(struct server_conn *c, uint32_t need);

/* Empty the socket of at most `most` signals: how many, or -ECONNRESET. */
int  server_drain(struct server_conn *c, unsigned most);

#endif
