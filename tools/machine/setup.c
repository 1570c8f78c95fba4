/* setup.c - slipring setup: prepares this machine for serving, reports the changes, and undoes them.
 *
 * After every step it records the change in a folder that only root may enter.  So an undo knows the change
 * even if later steps failed.  An undo runs as root and follows the record.  So the record counts only if no
 * other user can have written it, and an entry only if setup itself can have made it. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "tools/commands.h"
#include "core/instance/fresh.h"
#include "setup.h"

#define FOLDER "/var/lib/slipring-setup"
#define RECORD FOLDER "/setup.json"
#define OLD    "/var/lib/slipring/setup.json" /* used up to 0.1.0; its folder belongs to the daemon's user */

struct setup_options { bool check, apply, undo, dry; struct setup s; };

static int setup_usage(FILE *to)
{
	fprintf(to, "slipring setup --check\n"
	        "slipring setup --apply [--huge-pages N] [--dry-run]\n"
	        "slipring setup --undo [--dry-run]\n"
	        "\n"
	        "Does what slipring doctor advises: huge pages, io_uring, locked memory, users, folders,\n"
	        "systemd units.  Each setting survives the next boot, in a file of its own.\n"
	        "\n"
	        "  --check          show what is done and what is missing; exit code 1 if something is missing\n"
	        "  --apply          set it up (as root); a second time it finds nothing to do\n"
	        "  --undo           undo what --apply did here, and nothing else (as root)\n"
	        "  --huge-pages N   number of pages of 2 MiB (default: 128, at most an eighth of the memory)\n"
	        "  --dry-run        show what would be done\n"
	        "  --root DIR       use DIR instead of / (to try it out)\n");
	return to == stdout ? 0 : 2;
}

static const char *wanted(const struct setup_step *t)
{
	return t->kind == STEP_VALUE ? t->text : "there";
}

static void print_step(const struct setup_step *t)
{
	printf("%-5s %-14s %-52s %s", t->absent ? "-" : t->good ? "ok" : "todo", t->what, t->path, t->have);
	if (!t->good)
		printf(" -> %s (%s)", wanted(t), t->why);
	putchar('\n');
}

static int setup_check(const struct setup *s)
{
	int todo = 0;

	for (int i = 0; i < s->n; i++) {
		print_step(&s->step[i]);
		todo += !s->step[i].good;
	}
	if (todo)
		printf("%d of %d to be done: slipring setup --apply\n", todo, s->n);
	else
		printf("nothing to be done\n");
	return todo > 0;
}

/* ---- the record -------------------------------------------------------------------------- */

static int refused(const char *root, const char *name, const struct stat *st, char *err, size_t n)
{
	snprintf(err, n, "%s%s: not trusted, and nothing was changed: it must belong to root, and nobody else "
	         "may write it (its uid is %u, its mode %03o)", root, name,
	         (unsigned)st->st_uid, st->st_mode & 0777u);
	return -EPERM;
}

/* Open the record if only root and the caller can have written it.  -ENOENT: there is none; other errors
 * come with a sentence. */
static int record_open(const char *root, char *err, size_t n)
{
	const char *leaf;
	struct stat st;
	int dir = place_dir(root, RECORD, false, &leaf), fd;

	if (dir >= 0 && fstat(dir, &st) == 0 && !place_ours(&st)) {
		close(dir);
		return refused(root, FOLDER, &st, err, n);
	}
	fd = dir < 0 ? dir : openat(dir, leaf, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (dir >= 0) {
		fd = fd < 0 ? -errno : fd;
		close(dir);
	}
	if (fd < 0) {
		snprintf(err, n, "%s" RECORD ": %s%s", root, fd == -ELOOP ? "it is a link, and links are not "
		         "followed" :
		         strerror(-fd), fd == -EACCES ? "; only root may read it" : "");
		return fd;
	}
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && place_ours(&st))
		return fd;
	close(fd);
	return refused(root, RECORD, &st, err, n);
}

