/* control.h - knobs changed while running: a socket in the run directory, heard between steps.
 *
 *	slipring set --ask--> io -> on_message -> sched_set -> the stats page, the log
 *	             <-answer-'
 *
 * Who may: the daemon's own user, root, and the members of one group; others are told so and
 * closed before they are read, so strangers take no place; and one comes at a time, with a rest after
 * each, so that dialling without end costs the daemon little.  A connection has a second for its one
 * message.  Who asks for a recording (record.h) keeps the connection until it is over.
 *
 * Belongs to the loop's thread.  After control_create only a recording takes memory, and gives it back.
 */
#ifndef CONTROL_H
#define CONTROL_H

#include "core/io.h"
#include "core/knobs.h"
#include "core/record.h"
#include "core/sched.h"
#include "core/stats.h"

struct control;

struct control_config {
	const char *run_dir;
	const char *group;            /* whose members may, too; NULL = nobody else */
	struct sched_knobs knobs;     /* as the scheduler was created with */
	int32_t seqs_most, tokens_most; /* max-num-seqs and max-num-batched-tokens go up to these */
	uint32_t step_default_ns;     /* what step-target-ms 0 means on this device */
	struct recorder *recorder;    /* to begin and end a recording with; NULL = there is none */
	struct stats_page *stats;     /* where each knob's value and ceiling are shown */
};

/* 0, or -errno and one sentence. */
int  control_create(struct control **out, const struct control_config *cfg, struct io *io,
                    struct sched *s, char *err, size_t errlen);
void control_destroy(struct control *c);

/* The daemon's own settings, read again: all knobs whose bit is set in `which`, or none of them and
 * -ERANGE and one sentence. */
int  control_set(struct control *c, const int64_t value[N_KNOBS], unsigned which, char *say, size_t n);

#endif
