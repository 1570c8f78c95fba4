/* conn.c - one connection: its states, what it reads, its end.  reply.c has what it sends, server.c
 * all connections together.  One thread, the loop's.
 *
 *	            bytes                 head                body
 *	HANDSHAKE -> IDLE -------> HEAD --------> BODY ---------------> BUSY (the app has it)
 *	               ^            | refused      | refused              | reply, end
 *	               |            v              v                      v
 *	               +-------- SENDING (bytes are left) <---------------+
 *	                            | Connection: close
 *	                            v
 *	                          LINGER (our side is shut; read and forget, so that no RST
 *	                                  overtakes the answer) -> closed
 *
 * The requests of one connection are served one after the other.  While one is BUSY or SENDING,
 * nothing is read: further bytes wait in the kernel, and the loop watches only for the client's close.
 * While BUSY a half-close counts as a close: to wait for a failing write would compute an answer that
 * nobody reads.  While SENDING all is computed, and a client that shut its side may still read.
 *
 * Memory: struct conn for an idle connection.  `in` grows while a request is read, and lives until the
 * request is answered or the app drops the body.  `out` holds what the socket did not accept.  For an
 * answer that is pulled (exchange_pull, exchange_give) that is one slice.  When it is sent, conn_todo asks
 * for the next, for at most TODO_NS per turn over all connections.
 *
 * Only conn_lose and conn_close end a connection, and only the loop's callbacks (event, deadline,
 * todo) and server_* call them.  An exchange_* call that finds the connection broken only marks it doomed.
 * conn_todo ends it, so the app is never called back from inside its own call.
 */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "conn_impl.h"

static void on_event(struct io_watch *w, uint32_t events);
static void on_deadline(struct io_timer *t);

static void write_peer(char *to, const struct sockaddr_storage *a)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)a;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)a;
	char text[INET6_ADDRSTRLEN] = "?";

	if (a->ss_family == AF_INET && inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text)))
		snprintf(to, PEER_TEXT, "%s:%u", text, ntohs(v4->sin_port));
	else if (a->ss_family == AF_INET6 && inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text)))
		snprintf(to, PEER_TEXT, "[%s]:%u", text, ntohs(v6->sin6_port));
	else
		snprintf(to, PEER_TEXT, "unix");
}

void conn_start(struct conn *c, struct server *s, int fd, const struct sockaddr_storage *peer)
{
	memset(c, 0, offsetof(struct conn, x));
	write_peer(c->peer, peer);
	c->x.live = c->x.open = false;
	c->x.status = 0;
	c->x.more = NULL;
	c->x.conn = c;
	c->s = s;
	c->watch = (struct io_watch){ .fd = fd, .events = IO_IN | IO_HUP, .fn = on_event, .ctx = c };
	c->timer = (struct io_timer){ .fn = on_deadline, .ctx = c };
	link_init(&c->todo);
	if (s->tls)
		c->tls = tls_create(s->tls);
	if ((s->tls && !c->tls) || io_watch_add(s->io, &c->watch) < 0) {
		tls_destroy(c->tls);
		close(fd);
		c->x.ctx = s->spare;
		s->spare = c;
		return;
	}
	c->open = true;
	c->state = HANDSHAKE;
	s->n_open++;
	s->n_quiet++;
	place_open(c, peer);
	conn_enter(c, s->tls ? HANDSHAKE : IDLE);
	conn_read(c);                  /* at once: a key shown now protects its place from the next client */
	conn_settle_or_bury(c);
}

/* Have conn_todo look at it. */
static void conn_soon(struct conn *c)
{
	if (c->s->todo.next == &c->s->todo)
		io_timer_set(c->s->io, &c->s->todo_timer, io_now());
	link_append(&c->s->todo, &c->todo);
}

void conn_doom(struct conn *c)
{
	c->doomed = true;
	conn_soon(c);
}

void conn_enter(struct conn *c, enum conn_state state)
{
	const struct server_config *cfg = &c->s->cfg;
	const uint64_t limit[] = { [HANDSHAKE] = cfg->head_ns, [IDLE] = cfg->idle_ns,
	                           [HEAD] = cfg->head_ns, [BODY] = cfg->body_ns,
	                           [LINGER] = cfg->linger_ns };

	c->s->n_quiet -= conn_quiet(c);
	c->state = state;
	c->s->n_quiet += conn_quiet(c);
	c->deadline = state == BUSY || state == SENDING ? 0 : io_now() + limit[state];
	place_enter(c);
}

