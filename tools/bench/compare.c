/* compare.c - slipring compare: what changed from one benchmark to another, beyond noise.
 *
 * Reads the files of `slipring bench serve` and of `vllm bench serve`.  A change counts if its
 * interval excludes "no change" and it is larger than a threshold.  The intervals are widened so that
 * at most 1 comparison in 20 has a wrong row.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "tools/commands.h"
#include "compare.h"
#include "core/instance/refuse.h"

#define THRESHOLD 2.0            /* per cent */
#define ALPHA     0.05
#define WIDE      1.25           /* an interval up to this ratio may still count as "same" */
#define TOO_WIDE  10             /* an interval above this ratio shows nothing */

enum verdict { SAME, BETTER, WORSE, UNKNOWN };
static const char *const verdict_word[] = { "same", "better", "worse", "cannot tell" };

static const struct measure measures[] = {
	{ PER_SECOND, 0, MEAN, "request_throughput", "Request throughput (req/s)", true },
	{ TOKENS_PER_SECOND, 0, MEAN, "output_throughput", "Output throughput (tok/s)", true },
	{ GOOD_PER_SECOND, 0, MEAN, "request_goodput", "Request goodput (req/s)", true },
	{ LATENCY, TTFT, MEAN, "mean_ttft_ms", "Mean TTFT (ms)", false },
	{ LATENCY, TTFT, MEDIAN, "median_ttft_ms", "Median TTFT (ms)", false },
	{ LATENCY, TTFT, P99, "p99_ttft_ms", "P99 TTFT (ms)", false },
	{ LATENCY, TPOT, MEAN, "mean_tpot_ms", "Mean TPOT (ms)", false },
	{ LATENCY, TPOT, MEDIAN, "median_tpot_ms", "Median TPOT (ms)", false },
	{ LATENCY, TPOT, P99, "p99_tpot_ms", "P99 TPOT (ms)", false },
	{ LATENCY, ITL, MEAN, "mean_itl_ms", "Mean ITL (ms)", false },
	{ LATENCY, ITL, P99, "p99_itl_ms", "P99 ITL (ms)", false },
	{ LATENCY, E2EL, MEAN, "mean_e2el_ms", "Mean E2EL (ms)", false },
	{ LATENCY, E2EL, P99, "p99_e2el_ms", "P99 E2EL (ms)", false },
};
#define N_MEASURES ((int)(sizeof(measures) / sizeof(measures[0])))

struct compare_row {
	const struct measure *m;
	struct estimate a, b;
	struct change change;
	enum verdict verdict;
};

struct comparison {
	struct result a, b;
	double threshold;            /* ratio above 1 */
	bool paired;
	struct compare_row row[N_MEASURES];
	int n, known;                /* rows; rows with an interval */
	double failed_a, failed_b;   /* share of the requests */
	json_t *differs;             /* sentences: what differs between the two setups */
	enum verdict verdict;
};

static int compare_usage(FILE *to)
{
	fprintf(to, "slipring compare [--json] [--threshold PERCENT] A B\n"
	            "\n"
	            "Shows what changed from A to B, beyond noise.  A and B are result files of `slipring bench\n"
	            "serve` or `vllm bench serve`, or names given to --save-baseline.  Best are several runs in\n"
	            "each file (--append-result), made in turns; next best is --save-detailed.\n"
	            "\n"
	            "  --json                one object for programs\n"
	            "  --threshold PERCENT   smaller changes do not count (default: %g)\n"
	            "\n"
	            "Exit status: 0 B is better or the same, 1 worse, 2 not decided, or a file is bad.\n",
	        THRESHOLD);
	return to == stdout ? 0 : 2;
}

/* ---- files ------------------------------------------------------------------------------------- */

