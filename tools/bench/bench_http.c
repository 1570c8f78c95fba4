/* bench_http.c - the HTTP wire: libcurl's multi interface, driven by its sockets.
 *
 * curl names the sockets to watch and the time of its next call.  One epoll waits for all of them, so a
 * thousand idle streams cost nothing while one is active.  All bytes of one read get the same time: the
 * moment they were read.
 */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <curl/curl.h>

#include "bench.h"
#include "core/instance/refuse.h"

#define EVENTS     64
#define REPLY_MAX  (64 << 20)    /* the most bytes of an answer to bench_fetch */
#define TIMEOUT_S  (6 * 60 * 60) /* of one request, as in vLLM's client */

struct transfer {
	CURL *easy;
	struct http *h;
	struct bench_answer *a;
	struct curl_slist *headers;
	char *body;
	struct sse sse;
	double now;                  /* when the current bytes were read */
	bool counted;                /* the server reported its token counts */
	int broken;                  /* -errno of the stream's scanner */
	char note[512];              /* start of an answer that is no stream, or message of an error event */
	size_t n_note;
	struct transfer *next;
};

struct http {
	struct bench_run *r;
	CURLM *multi;
	int epoll;
	double timer;                /* when to call curl; INFINITY = no timeout */
	char *frame[2];              /* of request bodies: all except prompt and length; [1]: with the schema */
	struct transfer *idle;
	struct transfer **every;     /* [n_every] for the end */
	size_t n_every, cap_every;
};

/* ---- bodies ------------------------------------------------------------------------------------ */

static void put_real(json_t *j, const char *name, double v)
{
	if (!isnan(v))
		json_object_set_new(j, name, json_real(v));
}

/* The schema that the answer must keep to.  OpenAI's API has a field for it in conversations alone; vLLM's
 * is for completions, too. */
static int put_schema(json_t *j, const struct bench_options *o)
{
	json_t *schema = json_load_file(o->schema, 0, NULL);

	if (bench_chat(o))
		return json_object_set_new(j, "response_format",
		                           json_pack("{s:s, s:{s:s, s:o}}", "type", "json_schema", "json_schema",
		                                     "name", "bench", "schema", schema));
	return json_object_set_new(j, "structured_outputs", json_pack("{s:o}", "json", schema));
}

/* The part that all requests with a schema, or all without, have in common.  Prompt and length come before
 * it, so that a field of --extra-body, which comes later, overrides them. */
static char *make_frame(const struct bench_run *r, bool structured, char *err, size_t errlen)
{
	const struct bench_options *o = r->o;
	json_t *j = json_pack("{s:s, s:b, s:{s:b}}", "model", r->model, "stream", 1, "stream_options",
	                      "include_usage", 1);
	char salt[24];
	json_t *extra = o->extra_body ? json_loads(o->extra_body, 0, NULL) : NULL;
	char *s = NULL;

	if (j && !bench_chat(o))
		json_object_set_new(j, "repetition_penalty", json_real(1.0));
	if (j && !bench_chat(o) && o->logprobs >= 0)
		json_object_set_new(j, "logprobs", json_integer(o->logprobs));
	if (j && o->ignore_eos && !structured) /* such an answer ends where its schema does */
		json_object_set_new(j, "ignore_eos", json_true());
	if (j) {
		put_real(j, "temperature", o->temperature);
		put_real(j, "top_p", o->top_p);
		put_real(j, "min_p", o->min_p);
		put_real(j, "frequency_penalty", o->frequency);
		put_real(j, "presence_penalty", o->presence);
		put_real(j, "repetition_penalty", o->repetition);
		if (o->top_k >= 0)
			json_object_set_new(j, "top_k", json_integer(o->top_k));
		snprintf(salt, sizeof(salt), "%016llx", (unsigned long long)r->salt);
		if (r->salt)
			json_object_set_new(j, "cache_salt", json_string(salt));
		if (!structured || !put_schema(j, o)) {
			if (extra)
				json_object_update(j, extra);
			s = json_dumps(j, JSON_COMPACT);
		}
	}
	json_decref(extra);
	json_decref(j);
	if (!s)
		snprintf(err, errlen, "a request cannot be written as JSON: is the model's name UTF-8%s?",
		         structured ? ", and is the schema's file still there" : "");
	return s;
}

static char *ids_as_json(const struct bench_prompt *p)
{
	char *s = malloc((size_t)p->n_ids * 12 + 3), *at = s;

	if (!s)
		return NULL;
	*at++ = '[';
	for (uint32_t i = 0; i < p->n_ids; i++)
		at += sprintf(at, "%s%d", i ? "," : "", p->ids[i]);
	*at++ = ']';
	*at = 0;
	return s;
}

