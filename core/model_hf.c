/* model_hf.c - settings and tensors of a Hugging Face directory, for model.c: config.json,
 * generation_config.json, and the tables of its safetensors files. */
#include "model_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JSON_MAX (16u << 20)       /* bytes of config.json and generation_config.json */

const struct safetensor *model_hf_tensor(struct opening *o, const char *name, int32_t *file)
{
	const struct safetensors_at *at = safetensors_lookup(o->st, name);

	if (!at)
		return NULL;
	o->taken[at - o->st->all] = true;
	*file = at->file;
	return at->t;
}

int model_find_hf(struct opening *o, const char *name, struct found *f)
{
	int32_t file;
	const struct safetensor *t = model_hf_tensor(o, name, &file);

	if (!t)
		return model_find_quantized(o, name, f);
	f->type_name = t->dtype;
	for (int k = 0; k < MODEL_TYPES; k++)
		if (model_types[k].hf && strcmp(model_types[k].hf, t->dtype) == 0)
			f->type = model_types[k].type;
	f->n_dims = t->n_dims < 5 ? t->n_dims : 5;
	for (uint32_t d = 0; d < t->n_dims && d < 4; d++)
		f->dim[d] = t->dim[d];
	f->data = (struct sr_extent){ t->offset, t->bytes, file };
	return f->type == SR_F8 ? model_find_f8(o, name, f) : 0;
}

/* The file as an object; NULL and *rc = -ENOENT, .. and a sentence.  Messages name it from now on. */
static json_t *load_json(struct opening *o, const char *path, int *rc)
{
	json_error_t why;
	json_t *j;
	char *text;
	size_t n;

	o->path = path;
	*rc = safetensors_text(&text, &n, path, JSON_MAX, o->err, o->errlen);
	if (*rc)
		return NULL;
	j = json_loadb(text, n, 0, &why);
	free(text);
	if (!j)
		*rc = model_fail(o, -EINVAL, "line %d, column %d: %s", why.line, why.column, why.text);
	else if (!json_is_object(j))
		*rc = model_fail(o, -EINVAL, "is no JSON object");
	if (*rc) {
		json_decref(j);
		j = NULL;
	}
	return j;
}

/* A number of an object that is not the whole of config.json; what is not there stays. */
static int sub_float(struct opening *o, const json_t *obj, const char *of, const char *key, double min,
                     double max,
                     float *out)
{
	const json_t *j = json_object_get(obj, key);
	double v = json_number_value(j);

	if (!j || json_is_null(j))
		return 0;
	if (!json_is_number(j) || !(v >= min && v <= max))
		return model_fail(o, -EINVAL, "%s.%s is no number from %g to %g", of, key, min, max);
	*out = (float)v;
	return 0;
}

static int sub_int(struct opening *o, const json_t *obj, const char *of, const char *key, int32_t max,
                   int32_t *out)
{
	const json_t *j = json_object_get(obj, key);

	if (!j || json_is_null(j))
		return 0;
	if (!json_is_integer(j) || json_integer_value(j) < 1 || json_integer_value(j) > max)
		return model_fail(o, -EINVAL, "%s.%s is no integer from 1 to %d", of, key, max);
	*out = (int32_t)json_integer_value(j);
	return 0;
}

/* true or false; what is not there or null stays. */
static int hf_bool(struct opening *o, const char *key, bool *out)
{
	const json_t *j = json_object_get(o->config, key);

	if (j && !json_is_null(j) && !json_is_boolean(j))
		return model_fail(o, -EINVAL, "%s is neither true nor false", key);
	if (json_is_boolean(j))
		*out = json_is_true(j);
	return 0;
}

/* Which kind of scaling: NULL, none. */
static int rope_type(struct opening *o, const json_t *j, const char *of, const char **out)
{
	const char *key = json_object_get(j, "rope_type") ? "rope_type" : "type";
	const json_t *type = json_object_get(j, key);

	*out = json_string_value(type);
	if (type && !json_is_null(type) && !*out)
		return model_fail(o, -EINVAL, "%s.%s is no string", of, key);
	if (*out && strcmp(*out, "default") == 0)
		*out = NULL;
	return 0;
}

