/* api.c - which path means what; status routes; the daemon's health; start and end of the api. */
#include "api.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "adapters/text/slipring-text.h"
#include "adapters/text/template.h"
#include "core/log.h"
#include "request.h"
#include "state.h"

#define STUCK_NS (5 * 1000000000ull)         /* without progress while there is work */
#define LOOK_NS  1000000000ull
#define BODY_UNREAD 4096                     /* the most a route may be sent that reads none */

enum { GET = 1, POST = 2 };

static void get_health(struct api *a, struct exchange *x, const char *extra);
static void get_version(struct api *a, struct exchange *x, const char *extra);
static void get_load(struct api *a, struct exchange *x, const char *extra);
static void get_models(struct api *a, struct exchange *x, const char *extra);
static void get_metrics(struct api *a, struct exchange *x, const char *extra);
static void no_scale_out(struct api *a, struct exchange *x, const char *extra);

static const struct route {
	const char *path;
	int methods;
	bool open, counted;                  /* needs no key; is in http_* metrics */
	int kind;                            /* enum ask_kind of a JSON request, or -1: */
	void (*fn)(struct api *a, struct exchange *x, const char *extra);
} routes[] = {
	{ "/v1/chat/completions", POST, false, true, ASK_CHAT, NULL },
	{ "/v1/completions", POST, false, true, ASK_COMPLETION, NULL },
	{ "/v1/models", GET, false, true, -1, get_models },
	{ "/tokenize", POST, false, true, ASK_TOKENIZE, NULL },
	{ "/detokenize", POST, false, true, ASK_DETOKENIZE, NULL },
	{ "/health", GET, true, false, -1, get_health },
	{ "/ping", GET | POST, true, false, -1, get_health },
	{ "/load", GET, false, false, -1, get_load },
	{ "/version", GET, true, false, -1, get_version },
	{ "/metrics", GET, true, false, -1, get_metrics },
	{ "/inference/v1/generate", POST, false, true, -1, no_scale_out },
	{ "/v1/completions/render", POST, false, true, -1, no_scale_out },
	{ "/v1/chat/completions/render", POST, false, true, -1, no_scale_out },
};
#define N_ROUTES ((int)(sizeof(routes) / sizeof(routes[0])))
_Static_assert(sizeof(routes) / sizeof(routes[0]) < ROUTES_MAX, "the last one counts unknown paths");

const char *api_route_name(int route)
{
	return route < N_ROUTES ? routes[route].path : route == N_ROUTES ? "none" : NULL;
}

const char *api_route_method(int route)
{
	return route < N_ROUTES && routes[route].methods & POST ? "POST" : "GET";
}

bool api_route_counted(int route) { return route >= N_ROUTES || routes[route].counted; }

static int route_of(const struct api *a, const struct http_request *r)
{
	const char *root = a->cfg->root_path;
	struct http_str path = r->path;
	size_t n = root ? strlen(root) : 0;
	int i;

	while (n && root[n - 1] == '/')
		n--;
	if (n && path.n > n && !memcmp(path.s, root, n) && path.s[n] == '/') {
		path.s += n;
		path.n -= n;
	}
	for (i = 0; i < N_ROUTES; i++)
		if (http_is(path, routes[i].path))
			break;
	return i;
}

static int method_of(const struct http_request *r)
{
	return http_is(r->method, "GET") ? GET : http_is(r->method, "POST") ? POST : 0;
}

/* ---- the daemon ---- */

void api_look(struct api *a)
{
	uint64_t progress;

	if (a->page && stats_stale(a->page, a->run_dir)) {
		stats_close(a->page);
		a->page = NULL;
	}
	if (!a->page && stats_open(&a->page, a->run_dir) < 0)
		a->page = NULL;
	if (!a->page)
		return;
	progress = a->page->progress + a->page->steps;
	if (progress != a->progress || !a->progress_at) {
		a->progress = progress;
		a->progress_at = io_now();
	}
}

static void on_watch(struct io_timer *t)
{
	struct api *a = t->ctx;

	api_look(a);
	io_timer_set(a->io, t, io_now() + LOOK_NS);
}

