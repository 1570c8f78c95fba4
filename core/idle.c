/* idle.c - see idle.h.  docs/speed.md has the measurements. */
#include "idle.h"

#include <errno.h>
#include <stdio.h>

#define SPIN_NS       50000u      /* a client that answers at once finds the thread awake */
#define SPIN_SPARE_NS 500000u     /* with a core to spare, so does a client that answers after a while */
#define FLIGHT_NS     10000000u   /* the thread sleeps for slower batches: a wake-up costs 0.5 % of this */
#define NAP_NS        50000u

int idle_choose(struct idle *i, enum config_run_mode asked, const struct idle_place *p, char *say,
                size_t n)
{
	bool spare = p->cores > 1 && p->threads < p->cores;
	enum config_run_mode mode = asked;

	*i = (struct idle){ .spin_ns = SPIN_NS, .nap_ns = NAP_NS };
	if (mode == RUN_AUTO)
		mode = p->workable ? RUN_INLINE : spare ? RUN_DEDICATED : RUN_WAITING;
	i->mode = mode;
	switch (mode) {
	case RUN_INLINE:
		if (!p->workable) {
			snprintf(say, n, "--run-mode inline: the device \"%s\" computes by itself; dedicated and "
			         "waiting are possible", p->device);
			return -EINVAL;
		}
		if (p->threads)
			snprintf(say, n, "inline: this thread is one of %d that compute on %d cores, and looks at the "
			         "rings between layers", p->threads, p->cores);
		else
			snprintf(say, n, "inline: this thread works the device");
		break;
	case RUN_DEDICATED:
		i->spin_ns = SPIN_SPARE_NS;
		i->flight_ns = FLIGHT_NS;
		snprintf(say, n, "dedicated: this thread polls one of %d cores while there is work%s", p->cores,
		         spare ? "" : "; no core is left for other threads, so those that compute lose time slices "
		                      "to it");
		break;
	default:
		i->spin_ns = 0;
		snprintf(say, n, "waiting: this thread sleeps while the device computes%s",
		         asked == RUN_AUTO ? ", because it has no core of its own" : "");
		break;
	}
	return 0;
}

bool idle_enough(struct idle *i, uint64_t now, bool flying)
{
	if (!i->since)
		i->since = now;
	return now - i->since >= (flying ? i->flight_ns : i->spin_ns);
}
