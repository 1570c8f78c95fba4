/* request.c - see request.h.  A request from its bytes to the ring; its tokens come back in tokens.c. */
#include "request.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "core/instance/log.h"
#include "dialect.h"
#include "state.h"
#include "tenants.h"
#include "shmring/clock.h"

#define NOTE_BYTES (ASK_ID_BYTES + 64)
#define UNBOUNDED  256            /* tokens taken of its key's for an answer without max_tokens */

/* ---- life ---- */

/* Count what it used for its key, whether its client took it or not. */
static void count_use(const struct request *r)
{
	uint64_t prompt = 0, answer = 0;

	if (!r->right.quota || !r->n_choices)
		return;
	for (int i = 0; i < r->ask.n_prompts; i++)
		prompt += r->ask.prompt[i].ids.n;
	for (int i = 0; i < r->n_choices; i++)
		answer += r->choice[i].n_tokens;
	quota_used(r->right.quota, &r->right.limits, prompt, r->timings.cached, answer, r->reserved,
	           sr_now());
}

static void request_free(struct request *r)
{
	for (int i = 0; i < r->n_choices; i++) {
		sr_guided_close(r->choice[i].guided);
		choice_free(&r->choice[i]);
	}
	free(r->choice);
	grammars_put(r->api->grammars, r->grammar);
	for (int i = 0; r->scored && i < r->ask.n_prompts; i++)
		out_free(&r->scored[i].scores.bytes);
	free(r->scored);
	io_timer_del(r->api->io, &r->beat);
	items_free(&r->items);
	stops_free(&r->stops);
	ask_free(&r->ask);
	free(r->body);
	out_free(&r->head);
	out_free(&r->event);
	if (r->next)
		r->next->link = r->link;
	*r->link = r->next;
	r->api->n_requests--;
	shared_add(r->api->shared->load, -1);
	free(r);
}

/* Sending may end the request: hold it until the outermost caller returns. */
void request_hold(struct request *r) { r->holds++; }

void request_release(struct request *r)
{
	if (!--r->holds && r->state == REQUEST_OVER)
		request_free(r);
}

void request_drop_choices(struct request *r)
{
	for (struct choice *c = r->choice; c < r->choice + r->n_choices; c++)
		if (c->state == CHOICE_LIVE || c->state == CHOICE_STOPPING) {
			c->state = CHOICE_IDLE;
			engine_drop(c->engine, c->handle);
		}
}

void request_close(struct request *r)
{
	if (r->state != REQUEST_OVER)
		count_use(r);
	r->state = REQUEST_OVER;
	r->x = NULL;
	request_drop_choices(r);
}

void request_gone(void *owner)
{
	struct request *r = owner;

	request_hold(r);
	if (r->state != REQUEST_OVER)
		shared_add(r->api->shared->gone, 1);
	request_close(r);
	request_release(r);
}

/* ---- bytes kept until the client has read them ---- */

static void keep(struct request *r, int64_t by)
{
	r->kept += by;
	if (r->x)
		exchange_keep(r->x, by);
}

void request_account(struct request *r, struct choice *c)
{
	keep(r, (int64_t)c->scores.bytes.n - (int64_t)c->held);
	c->held = c->scores.bytes.n;
}

const char request_too_many_scores[] =
	"The server holds too many log-probabilities of other answers. Try again later.";

/* Bytes of the prompts, as texts and ids, if the answer gives them back. */
static int64_t prompts_kept(const struct ask *a)
{
	int64_t n = (int64_t)json_string_length(a->last_content);

	if (!a->echo && !a->return_token_ids && !a->return_prompt_text)
		return 0;
	for (const struct prompt *q = a->prompt; q < a->prompt + a->n_prompts; q++)
		n += (int64_t)(q->n_text + q->ids.n * sizeof(*q->ids.id));
	return n;
}

/* Bytes of its prompts' log-probabilities, before they are computed. */
static int64_t scores_kept(const struct ask *a)
{
	int64_t n = 0;

	if (a->prompt_logprobs == ASK_NONE)
		return 0;
	for (const struct prompt *q = a->prompt; q < a->prompt + a->n_prompts; q++)
		n += (int64_t)q->ids.n * (int64_t)scores_bytes((uint32_t)a->prompt_logprobs);
	return n;
}