static char *text_as_json(const struct bench_prompt *p)
{
	json_t *j = json_stringn(p->text, p->n_text);
	char *s = j ? json_dumps(j, JSON_ENCODE_ANY) : NULL;

	json_decref(j);
	return s;
}

static char *make_body(const struct bench_run *r, const char *frame, size_t i)
{
	const struct bench_prompt *p = &r->load->prompt[i];
	bool ids = p->ids && (r->o->send_ids || !p->text);
	char *prompt = ids ? ids_as_json(p) : text_as_json(p), *s = NULL;
	int n;

	if (!prompt)
		return NULL;
	if (bench_chat(r->o))
		n = asprintf(&s, "{\"messages\":[{\"role\":\"user\","
		             "\"content\":[{\"type\":\"text\",\"text\":%s}]}],"
		             "\"max_completion_tokens\":%u,%s", prompt, p->max_tokens, frame + 1);
	else
		n = asprintf(&s, "{\"prompt\":%s,\"max_tokens\":%u,%s", prompt, p->max_tokens, frame + 1);
	free(prompt);
	return n < 0 ? NULL : s;
}

static struct curl_slist *headers(const struct bench_options *o, bool json)
{
	const char *key = getenv("OPENAI_API_KEY");
	struct curl_slist *l = NULL;
	char line[4096];

	if (json)
		l = curl_slist_append(l, "Content-Type: application/json");
	l = curl_slist_append(l, "Expect:");
	if (key && *key) {
		snprintf(line, sizeof(line), "Authorization: Bearer %s", key);
		l = curl_slist_append(l, line);
	}
	for (int i = 0; i < o->header.n; i++) {
		const char *w = o->header.word[i], *equals = strchr(w, '=');

		snprintf(line, sizeof(line), "%.*s: %s", (int)(equals - w), w, equals + 1);
		l = curl_slist_append(l, line);
	}
	return l;
}

static void common(CURL *easy, const struct bench_options *o)
{
	curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	if (o->insecure) {
		curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L);
		curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L);
	}
}

/* ---- one small request ------------------------------------------------------------------------- */

struct reply { char *s; size_t n; };

static size_t keep_body(char *p, size_t size, size_t n, void *arg)
{
	struct reply *r = arg;
	char *grown;

	n *= size;
	if (n > REPLY_MAX - r->n || !(grown = realloc(r->s, r->n + n + 1)))
		return 0;
	r->s = grown;
	memcpy(r->s + r->n, p, n);
	r->n += n;
	r->s[r->n] = 0;
	return n;
}

int bench_fetch(const struct bench_options *o, const char *url, const char *body, char **out,
                char *err, size_t errlen)
{
	struct curl_slist *h = headers(o, body != NULL);
	struct reply reply = { calloc(1, 1), 0 };
	CURL *easy = curl_easy_init();
	CURLcode rc = CURLE_OUT_OF_MEMORY;
	long status = 0;

	if (easy && reply.s) {
		common(easy, o);
		curl_easy_setopt(easy, CURLOPT_URL, url);
		curl_easy_setopt(easy, CURLOPT_HTTPHEADER, h);
		curl_easy_setopt(easy, CURLOPT_TIMEOUT, 60L);
		curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, keep_body);
		curl_easy_setopt(easy, CURLOPT_WRITEDATA, &reply);
		if (body)
			curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body);
		rc = curl_easy_perform(easy);
		curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
	}
	curl_easy_cleanup(easy);
	curl_slist_free_all(h);
	*out = reply.s;
	if (rc == CURLE_OK)
		return (int)status;
	snprintf(err, errlen, "%s: %s", url, curl_easy_strerror(rc));
	free(reply.s);
	*out = NULL;
	return rc == CURLE_COULDNT_CONNECT ? -ECONNREFUSED : -EIO;
}

/* ---- one streamed answer ----------------------------------------------------------------------- */

static int event(void *arg, const struct sse_event *e)
{
	struct transfer *t = arg;
	struct bench_answer *a = t->a;

	if (e->error) {
		size_t n = e->n_error < sizeof(t->note) - 1 ? e->n_error : sizeof(t->note) - 1;

		t->n_note = sse_unescape(e->error, n, t->note);
		t->note[t->n_note] = 0;
		return -EREMOTEIO;
	}
	if (e->choices) {
		bench_chunk(t->h->r, a, t->now);
		return e->text ? bench_text(a, e->text, e->n_text) : 0;
	}
	if (e->n_output >= 0) {
		a->n_output = (uint32_t)e->n_output;
		t->counted = e->n_output > 0;
	}
	if (e->n_prompt >= 0)
		a->n_input = (uint32_t)e->n_prompt;
	return 0;
}

