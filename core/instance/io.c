/* io.c - the event loop: io_uring, or epoll where io_uring is forbidden.
 *
 *	caller's struct     slot (index, generation)      kernel
 *	io_watch  <-------> slot[index].watch  <--------- completion: (generation, index, kind)
 *
 * A completion names its slot and the generation in which it was armed.  A change or removal of a watch
 * raises the generation, so a completion that was already on its way is recognised and
 * dropped.  Slots are reused, never freed: the table grows with the number of connections.
 *
 * io_uring polls are one-shot and armed again after the callback, which makes them
 * level-triggered: a callback need not read everything.
 */
#include "io.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#define RING_ENTRIES 256          /* entries per submission; a full queue is submitted early */
#define CQ_ENTRIES   4096
#define READS_MAX    64           /* most reads under way */
#define PER_TURN     256          /* most completions handled by one io_poll */
#define EPOLL_TURN   16           /* most events of epoll: the kernel hands out the others first, next time */
#define TIMERS_ALONE 512          /* timers beyond one per watch */
#define CLOSE_WAITS  1000         /* most times, of 10 ms each, that io_destroy waits for closes */

enum kind { KIND_WATCH, KIND_READ, KIND_CLOSE, KIND_NONE };

struct io_slot {
	struct io_watch *watch;       /* NULL: free */
	uint32_t gen;
	uint32_t next_free;           /* index + 1 */
	uint32_t stale;               /* polls that were removed and have not completed yet: each holds its file */
	void (*then)(void *ctx);      /* of io_watch_end: call it when none is left */
	void *ctx;
};

struct io {
	bool uring, inside;
	bool workers_set;             /* workers_elsewhere() was called */
	struct io_uring ring;
	int epfd;

	struct io_slot *slot;
	uint32_t n_slots, free_slot;  /* free_slot: index + 1 */

	struct io_timer **heap;       /* [n_slots + TIMERS_ALONE], a heap by time: heap[0] is first */
	uint32_t n_timers;

	struct io_read *read[READS_MAX];
	uint32_t n_reads, n_closing;
	struct iovec reg[16];         /* registered buffers */
	unsigned n_reg;

	uint64_t woke;
	uint64_t turn_ns, turn_end;   /* 0: no limit */
	bool cut;

	struct io_watch signals;
	void (*on_signal)(void *ctx, int sig);
	void *signal_ctx;
};

const char *io_kind(const struct io *io) { return io->uring ? "io_uring" : "epoll"; }

static uint64_t tag(enum kind k, uint32_t gen, uint32_t index)
{
	return (uint64_t)k << 62 | (uint64_t)(gen & 0x3fffffff) << 32 | index;
}

/* ---- io_uring ---------------------------------------------------------------------------- */

/* Queue full: submit it.  A kernel short of memory may take nothing of it.  Then nothing else can be
 * queued, so try again.  Any other refusal is permanent. */
static struct io_uring_sqe *sqe_get(struct io *io)
{
	const struct timespec nap = { 0, 1000000 };
	struct io_uring_sqe *sqe;

	while (!(sqe = io_uring_get_sqe(&io->ring))) {
		int r = io_uring_submit(&io->ring);

		if (r < 0 && r != -EAGAIN && r != -EBUSY && r != -ENOMEM && r != -EINTR) {
			fprintf(stderr, "io_uring accepts no more requests: %s; set IO_URING=0 in the environment to use "
			        "epoll\n",
			        strerror(-r));
			abort();
		}
		if (r <= 0)
			nanosleep(&nap, NULL);
	}
	return sqe;
}

static unsigned poll_mask(uint32_t events)
{
	return (events & IO_IN ? POLLIN : 0u) | (events & IO_OUT ? POLLOUT : 0u) |
	       (events & IO_HUP ? POLLRDHUP : 0u);
}