/* True while the daemon is there, ready, and either idle or getting on with its work. */
bool api_healthy(struct api *a)
{
	uint64_t now = io_now(), since;

	api_look(a);
	if (a->draining || !a->page || !engine_model(a->engine) || !a->page->epoch ||
	    strcmp(a->page->state, "ready"))
		return false;
	since = a->page->busy_since_ns;
	if (!since && !engine_live(a->engine))
		return true;
	if (a->progress_at > since)
		since = a->progress_at;
	if (engine_since(a->engine) > since)  /* what we sent may not be seen as work yet */
		since = engine_since(a->engine);
	return now < since + STUCK_NS;
}

bool api_limits(const struct api *a, struct ask_limits *l)
{
	const struct sr_model_info *m = engine_model(a->engine);

	*l = a->limits;
	if (!m)
		return false;
	l->context = m->context;
	l->vocab = (int32_t)m->vocab;
	return true;
}

/* ---- answers ---- */

void api_problem(struct exchange *x, const struct problem *p, const char *extra)
{
	struct out o = { 0 };
	char lines[1200] = "";
	size_t n = 0;

	problem_json(&o, p);
	if (p->status == 503)
		n = (size_t)snprintf(lines, sizeof(lines), "retry-after: %d\r\n",
		                     p->retry_after ? p->retry_after : 1);
	snprintf(lines + n, sizeof(lines) - n, "%s", extra);
	exchange_reply(x, p->status, JSON_TYPE, lines, o.p, o.failed ? 0 : o.n);
	out_free(&o);
}

static void reply_out(struct exchange *x, const char *type, const char *extra, struct out *o)
{
	struct problem p;

	if (o->failed) {
		problem_memory(&p);
		api_problem(x, &p, extra);
	} else {
		exchange_reply(x, 200, type, extra, o->p, o->n);
	}
	out_free(o);
}

static void get_health(struct api *a, struct exchange *x, const char *extra)
{
	exchange_reply(x, api_healthy(a) ? 200 : 503, NULL, extra, "", 0);
}

static void get_version(struct api *a, struct exchange *x, const char *extra)
{
	static const char body[] = "{\"version\":\"" SLIPRING_VERSION "\"}";

	(void)a;
	exchange_reply(x, 200, JSON_TYPE, extra, body, sizeof(body) - 1);
}

static void get_load(struct api *a, struct exchange *x, const char *extra)
{
	int64_t load = a->cfg->enable_server_load_tracking ? shared_get(a->shared->load) : 0;
	struct out o = { 0 };

	out_fmt(&o, "{\"server_load\":%lld}", (long long)load);
	reply_out(x, JSON_TYPE, extra, &o);
}

static void get_models(struct api *a, struct exchange *x, const char *extra)
{
	struct ask_limits l;
	struct out o = { 0 };
	long long now = time(NULL);
	int i;

	api_limits(a, &l);
	if (!l.context && a->page)
		l.context = (int64_t)a->page->max_model_len;
	out_str(&o, "{\"object\":\"list\",\"data\":[");
	for (i = 0; i < l.n_names; i++) {
		out_str(&o, i ? ",{\"id\":" : "{\"id\":");
		out_json_str(&o, l.names[i]);
		out_fmt(&o, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"vllm\",\"root\":", now);
		out_json_str(&o, a->model.name);
		out_str(&o, ",\"parent\":null,\"max_model_len\":");
		if (l.context)
			out_int(&o, l.context);
		else
			out_str(&o, "null");
		out_fmt(&o, ",\"permission\":[{\"id\":\"modelperm-%016llx\",\"object\":\"model_permission\","
		        "\"created\":%lld,\"allow_create_engine\":false,\"allow_sampling\":true,"
		        "\"allow_logprobs\":true,\"allow_search_indices\":false,\"allow_view\":true,"
		        "\"allow_fine_tuning\":false,\"organization\":\"*\",\"group\":null,"
		        "\"is_blocking\":false}]}",
		        (unsigned long long)auth_hash(l.names[i], strlen(l.names[i])), now);
	}
	out_str(&o, "]}");
	reply_out(x, JSON_TYPE, extra, &o);
}

static void get_metrics(struct api *a, struct exchange *x, const char *extra)
{
	struct out o = { 0 };

	metrics_write(a, &o);
	reply_out(x, "text/plain; version=1.0.0; charset=utf-8", extra, &o);
}

