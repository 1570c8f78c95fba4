/* models/pooling.c - see pooling.h. */
#include "core/models/pooling.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/instance/refuse.h"
#include "core/models/gguf.h"
#include "core/models/safetensors.h"

#define JSON_MAX (1u << 20)        /* bytes of each of these files */

/* Read dir/name.  0 and *out, 1 there is no such file, or -errno and a sentence. */
static int read_json(json_t **out, const char *dir, const char *name, char *err, size_t errlen)
{
	char path[PATH_MAX], *text;
	json_error_t why;
	size_t n;
	int rc;

	*out = NULL;
	if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, name) >= sizeof(path))
		return refuse(-ENAMETOOLONG, err, errlen, "%s/%s: the path is too long", dir, name);
	rc = safetensors_text(&text, &n, path, JSON_MAX, err, errlen);
	if (rc)
		return rc == -ENOENT ? 1 : rc;
	*out = json_loadb(text, n, 0, &why);
	free(text);
	if (!*out)
		return refuse(-EINVAL, err, errlen, "%s: line %d, column %d: %s", path, why.line, why.column, why.text);
	return 0;
}

/* Is `type` the module `name` of sentence-transformers?  Packages before it differ by version. */
static bool is_module(const char *type, const char *name)
{
	const char *last = type ? strrchr(type, '.') : NULL;

	return type && strcmp(last ? last + 1 : type, name) == 0;
}

/* The settings of the module Pooling: one switch for each way, or, since version 5, a name. */
static int read_modes(struct pooling *out, const json_t *j, const char *dir, char *err, size_t errlen)
{
	static const struct { const char *key, *name; int32_t kind; } modes[] = {
		{ "pooling_mode_cls_token", "cls", SR_POOL_FIRST },
		{ "pooling_mode_mean_tokens", "mean", SR_POOL_MEAN },
		{ "pooling_mode_lasttoken", "lasttoken", SR_POOL_LAST },
		{ "pooling_mode_max_tokens", "max", 0 },
		{ "pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", 0 },
		{ "pooling_mode_weightedmean_tokens", "weightedmean", 0 },
	};
	const char *named = json_string_value(json_object_get(j, "pooling_mode"));
	int n = 0;

	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		if (!json_is_true(json_object_get(j, modes[i].key)) && !(named && strcmp(named, modes[i].name) == 0))
			continue;
		if (!modes[i].kind)
			return refuse(-ENOTSUP, err, errlen, "%s: pooling mode %s is not supported; cls, mean and "
			              "lasttoken are", dir, modes[i].name);
		out->kind = modes[i].kind;
		n++;
	}
	if (n != 1)
		return refuse(-ENOTSUP, err, errlen, "%s: the pooling settings name %d modes; one of cls, mean and lasttoken "
		              "is supported", dir, n);
	return 0;
}

static int read_modules(struct pooling *out, const json_t *list, const char *dir, char *err, size_t errlen)
{
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *module = json_array_get(list, i);
		const char *type = json_string_value(json_object_get(module, "type"));
		const char *path = json_string_value(json_object_get(module, "path"));
		char name[200 + sizeof("/config.json")];
		json_t *j;
		int rc;

		if (is_module(type, "Transformer"))
			continue;
		if (is_module(type, "Normalize")) {
			out->unit = true;
			continue;
		}
		if (!is_module(type, "Pooling"))
			return refuse(-ENOTSUP, err, errlen, "%s: modules.json has a module %.80s, which is not supported; "
			              "Transformer, Pooling and Normalize are", dir, type ? type : "without a type");
		if (!path || strstr(path, "..") || *path == '/' ||
		    (size_t)snprintf(name, sizeof(name), "%s/config.json", path) >= sizeof(name))
			return refuse(-EINVAL, err, errlen, "%s: modules.json: Pooling needs a folder of settings, a path of "
			              "less than 200 bytes", dir);
		rc = read_json(&j, dir, name, err, errlen);
		if (rc == 1)
			return refuse(-ENOENT, err, errlen, "%s/%s: no such file, but modules.json names it", dir, name);
		if (!rc)
			rc = read_modes(out, j, dir, err, errlen);
		json_decref(j);
		if (rc)
			return rc;
	}
	return 0;
}

/* ---- classifiers --------------------------------------------------------------------------------- */

static bool ends_with(const char *s, const char *end)
{
	size_t n = s ? strlen(s) : 0, len = strlen(end);

	return n >= len && strcmp(s + n - len, end) == 0;
}

