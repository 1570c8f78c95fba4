/* config_drafts.h - the members of --speculative-config, as numbers in the config. */
#ifndef CONFIG_DRAFTS_H
#define CONFIG_DRAFTS_H

#include "config.h"

/* Sets c->draft_*.  0, or -EINVAL and one sentence. */
int config_drafts(struct config *c, char *err, size_t errlen);

#endif
