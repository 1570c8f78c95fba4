/* batch.c - slipring batch: answers a file of requests, each line one, in OpenAI's form.
 *
 * The requests go to a slipring-http of our own, which asks the daemon over the rings; or to a server that
 * is named.  So a line can say all that a request over HTTP can, and gets the same answer.  One thread. */
#include "batch.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <curl/curl.h>

#include "core/instance/refuse.h"
#include "core/models/locate.h"
#include "shmring/clock.h"
#include "tools/commands.h"
#include "tools/instance.h"
#include "tools/serve_at.h"

#define AT_ONCE   256
#define AT_MOST   4096
#define TRIES     20               /* of a request that is told to come again, or whose server is gone */
#define WAIT_NS   1000000000ull    /* before the next, if the server does not say */
#define WAIT_MOST 30               /* s, whatever it says */
#define REPLY_MAX (1ull << 30)
#define SHOW_NS   1000000000ull

struct job {
	struct line q;
	CURL *easy;                        /* kept, with its connection, for the next line */
	struct curl_slist *headers;
	char *reply;
	size_t n, cap;
	int tries;
	uint64_t again_at;                 /* 0, or it waits until then */
	bool busy;
};

struct batch {
	const char *url, *key, *instance, *port, *model;
	bool json, afresh, quiet;
	struct lines lines;
	struct private_server server;
	CURLM *multi;
	char key_line[600];                /* "" or the header with the key */
	struct job *job;
	int n_jobs, n_busy;
	bool ended;                        /* no line is left */
	uint64_t begin, shown, answered, failed, wrong;
	uint64_t prompt_tokens, tokens;
	char err[1200];
};

static volatile sig_atomic_t batch_stopped;

static void on_stop(int sig)
{
	(void)sig;
	batch_stopped = 1;
}

static int batch_usage(FILE *to)
{
	fprintf(to, "slipring batch [OPTIONS] IN.jsonl OUT.jsonl [-- WORDS]\n"
	        "\n"
	        "Answers a file of requests.  Each line is one, in OpenAI's form:\n"
	        "  {\"custom_id\": \"1\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", "
	        "\"body\": {..}}\n"
	        "Each answer is a line of OUT.jsonl, as they end; custom_id says whose it is.\n"
	        "A line that is wrong gets an error of its own, and the others go on.  Lines that OUT.jsonl has\n"
	        "already are not asked again: run the same command to go on after an interruption.\n"
	        "\n"
	        "Requests go over the rings to the daemon of this machine, through a slipring-http of the\n"
	        "batch's own; WORDS are for its command line.\n"
	        "\n"
	        "  --concurrency N  requests at once (default: %d)\n"
	        "  --instance NAME  which daemon (default: \"default\")\n"
	        "  --port N         the daemon that \"slipring serve --port N\" runs\n"
	        "  --model MODEL    its file or directory, for the tokenizer (default: as the daemon says)\n"
	        "  --url URL        ask this server instead, such as http://127.0.0.1:8000\n"
	        "  --api-key KEY    its key (default: SLIPRING_API_KEY or VLLM_API_KEY)\n"
	        "  --overwrite      begin anew, whatever OUT.jsonl has\n"
	        "  --json           print one object at the end, for programs\n"
	        "  --quiet          show no progress\n", AT_ONCE);
	return to == stdout ? 0 : 2;
}

/* ---- one request ---- */

static size_t on_bytes(char *p, size_t size, size_t n, void *arg)
{
	struct job *j = arg;
	size_t cap = j->cap ? j->cap : 4096;
	char *to;

	(void)size;
	if (n > REPLY_MAX - j->n)
		return 0;
	while (cap < j->n + n)
		cap *= 2;
	if (cap != j->cap) {
		to = realloc(j->reply, cap);
		if (!to)
			return 0;
		j->reply = to;
		j->cap = cap;
	}
	memcpy(j->reply + j->n, p, n);
	j->n += n;
	return n;
}

