/* team.h - threads that compute one thing together.
 *
 * The caller of team_run is thread 0; the others sleep between jobs.  Inside a job all run
 * the same code and meet at barriers.  Every wait spins for a bounded time, then sleeps in a
 * futex: a thread that spins on a core which another thread needs costs both a time slice.
 *
 * Barriers make a team as slow as its slowest thread, and a thread that shares its core is late by
 * whole time slices.  So the team measures waits for threads that had no core, and team_fit says how many
 * threads the next job should have.  The rest sleep.
 */
#ifndef CPU_TEAM_H
#define CPU_TEAM_H

#include <stdint.h>

struct team;
struct nodes;

/* n threads, the caller's included.  0 or -errno.  On several nodes thread i runs on node i * nodes / n, the
 * caller's thread, too, and a barrier meets on each node first: one line goes from node to node, not one for each
 * thread.  nodes: NULL, or it outlives the team. */
int  team_create(struct team **out, int n, const struct nodes *nodes);
void team_destroy(struct team *t);               /* from thread 0, no job running */

/* fn(ctx, i) on every thread i, or on the first n; returns when all have returned. */
void team_run(struct team *t, void (*fn)(void *ctx, int i), void *ctx);
void team_run_some(struct team *t, int n, void (*fn)(void *ctx, int i), void *ctx);

/* How many threads the next job should have, at least 1, judged by how long cores were lost lately. */
int  team_fit(struct team *t);

/* Inside a job: wait for all threads.  What one wrote before, all see after. */
void team_barrier(struct team *t);

/* Inside a job: each call returns the next number, from 0 again after every barrier. */
int32_t team_take(struct team *t);

#endif
