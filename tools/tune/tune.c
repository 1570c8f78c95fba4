/* tune.c - slipring tune: opens the daemon and the traffic, walks the checklist, and restores everything.
 *
 * A separate process (turn.h) puts the knobs back when this one ends, killed or not.  If both are killed,
 * the next tune puts them back from the state on disk.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/commands.h"
#include "tools/session.h"
#include "tune.h"
#include "core/instance/refuse.h"

/* ---- open -------------------------------------------------------------------------------------- */

static int open_daemon(struct tune *t, char *err, size_t errlen)
{
	int rc;

	if (t->o.server) {
		rc = t->o.dry_run ? 0 : tune_make_out(t, err, errlen);
		return rc ? rc : tune_server_start(t, err, errlen);
	}
	rc = instance_open(&t->in, "tune", t->o.instance);
	if (rc < 0) {
		*err = 0;                         /* instance_open printed it */
		return rc;
	}
	if (!instance_alive(&t->in) || !t->in.page->ready_ns || strcmp(t->in.page->state, "ready"))
		return refuse(-EAGAIN, err, errlen, "%s is %s: tune it when it is ready", t->in.name,
		              instance_alive(&t->in) ? t->in.page->state : "gone");
	if (t->in.page->running || t->in.page->waiting)
		return refuse(-EBUSY, err, errlen, "%s is serving others (%llu requests running, %llu waiting): they "
		              "would disturb the measurement and suffer from it; tune it when it is idle",
		              t->in.name, (unsigned long long)t->in.page->running,
		              (unsigned long long)t->in.page->waiting);
	return 0;
}

static int open_text(struct tune *t, char *err, size_t errlen)
{
	struct session_options so = { .instance = t->in.name, .model = t->o.traffic.tokenizer ?
	                              t->o.traffic.tokenizer : t->o.traffic.model };
	struct session s;
	int rc = session_open(&s, &so, err, errlen);

	if (rc)
		return rc;
	snprintf(t->model, sizeof(t->model), "%s", sr_model(s.conn)->name);
	memcpy(t->socket, s.socket, sizeof(t->socket));
	t->text = s.text;
	s.text = NULL;
	session_close(&s);
	return 0;
}

static uint64_t hash_add(uint64_t h, const void *p, size_t n)
{
	const unsigned char *c = p;

	for (size_t i = 0; i < n; i++)
		h = (h ^ c[i]) * 0x100000001b3u;
	return h;
}

/* Load the traffic and its needs, and compute its signature.  A later tune recognizes the same work by it. */
static int open_traffic(struct tune *t, char *err, size_t errlen)
{
	uint64_t h = 0xcbf29ce484222325u;
	int rc = bench_load(&t->load, &t->o.traffic, t->text, err, errlen);

	if (rc)
		return rc;
	t->arrival = calloc(t->load.n, sizeof(*t->arrival));
	if (!t->arrival || bench_arrivals(t->arrival, &t->load, &t->o.traffic))
		return refuse(-ENOMEM, err, errlen, "no arrivals can be drawn for %zu requests", t->load.n);
	for (size_t i = 0; i < t->load.n; i++) {
		const struct bench_prompt *p = &t->load.prompt[i];
		uint32_t all = p->n_ids + p->max_tokens;

		t->n_prompt += p->n_ids;
		t->n_output += p->max_tokens;
		t->longest = all > t->longest ? all : t->longest;
		h = hash_add(h, p->ids, p->n_ids * sizeof(*p->ids));
		h = hash_add(h, &p->max_tokens, sizeof(p->max_tokens));
	}
	if (t->longest > t->in.page->max_model_len)
		return refuse(-EMSGSIZE, err, errlen, "the longest request of this traffic needs %u tokens, and "
		              "max-model-len is %llu: start the daemon with a larger one, or without the flag",
		              t->longest,
		              (unsigned long long)t->in.page->max_model_len);
	h = hash_add(h, t->arrival, t->load.n * sizeof(*t->arrival));
	for (int i = 0; i < t->o.n_server; i++)
		h = hash_add(h, t->o.server[i], strlen(t->o.server[i]) + 1);
	for (int i = 0; i < t->o.traffic.goodput.n; i++)
		h = hash_add(h, t->o.traffic.goodput.word[i], strlen(t->o.traffic.goodput.word[i]));
	h = hash_add(h, t->in.page->knob_ceiling, sizeof(t->in.page->knob_ceiling));
	h = hash_add(h, t->in.page->device, strlen(t->in.page->device));
	snprintf(t->signature, sizeof(t->signature), "%s %.40s %d %zu %016llx", SLIPRING_VERSION, t->model,
	         t->o.goal, t->load.n, (unsigned long long)h);
	return 0;
}

static void headline(const struct tune *t)
{
	const struct bench_options *o = &t->o.traffic;
	char value[32];

	printf("%s: %s on %s; %zu requests of %s (%llu prompt and %llu generated tokens), ", t->in.name, t->model,
	       t->in.page->device, t->load.n, o->dataset, (unsigned long long)t->n_prompt,
	       (unsigned long long)t->n_output);
	if (o->self_timed > 0)
		printf("by the trace's clock");
	else if (isinf(o->rate))
		printf("all at once");
	else
		printf("%.4g a second", o->rate);
	if (o->concurrency)
		printf(", %lld at a time", (long long)o->concurrency);
	printf("; goal %s\n", t->o.goal == GOAL_GOODPUT ? "goodput" : "throughput");
	printf("as it is:");
	for (int k = 0; k < N_KNOBS; k++) {
		knob_format((enum knob)k, t->start.knob[k], value, sizeof(value));
		printf("%s %s %s", k ? "," : "", knob_info((enum knob)k)->name, value);
	}
	printf("\n");
	fflush(stdout);
}

