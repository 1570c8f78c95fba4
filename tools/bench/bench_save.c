/* bench_save.c - writes result files: the keys of `vllm bench serve` in its order, then one object "slipring"
 * with what vLLM lacks.  A file is written to a temporary name and renamed, so no reader sees half a file.
 */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "core/instance/fresh.h"
#include "core/instance/refuse.h"

static json_t *text_or_null(const char *s)
{
	return s ? json_string(s) : json_null();
}

static void per_request(json_t *j, const struct bench_run *r)
{
	static const char *const name[] = { "input_lens", "output_lens", "ttfts", "itls", "latencies",
	                                    "start_times", "queue_times", "generated_texts", "errors" };
	json_t *list[9];

	for (int k = 0; k < 9; k++)
		json_object_set_new(j, name[k], list[k] = json_array());
	for (size_t i = 0; i < r->n_sent; i++) {
		const struct bench_answer *a = &r->answer[i];
		bool ok = a->state == BENCH_OK;
		json_t *gaps = json_array(), *text = json_stringn(a->text ? a->text : "", a->n_text);

		if (a->state == BENCH_CUT) {
			json_decref(gaps);
			json_decref(text);
			continue;
		}
		for (size_t k = 0; k < a->n_itl; k++)
			json_array_append_new(gaps, json_real(a->itl[k]));
		json_array_append_new(list[0], json_integer(a->n_input));
		json_array_append_new(list[1], json_integer(ok ? a->n_output : 0));
		json_array_append_new(list[2], json_real(a->ttft));
		json_array_append_new(list[3], gaps);
		json_array_append_new(list[4], json_real(a->latency));
		json_array_append_new(list[5], json_real(a->start));
		json_array_append_new(list[6], json_real(a->start - a->due));
		/* No text: it was not UTF-8, which no JSON server sends. */
		json_array_append_new(list[7], text ? text : json_string(""));
		json_array_append_new(list[8], json_string(a->error));
	}
}

static void put_stat(json_t *j, const struct bench_summary *s, const struct bench_stat *v, const char *name)
{
	char key[80];

	snprintf(key, sizeof(key), "mean_%s_ms", name);
	json_object_set_new(j, key, json_real(v->mean * 1000));
	snprintf(key, sizeof(key), "median_%s_ms", name);
	json_object_set_new(j, key, json_real(v->median * 1000));
	snprintf(key, sizeof(key), "std_%s_ms", name);
	json_object_set_new(j, key, json_real(v->std * 1000));
	for (int i = 0; i < s->n_p; i++) {
		snprintf(key, sizeof(key), "p%.10g_%s_ms", s->p[i], name);
		json_object_set_new(j, key, json_real(v->p[i] * 1000));
	}
}

/* Add what the daemon did.  Values over time are added only if details are wanted. */
static void put_served(json_t *j, const struct bench_run *r, bool detailed)
{
	json_t *k = r->served ? json_copy(r->served) : NULL;

	if (!k)
		return;
	if (!detailed)
		json_object_del(k, "over_time");
	json_object_set_new(j, "server", k);
}

static json_t *slipring_fields(const struct bench_summary *s, const struct bench_run *r, bool detailed)
{
	json_t *j = json_pack("{s:i, s:s, s:s, s:s, s:I, s:f, s:f, s:f, s:b}", "format", BENCH_FORMAT,
		"version", SLIPRING_VERSION, "transport", r->o->transport, "dataset", r->o->dataset,
		"seed", (json_int_t)r->o->seed, "mean_late_ms", s->late_mean * 1000,
		"p99_late_ms", s->late_p99 * 1000, "max_late_ms", s->late_max * 1000,
		"interrupted", s->cut + s->unsent > 0);
	json_t *k;

	if (!j)
		return NULL;
	if (r->o->schema)
		json_object_set_new(j, "structured_output_ratio", json_real(r->o->structured));
	put_stat(j, s, &s->open_ttft, "ttft_from_intended");
	put_stat(j, s, &s->open_e2el, "e2el_from_intended");
	put_served(j, r, detailed);
	if (!s->steady.there)
		return j;
	k = json_pack("{s:I, s:f, s:f, s:f}", "concurrency", (json_int_t)s->steady.concurrency,
		"duration", s->steady.seconds, "request_throughput", s->steady.requests_per_s,
		"output_throughput", s->steady.output_per_s);
	if (k) {
		put_stat(k, s, &s->steady.ttft, "ttft");
		put_stat(k, s, &s->steady.itl, "itl");
		json_object_set_new(j, "steady_state", k);
	}
	return j;
}

