/* machine_gpu.c - checks GPUs by NVIDIA's library and the kernel's log. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/backend.h"
#include "machine.h"
#include "nvml.h"

static void driver(struct finding *f, const struct nvml_gpu *gpu, int n)
{
	char err[240] = "";
	bool there = sr_backend_find("cuda", err, sizeof(err));

	machine_say(f, there ? FINDING_FINE : FINDING_HINT, "slipring-cuda.so", err, "%d x %s, driver %s", n,
	            *gpu[0].name ? gpu[0].name : "a GPU without a name",
	            *nvml_driver() ? nvml_driver() : "unknown");
}

static void persistence(struct finding *f, const struct nvml_gpu *gpu, int n)
{
	int off = 0;

	for (int i = 0; i < n; i++)
		off += gpu[i].persistence == 0;
	machine_say(f, off ? FINDING_HINT : FINDING_FINE, "on", "nvidia-smi -pm 1, or nvidia-persistenced: "
	            "without it, the driver takes seconds to start again after the GPU was unused",
	            gpu[0].persistence < 0 ? "unknown" : off ? "off on %d of %d" : "on", off, n);
}

/* Report the clocks of the first GPU that is held back, or of the first.  Being at the power limit is normal
 * under load; it is reported without advice. */
static void clocks(struct finding *f, const struct nvml_gpu *gpu, int n)
{
	const int amiss = NVML_HOT | NVML_BRAKE | NVML_SLOWED;
	char why[80];
	int i = 0;

	while (i < n && !(gpu[i].held_back > 0 && gpu[i].held_back & amiss))
		i++;
	if (i < n && gpu[i].sm_mhz < 0)
		machine_say(f, FINDING_HINT, "not held back", "nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE",
		            "GPU %d is held back by %s", i, nvml_held_back(gpu[i].held_back, why, sizeof(why)));
	else if (i < n)
		machine_say(f, FINDING_HINT, "not held back", gpu[i].held_back & NVML_HOT ? "it is too hot: air, "
		            "dust, fans" : "it gets too little power, or is too hot: cables, supply, air; "
		            "nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE",
		            "GPU %d runs at %d of %d MHz, %d C, held back by %s", i, gpu[i].sm_mhz,
		            gpu[i].sm_mhz_most, gpu[i].celsius,
		            nvml_held_back(gpu[i].held_back, why, sizeof(why)));
	else if (gpu[0].sm_mhz < 0 || gpu[0].sm_mhz_most < 0)
		machine_say(f, FINDING_FINE, "not held back", "", "unknown");
	else
		machine_say(f, FINDING_FINE, "not held back", "", "%d of %d MHz, %d C%s", gpu[0].sm_mhz,
		            gpu[0].sm_mhz_most, gpu[0].celsius, gpu[0].held_back > 0 ? ", at its power limit" : "");
}

/* Report the worst of all GPUs: an uncorrected error, a row that cannot be replaced, or one that will be. */
static void memory_errors(struct finding *f, const struct nvml_gpu *gpu, int n)
{
	int bad = -1, worn = -1, known = -1;

	for (int i = n - 1; i >= 0; i--) {
		if (gpu[i].uncorrected > 0 || gpu[i].remap_failed > 0)
			bad = i;
		if (gpu[i].remap_pending > 0)
			worn = i;
		if (gpu[i].ecc >= 0)
			known = i;
	}
	if (bad >= 0)
		machine_say(f, FINDING_WRONG, "none", "answers may have been wrong: stop what runs on it, reset it "
		            "(nvidia-smi -r) or reboot; if it comes back, replace the card",
		            "GPU %d: %lld uncorrected%s", bad, (long long)(gpu[bad].uncorrected > 0 ?
		            gpu[bad].uncorrected : 0), gpu[bad].remap_failed > 0 ? ", and a row that cannot be "
		            "replaced" : "");
	else if (worn >= 0)
		machine_say(f, FINDING_HINT, "none", "reset it when nothing runs on it: nvidia-smi -r, or reboot",
		            "GPU %d: a row of memory waits to be replaced", worn);
	else if (known < 0)
		machine_say(f, FINDING_FINE, "none", "", "unknown: it has no ECC, or does not tell");
	else
		machine_say(f, FINDING_FINE, "none", "", gpu[known].ecc ? "none uncorrected, %lld corrected" :
		            "ECC is off", (long long)(gpu[known].corrected > 0 ? gpu[known].corrected : 0));
}

/* An idle card lowers its link's generation, so that is judged only under load. */
static void pcie(struct finding *f, const struct nvml_gpu *gpu, int n)
{
	for (int i = 0; i < n; i++) {
		const struct nvml_gpu *g = &gpu[i];
		bool narrow = g->lanes > 0 && g->lanes_most > 0 && g->lanes < g->lanes_most;
		bool slow = g->level == 0 && g->busy_percent > 0 && g->pcie > 0 && g->pcie_most > 0 &&
			g->pcie < g->pcie_most;

		if (!narrow && !slow)
			continue;
		machine_say(f, FINDING_HINT, "the card's best", "use another slot or change the board's settings; "
		            "loading and the host tier take longer, decoding does not",
		            "GPU %d: generation %d of %d, %d of %d lanes", i, g->pcie, g->pcie_most, g->lanes,
		            g->lanes_most);
		return;
	}
	if (gpu[0].lanes < 0 || gpu[0].pcie_most < 0)
		machine_say(f, FINDING_FINE, "the card's best", "", "unknown");
	else
		machine_say(f, FINDING_FINE, "the card's best", "", "%d lanes, generation %d%s", gpu[0].lanes,
		            gpu[0].pcie_most, gpu[0].pcie < gpu[0].pcie_most ? " when it works" : "");
}

