/* serve.c - a rank: takes batches from the shared memory and has its device compute them.  See ranks.h. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kernels/batch.h"
#include "page.h"
#include "ranks.h"
#include "shmring/clock.h"

#define NAP_US 20                    /* between looks at a device that computes by itself */

struct server {
	const struct sr_backend_ops *ops;
	struct sr_backend *b;
	struct ranks_page *page;
	struct sr_shared *shared;
	struct rank_word *word;
	int32_t rank;
	int bell;
	uint32_t started, done;      /* batches */
};

/* The device's thread is here between layers. */
static void on_yield(void *ctx)
{
	struct server *s = ctx;

	shared_beat(s->shared, s->rank);
	if (s->ops->progress)
		atomic_store_explicit(&s->word->progress, s->ops->progress(s->b), memory_order_relaxed);
}

static void start_one(struct server *s)
{
	int32_t i = (int32_t)(s->started % (uint32_t)s->page->depth);
	const struct rank_batch *from = &s->page->batch[i];
	struct sr_batch *to = s->ops->batch(s->b, i);

	to->n_copies = from->n_copies;
	to->n_cmds = from->n_cmds;
	to->n_words = from->n_words;
	to->n_rows = from->n_rows;
	to->n_results = from->n_results;
	to->n_ids = from->n_ids;
	to->n_tokens = from->n_tokens;
	to->check = 0;
	if (s->ops->launch(s->b, i) < 0)
		_exit(EXIT_FAILURE);
	s->started++;
}

static void ring(struct server *s)
{
	uint64_t one = 1;

	if (atomic_exchange(&s->page->armed, 0) && write(s->bell, &one, sizeof(one)) < 0)
		return; /* a full eventfd is already readable */
}

static void finish_one(struct server *s, int32_t i)
{
	const struct sr_batch *from = s->ops->batch(s->b, i);
	struct rank_batch *to = &s->page->batch[i];

	if (s->rank == 0)
		RANK_NUMBERS(to, from);
	s->word->check[i] = from->check;
	s->word->done_ns[i] = sr_now();
	s->done++;
	atomic_store_explicit(&s->word->done, s->done, memory_order_release);
	if (atomic_fetch_add(&to->finished, 1) + 1 == (uint32_t)s->page->lim.world)
		ring(s);
}

static void compute(struct server *s)
{
	int32_t i = (int32_t)(s->done % (uint32_t)s->page->depth);
	int r;

	if (s->ops->work)
		s->ops->work(s->b, on_yield, s);
	r = s->ops->poll(s->b, i);
	if (r < 0)
		_exit(EXIT_FAILURE);
	if (r) {
		finish_one(s, i);
	} else {
		const struct timespec nap = { 0, NAP_US * 1000 };

		on_yield(s);
		nanosleep(&nap, NULL);
	}
}

static void serve(struct server *s)
{
	struct ranks_page *p = s->page;

	while (!atomic_load_explicit(&p->quit, memory_order_relaxed)) {
		uint32_t launched = atomic_load_explicit(&p->launched, memory_order_acquire);

		shared_beat(s->shared, s->rank);
		while (s->started != launched)
			start_one(s);
		if (s->done != s->started)
			compute(s);
		else
			shared_wait(&p->launched, launched, &p->sleepers, s->shared->spin_ns);
	}
}

int ranks_serve(const struct ranks_door *door, int32_t rank, int memory, int bell)
{
	struct server s = { .ops = door->ops, .rank = rank, .bell = bell };
	struct sr_limits lim;
	struct stat st;
	pid_t core = getppid();

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (core == 1 || core != getppid() || fstat(memory, &st) < 0)
		return EXIT_FAILURE;
	s.page = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	if (s.page == MAP_FAILED || s.page->bytes != (uint64_t)st.st_size || rank < 0 || rank >= s.page->lim.world)
		return EXIT_FAILURE;
	s.word = &s.page->rank[rank];
	s.shared = (struct sr_shared *)((char *)s.page + s.page->shared_at);
	lim = rank_limits(&s.page->lim, rank, door->ops);
	lim.batches = (char *)s.page + s.page->batches_at;
	lim.shared = s.shared;
	if (door->open(door->ctx, &lim, &s.word->loaded, &s.b, s.word->err, sizeof(s.word->err)) < 0) {
		atomic_store(&s.word->state, RANK_REFUSED);
		return EXIT_FAILURE;
	}
	if (s.ops->without)
		snprintf(s.word->without, sizeof(s.word->without), "%s", s.ops->without(s.b));
	atomic_store(&s.word->state, RANK_OPEN);
	serve(&s);
	s.ops->close(s.b);
	return EXIT_SUCCESS;
}
