/* server.h - the daemon's side of a connection.  THE TRUST BOUNDARY: everything that passes out of
 * here was copied once out of memory that its client can write, and checked in the copy.
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
 * each call takes bounded time and touches nothing of another client.  At worst it returns -EPROTO
 * or -EFAULT: then drop the client.  File descriptors passed in stay the caller's.
 */
#ifndef SR_SERVER_H
#define SR_SERVER_H

#include "wire.h"

#define SERVER_CONNS_MAX 4096     /* connections of one process: places in the SIGBUS table */

struct server;
struct server_conn;

struct server_config {
	struct sr_shape most;         /* the most a connection is granted; sr_shape_ok() */
	struct sr_model_info model;   /* name, vocab_hash, epoch, vocab, context; server_open sets the rest */
};

/* 0, -EINVAL, -ENOMEM.  Installs the SIGBUS handler. */
int  server_create(struct server **out, const struct server_config *cfg);
void server_destroy(struct server *sv);

/* Receive a hello: 0, -EAGAIN not here yet, -EPROTO wrong (answer with server_refuse).
 * -ECONNRESET: it is gone, or it sent something not allowed (descriptors, another size). */
int  server_hello(int fd, struct sr_hello *out);

/* Answer a hello with an error alone. */
void server_refuse(int fd, int error);

/* Make, seal and map the memory: 0, -ENOMEM, -EMFILE ...  trusted: the client may hold huge
 * pages which the daemon reads (see object_open() in server.c).  flags: for its model info. */
int  server_open(struct server_conn **out, struct server *sv, int fd, const struct sr_hello *h,
                 bool trusted, uint32_t flags);

/* Have the kernel allocate its pages, for about 0.1 ms a call: 1 call again, 0 all are there,
 * -ENOMEM, -EUSERS.  After server_seal, -EFAULT: the client took pages away. */
int  server_fill(struct server_conn *c);

/* Send the filled memory: 0, -ECONNRESET.  The client's first signal reports that both are mapped.
 * Then seal what it writes (0, -errno), fill holes it punched before, and signal it to begin. */
int  server_welcome(struct server_conn *c);
int  server_seal(struct server_conn *c);
int  server_begin(struct server_conn *c);

/* stopping: report to the client that the daemon stops, not only this connection. */
void server_close(struct server_conn *c, bool stopping);

const struct sr_shape *server_shape(const struct server_conn *c);

/* ---- requests ------------------------------------------------------------------------- */

/* A checked copy of a record.  Its lists are valid from server_read to the next server_read. */
struct server_request {
	struct sr_wire_request q;
	uint32_t ticket;
	bool     cancelled;           /* its client has cancelled it already */
	int      error;               /* 0, or -EINVAL: end it with that */
	uint32_t words;               /* of its span: server_read copies and checks this many */
	const int32_t *prompt, *more_stops, *allowed, *banned, *bad_words;
	const struct sr_pair *bias;
};

/* Take one cancel: 1 the request *ticket, if it is under way; 2 handled here (a ping, or the
 * request is not taken yet and is marked); 0 none; -EPROTO, -EFAULT. */
int  server_cancel(struct server_conn *c, uint32_t *ticket);

/* The next request, held until server_leave: 1, 0 none, -EPROTO, -EFAULT.  Its prompt and
 * lists are not read yet: check with the scheduler first. */
int  server_peek(struct server_conn *c, struct server_request **out);

/* Copy and check the prompt and lists of the held request: 0, -EINVAL, -EFAULT. */
int  server_read(struct server_conn *c);

/* The held request is done: its place and its span belong to the client again. */
void server_leave(struct server_conn *c);

/* ---- tokens --------------------------------------------------------------------------- */

/* Promise room for up to `most` records; returns how many, or 0 if there are fewer than `least`.
 * A client with an impossible head has no room; it is dropped at the next peek. */
uint32_t server_reserve(struct server_conn *c, uint32_t least, uint32_t most);
void     server_release(struct server_conn *c, uint32_t n);

/* Put a TOKEN or PROMPT and its TOPs, or an END, into promised room.  Returns the number of records. */
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

/* Is there room for n records now?  How far has the client read?  If this stays, the client stalls. */
bool     server_room(struct server_conn *c, uint32_t n);
uint32_t server_left(const struct server_conn *c);

/* The client's two clocks (wire.h, Doing) at `now`.  Any value is possible: the client writes them. */
void     server_doing(const struct server_conn *c, uint64_t now, uint64_t ns[2]);

/* ---- sleep and wake ------------------------------------------------------------------- */

/* After sr_ring_fence(): signal the client if it sleeps for records put or left since the
 * last call.  0, or -errno: it is gone. */
int  server_wake(struct server_conn *c);

/* Before sleep: ask for the next request (unless one is held), the next cancel, and room for
 * `need` records (0: none wanted).  Then call sr_ring_fence(), then check with server_ready. */
void server_arm(struct server_conn *c, uint32_t need);
bool server_ready(struct server_conn *c, uint32_t need);

/* Empty the socket of up to `most` signals: how many there were, or -ECONNRESET. */
int  server_drain(struct server_conn *c, unsigned most);

#endif
