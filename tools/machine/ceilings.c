/* ceilings.c - all cores at once read memory and multiply; the best round is the machine's ceiling.
 *
 * A virtual machine shares its memory bandwidth with other guests, so results vary.  The best of several
 * rounds is what the hardware can do, not what it always does. */
#include "ceilings.h"
#include "core/instance/fresh.h"
#include "core/instance/refuse.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "peak.h"

#define FORMAT   1
#define ROUNDS   8
#define PER_CORE ((size_t)128 << 20)  /* bytes: more than a core's share of any cache */
#define CORES    512

static void processor(char *out, size_t n)
{
	FILE *f = fopen("/proc/cpuinfo", "re");
	char line[4096];

	snprintf(out, n, "unknown");
	while (f && fgets(line, sizeof(line), f)) {
		const char *colon = strchr(line, ':');

		if (strncmp(line, "model name", 10) || !colon)
			continue;
		snprintf(out, n, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
		break;
	}
	if (f)
		fclose(f);
}

static int cores(void)
{
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;

	return n > CORES ? CORES : n;
}

/* ---- measuring --------------------------------------------------------------------------------- */

struct worker {
	pthread_t thread;
	pthread_barrier_t *together;
	const uint8_t *memory;
	size_t bytes;
	double seen[N_PEAKS][ROUNDS];
};

static struct { pthread_mutex_t lock; bool off; } start = { PTHREAD_MUTEX_INITIALIZER, false };

static void *measure_round(void *arg)
{
	struct worker *w = arg;
	bool off;

	pthread_mutex_lock(&start.lock);
	off = start.off;
	pthread_mutex_unlock(&start.lock);
	if (off)
		return NULL;
	for (int what = PEAK_INT8; what < N_PEAKS; what++)
		for (int round = 0; round < ROUNDS; round++) {
			pthread_barrier_wait(w->together);
			w->seen[what][round] = peak_measure((enum peak)what, w->memory, w->bytes);
		}
	return NULL;
}

/* The sum over all cores in the best round, per second. */
static double best(const struct worker *w, int n, enum peak what)
{
	double most = 0;

	for (int round = 0; round < ROUNDS; round++) {
		double sum = 0;

		for (int i = 0; i < n; i++)
			sum += w[i].seen[what][round];
		most = fmax(most, sum * 1e9);
	}
	return most;
}

/* No thread begins before all have started; if one cannot start, all end. */
static int run_workers(struct worker *w, int n)
{
	int made = 0, e = 0;

	pthread_mutex_lock(&start.lock);
	for (start.off = false; made < n && !e; made += !e)
		e = pthread_create(&w[made].thread, NULL, measure_round, &w[made]);
	start.off = e != 0;
	pthread_mutex_unlock(&start.lock);
	while (made)
		pthread_join(w[--made].thread, NULL);
	return -e;
}

/* The best of several rounds; takes about 2 s on all cores.  0, or -ENOTSUP, -ENOMEM and a sentence. */
static int ceilings_measure(struct ceilings *c, char *err, size_t errlen)
{
	int n = cores();
	size_t bytes = PER_CORE * (size_t)n;
	struct worker *w = calloc((size_t)n, sizeof(*w));
	pthread_barrier_t together;
	uint8_t *memory = NULL;
	time_t now = time(NULL);
	struct tm tm;
	int rc;

	*c = (struct ceilings){ .cores = n };
	if (!w || posix_memalign((void **)&memory, 4096, bytes)) {
		snprintf(err, errlen, "no %zu MiB of memory to read", bytes >> 20);
		free(w);
		return -ENOMEM;
	}
	memset(memory, 1, bytes);
	pthread_barrier_init(&together, NULL, (unsigned)n);
	for (int i = 0; i < n; i++)
		w[i] = (struct worker){ .together = &together, .memory = memory + PER_CORE * (size_t)i,
		                        .bytes = PER_CORE };
	rc = run_workers(w, n);
	pthread_barrier_destroy(&together);
	c->bytes_s = best(w, n, PEAK_READ);
	c->int8_s = best(w, n, PEAK_INT8);
	c->float_s = fmax(best(w, n, PEAK_BF16), best(w, n, PEAK_F32));
	processor(c->cpu, sizeof(c->cpu));
	strftime(c->date, sizeof(c->date), "%Y-%m-%d %H:%M", localtime_r(&now, &tm));
	free(memory);
	free(w);
	if (!rc && c->bytes_s > 0)
		return 0;
	snprintf(err, errlen, rc ? "no thread for each core" : "this processor lacks AVX2, which the measurement "
	         "needs");
	return rc ? rc : -ENOTSUP;
}

/* ---- the file ---------------------------------------------------------------------------------- */

static int path(char *out, size_t n)
{
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	int k = cache && *cache == '/' ? snprintf(out, n, "%s/slipring", cache) :
	        snprintf(out, n, "%s/.cache/slipring", home ? home : "");

	return k > 0 && (size_t)k + 20 < n ? k : -ENAMETOOLONG;
}

int ceilings_load(struct ceilings *c, char *err, size_t errlen)
{
	static const char *const name[] = { "memory_bytes_per_s", "int8_ops_per_s", "float_ops_per_s",
	                                    "pcie_bytes_per_s" };
	double *const to[] = { &c->bytes_s, &c->int8_s, &c->float_s, &c->pcie_s };
	char file[PATH_MAX], here[100];
	json_error_t e;
	json_t *j;
	int k = path(file, sizeof(file)), rc = 0;

	*c = (struct ceilings){ 0 };
	if (k < 0)
		return k;
	snprintf(file + k, sizeof(file) - (size_t)k, "/ceilings.json");
	if (access(file, F_OK))
		return refuse(-ENOENT, err, errlen, "slipring doctor --measure has not been run on this machine");
	j = json_load_file(file, 0, &e);
	if (!json_is_object(j)) {
		snprintf(err, errlen, "%s: line %d: %s; slipring doctor --measure writes it again", file, e.line,
		         j ? "not an object" : e.text);
		rc = -EINVAL;
	}
	for (int i = 0; !rc && i < 4; i++) {
		const json_t *v = json_object_get(j, name[i]);

		*to[i] = json_number_value(v);
		if (!json_is_number(v) || !(*to[i] >= 0) || !isfinite(*to[i]) || (i == 0 && *to[i] == 0)) {
			snprintf(err, errlen, "%s: field \"%s\" is not a rate; slipring doctor --measure writes it "
			         "again", file, name[i]);
			rc = -EINVAL;
		}
	}
	if (!rc) {
		snprintf(c->cpu, sizeof(c->cpu), "%s", json_string_value(json_object_get(j, "processor")) ?
		         json_string_value(json_object_get(j, "processor")) : "");
		snprintf(c->date, sizeof(c->date), "%s", json_string_value(json_object_get(j, "date")) ?
		         json_string_value(json_object_get(j, "date")) : "");
		c->cores = (int)json_integer_value(json_object_get(j, "cores"));
		processor(here, sizeof(here));
		if (strcmp(here, c->cpu) || c->cores != cores()) {
			snprintf(err, errlen, "%s was measured on %d cores of %s; slipring doctor --measure writes it "
			         "again", file, c->cores, c->cpu);
			rc = -ESTALE;
		}
	}
	json_decref(j);
	return rc;
}

static int ceilings_save(const struct ceilings *c, char *err, size_t errlen)
{
	struct fresh w;
	char file[PATH_MAX];
	json_t *j = json_pack("{s:i, s:s, s:i, s:s, s:f, s:f, s:f, s:f}", "format", FORMAT, "processor",
		c->cpu, "cores", c->cores, "date", c->date, "memory_bytes_per_s", c->bytes_s,
		"int8_ops_per_s", c->int8_s, "float_ops_per_s", c->float_s, "pcie_bytes_per_s", c->pcie_s);
	int k = path(file, sizeof(file)), rc = j && k > 0 ? 0 : -EIO;

	if (!rc) {
		for (char *slash = strchr(file + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
			*slash = 0;
			mkdir(file, 0777);
			*slash = '/';
		}
		mkdir(file, 0777);            /* a failure here shows below, with its reason */
		snprintf(file + k, sizeof(file) - (size_t)k, "/ceilings.json");
		rc = fresh_open(&w, AT_FDCWD, file, 0666);
		if (!rc && json_dumpf(j, w.f, JSON_INDENT(1)))
			rc = -EIO;
		if (!rc)
			rc = fresh_done(&w);
		fresh_drop(&w);
	}
	json_decref(j);
	if (rc)
		refuse(rc, err, errlen, "%s cannot be written: %s", k > 0 ? file : "ceilings.json", strerror(-rc));
	return rc;
}

void ceilings_look(struct finding *f)
{
	struct ceilings c;
	char err[300];
	int rc = ceilings_measure(&c, err, sizeof(err));

	*f = (struct finding){ .what = "ceilings", .level = rc ? FINDING_HINT : FINDING_FINE };
	snprintf(f->need, sizeof(f->need), "what a benchmark is held against");
	if (rc) {
		snprintf(f->have, sizeof(f->have), "%.150s", err);
		return;
	}
	snprintf(f->have, sizeof(f->have), "%.1f GB/s of memory; %.0f Gop/s int8, %.0f float, %d cores",
	         c.bytes_s / 1e9, c.int8_s / 1e9, c.float_s / 1e9, c.cores);
	if (ceilings_save(&c, err, sizeof(err)))
		snprintf(f->how, sizeof(f->how), "%.280s", err);
}