static void put_about(json_t *j, const struct bench_run *r, const struct bench_about *a)
{
	const struct bench_options *o = r->o;
	char date[32];
	struct tm tm;

	localtime_r(&a->when, &tm);
	strftime(date, sizeof(date), "%Y%m%d-%H%M%S", &tm);
	json_object_set_new(j, "date", json_string(date));
	json_object_set_new(j, "endpoint_type", json_string(o->backend));
	json_object_set_new(j, "backend", json_string(o->backend));
	json_object_set_new(j, "label", text_or_null(o->label));
	json_object_set_new(j, "model_id", text_or_null(a->model_id));
	json_object_set_new(j, "tokenizer_id", text_or_null(a->tokenizer_id));
	json_object_set_new(j, "num_prompts", json_integer(o->n_prompts));
	for (int i = 0; i < o->metadata.n; i++) {
		const char *w = o->metadata.word[i], *equals = strchr(w, '=');
		char key[200];

		snprintf(key, sizeof(key), "%.*s", (int)(equals - w), w);
		json_object_set_new(j, key, json_string(equals + 1));
	}
	json_object_set_new(j, "request_rate", isinf(o->rate) ? json_string("inf") : json_real(o->rate));
	json_object_set_new(j, "burstiness",
	                    isinf(o->burstiness) ? json_string("inf") : json_real(o->burstiness));
	json_object_set_new(j, "max_concurrency",
	                    o->concurrency ? json_integer(o->concurrency) : json_null());
	if (o->ramp) {
		json_object_set_new(j, "ramp_up_strategy", json_string(o->ramp));
		json_object_set_new(j, "ramp_up_start_rps", json_real(o->ramp_start));
		json_object_set_new(j, "ramp_up_end_rps", json_real(o->ramp_end));
	}
}

json_t *bench_result(const struct bench_summary *s, const struct bench_run *r, const struct bench_about *a,
                     bool detailed)
{
	json_t *j = json_object();

	if (!j)
		return NULL;
	put_about(j, r, a);
	json_object_set_new(j, "duration", json_real(s->duration));
	json_object_set_new(j, "completed", json_integer((json_int_t)s->completed));
	json_object_set_new(j, "failed", json_integer((json_int_t)s->failed));
	json_object_set_new(j, "total_input_tokens", json_integer((json_int_t)s->n_input));
	json_object_set_new(j, "total_output_tokens", json_integer((json_int_t)s->n_output));
	json_object_set_new(j, "request_throughput", json_real(s->requests_per_s));
	json_object_set_new(j, "request_goodput", s->has_goodput ? json_real(s->goodput) : json_null());
	json_object_set_new(j, "output_throughput", json_real(s->output_per_s));
	json_object_set_new(j, "total_token_throughput", json_real(s->total_per_s));
	if (detailed)
		per_request(j, r);
	json_object_set_new(j, "max_output_tokens_per_s", json_real(s->peak_per_s));
	json_object_set_new(j, "max_concurrent_requests", json_integer((json_int_t)s->peak_concurrent));
	json_object_set_new(j, "rtfx", json_real(0.0));
	for (int m = 0; m < BENCH_METRICS; m++)
		if (bench_chosen(r->o, s, m))
			put_stat(j, s, &s->stat[m], bench_metric[m].name);
	json_object_set_new(j, "slipring", slipring_fields(s, r, detailed));
	return j;
}

/* ---- files ------------------------------------------------------------------------------------- */

/* Create the folders of a path. */
static int make_dirs(const char *path)
{
	char part[PATH_MAX];
	size_t n = strlen(path);

	if (n >= sizeof(part))
		return -ENAMETOOLONG;
	for (size_t i = 1; i < n; i++)
		if (path[i] == '/') {
			memcpy(part, path, i);
			part[i] = 0;
			if (mkdir(part, 0777) && errno != EEXIST)
				return -errno;
		}
	return 0;
}

/* Copy the content of the old file, if there is one. */
static int copy_old(FILE *to, const char *path)
{
	FILE *f = fopen(path, "r");
	char buffer[1 << 16];
	size_t n, all = 0;
	bool bad;

	if (!f)
		return errno == ENOENT ? 0 : -errno;
	while ((n = fread(buffer, 1, sizeof(buffer), f)) > 0) {
		fwrite(buffer, 1, n, to);
		all += n;
	}
	bad = ferror(f);
	fclose(f);
	if (all)
		fputc('\n', to);
	return bad ? -EIO : 0;
}

