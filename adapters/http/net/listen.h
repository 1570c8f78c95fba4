/* listen.h - the sockets on which the adapter listens.  Opened once, before fork. */
#ifndef LISTEN_H
#define LISTEN_H

#include <stdbool.h>
#include <stddef.h>

#include "core/instance/config.h"

#define LISTEN_MAX 64             /* the most adapter processes */

struct listener {
	int  fd[LISTEN_MAX];      /* one per process, non-blocking; Unix and inherited sockets: duplicates */
	int  n;
	char url[300];            /* http://127.0.0.1:8000, unix:/run/x.sock */
	const char *unlink;       /* a path to remove at the end, or NULL */
};

/* The first of: a socket "http" from the service manager, --uds, --host and --port.  n: processes.
 * 0, or -errno and one sentence. */
int  listen_open(struct listener *l, const struct config *cfg, int n, char *err, size_t errlen);
/* --metrics-port, on the address of --host; opens nothing if the port is 0. */
int  listen_metrics(struct listener *l, const struct config *cfg, int n, char *err, size_t errlen);
bool listen_reachable(const struct listener *l); /* may other machines connect? */
void listen_close(struct listener *l);

#endif
