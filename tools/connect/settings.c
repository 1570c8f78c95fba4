/* settings.c - a program's own file of settings: ours into it, and out again.  See connect.h.
 *
 * In JSON our members are merged; in other files our lines stand between two marks.  The old file is kept
 * beside it, and undo puts back only what our settings replaced, so changes made meanwhile stay. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "connect.h"
#include "core/instance/fresh.h"
#include "core/instance/refuse.h"

#define LONGEST (1 << 20) /* bytes of a file of settings */
#define BEGIN   "# slipring connect: begin\n"
#define END     "# slipring connect: end\n"

static int fail(int rc, const char *path, const char *what, char *err, size_t errlen)
{
	return refuse(rc, err, errlen, "%s: %s", path, what ? what : strerror(-rc));
}

/* The file's text, or NULL with rc 0 if there is none. */
static char *read_text(const char *path, int *rc, char *err, size_t errlen)
{
	FILE *f = fopen(path, "re");
	char *s;
	size_t n;

	*rc = 0;
	if (!f) {
		if (errno != ENOENT)
			*rc = fail(-errno, path, NULL, err, errlen);
		return NULL;
	}
	s = malloc(LONGEST + 1);
	n = s ? fread(s, 1, LONGEST + 1, f) : 0;
	if (!s || ferror(f) || n > LONGEST) {
		*rc = fail(s ? -EIO : -ENOMEM, path, "it cannot be read, or is larger than 1 MiB", err, errlen);
		free(s);
		s = NULL;
	} else {
		s[n] = 0;
	}
	fclose(f);
	return s;
}

static int write_text(const char *path, const char *text, char *err, size_t errlen)
{
	struct stat st;
	struct fresh w;
	int rc = fresh_open(&w, AT_FDCWD, path, stat(path, &st) ? 0600 : st.st_mode & 0777);

	if (!rc) {
		fputs(text, w.f);
		rc = fresh_done(&w);
	}
	return rc ? fail(rc, path, NULL, err, errlen) : 0;
}

static void before_path(char out[4096], const char *path)
{
	snprintf(out, 4096, "%s.before-slipring", path);
}

/* A file beside it whose text is the number of folders that were made, where there was no file. */
static void none_path(char out[4096], const char *path)
{
	snprintf(out, 4096, "%s.new-by-slipring", path);
}

/* ---- lines ----------------------------------------------------------------------------------------- */

/* The text without what stands between our marks. */
static void drop_block(char *text)
{
	char *from = strstr(text, BEGIN), *to = from ? strstr(from, END) : NULL;

	if (to) {
		to += strlen(END);
		memmove(from, to, strlen(to) + 1);
	}
}

static char *lines_in(const char *text, const struct program *p, const struct target *t)
{
	char *mine = connect_fill(t, p->lines, "\"\\"), *old = strdup(text), *out = NULL;

	if (old)
		drop_block(old);
	if (mine && old && asprintf(&out, "%s%s" BEGIN "%s" END, old,
	                     *old && old[strlen(old) - 1] != '\n' ? "\n" : "",
	                     mine) < 0)
		out = NULL;
	free(mine);
	free(old);
	return out;
}

/* ---- JSON ------------------------------------------------------------------------------------------ */

static void merge(json_t *to, const json_t *from)
{
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)from, key, v)
	{
		json_t *there = json_object_get(to, key);

		if (json_is_object(v) && json_is_object(there))
			merge(there, v);
		else
			json_object_set(to, key, v);
	}
}

/* Each member of mine in `to` becomes what it was before, or goes; what bears our name goes whole. */
static void unmerge(json_t *to, const json_t *mine, const json_t *before)
{
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)mine, key, v)
	{
		json_t *there = json_object_get(to, key), *was = json_object_get(before, key);

		if (json_is_object(v) && json_is_object(there) && strcmp(key, "slipring")) {
			unmerge(there, v, was);
			if (!json_object_size(there) && !was)
				json_object_del(to, key);
		} else if (was) {
			json_object_set(to, key, was);
		} else {
			json_object_del(to, key);
		}
	}
}

static json_t *parse(const char *path, const char *text, char *err, size_t errlen)
{
	json_error_t e;
	json_t *j = json_loads(text && *text ? text : "{}", JSON_REJECT_DUPLICATES, &e);

	if (!json_is_object(j)) {
		refuse(-EINVAL, err, errlen,
		       "%s is no plain JSON object (line %d): add by hand what slipring connect prints", path,
		       j ? 1 : e.line);
		json_decref(j);
		return NULL;
	}
	return j;
}

