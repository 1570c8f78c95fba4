/* xid.c - see xid.h.  Calls NVML's event functions by their documented prototypes. */
#include "xid.h"

#include <dlfcn.h>
#include <stdlib.h>

#define XID_EVENT  0x8ull              /* nvmlEventTypeXidCriticalError */
#define PATIENCE   200u                /* ms: the driver sends the event at about the time of the CUDA
                                          error */
#define MOST       64                  /* events read at once: a failing GPU may send many */

struct event { void *device; unsigned long long type, data; unsigned instance, compute_instance; };

struct xid {
	void *library, *set;
	int last;
	int (*init)(void);
	int (*handle)(const char *, void **);
	int (*create)(void **);
	int (*watch)(void *, unsigned long long, void *);
	int (*wait)(void *, struct event *, unsigned);
	int (*free)(void *);
};

static int find(struct xid *w)
{
	const struct { const char *name; void *to; } calls[] = {
		{ "nvmlInit_v2", &w->init }, { "nvmlDeviceGetHandleByPciBusId_v2", &w->handle },
		{ "nvmlEventSetCreate", &w->create }, { "nvmlDeviceRegisterEvents", &w->watch },
		{ "nvmlEventSetWait_v2", &w->wait }, { "nvmlEventSetFree", &w->free },
	};

	w->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	for (unsigned i = 0; w->library && i < sizeof(calls) / sizeof(calls[0]); i++)
		if (!(*(void **)calls[i].to = dlsym(w->library, calls[i].name)))
			return 0;
	return w->library != NULL;
}

struct xid *xid_watch(const char *bus)
{
	struct xid *w = calloc(1, sizeof(*w));
	void *gpu = NULL;

	if (w && find(w) && w->init() == 0 && w->handle(bus, &gpu) == 0 && w->create(&w->set) == 0 &&
	    w->watch(gpu, XID_EVENT, w->set) == 0)
		return w;
	xid_close(w);
	return NULL;
}

int xid_last(struct xid *w)
{
	struct event e;

	for (int i = 0; w && i < MOST && w->wait(w->set, &e, w->last ? 0 : PATIENCE) == 0; i++)
		if (e.type == XID_EVENT)
			w->last = (int)e.data;
	return w ? w->last : 0;
}

void xid_close(struct xid *w)
{
	if (!w)
		return;
	if (w->set)
		w->free(w->set);
	if (w->library)
		dlclose(w->library);
	free(w);
}
