/* LINK: core/instance/stats.c core/figures/figures.c core/instance/refuse.c -ljansson -Wl,--wrap=posix_fallocate,--wrap=mmap,--wrap=rename,--wrap=fstat,--wrap=getrandom,--wrap=pread */
/* test_stats.c - the stats page: a reader sees whole words, notices a stale page, and
 * computes from two copies what happened between them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "core/instance/stats.h"
#include "core/figures/figures.h"
#include "shmring/clock.h"

#define SECOND 1000000000ull

static char dir[64], file[80];
static struct stats_page *page;

static int set_up(void **state)
{
	char err[200];

	(void)state;
	strcpy(dir, "/tmp/test-stats-XXXXXX");
	assert_non_null(mkdtemp(dir));
	snprintf(file, sizeof(file), "%s/stats", dir);
	assert_int_equal(stats_create(&page, dir, err, sizeof(err)), 0);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	stats_destroy(page, dir);
	unlink(file);
	rmdir(dir);
	return 0;
}

/* ---- the file ---------------------------------------------------------------------------- */

static void test_open(void **state)
{
	const struct stats_page *p;
	struct stat st;
	uint64_t now = sr_now();

	(void)state;
	page->running = 7;
	assert_int_equal(stats_open(&p, dir), 0);
	assert_int_equal(p->running, 7);
	page->running = 8;
	page->n_ranks = 1;
	page->rank[0].batches = 9;
	assert_int_equal(p->running, 7);         /* a copy: it stays until the next read */
	assert_int_equal(stats_read(p), 0);
	assert_true(p->running == 8 && p->n_ranks == 1 && p->rank[0].batches == 9);
	page->n_ranks = 0;
	assert_int_equal(stats_owner(p), geteuid());
	assert_int_equal(p->pid, getpid());
	assert_true(p->epoch != 0);
	assert_true(p->start_ns <= now && p->start_ns > now - 60 * SECOND);
	assert_int_equal(stat(file, &st), 0);
	assert_int_equal(st.st_mode & 0022, 0);  /* others may read, never write */
	assert_int_equal(st.st_size, sizeof(*page));
	stats_close(p);
	assert_int_equal(msync((void *)(uintptr_t)p, 1, MS_ASYNC), -1); /* no longer mapped */
	stats_close(NULL);
}

static void test_refused(void **state)
{
	struct { size_t at; uint32_t value; } wrong[] = {
		{ offsetof(struct stats_page, magic), 1 },
		{ offsetof(struct stats_page, version), STATS_VERSION + 1 },
		{ offsetof(struct stats_page, bytes), (uint32_t)sizeof(*page) - 8 },
	};
	const struct stats_page *p;
	char err[200], long_dir[5000];

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		uint32_t *word = (uint32_t *)((char *)page + wrong[i].at), right = *word;

		*word = wrong[i].value;
		assert_int_equal(stats_open(&p, dir), -EPROTO);
		assert_null(p);
		*word = right;
	}
	assert_int_equal(truncate(file, 4096), 0);       /* still too short to map */
	assert_int_equal(stats_open(&p, dir), -EPROTO);
	assert_int_equal(truncate(file, sizeof(*page)), 0);
	page->magic = STATS_MAGIC;
	unlink(file);
	assert_int_equal(stats_open(&p, dir), -ENOENT);
	assert_int_equal(symlink("/etc/passwd", file), 0); /* a link is not followed */
	assert_int_equal(stats_open(&p, dir), -ELOOP);
	unlink(file);
	assert_int_equal(mkfifo(file, 0600), 0);         /* and no reader blocks */
	assert_int_equal(stats_open(&p, dir), -EPROTO);
	memset(long_dir, 'x', sizeof(long_dir) - 1);
	long_dir[sizeof(long_dir) - 1] = 0;
	assert_int_equal(stats_open(&p, long_dir), -ENAMETOOLONG);
	long_dir[4096 - strlen("/stats") - 1] = 0;       /* "stats" fits, "stats.new" does not */
	*err = 0;
	assert_int_equal(stats_create(&page, long_dir, err, sizeof(err)), -ENAMETOOLONG);
	assert_non_null(strstr(err, "too long"));
	memset(long_dir, '/', 4096 - strlen("/stats") - 1); /* the longest name; one byte more is refused */
	assert_int_equal(stats_open(&p, long_dir), -ENOENT);
	long_dir[4096 - strlen("/stats") - 1] = '/';
	long_dir[4096 - strlen("/stats")] = 0;
	assert_int_equal(stats_open(&p, long_dir), -ENAMETOOLONG);
	assert_int_equal(stats_create(&page, "/nowhere/at/all", err, sizeof(err)), -ENOENT);
	assert_non_null(strstr(err, "/nowhere/at/all"));
}

