/* LINK: @models kernels/rope.c -ljansson */
/* test_configs.c - hostile settings: each number, word and list in the config.json of each tiny model is replaced by
 * what it must not be, one at a time.  The model opens or is refused in one sentence, within little time and memory:
 * a setting never asks for more than the files could hold.  Every 7th is tried; SLIPRING_FAMILIES=all tries all.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "core/models/model.h"

#define RECORDED "tests/models/recorded"
#define ENCODERS "tests/models/encoders"
#define SECONDS  0.5               /* of CPU, most that an opening may take; 0.01 are usual */
#define MEMORY   ((rlim_t)192 << 20) /* bytes of address space, beyond what the test has at start */

static char dir[] = "/tmp/slipring-test-configs-XXXXXX", path[128], err[1000];
static int tried, opened;

static double cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The dummy form looks at all settings, and at no file of weights. */
static void try_config(const json_t *config, const char *name, const char *what)
{
	double begin = cpu_seconds();
	struct model *md;
	int rc;

	assert_int_equal(json_dump_file(config, path, JSON_COMPACT), 0);
	err[0] = 0;
	rc = model_open_dummy(&md, dir, err, sizeof(err));
	tried++;
	opened += rc == 0;
	if (rc == 0)
		model_close(md);
	else if (rc == -ENOMEM || !err[0] || strchr(err, '\n') || strlen(err) > 600)
		fail_msg("%s, %s: %d \"%s\"", name, what, rc, err);
	if (cpu_seconds() - begin > SECONDS)
		fail_msg("%s, %s: took %.2f s", name, what, cpu_seconds() - begin);
}

static json_t *long_list(size_t n, json_t *item)
{
	json_t *list = json_array();

	while (n--)
		json_array_append(list, item);
	json_decref(item);
	return list;
}

#define N_VALUES 17                /* not a multiple of the step of 7, so that each value is tried somewhere */
static json_t *value(int i)
{
	switch (i) {
	case 0:  return json_null();
	case 1:  return json_integer(0);
	case 2:  return json_integer(-1);
	case 3:  return json_integer(1);
	case 4:  return json_integer(INT32_MAX);
	case 5:  return json_integer(INT64_MAX);
	case 6:  return json_real(1e308);
	case 7:  return json_real(0.5);
	case 8:  return json_string("x");
	case 9:  return json_true();
	case 10: return json_array();
	case 11: return json_object();
	case 12: return long_list(5000, json_integer(1));
	case 13: return json_integer((json_int_t)INT32_MAX + 1);
	case 14: return json_integer((json_int_t)1 << 53);
	case 15: return json_string("NaN");
	default: return long_list(40, json_string("full_attention"));
	}
}

/* Replace each value below `at`, which is part of `config`. */
static void each_value(const json_t *config, json_t *at, const char *name, const char *of, int step)
{
	const char *key;
	json_t *old;
	void *next;

	json_object_foreach_safe(at, next, key, old) {
		char what[200];

		json_incref(old);
		if (json_is_object(old))
			each_value(config, old, name, key, step);
		for (int i = 0; i < N_VALUES; i++) {
			static int turn;

			if (turn++ % step)
				continue;
			snprintf(what, sizeof(what), "%s%s%s with value %d", of, *of ? "." : "", key, i);
			json_object_set_new(at, key, value(i));
			try_config(config, name, what);
		}
		json_object_set(at, key, old);
		json_decref(old);
	}
}

static int is_json(const struct dirent *e)
{
	size_t n = strlen(e->d_name);

	return n > 5 && strcmp(e->d_name + n - 5, ".json") == 0;
}

static void try_all(const char *folder, int least)
{
	struct dirent **list;
	int n = scandir(folder, &list, is_json, alphasort), step = getenv("SLIPRING_FAMILIES") ? 1 : 7;

	assert_true(n >= least);
	for (int i = 0; i < n; i++) {
		char file[400];
		json_t *rec;

		snprintf(file, sizeof(file), "%s/%s", folder, list[i]->d_name);
		rec = json_load_file(file, 0, NULL);
		assert_non_null(rec);
		each_value(json_object_get(rec, "config"), json_object_get(rec, "config"), list[i]->d_name, "", step);
		if (step == 1 && json_object_get(rec, "config5"))
			each_value(json_object_get(rec, "config5"), json_object_get(rec, "config5"), list[i]->d_name, "5",
			           step);
		json_decref(rec);
		free(list[i]);
	}
	free(list);
}

static void test_values(void **state)
{
	(void)state;
	try_all(RECORDED, 41);
	try_all(ENCODERS, 4);          /* settings are read, then made-up weights are refused */
	printf("%d settings tried, %d models opened\n", tried, opened);
	assert_true(opened > 10 && opened < tried);
}

static int set_up(void **state)
{
	struct rlimit limit;
	unsigned long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	(void)state;
	if (!mkdtemp(dir) || !f || fscanf(f, "%lu", &pages) != 1)
		return -1;
	fclose(f);
	snprintf(path, sizeof(path), "%s/config.json", dir);
#ifndef __SANITIZE_ADDRESS__
	limit.rlim_cur = limit.rlim_max = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + MEMORY;
	return setrlimit(RLIMIT_AS, &limit);
#else
	(void)limit;
	return 0;
#endif
}

static int tear_down(void **state)
{
	(void)state;
	return unlink(path) || rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_values) };

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