/* rope_scaling {type or rope_type, ..}; since transformers 5 rope_parameters, theta in it. */
static int hf_rope(struct opening *o)
{
	struct sr_rope *r = &o->m->rope[0];
	const char *of = "rope_parameters", *type;
	const json_t *j = json_object_get(o->config, of);
	float part = 1, magnitude = 0;
	int rc;

	*r = (struct sr_rope){ .dims = o->m->E, .context = o->m->context, .theta = 10000, .factor = 1,
	                       .magnitude = 1 };
	if (!json_is_object(j)) {
		of = "rope_scaling";
		j = json_object_get(o->config, of);
	}
	if (j && !json_is_null(j) && !json_is_object(j))
		return model_fail(o, -EINVAL, "%s is no object", of);
	if ((rc = model_float(o, (struct key){ "", "rope_theta" }, 2, 1e12, &r->theta)) < 0 ||
	    (rc = model_float(o, (struct key){ "", "partial_rotary_factor" }, 0.01, 1, &part)) < 0 ||
	    (rc = sub_float(o, j, of, "rope_theta", 2, 1e12, &r->theta)) != 0 ||
	    (rc = sub_float(o, j, of, "factor", 1, 4096, &r->factor)) != 0 ||
	    (rc = sub_int(o, j, of, "original_max_position_embeddings", 1 << 28, &r->context)) != 0)
		return rc;
	r->dims = (int32_t)((float)o->m->E * part) & ~1;
	if (r->dims < 2)
		return model_fail(o, -EINVAL, "partial_rotary_factor leaves no dimension of %d to rotate",
		                  o->m->E);
	if ((rc = rope_type(o, j, of, &type)) != 0 || !type)
		return rc;
	if (strcmp(type, "linear") == 0) {
		r->kind = SR_ROPE_LINEAR;
	} else if (strcmp(type, "llama3") == 0) {
		r->kind = SR_ROPE_LLAMA3;
		r->low = 1;
		r->high = 4;
		if ((rc = sub_float(o, j, of, "low_freq_factor", 1e-3, 1e3, &r->low)) != 0 ||
		    (rc = sub_float(o, j, of, "high_freq_factor", 1e-3, 1e3, &r->high)) != 0)
			return rc;
		if (r->high <= r->low)
			return model_fail(o, -EINVAL, "%s.high_freq_factor must be above low_freq_factor",
			                  of);
	} else if (strcmp(type, "yarn") == 0) {
		r->kind = SR_ROPE_YARN;
		r->low = 1;
		r->high = 32;
		if ((rc = sub_float(o, j, of, "beta_slow", 1e-3, 1e3, &r->low)) != 0 ||
		    (rc = sub_float(o, j, of, "beta_fast", 1e-3, 1e3, &r->high)) != 0 ||
		    (rc = sub_float(o, j, of, "attention_factor", 1e-3, 1e3, &magnitude)) != 0)
			return rc;
		r->magnitude = magnitude > 0 ? magnitude : 1 + 0.1f * logf(r->factor);
	} else {
		return model_fail(o, -ENOTSUP, "%s.rope_type %.40s is not supported; supported are default, "
		                  "linear, llama3, yarn", of, type);
	}
	return model_scale_context(o, r);
}

/* Settings that would compute something else than what we do. */
static int hf_refuse(struct opening *o)
{
	const json_t *act = json_object_get(o->config, "hidden_act");
	bool bias = false;
	int rc;

	if (act && !json_is_null(act) && (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0))
		return model_fail(o, -ENOTSUP, "hidden_act %.40s is not supported; supported is silu",
		                  json_is_string(act) ? json_string_value(act) : "(no string)");
	if ((rc = hf_bool(o, "mlp_bias", &bias)) != 0)
		return rc;
	return bias ? model_fail(o, -ENOTSUP, "mlp_bias true is not supported") : 0;
}

