/* ranks.c - the side of core: starts ranks, gives them batches, sees when one is lost.  See ranks.h. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/batch.h"
#include "kernels/model.h"
#include "kernels/refuse.h"
#include "page.h"
#include "ranks.h"
#include "shmring/clock.h"

#define MS          1000000ull
#define PAGE        ((size_t)4096)
#define SPIN_NS     40000
#define TICK_MS     20               /* how often the watcher looks at beats while a batch is under way */
#define HANG_MS     2000             /* until steps have been measured, and for a rank that has a core or waits for one */
#define HANG_LEAST  500              /* a shorter deadline would name ranks that only wait for a core */
#define HANG_MOST   60000
#define HANG_TIMES  4                /* the longest time that a step is expected to take */
#define STEP_TOKENS 64               /* a step without tokens takes about as long as so many tokens more */
#define MEASURED    8                /* steps before the deadline follows them */
#define LOSSES      3                /* this many within LOSS_NS are final */
#define LOSS_NS     (600000 * MS)
#define PATIENCE_MS 1000             /* for ranks to end when they are asked to */

enum phase { OPENING, RUNNING, GONE };

struct process {
	int pid, fd;                 /* fd: a pidfd; -1: it has ended */
	uint64_t beat, work;         /* last seen: of the process; of its device, if that computes by itself */
	uint32_t quiet_ms, idle_ms;  /* how long they have been the same, with a batch that is not done */
	bool due;                    /* it has one */
};

struct sr_backend {
	const struct ranks_setting *how;
	struct ranks_page *page;
	struct sr_shared *shared;
	size_t n_shared;             /* bytes of its data */
	struct sr_batch batch[RANKS_DEPTH];
	struct sr_masks masks;
	uint32_t seq[RANKS_DEPTH];   /* number of the batch in that place */
	int memory, bell, stop;      /* stop: ends the watcher */
	int world;
	enum phase phase;
	uint64_t began, losses[LOSSES]; /* when they were started last; when they were lost, the latest first */
	uint32_t restarts;
	double token_ns;             /* of a step, for each token and STEP_TOKENS more: the longest lately */
	uint32_t measured;           /* steps */
	uint64_t launched_ns[RANKS_DEPTH], ended_ns; /* of the batch in that place; when the last one ended */
	uint32_t allowed_ms[RANKS_DEPTH]; /* for the batch in that place without a sign of life */
	_Atomic uint32_t deadline_ms; /* the longest of them: for the watcher */
	struct process process[SR_RANKS_MAX];
	struct ranks_view view[SR_RANKS_MAX];
	pthread_t watcher;
	bool watched;
	_Atomic int lost;            /* the device is lost: set once a start */
	char why[700];               /* then: the reason; of the thread that lost it, or after the watcher has ended */
	pthread_mutex_t lock;        /* of armed */
	int armed;                   /* core's eventfd, or -1 */
	int alarm;                   /* the same, once core has given it: also rung when a rank is lost and core sleeps */
};

static struct ranks_setting setting;

static void say(const struct sr_backend *b, bool bad, const char *line)
{
	if (b->how->say)
		b->how->say(b->how->ctx, bad, line);
}

static void wake_core(struct sr_backend *b, bool anyway)
{
	uint64_t one = 1;
	int fd;

	pthread_mutex_lock(&b->lock);
	fd = anyway ? b->alarm : b->armed;
	b->armed = -1;
	pthread_mutex_unlock(&b->lock);
	if (fd >= 0 && write(fd, &one, sizeof(one)) < 0)
		return; /* a full eventfd is already readable */
}

/* The device is lost, and why.  Only the first reason is told: what follows is its consequence. */
__attribute__((format(printf, 2, 3)))
static void lose(struct sr_backend *b, const char *fmt, ...)
{
	va_list ap;

	if (atomic_exchange(&b->lost, 1))
		return;
	va_start(ap, fmt);
	vsnprintf(b->why, sizeof(b->why), fmt, ap);
	va_end(ap);
	say(b, true, b->why);
	wake_core(b, true);
}

/* ---- the watcher ------------------------------------------------------------------------------------ */