static void no_scale_out(struct api *a, struct exchange *x, const char *extra)
{
	struct problem p;

	(void)a;
	problem_set(&p, 403, "PermissionDeniedError", NULL, "Scale-out endpoints are disabled. Slipring does "
	            "not have them: tokens go in and out over its rings.");
	api_problem(x, &p, extra);
}

/* ---- what conn.c asks ---- */

static int app_head(void *ctx, const struct http_request *r, char *body, size_t cap,
                    char *extra, size_t extra_cap)
{
	struct api *a = ctx;
	int i = route_of(a, r), method = method_of(r);
	uint64_t tenant;

	cors_headers(a->cors, r, false, extra, extra_cap);
	if ((cors_preflight(a->cors, r) || (i < N_ROUTES && routes[i].kind < 0)) &&
	    (r->chunked || r->content_length > BODY_UNREAD)) {  /* without a key, it costs no memory */
		snprintf(body, cap, "{\"error\":{\"message\":\"This route takes no body.\",\"type\":"
		         "\"BadRequestError\",\"param\":null,\"code\":413}}");
		return 413;
	}
	if (cors_preflight(a->cors, r))
		return 0;
	if (auth_needed(a->auth) && !(i < N_ROUTES && routes[i].open) && !auth_check(a->auth, r, &tenant)) {
		shared_add(a->shared->rejected_keys, 1);
		snprintf(body, cap, "{\"error\":{\"message\":\"Unauthorized: an API key is required as "
		         "`Authorization: Bearer KEY`.\",\"type\":\"AuthenticationError\",\"param\":null,"
		         "\"code\":401}}");
		snprintf(extra + strlen(extra), extra_cap - strlen(extra), "www-authenticate: Bearer\r\n");
		return 401;
	}
	if (i == N_ROUTES) {
		snprintf(body, cap, "{\"detail\":\"Not Found\"}");
		return 404;
	}
	if (!(routes[i].methods & method)) {
		snprintf(body, cap, "{\"detail\":\"Method Not Allowed\"}");
		snprintf(extra + strlen(extra), extra_cap - strlen(extra), "allow: %s\r\n",
		         routes[i].methods == GET ? "GET" : routes[i].methods == POST ? "POST" : "GET, POST");
		return 405;
	}
	if (r->content_length > a->cfg->max_body_bytes && a->cfg->max_body_bytes > 0) {
		snprintf(body, cap, "{\"error\":{\"message\":\"The request body of %lld bytes is larger than "
		         "the %lld that are allowed.\",\"type\":\"BadRequestError\",\"param\":null,"
		         "\"code\":413}}",
		         (long long)r->content_length, (long long)a->cfg->max_body_bytes);
		return 413;
	}
	return 0;
}

/* An id that a client chose goes into headers and JSON: plain characters only. */
static bool usable_id(const struct http_str *id)
{
	size_t i;

	if (!id->n || id->n > ASK_ID_BYTES)
		return false;
	for (i = 0; i < id->n; i++)
		if (id->s[i] <= 0x20 || id->s[i] >= 0x7f)
			return false;
	return true;
}

/* vLLM takes JSON only by its name, so that no web page's form can post to it. */
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

static void json_request(struct api *a, struct exchange *x, const struct http_request *r,
                         const struct route *route, const char *extra)
{
	const struct http_str *id = http_header(r, "x-request-id"), *orca;
	char lines[1024];
	struct problem p = { 0 };
	uint64_t tenant = 0;

	snprintf(lines, sizeof(lines), "%s", extra);
	if (!is_json(r))
		problem_set(&p, 400, "Bad Request", NULL, "1 validation error:\n"
		            "  Unsupported Media Type: Only 'application/json' is allowed");
	else if (a->draining)
		problem_set(&p, 503, "ServiceUnavailableError", NULL, "The server is shutting down.");
	else if (id && !usable_id(id))
		problem_bad(&p, "X-Request-Id", "X-Request-Id must be 1 to %d printable ASCII characters "
		            "without spaces.", ASK_ID_BYTES);
	if (p.status) {
		api_problem(x, &p, lines);
		return;
	}
	if (id && a->cfg->enable_request_id_headers)
		snprintf(lines + strlen(lines), sizeof(lines) - strlen(lines), "x-request-id: %.*s\r\n",
		         (int)id->n, id->s);
	orca = http_header(r, "endpoint-load-metrics-format");
	if (orca && (http_is_ci(*orca, "text") || http_is_ci(*orca, "json")))
		metrics_orca(a, http_is_ci(*orca, "json"), lines + strlen(lines),
		             sizeof(lines) - strlen(lines));
	auth_check(a->auth, r, &tenant);
	if (route->kind == ASK_CHAT || route->kind == ASK_COMPLETION)
		request_start(a, x, (enum ask_kind)route->kind, id, tenant, lines);
	else
		tokenize_start(a, x, (enum ask_kind)route->kind, lines);
}

