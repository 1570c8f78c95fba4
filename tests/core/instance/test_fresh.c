/* LINK: core/instance/fresh.c tools/bench/bench_save.c tools/bench/bench_report.c tools/bench/bench_arrival.c tools/bench/bench_metrics.c core/figures/figures.c core/instance/stats.c tools/save.c core/instance/refuse.c -ljansson -lyaml -Wl,--wrap=fsync,--wrap=renameat,--wrap=getrandom,--wrap=fdopen,--wrap=fclose */
/* test_fresh.c - a file replaces the old one when it is whole.  A link put beside it is not followed, and a
 * failure leaves all as it was. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "core/instance/fresh.h"
#include "tools/bench/bench.h"
#include "tools/save.h"

static char dir[64], path[96], victim[96];
static const char *fault;
static int same_names;                   /* how often the same name is drawn */

#define WRAP(type, name, args, pass) \
	type __real_##name args; type __wrap_##name args; \
	type __wrap_##name args { \
		if (!fault || strcmp(fault, #name)) \
			return __real_##name pass; \
		errno = ENOSPC; \
		return -1; \
	}

WRAP(int, fsync, (int fd), (fd))
WRAP(int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))

FILE *__real_fdopen(int fd, const char *mode);
FILE *__wrap_fdopen(int fd, const char *mode);

FILE *__wrap_fdopen(int fd, const char *mode)
{
	if (!fault || strcmp(fault, "fdopen"))
		return __real_fdopen(fd, mode);
	errno = ENOMEM;
	return NULL;
}

int __real_fclose(FILE *f);
int __wrap_fclose(FILE *f);

int __wrap_fclose(FILE *f)
{
	int r = __real_fclose(f);

	if (!fault || strcmp(fault, "fclose"))
		return r;
	errno = EDQUOT;
	return EOF;
}

ssize_t __real_getrandom(void *to, size_t n, unsigned flags);
ssize_t __wrap_getrandom(void *to, size_t n, unsigned flags);

ssize_t __wrap_getrandom(void *to, size_t n, unsigned flags)
{
	if (fault && !strcmp(fault, "getrandom"))
		return -1;
	if (same_names-- <= 0)
		return __real_getrandom(to, n, flags);
	memset(to, 7, n);
	return (ssize_t)n;
}

