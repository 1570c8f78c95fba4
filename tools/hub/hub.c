/* hub.c - asks a Hugging Face hub: which files a repository has, and their bytes.  See hub.h. */
#include "hub.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <curl/curl.h>
#include <jansson.h>

#include "core/instance/refuse.h"

#define LIST_MAX   (64u << 20) /* bytes of a list of files */
#define STALL_S    30L         /* a connection below SLOWEST for this many seconds is given up */
#define SLOWEST    1024L       /* bytes a second */
#define PATH_PARTS 16

struct hub {
	CURL *curl;
	char endpoint[512], token[512];
};

/* ---- settings ---------------------------------------------------------------------------------- */

static void read_token(char *out, size_t size)
{
	const char *own = getenv("HF_TOKEN"), *file = getenv("HF_TOKEN_PATH"), *hf = getenv("HF_HOME");
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	char path[4096] = "";
	FILE *f;

	*out = 0;
	if (own && *own) {
		snprintf(out, size, "%s", own);
	} else {
		if (file && *file)
			snprintf(path, sizeof(path), "%s", file);
		else if (hf && *hf)
			snprintf(path, sizeof(path), "%s/token", hf);
		else if (cache && *cache)
			snprintf(path, sizeof(path), "%s/huggingface/token", cache);
		else if (home && *home)
			snprintf(path, sizeof(path), "%s/.cache/huggingface/token", home);
		f = *path ? fopen(path, "re") : NULL;
		if (f) {
			if (!fgets(out, (int)size, f))
				*out = 0;
			fclose(f);
		}
	}
	out[strcspn(out, " \t\r\n")] = 0;
}

struct hub *hub_open(char *err, size_t errlen)
{
	const char *at = getenv("HF_ENDPOINT");
	struct hub *h = calloc(1, sizeof(*h));
	size_t n;

	if (!h || curl_global_init(CURL_GLOBAL_DEFAULT)) {
		free(h);
		snprintf(err, errlen, "there is no memory for a connection");
		return NULL;
	}
	if (!at || !*at)
		at = "https://huggingface.co";
	n = strlen(at);
	while (n && at[n - 1] == '/')
		n--;
	if ((strncmp(at, "https://", 8) && strncmp(at, "http://", 7)) || n >= sizeof(h->endpoint)) {
		snprintf(err, errlen, "HF_ENDPOINT is \"%.100s\"; it must begin with https:// or http://", at);
		free(h);
		return NULL;
	}
	memcpy(h->endpoint, at, n);
	read_token(h->token, sizeof(h->token));
	h->curl = curl_easy_init();
	if (!h->curl) {
		snprintf(err, errlen, "there is no memory for a connection");
		free(h);
		return NULL;
	}
	return h;
}

void hub_close(struct hub *h)
{
	if (!h)
		return;
	curl_easy_cleanup(h->curl);
	curl_global_cleanup();
	free(h);
}

/* ---- a request ----------------------------------------------------------------------------------- */

struct reply {
	CURL *curl;
	int (*bytes)(void *ctx, const void *data, size_t n);
	void *ctx;
	int rc;         /* of bytes() */
	char note[300]; /* the start of an answer that is an error */
	size_t n_note;
};

static size_t take_bytes(char *data, size_t one, size_t n, void *ctx)
{
	struct reply *r = ctx;
	long status = 0;

	n *= one;
	curl_easy_getinfo(r->curl, CURLINFO_RESPONSE_CODE, &status);
	if (status >= 300) {
		size_t room = sizeof(r->note) - 1 - r->n_note;

		memcpy(r->note + r->n_note, data, n < room ? n : room);
		r->n_note += n < room ? n : room;
		return n;
	}
	r->rc = r->bytes(r->ctx, data, n);
	return r->rc ? CURL_WRITEFUNC_ERROR : n;
}

