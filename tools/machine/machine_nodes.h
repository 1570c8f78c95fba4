/* machine_nodes.h - checks what lies on which node of the machine, and what stands between its GPUs. */
#ifndef MACHINE_NODES_H
#define MACHINE_NODES_H

#include <stdbool.h>

#include "machine.h"

struct machine_at {
	const char *root; /* "", or a folder with proc and sys of a made-up machine */
	unsigned pid;     /* of the daemon; 0: there is none */
	bool cuda;        /* it computes on GPUs */
};

#define MACHINE_NODES 7 /* rows at most */

/* Returns the number of rows. */
int machine_nodes(struct finding *out, const struct machine_at *at);

#endif