static void put(const char *name, const char *text)
{
	FILE *f = fopen(name, "w");

	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static const char *text_of(const char *name)
{
	static char text[100];
	FILE *f = fopen(name, "r");

	assert_non_null(f);
	text[fread(text, 1, sizeof(text) - 1, f)] = 0;
	fclose(f);
	return text;
}

static int files(void)
{
	DIR *d = opendir(dir);
	int n = 0;

	for (struct dirent *e; (e = readdir(d)); )
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

static int set_up(void **state)
{
	(void)state;
	fault = NULL;
	same_names = 0;
	strcpy(dir, "/tmp/test-fresh-XXXXXX");
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/file", dir);
	snprintf(victim, sizeof(victim), "%s/victim", dir);
	put(path, "old");
	put(victim, "untouched");
	return 0;
}

static int tear_down(void **state)
{
	char command[100];

	(void)state;
	snprintf(command, sizeof(command), "rm -r %s", dir);
	return system(command);
}

static void takes_its_place(void **state)
{
	struct fresh w;
	struct stat st;

	(void)state;
	umask(022);
	assert_int_equal(fresh_open(&w, AT_FDCWD, path, 0666), 0);
	fputs("new", w.f);
	assert_string_equal(text_of(path), "old");
	assert_int_equal(fresh_done(&w), 0);
	assert_null(w.f);
	assert_string_equal(text_of(path), "new");
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0644);
	fresh_drop(&w);                          /* done: nothing to drop */
	assert_string_equal(text_of(path), "new");
	assert_int_equal(fresh_open(&w, AT_FDCWD, path, 0600), 0);
	fputs("never", w.f);
	fresh_drop(&w);
	assert_string_equal(text_of(path), "new");
	assert_int_equal(files(), 2);
}

/* A link at the place is replaced; one at a name beside it is not written through. */
static void follows_no_link(void **state)
{
	struct fresh w;
	struct stat st;
	char beside[128];

	(void)state;
	unlink(path);
	assert_int_equal(symlink(victim, path), 0);
	snprintf(beside, sizeof(beside), "%s.new-0707070707070707", path);
	assert_int_equal(symlink(victim, beside), 0);
	same_names = 3;                          /* drawn three times, as if an attacker had guessed it */
	assert_int_equal(fresh_open(&w, AT_FDCWD, path, 0666), 0);
	assert_string_not_equal(w.beside, beside);
	fputs("new", w.f);
	assert_int_equal(fresh_done(&w), 0);
	assert_int_equal(lstat(path, &st), 0);
	assert_true(S_ISREG(st.st_mode));
	assert_string_equal(text_of(path), "new");
	assert_string_equal(text_of(victim), "untouched");
	same_names = 1000;
	assert_int_equal(fresh_open(&w, AT_FDCWD, path, 0666), -EEXIST);
	assert_null(w.f);
	assert_string_equal(text_of(victim), "untouched");
}

static void what_fails(void **state)
{
	static const char *const calls[] = { "fsync", "renameat" };
	struct rlimit was, none = { .rlim_cur = 4, .rlim_max = RLIM_INFINITY };
	char long_path[PATH_MAX + 10];
	int first = dup(0), last;
	struct fresh w;

	(void)state;
	close(first);
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		assert_int_equal(fresh_open(&w, AT_FDCWD, path, 0666), 0);
		fputs("new", w.f);
		fault = calls[i];
		assert_int_equal(fresh_done(&w), -ENOSPC);
		fault = NULL;
		assert_null(w.f);
		assert_string_equal(text_of(path), "old");
		assert_int_equal(files(), 2);
	}
	assert_int_equal(fresh_open(&w, AT_FDCWD, path, 0666), 0);
	fputs("new", w.f);
	fault = "fclose";                        /* a network file system may fail only here */
	assert_int_equal(fresh_done(&w), -EDQUOT);
	fault = NULL;
	assert_null(w.f);
	assert_string_equal(text_of(path), "old");
	assert_int_equal(files(), 2);
	assert_int_equal(fresh_open(&w, AT_FDCWD, path, 0666), 0);
	fputs("never", w.f);
	fresh_drop(&w);
	fault = "getrandom";
	assert_int_equal(fresh_open(&w, AT_FDCWD, path, 0666), -EIO);
	fault = "fdopen";
	assert_int_equal(fresh_open(&w, AT_FDCWD, path, 0666), -ENOMEM);
	assert_null(w.f);
	fault = NULL;
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &was);
	none.rlim_max = was.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
	assert_int_equal(fresh_open(&w, AT_FDCWD, path, 0666), 0);
	fputs("longer than the disk", w.f);
	assert_int_equal(fresh_done(&w), -EFBIG);
	assert_int_equal(fresh_open(&w, AT_FDCWD, path, 0666), 0);
	fputs("longer than the disk", w.f);
	assert_int_equal(fflush(w.f), EOF);      /* an earlier error is kept */
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
	errno = ENOTTY;                          /* from another call */
	assert_int_equal(fresh_done(&w), -EIO);
	assert_string_equal(text_of(path), "old");
	memset(long_path, 'x', sizeof(long_path) - 1);
	long_path[sizeof(long_path) - 1] = 0;
	assert_int_equal(fresh_open(&w, AT_FDCWD, long_path, 0666), -ENAMETOOLONG);
	long_path[PATH_MAX] = 0;                 /* one byte too long for the NUL */
	assert_int_equal(fresh_open(&w, AT_FDCWD, long_path, 0666), -ENAMETOOLONG);
	long_path[PATH_MAX - 5] = 0;             /* it fits; the temporary name does not */
	assert_int_equal(fresh_open(&w, AT_FDCWD, long_path, 0666), -ENAMETOOLONG);
	assert_int_equal(fresh_open(&w, AT_FDCWD, "/nowhere/at/all", 0666), -ENOENT);
	assert_null(w.f);
	assert_int_equal(files(), 2);
	last = dup(0);
	close(last);
	assert_int_equal(first, last);           /* no descriptor is left */
}