static size_t receive_events(char *p, size_t size, size_t n, void *arg)
{
	struct transfer *t = arg;
	long status = 0;

	n *= size;
	t->now = bench_now();
	curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
	if (status != 200) {
		size_t some = sizeof(t->note) - 1 - t->n_note;

		some = n < some ? n : some;
		memcpy(t->note + t->n_note, p, some);
		t->n_note += some;
		t->note[t->n_note] = 0;
		return n;
	}
	t->broken = sse_feed(&t->sse, p, n, event, t);
	return t->broken ? 0 : n;
}

/* The sentence inside an error body, or the body. */
static void explain(struct transfer *t, long status, char *out, size_t n)
{
	struct sse_event e;

	if (!sse_scan(t->note, t->n_note, &e) && e.error)
		snprintf(out, n, "HTTP %ld: %.*s", status, (int)e.n_error, e.error);
	else
		snprintf(out, n, "HTTP %ld%s%.200s", status, t->n_note ? ": " : "", t->n_note ? t->note : "");
}

static void transfer_end(struct transfer *t, CURLcode rc)
{
	struct bench_run *r = t->h->r;
	struct bench_answer *a = t->a;
	char why[300] = "";
	long status = 0;

	curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
	if (rc == CURLE_OK && status == 200)
		t->broken = sse_end(&t->sse, event, t);
	if (t->broken == -EREMOTEIO)
		snprintf(why, sizeof(why), "the server closed the connection: %.200s", t->note);
	else if (t->broken)
		snprintf(why, sizeof(why), "a line of the stream is not an event with a JSON object");
	else if (rc != CURLE_OK)
		snprintf(why, sizeof(why), "%s", curl_easy_strerror(rc));
	else if (status != 200)
		explain(t, status, why, sizeof(why));
	else if (!a->n_chunks)
		snprintf(why, sizeof(why), "the answer was not a stream of tokens");
	else if (!t->counted && r->text) {
		int64_t n = sr_text_encode(r->text, a->text ? a->text : "", a->n_text, SR_TEXT_SPECIAL_PARSE,
		                           NULL, 0, 0);

		a->n_output = n > 0 ? (uint32_t)n : 0;
	} else if (!t->counted) {
		a->n_output = 1;              /* as in vLLM without a tokenizer */
	}
	bench_done(r, a, *why ? why : NULL);
}

/* ---- the wire ---------------------------------------------------------------------------------- */

static int socket_watch(CURL *easy, curl_socket_t fd, int what, void *arg, void *known)
{
	struct http *h = arg;
	struct epoll_event e = { .data.fd = fd };

	(void)easy;
	if (what == CURL_POLL_REMOVE) {
		epoll_ctl(h->epoll, EPOLL_CTL_DEL, fd, NULL);
		curl_multi_assign(h->multi, fd, NULL);
		return 0;
	}
	e.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
	if (epoll_ctl(h->epoll, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &e) && errno == EEXIST)
		epoll_ctl(h->epoll, EPOLL_CTL_MOD, fd, &e);
	curl_multi_assign(h->multi, fd, h);
	return 0;
}

static int timer(CURLM *multi, long ms, void *arg)
{
	struct http *h = arg;

	(void)multi;
	h->timer = ms < 0 ? INFINITY : bench_now() + (double)ms * 1e-3;
	return 0;
}

static void http_close(void *wire)
{
	struct http *h = wire;

	for (size_t i = 0; i < h->n_every; i++) {
		struct transfer *t = h->every[i];

		if (t->a)
			curl_multi_remove_handle(h->multi, t->easy);
		curl_easy_cleanup(t->easy);
		curl_slist_free_all(t->headers);
		free(t->body);
		sse_free(&t->sse);
		free(t);
	}
	free(h->every);
	if (h->multi)
		curl_multi_cleanup(h->multi);
	if (h->epoll >= 0)
		close(h->epoll);
	free(h->frame[0]);
	free(h->frame[1]);
	free(h);
}

static int http_open(void **wire, struct bench_run *r, char *err, size_t errlen)
{
	struct http *h = calloc(1, sizeof(*h));
	struct rlimit files;
	bool framed;

	if (!h)
		return refuse(-ENOMEM, err, errlen, "no memory");
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	h->r = r;
	h->timer = INFINITY;
	h->epoll = epoll_create1(EPOLL_CLOEXEC);
	h->multi = curl_multi_init();
	h->frame[0] = make_frame(r, false, err, errlen);
	h->frame[1] = r->o->schema && h->frame[0] ? make_frame(r, true, err, errlen) : NULL;
	framed = h->frame[0] && (h->frame[1] || !r->o->schema);
	if (h->epoll < 0 || !h->multi || !framed) {
		if (framed)
			snprintf(err, errlen, "no memory for connections");
		http_close(h);
		return -ENOMEM;
	}
	curl_multi_setopt(h->multi, CURLMOPT_SOCKETFUNCTION, socket_watch);
	curl_multi_setopt(h->multi, CURLMOPT_SOCKETDATA, h);
	curl_multi_setopt(h->multi, CURLMOPT_TIMERFUNCTION, timer);
	curl_multi_setopt(h->multi, CURLMOPT_TIMERDATA, h);
	curl_multi_setopt(h->multi, CURLMOPT_MAXCONNECTS, 1L << 16);
	*wire = h;
	return 0;
}

