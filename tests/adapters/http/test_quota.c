/* LINK: adapters/http/gate/quota.c */
/* test_quota.c - limits of keys: they hold over any minute and over all processes, and are exact. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "adapters/http/gate/quota.h"

#define SECOND 1000000000ull

static struct quota_table *table;

static int set_up(void **state)
{
	(void)state;
	table = mmap(NULL, sizeof(*table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return table == MAP_FAILED;
}

static int tear_down(void **state)
{
	(void)state;
	return munmap(table, sizeof(*table));
}

/* A minute's worth at once, then one each second; never more than that, however it is tried. */
static void requests_a_minute(void **state)
{
	const struct quota_limits l = { .rpm = 60 };
	struct quota_row *r = quota_row(table, 5, "a");
	struct quota_wait wait;
	uint64_t now = 7777 * SECOND, taken = 0;

	(void)state;
	for (; quota_enter(r, &l, 0, now, &wait) == QUOTA_OK; taken++)
		quota_leave(r, 0, 1);
	assert_int_equal(taken, 60);
	assert_true(wait.ns > SECOND - 10 && wait.ns <= SECOND + 1 && !wait.never);
	assert_int_equal(quota_enter(r, &l, 0, now + wait.ns - 2000, &wait), QUOTA_REQUESTS);
	for (uint64_t ms = 0; ms < 600 * 1000; ms += 100) /* ten minutes, ten tries a second */
		if (quota_enter(r, &l, 0, now + ms * 1000000, &wait) == QUOTA_OK) {
			quota_leave(r, 0, 1);
			taken++;
		}
	assert_in_range(taken, 60 + 599, 60 + 600);
	assert_int_equal(r->requests, taken);
	assert_int_equal(quota_under_way(r), 0);
}

/* Prompt and answers take their tokens when they come.  What is not used comes back; what was used beyond is owed. */
static void tokens_a_minute(void **state)
{
	const struct quota_limits l = { .tpm = 6000 };
	struct quota_row *r = quota_row(table, 6, "b");
	struct quota_wait wait = { 0 };
	uint64_t now = SECOND;

	(void)state;
	assert_int_equal(quota_tokens(r, &l, 6001, now, &wait), QUOTA_TOKENS);
	assert_true(wait.never);
	assert_int_equal(quota_tokens(r, &l, 6000, now, &wait), QUOTA_OK);
	quota_used(r, &l, 6000, 100, 300, 0, now);
	assert_int_equal(quota_tokens(r, &l, 1, now, &wait), QUOTA_TOKENS);
	assert_true(!wait.never && wait.ns > 3 * SECOND && wait.ns < 3 * SECOND + SECOND / 50);
	assert_int_equal(quota_tokens(r, &l, 1, now + wait.ns, &wait), QUOTA_OK);
	assert_true(r->prompt == 6000 && r->cached == 100 && r->answer == 300 && r->refused[QUOTA_TOKENS] == 2);
	quota_used(r, &l, 0, 0, UINT32_MAX, 0, now);  /* a debt of days is no overflow */
	assert_int_equal(quota_tokens(r, &l, 1, now + 600 * SECOND, &wait), QUOTA_TOKENS);
}

/* 20 answers of 200 tokens are 4,000 from the beginning, not when they have ended. */
static void answers_are_reserved(void **state)
{
	const struct quota_limits l = { .tpm = 6000 };
	struct quota_row *r = quota_row(table, 11, "f");
	struct quota_wait wait = { 0 };
	uint64_t now = SECOND;

	(void)state;
	assert_int_equal(quota_tokens(r, &l, 100 + 20 * 200, now, &wait), QUOTA_OK);
	assert_int_equal(quota_tokens(r, &l, 100 + 20 * 200, now, &wait), QUOTA_TOKENS);
	assert_true(!wait.never);
	quota_used(r, &l, 100, 0, 1000, 20 * 200, now);     /* they ended early: 3,000 come back */
	assert_int_equal(quota_tokens(r, &l, 4901, now, &wait), QUOTA_TOKENS);
	assert_int_equal(quota_tokens(r, &l, 4899, now, &wait), QUOTA_OK);
	now += 600 * SECOND;                                /* the bucket is full: what comes back adds nothing */
	quota_used(r, &l, 0, 0, 0, 4000, now);
	assert_int_equal(quota_tokens(r, &l, 6001, now, &wait), QUOTA_TOKENS);
	assert_int_equal(quota_tokens(r, &l, 6000, now, &wait), QUOTA_OK);
}