/* Rank r has ended: reap it. */
static void on_end(struct sr_backend *b, int r)
{
	struct process *p = &b->process[r];
	struct rank_word *w = &b->page->rank[r];
	siginfo_t si = { 0 };

	if (waitid(P_PID, (id_t)p->pid, &si, WEXITED | WNOHANG) < 0 || !si.si_pid)
		si.si_code = 0;
	close(p->fd);
	p->fd = -1;
	if (atomic_load(&w->state) == RANK_REFUSED)
		lose(b, "rank %d: %.500s", r, w->err);
	else if (si.si_code == CLD_KILLED || si.si_code == CLD_DUMPED)
		lose(b, "rank %d (pid %d) is gone: signal %d, %s", r, p->pid, si.si_status, strsignal(si.si_status));
	else
		lose(b, "rank %d (pid %d) is gone: it ended with code %d", r, p->pid, si.si_status);
}

/* Does a thread of this process compute, or would if it had a core? */
static bool runnable(int pid)
{
	char path[300], line[512];
	struct dirent *e;
	bool is = false;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	tasks = opendir(path);
	while (tasks && !is && (e = readdir(tasks))) {
		FILE *stat;

		snprintf(path, sizeof(path), "/proc/%d/task/%s/stat", pid, e->d_name);
		stat = e->d_name[0] != '.' ? fopen(path, "re") : NULL;
		if (stat && fgets(line, sizeof(line), stat)) {
			const char *state = strrchr(line, ')');

			is = state && state[1] && state[2] == 'R';
		}
		if (stat)
			fclose(stat);
	}
	if (tasks)
		closedir(tasks);
	return is;
}

/* Has rank r been quiet for too long?  One that has a core, or waits for one, is given more time. */
static bool hangs(struct sr_backend *b, int r, uint32_t quiet_ms)
{
	uint32_t most = b->how->hang_ms ? b->how->hang_ms : atomic_load_explicit(&b->deadline_ms, memory_order_relaxed);
	uint32_t more = b->how->hang_ms ? most : HANG_TIMES * most > HANG_MS ? HANG_TIMES * most : HANG_MS;

	return quiet_ms >= most && (quiet_ms >= more || !runnable(b->process[r].pid));
}

/* The device of rank r computes by itself, so beats say nothing of it; its progress does.  Ranks that wait for others
 * make none either: the one that is least far hangs. */
static void look_at_device(struct sr_backend *b, int r)
{
	const struct process *own = &b->process[r];

	for (int i = 0; i < b->world && own->due; i++) {
		const struct process *p = &b->process[i];

		if (p->due && (!p->idle_ms || p->work < own->work || (p->work == own->work && i < r)))
			return;
	}
	if (own->due && own->idle_ms >= (b->how->hang_ms ? b->how->hang_ms : atomic_load(&b->deadline_ms)))
		lose(b, "rank %d (pid %d) hangs: its device has computed nothing for %u ms, with batch %u of %u done", r, own->pid,
		     own->idle_ms, atomic_load(&b->page->rank[r].done), atomic_load(&b->page->launched));
}

/* A beat is due every 20 ms from each rank that has a batch to compute.  Time in which the watcher itself had no
 * core does not count. */
static void look_at_beats(struct sr_backend *b)
{
	uint32_t launched = atomic_load(&b->page->launched);
	bool apart = b->world > 1 && !b->how->ops->work && b->how->ops->progress;

	for (int r = 0; r < b->world; r++) {
		struct process *p = &b->process[r];
		const struct rank_word *w = &b->page->rank[r];
		uint64_t beat = atomic_load_explicit(&b->shared->rank[r].beat, memory_order_relaxed);
		uint64_t work = atomic_load(&w->progress) + ((uint64_t)atomic_load(&w->done) << 32);

		p->due = atomic_load(&w->done) != launched && atomic_load(&w->state) == RANK_OPEN;
		p->quiet_ms = p->due && beat == p->beat ? p->quiet_ms + TICK_MS : 0;
		p->idle_ms = p->due && work == p->work ? p->idle_ms + TICK_MS : 0;
		p->beat = beat;
		p->work = work;
		if (hangs(b, r, p->quiet_ms))
			lose(b, "rank %d (pid %d) hangs: no sign of life for %u ms, with batch %u of %u done", r, p->pid,
			     p->quiet_ms, atomic_load(&w->done), launched);
	}
	for (int r = 0; r < b->world && apart; r++)
		look_at_device(b, r);
}

static bool any_flying(const struct sr_backend *b)
{
	for (int r = 0; r < b->world; r++)
		if (atomic_load(&b->page->rank[r].done) != atomic_load(&b->page->launched))
			return true;
	return false;
}

