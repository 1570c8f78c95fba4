/* io.h - one event loop over io_uring, or epoll where io_uring is forbidden.
 *
 * The only file that includes <liburing.h>.  A loop belongs to one thread.  Callbacks run inside io_poll
 * and io_sleep.  They may call anything here, and may remove or free the watch or timer that called them.
 * Structs io_watch, io_timer and io_read are embedded in their owner, which zeroes them and must not move
 * them while they are added.
 *
 * Watches are level-triggered readiness: io_uring POLL_ADD re-armed after each callback,
 * EPOLLIN and so on with epoll.  Times are ns of CLOCK_MONOTONIC (io_now).
 *
 * io_poll makes a system call only if there is something to submit or the kernel has reported an
 * event.  So a busy loop may call it on every turn.
 */
#ifndef IO_H
#define IO_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "shmring/clock.h"

struct io;

enum { IO_IN = 1, IO_OUT = 2, IO_HUP = 4 };  /* HUP: the other side closed or shut down (RDHUP), or
                                                error; reported only if asked for */
struct io_watch {
	int fd;
	uint32_t events;                      /* IO_* wanted; change it with io_watch_set */
	void (*fn)(struct io_watch *w, uint32_t events);
	void *ctx;                            /* the owner's */
	/* private */
	uint32_t armed, gen, index;
	bool added;
};

struct io_timer {
	void (*fn)(struct io_timer *t);
	void *ctx;
	/* private */
	uint64_t at;
	uint32_t index;                       /* place in the heap + 1; 0 = not set */
};

/* One read of a file; many may be under way.  When done: fn(r, bytes or -errno). */
struct io_read {
	int fd;
	uint64_t offset;
	void *buf;
	size_t n;
	void (*fn)(struct io_read *r, int64_t result);
	void *ctx;
	/* private */
	uint32_t index;
};

enum { IO_EPOLL = 1 };                       /* force the fallback (for tests; IO_URING=0 in
                                                the environment does the same) */
int  io_create(struct io **out, int flags);  /* 0, -errno */
void io_destroy(struct io *io);              /* by the thread that made it */
const char *io_kind(const struct io *io);    /* "io_uring" or "epoll" */
static inline uint64_t io_now(void) { return sr_now(); }

int  io_watch_add(struct io *io, struct io_watch *w);         /* 0, -errno */
void io_watch_set(struct io *io, struct io_watch *w, uint32_t events);
void io_watch_del(struct io *io, struct io_watch *w);         /* no callback after it */

/* The same; then(ctx) is called, now or in a later turn, once the kernel holds no reference to the file for
 * us.  Before, closing its descriptor elsewhere would leave the last reference to this thread. */
void io_watch_end(struct io *io, struct io_watch *w, void (*then)(void *ctx), void *ctx);

/* Cannot fail: io_watch_add makes room for the timers, one for each watch and 512 more. */
void io_timer_set(struct io *io, struct io_timer *t, uint64_t at); /* moves it if already set */
void io_timer_del(struct io *io, struct io_timer *t);

/* Block the signals of the mask in the calling thread (call before threads start) and
 * deliver them to fn in the loop. */
int io_signals(struct io *io, const sigset_t *mask, void (*fn)(void *ctx, int sig), void *ctx);

/* Register buffers for io_read_start (at most 1 GiB each).  Optional; failure is harmless. */
int io_buffers(struct io *io, const struct iovec *iov, unsigned n);
int io_read_start(struct io *io, struct io_read *r);          /* 0, -EAGAIN too many, -errno */

/* Close fd, which nobody watches, in a thread of the kernel: for the last reference to large
 * memory, whose pages would take this thread 0.15 ms a MiB.  With epoll it is closed here. */
void io_close(struct io *io, int fd);

int  io_poll(struct io *io);                 /* run the callbacks of what is ready */
int  io_sleep(struct io *io, uint64_t until);/* the same, but first wait for an event, at
                                                most until the time `until` (0 = no limit) */
uint64_t io_woke(const struct io *io);       /* when the last io_sleep ended its wait */

/* Begin no callback when a turn has lasted ns: what is left comes in the next.  0, as at first: no limit.
 * A turn handles one event and one timer at least.  With epoll it has 16 events at most, however long. */
void io_turn(struct io *io, uint64_t ns);
bool io_cut(const struct io *io);            /* the last turn may have left something */

#endif
