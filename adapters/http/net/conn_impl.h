/* conn_impl.h - what conn.c (one connection), reply.c (what it sends), server.c (all connections) and
 * places.c (which one is ended to make room) share.  Private to these four.
 */
#ifndef CONN_IMPL_H
#define CONN_IMPL_H

#include <stdlib.h>
#include <sys/socket.h>

#include "conn.h"
#include "tls.h"

#define SECOND        1000000000ull
#define IN_FIRST      2048u          /* bytes of the first read buffer; most requests fit */
#define PROGRESS      (64u * 1024)   /* bytes of body that extend its deadline by body_ns */
#define TAKEN         (16u * 1024)   /* bytes sent of an answer that extend its deadline by send_ns */
#define PER_TURN      16             /* reads of one connection per turn; one request is served per turn */
#define TODO_NS       (SECOND / 1000) /* for more() and pipelined requests, per turn, all connections */
#define ACCEPTS       64             /* connections accepted per turn */
#define SEND_BUFFER   (256 * 1024)   /* SO_SNDBUF: small enough to notice a client that is behind */
#define SCRATCH       (64u * 1024)
#define PULL_BELOW    (16u * 1024)   /* with fewer unsent bytes than this, more() is called */
#define PATIENCE      SECOND         /* how long a client that is behind may keep others from being served */
#define ROOM_NS       (SECOND / 100)
#define NAP_MIN       (SECOND / 1000)
#define NAP_MAX       (SECOND / 10)
#define NOTE_MAX      320            /* bytes */
#define PEER_TEXT     56             /* "[" an IPv6 address "]:65535" */

enum conn_state { HANDSHAKE, IDLE, HEAD, BODY, BUSY, SENDING, LINGER };

/* Connections that may be ended to make room, in the order in which they are ended.  See places.c. */
enum place {
	PLACE_LINGER, PLACE_HANDSHAKE, PLACE_HEAD, PLACE_BODY, PLACE_IDLE, PLACE_SENDING, PLACE_KEPT, PLACE_SLOW,
	N_PLACES
};

/* Bytes that wait for a client to read, and are bounded for all connections together. */
enum unread {
	UNREAD_SENT,                      /* in `out`, `plain` and `given` */
	UNREAD_KEPT,                      /* kept by the app, see exchange_keep() */
	N_UNREAD
};

struct conn_link { struct conn_link *prev, *next; };
struct conn_buf { char *p; size_t n, cap; };

struct exchange {
	struct conn *conn;
	void *ctx;                        /* the app's */
	char *note;                       /* for done(), or NULL */
	struct http_request r;
	uint64_t since;                   /* when its head was complete */
	size_t bytes_in, bytes_out;
	int status;                       /* of the answer; 0 = none yet */
	bool open;                        /* its head was read, its end is not yet reported */
	bool live;                        /* the app has it */
	bool begun;                       /* a streamed answer is under way */
	void (*more)(void *owner);        /* makes the answer's next slice; NULL = not pulled */
	void *owner;
	uint64_t pulled;                  /* since when it is pulled */
};

struct conn {
	struct server *s;
	struct io_watch watch;
	struct io_timer timer;
	struct tls *tls;                  /* or NULL */
	enum conn_state state;
	bool open, doomed, pumping, keep_alive;
	bool arriving;                    /* part of a request is here, and the app's arriving() counts it */
	bool half;                        /* the client sends no more, but may still read its answer */
	bool trusted;                     /* its last head had a valid key */
	bool skip;                        /* the app does not want this request's body */
	struct conn_link place, todo;     /* self-linked when in no list */
	int address;                      /* index into held_by, or -1 */
	uint64_t entered;                 /* when it entered its state */
	uint64_t deadline;                /* of the state; 0 = none */
	uint64_t send_by;                 /* of the bytes in out; 0 = none */
	uint64_t armed;                   /* what timer is set to; 0 = not set */

	struct conn_buf in;               /* head, body, and what came after it */
	size_t seen;                      /* http_parse_head's */
	size_t head_n, body_n;            /* bytes of each */
	size_t taken;                     /* bytes of `in` that belong to this request */
	size_t mark;                      /* bytes_in at the time the body's deadline was last set */
	struct http_chunks chunks;

	struct conn_buf out;              /* for the socket: sent up to out_at */
	size_t out_at, out_end;           /* to be sent up to out_end; after it, a head waits for its event */
	size_t moved;                     /* bytes sent since send_by was set */
	uint64_t look_at, nap;            /* half: when to try to send again; the wait before that */
	struct conn_buf plain;            /* with TLS: an answer before encryption */
	struct conn_buf given;            /* an answer's body, sent in slices; copied to out up to given_at */
	size_t given_at;
	int64_t unread[N_UNREAD];
	char peer[PEER_TEXT];             /* "127.0.0.1:40000", for the access log */
	struct exchange x;
};

