/* graph.cu - steps of single tokens as CUDA graphs: one call instead of nine launches a layer, and less
 * time between kernels.
 *
 * open() captures graphs for some numbers of rows.  A batch uses the smallest that holds it; begin_kernel
 * (step.cu) fills the rest of the rows with padding.  Everything that depends on the batch is in memory at
 * fixed addresses, so one graph serves all batches of its size, whatever their lengths.  Grids have the
 * largest size that they may need; blocks without work end at once.  Replays allocate nothing.
 *
 * The sizes at which products change kernels (16, 32, 64 rows) are graph sizes too, so a batch computes the
 * same bits as without a graph.  Beyond MOST rows the launches are hidden: the host queues them while the
 * device still works on the batch before.
 */
#include <stdio.h>
#include <stdlib.h>

#include "device.cuh"
#include "shmring/clock.h"

#define MOST 512                     /* rows */
#define SIZES 64
#define NODE_BYTES ((int64_t)24 << 10) /* device memory per node, estimated from what others report */
#define COMMAND_BLOCKS 16            /* at most; a step that only decodes has few chains of commands */
#define SAY_NS 2000000000u           /* ns between two progress lines of open() */

struct graphs {
	int32_t n, size[SIZES];
	cudaGraphExec_t exec[SIZES];
};

/* 1, 2, 4, 8, then multiples of 8 to 256, then of 32; the last is all rows. */
int32_t graph_sizes(const struct sr_limits *l, int32_t *size)
{
	int32_t most = l->rows < MOST ? l->rows : MOST, n = 0;

	for (int32_t s = 1; s < most; s += s < 8 ? s : s < 256 ? 8 : 32)
		size[n++] = s;
	size[n++] = most;
	return n;
}

int64_t graph_bytes(const struct dev *d, const struct sr_limits *l)
{
	int32_t size[SIZES], n, layer = d->m->experts.n ? 17 : 9; /* kernels */
	int64_t nodes = 0;

	if (l->eager)
		return 0;
	n = graph_sizes(l, size);
	for (int32_t i = 0; i < n; i++)      /* 64 rows at a time, products up to 256 rows are launches of their own */
		nodes += 6 + (layer + 4 * ((size[i] < 256 ? size[i] : 256) - 1) / 64) * d->m->n_layers + 3 * (size[i] / (l->logit_rows > 1 ? l->logit_rows : 1) + 1);
	if (d->ranks.world > 1)              /* a gather is two: four of a layer, of embeddings, tags and logits */
		nodes += (int64_t)n * (8 * d->m->n_layers + 7);
	return nodes * NODE_BYTES;
}

static struct step step_of(const struct dev *d, int32_t size)
{
	struct step s = {};

	s.n_tokens = s.n_picks = size;
	if (runs_only(d))
		s.n_runs = size;
	else
		s.n_pieces = most_pieces(d, size);
	s.n_cmd_slots = size < COMMAND_BLOCKS ? size : COMMAND_BLOCKS;
	return s;
}

/* Runs the step once without a graph.  The driver loads code at first use, which it cannot do during a
 * capture; errors also show here. */
static bool rehearse(struct dev *d, int32_t size)
{
	batch_empty(d->b);
	d->batch.step = step_of(d, size);
	batch_compute(d->b);
	return cuda_ok(d, cudaStreamSynchronize(d->stream), "compute a step of padding");
}

static bool capture(struct dev *d, int32_t size, cudaGraphExec_t *out)
{
	cudaGraph_t graph = NULL;

	if (!cuda_ok(d, cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal), "capture a graph"))
		return false;
	d->batch.step = step_of(d, size);
	batch_compute(d->b);
	cuda_ok(d, cudaStreamEndCapture(d->stream, &graph), "capture a graph"); /* ends the capture after an
	                                                                           error, too */
	if (!d->fault.lost && cuda_ok(d, cudaGraphInstantiate(out, graph, 0), "instantiate a graph"))
		cuda_ok(d, cudaGraphUpload(*out, d->stream), "bring a graph to the device");
	if (graph)
		cuda_ok(d, cudaGraphDestroy(graph), "free a captured graph");
	return !d->fault.lost;
}

bool graph_capture(struct dev *d, const struct sr_limits *l)
{
	struct graphs *g = (struct graphs *)calloc(1, sizeof(*g));
	uint64_t said = sr_now();

	if (!g)
		return cuda_ok(d, cudaErrorMemoryAllocation, "a table of graphs");
	d->batch.graphs = g;
	g->n = graph_sizes(l, g->size);
	for (int32_t i = 0; i < g->n; i++) {
		if (!rehearse(d, g->size[i]) || !capture(d, g->size[i], &g->exec[i]))
			return false;
		if (sr_now() - said < SAY_NS)
			continue;
		said = sr_now();
		fprintf(stderr, "slipring-cuda: %d of %d graphs are captured\n", i + 1, g->n);
	}
	return cuda_ok(d, cudaStreamSynchronize(d->stream), "bring graphs to the device");
}

bool graph_launch(struct dev *d, const struct sr_batch *b)
{
	const struct graphs *g = d->batch.graphs;
	const struct step *s = &d->batch.step;
	int32_t i = 0;

	if (!g || d->fault.lost || s->n_tokens != b->n_rows || s->n_picks < 1 || s->n_pooled)
		return false;
	while (i < g->n && (g->size[i] < s->n_tokens || g->size[i] < s->n_picks))
		i++;
	if (i == g->n)
		return false;
	cuda_ok(d, cudaGraphLaunch(g->exec[i], d->stream), "launch a graph");
	return true;
}

void graph_free(struct dev *d)
{
	struct graphs *g = d->batch.graphs;

	for (int32_t i = 0; g && i < g->n; i++)
		if (g->exec[i])
			cuda_ok(d, cudaGraphExecDestroy(g->exec[i]), "close");
	free(g);
	d->batch.graphs = NULL;
}
