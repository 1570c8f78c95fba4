/* routes.c - the table of paths; the checks of a head; the status routes.
 *
 * A head is checked once: its route, its key's rights and its CORS lines stay with the exchange
 * (struct asked) until the answer has been sent.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "core/instance/log.h"
#include "adapters/http/json/member.h"
#include "shmring/clock.h"
#include "dialect.h"
#include "page/page.h"
#include "request.h"
#include "state.h"

#define METRICS_NS  100000000u               /* the oldest page of metrics that is sent */
#define MODEL_WITHIN (4u << 20)              /* of several models, `model` is looked for so far into a body */
#define BODY_UNREAD 4096                     /* the largest body that a route accepts if it reads none */

#define ORCA "endpoint-load-metrics-format"
#define ORCA_BYTES 256                       /* the longest line of metrics_orca() */

enum { GET = 1, POST = 2 };
/* METRICS: of --metrics-port; the main one if that is not set.  PAGE: the main one, where it serves the page;
 * if the route is not open, for the page's own origin alone. */
enum port { MAIN, PAGE, METRICS, BOTH };

static void get_root(struct api *a, struct exchange *x);
static void get_health(struct api *a, struct exchange *x);
static void get_live(struct api *a, struct exchange *x);
static void get_version(struct api *a, struct exchange *x);
static void get_load(struct api *a, struct exchange *x);
static void get_models(struct api *a, struct exchange *x);
static void get_model(struct api *a, struct exchange *x);
static void get_metrics(struct api *a, struct exchange *x);

static const struct route {
	const char *path;                    /* a part in braces at its end stands for any name */
	int methods;                         /* GET includes HEAD */
	bool open, counted, json;            /* needs no key; counts in http_* metrics; has a body of JSON */
	enum port port;
	void (*fn)(struct api *a, struct exchange *x); /* NULL: a completion */
	const struct dialect *dialect;       /* a completion's, and its path; or whose errors this route has */
} routes[] = {
	{ NULL, POST, false, true, true, MAIN, NULL, &dialect_chat },
	{ NULL, POST, false, true, true, MAIN, NULL, &dialect_completions },
	{ NULL, POST, false, true, true, MAIN, NULL, &dialect_messages },
	{ NULL, POST, false, true, true, MAIN, NULL, &dialect_responses },
	{ "/v1/chat/completions/input_tokens", POST, false, true, true, MAIN, count_tokens, &dialect_chat },
	{ "/apply-template", POST, false, true, true, MAIN, apply_template, &dialect_chat },
	{ "/v1/responses/input_tokens", POST, false, true, true, MAIN, count_tokens, &dialect_responses },
	{ "/v1/messages/count_tokens", POST, false, true, true, MAIN, count_tokens, &dialect_messages },
	{ "/v1/embeddings", POST, false, true, true, MAIN, pooled_embed, NULL },
	{ "/score", POST, false, true, true, MAIN, pooled_score, NULL },
	{ "/v1/score", POST, false, true, true, MAIN, pooled_score, NULL },
	{ "/rerank", POST, false, true, true, MAIN, pooled_rerank, NULL },
	{ "/v1/rerank", POST, false, true, true, MAIN, pooled_rerank, NULL },
	{ "/v2/rerank", POST, false, true, true, MAIN, pooled_rerank, NULL },
	{ "/classify", POST, false, true, true, MAIN, pooled_classify, NULL },
	{ "/pooling", POST, false, true, true, MAIN, pooled_plain, NULL },
	{ "/v1/models", GET, false, true, false, MAIN, get_models, NULL },
	{ "/v1/models/{model}", GET, false, true, false, MAIN, get_model, NULL },
	{ "/tokenize", POST, false, true, true, MAIN, tokenize, NULL },
	{ "/detokenize", POST, false, true, true, MAIN, detokenize, NULL },
	{ "/health", GET, true, false, false, BOTH, get_health, NULL },
	{ "/v1/health", GET, true, false, false, BOTH, get_health, NULL },
	{ "/", GET, true, false, false, MAIN, get_root, NULL },
	{ "/ui", GET, true, false, false, PAGE, page_get, NULL },
	{ "/ui/live", GET, false, false, false, PAGE, live_get, NULL },
	{ "/ui/history", GET, false, false, false, PAGE, live_past, NULL },
	{ "/ui/knob", POST, false, true, true, PAGE, knob_post, NULL },
	{ "/api/hello", GET, true, false, false, MAIN, get_live, NULL },
	{ "/live", GET, true, false, false, BOTH, get_live, NULL },
	{ "/ping", GET | POST, true, false, false, BOTH, get_health, NULL },
	{ "/load", GET, false, false, false, MAIN, get_load, NULL },
	{ "/version", GET, true, false, false, MAIN, get_version, NULL },
	{ "/metrics", GET, true, false, false, METRICS, get_metrics, NULL },
	{ NULL, POST, false, true, true, MAIN, NULL, &dialect_generate },
	{ "/v1/completions/render", POST, false, true, true, MAIN, render, &dialect_completions },
	{ "/v1/chat/completions/render", POST, false, true, true, MAIN, render, &dialect_chat },
	{ "/v1/messages/render", POST, false, true, true, MAIN, render, &dialect_messages },
	{ "/v1/responses/render", POST, false, true, true, MAIN, render, &dialect_responses },
};
#define N_ROUTES ((int)(sizeof(routes) / sizeof(routes[0])))
_Static_assert(sizeof(routes) / sizeof(routes[0]) < ROUTES_MAX, "the last one counts unknown paths");

