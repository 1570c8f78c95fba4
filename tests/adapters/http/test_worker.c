/* LINK: adapters/http/worker.c adapters/http/tenants.c core/instance/io.c core/instance/log.c -luring -Wl,--wrap=calloc,--wrap=read,--wrap=pthread_create */
/* test_worker.c - work goes to threads, tenants in turn, and comes back on the loop, each piece once and
 * within the bounds, whatever is under way at the end.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "adapters/http/worker.h"

#define MS 1000000ull

static bool no_memory, no_reading;
static int threads_left = 99, reads;  /* how many threads may begin; reads that failed */

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size)
{
	return no_memory ? NULL : __real_calloc(n, size);
}

ssize_t __real_read(int fd, void *to, size_t n);
ssize_t __wrap_read(int fd, void *to, size_t n);
ssize_t __wrap_read(int fd, void *to, size_t n)
{
	if (!no_reading)
		return __real_read(fd, to, n);
	reads++;
	errno = EIO;
	return -1;
}

typedef void *thread_fn(void *);
int __real_pthread_create(pthread_t *t, const pthread_attr_t *a, thread_fn *fn, void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, thread_fn *fn, void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, thread_fn *fn, void *arg)
{
	return threads_left-- > 0 ? __real_pthread_create(t, a, fn, arg) : EAGAIN;
}

static pthread_t loop_thread;
static atomic_int started, ran;
static atomic_bool gate;              /* closed: work waits in it */
static int came_back, order[2048];

struct piece {
	struct work work;
	int number, done;
	bool wait;
};

static void run(struct work *w)
{
	struct piece *p = (struct piece *)w;

	assert_false(pthread_equal(pthread_self(), loop_thread));
	atomic_fetch_add(&started, 1);
	while (p->wait && !atomic_load(&gate))
		;
	atomic_fetch_add(&ran, 1);
}

static void done(struct work *w)
{
	struct piece *p = (struct piece *)w;

	assert_true(pthread_equal(pthread_self(), loop_thread));
	p->done++;
	order[came_back++] = p->number;
}

static struct piece piece(int number, size_t bytes, bool wait)
{
	return (struct piece){ .work = { .run = run, .done = done, .bytes = bytes }, .number = number,
	                       .wait = wait };
}

static void begin(struct io **io, struct workers **w)
{
	loop_thread = pthread_self();
	atomic_store(&started, 0);
	atomic_store(&ran, 0);
	atomic_store(&gate, false);
	came_back = 0;
	assert_int_equal(io_create(io, 0), 0);
	assert_int_equal(workers_create(w, *io), 0);
}

static void until_back(struct io *io, int n)
{
	uint64_t end = io_now() + 5000 * MS;

	while (came_back < n && io_now() < end)
		io_sleep(io, io_now() + 10 * MS);
	assert_int_equal(came_back, n);
}

static void in_order(void **state)
{
	static struct piece p[1000];
	struct workers *w;
	struct io *io;
	int i;

	(void)state;
	begin(&io, &w);
	for (i = 0; i < 1000; i++) {
		p[i] = piece(i, 10, false);
		p[i].work.text = true;             /* these have one thread */
		assert_int_equal(workers_give(w, &p[i].work), 0);
	}
	until_back(io, 1000);
	for (i = 0; i < 1000; i++)
		assert_true(order[i] == i && p[i].done == 1);
	workers_destroy(w);
	assert_int_equal(came_back, 1000);
	io_destroy(io);
}