/* ---- what fails ---------------------------------------------------------------------------------- */

static const char *fault;                /* the next call of this name */

static bool fails(const char *name)
{
	if (!fault || strcmp(fault, name) != 0)
		return false;
	fault = NULL;
	errno = ENOSPC;
	return true;
}

#define WRAP(value, type, name, args, pass) \
	type __real_##name args; type __wrap_##name args; \
	type __wrap_##name args { return fails(#name) ? value : __real_##name pass; }

WRAP(errno, int, posix_fallocate, (int fd, off_t from, off_t n), (fd, from, n))
WRAP(MAP_FAILED, void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t o),
     (at, n, prot, flags, fd, o))
WRAP(-1, int, rename, (const char *from, const char *to), (from, to))
WRAP(-1, int, fstat, (int fd, struct stat *st), (fd, st))
WRAP(-1, ssize_t, getrandom, (void *to, size_t n, unsigned flags), (to, n, flags))

static int reads, change_at;              /* calls of pread; a row changes owner before this one */

ssize_t __real_pread(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at);

ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at)
{
	if (++reads == change_at) {
		page->client[1].id = 77;
		page->client[STATS_CLIENTS - 1].id = 78;
		page->minute[1].at_ns = 77;
		page->minute[STATS_MINUTES - 1].at_ns = 78;
	}
	return __real_pread(fd, to, n, at);
}

/* The mapped page is still the one read; no descriptor is left. */
static void test_fails(void **state)
{
	static const struct { const char *name; bool open; int want; } cases[] = {
		{ "posix_fallocate", false, -ENOSPC }, { "mmap", false, -ENOSPC }, { "rename", false, -ENOSPC },
		{ "fstat", true, -EPROTO }, { "mmap", true, -ENOSPC },
	};
	struct stats_page *made;
	const struct stats_page *p;
	char temp[96], err[200];
	int first = dup(0), last;

	(void)state;
	close(first);
	snprintf(temp, sizeof(temp), "%s.new", file);
	page->running = 77;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		*err = 0;
		fault = cases[i].name;
		if (cases[i].open) {
			assert_int_equal(stats_open(&p, dir), cases[i].want);
			assert_null(p);
		} else {
			assert_int_equal(stats_create(&made, dir, err, sizeof(err)), cases[i].want);
			assert_null(made);
			assert_non_null(strstr(err, "cannot be made"));
			assert_int_equal(access(temp, F_OK), -1);
		}
		assert_null(fault);
		assert_int_equal(stats_open(&p, dir), 0);
		assert_int_equal(p->running, 77);
		stats_close(p);
	}
	last = dup(0);
	close(last);
	assert_int_equal(first, last);
	stats_destroy(page, dir);
	fault = "getrandom";                     /* not needed */
	assert_int_equal(stats_create(&page, dir, err, sizeof(err)), 0);
	assert_null(fault);
	assert_true(page->epoch & 1);
}

static void test_stale(void **state)
{
	const struct stats_page *p, *q;
	struct stats_page *old = page;
	char err[200];

	(void)state;
	assert_int_equal(stats_open(&p, dir), 0);
	assert_false(stats_stale(p, dir));
	unlink(file);
	assert_false(stats_stale(p, dir));               /* there is no other page */
	assert_int_equal(stats_create(&page, dir, err, sizeof(err)), 0);
	assert_true(stats_stale(p, dir));                /* the daemon restarted */
	assert_int_equal(stats_open(&q, dir), 0);
	assert_false(stats_stale(q, dir));
	assert_true(q->epoch != p->epoch);
	stats_destroy(page, dir);
	assert_int_equal(access(file, F_OK), -1);
	assert_true(stats_stale(q, dir));                /* it stopped */
	stats_close(q);
	stats_close(p);
	stats_destroy(old, dir);
	page = NULL;
}

/* ---- minutes ----------------------------------------------------------------------------- */

static void minute(uint64_t i)
{
	page->accounted_ns = (1000 + 60 * i) * SECOND;
	page->count.generation_tokens = 100 * i;
	page->count.why_ns[WHY_SEQS] = 60 * i * SECOND;
	for (int k = 0; k < N_EMPTY; k++)
		page->count.empty_ns[k] = (uint64_t)(k + 1) * i;
	page->count.ended[ENDED_STOP] = i;
	page->count.ended[ENDED_ERROR] = i;
	page->blocks_used = i % 7;
	stats_minute(page);
}

