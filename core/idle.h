/* idle.h - how the daemon's thread waits: when it spins, and for how long.
 *
 *	inline      it computes too, and looks at rings between layers; it never waits for a
 *	            device.  Right without a core to spare.
 *	dedicated   the device, or a team of its own, computes; this thread polls for its results.
 *	            Right with a core to spare, and ruinous without.
 *	waiting     the same, but it sleeps until the device signals: one core does everything.
 *
 * In every mode a spin ends: after spin_ns with nothing under way, after flight_ns with a batch under
 * way.  Then the thread sleeps in io_sleep until a client, the device or a timer wakes it.
 */
#ifndef IDLE_H
#define IDLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/instance/config.h"

struct idle {
	enum config_run_mode mode;
	uint32_t spin_ns;             /* spin after the last work, before it sleeps */
	uint32_t flight_ns;           /* the same while the device computes */
	uint32_t nap_ns;              /* length of a sleep if the device cannot signal that it is done */
	uint64_t since;               /* when the last turn with work ended; 0 = just now */
};

struct idle_place {
	const char *device;           /* its name */
	int  cores;                   /* cores that this process may use */
	int  threads;                 /* of the back end's team; 0: it has none */
	bool workable;                /* our thread can do its work (ops->work) */
};

/* Choose the mode, or check the one asked for; say = one sentence why.  0, or -EINVAL: impossible. */
int idle_choose(struct idle *i, enum config_run_mode asked, const struct idle_place *p, char *say,
                size_t n);

/* No work at `now`.  True: sleep; false: look again at once. */
bool idle_enough(struct idle *i, uint64_t now, bool flying);

#endif
