/* canary.c - see canary.h. */
#include "canary.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/refuse.h"
#include "shmring/clock.h"

#define MS        1000000ull
#define END_MS    5000               /* that a killed child may take to end */
#define LINES_MAX (64 << 10)         /* bytes of the file that are looked at */

enum { BEGINS, ENDS };

struct word { int32_t what, value; uint32_t without; }; /* value: special, or what check() returned */

void canary_say(int to, int special)
{
	struct word w = { BEGINS, special, 0 };

	if (to >= 0 && write(to, &w, sizeof(w)) != sizeof(w))
		_exit(1);            /* the parent is gone */
}

/* ---- the child ------------------------------------------------------------------------------ */

static void child(const struct canary *c, uint32_t without, int to, pid_t parent)
{
	struct word w = { ENDS, 0, 0 };

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	canary_say(to, CANARY_PLAIN);
	w.value = c->check(c->ctx, &without, to);
	w.without = without;
	if (write(to, &w, sizeof(w)) != sizeof(w))
		_exit(1);
	_exit(0);
}

/* A child in the middle of a call of the driver may take long; one that does not end at all is left behind. */
static void end(pid_t pid)
{
	uint64_t until = sr_now() + END_MS * MS;

	kill(pid, SIGKILL);
	while (waitpid(pid, NULL, WNOHANG) == 0 && sr_now() < until)
		usleep(1000);
}

/* ---- the parent ----------------------------------------------------------------------------- */

/* The next word.  1; 0: the child has ended without a last word; -ETIME. */
static int listen_to(int from, int ms, struct word *w)
{
	uint64_t until = sr_now() + (uint64_t)ms * MS;

	for (;;) {
		struct pollfd p = { from, POLLIN, 0 };
		uint64_t now = sr_now();
		int r = poll(&p, 1, now < until ? (int)((until - now) / MS) + 1 : 0);

		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			return r < 0 ? -errno : -ETIME;
		return read(from, w, sizeof(*w)) == sizeof(*w);
	}
}

/* One child.  0: it has said all; 1: it failed at *stage, in the way *how. */
static int watch(const struct canary *c, uint32_t without, struct word *last, int *stage, const char **how)
{
	int fd[2], ms = c->first_ms, r;
	pid_t parent = getpid(), pid;

	if (pipe2(fd, O_CLOEXEC) < 0)
		return -errno;
	pid = fork();
	if (pid < 0) {
		r = -errno;
		close(fd[0]);
		close(fd[1]);
		return r;
	}
	if (pid == 0) {
		close(fd[0]);
		child(c, without, fd[1], parent);
	}
	close(fd[1]);
	*stage = CANARY_PLAIN;
	while ((r = listen_to(fd[0], ms, last)) == 1 && last->what == BEGINS) {
		*stage = last->value;
		ms = *stage == CANARY_PLAIN ? c->first_ms : c->each_ms;
	}
	end(pid);
	close(fd[0]);
	*how = r == -ETIME ? "hangs" : r == 1 ? "fails" : "ends the process";
	return r == 1 && last->value != -EIO ? 0 : r == 1 || r == 0 || r == -ETIME ? 1 : r;
}

int canary_run(const struct canary *c, uint32_t *without, char *why, size_t whylen)
{
	for (int i = 0; i <= c->n; i++) {
		struct word last = { ENDS, 0, 0 };
		const char *how = "";
		int stage = CANARY_PLAIN, r = watch(c, *without, &last, &stage, &how);

		if (r < 0)
			return refuse(-EAGAIN, why, whylen, "no process: %s", strerror(-r));
		if (r == 0 && last.value)
			return refuse(-EAGAIN, why, whylen, "the process that was to check them had no memory or no GPU");
		if (r == 0) {
			*without |= last.without;
			return 0;
		}
		if (stage < 0 || stage >= c->n || *without >> stage & 1)
			return refuse(-EIO, why, whylen, "a kernel that nothing can take the place of %s on this GPU", how);
		fprintf(stderr, "slipring-cuda: %s %s on this GPU: it is switched off\n", c->name(stage), how);
		*without |= 1u << stage;
	}
	return refuse(-EIO, why, whylen, "each of the kernels fails on this GPU");
}

