/* process.h - one adapter process: loop, API and connections, from start to drained. */
#ifndef PROCESS_H
#define PROCESS_H

#include <stdatomic.h>
#include <stdint.h>

struct api_shared;
struct config;
struct located;

/* How the process is doing, in memory shared with its parent (the only reader). */
struct process_beat {
	_Atomic uint64_t alive_ns;        /* last turn of the loop, CLOCK_MONOTONIC */
	_Atomic uint32_t ready;           /* 1 = answers */
};

struct process_config {
	const struct config *cfg;
	const struct located *model;
	struct api_shared *shared;
	struct process_beat *beat;
	int index, listen_fd;             /* owns listen_fd */
	int metrics_fd;                   /* and this one; -1 = none */
	/* Called once when it answers, and from then on every beat_ns: for the service manager. */
	void (*on_ready)(void *ctx);
	void (*on_beat)(void *ctx);
	uint64_t beat_ns;
	void *ctx;
};

/* Until SIGTERM or SIGINT and everything is drained.  The exit code. */
int process_run(const struct process_config *p);

#endif
