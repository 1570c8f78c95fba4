/* tune_write.c - the files that tune writes into a folder:
 *
 *	tune.json                    all settings with all runs; --prove reads it
 *	baseline.json, final.json    results of bench serve, interleaved; slipring compare reads them
 *	slipring.yaml                the settings, in the daemon's own --config if it has one
 *	tune.conf                    the same as a systemd drop-in
 *
 * The last two are written only if the proof held.  Each is written to a temporary name and renamed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/instance/fresh.h"
#include "core/instance/refuse.h"
#include "tools/save.h"
#include "tune.h"

int tune_make_out(const struct tune *t, char *err, size_t errlen)
{
	if (mkdir(t->o.out, 0777) == 0 || errno == EEXIST)
		return 0;
	snprintf(err, errlen, "--out %s: %s", t->o.out, strerror(errno));
	return -errno;
}

static void path_of(const struct tune *t, const char *name, char *out, size_t n)
{
	snprintf(out, n, "%.3000s/%s", t->o.out, name);
}

/* The next flag that differs; NULL at the end. */
static const char *changed(const struct tune *t, int i, char *key, size_t n_key, char *value, size_t n_value)
{
	const struct tune_trial *b = &t->trial[t->best];
	const char *more = b->flags;

	for (int k = 0; k < N_KNOBS; k++) {
		if (b->s.knob[k] == t->start.knob[k] || i-- > 0)
			continue;
		snprintf(key, n_key, "%s", knob_info((enum knob)k)->name);
		knob_format((enum knob)k, b->s.knob[k], value, n_value);
		return key;
	}
	/* "--key value --key value" */
	while (*more) {
		if (sscanf(more, " --%63[^ ] %63[^ ]", key, value) != 2)
			return NULL;
		if (i-- == 0)
			return key;
		more = strstr(more + 2, " --");
		more = more ? more : "";
	}
	return NULL;
}

static int cannot(const char *path, int rc, char *err, size_t errlen)
{
	if (rc)
		snprintf(err, errlen, "%s cannot be written: %s", path, strerror(-rc));
	return rc;
}

/* The values need no quotes in YAML: numbers, true, false, fcfs, priority. */
static int write_yaml(const struct tune *t, const char *gain, char *err, size_t errlen)
{
	char path[PATH_MAX], key[64], value[64], copy[4096];
	const char *config = instance_config(&t->in, copy, sizeof(copy));
	FILE *from = config ? fopen(config, "r") : NULL;
	struct fresh w;
	size_t n;
	int rc;

	path_of(t, "slipring.yaml", path, sizeof(path));
	rc = fresh_open(&w, AT_FDCWD, path, 0666);
	if (!rc && !from)
		fprintf(w.f, "# Found by slipring tune: %s.  Add these lines to the daemon's settings.\n", gain);
	while (!rc && from && (n = fread(copy, 1, sizeof(copy), from)) > 0)
		fwrite(copy, 1, n, w.f);
	if (from)
		fclose(from);
	if (!rc && (fflush(w.f) || ferror(w.f)))
		rc = -EIO;
	for (int i = 0; !rc && changed(t, i, key, sizeof(key), value, sizeof(value)); i++)
		if ((rc = save_key(w.beside, key, value, err, errlen)) < 0) {
			fresh_drop(&w);
			return rc;
		}
	if (!rc)
		rc = fresh_done(&w);
	fresh_drop(&w);
	return cannot(path, rc, err, errlen);
}

/* Replicas are several daemons, which one unit does not start. */
static bool several(const struct tune *t)
{
	return strstr(t->trial[t->best].flags, "--data-parallel-size") != NULL;
}

static int write_dropin(const struct tune *t, const char *gain, char *err, size_t errlen)
{
	bool named = strcmp(t->in.name, "default") != 0 && !t->o.server;
	char path[PATH_MAX], key[64], value[64], why[600];
	const char *config = instance_config(&t->in, why, sizeof(why));
	struct fresh w;
	int rc;

	path_of(t, "tune.conf", path, sizeof(path));
	if ((rc = fresh_open(&w, AT_FDCWD, path, 0666)) < 0)
		return cannot(path, rc, err, errlen);
	fprintf(w.f, "# Found by slipring tune: %s.\n"
	             "# Put it into /etc/systemd/system/slipring%s%s.service.d/, then:\n"
	             "#   systemctl daemon-reload && systemctl restart slipring%s%s\n[Service]\nExecStart=\n"
	             "ExecStart=/usr/bin/slipringd --config %s%s", gain, named ? "@" : "",
	        named ? t->in.name : "", named ? "@" : "", named ? t->in.name : "",
	        config ? config : named ? "/etc/slipring/%i.yaml" :
	        "/etc/slipring/slipring.yaml", named ? " --instance %i" : "");
	for (int i = 0; changed(t, i, key, sizeof(key), value, sizeof(value)); i++)
		fprintf(w.f, " --%s=%s", key, value);
	fputc('\n', w.f);
	return cannot(path, fresh_done(&w), err, errlen);
}