/* Paths that other servers have, and the hint for each; any other unknown path gets no hint. */
static const struct { const char *path, *instead; } elsewhere[] = {  /* with / at its end: a prefix */
	{ "/v1/responses/", "Nothing is stored here: send the whole history to POST /v1/responses." },
	{ "/v1/messages/", "POST /v1/messages and /v1/messages/count_tokens are here, batches are not." },
	{ "/v1/embeddings", "This server generates text: /v1/chat/completions and /v1/completions." },
	{ "/v1/rerank", "This server generates text: /v1/chat/completions and /v1/completions." },
	{ "/v2/rerank", "This server generates text: /v1/chat/completions and /v1/completions." },
	{ "/rerank", "This server generates text: /v1/chat/completions and /v1/completions." },
	{ "/score", "This server generates text: /v1/chat/completions and /v1/completions." },
	{ "/v1/score", "This server generates text: /v1/chat/completions and /v1/completions." },
	{ "/pooling", "This server generates text: /v1/chat/completions and /v1/completions." },
	{ "/classify", "This server generates text: /v1/chat/completions and /v1/completions." },
	{ "/v1/moderations", "This server generates text: /v1/chat/completions and /v1/completions." },
	{ "/v1/audio/", "This server reads and writes text: /v1/chat/completions and /v1/completions." },
	{ "/v1/images/", "This server reads and writes text: /v1/chat/completions and /v1/completions." },
	{ "/v1/realtime", "This server reads and writes text: /v1/chat/completions and /v1/completions." },
	{ "/v1/files", "Nothing is stored here: send each request to /v1/chat/completions or /v1/completions." },
	{ "/v1/batches", "Nothing is stored here: slipring batch answers a file of requests." },
	{ "/v1/load_lora_adapter", "LoRA adapters are not supported." },
	{ "/v1/unload_lora_adapter", "LoRA adapters are not supported." },
	{ "/invocations", "POST /v1/chat/completions and /v1/completions answer requests here." },
	{ "/tokenizer_info", "POST /tokenize and /detokenize use the model's tokenizer." },
	{ "/api/", "This is not Ollama's API but OpenAI's: /v1/chat/completions, /v1/completions, /v1/models." },
	{ "/completion", "POST /v1/completions completes a prompt here, in OpenAI's form." },
	{ "/infill", "POST /v1/completions completes a prompt here; a suffix is not supported." },
	{ "/props", "GET /v1/models names the model and its context; GET /metrics has counters." },
	{ "/slots", "GET /metrics shows what runs and waits." },
};

static const char *route_path(const struct route *t) { return t->path ? t->path : t->dialect->path; }

const char *api_route_name(int route)
{
	return route < N_ROUTES ? route_path(&routes[route]) : route == N_ROUTES ? "none" : NULL;
}

const char *api_route_method(int route)
{
	return route < N_ROUTES && routes[route].methods & POST ? "POST" : "GET";
}

/* Whose form the errors of an exchange have; NULL: vLLM's. */
const struct dialect *api_dialect(struct exchange *x)
{
	const struct asked *q = exchange_ctx(x);

	return q && q->route < N_ROUTES ? routes[q->route].dialect : NULL;
}

