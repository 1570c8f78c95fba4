/* machine_nodes.c - what lies on which node: processors, memory, GPUs, interrupts and the daemon; and what
 * stands between GPUs that copy to each other.  All of it is read from /proc and /sys below a root, which is
 * "" but in tests. */
#include "machine_nodes.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NODES   64
#define DEVICES 64
#define GPUS    16
#define REMOTE  0.25 /* share of memory on other nodes that is worth a line */
#define NVIDIA  0x10de

enum { NIC = 0x02, DISK = 0x01, DISPLAY = 0x03, BRIDGE = 0x06 }; /* first bytes of a PCI class */

struct device {
	char bus[16];
	int class, node;
	bool gpu;
};

static struct {
	const struct machine_at *at;
	int n_nodes, n_devices, n_gpus;
	struct {
		int number;
		cpu_set_t cpus;
	} node[NODES];
	struct device device[DEVICES];
	cpu_set_t daemon; /* CPUs of its threads; none: there is no daemon */
	cpu_set_t loop;   /* of its first thread, which schedules */
} m;

/* ---- files --------------------------------------------------------------------------------------- */

/* A file below the root.  Bytes read, or -1. */
static ssize_t get(char *out, size_t n, const char *format, ...) __attribute__((format(printf, 3, 4)));
static ssize_t get(char *out, size_t n, const char *format, ...)
{
	char path[600];
	size_t at = (size_t)snprintf(path, sizeof(path), "%.200s", m.at->root);
	ssize_t got = 0, more;
	va_list ap;
	int fd;

	va_start(ap, format);
	vsnprintf(path + at, sizeof(path) - at, format, ap);
	va_end(ap);
	*out = 0;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	while ((size_t)got < n - 1 && (more = read(fd, out + got, n - 1 - (size_t)got)) > 0)
		got += more;
	close(fd);
	out[got] = 0;
	return got;
}

/* "0-3,8" into *set; what is no such list is left out. */
static void read_list(const char *s, cpu_set_t *set)
{
	CPU_ZERO(set);
	while (*s >= '0' && *s <= '9') {
		char *rest;
		unsigned long from = strtoul(s, &rest, 10), to = *rest == '-' ? strtoul(rest + 1, &rest, 10) : from;

		for (; from <= to && from < CPU_SETSIZE; from++)
			CPU_SET(from, set);
		s = *rest == ',' ? rest + 1 : "";
	}
}

static void list_of(const cpu_set_t *set, char *out, size_t n)
{
	size_t at = 0;

	*out = 0;
	for (int c = 0, first; c < CPU_SETSIZE && at < n; c++) {
		if (!CPU_ISSET(c, set))
			continue;
		for (first = c; c + 1 < CPU_SETSIZE && CPU_ISSET(c + 1, set);)
			c++;
		at += (size_t)snprintf(out + at, n - at, first == c ? "%s%d" : "%s%d-%d", at ? "," : "", first, c);
	}
}

/* The text behind "key:" in a status file, up to the line's end; "" if it is not there. */
static void field(const char *text, const char *key, char *out, size_t n)
{
	const char *s = strstr(text, key);

	s = s ? s + strlen(key) : "";
	s += strspn(s, " \t");
	snprintf(out, n, "%.*s", (int)strcspn(s, "\n"), s);
}

static bool meet(const cpu_set_t *a, const cpu_set_t *b)
{
	cpu_set_t both;

	CPU_AND(&both, a, b);
	return CPU_COUNT(&both) > 0;
}

/* ---- what is there ------------------------------------------------------------------------------- */

/* The index in m.node[] of the kernel's node, or -1. */
static int node_index(int number)
{
	for (int i = 0; i < m.n_nodes; i++)
		if (m.node[i].number == number)
			return i;
	return -1;
}

