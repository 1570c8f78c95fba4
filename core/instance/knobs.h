/* knobs.h - what may change while the daemon runs: names, units and words of the knobs, and the
 * message by which `slipring set` asks for it.  A leaf: daemon, tools and tests read the same table.
 *
 * A knob's value is a whole number in its own unit.  The step target's is microseconds, because a
 * millisecond is too coarse for a fast device.  The value of a knob with words is the word's index.
 * The stats page (stats.h) has each knob's value and ceiling, in this order.
 *
 * One message on a SEQPACKET socket, <run dir>/control, and one answer; then it is closed.  Both
 * have a fixed size and stay on this machine, so they are structs.  The daemon accepts them from its
 * own user, root and the members of --operator-group (control.c).
 */
#ifndef KNOBS_H
#define KNOBS_H

#include <stddef.h>
#include <stdint.h>

enum knob {
	KNOB_MAX_NUM_SEQS, KNOB_MAX_NUM_BATCHED_TOKENS, KNOB_LONG_PREFILL, KNOB_POLICY,
	KNOB_PREFIX_CACHING, KNOB_STEP_TARGET, N_KNOBS
};

struct knob_info {
	const char *name;             /* the flag's name */
	const char *unit;             /* "" if words say everything */
	const char *words[3];         /* for values 0, 1; words[0] NULL: a number */
	int64_t     least;
	int64_t     scale;            /* value = typed number * scale */
	const char *what;             /* description in one line */
};

const struct knob_info *knob_info(enum knob k);
int  knob_find(const char *name);    /* enum knob, or -1; - equals _, and -- may come first */

/* "64", "4k" (4000), "4K" (4096), "2.5" where the scale allows it, or a word.  0, or -EINVAL and one
 * sentence. */
int  knob_parse(enum knob k, const char *text, int64_t *value, char *err, size_t errlen);
void knob_format(enum knob k, int64_t value, char *out, size_t n);   /* as it would be typed */

#define CONTROL_MAGIC   0x4c544353u  /* "SCTL" */
#define CONTROL_VERSION 1u
#define CONTROL_FILE    "control"    /* in the run directory */

struct control_ask { uint32_t magic, version, knob, zero; int64_t value; };
struct control_answer {
	uint32_t magic, version;
	int32_t  result;              /* 0, -EPERM, -ERANGE, -EINVAL, -EPROTO */
	uint32_t knob;
	int64_t  was, now, ceiling;
	char     say[216];            /* the reason; "" on success */
};

#endif
