/* why.c - slipring why: prints what limited the daemon over the last minutes or hours, and which knob
 * that is.  It adds the gain of turning the knob if the counters show it (core/figures/judge.h). */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "tools/commands.h"
#include "core/instance/knobs.h"
#include "core/figures/figures.h"
#include "core/figures/judge.h"
#include "tools/instance.h"
#include "tools/serve_at.h"
#include "tools/live/why_request.h"

#define BAR 32

static int why_usage(FILE *to)
{
	fprintf(to, "slipring why [--instance NAME] [--since TIME] [--json]\n"
	        "slipring why [--instance NAME] [--json] REQUEST-ID | --last\n"
	        "\n"
	        "Shows what limited the daemon: at each moment, why its batch had no more rows, and what bound\n"
	        "the time, as shares of the whole.  Then it names the knob to turn and, where the counters\n"
	        "tell, what that would gain.\n"
	        "\n"
	        "With the id of an answer, of its X-Request-Id header or of its trace: what became of that\n"
	        "request, if it is among the last 4096 that ended.  How long it waited and for what, how much\n"
	        "of its prompt was cached, when its tokens came, beside how many it ran, and how it ended.\n"
	        "\n"
	        "  --instance NAME  which daemon (default: \"default\")\n"
	        "  --port N         the daemon that \"slipring serve --port N\" runs\n"
	        "  --since TIME     90s, 5m, 24h, 1d or start (default: 5m; kept by the minute, for a day)\n"
	        "  --last           the request that ended last\n"
	        "  --json           one object for programs; times in seconds\n"
	        "\n"
	        "why no more rows:  empty      nothing more was asked for\n"
	        "                   seqs       max-num-seqs       tokens  max-num-batched-tokens\n"
	        "                   kv         no KV block        order   the first in the queue does not fit\n"
	        "                   ring_out   a slow reader      pcie    blocks being copied from the host\n"
	        "                   step_time  step-target-ms\n"
	        "what bound it:     idle, host (the device waited for the daemon), compute, bandwidth, pcie,\n"
	        "                   ranks (they waited for each other),\n"
	        "                   cores (the daemon was ready, and others had its cores)\n");
	return to == stdout ? 0 : 2;
}

static double since(const char *text)
{
	return strcmp(text, "start") ? figures_time(text) : INFINITY;
}

/* ---- in words ---------------------------------------------------------------------------- */

static void print_axis(const char *title, const double *s, double all, int n, const char *(*name)(int))
{
	char bar[BAR + 1];

	printf("%s\n", title);
	for (int i = 0; i < n; i++) {
		if (all <= 0 || s[i] / all < 0.0005)
			continue;
		figures_bar(bar, BAR, s[i] / all);
		printf("  %-10s %s %5.1f %%  %.1f s\n", name(i), bar, s[i] / all * 100, s[i]);
	}
}

static void print_knob(const struct stats_page *p, int k)
{
	char now[32], most[32];

	if (k < 0)
		return;
	knob_format((enum knob)k, p->knob[k], now, sizeof(now));
	knob_format((enum knob)k, p->knob_ceiling[k], most, sizeof(most));
	if (k == KNOB_STEP_TARGET && !p->knob[k])
		printf("          slipring set %s VALUE     now: by device\n", knob_info((enum knob)k)->name);
	else if (p->knob[k] < p->knob_ceiling[k])
		printf("          slipring set %s VALUE     now %s, up to %s\n", knob_info((enum knob)k)->name, now,
		       most);
	else
		printf("          it is already at its ceiling, %s\n", now);
}

static void print_worth(const struct verdict *v)
{
	if (*v->no_worth) {
		printf("  worth:  unknown: %s\n", v->no_worth);
		return;
	}
	if (isnan(v->worth))
		return;
	if (!isnan(v->step_then)) {
		printf("  worth:  about %.0f %% more tokens of prompts a second in the %.0f %% of the time that this "
		       "was the limit,\n          with twice as many in a step; which then takes %.2f ms instead of "
		       "%.2f, and that is how long\n          those that decode wait for a token (by %d steps)\n",
		       v->worth * 100, v->share * 100, v->step_then, v->step_now, v->chunks.n);
		return;
	}
	if (judge_before_the_ring(v)) {
		printf("  worth:  at most %.0f %% more of everything, if that took half the time\n", v->worth * 100);
		return;
	}
	printf("  worth:  about %.0f %% more tokens/s ", v->worth * 100);
	if (v->largest == WHY_EMPTY)
		printf("with twice as many requests at a time: ");
	else
		printf("in the %.0f %% of the time that this was the limit: ", v->share * 100);
	printf("a step of %.0f rows\n          takes %.2f ms, of %.0f rows %.2f ms, ",
	       v->rows_now, (v->fit.a + v->fit.b * v->rows_now) * 1e3,
	       v->rows_then, (v->fit.a + v->fit.b * v->rows_then) * 1e3);
	printf("by a line through %d steps of %.0f to %.0f rows%s\n", v->fit.n, v->fit.least, v->fit.most,
	       v->rows_then > v->fit.most ? " (so this is beyond what was measured)" : "");
}