/* Reserve room for what the answer gives of its prompts.  True: there is none, for all or for its tenant. */
static bool prompts_refused(struct request *r)
{
	const int64_t scores = scores_kept(&r->ask), n = prompts_kept(&r->ask) + scores;
	int64_t mine = 0, left;

	if (!n)
		return false;
	for (const struct request *o = r->api->requests; o; o = o->next)
		mine += o->right.tenant == r->right.tenant && o->x ? o->kept : 0;
	if (!exchange_room(r->x, n, &left) ||
	    (mine && tenant_over(r->right.tenant, (uint64_t)(mine + n), (uint64_t)(left > 0 ? left : 0)))) {
		request_reject(r, scores ? request_too_many_scores :
		               "The server holds too many prompts that other answers give back. Try again later.");
		return true;
	}
	if (scores)
		r->scored = calloc((size_t)r->ask.n_prompts, sizeof(*r->scored));
	if (scores && !r->scored) {
		problem_memory(&r->problem);
		request_error(r, &r->problem);
		return true;
	}
	keep(r, n);
	return false;
}

/* ---- before the ring ---- */

/* Up to the ids of the prompts, and the grammar if it is compiled already or `compile` is set. */
static void prepare(struct request *r, bool compile)
{
	struct grammars *gs = r->api->grammars;
	uint64_t begin = sr_now();

	if (r->dialect->parse(&r->ask, r->body, r->body_n, &r->limits, &r->problem) < 0) {
		ask_free(&r->ask);     /* here, because a tree may be large */
	} else {
		r->problem.status = 0;
		if (r->ask.guide.src)
			r->grammar = compile ? grammars_get(gs, &r->ask, r->right.tenant, &r->problem) :
			                       grammars_find(gs, &r->ask, r->right.tenant);
		if (r->grammar)
			guides_ready(r);
		ask_slim(&r->ask);
	}
	shared_add(r->api->shared->tokenize_ns, sr_now() - begin);
	shared_add(r->api->shared->prepared, 1);
}

#define AS_ASKED(name, least, most) .name = (float)a->name,

/* Fill what all answers of a request have in common. */
static void fill(const struct request *r, struct sr_request *q)
{
	const struct ask *a = &r->ask;

	*q = (struct sr_request){
		.size = sizeof(*q),
		.flags = SR_SEEDED | (a->ignore_eos ? SR_IGNORE_EOS : 0) |
		         (request_guided(r) ? SR_GUIDED : 0) |
		         (a->prompt_logprobs != ASK_NONE ? SR_PROMPT_LOGPROBS : 0) |
		         (a->return_progress || (a->timings_per_token && a->stream) ? SR_PROGRESS : 0),
		.min_tokens = request_guided(r) ? 0 : (uint32_t)a->min_tokens, /* its guides see to it */
		.priority = (int32_t)a->priority,
		.sampling = {
			SR_SAMPLING_REALS(AS_ASKED)
			.top_k = a->top_k >= r->limits.vocab ? 0 : (int32_t)a->top_k,
		},
		/* At least 1, because without alternatives no token's own log-probability is computed. */
		.n_top = a->logprobs != ASK_NONE ? (uint32_t)(a->logprobs + !a->logprobs) : 0,
		.n_prompt_top = a->prompt_logprobs != ASK_NONE ? (uint32_t)a->prompt_logprobs : 0,
		.stop = a->stop_ids.id, .n_stop = a->stop_ids.n,
		.allow = a->allowed.id, .n_allow = a->allowed.n,
		.bias = a->bias, .n_bias = a->n_bias,
		.bad = a->bad.id, .n_bad = a->bad.n,
		.cache_salt = r->salt, .tenant = r->right.tenant,
		.name = stats_request_name(r->id, strlen(r->id)),
	};
	memcpy(q->trace_id, r->trace_id, sizeof(q->trace_id));
	memcpy(q->span_id, r->span_id, sizeof(q->span_id));
}

/* Does this choice get its prompt's log-probabilities?  The first of each prompt's choices does. */
bool request_scores_prompt(const struct request *r, const struct choice *c)
{
	return r->scored && c->index % (int)r->ask.n == 0;
}

/* As vLLM: answer i of a prompt has the request's seed plus i.  A seed that is drawn is for all prompts. */
static int seed_of_choice(const struct request *r, const struct choice *c)
{
	return r->ask.seeded ? c->index % (int)r->ask.n : c->index;
}

