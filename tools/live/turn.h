/* turn.h - turn a knob of a running daemon; and turn all of them back, however this process ends. */
#ifndef TURN_H
#define TURN_H

#include <sys/types.h>

#include "core/instance/knobs.h"
#include "tools/instance.h"

/* 0 and the daemon's answer, or -errno and a sentence. */
int turn(const struct instance *in, enum knob k, int64_t value, struct control_answer *a, char *err,
         size_t errlen);

/* All of them, in rounds, for one may have to wait for another (a step holds at least max-num-seqs
 * tokens).  0, or -errno and the last reason. */
int turn_all(const struct instance *in, const int64_t want[N_KNOBS], char *err, size_t errlen);

/* A process of its own waits for the end of this one (killed or not), puts every knob back to what it
 * was at keeper_start, and says on stderr what it could not.  A daemon that was started anew meanwhile
 * is left alone. */
struct keeper { pid_t pid; int end; };

int keeper_start(struct keeper *k, const struct instance *in, char *err, size_t errlen);
int keeper_stop(struct keeper *k);    /* put back now: 0, or -EIO and it was said */

#endif
