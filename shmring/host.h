/* host.h - the daemon's side of a connection.  THE TRUST BOUNDARY: everything that passes out of
 * here was copied once out of memory that its client can write, and checked in the copy.
 *
 *	struct host        what all connections share: the rules, the sizes, a buffer
 *	struct host_conn   one client: its two memory objects and four rings
 *
 *	host_hello -> host_open, fill, host_welcome, [mapped] host_seal, fill, host_begin, then
 *	           -> host_refuse  +-> host_cancel ..        each turn: cancels first,
 *	                           +-> host_guide ..       then guides
 *	                           +-> host_peek, read, host_guide_kept .., leave  then requests
 *	                           +-> host_reserve, token .., end
 *	                           +-> sr_ring_fence, host_wake   once per turn
 *	                           `-> host_arm, sr_ring_fence, host_ready, sleep, drain
 *
 * Belongs to one thread; only the SIGBUS handler may interrupt it.  Whatever a client does,
 * each call takes bounded time and touches nothing of another client.  At worst it returns -EPROTO
 * or -EFAULT: then drop the client.  File descriptors passed in stay the caller's.
 */
#ifndef SR_HOST_H
#define SR_HOST_H

#include "wire.h"

#define HOST_CONNS_MAX 4096       /* connections of one process: two objects of each are guarded */

struct host;
struct host_conn;

struct host_config {
	struct sr_shape most;         /* the most a connection is granted; sr_shape_ok() */
	struct sr_model_info model;   /* name, vocab_hash, epoch, vocab, context, width, flags, guides; host_open
	                                 sets the rest, and adds to the flags */
};

/* 0, -EINVAL, -ENOMEM.  Installs the SIGBUS handler. */
int  host_create(struct host **out, const struct host_config *cfg);
void host_destroy(struct host *host);

/* Receive a hello: 0, -EAGAIN not here yet, -EPROTO wrong (answer with host_refuse).
 * -ECONNRESET: it is gone, or it sent something not allowed (descriptors, another size). */
int  host_hello(int fd, struct sr_hello *out);

/* Answer a hello with an error alone. */
void host_refuse(int fd, int error);

/* Make, seal and map the memory: 0, -ENOMEM, -EMFILE ...  trusted: the client may hold huge
 * pages which the daemon reads (see object_open()).  flags: for its model info. */
int  host_open(struct host_conn **out, struct host *host, int fd, const struct sr_hello *h,
               bool trusted, uint32_t flags);

/* Have the kernel allocate its pages, for about 0.1 ms a call: 1 call again, 0 all are there,
 * -ENOMEM, -EUSERS.  After host_seal, -EFAULT: the client took pages away. */
int  host_fill(struct host_conn *c);

/* Send the filled memory: 0, -ECONNRESET.  The client's first signal reports that both are mapped.
 * Then seal what it writes (0, -errno), fill holes it punched before, and signal it to begin. */
int  host_welcome(struct host_conn *c);
int  host_seal(struct host_conn *c);
int  host_begin(struct host_conn *c);

/* A client that is gone: take its memory out of our address space, for about 0.1 ms a call.  1 call again,
 * 0 all is out.  After the first call nothing may be done with it but the next two. */
int  host_unmap(struct host_conn *c);

/* End it, at once.  stopping: report to the client that the daemon stops, not only this connection.
 * host_detach leaves the caller the descriptors of its memory to close (-1: none), since that frees up to
 * 40 MiB of pages (object.h). */
void host_close(struct host_conn *c, bool stopping);
void host_detach(struct host_conn *c, bool stopping, int fd[2]);

const struct sr_shape *host_shape(const struct host_conn *c);
size_t host_bytes(const struct host_conn *c); /* shared with its client, and ours for its guides */

/* ---- requests ------------------------------------------------------------------------- */

/* A checked copy of a record.  Its lists are valid from host_read to the next host_read. */
struct host_list {
	const int32_t *word;
	uint32_t n;                   /* words of 4 bytes */
};
struct host_request {
	struct sr_wire_request q;
	uint32_t ticket;
	bool     cancelled;           /* its client has cancelled it already */
	int      error;               /* 0, or -EINVAL: end it with that */
	uint32_t n_prompt;
	uint32_t words;               /* of its spans: host_read copies and checks this many */
	struct host_list list[SR_SPAN_KINDS]; /* n is set before host_read */
};