static int check_run(const struct result *r, const json_t *run, char *err, size_t errlen)
{
	static const char *const must[] = { "duration", "completed", "request_throughput" };
	const json_t *ours = json_object_get(run, "slipring"), *format = json_object_get(ours, "format");
	size_t n = json_array_size(json_object_get(run, "ttfts"));

	if (ours && (!json_is_integer(format) || json_integer_value(format) != BENCH_FORMAT))
		return refuse(-EINVAL, err, errlen, "%s: field \"slipring\".\"format\": another version wrote this "
		              "file; this one reads %d", r->path, BENCH_FORMAT);
	for (int i = 0; i < 3; i++) {
		const json_t *v = json_object_get(run, must[i]);

		if (json_is_number(v) && json_number_value(v) >= 0)
			continue;
		return refuse(-EINVAL, err, errlen, "%s: field \"%s\" is missing or not a number; results of bench "
		              "serve have it", r->path, must[i]);
	}
	if (n && (json_array_size(json_object_get(run, "itls")) != n ||
	          json_array_size(json_object_get(run, "output_lens")) != n))
		return refuse(-EINVAL, err, errlen, "%s: fields \"ttfts\", \"itls\" and \"output_lens\" differ in "
		              "length", r->path);
	return 0;
}

static int parse_result(struct result *r, const char *s, size_t n, char *err, size_t errlen)
{
	size_t at = 0, line = 0;
	json_error_t e;
	int rc;

	for (;;) {
		for (; at < n && strchr(" \t\r\n", s[at]); at++)
			line += s[at] == '\n';
		if (at == n)
			break;
		if (r->n == COMPARE_RUNS)
			return refuse(-E2BIG, err, errlen, "%s: more than %d runs", r->path, COMPARE_RUNS);
		json_t *run = json_loadb(s + at, n - at, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, &e);

		if (!json_is_object(run)) {
			line += run || e.line < 1 ? 1 : (size_t)e.line;
			snprintf(err, errlen, "%s: line %zu: %s", r->path, line, run ? "not a JSON object" : e.text);
			json_decref(run);
			return -EINVAL;
		}
		r->run[r->n++] = run;
		for (int k = 0; k < e.position; k++)
			line += s[at + (size_t)k] == '\n';
		at += (size_t)e.position;
		rc = check_run(r, run, err, errlen);
		if (rc)
			return rc;
	}
	if (!r->n)
		snprintf(err, errlen, "%s: it holds no result", r->path);
	return r->n ? 0 : -EINVAL;
}

int compare_read(struct result *r, const char *name, char *err, size_t errlen)
{
	size_t n = 0, cap = 1 << 16, k;
	char *s = malloc(cap), *grown;
	int rc = 0;
	FILE *f;

	*r = (struct result){ .name = name };
	snprintf(r->path, sizeof(r->path), "%s", name);
	f = fopen(name, "r");
	if (!f && errno == ENOENT && !bench_baseline_path(name, r->path, sizeof(r->path), err, errlen))
		f = fopen(r->path, "r");
	if (!f || !s) {
		snprintf(err, errlen, "%s: %s%s", name, strerror(errno), errno == ENOENT ?
		         ", and no baseline of this name" : "");
		rc = -ENOENT;
	}
	while (!rc && (k = fread(s + n, 1, cap - n, f)) > 0)
		if ((n += k) == cap) {
			grown = realloc(s, cap *= 2);
			if (grown)
				s = grown;
			else
				rc = -ENOMEM;
		}
	if (!rc && ferror(f)) {
		snprintf(err, errlen, "%s cannot be read", r->path);
		rc = -EIO;
	}
	if (!rc)
		rc = parse_result(r, s, n, err, errlen);
	if (f)
		fclose(f);
	free(s);
	if (rc)
		compare_free(r);
	return rc;
}

void compare_free(struct result *r)
{
	while (r->n)
		json_decref(r->run[--r->n]);
}

/* ---- was it the same work? --------------------------------------------------------------------- */