/* As vLLM reads it: problem_type, then what sentence-transformers wrote. */
static int read_act(struct pooling *out, const json_t *config, const char *dir, char *err, size_t errlen)
{
	static const struct { const char *problem; enum pooling_act act; } problems[] = {
		{ "regression", POOLING_IDENTITY }, { "multi_label_classification", POOLING_SIGMOID },
	};
	static const struct { const char *module; enum pooling_act act; } modules[] = {
		{ "linear.Identity", POOLING_IDENTITY }, { "activation.Sigmoid", POOLING_SIGMOID },
		{ "activation.Tanh", POOLING_TANH },
	};
	const char *problem = json_string_value(json_object_get(config, "problem_type"));
	const json_t *given = json_object_get(json_object_get(config, "sentence_transformers"), "activation_fn");
	const char *name = json_string_value(given ? given : json_object_get(config, "sbert_ce_default_activation_function"));

	out->act = out->n_labels == 1 ? POOLING_SIGMOID : POOLING_SOFTMAX;
	for (size_t i = 0; problem && i < sizeof(problems) / sizeof(problems[0]); i++)
		if (strcmp(problem, problems[i].problem) == 0) {
			out->act = problems[i].act;
			return 0;
		}
	if (!name || (problem && strcmp(problem, "single_label_classification") == 0))
		return 0;
	for (size_t i = 0; i < sizeof(modules) / sizeof(modules[0]); i++)
		if (strncmp(name, "torch.nn.modules.", 17) == 0 && strcmp(name + 17, modules[i].module) == 0) {
			out->act = modules[i].act;
			return 0;
		}
	return refuse(-ENOTSUP, err, errlen, "%s/config.json: the activation %.80s is not supported; torch.nn.modules."
	              "linear.Identity, activation.Sigmoid and activation.Tanh are", dir, name);
}

/* How many labels a class .. ForSequenceClassification has, as transformers counts them. */
static int read_classifier(struct pooling *out, const json_t *config, const char *class, const char *dir, char *err,
                           size_t errlen)
{
	static const char *const encoders[] = { "Bert", "Roberta", "XLMRoberta" };
	const json_t *names = json_object_get(config, "id2label"), *number = json_object_get(config, "num_labels");
	const char *mode = json_string_value(json_object_get(config, "classifier_pooling"));
	const bool modern = strcmp(class, "ModernBertForSequenceClassification") == 0;
	const json_int_t n = json_is_integer(number) ? json_integer_value(number) : 2;

	out->n_labels = json_is_object(names) ? (int32_t)json_object_size(names) : n > 0 && n < 1 << 20 ? (int32_t)n : 0;
	if (out->n_labels < 1)
		return refuse(-EINVAL, err, errlen, "%s/config.json: num_labels or id2label names no labels", dir);
	out->kind = SR_POOL_LAST;
	for (size_t i = 0; i < sizeof(encoders) / sizeof(encoders[0]); i++)
		if (strncmp(class, encoders[i], strlen(encoders[i])) == 0 &&
		    strcmp(class + strlen(encoders[i]), "ForSequenceClassification") == 0)
			out->kind = SR_POOL_FIRST;
	if (modern)
		out->kind = mode && strcmp(mode, "mean") == 0 ? SR_POOL_MEAN : SR_POOL_FIRST;
	if (modern && mode && strcmp(mode, "mean") != 0 && strcmp(mode, "cls") != 0)
		return refuse(-ENOTSUP, err, errlen, "%s/config.json: classifier_pooling %.40s is not supported; cls and mean "
		              "are", dir, mode);
	return read_act(out, config, dir, err, errlen);
}

/* modules.json beside a classifier may name its Transformer, and nothing that would change its logits. */
static int check_modules(const char *dir, char *err, size_t errlen)
{
	json_t *list;
	int rc = read_json(&list, dir, "modules.json", err, errlen);

	for (size_t i = 0; !rc && i < json_array_size(list); i++) {
		const char *type = json_string_value(json_object_get(json_array_get(list, i), "type"));

		if (!is_module(type, "Transformer"))
			rc = refuse(-ENOTSUP, err, errlen, "%s: modules.json has a module %.80s, which is not supported beside a "
			            "classifier; Transformer is", dir, type ? type : "without a type");
	}
	json_decref(list);
	return rc == 1 ? 0 : rc;
}

/* What its class says: 1 if that is all.  Without modules.json an encoder gives the first token's vector, as in
 * vLLM. */
