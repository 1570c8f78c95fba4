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

/* So many bytes of base64. */
static uint8_t *bytes_of_text(const char *text, size_t bytes)
{
	size_t at = 0;
	uint8_t *out = calloc(bytes + 3, 1);

	assert_non_null(out);
	assert_int_equal(strlen(text), (bytes + 2) / 3 * 4);
	for (; at < bytes; at += 3, text += 4) {
		int v = sextet(text[0]) << 18 | sextet(text[1]) << 12 | sextet(text[2]) << 6 | sextet(text[3]);

		out[at] = (uint8_t)(v >> 16);
		out[at + 1] = (uint8_t)(v >> 8);
		out[at + 2] = (uint8_t)v;
	}
	return out;
}

/* Layers are in ascending order: their numbers have one digit. */
static void read_chosen(struct family *f, int i, const json_t *chosen)
{
	const json_t *text;
	const char *key, *last = "";

	json_object_foreach((json_t *)(uintptr_t)chosen, key, text) {
		size_t most = strlen(json_string_value(text)) / 4 * 3;
		int32_t n = f->prompt[i].n, l = f->prompt[i].n_chosen++;

		assert_in_range(l, 0, FAMILY_LAYERS - 1);
		assert_true(strlen(key) == 1 && strcmp(last, key) < 0);
		last = key;
		f->top = (int32_t)most / n;            /* padding is less than one for each token */
		f->prompt[i].chosen[l] = bytes_of_text(json_string_value(text), (size_t)n * (size_t)f->top);
	}
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
		f->prompt[i].row[r] = (float *)(void *)bytes_of_text(json_string_value(text),
		                                                     (size_t)f->vocab * sizeof(float));
	}
	read_chosen(f, i, json_object_get(j, "chosen"));
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
	for (int i = 0; i < 2; i++) {
		for (int32_t r = 0; r < f->prompt[i].n_rows; r++)
			free(f->prompt[i].row[r]);
		for (int32_t l = 0; l < f->prompt[i].n_chosen; l++)
			free(f->prompt[i].chosen[l]);
	}
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

/* ---- the experts chosen --------------------------------------------------------------------------- */

static struct {
	const struct family *f;
	int32_t n[2];                            /* tokens of each prompt */
	int32_t layers;
	struct family_result r;
} run;

/* The recorded experts of token t of the batch. */
static const uint8_t *recorded(int32_t layer, int32_t t)
{
	int i = t >= run.n[0];

	assert_in_range(layer, 0, run.f->prompt[i].n_chosen - 1);
	return run.f->prompt[i].chosen[layer] + (t - i * run.n[0]) * run.f->top;
}

static bool among(const int32_t *ids, int32_t n, int32_t id)
{
	while (n && ids[n - 1] != id)
		n--;
	return n;
}

static bool same_experts(const int32_t *got, const uint8_t *want)
{
	int32_t n = 0;

	for (int32_t j = 0; j < run.f->top; j++)
		n += among(got, run.f->top, want[j]);
	return n == run.f->top;
}

void family_saw(const int32_t *id, int32_t T, int32_t top)
{
	int32_t layer = run.layers++;

	if (!run.f)
		return;
	assert_int_equal(T, run.n[0] + run.n[1]);
	assert_int_equal(top, run.f->top);
	run.r.choices += T;
	for (int32_t t = 0; t < T; t++)
		run.r.others += !same_experts(id + t * top, recorded(layer, t));
}

int32_t family_nudge(const int32_t *id, float *logit, int32_t n, float by)
{
	int32_t others = 0, top = run.f ? run.f->top : 0;

	for (int32_t t = 0; run.f && t < run.n[0] + run.n[1]; t++) {
		const int32_t *got = id + t * top;
		const uint8_t *want = recorded(run.layers - 1, t);

		if (same_experts(got, want))
			continue;
		others++;
		for (int32_t j = 0; j < top; j++) {  /* a recorded one that was chosen goes down and up again */
			logit[t * n + got[j]] -= by;
			logit[t * n + want[j]] += by;
		}
	}
	return others;
}

/* ---- a run ----------------------------------------------------------------------------------------- */

/* The largest difference of a log-probability of a recorded row, and the largest logit so far. */
static double row_differs(const struct drive *d, const struct family *f, const float *want, int result, double *most)
{
	const struct sr_result *got = &d->batch->result[result];
	double sum = log_sum(want, f->vocab, most), worst = fabs((double)got->logprob - ((double)want[got->id] - sum));

	for (int k = 0; k < SR_TOP_MAX; k++) {
		const struct sr_top *top = &d->batch->top[(size_t)result * SR_TOP_MAX + (size_t)k];

		assert_in_range(top->id, 0, f->vocab - 1);
		worst = fmax(worst, fabs((double)top->logprob - ((double)want[top->id] - sum)));
	}
	return worst < INFINITY ? worst : INFINITY;
}

struct family_result family_run(struct drive *d, const struct family *f, int32_t tokens)
{
	double most = 0, worst = 0;
	int at[2];

	memset(&run, 0, sizeof(run));
	run.f = f;
	for (int i = 0; i < 2; i++) {
		int32_t n = run.n[i] = f->prompt[i].n < tokens ? f->prompt[i].n : tokens;

		drive_begin(d, i, NULL);
		drive_range(d, i, 8 * i, 8);
		at[i] = drive_row(d, i, 0, f->prompt[i].ids, n, n, 0);
		d->batch->row[i].n_top = SR_TOP_MAX;
	}
	drive_step(d);
	run.f = NULL;
	assert_int_equal(run.layers, f->prompt[0].n_chosen);
	for (int i = 0; i < 2; i++)
		for (int32_t k = 0; k < f->prompt[i].n_rows && f->prompt[i].at[k] < run.n[i]; k++)
			worst = fmax(worst, row_differs(d, f, f->prompt[i].row[k], at[i] + f->prompt[i].at[k], &most));
	run.r.worst = worst / most;
	return run.r;
}
