/* sweep.c - slipring bench sweep: runs one benchmark over loads and settings, with interleaved runs.
 *
 * A point is a setting of live knobs and a set of flags of bench serve.  Every point gets its n-th run before
 * any gets the next, so a drift of the machine affects all.  Each run of each point has its own cache salt,
 * so none finds another's prompts.  A point's runs are one file that `slipring compare` reads.  sweep.json
 * names these files and is whole after every run.
 */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "core/instance/config.h"
#include "core/instance/knobs.h"
#include "core/instance/refuse.h"
#include "report.h"
#include "tools/live/turn.h"

#define POINTS 256
#define WORDS  256               /* most words of a command line */
#define FORMAT 1

struct sweep {
	char *pass[WORDS];           /* [0] is for a name; then flags of bench serve that all points share */
	int n_pass;
	json_t *knobs, *flags;       /* arrays of objects, name: value; their product gives the points */
	const char *dir, *report;
	int64_t runs;
	bool dry, show;
	json_t *points;              /* as in sweep.json */
	const char *load;            /* the flag that sets the load, or NULL */
	struct instance in;          /* page NULL: no knob is swept */
	int64_t was[N_KNOBS];
	uint64_t salt;
};

static int sweep_usage(FILE *to)
{
	fprintf(to, "slipring bench sweep [--max-concurrency N,N,..] [--request-rate R,R,..] "
	        "[--set KNOB=V,V,..]\n"
	        "                     [--num-runs N] [-o DIR] [FLAGS OF bench serve]\n"
	        "\n"
	        "Runs the same benchmark at each load and each setting of the daemon's live knobs, in turns,\n"
	        "and draws a page of pictures.  Knobs are put back at the end, however it ends.  For\n"
	        "example:\n"
	        "\n"
	        "  slipring bench sweep --max-concurrency 1,4,16,64 --set max-num-seqs=16,64\n"
	        "\n"
	        "  --max-concurrency N,N,..  --request-rate R,R,..   the loads\n"
	        "  --set KNOB=V,V,..     of the daemon of this machine (slipring set lists them);\n"
	        "                        may be repeated\n"
	        "  --serve-params FILE   combinations of knobs: a JSON list of {\"max_num_seqs\": 16}\n"
	        "  --bench-params FILE   combinations of flags of bench serve, likewise\n"
	        "  --num-runs N          runs of each point, in turns (3)\n"
	        "  -o, --output-dir DIR  a file of results for each point, sweep.json, report.html,\n"
	        "                        report.csv (default: sweep-DATE); no sweep may be in it yet\n"
	        "  --report FILE         the page, if not DIR/report.html\n"
	        "  --dry-run             say what would be run\n"
	        "  --show-stdout         print the block of every run\n"
	        "\n"
	        "Ctrl-C ends it with the runs that are done.  Exit status as of bench serve.\n");
	return to == stdout ? 0 : 2;
}

/* ---- what is varied ---------------------------------------------------------------------------- */

/* Replace *all by its combinations with each value of a list "a,b,c". */
static int add_dimension(json_t **all, const char *name, const char *list, char *err, size_t errlen)
{
	json_t *more = json_array(), *old;
	size_t i;

	for (const char *p = list, *end; ; p = end + 1) {
		end = p + strcspn(p, ",");
		if (end == p) {
			snprintf(err, errlen, "--%s %s: give values separated by commas", name, list);
			json_decref(more);
			return -EINVAL;
		}
		json_array_foreach(*all, i, old) {
			json_t *one = json_copy(old);

			json_object_set_new(one, name, json_stringn(p, (size_t)(end - p)));
			json_array_append_new(more, one);
		}
		if (!*end)
			break;
	}
	json_decref(*all);
	*all = more;
	return json_array_size(more) > POINTS ? -E2BIG : 0;
}

/* Write max_num_seqs as max-num-seqs. */
static void dashes(char *out, size_t n, const char *s)
{
	snprintf(out, n, "%s", s);
	for (; *out; out++)
		*out = *out == '_' ? '-' : *out;
}