static int submit(struct request *r, struct choice *c, const struct sr_request *common)
{
	const struct prompt *q = &r->ask.prompt[c->prompt];
	struct sr_request s = *common;
	int e;

	s.prompt = q->ids.id;
	s.n_prompt = q->ids.n;
	s.max_tokens = c->max_tokens;
	s.sampling.seed = r->seed + (uint64_t)seed_of_choice(r, c);
	if (s.min_tokens > s.max_tokens)
		s.min_tokens = s.max_tokens;
	if (request_guided(r) && !s.max_tokens)      /* only its prompt is scored */
		s.flags &= ~(uint32_t)SR_GUIDED;
	if (!request_scores_prompt(r, c)) {
		s.flags &= ~(uint32_t)SR_PROMPT_LOGPROBS;
		s.n_prompt_top = 0;
	}
	c->engine = r->rank < 0 ? fleet_choose(r->api->fleet, &s) : fleet_replica(r->api->fleet, r->rank)->engine;
	e = engine_submit(c->engine, &s, c, &c->handle);
	c->state = e ? CHOICE_IDLE : CHOICE_LIVE;
	return e;
}

/* engine_submit() did not take a choice. */
static void error_of_submit(struct request *r, int e)
{
	struct problem p;

	if (e == -EMSGSIZE || e == -EINVAL || e == -ENOTSUP) {
		problem_bad(&p, NULL, "%s", e == -EMSGSIZE ? "The request does not fit the daemon's rings." :
		            e == -ENOTSUP ? "The daemon takes no requests for structured output." :
		            "The daemon refused the request as invalid.");
		request_error(r, &p);
	} else {
		request_reject(r, e == -EAGAIN ? "Too many requests are waiting. Try again later." :
		            "The model server is not available. Try again later.");
	}
}

/* Is there nothing to compute?  An empty answer has only prompt tokens to score, and the first has none. */
static bool nothing_to_do(const struct request *r, const struct choice *c)
{
	return c->max_tokens == 0 && (!request_scores_prompt(r, c) || r->ask.prompt[c->prompt].ids.n < 2);
}

static void count(struct request *r)
{
	static const int bound[] = { 1, 2, 5, 10, 20 };
	size_t i = 0;

	while (i < 5 && r->ask.n > bound[i])
		i++;
	shared_add(r->api->shared->params_n[i], 1);
	shared_add(r->api->shared->params_n_sum, (uint64_t)r->ask.n);
}

/* Log both names of a request: the id that the client knows, and the trace that the daemon logs. */
static void note_request(const struct request *r)
{
	char note[NOTE_BYTES], hex[33];

	for (int i = 0; i < 16; i++)
		snprintf(hex + 2 * i, 3, "%02x", r->trace_id[i]);
	snprintf(note, sizeof(note), ", %s, trace %s", r->id, hex);
	if (r->x)
		exchange_note(r->x, note);
}

/* Give it a name and a seed.  A header's id wins over the body's.  With a seed of ours an answer can go on in
 * another daemon. */
static void name_request(struct request *r)
{
	const char *prefix = r->dialect->id_prefix;
	uint64_t random[3] = { 0 };
	char made[40];

	if (getrandom(random, sizeof(random), 0) < 0)
		random[0] = random[2] = io_now();
	r->seed = r->ask.seeded ? (uint64_t)r->ask.seed : random[2];
	if (prefix[strlen(prefix) - 1] == '_') {
		snprintf(r->id, sizeof(r->id), "%s%016llx%016llx", prefix, (unsigned long long)random[0],
		         (unsigned long long)random[1]);
	} else {
		snprintf(made, sizeof(made), "%016llx", (unsigned long long)random[0]);
		snprintf(r->id, sizeof(r->id), "%s-%s", prefix, r->header_id[0] ? r->header_id :
		         r->ask.request_id ? r->ask.request_id : made);
	}
	note_request(r);
}