bool api_route_counted(int route) { return route >= N_ROUTES || routes[route].counted; }

static bool begins(struct http_str s, const char *with, size_t n)
{
	return s.n >= n && !memcmp(s.s, with, n);
}

/* The path below --root-path. */
static struct http_str path_of(const struct api *a, const struct http_request *r)
{
	const char *root = a->cfg->root_path;
	struct http_str path = r->path;
	size_t n = root ? strlen(root) : 0;

	while (n && root[n - 1] == '/')
		n--;
	if (n && path.n > n && !memcmp(path.s, root, n) && path.s[n] == '/') {
		path.s += n;
		path.n -= n;
	}
	return path;
}

static bool is_pooled(const struct route *t)
{
	return t->fn == pooled_embed || t->fn == pooled_score || t->fn == pooled_rerank ||
	       t->fn == pooled_classify || t->fn == pooled_plain;
}

static bool made_by(const struct api *a, const struct route *t)
{
	if (a->cfg->tokens_only && t->json && t->dialect != &dialect_generate)
		return false;
	if (is_pooled(t))
		return a->pools;
	return !(t->dialect && a->pools);
}

/* A model makes tokens or vectors: only the routes of what one of the models makes are there. */
static bool served(const struct api *a, const struct route *t)
{
	for (; a; a = a->next)
		if (made_by(a, t))
			return true;
	return false;
}

static int route_of(const struct api *a, const struct http_request *r)
{
	struct http_str path = path_of(a, r);
	int i;

	for (i = 0; i < N_ROUTES; i++) {
		const char *known = route_path(&routes[i]);
		size_t n = strcspn(known, "{");

		if (!served(a, &routes[i]))
			continue;
		if (known[n] ? path.n > n && begins(path, known, n) : http_is(path, known))
			break;
	}
	return i;
}

/* The hint for an unknown path, or NULL. */
static const char *instead_of(const struct api *a, struct http_str path)
{
	if (a->pools)
		return begins(path, "/v1/", 4) ?
		       "This server makes vectors (--runner pooling): /v1/embeddings, /v1/score, /v1/rerank." : NULL;
	for (size_t i = 0; i < sizeof(elsewhere) / sizeof(elsewhere[0]); i++) {
		size_t n = strlen(elsewhere[i].path);

		if (elsewhere[i].path[n - 1] == '/' ? begins(path, elsewhere[i].path, n) :
		    http_is(path, elsewhere[i].path))
			return elsewhere[i].instead;
	}
	return NULL;
}

static int method_of(const struct http_request *r)
{
	if (http_is(r->method, "POST"))
		return POST;
	return http_is(r->method, "GET") || http_is(r->method, "HEAD") ? GET : 0;
}

static const char *method_name(const struct http_request *r)  /* for the log: never text from a client */
{
	return http_is(r->method, "HEAD") ? "HEAD" : method_of(r) == GET ? "GET" :
	       method_of(r) == POST ? "POST" : "?";
}

/* ---- status routes ---- */

static void reply_out(struct exchange *x, const char *type, struct out *o)
{
	struct problem p;

	if (o->failed) {
		problem_memory(&p);
		api_problem(x, &p);
	} else {
		exchange_give(x, 200, type, asked_lines(x), o->p, o->n);
		o->p = NULL;
	}
	out_free(o);
}

static void get_health(struct api *a, struct exchange *x)
{
	exchange_reply(x, api_healthy(a) ? 200 : 503, NULL, asked_lines(x), "", 0);
}

/* Reports only that the adapter runs, not the daemon: a restart while the daemon is away does only harm. */
static void get_live(struct api *a, struct exchange *x)
{
	(void)a;
	exchange_reply(x, 200, NULL, asked_lines(x), "", 0);
}

/* The page; where it is not served, as get_live: clients ask whether anybody is here. */
static void get_root(struct api *a, struct exchange *x)
{
	if (page_shown(a, x))
		page_get(a, x);
	else
		get_live(a, x);
}

static void get_version(struct api *a, struct exchange *x)
{
	static const char body[] = "{\"version\":\"" SLIPRING_VERSION "\"}";

	(void)a;
	exchange_reply(x, 200, JSON_TYPE, asked_lines(x), body, sizeof(body) - 1);
}

