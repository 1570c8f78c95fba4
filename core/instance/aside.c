/* aside.c - see aside.h.  A lock guards the lists; it is held only to change them. */
#include "aside.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83              /* Linux 6.16 */
#endif
#define LANES    64                   /* of uids: two that share one take turns as one */
#define FULL     64                   /* jobs that wait, see aside_full() */
#define JOB_NS   500000               /* a job that takes longer is interrupted, and again after each such time */
#define WAKE     SIGURG               /* ignored by default; here it has a handler, so that it ends a sleep */

enum { IDLE, QUEUED, RUNNING, DONE };

struct lane { struct aside_job *first, **last; };

struct aside {
	struct io *io;
	struct io_watch bell;         /* jobs are done */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t more, ended;   /* there is a job, or it stops; a job ended */
	bool started, stop;
	struct lane lane[LANES], finished;
	unsigned next, n_waiting;     /* the lane whose turn it is; jobs in lanes */
	struct aside_job *running;
};

void aside_refuse(int listener)
{
	int no = 0;

	if (setsockopt(listener, SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof(no)) < 0)
		return;                       /* before Linux 6.16: aside_may_carry() says so of each connection */
}

bool aside_may_carry(int fd)
{
	int may = 1;
	socklen_t n = sizeof(may);

	return getsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &may, &n) < 0 || may;
}

/* ---- lists, under the lock ------------------------------------------------------------------- */

static void put(struct lane *l, struct aside_job *j)
{
	j->next = NULL;
	*(l->first ? l->last : &l->first) = j;
	l->last = &j->next;
}

static struct aside_job *take(struct lane *l)
{
	struct aside_job *j = l->first;

	if (j)
		l->first = j->next;
	return j;
}

static void unlink_job(struct lane *l, struct aside_job *j)
{
	struct aside_job **at = &l->first;

	while (*at && *at != j)
		at = &(*at)->next;
	if (!*at)
		return;
	*at = j->next;
	if (!j->next)
		l->last = at;
}

static struct aside_job *job_take(struct aside *a)
{
	struct aside_job *j = NULL;

	for (int i = 0; !j && i < LANES; i++)
		j = take(&a->lane[a->next++ % LANES]);
	a->n_waiting -= !!j;
	return j;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void on_wake(int sig) { (void)sig; }

/* A timer of this thread alone. */
static int timer_make(timer_t *out)
{
	struct sigevent ev = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = WAKE };
	struct sigaction sa = { .sa_handler = on_wake }; /* without SA_RESTART */

	ev._sigev_un._tid = (pid_t)syscall(SYS_gettid);
	sigemptyset(&sa.sa_mask);
	if (sigaction(WAKE, &sa, NULL) < 0)
		return -errno;
	return timer_create(CLOCK_MONOTONIC, &ev, out) < 0 ? -errno : 0;
}

static void job_run(struct aside_job *j, timer_t timer, bool timed)
{
	static const struct itimerspec on = { { 0, JOB_NS }, { 0, JOB_NS } }, off = { { 0, 0 }, { 0, 0 } };

	if (timed)
		timer_settime(timer, 0, &on, NULL);
	j->run(j);
	if (timed)
		timer_settime(timer, 0, &off, NULL);
}

static void *work(void *arg)
{
	struct aside *a = arg;
	uint64_t one = 1;
	timer_t timer;
	bool timed = timer_make(&timer) == 0;

	pthread_mutex_lock(&a->lock);
	for (;;) {
		struct aside_job *j = job_take(a);
		bool told;

		if (!j && a->stop)
			break;
		if (!j) {
			pthread_cond_wait(&a->more, &a->lock);
			continue;
		}
		told = j->done;
		a->running = j;
		j->state = RUNNING;
		pthread_mutex_unlock(&a->lock);
		job_run(j, timer, timed);     /* without done() it is freed by this */
		pthread_mutex_lock(&a->lock);
		a->running = NULL;
		if (told) {
			j->state = DONE;
			put(&a->finished, j);
			if (write(a->bell.fd, &one, sizeof(one)) < 0)
				abort();      /* our own eventfd, read by every done() */
		}
		pthread_cond_broadcast(&a->ended);
	}
	pthread_mutex_unlock(&a->lock);
	if (timed)
		timer_delete(timer);
	return NULL;
}

/* ---- the loop's side ------------------------------------------------------------------------- */