static void find_nodes(void)
{
	char text[4096];

	for (int k = 0; k < NODES; k++) {
		if (get(text, sizeof(text), "/sys/devices/system/node/node%d/cpulist", k) < 0)
			continue;
		m.node[m.n_nodes].number = k;
		read_list(text, &m.node[m.n_nodes++].cpus);
	}
}

static int by_bus(const void *a, const void *b)
{
	return strcmp(((const struct device *)a)->bus, ((const struct device *)b)->bus);
}

/* GPUs, network cards, disks and bridges, in the order of their addresses; NVIDIA's tools count so, too. */
static void find_devices(void)
{
	char path[300], text[64];
	struct dirent *e;
	DIR *d;

	snprintf(path, sizeof(path), "%.200s/sys/bus/pci/devices", m.at->root);
	d = opendir(path);
	while (d && m.n_devices < DEVICES && (e = readdir(d))) {
		struct device *v = &m.device[m.n_devices];
		long class;

		if (e->d_name[0] == '.' ||
		    get(text, sizeof(text), "/sys/bus/pci/devices/%.20s/class", e->d_name) <= 0)
			continue;
		class = strtol(text, NULL, 16) >> 16;
		if (class != NIC && class != DISK && class != DISPLAY && class != BRIDGE)
			continue;
		*v = (struct device){ .class = (int)class, .node = -1 };
		snprintf(v->bus, sizeof(v->bus), "%.15s", e->d_name);
		if (get(text, sizeof(text), "/sys/bus/pci/devices/%.20s/numa_node", e->d_name) > 0)
			v->node = node_index(atoi(text));
		v->gpu = class == DISPLAY &&
		         get(text, sizeof(text), "/sys/bus/pci/devices/%.20s/vendor", e->d_name) > 0 &&
		         strtol(text, NULL, 16) == NVIDIA && m.n_gpus < GPUS;
		m.n_gpus += v->gpu;
		m.n_devices++;
	}
	if (d)
		closedir(d);
	qsort(m.device, (size_t)m.n_devices, sizeof(m.device[0]), by_bus);
}

/* The CPUs on which a thread may run; none if there is no such thread. */
static void cpus_of(unsigned pid, const char *thread, cpu_set_t *set)
{
	char text[8192], list[1024];

	CPU_ZERO(set);
	if (get(text, sizeof(text), "/proc/%u/task/%.10s/status", pid, thread) <= 0)
		return;
	field(text, "\nCpus_allowed_list:", list, sizeof(list));
	read_list(list, set);
}

/* On the CPU its threads are on several nodes, so all of them count. */
static void find_daemon(void)
{
	char path[300], name[16];
	struct dirent *e;
	cpu_set_t set;
	DIR *d;

	CPU_ZERO(&m.daemon);
	snprintf(name, sizeof(name), "%u", m.at->pid);
	cpus_of(m.at->pid, name, &m.loop);
	snprintf(path, sizeof(path), "%.200s/proc/%u/task", m.at->root, m.at->pid);
	d = m.at->pid ? opendir(path) : NULL;
	while (d && (e = readdir(d))) {
		if (e->d_name[0] == '.')
			continue;
		cpus_of(m.at->pid, e->d_name, &set);
		CPU_OR(&m.daemon, &m.daemon, &set);
	}
	if (d)
		closedir(d);
}

/* ---- processors and memory ----------------------------------------------------------------------- */

