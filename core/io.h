/* io.h - one event loop over io_uring, or epoll where io_uring is forbidden.
 *
 * The only file that includes <liburing.h>.  A loop belongs to one thread; only io_wake may
 * be called from others.  Callbacks run inside io_poll and io_sleep and may call anything
 * here, also remove or free the thing that called them.  Structs io_watch, io_timer and
 * io_read are embedded in their owner, zeroed by it, and must stay where they are while
 * added.
 *
 * Watches are level-triggered readiness: io_uring POLL_ADD re-armed after each callback,
 * EPOLLIN and so on with epoll.  Times are ns of CLOCK_MONOTONIC (io_now).
 *
 * io_poll makes no system call unless something is to be submitted or the kernel has said
 * that something is there: it may be called on every turn of a busy loop.
 */
#ifndef IO_H
#define IO_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct io;

enum { IO_IN = 1, IO_OUT = 2, IO_HUP = 4 };  /* HUP: peer closed or shut its side (RDHUP), or
                                                error; reported only if asked for */
struct io_watch {
	int fd;
	uint32_t events;                      /* IO_* wanted; change by io_watch_set */
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

/* One read of a file, any number at a time.  Done: fn(r, bytes or -errno). */
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

enum { IO_EPOLL = 1 };                       /* force the fallback (tests, IO_URING=0 in the
                                                environment does the same) */
int  io_create(struct io **out, int flags);  /* 0, -errno */
void io_destroy(struct io *io);
const char *io_kind(const struct io *io);    /* "io_uring" or "epoll" */
uint64_t io_now(void);                       /* CLOCK_MONOTONIC, ns */

int  io_watch_add(struct io *io, struct io_watch *w);         /* 0, -errno */
void io_watch_set(struct io *io, struct io_watch *w, uint32_t events);
void io_watch_del(struct io *io, struct io_watch *w);         /* no callback after it */

/* Cannot fail: room for timers is made with that for watches.  One for each watch, and 512 more. */
void io_timer_set(struct io *io, struct io_timer *t, uint64_t at); /* again: moves it */
void io_timer_del(struct io *io, struct io_timer *t);

/* Signals of the mask are blocked in the calling thread (call before threads start) and
 * delivered to fn in the loop. */
int io_signals(struct io *io, const sigset_t *mask, void (*fn)(void *ctx, int sig), void *ctx);

/* Register buffers for io_read_start (at most 1 GiB each); optional, failure is harmless. */
int io_buffers(struct io *io, const struct iovec *iov, unsigned n);
int io_read_start(struct io *io, struct io_read *r);          /* 0, -EAGAIN too many, -errno */

int  io_poll(struct io *io);                 /* run what is ready; callbacks run */
int  io_sleep(struct io *io, uint64_t until);/* the same, but first wait for something, at
                                                most until the time `until` (0 = no limit) */
void io_wake(struct io *io);                 /* any thread: io_sleep returns soon */

#endif
