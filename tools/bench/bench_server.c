/* bench_server.c - what the daemon did during a benchmark, from its stats page.  It reports the limits on
 * both axes over time, and the batches' use of memory and arithmetic.  A sentence names the limit of the run.
 *
 * A server on HTTP need not be the daemon that wrote this page.  The page is used if it counted, during the
 * run, the tokens that came back.  If it counted many more, other clients were served too, and that is
 * reported.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "tools/machine/ceilings.h"
#include "tools/serve_at.h"
#include "core/instance/config.h"
#include "core/instance/knobs.h"
#include "core/figures/figures.h"

#define FIRST_S   0.05           /* s between two marks at first; doubled when there are too many */
#define MARKS     512
#define NEAR      0.7            /* share of a ceiling that counts as reaching it */
#define HELD      0.2            /* least share of the time of a limit that counts */

struct bench_server {
	char dir[4096];
	const struct stats_page *page;
	struct stats_mark mark[MARKS];
	size_t n;
	double every, next;          /* s; next: by bench_now() */
};

static bool loopback(const struct bench_options *o)
{
	static const char *const here[] = { "127.", "localhost", "[::1]", "::1" };
	const char *host = o->base_url && strstr(o->base_url, "://") ? strstr(o->base_url, "://") + 3 : o->host;

	for (int i = 0; i < 4; i++)
		if (!strncmp(host, here[i], strlen(here[i])))
			return true;
	return false;
}

const char *bench_instance(const struct bench_options *o, char *why, size_t n)
{
	const char *host = o->base_url ? strstr(o->base_url, "://") : NULL;
	const char *colon = host ? strrchr(host + 3, ':') : NULL;
	const char *name = o->instance;
	char port[8];

	*why = 0;
	if (!name && (bench_ring(o) || !loopback(o)))
		name = "default";
	if (o->base_url)
		snprintf(port, sizeof(port), "%ld", colon ? strtol(colon + 1, NULL, 10) % 100000 : 80);
	else
		snprintf(port, sizeof(port), "%d", (int)o->port);
	if (!name && !(name = serve_on(port, why, n)))
		return "default";
	snprintf(why, n, "the daemon \"%s\" does not run here, or did not count the tokens that came back", name);
	return name;
}

struct bench_server *bench_server_open(const struct bench_options *o, char *why, size_t n)
{
	struct bench_server *s = calloc(1, sizeof(*s));
	const char *slash = o->socket ? strrchr(o->socket, '/') : NULL;
	int rc = -ENOENT;

	if (!s || (!bench_ring(o) && !loopback(o))) {
		free(s);
		return NULL;
	}
	if (slash && bench_ring(o))
		rc = snprintf(s->dir, sizeof(s->dir), "%.*s", (int)(slash - o->socket), o->socket) >=
		     (int)sizeof(s->dir) ? -ENAMETOOLONG : 0;
	else if (!o->socket)
		rc = config_find_run_dir(bench_instance(o, why, n), s->dir, sizeof(s->dir));
	if (rc < 0 || stats_open(&s->page, s->dir)) {
		free(s);
		return NULL;
	}
	return s;
}

void bench_server_close(struct bench_server *s)
{
	if (!s)
		return;
	stats_close(s->page);
	free(s);
}

/* Remove every second mark, but keep the first. */
static void thin(struct bench_server *s)
{
	for (size_t i = 1; 2 * i < s->n; i++)
		s->mark[i] = s->mark[2 * i];
	s->n = (s->n + 1) / 2;
	s->every *= 2;
}

static void mark(struct bench_server *s)
{
	struct stats_mark m;

	stats_read(s->page);
	figures_now(s->page, true, &m);
	if (s->n && m.at_ns <= s->mark[s->n - 1].at_ns)
		return;                       /* the page did not change during a long step */
	if (s->n == MARKS)
		thin(s);
	s->mark[s->n++] = m;
}

void bench_server_begin(struct bench_server *s, double now)
{
	s->n = 0;
	s->every = FIRST_S;
	s->next = now + s->every;
	mark(s);
}

double bench_server_turn(struct bench_server *s, double now)
{
	if (now >= s->next) {
		mark(s);
		s->next = fmax(now, s->next + s->every);
	}
	return s->next;
}

void bench_server_end(struct bench_server *s)
{
	mark(s);
}

/* ---- how far ----------------------------------------------------------------------------------- */

struct reach {                           /* from one mark to another */
	struct figures f;
	double busy;                     /* s with a batch in flight */
	double bytes_s, ops_s, copied_s; /* per busy second */
	double memory, arithmetic, pcie; /* shares of the ceilings while busy; NAN: unknown */
};

