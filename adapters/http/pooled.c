/* pooled.c - /v1/embeddings, /score, /rerank, /classify, /pooling: each input becomes a pooled request of the
 * daemon; when all vectors have come, they or their scores are the answer.
 *
 * A call is parsed and written on a worker if it is long; in between it belongs to the loop's thread.  It is
 * freed when its answer is sent, or when its client is gone and no worker has it.
 */
#include <errno.h>
#include <math.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "adapters/http/json/pooled.h"
#include "core/models/pooling.h"
#include "queue.h"
#include "state.h"

#define WRITE_HERE 65536                     /* elements of vectors that are written on the loop */

struct input {                               /* the engine's owner */
	struct pooled_call *call;
	struct engine *engine;               /* the daemon that has it */
	uint64_t handle;
	bool live;
};

struct pooled_call {
	struct work work;                    /* first */
	struct api *api;
	struct exchange *x;                  /* NULL: the client is gone */
	enum pooled_kind kind;
	struct auth_right right;
	struct ask_limits limits;
	struct pooled_model model;
	struct pooled_ask ask;
	struct problem problem;
	char *body;
	size_t body_n;
	bool with_worker;
	struct input *input;                 /* [n_inputs] */
	int n_inputs, n_running;
	uint32_t width;                      /* elements of each vector */
	float *vector;                       /* [n_inputs][width] */
	uint64_t tokens, cached;
	int64_t created;
	char id[ASK_ID_BYTES + 16];
	const char *name;
	bool details;
	struct out out;
	struct pooled_call *next, **link;    /* in the api's list */
};

/* ---- the answer ---- */

static const float *vector_of(const struct pooled_call *c, int i) { return c->vector + (size_t)i * c->width; }

static void write_base64(struct out *o, const float *v, uint32_t n)
{
	size_t bytes = (size_t)n * sizeof(*v), room = (bytes + 2) / 3 * 4 + 1;

	out_str(o, "\"");
	if (out_room(o, room))
		o->n += (size_t)EVP_EncodeBlock((unsigned char *)o->p + o->n, (const unsigned char *)v, (int)bytes);
	out_str(o, "\"");
}

static void write_vectors(struct pooled_call *c)
{
	struct out *o = &c->out;
	const bool plain = c->kind == POOLED_PLAIN;

	for (int i = 0; i < c->n_inputs; i++) {
		out_fmt(o, "%s{\"index\":%d,\"object\":\"%s\",\"%s\":", i ? "," : "", i,
		        plain ? "pooling" : "embedding", plain ? "data" : "embedding");
		if (c->ask.base64)
			write_base64(o, vector_of(c, i), c->width);
		else
			for (uint32_t k = 0; k < c->width; k++) {
				out_str(o, k ? "," : "[");
				out_double(o, (double)vector_of(c, i)[k]);
			}
		out_str(o, c->ask.base64 ? "}" : "]}");
	}
}

/* Logits of labels become scores, unless the client wants them as they are. */
static void activate(const struct pooled_call *c, float *v)
{
	const int32_t n = c->model.n_labels;
	double most = (double)v[0], sum = 0;

	for (int32_t i = 1; i < n; i++)
		most = (double)v[i] > most ? (double)v[i] : most;
	for (int32_t i = 0; i < n; i++)
		sum += exp((double)v[i] - most);
	for (int32_t i = 0; i < n; i++)
		switch ((enum pooling_act)c->model.act) {
		case POOLING_SOFTMAX:
			v[i] = (float)(exp((double)v[i] - most) / sum);
			break;
		case POOLING_SIGMOID:
			v[i] = (float)(1 / (1 + exp(-(double)v[i])));
			break;
		case POOLING_TANH:
			v[i] = (float)tanh((double)v[i]);
			break;
		case POOLING_IDENTITY:
			break;
		}
}

