/* keys.c - see keys.h.  The counts are the adapter's, so they are asked for over HTTP. */
#include "tools/live/keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <curl/curl.h>
#include <jansson.h>

#include "shmring/clock.h"

#define PAGE_MAX (16u << 20)

/* Families of /metrics, as members of a key and as columns. */
static const struct { const char *family, *member, *title; bool counts; } column[] = {
	{ "slipring_key_requests_total", "requests", "requests", true },
	{ "slipring_key_prompt_tokens_total", "prompt_tokens", "prompt tok", true },
	{ "slipring_key_cached_tokens_total", "cached_tokens", "cached", true },
	{ "slipring_key_generation_tokens_total", "generation_tokens", "answer tok", true },
	{ "slipring_key_running", "running", "running", false },
};
#define COLUMNS (int)(sizeof(column) / sizeof(column[0]))
static const char refused[] = "slipring_key_refused_total";

struct body { char *s; size_t n; };

static size_t take(char *data, size_t one, size_t n, void *ctx)
{
	struct body *b = ctx;
	char *s;

	n *= one;
	if (n > PAGE_MAX - b->n || !(s = realloc(b->s, b->n + n + 1)))
		return CURL_WRITEFUNC_ERROR;
	memcpy(s + b->n, data, n);
	b->s = s;
	b->n += n;
	s[b->n] = 0;
	return n;
}

/* The value of label `name` in {..}, as it stands there; its length, or 0. */
static size_t label_of(const char *labels, const char *name, const char **out)
{
	char key[40];
	const char *at;
	size_t n = 0;

	snprintf(key, sizeof(key), "%s=\"", name);
	at = strstr(labels, key);
	if (!at)
		return 0;
	at += strlen(key);
	while (at[n] && at[n] != '"')
		n += at[n] == '\\' && at[n + 1] ? 2 : 1;
	*out = at;
	return n;
}

/* The object of a key among all, made if it is new. */
static json_t *key_of(json_t *all, const char *labels)
{
	const char *s = "";
	size_t n = label_of(labels, "key", &s);
	char name[128];
	json_t *k;

	snprintf(name, sizeof(name), "%.*s", (int)n, s);
	k = json_object_get(all, name);
	if (!k && n && !json_object_set_new(all, name, k = json_pack("{s:s, s:{}}", "key", name, "refused")))
		return k;
	return k;
}

/* One line of the page: family{labels} value. */
static void read_line(json_t *all, const char *line)
{
	const char *brace = strchr(line, '{'), *end = strrchr(line, ' '), *s;
	size_t n = brace ? (size_t)(brace - line) : 0, m;
	char limit[32];
	json_t *k;

	if (!brace || !end || strncmp(line, "slipring_key_", 13) || !(k = key_of(all, brace)))
		return;
	for (int i = 0; i < COLUMNS; i++)
		if (strlen(column[i].family) == n && !memcmp(column[i].family, line, n))
			json_object_set_new(k, column[i].member, json_integer((json_int_t)strtod(end, NULL)));
	if (strlen(refused) == n && !memcmp(refused, line, n) && (m = label_of(brace, "limit", &s)) > 0) {
		snprintf(limit, sizeof(limit), "%.*s", (int)m, s);
		json_object_set_new(json_object_get(k, "refused"), limit,
		                    json_integer((json_int_t)strtod(end, NULL)));
	}
}

