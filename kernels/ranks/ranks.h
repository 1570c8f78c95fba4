/* ranks.h - a back end made of back ends: a model divided among processes, one for each rank.
 *
 *	core -> ranks.c, a back end like any other              rank r: serve.c, in a process of its own
 *	-----------------------------------------------         -------------------------------------------------
 *	plan    asks the device's plan() for each rank
 *	open    makes one sealed memory, starts the ranks       maps it, opens the device with its rank
 *	batch   lies in that memory                             reads it where it lies
 *	launch  one store, and a futex if they sleep            launch(), work() or poll() of the device
 *	poll    reads a word of each rank                       writes its word, and a hash of what it computed
 *	again   kills what is left, starts all anew
 *
 * A rank that ends is seen by its pidfd, one that hangs by its beat (kernels/shared.h), one whose word or hash is
 * wrong by poll().  Each is named, and the device is lost; core asks for it again.  The third loss in ten
 * minutes is final.  A rank cannot outlive core: the kernel kills it then.
 *
 * Threads: core's calls come from one thread.  A thread of this back end watches the processes; it sets `lost` and
 * wakes core's thread, nothing else.  Ranks trust core and each other as threads would.
 */
#ifndef SR_RANKS_H
#define SR_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"

/* How ranks are started.  Must outlive the back end. */
struct ranks_setting {
	const struct sr_backend_ops *ops;   /* of the device that each rank opens */
	/* Start the process of a rank; it calls ranks_serve with `memory` and `bell`, descriptors that it inherits.
	 * Its pid, or -errno. */
	int (*spawn)(void *ctx, int32_t rank, int memory, int bell);
	/* A line for the log; any thread. */
	void (*say)(void *ctx, bool bad, const char *line);
	/* While ranks open: bytes that they read so far, together.  False: give up.  May be NULL */
	bool (*loading)(void *ctx, uint64_t bytes);
	void *ctx;
	uint32_t hang_ms;                   /* a rank that shows no beat for so long hangs; 0: as long as steps take */
	bool separate;                      /* each rank has a device memory of its own */
};

/* The table of a device whose ranks are started like this.  One at a time. */
const struct sr_backend_ops *ranks_over(const struct ranks_setting *how);

/* What is known of a rank; b is of ranks_over(). */
struct ranks_view {
	int32_t  pid;
	uint32_t done;               /* batches since it was started */
	uint64_t late_ns;            /* behind the first rank, over all batches */
};
int32_t ranks_look(const struct sr_backend *b, const struct ranks_view **out);

/* In a rank's process: open the device and serve until core is gone.  open() is called with this rank's limits and
 * reports the bytes read to *loaded.  Returns an exit code. */
struct ranks_door {
	const struct sr_backend_ops *ops;
	int (*open)(void *ctx, const struct sr_limits *lim, _Atomic uint64_t *loaded, struct sr_backend **out,
	            char *err, size_t errlen);
	void *ctx;
};
int ranks_serve(const struct ranks_door *door, int32_t rank, int memory, int bell);

#endif
