/* setup_steps.c - the steps of `slipring setup`: their list, and how each is checked, applied and undone.
 *
 * It overwrites only its own files, which have their own names.  It restores a value only if the value is
 * still the one that it set. */
#include "setup.h"
#include "core/instance/refuse.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <pwd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE_BYTES (2l << 20)
#define PAGES_DEFAULT 128             /* enough for the rings of 7 adapters, or of 100 other programs */
#define HEAD "# Written by slipring setup --apply; --undo removes it.\n"

/* ---- the list of all that is ever made or undone --------------------------------------------- */

static const struct kept_setting {    /* a value, and the file that sets it again at the next boot */
	const char *what, *path;
	const char *value;            /* NULL: the number of huge pages */
	const char *words[4];         /* possible words of the kernel; none: a number */
	const char *file, *line, *why;
} kept[] = {
	{ "huge pages", "/proc/sys/vm/nr_hugepages", NULL, { NULL }, "/etc/sysctl.d/60-slipring-hugepages.conf",
	  "vm.nr_hugepages = ", "they hold the rings of trusted clients: fewer TLB misses" },
	{ "THP", "/sys/kernel/mm/transparent_hugepage/enabled", "madvise", { "always", "madvise", "never" },
	  "/etc/tmpfiles.d/slipring-thp.conf", "w /sys/kernel/mm/transparent_hugepage/enabled - - - - ",
	  "weights in huge pages: decoding is 15 % faster" },
	{ "io_uring", "/proc/sys/kernel/io_uring_disabled", "0", { "0", "1", "2" },
	  "/etc/sysctl.d/60-slipring-io_uring.conf", "kernel.io_uring_disabled = ",
	  "the daemon's way to the kernel; epoll takes more calls" },
};

static const struct { enum step_kind kind; const char *what, *path, *text, *why; } once[] = {
	{ STEP_USER, "user", "slipring", "", "the daemon's own" },
	{ STEP_USER, "user", "slipring-http", "slipring", "the adapter's own, which may use the rings" },
	{ STEP_FILE, "locked memory", "/etc/security/limits.d/60-slipring.conf",
	  HEAD "@slipring - memlock unlimited\n", "rings and GPU buffers of members who start it by hand" },
	{ STEP_DIR, "folder", "/etc/slipring", "", "settings" },
	{ STEP_DIR, "folder", "/var/lib/slipring/models", "", "models" },
};

#define UNITS "/etc/systemd/system/"
static const char *const unit[] = { "slipring.service", "slipring@.service", "slipring-ring.socket",
                                    "slipring-http.service", "slipring-http.socket" };

#define N(a) (sizeof(a) / sizeof((a)[0]))

/* ---- files ------------------------------------------------------------------------------- */

static const char *below(const struct setup *s, const char *path, char *out, size_t n)
{
	snprintf(out, n, "%s%s", s->root, path);
	return out;
}

/* The current word: the one in brackets of "always [madvise] never", else the first. */
static void word_of(const char *text, char *out, size_t n)
{
	const char *open = strchr(text, '[');

	if (open)
		snprintf(out, n, "%.*s", (int)strcspn(open + 1, "]"), open + 1);
	else
		snprintf(out, n, "%.*s", (int)strcspn(text, " \t\n"), text);
}

/* ---- checking ---------------------------------------------------------------------------- */

static bool value_good(const char *path, const char *have, const char *want)
{
	if (strstr(path, "nr_hugepages"))
		return atol(have) >= atol(want);
	if (strstr(path, "transparent_hugepage"))
		return strcmp(have, "never") != 0;
	return strcmp(have, want) == 0;
}

static bool user_exists(const struct setup *s, const char *name)
{
	char path[PATH_MAX];
	FILE *f = fopen(below(s, "/etc/passwd", path, sizeof(path)), "re");
	struct passwd *p = NULL;

	while (f && (p = fgetpwent(f)) && strcmp(p->pw_name, name))
		;
	if (f)
		fclose(f);
	return p || (!*s->root && getpwnam(name));   /* a user may be known outside of this file */
}

static void step_look(const struct setup *s, struct setup_step *t)
{
	char path[PATH_MAX], *text = NULL;
	struct stat st;

	switch (t->kind) {
	case STEP_VALUE:
		text = place_read(s->root, t->path);
		t->absent = !text;
		word_of(text ? text : "", t->have, sizeof(t->have));
		if (t->absent)
			snprintf(t->have, sizeof(t->have), "not in this kernel");
		t->good = t->absent || value_good(t->path, t->have, t->text);
		break;
	case STEP_FILE:
		text = place_read(s->root, t->path);
		t->good = text && !strcmp(text, t->text);
		snprintf(t->have, sizeof(t->have), "%s", t->good ? "there" : text ? "another text" : "not there");
		break;
	case STEP_DIR:
		below(s, t->path, path, sizeof(path));
		t->good = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
		snprintf(t->have, sizeof(t->have), "%s", t->good ? "there" : "not there");
		break;
	case STEP_USER:
		t->good = user_exists(s, t->path);
		snprintf(t->have, sizeof(t->have), "%s", t->good ? "there" : "not there");
		break;
	}
	free(text);
}

