/* models/keys.c - which settings of a model's files are read, which must have the one value that is computed
 * here, and which change nothing.  Any other setting that may change the numbers is refused by name,
 * because ignoring it would silently compute something else.  docs/model.md describes this for users.
 *
 * Settings that only bring tensors of their own (biases, norms of queries, experts) need no line here.
 * models/open.c refuses any tensor that the model's table does not take.
 */
#include "impl.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* value: READ: the reader handles it; ANY: no value changes an answer; otherwise the value it must have,
 * or several separated by |.  null and empty values are always allowed. */
static const char READ[] = "read", ANY[] = "any";
struct rule { const char *key, *value; };

static bool is_fixed(const struct rule *r)
{
	return r && r->value != READ && r->value != ANY;
}

static const struct rule *rule_of(const struct rule *rules, size_t n, const char *key, size_t len)
{
	for (size_t i = 0; i < n; i++)
		if (strlen(rules[i].key) == len && memcmp(rules[i].key, key, len) == 0)
			return &rules[i];
	return NULL;
}

/* Is `text`, or this number if text is NULL, in the list? */
static bool is_listed(const char *list, const char *text, double number)
{
	for (const char *at = list; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
		size_t len = strcspn(at, "|");
		char *end;
		double v = strtod(at, &end);

		if (text ? strlen(text) == len && memcmp(text, at, len) == 0
		         : end == at + len && len && v == number)
			return true;
	}
	return false;
}

/* ---- config.json ------------------------------------------------------------------------------ */

static const struct rule config_rules[] = {
	{ "architectures", READ }, { "model_type", READ }, { "vocab_size", READ }, { "hidden_size", READ },
	{ "intermediate_size", READ }, { "num_hidden_layers", READ }, { "num_attention_heads", READ },
	{ "num_key_value_heads", READ }, { "head_dim", READ }, { "v_head_dim", READ },
	{ "max_position_embeddings", READ }, { "rms_norm_eps", READ }, { "hidden_act", READ },
	{ "attention_bias", READ }, { "mlp_bias", READ }, { "tie_word_embeddings", READ }, { "rope_theta", READ },
	{ "rope_scaling", READ }, { "rope_parameters", READ }, { "original_max_position_embeddings", READ },
	{ "sliding_window", READ }, { "use_sliding_window", READ }, { "max_window_layers", READ },
	{ "layer_types", READ }, { "quantization_config", READ }, { "eos_token_id", READ },
	{ "partial_rotary_factor", "1" },     /* vLLM rotates a part; transformers rotates all or fails */
	{ "rope_interleaved", "false" }, { "hidden_activation", "silu|swiglu" },
	{ "activation_function", "silu|swiglu" }, { "activation", "silu|swiglu" }, { "is_causal", "true" }, { "is_encoder_decoder", "false" },
	{ "add_cross_attention", "false" }, { "text_config", "null" },
	{ "attention_multiplier", "null" },   /* 1 is no default: it replaces 1 / sqrt(head_dim) */
	{ "num_experts", "0" }, { "num_local_experts", "0" }, { "n_routed_experts", "0" },
	/* Names that look like settings, but these architectures have none such. */
	{ "temperature", ANY }, { "layer_norm_eps", ANY }, { "layer_norm_epsilon", ANY }, { "norm_eps", ANY },
	{ "attn_bias", ANY }, { "chunk_size_feed_forward", ANY }, { "logits_to_keep", ANY },
	{ "num_logits_to_keep", ANY },
	{ "sbert_ce_default_activation_function", READ }, /* models/pooling.c */
};

/* A name with one of the first words is about training, generation or how a program computes.  A name
 * with one of the others may be about what is computed. */
static const char *const harmless_words[] = {
	"dropout", "pdrop", "implementation", "flash", "init", "loss", "token_id", "output_", "_dtype",
	"efficient", "sdpa",
};
static const char *const telling_words[] = {
	"multiplier", "scale", "scaling", "scalar", "softcap", "rope", "rotary", "yarn", "alibi", "window",
	"sliding", "clip", "clamp", "residual", "parallel_block", "activation", "causal", "bidirection", "attn",
	"attention", "logit", "quant", "compress", "norm", "temperature", "sink", "mup", "unit_offset",
};
#define COUNT(list) (sizeof(list) / sizeof(*(list)))

static bool has_word(const char *key, const char *const *words, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strstr(key, words[i]))
			return true;
	return false;
}