static void *watch(void *arg)
{
	struct sr_backend *b = arg;

	for (;;) {
		struct pollfd f[SR_RANKS_MAX + 2] = { { .fd = b->stop, .events = POLLIN },
		                                      { .fd = b->bell, .events = POLLIN } };
		uint64_t n;
		int got;

		for (int r = 0; r < b->world; r++)   /* poll() passes over -1 */
			f[2 + r] = (struct pollfd){ .fd = b->process[r].fd, .events = POLLIN };
		got = poll(f, (nfds_t)(2 + b->world), any_flying(b) ? TICK_MS : 10 * TICK_MS);
		if (f[0].revents)
			return NULL;
		if (f[1].revents && read(b->bell, &n, sizeof(n)) > 0)
			wake_core(b, false);
		for (int r = 0; got > 0 && r < b->world; r++)
			if (f[2 + r].revents)
				on_end(b, r);
		if (got == 0)
			look_at_beats(b);
	}
}

/* ---- start and stop ---------------------------------------------------------------------------------- */

static void end_watcher(struct sr_backend *b)
{
	uint64_t one = 1;

	if (!b->watched)
		return;
	while (write(b->stop, &one, sizeof(one)) < 0 && errno == EINTR)
		;
	pthread_join(b->watcher, NULL);
	while (read(b->stop, &one, sizeof(one)) < 0 && errno == EINTR)
		;
	b->watched = false;
}

/* End all processes: kindly first unless something is wrong with them. */
static void stop_ranks(struct sr_backend *b, bool kindly)
{
	end_watcher(b);
	atomic_store(&b->page->quit, 1);
	shared_wake(&b->page->launched, &b->page->sleepers);
	for (int r = 0; r < b->world; r++) {
		struct process *p = &b->process[r];
		struct pollfd f = { .fd = p->fd, .events = POLLIN };

		if (p->fd < 0)
			continue;
		if (!kindly || poll(&f, 1, PATIENCE_MS) <= 0)
			kill(p->pid, SIGKILL); /* it is our child and not reaped yet: the pid is its own */
		waitpid(p->pid, NULL, 0);
		close(p->fd);
		p->fd = -1;
	}
}

static int spawn_one(struct sr_backend *b, int r)
{
	struct process *p = &b->process[r];

	*p = (struct process){ .pid = b->how->spawn(b->how->ctx, r, b->memory, b->bell), .fd = -1 };
	if (p->pid < 0)
		return p->pid;
	p->fd = (int)syscall(SYS_pidfd_open, p->pid, 0);
	if (p->fd < 0) {
		int e = -errno;

		kill(p->pid, SIGKILL);
		waitpid(p->pid, NULL, 0);
		return e;
	}
	b->view[r].pid = p->pid;
	return 0;
}

/* Waits may spin: no thread that computes is without a core. */
static bool cores_enough(const struct sr_backend *b)
{
	int threads = b->page->lim.threads > b->world ? b->page->lim.threads : b->world;
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) >= threads;
}

static int start_ranks(struct sr_backend *b)
{
	struct ranks_page *p = b->page;
	sigset_t all, before;
	int e = 0;

	atomic_store(&p->launched, 0);
	atomic_store(&p->quit, 0);
	atomic_store(&p->sleepers, 0);
	memset(p->rank, 0, sizeof(p->rank));
	memset(b->shared, 0, sizeof(*b->shared) + (b->n_shared < SHARED_CLEAR ? b->n_shared : SHARED_CLEAR));
	b->shared->world = b->world;
	b->shared->spin_ns = cores_enough(b) ? SPIN_NS : 0;
	memset(b->seq, 0, sizeof(b->seq));
	b->token_ns = 0;
	b->measured = 0;
	b->ended_ns = 0;
	memset(b->allowed_ms, 0, sizeof(b->allowed_ms));
	atomic_store(&b->deadline_ms, HANG_MS);
	atomic_store(&b->lost, 0);
	b->phase = OPENING;
	b->began = sr_now();
	for (int r = 0; r < b->world; r++)
		b->process[r].fd = -1;
	for (int r = 0; r < b->world && !e; r++)
		e = spawn_one(b, r);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* the caller's thread takes signals */
	if (!e)
		e = -pthread_create(&b->watcher, NULL, watch, b);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	b->watched = !e;
	if (e)
		stop_ranks(b, false);
	return e;
}

