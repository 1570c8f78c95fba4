/* runtime.cc - see cuda_runtime.h. */
#include "tests/emu/cuda_runtime_api.h"
#include "tests/emu/races.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <sys/mman.h>
#include <unistd.h>

typedef std::function<cudaError_t()> operation;
struct callback { cudaStreamCallback_t fn; void *arg; };

struct emu_graph { std::vector<operation> op; };
struct emu_exec { std::vector<operation> op; };
struct emu_stream {
	std::deque<operation> queue;
	std::deque<callback> callbacks; /* those in the queue */
	emu_graph *capture;          /* or NULL */
};
struct emu_event {
	uint64_t asked, reached, at_ns;
	emu_stream *stream;
	std::shared_ptr<bool> there; /* it may be destroyed before it is reached */
};

uint64_t emu_calls;
int emu_allocations;
uint64_t emu_taken;
uint64_t emu_graph_launches;
float emu_elapsed_ms;
int emu_devices = getenv("EMU_DEVICES") ? atoi(getenv("EMU_DEVICES")) : 1;
int emu_capability = getenv("EMU_CAPABILITY") ? atoi(getenv("EMU_CAPABILITY")) : 80;
int emu_driver = 13000;
bool emu_integrated;
uint64_t emu_to_device;
size_t emu_memory = (size_t)1 << 30;
bool emu_at_once = getenv("EMU_AT_ONCE");

static uint64_t fail_at;             /* the call that fails, or 0 */
static cudaError_t fail_with;
static cudaError_t poison;           /* what every call says from now on */
static std::map<void *, size_t> memory;
static std::set<emu_stream *> streams;

enum { CANARY = 64, PAGE = 4096 };

static bool capturing()
{
	for (emu_stream *s : streams)
		if (s->capture)
			return true;
	return false;
}

/* From now on every call returns e, and a waiter for a callback gets it. */
static void poison_all(cudaError_t e)
{
	poison = e;
	for (emu_stream *s : streams) {
		while (!s->callbacks.empty()) {
			callback c = s->callbacks.front();

			s->callbacks.pop_front();
			c.fn(s, e, c.arg);
		}
	}
}

static bool poisons(cudaError_t e)
{
	return e == cudaErrorLaunchFailure || e == cudaErrorIllegalAddress || e == cudaErrorECCUncorrectable;
}

/* Every call begins here. */
static cudaError_t call()
{
	static const char *const lose = getenv("EMU_LOSE");

	emu_calls++;
	if (lose && poison == cudaSuccess && access(lose, F_OK) == 0)
		poison_all(cudaErrorIllegalAddress);
	if (poison != cudaSuccess)
		return poison;
	if (fail_at && emu_calls == fail_at) {
		fail_at = 0;
		if (poisons(fail_with))
			poison_all(fail_with);
		return fail_with;
	}
	return cudaSuccess;
}

void emu_fail(uint64_t nth, cudaError_t e)
{
	fail_at = nth ? emu_calls + nth : 0;
	fail_with = e;
}

void emu_recover()
{
	poison = cudaSuccess;
	fail_at = 0;
}

/* ---- the device ------------------------------------------------------------------------------------- */

cudaError_t cudaDriverGetVersion(int *version)
{
	*version = emu_driver;
	return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
	*version = 13000;
	return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n)
{
	cudaError_t e = call();

	if (e == cudaSuccess)
		*n = emu_devices;
	return e == cudaSuccess && !emu_devices ? cudaErrorNoDevice : e;
}

cudaError_t cudaSetDevice(int)
{
	return call();
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int n, int)
{
	snprintf(id, (size_t)n, "0000:00:00.0");
	return call();
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr what, int)
{
	const char *processors = getenv("EMU_PROCESSORS");

	*value = what == cudaDevAttrMultiProcessorCount
		? (processors ? atoi(processors) : 4) : what == cudaDevAttrMaxSharedMemoryPerMultiprocessor ? 228 << 10
		: what == cudaDevAttrIntegrated ? emu_integrated
		: what == cudaDevAttrCanUseHostPointerForRegisteredMem ? 1
		: what == cudaDevAttrComputeCapabilityMajor ? emu_capability / 10 : emu_capability % 10;
	return call();
}

cudaError_t cudaMemGetInfo(size_t *avail, size_t *total)
{
	*total = emu_memory;
	*avail = *total - ((size_t)64 << 20);
	return call();
}