static void test_minutes(void **state)
{
	static const struct { uint64_t n; int since, want; } cases[] = { /* minutes from the first */
		{ 1, 0, 0 }, { 1, -5, 0 }, { 1, 9, 0 },
		{ 10, 4, 4 }, { 10, 9, 9 }, { 10, 100, 9 }, { 10, -1, 0 },
		{ STATS_MINUTES, 0, 0 }, { STATS_MINUTES + 1, 0, 1 }, { 3 * STATS_MINUTES,
		        2 * STATS_MINUTES + 3,
		  2 * STATS_MINUTES + 3 }, { 3 * STATS_MINUTES, 5, 2 * STATS_MINUTES },
	};
	struct stats_mark m;

	(void)state;
	assert_false(stats_since(page, 0, &m));
	for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
		page->n_minute = 0;
		memset(page->minute, 0, sizeof(page->minute));
		for (uint64_t i = 0; i < cases[c].n; i++)
			minute(i);
		assert_true(stats_since(page, (uint64_t)((1000 + 60 * cases[c].since) * (int64_t)SECOND + 7),
		                        &m));
		if (m.count.generation_tokens != 100 * (uint64_t)cases[c].want)
			fail_msg("case %zu: minute %llu", c, (unsigned long long)m.count.generation_tokens / 100);
		assert_int_equal(m.at_ns, (1000 + 60 * (uint64_t)cases[c].want) * SECOND);
		assert_int_equal(counters_ended(&m.count), 2 * cases[c].want);
		assert_int_equal(m.count.why_ns[WHY_SEQS], 60 * (uint64_t)cases[c].want * SECOND);
		for (int k = 0; k < N_EMPTY; k++)
			assert_int_equal(m.count.empty_ns[k], (k + 1) * cases[c].want);
	}
}

/* Every counter goes into the page and from there into the mark; the axes when they are told to. */
static void test_counters(void **state)
{
	struct counters c, n;
	struct stats_mark m;
	struct figures f;
	json_t *lost = json_object();
	const size_t axes = offsetof(struct counters, why_ns) / sizeof(uint64_t);
	bool any;
	char text[100];

	(void)state;
	for (size_t i = 0; i < COUNTERS_WORDS; i++)
		counter_set(&c, i, i + 1);
	stats_count(page, &c);
	for (size_t i = 0; i < COUNTERS_WORDS; i++)
		assert_int_equal(counter_value(&page->count, i), i < axes ? i + 1 : 0);
	assert_int_equal(page->accounted_ns, 0);
	stats_axes(page, &c, 5);
	assert_memory_equal(&page->count, &c, sizeof(c));
	assert_int_equal(page->accounted_ns, 5);
	stats_minute(page);
	assert_true(stats_since(page, 5, &m));
	assert_memory_equal(&m.count, &c, sizeof(c));
	figures_between(&(struct stats_mark){ 0 }, &m, &f);
	assert_memory_equal(&f.n, &c, sizeof(c));
	for (size_t i = 0; i < COUNTERS_NAMED; i++) {     /* no name, and no metric, twice */
		assert_true(strlen(counter_info(i)->name) > 0);
		for (size_t k = 0; k < i; k++) {
			const char *a = counter_info(i)->metric, *b = counter_info(k)->metric;

			assert_string_not_equal(counter_info(i)->name, counter_info(k)->name);
			assert_true(!a || !b || strcmp(a, b) != 0);
		}
	}
	figures_lost_json(lost, &c);
	assert_int_equal(json_object_size(lost), 2);
	n = (struct counters){ 0 };
	assert_string_equal(figures_lost(text, sizeof(text), &n, &any), "0 preemptions, 0 guide_misses");
	assert_false(any);
	figures_lost_read(&n, lost);
	assert_int_equal(n.preemptions, c.preemptions);
	figures_lost(text, sizeof(text), &n, &any);
	assert_true(any);
	json_decref(lost);
}

static void test_peak(void **state)
{
	struct stats_mark m;

	(void)state;
	page->blocks_used = 3;
	page->blocks_peak = 50;
	page->accounted_ns = 5;
	stats_minute(page);
	assert_int_equal(page->blocks_peak, 3);          /* the next minute begins with what is held */
	assert_true(stats_since(page, 5, &m));
	assert_int_equal(m.blocks_peak, 50);
}

/* All words of a mark carry the same number, or it is not used: while it is overwritten, the
 * reader gets another mark. */
