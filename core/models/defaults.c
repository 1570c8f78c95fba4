/* defaults.c - see defaults.h. */
#include "core/models/defaults.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/instance/refuse.h"
#include "core/models/gguf.h"
#include "core/models/safetensors.h"

#define JSON_MAX (1u << 20)        /* bytes of generation_config.json */

/* vLLM's SamplingParams(): the model's own probabilities. */
static const struct defaults plain = { 1, 1, 0, 1, 0, -1, -1, "vLLM's defaults" };

/* llama.cpp's struct common_params_sampling (common/common.h): temp, top_p, min_p, penalty_repeat, top_k. */
static const struct defaults llama_cpp = { 0.8, 0.95, 0.05, 1, 40, -1, -1, "llama.cpp's defaults" };

/* One value, by its names in generation_config.json and in a GGUF file (gguf-py/gguf/constants.py). */
struct value {
	const char *name, *key;
	double least, most;
	bool   whole;
	size_t at;
};

static const struct value values[] = {
	{ "temperature", "general.sampling.temp", 0, 2, false, offsetof(struct defaults, temperature) },
	{ "top_p", "general.sampling.top_p", 1e-6, 1, false, offsetof(struct defaults, top_p) },
	{ "min_p", "general.sampling.min_p", 0, 1, false, offsetof(struct defaults, min_p) },
	{ "repetition_penalty", "general.sampling.penalty_repeat", 1e-6, 1e6, false,
	  offsetof(struct defaults, repetition) },
	{ "top_k", "general.sampling.top_k", -1, INT32_MAX, true, offsetof(struct defaults, top_k) },
	{ "max_new_tokens", NULL, 1, INT32_MAX, true, offsetof(struct defaults, max_tokens) },
};

#define N_VALUES (sizeof(values) / sizeof(values[0]))

static int put(struct defaults *d, const struct value *v, double x, const char *file, const char *name, char *err,
               size_t errlen)
{
	if (!(x >= v->least && x <= v->most))
		return refuse(-EINVAL, err, errlen, "%s: %s must be a number from %g to %g", file, name, v->least, v->most);
	if (v->whole)
		*(int64_t *)((char *)d + v->at) = (int64_t)x;
	else
		*(double *)((char *)d + v->at) = x;
	return 0;
}

/* Members of a JSON object; null is as if it were missing.  *n counts those that are there. */
static int take_json(struct defaults *d, const json_t *o, const char *file, int *n, char *err, size_t errlen)
{
	const json_t *x;
	int rc = 0;

	if (!json_is_object(o))
		return refuse(-EINVAL, err, errlen, "%s: it must be a JSON object", file);
	for (size_t i = 0; !rc && i < N_VALUES; i++) {
		x = json_object_get(o, values[i].name);
		if (!x || json_is_null(x))
			continue;
		rc = json_is_number(x) ? put(d, &values[i], json_number_value(x), file, values[i].name, err, errlen) :
		     refuse(-EINVAL, err, errlen, "%s: %s must be a number from %g to %g", file, values[i].name,
		            values[i].least, values[i].most);
		++*n;
	}
	return rc;
}

static int read_folder(struct defaults *d, const char *dir, char *err, size_t errlen)
{
	char path[PATH_MAX], *text;
	json_error_t why;
	json_t *o;
	size_t len;
	int rc, n = 0;

	if ((size_t)snprintf(path, sizeof(path), "%s/generation_config.json", dir) >= sizeof(path))
		return refuse(-ENAMETOOLONG, err, errlen, "%s: the path is too long", dir);
	rc = safetensors_text(&text, &len, path, JSON_MAX, err, errlen);
	if (rc)
		return rc == -ENOENT ? 0 : rc;
	o = json_loadb(text, len, 0, &why);
	free(text);
	rc = o ? take_json(d, o, path, &n, err, errlen) :
	     refuse(-EINVAL, err, errlen, "%s, line %d: %s", path, why.line, why.text);
	if (n)
		d->from = "generation_config.json";
	json_decref(o);
	return rc;
}