static struct reach reach(const struct stats_mark *a, const struct stats_mark *b, const struct ceilings *c)
{
	struct reach r = { .memory = NAN, .arithmetic = NAN, .pcie = NAN };
	double int8, flt;

	figures_between(a, b, &r.f);
	r.busy = r.f.bound_all - r.f.bound_s[BOUND_IDLE];
	if (!(r.busy > 0))
		return r;
	int8 = (double)r.f.n.int8_ops, flt = (double)r.f.n.float_ops;
	r.bytes_s = (double)r.f.n.bytes_moved / r.busy;
	r.copied_s = (double)r.f.n.bytes_copied / r.busy;
	r.ops_s = (int8 + flt) / r.busy;
	if (r.bytes_s > 0 && c->bytes_s > 0)
		r.memory = r.bytes_s / c->bytes_s;
	if (r.ops_s > 0 && c->int8_s > 0 && c->float_s > 0)
		r.arithmetic = (int8 / c->int8_s + flt / c->float_s) / r.busy;
	if (c->pcie_s > 0)
		r.pcie = r.copied_s / c->pcie_s;
	return r;
}

/* Write "64 % of the memory bandwidth and 21 % of the arithmetic", without unknown values. */
static void amounts(char *out, size_t n, const struct reach *r)
{
	if (!isnan(r->memory) && !isnan(r->arithmetic))
		snprintf(out, n, "%.0f %% of the machine's memory bandwidth and %.0f %% of its arithmetic",
		         r->memory * 100, r->arithmetic * 100);
	else if (r->bytes_s > 0)
		snprintf(out, n, "%.1f GB/s and %.1f Gop/s, but the machine's limits are not known (slipring doctor "
		         "--measure)", r->bytes_s / 1e9, r->ops_s / 1e9);
	else
		snprintf(out, n, "an unknown part of its ceilings (this device counts no bytes and operations)");
}

#define TRADE "raised, prompts are done sooner, and tokens come less evenly"

static const struct { const char *limit, *knob, *say; } held[N_WHY] = {
	[WHY_EMPTY]     = { "load", NULL, NULL },
	[WHY_SEQS]      = { "knob", "max-num-seqs", "more rows a step would share the same weights: raise it" },
	[WHY_TOKENS]    = { "knob", "max-num-batched-tokens", TRADE },
	[WHY_KV]        = { "knob", "the KV cache's memory", "give it more, or shorter sequences" },
	[WHY_RING_OUT]  = { "reader", "a client that did not read its tokens", "make it read" },
	[WHY_ORDER]     = { "knob", "the KV cache's memory", "the first in line did not fit it" },
	[WHY_STEP_TIME] = { "knob", "step-target-ms", TRADE },
	[WHY_GUIDE]     = { "client", "guides for answers that keep to a grammar", "more adapter processes" },
	[WHY_PCIE]      = { "hardware", "copies from the host's memory", "a larger KV cache on the device" },
};

static const char *const lacked[N_CORES] = {
	[CORES_OTHERS] = "other programs held them (this client is one, if it runs here)",
	[CORES_QUOTA] = "its cgroup's CPU quota was used up",
	[CORES_MACHINE] = "the hypervisor ran other machines on them",
};

/* Write " (of empty: tokenizing 86 %, silent 13 %)" and advice on the first two; "" if there was none. */
static void of_empty(char *out, size_t n, const struct figures *f)
{
	const char *turn = "";
	char parts[120];

	if (f->empty_s[EMPTY_TOKENIZING] > HELD * f->why_all)
		turn = "; for tokenizing a larger --api-server-count, on cores of its own";
	else if (f->empty_s[EMPTY_NETWORK] > HELD * f->why_all)
		turn = "; for network the senders, and the way from there";
	*out = 0;
	if (*figures_empty(parts, sizeof(parts), f->empty_s, f->why_all))
		snprintf(out, n, " (of empty: %s%s)", parts, turn);
}

