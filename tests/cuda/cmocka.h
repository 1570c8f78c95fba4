/* cmocka.h - the part of cmocka that GPU tests use, for machines that have only nvcc.
 * A failed assertion ends its test; skipped is not passed. */
#ifndef CUDA_CMOCKA_H
#define CUDA_CMOCKA_H

#include <math.h>
#include <stdio.h>
#include <string.h>

struct CMUnitTest { const char *name; void (*run)(void **state); };

static jmp_buf check_end;

#define cmocka_unit_test(f) { #f, f }
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
#define assert_in_range(a, low, high) assert_true((a) >= (low) && (a) <= (high))
#define assert_float_equal(a, b, off) (fabs((double)(a) - (double)(b)) <= (double)(off) ? (void)0 : \
	check_fail("%s is %g, not %g", #a, (double)(a), (double)(b)))
#define cmocka_run_group_tests(tests, setup, teardown) \
	check_all(tests, (int)(sizeof(tests) / sizeof(*(tests))))

static int check_all(const struct CMUnitTest *t, int n)
{
	int count[3] = { 0, 0, 0 };

	for (int i = 0; i < n; i++) {
		int how = setjmp(check_end);

		if (!how) {
			t[i].run(NULL);
			printf("[       OK ] %s\n", t[i].name);
		} else {
			printf("[  %s ] %s\n", how == 1 ? "FAILED" : "SKIPPED", t[i].name);
		}
		fflush(stdout);
		count[how]++;
	}
	printf("%d passed, %d failed, %d skipped\n", count[0], count[1], count[2]);
	return count[1];
}

#endif
