/* lines.c - see batch.h. */
#include "batch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/instance/refuse.h"

/* ---- what is done already ---- */

static int note_done(struct lines *l, const char *text, size_t n, uint64_t at, char *err, size_t errlen)
{
	json_t *j = json_loadb(text, n, 0, NULL), *id = json_object_get(j, "custom_id");
	json_t *line = json_object_get(json_object_get(j, "error"), "line");
	char key[24];
	int r = 0;

	if (json_is_string(id)) {
		r = json_object_set_new(l->done, json_string_value(id), json_true());
	} else if (json_is_integer(line)) {
		snprintf(key, sizeof(key), "%lld", (long long)json_integer_value(line));
		r = json_object_set_new(l->failed, key, json_true());
	} else {
		r = refuse(-EINVAL, err, errlen, "%s: line %llu is not one of a batch's answers; name another file, "
		           "or --overwrite it", l->out_name, (unsigned long long)at);
	}
	json_decref(j);
	l->n_done++;
	return r;
}

/* Read the answers of an earlier run, and cut off a line that it did not finish. */
static int read_done(struct lines *l, char *err, size_t errlen)
{
	FILE *f = fdopen(dup(l->out), "r");
	char *text = NULL;
	size_t cap = 0;
	ssize_t n;
	off_t whole = 0;
	int r = 0;

	if (!f)
		return -errno;
	for (uint64_t at = 1; r == 0 && (n = getline(&text, &cap, f)) > 0 && text[n - 1] == '\n'; at++) {
		whole += n;
		r = note_done(l, text, (size_t)n, at, err, errlen);
	}
	free(text);
	fclose(f);
	if (r == 0 && (ftruncate(l->out, whole) < 0 || lseek(l->out, whole, SEEK_SET) < 0))
		r = refuse(-errno, err, errlen, "%s: %s", l->out_name, strerror(errno));
	return r;
}

int lines_open(struct lines *l, const char *in, const char *out, bool afresh, char *err, size_t errlen)
{
	uint64_t run;

	*l = (struct lines){ .in_name = in, .out_name = out, .out = -1, .done = json_object(),
	                     .failed = json_object(), .taken = json_object() };
	if (getrandom(&run, sizeof(run), 0) < 0)
		run = (uint64_t)getpid();
	snprintf(l->run, sizeof(l->run), "%016llx", (unsigned long long)run);
	l->in = !strcmp(in, "-") ? stdin : fopen(in, "re");
	if (!l->in)
		return refuse(-errno, err, errlen, "%s: %s", in, strerror(errno));
	l->out = open(out, O_RDWR | O_CREAT | O_CLOEXEC | O_APPEND | (afresh ? O_TRUNC : 0), 0666);
	if (l->out < 0)
		return refuse(-errno, err, errlen, "%s: %s", out, strerror(errno));
	if (flock(l->out, LOCK_EX | LOCK_NB) < 0)
		return refuse(-errno, err, errlen, "%s: %s", out, errno == EWOULDBLOCK ?
		              "another slipring batch writes it" : strerror(errno));
	return read_done(l, err, errlen);
}

void lines_close(struct lines *l)
{
	if (l->in && l->in != stdin)
		fclose(l->in);
	if (l->out >= 0)
		close(l->out);
	json_decref(l->done);
	json_decref(l->failed);
	json_decref(l->taken);
	free(l->text);
	*l = (struct lines){ .out = -1 };
}

/* ---- lines that come in ---- */

void line_free(struct line *q)
{
	free(q->custom_id);
	free(q->path);
	free(q->body);
	*q = (struct line){ 0 };
}

/* What is wrong with a line, or NULL; *id: its custom_id, where it has a usable one. */
static const char *wrong(struct lines *l, json_t *j, const char **id, char *why, size_t whylen)
{
	json_t *custom = json_object_get(j, "custom_id"), *method = json_object_get(j, "method");
	json_t *url = json_object_get(j, "url"), *body = json_object_get(j, "body"), *before;

	if (!json_is_object(j))
		return "the line is not a JSON object";
	if (!json_is_string(custom) || !json_string_length(custom))
		return "custom_id must be a text that is not empty";
	before = json_object_get(l->taken, json_string_value(custom));
	if (before) {
		snprintf(why, whylen, "custom_id is also that of line %lld", (long long)json_integer_value(before));
		return why;
	}
	*id = json_string_value(custom);
	json_object_set_new(l->taken, *id, json_integer((json_int_t)l->line));
	if (!json_is_string(method) || strcmp(json_string_value(method), "POST"))
		return "method must be POST";
	if (!json_is_string(url) || *json_string_value(url) != '/' ||
	    strcspn(json_string_value(url), " \t\r\n#?") != json_string_length(url))
		return "url must be a path such as /v1/chat/completions";
	if (!json_is_object(body))
		return "body must be an object";
	if (json_is_true(json_object_get(body, "stream")))
		return "body: a batch takes whole answers, not a stream";
	return NULL;
}

