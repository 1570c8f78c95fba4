/* nvml.h - what NVIDIA's management library says of GPUs, if it is on this machine: it is opened at
 * run time, so nothing depends on it. */
#ifndef NVML_H
#define NVML_H

#include <stdint.h>

#define NVML_MOST 16

struct nvml_gpu {
	char name[96];
	uint64_t memory_used, memory_total;    /* bytes */
	unsigned busy_percent, power_mw, celsius; /* busy: of the time, not of what it could do */
	int persistence;               /* 0 off, 1 on, -1 unknown */
	unsigned sm_mhz, sm_mhz_most;  /* 0: unknown */
	enum nvml_held { NVML_FREE, NVML_HOT, NVML_POWER } held_back;
};

/* How many GPUs are in gpu[]; 0: none; -ENOENT there is no such library; -EIO it does not answer
 * (no driver, mostly).  May be called again and again. */
int nvml_look(struct nvml_gpu gpu[NVML_MOST]);

/* The driver's version, "" if there is none. */
const char *nvml_driver(void);

#endif
