/* api.c - refusals; start and end of the api.  The paths are in routes.c. */
#include "api.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "adapters/text/slipring-text.h"
#include "core/instance/log.h"
#include "dialect.h"
#include "page/page.h"
#include "core/models/pooling.h"
#include "request.h"
#include "state.h"

/* ---- the daemon ---- */

bool api_healthy(struct api *a)
{
	for (; a; a = a->next)
		if (a->draining || !fleet_healthy(a->fleet))
			return false;
	return true;
}

bool api_limits(const struct api *a, struct ask_limits *l)
{
	const struct sr_model_info *m = fleet_model(a->fleet);

	*l = a->limits;
	if (!m)
		return false;
	l->context = m->context;
	l->vocab = (int32_t)m->vocab;
	return true;
}

/* ---- answers ---- */

void api_problem(struct exchange *x, const struct problem *p)
{
	const struct dialect *d = api_dialect(x);
	struct out o = { 0 };
	char lines[LINES_MAX + 32] = "";
	size_t n = 0;

	if (d && d->refusal)
		d->refusal(&o, p);
	else
		problem_json(&o, p);
	if (p->status == 503 || (p->status == 429 && p->retry_after))
		n = (size_t)snprintf(lines, sizeof(lines), "retry-after: %d\r\n",
		                     p->retry_after ? p->retry_after : 1);
	snprintf(lines + n, sizeof(lines) - n, "%s", asked_lines(x));
	exchange_reply(x, p->status, JSON_TYPE, lines, o.p, o.failed ? 0 : o.n);
	out_free(&o);
}

void api_over_quota(struct exchange *x, enum quota_refusal why, struct quota_wait wait, uint64_t n)
{
	const struct asked *q = exchange_ctx(x);
	const struct quota_limits *l = &q->right.limits;
	const char *name = q->right.quota->name;
	struct problem p;

	if (why == QUOTA_PARALLEL && n > l->parallel)
		problem_set(&p, 429, "RateLimitError", NULL, "The request asks for %llu answers, and %s may have %u "
		            "under way (max-parallel). Ask for fewer (`n`, prompts).", (unsigned long long)n, name,
		            l->parallel);
	else if (why == QUOTA_PARALLEL)
		problem_set(&p, 429, "RateLimitError", NULL, "%s may have %u answers under way (max-parallel), and "
		            "would have more. Try again when one of them has ended.", name, l->parallel);
	else if (why == QUOTA_REQUESTS)
		problem_set(&p, 429, "RateLimitError", NULL, "%s has used its %u requests a minute (rpm). Try again "
		            "in %.3f s.", name, l->rpm, (double)wait.ns / 1e9);
	else if (wait.never)
		problem_set(&p, 429, "RateLimitError", NULL, "Prompt and answers may take %llu tokens, and %s may "
		            "use %u a minute (tpm). Make the prompt, `max_tokens` or `n` smaller.",
		            (unsigned long long)n, name, l->tpm);
	else
		problem_set(&p, 429, "RateLimitError", NULL, "%s has used its %u tokens a minute (tpm); this request "
		            "may take %llu. Try again in %.3f s.", name, l->tpm, (unsigned long long)n,
		            (double)wait.ns / 1e9);
	p.retry_after = (why == QUOTA_TOKENS && wait.never) || (why == QUOTA_PARALLEL && n > l->parallel) ? 0 :
	                (int)(wait.ns / 1000000000u) + 1;
	api_problem(x, &p);
}

/* ---- life ---- */

