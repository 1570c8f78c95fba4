/* clients/impl.h - the clients' own structures, for core/clients*.c alone:
 *
 *	clients/serve.c            requests in, tokens out, turns, counting
 *	clients/accept.c       which clients come and go, and which are visited in a turn
 *	clients/left.c         what connections leave behind: unread welcomes and memory
 *	clients/guide.c        guides to the scheduler
 *	clients/translate.c  a request of the wire as one of the scheduler
 */
#ifndef CLIENTS_IMPL_H
#define CLIENTS_IMPL_H

#include "clients.h"
#include "empty.h"
#include "core/instance/aside.h"
#include "shmring/host.h"

#define MS       1000000ull
#define NONE     (-1)
#define REFUSALS 16                   /* connections above the limit that can still be told so */
#define CHARGES  256                  /* entries for memory of connections that are over */
#define CHARGED_S 10                  /* s for which it counts, and up to one more */

struct live {                         /* a request that the scheduler has */
	uint64_t user_data;           /* the client's own value */
	uint32_t ticket;
	int32_t  next;                /* in its bucket, or in the free list */
	bool     used, guided;
	uint32_t place, n_vector;     /* pooled: the place of its vector, and elements put there; else 0 */
	uint32_t n_prompt, max_tokens, n_tokens; /* n_tokens: of the answer so far */
	uint32_t n_answer;            /* of the answer before this request: the index of its first token */
	uint64_t queued, first, last;
	uint64_t recorded;            /* its number in a recording; 0 = not recorded */
	uint8_t  trace[16];           /* W3C trace id, for the log; zeros: none */
	uint64_t name;                /* by which the stats page keeps its end; 0 = none */
	uint32_t masks, mask_us, mask_most_us; /* guides with bits; what the client says they took */
	struct stats_span taken, begun; /* sums when it was taken, and at its first token */
};

/* Work for a connection that can wait.  It is in a line at most once. */
struct chore {
	struct chore *next;
	struct client *client;        /* NULL: accept one */
	uint64_t since;               /* when it joined the line; 0: it is not in one */
};
struct chores { struct chore *first, **last; };
enum { FOR_US, FOR_STRANGERS };       /* the two lines, in turn; accepting is in the first */

/* Progress of a connection: the step that the client or the daemon has to do next. */
enum stage { STAGE_HELLO, STAGE_FILL, STAGE_MAP, STAGE_REFILL, STAGE_OPEN };

/* A token bucket of words of requests, see clients/serve.c. */
struct purse {
	int64_t  words;               /* below 0: debt */
	uint64_t at;                  /* time up to which words were credited */
};

struct client {
	struct clients *cl;
	struct host_conn *conn;     /* NULL until the hello */
	enum stage stage;
	bool open;                    /* in open[] */
	int fd, pidfd;
	bool carries;                 /* a message on its socket may carry descriptors: see aside.h */
	bool asking;                  /* its hello is being received aside, into these: */
	struct aside_job ask;
	struct sr_hello hello;
	int  heard;                   /* what host_hello() said; 1: not asked yet */
	uid_t uid;
	bool trusted, gateway;        /* may use priorities below 0 and huge pages; may name tenants */
	bool guides;                  /* it was granted some */
	bool owes;                    /* its next request costs more words than it may spend now */
	bool gone, dirty;             /* gone: marked for removal, or removed; dirty: to be woken */
	struct chore chore;           /* the work for this client */
	int  refuse;                  /* the answer to its hello: 0 or -errno */
	char name[32];
	pid_t pid;
	struct stats_client *row;     /* its row in the stats page, or cl->unseen */
	struct io_watch socket, death;
	struct io_timer timer;        /* HELLO, MAP: the deadline; OPEN: end of the window */
	size_t bytes;                 /* of the memory shared with it */
	int32_t at, at_open;          /* places in all[], open[] */

	struct live *live;            /* [live] */
	int32_t *bucket;              /* [live]: heads of chains, by ticket */
	int32_t  free, n_live, n_ever; /* free places: a list, and all from n_ever on */
	int32_t  n_guided;            /* live requests that are guided */
	uint32_t shift, odd;          /* random, for the hash: a client cannot choose collisions */

	struct purse purse;           /* words it may spend on requests */
	uint32_t idle;                /* turns without work */
	uint32_t need;                /* records a row or end waits for room for; 0 = none waits */
	uint32_t stalled_left, stalled_live; /* at the start of the stall: host_left(), n_live */
	uint64_t stalled_at;          /* when the stall was first seen */
	struct empty_client doing;    /* its clocks when last read */
	uint64_t bells_at;            /* start of the window */
	uint32_t bells;
};

