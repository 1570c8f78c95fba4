/* view.c - see view.h. */
#include "view.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/instance/knobs.h"

struct view *view_create(const char *instance)
{
	struct view *v = calloc(1, sizeof(*v));

	if (!v)
		return NULL;
	v->instance = instance;
	v->old = calloc(1, sizeof(*v->old));
	v->now = calloc(1, sizeof(*v->now));
	if (v->old && v->now)
		return v;
	view_destroy(v);
	return NULL;
}

void view_destroy(struct view *v)
{
	if (!v)
		return;
	free(v->old);
	free(v->now);
	free(v);
}

/* ---- figures ------------------------------------------------------------------------------ */

static void remark(struct view_row *r, const struct stats_client *old, uint64_t now, double seconds)
{
	const struct stats_client *c = r->c;
	uint64_t requests = c->requests - (old ? old->requests : 0);
	uint64_t alone = c->alone - (old ? old->alone : 0);

	if (c->full_since_ns && now > c->full_since_ns)
		snprintf(r->remark, sizeof(r->remark), "does not read: its ring has been full for %.1f s",
		         (double)(now - c->full_since_ns) / 1e9);
	else if (old && c->held > old->held)
		snprintf(r->remark, sizeof(r->remark), "reads slowly: its ring was full");
	else if (old && (double)(c->preparing_ns - old->preparing_ns) > 0.5e9 * seconds)
		snprintf(r->remark, sizeof(r->remark), "tokenizes, while nothing else waits");
	else if (old && (double)(c->arriving_ns - old->arriving_ns) > 0.5e9 * seconds)
		snprintf(r->remark, sizeof(r->remark), "waits for requests to arrive");
	else if (requests >= 2 && alone == requests)
		snprintf(r->remark, sizeof(r->remark), "one request at a time");
	else if (!c->live && !requests)
		snprintf(r->remark, sizeof(r->remark), "silent");
}

static int by_load(const void *a, const void *b)
{
	const struct view_row *x = a, *y = b;

	if (x->generated_per_s != y->generated_per_s)
		return x->generated_per_s < y->generated_per_s ? 1 : -1;
	if (x->c->live != y->c->live)
		return x->c->live < y->c->live ? 1 : -1;
	return x->c->id < y->c->id ? -1 : 1;
}

static void clients(struct view *v)
{
	double s = v->f.seconds > 0 ? v->f.seconds : 1;

	v->n_rows = 0;
	for (int i = 0; i < STATS_CLIENTS; i++) {
		const struct stats_client *c = &v->now->page.client[i], *o = &v->old->page.client[i];
		struct view_row *r = &v->row[v->n_rows];

		if (!c->id)
			continue;
		o = !v->first && o->id == c->id ? o : NULL;
		*r = (struct view_row){ .c = c };
		r->prompt_per_s = (double)(c->prompt_tokens - (o ? o->prompt_tokens : 0)) / s;
		r->generated_per_s = (double)(c->tokens - (o ? o->tokens : 0)) / s;
		r->requests_per_s = (double)(c->requests - (o ? o->requests : 0)) / s;
		figures_client(r->name, c->name);
		remark(r, o, v->now->mark.at_ns, s);
		v->n_rows++;
	}
	qsort(v->row, (size_t)v->n_rows, sizeof(v->row[0]), by_load);
}

static void figure(struct view *v)
{
	static const double share[3] = { 0.5, 0.9, 0.99 };
	const struct stats_histogram *a = v->first ? NULL : v->old->page.hist, *b = v->now->page.hist;

	figures_between(&v->old->mark, &v->now->mark, &v->f);
	for (int i = 0; i < 3; i++) {
		v->ttft[i] = figures_percentile(HIST_TTFT, a ? &a[HIST_TTFT] : NULL, &b[HIST_TTFT], share[i]);
		v->queue[i] = figures_percentile(HIST_QUEUE, a ? &a[HIST_QUEUE] : NULL, &b[HIST_QUEUE], share[i]);
		v->itl[i] = figures_percentile(HIST_ITL, a ? &a[HIST_ITL] : NULL, &b[HIST_ITL], share[i]);
	}
	clients(v);
}