/* Its id is the answer's request_id, so that slipring why knows it. */
static bool add_headers(struct batch *b, struct job *j)
{
	const char *const fixed[] = { "Content-Type: application/json", "Expect:", b->key_line };
	struct curl_slist *more;
	char id[80];

	snprintf(id, sizeof(id), "X-Request-Id: batch-%s-%llu", b->lines.run, (unsigned long long)j->q.number);
	curl_slist_free_all(j->headers);
	j->headers = curl_slist_append(NULL, id);
	for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]) && j->headers; i++) {
		more = *fixed[i] ? curl_slist_append(j->headers, fixed[i]) : j->headers;
		if (!more)
			return false;
		j->headers = more;
	}
	return j->headers != NULL;
}

static int send_job(struct batch *b, struct job *j)
{
	char *at = NULL;
	int r = -ENOMEM;

	j->n = 0;
	j->again_at = 0;
	if (!j->easy)
		j->easy = curl_easy_init();
	if (j->easy && add_headers(b, j) &&
	    asprintf(&at, "%s%s", b->url ? b->url : "http://localhost", j->q.path) >= 0) {
		curl_easy_setopt(j->easy, CURLOPT_URL, at);
		if (!b->url)
			curl_easy_setopt(j->easy, CURLOPT_UNIX_SOCKET_PATH, b->server.socket);
		curl_easy_setopt(j->easy, CURLOPT_PROXY, "");
		curl_easy_setopt(j->easy, CURLOPT_PATH_AS_IS, 1L);
		curl_easy_setopt(j->easy, CURLOPT_HTTPHEADER, j->headers);
		curl_easy_setopt(j->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)j->q.n_body);
		curl_easy_setopt(j->easy, CURLOPT_POSTFIELDS, j->q.body);
		curl_easy_setopt(j->easy, CURLOPT_WRITEFUNCTION, on_bytes);
		curl_easy_setopt(j->easy, CURLOPT_WRITEDATA, j);
		curl_easy_setopt(j->easy, CURLOPT_PRIVATE, j);
		curl_easy_setopt(j->easy, CURLOPT_NOSIGNAL, 1L);
		r = curl_multi_add_handle(b->multi, j->easy) == CURLM_OK ? 0 : -ENOMEM;
	}
	free(at);
	return r;
}

static void job_over(struct batch *b, struct job *j)
{
	line_free(&j->q);
	j->tries = 0;
	j->busy = false;
	b->n_busy--;
}

/* Tokens of an answer, as both of OpenAI's forms and Anthropic's say them. */
static void count_usage(struct batch *b, json_t *body)
{
	static const char *const name[2][2] = { { "prompt_tokens", "input_tokens" },
	                                        { "completion_tokens", "output_tokens" } };
	json_t *usage = json_object_get(body, "usage");

	for (int i = 0; i < 2; i++) {
		b->prompt_tokens += (uint64_t)json_integer_value(json_object_get(usage, name[0][i]));
		b->tokens += (uint64_t)json_integer_value(json_object_get(usage, name[1][i]));
	}
}

/* A request that is to be sent again, after what the server says, or a second. */
static bool tries_again(struct job *j, CURLcode rc, long status)
{
	curl_off_t after = 0;

	if (rc == CURLE_OK && status != 503 && status != 429)
		return false;
	if (rc == CURLE_WRITE_ERROR || ++j->tries >= TRIES)
		return false;
	if (rc == CURLE_OK)
		curl_easy_getinfo(j->easy, CURLINFO_RETRY_AFTER, &after);
	after = after > WAIT_MOST ? WAIT_MOST : after;
	j->again_at = sr_now() + (after > 0 ? (uint64_t)after * 1000000000u : WAIT_NS);
	return true;
}