/* More pieces, or more bytes, than the bound are refused; finished pieces free room. */
static void bounds(void **state)
{
	static struct piece p[WORKERS_MAX + 1];
	struct piece huge[3];
	struct workers *w;
	struct io *io;
	int i;

	(void)state;
	begin(&io, &w);
	for (i = 0; i < WORKERS_MAX; i++) {
		p[i] = piece(i, 0, true);
		assert_int_equal(workers_give(w, &p[i].work), 0);
	}
	p[i] = piece(i, 0, true);
	assert_int_equal(workers_give(w, &p[i].work), -EAGAIN);
	atomic_store(&gate, true);
	until_back(io, WORKERS_MAX);
	assert_int_equal(workers_give(w, &p[i].work), 0);
	until_back(io, WORKERS_MAX + 1);

	atomic_store(&gate, false);
	huge[0] = piece(0, 2 * WORKERS_BYTES + 1, true);   /* accepted alone, because it is in memory already */
	huge[1] = piece(1, WORK_LONG, true);
	huge[2] = piece(2, WORKERS_BYTES, true);
	assert_int_equal(workers_give(w, &huge[0].work), 0);
	assert_int_equal(workers_give(w, &huge[1].work), -EAGAIN);
	atomic_store(&gate, true);
	until_back(io, WORKERS_MAX + 2);
	assert_int_equal(workers_give(w, &huge[2].work), 0);
	until_back(io, WORKERS_MAX + 3);

	atomic_store(&gate, false);            /* beside another: room for the rest, no more */
	huge[0] = piece(0, 2 * WORKERS_BYTES - WORK_LONG, true);
	huge[1] = piece(1, WORK_LONG + 1, true);
	huge[2] = piece(2, WORK_LONG, true);
	assert_int_equal(workers_give(w, &huge[0].work), 0);
	assert_int_equal(workers_give(w, &huge[1].work), -EAGAIN);
	assert_int_equal(workers_give(w, &huge[2].work), 0);
	atomic_store(&gate, true);
	until_back(io, WORKERS_MAX + 5);
	workers_destroy(w);
	io_destroy(io);
}

/* Ending waits for work that runs and returns work that never did: done() once for each. */
static void ended(void **state)
{
	static struct piece p[50];
	uint64_t end = io_now() + 5000 * MS;
	struct workers *w;
	struct io *io;
	int i;

	(void)state;
	begin(&io, &w);
	for (i = 0; i < 50; i++) {
		p[i] = piece(i, 1, i < 3);
		assert_int_equal(workers_give(w, &p[i].work), 0);
	}
	while (atomic_load(&started) < 3 && io_now() < end)
		;
	assert_int_equal(atomic_load(&started), 3);
	atomic_store(&gate, true);
	workers_destroy(w);
	assert_int_equal(came_back, 50);
	for (i = 0; i < 50; i++)
		assert_int_equal(p[i].done, 1);
	io_destroy(io);
}

static void give(struct workers *w, struct piece *p, int number, uint64_t tenant, size_t bytes, bool text, bool wait)
{
	*p = piece(number, bytes, wait);
	p->work.tenant = tenant;
	p->work.text = text;
	assert_int_equal(workers_give(w, &p->work), 0);
}

static void until_started(int n)
{
	uint64_t end = io_now() + 5000 * MS;

	while (atomic_load(&started) < n && io_now() < end)
		;
	assert_int_equal(atomic_load(&started), n);
}

/* With as many long prompts and texts as allowed, a short prompt waits for none of them, and a long prompt for
 * no text. */
static void short_ones_wait_for_no_long_one(void **state)
{
	static struct piece text[30], prompt[20], one, longer;
	struct workers *w;
	struct io *io;

	(void)state;
	begin(&io, &w);
	for (int i = 0; i < 30; i++)
		give(w, &text[i], 1000 + i, 1, 1 << 20, true, true);
	give(w, &longer, 1, 2, 1 << 20, false, false);
	until_back(io, 1);
	for (int i = 0; i < 20; i++)
		give(w, &prompt[i], 2000 + i, 1, 4 << 20, false, true);
	give(w, &one, 2, 2, 10000, false, false);
	until_back(io, 2);
	assert_true(order[0] == 1 && order[1] == 2);
	atomic_store(&gate, true);
	until_back(io, 52);
	workers_destroy(w);
	io_destroy(io);
}

/* Any number of long prompts of one tenant leaves a thread to other tenants; without keys there is one tenant. */
static void a_tenant_runs_one_long_prompt(void **state)
{
	static struct piece p[8], other;
	struct workers *w;
	struct io *io;

	(void)state;
	for (uint64_t tenant = 0; tenant < 2; tenant++) {
		begin(&io, &w);
		for (int i = 0; i < 8; i++)
			give(w, &p[i], 100 + i, tenant, 1 << 20, false, true);
		until_started(tenant ? 1 : 2);
		if (tenant) {
			give(w, &other, 1, 2, 1 << 20, false, false);
			until_back(io, 1);
			assert_int_equal(order[0], 1);
		}
		atomic_store(&gate, true);
		until_back(io, tenant ? 9 : 8);
		workers_destroy(w);
		io_destroy(io);
	}
}

