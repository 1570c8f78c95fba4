/* tune_state.c - the state on disk while tune works: each setting with its runs, and the original knobs.
 * An interrupted tune continues from it.  After a killed tune the next one puts the knobs back.
 *
 *	$XDG_STATE_HOME/slipring/tune-INSTANCE.json    (~/.local/state; prove-INSTANCE.json of --prove)
 *
 * The file is written to a temporary name and renamed after every run and before every turn of a knob.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/instance/fresh.h"
#include "core/instance/refuse.h"
#include "tune.h"

/* ---- settings and trials as JSON --------------------------------------------------------------- */

static json_t *setting_json(const struct tune_setting *s)
{
	json_t *j = json_object();

	for (int k = 0; k < N_KNOBS; k++)
		json_object_set_new(j, knob_info((enum knob)k)->name, json_integer(s->knob[k]));
	return j;
}

static bool setting_read(struct tune_setting *s, const json_t *j)
{
	for (int k = 0; k < N_KNOBS; k++) {
		const json_t *v = json_object_get(j, knob_info((enum knob)k)->name);

		if (!json_is_integer(v))
			return false;
		s->knob[k] = json_integer_value(v);
	}
	return true;
}

static json_t *trial_json(const struct tune_trial *tr)
{
	json_t *runs = json_array(), *why = figures_json(tr->why, N_WHY, sched_why_name);
	json_t *empty = figures_json(tr->empty, N_EMPTY, stats_empty_name), *j;

	for (int i = 0; i < tr->n; i++)
		json_array_append_new(runs, json_pack("{s:f, s:O?}", "score", tr->score[i], "result",
		                                      tr->result[i]));
	j = json_pack("{s:o, s:s, s:o, s:f, s:b, s:o, s:o, s:o, s:o, s:f}", "setting", setting_json(&tr->s),
	              "flags", tr->flags, "runs", runs, "seconds", tr->seconds, "given_up", tr->cut,
	              "limits", why, "empty", empty,
	              "hit_rate", isnan(tr->hit_rate) ? json_null() : json_real(tr->hit_rate),
	              "bounds", figures_json(tr->bound, N_BOUND, sched_bound_name), "step_ms", tr->step_ms);
	figures_lost_json(j, &tr->count);
	json_object_update_new(j, json_pack("{s:I, s:I}", "answers_same", (json_int_t)tr->same,
	                                    "answers", (json_int_t)tr->compared));
	return j;
}

static bool trial_read(struct tune_trial *tr, const json_t *j)
{
	const char *flags = json_string_value(json_object_get(j, "flags"));
	const json_t *runs = json_object_get(j, "runs"), *hits = json_object_get(j, "hit_rate"), *run;
	size_t i;

	*tr = (struct tune_trial){ .n = 0 };
	if (!setting_read(&tr->s, json_object_get(j, "setting")) || !flags || json_array_size(runs) > TUNE_RUNS)
		return false;
	snprintf(tr->flags, sizeof(tr->flags), "%s", flags);
	tr->seconds = json_number_value(json_object_get(j, "seconds"));
	tr->cut = json_is_true(json_object_get(j, "given_up"));
	tr->hit_rate = json_is_number(hits) ? json_number_value(hits) : NAN;
	figures_lost_read(&tr->count, j);
	tr->same = (size_t)json_integer_value(json_object_get(j, "answers_same"));
	tr->compared = (size_t)json_integer_value(json_object_get(j, "answers"));
	for (int k = 0; k < N_WHY; k++)
		tr->why[k] = json_number_value(json_object_get(json_object_get(j, "limits"), sched_why_name(k)));
	for (int k = 0; k < N_EMPTY; k++)
		tr->empty[k] = json_number_value(json_object_get(json_object_get(j, "empty"), stats_empty_name(k)));
	for (int k = 0; k < N_BOUND; k++)
		tr->bound[k] = json_number_value(json_object_get(json_object_get(j, "bounds"), sched_bound_name(k)));
	tr->step_ms = json_number_value(json_object_get(j, "step_ms"));
	json_array_foreach(runs, i, run) {
		tr->score[tr->n] = json_number_value(json_object_get(run, "score"));
		tr->result[tr->n] = json_incref(json_object_get(run, "result"));
		tr->n++;
	}
	return true;
}