static int read_class(struct pooling *out, const char *dir, char *err, size_t errlen)
{
	static const char *const encoders[] = { "BertModel", "RobertaModel", "XLMRobertaModel", "NomicBertModel",
	                                        "ModernBertModel" };
	const char *class;
	json_t *j;
	int rc = read_json(&j, dir, "config.json", err, errlen);

	if (rc)
		return rc == 1 ? 0 : rc;
	class = json_string_value(json_array_get(json_object_get(j, "architectures"), 0));
	for (size_t i = 0; class && i < sizeof(encoders) / sizeof(encoders[0]); i++)
		if (strcmp(class, encoders[i]) == 0)
			*out = (struct pooling){ .kind = SR_POOL_FIRST, .unit = true };
	if (ends_with(class, "ForSequenceClassification")) {
		rc = read_classifier(out, j, class, dir, err, errlen);
		if (!rc)
			rc = check_modules(dir, err, errlen);
		rc = rc ? rc : 1;
	}
	json_decref(j);
	return rc;
}

static int read_hf(struct pooling *out, const char *dir, char *err, size_t errlen)
{
	json_t *j;
	int rc = read_class(out, dir, err, errlen);

	if (rc)
		return rc == 1 ? 0 : rc;
	rc = read_json(&j, dir, "modules.json", err, errlen);
	if (rc)
		return rc == 1 ? 0 : rc;
	*out = (struct pooling){ 0 };
	rc = read_modules(out, j, dir, err, errlen);
	json_decref(j);
	if (rc)
		return rc;
	rc = read_json(&j, dir, "sentence_bert_config.json", err, errlen);
	if (rc)
		return rc == 1 ? 0 : rc;
	if (json_is_integer(json_object_get(j, "max_seq_length"))) {
		json_int_t n = json_integer_value(json_object_get(j, "max_seq_length"));

		out->max_len = n > 0 && n < 1 << 28 ? (int32_t)n : 0;
	}
	json_decref(j);
	return 0;
}

/* ---- GGUF ------------------------------------------------------------------------------------------ */

static bool is_string(const struct gguf_string *s, const char *text)
{
	return s->n == strlen(text) && memcmp(s->s, text, s->n) == 0;
}

/* A file with a classifier's tensors: as llama.cpp pools it, by its architecture.  Qwen3-Reranker's rows for yes and
 * no are its labels, behind its own words. */
static void gguf_classifier(struct pooling *out, const struct gguf *g, const struct gguf_string *arch)
{
	const struct gguf_tensor *t = gguf_tensor(g, "cls.output.weight");

	if (!t)
		return;
	out->n_labels = t->n_dims == 1 ? 1 : t->dim[1] < 1 << 20 ? (int32_t)t->dim[1] : 0;
	out->act = out->n_labels == 1 ? POOLING_SIGMOID : POOLING_SOFTMAX;
	out->kind = is_string(arch, "modern-bert") ? SR_POOL_MEAN : is_string(arch, "bert") ? SR_POOL_FIRST : SR_POOL_LAST;
	out->rank = is_string(arch, "qwen3") && out->n_labels == 2;
	out->unit = false;
}

/* llama.cpp's numbers: 0 none, 1 mean, 2 cls, 3 last, 4 rank. */
static int read_gguf(struct pooling *out, const char *path, char *err, size_t errlen)
{
	static const int32_t kind[] = { 0, SR_POOL_MEAN, SR_POOL_FIRST, SR_POOL_LAST, SR_POOL_LOGITS };
	struct gguf_string arch = { "", 0 };
	struct gguf_file f;
	char key[128];
	uint64_t type = 0;
	int rc = gguf_read(&f, path, err, errlen);

	if (rc)
		return rc;
	if (gguf_str(f.g, "general.architecture", &arch) == 0 && arch.n < 64) {
		snprintf(key, sizeof(key), "%.*s.pooling_type", (int)arch.n, arch.s);
		rc = gguf_u64(f.g, key, &type);
	}
	if (rc == -EINVAL || type >= sizeof(kind) / sizeof(kind[0])) {
		rc = refuse(-ENOTSUP, err, errlen, "%s: %s: 0 (none) to 4 (rank) are known", path, key);
	} else {
		rc = 0;
		out->kind = kind[type];
		out->rank = out->kind == SR_POOL_LOGITS;
		out->unit = out->kind && !out->rank;
		gguf_classifier(out, f.g, &arch);
	}
	gguf_close(&f);
	return rc;
}

int pooling_read(struct pooling *out, const char *path, bool gguf, char *err, size_t errlen)
{
	*out = (struct pooling){ 0 };
	return gguf ? read_gguf(out, path, err, errlen) : read_hf(out, path, err, errlen);
}

/* ---- names of labels ------------------------------------------------------------------------------- */