static void app_handle(void *ctx, struct exchange *x, const struct http_request *r)
{
	struct api *a = ctx;
	int i = route_of(a, r);
	char extra[1024];

	exchange_set_ctx(x, NULL);
	cors_headers(a->cors, r, cors_preflight(a->cors, r), extra, sizeof(extra));
	if (cors_preflight(a->cors, r))
		exchange_reply(x, extra[0] ? 200 : 400, "text/plain; charset=utf-8", extra,
		               extra[0] ? "OK" : "Disallowed CORS origin", extra[0] ? 2 : 22);
	else if (i == N_ROUTES)               /* head refused it; be safe */
		exchange_reply(x, 404, JSON_TYPE, extra, "{\"detail\":\"Not Found\"}", 22);
	else if (routes[i].kind >= 0)
		json_request(a, x, r, &routes[i], extra);
	else
		routes[i].fn(a, x, extra);
}

/* The first member of what exchange_ctx points to tells whose it is: see request.h, tokenize.c. */
static void app_gone(void *ctx, struct exchange *x)
{
	struct work *w = exchange_ctx(x);

	(void)ctx;
	if (!w)
		return;
	exchange_set_ctx(x, NULL);
	if (w->done == tokenize_done)
		tokenize_gone(w);
	else
		request_gone((struct request *)w);
}

static void app_done(void *ctx, const struct http_request *r, const char *peer, const char *note,
                     int status, uint64_t ns, size_t bytes_in, size_t bytes_out)
{
	struct api *a = ctx;
	int i = route_of(a, r);

	metrics_request_done(a, i, status, ns, bytes_in, bytes_out);
	if (a->cfg->disable_access_log || (i < N_ROUTES && !routes[i].counted && status < 400))
		return;
	/* No path that a client chose: only the names of routes. */
	log_info("%s - \"%s %s\" %d %zu bytes in %.1f ms%s", peer,
	         method_of(r) == GET ? "GET" : method_of(r) == POST ? "POST" : "?",
	         i < N_ROUTES ? routes[i].path : "(unknown)", status, bytes_out, (double)ns / 1e6, note);
}

static void app_arriving(void *ctx, int by) { engine_doing(((struct api *)ctx)->engine, SR_ARRIVING, by); }

const struct conn_app *api_app(struct api *a) { return &a->app; }

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
	shared_add(a->shared->preemptions[i], 1);
	shared_add(a->shared->preemptions_sum, times);
}