static int job_ends(struct batch *b, struct job *j, CURLcode rc)
{
	long status = 0;
	json_t *body;
	int r;

	curl_easy_getinfo(j->easy, CURLINFO_RESPONSE_CODE, &status);
	curl_multi_remove_handle(b->multi, j->easy);
	if (tries_again(j, rc, status))
		return 0;
	if (rc != CURLE_OK) {
		b->failed++;
		r = lines_error(&b->lines, j->q.custom_id, j->q.number, "no_answer", curl_easy_strerror(rc));
	} else {
		body = json_loadb(j->reply ? j->reply : "", j->n, JSON_DECODE_ANY, NULL);
		if (status == 200)
			b->answered++, count_usage(b, body);
		else
			b->failed++;
		r = lines_answer(&b->lines, &j->q, status, j->reply ? j->reply : "", j->n, body != NULL);
		json_decref(body);
	}
	job_over(b, j);
	return r;
}

/* ---- all of them ---- */

/* Give each free job a line.  0 or -errno. */
static int fill_jobs(struct batch *b)
{
	for (struct job *j = b->job; j < b->job + b->n_jobs && !b->ended && !batch_stopped; j++) {
		int r = -EINVAL;

		if (j->busy)
			continue;
		while (r == -EINVAL && !batch_stopped) {
			r = lines_next(&b->lines, &j->q);
			b->wrong += r == -EINVAL;
		}
		b->ended = r == 0;
		if (r < 0 && r != -EINVAL)
			return r;
		if (r <= 0)
			break;
		j->busy = true;
		b->n_busy++;
		if ((r = send_job(b, j)) < 0)
			return r;
	}
	return 0;
}

static int send_waiting(struct batch *b)
{
	const uint64_t now = sr_now();
	int r = 0;

	for (struct job *j = b->job; r == 0 && j < b->job + b->n_jobs; j++)
		if (j->busy && j->again_at && j->again_at <= now)
			r = send_job(b, j);
	return r;
}

static int take_ended(struct batch *b)
{
	struct CURLMsg *m;
	struct job *j;
	int left, r = 0;

	while (r == 0 && (m = curl_multi_info_read(b->multi, &left)))
		if (m->msg == CURLMSG_DONE) {
			CURLcode rc = m->data.result;

			curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&j);
			r = job_ends(b, j, rc);
		}
	return r;
}

static void show(struct batch *b, bool last)
{
	const uint64_t now = sr_now(), n = b->answered + b->failed + b->wrong;
	const double s = (double)(now - b->begin) / 1e9;

	if (b->quiet || (!last && now - b->shown < (isatty(STDERR_FILENO) ? SHOW_NS : 10 * SHOW_NS)))
		return;
	b->shown = now;
	fprintf(stderr, "%s%llu answered, %llu failed, %d under way; %.1f requests/s, %.0f tokens/s%s",
	        isatty(STDERR_FILENO) ? "\r" : "", (unsigned long long)b->answered,
	        (unsigned long long)(b->failed + b->wrong), b->n_busy, s > 0 ? (double)n / s : 0,
	        s > 0 ? (double)b->tokens / s : 0, last || !isatty(STDERR_FILENO) ? "\n" : "   ");
}

static int run_all(struct batch *b)
{
	int running, r = 0;

	b->begin = b->shown = sr_now();
	while (r == 0 && !batch_stopped && (b->n_busy || !b->ended)) {
		if (!b->ended && (r = fill_jobs(b)) < 0)
			break;
		if ((r = send_waiting(b)) < 0)
			break;
		curl_multi_perform(b->multi, &running);
		if ((r = take_ended(b)) < 0)
			break;
		show(b, false);
		if (!b->url && !private_alive(&b->server))
			return refuse(-ECHILD, b->err, sizeof(b->err), "the slipring-http of this batch has ended");
		if (b->n_busy)
			curl_multi_poll(b->multi, NULL, 0, 100, NULL);
	}
	if (r < 0)
		refuse(r, b->err, sizeof(b->err), "%s: %s", b->lines.out_name, strerror(-r));
	else
		show(b, true);
	return r;
}