/* Returns the limit, and writes the sentence about it. */
static const char *judge_cache(const struct reach *r, char *say, size_t n)
{
	const struct figures *f = &r->f;
	bool memory = r->memory >= NEAR, arithmetic = r->arithmetic >= NEAR;
	double share, busy = f->seconds > 0 ? r->busy / f->seconds : 0;
	int why = WHY_SEQS, by = CORES_OTHERS;
	char of[200], empty[220];

	amounts(of, sizeof(of), r);
	of_empty(empty, sizeof(empty), f);
	for (int i = WHY_SEQS; i < N_WHY; i++)
		if (f->why_s[i] > f->why_s[why])
			why = i;
	share = f->why_all > 0 ? f->why_s[why] / f->why_all : 0;
	/* Arithmetic at its ceiling is final.  Bandwidth is final only if no more rows could have shared it. */
	if (arithmetic || r->pcie >= NEAR || (memory && share < HELD)) {
		snprintf(say, n, "The limit was the hardware: while it computed, it reached %s", of);
		return "hardware";
	}
	if (r->busy > 0 && f->bound_s[BOUND_CORES] >= HELD * f->seconds) {
		for (int i = 0; i < N_CORES; i++)
			by = f->cores_s[i] > f->cores_s[by] ? i : by;
		snprintf(say, n, "The limit was the cores: for %.0f %% of the time under way slipringd was ready to "
		         "compute and had none, at %s: %s", f->bound_s[BOUND_CORES] / r->busy * 100, of, lacked[by]);
		return "cores";
	}
	if (share >= HELD) {
		snprintf(say, n, "The limit was %s, in %.0f %% of the time, at %s: %s", held[why].knob,
		         share * 100, of, held[why].say);
		return held[why].limit;
	}
	if (busy < NEAR) {
		snprintf(say, n, "The limit was the load: in %.0f %% of the time nothing was there to compute; "
		         "in the rest it reached %s%s", (1 - busy) * 100, of, empty);
		return "load";
	}
	if (f->bound_s[BOUND_HOST] > HELD * f->seconds) {
		snprintf(say, n, "The limit was the host: in %.0f %% of the time the device waited for "
		         "slipringd, at %s", f->bound_s[BOUND_HOST] / f->seconds * 100, of);
		return "host";
	}
	snprintf(say, n, "The limit was the load: no request had to wait, at %s; more at a time would share "
	         "the same weights%s", of, empty);
	return "load";
}

/* ---- as JSON ----------------------------------------------------------------------------------- */

static json_t *real_or_null(double v)
{
	return isfinite(v) ? json_real(v) : json_null();
}

static json_t *ceilings_json(const struct ceilings *c, const char *why_not)
{
	if (!(c->bytes_s > 0))
		return json_pack("{s:s}", "unknown", why_not);
	return json_pack("{s:f, s:f, s:f, s:o, s:s, s:i, s:s}", "memory_bytes_per_s", c->bytes_s,
		"int8_ops_per_s", c->int8_s, "float_ops_per_s", c->float_s, "pcie_bytes_per_s",
		c->pcie_s > 0 ? json_real(c->pcie_s) : json_null(), "processor", c->cpu, "cores", c->cores,
		"date", c->date);
}

static json_t *knobs_json(const struct stats_page *p)
{
	json_t *j = json_object();
	char now[32];

	for (int k = 0; k < N_KNOBS; k++) {
		knob_format((enum knob)k, p->knob[k], now, sizeof(now));
		json_object_set_new(j, knob_info((enum knob)k)->name, json_string(now));
	}
	return j;
}

/* Make a list for each value of an axis. */
static json_t *lists(int n, const char *(*name)(int))
{
	json_t *j = json_object();

	for (int i = 0; i < n; i++)
		json_object_set_new(j, name(i), json_array());
	return j;
}

static void add_seconds(json_t *lists, const double *s, int n, const char *(*name)(int))
{
	for (int i = 0; i < n; i++)
		json_array_append_new(json_object_get(lists, name(i)), json_real(s[i]));
}

/* Make a list for each quantity, with one value for each time between two marks. */
static json_t *over_time(const struct bench_server *s, const struct ceilings *c)
{
	static const char *const name[] = { "at", "seconds", "output_per_s", "prompt_per_s", "running",
	                                    "waiting", "memory", "arithmetic" };
	json_t *j = json_object(), *why = lists(N_WHY, sched_why_name), *list[8];
	json_t *bound = lists(N_BOUND, sched_bound_name), *empty = lists(N_EMPTY, stats_empty_name);

	for (int k = 0; k < 8; k++)
		json_object_set_new(j, name[k], list[k] = json_array());
	json_object_set_new(j, "why", why);
	json_object_set_new(j, "bound", bound);
	json_object_set_new(j, "empty", empty);
	for (size_t i = 1; i < s->n; i++) {
		struct reach r = reach(&s->mark[i - 1], &s->mark[i], c);
		double whole = r.f.seconds > 0 ? r.busy / r.f.seconds : 0; /* these shares are of all time */

		json_array_append_new(list[0], json_real((double)(s->mark[i - 1].at_ns - s->mark[0].at_ns) / 1e9));
		json_array_append_new(list[1], json_real(r.f.seconds));
		json_array_append_new(list[2], json_real(r.f.generated_per_s));
		json_array_append_new(list[3], json_real(r.f.prompt_per_s));
		json_array_append_new(list[4], json_real(r.f.running));
		json_array_append_new(list[5], json_real(r.f.waiting));
		json_array_append_new(list[6], real_or_null(r.memory * whole));
		json_array_append_new(list[7], real_or_null(r.arithmetic * whole));
		add_seconds(why, r.f.why_s, N_WHY, sched_why_name);
		add_seconds(bound, r.f.bound_s, N_BOUND, sched_bound_name);
		add_seconds(empty, r.f.empty_s, N_EMPTY, stats_empty_name);
	}
	return j;
}