/* ---- work and end ------------------------------------------------------------------------------ */

static int prove(struct tune *t, int said, char *err, size_t errlen)
{
	char what[300];
	int verdict, rc;

	tune_tell(t, &t->trial[t->best], what, sizeof(what));
	printf("as it was, then %s; in turns\n", what);
	t->o.budget = INFINITY;
	rc = tune_prove(t, t->base, t->best, &verdict, err, errlen);
	if (rc)
		return rc;
	printf("   %s before, %s now%s\n", tune_verdict[said], tune_verdict[verdict], said == verdict ?
	       ": the same verdict" : "");
	if (said == verdict)
		return 0;
	return refuse(-EDOM, err, errlen, "the proof had another outcome this time");
}

static void say_so_far(const struct tune *t)
{
	char what[300];
	int n = 0;

	for (int i = 0; i < t->n_trials; i++)
		n += t->trial[i].n > 0 || t->trial[i].cut;
	tune_tell(t, &t->trial[t->best], what, sizeof(what));
	printf("\nInterrupted: %d settings measured; best so far, not proved: %s.  The same command continues "
	       "from here.\n", n, what);
}

/* Turn the knobs to the best settings and leave them so. */
static int apply(struct tune *t, char *err, size_t errlen)
{
	const struct tune_trial *b = &t->trial[t->best];
	int rc = tune_turn(t, &b->s, err, errlen);

	if (!rc)
		printf("Applied.\n");
	return rc;
}

static int tune_work(struct tune *t, int said, char *err, size_t errlen)
{
	struct tune_setting start;
	int rc = tune_state_open(t, err, errlen);

	memcpy(start.knob, t->in.page->knob, sizeof(start.knob));
	if (!rc && t->o.prove && memcmp(&t->start, &start, sizeof(start)))
		t->start = start;                 /* changes are reported against the current settings */
	if (!rc)
		headline(t);
	if (!rc && t->o.dry_run) {
		tune_plan(t);
		return 0;
	}
	if (!rc && !t->o.server) {
		rc = keeper_start(&t->keeper, &t->in, err, errlen);
		t->kept = !rc;
	}
	if (!rc)
		rc = t->o.prove ? prove(t, said, err, errlen) : tune_walk(t, err, errlen);
	if (t->disturbed)
		printf("NOTE: other clients used the server meanwhile, so the measurements include them.\n");
	if (rc == -EINTR && t->n_trials && !t->o.prove)
		say_so_far(t);
	return rc;
}

/* Clean up after success, failure or interruption. */
static int clean_up(struct tune *t, int rc, char *err, size_t errlen)
{
	bool better = !rc && !t->o.prove && !t->o.dry_run && t->best != t->base;

	if (t->kept && keeper_stop(&t->keeper) && !rc) {
		snprintf(err, errlen, "some knobs were not put back");
		rc = -EIO;
	} else if (t->kept) {
		printf("%s", t->n_sent ? "The knobs were put back.\n" : "");
	}
	if (better && t->o.apply && !t->o.server && !rc)
		rc = apply(t, err, errlen);
	tune_state_close(t, !rc && !t->o.dry_run);
	tune_server_stop(t);
	for (int i = 0; i < t->n_trials; i++)
		for (int k = 0; k < t->trial[i].n; k++)
			json_decref(t->trial[i].result[k]);
	bench_load_free(&t->load);
	free(t->arrival);
	free(t->digest);
	sr_text_close(t->text);
	if (t->in.page)
		instance_close(&t->in);
	return rc;
}

int cmd_tune(int argc, char **argv)
{
	struct sigaction on = { .sa_handler = tune_interrupt };
	static struct tune t;
	char err[900] = "";
	int rc, said = 0;

	t.began = bench_now();
	rc = tune_options(&t.o, argc, argv, err, sizeof(err));
	if (rc == 1)
		return 0;
	if (!rc && t.o.prove)
		rc = tune_read(&t, &said, err, sizeof(err));
	if (rc) {
		fprintf(stderr, "slipring tune: %s\n", err);
		return 2;
	}
	sigaction(SIGINT, &on, NULL);
	sigaction(SIGTERM, &on, NULL);
	sigaction(SIGHUP, &on, NULL);
	signal(SIGPIPE, SIG_IGN);
	rc = open_daemon(&t, err, sizeof(err));
	if (!rc)
		rc = open_text(&t, err, sizeof(err));
	if (!rc)
		rc = open_traffic(&t, err, sizeof(err));
	if (!rc)
		rc = tune_work(&t, said, err, sizeof(err));
	rc = clean_up(&t, rc, err, sizeof(err));
	if (rc && !(rc == -EINTR && tune_interrupted) && *err)
		fprintf(stderr, "slipring tune: %s\n", err);
	return rc == -EINTR && tune_interrupted ? 130 : rc ? 1 : 0;
}
