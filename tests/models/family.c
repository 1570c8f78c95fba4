/* family.c - see family.h. */
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

#include "core/models/load.h"
#include "core/models/model.h"
#include "tests/models/family.h"

#define RECORDED "tests/models/recorded"

/* ---- what is recorded ---------------------------------------------------------------------------- */

static int is_json(const struct dirent *e)
{
	size_t n = strlen(e->d_name);

	return n > 5 && strcmp(e->d_name + n - 5, ".json") == 0;
}

char **family_names(int *n_out)
{
	struct dirent **list;
	int n = scandir(RECORDED, &list, is_json, alphasort);
	char **names = calloc((size_t)(n > 0 ? n : 0) + 1, sizeof(*names));

	assert_true(n > 0);
	assert_non_null(names);
	for (int i = 0; i < n; i++) {
		names[i] = strndup(list[i]->d_name, strlen(list[i]->d_name) - 5);
		free(list[i]);
	}
	free(list);
	*n_out = n;
	return names;
}

static int sextet(char c)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const char *at = c ? strchr(digits, c) : NULL;

	return at ? (int)(at - digits) : 0;
}

/* [vocab] floats of base64. */
static float *row_of_text(const char *text, int32_t vocab)
{
	size_t bytes = (size_t)vocab * sizeof(float), at = 0;
	uint8_t *out = calloc(bytes + 3, 1);

	assert_non_null(out);
	assert_int_equal(strlen(text), (bytes + 2) / 3 * 4);
	for (; at < bytes; at += 3, text += 4) {
		int v = sextet(text[0]) << 18 | sextet(text[1]) << 12 | sextet(text[2]) << 6 | sextet(text[3]);

		out[at] = (uint8_t)(v >> 16);
		out[at + 1] = (uint8_t)(v >> 8);
		out[at + 2] = (uint8_t)v;
	}
	return (float *)(void *)out;
}

static void read_prompt(struct family *f, int i, const json_t *j)
{
	const json_t *ids = json_object_get(j, "ids"), *text;
	const char *key;

	f->prompt[i].n = (int32_t)json_array_size(ids);
	assert_in_range(f->prompt[i].n, 1, FAMILY_TOKENS);
	for (int32_t t = 0; t < f->prompt[i].n; t++)
		f->prompt[i].ids[t] = (int32_t)json_integer_value(json_array_get(ids, (size_t)t));
	json_object_foreach((json_t *)(uintptr_t)json_object_get(j, "logits"), key, text) {
		int32_t r = f->prompt[i].n_rows++;

		assert_in_range(r, 0, FAMILY_ROWS - 1);
		f->prompt[i].at[r] = atoi(key);
		assert_in_range(f->prompt[i].at[r], 0, f->prompt[i].n - 1);
		f->prompt[i].row[r] = row_of_text(json_string_value(text), f->vocab);
	}
}

static const char *text_of(const json_t *j, const char *key)
{
	const char *s = json_string_value(json_object_get(j, key));

	return s ? s : "";
}

static bool has_step(const json_t *recipes, const char *name)
{
	const json_t *recipe, *step;
	size_t i, k;

	json_array_foreach(recipes, i, recipe)
		json_array_foreach(json_array_get(recipe, 3), k, step)
			if (json_is_string(json_array_get(step, 0)) &&
			    strcmp(json_string_value(json_array_get(step, 0)), name) == 0)
				return true;
	return false;
}

struct family *family_make(const char *name)
{
	struct family *f = calloc(1, sizeof(*f));
	char path[256], command[512], folder[64] = "/tmp/slipring-family-XXXXXX";
	json_t *j;

