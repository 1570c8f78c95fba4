/* why.c - slipring why: prints what limited the daemon over the last minutes or hours, and which knob
 * that is.  It adds the gain of turning the knob if the counters show it.
 *
 * Every step attributes the time since the previous step to one limit on each of two axes
 * (docs/scheduler.md).  So each axis adds up to the whole time.  This file takes the differences between the
 * counters now and those of a minute in the stats page. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "tools/commands.h"
#include "core/instance/knobs.h"
#include "tools/figures.h"
#include "tools/instance.h"

#define BAR        32
#define LITTLE     0.05                   /* a share of the time that does not matter */
#define FIT_LEAST  64                     /* fewest steps for fitting a line */
#define FIT_SPREAD 0.1                    /* least deviation of their rows over the mean */

struct step_fit {                         /* seconds of a step of only decoding rows = a + b * rows */
	int n;                            /* steps; 0: there is no fit */
	double a, b, mean, least, most;
};

struct chunks {                           /* seconds of any step = a + b * rows + c * (tokens - rows) */
	int n;                            /* steps; 0: there is no fit */
	double a, b, c, rows, more;       /* rows, and tokens beyond one per row, on average */
};

struct verdict {
	int largest;                      /* enum sched_why; WHY_EMPTY: nothing limited the daemon */
	int empty;                        /* enum stats_empty: the largest part of that time */
	double share, bound_share[N_BOUND];
	struct step_fit fit;
	double rows_now, rows_then;       /* per step, which `worth` compares; NAN: nothing */
	struct chunks chunks;
	double step_now, step_then;       /* ms, if the knob is about prompt tokens; else NAN */
	double worth;                     /* gain in tokens/s, as a share, while it limits; NAN: unknown */
	char no_worth[200];               /* why the gain is unknown */
};

#define MEMORY "give the KV cache more memory: restart with a larger --kv-cache-memory-bytes or " \
	"--gpu-memory-utilization"

static const struct advice { int knob; const char *what, *turn, *more; } advice[N_WHY] = {
	[WHY_SEQS] = { KNOB_MAX_NUM_SEQS,
		"max-num-seqs sequences were running and others waited",
		"raise max-num-seqs",
		"beyond its ceiling: restart with --knob-ceiling max-num-seqs=N" },
	[WHY_TOKENS] = { KNOB_MAX_NUM_BATCHED_TOKENS,
		"a step was full of max-num-batched-tokens tokens",
		"raise max-num-batched-tokens (beyond its ceiling: restart with --knob-ceiling)",
		"prompts finish sooner, but each step takes longer for sequences that decode" },
	[WHY_KV] = { -1,
		"no KV block was free",
		MEMORY,
		"or a smaller --max-model-len; or lower max-num-seqs, if sequences are preempted" },
	[WHY_RING_OUT] = { -1,
		"a client did not read its tokens, and its ring was full",
		"nothing here: make that client read (slipring top names it)", "" },
	[WHY_ORDER] = { -1,
		"the first request in the queue did not fit the free KV blocks, and none may overtake it",
		MEMORY,
		"shorter prompts, or fewer at a time, help too" },
	[WHY_STEP_TIME] = { KNOB_STEP_TARGET,
		"prompts were cut to keep steps within step-target-ms, to keep sequences that decode going",
		"raise step-target-ms",
		"prompts finish sooner (TTFT), but tokens come less evenly (ITL)" },
	[WHY_PCIE] = { -1,
		"KV blocks were being copied back from host memory",
		"nothing yet: each step copies as much as its budget allows", "" },
	[WHY_GUIDE] = { -1,
		"answers that keep to a grammar waited for the next guide from their client",
		"more processes to compute guides: restart with a larger --api-server-count, on cores of their own",
		"clients that guide answers themselves: do it in more threads" },
};