/* ---- making the list --------------------------------------------------------------------- */

static struct setup_step *step_add(struct setup *s, enum step_kind kind, const char *what, const char *path,
                                   const char *text, const char *why)
{
	struct setup_step *t = &s->step[s->n];

	*t = (struct setup_step){ .what = what, .why = why, .kind = kind, .text = strdup(text) };
	snprintf(t->path, sizeof(t->path), "%s", path);
	if (!t->text)
		return NULL;
	s->n++;
	step_look(s, t);
	return t;
}

/* Add a value and the file that sets it again at the next boot.  The file is added only if the value was
 * different before, because another program may already keep it. */
static int add_kept(struct setup *s, const struct kept_setting *k, const char *value)
{
	struct setup_step *t = step_add(s, STEP_VALUE, k->what, k->path, value, k->why);
	char text[400], at[PATH_MAX];

	if (!t)
		return -ENOMEM;
	if (t->absent || (t->good && access(below(s, k->file, at, sizeof(at)), F_OK) < 0))
		return 0;
	snprintf(text, sizeof(text), HEAD "%s%s\n", k->line, value);
	return step_add(s, STEP_FILE, k->what, k->file, text, "keeps it after the next boot") ? 0 : -ENOMEM;
}

/* With several nodes the kernel spreads the pool over those that have room.  A node without any page gives
 * none to a daemon that is bound to it, so each node's part is set, too. */
#define NODES_MOST 8
#define NODE_PAGES "/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/nr_hugepages"
#define NODE_FILE  "/etc/tmpfiles.d/slipring-hugepages-node%d.conf"

static const struct kept_setting *node_setting(int node)
{
	static struct kept_setting k;
	static char path[120], file[120], line[160];

	snprintf(path, sizeof(path), NODE_PAGES, node);
	snprintf(file, sizeof(file), NODE_FILE, node);
	snprintf(line, sizeof(line), "w " NODE_PAGES " - - - - ", node);
	k = (struct kept_setting){ .what = "pages by node",
		                       .path = path,
		                       .file = file,
		                       .line = line,
		                       .why = "a daemon that is bound to this node finds some" };
	return &k;
}

static int add_node_pages(struct setup *s, long pages)
{
	char text[24], path[PATH_MAX], name[120];
	int n = 0, node[NODES_MOST];

	for (int i = 0; i < 64 && n < NODES_MOST; i++) {
		snprintf(name, sizeof(name), NODE_PAGES, i);
		if (access(below(s, name, path, sizeof(path)), F_OK) == 0)
			node[n++] = i;
	}
	snprintf(text, sizeof(text), "%ld", pages / (n ? n : 1) > 0 ? pages / (n ? n : 1) : 1);
	for (int i = 0; n > 1 && i < n; i++)
		if (add_kept(s, node_setting(node[i]), text) < 0)
			return -ENOMEM;
	return 0;
}

static long pages_wanted(const struct setup *s)
{
	long pages = sysconf(_SC_PHYS_PAGES) / (PAGE_BYTES / sysconf(_SC_PAGESIZE)) / 8;

	return s->huge_pages ? s->huge_pages : pages < PAGES_DEFAULT ? pages : PAGES_DEFAULT;
}

/* Add this tree's unit files with its own program folder instead of /usr/bin.  Adds none if make install has
 * installed them, or if the tree is in a home folder, which the units cannot see (ProtectHome=). */
