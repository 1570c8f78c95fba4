/* nccl.cu - gathers by NCCL, for what is too large to go through the host's memory.
 *
 * The library is libnccl.so.2, or what SLIPRING_NCCL names; SLIPRING_NCCL=off does without.  It is used if every rank
 * has it.  Its calls never block, and nothing waits for it longer than PATIENCE_MS: NCCL itself has no limit.  A rank
 * that fails says which call did, and ends; kernels/ranks ends the others.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/device.cuh"
#include "shmring/clock.h"

int nccl_patience_ms = 30000;

static struct nccl_calls nccl;
static bool looked, found;

__attribute__((format(printf, 1, 2)))
static bool absent(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fprintf(stderr, "slipring-cuda: no NCCL (");
	vfprintf(stderr, fmt, ap);
	fprintf(stderr, "): ranks exchange through the host's memory\n");
	va_end(ap);
	return false;
}

static bool find_calls(void *library)
{
	static const struct { const char *name; size_t at; } all[] = {
		{ "ncclGetVersion", offsetof(struct nccl_calls, GetVersion) },
		{ "ncclGetUniqueId", offsetof(struct nccl_calls, GetUniqueId) },
		{ "ncclCommInitRankConfig", offsetof(struct nccl_calls, CommInitRankConfig) },
		{ "ncclCommGetAsyncError", offsetof(struct nccl_calls, CommGetAsyncError) },
		{ "ncclAllGather", offsetof(struct nccl_calls, AllGather) },
		{ "ncclCommAbort", offsetof(struct nccl_calls, CommAbort) },
		{ "ncclGetErrorString", offsetof(struct nccl_calls, GetErrorString) },
	};

	for (const auto &c : all) {
		void *at = dlsym(library, c.name);

		if (!at)
			return absent("the library has no %s", c.name);
		memcpy((char *)&nccl + c.at, &at, sizeof(at));
	}
	return true;
}

static bool load(void)
{
	const char *name = getenv("SLIPRING_NCCL");
	void *library;
	int version = 0;

	if (name && strcmp(name, "off") == 0)
		return absent("SLIPRING_NCCL=off");
	library = dlopen(name && *name ? name : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return absent("%s", dlerror());
	if (!find_calls(library))
		return false;
	if (nccl.GetVersion(&version) != NCCL_SUCCESS || version < NCCL_OLDEST)
		return absent("version %d.%d; 2.14 or later is needed", version / 10000, version / 100 % 100);
	return true;
}

void nccl_forget(void)
{
	looked = false;
}

bool nccl_there(void)
{
	if (!looked)
		found = load();
	looked = true;
	return found;
}

/* 0, or the call that failed is in d->fault. */
static bool succeeded(struct dev *d, int result, const char *call)
{
	if (result == NCCL_SUCCESS || d->fault.lost)
		return !d->fault.lost;
	d->fault.lost = true;
	d->fault.code = cudaErrorNotSupported;
	snprintf(d->fault.why, sizeof(d->fault.why), "NCCL's %s: %s; SLIPRING_NCCL=off does without it", call,
		result == NCCL_IN_PROGRESS ? "it did not end in time" : nccl.GetErrorString(result));
	return false;
}

/* Wait until a call that did not block has ended. */
static bool ended(struct dev *d, int result, const char *call)
{
	const struct timespec nap = { 0, 100000 };
	uint64_t until = sr_now() + (uint64_t)nccl_patience_ms * 1000000u;

	while (result == NCCL_IN_PROGRESS && sr_now() < until) {
		int e = nccl.CommGetAsyncError(d->ranks.comm, &result);

		if (e != NCCL_SUCCESS)
			return succeeded(d, e, "CommGetAsyncError");
		if (result == NCCL_IN_PROGRESS)
			nanosleep(&nap, NULL);
	}
	return succeeded(d, result, call);
}

bool nccl_id(struct dev *d, struct nccl_id *id)
{
	return succeeded(d, nccl.GetUniqueId(id), "GetUniqueId");
}

bool nccl_open(struct dev *d, const struct nccl_id *id)
{
	struct nccl_config how = { sizeof(how), 0xcafebeef, NCCL_OLDEST, 0 };
	int e = nccl.CommInitRankConfig(&d->ranks.comm, d->ranks.world, *id, d->ranks.rank, &how);

	return ended(d, e, "CommInitRankConfig");
}

bool nccl_gather(struct dev *d, const void *from, void *to, size_t each)
{
	return ended(d, nccl.AllGather(from, to, each, NCCL_UINT8, d->ranks.comm, d->stream), "AllGather");
}

void nccl_look(struct dev *d)
{
	int result = NCCL_SUCCESS;

	if (!d->ranks.comm || d->fault.lost)
		return;
	if (succeeded(d, nccl.CommGetAsyncError(d->ranks.comm, &result), "CommGetAsyncError") && result != NCCL_IN_PROGRESS)
		succeeded(d, result, "AllGather");
}

/* Abort, not Destroy: the others may be gone. */
void nccl_close(struct dev *d)
{
	if (d->ranks.comm)
		nccl.CommAbort(d->ranks.comm);
	d->ranks.comm = NULL;
}
