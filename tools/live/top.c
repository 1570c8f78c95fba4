/* top.c - slipring top: shows what the daemon does now.  It reads the stats page, so the daemon does not
 * notice it.  Every figure comes from two copies of the page at different times. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "tools/commands.h"
#include "core/instance/knobs.h"
#include "core/figures/figures.h"
#include "core/figures/view.h"
#include "tools/instance.h"
#include "tools/serve_at.h"
#include "tools/machine/nvml.h"
#include "engines.h"
#include "keys.h"
#include "screen.h"
#include "shmring/clock.h"

#define BAR 24                            /* characters; fewer on a narrow terminal */

struct top_view {
	struct instance in;
	struct view *v;
	struct nvml_gpu gpu[NVML_MOST];
	int n_gpus;
};

static volatile sig_atomic_t ended;

static void on_end(int sig)
{
	(void)sig;
	ended = 1;
}

static int top_usage(FILE *to)
{
	fprintf(to, "slipring top [--instance NAME] [-i SECONDS] [--once] [--json]\n"
	        "slipring top --keys [--url URL] [--api-key KEY] [--cacert FILE] [-i SECONDS] [--once] [--json]\n"
	        "\n"
	        "Shows what the daemon does: rates, latencies, the limits of its steps, and its clients.\n"
	        "It reads the stats page, so the daemon is neither asked nor slowed.\n"
	        "\n"
	        "  --instance NAME  which daemon (default: \"default\")\n"
	        "  --port N         the daemon that \"slipring serve --port N\" runs\n"
	        "  -i SECONDS       between two readings, 0.1 to 3600 (default: 1)\n"
	        "  --once           print the difference of two readings and end; default without a terminal\n"
	        "  --json           the same as one object for programs; units are seconds, tokens and bytes\n"
	        "  --keys           what each API key uses, and how often its limits refused it; asks the\n"
	        "                   server at URL (default: http://127.0.0.1:8000) for its /metrics\n"
	        "  --api-key KEY    of its --metrics-key, or of an operator; needed from another machine\n"
	        "  --cacert FILE    certificates (PEM) to trust instead of the system's, for an own CA\n"
	        "\n"
	        "Keys: q ends.  \"slipring why\" says what the limits mean and what to do.\n");
	return to == stdout ? 0 : 2;
}

/* ---- looking ----------------------------------------------------------------------------- */

static void look_at(struct top_view *t)
{
	instance_follow(&t->in);
	stats_read_all(t->in.page);
	view_look(t->v, t->in.page, instance_alive(&t->in));
	t->n_gpus = nvml_look(t->gpu);
}

/* ---- as lines ---------------------------------------------------------------------------- */

static void say_state(struct sheet *s, const struct top_view *t)
{
	const struct stats_page *p = &t->v->now->page;
	uint64_t now = sr_now();
	char age[32];

	figures_age(age, sizeof(age), p->ready_ns ? (double)(now - p->ready_ns) / 1e9 : 0);
	if (!t->v->alive)
		sheet_add(s, true, "slipring top   %s   THE DAEMON (pid %u) IS GONE; these are its last "
		          "figures", t->in.name, p->pid);
	else
		sheet_add(s, true, "slipring top   %s   %.80s on %s   %s for %s", t->in.name, p->model, p->device,
		          p->state, age);
}

__attribute__((format(printf, 3, 4)))
static void add_text(char *s, size_t n, const char *fmt, ...)
{
	size_t at = strlen(s);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(s + at, n - at, fmt, ap);
	va_end(ap);
}

static void say_axes(struct sheet *s, const struct figures *f, bool cores_known)
{
	char a[BAR + 1], b[BAR + 1], left[64], right[64], empty[SHEET_WIDTH] = "";
	int bar = s->width && s->width < 2 * (BAR + 19) ? s->width / 2 - 19 : BAR, wide;

	bar = bar < 1 ? 1 : bar;
	wide = bar + (s->width && s->width < 96 ? 20 : 28);
	sheet_add(s, true, "%-*s%s", wide, bar < 10 ? "no more rows: why" : "why no more rows were added",
	          bar < 10 ? "bound by" : "what bound the time");
	for (int i = 0; i < N_WHY; i++) {
		double why = f->why_all > 0 ? f->why_s[i] / f->why_all : 0;
		double bound = i < N_BOUND && f->bound_all > 0 ? f->bound_s[i] / f->bound_all : 0;

		figures_bar(a, bar, why);
		figures_bar(b, bar, bound);
		snprintf(left, sizeof(left), "%-9s %s %5.1f %%", sched_why_name(i), a, why * 100);
		snprintf(right, sizeof(right), "%-9s %s %5.1f %%", sched_bound_name(i), b, bound * 100);
		if (i == BOUND_CORES && !cores_known)
			snprintf(right, sizeof(right), "%-9s not known", sched_bound_name(i));
		sheet_add(s, false, "%-*s%s", i < N_BOUND ? wide : 0, left, i < N_BOUND ? right : "");
	}
	for (int i = 0; i < N_EMPTY; i++)     /* all parts, because lines that come and go are hard to read */
		add_text(empty, sizeof(empty), "   %s %.1f %%", stats_empty_name(i),
		         f->why_all > 0 ? f->empty_s[i] / f->why_all * 100 : 0);
	sheet_add(s, false, "of empty:%s", empty);
}