/* Print the clients that could keep the daemon busier. */
static void print_alone(const struct stats_page *p)
{
	char name[33];
	int n = 0;

	for (int i = 0; i < STATS_CLIENTS && n < 8; i++) {
		const struct stats_client *c = &p->client[i];

		if (!c->id || c->requests < 10 || c->alone * 10 < c->requests * 9)
			continue;
		figures_client(name, c->name);
		printf("%s %s (pid %u)", n++ ? "," : "  Clients that send one request at a time:", name, c->pid);
	}
	if (n)
		putchar('\n');
}

/* Name the rank for which the others waited. */
static void print_late(const struct stats_page *p, double share)
{
	int late = judge_late_rank(p);

	printf("  Ranks waited %.1f %% of the time.  Late most: rank %d (pid %llu), %.2f s behind the first in "
	       "%llu batches.\n", share * 100, late, (unsigned long long)p->rank[late].pid,
	       (double)p->rank[late].late_ns / 1e9, (unsigned long long)p->rank[late].batches);
}

/* Others may have had the cores: then whatever else is said below is not what to begin with. */
static void print_cores(const struct stats_page *p, const struct figures *f, const struct verdict *v)
{
	if (!p->cores_known && f->n.steps)
		printf("\nWhether others held its cores is not known: this kernel does not count it (schedstat).\n");
	else if (judge_lacks_cores(v))
		printf("\ncores, %.0f %% of the time under way: %s.\n", v->cores_share * 100, judge_cores_advice(v));
}

static void print_guesses(const struct counters *n)
{
	if (!n->draft_tokens)
		return;
	printf("  Of %llu guessed tokens %llu were right (%.0f %%): rows with guesses brought %.2f tokens each",
	       (unsigned long long)n->draft_tokens, (unsigned long long)n->draft_accepted,
	       100.0 * (double)n->draft_accepted / (double)n->draft_tokens,
	       1 + (n->drafts ? (double)n->draft_accepted / (double)n->drafts : 0));
	if (n->draft_ns)
		printf(",\n  in %.2f s for what would have taken about %.2f s without", (double)n->draft_ns / 1e9,
		       (double)n->draft_without_ns / 1e9);
	printf(".\n");
}

/* Layers with a state: a hit needs a snapshot, and those take what running sequences leave of the states. */
static void print_states(const struct stats_page *p, const struct counters *n)
{
	if (!p->n_states)
		return;
	printf("  %llu of %llu states are of running sequences, the others hold snapshots under the prefix "
	       "cache: %llu kept, %llu hit, %llu evicted%s.\n",
	       (unsigned long long)p->states_used, (unsigned long long)p->n_states,
	       (unsigned long long)n->states_kept, (unsigned long long)n->states_hit,
	       (unsigned long long)n->states_evicted,
	       n->states_evicted > n->states_hit ? "; more of them (--max-states) keep prompts longer" : "");
}

static void print_words(const struct instance *in, const struct figures *f, const struct verdict *v)
{
	const struct advice *a = judge_advice(v);
	const struct stats_page *p = in->page;
	const int most = judge_bound(v);
	char age[32];

	figures_age(age, sizeof(age), f->seconds);
	printf("%s of %s (%s on %s)%s: %llu requests ended, %llu prompt and %llu generated tokens, %llu "
	       "steps\n\n",
	       age, in->name, p->model, p->device, instance_alive(in) ? "" : ", which is GONE",
	       (unsigned long long)f->ended, (unsigned long long)f->n.prompt_tokens,
	       (unsigned long long)f->n.generation_tokens, (unsigned long long)f->n.steps);
	print_axis("why no more rows were added", f->why_s, f->why_all, N_WHY, sched_why_name);
	if (f->why_s[WHY_EMPTY] > 0)
		print_axis("of empty", f->empty_s, f->why_all, N_EMPTY, stats_empty_name);
	print_axis("what bound the time", f->bound_s, f->bound_all, N_BOUND, sched_bound_name);
	printf("  on average %.1f running and %.1f waiting\n", f->running, f->waiting);
	print_cores(p, f, v);
	printf("\n%s, %.0f %% of the time: %s.\n", judge_limit(v), v->share * 100, a->what);
	printf("  turn:   %s%s%s\n", a->turn, *a->more ? ";\n          " : "", a->more);
	print_knob(p, a->knob);
	print_worth(v);
	if (v->largest == WHY_EMPTY)
		print_alone(p);
	for (size_t i = 0; i < COUNTERS_NAMED; i++)
		if (counter_info(i)->lost && counter_value(&f->n, i))
			printf("  %llu %s: %s.\n", (unsigned long long)counter_value(&f->n, i),
			       counter_info(i)->name, counter_info(i)->lost);
	if (f->n.prefix_waits)
		printf("  Prompts waited %llu steps in all for others to compute the same beginning.\n",
		       (unsigned long long)f->n.prefix_waits);
	print_guesses(&f->n);
	if (f->n.window_misses)
		printf("  %llu prompt tokens were cached, but not by layers with a window or a state, which keep the "
		       "ends of prompts and answers.\n", (unsigned long long)f->n.window_misses);
	print_states(p, &f->n);
	if (f->bound_all > 0 && most != BOUND_CORES)
		printf("%s, %.0f %% of the time: %s.\n", sched_bound_name(most), v->bound_share[most] * 100,
		       judge_bound_advice(v));
	if (p->n_ranks > 1 && v->bound_share[BOUND_RANKS] >= 0.01)
		print_late(p, v->bound_share[BOUND_RANKS]);
}

