/* models/from_hf.c - reads settings and tensors of a Hugging Face directory, for models/open.c: config.json,
 * generation_config.json, and the tables of its safetensors files. */
#include "impl.h"

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

int model_find_hf(struct opening *o, const char *name, struct found_tensor *f)
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

/* Load the file as an object; NULL, and *rc = -ENOENT, .. and a sentence.  Messages name it from now on. */
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

/* Read a number of an object inside config.json; if it is missing, *out is unchanged. */
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

/* Read true or false; if it is missing or null, *out is unchanged. */
static int hf_bool(struct opening *o, const char *key, bool *out)
{
	const json_t *j = json_object_get(o->config, key);

	if (j && !json_is_null(j) && !json_is_boolean(j))
		return model_fail(o, -EINVAL, "%s is neither true nor false", key);
	if (json_is_boolean(j))
		*out = json_is_true(j);
	return 0;
}

/* The kind of scaling.  NULL: none. */
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

/* Find rope_scaling {type or rope_type, ..}; since transformers 5 rope_parameters, with theta in it. */
static int rope_object(struct opening *o, const json_t **out, const char **of)
{
	static const char *const names[] = { "rope_scaling", "rope_parameters" };
	const json_t *given[2];

	for (int i = 0; i < 2; i++) {
		given[i] = json_object_get(o->config, names[i]);
		if (given[i] && !json_is_null(given[i]) && !json_is_object(given[i]))
			return model_fail(o, -EINVAL, "%s is no object", names[i]);
		if (!json_object_size(given[i]))
			given[i] = NULL;
	}
	if (given[0] && given[1] && !json_equal(given[0], given[1]))
		return model_fail(o, -EINVAL, "rope_scaling and rope_parameters say different things; one of them, or "
		                  "both alike, would be right");
	*of = names[!given[0]];
	*out = given[!given[0]];
	return *out ? model_check_rope(o, *of, *out) : 0;
}

static int hf_llama3(struct opening *o, const json_t *j, const char *of, struct sr_rope *r)
{
	int rc;

	r->kind = SR_ROPE_LLAMA3;
	r->low = 1;
	r->high = 4;
	if ((rc = sub_float(o, j, of, "low_freq_factor", 1e-3, 1e3, &r->low)) != 0 ||
	    (rc = sub_float(o, j, of, "high_freq_factor", 1e-3, 1e3, &r->high)) != 0)
		return rc;
	if (r->high <= r->low)
		return model_fail(o, -EINVAL, "%s.high_freq_factor must be above low_freq_factor", of);
	return 0;
}

/* The magnitude that grows with the logarithm of the factor. */
static float mscale_of(float factor, float by)
{
	return factor > 1 ? 1 + 0.1f * by * logf(factor) : 1;
}

/* As transformers reads it (_compute_yarn_parameters).  attn_factor, of YaRN's own code and of vLLM, is
 * multiplied; attention_factor replaces the magnitude. */
static int hf_yarn(struct opening *o, const json_t *j, const char *of, struct sr_rope *r)
{
	const json_t *truncate = json_object_get(j, "truncate"), *factor = json_object_get(j, "factor");
	float whole = 0, times = 1, mscale = 0, all = 0;
	int rc;

	r->kind = SR_ROPE_YARN;
	r->low = 1;
	r->high = 32;
	if ((rc = sub_float(o, j, of, "beta_slow", 1e-3, 1e3, &r->low)) != 0 ||
	    (rc = sub_float(o, j, of, "beta_fast", 1e-3, 1e3, &r->high)) != 0 ||
	    (rc = sub_float(o, j, of, "attention_factor", 1e-3, 1e3, &whole)) != 0 ||
	    (rc = sub_float(o, j, of, "attn_factor", 1e-3, 1e3, &times)) != 0 ||
	    (rc = sub_float(o, j, of, "mscale", 0, 1e3, &mscale)) != 0 ||
	    (rc = sub_float(o, j, of, "mscale_all_dim", 0, 1e3, &all)) != 0)
		return rc;
	if (r->high < r->low)
		return model_fail(o, -EINVAL, "%s.beta_fast must not be below beta_slow", of);
	if (truncate && !json_is_null(truncate) && !json_is_boolean(truncate))
		return model_fail(o, -EINVAL, "%s.truncate is neither true nor false", of);
	r->exact = json_is_false(truncate);
	if (!factor || json_is_null(factor)) {     /* then it is the ratio of the contexts */
		r->factor = (float)o->m->context / (float)r->context;
		if (!(r->factor > 1 && r->factor <= 4096))
			return model_fail(o, -EINVAL, "%s.factor is missing, and max_position_embeddings over "
			                  "original_max_position_embeddings is %g; above 1 to 4096 would be one", of,
			                  (double)r->factor);
	}
	r->magnitude = mscale > 0 && all > 0 ? mscale_of(r->factor, mscale) / mscale_of(r->factor, all)
	                                     : mscale_of(r->factor, 1);
	r->magnitude = whole > 0 ? whole : r->magnitude * times;
	return 0;
}