static void nodes(struct finding *f)
{
	char text[8192], list[300], have[140] = "", word[32], total[64];
	size_t at = 0;

	for (int i = 0; i < m.n_nodes; i++) {
		list_of(&m.node[i].cpus, list, sizeof(list));
		at += (size_t)snprintf(have + at, at < sizeof(have) ? sizeof(have) - at : 0, "%s%.40s",
		                       i ? " | " : "", *list ? list : "none");
		get(text, sizeof(text), "/sys/devices/system/node/node%d/meminfo", m.node[i].number);
		snprintf(word, sizeof(word), "Node %d MemTotal:", m.node[i].number);
		field(text, word, total, sizeof(total));
		if (*text && *list && !atoll(total)) {
			machine_say(f, FINDING_HINT, "memory on each node",
			            "put memory modules into this socket's slots: "
			            "all that its CPUs read comes from another node",
			            "node %d has CPUs %.60s and no memory", m.node[i].number, list);
			return;
		}
	}
	if (m.n_nodes < 2)
		machine_say(f, FINDING_FINE, "", "", m.n_nodes ? "1 node" : "unknown");
	else
		machine_say(f, FINDING_FINE, "", "", "%d nodes, CPUs %.120s", m.n_nodes, have);
}

/* Pages of the pool lie on nodes; a node without any gives none to what is bound to it. */
static void huge_pages(struct finding *f)
{
	char text[64], have[120] = "", how[200];
	long n[NODES] = { 0 }, all = 0;
	int none = -1;
	size_t at = 0;

	for (int i = 0; i < m.n_nodes; i++) {
		get(text, sizeof(text), "/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/nr_hugepages",
		    m.node[i].number);
		n[i] = atol(text);
		all += n[i];
		at += (size_t)snprintf(have + at, at < sizeof(have) ? sizeof(have) - at : 0, "%s%ld", i ? ", " : "",
		                       n[i]);
	}
	for (int i = m.n_nodes - 1; i >= 0; i--)
		if (!n[i] && CPU_COUNT(&m.node[i].cpus))
			none = i;
	snprintf(how, sizeof(how),
	         "slipring setup --apply (echo %ld > /sys/devices/system/node/node%d/hugepages/"
	         "hugepages-2048kB/nr_hugepages)",
	         all / m.n_nodes > 0 ? all / m.n_nodes : 1, none < 0 ? 0 : m.node[none].number);
	machine_say(f, all && none >= 0 ? FINDING_HINT : FINDING_FINE, "some on each node", how,
	            "%.110s of 2048 KiB, by node", have);
}

/* ---- where the daemon is ------------------------------------------------------------------------- */

static void daemon_cpus(struct finding *f)
{
	char list[300], want[300], how[290];
	int gpu = -1;

	list_of(&m.daemon, list, sizeof(list));
	for (int i = 0, k = 0; m.at->cuda && i < m.n_devices; i++) {
		const struct device *v = &m.device[i];

		if (v->gpu && v->node >= 0 && !meet(&m.daemon, &m.node[v->node].cpus)) {
			gpu = k;
			list_of(&m.node[v->node].cpus, want, sizeof(want));
			snprintf(
				how, sizeof(how),
				"CPUAffinity=%.100s, NUMAPolicy=bind, NUMAMask=%d in the unit (numactl "
				"--cpunodebind=%d --membind=%d by hand): each batch crosses the link between the sockets now",
				want, m.node[v->node].number, m.node[v->node].number, m.node[v->node].number);
			break;
		}
		k += v->gpu;
	}
	if (gpu >= 0)
		machine_say(f, FINDING_HINT, "CPUs of its GPUs' node", how,
		            "CPUs %.60s: none is on the node of GPU %d", list, gpu);
	else
		machine_say(f, FINDING_FINE, m.at->cuda ? "CPUs of its GPUs' node" : "", "", "CPUs %.100s", list);
}