/* An HTTP status as a sentence. */
static int refuse_status(const struct hub *h, const char *id, long status, const struct reply *r, char *err,
                         size_t errlen)
{
	if (status == 401 || status == 403)
		return refuse(-EACCES, err, errlen,
		              "%s wants to know who asks (HTTP %ld): accept its terms at %s/%s, make a "
		              "token there and set HF_TOKEN",
		              id, status, h->endpoint, id);
	if (status == 404)
		return refuse(-ENOENT, err, errlen, "%s has no such model, revision or file: %s (HTTP 404)",
		              h->endpoint, id);
	return refuse(status == 429 || status >= 500 ? -EAGAIN : -EPROTO, err, errlen,
	              "%s answered HTTP %ld: %.*s", h->endpoint, status, (int)strcspn(r->note, "\r\n"), r->note);
}

static int run(struct hub *h, const char *id, const char *url, int64_t from, struct reply *r, char *err,
               size_t errlen)
{
	char range[64], detail[CURL_ERROR_SIZE] = "", auth[600];
	struct curl_slist *headers = NULL;
	long status = 0;
	CURLcode rc;

	r->curl = h->curl;
	curl_easy_reset(h->curl);
	curl_easy_setopt(h->curl, CURLOPT_URL, url);
	curl_easy_setopt(h->curl, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(h->curl, CURLOPT_REDIR_PROTOCOLS_STR,
	                 strncmp(h->endpoint, "https", 5) ? "http,https" : "https");
	curl_easy_setopt(h->curl, CURLOPT_FOLLOWLOCATION, 1L);
	curl_easy_setopt(h->curl, CURLOPT_MAXREDIRS, 5L);
	curl_easy_setopt(h->curl, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(h->curl, CURLOPT_CONNECTTIMEOUT, 20L);
	curl_easy_setopt(h->curl, CURLOPT_LOW_SPEED_LIMIT, SLOWEST);
	curl_easy_setopt(h->curl, CURLOPT_LOW_SPEED_TIME, STALL_S);
	curl_easy_setopt(h->curl, CURLOPT_USERAGENT, "slipring/" SLIPRING_VERSION);
	curl_easy_setopt(h->curl, CURLOPT_ERRORBUFFER, detail);
	curl_easy_setopt(h->curl, CURLOPT_WRITEFUNCTION, take_bytes);
	curl_easy_setopt(h->curl, CURLOPT_WRITEDATA, r);
	if (*h->token) { /* curl does not pass it on to another host */
		snprintf(auth, sizeof(auth), "Authorization: Bearer %s", h->token);
		headers = curl_slist_append(NULL, auth);
		curl_easy_setopt(h->curl, CURLOPT_HTTPHEADER, headers);
	}
	if (from) {
		snprintf(range, sizeof(range), "%" PRId64 "-", from);
		curl_easy_setopt(h->curl, CURLOPT_RANGE, range);
	}
	rc = curl_easy_perform(h->curl);
	curl_slist_free_all(headers);
	curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status);
	curl_easy_setopt(h->curl, CURLOPT_ERRORBUFFER, NULL);
	if (r->rc)
		return r->rc;
	if (rc == CURLE_OK && status < 300)
		return 0;
	if (rc == CURLE_OK)
		return refuse_status(h, id, status, r, err, errlen);
	return refuse(rc == CURLE_OUT_OF_MEMORY              ? -ENOMEM
	              : rc == CURLE_PEER_FAILED_VERIFICATION ? -EPROTO
	                                                     : -EAGAIN,
	              err, errlen, "%s: %s", h->endpoint, *detail ? detail : curl_easy_strerror(rc));
}

/* ---- lists --------------------------------------------------------------------------------------- */

struct text {
	char *s;
	size_t n, cap;
};

static int keep(void *ctx, const void *data, size_t n)
{
	struct text *t = ctx;

	if (n > LIST_MAX - t->n)
		return -E2BIG;
	if (t->n + n > t->cap) {
		size_t cap = 2 * (t->n + n);
		char *s = realloc(t->s, cap);

		if (!s)
			return -ENOMEM;
		t->s = s;
		t->cap = cap;
	}
	memcpy(t->s + t->n, data, n);
	t->n += n;
	return 0;
}

bool hub_path_is_safe(const char *p)
{
	int parts = 1;
	size_t n = strlen(p);

	if (!n || n > 512)
		return false;
	for (const char *part = p;; part++) {
		size_t len = strcspn(part, "/");

		if (!len || len > 200 || (*part == '.' && (len == 1 || (len == 2 && part[1] == '.'))) ||
		    parts > PATH_PARTS)
			return false;
		for (size_t i = 0; i < len; i++)
			if ((unsigned char)part[i] < 32 || part[i] == 127 || part[i] == '\\')
				return false;
		part += len;
		if (!*part)
			return true;
		parts++;
	}
}

static bool is_hex(const char *s, size_t n)
{
	return s && strlen(s) == n && strspn(s, "0123456789abcdef") == n;
}

static int take_file(struct hub_repo *r, const json_t *j, char *err, size_t errlen)
{
	const char *path = json_string_value(json_object_get(j, "rfilename"));
	const json_t *lfs = json_object_get(j, "lfs"),
				 *bytes = json_object_get(json_is_object(lfs) ? lfs : j, "size");
	const char *etag = json_is_object(lfs) ? json_string_value(json_object_get(lfs, "sha256"))
	                                       : json_string_value(json_object_get(j, "blobId"));
	struct hub_file *f = &r->file[r->n];

	if (!path || !hub_path_is_safe(path))
		return refuse(-EPROTO, err, errlen,
		              "the hub names a file of %s \"%.80s\", which is no path below a folder", r->id,
		              path ? path : "(nothing)");
	f->large = json_is_object(lfs);
	if (!json_is_integer(bytes) || json_integer_value(bytes) < 0 ||
	    json_integer_value(bytes) > HUB_FILE_MAX || !is_hex(etag, f->large ? 64 : 40))
		return refuse(-EPROTO, err, errlen, "the hub says no size or no hash of %s in %s, or a wrong one",
		              path, r->id);
	f->bytes = json_integer_value(bytes);
	memcpy(f->etag, etag, strlen(etag) + 1);
	f->path = strdup(path);
	if (!f->path)
		return refuse(-ENOMEM, err, errlen, "there is no memory for the list of files");
	r->n++;
	return 0;
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct hub_file *)a)->path, ((const struct hub_file *)b)->path);
}

