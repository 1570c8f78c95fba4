/* cores.h - the time in which the daemon's threads were ready to run and had no core, from the kernel's counts.
 *
 * Three files tell it: /proc/PID/task/TID/schedstat how long a thread waited for a core, its cgroup's cpu.stat how
 * long a quota stopped it, and /proc/stat how long the hypervisor ran other machines on these cores.  A look takes
 * about 10 us, and 5 us more for each thread.  It allocates nothing.  The loop's thread. */
#ifndef CORES_H
#define CORES_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/instance/counters.h"

#define CORES_THREADS 256             /* that are looked at, of all processes together */
#define CORES_ROOT    200             /* bytes of what is before /proc, and this */
#define CORES_PIDS    17              /* the daemon, and its ranks */

struct cores {
	struct cores_thread { uint64_t waited; int32_t pid, tid; } thread[CORES_THREADS]; /* at the last look */
	int32_t n, n_seen;            /* rows; threads that the last look found */
	uint64_t at_ns, throttled_ns, stolen_ns; /* of the last look; the last two since the machine's start */
	char quota[PATH_MAX];         /* the cgroup's cpu.stat; "": there is none */
	char proc[CORES_ROOT];
	bool known;                   /* the kernel counts how long threads wait */
};

/* root: before /proc and /sys, at most 180 bytes; "" but in tests. */
void cores_open(struct cores *c, const char *root);

/* Look at the threads of these processes, at the time now.  lost[]: for how many ns since the last look the daemon
 * lacked a core, by enum stats_cores.  Of the threads, the one counts that waited longest. */
void cores_look(struct cores *c, const int32_t *pid, int32_t n_pid, uint64_t now, uint64_t lost[N_CORES]);

#endif
