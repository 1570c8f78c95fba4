/* bench_report.h - figures of a benchmark: a table for people, JSON lines for machines, and a
 * verdict.  Lower figures are better, unless the floor lies below the goal.
 */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 9

struct figure {
	const char *id, *unit;
	double floor, goal;           /* the worst that passes, and the aim; both 0: none */
	double v[ROUNDS];
};

static FILE *report_json;
static char report_env[256];
static int report_failed;

static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline int report_order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static inline double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof(*v), report_order);
	return v[n / 2];
}

/* The machine it ran on: figures of different machines are not compared. */
static inline void report_open(const char *title, const char *path)
{
	char line[256], cpu[128] = "?";
	FILE *f = fopen("/proc/cpuinfo", "r");
	struct utsname u;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "model name : %127[^\n\"\\]", cpu) == 1)
			break;
	if (f)
		fclose(f);
	uname(&u);
	snprintf(report_env, sizeof(report_env), "%.100s, %ld cores, Linux %.60s, %.40s", cpu,
	         sysconf(_SC_NPROCESSORS_ONLN), u.release, __VERSION__);
	report_json = path ? fopen(path, "w") : NULL;
	if (path && !report_json) {
		perror(path);
		exit(1);
	}
	printf("%s: %s\n%-30s %-8s %9s %9s %9s   %7s %7s\n", title, report_env, "", "", "min", "median", "max",
	       "floor", "goal");
}

/* Judged by the median of its rounds. */
static inline void report(struct figure *f)
{
	double med = median(f->v, ROUNDS);
	bool judged = f->floor != 0 || f->goal != 0, up = f->floor < f->goal;
	bool bad = judged && (up ? med < f->floor : med > f->floor);
	bool met = judged && (up ? med >= f->goal : med <= f->goal);
	char limits[40] = "";

	if (judged)
		snprintf(limits, sizeof(limits), "%7.4g %7.4g", f->floor, f->goal);
	printf("%-30s %-8s %9.4g %9.4g %9.4g   %-15s %s\n", f->id, f->unit, f->v[0], med, f->v[ROUNDS - 1],
	       limits, bad ? "BELOW THE FLOOR" : met ? "goal met" : judged ? "above the floor" : "");
	fflush(stdout);
	report_failed += bad;
	if (!report_json)
		return;
	fprintf(report_json, "{\"id\": \"%s\", \"unit\": \"%s\", \"min\": %.6g, \"med\": %.6g, \"max\": %.6g, ",
	        f->id, f->unit, f->v[0], med, f->v[ROUNDS - 1]);
	if (judged)
		fprintf(report_json, "\"floor\": %.6g, \"goal\": %.6g, ", f->floor, f->goal);
	else
		fprintf(report_json, "\"floor\": null, \"goal\": null, ");
	fprintf(report_json, "\"env\": \"%s\"}\n", report_env);
}

static inline int report_close(void)
{
	if (report_json)
		fclose(report_json);
	return report_failed ? 1 : 0;
}

#endif