/* ---- for programs ------------------------------------------------------------------------ */

static int print_verdict_json(const struct instance *in, const struct figures *f, const struct verdict *v)
{
	json_t *why = figures_json(f->why_s, N_WHY, sched_why_name);
	json_t *bound = figures_json(f->bound_s, N_BOUND, sched_bound_name);
	json_t *empty = figures_json(f->empty_s, N_EMPTY, stats_empty_name), *j;
	int e;

	j = json_pack("{s:s, s:s, s:s, s:f, s:I, s:I, s:I, s:I}",
	              "instance", in->name, "model", in->page->model, "device", in->page->device,
	              "seconds", f->seconds, "requests", (json_int_t)f->ended,
	              "prompt_tokens", (json_int_t)f->n.prompt_tokens, "generated_tokens",
	              (json_int_t)f->n.generation_tokens, "steps", (json_int_t)f->n.steps);
	figures_lost_json(j, &f->n);
	json_object_update_new(j, json_pack("{s:o, s:o, s:o, s:f, s:f}", "why_s", why, "bound_s", bound,
	              "empty_s", empty, "running", f->running, "waiting", f->waiting));
	json_object_update_new(j, judge_json(v));
	json_object_set_new(j, "cores_known", json_boolean(in->page->cores_known));
	json_object_set_new(j, "cores_s", figures_json(f->cores_s, N_CORES, stats_cores_name));
	json_object_set_new(j, "prefix_waits", json_integer((json_int_t)f->n.prefix_waits));
	json_object_set_new(j, "late_rank",
	                    in->page->n_ranks > 1 ? json_integer(judge_late_rank(in->page)) : json_null());
	figures_guesses_json(j, &f->n);
	json_object_set_new(j, "window_misses", json_integer((json_int_t)f->n.window_misses));
	json_object_set_new(j, "states", in->page->n_states
	                    ? json_pack("{s:I, s:I, s:I}", "kept", (json_int_t)f->n.states_kept, "hit",
	                                (json_int_t)f->n.states_hit, "evicted", (json_int_t)f->n.states_evicted)
	                    : json_null());
	e = j ? json_dumpf(j, stdout, JSON_REAL_PRECISION(9)) : -1;
	putchar('\n');
	json_decref(j);
	return e < 0;
}

int cmd_why(int argc, char **argv)
{
	const char *name = NULL, *port = NULL, *request = NULL;
	struct stats_mark from, now;
	struct instance in;
	struct figures f;
	struct verdict v;
	double seconds = 300;
	bool json = false, last = false;
	int r = 0;

	for (int i = 1; i < argc; i++) {
		int at = i;

		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return why_usage(stdout);
		if (!strcmp(argv[i], "--json"))
			json = true;
		else if (!strcmp(argv[i], "--instance") && i + 1 < argc)
			name = argv[++i];
		else if (!strcmp(argv[i], "--port") && i + 1 < argc)
			port = argv[++i];
		else if (!strcmp(argv[i], "--last"))
			last = true;
		else if (*argv[i] != '-' && !request)
			request = argv[i];
		else if (!strcmp(argv[i], "--since") && i + 1 < argc && !isnan(seconds = since(argv[++i])))
			;
		else
			return command_wrong("why", argv, at, i);
	}
	if (port && !(name = serve_found("why", port)))
		return 1;
	if (instance_open(&in, "why", name) < 0)
		return 1;
	if (request || last) {
		r = why_request(&in, request, json);
		instance_close(&in);
		return r;
	}
	figures_now(in.page, instance_alive(&in), &now);
	if (!in.page->ready_ns) {
		fprintf(stderr, "slipring why: %s is %s: there is nothing to explain yet\n", in.name,
		        in.page->state);
		instance_close(&in);
		return 1;
	}
	judge_since(in.page, &now, seconds, &from);
	figures_between(&from, &now, &f);
	judge_interval(&v, in.page, &f, from.at_ns);
	if (json)
		r = print_verdict_json(&in, &f, &v);
	else
		print_words(&in, &f, &v);
	instance_close(&in);
	return r;
}