/* --chat-template: a file, or the template itself if it looks like one. */
static int chat_template(struct api *a, char *err, size_t errlen)
{
	const char *given = a->cfg->chat_template, *source;
	char *text = NULL, why[384] = "";
	FILE *f = given ? fopen(given, "re") : NULL;
	size_t cap = 1u << 20, n = 0;
	int r = 0;

	if (given && !f && !strchr(given, '{')) {
		snprintf(err, errlen, "--chat-template %s: cannot be read (%s), and is no template", given,
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
	source = text ? text : given ? given : sr_text_info(a->text)->chat_template;
	if (given) {
		r = template_compile(&a->chat, source, strlen(source), why, sizeof(why));
		if (r < 0)
			snprintf(err, errlen, "--chat-template: %s", why);
	}
	if (!r && source) {
		const char *format = a->cfg->chat_template_content_format;

		a->limits.chat_parts = format && !strcmp(format, "openai") ? true :
			format && !strcmp(format, "string") ? false : chat_wants_parts(source);
	}
	a->limits.chat = a->chat;
	free(text);
	return r;
}

static int open_model(struct api *a, char *err, size_t errlen)
{
	const struct config *c = a->cfg;
	const struct sr_text_info *info;
	const char *dir = c->generation_config;
	struct stat st;
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
		.names = a->name, .n_names = i,
	};
	snprintf(a->fingerprint, sizeof(a->fingerprint), "slipring-%s-%02x%02x%02x%02x", SLIPRING_VERSION,
	         info->vocab_hash[0], info->vocab_hash[1], info->vocab_hash[2], info->vocab_hash[3]);
	if (!dir || !strcmp(dir, "auto"))
		dir = !stat(a->model.path, &st) && S_ISDIR(st.st_mode) ? a->model.path : NULL;
	else if (!strcmp(dir, "vllm"))
		dir = NULL;
	r = ask_defaults_read(&a->limits.defaults, dir, dir && dir == c->generation_config, err, errlen);
	return r < 0 ? r : chat_template(a, err, errlen);
}

static int start(struct api *a, int index, char *err, size_t errlen)
{
	struct engine_config ec = { .token = request_token, .end = request_end,
	                            .preempted = on_preempted, .ctx = a };
	char socket[256];
	int r;

	r = open_model(a, err, errlen);
	if (!r)
		r = auth_create(&a->auth, a->cfg, err, errlen);
	if (!r)
		r = cors_create(&a->cors, a->cfg, err, errlen);
	if (r < 0)
		return r;
	r = config_socket(a->cfg, socket, sizeof(socket));
	if (!r)
		r = config_find_run_dir(a->cfg->instance, a->run_dir, sizeof(a->run_dir));
	if (r < 0) {
		snprintf(err, errlen, "The daemon cannot be looked for: --instance %s: %s.", a->cfg->instance,
		         config_run_dir_why(r));
		return r;
	}
	r = workers_create(&a->workers, a->io, 2);
	if (!r) {
		ec.socket = socket;
		snprintf(ec.name, sizeof(ec.name), "slipring-http %d", index);
		memcpy(ec.vocab_hash, sr_text_info(a->text)->vocab_hash, sizeof(ec.vocab_hash));
		r = engine_create(&a->engine, a->io, a->workers, &ec);
	}
	if (r < 0)
		snprintf(err, errlen, "The API cannot be started: %s.", strerror(-r));
	return r;
}

int api_create(struct api **out, const struct api_config *c, struct io *io, char *err, size_t errlen)
{
	struct api *a = calloc(1, sizeof(*a));
	int r;

	*out = NULL;
	if (!a)
		return -ENOMEM;
	a->cfg = c->cfg;
	a->model = *c->model;
	a->shared = c->shared;
	a->io = io;
	a->app = (struct conn_app){ .ctx = a, .head = app_head, .handle = app_handle, .gone = app_gone,
	                            .done = app_done, .arriving = app_arriving };
	r = start(a, c->index, err, errlen);
	if (r < 0) {
		api_destroy(a);
		return r;
	}
	a->watch = (struct io_timer){ .fn = on_watch, .ctx = a };
	on_watch(&a->watch);
	*out = a;
	return 0;
}

void api_drain(struct api *a) { a->draining = true; }
bool api_idle(const struct api *a) { return !a->n_requests; }
int api_reload(struct api *a, char *err, size_t errlen) { return auth_reload(a->auth, err, errlen); }

void api_destroy(struct api *a)
{
	if (!a)
		return;
	a->draining = true;
	while (a->requests) {
		struct request *r = a->requests;
		bool later = r->preparing;

		request_gone(r);
		if (later)                    /* a worker has it: its end comes below */
			break;
	}
	workers_destroy(a->workers);          /* what is under way comes back, and ends */
	while (a->requests)
		request_gone(a->requests);
	engine_destroy(a->engine);
	if (a->page)
		stats_close(a->page);
	if (a->io)
		io_timer_del(a->io, &a->watch);
	cors_free(a->cors);
	auth_free(a->auth);
	template_free(a->chat);
	sr_text_close(a->text);
	free(a);
}
