/* LINK: tools/machine/machine_nodes.c tools/machine/machine_finding.c */
/* test_machine.c - what slipring doctor says of made-up machines: nodes, huge pages, GPUs, bridges, interrupts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/machine/machine_nodes.h"

static char root[64];
static struct finding row[MACHINE_NODES];
static int n_rows;

static void put_bytes(const char *name, const void *p, size_t n)
{
	char path[300];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", root, name);
	for (char *s = path + strlen(root) + 1; (s = strchr(s, '/')); s++) {
		*s = 0;
		assert_true(mkdir(path, 0755) == 0 || errno == EEXIST);
		*s = '/';
	}
	f = fopen(path, "w");
	assert_non_null(f);
	assert_int_equal(fwrite(p, 1, n, f), n);
	fclose(f);
}

static void put(const char *name, const char *text)
{
	put_bytes(name, text, strlen(text));
}

static void device(const char *bus, const char *class, const char *vendor, const char *node)
{
	char name[100];

	snprintf(name, sizeof(name), "sys/bus/pci/devices/%s/class", bus);
	put(name, class);
	snprintf(name, sizeof(name), "sys/bus/pci/devices/%s/vendor", bus);
	put(name, vendor);
	snprintf(name, sizeof(name), "sys/bus/pci/devices/%s/numa_node", bus);
	put(name, node);
}

#define NODE "sys/devices/system/node/"
#define POOL "/hugepages/hugepages-2048kB/nr_hugepages"

/* Two nodes of four CPUs; a GPU and a network card on node 1, a GPU on node 0; the daemon on node 1. */
static int good_machine(void **state)
{
	(void)state;
	strcpy(root, "/tmp/test-machine-XXXXXX");
	assert_non_null(mkdtemp(root));
	put(NODE "node0/cpulist", "0-3\n");
	put(NODE "node1/cpulist", "4-7\n");
	put(NODE "node0/meminfo", "Node 0 MemTotal:       16000 kB\n");
	put(NODE "node1/meminfo", "Node 1 MemTotal:       16000 kB\n");
	put(NODE "node0" POOL, "64\n");
	put(NODE "node1" POOL, "64\n");
	device("0000:01:00.0", "0x030200\n", "0x10de\n", "0\n");
	device("0000:81:00.0", "0x030200\n", "0x10de\n", "1\n");
	device("0000:82:00.0", "0x020000\n", "0x15b3\n", "1\n");
	put("sys/bus/pci/devices/0000:82:00.0/msi_irqs/40", "msix\n");
	put("sys/bus/pci/devices/0000:82:00.0/msi_irqs/41", "msix\n");
	put("proc/irq/40/effective_affinity_list", "5\n");
	put("proc/irq/41/effective_affinity_list", "6-7\n");
	put("proc/interrupts", "           CPU4       CPU5\n  40:          0       1000  PCI-MSIX eth0-0\n 41:  0 0 eth0-1\n");
	put("proc/77/task/77/status", "Name:\tslipringd\nCpus_allowed:\tf0\nCpus_allowed_list:\t0-1\n");
	put("proc/77/task/78/status", "Name:\tslipringd\nCpus_allowed:\tf0\nCpus_allowed_list:\t4-7\n");
	put("proc/77/numa_maps", "7f00 default anon=100 dirty=100 N0=20 N1=80 kernelpagesize_kB=4\n");
	put("proc/77/environ", "HOME=/");
	return 0;
}

static int tear_down(void **state)
{
	char command[100];

	(void)state;
	snprintf(command, sizeof(command), "rm -r %s", root);
	return system(command);
}

static const struct finding *look(const char *what)
{
	n_rows = machine_nodes(row, &(struct machine_at){ root, 77, true });
	assert_true(n_rows <= MACHINE_NODES);
	for (int i = 0; i < n_rows; i++)
		if (!strcmp(row[i].what, what))
			return &row[i];
	return NULL;
}

static void says(const char *what, enum finding_level level, const char *have, const char *how)
{
	const struct finding *f = look(what);

	assert_non_null(f);
	if (f->level != level || !strstr(f->have, have) || !strstr(f->how, how) || (level != FINDING_FINE) != !!*f->how)
		fail_msg("%s: level %d, \"%s\", \"%s\"", what, f->level, f->have, f->how);
}

static void test_good(void **state)
{
	(void)state;
	says("NUMA", FINDING_FINE, "2 nodes, CPUs 0-3 | 4-7", "");
	says("pages by node", FINDING_FINE, "64, 64", "");
	says("GPUs' nodes", FINDING_FINE, "GPU 0 on 0, GPU 1 on 1", "");
	says("daemon's CPUs", FINDING_FINE, "CPUs 0-1,4-7", "");
	says("daemon's pages", FINDING_FINE, "0 % far", "");
	says("GPU copies", FINDING_FINE, "no bridge", "");
	says("interrupts", FINDING_FINE, "where they should be", "");
	assert_int_equal(n_rows, 7);
}