void view_look(struct view *v, const struct stats_page *page, bool alive)
{
	struct view_look *l = v->old;

	v->old = v->now;
	v->now = l;
	memcpy(&l->page, page, sizeof(l->page));
	v->alive = alive;
	figures_now(&l->page, alive, &l->mark);
	v->first = page->epoch && page->epoch != v->epoch;
	if (v->first) {
		v->epoch = page->epoch;
		v->old->mark = (struct stats_mark){ .at_ns = l->page.ready_ns };
	}
	figure(v);
}

/* ---- for programs -------------------------------------------------------------------------- */

static json_t *json_number(double x) { return isnan(x) ? json_null() : json_real(x); }

static json_t *three(const double x[3])
{
	return json_pack("{s:o, s:o, s:o}", "p50", json_number(x[0]), "p90", json_number(x[1]), "p99",
	                 json_number(x[2]));
}

static json_t *json_clients(const struct view *v, int most)
{
	json_t *all = json_array();

	for (int i = 0; i < v->n_rows && i < most; i++) {
		const struct view_row *r = &v->row[i];
		const struct stats_client *c = r->c;

		json_array_append_new(all, json_pack("{s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:f, s:f, s:f, "
		                                     "s:I, s:f, s:f, s:s}",
			"name", r->name, "pid", (int)c->pid, "uid", (int)c->uid, "live", (int)c->live,
			"unanswered", (int)c->unanswered, "requests", (json_int_t)c->requests,
			"requests_alone", (json_int_t)c->alone, "requests_per_s", r->requests_per_s,
			"prompt_tokens_per_s", r->prompt_per_s, "tokens_per_s", r->generated_per_s,
			"ring_full", (json_int_t)c->held, "preparing_s", (double)c->preparing_ns / 1e9,
			"arriving_s", (double)c->arriving_ns / 1e9, "remark", r->remark));
	}
	return all;
}

/* {"max-num-seqs": {"now": 64, "ceiling": 256, "unit": "sequences"}, ..}, as slipring set --json has it. */
static json_t *json_knobs(const struct stats_page *p)
{
	json_t *all = json_object();
	char now[32], most[32];

	for (int k = 0; k < N_KNOBS; k++) {
		const struct knob_info *i = knob_info((enum knob)k);

		knob_format((enum knob)k, p->knob[k], now, sizeof(now));
		knob_format((enum knob)k, p->knob_ceiling[k], most, sizeof(most));
		json_object_set_new(all, i->name, i->words[0] ?
			json_pack("{s:s, s:[s, s], s:s}", "now", now, "words", i->words[0], i->words[1], "what", i->what) :
			json_pack("{s:f, s:f, s:s, s:s}", "now", atof(now), "ceiling", atof(most), "unit", i->unit,
			          "what", i->what));
	}
	return all;
}

/* Of each group of layers. */
static json_t *json_groups(const struct stats_page *p)
{
	json_t *all = json_array();

	for (uint64_t g = 0; g < p->kv_groups && g < STATS_GROUPS; g++)
		json_array_append_new(all, json_pack("{s:I, s:I}", "window", (json_int_t)p->group[g].window,
		                      "blocks_used", (json_int_t)p->group[g].used));
	return all;
}

