/* truth.c - see truth.h. */
#include "kernels/cpu/backend.c"
#include "kernels/cpu/batches.c"
#include "tests/cuda/truth.h"

void truth_open(struct drive *d, const struct tiny *t, const struct sr_limits *lim)
{
	setenv("SLIPRING_CPU", "plain", 1);
	assert(!drive_open(d, sr_cpu_ops(), &t->m, &t->src, lim));
	unsetenv("SLIPRING_CPU");
}

void truth_slice(struct drive *d)
{
	struct row_cursor c = { 0, 0 };

	for (int32_t i = 0; i < d->batch->n_cmds; i++)
		do_command(d->b, &d->batch->cmd[i]);
	assert(next_slice(d->b, &c) && c.row == d->batch->n_rows);
	d->b->dev[0].reads = d->b->dev[0].writes = 0;
	attend_angles(&d->b->dev[0]);
}

struct dev *truth_dev(struct drive *d)
{
	return &d->b->dev[0];
}

const struct net *truth_net(struct drive *d)
{
	return &d->b->net;
}

int truth_width(struct drive *d, enum place p)
{
	return d->b->shape.width[p];
}