/* Show the busiest clients that fit, and the sum of the others. */
static void say_clients(struct sheet *s, const struct view *v)
{
	int room = s->rows && s->rows < SHEET_LINES ? s->rows : SHEET_LINES, i;
	unsigned live = 0, unanswered = 0;
	double prompt = 0, generated = 0;
	char rest[32];

	sheet_add(s, true, "%-24s %8s %6s %6s %8s %10s %10s", "client", "pid", "uid", "live", "no token",
	          "prompt/s", "tokens/s");
	for (i = 0; i < v->n_rows && (s->n + (s->width ? 2 : 1) < room || i + 1 == v->n_rows); i++) {
		const struct view_row *r = &v->row[i];

		sheet_add(s, false, "%-24.24s %8u %6u %6u %8u %10.1f %10.1f%s%s", r->name, r->c->pid, r->c->uid,
		          r->c->live, r->c->unanswered, r->prompt_per_s, r->generated_per_s,
		          *r->remark ? "   " : "", r->remark);
	}
	if (i == v->n_rows)
		return;
	snprintf(rest, sizeof(rest), "and %d more, together", v->n_rows - i);
	for (; i < v->n_rows; i++) {
		live += v->row[i].c->live;
		unanswered += v->row[i].c->unanswered;
		prompt += v->row[i].prompt_per_s;
		generated += v->row[i].generated_per_s;
	}
	sheet_add(s, false, "%-24s %8s %6s %6u %8u %10.1f %10.1f", rest, "", "", live, unanswered, prompt,
	          generated);
}

/* Show a GPU without its unknown values. */
static void say_gpu(struct sheet *s, int i, const struct nvml_gpu *g)
{
	char t[SHEET_WIDTH] = "", why[80];

	if (g->busy_percent >= 0)
		add_text(t, sizeof(t), ", busy %d %%", g->busy_percent);
	if (g->memory_used >= 0)
		add_text(t, sizeof(t), ", memory %.1f of %.1f GiB", (double)g->memory_used / 0x1p30,
		         (double)g->memory_total / 0x1p30);
	if (g->power_mw >= 0)
		add_text(t, sizeof(t), ", %.0f W", g->power_mw / 1e3);
	if (g->power_mw >= 0 && g->power_limit_mw > 0)
		add_text(t, sizeof(t), " of %.0f", g->power_limit_mw / 1e3);
	if (g->celsius >= 0)
		add_text(t, sizeof(t), ", %d C", g->celsius);
	if (g->sm_mhz >= 0)
		add_text(t, sizeof(t), ", %d MHz", g->sm_mhz);
	if (*nvml_held_back(g->held_back, why, sizeof(why)))
		add_text(t, sizeof(t), ", held back by %s", why);
	if (g->uncorrected > 0)
		add_text(t, sizeof(t), ", MEMORY ERRORS %lld", (long long)g->uncorrected);
	sheet_add(s, g->uncorrected > 0, "GPU %d %.40s: %s", i, g->name, *t ? t + 2 : "says nothing");
}

/* "  guessed 30 of 40 (1.5x)  preempted 3" */
static char *say_lost(char *out, size_t size, const struct counters *n)
{
	size_t at = 0;

	*out = 0;
	if (n->draft_tokens)
		at += (size_t)snprintf(out, size, "  guessed %llu of %llu", (unsigned long long)n->draft_accepted,
		                       (unsigned long long)n->draft_tokens);
	if (n->draft_tokens && n->draft_ns && at < size)
		at += (size_t)snprintf(out + at, size - at, " (%.1fx)",
		                       (double)n->draft_without_ns / (double)n->draft_ns);
	for (size_t i = 0; i < COUNTERS_NAMED && at < size; i++)
		if (counter_info(i)->lost)
			at += (size_t)snprintf(out + at, size - at, "  %s %llu", counter_info(i)->past,
			                       (unsigned long long)counter_value(n, i));
	return out;
}

