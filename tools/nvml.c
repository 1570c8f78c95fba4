/* nvml.c - the few calls of libnvidia-ml.so.1 that are of use here, by their documented prototypes. */
#include "nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

/* nvmlClockType_t and bits of nvmlClocksThrottleReason*: SW and HW thermal slowdown; HW power brake.
 * A slowdown by the power limit that was set is how such a GPU runs. */
#define CLOCK_SM      1
#define REASONS_HOT   (0x20u | 0x40u)
#define REASONS_POWER 0x80u

struct memory { unsigned long long total, free, used; };
struct utilization { unsigned gpu, memory; };

static struct {
	int state;                    /* 0 not tried, 1 open, -errno */
	char driver[81];
	int (*init)(void);
	int (*version)(char *, unsigned);
	int (*count)(unsigned *);
	int (*handle)(unsigned, void **);
	int (*name)(void *, char *, unsigned);
	int (*memory)(void *, struct memory *);
	int (*utilization)(void *, struct utilization *);
	int (*power)(void *, unsigned *);
	int (*temperature)(void *, int, unsigned *);
	/* NULL in a library that lacks them: */
	int (*persistence)(void *, int *);
	int (*clock)(void *, int, unsigned *);
	int (*clock_most)(void *, int, unsigned *);
	int (*reasons)(void *, unsigned long long *);
} lib;

static int open_library(void)
{
	const struct { const char *name; void *to; } want[] = {
		{ "nvmlInit_v2", &lib.init }, { "nvmlSystemGetDriverVersion", &lib.version },
		{ "nvmlDeviceGetCount_v2", &lib.count }, { "nvmlDeviceGetHandleByIndex_v2", &lib.handle },
		{ "nvmlDeviceGetName", &lib.name }, { "nvmlDeviceGetMemoryInfo", &lib.memory },
		{ "nvmlDeviceGetUtilizationRates", &lib.utilization },
		{ "nvmlDeviceGetPowerUsage", &lib.power }, { "nvmlDeviceGetTemperature", &lib.temperature },
	};
	const struct { const char *name; void *to; } like[] = {
		{ "nvmlDeviceGetPersistenceMode", &lib.persistence }, { "nvmlDeviceGetClockInfo", &lib.clock },
		{ "nvmlDeviceGetMaxClockInfo", &lib.clock_most },
		{ "nvmlDeviceGetCurrentClocksThrottleReasons", &lib.reasons },
	};
	void *so = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!so)
		return -ENOENT;
	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++)
		if (!(*(void **)want[i].to = dlsym(so, want[i].name)))
			return -EIO;
	for (size_t i = 0; i < sizeof(like) / sizeof(like[0]); i++)
		*(void **)like[i].to = dlsym(so, like[i].name);
	if (lib.init() != 0)
		return -EIO;
	lib.version(lib.driver, sizeof(lib.driver) - 1);
	return 1;
}

static void clocks_of(void *h, struct nvml_gpu *g)
{
	unsigned long long why = 0;

	g->persistence = -1;
	if (lib.persistence && lib.persistence(h, &g->persistence) != 0)
		g->persistence = -1;
	if (lib.clock && lib.clock_most && lib.clock(h, CLOCK_SM, &g->sm_mhz) == 0)
		lib.clock_most(h, CLOCK_SM, &g->sm_mhz_most);
	if (lib.reasons && lib.reasons(h, &why) == 0)
		g->held_back = why & REASONS_HOT ? NVML_HOT : why & REASONS_POWER ? NVML_POWER : NVML_FREE;
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
		struct utilization u = { 0, 0 };
		struct memory m = { 0, 0, 0 };
		void *h;

		*g = (struct nvml_gpu){ .name = "?" };
		if (lib.handle(i, &h) != 0)
			continue;             /* not ours to see */
		lib.name(h, g->name, sizeof(g->name));
		lib.memory(h, &m);
		lib.utilization(h, &u);   /* what a device does not know stays 0 */
		lib.power(h, &g->power_mw);
		lib.temperature(h, 0, &g->celsius);
		clocks_of(h, g);
		g->memory_used = m.used;
		g->memory_total = m.total;
		g->busy_percent = u.gpu;
		found++;
	}
	return found;
}

const char *nvml_driver(void)
{
	struct nvml_gpu gpu[NVML_MOST];

	nvml_look(gpu);
	return lib.driver;
}