static atomic_bool stop;

static void *writer(void *arg)
{
	(void)arg;
	for (uint64_t i = 1; !stop; i++) {
		page->accounted_ns = page->count.generation_tokens = page->count.prompt_tokens = i;
		for (int k = 0; k < COUNTERS_AXIS; k++)
			page->count.why_ns[k] = page->count.bound_ns[k] = i;
		stats_minute(page);
		if (i % 64 == 0)                 /* a day's marks are not all written over within one look */
			usleep(100);
	}
	return NULL;
}

static void test_whole(void **state)
{
	const struct stats_page *p;
	struct stats_mark m;
	pthread_t t;
	uint64_t end = sr_now() + 10 * SECOND;
	int got = 0;

	(void)state;
	page->accounted_ns = 1;
	for (int i = 0; i < STATS_MINUTES; i++)
		stats_minute(page);
	assert_int_equal(stats_open(&p, dir), 0);
	assert_true(stats_since(p, 0, &m));
	stop = false;
	assert_int_equal(pthread_create(&t, NULL, writer, NULL), 0);
	while (got < 1000 && sr_now() < end) {
		assert_int_equal(stats_read(p), 0);
		if (!stats_since(p, got % 2 ? UINT64_MAX : 0, &m))
			continue;
		if (m.count.generation_tokens == 0)            /* of before the writer began */
			continue;
		got++;
		assert_int_equal(m.count.generation_tokens, m.at_ns);
		assert_int_equal(m.count.prompt_tokens, m.at_ns);
		for (int k = 0; k < COUNTERS_AXIS; k++)
			assert_true(m.count.why_ns[k] == m.at_ns && m.count.bound_ns[k] == m.at_ns);
	}
	stop = true;
	pthread_join(t, NULL);
	stats_close(p);
	assert_true(got > 10);
}

