/* connect.c - slipring connect: what a program must be told to use a server of ours; printed, written into
 * the program's own settings, taken out again, or given to the program as it starts.
 *
 * The server is asked first: its model, its context, whether it has the API and the model knows tools. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <curl/curl.h>

#include "connect.h"
#include "core/instance/refuse.h"
#include "tools/commands.h"

#define REPLY_MAX (1u << 20)
#define SHORT     32768 /* tokens of context below which an agent soon forgets */
#define WORDS_MAX 64

struct connect {
	const struct program *p;
	struct target t;
	const char *url, *model;
	bool write, undo, run;
	char **more; /* words for the program, behind -- */
	int n_more;
	char err[1024];
};

static int connect_usage(void)
{
	printf(
		"usage: slipring connect PROGRAM [--write | --undo | --run [-- WORDS]] [--url URL] [--model M]\n"
		"                        [--api-key K]\n"
		"\n"
		"Shows what a program must be told to use a Slipring server.\n"
		"\n");
	for (int i = 0; i < N_PROGRAMS; i++)
		printf("  %-10s   %s%s%s\n", programs[i].name, programs[i].title, programs[i].file ? ": ~/" : "",
		       programs[i].file ? programs[i].file : "");
	printf("\n"
	       "  --write      put it into the program's settings; the old file stays beside it\n"
	       "  --undo       take it out again\n"
	       "  --run        start the program with it, and change no file; WORDS are passed on\n"
	       "  --url        the server; default http://127.0.0.1:8000\n"
	       "  --model      default: the first that the server has\n"
	       "  --api-key    default: SLIPRING_API_KEY or VLLM_API_KEY, as slipring-http has it\n");
	return 0;
}

static int failed(const struct connect *c)
{
	fprintf(stderr, "slipring connect: %s\n", c->err);
	return 1;
}

/* ---- the server ------------------------------------------------------------------------------------ */

struct reply {
	char *s;
	size_t n;
};

static size_t take(char *data, size_t one, size_t n, void *ctx)
{
	struct reply *r = ctx;
	char *s;

	n *= one;
	if (n > REPLY_MAX - r->n || !(s = realloc(r->s, r->n + n + 1)))
		return CURL_WRITEFUNC_ERROR;
	memcpy(s + r->n, data, n);
	r->s = s;
	r->n += n;
	s[r->n] = 0;
	return n;
}

/* The status, 0 if no answer came (then c->err says why); the answer as JSON, or NULL. */
static long ask(struct connect *c, const char *path, const char *body, json_t **out)
{
	struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
	struct reply r = { 0 };
	CURL *curl = curl_easy_init();
	char url[512], auth[600];
	long status = 0;
	CURLcode rc;

	*out = NULL;
	snprintf(url, sizeof(url), "%s%s", c->t.base, path);
	snprintf(auth, sizeof(auth), "Authorization: Bearer %s", c->t.key);
	headers = curl_slist_append(headers, auth);
	curl_easy_setopt(curl, CURLOPT_URL, url);
	curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
	curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(curl, CURLOPT_TIMEOUT, 30L);
	curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
	curl_easy_setopt(curl, CURLOPT_WRITEDATA, &r);
	if (body)
		curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
	rc = curl_easy_perform(curl);
	curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
	if (rc != CURLE_OK) {
		refuse(-EIO, c->err, sizeof(c->err),
		       "%s: %s; start a server with slipring serve, or name it with --url", url,
		       curl_easy_strerror(rc));
		status = 0;
	} else {
		*out = json_loads(r.s ? r.s : "", 0, NULL);
	}
	free(r.s);
	curl_slist_free_all(headers);
	curl_easy_cleanup(curl);
	return status;
}

static int take_model(struct connect *c, const json_t *list)
{
	const json_t *all = json_object_get(list, "data"), *m;
	size_t i;

	json_array_foreach(all, i, m)
	{
		const char *id = json_string_value(json_object_get(m, "id"));

		if (!id || strlen(id) >= sizeof(c->t.model) || (c->model && strcmp(c->model, id)))
			continue;
		snprintf(c->t.model, sizeof(c->t.model), "%s", id);
		c->t.context = json_integer_value(json_object_get(m, "max_model_len"));
		return 0;
	}
	return refuse(-ENOENT, c->err, sizeof(c->err), c->model ? "%s has no model %s" : "%s lists no model",
	              c->t.base, c->model);
}