/* ---- what is known --------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, const void *data, size_t n)
{
	const unsigned char *p = data;
	uint64_t word;

	for (; n >= sizeof(word); n -= sizeof(word), p += sizeof(word)) {
		memcpy(&word, p, sizeof(word));
		h = (h ^ word) * 0x9e3779b97f4a7c15u;
		h ^= h >> 29;
	}
	for (; n; n--)
		h = (h ^ *p++) * 0x100000001b3u;
	return h;
}

static int mix_file(uint64_t *h, const char *path)
{
	static unsigned char part[1 << 16];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = -1;

	while (fd >= 0 && (n = read(fd, part, sizeof(part))) > 0)
		*h = mix(*h, part, (size_t)n);
	if (fd >= 0)
		close(fd);
	return n < 0 ? -ENOENT : 0;
}

/* The models of all GPUs, whatever order the directory has them in. */
static uint64_t gpus(const char *proc)
{
	char path[4096], line[256];
	struct dirent *e;
	uint64_t sum = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "%s/gpus", proc);
	dir = opendir(path);
	while (dir && (e = readdir(dir))) {
		FILE *f;

		snprintf(path, sizeof(path), "%s/gpus/%.255s/information", proc, e->d_name);
		f = *e->d_name == '.' ? NULL : fopen(path, "re");
		while (f && fgets(line, sizeof(line), f))
			if (strncmp(line, "Model:", 6) == 0)
				sum += mix(1, line, strlen(line));
		if (f)
			fclose(f);
	}
	if (dir)
		closedir(dir);
	return sum;
}

uint64_t canary_key(const char *proc, const void *code, const void *more, size_t n)
{
	uint64_t key = 0x6b3f, found = gpus(proc);
	char path[4096];
	Dl_info object;

	snprintf(path, sizeof(path), "%s/version", proc);
	if (!found || mix_file(&key, path) || !dladdr(code, &object) || mix_file(&key, object.dli_fname))
		return 0;
	key = mix(mix(key, &found, sizeof(found)), more, n);
	return key ? key : 1;
}

int canary_file(char *path, size_t size)
{
	const char *state = getenv("STATE_DIRECTORY"), *base = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	char dir[4000];
	int n;

	if (state && *state == '/' && !strchr(state, ':'))
		n = snprintf(dir, sizeof(dir), "%s", state);
	else if (base && *base == '/')
		n = snprintf(dir, sizeof(dir), "%s/slipring", base);
	else if (home && *home == '/')
		n = snprintf(dir, sizeof(dir), "%s/.local/state/slipring", home);
	else
		return -ENOENT;
	if (n >= (int)sizeof(dir) || (size_t)n + sizeof("/cuda-checked") > size)
		return -ENOENT;
	for (char *p = dir + 1; *p; p++)
		if (*p == '/') {
			*p = 0;
			mkdir(dir, 0700);
			*p = '/';
		}
	mkdir(dir, 0700);
	snprintf(path, size, "%s/cuda-checked", dir);
	return 0;
}

/* Ours alone, and nobody else may write it. */
static int open_ours(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
	struct stat st;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 022))
		return fd;
	close(fd);
	return -EPERM;
}

int canary_known(const char *path, uint64_t key, uint32_t *without)
{
	int fd = open_ours(path, O_RDONLY), r = -ENOENT;
	char *text = fd < 0 ? NULL : calloc(1, LINES_MAX + 1);
	ssize_t n = text ? read(fd, text, LINES_MAX) : 0;

	for (char *line = text; n > 0 && line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
		uint64_t k;
		uint32_t w;

		if (sscanf(line, "%" SCNx64 " %" SCNx32, &k, &w) == 2 && k == key) {
			*without = w;
			r = 0;
		}
	}
	free(text);
	if (fd >= 0)
		close(fd);
	return r;
}

int canary_keep(const char *path, uint64_t key, uint32_t without)
{
	int fd = open_ours(path, O_WRONLY | O_CREAT | O_APPEND), n;
	char line[64];
	struct stat st;

	if (fd < 0)
		return fd;
	if (fstat(fd, &st) == 0 && st.st_size > LINES_MAX - (off_t)sizeof(line) && ftruncate(fd, 0) < 0) {
		close(fd);
		return -ENOSPC;
	}
	n = snprintf(line, sizeof(line), "%016" PRIx64 " %" PRIx32 "\n", key, without);
	n = write(fd, line, (size_t)n) == n ? 0 : -EIO;
	close(fd);
	return n;
}