/* Everything that writes files, each with a link in place of its old path. */
static void who_writes(void **state)
{
	json_t *j = json_pack("{s:i}", "a", 1);
	char beside[128], err[300];

	(void)state;
	snprintf(beside, sizeof(beside), "%s.%ld", path, (long)getpid());
	assert_int_equal(symlink(victim, beside), 0);
	assert_int_equal(bench_write(path, j, false, err, sizeof(err)), 0);
	assert_string_equal(text_of(path), "{\"a\": 1}");
	assert_string_equal(text_of(victim), "untouched");
	put(path, "a: 1\n");
	assert_int_equal(save_key(path, "b", "2", err, sizeof(err)), 0);
	assert_string_equal(text_of(path), "a: 1\nb: 2\n");
	json_decref(j);
}

/* Save a key in a settings file: its line is replaced, or one is added; all other lines stay. */
static void one_key(void **state)
{
	static const struct { const char *was, *key, *is; int rc; } cases[] = {
		{ "", "b", "b: 2\n", 0 }, { "a: 1", "b", "a: 1\nb: 2\n", 0 }, { "a: 1\n", "b", "a: 1\nb: 2\n", 0 },
		{ "b: 1\na: 1\n", "b", "b: 2\na: 1\n", 0 }, { "a: 1\nb : 1", "b", "a: 1\nb : 2", 0 },
		{ "b: 1 # c\n", "b", "b: 2 # c\n", 0 }, { "b: 1\t# c\n", "b", "b: 2\t# c\n", 0 },
		{ "b: 1#c\n", "b", "b: 2\n", 0 }, { "b:\n", "b", "b: 2\n", 0 }, { "b:    1  \n", "b", "b: 2  \n", 0 },
		{ "a-b: 1\n", "a_b", "a-b: 2\n", 0 }, { "a_b: 1\n", "a-b", "a_b: 2\n", 0 },
		{ "a-b: 1\n", "axb", "a-b: 1\naxb: 2\n", 0 }, { "axb: 1\n", "a-b", "axb: 1\na-b: 2\n", 0 },
		{ "# b: 1\nbb: 1\n", "b", "# b: 1\nbb: 1\nb: 2\n", 0 },
		{ "b: 1\nb: 1\n", "b", NULL, -EINVAL }, { "- 1\n", "b", NULL, -EINVAL }, { "a: [1\n", "b", NULL, -EINVAL },
		{ "b: |\n  1\n  3\n", "b", NULL, -EINVAL }, { "b: 1\n  3\n", "b", NULL, -EINVAL },
	};
	char err[300], fresh[120];
	int in = fcntl(0, F_DUPFD_CLOEXEC, 10);

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int rc;

		put(path, cases[i].was);
		rc = save_key(path, cases[i].key, "2", err, sizeof(err));
		if (rc != cases[i].rc || strcmp(text_of(path), cases[i].is ? cases[i].is : cases[i].was))
			fail_msg("%s + %s: %d, %s", cases[i].was, cases[i].key, rc, text_of(path));
		if (rc)
			assert_non_null(strstr(err, path));
	}
	snprintf(fresh, sizeof(fresh), "%s/new.yaml", dir);
	assert_int_equal(save_key(fresh, "b", "2", err, sizeof(err)), 0);   /* no file yet */
	assert_string_equal(text_of(fresh), "b: 2\n");
	assert_int_equal(save_key("/no/where", "b", "2", err, sizeof(err)), -ENOENT);
	assert_int_equal(save_key(dir, "b", "2", err, sizeof(err)), -EINVAL);
	close(0);                                /* so that the file is descriptor 0 */
	assert_int_equal(save_key(fresh, "b", "3", err, sizeof(err)), 0);
	assert_int_equal(fcntl(0, F_GETFD), -1);
	assert_int_equal(dup2(in, 0), 0);
	close(in);
	assert_string_equal(text_of(fresh), "b: 3\n");
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		T(takes_its_place), T(follows_no_link), T(what_fails), T(who_writes), T(one_key),
	};
#undef T

	return cmocka_run_group_tests_name("fresh", tests, NULL, NULL);
}