/* Replace *all by its combinations with each object of a file's list. */
static int multiply_file(json_t **all, const char *path, char *err, size_t errlen)
{
	json_t *more, *old, *one, *v, *list;
	const char *key;
	json_error_t e;
	size_t i, k;

	list = json_load_file(path, 0, &e);
	if (!json_is_array(list) || !json_array_size(list)) {
		if (!list && e.line < 1)
			snprintf(err, errlen, "%s", e.text);
		else
			snprintf(err, errlen, "%s: line %d: %s", path, list ? 1 : e.line, list ?
			         "it must be a list of objects, one for each combination" : e.text);
		json_decref(list);
		return -EINVAL;
	}
	more = json_array();
	json_array_foreach(list, i, one)
		json_array_foreach(*all, k, old) {
			json_t *sum = json_copy(old);
			char name[100], text[64];

			json_object_foreach(one, key, v) {
				dashes(name, sizeof(name), key);
				if (json_is_integer(v))
					snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(v));
				else if (json_is_real(v))
					bench_real(text, sizeof(text), json_real_value(v));
				else if (json_is_boolean(v))
					snprintf(text, sizeof(text), "%s", json_is_true(v) ? "true" : "false");
				if (json_is_string(v))
					json_object_set(sum, name, v);
				else if (json_is_number(v) || json_is_boolean(v))
					json_object_set_new(sum, name, json_string(text));
			}
			if (json_is_object(one) && json_object_size(one) && json_object_size(sum) >=
			    json_object_size(one)) {
				json_array_append_new(more, sum);
				continue;
			}
			json_decref(sum);
			snprintf(err, errlen, "%s: entry %zu: it must be an object of names and values", path, i);
			json_decref(more);
			json_decref(list);
			return -EINVAL;
		}
	json_decref(list);
	json_decref(*all);
	*all = more;
	return json_array_size(more) > POINTS ? -E2BIG : 0;
}

static int add_setting(struct sweep *s, const char *word, char *err, size_t errlen)
{
	const char *equals = strchr(word, '=');
	char name[100], given[100];

	if (!equals || equals == word || equals - word >= (int)sizeof(name))
		return refuse(-EINVAL, err, errlen, "--set %s: give KNOB=VALUE,VALUE", word);
	snprintf(given, sizeof(given), "%.*s", (int)(equals - word), word);
	dashes(name, sizeof(name), given);
	return add_dimension(&s->knobs, name, equals + 1, err, errlen);
}

static bool is(const char *word, const char *name, const char **value, int argc, char **argv, int *i)
{
	size_t n = strlen(name);
	char given[40];

	dashes(given, sizeof(given), word);
	if (strncmp(given, name, n) || (word[n] && word[n] != '='))
		return false;
	*value = word[n] ? word + n + 1 : *i + 1 < argc ? argv[++*i] : "";
	return true;
}

static int sweep_word(struct sweep *s, int argc, char **argv, int *i, char *err, size_t errlen)
{
	char *word = argv[*i];
	const char *v;

	if (!strcmp(word, "--dry-run"))
		s->dry = true;
	else if (!strcmp(word, "--show-stdout"))
		s->show = true;
	else if (is(word, "--max-concurrency", &v, argc, argv, i))
		return add_dimension(&s->flags, "max-concurrency", v, err, errlen);
	else if (is(word, "--request-rate", &v, argc, argv, i))
		return add_dimension(&s->flags, "request-rate", v, err, errlen);
	else if (is(word, "--set", &v, argc, argv, i))
		return add_setting(s, v, err, errlen);
	else if (is(word, "--serve-params", &v, argc, argv, i))
		return multiply_file(&s->knobs, v, err, errlen);
	else if (is(word, "--bench-params", &v, argc, argv, i))
		return multiply_file(&s->flags, v, err, errlen);
	else if (is(word, "--output-dir", &v, argc, argv, i) || is(word, "-o", &v, argc, argv, i))
		s->dir = v;
	else if (is(word, "--report", &v, argc, argv, i))
		s->report = v;
	else if (is(word, "--num-runs", &v, argc, argv, i)) {
		char *end;

		s->runs = strtol(v, &end, 10);
		if (end == v || *end || s->runs < 1 || s->runs > 64)
			return refuse(-EINVAL, err, errlen, "--num-runs %s: not a whole number from 1 to 64", v);
	} else if (s->n_pass < WORDS - 64)
		s->pass[s->n_pass++] = word;
	return 0;
}

/* ---- the points -------------------------------------------------------------------------------- */

