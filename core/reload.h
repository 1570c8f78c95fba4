/* reload.h - settings read again on SIGHUP: all that can change while running changes, or nothing does. */
#ifndef RELOAD_H
#define RELOAD_H

#include "core/instance/config.h"
#include "control.h"

struct reload {
	int argc;                     /* the command line, which overrides the file, as at start */
	char **argv;
	const struct config *started; /* has the settings that cannot change */
	struct config seen;           /* as last read */
	int64_t seqs, tokens;         /* the plan's max-num-seqs and max-num-batched-tokens, if not given */
	struct control *control;
};

void reload_create(struct reload *r, const struct config *started);
void reload_destroy(struct reload *r);

/* Read the settings again.  Knobs are turned; r->seen has the other settings for use from now on.
 * Only settings that differ from the last reading are applied, so a knob turned by hand stays.
 * 0, or -EINVAL: nothing changed, and err says why. */
int  reload_now(struct reload *r, char *err, size_t errlen);

#endif