/* Write the last runs of a setting as bench serve --append-result writes them. */
static int write_runs(const struct tune *t, const char *name, const struct tune_trial *tr, int n, char *err,
                      size_t errlen)
{
	char path[PATH_MAX];
	struct fresh w;
	int rc;

	path_of(t, name, path, sizeof(path));
	rc = fresh_open(&w, AT_FDCWD, path, 0666);
	for (int i = n < tr->n ? tr->n - n : 0; !rc && i < tr->n; i++)
		if (json_dumpf(tr->result[i], w.f, 0) || fputc('\n', w.f) == EOF)
			rc = -EIO;
	if (!rc)
		rc = fresh_done(&w);
	fresh_drop(&w);
	return cannot(path, rc, err, errlen);
}

int tune_write(const struct tune *t, int verdict, char *err, size_t errlen)
{
	const struct tune_trial *a = &t->trial[t->base], *b = &t->trial[t->best];
	json_t *j = tune_json(t);
	char path[PATH_MAX], gain[200], key[64], value[64];
	bool named = strcmp(t->in.name, "default") != 0;
	int rc = tune_make_out(t, err, errlen);

	path_of(t, "tune.json", path, sizeof(path));
	json_object_set_new(j, "verdict", json_string(tune_verdict[verdict]));
	if (!rc)
		rc = tune_write_json(path, j, err, errlen);
	json_decref(j);
	if (!rc)
		rc = write_runs(t, "baseline.json", a, t->o.pairs, err, errlen);
	if (!rc && a != b)
		rc = write_runs(t, "final.json", b, t->o.pairs, err, errlen);
	snprintf(gain, sizeof(gain), "%.2f instead of %.2f %s, %d runs of each in turns",
	         tune_mean(b), tune_mean(a), t->o.goal == GOAL_GOODPUT ? "good requests/s" : "tokens/s",
	         t->o.pairs);
	if (!rc && verdict == VERDICT_BETTER)
		rc = write_yaml(t, gain, err, errlen);
	if (!rc && verdict == VERDICT_BETTER && !several(t))
		rc = write_dropin(t, gain, err, errlen);
	if (rc)
		return rc;
	printf("\nWritten to %s: tune.json, baseline.json%s%s\n", t->o.out, a != b ? ", final.json" : "",
	       verdict != VERDICT_BETTER ? "" : several(t) ? ", slipring.yaml" : ", slipring.yaml, tune.conf");
	if (verdict != VERDICT_BETTER)
		return 0;
	if (!t->o.server)
		printf("To apply it now, without a restart:\n");
	for (int i = 0; !t->o.server && changed(t, i, key, sizeof(key), value, sizeof(value)); i++)
		printf("  slipring set %s%s%s%s %s\n", named ? "--instance " : "", named ? t->in.name : "",
		       named ? " " : "", key, value);
	return 0;
}

/* ---- and back ---------------------------------------------------------------------------------- */

static int words_of(const json_t *list, char **out, int most)
{
	const json_t *w;
	size_t i;
	int n = 0;

	json_array_foreach(list, i, w)
		if (n < most && json_is_string(w))
			out[n++] = (char *)(uintptr_t)json_string_value(w);
	return n;
}

int tune_read(struct tune *t, int *verdict, char *err, size_t errlen)
{
	static char *server[TUNE_WORDS];
	static json_t *j;                     /* never freed, because o.bench points into it */
	const char *goal, *said;
	char path[PATH_MAX];
	json_error_t e;

	snprintf(path, sizeof(path), "%.3000s/tune.json", t->o.prove);
	j = json_load_file(path, 0, &e);
	if (!j)
		return refuse(-EINVAL, err, errlen, e.line > 0 ? "%s: line %d: %s" : "%s: it holds no proof", path,
		              e.line, e.text);
	goal = json_string_value(json_object_get(j, "goal"));
	said = json_string_value(json_object_get(j, "verdict"));
	if (json_integer_value(json_object_get(j, "format")) != TUNE_FORMAT || !goal || !said)
		return refuse(-EINVAL, err, errlen, "%s: field \"format\", \"goal\" or \"verdict\": not a file of "
		              "this version's tune", path);
	t->o.goal = !strcmp(goal, "goodput") ? GOAL_GOODPUT : GOAL_THROUGHPUT;
	for (*verdict = VERDICT_WORSE; *verdict > 0 && strcmp(said, tune_verdict[*verdict]);)
		--*verdict;
	t->o.n_bench = words_of(json_object_get(j, "traffic"), t->o.bench, TUNE_WORDS);
	if (!t->o.server && json_array_size(json_object_get(j, "server"))) {
		t->o.server = server;
		t->o.n_server = words_of(json_object_get(j, "server"), server, TUNE_WORDS - 16);
	}
	if (tune_from_json(t, j))
		return refuse(-EINVAL, err, errlen, "%s: field \"trials\": settings of another version's knobs",
		              path);
	if (t->base == t->best)
		return refuse(-EINVAL, err, errlen, "%s: nothing was better then, so there is nothing to prove",
		              path);
	return tune_traffic(&t->o, err, errlen);
}