/* The kernel's events in IO_* terms: an error counts as every event that was asked for. */
static uint32_t seen_events(uint32_t wanted, uint32_t revents)
{
	uint32_t e = 0;

	if (revents & (POLLIN | POLLPRI))
		e |= IO_IN;
	if (revents & POLLOUT)
		e |= IO_OUT;
	if (revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL))
		e |= IO_HUP;
	if (revents & (POLLHUP | POLLERR | POLLNVAL))
		e |= IO_IN | IO_OUT;
	return e & wanted;
}

static void watch_arm(struct io *io, struct io_watch *w)
{
	struct io_uring_sqe *sqe;

	if (!io->uring || w->armed || !w->events)
		return;
	sqe = sqe_get(io);
	io_uring_prep_poll_add(sqe, w->fd, poll_mask(w->events));
	io_uring_sqe_set_data64(sqe, tag(KIND_WATCH, io->slot[w->index].gen, w->index));
	w->armed = 1;
}

/* After this, no completion of the old arming reaches the watch. */
static void watch_disarm(struct io *io, struct io_watch *w)
{
	struct io_slot *s = &io->slot[w->index];

	if (io->uring && w->armed) {
		struct io_uring_sqe *sqe = sqe_get(io);

		io_uring_prep_poll_remove(sqe, tag(KIND_WATCH, s->gen, w->index));
		io_uring_sqe_set_data64(sqe, tag(KIND_NONE, 0, 0));
	}
	s->stale += io->uring && w->armed;
	w->armed = 0;
	s->gen++;
}

/* Try the flags of Linux 6.1 that keep completion work in our own thread, then no flags. */
static int ring_open(struct io *io)
{
	static const unsigned flags[] = {
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
		IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
		0,
	};
	int r = -ENOSYS;

	for (unsigned i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
		struct io_uring_params p = { .flags = flags[i] | IORING_SETUP_CQSIZE,
		                             .cq_entries = CQ_ENTRIES };

		r = io_uring_queue_init_params(RING_ENTRIES, &io->ring, &p);
		if (r == 0 && !(p.features & IORING_FEAT_EXT_ARG)) {
			io_uring_queue_exit(&io->ring);
			r = -ENOSYS;      /* no timeout with the wait: epoll is better */
		}
		if (r == 0 || r != -EINVAL)
			break;
	}
	return r;
}

/* ---- watches ----------------------------------------------------------------------------- */

/* epoll reports a hang-up even if not asked; EPOLLONESHOT limits that to once if no event is wanted. */
static uint32_t epoll_mask(uint32_t events)
{
	return (events ? 0 : EPOLLONESHOT) | (events & IO_IN ? EPOLLIN : 0u) | (events & IO_OUT ? EPOLLOUT : 0u) |
	       (events & IO_HUP ? EPOLLRDHUP : 0u);
}

static int epoll_change(struct io *io, int op, struct io_watch *w)
{
	struct epoll_event e = { .events = epoll_mask(w->events),
	                         .data.u64 = tag(KIND_WATCH, io->slot[w->index].gen, w->index) };

	return epoll_ctl(io->epfd, op, w->fd, &e) < 0 ? -errno : 0;
}

/* Room for timers grows here too, because io_timer_set() has no way to report failure. */
static int slot_take(struct io *io, uint32_t *index)
{
	if (!io->free_slot) {
		uint32_t n = io->n_slots ? io->n_slots * 2 : 64;
		struct io_timer **h = realloc(io->heap, (n + TIMERS_ALONE) * sizeof(struct io_timer *));
		struct io_slot *s;

		if (!h)
			return -ENOMEM;
		io->heap = h;
		s = realloc(io->slot, n * sizeof(*s));
		if (!s)
			return -ENOMEM;
		memset(s + io->n_slots, 0, (n - io->n_slots) * sizeof(*s));
		for (uint32_t i = n; i-- > io->n_slots; ) {
			s[i].next_free = io->free_slot;
			io->free_slot = i + 1;
		}
		io->slot = s;
		io->n_slots = n;
	}
	*index = io->free_slot - 1;
	io->free_slot = io->slot[*index].next_free;
	return 0;
}