/* The same for the parts of `empty`. */
static const struct advice empty_advice[N_EMPTY] = {
	[EMPTY_TOKENIZING] = { -1,
		"nothing waited but requests that were still being prepared (JSON, templates, tokenizing)",
		"more processes to prepare them: restart with a larger --api-server-count, on cores of their own",
		"clients that prepare requests themselves: prepare them earlier, or in more threads" },
	[EMPTY_NETWORK] = { -1,
		"nothing waited but requests of which a part had not arrived",
		"nothing to gain here: look at the senders, and at the network between", "" },
	[EMPTY_SILENT] = { -1,
		"clients were connected, but had no request",
		"nothing to gain here: send more requests at a time", "" },
	[EMPTY_SERVED] = { -1,
		"the batch held everything that was asked for",
		"nothing to gain here: send more requests at a time", "" },
	[EMPTY_NOBODY] = { -1,
		"nobody was connected",
		"nothing to gain here: nothing was asked for", "" },
};

static const char *const bound_advice[N_BOUND] = {
	[BOUND_IDLE] = "it had nothing to compute: more clients, or clients that send more at a time",
	[BOUND_HOST] = "the device waited for slipringd: give it a core of its own (slipring doctor)",
	[BOUND_COMPUTE] = "the device's arithmetic: a smaller or more quantized model, or more devices",
	[BOUND_MEMORY] = "the device's memory bandwidth: more rows per step cost little more time",
	[BOUND_PCIE] = "copies between host and device memory",
};

static int why_usage(FILE *to)
{
	fprintf(to, "slipring why [--instance NAME] [--since TIME] [--json]\n"
	        "\n"
	        "Shows what limited the daemon: at each moment, why its batch had no more rows, and what bound\n"
	        "the time, as shares of the whole.  Then it names the knob to turn and, where the counters\n"
	        "tell, what that would gain.\n"
	        "\n"
	        "  --instance NAME  which daemon (default: \"default\")\n"
	        "  --since TIME     90s, 5m, 24h, 1d or start (default: 5m; kept by the minute, for a day)\n"
	        "  --json           one object for programs; times in seconds\n"
	        "\n"
	        "why no more rows:  empty      nothing more was asked for\n"
	        "                   seqs       max-num-seqs       tokens  max-num-batched-tokens\n"
	        "                   kv         no KV block        order   the first in the queue does not fit\n"
	        "                   ring_out   a slow reader      pcie    blocks being copied from the host\n"
	        "                   step_time  step-target-ms\n"
	        "what bound it:     idle, host (the device waited for the daemon), compute, bandwidth, pcie\n");
	return to == stdout ? 0 : 2;
}

static double since(const char *text)
{
	return strcmp(text, "start") ? figures_time(text) : INFINITY;
}

/* ---- what it would be worth -------------------------------------------------------------- */

/* Fit a line through the last steps since from_ns that only decoded.  The daemon may write while the steps
 * are copied; a step that changes meanwhile is one wrong point in thousands. */
static struct step_fit fit_steps(const struct stats_page *p, uint64_t from_ns)
{
	uint64_t n = p->n_step, oldest = n > STATS_STEPS ? n - STATS_STEPS : 0;
	double sx = 0, sy = 0, sxx = 0, sxy = 0, d, mean;
	struct step_fit f = { .least = INFINITY };
	int count = 0;

	for (uint64_t i = oldest; i < n; i++) {
		const struct stats_step *s = &p->step[i % STATS_STEPS];
		double x = s->rows, y = (double)s->device_ns / 1e9;

		if (s->begin_ns < from_ns || s->tokens != s->rows || !s->rows)
			continue;
		count++;
		sx += x;
		sy += y;
		sxx += x * x;
		sxy += x * y;
		f.least = x < f.least ? x : f.least;
		f.most = x > f.most ? x : f.most;
	}
	if (count < FIT_LEAST)
		return f;
	mean = sx / count;
	d = sxx / count - mean * mean;
	if (d <= 0 || sqrt(d) < FIT_SPREAD * mean)
		return f;
	f.b = (sxy / count - mean * sy / count) / d;
	f.a = sy / count - f.b * mean;
	f.mean = mean;
	f.n = f.a > 0 && f.b >= 0 ? count : 0;
	return f;
}

/* Solve least squares of three unknowns.  m has the sums of the products of (1, x, y) with each other and
 * with z. */