/* Read what all kinds share: the rotated width, theta, the factor, the context before scaling. */
static int rope_common(struct opening *o, const json_t *j, const char *of, struct sr_rope *r)
{
	int rc;

	*r = (struct sr_rope){ .dims = o->m->kind[0].head_dim, .context = o->m->context, .theta = 10000,
	                       .factor = 1, .magnitude = 1 };
	if ((rc = model_float(o, (struct setting){ "", "rope_theta" }, 2, 1e12, &r->theta)) < 0 ||
	    (rc = sub_float(o, j, of, "rope_theta", 2, 1e12, &r->theta)) != 0 ||
	    (rc = sub_float(o, j, of, "factor", 1, 4096, &r->factor)) != 0 ||
	    (rc = sub_int(o, j, of, "original_max_position_embeddings", 1 << 28, &r->context)) != 0)
		return rc;
	/* If both are there, transformers prefers the outer one. */
	rc = model_int(o, (struct setting){ "", "original_max_position_embeddings" }, 1, 1 << 28, &r->context);
	return rc < 0 ? rc : 0;
}

static int hf_rope(struct opening *o)
{
	struct sr_rope *r = &o->m->kind[0].rope;
	const char *of = "", *type = NULL;
	const json_t *j = NULL;
	int rc;

	if ((rc = rope_object(o, &j, &of)) != 0 || (rc = rope_common(o, j, of, r)) != 0 ||
	    (rc = rope_type(o, j, of, &type)) != 0 || !type)
		return rc;
	if (strcmp(type, "linear") == 0) {
		r->kind = SR_ROPE_LINEAR;
	} else if (strcmp(type, "llama3") == 0) {
		rc = hf_llama3(o, j, of, r);
	} else if (strcmp(type, "yarn") == 0) {
		rc = hf_yarn(o, j, of, r);
	} else {
		return model_fail(o, -ENOTSUP, "%s.rope_type %.40s is not supported; supported are default, "
		                  "linear, llama3, yarn", of, type);
	}
	if (rc)
		return rc;
	if (r->kind != SR_ROPE_YARN && !json_is_number(json_object_get(j, "factor")))
		return model_fail(o, -EINVAL, "%s.factor is missing", of);
	return model_scale_context(o, r);
}

/* Refuse settings with which something else would be computed. */
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

/* Find the family by class name.  transformers uses model_type, vLLM architectures: they must agree. */
static int hf_family(struct opening *o)
{
	const json_t *list = json_object_get(o->config, "architectures");
	const char *arch = json_string_value(json_array_get(list, 0));
	const char *type = json_string_value(json_object_get(o->config, "model_type"));
	char known[200];

	o->family = model_family_find(arch, false);
	if (!o->family)
		return model_fail(o, -ENOTSUP, "architectures[0] %.60s is not supported; supported are %s",
		                  arch ? arch : "(none)", model_family_names(known, sizeof(known), false));
	if (type && strcmp(type, o->family->type) != 0)
		return model_fail(o, -ENOTSUP, "model_type is %.60s, but architectures[0] is %s; %s would be right",
		                  type, arch, o->family->type);
	model_set_name(o->m->arch, sizeof(o->m->arch), arch, strlen(arch));
	return 0;
}