/* The socket of a connection that is over, but whose welcome is unread. */
struct left {
	int fd;
	uid_t uid;
	bool carries;                 /* as in struct client */
	size_t bytes;                 /* to be charged when it was read */
};

/* Memory of untrusted connections that ended in one second. */
struct charge {
	uid_t uid;
	uint64_t second;
	size_t bytes;
};

struct clients {
	struct clients_config cfg;
	struct clients_stats stats;
	struct io *io;
	struct sched *s;
	struct host *host;
	struct aside *aside;          /* receives and closes where the kernel's calls could be long */
	struct io_watch listener;
	struct io_timer again;        /* listen again: after COMER_NS, or when descriptors had run out */
	struct chore door;            /* a connection waits at the listener */
	struct chores line[2];
	int line_next;                /* the line whose turn it is */
	struct io_timer nap;          /* ends a sleep when a chore or a debt may be due */
	uint64_t busy_at, chore_at;   /* last turn with requests under way; earliest next chore if busy */
	uint64_t chore_since;         /* `since` of the chore being done */
	bool draining, sweep;         /* sweep: visit all clients next turn */
	bool owed;                    /* a request waits for its token bucket: do not sleep for long */
	struct purse purse;           /* the common token bucket, which pays when a client overdraws its own */
	struct stats_client unseen;   /* shared by all clients without a row */
	uint64_t now, turn, told_at;  /* told_at: when a protocol error was last logged */
	uid_t self;

	struct client **all;          /* [n_places]: admitted, refused (up to REFUSALS), and gone clients */
	struct client **open;         /* [n_places]: clients with recent work first, n_hot of them */
	struct client **dirty;        /* [n_places] */
	int32_t n_places, n_all, n_open, n_hot, n_dirty, cold;
	int32_t n_gone;               /* open clients marked for removal */

	struct left *left;            /* [n_places]: each has a place of its uid's */
	struct io_timer look;
	int32_t n_left;
	uint32_t left_next;           /* the next to look at, modulo n_left */
	uint64_t full_at;             /* when a uid without a free place or memory was last logged */
	struct charge charge[CHARGES];
	int32_t n_charges;

	uint64_t gap_ns, n_gaps;      /* n_gaps tokens came gap_ns after the token before; not counted yet */
	uint64_t key[2], n_seeds;     /* for seeds and salts */
	struct sched_cmd cmd[SCHED_CMDS]; /* of the request being translated */
	uint32_t *words;              /* of cmd[] */
};

/* ---- clients/accept.c ---- */
void conn_heat(struct clients *cl, struct client *c);  /* visit it every turn */
void conn_cool(struct clients *cl, struct client *c);  /* visit it at intervals */
void conn_lose(struct client *c, const char *why);     /* the next turn removes it */
void conn_lie(struct client *c, int e);                /* the same, for -EPROTO or -EFAULT */
void conn_free(struct client *c, bool stopping);       /* only if none of its chores is in a line */
void conn_bury(struct clients *cl);                    /* remove the gone clients */
bool conn_rest(struct clients *cl);                    /* may the loop sleep?  The nap timer may wake it */
int  conn_listen(struct clients *cl, int fd);          /* 0, -errno; takes over fd */
void conn_deaf(struct clients *cl);                    /* accept no client any more */

void conn_close(struct clients *cl, int fd, bool carries, uid_t uid); /* its queue may have anything in it */

/* ---- clients/left.c ---- */
bool left_unread(int fd);
void left_keep(struct clients *cl, struct left one);
void left_look(struct io_timer *t);
void left_charge(struct clients *cl, uid_t uid, size_t bytes);
size_t left_bytes(struct clients *cl, const uid_t *uid); /* NULL: of all */
void left_end(struct clients *cl);

/* ---- clients/serve.c ---- */
int32_t live_find(const struct client *c, uint32_t ticket); /* its place in live[], or NONE */
bool can_pay(const struct clients *cl, const struct client *c, uint32_t words);
void pay(struct clients *cl, struct client *c, uint32_t words);

/* ---- clients/guide.c ---- */
int  take_guides(struct clients *cl, struct client *c);      /* returns how many */
void take_guides_kept(struct clients *cl, struct client *c); /* those that came before the held request */

/* ---- clients/translate.c ---- */
uint64_t key_tenant(const struct clients *cl, const struct client *c, uint64_t named);
int32_t words_of(const struct clients *cl, const struct host_request *r); /* of its lists, unread */
struct sched_request translate(struct clients *cl, const struct client *c,
                               const struct host_request *r, uint64_t tenant);

#endif