static bool solve(double m[3][4])
{
	for (int k = 0; k < 3; k++) {
		if (fabs(m[k][k]) < 1e-12)
			return false;
		for (int r = 0; r < 3; r++) {
			double by = r == k ? 0 : m[r][k] / m[k][k];

			for (int c = k; c < 4; c++)
				m[r][c] -= by * m[k][c];
		}
	}
	return true;
}

/* Fit how the time of a step grows with rows and with prompt tokens, from the last steps that had any.  Both
 * are in units of their means, so that the sums are of similar size. */
static struct chunks fit_chunks(const struct stats_page *p, uint64_t from_ns)
{
	uint64_t n = p->n_step, oldest = n > STATS_STEPS ? n - STATS_STEPS : 0;
	double m[3][4] = { { 0 } }, rows = 0, more = 0;
	struct chunks f = { 0 };
	int count = 0;

	for (int pass = 0; pass < 2; pass++) {
		for (uint64_t i = oldest; i < n; i++) {
			const struct stats_step *s = &p->step[i % STATS_STEPS];
			double x[4];

			if (s->begin_ns < from_ns || s->tokens <= s->rows)
				continue;
			x[0] = 1, x[1] = s->rows, x[2] = s->tokens - s->rows, x[3] = (double)s->device_ns / 1e9;
			count += pass == 0;
			rows += pass == 0 ? x[1] : 0;
			more += pass == 0 ? x[2] : 0;
			for (int r = 0; pass && r < 3; r++)
				for (int c = 0; c < 4; c++)
					m[r][c] += (r == 1 ? x[1] / f.rows : r == 2 ? x[2] / f.more : 1) *
					           (c == 1 ? x[1] / f.rows : c == 2 ? x[2] / f.more : x[c]);
		}
		if (count < FIT_LEAST)
			return f;
		f.rows = rows / count;
		f.more = more / count;
	}
	for (int k = 0; k < 3; k++)               /* where rows and tokens correlate, share the effect */
		m[k][k] *= 1 + 1e-9;
	if (!solve(m))
		return f;
	f.a = m[0][3] / m[0][0];
	f.b = m[1][3] / m[1][1] / f.rows;
	f.c = m[2][3] / m[2][2] / f.more;
	f.n = f.c > 0 && f.a + f.b * f.rows > 0 ? count : 0;
	return f;
}

/* The gain of twice the prompt tokens in a step: more prompt tokens a second, but longer steps. */
static void worth_of_tokens(struct verdict *v, const struct stats_page *p, uint64_t from_ns)
{
	const struct chunks *f = &v->chunks;
	double now, then;

	v->chunks = fit_chunks(p, from_ns);
	if (!f->n) {
		snprintf(v->no_worth, sizeof(v->no_worth), "the last steps do not show how the time of a step grows "
		         "with its prompt tokens");
		return;
	}
	now = f->a + f->b * f->rows + f->c * f->more;
	then = now + f->c * f->more;
	v->step_now = now * 1e3;
	v->step_then = then * 1e3;
	v->worth = 2 * now / then - 1;
}

/* The gain of `more` rows in a step, at most doubling them. */
static void worth_of_rows(struct verdict *v, double more, const char *none)
{
	if (v->fit.n == 0) {
		snprintf(v->no_worth, sizeof(v->no_worth), "the last steps had about the same number of rows, so "
		         "they do not show how the time of a step grows with rows");
		return;
	}
	if (more < 0.5) {
		snprintf(v->no_worth, sizeof(v->no_worth), "%s", none);
		return;
	}
	v->rows_now = v->fit.mean;
	v->rows_then = v->rows_now + (more < v->rows_now ? more : v->rows_now);
	v->worth = v->rows_then / (v->fit.a + v->fit.b * v->rows_then) /
	           (v->rows_now / (v->fit.a + v->fit.b * v->rows_now)) - 1;
}

/* Running sequences without a row, on average, during the time `held` with a limit. */
static double without_row(const struct figures *f, double held)
{
	double busy = f->bound_all - f->bound_s[BOUND_IDLE];
	double running = busy > 0 ? f->running * f->seconds / busy : 0;

	return held > 0 && f->rows == f->rows && running > f->rows ? running - f->rows : 0;
}