/* Say in the log, once of each kind, what is left out of requests. */
static void note_dropped(const struct request *r)
{
	static const struct { unsigned bit; const char *what; } of[] = {
		{ DROPPED_TOOL, "a tool that this server does not have, such as a web search" },
		{ DROPPED_ITEM, "an item or block of the history that no chat template has a place for" },
		{ DROPPED_BILLING, "the billing header in the system prompt: it would cost prefix-cache hits" },
		{ DROPPED_MODEL, "the name of a Claude model: the served model answers" },
	};
	unsigned fresh = r->ask.dropped & ~r->api->dropped;

	r->api->dropped |= fresh;
	for (size_t i = 0; fresh && i < sizeof(of) / sizeof(of[0]); i++)
		if (fresh & of[i].bit)
			log_info("%s: left out of a request: %s (said once)", r->dialect->path, of[i].what);
}

/* True: the queue is full, and the request was answered with 503. */
static bool queue_refuses(struct request *r)
{
	const struct api *a = r->api;
	enum queue_limit limit;
	uint64_t tokens = 0;
	struct problem p;
	int after;

	for (int64_t i = 0; i < r->ask.n_prompts; i++)
		tokens += r->ask.prompt[i].ids.n * (uint64_t)r->ask.n;
	limit = fleet_queue(a->fleet, r->right.tenant, (uint64_t)(r->ask.n * r->ask.n_prompts), tokens, &after);
	if (limit == QUEUE_ROOM)
		return false;
	if (limit == QUEUE_REQS)
		shared_add(a->shared->rejected_requests, 1);
	else
		shared_add(a->shared->rejected_tokens, 1);
	problem_set(&p, 503, "ServiceUnavailableError", NULL, "Too many requests are waiting (%s). Try again "
	            "later.", limit == QUEUE_REQS ? "--max-num-queued-reqs" : "--max-num-queued-tokens");
	p.retry_after = after;
	request_error(r, &p);
	return true;
}

/* Requests with the same salt share cached prefixes.  If the daemon must keep tenants apart but ignores the
 * tenants that we send, the salt keeps them apart. */
static uint64_t salt_of(const struct request *r)
{
	const struct sr_model_info *m = fleet_model(r->api->fleet);
	const char *given = r->ask.cache_salt;
	uint64_t salt = given ? auth_hash(given, strlen(given)) : 0;

	if (m && m->flags & SR_TENANTS_APART && !(m->flags & SR_TENANTS_HEARD))
		salt = auth_salt(r->right.tenant, salt);
	return salt;
}

/* Tokens that an answer to prompt i may have. */
static uint32_t room_of(const struct request *r, int i)
{
	uint32_t room = (uint32_t)ask_room(&r->ask, &r->limits, r->ask.prompt[i].ids.n);

	return r->answer_most && r->answer_most < room ? r->answer_most : room;
}

/* True: its key may not have so many answers or tokens, and the client was told so. */
static bool quota_refuses(struct request *r)
{
	const int64_t answers = r->ask.n * r->ask.n_prompts;
	struct exchange *x = r->x;
	enum quota_refusal why;
	struct quota_wait wait = { .ns = 1 };
	struct asked *q;
	const bool bounded = r->ask.max_tokens != ASK_NONE;
	uint64_t n = 0, most = 0, tpm = r->right.limits.tpm;

	if (!r->right.quota || !x)
		return false;
	q = exchange_ctx(x);
	for (int i = 0; i < r->ask.n_prompts; i++)
		n += r->ask.prompt[i].ids.n;
	if (tpm && !bounded)
		r->answer_most = tpm > n + (uint64_t)answers ? (uint32_t)((tpm - n) / (uint64_t)answers) : 1;
	for (int i = 0; i < r->ask.n_prompts; i++) {
		const uint32_t room = room_of(r, i);

		most += (uint64_t)r->ask.n * (!bounded && room > UNBOUNDED ? UNBOUNDED : room);
	}
	why = quota_answers(r->right.quota, &r->right.limits, r->api->index, (uint32_t)answers - 1);
	if (!why) {
		q->under_way += (uint32_t)answers - 1;
		why = quota_tokens(r->right.quota, &r->right.limits, n + most, sr_now(), &wait);
	}
	if (!why) {
		r->reserved = most;
		return false;
	}
	request_close(r);
	api_over_quota(x, why, wait, why == QUOTA_PARALLEL ? (uint64_t)answers : n + most);
	return true;
}

