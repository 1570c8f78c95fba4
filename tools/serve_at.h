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

/* For tools: the instances of this user that a living serve has on a port.  Writes "a, b"; returns how many. */
int  serve_search(int port, char *names, size_t n);
/* The instance for --port TEXT, which lasts as long as this process; NULL after a message on stderr. */
const char *serve_found(const char *command, const char *text);

#endif