static int hf_settings(struct opening *o)
{
	const struct setting vocab = { "", "vocab_size" };
	bool tied = false, bias = false;
	int rc;

	if ((rc = hf_family(o)) != 0 || (rc = model_sizes(o)) != 0 ||
	    (rc = model_need(o, vocab, model_int(o, vocab, 1, 1 << 24, &o->m->n_vocab))) != 0 ||
	    (rc = hf_refuse(o)) != 0 || (rc = model_check_config(o)) != 0 ||
	    (rc = model_quant_settings(o)) != 0)
		return rc;
	if ((rc = hf_bool(o, "tie_word_embeddings", &tied)) != 0 ||
	    (rc = hf_bool(o, "attention_bias", &bias)) != 0)
		return rc;
	o->has = o->family->has;
	if (bias && !(o->has & QKV_BIAS)) /* families that always have biases do not read it */
		o->has |= QKV_BIAS | O_BIAS;
	if (tied)
		o->has &= ~(unsigned)UNTIED;
	return hf_rope(o);
}

/* ---- windows ------------------------------------------------------------------------------------ */

static bool is_sliding(const json_t *types, int32_t l)
{
	return strcmp(json_string_value(json_array_get(types, (size_t)l)), "sliding_attention") == 0;
}

/* Read layer_types: the kind of attention of each layer.  NULL: it is missing. */
static int get_types(struct opening *o, const json_t **types, int *sliding)
{
	*types = json_object_get(o->config, "layer_types");
	if (json_is_null(*types))
		*types = NULL;
	if (*types && json_array_size(*types) != (size_t)o->m->n_layers)
		return model_fail(o, -EINVAL, "layer_types is no list of %d names, one a layer", o->m->n_layers);
	for (int32_t l = 0; *types && l < o->m->n_layers; l++) {
		const char *type = json_string_value(json_array_get(*types, (size_t)l));

		if (!type || (strcmp(type, "sliding_attention") != 0 && strcmp(type, "full_attention") != 0))
			return model_fail(o, -ENOTSUP, "layer_types[%d] is %.40s; supported are full_attention, "
			                  "sliding_attention", l, type ? type : "no string");
		*sliding += is_sliding(*types, l);
	}
	return 0;
}

/* As in transformers' classes, with their defaults: 4096 positions, from layer 28 up. */
static int hf_window(struct opening *o)
{
	bool asked = o->family->windows == WINDOW_ASKED, all = o->family->windows == WINDOW_ALL, used = all;
	int sliding = 0, rc;

	if ((rc = get_types(o, &o->layer_types, &sliding)) != 0 ||
	    (asked && (rc = hf_bool(o, "use_sliding_window", &used)) != 0))
		return rc;
	if (used && !json_is_null(json_object_get(o->config, "sliding_window"))) {
		o->window = 4096;
		if ((rc = model_int(o, (struct setting){ "", "sliding_window" }, 0, 1 << 28, &o->window)) < 0)
			return rc;
	}
	if (asked && used) {
		o->window_from = 28;
		rc = model_int(o, (struct setting){ "", "max_window_layers" }, 0, LAYERS_MAX, &o->window_from);
		if (rc < 0)
			return rc;
	}
	if (sliding && !o->window)
		return model_fail(o, -ENOTSUP, "layer_types has sliding_attention, but %s", asked
		                  ? "use_sliding_window or sliding_window says that there is no window"
		                  : "this model has no window; full_attention would be right");
	if (o->layer_types && all && o->window && sliding < o->m->n_layers)
		return model_fail(o, -ENOTSUP, "layer_types has full_attention, but sliding_window is %d, which is for "
		                  "all layers; null would be right", o->window);
	return 0;
}

void model_window_kinds(struct opening *o)
{
	struct sr_model *m = o->m;
	int32_t n = 0;

	for (int32_t l = 0; l < m->n_layers; l++) {
		m->layer[l].kind = o->layer_types ? is_sliding(o->layer_types, l) : l >= o->window_from;
		n += m->layer[l].kind;
	}
	m->kind[1] = m->kind[0];
	m->kind[1].window = o->window;
	m->n_kinds = n ? 2 : 1;
	if (n < m->n_layers)
		return;
	m->kind[0] = m->kind[1];
	m->n_kinds = 1;
	for (int32_t l = 0; l < m->n_layers; l++)
		m->layer[l].kind = 0;
}

/* Read eos_token_id: an id or a list of ids.  1: it is missing. */
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

/* Read both files of settings. */
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

	if (rc || (!o->dummy && (rc = open_weights(o, dir)) != 0))
		return rc;
	return model_take_tensors(o);
}