static void launch(struct request *r)
{
	struct sr_request common;
	int e = 0;

	r->state = REQUEST_RUNNING;
	r->n_choices = 0;
	r->due_end = &r->due;
	r->choice = calloc((size_t)(r->ask.n * r->ask.n_prompts), sizeof(*r->choice));
	if (!r->choice || stops_init(&r->stops, &r->ask) < 0) {
		problem_memory(&r->problem);
		request_error(r, &r->problem);
		return;
	}
	if (queue_refuses(r) || prompts_refused(r))
		return;
	if (fleet_room(r->api->fleet, r->right.tenant) < (unsigned)(r->ask.n * r->ask.n_prompts)) {
		error_of_submit(r, fleet_model(r->api->fleet) ? -EAGAIN : -ECONNREFUSED);
		return;
	}
	if (quota_refuses(r))
		return;
	r->n_choices = r->n_running = (int)(r->ask.n * r->ask.n_prompts);
	for (int i = 0; i < r->n_choices; i++) {
		struct choice *c = &r->choice[i];

		choice_init(c, r->ask.skip_special);
		c->request = r;
		c->index = i;
		c->prompt = i / (int)r->ask.n;
		if (r->ask.splits && !choice_splits(c, &r->ask, r->limits.calls)) {
			problem_memory(&r->problem);
			request_error(r, &r->problem);
			return;
		}
		c->max_tokens = room_of(r, c->prompt);
	}
	if (!guides_open(r)) {
		problem_memory(&r->problem);
		request_error(r, &r->problem);
		return;
	}
	r->salt = salt_of(r);
	name_request(r);
	note_dropped(r);
	event_start(r);
	count(r);
	fill(r, &common);
	for (int i = 0; i < r->n_choices && !e; i++) {
		struct choice *c = &r->choice[i];

		if (request_scores_prompt(r, c))
			scores_add_plain(&r->scored[c->prompt].scores, r->ask.prompt[c->prompt].ids.id[0]);
		if (!nothing_to_do(r, c))
			e = submit(r, c, &common);
	}
	if (e < 0) {
		error_of_submit(r, e);
		return;
	}
	request_begins(r);
	for (int i = 0; i < r->n_choices && r->state != REQUEST_OVER; i++)
		if (nothing_to_do(r, &r->choice[i]))
			request_end(&r->choice[i], SR_LENGTH, NULL);
}

static void start(struct request *r)
{
	if (r->state == REQUEST_OVER)
		return;
	if (r->problem.status)
		request_error(r, &r->problem);
	else
		launch(r);
}

static void run_prepare(struct work *w) { prepare((struct request *)w, true); }

static void run_compile(struct work *w)
{
	struct request *r = (struct request *)w;

	r->grammar = grammars_get(r->api->grammars, &r->ask, r->right.tenant, &r->problem);
	if (r->grammar)
		guides_ready(r);
}

static void work_done(struct work *w)
{
	struct request *r = (struct request *)w;
	struct fleet *f = r->api->fleet;

	free(r->body);
	r->body = NULL;
	start(r);
	request_release(r);
	fleet_doing(f, SR_PREPARING, -1);
}

/* version-trace id-span id-flags: 2, 32, 16 and 2 hexadecimal digits (W3C Trace Context); not all 0. */
static bool trace_given(struct request *r, const struct http_str *t)
{
	static const uint8_t none[16];

	if (!t || t->n < 55 || t->s[2] != '-' || t->s[35] != '-' || t->s[52] != '-')
		return false;
	for (int i = 0; i < 24; i++) {
		const char *s = t->s + (i < 16 ? 3 + 2 * i : 36 + 2 * (i - 16));

		if (!isxdigit((unsigned char)s[0]) || !isxdigit((unsigned char)s[1]))
			return false;
		*(i < 16 ? &r->trace_id[i] : &r->span_id[i - 16]) =
			(uint8_t)strtoul((char[]){ s[0], s[1], 0 }, NULL, 16);
	}
	return memcmp(r->trace_id, none, sizeof(none)) != 0;
}

/* The client's trace, or a new one. */
static void trace_of(struct request *r, const struct http_request *h)
{
	if (trace_given(r, http_header(h, "traceparent")))
		return;
	memset(r->span_id, 0, sizeof(r->span_id));
	if (getrandom(r->trace_id, sizeof(r->trace_id), 0) < 0)
		memset(r->trace_id, 0, sizeof(r->trace_id));
}