/* Where the daemon's pages lie, by numa_maps: "N0=12 .. kernelpagesize_kB=4" in each line. */
static void daemon_memory(struct finding *f)
{
	static char text[1 << 20];
	char have[120] = "";
	double kib[NODES] = { 0 }, all = 0, far = 0;
	size_t at = 0;

	if (get(text, sizeof(text), "/proc/%u/numa_maps", m.at->pid) <= 0) {
		machine_say(f, FINDING_FINE, "on its own nodes", "",
		            "unknown: only its own user can read its numa_maps");
		return;
	}
	for (char *line = text, *end; *line; line = end + (*end == '\n')) {
		char *size = strstr(line, "kernelpagesize_kB=");
		double page;

		end = line + strcspn(line, "\n");
		page = size && size < end ? atof(size + 18) : 4;
		for (char *s = line; (s = strstr(s, " N")) && s < end; s++) {
			char *rest;
			long k = strtol(s + 2, &rest, 10);
			int i = node_index((int)k);

			if (rest > s + 2 && *rest == '=' && i >= 0)
				kib[i] += page * atof(rest + 1);
		}
	}
	for (int i = 0; i < m.n_nodes; i++) {
		all += kib[i];
		far += meet(&m.daemon, &m.node[i].cpus) ? 0 : kib[i];
		at += (size_t)snprintf(have + at, at < sizeof(have) ? sizeof(have) - at : 0, "%s%.0f", i ? ", " : "",
		                       kib[i] / 1024);
	}
	machine_say(f, all > 0 && far > REMOTE * all ? FINDING_HINT : FINDING_FINE, "on its own nodes",
	            "it was taken before the daemon was bound, or its node was full: bind it from its start "
	            "(NUMAPolicy=bind, NUMAMask= in the unit, numactl --membind) and restart it",
	            "MiB by node: %.60s; %.0f %% far from its CPUs", have, all > 0 ? far / all * 100 : 0);
}

/* ---- GPUs ---------------------------------------------------------------------------------------- */

static void gpu_nodes(struct finding *f)
{
	char have[140] = "";
	size_t at = 0;
	int lost = 0;

	for (int i = 0, k = 0; i < m.n_devices; i++) {
		const struct device *v = &m.device[i];

		if (!v->gpu)
			continue;
		lost += v->node < 0;
		at += (size_t)snprintf(have + at, at < sizeof(have) ? sizeof(have) - at : 0,
		                       v->node < 0 ? "%sGPU %d on ?" : "%sGPU %d on %d", at ? ", " : "", k,
		                       v->node < 0 ? 0 : m.node[v->node].number);
		k++;
	}
	machine_say(f, lost ? FINDING_HINT : FINDING_FINE, "known",
	            "the firmware does not say on which node its slot is: "
	            "update it, or place the daemon by the board's manual",
	            "nodes: %.140s", have);
}

static const char *environment(const char *name, char *out, size_t n)
{
	static char text[1 << 17];
	ssize_t got = m.at->pid ? get(text, sizeof(text), "/proc/%u/environ", m.at->pid) : 0;

	*out = 0;
	for (char *s = text; got > 0 && s < text + got; s += strlen(s) + 1)
		if (!strncmp(s, name, strlen(name)) && s[strlen(name)] == '=')
			snprintf(out, n, "%s", s + strlen(name) + 1);
	return out;
}

/* The control word of a bridge's Access Control Services; 0: it has none; -1: only root can read it. */
static int acs_of(const struct device *v)
{
	unsigned char c[4096];
	ssize_t n = get((char *)c, sizeof(c), "/sys/bus/pci/devices/%.20s/config", v->bus);
	int at = 0x100;

	if (n < 0x104)
		return n > 0 ? -1 : 0;
	for (int i = 0; i < 64 && at >= 0x100 && at + 8 <= n; i++) {
		unsigned head = c[at] | c[at + 1] << 8 | c[at + 2] << 16 | (unsigned)c[at + 3] << 24;

		if ((head & 0xffff) == 0x000d)
			return c[at + 6] | c[at + 7] << 8;
		at = (int)(head >> 20);
	}
	return 0;
}