static int read_list(struct hub_repo *out, const json_t *j, char *err, size_t errlen)
{
	const char *commit = json_string_value(json_object_get(j, "sha"));
	const json_t *list = json_object_get(j, "siblings"), *one;
	size_t i, n = json_array_size(list);
	int rc = 0;

	if (!is_hex(commit, 40) || !json_is_array(list) || n > HUB_FILES_MAX)
		return refuse(-EPROTO, err, errlen,
		              "the hub's answer about %s has no commit, or no list of at most %d files", out->id,
		              HUB_FILES_MAX);
	memcpy(out->commit, commit, 41);
	out->file = calloc(n + 1, sizeof(*out->file));
	if (!out->file)
		return refuse(-ENOMEM, err, errlen, "there is no memory for the list of files");
	json_array_foreach(list, i, one) if (!rc) rc = take_file(out, one, err, errlen);
	qsort(out->file, (size_t)out->n, sizeof(*out->file), by_path);
	for (int32_t k = 1; k < out->n && !rc; k++)
		if (!strcmp(out->file[k - 1].path, out->file[k].path))
			rc = refuse(-EPROTO, err, errlen, "the hub lists %s twice in %s", out->file[k].path, out->id);
	return rc;
}

int hub_list(struct hub *h, const char *id, const char *revision, struct hub_repo *out, char *err,
             size_t errlen)
{
	struct text t = { 0 };
	struct reply r = { .bytes = keep, .ctx = &t };
	char url[2048], *rev = curl_easy_escape(h->curl, revision, 0);
	json_error_t e;
	json_t *j;
	int rc;

	memset(out, 0, sizeof(*out));
	snprintf(out->id, sizeof(out->id), "%s", id);
	snprintf(out->revision, sizeof(out->revision), "%s", revision);
	snprintf(url, sizeof(url), "%s/api/models/%s/revision/%s?blobs=true", h->endpoint, id, rev ? rev : "");
	curl_free(rev);
	rc = run(h, id, url, 0, &r, err, errlen);
	if (rc == -E2BIG || (rc == -ENOMEM && r.rc))
		refuse(rc, err, errlen, "the list of files of %s is larger than %u MiB, or there is no memory for it",
		       id, LIST_MAX >> 20);
	if (!rc) {
		j = json_loadb(t.s ? t.s : "", t.n, JSON_REJECT_DUPLICATES, &e);
		rc = j ? read_list(out, j, err, errlen)
		       : refuse(-EPROTO, err, errlen, "%s answered about %s with what is no JSON: %s", h->endpoint,
		                id, e.text);
		json_decref(j);
	}
	free(t.s);
	if (rc)
		hub_free(out);
	return rc;
}