static void slot_give(struct io *io, uint32_t index)
{
	io->slot[index].watch = NULL;
	io->slot[index].next_free = io->free_slot;
	io->free_slot = index + 1;
}

int io_watch_add(struct io *io, struct io_watch *w)
{
	int r;

	assert(!w->added && w->fn && w->fd >= 0);
	if ((r = slot_take(io, &w->index)) < 0)
		return r;
	io->slot[w->index].watch = w;
	w->armed = 0;
	if (!io->uring && (r = epoll_change(io, EPOLL_CTL_ADD, w)) < 0) {
		slot_give(io, w->index);
		return r;
	}
	w->added = true;
	watch_arm(io, w);
	return 0;
}

void io_watch_set(struct io *io, struct io_watch *w, uint32_t events)
{
	assert(w->added);
	if (w->events == events)
		return;
	if (io->uring) {
		watch_disarm(io, w);
		w->events = events;
		watch_arm(io, w);
	} else {
		w->events = events;
		if (epoll_change(io, EPOLL_CTL_MOD, w) < 0)
			assert(!"a watched descriptor was closed before io_watch_del");
	}
}

void io_watch_del(struct io *io, struct io_watch *w)
{
	if (!w->added)
		return;
	watch_disarm(io, w);
	if (!io->uring)
		epoll_ctl(io->epfd, EPOLL_CTL_DEL, w->fd, NULL);
	slot_give(io, w->index);
	w->added = false;
}

void io_watch_end(struct io *io, struct io_watch *w, void (*then)(void *ctx), void *ctx)
{
	struct io_slot *s = &io->slot[w->index];

	if (w->added)
		watch_disarm(io, w);
	if (!w->added || !s->stale) {
		io_watch_del(io, w);
		then(ctx);
		return;
	}
	s->watch = NULL;                      /* the slot is given back with the last of its polls */
	s->then = then;
	s->ctx = ctx;
	w->added = false;
}

static void poll_was_stale(struct io *io, uint32_t index)
{
	struct io_slot *s = &io->slot[index];
	void (*then)(void *ctx) = s->then;
	void *ctx = s->ctx;

	if (!s->stale || --s->stale || !then)
		return;
	s->then = NULL;
	slot_give(io, index);
	then(ctx);
}

/* A poll of slot `index`, armed in generation gen, has completed. */
static int watch_done(struct io *io, uint32_t gen, uint32_t index, int32_t res)
{
	struct io_watch *w = io->slot[index].watch;
	uint32_t events;

	if (!w || (io->slot[index].gen & 0x3fffffff) != gen) {
		poll_was_stale(io, index);
		return 0;
	}
	w->armed = 0;
	events = seen_events(w->events, res < 0 ? POLLERR : (uint32_t)res);
	if (events)
		w->fn(w, events);
	/* fn may have removed w, or freed it, and another watch may have the slot. */
	if (io->slot[index].watch == w && (io->slot[index].gen & 0x3fffffff) == gen)
		watch_arm(io, w);
	return events != 0;
}

static void turn_begin(struct io *io)
{
	io->cut = false;
	io->turn_end = io->turn_ns ? io_now() + io->turn_ns : 0;
}

/* Something is left to do, but not in this turn. */
static bool time_up(struct io *io)
{
	if (!io->turn_end || io_now() < io->turn_end)
		return false;
	io->cut = true;
	return true;
}

/* ---- timers: a binary heap --------------------------------------------------------------- */

static void heap_put(struct io *io, uint32_t i, struct io_timer *t)
{
	io->heap[i] = t;
	t->index = i + 1;
}