/* 1 all are open, 0 not yet, -EIO: lost. */
static int opened(struct sr_backend *b)
{
	if (atomic_load(&b->lost))
		return -EIO;
	for (int r = 0; r < b->world; r++)
		if (atomic_load(&b->page->rank[r].state) != RANK_OPEN)
			return 0;
	b->phase = RUNNING;
	return 1;
}

static uint64_t bytes_loaded(const struct sr_backend *b)
{
	uint64_t sum = 0;

	for (int r = 0; r < b->world; r++)
		sum += atomic_load_explicit(&b->page->rank[r].loaded, memory_order_relaxed);
	return sum;
}

/* ---- plan, open, close ------------------------------------------------------------------------------- */

static int plan(const struct sr_model *m, const struct sr_limits *lim, struct sr_need *out, char *err,
                size_t errlen)
{
	*out = (struct sr_need){ .kinds_in_groups = 1 };
	if (lim->world > SR_RANKS_MAX)
		return refuse(-ENOTSUP, err, errlen, "--tensor-parallel-size %d: at most %d ranks", lim->world, SR_RANKS_MAX);
	for (int32_t r = 0; r < lim->world; r++) {
		struct sr_limits l = rank_limits(lim, r, setting.ops);
		struct sr_need n = { 0 };
		int e = setting.ops->plan(m, &l, &n, err, errlen);
		int64_t *const sum[] = { &out->weights, &out->scratch, &out->graphs, &out->slots, &out->per_block, &out->pinned };
		const int64_t add[] = { n.weights, n.scratch, n.graphs, n.slots, n.per_block, n.pinned };

		if (e)
			return e;
		for (int i = 0; i < 6; i++)
			if (!setting.separate)
				*sum[i] += add[i];
			else if (add[i] > *sum[i])
				*sum[i] = add[i];
		out->kinds_in_groups &= n.kinds_in_groups;
		out->shared = n.shared > out->shared ? n.shared : out->shared;
		out->avail = r && out->avail < n.avail ? out->avail : n.avail;
		out->total = n.total;
	}
	out->pinned += out->shared;
	return 0;
}

static void close_ranks(struct sr_backend *b)
{
	if (!b)
		return;
	if (b->page) {
		stop_ranks(b, !atomic_load(&b->lost));
		munmap(b->page, b->page->bytes);
	}
	for (int *fd = (int[]){ b->memory, b->bell, b->stop, -2 }; *fd != -2; fd++)
		if (*fd >= 0)
			close(*fd);
	pthread_mutex_destroy(&b->lock);
	free(b);
}

/* The memory: words, batches and masks, what ranks gather.  Sealed: nobody can cut it. */
static int make_memory(struct sr_backend *b, const struct sr_model *m, const struct sr_limits *lim, int64_t shared)
{
	size_t at = (sizeof(struct ranks_page) + PAGE - 1) & ~(PAGE - 1), batches = at, shared_at, all;
	int depth = setting.ops->depth;

	at += batches_cut(b->batch, depth, &b->masks, lim, m->n_vocab, NULL);
	shared_at = at = (at + PAGE - 1) & ~(PAGE - 1);
	all = (at + sizeof(struct sr_shared) + (size_t)shared + PAGE - 1) & ~(PAGE - 1);
	b->memory = memfd_create("slipring-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (b->memory < 0 || ftruncate(b->memory, (off_t)all) < 0 ||
	    fcntl(b->memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		return -errno;
	b->page = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED, b->memory, 0);
	if (b->page == MAP_FAILED) {
		b->page = NULL;
		return -errno;
	}
	b->page->lim = *lim;
	b->page->depth = depth;
	b->page->n_vocab = m->n_vocab;
	b->page->batches_at = batches;
	b->page->shared_at = shared_at;
	b->page->bytes = all;
	b->shared = (struct sr_shared *)((char *)b->page + shared_at);
	b->n_shared = (size_t)shared;
	batches_cut(b->batch, depth, &b->masks, lim, m->n_vocab, (char *)b->page + batches);
	masks_clear(&b->masks, lim);
	return 0;
}

static int open_ranks(struct sr_backend **out, const struct sr_model *m, const struct sr_source *src,
                      const struct sr_limits *lim, char *err, size_t errlen)
{
	struct sr_backend *b = calloc(1, sizeof(*b));
	struct sr_need need;
	int e, r;

	(void)src;                           /* each rank reads what it holds */
	if (!b)
		return refuse(-ENOMEM, err, errlen, "no memory for %d ranks", lim->world);
	*b = (struct sr_backend){ .how = &setting, .memory = -1, .bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC),
	                          .stop = eventfd(0, EFD_CLOEXEC), .armed = -1, .alarm = -1, .world = lim->world };
	pthread_mutex_init(&b->lock, NULL);
	assert(setting.ops->depth <= RANKS_DEPTH);
	e = plan(m, lim, &need, err, errlen);
	if (!e && ((e = make_memory(b, m, lim, need.shared)) != 0 || (e = start_ranks(b)) != 0))
		refuse(e, err, errlen, "%d ranks cannot be started: %s", lim->world, strerror(-e));
	if (e) {
		close_ranks(b);
		return e;
	}
	while ((r = opened(b)) == 0) {
		if (setting.loading && !setting.loading(setting.ctx, bytes_loaded(b)))
			break;
		usleep(2000);
	}
	if (r <= 0) {
		end_watcher(b);
		if (atomic_load(&b->lost))
			refuse(0, err, errlen, "%s", b->why);
		close_ranks(b);
		return -EIO;
	}
	*out = b;
	return 0;
}

