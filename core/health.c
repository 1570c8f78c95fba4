/* health.c - see health.h. */
#include "health.h"

#include "core/instance/log.h"
#include "core/instance/notify.h"

#define SECOND       1000000000ull
#define SILENT_S     60           /* s without progress after which the device is lost */
#define SILENT_TIMES 20           /* the same in expected times of the batch; the longer of both counts */

/* Runs once a second while a batch is under way.  Seconds in which this process was stopped do not count,
 * because the timer fires once for all of them.  Where the loop's thread computes, a hung device stops the
 * loop, and the service manager's watchdog ends the process. */
static void on_pulse(struct io_timer *t)
{
	struct health *h = t->ctx;
	uint64_t device = h->ops->progress ? h->ops->progress(h->b) : 0;
	uint64_t usual = SILENT_TIMES * sched_takes(h->s) / SECOND, most = usual > SILENT_S ? usual : SILENT_S;

	if (!h->works)
		h->st->progress += device - h->device;
	if (sched_flying(h->s) < 0 || h->st->progress != h->progress) {
		if (h->told)
			log_info("The device makes progress again");
		h->seconds = h->told = 0;
	} else if (++h->seconds >= most) {
		log_error("The device has computed nothing for %llu s", (unsigned long long)h->seconds);
		h->hangs = true;
	} else if (!h->told && h->seconds >= most / 4) {
		log_warn("The device has computed nothing for %llu s; such a batch usually takes %.3f s; after %llu "
		         "s it counts as lost", (unsigned long long)h->seconds,
		         (double)sched_takes(h->s) / 1e9, (unsigned long long)most);
		h->told = true;
	}
	h->device = device;
	h->progress = h->st->progress;
	if (sched_flying(h->s) >= 0)
		io_timer_set(h->io, t, io_now() + SECOND);
}

/* Ping the service manager if the loop turned or a layer was computed since the last ping. */
static void on_watchdog(struct io_timer *t)
{
	struct health *h = t->ctx;

	if (h->st->alive_ns != h->alive_at_watchdog && !h->hangs)
		notify_send("WATCHDOG=1");
	h->alive_at_watchdog = h->st->alive_ns;
	io_timer_set(h->io, t, io_now() + h->watchdog_ns);
}

void health_start(struct health *h)
{
	h->pulse = (struct io_timer){ .fn = on_pulse, .ctx = h };
	h->watchdog = (struct io_timer){ .fn = on_watchdog, .ctx = h };
	h->watchdog_ns = notify_watchdog_ns();
	if (h->watchdog_ns)
		io_timer_set(h->io, &h->watchdog, io_now() + h->watchdog_ns);
}

void health_look(struct health *h, uint64_t now)
{
	if (!h->pulse.index && sched_flying(h->s) >= 0)
		io_timer_set(h->io, &h->pulse, now + SECOND);
}
