/* machine.c - checks the machine by /proc, /sys and a few trials.  If a file is missing (in a container, on
 * another architecture), the row says so; it is never an error. */
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "core/instance/io.h"
#include "shmring/clock.h"

#define CHUNK   (4u << 20)
#define DISK_S  1.0                      /* s; longest time of reading */

/* The first line of a small file; "" if it cannot be read. */
static void read_line(char *out, size_t n, const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? 0 : read(fd, out, n - 1);

	if (fd >= 0)
		close(fd);
	out[got > 0 ? got : 0] = 0;
	out[strcspn(out, "\n")] = 0;
}

/* The number after `key` in a file of lines; -1 if it is not there. */
static long long number_in(const char *path, const char *key)
{
	FILE *f = fopen(path, "re");
	char line[4096];
	long long v = -1;

	while (f && v < 0 && fgets(line, sizeof(line), f))
		if (!strncmp(line, key, strlen(key)))
			v = atoll(line + strlen(key) + strspn(line + strlen(key), ": \t"));
	if (f)
		fclose(f);
	return v;
}

/* ---- the kernel -------------------------------------------------------------------------- */

static void kernel(struct finding *f)
{
	struct utsname u;
	int major = 0, minor = 0;

	uname(&u);
	sscanf(u.release, "%d.%d", &major, &minor);
	machine_say(f, major > 5 || (major == 5 && minor >= 11) ? FINDING_FINE : FINDING_WRONG,
	    "5.11; 6.1 is better", "install a newer kernel", "%s %s %s", u.sysname, u.release, u.machine);
}

static void uring(struct finding *f)
{
	struct io *io;
	int r = io_create(&io, 0);

	if (r < 0) {
		machine_say(f, FINDING_WRONG, "io_uring or epoll", "neither works: a sandbox forbids them", "%s",
		    strerror(-r));
		return;
	}
	machine_say(f, !strcmp(io_kind(io), "io_uring") ? FINDING_FINE : FINDING_HINT, "io_uring",
	    "slipring setup --apply (kernel.io_uring_disabled=0); in a container allow io_uring_* (epoll "
	    "serves, with more system calls)", "%s", io_kind(io));
	io_destroy(io);
}

static void clock_source(struct finding *f)
{
	char s[64];

	read_line(s, sizeof(s), "/sys/devices/system/clocksource/clocksource0/current_clocksource");
	machine_say(f, !*s || !strcmp(s, "tsc") || !strcmp(s, "arch_sys_counter") ? FINDING_FINE : FINDING_HINT,
	    "tsc",
	    "reading the clock is a system call now: kernel parameter tsc=reliable, or the hypervisor's "
	    "setting",
	    "%s", *s ? s : "unknown");
}

/* ---- cores ------------------------------------------------------------------------------- */

/* The CPU quota of the cgroup, in cores; 0: no limit. */
static double quota(void)
{
	char s[64];
	double q = 0, period = 0;

	read_line(s, sizeof(s), "/sys/fs/cgroup/cpu.max");
	return sscanf(s, "%lf %lf", &q, &period) == 2 && period > 0 ? q / period : 0;
}

static void cores(struct finding *f)
{
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
	long all = sysconf(_SC_NPROCESSORS_ONLN);
	double q = quota();

	if (q > 0 && q < n)
		machine_say(f, FINDING_HINT, "2, and no quota below them", "a quota stops all threads in the middle "
		    "of a step: use a cpuset instead (CPUAffinity=, --cpuset-cpus)", "%d of %ld, quota of "
		    "%.1f", n, all, q);
	else
		machine_say(f, n >= 2 ? FINDING_FINE : FINDING_HINT, "2: one for slipring-http", "give it more cores "
		    "(CPUAffinity=, taskset, --cpuset-cpus)", "%d of %ld", n, all);
}

static void instructions(struct finding *f)
{
	FILE *c = fopen("/proc/cpuinfo", "re");
	char line[8192], model[100] = "?";
	bool avx2 = false, avx512 = false, vnni = false;

	while (c && fgets(line, sizeof(line), c)) {
		char *colon = strchr(line, ':');

		line[strcspn(line, "\n")] = 0;
		if (!strncmp(line, "model name", 10) && colon)
			snprintf(model, sizeof(model), "%.99s", colon + 2);
		if (strncmp(line, "flags", 5) != 0)
			continue;
		avx2 = strstr(line, " avx2") && strstr(line, " fma") && strstr(line, " f16c");
		avx512 = strstr(line, " avx512bw") && strstr(line, " avx512vl");
		vnni = strstr(line, " avx512_vnni");
		break;
	}
	if (c)
		fclose(c);
	machine_say(f, avx2 ? FINDING_FINE : FINDING_HINT, "AVX2, for the CPU back end",
	    "on this processor the CPU back end is slow (plain C)", "%s%s, %s", avx512 ? "AVX-512" : avx2 ?
	    "AVX2" :
	    "neither AVX-512 nor AVX2", vnni ? " with VNNI" : "", model);
}

