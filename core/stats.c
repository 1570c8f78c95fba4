/* stats.c - the stats page: made by the daemon, mapped by whoever may read it. */
#include "stats.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* vLLM's bounds, with finer ones below where a fast engine would fall into the first. */
static const double ttft[] = { .0001, .00025, .0005, .001, .005, .01, .02, .04, .06, .08, .1, .25, .5,
	.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560 };
static const double itl[] = { .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .075, .1, .15,
	.2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80 };
static const double latency[] = { .001, .005, .01, .025, .05, .1, .2, .3, .5, .8, 1, 1.5, 2, 2.5, 5,
	10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680 };
static const double tokens[] = { 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4,
	1e5, 2e5, 5e5, 1e6 };
static const double step[] = { 1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384 };

#define B(a) a, (int)(sizeof(a) / sizeof(a[0]))
static const struct { const char *name; const double *bound; int n; } hist[N_HIST] = {
	[HIST_TTFT]              = { "time_to_first_token_seconds", B(ttft) },
	[HIST_ITL]               = { "inter_token_latency_seconds", B(itl) },
	[HIST_TPOT]              = { "request_time_per_output_token_seconds", B(itl) },
	[HIST_E2E]               = { "e2e_request_latency_seconds", B(latency) },
	[HIST_QUEUE]             = { "request_queue_time_seconds", B(latency) },
	[HIST_INFERENCE]         = { "request_inference_time_seconds", B(latency) },
	[HIST_PREFILL]           = { "request_prefill_time_seconds", B(latency) },
	[HIST_DECODE]            = { "request_decode_time_seconds", B(latency) },
	[HIST_PROMPT_TOKENS]     = { "request_prompt_tokens", B(tokens) },
	[HIST_GENERATION_TOKENS] = { "request_generation_tokens", B(tokens) },
	[HIST_MAX_TOKENS]        = { "request_params_max_tokens", B(tokens) },
	[HIST_PREFILL_COMPUTED]  = { "request_prefill_kv_computed_tokens", B(tokens) },
	[HIST_STEP_TOKENS]       = { "iteration_tokens_total", B(step) },
};
#undef B

const double *stats_bounds(enum stats_hist h, int *n)
{
	*n = hist[h].n;
	return hist[h].bound;
}

const char *stats_name(enum stats_hist h) { return hist[h].name; }

const char *stats_empty_name(int empty)
{
	static const char *const name[N_EMPTY] = { "tokenizing", "network", "silent", "served", "nobody" };

	return empty >= 0 && empty < N_EMPTY ? name[empty] : "?";
}

/* The same value n times. */
void stats_observe_many(struct stats_page *p, enum stats_hist h, double value, uint64_t n)
{
	int i = 0;

	while (i < hist[h].n && value > hist[h].bound[i])
		i++;
	p->hist[h].count[i] += n;
	p->hist[h].sum += value * (double)n;
}

void stats_observe(struct stats_page *p, enum stats_hist h, double value)
{
	stats_observe_many(p, h, value, 1);
}

/* ---- marks and clients ------------------------------------------------------------------- */

void stats_now(const struct stats_page *p, struct stats_mark *m)
{
	*m = (struct stats_mark){
		.at_ns = p->accounted_ns,
		.prompt_tokens = p->prompt_tokens, .prompt_cached = p->prompt_cached,
		.prompt_computed = p->prompt_computed, .generation_tokens = p->generation_tokens,
		.prefix_queries = p->prefix_queries, .prefix_hits = p->prefix_hits,
		.steps = p->steps, .rows = p->rows, .step_tokens = p->step_tokens,
		.int8_ops = p->int8_ops, .float_ops = p->float_ops,
		.bytes_moved = p->bytes_moved, .bytes_copied = p->bytes_copied,
		.preemptions = p->preemptions, .held = p->held, .running_ns = p->running_ns, .waiting_ns = p->waiting_ns,
		.running = (uint32_t)p->running, .waiting = (uint32_t)p->waiting,
		.clients = (uint32_t)p->clients, .blocks_peak = p->blocks_peak,
	};
	for (int i = 0; i < N_ENDED; i++)
		m->ended += p->ended[i];
	memcpy(m->why_ns, p->why_ns, sizeof(m->why_ns));
	memcpy(m->bound_ns, p->bound_ns, sizeof(m->bound_ns));
	memcpy(m->empty_ns, p->empty_ns, sizeof(m->empty_ns));
}

