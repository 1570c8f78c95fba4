/* save.c - edits a line of YAML, checks the whole file with libyaml, and renames it into place. */
#include "save.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <yaml.h>

#include "core/instance/fresh.h"
#include "core/instance/refuse.h"

#define LONGEST (1 << 20)                 /* bytes of a file, as in config.c */

struct saved_text { char *p; size_t n; };

static int save_fail(int e, char *err, size_t errlen, const char *path, const char *what)
{
	return refuse(e, err, errlen, "%s: %s", path, what);
}

static bool same_bytes(const char *a, const char *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (a[i] != b[i] && !((a[i] == '-' || a[i] == '_') && (b[i] == '-' || b[i] == '_')))
			return false;
	return strlen(b) == n;
}

static int read_file(const char *path, struct saved_text *t, struct stat *st, char *err, size_t errlen)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), e;
	ssize_t n = 0;

	*t = (struct saved_text){ NULL, 0 };
	*st = (struct stat){ .st_mode = 0644, .st_uid = (uid_t)-1, .st_gid = (gid_t)-1 };
	if (fd < 0 && errno == ENOENT)
		return 0;
	if (fd < 0 || fstat(fd, st) < 0)
		goto fail;
	if (!S_ISREG(st->st_mode) || st->st_size > LONGEST) {
		close(fd);
		return save_fail(-EINVAL, err, errlen, path, "is not a file of settings (it must be regular and at "
		                 "most 1 MiB)");
	}
	t->p = malloc((size_t)st->st_size + 1);
	while (t->p && t->n < (size_t)st->st_size &&
	       (n = read(fd, t->p + t->n, (size_t)st->st_size - t->n)) > 0)
		t->n += (size_t)n;
	if (!t->p || n < 0)
		goto fail;
	t->p[t->n] = 0;
	close(fd);
	return 0;
fail:
	e = errno ? -errno : -ENOMEM;
	if (fd >= 0)
		close(fd);
	free(t->p);
	return save_fail(e, err, errlen, path, strerror(-e));
}

/* Where a value ends: before a comment after it, or at the end of its line. */
static size_t end_of_value(const char *p, size_t at, size_t end)
{
	size_t i = at;

	while (i < end && !(p[i] == '#' && i > at && (p[i - 1] == ' ' || p[i - 1] == '\t')))
		i++;
	while (i > at && (p[i - 1] == ' ' || p[i - 1] == '\t' || p[i - 1] == '\r'))
		i--;
	return i;
}

static void text_append(struct saved_text *t, const char *p, size_t n)
{
	if (n)
		memcpy(t->p + t->n, p, n);
	t->n += n;
}

/* Put the key's value into the old text: into the first unindented line with the key, else into a new
 * line at the end. */
static int edit(const struct saved_text *old, const char *key, const char *value, struct saved_text *new)
{
	size_t end, colon, from, to;

	if (!(new->p = malloc(old->n + strlen(key) + strlen(value) + 8)))
		return -ENOMEM;
	for (size_t at = 0; at < old->n; at = end + 1) {
		const char *nl = memchr(old->p + at, '\n', old->n - at);

		end = nl ? (size_t)(nl - old->p) : old->n;
		for (colon = at; colon < end && old->p[colon] != ':'; colon++)
			;
		for (from = colon; from > at && old->p[from - 1] == ' '; from--)
			;
		if (colon == end || !same_bytes(old->p + at, key, from - at))
			continue;
		from = colon + 1 + strspn(old->p + colon + 1, " ");
		from = from > end ? end : from;
		to = end_of_value(old->p, from, end);
		text_append(new, old->p, colon);
		text_append(new, ": ", 2);
		text_append(new, value, strlen(value));
		text_append(new, old->p + to, old->n - to);
		return 0;
	}
	text_append(new, old->p, old->n);
	text_append(new, "\n", old->n && old->p[old->n - 1] != '\n');
	text_append(new, key, strlen(key));
	text_append(new, ": ", 2);
	text_append(new, value, strlen(value));
	text_append(new, "\n", 1);
	return 0;
}

/* Is the text one mapping that has the key once, with that value? */
static bool reads_back(const struct saved_text *t, const char *key, const char *value)
{
	yaml_parser_t parser;
	yaml_document_t doc;
	yaml_node_t *root;
	int found = 0, right = 0;

	if (!yaml_parser_initialize(&parser))
		return false;
	yaml_parser_set_input_string(&parser, (const unsigned char *)t->p, t->n);
	if (!yaml_parser_load(&parser, &doc)) {
		yaml_parser_delete(&parser);
		return false;
	}
	root = yaml_document_get_root_node(&doc);
	if (root && root->type == YAML_MAPPING_NODE)
		for (yaml_node_pair_t *i = root->data.mapping.pairs.start;
		     i < root->data.mapping.pairs.top; i++) {
			yaml_node_t *k = yaml_document_get_node(&doc, i->key);
			yaml_node_t *v = yaml_document_get_node(&doc, i->value);

			if (k->type != YAML_SCALAR_NODE ||
			    !same_bytes((const char *)k->data.scalar.value, key, k->data.scalar.length))
				continue;
			found++;
			right += v->type == YAML_SCALAR_NODE && !strcmp((const char *)v->data.scalar.value, value);
		}
	yaml_document_delete(&doc);
	yaml_parser_delete(&parser);
	return found == 1 && right == 1;
}

static int replace_file(const char *path, const struct saved_text *t, const struct stat *st, char *err,
                        size_t errlen)
{
	struct fresh w;
	int e = fresh_open(&w, AT_FDCWD, path, 0600);

	if (e < 0)
		return refuse(e, err, errlen, "%s: cannot be written: %s", path, strerror(-e));
	errno = 0;
	/* Set the owner first, because chown clears bits of the mode. */
	if (fwrite(t->p, 1, t->n, w.f) != t->n ||
	    ((st->st_uid != geteuid() || st->st_gid != getegid()) && st->st_uid != (uid_t)-1 &&
	     fchown(fileno(w.f), st->st_uid, st->st_gid) < 0) || fchmod(fileno(w.f), st->st_mode & 07777) < 0) {
		e = errno ? -errno : -EIO;
		fresh_drop(&w);
	} else {
		e = fresh_done(&w);
	}
	return e < 0 ? save_fail(e, err, errlen, path, strerror(-e)) : 0;
}

int save_key(const char *path, const char *key, const char *value, char *err, size_t errlen)
{
	struct saved_text old, new = { NULL, 0 };
	char real[PATH_MAX];
	struct stat st;
	int r;

	if (!realpath(path, real)) {          /* keep a link and change its target */
		if (errno != ENOENT || strlen(path) >= sizeof(real))
			return save_fail(-errno, err, errlen, path, strerror(errno));
		strcpy(real, path);
	}
	if ((r = read_file(real, &old, &st, err, errlen)) < 0)
		return r;
	if ((r = edit(&old, key, value, &new)) < 0)
		save_fail(r, err, errlen, real, strerror(-r));
	else if (!reads_back(&new, key, value))
		r = save_fail(-EINVAL, err, errlen, real, "is not changed, because this key cannot be set by "
		              "changing one line; edit the file by hand");
	else
		r = replace_file(real, &new, &st, err, errlen);
	free(old.p);
	free(new.p);
	return r;
}
