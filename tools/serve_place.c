/* serve_place.c - see serve.h.  Runs in the child, between fork and exec. */
#include "serve.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NODES 64

struct cpu { int number, node, core; };

static int core_of(int cpu)
{
	char path[96];
	FILE *f;
	int core = cpu;

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/core_id", cpu);
	f = fopen(path, "re");
	if (!f || fscanf(f, "%d", &core) != 1)
		core = cpu;
	if (f)
		fclose(f);
	return core;
}

static int node_of(int cpu)
{
	char path[96];

	for (int node = 0; node < NODES; node++) {
		snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/node%d", cpu, node);
		if (access(path, F_OK) == 0)
			return node;
	}
	return 0;
}

static int by_place(const void *a, const void *b)
{
	const struct cpu *x = a, *y = b;

	if (x->node != y->node)
		return x->node < y->node ? -1 : 1;
	if (x->core != y->core)
		return x->core < y->core ? -1 : 1;
	return x->number < y->number ? -1 : x->number > y->number;
}

static void deal_cpus(int rank, int n)
{
	static struct cpu cpu[CPU_SETSIZE];
	cpu_set_t all, mine;
	int n_cpus = 0, from, to;

	if (sched_getaffinity(0, sizeof(all), &all) < 0)
		return;
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &all))
			cpu[n_cpus++] = (struct cpu){ i, node_of(i), core_of(i) };
	if (!n_cpus)
		return;
	qsort(cpu, (size_t)n_cpus, sizeof(cpu[0]), by_place);
	from = n_cpus >= n ? n_cpus * rank / n : rank % n_cpus;
	to = n_cpus >= n ? n_cpus * (rank + 1) / n : from + 1;
	CPU_ZERO(&mine);
	for (int i = from; i < to; i++)
		CPU_SET(cpu[i].number, &mine);
	if (sched_setaffinity(0, sizeof(mine), &mine) < 0)
		perror("slipring serve: the CPUs of a daemon cannot be set");
}

int serve_deal(const char *list, int rank, int n, char *out, size_t size)
{
	int words = 1, each, i = 0;
	size_t len = 0;

	for (const char *s = list; *s; s++)
		words += *s == ',';
	each = words / n;
	if (!*list || !each)
		return -E2BIG;
	for (const char *s = list; ; s += 1, i++) {
		size_t w = strcspn(s, ",");

		if (i / each == rank) {
			if (len + w + 2 > size)
				return -E2BIG;
			len += (size_t)snprintf(out + len, size - len, "%s%.*s", len ? "," : "", (int)w, s);
		}
		s += w;
		if (!*s)
			return 0;
	}
}

void serve_place(int rank, int n, int gpus)
{
	const char *given = getenv("CUDA_VISIBLE_DEVICES");
	char mine[1024] = "";

	deal_cpus(rank, n);
	for (int i = 0; !given && i < gpus; i++)
		snprintf(mine + strlen(mine), sizeof(mine) - strlen(mine), "%s%d", i ? "," : "", rank * gpus + i);
	if (given && serve_deal(given, rank, n, mine, sizeof(mine)) < 0)
		*mine = 0;                    /* a CUDA daemon then says that it has no GPU */
	setenv("CUDA_VISIBLE_DEVICES", mine, 1);
}