/* What sends a copy between two GPUs through the processors: bridges, an address translation, settings. */
static void gpu_p2p(struct finding *f)
{
	const int redirect = 0x04 | 0x08; /* P2P requests, completions */
	char off[16], level[16], kind[32];
	bool hidden = false;

	environment("NCCL_P2P_DISABLE", off, sizeof(off));
	environment("NCCL_P2P_LEVEL", level, sizeof(level));
	if (atoi(off) || !strcmp(level, "LOC") || !strcmp(level, "0")) {
		machine_say(f, FINDING_HINT, "direct copies",
		            "take it out of the unit's Environment=: without it NCCL copies "
		            "through host memory",
		            "the daemon has NCCL_P2P_%s", atoi(off) ? "DISABLE=1" : "LEVEL=LOC");
		return;
	}
	for (int i = 0; i < m.n_devices; i++) {
		const struct device *v = &m.device[i];
		int acs = v->class == BRIDGE ? acs_of(v) : 0;

		hidden |= acs < 0;
		if (acs > 0 && acs & redirect) {
			char how[200];

			snprintf(how, sizeof(how),
			         "turn ACS off in the firmware, or on a machine without guests: setpci -s %s "
			         "ECAP_ACS+0x6.w=0000 (after each boot)",
			         v->bus);
			machine_say(f, FINDING_HINT, "direct copies", how,
			            "bridge %s sends copies between GPUs up to the CPU "
			            "(ACS 0x%02x)",
			            v->bus, (unsigned)acs);
			return;
		}
		if (v->gpu && get(kind, sizeof(kind), "/sys/bus/pci/devices/%.20s/iommu_group/type", v->bus) > 0 &&
		    !strncmp(kind, "DMA", 3)) {
			machine_say(f, FINDING_HINT, "direct copies",
			            "kernel parameter iommu=pt: addresses of devices are "
			            "translated now, and so copies between GPUs go through the CPU, or fail",
			            "the IOMMU translates GPU %s (%.*s)", v->bus, (int)strcspn(kind, "\n"), kind);
			return;
		}
	}
	machine_say(f, FINDING_FINE, "direct copies", "",
	            hidden ? "no IOMMU or setting is in the way; bridges: only root "
	                     "can look"
	                   : "no bridge, IOMMU or setting is in the way");
}

/* ---- interrupts ---------------------------------------------------------------------------------- */

static int device_of(int irq)
{
	char path[300];

	for (int i = 0; i < m.n_devices; i++) {
		snprintf(path, sizeof(path), "%.200s/sys/bus/pci/devices/%s/msi_irqs/%d", m.at->root, m.device[i].bus,
		         irq);
		if (access(path, F_OK) == 0)
			return i;
	}
	return -1;
}

static const char *kind_of(const struct device *v)
{
	return v->gpu ? "GPU" : v->class == NIC ? "network card" : v->class == DISK ? "disk" : "device";
}

/* How often CPU `cpu` served interrupt `irq`, by /proc/interrupts. */
static long long served(const char *text, int irq, int cpu)
{
	char head[16], name[16], *line, *s;
	int column = -1, at = 0;

	snprintf(name, sizeof(name), "CPU%d", cpu);
	for (const char *t = text; *t && *t != '\n'; at++) {
		size_t n;

		t += strspn(t, " ");
		n = strcspn(t, " \n");
		if (n == strlen(name) && !strncmp(t, name, n))
			column = at;
		t += n + strspn(t + n, " ");
	}
	snprintf(head, sizeof(head), "%d:", irq);
	for (line = strchr(text, '\n'); column >= 0 && line; line = strchr(line, '\n')) {
		line += 1 + strspn(line + 1, " ");
		if (strncmp(line, head, strlen(head)))
			continue;
		for (s = line + strlen(head); column-- > 0;)
			strtoll(s, &s, 10);
		return strtoll(s, NULL, 10);
	}
	return 0;
}