/* ---- start and end ---- */

/* The model that the daemon says it serves, into *out; NULL: the default one.  The page's owner chose that
 * path, so it is opened only if the owner is us or root.  0, or -errno and a sentence. */
static int model_of(struct batch *b, const struct instance *in, const char **out)
{
	const struct stats_page *page = in->page;
	const uid_t owner = stats_owner(page);
	const char *slash = strrchr(page->model_path, '/');

	*out = b->model ? b->model : page->model_path;
	if (b->model || ((owner == 0 || owner == geteuid()) && slash))
		return 0;
	*out = NULL;
	if (slash && !strcmp(slash + 1, LOCATE_DEFAULT))
		return 0;
	return refuse(-EPERM, b->err, sizeof(b->err), "%s/stats names the model %s, but that page belongs to "
	              "uid %u, which is neither yours nor root's and could name any file: name the model with "
	              "--model", in->dir, page->model_path, (unsigned)owner);
}

/* Start a slipring-http that answers to the names of the daemon's own; WORDS come last, and so win. */
static int open_private(struct batch *b, char *const *words, int n_words)
{
	char name[STATS_NAMES][256 + sizeof("--served-model-name=")];
	struct private_words w = { .n = 0 };
	struct instance in = { .page = NULL };
	const char *model;
	bool room = true;
	int r;

	if (b->port && !(b->instance = serve_found("batch", b->port)))
		return -ENOENT;               /* and that has said why */
	r = instance_open(&in, "batch", b->instance);
	if (r < 0)
		return r;                     /* instance_open() has said why */
	r = model_of(b, &in, &model);
	if (b->instance)
		room = private_word(&w, "--instance") && private_word(&w, b->instance);
	if (model)
		room = room && private_word(&w, "--model") && private_word(&w, model);
	for (int i = 0; i < STATS_NAMES; i++)
		if (*in.page->served[i]) {
			snprintf(name[i], sizeof(name[i]), "--served-model-name=%s", in.page->served[i]);
			room = room && private_word(&w, name[i]);
		}
	for (int i = 0; i < n_words; i++)
		room = room && private_word(&w, words[i]);
	if (r == 0)
		r = room ? private_open(&b->server, &w, b->err, sizeof(b->err)) :
		           refuse(-E2BIG, b->err, sizeof(b->err), "more words after -- than fit");
	instance_close(&in);
	return r;
}

static int open_server(struct batch *b, char *const *words, int n_words)
{
	const char *key = b->key ? b->key : b->url ? getenv("SLIPRING_API_KEY") : NULL;
	int r = 0;

	if (b->url && !key)
		key = getenv("VLLM_API_KEY");
	if (key)
		snprintf(b->key_line, sizeof(b->key_line), "Authorization: Bearer %.500s", key);
	if (!b->url)
		r = open_private(b, words, n_words);
	b->multi = curl_multi_init();
	b->job = calloc((size_t)b->n_jobs, sizeof(*b->job));
	if (!b->multi || !b->job)
		return -ENOMEM;
	curl_multi_setopt(b->multi, CURLMOPT_MAXCONNECTS, (long)b->n_jobs);
	return r;
}

static void close_all(struct batch *b)
{
	for (struct job *j = b->job; b->job && j < b->job + b->n_jobs; j++) {
		if (j->easy) {
			curl_multi_remove_handle(b->multi, j->easy);
			curl_easy_cleanup(j->easy);
		}
		curl_slist_free_all(j->headers);
		line_free(&j->q);
		free(j->reply);
	}
	free(b->job);
	if (b->multi)
		curl_multi_cleanup(b->multi);
	private_close(&b->server);
	lines_close(&b->lines);
}