/* Is the limit before the ring, in requests that the clients have not submitted yet? */
static bool before_the_ring(const struct verdict *v)
{
	return v->largest == WHY_EMPTY && (v->empty == EMPTY_TOKENIZING || v->empty == EMPTY_NETWORK);
}

static void worth_of(struct verdict *v, const struct stats_page *p, const struct figures *f, uint64_t from_ns)
{
	double held = f->why_all - f->why_s[WHY_EMPTY]; /* s; no request waits in the rest */

	switch (v->largest) {
	case WHY_SEQS: case WHY_KV: case WHY_ORDER:
		worth_of_rows(v, held > 0 ? f->waiting * f->seconds / held : 0, "hardly any request waited");
		break;
	case WHY_TOKENS: case WHY_STEP_TIME:
		worth_of_tokens(v, p, from_ns);
		break;
	case WHY_RING_OUT: case WHY_PCIE: case WHY_GUIDE:
		worth_of_rows(v, without_row(f, held), "hardly any sequence lacked a row because of it");
		break;
	case WHY_EMPTY:
		if (before_the_ring(v))           /* if it took half the time and the rest did not change */
			v->worth = 1 / (1 - v->share / 2) - 1;
		else if (f->empty_s[EMPTY_SERVED] > LITTLE * f->why_all)
			worth_of_rows(v, v->fit.mean, ""); /* if clients sent twice as many at a time */
		break;
	default:
		break;
	}
}