static void on_bell(struct io_watch *w, uint32_t events)
{
	struct aside *a = w->ctx;
	struct aside_job *j;
	uint64_t n;

	(void)events;
	if (read(w->fd, &n, sizeof(n)) < 0)
		return;
	for (;;) {
		pthread_mutex_lock(&a->lock);
		j = take(&a->finished);
		if (j)
			j->state = IDLE;
		pthread_mutex_unlock(&a->lock);
		if (!j)
			return;
		j->done(j);
	}
}

int aside_create(struct aside **out, struct io *io)
{
	struct aside *a = calloc(1, sizeof(*a));
	int e;

	if (!a)
		return -ENOMEM;
	a->io = io;
	a->bell = (struct io_watch){ .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .events = IO_IN, .fn = on_bell,
	                             .ctx = a };
	e = a->bell.fd < 0 ? -errno : io_watch_add(io, &a->bell);
	if (e < 0) {
		if (a->bell.fd >= 0)
			close(a->bell.fd);
		free(a);
		return e;
	}
	pthread_mutex_init(&a->lock, NULL);
	pthread_cond_init(&a->more, NULL);
	pthread_cond_init(&a->ended, NULL);
	*out = a;
	return 0;
}

void aside_destroy(struct aside *a)
{
	if (!a)
		return;
	if (a->started) {
		pthread_mutex_lock(&a->lock);
		a->stop = true;
		pthread_cond_signal(&a->more);
		pthread_mutex_unlock(&a->lock);
		pthread_join(a->thread, NULL);
	}
	io_watch_del(a->io, &a->bell);
	close(a->bell.fd);
	pthread_mutex_destroy(&a->lock);
	pthread_cond_destroy(&a->more);
	pthread_cond_destroy(&a->ended);
	free(a);
}

/* It takes no signal but its own. */
static bool start(struct aside *a)
{
	sigset_t others, before;

	if (a->started)
		return true;
	sigfillset(&others);
	sigdelset(&others, WAKE);
	pthread_sigmask(SIG_SETMASK, &others, &before);
	a->started = pthread_create(&a->thread, NULL, work, a) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return a->started;
}

void aside_do(struct aside *a, struct aside_job *j)
{
	if (!start(a)) {
		void (*done)(struct aside_job *) = j->done;

		j->run(j);
		if (done)
			done(j);
		return;
	}
	pthread_mutex_lock(&a->lock);
	j->state = QUEUED;
	put(&a->lane[j->uid % LANES], j);
	a->n_waiting++;
	pthread_cond_signal(&a->more);
	pthread_mutex_unlock(&a->lock);
}

void aside_drop(struct aside *a, struct aside_job *j)
{
	pthread_mutex_lock(&a->lock);
	if (j->state == QUEUED) {
		unlink_job(&a->lane[j->uid % LANES], j);
		a->n_waiting--;
	}
	while (a->running == j)
		pthread_cond_wait(&a->ended, &a->lock);
	if (j->state == DONE)
		unlink_job(&a->finished, j);
	j->state = IDLE;
	pthread_mutex_unlock(&a->lock);
}

bool aside_full(struct aside *a)
{
	bool full;

	pthread_mutex_lock(&a->lock);
	full = a->n_waiting > FULL;
	pthread_mutex_unlock(&a->lock);
	return full;
}

struct closing {
	struct aside_job job;                 /* first */
	struct aside *a;
	int fd;
};

static void close_run(struct aside_job *j)
{
	close(((struct closing *)j)->fd);
	free(j);
}

static struct closing *closing_make(struct aside *a, int fd, uint32_t uid)
{
	struct closing *c = malloc(sizeof(*c));

	if (c)
		*c = (struct closing){ .job = { .run = close_run, .uid = uid }, .a = a, .fd = fd };
	else
		close(fd);
	return c;
}

void aside_close(struct aside *a, int fd, uint32_t uid)
{
	struct closing *c = closing_make(a, fd, uid);

	if (c)
		aside_do(a, &c->job);
}

static void hand_in(void *ctx)
{
	struct closing *c = ctx;

	aside_do(c->a, &c->job);
}

void aside_end(struct aside *a, struct io_watch *w, uint32_t uid)
{
	struct closing *c = closing_make(a, w->fd, uid);

	if (c)
		io_watch_end(a->io, w, hand_in, c);
	else
		io_watch_del(a->io, w);
}
