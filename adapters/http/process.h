/* process.h - one adapter process: loop, API and connections, from its start until it is drained. */
#ifndef PROCESS_H
#define PROCESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct api_model;
struct api_shared;
struct config;

/* The state of the process, in memory shared with its parent, the only reader. */
struct process_beat {
	_Atomic uint64_t alive_ns;        /* last turn of the loop, CLOCK_MONOTONIC */
	_Atomic uint32_t ready;           /* 1 = its port is open; 2 = and daemons have answered */
};

struct process_config {
	const struct config *cfg;
	const struct api_model *model;    /* [n_models] */
	int n_models;
	struct api_shared *shared;
	struct process_beat *beat;
	int index, listen_fd;             /* the process owns listen_fd */
	pid_t parent;                     /* of several processes; 0: there is one */
	int metrics_fd;                   /* and owns metrics_fd; -1 = none */
	/* on_ready is called when the port opens, and again when daemons answer, if they did not then (serves).
	 * on_beat is called every beat_ns. */
	void (*on_ready)(void *ctx, bool serves);
	void (*on_beat)(void *ctx);
	uint64_t beat_ns;
	void *ctx;
};

/* Runs until SIGTERM or SIGINT and until it is drained.  Returns the exit code. */
int process_run(const struct process_config *p);

#endif
