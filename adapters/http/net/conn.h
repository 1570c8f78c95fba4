/* conn.h - connections: sockets, deadlines per state, back-pressure, TLS.  Built on core/instance/io.h; one
 * thread.  It gives complete requests to an app (api.h) and sends the app's answers.
 *
 *	accept -> READ HEAD -> READ BODY -> app(handle) -> reply | stream -> READ HEAD .. | LINGER
 *
 * A struct exchange is one request and its answer.  It lives until exchange_reply or
 * exchange_end was called AND everything was sent, or until gone() was called.  After gone() the
 * app must not use it.  Exactly one of {reply, end, gone} ends it for the app.
 *
 * No exchange_* call calls handle or gone: only the loop does.  (done, which is for counting, may be
 * called from within reply and end.)
 */
#ifndef CONN_H
#define CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/instance/io.h"
#include "http.h"

struct server;
struct exchange;

struct conn_app {
	void *ctx;
	/* The head is complete, the body is not.  0 = go on, else answer at once with this status (the
	 * app fills body with JSON): authentication, unknown path, method, body too large.  What it
	 * keeps in exchange_ctx stays there until done. */
	int  (*head)(void *ctx, struct exchange *x, const struct http_request *r, char *body, size_t cap,
	             char *extra_headers, size_t extra_cap);
	/* A complete request.  r and its body stay valid until the exchange ends. */
	void (*handle)(void *ctx, struct exchange *x, const struct http_request *r);
	/* The client is gone, or was CONN_BEHIND bytes behind: cancel what runs for it. */
	void (*gone)(void *ctx, struct exchange *x);
	/* A request ended: for the access log and counters.  status 499: the client left first.  If the
	 * head could not be parsed, head was not called, and method and target are "-".
	 * peer: the client's address and port, or "unix".  note: the text of exchange_note, or "". */
	void (*done)(void *ctx, struct exchange *x, const char *peer, const char *note, int status,
	             uint64_t ns, size_t bytes_in, size_t bytes_out);
	/* NULL, or called when we wait for the rest of one more request (by +1), or of one fewer (-1). */
	void (*arriving)(void *ctx, int by);
};

#define CONN_BEHIND (256u * 1024)  /* a client this far behind is cancelled */
#define CONN_SLICE  (64u * 1024)   /* about what one turn makes of a long answer */

struct server_config {
	int      max_connections;      /* 0 = 4096 */
	int64_t  max_body;             /* 0 = 64 MiB; a larger one is refused with 413 */
	bool     closed;               /* accept no client before server_open: they wait in the kernel */
	int64_t  max_held;             /* bytes of all requests being read or served; 0 = 1 GiB; above: 503 */
	int64_t  max_unread;           /* bytes of all answers not sent yet; 0 = 256 MiB; above: 503 */
	int64_t  max_kept;             /* bytes that the app keeps for answers (exchange_keep); 0 = 256 MiB */
	uint64_t head_ns, body_ns, idle_ns, send_ns, linger_ns; /* deadlines of the states; 0 = default */
	const char *certfile, *keyfile, *cafile; int cert_reqs; /* TLS, or NULL */
};

/* listen_fd: listening, non-blocking, TCP or Unix; the server owns it from now on, even on failure. */
int  server_create(struct server **out, struct io *io, int listen_fd,
                   const struct server_config *cfg, const struct conn_app *app,
                   char *err, size_t errlen);
int  server_open(struct server *s);           /* 0, -errno */
void server_drain(struct server *s);          /* accept no more, close idle ones, Connection: close */
bool server_idle(const struct server *s);     /* nothing being read, answered or lingering */
/* End every exchange that the app still has: a stream with `event` as its last event, a waiting
 * request with 503.  gone() tells the app. */
void server_abort(struct server *s, const char *event, size_t n);
void server_destroy(struct server *s);
int  server_connections(const struct server *s);
int  server_reload_tls(struct server *s, char *err, size_t errlen); /* keeps the old ones on failure */

void *exchange_ctx(struct exchange *x);
void  exchange_set_ctx(struct exchange *x, void *ctx);
const struct http_request *exchange_request(struct exchange *x);
const char *exchange_peer(const struct exchange *x);  /* as in done() */

/* Only within head().  trust: the request has a valid key, so until the next head its connection goes last
 * when room is made for others (see places.c).  skip_body: the app reads no body, so none is awaited. */
void  exchange_trust(struct exchange *x);
void  exchange_skip_body(struct exchange *x);

/* A note to follow one request through the logs; copied, and cut if it is long. */
void  exchange_note(struct exchange *x, const char *note);

/* Count `by` more bytes (may be negative) that the app keeps for this answer.  They count until the exchange
 * ends, whatever ends it. */
void exchange_keep(struct exchange *x, int64_t by);
/* May the app keep n more bytes, for any exchange?  If max_kept would be exceeded, clients that do not read
 * what is kept for them, or read it slowly, are ended first; gone() follows.  While nothing is kept, any n
 * has room.  *left: bytes that would still be free. */
bool exchange_room(struct exchange *x, int64_t n, int64_t *left);

/* The app no longer needs the body: free its memory. */
void exchange_drop_body(struct exchange *x);

/* The whole answer.  extra: header lines or NULL.  The bytes are copied or sent before it returns. */
void exchange_reply(struct exchange *x, int status, const char *content_type, const char *extra,
                    const void *body, size_t n);

/* The same with a body from malloc(), which the exchange owns from now on and frees.  A long one is sent
 * piece by piece and never copied whole. */
void exchange_give(struct exchange *x, int status, const char *content_type, const char *extra,
                   char *body, size_t n);

/* A streamed answer.  begin queues the head, which leaves with the first event in one send.  event
 * sends one whole event and adds the framing.  end finishes. */
void exchange_begin(struct exchange *x, int status, const char *content_type, const char *extra);
void exchange_event(struct exchange *x, const void *data, size_t n);
void exchange_end(struct exchange *x);

/* After begin, for an answer too long for one turn of the loop.  From now on the loop calls more(owner), at
 * most once a turn and only when little is unsent, until the exchange ends or more is NULL.  more() sends
 * about CONN_SLICE bytes.  computed: the answer is fully computed, so a client that shuts its side
 * still gets the rest. */
void exchange_pull(struct exchange *x, void (*more)(void *owner), void *owner, bool computed);
/* The rest of a begun answer cannot be sent: reset the connection, so that no client mistakes the part it
 * has for the whole. */
void exchange_cut(struct exchange *x);

#endif
