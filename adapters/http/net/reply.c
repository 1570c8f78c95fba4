/* reply.c - what a connection sends: whole answers, streamed answers, and the server's own refusals.
 *
 * conn_put gathers plain text in `out` (with TLS in `plain`).  conn_commit sends it with one send(2), and
 * with TLS as one record.  So head and first event are one segment, and each later event is one.  What the
 * socket does not take stays in `out`.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "conn_impl.h"
#include "core/instance/log.h"

static void count(struct conn *c, enum unread kind, int64_t by)
{
	c->unread[kind] += by;
	c->s->unread[kind] += by;
}

static bool buf_reserve(struct conn *c, struct conn_buf *b, size_t more)
{
	size_t cap = b->cap ? b->cap : 512;
	char *p;

	if (b->cap - b->n >= more)
		return true;
	while (cap - b->n < more)
		cap *= 2;
	p = realloc(b->p, cap);
	if (!p)
		return false;
	count(c, UNREAD_SENT, (int64_t)(cap - b->cap));
	b->p = p;
	b->cap = cap;
	return true;
}

static void buf_free(struct conn *c, struct conn_buf *b)
{
	count(c, UNREAD_SENT, -(int64_t)b->cap);
	free(b->p);
	*b = (struct conn_buf){ 0 };
}

void conn_forget(struct conn *c)
{
	buf_free(c, &c->out);
	buf_free(c, &c->plain);
	buf_free(c, &c->given);
	c->out_at = c->out_end = c->given_at = 0;
	count(c, UNREAD_KEPT, -c->unread[UNREAD_KEPT]);
}

static uint64_t behind(const struct conn *c, uint64_t now)
{
	uint64_t since = c->send_by - c->s->cfg.send_ns;

	return c->send_by && now > since ? now - since : 0;
}

/* End it with a reset, so that no client mistakes the part that it has for the whole answer. */
static void reset(struct conn *c)
{
	const struct linger none = { .l_onoff = 1 };

	setsockopt(c->watch.fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
	conn_doom(c);
}

/* How long has the client been reading?  What the app keeps waits for the client only while it is pulled. */
static uint64_t reading(const struct conn *c, enum unread kind, uint64_t now)
{
	if (kind == UNREAD_SENT)
		return now - c->entered;
	return c->x.more ? now - c->x.pulled : 0;
}

/* The connection that keeps others from being served: the one that has been behind longest, for longer than
 * `patience`.  Else, of those whose answers take longer than that, the one with the most unread bytes: it may
 * read, but slowly.  NULL: there is none. */
static struct conn *worst_reader(struct server *s, enum unread kind, uint64_t now, uint64_t patience)
{
	struct conn *longest = NULL, *largest = NULL;
	uint64_t most = patience;
	int64_t size = CONN_SLICE;

	for (struct conn *c = s->conn; c < s->conn + s->n_fresh; c++) {
		if (!c->open || c->doomed || !c->unread[kind])
			continue;
		if (behind(c, now) > most) {
			longest = c;
			most = behind(c, now);
		}
		if (patience && c->unread[kind] > size && reading(c, kind, now) > patience) {
			largest = c;
			size = c->unread[kind];
		}
	}
	return longest ? longest : largest;
}

/* Is there room for n bytes?  If not, end connections that keep others from being served.  patience 0: only
 * those that are behind now. */
bool conn_room(struct server *s, enum unread kind, int64_t n, uint64_t patience)
{
	while (s->unread[kind] + n > s->max_unread[kind]) {
		uint64_t now = io_now();
		struct conn *worst = now >= s->room_at[kind] ? worst_reader(s, kind, now, patience) : NULL;

		if (!worst) {
			s->room_at[kind] = now >= s->room_at[kind] ? now + ROOM_NS : s->room_at[kind];
			return false;
		}
		conn_forget(worst);
		reset(worst);
	}
	return true;
}

void exchange_keep(struct exchange *x, int64_t by)
{
	if (!x->conn->doomed)
		count(x->conn, UNREAD_KEPT, by);
}

bool exchange_room(struct exchange *x, int64_t n, int64_t *left)
{
	struct server *s = x->conn->s;
	bool room = !s->unread[UNREAD_KEPT] || conn_room(s, UNREAD_KEPT, n, PATIENCE);

	*left = s->max_unread[UNREAD_KEPT] - s->unread[UNREAD_KEPT] - n;
	return room || !s->unread[UNREAD_KEPT];
}

/* Move the bytes that TLS made to `out`. */
static int encrypted(struct conn *c)
{
	size_t n = tls_waiting(c->tls);

	if (!n)
		return 0;
	if (!buf_reserve(c, &c->out, n))
		return -ENOMEM;
	c->out.n += tls_take(c->tls, c->out.p + c->out.n, n);
	return 0;
}

/* Send what the socket takes.  Returns 0, or -errno: the connection is broken. */
int conn_flush(struct conn *c)
{
	while (conn_unsent(c)) {
		ssize_t n = send(c->watch.fd, c->out.p + c->out_at, conn_unsent(c), MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
			return -errno;
		if (n < 0) {
			if (!c->send_by) {
				c->send_by = io_now() + c->s->cfg.send_ns;
				c->moved = 0;
			}
			return 0;
		}
		c->out_at += (size_t)n;
		c->moved += (size_t)n;
		if (c->moved >= TAKEN)  /* reading a few bytes does not count */
			c->send_by = 0;
	}
	c->send_by = 0;
	if (c->out_end == c->out.n)
		c->out.n = c->out_at = c->out_end = 0;
	return 0;
}

/* Append to the answer; nothing is sent before conn_commit. */
bool conn_put(struct conn *c, const void *data, size_t n)
{
	struct conn_buf *b = c->tls ? &c->plain : &c->out;

	if (c->out_at > c->out.cap / 2) {
		memmove(c->out.p, c->out.p + c->out_at, c->out.n - c->out_at);
		c->out.n -= c->out_at;
		c->out_end -= c->out_at;
		c->out_at = 0;
	}
	if (!buf_reserve(c, b, n))
		return false;
	if (n)
		memcpy(b->p + b->n, data, n);
	b->n += n;
	c->x.bytes_out += n;
	return true;
}

int conn_commit(struct conn *c)
{
	int r = 0;

	if (c->tls) {
		if (c->plain.n)
			r = tls_write(c->tls, c->plain.p, c->plain.n);
		c->plain.n = 0;
		if (r == 0)
			r = encrypted(c);
		if (r < 0)
			return r;
	}
	c->out_end = c->out.n;
	return conn_flush(c);
}

static bool put_head(struct conn *c, int status, const char *content_type, int64_t length,
                     const char *extra)
{
	struct http_request *r = &c->x.r;
	char head[8192];
	int n = http_write_head(head, sizeof(head), r, status, content_type, length, extra,
	                        c->keep_alive);

	if (n < 0) {  /* a mistake of the app; never send a client's bytes in a head */
		log_error("an answer's headers are malformed or too long; answered 500 instead");
		c->keep_alive = false;
		status = 500;
		n = http_write_head(head, sizeof(head), r, status, NULL, length, NULL, false);
	}
	c->x.status = status;
	if (length < 0 && r->minor == 0)
		c->keep_alive = false;
	return conn_put(c, head, (size_t)n);
}

/* The answer is complete; the app gives up the exchange. */
static void answered(struct conn *c)
{
	count(c, UNREAD_KEPT, -c->unread[UNREAD_KEPT]);
	c->x.live = false;
	c->x.more = NULL;
	if (c->doomed || conn_commit(c) < 0)
		conn_doom(c);
	else if (!conn_unsent(c))
		conn_finish(c);
	else
		conn_enter(c, SENDING);
}

/* ---- answers ------------------------------------------------------------------------------ */

static bool wants_body(const struct conn *c)
{
	return !http_is(c->x.r.method, "HEAD") && c->x.status != 204 && c->x.status != 304;
}

void conn_reply(struct conn *c, int status, const char *content_type, const char *extra,
                  const void *body, size_t n)
{
	if (c->s->draining)
		c->keep_alive = false;
	if (!put_head(c, status, content_type, (int64_t)n, extra) ||
	    (wants_body(c) && !conn_put(c, body, n)))
		c->doomed = true;
	answered(c);
}

/* Send the server's own refusal, as JSON in the API's shape. */
void conn_refuse(struct conn *c, int status, const char *why)
{
	char body[512], text[384];
	size_t n = 0;

	for (; *why && n < sizeof(text) - 2; why++) {
		if (*why == '"' || *why == '\\')
			text[n++] = '\\';
		text[n++] = *why;
	}
	text[n] = 0;
	n = (size_t)snprintf(body, sizeof(body),
	                     "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,\"code\":%d}}",
	                     text, http_reason(status), status);
	c->keep_alive = false;
	conn_reply(c, status, "application/json", status == 503 ? "Retry-After: 1\r\n" : NULL, body, n);
}

/* Send the next slice of a body that the connection owns. */
static void give_more(void *owner)
{
	struct conn *c = owner;
	size_t rest = c->given.n - c->given_at, n = rest < CONN_SLICE ? rest : CONN_SLICE;

	if (!conn_put(c, c->given.p + c->given_at, n)) {
		conn_doom(c);
		return;
	}
	c->given_at += n;
	if (n == rest) {
		buf_free(c, &c->given);
		answered(c);
	} else if (conn_commit(c) < 0) {
		conn_doom(c);
	}
}

void exchange_give(struct exchange *x, int status, const char *content_type, const char *extra,
                   char *body, size_t n)
{
	struct conn *c = x->conn;

	assert(x->live && !x->begun);
	if (n <= CONN_SLICE) {
		exchange_reply(x, status, content_type, extra, body, n);
		free(body);
		return;
	}
	if (!conn_room(c->s, UNREAD_SENT, (int64_t)n, PATIENCE)) {
		free(body);
		conn_refuse(c, 503, "Too many answers wait for clients to read them. Try again later.");
		conn_settle(c);
		return;
	}
	if (c->s->draining)
		c->keep_alive = false;
	x->live = false;
	c->given = (struct conn_buf){ body, n, n };
	c->given_at = 0;
	count(c, UNREAD_SENT, (int64_t)n);
	if (!put_head(c, status, content_type, (int64_t)n, extra)) {
		conn_doom(c);
	} else if (!wants_body(c)) {
		buf_free(c, &c->given);
		answered(c);
	} else {
		x->more = give_more;
		x->owner = c;
		conn_enter(c, SENDING);
		give_more(c);
	}
	conn_settle(c);
}

void *exchange_ctx(struct exchange *x) { return x->ctx; }
void exchange_set_ctx(struct exchange *x, void *ctx) { x->ctx = ctx; }

void exchange_note(struct exchange *x, const char *note)
{
	free(x->note);
	x->note = strndup(note, NOTE_MAX);    /* no note if there is no memory */
}
const struct http_request *exchange_request(struct exchange *x) { return &x->r; }
const char *exchange_peer(const struct exchange *x) { return x->conn->peer; }

void exchange_reply(struct exchange *x, int status, const char *content_type, const char *extra,
                    const void *body, size_t n)
{
	assert(x->live && !x->begun);
	conn_reply(x->conn, status, content_type, extra, body, n);
	conn_settle(x->conn);
}

void exchange_begin(struct exchange *x, int status, const char *content_type, const char *extra)
{
	struct conn *c = x->conn;

	assert(x->live && !x->begun);
	x->begun = true;
	if (c->s->draining)
		c->keep_alive = false;
	if (!put_head(c, status, content_type, -1, extra))
		conn_doom(c);
}

void exchange_event(struct exchange *x, const void *data, size_t n)
{
	struct conn *c = x->conn;
	char size[24];
	bool ok = true;

	assert(x->live && x->begun);
	if (c->doomed || !n || !wants_body(c))
		return;
	if (conn_unsent(c) > CONN_BEHIND || (conn_unsent(c) && !conn_room(c->s, UNREAD_SENT, 0, 0)))
		conn_doom(c);
	if (c->doomed)
		return;
	if (x->r.minor == 1) {
		int len = snprintf(size, sizeof(size), "%zx\r\n", n);

		ok = conn_put(c, size, (size_t)len) && conn_put(c, data, n) && conn_put(c, "\r\n", 2);
	} else {
		ok = conn_put(c, data, n);
	}
	if (!ok || conn_commit(c) < 0)
		conn_doom(c);
	else
		conn_settle(c);
}

void exchange_end(struct exchange *x)
{
	struct conn *c = x->conn;

	assert(x->live && x->begun);
	if (x->r.minor == 1 && wants_body(c) && !conn_put(c, "0\r\n\r\n", 5))
		c->doomed = true;
	answered(c);
	conn_settle(c);
}

void exchange_pull(struct exchange *x, void (*more)(void *owner), void *owner, bool computed)
{
	struct conn *c = x->conn;

	assert(x->live && x->begun);
	if (!x->more)
		x->pulled = io_now();
	x->more = more;
	x->owner = owner;
	if (computed && c->state == BUSY)
		conn_enter(c, SENDING);
	conn_settle(c);
}

void exchange_cut(struct exchange *x)
{
	assert(x->live && x->begun);
	x->live = false;
	x->more = NULL;
	x->status = 500;
	reset(x->conn);
}

void exchange_drop_body(struct exchange *x)
{
	struct conn *c = x->conn;
	size_t rest = c->in.n - c->taken;
	struct conn_buf old = c->in;

	assert(x->live);
	if (c->taken == c->head_n)
		return;
	x->r.body = (struct http_str){ old.p + c->head_n, 0 };
	c->in = (struct conn_buf){ malloc(c->head_n + rest), c->head_n + rest, c->head_n + rest };
	if (!c->in.p) {
		c->in = old;           /* no memory: the body is freed with the exchange */
		return;
	}
	memcpy(c->in.p, old.p, c->head_n);
	memcpy(c->in.p + c->head_n, old.p + c->taken, rest);
	http_moved(&x->r, old.p, c->head_n, c->in.p);
	c->taken = c->head_n;
	c->s->held -= (int64_t)(old.cap - c->in.cap);
	free(old.p);
}
