/* LINK: adapters/http/queue.c core/instance/stats.c core/instance/refuse.c */
/* test_queue.c - when the adapter answers 503 for --max-num-queued-.., and what Retry-After says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "adapters/http/queue.h"

#define SECOND 1000000000ull

static struct stats_page page;

static void test_check(void **state)
{
	static const struct {
		uint64_t running, waiting;     /* in the scheduler, which runs 8 */
		uint64_t requests, tokens;     /* of ours */
		uint64_t n, more;              /* asked for */
		enum queue_limit want;
	} cases[] = {
		{ 0, 0, 0,  0,    1,   10,   QUEUE_ROOM },
		{ 0, 0, 0,  0,    100, 9000, QUEUE_ROOM },    /* none waits */
		{ 0, 0, 8,  400,  5,   50,   QUEUE_ROOM },    /* just sent: they will run */
		{ 0, 0, 9,  400,  4,   50,   QUEUE_ROOM },
		{ 0, 0, 9,  400,  5,   50,   QUEUE_REQS },
		{ 8, 0, 8,  0,    5,   50,   QUEUE_ROOM },
		{ 8, 4, 12, 0,    1,   50,   QUEUE_ROOM },
		{ 8, 4, 12, 0,    2,   50,   QUEUE_REQS },
		{ 3, 2, 8,  0,    1,   50,   QUEUE_REQS },    /* blocks are short: 3 run, and 5 wait */
		{ 8, 5, 0,  0,    1,   50,   QUEUE_REQS },    /* other clients' */
		{ 8, 1, 9,  950,  1,   50,   QUEUE_ROOM },
		{ 8, 1, 9,  951,  1,   50,   QUEUE_TOKENS },
	};
	const struct config c = { .max_num_queued_reqs = 5, .max_num_queued_tokens = 1000 };

	(void)state;
	page.max_num_seqs = 8;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const struct queue_load l = { .requests = cases[i].requests, .tokens = cases[i].tokens };

		page.running = cases[i].running;
		page.waiting = cases[i].waiting;
		if (queue_check(&c, &page, &l, cases[i].n, cases[i].more) != cases[i].want)
			fail_msg("case %zu", i);
	}
	assert_int_equal(queue_check(&c, NULL, &(struct queue_load){ .requests = 100, .tokens = 9999 }, 1, 1), QUEUE_ROOM);
}

/* With keys: the tenant with most requests waiting is refused, and one with none waiting is not, even if the
 * first exceeded its share while none waited. */
static void test_shares(void **state)
{
	static const struct {
		uint64_t waiting, tokens;      /* of all */
		uint64_t mine, mine_tokens;
		uint64_t n, more;
		enum queue_limit want;
	} cases[] = {
		{ 79,  0,   79, 0,   1,  1,   QUEUE_ROOM },
		{ 80,  0,   80, 0,   1,  1,   QUEUE_REQS },   /* 80 > 8 * 9 */
		{ 70,  0,   70, 0,   10, 1,   QUEUE_ROOM },
		{ 70,  0,   70, 0,   12, 1,   QUEUE_REQS },
		{ 80,  0,   0,  0,   10, 1,   QUEUE_ROOM },
		{ 80,  0,   0,  0,   11, 1,   QUEUE_REQS },   /* the limit holds for all */
		{ 88,  0,   8,  0,   1,  1,   QUEUE_ROOM },
		{ 89,  0,   9,  0,   1,  1,   QUEUE_REQS },
		{ 9,   700, 9,  700, 1,  20,  QUEUE_ROOM },   /* 100 are kept for the longest prompt */
		{ 9,   700, 9,  700, 1,  200, QUEUE_TOKENS },
		{ 9,   800, 0,  0,   1,  100, QUEUE_ROOM },
		{ 9,   800, 0,  0,   1,  201, QUEUE_TOKENS },
	};
	const struct config c = { .max_num_queued_reqs = 90, .max_num_queued_tokens = 1000 };

	(void)state;
	page = (struct stats_page){ .max_num_seqs = 8, .running = 8, .max_model_len = 100 };
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const struct queue_load l = { .tenant = 7, .requests = 8 + cases[i].waiting, .tokens = cases[i].tokens,
			.mine = cases[i].mine, .mine_tokens = cases[i].mine_tokens, .tenants = 2 };

		if (queue_check(&c, &page, &l, cases[i].n, cases[i].more) != cases[i].want)
			fail_msg("case %zu", i);
	}
	page.max_model_len = 100000;           /* kept for the longest prompt is half of the limit, at most */
	assert_int_equal(queue_check(&c, &page, &(struct queue_load){ .tenant = 7, .requests = 17, .tokens = 100, .mine = 9,
	                 .mine_tokens = 100, .tenants = 2 }, 1, 10), QUEUE_ROOM);
}