/* ---- the end of an exchange, of a connection ------------------------------------------------ */

static void in_free(struct conn *c)
{
	c->s->held -= (int64_t)c->in.cap;
	free(c->in.p);
	c->in = (struct conn_buf){ 0 };
}

static void tell_arriving(struct conn *c, bool arriving)
{
	const struct conn_app *app = c->s->app;

	if (arriving == c->arriving)
		return;
	c->arriving = arriving;
	if (app->arriving)
		app->arriving(app->ctx, arriving ? 1 : -1);
}

static void conn_close(struct conn *c)
{
	struct server *s = c->s;

	assert(c->open && !c->x.live);
	tell_arriving(c, false);
	s->n_quiet -= conn_quiet(c);
	s->n_open--;
	place_leave(c);
	link_remove(&c->todo);
	io_watch_del(s->io, &c->watch);
	io_timer_del(s->io, &c->timer);
	close(c->watch.fd);
	tls_destroy(c->tls);
	in_free(c);
	conn_forget(c);
	c->open = false;
	c->x.ctx = s->spare;
	s->spare = c;
}

static void conn_report(struct conn *c, int status)
{
	const struct conn_app *app = c->s->app;
	struct exchange *x = &c->x;

	if (!x->open)
		return;
	x->open = false;
	if (app->done)
		app->done(app->ctx, x, c->peer, x->note ? x->note : "", status, io_now() - x->since,
		          x->bytes_in, x->bytes_out);
	free(x->note);
	x->note = NULL;
}

/* End the connection in any state.  Only the loop's callbacks may call it. */
void conn_lose(struct conn *c)
{
	struct exchange *x = &c->x;

	if (x->live) {
		x->live = false;
		c->s->app->gone(c->s->app->ctx, x);
		conn_report(c, 499);
	}
	conn_report(c, x->status ? x->status : 499);
	conn_close(c);
}

static void conn_linger(struct conn *c)
{
	c->half = false;
	conn_report(c, c->x.status ? c->x.status : 499);
	in_free(c);
	if (c->tls) {
		tls_bye(c->tls);
		if (conn_commit(c) < 0)
			conn_doom(c);
	}
	if (shutdown(c->watch.fd, SHUT_WR) < 0)
		conn_doom(c);          /* else the client would wait for an end that never comes */
	conn_enter(c, LINGER);
}

/* All was sent: go on with the next request, or close. */
void conn_finish(struct conn *c)
{
	size_t rest = c->in.n - c->taken;

	if (!c->keep_alive || c->s->draining) {
		conn_linger(c);
		return;
	}
	conn_report(c, c->x.status);
	if (rest)
		memmove(c->in.p, c->in.p + c->taken, rest);
	c->in.n = rest;
	if (!rest)
		in_free(c);
	conn_forget(c);
	c->seen = 0;
	c->half = false;               /* the next read finds it again */
	conn_enter(c, IDLE);
	if (!c->pumping && (rest || (c->tls && tls_unread(c->tls))))
		conn_soon(c);
}

/* ---- in ----------------------------------------------------------------------------------- */

/* Make room to read into.  0, or -ENOBUFS: all requests together hold too much. */
static int in_grow(struct conn *c)
{
	size_t need = c->in.n + 1, cap = c->in.cap ? c->in.cap * 2 : IN_FIRST;
	char *p;

	if (c->state == BODY && c->x.r.chunked)
		need = c->in.n + 512;  /* read the framing of tiny chunks in few calls */
	if (c->in.cap >= need)
		return 0;
	if (c->state == BODY && !c->x.r.chunked && cap > c->head_n + (size_t)c->x.r.content_length)
		cap = c->head_n + (size_t)c->x.r.content_length;  /* larger than now: body bytes are missing */
	if (c->s->held + (int64_t)(cap - c->in.cap) > c->s->cfg.max_held)
		return -ENOBUFS;
	p = malloc(cap);
	if (!p)
		return -ENOBUFS;
	if (c->in.n)
		memcpy(p, c->in.p, c->in.n);
	http_moved(&c->x.r, c->in.p, c->in.n, p);
	free(c->in.p);
	c->s->held += (int64_t)(cap - c->in.cap);
	c->in.p = p;
	c->in.cap = cap;
	return 0;
}