/* Each rank, and how far it was behind the first: the others wait for the one that is late. */
static void say_ranks(struct sheet *s, const struct view *v)
{
	const struct stats_page *p = &v->now->page, *old = &v->old->page;

	for (uint64_t i = 0; i < p->n_ranks && i < STATS_RANKS; i++) {
		const struct stats_rank *r = &p->rank[i];
		bool known = !v->first && i < old->n_ranks && old->rank[i].pid == r->pid && v->f.seconds > 0;
		uint64_t late = r->late_ns - (known ? old->rank[i].late_ns : 0);

		if (known)
			sheet_add(s, false, "rank %-2d pid %-8llu batches %-10llu late %.1f %% of the time", (int)i,
			          (unsigned long long)r->pid, (unsigned long long)r->batches,
			          (double)late / 1e7 / v->f.seconds);
		else
			sheet_add(s, false, "rank %-2d pid %-8llu batches %-10llu late %.2f s since its start", (int)i,
			          (unsigned long long)r->pid, (unsigned long long)r->batches, (double)late / 1e9);
	}
	if (p->n_ranks && p->count.device_restarts)
		sheet_add(s, true, "ranks were lost and started again %llu times",
		          (unsigned long long)p->count.device_restarts);
}

static void say_page(struct sheet *s, const struct top_view *top)
{
	const struct view *v = top->v;
	const struct stats_page *p = &v->now->page;
	const struct figures *f = &v->f;
	char hits[32] = "-", groups[64] = "", t[6][24], lost[120];

	s->n = 0;
	say_state(s, top);
	if (!isnan(f->hit_rate))
		snprintf(hits, sizeof(hits), "%.1f %%", f->hit_rate * 100);
	if (p->kv_groups > 1)
		snprintf(groups, sizeof(groups), " in %llu groups", (unsigned long long)p->kv_groups);
	if (p->n_states)
		snprintf(groups, sizeof(groups), ", %llu of %llu states", (unsigned long long)p->states_used,
		         (unsigned long long)p->n_states);
	sheet_add(s, false, "running %llu of %lld   waiting %llu   KV %.1f %% of %llu blocks%s   prefix hits "
	          "%s   clients %llu", (unsigned long long)p->running, (long long)p->knob[KNOB_MAX_NUM_SEQS],
	          (unsigned long long)p->waiting,
	          p->n_blocks ? 100.0 * (double)p->blocks_used / (double)p->n_blocks : 0.0,
	          (unsigned long long)p->n_blocks, groups, hits, (unsigned long long)p->clients);
	sheet_add(s, false, "prompt %.1f tokens/s   generated %.1f tokens/s   requests %.2f/s   steps %.1f/s "
	          "%s", f->prompt_per_s, f->generated_per_s, f->requests_per_s, f->steps_per_s,
	          say_lost(lost, sizeof(lost), &f->n));
	for (int i = 0; i < 3; i++) {
		figures_ms(t[i], sizeof(t[i]), v->ttft[i]);
		figures_ms(t[3 + i], sizeof(t[3 + i]), v->itl[i]);
	}
	sheet_add(s, false, "TTFT p50 %s, p90 %s, p99 %s   ITL p50 %s, p90 %s, p99 %s", t[0], t[1], t[2], t[3],
	          t[4], t[5]);
	figures_ms(t[0], sizeof(t[0]), (double)p->cycle_max_ns / 1e9);
	sheet_add(s, false, "longest turn of the loop %s since start   refused %llu   died %llu", t[0],
	          (unsigned long long)p->count.refused, (unsigned long long)p->count.died);
	for (int i = 0; i < top->n_gpus; i++)
		say_gpu(s, i, &top->gpu[i]);
	say_ranks(s, v);
	engines_say(s, top->in.name);
	sheet_add(s, false, "%s", "");
	say_axes(s, f, p->cores_known);
	sheet_add(s, false, "%s", "");
	say_clients(s, v);
}

/* ---- for programs ------------------------------------------------------------------------ */

static json_t *json_known(int64_t x) { return x == NVML_UNKNOWN ? json_null() : json_integer(x); }

