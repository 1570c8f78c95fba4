/* nodes.h - the nodes of a machine: processors that share a memory controller.  Reading another node's memory is
 * slower, and all of it goes through one link.
 *
 * So threads are dealt to nodes in order, each thread's weights lie on its node, and so do the keys and values of
 * the heads that are dealt to it.  Nothing of this changes a result.  With one node nothing is pinned or bound.
 */
#ifndef SR_NODES_H
#define SR_NODES_H

#include <sched.h>
#include <stddef.h>

#define NODES_MAX 16

struct nodes {
	int n;                       /* at least 1 */
	struct node { cpu_set_t cpus; int memory; } node[NODES_MAX]; /* memory: the kernel's number; -1: not known */
};

/* The nodes that this process may use: as VLLM_CPU_OMP_THREADS_BIND lists their processors ("0-31|32-63"; auto, all
 * and nobind: no list), else as the kernel says.  0, or -EINVAL and a line in err: the list is wrong. */
int nodes_find(struct nodes *out, char *err, size_t errlen);

/* The node of part i of `parts`, of n nodes. */
static inline int node_of(int i, int parts, int n)
{
	return (int)((long)i * n / parts);
}

/* This thread runs on that node from now on. */
void nodes_pin(const struct nodes *m, int node);

/* Memory that was not touched yet comes from this node, or from all in turn.  Advice: it may be refused. */
void nodes_bind(const struct nodes *m, int node, void *at, size_t size);
void nodes_interleave(const struct nodes *m, void *at, size_t size);

#endif