/* Plain bytes from the client: > 0, 0 it closed, -EAGAIN none now, -errno. */
static ssize_t receive(struct conn *c, char *buf, size_t cap)
{
	for (int i = 0; i < PER_TURN; i++) {
		ssize_t n;
		int r;

		if (!c->tls) {
			n = recv(c->watch.fd, buf, cap, 0);
			if (n < 0 && errno == EINTR)
				continue;
			return n < 0 ? -errno : n;
		}
		n = tls_read(c->tls, buf, cap);
		r = conn_commit(c);         /* sends the handshake, or the alert with the reason of its failure */
		if (r < 0)
			return r;
		if (conn_unsent(c) > CONN_BEHIND)
			return -ENOBUFS;    /* it requests new TLS keys and reads no answers */
		if (n != -EAGAIN)
			return n;
		n = recv(c->watch.fd, c->s->scratch, SCRATCH, 0);
		if (n <= 0)
			return n < 0 ? (errno == EINTR ? -EAGAIN : -errno) : 0;
		if (tls_put(c->tls, c->s->scratch, (size_t)n) < 0)
			return -ENOMEM;
	}
	return -EAGAIN;                /* many records without text: serve the others first */
}

/* Before a head is parsed: an answer sent now finds an empty request. */
static void exchange_new(struct conn *c)
{
	struct exchange *x = &c->x;

	x->ctx = NULL;
	x->since = io_now();
	x->bytes_in = c->in.n;
	x->bytes_out = 0;
	x->status = 0;
	x->begun = false;
	x->more = NULL;
	x->open = true;
}

static void refuse_unread(struct conn *c, int status, const char *why)
{
	struct http_request *r = &c->x.r;

	memset(r, 0, offsetof(struct http_request, header));
	r->body = (struct http_str){ "", 0 };
	r->method = r->target = r->path = (struct http_str){ "-", 1 };
	r->query = (struct http_str){ "", 0 };
	r->minor = 1;
	r->content_length = -1;
	exchange_new(c);
	conn_refuse(c, status, why);
}

static void hand_over(struct conn *c, size_t body_n)
{
	/* A GET, without a body, gets its small answer. */
	if (body_n && !conn_room(c->s, UNREAD_SENT, 0, PATIENCE)) {
		c->taken = c->head_n + body_n;
		conn_refuse(c, 503, "Too many answers wait for clients to read them. Try again later.");
		return;
	}
	c->x.r.body = (struct http_str){ c->in.p + c->head_n, body_n };
	c->taken = c->head_n + body_n;
	c->x.bytes_in -= c->in.n - c->taken;
	c->x.live = true;
	tell_arriving(c, false);
	conn_enter(c, BUSY);
	c->s->app->handle(c->s->app->ctx, &c->x, &c->x.r);
}

/* The app refuses this request.  The connection stays open if all of the request is here. */
static void refuse_early(struct conn *c, int status, const char *extra, const char *body)
{
	const struct http_request *r = &c->x.r;
	uint64_t length = r->content_length > 0 ? (uint64_t)r->content_length : 0;

	if (r->chunked || length > c->in.n - c->head_n)
		c->keep_alive = false;
	else
		c->taken = c->head_n + (size_t)length;
	conn_reply(c, status, "application/json", *extra ? extra : NULL, body, strlen(body));
}

void exchange_skip_body(struct exchange *x) { x->conn->skip = true; }

/* The app does not want the body: skip what is here, and do not wait for the rest. */
static void hand_over_head(struct conn *c)
{
	const struct http_request *r = &c->x.r;
	size_t length = r->content_length > 0 ? (size_t)r->content_length : 0, here = c->in.n - c->head_n;

	if (r->chunked || length > here) {
		c->keep_alive = false;
		length = here;
	}
	hand_over(c, length);
}

