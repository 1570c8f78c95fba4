/* reload.h - settings read again on SIGHUP: what can change while running does, all of it or none. */
#ifndef RELOAD_H
#define RELOAD_H

#include "config.h"
#include "control.h"

struct reload {
	int argc;                     /* the command line, which wins over the file as it did at start */
	char **argv;
	const struct config *started; /* with what cannot change */
	struct config seen;           /* as it was read last */
	int64_t seqs, tokens;         /* what the plan made of a max-num-seqs, a -batched-tokens not given */
	struct control *control;
};

void reload_create(struct reload *r, const struct config *started);
void reload_destroy(struct reload *r);

/* Read the settings again: knobs are turned; of the rest, r->seen has what is to be used from now on.
 * Only what is another than when it was last read is applied, so a knob turned by hand stays.
 * 0, or -EINVAL: nothing was changed, and err says why. */
int  reload_now(struct reload *r, char *err, size_t errlen);

#endif
