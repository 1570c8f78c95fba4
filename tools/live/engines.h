/* engines.h - the other daemons of a model, of which `slipring top` shows one: NAME-0, NAME-1, .. */
#ifndef ENGINES_H
#define ENGINES_H

#include <jansson.h>

#include "screen.h"

void engines_say(struct sheet *s, const char *name);   /* a line each, if there are several */
json_t *engines_json(const char *name);                /* a list; empty if there is one daemon */

#endif
