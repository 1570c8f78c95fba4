/* nvml.c - the few calls of libnvidia-ml.so.1 that are of use here, by their documented prototypes. */
#include "nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

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
	void *so = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!so)
		return -ENOENT;
	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++)
		if (!(*(void **)want[i].to = dlsym(so, want[i].name)))
			return -EIO;
	if (lib.init() != 0)
		return -EIO;
	lib.version(lib.driver, sizeof(lib.driver) - 1);
	return 1;
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