/* Several GPUs: how they reach each other decides between replicas and ranks. */
static void between(struct finding *f, const struct nvml_gpu *gpu, int n)
{
	int least = n > 1 ? gpu[0].links : 0;

	for (int i = 1; i < n; i++)
		least = gpu[i].links < least ? gpu[i].links : least;
	if (n < 2)
		machine_say(f, FINDING_FINE, "NVLink among several", "", "one GPU");
	else if (least == NVML_UNKNOWN)
		machine_say(f, FINDING_FINE, "NVLink among several", "", "unknown");
	else if (least > 0)
		machine_say(f, FINDING_FINE, "NVLink among several", "", "%d NVLinks up on each", least);
	else
		machine_say(f, FINDING_HINT, "NVLink among several", "over PCIe take --data-parallel-size where one "
		            "GPU holds the model; --tensor-parallel-size is for what none holds, and best with 2",
		            "no NVLink on at least one of %d GPUs", n);
}

static void mig(struct finding *f, const struct nvml_gpu *gpu, int n)
{
	int on = 0;

	for (int i = 0; i < n; i++)
		on += gpu[i].mig > 0;
	machine_say(f, on ? FINDING_HINT : FINDING_FINE, "off, or meant", "each part has only its share of "
	            "memory and processors; nvidia-smi -mig 0 undoes the split",
	            on ? "on for %d of %d" : gpu[0].mig < 0 ?
	            "this GPU does not have it" : "off", on, n);
}

static bool is_ours(unsigned pid)
{
	char path[64], name[32] = "";
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/comm", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		ssize_t got = read(fd, name, sizeof(name) - 1);

		name[got > 0 ? got : 0] = 0;
		close(fd);
	}
	return !strncmp(name, "slipringd", 9);
}

/* Other programs on the GPU take time, and memory that the plan needs. */
static void programs(struct finding *f, const struct nvml_gpu *gpu, int n)
{
	for (int i = 0; i < n; i++)
		for (int p = 0; p < gpu[i].n_programs && p < NVML_PROGRAMS; p++) {
			if (is_ours(gpu[i].program[p].pid))
				continue;
			machine_say(f, FINDING_HINT, "none but the daemon", "it takes memory and time from the daemon; "
			            "nvidia-smi names it", "GPU %d: process %u has %.1f GiB; %d in all", i,
			            gpu[i].program[p].pid, gpu[i].program[p].bytes > 0 ?
			            (double)gpu[i].program[p].bytes / 0x1p30 : 0, gpu[i].n_programs);
			return;
		}
	machine_say(f, FINDING_FINE, "none but the daemon", "", gpu[0].n_programs < 0 ? "unknown" : "none");
}

/* Report the driver's error numbers from what is left of the kernel's log. */
static void errors(struct finding *f, const struct nvml_gpu *gpu, int n_gpus)
{
	int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC), n = 0, last = 0;
	char line[8192];
	ssize_t got;

	(void)gpu, (void)n_gpus;
	if (fd < 0) {
		machine_say(f, FINDING_FINE, "no Xid", "", "the kernel's log cannot be read (%s): dmesg | grep Xid",
		            strerror(errno));
		return;
	}
	while ((got = read(fd, line, sizeof(line) - 1)) > 0 || (got < 0 && errno == EPIPE)) {
		const char *xid, *number;

		if (got < 0)
			continue;             /* lines that were overwritten while we read */
		line[got] = 0;
		if (!(xid = strstr(line, "NVRM: Xid")) || !(number = strstr(xid, "): ")))
			continue;
		n++;
		last = atoi(number + 3);
	}
	close(fd);
	if (n)
		machine_say(f, FINDING_HINT, "no Xid", "NVIDIA's list of Xid errors tells program, driver and "
		            "hardware apart; 48, 63, 74, 79, 94 and 95 are hardware",
		            "%d errors of the driver in the kernel's log, Xid %d the last", n, last);
	else
		machine_say(f, FINDING_FINE, "no Xid", "", "none in the kernel's log");
}

int machine_gpus(struct finding *out)
{
	static const struct {
		const char *what;
		void (*look)(struct finding *, const struct nvml_gpu *, int);
	} of[] = {
		{ "GPU", driver }, { "GPU persistence", persistence }, { "GPU clocks", clocks },
		{ "GPU memory", memory_errors }, { "GPU link", pcie }, { "GPU NVLink", between }, { "GPU MIG", mig },
		{ "GPU programs", programs }, { "GPU errors", errors },
	};
	const int rows = (int)(sizeof(of) / sizeof(of[0]));
	struct nvml_gpu gpu[NVML_MOST];
	int n = nvml_look(gpu);

	for (int i = 0; i < rows; i++)
		out[i] = (struct finding){ .what = of[i].what };
	if (n <= 0) {
		machine_say(out, n == -EIO ? FINDING_HINT : FINDING_FINE, "none for --device cpu", "the library is "
		            "there but does not answer: check that the driver is loaded (nvidia-smi) and that this "
		            "container may use the device", "%s", n == -EIO ? "NVIDIA's library does not "
		                                                              "answer" : "none");
		return 1;
	}
	for (int i = 0; i < rows; i++)
		of[i].look(&out[i], gpu, n);
	return rows;
}