/* The tokens that came back, if they were counted. */
static double tokens_seen(const struct bench_run *r)
{
	double n = 0;

	for (size_t i = 0; i < r->n_sent; i++)
		n += r->answer[i].state == BENCH_OK ? (double)r->answer[i].n_output : (double)r->answer[i].n_chunks;
	return n;
}

json_t *bench_server_result(const struct bench_server *s, const struct bench_run *run)
{
	char say[640], why_not[300] = "", device[65], model[257];
	double seen = tokens_seen(run);
	struct ceilings c;
	const char *limit;
	struct reach r;
	json_t *j;

	if (s->n < 2)
		return NULL;
	if (ceilings_load(&c, why_not, sizeof(why_not)))
		c = (struct ceilings){ 0 };
	if (strcmp(s->page->device, "cuda") == 0) {
		c = (struct ceilings){ 0 };
		snprintf(why_not, sizeof(why_not), "what is measured is the processor's, not a GPU's");
	}
	r = reach(&s->mark[0], &s->mark[s->n - 1], &c);
	if ((double)r.f.n.generation_tokens < 0.9 * seen || !r.f.n.generation_tokens)
		return NULL;                  /* another server answered */
	limit = judge_cache(&r, say, sizeof(say));
	snprintf(device, sizeof(device), "%.64s", s->page->device);
	snprintf(model, sizeof(model), "%.256s", s->page->model);
	j = json_pack("{s:s, s:s, s:o, s:f, s:f, s:b, s:I, s:I, s:I}",
		"model", model, "device", device, "knobs", knobs_json(s->page), "seconds", r.f.seconds,
		"busy_seconds", r.busy, "others_too", (double)r.f.n.generation_tokens > 1.1 * seen + 100,
		"prompt_tokens", (json_int_t)r.f.n.prompt_tokens,
		"generated_tokens", (json_int_t)r.f.n.generation_tokens, "steps", (json_int_t)r.f.n.steps);
	if (!j)
		return NULL;
	figures_lost_json(j, &r.f.n);
	json_object_update_new(j, json_pack("{s:I, s:I, s:I}", "kv_blocks", (json_int_t)s->page->n_blocks,
		"block_tokens", (json_int_t)s->page->block_tokens,
		"max_model_len", (json_int_t)s->page->max_model_len));
	json_object_set_new(j, "rows_per_step", real_or_null(r.f.rows));
	json_object_set_new(j, "prefix_hit_rate", real_or_null(r.f.hit_rate));
	json_object_set_new(j, "why_seconds", figures_json(r.f.why_s, N_WHY, sched_why_name));
	json_object_set_new(j, "empty_seconds", figures_json(r.f.empty_s, N_EMPTY, stats_empty_name));
	json_object_set_new(j, "bound_seconds", figures_json(r.f.bound_s, N_BOUND, sched_bound_name));
	json_object_set_new(j, "cores_seconds", figures_json(r.f.cores_s, N_CORES, stats_cores_name));
	json_object_set_new(j, "cores_known", json_boolean(s->page->cores_known));
	json_object_set_new(j, "memory_bytes_per_s", json_real(r.bytes_s));
	json_object_set_new(j, "ops_per_s", json_real(r.ops_s));
	json_object_set_new(j, "pcie_bytes_per_s", json_real(r.copied_s));
	json_object_set_new(j, "reached", json_pack("{s:o, s:o, s:o}", "memory", real_or_null(r.memory),
		"arithmetic", real_or_null(r.arithmetic), "pcie", real_or_null(r.pcie)));
	json_object_set_new(j, "ceilings", ceilings_json(&c, why_not));
	json_object_set_new(j, "limit", json_string(limit));
	json_object_set_new(j, "says", json_string(say));
	json_object_set_new(j, "over_time", over_time(s, &c));
	return j;
}