struct api_shared *api_shared_create(void)
{
	void *p = mmap(NULL, sizeof(struct api_shared), PROT_READ | PROT_WRITE,
	               MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

void api_shared_destroy(struct api_shared *s)
{
	if (s)
		munmap(s, sizeof(*s));
}

static void on_preempted(void *ctx, unsigned times)
{
	static const unsigned bound[] = { 1, 2, 3, 4, 5, 10, 20 };
	struct api *a = ctx;
	size_t i = 0;

	while (i < sizeof(bound) / sizeof(bound[0]) && times > bound[i])
		i++;
	shared_add(a->shared->preempted[i], 1);
	shared_add(a->shared->preempted_sum, times);
}

static void on_handed(void *owner, bool pooled, struct engine *to, uint64_t handle)
{
	if (pooled)
		pooled_handed(owner, to, handle);
	else
		request_handed(owner, to, handle);
}

static void on_moved(void *ctx, uint32_t n)
{
	struct api *a = ctx;

	shared_add(a->shared->moved, 1);
	shared_add(a->shared->moved_tokens, n);
}

/* How the model writes tool calls and thoughts.  source: its chat template, or NULL. */
static int open_calls(struct api *a, const char *source, char *err, size_t errlen)
{
	const struct config *c = a->cfg;
	const char *field = c->reasoning_field, *tools = c->tool_call_parser, *thoughts = c->reasoning_parser;
	int r;

	/* Scripts give Python's and YAML's words for an option that is not given. */
	if (tools && (!strcmp(tools, "None") || !strcmp(tools, "null")))
		tools = NULL;
	if (thoughts && (!strcmp(thoughts, "None") || !strcmp(thoughts, "null")))
		thoughts = NULL;
	r = calls_open(&a->calls, tools, thoughts, a->text, source, err, errlen);
	if (!r)
		r = ask_parts(&a->limits.template_kwargs, "default-chat-template-kwargs", c->template_kwargs,
		              c->n_template_kwargs, err, errlen);
	a->limits.calls = a->calls;
	a->limits.calls_named = tools && *tools;
	a->limits.exclude_tools = c->exclude_tools;
	a->limits.reasoning_field = !field || !strcmp(field, "reasoning") ? REASONING_ALONE :
		!strcmp(field, "both") ? REASONING_BOTH : REASONING_CONTENT;
	return r;
}

/* --chat-template: a file, or the template itself if it looks like one. */
static int chat_template(struct api *a, char *err, size_t errlen)
{
	const char *given = a->cfg->chat_template, *format = a->cfg->chat_template_content_format;
	char *text = NULL, why[384] = "";
	FILE *f = given ? fopen(given, "re") : NULL;
	size_t cap = 1u << 20, n = 0;
	int r = 0;

	if (given && !f && !strchr(given, '{')) {
		snprintf(err, errlen, "--chat-template %s: there is no such file to read (%s), and it is no "
		                      "template: a template has a {", given,
		         strerror(errno));
		return -ENOENT;
	}
	if (f) {
		text = malloc(cap);
		n = text ? fread(text, 1, cap - 1, f) : 0;
		fclose(f);
		if (!text)
			return -ENOMEM;
		text[n] = 0;
	}
	if (given) {
		r = chat_template_open(&a->chat, text ? text : given, why, sizeof(why));
		if (r < 0)
			snprintf(err, errlen, "--chat-template: %s", why);
	}
	a->limits.chat = a->chat;
	a->limits.chat_content = format && !strcmp(format, "openai") ? CHAT_CONTENT_PARTS :
		format && !strcmp(format, "string") ? CHAT_CONTENT_TEXT : CHAT_CONTENT_AUTO;
	if (!r)
		r = open_calls(a, text ? text : given ? given : chat_source(a->text), err, errlen);
	free(text);
	return r;
}

/* The id of a text of one token, or -1. */
static int32_t id_of(const struct sr_text *t, const char *s)
{
	int32_t id;

	return sr_text_encode(t, s, strlen(s), SR_TEXT_SPECIAL_PARSE, &id, 1, 0) == 1 ? id : -1;
}

/* A classifier: the names of its labels.  Qwen3-Reranker's two rows answer behind its own words. */
static int open_labels(struct api *a, const struct pooling *files, char *err, size_t errlen)
{
	int rc = pooling_labels(&a->labels, a->model.path, a->model.gguf, err, errlen);

	if (rc)
		return rc;
	a->pooled.labels = a->labels;
	a->pooled.reranks = files->rank;
	a->pooled.instructs = false;
	return 0;
}

/* Does the model embed, rerank or classify?  As its files say, or --runner; then vLLM's defaults: the last
 * token's vector, of length 1.  Qwen3-Reranker and Qwen3-Embedding are known by their names. */
static int open_pooling(struct api *a, char *err, size_t errlen)
{
	struct pooling files;
	int rc = pooling_read(&files, a->model.path, a->model.gguf, err, errlen);
	bool named = strstr(a->model.name, "Reranker") || strstr(a->model.name, "reranker");

	if (rc < 0)
		return a->cfg->runner == RUNNER_GENERATE ? 0 : rc;
	a->pools = a->cfg->runner == RUNNER_POOLING || (a->cfg->runner == RUNNER_AUTO && files.kind);
	if (!files.kind) {
		files.kind = SR_POOL_LAST;
		files.unit = true;
	}
	if (a->pools && a->cfg->pooler_config)
		rc = pooling_config(&files, a->cfg->pooler_config, err, errlen);
	if (rc)
		return rc;
	a->pooled = (struct pooled_model){ .kind = files.kind, .unit = files.unit, .max_len = files.max_len,
		.instructs = strstr(a->model.name, "Qwen3-Embedding"), .n_labels = files.n_labels, .act = files.act };
	if (files.n_labels)
		return open_labels(a, &files, err, errlen);
	if (!a->pools || !(files.rank || (named && files.kind != SR_POOL_MEAN && files.kind != SR_POOL_FIRST)))
		return 0;
	a->pooled.reranks = true;
	a->pooled.yes = id_of(a->text, "yes");
	a->pooled.no = id_of(a->text, "no");
	if (a->pooled.yes >= 0 && a->pooled.no >= 0)
		return 0;
	snprintf(err, errlen, "%s: a reranker must have tokens for yes and no", a->model.name);
	return -ENOTSUP;
}

static int open_model(struct api *a, char *err, size_t errlen)
{
	const struct config *c = a->cfg;
	const struct sr_text_info *info;
	int i, r;

	r = sr_text_open(&a->text, c->tokenizer ? c->tokenizer : a->model.path, err, errlen);
	if (r < 0)
		return r;
	info = sr_text_info(a->text);
	for (i = 0; i < c->n_served_names; i++)
		a->name[i] = c->served_name[i];
	if (!i)
		a->name[i++] = a->model.name;
	a->limits = (struct ask_limits){
		.text = a->text, .response_role = c->response_role ? c->response_role : "assistant",
		.vocab = info->vocab, .max_logprobs = c->max_logprobs < 0 ? SR_TOP_MAX : c->max_logprobs,
		.priorities = c->scheduling_policy && !strcmp(c->scheduling_policy, "priority"),
		.force_usage = c->enable_force_include_usage, .tokens_as_ids = c->return_tokens_as_token_ids,
		.stream_interval = c->stream_interval > 0 ? c->stream_interval : 1,
		.names = a->name, .n_names = i, .first = &a->front->limits,
	};
	snprintf(a->fingerprint, sizeof(a->fingerprint), "slipring-%s-%02x%02x%02x%02x", SLIPRING_VERSION,
	         info->vocab_hash[0], info->vocab_hash[1], info->vocab_hash[2], info->vocab_hash[3]);
	r = defaults_read(&a->limits.defaults, a->model.path, a->model.gguf, c->generation_config,
	                  c->override_generation_config, err, errlen);
	if (!r)
		r = ask_parts(&a->structured_outputs, "structured-outputs-config", c->structured_outputs,
		              c->n_structured_outputs, err, errlen);
	if (!r)
		r = ask_guide_rules_read(&a->limits.guide_rules, a->structured_outputs, err, errlen);
	if (!r)
		r = open_pooling(a, err, errlen);
	return r < 0 ? r : chat_template(a, err, errlen);
}

/* What all models share. */
static int open_server(struct api *a, char *err, size_t errlen)
{
	int r = auth_create(&a->auth, a->cfg, &a->shared->quotas, err, errlen);

	if (!r)
		r = cors_create(&a->cors, a->cfg, err, errlen);
	if (!r)
		r = hosts_create(&a->hosts, a->cfg, auth_needed(a->auth), err, errlen);
	if (r < 0)
		return r;
	r = workers_create(&a->workers, a->io);
	if (r < 0)
		snprintf(err, errlen, "The API cannot be started: %s.", strerror(-r));
	return r;
}

static int start(struct api *a, int index, char *err, size_t errlen)
{
	struct engine_config ec = { .token = request_token, .end = request_end, .vector = pooled_vector,
	                            .submitted = guides_submitted, .drawn = guides_drawn,
	                            .preempted = on_preempted, .moved = on_moved, .handed = on_handed, .ctx = a,
	                            .wait_ns = (uint64_t)(a->cfg->daemon_wait * 1e9),
	                            .max_requests = (uint64_t)a->cfg->max_num_queued_reqs,
	                            .max_tokens = (uint64_t)a->cfg->max_num_queued_tokens };
	int r;

	r = open_model(a, err, errlen);
	if (!r)
		r = a->front == a ? open_server(a, err, errlen) : 0;
	if (r < 0)
		return r;
	a->auth = a->front->auth;
	a->cors = a->front->cors;
	a->hosts = a->front->hosts;
	a->workers = a->front->workers;
	r = grammars_create(&a->grammars, a->text, a->shared, GRAMMARS_KEPT, GRAMMARS_USED);
	a->bits = calloc((size_t)(sr_text_info(a->text)->vocab + 31) / 32, sizeof(*a->bits));
	if (!r && !a->bits)
		r = -ENOMEM;
	if (r < 0) {
		snprintf(err, errlen, "The API cannot be started: %s.", strerror(-r));
		return r;
	}
	ec.tenants = auth_needed(a->auth);
	memcpy(ec.vocab_hash, sr_text_info(a->text)->vocab_hash, sizeof(ec.vocab_hash));
	return fleet_create(&a->fleet, a->io, a->workers, a->cfg, &ec, &a->shared->fleet[a->number], index, err,
	                    errlen);
}

/* Each name that requests use must be one model's. */
static int names_differ(const struct api *a, char *err, size_t errlen)
{
	struct problem p;

	for (const struct api *o = a->front; o != a; o = o->next)
		for (int i = 0; i < a->limits.n_names; i++)
			if (ask_model_known(a->name[i], &o->limits, &p) == 0) {
				snprintf(err, errlen, "Two models are served as %s: give one another --served-model-name.",
				         a->name[i]);
				return -EINVAL;
			}
	return 0;
}

static int add_model(struct api **out, const struct api_config *c, int number, struct io *io, char *err,
                     size_t errlen)
{
	struct api *a = calloc(1, sizeof(*a)), **last = out;
	int r;

	if (!a)
		return -ENOMEM;
	while (*last) {
		if (!(*last)->next)
			(*last)->limits.next = &a->limits;
		last = &(*last)->next;
	}
	*last = a;
	a->front = *out;
	a->number = number;
	a->cfg = c->model[number].cfg;
	a->model = *c->model[number].model;
	a->shared = c->shared;
	a->index = c->index;
	a->io = io;
	r = start(a, c->index, err, errlen);
	return r < 0 ? r : names_differ(a, err, errlen);
}

int api_create(struct api **out, const struct api_config *c, struct io *io, char *err, size_t errlen)
{
	int r = 0;

	*out = NULL;
	quota_begin(&c->shared->quotas, c->index);
	for (int i = 0; i < c->n_models && r >= 0; i++)
		r = add_model(out, c, i, io, err, errlen);
	if (r >= 0 && live_create(&(*out)->live, *out) < 0) {
		snprintf(err, errlen, "--ui: there is no memory for the page.");
		r = -ENOMEM;
	}
	if (r < 0) {
		api_destroy(*out);
		*out = NULL;
	}
	return r;
}

bool api_complete(struct api *a)
{
	for (; a; a = a->next)
		if (!fleet_complete(a->fleet))
			return false;
	return true;
}

bool api_slow(const struct api *a)
{
	for (; a; a = a->next)
		if (fleet_slow(a->fleet))
			return true;
	return false;
}

void api_take(struct api *a)
{
	for (; a; a = a->next)
		for (int i = 0; i < fleet_n(a->fleet); i++)
			engine_take(fleet_replica(a->fleet, i)->engine);
}

void api_drain(struct api *a)
{
	live_drain(a->live);
	for (; a; a = a->next) {
		a->draining = true;
		if (a->fleet)                 /* NULL: the start failed before it */
			fleet_stay(a->fleet);
	}
}

bool api_idle(const struct api *a)
{
	for (; a; a = a->next)
		if (a->n_requests)
			return false;
	return true;
}

int api_reload(struct api *a, char *err, size_t errlen) { return auth_reload(a->auth, err, errlen); }

/* After workers_destroy: nothing of it is under way. */
static void destroy_model(struct api *a)
{
	pooled_destroy(a);
	json_decref(a->labels);
	live_destroy(a->live);
	fleet_destroy(a->fleet);
	chat_template_close(a->chat);
	json_decref(a->structured_outputs);
	grammars_destroy(a->grammars);
	free(a->bits);
	json_decref(a->limits.template_kwargs);
	calls_close(a->calls);
	out_free(&a->metrics);
	sr_text_close(a->text);
	free(a);
}

void api_destroy(struct api *a)
{
	if (!a)
		return;
	api_drain(a);
	for (struct api *m = a; m; m = m->next)
		for (struct request *r = m->requests, *next; r; r = next) {
			next = r->next;
			request_gone(r);
		}
	workers_destroy(a->workers);          /* what workers have comes back, and is freed */
	hosts_free(a->hosts);
	cors_free(a->cors);
	auth_free(a->auth);
	for (struct api *next; a; a = next) {
		next = a->next;
		destroy_model(a);
	}
}
