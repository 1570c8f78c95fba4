/* LINK: adapters/http/worker.c core/io.c core/log.c -luring */
/* test_worker.c - work goes to threads in order and comes back on the loop, each piece once,
 * within the bounds, whatever is under way when it all ends.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "adapters/http/worker.h"

#define MS 1000000ull

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

static void begin(struct io **io, struct workers **w, int threads)
{
	loop_thread = pthread_self();
	atomic_store(&started, 0);
	atomic_store(&ran, 0);
	atomic_store(&gate, false);
	came_back = 0;
	assert_int_equal(io_create(io, 0), 0);
	assert_int_equal(workers_create(w, *io, threads), 0);
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
	begin(&io, &w, 1);
	for (i = 0; i < 1000; i++) {
		p[i] = piece(i, 10, false);
		assert_int_equal(workers_give(w, &p[i].work), 0);
	}
	until_back(io, 1000);
	for (i = 0; i < 1000; i++)
		assert_true(order[i] == i && p[i].done == 1);
	workers_destroy(w);
	assert_int_equal(came_back, 1000);
	io_destroy(io);
}

/* More pieces, or more bytes, than the bound are refused; room comes back with what is done. */
static void bounds(void **state)
{
	static struct piece p[WORKERS_MAX + 1];
	struct piece huge[3];
	struct workers *w;
	struct io *io;
	int i;

	(void)state;
	begin(&io, &w, 2);
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
	huge[0] = piece(0, WORKERS_BYTES + 1, true);   /* alone it may: it was taken in already */
	huge[1] = piece(1, 1, true);
	huge[2] = piece(2, WORKERS_BYTES, true);
	assert_int_equal(workers_give(w, &huge[0].work), 0);
	assert_int_equal(workers_give(w, &huge[1].work), -EAGAIN);
	atomic_store(&gate, true);
	until_back(io, WORKERS_MAX + 2);
	assert_int_equal(workers_give(w, &huge[2].work), 0);
	until_back(io, WORKERS_MAX + 3);
	workers_destroy(w);
	io_destroy(io);
}

/* The end waits for what runs and gives back what never did: done, once, for each. */
static void ended(void **state)
{
	static struct piece p[50];
	uint64_t end = io_now() + 5000 * MS;
	struct workers *w;
	struct io *io;
	int i;

	(void)state;
	begin(&io, &w, 2);
	for (i = 0; i < 50; i++) {
		p[i] = piece(i, 1, i < 2);
		assert_int_equal(workers_give(w, &p[i].work), 0);
	}
	while (atomic_load(&started) < 2 && io_now() < end)
		;
	assert_int_equal(atomic_load(&started), 2);
	atomic_store(&gate, true);
	workers_destroy(w);
	assert_int_equal(came_back, 50);
	for (i = 0; i < 50; i++)
		assert_int_equal(p[i].done, 1);
	io_destroy(io);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(in_order), cmocka_unit_test(bounds), cmocka_unit_test(ended),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
