/* worker.c - see worker.h.  One lock, three queues, a list of finished works, an eventfd to the loop. */
#include "worker.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/instance/log.h"

#define THREADS     4
#define TRIM_BYTES  (1u << 20)
#define RINGS       100           /* attempts, 1 ms apart */
#define AGAIN_NS    100000000u

struct work_list { struct work *first, **end; };

/* The queues that each thread serves, in this order. */
static const enum work_line serves[THREADS][2] = {
	{ WORK_SHORT, WORK_SHORT }, { WORK_LONGER, WORK_SHORT }, { WORK_LONGER, WORK_SHORT },
	{ WORK_TEXT, WORK_TEXT },
};

struct thread {
	struct workers *workers;
	const enum work_line *serves;  /* [2] */
	pthread_t id;
	pthread_cond_t more;
	bool idle;
	const struct work *runs;       /* NULL: none */
};

struct workers {
	struct io *io;
	struct io_watch ready;         /* the eventfd */
	struct io_timer again;         /* after a failed read of the eventfd */
	pthread_mutex_t lock;          /* guards all below */
	struct tenants line[WORK_LINES]; /* hold works from workers_give() until they come back */
	struct work_list finished;
	bool stop;
	int n_threads;
	struct thread thread[THREADS];
};

static void list_init(struct work_list *l)
{
	l->first = NULL;
	l->end = &l->first;
}

static void list_add(struct work_list *l, struct work *w)
{
	w->next = NULL;
	*l->end = w;
	l->end = &w->next;
}

static struct work *list_take(struct work_list *l)
{
	struct work *w = l->first;

	if (w && !(l->first = w->next))
		l->end = &l->first;
	return w;
}

/* EAGAIN: the counter is full, so the loop is woken anyway.  If all attempts fail, the next finished work
 * wakes the loop. */
static void ring(const struct workers *p)
{
	const struct timespec moment = { .tv_nsec = 1000000 };
	uint64_t one = 1;

	for (int i = 0; i < RINGS && write(p->ready.fd, &one, sizeof(one)) < 0 && errno != EAGAIN; i++)
		nanosleep(&moment, NULL);
}

/* A long work cannot be interrupted.  So a tenant runs one at a time, and a thread is left to the others. */
static bool may_run_long(void *ctx, const struct waiter *waiter)
{
	const struct workers *p = ctx;
	uint64_t tenant = waiter->tenant->id;

	for (int i = 0; tenant && i < p->n_threads; i++) {
		const struct work *w = p->thread[i].runs;

		if (w && w->line == WORK_LONGER && w->tenant == tenant)
			return false;
	}
	return true;
}

/* Take the next work from a queue, tenants in turn; NULL: there is none, or none that may run. */
static struct work *line_take(struct workers *p, enum work_line line, bool all)
{
	struct waiter *w = tenants_next(&p->line[line], line == WORK_LONGER && !all ? may_run_long : NULL, p);

	if (w)
		tenants_served(&p->line[line], w);
	return (struct work *)w;
}

static struct work *next_work(struct workers *p, const struct thread *t)
{
	struct work *w = line_take(p, t->serves[0], false);

	return w ? w : line_take(p, t->serves[1], false);
}

/* Wake a thread that serves this queue, if one is idle. */
static void wake_one(struct workers *p, enum work_line line)
{
	for (int i = 0; i < p->n_threads; i++) {
		struct thread *t = &p->thread[i];

		if (t->idle && (t->serves[0] == line || t->serves[1] == line)) {
			t->idle = false;      /* the next work goes to another thread */
			pthread_cond_signal(&t->more);
			return;
		}
	}
}

