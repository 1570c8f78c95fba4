/* cpu_time.h - CPU time of the calling thread, for tests of work that other programs must not disturb. */
#ifndef TESTS_CPU_TIME_H
#define TESTS_CPU_TIME_H

#include <stdint.h>
#include <time.h>

/* In ns. */
static inline uint64_t own_cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