/* ---- lost and found ---------------------------------------------------------------------------------- */

/* Note a loss.  False: it was one too many. */
static bool may_restart(struct sr_backend *b)
{
	memmove(b->losses + 1, b->losses, (LOSSES - 1) * sizeof(*b->losses));
	b->losses[0] = sr_now();
	return !b->losses[LOSSES - 1] || b->losses[0] - b->losses[LOSSES - 1] > LOSS_NS;
}

static int again(struct sr_backend *b)
{
	char line[200];
	int r = 0;

	if (b->phase == GONE)
		return -EIO;
	if (b->phase == RUNNING && !atomic_load(&b->lost))
		return 1;
	if (b->phase == OPENING && (r = opened(b)) >= 0) {
		if (r) {
			snprintf(line, sizeof(line), "all %d ranks are back after %.2f s", b->world,
			         (double)(sr_now() - b->began) / 1e9);
			say(b, false, line);
		}
		return r;
	}
	stop_ranks(b, false);
	if (!may_restart(b)) {
		snprintf(line, sizeof(line), "ranks were lost %d times in %d minutes: they are not started again", LOSSES,
		         (int)(LOSS_NS / MS / 60000));
		say(b, true, line);
		b->phase = GONE;
		return -EIO;
	}
	b->restarts++;
	if (start_ranks(b) < 0) {
		b->phase = GONE;
		return -EIO;
	}
	return 0;
}

/* ---- batches ----------------------------------------------------------------------------------------- */

static void masks(struct sr_backend *b, struct sr_masks *out)
{
	*out = b->masks;
}

static struct sr_batch *batch(struct sr_backend *b, int32_t i)
{
	return &b->batch[i];
}

/* How long ranks may show no sign of life while they have this batch: HANG_TIMES what all of it is expected to take. */
static uint32_t allowed(const struct sr_backend *b, int32_t n_tokens)
{
	double ms = HANG_TIMES * b->token_ns * (n_tokens + STEP_TOKENS) / MS;

	double least = b->measured < MEASURED ? HANG_MS : HANG_LEAST;

	return (uint32_t)(ms < least ? least : ms > HANG_MOST ? HANG_MOST : ms);
}

static void set_deadline(struct sr_backend *b, int32_t i)
{
	uint32_t most = 0;

	b->launched_ns[i] = sr_now();
	b->allowed_ms[i] = allowed(b, b->batch[i].n_tokens);
	for (int k = 0; k < b->how->ops->depth; k++)
		most = b->allowed_ms[k] > most ? b->allowed_ms[k] : most;
	atomic_store_explicit(&b->deadline_ms, most, memory_order_relaxed);
}

/* Batch i has ended: what a step takes. */
static void measure(struct sr_backend *b, int32_t i)
{
	uint64_t last = 0, from = b->launched_ns[i] > b->ended_ns ? b->launched_ns[i] : b->ended_ns;
	double each;

	for (int r = 0; r < b->world; r++)
		last = b->page->rank[r].done_ns[i] > last ? b->page->rank[r].done_ns[i] : last;
	b->ended_ns = last;
	if (last <= from || b->batch[i].n_tokens < 1)
		return;
	each = (double)(last - from) / (b->batch[i].n_tokens + STEP_TOKENS);
	b->token_ns = each > b->token_ns ? each : b->token_ns - (b->token_ns - each) / 256;
	b->measured++;
}