/* null, false and empty values mean that the feature is absent. */
static bool says_nothing(const json_t *j)
{
	return !j || json_is_null(j) || json_is_false(j) || (json_is_string(j) && !*json_string_value(j)) ||
	       (json_is_array(j) && !json_array_size(j)) || (json_is_object(j) && !json_object_size(j));
}

/* 0 means no cap or no window; 1 is neutral as a factor. */
static bool is_neutral(const char *key, const json_t *j)
{
	double v = json_number_value(j);

	return says_nothing(j) ||
	       (json_is_number(j) && (v == 0 || (v == 1 && (strstr(key, "multiplier") || strstr(key, "scal")))));
}

/* An object is compared by its format. */
static bool is_one_of(const json_t *j, const char *list)
{
	const char *text = json_is_true(j) ? "true" : json_is_false(j) ? "false" : json_string_value(
		json_is_object(j) ? json_object_get(j, "format") : j);

	return (says_nothing(j) && !text) ||
	       ((text || json_is_number(j)) && is_listed(list, text, json_number_value(j)));
}

static int refuse_setting(struct opening *o, const char *of, const char *key, const json_t *j,
                          const char *right)
{
	char *text = json_dumps(j, JSON_ENCODE_ANY | JSON_COMPACT);
	int rc;

	if (right)
		rc = model_fail(o, -ENOTSUP, "%s%s%.60s is %.60s, which is not supported for %s; supported is %s", of,
		                *of ? "." : "", key, text ? text : "?", o->m->arch, right);
	else
		rc = model_fail(o, -ENOTSUP, "%s%s%.60s is %.60s: this setting is not known for %s and may change "
		                "what is computed; if it does not, take it out", of, *of ? "." : "", key,
		                text ? text : "?", o->m->arch);
	free(text);
	return rc;
}

static bool was_asked(const struct opening *o, bool of_rope, const char *key, size_t len)
{
	for (int i = 0; i < o->n_asked[of_rope]; i++)
		if (strlen(o->asked[of_rope][i]) == len && memcmp(o->asked[of_rope][i], key, len) == 0)
			return true;
	return false;
}

void model_note_asked(struct opening *o, bool of_rope, const char *key)
{
	if (was_asked(o, of_rope, key, strlen(key)))
		return;
	assert(o->n_asked[of_rope] < (int)COUNT(o->asked[of_rope])); /* keys are named in our code: there are few */
	o->asked[of_rope][o->n_asked[of_rope]++] = key;
}

const json_t *model_ask(struct opening *o, const json_t *obj, const char *key)
{
	const json_t *j = json_object_get(obj, key);

	model_note_asked(o, obj != o->config, key);
	return json_is_null(j) ? NULL : j;
}

int model_must(struct opening *o, const char *key, const char *list)
{
	const json_t *j = json_object_get(o->config, key);

	model_note_asked(o, false, key);
	return !j || is_one_of(j, list) ? 0 : refuse_setting(o, "", key, j, list);
}

static int check_keys(struct opening *o, const json_t *config)
{
	const char *key;
	json_t *j;

	json_object_foreach((json_t *)(uintptr_t)config, key, j) {
		const struct rule *r = rule_of(config_rules, COUNT(config_rules), key, strlen(key));

		if (config == o->config ? was_asked(o, false, key, strlen(key)) : strstr(key, "_config") != NULL)
			continue;              /* outside of text_config: the settings of towers */
		if (is_fixed(r) && !is_one_of(j, r->value))
			return refuse_setting(o, "", key, j, r->value);
		if (!r && !has_word(key, harmless_words, COUNT(harmless_words)) &&
		    has_word(key, telling_words, COUNT(telling_words)) && !is_neutral(key, j))
			return refuse_setting(o, "", key, j, NULL);
	}
	return 0;
}

/* ---- objects inside of it, where every name must be known ------------------------------------- */

static const struct rule rope_rules[] = {
	{ "rope_type", READ }, { "type", READ }, { "rope_theta", READ }, { "factor", READ },
	{ "original_max_position_embeddings", READ }, { "low_freq_factor", READ }, { "high_freq_factor", READ },
	{ "beta_fast", READ }, { "beta_slow", READ }, { "attention_factor", READ }, { "attn_factor", READ },
	{ "mscale", READ }, { "mscale_all_dim", READ }, { "truncate", READ }, { "finetuned", ANY },
	{ "partial_rotary_factor", "1" }, { "max_position_embeddings", ANY }, { "extrapolation_factor", "1" }, { "apply_yarn_scaling", "true" },
};

