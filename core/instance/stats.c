/* stats.c - the stats page: the daemon makes it, and permitted readers copy it. */
#include "stats.h"
#include "refuse.h"
#include "shmring/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* vLLM's bounds, with finer ones below, because a fast engine's values would all fall into the first. */
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

const char *stats_cores_name(int by)
{
	static const char *const name[N_CORES] = { "others", "quota", "hypervisor" };

	return by >= 0 && by < N_CORES ? name[by] : "?";
}

/* Count the same value n times. */
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

/* Copy word by word, each word whole, because the other side may write or read meanwhile. */
static void copy_words(void *to, const void *from, size_t bytes)
{
	for (size_t i = 0; i < bytes / sizeof(uint64_t); i++)
		__atomic_store_n((uint64_t *)to + i,
		                 __atomic_load_n((const uint64_t *)from + i, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

void stats_count(struct stats_page *p, const struct counters *c)
{
	copy_words(&p->count, c, offsetof(struct counters, why_ns));
}

/* Both axes together, so that readers see them add up. */
void stats_axes(struct stats_page *p, const struct counters *c, uint64_t now)
{
	copy_words(p->count.why_ns, c->why_ns, sizeof(*c) - offsetof(struct counters, why_ns));
	p->accounted_ns = now;
}

void stats_now(const struct stats_page *p, struct stats_mark *m)
{
	*m = (struct stats_mark){
		.at_ns = p->accounted_ns, .count = p->count,
		.running = (uint32_t)p->running, .waiting = (uint32_t)p->waiting,
		.clients = (uint32_t)p->clients, .blocks_peak = p->blocks_peak,
	};
}

/* A reader of the mark that is being replaced sees at_ns change, and uses another mark. */
void stats_minute(struct stats_page *p)
{
	struct stats_mark *to = &p->minute[p->n_minute % STATS_MINUTES], m;

	stats_now(p, &m);
	__atomic_store_n(&to->at_ns, 0, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	copy_words(&to->count, &m.count, sizeof(m) - sizeof(m.at_ns));
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
			continue;             /* the oldest mark, being replaced */
		*out = m;
		found = true;
		if (m.at_ns <= since_ns)
			break;
	}
	return found;
}

struct stats_client *stats_client_take(struct stats_page *p, const char name[32], uint32_t pid, uint32_t uid)
{
	p->n_client++;
	for (int i = 0; i < STATS_CLIENTS; i++) {
		struct stats_client *c = &p->client[i];

		if (c->id)
			continue;
		*c = (struct stats_client){ .pid = pid, .uid = uid, .since_ns = sr_now() };
		memcpy(c->name, name, sizeof(c->name));
		__atomic_store_n(&c->id, p->n_client, __ATOMIC_RELEASE);
		return c;
	}
	return NULL;
}

/* The row of this uid; of one without ends, if it has none yet; else the last row, which all others share. */
static struct stats_uid *uid_row(struct stats_page *p, uint32_t uid)
{
	struct stats_uid *empty = NULL;

	for (int i = 0; i < STATS_UIDS; i++) {
		if (p->uid[i].n && p->uid[i].uid == uid)
			return &p->uid[i];
		if (!p->uid[i].n && !empty)
			empty = &p->uid[i];
	}
	if (!empty)
		return &p->uid[STATS_UIDS];
	empty->uid = uid;
	return empty;
}

/* A free place; if there is none, that of the oldest end of the uid that has most, which may be `own`. */
static uint16_t end_place(struct stats_page *p, const struct stats_uid *own)
{
	struct stats_uid *most = &p->uid[own - p->uid];
	uint16_t at;

	if (p->ends_used < STATS_ENDED)
		return (uint16_t)p->ends_used++;
	for (int i = 0; i <= STATS_UIDS; i++)
		if (p->uid[i].n > most->n)
			most = &p->uid[i];
	at = most->first;
	most->first = p->end_next[at];
	most->n--;
	return at;
}

/* As in a mark, the first word is 0 while the others change. */
void stats_end(struct stats_page *p, const struct stats_ended *e)
{
	struct stats_uid *u = uid_row(p, e->uid);
	uint16_t at = end_place(p, u);
	struct stats_ended *to = &p->ended[at];

	*(u->n++ ? &p->end_next[u->last] : &u->first) = at;
	u->last = at;
	__atomic_store_n(&to->number, 0, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	memcpy((char *)to + sizeof(to->number), (const char *)e + sizeof(e->number), sizeof(*e) - sizeof(e->number));
	__atomic_store_n(&to->number, ++p->n_ended, __ATOMIC_RELEASE);
}

void stats_span_now(const struct counters *c, struct stats_span *out)
{
	out->steps = (uint32_t)c->steps;
	out->rows = (uint32_t)c->rows;
	for (int i = 0; i < N_WHY; i++)
		out->why[i] = (uint32_t)(c->why_ns[i] >> 10);
	for (int i = 0; i < N_BOUND; i++)
		out->bound[i] = (uint32_t)(c->bound_ns[i] >> 10);
}

void stats_span_between(const struct stats_span *from, const struct stats_span *to, struct stats_span *out)
{
	out->steps = to->steps - from->steps;
	out->rows = to->rows - from->rows;
	for (int i = 0; i < N_WHY; i++)
		out->why[i] = to->why[i] - from->why[i];
	for (int i = 0; i < N_BOUND; i++)
		out->bound[i] = to->bound[i] - from->bound[i];
}

uint64_t stats_request_name(const char *id, size_t n)
{
	uint64_t h = 0xcbf29ce484222325u;

	for (size_t i = 0; i < n; i++)
		h = (h ^ (unsigned char)id[i]) * 0x100000001b3u;
	return h ? h : 1;
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
	struct timespec t;
	int fd, e;

	_Static_assert(sizeof(struct stats_mark) % sizeof(uint64_t) == 0, "a mark is whole words");
	_Static_assert(sizeof(step) / sizeof(step[0]) < STATS_BUCKETS &&
	               sizeof(latency) / sizeof(latency[0]) < STATS_BUCKETS, "a bucket for +Inf");
	*out = NULL;
	if (page_path(path, sizeof(path), run_dir, "stats") < 0 ||
	    page_path(temp, sizeof(temp), run_dir, "stats.new") < 0)
		return refuse(-ENAMETOOLONG, err, errlen, "run directory: name too long");
	unlink(temp);
	fd = open(temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd < 0)
		goto fail;
	while ((errno = posix_fallocate(fd, 0, sizeof(*p))) == EINTR)
		continue;                     /* a hole now would be SIGBUS later, when the disk is full */
	if (errno)
		goto fail;
	p = mmap(NULL, sizeof(*p), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (p == MAP_FAILED)
		goto fail;
	close(fd);
	clock_gettime(CLOCK_REALTIME, &t);
	p->magic = STATS_MAGIC;
	p->version = STATS_VERSION;
	p->bytes = sizeof(*p);
	p->pid = (uint32_t)getpid();
	p->start_unix = (uint64_t)t.tv_sec;
	p->start_ns = sr_now();
	if (getrandom(&p->epoch, sizeof(p->epoch), 0) < 0)
		p->epoch = p->start_ns ^ p->pid;
	p->epoch |= 1;                        /* 0 means stopped */
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

/* ---- a reader's copy ----------------------------------------------------------------------- */

/* The file belongs to the daemon's user, who may shrink it or write anything into it at any time.  So no
 * reader maps it: pread returns fewer bytes where a mapping would raise SIGBUS.  Linux copies aligned
 * words whole (tests/core/instance/test_stats.c: test_words), so each word is as the daemon stored it. */
struct stats_view {
	struct stats_page page;       /* first, because stats_open returns its address */
	struct stats_page other;      /* copies made before and after, for word[] */
	uint64_t word[STATS_MINUTES + STATS_CLIENTS];
	uint64_t epoch;               /* of the daemon that wrote the file */
	uid_t owner;
	int fd;
};

#define HEAD offsetof(struct stats_page, step) /* what queue limits and /metrics read, but minutes */
#define MOST offsetof(struct stats_page, n_ended) /* all but the ends */
#define RAN  offsetof(struct stats_page, n_ran)
#define RANKS (MOST - offsetof(struct stats_page, n_ranks)) /* they lie last, and are read with the head, too */

static struct stats_view *view_of(const struct stats_page *p) { return (struct stats_view *)(uintptr_t)p; }

static int file_read(int fd, void *to, size_t n, size_t at)
{
	size_t done = 0;
	ssize_t r = 1;

	while (done < n && ((r = pread(fd, (char *)to + done, n - done, (off_t)(at + done))) > 0 ||
	       (r < 0 && errno == EINTR)))
		done += r > 0 ? (size_t)r : 0;
	return done == n ? 0 : r < 0 ? -errno : -EPROTO; /* -EPROTO: it was cut short */
}

static bool page_is_ours(const struct stats_page *p)
{
	return p->magic == STATS_MAGIC && p->version == STATS_VERSION && p->bytes == sizeof(*p);
}

/* Bytes of the character at s if it can be displayed; 0: a control character, or invalid UTF-8. */
static size_t shown(const unsigned char *s)
{
	size_t n = *s < 0x80 ? 1 : *s < 0xe0 ? 2 : *s < 0xf0 ? 3 : 4;
	unsigned char least = *s == 0xc2 || *s == 0xe0 ? 0xa0 : *s == 0xf0 ? 0x90 : 0x80; /* C1, overlong */
	unsigned char most = *s == 0xed ? 0x9f : *s == 0xf4 ? 0x8f : 0xbf; /* surrogates, beyond the last */

	if (n == 1)
		return *s >= ' ' && *s != 0x7f;
	if (*s < 0xc2 || *s > 0xf4 || s[1] < least || s[1] > most)
		return 0;
	for (size_t i = 2; i < n; i++)
		if (s[i] < 0x80 || s[i] > 0xbf)
			return 0;
	return n;
}

/* Terminate a string, and replace bytes that control a terminal or break JSON.  True: there were none. */
static bool clean(char *s, size_t n)
{
	bool was = true;
	size_t wide;

	s[n - 1] = 0;
	for (; *s; s += wide ? wide : 1) {
		wide = shown((const unsigned char *)s);
		if (!wide) {
			*s = '?';
			was = false;
		}
	}
	return was;
}

/* Terminate a string by which something is found: with a byte replaced, it would find another. */
static void clean_or_none(char *s, size_t n)
{
	if (!clean(s, n))
		*s = 0;
}

/* Check what was read; after an error, epoch is 0: the page shows a stopped daemon. */
static int view_settle(struct stats_view *v, int r)
{
	struct stats_page *p = &v->page;

	if (r == 0 && !page_is_ours(p))
		r = -EPROTO;
	if (r < 0)
		p->epoch = 0;
	clean(p->model, sizeof(p->model));
	clean(p->device, sizeof(p->device));
	clean(p->state, sizeof(p->state));
	clean(p->kv_dtype, sizeof(p->kv_dtype));
	clean(p->kernels_off, sizeof(p->kernels_off));
	clean_or_none(p->config_file, sizeof(p->config_file));
	clean_or_none(p->model_path, sizeof(p->model_path));
	for (int i = 0; i < STATS_NAMES; i++)
		clean_or_none(p->served[i], sizeof(p->served[i]));
	return r;
}

static int read_words(struct stats_view *v)
{
	int r = file_read(v->fd, &v->other, MOST, 0);

	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return r;
}

/* A mark or a row is whole if its first word was the same before and after it was copied.  Others are
 * dropped. */
int stats_read_all(const struct stats_page *page)
{
	struct stats_view *v = view_of(page);
	struct stats_page *p = &v->page, *o = &v->other;
	uint64_t *word = v->word;
	int r = read_words(v);

	for (int i = 0; i < STATS_MINUTES; i++)
		*word++ = o->minute[i].at_ns;
	for (int i = 0; i < STATS_CLIENTS; i++)
		*word++ = o->client[i].id;
	if (r == 0)
		r = file_read(v->fd, p, MOST, 0);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (r == 0)
		r = read_words(v);
	word = v->word;
	for (int i = 0; i < STATS_MINUTES; i++, word++)
		if (o->minute[i].at_ns != *word || p->minute[i].at_ns != *word)
			p->minute[i].at_ns = 0;
	for (int i = 0; i < STATS_CLIENTS; i++, word++)
		if (o->client[i].id != *word || p->client[i].id != *word)
			p->client[i].id = 0;
	return view_settle(v, r);
}

/* Twice: an end that changed meanwhile is dropped. */
int stats_read_ended(const struct stats_page *page)
{
	struct stats_view *v = view_of(page);
	struct stats_page *p = &v->page, *o = &v->other;
	int r = file_read(v->fd, &p->n_ended, sizeof(*p) - MOST, MOST);

	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (r == 0)
		r = file_read(v->fd, &o->n_ended, sizeof(*o) - MOST, MOST);
	for (int i = 0; i < STATS_ENDED; i++) {
		if (r < 0 || o->ended[i].number != p->ended[i].number)
			p->ended[i].number = 0;
		clean(p->ended[i].client, sizeof(p->ended[i].client));
	}
	return view_settle(v, r);
}

int stats_read_ran(const struct stats_page *page)
{
	struct stats_page *p = &view_of(page)->page;
	const int fd = view_of(page)->fd;
	int r = file_read(fd, &p->n_ran, sizeof(p->n_ran), RAN);

	if (r == 0 && p->n_ran > STATS_RAN)
		r = -E2BIG;
	if (r == 0)
		r = file_read(fd, p->ran, p->n_ran * sizeof(*p->ran), offsetof(struct stats_page, ran));
	return r < 0 ? r : (int)p->n_ran;
}

int stats_read(const struct stats_page *page)
{
	struct stats_view *v = view_of(page);
	uint64_t minutes;
	int r = file_read(v->fd, &minutes, sizeof(minutes), offsetof(struct stats_page, n_minute));

	if (r == 0 && minutes != page->n_minute)
		return stats_read_all(page);
	if (r == 0)
		r = file_read(v->fd, &v->page, HEAD, 0);
	if (r == 0)
		r = file_read(v->fd, &v->page.n_ranks, RANKS, offsetof(struct stats_page, n_ranks));
	return view_settle(v, r);
}

/* Open the file of a run directory: a descriptor, or -errno. */
static int file_open(const char *run_dir, struct stat *st)
{
	char path[4096];
	int fd, r = page_path(path, sizeof(path), run_dir, "stats");

	if (r < 0)
		return r;
	if ((fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) < 0)
		return -errno;
	if (fstat(fd, st) == 0 && S_ISREG(st->st_mode))
		return fd;
	close(fd);
	return -EPROTO;
}

int stats_open(const struct stats_page **out, const char *run_dir)
{
	struct stats_view *v;
	struct stat st;
	int fd = file_open(run_dir, &st), r;

	*out = NULL;
	if (fd < 0)
		return fd;
	v = mmap(NULL, sizeof(*v), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (v == MAP_FAILED) {
		r = -errno;
		close(fd);
		return r;
	}
	v->fd = fd;
	v->owner = st.st_uid;
	if ((r = stats_read_all(&v->page)) < 0) {
		stats_close(&v->page);
		return r;
	}
	v->epoch = v->page.epoch;
	*out = &v->page;
	return 0;
}

bool stats_stale(const struct stats_page *p, const char *run_dir)
{
	struct stats_view *v = view_of(p);
	struct { uint32_t magic, version, bytes, pid; uint64_t epoch; } now;
	struct stat st;
	int fd, r;

	_Static_assert(offsetof(struct stats_page, epoch) == offsetof(__typeof__(now), epoch), "the same head");
	if (file_read(v->fd, &now, sizeof(now), 0) < 0 || now.epoch == 0)
		return true;
	if ((fd = file_open(run_dir, &st)) < 0)
		return false;                 /* there is no newer file to change to */
	r = file_read(fd, &now, sizeof(now), 0);
	close(fd);
	return r == 0 && now.magic == STATS_MAGIC && now.version == STATS_VERSION && now.bytes == sizeof(*p) &&
	       now.epoch != v->epoch;
}

uid_t stats_owner(const struct stats_page *p) { return view_of(p)->owner; }

void stats_close(const struct stats_page *p)
{
	if (!p)
		return;
	close(view_of(p)->fd);
	munmap(view_of(p), sizeof(struct stats_view));
}