static void get_load(struct api *a, struct exchange *x)
{
	int64_t load = a->cfg->enable_server_load_tracking ? shared_get(a->shared->load) : 0;
	struct out o = { 0 };

	out_fmt(&o, "{\"server_load\":%lld}", (long long)load);
	reply_out(x, JSON_TYPE, &o);
}

/* The context as the first daemon's page has it, while no daemon is connected; 0: unknown. */
static int64_t context_of(const struct api *a)
{
	const struct stats_page *p = fleet_replica(a->fleet, 0)->page;

	return p ? (int64_t)p->max_model_len : 0;
}

/* How tokens are drawn for a request that does not say. */
static void write_defaults(struct out *o, const struct defaults *d)
{
	out_str(o, ",\"sampling\":{\"temperature\":");
	out_double(o, d->temperature);
	out_fmt(o, ",\"top_k\":%lld,\"top_p\":", (long long)d->top_k);
	out_double(o, d->top_p);
	out_str(o, ",\"min_p\":");
	out_double(o, d->min_p);
	out_str(o, ",\"repetition_penalty\":");
	out_double(o, d->repetition);
	out_str(o, ",\"max_tokens\":");
	if (d->max_tokens > 0)
		out_int(o, d->max_tokens);
	else
		out_str(o, "null");
	out_str(o, ",\"from\":");
	out_json_str(o, d->from);
	out_str(o, "}");
}

static void write_model(const struct api *a, struct out *o, const struct ask_limits *l, const char *name)
{
	int64_t context = l->context ? l->context : context_of(a);
	long long now = time(NULL);

	out_str(o, "{\"id\":");
	out_json_str(o, name);
	out_fmt(o, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"vllm\",\"root\":", now);
	out_json_str(o, a->model.name);
	out_str(o, ",\"parent\":null,\"max_model_len\":");
	if (context)
		out_int(o, context);
	else
		out_str(o, "null");
	if (!a->cfg->generation_config || strcmp(a->cfg->generation_config, "vllm") != 0 ||
	    a->cfg->override_generation_config)
		write_defaults(o, &l->defaults);  /* vLLM's model cards do not have it */
	out_fmt(o, ",\"permission\":[{\"id\":\"modelperm-%016llx\",\"object\":\"model_permission\","
	        "\"created\":%lld,\"allow_create_engine\":false,\"allow_sampling\":true,"
	        "\"allow_logprobs\":true,\"allow_search_indices\":false,\"allow_view\":true,"
	        "\"allow_fine_tuning\":false,\"organization\":\"*\",\"group\":null,"
	        "\"is_blocking\":false}]}",
	        (unsigned long long)auth_hash(name, strlen(name)), now);
}

/* The names of one model, as Anthropic's clients read them. */
static void write_names(const struct api *a, struct out *o)
{
	const time_t now = time(NULL);
	struct ask_limits l;
	long long context;
	char at[32] = "";
	struct tm tm;

	api_limits(a, &l);
	context = l.context ? l.context : context_of(a);
	if (gmtime_r(&now, &tm))
		strftime(at, sizeof(at), "%Y-%m-%dT%H:%M:%SZ", &tm);
	for (int i = 0; i < l.n_names; i++) {
		out_str(o, i || a != a->front ? ",{\"type\":\"model\",\"id\":" : "{\"type\":\"model\",\"id\":");
		out_json_str(o, l.names[i]);
		out_str(o, ",\"display_name\":");
		out_json_str(o, l.names[i]);
		out_fmt(o, ",\"created_at\":\"%s\",\"max_input_tokens\":%lld,\"max_tokens\":%lld}", at, context,
		        context);
	}
}

static void write_models(const struct api *a, struct out *o)
{
	const struct api *last = a;

	out_str(o, "{\"data\":[");
	for (const struct api *m = a; m; m = m->next) {
		write_names(m, o);
		last = m;
	}
	out_str(o, "],\"first_id\":");
	out_json_str(o, a->name[0]);
	out_str(o, ",\"last_id\":");
	out_json_str(o, last->name[last->limits.n_names - 1]);
	out_str(o, ",\"has_more\":false}");
}

