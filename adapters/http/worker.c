/* worker.c - see worker.h.  One lock, two lists, an eventfd towards the loop. */
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

#include "core/log.h"

#define THREADS_MAX 8
#define TRIM_BYTES  (1u << 20)
#define RINGS       100           /* tries, a millisecond apart */
#define AGAIN_NS    100000000u

struct list { struct work *first, **end; };

struct workers {
	struct io *io;
	struct io_watch ready;         /* the eventfd */
	struct io_timer again;         /* after it could not be read */
	pthread_mutex_t lock;          /* of all below */
	pthread_cond_t more;
	struct list todo, finished;
	size_t n_todo, bytes;          /* given and not come back */
	bool stop;
	int n_threads;
	pthread_t thread[THREADS_MAX];
};

static void list_init(struct list *l)
{
	l->first = NULL;
	l->end = &l->first;
}

static void list_add(struct list *l, struct work *w)
{
	w->next = NULL;
	*l->end = w;
	l->end = &w->next;
}

static struct work *list_take(struct list *l)
{
	struct work *w = l->first;

	if (w && !(l->first = w->next))
		l->end = &l->first;
	return w;
}

/* EAGAIN: it was rung 2^64 times and is heard.  Else the loop hears of it with the next one finished. */
static void ring(const struct workers *p)
{
	const struct timespec moment = { .tv_nsec = 1000000 };
	uint64_t one = 1;

	for (int i = 0; i < RINGS && write(p->ready.fd, &one, sizeof(one)) < 0 && errno != EAGAIN; i++)
		nanosleep(&moment, NULL);
}

static void *worker(void *arg)
{
	struct workers *p = arg;
	struct work *w;

	pthread_mutex_lock(&p->lock);
	for (;;) {
		while (!(w = p->stop ? NULL : list_take(&p->todo)) && !p->stop)
			pthread_cond_wait(&p->more, &p->lock);
		if (!w)
			break;
		pthread_mutex_unlock(&p->lock);
		w->run(w);
		if (w->bytes > TRIM_BYTES)    /* a tree of JSON lay all over this thread's heap */
			malloc_trim(0);
		pthread_mutex_lock(&p->lock);
		list_add(&p->finished, w);
		ring(p);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

static struct work *come_back(struct workers *p, struct list *from)
{
	struct work *w;

	pthread_mutex_lock(&p->lock);
	w = list_take(from);
	if (w) {
		p->n_todo--;
		p->bytes -= w->bytes;
	}
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
		io_watch_set(p->io, watch, 0);    /* it stays readable: do not spin on it */
		io_timer_set(p->io, &p->again, io_now() + AGAIN_NS);
	}
	while ((w = come_back(p, &p->finished)))
		w->done(w);
}

static void on_again(struct io_timer *t)
{
	struct workers *p = t->ctx;

	io_watch_set(p->io, &p->ready, IO_IN);
}

int workers_create(struct workers **out, struct io *io, int threads)
{
	struct workers *p = calloc(1, sizeof(*p));
	sigset_t all, old;
	int r;

	*out = NULL;
	if (!p)
		return -ENOMEM;
	p->io = io;
	list_init(&p->todo);
	list_init(&p->finished);
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->more, NULL);
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
	sigfillset(&all);                     /* signals belong to the loop's thread */
	pthread_sigmask(SIG_BLOCK, &all, &old);
	while (!r && p->n_threads < threads && p->n_threads < THREADS_MAX) {
		r = -pthread_create(&p->thread[p->n_threads], NULL, worker, p);
		p->n_threads += !r;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r < 0) {
		workers_destroy(p);
		return r;
	}
	*out = p;
	return 0;
}

int workers_give(struct workers *p, struct work *w)
{
	int r = 0;

	pthread_mutex_lock(&p->lock);
	if (p->n_todo >= WORKERS_MAX || (p->n_todo && p->bytes + w->bytes > WORKERS_BYTES)) {
		r = -EAGAIN;
	} else {
		p->n_todo++;
		p->bytes += w->bytes;
		list_add(&p->todo, w);
		pthread_cond_signal(&p->more);
	}
	pthread_mutex_unlock(&p->lock);
	return r;
}

void workers_destroy(struct workers *p)
{
	struct work *w;
	int i;

	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_broadcast(&p->more);
	pthread_mutex_unlock(&p->lock);
	for (i = 0; i < p->n_threads; i++)
		pthread_join(p->thread[i], NULL);
	while ((w = come_back(p, &p->finished)) || (w = come_back(p, &p->todo)))
		w->done(w);
	io_timer_del(p->io, &p->again);
	io_watch_del(p->io, &p->ready);
	close(p->ready.fd);
	pthread_mutex_destroy(&p->lock);
	pthread_cond_destroy(&p->more);
	free(p);
}
