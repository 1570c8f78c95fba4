/* nodes.c - see nodes.h. */
#include "nodes.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "refuse.h"

#define MPOL_PREFERRED_  1           /* of <linux/mempolicy.h>: from this node, from others if it is full */
#define MPOL_INTERLEAVE_ 3
#define PAGE             ((size_t)4096)
#define KERNEL_NODES     1024        /* numbers that are looked at */

/* "0-3,8": into *set.  False: it is not such a list. */
static bool parse_cpus(const char *s, size_t len, cpu_set_t *set)
{
	const char *end = s + len;

	CPU_ZERO(set);
	while (s < end) {
		char *rest;
		unsigned long from = strtoul(s, &rest, 10), to = from;

		if (rest == s || rest > end || from >= CPU_SETSIZE)
			return false;
		if (rest < end && *rest == '-') {
			s = rest + 1;
			to = strtoul(s, &rest, 10);
			if (rest == s || rest > end || to < from || to >= CPU_SETSIZE)
				return false;
		}
		for (; from <= to; from++)
			CPU_SET(from, set);
		if (rest < end && *rest != ',')
			return false;
		s = rest < end ? rest + 1 : end;
	}
	return true;
}

/* The processors of the kernel's node k. */
static bool read_cpus(int k, cpu_set_t *set)
{
	char path[80], line[4096];
	FILE *f;
	bool ok;

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", k);
	f = fopen(path, "re");
	if (!f)
		return false;
	ok = fgets(line, sizeof(line), f) && parse_cpus(line, strcspn(line, "\n"), set);
	fclose(f);
	return ok;
}

/* The kernel's node that has the first processor of *set, or -1. */
static int memory_of(const cpu_set_t *set)
{
	cpu_set_t all;

	for (int k = 0; k < KERNEL_NODES; k++) {
		if (!read_cpus(k, &all))
			continue;
		for (int c = 0; c < CPU_SETSIZE; c++)
			if (CPU_ISSET(c, set)) {
				if (CPU_ISSET(c, &all))
					return k;
				break;
			}
	}
	return -1;
}

static void add_node(struct nodes *m, const cpu_set_t *cpus, const cpu_set_t *ours, int memory)
{
	struct node *n = &m->node[m->n];

	if (m->n == NODES_MAX)
		return;
	CPU_AND(&n->cpus, cpus, ours);
	n->memory = memory;
	m->n += CPU_COUNT(&n->cpus) > 0;
}

static int from_list(struct nodes *out, const char *list, const cpu_set_t *ours, char *err, size_t errlen)
{
	for (const char *s = list; ; ) {
		size_t len = strcspn(s, "|");
		cpu_set_t cpus;

		if (!len || !parse_cpus(s, len, &cpus))
			return refuse(-EINVAL, err, errlen, "VLLM_CPU_OMP_THREADS_BIND=%s: lists of processors, such as "
				"0-31|32-63, are expected", list);
		add_node(out, &cpus, ours, memory_of(&cpus));
		if (!s[len])
			return 0;
		s += len + 1;
	}
}

int nodes_find(struct nodes *out, char *err, size_t errlen)
{
	const char *list = getenv("VLLM_CPU_OMP_THREADS_BIND");
	cpu_set_t ours, cpus;
	int e = 0;

	out->n = 0;
	if (sched_getaffinity(0, sizeof(ours), &ours) < 0)
		CPU_ZERO(&ours);
	if (list && *list && strcmp(list, "auto") && strcmp(list, "all") && strcmp(list, "nobind"))
		e = from_list(out, list, &ours, err, errlen);
	else
		for (int k = 0; k < KERNEL_NODES && (!list || strcmp(list, "nobind")); k++)
			if (read_cpus(k, &cpus))
				add_node(out, &cpus, &ours, k);
	if (out->n == 0)
		*out = (struct nodes){ .n = 1, .node = { { .cpus = ours, .memory = -1 } } };
	return e;
}

void nodes_pin(const struct nodes *m, int node)
{
	(void)sched_setaffinity(0, sizeof(m->node[node].cpus), &m->node[node].cpus);
}

/* Whole pages inside of [at, at + size). */
static void advise(int policy, const unsigned long *mask, void *at, size_t size)
{
	char *from = (char *)(((size_t)at + PAGE - 1) & ~(PAGE - 1)), *to = (char *)(((size_t)at + size) & ~(PAGE - 1));

	if (from < to)
		(void)syscall(SYS_mbind, from, (size_t)(to - from), policy, mask, (unsigned long)KERNEL_NODES, 0);
}

static void set_bit(unsigned long *mask, int k)
{
	mask[k / (int)(8 * sizeof(*mask))] |= 1ul << k % (int)(8 * sizeof(*mask));
}

void nodes_bind(const struct nodes *m, int node, void *at, size_t size)
{
	unsigned long mask[KERNEL_NODES / 8 / sizeof(unsigned long)] = { 0 };

	if (m->n < 2 || m->node[node].memory < 0)
		return;
	set_bit(mask, m->node[node].memory);
	advise(MPOL_PREFERRED_, mask, at, size);
}

void nodes_interleave(const struct nodes *m, void *at, size_t size)
{
	unsigned long mask[KERNEL_NODES / 8 / sizeof(unsigned long)] = { 0 };

	if (m->n < 2)
		return;
	for (int i = 0; i < m->n; i++) {
		if (m->node[i].memory < 0)
			return;
		set_bit(mask, m->node[i].memory);
	}
	advise(MPOL_INTERLEAVE_, mask, at, size);
}