/* Word by word, each whole: the other side may be at it. */
static void copy_words(void *to, const void *from, size_t bytes)
{
	for (size_t i = 0; i < bytes / sizeof(uint64_t); i++)
		__atomic_store_n((uint64_t *)to + i,
		                 __atomic_load_n((const uint64_t *)from + i, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

/* Whoever reads the mark meanwhile sees at_ns change, and looks elsewhere. */
void stats_minute(struct stats_page *p)
{
	struct stats_mark *to = &p->minute[p->n_minute % STATS_MINUTES], m;

	stats_now(p, &m);
	__atomic_store_n(&to->at_ns, 0, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	copy_words(&to->prompt_tokens, &m.prompt_tokens, sizeof(m) - sizeof(m.at_ns));
	__atomic_store_n(&to->at_ns, m.at_ns, __ATOMIC_RELEASE);
	__atomic_store_n(&p->n_minute, p->n_minute + 1, __ATOMIC_RELEASE);
	p->blocks_peak = (uint32_t)p->blocks_used;
}

static bool mark_read(const struct stats_page *p, uint64_t i, struct stats_mark *out)
{
	const struct stats_mark *from = &p->minute[i % STATS_MINUTES];
	uint64_t at = __atomic_load_n(&from->at_ns, __ATOMIC_ACQUIRE);

	copy_words(out, from, sizeof(*out));
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	out->at_ns = at;
	return at && __atomic_load_n(&from->at_ns, __ATOMIC_RELAXED) == at;
}

bool stats_since(const struct stats_page *p, uint64_t since_ns, struct stats_mark *out)
{
	uint64_t n = __atomic_load_n(&p->n_minute, __ATOMIC_ACQUIRE);
	uint64_t oldest = n > STATS_MINUTES ? n - STATS_MINUTES : 0;
	bool found = false;
	struct stats_mark m;

	for (uint64_t i = n; i-- > oldest; ) {
		if (!mark_read(p, i, &m))
			continue;             /* the oldest, being written over */
		*out = m;
		found = true;
		if (m.at_ns <= since_ns)
			break;
	}
	return found;
}

struct stats_client *stats_client_take(struct stats_page *p, const char name[32], uint32_t pid, uint32_t uid)
{
	struct timespec t;

	p->n_client++;
	for (int i = 0; i < STATS_CLIENTS; i++) {
		struct stats_client *c = &p->client[i];

		if (c->id)
			continue;
		clock_gettime(CLOCK_MONOTONIC, &t);
		*c = (struct stats_client){ .pid = pid, .uid = uid, .since_ns =
			(uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec };
		memcpy(c->name, name, sizeof(c->name));
		__atomic_store_n(&c->id, p->n_client, __ATOMIC_RELEASE);
		return c;
	}
	return NULL;
}

void stats_client_give(struct stats_client *c) { __atomic_store_n(&c->id, 0, __ATOMIC_RELEASE); }

/* ---- the page ---------------------------------------------------------------------------- */

static int page_path(char *out, size_t n, const char *run_dir, const char *name)
{
	return snprintf(out, n, "%s/%s", run_dir, name) < (int)n ? 0 : -ENAMETOOLONG;
}

int stats_create(struct stats_page **out, const char *run_dir, char *err, size_t errlen)
{
	char path[4096], temp[4096];
	struct stats_page *p;
	struct timespec t, mono;
	int fd, e;

	_Static_assert(sizeof(struct stats_mark) % sizeof(uint64_t) == 0, "a mark is whole words");
	_Static_assert(sizeof(step) / sizeof(step[0]) < STATS_BUCKETS &&
	               sizeof(latency) / sizeof(latency[0]) < STATS_BUCKETS, "a bucket for +Inf");
	*out = NULL;
	if (page_path(path, sizeof(path), run_dir, "stats") < 0 ||
	    page_path(temp, sizeof(temp), run_dir, "stats.new") < 0) {
		snprintf(err, errlen, "run directory: name too long");
		return -ENAMETOOLONG;
	}
	unlink(temp);
	fd = open(temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd < 0)
		goto fail;
	while ((errno = posix_fallocate(fd, 0, sizeof(*p))) == EINTR)
		continue;                     /* a hole for which there is no room would be SIGBUS, later */
	if (errno)
		goto fail;
	p = mmap(NULL, sizeof(*p), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (p == MAP_FAILED)
		goto fail;
	close(fd);
	clock_gettime(CLOCK_REALTIME, &t);
	clock_gettime(CLOCK_MONOTONIC, &mono);
	p->magic = STATS_MAGIC;
	p->version = STATS_VERSION;
	p->bytes = sizeof(*p);
	p->pid = (uint32_t)getpid();
	p->start_unix = (uint64_t)t.tv_sec;
	p->start_ns = (uint64_t)mono.tv_sec * 1000000000u + (uint64_t)mono.tv_nsec;
	if (getrandom(&p->epoch, sizeof(p->epoch), 0) < 0)
		p->epoch = p->start_ns ^ p->pid;
	p->epoch |= 1;                        /* never 0 */
	if (rename(temp, path) < 0) {
		e = errno;
		snprintf(err, errlen, "%s: cannot be made: %s", path, strerror(e));
		munmap(p, sizeof(*p));
		unlink(temp);
		return -e;
	}
	*out = p;
	return 0;
fail:
	e = errno;
	snprintf(err, errlen, "%s: cannot be made, %zu KiB: %s", temp, sizeof(*p) >> 10, strerror(e));
	if (fd >= 0) {
		close(fd);
		unlink(temp);
	}
	return -e;
}

void stats_destroy(struct stats_page *p, const char *run_dir)
{
	char path[4096];

	if (!p)
		return;
	__atomic_store_n(&p->epoch, 0, __ATOMIC_RELEASE);
	munmap(p, sizeof(*p));
	if (page_path(path, sizeof(path), run_dir, "stats") == 0)
		unlink(path);
}

int stats_open(const struct stats_page **out, const char *run_dir)
{
	char path[4096];
	struct stat st;
	const struct stats_page *p;
	int fd, r;

	*out = NULL;
	if ((r = page_path(path, sizeof(path), run_dir, "stats")) < 0)
		return r;
	if ((fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) < 0)
		return -errno;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || (size_t)st.st_size < sizeof(*p)) {
		close(fd);
		return -EPROTO;
	}
	p = mmap(NULL, sizeof(*p), PROT_READ, MAP_SHARED, fd, 0);
	r = p == MAP_FAILED ? -errno : 0;
	close(fd);
	if (r < 0)
		return r;
	if (p->magic != STATS_MAGIC || p->version != STATS_VERSION || p->bytes != sizeof(*p)) {
		stats_close(p);
		return -EPROTO;
	}
	*out = p;
	return 0;
}

bool stats_stale(const struct stats_page *p, const char *run_dir)
{
	const struct stats_page *now;
	bool stale;

	if (__atomic_load_n(&p->epoch, __ATOMIC_ACQUIRE) == 0)
		return true;
	if (stats_open(&now, run_dir) < 0)
		return false;                 /* no newer one to change to */
	stale = now->epoch != p->epoch;
	stats_close(now);
	return stale;
}

void stats_close(const struct stats_page *p)
{
	if (p)
		munmap((void *)(uintptr_t)p, sizeof(*p));
}