	assert_non_null(f);
	snprintf(path, sizeof(path), RECORDED "/%s.json", name);
	j = json_load_file(path, 0, NULL);
	assert_non_null(j);
	assert_non_null(mkdtemp(folder));
	snprintf(f->name, sizeof(f->name), "%s", name);
	snprintf(f->gguf, sizeof(f->gguf), "%s", text_of(j, "gguf"));
	snprintf(f->class_name, sizeof(f->class_name), "%s", json_string_value(json_array_get(
		json_object_get(json_object_get(j, "config"), "architectures"), 0)));
	snprintf(f->hf, sizeof(f->hf), "%s/hf", folder);
	if (!json_object_get(json_object_get(j, "config"), "quantization_config"))
		snprintf(f->hf5, sizeof(f->hf5), "%s/hf5", folder);
	f->bound = json_is_number(json_object_get(j, "bound")) ? json_number_value(json_object_get(j, "bound"))
	                                                       : FAMILY_BOUND;
	f->permuted = has_step(json_object_get(j, "to_gguf"), "permute") ||
	              has_step(json_object_get(j, "to_gguf"), "vheads");
	if (*f->gguf)
		snprintf(f->file, sizeof(f->file), "%s/model.gguf", folder);
	f->vocab = (int32_t)json_integer_value(json_object_get(j, "vocab"));
	for (int i = 0; i < 2; i++)
		read_prompt(f, i, json_array_get(json_object_get(j, "prompts"), (size_t)i));
	json_decref(j);
	snprintf(command, sizeof(command), "python3 tests/models/tiny.py '%s' '%s'", name, folder);
	assert_int_equal(system(command), 0);
	return f;
}

void family_free(struct family *f)
{
	char command[256];

	snprintf(command, sizeof(command), "rm -rf '%.*s'", (int)(strlen(f->hf) - 3), f->hf);
	assert_int_equal(system(command), 0);
	for (int i = 0; i < 2; i++)
		for (int32_t r = 0; r < f->prompt[i].n_rows; r++)
			free(f->prompt[i].row[r]);
	free(f);
}

/* ---- on a back end -------------------------------------------------------------------------------- */

int family_open(struct drive *d, const struct sr_backend_ops *ops, const char *path, int32_t kv_type,
                int32_t threads)
{
	struct sr_limits lim = drive_limits();

	lim.kv_type = kv_type;
	lim.threads = threads;
	lim.worked = threads > 0;
	return family_open_with(d, ops, path, lim);
}

int family_open_with(struct drive *d, const struct sr_backend_ops *ops, const char *path, struct sr_limits lim)
{
	struct model *m;
	struct load *l;
	struct io *io = NULL;
	int rc = model_open(&m, path, d->err, sizeof(d->err));

	if (rc)
		return rc;
	model_serve(m, m->m.context);
	lim.n_states = m->m.delta.v_heads ? lim.slots : 0;
	assert_int_equal(io_create(&io, 0), 0);
	rc = load_create(&l, io, m->file, m->n_files, NULL, NULL, d->err, sizeof(d->err));
	if (!rc) {
		rc = drive_open(d, ops, &m->m, load_source(l), &lim);
		load_destroy(l);
	}
	io_destroy(io);
	model_close(m);
	return rc;
}

/* log(sum(exp(x))) and the largest magnitude. */
static double log_sum(const float *x, int32_t n, double *most)
{
	double sum = 0, max = -INFINITY;

	for (int32_t i = 0; i < n; i++) {
		max = fmax(max, (double)x[i]);
		*most = fmax(*most, fabs((double)x[i]));
	}
	for (int32_t i = 0; i < n; i++)
		sum += exp((double)x[i] - max);
	return log(sum) + max;
}

double family_differs(struct drive *d, const struct family *f, int32_t tokens)
{
	double most = 0, worst = 0;
	int at[2];

	for (int i = 0; i < 2; i++) {
		int32_t n = f->prompt[i].n < tokens ? f->prompt[i].n : tokens;

		drive_begin(d, i, NULL);
		drive_range(d, i, 8 * i, 8);
		at[i] = drive_row(d, i, 0, f->prompt[i].ids, n, n, 0);
		d->batch->row[i].n_top = SR_TOP_MAX;
	}
	drive_step(d);
	for (int i = 0; i < 2; i++)
		for (int32_t r = 0; r < f->prompt[i].n_rows && f->prompt[i].at[r] < tokens; r++) {
			const float *want = f->prompt[i].row[r];
			int result = at[i] + f->prompt[i].at[r];
			const struct sr_result *got = &d->batch->result[result];
			double sum = log_sum(want, f->vocab, &most);

			worst = fmax(worst, fabs((double)got->logprob - ((double)want[got->id] - sum)));
			for (int k = 0; k < SR_TOP_MAX; k++) {
				const struct sr_top *top = &d->batch->top[(size_t)result * SR_TOP_MAX + (size_t)k];

				assert_in_range(top->id, 0, f->vocab - 1);
				worst = fmax(worst, fabs((double)top->logprob - ((double)want[top->id] - sum)));
			}
			if (!(worst < INFINITY))
				return INFINITY;
		}
	return worst / most;
}
