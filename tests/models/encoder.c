/* encoder.c - see encoder.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/models/encoder.h"

#define RECORDED "tests/models/recorded"
#define SUFFIX   ".vectors"

static int is_recorded(const struct dirent *e)
{
	size_t n = strlen(e->d_name), suffix = strlen(SUFFIX);

	return n > suffix && strcmp(e->d_name + n - suffix, SUFFIX) == 0 && !strstr(e->d_name, "-long" SUFFIX);
}

char **encoder_append(char **names, int *n)
{
	struct dirent **list;
	int more = scandir(RECORDED, &list, is_recorded, alphasort);

	assert_true(more > 0);
	names = realloc(names, (size_t)(*n + more + 1) * sizeof(*names));
	assert_non_null(names);
	for (int i = 0; i < more; i++) {
		names[(*n)++] = strndup(list[i]->d_name, strlen(list[i]->d_name) - strlen(SUFFIX));
		free(list[i]);
	}
	free(list);
	return names;
}

bool encoder_is(const char *name)
{
	char path[256];

	snprintf(path, sizeof(path), RECORDED "/%s" SUFFIX, name);
	return access(path, R_OK) == 0;
}

static json_t *load(const char *format, const char *name)
{
	char path[256];
	json_t *j;

	snprintf(path, sizeof(path), format, name);
	j = json_load_file(path, 0, NULL);
	assert_non_null(j);
	return j;
}

static void read_vector(float *out, const json_t *list)
{
	assert_int_equal(json_array_size(list), ENCODER_SEEN);
	for (size_t i = 0; i < ENCODER_SEEN; i++)
		out[i] = (float)json_number_value(json_array_get(list, i));
}

static void read_texts(struct encoder *e)
{
	json_t *all = load(RECORDED "/%s" SUFFIX, e->name), *one;
	size_t i;

	assert_in_range(json_array_size(all), 1, ENCODER_TEXTS);
	json_array_foreach(all, i, one) {
		const json_t *ids = json_object_get(one, "ids");

		assert_in_range(json_array_size(ids), 1, sizeof(e->text[i].ids) / sizeof(e->text[i].ids[0]));
		e->text[i].n = (int32_t)json_array_size(ids);
		for (size_t t = 0; t < json_array_size(ids); t++)
			e->text[i].ids[t] = (int32_t)json_integer_value(json_array_get(ids, t));
		read_vector(e->text[i].want[0], json_object_get(one, "mean"));
		read_vector(e->text[i].want[1], json_object_get(one, "cls"));
		e->n++;
	}
	json_decref(all);
}

struct encoder *encoder_make(const char *name)
{
	struct encoder *e = calloc(1, sizeof(*e));
	char command[512], folder[64] = "/tmp/slipring-encoder-XXXXXX";
	json_t *j;

	assert_non_null(e);
	assert_non_null(mkdtemp(folder));
	snprintf(e->name, sizeof(e->name), "%s", name);
	j = load("tests/models/encoders/%s.json", name);
	snprintf(e->gguf, sizeof(e->gguf), "%s", json_string_value(json_object_get(j, "gguf")));
	snprintf(e->class_name, sizeof(e->class_name), "%s", json_string_value(json_array_get(
		json_object_get(json_object_get(j, "config"), "architectures"), 0)));
	json_decref(j);
	snprintf(e->hf, sizeof(e->hf), "%s/hf", folder);
	snprintf(e->file, sizeof(e->file), "%s/hf/model.gguf", folder);
	read_texts(e);
	snprintf(command, sizeof(command), "python3 tests/models/encoder.py '%s' '%s'", name, e->hf);
	assert_int_equal(system(command), 0);
	return e;
}

void encoder_free(struct encoder *e)
{
	char command[256];

	snprintf(command, sizeof(command), "rm -rf '%.*s'", (int)(strlen(e->hf) - 3), e->hf);
	assert_int_equal(system(command), 0);
	free(e);
}

struct sr_limits encoder_limits(int32_t kv_type)
{
	struct sr_limits lim = drive_limits();

	lim.whole = 1;
	lim.vectors = lim.rows;
	lim.width = ENCODER_WIDTH;
	lim.n_blocks = 100;                      /* 3 for each of 32 sequences */
	lim.seq_blocks = 3;
	lim.cmds = 4 * lim.rows;
	lim.kv_type = kv_type;
	return lim;
}

/* A row of text i in `slot`; its vector is number `slot` of the batch. */
static void add(struct drive *d, const struct encoder *e, int slot, int i, int way)
{
	struct sr_pooling how = { way ? SR_POOL_FIRST : SR_POOL_MEAN, 0, 1 };

	drive_begin(d, slot, NULL);
	drive_pool(d, slot, &how);
	drive_range(d, slot, 3 * slot, 3);
	drive_pool_row(d, slot, (enum sr_pool)how.kind, 0, e->text[i].ids, e->text[i].n, slot);
}

void encoder_run(struct drive *d, const struct encoder *e, struct encoder_vectors *v)
{
	memset(v, 0, sizeof(*v));
	for (int i = 0; i < e->n; i++)
		for (int way = 0; way < 2; way++) {
			memset(d->batch->vector, 0, sizeof(v->of[i][way]));
			add(d, e, 0, i, way);
			drive_step(d);
			memcpy(v->of[i][way], d->batch->vector, sizeof(v->of[i][way]));
		}
}

double encoder_differs(const struct encoder *e, const struct encoder_vectors *v)
{
	double most = 0, worst = 0;

	for (int i = 0; i < e->n; i++)
		for (int way = 0; way < 2; way++)
			for (int k = 0; k < ENCODER_SEEN; k++) {
				double want = (double)e->text[i].want[way][k], off = fabs((double)v->of[i][way][k] - want);

				most = fmax(most, fabs(want));
				worst = off <= worst ? worst : off; /* NaN is worst */
			}
	return worst / most;
}

void encoder_same_bits(struct drive *d, const struct encoder *e, const struct encoder_vectors *v, int others)
{
	for (int s = 0; s <= others; s++)
		add(d, e, s, s % e->n, s / e->n % 2);
	drive_step(d);
	for (int s = 0; s <= others; s++)
		if (memcmp(v->of[s % e->n][s / e->n % 2], d->batch->vector + s * ENCODER_WIDTH, sizeof(v->of[0][0])))
			fail_msg("%s: another vector of text %d beside %d others", e->name, s % e->n, others);
}