static void get_models(struct api *a, struct exchange *x)
{
	struct ask_limits l;
	struct out o = { 0 };

	if (http_header(exchange_request(x), "anthropic-version")) {
		write_models(a, &o);
		reply_out(x, JSON_TYPE, &o);
		return;
	}
	out_str(&o, "{\"object\":\"list\",\"data\":[");
	for (const struct api *m = a; m; m = m->next) {
		api_limits(m, &l);
		for (int i = 0; i < l.n_names; i++) {
			if (i || m != a)
				out_str(&o, ",");
			write_model(m, &o, &l, l.names[i]);
		}
	}
	out_str(&o, "]}");
	reply_out(x, JSON_TYPE, &o);
}

/* The model that is served under this name; the first model if none is: it then refuses the name. */
static struct api *model_of(struct api *a, const char *name)
{
	struct problem p;

	for (struct api *m = a; m; m = m->next)
		if (ask_model_known(name, &m->limits, &p) == 0)
			return m;
	return a;
}

/* The rest of the path is a served name, possibly with slashes, plain or percent-encoded. */
static void get_model(struct api *a, struct exchange *x)
{
	struct http_str s = path_of(a, exchange_request(x));
	char name[512], byte[3] = "";
	struct ask_limits l;
	struct problem p;
	struct out o = { 0 };
	size_t n = 0;

	for (size_t i = strlen("/v1/models/"); i < s.n && n < sizeof(name) - 1; i++) {
		name[n] = s.s[i];
		if (s.s[i] == '%') {           /* the parser has checked that two digits follow, not 00 */
			memcpy(byte, s.s + i + 1, 2);
			name[n] = (char)strtol(byte, NULL, 16);
			i += 2;
		}
		n++;
	}
	name[n] = 0;
	a = model_of(a, name);
	api_limits(a, &l);
	if (ask_model_known(name, &l, &p) < 0) {
		api_problem(x, &p);
		return;
	}
	write_model(a, &o, &l, name);
	reply_out(x, JSON_TYPE, &o);
}

/* The page is written at most ten times a second, however often it is requested. */
static void get_metrics(struct api *a, struct exchange *x)
{
	uint64_t now = io_now();
	struct out copy = { 0 };

	if (!a->metrics.n || now >= a->metrics_at + METRICS_NS) {
		out_reset(&a->metrics);
		metrics_write(a, &a->metrics);
		a->metrics_at = now;
	}
	out_bytes(&copy, a->metrics.p, a->metrics.n);
	copy.failed |= a->metrics.failed;
	if (page_names_keys(a, x))
		metrics_keys(a, &copy);
	reply_out(x, "text/plain; version=1.0.0; charset=utf-8", &copy);
}

/* ---- a request from its head to its end ---- */

/* Write the body of a refusal before the request's body is here.  Without a type it has the wording and
 * the shape of vLLM's web framework, which answers for routes that vLLM does not have. */
static int refuse(const struct dialect *d, const struct problem *p, char *body, size_t cap)
{
	struct out o = { 0 };

	if (d && d->refusal)
		d->refusal(&o, p);
	else if (p->type)
		problem_json(&o, p);
	else
		out_fmt(&o, "{\"detail\":\"%s\"}", p->message);
	if (!o.failed)
		snprintf(body, cap, "%.*s", (int)o.n, o.p);
	out_free(&o);
	return p->status;
}

/* A client's id goes into headers and JSON, so only plain characters are allowed. */
static bool usable_id(const struct http_str *id)
{
	if (!id->n || id->n > ASK_ID_BYTES)
		return false;
	for (size_t i = 0; i < id->n; i++)
		if (id->s[i] <= 0x20 || id->s[i] >= 0x7f)
			return false;
	return true;
}

/* --enable-request-id-headers: send the client's own id, or a new one. */
static void add_id(const struct http_request *r, char *lines, size_t cap)
{
	const struct http_str *id = http_header(r, "x-request-id");
	size_t n = strlen(lines);
	uint64_t made[2];

	if (id && usable_id(id)) {
		snprintf(lines + n, cap - n, "x-request-id: %.*s\r\n", (int)id->n, id->s);
		return;
	}
	if (getrandom(made, sizeof(made), 0) == sizeof(made))
		snprintf(lines + n, cap - n, "x-request-id: %016llx%016llx\r\n", (unsigned long long)made[0],
		         (unsigned long long)made[1]);
}

/* Keep what the head contains; NULL: no memory. */
static struct asked *keep(struct api *a, struct exchange *x, const struct http_request *r)
{
	struct asked *q;
	char lines[LINES_MAX - ORCA_BYTES - QUOTA_LINES];
	bool preflight = cors_preflight(a->cors, r), allowed;