/* Read the list of changes and check each entry.  NULL and a sentence on an error. */
static json_t *record_read(const char *root, char *err, size_t n)
{
	int fd = record_open(root, err, n);
	json_error_t e;
	const json_t *one;
	json_t *j;
	size_t i;

	if (fd == -ENOENT)
		return json_array();
	if (fd < 0)
		return NULL;
	j = json_loadfd(fd, 0, &e);
	close(fd);
	if (!json_is_array(j)) {
		snprintf(err, n, "%s" RECORD ": line %d: %s; --undo needs this record of what was changed",
		         root, e.line, j ? "no list" : e.text);
		json_decref(j);
		return NULL;
	}
	json_array_foreach(j, i, one)
		if (!step_known(one)) {
			snprintf(err, n, "%s" RECORD ": entry %zu is not something that slipring setup makes; it is not "
			         "trusted, and nothing was changed", root, i + 1);
			json_decref(j);
			return NULL;
		}
	return j;
}

/* Write the whole record, or change nothing. */
static int record_write(const char *root, const json_t *j)
{
	const char *leaf;
	struct fresh w;
	int dir, e;

	if (json_array_size(j) == 0) {
		e = place_remove(root, RECORD, false);
		place_remove(root, FOLDER, true);
		return e == -ENOENT ? 0 : e;
	}
	if ((e = place_mkdir(root, FOLDER, 0700)) < 0)
		return e;
	if ((dir = place_dir(root, RECORD, false, &leaf)) < 0)
		return dir;
	e = fresh_open(&w, dir, leaf, 0600);
	if (!e && json_dumpf(j, w.f, JSON_INDENT(1)) < 0)
		e = -EIO;
	if (!e)
		e = fresh_done(&w);
	fresh_drop(&w);
	close(dir);
	return e;
}

/* Is there a record of an older version?  If so, print that. */
static bool record_old(const char *root)
{
	char path[PATH_MAX];
	struct stat st;

	snprintf(path, sizeof(path), "%s" OLD, root);
	if (lstat(path, &st) < 0)
		return false;
	fprintf(stderr, "slipring setup: %s is ignored: an older version kept its record there, where the "
	        "daemon's user can write.  If its content is right, move it as root: install -D -m 600 %s "
	        "%s" RECORD " && rm %s\n", path, path, root, path);
	return true;
}

/* ---- apply and undo ---------------------------------------------------------------------- */

static int apply_one(struct setup_options *a, struct setup_step *t, json_t *record)
{
	char err[400] = "", was[80];
	json_t *undo = NULL;
	int e;

	snprintf(was, sizeof(was), "%s", t->have);
	if (a->dry) {
		printf("would   %-14s %s: %s -> %s\n", t->what, t->path, was, wanted(t));
		return 0;
	}
	e = step_apply(&a->s, t, &undo, err, sizeof(err));
	if (e < 0) {
		printf("FAILED  %-14s %s\n", t->what, err);
		return e;
	}
	printf("changed %-14s %s: %s -> %s\n", t->what, t->path, was, t->kind == STEP_VALUE ? t->have : "there");
	if (t->kind == STEP_VALUE && strcmp(t->have, t->text))
		printf("        the kernel gave %s of %s; it gives all of them after a boot, while memory is in one "
		       "piece\n",
		       t->have, t->text);
	if (!undo || json_array_append_new(record, undo) < 0 || (e = record_write(a->s.root, record)) < 0) {
		printf("FAILED  %s" RECORD " cannot be written (%s): --undo will not know of this\n", a->s.root,
		       strerror(-e));
		return e < 0 ? e : -ENOMEM;
	}
	return 0;
}

static bool manager_runs(const struct setup *s)
{
	return !*s->root && access("/run/systemd/system", F_OK) == 0;
}

