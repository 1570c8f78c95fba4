/* LINK: core/cores.c */
/* test_cores.c - what the kernel says of waits for cores, read from files made by hand; and of a thread of ours that
 * waits behind others, if this kernel counts it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "core/cores.h"

#define MS 1000000ull

static char root[64];

__attribute__((format(printf, 2, 3)))
static void put(const char *path, const char *text, ...)
{
	char whole[300];
	va_list ap;
	FILE *f;

	snprintf(whole, sizeof(whole), "%s%s", root, path);
	for (char *p = whole + 1; *p; p++)
		if (*p == '/') {
			*p = 0;
			mkdir(whole, 0700);
			*p = '/';
		}
	f = fopen(whole, "w");
	assert_non_null(f);
	va_start(ap, text);
	vfprintf(f, text, ap);
	va_end(ap);
	fclose(f);
}

static void thread(int pid, int tid, uint64_t ran_ms, uint64_t waited_ms)
{
	char path[80];

	snprintf(path, sizeof(path), "/proc/%d/task/%d/schedstat", pid, tid);
	put(path, "%llu %llu 17\n", (unsigned long long)(ran_ms * MS), (unsigned long long)(waited_ms * MS));
}

static int set_up(void **state)
{
	(void)state;
	snprintf(root, sizeof(root), "/tmp/test_cores.XXXXXX");
	return mkdtemp(root) ? 0 : -1;
}

static int tear_down(void **state)
{
	char command[100];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf %s", root);
	return system(command) ? -1 : 0;
}

/* Of two processes' threads, the longest wait counts; a thread that was not there before counts from now on. */
static void test_threads(void **state)
{
	const int32_t pid[] = { 10, 20 };
	uint64_t lost[N_CORES];
	struct cores c;

	(void)state;
	put("/proc/self/schedstat", "1 0 1\n");
	thread(10, 10, 100, 1000);
	thread(10, 11, 100, 2000);
	thread(20, 20, 100, 3000);
	cores_open(&c, root);
	assert_true(c.known);
	cores_look(&c, pid, 2, 1, lost);
	assert_true(!lost[CORES_OTHERS] && !lost[CORES_QUOTA] && !lost[CORES_MACHINE]);
	thread(10, 10, 200, 1010);
	thread(10, 11, 200, 2300);
	thread(20, 20, 200, 3200);
	thread(20, 21, 200, 9000);
	cores_look(&c, pid, 2, 2, lost);
	assert_int_equal(lost[CORES_OTHERS], 300 * MS);
	assert_int_equal(lost[CORES_QUOTA] + lost[CORES_MACHINE], 0);
	thread(20, 21, 200, 9400);
	cores_look(&c, pid, 2, 3, lost);
	assert_int_equal(lost[CORES_OTHERS], 400 * MS);
	cores_look(&c, pid, 2, 4, lost);
	assert_int_equal(lost[CORES_OTHERS], 0);
	assert_int_equal(c.at_ns, 4);
}

/* More threads than it has places for: those that it has a place for still count. */
static void test_many(void **state)
{
	const int32_t pid[] = { 10 };
	uint64_t lost[N_CORES];
	struct cores c;

	(void)state;
	put("/proc/self/schedstat", "1 0 1\n");
	for (int i = 0; i < CORES_THREADS + 20; i++)
		thread(10, 1000 + i, 1, 5);
	cores_open(&c, root);
	for (int k = 0; k < 3; k++) {
		cores_look(&c, pid, 1, 1, lost);
		assert_int_equal(lost[CORES_OTHERS], k ? 50 * MS : 0);
		for (int i = 0; i < CORES_THREADS + 20; i++)
			thread(10, 1000 + i, 1, (uint64_t)(55 + 50 * k));
	}
}