static void *worker(void *arg)
{
	struct thread *t = arg;
	struct workers *p = t->workers;
	struct work *w;

	pthread_mutex_lock(&p->lock);
	for (;;) {
		while (!(w = p->stop ? NULL : next_work(p, t)) && !p->stop) {
			t->idle = true;
			pthread_cond_wait(&t->more, &p->lock);
		}
		t->idle = false;
		if (!w)
			break;
		t->runs = w;
		pthread_mutex_unlock(&p->lock);
		w->run(w);
		if (w->bytes > TRIM_BYTES)    /* a JSON tree was spread over this thread's heap */
			malloc_trim(0);
		pthread_mutex_lock(&p->lock);
		t->runs = NULL;
		if (w->line == WORK_LONGER && p->line[WORK_LONGER].n_waiting)
			wake_one(p, WORK_LONGER); /* its tenant's next one may run now */
		list_add(&p->finished, w);
		ring(p);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

/* Take a finished work; with_rest, when all ends, also one that no thread began. */
static struct work *come_back(struct workers *p, bool with_rest)
{
	struct work *w;

	pthread_mutex_lock(&p->lock);
	w = list_take(&p->finished);
	for (int i = 0; !w && with_rest && i < WORK_LINES; i++)
		w = line_take(p, i, true);
	if (w)
		tenants_release(&p->line[w->line], w->waiter.tenant, w->bytes);
	pthread_mutex_unlock(&p->lock);
	return w;
}

static void on_ready(struct io_watch *watch, uint32_t events)
{
	struct workers *p = watch->ctx;
	struct work *w;
	uint64_t n;

	(void)events;
	if (read(watch->fd, &n, sizeof(n)) < 0 && errno != EAGAIN) {
		log_warn("the workers' eventfd cannot be read: %s", strerror(errno));
		io_watch_set(p->io, watch, 0);    /* it stays readable: stop watching, so as not to spin */
		io_timer_set(p->io, &p->again, io_now() + AGAIN_NS);
	}
	while ((w = come_back(p, false)))
		w->done(w);
}

static void on_again(struct io_timer *t)
{
	struct workers *p = t->ctx;

	io_watch_set(p->io, &p->ready, IO_IN);
}

static int start_threads(struct workers *p)
{
	sigset_t all, old;
	int r = 0;

	sigfillset(&all);                     /* signals belong to the loop's thread */
	pthread_sigmask(SIG_BLOCK, &all, &old);
	while (!r && p->n_threads < THREADS) {
		struct thread *t = &p->thread[p->n_threads];

		*t = (struct thread){ .workers = p, .serves = serves[p->n_threads] };
		pthread_cond_init(&t->more, NULL);
		r = -pthread_create(&t->id, NULL, worker, t);
		p->n_threads += !r;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return r;
}

int workers_create(struct workers **out, struct io *io)
{
	struct workers *p = calloc(1, sizeof(*p));
	int r;

	*out = NULL;
	if (!p)
		return -ENOMEM;
	p->io = io;
	list_init(&p->finished);
	for (int i = 0; i < WORK_LINES; i++)
		p->line[i].quantum = WORK_LONG;
	pthread_mutex_init(&p->lock, NULL);
	p->ready.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	p->ready.events = IO_IN;
	p->ready.fn = on_ready;
	p->ready.ctx = p;
	p->again = (struct io_timer){ .fn = on_again, .ctx = p };
	if (p->ready.fd < 0) {
		r = -errno;
		free(p);
		return r;
	}
	r = io_watch_add(io, &p->ready);
	if (!r)
		r = start_threads(p);
	if (r < 0) {
		workers_destroy(p);
		return r;
	}
	*out = p;
	return 0;
}

/* May the tenant give a work of this many bytes? */
static bool has_room(const struct tenants *line, uint64_t tenant, uint64_t bytes, uint64_t most)
{
	const struct tenant *t = tenants_find(line, tenant);

	if (!line->n)                         /* always into an empty queue: its memory is in use already */
		return true;
	if (line->n >= WORKERS_MAX || line->size + bytes > most)
		return false;
	return !t || !(tenant_over(tenant, t->n, WORKERS_MAX - line->n - 1) ||
	               tenant_over(tenant, t->size + bytes, most - line->size - bytes));
}

int workers_give(struct workers *p, struct work *w)
{
	struct tenants *line;
	struct tenant *t;
	int r = -EAGAIN;

	w->line = w->text ? WORK_TEXT : w->bytes < WORK_LONG ? WORK_SHORT : WORK_LONGER;
	line = &p->line[w->line];
	pthread_mutex_lock(&p->lock);
	if (has_room(line, w->tenant, w->bytes, w->line == WORK_LONGER ? 2 * WORKERS_BYTES : WORKERS_BYTES)) {
		t = tenants_hold(line, w->tenant, w->bytes);
		r = t ? 0 : -ENOMEM;
	}
	if (!r) {
		w->waiter = (struct waiter){ .cost = w->bytes };
		tenants_put(line, t, &w->waiter);
		wake_one(p, w->line);
	}
	pthread_mutex_unlock(&p->lock);
	return r;
}

void workers_destroy(struct workers *p)
{
	struct work *w;

	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	for (int i = 0; i < p->n_threads; i++)
		pthread_cond_signal(&p->thread[i].more);
	pthread_mutex_unlock(&p->lock);
	for (int i = 0; i < p->n_threads; i++)
		pthread_join(p->thread[i].id, NULL);
	while ((w = come_back(p, true)))
		w->done(w);
	io_timer_del(p->io, &p->again);
	io_watch_del(p->io, &p->ready);
	close(p->ready.fd);
	pthread_mutex_destroy(&p->lock);
	for (int i = 0; i < p->n_threads; i++)
		pthread_cond_destroy(&p->thread[i].more);
	free(p);
}
