/* turn.h - turns a knob of a running daemon, and turns all knobs back, however this process ends. */
#ifndef TURN_H
#define TURN_H

#include <sys/types.h>

#include "core/instance/knobs.h"
#include "tools/instance.h"

/* 0 and the daemon's answer, or -errno and a sentence. */
int turn(const struct instance *in, enum knob k, int64_t value, struct control_answer *a, char *err,
         size_t errlen);

/* Turn all knobs, in rounds, because one may have to wait for another (a step holds at least max-num-seqs
 * tokens).  0, or -errno and the last reason. */
int turn_all(const struct instance *in, const int64_t want[N_KNOBS], char *err, size_t errlen);

/* A separate process waits until this one ends (killed or not), and puts every knob back to its value at
 * keeper_start.  It reports failures on stderr.  It leaves a daemon alone that was restarted meanwhile. */
struct keeper { pid_t pid; int end; };

int keeper_start(struct keeper *k, const struct instance *in, char *err, size_t errlen);
int keeper_stop(struct keeper *k);    /* put back now: 0, or -EIO after a message */

#endif
