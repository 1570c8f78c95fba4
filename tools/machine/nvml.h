/* nvml.h - reads the state of GPUs from NVIDIA's management library, if this machine has it.  The library is
 * opened at run time, so nothing depends on it.  A value that library, driver or device do not report is
 * NVML_UNKNOWN, or an empty name. */
#ifndef NVML_H
#define NVML_H

#include <stddef.h>
#include <stdint.h>

#define NVML_MOST    16
#define NVML_PROGRAMS 8
#define NVML_UNKNOWN (-1)

/* Bits: why clocks are below their maximum.  Being idle and clocks set by hand do not count. */
enum {
	NVML_CAPPED = 1,               /* at the power limit that was set, as most GPUs are under load */
	NVML_HOT = 2,                  /* too hot, so driver or hardware slow it down */
	NVML_BRAKE = 4,                /* the power supply reports too little power */
	NVML_SLOWED = 8,               /* the hardware slows it down because of heat or power */
};

struct nvml_gpu {
	char name[96], bus[32];        /* bus: the PCI address */
	int64_t memory_used, memory_total; /* bytes */
	int busy_percent;              /* share of the time, not of its capacity */
	int power_mw, power_limit_mw, celsius;
	int sm_mhz, sm_mhz_most, memory_mhz, memory_mhz_most;
	int held_back;                 /* NVML_CAPPED | .. */
	int persistence, mig;          /* 0 off, 1 on */
	int level;                     /* performance state: 0 highest, 15 lowest */
	int ecc;                       /* 0 off, 1 on */
	int64_t corrected, uncorrected; /* ECC errors since the driver was loaded */
	int remap_pending, remap_failed; /* memory rows to replace at the next reset; not replaceable */
	int lanes, lanes_most, pcie, pcie_most; /* the link's width and generation, now and at most */
	int links;                     /* NVLinks that are up */
	int n_programs;                /* programs computing on it that we may see */
	struct { unsigned pid; int64_t bytes; } program[NVML_PROGRAMS]; /* the first of them */
};

/* Fills gpu[] and returns the number of GPUs.  -ENOENT: there is no such library; -EIO: it does not answer
 * (mostly because there is no driver).  May be called repeatedly. */
int nvml_look(struct nvml_gpu gpu[NVML_MOST]);

/* The driver's version; "" if there is no driver. */
const char *nvml_driver(void);

/* The bits of held_back in words: "heat, the power limit"; "" for none or unknown. */
const char *nvml_held_back(int bits, char *out, size_t n);

#endif