/* Run a work of n bytes for the request; then work_done(). */
static void by_worker(struct request *r, void (*run)(struct work *w), size_t n)
{
	struct api *a = r->api;

	r->work = (struct work){ .run = run, .done = work_done, .bytes = n, .tenant = r->right.tenant };
	request_hold(r);                       /* until work_done() */
	fleet_doing(a->fleet, SR_PREPARING, 1);
	if (workers_give(a->workers, &r->work) < 0) {
		request_release(r);
		fleet_doing(a->fleet, SR_PREPARING, -1);
		request_reject(r, "Too many long requests are waiting. Try again later.");
	}
}

/* A grammar may take long to compile, however short it is: that is for a worker. */
static void prepare_here(struct request *r, struct http_str body)
{
	r->body = (char *)body.s;
	r->body_n = body.n;
	fleet_doing(r->api->fleet, SR_PREPARING, 1);
	prepare(r, false);
	r->body = NULL;
	if (!r->problem.status && r->ask.guide.src)
		by_worker(r, run_compile, r->ask.guide.n);
	else
		start(r);
	fleet_doing(r->api->fleet, SR_PREPARING, -1);
}

/* Copy the body, because the connection and its buffer may be freed while a worker reads. */
static void prepare_by_worker(struct request *r, struct http_str body)
{
	r->body = malloc(body.n);
	r->body_n = body.n;
	if (!r->body) {
		request_reject(r, "Too many long requests are waiting. Try again later.");
		return;
	}
	memcpy(r->body, body.s, body.n);
	exchange_drop_body(r->x);
	by_worker(r, run_prepare, body.n);
}

/* X-data-parallel-rank: the daemon that the client chose; -1: none.  False: the request was refused. */
static bool rank_given(struct request *r, const struct http_str *given)
{
	const int n = fleet_n(r->api->fleet);
	char digits[16] = "", *end;
	long rank = -1;

	r->rank = -1;
	if (!given)
		return true;
	if (given->n < sizeof(digits))
		memcpy(digits, given->s, given->n);
	if (isdigit((unsigned char)digits[0])) {
		rank = strtol(digits, &end, 10);
		rank = *end ? -1 : rank;
	}
	if (rank >= 0 && rank < n) {
		r->rank = (int)rank;
		return true;
	}
	problem_bad(&r->problem, NULL, "data_parallel_rank %.*s is out of range [0, %d).",
	            (int)(given->n < 16 ? given->n : 16), given->s, n);
	request_error(r, &r->problem);
	return false;
}

void request_start(struct api *a, struct exchange *x, const struct dialect *d)
{
	const struct http_request *h = exchange_request(x);
	const struct http_str *id = http_header(h, "x-request-id");
	const struct asked *q = exchange_ctx(x);
	struct request *r = calloc(1, sizeof(*r));
	struct problem p;
	bool known;

	if (!r) {
		problem_memory(&p);
		api_problem(x, &p);
		return;
	}
	*r = (struct request){ .api = a, .x = x, .dialect = d, .right = q->right };
	r->created = time(NULL);
	r->model = a->name[0];
	r->fingerprint = a->fingerprint;
	r->details = a->cfg->enable_prompt_tokens_details || d->at_once;
	trace_of(r, h);
	r->link = &a->requests;
	r->next = a->requests;
	if (r->next)
		r->next->link = &r->next;
	a->requests = r;
	a->n_requests++;
	shared_add(a->shared->load, 1);
	asked_by(x, request_gone, r);
	request_hold(r);
	if (id)
		snprintf(r->header_id, sizeof(r->header_id), "%.*s", (int)id->n, id->s);
	known = api_limits(a, &r->limits);
	r->limits.min_priority = q->right.min_priority;
	r->limits.priority = q->right.priority;
	if (!rank_given(r, http_header(h, "x-data-parallel-rank"))) {
		/* answered */
	} else if (!known || !fleet_model(a->fleet)) {
		request_reject(r, fleet_wrong_model(a->fleet) ?
		            "The model server serves another model than this endpoint." :
		            "The model server is not available. Try again later.");
	} else if (h->body.n <= PREPARE_HERE) {
		prepare_here(r, h->body);
	} else {
		prepare_by_worker(r, h->body);
	}
	request_release(r);
}