/* The kernel's copy gives words as they were stored, none of them half old and half new. */
static void *flipper(void *arg)
{
	(void)arg;
	for (uint64_t i = 0; !stop; i++) {
		__atomic_store_n(&page->count.steps, i & 1 ? UINT64_MAX : 0, __ATOMIC_RELAXED);
		__atomic_store_n(&page->progress, i & 1 ? UINT64_MAX : 0, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void test_words(void **state)
{
	const struct stats_page *p;
	uint64_t seen[2] = { 0, 0 };
	pthread_t t;

	(void)state;
	assert_int_equal(stats_open(&p, dir), 0);
	stop = false;
	assert_int_equal(pthread_create(&t, NULL, flipper, NULL), 0);
	for (int i = 0; i < 100000; i++) {
		assert_int_equal(stats_read(p), 0);
		assert_true(p->count.steps == 0 || p->count.steps == UINT64_MAX);
		assert_true(p->progress == 0 || p->progress == UINT64_MAX);
		seen[p->count.steps != 0]++;
	}
	stop = true;
	pthread_join(t, NULL);
	stats_close(p);
	assert_true(seen[0] && seen[1]);
}

/* A row or a mark that changes between the look before, the copy and the look after is dropped; others stay. */
static void test_changes_hands(void **state)
{
	const struct stats_page *p;

	(void)state;
	assert_int_equal(stats_open(&p, dir), 0);
	for (int at = 0; at <= 4; at++) {         /* three reads: the change before the fourth is too late to see */
		bool gone = at == 2 || at == 3;

		for (int i = 0; i < STATS_CLIENTS; i++)
			page->client[i].id = (uint64_t)i + 1000;
		for (int i = 0; i < STATS_MINUTES; i++)
			page->minute[i].at_ns = (uint64_t)i + 1000;
		reads = 0;
		change_at = at;
		assert_int_equal(stats_read_all(p), 0);
		assert_int_equal(reads, 3);
		assert_int_equal(p->client[1].id, gone ? 0 : at == 1 ? 77 : 1001);
		assert_int_equal(p->client[STATS_CLIENTS - 1].id, gone ? 0 : at == 1 ? 78 : STATS_CLIENTS + 999);
		assert_int_equal(p->minute[1].at_ns, gone ? 0 : at == 1 ? 77 : 1001);
		assert_int_equal(p->minute[STATS_MINUTES - 1].at_ns, gone ? 0 : at == 1 ? 78 : STATS_MINUTES + 999);
		for (int i = 2; i < STATS_CLIENTS - 1; i++)
			assert_int_equal(p->client[i].id, i + 1000);
		for (int i = 2; i < STATS_MINUTES - 1; i++)
			assert_int_equal(p->minute[i].at_ns, i + 1000);
	}
	change_at = 0;
	stats_close(p);
}

/* ---- an owner who lies --------------------------------------------------------------------------- */

/* Its owner cuts the file under a reader at each length, and at each call. */
static void test_cut(void **state)
{
	static const off_t cut[] = { 0, 1, 16, 4096, 8192, 500000,
	                            offsetof(struct stats_page, n_ended) - 1 };
	const struct stats_page *p, *q;

	(void)state;
	for (size_t i = 0; i < sizeof(cut) / sizeof(cut[0]); i++) {
		int r;

		assert_int_equal(stats_open(&p, dir), 0);
		assert_int_equal(truncate(file, cut[i]), 0);
		assert_int_equal(stats_read_all(p), -EPROTO);
		assert_int_equal(p->epoch, 0);           /* as if the daemon had stopped */
		assert_int_equal(stats_open(&q, dir), -EPROTO);
		r = stats_read(p);                       /* what it needs may still be there */
		assert_true(r == 0 || r == -EPROTO);
		if (cut[i] < 8)
			assert_true(stats_stale(p, dir));
		stats_close(p);
		assert_int_equal(truncate(file, sizeof(*page)), 0); /* the writer's own mapping is whole again */
		page->magic = STATS_MAGIC;
		page->version = STATS_VERSION;
		page->bytes = sizeof(*page);
		page->epoch = 1;
	}
}

static uint64_t seed = 88172645463325252u;

static uint64_t chance(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	return seed ^= seed << 17;
}

/* Every byte at random: what comes of it is bounded, strings end and are UTF-8 that can be shown. */
static void test_lies(void **state)
{
	const struct stats_page *p;
	struct stats_mark m;
	uint64_t *word = (uint64_t *)page;

	(void)state;
	for (int round = 0; round < 50; round++) {
		const char *text[4];

		for (size_t i = 2; i < sizeof(*page) / 8; i++)
			word[i] = chance();
		page->n_minute = round % 2 ? UINT64_MAX : page->n_minute % 3000;
		assert_int_equal(stats_open(&p, dir), 0);
		text[0] = p->model, text[1] = p->device, text[2] = p->state, text[3] = p->kv_dtype;
		assert_true(strlen(p->model) < sizeof(p->model) && strlen(p->device) < sizeof(p->device));
		assert_true(strlen(p->state) < sizeof(p->state) && strlen(p->kv_dtype) < sizeof(p->kv_dtype));
		assert_true(strlen(p->config_file) < sizeof(p->config_file));
		for (int i = 0; i < 4; i++) {
			json_t *j = json_string(text[i]);        /* NULL if it is no UTF-8 */

			assert_non_null(j);
			json_decref(j);
			for (const char *s = text[i]; *s; s++) {
				assert_true((unsigned char)*s >= ' ' && *s != 0x7f);
				assert_false(*s == (char)0xc2 && (unsigned char)s[1] < 0xa0); /* C1 */
			}
		}
		stats_since(p, chance(), &m);
		stats_since(p, 0, &m);
		stats_now(p, &m);
		stats_close(p);
	}
}

static void test_strings(void **state)
{
	static const struct { const char *raw, *shown; } cases[] = {
		{ "модель 模型 \xf0\x9f\x98\x80", "модель 模型 \xf0\x9f\x98\x80" }, { "a\033[2Jb\x7f", "a?[2Jb?" },
		{ "\xc2\x9b" "2J", "??2J" }, { "\xc2\xa0", "\xc2\xa0" }, { "\xff\xc0\x80", "???" },
		{ "\xe0\x80\x80", "???" }, { "\xed\xa0\x80", "???" }, { "\xf4\x90\x80\x80", "????" },
		{ "\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf" }, { "\xe4\xb8", "??" }, { "\n", "?" },
		{ "\xf0\x80\x80\x80", "????" }, { "\xe0\xa0\x80", "\xe0\xa0\x80" },
	};
	const struct stats_page *p;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		strcpy(page->model, cases[i].raw);
		strcpy(page->config_file, cases[i].raw);
		strcpy(page->model_path, cases[i].raw);
		strcpy(page->served[STATS_NAMES - 1], cases[i].raw);
		assert_int_equal(stats_open(&p, dir), 0);
		assert_string_equal(p->model, cases[i].shown);
		assert_string_equal(p->config_file, strcmp(cases[i].raw, cases[i].shown) ? "" : cases[i].raw);
		assert_string_equal(p->model_path, p->config_file);
		assert_string_equal(p->served[STATS_NAMES - 1], p->config_file);
		stats_close(p);
	}
	memset(page->device, 'x', sizeof(page->device));  /* without an end */
	memset(page->state, 0xe4, sizeof(page->state));
	assert_int_equal(stats_open(&p, dir), 0);
	assert_int_equal(strlen(p->device), sizeof(p->device) - 1);
	assert_int_equal(strspn(p->state, "?"), sizeof(p->state) - 1);
	stats_close(p);
}

/* ---- clients ----------------------------------------------------------------------------- */

static void test_clients(void **state)
{
	static const char name[32] = "one";
	struct stats_client *c[STATS_CLIENTS + 1];
	uint64_t before = sr_now();

	(void)state;
	for (int i = 0; i <= STATS_CLIENTS; i++) {
		c[i] = stats_client_take(page, name, 10, (uint32_t)i);
		assert_true((c[i] != NULL) == (i < STATS_CLIENTS));
	}
	assert_string_equal(c[5]->name, "one");
	assert_true(c[5]->since_ns >= before && c[5]->since_ns <= sr_now());
	assert_int_equal(c[5]->id, 6);
	c[5]->tokens = 99;
	stats_client_give(c[5]);
	assert_int_equal(c[5]->id, 0);
	c[5] = stats_client_take(page, name, 11, 12);
	assert_int_equal(c[5]->id, STATS_CLIENTS + 2);   /* never that of another */
	assert_int_equal(c[5]->tokens, 0);
	assert_int_equal(c[5]->uid, 12);
}

/* ---- histograms and figures -------------------------------------------------------------- */

static void test_observe(void **state)
{
	int n;
	const double *bound = stats_bounds(HIST_ITL, &n);

	(void)state;
	for (int h = 0; h < N_HIST; h++) {
		int m;
		const double *b = stats_bounds((enum stats_hist)h, &m);

		assert_true(m > 0 && m < STATS_BUCKETS && *stats_name((enum stats_hist)h));
		for (int i = 1; i < m; i++)
			assert_true(b[i] > b[i - 1]);
	}
	stats_observe(page, HIST_ITL, bound[0]);         /* a bound is in its bucket */
	stats_observe(page, HIST_ITL, bound[0] * 1.0001);
	stats_observe(page, HIST_ITL, 1e9);
	stats_observe_many(page, HIST_TTFT, 0.5, 3);
	assert_true(page->hist[HIST_TTFT].sum == 1.5);
	assert_int_equal(page->hist[HIST_ITL].count[0], 1);
	assert_int_equal(page->hist[HIST_ITL].count[1], 1);
	assert_int_equal(page->hist[HIST_ITL].count[n], 1);
}

static void test_percentile(void **state)
{
	struct stats_histogram a = { { 0 }, 0 }, *b = &page->hist[HIST_ITL];
	int n;
	const double *bound = stats_bounds(HIST_ITL, &n);

	(void)state;
	assert_true(isnan(figures_percentile(HIST_ITL, NULL, b, 0.5)));
	for (int i = 0; i < 100; i++)
		stats_observe(page, HIST_ITL, 0.004);    /* in (0.0025, 0.005] */
	assert_true(fabs(figures_percentile(HIST_ITL, NULL, b, 0.5) - 0.00375) < 1e-9);
	assert_true(fabs(figures_percentile(HIST_ITL, NULL, b, 1) - 0.005) < 1e-9);
	a = *b;
	assert_true(isnan(figures_percentile(HIST_ITL, &a, b, 0.5)));
	for (int i = 0; i < 3; i++)
		stats_observe(page, HIST_ITL, 0.00005);
	assert_true(figures_percentile(HIST_ITL, &a, b, 0.99) <= bound[0]);
	stats_observe(page, HIST_ITL, 1e9);
	assert_true(figures_percentile(HIST_ITL, &a, b, 1) == bound[n - 1]);
}

static void test_between(void **state)
{
	struct stats_mark a = { .at_ns = 10 * SECOND, .count = { .generation_tokens = 100, .steps = 10,
	                        .rows = 30, .ended = { 5 } } }, b = a;
	struct figures f;

	(void)state;
	figures_between(&a, &b, &f);                     /* nothing happened: no division by it */
	assert_true(f.generated_per_s == 0 && isnan(f.hit_rate) && isnan(f.rows) && f.why_all == 0);
	b.at_ns += 2 * SECOND;
	b.count.generation_tokens += 50;
	b.count.steps += 10;
	b.count.rows += 25;
	b.count.prefix_queries = 200;
	b.count.prefix_hits = 50;
	b.count.why_ns[WHY_KV] = SECOND;
	b.count.why_ns[WHY_EMPTY] = SECOND;
	b.count.waiting_ns = 6 * SECOND;
	figures_between(&a, &b, &f);
	assert_true(f.generated_per_s == 25 && f.rows == 2.5 && f.hit_rate == 0.25);
	assert_true(f.why_s[WHY_KV] == 1 && f.why_all == 2 && f.waiting == 3);
	figures_between(&b, &a, &f);                     /* words of different moments: never below 0 */
	assert_true(f.seconds == 0 && f.generated_per_s == 0);
}

/* A sleeping daemon has not counted its sleep yet; a reader counts it as empty and idle. */
static void test_asleep(void **state)
{
	struct stats_mark m;
	uint64_t now = sr_now();

	(void)state;
	page->accounted_ns = now - 5 * SECOND;
	figures_now(page, true, &m);
	assert_true(m.at_ns >= now && m.count.why_ns[WHY_EMPTY] >= 5 * SECOND);
	assert_true(m.count.why_ns[WHY_EMPTY] == m.count.bound_ns[BOUND_IDLE]);
	page->busy_since_ns = now - SECOND;              /* in the middle of a step: nobody knows yet */
	figures_now(page, true, &m);
	assert_int_equal(m.at_ns, now - 5 * SECOND);
	assert_int_equal(m.count.why_ns[WHY_EMPTY], 0);
	page->busy_since_ns = 0;
	figures_now(page, false, &m);                    /* it is dead */
	assert_int_equal(m.count.why_ns[WHY_EMPTY], 0);
}

static void test_text(void **state)
{
	static const char raw[32] = "a\033[2Jb\n\xff" "c";
	static const struct { double s; const char *ms, *age; } cases[] = {
		{ 0.00123, "1.23 ms", "0.0 s" }, { 0.0123, "12.3 ms", "0.0 s" }, { 1.5, "1500 ms", "1.5 s" },
		{ 61, "61000 ms", "1 min 1 s" }, { 3700, "3700000 ms", "1 h 1 min" },
		{ 90000, "90000000 ms", "1 d 1 h" },
	};
	char s[40], name[33];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		figures_ms(s, sizeof(s), cases[i].s);
		assert_string_equal(s, cases[i].ms);
		figures_age(s, sizeof(s), cases[i].s);
		assert_string_equal(s, cases[i].age);
	}
	figures_ms(s, sizeof(s), NAN);
	assert_string_equal(s, "-");
	figures_bar(s, 10, 0.26);
	assert_string_equal(s, "###.......");
	figures_bar(s, 10, 17);
	assert_string_equal(s, "##########");
	figures_client(name, raw);                       /* no client draws on an operator's terminal */
	assert_string_equal(name, "a?[2Jb??c");
}

static void test_times(void **state)
{
	static const struct { const char *text; double s; } cases[] = {
		{ "90", 90 }, { "90s", 90 }, { "1.5m", 90 }, { "2min", 120 }, { "24h", 86400 }, { "1d", 86400 },
		{ "", NAN }, { "s", NAN }, { "0", NAN }, { "-5", NAN }, { "5x", NAN }, { "5 m", NAN }, { "nan", NAN },
		{ "inf", NAN }, { "1e9", NAN },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		double s = figures_time(cases[i].text);

		if (isnan(cases[i].s) ? !isnan(s) : s != cases[i].s)
			fail_msg("%s: %g", cases[i].text, s);
	}
}

/* The parts of empty in the order of the page; what is too little is not there. */
static void test_empty_words(void **state)
{
	static const struct { double empty_s[N_EMPTY], all; const char *words; } cases[] = {
		{ { 1, 2, 3, 4, 5 }, 20, "tokenizing 5 %, network 10 %, silent 15 %, served 20 %, nobody 25 %" },
		{ { 0, 0.04, 3, 0, 0 }, 10, "silent 30 %" }, { { 0 }, 10, "" }, { { 1, 1, 1, 1, 1 }, 0, "" },
	};
	char s[120], few[12];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		assert_string_equal(figures_empty(s, sizeof(s), cases[i].empty_s, cases[i].all), cases[i].words);
	assert_string_equal(figures_empty(few, sizeof(few), cases[0].empty_s, 20), "tokenizing ");
}

/* The last ends are kept, each whole; an end that changes while it is read is dropped. */
static void test_ended(void **state)
{
	const struct stats_page *p;
	struct stats_ended e = { .name = stats_request_name("chatcmpl-1", 10), .n_tokens = 7, .client = "a\033b" };

	(void)state;
	for (uint32_t i = 0; i < STATS_ENDED + 5; i++) {
		e.max_tokens = i;
		stats_end(page, &e);
	}
	assert_int_equal(page->n_ended, STATS_ENDED + 5);
	assert_int_equal(stats_open(&p, dir), 0);
	assert_int_equal(p->n_ended, 0);      /* read when they are asked for */
	assert_int_equal(stats_read_ended(p), 0);
	for (uint32_t i = 5; i < STATS_ENDED + 5; i++) {
		const struct stats_ended *got = &p->ended[i % STATS_ENDED];

		assert_true(got->number == i + 1 && got->max_tokens == i && got->n_tokens == 7);
		assert_true(got->name == e.name && !strcmp(got->client, "a?b"));
	}
	page->ended[3].number = 0;
	assert_int_equal(stats_read_ended(p), 0);
	assert_int_equal(p->ended[3].number, 0);
	assert_int_equal(truncate(file, sizeof(*page) - 1), 0);
	assert_int_equal(stats_read_ended(p), -EPROTO);
	assert_int_equal(p->ended[4].number, 0);
	assert_int_equal(truncate(file, sizeof(*page)), 0);
	stats_close(p);
	assert_true(stats_request_name("", 0) && stats_request_name("a", 1) != stats_request_name("b", 1));
}

static int ends_of(uint32_t uid, uint32_t least)
{
	int n = 0;

	for (int i = 0; i < STATS_ENDED; i++)
		n += page->ended[i].number && page->ended[i].uid == uid && page->ended[i].max_tokens >= least;
	return n;
}

/* Who floods replaces its own ends.  More uids than rows share one row, and still replace none of the others'. */
static void test_ended_shares(void **state)
{
	struct stats_ended e = { .n_tokens = 1 };

	(void)state;
	for (uint32_t uid = 1; uid <= 3; uid++)
		for (e.uid = uid, e.max_tokens = 0; e.max_tokens < 100; e.max_tokens++)
			stats_end(page, &e);
	e.uid = 4;
	for (e.max_tokens = 0; e.max_tokens < 3 * STATS_ENDED; e.max_tokens++)
		stats_end(page, &e);
	for (uint32_t uid = 1; uid <= 3; uid++)
		assert_int_equal(ends_of(uid, 0), 100);
	assert_int_equal(ends_of(4, 3 * STATS_ENDED - (STATS_ENDED - 300)), STATS_ENDED - 300); /* its last ones */
	for (e.uid = 1000; e.uid < 1000 + 3 * STATS_ENDED; e.uid++)
		stats_end(page, &e);
	for (uint32_t uid = 1; uid <= 3; uid++)
		assert_int_equal(ends_of(uid, 0), 100);
	e.uid = 1;
	e.max_tokens = 7777;
	stats_end(page, &e);                  /* and a newcomer's end is kept */
	assert_int_equal(ends_of(1, 7777), 1);
	assert_int_equal(ends_of(1, 0), 101);
}

/* Sums wrap around, and what lies between two of them does not. */
static void test_spans(void **state)
{
	struct counters a = { .steps = UINT32_MAX, .rows = 5 }, b = { .steps = UINT32_MAX + 4ull, .rows = 25 };
	struct stats_span from, to, got;

	(void)state;
	a.why_ns[WHY_KV] = (uint64_t)UINT32_MAX << 10;
	b.why_ns[WHY_KV] = ((uint64_t)UINT32_MAX + 1000) << 10;
	b.bound_ns[BOUND_MEMORY] = 4096;
	stats_span_now(&a, &from);
	stats_span_now(&b, &to);
	stats_span_between(&from, &to, &got);
	assert_true(got.steps == 4 && got.rows == 20 && got.why[WHY_KV] == 1000 && got.bound[BOUND_MEMORY] == 4);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		T(test_open), T(test_refused), T(test_fails), T(test_stale), T(test_minutes),
		T(test_counters), T(test_peak),
		T(test_whole), T(test_words), T(test_changes_hands),
		T(test_cut), T(test_lies), T(test_strings),
		T(test_clients), T(test_observe), T(test_percentile), T(test_between), T(test_asleep),
			T(test_text), T(test_times), T(test_empty_words), T(test_ended), T(test_ended_shares), T(test_spans),
	};
#undef T

	return cmocka_run_group_tests_name("stats", tests, NULL, NULL);
}
