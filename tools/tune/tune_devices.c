/* tune_devices.c - step 7 of the checklist: several devices as replicas (-dp), as ranks of one model (-tp),
 * or as both.
 *
 * Each way is measured: tune's own daemon, or its replicas, start anew with it.  What is printed beside the
 * result says where the time went: a rank waits for others in each layer, a replica has its own KV cache. */
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/nodes.h"
#include "tools/machine/nvml.h"
#include "tune.h"
#include "tune_search.h"

/* GPUs that a daemon may use; nodes of the CPU; of another device one. */
static int devices_here(const struct tune *t)
{
	const char *given = getenv("CUDA_VISIBLE_DEVICES");
	struct nvml_gpu gpu[NVML_MOST];
	struct nodes nodes;
	char err[200];
	int n = 1;

	if (t->o.devices)
		return t->o.devices;
	if (!strcmp(t->in.page->device, "cpu"))
		return nodes_find(&nodes, err, sizeof(err)) == 0 ? nodes.n : 1;
	if (strcmp(t->in.page->device, "cuda"))
		return 1;
	if (!given)
		return (n = nvml_look(gpu)) > 1 ? n : 1;
	for (const char *s = given; *s; s++)
		n += *s == ',';
	return n;
}

static void name_shape(const struct tune_shape *s, char *out, size_t n)
{
	if (s->replicas > 1 && s->ranks > 1)
		snprintf(out, n, "-dp %d -tp %d", s->replicas, s->ranks);
	else
		snprintf(out, n, "-%s %d", s->replicas > 1 ? "dp" : "tp", s->replicas > 1 ? s->replicas : s->ranks);
}

/* `flags` and this shape behind them, where the user's flags have another. */
static void shape_flags(const struct tune *t, const char *flags, const struct tune_shape *s, char *out,
                        size_t n)
{
	size_t at = (size_t)snprintf(out, n, "%s", flags);

	if (s->replicas != t->server.replicas)
		at += (size_t)snprintf(out + at, at < n ? n - at : 0, "%s--data-parallel-size %d", at ? " " : "",
		                       s->replicas);
	if (s->ranks != t->server.ranks)
		snprintf(out + at, at < n ? n - at : 0, "%s--tensor-parallel-size %d", at ? " " : "", s->ranks);
}

/* What the server is now, in one line. */
static void say_what_it_is(const struct tune *t, const struct tune_shape *s, const struct tune_trial *tr)
{
	const struct stats_page *p = t->in.page;

	printf("     %d daemon%s of %d device%s: ", s->replicas, s->replicas > 1 ? "s" : "", s->ranks,
	       s->ranks > 1 ? "s" : "");
	printf("a KV cache of %llu tokens%s", (unsigned long long)(p->n_blocks * p->block_tokens),
	       s->replicas > 1 ? " each" : "");
	if (tr->n && tr->step_ms > 0)
		printf(", steps of %.2f ms", tr->step_ms);
	if (tr->n && s->ranks > 1)
		printf(", of which ranks waited %.0f %% for each other", tr->bound[BOUND_RANKS] * 100);
	if (tr->n && !isnan(tr->hit_rate) && tr->hit_rate > 0)
		printf(", %.0f %% of the prompts' tokens were cached", tr->hit_rate * 100);
	printf("\n");
}

/* 1: it is the best now; 0: it is not, or does not start; -errno. */
static int weigh(struct tune *t, const char *before, const struct tune_shape *s, char *err, size_t errlen)
{
	const struct tune_setting best = t->trial[t->best].s;
	struct tune_trial *tr;
	char flags[sizeof(t->server.flags)], name[32];
	int rc;

	shape_flags(t, before, s, flags, sizeof(flags));
	name_shape(s, name, sizeof(name));
	rc = tune_server_again(t, flags, err, errlen);
	if (rc == -EINTR)
		return rc;
	if (rc) {
		printf("   %-58s does not start: %s\n", name, err);
		return 0;
	}
	tr = tune_trial(t, &best);
	rc = tr ? tune_challenge(t, &best, err, errlen) : -ENOMEM;
	if (rc >= 0)
		say_what_it_is(t, s, tr);
	return rc;
}

static void conclude(const struct tune *t, const struct tune_shape *won, int n_devices)
{
	const struct tune_trial *b = &t->trial[t->best];
	char name[32];

	name_shape(won, name, sizeof(name));
	if (!won->replicas)
		printf("   none of these is better than what the daemon has now, on %d device%s\n",
		       t->server.replicas * t->server.ranks, t->server.replicas * t->server.ranks > 1 ? "s" : "");
	else if (won->ranks == 1)
		printf("   %s: no device waits for another, and each serves its own share of the requests\n", name);
	else
		printf("   %s: a step of %.2f ms on %d devices is worth the %.0f %% in which ranks wait\n", name,
		       b->step_ms, won->ranks, b->bound[BOUND_RANKS] * 100);
	if (won->replicas > 1)
		printf("   Replicas are daemons: slipring serve --data-parallel-size %d, or a unit for each with "
		       "--data-parallel-rank\n", won->replicas);
	if (won->replicas * won->ranks > 1 && won->replicas * won->ranks < n_devices)
		printf("   %d of %d devices are not used by it\n", n_devices - won->replicas * won->ranks, n_devices);
}

int tune_devices(struct tune *t, char *err, size_t errlen)
{
	int devices = devices_here(t), n, rc = 0;
	struct tune_shape shape[TUNE_SHAPES], won = { 0, 0 };
	char before[sizeof(t->server.flags)];

	if (devices < 2) {
		printf("   one device: nothing to choose\n");
		return 0;
	}
	if (!t->server.n) {
		printf("   a running daemon keeps its devices; let tune start one of its own (flags behind --)\n");
		return 0;
	}
	snprintf(before, sizeof(before), "%s", t->trial[t->best].flags);
	n = tune_shapes(shape, devices, t->server.replicas, t->server.ranks);
	for (int i = 0; i < n && rc >= 0; i++) {
		rc = weigh(t, before, &shape[i], err, errlen);
		if (rc > 0)
			won = shape[i];
	}
	if (rc < 0 && rc != -ETIME)
		return rc;
	conclude(t, &won, devices);
	n = tune_server_again(t, t->trial[t->best].flags, err, errlen);
	return n < 0 ? n : rc < 0 ? rc : won.replicas > 0;
}

void tune_devices_plan(const struct tune *t)
{
	int devices = devices_here(t), n;
	struct tune_shape shape[TUNE_SHAPES];
	char name[32];

	if (devices < 2 || !t->server.n)
		return;
	n = tune_shapes(shape, devices, t->server.replicas, t->server.ranks);
	printf("   7  restart it on %d devices as", devices);
	for (int i = 0; i < n; i++) {
		name_shape(&shape[i], name, sizeof(name));
		printf("%s %s", i ? "," : "", name);
	}
	printf("\n");
}