static const struct rule quant_rules[] = {
	{ "quant_method", READ }, { "bits", READ }, { "group_size", READ }, { "version", READ },
	{ "zero_point", READ }, { "checkpoint_format", READ }, { "dynamic", READ }, { "weight_block_size", READ },
	{ "fmt", READ }, { "format", READ }, { "config_groups", READ }, { "kv_cache_scheme", READ },
	{ "is_marlin_format", "false" }, { "pack_dtype", "int32" }, { "transform_config", "null" },
	{ "activation_scheme", "dynamic|static" }, { "sparsity_config", "dense" }, { "quant_algo", READ },
	{ "kv_cache_quant_algo", READ },
	/* The tensors show which modules are quantized, and whether with act-order. */
	{ "desc_act", ANY }, { "sym", ANY }, { "lm_head", ANY }, { "ignore", ANY }, { "ignored_layers", ANY },
	{ "modules_to_not_convert", ANY }, { "exclude_modules", ANY }, { "producer", ANY }, { "modules_in_block_to_quantize", ANY }, { "static_groups", ANY },
	/* How the weights were found, and how other programs compute with them. */
	{ "true_sequential", ANY }, { "damp_percent", ANY }, { "damp_auto_increment", ANY }, { "mse", ANY },
	{ "model_name_or_path", ANY }, { "model_file_base_name", ANY }, { "batch_size", ANY }, { "meta", ANY },
	{ "block_name_to_quantize", ANY }, { "cache_block_outputs", ANY }, { "dataset", ANY },
	{ "exllama_config", ANY }, { "use_exllama", ANY }, { "disable_exllama", ANY }, { "use_cuda_fp16", ANY },
	{ "max_input_length", ANY }, { "module_name_preceding_first_block", ANY }, { "pad_token_id", ANY },
	{ "tokenizer", ANY }, { "backend", ANY }, { "do_fuse", ANY }, { "fuse_max_seq_len", ANY },
	{ "modules_to_fuse", ANY }, { "quantization_status", ANY }, { "global_compression_ratio", ANY },
	{ "act_group_aware", ANY }, { "hyb_act", ANY }, { "offload_to_disk", ANY }, { "quantizer", ANY },
	{ "model_seqlen", ANY }, { "method", "gptq|awq" }, { "autoround_version", ANY }, { "iters", ANY },
	{ "nsamples", ANY }, { "seqlen", ANY }, { "lr", ANY }, { "minmax_lr", ANY }, { "low_gpu_mem_usage", ANY },
	{ "enable_quanted_input", ANY }, { "enable_minmax_tuning", ANY }, { "gradient_accumulate_steps", ANY },
	{ "not_use_best_mse", ANY }, { "train_bs", ANY }, { "to_quant_block_names", ANY }, { "data_type", "int" },
};

static int check_inside(struct opening *o, const char *of, const json_t *obj, const struct rule *rules, size_t n)
{
	const char *key;
	json_t *j;

	json_object_foreach((json_t *)(uintptr_t)obj, key, j) {
		const struct rule *r = rule_of(rules, n, key, strlen(key));

		if (rules == rope_rules && was_asked(o, true, key, strlen(key)))
			continue;
		if (!r && !says_nothing(j))
			return refuse_setting(o, of, key, j, NULL);
		if (is_fixed(r) && !is_one_of(j, r->value))
			return refuse_setting(o, of, key, j, r->value);
	}
	return 0;
}

int model_check_config(struct opening *o)
{
	int rc = check_keys(o, o->config);

	if (!rc && o->outer)
		rc = check_keys(o, o->outer);
	for (int i = 0; i < 2 && !rc; i++)
		if (o->rope[i].obj)
			rc = check_inside(o, o->rope[i].of, o->rope[i].obj, rope_rules, COUNT(rope_rules));
	return rc;
}

int model_check_quant(struct opening *o, const json_t *obj)
{
	return check_inside(o, "quantization_config", obj, quant_rules, COUNT(quant_rules));
}

/* ---- GGUF ------------------------------------------------------------------------------------- */