static void heap_move(struct io *io, uint32_t i, struct io_timer *t)
{
	while (i > 0 && io->heap[(i - 1) / 2]->at > t->at) {
		heap_put(io, i, io->heap[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
	for (;;) {
		uint32_t c = 2 * i + 1;

		if (c >= io->n_timers)
			break;
		if (c + 1 < io->n_timers && io->heap[c + 1]->at < io->heap[c]->at)
			c++;
		if (io->heap[c]->at >= t->at)
			break;
		heap_put(io, i, io->heap[c]);
		i = c;
	}
	heap_put(io, i, t);
}

void io_timer_del(struct io *io, struct io_timer *t)
{
	uint32_t i = t->index;

	if (!i)
		return;
	t->index = 0;
	if (i - 1 != --io->n_timers)
		heap_move(io, i - 1, io->heap[io->n_timers]);
}

void io_timer_set(struct io *io, struct io_timer *t, uint64_t at)
{
	assert(t->fn);
	io_timer_del(io, t);
	assert(io->n_timers < io->n_slots + TIMERS_ALONE);
	t->at = at;
	io->n_timers++;
	heap_move(io, io->n_timers - 1, t);
}

static int timers_run(struct io *io)
{
	uint64_t now;
	int n = 0;

	if (!io->n_timers)
		return 0;
	now = io_now();
	while (n < PER_TURN && io->n_timers && io->heap[0]->at <= now && (!n || !time_up(io))) {
		struct io_timer *t = io->heap[0];

		io_timer_del(io, t);
		t->fn(t);
		n++;
	}
	return n;
}

/* ---- reads of files ---------------------------------------------------------------------- */

int io_buffers(struct io *io, const struct iovec *iov, unsigned n)
{
	int r;

	if (!io->uring || n > sizeof(io->reg) / sizeof(io->reg[0]))
		return -ENOTSUP;
	if (io->n_reg) {
		io_uring_unregister_buffers(&io->ring);
		io->n_reg = 0;
	}
	if (n && (r = io_uring_register_buffers(&io->ring, iov, n)) < 0)
		return r;             /* mostly RLIMIT_MEMLOCK; plain reads work, too */
	for (unsigned i = 0; i < n; i++)
		io->reg[i] = iov[i];
	io->n_reg = n;
	return 0;
}

int io_read_start(struct io *io, struct io_read *r)
{
	uint32_t i = 0;

	assert(r->fn && r->n > 0 && r->n <= 1u << 30);
	if (io->n_reads == READS_MAX)
		return -EAGAIN;
	while (io->read[i])
		i++;
	io->read[i] = r;
	io->n_reads++;
	r->index = i;
	if (io->uring) {
		struct io_uring_sqe *sqe = sqe_get(io);
		unsigned b = 0;

		while (b < io->n_reg && ((char *)r->buf < (char *)io->reg[b].iov_base ||
		       (char *)r->buf + r->n > (char *)io->reg[b].iov_base + io->reg[b].iov_len))
			b++;
		if (b < io->n_reg)
			io_uring_prep_read_fixed(sqe, r->fd, r->buf, (unsigned)r->n, r->offset, (int)b);
		else
			io_uring_prep_read(sqe, r->fd, r->buf, (unsigned)r->n, r->offset);
		io_uring_sqe_set_data64(sqe, tag(KIND_READ, 0, i));
	}
	return 0;
}

static void read_done(struct io *io, uint32_t i, int64_t result)
{
	struct io_read *r = io->read[i];

	io->read[i] = NULL;
	io->n_reads--;
	r->fn(r, result);
}

/* Without io_uring, the reads that were started are made here, one after the other. */
static int reads_run(struct io *io)
{
	int n = 0;

	for (uint32_t i = 0; io->n_reads && i < READS_MAX; i++) {
		struct io_read *r = io->read[i];
		ssize_t got;

		if (!r)
			continue;
		got = pread(r->fd, r->buf, r->n, (off_t)r->offset);
		read_done(io, i, got < 0 ? -errno : got);
		n++;
	}
	return n;
}

/* ---- closing files ------------------------------------------------------------------------ */

/* A loop pinned to one CPU must not share it with the kernel's threads: they may use all others.
 * Without it they would run where they were woken, for 2 ms at a time. */
static void workers_elsewhere(struct io *io)
{
	long n = sysconf(_SC_NPROCESSORS_CONF);
	cpu_set_t own, others;

	io->workers_set = true;
	if (sched_getaffinity(0, sizeof(own), &own) < 0 || CPU_COUNT(&own) != 1)
		return;
	CPU_ZERO(&others);
	for (int i = 0; i < n && i < CPU_SETSIZE; i++)
		if (!CPU_ISSET(i, &own))
			CPU_SET(i, &others);
	if (CPU_COUNT(&others) > 0)           /* refused where a cgroup allows this CPU alone */
		io_uring_register_iowq_aff(&io->ring, sizeof(others), &others);
}

void io_close(struct io *io, int fd)
{
	struct io_uring_sqe *sqe;

	if (!io->uring) {
		close(fd);
		return;
	}
	if (!io->workers_set)
		workers_elsewhere(io);
	sqe = sqe_get(io);
	io_uring_prep_close(sqe, fd);
	sqe->flags |= IOSQE_ASYNC;
	io_uring_sqe_set_data64(sqe, tag(KIND_CLOSE, 0, (uint32_t)fd));
	io->n_closing++;
}

/* A kernel that could not do it (no memory, Linux 5.5) leaves the descriptor open. */
static void close_done(struct io *io, int fd, int32_t res)
{
	io->n_closing--;
	if (res == -EINVAL || res == -ENOMEM || res == -EAGAIN || res == -ECANCELED)
		close(fd);
}

/* ---- the turn ---------------------------------------------------------------------------- */

static int ring_reap(struct io *io)
{
	struct io_uring_cqe *cqe;
	int n = 0;

	turn_begin(io);
	for (int i = 0; i < PER_TURN && io_uring_peek_cqe(&io->ring, &cqe) == 0 && (!i || !time_up(io)); i++) {
		uint64_t t = cqe->user_data;
		int32_t res = cqe->res;

		io_uring_cqe_seen(&io->ring, cqe);
		if (t >> 62 == KIND_WATCH)
			n += watch_done(io, (uint32_t)(t >> 32) & 0x3fffffff, (uint32_t)t, res);
		else if (t >> 62 == KIND_READ) {
			read_done(io, (uint32_t)t, res);
			n++;
		} else if (t >> 62 == KIND_CLOSE)
			close_done(io, (int)(uint32_t)t, res);
	}
	return n;
}

static int epoll_reap(struct io *io, int timeout_ms)
{
	struct epoll_event e[EPOLL_TURN];
	int n = 0, got = epoll_wait(io->epfd, e, EPOLL_TURN, timeout_ms);

	if (timeout_ms)
		io->woke = io_now();
	turn_begin(io);
	io->cut = got == EPOLL_TURN;
	for (int i = 0; i < got; i++)     /* EPOLL* and POLL* are the same bits */
		n += watch_done(io, (uint32_t)(e[i].data.u64 >> 32) & 0x3fffffff,
		                (uint32_t)e[i].data.u64, (int32_t)e[i].events);
	return n;
}

int io_poll(struct io *io)
{
	int n;

	assert(!io->inside);
	io->inside = true;
	if (io->uring) {
		if (io_uring_sq_ready(&io->ring))
			io_uring_submit(&io->ring);
		n = ring_reap(io);
	} else {
		n = epoll_reap(io, 0);
		n += reads_run(io);
	}
	n += timers_run(io);
	io->inside = false;
	return n;
}

uint64_t io_woke(const struct io *io) { return io->woke; }
void io_turn(struct io *io, uint64_t ns) { io->turn_ns = ns; }
bool io_cut(const struct io *io) { return io->cut; }

int io_sleep(struct io *io, uint64_t until)
{
	uint64_t now = io_now(), wait = UINT64_MAX;

	io->woke = now;
	if (io->n_timers)
		until = !until || io->heap[0]->at < until ? io->heap[0]->at : until;
	if (until)
		wait = until > now ? until - now : 0;
	if (wait && io->uring) {
		struct __kernel_timespec ts = { .tv_sec = (long long)(wait / 1000000000u),
		                                .tv_nsec = (long long)(wait % 1000000000u) };
		struct io_uring_cqe *cqe;

		io_uring_submit_and_wait_timeout(&io->ring, &cqe, 1, until ? &ts : NULL, NULL);
		io->woke = io_now();
	} else if (wait && !io->n_reads) {
		/* Rounded up, so up to a millisecond late: epoll_wait() counts in whole milliseconds. */
		int ms = !until ? -1 : wait > 3600000000000u ? 3600000 : (int)((wait + 999999) / 1000000);
		int n;

		assert(!io->inside);
		io->inside = true;
		n = epoll_reap(io, ms);
		n += timers_run(io);
		io->inside = false;
		return n;
	}
	return io_poll(io);
}

/* ---- signals ----------------------------------------------------------------------------- */

static void signal_ready(struct io_watch *w, uint32_t events)
{
	struct io *io = w->ctx;
	struct signalfd_siginfo si;

	(void)events;
	while (read(w->fd, &si, sizeof(si)) == (ssize_t)sizeof(si))
		io->on_signal(io->signal_ctx, (int)si.ssi_signo);
}

int io_signals(struct io *io, const sigset_t *mask, void (*fn)(void *ctx, int sig), void *ctx)
{
	int r;

	assert(!io->signals.added);
	if ((r = pthread_sigmask(SIG_BLOCK, mask, NULL)))
		return -r;
	io->on_signal = fn;
	io->signal_ctx = ctx;
	io->signals = (struct io_watch){ .events = IO_IN, .fn = signal_ready, .ctx = io };
	io->signals.fd = signalfd(-1, mask, SFD_CLOEXEC | SFD_NONBLOCK);
	if (io->signals.fd < 0)
		return -errno;
	return io_watch_add(io, &io->signals);
}

/* ---- create ------------------------------------------------------------------------------ */

int io_create(struct io **out, int flags)
{
	const char *env = getenv("IO_URING");
	struct io *io = calloc(1, sizeof(*io));
	int r;

	*out = NULL;
	if (!io)
		return -ENOMEM;
	io->epfd = -1;
	io->signals.fd = -1;
	io->uring = !(flags & IO_EPOLL) && !(env && !strcmp(env, "0")) && ring_open(io) == 0;
	if (!io->uring && (io->epfd = epoll_create1(EPOLL_CLOEXEC)) < 0) {
		r = -errno;
		io_destroy(io);
		return r;
	}
	if (!(io->heap = malloc(TIMERS_ALONE * sizeof(*io->heap)))) {
		io_destroy(io);
		return -ENOMEM;
	}
	*out = io;
	return 0;
}

/* Closes under way end before their ring does, so that no descriptor is left open. */
static void closes_end(struct io *io)
{
	struct __kernel_timespec ts = { .tv_nsec = 10000000 };
	struct io_uring_cqe *cqe;

	for (int i = 0; io->n_closing && i < CLOSE_WAITS; i++) {
		io_uring_submit_and_wait_timeout(&io->ring, &cqe, 1, &ts, NULL);
		while (io_uring_peek_cqe(&io->ring, &cqe) == 0) {
			if (cqe->user_data >> 62 == KIND_CLOSE)
				close_done(io, (int)(uint32_t)cqe->user_data, cqe->res);
			io_uring_cqe_seen(&io->ring, cqe);
		}
	}
}

void io_destroy(struct io *io)
{
	if (!io)
		return;
	if (io->uring) {
		closes_end(io);
		io_uring_queue_exit(&io->ring);
	}
	if (io->epfd >= 0)
		close(io->epfd);
	if (io->signals.fd >= 0)
		close(io->signals.fd);
	free(io->heap);
	free(io->slot);
	free(io);
}