/* All keys of a server by name, or NULL after a message. */
static json_t *look(const struct keys_server *s)
{
	struct curl_slist *headers = NULL;
	struct body b = { 0 };
	CURL *curl = curl_easy_init();
	char at[600], auth[600];
	json_t *all = NULL;
	long status = 0;
	CURLcode rc;

	snprintf(at, sizeof(at), "%.500s/metrics", s->url);
	if (s->key) {
		snprintf(auth, sizeof(auth), "Authorization: Bearer %.500s", s->key);
		headers = curl_slist_append(NULL, auth);
	}
	curl_easy_setopt(curl, CURLOPT_URL, at);
	curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
	curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(curl, CURLOPT_TIMEOUT, 10L);
	curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
	curl_easy_setopt(curl, CURLOPT_WRITEDATA, &b);
	if (s->cacert)
		curl_easy_setopt(curl, CURLOPT_CAINFO, s->cacert);
	rc = curl_easy_perform(curl);
	curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
	curl_slist_free_all(headers);
	curl_easy_cleanup(curl);
	if (rc != CURLE_OK)
		fprintf(stderr, "slipring top: %s: %s; %s\n", at, curl_easy_strerror(rc),
		        rc != CURLE_PEER_FAILED_VERIFICATION ? "name the server with --url"
		                                             : "trust your own CA with --cacert FILE");
	else if (status != 200)
		fprintf(stderr, "slipring top: %s: status %ld; give the key of its --metrics-key with --api-key, or "
		        "one that its key file marks \"operator\"\n", at, status);
	else
		all = json_object();
	for (char *line = all ? b.s : NULL, *end; line && *line; line = end) {
		end = line + strcspn(line, "\n");
		end += *end ? 1 : 0;
		if (end > line && end[-1] == '\n')
			end[-1] = 0;
		read_line(all, line);
	}
	free(b.s);
	return all;
}

static json_int_t number(json_t *k, const char *member)
{
	return json_integer_value(json_object_get(k, member));
}

static void print_lines(json_t *before, json_t *now, double seconds)
{
	const char *name;
	json_t *k, *was;

	printf("%-20s", "key");
	for (int i = 0; i < COLUMNS; i++)
		printf(" %12s", column[i].title);
	printf(" %10s %8s %8s %8s\n", "tok/s", "rpm", "tpm", "parallel");
	json_object_foreach(now, name, k) {
		json_t *r = json_object_get(k, "refused");
		json_int_t tokens = 0;

		was = json_object_get(before, name);
		printf("%-20.40s", name);
		for (int i = 0; i < COLUMNS; i++)
			printf(" %12lld", (long long)number(k, column[i].member));
		for (int i = 1; i < 4; i += 2)
			tokens += number(k, column[i].member) - number(was, column[i].member);
		printf(" %10.1f %8lld %8lld %8lld\n", (double)tokens / seconds, (long long)number(r, "rpm"),
		       (long long)number(r, "tpm"), (long long)number(r, "max-parallel"));
	}
	printf("rpm, tpm, parallel: requests refused for that limit.  tok/s: of prompts and answers\n");
}

static void print_json(json_t *now)
{
	json_t *list = json_array(), *out = json_pack("{s:o}", "keys", list), *k;
	const char *name;

	json_object_foreach(now, name, k)
		json_array_append(list, k);
	json_dumpf(out, stdout, 0);
	putchar('\n');
	json_decref(out);
}

int keys_show(const struct keys_server *s, bool once, bool json, double seconds,
              const volatile sig_atomic_t *stop)
{
	const struct timespec wait = { (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) };
	json_t *before, *now;
	int r = 0;

	if (curl_global_init(CURL_GLOBAL_DEFAULT))
		return 1;
	once |= json || !isatty(STDOUT_FILENO);
	before = look(s);
	while (before && !*stop) {
		uint64_t from = sr_now();

		if (!json_object_size(before))
			fprintf(stderr, "slipring top: %s has no API keys\n", s->url);
		nanosleep(&wait, NULL);
		now = look(s);
		if (!now)
			break;
		if (!once)
			printf("\033[H\033[J");
		if (json)
			print_json(now);
		else
			print_lines(before, now, (double)(sr_now() - from) / 1e9);
		fflush(stdout);
		json_decref(before);
		before = now;
		if (once)
			break;
	}
	r = !before || !json_object_size(before);
	json_decref(before);
	return r;
}
