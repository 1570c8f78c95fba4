/* setup_steps.c - the steps of `slipring setup`: which there are, looking, doing, taking back.
 *
 * Nothing is overwritten that is not ours: files have names of their own, and a value goes back to what
 * it was only if it still is what we made it. */
#include "setup.h"

#include <errno.h>
#include <fcntl.h>
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

#define TEXT_MOST 16384
#define PAGE_BYTES (2l << 20)
#define PAGES_DEFAULT 128             /* the rings of seven adapters, or of a hundred other programs */
#define HEAD "# Written by slipring setup --apply; --undo removes it.\n"

/* ---- files ------------------------------------------------------------------------------- */

static const char *below(const struct setup *s, const char *path, char *out, size_t n)
{
	snprintf(out, n, "%s%s", s->root, path);
	return out;
}

/* A small file as text; NULL: it cannot be read. */
static char *read_text(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	char *buf = fd < 0 ? NULL : calloc(1, TEXT_MOST);
	ssize_t n = buf ? read(fd, buf, TEXT_MOST - 1) : -1;

	if (fd >= 0)
		close(fd);
	if (n >= 0)
		return buf;
	free(buf);
	return NULL;
}

/* Written beside it and renamed, but into /proc and /sys, where that cannot be. */
static int write_text(const char *path, const char *text, bool in_place)
{
	char tmp[PATH_MAX];
	size_t len = strlen(text);
	int fd, e = 0;

	snprintf(tmp, sizeof(tmp), in_place ? "%s" : "%s.new", path);
	fd = open(tmp, O_WRONLY | O_CLOEXEC | O_TRUNC | (in_place ? 0 : O_CREAT), 0644);
	if (fd < 0)
		return -errno;
	if (write(fd, text, len) != (ssize_t)len)
		e = errno ? -errno : -EIO;
	if (!in_place && fchmod(fd, 0644) < 0 && !e)
		e = -errno;
	if (close(fd) < 0 && !e)
		e = -errno;
	if (!e && !in_place && rename(tmp, path) < 0)
		e = -errno;
	if (e && !in_place)
		unlink(tmp);
	return e;
}

static int make_dirs(const char *path)
{
	char part[PATH_MAX];

	for (const char *s = path; *s; ) {
		s += strspn(s, "/");
		s += strcspn(s, "/");
		snprintf(part, sizeof(part), "%.*s", (int)(s - path), path);
		if (mkdir(part, 0755) < 0 && errno != EEXIST)
			return -errno;
	}
	return 0;
}

/* The word in force: of "always [madvise] never" the one in brackets, else the first. */
static void word_of(const char *text, char *out, size_t n)
{
	const char *open = strchr(text, '[');

	if (open)
		snprintf(out, n, "%.*s", (int)strcspn(open + 1, "]"), open + 1);
	else
		snprintf(out, n, "%.*s", (int)strcspn(text, " \t\n"), text);
}

/* ---- looking ----------------------------------------------------------------------------- */

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
	return p || (!*s->root && getpwnam(name));   /* who is not in the file may be elsewhere */
}

