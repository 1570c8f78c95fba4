/* cores.c - see cores.h. */
#include "cores.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The beginning of a file, as text; "" if it cannot be read. */
static const char *read_text(int dir, const char *path, char *text, size_t size)
{
	const int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
	const ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);

	text[n < 0 ? 0 : n] = 0;
	if (fd >= 0)
		close(fd);
	return text;
}

/* The number after a word of a "word number" file; 0: it is not there. */
static uint64_t number_of(const char *text, const char *word)
{
	const char *at = strstr(text, word);

	return at ? strtoull(at + strlen(word), NULL, 10) : 0;
}

/* ---- the machine and the quota -------------------------------------------------------------- */

/* The hypervisor's share, as an average of the machine's cores: the eighth number of the first line. */
static uint64_t stolen(const struct cores *c)
{
	const long n = sysconf(_SC_NPROCESSORS_ONLN), ticks = sysconf(_SC_CLK_TCK);
	char path[CORES_ROOT + 32], text[256], *at = text + 3;
	uint64_t x = 0;

	snprintf(path, sizeof(path), "%s/stat", c->proc);
	if (strncmp(read_text(AT_FDCWD, path, text, sizeof(text)), "cpu", 3) != 0)
		return 0;
	for (int i = 0; i < 8; i++)
		x = strtoull(at, &at, 10);
	return n > 0 && ticks > 0 ? x * (1000000000u / (uint64_t)ticks) / (uint64_t)n : 0;
}

/* cgroup v2 counts us, v1 ns. */
static uint64_t throttled(const struct cores *c)
{
	char text[1024];

	if (!*c->quota)
		return 0;
	read_text(AT_FDCWD, c->quota, text, sizeof(text));
	return number_of(text, "throttled_usec ") * 1000 + number_of(text, "throttled_time ");
}

/* A line of /proc/self/cgroup is "0::/path" of v2, or "3:cpu,cpuacct:/path" of v1. */
static bool quota_of(struct cores *c, const char *root, const char *line)
{
	const char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
	const bool v2 = path && path == names + 1;
	int n;

	if (!path || (!v2 && strncmp(names, ":cpu:", 5) != 0 && strncmp(names, ":cpu,", 5) != 0))
		return false;
	n = (int)strcspn(++path, "\n");
	if (n == 1)
		n = 0;                    /* "/": the whole machine, or a container that sees itself as that */
	snprintf(c->quota, sizeof(c->quota), "%s/sys/fs/cgroup%s%.*s/cpu.stat", root, v2 ? "" : "/cpu", n, path);
	return access(c->quota, R_OK) == 0;
}

void cores_open(struct cores *c, const char *root)
{
	char path[CORES_ROOT + 32], text[4096], *save = NULL;
	bool found = false;

	*c = (struct cores){ .n = 0 };
	snprintf(c->proc, sizeof(c->proc), "%s/proc", root);
	snprintf(path, sizeof(path), "%s/self/cgroup", c->proc);
	read_text(AT_FDCWD, path, text, sizeof(text));
	for (char *line = strtok_r(text, "\n", &save); line && !found; line = strtok_r(NULL, "\n", &save))
		found = quota_of(c, root, line);
	if (!found)
		*c->quota = 0;
	snprintf(path, sizeof(path), "%s/self/schedstat", c->proc);
	c->known = strtoull(read_text(AT_FDCWD, path, text, sizeof(text)), NULL, 10) > 0;
	c->throttled_ns = throttled(c);
	c->stolen_ns = stolen(c);
}

/* ---- threads ---------------------------------------------------------------------------------- */

/* Where a thread is in the table; the kernel lists threads in the same order each time, so it is looked for
 * from `from` on.  It takes a free place if it is new; NULL: there is none. */
static struct cores_thread *thread_of(struct cores *c, int32_t from, int32_t pid, int32_t tid)
{
	for (int32_t i = 0; i < c->n; i++) {
		struct cores_thread *t = &c->thread[(from + i) % c->n];

		if (t->tid == tid && t->pid == pid)
			return t;
	}
	if (c->n == CORES_THREADS)
		return NULL;
	c->thread[c->n] = (struct cores_thread){ .pid = pid, .tid = tid, .waited = UINT64_MAX };
	return &c->thread[c->n++];
}

/* How much longer this thread has waited than at the last look: the second number.  The first is the time that it
 * ran.  A kernel that does not count has zeros. */
static uint64_t waited(struct cores *c, int dir, struct cores_thread *t)
{
	char name[40], text[64], *at = text;
	uint64_t ran, now, before = t->waited;

	snprintf(name, sizeof(name), "%d/schedstat", t->tid);
	read_text(dir, name, text, sizeof(text));
	ran = strtoull(text, &at, 10);
	now = strtoull(at, NULL, 10);
	c->known |= ran > 0;
	t->waited = now;
	return before < now ? now - before : 0;
}

/* The longest wait of a thread of this process; *n: threads so far. */
static uint64_t longest(struct cores *c, int32_t pid, int32_t *n)
{
	struct names { uint64_t ino; int64_t off; unsigned short size; unsigned char type; char name[]; };
	char path[CORES_ROOT + 32], buf[4096] __attribute__((aligned(8)));
	uint64_t most = 0, each;
	long got;
	int dir;

	snprintf(path, sizeof(path), "%s/%d/task", c->proc, pid);
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	while (dir >= 0 && (got = syscall(SYS_getdents64, dir, buf, sizeof(buf))) > 0)
		for (long at = 0; at < got; at += ((struct names *)(buf + at))->size) {
			const struct names *e = (struct names *)(buf + at);
			struct cores_thread *t = isdigit((unsigned char)e->name[0]) ?
				thread_of(c, *n, pid, atoi(e->name)) : NULL;

			if (!t)
				continue;
			++*n;
			each = waited(c, dir, t);
			most = each > most ? each : most;
		}
	if (dir >= 0)
		close(dir);
	return most;
}

static uint64_t grown(uint64_t *was, uint64_t now)
{
	const uint64_t more = now > *was ? now - *was : 0;

	*was = now;
	return more;
}

void cores_look(struct cores *c, const int32_t *pid, int32_t n_pid, uint64_t now, uint64_t lost[N_CORES])
{
	const long cores = sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t most = 0, each, quota, machine;
	int32_t n = 0;

	if (c->n == CORES_THREADS && c->n_seen < CORES_THREADS)
		c->n = 0;                 /* the others have ended */
	for (int32_t i = 0; i < n_pid; i++) {
		each = longest(c, pid[i], &n);
		most = each > most ? each : most;
	}
	c->n_seen = n;
	quota = grown(&c->throttled_ns, throttled(c));
	machine = grown(&c->stolen_ns, stolen(c));
	/* A stopped thread waits, so the quota's time is part of the wait; it is the sum of all cores. */
	quota = !c->known ? quota / (uint64_t)(cores > 0 ? cores : 1) : quota < most ? quota : most;
	lost[CORES_OTHERS] = c->known ? most - quota : 0;
	lost[CORES_QUOTA] = quota;
	lost[CORES_MACHINE] = machine;
	c->at_ns = now;
}
