/* missing.c - see missing.h. */
#include "missing.h"

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

static bool there(const char *root, const char *path)
{
	char whole[256];

	snprintf(whole, sizeof(whole), "%s%s", root, path);
	return access(whole, F_OK) == 0;
}

void gpu_missing(char *to, size_t n, const char *root, int driver, int runtime)
{
	if (!there(root, "/proc/driver/nvidia/version") && !there(root, "/dev/nvidiactl"))
		snprintf(to, n, "no NVIDIA driver is loaded here");
	else if (!there(root, "/dev/nvidiactl"))
		snprintf(to, n, "/dev/nvidiactl is not there: a container must be given the GPU (docker run --gpus all)");
	else if (!there(root, "/dev/nvidia-uvm"))
		snprintf(to, n, "/dev/nvidia-uvm is not there: \"nvidia-modprobe -u\" on the host makes it, and a container "
			"must be given it, too (docker run --gpus all)");
	else if (driver && driver < runtime)
		snprintf(to, n, "the driver is for CUDA %d.%d and this build for %d.%d: take a newer driver, or build with an "
			"older toolkit", driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
	else
		snprintf(to, n, "the driver is there: is a GPU given by CUDA_VISIBLE_DEVICES, and if MIG is on, has it an instance");
}