static void look(const struct setup *s, struct step *t)
{
	char path[PATH_MAX], *text = NULL;
	struct stat st;

	below(s, t->path, path, sizeof(path));
	switch (t->kind) {
	case STEP_VALUE:
		text = read_text(path);
		t->absent = !text;
		word_of(text ? text : "", t->have, sizeof(t->have));
		if (t->absent)
			snprintf(t->have, sizeof(t->have), "not in this kernel");
		t->good = t->absent || value_good(t->path, t->have, t->text);
		break;
	case STEP_FILE:
		text = read_text(path);
		t->good = text && !strcmp(text, t->text);
		snprintf(t->have, sizeof(t->have), "%s", t->good ? "there" : text ? "another text" : "not there");
		break;
	case STEP_DIR:
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

/* ---- which there are --------------------------------------------------------------------- */

static struct step *add(struct setup *s, enum step_kind kind, const char *what, const char *path,
                        const char *text, const char *why)
{
	struct step *t = &s->step[s->n];

	*t = (struct step){ .what = what, .why = why, .kind = kind, .text = strdup(text) };
	snprintf(t->path, sizeof(t->path), "%s", path);
	if (!t->text)
		return NULL;
	s->n++;
	look(s, t);
	return t;
}

/* A value, and the file that brings it back at the next boot: only if it was not so before us, for
 * somebody else may keep it otherwise. */
static int add_kept(struct setup *s, const char *what, const char *path, const char *value,
                    const char *file, const char *line, const char *why)
{
	struct step *t = add(s, STEP_VALUE, what, path, value, why);
	char text[400], at[PATH_MAX];

	if (!t)
		return -ENOMEM;
	if (t->absent || (t->good && access(below(s, file, at, sizeof(at)), F_OK) < 0))
		return 0;
	snprintf(text, sizeof(text), HEAD "%s%s\n", line, value);
	return add(s, STEP_FILE, what, file, text, "so it is after the next boot, too") ? 0 : -ENOMEM;
}

static long pages_wanted(const struct setup *s)
{
	long pages = sysconf(_SC_PHYS_PAGES) / (PAGE_BYTES / sysconf(_SC_PAGESIZE)) / 8;

	return s->huge_pages ? s->huge_pages : pages < PAGES_DEFAULT ? pages : PAGES_DEFAULT;
}

/* Unit files of this tree, its program instead of /usr/bin; none where make install has put them, nor
 * of a tree in somebody's home, which the units do not see (ProtectHome=). */
static int add_units(struct setup *s)
{
	static const char *const unit[] = { "slipring.service", "slipring@.service", "slipring-ring.socket",
	                                    "slipring-http.service", "slipring-http.socket" };
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
	for (size_t i = 0; i < sizeof(unit) / sizeof(unit[0]); i++) {
		char *text, out[TEXT_MOST] = "", *from, *to;
		size_t len = 0;

		snprintf(at, sizeof(at), "%s/../systemd/%s", bin, unit[i]);
		if (!(text = read_text(at)))
			return 0;             /* neither installed nor in its tree: make install does it */
		for (from = text; (to = strstr(from, "/usr/bin/")) && len < sizeof(out); from = to + 9)
			len += (size_t)snprintf(out + len, sizeof(out) - len, "%.*s%s/", (int)(to - from), from, bin);
		if (len < sizeof(out))
			snprintf(out + len, sizeof(out) - len, "%s", from);
		free(text);
		snprintf(path, sizeof(path), "/etc/systemd/system/%s", unit[i]);
		if (!add(s, STEP_FILE, "unit", path, out, "so that systemd starts, watches and stops it"))
			return -ENOMEM;
	}
	return 0;
}

int setup_look(struct setup *s)
{
	char pages[24];
	const struct { const char *what, *path, *value, *file, *line, *why; } kept[] = {
		{ "huge pages", "/proc/sys/vm/nr_hugepages", pages, "/etc/sysctl.d/60-slipring-hugepages.conf",
		  "vm.nr_hugepages = ", "rings of trusted clients lie in them: fewer TLB misses" },
		{ "THP", "/sys/kernel/mm/transparent_hugepage/enabled", "madvise",
		  "/etc/tmpfiles.d/slipring-thp.conf", "w /sys/kernel/mm/transparent_hugepage/enabled - - - - ",
		  "weights in huge pages: decoding is 15 % faster" },
		{ "io_uring", "/proc/sys/kernel/io_uring_disabled", "0",
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

	snprintf(pages, sizeof(pages), "%ld", pages_wanted(s));
	s->n = 0;
	for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
		if (add_kept(s, kept[i].what, kept[i].path, kept[i].value, kept[i].file, kept[i].line,
		             kept[i].why) < 0)
			return -ENOMEM;
	for (size_t i = 0; i < sizeof(once) / sizeof(once[0]); i++)
		if (!add(s, once[i].kind, once[i].what, once[i].path, once[i].text, once[i].why))
			return -ENOMEM;
	return add_units(s);
}

void setup_free(struct setup *s)
{
	for (int i = 0; i < s->n; i++)
		free(s->step[i].text);
	s->n = 0;
}

/* ---- doing ------------------------------------------------------------------------------- */

/* A program with these words; its exit code, or -errno. */
static int run(const char *const *word)
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

static int user_apply(const struct setup *s, const struct step *t, char *err, size_t errlen)
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
	r = run(word);
	if (r)
		snprintf(err, errlen, "useradd %s ended with %d%s", t->path, r,
		         r == 127 ? ": it is not installed" : "");
	return r ? -EIO : 0;
}

static int value_apply(struct step *t, const char *path, char *err, size_t errlen)
{
	char *now;
	int e = write_text(path, t->text, true);

	if (e) {
		snprintf(err, errlen, "%s: %s", path, strerror(-e));
		return e;
	}
	now = read_text(path);
	word_of(now ? now : "", t->have, sizeof(t->have));
	free(now);
	return 0;
}

int step_apply(const struct setup *s, struct step *t, json_t **undo, char *err, size_t errlen)
{
	char path[PATH_MAX], was[80], dir[PATH_MAX], *old = NULL;
	int e = 0;

	below(s, t->path, path, sizeof(path));
	snprintf(was, sizeof(was), "%s", t->have);
	switch (t->kind) {
	case STEP_VALUE:
		e = value_apply(t, path, err, errlen);
		*undo = e ? NULL : json_pack("{s:s, s:s, s:s, s:s}", "kind", "value", "path", t->path, "before", was,
		                             "after", t->have);
		return e;
	case STEP_USER:
		e = user_apply(s, t, err, errlen);
		*undo = e ? NULL : json_pack("{s:s, s:s}", "kind", "user", "path", t->path);
		return e;
	case STEP_DIR:
		e = make_dirs(path);
		*undo = e ? NULL : json_pack("{s:s, s:s}", "kind", "dir", "path", t->path);
		break;
	case STEP_FILE:
		old = read_text(path);
		snprintf(dir, sizeof(dir), "%s", path);
		e = make_dirs(dirname(dir));
		if (!e)
			e = write_text(path, t->text, false);
		*undo = e ? NULL : json_pack("{s:s, s:s, s:s?, s:s}", "kind", "file", "path", t->path, "before", old,
		                             "after", t->text);
		free(old);
		break;
	}
	if (e)
		snprintf(err, errlen, "%s: %s", path, strerror(-e));
	return e;
}

/* ---- taking back ------------------------------------------------------------------------- */

static int user_undo(const struct setup *s, const char *name, char *say, size_t n)
{
	const char *with_root[] = { "userdel", "--prefix", s->root, name, NULL };
	const char *plain[] = { "userdel", name, NULL };
	int r;

	if (!user_exists(s, name)) {
		snprintf(say, n, "user %s is not there any more", name);
		return 0;
	}
	r = run(*s->root ? with_root : plain);
	if (r)
		snprintf(say, n, "userdel %s ended with %d", name, r);
	else
		snprintf(say, n, "user %s removed", name);
	return r ? -EIO : 1;
}

static int dir_undo(const char *path, char *say, size_t n)
{
	if (rmdir(path) == 0) {
		snprintf(say, n, "%s removed", path);
		return 1;
	}
	snprintf(say, n, "%s stays: %s", path, strerror(errno));
	return 0;
}

int step_undo(const struct setup *s, const json_t *undo, char *say, size_t n)
{
	const char *kind = json_string_value(json_object_get(undo, "kind"));
	const char *name = json_string_value(json_object_get(undo, "path"));
	const char *before = json_string_value(json_object_get(undo, "before")); /* NULL: it was not there */
	const char *after = json_string_value(json_object_get(undo, "after"));
	char path[PATH_MAX], word[80], *now;
	bool value;
	int e;

	if (!kind || !name) {
		snprintf(say, n, "an entry of the record cannot be read");
		return -EINVAL;
	}
	below(s, name, path, sizeof(path));
	if (!strcmp(kind, "user"))
		return user_undo(s, name, say, n);
	if (!strcmp(kind, "dir"))
		return dir_undo(path, say, n);
	value = !strcmp(kind, "value");
	now = read_text(path);
	word_of(now ? now : "", word, sizeof(word));
	if (!now || !after || strcmp(value ? word : now, after)) {
		snprintf(say, n, "%s stays: it is not as we had left it", path);
		free(now);
		return 0;
	}
	free(now);
	e = before ? write_text(path, before, value) : unlink(path) < 0 ? -errno : 0;
	snprintf(say, n, "%s%s%s", path, e ? ": " : before ? " is as before" : " removed",
	         e ? strerror(-e) : "");
	return e ? e : 1;
}