static int add_units(struct setup *s)
{
	static const char *const home[] = { "/usr/lib/systemd/system", "/usr/local/lib/systemd/system",
	                                    "/lib/systemd/system" };
	char exe[PATH_MAX] = "", at[PATH_MAX + 64], path[PATH_MAX + 64], bin[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

	for (size_t i = 0; i < sizeof(home) / sizeof(home[0]); i++) {
		snprintf(path, sizeof(path), "%s%s/%s", s->root, home[i], unit[0]);
		if (access(path, F_OK) == 0)
			return 0;
	}
	snprintf(bin, sizeof(bin), "%s", n > 0 ? dirname(exe) : "");
	if (!strncmp(bin, "/home/", 6) || !strncmp(bin, "/root/", 6))
		return 0;
	for (size_t i = 0; i < N(unit); i++) {
		char *text, out[PLACE_TEXT] = "", *from, *to;
		size_t len = 0;

		snprintf(at, sizeof(at), "%s/../systemd/%s", bin, unit[i]);
		if (!(text = place_read("", at)))
			return 0;             /* not run from its tree: make install adds the units */
		for (from = text; (to = strstr(from, "/usr/bin/")) && len < sizeof(out); from = to + 9)
			len += (size_t)snprintf(out + len, sizeof(out) - len, "%.*s%s/", (int)(to - from), from, bin);
		if (len < sizeof(out))
			snprintf(out + len, sizeof(out) - len, "%s", from);
		free(text);
		snprintf(path, sizeof(path), UNITS "%s", unit[i]);
		if (!step_add(s, STEP_FILE, "unit", path, out, "lets systemd start, watch and stop it"))
			return -ENOMEM;
	}
	return 0;
}

int setup_look(struct setup *s)
{
	char pages[24];

	snprintf(pages, sizeof(pages), "%ld", pages_wanted(s));
	s->n = 0;
	for (size_t i = 0; i < N(kept); i++)
		if (add_kept(s, &kept[i], kept[i].value ? kept[i].value : pages) < 0)
			return -ENOMEM;
	if (add_node_pages(s, pages_wanted(s)) < 0)
		return -ENOMEM;
	for (size_t i = 0; i < N(once); i++)
		if (!step_add(s, once[i].kind, once[i].what, once[i].path, once[i].text, once[i].why))
			return -ENOMEM;
	return add_units(s);
}

void setup_free(struct setup *s)
{
	for (int i = 0; i < s->n; i++)
		free(s->step[i].text);
	s->n = 0;
}

/* ---- applying---------------------------------------------------------------------------- */

/* Run a program with these arguments.  Returns its exit code, or -errno. */
static int run_program(const char *const *word)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		execvp(word[0], (char *const *)(uintptr_t)word);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0)
		return -errno;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -EINTR;
}

static int user_apply(const struct setup *s, const struct setup_step *t, char *err, size_t errlen)
{
	const char *word[16] = { "useradd", "--system", "--user-group", "--no-create-home", "--home-dir",
	                         "/var/lib/slipring", "--shell", "/usr/sbin/nologin" };
	int n = 8, r;

	if (*t->text) {
		word[n++] = "--groups";
		word[n++] = t->text;
	}
	if (*s->root) {
		word[n++] = "--prefix";
		word[n++] = s->root;
	}
	word[n++] = t->path;
	r = run_program(word);
	if (r)
		snprintf(err, errlen, "useradd %s ended with %d%s", t->path, r,
		         r == 127 ? ": it is not installed" : "");
	return r ? -EIO : 0;
}

static int value_apply(const struct setup *s, struct setup_step *t, char *err, size_t errlen)
{
	char *now;
	int e = place_write(s->root, t->path, t->text, true);

	if (e)
		return refuse(e, err, errlen, "%s%s: %s", s->root, t->path, strerror(-e));
	now = place_read(s->root, t->path);
	word_of(now ? now : "", t->have, sizeof(t->have));
	free(now);
	return 0;
}

int step_apply(const struct setup *s, struct setup_step *t, json_t **undo, char *err, size_t errlen)
{
	char was[80], *old = NULL;
	int e = 0;

	snprintf(was, sizeof(was), "%s", t->have);
	switch (t->kind) {
	case STEP_VALUE:
		e = value_apply(s, t, err, errlen);
		*undo = e ? NULL : json_pack("{s:s, s:s, s:s, s:s}", "kind", "value", "path", t->path, "before", was,
		                             "after", t->have);
		return e;
	case STEP_USER:
		e = user_apply(s, t, err, errlen);
		*undo = e ? NULL : json_pack("{s:s, s:s}", "kind", "user", "path", t->path);
		return e;
	case STEP_DIR:
		e = place_mkdir(s->root, t->path, 0755);
		*undo = e ? NULL : json_pack("{s:s, s:s}", "kind", "dir", "path", t->path);
		break;
	case STEP_FILE:
		old = place_read(s->root, t->path);
		e = place_write(s->root, t->path, t->text, false);
		*undo = e ? NULL : json_pack("{s:s, s:s, s:s?, s:s}", "kind", "file", "path", t->path, "before", old,
		                             "after", t->text);
		free(old);
		break;
	}
	if (e)
		snprintf(err, errlen, "%s%s: %s", s->root, t->path, strerror(-e));
	return e;
}

/* ---- undoing ----------------------------------------------------------------------------- */

