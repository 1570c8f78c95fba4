/* serve_at.h - which instances `slipring serve` runs, and on which port: the file .serve in the run directory
 * of each, locked as long as that serve lives. */
#ifndef SERVE_AT_H
#define SERVE_AT_H

#include <stdbool.h>
#include <stddef.h>

#include "core/instance/config.h"

/* For serve: take the instances of these settings, until this process ends.  False: a daemon or another serve
 * has one of them, and none is taken.  An error is not reported: the daemons will. */
bool serve_hold(const struct config *cfg);
void serve_say_port(int port);        /* a port other than that of the settings */
void serve_let_go(void);

/* For tools: the instance of this user that a living serve has on port TEXT, a name that lasts as long as
 * this process.  NULL and a sentence. */
const char *serve_on(const char *text, char *err, size_t errlen);
const char *serve_found(const char *command, const char *text); /* the same; the sentence goes to stderr */

#endif