static void write_labels(struct pooled_call *c)
{
	struct out *o = &c->out;

	for (int i = 0; i < c->n_inputs; i++) {
		const float *v = vector_of(c, i);
		const json_t *name;
		size_t best = 0;

		for (uint32_t k = 1; k < c->width; k++)
			best = v[k] > v[best] ? k : best;
		name = json_array_get(c->model.labels, best);
		out_fmt(o, "%s{\"index\":%d,\"label\":", i ? "," : "", i);
		if (name && json_is_string(name))
			out_json(o, json_string_value(name), json_string_length(name));
		else
			out_str(o, "null");
		out_str(o, ",\"probs\":[");
		for (uint32_t k = 0; k < c->width; k++) {
			out_str(o, k ? "," : "");
			out_double(o, (double)v[k]);
		}
		out_fmt(o, "],\"num_classes\":%u}", c->width);
	}
}

/* Of document i with its query: the classifier's, from the logits of yes and no, or the cosine of the two
 * vectors. */
static double score_of(const struct pooled_call *c, int i)
{
	const bool pairs = c->model.reranks || c->model.n_labels;
	const float *a = vector_of(c, pairs ? i : c->ask.n_queries + i), *b;
	double sum = 0;

	if (c->model.n_labels)               /* of yes and no: yes */
		return (double)a[0];
	if (c->model.reranks)
		return 1 / (1 + exp((double)a[1] - (double)a[0]));
	b = vector_of(c, i % c->ask.n_queries);
	for (uint32_t k = 0; k < c->width; k++)
		sum += (double)a[k] * (double)b[k];
	return sum;
}

static void write_scores(struct pooled_call *c)
{
	for (int i = 0; i < c->ask.n_texts; i++) {
		out_fmt(&c->out, "%s{\"index\":%d,\"object\":\"score\",\"score\":", i ? "," : "", i);
		out_double(&c->out, (double)(float)score_of(c, i));
		out_str(&c->out, "}");
	}
}

struct ranked { double score; int i; };

/* The best first; equal ones in the order given. */
static int better(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;

	return x->score != y->score ? (x->score < y->score ? 1 : -1) : x->i - y->i;
}

static void write_ranks(struct pooled_call *c)
{
	int n = c->ask.n_texts, most = c->ask.top_n && c->ask.top_n < n ? (int)c->ask.top_n : n;
	struct ranked *r = calloc((size_t)n, sizeof(*r));

	if (!r) {
		c->out.failed = true;
		return;
	}
	for (int i = 0; i < n; i++)
		r[i] = (struct ranked){ score_of(c, i), i };
	qsort(r, (size_t)n, sizeof(*r), better);
	for (int k = 0; k < most; k++) {
		const json_t *d = json_is_array(c->ask.documents) ? json_array_get(c->ask.documents, (size_t)r[k].i) :
			c->ask.documents;

		out_fmt(&c->out, "%s{\"index\":%d,\"document\":{\"text\":", k ? "," : "", r[k].i);
		if (json_is_string(d))
			out_json(&c->out, json_string_value(d), json_string_length(d));
		else
			out_str(&c->out, "null");
		out_str(&c->out, ",\"multi_modal\":null},\"relevance_score\":");
		out_double(&c->out, (double)(float)r[k].score);
		out_str(&c->out, "}");
	}
	free(r);
}

static void write_usage(struct pooled_call *c)
{
	out_fmt(&c->out, "\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu", (unsigned long long)c->tokens,
	        (unsigned long long)c->tokens);
	if (c->kind == POOLED_RERANK) {
		out_str(&c->out, "}");
		return;
	}
	out_str(&c->out, ",\"completion_tokens\":0,\"prompt_tokens_details\":");
	if (c->details)
		out_fmt(&c->out, "{\"cached_tokens\":%llu}}", (unsigned long long)c->cached);
	else
		out_str(&c->out, "null}");
}

static void write_answer(struct work *w)
{
	struct pooled_call *c = (struct pooled_call *)w;
	struct out *o = &c->out;

	out_str(o, "{\"id\":");
	out_json_str(o, c->id);
	if (c->kind != POOLED_RERANK)
		out_fmt(o, ",\"object\":\"list\",\"created\":%lld", (long long)c->created);
	out_str(o, ",\"model\":");
	out_json_str(o, c->name);
	if (c->kind == POOLED_RERANK) {
		out_str(o, ",");
		write_usage(c);
	}
	out_str(o, c->kind == POOLED_RERANK ? ",\"results\":[" : ",\"data\":[");
	for (int i = 0; c->model.n_labels && c->ask.activation && i < c->n_inputs; i++)
		activate(c, c->vector + (size_t)i * c->width);
	if (c->kind == POOLED_EMBED || c->kind == POOLED_PLAIN)
		write_vectors(c);
	else if (c->kind == POOLED_CLASSIFY)
		write_labels(c);
	else if (c->kind == POOLED_SCORE)
		write_scores(c);
	else
		write_ranks(c);
	out_str(o, c->kind == POOLED_RERANK ? "]" : "],");
	if (c->kind != POOLED_RERANK)
		write_usage(c);
	out_str(o, "}");
}