static void differ(struct comparison *c, const char *key)
{
	const json_t *a = json_object_get(c->a.run[0], key), *b = json_object_get(c->b.run[0], key);
	char *x, *y, line[300];

	if (json_equal(a, b) || !a || !b || (json_is_number(a) && json_is_number(b) &&
	                                     json_number_value(a) == json_number_value(b)))
		return;
	x = json_dumps(a, JSON_ENCODE_ANY);
	y = json_dumps(b, JSON_ENCODE_ANY);
	snprintf(line, sizeof(line), "%s was %.100s, then %.100s", key, x ? x : "?", y ? y : "?");
	json_array_append_new(c->differs, json_string(line));
	free(x);
	free(y);
}

static double sum(const struct result *r, const char *key)
{
	double s = 0;

	for (int i = 0; i < r->n; i++)
		s += json_number_value(json_object_get(r->run[i], key));
	return s;
}

static void same_work(struct comparison *c)
{
	static const char *const keys[] = { "model_id", "request_rate", "burstiness", "max_concurrency",
	                                    "num_prompts" };
	static const char *const totals[] = { "total_input_tokens", "total_output_tokens" };

	for (int i = 0; i < 5; i++)
		differ(c, keys[i]);
	for (int i = 0; i < 2; i++) {
		double x = sum(&c->a, totals[i]) / fmax(1, sum(&c->a, "completed")),
		       y = sum(&c->b, totals[i]) / fmax(1, sum(&c->b, "completed"));
		char line[200];

		if (fabs(x - y) <= 0.02 * fmax(x, y))
			continue;
		snprintf(line, sizeof(line), "%s tokens per request were %.1f, then %.1f",
		         i ? "output" : "input", x, y);
		json_array_append_new(c->differs, json_string(line));
	}
}

/* ---- verdicts ---------------------------------------------------------------------------------- */

static enum verdict judge_row(const struct comparison *c, const struct compare_row *r)
{
	bool beyond = r->change.ratio >= 1 + c->threshold || r->change.ratio <= 1 / (1 + c->threshold);
	bool more = r->change.ratio > 1;

	if (isnan(r->change.low))
		return UNKNOWN;
	if (beyond && (more ? r->change.low > 1 : r->change.high < 1))
		return more == r->m->more_is_better ? BETTER : WORSE;
	return r->change.high / r->change.low > WIDE * WIDE ? UNKNOWN : SAME;
}

static struct change change_of(const struct comparison *c, const struct compare_row *r, double alpha)
{
	bool rate = r->m->what == PER_SECOND || r->m->what == TOKENS_PER_SECOND;
	struct change d = c->paired ? compare_paired(&c->a, &c->b, r->m, alpha) :
	                  rate && c->a.n == 1 && c->b.n == 1 ? compare_windows(&c->a, &c->b, r->m, alpha) :
	                  compare_change(&r->a, &r->b, alpha);

	if (isnan(d.ratio))
		d.ratio = r->b.value / r->a.value;
	return d;
}

static void compare_rows(struct comparison *c)
{
	int better = 0, same = 0, worse = 0;

	same_work(c);
	c->paired = compare_in_turns(&c->a, &c->b);
	for (int i = 0; i < N_MEASURES; i++) {
		struct compare_row r = { .m = &measures[i], .a = compare_estimate(&c->a, &measures[i]),
		                 .b = compare_estimate(&c->b, &measures[i]) };

		if (isnan(r.a.value) || isnan(r.b.value))
			continue;
		r.change = change_of(c, &r, ALPHA);
		c->known += !isnan(r.change.low);
		c->row[c->n++] = r;
	}
	for (int i = 0; i < c->n; i++) {
		struct compare_row *r = &c->row[i];

		/* divide alpha by the number of intervals (Bonferroni) */
		r->change = change_of(c, r, ALPHA / (c->known ? c->known : 1));
		r->verdict = judge_row(c, r);
		better += r->verdict == BETTER;
		same += r->verdict == SAME;
		worse += r->verdict == WORSE;
	}
	c->failed_a = sum(&c->a, "failed") / fmax(1, sum(&c->a, "failed") + sum(&c->a, "completed"));
	c->failed_b = sum(&c->b, "failed") / fmax(1, sum(&c->b, "failed") + sum(&c->b, "completed"));
	worse += c->failed_b > c->failed_a + 0.01;
	c->verdict = worse ? WORSE : better ? BETTER : same ? SAME : UNKNOWN;
}