json_t *tune_json(const struct tune *t)
{
	json_t *trials = json_array(), *bench = json_array(), *server = json_array(), *j;

	for (int i = 0; i < t->n_trials; i++)
		json_array_append_new(trials, trial_json(&t->trial[i]));
	for (int i = 0; i < t->o.n_bench; i++)
		json_array_append_new(bench, json_string(t->o.bench[i]));
	for (int i = 0; i < t->o.n_server; i++)
		json_array_append_new(server, json_string(t->o.server[i]));
	j = json_pack("{s:i, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:I, s:f, s:i, s:i, s:i, s:o}",
	              "format", TUNE_FORMAT, "version", SLIPRING_VERSION, "model", t->model,
	              "signature", t->signature,
	              "goal", t->o.goal == GOAL_GOODPUT ? "goodput" : "throughput",
	              "traffic", bench, "server", server, "start", setting_json(&t->start),
	              "epoch", (json_int_t)t->in.page->epoch, "spent_s", t->spent + bench_now() - t->began,
	              "pid", (int)getpid(), "baseline", t->base, "best", t->best, "trials", trials);
	return j;
}

int tune_from_json(struct tune *t, const json_t *j)
{
	const json_t *trials = json_object_get(j, "trials"), *trial;
	size_t i;

	if (json_integer_value(json_object_get(j, "format")) != TUNE_FORMAT ||
	    json_array_size(trials) > TUNE_TRIALS || !setting_read(&t->start, json_object_get(j, "start")))
		return -EINVAL;
	json_array_foreach(trials, i, trial)
		if (!trial_read(&t->trial[t->n_trials++], trial))
			return -EINVAL;
	t->base = (int)json_integer_value(json_object_get(j, "baseline"));
	t->best = (int)json_integer_value(json_object_get(j, "best"));
	return t->base >= 0 && t->base < t->n_trials && t->best >= 0 && t->best < t->n_trials ? 0 : -EINVAL;
}

int tune_write_json(const char *path, const json_t *j, char *err, size_t errlen)
{
	struct fresh w;
	int rc = fresh_open(&w, AT_FDCWD, path, 0644);

	if (!rc && json_dumpf(j, w.f, JSON_INDENT(1)))
		rc = -EIO;
	if (!rc)
		rc = fresh_done(&w);
	fresh_drop(&w);
	if (rc)
		snprintf(err, errlen, "%s cannot be written: %s", path, strerror(-rc));
	return rc;
}

/* ---- the state --------------------------------------------------------------------------------- */

static int state_dir(char *dir, size_t size, char *err, size_t errlen)
{
	const char *base = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	int n;

	if (base && *base == '/')
		n = snprintf(dir, size, "%s/slipring", base);
	else
		n = snprintf(dir, size, "%s/.local/state/slipring", home ? home : "");
	for (char *p = dir; n > 0 && (size_t)n < size && (p = strchr(p + 1, '/')) != NULL;) {
		*p = 0;
		mkdir(dir, 0700);
		*p = '/';
	}
	if (n < 0 || (size_t)n >= size || (mkdir(dir, 0700) && errno != EEXIST)) {
		snprintf(err, errlen, "%.300s: %s; XDG_STATE_HOME says where tune keeps what it has measured", dir,
		         strerror(errno));
		return -errno;
	}
	return 0;
}

static void name_state(const struct tune *t, const char *dir, bool prove, const char *end, char *out,
                       size_t n)
{
	snprintf(out, n, "%.3500s/%s-%.200s.%s", dir, prove ? "prove" : "tune", t->o.server ? "own" : t->in.name,
	         end);
}