/* was: the text before the first call, "" if there was none; NULL: this is the first call. */
static char *tree_in(const char *path, const char *old, const char *was, const struct program *p,
                     const struct target *t, char *err, size_t errlen)
{
	json_t *j = parse(path, old, err, errlen), *mine, *before = NULL;
	char *out;

	if (!j)
		return NULL;
	mine = connect_tree(t, p);
	if (was && (before = parse(path, was, err, errlen)))
		unmerge(j, mine, before);
	json_decref(before);
	merge(j, mine);
	out = json_dumps(j, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
	json_decref(mine);
	json_decref(j);
	return out;
}

/* ---- in and out ------------------------------------------------------------------------------------ */

static int make_dir_of(const char *path)
{
	char dir[4096];
	int n = 0;

	for (const char *s = strchr(path + 1, '/'); s; s = strchr(s + 1, '/')) {
		snprintf(dir, sizeof(dir), "%.*s", (int)(s - path), path);
		n += !mkdir(dir, 0700); /* if it cannot be made, writing says so */
	}
	return n;
}

/* Take away the n folders that hold path, as far as they are empty. */
static void drop_dirs_of(const char *path, int n)
{
	char dir[4096], *slash;

	snprintf(dir, sizeof(dir), "%s", path);
	while (n-- > 0 && (slash = strrchr(dir, '/')) && slash > dir) {
		*slash = 0;
		if (rmdir(dir))
			break;
	}
}

/* Keep what undo needs, the first time: later it would keep our own settings as the old ones. */
static int keep_before(const char *path, const char *old, int made, char *err, size_t errlen)
{
	char before[4096], none[4096], text[16];

	before_path(before, path);
	none_path(none, path);
	snprintf(text, sizeof(text), "%d\n", made);
	if (!access(before, F_OK) || !access(none, F_OK))
		return 0;
	return old ? write_text(before, old, err, errlen) : write_text(none, text, err, errlen);
}

int settings_write(const char *path, const struct program *p, const struct target *t, char *err,
                   size_t errlen)
{
	char before[4096], none[4096], *old, *new, *start, *was = NULL;
	int rc;

	before_path(before, path);
	none_path(none, path);
	old = read_text(path, &rc, err, errlen);
	if (!rc)
		was = read_text(before, &rc, err, errlen);
	if (rc) {
		free(old);
		return rc;
	}
	start = old ? old : strdup("");
	refuse(-ENOMEM, err, errlen, "there is no memory for %s", path);
	new = !start ? NULL : !connect_is_json(p) ? lines_in(start, p, t) :
	      tree_in(path, start, was ? was : access(none, F_OK) ? NULL : "", p, t, err, errlen);
	rc = new ? keep_before(path, old, make_dir_of(path), err, errlen) : -EINVAL;
	if (!rc)
		rc = write_text(path, new, err, errlen);
	free(new);
	free(was);
	free(start);
	return rc;
}

int settings_undo(const char *path, const struct program *p, const struct target *t, char *err, size_t errlen)
{
	char before[4096], none[4096], *now, *was = NULL, *made = NULL, *out = NULL;
	json_t *j, *old, *mine;
	int rc;

	before_path(before, path);
	none_path(none, path);
	now = read_text(path, &rc, err, errlen);
	if (!rc && !now)
		rc = fail(-ENOENT, path, "there is no such file, so nothing to take out", err, errlen);
	if (!rc)
		was = read_text(before, &rc, err, errlen);
	if (!rc)
		made = read_text(none, &rc, err, errlen);
	if (!rc && connect_is_json(p)) {
		j = parse(path, now, err, errlen);
		old = j ? parse(before, was, err, errlen) : NULL;
		if (!old)
			rc = -EINVAL;
		mine = connect_tree(t, p);
		if (!rc) {
			unmerge(j, mine, old);
			out = was && json_equal(j, old) ? strdup(was) : !json_object_size(j) ? strdup("") :
			      json_dumps(j, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
		}
		json_decref(mine);
		json_decref(old);
		json_decref(j);
	} else if (!rc) {
		size_t n = was ? strlen(was) : 0;

		drop_block(now);
		out = strdup(was && !strncmp(now, was, n) && !strcmp(now + n, "\n") ? was : now);
	}
	if (!rc && !out)
		rc = fail(-ENOMEM, path, NULL, err, errlen);
	if (!rc && !*out && !was)
		rc = unlink(path) ? fail(-errno, path, NULL, err, errlen) : 0;
	else if (!rc)
		rc = write_text(path, out, err, errlen);
	if (!rc) {
		unlink(before);
		unlink(none);
		drop_dirs_of(path, made ? atoi(made) : 0);
	}
	free(made);
	free(out);
	free(was);
	free(now);
	return rc;
}