static void governor(struct finding *f)
{
	char s[64];

	read_line(s, sizeof(s), "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
	machine_say(f, !*s || !strcmp(s, "performance") ? FINDING_FINE : FINDING_HINT, "performance",
	    "cpupower frequency-set -g performance", "%s", *s ? s : "this machine does not let us set it");
}

/* ---- memory ------------------------------------------------------------------------------ */

static void look_at_memory(struct finding *f)
{
	double avail = (double)number_in("/proc/meminfo", "MemAvailable") / (1 << 20), most = 0;
	char s[64];

	read_line(s, sizeof(s), "/sys/fs/cgroup/memory.max");
	most = atof(s) / 0x1p30;
	if (most > 0)
		snprintf(s, sizeof(s), ", the cgroup has %.1f GiB", most);
	else
		s[0] = 0;
	machine_say(f, avail >= 1 ? FINDING_FINE : FINDING_HINT, "the model and its KV cache",
	    "slipring show MODEL says how much that is", "%.1f GiB available%s", avail, s);
}

/* A free page in the pool may still be refused (a cgroup may limit it), so map one. */
static void huge_pages(struct finding *f)
{
	long long all = number_in("/proc/meminfo", "HugePages_Total"), size = number_in("/proc/meminfo",
	        "Hugepagesize");
	long long unused = number_in("/proc/meminfo", "HugePages_Free");
	int fd = memfd_create("doctor", MFD_CLOEXEC | MFD_HUGETLB);
	bool works = false;
	void *p;

	if (fd >= 0 && size > 0 && ftruncate(fd, size * 1024) == 0) {
		p = mmap(NULL, (size_t)size * 1024, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		works = p != MAP_FAILED;
		if (works)
			munmap(p, (size_t)size * 1024);
	}
	if (fd >= 0)
		close(fd);
	machine_say(f, works ? FINDING_FINE : FINDING_HINT, "some, for rings", "slipring setup --apply "
	    "(vm.nr_hugepages=128, and a line in /etc/sysctl.d to keep it); it serves without, with more TLB "
	    "misses", "%lld free of %lld, %lld KiB each%s", unused, all, size, all > 0 && !works ? ", but "
	    "none for us" : "");
}

static void transparent(struct finding *f)
{
	char s[80];

	read_line(s, sizeof(s), "/sys/kernel/mm/transparent_hugepage/enabled");
	machine_say(f, !*s || !strstr(s, "[never]") ? FINDING_FINE : FINDING_HINT, "madvise or always",
	    "slipring setup --apply (echo madvise > /sys/kernel/mm/transparent_hugepage/enabled)", "%s",
	    *s ? s : "unknown");
}

static void memlock(struct finding *f)
{
	struct rlimit r;

	getrlimit(RLIMIT_MEMLOCK, &r);
	if (r.rlim_cur == RLIM_INFINITY)
		machine_say(f, FINDING_FINE, "unlimited with a GPU", "", "unlimited");
	else
		machine_say(f, r.rlim_cur >= 64 << 20 ? FINDING_FINE : FINDING_HINT, "64 MiB; unlimited with a GPU",
		    "slipring setup --apply, for members of slipring who start it by hand; the unit has "
		    "LimitMEMLOCK=infinity", "%llu KiB", (unsigned long long)r.rlim_cur >> 10);
}

static void files(struct finding *f)
{
	struct rlimit r;

	getrlimit(RLIMIT_NOFILE, &r);
	machine_say(f, r.rlim_max >= 4096 ? FINDING_FINE : FINDING_HINT, "4096: one a connection",
	    "LimitNOFILE=65536 in the unit, or ulimit -Hn", "%llu, at most %llu",
	    (unsigned long long)r.rlim_cur, (unsigned long long)r.rlim_max);
}

/* ---- devices ----------------------------------------------------------------------------- */

void machine_disk(struct finding *f, const char *file)
{
	void *buf = NULL;
	double begin, took, bytes = 0;
	bool direct = true;
	ssize_t n;
	int fd = open(file, O_RDONLY | O_DIRECT | O_CLOEXEC);

	*f = (struct finding){ .what = "disk" };
	if (fd < 0 && errno == EINVAL) {
		direct = false;
		fd = open(file, O_RDONLY | O_CLOEXEC);
	}
	if (fd < 0 || posix_memalign(&buf, 4096, CHUNK)) {
		machine_say(f, FINDING_HINT, "a model to read", "name one with --measure FILE", "%.100s: %s", file,
		    strerror(errno));
		if (fd >= 0)
			close(fd);
		return;
	}
	begin = (double)sr_now() / 1e9;
	while ((took = (double)sr_now() / 1e9 - begin) < DISK_S && (n = read(fd, buf, CHUNK)) > 0)
		bytes += (double)n;
	took = (double)sr_now() / 1e9 - begin;
	close(fd);
	free(buf);
	machine_say(f, FINDING_FINE, "decides how long loading takes", "", "%.2f GB/s%s", bytes / took / 1e9,
	    direct ? "" : " (by the page cache: its file system has no O_DIRECT)");
}

int machine_look(struct finding out[FINDINGS_MOST])
{
	static const struct { const char *what; void (*look)(struct finding *); } checks[] = {
		{ "kernel", kernel }, { "event loop", uring }, { "clock", clock_source }, { "cores", cores },
		{ "processor", instructions }, { "governor", governor }, { "memory", look_at_memory },
		{ "huge pages", huge_pages }, { "transparent", transparent }, { "locked memory", memlock },
		{ "open files", files },
	};
	int n = 0;

	for (; n < (int)(sizeof(checks) / sizeof(checks[0])); n++) {
		out[n] = (struct finding){ .what = checks[n].what };
		checks[n].look(&out[n]);
	}
	return n + machine_gpus(out + n);
}