/* A daemon has only one tune at a time.  The kernel releases the lock when the process ends. */
static int take_lock(struct tune *t, const char *dir, char *err, size_t errlen)
{
	char path[PATH_MAX];

	name_state(t, dir, false, "lock", path, sizeof(path));
	t->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (t->lock >= 0 && flock(t->lock, LOCK_EX | LOCK_NB) == 0)
		return 0;
	return refuse(-EBUSY, err, errlen,
	              errno == EWOULDBLOCK ? "%s: another slipring tune is at work on this daemon" : "%s: %s",
	              path, strerror(errno));
}

/* Put back knobs that a tune left turned when it and its keeper were killed.  Does so only if the daemon is
 * the same and the knobs are unchanged since. */
static int put_back(struct tune *t, const json_t *j, char *err, size_t errlen)
{
	struct tune_setting was, turned;
	struct control_answer a;
	bool same = true;

	if (t->o.server || (uint64_t)json_integer_value(json_object_get(j, "epoch")) != t->in.page->epoch ||
	    !setting_read(&was, json_object_get(j, "start")) ||
	    !setting_read(&turned, json_object_get(j, "turned")))
		return 0;
	stats_read(t->in.page);
	for (int k = 0; k < N_KNOBS; k++)
		same &= t->in.page->knob[k] == turned.knob[k];
	if (!same || !memcmp(&was, &turned, sizeof(was)))
		return 0;
	for (int round = 0; round < N_KNOBS; round++, stats_read(t->in.page))
		for (int k = 0; k < N_KNOBS; k++)
			if (t->in.page->knob[k] != was.knob[k])
				turn(&t->in, (enum knob)k, was.knob[k], &a, err, errlen);
	for (int k = 0; k < N_KNOBS; k++)
		if (t->in.page->knob[k] != was.knob[k])
			return refuse(-EIO, err, errlen, "an earlier tune (pid %lld) was killed and its knobs cannot be "
			              "put back; \"slipring set\" lists them",
			              json_integer_value(json_object_get(j, "pid")));
	printf("An earlier tune (pid %lld) was killed; its knobs were put back.\n",
	       json_integer_value(json_object_get(j, "pid")));
	return 0;
}

int tune_state_open(struct tune *t, char *err, size_t errlen)
{
	char dir[PATH_MAX - 400];
	const char *signature;
	struct tune_setting found;
	json_t *j = NULL;
	int rc = state_dir(dir, sizeof(dir), err, errlen);

	if (!rc)
		rc = take_lock(t, dir, err, errlen);
	for (int other = 1; !rc && other >= 0; other--) {  /* our own last, because more of it is read */
		json_decref(j);
		name_state(t, dir, (t->o.prove != NULL) != other, "json", t->state, sizeof(t->state));
		j = json_load_file(t->state, 0, NULL);
		rc = put_back(t, j, err, errlen);
	}
	memcpy(found.knob, t->in.page->knob, sizeof(found.knob));
	t->start = found;
	signature = json_string_value(json_object_get(j, "signature"));
	if (!rc && signature && !strcmp(signature, t->signature) && !t->o.fresh && !t->o.dry_run && !t->o.prove) {
		if (tune_from_json(t, j) || memcmp(&t->start, &found, sizeof(found))) {
			t->n_trials = t->base = t->best = 0;   /* unreadable, or begun with other knobs */
			t->start = found;
		} else {
			t->spent = json_number_value(json_object_get(j, "spent_s"));
			t->best = t->base;                     /* judge again which is best, from the known runs */
			printf("Continuing after an interruption: %d settings were already measured (--fresh forgets "
			       "them).\n", t->n_trials);
		}
	}
	json_decref(j);
	return rc;
}

int tune_state_save(const struct tune *t, const struct tune_setting *turned, char *err, size_t errlen)
{
	json_t *j = tune_json(t);
	int rc;

	json_object_set_new(j, "turned", setting_json(turned));
	rc = tune_write_json(t->state, j, err, errlen);
	json_decref(j);
	return rc;
}

void tune_state_close(struct tune *t, bool done)
{
	if (done)
		unlink(t->state);
	if (t->lock > 0)
		close(t->lock);
}