cudaError_t cudaGetLastError()
{
	return poison;
}

const char *cudaGetErrorName(cudaError_t e)
{
	switch (e) {
	case cudaSuccess: return "cudaSuccess";
	case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
	case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
	case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
	case cudaErrorNoDevice: return "cudaErrorNoDevice";
	case cudaErrorNotSupported: return "cudaErrorNotSupported";
	case cudaErrorECCUncorrectable: return "cudaErrorECCUncorrectable";
	case cudaErrorNotReady: return "cudaErrorNotReady";
	case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
	case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
	case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
	}
	return "an unknown error";
}

const char *cudaGetErrorString(cudaError_t e)
{
	return cudaGetErrorName(e);
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static size_t padded(size_t n) { return (n + CANARY + PAGE - 1) / PAGE * PAGE; }

static cudaError_t take(void **p, size_t n)
{
	cudaError_t e = call();

	if (e != cudaSuccess)
		return e;
	if (capturing())
		return cudaErrorStreamCaptureUnsupported;
	*p = emu::races::take(padded(n));
	if (!*p)
		*p = aligned_alloc(PAGE, padded(n));
	memset(*p, 0xff, n);
	memset(static_cast<char *>(*p) + n, 0xa5, CANARY);
	memory[*p] = n;
	emu_taken += n;
	emu_allocations++;
	return cudaSuccess;
}

static void let_go(void *p, size_t n)
{
	if (!emu::races::give(p, padded(n)))
		free(p);
}

static cudaError_t give(void *p)
{
	cudaError_t e = call();

	if (!p)
		return e;
	for (size_t i = 0; i < CANARY; i++) {
		if (static_cast<unsigned char *>(p)[memory.at(p) + i] != 0xa5) {
			fprintf(stderr, "emu: written past the end of %zu bytes\n", memory.at(p));
			abort();
		}
	}
	let_go(p, memory.at(p));
	memory.erase(p);
	emu_allocations--;
	return e;
}

void emu_process_ends(void)
{
	for (auto &m : memory)
		let_go(m.first, m.second);
	memory.clear();
	emu_allocations = 0;
}

cudaError_t cudaMalloc(void **p, size_t n) { return take(p, n); }
cudaError_t cudaFree(void *p) { return give(p); }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned) { return take(p, n); }
cudaError_t cudaFreeHost(void *p) { return give(p); }

cudaError_t cudaHostRegister(void *, size_t, unsigned)
{
	cudaError_t e = call();

	emu_allocations += e == cudaSuccess;
	return e;
}

cudaError_t cudaHostUnregister(void *)
{
	emu_allocations--;
	return call();
}

cudaError_t cudaDeviceReset()
{
	return emu_allocations ? cudaErrorInvalidValue : call();
}

/* ---- streams -------------------------------------------------------------------------- */

cudaError_t emu_queue(cudaStream_t s, std::function<cudaError_t()> op)
{
	cudaError_t e = call();

	if (e == cudaSuccess && s->capture)
		s->capture->op.push_back(std::move(op));
	else if (e == cudaSuccess)
		s->queue.push_back(std::move(op));
	return e;
}

static void advance(emu_stream *s)
{
	cudaError_t e;

	if (s->queue.empty() || poison != cudaSuccess)
		return;
	e = s->queue.front()();
	s->queue.pop_front();
	if (s->queue.empty())
		emu::races::idle();
	if (e != cudaSuccess)
		poison_all(e);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
	cudaError_t e = call();

	if (e != cudaSuccess)
		return e;
	*s = new emu_stream();
	streams.insert(*s);
	emu_allocations++;
	return e;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
	streams.erase(s);
	delete s->capture;
	delete s;
	emu_allocations--;
	return call();
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
	cudaError_t e = call();

	if (e != cudaSuccess)
		return e;
	if (s->capture)
		return cudaErrorStreamCaptureUnsupported;
	do
		advance(s);
	while (emu_at_once && poison == cudaSuccess && !s->queue.empty());
	if (poison != cudaSuccess)
		return poison;
	return s->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
	cudaError_t e = call();

	if (e == cudaSuccess && s->capture)
		return cudaErrorStreamCaptureUnsupported;
	while (e == cudaSuccess && poison == cudaSuccess && !s->queue.empty())
		advance(s);
	return e != cudaSuccess ? e : poison;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind kind, cudaStream_t s)
{
	emu_to_device += kind == cudaMemcpyHostToDevice ? n : 0;
	return emu_queue(s, [=] {
		memcpy(to, from, n);
		emu::races::idle();
		return cudaSuccess;
	});
}