void hub_free(struct hub_repo *r)
{
	for (int32_t i = 0; i < r->n; i++)
		free(r->file[i].path);
	free(r->file);
	r->file = NULL;
	r->n = 0;
}

/* ---- files --------------------------------------------------------------------------------------- */

struct getting {
	const struct hub_sink *sink;
	CURL *curl;
	int64_t from, left; /* the first byte asked for; how many more may come */
	int64_t bytes;      /* of the whole file */
	bool begun;
};

static int take_part(void *ctx, const void *data, size_t n)
{
	struct getting *g = ctx;
	long status = 0;

	if (!g->begun) {
		g->begun = true;
		curl_easy_getinfo(g->curl, CURLINFO_RESPONSE_CODE, &status);
		if (g->from && status != 206) { /* a hub that does not know ranges sends all of it */
			int rc = g->sink->restart(g->sink->ctx);

			if (rc)
				return rc;
			g->left = g->bytes;
		}
	}
	if ((int64_t)n > g->left)
		return -EMSGSIZE;
	g->left -= (int64_t)n;
	return g->sink->bytes(g->sink->ctx, data, n);
}

/* The path with what is special in a URL escaped, but for the slashes. */
static bool escape_path(struct hub *h, const char *path, char *out, size_t size)
{
	size_t at = 0;

	while (*path) {
		size_t len = strcspn(path, "/");
		char *part = curl_easy_escape(h->curl, path, (int)len);

		at += (size_t)snprintf(out + at, size - at, "%s%s", part ? part : "", path[len] ? "/" : "");
		curl_free(part);
		if (!part || at >= size)
			return false;
		path += len + (path[len] != 0);
	}
	return true;
}

int hub_get(struct hub *h, const struct hub_repo *r, const struct hub_file *f, int64_t from,
            const struct hub_sink *sink, char *err, size_t errlen)
{
	struct getting g = { sink, h->curl, from, f->bytes - from, f->bytes, false };
	struct reply reply = { .bytes = take_part, .ctx = &g };
	char path[2048], url[4096];
	int rc;

	if (!escape_path(h, f->path, path, sizeof(path)))
		return refuse(-ENAMETOOLONG, err, errlen, "the name of %s is too long", f->path);
	snprintf(url, sizeof(url), "%s/%s/resolve/%s/%s", h->endpoint, r->id, r->commit, path);
	rc = run(h, r->id, url, from, &reply, err, errlen);
	if (rc == -EMSGSIZE)
		return refuse(-EPROTO, err, errlen, "%s sent more than the %" PRId64 " bytes that %s has",
		              h->endpoint, f->bytes, f->path);
	if (!rc && g.left)
		return refuse(-EAGAIN, err, errlen, "%s ended %s %" PRId64 " bytes too early", h->endpoint, f->path,
		              g.left);
	return rc;
}
