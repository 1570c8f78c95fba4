/* nvml_fake.c - a stand-in for NVIDIA's libnvidia-ml.so.1, built by tests: two GPUs, well by default.
 *
 *	FAKE_FAIL=nvmlX       that call fails ("all": each but the three that lead to a device)
 *	FAKE_<what>=N         what GPU 1 answers instead, see the calls to of()
 *	FAKE_xid=N            an event of that number is there, once
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default"))) int
#define FAILED 999                      /* NVML_ERROR_UNKNOWN */

typedef void *gpu;                      /* 1 and 2 */
struct process { unsigned pid; unsigned long long bytes; unsigned a, b; };
struct event { gpu device; unsigned long long type, data; unsigned a, b; };

static int fails(const char *call)
{
	const char *which = getenv("FAKE_FAIL");

	return which && (!strcmp(which, call) || (!strcmp(which, "all") && strcmp(call, "nvmlInit_v2") &&
		strcmp(call, "nvmlDeviceGetCount_v2") && strcmp(call, "nvmlDeviceGetHandleByIndex_v2"))) ? FAILED : 0;
}

static unsigned long long of(gpu g, const char *what, unsigned long long usual)
{
	char name[64];
	const char *v;

	snprintf(name, sizeof(name), "FAKE_%s", what);
	v = g == (gpu)2L ? getenv(name) : NULL;
	return v ? strtoull(v, NULL, 0) : usual;
}

#define NUMBER(call, what, usual) \
	API call(gpu g, unsigned *v) { *v = (unsigned)of(g, what, usual); return fails(#call); }
#define NUMBER_OF(call, what, usual) \
	API call(gpu g, int k, unsigned *v) { (void)k; *v = (unsigned)of(g, what, usual); return fails(#call); }

API nvmlInit_v2(void) { return fails("nvmlInit_v2"); }
API nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return fails("nvmlDeviceGetCount_v2"); }
API nvmlDeviceGetHandleByIndex_v2(unsigned i, gpu *g)
{
	*g = (gpu)(i + 1L);
	return fails("nvmlDeviceGetHandleByIndex_v2");
}
API nvmlDeviceGetHandleByPciBusId_v2(const char *id, gpu *g)
{
	(void)id;
	*g = (gpu)1L;
	return fails("nvmlDeviceGetHandleByPciBusId_v2");
}
API nvmlSystemGetDriverVersion(char *s, unsigned n)
{
	snprintf(s, n, "580");
	return fails("nvmlSystemGetDriverVersion");
}
API nvmlDeviceGetName(gpu g, char *s, unsigned n)
{
	(void)g;
	snprintf(s, n, "G");
	return fails("nvmlDeviceGetName");
}
API nvmlDeviceGetPciInfo_v3(gpu g, void *p)
{
	snprintf((char *)p + 36, 32, "00000000:0%d:00.0", g == (gpu)2L);
	return fails("nvmlDeviceGetPciInfo_v3");
}
API nvmlDeviceGetMemoryInfo(gpu g, unsigned long long *m)
{
	(void)g;
	m[0] = 80ull << 30, m[2] = 8ull << 30, m[1] = m[0] - m[2];
	return fails("nvmlDeviceGetMemoryInfo");
}
API nvmlDeviceGetUtilizationRates(gpu g, unsigned *u)
{
	u[0] = (unsigned)of(g, "busy", 55);
	u[1] = 0;
	return fails("nvmlDeviceGetUtilizationRates");
}
NUMBER(nvmlDeviceGetPowerUsage, "power", 90000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "limit", 700000)
NUMBER_OF(nvmlDeviceGetTemperature, "celsius", 41)
NUMBER_OF(nvmlDeviceGetClockInfo, "clock", 345)
NUMBER_OF(nvmlDeviceGetMaxClockInfo, "most", 1980)
API nvmlDeviceGetCurrentClocksEventReasons(gpu g, unsigned long long *r)
{
	*r = of(g, "reasons", 1);
	return fails("nvmlDeviceGetCurrentClocksEventReasons");
}
NUMBER(nvmlDeviceGetPersistenceMode, "persistence", 1)
API nvmlDeviceGetMigMode(gpu g, unsigned *now, unsigned *then)
{
	*now = *then = (unsigned)of(g, "mig", 0);
	return fails("nvmlDeviceGetMigMode");
}
NUMBER(nvmlDeviceGetPerformanceState, "level", 0)
API nvmlDeviceGetEccMode(gpu g, unsigned *now, unsigned *then)
{
	*now = *then = (unsigned)of(g, "ecc", 1);
	return fails("nvmlDeviceGetEccMode");
}
API nvmlDeviceGetTotalEccErrors(gpu g, int kind, int since, unsigned long long *n)
{
	(void)since;
	*n = kind ? of(g, "uncorrected", 0) : of(g, "corrected", 0);
	return fails("nvmlDeviceGetTotalEccErrors");
}
API nvmlDeviceGetRemappedRows(gpu g, unsigned *c, unsigned *u, unsigned *pending, unsigned *failed)
{
	*c = *u = 0;
	*pending = (unsigned)of(g, "pending", 0);
	*failed = (unsigned)of(g, "failed", 0);
	return fails("nvmlDeviceGetRemappedRows");
}
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "lanes", 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "lanes_most", 16)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie", 5)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_most", 5)
API nvmlDeviceGetNvLinkState(gpu g, unsigned link, unsigned *up)
{
	*up = link < (unsigned)of(g, "links", 4);
	return fails("nvmlDeviceGetNvLinkState");
}
API nvmlDeviceGetComputeRunningProcesses_v3(gpu g, unsigned *n, struct process *p)
{
	*n = (unsigned)of(g, "programs", 0);
	for (unsigned i = 0; i < *n && i < 32; i++)
		p[i] = (struct process){ 4000000 + i, 3ull << 30, 0, 0 };
	return fails("nvmlDeviceGetComputeRunningProcesses_v3");
}

API nvmlEventSetCreate(void **set) { *set = (void *)1L; return fails("nvmlEventSetCreate"); }
API nvmlEventSetFree(void *set) { (void)set; return 0; }
API nvmlDeviceRegisterEvents(gpu g, unsigned long long types, void *set)
{
	(void)g, (void)types, (void)set;
	return fails("nvmlDeviceRegisterEvents");
}
API nvmlEventSetWait_v2(void *set, struct event *e, unsigned ms)
{
	static int told;
	const char *xid = getenv("FAKE_xid");

	(void)set, (void)ms;
	if (!xid || told)
		return 10;              /* NVML_ERROR_TIMEOUT */
	told = 1;
	*e = (struct event){ (gpu)1L, 8, strtoull(xid, NULL, 0), 0, 0 };
	return fails("nvmlEventSetWait_v2");
}