static int ask_models(struct connect *c)
{
	json_t *list;
	long status = ask(c, "/v1/models", NULL, &list);
	int rc = status == 200 ? take_model(c, list) : -EIO;

	json_decref(list);
	if (status == 401)
		return refuse(-EACCES, c->err, sizeof(c->err),
		              "%s wants an API key: give it with --api-key or in SLIPRING_API_KEY", c->t.base);
	if (status && status != 200)
		return refuse(-EIO, c->err, sizeof(c->err),
		              "%s/v1/models answered HTTP %ld: it is no server of this kind", c->t.base, status);
	return rc;
}

/* What will not work, a line each on standard error. */
static void warn(struct connect *c)
{
	static const char *const path[] = { NULL, "/v1/responses", "/v1/messages" };
	json_t *answer, *ask_tools;
	char *body;

	if (path[c->p->api] && ask(c, path[c->p->api], "{}", &answer) == 404)
		fprintf(stderr, "Warning: %s speaks %s, which this server does not have.\n", c->p->title,
		        path[c->p->api]);
	if (path[c->p->api])
		json_decref(answer);
	if (c->t.context && c->t.context < SHORT)
		fprintf(
			stderr,
			"Warning: the context has %lld tokens; agents fill %d with their own instructions and tools.\n",
			c->t.context, SHORT);
	if (!strcmp(c->p->name, "env") || !strcmp(c->p->name, "openwebui"))
		return;
	ask_tools = json_pack("{s:s, s:[{s:s, s:s}], s:i, s:[{s:s, s:{s:s, s:{s:s}}}]}", "model", c->t.model,
	                      "messages", "role", "user", "content", "Hi", "max_tokens", 1, "tools", "type",
	                      "function", "function", "name", "look", "parameters", "type", "object");
	body = json_dumps(ask_tools, 0);
	if (ask(c, "/v1/chat/completions", body ? body : "{}", &answer) == 400) {
		const char *says = json_string_value(json_object_get(json_object_get(answer, "error"), "message"));

		fprintf(stderr, "Warning: the model gets no tools: %s\n", says ? says : "the server refuses them");
	}
	json_decref(answer);
	free(body);
	json_decref(ask_tools);
}

/* ---- print, run ------------------------------------------------------------------------------------ */

/* For a shell: in single quotes. */
static void print_quoted(const char *s)
{
	putchar('\'');
	for (; *s; s++)
		*s == '\'' ? fputs("'\\''", stdout) : putchar(*s);
	putchar('\'');
}

static void print_env(const struct connect *c)
{
	for (int i = 0; c->p->env[i]; i++) {
		const char *is = strchr(c->p->env[i], '=');
		char *value = connect_fill(&c->t, is + 1, NULL);

		printf("export %.*s=", (int)(is - c->p->env[i]), c->p->env[i]);
		print_quoted(value ? value : "");
		putchar('\n');
		free(value);
	}
}

static void print_all(const struct connect *c)
{
	const struct program *p = c->p;
	char *text = NULL;

	print_env(c);
	if (p->file && connect_is_json(p) && p->lines) {
		json_t *j = connect_tree(&c->t, p);

		text = json_dumps(j, JSON_INDENT(2));
		json_decref(j);
	} else if (p->lines || p->fill) {
		text = connect_fill(&c->t, p->lines ? p->lines : p->fill, p->lines ? "\"\\" : NULL);
	}
	if (text && p->file)
		printf("%s# in ~/%s:\n", *p->env ? "\n" : "", p->file);
	if (text)
		printf("%s%s", text, text[strlen(text) - 1] == '\n' ? "" : "\n");
	free(text);
	if (p->file)
		fprintf(stderr, "slipring connect %s --write puts it there%s.\n", p->name,
		        p->command ? "; --run starts the program with it" : "");
}

static int run(struct connect *c)
{
	char *word[WORDS_MAX + 2];
	int n = 0;

	for (int i = 0; c->p->env[i]; i++) {
		char *both = connect_fill(&c->t, c->p->env[i], NULL);

		if (both)
			putenv(both); /* it stays the environment's */
	}
	word[n++] = (char *)c->p->command;
	for (int i = 0; c->p->word[i]; i++)
		word[n++] = connect_fill(&c->t, c->p->word[i], NULL);
	if (c->p->settings) {
		json_t *j = connect_tree(&c->t, c->p);

		word[n++] = (char *)c->p->settings;
		word[n++] = json_dumps(j, JSON_COMPACT);
		json_decref(j);
	}
	for (int i = 0; i < c->n_more && n < WORDS_MAX; i++)
		word[n++] = c->more[i];
	word[n] = NULL;
	execvp(c->p->command, word);
	return refuse(-errno, c->err, sizeof(c->err), "%s cannot be started: %s", c->p->command, strerror(errno));
}