static int gguf_names(json_t *list, const char *path, int32_t n, char *err, size_t errlen)
{
	struct gguf_string arch = { "", 0 }, s;
	const struct gguf_value *v = NULL;
	const uint8_t *at;
	struct gguf_file f;
	char key[128];
	int rc = gguf_read(&f, path, err, errlen);

	if (rc)
		return rc;
	if (gguf_str(f.g, "general.architecture", &arch) == 0 && arch.n < 64) {
		snprintf(key, sizeof(key), "%.*s.classifier.output_labels", (int)arch.n, arch.s);
		v = gguf_find(f.g, key);
	}
	if (v && (v->type != GGUF_ARRAY || v->item != GGUF_STRING))
		v = NULL;
	at = v ? v->data : NULL;
	for (int32_t i = 0; i < n; i++)
		json_array_append_new(list, v && gguf_next_string(v, &at, &s) ? json_stringn(s.s, s.n) : json_null());
	gguf_close(&f);
	return 0;
}

/* id2label, or the names that transformers makes up. */
static int hf_names(json_t *list, const char *dir, int32_t n, char *err, size_t errlen)
{
	char key[24];
	json_t *j;
	int rc = read_json(&j, dir, "config.json", err, errlen);

	if (rc)
		return rc < 0 ? rc : refuse(-ENOENT, err, errlen, "%s/config.json: no such file", dir);
	for (int32_t i = 0; i < n; i++) {
		json_t *names = json_object_get(j, "id2label"), *name;

		snprintf(key, sizeof(key), "%d", i);
		name = json_object_get(names, key);
		json_array_append_new(list, json_is_string(name) ? json_incref(name) : names ? json_null() :
		                      json_sprintf("LABEL_%d", i));
	}
	json_decref(j);
	return 0;
}

int pooling_labels(json_t **out, const char *path, bool gguf, char *err, size_t errlen)
{
	struct pooling p;
	int rc = pooling_read(&p, path, gguf, err, errlen);

	*out = json_array();
	if (!rc && !*out)
		rc = refuse(-ENOMEM, err, errlen, "%s: no memory for the names of its labels", path);
	if (!rc)
		rc = gguf ? gguf_names(*out, path, p.n_labels, err, errlen) : hf_names(*out, path, p.n_labels, err, errlen);
	if (rc) {
		json_decref(*out);
		*out = NULL;
	}
	return rc;
}

/* ---- --pooler-config ----------------------------------------------------------------------------- */

/* One member; null is as if it were missing. */
static int take_member(struct pooling *p, const char *key, const json_t *j, char *err, size_t errlen)
{
	static const struct { const char *name; int32_t kind; } kinds[] = {
		{ "MEAN", SR_POOL_MEAN }, { "CLS", SR_POOL_FIRST }, { "LAST", SR_POOL_LAST },
	};
	const char *name = json_string_value(j);

	if (json_is_null(j))
		return 0;
	if (strcmp(key, "pooling_type") == 0 || strcmp(key, "seq_pooling_type") == 0) {
		for (size_t i = 0; name && i < sizeof(kinds) / sizeof(kinds[0]); i++)
			if (strcmp(name, kinds[i].name) == 0) {
				p->kind = kinds[i].kind;
				return 0;
			}
		return refuse(-ENOTSUP, err, errlen, "--pooler-config: %s must be MEAN, CLS or LAST", key);
	}
	if (strcmp(key, "normalize") == 0 || strcmp(key, "use_activation") == 0) {
		p->unit = json_is_true(j) && !p->n_labels;
		if (p->n_labels && json_is_false(j))
			p->act = POOLING_IDENTITY;
		return json_is_boolean(j) ? 0 : refuse(-EINVAL, err, errlen, "--pooler-config: %s must be true or false",
		                                       key);
	}
	if (strcmp(key, "task") == 0 && name && strcmp(name, p->n_labels ? "classify" : "embed") == 0)
		return 0;
	if (strcmp(key, "enable_chunked_processing") == 0 && json_is_false(j))
		return 0;
	return refuse(-ENOTSUP, err, errlen, "--pooler-config: %.60s is not supported; pooling_type, seq_pooling_type, "
	              "normalize and use_activation are", key);
}

int pooling_config(struct pooling *p, const char *text, char *err, size_t errlen)
{
	json_error_t why;
	json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, &why), *j;
	const char *key;
	int rc = 0;

	if (!json_is_object(object))
		rc = refuse(-EINVAL, err, errlen, "--pooler-config must be a JSON object such as {\"pooling_type\":\"MEAN\"}"
		            "%s%s", object ? "" : ": ", object ? "" : why.text);
	json_object_foreach(object, key, j)
		if (!rc)
			rc = take_member(p, key, j, err, errlen);
	json_decref(object);
	return rc;
}