static void judge_interval(struct verdict *v, const struct stats_page *p, const struct figures *f,
                           uint64_t from_ns)
{
	*v = (struct verdict){ .largest = WHY_EMPTY, .empty = EMPTY_NOBODY, .rows_now = NAN, .rows_then = NAN,
	                       .worth = NAN, .step_now = NAN, .step_then = NAN };
	for (int i = 0; i < N_BOUND; i++)
		v->bound_share[i] = f->bound_all > 0 ? f->bound_s[i] / f->bound_all : 0;
	for (int i = 0; i < N_WHY; i++)
		if (i != WHY_EMPTY && f->why_all > 0 && f->why_s[i] / f->why_all > v->share) {
			v->largest = i;
			v->share = f->why_s[i] / f->why_all;
		}
	for (int i = 0; i < N_EMPTY; i++)
		if (f->empty_s[i] > f->empty_s[v->empty])
			v->empty = i;
	if (f->why_all > 0 && f->empty_s[v->empty] / f->why_all > v->share && v->empty < EMPTY_SEEN) {
		v->largest = WHY_EMPTY;           /* a request waited, but not for the daemon */
		v->share = f->empty_s[v->empty] / f->why_all;
	} else if (v->share < LITTLE) {
		v->largest = WHY_EMPTY;
		v->share = f->why_all > 0 ? f->why_s[WHY_EMPTY] / f->why_all : 0;
	}
	v->fit = fit_steps(p, from_ns);
	worth_of(v, p, f, from_ns);
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
	if (before_the_ring(v)) {
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

static void print_words(const struct instance *in, const struct figures *f, const struct verdict *v)
{
	const struct advice *a = v->largest == WHY_EMPTY ? &empty_advice[v->empty] : &advice[v->largest];
	const struct stats_page *p = in->page;
	double idle = v->bound_share[BOUND_IDLE];
	int most = BOUND_HOST;
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
	printf("\n%s, %.0f %% of the time: %s.\n", before_the_ring(v) ? stats_empty_name(v->empty) :
	       sched_why_name(v->largest), v->share * 100, a->what);
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
	if (f->n.window_misses)
		printf("  %llu prompt tokens were cached, but not by layers with a window, which keep the ends of "
		       "prompts and answers.\n", (unsigned long long)f->n.window_misses);
	for (int i = BOUND_HOST; i < N_BOUND; i++)
		most = v->bound_share[i] > v->bound_share[most] ? i : most;
	if (idle > v->bound_share[most])
		most = BOUND_IDLE;
	if (f->bound_all > 0)
		printf("%s, %.0f %% of the time: %s.\n", sched_bound_name(most), v->bound_share[most] * 100,
		       bound_advice[most]);
}

/* ---- for programs ------------------------------------------------------------------------ */

static int print_verdict_json(const struct instance *in, const struct figures *f, const struct verdict *v)
{
	const struct advice *a = v->largest == WHY_EMPTY ? &empty_advice[v->empty] : &advice[v->largest];
	json_t *why = figures_json(f->why_s, N_WHY, sched_why_name);
	json_t *bound = figures_json(f->bound_s, N_BOUND, sched_bound_name);
	json_t *empty = figures_json(f->empty_s, N_EMPTY, stats_empty_name), *j;
	int k = a->knob, e;

	j = json_pack("{s:s, s:s, s:s, s:f, s:I, s:I, s:I, s:I}",
	              "instance", in->name, "model", in->page->model, "device", in->page->device,
	              "seconds", f->seconds, "requests", (json_int_t)f->ended,
	              "prompt_tokens", (json_int_t)f->n.prompt_tokens, "generated_tokens",
	              (json_int_t)f->n.generation_tokens, "steps", (json_int_t)f->n.steps);
	figures_lost_json(j, &f->n);
	json_object_update_new(j, json_pack("{s:o, s:o, s:o, s:f, s:f, s:s, s:f, s:s, s:o, s:o, s:s}",
	              "why_s", why, "bound_s", bound, "empty_s", empty,
	              "running", f->running, "waiting", f->waiting, "limit", sched_why_name(v->largest),
	              "share", v->share,
	              "turn", a->turn,
	              "knob", k < 0 ? json_null() : json_string(knob_info((enum knob)k)->name),
	              "worth", isnan(v->worth) ? json_null() : json_real(v->worth), "no_worth", v->no_worth));
	json_object_set_new(j, "step_ms_then", isnan(v->step_then) ? json_null() : json_real(v->step_then));
	json_object_set_new(j, "empty", v->largest == WHY_EMPTY ? json_string(stats_empty_name(v->empty)) :
	                    json_null());
	json_object_set_new(j, "prefix_waits", json_integer((json_int_t)f->n.prefix_waits));
	json_object_set_new(j, "window_misses", json_integer((json_int_t)f->n.window_misses));
	e = j ? json_dumpf(j, stdout, JSON_REAL_PRECISION(9)) : -1;
	putchar('\n');
	json_decref(j);
	return e < 0;
}

int cmd_why(int argc, char **argv)
{
	const char *name = NULL;
	struct stats_mark from, now;
	struct instance in;
	struct figures f;
	struct verdict v;
	double seconds = 300;
	bool json = false;
	int r = 0;

	for (int i = 1; i < argc; i++) {
		int at = i;

		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return why_usage(stdout);
		if (!strcmp(argv[i], "--json"))
			json = true;
		else if (!strcmp(argv[i], "--instance") && i + 1 < argc)
			name = argv[++i];
		else if (!strcmp(argv[i], "--since") && i + 1 < argc && !isnan(seconds = since(argv[++i])))
			;
		else
			return command_wrong("why", argv, at, i);
	}
	if (instance_open(&in, "why", name) < 0)
		return 1;
	figures_now(in.page, instance_alive(&in), &now);
	if (!in.page->ready_ns) {
		fprintf(stderr, "slipring why: %s is %s: there is nothing to explain yet\n", in.name,
		        in.page->state);
		instance_close(&in);
		return 1;
	}
	if ((double)now.at_ns - (double)in.page->ready_ns <= seconds * 1e9 &&
	    in.page->n_minute <= STATS_MINUTES)
		from = (struct stats_mark){ .at_ns = in.page->ready_ns };
	else if (!stats_since(in.page, isinf(seconds) ? 0 : now.at_ns - (uint64_t)(seconds * 1e9), &from))
		from = (struct stats_mark){ .at_ns = in.page->ready_ns };
	figures_between(&from, &now, &f);
	judge_interval(&v, in.page, &f, from.at_ns);
	if (json)
		r = print_verdict_json(&in, &f, &v);
	else
		print_words(&in, &f, &v);
	instance_close(&in);
	return r;
}