cudaError_t cudaMemsetAsync(void *p, int byte, size_t n, cudaStream_t s)
{
	return emu_queue(s, [=] {
		memset(p, byte, n);
		emu::races::idle();
		return cudaSuccess;
	});
}

cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t fn, void *arg, unsigned)
{
	cudaError_t e = emu_queue(s, [=] {
		s->callbacks.pop_front();
		fn(s, cudaSuccess, arg);
		emu::races::idle();
		return cudaSuccess;
	});

	if (e == cudaSuccess)
		s->callbacks.push_back({ fn, arg });
	while (emu_at_once && e == cudaSuccess && poison == cudaSuccess && !s->queue.empty())
		advance(s);
	return e;
}

cudaError_t emu_func_attribute(size_t value)
{
	cudaError_t e = call();

	return e == cudaSuccess && value > emu::SHARED_MAX ? cudaErrorInvalidValue : e;
}

void emu_pause()
{
	const struct timespec nap = { 0, 20000 };

	nanosleep(&nap, NULL);
}

uint64_t emu_globaltimer()
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- kernels -------------------------------------------------------------------------- */

static bool waited[emu::LANES_MAX]; /* the threads of the block that runs */
static bool begun;                   /* some thread of the kernel has */
static const char *constant;         /* emu_guard() */
static bool closed;                  /* all other memory is */

static void protect(int how)
{
	for (const auto &m : memory) {
		const char *at = static_cast<const char *>(m.first);

		if (constant < at || constant >= at + m.second)
			mprotect(m.first, padded(m.second), how);
	}
	closed = how == PROT_NONE;
}

static void open_again()
{
	if (closed)
		protect(PROT_READ | PROT_WRITE);
}

static void not_waited()
{
	emu::fault("thread %u of block %u %u %u touches memory that may still be written: it has not waited "
		"for the kernel before", 32 * emu::self->warp + emu::self->number, emu::block_index.x,
		emu::block_index.y, emu::block_index.z);
}

/* On the stack of the fiber that did it, which never comes back. */
static void touched(int, siginfo_t *, void *)
{
	bool early = closed;

	if (!early)
		signal(SIGSEGV, SIG_DFL);    /* something else, and it will happen again */
	open_again();
	if (early && emu::self)
		not_waited();
}

void emu_guard(const void *where)
{
	struct sigaction a = {};

	constant = static_cast<const char *>(where);
	a.sa_sigaction = touched;
	a.sa_flags = SA_SIGINFO | SA_NODEFER;
	if (constant)
		sigaction(SIGSEGV, &a, NULL);
	else
		signal(SIGSEGV, SIG_DFL);
}

static bool &mine()
{
	return waited[emu::lane_number()];
}

void emu::will_read(const void *at)
{
	for (const auto &m : memory) {
		const char *from = static_cast<const char *>(m.first), *to = from + m.second;

		if (constant && !mine() && constant >= from && constant < to && (at < from || at >= to))
			not_waited();
	}
}

/* A thread begins. */
static void enter(bool early)
{
	if (!begun && constant && early)
		protect(PROT_NONE);
	begun = true;
}

void emu_wait_for_previous()
{
	mine() = true;
	open_again();
}

size_t emu_spoiled_shared;
enum emu_how emu_spoiled_how;
bool emu_spoiled_in_graphs;

/* EMU_SPOIL, "HOW ARGUMENTS". */
static const char *spoiled_by_environment()
{
	static const struct { const char *name; enum emu_how how; bool graphs; } ways[] = {
		{ "wrong ", EMU_WRONG, false }, { "parts ", EMU_WRONG_PARTS, false }, { "early ", EMU_WRONG_EARLY, false },
		{ "traps ", EMU_TRAPS, false }, { "hangs ", EMU_HANGS, false }, { "graphs ", EMU_TRAPS, true },
	};
	const char *asked = getenv("EMU_SPOIL");

	for (const auto &w : ways) {
		if (!asked || strncmp(asked, w.name, strlen(w.name)))
			continue;
		emu_spoiled_how = w.how;
		emu_spoiled_in_graphs = w.graphs;
		return asked + strlen(w.name);
	}
	return NULL;
}

const char *emu_spoiled = spoiled_by_environment();

