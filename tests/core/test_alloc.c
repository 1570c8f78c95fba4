/* LINK: @slipringd shmring/client.c */
/* test_alloc.c - after READY the daemon allocates nothing for a request: a counter wraps the C library's
 * allocator for the whole process, liburing and jansson included.
 */
#include <malloc.h>

#include "tests/rig/slipringd.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTED 0                     /* sanitizers wrap it already */
static _Atomic uint64_t *allocations;
#else
#define COUNTED 1

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t alignment, size_t n);

static _Atomic uint64_t *allocations;  /* shared with the child, which alone writes */

static void count(void)
{
	if (allocations)
		atomic_fetch_add_explicit(allocations, 1, memory_order_relaxed);
}

#pragma GCC visibility push(default)
void *malloc(size_t n) { count(); return __libc_malloc(n); }
void *calloc(size_t n, size_t size) { count(); return __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { count(); return __libc_realloc(p, n); }
void *memalign(size_t alignment, size_t n) { count(); return __libc_memalign(alignment, n); }
void *aligned_alloc(size_t alignment, size_t n) { count(); return __libc_memalign(alignment, n); }
int posix_memalign(void **out, size_t alignment, size_t n)
{
	count();
	*out = __libc_memalign(alignment, n);
	return *out ? 0 : ENOMEM;
}
#pragma GCC visibility pop
#endif

static _Atomic uint64_t *shared;

static void in_child(void) { allocations = shared; }

/* Run n requests of every kind, some cancelled, over one connection, until the last has ended. */
static void requests(struct sr_conn *c, int n)
{
	static int32_t ids[600];
	static const int32_t bad[] = { 2, 5, 6, 1, 9 };
	static const struct sr_pair bias[] = { { 3, 2.5f }, { 4, -1 } };
	struct sr_record r[64];
	int put = 0, ended = 0;

	while (ended < n) {
		struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 1 + (uint32_t)put * 37 % 600,
			.max_tokens = 1 + (uint32_t)put % 40, .user_data = (uint64_t)put, .n_top = (uint32_t)put % 21 };
		uint32_t ticket;
		int e;

		if (put % 3 == 0) {
			q.bad = bad, q.n_bad = 5;
			q.bias = bias, q.n_bias = 2;
			q.sampling.frequency = 0.5f;
		}
		if (put % 5 == 0)
			q.flags |= SR_SEEDED, q.sampling.seed = 7, q.sampling.temperature = 1;
		if (put % 7 == 0)
			q.flags |= SR_PROMPT_LOGPROBS, q.n_prompt_top = 3;
		for (int i = 0; i < 600; i++)
			ids[i] = (put / 2 * 31 + i) % 256;
		if (put < n && (e = sr_submit(c, &q, &ticket)) == 0) {
			if (put++ % 11 == 0)
				sr_cancel(c, ticket);
			continue;
		}
		e = sr_poll(c, r, 64);
		assert_true(e >= 0);
		for (int i = 0; i < e; i++)
			ended += r[i].kind == SR_END;
		if (!e)
			assert_true(sr_wait(c, SR_WAIT_TOKENS | SR_WAIT_ROOM, 5000) > 0);
	}
	assert_int_equal(ended, n);
}

static void nothing_is_allocated_for_a_request(void **state)
{
	struct sr_conn *c[2];
	uint64_t before, after;
	pid_t pid;

	(void)state;
	if (!COUNTED) {
		print_message("SKIP: the sanitizer has the allocator\n");
		skip();
	}
	shared = home_share(sizeof(*shared));
	pid = home_start(&home, in_child, "0");
	c[0] = home_connect(&home, 32, 0);
	c[1] = home_connect(&home, 32, 0);
	requests(c[1], 1);                    /* the second connection is whole */
	before = *shared;
	assert_true(before > 20);             /* it counts */
	requests(c[0], 5000);
	requests(c[1], 5000);
	after = *shared;
	sr_close(c[0]);
	sr_close(c[1]);
	assert_int_equal(home_stop(pid), 0);
	print_message("%ju allocations until the second connection, %ju for 10,000 requests\n",
	              (uintmax_t)before, (uintmax_t)(after - before));
	assert_int_equal(after - before, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(nothing_is_allocated_for_a_request) };

	return cmocka_run_group_tests(tests, home_setup, home_teardown);
}