/* A number of any type.  1: there is none under this key. */
static int gguf_number(const struct gguf *g, const char *key, double *out)
{
	const struct gguf_value *v = gguf_find(g, key);
	char decimal[32];
	uint64_t whole;
	int32_t below;
	int rc;

	if (!v)
		return 1;
	if (gguf_f64(g, key, out) == 0) {
		snprintf(decimal, sizeof(decimal), "%.7g", *out);
		if (v->type == GGUF_F32)         /* 0.95, as it was written, not 0.949999988 */
			*out = strtod(decimal, NULL);
		return 0;
	}
	if (v->type == GGUF_I32 && v->n == 1) { /* llama.cpp writes -1 */
		memcpy(&below, v->data, sizeof(below));
		*out = below;
		return 0;
	}
	rc = gguf_u64(g, key, &whole);
	*out = rc ? 0 : (double)whole;
	return rc;
}

static int read_gguf(struct defaults *d, const char *path, char *err, size_t errlen)
{
	struct gguf_file f;
	int rc = gguf_read(&f, path, err, errlen), found;
	double x;

	if (rc)
		return rc;
	for (size_t i = 0; !rc && i < N_VALUES; i++) {
		if (!values[i].key)
			continue;
		found = gguf_number(f.g, values[i].key, &x);
		if (found == 1)
			continue;
		rc = found ? refuse(-EINVAL, err, errlen, "%s: %s must be a number", path, values[i].key) :
		     put(d, &values[i], x, path, values[i].key, err, errlen);
		d->from = "general.sampling, else llama.cpp's defaults";
	}
	gguf_close(&f);
	return rc;
}

static int take_override(struct defaults *d, const char *text, char *err, size_t errlen)
{
	json_error_t why;
	json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, &why);
	int n = 0, rc = o ? take_json(d, o, "--override-generation-config", &n, err, errlen) :
	                refuse(-EINVAL, err, errlen, "--override-generation-config: %s", why.text);

	if (json_object_get(o, "max_new_tokens"))
		d->max_tokens_cap = d->max_tokens;
	if (n)
		d->from = "--override-generation-config";
	json_decref(o);
	return rc;
}

int defaults_read(struct defaults *out, const char *path, bool gguf, const char *config, const char *over, char *err,
                  size_t errlen)
{
	const bool own = !config || strcmp(config, "auto") == 0;
	int rc = 0;

	*out = own && gguf ? llama_cpp : plain;
	if (own && gguf)
		rc = read_gguf(out, path, err, errlen);
	else if (own || strcmp(config, "vllm") != 0)
		rc = read_folder(out, own ? path : config, err, errlen);
	if (!own)
		out->max_tokens_cap = out->max_tokens; /* of a folder that is named, as vLLM has it */
	if (!rc && over)
		rc = take_override(out, over, err, errlen);
	if (out->top_k < 0)
		out->top_k = 0;
	return rc;
}

void defaults_sampling(const struct defaults *d, struct sr_sampling *out)
{
	*out = (struct sr_sampling){ .temperature = (float)d->temperature, .top_p = (float)d->top_p,
	                             .min_p = (float)d->min_p, .top_k = (int32_t)d->top_k,
	                             .repetition = (float)d->repetition };
}

void defaults_say(const struct defaults *d, char *out, size_t n)
{
	size_t k = (size_t)snprintf(out, n, "temperature %.7g", d->temperature);

	if (d->temperature > 0 && d->top_k > 0 && k < n)
		k += (size_t)snprintf(out + k, n - k, ", top_k %lld", (long long)d->top_k);
	if (d->temperature > 0 && d->top_p < 1 && k < n)
		k += (size_t)snprintf(out + k, n - k, ", top_p %.7g", d->top_p);
	if (d->temperature > 0 && d->min_p > 0 && k < n)
		k += (size_t)snprintf(out + k, n - k, ", min_p %.7g", d->min_p);
	if (d->repetition != 1 && k < n)
		snprintf(out + k, n - k, ", repetition_penalty %.7g", d->repetition);
}