int bench_write(const char *path, const json_t *j, bool append, char *err, size_t errlen)
{
	struct fresh w = { .f = NULL };
	int rc = make_dirs(path);

	if (!rc)
		rc = fresh_open(&w, AT_FDCWD, path, 0666);
	if (!rc && append)
		rc = copy_old(w.f, path);
	if (!rc && json_dumpf(j, w.f, 0))
		rc = -EIO;
	if (!rc)
		rc = fresh_done(&w);
	fresh_drop(&w);
	if (rc)
		snprintf(err, errlen, "%s cannot be written: %s", path, strerror(-rc));
	return rc;
}

static void result_name(char *out, size_t n, const struct bench_options *o, const struct bench_about *a)
{
	const char *slash = a->model_id ? strrchr(a->model_id, '/') : NULL;
	char rate[32], start[32], end[32], speed[128], at_once[32] = "", date[32];
	struct tm tm;

	localtime_r(&a->when, &tm);
	strftime(date, sizeof(date), "%Y%m%d-%H%M%S", &tm);
	if (o->concurrency)
		snprintf(at_once, sizeof(at_once), "-concurrency%lld", (long long)o->concurrency);
	bench_real(rate, sizeof(rate), o->rate);
	bench_real(start, sizeof(start), o->ramp_start);
	bench_real(end, sizeof(end), o->ramp_end);
	if (o->ramp)
		snprintf(speed, sizeof(speed), "ramp-up-%s-%sqps-%sqps", o->ramp, start, end);
	else
		snprintf(speed, sizeof(speed), "%sqps", rate);
	snprintf(out, n, "%s-%s%s-%s-%s.json", o->label ? o->label : o->backend, speed, at_once,
	         slash ? slash + 1 : a->model_id ? a->model_id : "model", date);
}

int bench_save(const struct bench_summary *s, const struct bench_run *r, const struct bench_about *a,
               char *err, size_t errlen)
{
	const struct bench_options *o = r->o;
	char path[PATH_MAX], name[PATH_MAX];
	json_t *j = bench_result(s, r, a, o->detailed);
	int rc = 0;

	result_name(name, sizeof(name), o, a);
	if ((size_t)snprintf(path, sizeof(path), "%s%s%s", o->dir ? o->dir : "", o->dir ? "/" : "",
	                     o->filename ? o->filename : name) >= sizeof(path))
		rc = -ENAMETOOLONG;
	if (rc || !j)
		snprintf(err, errlen, "%s: %s", o->dir ? o->dir : path, j ? strerror(-rc) : "no memory");
	else
		rc = bench_write(path, j, o->append, err, errlen);
	if (!rc && r->say)
		fprintf(r->say, "Saved: %s\n", path);
	json_decref(j);
	return j ? rc : -ENOMEM;
}

int bench_baseline_path(const char *name, char *out, size_t n, char *err, size_t errlen)
{
	const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
	int k;

	if (!*name || strchr(name, '/') || name[0] == '.')
		return refuse(-EINVAL, err, errlen, "\"%s\" cannot name a baseline: it may hold no slash and may not "
		              "begin with a dot", name);
	if (data && *data == '/')
		k = snprintf(out, n, "%s/slipring/baselines/%s.json", data, name);
	else
		k = snprintf(out, n, "%s/.local/share/slipring/baselines/%s.json", home ? home : "", name);
	if (k > 0 && (size_t)k < n)
		return 0;
	return refuse(-ENAMETOOLONG, err, errlen, "the baseline's path is too long");
}

int bench_save_baseline(const struct bench_summary *s, const struct bench_run *r, const struct bench_about *a,
                        char *err, size_t errlen)
{
	char path[PATH_MAX];
	int rc = bench_baseline_path(r->o->baseline, path, sizeof(path), err, errlen);
	json_t *j;

	if (rc)
		return rc;
	j = bench_result(s, r, a, true);
	rc = j ? bench_write(path, j, false, err, errlen) : -ENOMEM;
	json_decref(j);
	if (!rc && r->say)
		fprintf(r->say, "Baseline: %s (%s)\n", r->o->baseline, path);
	return rc;
}