/* true = it went on; false = it needs more bytes. */
static bool take_head(struct conn *c)
{
	const struct conn_app *app = c->s->app;
	struct http_request *r = &c->x.r;
	char body[2048] = "", extra[1024] = "";
	struct http_error e;
	int n = http_parse_head(r, c->in.p, c->in.n, &c->seen, &e);

	if (n == 0) {
		if (c->state != HEAD)
			conn_enter(c, HEAD);
		return false;
	}
	if (n < 0) {
		refuse_unread(c, e.status, e.why);
		return true;
	}
	exchange_new(c);
	c->head_n = c->taken = (size_t)n;
	c->body_n = c->mark = 0;
	c->chunks = (struct http_chunks){ 0 };
	c->keep_alive = r->keep_alive;
	r->body = (struct http_str){ c->in.p + n, 0 };
	c->skip = false;
	place_trust(c, false);
	n = app->head ? app->head(app->ctx, &c->x, r, body, sizeof(body), extra, sizeof(extra)) : 0;
	if (n) {
		refuse_early(c, n, extra, body);
	} else if (c->skip) {
		hand_over_head(c);
	} else if (r->content_length > c->s->cfg.max_body) {
		conn_refuse(c, 413, "The request body is larger than --max-body-bytes.");
	} else if (!r->chunked && r->content_length <= 0) {
		hand_over(c, 0);
	} else {
		conn_enter(c, BODY);
		if (r->expect_continue && c->in.n == c->head_n &&
		    (!conn_put(c, "HTTP/1.1 100 Continue\r\n\r\n", 25) || conn_commit(c) < 0))
			conn_doom(c);
	}
	return true;
}

static bool take_body(struct conn *c)
{
	struct http_request *r = &c->x.r;
	size_t raw = c->head_n + c->body_n, out, used, rest;
	struct http_error e;
	int end;

	if (!r->chunked) {
		if (c->in.n - c->head_n < (size_t)r->content_length)
			return false;
		hand_over(c, (size_t)r->content_length);
		return true;
	}
	end = http_chunks(&c->chunks, c->in.p + raw, c->in.n - raw, &out, &used, &e);
	if (end < 0) {
		conn_refuse(c, e.status, e.why);
		return true;
	}
	rest = c->in.n - raw - used;
	if (rest)
		memmove(c->in.p + raw + out, c->in.p + raw + used, rest);
	c->in.n = raw + out + rest;
	c->body_n += out;
	if (c->body_n + c->chunks.left > (uint64_t)c->s->cfg.max_body) {
		conn_refuse(c, 413, "The request body is larger than --max-body-bytes.");
		return true;
	}
	if (!end)
		return false;
	hand_over(c, c->body_n);
	return true;
}

/* Serve one request from the buffer.  The next one waits until other connections had their turn. */
static void pump(struct conn *c)
{
	bool more = true, begun = false;

	c->pumping = true;
	if (c->state == HANDSHAKE && c->in.n)
		conn_enter(c, IDLE);   /* there is text, so the handshake is complete */
	while (more && !c->doomed && conn_reading(c) && c->in.n) {
		if (c->state == IDLE && begun) {
			conn_soon(c);
			break;
		}
		begun = true;
		more = c->state == BODY ? take_body(c) : take_head(c);
	}
	c->pumping = false;
}

/* Read and serve until there is no more to read, or the connection's state changes. */
void conn_read(struct conn *c)
{
	int turns;

	for (turns = 0; turns < PER_TURN && conn_reading(c) && !conn_waiting(c) && !c->doomed; turns++) {
		ssize_t n = in_grow(c);
		size_t room = c->in.cap - c->in.n;

		if (n < 0) {
			if (c->state == BODY)
				conn_refuse(c, 503, "The server holds too many large requests. Try again later.");
			else
				refuse_unread(c, 503, "The server holds too many large requests. Try again later.");
			return;
		}
		n = receive(c, c->in.p + c->in.n, room);
		if (n > 0) {
			c->in.n += (size_t)n;
			c->x.bytes_in += (size_t)n;
			pump(c);
			if (!c->tls && (size_t)n < room)
				break;         /* the socket is empty: save a read that finds nothing */
			continue;
		}
		if (n == -EAGAIN)
			break;
		if (n == -EPROTO && !c->doomed) {  /* first send the alert */
			conn_linger(c);
			return;
		}
		c->doomed = true;
	}
	if (c->state == HANDSHAKE && tls_established(c->tls))
		conn_enter(c, IDLE);
	if (turns == PER_TURN && c->tls && conn_reading(c))
		conn_soon(c);          /* the loop does not see bytes that TLS holds */
	if (c->state == IDLE && !c->in.n)
		in_free(c);
}

/* ---- the loop's callbacks ------------------------------------------------------------------- */