/* ---- its life ---- */

static void drop_inputs(struct pooled_call *c)
{
	for (int i = 0; i < c->n_inputs; i++)
		if (c->input[i].live) {
			c->input[i].live = false;
			engine_drop(c->input[i].engine, c->input[i].handle);
		}
	c->n_running = 0;
}

static void call_free(struct pooled_call *c)
{
	if (c->right.quota && c->n_inputs)
		quota_used(c->right.quota, &c->right.limits, c->tokens, c->cached, 0, 0, io_now());
	drop_inputs(c);
	c->api->n_requests--;
	shared_add(c->api->shared->load, -1);
	*c->link = c->next;
	if (c->next)
		c->next->link = c->link;
	ask_free(&c->ask.ask);
	out_free(&c->out);
	free(c->input);
	free(c->vector);
	free(c->body);
	free(c);
}

/* Send what there is, and free the call. */
static void finish(struct pooled_call *c)
{
	if (c->out.failed && !c->problem.status)
		problem_memory(&c->problem);
	if (c->x && c->problem.status) {
		api_problem(c->x, &c->problem);
	} else if (c->x) {
		exchange_give(c->x, 200, JSON_TYPE, asked_lines(c->x), c->out.p, c->out.n);
		c->out.p = NULL;
	}
	call_free(c);
}

static void fail(struct pooled_call *c, int status, const char *type, const char *why)
{
	problem_set(&c->problem, status, type, NULL, "%s", why);
	finish(c);
}

static void by_worker(struct pooled_call *c, void (*run)(struct work *w), void (*done)(struct work *w),
                      size_t bytes)
{
	c->work = (struct work){ .run = run, .done = done, .bytes = bytes, .tenant = c->right.tenant };
	c->with_worker = true;
	fleet_doing(c->api->fleet, SR_PREPARING, 1);
	if (workers_give(c->api->workers, &c->work) == 0)
		return;
	c->with_worker = false;
	fleet_doing(c->api->fleet, SR_PREPARING, -1);
	fail(c, 503, "ServiceUnavailableError", "Too many long requests are waiting. Try again later.");
}

static void written(struct work *w)
{
	struct pooled_call *c = (struct pooled_call *)w;

	c->with_worker = false;
	fleet_doing(c->api->fleet, SR_PREPARING, -1);
	finish(c);
}

static void call_gone(void *owner)
{
	struct pooled_call *c = owner;

	c->x = NULL;
	if (!c->with_worker)
		call_free(c);
}

/* All calls, when the api ends.  Their clients are gone and no worker is left. */
void pooled_destroy(struct api *a)
{
	while (a->pooled_calls)
		call_free(a->pooled_calls);
}

/* ---- from the daemon ---- */

void pooled_handed(void *owner, struct engine *to, uint64_t handle)
{
	struct input *in = owner;

	in->engine = to;
	in->handle = handle;
}

void pooled_vector(void *owner, int finished, const struct sr_token *t, const float *vector, uint32_t n)
{
	struct input *in = owner;
	struct pooled_call *c = in->call;

	in->live = false;
	c->n_running--;
	if (finished < 0 || n != c->width) {
		fail(c, finished == -ECONNRESET ? 503 : 500, finished == -ECONNRESET ? "ServiceUnavailableError" :
		     "InternalServerError", finished == -ECONNRESET ?
		     "The model server stopped while it worked on this request. Try again later." :
		     "The model server failed on this request.");
		return;
	}
	memcpy(c->vector + (size_t)(in - c->input) * c->width, vector, (size_t)n * sizeof(*vector));
	c->cached += t->end.cached;
	if (c->n_running)
		return;
	if ((size_t)c->n_inputs * c->width > WRITE_HERE && c->kind != POOLED_SCORE && c->kind != POOLED_RERANK) {
		by_worker(c, write_answer, written, (size_t)c->n_inputs * c->width * sizeof(float));
		return;
	}
	write_answer(&c->work);
	finish(c);
}

