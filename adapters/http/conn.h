/* conn.h - connections: sockets, deadlines per state, back-pressure, TLS; on core/io.h, one
 * thread.  Hands whole requests to an app (openai.c) and sends what it answers.
 *
 *	accept -> READ HEAD -> READ BODY -> app(handle) -> reply | stream -> READ HEAD .. | LINGER
 *
 * A struct exchange is one request and its answer.  It lives until exchange_reply or
 * exchange_end was called AND everything was sent, or until gone() was called: after gone() the
 * app must not use it.  Exactly one of {reply, end, gone} ends it for the app.
 *
 * No exchange_* call calls back into handle or gone: those come from the loop only.  (done, which
 * is for counting, may be called from within reply and end.)
 */
#ifndef CONN_H
#define CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/io.h"
#include "http.h"

struct server;
struct exchange;

struct conn_app {
	void *ctx;
	/* The head is in, the body is not: 0 = go on, else answer at once with this status (the
	 * app fills body with JSON): authentication, unknown path, method, body too large.  What it
	 * keeps in exchange_ctx is there until done. */
	int  (*head)(void *ctx, struct exchange *x, const struct http_request *r, char *body, size_t cap,
	             char *extra_headers, size_t extra_cap);
	/* A whole request.  r and its body stay valid until the exchange ends. */
	void (*handle)(void *ctx, struct exchange *x, const struct http_request *r);
	/* The peer is gone, or was CONN_BEHIND bytes behind: cancel what runs for it. */
	void (*gone)(void *ctx, struct exchange *x);
	/* A request ended: for the access log and counters.  status 499: the peer left first.  Of a
	 * request whose head is none nothing is known: head was not called, method and target are "-".
	 * peer: its
	 * address and port, or "unix".  note: what exchange_note said, or "". */
	void (*done)(void *ctx, struct exchange *x, const char *peer, const char *note, int status,
	             uint64_t ns, size_t bytes_in, size_t bytes_out);
	/* NULL, or told that we wait for the rest of one request more (by +1), or of one less (-1). */
	void (*arriving)(void *ctx, int by);
};

#define CONN_BEHIND (256u * 1024)  /* a reader so far behind is cancelled */
#define CONN_SLICE  (64u * 1024)   /* of a long answer: about as much is made in one turn */

struct server_config {
	int      max_connections;      /* 0 = 4096 */
	int64_t  max_body;             /* 0 = 64 MiB; a larger one is refused with 413 */
	bool     closed;               /* accepts nobody before server_open: they wait in the kernel */
	int64_t  max_held;             /* all requests being read or served; 0 = 1 GiB; then 503 */
	int64_t  max_unread;           /* all answers that were not sent yet; 0 = 256 MiB; then 503 */
	uint64_t head_ns, body_ns, idle_ns, send_ns, linger_ns; /* deadlines of the states; 0 = default */
	const char *certfile, *keyfile, *cafile; int cert_reqs; /* TLS, or NULL */
};

/* listen_fd: listening, non-blocking, TCP or Unix; owned from now on, also if this fails. */
int  server_create(struct server **out, struct io *io, int listen_fd,
                   const struct server_config *cfg, const struct conn_app *app,
                   char *err, size_t errlen);
int  server_open(struct server *s);           /* 0, -errno */
void server_drain(struct server *s);          /* accept no more, close idle ones, Connection: close */
bool server_idle(const struct server *s);     /* nothing being read, answered or lingering */
/* End every exchange that the app still has: a stream with `event` as its last, a waiting request
 * with 503; the app is told by gone(). */
void server_abort(struct server *s, const char *event, size_t n);
void server_destroy(struct server *s);
int  server_connections(const struct server *s);
int  server_reload_tls(struct server *s, char *err, size_t errlen); /* failing leaves the old */

void *exchange_ctx(struct exchange *x);
void  exchange_set_ctx(struct exchange *x, void *ctx);
const struct http_request *exchange_request(struct exchange *x);
const char *exchange_peer(const struct exchange *x);  /* as done() has it */

/* In head alone.  trust: the request shows a valid key; until its next head the connection keeps its place
 * when room is made for others (see places.c).  skip_body: the app reads no body; it is not waited for. */
void  exchange_trust(struct exchange *x);
void  exchange_skip_body(struct exchange *x);

/* For whoever follows one request through the logs: copied, cut where it is long. */
void  exchange_note(struct exchange *x, const char *note);

/* How long the client has taken nothing of what lies ready for it, ns; 0: it is not behind. */
uint64_t exchange_behind(const struct exchange *x);

/* The app has read the body and needs it no more: its memory is given back. */
void exchange_drop_body(struct exchange *x);

/* The whole answer. extra: header lines or NULL. The bytes are copied or sent before return. */
void exchange_reply(struct exchange *x, int status, const char *content_type, const char *extra,
                    const void *body, size_t n);

/* The same with a body from malloc(), which is the exchange's from now on and freed: a long one is sent
 * piece by piece, never copied whole. */
void exchange_give(struct exchange *x, int status, const char *content_type, const char *extra,
                   char *body, size_t n);

/* A streamed answer: begin queues the head (it leaves with the first event, in one send), event
 * sends one whole event (framing is added here), end finishes. */
void exchange_begin(struct exchange *x, int status, const char *content_type, const char *extra);
void exchange_event(struct exchange *x, const void *data, size_t n);
void exchange_end(struct exchange *x);

/* After begin, for what is too long for one turn of the loop: from now on more(owner) is called by the
 * loop, once a turn at most and whenever next to nothing is unsent, until the exchange ends or more is NULL.
 * It sends about CONN_SLICE bytes.  computed: nothing works for this answer any more, so a client that
 * shuts its side still gets the rest. */
void exchange_pull(struct exchange *x, void (*more)(void *owner), void *owner, bool computed);
/* The rest of a begun answer cannot be sent: resets the connection, so that no client takes what it has for
 * the whole. */
void exchange_cut(struct exchange *x);

#endif