static int apply(struct setup_options *a, json_t *record)
{
	int n = 0, failed = 0;
	bool units = false;

	for (int i = 0; i < a->s.n; i++) {
		struct setup_step *t = &a->s.step[i];

		if (t->good)
			continue;
		n++;
		failed += apply_one(a, t, record) < 0;
		units |= !strcmp(t->what, "unit");
	}
	if (!n)
		printf("nothing to be done\n");
	if (units && !a->dry && manager_runs(&a->s) && system("systemctl daemon-reload") != 0)
		printf("FAILED  systemctl daemon-reload\n");
	if (n && !failed && !a->dry)
		printf("done; slipring setup --undo takes it back.  Next: a model below /var/lib/slipring/models, "
		       "systemctl enable --now slipring slipring-http\n");
	return failed ? 1 : 0;
}

static int undo(const struct setup_options *a, json_t *record)
{
	int failed = 0;

	if (!json_array_size(record))
		printf("nothing to take back: %s" RECORD " is not there\n", a->s.root);
	for (size_t i = json_array_size(record); i-- > 0; ) {
		const json_t *one = json_array_get(record, i);
		char say[PATH_MAX + 200] = "";
		int r;

		if (a->dry) {
			printf("would take back %s\n", json_string_value(json_object_get(one, "path")));
			continue;
		}
		r = step_undo(&a->s, one, say, sizeof(say));
		printf("%-7s %s\n", r < 0 ? "FAILED" : r ? "undone" : "left", say);
		if (r < 0) {
			failed++;             /* it stays in the record */
			continue;
		}
		json_array_remove(record, i);
		if (record_write(a->s.root, record) < 0)
			failed++;
	}
	return failed ? 1 : 0;
}

/* ---- the command ------------------------------------------------------------------------- */

static bool setup_word(struct setup_options *a, int argc, char **argv, int *i)
{
	const char *w = argv[*i], *next = *i + 1 < argc ? argv[*i + 1] : NULL;
	char *end = NULL;

	if (!strcmp(w, "--check"))
		return a->check = true;
	if (!strcmp(w, "--apply"))
		return a->apply = true;
	if (!strcmp(w, "--undo"))
		return a->undo = true;
	if (!strcmp(w, "--dry-run"))
		return a->dry = true;
	if (!next)
		return false;
	++*i;
	if (!strcmp(w, "--root")) {
		a->s.root = next;
		return *next == '/';
	}
	if (strcmp(w, "--huge-pages"))
		return false;
	a->s.huge_pages = strtol(next, &end, 10);
	return !*end && a->s.huge_pages >= 1 && a->s.huge_pages <= 1 << 24;
}

static int setup_change(struct setup_options *a)
{
	char err[PATH_MAX + 400];
	json_t *record;
	bool old;
	int r;

	if (geteuid() != 0 && !*a->s.root && !a->dry) {
		fprintf(stderr, "slipring setup: this changes the system and needs root: sudo slipring setup %s "
		        "(--dry-run shows what it would do)\n", a->undo ? "--undo" : "--apply");
		return 1;
	}
	record = a->apply && a->dry ? json_array() : record_read(a->s.root, err, sizeof(err));
	if (!record) {
		fprintf(stderr, "slipring setup: %s\n", err);
		return 1;
	}
	old = record_old(a->s.root);
	r = !a->undo ? apply(a, record) : old && !json_array_size(record) ? 1 : undo(a, record);
	json_decref(record);
	return r;
}

int cmd_setup(int argc, char **argv)
{
	struct setup_options a = { .s = { .root = "" } };
	int r, at;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return setup_usage(stdout);
		at = i;
		if (!setup_word(&a, argc, argv, &i))
			return command_wrong("setup", argv, at, i);
	}
	if (a.check + a.apply + a.undo != 1)
		return setup_usage(stderr);
	if (a.s.root[strspn(a.s.root, "/")] == 0)
		a.s.root = "";
	if (setup_look(&a.s) < 0) {
		fprintf(stderr, "slipring setup: no memory\n");
		setup_free(&a.s);
		return 1;
	}
	r = a.check ? setup_check(&a.s) : setup_change(&a);
	setup_free(&a.s);
	return r;
}
