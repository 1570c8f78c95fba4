/* memory.c - memory of the CPU back end: mappings, and how much the machine has left. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cpu.h"

#define HUGE_PAGE ((size_t)2 << 20)

struct memory {
	struct memory *next;
	void  *at;
	size_t size;
};

void *memory_map(struct memory **list, size_t size)
{
	struct memory *m = malloc(sizeof(*m));
	uint8_t *p, *at;
	size_t all;

	size = (size + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
	all = size + HUGE_PAGE;
	if (!m)
		return NULL;
	/* NORESERVE: the plan has counted it already, and slots are rarely filled */
	p = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED) {
		free(m);
		return NULL;
	}
	at = (uint8_t *)(((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
	if (at > p)
		munmap(p, (size_t)(at - p));
	if (p + all > at + size)
		munmap(at + size, (size_t)(p + all - at - size));
	*m = (struct memory){ .next = *list, .at = at, .size = size };
	*list = m;
	return at;
}

void memory_huge(void *at, size_t size)
{
	(void)madvise(at, (size + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1), MADV_HUGEPAGE);
}

void memory_unmap_all(struct memory **list)
{
	while (*list) {
		struct memory *m = *list;

		*list = m->next;
		munmap(m->at, m->size);
		free(m);
	}
}

/* ---- what is left ---------------------------------------------------------------------------- */

/* The number in a file, or -1; "max" is no number. */
static int64_t number_in(const char *dir, const char *file)
{
	char path[PATH_MAX];
	long long n = -1;
	FILE *f;

	if (snprintf(path, sizeof(path), "%s/%s", dir, file) >= (int)sizeof(path))
		return -1;
	f = fopen(path, "re");
	if (!f)
		return -1;
	if (fscanf(f, "%lld", &n) != 1)
		n = -1;
	fclose(f);
	return n;
}

/* The number after `key` at the start of a line, or 0. */
static int64_t field_in(const char *path, const char *key)
{
	char line[256];
	long long n = 0;
	size_t len = strlen(key);
	FILE *f = fopen(path, "re");

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, key, len) && sscanf(line + len, "%lld", &n) == 1)
			break;
	if (f)
		fclose(f);
	return n;
}

static void tighten(const char *dir, bool v2, int64_t *avail, int64_t *total)
{
	int64_t limit = number_in(dir, v2 ? "memory.max" : "memory.limit_in_bytes");
	int64_t used = number_in(dir, v2 ? "memory.current" : "memory.usage_in_bytes");
	char stat[PATH_MAX];
	int64_t cache = 0;

	if (limit <= 0 || used < 0)
		return;
	if (snprintf(stat, sizeof(stat), "%s/memory.stat", dir) < (int)sizeof(stat))
		cache = field_in(stat, v2 ? "inactive_file " : "total_inactive_file ");
	if (limit < *total)
		*total = limit;
	if (limit - used + cache < *avail)
		*avail = limit - used + cache > 0 ? limit - used + cache : 0;
}

/* Every group from ours up to the root may set a limit.  In a container the path may belong to
 * another namespace: then only the mounted root exists, and it is our group. */
static void walk_up(const char *root, char *path, bool v2, int64_t *avail, int64_t *total)
{
	char dir[PATH_MAX];
	char *slash;

	path[strcspn(path, "\n")] = 0;
	do {
		if (snprintf(dir, sizeof(dir), "%s%s", root, path) < (int)sizeof(dir))
			tighten(dir, v2, avail, total);
		slash = strrchr(path, '/');
		if (slash)
			*slash = 0;
	} while (slash);
}

void memory_left(int64_t *avail, int64_t *total)
{
	char line[PATH_MAX];
	FILE *f;

	*avail = field_in("/proc/meminfo", "MemAvailable:") * 1024;
	*total = field_in("/proc/meminfo", "MemTotal:") * 1024;
	f = fopen("/proc/self/cgroup", "re");
	while (f && fgets(line, sizeof(line), f)) {
		char *v1 = strstr(line, ":memory:");

		if (!strncmp(line, "0::", 3))
			walk_up("/sys/fs/cgroup", line + 3, true, avail, total);
		else if (v1)
			walk_up("/sys/fs/cgroup/memory", v1 + 8, false, avail, total);
	}
	if (f)
		fclose(f);
}