/* A tenant's own queue decides its Retry-After. */
static void test_retry_of_tenant(void **state)
{
	const struct queue_load many = { .tenant = 7, .requests = 808, .mine = 720, .tenants = 2 },
	                        few = { .tenant = 8, .requests = 808, .mine = 8, .tenants = 2 },
	                        none = { .tenant = 9, .requests = 808, .mine = 0, .tenants = 2 };

	(void)state;
	page = (struct stats_page){ .max_num_seqs = 8, .accounted_ns = 1000 * SECOND };
	stats_minute(&page);
	page.accounted_ns += 60 * SECOND;
	page.count.ended[ENDED_STOP] = 600;
	assert_int_equal(queue_retry_after(&page, &many), 18);
	assert_int_equal(queue_retry_after(&page, &few), 1);
	assert_int_equal(queue_retry_after(&page, &none), 10);
}

static void test_retry(void **state)
{
	static const struct { uint64_t waiting, seconds, ended; int want; } cases[] = {
		{ 80,   60, 600,   1 },               /* ten a second: an eighth of 80 in one */
		{ 800,  60, 600,   10 },
		{ 8000, 60, 600,   60 },
		{ 80,   60, 60000, 1 },
		{ 80,   60, 0,     60 },              /* nothing moves */
		{ 80,   0,  0,     1 },               /* nothing is known */
		{ 80,   9,  0,     1 },
		{ 64,   30, 60,    4 },
	};
	const struct queue_load l = { 0 };

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		page = (struct stats_page){ .max_num_seqs = 8, .accounted_ns = 1000 * SECOND };
		stats_minute(&page);
		page.accounted_ns += cases[i].seconds * SECOND;
		page.count.ended[ENDED_STOP] = cases[i].ended;
		page.waiting = cases[i].waiting;
		if (queue_retry_after(&page, &l) != cases[i].want)
			fail_msg("case %zu: %d", i, queue_retry_after(&page, &l));
	}
	assert_int_equal(queue_retry_after(NULL, &l), 1);
}

/* A burst was taken while the page was old and showed nobody waiting.  What one tenant queued above its share
 * refuses that tenant, and nobody else. */
static void test_old_page(void **state)
{
	const struct config c = { .max_num_queued_reqs = 64, .max_num_queued_tokens = 1 << 20 };
	const struct queue_load flood = { .tenant = 7, .requests = 10 + 56, .above = 55, .mine = 111 },
		other = { .tenant = 8, .requests = 10 + 56, .above = 55 };

	(void)state;
	page = (struct stats_page){ .max_num_seqs = 64, .running = 10, .waiting = 111, .max_model_len = 100 };
	assert_int_equal(queue_check(&c, &page, &flood, 1, 1), QUEUE_REQS);
	assert_int_equal(queue_check(&c, &page, &other, 1, 1), QUEUE_ROOM);
	page.waiting = 130;                    /* 19 of them came another way: the limit holds for all */
	assert_int_equal(queue_check(&c, &page, &other, 1, 1), QUEUE_REQS);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_check), cmocka_unit_test(test_shares), cmocka_unit_test(test_old_page), cmocka_unit_test(test_retry),
		                            cmocka_unit_test(test_retry_of_tenant) };

	return cmocka_run_group_tests_name("queue", tests, NULL, NULL);
}