static json_t *known_milli(int x) { return x == NVML_UNKNOWN ? json_null() : json_real(x / 1e3); }

static json_t *json_gpus(const struct top_view *t)
{
	json_t *all = json_array();
	char why[80];

	for (int i = 0; i < t->n_gpus; i++) {
		const struct nvml_gpu *g = &t->gpu[i];

		json_array_append_new(all, json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
		                                     "s:s, s:o, s:o}",
			"name", g->name, "bus", g->bus, "busy_percent", json_known(g->busy_percent),
			"memory_used", json_known(g->memory_used), "memory_total", json_known(g->memory_total),
			"watts", known_milli(g->power_mw), "watts_limit", known_milli(g->power_limit_mw),
			"celsius", json_known(g->celsius), "sm_mhz", json_known(g->sm_mhz),
			"sm_mhz_most", json_known(g->sm_mhz_most),
			"held_back_by", nvml_held_back(g->held_back, why, sizeof(why)),
			"memory_errors_corrected", json_known(g->corrected),
			"memory_errors_uncorrected", json_known(g->uncorrected)));
	}
	return all;
}

static int print_page_json(const struct top_view *t)
{
	json_t *j = view_json(t->v, STATS_CLIENTS);
	int e;

	json_object_set_new(j, "gpus", json_gpus(t));
	json_object_set_new(j, "engines", engines_json(t->in.name));
	e = j ? json_dumpf(j, stdout, JSON_REAL_PRECISION(9)) : -1;
	putchar('\n');
	json_decref(j);
	return e < 0;
}

/* ---- the command ------------------------------------------------------------------------- */

static void nap(double seconds)
{
	struct timespec t = { (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) };

	nanosleep(&t, NULL);                  /* a signal ends the sleep and the program */
}

static void watch_page(struct top_view *t, struct sheet *s, double seconds)
{
	int key = 0;

	while (!ended && key != 'q' && key != 'Q' && key != -1) {
		look_at(t);
		screen_size(s);
		say_page(s, t);
		screen_show(s);
		key = screen_key((int)(seconds * 1e3));
	}
	screen_close();
}

int cmd_top(int argc, char **argv)
{
	static struct top_view t;
	static struct sheet s;
	struct keys_server from = { .url = "http://127.0.0.1:8000" };
	const char *name = NULL, *port = NULL;
	bool once = false, json = false, keys = false;
	double seconds = 1;
	int r = 0;

	for (int i = 1; i < argc; i++) {
		int at = i;
		char *end = NULL;

		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return top_usage(stdout);
		if (!strcmp(argv[i], "--once"))
			once = true;
		else if (!strcmp(argv[i], "--json"))
			once = json = true;
		else if (!strcmp(argv[i], "--keys"))
			keys = true;
		else if (!strcmp(argv[i], "--url") && i + 1 < argc)
			from.url = argv[++i];
		else if (!strcmp(argv[i], "--api-key") && i + 1 < argc)
			from.key = argv[++i];
		else if (!strcmp(argv[i], "--cacert") && i + 1 < argc)
			from.cacert = argv[++i];
		else if (!strcmp(argv[i], "--instance") && i + 1 < argc)
			name = argv[++i];
		else if (!strcmp(argv[i], "--port") && i + 1 < argc)
			port = argv[++i];
		else if (!strcmp(argv[i], "-i") && i + 1 < argc && (seconds = strtod(argv[++i],
		        &end)) >= 0.1 &&
		         seconds <= 3600 && !*end)
			;
		else
			return command_wrong("top", argv, at, i);
	}
	if (keys) {
		signal(SIGINT, on_end);
		signal(SIGTERM, on_end);
		return keys_show(&from, once, json, seconds, &ended);
	}
	if (port && !(name = serve_found("top", port)))
		return 1;
	if (instance_open(&t.in, "top", name) < 0)
		return 1;
	t.v = view_create(t.in.name);
	if (!t.v) {
		fprintf(stderr, "slipring top: no memory\n");
		return 1;
	}
	signal(SIGINT, on_end);
	signal(SIGTERM, on_end);
	look_at(&t);
	if (!once && screen_open()) {
		watch_page(&t, &s, seconds);
	} else {
		nap(seconds);
		look_at(&t);
		say_page(&s, &t);
		if (json)
			r = print_page_json(&t);
		else
			sheet_print(&s, stdout);
	}
	view_destroy(t.v);
	instance_close(&t.in);
	return r;
}