/* ---- to the daemon ---- */

/* 0; or the queue has no room, and the call was answered. */
static int queue_refuses(struct pooled_call *c)
{
	struct api *a = c->api;
	enum queue_limit limit;
	int after;

	limit = fleet_queue(a->fleet, c->right.tenant, (uint64_t)c->n_inputs, c->tokens, &after);
	if (limit == QUEUE_ROOM && fleet_room(a->fleet, c->right.tenant) >= (unsigned)c->n_inputs)
		return 0;
	if (limit == QUEUE_REQS)
		shared_add(a->shared->rejected_requests, 1);
	else if (limit == QUEUE_TOKENS)
		shared_add(a->shared->rejected_tokens, 1);
	problem_set(&c->problem, 503, "ServiceUnavailableError", NULL,
	            "Too many requests are waiting. Try again later.");
	c->problem.retry_after = after;
	finish(c);
	return -1;
}

static int submit(struct pooled_call *c, int i)
{
	const struct sr_model_info *m = fleet_model(c->api->fleet);
	const struct prompt *q = &c->ask.ask.prompt[i];
	struct sr_request r = { .size = sizeof(r), .flags = SR_POOLED, .prompt = q->ids.id, .n_prompt = q->ids.n,
		.priority = (int32_t)c->ask.ask.priority, .tenant = c->right.tenant };

	if (c->model.n_labels) {
		r.pooling.kind = (uint32_t)c->model.kind;
		r.second = q->second;
	} else if (c->model.reranks) {
		r.pooling.kind = SR_POOL_LOGITS;
		r.allow = &c->api->pooled.yes;       /* yes and no lie side by side */
		r.n_allow = 2;
	} else {
		r.pooling.kind = (uint32_t)c->model.kind;
		r.pooling.width = (uint32_t)c->ask.width;
		r.pooling.unit = (c->kind != POOLED_EMBED && c->kind != POOLED_PLAIN) || c->ask.unit;
	}
	if (m && m->flags & SR_TENANTS_APART && !(m->flags & SR_TENANTS_HEARD))
		r.cache_salt = auth_salt(c->right.tenant, 0);
	c->input[i].engine = fleet_choose(c->api->fleet, &r);
	return engine_submit(c->input[i].engine, &r, &c->input[i], &c->input[i].handle);
}

/* True: its key has no tokens left for the prompts, and the client was told so. */
static bool quota_refuses(struct pooled_call *c)
{
	struct exchange *x = c->x;
	struct quota_wait wait;

	if (!c->right.quota || !quota_tokens(c->right.quota, &c->right.limits, c->tokens, io_now(), &wait))
		return false;
	c->x = NULL;
	c->n_inputs = 0;
	if (x)
		api_over_quota(x, QUOTA_TOKENS, wait, c->tokens);
	call_free(c);
	return true;
}

static void launch(struct pooled_call *c)
{
	const struct sr_model_info *m = fleet_model(c->api->fleet);
	int e = 0;

	if (!m || !m->vectors) {
		fail(c, 503, "ServiceUnavailableError", "The model server is not available. Try again later.");
		return;
	}
	c->n_inputs = c->ask.ask.n_prompts;
	c->width = c->model.n_labels ? (uint32_t)c->model.n_labels : c->model.reranks ? 2 :
	           c->ask.width ? (uint32_t)c->ask.width : m->width;
	for (int i = 0; i < c->n_inputs; i++)
		c->tokens += c->ask.ask.prompt[i].ids.n;
	if (queue_refuses(c) < 0 || quota_refuses(c))
		return;
	c->input = calloc((size_t)c->n_inputs, sizeof(*c->input));
	c->vector = calloc((size_t)c->n_inputs * c->width + 1, sizeof(*c->vector));
	if (!c->input || !c->vector) {
		c->n_inputs = 0;
		problem_memory(&c->problem);
		finish(c);
		return;
	}
	for (int i = 0; i < c->n_inputs && !e; i++) {
		c->input[i] = (struct input){ .call = c, .live = true };
		c->n_running++;
		e = submit(c, i);
		c->input[i].live = !e;
	}
	if (e)
		fail(c, e == -EMSGSIZE ? 400 : 503, e == -EMSGSIZE ? "BadRequestError" : "ServiceUnavailableError",
		     e == -EMSGSIZE ? "The request does not fit the daemon's rings." :
		     "The model server is not available. Try again later.");
}