/* One tenant has texts of 1 MiB, one of 256 KiB, one a single one: the same bytes each, in turn. */
static void tenants_take_turns(void **state)
{
	static struct piece p[15], first;
	struct workers *w;
	struct io *io;
	int n = 0;

	(void)state;
	begin(&io, &w);
	give(w, &first, 99, 4, 1, true, true);
	until_started(1);
	for (int i = 0; i < 6; i++)
		give(w, &p[n++], i, 1, 1 << 20, true, false);
	for (int i = 10; i < 18; i++)
		give(w, &p[n++], i, 2, 256 << 10, true, false);
	give(w, &p[n++], 21, 3, 1000, true, false);
	atomic_store(&gate, true);
	until_back(io, 16);
	for (int i = 0, long_ones = 0, others = 0; i < 15; i++) {
		long_ones += order[1 + i] < 10;
		others += order[1 + i] >= 10 && order[1 + i] < 20;
		if (others < 8)                   /* never more than one of 1 MiB ahead */
			assert_in_range(4 * long_ones + 4 - others, 0, 8);
		if (order[1 + i] == 21)
			assert_true(i < 6);
	}
	workers_destroy(w);
	io_destroy(io);
}

/* A tenant leaves room to others: works and bytes. */
static void tenants_have_shares(void **state)
{
	static struct piece p[WORKERS_MAX + 4];
	struct workers *w;
	struct io *io;
	int n = 0, m;

	(void)state;
	begin(&io, &w);
	for (;; n++) {
		p[n] = piece(n, 10, true);
		p[n].work.tenant = 1;
		if (workers_give(w, &p[n].work))
			break;
	}
	assert_int_equal(n, WORKERS_MAX * 8 / 9);
	give(w, &p[n], n, 2, 10, false, true);
	m = ++n;
	for (;; n++) {
		p[n] = piece(n, 1 << 20, true);
		p[n].work.tenant = 1;
		p[n].work.text = true;
		if (workers_give(w, &p[n].work))
			break;
	}
	assert_int_equal(n - m, 64 * 8 / 9);
	give(w, &p[n], n, 2, 1 << 20, true, true);
	n++;
	atomic_store(&gate, true);
	until_back(io, n);
	workers_destroy(w);
	io_destroy(io);
}

/* An eventfd that cannot be read: work still comes back, and the loop does not spin meanwhile. */
static void unreadable(void **state)
{
	struct piece p[2] = { piece(0, 1, false), piece(1, 1, false) };
	struct workers *w;
	struct io *io;
	uint64_t end;

	(void)state;
	begin(&io, &w);
	assert_int_equal(workers_give(w, &p[0].work), 0);
	no_reading = true;
	until_back(io, 1);
	for (end = io_now() + 50 * MS; io_now() < end;)
		io_sleep(io, end);
	no_reading = false;
	assert_in_range(reads, 1, 3);
	assert_int_equal(workers_give(w, &p[1].work), 0);
	until_back(io, 2);                     /* the watch is set again after 100 ms */
	workers_destroy(w);
	io_destroy(io);
}

/* A failed start is reported, and nothing of it is left. */
static void half_started(void **state)
{
	struct workers *w;
	struct io *io;

	(void)state;
	assert_int_equal(io_create(&io, 0), 0);
	no_memory = true;
	assert_int_equal(workers_create(&w, io), -ENOMEM);
	no_memory = false;
	assert_null(w);
	for (int n = 0; n < 3; n++) {          /* there is one for each line at least */
		threads_left = n;
		assert_int_equal(workers_create(&w, io), -EAGAIN);
		assert_null(w);
	}
	threads_left = 99;
	assert_int_equal(workers_create(&w, io), 0);
	workers_destroy(w);
	io_destroy(io);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(in_order), cmocka_unit_test(short_ones_wait_for_no_long_one),
		cmocka_unit_test(a_tenant_runs_one_long_prompt),
		cmocka_unit_test(tenants_take_turns), cmocka_unit_test(tenants_have_shares), cmocka_unit_test(bounds),
		cmocka_unit_test(ended), cmocka_unit_test(unreadable), cmocka_unit_test(half_started),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