/* ---- output ------------------------------------------------------------------------------------ */

static double percent(double ratio)
{
	return (ratio - 1) * 100;
}

static void print_source(char letter, const struct result *r)
{
	bool detailed = json_array_size(json_object_get(r->run[0], "ttfts")) > 1;
	const char *date = json_string_value(json_object_get(r->run[0], "date"));
	const char *by = r->n > 1 ? "its runs" : detailed ? "its requests" : "mean and deviation";

	printf("%c  %s: %d run%s, %.0f requests, compared by %s%s%s\n", letter, r->path, r->n,
	       r->n == 1 ? "" : "s", sum(r, "completed"), by, date ? ", " : "", date ? date : "");
}

static void print_row(const struct compare_row *r)
{
	char interval[48] = "no interval";

	if (r->change.high > TOO_WIDE)
		snprintf(interval, sizeof(interval), "anything");
	else if (!isnan(r->change.low))
		snprintf(interval, sizeof(interval), "%+.1f to %+.1f %%", percent(r->change.low),
		         percent(r->change.high));
	printf("%-28s %12.2f %12.2f %+8.1f %%   %-20s %s\n", r->m->label, r->a.value, r->b.value,
	       percent(r->change.ratio), interval, verdict_word[r->verdict]);
}

/* The length of the label without its unit. */
static int name_length(const struct compare_row *r)
{
	return (int)(strrchr(r->m->label, '(') - r->m->label) - 1;
}

static double width(const struct compare_row *r)
{
	return r->change.high / r->change.low;
}

/* The rows of one verdict as a sentence. */
static void print_words(FILE *to, const struct comparison *c, enum verdict v)
{
	int n = 0;

	for (int i = 0; i < c->n; i++) {
		const struct compare_row *r = &c->row[i];

		if (r->verdict != v)
			continue;
		fprintf(to, "%s%.*s %s by %.1f %%", n++ ? ", " : v == WORSE ? "Worse: " : "Better: ",
		       name_length(r), r->m->label,
		       r->change.ratio > 1 ? "rose" : "fell", fabs(percent(r->change.ratio)));
	}
	if (n)
		fprintf(to, ".\n");
}

static void print_verdict(FILE *to, const struct comparison *c)
{
	const struct compare_row *sharp = NULL;

	print_words(to, c, WORSE);
	if (c->failed_b > c->failed_a + 0.01)
		fprintf(to, "Worse: %.1f %% of the requests failed, and %.1f %% before.\n", c->failed_b * 100,
		       c->failed_a * 100);
	print_words(to, c, BETTER);
	if (c->verdict == UNKNOWN) {
		fprintf(to, "It cannot be told: %s.\n", c->known ? "the noise is larger than the threshold" :
		       "the files hold no measure of noise; save with --save-detailed, or several runs with "
		       "--append-result");
		return;
	}
	for (int i = 0; i < c->n; i++)
		if (c->row[i].verdict == SAME && (!sharp || width(&c->row[i]) < width(sharp)))
			sharp = &c->row[i];
	if (c->verdict == SAME && sharp)
		fprintf(to, "B is the same as A: nothing changed beyond noise.  The most sensitive measure is %.*s: "
		       "a change of %.1f %% would have shown.\n", name_length(sharp), sharp->m->label,
		       fmax(percent(sqrt(width(sharp))), c->threshold * 100));
	else
		fprintf(to, "B is %s than A.\n", verdict_word[c->verdict]);
}

