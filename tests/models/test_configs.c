/* LINK: @models kernels/rope.c -ljansson */
/* test_configs.c - hostile settings: each number, word and list in the config.json of each tiny model is replaced by
 * what it must not be, one at a time.  The model opens or is refused in one sentence, within little time and memory:
 * a setting never asks for more than the files could hold.  Every 7th is tried; SLIPRING_FAMILIES=all tries all.
 */
#include <dirent.h>

#include "core/models/model.h"
#include "tests/rig/hostile_values.h"

#define RECORDED "tests/models/recorded"
#define ENCODERS "tests/models/encoders"
#define MEMORY   ((size_t)192 << 20) /* bytes of address space, beyond what the test has at start */

static char dir[] = "/tmp/slipring-test-configs-XXXXXX", path[128], err[1000];
static int tried, opened;

/* What the walk goes over. */
static const char *name;
static const json_t *config;

/* The dummy form looks at all settings, and at no file of weights. */
static void try_config(const char *what)
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
	keeps_bounds(rc, err, begin, name, what);
}

static int is_json(const struct dirent *e)
{
	size_t n = strlen(e->d_name);

	return n > 5 && strcmp(e->d_name + n - 5, ".json") == 0;
}

static struct hostile_walk walk = { .value = hostile_value, .n_values = HOSTILE_VALUES, .attempt = try_config };

static void try_all(const char *folder, int least)
{
	struct dirent **list;
	int n = scandir(folder, &list, is_json, alphasort);

	walk.step = getenv("SLIPRING_FAMILIES") ? 1 : 7;
	assert_true(n >= least);
	for (int i = 0; i < n; i++) {
		char file[400];
		json_t *rec, *five;

		snprintf(file, sizeof(file), "%s/%s", folder, name = list[i]->d_name);
		rec = json_load_file(file, 0, NULL);
		assert_non_null(rec);
		config = json_object_get(rec, "config");
		walk_hostile(&walk, json_object_get(rec, "config"), "");
		five = json_object_get(rec, "config5");
		if (walk.step == 1 && five) {
			config = five;
			walk_hostile(&walk, five, "5");
		}
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
	(void)state;
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/config.json", dir);
	return limit_memory(MEMORY);
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
