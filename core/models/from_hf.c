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
	if (o->quant.type == SR_NVFP4 && strcmp(t->dtype, "U8") == 0)
		return model_find_nvfp4(o, name, t, file, f);
	if (f->type == SR_I8 && o->quant.type != SR_I8)
		f->type = SR_NONE;                 /* nothing says what it is times */
	return f->type == SR_F8 || f->type == SR_I8 ? model_find_f8(o, name, f) : 0;
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

/* The activation must be the one that this family is known with. */
static int hf_act(struct opening *o)
{
	static const char *const names[] = {
		[SR_SILU] = "silu", [SR_GELU_TANH] = "gelu_pytorch_tanh", [SR_GELU_ERF] = "gelu", [SR_RELU2] = "relu2",
	};
	const struct model_family *f = o->family;
	const char *key = f->act_key ? f->act_key : "hidden_act", *right = names[f->act];
	const json_t *j = model_ask(o, o->config, key);
	const char *is = json_string_value(j);
	/* Gemma's first files say gelu, which meant this one; transformers corrects them, too. */
	bool old = f->act == SR_GELU_TANH && !f->act_key;

	o->m->act = f->act;
	if (f->act_key || old) { /* the other key, which transformers does not read then */
		model_note_asked(o, false, "hidden_act");
		model_note_asked(o, false, "hidden_activation");
	}
	if (!j || (is && (strcmp(is, right) == 0 || (old && strcmp(is, "gelu") == 0))))
		return 0;
	return model_fail(o, -ENOTSUP, "%s %.40s is not supported; supported is %s", key, is ? is : "(no string)", right);
}

/* A model with a tower (for images, sound) has the settings of its language model in text_config.  They become
 * the configuration, with what stands outside of it for the whole. */
static int hf_text_config(struct opening *o)
{
	static const char *const whole[] = { "quantization_config", "eos_token_id", "tie_word_embeddings" };
	json_t *text = json_object_get(o->config, "text_config");

	if (!json_is_object(text) || model_family_find(json_string_value(json_array_get(json_object_get(o->config,
	    "architectures"), 0)), false))
		return 0;
	text = json_deep_copy(text);
	if (!text)
		return model_no_memory(o);
	for (size_t i = 0; i < sizeof(whole) / sizeof(*whole); i++) {
		json_t *j = json_object_get(o->config, whole[i]);

		if (j && !json_object_get(text, whole[i]))
			json_object_set(text, whole[i], j);
	}
	o->outer = o->config;
	o->config = text;
	return 0;
}

/* What transformers' class takes for keys that are missing. */
static int hf_defaults(struct opening *o)
{
	json_t *j = o->family->defaults ? json_loads(o->family->defaults, 0, NULL) : NULL;

	if (o->family->defaults && (!j || json_object_update_missing(o->config, j) != 0)) {
		json_decref(j);
		return model_no_memory(o);
	}
	json_decref(j);
	return 0;
}

/* The family of a class .. ForSequenceClassification, which has a classifier instead of a head.  NULL: it is none. */
static const struct model_family *scoring_family(const char *arch)
{
	static const char end[] = "ForSequenceClassification";
	size_t n = arch ? strlen(arch) : 0, len = sizeof(end) - 1;
	char class[64];

	if (n <= len || strcmp(arch + n - len, end) != 0)
		return NULL;
	n -= len;
	if (n > 4 && memcmp(arch + n - 4, "Text", 4) == 0) /* Gemma 3 without its tower */
		n -= 4;
	snprintf(class, sizeof(class), "%.*sForCausalLM", n < 40 ? (int)n : 40, arch);
	return model_family_find(class, false);
}

/* Find the family by class name, or, behind a tower, by model_type.  transformers uses model_type, vLLM
 * architectures: they must agree. */
static int hf_family(struct opening *o)
{
	const json_t *outer = o->outer ? o->outer : o->config;
	const json_t *list = json_object_get(outer, "architectures");
	const char *arch = json_string_value(json_array_get(list, 0));
	const char *type = json_string_value(json_object_get(o->config, "model_type"));

	o->family = o->outer ? model_family_of_type(type) : model_family_find(arch, false);
	if (!o->family && !o->outer)
		o->scores = (o->family = scoring_family(arch)) != NULL;
	if (!o->family && o->outer)
		return model_unknown_family(o, "text_config.model_type", type);
	if (!o->family)
		return model_unknown_family(o, "architectures[0]", arch);
	if (type && strcmp(type, o->family->type) != 0 && (!o->family->also || strcmp(type, o->family->also) != 0))
		return model_fail(o, -ENOTSUP, "model_type is %.60s, but architectures[0] is %s; %s would be right",
		                  type, arch, o->family->type);
	arch = o->outer ? o->family->class : arch;
	model_set_name(o->m->arch, sizeof(o->m->arch), arch, strlen(arch));
	return 0;
}

/* Which parts the model has, beyond what its family always has. */
static int hf_has(struct opening *o)
{
	bool tied = false, bias = false, ffn_bias = false;
	int rc;

	if ((rc = model_bool(o, (struct setting){ "", "tie_word_embeddings" }, &tied)) < 0 ||
	    (rc = model_bool(o, (struct setting){ "", "attention_bias" }, &bias)) < 0 ||
	    (rc = model_bool(o, (struct setting){ "", "mlp_bias" }, &ffn_bias)) < 0)
		return rc;
	if (!(o->family->has & MAY_FFN_BIAS) && (rc = model_must(o, "mlp_bias", "false")) != 0)
		return rc;
	o->has = o->family->has;
	if (bias && !(o->has & QKV_BIAS)) /* families that always have biases do not read it */
		o->has |= QKV_BIAS | (o->has & NO_O_BIAS ? 0 : O_BIAS);
	if (ffn_bias)
		o->has |= FFN_BIAS;
	if (tied || o->scores)
		o->has &= ~(unsigned)UNTIED;
	return 0;
}

static int hf_settings(struct opening *o)
{
	const struct setting vocab = { "", "vocab_size" };
	int rc;

	if ((rc = hf_text_config(o)) != 0 || (rc = hf_family(o)) != 0 || (rc = hf_defaults(o)) != 0 ||
	    (rc = model_sizes(o)) != 0 ||
	    (rc = model_need(o, vocab, model_int(o, vocab, 1, 1 << 24, &o->m->n_vocab))) != 0 ||
	    (rc = hf_act(o)) != 0 || (rc = hf_has(o)) != 0 || (rc = model_quant_settings(o)) != 0 ||
	    (rc = model_hf_ropes(o)) != 0)
		return rc;
	return model_family_settings(o);
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
	/* Where the language model lies behind a tower, as transformers 5 and older ones save it. */
	static const struct { const char *prefix, *head; } places[] = {
		{ "model.", "" }, { "model.language_model.", "" }, { "language_model.model.", "language_model." },
	};
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
	for (size_t i = 1; i < sizeof(places) / sizeof(*places) && o->outer; i++) {
		char name[64];

		snprintf(name, sizeof(name), "%sembed_tokens.weight", places[i].prefix);
		if (safetensors_lookup(o->st, name)) {
			o->prefix = places[i].prefix;
			o->head_prefix = places[i].head;
		}
	}
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
	if (o->config && model_encoder(o)) {
		rc = model_encoder_settings(o);
		if (!rc && o->dummy)
			rc = model_fail(o, -ENOTSUP, "--load-format dummy: not for encoders");
		o->path = dir;
		return rc;
	}
	if (o->config && (rc = hf_settings(o)) == 0) {
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
	return model_encoder(o) ? model_encoder_tensors(o) : model_take_tensors(o);
}
