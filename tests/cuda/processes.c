/* processes.c - see processes.h. */
#include "tests/cuda/processes.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/ranks/ranks.h"

void (*processes_begin)(int32_t rank);
uint32_t processes_hang_ms = 60000;

static struct sr_backend_ops inner, outer;       /* of a device; with empty batches */
static const struct sr_backend_ops *ranks;
static const struct sr_model *model;
static const struct sr_source *source;
static char said[2000];

static int open_one(void *ctx, const struct sr_limits *lim, _Atomic uint64_t *loaded, struct sr_backend **out, char *err,
                    size_t errlen)
{
	(void)ctx, (void)loaded;
	if (processes_begin)
		processes_begin(lim->rank);
	return inner.open(out, model, source, lim, err, errlen);
}

static int spawn(void *ctx, int32_t rank, int memory, int bell)
{
	const struct ranks_door door = { .ops = &inner, .open = open_one };
	int pid;

	(void)ctx;
	fflush(NULL);
	pid = fork();
	if (pid == 0)
		_exit(ranks_serve(&door, rank, memory, bell));
	return pid;
}

static void hear(void *ctx, bool bad, const char *line)
{
	(void)ctx, (void)bad;
	snprintf(said + strlen(said), sizeof(said) - strlen(said), "%s\n", line);
}

static int poll_both(struct sr_backend *b, int32_t i)
{
	struct sr_batch *after = ranks->batch(b, 1);
	int r = ranks->poll(b, i);

	if (r == 0)
		usleep(50);                      /* the caller would spin on a core that ranks need */
	if (r != 1)
		return r;
	assert(!after->n_rows && !after->n_cmds && !after->n_copies);
	if (ranks->launch(b, 1) < 0)
		return -1;
	while ((r = ranks->poll(b, 1)) == 0)
		usleep(20);
	return r;
}

const struct sr_backend_ops *processes_over(const struct sr_backend_ops *ops, const struct sr_model *m,
                                            const struct sr_source *src)
{
	const struct ranks_setting how = { .ops = &inner, .spawn = spawn, .say = hear,
	                                   .hang_ms = processes_hang_ms, .separate = true };

	inner = *ops;
	model = m;
	source = src;
	said[0] = 0;
	ranks = ranks_over(&how);
	outer = *ranks;
	outer.poll = poll_both;
	return &outer;
}

const char *processes_said(void)
{
	return said;
}
