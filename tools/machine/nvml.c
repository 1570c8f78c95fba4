/* nvml.c - the few calls of libnvidia-ml.so.1 that are useful here, with their documented prototypes.  The
 * library gains and loses calls with the driver, and a device answers only some.  So each may be missing or
 * fail, except the three that lead to a device. */
#include "nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* nvmlClockType_t; nvmlMemoryErrorType_t; nvmlEccCounterType_t; bits of nvmlClocksEventReasons*. */
#define CLOCK_SM      1
#define CLOCK_MEMORY  2
#define CORRECTED     0
#define UNCORRECTED   1
#define SINCE_LOADED  0
#define REASON_CAP    0x4ull
#define REASON_SLOWED 0x8ull
#define REASON_HOT    (0x20ull | 0x40ull)
#define REASON_BRAKE  0x80ull
#define PROCESSES     32
#define NO_ARGUMENT   2               /* nvmlReturn_t */
#define NOT_SUPPORTED 3
#define LINKS_MOST    18              /* NVML_NVLINK_MAX_LINKS */

struct nvml_memory { unsigned long long total, free, used; };
struct utilization { unsigned gpu, memory; };
struct pci { char old_id[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
struct nvml_process { unsigned pid; unsigned long long bytes; unsigned instance, compute_instance; };

static struct {
	int state;                    /* 0 not tried, 1 open, -errno */
	char driver[81];
	int (*init)(void);
	int (*count)(unsigned *);
	int (*handle)(unsigned, void **);
	/* each of these is NULL if the library lacks it */
	int (*version)(char *, unsigned);
	int (*name)(void *, char *, unsigned);
	int (*pci)(void *, struct pci *);
	int (*memory)(void *, struct nvml_memory *);
	int (*utilization)(void *, struct utilization *);
	int (*power)(void *, unsigned *);
	int (*power_limit)(void *, unsigned *);
	int (*temperature)(void *, int, unsigned *);
	int (*clock)(void *, int, unsigned *);
	int (*clock_most)(void *, int, unsigned *);
	int (*reasons)(void *, unsigned long long *);
	int (*persistence)(void *, unsigned *);
	int (*mig)(void *, unsigned *, unsigned *);
	int (*level)(void *, unsigned *);
	int (*ecc)(void *, unsigned *, unsigned *);
	int (*ecc_errors)(void *, int, int, unsigned long long *);
	int (*remapped)(void *, unsigned *, unsigned *, unsigned *, unsigned *);
	int (*lanes)(void *, unsigned *);
	int (*lanes_most)(void *, unsigned *);
	int (*pcie)(void *, unsigned *);
	int (*pcie_most)(void *, unsigned *);
	int (*nvlink)(void *, unsigned, unsigned *);
	int (*processes)(void *, unsigned *, struct nvml_process *);
} lib;

/* The order matters: of two names of one call the first that exists is used. */
static const struct nvml_call { const char *name; void *to; bool needed; } calls[] = {
	{ "nvmlInit_v2", &lib.init, true },
	{ "nvmlDeviceGetCount_v2", &lib.count, true },
	{ "nvmlDeviceGetHandleByIndex_v2", &lib.handle, true },
	{ "nvmlSystemGetDriverVersion", &lib.version, false },
	{ "nvmlDeviceGetName", &lib.name, false },
	{ "nvmlDeviceGetPciInfo_v3", &lib.pci, false },
	{ "nvmlDeviceGetMemoryInfo", &lib.memory, false },
	{ "nvmlDeviceGetUtilizationRates", &lib.utilization, false },
	{ "nvmlDeviceGetPowerUsage", &lib.power, false },
	{ "nvmlDeviceGetEnforcedPowerLimit", &lib.power_limit, false },
	{ "nvmlDeviceGetTemperature", &lib.temperature, false },
	{ "nvmlDeviceGetClockInfo", &lib.clock, false },
	{ "nvmlDeviceGetMaxClockInfo", &lib.clock_most, false },
	{ "nvmlDeviceGetCurrentClocksEventReasons", &lib.reasons, false },
	{ "nvmlDeviceGetCurrentClocksThrottleReasons", &lib.reasons, false },
	{ "nvmlDeviceGetPersistenceMode", &lib.persistence, false },
	{ "nvmlDeviceGetMigMode", &lib.mig, false },
	{ "nvmlDeviceGetPerformanceState", &lib.level, false },
	{ "nvmlDeviceGetEccMode", &lib.ecc, false },
	{ "nvmlDeviceGetTotalEccErrors", &lib.ecc_errors, false },
	{ "nvmlDeviceGetRemappedRows", &lib.remapped, false },
	{ "nvmlDeviceGetCurrPcieLinkWidth", &lib.lanes, false },
	{ "nvmlDeviceGetMaxPcieLinkWidth", &lib.lanes_most, false },
	{ "nvmlDeviceGetCurrPcieLinkGeneration", &lib.pcie, false },
	{ "nvmlDeviceGetGpuMaxPcieLinkGeneration", &lib.pcie_most, false },
	{ "nvmlDeviceGetMaxPcieLinkGeneration", &lib.pcie_most, false },
	{ "nvmlDeviceGetNvLinkState", &lib.nvlink, false },
	{ "nvmlDeviceGetComputeRunningProcesses_v3", &lib.processes, false },
	{ "nvmlDeviceGetComputeRunningProcesses_v2", &lib.processes, false },
};

static int open_library(void)
{
	void *so = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!so)
		return -ENOENT;
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void **to = calls[i].to;

		if (!*to)
			*to = dlsym(so, calls[i].name);
		if (!*to && calls[i].needed)
			return -EIO;
	}
	if (lib.init() != 0)
		return -EIO;
	if (lib.version && lib.version(lib.driver, sizeof(lib.driver) - 1) != 0)
		lib.driver[0] = 0;
	return 1;
}

