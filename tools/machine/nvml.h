/* nvml.h - what NVIDIA's management library says of GPUs, if it is on this machine: it is opened at
 * run time, so nothing depends on it.  What a library, a driver or a device does not tell is unknown:
 * NVML_UNKNOWN, or an empty name. */
#ifndef NVML_H
#define NVML_H

#include <stddef.h>
#include <stdint.h>

#define NVML_MOST    16
#define NVML_PROGRAMS 8
#define NVML_UNKNOWN (-1)

/* Why clocks are below what they could be, as bits.  Idle and set by hand is no reason here. */
enum {
	NVML_CAPPED = 1,               /* the power limit that was set: how most GPUs run under load */
	NVML_HOT = 2,                  /* too hot: the driver or the hardware slows it down */
	NVML_BRAKE = 4,                /* the supply says that there is too little power */
	NVML_SLOWED = 8,               /* the hardware slows it down, for heat or power */
};

struct nvml_gpu {
	char name[96], bus[32];        /* bus: the PCI address */
	int64_t memory_used, memory_total; /* bytes */
	int busy_percent;              /* of the time, not of what it could do */
	int power_mw, power_limit_mw, celsius;
	int sm_mhz, sm_mhz_most, memory_mhz, memory_mhz_most;
	int held_back;                 /* NVML_CAPPED | .. */
	int persistence, mig;          /* 0 off, 1 on */
	int level;                     /* performance: 0 most, 15 least */
	int ecc;                       /* 0 off, 1 on; then since the driver was loaded: */
	int64_t corrected, uncorrected;
	int remap_pending, remap_failed; /* rows of memory to be replaced: at the next reset; not possible */
	int lanes, lanes_most, pcie, pcie_most; /* of its link: width, generation */
	int n_programs;                /* that compute on it, as far as we may see them; then the first: */
	struct { unsigned pid; int64_t bytes; } program[NVML_PROGRAMS];
};

/* How many GPUs are in gpu[]; 0: none; -ENOENT there is no such library; -EIO it does not answer
 * (no driver, mostly).  May be called again and again. */
int nvml_look(struct nvml_gpu gpu[NVML_MOST]);

/* The driver's version, "" if there is none. */
const char *nvml_driver(void);

/* "heat, the power limit", of bits of held_back; "" for none or unknown. */
const char *nvml_held_back(int bits, char *out, size_t n);

#endif
