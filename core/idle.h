/* idle.h - how the daemon's thread waits: whose core it may burn, and for how long.
 *
 *	inline      it computes too, and looks at rings between layers: nothing of it waits for a
 *	            device.  What there is to do without a core to spare.
 *	dedicated   the device, or a team of its own, computes; this thread polls for its results.
 *	            Right with a core to spare and ruinous without.
 *	waiting     the same, but it sleeps until the device signals: one core does it all.
 *
 * In every mode a spin ends: with nothing under way after spin_ns, with a batch under way after
 * flight_ns; then the thread sleeps in io_sleep until a client, the device or a timer wakes it.
 */
#ifndef IDLE_H
#define IDLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config.h"

struct idle {
	enum config_run_mode mode;
	uint32_t spin_ns;             /* after the last work, until it sleeps */
	uint32_t flight_ns;           /* the same while the device computes */
	uint32_t nap_ns;              /* sleep of one who cannot be told that the device is done */
	uint64_t since;               /* when the last turn with work ended; 0 = just now */
};

struct idle_place {
	const char *device;           /* its name */
	int  cores;                   /* that we may use */
	int  threads;                 /* of the back end's team; 0: it has none */
	bool workable;                /* it can be worked by our thread */
};

/* The mode, asked for or chosen, and one sentence why.  0, or -EINVAL: it cannot be, and why not. */
int idle_choose(struct idle *i, enum config_run_mode asked, const struct idle_place *p, char *say,
                size_t n);

/* Nothing moved at `now`: true to sleep, false to look again at once. */
bool idle_enough(struct idle *i, uint64_t now, bool flying);

#endif