static int user_undo(const struct setup *s, const char *name, char *say, size_t n)
{
	const char *with_root[] = { "userdel", "--prefix", s->root, name, NULL };
	const char *plain[] = { "userdel", name, NULL };
	int r;

	if (!user_exists(s, name)) {
		snprintf(say, n, "user %s no longer exists", name);
		return 0;
	}
	r = run_program(*s->root ? with_root : plain);
	if (r)
		snprintf(say, n, "userdel %s ended with %d", name, r);
	else
		snprintf(say, n, "user %s removed", name);
	return r ? -EIO : 1;
}

static int dir_undo(const struct setup *s, const char *path, char *say, size_t n)
{
	int e = place_remove(s->root, path, true);

	if (e == 0) {
		snprintf(say, n, "%s%s removed", s->root, path);
		return 1;
	}
	snprintf(say, n, "%s%s stays: %s", s->root, path, strerror(-e));
	return 0;
}

/* Is it a word that this file of the kernel can hold? */
static bool value_known(const struct kept_setting *k, const char *word)
{
	if (!k->words[0])
		return *word && strlen(word) <= 19 && word[strspn(word, "0123456789")] == 0;
	for (size_t i = 0; i < N(k->words) && k->words[i]; i++)
		if (!strcmp(k->words[i], word))
			return true;
	return false;
}

static bool file_known(const char *path)
{
	for (int i = 0; i < 64; i++)
		if (!strcmp(path, node_setting(i)->file))
			return true;
	for (size_t i = 0; i < N(kept); i++)
		if (!strcmp(path, kept[i].file))
			return true;
	for (size_t i = 0; i < N(unit); i++)
		if (!strncmp(path, UNITS, strlen(UNITS)) && !strcmp(path + strlen(UNITS), unit[i]))
			return true;
	for (size_t i = 0; i < N(once); i++)
		if (once[i].kind == STEP_FILE && !strcmp(path, once[i].path))
			return true;
	return false;
}

static bool once_known(enum step_kind kind, const char *path)
{
	for (size_t i = 0; i < N(once); i++)
		if (once[i].kind == kind && !strcmp(path, once[i].path))
			return true;
	return false;
}

bool step_known(const json_t *undo)
{
	const char *kind = json_string_value(json_object_get(undo, "kind"));
	const char *path = json_string_value(json_object_get(undo, "path"));
	const json_t *was = json_object_get(undo, "before"), *is = json_object_get(undo, "after");
	const char *before = json_string_value(was), *after = json_string_value(is);

	if (!kind || !path || json_object_size(undo) != (size_t)(2 + !!was + !!is))
		return false;
	if (!strcmp(kind, "user") || !strcmp(kind, "dir"))
		return !was && !is && once_known(*kind == 'u' ? STEP_USER : STEP_DIR, path);
	if (!strcmp(kind, "file"))
		return after && (before || json_is_null(was)) && strlen(after) < PLACE_TEXT &&
		       (!before || strlen(before) < PLACE_TEXT) && file_known(path);
	for (int i = 0; i < 64 && !strcmp(kind, "value"); i++)
		if (!strcmp(path, node_setting(i)->path))
			return before && after && value_known(node_setting(i), before) &&
			       value_known(node_setting(i), after);
	for (size_t i = 0; i < N(kept) && !strcmp(kind, "value"); i++)
		if (!strcmp(path, kept[i].path))
			return before && after && value_known(&kept[i], before) && value_known(&kept[i], after);
	return false;
}

int step_undo(const struct setup *s, const json_t *undo, char *say, size_t n)
{
	const char *kind = json_string_value(json_object_get(undo, "kind"));
	const char *name = json_string_value(json_object_get(undo, "path"));
	const char *before = json_string_value(json_object_get(undo, "before")); /* NULL: it was missing */
	const char *after = json_string_value(json_object_get(undo, "after"));
	char word[80], *now;
	bool value;
	int e;

	if (!step_known(undo)) {
		snprintf(say, n, "slipring setup does not make such a thing");
		return -EINVAL;
	}
	if (!strcmp(kind, "user"))
		return user_undo(s, name, say, n);
	if (!strcmp(kind, "dir"))
		return dir_undo(s, name, say, n);
	value = !strcmp(kind, "value");
	now = place_read(s->root, name);
	word_of(now ? now : "", word, sizeof(word));
	if (!now || strcmp(value ? word : now, after)) {
		snprintf(say, n, "%s%s stays: it was changed since", s->root, name);
		free(now);
		return 0;
	}
	free(now);
	e = before ? place_write(s->root, name, before, value) : place_remove(s->root, name, false);
	snprintf(say, n, "%s%s%s%s", s->root, name, e ? ": " : before ? " is as before" : " removed",
	         e ? strerror(-e) : "");
	return e ? e : 1;
}