static void print_text(const struct comparison *c)
{
	size_t i;
	json_t *line;

	print_source('A', &c->a);
	print_source('B', &c->b);
	if (c->paired)
		printf("   runs were made in turns: each one is compared with its neighbour\n");
	json_array_foreach(c->differs, i, line)
		printf("   NOT THE SAME WORK: %s\n", json_string_value(line));
	printf("\n%-28s %12s %12s %10s   %-20s %s\n", "", "A", "B", "change", "interval, 95 % in all",
	       "verdict");
	for (int k = 0; k < c->n; k++)
		print_row(&c->row[k]);
	printf("\n");
	print_verdict(stdout, c);
}

static json_t *real_or_null(double v)
{
	return isfinite(v) ? json_real(v) : json_null();
}

static json_t *as_json(const struct comparison *c)
{
	json_t *rows = json_array(), *j;
	char *says = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&says, &n);

	for (int i = 0; i < c->n; i++) {
		const struct compare_row *r = &c->row[i];

		json_array_append_new(rows, json_pack("{s:s, s:f, s:f, s:f, s:o, s:o, s:s}",
			"metric", r->m->key, "a", r->a.value, "b", r->b.value,
			"change_percent", percent(r->change.ratio),
			"low_percent", real_or_null(percent(r->change.low)),
			"high_percent", real_or_null(percent(r->change.high)),
			"verdict", verdict_word[r->verdict]));
	}
	if (f) {
		print_verdict(f, c);
		fclose(f);
	}
	for (size_t i = 0; i < n; i++)
		says[i] = says[i] == '\n' ? ' ' : says[i];
	j = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:b, s:f, s:f, s:f, s:O, s:o}",
		"verdict", verdict_word[c->verdict], "says", says ? says : "", "a", c->a.path, "b", c->b.path,
		"runs_a", c->a.n, "runs_b", c->b.n, "paired", c->paired, "threshold_percent", c->threshold * 100,
		"failed_share_a", c->failed_a, "failed_share_b", c->failed_b,
		"not_the_same", c->differs, "metrics", rows);
	free(says);
	return j;
}

static int print_comparison_json(const struct comparison *c)
{
	json_t *j = as_json(c);
	int rc = j ? json_dumpf(j, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(8)) : -1;

	putchar('\n');
	json_decref(j);
	return rc;
}

json_t *compare_results(const struct result *a, const struct result *b)
{
	struct comparison c = { .a = *a, .b = *b, .threshold = THRESHOLD / 100, .differs = json_array() };
	json_t *j;

	compare_rows(&c);
	j = as_json(&c);
	json_decref(c.differs);
	return j;
}

int cmd_compare(int argc, char **argv)
{
	struct comparison c = { .threshold = THRESHOLD / 100 };
	const char *name[2];
	bool json = false;
	char err[5000], *end;
	int n = 0;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return compare_usage(stdout);
		if (!strcmp(argv[i], "--json")) {
			json = true;
		} else if (!strcmp(argv[i], "--threshold") && i + 1 < argc) {
			c.threshold = strtod(argv[++i], &end) / 100;
			if (end == argv[i] || *end || !(c.threshold >= 0 && c.threshold <= 1)) {
				fprintf(stderr, "slipring compare: --threshold %s: not a number from 0 to 100\n", argv[i]);
				return 2;
			}
		} else if (n < 2 && argv[i][0] != '-') {
			name[n++] = argv[i];
		} else {
			return command_wrong("compare", argv, i, i);
		}
	}
	if (n < 2)
		return compare_usage(stderr);
	if (compare_read(&c.a, name[0], err, sizeof(err)) || compare_read(&c.b, name[1], err, sizeof(err))) {
		fprintf(stderr, "slipring compare: %s\n", err);
		compare_free(&c.a);
		return 2;
	}
	c.differs = json_array();
	compare_rows(&c);
	if (json)
		print_comparison_json(&c);
	else
		print_text(&c);
	json_decref(c.differs);
	compare_free(&c.a);
	compare_free(&c.b);
	return c.verdict == WORSE ? 1 : c.verdict == UNKNOWN ? 2 : 0;
}
