/* cmocka.h - the part of cmocka that GPU tests use, for machines that have only nvcc.
 *
 * Each test is a process of its own, forked before anything touches CUDA: an illegal address, a trap or a hang
 * spoils a CUDA context for good, and takes no other test along.  A test that has not ended by its deadline is
 * killed.  A failed assertion ends its test; what errors.h collects does not.  skipped is not passed.
 * ONE= runs the tests whose names match. */
#ifndef CUDA_CMOCKA_H
#define CUDA_CMOCKA_H

#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/cuda/errors.h"

struct CMUnitTest { const char *name; void (*run)(void **state); };

static jmp_buf check_end;
static const char *check_only;             /* a pattern of names; NULL: all */

#define cmocka_unit_test(f) { #f, f }
#define cmocka_set_test_filter(pattern) (check_only = (pattern))
#define check_fail(...) (fprintf(stderr, "ERROR %s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__), \
	fputc('\n', stderr), longjmp(check_end, 1))
#define fail_msg(...) check_fail(__VA_ARGS__)
#define skip() longjmp(check_end, 2)
#define assert_true(x) ((x) ? (void)0 : check_fail("%s", #x))
#define assert_false(x) assert_true(!(x))
#define assert_null(x) assert_true(!(x))
#define assert_non_null(x) assert_true(x)
#define assert_int_equal(a, b) ((long long)(a) == (long long)(b) ? (void)0 : \
	check_fail("%s is %lld, not %lld", #a, (long long)(a), (long long)(b)))
#define assert_memory_equal(a, b, n) assert_true(!memcmp(a, b, n))
#define assert_string_equal(a, b) assert_true(!strcmp(a, b))
#define assert_in_range(a, low, high) assert_true((a) >= (low) && (a) <= (high))
#define assert_float_equal(a, b, off) (fabs((double)(a) - (double)(b)) <= (double)(off) ? (void)0 : \
	check_fail("%s is %g, not %g", #a, (double)(a), (double)(b)))
#define cmocka_run_group_tests(tests, setup, teardown) \
	check_all(tests, (int)(sizeof(tests) / sizeof(*(tests))))
#define cmocka_run_group_tests_name(name, tests, setup, teardown) cmocka_run_group_tests(tests, setup, teardown)

enum check_result { CHECK_OK, CHECK_FAILED, CHECK_SKIPPED };

/* In the test's own process. */
static void check_one(const struct CMUnitTest *t)
{
	int how = setjmp(check_end);

	if (!how)
		t->run(NULL);
	if (print_errors() && how == CHECK_OK)
		how = CHECK_FAILED;
	fflush(stdout);
	_exit(how);                  /* not exit(): after an error the driver's own functions may hang */
}

/* Seconds that a test may take: CHECK_SECONDS, or a minute. */
static int check_seconds(void)
{
	const char *s = getenv("CHECK_SECONDS");

	return s && atoi(s) > 0 ? atoi(s) : 60;
}

/* Waits for process p for n seconds.  Returns false if it has not ended. */
static bool check_wait(pid_t p, int n, int *status)
{
	const struct timespec nap = { 0, 5000000 };

	for (time_t until = time(NULL) + n + 1; time(NULL) < until; nanosleep(&nap, NULL))
		if (waitpid(p, status, WNOHANG) == p)
			return true;
	return false;
}

static enum check_result check_apart(const struct CMUnitTest *t)
{
	int status = 0, seconds = check_seconds();
	pid_t p;

	fflush(stdout);
	fflush(stderr);
	p = fork();
	if (p == 0)
		check_one(t);
	if (p < 0)
		printf("ERROR %s: no process: %s\n", t->name, strerror(errno));
	else if (!check_wait(p, seconds, &status))
		printf("ERROR %s: not done in %d s%s\n", t->name, seconds, kill(p, SIGKILL) ||
			!check_wait(p, 5, &status) ? ", and its process does not end" : "");
	else if (WIFSIGNALED(status))
		printf("ERROR %s: ended by signal %d\n", t->name, WTERMSIG(status));
	else if (WEXITSTATUS(status) <= CHECK_SKIPPED)
		return (enum check_result)WEXITSTATUS(status);
	else
		printf("ERROR %s: exit %d\n", t->name, WEXITSTATUS(status));
	return CHECK_FAILED;
}

static int check_all(const struct CMUnitTest *t, int n)
{
	static const char *const words[] = { "      OK", " FAILED ", " SKIPPED" };
	int count[3] = { 0, 0, 0 };

	for (int i = 0; i < n; i++) {
		enum check_result how;

		if (check_only && fnmatch(check_only, t[i].name, 0))
			continue;
		how = check_apart(&t[i]);
		printf("[ %s ] %s\n", words[how], t[i].name);
		fflush(stdout);
		count[how]++;
	}
	printf("%d passed, %d failed, %d skipped\n", count[0], count[1], count[2]);
	return count[1];
}

#endif