/* ---- one query each: its answer, or unknown ------------------------------------------------- */

static int ask_number(int (*call)(void *, unsigned *), void *h)
{
	unsigned v;

	return call && call(h, &v) == 0 && v <= INT32_MAX ? (int)v : NVML_UNKNOWN;
}

static int ask_of(int (*call)(void *, int, unsigned *), void *h, int which)
{
	unsigned v;

	return call && call(h, which, &v) == 0 && v <= INT32_MAX ? (int)v : NVML_UNKNOWN;
}

/* A link that a GPU does not have is no argument of its, or not supported. */
static int links(void *h)
{
	int n = 0;

	for (unsigned i = 0, up; i < LINKS_MOST; i++) {
		int e = lib.nvlink ? lib.nvlink(h, i, &up) : -1;

		if (e != 0 && e != NO_ARGUMENT && e != NOT_SUPPORTED)
			return NVML_UNKNOWN;
		n += e == 0 && up == 1;
	}
	return n;
}

static int64_t errors(void *h, int kind)
{
	unsigned long long n;

	return lib.ecc_errors && lib.ecc_errors(h, kind, SINCE_LOADED, &n) == 0 && n <= INT64_MAX ? (int64_t)n :
	       NVML_UNKNOWN;
}

static int held_back(void *h)
{
	unsigned long long why;

	if (!lib.reasons || lib.reasons(h, &why) != 0)
		return NVML_UNKNOWN;
	return (why & REASON_CAP ? NVML_CAPPED : 0) | (why & REASON_HOT ? NVML_HOT : 0) |
	       (why & REASON_BRAKE ? NVML_BRAKE : 0) | (why & REASON_SLOWED ? NVML_SLOWED : 0);
}

/* ---- groups of queries ---------------------------------------------------------------------------- */

static void identity(struct nvml_gpu *g, void *h)
{
	struct pci pci;

	memset(&pci, 0, sizeof(pci));
	if (!lib.name || lib.name(h, g->name, sizeof(g->name)) != 0)
		g->name[0] = 0;
	if (lib.pci && lib.pci(h, &pci) == 0)
		snprintf(g->bus, sizeof(g->bus), "%.31s", pci.bus_id);
}