struct server {
	struct io *io;
	const struct conn_app *app;
	struct server_config cfg;
	struct tls_context *tls;
	struct io_watch listen;
	struct io_timer todo_timer, accept_timer;
	int reserve_fd;                   /* closed to accept one more client and refuse it with an answer */
	bool draining, warned;
	struct conn *conn;                /* [max_connections] */
	struct conn *spare;               /* chain through x.ctx */
	int n_fresh;                      /* conn[n_fresh..] were never used */
	int n_open, n_quiet;              /* n_quiet: IDLE or HANDSHAKE */
	int64_t held;                     /* bytes of all connections' `in` */
	int64_t unread[N_UNREAD], max_unread[N_UNREAD]; /* of all connections */
	uint64_t room_at[N_UNREAD];       /* no client is behind: do not look again before this time */
	struct conn_link todo;
	struct conn_link place[N_PLACES]; /* oldest first */
	int n_stranger;                   /* open and not trusted */
	int *held_by, n_addresses;        /* how many of these each address has: [n_addresses], a power of 2 */
	uint64_t secret;                  /* key of the hash of addresses */
	uint64_t n_ended, tell_at;        /* ended to make room; when the log may report it again */
	char *scratch;                    /* [SCRATCH] ciphertext, or bytes to discard */
};

static inline void link_init(struct conn_link *l)
{
	l->prev = l->next = l;
}

static inline void link_remove(struct conn_link *l)
{
	l->prev->next = l->next;
	l->next->prev = l->prev;
	link_init(l);
}

static inline void link_append(struct conn_link *list, struct conn_link *l)
{
	link_remove(l);
	l->prev = list->prev;
	l->next = list;
	list->prev->next = l;
	list->prev = l;
}

static inline bool conn_quiet(const struct conn *c)
{
	return c->state == IDLE || c->state == HANDSHAKE;
}

static inline bool conn_reading(const struct conn *c)
{
	return c->state <= BODY;
}

/* `in` holds requests that wait for this connection's turn: until then nothing is read. */
static inline bool conn_waiting(const struct conn *c)
{
	return c->state == IDLE && c->in.n && c->todo.next != &c->todo;
}

static inline size_t conn_unsent(const struct conn *c)
{
	return c->out_end - c->out_at;
}

/* More of its answer can be made, and fewer than PULL_BELOW bytes are unsent. */
static inline bool conn_wants(const struct conn *c)
{
	return c->x.more && !c->doomed && conn_unsent(c) < PULL_BELOW;
}

/* The connection that has the link `l` at `offset` bytes. */
static inline struct conn *conn_of(struct conn_link *l, size_t offset)
{
	return (struct conn *)(void *)((char *)l - offset);
}

/* conn.c */
/* Owns fd; may fail and close it. */
void conn_start(struct conn *c, struct server *s, int fd, const struct sockaddr_storage *peer);
void conn_enter(struct conn *c, enum conn_state state);
void conn_doom(struct conn *c);        /* have conn_todo end it */
void conn_todo(struct io_timer *t);    /* the server's timer callback */
void conn_settle(struct conn *c);      /* tell the loop what it waits for now */
void conn_settle_or_bury(struct conn *c);
void conn_read(struct conn *c);        /* read and serve until there is no more to read */
void conn_finish(struct conn *c);      /* all was sent: next request, or close */
void conn_lose(struct conn *c);        /* end it in any state; only from the loop's callbacks */

/* places.c */
int  places_create(struct server *s);
struct conn *place_take(struct server *s, const struct sockaddr_storage *from);
bool place_make(struct server *s);     /* ends one connection; false: none may be ended */
void place_open(struct conn *c, const struct sockaddr_storage *peer);
void place_enter(struct conn *c);      /* its state or its trust has changed */
void place_trust(struct conn *c, bool trusted);
void place_leave(struct conn *c);

/* reply.c */
bool conn_put(struct conn *c, const void *data, size_t n);  /* nothing is sent before commit */
int  conn_commit(struct conn *c);      /* encrypt and flush.  0; -errno: the connection is broken */
int  conn_flush(struct conn *c);       /* send what the socket accepts */
void conn_forget(struct conn *c);      /* nothing waits for the client any more: free what is unsent */
/* Is there room for n more unread bytes? */
bool conn_room(struct server *s, enum unread kind, int64_t n, uint64_t patience);
void conn_reply(struct conn *c, int status, const char *content_type, const char *extra,
                const void *body, size_t n);
void conn_refuse(struct conn *c, int status, const char *why); /* a refusal of our own, in the API's shape */

#endif
