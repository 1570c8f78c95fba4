/* rings.c - a daemon's first tokens and pauses between steps, by its rings and its stats page, for
 * `make gpu-check`:
 *
 *	rings RUN_DIR FILE TOKENS LIMIT_US [TOKENS LIMIT_US ..]
 *
 * First token: from sr_submit() to the record, polled, for a prompt of that many tokens that no cache has; the
 * median of some, beside LIMIT_US (0: unknown, then no part is told).  Then 32 sequences decode together: the
 * share of the time in which the device had no step, by the daemon's own records of them.  Cells go to FILE
 * as those of table.h do. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/instance/stats.h"
#include "shmring/slipring.h"

#define RUNS      7
#define TOGETHER  32
#define CONTEXT   512
#define ANSWER    128
#define PATIENCE  60                  /* seconds for any answer */

static struct sr_conn *conn;
static FILE *out;
static uint32_t seed = 1;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int fail(const char *what, int e)
{
	fprintf(stderr, "rings: %s: %s\n", what, strerror(-e));
	return 1;
}

/* A prompt that was never asked: no prefix of it is cached. */
static int submit(uint32_t n, uint32_t answer, uint64_t user_data)
{
	int32_t *ids = calloc(n, sizeof(*ids));
	struct sr_request q = { .size = sizeof(q), .flags = SR_IGNORE_EOS | SR_NO_CACHE, .prompt = ids,
		.n_prompt = n, .max_tokens = answer, .user_data = user_data };
	int e;

	if (!ids)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		seed = seed * 1664525u + 1013904223u;
		ids[i] = (int32_t)((seed >> 8) % sr_model(conn)->vocab);
	}
	e = sr_submit(conn, &q, NULL);
	free(ids);
	return e;
}

/* Poll until n requests have ended; store when the first token came, if asked.  0, or -errno. */
static int await(int ends, double *first)
{
	double until = now() + PATIENCE;
	struct sr_record rec[64];

	while (ends > 0) {
		int n = sr_poll(conn, rec, 64);
		double t = now();

		if (n < 0)
			return n;
		for (int i = 0; i < n; i++) {
			if (rec[i].kind == SR_TOKEN && first && !*first)
				*first = t;
			if (rec[i].kind != SR_END)
				continue;
			if (rec[i].u.end.finish < 0)
				return rec[i].u.end.finish;
			ends--;
		}
		if (t > until)
			return -ETIMEDOUT;
	}
	return 0;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static int first_token(uint32_t n, double limit_us)
{
	static const double floor[] = { 1 / 2.3, 1 / 1.5 }, goal[] = { 1 / 1.3, 1 / 1.2 };
	int many = n >= 1024, e = 0;
	double t[RUNS];

	for (int i = -1; i < RUNS && !e; i++) { /* one to warm up */
		double begun = now(), first = 0;

		e = submit(n, 1, 0);
		if (!e)
			e = await(1, &first);
		if (i >= 0)
			t[i] = first - begun;
	}
	if (e)
		return fail("a prompt", e);
	qsort(t, RUNS, sizeof(t[0]), by_value);
	printf("first token over rings, %u tokens: %.0f us, least %.0f, most %.0f", n, t[RUNS / 2] * 1e6,
		t[0] * 1e6, t[RUNS - 1] * 1e6);
	if (limit_us > 0)
		printf("; its limit %.0f us", limit_us);
	printf("\n");
	fprintf(out, "\t{\"row\": \"bf16 first token over rings\", \"at\": \"%u tokens\", \"work\": "
		"\"first token\", \"kind\": \"bf16\", \"us\": %.9g, ", n, t[RUNS / 2] * 1e6);
	if (limit_us > 0)
		fprintf(out, "\"part\": %.5g, \"of\": \"its limit\", \"floor\": %.5g, \"goal\": %.5g}\n",
			limit_us / t[RUNS / 2] / 1e6, floor[many], goal[many]);
	else
		fprintf(out, "\"skipped\": \"its limit was not measured\"}\n");
	return 0;
}

/* Of the steps with all sequences and nothing else: the share of the time between them. */
static bool idle_of(const struct stats_page *p, uint64_t from, double *idle, int *steps)
{
	uint64_t end = 0, begin = 0, busy = 0;

	*steps = 0;
	for (uint64_t i = from; i < p->n_step; i++) {
		const struct stats_step *s = &p->step[i % STATS_STEPS];

		if (s->rows != TOGETHER || s->tokens != TOGETHER) {
			if (*steps)
				break;        /* the first has ended */
			continue;
		}
		if (!begin)
			begin = s->begin_ns;
		busy += s->device_ns;
		end = s->begin_ns + s->device_ns;
		++*steps;
	}
	if (*steps < 8 || end <= begin)
		return false;
	*idle = 1 - (double)busy / (double)(end - begin);
	return true;
}

static int together(const struct stats_page *p)
{
	double idle;
	int e = stats_read_all(p), steps;
	uint64_t from = p->n_step;

	for (int i = 0; i < TOGETHER && !e; i++)
		e = submit(CONTEXT, ANSWER, (uint64_t)i);
	if (!e)
		e = await(TOGETHER, NULL);
	if (e || (e = stats_read_all(p)) < 0)
		return fail("32 together", e);
	fprintf(out, "\t{\"row\": \"bf16 slipringd, busy of 32 at 512\", \"at\": \"32 at 512\", \"work\": "
		"\"device idle, daemon\", \"kind\": \"bf16\", ");
	if (idle_of(p, from, &idle, &steps)) {
		printf("between steps of %d sequences the device was idle for %.2f %% of the time (%d steps)\n",
			TOGETHER, idle * 100, steps);
		fprintf(out, "\"part\": %.5g, \"of\": \"the time of steps\", \"floor\": 0.97, \"goal\": 0.995}\n",
			1 - idle);
	} else {
		fprintf(out, "\"skipped\": \"fewer than 8 steps had all 32\"}\n");
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct sr_options o = { .size = sizeof(o), .name = "gpu-check", .live = TOGETHER, .tokens = 1 << 14,
		.arena = 4 << 20 };
	const struct stats_page *page;
	char path[4096];
	int e, bad = 0;

	if (argc < 5 || argc % 2 == 0) {
		fprintf(stderr, "rings RUN_DIR FILE TOKENS LIMIT_US [TOKENS LIMIT_US ..]\n");
		return 2;
	}
	snprintf(path, sizeof(path), "%.4000s/slipring.sock", argv[1]);
	if ((e = sr_open(&conn, path, &o)) < 0)
		return fail(path, e);
	if ((e = stats_open(&page, argv[1])) < 0)
		return fail("the stats page", e);
	out = fopen(argv[2], "w");
	if (!out)
		return fail(argv[2], -errno);
	for (int i = 3; i + 1 < argc && !bad; i += 2)
		bad = first_token((uint32_t)atoi(argv[i]), atof(argv[i + 1]));
	if (!bad)
		bad = together(page);
	bad |= fclose(out) != 0;
	stats_close(page);
	sr_close(conn);
	return bad;
}