static void read_memory(struct nvml_gpu *g, void *h)
{
	struct nvml_memory m;
	unsigned now, then, corrected, uncorrected, pending, failed;

	g->memory_used = g->memory_total = NVML_UNKNOWN;
	if (lib.memory && lib.memory(h, &m) == 0) {
		g->memory_used = (int64_t)m.used;
		g->memory_total = (int64_t)m.total;
	}
	g->ecc = lib.ecc && lib.ecc(h, &now, &then) == 0 ? now != 0 : NVML_UNKNOWN;
	g->corrected = errors(h, CORRECTED);
	g->uncorrected = errors(h, UNCORRECTED);
	g->remap_pending = g->remap_failed = NVML_UNKNOWN;
	if (lib.remapped && lib.remapped(h, &corrected, &uncorrected, &pending, &failed) == 0) {
		g->remap_pending = pending != 0;
		g->remap_failed = failed != 0;
	}
}

static void speed(struct nvml_gpu *g, void *h)
{
	struct utilization u;

	g->busy_percent = lib.utilization && lib.utilization(h, &u) == 0 ? (int)u.gpu : NVML_UNKNOWN;
	g->power_mw = ask_number(lib.power, h);
	g->power_limit_mw = ask_number(lib.power_limit, h);
	g->celsius = ask_of(lib.temperature, h, 0);
	g->sm_mhz = ask_of(lib.clock, h, CLOCK_SM);
	g->sm_mhz_most = ask_of(lib.clock_most, h, CLOCK_SM);
	g->memory_mhz = ask_of(lib.clock, h, CLOCK_MEMORY);
	g->memory_mhz_most = ask_of(lib.clock_most, h, CLOCK_MEMORY);
	g->held_back = held_back(h);
	g->level = ask_number(lib.level, h);
	if (g->level > 15)
		g->level = NVML_UNKNOWN;      /* 32: the device does not know it */
}

static void link_and_mode(struct nvml_gpu *g, void *h)
{
	unsigned now, then;

	g->persistence = ask_number(lib.persistence, h);
	g->mig = lib.mig && lib.mig(h, &now, &then) == 0 ? now != 0 : NVML_UNKNOWN;
	g->lanes = ask_number(lib.lanes, h);
	g->lanes_most = ask_number(lib.lanes_most, h);
	g->pcie = ask_number(lib.pcie, h);
	g->pcie_most = ask_number(lib.pcie_most, h);
	g->links = links(h);
}

static void programs(struct nvml_gpu *g, void *h)
{
	struct nvml_process p[PROCESSES];
	unsigned n = PROCESSES;

	g->n_programs = NVML_UNKNOWN;
	if (!lib.processes || lib.processes(h, &n, p) != 0 || n > PROCESSES)
		return;
	g->n_programs = (int)n;
	for (unsigned i = 0; i < n && i < NVML_PROGRAMS; i++) {
		g->program[i].pid = p[i].pid;
		g->program[i].bytes = p[i].bytes > INT64_MAX ? NVML_UNKNOWN : (int64_t)p[i].bytes;
	}
}

int nvml_look(struct nvml_gpu gpu[NVML_MOST])
{
	unsigned n = 0;
	int found = 0;

	if (lib.state == 0)
		lib.state = open_library();
	if (lib.state < 0)
		return lib.state;
	if (lib.count(&n) != 0)
		return -EIO;
	for (unsigned i = 0; i < n && found < NVML_MOST; i++) {
		struct nvml_gpu *g = &gpu[found];
		void *h;

		if (lib.handle(i, &h) != 0)
			continue;             /* this process may not see it */
		memset(g, 0, sizeof(*g));
		identity(g, h);
		read_memory(g, h);
		speed(g, h);
		link_and_mode(g, h);
		programs(g, h);
		found++;
	}
	return found;
}

const char *nvml_driver(void)
{
	if (lib.state == 0)
		lib.state = open_library();
	return lib.driver;
}

const char *nvml_held_back(int bits, char *out, size_t n)
{
	static const struct { int bit; const char *name; } all[] = {
		{ NVML_HOT, "heat" }, { NVML_BRAKE, "too little power" }, { NVML_SLOWED, "the hardware" },
		{ NVML_CAPPED, "the power limit" },
	};
	size_t at = 0;

	if (n)
		out[0] = 0;
	for (size_t i = 0; bits > 0 && i < sizeof(all) / sizeof(all[0]); i++)
		if (bits & all[i].bit && at < n)
			at += (size_t)snprintf(out + at, n - at, "%s%s", at ? ", " : "", all[i].name);
	return out;
}
