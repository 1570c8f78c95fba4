/* metrics.c - /metrics: Prometheus' text format, from the daemon's stats page and the adapters'
 * shared counters.  Every adapter process gives the same answer.
 *
 * Names and labels are vLLM's.  Names that count nothing here (multi-modal caches, a connector's
 * cache, estimated FLOPs) are present with 0, so that dashboards and rules find them.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "core/instance/knobs.h"
#include "core/instance/limits.h"
#include "adapters/http/json/out.h"
#include "state.h"

struct scrape {
	struct out *o;
	struct out model;                /* model_name="smol" */
	const struct stats_page *p;      /* NULL: the daemon is away */
	int engine;                      /* which of the daemons */
	bool first;                      /* of all daemons and models: its part has what is the adapter's */
	bool ours;                       /* what follows is the adapter's */
};

/* Stands in while the daemon is away.  Not const: in .rodata it would add a third of a megabyte to the
 * file, in .bss nothing. */
static struct stats_page none;

static void head(struct scrape *s, const char *name, const char *type, const char *help)
{
	out_fmt(s->o, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A label's value: backslash, quote and line feed are escaped. */
static void label(struct out *o, const char *s)
{
	for (; *s; s++) {
		if (*s == '\\' || *s == '"')
			out_bytes(o, (char[]){ '\\', *s }, 2);
		else if (*s == '\n')
			out_str(o, "\\n");
		else
			out_bytes(o, s, 1);
	}
}

/* One sample.  extra: one more label, "x=\"y\"", or NULL.  Labels are sorted by name. */
static void sample(struct scrape *s, const char *name, const char *suffix, const char *extra, double v)
{
	bool before = extra && strcmp(extra, "engine") < 0, after = extra && strcmp(extra, "model_name") > 0;

	if (s->ours && !s->first)
		return;
	out_fmt(s->o, "%s%s{", name, suffix);
	if (before)
		out_fmt(s->o, "%s,", extra);
	out_fmt(s->o, "engine=\"%d\",", s->engine);
	if (extra && !before && !after)
		out_fmt(s->o, "%s,", extra);
	out_bytes(s->o, s->model.p, s->model.n);
	if (after)
		out_fmt(s->o, ",%s", extra);
	out_str(s->o, "} ");
	out_double(s->o, v);
	out_str(s->o, "\n");
}

static void one(struct scrape *s, const char *name, const char *type, const char *help, double v)
{
	head(s, name, type, help);
	sample(s, name, "", NULL, v);
}

/* The counts are per bucket; the format wants them cumulative. */
static void histogram(struct scrape *s, const char *name, const char *help, const double *bound, int n,
                      const uint64_t *count, double sum)
{
	uint64_t total = 0;
	char le[48];

	head(s, name, "histogram", help);
	for (int i = 0; i <= n; i++) {
		struct out b = { 0 };

		total += count[i];
		if (i < n)
			out_double(&b, bound[i]);
		else
			out_str(&b, "+Inf");
		snprintf(le, sizeof(le), "le=\"%.*s\"", (int)b.n, b.p ? b.p : "");
		out_free(&b);
		sample(s, name, "_bucket", le, (double)total);
	}
	sample(s, name, "_count", NULL, (double)total);
	sample(s, name, "_sum", NULL, sum);
}

static const char *const hist_help[N_HIST] = {
	[HIST_TTFT] = "Histogram of time to first token in seconds.",
	[HIST_ITL] = "Histogram of inter-token latency in seconds.",
	[HIST_TPOT] = "Histogram of time_per_output_token_seconds per request.",
	[HIST_E2E] = "Histogram of e2e request latency in seconds.",
	[HIST_QUEUE] = "Histogram of time spent in WAITING phase for request.",
	[HIST_INFERENCE] = "Histogram of time spent in RUNNING phase for request.",
	[HIST_PREFILL] = "Histogram of time spent in PREFILL phase for request.",
	[HIST_DECODE] = "Histogram of time spent in DECODE phase for request.",
	[HIST_PROMPT_TOKENS] = "Number of prefill tokens processed.",
	[HIST_GENERATION_TOKENS] = "Number of generation tokens processed.",
	[HIST_MAX_TOKENS] = "Histogram of the max_tokens request parameter.",
	[HIST_PREFILL_COMPUTED] = "Histogram of new KV tokens computed during prefill.",
	[HIST_STEP_TOKENS] = "Histogram of number of tokens per engine_step.",
};

static bool of_tokens(enum stats_hist h)
{
	return h == HIST_PROMPT_TOKENS || h == HIST_GENERATION_TOKENS || h == HIST_MAX_TOKENS ||
	       h == HIST_PREFILL_COMPUTED;
}

static void hist(struct scrape *s, enum stats_hist h, const char *name)
{
	const struct stats_histogram *page = s->p ? &s->p->hist[h] : &none.hist[h];
	struct stats_histogram copy = *page;
	char full[96];
	int n, all;
	const double *bound = stats_bounds(h, &all);

	for (n = 0; n < all; n++)             /* no token count is above max_model_len */
		if (of_tokens(h) && s->p && n && bound[n - 1] >= (double)s->p->max_model_len)
			break;
	for (int i = n + 1; i <= all && i < STATS_BUCKETS; i++)
		copy.count[n] += copy.count[i];
	snprintf(full, sizeof(full), "vllm:%s", name ? name : stats_name(h));
	histogram(s, full, hist_help[h], bound, n, copy.count, copy.sum);
}

/* Counters of vLLM that count nothing here, and before which of ours each is printed. */
static const struct { const char *before, *name, *help; } absent[] = {
	{ "vllm:prefix_cache_queries_total", "vllm:estimated_flops_per_gpu_total",
	  "Estimated number of floating point operations per GPU." },
	{ "vllm:prefix_cache_queries_total", "vllm:estimated_read_bytes_per_gpu_total",
	  "Estimated number of bytes read from memory per GPU." },
	{ "vllm:prefix_cache_queries_total", "vllm:estimated_write_bytes_per_gpu_total",
	  "Estimated number of bytes written to memory per GPU." },
	{ "vllm:num_preemptions_total", "vllm:external_prefix_cache_queries_total",
	  "External prefix cache queries, in tokens." },
	{ "vllm:num_preemptions_total", "vllm:external_prefix_cache_hits_total",
	  "External prefix cache hits, in tokens." },
	{ "vllm:num_preemptions_total", "vllm:mm_cache_queries_total",
	  "Multi-modal cache queries, in terms of number of queried items." },
	{ "vllm:num_preemptions_total", "vllm:mm_cache_hits_total",
	  "Multi-modal cache hits, in terms of number of cached items." },
};

static void gauges(struct scrape *s)
{
	static const char *const sleep[] = { "awake", "weights_offloaded", "discard_all" };
	const struct stats_page *p = s->p;
	double waiting = p ? (double)p->waiting : 0, used = 0;
	char extra[64];

	if (p && p->n_blocks)
		used = (double)p->blocks_used / (double)p->n_blocks;
	one(s, "vllm:num_requests_running", "gauge", "Number of requests in model execution batches.",
	    p ? (double)p->running : 0);
	one(s, "vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", waiting);
	head(s, "vllm:num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.");
	sample(s, "vllm:num_requests_waiting_by_reason", "", "reason=\"capacity\"", waiting);
	sample(s, "vllm:num_requests_waiting_by_reason", "", "reason=\"deferred\"", 0);
	head(s, "vllm:engine_sleep_state", "gauge", "Engine sleep state; awake = 1 means engine is awake.");
	for (size_t i = 0; i < 3; i++) {
		snprintf(extra, sizeof(extra), "sleep_state=\"%s\"", sleep[i]);
		sample(s, "vllm:engine_sleep_state", "", extra, i == 0);
	}
	one(s, "vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", used);
}

static const char guesses_prefix[] = "vllm:spec_decode_";

/* The daemon's counters whose metric begins like this. */
static void counted(struct scrape *s, const char *prefix)
{
	const struct stats_page *p = s->p ? s->p : &none;

	for (size_t i = 0; i < COUNTERS_NAMED; i++) {
		const struct counter *c = counter_info(i);

		if (!c->metric || strncmp(c->metric, prefix, strlen(prefix)) != 0 ||
		    (prefix != guesses_prefix && strncmp(c->metric, guesses_prefix, sizeof(guesses_prefix) - 1) == 0))
			continue;
		for (size_t k = 0; k < sizeof(absent) / sizeof(absent[0]); k++)
			if (strcmp(absent[k].before, c->metric) == 0)
				one(s, absent[k].name, "counter", absent[k].help, 0);
		one(s, c->metric, "counter", c->help, (double)counter_value(&p->count, i));
	}
}

/* Guesses that were right, by their place in a row.  As in vLLM, only where there are guesses. */
static void guesses(struct scrape *s, const struct api *a)
{
	const struct stats_page *p = s->p ? s->p : &none;
	static const char name[] = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
	char extra[40];

	if (!a->cfg->draft_most && !p->count.drafts)
		return;
	counted(s, guesses_prefix);
	head(s, name, "counter", "Accepted tokens per draft position.");
	for (int i = 0; i < COUNTERS_DRAFT && (i < a->cfg->draft_most || p->count.draft_right[i]); i++) {
		snprintf(extra, sizeof(extra), "position=\"%d\"", i);
		sample(s, name, "", extra, (double)p->count.draft_right[i]);
	}
}

static void counters(struct scrape *s, const struct api *a)
{
	static const char *const ended[N_ENDED + 1] = { "stop", "length", "abort", "error", "repetition" };
	const struct stats_page *p = s->p ? s->p : &none;
	static const char *const tier[] = { "device", "host", "p2p", "disk", "external_unspecified" };
	char name[96], extra[96];

	counted(s, "vllm:");
	guesses(s, a);
	snprintf(name, sizeof(name), "vllm:prompt_tokens_by_source_total");
	head(s, name, "counter", "Number of prompt tokens by source.");
	sample(s, name, "", "source=\"local_compute\"", (double)p->count.prompt_tokens -
	       (double)p->count.prompt_cached);
	sample(s, name, "", "source=\"local_cache_hit\"", (double)p->count.prompt_cached);
	sample(s, name, "", "source=\"external_kv_transfer\"", 0);
	snprintf(name, sizeof(name), "vllm:prompt_tokens_cached_by_source_total");
	head(s, name, "counter", "Prefix-cache hit tokens by the cache tier that supplied them.");
	for (size_t i = 0; i < 5; i++) {
		snprintf(extra, sizeof(extra), "source=\"%s\"", tier[i]);
		sample(s, name, "", extra, i ? 0 : (double)p->count.prompt_cached);
	}
	snprintf(name, sizeof(name), "vllm:request_success_total");
	head(s, name, "counter", "Count of successfully processed requests.");
	for (size_t i = 0; i <= N_ENDED; i++) {
		snprintf(extra, sizeof(extra), "finished_reason=\"%s\"", ended[i]);
		sample(s, name, "", extra, i < N_ENDED ? (double)p->count.ended[i] : 0);
	}
	s->ours = true;
	snprintf(name, sizeof(name), "vllm:admission_rejections_total");
	head(s, name, "counter", "Number of admission attempts rejected by a queue limit, by reason.");
	sample(s, name, "", "reason=\"max_num_queued_reqs\"",
	       (double)shared_get(a->shared->rejected_requests));
	sample(s, name, "", "reason=\"max_num_queued_tokens\"",
	       (double)shared_get(a->shared->rejected_tokens));
	snprintf(name, sizeof(name), "vllm:tool_call_parser_invocations_total");
	head(s, name, "counter", "Number of answers searched for tool calls, by mode and outcome.");
	for (int i = 0; i < 4; i++) {
		snprintf(extra, sizeof(extra), "mode=\"%s\",outcome=\"%s\",request_type=\"chat_completions\"",
		         i / 2 ? "streaming" : "non_streaming", i % 2 ? "tool_call" : "no_tool_call");
		sample(s, name, "", extra, (double)shared_get(a->shared->parsed[i / 2][i % 2]));
	}
	s->ours = false;
}

static void copy_counts(uint64_t *to, _Atomic uint64_t *from, int n)
{
	for (int i = 0; i < n; i++)
		to[i] = shared_get(from[i]);
}

static void histograms(struct scrape *s, const struct api *a)
{
	static const double n_bound[] = { 1, 2, 5, 10, 20 };
	static const double preempted_bound[] = { 1, 2, 3, 4, 5, 10, 20 };
	uint64_t n[6], preempted[8];

	for (int h = 0; h < N_HIST; h++)
		hist(s, (enum stats_hist)h, NULL);
	/* vLLM counts a request's longest answer.  We count each answer: it differs only if n is above 1. */
	hist(s, HIST_GENERATION_TOKENS, "request_max_num_generation_tokens");
	s->ours = true;
	copy_counts(n, a->shared->params_n, 6);
	histogram(s, "vllm:request_params_n", "Histogram of the n request parameter.", n_bound, 5, n,
	          (double)shared_get(a->shared->params_n_sum));
	copy_counts(preempted, a->shared->preempted, 8);
	histogram(s, "vllm:request_num_preemptions", "Histogram of the number of times a request was "
	          "preempted.",
	          preempted_bound, 7, preempted, (double)shared_get(a->shared->preempted_sum));
	s->ours = false;
}

static void cache_config(struct scrape *s, const struct api *a)
{
	const struct stats_page *p = s->p ? s->p : &none;

	head(s, "vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
	out_fmt(s->o, "vllm:cache_config_info{block_size=\"%llu\",cache_dtype=\"",
	        (unsigned long long)p->block_tokens);
	label(s->o, p->kv_dtype[0] ? p->kv_dtype : "auto");
	out_fmt(s->o, "\",enable_prefix_caching=\"%s\",engine=\"%d\",gpu_memory_utilization=\"",
	        p->prefix_caching ? "True" : "False", s->engine);
	out_double(s->o, p->gpu_memory_utilization ? p->gpu_memory_utilization :
	           a->cfg->gpu_memory_utilization);
	out_fmt(s->o, "\",kv_cache_memory_bytes=\"%llu\",kv_cache_size_tokens=\"%llu\","
	        "num_cpu_blocks=\"%llu\","
	        "num_gpu_blocks=\"%llu\",prefix_caching_hash_algo=\"xxhash\"} 1.0\n",
	        (unsigned long long)p->kv_bytes, (unsigned long long)p->kv_tokens,
	        (unsigned long long)p->n_host_blocks, (unsigned long long)p->n_blocks);
}

/* Names that vLLM has dropped but dashboards still read. */
static void old_names(struct scrape *s)
{
	const struct stats_page *p = s->p ? s->p : &none;

	one(s, "vllm:gpu_cache_usage_perc", "gauge", "Old name of kv_cache_usage_perc.",
	    p->n_blocks ? (double)p->blocks_used / (double)p->n_blocks : 0);
	one(s, "vllm:gpu_prefix_cache_queries_total", "counter", "Old name of prefix_cache_queries_total.",
	    (double)p->count.prefix_queries);
	one(s, "vllm:gpu_prefix_cache_hits_total", "counter", "Old name of prefix_cache_hits_total.",
	    (double)p->count.prefix_hits);
	one(s, "vllm:num_requests_swapped", "gauge", "Nothing is swapped since vLLM V1.", 0);
	hist(s, HIST_ITL, "time_per_output_token_seconds");
}

/* ---- our own ---- */

static void knob(struct scrape *s, const char *name, enum knob k, int64_t value)
{
	const struct knob_info *i = knob_info(k);
	char extra[64];

	snprintf(extra, sizeof(extra), "knob=\"%s\"", i->name);
	sample(s, name, "", extra, (double)value / (double)i->scale);
}

/* Names with commas between. */
static void kernels_off(struct scrape *s, const char *names)
{
	const char *name = "slipring_cuda_kernel_disabled";

	if (!*names)
		return;
	head(s, name, "gauge", "Kernels of the GPU that are switched off, because they computed wrongly or by "
	     "SLIPRING_CUDA_WITHOUT.");
	for (const char *at = names; *at;) {
		int n = (int)strcspn(at, ",");
		char extra[80];

		snprintf(extra, sizeof(extra), "kernel=\"%.*s\"", n < 60 ? n : 60, at);
		sample(s, name, "", extra, 1);
		at += n + (at[n] == ',');
	}
}

static void slipring(struct scrape *s, const struct api *a)
{
	struct fleet_counters *f = &a->shared->fleet[a->number];
	const struct stats_page *p = s->p ? s->p : &none;
	const struct sr_model_info *m = engine_model(fleet_replica(a->fleet, s->engine)->engine);
	char extra[64];

	one(s, "slipring_up", "gauge", "1 while the daemon is connected.",
	    engine_up(fleet_replica(a->fleet, s->engine)->engine));
	one(s, "slipring_engine_up", "gauge", "1 while the daemon is connected and makes progress.",
	    fleet_ready(a->fleet, s->engine));
	one(s, "slipring_clients", "gauge", "Ring connections.", (double)p->clients);
	kernels_off(s, p->kernels_off);
	counted(s, "slipring_");
	one(s, "slipring_kv_groups", "gauge", "Groups of layers that share KV blocks.", (double)p->kv_groups);
	if (p->n_states) {
		one(s, "slipring_states", "gauge", "States that there is room for.", (double)p->n_states);
		one(s, "slipring_states_used", "gauge", "States of running sequences.", (double)p->states_used);
	}
	one(s, "slipring_cycle_max_seconds", "gauge", "Longest turn of the daemon's loop.",
	    (double)p->cycle_max_ns / 1e9);
	head(s, "slipring_limit_seconds_total", "counter", "Time by what kept more rows out of the batch.");
	for (int i = 0; i < N_WHY; i++) {
		snprintf(extra, sizeof(extra), "limit=\"%s\"", sched_why_name(i));
		sample(s, "slipring_limit_seconds_total", "", extra, (double)p->count.why_ns[i] / 1e9);
	}
	head(s, "slipring_empty_seconds_total", "counter", "Time of limit \"empty\" by what clients were doing.");
	for (int i = 0; i < N_EMPTY; i++) {
		snprintf(extra, sizeof(extra), "doing=\"%s\"", stats_empty_name(i));
		sample(s, "slipring_empty_seconds_total", "", extra, (double)p->count.empty_ns[i] / 1e9);
	}
	head(s, "slipring_bound_seconds_total", "counter", "Time by what bound the step.");
	for (int i = 0; i < N_BOUND; i++) {
		snprintf(extra, sizeof(extra), "bound=\"%s\"", sched_bound_name(i));
		sample(s, "slipring_bound_seconds_total", "", extra, (double)p->count.bound_ns[i] / 1e9);
	}
	one(s, "slipring_cores_known", "gauge", "1: the kernel counts how long threads wait for a core; 0: it is "
	    "not known.", p->cores_known);
	head(s, "slipring_cores_seconds_total", "counter", "Time of bound \"cores\" by who had them.");
	for (int i = 0; i < N_CORES; i++) {
		snprintf(extra, sizeof(extra), "by=\"%s\"", stats_cores_name(i));
		sample(s, "slipring_cores_seconds_total", "", extra, (double)p->count.cores_ns[i] / 1e9);
	}
	if (p->n_ranks && p->n_ranks <= STATS_RANKS) {
		head(s, "slipring_rank_late_seconds_total", "counter",
		     "How far a rank was behind the first, over all batches.");
		for (uint64_t i = 0; i < p->n_ranks; i++) {
			snprintf(extra, sizeof(extra), "rank=\"%d\"", (int)i);
			sample(s, "slipring_rank_late_seconds_total", "", extra, (double)p->rank[i].late_ns / 1e9);
		}
		head(s, "slipring_rank_batches_total", "counter", "Batches of a rank since it was started.");
		for (uint64_t i = 0; i < p->n_ranks; i++) {
			snprintf(extra, sizeof(extra), "rank=\"%d\"", (int)i);
			sample(s, "slipring_rank_batches_total", "", extra, (double)p->rank[i].batches);
		}
	}
	head(s, "slipring_knob", "gauge", "What slipring set can change: now.");
	for (int i = 0; i < N_KNOBS; i++)
		knob(s, "slipring_knob", (enum knob)i, p->knob[i]);
	head(s, "slipring_knob_ceiling", "gauge", "And how far it can be raised.");
	for (int i = 0; i < N_KNOBS; i++)
		if (!knob_info((enum knob)i)->words[0])
			knob(s, "slipring_knob_ceiling", (enum knob)i, p->knob_ceiling[i]);
	one(s, "slipring_http_tenants_heard", "gauge", "1: the daemon hears which API key a request "
	    "has; 0: it does not (--gateway-user), or is away.", m && m->flags & SR_TENANTS_HEARD ? 1 : 0);
	one(s, "slipring_route_cached_tokens_total", "counter", "Prompt tokens that the daemon seemed "
	    "to have cached when it was chosen; prefix_cache_hits_total is what it had.",
	    (double)shared_get(f->cached[s->engine]));
	s->ours = true;
	s->first = !s->engine;                /* these are a model's */
	head(s, "slipring_route_seconds", "summary", "Time of choosing the daemon of a request.");
	sample(s, "slipring_route_seconds", "_count", NULL, (double)shared_get(f->n));
	sample(s, "slipring_route_seconds", "_sum", NULL, (double)shared_get(f->ns) / 1e9);
	one(s, "slipring_wakes_total", "counter", "Times that a request started a daemon that "
	    "had stopped when idle.",
	    (double)shared_get(f->woken));
	s->first = !s->engine && !a->number;
	one(s, "slipring_http_turn_max_seconds", "gauge", "Longest turn of an adapter's loop: nobody else is "
	    "served for as long.", (double)shared_get(a->shared->turn_max_ns) / 1e9);
	one(s, "slipring_http_load", "gauge", "Completions under way in all adapters.",
	    (double)shared_get(a->shared->load));
	one(s, "slipring_http_gone_total", "counter", "Peers that left before their answer was whole.",
	    (double)shared_get(a->shared->gone));
	one(s, "slipring_moved_requests_total", "counter", "Requests that went on after their daemon had gone.",
	    (double)shared_get(a->shared->moved));
	one(s, "slipring_moved_tokens_total", "counter", "Tokens of their answers that had come before.",
	    (double)shared_get(a->shared->moved_tokens));
	one(s, "slipring_http_unauthorized_total", "counter", "Requests without a valid API key.",
	    (double)shared_get(a->shared->rejected_keys));
	one(s, "slipring_http_prepare_seconds_total", "counter", "Time spent reading, rendering and "
	    "tokenizing.",
	    (double)shared_get(a->shared->tokenize_ns) / 1e9);
	one(s, "slipring_http_prepared_total", "counter", "Requests read, rendered and tokenized.",
	    (double)shared_get(a->shared->prepared));
	one(s, "slipring_http_guided_total", "counter", "Requests whose answers keep to a grammar.",
	    (double)shared_get(a->shared->guided));
	one(s, "slipring_http_grammar_compile_seconds_total", "counter", "Time spent compiling grammars.",
	    (double)shared_get(a->shared->grammar_ns) / 1e9);
	one(s, "slipring_http_grammars_compiled_total", "counter", "Grammars compiled or refused.",
	    (double)shared_get(a->shared->grammars));
	one(s, "slipring_http_grammar_cache_hits_total", "counter",
	    "Requests whose grammar was compiled already.", (double)shared_get(a->shared->grammar_hits));
	one(s, "slipring_http_guide_errors_total", "counter", "Answers that ended because of their guide.",
	    (double)shared_get(a->shared->guide_errors));
}

/* ---- HTTP ---- */

static const double highr[] = { .01, .025, .05, .075, .1, .25, .5, .75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5,
	7.5, 10, 30, 60 };
#define N_HIGHR ((int)(sizeof(highr) / sizeof(highr[0])))

void metrics_request_done(struct api *a, int route, int status, uint64_t ns, size_t in, size_t out)
{
	static const double low[] = { .1, .5, 1 };
	struct route_counters *r = &a->shared->route[route];
	double s = (double)ns / 1e9;
	int i = 0;

	if (status < 100 || status > 599 || !api_route_counted(route))
		return;
	shared_add(r->by_class[status / 100], 1);
	shared_add(r->bytes_in, in);
	shared_add(r->bytes_out, out);
	shared_add(r->ns, ns);
	while (i < 3 && s > low[i])
		i++;
	shared_add(r->duration[i], 1);
	for (i = 0; i < N_HIGHR && s > highr[i];)
		i++;
	shared_add(a->shared->duration[i], 1);
	shared_add(a->shared->duration_ns, ns);
}

static uint64_t served(struct route_counters *r)
{
	uint64_t n = 0;

	for (int c = 1; c < 6; c++)
		n += shared_get(r->by_class[c]);
	return n;
}

static void sizes(struct scrape *s, const struct api *a, const char *name, const char *help, bool out)
{
	const char *path;

	head(s, name, "summary", help);
	for (int i = 0; (path = api_route_name(i)); i++) {
		struct route_counters *r = &a->shared->route[i];

		if (!served(r))
			continue;
		out_fmt(s->o, "%s_count{handler=\"%s\"} %llu.0\n%s_sum{handler=\"%s\"} %llu.0\n", name, path,
		        (unsigned long long)served(r), name, path,
		        (unsigned long long)(out ? shared_get(r->bytes_out) : shared_get(r->bytes_in)));
	}
}

static void durations(struct scrape *s, const struct api *a)
{
	static const char *const le[] = { "0.1", "0.5", "1.0", "+Inf" };
	static const char name[] = "http_request_duration_seconds";
	const char *path;
	uint64_t n;
	int k;

	head(s, name, "histogram", "Latency with only few buckets by handler.");
	for (int i = 0; (path = api_route_name(i)); i++) {
		struct route_counters *r = &a->shared->route[i];
		const char *method = api_route_method(i);

		if (!served(r))
			continue;
		for (k = 0, n = 0; k < 4; k++) {
			n += shared_get(r->duration[k]);
			out_fmt(s->o, "%s_bucket{handler=\"%s\",le=\"%s\",method=\"%s\"} %llu.0\n", name,
			        path,
			        le[k], method, (unsigned long long)n);
		}
		out_fmt(s->o, "%s_count{handler=\"%s\",method=\"%s\"} "
		        "%llu.0\n%s_sum{handler=\"%s\",method=\"%s\"} %.9g\n",
		        name, path, method, (unsigned long long)n, name, path, method,
		        (double)shared_get(r->ns) / 1e9);
	}
}

static void http(struct scrape *s, const struct api *a)
{
	static const char name[] = "http_request_duration_highr_seconds";
	const char *path;
	uint64_t n, v;
	int i;

	head(s, "http_requests_total", "counter", "Total number of requests by method, status and handler.");
	for (i = 0; (path = api_route_name(i)); i++)
		for (int c = 1; c < 6; c++) {
			v = shared_get(a->shared->route[i].by_class[c]);
			if (v)
				out_fmt(s->o,
				        "http_requests_total{handler=\"%s\",method=\"%s\",status=\"%dxx\"} "
				        "%llu.0\n", path, api_route_method(i), c, (unsigned long long)v);
		}
	sizes(s, a, "http_request_size_bytes", "Bytes of incoming requests by handler.", false);
	sizes(s, a, "http_response_size_bytes", "Bytes of outgoing responses by handler.", true);
	head(s, name, "histogram", "Latency with many buckets but no API specific labels.");
	for (i = 0, n = 0; i <= N_HIGHR; i++) {
		n += shared_get(a->shared->duration[i]);
		out_fmt(s->o, "%s_bucket{le=\"", name);
		if (i < N_HIGHR)
			out_double(s->o, highr[i]);
		else
			out_str(s->o, "+Inf");
		out_fmt(s->o, "\"} %llu.0\n", (unsigned long long)n);
	}
	out_fmt(s->o, "%s_count %llu.0\n%s_sum %.9g\n", name, (unsigned long long)n, name,
	        (double)shared_get(a->shared->duration_ns) / 1e9);
	durations(s, a);
}

#define KEYS_SHOWN 100          /* names with series of their own: those that came first */

static double key_value(const struct quota_row *r, int i)
{
	switch (i) {
	case 0: return (double)shared_get(r->requests);
	case 1: return (double)shared_get(r->prompt);
	case 2: return (double)shared_get(r->cached);
	case 3: return (double)shared_get(r->answer);
	case 4: return quota_under_way(r);
	default: return (double)shared_get(r->refused[i - 5 + QUOTA_REQUESTS]);
	}
}

/* The number of series is bounded: names beyond KEYS_SHOWN are "other". */
void metrics_keys(const struct api *a, struct out *o)
{
	struct scrape keys = { .o = o }, *s = &keys;
	static const struct { const char *name, *type, *help, *extra; } family[] = {
		{ "slipring_key_requests_total", "counter", "Requests by the name of their API key.", "" },
		{ "slipring_key_prompt_tokens_total", "counter", "Tokens of their prompts.", "" },
		{ "slipring_key_cached_tokens_total", "counter", "Of them, found in the prefix cache.", "" },
		{ "slipring_key_generation_tokens_total", "counter", "Tokens of their answers.", "" },
		{ "slipring_key_running", "gauge", "Requests under way by the name of their API key.", "" },
		{ "slipring_key_refused_total", "counter", "Requests refused for a limit of their API key.",
		  ",limit=\"rpm\"" },
		{ "slipring_key_refused_total", NULL, NULL, ",limit=\"tpm\"" },
		{ "slipring_key_refused_total", NULL, NULL, ",limit=\"max-parallel\"" },
	};

	if (!shared_get(a->shared->quotas.n))   /* no key is needed */
		return;
	for (int f = 0; f < (int)(sizeof(family) / sizeof(family[0])); f++) {
		double other = 0;
		int n = 0;

		if (family[f].type)
			head(s, family[f].name, family[f].type, family[f].help);
		for (int i = 0; i < QUOTA_ROWS; i++) {
			const struct quota_row *r = &a->shared->quotas.row[i];

			if (!shared_get(r->tenant))
				continue;
			if (shared_get(r->order) > KEYS_SHOWN) {
				other += key_value(r, f);
				n++;
				continue;
			}
			out_fmt(s->o, "%s{key=\"", family[f].name);
			label(s->o, r->name);
			out_fmt(s->o, "\"%s} %.1f\n", family[f].extra, key_value(r, f));
		}
		if (n)
			out_fmt(s->o, "%s{key=\"other\"%s} %.1f\n", family[f].name, family[f].extra, other);
	}
}

/* This adapter process, with the names of Prometheus' client libraries. */
static void process(struct scrape *s)
{
	struct rusage u;
	unsigned long pages = 0, resident = 0;
	FILE *f = fopen("/proc/self/statm", "re");

	if (f) {
		if (fscanf(f, "%lu %lu", &pages, &resident) != 2)
			pages = resident = 0;
		fclose(f);
	}
	getrusage(RUSAGE_SELF, &u);
	head(s, "process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.");
	out_fmt(s->o, "process_virtual_memory_bytes %lu.0\n", pages * (unsigned long)sysconf(_SC_PAGESIZE));
	head(s, "process_resident_memory_bytes", "gauge", "Resident memory size in bytes.");
	out_fmt(s->o, "process_resident_memory_bytes %lu.0\n",
	        resident * (unsigned long)sysconf(_SC_PAGESIZE));
	head(s, "process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.");
	out_fmt(s->o, "process_cpu_seconds_total %.3f\n", (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	        (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6);
}

#define PARTS_MAX 128                /* most daemons of all models */

/* What concerns one daemon. */
static void of_engine(const struct api *a, int engine, struct out *o)
{
	struct scrape s = { .o = o, .p = fleet_replica(a->fleet, engine)->page, .engine = engine,
	                    .first = !a->number && !engine };

	out_str(&s.model, "model_name=\"");
	label(&s.model, a->name[0]);
	out_str(&s.model, "\"");
	gauges(&s);
	counters(&s, a);
	histograms(&s, a);
	cache_config(&s, a);
	if (a->cfg->metrics_old_names)
		old_names(&s);
	slipring(&s, a);
	out_free(&s.model);
}

/* The bytes up to the next family, which begins with # HELP.  All parts have the same families. */
static size_t family(const char *s, const char *end)
{
	const char *next = s;

	while ((next = memchr(next, '\n', (size_t)(end - next))) && ++next < end)
		if (!memcmp(next, "# HELP ", end - next < 7 ? (size_t)(end - next) : 7))
			return (size_t)(next - s);
	return (size_t)(end - s);
}

/* The two lines of comments with which a family begins. */
static size_t family_head(const char *s, const char *end)
{
	const char *line = memchr(s, '\n', (size_t)(end - s));

	line = line ? memchr(line + 1, '\n', (size_t)(end - line - 1)) : NULL;
	return line ? (size_t)(line + 1 - s) : (size_t)(end - s);
}

/* A family has one head and the samples of all daemons. */
static void merge(struct out *o, const struct out *part, int n)
{
	size_t at[PARTS_MAX] = { 0 };

	while (at[0] < part[0].n) {
		for (int i = 0; i < n; i++) {
			const char *s = part[i].p + at[i], *end = part[i].p + part[i].n;
			size_t all = family(s, end), skip = i ? family_head(s, end) : 0;

			out_bytes(o, s + skip, all - skip);
			at[i] += all;
		}
	}
}

/* Every daemon of every model has a part.  The adapter's own samples are in the first. */
static void engines(const struct api *a, struct out *o)
{
	static struct out part[PARTS_MAX];
	int n = 0;

	if (!a->next && fleet_n(a->fleet) == 1) {
		of_engine(a, 0, o);
		return;
	}
	for (const struct api *m = a; m; m = m->next)
		for (int i = 0; i < fleet_n(m->fleet) && n < PARTS_MAX; i++, n++) {
			out_reset(&part[n]);
			of_engine(m, i, &part[n]);
			o->failed |= part[n].failed;
		}
	if (!o->failed)
		merge(o, part, n);
}

void metrics_write(struct api *a, struct out *o)
{
	struct scrape s = { .o = o };

	for (struct api *m = a; m; m = m->next)
		fleet_look(m->fleet);
	process(&s);
	engines(a, o);
	http(&s, a);
}

/* The load of all daemons together: what a load balancer in front of this address compares. */
void metrics_orca(struct api *a, bool json, char *line, size_t cap)
{
	double blocks = 0, used = 0, waiting = 0;
	int n;

	for (int i = 0; i < fleet_n(a->fleet); i++) {
		const struct stats_page *p = fleet_replica(a->fleet, i)->page;

		blocks += p ? (double)p->n_blocks : 0;
		used += p ? (double)p->blocks_used : 0;
		waiting += p ? (double)p->waiting : 0;
	}
	used = blocks > 0 ? used / blocks : 0;
	if (json)
		n = snprintf(line, cap, "endpoint-load-metrics: JSON {\"named_metrics\": "
		             "{\"kv_cache_usage_perc\": %.4f, "
		             "\"num_requests_waiting\": %.1f}}\r\n", used, waiting);
	else
		n = snprintf(line, cap, "endpoint-load-metrics: TEXT named_metrics.kv_cache_usage_perc=%.4f, "
		             "named_metrics.num_requests_waiting=%.1f\r\n", used, waiting);
	if ((size_t)n >= cap)
		line[0] = 0;                  /* half a line would break the head */
}
