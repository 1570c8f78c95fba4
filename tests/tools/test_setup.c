/* LINK: tools/machine/setup_place.c tools/machine/setup_steps.c core/instance/fresh.c core/instance/refuse.c -ljansson */
/* test_setup.c - slipring setup follows no link out of a folder that others may write, and undoes only what
 * it can have made. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/machine/setup.h"

static char root[64];

static const char *at(const char *name)
{
	static char path[200];

	snprintf(path, sizeof(path), "%s/%s", root, name);
	return path;
}

static void put(const char *name, const char *text)
{
	FILE *f = fopen(at(name), "w");

	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void holds(const char *name, const char *text)
{
	char *is = place_read(root, name);

	if (!text)
		assert_null(is);
	else
		assert_string_equal(is, text);
	free(is);
}

/* closed: no other user can write it.  open: another user can, as the daemon's user its own folder. */
static int set_up(void **state)
{
	(void)state;
	umask(022);
	strcpy(root, "/tmp/test-setup-XXXXXX");
	assert_non_null(mkdtemp(root));
	assert_int_equal(mkdir(at("closed"), 0755), 0);
	assert_int_equal(mkdir(at("open"), 0777), 0);
	assert_int_equal(chmod(at("open"), 0777), 0);
	assert_int_equal(mkdir(at("real"), 0755), 0);
	put("real/file", "untouched");
	assert_int_equal(symlink("../real", at("closed/link")), 0);
	assert_int_equal(symlink("../real", at("open/link")), 0);
	assert_int_equal(symlink("../real/file", at("closed/leaf")), 0);
	assert_int_equal(symlink("../real/file", at("open/leaf")), 0);
	return 0;
}

static int tear_down(void **state)
{
	char command[100];

	(void)state;
	snprintf(command, sizeof(command), "rm -r %s", root);
	return system(command);
}

static void links_on_the_way(void **state)
{
	(void)state;
	holds("/closed/link/file", "untouched"); /* a user who may write here anyway */
	holds("/open/link/file", NULL);
	assert_int_equal(place_write(root, "/open/link/file", "x", false), -ENOTDIR);
	assert_int_equal(place_write(root, "/open/link/more/file", "x", false), -ENOTDIR);
	assert_int_equal(place_write(root, "/open/link/file", "x", true), -ENOTDIR);
	assert_int_equal(place_mkdir(root, "/open/link/more", 0755), -ENOTDIR);
	assert_int_equal(place_remove(root, "/open/link/file", false), -ENOTDIR);
	holds("/real/file", "untouched");
	assert_int_equal(place_write(root, "closed/link/file", "y", false), 0);
	holds("real/file", "y");
}

static void links_at_the_end(void **state)
{
	static const char *const folder[] = { "closed", "open" };
	char path[40];
	struct stat st;

	(void)state;
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "/%s/leaf", folder[i]);
		holds(path, NULL);
		assert_int_equal(place_write(root, path, "x", true), -ELOOP);
		holds("/real/file", "untouched");
		assert_int_equal(place_write(root, path, "x", false), 0); /* the link is replaced */
		holds("/real/file", "untouched");
		holds(path, "x");
		assert_int_equal(stat(at(path), &st), 0);
		assert_int_equal(st.st_mode & 07777, 0644);
		snprintf(path, sizeof(path), "/%s/link", folder[i]);
		assert_int_equal(place_remove(root, path, true), -ENOTDIR);
		assert_int_equal(place_remove(root, path, false), 0);
	}
	holds("/real/file", "untouched");
}