/* max-parallel counts answers: a request of three takes three places, or none. */
static void answers_under_way(void **state)
{
	const struct quota_limits l = { .parallel = 4 };
	struct quota_row *r = quota_row(table, 12, "g");
	struct quota_wait wait;

	(void)state;
	assert_int_equal(quota_enter(r, &l, 0, SECOND, &wait), QUOTA_OK);
	assert_int_equal(quota_answers(r, &l, 0, 2), QUOTA_OK);
	assert_int_equal(quota_enter(r, &l, 1, SECOND, &wait), QUOTA_OK);
	assert_int_equal(quota_answers(r, &l, 1, 1), QUOTA_PARALLEL);
	assert_int_equal(quota_under_way(r), 4);
	quota_leave(r, 0, 3);
	assert_int_equal(quota_answers(r, &l, 1, 3), QUOTA_OK);
	assert_true(quota_under_way(r) == 4 && r->refused[QUOTA_PARALLEL] == 1);
}

static void headers(void **state)
{
	const struct quota_limits l = { .rpm = 60, .tpm = 6000 }, none = { 0 };
	struct quota_row *r = quota_row(table, 7, "c");
	struct quota_wait wait;
	char out[QUOTA_LINES];

	(void)state;
	assert_int_equal(quota_enter(r, &l, 3, SECOND, &wait), QUOTA_OK);
	assert_int_equal(quota_tokens(r, &l, 1500, SECOND, &wait), QUOTA_OK);
	assert_string_equal(quota_lines(out, r, &l, SECOND),
	                    "x-ratelimit-limit-requests: 60\r\nx-ratelimit-remaining-requests: 59\r\n"
	                    "x-ratelimit-reset-requests: 1.000s\r\nx-ratelimit-limit-tokens: 6000\r\n"
	                    "x-ratelimit-remaining-tokens: 4500\r\nx-ratelimit-reset-tokens: 15.000s\r\n");
	assert_string_equal(quota_lines(out, r, &none, SECOND), "");
	assert_true(strlen(quota_lines(out, r, &(struct quota_limits){ 1000000000, 1000000000, 0 }, SECOND)) <
	            QUOTA_LINES - 1);
}

/* Four processes at once: together they get what one would. */
static void processes(void **state)
{
	enum { N = 4, TRIES = 20000 };
	const struct quota_limits l = { .rpm = 5000 }, few = { .parallel = 3 };
	struct quota_row *r = quota_row(table, 8, "d"), *p = quota_row(table, 9, "e");
	struct quota_wait wait;

	(void)state;
	for (int i = 0; i < N; i++)
		if (!fork()) {
			struct quota_row *mine = quota_row(table, 8, "d");
			int most = 0;

			for (int k = 0; k < TRIES; k++) {
				if (quota_enter(mine, &l, i, SECOND, &wait) == QUOTA_OK)
					quota_leave(mine, i, 1);
				if (quota_enter(p, &few, i, SECOND, &wait))
					continue;
				most = (int)quota_under_way(p) > N + 3 ? 1 : most; /* others may be about to leave */
				quota_leave(p, i, 1);
			}
			_exit(most);
		}
	for (int i = 0; i < N; i++) {
		int status;

		wait3(&status, 0, NULL);
		assert_int_equal(status, 0);
	}
	assert_int_equal(r->requests, 5000);
	assert_int_equal(r->refused[QUOTA_REQUESTS], N * TRIES - 5000);
	assert_int_equal(quota_under_way(r) + quota_under_way(p), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(quota_enter(p, &few, 2, SECOND, &wait), QUOTA_OK);
	assert_int_equal(quota_enter(p, &few, 1, SECOND, &wait), QUOTA_PARALLEL);
	quota_begin(table, 2);                        /* process 2 died with three under way, and is back */
	assert_int_equal(quota_enter(p, &few, 1, SECOND, &wait), QUOTA_OK);
}

static void full_table(void **state)
{
	(void)state;
	for (uint64_t i = 1; i <= QUOTA_ROWS; i++) {
		const struct quota_row *r = quota_row(table, i * 977, "x");

		assert_true(r && r->tenant == i * 977 && r->order == i);
		assert_ptr_equal(quota_row(table, i * 977, "y"), r);
	}
	assert_null(quota_row(table, 1, "z"));
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = { T(requests_a_minute), T(tokens_a_minute), T(answers_are_reserved),
	                                    T(answers_under_way), T(headers), T(processes),
	                                    T(full_table) };
#undef T

	return cmocka_run_group_tests(tests, NULL, NULL);
}