/* Tell the loop what this connection waits for now. */
void conn_settle(struct conn *c)
{
	uint64_t at = c->deadline;
	uint32_t events = IO_HUP;

	if (c->pumping || c->doomed)
		return;                /* the caller of pump() settles at its end */
	if (conn_wants(c))
		conn_soon(c);
	tell_arriving(c, c->state == HEAD || c->state == BODY);
	if (conn_reading(c) || c->state == LINGER)
		events |= IO_IN;
	if (conn_unsent(c))
		events |= IO_OUT;
	else
		c->send_by = 0;
	if (conn_waiting(c))
		events = 0;            /* a close can wait: the requests that lie here come first */
	if (c->half)
		events = 0;            /* io_uring reports a half-close repeatedly: the timer looks instead */
	if (c->send_by && (!at || c->send_by < at))
		at = c->send_by;
	if (c->half && (!at || c->look_at < at))
		at = c->look_at;
	io_watch_set(c->s->io, &c->watch, events);
	if (at == c->armed)
		return;
	c->armed = at;
	if (at)
		io_timer_set(c->s->io, &c->timer, at);
	else
		io_timer_del(c->s->io, &c->timer);
}

void conn_settle_or_bury(struct conn *c)
{
	if (c->doomed)
		conn_lose(c);
	else
		conn_settle(c);
}

static void discard(struct conn *c)
{
	for (int i = 0; i < PER_TURN; i++) {
		ssize_t n = recv(c->watch.fd, c->s->scratch, SCRATCH, 0);

		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
			c->doomed = true;
		if (n <= 0)
			return;
	}
}

/* The client sends no more while its answer is being sent.  If it is gone, sending fails or send_by
 * ends the connection. */
static void half_closed(struct conn *c)
{
	c->half = true;
	c->nap = NAP_MIN;
	c->look_at = io_now() + c->nap;
}

static void look_again(struct conn *c, uint64_t now)
{
	size_t before = conn_unsent(c);

	if (conn_flush(c) < 0)
		c->doomed = true;
	else if (!conn_unsent(c) && !c->x.more)
		conn_finish(c);
	c->nap = conn_unsent(c) < before ? NAP_MIN : c->nap < NAP_MAX ? c->nap * 2 : NAP_MAX;
	c->look_at = now + c->nap;
}

static void on_event(struct io_watch *w, uint32_t events)
{
	struct conn *c = w->ctx;

	if (conn_unsent(c) && (events & (IO_OUT | IO_HUP)) && conn_flush(c) < 0)
		c->doomed = true;
	if (c->doomed) {
		conn_lose(c);
		return;
	}
	switch (c->state) {
	case BUSY:
		c->doomed = events & IO_HUP;
		break;
	case SENDING:
		if (!conn_unsent(c) && !c->x.more)
			conn_finish(c);
		else if (events & IO_HUP)
			half_closed(c);
		break;
	case LINGER:
		discard(c);
		break;
	default:
		if (events & (IO_IN | IO_HUP))
			conn_read(c);
	}
	conn_settle_or_bury(c);
}

static void on_deadline(struct io_timer *t)
{
	struct conn *c = t->ctx;
	uint64_t now = io_now();

	c->armed = 0;
	if (c->half && now >= c->look_at)
		look_again(c, now);
	if (c->send_by && now >= c->send_by) {
		c->doomed = true;
	} else if (c->deadline && now >= c->deadline) {
		if (c->state == HEAD)
			refuse_unread(c, 408, "The request's head did not arrive in time.");
		else if (c->state == BODY && c->x.bytes_in - c->mark >= PROGRESS)
			c->deadline = now + c->s->cfg.body_ns;
		else if (c->state == BODY)
			conn_refuse(c, 408, "The request's body did not arrive in time.");
		else
			c->doomed = true;
		c->mark = c->x.bytes_in;
	}
	conn_settle_or_bury(c);
}

void conn_todo(struct io_timer *t)
{
	struct server *s = t->ctx;
	uint64_t end = io_now() + TODO_NS;
	struct conn_link now;

	link_init(&now);
	while (s->todo.next != &s->todo)
		link_append(&now, s->todo.next);
	while (now.next != &now && io_now() < end) {
		struct conn *c = conn_of(now.next, offsetof(struct conn, todo));

		link_remove(&c->todo);
		if (conn_wants(c))
			c->x.more(c->x.owner);
		if (!c->doomed && conn_reading(c)) {
			pump(c);
			if (c->tls && !c->doomed && conn_reading(c))
				conn_read(c);
		}
		conn_settle_or_bury(c);
	}
	if (now.next == &now)
		return;
	while (s->todo.next != &s->todo)       /* connections added meanwhile come after those that are left */
		link_append(&now, s->todo.next);
	while (now.next != &now)
		link_append(&s->todo, now.next);
	io_timer_set(s->io, &s->todo_timer, io_now());
}