/* Interrupts of cards that CPUs of other nodes serve, and any on the only CPU of the daemon's thread. */
static void interrupts(struct finding *f)
{
	static char text[1 << 18];
	char path[300], list[300], how[290];
	int far[8], n_far = 0, crowd = -1, alone = -1;
	const struct device *whose = NULL;
	struct dirent *e;
	DIR *d;

	for (int c = 0; CPU_COUNT(&m.loop) == 1 && c < CPU_SETSIZE; c++)
		if (CPU_ISSET(c, &m.loop))
			alone = c;
	get(text, sizeof(text), "/proc/interrupts");
	snprintf(path, sizeof(path), "%.200s/proc/irq", m.at->root);
	d = opendir(path);
	while (d && (e = readdir(d))) {
		int irq = atoi(e->d_name), v = device_of(irq);
		cpu_set_t cpus;

		if (!irq || (get(list, sizeof(list), "/proc/irq/%d/effective_affinity_list", irq) <= 1 &&
		             get(list, sizeof(list), "/proc/irq/%d/smp_affinity_list", irq) <= 1))
			continue;
		read_list(list, &cpus);
		if (alone >= 0 && CPU_ISSET(alone, &cpus) && served(text, irq, alone) > 0)
			crowd = crowd < 0 || irq < crowd ? irq : crowd;
		if (v >= 0 && m.device[v].node >= 0 && n_far < 8 && CPU_COUNT(&cpus) &&
		    !meet(&cpus, &m.node[m.device[v].node].cpus) && (!whose || whose == &m.device[v])) {
			whose = &m.device[v];
			far[n_far++] = irq;
		}
	}
	if (d)
		closedir(d);
	if (crowd >= 0) {
		snprintf(how, sizeof(how),
		         "keep it off that CPU: echo LIST-OF-OTHERS > /proc/irq/%d/smp_affinity_list, and "
		         "IRQBALANCE_BANNED_CPULIST=%d where irqbalance runs",
		         crowd, alone);
		machine_say(f, FINDING_HINT, "not on the daemon's CPU", how,
		            "interrupt %d is served on CPU %d, the daemon's "
		            "only one",
		            crowd, alone);
	} else if (whose) {
		char irqs[100] = "";

		for (int i = 0; i < n_far; i++)
			snprintf(irqs + strlen(irqs), sizeof(irqs) - strlen(irqs), "%s%d", i ? " " : "", far[i]);
		list_of(&m.node[whose->node].cpus, list, sizeof(list));
		snprintf(how, sizeof(how),
		         "for i in %.60s; do echo %.80s > /proc/irq/$i/smp_affinity_list; done (as root; "
		         "irqbalance undoes it: IRQBALANCE_BANNED_INTERRUPTS)",
		         irqs, list);
		machine_say(f, FINDING_HINT, "on the card's own node", how,
		            "%d of %s %s, on node %d, are served elsewhere", n_far, kind_of(whose), whose->bus,
		            m.node[whose->node].number);
	} else {
		machine_say(f, FINDING_FINE, m.n_nodes > 1 ? "on the card's own node" : "not on the daemon's CPU", "",
		            d ? "where they should be" : "unknown");
	}
}

/* ---- all ----------------------------------------------------------------------------------------- */

int machine_nodes(struct finding *out, const struct machine_at *at)
{
	bool several, daemon;
	int n = 0;

	memset(&m, 0, sizeof(m));
	m.at = at;
	find_nodes();
	find_devices();
	find_daemon();
	several = m.n_nodes > 1;
	daemon = several && CPU_COUNT(&m.daemon);
	const struct {
		const char *what;
		void (*look)(struct finding *);
		bool shown;
	} rows[] = {
		{ "NUMA", nodes, true },
		{ "pages by node", huge_pages, several },
		{ "GPUs' nodes", gpu_nodes, several && m.n_gpus },
		{ "daemon's CPUs", daemon_cpus, daemon },
		{ "daemon's pages", daemon_memory, daemon },
		{ "GPU copies", gpu_p2p, m.n_gpus > 1 },
		{ "interrupts", interrupts, true },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (rows[i].shown) {
			out[n] = (struct finding){ .what = rows[i].what };
			rows[i].look(&out[n++]);
		}
	return n;
}
