/* table.h - what the benchmark says: lines of cells for people, and one JSON object a cell for
 * tests/cuda/goals.awk, which judges them.  Part of bench.cc.
 *
 * "work" names the goal that a cell counts for; "part" is the limit's part of the time, so that 1 is best. */
#ifndef CUDA_TABLE_H
#define CUDA_TABLE_H

#include <stdio.h>
#include <string.h>

static FILE *json;
static struct {
	char name[64], of[64], floors[32], goals[32];
	const char *work, *kind;
	double floor, goal;          /* of the last cell */
} line;

/* work: "" is no goal's. */
static void line_begin(const char *of_kind, const char *work, const char *name, const char *of)
{
	memset(&line, 0, sizeof(line));
	snprintf(line.name, sizeof(line.name), "%s %s", of_kind, name);
	snprintf(line.of, sizeof(line.of), "%s", of);
	line.work = work;
	line.kind = of_kind;
	printf("%-38s", line.name);
}

static void json_begin(const char *at)
{
	fprintf(json, "%s\n\t{\"row\": \"%s\", \"at\": \"%s\", \"work\": \"%s\", \"kind\": \"%s\"",
		ftell(json) > 2 ? "," : "", line.name, at, line.work, line.kind);
}

/* A line of verbs.h: it has no row in the table of cells. */
static void json_begin_verb(const char *verb, const char *at)
{
	fprintf(json, "%s\n\t{\"verb\": \"%s\", \"at\": \"%s\", \"kind\": \"%s\"", ftell(json) > 2 ? "," : "", verb, at,
		line.kind);
}

/* " .75" once, and again only where the next cell's differs. */
static void note_bound(char *to, size_t len, double bound, double *last)
{
	size_t n = strlen(to);

	if (bound && bound != *last)
		snprintf(to + n, len - n, " %.3g", bound);
	*last = bound;
}

/* Floor and goal of `part`, or 0. */
static void cell(const char *at, double seconds, double part, double floor, double goal)
{
	printf(" %8.0f %4.2f%c", seconds * 1e6, part, goal && part >= goal ? '+' : part < floor ? '-' : ' ');
	note_bound(line.floors, sizeof(line.floors), floor, &line.floor);
	note_bound(line.goals, sizeof(line.goals), goal, &line.goal);
	json_begin(at);
	fprintf(json, ", \"us\": %.9g, \"part\": %.5g, \"of\": \"%s\", \"floor\": %.5g, \"goal\": %.5g}",
		seconds * 1e6, part, line.of, floor, goal);
}

static void cell_left_out(const char *at, const char *why)
{
	printf(" %8s %4s ", "-", "-");
	json_begin(at);
	fprintf(json, ", \"skipped\": \"%s\"}", why);
}

static void line_end()
{
	printf("  floor%s; goal%s\n", *line.floors ? line.floors : " -", *line.goals ? line.goals : " -");
	fflush(stdout);
	fflush(json);
}

#endif