	cors_headers(a->cors, r, preflight, lines, sizeof(lines));
	allowed = lines[0];
	if (a->cfg->enable_request_id_headers)
		add_id(r, lines, sizeof(lines));
	q = malloc(sizeof(*q) + strlen(lines) + 1 + (http_header(r, ORCA) ? ORCA_BYTES : 0) +
	           (auth_needed(a->auth) ? QUOTA_LINES : 0));
	if (!q)
		return NULL;
	*q = (struct asked){ .route = route_of(a, r), .preflight = preflight, .allowed = allowed };
	strcpy(q->lines, lines);
	if (q->route < N_ROUTES && routes[q->route].port == PAGE) {
		q->lines[0] = 0;                      /* whatever --allowed-origins says */
		q->allowed = false;
		if (!page_shown(a, x))
			q->route = N_ROUTES;
	}
	exchange_set_ctx(x, q);
	return q;
}

static void add_line(char *extra, size_t cap, const char *line)
{
	size_t n = strlen(extra);

	snprintf(extra + n, cap - n, "%s", line);
}

/* 0, or refused and *p has the reason.  A Unix socket is exempt, because no browser reaches it. */
static int check_host(const struct api *a, const struct exchange *x, const struct http_request *r,
                      struct problem *p)
{
	if (hosts_allow(a->hosts, r) || !strcmp(exchange_peer(x), "unix"))
		return 0;
	return problem_set(p, 421, "MisdirectedRequestError", NULL,
	                   "Host must be localhost, an IP address or a known name of this server. Add a name "
	                   "with --allowed-hosts NAME, or set an API key: then any Host is served.");
}

/* 0, or refused and *p has the reason; extra: header lines of the refusal. */
static int check_head(struct api *a, struct exchange *x, const struct http_request *r, struct problem *p,
                      char *extra, size_t cap)
{
	struct asked *q = exchange_ctx(x);
	const struct route *route = q->route < N_ROUTES ? &routes[q->route] : NULL;
	const char *param = begins(path_of(a, r), "/v1/responses/", 14) ? "response_id" : NULL;
	const char *instead = route ? NULL : instead_of(a, path_of(a, r));
	const struct http_str *coding = http_header(r, "content-encoding");
	bool open, valid;

	if ((q->preflight || (route && !route->json)) &&
	    (r->chunked || r->content_length > BODY_UNREAD))    /* such a body is read and discarded */
		return problem_set(p, 413, "BadRequestError", NULL, "This route takes no body.");
	if (q->preflight || (route && !route->json))
		exchange_skip_body(x);
	if (q->preflight)
		return 0;
	if (route && route->port == PAGE && !route->open && !origin_own(r))
		return problem_set(p, 403, "PermissionDeniedError", NULL,
		                   "This is for the page of this server, not for pages of other origins.");
	open = route && route->open && !http_header(r, "authorization") && !http_header(r, "x-api-key");
	valid = !open && auth_check(a->auth, r, &q->right);
	if (valid && auth_needed(a->auth))
		exchange_trust(x);
	if (route && route->port == METRICS && a->cfg->metrics_key) {
		if (auth_shows(r, a->cfg->metrics_key)) {
			exchange_trust(x);
			return 0;
		}
		add_line(extra, cap, "www-authenticate: Bearer\r\n");
		return problem_set(p, 401, "AuthenticationError", NULL,
		                   "Unauthorized: the key of --metrics-key is required, as `Authorization: Bearer "
		                   "KEY` or as `x-api-key: KEY`.");
	}
	if (!valid && !(route && route->open)) {
		shared_add(a->shared->rejected_keys, 1);
		add_line(extra, cap, "www-authenticate: Bearer\r\n");
		return problem_set(p, 401, "AuthenticationError", NULL,
		                   "Unauthorized: an API key is required, as `Authorization: Bearer KEY` or as "
		                   "`x-api-key: KEY`; if both are given, they must be the same.");
	}
	if (!route)
		return instead ? problem_set(p, 404, param ? "invalid_request_error" : "NotFoundError", param,
		                             "There is no such route here. %s",
		                             instead) :
		                 problem_set(p, 404, NULL, NULL, "Not Found");
	if (!(route->methods & method_of(r))) {
		add_line(extra, cap, route->methods == GET ? "allow: GET, HEAD\r\n" :
		         route->methods == POST ? "allow: POST\r\n" : "allow: GET, HEAD, POST\r\n");
		return problem_set(p, 405, NULL, NULL, "Method Not Allowed");
	}
	if (route->json && coding && coding->n && !http_is_ci(*coding, "identity"))
		return problem_set(p, 415, "UnsupportedMediaTypeError", NULL,
		                   "Content-Encoding is not supported: send the JSON uncompressed.");
	if (r->content_length > a->cfg->max_body_bytes && a->cfg->max_body_bytes > 0)
		return problem_set(p, 413, "BadRequestError", NULL,
		                   "The request body has %lld bytes; at most %lld are allowed.",
		                   (long long)r->content_length, (long long)a->cfg->max_body_bytes);
	return 0;
}