/* A quota's time is part of the wait, and no more than it; cgroup v2, and v1. */
static void test_quota(void **state)
{
	static const struct { const char *cgroup, *file, *line; uint64_t unit; } cases[] = {
		{ "0::/a.slice/b\n", "/sys/fs/cgroup/a.slice/b/cpu.stat", "usage_usec 9\nthrottled_usec %llu\n", 1000 },
		{ "0::/\n", "/sys/fs/cgroup/cpu.stat", "nr_periods 7\nthrottled_usec %llu\n", 1000 },
		{ "4:memory:/x\n2:cpuacct:/y\n1:cpu:/z\n0::/\n", "/sys/fs/cgroup/cpu/z/cpu.stat",
		  "nr_throttled 1\nthrottled_time %llu\n", 1 },
	};
	const int32_t pid[] = { 10 };
	uint64_t lost[N_CORES];
	struct cores c;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		put("/proc/self/schedstat", "1 0 1\n");
		put("/proc/self/cgroup", "%s", cases[i].cgroup);
		thread(10, 10, 1, 0);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
		put(cases[i].file, cases[i].line, 5 * MS / cases[i].unit);
		cores_open(&c, root);
		cores_look(&c, pid, 1, 1, lost);
		thread(10, 10, 1, 100);
		put(cases[i].file, cases[i].line, 65 * MS / cases[i].unit);
		cores_look(&c, pid, 1, 2, lost);
		assert_int_equal(lost[CORES_QUOTA], 60 * MS);
		assert_int_equal(lost[CORES_OTHERS], 40 * MS);
		put(cases[i].file, cases[i].line, 500 * MS / cases[i].unit);
#pragma GCC diagnostic pop
		thread(10, 10, 1, 110);
		cores_look(&c, pid, 1, 3, lost);
		assert_int_equal(lost[CORES_QUOTA], 10 * MS);
		assert_int_equal(lost[CORES_OTHERS], 0);
		tear_down(NULL);
		set_up(NULL);
	}
}

/* The hypervisor's time, in ticks of all cores. */
static void test_machine(void **state)
{
	const uint64_t tick = 1000 * MS / (uint64_t)sysconf(_SC_CLK_TCK);
	const int32_t pid[] = { 10 };
	uint64_t lost[N_CORES];
	struct cores c;

	(void)state;
	put("/proc/stat", "cpu  31445 0 10397 456193 993 0 82 30 0 0\ncpu0 1 2 3\n");
	cores_open(&c, root);
	put("/proc/stat", "cpu  39999 0 10397 456193 993 0 82 50 7 7\ncpu0 1 2 3\n");
	cores_look(&c, pid, 1, 1, lost);
	assert_int_equal(lost[CORES_MACHINE], 20 * tick / (uint64_t)sysconf(_SC_NPROCESSORS_ONLN));
	assert_int_equal(lost[CORES_OTHERS] + lost[CORES_QUOTA], 0);
}

/* Kernels that do not count have zeros, or no such file.  Harmed files count as nothing. */
static void test_unknown(void **state)
{
	const int32_t pid[] = { 10, 30 };
	uint64_t lost[N_CORES];
	struct cores c;

	(void)state;
	cores_open(&c, root);
	cores_look(&c, pid, 2, 1, lost);
	assert_true(!c.known && !lost[CORES_OTHERS] && !lost[CORES_QUOTA] && !lost[CORES_MACHINE]);
	put("/proc/self/schedstat", "0 0 0\n");
	put("/proc/10/task/10/schedstat", "0 0 0\n");
	put("/proc/10/task/x/schedstat", "1 2 3\n");
	put("/proc/30/task/30/schedstat", "no number");
	put("/proc/stat", "what");
	put("/proc/self/cgroup", "\n::\nx\n1:cpu\n");
	cores_open(&c, root);
	cores_look(&c, pid, 2, 2, lost);
	cores_look(&c, pid, 2, 3, lost);
	assert_true(!c.known && !lost[CORES_OTHERS] && !lost[CORES_QUOTA] && !lost[CORES_MACHINE]);
}

/* This process itself. */
static void test_here(void **state)
{
	const int32_t pid[] = { getpid() };
	uint64_t lost[N_CORES];
	struct cores c;

	(void)state;
	cores_open(&c, "");
	if (!c.known)
		print_message("this kernel does not count how long a thread waits for a core\n");
	cores_look(&c, pid, 1, 1, lost);
	assert_true(!lost[CORES_OTHERS]);
	assert_int_equal(c.n_seen, access("/proc/self/task", R_OK) ? 0 : 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_threads, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_many, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_quota, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_machine, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_unknown, set_up, tear_down),
		cmocka_unit_test(test_here),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