/* ---- from the client ---- */

static void parse(struct work *w)
{
	struct pooled_call *c = (struct pooled_call *)w;

	if (pooled_parse(&c->ask, c->kind, c->body, c->body_n, &c->limits, &c->model, &c->problem) < 0)
		return;
	c->problem.status = 0;
}

static void parsed(struct pooled_call *c)
{
	static const char *const prefix[] = { [POOLED_EMBED] = "embd", [POOLED_SCORE] = "score",
		[POOLED_RERANK] = "rerank", [POOLED_CLASSIFY] = "classify", [POOLED_PLAIN] = "pooling" };
	uint64_t random = 0;

	free(c->body);
	c->body = NULL;
	if (c->problem.status || !c->x) {
		finish(c);
		return;
	}
	if (getrandom(&random, sizeof(random), 0) < 0)
		random = io_now();
	if (!c->id[0] && c->ask.ask.request_id)
		snprintf(c->id, sizeof(c->id), "%s-%.*s", prefix[c->kind], ASK_ID_BYTES, c->ask.ask.request_id);
	else if (!c->id[0])
		snprintf(c->id, sizeof(c->id), "%s-%016llx", prefix[c->kind], (unsigned long long)random);
	launch(c);
}

static void parsed_by_worker(struct work *w)
{
	struct pooled_call *c = (struct pooled_call *)w;

	c->with_worker = false;
	fleet_doing(c->api->fleet, SR_PREPARING, -1);
	parsed(c);
}

static void start(struct api *a, struct exchange *x, enum pooled_kind kind)
{
	const struct http_request *h = exchange_request(x);
	const struct asked *q = exchange_ctx(x);
	struct pooled_call *c = calloc(1, sizeof(*c));
	struct problem p;

	if (!c) {
		problem_memory(&p);
		api_problem(x, &p);
		return;
	}
	*c = (struct pooled_call){ .api = a, .x = x, .kind = kind, .right = q->right, .model = a->pooled,
		.name = a->name[0], .created = time(NULL), .details = a->cfg->enable_prompt_tokens_details,
		.link = &a->pooled_calls, .next = a->pooled_calls };
	if (c->next)
		c->next->link = &c->next;
	a->pooled_calls = c;
	a->n_requests++;
	shared_add(a->shared->load, 1);
	asked_by(x, call_gone, c);
	if (!api_limits(a, &c->limits)) {
		fail(c, 503, "ServiceUnavailableError", "The model server is not available. Try again later.");
		return;
	}
	c->limits.min_priority = q->right.min_priority;
	c->limits.priority = q->right.priority;
	c->model.width = fleet_model(a->fleet)->width;
	c->body = malloc(h->body.n + 1);
	c->body_n = h->body.n;
	if (!c->body) {
		problem_memory(&c->problem);
		finish(c);
		return;
	}
	memcpy(c->body, h->body.s, h->body.n);
	exchange_drop_body(x);
	if (c->body_n > PREPARE_HERE) {
		by_worker(c, parse, parsed_by_worker, c->body_n);
		return;
	}
	parse(&c->work);
	parsed(c);
}

void pooled_embed(struct api *a, struct exchange *x) { start(a, x, POOLED_EMBED); }
void pooled_score(struct api *a, struct exchange *x) { start(a, x, POOLED_SCORE); }
void pooled_rerank(struct api *a, struct exchange *x) { start(a, x, POOLED_RERANK); }
void pooled_classify(struct api *a, struct exchange *x) { start(a, x, POOLED_CLASSIFY); }
void pooled_plain(struct api *a, struct exchange *x) { start(a, x, POOLED_PLAIN); }