static int hf_settings(struct opening *o)
{
	static const struct { const char *name; unsigned has; } known[] = {
		{ "LlamaForCausalLM", UNTIED }, { "MistralForCausalLM", UNTIED },
		{ "Qwen2ForCausalLM", UNTIED | QKV_BIAS }, { "Qwen3ForCausalLM", UNTIED | QK_NORM },
	};
	const json_t *list = json_object_get(o->config, "architectures");
	const char *arch = json_string_value(json_array_get(list, 0));
	const struct key vocab = { "", "vocab_size" };
	bool tied = false, bias = false;
	int rc, i;

	for (i = 0; i < 4 && (!arch || strcmp(known[i].name, arch) != 0); i++)
		;
	if (i == 4)
		return model_fail(o, -ENOTSUP, "architectures[0] %.60s is not supported; supported are "
		                  "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM",
		                  arch ? arch : "(none)");
	model_set_name(o->m->arch, sizeof(o->m->arch), arch, strlen(arch));
	if ((rc = model_sizes(o)) != 0 ||
	    (rc = model_need(o, vocab, model_int(o, vocab, 1, 1 << 24, &o->m->V))) != 0 ||
	    (rc = hf_refuse(o)) != 0 || (rc = model_quant_settings(o)) != 0)
		return rc;
	if ((rc = hf_bool(o, "tie_word_embeddings", &tied)) != 0 ||
	    (rc = hf_bool(o, "attention_bias", &bias)) != 0)
		return rc;
	o->has = known[i].has | (bias ? QKV_BIAS | O_BIAS : 0u);
	if (tied)
		o->has &= ~(unsigned)UNTIED;
	return hf_rope(o);
}

/* Mistral attends to a window; Qwen only where use_sliding_window says so, from a layer up. */
static int hf_window(struct opening *o)
{
	bool qwen = strncmp(o->m->arch, "Qwen", 4) == 0, used = strncmp(o->m->arch, "Mistral", 7) == 0;
	int rc = qwen ? hf_bool(o, "use_sliding_window", &used) : 0;

	if (rc || !used)
		return rc;
	if ((rc = model_int(o, (struct key){ "", "sliding_window" }, 0, 1 << 28, &o->window)) < 0)
		return rc;
	if (qwen)
		rc = model_int(o, (struct key){ "", "max_window_layers" }, 0, LAYERS_MAX, &o->window_from);
	return rc < 0 ? rc : 0;
}

/* eos_token_id: an id or a list of ids; 1: not there. */
static int hf_eos(struct opening *o, const json_t *from)
{
	const json_t *j = json_object_get(from, "eos_token_id");
	size_t n = json_is_array(j) ? json_array_size(j) : 1;
	int rc = 0;

	if (!j || json_is_null(j))
		return 1;
	for (size_t i = 0; i < n && !rc; i++) {
		const json_t *id = json_is_array(j) ? json_array_get(j, i) : j;

		rc = json_is_integer(id) ? model_add_eos(o, "eos_token_id", json_integer_value(id))
		                         : model_fail(o, -EINVAL, "eos_token_id is no integer or list of "
		                                      "integers");
	}
	return rc;
}

static int open_weights(struct opening *o, const char *dir)
{
	struct model *md = o->md;
	int rc = safetensors_open(&o->st, dir, o->err, o->errlen);

	if (rc)
		return rc;
	md->file = calloc((size_t)o->st->n + 1, sizeof(char *));
	if (!md->file)
		return model_no_memory(o);
	for (; md->n_files < o->st->n; md->n_files++)
		if (!(md->file[md->n_files] = strdup(o->st->file[md->n_files].path)))
			return model_no_memory(o);
	snprintf(md->format, sizeof(md->format), "safetensors");
	return 0;
}

/* All that the two files of settings say. */
static int read_settings(struct opening *o, const char *dir)
{
	char config[4096 + 64], path[4096 + 64];
	json_t *generation;
	int rc;

	snprintf(config, sizeof(config), "%s/config.json", dir);
	o->config = load_json(o, config, &rc);
	if (o->config && (rc = hf_settings(o)) == 0 && (rc = hf_window(o)) == 0) {
		snprintf(path, sizeof(path), "%s/generation_config.json", dir);
		generation = load_json(o, path, &rc);
		if (generation)
			rc = hf_eos(o, generation);
		if (rc == 1 || rc == -ENOENT) {
			o->path = config;
			rc = hf_eos(o, o->config);
		}
		json_decref(generation);
	}
	o->path = dir;
	return rc < 0 ? rc : 0;
}

int model_open_hf(struct opening *o, const char *dir)
{
	int rc = read_settings(o, dir);

	if (rc || (!o->dummy && (rc = open_weights(o, dir)) != 0) || (rc = model_take_tensors(o)) != 0)
		return rc;
	for (int32_t l = o->window_from; l < o->m->L; l++)
		o->m->layer[l].window = o->window;
	return 0;
}
