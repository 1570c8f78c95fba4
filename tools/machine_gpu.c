/* machine_gpu.c - GPUs, as NVIDIA's library and the kernel's log tell of them. */
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
	            gpu[0].name, nvml_driver());
}

static void persistence(struct finding *f, const struct nvml_gpu *gpu, int n)
{
	int off = 0;

	for (int i = 0; i < n; i++)
		off += gpu[i].persistence == 0;
	machine_say(f, off ? FINDING_HINT : FINDING_FINE, "on", "nvidia-smi -pm 1, or nvidia-persistenced: "
	            "without it the driver is set up again, for seconds, whenever nobody has used the GPU",
	            gpu[0].persistence < 0 ? "unknown" : off ? "off on %d of %d" : "on", off, n);
}

/* Of the first that is held back, or of the first. */
static void clocks(struct finding *f, const struct nvml_gpu *gpu, int n)
{
	int i = 0;

	while (i < n && !gpu[i].held_back)
		i++;
	if (i < n)
		machine_say(f, FINDING_HINT, "not held back", gpu[i].held_back == NVML_HOT ? "it is too hot: air, "
		            "dust, fans" : "it gets too little power: cables, supply, nvidia-smi -q -d POWER",
		            "GPU %d runs at %u of %u MHz, %u C, held back for %s", i, gpu[i].sm_mhz,
		            gpu[i].sm_mhz_most, gpu[i].celsius, gpu[i].held_back == NVML_HOT ? "heat" : "power");
	else if (!gpu[0].sm_mhz_most)
		machine_say(f, FINDING_FINE, "not held back", "", "unknown");
	else
		machine_say(f, FINDING_FINE, "not held back", "", "%u of %u MHz, %u C", gpu[0].sm_mhz,
		            gpu[0].sm_mhz_most, gpu[0].celsius);
}

/* The driver's error numbers, by what the kernel still has of its log. */
static void errors(struct finding *f)
{
	int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC), n = 0, last = 0;
	char line[8192];
	ssize_t got;

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
		machine_say(f, FINDING_HINT, "no Xid", "NVIDIA's list of Xid errors says whether it was the program, "
		            "the driver or the hardware; 48, 63, 74, 79, 94, 95 are hardware",
		            "%d errors of the driver in the kernel's log, Xid %d the last", n, last);
	else
		machine_say(f, FINDING_FINE, "no Xid", "", "none in the kernel's log");
}

int machine_gpus(struct finding *out)
{
	static const char *const what[] = { "GPU", "GPU persistence", "GPU clocks", "GPU errors" };
	struct nvml_gpu gpu[NVML_MOST];
	int n = nvml_look(gpu);

	for (int i = 0; i < 4; i++)
		out[i] = (struct finding){ .what = what[i] };
	if (n <= 0) {
		machine_say(out, n == -EIO ? FINDING_HINT : FINDING_FINE, "none for --device cpu", "the library is "
		            "there and does not answer: is the driver loaded (nvidia-smi), and the device allowed in "
		            "this container?", "%s", n == -EIO ? "NVIDIA's library, but no answer" : "none");
		return 1;
	}
	driver(&out[0], gpu, n);
	persistence(&out[1], gpu, n);
	clocks(&out[2], gpu, n);
	errors(&out[3]);
	return 4;
}
