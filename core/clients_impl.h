/* clients_impl.h - the clients' own structures, for core/clients*.c alone:
 *
 *	clients.c            requests in, tokens out, turns, counting
 *	clients_conn.c       who comes, who goes, who is looked at
 *	clients_translate.c  a request of the wire as one of the scheduler
 */
#ifndef CLIENTS_IMPL_H
#define CLIENTS_IMPL_H

#include "clients.h"
#include "empty.h"
#include "shmring/server.h"

#define MS       1000000ull
#define NONE     (-1)
#define REFUSALS 16                   /* connections over the limit that may yet hear so */

struct live {                         /* a request that the scheduler has */
	uint64_t user_data;           /* the client's */
	uint32_t ticket;
	int32_t  next;                /* in its bucket, or in the free list */
	bool     used;
	uint32_t n_prompt, max_tokens, n_tokens; /* n_tokens: of the answer so far */
	uint64_t queued, first, last;
	uint64_t recorded;            /* its number in a recording, 0 = in none */
	uint8_t  trace[16];           /* W3C trace id, for the log; zeros: none */
};

/* Something to do for a connection that can wait.  In a line, once at most. */
struct chore {
	struct chore *next;
	struct client *client;        /* NULL: let one in */
	uint64_t since;               /* when it came into the line; 0: it is not in it */
};
struct chores { struct chore *first, **last; };
enum { FOR_US, FOR_STRANGERS };       /* the lines, in turn; who lets in is in the first */

/* How far it has come: what it owes us, or what we still do for it. */
enum stage { STAGE_HELLO, STAGE_FILL, STAGE_MAP, STAGE_REFILL, STAGE_OPEN };

/* Words of requests that may be read, see clients.c. */
struct purse {
	int64_t  words;               /* below 0: owed */
	uint64_t at;                  /* up to when time was turned into words */
};

struct client {
	struct clients *cl;
	struct server_conn *conn;     /* NULL until the hello */
	enum stage stage;
	bool open;                    /* in open[] */
	int fd, pidfd;
	uid_t uid;
	bool trusted, gateway;        /* may be urgent and hold huge pages; may name tenants */
	bool owes;                    /* it has a request that it cannot pay for yet */
	bool gone, dirty;             /* to be buried, or that is done; to be woken */
	struct chore chore;           /* for it */
	int  refuse;                  /* the answer to its hello: 0 or -errno */
	char name[32];
	pid_t pid;
	struct stats_client *row;     /* what others see of it in the stats page, or cl->unseen */
	struct io_watch socket, death;
	struct io_timer timer;        /* HELLO, MAP: the deadline; OPEN: hear it again */
	size_t bytes;                 /* of the memory we share with it */
	int32_t at, at_open;          /* places in all[], open[] */

	struct live *live;            /* [live] */
	int32_t *bucket;              /* [live]: by ticket */
	int32_t  free, n_live, n_ever; /* free places: a list, and those from n_ever on */
	uint32_t shift, odd;          /* of the hash: a client cannot choose what collides */

	struct purse purse;           /* what it may hand in */
	uint32_t idle;                /* turns without work */
	uint32_t need;                /* records that somebody waits for room for; 0 = nobody */
	uint32_t stalled_left, stalled_live; /* how far it had read, and the requests it had, */
	uint64_t stalled_at;          /*  when that was first seen */
	struct empty_client doing;    /* what its clocks said */
	uint64_t bells_at;            /* begin of the window */
	uint32_t bells;
};

struct clients {
	struct clients_config cfg;
	struct clients_stats stats;
	struct io *io;
	struct sched *s;
	struct server *server;
	struct io_watch listener;
	struct io_timer again;        /* listen again: after a comer, or when descriptors had run out */
	struct chore door;            /* somebody is at the listener */
	struct chores line[2];
	int line_next;                /* whose turn it is */
	struct io_timer nap;          /* until there may be time for a chore, or a debt is paid */
	uint64_t busy_at, chore_at;   /* when requests were last under way; no chore before, unless it is free */
	uint64_t chore_since;         /* of the one being done */
	bool draining, sweep;         /* sweep: look at all next turn */
	bool owed;                    /* a request waits until it can be paid for: not to be slept over for long */
	struct purse purse;           /* who asks for more than he has owes it to all */
	struct stats_client unseen;   /* the row of all that have none */
	uint64_t now, turn, told_at;  /* told_at: when a lie was last logged */
	uid_t self;

	struct client **all;          /* [n_places]: those who may stay, REFUSALS, and the gone */
	struct client **open;         /* [n_places]: those with work lately first, n_hot of them */
	struct client **dirty;        /* [n_places] */
	int32_t n_places, n_all, n_open, n_hot, n_dirty, cold;
	int32_t n_gone;               /* of the open: to be buried */

	uint64_t gap_ns, n_gaps;      /* so many tokens came so long after the one before: not counted yet */
	uint64_t key[2], n_seeds;     /* of seeds and salts */
	uint32_t *stop, *bias, *allow, *bad; /* lists in the scheduler's form */
};

/* ---- clients_conn.c ---- */
void conn_heat(struct clients *cl, struct client *c);  /* look at it every turn */
void conn_cool(struct clients *cl, struct client *c);  /* look at it now and then */
void conn_lose(struct client *c, const char *why);     /* to be buried by the next turn */
void conn_lie(struct client *c, int e);                /* the same, for -EPROTO or -EFAULT */
void conn_free(struct client *c, bool stopping);       /* not while a chore for it is in the line */
void conn_bury(struct clients *cl);                    /* nobody serves the gone any more */
bool conn_rest(struct clients *cl);                    /* may the loop sleep?  True: maybe not for long */
int  conn_listen(struct clients *cl, int fd);          /* 0, -errno; fd is ours then */
void conn_deaf(struct clients *cl);                    /* accept nobody any more */

/* ---- clients_translate.c ---- */
uint64_t key_hash(const uint64_t key[2], const uint64_t *word, int n);
uint64_t key_tenant(const struct clients *cl, const struct client *c, uint64_t named);
int32_t words_of(const struct clients *cl, const struct sr_wire_request *q); /* of its lists, before they are read */
struct sched_request translate(struct clients *cl, const struct client *c,
                               const struct server_request *r, uint64_t tenant);

#endif
