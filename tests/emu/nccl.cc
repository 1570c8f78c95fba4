/* nccl.cc - NCCL as kernels/cuda/ranks/nccl.cu calls it, between processes that share memory, and strict: all ranks
 * must call the same collective with the same number of bytes, in the same order; a communicator that is in use by
 * another id, or a call before it is ready, is refused.  No call blocks: the first question about a call's end says
 * that it is in progress.  A gather is queued in its stream, and can be captured.
 */
#include "tests/emu/nccl.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/cuda/ranks/nccl.h"

enum { SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, RANKS = 16 };
static const size_t EACH = (size_t)16 << 20;

struct meeting {                     /* in shared memory */
	std::atomic<uint32_t> arrived[RANKS]; /* phases that a rank has reached */
	uint64_t bytes[RANKS];
	unsigned char data[];        /* [RANKS][EACH] */
};

struct ncclComm {
	int rank, world, asked;
	uint32_t phase;
	meeting *m;
	std::string name;
	int error;
};

const char *emu_nccl_library = getenv("EMU_NCCL"), *emu_nccl_lacks;
int emu_nccl_version = 23007;
uint64_t emu_nccl_calls;
bool emu_nccl_absent;

static uint64_t fail_at;
static int fail_with;

void emu_nccl_fail(uint64_t nth, int result)
{
	fail_at = nth ? emu_nccl_calls + nth : 0;
	fail_with = result;
}

static int call()
{
	emu_nccl_calls++;
	if (fail_at && emu_nccl_calls == fail_at) {
		fail_at = 0;
		return fail_with;
	}
	return NCCL_SUCCESS;
}

static int GetVersion(int *v)
{
	*v = emu_nccl_version;
	return call();
}

static int GetUniqueId(nccl_id *id)
{
	static int n;
	int e = call(), fd;

	if (e != NCCL_SUCCESS)
		return e;
	memset(id, 0, sizeof(*id));
	snprintf(id->bytes, sizeof(id->bytes), "/slipring-nccl-%d-%d", getpid(), n++);
	fd = shm_open(id->bytes, O_RDWR | O_CREAT | O_EXCL, 0600);
	if (fd < 0 || ftruncate(fd, (off_t)(sizeof(meeting) + RANKS * EACH)))
		return SYSTEM_ERROR;
	close(fd);
	return e;
}

/* A rank that does not come leaves the others here: the emulated GPU waits, as a real one does. */
static void meet(ncclComm *c)
{
	c->phase++;
	if (emu_nccl_absent)
		for (;;)
			pause();
	c->m->arrived[c->rank].store(c->phase);
	for (int r = 0; r < c->world; r++)
		while (c->m->arrived[r].load() < c->phase)
			emu_pause();
}

static int CommInitRankConfig(nccl_comm *out, int world, nccl_id id, int rank, nccl_config *how)
{
	int e = call(), fd;

	if (e != NCCL_SUCCESS)
		return e;
	if (how->size != sizeof(*how) || how->magic != 0xcafebeef || how->version != 21400 || how->blocking ||
	    rank < 0 || rank >= world || world > RANKS)
		return INVALID_ARGUMENT;
	fd = shm_open(id.bytes, O_RDWR, 0);
	if (fd < 0)
		return SYSTEM_ERROR;
	*out = new ncclComm{ rank, world, 1, 0, nullptr, id.bytes, NCCL_SUCCESS };
	(*out)->m = static_cast<meeting *>(mmap(NULL, sizeof(meeting) + RANKS * EACH, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		0));
	close(fd);
	emu_allocations++;
	return NCCL_IN_PROGRESS;
}

/* The communicator is ready when all ranks have asked for it. */
static int CommGetAsyncError(nccl_comm c, int *result)
{
	int e;

	for (int r = 0; r < c->world && !c->asked; r++)
		if (c->m->arrived[r].load() < 1) {   /* asked again: not counted, for nobody knows how often */
			*result = NCCL_IN_PROGRESS;
			return NCCL_SUCCESS;
		}
	e = call();
	if (e != NCCL_SUCCESS)
		return e;
	*result = c->error;
	if (c->asked) {
		c->asked = 0;
		c->m->arrived[c->rank].store(c->phase = 1);
		*result = NCCL_IN_PROGRESS;
		return e;
	}
	if (c->rank == 0 && *result == NCCL_SUCCESS)
		shm_unlink(c->name.c_str());
	return e;
}

static int AllGather(const void *from, void *to, size_t each, int type, nccl_comm c, cudaStream_t s)
{
	int e = call();

	if (e != NCCL_SUCCESS)
		return e;
	if (type != NCCL_UINT8 || each > EACH || c->asked)
		return INVALID_USAGE;
	return emu_queue(s, [=] {
		memcpy(c->m->data + (size_t)c->rank * EACH, from, each);
		c->m->bytes[c->rank] = each;
		meet(c);
		for (int r = 0; r < c->world; r++) {
			if (c->m->bytes[r] != each) {
				fprintf(stderr, "emu: rank %d gathers %zu bytes, rank %d %zu\n", c->rank, each, r,
					(size_t)c->m->bytes[r]);
				return cudaErrorLaunchFailure;
			}
			memcpy(static_cast<unsigned char *>(to) + (size_t)r * each, c->m->data + (size_t)r * EACH, each);
		}
		meet(c);
		return cudaSuccess;
	}) == cudaSuccess ? +NCCL_SUCCESS : +SYSTEM_ERROR;
}

static int CommAbort(nccl_comm c)
{
	int e = call();

	shm_unlink(c->name.c_str());
	munmap(c->m, sizeof(meeting) + RANKS * EACH);
	delete c;
	emu_allocations--;
	return e;
}

static const char *GetErrorString(int e)
{
	return e == SYSTEM_ERROR ? "unhandled system error" : e == INVALID_ARGUMENT ? "invalid argument" : "an error of a test";
}

void *emu_nccl_function(const char *name)
{
	static const std::map<std::string, void *> functions = {
		{ "ncclGetVersion", (void *)GetVersion }, { "ncclGetUniqueId", (void *)GetUniqueId },
		{ "ncclCommInitRankConfig", (void *)CommInitRankConfig },
		{ "ncclCommGetAsyncError", (void *)CommGetAsyncError }, { "ncclAllGather", (void *)AllGather },
		{ "ncclCommAbort", (void *)CommAbort }, { "ncclGetErrorString", (void *)GetErrorString },
	};
	auto f = functions.find(name);

	return f == functions.end() || (emu_nccl_lacks && strcmp(name, emu_nccl_lacks) == 0) ? nullptr : f->second;
}