static const struct rule gguf_rules[] = {                /* after "llama." */
	{ "block_count", READ }, { "context_length", READ }, { "embedding_length", READ },
	{ "feed_forward_length", READ }, { "attention.head_count", READ }, { "attention.head_count_kv", READ },
	{ "attention.key_length", READ }, { "attention.value_length", READ },
	{ "attention.layer_norm_rms_epsilon", READ }, { "attention.scale", READ },
	{ "attention.sliding_window", READ }, { "rope.dimension_count", READ }, { "rope.freq_base", READ },
	{ "rope.scale_linear", READ }, { "rope.scaling.type", READ }, { "rope.scaling.factor", READ },
	{ "rope.scaling.original_context_length", READ }, { "rope.scaling.attn_factor", READ },
	{ "rope.scaling.yarn_beta_fast", READ }, { "rope.scaling.yarn_beta_slow", READ },
	{ "rope.scaling.yarn_ext_factor", READ }, { "rope.scaling.yarn_attn_factor", READ },
	{ "rope.scaling.yarn_log_multiplier", "0" }, { "rope.scaling.alpha", "0" },
	{ "expert_count", "0" }, { "expert_used_count", "0" }, { "expert_shared_count", "0" },
	{ "leading_dense_block_count", "0" }, { "nextn_predict_layers", "0" },
	{ "attention.causal", "true" }, { "attention.clamp_kqv", "0" },
	{ "attention.max_alibi_bias", "0" }, { "attention.temperature_scale", "0" },
	{ "attn_logit_softcapping", "0" }, { "final_logit_softcapping", "0" }, { "logit_scale", "0|1" },
	{ "residual_scale", "0|1" }, { "embedding_scale", "0|1" }, { "use_parallel_residual", "false" },
	{ "hidden_activation", "silu" },
	{ "vocab_size", ANY }, { "rope.scaling.finetuned", ANY }, { "pooling_type", ANY },
	{ "tensor_data_layout", ANY }, { "classifier.output_labels", READ }, { "attention.layer_norm_epsilon", ANY },
};

/* For messages and comparison: a string or boolean as text; a number as "" and its value in *v. */
static void value_text(const struct gguf *g, const struct gguf_value *value, char *text, size_t n, double *v)
{
	char key[200];
	struct gguf_string s;
	uint64_t u;
	bool b;

	*text = 0;
	*v = NAN;
	snprintf(key, sizeof(key), "%.*s", (int)(value->key.n < 199 ? value->key.n : 199), value->key.s);
	if (gguf_bool(g, key, &b) == 0)
		snprintf(text, n, "%s", b ? "true" : "false");
	else if (gguf_str(g, key, &s) == 0)
		snprintf(text, n, "%.*s", (int)(s.n < 60 ? s.n : 60), s.s);
	else if (value->type == GGUF_ARRAY)
		snprintf(text, n, "a list of %" PRIu64, value->n);
	else if (gguf_u64(g, key, &u) == 0)
		*v = (double)u;
	else
		gguf_f64(g, key, v);
}

static int check_value(struct opening *o, const struct gguf_value *value, const struct rule *r)
{
	char text[80], number[40];
	double v;

	if (r && !is_fixed(r))
		return 0;
	value_text(o->g, value, text, sizeof(text), &v);
	if (r && is_listed(r->value, *text ? text : NULL, v))
		return 0;
	snprintf(number, sizeof(number), "%g", v);
	if (r)
		return model_fail(o, -ENOTSUP, "%.*s is %s, which is not supported; supported is %s",
		                  (int)value->key.n, value->key.s,
		                  *text ? text : number, r->value);
	return model_fail(o, -ENOTSUP, "%.*s is %s: this setting is not known and may change what is computed; if it "
	                  "does not, take it out", (int)(value->key.n < 100 ? value->key.n : 100), value->key.s,
	                  *text ? text : number);
}

int model_check_gguf(struct opening *o)
{
	static const struct rule whole[] = { { "general.type", "model" } };
	size_t arch = strlen(o->m->arch);

	for (uint64_t i = 0; i < o->g->n_values; i++) {
		const struct gguf_value *v = &o->g->value[i];
		const struct rule *r = rule_of(whole, COUNT(whole), v->key.s, v->key.n);
		bool own = v->key.n > arch && memcmp(v->key.s, o->m->arch, arch) == 0 && v->key.s[arch] == '.';
		int rc;

		if (!own && !r)
			continue;
		if (own && was_asked(o, false, v->key.s + arch + 1, v->key.n - arch - 1))
			continue;
		if (own)
			r = rule_of(gguf_rules, COUNT(gguf_rules), v->key.s + arch + 1, v->key.n - arch - 1);
		if ((rc = check_value(o, v, r)) != 0)
			return rc;
	}
	return 0;
}