cudaError_t emu_launch(dim3 grid, dim3 block, size_t shared, cudaStream_t s, bool early, unsigned cluster,
	std::function<void()> thread, const char *arguments)
{
	bool spoils = emu_spoiled && arguments && strstr(arguments, emu_spoiled) &&
		(!emu_spoiled_shared || emu_spoiled_shared == shared) && (!emu_spoiled_in_graphs || s->capture) &&
		(emu_spoiled_how != EMU_WRONG_EARLY || emu_early);
	enum emu_how how = emu_spoiled_how;
	auto whole = [=] {
		enter(early);
		mine() = !early;
		thread();
		if (!mine())
			emu::fault("thread %u of block %u %u %u has not waited for the kernel before",
				32 * emu::self->warp + emu::self->number, emu::block_index.x,
				emu::block_index.y, emu::block_index.z);
	};

	return emu_queue(s, [=] {
		bool fine;

		if (spoils && how == EMU_TRAPS)
			return cudaErrorLaunchFailure;
		while (spoils && how == EMU_HANGS)
			pause();
		if (spoils && how == EMU_WRONG_EARLY)
			return cudaSuccess;
		begun = false;
		emu_spoils = spoils && how == EMU_WRONG;
		emu_spoils_parts = spoils && how == EMU_WRONG_PARTS;
		emu::races::waited = early ? waited : NULL;
		fine = emu::run(grid, block, shared, whole, cluster);
		emu::races::waited = NULL;
		emu_spoils = emu_spoils_parts = false;
		open_again();
		if (fine)
			return cudaSuccess;
		fprintf(stderr, "emu: %s\n", emu_fault());
		return cudaErrorLaunchFailure;
	});
}

/* ---- graphs --------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode)
{
	cudaError_t e = call();

	if (e == cudaSuccess)
		s->capture = new emu_graph();
	return e;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
	cudaError_t e = call();

	if (!s->capture)
		return e == cudaSuccess ? cudaErrorInvalidValue : e;
	if (e == cudaSuccess) {
		*graph = s->capture;
		emu_allocations++;
	} else {
		delete s->capture;
	}
	s->capture = NULL;
	return e;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	delete graph;
	emu_allocations--;
	return call();
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
	cudaError_t e = call();

	if (e != cudaSuccess)
		return e;
	*exec = new emu_exec{ graph->op };
	emu_allocations++;
	return e;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
	return call();
}

/* As if its operations were queued now. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
	cudaError_t e = call();

	emu_graph_launches++;
	if (e == cudaSuccess)
		s->queue.insert(s->queue.end(), exec->op.begin(), exec->op.end());
	return e;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	delete exec;
	emu_allocations--;
	return call();
}

/* ---- events --------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
	cudaError_t err = call();

	if (err != cudaSuccess)
		return err;
	*e = new emu_event();
	(*e)->there = std::make_shared<bool>(true);
	emu_allocations++;
	return err;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
	delete e;
	emu_allocations--;
	return call();
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
	std::weak_ptr<bool> there = e->there;
	uint64_t turn = ++e->asked;

	e->stream = s;
	return emu_queue(s, [=] {
		struct timespec t;

		if (there.expired())
			return cudaSuccess;
		clock_gettime(CLOCK_MONOTONIC, &t);
		e->at_ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
		e->reached = turn;
		return cudaSuccess;
	});
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
	cudaError_t err = call();

	if (err != cudaSuccess || e->reached == e->asked)
		return err;
	advance(e->stream);
	if (poison != cudaSuccess)
		return poison;
	return e->reached == e->asked ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
	cudaError_t err = call();

	while (err == cudaSuccess && poison == cudaSuccess && e->reached != e->asked)
		advance(e->stream);
	return err != cudaSuccess ? err : poison;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
	cudaError_t err = call();

	if (err == cudaSuccess && (from->reached != from->asked || to->reached != to->asked))
		return cudaErrorNotReady;
	*ms = emu_elapsed_ms > 0 ? emu_elapsed_ms : (float)(int64_t)(to->at_ns - from->at_ns) * 1e-6f;
	return err;
}

/* Done by the other stream first, if need be. */
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
	std::weak_ptr<bool> there = e->there;
	uint64_t turn = e->asked;

	return emu_queue(s, [=] {
		while (poison == cudaSuccess && !there.expired() && e->reached < turn)
			advance(e->stream);
		return poison;
	});
}
