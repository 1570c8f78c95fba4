/* clock.h - the time that everything here is measured in.  Every file may include it. */
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

#endif