static void print_end(const struct batch *b)
{
	const double s = (double)(sr_now() - b->begin) / 1e9;
	json_t *j;

	if (!b->json)
		return;
	j = json_pack("{s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:b}", "answered", (json_int_t)b->answered, "failed",
	              (json_int_t)(b->failed + b->wrong), "wrong_lines", (json_int_t)b->wrong, "done_before",
	              (json_int_t)b->lines.n_done, "seconds", s, "prompt_tokens", (json_int_t)b->prompt_tokens,
	              "completion_tokens", (json_int_t)b->tokens, "complete", b->ended && !b->n_busy);
	json_dumpf(j, stdout, JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(j);
}

/* Where the value of an option goes, or NULL. */
static const char **batch_value(struct batch *b, const char *name)
{
	return !strcmp(name, "--instance") ? &b->instance : !strcmp(name, "--port") ? &b->port :
	       !strcmp(name, "--model") ? &b->model :
	       !strcmp(name, "--url") ? &b->url : !strcmp(name, "--api-key") ? &b->key : NULL;
}

static bool *batch_flag(struct batch *b, const char *name)
{
	return !strcmp(name, "--json") ? &b->json : !strcmp(name, "--overwrite") ? &b->afresh :
	       !strcmp(name, "--quiet") ? &b->quiet : NULL;
}

/* 0; else an exit code, with what was wrong on stderr.  *words: the index behind --, or argc. */
static int batch_options(struct batch *b, int argc, char **argv, const char *file[2], int *words)
{
	int n_files = 0, i;

	for (i = 1; i < argc && strcmp(argv[i], "--"); i++) {
		const char **to = batch_value(b, argv[i]);
		bool *flag = batch_flag(b, argv[i]);
		char *end;

		if (flag) {
			*flag = true;
		} else if (to && i + 1 < argc) {
			*to = argv[++i];
		} else if (!strcmp(argv[i], "--concurrency") && i + 1 < argc) {
			long n = strtol(argv[i + 1], &end, 10);

			if (*end || n < 1 || n > AT_MOST)
				return command_wrong("batch", argv, i, i + 1);
			b->n_jobs = (int)n;
			i++;
		} else if ((*argv[i] != '-' || !argv[i][1]) && n_files < 2) {
			file[n_files++] = argv[i];
		} else {
			return command_wrong("batch", argv, i, i);
		}
	}
	*words = i < argc ? i + 1 : argc;
	if (n_files == 2)
		return 0;
	fprintf(stderr, "slipring batch: name the file of requests and the file for the answers\n");
	return 2;
}

int cmd_batch(int argc, char **argv)
{
	struct batch b = { .n_jobs = AT_ONCE, .lines = { .out = -1 } };
	const char *file[2] = { NULL, NULL };
	int words, r;

	if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")))
		return batch_usage(stdout);
	if ((r = batch_options(&b, argc, argv, file, &words)))
		return r;
	signal(SIGPIPE, SIG_IGN);
	sigaction(SIGINT, &(struct sigaction){ .sa_handler = on_stop }, NULL);
	sigaction(SIGTERM, &(struct sigaction){ .sa_handler = on_stop }, NULL);
	r = lines_open(&b.lines, file[0], file[1], b.afresh, b.err, sizeof(b.err));
	if (r == 0 && b.lines.n_done && !b.quiet)
		fprintf(stderr, "%s has %llu answers already: the rest is asked\n", file[1],
		        (unsigned long long)b.lines.n_done);
	if (r == 0 && curl_global_init(CURL_GLOBAL_DEFAULT))
		r = -ENOMEM;
	if (r == 0)
		r = open_server(&b, argv + words, argc - words);
	if (r == 0) {
		r = run_all(&b);
		print_end(&b);
	}
	if (r < 0 && *b.err)
		fprintf(stderr, "slipring batch: %s\n", b.err);
	if (batch_stopped && r == 0)
		fprintf(stderr, "slipring batch: interrupted; the same command goes on\n");
	close_all(&b);
	return r < 0 ? 1 : batch_stopped ? 130 : b.failed + b.wrong > 0;
}