/* 0, or *p reports that this port does not have this route.  With --metrics-port each port has its own. */
static int check_port(const struct api *a, const struct asked *q, bool metrics, struct problem *p)
{
	enum port port = q->route < N_ROUTES ? routes[q->route].port : MAIN;

	if (metrics && (port == MAIN || port == PAGE))
		return problem_set(p, 404, "NotFoundError", NULL, "This port serves only /metrics, /health "
		                                                  "and /live.");
	if (!metrics && port == METRICS && a->cfg->metrics_port)
		return problem_set(p, 404, "NotFoundError", NULL, "/metrics is served on the port of "
		                                                  "--metrics-port.");
	return 0;
}

static int look(struct api *a, bool metrics, struct exchange *x, const struct http_request *r, char *body,
                size_t cap, char *extra, size_t extra_cap)
{
	struct asked *q = keep(a, x, r);
	struct problem p;

	if (!q) {
		problem_memory(&p);
		return refuse(NULL, &p, body, cap);
	}
	snprintf(extra, extra_cap, "%s", q->lines);
	if (check_host(a, x, r, &p) || check_port(a, q, metrics, &p) ||
	    check_head(a, x, r, &p, extra, extra_cap))
		return refuse(api_dialect(x), &p, body, cap);
	return 0;
}

static int app_head(void *ctx, struct exchange *x, const struct http_request *r, char *body, size_t cap,
                    char *extra, size_t extra_cap)
{
	return look(ctx, false, x, r, body, cap, extra, extra_cap);
}

static int metrics_head(void *ctx, struct exchange *x, const struct http_request *r, char *body, size_t cap,
                        char *extra, size_t extra_cap)
{
	return look(ctx, true, x, r, body, cap, extra, extra_cap);
}

/* Like vLLM, accept only JSON's media type, so that no form of a web page can post here. */
static bool is_json(const struct http_request *r)
{
	const struct http_str *h = http_header(r, "content-type");
	struct http_str type = h ? *h : (struct http_str){ "", 0 };
	const char *end = memchr(type.s, ';', type.n);

	if (end)
		type.n = (size_t)(end - type.s);
	while (type.n && (type.s[type.n - 1] == ' ' || type.s[type.n - 1] == '\t'))
		type.n--;
	return http_is_ci(type, "application/json");
}

/* The model that a request names; the first if it names none.  NULL: it is answered already. */
static struct api *model_asked(struct api *a, struct exchange *x, const struct http_request *r,
                               const struct route *route)
{
	const size_t n = r->body.n < MODEL_WITHIN ? r->body.n : MODEL_WITHIN;
	char name[512];
	struct problem p;

	if (!a->next)
		return a;
	if (member_text(r->body.s, n, "model", name, sizeof(name)))
		a = model_of(a, name);
	if (made_by(a, route))
		return a;
	problem_bad(&p, "model", "The model `%.200s` makes %s, which this route does not answer.", a->name[0],
	            a->pools ? "vectors" : "tokens");
	api_problem(x, &p);
	return NULL;
}

static bool computes(const struct route *t)
{
	return !t->fn || is_pooled(t);
}

/* Count a request for its key.  True: the key has used up a limit, and the client was told so. */
static bool quota_refuses(struct api *a, struct exchange *x)
{
	struct asked *q = exchange_ctx(x);
	struct quota_wait wait;
	enum quota_refusal why;

	if (!q->right.quota)
		return false;
	q->fixed = strlen(q->lines);
	q->metered = true;
	why = quota_enter(q->right.quota, &q->right.limits, a->index, sr_now(), &wait);
	q->under_way = !why;
	if (why)
		api_over_quota(x, why, wait, 1);
	return why;
}

