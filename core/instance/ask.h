/* ask.h - ask a daemon for memory that it shows: its prefixes, its events. */
#ifndef ASK_H
#define ASK_H

#include <stdint.h>

#include "knobs.h"

/* what: a CONTROL_ number.  Returns a descriptor, or -errno; then a->say may have the daemon's reason.  connection:
 * where to put the connection, whose end is the daemon's; NULL: it is closed. */
int ask_memory(const char *run_dir, uint32_t what, struct control_answer *a, int *connection);

#endif