static json_t *json_memory(const struct stats_page *p)
{
	return json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:I}",
	                 "kv_group", json_groups(p), "weights_bytes", (json_int_t)p->weights_bytes, "kv_bytes", (json_int_t)p->kv_bytes,
	                 "kv_tokens", (json_int_t)p->kv_tokens, "block_tokens", (json_int_t)p->block_tokens,
	                 "kv_blocks_peak", (json_int_t)p->blocks_peak, "kv_groups", (json_int_t)p->kv_groups,
	                 "host_blocks", (json_int_t)p->n_host_blocks, "kv_blocks_cached", (json_int_t)p->blocks_cached,
	                 "host_blocks_cached", (json_int_t)p->host_cached, "kv_dtype", p->kv_dtype,
	                 "states", (json_int_t)p->n_states, "states_used", (json_int_t)p->states_used,
	                 "state_bytes", (json_int_t)p->state_bytes);
}

/* Of a model divided among processes. */
static json_t *json_ranks(const struct stats_page *p)
{
	json_t *all = json_array();

	for (uint64_t i = 0; i < p->n_ranks && i < STATS_RANKS; i++)
		json_array_append_new(all, json_pack("{s:I, s:I, s:f}", "pid", (json_int_t)p->rank[i].pid, "batches",
			(json_int_t)p->rank[i].batches, "late_s", (double)p->rank[i].late_ns / 1e9));
	return all;
}

json_t *view_json(const struct view *v, int clients_most)
{
	const struct stats_page *p = &v->now->page;
	const struct figures *f = &v->f;
	json_t *why = figures_json(f->why_s, N_WHY, sched_why_name);
	json_t *bound = figures_json(f->bound_s, N_BOUND, sched_bound_name);
	json_t *empty = figures_json(f->empty_s, N_EMPTY, stats_empty_name), *j;

	j = json_pack("{s:s, s:s, s:s, s:s, s:i, s:b, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f}",
	              "instance", v->instance, "model", p->model, "device", p->device, "state", p->state,
	              "pid", (int)p->pid, "alive", v->alive, "seconds", f->seconds,
	              "running", (json_int_t)p->running, "waiting", (json_int_t)p->waiting,
	              "max_num_seqs", (json_int_t)p->knob[KNOB_MAX_NUM_SEQS],
	              "kv_blocks_used", (json_int_t)p->blocks_used, "kv_blocks", (json_int_t)p->n_blocks,
	              "clients", (json_int_t)p->clients, "prompt_tokens_per_s", f->prompt_per_s,
	              "generated_tokens_per_s", f->generated_per_s, "requests_per_s", f->requests_per_s,
	              "steps_per_s", f->steps_per_s);
	figures_lost_json(j, &f->n);
	json_object_update_new(j, json_pack("{s:o, s:o, s:o, s:f, s:o, s:o, s:o, s:o, s:o, s:o}",
	              "prefix_hit_rate", json_number(f->hit_rate),
	              "ttft_s", three(v->ttft), "itl_s", three(v->itl),
	              "longest_turn_s", (double)p->cycle_max_ns / 1e9, "why_s", why, "bound_s", bound,
	              "empty_s", empty,
	              "client", json_clients(v, clients_most), "memory", json_memory(p), "knobs", json_knobs(p)));
	json_object_set_new(j, "queue_s", three(v->queue));
	json_object_set_new(j, "cores_known", json_boolean(p->cores_known));
	json_object_set_new(j, "cores_s", figures_json(f->cores_s, N_CORES, stats_cores_name));
	figures_guesses_json(j, &f->n);
	json_object_set_new(j, "ranks", json_ranks(p));
	json_object_set_new(j, "device_restarts", json_integer((json_int_t)p->count.device_restarts));
	json_object_update_new(j, json_pack("{s:b, s:f, s:I, s:I, s:I, s:I}", "first", v->first, "uptime_s", p->ready_ns &&
	              v->now->mark.at_ns > p->ready_ns ? (double)(v->now->mark.at_ns - p->ready_ns) / 1e9 : 0.0,
	              "steps", (json_int_t)f->n.steps, "requests", (json_int_t)f->ended, "max_model_len",
	              (json_int_t)p->max_model_len, "cancelled", (json_int_t)p->count.ended[ENDED_ABORT]));
	return j;
}
