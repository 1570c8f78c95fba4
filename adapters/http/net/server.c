/* server.c - all connections: listening, accepting, refusing, draining, shutting down. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "conn_impl.h"
#include "core/instance/log.h"

/* Best effort: a refused client gets no buffer, and sending is tried only once. */
static void turn_away(int fd)
{
	static const char body[] = "{\"error\":{\"message\":\"The server has no more connections.\","
	                           "\"type\":\"Service Unavailable\",\"param\":null,\"code\":503}}";
	static const struct http_request any = { .minor = 1 };
	char answer[1024];
	int n = http_write_head(answer, sizeof(answer) - sizeof(body), &any, 503, "application/json",
	                        sizeof(body) - 1, "Retry-After: 1\r\n", false);

	memcpy(answer + n, body, sizeof(body) - 1);
	if (send(fd, answer, (size_t)n + sizeof(body) - 1, MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
		shutdown(fd, SHUT_WR);
	close(fd);
}

static void conn_open(struct server *s, int fd, const struct sockaddr_storage *peer)
{
	struct conn *c = place_take(s, peer);

	if (!c) {
		if (s->tls)
			close(fd);
		else
			turn_away(fd);
		return;
	}
	conn_start(c, s, fd, peer);
}

static void on_accept_again(struct io_timer *t)
{
	struct server *s = t->ctx;

	s->warned = false;
	server_open(s);
}

/* No descriptor is free.  True: a connection was ended to free one.  Else use the reserve to refuse one
 * client with an answer; if the reserve cannot be opened again, stop accepting until the timer. */
static bool no_descriptors(struct server *s)
{
	int fd;

	if (!s->warned)
		log_warn("out of file descriptors with %d connections: raise LimitNOFILE (ulimit -n) or lower "
		         "--max-connections", s->n_open);
	s->warned = true;
	if (place_make(s))
		return true;
	io_timer_set(s->io, &s->accept_timer, io_now() + SECOND / 10);
	if (s->reserve_fd >= 0) {
		close(s->reserve_fd);
		fd = accept4(s->listen.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0)
			turn_away(fd);
	}
	s->reserve_fd = eventfd(0, EFD_CLOEXEC);
	if (s->reserve_fd < 0)
		io_watch_del(s->io, &s->listen);
	return false;
}

static void accept_some(struct server *s, int most)
{
	for (int i = 0; i < most; i++) {
		struct sockaddr_storage peer = { .ss_family = AF_UNIX };
		socklen_t n = sizeof(peer);
		int fd = accept4(s->listen.fd, (struct sockaddr *)&peer, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd >= 0) {
			conn_open(s, fd, &peer);
		} else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			if (!no_descriptors(s))
				return;
		} else if (errno != EINTR && errno != ECONNABORTED && errno != EPROTO) {
			return;
		}
	}
}

static void on_accept(struct io_watch *w, uint32_t events)
{
	(void)events;
	accept_some(w->ctx, ACCEPTS);
}

static void socket_options(int fd, const struct server_config *cfg)
{
	const struct { int level, name, value; } option[] = {  /* accepted sockets inherit them */
		{ IPPROTO_TCP, TCP_NODELAY, 1 },
		{ SOL_SOCKET, SO_KEEPALIVE, 1 },       /* finds clients that vanished without FIN */
		{ IPPROTO_TCP, TCP_KEEPIDLE, 30 },
		{ IPPROTO_TCP, TCP_KEEPINTVL, 10 },
		{ IPPROTO_TCP, TCP_KEEPCNT, 3 },
		{ IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(cfg->send_ns / 1000000) },
		{ SOL_SOCKET, SO_SNDBUF, SEND_BUFFER },
	};

	/* Errors do not matter: a Unix socket has no TCP options, and correctness needs none of them. */
	for (size_t i = 0; i < sizeof(option) / sizeof(*option); i++)
		setsockopt(fd, option[i].level, option[i].name, &option[i].value, sizeof(int));
}

static void defaults(struct server_config *c)
{
	c->max_connections = c->max_connections > 0 ? c->max_connections : 4096;
	c->max_body = c->max_body > 0 ? c->max_body : 64 << 20;
	c->max_held = c->max_held > 0 ? c->max_held : 1 << 30;
	if (c->max_held < 2 * (c->max_body + HTTP_HEAD))
		c->max_held = 2 * (c->max_body + HTTP_HEAD);  /* room for the largest body while its buffer doubles */
	c->max_unread = c->max_unread > 0 ? c->max_unread : 256 << 20;
	c->max_kept = c->max_kept > 0 ? c->max_kept : 256 << 20;
	c->head_ns = c->head_ns ? c->head_ns : 10 * SECOND;
	c->body_ns = c->body_ns ? c->body_ns : 60 * SECOND;
	c->idle_ns = c->idle_ns ? c->idle_ns : 65 * SECOND;
	c->send_ns = c->send_ns ? c->send_ns : 30 * SECOND;
	c->linger_ns = c->linger_ns ? c->linger_ns : 5 * SECOND;
}

int server_open(struct server *s)
{
	return s->draining || s->listen.added ? 0 : io_watch_add(s->io, &s->listen);
}

int server_create(struct server **out, struct io *io, int listen_fd,
                  const struct server_config *cfg, const struct conn_app *app,
                  char *err, size_t errlen)
{
	struct server *s = calloc(1, sizeof(*s));
	int r = -ENOMEM;

	if (!s) {
		close(listen_fd);
		snprintf(err, errlen, "The HTTP server: out of memory.");
		return -ENOMEM;
	}
	s->io = io;
	s->app = app;
	s->cfg = *cfg;
	defaults(&s->cfg);
	s->max_unread[UNREAD_SENT] = s->cfg.max_unread;
	s->max_unread[UNREAD_KEPT] = s->cfg.max_kept;
	link_init(&s->todo);
	s->todo_timer = (struct io_timer){ .fn = conn_todo, .ctx = s };
	s->accept_timer = (struct io_timer){ .fn = on_accept_again, .ctx = s };
	s->listen = (struct io_watch){ .fd = listen_fd, .events = IO_IN, .fn = on_accept, .ctx = s };
	s->reserve_fd = eventfd(0, EFD_CLOEXEC);
	s->conn = calloc((size_t)s->cfg.max_connections, sizeof(*s->conn)); /* pages are touched on first use */
	s->scratch = malloc(SCRATCH);
	snprintf(err, errlen, "The HTTP server: out of memory.");
	if (!s->conn || !s->scratch || places_create(s) < 0)
		goto fail;
	if (cfg->certfile) {
		r = tls_context_create(&s->tls, cfg->certfile, cfg->keyfile, cfg->cafile, cfg->cert_reqs,
		                       err, errlen);
		if (r < 0)
			goto fail;
	}
	socket_options(listen_fd, &s->cfg);
	r = cfg->closed ? 0 : server_open(s);
	if (r == 0) {
		*out = s;
		return 0;
	}
	snprintf(err, errlen, "The listening socket cannot be watched: %s.", strerror(-r));
fail:
	server_destroy(s);
	return r;
}

int server_reload_tls(struct server *s, char *err, size_t errlen)
{
	struct tls_context *fresh;
	int r;

	if (!s->tls)
		return 0;
	r = tls_context_create(&fresh, s->cfg.certfile, s->cfg.keyfile, s->cfg.cafile, s->cfg.cert_reqs,
	                       err, errlen);
	if (r < 0)
		return r;
	tls_context_destroy(s->tls);
	s->tls = fresh;
	return 0;
}

void server_drain(struct server *s)
{
	if (s->draining)
		return;
	s->draining = true;
	accept_some(s, s->cfg.max_connections);  /* connections already in the backlog get an answer */
	io_watch_del(s->io, &s->listen);
	io_timer_del(s->io, &s->accept_timer);
	close(s->listen.fd);
	s->listen.fd = -1;
	for (int i = 0; i < s->n_fresh; i++) {
		struct conn *c = &s->conn[i];

		if (!c->open || !conn_quiet(c) || c->in.n)
			continue;
		if (c->state == IDLE)
			conn_read(c);  /* the socket may hold a request */
		if (conn_quiet(c) && !c->in.n)
			c->doomed = true;
		conn_settle_or_bury(c);
	}
}

bool server_idle(const struct server *s)
{
	return s->n_open == s->n_quiet;
}

void server_abort(struct server *s, const char *event, size_t n)
{
	for (int i = 0; i < s->n_fresh; i++) {
		struct conn *c = &s->conn[i];
		struct exchange *x = &c->x;

		if (!c->open || !x->live)
			continue;
		if (x->more) {         /* in the middle of an answer: an event does not fit there */
			conn_lose(c);
			continue;
		}
		if (x->begun)
			exchange_event(x, event, n);
		s->app->gone(s->app->ctx, x);
		c->keep_alive = false;
		if (x->begun)
			exchange_end(x);
		else
			conn_refuse(c, 503, "The server is shutting down.");
		conn_settle(c);
	}
}

void server_destroy(struct server *s)
{
	for (int i = 0; s->conn && i < s->n_fresh; i++)
		if (s->conn[i].open)
			conn_lose(&s->conn[i]);
	io_watch_del(s->io, &s->listen);
	io_timer_del(s->io, &s->accept_timer);
	io_timer_del(s->io, &s->todo_timer);
	if (s->listen.fd >= 0)
		close(s->listen.fd);
	if (s->reserve_fd >= 0)
		close(s->reserve_fd);
	tls_context_destroy(s->tls);
	free(s->scratch);
	free(s->held_by);
	free(s->conn);
	free(s);
}

int server_connections(const struct server *s)
{
	return s->n_open;
}