/* Take one cancel: 1 the request *ticket, if it is under way; 2 handled here (a ping, or the
 * request is not taken yet and is marked); 0 none; -EPROTO, -EFAULT. */
int  host_cancel(struct host_conn *c, uint32_t *ticket);

/* The next request, held until host_leave: 1, 0 none, -EPROTO, -EFAULT.  Its prompt and
 * lists are not read yet: check with the scheduler first. */
int  host_peek(struct host_conn *c, struct host_request **out);

/* Copy and check the prompt and lists of the held request: 0, -EINVAL, -EFAULT. */
int  host_read(struct host_conn *c);

/* ---- guides --------------------------------------------------------------------------- */

/* A checked copy of a record.  What needs the request's state (is it guided, is `index` the next one) is
 * left to the caller. */
struct host_guide {
	struct sr_wire_guide g;       /* place: no longer of interest */
	const uint32_t *bits;         /* BITS: [sr_mask_words(vocab)], valid to the next guide; else NULL */
	uint32_t words;               /* copied for it, of record and mask */
};

/* Is there a guide to take now?  Without granted guides there never is. */
bool host_guide_ready(const struct host_conn *c);

/* Take one: 1 for a request that was taken; 2 kept until its request is; 0 none, -EPROTO, -EFAULT. */
int  host_guide(struct host_conn *c, struct host_guide *out);

/* Take one that was kept for the held request, before host_leave: 1, 0 there are no more, -EFAULT. */
int  host_guide_kept(struct host_conn *c, struct host_guide *out);

/* The held request is done: its place and its span belong to the client again. */
void host_leave(struct host_conn *c);

/* ---- tokens --------------------------------------------------------------------------- */

/* Promise room for up to `most` records; returns how many, or 0 if there are fewer than `least`.
 * A client with an impossible head has no room; it is dropped at the next peek. */
uint32_t host_reserve(struct host_conn *c, uint32_t least, uint32_t most);
void     host_release(struct host_conn *c, uint32_t n);

/* Put a TOKEN or PROMPT and its TOPs, or an END, into promised room.  Returns the number of records. */
struct host_token {
	uint64_t user_data;
	int32_t  id;
	uint32_t index, rank;
	float    logprob;
	uint32_t kind, n_top;
	uint32_t last;                /* TOKEN: enum sr_finish, or 0 */
	const struct sr_pair *top;    /* [n_top] */
};
uint32_t host_token(struct host_conn *c, const struct host_token *t);
/* The flags, and of a pooled request the place, are those of its record. */
uint32_t host_end(struct host_conn *c, uint64_t user_data, const struct sr_end *end,
                  uint32_t preempted, uint32_t flags, uint32_t place);

/* One record, reserved before: how much of a prompt is computed. */
void     host_computed(struct host_conn *c, uint64_t user_data, const struct sr_end *so_far);

/* Write the n elements of a pooled request's vector, before its END, into the place that its record names. */
void     host_vector(struct host_conn *c, uint32_t place, const float *vector, uint32_t n);

/* Is there room for n records now?  How far has the client read?  If this stays, the client stalls. */
bool     host_room(struct host_conn *c, uint32_t n);
uint32_t host_left(const struct host_conn *c);

/* The client's two clocks (wire.h, Doing) at `now`.  Any value is possible: the client writes them. */
void     host_doing(const struct host_conn *c, uint64_t now, uint64_t ns[2]);

/* ---- sleep and wake ------------------------------------------------------------------- */

/* After sr_ring_fence(): signal the client if it sleeps for records put or left since the
 * last call.  0, or -errno: it is gone. */
int  host_wake(struct host_conn *c);

/* Before sleep: ask for the next request and guide (unless one is held), the next cancel, and room for
 * `need` records (0: none wanted).  Then call sr_ring_fence(), then check with host_ready. */
void host_arm(struct host_conn *c, uint32_t need);
bool host_ready(struct host_conn *c, uint32_t need);

/* Empty the socket of up to `most` signals: how many there were, or -ECONNRESET. */
int  host_drain(struct host_conn *c, unsigned most);

#endif