static void what_is_missing(void **state)
{
	const char *leaf;
	struct stat st;

	(void)state;
	assert_int_equal(place_dir(root, "/no/where", false, &leaf), -ENOENT);
	holds("/no/where", NULL);
	assert_int_equal(place_write(root, "/no/where/at/all", "1", true), -ENOENT); /* a value makes no folder */
	assert_int_equal(place_write(root, "/real/none", "1", true), -ENOENT);       /* nor a file */
	assert_int_equal(place_remove(root, "/no/where/at/all", false), -ENOENT); /* nor does a removal */
	assert_int_equal(access(at("no"), F_OK), -1);
	assert_int_equal(place_write(root, "/no/where/at/all", "1", false), 0);
	holds("/no/where/at/all", "1");
	assert_int_equal(place_mkdir(root, "/a/b", 0700), 0);
	assert_int_equal(stat(at("a"), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
	assert_int_equal(stat(at("a/b"), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	assert_int_equal(place_mkdir(root, "/a/b", 0700), 0);
	assert_int_equal(place_remove(root, "/a", true), -ENOTEMPTY);
	assert_int_equal(place_remove(root, "/a/b", true), 0);
	assert_int_equal(place_write(root, "/real/file/below", "1", false), -ENOTDIR);
	holds("/real", NULL);                    /* a folder has no text */
	assert_int_equal(mkfifo(at("fifo"), 0600), 0);
	holds("/fifo", NULL);                    /* a FIFO is not waited for */
}

/* Whatever call fails, no descriptor is left. */
static void nothing_is_left(void **state)
{
	static const char *const paths[] = { "/real/file", "/real", "/open/link/file", "/no/where", "/closed/link/none",
	                                     "/closed/leaf", "/real/file/below", "/empty" };
	char name[NAME_MAX + 20], file[200];
	int first = dup(0), last;

	(void)state;
	close(first);
	put("empty", "");
	holds("/empty", "");
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		free(place_read(root, paths[i]));
		free(place_read("/no/root", paths[i]));
		place_write(root, paths[i], "x", true);
		place_write(root, paths[i], "x", false);
		place_mkdir(root, paths[i], 0700);
		place_remove(root, paths[i], true);
		place_remove(root, paths[i], false);
	}
	assert_null(place_read("/proc/self", "/mem"));   /* it is a file, but cannot be read from its beginning */
	assert_int_equal(place_write(root, "/real", "x", false), -EISDIR);
	memset(name, 'n', sizeof(name));
	name[0] = '/';
	name[NAME_MAX + 2] = 0;
	assert_int_equal(place_write(root, name, "x", false), -ENAMETOOLONG);
	name[NAME_MAX + 2] = 'n';
	strcpy(name + NAME_MAX + 1, "/file");     /* the longest name there is */
	assert_int_equal(place_write(root, name, "x", false), 0);
	holds(name, "x");
	strcpy(name + NAME_MAX + 1, "n/file");
	assert_int_equal(place_write(root, name, "x", false), -ENAMETOOLONG);
	assert_int_equal(place_write("/no/root", "/file", "x", false), -ENOENT);
	snprintf(file, sizeof(file), "%s/empty", root);
	put("empty", "");
	assert_int_equal(place_write(file, "/file", "x", false), -ENOTDIR); /* the root is no folder */
	assert_int_equal(place_mkdir(root, "/empty/more", 0700), -ENOTDIR);
	assert_true(place_mkdir("/proc", "/self/none", 0700) < 0); /* where nothing can be made */
	assert_int_equal(place_write("/dev", "/full", "x", true), -ENOSPC);
	last = dup(0);
	close(last);
	assert_int_equal(first, last);
}

/* Standard input may be closed: then the first file that is opened is descriptor 0. */
static void as_descriptor_0(void **state)
{
	int in = fcntl(0, F_DUPFD_CLOEXEC, 10);
	char *is;

	(void)state;
	assert_true(in >= 10);
	close(0);
	assert_int_equal(place_write(root, "/real/file", "1", true), 0);
	assert_int_equal(fcntl(0, F_GETFD), -1);         /* it is closed again */
	assert_int_equal(place_write(root, "/real/file", "2", false), 0);
	assert_int_equal(fcntl(0, F_GETFD), -1);
	is = place_read(root, "/real/file");
	assert_int_equal(fcntl(0, F_GETFD), -1);
	assert_int_equal(place_mkdir(root, "/real/more", 0700), 0);
	assert_int_equal(place_remove(root, "/real/more", true), 0);
	assert_int_equal(fcntl(0, F_GETFD), -1);
	assert_int_equal(dup2(in, 0), 0);
	close(in);
	assert_string_equal(is, "2");
	free(is);
}

static void who_may_write(void **state)
{
	static const struct { mode_t mode; bool root, ours; } cases[] = {
		{ 0755, true, true }, { 0700, true, true }, { 0775, true, false }, { 0757, true, false },
		{ 01777, true, false }, { 0755, false, false },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct stat st = { .st_mode = cases[i].mode, .st_uid = cases[i].root ? 0 : geteuid() + 1 };

		assert_int_equal(place_ours(&st), cases[i].ours);
	}
	assert_true(place_ours(&(struct stat){ .st_mode = 0755, .st_uid = geteuid() }));
}

/* undo knows what setup makes here, and removes it. */
static void there_and_back(void **state)
{
	static struct setup s;
	char err[600], say[600];
	int n = 0;

	(void)state;
	s = (struct setup){ .root = root, .huge_pages = 4 };
	assert_int_equal(mkdir(at("proc"), 0755) | mkdir(at("proc/sys"), 0755) | mkdir(at("proc/sys/vm"), 0755), 0);
	put("proc/sys/vm/nr_hugepages", "0\n");
	assert_int_equal(setup_look(&s), 0);
	for (int i = 0; i < s.n; i++) {
		json_t *undo = NULL;

		if (s.step[i].good || s.step[i].kind == STEP_USER)
			continue;
		assert_int_equal(step_apply(&s, &s.step[i], &undo, err, sizeof(err)), 0);
		assert_true(step_known(undo));
		assert_int_equal(step_undo(&s, undo, say, sizeof(say)), 1);
		json_object_set_new(undo, "path", json_string("/etc/passwd"));
		assert_false(step_known(undo));
		assert_int_equal(step_undo(&s, undo, say, sizeof(say)), -EINVAL);
		json_decref(undo);
		n++;
	}
	assert_true(n >= 5);
	holds("/proc/sys/vm/nr_hugepages", "0");
	setup_free(&s);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		T(links_on_the_way), T(links_at_the_end), T(what_is_missing), T(nothing_is_left), T(as_descriptor_0), T(who_may_write), T(there_and_back),
	};
#undef T

	return cmocka_run_group_tests_name("setup", tests, NULL, NULL);
}