static int change_file(struct connect *c)
{
	const char *home = getenv("HOME");
	char path[3000];
	int rc;

	if (!home || *home != '/' ||
	    (size_t)snprintf(path, sizeof(path), "%s/%s", home, c->p->file) >= sizeof(path))
		return refuse(-ENOENT, c->err, sizeof(c->err), "HOME says no folder where %s has its settings",
		              c->p->title);
	rc = c->undo ? settings_undo(path, c->p, &c->t, c->err, sizeof(c->err))
	             : settings_write(path, c->p, &c->t, c->err, sizeof(c->err));
	if (!rc && c->undo)
		printf("%s: what slipring connect put there is gone.\n", path);
	else if (!rc) {
		char *use = c->p->use ? connect_fill(&c->t, c->p->use, NULL) : NULL;

		printf("%s now names %s at %s; slipring connect %s --undo takes it out again.\n", path, c->t.model,
		       c->t.base, c->p->name);
		if (use)
			printf("%s uses it with:\n  %s\n", c->p->title, use);
		free(use);
	}
	return rc;
}

/* ---- the command ----------------------------------------------------------------------------------- */

static int find_program(struct connect *c, const char *name)
{
	for (int i = 0; i < N_PROGRAMS; i++)
		if (!strcmp(programs[i].name, name))
			c->p = &programs[i];
	return c->p ? 0 : -ENOENT;
}

static int read_words(struct connect *c, int argc, char **argv)
{
	const char *key = getenv("SLIPRING_API_KEY");
	int n_names = 0;

	if (!key || !*key)
		key = getenv("VLLM_API_KEY");
	for (int i = 1; i < argc; i++) {
		bool value = i + 1 < argc && *argv[i + 1];

		if (!strcmp(argv[i], "--write"))
			c->write = true;
		else if (!strcmp(argv[i], "--undo"))
			c->undo = true;
		else if (!strcmp(argv[i], "--run"))
			c->run = true;
		else if (!strcmp(argv[i], "--url") && value)
			c->url = argv[++i];
		else if (!strcmp(argv[i], "--model") && value)
			c->model = argv[++i];
		else if (!strcmp(argv[i], "--api-key") && value)
			key = argv[++i];
		else if (!strcmp(argv[i], "--") && c->run) {
			c->more = argv + i + 1;
			c->n_more = argc - i - 1;
			break;
		} else if (*argv[i] != '-' && !c->p && find_program(c, argv[i])) {
			fprintf(stderr, "slipring connect: %s is no program that is known here; these are:", argv[i]);
			for (int k = 0; k < N_PROGRAMS; k++)
				fprintf(stderr, " %s", programs[k].name);
			fprintf(stderr, ".  \"slipring connect env\" shows what most others need\n");
			return 2;
		} else if (*argv[i] == '-' || n_names++)
			return command_wrong("connect", argv, i, i);
	}
	snprintf(c->t.key, sizeof(c->t.key), "%s", key && *key ? key : "none");
	return 0;
}

/* 0, or the exit code of wrong usage. */
static int check_words(struct connect *c)
{
	const char *url = c->url ? c->url : "http://127.0.0.1:8000";
	size_t n = strlen(url);

	while (n && url[n - 1] == '/')
		n--;
	if (n >= 3 && !strncmp(url + n - 3, "/v1", 3))
		n -= 3;
	snprintf(c->t.base, sizeof(c->t.base), "%.*s", (int)n, url);
	if (!c->p)
		return connect_usage(), 2;
	if (c->write + c->undo + c->run > 1 || (strncmp(url, "http://", 7) && strncmp(url, "https://", 8)) ||
	    n >= sizeof(c->t.base))
		return fprintf(
				   stderr,
				   "slipring connect: choose one of --write, --undo and --run; a URL begins with http:// or "
				   "https://\n"),
		       2;
	if (((c->write || c->undo) && !c->p->file) || (c->run && !c->p->command))
		return fprintf(stderr,
		               "slipring connect: %s is not set up by %s: use what slipring connect %s prints\n",
		               c->p->title, c->run ? "starting a command" : "a file that can be changed here",
		               c->p->name),
		       2;
	return 0;
}

int cmd_connect(int argc, char **argv)
{
	struct connect c = { .p = NULL };
	int rc;

	if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")))
		return connect_usage();
	rc = read_words(&c, argc, argv);
	if (!rc)
		rc = check_words(&c);
	if (rc)
		return rc;
	curl_global_init(CURL_GLOBAL_DEFAULT);
	if (!c.undo)
		rc = ask_models(&c);
	if (!rc && !c.undo)
		warn(&c);
	if (!rc)
		rc = c.run ? run(&c) : c.write || c.undo ? change_file(&c) : (print_all(&c), 0);
	curl_global_cleanup();
	return rc ? failed(&c) : 0;
}