static int launch(struct sr_backend *b, int32_t i)
{
	const struct sr_batch *from = &b->batch[i];
	struct rank_batch *to = &b->page->batch[i];

	to->n_copies = from->n_copies;
	to->n_cmds = from->n_cmds;
	to->n_words = from->n_words;
	to->n_rows = from->n_rows;
	to->n_results = from->n_results;
	to->n_ids = from->n_ids;
	to->n_tokens = from->n_tokens;
	atomic_store_explicit(&to->finished, 0, memory_order_relaxed);
	set_deadline(b, i);
	b->seq[i] = atomic_load_explicit(&b->page->launched, memory_order_relaxed) + 1;
	atomic_store(&b->page->launched, b->seq[i]);
	shared_wake(&b->page->launched, &b->page->sleepers);
	return 0;                            /* poll() says if they are lost */
}

static void note_lateness(struct sr_backend *b, int32_t i)
{
	uint64_t first = UINT64_MAX;

	for (int r = 0; r < b->world; r++)
		first = b->page->rank[r].done_ns[i] < first ? b->page->rank[r].done_ns[i] : first;
	for (int r = 0; r < b->world; r++) {
		b->view[r].late_ns += b->page->rank[r].done_ns[i] - first;
		b->view[r].done = atomic_load_explicit(&b->page->rank[r].done, memory_order_relaxed);
	}
}

/* Take what rank 0 measured. */
static void take_numbers(struct sr_backend *b, int32_t i)
{
	const struct rank_batch *from = &b->page->batch[i];
	struct sr_batch *to = &b->batch[i];

	RANK_NUMBERS(to, from);
	to->check = b->page->rank[0].check[i];
}

static int poll_batch(struct sr_backend *b, int32_t i)
{
	uint32_t launched = atomic_load_explicit(&b->page->launched, memory_order_relaxed);
	bool all = true;

	if (atomic_load_explicit(&b->lost, memory_order_acquire))
		return -EIO;
	for (int r = 0; r < b->world; r++) {
		uint32_t done = atomic_load_explicit(&b->page->rank[r].done, memory_order_acquire);

		if ((int32_t)(done - launched) > 0) {
			lose(b, "rank %d (pid %d) says that %u batches are done, of %u", r, b->process[r].pid, done, launched);
			return -EIO;
		}
		all &= (int32_t)(done - b->seq[i]) >= 0;
	}
	if (!all)
		return 0;
	for (int r = 1; r < b->world; r++)
		if (b->page->rank[r].check[i] != b->page->rank[0].check[i]) {
			lose(b, "rank %d (pid %d) has computed batch %u otherwise than rank 0", r, b->process[r].pid, b->seq[i]);
			return -EIO;
		}
	note_lateness(b, i);
	measure(b, i);
	take_numbers(b, i);
	return 1;
}

/* The last rank to finish rings the bell, which the watcher passes on. */
static int arm(struct sr_backend *b, int32_t i, int fd)
{
	pthread_mutex_lock(&b->lock);
	b->armed = b->alarm = fd;
	pthread_mutex_unlock(&b->lock);
	atomic_store(&b->page->armed, 1);
	if (atomic_load(&b->lost) || atomic_load(&b->page->batch[i].finished) == (uint32_t)b->world)
		wake_core(b, false);
	return 0;
}

static uint64_t progress(const struct sr_backend *b)
{
	uint64_t sum = 0;

	for (int r = 0; r < b->world; r++)
		sum += atomic_load_explicit(&b->page->rank[r].progress, memory_order_relaxed) +
		       atomic_load_explicit(&b->page->rank[r].done, memory_order_relaxed);
	return sum;
}

/* Ranks agree on it: rank 0's is that of all. */
static const char *without(const struct sr_backend *b)
{
	return b->page->rank[0].without;
}

int32_t ranks_look(const struct sr_backend *b, const struct ranks_view **out)
{
	*out = b->view;
	return b->world;
}

const struct sr_backend_ops *ranks_over(const struct ranks_setting *how)
{
	static struct sr_backend_ops ops;

	setting = *how;
	ops = (struct sr_backend_ops){
		.version = SR_BACKEND_VERSION, .depth = how->ops->depth, .name = how->ops->name,
		.plan = plan, .open = open_ranks, .close = close_ranks, .masks = how->ops->masks ? masks : NULL, .batch = batch,
		.launch = launch, .poll = poll_batch, .arm = arm, .progress = progress, .again = again,
		.without = how->ops->without ? without : NULL,
	};
	return &ops;
}