static struct transfer *new_transfer(struct http *h)
{
	struct transfer *t = calloc(1, sizeof(*t));

	if (h->n_every == h->cap_every) {
		size_t cap = h->cap_every ? h->cap_every * 2 : 64;
		struct transfer **grown = realloc(h->every, cap * sizeof(*grown));

		if (!grown) {
			free(t);
			return NULL;
		}
		h->every = grown;
		h->cap_every = cap;
	}
	if (!t || !(t->easy = curl_easy_init())) {
		free(t);
		return NULL;
	}
	t->h = h;
	common(t->easy, h->r->o);
	curl_easy_setopt(t->easy, CURLOPT_URL, h->r->url);
	curl_easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, receive_events);
	curl_easy_setopt(t->easy, CURLOPT_WRITEDATA, t);
	curl_easy_setopt(t->easy, CURLOPT_PRIVATE, t);
	curl_easy_setopt(t->easy, CURLOPT_TIMEOUT, (long)TIMEOUT_S);
	return h->every[h->n_every++] = t;
}

static int http_send(void *wire, size_t i)
{
	struct http *h = wire;
	struct transfer *t = h->idle;
	double start = bench_now();  /* as in vLLM: before the request is written */
	char id[300];

	if (t)
		h->idle = t->next;
	else if (!(t = new_transfer(h)))
		return -ENOMEM;
	t->a = &h->r->answer[i];
	t->counted = false;
	t->broken = 0;
	t->n_note = 0;
	t->note[0] = 0;
	t->sse.n = 0;
	t->body = make_body(h->r, h->frame[bench_structured(h->r->o, i)], i);
	snprintf(id, sizeof(id), "x-request-id: %.200s%zu", h->r->o->id_prefix, i);
	t->headers = curl_slist_append(headers(h->r->o, true), id);
	if (!t->body || !t->headers)
		return -ENOMEM;
	curl_easy_setopt(t->easy, CURLOPT_POSTFIELDS, t->body);
	curl_easy_setopt(t->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(t->body));
	curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->headers);
	t->a->start = t->a->last = start;
	return curl_multi_add_handle(h->multi, t->easy) == CURLM_OK ? 0 : -EIO;
}

static void collect_ended(struct http *h)
{
	struct transfer *t;
	CURLMsg *m;
	int left;

	while ((m = curl_multi_info_read(h->multi, &left))) {
		if (m->msg != CURLMSG_DONE)
			continue;
		curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&t);
		transfer_end(t, m->data.result);
		curl_multi_remove_handle(h->multi, t->easy);
		curl_slist_free_all(t->headers);
		free(t->body);
		t->headers = NULL;
		t->body = NULL;
		t->a = NULL;
		t->next = h->idle;
		h->idle = t;
	}
}

static int http_turn(void *wire, double until)
{
	struct http *h = wire;
	struct epoll_event e[EVENTS];
	struct pollfd sleeper = { .fd = h->epoll, .events = POLLIN };
	double wait = (h->timer < until ? h->timer : until) - bench_now();
	struct timespec ts = { 0, 0 };
	int n, running;

	/* ppoll, because epoll_wait's timeout is in milliseconds */
	if (wait > 0) {
		ts.tv_sec = (time_t)wait;
		ts.tv_nsec = (long)((wait - (double)ts.tv_sec) * 1e9);
		ppoll(&sleeper, 1, &ts, NULL);
	}
	n = epoll_wait(h->epoll, e, EVENTS, 0);
	for (int i = 0; i < n; i++) {
		int in = e[i].events & (EPOLLIN | EPOLLHUP) ? CURL_CSELECT_IN : 0;
		int out = e[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0;
		int bad = e[i].events & EPOLLERR ? CURL_CSELECT_ERR : 0;

		curl_multi_socket_action(h->multi, e[i].data.fd, in | out | bad, &running);
	}
	if (bench_now() >= h->timer) {
		h->timer = INFINITY;
		curl_multi_socket_action(h->multi, CURL_SOCKET_TIMEOUT, 0, &running);
	}
	collect_ended(h);
	return 0;
}

const struct bench_wire bench_wire_http = { http_open, http_send, http_turn, http_close };
