/* clock.h - the time that everything here is measured in, and how a thread waits.  Anyone may include it. */
#ifndef SR_CLOCK_H
#define SR_CLOCK_H

#include <stdint.h>
#include <time.h>

/* In ns of CLOCK_MONOTONIC, which all processes of a machine share. */
static inline uint64_t sr_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* In a loop that waits for another thread: leave the core's other thread to its work. */
static inline void sr_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

#endif
