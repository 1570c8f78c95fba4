/* team.h - threads that compute one thing together.
 *
 * The caller of team_run is thread 0; the others sleep between jobs.  Inside a job all run
 * the same code and meet at barriers.  Every wait spins a bounded time and then sleeps in a
 * futex: a spinning thread on a core that somebody else needs costs both a scheduler tick.
 *
 * Barriers make a team as slow as its latest thread, and a thread that shares its core is late by
 * whole time slices, again and again.  So a team notices such waits and says how many threads the
 * next job is best done by (team_fit); those left out sleep.
 */
#ifndef CPU_TEAM_H
#define CPU_TEAM_H

#include <stdint.h>

struct team;

/* n threads, the caller's included.  0 or -errno. */
int  team_create(struct team **out, int n);
void team_destroy(struct team *t);               /* from thread 0, no job running */

/* fn(ctx, i) on every thread i, or on the first n; returns when all have returned. */
void team_run(struct team *t, void (*fn)(void *ctx, int i), void *ctx);
void team_run_some(struct team *t, int n, void (*fn)(void *ctx, int i), void *ctx);

/* How many threads the next job should have, 1 or more, by how late those of the last ones were. */
int  team_fit(struct team *t);

/* Inside a job: wait until all are here.  What anyone wrote before, all see after. */
void team_barrier(struct team *t);

/* Inside a job: 0, 1, 2 .. to whoever asks, from 0 again after every barrier. */
int32_t team_take(struct team *t);

#endif
