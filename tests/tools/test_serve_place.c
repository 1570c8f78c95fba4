/* LINK: tools/serve_place.c */
/* test_serve_place.c - which CPUs and GPUs each of several daemons gets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/serve.h"

static void gpus(void **state)
{
	static const struct { const char *list; int rank, n; const char *gets; } row[] = {
		{ "0,1,2,3", 0, 4, "0" }, { "0,1,2,3", 3, 4, "3" }, { "0,1,2,3", 0, 2, "0,1" }, { "4,5,6,7", 1, 2, "6,7" },
		{ "GPU-a,GPU-b", 1, 2, "GPU-b" }, { "0,1,2", 1, 2, "1" }, { "7", 0, 1, "7" },
	};
	char out[32];

	(void)state;
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		assert_int_equal(serve_deal(row[i].list, row[i].rank, row[i].n, out, sizeof(out)), 0);
		assert_string_equal(out, row[i].gets);
	}
	assert_int_equal(serve_deal("0,1", 0, 3, out, sizeof(out)), -E2BIG);
	assert_int_equal(serve_deal("", 0, 1, out, sizeof(out)), -E2BIG);
	assert_int_equal(serve_deal("12345678,9", 0, 1, out, 8), -E2BIG);
}

/* The CPUs of all daemons together are those of this process; no daemon has none, and none is in two places
 * while there are enough. */
static void cpus(void **state)
{
	cpu_set_t all, got[3], sum;
	int n_all, pipe_fd[2];

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	n_all = CPU_COUNT(&all);
	for (int n = 1; n <= 3; n++) {
		int total = 0;

		CPU_ZERO(&sum);
		for (int rank = 0; rank < n; rank++) {
			assert_int_equal(pipe(pipe_fd), 0);
			if (!fork()) {
				serve_place(rank, n, 1);
				sched_getaffinity(0, sizeof(all), &all);
				_exit(write(pipe_fd[1], &all, sizeof(all)) != sizeof(all));
			}
			assert_int_equal(read(pipe_fd[0], &got[rank], sizeof(got[rank])), sizeof(got[rank]));
			close(pipe_fd[0]);
			close(pipe_fd[1]);
			wait(NULL);
			assert_true(CPU_COUNT(&got[rank]) > 0);
			CPU_OR(&sum, &sum, &got[rank]);
			total += CPU_COUNT(&got[rank]);
		}
		if (n <= n_all) {
			assert_true(CPU_EQUAL(&sum, &all));
			assert_int_equal(total, n_all);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(gpus), cmocka_unit_test(cpus) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
