/* setup.c - slipring setup: make this machine fit to serve, say what was changed, take it back.
 *
 * What it changed is written down after every step, in /var/lib/slipring/setup.json, so that an undo
 * knows of it even if the rest failed. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "commands.h"
#include "setup.h"

#define RECORD "/var/lib/slipring/setup.json"

struct asked { bool check, apply, undo, dry; struct setup s; };

static int usage(FILE *to)
{
	fprintf(to, "slipring setup --check\n"
	            "slipring setup --apply [--huge-pages N] [--dry-run]\n"
	            "slipring setup --undo [--dry-run]\n\n"
	            "Does what slipring doctor advises: huge pages, io_uring, locked memory, users, folders,\n"
	            "systemd units.  Each is kept for the next boot, in files of its own.\n\n"
	            "  --check          what is there and what is to be done; exit code 1 if something is\n"
	            "  --apply          do it (as root); a second time it finds nothing to do\n"
	            "  --undo           take back what --apply has done here, and nothing else (as root)\n"
	            "  --huge-pages N   of 2 MiB (default: 128, at most an eighth of the memory)\n"
	            "  --dry-run        say what would be done\n"
	            "  --root DIR       below DIR instead of / (to try it out)\n");
	return to == stdout ? 0 : 2;
}

static const char *wanted(const struct step *t)
{
	return t->kind == STEP_VALUE ? t->text : "there";
}

static void print_step(const struct step *t)
{
	printf("%-5s %-14s %-52s %s", t->absent ? "-" : t->good ? "ok" : "todo", t->what, t->path, t->have);
	if (!t->good)
		printf(" -> %s (%s)", wanted(t), t->why);
	putchar('\n');
}

static int check(const struct setup *s)
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

static json_t *record_read(const char *path, char *err, size_t n)
{
	json_error_t e;
	json_t *j;

	if (access(path, F_OK) < 0)
		return json_array();
	j = json_load_file(path, 0, &e);
	if (json_is_array(j))
		return j;
	json_decref(j);
	snprintf(err, n, "%s: line %d: %s; it says what was changed here, and an undo needs it", path, e.line,
	         j ? "no list" : e.text);
	return NULL;
}

/* All of it or none: beside it, then renamed. */
static int record_write(const char *path, const json_t *j)
{
	char tmp[PATH_MAX + 8], dir[PATH_MAX];

	for (size_t i = 1; i < strlen(path); i++)
		if (path[i] == '/') {
			snprintf(dir, sizeof(dir), "%.*s", (int)i, path);
			if (mkdir(dir, 0755) < 0 && errno != EEXIST)
				return -errno;
		}
	if (json_array_size(j) == 0)
		return unlink(path) < 0 && errno != ENOENT ? -errno : 0;
	snprintf(tmp, sizeof(tmp), "%s.new", path);
	if (json_dump_file(j, tmp, JSON_INDENT(1)) < 0 || rename(tmp, path) < 0) {
		int e = errno ? -errno : -EIO;

		unlink(tmp);
		return e;
	}
	return 0;
}

/* ---- apply and undo ---------------------------------------------------------------------- */

static int apply_one(struct asked *a, struct step *t, json_t *record, const char *path)
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
		printf("        the kernel gave %s of %s; after a boot, with memory in one piece, it gives all\n",
		       t->have, t->text);
	if (!undo || json_array_append_new(record, undo) < 0 || (e = record_write(path, record)) < 0) {
		printf("FAILED  %s cannot be written (%s): an undo will not know of this\n", path, strerror(-e));
		return e < 0 ? e : -ENOMEM;
	}
	return 0;
}

static bool manager_runs(const struct setup *s)
{
	return !*s->root && access("/run/systemd/system", F_OK) == 0;
}

static int apply(struct asked *a, json_t *record, const char *path)
{
	int n = 0, failed = 0;
	bool units = false;

	for (int i = 0; i < a->s.n; i++) {
		struct step *t = &a->s.step[i];

		if (t->good)
			continue;
		n++;
		failed += apply_one(a, t, record, path) < 0;
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

static int undo(const struct asked *a, json_t *record, const char *path)
{
	int failed = 0;

	if (!json_array_size(record))
		printf("nothing to take back: %s is not there\n", path);
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
		if (record_write(path, record) < 0)
			failed++;
	}
	return failed ? 1 : 0;
}

/* ---- the command ------------------------------------------------------------------------- */

static bool take(struct asked *a, int argc, char **argv, int *i)
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

static int change(struct asked *a)
{
	char path[PATH_MAX], err[PATH_MAX + 300];
	json_t *record;
	int r;

	if (geteuid() != 0 && !*a->s.root && !a->dry) {
		fprintf(stderr, "slipring setup: this changes the system and needs root: sudo slipring setup %s "
		        "(--dry-run says what it would do)\n", a->undo ? "--undo" : "--apply");
		return 1;
	}
	snprintf(path, sizeof(path), "%s" RECORD, a->s.root);
	record = record_read(path, err, sizeof(err));
	if (!record) {
		fprintf(stderr, "slipring setup: %s\n", err);
		return 1;
	}
	r = a->undo ? undo(a, record, path) : apply(a, record, path);
	json_decref(record);
	return r;
}

int cmd_setup(int argc, char **argv)
{
	struct asked a = { .s = { .root = "" } };
	int r, at;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return usage(stdout);
		at = i;
		if (!take(&a, argc, argv, &i))
			return command_wrong("setup", argv, at, i);
	}
	if (a.check + a.apply + a.undo != 1)
		return usage(stderr);
	if (a.s.root[strspn(a.s.root, "/")] == 0)
		a.s.root = "";
	if (setup_look(&a.s) < 0) {
		fprintf(stderr, "slipring setup: no memory\n");
		setup_free(&a.s);
		return 1;
	}
	r = a.check ? check(&a.s) : change(&a);
	setup_free(&a.s);
	return r;
}