static void json_request(struct api *a, struct exchange *x, const struct http_request *r,
                         const struct route *route)
{
	const struct http_str *id = http_header(r, "x-request-id"), *orca = http_header(r, ORCA);
	char *end = strchr(asked_lines(x), 0);
	struct problem p = { 0 };

	if (!is_json(r))
		problem_set(&p, 400, "Bad Request", NULL, "1 validation error:\n"
		            "  Unsupported Media Type: Only 'application/json' is allowed");
	else if (a->draining)
		problem_set(&p, 503, "ServiceUnavailableError", NULL, "The server is shutting down.");
	else if (id && !usable_id(id))
		problem_bad(&p, "X-Request-Id", "X-Request-Id must be 1 to %d printable ASCII characters "
		            "without spaces.", ASK_ID_BYTES);
	if (p.status) {
		api_problem(x, &p);
		return;
	}
	a = model_asked(a, x, r, route);
	if (!a)
		return;
	if (orca && (http_is_ci(*orca, "text") || http_is_ci(*orca, "json")))
		metrics_orca(a, http_is_ci(*orca, "json"), end, ORCA_BYTES);
	if (computes(route) && quota_refuses(a, x))
		return;
	if (route->fn)
		route->fn(a, x);
	else
		request_start(a, x, route->dialect);
}

static void app_handle(void *ctx, struct exchange *x, const struct http_request *r)
{
	const struct asked *q = exchange_ctx(x);
	struct api *a = ctx;

	if (q->preflight)
		exchange_reply(x, q->allowed ? 200 : 400, "text/plain; charset=utf-8", q->lines,
		               q->allowed ? "OK" : "Disallowed CORS origin", q->allowed ? 2 : 22);
	else if (routes[q->route].json)
		json_request(a, x, r, &routes[q->route]);
	else
		routes[q->route].fn(a, x);
}

char *asked_lines(struct exchange *x)
{
	struct asked *q = exchange_ctx(x);

	if (q->metered)
		quota_lines(q->lines + q->fixed, q->right.quota, &q->right.limits, sr_now());
	return q->lines;
}

void asked_by(struct exchange *x, void (*gone)(void *owner), void *owner)
{
	struct asked *q = exchange_ctx(x);

	q->gone = gone;
	q->owner = owner;
}

static void app_gone(void *ctx, struct exchange *x)
{
	const struct asked *q = exchange_ctx(x);

	(void)ctx;
	if (q->gone)
		q->gone(q->owner);
}

static void app_done(void *ctx, struct exchange *x, const char *peer, const char *note, int status,
                     uint64_t ns, size_t bytes_in, size_t bytes_out)
{
	const struct http_request *r = exchange_request(x);
	struct asked *q = exchange_ctx(x);
	struct api *a = ctx;
	int i = q ? q->route : N_ROUTES;      /* NULL: refused before head() was called */
	bool quiet;

	if (q && q->under_way)
		quota_leave(q->right.quota, a->index, q->under_way);
	exchange_set_ctx(x, NULL);
	free(q);
	metrics_request_done(a, i, status, ns, bytes_in, bytes_out);
	quiet = i < N_ROUTES && !routes[i].counted && (status < 400 || (status == 499 && routes[i].port == PAGE));
	if (a->cfg->disable_access_log || quiet)
		return;
	/* Log no path that a client chose, only the names of routes. */
	log_info("%s - \"%s %s\" %d %zu bytes in %.1f ms%s", peer, method_name(r),
	         i < N_ROUTES ? route_path(&routes[i]) : "(unknown)", status, bytes_out, (double)ns / 1e6, note);
}

static void app_arriving(void *ctx, int by)
{
	for (struct api *a = ctx; a; a = a->next)    /* which model it is for is not known yet */
		fleet_doing(a->fleet, SR_ARRIVING, by);
}

const struct conn_app *api_app(struct api *a)
{
	a->app = (struct conn_app){ .ctx = a, .head = app_head, .handle = app_handle, .gone = app_gone,
	                            .done = app_done, .arriving = app_arriving };
	return &a->app;
}

const struct conn_app *api_metrics_app(struct api *a)
{
	a->metrics_app = *api_app(a);
	a->metrics_app.head = metrics_head;
	return &a->metrics_app;
}