static bool blank(const char *s) { return !s[strspn(s, " \t\r\n")]; }

int lines_next(struct lines *l, struct line *to)
{
	char why[80], key[24];
	const char *id, *what;
	json_error_t e;
	json_t *j;
	ssize_t n;
	int r;

	while ((n = getline(&l->text, &l->cap, l->in)) > 0) {
		l->line++;
		if (blank(l->text))
			continue;
		snprintf(key, sizeof(key), "%llu", (unsigned long long)l->line);
		id = NULL;
		j = json_loadb(l->text, (size_t)n, JSON_REJECT_DUPLICATES, &e);
		what = j ? wrong(l, j, &id, why, sizeof(why)) : e.text;
		if (json_object_get(id ? l->done : l->failed, id ? id : key)) {
			json_decref(j);
			continue;
		}
		if (what) {
			r = lines_error(l, id, l->line, "invalid_line", what);
			json_decref(j);
			return r < 0 ? r : -EINVAL;
		}
		*to = (struct line){ .number = l->line, .custom_id = strdup(id),
			.path = strdup(json_string_value(json_object_get(j, "url"))),
			.body = json_dumps(json_object_get(j, "body"), JSON_COMPACT | JSON_REAL_PRECISION(17)) };
		json_decref(j);
		if (!to->custom_id || !to->path || !to->body) {
			line_free(to);
			return -ENOMEM;
		}
		to->n_body = strlen(to->body);
		return 1;
	}
	return ferror(l->in) ? -EIO : 0;
}

/* ---- lines that go out ---- */

/* All of it in one write, so that a killed run leaves whole lines and at most one that is cut. */
static int put(struct lines *l, const char *s, size_t n)
{
	size_t done = 0;
	ssize_t w = 0;

	while (done < n && ((w = write(l->out, s + done, n - done)) > 0 || (w < 0 && errno == EINTR)))
		done += w > 0 ? (size_t)w : 0;
	return done == n ? 0 : w < 0 ? -errno : -EIO;
}

/* A line that ends with `tail`, bytes of JSON. */
static int put_line(struct lines *l, const char *custom_id, uint64_t number, const char *middle,
                    const char *body, size_t n_body, const char *tail)
{
	json_t *text = custom_id ? json_string_nocheck(custom_id) : json_null();
	char *id = json_dumps(text, JSON_ENCODE_ANY), *s = NULL;
	size_t room, n;
	int r = -ENOMEM;

	json_decref(text);
	room = (id ? strlen(id) : 0) + strlen(middle) + n_body + strlen(tail) + 160;
	if (id && (s = malloc(room))) {
		n = (size_t)snprintf(s, room, "{\"id\": \"batch_req_%s_%llu\", \"custom_id\": %s, %s", l->run,
		                     (unsigned long long)number, id, middle);
		for (size_t i = 0; i < n_body; i++)   /* line ends in JSON lie between its marks */
			s[n++] = body[i] == '\n' || body[i] == '\r' ? ' ' : body[i];
		n += (size_t)snprintf(s + n, room - n, "%s\n", tail);
		r = put(l, s, n);
	}
	free(s);
	free(id);
	return r;
}

int lines_answer(struct lines *l, const struct line *q, long status, const char *body, size_t n, bool json)
{
	json_t *text = json ? NULL : json_stringn(body, n);
	char *quoted = json ? NULL : json_dumps(text ? text : json_null(), JSON_ENCODE_ANY), middle[160];
	int r;

	json_decref(text);
	if (!json && !quoted)
		return -ENOMEM;
	snprintf(middle, sizeof(middle), "\"response\": {\"status_code\": %ld, "
	         "\"request_id\": \"batch-%s-%llu\", \"body\": ", status, l->run, (unsigned long long)q->number);
	r = put_line(l, q->custom_id, q->number, middle, json ? body : quoted, json ? n : strlen(quoted),
	             "}, \"error\": null}");
	free(quoted);
	return r;
}

int lines_error(struct lines *l, const char *custom_id, uint64_t number, const char *code, const char *why)
{
	json_t *e = json_pack("{s:s, s:s, s:I}", "code", code, "message", why, "line", (json_int_t)number);
	char *s = json_dumps(e, 0);
	int r = -ENOMEM;

	if (s)
		r = put_line(l, custom_id, number, "\"response\": null, \"error\": ", s, strlen(s), "}");
	free(s);
	json_decref(e);
	return r;
}