static void test_memory(void **state)
{
	(void)state;
	put(NODE "node1" POOL, "0\n");
	says("pages by node", FINDING_HINT, "64, 0", "echo 32 > /sys/devices/system/node/node1/hugepages/");
	put(NODE "node1/meminfo", "Node 1 MemTotal:       0 kB\n");
	says("NUMA", FINDING_HINT, "node 1 has CPUs 4-7 and no memory", "memory modules");
	put("proc/77/task/78/status", "Name:\tslipringd\nCpus_allowed_list:\t0-3\n");
	says("daemon's CPUs", FINDING_HINT, "none is on the node of GPU 1", "CPUAffinity=4-7, NUMAPolicy=bind, NUMAMask=1");
	says("daemon's pages", FINDING_HINT, "80 % far", "NUMAPolicy=bind");
}

static void test_interrupts(void **state)
{
	(void)state;
	put("proc/irq/40/effective_affinity_list", "2\n");
	says("interrupts", FINDING_HINT, "1 of network card 0000:82:00.0, on node 1",
	     "for i in 40; do echo 4-7 > /proc/irq/$i/smp_affinity_list");
	put("proc/irq/40/effective_affinity_list", "5\n");
	put("proc/77/task/77/status", "Name:\tslipringd\nCpus_allowed_list:\t5\n");
	says("interrupts", FINDING_HINT, "interrupt 40 is served on CPU 5", "IRQBALANCE_BANNED_CPULIST=5");
	put("proc/interrupts", "           CPU4       CPU5\n  40:       1000          0  PCI-MSIX eth0-0\n");
	says("interrupts", FINDING_FINE, "where they should be", "");
}

static void test_copies(void **state)
{
	unsigned char config[4096] = { 0 };

	(void)state;
	put("sys/bus/pci/devices/0000:81:00.0/iommu_group/type", "DMA-FQ\n");
	says("GPU copies", FINDING_HINT, "the IOMMU translates GPU 0000:81:00.0 (DMA-FQ)", "iommu=pt");
	put("sys/bus/pci/devices/0000:81:00.0/iommu_group/type", "identity\n");
	says("GPU copies", FINDING_FINE, "", "");
	device("0000:80:01.0", "0x060400\n", "0x8086\n", "1\n");
	config[0x100] = 0x01, config[0x103] = 0x14;          /* error reporting, then at 0x140: */
	config[0x140] = 0x0d, config[0x146] = 0x1d;          /* access control: redirected */
	put_bytes("sys/bus/pci/devices/0000:80:01.0/config", config, sizeof(config));
	says("GPU copies", FINDING_HINT, "bridge 0000:80:01.0 sends copies", "setpci -s 0000:80:01.0 ECAP_ACS+0x6.w=0000");
	config[0x146] = 0x11;
	put_bytes("sys/bus/pci/devices/0000:80:01.0/config", config, sizeof(config));
	says("GPU copies", FINDING_FINE, "no bridge", "");
	put_bytes("sys/bus/pci/devices/0000:80:01.0/config", config, 64);
	says("GPU copies", FINDING_FINE, "only root can look", "");
	put_bytes("proc/77/environ", "HOME=/\0NCCL_P2P_DISABLE=1", 26);
	says("GPU copies", FINDING_HINT, "the daemon has NCCL_P2P_DISABLE=1", "Environment=");
}

/* One node, no card, a machine that shows nothing: no line that makes no sense there. */
static void test_small(void **state)
{
	(void)state;
	assert_int_equal(tear_down(NULL), 0);
	assert_int_equal(mkdir(root, 0755), 0);
	says("NUMA", FINDING_FINE, "unknown", "");
	assert_int_equal(n_rows, 2);
	put(NODE "node0/cpulist", "0-1\n");
	says("NUMA", FINDING_FINE, "1 node", "");
	device("0000:01:00.0", "0x030000\n", "0x10de\n", "-1\n");
	assert_null(look("GPUs' nodes"));
	assert_int_equal(n_rows, 2);
	put(NODE "node1/cpulist", "\n");
	says("GPUs' nodes", FINDING_HINT, "GPU 0 on ?", "firmware");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_good, good_machine, tear_down),
		cmocka_unit_test_setup_teardown(test_memory, good_machine, tear_down),
		cmocka_unit_test_setup_teardown(test_interrupts, good_machine, tear_down),
		cmocka_unit_test_setup_teardown(test_copies, good_machine, tear_down),
		cmocka_unit_test_setup_teardown(test_small, good_machine, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