/* Write "a=1, b=2" without the name `without`. */
static void describe_point(char *out, size_t n, const json_t *pairs, const char *without)
{
	const char *key;
	json_t *v;
	size_t at = strlen(out);

	json_object_foreach((json_t *)(uintptr_t)pairs, key, v) {
		if (without && !strcmp(key, without))
			continue;
		snprintf(out + at, n - at, "%s%s=%s", at ? ", " : "", key, json_string_value(v));
		at = strlen(out);
	}
}

static void point_name(char *out, size_t n, size_t i, const char *name)
{
	int at = snprintf(out, n, "%02zu-%.150s", i + 1, name);

	for (char *c = out; *c; c++)
		if (*c == ' ' || !strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789=.,-", *c))
			*c = '_';
	snprintf(out + at, n - (size_t)at, ".json");
}

/* Does a flag have different values at the points? */
static bool varies(const json_t *all, const char *name)
{
	json_t *one;
	size_t i;

	json_array_foreach(all, i, one)
		if (!json_equal(json_object_get(one, name), json_object_get(json_array_get(all, 0), name)))
			return true;
	return false;
}

static json_t *number_or_text(const json_t *v)
{
	const char *s = json_string_value(v);
	char *end;
	double d = s ? strtod(s, &end) : 0;

	return !s ? json_null() : *end || !isfinite(d) ? json_string(s) : json_real(d);
}

static int make_points(struct sweep *s, char *err, size_t errlen)
{
	json_t *knobs, *flags;
	size_t i, k, n = 0;

	if (json_array_size(s->knobs) * json_array_size(s->flags) > POINTS)
		return refuse(-E2BIG, err, errlen, "the sweep has %zu points; at most %d are possible",
		              json_array_size(s->knobs) * json_array_size(s->flags), POINTS);
	s->load = varies(s->flags, "max-concurrency") ? "max-concurrency" :
	          varies(s->flags, "request-rate") ? "request-rate" : NULL;
	s->points = json_array();
	json_array_foreach(s->knobs, i, knobs)
		json_array_foreach(s->flags, k, flags) {
			char name[600] = "", settings[600] = "", file[200];
			json_t *p;

			describe_point(name, sizeof(name), flags, NULL);
			describe_point(name, sizeof(name), knobs, NULL);
			describe_point(settings, sizeof(settings), knobs, NULL);
			describe_point(settings, sizeof(settings), flags, s->load);
			point_name(file, sizeof(file), n++, *name ? name : "point");
			p = json_pack("{s:s, s:s, s:s, s:O, s:O, s:i}", "name", *name ? name : "as it is", "settings",
				*settings ? settings : "as it is", "file", file, "knobs", knobs, "flags", flags, "runs", 0);
			if (s->load) {
				json_object_set_new(p, "load_name", json_string(s->load));
				json_object_set_new(p, "load", number_or_text(json_object_get(flags, s->load)));
			}
			json_array_append_new(s->points, p);
		}
	return 0;
}

/* Make the command line of a point.  Its words live as long as the point. */
static int command(const struct sweep *s, const json_t *point, char **argv, char *room, size_t n)
{
	const char *key;
	int argc = s->n_pass;
	size_t at = 0;
	json_t *v;

	memcpy(argv, s->pass, (size_t)s->n_pass * sizeof(*argv));
	json_object_foreach(json_object_get(point, "flags"), key, v) {
		if (argc == WORDS - 1 || at + strlen(key) + strlen(json_string_value(v)) + 4 > n)
			return -E2BIG;
		argv[argc++] = room + at;
		if (!strcmp(json_string_value(v), "true"))
			at += (size_t)sprintf(room + at, "--%s", key) + 1;
		else
			at += (size_t)sprintf(room + at, "--%s=%s", key, json_string_value(v)) + 1;
	}
	argv[argc] = NULL;
	return argc;
}

/* The knob values of a point: as found at the start, except those that the point names. */
static int wanted(const struct sweep *s, const json_t *point, int64_t want[N_KNOBS], char *err,
                  size_t errlen)
{
	const char *key, *near, *names[N_KNOBS];
	char most[32];
	json_t *v;

	memcpy(want, s->was, sizeof(s->was));
	for (int k = 0; k < N_KNOBS; k++)
		names[k] = knob_info((enum knob)k)->name;
	json_object_foreach(json_object_get(point, "knobs"), key, v) {
		int k = knob_find(key);

		if (k < 0) {
			near = config_nearest(key, names, N_KNOBS);
			return refuse(-EINVAL, err, errlen, "unknown knob \"%.100s\"%s%s%s; \"slipring set\" lists them",
			              key, near ? ", did you mean \"" : "", near ? near : "",
			              near ? "\"?" : "");
		}
		if (knob_parse((enum knob)k, json_string_value(v), &want[k], err, errlen))
			return -EINVAL;
		if (want[k] > s->in.page->knob_ceiling[k]) {
			knob_format((enum knob)k, s->in.page->knob_ceiling[k], most, sizeof(most));
			return refuse(-ERANGE, err, errlen, "--set %s=%s: this daemon's ceiling is %s, which was "
			              "allocated at start", key, json_string_value(v), most);
		}
	}
	return 0;
}

/* Check everything that can be checked before the first request. */
static int check_sweep(struct sweep *s, char *err, size_t errlen)
{
	char *argv[WORDS], room[8192], why[500];
	struct bench_options o = { 0 };
	int64_t want[N_KNOBS];
	bool knobs = false;
	json_t *point;
	size_t i;
	int rc;

	json_array_foreach(s->points, i, point) {
		int argc = command(s, point, argv, room, sizeof(room));

		rc = argc < 0 ? argc : bench_options(&o, argc, argv, err, errlen);
		if (rc)
			return rc;
		if (o.save || o.append || o.baseline || o.dir || o.filename)
			return refuse(-EINVAL, err, errlen, "leave out the flags that save results: each point of a "
			              "sweep has its file in --output-dir");
		knobs = knobs || json_object_size(json_object_get(point, "knobs"));
	}
	if (!knobs)
		return 0;
	if (instance_open(&s->in, "bench sweep", bench_instance(&o, why, sizeof(why))) < 0)
		return refuse(-ENOENT, err, errlen, "only the knobs of a daemon on this machine can be changed");
	memcpy(s->was, s->in.page->knob, sizeof(s->was));
	for (i = 0, rc = 0; !rc && i < json_array_size(s->points); i++)
		rc = wanted(s, json_array_get(s->points, i), want, err, errlen);
	return rc;
}

/* ---- runs -------------------------------------------------------------------------------------- */

static int save_sweep(const struct sweep *s, bool interrupted, char *err, size_t errlen)
{
	char path[PATH_MAX];
	json_t *j = json_pack("{s:i, s:s, s:I, s:b, s:O}", "format", FORMAT, "version", SLIPRING_VERSION,
	                      "num_runs",
		(json_int_t)s->runs, "interrupted", interrupted, "points", s->points);
	int rc = -ENAMETOOLONG;

	if (snprintf(path, sizeof(path), "%s/sweep.json", s->dir) < (int)sizeof(path))
		rc = bench_write(path, j, false, err, errlen);
	json_decref(j);
	return rc;
}

static double of(const json_t *result, const char *key)
{
	return json_number_value(json_object_get(result, key));
}

static void say_run(const struct sweep *s, const json_t *point, const json_t *r, size_t done, int64_t run)
{
	const json_t *server = json_object_get(json_object_get(r, "slipring"), "server");
	const char *limit = json_string_value(json_object_get(server, "limit"));

	printf("[%3zu/%zu] %s, run %lld: %.1f tok/s, %.2f req/s, TTFT %.1f ms, TPOT %.2f ms%s%s\n", done,
	       json_array_size(s->points) * (size_t)s->runs, json_string_value(json_object_get(point, "name")),
	       (long long)run + 1, of(r, "output_throughput"), of(r, "request_throughput"), of(r,
	       "median_ttft_ms"), of(r, "mean_tpot_ms"), limit ? ", limit: " : "", limit ? limit : "");
	fflush(stdout);
}

/* Do one run of one point.  Returns the exit status of bench serve, or 1 after a message. */
static int run_point(struct sweep *s, json_t *point, size_t done, int64_t run, FILE *null)
{
	struct bench_call call = { .say = s->show ? stdout : null, .salt = ++s->salt };
	char *argv[WORDS], room[8192], path[PATH_MAX], err[700] = "";
	int64_t want[N_KNOBS];
	int rc = 0;

	if (s->in.page && (wanted(s, point, want, err, sizeof(err)) ||
	                   turn_all(&s->in, want, err, sizeof(err)))) {
		fprintf(stderr, "slipring bench sweep: %s\n", err);
		return 1;
	}
	rc = bench_serve(command(s, point, argv, room, sizeof(room)), argv, &call);
	if (!rc && call.result) {
		snprintf(path, sizeof(path), "%.3000s/%.200s", s->dir,
		         json_string_value(json_object_get(point, "file")));
		json_object_del(call.result, "generated_texts");
		rc = bench_write(path, call.result, run > 0, err, sizeof(err));
		json_object_set_new(point, "runs", json_integer(run + 1));
		if (!rc)
			rc = save_sweep(s, false, err, sizeof(err));
		if (rc)
			fprintf(stderr, "slipring bench sweep: %s\n", err);
		else
			say_run(s, point, call.result, done, run);
		rc = rc ? 1 : 0;
	}
	json_decref(call.result);
	return rc;
}

static int run_all(struct sweep *s)
{
	size_t n = json_array_size(s->points), done = 0;
	FILE *null = fopen("/dev/null", "we");
	int rc = null ? 0 : 1;

	for (int64_t run = 0; !rc && run < s->runs; run++)
		for (size_t i = 0; !rc && i < n; i++)
			rc = run_point(s, json_array_get(s->points, i), ++done, run, null);
	if (null)
		fclose(null);
	if (rc)
		printf("Ended after %zu of %zu runs; what was measured is kept.\n", done ? done - 1 : 0,
		       n * (size_t)s->runs);
	return rc;
}

static int sweep_end(const struct sweep *s, int rc)
{
	char file[PATH_MAX], html[PATH_MAX], err[5000], *name = file;

	snprintf(file, sizeof(file), "%s/sweep.json", s->dir);
	snprintf(html, sizeof(html), "%s/report.html", s->dir);
	if (access(file, F_OK))
		return rc;                    /* there was no run */
	if ((rc && save_sweep(s, true, err, sizeof(err))) ||
	    report_files(s->report ? s->report : html, &name, 1, err, sizeof(err))) {
		fprintf(stderr, "slipring bench sweep: %s\n", err);
		return rc ? rc : 1;
	}
	printf("Saved: %s\nReport: %s\n", file, s->report ? s->report : html);
	return rc;
}

static void say_points(const struct sweep *s)
{
	json_t *point;
	size_t i;

	printf("%zu points, %lld runs of each, in turns, into %s:\n", json_array_size(s->points),
	       (long long)s->runs, s->dir);
	json_array_foreach(s->points, i, point)
		printf("  %2zu. %s\n", i + 1, json_string_value(json_object_get(point, "name")));
	fflush(stdout);
}

static int sweep(struct sweep *s)
{
	struct keeper keeper;
	char err[700], path[PATH_MAX];
	int rc;

	say_points(s);
	if (s->dry)
		return 0;
	snprintf(path, sizeof(path), "%.4000s/sweep.json", s->dir);
	if (!access(path, F_OK)) {
		fprintf(stderr, "slipring bench sweep: %s is there already; -o names another folder\n", path);
		return 2;
	}
	if (s->in.page && keeper_start(&keeper, &s->in, err, sizeof(err))) {
		fprintf(stderr, "slipring bench sweep: %s\n", err);
		return 1;
	}
	rc = run_all(s);
	if (s->in.page && keeper_stop(&keeper) && !rc)
		rc = 1;
	return sweep_end(s, rc);
}

int bench_sweep(int argc, char **argv)
{
	struct sweep s = { .runs = 3, .pass = { argv[0] }, .n_pass = 1, .knobs = json_pack("[{}]"),
	                   .flags = json_pack("[{}]") };
	char err[700] = "too many points", date[40];
	time_t now = time(NULL);
	struct tm tm;
	int rc = 0;

	for (int i = 1; !rc && i < argc; i++) {
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return sweep_usage(stdout);
		rc = sweep_word(&s, argc, argv, &i, err, sizeof(err));
	}
	strftime(date, sizeof(date), "sweep-%Y%m%d-%H%M%S", localtime_r(&now, &tm));
	s.dir = s.dir ? s.dir : date;
	getrandom(&s.salt, sizeof(s.salt), 0);
	if (!rc)
		rc = make_points(&s, err, sizeof(err));
	if (!rc)
		rc = check_sweep(&s, err, sizeof(err));
	if (rc) {
		fprintf(stderr, "slipring bench sweep: %s\n", err);
		rc = 2;
	} else {
		rc = sweep(&s);
	}
	if (s.in.page)
		instance_close(&s.in);
	json_decref(s.points);
	json_decref(s.knobs);
	json_decref(s.flags);
	return rc;
}
