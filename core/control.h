/* control.h - knobs changed while running: a socket in the run directory, served between steps.
 *
 *	slipring set --ask--> io -> on_message -> sched_set -> the stats page, the log
 *	             <-answer-'
 *
 * The daemon's own user, root, and the members of one group may use it.  Others get an answer that
 * says so and are closed before they are read, so they take no place.  One client is accepted at a
 * time, with a pause after each, so endless connecting costs the daemon little.  A client has one
 * second for its one message.  A client that records (record.h) or reads the events keeps its
 * connection until the end.
 *
 * Belongs to the loop's thread.  After control_create only a recording allocates memory, and frees it.
 */
#ifndef CONTROL_H
#define CONTROL_H

#include "core/instance/io.h"
#include "core/instance/knobs.h"
#include "core/instance/record.h"
#include "core/sched/sched.h"
#include "core/instance/stats.h"

struct control;

struct control_config {
	const char *run_dir;
	const char *group;            /* whose members may, too; NULL = no group */
	struct sched_knobs knobs;     /* as given to sched_create */
	int32_t seqs_most, tokens_most; /* ceilings of max-num-seqs and max-num-batched-tokens */
	uint32_t step_default_ns;     /* what step-target-ms 0 means on this device */
	uid_t gateway;                /* may ask for the prefixes and for nothing else; -1 = nobody */
	int prefix_fd;                /* the memory that shows them (core/prefix.h); -1 = none */
	uid_t reader;                 /* may ask for the events and for nothing else; -1 = nobody */
	int events_fd;                /* the memory that has them (core/events.h); -1 = none */
	struct recorder *recorder;    /* for recordings; NULL = none possible */
	struct stats_page *stats;     /* shows each knob's value and ceiling */
};

/* 0, or -errno and one sentence. */
int  control_create(struct control **out, const struct control_config *cfg, struct io *io,
                    struct sched *s, char *err, size_t errlen);
void control_destroy(struct control *c);

/* Apply the daemon's own settings after a reload: all knobs whose bit is set in `which`; or none, and
 * -ERANGE and one sentence. */
int  control_set(struct control *c, const int64_t value[N_KNOBS], unsigned which, char *say, size_t n);

#endif
